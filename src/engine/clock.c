/* engine/clock.c - how long steps take, and how many prompt rows the next one may therefore have.
 *
 * A step is taken to cost what its decoding sequences cost and so much a prompt row.  Both follow what steps took: depth, load and the
 * width of chunks change them, and a chunk stays near the width it was measured at.  Steps of one width cannot tell the two apart, so every
 * sixteenth has no prompt rows (fewer when steps may be long).
 *
 * What counts for who waits is the longest gap, not the usual one, so it is also learnt how far steps lie above what is expected of them: a
 * step of both kinds is made shorter by as much as it spreads more than steps of decoding alone do.
 *
 * Invariant: nothing chosen here changes a result: rows may be cut anywhere. */
#include "engine/clock.h"

enum { ROWS_FIRST = 16, DECODE_EVERY = 16 };
static const double STEP_NS_MOST = 240e6;   /* while somebody else waits for the next step: a little less than 250 ms, spread apart */
static const double BOTH_SHARE = 0.985;     /* of twice the time decoding takes */
static const double SPREAD_ABOVE = 0.03, SPREAD_LEARN = 0.05, SPREAD_MOST = 1.5; /* so many steps lie above it */
static const double FIXED_SHARE_MOST = 0.1; /* of a step's time, when steps are cut short with nobody there */
static const double LEARN = 0.25, ODD = 0.25; /* of what was not expected; what is off by more of what was, counts as so much */
static const double ROW_GUESS = 0.05;        /* of a step's time, for widths never run */
static const double PART_LEAST = 0.02;      /* of a step's time, for either part */

static uint32_t rows_in(double ns, double row_ns, uint32_t room)
{
    double rows = ns / row_ns + 0.5;
    return room == 0 ? 0 : rows < 1 ? 1 : rows > room ? room : (uint32_t)rows;
}

static double spread_of(double known)
{
    return known > 1 ? known : 1;
}

static void learn_spread(double *spread, double took, double expected)
{
    double s = spread_of(*spread);
    s += took > s * expected ? SPREAD_LEARN * (1 - SPREAD_ABOVE) : -SPREAD_LEARN * SPREAD_ABOVE;
    *spread = s < 1 ? 1 : s < SPREAD_MOST ? s : SPREAD_MOST;
}

uint32_t clock_rows(struct sched_clock *c, uint32_t room, bool decoding, bool others, uint32_t step_ms)
{
    double decode_ns = decoding ? c->decode_ns : 0, budget_ns = STEP_NS_MOST / spread_of(c->both_spread) - decode_ns;
    if (!others) {
        /* The whole step; or no longer than with others, when shorter steps read a prompt as fast: who comes next waits less.  What a
         * step takes whatever its rows counts against that: 8 billion weights are read in 0.1 s. */
        bool quick = c->row_ns > 0 && c->decode_ns > 0 && c->decode_ns < STEP_NS_MOST * FIXED_SHARE_MOST;
        return quick ? rows_in(STEP_NS_MOST, c->row_ns, room) : room;
    }
    if (c->row_ns <= 0 || (decoding && decode_ns <= 0)) /* not measured yet: a small one, to learn */
        return room < ROWS_FIRST ? room : ROWS_FIRST;
    if (decoding) {
        double wider = spread_of(c->both_spread) / spread_of(c->decode_spread);
        double wanted = (step_ms ? step_ms * 1e6 : 2 * BOTH_SHARE * decode_ns / (wider > 1 ? wider : 1)) - decode_ns;
        budget_ns = wanted < budget_ns ? wanted : budget_ns;
    }
    uint32_t rows = rows_in(budget_ns, c->row_ns, room);
    if (!decoding)
        return rows;
    c->turn++;
    double every = DECODE_EVERY * (budget_ns > decode_ns ? budget_ns / decode_ns : 1);
    if (c->turn < every)
        return rows;
    c->turn = 0;
    return 0;
}

static double within(double v, double most)
{
    return v < -most ? -most : v > most ? most : v;
}

/* A step of both kinds: what was not expected is laid to both in proportion to the squares of their parts, so one row beside a decode that
 * was slow does not look dear. */
static void learn_both(struct sched_clock *c, double rows, double took)
{
    double expected = c->decode_ns + rows * c->row_ns, off = LEARN * within(took - expected, expected * ODD);
    learn_spread(&c->both_spread, took, expected);
    double a = c->decode_ns * c->decode_ns, b = rows * c->row_ns * rows * c->row_ns;
    c->decode_ns += off * a / (a + b);
    c->row_ns += off * b / (a + b) / rows;
    c->usual_rows = rows;
}

/* A step without prompt rows says how the time of the others is made up: what it moves the one part by, the other gives way. */
static void learn_decode(struct sched_clock *c, double took)
{
    double off = LEARN * within(took - c->decode_ns, c->decode_ns * ODD);
    if (c->decode_ns > 0)
        learn_spread(&c->decode_spread, took, c->decode_ns);
    c->decode_ns = c->decode_ns > 0 ? c->decode_ns + off : took;
    if (c->usual_rows > 0)
        c->row_ns -= off / c->usual_rows;
    c->usual_rows = 0; /* two in a row: nobody reads a prompt */
}

static void keep_parts(struct sched_clock *c, double rows, double took)
{
    c->decode_ns = c->decode_ns > PART_LEAST * took ? c->decode_ns : PART_LEAST * took;
    c->row_ns = c->row_ns > PART_LEAST * took / rows ? c->row_ns : PART_LEAST * took / rows;
}

void clock_learn(struct sched_clock *c, uint32_t prefill_rows, bool decoding, double took)
{
    if (prefill_rows == 0) {
        learn_decode(c, took);
    } else if (!decoding) {
        double row = took / prefill_rows;
        if (prefill_rows >= 8 || c->row_ns <= 0)
            c->row_ns = c->row_ns > 0 ? c->row_ns + LEARN * (row - c->row_ns) : row;
    } else if (c->decode_ns <= 0) {
        double rest = took - prefill_rows * c->row_ns;
        c->decode_ns = rest > took / 2 ? rest : took / 2;
    } else if (c->row_ns <= 0) {
        c->row_ns = (took > 1.1 * c->decode_ns ? took - c->decode_ns : 0.1 * took) / prefill_rows;
    } else {
        learn_both(c, prefill_rows, took);
    }
    if (prefill_rows && decoding)
        keep_parts(c, prefill_rows, took);
}

/* ---- by the number of rows ---- */

double costs_of(const struct row_costs *c, uint32_t rows)
{
    uint32_t low = rows < COST_ROWS_MAX ? rows : COST_ROWS_MAX, high = low, least = 1;
    while (low > 0 && c->ns[low] <= 0)
        low--;
    while (high <= COST_ROWS_MAX && c->ns[high] <= 0)
        high++;
    if (low == 0)
        return high <= COST_ROWS_MAX ? c->ns[high] : 1 + ROW_GUESS * rows;
    if (high == low)
        return c->ns[low];
    if (high <= COST_ROWS_MAX)
        return c->ns[low] + (c->ns[high] - c->ns[low]) * (rows - low) / (high - low);
    while (c->ns[least] <= 0) /* past what was measured: as it rose so far */
        least++;
    double rise = low > least ? (c->ns[low] - c->ns[least]) / (low - least) : 0, guess = ROW_GUESS * c->ns[low];
    return c->ns[low] + (rise > guess ? rise : guess) * (rows - low);
}

void costs_learn(struct row_costs *c, uint32_t rows, double took_ns)
{
    if (rows == 0 || rows > COST_ROWS_MAX)
        return;
    double *t = &c->ns[rows];
    *t = *t > 0 ? 0.8 * *t + 0.2 * took_ns : took_ns;
}

uint32_t costs_widest(const struct row_costs *c)
{
    uint32_t rows = COST_ROWS_MAX;
    while (rows && c->ns[rows] <= 0)
        rows--;
    return rows;
}
