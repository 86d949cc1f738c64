/* engine/clock.h - inside the engine: what rows take, learnt from the steps, and how many a step may therefore have.
 *
 * Thread: engine thread.  Nothing here changes a result: rows may be cut anywhere. */
#ifndef RH_ENGINE_CLOCK_H
#define RH_ENGINE_CLOCK_H

#include <stdbool.h>
#include <stdint.h>

enum { COST_ROWS_MAX = 96 };

/* what forwards of so many rows take */
struct row_costs {
    double ns[COST_ROWS_MAX + 1]; /* 0 = not seen yet */
};

/* the clock: how long rows take */
struct sched_clock {
    double decode_ns;      /* a step of decode rows only */
    double row_ns;         /* one further prefill row; of chunks as wide as the last ones */
    double usual_rows;     /* of those; 0: the last step had none */
    double decode_spread, both_spread; /* how far above what was expected all but few steps lie, as a factor; 0: not known */
    uint32_t turn;         /* steps of both kinds since the last without prompt rows */
    double draft_row_ns;   /* a row the draft model catches up with */
    double draft_part;     /* what a guess reads, of what a row reads: as long as none was measured */
    double draft_credit_ns; /* what drafting may still cost, of all sequences */
    double draft_held_ns;  /* of it: what the rounds of the step being planned were promised */
    bool draft_begun;      /* it was given something to begin with */
    struct row_costs decode; /* steps without prefill */
    struct row_costs draft;  /* the draft model's, a guess a row */
    int64_t last_ns;       /* end of the step before */
};

/* Prompt rows of a step with `room` for them; others: somebody beside the prompt's sequence runs or waits. */
uint32_t clock_rows(struct sched_clock *c, uint32_t room, bool decoding, bool others, uint32_t step_ms);
void clock_learn(struct sched_clock *c, uint32_t prefill_rows, bool decoding, double took_ns);

/* What a forward of so many rows takes: measured, read between what was, or guessed past it. */
double costs_of(const struct row_costs *c, uint32_t rows);
void costs_learn(struct row_costs *c, uint32_t rows, double took_ns);
uint32_t costs_widest(const struct row_costs *c); /* the most rows that were measured; 0: none */

#endif
