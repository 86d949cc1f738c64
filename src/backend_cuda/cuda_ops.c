/* backend_cuda/cuda_ops.c - ops that work row by row, and linear: parameters into launches. */
#include "backend_cuda/cuda_int.h"

enum { WISE_THREADS = 256, ROW_THREADS = 256 };

static uint32_t blocks(uint64_t n, uint32_t per)
{
    return (uint32_t)((n + per - 1) / per);
}

static int rows_launch(struct device *d, enum cuda_rows_kernel k, uint32_t x, uint32_t y, uint32_t block, uint32_t smem, const void *p, size_t n)
{
    return cuda_launch(d, cuda_kernels_rows[k], x, y, 1, block, smem, p, n);
}

int cuda_op_embed(struct device *d, const struct op_embed *op)
{
    const struct weight *w = op->w;
    if (!w->raw.data)
        return ERR_INTERNAL;
    struct cuda_p_embed p = {.raw = w->raw, .ids = op->ids, .y = op->y.data, .rows = op->y.rows, .stride = op->y.stride, .vocab = w->head.rows,
                             .scale = op->scale, .failed = d->failed};
    return rows_launch(d, CUDA_K_EMBED, blocks(op->y.cols, WISE_THREADS), op->y.rows, WISE_THREADS, 0, &p, sizeof p);
}

/* ---- linear ---- */

/* x, normed when norm_w is there, to what linear reads; `y`: where the normed rows go too. */
static int pack(struct device *d, const struct tensor *x, const float *norm_w, float eps, const struct tensor *y)
{
    uint32_t units = cuda_units(x->cols);
    if (x->rows > d->reserved.rows_max || units > cuda_units(d->reserved.cols_max))
        return ERR_INTERNAL;
    struct cuda_p_pack p = {.x = x->data, .w = norm_w, .y = y ? y->data : NULL, .packed = d->packed, .row_scale = d->packed_scale,
                            .rows = x->rows, .cols = x->cols, .stride = x->stride, .y_stride = y ? y->stride : 0, .units = units, .eps = eps};
    return rows_launch(d, CUDA_K_PACK, x->rows, 1, ROW_THREADS, units * CUDA_UNIT * sizeof(float), &p, sizeof p);
}

static void part_set(struct cuda_p_linear *p, const struct weight *w, const float *bias, const struct tensor *y)
{
    struct cuda_linear_part *part = &p->part[p->part_count++];
    *part = (struct cuda_linear_part){.planes = w->planes, .row_scale = w->row_scale, .bias = bias, .y = y->data, .rows = w->head.rows,
                                      .tile_first = p->tiles, .y_stride = y->stride};
    p->tile_bytes = w->tile_bytes;
    p->units = w->units;
    p->tiles += w->tiles;
}

static int linear_launch(struct device *d, enum cuda_kind kind, struct cuda_p_linear *p)
{
    uint32_t width = p->rows <= 8 ? 0 : p->rows <= 16 ? 1 : 2, at_once = 8u << width;
    uint32_t segments = blocks(p->units, cuda_segment_units(p->units));
    uint32_t smem = segments * CUDA_TILE * at_once * sizeof(float) * (p->pair ? 2 : 1);
    p->x = d->packed;
    p->x_scale = d->packed_scale;
    return cuda_launch(d, cuda_kernels_linear[kind][width], blocks(p->rows, at_once), p->pair ? p->tiles / 2 : p->tiles, 1, 32 * segments, smem, p,
                       sizeof *p);
}

int cuda_op_linear(struct device *d, const struct op_linear *op)
{
    struct cuda_p_linear p = {.rows = op->x.rows, .alpha = op->alpha, .add = op->add};
    if (!op->w->planes)
        return ERR_INTERNAL;
    int rc = pack(d, &op->x, NULL, 0, NULL);
    part_set(&p, op->w, op->bias, &op->y);
    return rc ? rc : linear_launch(d, op->w->kind, &p);
}

/* Weights of one kind share a launch. */
int cuda_op_norm_linear(struct device *d, const struct op_norm_linear *op)
{
    bool done[NORM_INPUT_MAX] = {false};
    int rc = pack(d, &op->x, op->norm_w, op->eps, NULL);
    for (uint32_t i = 0; i < op->n && rc == 0; i++) {
        struct cuda_p_linear p = {.rows = op->x.rows, .alpha = 1};
        for (uint32_t j = i; j < op->n; j++)
            if (!done[j] && op->w[j]->kind == op->w[i]->kind) {
                done[j] = true;
                part_set(&p, op->w[j], op->bias[j], &op->y[j]);
            }
        rc = p.part_count ? linear_launch(d, op->w[i]->kind, &p) : 0;
    }
    return rc;
}

int cuda_op_norm_gated(struct device *d, const struct op_norm_gated *op)
{
    struct cuda_p_linear p = {.rows = op->x.rows, .alpha = 1, .act = op->act};
    int rc = pack(d, &op->x, op->norm_w, op->eps, NULL);
    if (rc)
        return rc;
    if (op->gate->kind == op->up->kind) {
        part_set(&p, op->gate, NULL, &op->y);
        part_set(&p, op->up, NULL, &op->y);
        p.part[1].tile_first = 0;
        p.pair = 1;
        return linear_launch(d, op->gate->kind, &p);
    }
    struct cuda_p_linear up = p;
    part_set(&p, op->gate, NULL, &op->scratch_gate);
    part_set(&up, op->up, NULL, &op->scratch_up);
    rc = linear_launch(d, op->gate->kind, &p);
    if (rc == 0)
        rc = linear_launch(d, op->up->kind, &up);
    struct op_gated gated = {.gate = op->scratch_gate, .up = op->scratch_up, .y = op->y, .act = op->act};
    return rc ? rc : cuda_op_gated(d, &gated);
}

/* ---- rows ---- */

int cuda_op_norm(struct device *d, const struct op_norm *op)
{
    struct cuda_p_norm p = {.x = op->x.data, .w = op->w, .y = op->y.data, .rows = op->x.rows, .groups = op->x.cols / op->dim, .dim = op->dim,
                            .x_stride = op->x.stride, .y_stride = op->y.stride, .add = op->add, .eps = op->eps, .scale = op->scale};
    return rows_launch(d, CUDA_K_NORM, p.rows * p.groups, 1, ROW_THREADS, 0, &p, sizeof p);
}

int cuda_op_rope_table(struct device *d, const struct op_rope_table *op)
{
    struct cuda_p_rope_table p = {.pos = op->pos, .inv_freq = op->inv_freq, .table = op->table.data, .rows = op->table.rows, .n = op->n,
                                  .stride = op->table.stride, .mscale = op->mscale};
    return rows_launch(d, CUDA_K_ROPE_TABLE, blocks((uint64_t)p.rows * p.n, WISE_THREADS), 1, WISE_THREADS, 0, &p, sizeof p);
}

int cuda_op_rope(struct device *d, const struct op_rope *op)
{
    struct cuda_p_rope p = {.x = op->x.data, .table = op->table.data, .rows = op->x.rows, .heads = op->n_heads, .head_dim = op->head_dim,
                            .n = op->table.cols / 2, .stride = op->x.stride, .table_stride = op->table.stride,
                            .adjacent = op->pairing == ROPE_ADJACENT};
    uint64_t pairs = (uint64_t)p.rows * p.heads * p.n;
    return pairs ? rows_launch(d, CUDA_K_ROPE, blocks(pairs, WISE_THREADS), 1, WISE_THREADS, 0, &p, sizeof p) : 0;
}

static int wise_launch(struct device *d, struct cuda_p_wise *p)
{
    p->failed = d->failed;
    return p->cols ? rows_launch(d, CUDA_K_WISE, blocks(p->cols, WISE_THREADS), p->rows, WISE_THREADS, 0, p, sizeof *p) : 0;
}

int cuda_op_gated(struct device *d, const struct op_gated *op)
{
    struct cuda_p_wise p = {.a = op->gate.data, .b = op->up.data, .y = op->y.data, .rows = op->y.rows, .cols = op->y.cols,
                            .a_stride = op->gate.stride, .b_stride = op->up.stride, .y_stride = op->y.stride,
                            .what = CUDA_WISE_GATED + (uint32_t)op->act};
    return wise_launch(d, &p);
}

int cuda_op_add(struct device *d, const struct op_add *op)
{
    struct cuda_p_wise p = {.a = op->x.data, .y = op->y.data, .rows = op->y.rows, .cols = op->y.cols, .a_stride = op->x.stride,
                            .y_stride = op->y.stride, .what = CUDA_WISE_ADD, .s = op->x_scale, .t = op->y_scale};
    return wise_launch(d, &p);
}

int cuda_op_softcap(struct device *d, const struct op_softcap *op)
{
    struct cuda_p_wise p = {.a = op->x.data, .y = op->x.data, .rows = op->x.rows, .cols = op->x.cols, .a_stride = op->x.stride,
                            .y_stride = op->x.stride, .what = CUDA_WISE_SOFTCAP, .s = op->cap};
    return wise_launch(d, &p);
}

int cuda_op_gather(struct device *d, const struct op_gather *op)
{
    struct cuda_p_wise p = {.a = op->x.data, .y = op->y.data, .index = op->rows, .rows = op->y.rows, .cols = op->y.cols,
                            .a_stride = op->x.stride, .y_stride = op->y.stride, .what = CUDA_WISE_GATHER, .a_rows = op->x.rows};
    return wise_launch(d, &p);
}
