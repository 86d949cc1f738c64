/* engine/propose.c - which proposal a sequence takes for a round, and how deep: by what it costs and how often it was right.
 *
 * Expected tokens of j drafts that are each right with chance p: p + p^2 + .. + p^j.  A step of R rows that yields E tokens takes them when
 * (E + gain) / time(R + j) is above E / time(R); time by rows is measured (costs_learn), here read between what was measured.  A proposer
 * that does not pay is asked again after `patience` chances, longer each time it was wrong.  A draft model costs forwards of its own: each
 * guess, and what its state lacks of the text before it can begin.
 *
 * What guessing can lose is bounded whatever is expected of it, so that no text is more than two hundredths slower than plainly, after any
 * number of its tokens.  A sequence has a credit in steps: CREDIT_SOON of each step it decodes in to begin with, later CREDIT_EARNED.  A round is
 * taken up to that depth whose cost the credit covers; it pays what its rows turned out to take and earns what its right drafts saved.  So a
 * text that repeats itself soon guesses as deep as it likes.  How many rows are tried at once at most doubles what was measured, so one surprise
 * is small.
 * A draft's credit is the engine's, in time: what its state costs to begin with is lost or won over many answers.  It has DRAFT_STEPS given once,
 * and the first rows it catches up with.  A sequence begins with what the last one learnt of the draft.
 *
 * Invariant: nothing chosen here changes a token: only which rows share a step. */
#include "engine/engine_int.h"

enum { PROBE_DEPTH = 3, DRAFT_STEPS = 8 };
static const double DRAFT_ROW_GUESS = 0.3; /* of a guess, for a row among many */
static const double DRAFT_EARNED = 0.012;  /* of the time of steps */
static const double CREDIT_SOON = 0.018, CREDIT_BASE = 0.5, CREDIT_EARNED = 0.005, CREDIT_MOST = 16; /* steps */

/* The order in which they are asked: the first whose proposal pays serves the round. */
static const enum proposer_kind order[] = {PROPOSER_ECHO, PROPOSER_DRAFT, PROPOSER_LOOKUP};

int propose_open(struct seq *s, uint32_t positions, struct err *err)
{
    struct engine_request *r = s->request;
    int rc = 0;
    if (r->propose & ENGINE_PROPOSE_ECHO)
        rc = echo_open(positions, r->cut_ids, r->cut_count, &s->proposers[PROPOSER_ECHO], err);
    if (rc == 0 && r->propose & ENGINE_PROPOSE_LOOKUP)
        rc = lookup_open(positions, &s->proposers[PROPOSER_LOOKUP], err);
    if (rc == 0 && r->propose & ENGINE_PROPOSE_DRAFT)
        rc = draft_open(s, &s->proposers[PROPOSER_DRAFT], err);
    s->credit = s->decoded = 0;
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
    if (!s->request->propose)
        return;
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

/* What so many drafts take, each_ns a piece to make. */
static double cost_of(const struct beside *b, uint32_t drafts, double each_ns)
{
    double more = costs_of(b->costs, b->rows + drafts) - costs_of(b->costs, b->rows) + drafts * each_ns;
    return more > 0 ? more : 0;
}

/* As many as a credit covers, and no more rows at once than twice what was seen. */
static uint32_t afford(const struct beside *b, uint32_t drafts, double each_ns, double credit_ns)
{
    uint32_t widest = costs_widest(b->costs), most = 2 * widest > b->rows + 1 ? 2 * widest - b->rows : 1;
    drafts = drafts < most ? drafts : most;
    while (drafts && cost_of(b, drafts, each_ns) > credit_ns)
        drafts--;
    return drafts;
}

static uint32_t worth(const struct beside *b, const struct seq *s, struct proposer *p, uint32_t class, uint32_t count)
{
    struct proposer_worth *w = &p->worth[class];
    double faster, credit_ns = s->credit * costs_of(b->costs, b->rows);
    if (s->request->propose_depth)
        return count;
    uint32_t depth = depth_of(b->costs, b->rows, b->sequences, proposer_rate(p, class), count, 0, &faster);
    if (depth)
        return afford(b, depth, 0, credit_ns);
    if (++w->skipped < w->patience)
        return 0;
    uint32_t probe = afford(b, count < PROBE_DEPTH ? count : PROBE_DEPTH, 0, credit_ns);
    w->skipped = probe ? 0 : w->skipped;
    return probe;
}

/* What a guess takes: measured, or as much of a step as the draft reads of what the model reads. */
static double guess_ns(const struct sched_clock *c, const struct beside *b)
{
    bool seen = costs_widest(&c->draft) != 0;
    return (seen ? costs_of(&c->draft, b->sequences) : c->draft_part * costs_of(b->costs, b->sequences)) / b->sequences;
}

/* A draft model works for each guess, so how many is settled before it begins. */
static uint32_t draft_depth(struct sched_clock *c, const struct beside *b, const struct seq *s, struct proposer *p, uint32_t room, double each)
{
    uint32_t missing = p->ops->missing ? p->ops->missing(p, s->count) : 0;
    double begin = missing * (c->draft_row_ns > 0 ? c->draft_row_ns : DRAFT_ROW_GUESS * each), plain = costs_of(b->costs, b->rows), faster;
    if (c->decode.ns[1] <= 0 && b->sequences == 1)
        return 0; /* what a plain step takes is not known yet */
    if (!c->draft_begun)
        c->draft_credit_ns += begin + DRAFT_STEPS * plain;
    c->draft_begun = true;
    uint32_t depth = depth_of(b->costs, b->rows, b->sequences, proposer_rate(p, 0), room, each, &faster);
    double left = (double)(s->request->limit - s->generated) * plain / b->sequences;
    bool pays = depth && left * (1 - 1 / faster) > 2 * begin;
    struct proposer_worth *w = &p->worth[0];
    if (!pays && ++w->skipped < w->patience)
        return 0;
    depth = pays ? depth : room < PROBE_DEPTH ? room : PROBE_DEPTH;
    depth = afford(b, depth, each, c->draft_credit_ns - c->draft_held_ns - begin);
    if (depth)
        c->draft_held_ns += begin + cost_of(b, depth, each), w->skipped = 0;
    return depth;
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
        double each = p && draft ? guess_ns(&e->clock, &b) : 0;
        out->proposer = p;
        out->class = 0;
        if (p && draft)
            out->count = fixed ? room : draft_depth(&e->clock, &b, s, p, room, each);
        else if (p && (out->count = p->ops->propose(p, s->tokens, s->count, room, out->ids, &out->class)) > 0)
            out->count = worth(&b, s, p, out->class, out->count);
    }
    out->beside_rows = rows;
    out->sequences = sequences;
}

void propose_earn(struct engine *e, struct seq *s, const struct step *step)
{
    double part = 1.0 / (step->decode_count ? step->decode_count : 1), n = s->decoded + part;
    double before = CREDIT_SOON * s->decoded, after = CREDIT_SOON * n, more = CREDIT_BASE + CREDIT_EARNED * n;
    if (s->proposers[PROPOSER_DRAFT]) { /* it has most of what may be lost */
        before = CREDIT_EARNED * s->decoded;
        after = CREDIT_EARNED * n;
        e->clock.draft_credit_ns += DRAFT_EARNED * part * costs_of(&e->clock.decode, step->decode_count);
    } else if (after > more) {
        double least = CREDIT_BASE + CREDIT_EARNED * s->decoded;
        before = before < least ? before : least;
        after = more;
    }
    s->decoded = n;
    s->credit += after - before;
    s->credit = s->credit < CREDIT_MOST ? s->credit : CREDIT_MOST;
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

/* The round's rows are paid for as they are known to cost by now, its right drafts are what others need a step for. */
static void pay(struct engine *e, struct seq *s, const struct proposal *p, uint32_t accepted)
{
    const struct beside b = {&e->clock.decode, p->beside_rows, p->sequences};
    double plain = costs_of(b.costs, b.rows), saved = (double)accepted * plain / b.sequences - cost_of(&b, p->count, 0);
    if (p->proposer->ops->kind == PROPOSER_DRAFT) { /* the guesses were paid when they were made */
        e->clock.draft_credit_ns += s->request->propose_depth ? 0 : saved;
        return;
    }
    s->credit += saved / plain;
    s->credit = s->credit < CREDIT_MOST ? s->credit : CREDIT_MOST;
}

/* A round was resolved: `accepted` of its drafts emitted, `looked` samples used of drafts + 1. */
void propose_settle(struct engine *e, struct seq *s, const struct proposal *p, uint32_t accepted, uint32_t looked)
{
    struct engine_speculation *c = &s->request->outcomes[s->choice].speculation;
    bool cut = accepted < p->count && looked <= accepted; /* ended before a draft was refused: nothing is known of the rest */
    proposer_settle(p->proposer, p->class, cut ? accepted : p->count, accepted);
    pay(e, s, p, accepted);
    c->fill.wasted += p->count + 1 - looked;
    if (p->proposer->ops->counts_as_draft)
        count_draft(c, p->count, accepted);
    else
        count_fill(&c->fill, p->count, accepted);
}
