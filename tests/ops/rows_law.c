/* tests/ops/rows_law.c - the first law at the ops: a row of linear is the same bytes whatever rows stand beside it, a row of attention and of
 * recurrent layers whatever spans the step is cut in.
 *
 * usage: ops_rows_law [cuda]        every weight type; 300 rows at once against 1, 3, 8, 9, 17, 40, 70 and 130 of them; for a few types 1,300 rows of wide
 *                                   weights, and 47 of taller ones, with a norm before several of them and before a gate; every case that has spans */
#include "backend_cpu/backend_cpu.h"

#include "law_open.h"
#include "random_weight.h"
#include "row_cases.h"

enum { ALL = 300, MANY = 1300 };

static size_t compared, wrong;

static void run(struct bench *b, const struct weight *w, const struct tensor *x, uint32_t first, uint32_t rows, struct tensor *y)
{
    struct err err = {0};
    struct op_linear op = {.w = w, .x = tensor_rows(*x, first, rows), .y = tensor_rows(*y, first, rows), .alpha = 1};
    must(op_linear(b->d, &op, &err), &err);
    bench_wait(b);
}

static void check_kind(struct bench *b, const struct random_kind *kind, uint32_t rows, uint32_t cols, uint64_t seed)
{
    static const uint32_t cuts[] = {1, 3, 8, 9, 17, 40, 70, 130};
    struct err err = {0};
    struct weight_src src;
    struct weight *w;
    const struct backend *be = device_backend(b->d);
    bench_reset(b, seed);
    random_weight(&src, kind, rows, cols, seed);
    must(be->weight_prepare(b->d, &src, WEIGHT_LINEAR, &w, &err), &err);
    struct tensor x = bench_tensor(b, ALL, cols, 1), whole = bench_tensor(b, ALL, rows, 1), part = bench_tensor(b, ALL, rows, 2);
    run(b, w, &x, 0, ALL, &whole);
    for (size_t c = 0; c < sizeof cuts / sizeof *cuts; c++) {
        for (uint32_t at = 0; at < ALL; at += cuts[c])
            run(b, w, &x, at, cuts[c] < ALL - at ? cuts[c] : ALL - at, &part);
        for (uint32_t r = 0; r < ALL; r++, compared++)
            if (memcmp((float *)whole.data + (size_t)r * whole.stride, (float *)part.data + (size_t)r * part.stride, rows * sizeof(float)) &&
                wrong++ < 20)
                printf("wrong: %s [%u][%u]: row %u differs in steps of %u\n", kind->name, rows, cols, r, cuts[c]);
    }
    be->weight_free(b->d, w);
    random_weight_free(&src);
}

/* Norm, two products and a gated pair, of rows [first, first + n): the fused ops. */
static void run_fused(struct bench *b, struct weight *const w[2], const float *norm, const struct tensor *x, const struct tensor y[3], uint32_t first,
                      uint32_t n)
{
    struct err err = {0};
    struct op_norm_linear linear = {.x = tensor_rows(*x, first, n), .norm_w = norm, .eps = 1e-5f, .n = 2, .w = {w[0], w[1]},
                                    .y = {tensor_rows(y[0], first, n), tensor_rows(y[1], first, n)}};
    struct op_norm_gated gated = {.x = linear.x, .norm_w = norm, .eps = 1e-5f, .gate = w[0], .up = w[1], .act = ACT_SILU, .y = tensor_rows(y[2], first, n)};
    must(device_backend(b->d)->norm_linear(b->d, &linear), &err);
    must(device_backend(b->d)->norm_gated(b->d, &gated), &err);
    bench_wait(b);
}

static void check_wide(struct bench *b, const struct random_kind *kind, uint32_t all, uint32_t rows, uint32_t cols)
{
    static const uint32_t cuts[] = {1, 16, 29, 400};
    struct err err = {0};
    struct weight_src src[2];
    struct weight *w[2];
    struct tensor whole[3], part[3];
    const struct backend *be = device_backend(b->d);
    bench_reset(b, rows);
    for (int i = 0; i < 2; i++) {
        random_weight(&src[i], kind, rows, cols, 7 + i);
        must(be->weight_prepare(b->d, &src[i], WEIGHT_LINEAR, &w[i], &err), &err);
    }
    struct tensor x = bench_tensor(b, all, cols, 1);
    float *norm = bench_floats(b, cols, 1);
    for (int i = 0; i < 3; i++)
        whole[i] = bench_tensor(b, all, rows, 1), part[i] = bench_tensor(b, all, rows, 1);
    run_fused(b, w, norm, &x, whole, 0, all);
    for (size_t c = 0; c < sizeof cuts / sizeof *cuts && cuts[c] < all; c++) {
        for (uint32_t at = 0; at < all; at += cuts[c])
            run_fused(b, w, norm, &x, part, at, cuts[c] < all - at ? cuts[c] : all - at);
        for (int i = 0; i < 3; i++)
            for (uint32_t r = 0; r < all; r++, compared++)
                if (memcmp((float *)whole[i].data + (size_t)r * whole[i].stride, (float *)part[i].data + (size_t)r * part[i].stride, rows * sizeof(float)) &&
                    wrong++ < 20)
                    printf("wrong: %s [%u][%u], fused %d: row %u differs in steps of %u\n", kind->name, rows, cols, i, r, cuts[c]);
    }
    for (int i = 0; i < 2; i++) {
        be->weight_free(b->d, w[i]);
        random_weight_free(&src[i]);
    }
}

static void check_cuts(struct bench *b)
{
    size_t n = row_cases(NULL);
    struct row_case *cases = calloc(n, sizeof *cases);
    struct outcome whole, other;
    row_cases(cases);
    for (size_t i = 0; i < n; i++) {
        row_case_run(b, cases + i, i, &whole);
        for (int v = 0; v < row_case_cuts(cases + i); v++) {
            struct row_case cut = cases[i];
            cut.variant = v;
            row_case_run(b, &cut, i, &other);
            for (int p = 0; p < whole.count; p++, compared++)
                if (memcmp(whole.parts[p].data, other.parts[p].data, whole.parts[p].size_bytes) && wrong++ < 20)
                    printf("wrong: %s (case %zu): part %d differs in spans %d\n", cases[i].what, i, p, v);
            outcome_free(&other);
        }
        outcome_free(&whole);
    }
    free(cases);
}

int main(int argc, char **argv)
{
    static struct random_kind kinds[96];
    bool on_cuda = law_on_cuda(argc, argv);
    struct device_reserve reserve = {.rows_max = on_cuda ? MANY : ALL, .cols_max = 4096, .heads_max = 1, .head_dim_max = 8, .context_max = 256, .logit_rows_max = 1,
                                     .vocab_max = 8};
    struct bench b = {0};
    struct err err = {0};
    law_open(argc, argv, "ops_rows_law", &reserve, &b.d);
    size_t n = random_kinds(kinds, 96);
    for (size_t i = 0; i < n; i++) {
        bool scales = kinds[i].type == DTYPE_MLX && kinds[i].scale_type != DTYPE_BF16; /* types of scales differ before the product only */
        if (!scales)
            check_kind(&b, kinds + i, i % 2 ? 70 : 129, i % 3 == 0 ? 2304 : i % 3 == 1 ? 256 : 1280, 100 + i);
    }
    for (size_t i = 0; i < n && on_cuda; i++)
        if (kinds[i].type == DTYPE_Q4_K || kinds[i].type == DTYPE_Q6_K || kinds[i].type == DTYPE_Q8_0 || kinds[i].type == DTYPE_BF16)
            for (int j = 0; j < 3; j++) /* the last two: weights so tall that few rows take the kernel of many */
                check_wide(&b, kinds + i, j ? 47 : MANY, j == 2 ? 6400 : j ? 2200 : 1100, kinds[i].type == DTYPE_Q8_0 ? 2304 : 1792);
    reserve = row_cases_reserve();
    must(device_backend(b.d)->reserve(b.d, &reserve, &err), &err);
    check_cuts(&b);
    printf("%zu comparisons, %zu wrong\n", compared, wrong);
    bench_reset(&b, 0);
    device_backend(b.d)->device_close(b.d);
    return wrong != 0;
}
