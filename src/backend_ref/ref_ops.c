/* backend_ref/ref_ops.c - the meaning of the ops that work row by row, in the plainest form.
 *
 * Storage is f32; sums run in f64, so that what is compared with this is the error of the other side. */
#include "backend_ref/ref_int.h"

#include "base/math.h"
#include "base/mem.h"

#include <math.h>
#include <string.h>

enum { LINEAR_ROWS = 8 };

int ref_run_copy_in(struct device *d, const void *p)
{
    (void)d;
    const struct op_copy_in *op = p;
    memcpy(op->dst, op->src, op->size_bytes);
    return 0;
}

int ref_run_copy_out(struct device *d, const void *p)
{
    (void)d;
    const struct op_copy_out *op = p;
    memcpy(op->dst, op->src, op->size_bytes);
    return 0;
}

int ref_run_copy(struct device *d, const void *p)
{
    (void)d;
    const struct op_copy *op = p;
    memcpy(op->dst, op->src, op->size_bytes);
    return 0;
}

int ref_run_embed(struct device *d, const void *p)
{
    (void)d;
    const struct op_embed *op = p;
    for (uint32_t r = 0; r < op->y.rows; r++) {
        if (op->ids[r] == UINT32_MAX) { /* a choice that found nothing; the row is never kept */
            memset(ref_row(&op->y, r), 0, op->y.cols * sizeof(float));
            continue;
        }
        if (op->ids[r] >= op->w->head.rows && !op->wrap)
            return ERR_INTERNAL;
        const float *w = op->w->values + (size_t)(op->ids[r] < op->w->head.rows ? op->ids[r] : 0) * op->y.cols;
        for (uint32_t c = 0; c < op->y.cols; c++)
            ref_row(&op->y, r)[c] = op->scale * w[c];
    }
    return 0;
}

/* The products of one weight row with LINEAR_ROWS rows of x, xt = [cols][LINEAR_ROWS]; each sum runs over the columns in order. */
static void linear_sums(const float *w, const double *xt, uint32_t cols, double sums[LINEAR_ROWS])
{
    double s[LINEAR_ROWS] = {0};
    for (uint32_t c = 0; c < cols; c++) {
        double wc = (double)w[c];
#pragma GCC unroll 8
        for (uint32_t j = 0; j < LINEAR_ROWS; j++)
            s[j] += xt[(size_t)c * LINEAR_ROWS + j] * wc;
    }
    memcpy(sums, s, sizeof s);
}

double ref_linear_sum(const float *w, const float *x, uint32_t cols)
{
    double sum = 0;
    for (uint32_t c = 0; c < cols; c++)
        sum += (double)x[c] * (double)w[c];
    return sum;
}

/* The same for REF_SUMS weight rows side by side, because the chains of one sum each are independent. */
void ref_linear_sums(const float *w, const float *x, uint32_t cols, double sums[REF_SUMS])
{
    const float *w1 = w + cols, *w2 = w1 + cols, *w3 = w2 + cols;
    double s0 = 0, s1 = 0, s2 = 0, s3 = 0;
    for (uint32_t c = 0; c < cols; c++) {
        double xc = (double)x[c];
        s0 += xc * (double)w[c];
        s1 += xc * (double)w1[c];
        s2 += xc * (double)w2[c];
        s3 += xc * (double)w3[c];
    }
    sums[0] = s0, sums[1] = s1, sums[2] = s2, sums[3] = s3;
}

static void linear_store(const struct op_linear *op, uint32_t row, uint32_t o, double sum)
{
    float value = (float)sum, *y = ref_row(&op->y, row) + o;
    if (op->bias)
        value += op->bias[o];
    value *= op->alpha;
    *y = op->add ? *y + value : value;
}

static void linear_row(const struct op_linear *op, uint32_t row)
{
    const float *x = ref_row(&op->x, row);
    uint32_t o = 0, cols = op->x.cols;
    for (; o + REF_SUMS <= op->y.cols; o += REF_SUMS) {
        double sums[REF_SUMS];
        ref_linear_sums(op->w->values + (size_t)o * cols, x, cols, sums);
        for (uint32_t i = 0; i < REF_SUMS; i++)
            linear_store(op, row, o + i, sums[i]);
    }
    for (; o < op->y.cols; o++)
        linear_store(op, row, o, ref_linear_sum(op->w->values + (size_t)o * cols, x, cols));
}

static void linear_block(const struct op_linear *op, uint32_t first, double *xt)
{
    for (uint32_t c = 0; c < op->x.cols; c++)
        for (uint32_t j = 0; j < LINEAR_ROWS; j++)
            xt[(size_t)c * LINEAR_ROWS + j] = (double)ref_row(&op->x, first + j)[c];
    for (uint32_t o = 0; o < op->y.cols; o++) {
        double sums[LINEAR_ROWS];
        linear_sums(op->w->values + (size_t)o * op->x.cols, xt, op->x.cols, sums);
        for (uint32_t j = 0; j < LINEAR_ROWS; j++)
            linear_store(op, first + j, o, sums[j]);
    }
}

/* Rows in blocks: the reference is used on whole texts.  What is left, one by one. */
int ref_run_linear(struct device *d, const void *p)
{
    (void)d;
    const struct op_linear *op = p;
    uint32_t first = 0;
    if (op->x.rows >= LINEAR_ROWS) {
        double *xt = mem_try_array((size_t)op->x.cols * LINEAR_ROWS, sizeof *xt);
        if (!xt)
            return ERR_NOMEM;
        for (; first + LINEAR_ROWS <= op->x.rows; first += LINEAR_ROWS)
            linear_block(op, first, xt);
        mem_free(xt);
    }
    for (; first < op->x.rows; first++)
        linear_row(op, first);
    return 0;
}

int ref_run_linear_heads(struct device *d, const void *p)
{
    (void)d;
    const struct op_linear_heads *op = p;
    uint32_t in = op->w->head.cols, out = op->w->head.rows / op->n_heads;
    for (uint32_t r = 0; r < op->x.rows; r++)
        for (uint32_t h = 0; h < op->n_heads; h++) {
            const float *x = ref_row(&op->x, r) + (size_t)h * (in + op->tail), *w = op->w->values + (size_t)h * out * in;
            float *y = ref_row(&op->y, r) + (size_t)h * (out + op->tail);
            for (uint32_t o = 0; o < out; o++)
                y[o] = (float)ref_linear_sum(w + (size_t)o * in, x, in);
            for (uint32_t t = 0; t < op->tail; t++)
                y[out + t] = x[in + t];
        }
    return 0;
}

int ref_run_norm(struct device *d, const void *p)
{
    (void)d;
    const struct op_norm *op = p;
    for (uint32_t r = 0; r < op->x.rows; r++)
        for (uint32_t at = 0; at < op->x.cols; at += op->dim) {
            const float *x = ref_row(&op->x, r) + at;
            const float *w = op->w + (op->own ? at : 0);
            float *y = ref_row(&op->y, r) + at;
            double sum = 0, mean = 0;
            for (uint32_t c = 0; op->centred && c < op->dim; c++)
                mean += (double)x[c] / op->dim;
            for (uint32_t c = 0; c < op->dim; c++)
                sum += ((double)x[c] - mean) * ((double)x[c] - mean);
            float scale = (float)(1 / sqrt(sum / op->dim + (double)op->eps));
            for (uint32_t c = 0; c < op->dim; c++) {
                float value = (float)((double)x[c] - mean) * scale * w[c];
                y[c] = op->add ? y[c] + op->scale * value : value;
            }
        }
    return 0;
}

int ref_run_rope_table(struct device *d, const void *p)
{
    (void)d;
    const struct op_rope_table *op = p;
    for (uint32_t r = 0; r < op->table.rows; r++)
        for (uint32_t i = 0; i < op->n; i++) {
            double s, c;
            math_sincosd((double)((float)op->pos[r] * op->inv_freq[i]), &s, &c);
            ref_row(&op->table, r)[i] = (float)c * op->mscale;
            ref_row(&op->table, r)[op->n + i] = (float)s * op->mscale;
        }
    return 0;
}

int ref_run_rope(struct device *d, const void *p)
{
    (void)d;
    const struct op_rope *op = p;
    uint32_t n = op->table.cols / 2;
    for (uint32_t r = 0; r < op->x.rows; r++)
        for (uint32_t h = 0; h < op->n_heads; h++) {
            float *x = ref_row(&op->x, r) + (size_t)h * op->head_dim + op->first;
            const float *cosine = ref_row(&op->table, r), *sine = cosine + n;
            for (uint32_t i = 0; i < n; i++) {
                uint32_t a = op->pairing == ROPE_HALVES ? i : 2 * i, b = op->pairing == ROPE_HALVES ? i + n : 2 * i + 1;
                float x0 = x[a], x1 = x[b];
                x[a] = x0 * cosine[i] - x1 * sine[i];
                x[b] = x1 * cosine[i] + x0 * sine[i];
            }
        }
    return 0;
}

static float activate(enum act act, float x)
{
    switch (act) {
    case ACT_SILU:
        return x / (1 + math_expf(-x));
    case ACT_GELU_TANH:
        return 0.5f * x * (1 + math_tanhf(0.7978845608f * (x + 0.044715f * x * x * x)));
    case ACT_GELU_ERF:
        return 0.5f * x * (1 + math_erff(x * 0.7071067812f));
    case ACT_SIGMOID:
        return 1 / (1 + math_expf(-x));
    case ACT_RELU:
        return x > 0 ? x : 0;
    case ACT_CLAMPED: /* gated has it */
    case ACT_COUNT:
        break;
    }
    return NAN;
}

static float clamped(float gate, float up)
{
    gate = gate > 7 ? 7 : gate;
    up = up > 7 ? 7 : up < -7 ? -7 : up;
    return gate / (1 + math_expf(-1.702f * gate)) * (up + 1);
}

int ref_run_gated(struct device *d, const void *p)
{
    (void)d;
    const struct op_gated *op = p;
    for (uint32_t r = 0; r < op->y.rows; r++)
        for (uint32_t c = 0; c < op->y.cols; c++) {
            float gate = ref_row(&op->gate, r)[c], up = ref_row(&op->up, r)[c];
            ref_row(&op->y, r)[c] = op->act == ACT_CLAMPED ? clamped(gate, up) : activate(op->act, gate) * up;
        }
    return 0;
}

int ref_run_xielu(struct device *d, const void *p)
{
    (void)d;
    const struct op_xielu *op = p;
    for (uint32_t r = 0; r < op->x.rows; r++)
        for (uint32_t c = 0; c < op->x.cols; c++) {
            double x = (double)ref_row(&op->x, r)[c], least = x < (double)op->eps ? x : (double)op->eps;
            double curve = x > 0 ? (double)op->alpha_p * x * x : (math_expd(least) - 1 - x) * (double)op->alpha_n;
            ref_row(&op->x, r)[c] = (float)(curve + (double)op->beta * x);
        }
    return 0;
}

int ref_run_add(struct device *d, const void *p)
{
    (void)d;
    const struct op_add *op = p;
    for (uint32_t r = 0; r < op->y.rows; r++)
        for (uint32_t c = 0; c < op->y.cols; c++) {
            float *y = ref_row(&op->y, r) + c;
            *y = *y * op->y_scale + ref_row(&op->x, r)[c] * op->x_scale;
        }
    return 0;
}

int ref_run_scale(struct device *d, const void *p)
{
    (void)d;
    const struct op_scale *op = p;
    for (uint32_t r = 0; r < op->x.rows; r++)
        for (uint32_t c = 0; c < op->x.cols; c++)
            ref_row(&op->x, r)[c] = ref_row(&op->x, r)[c] * (op->w ? op->w[c] : 1.0f) * op->scale;
    return 0;
}

int ref_run_blend(struct device *d, const void *p)
{
    (void)d;
    const struct op_blend *op = p;
    for (uint32_t r = 0; r < op->y[0].rows; r++)
        for (uint32_t c = 0; c < op->y[0].cols; c++)
            for (uint32_t i = 0; i < op->m; i++) {
                double sum = (double)ref_row(&op->base[i], r)[c];
                for (uint32_t j = 0; j < op->n; j++)
                    sum += (double)(ref_row(&op->coef, r)[i * op->n + j] + op->shift) * (double)ref_row(&op->x[j], r)[c];
                ref_row(&op->y[i], r)[c] = (float)sum;
            }
    return 0;
}

static double mean_square(const float *x, uint32_t n, double mean)
{
    double sum = 0;
    for (uint32_t c = 0; c < n; c++)
        sum += ((double)x[c] - mean) * ((double)x[c] - mean);
    return sum / n;
}

int ref_run_match(struct device *d, const void *p)
{
    (void)d;
    const struct op_match *op = p;
    for (uint32_t r = 0; r < op->x.rows; r++) {
        float *y = ref_row(&op->y, r);
        double own = mean_square(y, op->y.cols, 0), by = sqrt(mean_square(ref_row(&op->x, r), op->x.cols, 0));
        by /= sqrt(own > (double)op->least ? own : (double)op->least);
        for (uint32_t c = 0; c < op->y.cols; c++)
            y[c] = (float)((double)y[c] * by);
    }
    return 0;
}

int ref_run_sparsify(struct device *d, const void *p)
{
    (void)d;
    const struct op_sparsify *op = p;
    for (uint32_t r = 0; r < op->x.rows; r++) {
        float *x = ref_row(&op->x, r);
        double mean = 0;
        for (uint32_t c = 0; c < op->x.cols; c++)
            mean += (double)x[c] / op->x.cols;
        double cut = mean + sqrt(mean_square(x, op->x.cols, mean)) * (double)op->factor;
        for (uint32_t c = 0; c < op->x.cols; c++)
            x[c] = (double)x[c] > cut ? (float)((double)x[c] - cut) : 0.0f;
    }
    return 0;
}

int ref_run_softcap(struct device *d, const void *p)
{
    (void)d;
    const struct op_softcap *op = p;
    for (uint32_t r = 0; r < op->x.rows; r++)
        for (uint32_t c = 0; c < op->x.cols; c++) {
            float *x = ref_row(&op->x, r) + c;
            *x = op->cap * math_tanhf(*x / op->cap);
        }
    return 0;
}

int ref_run_gather(struct device *d, const void *p)
{
    (void)d;
    const struct op_gather *op = p;
    for (uint32_t r = 0; r < op->y.rows; r++) {
        if (op->rows[r] >= op->x.rows)
            return ERR_INTERNAL;
        memcpy(ref_row(&op->y, r), ref_row(&op->x, op->rows[r]), op->y.cols * sizeof(float));
    }
    return 0;
}
