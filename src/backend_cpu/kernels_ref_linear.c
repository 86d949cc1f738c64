/* backend_cpu/kernels_ref_linear.c - level ref of the linear family: the orders of docs/arithmetic.md, written plainly.
 *
 * Every other level must give these bits.  No flags, no tricks; fmaf is IEEE's fused multiply-add. */
#include "backend_cpu/kernels.h"
#include "backend_cpu/unpack.h"

#include <math.h>

static float max_abs32(const float *x)
{
    float m = 0.0f;
    for (int i = 0; i < 32; i++) {
        float a = fabsf(x[i]);
        m = a > m ? a : m;
    }
    return m;
}

/* To the nearest integer, ties to even: |v| < 2^22. */
static int nearest(float v)
{
    volatile float shifted = v + 12582912.0f;
    return (int)(shifted - 12582912.0f);
}

static void quantize_block(const float *x, struct cpu_act *a)
{
    float m = max_abs32(x), id = 0.0f;
    a->s = 0.0f;
    if (m >= 1e-30f) {
        a->s = m / 127.0f;
        id = 127.0f / m;
    }
    int pair[2][2] = {{0}}; /* [half][which] */
    for (int i = 0; i < 32; i++) {
        float v = x[i] * id;
        int q = v == v ? nearest(v) : -127;
        if (v != v)
            a->s = NAN; /* a value that is not finite spoils its block, visibly */
        a->q[i] = (int8_t)q;
        pair[i / 16][i / 2 % 2] += q;
    }
    for (int j = 0; j < 2; j++) {
        a->pair_lo[j] = (int16_t)pair[0][j];
        a->pair_hi[j] = (int16_t)pair[1][j];
        a->pair[j] = (int16_t)(pair[0][j] + pair[1][j]);
        a->half[j] = (int16_t)(pair[j][0] + pair[j][1]);
    }
    a->ss = a->s * (float)(a->half[0] + a->half[1]);
}

static void quantize(const float *x, uint32_t cols, struct cpu_act *out)
{
    for (uint32_t b = 0; b < cols / 32; b++)
        quantize_block(x + 32 * b, out + b);
}

static void finish(const struct cpu_finish *j)
{
    for (uint32_t r = 0; r < j->rows; r++)
        for (uint32_t i = 0; i < j->cols; i++) {
            float v = j->dot[r * j->dot_stride + i], *y = j->y + r * j->y_stride + i;
            v = j->bias ? v + j->bias[i] : v;
            v = j->alpha == 1.0f ? v : v * j->alpha;
            *y = j->add ? *y + v : v;
        }
}

/* ---- quantised weights ---- */

static float add_block(float acc, const struct unpack_block *w, const struct cpu_act *a)
{
    int sum[2] = {0, 0};
    for (int i = 0; i < 32; i++)
        sum[i / 16] += w->c[i] * a->q[i];
    acc = fmaf((float)(w->sc[0] * sum[0] + w->sc[1] * sum[1]), w->d * a->s, acc);
    if (w->min == UNPACK_MIN_FLOAT)
        acc = fmaf(w->m, a->ss, acc);
    else if (w->min == UNPACK_MIN_INT)
        acc = fmaf((float)(w->mn[0] * a->half[0] + w->mn[1] * a->half[1]), w->m * a->s, acc);
    return acc;
}

static void dot_quant(const struct cpu_dot *j)
{
    const struct cpu_panel *p = j->panel;
    for (uint32_t i = 0; i < j->panels * CPU_PANEL_ROWS; i++) {
        const unsigned char *panel = j->w + (i / CPU_PANEL_ROWS) * j->panel_bytes;
        for (uint32_t r = 0; r < j->rows; r++)
            j->out[r * j->out_stride + i] = 0.0f;
        for (uint32_t b = 0; b < p->cols / 32; b++) {
            struct unpack_block u;
            unpack_lane(p, panel, b, i % CPU_PANEL_ROWS, &u);
            for (uint32_t r = 0; r < j->rows; r++) {
                const unsigned char *chunk = (const unsigned char *)j->x + r * j->x_stride + b / CPU_ACT_CHUNK * j->x_chunk;
                float *y = j->out + r * j->out_stride + i;
                *y = add_block(*y, &u, (const struct cpu_act *)(const void *)chunk + b % CPU_ACT_CHUNK);
            }
        }
    }
}

/* ---- float weights ---- */

static float weight_at(const struct cpu_panel *p, const unsigned char *panel, uint32_t k, uint32_t lane)
{
    const unsigned char *halves = panel + (size_t)k * CPU_PANEL_ROWS * 2;
    float f;
    switch (p->layout) {
    case CPU_LAYOUT_F16:
        return dtype_f16_to_f32(pack_u16(halves + 2 * lane));
    case CPU_LAYOUT_BF16:
        return dtype_bf16_to_f32(pack_u16(halves + 2 * (2 * (lane & 7) + (lane >> 3))));
    default:
        memcpy(&f, panel + ((size_t)k * CPU_PANEL_ROWS + lane) * 4, sizeof f);
        return f;
    }
}

static float dot_float_one(const struct cpu_panel *p, const unsigned char *panel, uint32_t lane, const float *x)
{
    float y = 0.0f;
    for (uint32_t k0 = 0; k0 < p->cols; k0 += 256) {
        float part = 0.0f;
        for (uint32_t k = k0; k < p->cols && k < k0 + 256; k++)
            part = fmaf(weight_at(p, panel, k, lane), x[k], part);
        y = y + part;
    }
    return y;
}

static void dot_float(const struct cpu_dot *j)
{
    for (uint32_t i = 0; i < j->panels * CPU_PANEL_ROWS; i++)
        for (uint32_t r = 0; r < j->rows; r++) {
            const float *x = (const float *)(const void *)((const unsigned char *)j->x + r * j->x_stride);
            j->out[r * j->out_stride + i] =
                dot_float_one(j->panel, j->w + (i / CPU_PANEL_ROWS) * j->panel_bytes, i % CPU_PANEL_ROWS, x);
        }
}

const struct cpu_kernels cpu_kernels_ref_linear = {
    .quantize = quantize,
    .finish = finish,
    .dot =
        {
#define REF_DOT(name, unit_head, block_head, body, unit) [CPU_LAYOUT_##name] = (unit) ? dot_quant : dot_float,
            CPU_LAYOUTS(REF_DOT)
#undef REF_DOT
        },
};
