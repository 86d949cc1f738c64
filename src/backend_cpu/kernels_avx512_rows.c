/* backend_cpu/kernels_avx512_rows.c - level avx512 (F BW DQ VL) of norms, activations and attention; the rest is avx2's.
 *
 * Every lane does what ref does (kernels_ref_rows.c); tails are masked lanes of the same code. */
#include "backend_cpu/code_mix.h"
#include "backend_cpu/kernels_avx512_attention.h"
#include "backend_cpu/kernels_avx512_state.h"

static void norm(const float *x, const float *w, float *y, uint32_t n, float eps, bool add, float scale)
{
    __m512 lanes = _mm512_setzero_ps();
    for (uint32_t i = 0; i < n; i += 16) {
        __m512 a = _mm512_maskz_loadu_ps(v16_first(n - i), x + i);
        lanes = _mm512_fmadd_ps(a, a, lanes); /* +0 onto a sum of squares changes nothing */
    }
    __m512 r = v16_set(1.0f / __builtin_sqrtf(v16_tree(lanes) / (float)n + eps)), ss = v16_set(scale);
    for (uint32_t i = 0; i < n; i += 16) {
        __mmask16 m = v16_first(n - i);
        __m512 v = _mm512_mul_ps(_mm512_mul_ps(_mm512_maskz_loadu_ps(m, x + i), r), _mm512_maskz_loadu_ps(m, w + i));
        if (add)
            v = _mm512_add_ps(_mm512_maskz_loadu_ps(m, y + i), _mm512_mul_ps(v, ss));
        _mm512_mask_storeu_ps(y + i, m, v);
    }
}

static void gated_silu(const float *gate, const float *up, float *y, uint32_t n)
{
    const __m512 one = v16_set(1.0f), minus = v16_set(-0.0f);
    for (uint32_t i = 0; i < n; i += 16) {
        __mmask16 m = v16_first(n - i);
        __m512 g = _mm512_maskz_loadu_ps(m, gate + i), u = _mm512_maskz_loadu_ps(m, up + i);
        __m512 d = _mm512_add_ps(one, v16_exp(_mm512_xor_ps(g, minus)));
        _mm512_mask_storeu_ps(y + i, m, _mm512_mul_ps(_mm512_div_ps(g, d), u));
    }
}

static void gated_gelu_tanh(const float *gate, const float *up, float *y, uint32_t n)
{
    for (uint32_t i = 0; i < n; i += 16) {
        __mmask16 m = v16_first(n - i);
        __m512 x = _mm512_maskz_loadu_ps(m, gate + i), u = _mm512_maskz_loadu_ps(m, up + i);
        __m512 z = _mm512_fmadd_ps(_mm512_mul_ps(_mm512_mul_ps(x, x), x), v16_set(0.044715f), x);
        z = _mm512_mul_ps(z, v16_set(-1.5957691f));
        _mm512_mask_storeu_ps(y + i, m, _mm512_mul_ps(_mm512_div_ps(x, _mm512_add_ps(v16_set(1.0f), v16_exp(z))), u));
    }
}

static void gated_gelu_erf(const float *gate, const float *up, float *y, uint32_t n)
{
    for (uint32_t i = 0; i < n; i += 16) {
        __mmask16 m = v16_first(n - i);
        __m512 x = _mm512_maskz_loadu_ps(m, gate + i), u = _mm512_maskz_loadu_ps(m, up + i);
        __m512 e = _mm512_add_ps(v16_set(1.0f), v16_erf(_mm512_mul_ps(x, v16_set(0.70710678f))));
        _mm512_mask_storeu_ps(y + i, m, _mm512_mul_ps(_mm512_mul_ps(_mm512_mul_ps(x, v16_set(0.5f)), e), u));
    }
}

static void softcap(float *x, uint32_t n, float by, float cap)
{
    __m512 bb = v16_set(by), cc = v16_set(cap);
    for (uint32_t i = 0; i < n; i += 16) {
        __mmask16 m = v16_first(n - i);
        __m512 t = _mm512_div_ps(_mm512_mul_ps(_mm512_maskz_loadu_ps(m, x + i), bb), cc);
        _mm512_mask_storeu_ps(x + i, m, _mm512_mul_ps(cc, v16_tanh(t)));
    }
}

/* ---- attention ---- */

#define VEC_HALVES(p) _mm256_loadu_si256((const __m256i *)(const void *)(p))
#define VEC_BYTES(p) _mm_loadu_si128((const __m128i *)(const void *)(p))
#define VEC_HALF_SET _mm256_set1_epi16
#include "backend_cpu/vec_operand.h"

/* 8 lanes of a float format, for what is left when d is no multiple of 32 */
INLINE __m256 f32_load_8(const struct operand *b, size_t at)
{
    return _mm256_loadu_ps((const float *)b->p + at);
}

INLINE __m256 f16_load_8(const struct operand *b, size_t at)
{
    return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(const void *)((const uint16_t *)b->p + at)));
}

INLINE __m256 bf16_load_8(const struct operand *b, size_t at)
{
    __m128i h = _mm_loadu_si128((const __m128i *)(const void *)((const uint16_t *)b->p + at));
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(h), 16));
}

#define ROW_LOAD(name, q)                                                                        \
    __m512 name##0 = carry ? _mm512_loadu_ps(out + (q) * out_step) : _mm512_setzero_ps();        \
    __m512 name##1 = carry ? _mm512_loadu_ps(out + (q) * out_step + 16) : _mm512_setzero_ps();
#define ROW_STORE(name, q)                                  \
    _mm512_storeu_ps(out + (q) * out_step, name##0);        \
    _mm512_storeu_ps(out + (q) * out_step + 16, name##1);
#define ROW_STEP(name, q)                                   \
    x = v16_set(a[(q) * a_step + k]);                       \
    name##0 = _mm512_fmadd_ps(x, b0, name##0);              \
    name##1 = _mm512_fmadd_ps(x, b1, name##1);

#define PRODUCT(format, SCALE, BASE)                                                                                 \
    INLINE void format##_product_1(const struct operand *b, const float *a, size_t a_step, uint32_t n, float *out,   \
                                   size_t out_step, bool carry)                                                      \
    {                                                                                                                \
        ROW_LOAD(r, 0)                                                                                               \
        for (uint32_t k = 0; k < n; k++) {                                                                           \
            __m512 x, scale = SCALE(b, k), base = BASE(b, k);                                                        \
            __builtin_prefetch(b->next + k * b->step * format##_bytes, 0, 2);                                        \
            if (format##_bytes == 4)                                                                                 \
                __builtin_prefetch(b->next + k * b->step * format##_bytes + 64, 0, 2);                               \
            __m512 b0 = format##_load(b, k * b->step, scale, base), b1 = format##_load(b, k * b->step + 16, scale, base);\
            ROW_STEP(r, 0)                                                                                           \
        }                                                                                                            \
        ROW_STORE(r, 0)                                                                                              \
    }                                                                                                                \
    INLINE void format##_product_4(const struct operand *b, const float *a, size_t a_step, uint32_t n, float *out,   \
                                   size_t out_step, bool carry)                                                      \
    {                                                                                                                \
        ROW_LOAD(r, 0) ROW_LOAD(s, 1) ROW_LOAD(t, 2) ROW_LOAD(u, 3)                                                  \
        for (uint32_t k = 0; k < n; k++) {                                                                           \
            __m512 x, scale = SCALE(b, k), base = BASE(b, k);                                                        \
            __builtin_prefetch(b->next + k * b->step * format##_bytes, 0, 2);                                        \
            if (format##_bytes == 4)                                                                                 \
                __builtin_prefetch(b->next + k * b->step * format##_bytes + 64, 0, 2);                               \
            __m512 b0 = format##_load(b, k * b->step, scale, base), b1 = format##_load(b, k * b->step + 16, scale, base);\
            ROW_STEP(r, 0) ROW_STEP(s, 1) ROW_STEP(t, 2) ROW_STEP(u, 3)                                              \
        }                                                                                                            \
        ROW_STORE(r, 0) ROW_STORE(s, 1) ROW_STORE(t, 2) ROW_STORE(u, 3)                                              \
    }                                                                                                                \
    INLINE void format##_product_8(const struct operand *b, const float *a, size_t a_step, uint32_t n, float *out,   \
                                   size_t out_step, bool carry)                                                      \
    {                                                                                                                \
        ROW_LOAD(r, 0) ROW_LOAD(s, 1) ROW_LOAD(t, 2) ROW_LOAD(u, 3)                                                  \
        ROW_LOAD(v, 4) ROW_LOAD(w, 5) ROW_LOAD(y, 6) ROW_LOAD(z, 7)                                                  \
        for (uint32_t k = 0; k < n; k++) {                                                                           \
            __m512 x, scale = SCALE(b, k), base = BASE(b, k);                                                        \
            __builtin_prefetch(b->next + k * b->step * format##_bytes, 0, 2);                                        \
            if (format##_bytes == 4)                                                                                 \
                __builtin_prefetch(b->next + k * b->step * format##_bytes + 64, 0, 2);                               \
            __m512 b0 = format##_load(b, k * b->step, scale, base), b1 = format##_load(b, k * b->step + 16, scale, base);\
            ROW_STEP(r, 0) ROW_STEP(s, 1) ROW_STEP(t, 2) ROW_STEP(u, 3)                                              \
            ROW_STEP(v, 4) ROW_STEP(w, 5) ROW_STEP(y, 6) ROW_STEP(z, 7)                                              \
        }                                                                                                            \
        ROW_STORE(r, 0) ROW_STORE(s, 1) ROW_STORE(t, 2) ROW_STORE(u, 3)                                              \
        ROW_STORE(v, 4) ROW_STORE(w, 5) ROW_STORE(y, 6) ROW_STORE(z, 7)                                              \
    }                                                                                                                \
    INLINE void format##_product_2(const struct operand *b, const float *a, size_t a_step, uint32_t n, float *out,   \
                                   size_t out_step, bool carry)                                                      \
    {                                                                                                                \
        ROW_LOAD(r, 0) ROW_LOAD(s, 1)                                                                                \
        for (uint32_t k = 0; k < n; k++) {                                                                           \
            __m512 x, scale = SCALE(b, k), base = BASE(b, k);                                                        \
            __builtin_prefetch(b->next + k * b->step * format##_bytes, 0, 2);                                        \
            if (format##_bytes == 4)                                                                                 \
                __builtin_prefetch(b->next + k * b->step * format##_bytes + 64, 0, 2);                               \
            __m512 b0 = format##_load(b, k * b->step, scale, base), b1 = format##_load(b, k * b->step + 16, scale, base);\
            ROW_STEP(r, 0) ROW_STEP(s, 1)                                                                            \
        }                                                                                                            \
        ROW_STORE(r, 0) ROW_STORE(s, 1)                                                                              \
    }                                                                                                                \
    INLINE void format##_product(const struct operand *b, const float *a, size_t a_step, uint32_t n, float *out,     \
                                 size_t out_step, uint32_t m, bool carry)                                            \
    {                                                                                                                \
        uint32_t q = 0;                                                                                              \
        for (; q + 8 <= m; q += 8)                                                                                   \
            format##_product_8(b, a + q * a_step, a_step, n, out + q * out_step, out_step, carry);                   \
        for (; q + 4 <= m; q += 4)                                                                                   \
            format##_product_4(b, a + q * a_step, a_step, n, out + q * out_step, out_step, carry);                   \
        for (; q + 2 <= m; q += 2)                                                                                   \
            format##_product_2(b, a + q * a_step, a_step, n, out + q * out_step, out_step, carry);                   \
        if (q < m)                                                                                                   \
            format##_product_1(b, a + q * a_step, a_step, n, out + q * out_step, out_step, carry);                   \
    }

PRODUCT(f32, no_scale, no_scale)
PRODUCT(f16, no_scale, no_scale)
PRODUCT(bf16, no_scale, no_scale)
PRODUCT(q8, q8_scale, no_scale)
PRODUCT(a8, q8_scale, minimum)

/* 8 lanes, one query: what is left when d is no multiple of 32 */
#define MIX_TAIL(format)                                                                                       \
    INLINE void format##_mix_tail(const struct operand *b, const struct cpu_mix *job, uint32_t e)              \
    {                                                                                                          \
        for (uint32_t q = 0; q < job->m; q++) {                                                                \
            const float *p = job->p + (size_t)q * KV_BLOCK + job->from;                                        \
            float *out = job->o + (size_t)q * job->d + e;                                                      \
            __m256 o = _mm256_loadu_ps(out);                                                                   \
            for (uint32_t k = 0; k < job->to - job->from; k++)                                                 \
                o = _mm256_fmadd_ps(_mm256_broadcast_ss(p + k), format##_load_8(b, k * b->step), o);           \
            _mm256_storeu_ps(out, o);                                                                          \
        }                                                                                                      \
    }
MIX_TAIL(f32)
MIX_TAIL(f16)
MIX_TAIL(bf16)

FLOAT_FORMAT(f32, float)
FLOAT_FORMAT(f16, uint16_t)
FLOAT_FORMAT(bf16, uint16_t)

CODE_MIX(q8)
CODE_MIX(a8)

#define MADD(sum, k, q) _mm512_add_epi32(sum, _mm512_madd_epi16(k, q))
CODE_SCORE(MADD)

/* which of 16 positions from `at` (a multiple of 16) lie in [from, to) */
INLINE __mmask16 visible(uint32_t at, uint32_t from, uint32_t to)
{
    uint32_t low = from > at ? from - at : 0;
    return (__mmask16)(v16_first(to - at) & ~v16_first(low));
}

static void soft(float *s, uint32_t from, uint32_t to, float c, float *max_out, float *sum_out)
{
    __m512 most = v16_set(-__builtin_inff());
    uint32_t first = from & ~15u;
    for (uint32_t j = first; j < to; j += 16)
        most = _mm512_mask_max_ps(most, visible(j, from, to), _mm512_loadu_ps(s + j), most);
    float max = v16_max(most) + 0.0f;
    __m512 mm = v16_set(max), cc = v16_set(c), lanes = _mm512_setzero_ps();
    for (uint32_t j = first; j < to; j += 16) {
        __m512 p = v16_exp2(_mm512_mul_ps(_mm512_sub_ps(_mm512_loadu_ps(s + j), mm), cc));
        p = _mm512_maskz_mov_ps(visible(j, from, to), p);
        _mm512_storeu_ps(s + j, p);
        lanes = _mm512_add_ps(lanes, p);
    }
    *max_out = max;
    *sum_out = v16_tree(lanes);
}

static void fold(float state[2], float *o, const float block[2], const float *o_block, uint32_t d, float c)
{
    float max = block[0] > state[0] ? block[0] : state[0];
    __m512 cc = v16_set(c), mm = v16_set(max);
    __m512 a = v16_exp2(_mm512_mul_ps(_mm512_sub_ps(v16_set(state[0]), mm), cc));
    __m512 b = v16_exp2(_mm512_mul_ps(_mm512_sub_ps(v16_set(block[0]), mm), cc));
    state[0] = max;
    state[1] = __builtin_fmaf(state[1], _mm512_cvtss_f32(a), block[1] * _mm512_cvtss_f32(b));
    for (uint32_t e = 0; e < d; e += 16) {
        __mmask16 m = v16_first(d - e);
        __m512 add = _mm512_mul_ps(_mm512_maskz_loadu_ps(m, o_block + e), b);
        _mm512_mask_storeu_ps(o + e, m, _mm512_fmadd_ps(_mm512_maskz_loadu_ps(m, o + e), a, add));
    }
}

const struct cpu_kernels cpu_kernels_avx512_rows = {
    .norm = norm,
    .gated_silu = gated_silu,
    .gated_gelu_tanh = gated_gelu_tanh,
    .gated_gelu_erf = gated_gelu_erf,
    .softcap = softcap,
    .score_f32 = score_f32,
    .score_f16 = score_f16,
    .score_bf16 = score_bf16,
    .score_q8 = score_q8,
    .score_a8 = score_a8,
    .mix_f32 = mix_f32,
    .mix_f16 = mix_f16,
    .mix_bf16 = mix_bf16,
    .mix_q8 = mix_q8,
    .mix_a8 = mix_a8,
    .soft = soft,
    .fold = fold,
    .conv = conv,
    .product = product,
};
