/* engine/resolve.c - commit: what a finished step means for its sequences.
 *
 * Per sequence: the rows' ids are covered; a chosen id is the end (not emitted, counted), or is emitted, may complete a stop string,
 * may be the last one allowed.  When several ends hold, cancelled comes before stop before length. */
#include "base/mem.h"
#include "engine/engine_int.h"

#include <stdlib.h>

static int by_value(const void *a, const void *b)
{
    uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    return (x > y) - (x < y);
}

static bool is_end(const struct engine_request *r, uint32_t id)
{
    return r->end_count && bsearch(&id, r->end_ids, r->end_count, sizeof id, by_value);
}

static int append_token(struct seq *s, uint32_t id)
{
    if (s->count == s->cap) {
        uint32_t cap = s->cap + s->cap / 2;
        uint32_t *grown = mem_try_resize(s->tokens, cap * sizeof *grown);
        if (!grown)
            return ERR_NOMEM;
        s->tokens = grown;
        s->cap = cap;
    }
    s->tokens[s->count++] = id;
    return sampler_observe(&s->sampler, s->tokens, s->count, s->request->prompt_count);
}

static int match_stops(struct engine *e, struct seq *s, uint32_t id, int *which)
{
    *which = -1;
    if (s->request->stops.count == 0)
        return 0;
    e->bytes.n = 0;
    int rc = e->cfg.id_bytes(e->cfg.id_bytes_ctx, id, &e->bytes);
    rc = rc ? rc : e->bytes.failed;
    return rc ? rc : stop_feed(&s->stop, &s->request->stops, buf_view(&e->bytes), which);
}

static void resolve_token(struct engine *e, struct seq *s, const struct sample_result *result)
{
    struct engine_request *r = s->request;
    struct err err = {0};
    int stop = -1, rc;
    if (s->generated++ == 0)
        r->outcomes[s->choice].first_ns = thread_now_ns();
    if (is_end(r, result->id)) {
        seq_finish(e, s, ENGINE_STOP, -1, NULL);
        return;
    }
    rc = match_stops(e, s, result->id, &stop);
    if (rc == 0)
        rc = append_token(s, result->id);
    if (rc) {
        err_set(&err, rc, "%s after token %u of the answer", err_text(rc), s->generated);
        seq_finish(e, s, ENGINE_ERROR, -1, &err);
        return;
    }
    ring_put_token(r, s->choice, result);
    if (stop >= 0)
        seq_finish(e, s, ENGINE_STOP, stop, NULL);
    else if (s->generated >= r->limit)
        seq_finish(e, s, ENGINE_LENGTH, -1, NULL);
    else
        s->state = SEQ_DECODE;
}

static void resolve_score(struct engine *e, struct step *step, const struct step_item *it)
{
    struct seq *s = it->seq;
    const struct engine_score *score = &s->request->score;
    const float *logits = it->logits ? step->spans[it - step->items].logits : NULL;
    for (uint32_t i = 0; i < it->rows; i++)
        score->row(score->ctx, it->position + i, &step->results[it->result_first + i], logits ? logits + (size_t)i * e->vocab : NULL);
    if (kv_seq_covered(s->kv) == s->count)
        seq_finish(e, s, ENGINE_LENGTH, -1, NULL);
}

static void resolve_item(struct engine *e, struct step *step, const struct step_item *it)
{
    struct seq *s = it->seq;
    struct err err = {0};
    s->in_flight -= it->rows;
    if (it->samples)
        s->sampling = false;
    if (s->doomed) {
        seq_fail(e, s, NULL);
        return;
    }
    if (kv_commit(e->kv, s->kv, s->tokens + it->position, it->rows, &err)) {
        seq_fail(e, s, &err);
        return;
    }
    if (it->position < s->request->prompt_count && kv_seq_covered(s->kv) == s->request->prompt_count && s->choice == 0)
        retain_prompt(e, s);
    if (kv_seq_covered(s->kv) + 1 >= s->request->prompt_count)
        sched_queue_followers(e, s->request);
    if (s->request->cancel_seen) {
        if (s->in_flight == 0)
            seq_finish(e, s, ENGINE_CANCELLED, -1, NULL);
    } else if (s->request->scoring)
        resolve_score(e, step, it);
    else if (it->samples)
        resolve_token(e, s, &step->results[it->result_first]);
}

/* The step's references to its requests, taken when it was planned, go last: an item may end a request that a later one names. */
void resolve_step(struct engine *e, struct step *step)
{
    for (uint32_t i = 0; i < step->item_count; i++)
        resolve_item(e, step, &step->items[i]);
    for (uint32_t i = 0; i < step->item_count; i++)
        engine_request_release(step->items[i].seq->request);
}

void resolve_failed(struct engine *e, struct step *step, const struct err *err)
{
    for (uint32_t i = 0; i < step->item_count; i++) {
        struct seq *s = step->items[i].seq;
        s->in_flight -= step->items[i].rows;
        s->sampling = false;
        seq_fail(e, s, err);
    }
    for (uint32_t i = 0; i < step->item_count; i++)
        engine_request_release(step->items[i].seq->request);
}
