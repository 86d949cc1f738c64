/* backend_ref/ref_attention.c - pages, and attention over them: decoded vector by vector, every score kept, one softmax.
 *
 * Stores and reads the pages through kv_codec.h, the meaning of every format.  Positions a row may not see are never read.
 * V of a latent layer is the beginning of what K decodes to. */
#include "backend_ref/ref_int.h"

#include "base/math.h"
#include "base/mem.h"
#include "tensor/kv_codec.h"

#include <math.h>

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

/* One row and head over positions [first, pos]; p: scratch [pos - first + 1]. */
static void attend(const struct op_attention *op, const uint32_t *table, const float *q, float *y, uint32_t head, uint32_t first,
                   uint32_t pos, double *p)
{
    const struct kv_layer *l = op->layer;
    uint32_t kv_head = head / (op->n_heads / l->n_kv_heads);
    double most = -INFINITY, sum = 0, o[KV_HEAD_MAX] = {0};
    float x[KV_HEAD_MAX];
    for (uint32_t j = first; j <= pos; j++) {
        struct plane k = plane_of(l, table[j / KV_PAGE], kv_head, true);
        double dot = 0;
        kv_load(k.p, k.format, k.d, j % KV_PAGE, true, x);
        for (uint32_t e = 0; e < l->d_k; e++)
            dot += (double)q[e] * (double)x[e];
        dot *= (double)op->scale;
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
        sum += p[j - first] = math_expd(p[j - first] - most);
    for (uint32_t j = first; j <= pos; j++) {
        struct plane v = plane_of(l, table[j / KV_PAGE], kv_head, false);
        kv_load(v.p, v.format, v.d, j % KV_PAGE, l->latent, x);
        for (uint32_t e = 0; e < l->d_v; e++)
            o[e] += p[j - first] * (double)x[e];
    }
    for (uint32_t e = 0; e < l->d_v; e++)
        y[e] = (float)(o[e] / sum);
}

int ref_run_attention(struct device *d, const void *p)
{
    (void)d;
    const struct op_attention *op = p;
    const struct kv_layer *l = op->layer;
    uint32_t longest = 0;
    for (uint32_t s = 0; s < op->span_count; s++) {
        uint32_t end = op->spans[s].pos_first + op->spans[s].row_count;
        longest = end > longest ? end : longest;
    }
    double *scores = mem_try_array(longest ? longest : 1, sizeof *scores);
    if (!scores)
        return ERR_NOMEM;
    for (uint32_t s = 0; s < op->span_count; s++)
        for (uint32_t i = 0; i < op->spans[s].row_count; i++) {
            uint32_t pos = op->spans[s].pos_first + i, row = op->spans[s].row_first + i;
            uint32_t first = op->window && pos + 1 > op->window ? pos + 1 - op->window : 0;
            for (uint32_t h = 0; h < op->n_heads; h++)
                attend(op, op->tables + op->spans[s].table_first, ref_row(&op->q, row) + (size_t)h * l->d_k,
                       ref_row(&op->y, row) + (size_t)h * l->d_v, h, first, pos, scores);
        }
    mem_free(scores);
    return 0;
}
