/* base/math.c - see math.h.  The order of every operation is the definition; docs/arithmetic.md lists it, tests/unit/base_math.c pins
 * the bits.  The vector forms in src/backend_cpu and src/backend_cuda repeat these sequences operation by operation and must change together with
 * them; the polynomials are one list (math_poly.h).
 *
 * f32 functions use fma (fmaf is exact on every machine); f64 functions use none, so that no machine needs one for them.
 * Invariants: 1. No libm but fmaf.  2. Rounding to an integer is an addition and a subtraction of 1.5 * 2^23 (2^52), exact for the
 *             argument ranges that occur.  3. NaN in gives NaN out.  (fmaf of libm is no approximation: IEEE defines it.)
 * tanh and erf constants: tests/fixtures/math_constants.py. */
#include "base/math.h"

#include "base/math_poly.h"

#include <stdbool.h>
#include <stdint.h>

/* declared here and not from <math.h>, so that nothing else of libm can slip in */
extern float fmaf(float x, float y, float z);

static const float LOG2E = 1.44269504f;

static uint32_t bits_of(float f)
{
    union { float f; uint32_t u; } v = {f};
    return v.u;
}

static float of_bits(uint32_t u)
{
    union { uint32_t u; float f; } v = {u};
    return v.f;
}

static uint64_t bits_of_d(double f)
{
    union { double f; uint64_t u; } v = {f};
    return v.u;
}

static double of_bits_d(uint64_t u)
{
    union { uint64_t u; double f; } v = {u};
    return v.f;
}

/* Round to nearest even, |t| < 2^22. */
static float round_f(float t)
{
    return (t + 0x1.8p23f) - 0x1.8p23f;
}

static double round_d(double t)
{
    return (t + 0x1.8p52) - 0x1.8p52;
}

/* 2^r * 2^n for |r| <= 1/2: the polynomial, then n added to the exponent. */
static float exp2_poly(float r, int32_t n)
{
    float p = MATH_POLY_EXP2(fmaf, MATH_CONSTANT, r);
    return of_bits(bits_of(p) + ((uint32_t)n << 23));
}

float math_exp2f(float t)
{
    if (t < -125.0f)
        return 0.0f;
    if (t != t)
        return t;
    t = t > 127.0f ? 127.0f : t;
    float n = round_f(t);
    return exp2_poly(t - n, (int32_t)n);
}

float math_expf(float x)
{
    if (x < -86.0f)
        return 0.0f;
    if (x != x)
        return x;
    x = x > 88.0f ? 88.0f : x;
    float n = round_f(x * LOG2E);
    float r = fmaf(n, -0.693359375f, x);
    r = fmaf(n, 2.12194440e-4f, r);
    return exp2_poly(r * LOG2E, (int32_t)n);
}

float math_logf(float x)
{
    /* x = m 2^e with m in [sqrt(1/2), sqrt(2)): subtracting the bits of sqrt(1/2) puts the border where the exponent turns */
    uint32_t shifted = bits_of(x) - 0x3f3504f3u;
    float e = (float)((int32_t)shifted >> 23);
    float f = of_bits((shifted & 0x007fffffu) + 0x3f3504f3u) - 1.0f;
    float p = MATH_POLY_LOG(fmaf, MATH_CONSTANT, f);
    float y = fmaf(f * f, p, e * -2.12194440e-4f);
    y = y + f;
    return fmaf(e, 0.693359375f, y);
}

float math_tanhf(float x)
{
    float a = of_bits(bits_of(x) & 0x7fffffffu);
    float y;
    if (a < 0.625f) {
        float s = a * a;
        float p = MATH_POLY_TANH(fmaf, MATH_CONSTANT, s);
        y = fmaf(a * s, p, a);
    } else {
        y = 1.0f - 2.0f / (math_expf(a + a) + 1.0f);
    }
    return of_bits(bits_of(y) | (bits_of(x) & 0x80000000u));
}

float math_erff(float x)
{
    float a = of_bits(bits_of(x) & 0x7fffffffu);
    float y;
    if (a < 0.921875f) {
        float s = a * a;
        float p = MATH_POLY_ERF(fmaf, MATH_CONSTANT, s);
        y = fmaf(a, p, a);
    } else {
        a = a > 4.0f ? 4.0f : a; /* erf(4) rounds to 1 */
        float p = MATH_POLY_ERF_TAIL(fmaf, MATH_CONSTANT, a);
        y = 1.0f - math_expf(p * a);
    }
    return of_bits(bits_of(y) | (bits_of(x) & 0x80000000u));
}

/* ---- f64, no fma: tables of rope and frequencies, not hot ---- */

static const double LN2_HIGH = 0x1.62e42fee00000p-1; /* 32 bits: exact times an exponent */
static const double LN2_LOW = 0x1.a39ef35793c76p-33;

double math_logd(double x)
{
    uint64_t shifted = bits_of_d(x) - 0x3fe6a09e667f3bcdu; /* sqrt(1/2) */
    double e = (double)((int64_t)shifted >> 52);
    double f = of_bits_d((shifted & 0x000fffffffffffffu) + 0x3fe6a09e667f3bcdu) - 1.0;
    double s = f / (2.0 + f), z = s * s; /* log(1 + f) = 2 (s + s^3 / 3 + s^5 / 5 + ..) */
    double p = 1.0 / 23.0;
    for (int k = 21; k >= 3; k -= 2)
        p = p * z + 1.0 / k;
    double y = 2.0 * s + (2.0 * s) * z * p;
    return e * LN2_HIGH + (y + e * LN2_LOW);
}

double math_expd(double x)
{
    if (x != x)
        return x;
    if (x < -708.0)
        return 0.0;
    x = x > 709.0 ? 709.0 : x;
    double n = round_d(x * 1.4426950408889634);
    double r = (x - n * LN2_HIGH) - n * LN2_LOW;
    double p = 1.0;
    for (int k = 14; k >= 1; k--) /* Taylor, |r| < 0.35 */
        p = 1.0 + p * r / k;
    return of_bits_d(bits_of_d(p) + ((uint64_t)(int64_t)n << 52));
}

/* The same operations side by side: what math_expd waits for is its divisions. */
void math_expd_many(double *x, size_t n)
{
    for (; n >= 4; x += 4, n -= 4) {
        double e[4], r[4], p[4] = {1, 1, 1, 1};
        bool plain = true;
        for (int i = 0; i < 4; i++)
            plain = plain && x[i] >= -708.0 && x[i] <= 709.0;
        for (int i = 0; i < 4; i++) {
            if (!plain) {
                x[i] = math_expd(x[i]);
                continue;
            }
            e[i] = round_d(x[i] * 1.4426950408889634);
            r[i] = (x[i] - e[i] * LN2_HIGH) - e[i] * LN2_LOW;
        }
        for (int k = 14; plain && k >= 1; k--) {
            double by = k;
            for (int i = 0; i < 4; i++)
                p[i] = 1.0 + p[i] * r[i] / by;
        }
        for (int i = 0; plain && i < 4; i++)
            x[i] = of_bits_d(bits_of_d(p[i]) + ((uint64_t)(int64_t)e[i] << 52));
    }
    for (; n; x++, n--)
        *x = math_expd(*x);
}

double math_powd(double base, double exponent)
{
    return math_expd(exponent * math_logd(base));
}

void math_sincosd(double x, double *sin_out, double *cos_out)
{
    /* pi / 2 in three parts; the first two have 23 bits, so n times them is exact for |n| < 2^30 */
    double n = round_d(x * 0.6366197723675814);
    double r = x - n * 0x1.921fb40000000p+0;
    r = r - n * 0x1.4442d00000000p-24;
    r = r - n * 0x1.8469898cc5170p-48;
    double z = r * r;
    /* Taylor to r^17 and r^18, |r| < 0.79 */
    double s = 1.0 / (16.0 * 17.0), c = 1.0 / (17.0 * 18.0);
    for (int k = 14; k >= 2; k -= 2) {
        s = (1.0 - s * z) / (double)(k * (k + 1));
        c = (1.0 - c * z) / (double)(k * (k + 1) + 2 * (k + 1));
    }
    s = r - r * (z * s);
    c = 1.0 - 0.5 * z * (1.0 - c * z);
    switch ((int64_t)n & 3) {
    case 0: *sin_out = s, *cos_out = c; return;
    case 1: *sin_out = c, *cos_out = -s; return;
    case 2: *sin_out = -s, *cos_out = -c; return;
    default: *sin_out = -c, *cos_out = s; return;
    }
}
