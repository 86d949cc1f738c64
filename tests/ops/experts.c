/* tests/ops/experts.c - stacks of experts: every slot's output is byte for byte op_linear's with that expert's matrix alone, at every
 * level and thread count, whatever the number of rows; expert_gated against its composition; both against the reference backend by
 * tolerance.
 *
 * usage: experts [long|cuda]        cuda: its expert_linear against its linear */
#include "backend_cpu/backend_cpu.h"
#include "backend_cpu/cpu_level.h"
#include "backend_ref/backend_ref.h"
#include "other_backend.h"

#include "random_weight.h"

#include "base/mem.h"
#include "base/thread.h"
#include "tensor/backend.h"

#include <math.h>

enum { EXPERTS = 7, TOP = 3, ROWS_MAX = 200, COLS_MAX = 512, LEVELS_MAX = 8 };

static size_t comparisons, differences;
static double worst;
static bool on_cuda;

static void must(int rc, const struct err *err)
{
    if (!rc)
        return;
    fprintf(stderr, "failed: %s\n", err->text);
    exit(2);
}

static struct device *open_device(const struct backend *b, const char *level, uint32_t threads)
{
    struct err err = {0};
    struct device_config cfg = {.n_threads = threads, .level = level};
    struct device_reserve r = {.rows_max = ROWS_MAX, .cols_max = COLS_MAX, .experts_max = EXPERTS, .slots_max = TOP, .expert_cols_max = COLS_MAX};
    struct device *d;
    must(b->device_open(&cfg, &d, &err), &err);
    must(b->reserve(d, &r, &err), &err);
    return d;
}

/* one shape: two stacks, their biases, rows and choices */
struct world {
    struct weight_src each[2][EXPERTS], stack[2];
    float bias[2][EXPERTS * 64];
    uint32_t rows, cols, tokens;
    uint32_t ids[ROWS_MAX * TOP];
    float x[ROWS_MAX * COLS_MAX];
};

static void world_make(struct world *w, const struct random_kind *k, uint32_t rows, uint32_t cols, uint32_t tokens)
{
    uint64_t s = rows * 1000 + cols + tokens;
    w->rows = rows, w->cols = cols, w->tokens = tokens;
    for (int p = 0; p < 2; p++) {
        for (uint32_t e = 0; e < EXPERTS; e++)
            random_weight(&w->each[p][e], k, rows, cols, e * 2 + (uint32_t)p);
        w->stack[p] = w->each[p][0];
        w->stack[p].n_experts = EXPERTS;
        w->stack[p].experts = w->each[p];
        for (uint32_t i = 0; i < EXPERTS * rows; i++)
            w->bias[p][i] = random_unit(&s);
    }
    for (uint32_t i = 0; i < tokens * TOP; i++)
        w->ids[i] = tokens % 5 == 4 ? 2 : random_u32(&s) % EXPERTS; /* sometimes all at one expert */
    for (size_t i = 0; i < (size_t)tokens * cols; i++)
        w->x[i] = random_value(&s);
}

static void world_free(struct world *w)
{
    for (int p = 0; p < 2; p++)
        for (uint32_t e = 0; e < EXPERTS; e++)
            random_weight_free(&w->each[p][e]);
}

static void wait(struct device *d)
{
    struct err err = {0};
    uint64_t event = 0;
    int rc = device_backend(d)->event_record(d, &event);
    must(device_backend(d)->event_wait(d, rc ? 0 : event, &err), &err);
    must(rc, &err);
}

/* What the op gives: [tokens * TOP][rows] of stack 0, with its bias; `shared`: x has a row a token, else one a slot. */
static void run_linear(struct device *d, struct world *w, bool shared, float *y)
{
    struct err err = {0};
    struct weight *stack;
    uint32_t slots = w->tokens * TOP, x_rows = shared ? w->tokens : slots;
    must(device_backend(d)->weight_prepare(d, &w->stack[0], WEIGHT_LINEAR, &stack, &err), &err);
    struct op_expert_linear op = {.w = stack, .bias = w->bias[0], .x = {w->x, x_rows, w->cols, w->cols}, .y = {y, slots, w->rows, w->rows},
                                  .ids = w->ids};
    must(op_expert_linear(d, &op, &err), &err);
    wait(d);
    device_backend(d)->weight_free(d, stack);
}

static void run_gated(struct device *d, struct world *w, bool fused, float *y, float *scratch)
{
    struct err err = {0};
    struct weight *stacks[2];
    uint32_t slots = w->tokens * TOP;
    for (int p = 0; p < 2; p++)
        must(device_backend(d)->weight_prepare(d, &w->stack[p], WEIGHT_LINEAR, &stacks[p], &err), &err);
    struct tensor x = {w->x, w->tokens, w->cols, w->cols}, out = {y, slots, w->rows, w->rows}, up = {scratch, slots, w->rows, w->rows};
    struct op_expert_gated op = {.x = x, .y = out, .gate = stacks[0], .up = stacks[1], .gate_bias = w->bias[0], .act = ACT_CLAMPED,
                                 .ids = w->ids, .scratch_gate = out, .scratch_up = up};
    struct op_expert_linear g = {.w = stacks[0], .bias = w->bias[0], .x = x, .y = out, .ids = w->ids};
    struct op_expert_linear u = {.w = stacks[1], .x = x, .y = up, .ids = w->ids};
    struct op_gated act = {.gate = out, .up = up, .y = out, .act = ACT_CLAMPED};
    if (fused) {
        must(op_expert_gated(d, &op, &err), &err);
    } else {
        must(op_expert_linear(d, &g, &err), &err);
        must(op_expert_linear(d, &u, &err), &err);
        must(op_gated(d, &act, &err), &err);
    }
    wait(d);
    for (int p = 0; p < 2; p++)
        device_backend(d)->weight_free(d, stacks[p]);
}

/* Each slot by op_linear with its expert's matrix as a weight of its own. */
static void run_alone(struct device *d, struct world *w, bool shared, float *y)
{
    struct err err = {0};
    struct weight *each[EXPERTS];
    for (uint32_t e = 0; e < EXPERTS; e++)
        must(device_backend(d)->weight_prepare(d, &w->each[0][e], WEIGHT_LINEAR, &each[e], &err), &err);
    for (uint32_t i = 0; i < w->tokens * TOP; i++) {
        float *x = w->x + (size_t)(shared ? i / TOP : i) * w->cols;
        struct op_linear op = {.w = each[w->ids[i]], .bias = w->bias[0] + (size_t)w->ids[i] * w->rows, .x = {x, 1, w->cols, w->cols},
                               .y = {y + (size_t)i * w->rows, 1, w->rows, w->rows}, .alpha = 1};
        must(op_linear(d, &op, &err), &err);
    }
    wait(d);
    for (uint32_t e = 0; e < EXPERTS; e++)
        device_backend(d)->weight_free(d, each[e]);
}

static void same(const char *what, const char *where, const struct random_kind *k, const struct world *w, const float *want, const float *got)
{
    size_t n = (size_t)w->tokens * TOP * w->rows;
    comparisons++;
    if (memcmp(want, got, n * sizeof *want) == 0 || differences++ > 20)
        return;
    for (size_t i = 0; i < n; i++)
        if (memcmp(want + i, got + i, sizeof *want)) {
            printf("%s, %s, %s [%u][%u], %u rows: slot %zu output %zu: expected %a, got %a\n", what, where, k->name, w->rows, w->cols,
                   w->tokens, i / w->rows, i % w->rows, (double)want[i], (double)got[i]);
            return;
        }
}

static void near(const struct random_kind *k, const struct world *w, const float *want, const float *got)
{
    double most = 0, error = 0;
    bool plain = !on_cuda && (k->type == DTYPE_F32 || k->type == DTYPE_F16 || k->type == DTYPE_BF16);
    for (size_t i = 0; i < (size_t)w->tokens * TOP * w->rows; i++) {
        most = fmax(most, fabs((double)want[i]));
        error = fmax(error, fabs((double)want[i] - (double)got[i]));
    }
    comparisons++;
    worst = plain ? fmax(worst, error / most) : worst;
    if (!(error <= most * (plain ? 3e-6 : on_cuda ? CUDA_LINEAR : 4e-2)) && differences++ < 20)
        printf("%s [%u][%u], %u rows: error %g of %g\n", k->name, w->rows, w->cols, w->tokens, error, most);
}

/* everything devices read and write: memory of the first one */
struct memory {
    struct world w;
    float want[ROWS_MAX * TOP * 64], got[ROWS_MAX * TOP * 64], gated[ROWS_MAX * TOP * 64], scratch[ROWS_MAX * TOP * 64];
};

static void check(const struct random_kind *k, struct memory *m, struct device *const *d, char names[][48], int count, struct device *ref,
                  uint32_t rows, uint32_t cols, uint32_t tokens)
{
    struct world *w = &m->w;
    bool shared = tokens * TOP > ROWS_MAX || tokens % 2;
    world_make(w, k, rows, cols, tokens);
    run_alone(d[0], w, shared, m->want);
    run_gated(d[0], w, false, m->gated, m->scratch);
    for (int i = 0; i < count; i++) {
        run_linear(d[i], w, shared, m->got);
        same("expert_linear", names[i], k, w, m->want, m->got);
        run_gated(d[i], w, true, m->got, m->scratch);
        same("expert_gated", names[i], k, w, m->gated, m->got);
    }
    run_linear(ref, w, shared, m->got);
    near(k, w, m->got, m->want);
    world_free(w);
}

static int open_all(struct device **devices, char names[][48], bool quick)
{
    static const uint32_t threads[] = {1, 2, 5};
    int count = 0;
    if (on_cuda) {
        snprintf(names[0], sizeof names[0], "cuda");
        devices[0] = open_device(cuda, "host", 1);
        return 1;
    }
    snprintf(names[0], sizeof names[0], "ref, 1 thread");
    devices[count++] = open_device(&backend_cpu, "ref", 1);
    for (int l = 0; l < cpu_level_count(); l++)
        for (size_t t = 0; t < sizeof threads / sizeof threads[0] && cpu_level_usable(l); t++) {
            if (quick && l == 0 && t != 1)
                continue; /* the slow level */
            snprintf(names[count], sizeof names[count], "%s, %u threads", cpu_level_name(l), threads[t]);
            devices[count++] = open_device(&backend_cpu, cpu_level_name(l), threads[t]);
        }
    return count;
}

int main(int argc, char **argv)
{
    bool quick = argc < 2 || strcmp(argv[1], "long") != 0;
    static struct random_kind kinds[96];
    size_t n = random_kinds(kinds, 96);
    struct device *devices[1 + 3 * LEVELS_MAX];
    char names[1 + 3 * LEVELS_MAX][48];
    struct err err = {0};
    void *memory = NULL;
    on_cuda = argc > 1 && strcmp(argv[1], "cuda") == 0;
    if (on_cuda && !cuda)
        must(ERR_UNSUPPORTED, &(struct err){.text = "cuda was not built"});
    int count = open_all(devices, names, quick);
    must(device_backend(devices[0])->buffer_new(devices[0], sizeof(struct memory), &memory, &err), &err);
    struct device *ref = open_device(&backend_ref, NULL, 1);
    static const struct {
        uint32_t rows, tokens;
    } shapes[] = {{16, 1}, {37, 2}, {64, 3}, {5, 4}, {50, 9}, {33, 24}, {48, 67}, {17, 150}};
    for (size_t i = 0; i < n; i++) {
        uint32_t step = random_kind_step(&kinds[i]);
        for (size_t s = 0; s < sizeof shapes / sizeof shapes[0]; s++)
            if (!quick || s % 4 == i % 4)
                check(&kinds[i], memory, devices, names, count, ref, shapes[s].rows, step == 1 ? 300 : step < 256 ? step * 3 : step, shapes[s].tokens);
    }
    device_backend(devices[0])->buffer_free(devices[0], memory, sizeof(struct memory));
    for (int i = 0; i < count; i++)
        device_backend(devices[i])->device_close(devices[i]);
    backend_ref.device_close(ref);
    printf("largest error of float stacks %.3g\n%zu comparisons, %zu differences\n", worst, comparisons, differences);
    return differences != 0;
}
