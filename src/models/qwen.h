/* models/qwen.h - what the Qwen architectures share. */
#ifndef RH_MODELS_QWEN_H
#define RH_MODELS_QWEN_H

#include "models/decoder_binds.h"

/* layer_types, or use_sliding_window with max_window_layers: layers from that one on slide. */
int qwen_read_sliding(struct hparams *hp, const struct config_reader *cfg, struct err *err);

/* ---- layers with gated delta nets, of Qwen3-Next and Qwen3.5 (qwen3_5.c) ---- */

int qwen_delta_read_config(struct hparams *hp, const struct config_reader *cfg, struct err *err);
int qwen_delta_read_metadata(struct hparams *hp, const struct metadata_reader *md, struct err *err);

/* the same with `experts` experts, `used` of them a row, and a gated shared one (qwen3_5_moe.c) */
int qwen_moe_read_config(struct hparams *hp, uint32_t experts, uint32_t used, const struct config_reader *cfg, struct err *err);
int qwen_moe_read_metadata(struct hparams *hp, const struct metadata_reader *md, struct err *err);

#define DELTA_CONFIG_KEYS                                                                                             \
    "layer_types", "full_attention_interval", "linear_conv_kernel_dim", "linear_key_head_dim", "linear_value_head_dim", \
    "linear_num_key_heads", "linear_num_value_heads", "attn_output_gate", "mamba_ssm_dtype", "mtp_num_hidden_layers", \
    "mtp_use_dedicated_embeddings", "image_token_id", "video_token_id", "vision_start_token_id", "vision_end_token_id"
/* rope.dimension_sections: of several positions; in text all are the same */
#define DELTA_METADATA_KEYS                                                                                           \
    "ssm.conv_kernel", "ssm.state_size", "ssm.group_count", "ssm.time_step_rank", "ssm.inner_size", "nextn_predict_layers", \
    "full_attention_interval", "attention.recurrent_layers", "rope.dimension_sections"

#define BIND_Q_HALF(slot, first_)                                                                                     \
    BIND_MATRIX(slot, "attn_q", "self_attn.q_proj", DIM_Q, DIM_HIDDEN, SPLIT_HEADS, .first = first_, .of = DIM_2_Q,   \
                .group = DIM_2_HEAD, .layers = LAYERS_ATTENTION)
#define BIND_STATE_MATRIX(slot, gguf, hf, rows, ...) \
    BIND_MATRIX(slot, gguf, "linear_attn." hf, rows, DIM_HIDDEN, SPLIT_NONE, .layers = LAYERS_RECURRENT, __VA_ARGS__)
#define BIND_STATE_VECTOR(slot, gguf, hf, rows, ...) \
    BIND_VECTOR(slot, gguf, "linear_attn." hf, rows, .layers = LAYERS_RECURRENT, __VA_ARGS__)

/* all but what a delta net reads of the stream */
#define BINDS_DELTA_LAYERS                                                                                            \
    BIND_VECTOR(V_ATTN_NORM, "attn_norm.weight", "input_layernorm.weight", DIM_HIDDEN, .norm = true),                 \
    BIND_VECTOR(V_FFN_NORM, "post_attention_norm.weight", "post_attention_layernorm.weight", DIM_HIDDEN, .norm = true), \
    BIND_Q_HALF(W_Q, DIM_0),                                                                                          \
    BIND_Q_HALF(W_Q_GATE, DIM_HEAD),                                                                                  \
    BIND_MATRIX(W_K, "attn_k", "self_attn.k_proj", DIM_KV, DIM_HIDDEN, SPLIT_HEADS, .layers = LAYERS_ATTENTION),      \
    BIND_MATRIX(W_V, "attn_v", "self_attn.v_proj", DIM_KV, DIM_HIDDEN, SPLIT_HEADS, .layers = LAYERS_ATTENTION),      \
    BIND_MATRIX(W_O, "attn_output", "self_attn.o_proj", DIM_HIDDEN, DIM_Q, SPLIT_COLS, .layers = LAYERS_ATTENTION,    \
                .when = HP_ATTN_GATE),                                                                                \
    BIND_VECTOR(V_Q_NORM, "attn_q_norm.weight", "self_attn.q_norm.weight", DIM_HEAD, .when = HP_QK_NORM,              \
                .norm = true, .layers = LAYERS_ATTENTION),                                                            \
    BIND_VECTOR(V_K_NORM, "attn_k_norm.weight", "self_attn.k_norm.weight", DIM_HEAD, .when = HP_QK_NORM,              \
                .norm = true, .layers = LAYERS_ATTENTION),                                                            \
    BIND_MATRIX(W_STATE_OUT, "ssm_out", "linear_attn.out_proj", DIM_HIDDEN, DIM_STATE_OUT, SPLIT_NONE,                \
                .layers = LAYERS_RECURRENT),                                                                          \
    BIND_TAPS("ssm_conv1d.weight", "linear_attn.conv1d.weight"),                                                      \
    BIND_STATE_VECTOR(V_STATE_RATE, "ssm_a", "A_log", DIM_STATE_VALUES, .map = MAP_NEG_EXP),                          \
    BIND_STATE_VECTOR(V_STATE_DT, "ssm_dt.bias", "dt_bias", DIM_STATE_VALUES, .norm = false),                         \
    BIND_STATE_VECTOR(V_STATE_NORM, "ssm_norm.weight", "norm.weight", DIM_STATE_HEAD, .norm = false),                 \
    {.kind = BIND_IGNORED, .hf = "mtp."}

/* a tensor each */
#define BINDS_DELTA_APART                                                                                             \
    BIND_STATE_MATRIX(W_STATE_IN, "attn_qkv", "in_proj_qkv", DIM_STATE_COLS, .when = 0),                              \
    BIND_STATE_MATRIX(W_STATE_GATE, "attn_gate", "in_proj_z", DIM_STATE_OUT, .when = 0),                              \
    BIND_STATE_MATRIX(W_STATE_A, "ssm_alpha", "in_proj_a", DIM_STATE_VALUES, .when = 0),                              \
    BIND_STATE_MATRIX(W_STATE_B, "ssm_beta", "in_proj_b", DIM_STATE_VALUES, .when = 0)

/* the expert every row takes, behind a gate of its own, beside the routed ones */
#define BINDS_QWEN_EXPERTS                                                                                            \
    BINDS_MLP_DENSE, BINDS_EXPERTS("mlp.gate"), BINDS_SHARED("mlp.shared_expert"),                                    \
        BIND_MATRIX(W_SHARED_WEIGHT, "ffn_gate_inp_shexp", "mlp.shared_expert_gate", DIM_1, DIM_HIDDEN, SPLIT_NONE,   \
                    .layers = LAYERS_EXPERTS, .when = HP_SHARED_GATE)
#define QWEN_EXPERT_CONFIG_KEYS                                                                                       \
    "decoder_sparse_step", "mlp_only_layers", "moe_intermediate_size", "norm_topk_prob", "num_experts",               \
    "num_local_experts", "num_experts_per_tok", "shared_expert_intermediate_size", EXPERT_KEYS_TRAINING
#define QWEN_EXPERT_METADATA_KEYS \
    "expert_feed_forward_length", "expert_shared_feed_forward_length", "expert_weights_norm", "expert_weights_scale"

#endif
