/* backend_cuda/cuda_expert.c - experts: a few slots in one launch, many slots in groups of one matrix, or each slot for itself.
 *
 * The forms give the same bits: which one is taken follows from the number of slots and from what there is room for.  Which expert a slot takes is known on the
 * device only: launches are of as many blocks as there can be. */
#include "backend_cuda/cuda_int.h"
#include "backend_cuda/kernels_slots.h"

enum { GROUP_SLOTS = 48 /* from here on experts are read once for all their rows */, TALL_MEAN = 24 /* rows an expert, from here on 128 at a time */,
       GROUP_SMEM = 47 << 10 };
enum form { FORM_EACH, FORM_FRAGMENTS, FORM_TALL };

/* Slots in groups of one matrix: block_rows rows are multiplied at a time. */
struct grouping {
    enum form form;
    uint32_t width, block_rows, items; /* items: as many as there can be */
};

/* What experts are asked for: gate and up, or one product, or one whose slots are summed. */
struct ask {
    const struct tensor *x, *y;
    const struct weight *w[2];
    const float *bias[2];
    const uint32_t *ids;
    const float *weights; /* NULL: no sum */
    uint32_t parts, slots, act, add;
};

static uint32_t blocks(uint64_t n, uint32_t per)
{
    return (uint32_t)((n + per - 1) / per);
}

static uint32_t least(uint64_t a, uint64_t b)
{
    return (uint32_t)(a < b ? a : b);
}

/* ---- many slots ---- */

static struct grouping grouping_of(const struct device *d, const struct ask *a)
{
    const struct weight *w = a->w[0];
    const struct cuda_tall *tall = cuda_kernels_tall[w->kind]; /* the wide form */
    uint32_t experts = w->head.n_experts, mean = a->slots / experts;
    struct grouping g = {FORM_EACH, 0, 0, 0};
    if (a->slots < GROUP_SLOTS || w->head.rows % CUDA_TILE)
        return g;
    g.width = mean < 8 ? 0 : mean < 16 ? 1 : 2;
    g.block_rows = 8u << g.width;
    enum form form = d->wgmma && mean >= TALL_MEAN && tall->kernel ? FORM_TALL : FORM_FRAGMENTS;
    if (form == FORM_TALL)
        g.block_rows = CUDA_TALL_ROWS;
    g.items = least(a->slots, (uint64_t)a->slots / g.block_rows + experts);
    uint64_t rows = (uint64_t)g.items * g.block_rows, bytes = rows * cuda_units(a->x->cols) * CUDA_UNIT * sizeof *d->packed;
    if (rows <= d->packed_rows && bytes <= d->packed_bytes && a->slots <= d->slots_max && g.items <= d->group_items_max &&
        experts * 2 * sizeof(uint32_t) <= GROUP_SMEM)
        g.form = form;
    return g;
}

/* x to its packed rows: in groups, which are made first. */
static int group_pack(struct device *d, const struct grouping *g, const struct ask *a)
{
    const struct tensor *x = a->x;
    uint32_t experts = a->w[0]->head.n_experts, per = CUDA_PACK_SLOTS_THREADS / 32;
    struct cuda_p_group p = {.ids = a->ids, .order = d->order, .place = d->place, .groups = d->groups, .slots = a->slots, .experts = experts,
                             .block_rows = g->block_rows, .failed = d->failed};
    struct cuda_p_pack_slots pack_p = {.x = x->data, .place = d->place, .packed = d->packed, .row_scale = d->packed_scale, .rows = x->rows, .cols = x->cols,
                                       .stride = x->stride, .units = cuda_units(x->cols), .share = a->slots / x->rows, .tall = g->form == FORM_TALL};
    int rc = cuda_launch(d, cuda_kernel_group, 1, 1, 1, CUDA_GROUP_THREADS, experts * 2 * (uint32_t)sizeof(uint32_t), &p, sizeof p);
    return rc ? rc : cuda_launch(d, cuda_kernel_pack_slots, blocks(x->rows, per), 1, 1, CUDA_PACK_SLOTS_THREADS, 0, &pack_p, sizeof pack_p);
}

static int group_launch(struct device *d, enum cuda_kind kind, const struct grouping *g, struct cuda_p_linear *p)
{
    uint32_t segments = blocks(p->units, cuda_segment_units(p->units)), each = p->each / CUDA_TILE;
    p->groups = d->groups, p->order = d->order;
    p->x = d->packed, p->x_scale = d->packed_scale;
    p->tiles = each * p->part_count;
    if (g->form == FORM_TALL) {
        const struct cuda_tall *k = cuda_kernels_tall[kind];
        uint64_t all = (uint64_t)g->items * blocks(p->tiles, CUDA_TALL_CLUSTER * k->tiles);
        return cuda_launch(d, k->kernel, least(all, d->workers / CUDA_TALL_CLUSTER) * CUDA_TALL_CLUSTER, 1, 1, CUDA_TALL_THREADS, k->smem, p, sizeof *p);
    }
    return cuda_launch(d, cuda_kernels_linear[kind][g->width], g->items, each, 1, 32 * segments,
                       segments * CUDA_TILE * g->block_rows * (uint32_t)sizeof(float) * (p->pair ? 2 : 1), p, sizeof *p);
}

/* ---- a few slots ---- */

/* How they are launched; false: there is no room. */
static bool few_form(const struct device *d, enum cuda_kind kind, const struct cuda_p_expert *p, struct cuda_p_slots *out, uint32_t *grid, uint32_t *smem)
{
    *out = (struct cuda_p_slots){.p = *p};
    *grid = least(p->tiles, d->workers);
    *smem = cuda_slots_form(kind, out, *grid, d->smem_max);
    return *smem != 0;
}

static bool few_fits(const struct device *d, enum cuda_kind kind, const struct cuda_p_expert *p)
{
    struct cuda_p_slots form;
    uint32_t grid, smem;
    return few_form(d, kind, p, &form, &grid, &smem);
}

/* Rows that are read in pairs of columns. */
static bool in_pairs(const float *x, uint32_t stride, uint32_t cols)
{
    return ((uintptr_t)x | stride * sizeof *x | cols * sizeof *x) % 8 == 0;
}

/* False where the form is not for these. */
static bool few_params(const struct device *d, const struct ask *a, struct cuda_p_expert *p)
{
    const struct weight *w = a->w[0];
    uint32_t tiles = w->head.rows / CUDA_TILE, outer = a->weights ? a->y->rows : a->slots;
    if (a->slots >= GROUP_SLOTS || w->head.rows % CUDA_TILE || !in_pairs(a->x->data, a->x->stride, a->x->cols))
        return false;
    struct cuda_expert_job *q = &p->job[0];
    *p = (struct cuda_p_expert){.jobs = 1, .tiles = outer * tiles, .failed = d->failed};
    *q = (struct cuda_expert_job){.x = a->x->data, .y = a->y->data, .ids = a->ids, .weights = a->weights, .slots = a->slots, .x_rows = a->x->rows,
                                  .share = a->slots / a->x->rows, .x_stride = a->x->stride, .y_stride = a->y->stride, .cols = a->x->cols, .units = w->units,
                                  .tile_bytes = w->tile_bytes, .each = w->head.rows, .tiles = tiles, .matrices = w->head.n_experts,
                                  .parts = a->weights ? a->slots / a->y->rows : a->parts, .act = a->act, .add = a->add};
    for (uint32_t i = 0; i < a->parts; i++)
        q->planes[i] = a->w[i]->planes, q->row_scale[i] = a->w[i]->row_scale, q->bias[i] = a->bias[i];
    return few_fits(d, w->kind, p);
}

/* They wait: the op behind them may be the matrix beside them. */
static int few_hold(struct device *d, const struct ask *a, const struct cuda_p_expert *p)
{
    int rc = cuda_held_emit(d);
    d->expert = *p;
    d->expert_kind = a->w[0]->kind;
    d->expert_set = rc == 0;
    return rc;
}

int cuda_expert_launch(struct device *d)
{
    struct cuda_p_slots p;
    uint32_t grid, smem;
    d->expert_set = false; /* the launch asks for what waits */
    if (!few_form(d, d->expert_kind, &d->expert, &p, &grid, &smem))
        return ERR_INTERNAL;
    return cuda_launch(d, cuda_kernels_expert[d->expert_kind], grid, 1, 1, CUDA_EXPERT_THREADS, smem, &p, sizeof p);
}

static bool meet(const float *a, size_t a_count, const float *b, size_t b_count)
{
    return a < b + b_count && b < a + a_count;
}

/* One row's product with a matrix, which has nothing to do with what waits, joins it. */
static bool takes(struct device *d, enum cuda_kind kind, const struct tensor *x, const struct tensor *y, const struct cuda_expert_job *job)
{
    const struct cuda_expert_job *q = &d->expert.job[0];
    if (!d->expert_set || d->expert.jobs > 1 || kind != d->expert_kind || x->rows != 1 || !in_pairs(x->data, x->stride, x->cols) ||
        (job->norm_w && (!in_pairs(job->norm_w, 0, 0) || x->cols > CUDA_ROW_NORM)))
        return false;
    size_t in = (size_t)q->x_rows * q->x_stride, out = (size_t)d->expert.tiles / q->tiles * q->y_stride;
    if (meet(x->data, x->cols, q->y, out) || meet(y->data, y->cols, q->y, out) || meet(y->data, y->cols, q->x, in) || meet(y->data, y->cols, x->data, x->cols))
        return false;
    struct cuda_p_expert both = d->expert;
    both.job[1] = *q, both.job[0] = *job; /* its weights can be asked for before it is known which experts' are */
    both.job[1].tile_first = job->tiles;
    both.jobs = 2, both.tiles += job->tiles;
    if (!few_fits(d, kind, &both))
        return false;
    d->expert = both;
    return true;
}

static struct cuda_expert_job job_of(const struct tensor *x, const struct tensor *y, const struct weight *w)
{
    return (struct cuda_expert_job){.planes = {w->planes}, .row_scale = {w->row_scale}, .x = x->data, .y = y->data, .slots = 1, .x_rows = 1, .share = 1,
                                    .x_stride = x->stride, .y_stride = y->stride, .cols = x->cols, .units = w->units, .tile_bytes = w->tile_bytes,
                                    .each = w->head.rows, .tiles = w->tiles, .matrices = 1, .parts = 1};
}

bool cuda_expert_takes_linear(struct device *d, const struct op_linear *op)
{
    struct cuda_expert_job job = job_of(&op->x, &op->y, op->w);
    job.bias[0] = op->bias, job.add = op->add;
    return op->alpha == 1.0f && takes(d, op->w->kind, &op->x, &op->y, &job);
}

bool cuda_expert_takes_gated(struct device *d, const struct op_norm_gated *op)
{
    struct cuda_expert_job job = job_of(&op->x, &op->y, op->gate);
    job.planes[1] = op->up->planes, job.row_scale[1] = op->up->row_scale;
    job.parts = 2, job.act = op->act, job.norm_w = op->norm_w, job.eps = op->eps;
    return op->gate->kind == op->up->kind && takes(d, op->gate->kind, &op->x, &op->y, &job);
}

/* ---- the ops ---- */

static int products(struct device *d, const struct ask *a)
{
    struct cuda_p_expert few;
    if (few_params(d, a, &few))
        return few_hold(d, a, &few);
    struct cuda_p_linear p = {.rows = a->slots, .alpha = 1, .each = a->w[0]->head.rows, .x_share = a->slots / a->x->rows, .heads = 1, .ids = a->ids,
                              .matrices = a->w[0]->head.n_experts, .pair = a->parts == 2, .act = a->act};
    struct grouping g = grouping_of(d, a);
    size_t near = 0;
    int rc = g.form == FORM_EACH ? cuda_linear_pack(d, a->x) : group_pack(d, &g, a);
    for (uint32_t i = 0; i < a->parts && rc == 0; i++)
        rc = cuda_linear_part(d, &p, a->w[i], a->bias[i], a->y, &near);
    p.part[1].tile_first = 0;
    if (rc)
        return rc;
    return g.form == FORM_EACH ? cuda_linear_own(d, a->w[0]->kind, &p) : group_launch(d, a->w[0]->kind, &g, &p);
}

int cuda_op_expert_linear(struct device *d, const struct op_expert_linear *op)
{
    struct ask a = {.x = &op->x, .y = &op->y, .w = {op->w}, .bias = {op->bias}, .ids = op->ids, .parts = 1, .slots = op->y.rows};
    return products(d, &a);
}

int cuda_op_expert_gated(struct device *d, const struct op_expert_gated *op)
{
    struct ask a = {.x = &op->x, .y = &op->y, .w = {op->gate, op->up}, .bias = {op->gate_bias, op->up_bias}, .ids = op->ids, .parts = 2, .slots = op->y.rows,
                    .act = op->act};
    if (op->gate->kind == op->up->kind)
        return products(d, &a);
    struct op_expert_linear gate = {.w = op->gate, .bias = op->gate_bias, .x = op->x, .y = op->scratch_gate, .ids = op->ids};
    struct op_expert_linear up = {.w = op->up, .bias = op->up_bias, .x = op->x, .y = op->scratch_up, .ids = op->ids};
    struct op_gated gated = {.gate = op->scratch_gate, .up = op->scratch_up, .y = op->y, .act = op->act};
    int rc = cuda_op_expert_linear(d, &gate);
    rc = rc ? rc : cuda_op_expert_linear(d, &up);
    return rc ? rc : cuda_op_gated(d, &gated);
}

int cuda_op_expert_output(struct device *d, const struct op_expert_output *op)
{
    const struct op_expert_linear *l = &op->linear;
    struct ask a = {.x = &l->x, .y = &op->sum.y, .w = {l->w}, .bias = {l->bias}, .ids = l->ids, .weights = op->sum.weights, .parts = 1, .slots = l->y.rows,
                    .add = op->sum.add};
    struct cuda_p_expert few;
    if (few_params(d, &a, &few))
        return few_hold(d, &a, &few);
    int rc = cuda_op_expert_linear(d, l);
    return rc ? rc : cuda_op_expert_sum(d, &op->sum);
}
