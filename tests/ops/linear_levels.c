/* Every CPU level this machine can run against level ref, byte for byte: all formats, odd shapes, row and thread counts.
 *
 * Usage: ops_linear_levels [quick].  Prints levels it skips, the number of comparisons and of differences; exits 1 if any differ. */
#include "backend_cpu/backend_cpu.h"
#include "backend_cpu/cpu_level.h"
#include "random_weight.h"

#include "base/thread.h"

#include <math.h>

enum { KINDS_MAX = 96, LEVELS_MAX = 8, ROWS_MAX = 600 };

static unsigned long comparisons, differences;

static struct device *open_device(const char *level, uint32_t threads, uint32_t rows, uint32_t cols)
{
    struct err err = {0};
    struct device *d;
    struct device_config cfg = {.n_threads = threads, .level = level};
    struct device_reserve r = {.rows_max = rows, .cols_max = cols};
    if (backend_cpu.device_open(&cfg, &d, &err) || backend_cpu.reserve(d, &r, &err)) {
        fprintf(stderr, "%s\n", err.text);
        exit(2);
    }
    return d;
}

static void check(int rc, const struct err *err)
{
    if (rc) {
        fprintf(stderr, "failed: %d %s\n", rc, err->text);
        exit(2);
    }
}

static void linear(struct device *d, const struct weight_src *src, const float *x, uint32_t tokens, float *y)
{
    struct err err = {0};
    struct weight *w;
    uint64_t event;
    check(backend_cpu.weight_prepare(d, src, WEIGHT_LINEAR, &w, &err), &err);
    struct op_linear op = {w, NULL, {(void *)(uintptr_t)x, tokens, src->cols, src->cols}, {y, tokens, src->rows, src->rows}, 1.0f, false};
    check(backend_cpu.linear(d, &op), &err);
    check(backend_cpu.event_record(d, &event), &err);
    check(backend_cpu.event_wait(d, event, &err), &err);
    backend_cpu.weight_free(d, w);
}

/* The bits of a NaN are not defined, that it is one is. */
static void plain_nans(float *y, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (y[i] != y[i])
            y[i] = (float)NAN;
}

/* Activations of a kind: 0 ordinary, 1 tiny and zero blocks, 2 extreme (all at the maximum), 3 some not finite. */
static void make_x(float *x, uint32_t tokens, uint32_t cols, int kind, uint64_t seed)
{
    uint64_t s = seed;
    for (size_t i = 0; i < (size_t)tokens * cols; i++) {
        x[i] = random_value(&s);
        if (kind == 1)
            x[i] = i / 32 % 3 == 0 ? 0.0f : i / 32 % 3 == 1 ? x[i] * 1e-31f : x[i] * 1e-20f;
        if (kind == 2)
            x[i] = random_u32(&s) & 1 ? 3.0f : -3.0f;
        if (kind == 3 && i % 997 == 500)
            x[i] = i % 2 ? (float)INFINITY : (float)NAN;
    }
}

static void extreme_codes(struct weight_src *src, uint64_t seed) /* bytes of all ones or zeros: the largest sums */
{
    uint64_t s = seed;
    uint32_t block = src->type == DTYPE_MLX ? 1 : dtype_block_bytes(src->type);
    if (src->type != DTYPE_Q8_0 && src->type != DTYPE_MLX && src->type != DTYPE_MXFP4)
        return;
    unsigned char *data = (unsigned char *)(uintptr_t)src->data;
    for (size_t i = 0; i < src->rows * src->row_bytes; i++)
        if (block == 1 || i % block > 1)
            data[i] = src->type == DTYPE_Q8_0 ? (random_u32(&s) & 1 ? 0x80 : 0x7f) : (random_u32(&s) & 1 ? 0xff : 0);
}

static void compare(const struct random_kind *k, struct device *const *devices, char names[][48], int count, uint32_t rows, uint32_t cols,
                    uint32_t tokens, int kind)
{
    struct weight_src src;
    random_weight(&src, k, rows, cols, rows * 31 + cols + tokens);
    if (kind == 2)
        extreme_codes(&src, 3);
    size_t bytes = (size_t)tokens * rows * 4;
    float *x = malloc((size_t)tokens * cols * 4), *want = malloc(bytes), *got = malloc(bytes);
    make_x(x, tokens, cols, kind, cols + tokens);
    linear(devices[0], &src, x, tokens, want);
    plain_nans(want, (size_t)tokens * rows);
    for (int i = 1; i < count; i++) {
        memset(got, 0xee, bytes);
        linear(devices[i], &src, x, tokens, got);
        plain_nans(got, (size_t)tokens * rows);
        comparisons++;
        if (memcmp(want, got, bytes) == 0)
            continue;
        if (differences++ < 20)
            for (size_t j = 0; j < (size_t)tokens * rows; j++)
                if (memcmp(want + j, got + j, 4)) {
                    printf("%s: %s [%u][%u], %u rows, activations %d: row %zu output %zu: ref %a, got %a\n", names[i], k->name, rows, cols,
                           tokens, kind, j / rows, j % rows, want[j], got[j]);
                    break;
                }
    }
    free(x), free(want), free(got);
    random_weight_free(&src);
}

/* Rows beside each other must not matter: each row alone gives its bytes of the whole. */
static void alone(const struct random_kind *k, struct device *d, uint32_t rows, uint32_t cols, uint32_t tokens)
{
    struct weight_src src;
    random_weight(&src, k, rows, cols, 7);
    float *x = malloc((size_t)tokens * cols * 4), *all = malloc((size_t)tokens * rows * 4), *one = malloc((size_t)rows * 4);
    make_x(x, tokens, cols, 0, 11);
    linear(d, &src, x, tokens, all);
    for (uint32_t t = 0; t < tokens; t += 1 + t / 3) {
        linear(d, &src, x + (size_t)t * cols, 1, one);
        comparisons++;
        if (memcmp(one, all + (size_t)t * rows, (size_t)rows * 4) && differences++ < 20)
            printf("%s [%u][%u]: row %u of %u differs from itself alone\n", k->name, rows, cols, t, tokens);
    }
    free(x), free(all), free(one);
    random_weight_free(&src);
}

int main(int argc, char **argv)
{
    bool quick = argc > 1 && strcmp(argv[1], "quick") == 0;
    struct random_kind kinds[KINDS_MAX];
    size_t n = random_kinds(kinds, KINDS_MAX);
    static const uint32_t threads[] = {1, 2, 3, 5};
    struct device *devices[1 + 4 * LEVELS_MAX];
    char names[1 + 4 * LEVELS_MAX][48];
    int count = 0;
    uint32_t cols_max = 14336;
    devices[count++] = open_device("ref", thread_cpu_count(), ROWS_MAX, cols_max);
    for (int l = 1; l < cpu_level_count(); l++) {
        if (!cpu_level_usable(l)) {
            printf("skipped: this machine cannot run level %s\n", cpu_level_name(l));
            continue;
        }
        for (size_t t = 0; t < sizeof threads / sizeof threads[0]; t++) {
            snprintf(names[count], sizeof names[count], "%s, %u threads", cpu_level_name(l), threads[t]);
            devices[count++] = open_device(cpu_level_name(l), threads[t], ROWS_MAX, cols_max);
        }
    }
    static const uint32_t cols[] = {32, 96, 256, 512, 576, 768, 1536, 4096, 31, 257, 1000, 1};
    static const struct {
        uint32_t rows, tokens;
    } shapes[] = {{16, 1}, {37, 1}, {33, 2}, {16, 3}, {47, 4}, {50, 5}, {17, 6}, {16, 7}, {65, 8}, {1, 9}, {18, 13}, {40, 31}, {5, 70}};
    for (size_t i = 0; i < n; i++) {
        uint32_t step = random_kind_step(&kinds[i]);
        for (size_t c = 0; c < sizeof cols / sizeof cols[0]; c++) {
            if (cols[c] % step || (quick && cols[c] > 768))
                continue;
            for (size_t s = 0; s < sizeof shapes / sizeof shapes[0]; s++)
                if ((quick ? s % 4 == c % 4 : s % 2 == c % 2 || cols[c] <= 768))
                    compare(&kinds[i], devices, names, count, shapes[s].rows, cols[c], shapes[s].tokens, 0);
        }
        uint32_t k = step == 1 ? 300 : step * 3;
        for (uint32_t t = 1; t <= ROWS_MAX; t += quick ? 97 + t : 1 + t / 8)
            compare(&kinds[i], devices, names, count, 19, k, t, 0);
        for (int kind = 1; kind < 4; kind++)
            for (uint32_t t = 1; t <= 9; t += 4)
                compare(&kinds[i], devices, names, count, 35, k * 2, t, kind);
        if (!quick)
            compare(&kinds[i], devices, names, count, 24, 14336, 12, 2);
        alone(&kinds[i], devices[count - 1], 21, k, 40);
    }
    for (int i = 0; i < count; i++)
        backend_cpu.device_close(devices[i]);
    printf("%lu comparisons, %lu differences\n", comparisons, differences);
    return differences != 0;
}
