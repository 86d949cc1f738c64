/* backend_cpu/vec_avx2.h - vec_math.h on 8 lanes, log of base/math.c likewise; and reductions.
 *
 * Only for kernels_avx2_*.c (compiled with their flags); everything is static inline. */
#ifndef RH_VEC_AVX2_H
#define RH_VEC_AVX2_H

#include <immintrin.h>
#include <stdint.h>

#define V8 static inline __attribute__((always_inline)) __m256

V8 v8_set(float f)
{
    return _mm256_set1_ps(f);
}

V8 v8_not_below(__m256 x, float limit, __m256 y)
{
    return _mm256_andnot_ps(_mm256_cmp_ps(x, v8_set(limit), _CMP_LT_OQ), y);
}

V8 v8_below(__m256 a, float limit, __m256 p, __m256 y)
{
    return _mm256_blendv_ps(y, p, _mm256_cmp_ps(a, v8_set(limit), _CMP_LT_OQ));
}

#define VEC __m256
#define VEC_BITS __m256i
#define VEC_OF_BITS _mm256_castsi256_ps
#define VEC_TO_BITS _mm256_castps_si256
#define V(name) v8_##name
#define MM(op) _mm256_##op
#include "backend_cpu/vec_math.h"

V8 v8_log(__m256 x)
{
    __m256i half = _mm256_set1_epi32(0x3f3504f3);
    __m256i shifted = _mm256_sub_epi32(_mm256_castps_si256(x), half);
    __m256 e = _mm256_cvtepi32_ps(_mm256_srai_epi32(shifted, 23));
    __m256i m = _mm256_add_epi32(_mm256_and_si256(shifted, _mm256_set1_epi32(0x007fffff)), half);
    __m256 f = _mm256_sub_ps(_mm256_castsi256_ps(m), v8_set(1.0f));
    __m256 p = MATH_POLY_LOG(_mm256_fmadd_ps, v8_set, f);
    __m256 y = _mm256_fmadd_ps(_mm256_mul_ps(f, f), p, _mm256_mul_ps(e, v8_set(-2.12194440e-4f)));
    y = _mm256_add_ps(y, f);
    return _mm256_fmadd_ps(e, v8_set(0.693359375f), y);
}

/* lanes 0..7 and 8..15 -> tree16 */
static inline __attribute__((always_inline)) float v8_tree16(__m256 low, __m256 high)
{
    __m256 a = _mm256_add_ps(low, high);
    __m128 b = _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
    b = _mm_add_ps(b, _mm_movehl_ps(b, b));
    return _mm_cvtss_f32(_mm_add_ss(b, _mm_shuffle_ps(b, b, 1)));
}

static inline __attribute__((always_inline)) float v8_max(__m256 a)
{
    __m128 b = _mm_max_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
    b = _mm_max_ps(b, _mm_movehl_ps(b, b));
    return _mm_cvtss_f32(_mm_max_ss(b, _mm_shuffle_ps(b, b, 1)));
}

/* all ones in the first n lanes, n <= 8 */
static inline __attribute__((always_inline)) __m256i v8_first(uint32_t n)
{
    return _mm256_cmpgt_epi32(_mm256_set1_epi32((int)n), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}

#endif
