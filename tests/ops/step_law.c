/* tests/ops/step_law.c - the first law at steps of one row: what a step gives and stores is the same bytes whether its ops are handed over one by one or as
 * one log, as often as it is repeated (from the second time on the CUDA backend replays a graph).
 *
 * usage: ops_step_law [cuda]     layers of attention and feed-forward over pages of several lengths, for every pair of weight types */
#include "backend_cpu/backend_cpu.h"

#include "law_open.h"
#include "random_weight.h"
#include "row_cases.h"

enum { LAYERS = 3, REPEATS = 4 };
enum { W_Q, W_K, W_V, W_O, W_GATE, W_UP, W_DOWN, W_COUNT };

struct shape {
    uint32_t hidden, ffn, heads, kv_heads, d, stored; /* stored: positions before this row */
    uint32_t window[LAYERS];
    bool norms;
};
struct step {
    struct weight *w[LAYERS][W_COUNT];
    struct weight_src src[LAYERS][W_COUNT];
    struct pages p[LAYERS];
    struct tensor x, first, normed, q, k, v, att, gate, up, table;
    float *norm, *head_norm;
    struct kv_span *span;
    unsigned char *pages_first[LAYERS];
};

static size_t compared, wrong;

static void weights_open(struct bench *b, struct step *s, const struct shape *shape, const struct random_kind *one, const struct random_kind *two)
{
    const uint32_t q = shape->heads * shape->d, kv = shape->kv_heads * shape->d;
    const uint32_t rows[] = {q, kv, kv, shape->hidden, shape->ffn, shape->ffn, shape->hidden};
    const uint32_t cols[] = {shape->hidden, shape->hidden, shape->hidden, q, shape->hidden, shape->hidden, shape->ffn};
    struct err err = {0};
    for (int l = 0; l < LAYERS; l++)
        for (int i = 0; i < W_COUNT; i++) {
            bool other = (i == W_V && l != 1) || (i == W_DOWN && l == 1) || (i == W_UP && l == 2);
            random_weight(&s->src[l][i], other ? two : one, rows[i], cols[i], 100 * l + i);
            must(device_backend(b->d)->weight_prepare(b->d, &s->src[l][i], WEIGHT_LINEAR, &s->w[l][i], &err), &err);
        }
}

static void step_open(struct bench *b, struct step *s, const struct shape *shape)
{
    const uint32_t q = shape->heads * shape->d, kv = shape->kv_heads * shape->d;
    bench_reset(b, shape->hidden + shape->stored);
    for (int l = 0; l < LAYERS; l++) {
        s->p[l] = pages_new(b, KV_F16, KV_F16, shape->kv_heads, shape->d, shape->d, false, 1, shape->stored + 1);
        if (l > 0) /* one sequence: the same page table */
            memcpy(s->p[l].tables, s->p[0].tables, s->p[0].page_count * sizeof *s->p[0].tables);
        if (shape->stored)
            pages_fill(b, &s->p[l], 0, shape->stored);
        s->pages_first[l] = malloc(s->p[l].page_bytes * s->p[l].page_count);
        memcpy(s->pages_first[l], s->p[l].table[0], s->p[l].page_bytes * s->p[l].page_count);
    }
    s->x = bench_tensor(b, 1, shape->hidden, 1), s->first = bench_tensor(b, 1, shape->hidden, 1), s->normed = bench_tensor(b, 1, shape->hidden, 1);
    s->q = bench_tensor(b, 1, q, 1), s->k = bench_tensor(b, 1, kv, 1), s->v = bench_tensor(b, 1, kv, 1), s->att = bench_tensor(b, 1, q, 1);
    s->gate = bench_tensor(b, 1, shape->ffn, 1), s->up = bench_tensor(b, 1, shape->ffn, 1);
    s->table = case_table(b, 1, shape->d / 2, 1);
    s->norm = bench_floats(b, shape->hidden, 1), s->head_norm = bench_floats(b, shape->d, 1);
    s->span = bench_new(b, sizeof *s->span);
    *s->span = (struct kv_span){0, 1, shape->stored, 0};
}

static void step_reset(struct step *s)
{
    memcpy(s->x.data, s->first.data, s->x.cols * sizeof(float));
    for (int l = 0; l < LAYERS; l++)
        memcpy(s->p[l].table[0], s->pages_first[l], s->p[l].page_bytes * s->p[l].page_count);
}

static void layer(struct bench *b, struct step *s, const struct shape *shape, int l, bool each)
{
    struct weight *const *w = s->w[l];
    struct err err = {0};
    struct op_norm_linear in = {.x = s->x, .norm_w = s->norm, .eps = 1e-5f, .n = 3, .w = {w[W_Q], w[W_K], w[W_V]}, .y = {s->q, s->k, s->v}, .scratch = s->normed};
    struct op_attn_prepare prepare = {.q = s->q, .k = s->k, .v = s->v, .table = s->table, .n_heads = shape->heads, .head_dim = shape->d,
                                      .q_norm = shape->norms ? s->head_norm : NULL, .k_norm = shape->norms ? s->head_norm : NULL, .eps = 1e-5f,
                                      .pairing = ROPE_HALVES, .layer = &s->p[l].layer, .spans = s->span, .span_count = 1, .tables = s->p[0].tables};
    struct op_attention attend = {.q = s->q, .y = s->att, .n_heads = shape->heads, .layer = &s->p[l].layer, .spans = s->span, .span_count = 1,
                                  .tables = s->p[0].tables, .scale = 0.1f, .window = shape->window[l]};
    struct op_linear out = {.w = w[W_O], .x = s->att, .y = s->x, .alpha = 0.02f, .add = true}, down = {.w = w[W_DOWN], .x = s->gate, .y = s->x, .alpha = 0.02f, .add = true};
    struct op_norm_gated gated = {.x = s->x, .norm_w = s->norm, .eps = 1e-5f, .gate = w[W_GATE], .up = w[W_UP], .act = ACT_SILU, .y = s->gate,
                                  .scratch = s->normed, .scratch_gate = s->gate, .scratch_up = s->up};
    must(op_norm_linear(b->d, &in, &err), &err);
    if (each)
        bench_wait(b);
    must(op_attn_prepare(b->d, &prepare, &err), &err);
    must(op_attention(b->d, &attend, &err), &err);
    if (each)
        bench_wait(b);
    must(op_linear(b->d, &out, &err), &err);
    if (each)
        bench_wait(b);
    must(op_norm_gated(b->d, &gated, &err), &err);
    if (each)
        bench_wait(b);
    must(op_linear(b->d, &down, &err), &err);
    if (each)
        bench_wait(b);
}

static void run(struct bench *b, struct step *s, const struct shape *shape, bool each, struct outcome *out)
{
    step_reset(s);
    for (int l = 0; l < LAYERS; l++)
        layer(b, s, shape, l, each);
    bench_wait(b);
    *out = (struct outcome){.count = 0};
    keep(out, PART_FLOATS, s->x.data, s->x.cols * sizeof(float));
    keep(out, PART_FLOATS, s->att.data, s->att.cols * sizeof(float));
    keep(out, PART_FLOATS, s->gate.data, s->gate.cols * sizeof(float));
    for (int l = 0; l < LAYERS; l++)
        keep(out, PART_BYTES, s->p[l].table[0], s->p[l].page_bytes * s->p[l].page_count);
}

static void check(struct bench *b, const struct shape *shape, const struct random_kind *one, const struct random_kind *two)
{
    struct step s = {0};
    struct outcome first, other;
    step_open(b, &s, shape);
    weights_open(b, &s, shape, one, two);
    run(b, &s, shape, true, &first);
    for (int i = 0; i < REPEATS; i++) {
        run(b, &s, shape, false, &other);
        for (int p = 0; p < first.count; p++, compared++)
            if (memcmp(first.parts[p].data, other.parts[p].data, first.parts[p].size_bytes) && wrong++ < 20)
                printf("wrong: %s and %s, hidden %u, %u stored, time %d: part %d differs\n", one->name, two->name, shape->hidden, shape->stored, i, p);
        outcome_free(&other);
    }
    outcome_free(&first);
    for (int l = 0; l < LAYERS; l++) {
        free(s.pages_first[l]);
        for (int i = 0; i < W_COUNT; i++) {
            device_backend(b->d)->weight_free(b->d, s.w[l][i]);
            random_weight_free(&s.src[l][i]);
        }
    }
}

int main(int argc, char **argv)
{
    static const struct shape small[] = {{256, 512, 4, 2, 64, 0, {0, 0, 0}, false}, {512, 768, 4, 1, 128, 300, {0, 100, 0}, true},
                                         {1536, 2560, 12, 4, 128, 700, {0, 300, 40}, false}};
    static const struct shape large[] = {{4096, 14336, 32, 8, 128, 2100, {0, 0, 0}, false}, {2048, 6144, 16, 8, 80, 5000, {0, 600, 0}, true}};
    static struct random_kind kinds[96];
    static const char *const main_kinds[] = {"Q4_K", "BF16", "Q8_0", "Q6_K", "MLX 4 bit g64 BF16"};
    bool on_cuda = law_on_cuda(argc, argv);
    struct device_reserve reserve = {.rows_max = 5008, .cols_max = 14336, .heads_max = 32, .head_dim_max = 128, .context_max = 5008, .logit_rows_max = 1,
                                     .vocab_max = 8};
    struct bench b = {0};
    law_open(argc, argv, "ops_step_law", &reserve, &b.d);
    size_t n = random_kinds(kinds, sizeof kinds / sizeof *kinds);
    for (size_t i = 0; i < n; i++)
        check(&b, &small[i % 3], &kinds[i], &kinds[(i + 7) % n]);
    for (size_t i = 0; i < n && on_cuda; i++)
        for (size_t k = 0; k < sizeof main_kinds / sizeof *main_kinds; k++)
            if (strcmp(kinds[i].name, main_kinds[k]) == 0)
                check(&b, &large[k % 2], &kinds[i], &kinds[k == 0 ? i + 2 : i]);
    printf("%zu comparisons, %zu wrong\n", compared, wrong);
    bench_reset(&b, 0);
    device_backend(b.d)->device_close(b.d);
    return wrong != 0;
}
