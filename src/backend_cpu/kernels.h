/* backend_cpu/kernels.h - the CPU backend's inner functions, as one list, and the table of them that each level exports.
 *
 * A level (ref, avx2, ...) has one const table per family: kernels_<level>_linear.c and kernels_<level>_rows.c.  `ref` fills every
 * field; the others fill only what they improve (NULL elsewhere).  cpu_select.c merges worst to best into one table per device.
 * Invariants: 1. Every level gives the bits of ref, for every input a model can produce (orders: docs/arithmetic.md).
 *             2. A kernel works on whole rows, panels or tiles; it allocates nothing and knows no threads.
 *             3. Tables are data: no code of a wide level runs before cpu_select chose it.
 * Included by kernel files, with their own instruction-set flags: only types and macros here, no code. */
#ifndef RH_CPU_KERNELS_H
#define RH_CPU_KERNELS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "backend_cpu/panel.h"

/* ---- linear ---- */

/* Quantise one row: cols (a multiple of 32) floats to cols / 32 blocks. */
typedef void (*cpu_quantize_fn)(const float *x, uint32_t cols, struct cpu_act *out);

/* Some panels of a weight times some rows of activations. */
struct cpu_dot {
    const unsigned char *w;        /* first panel */
    size_t panel_bytes;
    uint32_t panels;               /* at most CPU_DOT_PANELS */
    const struct cpu_panel *panel; /* the weight's geometry */
    const void *x;                 /* quantised layouts: struct cpu_act [cols / 32]; float layouts: f32 [cols] */
    size_t x_stride;               /* bytes between rows */
    size_t x_chunk;                /* quantised: bytes between chunks of a row; CPU_ACT_CHUNK_BYTES: its blocks lie together */
    uint32_t rows;                 /* 1 .. CPU_DOT_ROWS */
    float *out;                    /* [rows][out_stride]: panel p's 16 outputs at 16 p */
    size_t out_stride;             /* floats */
    void *tmp;                     /* CPU_DOT_TMP bytes, 64-byte aligned */
};
enum { CPU_DOT_ROWS = 128, CPU_DOT_PANELS = 16, CPU_DOT_TMP = 160 << 10 };
typedef void (*cpu_dot_fn)(const struct cpu_dot *job);

/* Dots to outputs, per element: v = dot + bias (when there is one), v = v alpha (when it is not 1), y = v or y = y + v. */
struct cpu_finish {
    const float *dot;   /* [rows][dot_stride] */
    size_t dot_stride;  /* floats */
    float *y;           /* [rows][y_stride] */
    size_t y_stride;    /* floats */
    uint32_t rows, cols;
    const float *bias;  /* [cols] or NULL */
    float alpha;
    bool add;
};
typedef void (*cpu_finish_fn)(const struct cpu_finish *job);

#define CPU_KERNELS_LINEAR(X)    \
    X(cpu_quantize_fn, quantize) \
    X(cpu_finish_fn, finish)

/* ---- rows: norms, rope, activations, attention, recurrent layers, sampling.  X(type, field). ---- */

/* y = (x r) w with r = 1 / sqrt(mean(x^2) + eps) over n values; add: y = y + that (times scale, when scale is not 1). */
typedef void (*cpu_norm_fn)(const float *x, const float *w, float *y, uint32_t n, float eps, bool add, float scale);
/* y = ((x - m) r) w with m = mean(x), r = 1 / sqrt(mean((x - m)^2) + eps) over n values */
typedef void (*cpu_norm_centred_fn)(const float *x, const float *w, float *y, uint32_t n, float eps);
/* n pairs of one head turned in place; pairs (i, i + n) or, adjacent, (2 i, 2 i + 1). */
typedef void (*cpu_rope_fn)(float *x, const float *cosine, const float *sine, uint32_t n, bool adjacent);
typedef void (*cpu_gated_fn)(const float *gate, const float *up, float *y, uint32_t n); /* one activation each */
/* in place: x > 0: (ap x) x + b x; else ((exp(min(x, eps)) - 1) - x) an + b x */
typedef void (*cpu_xielu_fn)(float *x, uint32_t n, float ap, float an, float b, float eps);
typedef void (*cpu_fused_fn)(float a, const float *x, float *y, uint32_t n); /* y = fma(a, x, y) */
typedef float (*cpu_squares_fn)(const float *x, uint32_t n);                 /* the sum of squares that norm takes */
/* x = max(x - (m + s factor), 0), in place; m and s^2: mean and mean square as in norm_centred */
typedef void (*cpu_sparsify_fn)(float *x, uint32_t n, float factor);
typedef void (*cpu_add_fn)(const float *x, float *y, uint32_t n, float x_scale, float y_scale);
typedef void (*cpu_softcap_fn)(float *x, uint32_t n, float scale, float cap); /* x = cap tanh((x scale) / cap) */
typedef void (*cpu_half_fn)(const float *x, uint16_t *y, uint32_t n);         /* f32 -> f16 or bf16, to nearest even */

/* Attention works on one page (KV_PAGE positions) and `m` query vectors at a time; scores of a block lie in s[m][KV_BLOCK]. */
/* 32 elements of a query for planes of codes: x ~ s q */
struct cpu_query {
    int16_t q[32];              /* -32767 .. 32767 */
    float s;                    /* max|x| / 32767, or 0 */
    float ss;                   /* s * (float)(sum of q) */
};
struct cpu_score {
    const void *k;              /* K plane of the page */
    const void *next;           /* a plane to prefetch meanwhile; may be k itself */
    uint32_t d, m;
    const float *q;             /* [m][d] */
    const struct cpu_query *qa; /* [m][d / 32], for planes of codes */
    const uint16_t *scales, *minima; /* f16 [d / 32 / per][KV_PAGE], for planes of codes; minima: affine ones */
    uint32_t per;               /* 32-element blocks per scale */
    float *s;                   /* [m][KV_BLOCK], at the page's first position */
};
typedef void (*cpu_score_fn)(const struct cpu_score *job); /* all positions of the page */
struct cpu_mix {
    const void *v;              /* V plane of the page */
    const void *next;           /* as in cpu_score */
    const uint16_t *scales, *minima; /* f16 [KV_PAGE][d / 32 / per] */
    uint32_t per;
    uint32_t d, m;
    uint32_t from, to;          /* positions of the page that all m see */
    const float *p;             /* [m][KV_BLOCK], at the page's first position */
    float *o;                   /* [m][d]: o = fma(p_j, v_j, o), j ascending */
};
typedef void (*cpu_mix_fn)(const struct cpu_mix *job);
/* Packed codes (tensor.h) of 32-element blocks to a byte each, through a table of 16; rows of `width` bytes: KV_PAGE for K, 1 for V. */
struct cpu_unpack {
    const unsigned char *src;
    const void *next;           /* to prefetch meanwhile */
    const int8_t *table;
    unsigned char *dst;         /* [blocks][32][width] */
    uint32_t blocks, width;
};
typedef void (*cpu_unpack_fn)(const struct cpu_unpack *job);
/* dst[i][r] = src[r][i]: elements of 8, 16 or 32 bits of `rows` rows of a K plane, for V that is part of K */
typedef void (*cpu_flip_fn)(const void *src, void *dst, uint32_t rows); /* src [rows][KV_PAGE], dst [KV_PAGE][rows] */
/* Scores of one block's visible positions [from, to) to p = exp2((s - max) c), in place; their maximum and sum. */
typedef void (*cpu_soft_fn)(float *s, uint32_t from, uint32_t to, float c, float *max_out, float *sum_out);
/* One block's partial onto the running one: state = max, sum. */
typedef void (*cpu_fold_fn)(float state[2], float *o, const float block[2], const float *o_block, uint32_t d, float c);
typedef void (*cpu_scale_fn)(const float *x, float *y, uint32_t n, float scale); /* y = x scale */

/* Recurrent layers. */
struct cpu_conv {
    const float *in[16];    /* [taps], oldest first: inputs of n channels each; NULL: zeros */
    const float *w;         /* [taps][w_step] */
    size_t w_step;
    uint32_t taps, n;
    const float *bias;      /* [n] or NULL */
    float *out;             /* [n]; may be any of `in` */
    bool silu;              /* out = s / (1 + exp(-s)), s = fma(w, in, s) over taps from +0, then + bias */
};
typedef void (*cpu_conv_fn)(const struct cpu_conv *job);
/* x = (x r) scale with r = 1 / sqrt(sum x^2 + eps) over n values, in place */
typedef void (*cpu_unit_fn)(float *x, uint32_t n, float eps, float scale);
typedef void (*cpu_mul_fn)(const float *x, float *y, uint32_t n);  /* y = x y */
typedef void (*cpu_exp_fn)(float *x, uint32_t n);                  /* x = exp(x) */
/* out[i][c] = fma(a[i][k], b[k][c], out[i][c]), k ascending, from +0 or, with carry, from out */
struct cpu_product {
    const float *a, *b;
    size_t a_step, b_step, out_step; /* floats between rows */
    uint32_t m, k, n;                /* n a multiple of 8 */
    float *out;
    bool carry;
};
typedef void (*cpu_product_fn)(const struct cpu_product *job);

/* Sampling works on blocks of at most LOGIT_BLOCK ids, x[0] being a multiple of LOGIT_BLOCK. */
typedef float (*cpu_argmax_fn)(const float *x, uint32_t n, uint32_t *index); /* lowest index of the maximum; -inf, 0 if none is above */
/* Sum of exp2((x - max) log2e): 16 lanes by index, tree16. */
typedef float (*cpu_expsum_fn)(const float *x, uint32_t n, float max);
/* Sum of the integers rne(2^40 exp2((x / t - max) log2e)): any order. */
typedef uint64_t (*cpu_mass_fn)(const float *x, uint32_t n, float t, float max);
/* Indices of x >= least, ascending, into out; how many.  Stops (returns UINT32_MAX) when more than `cap`. */
typedef uint32_t (*cpu_pick_fn)(const float *x, uint32_t n, float least, uint32_t *out, uint32_t cap);
/* out[i] = Gumbel noise of ids first + i, first a multiple of 4, n a multiple of 4. */
typedef void (*cpu_gumbel_fn)(uint64_t key, const uint32_t counter[3], uint32_t first, uint32_t n, float *out);

#define CPU_KERNELS_ROWS(X)            \
    X(cpu_norm_fn, norm)               \
    X(cpu_norm_centred_fn, norm_centred) \
    X(cpu_rope_fn, rope)               \
    X(cpu_gated_fn, gated_silu)        \
    X(cpu_gated_fn, gated_gelu_tanh)   \
    X(cpu_gated_fn, gated_gelu_erf)    \
    X(cpu_gated_fn, gated_sigmoid)     \
    X(cpu_gated_fn, gated_clamped)     \
    X(cpu_gated_fn, gated_relu)        \
    X(cpu_xielu_fn, xielu)             \
    X(cpu_fused_fn, fused)             \
    X(cpu_squares_fn, squares)         \
    X(cpu_sparsify_fn, sparsify)       \
    X(cpu_add_fn, add)                 \
    X(cpu_softcap_fn, softcap)         \
    X(cpu_half_fn, to_f16)             \
    X(cpu_half_fn, to_bf16)            \
    X(cpu_score_fn, score_f32)         \
    X(cpu_score_fn, score_f16)         \
    X(cpu_score_fn, score_bf16)        \
    X(cpu_score_fn, score_q8)          \
    X(cpu_score_fn, score_a8)          \
    X(cpu_mix_fn, mix_f32)             \
    X(cpu_mix_fn, mix_f16)             \
    X(cpu_mix_fn, mix_bf16)            \
    X(cpu_mix_fn, mix_q8)              \
    X(cpu_mix_fn, mix_a8)              \
    X(cpu_unpack_fn, unpack4)          \
    X(cpu_unpack_fn, unpack3)          \
    X(cpu_flip_fn, flip8)              \
    X(cpu_flip_fn, flip16)             \
    X(cpu_flip_fn, flip32)             \
    X(cpu_soft_fn, soft)               \
    X(cpu_fold_fn, fold)               \
    X(cpu_scale_fn, scale)             \
    X(cpu_conv_fn, conv)               \
    X(cpu_unit_fn, unit)               \
    X(cpu_mul_fn, mul)                 \
    X(cpu_exp_fn, exps)                \
    X(cpu_product_fn, product)         \
    X(cpu_argmax_fn, argmax)           \
    X(cpu_expsum_fn, expsum)           \
    X(cpu_mass_fn, mass)               \
    X(cpu_pick_fn, pick)               \
    X(cpu_gumbel_fn, gumbel)

struct cpu_kernels {
#define CPU_KERNEL_FIELD(type, name) type name;
    CPU_KERNELS_LINEAR(CPU_KERNEL_FIELD)
    CPU_KERNELS_ROWS(CPU_KERNEL_FIELD)
#undef CPU_KERNEL_FIELD
    cpu_dot_fn dot[CPU_LAYOUT_COUNT]; /* by panel layout */
};

/* One table per level and family; which of them exist on this machine's architecture, cpu_select.c says. */
#define CPU_TABLE_PROTO(level)                               \
    extern const struct cpu_kernels cpu_kernels_##level##_linear; \
    extern const struct cpu_kernels cpu_kernels_##level##_rows;
CPU_TABLE_PROTO(ref)
CPU_TABLE_PROTO(avx2)
CPU_TABLE_PROTO(avx512)
CPU_TABLE_PROTO(avx512vnni)
#undef CPU_TABLE_PROTO

#endif
