/* backend_cpu/cpu_product.h - what products of weights with rows share: a worker's room, rows as weights read them, one kernel call. */
#ifndef RH_CPU_PRODUCT_H
#define RH_CPU_PRODUCT_H

#include "backend_cpu/cpu_weight.h"

enum {
    ALONE_MAX = 8192,        /* rows * cols a worker prepares for itself */
    ALONE_ROWS = 4,
    ROWS_BYTES = 256 << 10,  /* input bytes of one row block: half of a second-level cache */
    ROWS_FLOAT_MIN = 36,     /* float rows of one row block, however long */
    ROWS_FEW = 8,            /* rows that panels are read for as a stream */
    PANELS_FEW = 8,          /* panels per kernel call for those */
    PANELS_MANY = 4,         /* for more rows */
    OUT_FLOATS = CPU_DOT_ROWS * CPU_DOT_PANELS * CPU_PANEL_ROWS,
};

/* Quantised, a row takes whole chunks. */
static inline uint32_t act_chunks(uint32_t cols)
{
    return (cols / 32 + CPU_ACT_CHUNK - 1) / CPU_ACT_CHUNK;
}
static inline size_t act_bytes(uint32_t cols)
{
    return (size_t)act_chunks(cols) * CPU_ACT_CHUNK_BYTES;
}

/* what a worker has to itself; each field 64-byte aligned */
struct own {
    _Alignas(64) unsigned char tmp[CPU_DOT_TMP];
    float out[2][OUT_FLOATS];
    float rows[ALONE_MAX];
    struct cpu_act acts[ALONE_MAX / 32 + ALONE_ROWS * CPU_ACT_CHUNK];
};

/* rows ready for weights: either may be NULL when no weight needs it */
struct input {
    uint32_t rows, cols;
    const float *f;         /* f32 rows */
    size_t f_stride;        /* bytes */
    const struct cpu_act *q;
    size_t q_stride, q_chunk; /* bytes between rows, between chunks of a row */
};

/* Rows per row block.  Quantised rows lie chunk by chunk, so as many as a kernel takes; of float rows what stays in the second-level
 * cache while panels pass, but enough of them for each reading of the weights, and groups of 6 as the kernels take them. */
static inline uint32_t block_rows(const struct input *in)
{
    uint32_t n = (uint32_t)(ROWS_BYTES / in->f_stride) / 6 * 6;
    return in->q || n > CPU_DOT_ROWS ? CPU_DOT_ROWS : n < ROWS_FLOAT_MIN ? ROWS_FLOAT_MIN : n;
}

/* Panels per kernel call.  Chunks of rows that the second-level cache does not hold come from the third for every call: then more. */
static inline uint32_t call_panels(const struct input *in, uint32_t rows)
{
    bool far = in->q && rows > ROWS_FEW && rows * act_bytes(in->cols) > ROWS_BYTES;
    return rows <= ROWS_FEW ? PANELS_FEW : far ? CPU_DOT_PANELS : PANELS_MANY;
}

static inline void dot(const struct cpu_kernels *k, const struct weight *w, const struct input *in, uint32_t row, uint32_t rows, uint32_t panel,
                       uint32_t panels, float *out, size_t out_stride, void *tmp)
{
    bool f = cpu_weight_is_float(w);
    const unsigned char *x = f ? (const unsigned char *)in->f : (const unsigned char *)in->q;
    size_t stride = f ? in->f_stride : in->q_stride;
    struct cpu_dot job = {
        .w = w->data + panel * w->panel_bytes,
        .panel_bytes = w->panel_bytes,
        .panels = panels,
        .panel = &w->panel,
        .x = x + row * stride,
        .x_stride = stride,
        .x_chunk = in->q_chunk,
        .rows = rows,
        .out = out,
        .out_stride = out_stride,
        .tmp = tmp,
    };
    k->dot[w->panel.layout](&job);
}

static inline const float *tensor_row(const struct tensor *t, uint32_t r)
{
    return (const float *)t->data + (size_t)r * t->stride;
}

/* Few rows lie one after the other, many chunk by chunk. */
static inline void quantised_at(struct input *in, const struct cpu_act *q, bool alone)
{
    in->q = q;
    in->q_stride = alone ? act_bytes(in->cols) : CPU_ACT_CHUNK_BYTES;
    in->q_chunk = alone ? CPU_ACT_CHUNK_BYTES : (size_t)in->rows * CPU_ACT_CHUNK_BYTES;
}

/* Chunks [from, to) of one row of `in` to their places. */
static inline void quantise_chunks(const struct cpu_kernels *k, const struct input *in, struct cpu_act *q, const float *x, uint32_t row, uint32_t from,
                            uint32_t to)
{
    enum { CHUNK_COLS = 32 * CPU_ACT_CHUNK };
    for (uint32_t c = from; c < to; c++) {
        uint32_t left = in->cols - c * CHUNK_COLS;
        unsigned char *at = (unsigned char *)q + row * in->q_stride + c * in->q_chunk;
        k->quantize(x + c * CHUNK_COLS, left < CHUNK_COLS ? left : CHUNK_COLS, (struct cpu_act *)(void *)at);
    }
}

#endif
