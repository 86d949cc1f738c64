/* tensor/backend.h - the wall: what a backend does for models, as one list.
 *
 * A device is an in-order queue.  Every op only enqueues and returns 0 or ERR_X for arguments it refuses; nothing it computes is
 * visible to the host before event_wait.  Every array an op names (tensors, spans, tables, sample rows) must stay valid and
 * unchanged until the event recorded after it was waited for.  Ops of one device run in the order they were enqueued.
 * Laws: each output element is a fixed sequence of operations that depends on its own row and on absolute positions only
 * (docs/arithmetic.md has the orders), whatever else is in the step, whatever the thread count or level.
 * Threads: one thread enqueues (the engine's); setup calls (open, weight_*, buffer_*) come before or between steps. */
#ifndef RH_TENSOR_BACKEND_H
#define RH_TENSOR_BACKEND_H

#include "base/err.h"
#include "tensor/sample.h"
#include "tensor/tensor.h"

/* ---- op parameters.  x, y: [rows][...] f32.  "vec" = f32 vector in device memory. ---- */

struct op_copy_in {  /* host -> device */
    void *dst;
    const void *src;
    size_t size_bytes;
};
struct op_copy_out { /* device -> host */
    void *dst;
    const void *src;
    size_t size_bytes;
};
struct op_embed {    /* y[r] = scale * W[ids[r]] */
    const struct weight *w;
    const uint32_t *ids; /* device, [y.rows] */
    struct tensor y;
    float scale;
};
struct op_linear {   /* y = alpha * (W x + bias)  or  y += alpha * (W x + bias) */
    const struct weight *w; /* [y.cols][x.cols] */
    const float *bias;      /* vec [y.cols] or NULL */
    struct tensor x, y;
    float alpha;            /* 1 = exactly the product */
    bool add;
};
struct op_norm {     /* per group g of `dim` columns: y = (x r) w, r = 1 / sqrt(mean(x^2) + eps); add: y += scale * that */
    struct tensor x, y;     /* cols = groups * dim; y may be x when add is false */
    uint32_t dim;
    const float *w;         /* vec [dim] */
    float eps;
    bool add;
    float scale;            /* used with add; 1 = exactly the sum */
};
struct op_rope_table { /* table[r][i] = cos, sin of f32(pos) * inv_freq[i], times mscale */
    const uint32_t *pos;    /* device, [table.rows] */
    const float *inv_freq;  /* vec [n] */
    uint32_t n;             /* pairs = rot / 2 */
    float mscale;
    struct tensor table;    /* [rows][2 n]: cos x n, then sin x n */
};
struct op_rope {     /* in place, every head of a row; elements past 2 n are left alone */
    struct tensor x;        /* cols = n_heads * head_dim */
    uint32_t n_heads, head_dim;
    struct tensor table;
    enum rope_pairing pairing;
};
struct op_kv_write { /* encode and store rows' K and V at their positions */
    struct tensor k, v;     /* [rows][n_kv_heads * d] */
    const struct kv_layer *layer;
    const struct kv_span *spans;
    uint32_t span_count;
    const uint32_t *tables; /* page ids */
};
struct op_attention { /* y[r][h] = softmax(scale q k) v over the positions r may see, read from the pages */
    struct tensor q, y;     /* cols = n_heads * d_k / n_heads * d_v */
    uint32_t n_heads;       /* multiple of layer->n_kv_heads; head h reads kv head h / (n_heads / n_kv_heads) */
    const struct kv_layer *layer;
    const struct kv_span *spans;
    uint32_t span_count;
    const uint32_t *tables;
    float scale;
    float softcap;          /* 0 off: s = cap tanh(scale s / cap) */
    uint32_t window;        /* 0 = all; else row at p sees positions p - window + 1 .. p */
};
struct op_gated {    /* y = act(gate) * up */
    struct tensor gate, up, y;
    enum act act;
};
struct op_add {      /* y = y * y_scale + x * x_scale (one rounding each, product first) */
    struct tensor x, y;
    float x_scale, y_scale;
};
struct op_softcap {  /* y = cap * tanh(x / cap), in place */
    struct tensor x;
    float cap;
};
struct op_gather {   /* y[i] = x[rows[i]] */
    struct tensor x, y;
    const uint32_t *rows;   /* device, [y.rows] */
};
struct op_sample_rows { /* one entry per row of logits */
    struct tensor logits;   /* overwritten */
    const struct sample_row *rows;  /* host or device-visible */
    struct sample_result *results;  /* host-visible after the event */
    uint32_t vocab;                 /* ids at and past it are never drawn (cols may be padded) */
};

/* fusions: the same values as their composition, bit for bit */
struct op_norm_linear { /* y_i = W_i norm(x) + bias_i, i < n */
    struct tensor x;
    const float *norm_w;    /* vec [x.cols] */
    float eps;
    uint32_t n;
    const struct weight *w[NORM_INPUT_MAX];
    const float *bias[NORM_INPUT_MAX];
    struct tensor y[NORM_INPUT_MAX];
    struct tensor scratch;  /* [rows][x.cols], for the composition */
};
struct op_norm_gated { /* y = act(Wg norm(x)) * (Wu norm(x)) */
    struct tensor x;
    const float *norm_w;
    float eps;
    const struct weight *gate, *up;
    enum act act;
    struct tensor y;
    struct tensor scratch, scratch_gate, scratch_up; /* for the composition */
};
struct op_attn_prepare { /* q, k: optional per-head norm, then rope; k, v stored: everything between QKV and attention */
    struct tensor q, k, v;
    uint32_t n_heads, head_dim;
    const float *q_norm, *k_norm; /* vec [head_dim] or NULL */
    float eps;
    struct tensor table;          /* rows == 0: no rope in this layer */
    enum rope_pairing pairing;
    const struct kv_layer *layer;
    const struct kv_span *spans;
    uint32_t span_count;
    const uint32_t *tables;
};

/* The list.  REQUIRED ops must be there; OPTIONAL ones may be NULL: ops.c then composes them. */
#define BACKEND_OPS(REQUIRED, OPTIONAL) \
    REQUIRED(copy_in)                   \
    REQUIRED(copy_out)                  \
    REQUIRED(embed)                     \
    REQUIRED(linear)                    \
    REQUIRED(norm)                      \
    REQUIRED(rope_table)                \
    REQUIRED(rope)                      \
    REQUIRED(kv_write)                  \
    REQUIRED(attention)                 \
    REQUIRED(gated)                     \
    REQUIRED(add)                       \
    REQUIRED(softcap)                   \
    REQUIRED(gather)                    \
    REQUIRED(sample_rows)               \
    OPTIONAL(norm_linear)               \
    OPTIONAL(norm_gated)                \
    OPTIONAL(attn_prepare)

/* ---- the backend ---- */

struct device_config {
    uint32_t n_threads;      /* 0 = physical cores */
    const char *level;       /* CPU level cap ("ref", "avx2", ...); NULL = best */
    bool pin;                /* pin workers */
    uint32_t index;          /* which device of the backend */
};
struct device_info {
    const char *backend;     /* "cpu" */
    char level[32];          /* "avx2" */
    char text[160];          /* what a person wants to read */
    uint32_t n_threads;
    uint64_t memory_total_bytes, memory_free_bytes; /* of the space it allocates from */
    uint32_t arithmetic;     /* arithmetic revision of this backend */
    bool levels_equal;       /* all levels give the same bits: the level is then no part of identities */
};
/* What steps will need at most; the backend sizes its own scratch once. */
struct device_reserve {
    uint32_t rows_max;       /* rows of a step */
    uint32_t cols_max;       /* widest linear input */
    uint32_t heads_max, head_dim_max;
    uint32_t context_max;    /* positions a sequence may reach */
    uint32_t logit_rows_max, vocab_max;
};

enum weight_use { WEIGHT_LINEAR = 1, WEIGHT_EMBED = 2 };

struct backend {
    const char *name;
    int (*device_open)(const struct device_config *cfg, struct device **out, struct err *err);
    void (*device_close)(struct device *d); /* waits for the queue first */
    void (*device_info)(const struct device *d, struct device_info *out);
    uint64_t (*reserve_plan)(const struct device *d, const struct device_reserve *r); /* bytes reserve would take */
    int (*reserve)(struct device *d, const struct device_reserve *r, struct err *err); /* again = grow */

    int (*buffer_new)(struct device *d, size_t size_bytes, void **out, struct err *err); /* zeroed, 64-byte aligned */
    void (*buffer_free)(struct device *d, void *p, size_t size_bytes);
    int (*buffer_write)(struct device *d, void *dst, const void *src, size_t size_bytes, struct err *err); /* outside steps */
    int (*buffer_read)(struct device *d, void *dst, const void *src, size_t size_bytes, struct err *err);

    /* Device bytes a weight will take; ERR_UNSUPPORTED naming type and tensor when it cannot be held. */
    int (*weight_plan)(struct device *d, const struct weight_src *src, unsigned use, uint64_t *size_bytes, struct err *err);
    /* Repack or upload.  The source is not needed afterwards.  Refuses non-finite scales. */
    int (*weight_prepare)(struct device *d, const struct weight_src *src, unsigned use, struct weight **out, struct err *err);
    void (*weight_free)(struct device *d, struct weight *w);

    bool (*kv_format_supported)(const struct device *d, enum kv_format k, enum kv_format v, uint32_t d_k, uint32_t d_v);

    /* Events count up: record enqueues a mark and gives its number (and hands all enqueued work to the device); wait blocks the
     * host until the queue passed it, and returns the first failure of the ops before it. */
    int (*event_record)(struct device *d, uint64_t *out);
    int (*event_wait)(struct device *d, uint64_t event, struct err *err);
    bool (*event_done)(struct device *d, uint64_t event);

#define BACKEND_FIELD(name) int (*name)(struct device *d, const struct op_##name *op);
    BACKEND_OPS(BACKEND_FIELD, BACKEND_FIELD)
#undef BACKEND_FIELD
};

/* ---- tensor/ops.c: shape checks, then the backend's op or its composition.  Shape mistakes are ERR_INTERNAL (ours). ---- */

/* Every struct device starts with this. */
struct device_head {
    const struct backend *backend;
};
static inline const struct backend *device_backend(const struct device *d)
{
    return ((const struct device_head *)(const void *)d)->backend;
}

/* Every prepared weight starts with this (the trace backend has nothing more). */
struct weight_head {
    enum dtype type;
    uint32_t rows, cols;
    const char *name; /* owned by the weight */
};
static inline const struct weight_head *weight_info(const struct weight *w)
{
    return (const struct weight_head *)(const void *)w;
}

#define OPS_PROTO(name) int op_##name(struct device *d, const struct op_##name *op, struct err *err);
BACKEND_OPS(OPS_PROTO, OPS_PROTO)
#undef OPS_PROTO

/* All required ops there?  Names the first that is missing. */
int backend_check(const struct backend *b, struct err *err);

static inline struct tensor tensor_cols(struct tensor t, uint32_t first, uint32_t cols) /* a view of some columns */
{
    return (struct tensor){(float *)t.data + first, t.rows, cols, t.stride};
}
static inline struct tensor tensor_rows(struct tensor t, uint32_t first, uint32_t rows)
{
    return (struct tensor){(float *)t.data + (size_t)first * t.stride, rows, t.cols, t.stride};
}

#endif
