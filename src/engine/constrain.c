/* engine/constrain.c - what may come next (grammar/constraint.h) inside the loop.
 *
 * Every sampled row of a constrained sequence has a mask; the rows of a round assume drafts, so the constraint is led over them and
 * back.  While exactly one id can be chosen it is asserted: emitted without a row of its own being sampled.
 *
 * Invariant: between steps the constraint has taken exactly the tokens emitted. */
#include "base/mem.h"
#include "engine/engine_int.h"

#include <math.h>
#include <stdlib.h>

int constrain_open(struct seq *s, struct err *err)
{
    struct engine_request *r = s->request;
    uint32_t vocab = r->engine->vocab, words = constraint_words(vocab);
    int rc = 0;
    if (!r->constraint.open && r->allowed_count == 0)
        return 0;
    rc = r->constraint.open ? r->constraint.open(r->constraint.ctx, vocab, &s->constraint, err)
                            : constraint_allow_open(r->allowed_ids, r->allowed_count, vocab, &s->constraint, err);
    if (rc)
        return rc;
    s->masks = mem_try_array((size_t)(PROPOSE_DEPTH_MAX + 1) * words, sizeof *s->masks);
    return s->masks ? 0 : err_nomem(err, "masks", (size_t)(PROPOSE_DEPTH_MAX + 1) * words * sizeof *s->masks);
}

void constrain_close(struct seq *s)
{
    constraint_free(s->constraint);
    mem_free(s->masks);
    s->constraint = NULL;
    s->masks = NULL;
}

static bool is_end(const struct engine_request *r, uint32_t id)
{
    for (uint32_t i = 0; i < r->end_count; i++)
        if (r->end_ids[i] == id)
            return true;
    return false;
}

uint32_t constrain_drafts(const struct seq *s, const uint32_t *ids, uint32_t count)
{
    struct constraint *c = s->constraint;
    uint32_t n = 0;
    if (!c)
        return count;
    while (n < count && !is_end(s->request, ids[n]) && !c->ops->complete(c) && c->ops->advance(c, ids[n]))
        n++;
    c->ops->rewind(c, n);
    return n;
}

void constrain_rows(const struct seq *s, const struct step_item *it, struct sample_row *rows)
{
    struct constraint *c = s->constraint;
    uint32_t words = constraint_words(s->request->engine->vocab), taken = 0;
    if (!c)
        return;
    for (uint32_t i = 0; i < it->samples; i++) {
        uint32_t *mask = s->masks + (size_t)i * words;
        c->ops->mask(c, mask);
        rows[i].mask = mask;
        if (i < it->round.count)
            taken += c->ops->advance(c, it->round.ids[i]);
    }
    c->ops->rewind(c, taken);
}

/* The draw could give nothing else: not when the id is banned or biased away, and not when its log-probability is wanted (a row says it). */
int64_t constrain_forced(const struct seq *s)
{
    const struct engine_request *r = s->request;
    if (!s->constraint || r->logprobs)
        return -1;
    s->constraint->ops->mask(s->constraint, s->masks);
    int64_t only = constraint_only(s->masks, r->engine->vocab);
    if (only < 0 || (s->generated < s->sampler.min_tokens && is_end(r, (uint32_t)only)))
        return -1;
    for (uint32_t i = 0; i < r->sampling.bias_count; i++)
        if (r->biases[i].id == only && !isfinite(r->biases[i].bias))
            return -1;
    return only;
}
