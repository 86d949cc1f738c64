/* backend_cpu/kernels_ref_rows.c - level ref of the row kernels: complete, plain, and the definition of every bit.
 *
 * The orders are written out in docs/arithmetic.md; the other levels repeat them lane by lane.
 * No instruction-set flags: what this file does, every machine can do (fmaf is exact everywhere). */
#include "backend_cpu/kernels.h"

#include "base/math.h"
#include "base/rng.h"
#include "format/dtype.h"
#include "tensor/tensor.h"

#include <math.h>
#include <string.h>

static const float LOG2E = 1.44269504f;

/* a[i] + a[i + 8], then + 4, + 2, + 1 */
static float tree16(const float a[16])
{
    float b[8], c[4];
    for (int i = 0; i < 8; i++)
        b[i] = a[i] + a[i + 8];
    for (int i = 0; i < 4; i++)
        c[i] = b[i] + b[i + 4];
    return (c[0] + c[2]) + (c[1] + c[3]);
}

/* ---- rows ---- */

static float squares(const float *x, uint32_t n)
{
    float lanes[16] = {0};
    for (uint32_t i = 0; i < n; i++)
        lanes[i % 16] = fmaf(x[i], x[i], lanes[i % 16]);
    return tree16(lanes);
}

static void norm(const float *x, const float *w, float *y, uint32_t n, float eps, bool add, float scale)
{
    float r = 1.0f / sqrtf(squares(x, n) / (float)n + eps);
    for (uint32_t i = 0; i < n; i++) {
        float v = (x[i] * r) * w[i];
        y[i] = add ? y[i] + v * scale : v;
    }
}

/* Mean of n values and, in `square`, of the squares of what they are off it. */
static float mean_of(const float *x, uint32_t n, float *square)
{
    float sums[16] = {0}, lanes[16] = {0};
    for (uint32_t i = 0; i < n; i++)
        sums[i % 16] += x[i];
    float mean = tree16(sums) / (float)n;
    for (uint32_t i = 0; i < n; i++)
        lanes[i % 16] = fmaf(x[i] - mean, x[i] - mean, lanes[i % 16]);
    *square = tree16(lanes) / (float)n;
    return mean;
}

static void norm_centred(const float *x, const float *w, float *y, uint32_t n, float eps)
{
    float square, mean = mean_of(x, n, &square), r = 1.0f / sqrtf(square + eps);
    for (uint32_t i = 0; i < n; i++)
        y[i] = ((x[i] - mean) * r) * w[i];
}

static void sparsify(float *x, uint32_t n, float factor)
{
    float square, mean = mean_of(x, n, &square), cut = mean + sqrtf(square) * factor;
    for (uint32_t i = 0; i < n; i++)
        x[i] = x[i] - cut > 0 ? x[i] - cut : 0.0f;
}

static void fused(float a, const float *x, float *y, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        y[i] = fmaf(a, x[i], y[i]);
}

static void rope(float *x, const float *cosine, const float *sine, uint32_t n, bool adjacent)
{
    for (uint32_t i = 0; i < n; i++) {
        float *a = adjacent ? x + 2 * i : x + i, *b = adjacent ? a + 1 : a + n;
        float x0 = *a, x1 = *b;
        *a = fmaf(-x1, sine[i], x0 * cosine[i]);
        *b = fmaf(x0, sine[i], x1 * cosine[i]);
    }
}

static void gated_silu(const float *gate, const float *up, float *y, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        y[i] = (gate[i] / (1.0f + math_expf(-gate[i]))) * up[i];
}

static void gated_gelu_tanh(const float *gate, const float *up, float *y, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        float x = gate[i], z = fmaf((x * x) * x, 0.044715f, x) * -1.5957691f;
        y[i] = (x / (1.0f + math_expf(z))) * up[i];
    }
}

static void gated_gelu_erf(const float *gate, const float *up, float *y, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        float x = gate[i];
        y[i] = ((x * 0.5f) * (1.0f + math_erff(x * 0.70710678f))) * up[i];
    }
}

static void gated_sigmoid(const float *gate, const float *up, float *y, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        y[i] = (1.0f / (1.0f + math_expf(-gate[i]))) * up[i];
}

static void gated_clamped(const float *gate, const float *up, float *y, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        float g = gate[i] > 7.0f ? 7.0f : gate[i], u = up[i] > 7.0f ? 7.0f : up[i];
        u = u < -7.0f ? -7.0f : u;
        y[i] = (g / (1.0f + math_expf(g * -1.702f))) * (u + 1.0f);
    }
}

static void gated_relu(const float *gate, const float *up, float *y, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        y[i] = (gate[i] > 0 ? gate[i] : 0.0f) * up[i];
}

static void xielu(float *x, uint32_t n, float ap, float an, float b, float eps)
{
    for (uint32_t i = 0; i < n; i++) {
        float below = ((math_expf(x[i] < eps ? x[i] : eps) - 1.0f) - x[i]) * an, above = (ap * x[i]) * x[i];
        x[i] = (x[i] > 0 ? above : below) + b * x[i];
    }
}

static void add(const float *x, float *y, uint32_t n, float x_scale, float y_scale)
{
    for (uint32_t i = 0; i < n; i++)
        y[i] = y[i] * y_scale + x[i] * x_scale;
}

static void softcap(float *x, uint32_t n, float by, float cap)
{
    for (uint32_t i = 0; i < n; i++)
        x[i] = cap * math_tanhf((x[i] * by) / cap);
}

static void scale(const float *x, float *y, uint32_t n, float by)
{
    for (uint32_t i = 0; i < n; i++)
        y[i] = x[i] * by;
}

static void to_f16(const float *x, uint16_t *y, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        y[i] = dtype_f32_to_f16(x[i]);
}

static void to_bf16(const float *x, uint16_t *y, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        uint32_t u;
        memcpy(&u, x + i, 4);
        bool nan = (u & 0x7fffffffu) > 0x7f800000u;
        y[i] = (uint16_t)(nan ? u >> 16 | 0x40 : (u + 0x7fff + (u >> 16 & 1)) >> 16);
    }
}

/* ---- attention ---- */

static float f32_value(const void *p, size_t at)
{
    return ((const float *)p)[at];
}

static float f16_value(const void *p, size_t at)
{
    return dtype_f16_to_f32(((const uint16_t *)p)[at]);
}

static float bf16_value(const void *p, size_t at)
{
    return dtype_bf16_to_f32(((const uint16_t *)p)[at]);
}

/* Scores and mixes of a float format: s = fma(q_e, k_e, s), e ascending from +0; o = fma(p_j, v_j, o), j ascending. */
#define FLOAT_FORMAT(format)                                                                         \
    static void score_##format(const struct cpu_score *job)                                          \
    {                                                                                                \
        for (uint32_t m = 0; m < job->m; m++)                                                        \
            for (uint32_t j = 0; j < KV_PAGE; j++) {                                                 \
                float s = 0;                                                                         \
                for (uint32_t e = 0; e < job->d; e++)                                                \
                    s = fmaf(job->q[(size_t)m * job->d + e], format##_value(job->k, (size_t)e * KV_PAGE + j), s); \
                job->s[(size_t)m * KV_BLOCK + j] = s;                                                \
            }                                                                                        \
    }                                                                                                \
    static void mix_##format(const struct cpu_mix *job)                                              \
    {                                                                                                \
        for (uint32_t m = 0; m < job->m; m++)                                                        \
            for (uint32_t j = job->from; j < job->to; j++)                                           \
                for (uint32_t e = 0; e < job->d; e++) {                                              \
                    float *o = job->o + (size_t)m * job->d + e;                                      \
                    *o = fmaf(job->p[(size_t)m * KV_BLOCK + j], format##_value(job->v, (size_t)j * job->d + e), *o); \
                }                                                                                    \
    }
FLOAT_FORMAT(f32)
FLOAT_FORMAT(f16)
FLOAT_FORMAT(bf16)

/* Codes: a byte each, signed (q8 and what is unpacked through a table of integers) or, affine, unsigned with a minimum. */
static int32_t code(const void *p, size_t at, bool affine)
{
    return affine ? ((const uint8_t *)p)[at] : ((const int8_t *)p)[at];
}

/* per 32 elements: s = fma((float)P, D s_q, s), P the exact integer dot; affine: then s = fma(M, ss_q, s) */
static inline void score_codes(const struct cpu_score *job, bool affine)
{
    uint32_t blocks = job->d / 32;
    for (uint32_t m = 0; m < job->m; m++)
        for (uint32_t j = 0; j < KV_PAGE; j++) {
            float s = 0;
            for (uint32_t b = 0; b < blocks; b++) {
                const struct cpu_query *q = job->qa + (size_t)m * blocks + b;
                size_t at = (size_t)(b / job->per) * KV_PAGE + j;
                int32_t p = 0;
                for (uint32_t e = 0; e < 32; e++)
                    p += q->q[e] * code(job->k, (size_t)(b * 32 + e) * KV_PAGE + j, affine);
                s = fmaf((float)p, dtype_f16_to_f32(job->scales[at]) * q->s, s);
                if (affine)
                    s = fmaf(dtype_f16_to_f32(job->minima[at]), q->ss, s);
            }
            job->s[(size_t)m * KV_BLOCK + j] = s;
        }
}

/* o = fma(p, v, o); v = D code, or affine fma(code, D, M) */
static inline void mix_codes(const struct cpu_mix *job, bool affine)
{
    uint32_t groups = job->d / 32 / job->per;
    for (uint32_t m = 0; m < job->m; m++)
        for (uint32_t j = job->from; j < job->to; j++)
            for (uint32_t e = 0; e < job->d; e++) {
                float *o = job->o + (size_t)m * job->d + e, c = (float)code(job->v, (size_t)j * job->d + e, affine);
                size_t at = (size_t)j * groups + e / 32 / job->per;
                float d = dtype_f16_to_f32(job->scales[at]);
                float value = affine ? fmaf(c, d, dtype_f16_to_f32(job->minima[at])) : d * c;
                *o = fmaf(job->p[(size_t)m * KV_BLOCK + j], value, *o);
            }
}

static void score_q8(const struct cpu_score *job)
{
    score_codes(job, false);
}

static void score_a8(const struct cpu_score *job)
{
    score_codes(job, true);
}

static void mix_q8(const struct cpu_mix *job)
{
    mix_codes(job, false);
}

static void mix_a8(const struct cpu_mix *job)
{
    mix_codes(job, true);
}

static void unpack4(const struct cpu_unpack *job)
{
    uint32_t w = job->width;
    for (uint32_t b = 0; b < job->blocks; b++) {
        const unsigned char *src = job->src + (size_t)b * 16 * w;
        for (uint32_t e = 0; e < 32; e++)
            for (uint32_t i = 0; i < w; i++)
                job->dst[(size_t)(b * 32 + e) * w + i] = (unsigned char)job->table[src[e % 16 * w + i] >> (e / 16 * 4) & 15];
    }
}

static void unpack3(const struct cpu_unpack *job)
{
    uint32_t w = job->width;
    for (uint32_t b = 0; b < job->blocks; b++) {
        const unsigned char *src = job->src + (size_t)b * 12 * w;
        for (uint32_t e = 0; e < 32; e++)
            for (uint32_t i = 0; i < w; i++) {
                int low = src[e % 8 * w + i] >> (e / 8 * 2) & 3, high = src[(8 + e % 4) * w + i] >> (e / 4) & 1;
                job->dst[(size_t)(b * 32 + e) * w + i] = (unsigned char)job->table[low | high << 2];
            }
    }
}

#define FLIP(name, type)                                             \
    static void name(const void *src, void *dst, uint32_t rows)      \
    {                                                                \
        const type *from = src;                                      \
        type *to = dst;                                              \
        for (uint32_t r = 0; r < rows; r++)                          \
            for (uint32_t i = 0; i < KV_PAGE; i++)                   \
                to[(size_t)i * rows + r] = from[(size_t)r * KV_PAGE + i]; \
    }
FLIP(flip8, uint8_t)
FLIP(flip16, uint16_t)
FLIP(flip32, uint32_t)

static void soft(float *s, uint32_t from, uint32_t to, float c, float *max_out, float *sum_out)
{
    float max = -INFINITY, lanes[16] = {0};
    for (uint32_t j = from; j < to; j++)
        max = s[j] > max ? s[j] : max;
    max += 0.0f;
    for (uint32_t j = from; j < to; j++) {
        s[j] = math_exp2f((s[j] - max) * c);
        lanes[j % 16] += s[j];
    }
    *max_out = max;
    *sum_out = tree16(lanes);
}

static void fold(float state[2], float *o, const float block[2], const float *o_block, uint32_t d, float c)
{
    float max = block[0] > state[0] ? block[0] : state[0];
    float a = math_exp2f((state[0] - max) * c), b = math_exp2f((block[0] - max) * c);
    state[0] = max;
    state[1] = fmaf(state[1], a, block[1] * b);
    for (uint32_t e = 0; e < d; e++)
        o[e] = fmaf(o[e], a, o_block[e] * b);
}

/* ---- recurrent layers ---- */

static void conv(const struct cpu_conv *job)
{
    for (uint32_t c = 0; c < job->n; c++) {
        float s = 0;
        for (uint32_t i = 0; i < job->taps; i++)
            s = fmaf(job->w[i * job->w_step + c], job->in[i] ? job->in[i][c] : 0.0f, s);
        if (job->bias)
            s += job->bias[c];
        job->out[c] = job->silu ? s / (1.0f + math_expf(-s)) : s;
    }
}

static void unit(float *x, uint32_t n, float eps, float by)
{
    float lanes[16] = {0};
    for (uint32_t i = 0; i < n; i++)
        lanes[i % 16] = fmaf(x[i], x[i], lanes[i % 16]);
    float r = 1.0f / sqrtf(tree16(lanes) + eps);
    for (uint32_t i = 0; i < n; i++)
        x[i] = (x[i] * r) * by;
}

static void mul(const float *x, float *y, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        y[i] = x[i] * y[i];
}

static void exps(float *x, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        x[i] = math_expf(x[i]);
}

static void product(const struct cpu_product *job)
{
    for (uint32_t i = 0; i < job->m; i++)
        for (uint32_t c = 0; c < job->n; c++) {
            float *out = job->out + i * job->out_step + c, s = job->carry ? *out : 0;
            for (uint32_t k = 0; k < job->k; k++)
                s = fmaf(job->a[i * job->a_step + k], job->b[k * job->b_step + c], s);
            *out = s;
        }
}

/* ---- sampling ---- */

static float argmax(const float *x, uint32_t n, uint32_t *index)
{
    float best = -INFINITY;
    *index = 0;
    for (uint32_t i = 0; i < n; i++)
        if (x[i] > best)
            best = x[i], *index = i;
    return best;
}

static float expsum(const float *x, uint32_t n, float max)
{
    float lanes[16] = {0};
    for (uint32_t i = 0; i < n; i++)
        lanes[i % 16] += math_exp2f((x[i] - max) * LOG2E);
    return tree16(lanes);
}

static uint64_t mass(const float *x, uint32_t n, float t, float max)
{
    uint64_t sum = 0;
    for (uint32_t i = 0; i < n; i++) {
        double e = (double)math_exp2f((x[i] / t - max) * LOG2E) * 0x1p40;
        sum += (uint64_t)((e + 0x1p52) - 0x1p52); /* to the nearest integer, ties to even */
    }
    return sum;
}

static uint32_t pick(const float *x, uint32_t n, float least, uint32_t *out, uint32_t cap)
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < n; i++)
        if (x[i] >= least) {
            if (count == cap)
                return UINT32_MAX;
            out[count++] = i;
        }
    return count;
}

static void gumbel(uint64_t key, const uint32_t counter[3], uint32_t first, uint32_t n, float *out)
{
    for (uint32_t i = 0; i < n; i += 4) {
        uint32_t at[4] = {counter[0], counter[1], counter[2], (first + i) / 4}, bits[4];
        rng_philox(key, at, bits);
        for (uint32_t j = 0; j < 4; j++)
            out[i + j] = -math_logf(-math_logf(rng_open01(bits[j])));
    }
}

const struct cpu_kernels cpu_kernels_ref_rows = {
#define ROW_FIELD(type, name) .name = name,
    CPU_KERNELS_ROWS(ROW_FIELD)
#undef ROW_FIELD
};
