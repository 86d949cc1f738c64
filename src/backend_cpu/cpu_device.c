/* backend_cpu/cpu_device.c - the CPU backend's table: opening devices, their memory, their scratch.
 *
 * Owns:       struct device and its scratch areas.
 * Invariants: 1. Scratch grows only in reserve, when the queue is idle; run functions never allocate.
 *             2. All levels give the same bits (kernels.h), so the level is no part of an identity.
 * Does not:   compute; ops live in the files named in cpu_int.h. */
#include "backend_cpu/cpu_device.h"
#include "backend_cpu/cpu_level.h"
#include "backend_cpu/cpu_weight.h"

#include "base/mem.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum { CPU_ARITHMETIC = 3, SCRATCH_ALIGN = 4096, SPIN_DEFAULT_US = 200 };

static void device_close(struct device *d)
{
    if (!d)
        return;
    cpu_queue_stop(d);
    mem_unmap(d->scratch, d->scratch_bytes);
    pthread_mutex_destroy(&d->failure.lock);
    mem_free(d->hands);
    mem_free(d);
}

static int device_open(const struct device_config *cfg, struct device **out, struct err *err)
{
    *out = NULL;
    uint32_t n = cfg->n_threads ? cfg->n_threads : thread_core_count();
    if (n > CPU_THREADS_MAX)
        return err_set(err, ERR_ARGUMENT, "cpu: %u threads asked for, at most %u are possible", n, CPU_THREADS_MAX);
    struct device *d = mem_try_aligned(128, sizeof *d);
    if (!d)
        return err_nomem(err, "cpu: device", sizeof *d);
    memset(d, 0, sizeof *d);
    d->head.backend = &backend_cpu;
    d->n_threads = n;
    d->pin = cfg->pin;
    d->queue.spin_ns = 1000ll * (cfg->spin_us ? cfg->spin_us : SPIN_DEFAULT_US);
    d->queue.cpus_left = cfg->cpus_left;
    pthread_mutex_init(&d->failure.lock, NULL);
    d->hands = mem_try_aligned(128, n * sizeof *d->hands);
    int rc = d->hands ? cpu_level_select(cfg->level, &d->kernels, &d->level, err) : err_nomem(err, "cpu: hands", n * sizeof *d->hands);
    if (d->hands)
        memset(d->hands, 0, n * sizeof *d->hands);
    if (!rc)
        rc = cpu_queue_start(d, err);
    if (rc) {
        device_close(d);
        return rc;
    }
    *out = d;
    return 0;
}

static void device_info(const struct device *d, struct device_info *out)
{
    *out = (struct device_info){.backend = "cpu", .n_threads = d->n_threads, .arithmetic = CPU_ARITHMETIC, .levels_equal = true};
    snprintf(out->level, sizeof out->level, "%s", d->level);
    snprintf(out->text, sizeof out->text, "CPU, level %s, %u thread%s%s", d->level, d->n_threads, d->n_threads == 1 ? "" : "s",
             d->pin ? ", pinned" : "");
    uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE);
    out->memory_total_bytes = (uint64_t)sysconf(_SC_PHYS_PAGES) * page;
    out->memory_free_bytes = (uint64_t)sysconf(_SC_AVPHYS_PAGES) * page;
}

/* ---- scratch ---- */

static size_t round_up(size_t n, size_t to)
{
    return (n + to - 1) / to * to;
}

static void grow_reserve(struct device_reserve *into, const struct device_reserve *r)
{
#define GROW(field) into->field = into->field > r->field ? into->field : r->field
    GROW(rows_max);
    GROW(cols_max);
    GROW(heads_max);
    GROW(head_dim_max);
    GROW(context_max);
    GROW(logit_rows_max);
    GROW(vocab_max);
    GROW(state_dim_max);
    GROW(experts_max);
    GROW(slots_max);
    GROW(expert_cols_max);
    GROW(latent_dim_max);
    GROW(away_mib_max);
#undef GROW
    _Static_assert(sizeof *r == 13 * sizeof(uint32_t), "a field of device_reserve is not grown");
}

static struct cpu_need need_of(const struct device *d, const struct device_reserve *r)
{
    struct cpu_need all = {0};
#define NEED(family)                                                       \
    {                                                                      \
        struct cpu_need n = cpu_##family##_need(r, d->n_threads);          \
        all.worker = all.worker > n.worker ? all.worker : n.worker;        \
        all.shared = all.shared > n.shared ? all.shared : n.shared;        \
    }
    CPU_FAMILIES(NEED)
#undef NEED
    all.worker = round_up(all.worker, SCRATCH_ALIGN);
    all.shared = round_up(all.shared, SCRATCH_ALIGN);
    return all;
}

static uint64_t scratch_total(const struct device *d, const struct cpu_need *n)
{
    return (uint64_t)n->worker * d->n_threads + n->shared;
}

static uint64_t reserve_plan(const struct device *d, const struct device_reserve *r)
{
    struct cpu_need n = need_of(d, r);
    return scratch_total(d, &n);
}

static int reserve(struct device *d, const struct device_reserve *r, struct err *err)
{
    struct device_reserve grown = d->reserved;
    grow_reserve(&grown, r);
    struct cpu_need n = need_of(d, &grown);
    if (n.worker <= d->need.worker && n.shared <= d->need.shared) {
        d->reserved = grown;
        return 0;
    }
    n.worker = n.worker > d->need.worker ? n.worker : d->need.worker;
    n.shared = n.shared > d->need.shared ? n.shared : d->need.shared;
    cpu_drain(d);
    size_t bytes = (size_t)scratch_total(d, &n);
    unsigned char *p = mem_map(bytes);
    if (!p)
        return err_nomem(err, "cpu: scratch", bytes);
    mem_unmap(d->scratch, d->scratch_bytes);
    d->scratch = p;
    d->scratch_bytes = bytes;
    d->need = n;
    d->worker_stride = n.worker;
    d->reserved = grown;
    return 0;
}

void *cpu_scratch(struct device *d, uint32_t me, size_t size_bytes)
{
    if (size_bytes <= d->need.worker)
        return d->scratch + me * d->worker_stride;
    cpu_fail(d, ERR_INTERNAL, "cpu: an op needs more worker scratch than was reserved");
    return NULL;
}

void *cpu_shared_scratch(struct device *d, size_t size_bytes)
{
    if (size_bytes <= d->need.shared)
        return d->scratch + d->n_threads * d->worker_stride;
    cpu_fail(d, ERR_INTERNAL, "cpu: an op needs more shared scratch than was reserved");
    return NULL;
}

const struct cpu_kernels *cpu_kernels_of(const struct device *d)
{
    return &d->kernels;
}

const struct device_reserve *cpu_reserved(const struct device *d)
{
    return &d->reserved;
}

/* ---- buffers ---- */

static int buffer_new(struct device *d, size_t size_bytes, void **out, struct err *err)
{
    (void)d;
    *out = mem_map(size_bytes);
    return *out ? 0 : err_nomem(err, "cpu: buffer", size_bytes);
}

static void buffer_free(struct device *d, void *p, size_t size_bytes)
{
    (void)d;
    mem_unmap(p, size_bytes);
}

static int buffer_copy(struct device *d, void *dst, const void *src, size_t size_bytes, struct err *err)
{
    (void)d, (void)err;
    if (size_bytes)
        memcpy(dst, src, size_bytes);
    return 0;
}

const struct backend backend_cpu = {
    .name = "cpu",
    .device_open = device_open,
    .device_close = device_close,
    .device_info = device_info,
    .reserve_plan = reserve_plan,
    .reserve = reserve,
    .buffer_new = buffer_new,
    .buffer_free = buffer_free,
    .buffer_write = buffer_copy,
    .buffer_read = buffer_copy,
    .weight_plan = cpu_weight_plan,
    .weight_prepare = cpu_weight_prepare,
    .weight_free = cpu_weight_free,
    .event_record = cpu_event_record,
    .event_wait = cpu_event_wait,
    .event_done = cpu_event_done,
    .progress = cpu_progress,
    .flush = cpu_flush,
    .hold = cpu_hold,
    .hold_ask = cpu_hold_ask,
    .hold_went = cpu_hold_went,
    .hold_end = cpu_hold_end,
    .kv_format_supported = cpu_kv_format_supported,
    .copy_in = cpu_op_copy_in,
    .copy_out = cpu_op_copy_out,
    .copy = cpu_op_copy,
    .embed = cpu_op_embed,
    .linear = cpu_op_linear,
    .linear_heads = cpu_op_linear_heads,
    .norm = cpu_op_norm,
    .rope_table = cpu_op_rope_table,
    .rope = cpu_op_rope,
    .kv_write = cpu_op_kv_write,
    .kv_convert = cpu_op_kv_convert,
    .attention = cpu_op_attention,
    .gated = cpu_op_gated,
    .xielu = cpu_op_xielu,
    .add = cpu_op_add,
    .scale = cpu_op_scale,
    .blend = cpu_op_blend,
    .match = cpu_op_match,
    .sparsify = cpu_op_sparsify,
    .softcap = cpu_op_softcap,
    .gather = cpu_op_gather,
    .short_conv = cpu_op_short_conv,
    .delta_net = cpu_op_delta_net,
    .mamba = cpu_op_mamba,
    .route = cpu_op_route,
    .expert_linear = cpu_op_expert_linear,
    .expert_sum = cpu_op_expert_sum,
    .sample_rows = cpu_op_sample_rows,
    .norm_linear = cpu_op_norm_linear,
    .norm_gated = cpu_op_norm_gated,
    .expert_gated = cpu_op_expert_gated,
    .attn_prepare = cpu_op_attn_prepare,
};
