/* backend_cpu/kernels_avx2_attention.h - level avx2 of attention: scores and mixes over one page, softmax of a block, fold.  Included by
 * kernels_avx2_rows.c only. */
#ifndef RH_KERNELS_AVX2_ATTENTION_H
#define RH_KERNELS_AVX2_ATTENTION_H

#include "backend_cpu/code_mix.h"
#include "backend_cpu/kernels_avx2_product.h"

FLOAT_FORMAT(f32, float)
FLOAT_FORMAT(f16, uint16_t)
FLOAT_FORMAT(bf16, uint16_t)

CODE_MIX(q8)
CODE_MIX(a8)

/* ---- int8 scores ---- */

/* elements e, e + 1 of 16 positions as pairs of int16: low = positions 0..3, 8..11; high = 4..7, 12..15 */
INLINE void pair_16(const int8_t *k, bool affine, __m256i *low, __m256i *high)
{
    __m128i x = _mm_loadu_si128((const __m128i *)(const void *)k), y = _mm_loadu_si128((const __m128i *)(const void *)(k + KV_PAGE));
    __m256i a = affine ? _mm256_cvtepu8_epi16(x) : _mm256_cvtepi8_epi16(x);
    __m256i b = affine ? _mm256_cvtepu8_epi16(y) : _mm256_cvtepi8_epi16(y);
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

INLINE __m256 half_8(const uint16_t *p)
{
    return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(const void *)p));
}

/* 16 positions: s = fma(P, D s_q, s), then with minima s = fma(M, ss_q, s) */
INLINE void code_finish(__m256i low, __m256i high, const uint16_t *scales, const uint16_t *minima, const struct cpu_query *q, float *s)
{
    __m256 p0 = _mm256_cvtepi32_ps(_mm256_permute2x128_si256(low, high, 0x20));
    __m256 p1 = _mm256_cvtepi32_ps(_mm256_permute2x128_si256(low, high, 0x31));
    __m256 qs = v8_set(q->s), ss = v8_set(q->ss);
    __m256 s0 = _mm256_fmadd_ps(p0, _mm256_mul_ps(half_8(scales), qs), _mm256_loadu_ps(s));
    __m256 s1 = _mm256_fmadd_ps(p1, _mm256_mul_ps(half_8(scales + 8), qs), _mm256_loadu_ps(s + 8));
    if (minima) {
        s0 = _mm256_fmadd_ps(half_8(minima), ss, s0);
        s1 = _mm256_fmadd_ps(half_8(minima + 8), ss, s1);
    }
    _mm256_storeu_ps(s, s0);
    _mm256_storeu_ps(s + 8, s1);
}

/* one block of 32 elements for two queries (the second may be the first again) */
INLINE void code_block(const int8_t *k, const char *next, const uint16_t *scales, const uint16_t *minima, const struct cpu_query *qa,
                       const struct cpu_query *qb, float *sa, float *sb)
{
    int32_t pa[16], pb[16]; /* pairs of elements */
    __builtin_memcpy(pa, qa->q, sizeof pa);
    __builtin_memcpy(pb, qb->q, sizeof pb);
    __m256i zero = _mm256_setzero_si256();
    __m256i a0 = zero, a1 = zero, a2 = zero, a3 = zero, b0 = zero, b1 = zero, b2 = zero, b3 = zero;
    for (int i = 0; i < 16; i++) {
        __m256i k0, k1, k2, k3;
        __builtin_prefetch(next + 64 * i, 0, 2);
        pair_16(k + (size_t)(2 * i) * KV_PAGE, minima != NULL, &k0, &k1);
        pair_16(k + (size_t)(2 * i) * KV_PAGE + 16, minima != NULL, &k2, &k3);
        PAIR_STEP(a, pa[i])
        PAIR_STEP(b, pb[i])
    }
    code_finish(a0, a1, scales, minima, qa, sa);
    code_finish(a2, a3, scales + 16, minima ? minima + 16 : NULL, qa, sa + 16);
    if (sb) {
        code_finish(b0, b1, scales, minima, qb, sb);
        code_finish(b2, b3, scales + 16, minima ? minima + 16 : NULL, qb, sb + 16);
    }
}

INLINE void score_codes(const struct cpu_score *job, bool affine)
{
    const int8_t *k = job->k;
    uint32_t blocks = job->d / 32;
    for (uint32_t m = 0; m < job->m; m++)
        for (int i = 0; i < KV_PAGE; i += 8)
            _mm256_storeu_ps(job->s + (size_t)m * KV_BLOCK + i, _mm256_setzero_ps());
    for (uint32_t g = 0; g < blocks; g++)
        for (uint32_t m = 0; m < job->m; m += 2) {
            bool two = m + 1 < job->m;
            const struct cpu_query *q = job->qa + (size_t)m * blocks + g;
            float *s = job->s + (size_t)m * KV_BLOCK;
            size_t at = (size_t)g * 32 * KV_PAGE, scale = (size_t)(g / job->per) * KV_PAGE;
            code_block(k + at, (const char *)job->next + at, job->scales + scale, affine ? job->minima + scale : NULL, q,
                       two ? q + blocks : q, s, two ? s + KV_BLOCK : NULL);
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
