/* backend_cuda/cuda_ops.c - ops that work row by row, and linear: parameters into launches. */
#include "backend_cuda/cuda_int.h"

enum { WISE_THREADS = 256, ROW_THREADS = 1024 };

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
                             .wrap = op->wrap, .scale = op->scale, .failed = d->failed};
    return cuda_launch(d, cuda_kernels_weight[CUDA_K_EMBED], blocks(op->y.cols, WISE_THREADS), op->y.rows, 1, WISE_THREADS, 0, &p, sizeof p);
}

/* ---- linear ---- */

enum { TALL_ROWS = 48 }; /* from here on 128 rows at a time */

/* x, normed when norm_w is there, to what linear reads. */
static int pack(struct device *d, const struct tensor *x, const float *norm_w, float eps, bool tall)
{
    uint32_t units = cuda_units(x->cols);
    if ((x->rows + 7ull) / 8 * 8 * units * CUDA_UNIT * sizeof *d->packed > d->packed_bytes || x->rows > d->packed_rows)
        return ERR_INTERNAL;
    struct cuda_p_pack p = {.x = x->data, .w = norm_w, .packed = d->packed, .row_scale = d->packed_scale, .rows = x->rows, .cols = x->cols,
                            .stride = x->stride, .units = units, .eps = eps, .tall = tall, .heads = 1};
    return rows_launch(d, CUDA_K_PACK, x->rows, 1, ROW_THREADS, units * CUDA_UNIT * sizeof(float), &p, sizeof p);
}

static bool is_tall(const struct device *d, uint32_t rows, enum cuda_kind kind)
{
    return d->wgmma && rows >= TALL_ROWS && cuda_kernels_tall[kind];
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
    if (is_tall(d, p->rows, kind)) {
        p->x = d->packed;
        p->x_scale = d->packed_scale;
        return cuda_launch(d, cuda_kernels_tall[kind], blocks(p->rows, 128), p->pair ? blocks(p->tiles / 2, 4) : blocks(p->tiles, 8), 1, 256,
                           cuda_tall_smem(), p, sizeof *p);
    }
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
    int rc = pack(d, &op->x, NULL, 0, is_tall(d, op->x.rows, op->w->kind));
    part_set(&p, op->w, op->bias, &op->y);
    return rc ? rc : linear_launch(d, op->w->kind, &p);
}

/* Weights of one kind share a launch; x is packed anew when the next kind reads it in the other form. */
int cuda_op_norm_linear(struct device *d, const struct op_norm_linear *op)
{
    bool done[NORM_INPUT_MAX] = {false}, packed = false, tall = false;
    int rc = 0;
    for (uint32_t i = 0; i < op->n && rc == 0; i++) {
        struct cuda_p_linear p = {.rows = op->x.rows, .alpha = 1};
        for (uint32_t j = i; j < op->n; j++)
            if (!done[j] && op->w[j]->kind == op->w[i]->kind) {
                done[j] = true;
                part_set(&p, op->w[j], op->bias[j], &op->y[j]);
            }
        if (p.part_count == 0)
            continue;
        if (!packed || tall != is_tall(d, op->x.rows, op->w[i]->kind)) {
            tall = is_tall(d, op->x.rows, op->w[i]->kind);
            packed = true;
            rc = pack(d, &op->x, op->norm_w, op->eps, tall);
        }
        rc = rc ? rc : linear_launch(d, op->w[i]->kind, &p);
    }
    return rc;
}

int cuda_op_norm_gated(struct device *d, const struct op_norm_gated *op)
{
    struct cuda_p_linear p = {.rows = op->x.rows, .alpha = 1, .act = op->act};
    int rc = pack(d, &op->x, op->norm_w, op->eps, is_tall(d, op->x.rows, op->gate->kind));
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
    if (rc == 0 && is_tall(d, op->x.rows, op->gate->kind) != is_tall(d, op->x.rows, op->up->kind))
        rc = pack(d, &op->x, op->norm_w, op->eps, is_tall(d, op->x.rows, op->up->kind));
    if (rc == 0)
        rc = linear_launch(d, op->up->kind, &up);
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

static struct cuda_p_linear own_params(const struct tensor *x, const struct tensor *y, const struct weight *w, const uint32_t *ids)
{
    return (struct cuda_p_linear){.rows = y->rows, .alpha = 1, .each = w->head.rows, .x_share = y->rows / x->rows, .heads = 1, .ids = ids,
                                  .matrices = w->head.n_experts};
}

int cuda_op_expert_linear(struct device *d, const struct op_expert_linear *op)
{
    struct cuda_p_linear p = own_params(&op->x, &op->y, op->w, op->ids);
    int rc = pack(d, &op->x, NULL, 0, false);
    part_set(&p, op->w, op->bias, &op->y);
    return rc ? rc : own_launch(d, op->w->kind, &p);
}

int cuda_op_expert_gated(struct device *d, const struct op_expert_gated *op)
{
    struct cuda_p_linear p = own_params(&op->x, &op->y, op->gate, op->ids), up = p;
    int rc = pack(d, &op->x, NULL, 0, false);
    if (rc)
        return rc;
    if (op->gate->kind == op->up->kind) {
        part_set(&p, op->gate, op->gate_bias, &op->y);
        part_set(&p, op->up, op->up_bias, &op->y);
        p.pair = 1;
        p.act = op->act;
        return own_launch(d, op->gate->kind, &p);
    }
    part_set(&p, op->gate, op->gate_bias, &op->scratch_gate);
    part_set(&up, op->up, op->up_bias, &op->scratch_up);
    rc = own_launch(d, op->gate->kind, &p);
    if (rc == 0)
        rc = own_launch(d, op->up->kind, &up);
    struct op_gated gated = {.gate = op->scratch_gate, .up = op->scratch_up, .y = op->y, .act = op->act};
    return rc ? rc : cuda_op_gated(d, &gated);
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
        part_set(&p, op->w, NULL, &y);
        rc = rows_launch(d, CUDA_K_PACK, pack_p.rows, 1, ROW_THREADS, units * CUDA_UNIT * sizeof(float), &pack_p, sizeof pack_p);
        if (rc == 0)
            rc = own_launch(d, op->w->kind, &p);
    }
    return rc;
}

int cuda_op_route(struct device *d, const struct op_route *op)
{
    struct cuda_p_route p = {.logits = op->logits.data, .bias = op->bias, .expert_scale = op->expert_scale, .ids = op->ids,
                             .weights = op->weights, .rows = op->logits.rows, .experts = op->logits.cols, .stride = op->logits.stride,
                             .score = op->score, .top = op->top, .groups = op->groups, .group_top = op->group_top,
                             .group_best = op->group_best, .normalise = op->normalise, .replay = op->replay, .scale = op->scale,
                             .failed = d->failed};
    return cuda_launch(d, cuda_kernel_route, p.rows, 1, 1, ROW_THREADS, p.experts * (2 * sizeof(float) + 1), &p, sizeof p);
}

/* ---- rows ---- */

int cuda_op_norm(struct device *d, const struct op_norm *op)
{
    struct cuda_p_norm p = {.x = op->x.data, .w = op->w, .y = op->y.data, .rows = op->x.rows, .groups = op->x.cols / op->dim, .dim = op->dim,
                            .x_stride = op->x.stride, .y_stride = op->y.stride, .add = op->add, .own = op->own, .centred = op->centred, .eps = op->eps,
                            .scale = op->scale};
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
    struct cuda_p_rope p = {.x = (float *)op->x.data + op->first, .table = op->table.data, .rows = op->x.rows, .heads = op->n_heads, .head_dim = op->head_dim,
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

int cuda_op_scale(struct device *d, const struct op_scale *op)
{
    struct cuda_p_wise p = {.a = op->x.data, .b = op->w, .y = op->x.data, .rows = op->x.rows, .cols = op->x.cols, .a_stride = op->x.stride,
                            .y_stride = op->x.stride, .what = CUDA_WISE_SCALE, .s = op->scale};
    return wise_launch(d, &p);
}

static struct cuda_rows rows_of(const struct tensor *t)
{
    return (struct cuda_rows){.data = t->data, .stride = t->stride};
}

int cuda_op_blend(struct device *d, const struct op_blend *op)
{
    uint32_t cols = op->y[0].cols;
    struct cuda_p_blend p = {.coef = op->coef.data, .coef_stride = op->coef.stride, .n = op->n, .m = op->m, .cols = cols, .shift = op->shift};
    for (uint32_t j = 0; j < op->n; j++)
        p.x[j] = rows_of(&op->x[j]);
    for (uint32_t i = 0; i < op->m; i++)
        p.base[i] = rows_of(&op->base[i]), p.y[i] = rows_of(&op->y[i]);
    return cols ? rows_launch(d, CUDA_K_BLEND, blocks(cols, WISE_THREADS), op->y[0].rows, WISE_THREADS, 0, &p, sizeof p) : 0;
}

int cuda_op_match(struct device *d, const struct op_match *op)
{
    struct cuda_p_level p = {.x = op->x.data, .y = op->y.data, .cols = op->x.cols, .x_stride = op->x.stride, .y_stride = op->y.stride, .s = op->least};
    return rows_launch(d, CUDA_K_MATCH, op->x.rows, 1, ROW_THREADS, 0, &p, sizeof p);
}

int cuda_op_sparsify(struct device *d, const struct op_sparsify *op)
{
    struct cuda_p_level p = {.y = op->x.data, .cols = op->x.cols, .y_stride = op->x.stride, .s = op->factor};
    return rows_launch(d, CUDA_K_SPARSIFY, op->x.rows, 1, ROW_THREADS, 0, &p, sizeof p);
}

int cuda_op_xielu(struct device *d, const struct op_xielu *op)
{
    struct cuda_p_wise p = {.a = op->x.data, .y = op->x.data, .rows = op->x.rows, .cols = op->x.cols, .a_stride = op->x.stride,
                            .y_stride = op->x.stride, .what = CUDA_WISE_XIELU, .s = op->alpha_p, .t = op->alpha_n, .u = op->beta, .v = op->eps};
    return wise_launch(d, &p);
}

int cuda_op_expert_sum(struct device *d, const struct op_expert_sum *op)
{
    struct cuda_p_wise p = {.a = op->x.data, .b = op->weights, .y = op->y.data, .rows = op->y.rows, .cols = op->y.cols,
                            .a_stride = op->x.stride, .y_stride = op->y.stride, .what = CUDA_WISE_SUM, .a_rows = op->x.rows,
                            .s = op->add ? 1.0f : 0.0f};
    return wise_launch(d, &p);
}
