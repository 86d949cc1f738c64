/* backend_ref/ref_state.c - recurrent layers, one position after the other in f64: what short_conv, delta_net and mamba mean.
 *
 * The state before a span is rebuilt from its block: the state at the anchor, then the rows since, each applied as the recurrence
 * says.  Blocks are read and written as tensor/state.h lays them out. */
#include "backend_ref/ref_int.h"

#include "base/mem.h"

#include <math.h>
#include <string.h>

/* one head of one sequence */
struct blocks {
    const struct state_layer *layer;
    struct state_layout at;
    const uint32_t *table;
    uint32_t head;
};

static struct blocks blocks_of(const struct state_layer *layer, const uint32_t *table, uint32_t head)
{
    struct blocks b = {.layer = layer, .table = table, .head = head};
    state_layout(&layer->shape, &b.at);
    return b;
}

/* The head's part of a block; NULL: not kept. */
static float *part_of(const struct blocks *b, uint32_t block)
{
    const struct state_part *p = &b->layer->parts[b->head];
    return b->table[block] ? (float *)(void *)(p->pages[b->table[block]] + p->offset) : NULL;
}

/* ---- the convolution's inputs ---- */

/* The input at `pos`, for a span that starts at `start`; the block has those before it. */
static float input_get(const struct blocks *b, uint32_t start, int64_t pos, uint32_t channel)
{
    const struct state_shape *s = &b->layer->shape;
    if (pos < 0)
        return 0;
    const float *part = part_of(b, start / s->anchor);
    int64_t t = pos - (int64_t)(start / s->anchor) * s->anchor;
    if (t >= 0)
        return part[b->at.inputs + (size_t)t * s->channels + channel];
    return part[b->at.tail + (size_t)(t + s->taps - 1) * s->channels + channel];
}

/* The span's inputs of one channel (a column of x) into the blocks that are kept, the last of a block into the tail of the next. */
static void inputs_keep(const struct blocks *b, const struct kv_span *sp, const float *x, size_t stride, uint32_t channel)
{
    const struct state_shape *s = &b->layer->shape;
    for (uint32_t r = 0; r < sp->row_count; r++) {
        uint32_t pos = sp->pos_first + r, t = pos % s->anchor;
        float *part = part_of(b, pos / s->anchor);
        if (part)
            part[b->at.inputs + (size_t)t * s->channels + channel] = x[(size_t)(sp->row_first + r) * stride];
        part = t + 1 == s->anchor ? part_of(b, pos / s->anchor + 1) : NULL;
        for (uint32_t i = 0; part && i + 1 < s->taps; i++) {
            int64_t at = (int64_t)r + 2 + i - s->taps;
            part[b->at.tail + (size_t)i * s->channels + channel] =
                at >= 0 ? x[(size_t)(sp->row_first + (uint32_t)at) * stride] : input_get(b, sp->pos_first, (int64_t)sp->pos_first + at, channel);
        }
    }
}

/* conv at row r of a span; inputs of the span come from `x` (one column), those before it from the block. */
static double convolve(const struct blocks *b, const struct kv_span *sp, uint32_t r, const float *x, size_t stride, const float *w,
                       size_t w_step, uint32_t channel)
{
    const struct state_shape *s = &b->layer->shape;
    double sum = 0;
    for (uint32_t i = 0; i < s->taps; i++) {
        int64_t at = (int64_t)r - s->taps + 1 + i;
        float z = at >= 0 ? x[(size_t)(sp->row_first + (uint32_t)at) * stride] : input_get(b, sp->pos_first, (int64_t)sp->pos_first + at, channel);
        sum += (double)w[i * w_step] * (double)z;
    }
    return sum;
}

/* May the span start where it does?  Its block must be kept unless it is the first position. */
static bool startable(const struct state_layer *layer, const struct kv_span *sp, const uint32_t *table)
{
    return sp->pos_first == 0 || table[sp->pos_first / layer->shape.anchor] != 0;
}

int ref_run_short_conv(struct device *d, const void *p)
{
    (void)d;
    const struct op_short_conv *op = p;
    uint32_t n = op->layer->shape.channels;
    for (uint32_t i = 0; i < op->span_count; i++) {
        const struct kv_span *sp = op->spans + i;
        struct blocks b = blocks_of(op->layer, op->tables + sp->table_first, 0);
        if (!startable(op->layer, sp, b.table))
            return ERR_INTERNAL;
        for (uint32_t r = sp->row_first; r < sp->row_first + sp->row_count; r++)
            for (uint32_t c = 0; c < n; c++)
                ref_row(&op->x, r)[c] *= ref_row(&op->x, r)[2 * n + c];
        for (uint32_t r = 0; r < sp->row_count; r++)
            for (uint32_t c = 0; c < n; c++) {
                float sum = (float)convolve(&b, sp, r, (float *)op->x.data + c, op->x.stride, op->w + c, n, c);
                if (op->bias)
                    sum += op->bias[c];
                ref_row(&op->y, sp->row_first + r)[c] = ref_row(&op->x, sp->row_first + r)[n + c] * sum;
            }
        for (uint32_t c = 0; c < n; c++)
            inputs_keep(&b, sp, (float *)op->x.data + c, op->x.stride, c);
    }
    return 0;
}

/* ---- delta net and Mamba 2 ---- */

/* Either op, in delta_net's words: C is q, B is k, x is v, dt is a, times is b. */
struct net {
    struct tensor qkv, a, b, y;
    const float *conv, *conv_bias, *rate, *dt_bias, *skip; /* skip: Mamba 2 */
    float eps, dt_least;
    bool tiled;
    uint32_t q_at, k_at, v_at; /* first columns of qkv */
    const struct state_layer *layer;
    const uint32_t *tables;
};

/* one value head of one span */
struct value_head {
    const struct net *op;
    const struct kv_span *sp;
    struct blocks b;
    uint32_t value, index; /* of all value heads; of its key head's */
    const double *z;       /* [rows of the span][channels]: silu(conv) of the key head: q, k, values */
    double *state;         /* [d_k][d_v] */
};

static void rank_one(double *state, const struct state_shape *s, double decay, const float *keys, size_t key_step, const float *u)
{
    for (uint32_t e = 0; e < s->d_k; e++)
        for (uint32_t c = 0; c < s->d_v; c++)
            state[(size_t)e * s->d_v + c] = decay * state[(size_t)e * s->d_v + c] + (double)keys[e * key_step] * (double)u[c];
}

/* The state before the span. */
static void state_load(const struct value_head *h)
{
    const struct state_shape *s = &h->op->layer->shape;
    uint32_t block = h->sp->pos_first / s->anchor, n = s->d_k * s->d_v;
    const float *part = part_of(&h->b, block);
    for (uint32_t i = 0; i < n; i++)
        h->state[i] = block ? (double)part[h->b.at.state + (size_t)h->index * n + i] : 0;
    for (uint32_t t = 0; t < h->sp->pos_first % s->anchor; t++) {
        double l = (double)part[h->b.at.gates + (size_t)h->index * s->anchor + t];
        rank_one(h->state, s, exp(l), part + h->b.at.keys + t, s->anchor,
                 part + h->b.at.deltas + ((size_t)h->index * s->anchor + t) * s->d_v);
    }
}

static double norm_of(const double *x, uint32_t n, float eps)
{
    double sum = 0;
    for (uint32_t i = 0; i < n; i++)
        sum += x[i] * x[i];
    return 1 / sqrt(sum + (double)eps);
}

/* What the row leaves in its block, and in the next when it is the last. */
static void row_keep(const struct value_head *h, uint32_t pos, const float *k, const float *u, double l)
{
    const struct state_shape *s = &h->op->layer->shape;
    uint32_t t = pos % s->anchor, n = s->d_k * s->d_v;
    float *part = part_of(&h->b, pos / s->anchor);
    if (part) {
        for (uint32_t e = 0; e < s->d_k; e++)
            part[h->b.at.keys + (size_t)e * s->anchor + t] = k[e];
        memcpy(part + h->b.at.deltas + ((size_t)h->index * s->anchor + t) * s->d_v, u, s->d_v * sizeof *u);
        part[h->b.at.gates + (size_t)h->index * s->anchor + t] = (float)l;
    }
    if (t + 1 < s->anchor)
        return;
    part = part_of(&h->b, pos / s->anchor + 1);
    for (uint32_t i = 0; i < n; i++) {
        float kept = (float)h->state[i];
        h->state[i] = (double)kept; /* as the next span would read it */
        if (part)
            part[h->b.at.state + (size_t)h->index * n + i] = kept;
    }
}

static void value_row(const struct value_head *h, uint32_t r)
{
    const struct state_shape *s = &h->op->layer->shape;
    uint32_t row = h->sp->row_first + r;
    const double *z = h->z + (size_t)r * s->channels, *v = z + 2 * s->d_k + (size_t)h->index * s->d_v;
    bool plain = h->op->skip != NULL;
    double q_by = plain ? 1 : norm_of(z, s->d_k, h->op->eps) / sqrt(s->d_k), k_by = plain ? 1 : norm_of(z + s->d_k, s->d_k, h->op->eps);
    double x = (double)ref_row(&h->op->a, row)[h->value] + (double)h->op->dt_bias[h->value], time = x > 30 ? x : log1p(exp(x));
    time = time > (double)h->op->dt_least ? time : (double)h->op->dt_least;
    double l = (double)(float)((double)h->op->rate[h->value] * time); /* as it is kept */
    double beta = plain ? time : 1 / (1 + exp(-(double)ref_row(&h->op->b, row)[h->value]));
    float k[STATE_DIM_MAX], u[STATE_DIM_MAX], *y = ref_row(&h->op->y, row) + (size_t)h->value * s->d_v;
    for (uint32_t e = 0; e < s->d_k; e++)
        k[e] = (float)(z[s->d_k + e] * k_by);
    for (uint32_t c = 0; c < s->d_v; c++) {
        double seen = 0;
        for (uint32_t e = 0; !plain && e < s->d_k; e++)
            seen += exp(l) * h->state[(size_t)e * s->d_v + c] * (double)k[e];
        u[c] = (float)(beta * (v[c] - seen));
    }
    rank_one(h->state, s, exp(l), k, 1, u);
    for (uint32_t c = 0; c < s->d_v; c++) {
        double sum = 0;
        for (uint32_t e = 0; e < s->d_k; e++)
            sum += h->state[(size_t)e * s->d_v + c] * z[e] * q_by;
        y[c] = (float)(plain ? sum + (double)h->op->skip[h->value] * v[c] : sum);
    }
    row_keep(h, h->sp->pos_first + r, k, u, l);
}

/* Column of qkv of a key head's channel. */
static uint32_t column(const struct net *op, uint32_t head, uint32_t channel, uint32_t *value)
{
    const struct state_shape *s = &op->layer->shape;
    if (channel < 2 * s->d_k)
        return (channel < s->d_k ? op->q_at : op->k_at) + head * s->d_k + channel % s->d_k;
    uint32_t index = (channel - 2 * s->d_k) / s->d_v;
    *value = op->tiled ? index * s->heads + head : head * s->values + index;
    return op->v_at + *value * s->d_v + (channel - 2 * s->d_k) % s->d_v;
}

static void key_head(const struct net *op, const struct kv_span *sp, uint32_t head, double *z, double *state)
{
    const struct state_shape *s = &op->layer->shape;
    struct blocks b = blocks_of(op->layer, op->tables + sp->table_first, head);
    uint32_t value = 0, all = s->heads * s->channels;
    for (uint32_t c = 0; c < s->channels; c++) {
        uint32_t at = column(op, head, c, &value);
        for (uint32_t r = 0; r < sp->row_count; r++) {
            double sum = convolve(&b, sp, r, (float *)op->qkv.data + at, op->qkv.stride, op->conv + at, all, c);
            sum += op->conv_bias ? (double)op->conv_bias[at] : 0;
            z[(size_t)r * s->channels + c] = sum / (1 + exp(-sum));
        }
    }
    for (uint32_t i = 0; i < s->values; i++) {
        column(op, head, 2 * s->d_k + i * s->d_v, &value);
        struct value_head h = {.op = op, .sp = sp, .b = b, .value = value, .index = i, .z = z, .state = state};
        state_load(&h);
        for (uint32_t r = 0; r < sp->row_count; r++)
            value_row(&h, r);
    }
    for (uint32_t c = 0; c < s->channels; c++)
        inputs_keep(&b, sp, (float *)op->qkv.data + column(op, head, c, &value), op->qkv.stride, c);
}

static int net_run(const struct net *op, const struct kv_span *spans, uint32_t span_count)
{
    const struct state_shape *s = &op->layer->shape;
    int rc = 0;
    for (uint32_t i = 0; i < span_count && rc == 0; i++) {
        const struct kv_span *sp = spans + i;
        double *z = mem_try_array((size_t)sp->row_count * s->channels, sizeof *z);
        double *state = mem_try_array((size_t)s->d_k * s->d_v, sizeof *state);
        rc = !z || !state ? ERR_NOMEM : startable(op->layer, sp, op->tables + sp->table_first) ? 0 : ERR_INTERNAL;
        for (uint32_t h = 0; h < s->heads && rc == 0; h++)
            key_head(op, sp, h, z, state);
        mem_free(z);
        mem_free(state);
    }
    return rc;
}

int ref_run_delta_net(struct device *d, const void *p)
{
    (void)d;
    const struct op_delta_net *op = p;
    uint32_t keys = op->layer->shape.heads * op->layer->shape.d_k;
    struct net net = {.qkv = op->qkv, .a = op->a, .b = op->b, .y = op->y, .conv = op->conv, .rate = op->rate, .dt_bias = op->dt_bias,
                      .eps = op->eps, .tiled = op->tiled, .k_at = keys, .v_at = 2 * keys, .layer = op->layer, .tables = op->tables};
    return net_run(&net, op->spans, op->span_count);
}

int ref_run_mamba(struct device *d, const void *p)
{
    (void)d;
    const struct op_mamba *op = p;
    const struct state_shape *s = &op->layer->shape;
    uint32_t values = s->heads * s->values * s->d_v;
    struct net net = {.qkv = op->xbc, .a = op->dt, .b = op->times, .y = op->y, .conv = op->conv, .conv_bias = op->conv_bias,
                      .rate = op->rate, .dt_bias = op->dt_bias, .skip = op->skip, .dt_least = op->dt_least, .k_at = values,
                      .q_at = values + s->heads * s->d_k, .layer = op->layer, .tables = op->tables};
    return net_run(&net, op->spans, op->span_count);
}
