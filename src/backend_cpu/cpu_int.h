/* backend_cpu/cpu_int.h - inside the CPU backend only.
 *
 * The device is a ring of op records and a pool of n pinned workers.  event_record publishes; each worker walks the published
 * records in order and runs the same `run` function with its own index; between two records all workers meet at a barrier.  A run
 * function splits its work by (me, count) only over output elements, never over K or inside a block of positions, so results do not
 * depend on the count.  Inside one record a function may meet at further barriers (cpu_barrier), always all workers.
 * Files: cpu_device.c (the table, buffers), cpu_queue.c (ring, events, pool), cpu_deal.c (work taken over), cpu_select.c (levels), cpu_weight.c + pack_*.c (panels),
 *        cpu_linear.c, cpu_heads.c, cpu_rows.c (copies, norm, rope, gated, add, soft-cap, gather), cpu_pages.c (K and V into pages),
 *        cpu_attention.c, cpu_state.c (recurrent layers), cpu_route.c and cpu_expert.c (mixtures of experts), cpu_sample.c; kernels_<level>_<family>.c. */
#ifndef RH_CPU_INT_H
#define RH_CPU_INT_H

#include "backend_cpu/kernels.h"
#include "base/thread.h"
#include "tensor/backend.h"

enum { CPU_OP_BYTES = 352 }; /* an op's parameters are copied into the record */

struct cpu_team;
struct device; /* starts with struct device_head */

typedef void (*cpu_run)(struct device *d, uint32_t me, uint32_t count, const void *op);

/* Put one record into the ring (cpu_queue.c), under the name of its function. */
#define cpu_enqueue(d, run, op, op_bytes) cpu_enqueue_named(d, run, #run, op, op_bytes)
int cpu_enqueue_named(struct device *d, cpu_run run, const char *name, const void *op, size_t op_bytes);
/* What worker `me` will read first of a record's weights: piece `i`; false: there are no more. */
typedef bool (*cpu_reads)(const void *op, uint32_t me, uint32_t count, uint32_t i, const unsigned char **at, size_t *size_bytes);
/* The record that was enqueued last reads those: workers who wait, or whose memory is idle, ask for them while records before it run. */
void cpu_enqueued_reads(struct device *d, cpu_reads reads);
/* Ask for some more of what this worker reads next; false: there is nothing to ask for. */
bool cpu_fetch_ahead(struct device *d, uint32_t me, uint32_t lines);
/* Everything enqueued so far is done when this returns; failures stay for the next event_wait.  For setup calls. */
void cpu_drain(struct device *d);
/* All workers of the record meet. */
void cpu_barrier(struct device *d, uint32_t me);
/* First failure of a record: kept until the next event_wait. */
void cpu_fail(struct device *d, int code, const char *text);

/* what run functions may use of the device */
const struct cpu_kernels *cpu_kernels_of(const struct device *d);          /* the merged table of the chosen level */
void *cpu_scratch(struct device *d, uint32_t me, size_t size_bytes);       /* this worker's own scratch (sized by reserve) */
void *cpu_shared_scratch(struct device *d, size_t size_bytes);             /* one for all workers of a record */
const struct device_reserve *cpu_reserved(const struct device *d);

/* What a family's run functions need for ops within `r` on `count` workers; reserve takes the largest of all families.  A request past
 * it gives NULL and fails the record (every worker sees the same). */
struct cpu_need {
    size_t worker, shared; /* bytes */
};
#define CPU_FAMILIES(X) X(linear) X(route) X(expert) X(attention) X(state) X(sample)
#define CPU_NEED_PROTO(family) struct cpu_need cpu_##family##_need(const struct device_reserve *r, uint32_t count);
CPU_FAMILIES(CPU_NEED_PROTO)
#undef CPU_NEED_PROTO

/* [*from, *to) of `n` items for worker `me`: contiguous, in units of `unit`, as even as it goes. */
static inline void cpu_split(uint32_t n, uint32_t unit, uint32_t me, uint32_t count, uint32_t *from, uint32_t *to)
{
    uint64_t units = (n + unit - 1) / unit;
    uint64_t a = units * me / count * unit, b = units * (me + 1) / count * unit;
    *from = a < n ? (uint32_t)a : n;
    *to = b < n ? (uint32_t)b : n;
}

static inline cpu_gated_fn cpu_gated_of(const struct cpu_kernels *k, enum act act)
{
    const cpu_gated_fn by_act[ACT_COUNT] = {k->gated_silu, k->gated_gelu_tanh, k->gated_gelu_erf, k->gated_sigmoid,
                                             k->gated_clamped, k->gated_relu};
    return by_act[act];
}

/* the ops, one enqueue function each, by the file that has the run function */
#define CPU_OP_PROTO(name) int cpu_op_##name(struct device *d, const struct op_##name *op);
BACKEND_OPS(CPU_OP_PROTO, CPU_OP_PROTO)
#undef CPU_OP_PROTO

bool cpu_kv_format_supported(const struct device *d, const struct kv_layer *l); /* cpu_pages.c */

extern const struct backend backend_cpu;

#endif
