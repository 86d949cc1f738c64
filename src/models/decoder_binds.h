/* models/decoder_binds.h - rows of bind tables that architectures built on decoder.c share. */
#ifndef RH_MODELS_DECODER_BINDS_H
#define RH_MODELS_DECODER_BINDS_H

#include "models/arch.h"

#define BIND_MATRIX(slot_, gguf_, hf_, rows_, cols_, split_, ...)                                                                \
    {                                                                                                                            \
        .kind = BIND_LAYER_WEIGHT, .slot = slot_, .gguf = "blk.%u." gguf_, .hf = "model.layers.%u." hf_, .rows = rows_,          \
        .cols = cols_, .split = split_, __VA_ARGS__                                                                              \
    }
#define BIND_VECTOR(slot_, gguf_, hf_, rows_, ...) \
    {.kind = BIND_LAYER_VEC, .slot = slot_, .gguf = "blk.%u." gguf_, .hf = "model.layers.%u." hf_, .rows = rows_, .cols = DIM_1, \
     __VA_ARGS__}

/* whole patterns; NULL: not in files of that kind */
#define BIND_NAMED(slot_, gguf_, hf_, rows_, cols_, split_, ...)                                                                 \
    {.kind = BIND_LAYER_WEIGHT, .slot = slot_, .gguf = gguf_, .hf = hf_, .rows = rows_, .cols = cols_, .split = split_, __VA_ARGS__}

/* a recurrent layer's convolution */
#define BIND_TAPS(gguf_, hf_)                                                                                                    \
    {.kind = BIND_LAYER_VEC, .slot = V_STATE_CONV, .gguf = "blk.%u." gguf_, .hf = "model.layers.%u." hf_, .rows = DIM_CHANNELS,  \
     .cols = DIM_TAPS, .layers = LAYERS_RECURRENT}

#define BIND_EMBED_AND_HEAD                                                                                                      \
    {.kind = BIND_WEIGHT, .slot = W_EMBED, .gguf = "token_embd", .hf = "model.embed_tokens", .rows = DIM_VOCAB,                  \
     .cols = DIM_HIDDEN, .split = SPLIT_ROWS},                                                                                   \
    {.kind = BIND_WEIGHT, .slot = W_HEAD, .gguf = "output", .hf = "lm_head", .rows = DIM_VOCAB, .cols = DIM_HIDDEN,              \
     .unless = HP_TIED, .split = SPLIT_ROWS}

/* embedding, head, final norm; what old files carry and nobody needs */
#define BINDS_ENDS                                                                                                               \
    BIND_EMBED_AND_HEAD,                                                                                                         \
    {.kind = BIND_VEC, .slot = V_FINAL_NORM, .gguf = "output_norm.weight", .hf = "model.norm.weight", .rows = DIM_HIDDEN,        \
     .cols = DIM_1, .norm = true},                                                                                               \
    {.kind = BIND_VEC, .slot = V_ROPE_FREQS, .gguf = "rope_freqs.weight", .rows = DIM_ROT_HALF, .cols = DIM_1,                   \
     .when = HP_ROPE_FREQS},                                                                                                     \
    {.kind = BIND_IGNORED, .hf = "rotary_emb.inv_freq"}

/* parts for pictures and sound of a model around this one, as transformers and as MLX names them */
#define BINDS_PICTURES                                                                                                           \
    {.kind = BIND_IGNORED, .hf = "vision_tower."}, {.kind = BIND_IGNORED, .hf = "model.vision_tower."},                          \
    {.kind = BIND_IGNORED, .hf = "multi_modal_projector."}, {.kind = BIND_IGNORED, .hf = "model.multi_modal_projector."}

#define BINDS_QKV                                                                                                                \
    BIND_MATRIX(W_Q, "attn_q", "self_attn.q_proj", DIM_Q, DIM_HIDDEN, SPLIT_HEADS, .unless = HP_FUSED_QKV),                      \
    BIND_MATRIX(W_K, "attn_k", "self_attn.k_proj", DIM_KV, DIM_HIDDEN, SPLIT_HEADS, .unless = HP_FUSED_QKV),                     \
    BIND_MATRIX(W_V, "attn_v", "self_attn.v_proj", DIM_KV, DIM_HIDDEN, SPLIT_HEADS, .unless = HP_FUSED_QKV)

#define BINDS_QKV_FUSED                                                                                                          \
    BIND_MATRIX(W_Q, "attn_qkv", "self_attn.qkv_proj", DIM_Q, DIM_HIDDEN, SPLIT_HEADS, .of = DIM_QKV, .when = HP_FUSED_QKV),     \
    BIND_MATRIX(W_K, "attn_qkv", "self_attn.qkv_proj", DIM_KV, DIM_HIDDEN, SPLIT_HEADS, .first = DIM_Q, .of = DIM_QKV,           \
                .when = HP_FUSED_QKV),                                                                                           \
    BIND_MATRIX(W_V, "attn_qkv", "self_attn.qkv_proj", DIM_KV, DIM_HIDDEN, SPLIT_HEADS, .first = DIM_Q_KV, .of = DIM_QKV,        \
                .when = HP_FUSED_QKV)

/* of q, k and v each, or (GGUF) of all three together */
#define BIND_QKV_BIAS(slot, one, rows, first_)                                                                                   \
    BIND_VECTOR(slot, "attn_" one ".bias|blk.%u.attn_qkv.bias", "self_attn." one "_proj.bias", rows, .first = first_,            \
                .of = DIM_QKV, .when = HP_QKV_BIAS)
#define BINDS_QKV_BIAS                                                                                                           \
    BIND_QKV_BIAS(V_Q_BIAS, "q", DIM_Q, DIM_0), BIND_QKV_BIAS(V_K_BIAS, "k", DIM_KV, DIM_Q), BIND_QKV_BIAS(V_V_BIAS, "v", DIM_KV, DIM_Q_KV)

#define BINDS_O_BIAS BIND_VECTOR(V_O_BIAS, "attn_output.bias", "self_attn.o_proj.bias", DIM_HIDDEN, .when = HP_O_BIAS)

/* of config.json of GLM's that read pictures: ids that stand for one */
#define GLM_KEYS_PICTURES                                                                                                        \
    "image_token_id", "image_start_token_id", "image_end_token_id", "video_token_id", "video_start_token_id",                    \
        "video_end_token_id", "vision_start_token_id", "vision_end_token_id"

/* experts; `hf_router`: what the router is called in Hugging Face files */
#define EXPERT_KEYS_TRAINING "router_aux_loss_coef", "output_router_logits" /* of config.json; nothing of a forward */
#define BIND_STACK(slot_, gguf_, hf_, rows_, cols_, ...)                                                                         \
    BIND_NAMED(slot_, gguf_, hf_, rows_, cols_, SPLIT_EXPERTS, .stack = DIM_EXPERTS, .layers = LAYERS_EXPERTS, __VA_ARGS__)
/* a matrix each, or as MLX has them a stack */
#define HF_EXPERTS(name) "model.layers.%u.mlp.experts.%u." name "|model.layers.%u.mlp.switch_mlp." name
#define BINDS_EXPERTS(hf_router)                                                                                                 \
    BIND_MATRIX(W_ROUTER, "ffn_gate_inp", hf_router, DIM_EXPERTS, DIM_HIDDEN, SPLIT_NONE, .layers = LAYERS_EXPERTS),             \
    BIND_STACK(W_EXPERT_GATE, "blk.%u.ffn_gate_exps", HF_EXPERTS("gate_proj"), DIM_EXPERT_FFN, DIM_HIDDEN,                       \
               .unless = HP_EXPERTS_FUSED),                                                                                      \
    BIND_STACK(W_EXPERT_UP, "blk.%u.ffn_up_exps", HF_EXPERTS("up_proj"), DIM_EXPERT_FFN, DIM_HIDDEN, .unless = HP_EXPERTS_FUSED),\
    BIND_STACK(W_EXPERT_DOWN, NULL, HF_EXPERTS("down_proj"), DIM_HIDDEN, DIM_EXPERT_FFN, .unless = HP_EXPERTS_FUSED),            \
    BIND_STACK(W_EXPERT_GATE, "blk.%u.ffn_gate_up_exps", "model.layers.%u.mlp.experts.gate_up_proj", DIM_EXPERT_FFN, DIM_HIDDEN, \
               .of = DIM_2_EXPERT_FFN, .when = HP_EXPERTS_FUSED),                                                                \
    BIND_STACK(W_EXPERT_UP, "blk.%u.ffn_gate_up_exps", "model.layers.%u.mlp.experts.gate_up_proj", DIM_EXPERT_FFN, DIM_HIDDEN,   \
               .first = DIM_EXPERT_FFN, .of = DIM_2_EXPERT_FFN, .when = HP_EXPERTS_FUSED),                                       \
    BIND_STACK(W_EXPERT_DOWN, NULL, "model.layers.%u.mlp.experts.down_proj", DIM_HIDDEN, DIM_EXPERT_FFN,                         \
               .when = HP_EXPERTS_FUSED),                                                                                        \
    BIND_STACK(W_EXPERT_DOWN, "blk.%u.ffn_down_exps", NULL, DIM_HIDDEN, DIM_EXPERT_FFN, .when = 0)

/* the expert every row takes */
#define BINDS_SHARED(hf)                                                                                                         \
    BIND_MATRIX(W_SHARED_GATE, "ffn_gate_shexp", hf ".gate_proj", DIM_SHARED_FFN, DIM_HIDDEN, SPLIT_ROWS,                        \
                .layers = LAYERS_EXPERTS, .when = HP_SHARED),                                                                    \
    BIND_MATRIX(W_SHARED_UP, "ffn_up_shexp", hf ".up_proj", DIM_SHARED_FFN, DIM_HIDDEN, SPLIT_ROWS, .layers = LAYERS_EXPERTS,    \
                .when = HP_SHARED),                                                                                              \
    BIND_MATRIX(W_SHARED_DOWN, "ffn_down_shexp", hf ".down_proj", DIM_HIDDEN, DIM_SHARED_FFN, SPLIT_COLS,                        \
                .layers = LAYERS_EXPERTS, .when = HP_SHARED)

/* the MLP of layers without experts */
#define BINDS_MLP_DENSE                                                                                                          \
    BIND_MATRIX(W_GATE, "ffn_gate", "mlp.gate_proj", DIM_FFN, DIM_HIDDEN, SPLIT_ROWS, .layers = LAYERS_DENSE),                   \
    BIND_MATRIX(W_UP, "ffn_up", "mlp.up_proj", DIM_FFN, DIM_HIDDEN, SPLIT_ROWS, .layers = LAYERS_DENSE),                         \
    BIND_MATRIX(W_DOWN, "ffn_down", "mlp.down_proj", DIM_HIDDEN, DIM_FFN, SPLIT_COLS, .layers = LAYERS_DENSE)

#define BINDS_MLP                                                                                                                \
    BIND_MATRIX(W_GATE, "ffn_gate", "mlp.gate_proj", DIM_FFN, DIM_HIDDEN, SPLIT_ROWS, .unless = HP_FUSED_GATE_UP),               \
    BIND_MATRIX(W_UP, "ffn_up", "mlp.up_proj", DIM_FFN, DIM_HIDDEN, SPLIT_ROWS, .unless = HP_FUSED_GATE_UP),                     \
    BIND_MATRIX(W_DOWN, "ffn_down", "mlp.down_proj", DIM_HIDDEN, DIM_FFN, SPLIT_COLS)

#define BINDS_MLP_FUSED                                                                                                          \
    BIND_MATRIX(W_GATE, "ffn_up", "mlp.gate_up_proj", DIM_FFN, DIM_HIDDEN, SPLIT_ROWS, .of = DIM_2_FFN,                          \
                .when = HP_FUSED_GATE_UP),                                                                                       \
        BIND_MATRIX(W_UP, "ffn_up", "mlp.gate_up_proj", DIM_FFN, DIM_HIDDEN, SPLIT_ROWS, .first = DIM_FFN, .of = DIM_2_FFN,      \
                    .when = HP_FUSED_GATE_UP),                                                                                   \
        BIND_MATRIX(W_DOWN, "ffn_down", "mlp.down_proj", DIM_HIDDEN, DIM_FFN, SPLIT_COLS)

#define BINDS_MLP_BIAS                                                                                                           \
    BIND_VECTOR(V_GATE_BIAS, "ffn_gate.bias", "mlp.gate_proj.bias", DIM_FFN, .when = HP_MLP_BIAS),                               \
    BIND_VECTOR(V_UP_BIAS, "ffn_up.bias", "mlp.up_proj.bias", DIM_FFN, .when = HP_MLP_BIAS),                                     \
    BIND_VECTOR(V_DOWN_BIAS, "ffn_down.bias", "mlp.down_proj.bias", DIM_HIDDEN, .when = HP_MLP_BIAS)

#define BINDS_O BIND_MATRIX(W_O, "attn_output", "self_attn.o_proj", DIM_HIDDEN, DIM_Q, SPLIT_COLS)

#define BINDS_QK_NORM                                                                                                            \
    BIND_VECTOR(V_Q_NORM, "attn_q_norm.weight", "self_attn.q_norm.weight", DIM_HEAD, .when = HP_QK_NORM, .norm = true),          \
    BIND_VECTOR(V_K_NORM, "attn_k_norm.weight", "self_attn.k_norm.weight", DIM_HEAD, .when = HP_QK_NORM, .norm = true)

/* pre-norms of a layer without post-norms */
#define BINDS_PRE_NORMS                                                                                                          \
    BIND_VECTOR(V_ATTN_NORM, "attn_norm.weight", "input_layernorm.weight", DIM_HIDDEN, .norm = true),                            \
    BIND_VECTOR(V_FFN_NORM, "ffn_norm.weight", "post_attention_layernorm.weight", DIM_HIDDEN, .norm = true)

#endif
