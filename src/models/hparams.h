/* models/hparams.h - inside the models room only: the hyper-parameters of an architecture, from config.json or GGUF metadata. */
#ifndef RH_MODELS_HPARAMS_H
#define RH_MODELS_HPARAMS_H

#include "base/err.h"
#include "tensor/state.h"
#include "tensor/tensor.h"

enum { MODEL_LAYERS_MAX = 512, MODEL_ROPE_PAIRS_MAX = 512, MODEL_ROPE_SETS = 2, MODEL_EXTRA = 20 };

enum rope_kind { ROPE_PLAIN, ROPE_LINEAR, ROPE_LLAMA3, ROPE_YARN, ROPE_LONGROPE, ROPE_PROPORTIONAL };

struct rope_params {
    enum rope_kind kind;
    double theta;
    uint32_t head;                /* head dim of the layers that use it; 0 = the model's */
    uint32_t rot;                 /* elements of a head that turn; even */
    uint32_t turned;              /* proportional: pairs with an angle; the others, up to rot / 2, stay */
    double factor;                /* linear, llama3, yarn, proportional (0 = 1); longrope: 0 = context_train / original */
    double low_freq, high_freq;   /* llama3 */
    uint32_t original;            /* context before scaling; 0 = context_train */
    double beta_fast, beta_slow;  /* yarn */
    double attention_factor;      /* 0 = by the rule of the kind */
    double mscale, mscale_all;    /* yarn; 0 = absent */
    bool truncate;                /* yarn: whole correction dimensions */
    bool sections;                /* the architecture may give a pair one of several positions: text has one */
    uint32_t factor_count;        /* longrope: entries of the two lists */
    float factors_short[MODEL_ROPE_PAIRS_MAX], factors_long[MODEL_ROPE_PAIRS_MAX];
};

/* Latent attention: keys and values of all heads are products of one vector a position, and only that is stored, with one rotated key
 * all heads share. */
struct mla_params {
    uint32_t rank;                /* of that vector; 0: the architecture has none of it */
    uint32_t q_rank;              /* queries come through a vector of that size; 0: directly */
    uint32_t nope, rope;          /* elements of a query: for the head's own key, for the shared one */
    uint32_t v;                   /* elements of a head's value */
};

/* facts that decide which rows of a bind table hold */
enum hparam_flag {
    HP_TIED = 1 << 0,          /* no tensor of its own for the head */
    HP_QKV_BIAS = 1 << 1,
    HP_O_BIAS = 1 << 2,
    HP_MLP_BIAS = 1 << 3,
    HP_QK_NORM = 1 << 4,
    HP_FUSED_QKV = 1 << 5,     /* q, k and v are rows of one tensor */
    HP_FUSED_GATE_UP = 1 << 6,
    HP_ROPE_FREQS = 1 << 7,    /* GGUF: a tensor of frequency divisors */
    HP_ROPE_LONG = 1 << 8,     /* GGUF: long and short factors as tensors */
    HP_POST_NORM = 1 << 9,     /* norms after attention and after the MLP */
    HP_ATTN_GATE = 1 << 10,    /* attention's output times the sigmoid of a gate beside q */
    HP_QK_NORM_WIDE = 1 << 11, /* norms of all of q and all of k, not of each head */
    HP_NO_PRE_NORM = 1 << 12,  /* blocks read the stream itself */
    HP_V_NORM = 1 << 13,       /* norms of each head of v, without weights */
    HP_LAYER_SCALE = 1 << 14,  /* the stream is multiplied by a number behind each layer */
    HP_LAYER_INPUTS = 1 << 15, /* every layer has an embedding of its own */
    HP_LAYER_NORM = 1 << 16,   /* norms take the mean out first */
    HP_PARALLEL = 1 << 17,     /* attention and MLP read one norm of the stream */
    HP_CONV_BIAS = 1 << 18,    /* recurrent layers: of the convolution */
    HP_STATE_BIAS = 1 << 19,   /* recurrent layers: of the products before and after it */
    HP_STREAM_SCALE = 1 << 20, /* the active stream is scaled before it meets the layer's inputs */
    HP_Q_RANK = 1 << 21,       /* latent attention: mla.q_rank is not 0 */
    HP_KV_B_SPLIT = 1 << 22,   /* keys and values of the latent vector are two tensors, the keys' turned round */
    HP_SHARED = 1 << 23,       /* an expert that every row takes */
    HP_EXPERTS_FUSED = 1 << 24, /* gate and up of all experts are one tensor; of a Hugging Face file all of down too */
    HP_EXPERT_BIAS = 1 << 25,  /* of router and experts */
    HP_ROUTE_BIAS = 1 << 26,   /* counts for the choice of experts alone */
    HP_SHARED_GATE = 1 << 27,  /* the shared expert times the sigmoid of a gate */
    HP_SINKS = 1 << 28,        /* a score of every head that takes part in the softmax and has no value */
    HP_MAMBA = 1 << 29,        /* recurrent layers are Mamba 2 */
    HP_LATENT = 1 << 30,       /* moe.latent is not 0 */
};

/* Sizes that may differ from layer to layer. */
struct layer_shape {
    uint32_t kv_heads, head_dim, ffn;
};

/* Mixture of experts; experts 0: none. */
struct experts_params {
    uint32_t experts, used, ffn; /* each expert's inner width */
    uint32_t shared_ffn;         /* of the expert every row takes; 0: none */
    uint32_t latent;             /* experts work on a product of the row with so many elements; 0: on the row */
    enum route_score score;
    uint32_t groups, group_top, group_best; /* op_route */
    bool normalise;
    float scale;
    float router_scale;          /* of the router's product; 0: 1 */
    bool beside;                 /* the MLP, not in its place: the architecture's own layer runs them */
};

struct hparams {
    uint32_t layers, hidden, heads, kv_heads, head_dim, ffn, vocab, context_train;
    float eps;
    enum act act;
    const char *own_act;       /* hidden_act of an architecture with an activation of its own; NULL: one of enum act */
    uint32_t flags;            /* enum hparam_flag */
    float embed_scale;         /* 1 = none */
    float residual_scale;      /* of what a block adds to the stream */
    float attn_scale;          /* of q k */
    float logit_scale;         /* of the head's product */
    float attn_softcap, final_softcap; /* 0 = none */
    float norm_shift;          /* added to every norm weight as stored */
    enum rope_pairing pairing;
    struct rope_params rope[MODEL_ROPE_SETS]; /* 0: full-attention layers, 1: sliding layers */
    uint32_t rope_sets;        /* 1: every layer uses set 0 */
    uint32_t window;           /* 0 = no sliding layer */
    uint8_t sliding[MODEL_LAYERS_MAX];
    uint8_t no_rope[MODEL_LAYERS_MAX]; /* layers without rope */
    struct layer_shape shape[MODEL_LAYERS_MAX]; /* 0: the model's value, which hparams_finish puts in its place */
    uint16_t kv_from[MODEL_LAYERS_MAX];         /* 1 + the earlier layer whose K and V this one reads; 0: its own */
    uint8_t v_is_k[MODEL_LAYERS_MAX];           /* v is k before its norm and rope */
    uint32_t layer_inputs, layer_vocab;         /* HP_LAYER_INPUTS: elements a layer, ids */
    uint8_t mlp_only[MODEL_LAYERS_MAX];         /* layers that keep nothing of a text */
    float dt_least;                             /* HP_MAMBA */
    bool layer_wrap;                            /* HP_LAYER_INPUTS: an id past them reads the first; else there is none */
    uint8_t sparse[MODEL_LAYERS_MAX];           /* gates far above their row's mean alone pass: by how many deviations */
    float sparse_factor[MODEL_LAYERS_MAX];
    uint32_t streams, active_stream, laurel;    /* of several streams: which one layers work on; rank of the path beside attention */
    uint32_t extra[MODEL_EXTRA];                /* columns of step buffers of the architecture's own; 0: none */
    struct mla_params mla;
    struct state_shape state;  /* of recurrent layers; anchor 0: the architecture has none */
    bool state_tiled;          /* value head v reads key head v mod heads (GGUF); else v / values */
    uint8_t recurrent[MODEL_LAYERS_MAX];
    struct experts_params moe;
    uint8_t dense[MODEL_LAYERS_MAX]; /* layers of a model with experts that have none */
    uint32_t ignored_layers;   /* behind the last one, which a forward does not use */
};

/* The widest layer's: what a step's buffers hold. */
uint32_t model_q_cols(const struct hparams *hp); /* heads * head_dim */
uint32_t model_kv_cols(const struct hparams *hp);
uint32_t model_head_dim(const struct hparams *hp);
uint32_t model_ffn(const struct hparams *hp);
/* The values that layers left open. */
void hparams_finish(struct hparams *hp);
/* Every `period`-th layer is full, the others slide; 0: none slides. */
void hparams_layers_by_period(struct hparams *hp, uint32_t period);
/* Recurrent layers: columns of what the convolution and the recurrence read, and of what they give; 0: the model has none. */
uint32_t model_state_cols(const struct hparams *hp);
uint32_t model_state_out(const struct hparams *hp);
/* Ranges and divisibility of everything read. */
int hparams_check(const struct hparams *hp, struct err *err);

#endif
