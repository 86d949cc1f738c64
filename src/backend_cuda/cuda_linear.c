/* backend_cuda/cuda_linear.c - linear in its forms: one row, up to 32 rows at a time, 128 rows at a time, a matrix for each row.
 *
 * One row goes to its kernel as it is; for the others x is packed first, in fragments of 8 rows or blocks of 128.
 * A weight that stays in the host's memory is read from there by kernels that read it once; for more rows it is brought near first. */
#include "backend_cuda/cuda_int.h"

enum { FEW_ROWS = 32 /* that are read by one pass over the weights */ };
enum form { FORM_NONE, FORM_ROW, FORM_FRAGMENTS, FORM_TALL };

/* x of an op, and how it lies packed */
struct input {
    const struct tensor *x;
    const float *norm_w; /* NULL: no norm before */
    float eps;
    enum form packed;
};

static uint32_t blocks(uint64_t n, uint32_t per)
{
    return (uint32_t)((n + per - 1) / per);
}

/* x, normed when there is a norm, to what linear reads. */
static int pack(struct device *d, const struct input *in, bool tall)
{
    const struct tensor *x = in->x;
    uint32_t units = cuda_units(x->cols), whole = tall ? CUDA_TALL_ROWS : 8;
    if ((uint64_t)blocks(x->rows, whole) * whole * units * CUDA_UNIT * sizeof *d->packed > d->packed_bytes || x->rows > d->packed_rows)
        return ERR_INTERNAL;
    struct cuda_p_pack p = {.x = x->data, .w = in->norm_w, .packed = d->packed, .row_scale = d->packed_scale, .rows = x->rows, .cols = x->cols,
                            .stride = x->stride, .units = units, .eps = in->eps, .tall = tall, .heads = 1};
    return cuda_launch(d, cuda_kernel_pack, x->rows, 1, 1, CUDA_PACK_THREADS, units * CUDA_UNIT * sizeof(float), &p, sizeof p);
}

/* Where the kernel finds the weight: *used of what is near is taken by the op already.  Of a stack each row reads one matrix. */
static int bring_near(struct device *d, const struct weight *w, uint32_t rows, size_t *used, const uint8_t **planes)
{
    *planes = w->planes;
    if (!w->away || rows <= (w->head.n_experts ? w->head.n_experts : FEW_ROWS))
        return 0;
    if (w->planes_bytes > d->near_bytes - *used)
        return ERR_INTERNAL;
    unsigned char *to = d->near + *used;
    *used += (w->planes_bytes + 255) / 256 * 256;
    *used = *used < d->near_bytes ? *used : d->near_bytes;
    *planes = to;
    return cuda_copy(d, to, w->planes, w->planes_bytes);
}

static int part_set(struct device *d, struct cuda_p_linear *p, const struct weight *w, const float *bias, const struct tensor *y, size_t *near)
{
    const uint8_t *planes;
    int rc = bring_near(d, w, p->rows, near, &planes);
    if (rc)
        return rc;
    struct cuda_linear_part *part = &p->part[p->part_count++];
    const uint8_t *scales = planes + ((const uint8_t *)w->row_scale - w->planes);
    *part = (struct cuda_linear_part){.planes = planes, .row_scale = (const float *)(const void *)scales, .bias = bias, .y = y->data,
                                      .rows = w->head.rows, .tile_first = p->tiles, .y_stride = y->stride};
    p->tile_bytes = w->tile_bytes;
    p->units = w->units;
    p->tiles += w->tiles;
    return 0;
}

/* The kernel ahead has a block on every multiprocessor, each until the next kernel's blocks have their places.  What waits is launched first. */
static bool spread_ahead(const struct device *d)
{
    if (d->entry_count == 0 || d->pending || cuda_held(d))
        return false;
    const struct cuda_entry *e = &d->entries[d->entry_count - 1];
    bool row = e->kernel && e->kernel == cuda_kernel_attend_row;
    for (int k = 0; k < CUDA_KIND_COUNT; k++)
        row |= e->kernel && e->kernel == cuda_kernels_row[k];
    return row && e->grid[0] == d->workers;
}

/* Rows that k_row.cu reads: in pairs of columns, with a norm in registers. */
static bool row_shaped(const struct input *in)
{
    return ((uintptr_t)in->x->data | (uintptr_t)in->norm_w | in->x->cols * sizeof(float)) % 8 == 0 && (!in->norm_w || in->x->cols <= CUDA_ROW_NORM);
}

static int row_launch(struct device *d, enum cuda_kind kind, struct cuda_p_linear *p, struct input *in, uint32_t grid, uint32_t smem)
{
    p->raw = in->x->data;
    in->packed = FORM_ROW; /* as it is: the next of these weights need not wait for the first */
    return cuda_launch(d, cuda_kernels_row[kind], grid, 1, 1, CUDA_ROW_THREADS, smem, p, sizeof *p);
}

static int tall_launch(struct device *d, enum cuda_kind kind, const struct cuda_p_linear *p)
{
    const struct cuda_tall *k = cuda_kernels_tall[kind];
    uint32_t rows = blocks(p->rows, CUDA_TALL_ROWS), most = d->workers / CUDA_TALL_CLUSTER;
    if (k[1].kernel && 2ull * blocks(p->tiles, CUDA_TALL_CLUSTER * k->tiles) * rows <= most) /* weights come to more multiprocessors at once */
        k++;
    uint64_t all = (uint64_t)blocks(p->tiles, CUDA_TALL_CLUSTER * k->tiles) * rows;
    return cuda_launch(d, k->kernel, (uint32_t)(all < most ? all : most) * CUDA_TALL_CLUSTER, 1, 1, CUDA_TALL_THREADS, k->smem, p, sizeof *p);
}

static int fragments_launch(struct device *d, enum cuda_kind kind, const struct cuda_p_linear *p)
{
    uint32_t width = p->rows <= 8 ? 0 : p->rows <= 16 ? 1 : 2, at_once = 8u << width;
    uint32_t segments = blocks(p->units, cuda_segment_units(p->units));
    uint32_t smem = segments * CUDA_TILE * at_once * sizeof(float) * (p->pair ? 2 : 1);
    return cuda_launch(d, cuda_kernels_linear[kind][width], blocks(p->rows, at_once), p->pair ? p->tiles / 2 : p->tiles, 1, 32 * segments, smem, p,
                       sizeof *p);
}

/* From how many rows on 128 are computed at a time: reading x again for each tile costs more than blocks that are mostly empty, the sooner the more tiles there
 * are for the multiprocessors. */
static uint32_t tall_from(const struct device *d, uint32_t tiles)
{
    return tiles >= 6 * d->workers ? 17 : tiles >= 2 * d->workers ? FEW_ROWS + 1 : 48;
}

static int linear_launch(struct device *d, enum cuda_kind kind, struct cuda_p_linear *p, struct input *in)
{
    uint32_t smem = 0, grid = 0;
    p->norm_w = in->norm_w, p->eps = in->eps, p->cols = in->x->cols, p->beside = in->packed == FORM_ROW;
    if (d->wgmma && p->rows == 1 && row_shaped(in))
        cuda_row_form(kind, p, d->workers, spread_ahead(d), &grid, &smem);
    if (smem && smem <= d->smem_max)
        return row_launch(d, kind, p, in, grid, smem);
    enum form form = d->wgmma && p->rows >= tall_from(d, p->tiles) && cuda_kernels_tall[kind][0].kernel ? FORM_TALL : FORM_FRAGMENTS;
    int rc = in->packed == form ? 0 : pack(d, in, form == FORM_TALL);
    in->packed = form;
    p->x = d->packed;
    p->x_scale = d->packed_scale;
    if (rc || form == FORM_TALL)
        return rc ? rc : tall_launch(d, kind, p);
    return fragments_launch(d, kind, p);
}

int cuda_op_linear(struct device *d, const struct op_linear *op)
{
    struct cuda_p_linear p = {.rows = op->x.rows, .alpha = op->alpha, .add = op->add};
    struct input in = {.x = &op->x};
    size_t near = 0;
    if (!op->w->planes)
        return ERR_INTERNAL;
    if (cuda_expert_takes_linear(d, op) || cuda_router_holds(d, op))
        return 0;
    int rc = part_set(d, &p, op->w, op->bias, &op->y, &near);
    return rc ? rc : linear_launch(d, op->w->kind, &p, &in);
}

/* Weights of one kind share a launch. */
int cuda_op_norm_linear(struct device *d, const struct op_norm_linear *op)
{
    bool done[NORM_INPUT_MAX] = {false};
    struct input in = {.x = &op->x, .norm_w = op->norm_w, .eps = op->eps};
    int rc = 0;
    for (uint32_t i = 0; i < op->n && rc == 0; i++) {
        struct cuda_p_linear p = {.rows = op->x.rows, .alpha = 1};
        size_t near = 0;
        for (uint32_t j = i; j < op->n && rc == 0; j++)
            if (!done[j] && op->w[j]->kind == op->w[i]->kind) {
                done[j] = true;
                rc = part_set(d, &p, op->w[j], op->bias[j], &op->y[j], &near);
            }
        rc = rc || !p.part_count ? rc : linear_launch(d, op->w[i]->kind, &p, &in);
    }
    return rc;
}

int cuda_op_norm_gated(struct device *d, const struct op_norm_gated *op)
{
    struct cuda_p_linear p = {.rows = op->x.rows, .alpha = 1, .act = op->act};
    struct input in = {.x = &op->x, .norm_w = op->norm_w, .eps = op->eps};
    size_t near = 0;
    if (cuda_expert_takes_gated(d, op))
        return 0;
    if (op->gate->kind == op->up->kind) {
        int rc = part_set(d, &p, op->gate, NULL, &op->y, &near);
        rc = rc ? rc : part_set(d, &p, op->up, NULL, &op->y, &near);
        p.part[1].tile_first = 0;
        p.pair = 1;
        return rc ? rc : linear_launch(d, op->gate->kind, &p, &in);
    }
    struct cuda_p_linear up = p;
    int rc = part_set(d, &p, op->gate, NULL, &op->scratch_gate, &near);
    rc = rc ? rc : part_set(d, &up, op->up, NULL, &op->scratch_up, &near);
    rc = rc ? rc : linear_launch(d, op->gate->kind, &p, &in);
    rc = rc ? rc : linear_launch(d, op->up->kind, &up, &in);
    struct op_gated gated = {.gate = op->scratch_gate, .up = op->scratch_up, .y = op->y, .act = op->act};
    return rc ? rc : cuda_op_gated(d, &gated);
}

/* ---- a matrix for each row ---- */

static int own_launch(struct device *d, enum cuda_kind kind, struct cuda_p_linear *p)
{
    uint32_t segments = blocks(p->units, cuda_segment_units(p->units)), tiles = blocks(p->each, CUDA_TILE) + (p->each % CUDA_TILE != 0);
    p->x = d->packed;
    p->x_scale = d->packed_scale;
    p->failed = d->failed;
    return cuda_launch(d, cuda_kernels_linear[kind][3], p->rows, tiles, 1, 32 * segments, segments * CUDA_TILE * sizeof(float) * (p->pair ? 2 : 1), p,
                       sizeof *p);
}

int cuda_linear_pack(struct device *d, const struct tensor *x)
{
    struct input in = {.x = x};
    return pack(d, &in, false);
}

int cuda_linear_part(struct device *d, struct cuda_p_linear *p, const struct weight *w, const float *bias, const struct tensor *y, size_t *near)
{
    return part_set(d, p, w, bias, y, near);
}

int cuda_linear_own(struct device *d, enum cuda_kind kind, struct cuda_p_linear *p)
{
    return own_launch(d, kind, p);
}

/* As many rows at a time as the packed activations have room for. */
int cuda_op_linear_heads(struct device *d, const struct op_linear_heads *op)
{
    uint32_t in = op->w->head.cols, out = op->w->head.rows / op->n_heads, units = cuda_units(in);
    uint64_t fit = d->packed_bytes / (units * CUDA_UNIT * sizeof *d->packed) / 8 * 8;
    fit = (fit < d->packed_rows ? fit : d->packed_rows) / op->n_heads;
    int rc = fit ? 0 : ERR_INTERNAL;
    for (uint32_t first = 0; first < op->x.rows && rc == 0; first += (uint32_t)fit) {
        uint32_t n = op->x.rows - first < fit ? op->x.rows - first : (uint32_t)fit;
        struct tensor x = tensor_rows(op->x, first, n), y = tensor_rows(op->y, first, n);
        struct cuda_p_pack pack_p = {.x = x.data, .y = y.data, .packed = d->packed, .row_scale = d->packed_scale, .rows = n * op->n_heads,
                                     .cols = in, .stride = x.stride, .y_stride = y.stride, .units = units, .heads = op->n_heads,
                                     .x_step = in + op->tail, .tail = op->tail, .y_step = out + op->tail, .y_out = out};
        struct cuda_p_linear p = {.rows = n * op->n_heads, .alpha = 1, .each = out, .x_share = 1, .heads = op->n_heads,
                                  .y_step = out + op->tail, .matrices = op->n_heads};
        size_t near = 0;
        rc = part_set(d, &p, op->w, NULL, &y, &near);
        rc = rc ? rc : cuda_launch(d, cuda_kernel_pack, pack_p.rows, 1, 1, CUDA_PACK_THREADS, units * CUDA_UNIT * sizeof(float), &pack_p, sizeof pack_p);
        if (rc == 0)
            rc = own_launch(d, op->w->kind, &p);
    }
    return rc;
}
