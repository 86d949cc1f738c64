/* backend_cuda/cuda_sample.c - sample_rows: rows and everything they name, flat in the step's staging; results to be handed out later.
 *
 * The device reads the staging where it lies, so the launch names only its place, the same from step to step. */
#include "backend_cuda/cuda_int.h"

#include <string.h>

enum { SAMPLE_ALIGN = 16 };

struct flat {
    uint8_t *data;
    uint32_t used;
};

static uint32_t put(struct flat *f, const void *p, size_t size_bytes)
{
    uint32_t at = f->used;
    if (size_bytes)
        memcpy(f->data + at, p, size_bytes);
    f->used += (uint32_t)((size_bytes + SAMPLE_ALIGN - 1) / SAMPLE_ALIGN * SAMPLE_ALIGN);
    return at;
}

static size_t padded(size_t n)
{
    return (n + SAMPLE_ALIGN - 1) / SAMPLE_ALIGN * SAMPLE_ALIGN;
}

static size_t row_bytes(const struct sample_row *r, uint32_t vocab)
{
    size_t n = padded(r->banned_count * sizeof *r->banned) + (r->mask ? padded((vocab + 31) / 32 * sizeof *r->mask) : 0);
    if (r->params)
        n += padded(r->seen_count * sizeof *r->seen) + padded(r->patch_count * sizeof *r->patch) +
             padded(r->params->bias_count * sizeof *r->params->biases);
    return n;
}

static void row_flatten(const struct sample_row *r, uint32_t vocab, struct flat *f, struct cuda_sample_row *out)
{
    *out = (struct cuda_sample_row){.index = r->index, .banned_count = r->banned_count, .top = r->top, .score_id = r->score_id};
    out->flags = (r->params ? CUDA_SAMPLE_PARAMS : 0u) | (r->want_logprob ? CUDA_SAMPLE_LOGPROB : 0u) | (r->mask ? CUDA_SAMPLE_MASK : 0u);
    out->banned = put(f, r->banned, r->banned_count * sizeof *r->banned);
    if (r->mask)
        out->mask = put(f, r->mask, (vocab + 31) / 32 * sizeof *r->mask);
    const struct sample_params *p = r->params;
    if (!p)
        return;
    out->temperature = p->temperature, out->top_n_sigma = p->top_n_sigma, out->typical_p = p->typical_p, out->top_p = p->top_p;
    out->min_p = p->min_p, out->xtc_probability = p->xtc_probability, out->xtc_threshold = p->xtc_threshold;
    out->repetition = p->repetition_penalty, out->presence = p->presence_penalty, out->frequency = p->frequency_penalty;
    out->top_k = p->top_k, out->choice = p->choice, out->seed = p->seed;
    memcpy(out->order, p->order, sizeof p->order);
    out->seen_count = r->seen_count, out->patch_count = r->patch_count, out->bias_count = p->bias_count;
    out->seen = put(f, r->seen, r->seen_count * sizeof *r->seen);
    out->patch = put(f, r->patch, r->patch_count * sizeof *r->patch);
    out->biases = put(f, p->biases, p->bias_count * sizeof *p->biases);
}

int cuda_op_sample_rows(struct device *d, const struct op_sample_rows *op)
{
    uint32_t rows = op->logits.rows, per_row = (op->vocab + LOGIT_BLOCK - 1) / LOGIT_BLOCK;
    struct cuda_slot *s = cuda_slot_open(d);
    size_t bytes = padded(rows * sizeof(struct cuda_sample_row));
    for (uint32_t r = 0; r < rows; r++) {
        if (op->rows[r].top > SAMPLE_TOP_MAX)
            return ERR_INTERNAL;
        bytes += row_bytes(&op->rows[r], op->vocab);
    }
    if (!s || rows > d->reserved.logit_rows_max || op->vocab > d->reserved.vocab_max || s->result_used + rows > d->reserved.rows_max)
        return s ? ERR_INTERNAL : ERR_DEVICE;
    uint8_t *data = cuda_slot_sample(d, bytes);
    if (!data) { /* the staging is full: what it holds is done first */
        if (cuda_finish(d, NULL) || !(data = cuda_slot_sample(d, bytes)))
            return ERR_LIMIT;
    }
    if (s->done_count == CUDA_DONES && cuda_finish(d, NULL))
        return ERR_DEVICE;
    struct flat f = {data, (uint32_t)padded(rows * sizeof(struct cuda_sample_row))};
    for (uint32_t r = 0; r < rows; r++)
        row_flatten(&op->rows[r], op->vocab, &f, (struct cuda_sample_row *)(void *)data + r);
    size_t at = (size_t)d->slot * d->reserved.rows_max + s->result_used;
    struct cuda_p_sample p = {.logits = op->logits.data, .rows = (const void *)data, .data = data, .out = d->results + at, .ids = d->ids + at,
                              .blocks = d->blocks, .keys = d->keys, .row_count = rows, .vocab = op->vocab, .stride = op->logits.stride,
                              .per_row = per_row};
    s->result_used += rows;
    s->dones[s->done_count++] = (struct cuda_done){.dst = op->results, .src = p.out, .count = rows};
    d->flying[d->flying_at++ % CUDA_SAMPLES] = (struct cuda_flying){op->results, p.ids, rows};
    int rc = cuda_launch(d, cuda_kernels_sample[CUDA_K_SAMPLE_BLOCKS], per_row, rows, 1, 256, 0, &p, sizeof p);
    return rc ? rc : cuda_launch(d, cuda_kernels_sample[CUDA_K_SAMPLE_ROWS], rows, 1, 1, 1024, 0, &p, sizeof p);
}
