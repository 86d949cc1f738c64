/* tests/ops/linear_heads.c - linear_heads on every CPU level and several thread counts: each head's part byte for byte what linear gives
 * for that head's rows of the weight and part of x on level ref, what goes past the weight unchanged, rows alone the same as together;
 * and backend_ref against the same within float order.
 *
 * usage: linear_heads [cuda]        cuda: against its own linear */
#include "backend_cpu/backend_cpu.h"
#include "backend_cpu/cpu_level.h"
#include "backend_ref/backend_ref.h"
#include "tensor/backend.h"

#include "other_backend.h"
#include "random_weight.h"

#include <math.h>

enum { ROWS_MAX = 150, KINDS_MAX = 96 };

static size_t comparisons, differences;
static struct device *owner; /* what devices read and write is its memory */

static void check(int rc, const struct err *err)
{
    if (rc) {
        fprintf(stderr, "failed: %d %s\n", rc, err->text);
        exit(2);
    }
}

static struct device *open_device(const struct backend *b, const char *level, uint32_t threads)
{
    struct err err = {0};
    struct device *d;
    struct device_config cfg = {.n_threads = threads, .level = level};
    struct device_reserve r = {.rows_max = ROWS_MAX, .cols_max = 512, .heads_max = 20};
    check(b->device_open(&cfg, &d, &err), &err);
    check(b->reserve(d, &r, &err), &err);
    return d;
}

static float *memory_new(size_t n)
{
    struct err err = {0};
    void *p;
    check(device_backend(owner)->buffer_new(owner, n * sizeof(float), &p, &err), &err);
    return p;
}

struct shape {
    uint32_t heads, out, in, tail, rows;
};

/* one shape's inputs and what linear says */
struct sample {
    struct shape s;
    struct weight_src w;
    float *x, *want;
    uint32_t x_cols, y_cols; /* of a row; rows lie 3 floats further apart */
};

static void wait(struct device *d)
{
    struct err err = {0};
    uint64_t event;
    check(device_backend(d)->event_record(d, &event), &err);
    check(device_backend(d)->event_wait(d, event, &err), &err);
}

static void head_linear(struct device *d, const struct sample *p, uint32_t head, float *y)
{
    struct err err = {0};
    struct weight *w;
    struct weight_src src = p->w;
    const struct shape *s = &p->s;
    size_t scale = src.type == DTYPE_MLX ? src.cols / src.group * (src.scale_type == DTYPE_F32 ? 4u : 2u) : src.cols / 32;
    src.rows = s->out;
    src.data = (const char *)src.data + (size_t)head * s->out * src.row_bytes;
    src.scales = src.scales ? (const char *)src.scales + (size_t)head * s->out * scale : NULL;
    src.biases = src.biases ? (const char *)src.biases + (size_t)head * s->out * scale : NULL;
    check(device_backend(d)->weight_prepare(d, &src, WEIGHT_LINEAR, &w, &err), &err);
    struct op_linear op = {.w = w, .x = {p->x + (size_t)head * (s->in + s->tail), s->rows, s->in, p->x_cols + 3},
                           .y = {y + (size_t)head * (s->out + s->tail), s->rows, s->out, p->y_cols + 3}, .alpha = 1};
    check(op_linear(d, &op, &err), &err);
    wait(d);
    device_backend(d)->weight_free(d, w);
}

static void sample_make(struct device *ref, struct sample *p, const struct random_kind *k, const struct shape *s, uint64_t seed)
{
    *p = (struct sample){.s = *s, .x_cols = s->heads * (s->in + s->tail), .y_cols = s->heads * (s->out + s->tail)};
    random_weight(&p->w, k, s->heads * s->out, s->in, seed);
    size_t x_size = (size_t)s->rows * (p->x_cols + 3), y_size = (size_t)s->rows * (p->y_cols + 3);
    p->x = memory_new(x_size);
    p->want = memory_new(y_size);
    for (size_t i = 0; i < x_size; i++)
        p->x[i] = random_unit(&seed); /* even: what 8-bit activations cost is then the same in every block */
    for (uint32_t h = 0; h < s->heads; h++) {
        head_linear(ref, p, h, p->want);
        for (uint32_t r = 0; r < s->rows; r++)
            for (uint32_t t = 0; t < s->tail; t++)
                p->want[(size_t)r * (p->y_cols + 3) + (size_t)h * (s->out + s->tail) + s->out + t] =
                    p->x[(size_t)r * (p->x_cols + 3) + (size_t)h * (s->in + s->tail) + s->in + t];
    }
}

static void sample_free(struct sample *p)
{
    random_weight_free(&p->w);
    device_backend(owner)->buffer_free(owner, p->x, 0);
    device_backend(owner)->buffer_free(owner, p->want, 0);
}

/* Rows [first, first + rows) into y, whose rows lie as the sample's. */
static void heads_run(struct device *d, const struct sample *p, const struct weight *w, uint32_t first, uint32_t rows, float *y)
{
    struct err err = {0};
    struct op_linear_heads op = {.w = w, .n_heads = p->s.heads, .tail = p->s.tail,
                                 .x = {p->x + (size_t)first * (p->x_cols + 3), rows, p->x_cols, p->x_cols + 3},
                                 .y = {y + (size_t)first * (p->y_cols + 3), rows, p->y_cols, p->y_cols + 3}};
    check(op_linear_heads(d, &op, &err), &err);
    wait(d);
}

/* Largest error over the largest value; 0 only when all bytes are equal (0 beside -0 is no error, yet not nothing). */
static double compare(const struct sample *p, const float *got, size_t *worst)
{
    double most = 1e-30, error = 0;
    *worst = 0;
    for (uint32_t r = 0; r < p->s.rows; r++)
        for (uint32_t c = 0; c < p->y_cols; c++) {
            size_t at = (size_t)r * (p->y_cols + 3) + c;
            most = fmax(most, fabs((double)p->want[at]));
            double e = fabs((double)p->want[at] - (double)got[at]);
            e = memcmp(got + at, p->want + at, sizeof *got) == 0 ? 0 : e >= 0 ? fmax(e, 1e-30) : INFINITY;
            if (e > error)
                error = e, *worst = at;
        }
    return error / most;
}

static void run_on(struct device *d, const char *name, const struct sample *p, double tolerance)
{
    struct err err = {0};
    struct weight *w;
    size_t size = (size_t)p->s.rows * (p->y_cols + 3);
    float *got = memory_new(size);
    check(device_backend(d)->weight_prepare(d, &p->w, WEIGHT_LINEAR, &w, &err), &err);
    for (int alone = 0; alone < 2; alone++) {
        memset(got, 0xee, size * sizeof *got);
        for (uint32_t r = 0; alone && r < p->s.rows; r++)
            heads_run(d, p, w, r, 1, got);
        if (!alone)
            heads_run(d, p, w, 0, p->s.rows, got);
        size_t worst;
        double error = compare(p, got, &worst);
        comparisons++;
        if (error > tolerance && differences++ < 20)
            printf("%s: %s, %u heads of [%u][%u] + %u, %u rows%s: error %g (%g, expected %g, at %zu)\n", name, p->w.name, p->s.heads, p->s.out,
                   p->s.in, p->s.tail, p->s.rows, alone ? " alone" : "", error, (double)got[worst], (double)p->want[worst], worst);
    }
    device_backend(d)->weight_free(d, w);
    device_backend(owner)->buffer_free(owner, got, 0);
}

static int open_all(struct device **devices, char names[][48], bool on_cuda)
{
    static const uint32_t threads[] = {1, 3};
    int count = 0;
    if (on_cuda) {
        snprintf(names[0], sizeof names[0], "cuda");
        devices[0] = owner;
        return 1;
    }
    for (int l = 0; l < cpu_level_count(); l++)
        for (size_t t = 0; cpu_level_usable(l) && t < 2; t++) {
            snprintf(names[count], sizeof names[count], "%s, %u threads", cpu_level_name(l), threads[t]);
            devices[count++] = open_device(&backend_cpu, cpu_level_name(l), threads[t]);
        }
    return count;
}

int main(int argc, char **argv)
{
    static const struct shape shapes[] = {{4, 64, 64, 32, 1},  {3, 64, 128, 8, 5},   {5, 17, 64, 0, 3},   {2, 5, 128, 7, 40},  {1, 33, 256, 1, 9},
                                          {8, 16, 512, 0, 33}, {20, 128, 256, 0, 2}, {7, 40, 128, 64, 70}, {2, 512, 128, 64, 150}};
    static struct random_kind kinds[KINDS_MAX];
    size_t n = random_kinds(kinds, KINDS_MAX);
    bool on_cuda = argc > 1 && strcmp(argv[1], "cuda") == 0;
    if (on_cuda && !cuda)
        check(ERR_UNSUPPORTED, &(struct err){.text = "cuda was not built"});
    owner = on_cuda ? open_device(cuda, "host", 1) : open_device(&backend_cpu, "ref", 1);
    struct device *plain = open_device(&backend_ref, NULL, 1), *devices[32];
    char names[32][48];
    int count = open_all(devices, names, on_cuda);
    for (size_t i = 0; i < n; i++)
        for (size_t j = 0; j < sizeof shapes / sizeof *shapes; j++) {
            struct sample p;
            if (shapes[j].in % random_kind_step(kinds + i) != 0 || (i + j) % (kinds[i].type == DTYPE_MLX ? 7 : shapes[j].rows > 40 ? 3 : 1) != 0)
                continue;
            sample_make(owner, &p, kinds + i, shapes + j, i * 31 + j);
            for (int d = 0; d < count; d++)
                run_on(devices[d], names[d], &p, 0);
            bool exact = kinds[i].type == DTYPE_F32 || kinds[i].type == DTYPE_F16 || kinds[i].type == DTYPE_BF16;
            run_on(plain, "backend_ref", &p, on_cuda ? CUDA_LINEAR : exact ? 3e-6 : 2e-2);
            sample_free(&p);
        }
    for (int d = 0; d < count && !on_cuda; d++)
        backend_cpu.device_close(devices[d]);
    device_backend(owner)->device_close(owner);
    backend_ref.device_close(plain);
    printf("%zu comparisons, %zu differences\n", comparisons, differences);
    return differences != 0;
}
