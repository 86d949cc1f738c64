/* backend_cuda/cuda_ops.c - ops that work row by row: parameters into launches. */
#include "backend_cuda/cuda_int.h"
#include "backend_cuda/kernels_broad.h"
#include "backend_cuda/kernels_router.h"

enum { WISE_THREADS = 256, ROW_THREADS = 1024 };

static uint32_t blocks(uint64_t n, uint32_t per)
{
    return (uint32_t)((n + per - 1) / per);
}

static uint32_t grid_rows(uint32_t rows)
{
    return rows < CUDA_GRID_ROWS ? rows : CUDA_GRID_ROWS;
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
    return cuda_launch(d, cuda_kernels_weight[CUDA_K_EMBED], blocks(op->y.cols, WISE_THREADS), grid_rows(op->y.rows), 1, WISE_THREADS, 0, &p,
                       sizeof p);
}

/* ---- the router ---- */

/* Row `at` of the chain, which is new to it or not; CUDA_CHAIN_ROWS: there is no room. */
static uint32_t chain_row(struct cuda_p_chain *p, const float *at, uint32_t stride)
{
    for (uint32_t i = 0; i < p->rows; i++)
        if (p->row[i].at == at)
            return i;
    if (p->rows < CUDA_CHAIN_ROWS)
        p->row[p->rows++] = (struct cuda_chain_row){.at = (float *)at, .stride = stride};
    return p->row[p->rows - 1].at == at ? p->rows - 1 : CUDA_CHAIN_ROWS;
}

/* Steps that wait as a chain in shared memory, where few rows have them; false: there is no room. */
static bool chain_params(const struct device *d, struct cuda_p_chain *p)
{
    const struct cuda_p_row_steps *s = &d->steps;
    *p = (struct cuda_p_chain){.steps = s->count, .cols = s->cols};
    for (uint32_t i = 0; i < s->count; i++) {
        const struct cuda_row_step *t = &s->step[i];
        uint32_t x = t->x ? chain_row(p, t->x, t->x_stride) : 0, y = chain_row(p, t->y, t->y_stride);
        if (x == CUDA_CHAIN_ROWS || y == CUDA_CHAIN_ROWS)
            return false;
        p->row[x].read |= t->x && !p->row[x].written;
        p->row[y].read |= (!t->x || t->add) && !p->row[y].written;
        p->row[y].written = 1;
        p->step[i] = (struct cuda_chain_step){.w = t->w, .norm = t->x != NULL, .x = x, .y = y, .add = t->add, .centred = t->centred, .eps = t->eps, .scale = t->scale};
    }
    return d->wgmma && d->steps_rows <= d->workers && cuda_chain_smem(p) <= d->smem_max;
}

/* The steps that wait, and the product with what one of them gives; false: not in one launch. */
static bool router_params(const struct device *d, const struct op_linear *op, struct cuda_p_router *p)
{
    const struct weight *w = op->w;
    if (d->steps.count == 0 || d->steps_rows != 1 || w->kind != CUDA_KIND_F16 || w->away || op->x.rows != 1 || op->x.cols != d->steps.cols || op->add ||
        w->head.rows > CUDA_ROUTE_WARP_EXPERTS)
        return false;
    *p = (struct cuda_p_router){.planes = w->planes, .row_scale = w->row_scale, .bias = op->bias, .alpha = op->alpha, .y = op->y.data, .units = w->units,
                                .tiles = w->tiles, .tile_bytes = w->tile_bytes};
    bool fits = chain_params(d, &p->chain);
    while (p->from < p->chain.rows && !(p->chain.row[p->from].at == op->x.data && p->chain.row[p->from].written))
        p->from++;
    return fits && p->from < p->chain.rows && cuda_router_smem(p) <= d->smem_max;
}

/* It waits for the choice of experts. */
bool cuda_router_holds(struct device *d, const struct op_linear *op)
{
    struct cuda_p_router p;
    if (d->router_set || !router_params(d, op, &p))
        return false;
    d->router = *op;
    d->router_set = true;
    return true;
}

int cuda_router_launch(struct device *d)
{
    struct op_linear op = d->router;
    d->router_set = false; /* the launch asks for what waits */
    int rc = cuda_steps_launch(d);
    return rc ? rc : cuda_op_linear(d, &op);
}

static int router_launch(struct device *d, const struct cuda_p_route *route)
{
    struct cuda_p_router p;
    if (!router_params(d, &d->router, &p))
        return ERR_INTERNAL;
    p.route = *route;
    d->router_set = false;
    d->steps.count = 0;
    return cuda_launch(d, cuda_kernel_router(p.route.experts), CUDA_ROUTER_CLUSTER, 1, 1, CUDA_CHAIN_THREADS, cuda_router_smem(&p), &p, sizeof p);
}

int cuda_op_route(struct device *d, const struct op_route *op)
{
    struct cuda_p_route p = {.logits = op->logits.data, .bias = op->bias, .expert_scale = op->expert_scale, .ids = op->ids,
                             .weights = op->weights, .rows = op->logits.rows, .experts = op->logits.cols, .stride = op->logits.stride,
                             .score = op->score, .top = op->top, .groups = op->groups, .group_top = op->group_top,
                             .group_best = op->group_best, .normalise = op->normalise, .replay = op->replay, .scale = op->scale,
                             .failed = d->failed};
    bool warp = p.experts <= CUDA_ROUTE_WARP_EXPERTS && p.top <= CUDA_ROUTE_WARP_TOP && p.groups <= 1;
    if (warp && p.rows == 1 && d->router_set && d->router.y.data == p.logits && d->router.y.cols == p.experts)
        return router_launch(d, &p);
    if (warp) {
        uint32_t warps = p.rows < CUDA_ROUTE_WARPS ? p.rows : CUDA_ROUTE_WARPS;
        return cuda_launch(d, cuda_kernel_route_warp, blocks(p.rows, warps), 1, 1, 32 * warps, 0, &p, sizeof p);
    }
    return cuda_launch(d, cuda_kernel_route, p.rows, 1, 1, ROW_THREADS, p.experts * (2 * sizeof(float) + 1), &p, sizeof p);
}

/* ---- rows ---- */

int cuda_steps_launch(struct device *d)
{
    struct cuda_p_row_steps p = d->steps;
    struct cuda_p_chain chain;
    bool few = chain_params(d, &chain);
    d->steps.count = 0; /* the launch asks for what waits */
    if (few)
        return cuda_launch(d, cuda_kernel_chain, d->steps_rows, 1, 1, CUDA_CHAIN_THREADS, cuda_chain_smem(&chain), &chain, sizeof chain);
    return rows_launch(d, CUDA_K_ROW_STEPS, d->steps_rows, 1, ROW_THREADS, 0, &p, sizeof p);
}

/* Are both the same rows, or have nothing in common?  A step may then follow in the same block. */
static bool apart(const float *a, uint32_t a_stride, const float *b, uint32_t b_stride, uint32_t rows)
{
    if (a == b)
        return a_stride == b_stride;
    return !a || !b || a + (size_t)rows * a_stride <= b || b + (size_t)rows * b_stride <= a;
}

/* A step waits for others of the same rows, and goes with them in one launch. */
static int step_add(struct device *d, const struct cuda_row_step *s, uint32_t rows, uint32_t cols)
{
    bool joins = d->steps.count && !d->router_set && d->steps.count < CUDA_ROW_STEPS && d->steps_rows == rows && d->steps.cols == cols;
    for (uint32_t i = 0; joins && i < d->steps.count; i++) {
        const struct cuda_row_step *t = &d->steps.step[i];
        joins = apart(s->x, s->x_stride, t->y, t->y_stride, rows) && apart(s->y, s->y_stride, t->y, t->y_stride, rows) &&
                apart(s->y, s->y_stride, t->x, t->x_stride, rows);
    }
    int rc = joins ? 0 : cuda_held_emit(d);
    if (!joins) {
        d->steps = (struct cuda_p_row_steps){.cols = cols};
        d->steps_rows = rows;
    }
    d->steps.step[d->steps.count++] = *s;
    return rc;
}

int cuda_head_norm_launch(struct device *d)
{
    struct cuda_p_norm p = d->head_norm;
    d->head_norm_set = false;
    return rows_launch(d, CUDA_K_NORM, p.rows * p.groups, 1, ROW_THREADS, 0, &p, sizeof p);
}

int cuda_op_norm(struct device *d, const struct op_norm *op)
{
    if (op->dim == op->x.cols && op->x.rows) {
        struct cuda_row_step s = {.x = op->x.data, .w = op->w, .y = op->y.data, .x_stride = op->x.stride, .y_stride = op->y.stride, .add = op->add,
                                  .centred = op->centred, .eps = op->eps, .scale = op->scale};
        return step_add(d, &s, op->x.rows, op->x.cols);
    }
    struct cuda_p_norm p = {.x = op->x.data, .w = op->w, .y = op->y.data, .rows = op->x.rows, .groups = op->x.cols / op->dim, .dim = op->dim,
                            .x_stride = op->x.stride, .y_stride = op->y.stride, .add = op->add, .own = op->own, .centred = op->centred, .eps = op->eps,
                            .scale = op->scale};
    if (d->wgmma && p.rows == 1 && cuda_kernel_attend_broad(p.dim) && !p.add && !p.own && !p.centred) {
        int rc = cuda_held_emit(d);
        d->head_norm = p;
        d->head_norm_set = rc == 0;
        return rc;
    }
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
    return p->cols ? rows_launch(d, CUDA_K_WISE, blocks(p->cols, WISE_THREADS), grid_rows(p->rows), WISE_THREADS, 0, p, sizeof *p) : 0;
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
    if (d->steps.count && op->x.rows) {
        struct cuda_row_step s = {.y = op->x.data, .w = op->w, .y_stride = op->x.stride, .scale = op->scale};
        return step_add(d, &s, op->x.rows, op->x.cols);
    }
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
    struct cuda_p_blend p = {.coef = op->coef.data, .coef_stride = op->coef.stride, .n = op->n, .m = op->m, .cols = cols, .rows = op->y[0].rows,
                            .shift = op->shift};
    for (uint32_t j = 0; j < op->n; j++)
        p.x[j] = rows_of(&op->x[j]);
    for (uint32_t i = 0; i < op->m; i++)
        p.base[i] = rows_of(&op->base[i]), p.y[i] = rows_of(&op->y[i]);
    return cols ? rows_launch(d, CUDA_K_BLEND, blocks(cols, WISE_THREADS), grid_rows(p.rows), WISE_THREADS, 0, &p, sizeof p) : 0;
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
