/* backend_cuda/cuda_device.c - the CUDA backend's table: opening a device, its memory, its scratch.
 *
 * Invariants: 1. Scratch grows only in reserve, between steps.  2. Memory comes from plain cudaMalloc; what does not fit is refused.
 * Does not:   compute; ops live in the files named in cuda_int.h. */
#include "backend_cuda/cuda_int.h"
#include "backend_cuda/kernels_broad.h"
#include "backend_cuda/kernels_router.h"

#include "base/mem.h"
#include "tensor/kv_codec.h"

#include <stdio.h>
#include <string.h>

enum { CUDA_ARITHMETIC = 2, ARENA_BYTES = 768 << 20, PARTIAL_BYTES = 96 << 20, WORK_BYTES = 64 << 20, PACK_SMEM = 256, ARRIVED = 4096 /* at least */ };

int cuda_alloc(struct device *d, size_t size_bytes, const char *what, void **out, struct err *err)
{
    int rc = cuda_check(cudaMalloc(out, size_bytes), what, err);
    if (rc)
        err_prefix(err, "%zu bytes", size_bytes);
    else
        d->held_bytes += size_bytes;
    return rc;
}

int cuda_alloc_away(size_t size_bytes, const char *what, void **out, struct err *err)
{
    int rc = cuda_check(cudaHostAlloc(out, size_bytes, cudaHostAllocMapped | cudaHostAllocPortable), what, err);
    if (rc)
        err_prefix(err, "%zu bytes of the host's memory", size_bytes);
    return rc;
}

void cuda_release(struct device *d, void *p, size_t size_bytes)
{
    if (!p)
        return;
    cudaFree(p);
    d->held_bytes -= size_bytes;
}

static void device_close(struct device *d)
{
    if (!d)
        return;
    cuda_enter(d);
    if (d->stream)
        cudaStreamSynchronize(d->stream);
    for (int i = 0; i < 2; i++)
        if (d->upload_done[i])
            cudaEventDestroy(d->upload_done[i]);
    cudaFreeHost(d->upload_host);
    cudaFree(d->upload_device);
    cudaFree(d->scratch);
    cudaFreeHost(d->results);
    cudaFreeHost(d->arena);
    cuda_queue_close(d);
    mem_free(d);
}

/* Why there is no device to look at, in words for who has no GPU. */
static int count_devices(int *count, struct err *err)
{
    int driver = 0, runtime = 0;
    cudaError_t rc = cudaGetDeviceCount(count);
    if (rc != cudaErrorInsufficientDriver && rc != cudaErrorNoDevice)
        return cuda_check(rc, "looking for devices", err);
    cudaDriverGetVersion(&driver);
    cudaRuntimeGetVersion(&runtime);
    if (rc == cudaErrorNoDevice)
        return err_set(err, ERR_NOT_FOUND, "cuda: no GPU is there for this process");
    if (driver == 0)
        return err_set(err, ERR_NOT_FOUND, "cuda: no NVIDIA driver is there (libcuda.so.1 was not found)");
    return err_set(err, ERR_UNSUPPORTED, "cuda: the driver is for CUDA %d.%d, this build needs one for %d.%d or newer", driver / 1000,
                   driver % 1000 / 10, runtime / 1000, runtime % 1000 / 10);
}

/* Is there code for this GPU?  Any kernel answers for all. */
static int code_check(const struct device *d, struct err *err)
{
    struct cudaFuncAttributes a;
    cudaError_t rc = cudaFuncGetAttributes(&a, cuda_kernel_route);
    if (rc == cudaErrorNoKernelImageForDevice || rc == cudaErrorInvalidDeviceFunction)
        return err_set(err, ERR_UNSUPPORTED, "cuda: %s is sm_%u: this build has code for %s", d->name, d->capability, RH_CUDA_ARCHITECTURES);
    return cuda_check(rc, "kernel attributes", err);
}

static int smem_allow(const void *kernel, int bytes, struct err *err)
{
    return kernel ? cuda_check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes), "shared memory", err) : 0;
}

/* All kernels want the largest part of a multiprocessor's memory shared: where the next one wants another part, it cannot begin beside this one. */
static int carve(const void *const *kernels, size_t count, struct err *err)
{
    int rc = 0;
    for (size_t i = 0; i < count && rc == 0; i++)
        if (kernels[i])
            rc = cuda_check(cudaFuncSetAttribute(kernels[i], cudaFuncAttributePreferredSharedMemoryCarveout, cudaSharedmemCarveoutMaxShared), "shared memory", err);
    return rc;
}

static int kernels_carve(const void *const *large, size_t count, struct err *err)
{
    int rc = carve(large, count, err);
    rc = rc ? rc : carve(cuda_kernels_rows, CUDA_K_ROWS_COUNT, err);
    rc = rc ? rc : carve(cuda_kernels_linear[0], CUDA_KIND_COUNT * CUDA_LINEAR_WIDTHS, err);
    rc = rc ? rc : carve(cuda_kernels_weight, CUDA_K_WEIGHT_COUNT, err);
    rc = rc ? rc : carve(cuda_kernels_expert, CUDA_KIND_COUNT, err);
    rc = rc ? rc : carve(cuda_kernels_pages, CUDA_K_PAGES_COUNT, err);
    rc = rc ? rc : carve(cuda_kernels_attention, CUDA_K_ATTENTION_COUNT, err);
    rc = rc ? rc : carve(cuda_kernels_state, CUDA_K_STATE_COUNT, err);
    rc = rc ? rc : carve(cuda_kernels_sample, CUDA_K_SAMPLE_COUNT, err);
    return rc;
}

/* Kernels that only Hopper has. */
static int hopper_allow(const struct device *d, struct err *err)
{
    const void *wide[] = {cuda_kernel_attend_wide(64), cuda_kernel_attend_wide(128), cuda_kernel_attend_broad(256), cuda_kernel_attend_broad(512), cuda_kernel_chain,
                          cuda_kernel_router(128), cuda_kernel_router(256), cuda_kernel_router(512)};
    int rc = carve(wide, sizeof wide / sizeof *wide, err);
    rc = rc ? rc : smem_allow(wide[0], (int)cuda_attend_wide_smem(64), err);
    rc = rc ? rc : smem_allow(wide[1], (int)cuda_attend_wide_smem(128), err);
    rc = rc ? rc : smem_allow(wide[2], (int)cuda_attend_broad_smem(256), err);
    rc = rc ? rc : smem_allow(wide[3], (int)cuda_attend_broad_smem(512), err);
    for (size_t i = 4; i < sizeof wide / sizeof *wide && rc == 0; i++)
        rc = smem_allow(wide[i], (int)d->smem_max, err);
    rc = rc ? rc : carve(cuda_kernels_row, CUDA_KIND_COUNT, err);
    for (int k = 0; k < CUDA_KIND_COUNT && rc == 0; k++) {
        for (int f = 0; f < CUDA_TALL_FORMS && rc == 0; f++) {
            rc = carve(&cuda_kernels_tall[k][f].kernel, 1, err);
            rc = rc ? rc : smem_allow(cuda_kernels_tall[k][f].kernel, (int)cuda_kernels_tall[k][f].smem, err);
        }
        rc = rc ? rc : smem_allow(cuda_kernels_row[k], (int)d->smem_max, err);
    }
    return rc;
}

static int streams_allow(const struct device *d, struct err *err)
{
    int rc = 0;
    for (uint32_t e = 64; e <= 128 && rc == 0; e += 64)
        for (int f = 0; f < KV_FORMAT_COUNT && rc == 0; f++) {
            const struct cuda_stream s = cuda_kernel_attend_stream(e, (enum kv_format)f);
            rc = d->wgmma ? carve(&s.kernel, 1, err) : 0;
            rc = rc || s.smem > d->smem_max ? rc : smem_allow(s.kernel, (int)s.smem, err);
        }
    return rc;
}

/* Shared memory above the default limit is asked for once. */
static int kernels_allow(const struct device *d, struct err *err)
{
    const void *large[] = {cuda_kernels_attention[CUDA_K_ATTENTION], cuda_kernels_attention[CUDA_K_ATTENTION_DEEP], cuda_kernels_attention[CUDA_K_ATTENTION_TALL], cuda_kernel_route,
                           cuda_kernel_route_warp, cuda_kernel_group, cuda_kernel_pack_slots, cuda_kernel_pack, cuda_kernel_attend_row, cuda_kernel_attend_tall(64, 64), cuda_kernel_attend_tall(128, 128)};
    int rc = d->wgmma ? kernels_carve(large, sizeof large / sizeof *large, err) : 0;
    rc = rc || !d->wgmma ? rc : hopper_allow(d, err);
    for (int k = 0; k < CUDA_KIND_COUNT && rc == 0; k++)
        rc = smem_allow(cuda_kernels_expert[k], (int)d->smem_max, err);
    rc = rc ? rc : streams_allow(d, err);
    for (size_t i = 0; i < sizeof large / sizeof *large && rc == 0; i++) {
        struct cudaFuncAttributes a;
        rc = cuda_check(cudaFuncGetAttributes(&a, large[i]), "kernel attributes", err);
        rc = rc ? rc : smem_allow(large[i], (int)(d->smem_max - a.sharedSizeBytes), err);
    }
    return rc;
}

static int device_start(struct device *d, struct err *err)
{
    struct cudaDeviceProp prop;
    int count = 0, rc = count_devices(&count, err);
    if (rc)
        return rc;
    if (d->index >= (uint32_t)count)
        return err_set(err, ERR_NOT_FOUND, "cuda: device %u: there are %d", d->index, count);
    cuda_enter(d);
    rc = cuda_check(cudaSetDevice((int)d->index), "device", err);
    if (rc == 0)
        rc = cuda_check(cudaGetDeviceProperties(&prop, (int)d->index), "device", err);
    if (rc)
        return rc;
    snprintf(d->name, sizeof d->name, "%.95s", prop.name);
    d->capability = (uint32_t)(10 * prop.major + prop.minor);
    d->wgmma = d->capability == 90;
    d->smem_max = (uint32_t)prop.sharedMemPerBlockOptin;
    rc = code_check(d, err);
    if (rc)
        return rc;
    d->memory_bytes = prop.totalGlobalMem;
    d->workers = (uint32_t)prop.multiProcessorCount;
    rc = kernels_allow(d, err);
    if (rc == 0)
        rc = cuda_queue_open(d, err);
    void *arena = NULL;
    if (rc == 0 && d->host_buffers)
        rc = cuda_check(cudaHostAlloc(&arena, ARENA_BYTES, cudaHostAllocDefault), "host buffers", err);
    d->arena = arena;
    return rc;
}

static int device_open(const struct device_config *cfg, struct device **out, struct err *err)
{
    *out = NULL;
    bool host = cfg->level && strcmp(cfg->level, "host") == 0, in_turn = cfg->level && strcmp(cfg->level, "in_turn") == 0;
    if (cfg->level && !host && !in_turn)
        return err_set(err, ERR_ARGUMENT, "backend 'cuda': unknown level '%s', expected none, 'host' or 'in_turn'", cfg->level);
    struct device *d = mem_try_zero(1, sizeof *d);
    if (!d)
        return err_nomem(err, "cuda: device", sizeof *d);
    d->head.backend = &backend_cuda;
    d->index = cfg->index;
    d->host_buffers = host;
    d->in_turn = in_turn;
    int rc = device_start(d, err);
    if (rc) {
        device_close(d);
        return rc;
    }
    *out = d;
    return 0;
}

static void device_info(const struct device *d, struct device_info *out)
{
    size_t free_bytes = 0, total = 0;
    cuda_enter(d);
    *out = (struct device_info){.backend = "cuda", .own_memory = true, .n_threads = 1, .arithmetic = CUDA_ARITHMETIC + 1000u * (CUDA_SEGMENTS - CUDA_CUTS)};
    snprintf(out->level, sizeof out->level, "sm_%u%s", d->capability, d->wgmma ? "a" : "");
    snprintf(out->text, sizeof out->text, "%s, %u multiprocessors", d->name, d->workers);
    cudaMemGetInfo(&free_bytes, &total);
    out->memory_total_bytes = d->memory_bytes;
    out->memory_free_bytes = free_bytes;
    out->memory_held_bytes = d->held_bytes;
}

/* ---- scratch ---- */

struct walk {
    unsigned char *base; /* NULL while sizes are counted */
    size_t used;
};

static void *lay(struct walk *w, size_t size_bytes)
{
    void *p = w->base ? w->base + w->used : NULL;
    w->used += (size_bytes + 255) / 256 * 256;
    return p;
}

/* Packed rows of so many slots: experts begin at whole blocks. */
static size_t group_rows_max(size_t slots, size_t experts)
{
    size_t blocks = slots / CUDA_TALL_ROWS + experts;
    return (blocks < slots ? blocks : slots) * CUDA_TALL_ROWS;
}

static size_t scratch_lay(struct device *d, const struct device_reserve *r, unsigned char *base)
{
    struct walk w = {base, 0};
    size_t rows = (r->rows_max + CUDA_TALL_ROWS - 1) / CUDA_TALL_ROWS * CUDA_TALL_ROWS, logit_rows = r->logit_rows_max ? r->logit_rows_max : 1;
    uint32_t blocks = (r->vocab_max + LOGIT_BLOCK - 1) / LOGIT_BLOCK;
    size_t plain = rows * cuda_units(r->cols_max) * CUDA_UNIT * sizeof *d->packed;
    size_t slots = rows * r->slots_max, grouped = group_rows_max(slots, r->experts_max), each = rows * (r->heads_max ? r->heads_max : 1);
    size_t slot_bytes = grouped * cuda_units(r->expert_cols_max) * CUDA_UNIT * sizeof *d->packed;
    d->packed_bytes = plain > slot_bytes ? plain : slot_bytes;
    d->packed = lay(&w, d->packed_bytes);
    d->packed_rows = (uint32_t)(each > grouped ? each : grouped);
    d->packed_scale = lay(&w, d->packed_rows * sizeof *d->packed_scale);
    d->slots_max = (uint32_t)slots, d->group_items_max = (uint32_t)(slots / 8 + r->experts_max);
    d->order = lay(&w, grouped * sizeof *d->order);
    d->place = lay(&w, slots * sizeof *d->place);
    d->groups = lay(&w, slots ? sizeof(struct cuda_groups) + d->group_items_max * sizeof(struct cuda_group_item) : 0);
    d->partial_bytes = PARTIAL_BYTES;
    d->partial = lay(&w, d->partial_bytes);
    d->tiles_max = r->rows_max * (r->heads_max / 16 + 1) + r->rows_max + 1;
    for (uint32_t i = 0; i < CUDA_TILE_SETS; i++) {
        d->sets[i] = (struct cuda_tile_set){0};
        d->sets[i].tiles = lay(&w, sizeof(struct cuda_tiles) + d->tiles_max * sizeof(struct cuda_listed));
    }
    d->arrived = lay(&w, (each > ARRIVED ? each : ARRIVED) * sizeof *d->arrived);
    d->work_bytes = r->state_dim_max ? WORK_BYTES : 0;
    d->work = lay(&w, d->work_bytes);
    d->ids = lay(&w, (size_t)CUDA_SLOTS * rows * sizeof *d->ids);
    d->blocks = lay(&w, logit_rows * blocks * sizeof *d->blocks);
    d->keys = lay(&w, logit_rows * r->vocab_max * sizeof *d->keys);
    d->near_bytes = (size_t)r->away_mib_max << 20;
    d->near = lay(&w, d->near_bytes);
    return w.used;
}

static uint64_t reserve_plan(const struct device *d, const struct device_reserve *r)
{
    struct device copy = *d;
    return scratch_lay(&copy, r, NULL);
}

static void grow(struct device_reserve *into, const struct device_reserve *r)
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

static int reserve(struct device *d, const struct device_reserve *r, struct err *err)
{
    struct device_reserve all = d->reserved;
    void *scratch = NULL, *results = NULL;
    grow(&all, r);
    if (memcmp(&all, &d->reserved, sizeof all) == 0)
        return 0;
    uint32_t wide = all.cols_max > all.expert_cols_max ? all.cols_max : all.expert_cols_max;
    uint64_t row = (uint64_t)cuda_units(wide) * CUDA_UNIT * sizeof(float) + PACK_SMEM;
    if (row > d->smem_max)
        return err_set(err, ERR_UNSUPPORTED, "cuda: a row of %u columns takes %llu bytes of shared memory to pack, a block has %u", wide,
                       (unsigned long long)row, d->smem_max);
    int rc = cuda_finish(d, err);
    if (rc)
        return rc;
    size_t bytes = scratch_lay(d, &all, NULL);
    rc = cuda_alloc(d, bytes, "scratch", &scratch, err);
    if (rc == 0)
        rc = cuda_check(cudaMemsetAsync(scratch, 0, bytes, d->stream), "scratch", err);
    if (rc == 0)
        rc = cuda_check(cudaHostAlloc(&results, (size_t)CUDA_SLOTS * all.rows_max * sizeof *d->results, cudaHostAllocDefault), "results", err);
    if (rc) {
        cuda_release(d, scratch, bytes);
        scratch_lay(d, &d->reserved, d->scratch);
        return rc;
    }
    cuda_release(d, d->scratch, d->scratch_bytes);
    cudaFreeHost(d->results);
    d->scratch = scratch;
    d->scratch_bytes = bytes;
    d->results = results;
    d->reserved = all;
    scratch_lay(d, &all, d->scratch);
    return 0;
}

/* ---- buffers ---- */

static int arena_take(struct device *d, size_t size_bytes, void **out, struct err *err)
{
    size_t n = (size_bytes + 63) / 64 * 64;
    if (d->arena_live == 0)
        d->arena_used = 0;
    if (n > ARENA_BYTES - d->arena_used)
        return err_nomem(err, "cuda: host buffers", n);
    *out = d->arena + d->arena_used;
    d->arena_used += n;
    d->arena_live++;
    memset(*out, 0, size_bytes);
    return 0;
}

static int buffer_new(struct device *d, size_t size_bytes, void **out, struct err *err)
{
    *out = NULL;
    cuda_enter(d);
    if (d->host_buffers)
        return arena_take(d, size_bytes, out, err);
    int rc = cuda_alloc(d, size_bytes ? size_bytes : 1, "buffer", out, err);
    if (rc)
        return rc;
    return cuda_check(cudaMemsetAsync(*out, 0, size_bytes, d->stream), "buffer", err); /* in order with all that is enqueued later */
}

static void buffer_free(struct device *d, void *p, size_t size_bytes)
{
    if (!p)
        return;
    if (d->host_buffers) {
        d->arena_live--;
        return;
    }
    cuda_finish(d, NULL);
    cuda_release(d, p, size_bytes ? size_bytes : 1);
}

static int buffer_copy(struct device *d, void *dst, const void *src, size_t size_bytes, struct err *err)
{
    int rc = cuda_finish(d, err);
    return rc || !size_bytes ? rc : cuda_check(cuda_copy_now(d, dst, src, size_bytes), "copy", err);
}

static bool kv_format_supported(const struct device *d, const struct kv_layer *l)
{
    return kv_layer_head_bytes(l) != 0 && cuda_attention_smem(l->d_k, l->d_v, false) <= d->smem_max;
}

const struct backend backend_cuda = {
    .name = "cuda",
    .device_open = device_open,
    .device_close = device_close,
    .device_info = device_info,
    .reserve_plan = reserve_plan,
    .reserve = reserve,
    .buffer_new = buffer_new,
    .buffer_free = buffer_free,
    .buffer_write = buffer_copy,
    .buffer_read = buffer_copy,
    .weight_plan = cuda_weight_plan,
    .weight_prepare = cuda_weight_prepare,
    .weight_free = cuda_weight_free,
    .event_record = cuda_event_record,
    .event_wait = cuda_event_wait,
    .event_done = cuda_event_done,
    .kv_format_supported = kv_format_supported,
    .copy_in = cuda_op_copy_in,
    .copy_out = cuda_op_copy_out,
    .copy = cuda_op_copy,
    .embed = cuda_op_embed,
    .linear = cuda_op_linear,
    .norm = cuda_op_norm,
    .rope_table = cuda_op_rope_table,
    .rope = cuda_op_rope,
    .kv_write = cuda_op_kv_write,
    .attention = cuda_op_attention,
    .gated = cuda_op_gated,
    .add = cuda_op_add,
    .softcap = cuda_op_softcap,
    .gather = cuda_op_gather,
    .xielu = cuda_op_xielu,
    .scale = cuda_op_scale,
    .linear_heads = cuda_op_linear_heads,
    .kv_convert = cuda_op_kv_convert,
    .blend = cuda_op_blend,
    .match = cuda_op_match,
    .sparsify = cuda_op_sparsify,
    .mamba = cuda_op_mamba,
    .route = cuda_op_route,
    .expert_linear = cuda_op_expert_linear,
    .expert_gated = cuda_op_expert_gated,
    .expert_output = cuda_op_expert_output,
    .expert_sum = cuda_op_expert_sum,
    .short_conv = cuda_op_short_conv,
    .delta_net = cuda_op_delta_net,
    .sample_rows = cuda_op_sample_rows,
    .norm_linear = cuda_op_norm_linear,
    .norm_gated = cuda_op_norm_gated,
    .attn_prepare = cuda_op_attn_prepare,
};
