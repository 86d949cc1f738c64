/* backend_cpu/kernels_avx512_attention.h - avx512 scores and mixes over one page; included by kernels_avx512_rows.c and, for the int8
 * scores, by kernels_avx512vnni_rows.c.
 *
 * The same product shape as kernels_avx2_attention.h: out[q][lane] = fma(a[q][k], b[k][lane], out[q][lane]), k ascending; here 32 lanes
 * are two vectors and up to 8 queries share a widened b. */
#ifndef RH_KERNELS_AVX512_ATTENTION_H
#define RH_KERNELS_AVX512_ATTENTION_H

#include "backend_cpu/kernels.h"
#include "backend_cpu/vec_avx512.h"
#include "tensor/tensor.h"

#define INLINE static inline __attribute__((always_inline))

/* ---- int8 scores; DOT(sum, k, q): 32-bit lanes of sum += pairs of int16 of k times those of q ---- */

/* elements e, e + 1 of the page's 32 positions as pairs of int16; lane order: low = positions 0-3 8-11 16-19 24-27, high = the rest */
INLINE void pair_32(const int8_t *k, bool affine, __m512i *low, __m512i *high)
{
    __m256i x = _mm256_loadu_si256((const __m256i *)(const void *)k);
    __m256i y = _mm256_loadu_si256((const __m256i *)(const void *)(k + KV_PAGE));
    __m512i a = affine ? _mm512_cvtepu8_epi16(x) : _mm512_cvtepi8_epi16(x);
    __m512i b = affine ? _mm512_cvtepu8_epi16(y) : _mm512_cvtepi8_epi16(y);
    *low = _mm512_unpacklo_epi16(a, b);
    *high = _mm512_unpackhi_epi16(a, b);
}

INLINE __m512 half_16(const uint16_t *p)
{
    return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)(const void *)p));
}

/* Sums in pair_32's order to positions; s = fma((float)P, D s_q, s), then with minima s = fma(M, ss_q, s). */
INLINE void code_finish(__m512i low, __m512i high, const uint16_t *scales, const uint16_t *minima, const struct cpu_query *q, float *s)
{
    const __m512i first = _mm512_setr_epi32(0, 1, 2, 3, 16, 17, 18, 19, 4, 5, 6, 7, 20, 21, 22, 23);
    const __m512i second = _mm512_setr_epi32(8, 9, 10, 11, 24, 25, 26, 27, 12, 13, 14, 15, 28, 29, 30, 31);
    __m512 qs = v16_set(q->s), ss = v16_set(q->ss);
    __m512 p0 = _mm512_cvtepi32_ps(_mm512_permutex2var_epi32(low, first, high));
    __m512 p1 = _mm512_cvtepi32_ps(_mm512_permutex2var_epi32(low, second, high));
    __m512 s0 = _mm512_fmadd_ps(p0, _mm512_mul_ps(half_16(scales), qs), _mm512_loadu_ps(s));
    __m512 s1 = _mm512_fmadd_ps(p1, _mm512_mul_ps(half_16(scales + 16), qs), _mm512_loadu_ps(s + 16));
    if (minima) {
        s0 = _mm512_fmadd_ps(half_16(minima), ss, s0);
        s1 = _mm512_fmadd_ps(half_16(minima + 16), ss, s1);
    }
    _mm512_storeu_ps(s, s0);
    _mm512_storeu_ps(s + 16, s1);
}

/* One block of 32 elements, four queries (repeat one to fill up), sums of query i only stored where s[i] is set. */
#define CODE_SCORE(DOT)                                                                                                         \
    INLINE void code_block(const int8_t *k, const char *next, const uint16_t *scales, const uint16_t *minima,                   \
                           const struct cpu_query *const q[4], float *const s[4])                                               \
    {                                                                                                                           \
        int32_t a[16], b[16], c[16], d[16];                                                                                     \
        __builtin_memcpy(a, q[0]->q, sizeof a), __builtin_memcpy(b, q[1]->q, sizeof b);                                         \
        __builtin_memcpy(c, q[2]->q, sizeof c), __builtin_memcpy(d, q[3]->q, sizeof d);                                         \
        __m512i a0 = _mm512_setzero_si512(), a1 = a0, b0 = a0, b1 = a0, c0 = a0, c1 = a0, d0 = a0, d1 = a0;                     \
        for (int i = 0; i < 16; i++) {                                                                                          \
            __m512i low, high, x;                                                                                               \
            __builtin_prefetch(next + 64 * i, 0, 2);                                                                            \
            pair_32(k + (size_t)(2 * i) * KV_PAGE, minima != NULL, &low, &high);                                                \
            x = _mm512_set1_epi32(a[i]), a0 = DOT(a0, low, x), a1 = DOT(a1, high, x);                                           \
            x = _mm512_set1_epi32(b[i]), b0 = DOT(b0, low, x), b1 = DOT(b1, high, x);                                           \
            x = _mm512_set1_epi32(c[i]), c0 = DOT(c0, low, x), c1 = DOT(c1, high, x);                                           \
            x = _mm512_set1_epi32(d[i]), d0 = DOT(d0, low, x), d1 = DOT(d1, high, x);                                           \
        }                                                                                                                       \
        code_finish(a0, a1, scales, minima, q[0], s[0]);                                                                        \
        if (s[1])                                                                                                               \
            code_finish(b0, b1, scales, minima, q[1], s[1]);                                                                    \
        if (s[2])                                                                                                               \
            code_finish(c0, c1, scales, minima, q[2], s[2]);                                                                    \
        if (s[3])                                                                                                               \
            code_finish(d0, d1, scales, minima, q[3], s[3]);                                                                    \
    }                                                                                                                           \
    INLINE void score_codes(const struct cpu_score *job, bool affine)                                                           \
    {                                                                                                                           \
        const int8_t *k = job->k;                                                                                               \
        uint32_t groups = job->d / 32;                                                                                          \
        for (uint32_t m = 0; m < job->m; m++) {                                                                                 \
            _mm512_storeu_ps(job->s + (size_t)m * KV_BLOCK, _mm512_setzero_ps());                                               \
            _mm512_storeu_ps(job->s + (size_t)m * KV_BLOCK + 16, _mm512_setzero_ps());                                          \
        }                                                                                                                       \
        for (uint32_t g = 0; g < groups; g++)                                                                                   \
            for (uint32_t m = 0; m < job->m; m += 4) {                                                                          \
                const struct cpu_query *q[4];                                                                                   \
                float *s[4];                                                                                                    \
                for (uint32_t i = 0; i < 4; i++) {                                                                              \
                    uint32_t at = m + i < job->m ? m + i : m;                                                                   \
                    q[i] = job->qa + (size_t)at * groups + g;                                                                   \
                    s[i] = m + i < job->m ? job->s + (size_t)at * KV_BLOCK : NULL;                                              \
                }                                                                                                               \
                size_t at = (size_t)g * 32 * KV_PAGE, scale = (size_t)(g / job->per) * KV_PAGE;                                 \
                code_block(k + at, (const char *)job->next + at, job->scales + scale, affine ? job->minima + scale : NULL, q,   \
                           s);                                                                                                  \
            }                                                                                                                   \
    }                                                                                                                           \
    static void score_q8(const struct cpu_score *job)                                                                           \
    {                                                                                                                           \
        score_codes(job, false);                                                                                                \
    }                                                                                                                           \
    static void score_a8(const struct cpu_score *job)                                                                           \
    {                                                                                                                           \
        score_codes(job, true);                                                                                                 \
    }

#endif
