/* base/math_poly.h - the polynomials of base/math.c: one list of constants for plain C, vectors and the GPU.
 *
 * Horner, the highest power first.  F(a, b, c): a * b + c, rounded once; K(c): the constant as F takes it; x the argument. */
#ifndef RH_BASE_MATH_POLY_H
#define RH_BASE_MATH_POLY_H

#define MATH_CONSTANT(c) c /* K of scalars */

#define MATH_POLY_EXP2(F, K, x) /* 2^x, |x| <= 1 / 2 */ \
    F(F(F(F(F(F(K(0.0001534581242594868f), x, K(0.0013399930903688073f)), x, K(0.009618489071726799f)), x, \
    K(0.05550328642129898f)), x, K(0.24022646248340607f)), x, K(0.6931471824645996f)), x, K(1.0f))
#define MATH_POLY_LOG(F, K, x) /* (log(1 + x) - x) / x^2 */ \
    F(F(F(F(F(F(F(F(K(-0.07644994556903839f), x, K(0.12921948730945587f)), x, K(-0.1324271857738495f)), x, \
    K(0.14179255068302155f)), x, K(-0.16608795523643494f)), x, K(0.20002087950706482f)), x, K(-0.2500159740447998f)), \
    x, K(0.33333325386047363f)), x, K(-0.49999988079071045f))
#define MATH_POLY_TANH(F, K, x) /* (tanh(y) - y) / y^3 of x = y^2, |y| < 0.625 */ \
    F(F(F(F(K(-0.005716202781f), x, K(0.02064970881f)), x, K(-0.05374317244f)), x, K(0.1333148628f)), x, \
    K(-0.3333328366f))
#define MATH_POLY_ERF(F, K, x) /* erf(y) / y - 1 of x = y^2, |y| < 0.921875 */ \
    F(F(F(F(F(F(K(7.962679229e-05f), x, K(-0.0008042697445f)), x, K(0.005191889126f)), x, K(-0.02685557865f)), x, \
    K(0.1128362417f)), x, K(-0.3761262894f)), x, K(0.1283791661f))
#define MATH_POLY_ERF_TAIL(F, K, x) /* log(1 - erf(x)) / x, x up to 4 */ \
    F(F(F(F(F(F(K(-1.158939722e-05f), x, K(0.0003263242834f)), x, K(-0.003656496294f)), x, K(0.02379113249f)), x, \
    K(-0.1062698737f)), x, K(-0.6351318359f)), x, K(-1.128653169f))

#endif
