/* backend_cpu/cpu_linear.c - products of weights with rows: linear, norm_linear, norm_gated; and the row gather embed.
 *
 * One shape for all: inputs become what the weights read (rows quantised per 32, or plain f32), then the workers share out (panels,
 * row block) items (cpu_deal.h), cut by the bytes they read, and finish their outputs.
 * Invariants: 1. An output depends on its own row and weight row only; cuts are over outputs, never over columns.
 *             2. The fusions give the bits of their composition: the same norm, the same quantisation, the same dot.
 *             3. Small inputs are prepared by every worker for itself (no barrier); larger ones once, split over workers. */
#include "backend_cpu/cpu_deal.h"
#include "backend_cpu/cpu_product.h"

#include <string.h>

enum {
    ITEMS_LEAST = 16,   /* a worker's */
    FIRST_BYTES = 4096, /* as far as the kernels ask ahead */
    PAIR_BYTES = 64 << 10,
};

struct cpu_need cpu_linear_need(const struct device_reserve *r, uint32_t count)
{
    (void)count;
    /* after the own part: one row, normed, on its way to be quantised */
    return (struct cpu_need){sizeof(struct own) + (size_t)r->cols_max * sizeof(float), (size_t)r->rows_max * act_bytes(r->cols_max)};
}

static int reserved_for(const struct device *d, uint32_t rows, uint32_t cols)
{
    const struct device_reserve *r = cpu_reserved(d);
    return rows <= r->rows_max && cols <= r->cols_max ? 0 : ERR_INTERNAL;
}

/* ---- one product ---- */

struct product {
    const struct weight *w;
    const float *bias;
    float alpha;
    bool add;
    struct tensor y;
};

/* Panels [from, to) of one product for one row block. */
static void product_part(const struct cpu_kernels *k, const struct product *p, const struct input *in, uint32_t row, uint32_t rows,
                         uint32_t from, uint32_t to, struct own *own)
{
    uint32_t step = call_panels(in, rows);
    bool plain = !p->bias && !p->add && p->alpha == 1.0f;
    for (uint32_t i = from; i < to; i += step) {
        uint32_t n = to - i < step ? to - i : step, col = i * CPU_PANEL_ROWS, width = n * CPU_PANEL_ROWS;
        uint32_t cols = p->y.cols - col < width ? p->y.cols - col : width;
        float *y = (float *)p->y.data + (size_t)row * p->y.stride + col;
        if (plain && cols == width) {
            dot(k, p->w, in, row, rows, i, n, y, p->y.stride, own->tmp);
            continue;
        }
        dot(k, p->w, in, row, rows, i, n, own->out[0], width, own->tmp);
        struct cpu_finish f = {own->out[0], width, y, p->y.stride, rows, cols, p->bias ? p->bias + col : NULL, p->alpha, p->add};
        k->finish(&f);
    }
}

/* How products are cut in items: `group` panels of one block of rows, a block's items side by side, so that its rows stay near. */
struct cut {
    uint32_t group, step, blocks; /* panels of an item; rows of a block */
    uint32_t most;                /* items of a take */
};

static struct cut cut_of(const struct input *in, uint32_t panels, uint32_t count)
{
    bool few = in->rows <= ROWS_FEW;
    struct cut c = {.group = 1, .step = block_rows(in), .most = few ? PANELS_FEW : 1};
    c.blocks = (in->rows + c.step - 1) / c.step;
    if (!few)
        c.group = call_panels(in, in->rows < c.step ? in->rows : c.step);
    while (c.group > 1 && (uint64_t)panels * c.blocks < (uint64_t)ITEMS_LEAST * c.group * count)
        c.group /= 2;
    return c;
}

static uint32_t groups_of(const struct cut *c, const struct weight *w)
{
    return (w->panels + c->group - 1) / c->group;
}

static struct cpu_lot lot_of(const struct cut *c, const struct weight *w)
{
    return (struct cpu_lot){groups_of(c, w) * c->blocks, c->group * w->panel_bytes};
}

/* Panels and rows of items [*from, to), as far as one block goes. */
struct piece {
    uint32_t row, rows, panel, panel_end;
};
static struct piece piece_next(const struct cut *c, const struct weight *w, uint32_t rows, uint32_t *from, uint32_t to)
{
    uint32_t groups = groups_of(c, w), row = *from / groups * c->step, at = *from % groups;
    uint32_t n = to - *from < groups - at ? to - *from : groups - at, end = (at + n) * c->group;
    *from += n;
    return (struct piece){row, rows - row < c->step ? rows - row : c->step, at * c->group, end < w->panels ? end : w->panels};
}

static void products_run(struct device *d, const struct product *p, uint32_t n, const struct input *in, uint32_t me, uint32_t count,
                         struct own *own)
{
    struct cpu_lot lots[NORM_INPUT_MAX];
    struct cpu_deal deal;
    struct cpu_take take;
    uint32_t panels = 0;
    for (uint32_t i = 0; i < n; i++)
        panels += p[i].w->panels;
    struct cut c = cut_of(in, panels, count);
    for (uint32_t i = 0; i < n; i++)
        lots[i] = lot_of(&c, p[i].w);
    cpu_deal_start(&deal, d, lots, n, c.most, me, count);
    while (cpu_deal_next(&deal, &take))
        while (take.from < take.to) {
            struct piece at = piece_next(&c, p[take.lot].w, in->rows, &take.from, take.to);
            product_part(cpu_kernels_of(d), p + take.lot, in, at.row, at.rows, at.panel, at.panel_end, own);
        }
}

/* Piece i of what a worker will read of weights for few rows: its run of the i-th that it touches. */
static bool reads_of(const struct weight *const *w, uint32_t n, const struct tensor *x, uint32_t me, uint32_t count, uint32_t i,
                     const unsigned char **at, size_t *size_bytes)
{
    struct cpu_lot lots[NORM_INPUT_MAX];
    struct cpu_take own;
    for (uint32_t k = 0; k < n; k++)
        lots[k] = (struct cpu_lot){w[k]->panels, w[k]->panel_bytes};
    if (x->rows > ROWS_FEW || !cpu_deal_own(lots, n, me, count, i, &own))
        return false;
    *at = w[own.lot]->data + own.from * w[own.lot]->panel_bytes;
    *size_bytes = (own.to - own.from) * w[own.lot]->panel_bytes;
    return true;
}

/* The beginning of it, as far as the kernels ask ahead: it comes while the rows are prepared. */
static void fetch_first(cpu_reads reads, const void *op, uint32_t pieces, uint32_t me, uint32_t count)
{
    const unsigned char *at;
    size_t size_bytes;
    for (uint32_t k = 0; k < pieces && reads(op, me, count, k, &at, &size_bytes); k++)
        for (uint32_t i = 0; i < FIRST_BYTES && i < size_bytes; i += 64)
            __builtin_prefetch(at + i, 0, 3);
}

/* ---- inputs ---- */

static bool is_alone(const struct tensor *x)
{
    return x->rows <= ALONE_ROWS && (uint64_t)x->rows * x->cols <= ALONE_MAX;
}

/* x as it is, quantised too when a weight wants it. */
static bool input_plain(struct device *d, const struct tensor *x, bool quant, uint32_t me, uint32_t count, struct own *own,
                        struct input *in)
{
    const struct cpu_kernels *k = cpu_kernels_of(d);
    *in = (struct input){.rows = x->rows, .cols = x->cols, .f = x->data, .f_stride = x->stride * sizeof(float)};
    if (!quant)
        return true;
    bool alone = is_alone(x);
    uint32_t chunks = act_chunks(x->cols), from = 0, to = x->rows * chunks; /* chunks of all rows: each is alone */
    struct cpu_act *q = alone ? own->acts : cpu_shared_scratch(d, x->rows * act_bytes(x->cols));
    if (!q)
        return false;
    quantised_at(in, q, alone || x->rows <= ALONE_ROWS);
    if (!alone)
        cpu_split(x->rows * chunks, 1, me, count, &from, &to);
    while (from < to) {
        uint32_t r = from / chunks, c = from % chunks, n = to - from < chunks - c ? to - from : chunks - c;
        quantise_chunks(k, in, q, tensor_row(x, r), r, c, c + n);
        from += n;
    }
    if (!alone)
        cpu_barrier(d, me);
    return true;
}

/* What the norm of x feeds: f32 rows when a weight is float, quantised rows when one is not. */
static bool input_normed(struct device *d, const struct tensor *x, const float *norm_w, float eps, const struct tensor *scratch,
                         bool plain, bool quant, uint32_t me, uint32_t count, struct own *own, struct input *in)
{
    const struct cpu_kernels *k = cpu_kernels_of(d);
    uint32_t from = 0, to = x->rows;
    bool alone = is_alone(x);
    float *f = alone ? own->rows : (float *)scratch->data, *row = (float *)(void *)(own + 1);
    size_t f_step = alone ? x->cols : scratch->stride;
    struct cpu_act *q = alone || !quant ? own->acts : cpu_shared_scratch(d, x->rows * act_bytes(x->cols));
    if (!q)
        return false;
    *in = (struct input){.rows = x->rows, .cols = x->cols, .f = f, .f_stride = f_step * sizeof(float)};
    if (quant)
        quantised_at(in, q, alone || x->rows <= ALONE_ROWS);
    if (!alone)
        cpu_split(x->rows, 1, me, count, &from, &to);
    for (uint32_t r = from; r < to; r++) {
        float *y = plain ? f + r * f_step : row;
        k->norm(tensor_row(x, r), norm_w, y, x->cols, eps, false, 1.0f);
        if (quant)
            quantise_chunks(k, in, q, y, r, 0, act_chunks(x->cols));
    }
    if (!alone)
        cpu_barrier(d, me);
    return true;
}

/* ---- ops ---- */

static int enqueue(struct device *d, int rc, cpu_run run, const char *name, cpu_reads reads, const void *op, size_t op_bytes)
{
    rc = rc ? rc : cpu_enqueue_named(d, run, name, op, op_bytes);
    if (!rc)
        cpu_enqueued_reads(d, reads);
    return rc;
}

static bool linear_reads(const void *arg, uint32_t me, uint32_t count, uint32_t i, const unsigned char **at, size_t *size_bytes)
{
    const struct op_linear *op = arg;
    return reads_of(&op->w, 1, &op->x, me, count, i, at, size_bytes);
}

static void linear_run(struct device *d, uint32_t me, uint32_t count, const void *arg)
{
    const struct op_linear *op = arg;
    struct own *own = cpu_scratch(d, me, sizeof *own);
    struct input in;
    fetch_first(linear_reads, op, 1, me, count);
    if (!own || !input_plain(d, &op->x, !cpu_weight_is_float(op->w), me, count, own, &in))
        return;
    struct product p = {op->w, op->bias, op->alpha, op->add, op->y};
    products_run(d, &p, 1, &in, me, count, own);
}

int cpu_op_linear(struct device *d, const struct op_linear *op)
{
    int rc = reserved_for(d, op->x.rows, op->x.cols);
    return enqueue(d, rc, linear_run, "linear_run", linear_reads, op, sizeof *op);
}

static struct own *own_of(struct device *d, uint32_t me, uint32_t cols)
{
    return cpu_scratch(d, me, sizeof(struct own) + cols * sizeof(float));
}

static bool norm_linear_reads(const void *arg, uint32_t me, uint32_t count, uint32_t i, const unsigned char **at, size_t *size_bytes)
{
    const struct op_norm_linear *op = arg;
    return reads_of(op->w, op->n, &op->x, me, count, i, at, size_bytes);
}

static void norm_linear_run(struct device *d, uint32_t me, uint32_t count, const void *arg)
{
    const struct op_norm_linear *op = arg;
    struct own *own = own_of(d, me, op->x.cols);
    struct input in;
    bool plain = false, quant = false;
    struct product p[NORM_INPUT_MAX];
    for (uint32_t i = 0; i < op->n; i++) {
        plain = plain || cpu_weight_is_float(op->w[i]);
        quant = quant || !cpu_weight_is_float(op->w[i]);
        p[i] = (struct product){op->w[i], op->bias[i], 1.0f, false, op->y[i]};
    }
    fetch_first(norm_linear_reads, op, 1, me, count);
    if (own && input_normed(d, &op->x, op->norm_w, op->eps, &op->scratch, plain, quant, me, count, own, &in))
        products_run(d, p, op->n, &in, me, count, own);
}

int cpu_op_norm_linear(struct device *d, const struct op_norm_linear *op)
{
    int rc = reserved_for(d, op->x.rows, op->x.cols);
    return enqueue(d, rc, norm_linear_run, "norm_linear_run", norm_linear_reads, op, sizeof *op);
}

/* Panels [from, to) of gate and up for one row block, and their activation. */
static void gated_part(const struct cpu_kernels *k, const struct op_norm_gated *op, const struct input *in, uint32_t row, uint32_t rows,
                       uint32_t from, uint32_t to, struct own *own)
{
    cpu_gated_fn act = cpu_gated_of(k, op->act);
    uint32_t step = call_panels(in, rows);
    for (uint32_t i = from; i < to; i += step) {
        uint32_t n = to - i < step ? to - i : step, col = i * CPU_PANEL_ROWS, width = n * CPU_PANEL_ROWS;
        uint32_t cols = op->y.cols - col < width ? op->y.cols - col : width;
        dot(k, op->gate, in, row, rows, i, n, own->out[0], width, own->tmp);
        dot(k, op->up, in, row, rows, i, n, own->out[1], width, own->tmp);
        for (uint32_t r = 0; r < rows; r++)
            act(own->out[0] + r * width, own->out[1] + r * width, (float *)op->y.data + (size_t)(row + r) * op->y.stride + col, cols);
    }
}

/* Of gate and of up by turns; no more of either than both have room for. */
static bool norm_gated_reads(const void *arg, uint32_t me, uint32_t count, uint32_t i, const unsigned char **at, size_t *size_bytes)
{
    const struct op_norm_gated *op = arg;
    if (i > 1 || !reads_of(i ? &op->up : &op->gate, 1, &op->x, me, count, 0, at, size_bytes))
        return false;
    *size_bytes = *size_bytes < PAIR_BYTES ? *size_bytes : PAIR_BYTES;
    return true;
}

static void norm_gated_run(struct device *d, uint32_t me, uint32_t count, const void *arg)
{
    const struct op_norm_gated *op = arg;
    struct own *own = own_of(d, me, op->x.cols);
    struct input in;
    fetch_first(norm_gated_reads, op, 2, me, count);
    bool gate_float = cpu_weight_is_float(op->gate), up_float = cpu_weight_is_float(op->up);
    if (!own || !input_normed(d, &op->x, op->norm_w, op->eps, &op->scratch, gate_float || up_float, !gate_float || !up_float, me, count,
                              own, &in))
        return;
    struct cut c = cut_of(&in, op->gate->panels, count);
    struct cpu_lot lot = lot_of(&c, op->gate);
    struct cpu_deal deal;
    struct cpu_take take;
    cpu_deal_start(&deal, d, &lot, 1, c.most, me, count);
    while (cpu_deal_next(&deal, &take))
        while (take.from < take.to) {
            struct piece at = piece_next(&c, op->gate, in.rows, &take.from, take.to);
            gated_part(cpu_kernels_of(d), op, &in, at.row, at.rows, at.panel, at.panel_end, own);
        }
}

int cpu_op_norm_gated(struct device *d, const struct op_norm_gated *op)
{
    int rc = reserved_for(d, op->x.rows, op->x.cols);
    return enqueue(d, rc, norm_gated_run, "norm_gated_run", norm_gated_reads, op, sizeof *op);
}

static void embed_run(struct device *d, uint32_t me, uint32_t count, const void *arg)
{
    const struct op_embed *op = arg;
    uint32_t from, to;
    cpu_split(op->y.rows, 1, me, count, &from, &to);
    for (uint32_t r = from; r < to; r++) {
        float *y = (float *)op->y.data + (size_t)r * op->y.stride;
        if (op->ids[r] == UINT32_MAX) { /* a choice that found nothing; the row is never kept */
            memset(y, 0, op->y.cols * sizeof *y);
            continue;
        }
        if (op->ids[r] >= op->w->head.rows && !op->wrap) {
            cpu_fail(d, ERR_INTERNAL, "cpu: embed: a row id is past the weight's rows");
            return;
        }
        cpu_weight_row(op->w, op->ids[r] < op->w->head.rows ? op->ids[r] : 0, y);
        for (uint32_t i = 0; i < op->y.cols && op->scale != 1.0f; i++)
            y[i] = y[i] * op->scale;
    }
}

int cpu_op_embed(struct device *d, const struct op_embed *op)
{
    return cpu_enqueue(d, embed_run, op, sizeof *op);
}
