/* models/bind.h - inside the models room only: bind tables, which say what tensors an architecture has, and what becomes of them.
 *
 * bind.c walks a table; bind_weight.c finds one weight of it: rows, fused rows, stacks of experts. */
#ifndef RH_MODELS_BIND_H
#define RH_MODELS_BIND_H

#include "models/hparams.h"
#include "models/model.h"

enum { MODEL_NAME_MAX = 192 };

/* ---- bind tables ---- */

enum model_weight {
    W_EMBED, W_HEAD, W_EMBED_LAYERS, W_LAYERS_IN,
    W_STREAM_IN, W_STREAM_OUT = W_STREAM_IN + 3, MODEL_WEIGHTS = W_STREAM_OUT + 3 /* of the second to the fourth stream */
};
enum model_vec { V_FINAL_NORM, V_ROPE_FREQS, V_ROPE_LONG, V_ROPE_SHORT, V_ONES, V_LAYERS_NORM, MODEL_VECS };
enum layer_weight {
    W_Q, W_K, W_V, W_O, W_GATE, W_UP, W_DOWN,
    W_Q_GATE,                                  /* gate of attention's output */
    W_STATE_IN, W_STATE_GATE, W_STATE_A, W_STATE_B, W_STATE_OUT, /* recurrent layers */
    W_INPUT_GATE, W_INPUT_OUT,                 /* of a layer's own embedding */
    W_ALTUP_ROUTER, W_ALTUP_PREDICT, W_ALTUP_CORRECT, W_LAUREL_LEFT, W_LAUREL_RIGHT, /* of several streams */
    W_ROUTER, W_EXPERT_GATE, W_EXPERT_UP, W_EXPERT_DOWN,         /* experts: stacks but for the router */
    W_SHARED_GATE, W_SHARED_UP, W_SHARED_DOWN, W_SHARED_WEIGHT,  /* the shared expert; the gate of its output */
    W_LATENT_IN, W_LATENT_OUT,                 /* before and behind experts that work on a smaller row */
    W_Q_A, W_KV_A, W_K_B, W_V_B,               /* latent attention; W_Q: of its queries */
    LAYER_WEIGHTS
};
enum layer_vec {
    V_ATTN_NORM, V_FFN_NORM, V_POST_ATTN_NORM, V_POST_FFN_NORM, V_Q_NORM, V_K_NORM,
    V_Q_BIAS, V_K_BIAS, V_V_BIAS, V_O_BIAS, V_GATE_BIAS, V_UP_BIAS, V_DOWN_BIAS,
    V_STATE_CONV, V_STATE_RATE, V_STATE_DT, V_STATE_NORM, /* recurrent layers */
    V_STATE_SKIP, V_STATE_CONV_BIAS, V_STATE_IN_BIAS, V_STATE_OUT_BIAS,
    V_INPUT_NORM,
    V_ALTUP_NORM, V_ALTUP_SCALE, V_LAUREL_NORM,
    V_SINKS,
    V_ROUTER_BIAS, V_ROUTE_BIAS, V_EXPERT_GATE_BIAS, V_EXPERT_UP_BIAS, V_EXPERT_DOWN_BIAS, V_EXPERT_SCALE, /* experts */
    V_Q_A_NORM, V_KV_A_NORM,
    V_ROUTER_NORM, V_EXPERTS_NORM, V_POST_MLP_NORM, V_POST_EXPERTS_NORM, /* experts beside the MLP */
    LAYER_VECS
};
enum layer_number { N_SCALE, N_ALPHA_P, N_ALPHA_N, N_BETA, N_EPS, LAYER_NUMBERS }; /* tensors of one element, which the host reads */

/* ones: a vector of ones that no file has; ignored layer: a tensor, weights named without ".weight", that may be there */
enum bind_kind {
    BIND_WEIGHT, BIND_VEC, BIND_LAYER_WEIGHT, BIND_LAYER_VEC, BIND_LAYER_NUMBER, BIND_ONES, BIND_IGNORED, BIND_IGNORED_LAYER
};
/* what a layer must have; several at once */
enum bind_layers {
    LAYERS_ALL = 0, LAYERS_ATTENTION = 1, LAYERS_RECURRENT = 2, LAYERS_OWN_KV = 4, LAYERS_OWN_V = 8, LAYERS_OTHERS_KV = 16,
    LAYERS_DENSE = 32, LAYERS_EXPERTS = 64, LAYERS_MLP = 128 /* that alone */
};
enum bind_map {
    MAP_NONE,
    MAP_NEG_EXP,    /* of a Hugging Face vector: -exp(x), as GGUF files have it */
    MAP_ROWS,       /* a vector of several: kept row by row as the file has it */
    MAP_TRANSPOSED, /* of a matrix of plain elements: the file has [cols][rows] */
    MAP_TURNED,     /* of a matrix: the bound rows of every group turned round; plain elements stay, others become F32 */
    MAP_STATE_IN,   /* of a matrix that has q, k, v and more of every key head together: q of all heads, then k, then v */
};
enum bind_split { SPLIT_NONE, SPLIT_ROWS, SPLIT_COLS, SPLIT_HEADS, SPLIT_EXPERTS };

/* shapes as expressions over hparams */
enum model_dim {
    DIM_0, DIM_1, DIM_HIDDEN, DIM_FFN, DIM_2_FFN, DIM_VOCAB, DIM_Q, DIM_KV, DIM_Q_KV, DIM_QKV, DIM_HEAD, DIM_ROT_HALF,
    DIM_2_Q, DIM_2_HEAD, DIM_TAPS, DIM_CHANNELS, DIM_STATE_COLS, DIM_STATE_OUT, DIM_STATE_VALUES, DIM_STATE_HEAD, DIM_HEAD_MOST,
    DIM_INPUT, DIM_INPUTS, DIM_INPUT_VOCAB,
    DIM_CHANNEL_HEAD, DIM_STATE_GROUP, DIM_STATE_GROUPS, DIM_VALUES, DIM_2_VALUES, DIM_2_STATE_VALUES,
    DIM_STATE_OUT_COLS, DIM_STATE_ALL, DIM_KEY_HEADS, DIM_KEY_HEAD_OUT,
    DIM_2_HIDDEN, DIM_3_HIDDEN, DIM_STREAMS, DIM_STREAMS_2, DIM_LAUREL,
    DIM_2, DIM_HEADS, DIM_EXPERTS, DIM_EXPERT_IN, DIM_EXPERT_FFN, DIM_2_EXPERT_FFN, DIM_SHARED_FFN,
    DIM_Q_RANK, DIM_RANK, DIM_NOPE, DIM_RANK_ROPE, DIM_K_B, DIM_V_B, DIM_KV_B, DIM_KV_B_HEAD
};
uint32_t hparams_dim(const struct hparams *hp, uint32_t layer, enum model_dim d); /* of no layer: 0 */

/* One row: a tensor, or rows of one, that must be there while its flags hold.  Weights are named without ".weight". */
struct bind {
    enum bind_kind kind;
    uint32_t slot;              /* of the kind's enum */
    const char *gguf, *hf;      /* name patterns, %u = layer, expert; of "A|B" the one that is there; NULL: not in files of that kind; ignored: a prefix */
    enum model_dim rows, cols;  /* vectors: rows; of a convolution rows x taps, transposed when read */
    enum model_dim stack;       /* weights: that many matrices [rows][cols], in one tensor or, named with two %u, each in its own */
    enum model_dim first, of;   /* fused (a stack's matrices too): first row (MAP_ROWS: column), rows of the whole tensor (DIM_0 = the whole is bound);
                                 * of a vector: when the tensor is `of` long it is from `first` on, else the tensor itself */
    enum model_dim group;       /* fused group by group: rows of a group, `first` counts in it (DIM_0 = one run of rows) */
    uint32_t when, unless;      /* enum hparam_flag: all of when, none of unless */
    enum bind_split split;
    bool norm;                  /* norm_shift applies */
    unsigned layers;            /* enum bind_layers */
    enum bind_map map;
};

/* bind.c: walk the table; with plan_only sizes and shapes are checked and nothing is prepared. */
int model_bind(struct model *m, bool plan_only, struct err *err);
void model_unbind(struct model *m);

/* bind_weight.c: what a row of the table names, as a backend takes it */
struct bound {
    struct weight_src src;
    char name[MODEL_NAME_MAX];
    struct weight_src *experts; /* of a stack */
    unsigned char *memory;      /* rows that had to be gathered: the device reads them until it is waited for */
};
void bind_name(const struct model *m, const struct bind *b, uint32_t layer, uint32_t expert, char out[MODEL_NAME_MAX]);
size_t weight_scale_row_bytes(const struct weight_src *src); /* of a row's scales (or biases); 0 when they are part of the row */
/* Shapes are checked; rows are gathered only with `gather`.  Give `out` back with bound_free whatever is returned. */
int bound_find(struct model *m, const struct bind *b, uint32_t layer, bool gather, struct bound *out, struct err *err);
void bound_free(struct bound *b);

#endif
