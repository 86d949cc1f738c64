/* engine/batch.c - run: the rows planned become spans of one forward, enqueued.
 *
 * Invariants: 1. Everything a step names (ids, sample rows, results, logits) lives in the step or its sequences until its event.
 *             2. No memory is asked for here once the engine is open; raw logits and hidden rows get theirs when the first score, or pool, is
 *                admitted. */
#include "base/mem.h"
#include "engine/engine_int.h"

int batch_open(struct engine *e, struct err *err)
{
    uint32_t rows = e->cfg.rows_max;
    for (uint32_t i = 0; i < e->step_slots; i++) {
        struct step *s = &e->steps[i];
        s->items = mem_try_zero(rows, sizeof *s->items);
        s->spans = mem_try_zero(rows, sizeof *s->spans);
        s->rows = mem_try_zero(rows, sizeof *s->rows);
        s->results = mem_try_zero(rows, sizeof *s->results);
        s->patches = mem_try_array((size_t)rows * PROPOSE_DEPTH_MAX, sizeof *s->patches);
        if (!s->items || !s->spans || !s->rows || !s->results || !s->patches)
            return err_nomem(err, "step", rows * sizeof *s->results);
    }
    return 0;
}

int batch_want_logits(struct engine *e, struct err *err)
{
    for (uint32_t i = 0; i < e->step_slots; i++) {
        struct step *s = &e->steps[i];
        if (!s->logits && !(s->logits = mem_try_array(STEP_LOGIT_ROWS, e->vocab * sizeof(float))))
            return err_nomem(err, "raw logits", STEP_LOGIT_ROWS * e->vocab * sizeof(float));
    }
    return 0;
}

int batch_want_hidden(struct engine *e, struct err *err)
{
    size_t row = model_info(e->model)->hidden * sizeof(float);
    for (uint32_t i = 0; i < e->step_slots; i++) {
        struct step *s = &e->steps[i];
        if (!s->hidden && !(s->hidden = mem_try_array(e->cfg.rows_max, row)))
            return err_nomem(err, "hidden rows", e->cfg.rows_max * row);
    }
    return 0;
}

void batch_close(struct engine *e)
{
    for (uint32_t i = 0; i < STEPS_MAX; i++) {
        mem_free(e->steps[i].items);
        mem_free(e->steps[i].spans);
        mem_free(e->steps[i].rows);
        mem_free(e->steps[i].results);
        mem_free(e->steps[i].patches);
        mem_free(e->steps[i].logits);
        mem_free(e->steps[i].hidden);
    }
}

/* Generating: the row after the token at `position`, drafts before it assumed. */
static void sample_row(struct sample_row *row, const struct seq *s, uint32_t position)
{
    const struct engine_request *r = s->request;
    const struct sampler *sampler = &s->sampler;
    uint32_t assumed = position + 1 - s->count;
    bool early = s->generated + assumed < sampler->min_tokens;
    *row = (struct sample_row){.params = &sampler->params, .index = position + 1, .seen = sampler->seen, .seen_count = sampler->seen_count,
                               .banned = early ? r->end_ids : NULL, .banned_count = early ? r->end_count : 0,
                               .want_logprob = r->logprobs, .score_id = -1, .top = r->top};
}

/* The counts this row sees differ from the sequence's by the drafts before it: those of the row before and one more. */
static void patch_row(struct step *step, struct sample_row *row, const struct seq *s, uint32_t position)
{
    struct sample_seen *to = step->patches + step->patch_count;
    uint32_t n = row[-1].patch_count;
    if (n)
        memcpy(to, row[-1].patch, n * sizeof *to);
    row->patch_count = sampler_patch(&s->sampler, to, n, s->tokens, position, s->request->prompt_count);
    row->patch = row->patch_count ? to : NULL;
    step->patch_count += row->patch_count;
}

/* Scoring: row i says how likely token i + 1 was. */
static void score_row(struct sample_row *row, const struct seq *s, uint32_t position, uint32_t top)
{
    *row = (struct sample_row){.index = position + 1, .top = top,
                               .score_id = position + 1 < s->count ? (int64_t)s->tokens[position + 1] : -1};
}

/* What is asked of a row that goes through the head. */
static void fill_row(struct step *step, struct sample_row *to, const struct step_item *it, uint32_t row)
{
    const struct seq *s = it->seq;
    const struct engine_request *r = s->request;
    uint32_t position = it->position + row, first = it->rows - it->samples;
    if (row >= first) {
        sample_row(to, s, position);
        if (row > first)
            patch_row(step, to, s, position);
    } else if (r->scoring && !r->reveal.pool)
        score_row(to, s, position, r->score.top);
    else if (!r->reveal.pool && position + 1 < r->prompt_count)
        score_row(to, s, position, r->reveal.top);
    else
        *to = (struct sample_row){.index = position + 1, .score_id = -1};
}

static void add_span(struct engine *e, struct step *step, uint32_t i)
{
    struct step_item *it = &step->items[i];
    struct seq *s = it->seq;
    struct span *span = &step->spans[i];
    *span = (struct span){.seq = s->kv, .position = it->position, .row_count = it->rows, .ids = s->tokens + it->position,
                          .out_first = it->out_first, .sample = step->rows + step->out_count, .slot = it->slot};
    it->result_first = step->out_count;
    for (uint32_t row = it->out_first; row < it->rows; row++)
        fill_row(step, &step->rows[step->out_count++], it, row);
    it->sample_first = step->out_count - it->samples;
    if (it->samples) {
        constrain_rows(s, it, step->rows + it->sample_first);
        s->flying = &step->results[it->sample_first];
    }
    if (it->logits) {
        span->logits = step->logits + (size_t)step->logit_row * e->vocab;
        step->logit_row += it->rows;
    }
    if (s->request->reveal.pool) {
        span->hidden = step->hidden + (size_t)step->hidden_row * s->request->reveal.hidden;
        step->hidden_row += it->rows - it->out_first;
    }
}

int batch_run(struct engine *e, struct step *step, struct err *err)
{
    step->logit_row = step->hidden_row = 0;
    step->patch_count = 0;
    step->started_ns = thread_now_ns();
    for (uint32_t i = 0; i < step->item_count; i++)
        add_span(e, step, i);
    return model_forward(e->model, e->kv, step->spans, step->item_count, step->results, &step->event, err);
}
