/* models/glm4.c - GLM-4 (0414) dense: norms before and after each block, gate and up in one tensor, rope over half of each head with
 * neighbours turning together.  The text of GLM-4.1V is the same: biases always, and a pair may turn by one of several positions. */
#include "models/decoder_binds.h"

static const struct bind binds[] = {
    BINDS_ENDS, BINDS_QKV, BINDS_QKV_FUSED, BINDS_QKV_BIAS, BINDS_O, BINDS_MLP_FUSED,
    BIND_VECTOR(V_ATTN_NORM, "attn_norm.weight", "input_layernorm.weight", DIM_HIDDEN),
    BIND_VECTOR(V_POST_ATTN_NORM, "post_attention_norm.weight", "post_self_attn_layernorm.weight", DIM_HIDDEN),
    BIND_VECTOR(V_FFN_NORM, "ffn_norm.weight", "post_attention_layernorm.weight", DIM_HIDDEN),
    BIND_VECTOR(V_POST_FFN_NORM, "post_ffw_norm.weight", "post_mlp_layernorm.weight", DIM_HIDDEN),
    {.kind = BIND_IGNORED, .hf = "model.visual."}};

static void defaults(struct hparams *hp)
{
    hp->flags |= HP_POST_NORM | HP_FUSED_GATE_UP;
    hp->pairing = ROPE_ADJACENT;
    hp->context_train = 131072;
}

static int read_config(struct hparams *hp, const struct config_reader *cfg, struct err *err)
{
    bool pictures = str_is(json_str(yyjson_obj_get(cfg->root, "model_type")), "glm4v_text");
    defaults(hp);
    hp->head_dim = 128, hp->kv_heads = 2, hp->eps = pictures ? 1e-5f : 1.5625e-7f;
    hp->rope[0].sections = pictures;
    hp->context_train = pictures ? 32768 : hp->context_train;
    int rc = config_read_common(hp, cfg, err);
    hp->flags &= ~(uint32_t)HP_O_BIAS; /* attention_bias is of q, k and v alone */
    hp->flags |= pictures ? HP_QKV_BIAS : 0;
    if (rc == 0) {
        rc = config_read_rope(hp, 0, cfg, NULL, err);
    }
    bool partial = yyjson_obj_get(cfg->root, "partial_rotary_factor") != NULL ||
                   yyjson_obj_get(yyjson_obj_get(cfg->root, "rope_parameters"), "partial_rotary_factor") != NULL;
    if (!partial && !pictures) {
        hp->rope[0].rot = hp->head_dim / 2;
    }
    return rc;
}

static int read_metadata(struct hparams *hp, const struct metadata_reader *md, struct err *err)
{
    defaults(hp);
    int rc = metadata_read_common(hp, md, err);
    return rc != 0 ? rc : metadata_read_rope(hp, md, err);
}

static const char *const model_types[] = {"glm4", "glm4v_text", "glm4v", NULL};
static const char *const config_keys[] = {GLM_KEYS_PICTURES, NULL};

const struct arch arch_glm4 = {
    .name = "glm4", .gguf = "glm4", .model_types = model_types, .config_keys = config_keys, .read_config = read_config,
    .read_metadata = read_metadata, .binds = binds, .bind_count = sizeof binds / sizeof binds[0], .layer = decoder_layer};
