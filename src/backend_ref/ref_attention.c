/* backend_ref/ref_attention.c - pages, and attention over them: decoded once a span, every score kept, one softmax.
 *
 * Stores and reads the pages through kv_codec.h, the meaning of every format.  Positions a row may not see are never read.
 * V of a latent layer is the beginning of what K decodes to. */
#include "backend_ref/ref_int.h"

#include "base/math.h"
#include "base/mem.h"
#include "tensor/kv_codec.h"

#include <math.h>
#include <string.h>

/* one plane of one page and kv head */
struct plane {
    unsigned char *p;
    enum kv_format format;
    uint32_t d;
};

static struct plane plane_of(const struct kv_layer *l, uint32_t page, uint32_t head, bool key)
{
    unsigned char *at = l->pages[page] + l->offset + (size_t)head * l->head_bytes;
    if (key || l->latent)
        return (struct plane){at, l->k_format, l->d_k};
    return (struct plane){at + kv_format_k_bytes(l->k_format, l->d_k), l->v_format, l->d_v};
}

int ref_run_kv_write(struct device *d, const void *p)
{
    (void)d;
    const struct op_kv_write *op = p;
    const struct kv_layer *l = op->layer;
    for (uint32_t s = 0; s < op->span_count; s++)
        for (uint32_t i = 0; i < op->spans[s].row_count; i++) {
            uint32_t pos = op->spans[s].pos_first + i, row = op->spans[s].row_first + i;
            uint32_t page = op->tables[op->spans[s].table_first + pos / KV_PAGE];
            if (!l->pages[page])
                return ERR_INTERNAL;
            for (uint32_t h = 0; h < l->n_kv_heads; h++) {
                struct plane k = plane_of(l, page, h, true), v = plane_of(l, page, h, false);
                kv_store(k.p, k.format, k.d, pos % KV_PAGE, true, ref_row(&op->k, row) + (size_t)h * l->d_k);
                if (l->latent)
                    continue;
                kv_store(v.p, v.format, v.d, pos % KV_PAGE, false, ref_row(&op->v, row) + (size_t)h * l->d_v);
            }
        }
    return 0;
}

int ref_run_kv_convert(struct device *d, const void *p)
{
    (void)d;
    const struct op_kv_convert *op = p;
    float x[KV_HEAD_MAX];
    for (uint32_t i = 0; i < op->page_count; i++) {
        if (!op->from->pages[op->from_pages[i]] || !op->to->pages[op->to_pages[i]])
            return ERR_INTERNAL;
        uint32_t positions = i + 1 < op->page_count ? KV_PAGE : op->positions_last;
        uint32_t planes = op->from->latent ? 1 : 2;
        for (uint32_t part = 0; part < planes * op->from->n_kv_heads; part++) {
            bool key = part % planes == 0;
            struct plane from = plane_of(op->from, op->from_pages[i], part / planes, key), to = plane_of(op->to, op->to_pages[i], part / planes, key);
            for (uint32_t slot = 0; slot < positions; slot++) {
                kv_load(from.p, from.format, from.d, slot, key, x);
                kv_store(to.p, to.format, to.d, slot, key, x);
            }
        }
    }
    return 0;
}

/* what one kv head of a sequence holds at positions [from, ...), decoded */
struct known {
    uint32_t from;
    float *k, *v; /* [positions][d_k], [positions][d_v] */
};

static void decode(const struct kv_layer *l, const uint32_t *table, uint32_t kv_head, uint32_t end, const struct known *to)
{
    for (uint32_t j = to->from, n; j < end; j += n) {
        struct plane k = plane_of(l, table[j / KV_PAGE], kv_head, true), v = plane_of(l, table[j / KV_PAGE], kv_head, false);
        float *keys = to->k + (size_t)(j - to->from) * l->d_k, *values = to->v + (size_t)(j - to->from) * l->d_v;
        n = KV_PAGE - j % KV_PAGE < end - j ? KV_PAGE - j % KV_PAGE : end - j;
        kv_load_slots(k.p, k.format, k.d, j % KV_PAGE, n, true, keys);
        if (!l->latent)
            kv_load_slots(v.p, v.format, v.d, j % KV_PAGE, n, false, values);
        for (uint32_t i = 0; l->latent && i < n; i++)
            memcpy(values + (size_t)i * l->d_v, keys + (size_t)i * l->d_k, l->d_v * sizeof *values);
    }
}

static void scores(const struct op_attention *op, const struct known *known, const float *q, uint32_t first, uint32_t pos, double *p)
{
    uint32_t d = op->layer->d_k, j = first;
    for (; j + 3 <= pos; j += 4)
        ref_linear_sums(known->k + (size_t)(j - known->from) * d, q, d, p + (j - first));
    for (; j <= pos; j++)
        p[j - first] = ref_linear_sum(known->k + (size_t)(j - known->from) * d, q, d);
}

/* The sum of n vectors of d elements, each times its weight, in order. */
static void weigh(const float *v, uint32_t d, const double *p, uint32_t n, double *o)
{
    for (; n >= 4; n -= 4, p += 4, v += 4 * (size_t)d)
        for (uint32_t e = 0; e < d; e++) {
            double sum = o[e] + p[0] * (double)v[e];
            sum += p[1] * (double)v[e + d];
            sum += p[2] * (double)v[e + 2 * d];
            o[e] = sum + p[3] * (double)v[e + 3 * d];
        }
    for (; n; n--, p++, v += d)
        for (uint32_t e = 0; e < d; e++)
            o[e] += p[0] * (double)v[e];
}

/* One row and head over positions [first, pos]; p: scratch [pos - first + 1]. */
static void attend(const struct op_attention *op, const struct known *known, const float *q, float *y, uint32_t head, uint32_t first,
                   uint32_t pos, double *p)
{
    const struct kv_layer *l = op->layer;
    double most = -INFINITY, sum = 0, o[KV_HEAD_MAX] = {0};
    scores(op, known, q, first, pos, p);
    for (uint32_t j = first; j <= pos; j++) {
        double dot = p[j - first] * (double)op->scale;
        if (op->softcap > 0)
            dot = (double)(op->softcap * math_tanhf((float)dot / op->softcap));
        p[j - first] = dot;
        most = dot > most ? dot : most;
    }
    if (op->sinks) {
        most = (double)op->sinks[head] > most ? (double)op->sinks[head] : most;
        sum = math_expd((double)op->sinks[head] - most);
    }
    for (uint32_t j = first; j <= pos; j++)
        p[j - first] -= most;
    math_expd_many(p, pos - first + 1);
    for (uint32_t j = first; j <= pos; j++)
        sum += p[j - first];
    weigh(known->v + (size_t)(first - known->from) * l->d_v, l->d_v, p, pos - first + 1, o);
    for (uint32_t e = 0; e < l->d_v; e++)
        y[e] = (float)(o[e] / sum);
}

static uint32_t first_of(const struct op_attention *op, uint32_t pos)
{
    return op->window && pos + 1 > op->window ? pos + 1 - op->window : 0;
}

static void attend_span(const struct op_attention *op, const struct kv_span *span, struct known *known, double *scratch)
{
    const struct kv_layer *l = op->layer;
    const uint32_t per = op->n_heads / l->n_kv_heads;
    known->from = first_of(op, span->pos_first);
    for (uint32_t kv_head = 0; kv_head < l->n_kv_heads; kv_head++) {
        decode(l, op->tables + span->table_first, kv_head, span->pos_first + span->row_count, known);
        for (uint32_t i = 0; i < span->row_count; i++) {
            uint32_t pos = span->pos_first + i, row = span->row_first + i;
            for (uint32_t h = kv_head * per; h < (kv_head + 1) * per; h++)
                attend(op, known, ref_row(&op->q, row) + (size_t)h * l->d_k, ref_row(&op->y, row) + (size_t)h * l->d_v, h,
                       first_of(op, pos), pos, scratch);
        }
    }
}

int ref_run_attention(struct device *d, const void *p)
{
    (void)d;
    const struct op_attention *op = p;
    const struct kv_layer *l = op->layer;
    size_t longest = 1;
    int rc = ERR_NOMEM;
    for (uint32_t s = 0; s < op->span_count; s++) {
        size_t end = op->spans[s].pos_first + op->spans[s].row_count, from = first_of(op, op->spans[s].pos_first);
        longest = end - from > longest ? end - from : longest;
    }
    struct known known = {0, mem_try_array(longest * l->d_k, sizeof(float)), mem_try_array(longest * l->d_v, sizeof(float))};
    double *scratch = mem_try_array(longest, sizeof *scratch);
    if (!scratch || !known.k || !known.v)
        goto out;
    for (uint32_t s = 0; s < op->span_count; s++)
        attend_span(op, &op->spans[s], &known, scratch);
    rc = 0;
out:
    mem_free(known.k);
    mem_free(known.v);
    mem_free(scratch);
    return rc;
}
