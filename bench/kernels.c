/* bench/kernels.c - linear layers of one backend per format, shape and row count, beside the machine's limits.
 *
 * Usage: bench_kernels [-t threads] [-l level] [-f format] [-s rowsxcols] [-n rows,rows,...] [-r repeats] [-m megabytes] [-c] [-b cpu|cuda]
 * -c: one thread, and CPU time instead of the clock on the wall: for busy machines.
 * Each line: best and median of GB/s (weight bytes read) and GOP/s, and best as a share of what a plain read of a set of the same
 * size, and the int8 dot loop, reached in the same minutes: probe and kernel alternate, since neighbours come and go.
 * -b cuda: the GPU's limits, measured once before; a line is of many passes, since one is short. */
#include "backend_cpu/backend_cpu.h"
#include "backend_cpu/probe.h"
#include "backend_cuda/backend_cuda.h"
#include "backend_cuda/cuda_probe.h"
#include "../tests/ops/random_weight.h"

#include <strings.h>
#include <time.h>
#include <unistd.h>

enum { REPEATS_MAX = 64, COPIES_MAX = 512, LIST_MAX = 16, CUDA_PASSES = 24 };

static const struct backend *backend = &backend_cpu;
static struct cuda_limits gpu; /* -b cuda */

struct options {
    uint32_t threads, repeats, megabytes;
    const char *level, *format;
    bool cpu;
    uint32_t rows, cols;
    uint32_t list[LIST_MAX], list_count;
};

static void die(const struct err *err)
{
    fprintf(stderr, "%s\n", err->text);
    exit(1);
}

static int by_size(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* One set of copies of a weight, large enough that a pass over it comes from memory. */
struct set {
    struct weight *w[COPIES_MAX];
    uint32_t copies;
    uint64_t bytes; /* of all */
};

static void set_make(struct set *s, struct device *d, const struct weight_src *src, uint64_t bytes_min)
{
    struct err err = {0};
    uint64_t one;
    if (backend->weight_plan(d, src, WEIGHT_LINEAR, &one, &err))
        die(&err);
    s->copies = (uint32_t)(bytes_min / one + 1);
    if (s->copies > COPIES_MAX)
        s->copies = COPIES_MAX;
    s->bytes = one * s->copies;
    for (uint32_t i = 0; i < s->copies; i++)
        if (backend->weight_prepare(d, src, WEIGHT_LINEAR, &s->w[i], &err))
            die(&err);
}

static bool on_gpu(void)
{
    return backend != &backend_cpu;
}

/* Values in memory of the device; `fill`: drawn, else zero. */
static float *values_new(struct device *d, size_t count, bool fill)
{
    struct err err = {0};
    uint64_t seed = 5;
    void *out;
    float *values = malloc(count * 4);
    for (size_t i = 0; i < count; i++)
        values[i] = random_value(&seed);
    if (backend->buffer_new(d, count * 4, &out, &err) || (fill && backend->buffer_write(d, out, values, count * 4, &err)))
        die(&err);
    free(values);
    return out;
}

static int64_t clock_ns(bool cpu)
{
    struct timespec t;
    clock_gettime(cpu ? CLOCK_PROCESS_CPUTIME_ID : CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

/* Nanoseconds of one pass over the first `copies` of the set. */
static double pass(struct device *d, const struct set *s, uint32_t copies, const struct weight_src *src, float *x, float *y, uint32_t n, bool cpu)
{
    struct err err = {0};
    uint64_t event;
    int64_t begin = clock_ns(cpu);
    uint32_t passes = on_gpu() ? CUDA_PASSES : 1;
    for (uint32_t k = 0; k < passes * copies; k++) {
        uint32_t i = k % copies;
        struct op_linear op = {s->w[i], NULL, {x, n, src->cols, src->cols}, {y, n, src->rows, src->rows}, 1.0f, false};
        if (backend->linear(d, &op))
            exit(2);
    }
    backend->event_record(d, &event);
    if (backend->event_wait(d, event, &err))
        die(&err);
    return (double)(clock_ns(cpu) - begin) / passes;
}

static void line(struct device *d, const struct options *o, const struct random_kind *k, const struct set *s, const struct weight_src *src,
                 uint32_t n, uint32_t threads, const char *level)
{
    struct err err = {0};
    float *x = values_new(d, (size_t)n * src->cols, true), *y = values_new(d, (size_t)n * src->rows, false);
    /* as many copies as make a pass of some milliseconds; all of them for few rows */
    double ops = 2.0 * src->rows * src->cols * n;
    uint32_t copies = n <= 16 ? s->copies : (uint32_t)(2e10 / ops) + 1;
    copies = copies > s->copies ? s->copies : copies;
    copies = on_gpu() ? s->copies : copies;
    double bytes = (double)s->bytes / s->copies * copies, rate[REPEATS_MAX], read_best = gpu.read.best, int8_best = gpu.f16.best, fma_best = gpu.f16.best;
    bool plain = k->type == DTYPE_F32 || k->type == DTYPE_F16 || k->type == DTYPE_BF16;
    pass(d, s, 1, src, x, y, n, o->cpu);
    for (uint32_t r = 0; r < o->repeats; r++) {
        struct probe_result p;
        if (on_gpu()) {
            rate[r] = 1.0 / pass(d, s, copies, src, x, y, n, false);
            continue;
        }
        if (n <= 16 && (probe_read(threads, (size_t)bytes, 1, &p, &err) == 0) && (o->cpu ? p.cpu_best : p.best) > read_best)
            read_best = o->cpu ? p.cpu_best : p.best;
        if (!plain && probe_int8(level, threads, 1, &p, &err) == 0 && (o->cpu ? p.cpu_best : p.best) > int8_best)
            int8_best = o->cpu ? p.cpu_best : p.best;
        if (plain && probe_fma(level, threads, 1, &p, &err) == 0 && (o->cpu ? p.cpu_best : p.best) > fma_best)
            fma_best = o->cpu ? p.cpu_best : p.best;
        rate[r] = 1.0 / pass(d, s, copies, src, x, y, n, o->cpu);
    }
    qsort(rate, o->repeats, sizeof rate[0], by_size);
    double best = rate[o->repeats - 1], median = rate[o->repeats / 2], peak = plain ? fma_best : int8_best;
    printf("%-16s %5ux%-5u n %-3u  %6.1f %6.1f GB/s", k->name, src->rows, src->cols, n, bytes * best, bytes * median);
    if (read_best > 0)
        printf(" %3.0f %% of read %5.1f", 100 * bytes * best / read_best, read_best);
    printf("   %7.1f %7.1f GOP/s", ops * copies * best, ops * copies * median);
    if (peak > 0)
        printf(" %3.0f %% of %s %5.0f", 100 * ops * copies * best / peak, on_gpu() ? "f16" : plain ? "fma" : "int8", peak);
    printf("   %8.1f us\n", 1e-3 / (best * copies));
    fflush(stdout);
    backend->buffer_free(d, x, (size_t)n * src->cols * 4);
    backend->buffer_free(d, y, (size_t)n * src->rows * 4);
}

static void format(struct device *d, const struct options *o, const struct random_kind *k, uint32_t rows, uint32_t cols, uint32_t threads,
                   const char *level)
{
    if (cols % random_kind_step(k))
        return;
    struct weight_src src;
    static struct set s;
    random_weight(&src, k, rows, cols, 1);
    set_make(&s, d, &src, (uint64_t)o->megabytes << 20);
    for (uint32_t i = 0; i < o->list_count; i++)
        line(d, o, k, &s, &src, o->list[i], threads, level);
    for (uint32_t i = 0; i < s.copies; i++)
        backend->weight_free(d, s.w[i]);
    random_weight_free(&src);
}

static bool parse(int argc, char **argv, struct options *o)
{
    for (int c; (c = getopt(argc, argv, "ct:l:f:s:n:r:m:b:")) != -1;) {
        if (c == 'c')
            o->cpu = true, o->threads = 1;
        else if (c == 'b')
            backend = strcmp(optarg, "cuda") == 0 ? &backend_cuda : strcmp(optarg, "cpu") == 0 ? &backend_cpu : NULL;
        else if (c == 't')
            o->threads = (uint32_t)strtoul(optarg, NULL, 10);
        else if (c == 'l')
            o->level = optarg;
        else if (c == 'f')
            o->format = optarg;
        else if (c == 's' && sscanf(optarg, "%ux%u", &o->rows, &o->cols) != 2)
            return false;
        else if (c == 'r')
            o->repeats = (uint32_t)strtoul(optarg, NULL, 10);
        else if (c == 'm')
            o->megabytes = (uint32_t)strtoul(optarg, NULL, 10);
        else if (c == 'n') {
            o->list_count = 0;
            for (char *p = optarg; *p && o->list_count < LIST_MAX; p += *p == ',')
                o->list[o->list_count++] = (uint32_t)strtoul(p, &p, 10);
        } else if (c == '?')
            return false;
    }
    return backend != NULL && o->repeats > 0 && o->repeats <= REPEATS_MAX;
}

int main(int argc, char **argv)
{
    struct options o = {.repeats = 7, .megabytes = 192, .list = {1, 2, 4, 8, 64, 512}, .list_count = 6};
    if (!parse(argc, argv, &o)) {
        fprintf(stderr, "usage: bench_kernels [-t threads] [-l level] [-f format] [-s rowsxcols] [-n rows,...] [-r repeats] [-m megabytes] [-c] [-b cpu|cuda]\n");
        return 1;
    }
    struct err err = {0};
    struct device *d;
    struct device_config cfg = {.n_threads = o.threads, .level = o.level, .pin = true};
    struct device_reserve r = {.rows_max = 1024, .cols_max = 16384, .heads_max = 32, .head_dim_max = 128, .context_max = 256};
    if (backend->device_open(&cfg, &d, &err) || backend->reserve(d, &r, &err))
        die(&err);
    if (on_gpu() && cuda_probe(d, (size_t)4 << 30, o.repeats, &gpu, &err))
        die(&err);
    struct device_info info;
    backend->device_info(d, &info);
    printf("%s; shape rows x columns, n activations rows; best and median of %u\n", info.text, o.repeats);
    static const uint32_t shapes[][2] = {{4096, 14336}, {14336, 4096}, {576, 576}, {1536, 576}, {576, 1536}};
    struct random_kind kinds[96];
    size_t n = random_kinds(kinds, 96);
    struct probe_ticks before = probe_ticks_now();
    for (size_t i = 0; i < n; i++) {
        if (o.format ? strcasecmp(o.format, kinds[i].name) != 0 : kinds[i].type == DTYPE_MLX)
            continue;
        if (o.rows)
            format(d, &o, &kinds[i], o.rows, o.cols, info.n_threads, info.level);
        for (size_t s = 0; s < 5 && !o.rows; s++)
            format(d, &o, &kinds[i], shapes[s][0], shapes[s][1], info.n_threads, info.level);
    }
    printf("steal time %.1f %%\n", 100 * probe_steal_share(before, probe_ticks_now()));
    backend->device_close(d);
    return 0;
}
