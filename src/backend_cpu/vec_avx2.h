/* backend_cpu/vec_avx2.h - exp2, exp, log, tanh, erf of base/math.c on 8 lanes, operation by operation; and reductions.
 *
 * Only for kernels_avx2_*.c (compiled with their flags); everything is static inline.  Blends replace branches: both sides are
 * computed, one is kept, so every lane has the bits of the scalar function, NaN lanes included. */
#ifndef RH_VEC_AVX2_H
#define RH_VEC_AVX2_H

#include "base/math_poly.h"

#include <immintrin.h>
#include <stdint.h>

#define V8 static inline __attribute__((always_inline)) __m256

V8 v8_set(float f)
{
    return _mm256_set1_ps(f);
}

/* 2^r 2^n */
V8 v8_exp2_poly(__m256 r, __m256 n)
{
    __m256 p = MATH_POLY_EXP2(_mm256_fmadd_ps, v8_set, r);
    __m256i e = _mm256_slli_epi32(_mm256_cvtps_epi32(n), 23); /* of a NaN n: 0x80000000 << 23 = 0 */
    return _mm256_castsi256_ps(_mm256_add_epi32(_mm256_castps_si256(p), e));
}

V8 v8_round(__m256 t)
{
    return _mm256_sub_ps(_mm256_add_ps(t, v8_set(0x1.8p23f)), v8_set(0x1.8p23f));
}

V8 v8_exp2(__m256 x)
{
    __m256 low = _mm256_cmp_ps(x, v8_set(-125.0f), _CMP_LT_OQ);
    __m256 t = _mm256_min_ps(v8_set(127.0f), x); /* a NaN x stays */
    __m256 n = v8_round(t);
    return _mm256_andnot_ps(low, v8_exp2_poly(_mm256_sub_ps(t, n), n));
}

V8 v8_exp(__m256 x)
{
    __m256 low = _mm256_cmp_ps(x, v8_set(-86.0f), _CMP_LT_OQ);
    __m256 t = _mm256_min_ps(v8_set(88.0f), x);
    __m256 n = v8_round(_mm256_mul_ps(t, v8_set(1.44269504f)));
    __m256 r = _mm256_fmadd_ps(n, v8_set(-0.693359375f), t);
    r = _mm256_fmadd_ps(n, v8_set(2.12194440e-4f), r);
    return _mm256_andnot_ps(low, v8_exp2_poly(_mm256_mul_ps(r, v8_set(1.44269504f)), n));
}

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

V8 v8_tanh(__m256 x)
{
    __m256 sign = v8_set(-0.0f), a = _mm256_andnot_ps(sign, x);
    __m256 s = _mm256_mul_ps(a, a), p = MATH_POLY_TANH(_mm256_fmadd_ps, v8_set, s);
    p = _mm256_fmadd_ps(_mm256_mul_ps(a, s), p, a);
    __m256 d = _mm256_add_ps(v8_exp(_mm256_add_ps(a, a)), v8_set(1.0f));
    __m256 y = _mm256_sub_ps(v8_set(1.0f), _mm256_div_ps(v8_set(2.0f), d));
    y = _mm256_blendv_ps(y, p, _mm256_cmp_ps(a, v8_set(0.625f), _CMP_LT_OQ));
    return _mm256_or_ps(y, _mm256_and_ps(sign, x));
}

V8 v8_erf(__m256 x)
{
    __m256 sign = v8_set(-0.0f), a = _mm256_andnot_ps(sign, x);
    __m256 s = _mm256_mul_ps(a, a), p = MATH_POLY_ERF(_mm256_fmadd_ps, v8_set, s);
    p = _mm256_fmadd_ps(a, p, a);
    __m256 b = _mm256_min_ps(v8_set(4.0f), a), q = MATH_POLY_ERF_TAIL(_mm256_fmadd_ps, v8_set, b);
    __m256 y = _mm256_sub_ps(v8_set(1.0f), v8_exp(_mm256_mul_ps(q, b)));
    y = _mm256_blendv_ps(y, p, _mm256_cmp_ps(a, v8_set(0.921875f), _CMP_LT_OQ));
    return _mm256_or_ps(y, _mm256_and_ps(sign, x));
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
