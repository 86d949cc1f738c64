/* engine/resolve.c - commit: what a finished step means for its sequences.
 *
 * Per sequence: the acceptance walk over the sampled rows (walk.h), each token published on its own; then the rows that stay are covered and
 * the others forgotten; then the end, if there is one.  When several ends hold, cancelled comes before stop before length. */
#include "base/mem.h"
#include "engine/engine_int.h"

#include <stdlib.h>

static int by_value(const void *a, const void *b)
{
    uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    return (x > y) - (x < y);
}

bool resolve_is_end(const struct engine_request *r, uint32_t id)
{
    return r->end_count && bsearch(&id, r->end_ids, r->end_count, sizeof id, by_value);
}

static int append_token(struct seq *s, uint32_t id)
{
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

/* how a round went: what is emitted was published, nothing of the state was touched yet */
struct round_end {
    bool over;                 /* the sequence ends */
    enum engine_finish finish;
    int stop;                  /* the stop string, or -1 */
    uint32_t retained;         /* drafts whose state stays */
    struct err err;
};

static void round_open(struct round_end *end)
{
    end->over = false;
    end->finish = ENGINE_STOP;
    end->stop = -1;
    end->retained = 0;
    err_none(&end->err);
}

static void end_round(struct round_end *end, enum engine_finish finish, int stop)
{
    end->over = true;
    end->finish = finish;
    end->stop = stop;
}

/* One chosen token: history, stop strings, the consumer.  False: it ended the sequence. */
static bool deliver(struct engine *e, struct seq *s, const struct sample_result *result, struct round_end *end)
{
    int stop = -1, rc = match_stops(e, s, result->id, &stop);
    if (rc == 0)
        rc = append_token(s, result->id);
    if (rc) {
        err_set(&end->err, rc, "%s after token %u of the answer", err_text(rc), s->generated);
        end_round(end, ENGINE_ERROR, -1);
        return false;
    }
    ring_put_token(s->request, s->choice, result);
    if (stop >= 0)
        end_round(end, ENGINE_STOP, stop);
    return stop < 0;
}

/* A chosen id on its way through the walk: grammar, history, consumer. */
static void take_token(struct engine *e, struct seq *s, struct walk *w, const struct sample_result *sample, struct round_end *end,
                       uint32_t *delivered)
{
    struct engine_request *r = s->request;
    struct constraint *c = s->constraint;
    bool over = resolve_is_end(r, sample->id), complete = false;
    if (sample->id == UINT32_MAX || (c && !over && !c->ops->advance(c, sample->id))) {
        err_set(&end->err, ERR_ARGUMENT, "token %u of the answer: no id is allowed (bias, minimum, mask), or no logit is a number",
                s->generated + 1);
        end_round(end, ENGINE_ERROR, -1);
        return;
    }
    if (c && !over)
        complete = c->ops->complete(c);
    if (s->generated++ == 0)
        r->outcomes[s->choice].first_ns = thread_now_ns();
    if (walk_feed(w, sample->id, over, complete) && (deliver(e, s, sample, end) || end->finish == ENGINE_STOP))
        ++*delivered;
}

static void end_walk(const struct walk *w, struct round_end *end)
{
    if (!end->over && walk_end(w) != WALK_CONTINUE)
        end_round(end, walk_end(w) == WALK_STOP ? ENGINE_STOP : ENGINE_LENGTH, -1);
}

static uint32_t budget_of(const struct seq *s)
{
    return s->request->limit > s->generated ? s->request->limit - s->generated : 1;
}

/* Ids that alone can follow are asserted: emitted now, their rows run with the next step's. */
static void assert_forced(struct engine *e, struct seq *s, struct round_end *end)
{
    struct engine_fill *f = &s->request->outcomes[s->choice].speculation.fill;
    uint32_t n = 0;
    for (int64_t id; !end->over && (id = constrain_forced(s)) >= 0 && sched_tokens_room(s, 1);) {
        struct sample_result sample = {.id = (uint32_t)id};
        struct walk w;
        walk_open(&w, &sample.id, 1, budget_of(s));
        take_token(e, s, &w, &sample, end, &n);
        end_walk(&w, end);
    }
    f->events += n > 0;
    f->injected += n;
    f->forced += n;
    f->lengths[n < ENGINE_DEPTH_MAX ? n : ENGINE_DEPTH_MAX] += n > 0;
}

/* The acceptance walk over the rows' samples: tokens leave one by one, so everything that ends a text ends it where plain decoding would. */
static void walk_round(struct engine *e, struct seq *s, const struct step_item *it, const struct sample_result *results, struct round_end *end)
{
    struct walk w;
    uint32_t delivered = 0;
    walk_open(&w, it->round.ids, it->round.count, budget_of(s));
    while (!w.done && !end->over)
        take_token(e, s, &w, &results[w.position], end, &delivered);
    end->retained = walk_retained(&w, delivered);
    if (it->round.count)
        propose_settle(e, s, &it->round, end->retained, w.position);
    end_walk(&w, end);
}

static void resolve_score(struct engine *e, struct step *step, const struct step_item *it)
{
    struct seq *s = it->seq;
    const struct engine_score *score = &s->request->score;
    const float *logits = it->logits ? step->spans[it - step->items].logits : NULL;
    int held = mem_forbid_pause(); /* the function is its caller's */
    for (uint32_t i = 0; i < it->rows; i++)
        score->row(score->ctx, it->position + i, &step->results[it->result_first + i], logits ? logits + (size_t)i * e->vocab : NULL);
    mem_forbid_resume(held);
    if (kv_seq_covered(s->kv) == s->count)
        seq_finish(e, s, ENGINE_LENGTH, -1, NULL);
}

static void resolve_pool(struct engine *e, struct step *step, const struct step_item *it)
{
    struct seq *s = it->seq;
    struct reveal *v = &s->request->reveal;
    const float *hidden = step->spans[it - step->items].hidden;
    if (hidden)
        reveal_add(v, it->position + it->out_first, hidden, it->rows - it->out_first);
    if (kv_seq_covered(s->kv) < s->count)
        return;
    s->request->outcomes[s->choice].pooled = reveal_pooled(v, s->count);
    seq_finish(e, s, ENGINE_STOP, -1, NULL);
}

/* Rows of the prompt say how likely the id after them was. */
static void note_prompt(struct step *step, const struct step_item *it)
{
    struct engine_request *r = it->seq->request;
    const struct sample_result *results = &step->results[it->result_first];
    for (uint32_t i = it->out_first; i < it->rows - it->samples && it->position + i + 1 < r->prompt_count; i++)
        reveal_score(&r->reveal, it->position + i + 1, &results[i - it->out_first]);
}

/* What is kept of the rows' state: all known ids, and the drafts that were right.  The rest was never covered, and its room is given back. */
static int keep_rows(struct engine *e, struct seq *s, const struct step_item *it, uint32_t kept, struct err *err)
{
    int rc = kv_commit(e->kv, s->kv, s->tokens + it->position, kept, err);
    if (rc == 0 && kept < it->rows)
        rc = kv_rewind(e->kv, s->kv, kv_seq_covered(s->kv), err);
    return rc;
}

/* How much of the prompt is read; read again after a pre-emption, it stays what it was. */
static void note_progress(struct seq *s)
{
    struct engine_request *r = s->request;
    uint32_t covered = kv_seq_covered(s->kv), read = covered < r->prompt_count ? covered : r->prompt_count;
    if (s->choice == 0 && read > atomic_load_explicit(&r->progress, memory_order_relaxed))
        atomic_store(&r->progress, read);
}

static void resolve_generated(struct engine *e, struct seq *s, const struct step_item *it, const struct sample_result *results)
{
    struct round_end end;
    struct err err;
    round_open(&end);
    err_none(&err);
    if (it->samples)
        walk_round(e, s, it, results, &end);
    if (it->samples && s->constraint && !end.over)
        assert_forced(e, s, &end);
    if (keep_rows(e, s, it, it->rows - it->round.count + end.retained, &err)) {
        seq_fail(e, s, &err);
        return;
    }
    note_progress(s);
    if (kv_seq_covered(s->kv) + 1 >= s->request->prompt_count)
        sched_queue_followers(e, s->request);
    if (end.over)
        seq_finish(e, s, end.finish, end.stop, end.finish == ENGINE_ERROR ? &end.err : NULL);
    else if (it->samples) {
        s->state = SEQ_DECODE;
        propose_observe(s);
    }
}

static void resolve_item(struct engine *e, struct step *step, const struct step_item *it)
{
    struct seq *s = it->seq;
    struct err err;
    bool cancelled = s->request->cancel_seen;
    if (s->state >= SEQ_DONE) /* it ended while this row ran ahead of the choice that ended it */
        return;
    err_none(&err);
    s->in_flight -= it->rows;
    s->samples -= it->samples;
    s->forwards += s->generated > 0;
    if (s->generated && s->request->propose)
        propose_earn(e, s, step);
    if (s->request->reveal.logprobs && s->choice == 0)
        note_prompt(step, it);
    if (!cancelled && !s->request->scoring)
        resolve_generated(e, s, it, step->results + it->sample_first);
    else if (keep_rows(e, s, it, it->rows - it->round.count, &err)) /* an open round is rolled back */
        seq_fail(e, s, &err);
    else if (!cancelled && s->request->reveal.pool)
        resolve_pool(e, step, it);
    else if (!cancelled)
        resolve_score(e, step, it);
    else
        seq_finish(e, s, ENGINE_CANCELLED, -1, NULL);
}

/* The step's references to its requests, taken when it was planned, go last: an item may end a request that a later one names. */
void resolve_step(struct engine *e, struct step *step)
{
    for (uint32_t i = 0; i < step->item_count; i++)
        resolve_item(e, step, &step->items[i]);
    for (uint32_t i = 0; i < step->item_count; i++)
        request_unuse(step->items[i].seq->request);
}

void resolve_failed(struct engine *e, struct step *step, const struct err *err)
{
    for (uint32_t i = 0; i < step->item_count; i++) {
        struct seq *s = step->items[i].seq;
        if (s->state < SEQ_DONE)
            seq_fail(e, s, err);
    }
    for (uint32_t i = 0; i < step->item_count; i++)
        request_unuse(step->items[i].seq->request);
}
