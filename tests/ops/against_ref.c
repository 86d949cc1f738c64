/* tests/ops/against_ref.c - every op of a backend against backend_ref, by the tolerance each case names: an independent, plain f32
 * implementation with f64 sums.  Ids and stored bytes must be equal.  Linear and embed: every weight type, odd shapes.
 * Prints the largest error of each kind of case.  An op that the backend refuses is counted apart, and is a fault where it has all of them.
 *
 * usage: ops_against_ref [cuda [weights]]        weights: linear and embed alone; cuda has tolerances of its own (docs/arithmetic.md, "Tolerances") */
#include "backend_cpu/backend_cpu.h"
#include "backend_ref/backend_ref.h"

#include "other_backend.h"
#include "random_weight.h"
#include "row_cases.h"
#include "sample_cases.h"

static size_t compared, wrong, refused;
static bool on_cuda;

/* cases by the beginning of their name, where cuda may err by more than the case says; docs/arithmetic.md has the reasons */
static const struct {
    const char *what;
    double tolerance;
} cuda_tolerances[] = {{"attention", 5e-3}, {"linear", CUDA_LINEAR}};

/* largest error so far of each kind of case */
static struct {
    const char *what;
    double error, tolerance;
    size_t count;
} worst[64];
static int worst_count;

static void note(const char *what, double error, double tolerance)
{
    int i = 0;
    while (i < worst_count && strcmp(worst[i].what, what) != 0)
        i++;
    if (i == worst_count)
        worst[worst_count++].what = what;
    worst[i].count++;
    worst[i].tolerance = tolerance > worst[i].tolerance ? tolerance : worst[i].tolerance;
    worst[i].error = error > worst[i].error ? error : worst[i].error;
}

static double float_error(const float *a, const float *b, size_t n)
{
    double most = 1, error = 0;
    for (size_t i = 0; i < n; i++)
        if (isfinite(b[i]) && fabs((double)b[i]) > most)
            most = fabs((double)b[i]);
    for (size_t i = 0; i < n; i++) {
        if (a[i] == b[i])
            continue;
        if (!isfinite(a[i]) || !isfinite(b[i]))
            return INFINITY;
        double e = fabs((double)a[i] - (double)b[i]) / most;
        error = e > error ? e : error;
    }
    return error;
}

static void check(const char *what, size_t index, double tolerance, const struct outcome *got, const struct outcome *expected)
{
    for (int i = 0; i < expected->count; i++) {
        const struct part *a = got->parts + i, *b = expected->parts + i;
        double error = a->kind == PART_FLOATS ? float_error(a->data, b->data, b->size_bytes / 4)
                       : memcmp(a->data, b->data, b->size_bytes) ? INFINITY : 0;
        compared++;
        note(what, error, tolerance);
        if (error <= tolerance)
            continue;
        if (++wrong < 30) {
            printf("wrong: %s (case %zu), part %d: error %g, tolerance %g", what, index, i, error, tolerance);
            for (size_t k = 0; k < b->size_bytes / 4; k++)
                if (((uint32_t *)a->data)[k] != ((uint32_t *)b->data)[k] && (a->kind == PART_BYTES)) {
                    printf(": word %zu is %u, expected %u", k, ((uint32_t *)a->data)[k], ((uint32_t *)b->data)[k]);
                    break;
                }
            printf("\n");
        }
    }
}

/* The other side's answer to compare, or a refusal to count. */
static bool answered(const char *what, const struct bench *b)
{
    if (!b->refused.code)
        return true;
    if (refused++ < 30)
        printf("refused: %s: %s\n", what, b->refused.text);
    return false;
}

static double tolerance_of(const char *what, double own)
{
    for (size_t i = 0; on_cuda && i < sizeof cuda_tolerances / sizeof *cuda_tolerances; i++)
        if (strncmp(what, cuda_tolerances[i].what, strlen(cuda_tolerances[i].what)) == 0)
            return cuda_tolerances[i].tolerance;
    return own;
}

static struct device *open_device(const struct backend *backend, const char *level)
{
    struct err err = {0};
    struct device_config cfg = {.n_threads = 2, .level = level};
    struct device_reserve reserve = row_cases_reserve();
    struct device *d;
    must(backend->device_open(&cfg, &d, &err), &err);
    must(backend->reserve(d, &reserve, &err), &err);
    return d;
}

/* ---- linear and embed ---- */

/* Largest error over the largest value. */
static double relative_error(const float *a, const float *b, size_t n)
{
    double most = 0, error = 0;
    for (size_t i = 0; i < n; i++) {
        most = fmax(most, fabs((double)b[i]));
        error = isfinite(a[i]) ? fmax(error, fabs((double)a[i] - (double)b[i])) : INFINITY;
    }
    return most > 0 ? error / most : error;
}

enum { WEIGHT_ROWS = 4096 /* so many that of some the largest scale lies just below a power of two, where f16 rounds it up */ };

struct product {
    float linear[3 * WEIGHT_ROWS], embed[6 * 1024];
};

static void weight_run(struct bench *b, const struct weight_src *src, struct product *out)
{
    struct err err = {0};
    const struct backend *be = device_backend(b->d);
    struct weight *w;
    bench_reset(b, src->cols * 31 + src->rows);
    must(be->weight_prepare(b->d, src, WEIGHT_LINEAR | WEIGHT_EMBED, &w, &err), &err);
    float *x = bench_new(b, 3 * src->cols * sizeof *x), *bias = bench_floats(b, src->rows, 0.01f), *y = bench_floats(b, 3 * src->rows, 0.01f);
    for (uint32_t i = 0; i < 3 * src->cols; i++)
        x[i] = (float)(int32_t)bench_u32(b) / 2147483648.0f; /* even: what int8 activations cost is then the same in every block */
    struct op_linear linear = {.w = w, .bias = bias, .x = {x, 3, src->cols, src->cols}, .y = {y, 3, src->rows, src->rows}, .alpha = 0.5f,
                               .add = true};
    tried(b, op_linear(b->d, &linear, &err), &err);
    uint32_t *ids = bench_new(b, 6 * sizeof *ids);
    ids[0] = src->rows - 1, ids[1] = 0, ids[2] = src->rows / 2, ids[3] = src->rows, ids[4] = 3 * src->rows + 5, ids[5] = UINT32_MAX;
    float *e = bench_new(b, 6 * src->cols * sizeof *e);
    struct op_embed embed = {.w = w, .ids = ids, .y = {e, 3, src->cols, src->cols}, .scale = 3};
    struct op_embed wrapped = {.w = w, .ids = ids + 3, .y = {e + 3 * src->cols, 3, src->cols, src->cols}, .scale = 0.7f, .wrap = true};
    tried(b, op_embed(b->d, &embed, &err), &err);
    tried(b, op_embed(b->d, &wrapped, &err), &err);
    bench_wait(b);
    memset(out, 0, sizeof *out);
    memcpy(out->linear, y, 3 * src->rows * sizeof *y);
    memcpy(out->embed, e, 6 * src->cols * sizeof *e);
    be->weight_free(b->d, w);
}

static void check_weights(struct bench *cpu, struct bench *ref)
{
    static const uint32_t rows[] = {1, 16, 33, 70, WEIGHT_ROWS};
    static struct random_kind kinds[96];
    size_t n = random_kinds(kinds, 96);
    for (size_t i = 0; i < n; i++)
        for (size_t r = 0; r < sizeof rows / sizeof *rows; r++) {
            static struct product a, b;
            struct weight_src src;
            uint32_t step = random_kind_step(kinds + i), cols = step * (r == 1 || rows[r] == WEIGHT_ROWS ? 1 : step > 128 ? 2 : 256 / step + (uint32_t)r);
            bool plain = !on_cuda && (kinds[i].type == DTYPE_F32 || kinds[i].type == DTYPE_F16 || kinds[i].type == DTYPE_BF16);
            random_weight(&src, kinds + i, rows[r], cols, i * 7 + r);
            weight_run(cpu, &src, &a);
            weight_run(ref, &src, &b);
            if (!answered(kinds[i].name, cpu)) {
                random_weight_free(&src);
                continue;
            }
            double error = relative_error(a.linear, b.linear, 3 * rows[r]), tolerance = tolerance_of("linear", plain ? 3e-6 : 2e-2);
            note(plain ? "linear, float" : "linear, quantised", error, tolerance);
            double error_embed = relative_error(a.embed, b.embed, 6 * cols);
            note("embed", error_embed, 1e-6);
            compared += 2;
            if (error > tolerance || error_embed > 1e-6) {
                wrong++;
                printf("wrong: %s [%u][%u]: linear error %g, embed error %g\n", kinds[i].name, rows[r], cols, error, error_embed);
            }
            random_weight_free(&src);
        }
}

int main(int argc, char **argv)
{
    on_cuda = argc > 1 && strcmp(argv[1], "cuda") == 0;
    const struct backend *other = on_cuda ? cuda : &backend_cpu;
    if (!other || (argc > 1 && !on_cuda)) {
        fprintf(stderr, "usage: ops_against_ref [cuda [weights]]        (cuda: where it was built)\n");
        return 2;
    }
    bool weights = argc > 2 && strcmp(argv[2], "weights") == 0;
    size_t n = row_cases(NULL);
    struct row_case *cases = calloc(n, sizeof *cases);
    row_cases(cases);
    struct bench cpu = {.d = open_device(other, on_cuda ? "host" : NULL)}, ref = {.d = open_device(&backend_ref, NULL)};
    struct outcome a, b;
    for (size_t i = 0; i < n && !weights; i++) {
        row_case_run(&cpu, cases + i, i, &a);
        row_case_run(&ref, cases + i, i, &b);
        if (answered(cases[i].what, &cpu))
            check(cases[i].what, i, tolerance_of(cases[i].what, cases[i].tolerance), &a, &b);
        outcome_free(&a);
        outcome_free(&b);
    }
    for (size_t i = 0; i < SAMPLE_CASES && !weights; i++) {
        sample_case_run(&cpu, i, &a);
        sample_case_run(&ref, i, &b);
        if (answered("sample_rows", &cpu))
            check("sample_rows", i, tolerance_of("sample_rows", 1e-6), &a, &b);
        outcome_free(&a);
        outcome_free(&b);
    }
    check_weights(&cpu, &ref);
    for (int i = 0; i < worst_count; i++)
        printf("%-28s %5zu parts, largest error %.3g, tolerance %.3g\n", worst[i].what, worst[i].count, worst[i].error, worst[i].tolerance);
    printf("%zu cases refused\n%zu comparisons, %zu wrong\n", refused, compared, wrong);
    bench_reset(&cpu, 0);
    bench_reset(&ref, 0);
    other->device_close(cpu.d);
    backend_ref.device_close(ref.d);
    free(cases);
    return wrong != 0 || (refused && !on_cuda);
}
