/* models/olmo2.c - OLMo 2: blocks read the stream as it is and are normed behind; norms of all of q and of all of k. */
#include "models/decoder_binds.h"

static const struct bind binds[] = {
    BINDS_ENDS, BINDS_QKV, BINDS_O, BINDS_MLP,
    BIND_VECTOR(V_Q_NORM, "attn_q_norm.weight", "self_attn.q_norm.weight", DIM_Q, .when = HP_QK_NORM_WIDE),
    BIND_VECTOR(V_K_NORM, "attn_k_norm.weight", "self_attn.k_norm.weight", DIM_KV, .when = HP_QK_NORM_WIDE),
    BIND_VECTOR(V_POST_ATTN_NORM, "post_attention_norm.weight", "post_attention_layernorm.weight", DIM_HIDDEN),
    BIND_VECTOR(V_POST_FFN_NORM, "post_ffw_norm.weight", "post_feedforward_layernorm.weight", DIM_HIDDEN)};

static int read_config(struct hparams *hp, const struct config_reader *cfg, struct err *err)
{
    hp->flags |= HP_POST_NORM | HP_NO_PRE_NORM | HP_QK_NORM_WIDE;
    hp->eps = 1e-5f;
    int rc = config_read_common(hp, cfg, err);
    return rc != 0 ? rc : config_read_rope(hp, 0, cfg, NULL, err);
}

static int read_metadata(struct hparams *hp, const struct metadata_reader *md, struct err *err)
{
    hp->flags |= HP_POST_NORM | HP_NO_PRE_NORM | HP_QK_NORM_WIDE;
    int rc = metadata_read_common(hp, md, err);
    return rc != 0 ? rc : metadata_read_rope(hp, md, err);
}

static const char *const model_types[] = {"olmo2", NULL};

const struct arch arch_olmo2 = {
    .name = "olmo2", .gguf = "olmo2", .model_types = model_types, .read_config = read_config, .read_metadata = read_metadata,
    .binds = binds, .bind_count = sizeof binds / sizeof binds[0], .layer = decoder_layer};
