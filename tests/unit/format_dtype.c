/* Element types against the reference packages' values (tests/data/dtype, written by tests/fixtures/dtype_fixtures.py): bit for
 * bit, NaN counted as equal to NaN. */
#include "base/buf.h"
#include "base/file.h"
#include "base/mem.h"
#include "format/dtype.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

struct reader {
    struct buf b;
    size_t at;
};

static void reader_open(struct reader *r, const char *path)
{
    struct err err = {0};
    *r = (struct reader){0};
    if (file_read(&r->b, path, 1 << 24, &err))
        fail_msg("%s", err.text);
}

static const void *take(struct reader *r, size_t n)
{
    assert_true(n <= r->b.n - r->at);
    r->at += n;
    return r->b.p + r->at - n;
}

static uint32_t take_u32(struct reader *r)
{
    uint32_t v;
    memcpy(&v, take(r, 4), 4);
    return v;
}

static uint64_t take_u64(struct reader *r)
{
    uint64_t v;
    memcpy(&v, take(r, 8), 8);
    return v;
}

static enum dtype take_type(struct reader *r)
{
    uint8_t n = *(const uint8_t *)take(r, 1);
    const char *name = take(r, n);
    for (int t = 0; t < DTYPE_COUNT; t++)
        if (strlen(dtype_name((enum dtype)t)) == n && memcmp(dtype_name((enum dtype)t), name, n) == 0)
            return (enum dtype)t;
    fail_msg("no type %.*s", n, name);
    return DTYPE_COUNT;
}

static uint32_t bits_of(float f)
{
    uint32_t u;
    memcpy(&u, &f, 4);
    return (u & 0x7FFFFFFF) > 0x7F800000 ? 0x7FC00000 : u;
}

static void same(const char *what, uint64_t i, float got, const uint8_t *expected)
{
    uint32_t want;
    memcpy(&want, expected + 4 * i, 4);
    if (bits_of(got) != want)
        fail_msg("%s: value %llu: expected %08x, got %08x (%g)", what, (unsigned long long)i, want, bits_of(got), (double)got);
}

static uint64_t fnv(const float *v, size_t n)
{
    uint64_t h = 0xCBF29CE484222325u;
    for (size_t i = 0; i < n; i++)
        h = (h ^ bits_of(v[i])) * 0x100000001B3u;
    return h;
}

static void large_set(enum dtype t, uint32_t len, uint32_t size, uint64_t seed, uint32_t count, uint64_t want)
{
    size_t words = ((size_t)count * size + 7) / 8;
    uint64_t *raw = malloc(words * 8);
    float *v = malloc((size_t)count * len * 4);
    for (size_t i = 0; i < words; i++) {
        seed ^= seed >> 12, seed ^= seed << 25, seed ^= seed >> 27;
        raw[i] = seed * 0x2545F4914F6CDD1Du;
    }
    dtype_dequant(t, raw, v, (size_t)count * len);
    if (fnv(v, (size_t)count * len) != want)
        fail_msg("%s: hash of the large set differs", dtype_name(t));
    free(v);
    free(raw);
}

static void test_blocks(void **state)
{
    struct reader r;
    (void)state;
    reader_open(&r, TEST_DATA "/dtype/blocks.bin");
    int types = 0;
    for (; r.at < r.b.n; types++) {
        enum dtype t = take_type(&r);
        uint32_t len = take_u32(&r), size = take_u32(&r), count = take_u32(&r);
        assert_int_equal(len, dtype_block_len(t));
        assert_int_equal(size, dtype_block_bytes(t));
        const uint8_t *raw = take(&r, (size_t)size * count), *expected = take(&r, (size_t)len * count * 4);
        /* an exact heap copy at an odd address: overruns and alignment are the sanitizer's to see */
        uint8_t *odd = malloc((size_t)size * count + 1);
        float *v = malloc((size_t)len * count * 4);
        memcpy(odd + 1, raw, (size_t)size * count);
        dtype_dequant(t, odd + 1, v, (size_t)len * count);
        for (uint64_t i = 0; i < (uint64_t)len * count; i++)
            same(dtype_name(t), i, v[i], expected);
        free(v);
        free(odd);
        uint64_t seed = take_u64(&r);
        uint32_t blocks = take_u32(&r);
        large_set(t, len, size, seed, blocks, take_u64(&r));
    }
    assert_int_equal(types, DTYPE_COUNT - 1); /* all but MLX, which has its own file */
    buf_free(&r.b);
}

/* mlx computes in the scales' type: one rounding of the product, one of the sum. */
static float round_to(enum dtype t, float f)
{
    uint32_t u;
    if (t == DTYPE_F16)
        return dtype_f16_to_f32(dtype_f32_to_f16(f));
    if (t == DTYPE_F32)
        return f;
    memcpy(&u, &f, 4);
    u = (u + 0x7FFF + (u >> 16 & 1)) & 0xFFFF0000u;
    memcpy(&f, &u, 4);
    return f;
}

static uint64_t stream_code(const uint8_t *row, uint64_t i, uint32_t bits)
{
    uint64_t v = 0;
    for (uint32_t b = 0; b < bits; b++) /* bit by bit: the plainest reading of the layout */
        v |= (uint64_t)(row[(i * bits + b) / 8] >> ((i * bits + b) % 8) & 1) << b;
    return v;
}

static float mlx_scale(const struct weight_src *w, const void *p, size_t i)
{
    float f;
    dtype_dequant(w->scale_type, (const uint8_t *)p + i * dtype_block_bytes(w->scale_type), &f, 1);
    return f;
}

static void mlx_case(const struct weight_src *w, const uint8_t *expected)
{
    char what[64];
    float *v = malloc(4 * w->cols);
    snprintf(what, sizeof what, "MLX %u bits, group %u, %s", w->bits, w->group, dtype_name(w->scale_type));
    for (uint32_t row = 0; row < w->rows; row++) {
        weight_src_row(w, row, v);
        for (uint32_t i = 0; i < w->cols; i++) {
            size_t g = (size_t)row * (w->cols / w->group) + i / w->group;
            float q = (float)stream_code((const uint8_t *)w->data + row * w->row_bytes, i, w->bits);
            float scale = mlx_scale(w, w->scales, g), bias = mlx_scale(w, w->biases, g), product = q * scale;
            assert_true(bits_of(v[i]) == bits_of(product + bias)); /* ours: f32 */
            same(what, (uint64_t)row * w->cols + i, round_to(w->scale_type, round_to(w->scale_type, product) + bias), expected);
        }
    }
    struct err err = {0};
    assert_int_equal(dtype_check_scales(w, &err), 0);
    free(v);
}

static void test_mlx(void **state)
{
    struct reader r;
    int cases = 0;
    (void)state;
    reader_open(&r, TEST_DATA "/dtype/mlx.bin");
    for (; r.at < r.b.n; cases++) {
        struct weight_src w = {.name = "w", .type = DTYPE_MLX, .scale_type = take_type(&r)};
        w.bits = take_u32(&r), w.group = take_u32(&r), w.rows = take_u32(&r), w.cols = take_u32(&r);
        w.row_bytes = (uint64_t)w.cols * w.bits / 8;
        size_t scales = (size_t)w.rows * (w.cols / w.group) * dtype_block_bytes(w.scale_type);
        uint8_t *codes = malloc(w.rows * w.row_bytes);
        memcpy(codes, take(&r, w.rows * w.row_bytes), w.rows * w.row_bytes);
        w.data = codes;
        w.scales = take(&r, scales);
        w.biases = take(&r, scales);
        mlx_case(&w, take(&r, (size_t)w.rows * w.cols * 4));
        free(codes);
    }
    assert_int_equal(cases, 6 * 3 * 3);
    buf_free(&r.b);
}

static void test_gptoss(void **state)
{
    struct reader r;
    (void)state;
    reader_open(&r, TEST_DATA "/dtype/gptoss.bin");
    struct weight_src w = {.name = "w", .type = DTYPE_MXFP4};
    w.rows = take_u32(&r), w.cols = take_u32(&r);
    w.row_bytes = w.cols / 2;
    w.data = take(&r, w.rows * w.row_bytes);
    w.scales = take(&r, (size_t)w.rows * w.cols / 32);
    const uint8_t *expected = take(&r, (size_t)w.rows * w.cols * 4);
    float v[192];
    assert_true(w.cols <= 192);
    for (uint32_t row = 0; row < w.rows; row++) {
        weight_src_row(&w, row, v);
        for (uint32_t i = 0; i < w.cols; i++)
            same("gpt-oss", (uint64_t)row * w.cols + i, v[i], expected);
    }
    buf_free(&r.b);
}

static void test_f16(void **state)
{
    struct reader r;
    (void)state;
    reader_open(&r, TEST_DATA "/dtype/f16.bin");
    uint32_t n = take_u32(&r);
    const uint8_t *from = take(&r, 4 * n), *to = take(&r, 2 * n);
    for (uint32_t i = 0; i < n; i++) {
        float f;
        uint16_t h;
        memcpy(&f, from + 4 * i, 4);
        memcpy(&h, to + 2 * i, 2);
        if (dtype_f32_to_f16(f) != h)
            fail_msg("%a: expected %04x, got %04x", (double)f, h, dtype_f32_to_f16(f));
    }
    for (uint32_t h = 0; h < 65536; h++) { /* every half is its own image; NaNs become quiet */
        bool nan = (h & 0x7FFF) > 0x7C00;
        assert_int_equal(dtype_f32_to_f16(dtype_f16_to_f32((uint16_t)h)), nan ? h | 0x200 : h);
        assert_true(nan == isnan(dtype_f16_to_f32((uint16_t)h)));
    }
    buf_free(&r.b);
}

static void test_names(void **state)
{
    uint64_t bytes = 5;
    (void)state;
    assert_int_equal(dtype_from_gguf(39), DTYPE_MXFP4);
    assert_int_equal(dtype_from_gguf(30), DTYPE_BF16);
    assert_int_equal(dtype_from_gguf(4), -1);
    assert_int_equal(dtype_from_gguf(UINT32_MAX), -1);
    assert_int_equal(dtype_from_safetensors("BF16", 4), DTYPE_BF16);
    assert_int_equal(dtype_from_safetensors("BF1", 3), -1);
    assert_int_equal(dtype_from_safetensors("Q4_0", 4), -1);
    assert_false(dtype_row_bytes(DTYPE_Q4_K, 128, &bytes));
    assert_true(dtype_row_bytes(DTYPE_Q4_K, 512, &bytes) && bytes == 288);
    assert_false(dtype_row_bytes(DTYPE_F64, UINT64_MAX, &bytes));
    assert_false(dtype_row_bytes(DTYPE_MLX, 64, &bytes));
}

/* Every block that the reference dequantises to a NaN or an infinity is refused, every other is not, and the place is named. */
static void test_check_scales(void **state)
{
    struct reader r;
    int refused = 0;
    (void)state;
    reader_open(&r, TEST_DATA "/dtype/blocks.bin");
    while (r.at < r.b.n) {
        enum dtype t = take_type(&r);
        uint32_t len = take_u32(&r), size = take_u32(&r), count = take_u32(&r);
        const uint8_t *raw = take(&r, (size_t)size * count), *expected = take(&r, (size_t)len * count * 4);
        take(&r, 20);
        for (uint32_t b = 0; b < count; b++) {
            struct weight_src w = {.name = "blk", .type = t, .rows = 2, .cols = 2 * len, .row_bytes = 2 * size};
            struct err err = {0};
            uint8_t *data = calloc(4, size);
            memcpy(data + 3 * size, raw + (size_t)b * size, size); /* row 1, block 1 */
            w.data = data;
            bool finite = true;
            for (uint32_t i = 0; i < len; i++) {
                uint32_t u;
                memcpy(&u, expected + 4 * ((size_t)b * len + i), 4);
                finite = finite && (u & 0x7F800000) != 0x7F800000;
            }
            int rc = dtype_check_scales(&w, &err);
            if (len > 1 && !finite) {
                assert_int_equal(rc, ERR_FORMAT);
                assert_non_null(strstr(err.text, "'blk'"));
                assert_non_null(strstr(err.text, "row 1, block 1"));
                refused++;
            } else if (t == DTYPE_MXFP4 || t == DTYPE_Q8_K || t == DTYPE_Q8_1) {
                (void)rc; /* these may refuse a scale whose codes happen to stay finite */
            } else if (rc) {
                fail_msg("%s block %u: %s", dtype_name(t), b, err.text);
            }
            free(data);
        }
    }
    assert_true(refused > 50);
    buf_free(&r.b);
}

static void test_check_scales_wide(void **state)
{
    float scales[4] = {1, 1, 1, 1}, biases[4] = {0, 0, 0, 0};
    uint8_t codes[64] = {0}, e8m0[4] = {127, 252, 0, 127}, q8k[292] = {0};
    struct weight_src w = {.name = "w",
                           .type = DTYPE_MLX,
                           .rows = 2,
                           .cols = 64,
                           .data = codes,
                           .row_bytes = 32,
                           .bits = 4,
                           .group = 32,
                           .scale_type = DTYPE_F32,
                           .scales = scales,
                           .biases = biases};
    (void)state;
    assert_int_equal(dtype_check_scales(&w, NULL), 0);
    for (int i = 0; i < 4; i++) {
        scales[i] = NAN;
        assert_int_equal(dtype_check_scales(&w, NULL), ERR_FORMAT);
        scales[i] = 3e38f; /* finite itself, but 15 of it are not */
        assert_int_equal(dtype_check_scales(&w, NULL), ERR_FORMAT);
        scales[i] = 1;
        biases[i] = -INFINITY;
        assert_int_equal(dtype_check_scales(&w, NULL), ERR_FORMAT);
        biases[i] = 0;
    }
    struct weight_src m = {
        .name = "m", .type = DTYPE_MXFP4, .rows = 2, .cols = 64, .data = codes, .row_bytes = 32, .scales = e8m0};
    assert_int_equal(dtype_check_scales(&m, NULL), 0);
    e8m0[3] = 255;
    assert_int_equal(dtype_check_scales(&m, NULL), ERR_FORMAT);
    e8m0[3] = 253;
    assert_int_equal(dtype_check_scales(&m, NULL), ERR_FORMAT);
    struct weight_src k = {.name = "k", .type = DTYPE_Q8_K, .rows = 1, .cols = 256, .data = q8k, .row_bytes = 292};
    memcpy(q8k, &(float){3e38f}, 4);
    assert_int_equal(dtype_check_scales(&k, NULL), ERR_FORMAT);
    memcpy(q8k, &(float){1e36f}, 4);
    assert_int_equal(dtype_check_scales(&k, NULL), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_blocks),
        cmocka_unit_test(test_mlx),
        cmocka_unit_test(test_gptoss),
        cmocka_unit_test(test_f16),
        cmocka_unit_test(test_names),
        cmocka_unit_test(test_check_scales),
        cmocka_unit_test(test_check_scales_wide),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
