/* models/seed_oss.c - Seed-OSS: Llama with biases of q, k and v, and one of the attention output when the config asks for it. */
#include "models/decoder_binds.h"

static const struct bind binds[] = {
    BINDS_ENDS, BINDS_QKV, BINDS_QKV_FUSED, BINDS_QKV_BIAS, BINDS_O, BINDS_O_BIAS, BINDS_MLP, BINDS_MLP_BIAS,
    BIND_VECTOR(V_ATTN_NORM, "attn_norm.weight", "input_layernorm.weight", DIM_HIDDEN),
    BIND_VECTOR(V_FFN_NORM, "post_attention_norm.weight", "post_attention_layernorm.weight", DIM_HIDDEN)};

static int read_config(struct hparams *hp, const struct config_reader *cfg, struct err *err)
{
    bool bias = true, out = false;
    hp->head_dim = 128, hp->context_train = 524288;
    int rc = config_read_common(hp, cfg, err);
    if (rc == 0) {
        rc = json_get_bool(cfg->root, "attention_bias", &bias, cfg->where, err);
    }
    if (rc == 0) {
        rc = json_get_bool(cfg->root, "attention_out_bias", &out, cfg->where, err);
    }
    hp->flags &= ~(uint32_t)(HP_QKV_BIAS | HP_O_BIAS);
    hp->flags |= (bias ? (uint32_t)HP_QKV_BIAS : 0) | (out ? (uint32_t)HP_O_BIAS : 0);
    return rc != 0 ? rc : config_read_rope(hp, 0, cfg, NULL, err);
}

static int read_metadata(struct hparams *hp, const struct metadata_reader *md, struct err *err)
{
    int rc = metadata_read_common(hp, md, err);
    return rc != 0 ? rc : metadata_read_rope(hp, md, err);
}

static const char *const model_types[] = {"seed_oss", NULL};
static const char *const config_keys[] = {"attention_out_bias", "mlp_bias", "residual_dropout", NULL};

const struct arch arch_seed_oss = {
    .name = "seed_oss", .gguf = "seed_oss", .model_types = model_types, .config_keys = config_keys, .read_config = read_config,
    .read_metadata = read_metadata, .binds = binds, .bind_count = sizeof binds / sizeof binds[0], .layer = decoder_layer};
