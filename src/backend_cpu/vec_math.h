/* backend_cpu/vec_math.h - exp2, exp, tanh, erf of base/math.c on a vector, operation by operation: one text for every width.
 *
 * Included by vec_<level>.h once it has defined VEC (floats), VEC_BITS (the same as integers) with VEC_OF_BITS and VEC_TO_BITS, V(name) (its
 * functions), MM(op) (its intrinsics), and V(set), V(not_below)(x, limit, y): y where x is not below, else 0; V(below)(a, limit, p, y): p
 * where a is below, else y.  Both sides of a choice are computed, one is kept, so every lane has the bits of the scalar function, NaN lanes
 * included.  No guard: a file is compiled for one level. */
#include "base/math_poly.h"

#define VEC_FN static inline __attribute__((always_inline)) VEC

/* 2^r 2^n */
VEC_FN V(exp2_poly)(VEC r, VEC n)
{
    VEC p = MATH_POLY_EXP2(MM(fmadd_ps), V(set), r);
    VEC_BITS e = MM(slli_epi32)(MM(cvtps_epi32)(n), 23); /* of a NaN n: 0x80000000 << 23 = 0 */
    return VEC_OF_BITS(MM(add_epi32)(VEC_TO_BITS(p), e));
}

VEC_FN V(round)(VEC t)
{
    return MM(sub_ps)(MM(add_ps)(t, V(set)(0x1.8p23f)), V(set)(0x1.8p23f));
}

VEC_FN V(exp2)(VEC x)
{
    VEC t = MM(min_ps)(V(set)(127.0f), x); /* a NaN x stays */
    VEC n = V(round)(t);
    return V(not_below)(x, -125.0f, V(exp2_poly)(MM(sub_ps)(t, n), n));
}

VEC_FN V(exp)(VEC x)
{
    VEC t = MM(min_ps)(V(set)(88.0f), x);
    VEC n = V(round)(MM(mul_ps)(t, V(set)(1.44269504f)));
    VEC r = MM(fmadd_ps)(n, V(set)(-0.693359375f), t);
    r = MM(fmadd_ps)(n, V(set)(2.12194440e-4f), r);
    return V(not_below)(x, -86.0f, V(exp2_poly)(MM(mul_ps)(r, V(set)(1.44269504f)), n));
}

VEC_FN V(tanh)(VEC x)
{
    VEC sign = V(set)(-0.0f), a = MM(andnot_ps)(sign, x);
    VEC s = MM(mul_ps)(a, a), p = MATH_POLY_TANH(MM(fmadd_ps), V(set), s);
    p = MM(fmadd_ps)(MM(mul_ps)(a, s), p, a);
    VEC d = MM(add_ps)(V(exp)(MM(add_ps)(a, a)), V(set)(1.0f));
    VEC y = MM(sub_ps)(V(set)(1.0f), MM(div_ps)(V(set)(2.0f), d));
    y = V(below)(a, 0.625f, p, y);
    return MM(or_ps)(y, MM(and_ps)(sign, x));
}

VEC_FN V(erf)(VEC x)
{
    VEC sign = V(set)(-0.0f), a = MM(andnot_ps)(sign, x);
    VEC s = MM(mul_ps)(a, a), p = MATH_POLY_ERF(MM(fmadd_ps), V(set), s);
    p = MM(fmadd_ps)(a, p, a);
    VEC b = MM(min_ps)(V(set)(4.0f), a), q = MATH_POLY_ERF_TAIL(MM(fmadd_ps), V(set), b);
    VEC y = MM(sub_ps)(V(set)(1.0f), V(exp)(MM(mul_ps)(q, b)));
    y = V(below)(a, 0.921875f, p, y);
    return MM(or_ps)(y, MM(and_ps)(sign, x));
}
