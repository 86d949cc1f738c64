/* tensor/kv_codec.c against an independent encoder (tests/fixtures/kv_fixtures.py wrote tests/data/kv/planes.txt): planes and what they
 * decode to, byte for byte; positions do not touch each other; vectors and errors are of the size the formats promise. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/hash.h"
#include "tensor/kv_codec.h"

/* the 32 vectors of kv_fixtures.py */
static float element(uint32_t i, uint32_t e, uint32_t *state)
{
    int64_t total = 0;
    for (int k = 0; k < 3; k++) {
        *state = *state * 1664525u + 1013904223u;
        total += (int64_t)(*state >> 12) - (1 << 19);
    }
    float x = (float)total * 0x1p-19f;
    switch (i) {
    case 16: case 17: case 18: case 19:
        return e % 37 == i ? x * 64 : x;
    case 20:
        return 3.25f;
    case 21:
        return 0;
    case 22:
        return x * 0x1p-112f;
    case 23:
        return x * 0x1p-130f;
    case 24:
        return x * 0x1p100f;
    case 25:
        return e == 5 ? NAN : x;
    case 26:
        return e == 7 ? INFINITY : e == 9 ? -INFINITY : x;
    case 27:
        return 100 + x * 0.125f;
    case 28:
        return e % 2 ? 1 : -1;
    case 29:
        return e == 3 ? 5 : 0;
    case 30:
        return x * 65536;
    case 31:
        return -0.0f;
    default:
        return x;
    }
}

static float vectors[KV_PAGE][KV_HEAD_MAX];
static unsigned char planes[2][KV_PAGE * KV_HEAD_MAX * 4];

static void fill(enum kv_format f, uint32_t d)
{
    uint32_t state = 1;
    for (uint32_t i = 0; i < KV_PAGE; i++)
        for (uint32_t e = 0; e < d; e++)
            vectors[i][e] = element(i, e, &state);
    for (uint32_t i = KV_PAGE; i-- > 0;)
        for (int key = 0; key < 2; key++)
            kv_store(planes[key], f, d, i, key, vectors[i]);
}

static void digest(const void *p, size_t n, char hex[65])
{
    struct sha256 *s = sha256_new();
    sha256_put(s, p, n);
    sha256_end(s, hex);
}

static void check_decoded(enum kv_format f, uint32_t d, bool key, const char *expected)
{
    char hex[65];
    static float back[KV_PAGE * KV_HEAD_MAX];
    for (uint32_t i = 0; i < KV_PAGE; i++)
        kv_load(planes[key], f, d, i, key, back + (size_t)i * d);
    for (uint32_t e = 0; e < KV_PAGE * d; e++) /* one zero, one NaN */
        back[e] = back[e] != back[e] ? NAN : back[e] + 0.0f;
    digest(back, KV_PAGE * d * sizeof *back, hex);
    assert_string_equal(hex, expected);
}

static int find(const char *name)
{
    for (int f = 0; f < KV_FORMAT_COUNT; f++)
        if (strcmp(kv_format_name((enum kv_format)f), name) == 0)
            return f;
    return -1;
}

static void test_planes(void **state)
{
    (void)state;
    char name[16], k[65], v[65], back[65], first[128], hex[65];
    unsigned d, bytes, lines = 0;
    FILE *file = fopen(TEST_DATA "/kv/planes.txt", "r");
    assert_non_null(file);
    while (fscanf(file, "%15s %u %u %64s %64s %64s %127s", name, &d, &bytes, k, v, back, first) == 7) {
        int f = find(name);
        lines++;
        assert_int_not_equal(f, -1);
        print_message("%s %u\n", name, d);
        assert_int_equal(kv_format_v_bytes((enum kv_format)f, d), bytes);
        fill((enum kv_format)f, d);
        for (size_t i = 0; i < strlen(first) / 2; i++) {
            char two[3];
            snprintf(two, sizeof two, "%02x", planes[0][i]);
            if (memcmp(two, first + 2 * i, 2) != 0)
                fail_msg("%s %u: byte %zu of the first vector's codes is %s, expected %.2s", name, d, i, two, first + 2 * i);
        }
        digest(planes[0], bytes, hex);
        assert_string_equal(hex, v);
        digest(planes[1], bytes, hex);
        assert_string_equal(hex, k);
        check_decoded((enum kv_format)f, d, false, back);
        check_decoded((enum kv_format)f, d, true, back);
    }
    fclose(file);
    assert_int_equal(lines, KV_FORMAT_COUNT * 6);
}

/* Every position is encoded alone: storing one changes no bit that another decodes. */
static void test_alone(void **state)
{
    (void)state;
    static const uint32_t dims[] = {32, 96, 128};
    for (int f = 0; f < KV_FORMAT_COUNT; f++)
        for (int i = 0; i < 3; i++)
            for (int key = 0; key < 2; key++) {
                float before[KV_PAGE][KV_HEAD_MAX], after[KV_HEAD_MAX];
                uint32_t d = dims[i];
                fill((enum kv_format)f, d);
                for (uint32_t s = 0; s < KV_PAGE; s++)
                    kv_load(planes[key], (enum kv_format)f, d, s, key, before[s]);
                kv_store(planes[key], (enum kv_format)f, d, 13, key, vectors[24]);
                for (uint32_t s = 0; s < KV_PAGE; s++) {
                    kv_load(planes[key], (enum kv_format)f, d, s, key, after);
                    if (s != 13)
                        assert_memory_equal(after, before[s], d * sizeof *after);
                }
            }
}

/* Relative error on normal vectors against what the codes can do at best (a tenth more is allowed). */
static void test_errors(void **state)
{
    (void)state;
    static const struct {
        enum kv_format f;
        double error;
    } most[] = {{KV_F16, 1e-7},    {KV_BF16, 6e-6},    {KV_Q8, 2.9e-5},    {KV_A8G32, 2.2e-5}, {KV_A8G128, 3.4e-5}, {KV_A4G32, 6.2e-3},
                {KV_A4G64, 8.1e-3}, {KV_Q4H, 7.0e-3},   {KV_TQ4, 9.6e-3},   {KV_TQ3, 3.5e-2},   {KV_V4, 9.6e-3},     {KV_V3, 3.5e-2}};
    enum { D = 128, N = 2000 };
    for (size_t i = 0; i < sizeof most / sizeof *most; i++) {
        uint32_t random = 7;
        double error = 0, square = 0;
        for (int n = 0; n < N; n++) {
            float x[D], y[D];
            for (int e = 0; e < D; e++) {
                x[e] = 0;
                for (int k = 0; k < 12; k++) {
                    random = random * 1664525u + 1013904223u;
                    x[e] += (float)(random >> 8) * 0x1p-24f - 0.5f;
                }
            }
            kv_store(planes[0], most[i].f, D, 3, false, x);
            kv_load(planes[0], most[i].f, D, 3, false, y);
            for (int e = 0; e < D; e++) {
                error += pow((double)x[e] - (double)y[e], 2);
                square += (double)x[e] * (double)x[e];
            }
        }
        print_message("%s: %.3g\n", kv_format_name(most[i].f), error / square);
        assert_true(error / square < 1.1 * most[i].error);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_planes), cmocka_unit_test(test_alone), cmocka_unit_test(test_errors)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
