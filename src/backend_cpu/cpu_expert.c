/* backend_cpu/cpu_expert.c - products whose weight is a stack of experts and whose rows choose among them: expert_linear, expert_gated.
 *
 * Slots are put in order of their experts: the slots of one expert are then rows of one product with that expert's panels, by the
 * kernels of every other product.  Quantised rows are laid down in that order, once for all slots that read them; float rows are
 * gathered by the worker that needs them.  Work is cut by what panels cost: reading them, and multiplying them with their slots.
 * Invariants: 1. An output is the kernel's sum of its own row and weight row: the bits of op_linear with that expert's matrix.
 *             2. The order is the same for every worker: by expert, then by slot.
 *             3. One row (decode) is prepared by every worker for itself; more once, split over workers. */
#include "backend_cpu/cpu_product.h"

#include <string.h>

enum {
    READ_COST = 6,   /* of a panel, in rows multiplied with it */
    SLOTS_FEW = 64,   /* quantised slots that lie row after row */
};

/* slots by expert; arrays in the worker's scratch */
struct order {
    uint32_t n, groups;
    uint32_t *slot;     /* [n]: which slot stands at a place */
    uint32_t *place;    /* [n]: where a slot stands */
    uint32_t *expert;   /* [groups], ascending */
    uint32_t *first;    /* [groups + 1]: places */
};

/* one worker's room: own, then float rows, then the order's arrays */
struct room {
    struct own *own;
    float *rows;
    struct order order;
};

static size_t rows_room(uint32_t cols)
{
    size_t least = 16 * (size_t)cols * sizeof(float);
    return least > ROWS_BYTES ? least : ROWS_BYTES;
}

struct cpu_need cpu_expert_need(const struct device_reserve *r, uint32_t count)
{
    (void)count;
    if (!r->experts_max)
        return (struct cpu_need){0};
    size_t n = (size_t)r->rows_max * r->slots_max, e = r->experts_max + 1;
    return (struct cpu_need){sizeof(struct own) + rows_room(r->expert_cols_max) + (2 * n + 2 * e) * sizeof(uint32_t),
                             n * act_bytes(r->expert_cols_max)};
}

/* ---- order ---- */

/* A counting sort; false when an id is past the stack. */
static bool order_make(struct order *o, const uint32_t *ids, uint32_t n, uint32_t experts)
{
    uint32_t *count = o->first, at = 0, groups = 0; /* counts are read before their place becomes a group's */
    memset(count, 0, (experts + 1) * sizeof *count);
    for (uint32_t i = 0; i < n; i++) {
        if (ids[i] >= experts)
            return false;
        count[ids[i]]++;
    }
    uint32_t *next = o->expert; /* first the next free place of each expert */
    for (uint32_t e = 0; e < experts; e++) {
        next[e] = at;
        at += count[e];
    }
    for (uint32_t i = 0; i < n; i++) {
        uint32_t to = next[ids[i]]++;
        o->slot[to] = i;
        o->place[i] = to;
    }
    at = 0;
    for (uint32_t e = 0; e < experts; e++) {
        uint32_t has = count[e];
        if (!has)
            continue;
        o->expert[groups] = e;
        o->first[groups++] = at;
        at += has;
    }
    o->first[groups] = at;
    o->n = n;
    o->groups = groups;
    return true;
}

/* NULL own: the record failed. */
static struct room room_of(struct device *d, uint32_t me, uint32_t cols, const uint32_t *ids, uint32_t n, uint32_t experts)
{
    size_t own = sizeof(struct own), rows = rows_room(cols);
    struct room r = {.own = cpu_scratch(d, me, own + rows + (2 * (size_t)n + 2 * ((size_t)experts + 1)) * sizeof(uint32_t))};
    if (!r.own)
        return r;
    r.rows = (float *)(void *)((unsigned char *)r.own + own);
    uint32_t *u = (uint32_t *)(void *)((unsigned char *)r.own + own + rows);
    r.order = (struct order){.slot = u, .place = u + n, .expert = u + 2 * (size_t)n, .first = u + 2 * (size_t)n + experts + 1};
    if (order_make(&r.order, ids, n, experts))
        return r;
    cpu_fail(d, ERR_INTERNAL, "cpu: an expert that is not there");
    return (struct room){0};
}

/* ---- inputs ---- */

/* x's rows quantised at the places of the slots that read them; a single row stands for all. */
static bool input_quantised(struct device *d, const struct tensor *x, const struct order *o, uint32_t me, uint32_t count, struct own *own,
                            struct input *in)
{
    const struct cpu_kernels *k = cpu_kernels_of(d);
    uint32_t slots = o->n / x->rows, chunks = act_chunks(x->cols), from = 0, to = x->rows * chunks;
    bool alone = x->rows == 1 && x->cols <= ALONE_MAX;
    struct cpu_act *q = alone ? own->acts : cpu_shared_scratch(d, (alone ? 1 : o->n) * act_bytes(x->cols));
    if (!q)
        return false;
    *in = (struct input){.rows = o->n, .cols = x->cols, .q = q};
    in->q_stride = alone ? 0 : o->n <= SLOTS_FEW ? act_bytes(x->cols) : CPU_ACT_CHUNK_BYTES;
    in->q_chunk = alone || o->n <= SLOTS_FEW ? CPU_ACT_CHUNK_BYTES : (size_t)o->n * CPU_ACT_CHUNK_BYTES;
    if (!alone)
        cpu_split(x->rows * chunks, 1, me, count, &from, &to);
    for (uint32_t i = from; i < to; i++) {
        uint32_t r = i / chunks, c = i % chunks;
        const float *row = (const float *)x->data + (size_t)r * x->stride;
        const uint32_t *place = o->place + (size_t)r * slots;
        quantise_chunks(k, in, q, row, alone ? 0 : place[0], c, c + 1);
        const unsigned char *made = (const unsigned char *)q + (alone ? 0 : place[0]) * in->q_stride + c * in->q_chunk;
        for (uint32_t s = 1; s < slots && !alone; s++)
            memcpy((unsigned char *)q + place[s] * in->q_stride + c * in->q_chunk, made, CPU_ACT_CHUNK_BYTES);
    }
    if (!alone)
        cpu_barrier(d, me);
    return true;
}

/* Float rows of places [at, at + rows), as one input; a single one is read where it is. */
static struct input input_float(const struct tensor *x, const struct room *r, uint32_t at, uint32_t rows)
{
    uint32_t slots = r->order.n / x->rows;
    struct input in = {.rows = rows, .cols = x->cols, .f = r->rows, .f_stride = x->cols * sizeof(float)};
    for (uint32_t i = 0; i < rows; i++) {
        const float *row = (const float *)x->data + (size_t)(r->order.slot[at + i] / slots) * x->stride;
        if (rows == 1)
            in.f = row;
        else
            memcpy(r->rows + (size_t)i * x->cols, row, x->cols * sizeof *row);
    }
    return in;
}

static uint32_t float_step(uint32_t cols)
{
    struct input in = {.f_stride = cols * sizeof(float)};
    return block_rows(&in);
}

/* ---- parts ---- */

/* what both ops do with the same slots */
struct job {
    const struct weight *w[2]; /* the second: up, of expert_gated */
    const float *bias[2];
    cpu_gated_fn act;          /* NULL: w[0]'s product alone */
    struct tensor x, y;
};

/* Panels [from, to) of an expert for the slots at places [at, at + rows): the first rows of `in`. */
static void part(const struct cpu_kernels *k, const struct job *j, const struct room *r, const struct input *in, uint32_t expert,
                 uint32_t at, uint32_t rows, uint32_t from, uint32_t to)
{
    uint32_t step = call_panels(in, rows), n_products = j->act ? 2 : 1;
    for (uint32_t i = from; i < to; i += step) {
        uint32_t n = to - i < step ? to - i : step, col = i * CPU_PANEL_ROWS, width = n * CPU_PANEL_ROWS;
        uint32_t cols = j->y.cols - col < width ? j->y.cols - col : width;
        for (uint32_t p = 0; p < n_products; p++) {
            float *out = r->own->out[p];
            dot(k, j->w[p], in, 0, rows, expert * j->w[p]->panels + i, n, out, width, r->own->tmp);
            if (j->bias[p]) {
                const float *bias = j->bias[p] + (size_t)expert * j->y.cols + col;
                k->finish(&(struct cpu_finish){out, width, out, width, rows, cols, bias, 1.0f, false});
            }
        }
        for (uint32_t s = 0; s < rows; s++) {
            float *y = (float *)j->y.data + (size_t)r->order.slot[at + s] * j->y.stride + col;
            const float *a = r->own->out[0] + (size_t)s * width, *b = r->own->out[1] + (size_t)s * width;
            if (j->act)
                j->act(a, b, y, cols);
            else
                memcpy(y, a, cols * sizeof *y);
        }
    }
}

/* Panels [from, to) of group g: its slots in blocks. */
static void group_run(const struct cpu_kernels *k, const struct job *j, const struct room *r, const struct input *q, uint32_t g, uint32_t from,
                      uint32_t to)
{
    uint32_t first = r->order.first[g], end = r->order.first[g + 1];
    bool floats = cpu_weight_is_float(j->w[0]) || (j->act && cpu_weight_is_float(j->w[1]));
    uint32_t step = floats ? float_step(j->x.cols) : CPU_DOT_ROWS;
    for (uint32_t at = first; at < end; at += step) {
        uint32_t rows = end - at < step ? end - at : step;
        struct input in = floats ? input_float(&j->x, r, at, rows) : (struct input){0};
        if (q->q) {
            in.q = (const struct cpu_act *)(const void *)((const unsigned char *)q->q + at * q->q_stride);
            in.q_stride = q->q_stride;
            in.q_chunk = q->q_chunk;
        }
        part(k, j, r, &in, r->order.expert[g], at, rows, from, to);
    }
}

static uint64_t group_cost(const struct order *o, uint32_t g)
{
    return READ_COST + (o->first[g + 1] - o->first[g]);
}

/* This worker's panels of every group: equal shares of what all of them cost. */
static void job_run(struct device *d, const struct job *j, const uint32_t *ids, uint32_t me, uint32_t count)
{
    struct room r = room_of(d, me, j->x.cols, ids, j->y.rows, j->w[0]->head.n_experts);
    struct input in = {0};
    bool quant = !cpu_weight_is_float(j->w[0]) || (j->act && !cpu_weight_is_float(j->w[1]));
    if (!r.own || (quant && !input_quantised(d, &j->x, &r.order, me, count, r.own, &in)))
        return;
    uint64_t panels = j->w[0]->panels, total = 0, base = 0;
    for (uint32_t g = 0; g < r.order.groups; g++)
        total += group_cost(&r.order, g) * panels;
    uint64_t lo = total / count * me, hi = me + 1 == count ? total : total / count * (me + 1);
    for (uint32_t g = 0; g < r.order.groups; g++) {
        uint64_t cost = group_cost(&r.order, g);
        uint64_t from = lo <= base ? 0 : (lo - base + cost - 1) / cost, to = hi <= base ? 0 : (hi - base + cost - 1) / cost;
        to = to < panels ? to : panels;
        if (from < to)
            group_run(cpu_kernels_of(d), j, &r, &in, g, (uint32_t)from, (uint32_t)to);
        base += cost * panels;
    }
}

/* ---- ops ---- */

static int reserved_for(const struct device *d, const struct tensor *x, const struct tensor *y, uint32_t experts)
{
    const struct device_reserve *r = cpu_reserved(d);
    bool fits = (uint64_t)y->rows <= (uint64_t)r->rows_max * r->slots_max && x->cols <= r->expert_cols_max && experts <= r->experts_max;
    return fits ? 0 : ERR_INTERNAL;
}

static void expert_linear_run(struct device *d, uint32_t me, uint32_t count, const void *arg)
{
    const struct op_expert_linear *op = arg;
    struct job j = {.w = {op->w}, .bias = {op->bias}, .x = op->x, .y = op->y};
    job_run(d, &j, op->ids, me, count);
}

int cpu_op_expert_linear(struct device *d, const struct op_expert_linear *op)
{
    int rc = reserved_for(d, &op->x, &op->y, op->w->head.n_experts);
    return rc ? rc : cpu_enqueue(d, expert_linear_run, op, sizeof *op);
}

static void expert_gated_run(struct device *d, uint32_t me, uint32_t count, const void *arg)
{
    const struct op_expert_gated *op = arg;
    struct job j = {.w = {op->gate, op->up}, .bias = {op->gate_bias, op->up_bias}, .act = cpu_gated_of(cpu_kernels_of(d), op->act),
                    .x = op->x, .y = op->y};
    job_run(d, &j, op->ids, me, count);
}

int cpu_op_expert_gated(struct device *d, const struct op_expert_gated *op)
{
    int rc = reserved_for(d, &op->x, &op->y, op->gate->head.n_experts);
    return rc ? rc : cpu_enqueue(d, expert_gated_run, op, sizeof *op);
}
