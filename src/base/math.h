/* base/math.h - elementary functions of our own: the same bits on every machine and every CPU level.
 *
 * Only IEEE + - * / sqrt and explicit fma, in one fixed order (see docs/arithmetic.md); round to nearest; no libm on the numeric path. */
#ifndef RH_BASE_MATH_H
#define RH_BASE_MATH_H

#include <stddef.h>

float math_exp2f(float t);  /* t < -125 gives 0, clamped at 127 */
float math_expf(float x);   /* x < -86 gives 0, clamped at 88 */
float math_logf(float x);   /* x > 0, normal */
double math_logd(double x); /* x > 0, normal; < 1 ulp of f64 is not promised, the bits are */
double math_expd(double x);
void math_expd_many(double *x, size_t n); /* in place; the bits of math_expd */
double math_powd(double base, double exponent); /* base > 0 */
void math_sincosd(double x, double *sin_out, double *cos_out); /* |x| < 2^30 */
float math_tanhf(float x);
float math_erff(float x);

#endif
