/* tests/ops/rows_levels.c - the row ops, attention and sampling of every CPU level at several thread counts, byte for byte against level
 * ref with one thread; and attn_prepare against its composition, spans cut in other ways against whole ones.
 *
 * usage: ops_rows_levels [long]      long: level ref with 5 threads too, and all cases of attention, else a half */
#include "backend_cpu/backend_cpu.h"
#include "backend_cpu/cpu_level.h"

#include "row_cases.h"
#include "sample_cases.h"

static size_t comparisons, differences;

static void compare(const char *what, const char *level, uint32_t threads, const struct outcome *a, const struct outcome *b)
{
    for (int i = 0; i < a->count; i++) {
        comparisons++;
        if (a->count == b->count && a->parts[i].size_bytes == b->parts[i].size_bytes &&
            memcmp(a->parts[i].data, b->parts[i].data, a->parts[i].size_bytes) == 0)
            continue;
        differences++;
        if (differences > 30)
            continue;
        printf("differs: %s, level %s, %u threads, part %d", what, level, threads, i);
        const float *x = a->parts[i].data, *y = b->parts[i].data;
        for (size_t k = 0; k < a->parts[i].size_bytes / 4; k++)
            if (memcmp(x + k, y + k, 4) != 0) {
                printf(": float %zu is %a, expected %a", k, (double)y[k], (double)x[k]);
                break;
            }
        printf("\n");
    }
}

static struct device *open_device(const char *level, uint32_t threads)
{
    struct err err = {0};
    struct device_config cfg = {.n_threads = threads, .level = level};
    struct device_reserve reserve = row_cases_reserve();
    struct device *d;
    must(backend_cpu.device_open(&cfg, &d, &err), &err);
    must(backend_cpu.reserve(d, &reserve, &err), &err);
    return d;
}

/* The same with the composition of attn_prepare, and with rows cut in other spans. */
static void check_variants(struct device *d, const struct row_case *c, size_t i, const struct outcome *whole)
{
    struct outcome other;
    struct bench b = {.d = d};
    if (c->run == case_store && c->variant) {
        struct backend composed = backend_cpu;
        composed.attn_prepare = NULL;
        struct device_head *head = (struct device_head *)(void *)d;
        head->backend = &composed;
        row_case_run(&b, c, i, &other);
        bench_reset(&b, 0);
        head->backend = &backend_cpu;
        compare("attn_prepare, composed", "ref", 1, whole, &other);
        outcome_free(&other);
    }
    for (int v = 0; (c->run != case_attention || i % 3 == 0) && v < row_case_cuts(c); v++) {
        struct row_case cut = *c;
        cut.variant = v;
        row_case_run(&b, &cut, i, &other);
        compare("other spans", "ref", 1, whole, &other);
        outcome_free(&other);
    }
    bench_reset(&b, 0);
}

static void run_level(const char *level, uint32_t threads, const struct row_case *cases, size_t n, const struct outcome *expected)
{
    struct device *d = open_device(level, threads);
    struct bench b = {.d = d};
    for (size_t i = 0; i < n; i++) {
        struct outcome got;
        row_case_run(&b, cases + i, i, &got);
        compare(cases[i].what, level, threads, expected + i, &got);
        outcome_free(&got);
    }
    for (size_t i = 0; i < SAMPLE_CASES; i++) {
        struct outcome got;
        sample_case_run(&b, i, &got);
        compare("sample_rows", level, threads, expected + n + i, &got);
        outcome_free(&got);
    }
    bench_reset(&b, 0);
    backend_cpu.device_close(d);
}

/* Level ref takes most of the time for attention: a quick run keeps about half of its cases, whatever order the list has them in. */
static size_t keep_some(struct row_case *cases, size_t n)
{
    size_t kept = 0;
    for (uint32_t i = 0; i < n; i++)
        if (cases[i].run != case_attention || i * 2654435761U >> 31)
            cases[kept++] = cases[i];
    return kept;
}

int main(int argc, char **argv)
{
    static const uint32_t threads[] = {1, 2, 5};
    const bool every = argc > 1 && strcmp(argv[1], "long") == 0;
    size_t n = row_cases(NULL);
    struct row_case *cases = calloc(n, sizeof *cases);
    struct outcome *expected = calloc(n + SAMPLE_CASES, sizeof *expected);
    row_cases(cases);
    n = every ? n : keep_some(cases, n);
    struct device *ref = open_device("ref", 1);
    struct bench b = {.d = ref};
    for (size_t i = 0; i < n; i++) {
        row_case_run(&b, cases + i, i, expected + i);
        check_variants(ref, cases + i, i, expected + i);
    }
    for (size_t i = 0; i < SAMPLE_CASES; i++)
        sample_case_run(&b, i, expected + n + i);
    bench_reset(&b, 0);
    backend_cpu.device_close(ref);
    for (int level = 0; level < cpu_level_count(); level++) {
        if (!cpu_level_usable(level)) {
            printf("level %s: skipped, this machine cannot run it\n", cpu_level_name(level));
            continue;
        }
        size_t before = comparisons, wrong = differences;
        /* ref with one thread is what is expected; the slow level with 5 threads only where asked for */
        for (size_t t = level == 0; t < (level == 0 && !every ? 2 : sizeof threads / sizeof *threads); t++)
            run_level(cpu_level_name(level), threads[t], cases, n, expected);
        printf("level %s: %zu comparisons, %zu differences\n", cpu_level_name(level), comparisons - before, differences - wrong);
    }
    printf("%zu comparisons, %zu differences\n", comparisons, differences);
    for (size_t i = 0; i < n + SAMPLE_CASES; i++)
        outcome_free(expected + i);
    free(expected);
    free(cases);
    return differences != 0;
}
