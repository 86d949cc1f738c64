/* models/glm4_moe.c - GLM 4.5 and later with experts: partial rope, biases of q, k and v, norms of their heads where the config asks for
 * them; sigmoid routing with a bias of the choice and groups, a shared expert, dense layers first.  Layers behind the last one
 * predict further tokens: not part of a forward.  The text of GLM-4.5V is the same; a pair may turn by one of several positions. */
#include "models/decoder_binds.h"

static const struct bind binds[] = {
    BINDS_ENDS, BINDS_QKV, BINDS_QKV_FUSED, BINDS_QKV_BIAS, BINDS_QK_NORM, BINDS_O, BINDS_MLP_DENSE, BINDS_EXPERTS("mlp.gate"),
    BINDS_SHARED("mlp.shared_experts"),
    BIND_VECTOR(V_ATTN_NORM, "attn_norm.weight", "input_layernorm.weight", DIM_HIDDEN),
    BIND_VECTOR(V_FFN_NORM, "post_attention_norm.weight", "post_attention_layernorm.weight", DIM_HIDDEN),
    BIND_VECTOR(V_ROUTE_BIAS, "exp_probs_b.bias", "mlp.gate.e_score_correction_bias", DIM_EXPERTS, .layers = LAYERS_EXPERTS,
                .when = HP_ROUTE_BIAS),
    {.kind = BIND_IGNORED, .hf = "model.visual."}};

static void defaults(struct hparams *hp)
{
    hp->moe = (struct experts_params){.experts = 128, .used = 8, .ffn = 1408, .score = ROUTE_SIGMOID, .group_best = 2, .scale = 1.0f,
                                      .normalise = true};
    hp->flags |= HP_ROUTE_BIAS;
    hp->eps = 1e-5f;
}

static int read_config(struct hparams *hp, const struct config_reader *cfg, struct err *err)
{
    bool qk_norm = false, pictures = str_is(json_str(yyjson_obj_get(cfg->root, "model_type")), "glm4v_moe_text");
    defaults(hp);
    hp->rope[0].sections = pictures;
    hp->flags |= pictures ? HP_QKV_BIAS | HP_O_BIAS : 0; /* where attention_bias is not said */
    int rc = config_read_common(hp, cfg, err);
    hp->flags &= ~(uint32_t)HP_O_BIAS; /* attention_bias is of q, k and v */
    if (rc == 0) {
        rc = json_get_bool(cfg->root, "use_qk_norm", &qk_norm, cfg->where, err);
    }
    hp->flags |= qk_norm ? HP_QK_NORM : 0;
    if (rc == 0) {
        rc = json_get_u32(cfg->root, "num_nextn_predict_layers", &hp->ignored_layers, cfg->where, err);
    }
    if (rc == 0) {
        rc = config_read_rope(hp, 0, cfg, NULL, err);
    }
    bool partial = yyjson_obj_get(cfg->root, "partial_rotary_factor") != NULL ||
                   yyjson_obj_get(yyjson_obj_get(cfg->root, "rope_parameters"), "partial_rotary_factor") != NULL;
    if (!partial) {
        hp->rope[0].rot = (hp->head_dim ? hp->head_dim : hp->heads ? hp->hidden / hp->heads : 0) / 2;
    }
    return rc != 0 ? rc : experts_read_config(hp, cfg, err);
}

static int read_metadata(struct hparams *hp, const struct metadata_reader *md, struct err *err)
{
    defaults(hp);
    int rc = metadata_read_common(hp, md, err);
    hp->flags |= gguf_tensor_find(md->gguf, STR("blk.0.attn_q_norm.weight")) != NULL ? HP_QK_NORM : 0;
    if (rc == 0) {
        rc = metadata_read_rope(hp, md, err);
    }
    rc = rc != 0 ? rc : metadata_drop_predictors(hp, md, err);
    return rc != 0 ? rc : experts_read_metadata(hp, md, err);
}

static const char *const model_types[] = {"glm4_moe", "glm4v_moe_text", "glm4v_moe", NULL};
static const char *const config_keys[] = {
    "use_qk_norm", "first_k_dense_replace", "moe_intermediate_size", "n_group", "topk_group", "n_routed_experts", "n_shared_experts",
    "norm_topk_prob", "num_experts_per_tok", "routed_scaling_factor", "num_nextn_predict_layers", EXPERT_KEYS_TRAINING,
    GLM_KEYS_PICTURES, NULL};
static const char *const metadata_keys[] = {
    "expert_feed_forward_length", "expert_shared_count", "expert_group_count", "expert_group_used_count", "expert_gating_func",
    "expert_weights_norm", "expert_weights_scale", "leading_dense_block_count", "nextn_predict_layers", "rope.dimension_sections", NULL};

const struct arch arch_glm4_moe = {
    .name = "glm4_moe", .gguf = "glm4moe", .model_types = model_types, .config_keys = config_keys, .metadata_keys = metadata_keys,
    .read_config = read_config, .read_metadata = read_metadata, .binds = binds, .bind_count = sizeof binds / sizeof binds[0],
    .layer = decoder_layer};
