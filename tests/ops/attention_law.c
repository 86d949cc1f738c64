/* tests/ops/attention_law.c - the first law at attention: what a row gives and what it stores are the same bytes however sequences are cut into spans and
 * steps.
 *
 * usage: ops_attention_law [cuda]     attn_prepare and attention of two sequences at once, against row by row, row by row with the other sequence beside,
 *                                     three and 150 spans of one row in a step, and spans of 37 */
#include "backend_cpu/backend_cpu.h"

#include "law_open.h"
#include "row_cases.h"

enum { LENGTH = 600, SEQS = 2, PAGES = (LENGTH + KV_PAGE - 1) / KV_PAGE };

struct shape {
    uint32_t d, heads, kv_heads, window, n_rope;
    float softcap;
    bool sinks, norms, v_norm; /* v_norm: V is normed by an op of its own before */
    enum rope_pairing pairing;
    enum kv_format kv;
};
struct way {
    const char *name;
    uint32_t rows;       /* of a sequence a step has */
    bool together, each; /* both sequences in a step; a span a row */
};

static size_t compared, wrong;

/* Inputs of all rows, [SEQS * LENGTH]; and what a step works on. */
struct work {
    struct pages p;
    struct tensor in[4], at[4], y, y_at; /* q, k, v, rope table */
    struct op_norm norm; /* of V */
    struct op_attn_prepare prepare;
    struct op_attention attend;
    bool v_norm;
    struct kv_span *spans;
};

static void work_open(struct bench *b, const struct shape *s, struct work *w)
{
    const uint32_t cols[] = {s->heads * s->d, s->kv_heads * s->d, s->kv_heads * s->d, 2 * s->n_rope}, rows = SEQS * LENGTH;
    bench_reset(b, s->d * 1000 + s->heads);
    w->p = pages_new(b, s->kv, s->kv, s->kv_heads, s->d, s->d, false, SEQS, LENGTH);
    for (int i = 0; i < 3; i++)
        w->in[i] = bench_tensor(b, rows, cols[i], 1);
    w->in[3] = s->n_rope ? case_table(b, rows, s->n_rope, 1) : (struct tensor){0};
    for (int i = 0; i < 4; i++)
        w->at[i] = cols[i] ? bench_tensor(b, rows, cols[i], 1) : (struct tensor){0};
    w->y = bench_tensor(b, rows, cols[0], 1), w->y_at = bench_tensor(b, rows, cols[0], 1);
    float *q_norm = bench_floats(b, s->d, 1), *k_norm = bench_floats(b, s->d, 1), *sinks = bench_floats(b, s->heads, 1);
    w->norm = (struct op_norm){.dim = s->d, .w = bench_floats(b, s->d, 1), .eps = 1e-5f, .scale = 1.0f};
    w->v_norm = s->v_norm;
    w->spans = bench_new(b, SEQS * LENGTH * sizeof *w->spans);
    w->prepare = (struct op_attn_prepare){.n_heads = s->heads, .head_dim = s->d, .q_norm = s->norms ? q_norm : NULL, .k_norm = s->norms ? k_norm : NULL,
                                          .eps = 1e-5f, .pairing = s->pairing, .layer = &w->p.layer, .spans = w->spans, .tables = w->p.tables};
    w->attend = (struct op_attention){.n_heads = s->heads, .layer = &w->p.layer, .spans = w->spans, .tables = w->p.tables, .scale = 0.3f,
                                      .softcap = s->softcap, .window = s->window, .sinks = s->sinks ? sinks : NULL};
}

static void row_copy(const struct tensor *to, uint32_t i, const struct tensor *from, uint32_t j)
{
    if (from->rows)
        memcpy((float *)to->data + (size_t)i * to->stride, (float *)from->data + (size_t)j * from->stride, from->cols * sizeof(float));
}

/* Rows [first, first + n) of the sequences [seq, seq_end). */
static void step(struct bench *b, struct work *w, const struct way *way, uint32_t first, uint32_t n, uint32_t seq, uint32_t seq_end)
{
    struct err err = {0};
    uint32_t rows = 0, spans = 0;
    for (uint32_t s = seq; s < seq_end; s++)
        for (uint32_t i = 0; i < n; i++, rows++) {
            for (int t = 0; t < 4; t++)
                row_copy(&w->at[t], rows, &w->in[t], s * LENGTH + first + i);
            if (i == 0 || way->each)
                w->spans[spans++] = (struct kv_span){rows, way->each ? 1 : n, first + i, s * PAGES};
        }
    w->prepare.q = w->attend.q = tensor_rows(w->at[0], 0, rows);
    w->prepare.k = tensor_rows(w->at[1], 0, rows), w->prepare.v = tensor_rows(w->at[2], 0, rows);
    w->prepare.table = w->at[3].rows ? tensor_rows(w->at[3], 0, rows) : w->at[3];
    w->attend.y = tensor_rows(w->y_at, 0, rows);
    w->prepare.span_count = w->attend.span_count = spans;
    w->norm.x = w->norm.y = w->prepare.v;
    if (w->v_norm)
        must(op_norm(b->d, &w->norm, &err), &err);
    must(op_attn_prepare(b->d, &w->prepare, &err), &err);
    must(op_attention(b->d, &w->attend, &err), &err);
    bench_wait(b);
    rows = 0;
    for (uint32_t s = seq; s < seq_end; s++)
        for (uint32_t i = 0; i < n; i++)
            row_copy(&w->y, s * LENGTH + first + i, &w->y_at, rows++);
}

static void run(struct bench *b, const struct shape *s, const struct way *way, struct outcome *out)
{
    struct work w;
    *out = (struct outcome){.count = 0};
    work_open(b, s, &w);
    for (uint32_t at = 0; at < LENGTH; at += way->rows) {
        uint32_t n = LENGTH - at < way->rows ? LENGTH - at : way->rows;
        for (uint32_t seq = 0; seq < SEQS; seq += way->together ? SEQS : 1)
            step(b, &w, way, at, n, seq, way->together ? SEQS : seq + 1);
    }
    keep_tensor(out, &w.y);
    keep(out, PART_BYTES, w.p.table[0], w.p.page_bytes * w.p.page_count);
}

static void compare(const struct shape *s, const struct way *way, const struct outcome *a, const struct outcome *b)
{
    const char *names[] = {"output", "pages"};
    for (int i = 0; i < a->count; i++, compared++)
        if (memcmp(a->parts[i].data, b->parts[i].data, a->parts[i].size_bytes) && ++wrong)
            printf("wrong: d %u, %u heads on %u, window %u, softcap %g, %s: %s differ\n", s->d, s->heads, s->kv_heads, s->window, (double)s->softcap, way->name,
                   names[i]);
}

int main(int argc, char **argv)
{
    static const struct way ways[] = {{"at once", LENGTH, true, false}, {"row by row", 1, false, true}, {"row by row, side by side", 1, true, true},
                                      {"three spans of a row", 3, true, true}, {"150 spans of a row", 150, true, true},
                                      {"spans of 37", 37, true, false}};
    static const struct shape shapes[] = {{128, 8, 2, 0, 64, 0, false, false, false, ROPE_ADJACENT, KV_F16},
                                          {128, 8, 2, 100, 64, 0, true, true, false, ROPE_HALVES, KV_F16},
                                          {64, 4, 4, 0, 16, 30, false, true, false, ROPE_HALVES, KV_F16},
                                          {64, 12, 1, 300, 32, 0, true, false, false, ROPE_HALVES, KV_F16},
                                          {80, 6, 2, 0, 40, 0, false, false, false, ROPE_HALVES, KV_F16},
                                          {96, 4, 1, 0, 0, 0, false, false, false, ROPE_HALVES, KV_F16},
                                          {128, 16, 4, 0, 64, 0, false, true, false, ROPE_HALVES, KV_F16},
                                          {64, 16, 2, 250, 32, 0, true, false, false, ROPE_ADJACENT, KV_F16},
                                          {128, 8, 4, 0, 64, 0, false, true, false, ROPE_HALVES, KV_Q8},
                                          {128, 16, 2, 290, 64, 0, true, false, false, ROPE_HALVES, KV_Q8},
                                          {128, 8, 4, 0, 64, 0, false, true, false, ROPE_HALVES, KV_BF16},
                                          {64, 8, 2, 290, 16, 0, true, false, false, ROPE_HALVES, KV_BF16},
                                          {256, 8, 4, 300, 128, 0, true, false, false, ROPE_HALVES, KV_F16},
                                          {512, 8, 1, 0, 64, 0, false, false, false, ROPE_HALVES, KV_F16},
                                          {256, 4, 2, 0, 128, 0, false, true, true, ROPE_HALVES, KV_F16},
                                          {256, 24, 2, 0, 32, 20, true, true, false, ROPE_ADJACENT, KV_F16},
                                          {512, 8, 2, 0, 256, 0, false, true, true, ROPE_HALVES, KV_F16},
                                          {512, 12, 1, 100, 256, 0, true, true, false, ROPE_ADJACENT, KV_F16}};
    struct device_reserve reserve = {.rows_max = SEQS * LENGTH, .cols_max = 6144, .heads_max = 24, .head_dim_max = 512, .context_max = LENGTH,
                                     .logit_rows_max = 1, .vocab_max = 8};
    struct bench b = {0};
    law_open(argc, argv, "ops_attention_law", &reserve, &b.d);
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        struct outcome whole, other;
        run(&b, &shapes[i], &ways[0], &whole);
        for (size_t k = 1; k < sizeof ways / sizeof *ways; k++) {
            run(&b, &shapes[i], &ways[k], &other);
            compare(&shapes[i], &ways[k], &whole, &other);
            outcome_free(&other);
        }
        outcome_free(&whole);
    }
    printf("%zu comparisons, %zu wrong\n", compared, wrong);
    bench_reset(&b, 0);
    device_backend(b.d)->device_close(b.d);
    return wrong != 0;
}
