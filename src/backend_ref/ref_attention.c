/* backend_ref/ref_attention.c - pages, and attention over them: element by element, every score kept, one softmax.
 *
 * Reads the pages as tensor.h lays them out.  Positions a row may not see are never read. */
#include "backend_ref/ref_int.h"

#include "base/math.h"
#include "base/mem.h"

#include <math.h>
#include <string.h>

/* one plane of one page and kv head */
struct plane {
    unsigned char *p;
    enum kv_format format;
    uint32_t d;
    bool key; /* K planes are [d][KV_PAGE], V planes [KV_PAGE][d] */
};

static struct plane plane_of(const struct kv_layer *l, uint32_t page, uint32_t head, bool key)
{
    unsigned char *at = l->pages[page] + l->offset + (size_t)head * l->head_bytes;
    if (key)
        return (struct plane){at, l->k_format, l->d_k, true};
    return (struct plane){at + kv_format_k_bytes(l->k_format, l->d_k), l->v_format, l->d_v, false};
}

static size_t element(const struct plane *pl, uint32_t slot, uint32_t e)
{
    return pl->key ? (size_t)e * KV_PAGE + slot : (size_t)slot * pl->d + e;
}

/* place of the scale of elements [32 g, 32 g + 32) of a Q8 plane */
static uint16_t *scale_at(const struct plane *pl, uint32_t slot, uint32_t g)
{
    uint16_t *scales = (uint16_t *)(void *)(pl->p + (size_t)KV_PAGE * pl->d);
    return scales + (pl->key ? (size_t)g * KV_PAGE + slot : (size_t)slot * (pl->d / 32) + g);
}

static float load(const struct plane *pl, uint32_t slot, uint32_t e)
{
    size_t at = element(pl, slot, e);
    switch (pl->format) {
    case KV_F32:
        return ((const float *)(const void *)pl->p)[at];
    case KV_F16:
        return dtype_f16_to_f32(((const uint16_t *)(const void *)pl->p)[at]);
    case KV_BF16:
        return dtype_bf16_to_f32(((const uint16_t *)(const void *)pl->p)[at]);
    case KV_Q8:
        return (float)((const int8_t *)pl->p)[at] * dtype_f16_to_f32(*scale_at(pl, slot, e / 32));
    case KV_FORMAT_COUNT:
        break;
    }
    return NAN;
}

static uint16_t to_bf16(float f)
{
    uint32_t u;
    memcpy(&u, &f, 4);
    if (f != f)
        return (uint16_t)(u >> 16 | 0x40);
    return (uint16_t)((u + 0x7fff + (u >> 16 & 1)) >> 16);
}

/* 32 elements to int8 with the f16 scale max|x| / 127. */
static void store_q8(const struct plane *pl, uint32_t slot, uint32_t g, const float *x)
{
    float most = 0;
    for (int i = 0; i < 32; i++)
        most = fabsf(x[i]) > most ? fabsf(x[i]) : most;
    float scale = most / 127;
    uint16_t half = dtype_f32_to_f16(scale < 65504 ? scale : 65504);
    scale = dtype_f16_to_f32(half);
    *scale_at(pl, slot, g) = half;
    for (int i = 0; i < 32; i++) {
        float q = scale > 0 ? nearbyintf(x[i] * (1 / scale)) : 0;
        q = q > -127 ? q : -127; /* NaN too */
        ((int8_t *)pl->p)[element(pl, slot, g * 32 + (uint32_t)i)] = (int8_t)(q < 127 ? q : 127);
    }
}

static void store_row(const struct plane *pl, uint32_t slot, const float *x)
{
    for (uint32_t e = 0; e < pl->d; e++) {
        size_t at = element(pl, slot, e);
        if (pl->format == KV_F32)
            ((float *)(void *)pl->p)[at] = x[e];
        else if (pl->format == KV_F16)
            ((uint16_t *)(void *)pl->p)[at] = dtype_f32_to_f16(x[e]);
        else if (pl->format == KV_BF16)
            ((uint16_t *)(void *)pl->p)[at] = to_bf16(x[e]);
        else if (e % 32 == 0)
            store_q8(pl, slot, e / 32, x + e);
    }
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
                store_row(&k, pos % KV_PAGE, ref_row(&op->k, row) + (size_t)h * l->d_k);
                store_row(&v, pos % KV_PAGE, ref_row(&op->v, row) + (size_t)h * l->d_v);
            }
        }
    return 0;
}

/* One row and head over positions [first, pos]; p: scratch [pos - first + 1]. */
static void attend(const struct op_attention *op, const uint32_t *table, const float *q, float *y, uint32_t kv_head, uint32_t first,
                   uint32_t pos, double *p)
{
    const struct kv_layer *l = op->layer;
    double most = -INFINITY, sum = 0;
    for (uint32_t j = first; j <= pos; j++) {
        struct plane k = plane_of(l, table[j / KV_PAGE], kv_head, true);
        double dot = 0;
        for (uint32_t e = 0; e < l->d_k; e++)
            dot += (double)q[e] * (double)load(&k, j % KV_PAGE, e);
        dot *= (double)op->scale;
        if (op->softcap > 0)
            dot = (double)(op->softcap * math_tanhf((float)dot / op->softcap));
        p[j - first] = dot;
        most = dot > most ? dot : most;
    }
    for (uint32_t j = first; j <= pos; j++)
        sum += p[j - first] = math_expd(p[j - first] - most);
    for (uint32_t e = 0; e < l->d_v; e++) {
        double o = 0;
        for (uint32_t j = first; j <= pos; j++) {
            struct plane v = plane_of(l, table[j / KV_PAGE], kv_head, false);
            o += p[j - first] * (double)load(&v, j % KV_PAGE, e);
        }
        y[e] = (float)(o / sum);
    }
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
                       ref_row(&op->y, row) + (size_t)h * l->d_v, h / (op->n_heads / l->n_kv_heads), first, pos, scores);
        }
    mem_free(scores);
    return 0;
}
