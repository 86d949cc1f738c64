/* backend_cpu/cpu_deal.h - items of work that the workers of a record take from each other when they have done their own.
 *
 * Items lie in lots, all of one lot cost the same.  Each worker has a run of equal cost and takes from its front; who has none left takes
 * from the backs of the others' runs.  So a worker whose core is slow or was taken away for a while holds nobody up for longer than
 * its last item takes.  Which worker computes an item must not show: items are outputs.
 * Invariants: 1. Every item is taken once.  2. All workers start the same deals in the same order, at most one in a record.
 *             3. A take never goes past a lot's end. */
#ifndef RH_CPU_DEAL_H
#define RH_CPU_DEAL_H

#include "backend_cpu/cpu_int.h"

struct cpu_lot {
    uint32_t items;
    uint64_t cost; /* of one, in any unit */
};

/* one worker's view of one record's deal; on its stack */
struct cpu_deal {
    struct cpu_hand *hands;
    const struct cpu_lot *lots;
    uint32_t n_lots, most; /* items of a take at most */
    uint32_t me, count, from_whom;
    uint16_t round;
};

/* items [from, to) of a lot */
struct cpu_take {
    uint32_t lot, from, to;
};

void cpu_deal_start(struct cpu_deal *deal, struct device *d, const struct cpu_lot *lots, uint32_t n_lots, uint32_t most, uint32_t me,
                    uint32_t count);
/* False: nothing is left. */
bool cpu_deal_next(struct cpu_deal *deal, struct cpu_take *out);
/* What worker `me`'s run has of the i-th lot it touches; false: it touches no more. */
bool cpu_deal_own(const struct cpu_lot *lots, uint32_t n_lots, uint32_t me, uint32_t count, uint32_t i, struct cpu_take *out);

#endif
