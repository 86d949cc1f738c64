/* models/gemma.h - what the Gemma architectures share. */
#ifndef RH_MODELS_GEMMA_H
#define RH_MODELS_GEMMA_H

#include "models/decoder_binds.h"

/* step buffers of models with embeddings of each layer: of all layers [rows][layers * n], as looked up, and one layer's gate; with experts:
 * what the router reads, and what the experts give */
enum { GEMMA_INPUTS, GEMMA_EMBEDDED, GEMMA_GATE, GEMMA_ROUTER, GEMMA_EXPERTS, GEMMA_EXTRA };

/* a tensor that files carry along for layers that read the keys and values of another one */
#define BIND_UNUSED(gguf_, hf_) \
    {.kind = BIND_IGNORED_LAYER, .gguf = "blk.%u." gguf_, .hf = "model.layers.%u." hf_, .layers = LAYERS_OTHERS_KV}
#define BINDS_UNUSED_KV                                                                                                          \
    BIND_UNUSED("attn_k", "self_attn.k_proj"), BIND_UNUSED("attn_v", "self_attn.v_proj"),                                        \
    BIND_UNUSED("attn_k_norm", "self_attn.k_norm"), BIND_UNUSED("attn_v_norm", "self_attn.v_norm")

/* parts for pictures and sound, and keys about them */
#define BINDS_MODALITY(name) {.kind = BIND_IGNORED, .hf = name "."}, {.kind = BIND_IGNORED, .hf = "model." name "."}
#define BINDS_MODALITIES                                                                                                         \
    BINDS_MODALITY("vision_tower"), BINDS_MODALITY("embed_vision"), BINDS_MODALITY("audio_tower"), BINDS_MODALITY("embed_audio")
#define GEMMA_MODALITY_KEYS                                                                                                      \
    "audio_config", "boi_token_id", "eoi_token_id", "image_token_id", "video_token_id", "boa_token_id", "eoa_token_id",          \
    "eoa_token_index", "audio_token_id", "vision_soft_tokens_per_image", "audio_soft_tokens_per_image"

#define BINDS_LAYER_INPUTS                                                                                                       \
    {.kind = BIND_WEIGHT, .slot = W_EMBED_LAYERS, .gguf = "per_layer_token_embd", .hf = "model.embed_tokens_per_layer",          \
     .rows = DIM_INPUT_VOCAB, .cols = DIM_INPUTS, .when = HP_LAYER_INPUTS, .split = SPLIT_ROWS},                                 \
    {.kind = BIND_WEIGHT, .slot = W_LAYERS_IN, .gguf = "per_layer_model_proj", .hf = "model.per_layer_model_projection",         \
     .rows = DIM_INPUTS, .cols = DIM_HIDDEN, .when = HP_LAYER_INPUTS},                                                           \
    {.kind = BIND_VEC, .slot = V_LAYERS_NORM, .gguf = "per_layer_proj_norm.weight", .hf = "model.per_layer_projection_norm.weight", \
     .rows = DIM_INPUT, .cols = DIM_1, .when = HP_LAYER_INPUTS},                                                                 \
    BIND_MATRIX(W_INPUT_GATE, "inp_gate", "per_layer_input_gate", DIM_INPUT, DIM_HIDDEN, SPLIT_NONE, .when = HP_LAYER_INPUTS),   \
    BIND_MATRIX(W_INPUT_OUT, "proj", "per_layer_projection", DIM_HIDDEN, DIM_INPUT, SPLIT_NONE, .when = HP_LAYER_INPUTS),        \
    BIND_VECTOR(V_INPUT_NORM, "post_norm.weight", "post_per_layer_input_norm.weight", DIM_HIDDEN, .when = HP_LAYER_INPUTS)

/* before and behind each block; weights as they are stored where norm_shift is 0 */
#define BINDS_GEMMA_NORMS                                                                                                        \
    BIND_VECTOR(V_ATTN_NORM, "attn_norm.weight", "input_layernorm.weight", DIM_HIDDEN, .norm = true),                            \
    BIND_VECTOR(V_POST_ATTN_NORM, "post_attention_norm.weight", "post_attention_layernorm.weight", DIM_HIDDEN, .norm = true),    \
    BIND_VECTOR(V_FFN_NORM, "ffn_norm.weight", "pre_feedforward_layernorm.weight", DIM_HIDDEN, .norm = true),                    \
    BIND_VECTOR(V_POST_FFN_NORM, "post_ffw_norm.weight", "post_feedforward_layernorm.weight", DIM_HIDDEN, .norm = true)

/* What Gemma 3 and later have alike. */
void gemma_defaults_two_ropes(struct hparams *hp);
/* query_pre_attn_scalar, the two soft caps, the window; and the scale of the embedding. */
int gemma_read_scales(struct hparams *hp, const struct config_reader *cfg, struct err *err);
/* Two rope sets: rope_parameters by layer type, or rope_theta and rope_scaling for full layers beside rope_local_base_freq. */
int gemma_read_rope(struct hparams *hp, const struct config_reader *cfg, struct err *err);
/* use_bidirectional_attention: refused, unless it is about pictures only. */
int gemma_refuse_bidirectional(const struct config_reader *cfg, struct err *err);
/* Both of these, and layer_types; without it every `period`-th layer is full. */
int gemma_read_layers(struct hparams *hp, const struct config_reader *cfg, uint32_t period, struct err *err);
/* Common keys, rope, window, soft caps, scales; a model of `layers_27b` layers has an attention scale of its own (0: none has). */
int gemma_read_metadata(struct hparams *hp, const struct metadata_reader *md, uint32_t layers_27b, struct err *err);

/* The last `shared` layers read what the last layer of their kind before them stored. */
int gemma_share_kv(struct hparams *hp, uint32_t shared, struct err *err);
/* Embeddings of each layer, `n` elements (0: none) for `vocab` ids, `wrap`: ids past them read the first; heads and layers are known. */
int gemma_layer_inputs(struct hparams *hp, uint32_t n, uint32_t vocab, bool wrap, struct err *err);
/* Before the layers: GEMMA_INPUTS = (norm(W x / sqrt(hidden)) + sqrt(n) embedding) / sqrt(2). */
int gemma_inputs_begin(struct model *m, struct err *err);
/* GEMMA_GATE = act(Wgate x) * the layer's inputs */
int gemma_input_gate(struct model *m, uint32_t layer, struct tensor x, struct tensor *gate, struct err *err);

#endif
