/* engine/propose.c - which proposal a sequence takes for a round, and how deep: by what it costs and how often it was right.
 *
 * Expected tokens of j drafts that are each right with chance p: p + p^2 + .. + p^j.  A step of R rows that yields E tokens takes them when
 * (E + gain) / time(R + j) is above E / time(R); time by rows is measured (costs_learn), here read between what was measured.  A proposer
 * that does not pay is asked again after `patience` chances, longer each time it was wrong.  A draft model costs forwards of its own: each
 * guess, and what its state lacks of the text before it can begin.  It is asked when what is left of the answer gains twice what beginning
 * costs; else for at most a hundredth of the time.
 *
 * What guessing can lose is bounded whatever is expected of it: a sequence has a credit in steps, a part of one to begin with and CREDIT_EARNED
 * of each step it decodes in; a round is taken up to that depth whose cost the credit covers, pays it, and earns what its right drafts saved.  So
 * a text without repetition loses no more than that share, and one that repeats itself soon guesses as deep as it likes.
 *
 * Invariant: nothing chosen here changes a token: only which rows share a step. */
#include "engine/engine_int.h"

enum { PROBE_DEPTH = 3 };
static const double DRAFT_ROW_GUESS = 0.3; /* of a guess, for a row among many */
static const double DRAFT_LOOK_SHARE = 0.01; /* of the time, for a draft that does not seem to pay */
static const float CREDIT_FIRST = 0.5f, CREDIT_EARNED = 0.005f, CREDIT_MOST = 16; /* steps */

/* The order in which they are asked: the first whose proposal pays serves the round. */
static const enum proposer_kind order[] = {PROPOSER_ECHO, PROPOSER_DRAFT, PROPOSER_LOOKUP};

int propose_open(struct seq *s, uint32_t positions, struct err *err)
{
    struct engine_request *r = s->request;
    int rc = 0;
    if (r->propose & ENGINE_PROPOSE_ECHO)
        rc = echo_open(positions, r->end_ids, r->end_count, &s->proposers[PROPOSER_ECHO], err);
    if (rc == 0 && r->propose & ENGINE_PROPOSE_LOOKUP)
        rc = lookup_open(positions, &s->proposers[PROPOSER_LOOKUP], err);
    if (rc == 0 && r->propose & ENGINE_PROPOSE_DRAFT)
        rc = draft_open(s, &s->proposers[PROPOSER_DRAFT], err);
    s->credit = CREDIT_FIRST;
    return rc;
}

void propose_close(struct seq *s)
{
    for (uint32_t i = 0; i < PROPOSER_KINDS; i++) {
        proposer_free(s->proposers[i]);
        s->proposers[i] = NULL;
    }
}

void propose_observe(struct seq *s)
{
    uint32_t ids[PROPOSE_DEPTH_MAX], class;
    s->guessing = false;
    for (uint32_t i = 0; i < PROPOSER_KINDS; i++) {
        struct proposer *p = s->proposers[i];
        if (!p)
            continue;
        p->ops->observe(p, s->tokens, s->count);
        if (s->request->engine->cfg.steps_in_flight < 2 || p->ops->kind == PROPOSER_DRAFT)
            s->guessing = true; /* with one step in flight nobody asks; a draft always has a guess */
        else
            s->guessing |= p->ops->propose(p, s->tokens, s->count, 1, ids, &class) > 0;
    }
}

/* ---- cost ---- */

/* The best number of drafts, at most `most`, beside the rows the step has and the sequence's own; each costs each_ns to make.  *faster:
 * tokens a ns then, over those without. */
static uint32_t depth_of(const struct row_costs *c, uint32_t rows, double expected, double rate, uint32_t most, double each_ns, double *faster)
{
    double plain = expected / costs_of(c, rows), best = plain, gain = 0, chance = 1;
    uint32_t depth = 0;
    for (uint32_t j = 1; j <= most; j++) {
        chance *= rate;
        gain += chance;
        double speed = (expected + gain) / (costs_of(c, rows + j) + j * each_ns);
        if (speed > best)
            best = speed, depth = j;
    }
    *faster = best / plain;
    return depth;
}

/* ---- a round ---- */

/* what a step is without the round that is thought of */
struct beside {
    const struct row_costs *costs;
    uint32_t rows, sequences;
};

/* In steps: what so many drafts take, each_ns a piece to make. */
static float cost_of(const struct beside *b, uint32_t drafts, double each_ns)
{
    double plain = costs_of(b->costs, b->rows), more = costs_of(b->costs, b->rows + drafts) - plain + drafts * each_ns;
    return more > 0 ? (float)(more / plain) : 0;
}

/* As many as the credit covers. */
static uint32_t afford(const struct seq *s, const struct beside *b, uint32_t drafts, double each_ns)
{
    while (drafts && cost_of(b, drafts, each_ns) > s->credit)
        drafts--;
    return drafts;
}

static uint32_t worth(const struct beside *b, const struct seq *s, struct proposer *p, uint32_t class, uint32_t count)
{
    struct proposer_worth *w = &p->worth[class];
    if (s->request->propose_depth)
        return count;
    double faster;
    uint32_t depth = depth_of(b->costs, b->rows, b->sequences, proposer_rate(p, class), count, 0, &faster);
    if (depth)
        return afford(s, b, depth, 0);
    if (++w->skipped < w->patience)
        return 0;
    uint32_t probe = afford(s, b, count < PROBE_DEPTH ? count : PROBE_DEPTH, 0);
    w->skipped = probe ? 0 : w->skipped;
    return probe;
}

/* What a guess takes: measured, or as much of a step as the draft reads of what the model reads. */
static double guess_ns(const struct engine *e, const struct beside *b)
{
    const struct model_info *draft = model_info(e->cfg.draft), *model = model_info(e->model);
    double part = (double)draft->read_bytes_per_token / (double)(model->read_bytes_per_token ? model->read_bytes_per_token : 1);
    bool seen = false;
    for (uint32_t i = 1; i <= COST_ROWS_MAX && !seen; i++)
        seen = e->clock.draft.ns[i] > 0;
    return (seen ? costs_of(&e->clock.draft, b->sequences) : part * costs_of(b->costs, b->sequences)) / b->sequences;
}

/* A draft model works for each guess, so how many is settled before it begins. */
static uint32_t draft_depth(struct engine *e, const struct beside *b, const struct seq *s, struct proposer *p, uint32_t room, double each)
{
    struct sched_clock *c = &e->clock;
    double begin = draft_missing(s) * (c->draft_row_ns > 0 ? c->draft_row_ns : DRAFT_ROW_GUESS * each), faster;
    uint32_t depth = depth_of(b->costs, b->rows, b->sequences, proposer_rate(p, 0), room, each, &faster);
    double left = (double)(s->request->limit - s->generated) * costs_of(b->costs, b->rows) / b->sequences;
    if (c->decode.ns[1] <= 0 && b->sequences == 1)
        return 0; /* what a plain step takes is not known yet */
    if (depth && left * (1 - 1 / faster) > 2 * begin)
        return depth;
    int64_t now = thread_now_ns();
    if (c->draft_looked_ns == 0)
        c->draft_looked_ns = now;
    if ((double)(now - c->draft_looked_ns) * DRAFT_LOOK_SHARE < begin + PROBE_DEPTH * each)
        return 0;
    c->draft_looked_ns = now;
    return room < PROBE_DEPTH ? room : PROBE_DEPTH;
}

void propose_round(struct engine *e, struct seq *s, uint32_t rows, uint32_t sequences, uint32_t room)
{
    struct proposal *out = &s->round;
    const struct beside b = {&e->clock.decode, rows, sequences};
    uint32_t fixed = s->request->propose_depth;
    room = room < PROPOSE_DEPTH_MAX ? room : PROPOSE_DEPTH_MAX;
    room = fixed && fixed < room ? fixed : room;
    out->count = 0;
    for (uint32_t i = 0; room && out->count == 0 && i < sizeof order / sizeof *order; i++) {
        struct proposer *p = s->proposers[order[i]];
        bool draft = order[i] == PROPOSER_DRAFT;
        double each = p && draft ? guess_ns(e, &b) : 0;
        out->proposer = p;
        out->class = 0;
        if (p && draft)
            out->count = fixed ? room : draft_depth(e, &b, s, p, room, each);
        else if (p && (out->count = p->ops->propose(p, s->tokens, s->count, room, out->ids, &out->class)) > 0)
            out->count = worth(&b, s, p, out->class, out->count);
        out->each = 1 / (float)sequences;
        out->cost = out->count ? cost_of(&b, out->count, each) : 0;
    }
}

void propose_earn(struct seq *s, uint32_t sequences)
{
    float more = s->credit + CREDIT_EARNED / (float)(sequences ? sequences : 1);
    s->credit = more < CREDIT_MOST ? more : CREDIT_MOST;
}

static void count_draft(struct engine_speculation *c, uint32_t drafts, uint32_t accepted)
{
    c->rounds++;
    c->drafted += drafts;
    c->accepted += accepted;
    c->rejected += drafts - accepted;
    c->lengths[accepted]++;
    for (uint32_t i = 0; i < drafts; i++) {
        c->drafted_at[i]++;
        c->accepted_at[i] += i < accepted;
    }
}

static void count_fill(struct engine_fill *f, uint32_t drafts, uint32_t accepted)
{
    f->events++;
    f->echo += accepted;
    f->injected += accepted;
    f->lengths[drafts]++;
    f->accepted += accepted;
    f->rejected += drafts - accepted;
}

/* A round of `drafts` was resolved: `accepted` of them emitted, `looked` samples used of drafts + 1. */
void propose_settle(struct seq *s, const struct proposal *p, uint32_t accepted, uint32_t looked)
{
    struct engine_speculation *c = &s->request->outcomes[s->choice].speculation;
    bool cut = accepted < p->count && looked <= accepted; /* ended before a draft was refused: nothing is known of the rest */
    proposer_settle(p->proposer, p->class, cut ? accepted : p->count, accepted);
    s->credit += (float)accepted * p->each - p->cost;
    s->credit = s->credit < CREDIT_MOST ? s->credit : CREDIT_MOST;
    c->fill.wasted += p->count + 1 - looked;
    if (p->proposer->ops->counts_as_draft)
        count_draft(c, p->count, accepted);
    else
        count_fill(&c->fill, p->count, accepted);
}
