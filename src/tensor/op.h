/* tensor/op.h - the ops of the wall: one parameter struct each, and the one list of them (backend.h says how ops run). */
#ifndef RH_TENSOR_OP_H
#define RH_TENSOR_OP_H

#include "tensor/op_recurrent.h"
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
struct op_copy {     /* device -> device; no overlap */
    void *dst;
    const void *src;
    size_t size_bytes;
};
struct op_embed {    /* y[r] = scale * W[ids[r]]; 0 where the id is UINT32_MAX (a sample that found none) */
    const struct weight *w;
    const uint32_t *ids; /* device, [y.rows] */
    struct tensor y;
    float scale;
    bool wrap;              /* an id past the table reads its first row; else it is an error */
};
struct op_linear {   /* y = alpha * (W x + bias)  or  y += alpha * (W x + bias) */
    const struct weight *w; /* [y.cols][x.cols] */
    const float *bias;      /* vec [y.cols] or NULL */
    struct tensor x, y;
    float alpha;            /* 1 = exactly the product */
    bool add;
};
struct op_linear_heads { /* per head h: y_h = (W_h x_h, tail): W_h = rows [h out, (h + 1) out) of w, out = rows / n_heads */
    const struct weight *w; /* [n_heads * out][in] */
    uint32_t n_heads;
    uint32_t tail;          /* elements behind the `in` first of each x_h that go unchanged behind y_h's `out` */
    struct tensor x, y;     /* cols = n_heads * (in + tail), n_heads * (out + tail) */
};
struct op_norm {     /* per group g of `dim` columns: y = (x r) w, r = 1 / sqrt(mean(x^2) + eps); add: y += scale * that */
    struct tensor x, y;     /* cols = groups * dim; y may be x when add is false */
    uint32_t dim;
    const float *w;         /* vec [dim]; own: vec [x.cols], every group its own */
    float eps;
    bool add;
    float scale;            /* used with add; 1 = exactly the sum */
    bool own;
    bool centred;           /* layer norm: x less its mean stands for x; not with add */
};
struct op_rope_table { /* table[r][i] = cos, sin of f32(pos) * inv_freq[i], times mscale */
    const uint32_t *pos;    /* device, [table.rows] */
    const float *inv_freq;  /* vec [n] */
    uint32_t n;             /* pairs = rot / 2 */
    float mscale;
    struct tensor table;    /* [rows][2 n]: cos x n, then sin x n */
};
struct op_rope {     /* in place, every head of a row: elements [first, first + 2 n); the others are left alone */
    struct tensor x;        /* cols = n_heads * head_dim */
    uint32_t n_heads, head_dim, first;
    struct tensor table;
    enum rope_pairing pairing;
};
struct op_kv_write { /* encode and store rows' K and V at their positions */
    struct tensor k, v;     /* [rows][n_kv_heads * d]; v has no rows for a latent layer */
    const struct kv_layer *layer;
    const struct kv_span *spans;
    uint32_t span_count;
    const uint32_t *tables; /* page ids */
};
enum { KV_CONVERT_PAGES = 16 };
struct op_kv_convert { /* what pages of one layer hold, encoded as another stores it: the same heads, other formats */
    const struct kv_layer *from, *to;
    uint32_t page_count;
    uint32_t positions_last; /* of the last page; of those before it all */
    uint32_t from_pages[KV_CONVERT_PAGES], to_pages[KV_CONVERT_PAGES]; /* ids */
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
    const float *sinks;     /* vec [n_heads] or NULL: a score (after scale and soft cap) that takes part in the softmax, with no value */
};
struct op_gated {    /* y = act(gate) * up */
    struct tensor gate, up, y;
    enum act act;
};
struct op_xielu {    /* in place: x > 0: alpha_p x^2 + beta x; else (exp(min(x, eps)) - 1 - x) alpha_n + beta x */
    struct tensor x;
    float alpha_p, alpha_n, beta, eps;
};
struct op_add {      /* y = y * y_scale + x * x_scale (one rounding each, product first) */
    struct tensor x, y;
    float x_scale, y_scale;
};
struct op_scale {    /* x = scale * x, in place; with w: x = (x * w) * scale */
    struct tensor x;
    float scale;
    const float *w;         /* vec [x.cols] or NULL */
};
struct op_blend {    /* y_i = base_i + sum over j of (coef[r][i n + j] + shift) x_j, j ascending; y_i may be base_i */
    uint32_t n, m;          /* of x, of y; at most BLEND_MAX */
    struct tensor x[BLEND_MAX], base[BLEND_MAX], y[BLEND_MAX]; /* all of one shape */
    struct tensor coef;     /* [rows][m n] */
    float shift;
};
struct op_match {    /* y = y * (rms(x) / sqrt(max(mean(y^2), least))), row by row: y gets the magnitude of x */
    struct tensor x, y;
    float least;
};
struct op_sparsify { /* x = max(x - (mean + factor * deviation), 0), in place, both of the row */
    struct tensor x;
    float factor;
};
struct op_softcap {  /* y = cap * tanh(x / cap), in place */
    struct tensor x;
    float cap;
};
struct op_gather {   /* y[i] = x[rows[i]] */
    struct tensor x, y;
    const uint32_t *rows;   /* device, [y.rows] */
};

/* Mixtures of experts.  Slot s of row r is row r * top + s of the tensors between router and sum. */
struct op_route {    /* each row's experts and their weights */
    struct tensor logits;   /* cols = experts */
    enum route_score score; /* what becomes the weight */
    uint32_t top;           /* slots of a row: the experts with the largest choice, largest first, ties to the lowest index */
    const float *bias;      /* vec [experts] or NULL: choice = score + bias; without one the choice of both softmaxes is the logit */
    uint32_t groups, group_top, group_best; /* groups > 1: only experts of the group_top groups of `experts / groups` neighbours in
                                             * which the group_best largest choices sum highest (ties to the lowest group) */
    bool normalise;         /* weight = weight / (sum over slots, in order, + 1e-20) */
    float scale;            /* weight = weight * scale */
    const float *expert_scale; /* vec [experts] or NULL: weight = weight * expert_scale[id] */
    bool replay;            /* ids are there already; only weights are computed */
    uint32_t *ids;          /* device, [rows][top] */
    float *weights;         /* device, [rows][top] */
};
struct op_expert_linear { /* y[i] = W_e x[i / (y.rows / x.rows)] + bias_e, e = ids[i]: each element as op_linear has it */
    const struct weight *w; /* a stack of [y.cols][x.cols] */
    const float *bias;      /* vec [experts][y.cols] or NULL */
    struct tensor x, y;     /* x.rows = rows (all slots of a row read the same) or y.rows */
    const uint32_t *ids;    /* device, [y.rows] */
};
struct op_expert_sum { /* v = weights[r][0] x[r top]; v = v + weights[r][s] x[r top + s], s ascending;  y[r] = v or y[r] + v */
    struct tensor x, y;     /* x.rows = y.rows * top */
    const float *weights;   /* device, [x.rows] */
    bool add;
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
struct op_expert_gated { /* y = act(gate) * up: two expert_linear of one x, then gated */
    struct tensor x, y;
    const struct weight *gate, *up;
    const float *gate_bias, *up_bias; /* vec [experts][y.cols] or NULL */
    enum act act;
    const uint32_t *ids;
    struct tensor scratch_gate, scratch_up; /* as y, for the composition */
};
struct op_expert_output { struct op_expert_linear linear; struct op_expert_sum sum; }; /* in turn; linear.y is sum.x: scratch, for the composition */
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
    REQUIRED(copy)                      \
    REQUIRED(embed)                     \
    REQUIRED(linear)                    \
    REQUIRED(linear_heads)              \
    REQUIRED(norm)                      \
    REQUIRED(rope_table)                \
    REQUIRED(rope)                      \
    REQUIRED(kv_write)                  \
    REQUIRED(kv_convert)                \
    REQUIRED(attention)                 \
    REQUIRED(gated)                     \
    REQUIRED(xielu)                     \
    REQUIRED(add)                       \
    REQUIRED(scale)                     \
    REQUIRED(blend)                     \
    REQUIRED(match)                     \
    REQUIRED(sparsify)                  \
    REQUIRED(softcap)                   \
    REQUIRED(gather)                    \
    REQUIRED(short_conv)                \
    REQUIRED(delta_net)                 \
    REQUIRED(mamba)                     \
    REQUIRED(route)                     \
    REQUIRED(expert_linear)             \
    REQUIRED(expert_sum)                \
    REQUIRED(sample_rows)               \
    OPTIONAL(norm_linear)               \
    OPTIONAL(norm_gated)                \
    OPTIONAL(expert_gated)              \
    OPTIONAL(expert_output)             \
    OPTIONAL(attn_prepare)

#endif
