/* tests/ops/row_cases.h - inputs for every op but linear and embed: one list of cases, run on any device of any backend.
 *
 * A case fills `out` with what the op left behind: floats (compared by tolerance between backends, by bytes between levels), bytes and
 * ids (always by bytes).  Pages start as 0xff bytes (NaN in every float format), so a read of what a row may not see shows up. */
#ifndef RH_TESTS_ROW_CASES_H
#define RH_TESTS_ROW_CASES_H

#include "tensor/backend.h"
#include "tensor/kv_codec.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum part_kind { PART_FLOATS, PART_BYTES };
struct part {
    enum part_kind kind;
    void *data;
    size_t size_bytes;
};
struct outcome {
    struct part parts[8];
    int count;
};

static inline void outcome_free(struct outcome *o)
{
    for (int i = 0; i < o->count; i++)
        free(o->parts[i].data);
    o->count = 0;
}

/* a device under test and what was allocated on it */
struct bench {
    struct device *d;
    uint64_t random;
    void *owned[64];
    size_t owned_bytes[64];
    int owned_count;
    struct err refused; /* the first op of the case that the backend does not have; the case's outcome says nothing then */
};

static inline void must(int rc, const struct err *err)
{
    if (!rc)
        return;
    fprintf(stderr, "failed: %s\n", err->text);
    exit(1);
}

/* A refusal is noted and the case goes on without the op; any other failure ends the program. */
static inline void tried(struct bench *b, int rc, const struct err *err)
{
    if (rc == ERR_UNSUPPORTED) {
        b->refused = b->refused.code ? b->refused : *err;
        return;
    }
    must(rc, err);
}

static inline uint32_t bench_u32(struct bench *b)
{
    b->random = b->random * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(b->random >> 32);
}
/* roughly normal, deviation 1, now and then an outlier, a zero or a negative zero */
static inline float bench_value(struct bench *b)
{
    float v = 0;
    for (int i = 0; i < 3; i++)
        v += (float)(int32_t)bench_u32(b) / 2147483648.0f;
    uint32_t special = bench_u32(b) % 200;
    return special == 0 ? 12 * v : special == 1 ? 0.0f : special == 2 ? -0.0f : v;
}

static inline void *bench_new(struct bench *b, size_t size_bytes)
{
    struct err err = {0};
    void *p;
    must(device_backend(b->d)->buffer_new(b->d, size_bytes, &p, &err), &err);
    b->owned[b->owned_count] = p;
    b->owned_bytes[b->owned_count++] = size_bytes;
    return p;
}
static inline void bench_reset(struct bench *b, uint64_t seed)
{
    for (int i = 0; i < b->owned_count; i++)
        device_backend(b->d)->buffer_free(b->d, b->owned[i], b->owned_bytes[i]);
    b->owned_count = 0;
    b->refused = (struct err){0};
    b->random = seed * 0x9e3779b97f4a7c15u + 1;
}
static inline float *bench_floats(struct bench *b, size_t n, float by)
{
    float *p = bench_new(b, n * sizeof *p);
    for (size_t i = 0; i < n; i++)
        p[i] = bench_value(b) * by;
    return p;
}
static inline struct tensor bench_tensor(struct bench *b, uint32_t rows, uint32_t cols, float by)
{
    uint32_t stride = cols + 5;
    return (struct tensor){bench_floats(b, (size_t)rows * stride, by), rows, cols, stride};
}
static inline void bench_wait(struct bench *b)
{
    struct err err = {0};
    uint64_t event = 0;
    int rc = device_backend(b->d)->event_record(b->d, &event);
    must(device_backend(b->d)->event_wait(b->d, rc ? 0 : event, &err), &err);
    must(rc, &err);
}
static inline void keep(struct outcome *o, enum part_kind kind, const void *p, size_t size_bytes)
{
    struct part *part = o->parts + o->count++;
    *part = (struct part){kind, malloc(size_bytes ? size_bytes : 1), size_bytes};
    memcpy(part->data, p, size_bytes);
}
static inline void keep_tensor(struct outcome *o, const struct tensor *t)
{
    keep(o, PART_FLOATS, t->data, (size_t)t->rows * t->stride * sizeof(float));
}

/* ---- pages ---- */

struct pages {
    struct kv_layer layer;
    unsigned char **table; /* [page_count] */
    size_t page_bytes;
    uint32_t page_count;
    uint32_t *tables;      /* page ids of all sequences, one after the other */
};

/* Room for `sequences` sequences of `positions`; page ids shuffled. */
static inline struct pages pages_new(struct bench *b, enum kv_format kf, enum kv_format vf, uint32_t heads, uint32_t d_k, uint32_t d_v,
                                     bool latent, uint32_t sequences, uint32_t positions)
{
    struct pages p = {.page_count = sequences * ((positions + KV_PAGE - 1) / KV_PAGE)};
    p.layer = (struct kv_layer){.k_format = kf, .v_format = vf, .n_kv_heads = heads, .d_k = d_k, .d_v = d_v, .offset = 128, .latent = latent};
    p.layer.head_bytes = kv_layer_head_bytes(&p.layer);
    p.page_bytes = 128 + (size_t)heads * p.layer.head_bytes;
    p.page_bytes = (p.page_bytes + 63) / 64 * 64;
    unsigned char *memory = bench_new(b, p.page_bytes * p.page_count);
    memset(memory, 0xff, p.page_bytes * p.page_count);
    p.table = bench_new(b, p.page_count * sizeof *p.table);
    p.tables = bench_new(b, p.page_count * sizeof *p.tables);
    for (uint32_t i = 0; i < p.page_count; i++) {
        p.table[i] = memory + i * p.page_bytes;
        p.tables[i] = i;
    }
    for (uint32_t i = p.page_count; i-- > 1;) {
        uint32_t j = bench_u32(b) % (i + 1), t = p.tables[i];
        p.tables[i] = p.tables[j], p.tables[j] = t;
    }
    p.layer.pages = p.table;
    return p;
}

/* Store random K and V at positions [0, n) of a sequence. */
static inline void pages_fill(struct bench *b, struct pages *p, uint32_t table_first, uint32_t n)
{
    struct err err = {0};
    struct tensor k = bench_tensor(b, n, p->layer.n_kv_heads * p->layer.d_k, 1), v = {0};
    if (!p->layer.latent)
        v = bench_tensor(b, n, p->layer.n_kv_heads * p->layer.d_v, 1);
    struct kv_span *span = bench_new(b, sizeof *span);
    *span = (struct kv_span){0, n, 0, table_first};
    struct op_kv_write op = {.k = k, .v = v, .layer = &p->layer, .spans = span, .span_count = 1, .tables = p->tables};
    tried(b, op_kv_write(b->d, &op, &err), &err);
    bench_wait(b);
}

/* ---- the cases ---- */

struct row_case {
    const char *what;
    double tolerance; /* between backends: |a - b| <= tolerance * max(1, largest |b| of the part) */
    void (*run)(struct bench *b, struct outcome *out, const struct row_case *c);
    uint32_t rows, cols, n, m;     /* meaning by op */
    float a, c;
    enum kv_format k, v;
    uint32_t heads, kv_heads, d_k, d_v, window;
    bool latent;
    int variant;
    bool sinks;
};

static inline void case_norm(struct bench *b, struct outcome *out, const struct row_case *c)
{
    struct err err = {0};
    struct tensor x = bench_tensor(b, c->rows, c->cols * c->n, c->variant == 2 ? 1e-4f : 1), y = bench_tensor(b, c->rows, c->cols * c->n, 1);
    struct op_norm op = {.x = x, .y = y, .dim = c->cols, .w = bench_floats(b, x.cols, 1), .eps = 1e-5f, .add = c->variant == 1,
                         .scale = c->a, .own = c->variant >= 2, .centred = c->variant == 3};
    tried(b, op_norm(b->d, &op, &err), &err);
    bench_wait(b);
    keep_tensor(out, &y);
    if (c->variant == 1)
        return;
    op.y = op.x; /* in place */
    tried(b, op_norm(b->d, &op, &err), &err);
    bench_wait(b);
    keep_tensor(out, &x);
}

static inline uint32_t *case_positions(struct bench *b, uint32_t rows)
{
    uint32_t *pos = bench_new(b, rows * sizeof *pos);
    for (uint32_t r = 0; r < rows; r++)
        pos[r] = r < 3 ? r : bench_u32(b) % (1u << 20);
    return pos;
}
static inline struct tensor case_table(struct bench *b, uint32_t rows, uint32_t n, float mscale)
{
    struct err err = {0};
    float *inv = bench_new(b, n * sizeof *inv);
    for (uint32_t i = 0; i < n; i++)
        inv[i] = i == 0 ? 1.0f : inv[i - 1] * 0.79f;
    struct op_rope_table op = {.pos = case_positions(b, rows), .inv_freq = inv, .n = n, .mscale = mscale, .table = bench_tensor(b, rows, 2 * n, 1)};
    tried(b, op_rope_table(b->d, &op, &err), &err);
    bench_wait(b);
    return op.table;
}
static inline void case_rope(struct bench *b, struct outcome *out, const struct row_case *c)
{
    struct err err = {0};
    struct tensor table = case_table(b, c->rows, c->n, c->a), x = bench_tensor(b, c->rows, c->m * c->cols, 1);
    struct op_rope op = {.x = x, .n_heads = c->m, .head_dim = c->cols, .first = c->window, .table = table,
                         .pairing = (enum rope_pairing)c->variant};
    tried(b, op_rope(b->d, &op, &err), &err);
    bench_wait(b);
    keep_tensor(out, &table);
    keep_tensor(out, &x);
}

static inline void case_gated(struct bench *b, struct outcome *out, const struct row_case *c)
{
    struct err err = {0};
    struct op_gated op = {.gate = bench_tensor(b, c->rows, c->cols, c->a), .up = bench_tensor(b, c->rows, c->cols, 1),
                          .y = bench_tensor(b, c->rows, c->cols, 1), .act = (enum act)c->variant};
    tried(b, op_gated(b->d, &op, &err), &err);
    bench_wait(b);
    keep_tensor(out, &op.y);
}
static inline void case_xielu(struct bench *b, struct outcome *out, const struct row_case *c)
{
    struct err err = {0};
    struct op_xielu op = {.x = bench_tensor(b, c->rows, c->cols, c->a), .alpha_p = 0.8f, .alpha_n = 0.9f, .beta = 0.5f, .eps = -1e-6f};
    tried(b, op_xielu(b->d, &op, &err), &err);
    bench_wait(b);
    keep_tensor(out, &op.x);
}
static inline void case_add(struct bench *b, struct outcome *out, const struct row_case *c)
{
    struct err err = {0};
    struct op_add op = {.x = bench_tensor(b, c->rows, c->cols, 1), .y = bench_tensor(b, c->rows, c->cols, 1), .x_scale = c->a, .y_scale = c->c};
    tried(b, op_add(b->d, &op, &err), &err);
    bench_wait(b);
    keep_tensor(out, &op.y);
}
static inline void case_scale(struct bench *b, struct outcome *out, const struct row_case *c)
{
    struct err err = {0};
    struct op_scale op = {.x = bench_tensor(b, c->rows, c->cols, 1), .scale = c->a, .w = c->variant ? bench_floats(b, c->cols, 1) : NULL};
    tried(b, op_scale(b->d, &op, &err), &err);
    bench_wait(b);
    keep_tensor(out, &op.x);
}
static inline void case_blend(struct bench *b, struct outcome *out, const struct row_case *c)
{
    struct err err = {0};
    struct op_blend op = {.n = c->n, .m = c->m, .coef = bench_tensor(b, c->rows, c->n * c->m, 1), .shift = c->a};
    for (uint32_t j = 0; j < c->n; j++)
        op.x[j] = bench_tensor(b, c->rows, c->cols, 1);
    for (uint32_t i = 0; i < c->m; i++) {
        op.base[i] = bench_tensor(b, c->rows, c->cols, 1);
        op.y[i] = i % 2 ? op.base[i] : bench_tensor(b, c->rows, c->cols, 1);
    }
    tried(b, op_blend(b->d, &op, &err), &err);
    bench_wait(b);
    for (uint32_t i = 0; i < c->m; i++)
        keep_tensor(out, &op.y[i]);
}
static inline void case_match(struct bench *b, struct outcome *out, const struct row_case *c)
{
    struct err err = {0};
    struct op_match op = {.x = bench_tensor(b, c->rows, c->cols, 1), .y = bench_tensor(b, c->rows, c->cols, c->a), .least = 1e-5f};
    tried(b, op_match(b->d, &op, &err), &err);
    bench_wait(b);
    keep_tensor(out, &op.y);
}
static inline void case_sparsify(struct bench *b, struct outcome *out, const struct row_case *c)
{
    struct err err = {0};
    struct op_sparsify op = {.x = bench_tensor(b, c->rows, c->cols, 1), .factor = c->a};
    tried(b, op_sparsify(b->d, &op, &err), &err);
    bench_wait(b);
    keep_tensor(out, &op.x);
}
static inline void case_softcap(struct bench *b, struct outcome *out, const struct row_case *c)
{
    struct err err = {0};
    struct op_softcap op = {.x = bench_tensor(b, c->rows, c->cols, c->a), .cap = c->c};
    tried(b, op_softcap(b->d, &op, &err), &err);
    bench_wait(b);
    keep_tensor(out, &op.x);
}
static inline void case_gather(struct bench *b, struct outcome *out, const struct row_case *c)
{
    struct err err = {0};
    uint32_t *rows = bench_new(b, c->n * sizeof *rows);
    for (uint32_t i = 0; i < c->n; i++)
        rows[i] = bench_u32(b) % c->rows;
    struct op_gather op = {.x = bench_tensor(b, c->rows, c->cols, 1), .y = bench_tensor(b, c->n, c->cols, 1), .rows = rows};
    tried(b, op_gather(b->d, &op, &err), &err);
    bench_wait(b); /* what copy_in reads is the host's and does not change */
    size_t bytes = (size_t)op.y.rows * op.y.stride * sizeof(float);
    struct op_copy_in in = {bench_new(b, bytes), op.y.data, bytes};
    struct op_copy copy = {bench_new(b, bytes), in.dst, bytes};
    struct op_copy_out back = {bench_new(b, bytes), copy.dst, bytes};
    tried(b, op_copy_in(b->d, &in, &err), &err);
    tried(b, op_copy(b->d, &copy, &err), &err);
    tried(b, op_copy_out(b->d, &back, &err), &err);
    bench_wait(b);
    keep(out, PART_BYTES, back.dst, bytes);
}

/* kv_write, or attn_prepare: two spans of different sequences, the second starting inside a page. */
static inline void case_store(struct bench *b, struct outcome *out, const struct row_case *c)
{
    struct err err = {0};
    uint32_t positions = 3 * KV_PAGE, rows = c->rows;
    struct pages p = pages_new(b, c->k, c->v, c->kv_heads, c->d_k, c->d_v, c->latent, 2, positions);
    uint32_t first = rows / 3;
    struct kv_span *spans = bench_new(b, 2 * sizeof *spans);
    spans[0] = (struct kv_span){0, first, 0, 0};
    spans[1] = (struct kv_span){first, rows - first, 17, 3};
    struct tensor k = bench_tensor(b, rows, c->kv_heads * c->d_k, c->a), v = {0};
    if (!c->latent)
        v = bench_tensor(b, rows, c->kv_heads * c->d_v, c->a);
    uint32_t from = first ? 0 : 1;
    if (c->variant == 0) {
        struct op_kv_write op = {.k = k, .v = v, .layer = &p.layer, .spans = spans + from, .span_count = 2 - from, .tables = p.tables};
        tried(b, op_kv_write(b->d, &op, &err), &err);
    } else {
        struct tensor q = bench_tensor(b, rows, c->heads * c->d_k, 1), none = {0};
        struct op_attn_prepare op = {.q = q, .k = k, .v = v, .n_heads = c->heads, .head_dim = c->d_k,
                                     .q_norm = c->variant & 2 ? bench_floats(b, c->d_k, 1) : NULL,
                                     .k_norm = c->variant & 2 ? bench_floats(b, c->d_k, 1) : NULL, .eps = 1e-6f,
                                     .table = c->variant & 4 ? case_table(b, rows, c->d_k / 2 - (c->variant & 8 ? 4 : 0), 1) : none,
                                     .pairing = c->variant & 8 ? ROPE_ADJACENT : ROPE_HALVES, .layer = &p.layer, .spans = spans + from,
                                     .span_count = 2 - from, .tables = p.tables};
        tried(b, op_attn_prepare(b->d, &op, &err), &err);
        bench_wait(b);
        keep_tensor(out, &q);
        keep_tensor(out, &k);
    }
    bench_wait(b);
    /* norms differ in the last bit between backends, so stored bytes may too: then they count as part of attention's error */
    if (c->variant < 2)
        keep(out, PART_BYTES, p.table[0], p.page_bytes * p.page_count);
}

/* What one layer's pages hold (variant 0: f16, 1: f32, 2: q8), as another stores it; the last page is not full. */
static inline void case_convert(struct bench *b, struct outcome *out, const struct row_case *c)
{
    struct err err = {0};
    enum kv_format early = c->variant == 0 ? KV_F16 : c->variant == 1 ? KV_F32 : KV_Q8;
    uint32_t positions = 2 * KV_PAGE + 17;
    struct pages from = pages_new(b, early, early, c->kv_heads, c->d_k, c->d_v, c->latent, 1, positions);
    struct pages to = pages_new(b, c->k, c->v, c->kv_heads, c->d_k, c->d_v, c->latent, 1, positions);
    pages_fill(b, &from, 0, positions);
    struct op_kv_convert op = {.from = &from.layer, .to = &to.layer, .page_count = 3, .positions_last = 17};
    for (uint32_t i = 0; i < op.page_count; i++)
        op.from_pages[i] = from.tables[i], op.to_pages[i] = to.tables[i];
    tried(b, op_kv_convert(b->d, &op, &err), &err);
    bench_wait(b);
    keep(out, PART_BYTES, to.table[0], to.page_bytes * to.page_count);
}

/* The CPU backend takes queries of code formats to 16-bit integers per 32, turned first (docs/arithmetic.md): the reference gets what that stands
 * for, so what is left to compare is sums of floats. */
static inline void case_quantise(struct tensor *q, enum kv_format f, uint32_t d)
{
    struct kv_shape s = kv_shape_of(f, d);
    for (uint32_t r = 0; s.code != KV_CODE_FLOAT && r < q->rows; r++)
        for (uint32_t h = 0; h < q->cols / d; h++) {
            float *x = (float *)q->data + (size_t)r * q->stride + (size_t)h * d;
            kv_turn(&s, x, d);
            for (uint32_t b = 0; b < d; b += 32) {
                float most = 0;
                for (uint32_t e = b; e < b + 32; e++)
                    most = fabsf(x[e]) > most ? fabsf(x[e]) : most;
                for (uint32_t e = b; e < b + 32; e++)
                    x[e] = most < 1e-30f ? 0 : nearbyintf(x[e] * (32767 / most)) * (most / 32767);
            }
            kv_turn_back(&s, x, d);
        }
}

/* Attention of `rows` rows that end at position `n` - 1 (variant 1: the same cut into single rows; 2: into pieces of 7), and of one
 * more sequence with a single row. */
static inline void case_attention(struct bench *b, struct outcome *out, const struct row_case *c)
{
    struct err err = {0};
    struct pages p = pages_new(b, c->k, c->v, c->kv_heads, c->d_k, c->d_v, c->latent, 2, c->n);
    uint32_t per = (c->n + KV_PAGE - 1) / KV_PAGE, other = c->m ? c->m : 1, count = 0, cut = c->variant == 1 ? 1 : c->variant == 2 ? 7 : c->rows;
    pages_fill(b, &p, 0, c->n);
    pages_fill(b, &p, per, other);
    struct kv_span *spans = bench_new(b, (c->rows + 1) * sizeof *spans);
    for (uint32_t at = 0; at < c->rows; at += cut)
        spans[count++] = (struct kv_span){at, at + cut < c->rows ? cut : c->rows - at, c->n - c->rows + at, 0};
    spans[count++] = (struct kv_span){c->rows, 1, other - 1, per};
    struct op_attention op = {.q = bench_tensor(b, c->rows + 1, c->heads * c->d_k, 1), .y = bench_tensor(b, c->rows + 1, c->heads * c->d_v, 1),
                              .n_heads = c->heads, .layer = &p.layer, .spans = spans, .span_count = count, .tables = p.tables,
                              .scale = c->a, .softcap = c->c, .window = c->window,
                              .sinks = c->sinks ? bench_floats(b, c->heads, 3) : NULL};
    if (strcmp(device_backend(b->d)->name, "ref") == 0)
        case_quantise(&op.q, c->k, c->d_k);
    tried(b, op_attention(b->d, &op, &err), &err);
    bench_wait(b);
    keep_tensor(out, &op.y);
}

/* ---- experts ---- */

/* Bits of the variant: 1 a bias of the choice, 2 groups, 4 normalise and scale, 8 a scale of each expert, 16 ids given, 32 many ties. */
static inline void case_route(struct bench *b, struct outcome *out, const struct row_case *c)
{
    struct err err = {0};
    uint32_t slots = c->rows * c->n;
    struct op_route op = {.logits = bench_tensor(b, c->rows, c->cols, 2), .score = (enum route_score)c->m, .top = c->n, .scale = 1,
                          .bias = c->variant & 1 ? bench_floats(b, c->cols, 0.1f) : NULL, .ids = bench_new(b, slots * sizeof *op.ids),
                          .weights = bench_new(b, slots * sizeof *op.weights), .replay = (c->variant & 16) != 0};
    if (c->variant & 2)
        op.groups = 4, op.group_top = 2, op.group_best = 2;
    if (c->variant & 4)
        op.normalise = true, op.scale = 2.5f;
    if (c->variant & 8)
        op.expert_scale = bench_floats(b, c->cols, 1);
    for (uint32_t i = 0; i < slots; i++)
        op.ids[i] = bench_u32(b) % c->cols;
    float *logits = op.logits.data;
    for (size_t i = 0; c->variant & 32 && i < (size_t)c->rows * op.logits.stride; i++)
        logits[i] = nearbyintf(logits[i]);
    tried(b, op_route(b->d, &op, &err), &err);
    bench_wait(b);
    keep(out, PART_BYTES, op.ids, slots * sizeof *op.ids);
    keep(out, PART_FLOATS, op.weights, slots * sizeof *op.weights);
}
static inline void case_expert_sum(struct bench *b, struct outcome *out, const struct row_case *c)
{
    struct err err = {0};
    struct op_expert_sum op = {.x = bench_tensor(b, c->rows * c->n, c->cols, 1), .y = bench_tensor(b, c->rows, c->cols, 1),
                               .weights = bench_floats(b, (size_t)c->rows * c->n, 0.5f), .add = c->variant != 0};
    tried(b, op_expert_sum(b->d, &op, &err), &err);
    bench_wait(b);
    keep_tensor(out, &op.y);
}

/* ---- recurrent layers ---- */

enum cut { CUT_WHOLE, CUT_ONES, CUT_SEVENS, CUT_REFUSED, CUT_COUNT };

struct state_case {
    struct state_layer layer;
    uint32_t *tables; /* ids of the first sequence's blocks, then of the second's */
    uint32_t blocks;  /* of each */
};

/* Blocks of two sequences of `positions`. */
static inline struct state_case state_new(struct bench *b, struct state_shape shape, uint32_t positions)
{
    struct state_layout lay;
    state_layout(&shape, &lay);
    struct state_case s = {.layer = {.shape = shape}, .blocks = positions / shape.anchor + 1};
    uint32_t count = 2 * s.blocks + 1;
    size_t bytes = 64 + lay.size_bytes;
    struct state_part *parts = bench_new(b, shape.heads * sizeof *parts);
    for (uint32_t h = 0; h < shape.heads; h++) {
        unsigned char **pages = bench_new(b, count * sizeof *pages), *memory = bench_new(b, count * bytes);
        memset(memory, 0xff, count * bytes);
        for (uint32_t i = 0; i < count; i++)
            pages[i] = memory + i * bytes;
        parts[h] = (struct state_part){pages, 64};
    }
    s.layer.parts = parts;
    s.tables = bench_new(b, 2 * s.blocks * sizeof *s.tables);
    for (uint32_t i = 0; i < 2 * s.blocks; i++)
        s.tables[i] = 2 * s.blocks - i;
    return s;
}

/* The op of the case over the step's spans; rows of x are [first, first + rows) of the text. */
struct state_op {
    struct op_short_conv conv;
    struct op_delta_net delta;
    struct op_mamba mamba;
    struct tensor qkv, a, b; /* what the op overwrites, as it was */
    bool is_delta, is_mamba;
};

static inline void tensor_copy(const struct tensor *to, const struct tensor *from, uint32_t first, uint32_t rows)
{
    for (uint32_t r = 0; r < rows; r++)
        memcpy((float *)to->data + (size_t)(first + r) * to->stride, (const float *)from->data + (size_t)(first + r) * from->stride,
               to->cols * sizeof(float));
}

/* `first` rows of the text come before the step's; `wrong`: other values in their place, to be refused. */
static inline void state_step(struct bench *b, struct state_op *o, const struct kv_span *spans, uint32_t count, uint32_t first, uint32_t rows,
                              float wrong)
{
    struct err err = {0};
    struct tensor *x = o->is_delta ? &o->delta.qkv : o->is_mamba ? &o->mamba.xbc : &o->conv.x;
    tensor_copy(x, &o->qkv, first, rows);
    for (uint32_t r = 0; wrong != 0 && r < rows; r++)
        ((float *)x->data)[(size_t)(first + r) * x->stride] += wrong;
    if (o->is_delta) {
        tensor_copy(&o->delta.a, &o->a, first, rows);
        tensor_copy(&o->delta.b, &o->b, first, rows);
        o->delta.spans = spans, o->delta.span_count = count;
        tried(b, op_delta_net(b->d, &o->delta, &err), &err);
    } else if (o->is_mamba) {
        tensor_copy(&o->mamba.dt, &o->a, first, rows);
        o->mamba.spans = spans, o->mamba.span_count = count;
        tried(b, op_mamba(b->d, &o->mamba, &err), &err);
    } else {
        o->conv.spans = spans, o->conv.span_count = count;
        tried(b, op_short_conv(b->d, &o->conv, &err), &err);
    }
    bench_wait(b);
}

/* `rows` rows of one sequence, cut as the variant says, and five of another beside its first step. */
static inline void state_run(struct bench *b, struct outcome *out, const struct row_case *c, struct state_case *s, struct state_op *o)
{
    const uint32_t anchor = s->layer.shape.anchor, others = 5, block = (c->rows - 1) / anchor;
    struct kv_span *spans = bench_new(b, (c->rows + 1) * sizeof *spans);
    uint32_t n = 0, kept[64];
    memcpy(kept, s->tables, s->blocks * sizeof *kept);
    if (c->variant == CUT_WHOLE || c->variant == CUT_ONES) {
        uint32_t cut = c->variant == CUT_ONES ? 1 : c->rows;
        for (uint32_t i = 0; c->variant == CUT_WHOLE && i < block; i++)
            s->tables[i] = 0; /* passed by */
        for (uint32_t at = 0; at < c->rows; at += cut)
            spans[n++] = (struct kv_span){at, cut, at, 0};
        spans[n++] = (struct kv_span){c->rows, others, 0, s->blocks};
        state_step(b, o, spans, n, 0, c->rows + others, 0);
    } else {
        for (uint32_t at = 0; at < c->rows; at += 7) {
            uint32_t take = c->rows - at < 7 ? c->rows - at : 7, more = c->variant == CUT_REFUSED ? anchor + 1 : 0;
            more = at + more < c->rows ? more : 0;
            spans[0] = (struct kv_span){at, more, at, 0};
            if (more)
                state_step(b, o, spans, 1, at, more, 0.5f);
            spans[0] = (struct kv_span){at, take, at, 0};
            state_step(b, o, spans, 1, at, take, 0);
        }
        spans[0] = (struct kv_span){c->rows, others, 0, s->blocks};
        state_step(b, o, spans, 1, c->rows, others, 0);
    }
    keep_tensor(out, o->is_delta ? &o->delta.y : o->is_mamba ? &o->mamba.y : &o->conv.y);
    struct state_layout lay; /* the state the last block starts from */
    state_layout(&s->layer.shape, &lay);
    const struct state_part *part = &s->layer.parts[s->layer.shape.heads - 1];
    const float *last = (const float *)(const void *)(part->pages[kept[block]] + part->offset);
    size_t size = (size_t)s->layer.shape.values * s->layer.shape.d_k * s->layer.shape.d_v;
    if (block) {
        keep(out, PART_FLOATS, last + lay.tail, (size_t)(s->layer.shape.taps - 1) * s->layer.shape.channels * sizeof(float));
        keep(out, PART_FLOATS, last + lay.state, size * sizeof(float));
    }
}

static inline void case_short_conv(struct bench *b, struct outcome *out, const struct row_case *c)
{
    uint32_t rows = c->rows + 5;
    struct state_case s = state_new(b, (struct state_shape){.anchor = c->m, .heads = 1, .channels = c->cols, .taps = c->n}, c->rows);
    struct state_op o = {.qkv = bench_tensor(b, rows, 3 * c->cols, 1)};
    o.conv = (struct op_short_conv){.x = bench_tensor(b, rows, 3 * c->cols, 1), .y = bench_tensor(b, rows, c->cols, 1),
                                    .w = bench_floats(b, (size_t)c->n * c->cols, 1), .bias = c->window ? bench_floats(b, c->cols, 1) : NULL,
                                    .layer = &s.layer, .tables = s.tables};
    state_run(b, out, c, &s, &o);
}

static inline void case_delta_net(struct bench *b, struct outcome *out, const struct row_case *c)
{
    uint32_t rows = c->rows + 5, values = c->heads, heads = c->kv_heads, all = heads * values;
    struct state_shape shape = {.anchor = c->m, .heads = heads, .channels = 2 * c->d_k + values * c->d_v, .taps = c->n, .values = values,
                                .d_k = c->d_k, .d_v = c->d_v};
    struct state_case s = state_new(b, shape, c->rows);
    uint32_t cols = heads * shape.channels;
    struct state_op o = {.qkv = bench_tensor(b, rows, cols, 1), .a = bench_tensor(b, rows, all, 2), .b = bench_tensor(b, rows, all, 2),
                         .is_delta = true};
    float *rate = bench_floats(b, all, 1);
    for (uint32_t i = 0; i < all; i++)
        rate[i] = -expf(rate[i] * 3 + (i % 2 ? 0 : -3)); /* from hardly forgetting to forgetting at once */
    o.delta = (struct op_delta_net){.qkv = bench_tensor(b, rows, cols, 1), .a = bench_tensor(b, rows, all, 1), .b = bench_tensor(b, rows, all, 1),
                                    .y = bench_tensor(b, rows, all * c->d_v, 1), .conv = bench_floats(b, (size_t)c->n * cols, 0.7f),
                                    .rate = rate, .dt_bias = bench_floats(b, all, 1), .eps = 1e-6f, .tiled = c->window != 0,
                                    .layer = &s.layer, .tables = s.tables};
    state_run(b, out, c, &s, &o);
}

static inline void case_mamba(struct bench *b, struct outcome *out, const struct row_case *c)
{
    uint32_t rows = c->rows + 5, values = c->heads, groups = c->kv_heads, all = groups * values;
    struct state_shape shape = {.anchor = c->m, .heads = groups, .channels = 2 * c->d_k + values * c->d_v, .taps = c->n, .values = values,
                                .d_k = c->d_k, .d_v = c->d_v};
    struct state_case s = state_new(b, shape, c->rows);
    uint32_t cols = groups * shape.channels;
    struct state_op o = {.qkv = bench_tensor(b, rows, cols, 1), .a = bench_tensor(b, rows, all, 2), .is_mamba = true};
    float *rate = bench_floats(b, all, 1);
    for (uint32_t i = 0; i < all; i++)
        rate[i] = -expf(rate[i] * 3 + (i % 2 ? 0 : -3));
    o.mamba = (struct op_mamba){.xbc = bench_tensor(b, rows, cols, 1), .dt = bench_tensor(b, rows, all, 1), .times = bench_tensor(b, rows, all, 1),
                                .y = bench_tensor(b, rows, all * c->d_v, 1), .conv = bench_floats(b, (size_t)c->n * cols, 0.7f),
                                .conv_bias = c->window ? bench_floats(b, cols, 1) : NULL, .rate = rate, .dt_bias = bench_floats(b, all, 1),
                                .skip = bench_floats(b, all, 1), .dt_least = c->window ? 0.3f : 0.0f, .layer = &s.layer, .tables = s.tables};
    state_run(b, out, c, &s, &o);
}

/* Attention's tolerance.  A score is one chain of d fused roundings.  One value in 200 is an outlier of up to 36, so running sums reach
 * P = 36 * 3; the roundings behind it err 0.41 u P each (rms, u = 2^-24), the score by 0.41 u P sqrt(d) times the scale 1 / sqrt(d) =
 * 2.6e-6, whatever d is.  y moves by p (1 - p) <= 1/4 of that times the difference of two v, at most twice the largest: 1.3e-6.  Three
 * deviations. */
#define ATTENTION 4e-6

/* The list.  Returns how many; fills `cases` when it is not NULL. */
static inline size_t row_cases(struct row_case *cases)
{
    size_t n = 0;
#define CASE(...)                                 \
    {                                             \
        struct row_case one = {__VA_ARGS__};      \
        if (cases)                                \
            cases[n] = one;                       \
        n++;                                      \
    }
    static const uint32_t dims[] = {1, 7, 8, 15, 16, 17, 33, 64, 576, 2053};
    for (size_t i = 0; i < sizeof dims / sizeof *dims; i++) {
        CASE("norm", 2e-6, case_norm, .rows = 3, .cols = dims[i], .n = 1)
        CASE("norm groups", 2e-6, case_norm, .rows = 2, .cols = dims[i], .n = 3, .variant = 2)
        CASE("norm add", 2e-6, case_norm, .rows = 1, .cols = dims[i], .n = 1, .variant = 1, .a = i % 2 ? 1.0f : 0.22f)
        CASE("norm centred", 2e-6, case_norm, .rows = 2, .cols = dims[i], .n = 2, .variant = 3)
        CASE("xielu", 1e-6, case_xielu, .rows = 2, .cols = dims[i], .a = i % 2 ? 3.0f : 1e-3f)
        CASE("add", 1e-6, case_add, .rows = 3, .cols = dims[i], .a = i % 2 ? 1.0f : 0.3f, .c = i % 3 ? 1.0f : 0.7f)
        CASE("scale", i % 2 ? 1e-6 : 0, case_scale, .rows = 3, .cols = dims[i], .a = 0.37f, .variant = i % 2)
        CASE("blend", 1e-6, case_blend, .rows = 2, .cols = dims[i], .n = i % 2 ? 4 : 1, .m = 4, .a = i % 3 ? 1.0f : 0.0f)
        CASE("match", 1e-6, case_match, .rows = 2, .cols = dims[i], .a = i % 2 ? 1.0f : 1e-4f)
        CASE("sparsify", 1e-6, case_sparsify, .rows = 2, .cols = dims[i], .a = i % 2 ? 1.28f : -0.3f)
        CASE("softcap", 1e-6, case_softcap, .rows = 2, .cols = dims[i], .a = i % 2 ? 40.0f : 0.5f, .c = 30)
        CASE("gather", 0, case_gather, .rows = 5, .cols = dims[i], .n = 7)
        CASE("expert_sum", 1e-6, case_expert_sum, .rows = 3, .cols = dims[i], .n = 1 + (uint32_t)i % 4, .variant = (int)i % 2)
        for (int act = 0; act < ACT_COUNT; act++)
            CASE("gated", 2e-6, case_gated, .rows = i % 2 ? 1 : 3, .cols = dims[i], .a = i % 2 ? 3.0f : 30.0f, .variant = act)
    }
    static const uint32_t experts[] = {8, 12, 128, 512};
    for (size_t i = 0; i < sizeof experts / sizeof *experts; i++)
        for (int v = 0; v < 64; v++)
            for (uint32_t score = 0; score < ROUTE_SCORE_COUNT; score++)
                if (score != ROUTE_SOFTMAX_TOP || !(v & 1))
                    CASE("route", 1e-6, case_route, .rows = i % 2 ? 1 : 5, .cols = experts[i], .n = 1 + (uint32_t)i, .m = score, .variant = v)
    for (int pairing = 0; pairing < 2; pairing++) {
        CASE("rope", 1e-6, case_rope, .rows = 5, .cols = 64, .n = 32, .m = 3, .a = 1, .variant = pairing)
        CASE("rope partial", 1e-6, case_rope, .rows = 2, .cols = 80, .n = 10, .m = 1, .a = 1.19f, .variant = pairing)
        CASE("rope behind", 1e-6, case_rope, .rows = 3, .cols = 96, .n = 16, .m = 3, .a = 1, .window = 64, .variant = pairing)
        CASE("rope odd", 1e-6, case_rope, .rows = 1, .cols = 14, .n = 7, .m = 2, .a = 1, .variant = pairing)
    }
    static const uint32_t head_dims[] = {8, 16, 24, 32, 64, 80, 96, 128, 256, 512};
    for (size_t i = 0; i < sizeof head_dims / sizeof *head_dims; i++)
        for (int k = 0; k < KV_FORMAT_COUNT; k++)
            for (int v = 0; v < KV_FORMAT_COUNT; v++) {
                uint32_t d = head_dims[i], d_v = i % 3 == 1 && d >= 64 ? d - 32 : d;
                if (!kv_format_k_bytes((enum kv_format)k, d) || !kv_format_v_bytes((enum kv_format)v, d_v) || (k != v && (i + (uint32_t)(3 * k + 5 * v)) % 37) ||
                    (k == v && k > KV_Q8 && (i + (uint32_t)k) % 2))
                    continue;
                float scale = 1 / sqrtf((float)d);
                CASE("kv_write", 0, case_store, .rows = 40, .kv_heads = 2, .d_k = d, .d_v = d_v, .k = (enum kv_format)k, .v = (enum kv_format)v,
                     .a = i % 2 ? 1 : 1e-3f)
                bool groups = kv_format_k_bytes(KV_Q8, d) && kv_format_v_bytes(KV_Q8, d_v);
                CASE("kv_convert", 0, case_convert, .kv_heads = 1 + (uint32_t)i % 3, .d_k = d, .d_v = d_v, .k = (enum kv_format)k, .v = (enum kv_format)v,
                     .variant = (k + (int)i) % (groups ? 3 : 2))
                CASE("attn_prepare", 2e-6, case_store, .rows = i % 2 ? 1 : 9, .heads = 4, .kv_heads = 2, .d_k = d, .d_v = d,
                     .k = (enum kv_format)k, .v = kv_format_v_bytes((enum kv_format)v, d) ? (enum kv_format)v : KV_F32, .a = 1,
                     .variant = 1 + (int)(i % 2) * 2 + 4 + (k % 2 && d > 16 ? 8 : 0))
                CASE("attention decode", ATTENTION, case_attention, .rows = 1, .n = 300, .m = 33, .heads = 6, .kv_heads = 2, .d_k = d, .d_v = d_v,
                     .k = (enum kv_format)k, .v = (enum kv_format)v, .a = scale)
                CASE("attention rows", ATTENTION, case_attention, .rows = 35, .n = 270, .m = 1, .heads = 4, .kv_heads = 1, .d_k = d, .d_v = d_v,
                     .k = (enum kv_format)k, .v = (enum kv_format)v, .a = scale, .variant = (k + v) % 3, .window = v == 1 ? 70 : 0)
            }
    static const struct {
        uint32_t d_k, d_v, heads, kv_heads;
    } latents[] = {{576, 512, 40, 1}, {96, 64, 4, 1}, {40, 24, 6, 2}, {160, 128, 3, 1}, {128, 64, 20, 1}, {64, 64, 2, 1}};
    for (size_t i = 0; i < sizeof latents / sizeof *latents; i++)
        for (int f = 0; f < KV_V4; f++) {
            uint32_t d = latents[i].d_k, d_v = latents[i].d_v;
            if (!kv_shape_latent((enum kv_format)f, d, d_v).plane_bytes)
                continue;
            CASE("kv_write latent", 0, case_store, .rows = 40, .kv_heads = latents[i].kv_heads, .d_k = d, .d_v = d_v, .k = (enum kv_format)f,
                 .v = (enum kv_format)f, .a = 1, .latent = true)
            CASE("kv_convert latent", 0, case_convert, .kv_heads = latents[i].kv_heads, .d_k = d, .d_v = d_v, .k = (enum kv_format)f,
                 .v = (enum kv_format)f, .variant = f % 2, .latent = true)
            CASE("attention latent decode", ATTENTION, case_attention, .rows = 1, .n = 300, .m = 33, .heads = latents[i].heads,
                 .kv_heads = latents[i].kv_heads, .d_k = d, .d_v = d_v, .k = (enum kv_format)f, .v = (enum kv_format)f,
                 .a = 1 / sqrtf((float)d), .latent = true)
            CASE("attention latent rows", ATTENTION, case_attention, .rows = 35, .n = 270, .m = 1, .heads = latents[i].heads / 2,
                 .kv_heads = latents[i].kv_heads > 1 ? 3 : 1, .d_k = d, .d_v = d_v, .k = (enum kv_format)f, .v = (enum kv_format)f,
                 .a = 1 / sqrtf((float)d), .variant = f % 3, .window = f == 1 ? 70 : 0, .latent = true)
        }
    static const uint32_t lengths[] = {1, 2, 31, 32, 33, 64, 255, 256, 257, 511, 513, 1500};
    for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++)
        for (int v = 0; v < 3; v++) {
            uint32_t len = lengths[i], rows = v == 0 ? 1 : len < 70 ? len : 70;
            CASE("attention lengths", ATTENTION, case_attention, .rows = rows, .n = len, .m = 5, .heads = v == 2 ? 5 : 3, .kv_heads = v == 2 ? 5 : 1,
                 .d_k = 64, .d_v = 64, .k = KV_F16, .v = KV_F16, .a = 0.125f, .variant = v)
            CASE("attention window", ATTENTION, case_attention, .rows = rows, .n = len, .m = 5, .heads = 4, .kv_heads = 2, .d_k = 48, .d_v = 48,
                 .k = KV_BF16, .v = KV_F16, .a = 0.3f, .variant = v, .window = i % 2 ? 17 : 257)
            CASE("attention softcap", ATTENTION, case_attention, .rows = rows, .n = len, .m = 5, .heads = 4, .kv_heads = 4, .d_k = 32, .d_v = 32,
                 .k = KV_F16, .v = KV_Q8, .a = 1.0f, .c = 5, .variant = v)
        }
    for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++)
        for (int v = 0; v < 3; v++)
            CASE("attention sinks", ATTENTION, case_attention, .rows = v == 0 ? 1 : lengths[i] < 70 ? lengths[i] : 70, .n = lengths[i], .m = 5,
                 .heads = 8, .kv_heads = 2, .d_k = 64, .d_v = 64, .k = KV_F16, .v = KV_F16, .a = 0.125f, .c = v == 2 ? 5 : 0, .variant = v,
                 .window = i % 2 ? 17 : 0, .sinks = true)
    CASE("attention 40 heads on one", ATTENTION, case_attention, .rows = 3, .n = 600, .m = 9, .heads = 40, .kv_heads = 1, .d_k = 64, .d_v = 64,
         .k = KV_F16, .v = KV_F16, .a = 0.125f)
    CASE("attention 4096", ATTENTION, case_attention, .rows = 1, .n = 4096, .m = 9, .heads = 3, .kv_heads = 3, .d_k = 64, .d_v = 64, .k = KV_F16,
         .v = KV_F16, .a = 0.125f)
    static const uint32_t anchors[] = {8, 16, 32, 64};
    for (size_t i = 0; i < 4; i++)
        for (int v = 0; v < CUT_COUNT; v++) {
            CASE("short_conv", 1e-6, case_short_conv, .rows = 100, .cols = i % 2 ? 200 : 37, .n = 3 + (uint32_t)i % 2, .m = anchors[i],
                 .window = i > 1, .variant = v)
            CASE("delta_net", 3e-6, case_delta_net, .rows = 150, .n = 4, .m = anchors[i], .heads = 1 + (uint32_t)i % 2, .kv_heads = 2,
                 .d_k = 32, .d_v = i == 1 ? 64 : 32, .window = i % 2, .variant = v)
            CASE("mamba", 3e-6, case_mamba, .rows = 150, .n = 4, .m = anchors[i], .heads = 1 + (uint32_t)i % 3, .kv_heads = 2,
                 .d_k = i == 2 ? 128 : 32, .d_v = i == 1 ? 64 : 24, .window = i % 2, .variant = v)
            CASE("delta_net", 3e-6, case_delta_net, .rows = 140, .n = 4, .m = anchors[i], .heads = i == 2 ? 3 : 2, .kv_heads = i == 3 ? 3 : 1,
                 .d_k = i == 0 ? 40 : 128, .d_v = i == 0 ? 24 : 128, .window = i == 3, .variant = v)
        }
#undef CASE
    return n;
}

/* What every case stays within. */
static inline struct device_reserve row_cases_reserve(void)
{
    return (struct device_reserve){.rows_max = 128, .cols_max = 4096, .heads_max = 64, .head_dim_max = 576, .context_max = 8192,
                                   .logit_rows_max = 16, .vocab_max = 40000, .state_dim_max = 128, .experts_max = 512, .slots_max = 8, .expert_cols_max = 1024,
                                   .latent_dim_max = 512};
}

/* In how many ways the case's rows can be cut into spans (variants 0 .. that); each must leave the same bytes.  0: it has none. */
static inline int row_case_cuts(const struct row_case *c)
{
    return c->run == case_attention ? 3 : c->run == case_short_conv || c->run == case_delta_net || c->run == case_mamba ? CUT_COUNT : 0;
}

static inline void row_case_run(struct bench *b, const struct row_case *c, size_t index, struct outcome *out)
{
    out->count = 0;
    bench_reset(b, index);
    c->run(b, out, c);
}

#endif
