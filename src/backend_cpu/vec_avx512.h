/* backend_cpu/vec_avx512.h - vec_math.h on 16 lanes; and reductions.
 *
 * Only for kernels_avx512*_rows.c (F BW DQ VL); everything is static inline. */
#ifndef RH_VEC_AVX512_H
#define RH_VEC_AVX512_H

#include <immintrin.h>
#include <stdint.h>

#define V16 static inline __attribute__((always_inline)) __m512

V16 v16_set(float f)
{
    return _mm512_set1_ps(f);
}

V16 v16_not_below(__m512 x, float limit, __m512 y)
{
    return _mm512_maskz_mov_ps(_mm512_cmp_ps_mask(x, v16_set(limit), _CMP_NLT_UQ), y);
}

V16 v16_below(__m512 a, float limit, __m512 p, __m512 y)
{
    return _mm512_mask_mov_ps(y, _mm512_cmp_ps_mask(a, v16_set(limit), _CMP_LT_OQ), p);
}

#define VEC __m512
#define VEC_BITS __m512i
#define VEC_OF_BITS _mm512_castsi512_ps
#define VEC_TO_BITS _mm512_castps_si512
#define V(name) v16_##name
#define MM(op) _mm512_##op
#include "backend_cpu/vec_math.h"

/* a[i] + a[i + 8], then + 4, + 2, + 1 (not _mm512_reduce_add_ps, whose order is the compiler's) */
static inline __attribute__((always_inline)) float v16_tree(__m512 v)
{
    __m256 a = _mm256_add_ps(_mm512_castps512_ps256(v), _mm512_extractf32x8_ps(v, 1));
    __m128 b = _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
    b = _mm_add_ps(b, _mm_movehl_ps(b, b));
    return _mm_cvtss_f32(_mm_add_ss(b, _mm_shuffle_ps(b, b, 1)));
}

static inline __attribute__((always_inline)) float v16_max(__m512 v)
{
    __m256 a = _mm256_max_ps(_mm512_castps512_ps256(v), _mm512_extractf32x8_ps(v, 1));
    __m128 b = _mm_max_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
    b = _mm_max_ps(b, _mm_movehl_ps(b, b));
    return _mm_cvtss_f32(_mm_max_ss(b, _mm_shuffle_ps(b, b, 1)));
}

/* the first n lanes; all when n >= 16 */
static inline __attribute__((always_inline)) __mmask16 v16_first(uint32_t n)
{
    return (__mmask16)(n >= 16 ? 0xffff : (1u << n) - 1);
}

#endif
