/* backend_cpu/cpu_rows.c - the ops that work row by row: copies, norm, rope, activations, add, scale, soft-cap, gather, sum of experts.
 *
 * Work is cut in pieces of whole rows, heads, or runs of columns where elements are independent; never inside a sum.
 * Does not:   know pages (cpu_attention.c), weights (cpu_linear.c). */
#include "backend_cpu/cpu_int.h"

#include "base/math.h"

#include <string.h>

enum { COLUMN_UNIT = 64, COPY_UNIT = 4096, SUM_UNIT = 512 };

static float *row_of(const struct tensor *t, uint32_t row)
{
    return (float *)t->data + (size_t)row * t->stride;
}

/* A worker's share of a [rows][cols] grid of independent elements, as runs of columns; next() gives one run at a time. */
struct share {
    uint32_t cols, per_row; /* columns; units a row */
    uint32_t at, end;       /* units */
    uint32_t row, from, to; /* the run */
};

static struct share share_of(uint32_t rows, uint32_t cols, uint32_t me, uint32_t count)
{
    struct share s = {.cols = cols, .per_row = (cols + COLUMN_UNIT - 1) / COLUMN_UNIT};
    cpu_split(rows * s.per_row, 1, me, count, &s.at, &s.end);
    return s;
}

static bool next(struct share *s)
{
    if (s->at >= s->end)
        return false;
    uint32_t first = s->at % s->per_row, left = s->end - s->at, units = s->per_row - first;
    units = units < left ? units : left;
    s->row = s->at / s->per_row;
    s->from = first * COLUMN_UNIT;
    s->to = s->from + units * COLUMN_UNIT < s->cols ? s->from + units * COLUMN_UNIT : s->cols;
    s->at += units;
    return true;
}

/* ---- copies ---- */

static void copy_part(void *dst, const void *src, size_t size_bytes, uint32_t me, uint32_t count)
{
    size_t units = (size_bytes + COPY_UNIT - 1) / COPY_UNIT;
    size_t from = units * me / count * COPY_UNIT, to = units * (me + 1) / count * COPY_UNIT;
    to = to < size_bytes ? to : size_bytes;
    if (from < to)
        memcpy((char *)dst + from, (const char *)src + from, to - from);
}

#define COPY_OP(name)                                                                       \
    static void run_##name(struct device *d, uint32_t me, uint32_t count, const void *p)    \
    {                                                                                       \
        (void)d;                                                                            \
        const struct op_##name *op = p;                                                     \
        copy_part(op->dst, op->src, op->size_bytes, me, count);                             \
    }
COPY_OP(copy_in)
COPY_OP(copy_out)
COPY_OP(copy)

/* ---- norm, rope ---- */

static void run_norm(struct device *d, uint32_t me, uint32_t count, const void *p)
{
    const struct op_norm *op = p;
    const struct cpu_kernels *k = cpu_kernels_of(d);
    uint32_t groups = op->x.cols / op->dim, from, to;
    cpu_split(op->x.rows * groups, 1, me, count, &from, &to);
    for (uint32_t i = from; i < to; i++) {
        size_t at = (size_t)(i % groups) * op->dim;
        const float *x = row_of(&op->x, i / groups) + at, *w = op->w + (op->own ? at : 0);
        float *y = row_of(&op->y, i / groups) + at;
        if (op->centred)
            k->norm_centred(x, w, y, op->dim, op->eps);
        else
            k->norm(x, w, y, op->dim, op->eps, op->add, op->scale);
    }
}

static void run_rope_table(struct device *d, uint32_t me, uint32_t count, const void *p)
{
    (void)d;
    const struct op_rope_table *op = p;
    uint32_t from, to;
    cpu_split(op->table.rows * op->n, 8, me, count, &from, &to);
    for (uint32_t i = from; i < to; i++) {
        uint32_t row = i / op->n, pair = i % op->n;
        float *out = row_of(&op->table, row);
        double sine, cosine;
        math_sincosd((double)((float)op->pos[row] * op->inv_freq[pair]), &sine, &cosine);
        out[pair] = (float)cosine * op->mscale;
        out[op->n + pair] = (float)sine * op->mscale;
    }
}

static void run_rope(struct device *d, uint32_t me, uint32_t count, const void *p)
{
    const struct op_rope *op = p;
    const struct cpu_kernels *k = cpu_kernels_of(d);
    uint32_t from, to, n = op->table.cols / 2;
    cpu_split(op->x.rows * op->n_heads, 1, me, count, &from, &to);
    for (uint32_t i = from; i < to; i++) {
        const float *cosine = row_of(&op->table, i / op->n_heads);
        k->rope(row_of(&op->x, i / op->n_heads) + (size_t)(i % op->n_heads) * op->head_dim + op->first, cosine, cosine + n, n,
                op->pairing == ROPE_ADJACENT);
    }
}

/* ---- element by element ---- */

static void run_gated(struct device *d, uint32_t me, uint32_t count, const void *p)
{
    const struct op_gated *op = p;
    const struct cpu_kernels *k = cpu_kernels_of(d);
    cpu_gated_fn f = cpu_gated_of(k, op->act);
    for (struct share s = share_of(op->y.rows, op->y.cols, me, count); next(&s);)
        f(row_of(&op->gate, s.row) + s.from, row_of(&op->up, s.row) + s.from, row_of(&op->y, s.row) + s.from, s.to - s.from);
}

static void run_xielu(struct device *d, uint32_t me, uint32_t count, const void *p)
{
    const struct op_xielu *op = p;
    const struct cpu_kernels *k = cpu_kernels_of(d);
    for (struct share s = share_of(op->x.rows, op->x.cols, me, count); next(&s);)
        k->xielu(row_of(&op->x, s.row) + s.from, s.to - s.from, op->alpha_p, op->alpha_n, op->beta, op->eps);
}

static void run_add(struct device *d, uint32_t me, uint32_t count, const void *p)
{
    const struct op_add *op = p;
    const struct cpu_kernels *k = cpu_kernels_of(d);
    for (struct share s = share_of(op->y.rows, op->y.cols, me, count); next(&s);)
        k->add(row_of(&op->x, s.row) + s.from, row_of(&op->y, s.row) + s.from, s.to - s.from, op->x_scale, op->y_scale);
}

static void run_scale(struct device *d, uint32_t me, uint32_t count, const void *p)
{
    const struct op_scale *op = p;
    const struct cpu_kernels *k = cpu_kernels_of(d);
    for (struct share s = share_of(op->x.rows, op->x.cols, me, count); next(&s);) {
        float *x = row_of(&op->x, s.row) + s.from;
        if (op->w)
            k->mul(op->w + s.from, x, s.to - s.from);
        k->scale(x, x, s.to - s.from, op->scale);
    }
}

static void run_blend(struct device *d, uint32_t me, uint32_t count, const void *p)
{
    const struct op_blend *op = p;
    const struct cpu_kernels *k = cpu_kernels_of(d);
    for (struct share s = share_of(op->y[0].rows, op->y[0].cols, me, count); next(&s);)
        for (uint32_t i = 0; i < op->m; i++) {
            const float *coef = row_of(&op->coef, s.row) + (size_t)i * op->n, *base = row_of(&op->base[i], s.row) + s.from;
            float *y = row_of(&op->y[i], s.row) + s.from;
            if (y != base)
                memcpy(y, base, (s.to - s.from) * sizeof *y);
            for (uint32_t j = 0; j < op->n; j++)
                k->fused(coef[j] + op->shift, row_of(&op->x[j], s.row) + s.from, y, s.to - s.from);
        }
}

static void run_match(struct device *d, uint32_t me, uint32_t count, const void *p)
{
    const struct op_match *op = p;
    const struct cpu_kernels *k = cpu_kernels_of(d);
    uint32_t from, to, n = op->x.cols;
    cpu_split(op->x.rows, 1, me, count, &from, &to);
    for (uint32_t r = from; r < to; r++) {
        float *y = row_of(&op->y, r), own = k->squares(y, n) / (float)n;
        own = own > op->least ? own : op->least;
        k->scale(y, y, n, __builtin_sqrtf(k->squares(row_of(&op->x, r), n) / (float)n) / __builtin_sqrtf(own));
    }
}

static void run_sparsify(struct device *d, uint32_t me, uint32_t count, const void *p)
{
    const struct op_sparsify *op = p;
    const struct cpu_kernels *k = cpu_kernels_of(d);
    uint32_t from, to;
    cpu_split(op->x.rows, 1, me, count, &from, &to);
    for (uint32_t r = from; r < to; r++)
        k->sparsify(row_of(&op->x, r), op->x.cols, op->factor);
}

static void run_softcap(struct device *d, uint32_t me, uint32_t count, const void *p)
{
    const struct op_softcap *op = p;
    const struct cpu_kernels *k = cpu_kernels_of(d);
    for (struct share s = share_of(op->x.rows, op->x.cols, me, count); next(&s);)
        k->softcap(row_of(&op->x, s.row) + s.from, s.to - s.from, 1.0f, op->cap);
}

/* Each run of columns in pieces that stay in registers' reach. */
static void run_expert_sum(struct device *d, uint32_t me, uint32_t count, const void *p)
{
    const struct op_expert_sum *op = p;
    const struct cpu_kernels *k = cpu_kernels_of(d);
    uint32_t slots = op->x.rows / op->y.rows;
    for (struct share s = share_of(op->y.rows, op->y.cols, me, count); next(&s);) {
        const float *w = op->weights + (size_t)s.row * slots;
        for (uint32_t from = s.from; from < s.to; from += SUM_UNIT) {
            uint32_t n = s.to - from < SUM_UNIT ? s.to - from : SUM_UNIT;
            float v[SUM_UNIT], *y = row_of(&op->y, s.row) + from;
            k->scale(row_of(&op->x, s.row * slots) + from, v, n, w[0]);
            for (uint32_t i = 1; i < slots; i++)
                k->add(row_of(&op->x, s.row * slots + i) + from, v, n, w[i], 1.0f);
            if (op->add)
                k->add(v, y, n, 1.0f, 1.0f);
            else
                memcpy(y, v, n * sizeof *y);
        }
    }
}

static void run_gather(struct device *d, uint32_t me, uint32_t count, const void *p)
{
    const struct op_gather *op = p;
    for (struct share s = share_of(op->y.rows, op->y.cols, me, count); next(&s);) {
        if (op->rows[s.row] >= op->x.rows) {
            cpu_fail(d, ERR_INTERNAL, "cpu: gather from a row that is not there");
            return;
        }
        memcpy(row_of(&op->y, s.row) + s.from, row_of(&op->x, op->rows[s.row]) + s.from, (s.to - s.from) * sizeof(float));
    }
}

#define ENQUEUE_OP(name)                                               \
    int cpu_op_##name(struct device *d, const struct op_##name *op)    \
    {                                                                  \
        return cpu_enqueue(d, run_##name, op, sizeof *op);             \
    }
ENQUEUE_OP(copy_in)
ENQUEUE_OP(copy_out)
ENQUEUE_OP(copy)
ENQUEUE_OP(norm)
ENQUEUE_OP(rope_table)
ENQUEUE_OP(rope)
ENQUEUE_OP(gated)
ENQUEUE_OP(xielu)
ENQUEUE_OP(add)
ENQUEUE_OP(scale)
ENQUEUE_OP(blend)
ENQUEUE_OP(match)
ENQUEUE_OP(sparsify)
ENQUEUE_OP(softcap)
ENQUEUE_OP(expert_sum)
ENQUEUE_OP(gather)
