/* backend_cpu/cpu_pages.c - K and V into pages: kv_write; attn_prepare, which norms and turns heads on the way; kv_convert, from pages of
 * another format.
 *
 * A row's head is encoded alone (tensor.h has the layout, kv_codec.c the block formats), so what is stored depends on that row only.
 * Invariants: 1. A piece of work is one head of one row: no two workers write the same element. */
#include "backend_cpu/cpu_pages.h"

#include "tensor/kv_codec.h"

enum { FETCH_ROWS = 8, FETCH_LINES = 32 }; /* with few rows there is time to ask for what a later record reads */

static float *row_of(const struct tensor *t, uint32_t row)
{
    return (float *)t->data + (size_t)row * t->stride;
}

/* d elements of one position into a plane: float formats through the level's conversion. */
static void store(const struct cpu_kernels *k, unsigned char *plane, enum kv_format f, uint32_t slot, const float *x, uint32_t d, bool key)
{
    uint16_t half[KV_HEAD_MAX];
    if (f > KV_BF16) {
        kv_store(plane, f, d, slot, key, x);
        return;
    }
    if (f == KV_F32) {
        float *p = (float *)(void *)plane;
        for (uint32_t e = 0; e < d; e++)
            p[key ? (size_t)e * KV_PAGE + slot : (size_t)slot * d + e] = x[e];
        return;
    }
    uint16_t *p = (uint16_t *)(void *)plane;
    cpu_half_fn convert = f == KV_F16 ? k->to_f16 : k->to_bf16;
    if (!key) {
        convert(x, p + (size_t)slot * d, d);
        return;
    }
    convert(x, half, d);
    for (uint32_t e = 0; e < d; e++)
        p[(size_t)e * KV_PAGE + slot] = half[e];
}

/* what kv_write and attn_prepare share */
struct job {
    const struct cpu_kernels *kernels;
    const struct kv_layer *layer;
    const struct kv_span *spans;
    const uint32_t *tables;
    const struct tensor *k, *v;
    /* attn_prepare only */
    const float *k_norm;
    const struct tensor *table;
    float eps;
    bool adjacent;
};

static void turn(const struct job *j, float *x, uint32_t row)
{
    if (!j->table || !j->table->rows)
        return;
    uint32_t n = j->table->cols / 2;
    const float *cosine = row_of(j->table, row);
    j->kernels->rope(x, cosine, cosine + n, n, j->adjacent);
}

/* Heads of a row to be stored: a latent layer's V is part of its K. */
static uint32_t parts_of(const struct kv_layer *l)
{
    return l->latent ? l->n_kv_heads : 2 * l->n_kv_heads;
}

/* Head `part` of a row: K heads first, then V heads. */
static bool write_head(const struct job *j, const struct kv_span *s, uint32_t i, uint32_t part)
{
    const struct kv_layer *l = j->layer;
    uint32_t row = s->row_first + i, pos = s->pos_first + i, page = j->tables[s->table_first + pos / KV_PAGE];
    if (!l->pages[page])
        return false;
    if (part < l->n_kv_heads) {
        float *x = row_of(j->k, row) + (size_t)part * l->d_k;
        if (j->k_norm)
            j->kernels->norm(x, j->k_norm, x, l->d_k, j->eps, false, 1.0f);
        turn(j, x, row);
        store(j->kernels, cpu_page_head(l, page, part), l->k_format, pos % KV_PAGE, x, l->d_k, true);
        return true;
    }
    part -= l->n_kv_heads;
    unsigned char *v = cpu_page_head(l, page, part) + kv_format_k_bytes(l->k_format, l->d_k);
    store(j->kernels, v, l->v_format, pos % KV_PAGE, row_of(j->v, row) + (size_t)part * l->d_v, l->d_v, false);
    return true;
}

/* Pieces [from, to) of all spans' rows; a piece is one of parts_of heads of one row. */
static void write_pieces(struct device *d, const struct job *j, uint32_t from, uint32_t to)
{
    uint32_t parts = parts_of(j->layer), span = 0, before = 0; /* rows before the span */
    for (uint32_t at = from; at < to; at++) {
        uint32_t row = at / parts;
        while (row >= before + j->spans[span].row_count)
            before += j->spans[span++].row_count;
        if (!write_head(j, j->spans + span, row - before, at % parts)) {
            cpu_fail(d, ERR_INTERNAL, "cpu: a row's page is not allocated");
            return;
        }
    }
}

static uint32_t rows_of(const struct kv_span *spans, uint32_t count)
{
    uint32_t rows = 0;
    for (uint32_t i = 0; i < count; i++)
        rows += spans[i].row_count;
    return rows;
}

static void run_kv_write(struct device *d, uint32_t me, uint32_t count, const void *p)
{
    const struct op_kv_write *op = p;
    struct job j = {.kernels = cpu_kernels_of(d), .layer = op->layer, .spans = op->spans, .tables = op->tables, .k = &op->k, .v = &op->v};
    uint32_t from, to;
    cpu_split(rows_of(op->spans, op->span_count) * parts_of(op->layer), 1, me, count, &from, &to);
    write_pieces(d, &j, from, to);
}

static void run_attn_prepare(struct device *d, uint32_t me, uint32_t count, const void *p)
{
    const struct op_attn_prepare *op = p;
    struct job j = {.kernels = cpu_kernels_of(d), .layer = op->layer, .spans = op->spans, .tables = op->tables, .k = &op->k, .v = &op->v,
                    .k_norm = op->k_norm, .table = &op->table, .eps = op->eps, .adjacent = op->pairing == ROPE_ADJACENT};
    uint32_t q_pieces = op->q.rows * op->n_heads, from, to;
    uint32_t kv_pieces = rows_of(op->spans, op->span_count) * parts_of(op->layer);
    if (op->q.rows <= FETCH_ROWS)
        cpu_fetch_ahead(d, me, FETCH_LINES);
    cpu_split(q_pieces, 1, me, count, &from, &to);
    for (uint32_t i = from; i < to; i++) {
        float *x = row_of(&op->q, i / op->n_heads) + (size_t)(i % op->n_heads) * op->head_dim;
        if (op->q_norm)
            j.kernels->norm(x, op->q_norm, x, op->head_dim, op->eps, false, 1.0f);
        turn(&j, x, i / op->n_heads);
    }
    cpu_split(kv_pieces, 1, count - 1 - me, count, &from, &to); /* apart: pages are cold, a piece of them takes far longer */
    write_pieces(d, &j, from, to);
}

/* A piece is K or V of one head in one page; of latent layers both in one. */
static void run_kv_convert(struct device *d, uint32_t me, uint32_t count, const void *p)
{
    const struct op_kv_convert *op = p;
    const struct kv_layer *a = op->from, *b = op->to;
    uint32_t planes = a->latent ? 1 : 2, parts = planes * a->n_kv_heads, from, to;
    float x[KV_HEAD_MAX];
    cpu_split(op->page_count * parts, 1, me, count, &from, &to);
    for (uint32_t piece = from; piece < to; piece++) {
        uint32_t i = piece / parts, head = piece % parts / planes, positions = i + 1 < op->page_count ? KV_PAGE : op->positions_last;
        bool key = piece % planes == 0;
        if (!a->pages[op->from_pages[i]] || !b->pages[op->to_pages[i]]) {
            cpu_fail(d, ERR_INTERNAL, "cpu: a page to be encoded is not allocated");
            return;
        }
        const unsigned char *src = cpu_page_head(a, op->from_pages[i], head) + (key ? 0 : kv_format_k_bytes(a->k_format, a->d_k));
        unsigned char *dst = cpu_page_head(b, op->to_pages[i], head) + (key ? 0 : kv_format_k_bytes(b->k_format, b->d_k));
        for (uint32_t slot = 0; slot < positions; slot++) {
            kv_load(src, key ? a->k_format : a->v_format, key ? a->d_k : a->d_v, slot, key, x);
            store(cpu_kernels_of(d), dst, key ? b->k_format : b->v_format, slot, x, key ? b->d_k : b->d_v, key);
        }
    }
}

bool cpu_kv_format_supported(const struct device *d, const struct kv_layer *l)
{
    (void)d;
    return kv_layer_head_bytes(l) != 0;
}

int cpu_op_kv_write(struct device *d, const struct op_kv_write *op)
{
    return cpu_enqueue(d, run_kv_write, op, sizeof *op);
}

int cpu_op_kv_convert(struct device *d, const struct op_kv_convert *op)
{
    return cpu_enqueue(d, run_kv_convert, op, sizeof *op);
}

int cpu_op_attn_prepare(struct device *d, const struct op_attn_prepare *op)
{
    return cpu_enqueue(d, run_attn_prepare, op, sizeof *op);
}
