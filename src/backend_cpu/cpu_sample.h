/* backend_cpu/cpu_sample.h - between cpu_sample.c (rows, blocks, draws) and cpu_filter.c (the set of survivors). */
#ifndef RH_CPU_SAMPLE_H
#define RH_CPU_SAMPLE_H

#include "backend_cpu/cpu_int.h"

/* What is known of one block of LOGIT_BLOCK ids after stage 1 (max, arg, sum) and stage 2 (mass, best). */
struct cpu_logit_block {
    float max;       /* of the logits after processors; -inf: nothing allowed */
    uint32_t arg;    /* lowest id that has it */
    float sum;       /* of exp(x - max), when log-probabilities are wanted */
    float best;      /* logit / T + noise of the block's draw, when nothing filters */
    uint32_t best_id;
    uint64_t mass;   /* sum of 2^40 exp(z - z max of the row) */
};

/* The ids still in play for one row: all above -inf, or a list.  A key is the sort order in the high half and the id in the low half:
 * ascending keys = falling logits, ties by rising id. */
struct cpu_survivors {
    const struct cpu_kernels *k;
    const struct sample_row *row;
    const float *x;                       /* logits after processors [vocab] */
    uint32_t vocab;
    const struct cpu_logit_block *blocks;
    float x_max;                          /* of the row */
    bool all;
    uint64_t *list;                       /* [n], room for vocab */
    uint32_t n;
    bool sorted;
    uint32_t *picked;                     /* [LOGIT_BLOCK] scratch */
};

/* Does a filter before any that makes a list need the mass of all ids?  Is any filter active? */
bool cpu_filter_needs_mass(const struct sample_params *p);
bool cpu_filter_any(const struct sample_params *p);
/* Apply the row's filters in its order. */
void cpu_filter_apply(struct cpu_survivors *s);
/* The `k` best ids of all by logit, sorted, into list; fewer when fewer are allowed. */
void cpu_filter_top(struct cpu_survivors *s, uint32_t k);

static inline uint32_t cpu_key_id(uint64_t key)
{
    return (uint32_t)key;
}

#endif
