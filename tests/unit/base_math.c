/* base/math.c: accuracy against mpmath (tests/data/base/math.txt) and, densely, against libm's f64 functions; and the bits, pinned by
 * hashes over bit patterns.  Every 2029th (1021st) f32 is looked at; with the argument "full", every one (minutes). */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "base/hash.h"
/* our names, after libm's */
#include "base/math.h"

static bool full;

static float of_bits(uint32_t u)
{
    float f;
    memcpy(&f, &u, 4);
    return f;
}

/* Error of `got` in units of the last place of an f32 (f64) of exact's size. */
static double ulp_f(double got, double exact)
{
    int e;
    frexp(exact, &e);
    return fabs(got - exact) / ldexp(1, (e < -125 ? -125 : e) - 24);
}

static double ulp_d(double got, double exact)
{
    int e;
    frexp(exact, &e);
    return fabs(got - exact) / ldexp(1, e - 53);
}

static double sin_of(double x)
{
    double s, c;
    math_sincosd(x, &s, &c);
    return s;
}

static double cos_of(double x)
{
    double s, c;
    math_sincosd(x, &s, &c);
    return c;
}

struct f32_case {
    const char *name;
    float (*ours)(float);
    double (*libm)(double);
    float lo, hi;      /* |x| or x range of the dense comparison */
    double ulp_max;
    uint64_t hash_strided, hash_full;
};

static const struct f32_case f32_cases[] = {
    {"exp2f", math_exp2f, exp2, -125, 127, 0.96, 0x73a3d4011b124667, 0xd28298b541424b15},
    {"expf", math_expf, exp, -86, 88, 1.27, 0x6f45807562165e6d, 0x1e00986a50f922a0},
    {"logf", math_logf, log, 0x1p-126f, 3e38f, 1.0, 0x23d14bbeb31f76c2, 0x48049f2bf3ee1e44},
    {"tanhf", math_tanhf, tanh, -1e30f, 1e30f, 1.7, 0x324290514eed6453, 0x3739db5ab6cdb560},
    {"erff", math_erff, erf, -1e30f, 1e30f, 1.7, 0x1ba6676fd140ae88, 0x70216b0e1b1f8093},
};

static const struct f64_case {
    const char *name;
    double (*ours)(double);
    double ulp_max, abs_max; /* either is enough */
} f64_cases[] = {
    {"logd", math_logd, 2, 0}, {"expd", math_expd, 2, 0}, {"sind", sin_of, 2, 2e-14}, {"cosd", cos_of, 2, 2e-14},
};

/* x of one fixture line -> our value and the limits it is held to */
static bool fixture_value(const char *name, const char *arg, double *got, double *ulp_max, double *abs_max, bool *f64)
{
    double x = 0, y = 0;
    sscanf(arg, "%la:%la", &x, &y);
    *abs_max = 0;
    for (size_t i = 0; i < sizeof f32_cases / sizeof *f32_cases; i++)
        if (strcmp(name, f32_cases[i].name) == 0)
            return *got = f32_cases[i].ours((float)x), *ulp_max = f32_cases[i].ulp_max, *f64 = false, true;
    *f64 = true;
    for (size_t i = 0; i < sizeof f64_cases / sizeof *f64_cases; i++)
        if (strcmp(name, f64_cases[i].name) == 0) {
            *abs_max = f64_cases[i].abs_max;
            return *got = f64_cases[i].ours(x), *ulp_max = f64_cases[i].ulp_max, true;
        }
    *ulp_max = 20; /* powd: the error of the logarithm times the exponent */
    return *got = math_powd(x, y), strcmp(name, "powd") == 0;
}

static void test_fixture(void **state)
{
    (void)state;
    FILE *f = fopen(TEST_DATA "/base/math.txt", "r");
    assert_non_null(f);
    char name[16], arg[80], last[16] = "";
    double exact, worst = 0;
    int n = 0;
    while (fscanf(f, "%15s %79s %la", name, arg, &exact) == 3) {
        if (strcmp(name, last) != 0) {
            if (last[0])
                printf("%-6s max %.4f ulp\n", last, worst);
            strcpy(last, name);
            worst = 0;
        }
        double got, ulp_max, abs_max;
        bool f64;
        assert_true(fixture_value(name, arg, &got, &ulp_max, &abs_max, &f64));
        double u = f64 ? ulp_d(got, exact) : ulp_f(got, exact);
        if (fabs(got - exact) > abs_max && u > ulp_max)
            fail_msg("%s(%s) = %a, expected %a: %g ulp", name, arg, got, exact, u);
        if (fabs(got - exact) > abs_max && u > worst)
            worst = u;
        n++;
    }
    printf("%-6s max %.4f ulp\n", last, worst);
    fclose(f);
    assert_true(n > 2000);
}

static void test_dense(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof f32_cases / sizeof *f32_cases; i++) {
        const struct f32_case *c = f32_cases + i;
        double worst = 0;
        float at = 0;
        for (uint64_t u = 0; u < UINT64_C(1) << 32; u += full ? 1 : 2029) {
            float x = of_bits((uint32_t)u);
            if (!(x >= c->lo && x <= c->hi) || fabsf(x) < 0x1p-126f)
                continue;
            double e = ulp_f(c->ours(x), c->libm(x));
            if (e > worst)
                worst = e, at = x;
        }
        printf("%-6s max %.4f ulp at %a (all f32%s)\n", c->name, worst, (double)at, full ? "" : ", every 2029th");
        assert_true(worst <= c->ulp_max);
    }
}

static uint64_t hash_of(float (*f)(float), float lo, uint64_t stride)
{
    enum { CHUNK = 1 << 16 };
    static float out[CHUNK];
    struct hash_stream *h = hash_stream_new();
    size_t n = 0;
    assert_non_null(h);
    for (uint64_t u = 0; u < UINT64_C(1) << 32; u += stride) {
        float x = of_bits((uint32_t)u);
        if (x != x || x < lo)
            continue;
        out[n++] = f(x);
        if (n == CHUNK)
            hash_stream_put(h, out, sizeof out), n = 0;
    }
    hash_stream_put(h, out, n * sizeof *out);
    return hash_stream_end(h).lo;
}

static void test_bits(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof f32_cases / sizeof *f32_cases; i++) {
        const struct f32_case *c = f32_cases + i;
        float lo = c->ours == math_logf ? 0x1p-126f : -INFINITY; /* log is for normal x > 0 */
        uint64_t strided = hash_of(c->ours, lo, 1021), whole = full ? hash_of(c->ours, lo, 1) : c->hash_full;
        printf("%-6s strided %016llx%s", c->name, (unsigned long long)strided, full ? "" : "\n");
        if (full)
            printf(" full %016llx\n", (unsigned long long)whole);
        assert_true(strided == c->hash_strided);
        assert_true(whole == c->hash_full);
    }
}

/* sin and cos in f64 as the rope table uses them: positions times frequencies, rounded to f32. */
static void test_rope_bits(void **state)
{
    (void)state;
    struct hash_stream *h = hash_stream_new();
    assert_non_null(h);
    for (uint32_t pos = 0; pos < 1u << 20; pos += 37) {
        float row[64];
        for (int i = 0; i < 32; i++) {
            double s, c;
            float inv = (float)math_powd(10000.0, -i / 32.0);
            math_sincosd((double)((float)pos * inv), &s, &c);
            row[2 * i] = (float)s, row[2 * i + 1] = (float)c;
        }
        hash_stream_put(h, row, sizeof row);
    }
    uint64_t got = hash_stream_end(h).lo;
    printf("rope   %016llx\n", (unsigned long long)got);
    assert_true(got == 0x7d8888fd471a9d74);
}

static void test_edges(void **state)
{
    (void)state;
    assert_true(isnan(math_exp2f(NAN)) && isnan(math_expf(NAN)) && isnan(math_tanhf(NAN)) && isnan(math_erff(NAN)));
    assert_true(math_exp2f(-INFINITY) == 0 && math_expf(-INFINITY) == 0 && math_exp2f(INFINITY) == 0x1p127f);
    assert_true(math_exp2f(0) == 1 && math_expf(0) == 1 && math_logf(1) == 0 && math_logd(1) == 0 && math_expd(0) == 1);
    assert_true(math_tanhf(INFINITY) == 1 && math_tanhf(-INFINITY) == -1 && math_erff(INFINITY) == 1 && math_erff(-INFINITY) == -1);
    assert_true(math_tanhf(-0.0f) == 0 && signbit(math_tanhf(-0.0f)) && signbit(math_erff(-0.0f)));
    assert_true(isnan(math_expd(NAN)) && math_expd(-1000) == 0 && isfinite(math_expd(1000)));
    assert_true(math_exp2f(-125) == 0x1p-125f && math_exp2f(nextafterf(-125, -200)) == 0);
}

/* Many at once are the bits of each alone, at any place and beside values that are not plain. */
static void test_expd_many(void **state)
{
    double x[41], y[41];
    (void)state;
    for (uint32_t round = 0; round < 2000; round++) {
        size_t n = round % 42;
        for (size_t i = 0; i < n; i++) {
            uint32_t bits = (round * 41 + (uint32_t)i) * 2654435761u;
            x[i] = y[i] = bits % 97 == 0 ? -INFINITY : bits % 89 == 0 ? -1e4 : bits % 83 == 0 ? NAN : -(double)(bits >> 8) * 0x1p-18;
        }
        math_expd_many(y, n);
        for (size_t i = 0; i < n; i++) {
            double one = math_expd(x[i]);
            assert_memory_equal(&one, &y[i], sizeof one);
        }
    }
}

int main(int argc, char **argv)
{
    full = argc > 1 && strcmp(argv[1], "full") == 0;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_fixture), cmocka_unit_test(test_dense), cmocka_unit_test(test_bits),
        cmocka_unit_test(test_rope_bits), cmocka_unit_test(test_edges),
        cmocka_unit_test(test_expd_many),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
