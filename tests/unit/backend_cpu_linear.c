/* Linear layers and row gathers of the CPU backend against the meaning of the file's bytes (weight_src_row), in double. */
#include "backend_cpu/backend_cpu.h"
#include "backend_cpu/cpu_level.h"
#include "../ops/random_weight.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>

enum { KINDS_MAX = 96 };

static struct device *open_device(const char *level, uint32_t threads, uint32_t rows, uint32_t cols)
{
    struct err err = {0};
    struct device *d;
    struct device_config cfg = {.n_threads = threads, .level = level};
    if (backend_cpu.device_open(&cfg, &d, &err))
        fail_msg("%s", err.text);
    struct device_reserve r = {.rows_max = rows, .cols_max = cols};
    if (backend_cpu.reserve(d, &r, &err))
        fail_msg("%s", err.text);
    return d;
}

static void step(struct device *d)
{
    struct err err = {0};
    uint64_t event;
    assert_int_equal(backend_cpu.event_record(d, &event), 0);
    if (backend_cpu.event_wait(d, event, &err))
        fail_msg("%s", err.text);
    assert_true(backend_cpu.event_done(d, event));
}

static void embed_one(const struct random_kind *k, struct device *d, uint32_t rows, uint32_t cols)
{
    struct weight_src src;
    struct weight *w;
    struct err err = {0};
    random_weight(&src, k, rows, cols, 3);
    if (backend_cpu.weight_prepare(d, &src, WEIGHT_EMBED, &w, &err))
        fail_msg("%s", err.text);
    uint32_t *ids = malloc(rows * sizeof *ids);
    for (uint32_t r = 0; r < rows; r++)
        ids[r] = rows - 1 - r;
    float *y = malloc((size_t)rows * cols * sizeof *y), *want = malloc(cols * sizeof *want);
    for (float scale = 1.0f; scale < 40.0f; scale += 32.5f) {
        struct op_embed op = {.w = w, .ids = ids, .y = {y, rows, cols, cols}, .scale = scale};
        assert_int_equal(backend_cpu.embed(d, &op), 0);
        step(d);
        for (uint32_t r = 0; r < rows; r++) {
            weight_src_row(&src, ids[r], want);
            for (uint32_t i = 0; i < cols && scale != 1.0f; i++)
                want[i] *= scale;
            if (memcmp(want, y + (size_t)r * cols, cols * sizeof *want))
                fail_msg("%s: row %u differs from the file's meaning", k->name, ids[r]);
        }
    }
    ids[1] = rows, ids[2] = UINT32_MAX - 1; /* past the table: its first row; UINT32_MAX is no id */
    struct op_embed wrap = {.w = w, .ids = ids, .y = {y, 3, cols, cols}, .scale = 1, .wrap = true};
    assert_int_equal(backend_cpu.embed(d, &wrap), 0);
    step(d);
    weight_src_row(&src, 0, want);
    for (uint32_t r = 1; r < 3; r++)
        assert_memory_equal(want, y + (size_t)r * cols, cols * sizeof *want);
    backend_cpu.weight_free(d, w);
    random_weight_free(&src);
    free(ids), free(y), free(want);
}

static void embed_is_the_files_meaning(void **state)
{
    (void)state;
    struct random_kind kinds[KINDS_MAX];
    size_t n = random_kinds(kinds, KINDS_MAX);
    struct device *d = open_device(NULL, 2, 64, 512);
    for (size_t i = 0; i < n; i++)
        embed_one(&kinds[i], d, 37, 512);
    backend_cpu.device_close(d);
}

/* What int8 activations per 32 stand for. */
static void quantised(const float *x, double *out, uint32_t cols)
{
    for (uint32_t b = 0; b < cols; b += 32) {
        float m = 0;
        for (int i = 0; i < 32; i++)
            m = fabsf(x[b + i]) > m ? fabsf(x[b + i]) : m;
        float s = m / 127.0f, id = 127.0f / m;
        for (int i = 0; i < 32; i++)
            out[b + i] = m == 0 ? 0 : (double)s * (double)rintf(x[b + i] * id);
    }
}

static void linear_one(const struct random_kind *k, struct device *d, uint32_t rows, uint32_t cols, uint32_t tokens)
{
    struct weight_src src;
    struct weight *w;
    struct err err = {0};
    uint64_t s = 9, planned;
    random_weight(&src, k, rows, cols, 3);
    assert_int_equal(backend_cpu.weight_plan(d, &src, WEIGHT_LINEAR, &planned, &err), 0);
    if (backend_cpu.weight_prepare(d, &src, WEIGHT_LINEAR, &w, &err))
        fail_msg("%s", err.text);
    bool plain = k->type == DTYPE_F32 || k->type == DTYPE_F16 || k->type == DTYPE_BF16;
    float *x = malloc((size_t)tokens * cols * 4), *y = malloc((size_t)tokens * rows * 4), *bias = malloc(rows * 4);
    float *wr = malloc(cols * 4);
    double *xq = malloc((size_t)tokens * cols * 8);
    for (size_t i = 0; i < (size_t)tokens * cols; i++)
        x[i] = random_value(&s);
    for (uint32_t i = 0; i < rows; i++)
        bias[i] = random_unit(&s);
    for (uint32_t t = 0; t < tokens; t++)
        quantised(x + (size_t)t * cols, xq + (size_t)t * cols, plain ? 0 : cols);
    for (size_t i = 0; plain && i < (size_t)tokens * cols; i++)
        xq[i] = x[i];
    for (int variant = 0; variant < 3; variant++) {
        for (size_t i = 0; i < (size_t)tokens * rows; i++)
            y[i] = 1.0f;
        struct op_linear op = {w, variant ? bias : NULL, {x, tokens, cols, cols}, {y, tokens, rows, rows}, variant == 2 ? 0.5f : 1.0f,
                               variant == 2};
        assert_int_equal(backend_cpu.linear(d, &op), 0);
        step(d);
        for (uint32_t r = 0; r < rows; r++) {
            weight_src_row(&src, r, wr);
            for (uint32_t t = 0; t < tokens; t++) {
                double sum = 0, size = 0, exact = 0;
                for (uint32_t i = 0; i < cols; i++) {
                    sum += wr[i] * xq[(size_t)t * cols + i];
                    exact += (double)wr[i] * x[(size_t)t * cols + i];
                    size += fabs(wr[i] * xq[(size_t)t * cols + i]);
                }
                double b = variant ? bias[r] : 0;
                double want = variant == 2 ? 1 + 0.5 * (sum + b) : sum + b, far = variant == 2 ? 1 + 0.5 * (exact + b) : exact + b;
                double got = y[(size_t)t * rows + r];
                if (fabs(got - want) > 2e-5 * (size + 1) || fabs(got - far) > 0.05 * (size + 1))
                    fail_msg("%s [%u][%u] token %u row %u variant %d: got %.9g, expected %.9g (sizes %.3g)", k->name, rows, cols, t, r,
                             variant, got, want, size);
            }
        }
    }
    backend_cpu.weight_free(d, w);
    random_weight_free(&src);
    free(x), free(y), free(bias), free(wr), free(xq);
}

static void linear_is_the_files_meaning(void **state)
{
    (void)state;
    struct random_kind kinds[KINDS_MAX];
    size_t n = random_kinds(kinds, KINDS_MAX);
    for (int level = 0; level < cpu_level_count(); level++) {
        if (!cpu_level_usable(level))
            continue;
        struct device *d = open_device(cpu_level_name(level), 2, 64, 768);
        for (size_t i = 0; i < n; i++) {
            linear_one(&kinds[i], d, 37, 256, 1);
            linear_one(&kinds[i], d, 19, 768, 11);
        }
        backend_cpu.device_close(d);
    }
}

/* ---- fusions against their composition, byte for byte ---- */

struct fused {
    uint32_t rows, cols, out[3];
    const struct random_kind *kinds[3];
};

static float *randoms(size_t n, uint64_t seed)
{
    float *f = malloc(n * sizeof *f);
    for (size_t i = 0; i < n; i++)
        f[i] = random_value(&seed);
    return f;
}

static void fusion_one(struct device *d, const struct fused *f)
{
    struct err err = {0};
    struct weight_src src[3];
    struct weight *w[3];
    float *x = randoms((size_t)f->rows * f->cols, 3), *norm_w = randoms(f->cols, 4), *scratch = randoms((size_t)f->rows * f->cols, 5);
    float *y[3], *z[3], *bias = randoms(f->out[0], 6);
    for (int i = 0; i < 3; i++) {
        random_weight(&src[i], f->kinds[i], f->out[i], f->cols, 10 + i);
        assert_int_equal(backend_cpu.weight_prepare(d, &src[i], WEIGHT_LINEAR, &w[i], &err), 0);
        y[i] = randoms((size_t)f->rows * f->out[i], 7);
        z[i] = randoms((size_t)f->rows * f->out[i], 8);
    }
    struct tensor tx = {x, f->rows, f->cols, f->cols}, ts = {scratch, f->rows, f->cols, f->cols};
    struct op_norm norm = {.x = tx, .y = ts, .dim = f->cols, .w = norm_w, .eps = 1e-5f};
    assert_int_equal(backend_cpu.norm(d, &norm), 0);
    struct op_norm_linear nl = {.x = tx, .norm_w = norm_w, .eps = 1e-5f, .n = 3, .bias = {bias}};
    for (int i = 0; i < 3; i++) {
        struct op_linear l = {w[i], i ? NULL : bias, ts, {y[i], f->rows, f->out[i], f->out[i]}, 1.0f, false};
        assert_int_equal(backend_cpu.linear(d, &l), 0);
        nl.w[i] = w[i];
        nl.y[i] = (struct tensor){z[i], f->rows, f->out[i], f->out[i]};
    }
    step(d);
    nl.scratch = ts;
    assert_int_equal(backend_cpu.norm_linear(d, &nl), 0);
    step(d);
    for (int i = 0; i < 3; i++)
        assert_memory_equal(y[i], z[i], (size_t)f->rows * f->out[i] * 4);
    for (int act = 0; act < ACT_COUNT && f->out[1] == f->out[2]; act++) {
        assert_int_equal(backend_cpu.norm(d, &norm), 0);
        for (int i = 1; i < 3; i++) {
            struct op_linear l = {w[i], NULL, ts, {y[i], f->rows, f->out[i], f->out[i]}, 1.0f, false};
            assert_int_equal(backend_cpu.linear(d, &l), 0);
        }
        struct tensor t1 = {y[1], f->rows, f->out[1], f->out[1]}, t2 = {y[2], f->rows, f->out[2], f->out[2]};
        struct op_gated gated = {t1, t2, t1, (enum act)act};
        assert_int_equal(backend_cpu.gated(d, &gated), 0);
        step(d);
        struct op_norm_gated ng = {.x = tx, .norm_w = norm_w, .eps = 1e-5f, .gate = w[1], .up = w[2], .act = (enum act)act,
                                   .y = {z[1], f->rows, f->out[1], f->out[1]}, .scratch = ts, .scratch_gate = t1, .scratch_up = t2};
        assert_int_equal(backend_cpu.norm_gated(d, &ng), 0);
        step(d);
        assert_memory_equal(y[1], z[1], (size_t)f->rows * f->out[1] * 4);
    }
    for (int i = 0; i < 3; i++) {
        backend_cpu.weight_free(d, w[i]);
        random_weight_free(&src[i]);
        free(y[i]), free(z[i]);
    }
    free(x), free(norm_w), free(scratch), free(bias);
}

static void fusions_are_their_composition(void **state)
{
    (void)state;
    static const struct random_kind q4 = {.type = DTYPE_Q4_1, .name = "q4_1"}, q6 = {.type = DTYPE_Q6_K, .name = "q6_k"},
                                    b16 = {.type = DTYPE_BF16, .name = "bf16"}, q8 = {.type = DTYPE_Q8_0, .name = "q8_0"};
    static const uint32_t rows[] = {1, 2, 3, 8, 17, 64, 200};
    for (uint32_t threads = 1; threads <= 3; threads++) {
        struct device *d = open_device(NULL, threads, 200, 1024);
        for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
            fusion_one(d, &(struct fused){rows[i], 512, {100, 48, 48}, {&q4, &q6, &q8}});
            fusion_one(d, &(struct fused){rows[i], 1024, {16, 50, 50}, {&q4, &b16, &q8}});
            fusion_one(d, &(struct fused){rows[i], 256, {33, 20, 20}, {&b16, &b16, &b16}});
        }
        backend_cpu.device_close(d);
    }
}

/* Types without a layout of their own are held as f16 or f32: embed shows that exactly. */
static void other_types_are_converted(void **state)
{
    (void)state;
    static const enum dtype types[] = {DTYPE_TQ1_0, DTYPE_TQ2_0, DTYPE_IQ2_XXS, DTYPE_IQ2_XS, DTYPE_IQ2_S,
                                       DTYPE_IQ3_XXS, DTYPE_IQ3_S, DTYPE_IQ1_S, DTYPE_I8, DTYPE_U8, DTYPE_I16};
    struct device *d = open_device(NULL, 2, 64, 512);
    for (size_t i = 0; i < sizeof types / sizeof types[0]; i++) {
        struct random_kind k = {.type = types[i]};
        snprintf(k.name, sizeof k.name, "%s", dtype_name(types[i]));
        embed_one(&k, d, 18, 512);
    }
    backend_cpu.device_close(d);
}

static void bad_weights_are_refused(void **state)
{
    (void)state;
    struct device *d = open_device(NULL, 1, 8, 512);
    struct random_kind k = {.type = DTYPE_Q4_0, .name = "bad"};
    struct weight_src src;
    struct weight *w;
    struct err err = {0};
    uint64_t n;
    random_weight(&src, &k, 16, 64, 1);
    unsigned char *data = (unsigned char *)(uintptr_t)src.data;
    data[19] = 0x7c, data[18] = 0; /* the second block's scale: infinite */
    assert_int_equal(backend_cpu.weight_prepare(d, &src, WEIGHT_LINEAR, &w, &err), 0);
    assert_int_equal(backend_cpu.event_record(d, &n), 0);
    assert_int_equal(backend_cpu.event_wait(d, n, &err), ERR_FORMAT);
    assert_non_null(strstr(err.text, "'bad' (Q4_0): row 0, block 1"));
    backend_cpu.weight_free(d, w);
    src.cols = 48;
    err = (struct err){0};
    assert_int_equal(backend_cpu.weight_plan(d, &src, WEIGHT_LINEAR, &n, &err), ERR_FORMAT);
    src.rows = 0;
    assert_int_equal(backend_cpu.weight_plan(d, &src, WEIGHT_LINEAR, &n, NULL), ERR_FORMAT);
    random_weight_free(&src);
    backend_cpu.device_close(d);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(embed_is_the_files_meaning),
        cmocka_unit_test(linear_is_the_files_meaning),
        cmocka_unit_test(fusions_are_their_composition),
        cmocka_unit_test(other_types_are_converted),
        cmocka_unit_test(bad_weights_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
