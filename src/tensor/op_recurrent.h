/* tensor/op_recurrent.h - the ops of recurrent layers (op.h says what holds for all ops, and lists them). */
#ifndef RH_TENSOR_OP_RECURRENT_H
#define RH_TENSOR_OP_RECURRENT_H

#include "tensor/state.h"
#include "tensor/tensor.h"

/* Recurrent layers: state.h says what their blocks keep.  A span starts at position 0 or in a block that is kept; spans of one
 * sequence come in ascending order.  The convolution's inputs before position 0 are zeros. */
struct op_short_conv { /* y = c * (conv(b * v) + bias), per channel conv(z)[t] = sum over i of w[i] z[t - taps + 1 + i] */
    struct tensor x;          /* cols = 3 channels: b, c, v; b is overwritten */
    struct tensor y;          /* cols = channels */
    const float *w;           /* vec [taps][channels] */
    const float *bias;        /* vec [channels] or NULL */
    const struct state_layer *layer; /* one head, values 0 */
    const struct kv_span *spans;
    uint32_t span_count;
    const uint32_t *tables;   /* block ids */
};
/* Gated delta net.  Per row: z = silu(conv(qkv)); q, k = those heads of z / sqrt(sum of squares + eps), q also * d_k^-1/2;
 * beta = sigmoid(b); l = rate * softplus(a + dt_bias).  Per value head, S [d_k][d_v] from zeros at position 0:
 *   S = exp(l) S;  u = beta (v - S^T k);  S = S + k u^T;  y = S^T q                                                      */
struct op_delta_net {
    struct tensor qkv;        /* cols = q of all key heads, k of all key heads, v of all value heads; overwritten */
    struct tensor a, b;       /* cols = value heads; overwritten */
    struct tensor y;          /* cols = value heads * d_v */
    const float *conv;        /* vec [taps][cols of qkv] */
    const float *rate;        /* vec [value heads]: -exp(A_log) */
    const float *dt_bias;     /* vec [value heads] */
    float eps;
    bool tiled;               /* value head v reads key head v mod heads; else v / values */
    const struct state_layer *layer;
    const struct kv_span *spans;
    uint32_t span_count;
    const uint32_t *tables;   /* block ids */
};

/* Mamba 2.  Per row: z = silu(conv(xbc) + conv_bias); x, B, C = those heads of z; t = max(softplus(dt + dt_bias), dt_least);
 * l = rate t.  Per head of x, with the B and C of its group (head / values), S [d_k][d_v] from zeros at position 0:
 *   S = exp(l) S + B (t x)^T;  y = S^T C + skip x
 * What blocks keep is what delta_net keeps: B as keys, t x as deltas. */
struct op_mamba {
    struct tensor xbc;        /* cols = x of all heads, B of all groups, C of all groups; overwritten */
    struct tensor dt, times;  /* cols = heads; overwritten: by log gates, by t */
    struct tensor y;          /* cols = heads * d_v */
    const float *conv;        /* vec [taps][cols of xbc] */
    const float *conv_bias;   /* vec [cols of xbc] or NULL */
    const float *rate;        /* vec [heads]: -exp(A_log) */
    const float *dt_bias, *skip; /* vec [heads] */
    float dt_least;
    const struct state_layer *layer; /* heads: groups; values: heads of a group */
    const struct kv_span *spans;
    uint32_t span_count;
    const uint32_t *tables;   /* block ids */
};

#endif
