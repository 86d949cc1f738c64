/* backend_cpu/vec_avx512.h - exp2, exp, tanh, erf of base/math.c on 16 lanes, operation by operation; and reductions.
 *
 * Only for kernels_avx512*_rows.c (F BW DQ VL); everything is static inline.  Masks replace branches, as blends do in vec_avx2.h. */
#ifndef RH_VEC_AVX512_H
#define RH_VEC_AVX512_H

#include "base/math_poly.h"

#include <immintrin.h>
#include <stdint.h>

#define V16 static inline __attribute__((always_inline)) __m512

V16 v16_set(float f)
{
    return _mm512_set1_ps(f);
}

V16 v16_exp2_poly(__m512 r, __m512 n)
{
    __m512 p = MATH_POLY_EXP2(_mm512_fmadd_ps, v16_set, r);
    __m512i e = _mm512_slli_epi32(_mm512_cvtps_epi32(n), 23); /* of a NaN n: 0x80000000 << 23 = 0 */
    return _mm512_castsi512_ps(_mm512_add_epi32(_mm512_castps_si512(p), e));
}

V16 v16_round(__m512 t)
{
    return _mm512_sub_ps(_mm512_add_ps(t, v16_set(0x1.8p23f)), v16_set(0x1.8p23f));
}

V16 v16_exp2(__m512 x)
{
    __mmask16 keep = _mm512_cmp_ps_mask(x, v16_set(-125.0f), _CMP_NLT_UQ);
    __m512 t = _mm512_min_ps(v16_set(127.0f), x); /* a NaN x stays */
    __m512 n = v16_round(t);
    return _mm512_maskz_mov_ps(keep, v16_exp2_poly(_mm512_sub_ps(t, n), n));
}

V16 v16_exp(__m512 x)
{
    __mmask16 keep = _mm512_cmp_ps_mask(x, v16_set(-86.0f), _CMP_NLT_UQ);
    __m512 t = _mm512_min_ps(v16_set(88.0f), x);
    __m512 n = v16_round(_mm512_mul_ps(t, v16_set(1.44269504f)));
    __m512 r = _mm512_fmadd_ps(n, v16_set(-0.693359375f), t);
    r = _mm512_fmadd_ps(n, v16_set(2.12194440e-4f), r);
    return _mm512_maskz_mov_ps(keep, v16_exp2_poly(_mm512_mul_ps(r, v16_set(1.44269504f)), n));
}

V16 v16_tanh(__m512 x)
{
    __m512 sign = v16_set(-0.0f), a = _mm512_andnot_ps(sign, x);
    __m512 s = _mm512_mul_ps(a, a), p = MATH_POLY_TANH(_mm512_fmadd_ps, v16_set, s);
    p = _mm512_fmadd_ps(_mm512_mul_ps(a, s), p, a);
    __m512 d = _mm512_add_ps(v16_exp(_mm512_add_ps(a, a)), v16_set(1.0f));
    __m512 y = _mm512_sub_ps(v16_set(1.0f), _mm512_div_ps(v16_set(2.0f), d));
    y = _mm512_mask_mov_ps(y, _mm512_cmp_ps_mask(a, v16_set(0.625f), _CMP_LT_OQ), p);
    return _mm512_or_ps(y, _mm512_and_ps(sign, x));
}

V16 v16_erf(__m512 x)
{
    __m512 sign = v16_set(-0.0f), a = _mm512_andnot_ps(sign, x);
    __m512 s = _mm512_mul_ps(a, a), p = MATH_POLY_ERF(_mm512_fmadd_ps, v16_set, s);
    p = _mm512_fmadd_ps(a, p, a);
    __m512 b = _mm512_min_ps(v16_set(4.0f), a), q = MATH_POLY_ERF_TAIL(_mm512_fmadd_ps, v16_set, b);
    __m512 y = _mm512_sub_ps(v16_set(1.0f), v16_exp(_mm512_mul_ps(q, b)));
    y = _mm512_mask_mov_ps(y, _mm512_cmp_ps_mask(a, v16_set(0.921875f), _CMP_LT_OQ), p);
    return _mm512_or_ps(y, _mm512_and_ps(sign, x));
}

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
