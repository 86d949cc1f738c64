/* tests/ops/experts_law.c - the first law at mixtures of experts: a row's choice, its experts' gated products, their output and its sum are the same bytes whether
 * the row stands alone, in tens or in thousands; so are the norms and the router's product before them, and the MLP beside them.
 *
 * usage: ops_experts_law [cuda]     every weight type; on cuda also stacks of the width that models have, and more rows */
#include "backend_cpu/backend_cpu.h"

#include "law_open.h"
#include "random_weight.h"
#include "row_cases.h"

enum { ROWS_MAX = 2100, TOP_MAX = 8, EXPERTS_MAX = 64, COLS_MAX = 2816, DOWN_SMALL = 5, DOWN_LARGE = 7 /* random_kinds: Q5_0, Q8_0 */ };

static size_t compared, wrong;
static struct random_kind router_kind; /* of 16 bits */

struct shape {
    uint32_t experts, top, hidden, ffn, rows;
    uint32_t alone; /* of so many rows one alone */
};

struct layer {
    const struct shape *shape;
    struct weight_src each[3][EXPERTS_MAX], src[3]; /* gate, up, down */
    struct weight *w[3], *beside[3], *router;
    struct weight_src router_src;
    float *bias[3], *expert_scale, *norm[4];
    struct tensor logits, x, stream, routed, normed, mid, up, out, y, beside_mid[3], block;
    uint32_t *ids;
    float *weights;
};

static void layer_open(struct bench *b, struct layer *l, const struct shape *s, const struct random_kind *one, const struct random_kind *two)
{
    struct err err = {0};
    uint32_t slots = s->rows * s->top;
    bench_reset(b, s->rows + s->experts);
    l->shape = s;
    for (int i = 0; i < 3; i++) {
        for (uint32_t e = 0; e < s->experts; e++)
            random_weight(&l->each[i][e], i == 2 ? two : one, i == 2 ? s->hidden : s->ffn, i == 2 ? s->ffn : s->hidden, e * 3 + (uint32_t)i);
        l->src[i] = l->each[i][0];
        l->src[i].n_experts = s->experts;
        l->src[i].experts = l->each[i];
        must(device_backend(b->d)->weight_prepare(b->d, &l->src[i], WEIGHT_LINEAR, &l->w[i], &err), &err);
        must(device_backend(b->d)->weight_prepare(b->d, &l->each[i][0], WEIGHT_LINEAR, &l->beside[i], &err), &err);
        l->bias[i] = bench_floats(b, (size_t)s->experts * (i == 2 ? s->hidden : s->ffn), 1);
    }
    random_weight(&l->router_src, &router_kind, s->experts, s->hidden, 99);
    must(device_backend(b->d)->weight_prepare(b->d, &l->router_src, WEIGHT_LINEAR, &l->router, &err), &err);
    l->expert_scale = bench_floats(b, s->experts, 1);
    for (int i = 0; i < 4; i++)
        l->norm[i] = bench_floats(b, s->hidden, 1);
    for (int i = 0; i < 3; i++)
        l->beside_mid[i] = bench_tensor(b, s->rows, s->ffn, 1);
    l->stream = bench_tensor(b, s->rows, s->hidden, 1), l->routed = bench_tensor(b, s->rows, s->hidden, 1), l->normed = bench_tensor(b, s->rows, s->hidden, 1);
    l->block = bench_tensor(b, s->rows, s->hidden, 1);
    l->logits = bench_tensor(b, s->rows, s->experts, 3);
    l->x = bench_tensor(b, s->rows, s->hidden, 1);
    l->mid = bench_tensor(b, slots, s->ffn, 1), l->up = bench_tensor(b, slots, s->ffn, 1), l->out = bench_tensor(b, slots, s->hidden, 1);
    l->y = bench_tensor(b, s->rows, s->hidden, 1);
    l->ids = bench_new(b, slots * sizeof *l->ids);
    l->weights = bench_floats(b, slots, 1);
}

static void layer_close(struct bench *b, struct layer *l)
{
    for (int i = 0; i < 3; i++) {
        device_backend(b->d)->weight_free(b->d, l->w[i]), device_backend(b->d)->weight_free(b->d, l->beside[i]);
        for (uint32_t e = 0; e < l->shape->experts; e++)
            random_weight_free(&l->each[i][e]);
    }
    device_backend(b->d)->weight_free(b->d, l->router);
    random_weight_free(&l->router_src);
}

static void norm(struct bench *b, struct tensor x, struct tensor y, const float *w, bool add)
{
    struct err err = {0};
    struct op_norm op = {.x = x, .y = y, .dim = x.cols, .w = w, .eps = 1e-6f, .add = add, .scale = 1.0f};
    must(op_norm(b->d, &op, &err), &err);
}

/* The stream gets what came before it; norms of it for the router and the experts; the choice. */
static void choose(struct bench *b, struct layer *l, uint32_t first, uint32_t n, bool biases)
{
    struct err err = {0};
    uint32_t top = l->shape->top, at = first * top;
    struct tensor x = tensor_rows(l->x, first, n), stream = tensor_rows(l->stream, first, n), routed = tensor_rows(l->routed, first, n);
    struct op_copy copy = {.dst = stream.data, .src = x.data, .size_bytes = (size_t)n * l->x.stride * sizeof(float)};
    struct op_linear router = {.w = l->router, .x = routed, .y = tensor_rows(l->logits, first, n), .alpha = biases ? 1.0f : 0.25f, .bias = biases ? l->bias[0] : NULL};
    struct op_route route = {.logits = router.y, .score = biases ? ROUTE_SOFTMAX_TOP : ROUTE_SOFTMAX, .top = top, .normalise = true, .scale = 1.5f,
                             .expert_scale = biases ? NULL : l->expert_scale, .ids = l->ids + at, .weights = l->weights + at};
    must(op_copy(b->d, &copy, &err), &err);
    norm(b, x, stream, l->norm[0], true), norm(b, stream, routed, l->norm[1], false), norm(b, stream, tensor_rows(l->normed, first, n), l->norm[2], false);
    must(op_linear(b->d, &router, &err), &err);
    must(op_route(b->d, &route, &err), &err);
}

/* Rows [first, first + n); y becomes the sum, or the sum comes on top of x in y; an MLP is done beside. */
static void run(struct bench *b, struct layer *l, uint32_t first, uint32_t n, bool biases, bool add)
{
    struct err err = {0};
    uint32_t top = l->shape->top, at = first * top, slots = n * top;
    struct tensor mid = tensor_rows(l->mid, at, slots), beside = tensor_rows(l->beside_mid[0], first, n);
    struct op_expert_gated gated = {.x = tensor_rows(l->normed, first, n), .y = mid, .gate = l->w[0], .up = l->w[1], .act = biases ? ACT_CLAMPED : ACT_GELU_TANH,
                                    .gate_bias = biases ? l->bias[0] : NULL, .up_bias = biases ? l->bias[1] : NULL, .ids = l->ids + at, .scratch_gate = mid,
                                    .scratch_up = tensor_rows(l->up, at, slots)};
    struct op_expert_output output = {.linear = {.w = l->w[2], .bias = biases ? l->bias[2] : NULL, .x = mid, .y = tensor_rows(l->out, at, slots), .ids = gated.ids},
                                      .sum = {.x = tensor_rows(l->out, at, slots), .y = tensor_rows(l->y, first, n), .weights = l->weights + at, .add = add}};
    struct op_norm_gated mlp = {.x = tensor_rows(l->stream, first, n), .norm_w = l->norm[3], .eps = 1e-6f, .gate = l->beside[0], .up = l->beside[1], .act = gated.act,
                                .y = beside, .scratch = tensor_rows(l->routed, first, n), .scratch_gate = tensor_rows(l->beside_mid[1], first, n),
                                .scratch_up = tensor_rows(l->beside_mid[2], first, n)};
    struct op_linear down = {.w = l->beside[2], .x = beside, .y = tensor_rows(l->block, first, n), .alpha = 1.0f};
    struct op_copy copy = {.dst = output.sum.y.data, .src = tensor_rows(l->x, first, n).data, .size_bytes = (size_t)n * l->x.stride * sizeof(float)};
    struct op_add both = {.x = down.y, .y = output.sum.y, .x_scale = 1.0f, .y_scale = 1.0f};
    choose(b, l, first, n, biases);
    must(op_expert_gated(b->d, &gated, &err), &err);
    must(op_norm_gated(b->d, &mlp, &err), &err);
    if (add)
        must(op_copy(b->d, &copy, &err), &err);
    must(op_expert_output(b->d, &output, &err), &err);
    must(op_linear(b->d, &down, &err), &err);
    must(op_add(b->d, &both, &err), &err);
}

/* What a step leaves of a row. */
struct left {
    float *y, *weights;
    uint32_t *ids;
};

static struct left left_of(const struct layer *l)
{
    size_t rows = l->shape->rows, slots = rows * l->shape->top;
    struct left k = {malloc(rows * l->y.stride * sizeof(float)), malloc(slots * sizeof(float)), malloc(slots * sizeof(uint32_t))};
    memcpy(k.y, l->y.data, rows * l->y.stride * sizeof(float));
    memcpy(k.weights, l->weights, slots * sizeof(float)), memcpy(k.ids, l->ids, slots * sizeof(uint32_t));
    return k;
}

static void spoil(struct layer *l)
{
    size_t rows = l->shape->rows, slots = rows * l->shape->top;
    memset(l->y.data, 0xff, rows * l->y.stride * sizeof(float));
    memset(l->weights, 0xff, slots * sizeof(float)), memset(l->ids, 0xff, slots * sizeof(uint32_t));
}

static void compare(const struct layer *l, const struct left *want, const char *what, uint32_t n, const char *kind)
{
    const struct shape *s = l->shape;
    for (uint32_t r = 0; r < s->rows; r++) {
        size_t at = (size_t)r * l->y.stride, slot = (size_t)r * s->top;
        if (n == 1 && r % s->alone)
            continue;
        compared++;
        bool choice = memcmp(want->ids + slot, l->ids + slot, s->top * sizeof(uint32_t)) == 0 && memcmp(want->weights + slot, l->weights + slot, s->top * sizeof(float)) == 0;
        uint32_t o = 0, differ = 0;
        const float *a = want->y + at, *b = (const float *)l->y.data + at;
        for (uint32_t i = s->hidden; i-- > 0;)
            if (memcmp(a + i, b + i, sizeof *a))
                o = i, differ++;
        if ((!choice || differ) && wrong++ < 20)
            printf("wrong: %s, %u experts of [%u][%u], top %u, %s: row %u in steps of %u: %u outputs differ, the first %u: %a, not %a%s\n", kind, s->experts,
                   s->ffn, s->hidden, s->top, what, r, n, differ, o, (double)b[o], (double)a[o], choice ? "" : ", its choice already");
    }
}

static void check(struct bench *b, const struct shape *s, const struct random_kind *one, const struct random_kind *two, bool biases)
{
    static const uint32_t steps[] = {1, 3, 10, 47, 301, 1000};
    static struct layer layer;
    struct layer *l = &layer;
    layer_open(b, l, s, one, two);
    run(b, l, 0, s->rows, biases, biases);
    bench_wait(b);
    struct left want = left_of(l);
    for (size_t c = 0; c < sizeof steps / sizeof *steps && steps[c] < s->rows; c++) {
        uint32_t skip = steps[c] == 1 ? s->alone : steps[c];
        spoil(l);
        for (uint32_t at = 0; at < s->rows; at += skip)
            run(b, l, at, steps[c] < s->rows - at ? steps[c] : s->rows - at, biases, biases);
        bench_wait(b);
        compare(l, &want, biases ? "biases, added" : "plain", steps[c], one->name);
    }
    free(want.y), free(want.weights), free(want.ids);
    layer_close(b, l);
}

int main(int argc, char **argv)
{
    static const struct shape small[] = {{7, 3, 256, 256, 130, 1}, {16, 4, 512, 256, 400, 7}, {5, 1, 256, 512, 130, 3}};
    static const struct shape large[] = {{32, 8, 2816, 704, 2100, 37}, {64, 8, 1024, 256, 1500, 37}};
    static const char *const main_kinds[] = {"Q4_K", "Q5_0", "Q8_0", "Q6_K", "BF16", "MXFP4"};
    static struct random_kind kinds[96];
    bool on_cuda = law_on_cuda(argc, argv);
    struct device_reserve reserve = {.rows_max = on_cuda ? ROWS_MAX : 400, .cols_max = COLS_MAX, .heads_max = 1, .head_dim_max = 8, .context_max = 256,
                                     .logit_rows_max = 1, .vocab_max = 8, .experts_max = EXPERTS_MAX, .slots_max = TOP_MAX, .expert_cols_max = COLS_MAX};
    struct bench b = {0};
    law_open(argc, argv, "ops_experts_law", &reserve, &b.d);
    size_t n = random_kinds(kinds, sizeof kinds / sizeof *kinds), shapes = sizeof small / sizeof *small;
    for (size_t i = 0; i < n; i++)
        router_kind = strcmp(kinds[i].name, "F32") == 0 ? kinds[i] : router_kind;
    for (size_t i = 0; i < n; i++)
        if (kinds[i].type != DTYPE_MLX || kinds[i].scale_type == DTYPE_BF16) /* types of scales differ before the product only */
            check(&b, &small[i % shapes], &kinds[i], &kinds[(i + 3) % n], i % 2);
    for (size_t i = 0; i < n && on_cuda; i++)
        for (size_t k = 0; k < sizeof main_kinds / sizeof *main_kinds; k++)
            if (strcmp(kinds[i].name, main_kinds[k]) == 0) { /* rows of 704 are no multiple of 256: as in files, another type */
                const struct random_kind *two = kinds[i].type == DTYPE_Q4_K ? &kinds[DOWN_SMALL] : kinds[i].type == DTYPE_Q6_K ? &kinds[DOWN_LARGE] : &kinds[i];
                check(&b, &large[0], &kinds[i], two, k % 2), check(&b, &large[1], &kinds[i], &kinds[i], k % 2 == 0);
            }
    printf("%zu comparisons, %zu wrong\n", compared, wrong);
    bench_reset(&b, 0);
    device_backend(b.d)->device_close(b.d);
    return wrong != 0;
}
