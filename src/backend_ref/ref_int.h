/* backend_ref/ref_int.h - inside the reference backend only.
 *
 * ref_device.c: the device, its queue of records, memory, weights.  ref_ops.c: what every op means.  ref_attention.c: pages and
 * attention.  ref_state.c: recurrent layers.  ref_expert.c: mixtures of experts.  ref_sample.c: sample_rows.
 *  Run functions return 0 or ERR_X; the first failure is kept until the next event_wait. */
#ifndef RH_REF_INT_H
#define RH_REF_INT_H

#include "tensor/backend.h"

/* lifetime of the model; owned by who prepared it.  Dequantised whole. */
struct weight {
    struct weight_head head;
    float *values; /* [experts or 1][rows][cols] */
};

typedef int (*ref_run)(struct device *d, const void *op);

#define REF_RUN_PROTO(name) int ref_run_##name(struct device *d, const void *op);
BACKEND_OPS(REF_RUN_PROTO, REF_RUN_PROTO)
#undef REF_RUN_PROTO

/* the sum over the columns in order, in f64 (ref_ops.c) */
double ref_linear_sum(const float *w, const float *x, uint32_t cols);
enum { REF_SUMS = 4 };
void ref_linear_sums(const float *w, const float *x, uint32_t cols, double sums[REF_SUMS]); /* of so many rows w, one behind the other */

static inline float *ref_row(const struct tensor *t, uint32_t row)
{
    return (float *)t->data + (size_t)row * t->stride;
}

#endif
