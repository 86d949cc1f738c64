/* models/mla_binds.h - rows of bind tables of architectures with latent attention, and their mixture of experts.
 *
 * The file's kv_b has keys and values of every head together, [heads][nope + v][rank].  Newer GGUF files and MLX's have them apart, a matrix
 * a head, keys already turned round. */
#ifndef RH_MODELS_MLA_BINDS_H
#define RH_MODELS_MLA_BINDS_H

#include "models/decoder_binds.h"

#define BINDS_MLA                                                                                                                \
    BIND_MATRIX(W_Q_A, "attn_q_a", "self_attn.q_a_proj", DIM_Q_RANK, DIM_HIDDEN, SPLIT_NONE, .when = HP_Q_RANK),                 \
    BIND_VECTOR(V_Q_A_NORM, "attn_q_a_norm.weight", "self_attn.q_a_layernorm.weight", DIM_Q_RANK, .when = HP_Q_RANK),            \
    BIND_MATRIX(W_Q, "attn_q_b", "self_attn.q_b_proj", DIM_Q, DIM_Q_RANK, SPLIT_HEADS, .when = HP_Q_RANK),                       \
    BIND_MATRIX(W_Q, "attn_q", "self_attn.q_proj", DIM_Q, DIM_HIDDEN, SPLIT_HEADS, .unless = HP_Q_RANK),                         \
    BIND_MATRIX(W_KV_A, "attn_kv_a_mqa", "self_attn.kv_a_proj_with_mqa", DIM_RANK_ROPE, DIM_HIDDEN, SPLIT_NONE),                 \
    BIND_VECTOR(V_KV_A_NORM, "attn_kv_a_norm.weight", "self_attn.kv_a_layernorm.weight", DIM_RANK),                              \
    BIND_MATRIX(W_K_B, "attn_kv_b", "self_attn.kv_b_proj", DIM_K_B, DIM_NOPE, SPLIT_HEADS, .of = DIM_KV_B,                       \
                .group = DIM_KV_B_HEAD, .map = MAP_TURNED, .unless = HP_KV_B_SPLIT),                                             \
    BIND_MATRIX(W_V_B, "attn_kv_b", "self_attn.kv_b_proj", DIM_V_B, DIM_RANK, SPLIT_HEADS, .first = DIM_NOPE, .of = DIM_KV_B,    \
                .group = DIM_KV_B_HEAD, .unless = HP_KV_B_SPLIT),                                                                \
    BIND_NAMED(W_K_B, "blk.%u.attn_k_b", "model.layers.%u.self_attn.embed_q", DIM_K_B, DIM_NOPE, SPLIT_HEADS, .of = DIM_K_B,     \
               .when = HP_KV_B_SPLIT),                                                                                           \
    BIND_NAMED(W_V_B, "blk.%u.attn_v_b", "model.layers.%u.self_attn.unembed_out", DIM_V_B, DIM_RANK, SPLIT_HEADS, .of = DIM_V_B, \
               .when = HP_KV_B_SPLIT),                                                                                           \
    BIND_MATRIX(W_O, "attn_output", "self_attn.o_proj", DIM_HIDDEN, DIM_V_B, SPLIT_COLS)

/* dense layers first, then experts with a bias of the choice and shared ones */
#define BINDS_MLA_EXPERTS                                                                                                        \
    BINDS_MLP_DENSE, BINDS_EXPERTS("mlp.gate"), BINDS_SHARED("mlp.shared_experts"),                                              \
    BIND_VECTOR(V_ROUTE_BIAS, "exp_probs_b.bias", "mlp.gate.e_score_correction_bias", DIM_EXPERTS, .layers = LAYERS_EXPERTS,     \
                .when = HP_ROUTE_BIAS)

#define MLA_CONFIG_KEYS                                                                                                          \
    "kv_lora_rank", "q_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim", "qk_head_dim", "rope_interleave",       \
    "first_k_dense_replace", "moe_intermediate_size", "n_group", "topk_group", "n_routed_experts", "n_shared_experts",           \
    "norm_topk_prob", "num_experts_per_tok", "routed_scaling_factor", "num_nextn_predict_layers", "topk_method", "scoring_func", \
    "moe_layer_freq", "aux_loss_alpha", "ep_size", "seq_aux", EXPERT_KEYS_TRAINING

/* mla.c: all that config.json says of sizes, latent attention and experts */
int mla_moe_read_config(struct hparams *hp, const struct config_reader *cfg, struct err *err);

#endif
