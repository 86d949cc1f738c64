/* backend_cuda/cuda_weight.c - weights: rows go up through pinned memory as the file has them, and are packed into tiles on the device.
 *
 * For embed the rows stay as they are (the values of the file exactly); for linear they are packed (weight_layout.cuh).  Types without a packed
 * form are taken to f32 on the host first.  A weight that stays away has both in pinned memory of the host, packed by the same kernels.
 * Invariants: 1. The source is read before cuda_weight_prepare returns.  2. Two pieces of staging: one is filled while the other goes up. */
#include "backend_cuda/cuda_int.h"

#include "base/log.h"
#include "base/mem.h"

#include <string.h>

enum { PIECE = 32 << 20 };

static bool kind_of(const struct weight_src *s, enum cuda_kind *out)
{
    static const struct {
        enum dtype type;
        enum cuda_kind kind;
    } kinds[] = {{DTYPE_F32, CUDA_KIND_F16}, {DTYPE_F16, CUDA_KIND_F16}, {DTYPE_BF16, CUDA_KIND_F16}, {DTYPE_Q4_0, CUDA_KIND_Q4},
                 {DTYPE_Q4_1, CUDA_KIND_A4}, {DTYPE_Q5_0, CUDA_KIND_Q5}, {DTYPE_Q5_1, CUDA_KIND_A5}, {DTYPE_Q8_0, CUDA_KIND_Q8},
                 {DTYPE_Q2_K, CUDA_KIND_K2}, {DTYPE_Q3_K, CUDA_KIND_K3}, {DTYPE_Q4_K, CUDA_KIND_K4}, {DTYPE_Q5_K, CUDA_KIND_K5},
                 {DTYPE_Q6_K, CUDA_KIND_K6}, {DTYPE_IQ4_NL, CUDA_KIND_IQ4}, {DTYPE_IQ4_XS, CUDA_KIND_IQ4}, {DTYPE_MXFP4, CUDA_KIND_FP4}};
    if (s->type == DTYPE_MLX) {
        bool wide = s->group != 32;
        *out = s->bits <= 4 ? (wide ? CUDA_KIND_G4 : CUDA_KIND_A4) : s->bits == 5 ? (wide ? CUDA_KIND_G5 : CUDA_KIND_A5)
               : s->bits == 6 ? (wide ? CUDA_KIND_G6 : CUDA_KIND_A6) : (wide ? CUDA_KIND_G8 : CUDA_KIND_A8);
        return true;
    }
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++)
        if (kinds[i].type == s->type) {
            *out = kinds[i].kind;
            return true;
        }
    return false;
}

/* how a source will be held */
struct plan {
    enum cuda_kind kind;
    bool converted;      /* to f32, on the host */
    struct cuda_raw raw; /* without places */
    size_t scale_bytes;  /* of a row's scales, and of its minima */
    size_t minimum_bytes;
    uint32_t rows, units, tiles, tile_bytes;
};

static int plan_check(const struct weight_src *s, struct err *err)
{
    if (s->rows == 0 || s->cols == 0)
        return err_set(err, ERR_FORMAT, "cuda: tensor '%s' is empty: [%u][%u]", s->name, s->rows, s->cols);
    if (s->type == DTYPE_MLX) {
        bool bits = s->bits >= 2 && s->bits <= 8 && s->bits != 7, group = s->group == 32 || s->group == 64 || s->group == 128;
        if (!bits || !group || (s->scale_type != DTYPE_F32 && s->scale_type != DTYPE_F16 && s->scale_type != DTYPE_BF16))
            return err_set(err, ERR_UNSUPPORTED, "cuda: tensor '%s': MLX affine of %u bits in groups of %u with scales of type %s is not supported",
                           s->name, s->bits, s->group, dtype_name(s->scale_type));
    }
    uint32_t block = s->type == DTYPE_MLX ? s->group : dtype_block_len(s->type);
    if (s->type >= DTYPE_COUNT || (s->type != DTYPE_MLX && !block) || s->cols % block)
        return err_set(err, ERR_FORMAT, "cuda: tensor '%s' (%s): %u columns are no multiple of %u", s->name, dtype_name(s->type), s->cols, block);
    return 0;
}

static int plan_make(const struct weight_src *s, struct plan *p, struct err *err)
{
    *p = (struct plan){0};
    int rc = plan_check(s, err);
    if (rc)
        return rc;
    p->converted = !kind_of(s, &p->kind);
    p->raw = (struct cuda_raw){.row_bytes = s->row_bytes, .type = s->type, .cols = s->cols, .bits = s->bits, .group = s->group,
                               .scale_type = s->scale_type, .split = s->type == DTYPE_MXFP4 && s->scales};
    if (p->converted) {
        p->kind = CUDA_KIND_F16;
        p->raw.type = DTYPE_F32;
        p->raw.row_bytes = (uint64_t)s->cols * sizeof(float);
    }
    if (s->type == DTYPE_MLX)
        p->scale_bytes = p->minimum_bytes = (size_t)(s->cols / s->group) * (s->scale_type == DTYPE_F32 ? 4 : 2);
    if (p->raw.split)
        p->scale_bytes = s->cols / 32;
    uint64_t rows = (uint64_t)s->rows * (s->n_experts ? s->n_experts : 1); /* of a stack: one matrix behind the other */
    if (rows > UINT32_MAX)
        return err_set(err, ERR_LIMIT, "cuda: tensor '%s' has %llu rows in all", s->name, (unsigned long long)rows);
    p->rows = (uint32_t)rows;
    p->units = cuda_units(s->cols);
    p->tiles = (p->rows + CUDA_TILE - 1) / CUDA_TILE;
    p->tile_bytes = cuda_tile_bytes(p->kind, s->cols);
    return 0;
}

static size_t row_total(const struct plan *p)
{
    return p->raw.row_bytes + p->scale_bytes + p->minimum_bytes;
}

int cuda_weight_plan(struct device *d, const struct weight_src *src, unsigned use, uint64_t *size_bytes, struct err *err)
{
    (void)d;
    struct plan p;
    int rc = plan_make(src, &p, err);
    *size_bytes = 0;
    if (rc == 0 && use & WEIGHT_LINEAR)
        *size_bytes += (uint64_t)p.tiles * p.tile_bytes + (uint64_t)p.tiles * CUDA_TILE * sizeof(float);
    if (rc == 0 && use & WEIGHT_EMBED)
        *size_bytes += p.rows * (uint64_t)row_total(&p);
    return rc;
}

/* ---- going up ---- */

static int upload_open(struct device *d, struct err *err)
{
    void *host = d->upload_host, *device = d->upload_device;
    int rc = host ? 0 : cuda_check(cudaHostAlloc(&host, 2 * (size_t)PIECE, cudaHostAllocDefault), "staging of weights", err);
    d->upload_host = host;
    if (rc == 0 && !device)
        rc = cuda_alloc(d, 2 * (size_t)PIECE, "staging of weights", &device, err);
    d->upload_device = device;
    for (int i = 0; i < 2 && rc == 0; i++)
        if (!d->upload_done[i])
            rc = cuda_check(cudaEventCreateWithFlags(&d->upload_done[i], cudaEventDisableTiming), "event", err);
    return rc;
}

/* Rows [first, first + count), counted over all matrices of a stack, into staging, one array behind the other. */
static void piece_fill(const struct weight_src *s, const struct plan *p, uint32_t first, uint32_t count, unsigned char *to)
{
    const size_t bytes[] = {p->raw.row_bytes, p->scale_bytes, p->minimum_bytes};
    for (uint32_t done = 0; done < count;) {
        const struct weight_src *one = weight_src_expert(s, (first + done) / s->rows);
        uint32_t at = (first + done) % s->rows, n = s->rows - at < count - done ? s->rows - at : count - done;
        const unsigned char *arrays[] = {one->data, one->scales, one->biases};
        unsigned char *base = to;
        for (uint32_t r = 0; p->converted && r < n; r++)
            weight_src_row(one, at + r, (float *)(void *)(to + (size_t)(done + r) * p->raw.row_bytes));
        for (int i = 0; i < 3 && !p->converted; i++) {
            if (bytes[i])
                memcpy(base + done * bytes[i], arrays[i] + at * bytes[i], n * bytes[i]);
            base += count * bytes[i];
        }
        done += n;
    }
}

static int launch_now(struct device *d, enum cuda_weight_kernel k, uint32_t blocks, uint32_t threads, const struct cuda_p_repack *p, struct err *err)
{
    void *args[1] = {(void *)(uintptr_t)p};
    dim3 grid = {blocks, 1, 1}, block = {threads, 1, 1};
    return cuda_check(cudaLaunchKernel(cuda_kernels_weight[k], grid, block, args, 0, d->stream), "packing", err);
}

static int piece_pack(struct device *d, struct weight *w, const struct cuda_raw *raw, uint32_t first, uint32_t count, struct err *err)
{
    struct cuda_p_repack p = {.raw = *raw, .kind = w->kind, .first = first, .rows = count, .units = w->units, .tile_bytes = w->tile_bytes,
                              .planes = w->planes, .row_scale = w->row_scale, .bad = d->failed + 1, .number = d->weight_number};
    uint64_t threads = (uint64_t)(count + CUDA_TILE - 1) / CUDA_TILE * w->units * 32;
    int rc = launch_now(d, CUDA_K_ROW_SCALE, count, 256, &p, err); /* finds scales that are not finite, too */
    return rc || !w->planes ? rc : launch_now(d, CUDA_K_REPACK, (uint32_t)((threads + 255) / 256), 256, &p, err);
}

static void raw_place(struct cuda_raw *raw, const struct plan *p, unsigned char *at, uint32_t rows)
{
    raw->data = at;
    raw->scales = at + rows * p->raw.row_bytes;
    raw->biases = raw->scales + rows * p->scale_bytes;
}

/* A piece whose arrays lie one behind the other in staging, to the same arrays of the whole weight. */
static int piece_keep(struct device *d, const struct weight *w, const struct plan *p, const struct cuda_raw *from, uint32_t first,
                      uint32_t count, struct err *err)
{
    const void *src[] = {from->data, from->scales, from->biases};
    const uint8_t *dst[] = {w->raw.data, w->raw.scales, w->raw.biases};
    const size_t bytes[] = {p->raw.row_bytes, p->scale_bytes, p->minimum_bytes};
    int rc = 0;
    for (int i = 0; i < 3 && rc == 0; i++)
        if (bytes[i])
            rc = cuda_check(cudaMemcpyAsync((void *)(uintptr_t)(dst[i] + first * bytes[i]), src[i], count * bytes[i], cudaMemcpyDefault,
                                            d->stream), "weights", err);
    return rc;
}

static int weight_up(struct device *d, struct weight *w, const struct weight_src *s, const struct plan *p, struct err *err)
{
    size_t per = row_total(p), fit = PIECE / per / CUDA_TILE * CUDA_TILE;
    if (fit == 0)
        return err_set(err, ERR_LIMIT, "cuda: tensor '%s': a row of %zu bytes is too long", s->name, per);
    int rc = 0;
    for (uint32_t first = 0; first < p->rows && rc == 0;) {
        uint32_t count = p->rows - first < fit ? p->rows - first : (uint32_t)fit, turn = d->upload_turn++ % 2;
        unsigned char *host = d->upload_host + (size_t)turn * PIECE, *device = d->upload_device + (size_t)turn * PIECE;
        struct cuda_raw raw = p->raw;
        raw_place(&raw, p, device, count);
        rc = cuda_check(cudaEventSynchronize(d->upload_done[turn]), "weights", err);
        if (rc)
            return rc;
        piece_fill(s, p, first, count, host);
        rc = cuda_check(cudaMemcpyAsync(device, host, count * per, cudaMemcpyHostToDevice, d->stream), "weights", err);
        if (rc == 0 && w->raw.data)
            rc = piece_keep(d, w, p, &raw, first, count, err);
        if (rc == 0)
            rc = piece_pack(d, w, &raw, first, count, err);
        if (rc == 0)
            rc = cuda_check(cudaEventRecord(d->upload_done[turn], d->stream), "event", err);
        first += count;
    }
    return rc;
}

static int memory_take(struct device *d, const struct weight *w, size_t size_bytes, void **out, struct err *err)
{
    return w->away ? cuda_alloc_away(size_bytes, "weights", out, err) : cuda_alloc(d, size_bytes, "weights", out, err);
}

static void memory_drop(struct device *d, const struct weight *w, void *p, size_t size_bytes)
{
    if (w->away)
        cudaFreeHost(p);
    else
        cuda_release(d, p, size_bytes);
}

static int weight_memory(struct device *d, struct weight *w, const struct plan *p, unsigned use, struct err *err)
{
    void *planes = NULL;
    int rc = 0;
    if (use & WEIGHT_LINEAR) {
        size_t bytes = (size_t)w->tiles * w->tile_bytes, scales = (size_t)w->tiles * CUDA_TILE * sizeof(float);
        rc = memory_take(d, w, bytes + scales, &planes, err);
        if (rc)
            return rc;
        w->planes_bytes = bytes + scales;
        w->planes = planes;
        w->row_scale = (float *)(void *)(w->planes + bytes);
    }
    if (use & WEIGHT_EMBED) {
        size_t bytes = (p->rows * row_total(p) + 15) / 16 * 16;
        rc = memory_take(d, w, bytes + (size_t)w->tiles * CUDA_TILE * sizeof(float), &w->raw_memory, err);
        if (rc)
            return rc;
        w->raw_bytes = bytes + (size_t)w->tiles * CUDA_TILE * sizeof(float);
        w->raw = p->raw;
        raw_place(&w->raw, p, w->raw_memory, p->rows);
        if (!w->row_scale)
            w->row_scale = (float *)(void *)((unsigned char *)w->raw_memory + bytes);
    }
    return rc;
}

int cuda_weight_prepare(struct device *d, const struct weight_src *src, unsigned use, struct weight **out, struct err *err)
{
    struct plan p;
    *out = NULL;
    cuda_enter(d);
    int rc = plan_make(src, &p, err);
    if (rc)
        return rc;
    size_t name = strlen(src->name) + 1;
    struct weight *w = mem_try_zero(1, sizeof *w + name);
    if (!w)
        return err_nomem(err, "cuda: weight", sizeof *w + name);
    memcpy(w->name, src->name, name);
    w->head = (struct weight_head){src->type, src->rows, src->cols, w->name, src->n_experts};
    w->away = (use & WEIGHT_AWAY) != 0;
    w->kind = p.kind, w->units = p.units, w->tiles = p.tiles, w->tile_bytes = p.tile_bytes;
    d->weight_number++;
    memcpy(d->weight_names[d->weight_number % 64], src->name, name < 127 ? name : 127);
    if (p.converted)
        log_put(LOG_NOTICE, "cuda: tensor '%s': %s is not computed packed here, it is held as F16", src->name, dtype_name(src->type));
    rc = upload_open(d, err);
    if (rc == 0)
        rc = weight_memory(d, w, &p, use, err);
    if (rc == 0)
        rc = weight_up(d, w, src, &p, err);
    if (rc) {
        cuda_weight_free(d, w);
        return rc;
    }
    *out = w;
    return 0;
}

void cuda_weight_free(struct device *d, struct weight *w)
{
    if (!w)
        return;
    cuda_finish(d, NULL);
    memory_drop(d, w, w->planes, w->planes_bytes);
    memory_drop(d, w, w->raw_memory, w->raw_bytes);
    mem_free(w);
}
