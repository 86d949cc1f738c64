/* backend_cpu/cpu_state.c - recurrent layers: short convolution, and gated delta nets and Mamba 2 in their anchored form.
 *
 * A row's values come from its block alone (tensor/state.h): the state at the anchor and the rows since, in one fixed order
 * (docs/arithmetic.md), whether those rows were written by earlier steps or stand in this one.  So cuts do not show in a bit.
 * delta_net and mamba, one code, run in two passes with a barrier between.  Pass 1, by slices of qkv's columns (one q, k or v head each): convolution,
 * silu, unit length, gates; inputs, keys and gates go to the blocks that are kept.  Pass 2, by value heads and pieces of their
 * columns: the rows of each span in order, block by block, and the fold into the next block's state.
 * Invariants: 1. A unit of work takes all spans in order, so spans of one sequence may follow each other in a step.
 *             2. Blocks a span passes by (id 0) are never touched: what they would hold stays in the worker's scratch. */
#include "backend_cpu/cpu_int.h"

#include "base/math.h"

#include <string.h>

enum { PIECE_UNIT = 32, CONV_UNIT = 64 };

static float *row_of(const struct tensor *t, uint32_t row)
{
    return (float *)t->data + (size_t)row * t->stride;
}

/* ---- blocks ---- */

/* one head of one span's sequence */
struct blocks {
    const struct state_shape *shape;
    const struct state_part *part;
    const struct state_layout *at;
    const uint32_t *table;
};

static struct blocks blocks_of(const struct state_layer *l, const struct state_layout *at, uint32_t head, const uint32_t *table)
{
    return (struct blocks){&l->shape, &l->parts[head], at, table};
}

/* The head's part of a block; NULL: not kept. */
static float *part_of(const struct blocks *b, uint32_t block)
{
    return b->table[block] ? (float *)(void *)(b->part->pages[b->table[block]] + b->part->offset) : NULL;
}

/* Every span starts at position 0 or in a block that is kept?  All workers see the same. */
static bool spans_startable(struct device *d, const struct state_layer *l, const struct kv_span *spans, uint32_t count,
                            const uint32_t *tables)
{
    for (uint32_t i = 0; i < count; i++) {
        const struct kv_span *sp = spans + i;
        if (sp->pos_first != 0 && tables[sp->table_first + sp->pos_first / l->shape.anchor] == 0) {
            cpu_fail(d, ERR_INTERNAL, "cpu: a span of a recurrent layer starts in a block that is not kept");
            return false;
        }
    }
    return true;
}

/* ---- convolution ---- */

/* some channels of one span: columns of x that are inputs, where they stand in the head's part */
struct stripe {
    struct blocks b;
    const struct kv_span *span;
    const struct tensor *x;
    uint32_t column, channel, n;
};

static float *stripe_row(const struct stripe *s, uint32_t r)
{
    return row_of(s->x, s->span->row_first + r) + s->column;
}

/* Inputs of the span's row r, which may lie before the span; NULL: before position 0. */
static const float *stripe_input(const struct stripe *s, int64_t r)
{
    const struct state_shape *shape = s->b.shape;
    if (r >= 0)
        return stripe_row(s, (uint32_t)r);
    uint32_t block = s->span->pos_first / shape->anchor;
    int64_t t = (int64_t)s->span->pos_first + r - (int64_t)block * shape->anchor;
    if (block == 0 && t < 0)
        return NULL;
    const float *part = part_of(&s->b, block);
    if (t >= 0)
        return part + s->b.at->inputs + (size_t)t * shape->channels + s->channel;
    return part + s->b.at->tail + (size_t)(t + shape->taps - 1) * shape->channels + s->channel;
}

/* Inputs of the span's rows into the blocks that are kept; the last of a block into the tail of the next. */
static void stripe_keep(const struct stripe *s)
{
    const struct state_shape *shape = s->b.shape;
    size_t bytes = s->n * sizeof(float);
    for (uint32_t r = 0; r < s->span->row_count; r++) {
        uint32_t pos = s->span->pos_first + r, t = pos % shape->anchor;
        float *part = part_of(&s->b, pos / shape->anchor);
        if (part)
            memcpy(part + s->b.at->inputs + (size_t)t * shape->channels + s->channel, stripe_row(s, r), bytes);
        part = t + 1 == shape->anchor ? part_of(&s->b, pos / shape->anchor + 1) : NULL;
        for (uint32_t i = 0; part && i + 1 < shape->taps; i++)
            memcpy(part + s->b.at->tail + (size_t)i * shape->channels + s->channel, stripe_input(s, (int64_t)r + 2 + i - shape->taps), bytes);
    }
}

/* The convolution of row r, whose inputs before it are still there. */
static void stripe_conv(const struct stripe *s, const struct cpu_kernels *k, uint32_t r, const float *w, size_t w_step, const float *bias,
                        float *out, bool silu)
{
    struct cpu_conv job = {.w = w, .w_step = w_step, .taps = s->b.shape->taps, .n = s->n, .bias = bias, .out = out, .silu = silu};
    for (uint32_t i = 0; i < job.taps; i++)
        job.in[i] = stripe_input(s, (int64_t)r + 1 + i - job.taps);
    k->conv(&job);
}

static void run_short_conv(struct device *d, uint32_t me, uint32_t count, const void *p)
{
    const struct op_short_conv *op = p;
    const struct cpu_kernels *k = cpu_kernels_of(d);
    uint32_t n = op->layer->shape.channels, from, to;
    struct state_layout at;
    state_layout(&op->layer->shape, &at);
    cpu_split(n, CONV_UNIT, me, count, &from, &to);
    if (!spans_startable(d, op->layer, op->spans, op->span_count, op->tables) || from == to)
        return;
    for (uint32_t i = 0; i < op->span_count; i++) {
        const struct kv_span *sp = op->spans + i;
        struct stripe s = {blocks_of(op->layer, &at, 0, op->tables + sp->table_first), sp, &op->x, from, from, to - from};
        for (uint32_t r = sp->row_first; r < sp->row_first + sp->row_count; r++)
            k->mul(row_of(&op->x, r) + 2 * n + from, row_of(&op->x, r) + from, to - from);
        stripe_keep(&s);
        for (uint32_t r = 0; r < sp->row_count; r++) {
            float *y = row_of(&op->y, sp->row_first + r) + from;
            stripe_conv(&s, k, r, op->w + from, n, op->bias ? op->bias + from : NULL, y, false);
            k->mul(row_of(&op->x, sp->row_first + r) + n + from, y, to - from);
        }
    }
}

/* ---- delta net and Mamba 2 ---- */

/* Either op, in delta_net's words: C is q, B is k, x is v, dt is a, times is b. */
struct net {
    struct tensor qkv, a, b, y;
    const float *conv, *conv_bias, *rate, *dt_bias;
    const float *skip;        /* Mamba 2: no state is taken out of v; the row's own v times skip comes on top */
    float eps, dt_least;
    bool tiled;
    uint32_t q_at, k_at, v_at; /* first columns of qkv */
    const struct state_layer *layer;
    const struct kv_span *spans;
    uint32_t span_count;
    const uint32_t *tables;
};

static struct net net_of_delta(const struct op_delta_net *op)
{
    uint32_t keys = op->layer->shape.heads * op->layer->shape.d_k;
    return (struct net){.qkv = op->qkv, .a = op->a, .b = op->b, .y = op->y, .conv = op->conv, .rate = op->rate, .dt_bias = op->dt_bias,
                        .eps = op->eps, .tiled = op->tiled, .k_at = keys, .v_at = 2 * keys, .layer = op->layer, .spans = op->spans,
                        .span_count = op->span_count, .tables = op->tables};
}

static struct net net_of_mamba(const struct op_mamba *op)
{
    const struct state_shape *s = &op->layer->shape;
    uint32_t values = s->heads * s->values * s->d_v;
    return (struct net){.qkv = op->xbc, .a = op->dt, .b = op->times, .y = op->y, .conv = op->conv, .conv_bias = op->conv_bias,
                        .rate = op->rate, .dt_bias = op->dt_bias, .skip = op->skip, .dt_least = op->dt_least, .k_at = values,
                        .q_at = values + s->heads * s->d_k, .layer = op->layer, .spans = op->spans, .span_count = op->span_count,
                        .tables = op->tables};
}

/* ---- pass 1 ---- */

/* Which key head a value head reads, and which of its value heads it is. */
static void value_place(const struct net *op, uint32_t value, uint32_t *head, uint32_t *index)
{
    const struct state_shape *s = &op->layer->shape;
    *head = op->tiled ? value % s->heads : value / s->values;
    *index = op->tiled ? value / s->heads : value % s->values;
}

/* log(1 + exp(x)), also where exp(x) is small */
static float softplus(float x)
{
    float e = math_expf(x < 0 ? x : -x), u = 1.0f + e;
    float log1 = u == 1.0f ? e : math_logf(u) * (e / (u - 1.0f));
    return x > 0 ? x + log1 : log1;
}

/* a -> log gate, b -> beta or time; gates into the blocks that are kept. */
static void gates_make(const struct net *op, const struct stripe *s, uint32_t value, uint32_t index)
{
    const struct state_shape *shape = s->b.shape;
    for (uint32_t r = 0; r < s->span->row_count; r++) {
        uint32_t pos = s->span->pos_first + r;
        float *a = row_of(&op->a, s->span->row_first + r) + value, *b = row_of(&op->b, s->span->row_first + r) + value;
        float *part = part_of(&s->b, pos / shape->anchor);
        float time = softplus(*a + op->dt_bias[value]);
        if (op->skip)
            *b = time = time > op->dt_least ? time : op->dt_least;
        else
            *b = 1.0f / (1.0f + math_expf(-*b));
        *a = op->rate[value] * time;
        if (part)
            part[s->b.at->gates + (size_t)index * shape->anchor + pos % shape->anchor] = *a;
    }
}

/* Keys of the span's rows into the blocks that are kept, transposed. */
static void keys_keep(const struct stripe *s)
{
    const struct state_shape *shape = s->b.shape;
    for (uint32_t r = 0; r < s->span->row_count; r++) {
        uint32_t pos = s->span->pos_first + r;
        float *part = part_of(&s->b, pos / shape->anchor);
        const float *k = stripe_row(s, r);
        for (uint32_t e = 0; part && e < shape->d_k; e++)
            part[s->b.at->keys + (size_t)e * shape->anchor + pos % shape->anchor] = k[e];
    }
}

/* One head of q (slice < heads), of k (< 2 heads) or of v, over all spans. */
static void slice_run(const struct net *op, const struct cpu_kernels *k, const struct state_layout *at, uint32_t slice)
{
    const struct state_shape *shape = &op->layer->shape;
    uint32_t heads = shape->heads, head = slice % heads, index = 0, value = slice - 2 * heads, n = shape->d_k;
    bool is_value = slice >= 2 * heads, is_key = !is_value && slice >= heads;
    uint32_t column = (is_key ? op->k_at : op->q_at) + head * shape->d_k, channel = is_key ? shape->d_k : 0, all = heads * shape->channels;
    if (is_value) {
        value_place(op, value, &head, &index);
        n = shape->d_v;
        column = op->v_at + value * shape->d_v;
        channel = 2 * shape->d_k + index * shape->d_v;
    }
    float query_scale = 1.0f / __builtin_sqrtf((float)shape->d_k);
    for (uint32_t i = 0; i < op->span_count; i++) {
        const struct kv_span *sp = op->spans + i;
        struct stripe s = {blocks_of(op->layer, at, head, op->tables + sp->table_first), sp, &op->qkv, column, channel, n};
        stripe_keep(&s);
        for (uint32_t r = sp->row_count; r-- > 0;) { /* from the end: the inputs of a row are those before it */
            stripe_conv(&s, k, r, op->conv + column, all, op->conv_bias ? op->conv_bias + column : NULL, stripe_row(&s, r), true);
            if (!is_value && !op->skip)
                k->unit(stripe_row(&s, r), n, op->eps, is_key ? 1.0f : query_scale);
        }
        if (is_key)
            keys_keep(&s);
        if (is_value)
            gates_make(op, &s, value, index);
    }
}

/* ---- pass 2 ---- */

/* a worker's scratch; C = STATE_ANCHOR_MAX, widths up to those of the shape */
struct work {
    float *state;        /* [d_k][d_v]: of a block that is not kept */
    float *keys;         /* [d_k][C]: likewise */
    float *deltas;       /* [C][d_v]: likewise */
    float *asked, *seen; /* [C][d_v]: S^T q, S^T k */
    float *qk, *kk;      /* [C][C] */
    float *gates;        /* [C]: log gates of the block's rows */
    float *decay;        /* [C + 8]: exp of the sums down to each row; the last entry is g */
    float *past;         /* [d_v] */
};

static size_t work_lay(float *base, uint32_t d_k, uint32_t d_v, struct work *w)
{
    enum { C = STATE_ANCHOR_MAX };
    const size_t sizes[] = {(size_t)d_k * d_v, (size_t)d_k * C, (size_t)C * d_v, (size_t)C * d_v, (size_t)C * d_v, (size_t)C * C,
                            (size_t)C * C, C, C + 8, d_v};
    float **places[] = {&w->state, &w->keys, &w->deltas, &w->asked, &w->seen, &w->qk, &w->kk, &w->gates, &w->decay, &w->past};
    size_t at = 0;
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        *places[i] = base ? base + at : NULL;
        at += (sizes[i] + 15) / 16 * 16;
    }
    return at * sizeof(float);
}

struct cpu_need cpu_state_need(const struct device_reserve *r, uint32_t count)
{
    (void)count;
    struct work w;
    return (struct cpu_need){r->state_dim_max ? work_lay(NULL, r->state_dim_max, r->state_dim_max, &w) : 0, 0};
}

/* some columns of one value head of one span */
struct piece {
    const struct net *op;
    const struct cpu_kernels *k;
    struct work w;
    struct blocks b;
    const struct kv_span *span;
    uint32_t head, value, index;
    uint32_t from, n; /* columns of the head */
};

/* the block the rows are in: [t0, t1) of its rows, row `row` of the step on */
struct segment {
    uint32_t block, t0, t1, row;
    const float *state; /* column `from` of row 0; NULL: zeros */
    size_t state_step;
    const float *keys;  /* [d_k][C] */
    float *deltas;      /* column `from` of row 0 */
    size_t deltas_step;
};

/* Where the segment's rows read and write: its block, or scratch. */
static void segment_open(const struct piece *p, struct segment *g, bool first)
{
    const struct state_shape *s = p->b.shape;
    float *part = part_of(&p->b, g->block);
    size_t state = (size_t)p->index * s->d_k * s->d_v + p->from;
    g->state = part ? part + p->b.at->state + state : p->w.state;
    g->state_step = part ? s->d_v : p->n;
    if (g->block == 0)
        g->state = NULL;
    g->keys = part ? part + p->b.at->keys : p->w.keys;
    g->deltas = part ? part + p->b.at->deltas + (size_t)p->index * s->anchor * s->d_v + p->from : p->w.deltas;
    g->deltas_step = part ? s->d_v : p->n;
    uint32_t earlier = first ? g->t0 : 0; /* rows of the block from before the span */
    for (uint32_t t = 0; t < earlier; t++)
        p->w.gates[t] = part[p->b.at->gates + (size_t)p->index * s->anchor + t];
    for (uint32_t t = g->t0; t < g->t1; t++) {
        uint32_t row = g->row + t - g->t0;
        p->w.gates[t] = row_of(&p->op->a, row)[p->value];
        const float *key = row_of(&p->op->qkv, row) + p->op->k_at + (size_t)p->head * s->d_k;
        for (uint32_t e = 0; !part && e < s->d_k; e++)
            p->w.keys[(size_t)e * s->anchor + t] = key[e];
    }
}

/* q and, but for Mamba 2, k of all rows times what is in b; one row alone: both at once, so that b is read once. */
static void query_products(const struct piece *p, const struct segment *g, struct cpu_product *job, float *for_q, float *for_k)
{
    const struct state_shape *s = p->b.shape;
    const struct tensor *x = &p->op->qkv;
    const float *q = row_of(x, g->row) + p->op->q_at + (size_t)p->head * s->d_k;
    size_t apart = (size_t)s->heads * s->d_k;
    job->a = q, job->out = for_q, job->m = g->t1 - g->t0, job->a_step = x->stride;
    if (p->op->skip) {
        p->k->product(job);
        return;
    }
    if (job->m == 1) {
        job->m = 2, job->a_step = apart, job->out_step = (size_t)(for_k - for_q);
        p->k->product(job);
        return;
    }
    p->k->product(job);
    job->a = q + apart, job->out = for_k;
    p->k->product(job);
}

/* What rows read of the state and of the block's keys, all rows of the segment at once. */
static void segment_products(const struct piece *p, const struct segment *g)
{
    const struct state_shape *s = p->b.shape;
    struct cpu_product state = {.b = g->state, .b_step = g->state_step, .out_step = p->n, .k = g->state ? s->d_k : 0, .n = p->n};
    struct cpu_product keys = {.b = g->keys, .b_step = s->anchor, .out_step = s->anchor, .k = s->d_k, .n = (g->t1 + 7) / 8 * 8};
    query_products(p, g, &state, p->w.asked, p->w.seen);
    query_products(p, g, &keys, p->w.qk, p->w.kk);
}

/* decay[j] = exp(l_t + .. + l_{j+1}), summed from t downwards; returns g, the product over the whole block. */
static float decay_make(const struct piece *p, uint32_t t)
{
    float *e = p->w.decay, sum = p->w.gates[t];
    for (uint32_t j = t; j > 0; j--) {
        e[j - 1] = sum;
        sum = sum + p->w.gates[j - 1];
    }
    e[t] = sum;
    p->k->exps(e, t + 1);
    return e[t];
}

/* out = fma(by, x, out) */
static void fused(const struct piece *p, float by, const float *x, float *out)
{
    struct cpu_product job = {.a = &by, .b = x, .m = 1, .k = 1, .n = p->n, .out = out, .carry = true};
    p->k->product(&job);
}

static void row_run(const struct piece *p, const struct segment *g, uint32_t t)
{
    const struct state_shape *s = p->b.shape;
    uint32_t i = t - g->t0, row = g->row + i;
    float gate = decay_make(p, t), *kk = p->w.kk + (size_t)i * s->anchor, *qk = p->w.qk + (size_t)i * s->anchor;
    const float *v = row_of(&p->op->qkv, row) + p->op->v_at + (size_t)p->value * s->d_v + p->from;
    float *u = g->deltas + t * g->deltas_step, *y = row_of(&p->op->y, row) + (size_t)p->value * s->d_v + p->from;
    struct cpu_product job = {.a = kk, .b = g->deltas, .b_step = g->deltas_step, .m = 1, .k = t, .n = p->n, .out = p->w.past};
    p->k->mul(p->w.decay, qk, t);
    memcpy(u, v, p->n * sizeof *u);
    if (!p->op->skip) {
        p->k->mul(p->w.decay, kk, t);
        p->k->product(&job);
        fused(p, -gate, p->w.seen + (size_t)i * p->n, u);
        p->k->add(p->w.past, u, p->n, -1.0f, 1.0f);
    }
    p->k->scale(u, u, p->n, row_of(&p->op->b, row)[p->value]);
    job.a = qk, job.k = t + 1, job.out = y;
    p->k->product(&job);
    fused(p, gate, p->w.asked + (size_t)i * p->n, y);
    if (p->op->skip)
        fused(p, p->op->skip[p->value], v, y);
}

/* After the block's last row, whose decay is still there: the next block's state, in place or in scratch. */
static void fold(const struct piece *p, const struct segment *g)
{
    const struct state_shape *s = p->b.shape;
    uint32_t last = s->anchor - 1;
    float gate = p->w.decay[last], *part = part_of(&p->b, g->block + 1), rows[STATE_ANCHOR_MAX];
    float *to = part ? part + p->b.at->state + (size_t)p->index * s->d_k * s->d_v + p->from : p->w.state;
    size_t step = part ? s->d_v : p->n;
    p->w.decay[last] = 1.0f;
    for (uint32_t e = 0; e < s->d_k; e++) {
        memcpy(rows, g->keys + (size_t)e * s->anchor, s->anchor * sizeof *rows);
        p->k->mul(p->w.decay, rows, s->anchor);
        if (g->state)
            p->k->scale(g->state + e * g->state_step, to + e * step, p->n, gate);
        struct cpu_product job = {.a = rows, .b = g->deltas, .b_step = g->deltas_step, .m = 1, .k = s->anchor, .n = p->n,
                                  .out = to + e * step, .carry = g->state != NULL};
        p->k->product(&job);
    }
}

static void piece_run(const struct piece *p)
{
    uint32_t c = p->b.shape->anchor, at = 0;
    while (at < p->span->row_count) {
        uint32_t pos = p->span->pos_first + at, t0 = pos % c, left = p->span->row_count - at;
        struct segment g = {.block = pos / c, .t0 = t0, .t1 = t0 + left < c ? t0 + left : c, .row = p->span->row_first + at};
        segment_open(p, &g, at == 0);
        segment_products(p, &g);
        for (uint32_t t = g.t0; t < g.t1; t++)
            row_run(p, &g, t);
        if (g.t1 == c)
            fold(p, &g);
        at += g.t1 - g.t0;
    }
}

/* Pieces a value head is cut in: enough for all workers, whole vectors each. */
static uint32_t pieces_of(const struct state_shape *s, uint32_t count)
{
    uint32_t values = s->heads * s->values, most = s->d_v / PIECE_UNIT, pieces = (2 * count + values - 1) / values;
    most = most ? most : 1;
    return pieces < most ? pieces : most;
}

static void net_run(struct device *d, uint32_t me, uint32_t count, const struct net *op)
{
    const struct state_shape *s = &op->layer->shape;
    struct piece p = {.op = op, .k = cpu_kernels_of(d)};
    struct state_layout at;
    float *mine = cpu_scratch(d, me, work_lay(NULL, s->d_k, s->d_v, &p.w));
    if (!mine || !spans_startable(d, op->layer, op->spans, op->span_count, op->tables))
        return; /* every worker sees the same */
    work_lay(mine, s->d_k, s->d_v, &p.w);
    state_layout(s, &at);
    uint32_t values = s->heads * s->values, pieces = pieces_of(s, count), from, to;
    cpu_split(2 * s->heads + values, 1, me, count, &from, &to);
    for (uint32_t i = from; i < to; i++)
        slice_run(op, p.k, &at, i);
    cpu_barrier(d, me);
    cpu_split(values * pieces, 1, me, count, &from, &to);
    for (uint32_t i = from; i < to; i++) {
        uint32_t end;
        p.value = i / pieces;
        value_place(op, p.value, &p.head, &p.index);
        cpu_split(s->d_v, PIECE_UNIT, i % pieces, pieces, &p.from, &end);
        p.n = end - p.from;
        for (uint32_t j = 0; j < op->span_count; j++) {
            p.span = op->spans + j;
            p.b = blocks_of(op->layer, &at, p.head, op->tables + p.span->table_first);
            piece_run(&p);
        }
    }
}

static void run_delta_net(struct device *d, uint32_t me, uint32_t count, const void *op)
{
    struct net net = net_of_delta(op);
    net_run(d, me, count, &net);
}

static void run_mamba(struct device *d, uint32_t me, uint32_t count, const void *op)
{
    struct net net = net_of_mamba(op);
    net_run(d, me, count, &net);
}

int cpu_op_short_conv(struct device *d, const struct op_short_conv *op)
{
    return cpu_enqueue(d, run_short_conv, op, sizeof *op);
}

int cpu_op_delta_net(struct device *d, const struct op_delta_net *op)
{
    return cpu_enqueue(d, run_delta_net, op, sizeof *op);
}

int cpu_op_mamba(struct device *d, const struct op_mamba *op)
{
    return cpu_enqueue(d, run_mamba, op, sizeof *op);
}
