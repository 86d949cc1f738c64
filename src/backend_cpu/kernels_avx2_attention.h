/* backend_cpu/kernels_avx2_attention.h - level avx2 of attention: scores and mixes over one page.  Included by kernels_avx2_rows.c only.
 *
 * Both are one product shape: out[q][lane] = fma(a[q][k], b[k][lane], out[q][lane]), k ascending.
 *   scores: k = element, lanes = the 32 positions of the page, from +0;   mixes: k = position, lanes = 32 elements, onto o.
 * 3 queries x 4 vectors stay in registers, so a widened b serves three queries. */
#ifndef RH_KERNELS_AVX2_ATTENTION_H
#define RH_KERNELS_AVX2_ATTENTION_H

#include "backend_cpu/kernels.h"
#include "backend_cpu/vec_avx2.h"
#include "tensor/tensor.h"

#define INLINE static inline __attribute__((always_inline))

/* where b comes from: elements of one format, `step` elements between k */
struct operand {
    const void *p;
    const char *next; /* asked for while p is read */
    size_t step;
    const uint16_t *scales; /* q8: one f16 per k, scale_step apart */
    size_t scale_step;
};

INLINE __m256 f32_load(const struct operand *b, size_t at, __m256 scale)
{
    (void)scale;
    return _mm256_loadu_ps((const float *)b->p + at);
}

INLINE __m256 f16_load(const struct operand *b, size_t at, __m256 scale)
{
    (void)scale;
    return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(const void *)((const uint16_t *)b->p + at)));
}

INLINE __m256 bf16_load(const struct operand *b, size_t at, __m256 scale)
{
    (void)scale;
    __m128i h = _mm_loadu_si128((const __m128i *)(const void *)((const uint16_t *)b->p + at));
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(h), 16));
}

INLINE __m256 q8_load(const struct operand *b, size_t at, __m256 scale)
{
    __m128i q = _mm_loadl_epi64((const __m128i *)(const void *)((const int8_t *)b->p + at));
    return _mm256_mul_ps(scale, _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(q)));
}

INLINE __m256 no_scale(const struct operand *b, size_t k)
{
    (void)b, (void)k;
    return _mm256_setzero_ps();
}

INLINE __m256 q8_scale(const struct operand *b, size_t k)
{
    return _mm256_cvtph_ps(_mm_set1_epi16((short)b->scales[k * b->scale_step]));
}

enum { f32_bytes = 4, f16_bytes = 2, bf16_bytes = 2, q8_bytes = 1 }; /* an element */

#define LOAD4(name, p, carry)                                                                              \
    __m256 name##0 = carry ? _mm256_loadu_ps(p) : _mm256_setzero_ps();                                     \
    __m256 name##1 = carry ? _mm256_loadu_ps((p) + 8) : _mm256_setzero_ps();                               \
    __m256 name##2 = carry ? _mm256_loadu_ps((p) + 16) : _mm256_setzero_ps();                              \
    __m256 name##3 = carry ? _mm256_loadu_ps((p) + 24) : _mm256_setzero_ps();
#define STORE4(name, p)                 \
    _mm256_storeu_ps(p, name##0);       \
    _mm256_storeu_ps((p) + 8, name##1); \
    _mm256_storeu_ps((p) + 16, name##2); \
    _mm256_storeu_ps((p) + 24, name##3);
#define STEP4(name, a)                          \
    {                                           \
        __m256 x = _mm256_broadcast_ss(a);      \
        name##0 = _mm256_fmadd_ps(x, b0, name##0); \
        name##1 = _mm256_fmadd_ps(x, b1, name##1); \
        name##2 = _mm256_fmadd_ps(x, b2, name##2); \
        name##3 = _mm256_fmadd_ps(x, b3, name##3); \
    }

/* a[q] = a + q a_step, out[q] = out + q out_step; 32 lanes; the number of queries is in the name */
#define PRODUCT(format, SCALE)                                                                                          \
    INLINE void format##_product_1(const struct operand *b, const float *a, uint32_t n, float *out, bool carry)         \
    {                                                                                                                   \
        LOAD4(s, out, carry)                                                                                            \
        for (uint32_t k = 0; k < n; k++) {                                                                              \
            size_t at = k * b->step;                                                                                    \
            __builtin_prefetch(b->next + at * format##_bytes, 0, 2);                                                    \
            if (format##_bytes == 4)                                                                                    \
                __builtin_prefetch(b->next + at * format##_bytes + 64, 0, 2);                                           \
            __m256 scale = SCALE(b, k);                                                                                 \
            __m256 b0 = format##_load(b, at, scale), b1 = format##_load(b, at + 8, scale);                              \
            __m256 b2 = format##_load(b, at + 16, scale), b3 = format##_load(b, at + 24, scale);                        \
            STEP4(s, a + k)                                                                                             \
        }                                                                                                               \
        STORE4(s, out)                                                                                                  \
    }                                                                                                                   \
    INLINE void format##_product_2(const struct operand *b, const float *a, size_t a_step, uint32_t n, float *out,      \
                                   size_t out_step, bool carry)                                                         \
    {                                                                                                                   \
        LOAD4(s, out, carry)                                                                                            \
        LOAD4(t, out + out_step, carry)                                                                                 \
        for (uint32_t k = 0; k < n; k++) {                                                                              \
            size_t at = k * b->step;                                                                                    \
            __builtin_prefetch(b->next + at * format##_bytes, 0, 2);                                                    \
            if (format##_bytes == 4)                                                                                    \
                __builtin_prefetch(b->next + at * format##_bytes + 64, 0, 2);                                           \
            __m256 scale = SCALE(b, k);                                                                                 \
            __m256 b0 = format##_load(b, at, scale), b1 = format##_load(b, at + 8, scale);                              \
            __m256 b2 = format##_load(b, at + 16, scale), b3 = format##_load(b, at + 24, scale);                        \
            STEP4(s, a + k)                                                                                             \
            STEP4(t, a + a_step + k)                                                                                    \
        }                                                                                                               \
        STORE4(s, out)                                                                                                  \
        STORE4(t, out + out_step)                                                                                       \
    }                                                                                                                   \
    INLINE void format##_product_3(const struct operand *b, const float *a, size_t a_step, uint32_t n, float *out,      \
                                   size_t out_step, bool carry)                                                         \
    {                                                                                                                   \
        LOAD4(s, out, carry)                                                                                            \
        LOAD4(t, out + out_step, carry)                                                                                 \
        LOAD4(u, out + 2 * out_step, carry)                                                                             \
        for (uint32_t k = 0; k < n; k++) {                                                                              \
            size_t at = k * b->step;                                                                                    \
            __builtin_prefetch(b->next + at * format##_bytes, 0, 2);                                                    \
            if (format##_bytes == 4)                                                                                    \
                __builtin_prefetch(b->next + at * format##_bytes + 64, 0, 2);                                           \
            __m256 scale = SCALE(b, k), x = _mm256_broadcast_ss(a + k), y = _mm256_broadcast_ss(a + a_step + k);        \
            __m256 z = _mm256_broadcast_ss(a + 2 * a_step + k);                                                         \
            __m256 b0 = format##_load(b, at, scale);                                                                    \
            s0 = _mm256_fmadd_ps(x, b0, s0), t0 = _mm256_fmadd_ps(y, b0, t0), u0 = _mm256_fmadd_ps(z, b0, u0);          \
            b0 = format##_load(b, at + 8, scale);                                                                       \
            s1 = _mm256_fmadd_ps(x, b0, s1), t1 = _mm256_fmadd_ps(y, b0, t1), u1 = _mm256_fmadd_ps(z, b0, u1);          \
            b0 = format##_load(b, at + 16, scale);                                                                      \
            s2 = _mm256_fmadd_ps(x, b0, s2), t2 = _mm256_fmadd_ps(y, b0, t2), u2 = _mm256_fmadd_ps(z, b0, u2);          \
            b0 = format##_load(b, at + 24, scale);                                                                      \
            s3 = _mm256_fmadd_ps(x, b0, s3), t3 = _mm256_fmadd_ps(y, b0, t3), u3 = _mm256_fmadd_ps(z, b0, u3);          \
        }                                                                                                               \
        STORE4(s, out)                                                                                                  \
        STORE4(t, out + out_step)                                                                                       \
        STORE4(u, out + 2 * out_step)                                                                                   \
    }                                                                                                                   \
    /* 8 lanes, one query: what is left when d is no multiple of 32 */                                                  \
    INLINE void format##_product_8(const struct operand *b, const float *a, uint32_t n, float *out)                     \
    {                                                                                                                   \
        __m256 s = _mm256_loadu_ps(out);                                                                                \
        for (uint32_t k = 0; k < n; k++)                                                                                \
            s = _mm256_fmadd_ps(_mm256_broadcast_ss(a + k), format##_load(b, k * b->step, SCALE(b, k)), s);             \
        _mm256_storeu_ps(out, s);                                                                                       \
    }                                                                                                                   \
    INLINE void format##_product(const struct operand *b, const float *a, size_t a_step, uint32_t n, float *out,        \
                                 size_t out_step, uint32_t m, bool carry)                                               \
    {                                                                                                                   \
        uint32_t q = 0;                                                                                                 \
        for (; q + 3 <= m && m - q != 4; q += 3) /* 4 = 2 + 2 */                                                        \
            format##_product_3(b, a + q * a_step, a_step, n, out + q * out_step, out_step, carry);                      \
        for (; q + 2 <= m; q += 2)                                                                                      \
            format##_product_2(b, a + q * a_step, a_step, n, out + q * out_step, out_step, carry);                      \
        if (q < m)                                                                                                      \
            format##_product_1(b, a + q * a_step, n, out + q * out_step, carry);                                        \
    }                                                                                                                   \
    INLINE void format##_mix_tail(const struct operand *b, const struct cpu_mix *job, uint32_t e)                       \
    {                                                                                                                   \
        for (uint32_t q = 0; q < job->m; q++)                                                                           \
            format##_product_8(b, job->p + (size_t)q * KV_BLOCK + job->from, job->to - job->from,                       \
                               job->o + (size_t)q * job->d + e);                                                        \
    }

PRODUCT(f32, no_scale)
PRODUCT(f16, no_scale)
PRODUCT(bf16, no_scale)
PRODUCT(q8, q8_scale)

#define FLOAT_FORMAT(format, type)                                                                                       \
    static void score_##format(const struct cpu_score *job)                                                              \
    {                                                                                                                    \
        struct operand b = {.p = job->k, .next = job->next, .step = KV_PAGE};                                                               \
        format##_product(&b, job->q, job->d, job->d, job->s, KV_BLOCK, job->m, false);                                   \
    }                                                                                                                    \
    static void mix_##format(const struct cpu_mix *job)                                                                  \
    {                                                                                                                    \
        struct operand b = {.step = job->d};                                                                             \
        const type *v = (const type *)job->v + (size_t)job->from * job->d;                                               \
        const char *next = (const char *)job->next + (size_t)job->from * job->d * sizeof(type);                          \
        uint32_t e = 0;                                                                                                  \
        for (; e + 32 <= job->d; e += 32) {                                                                              \
            b.p = v + e, b.next = next + e * sizeof(type);                                                               \
            format##_product(&b, job->p + job->from, KV_BLOCK, job->to - job->from, job->o + e, job->d, job->m, true);   \
        }                                                                                                                \
        for (; e < job->d; e += 8) {                                                                                     \
            b.p = v + e;                                                                                                 \
            format##_mix_tail(&b, job, e);                                                                               \
        }                                                                                                                \
    }
FLOAT_FORMAT(f32, float)
FLOAT_FORMAT(f16, uint16_t)
FLOAT_FORMAT(bf16, uint16_t)

static void mix_q8(const struct cpu_mix *job)
{
    const int8_t *v = job->v;
    const uint16_t *scales = (const uint16_t *)(const void *)(v + (size_t)KV_PAGE * job->d);
    uint32_t groups = job->d / 32;
    for (uint32_t g = 0; g < groups; g++) {
        size_t at = (size_t)job->from * job->d + g * 32;
        struct operand b = {.p = v + at, .next = (const char *)job->next + at, .step = job->d, .scales = scales + job->from * groups + g,
                            .scale_step = groups};
        q8_product(&b, job->p + job->from, KV_BLOCK, job->to - job->from, job->o + g * 32, job->d, job->m, true);
    }
}

/* ---- int8 scores ---- */

/* elements e, e + 1 of 16 positions as pairs of int16: low = positions 0..3, 8..11; high = 4..7, 12..15 */
INLINE void pair_16(const int8_t *k, __m256i *low, __m256i *high)
{
    __m256i a = _mm256_cvtepi8_epi16(_mm_loadu_si128((const __m128i *)(const void *)k));
    __m256i b = _mm256_cvtepi8_epi16(_mm_loadu_si128((const __m128i *)(const void *)(k + KV_PAGE)));
    *low = _mm256_unpacklo_epi16(a, b);
    *high = _mm256_unpackhi_epi16(a, b);
}

/* P of 32 positions (as in pair_16) += K pairs times one query's pair */
#define PAIR_STEP(name, pair)                                                                 \
    {                                                                                         \
        __m256i q = _mm256_set1_epi32(pair);                                                  \
        name##0 = _mm256_add_epi32(name##0, _mm256_madd_epi16(k0, q));                        \
        name##1 = _mm256_add_epi32(name##1, _mm256_madd_epi16(k1, q));                        \
        name##2 = _mm256_add_epi32(name##2, _mm256_madd_epi16(k2, q));                        \
        name##3 = _mm256_add_epi32(name##3, _mm256_madd_epi16(k3, q));                        \
    }

INLINE void q8_finish(__m256i low, __m256i high, const uint16_t *scales, __m256 qs, float *s)
{
    __m256 p0 = _mm256_cvtepi32_ps(_mm256_permute2x128_si256(low, high, 0x20));
    __m256 p1 = _mm256_cvtepi32_ps(_mm256_permute2x128_si256(low, high, 0x31));
    __m256 d0 = _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(const void *)scales));
    __m256 d1 = _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(const void *)(scales + 8)));
    _mm256_storeu_ps(s, _mm256_fmadd_ps(p0, _mm256_mul_ps(d0, qs), _mm256_loadu_ps(s)));
    _mm256_storeu_ps(s + 8, _mm256_fmadd_ps(p1, _mm256_mul_ps(d1, qs), _mm256_loadu_ps(s + 8)));
}

/* 16 pairs of one query's 32 int8 */
INLINE void q8_pairs(const struct cpu_act *q, int32_t pairs[16])
{
    const __m128i *p = (const __m128i *)(const void *)q->q;
    _mm256_storeu_si256((__m256i *)(void *)pairs, _mm256_cvtepi8_epi16(_mm_loadu_si128(p)));
    _mm256_storeu_si256((__m256i *)(void *)(pairs + 8), _mm256_cvtepi8_epi16(_mm_loadu_si128(p + 1)));
}

/* one group of 32 elements for two queries (the second may be the first again) */
INLINE void q8_group(const int8_t *k, const char *next, const uint16_t *scales, const struct cpu_act *qa, const struct cpu_act *qb, float *sa, float *sb)
{
    int32_t pa[16], pb[16];
    q8_pairs(qa, pa);
    q8_pairs(qb, pb);
    __m256i zero = _mm256_setzero_si256();
    __m256i a0 = zero, a1 = zero, a2 = zero, a3 = zero, b0 = zero, b1 = zero, b2 = zero, b3 = zero;
    for (int i = 0; i < 16; i++) {
        __m256i k0, k1, k2, k3;
        __builtin_prefetch(next + 64 * i, 0, 2);
        pair_16(k + (size_t)(2 * i) * KV_PAGE, &k0, &k1);
        pair_16(k + (size_t)(2 * i) * KV_PAGE + 16, &k2, &k3);
        PAIR_STEP(a, pa[i])
        PAIR_STEP(b, pb[i])
    }
    q8_finish(a0, a1, scales, v8_set(qa->s), sa);
    q8_finish(a2, a3, scales + 16, v8_set(qa->s), sa + 16);
    if (sb) {
        q8_finish(b0, b1, scales, v8_set(qb->s), sb);
        q8_finish(b2, b3, scales + 16, v8_set(qb->s), sb + 16);
    }
}

static void score_q8(const struct cpu_score *job)
{
    const int8_t *k = job->k;
    const uint16_t *scales = (const uint16_t *)(const void *)(k + (size_t)KV_PAGE * job->d);
    uint32_t groups = job->d / 32;
    for (uint32_t m = 0; m < job->m; m++)
        for (int i = 0; i < KV_PAGE; i += 8)
            _mm256_storeu_ps(job->s + (size_t)m * KV_BLOCK + i, _mm256_setzero_ps());
    for (uint32_t g = 0; g < groups; g++)
        for (uint32_t m = 0; m < job->m; m += 2) {
            bool two = m + 1 < job->m;
            const struct cpu_act *q = job->qa + (size_t)m * groups + g;
            float *s = job->s + (size_t)m * KV_BLOCK;
            size_t at = (size_t)g * 32 * KV_PAGE;
            q8_group(k + at, (const char *)job->next + at, scales + g * KV_PAGE, q, two ? q + groups : q, s, two ? s + KV_BLOCK : NULL);
        }
}

/* ---- softmax of a block, fold ---- */

/* which of 8 positions from `at` lie in [from, to) */
INLINE __m256 visible(uint32_t at, uint32_t from, uint32_t to)
{
    __m256i j = _mm256_add_epi32(_mm256_set1_epi32((int)at), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
    __m256i in = _mm256_andnot_si256(_mm256_cmpgt_epi32(_mm256_set1_epi32((int)from), j), _mm256_cmpgt_epi32(_mm256_set1_epi32((int)to), j));
    return _mm256_castsi256_ps(in);
}

static void soft(float *s, uint32_t from, uint32_t to, float c, float *max_out, float *sum_out)
{
    const __m256 least = v8_set(-__builtin_inff());
    __m256 most = least;
    uint32_t first = from & ~15u;
    for (uint32_t j = first; j < to; j += 8)
        most = _mm256_max_ps(_mm256_blendv_ps(least, _mm256_loadu_ps(s + j), visible(j, from, to)), most);
    float max = v8_max(most) + 0.0f;
    __m256 mm = v8_set(max), cc = v8_set(c), low = _mm256_setzero_ps(), high = low;
    for (uint32_t j = first; j < to; j += 16) { /* j + 16 <= KV_BLOCK */
        __m256 a = v8_exp2(_mm256_mul_ps(_mm256_sub_ps(_mm256_loadu_ps(s + j), mm), cc));
        __m256 b = v8_exp2(_mm256_mul_ps(_mm256_sub_ps(_mm256_loadu_ps(s + j + 8), mm), cc));
        a = _mm256_and_ps(a, visible(j, from, to));
        b = _mm256_and_ps(b, visible(j + 8, from, to));
        _mm256_storeu_ps(s + j, a);
        _mm256_storeu_ps(s + j + 8, b);
        low = _mm256_add_ps(low, a);
        high = _mm256_add_ps(high, b);
    }
    *max_out = max;
    *sum_out = v8_tree16(low, high);
}

static void fold(float state[2], float *o, const float block[2], const float *o_block, uint32_t d, float c)
{
    float max = block[0] > state[0] ? block[0] : state[0];
    __m256 cc = v8_set(c), mm = v8_set(max);
    __m256 a = v8_exp2(_mm256_mul_ps(_mm256_sub_ps(v8_set(state[0]), mm), cc));
    __m256 b = v8_exp2(_mm256_mul_ps(_mm256_sub_ps(v8_set(block[0]), mm), cc));
    state[0] = max;
    state[1] = __builtin_fmaf(state[1], _mm256_cvtss_f32(a), block[1] * _mm256_cvtss_f32(b));
    for (uint32_t e = 0; e < d; e += 8)
        _mm256_storeu_ps(o + e, _mm256_fmadd_ps(_mm256_loadu_ps(o + e), a, _mm256_mul_ps(_mm256_loadu_ps(o_block + e), b)));
}

#endif
