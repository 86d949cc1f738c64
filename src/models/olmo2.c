/* models/olmo2.c - OLMo 2: blocks read the stream as it is and are normed behind; norms of all of q and of all of k.
 * Its GGUF files have sliding layers when they are OLMo 3's; scaled rope then turns full layers only. */
#include "models/decoder_binds.h"
#include "models/olmo.h"

const struct bind olmo_binds[OLMO_BINDS] = {
    BINDS_ENDS, BINDS_QKV, BINDS_QKV_FUSED, BINDS_O, BINDS_MLP,
    BIND_VECTOR(V_Q_NORM, "attn_q_norm.weight", "self_attn.q_norm.weight", DIM_Q, .when = HP_QK_NORM_WIDE),
    BIND_VECTOR(V_K_NORM, "attn_k_norm.weight", "self_attn.k_norm.weight", DIM_KV, .when = HP_QK_NORM_WIDE),
    BIND_VECTOR(V_POST_ATTN_NORM, "post_attention_norm.weight", "post_attention_layernorm.weight", DIM_HIDDEN),
    BIND_VECTOR(V_POST_FFN_NORM, "post_ffw_norm.weight", "post_feedforward_layernorm.weight", DIM_HIDDEN)};

void olmo_defaults(struct hparams *hp)
{
    hp->flags |= HP_POST_NORM | HP_NO_PRE_NORM | HP_QK_NORM_WIDE;
    hp->eps = 1e-5f;
}

static int read_config(struct hparams *hp, const struct config_reader *cfg, struct err *err)
{
    olmo_defaults(hp);
    int rc = config_read_common(hp, cfg, err);
    return rc != 0 ? rc : config_read_rope(hp, 0, cfg, NULL, err);
}

static int read_metadata(struct hparams *hp, const struct metadata_reader *md, struct err *err)
{
    olmo_defaults(hp);
    int rc = metadata_read_common(hp, md, err);
    if (rc == 0) {
        rc = metadata_u32(md, "attention.sliding_window", &hp->window, err);
    }
    if (rc == 0 && hp->window != 0) {
        hp->rope_sets = 2;
        rc = metadata_read_pattern(hp, md, 4, err);
    }
    if (rc == 0) {
        hp->rope[1].theta = 0.0;
        rc = metadata_read_rope(hp, md, err);
    }
    if (hp->rope[1].theta == 0.0) {
        hp->rope[1].theta = hp->rope[0].theta;
    }
    return rc;
}

static const char *const model_types[] = {"olmo2", NULL};
static const char *const metadata_keys[] = {"attention.sliding_window", "attention.sliding_window_pattern", "rope.freq_base_swa", NULL};

const struct arch arch_olmo2 = {
    .name = "olmo2", .gguf = "olmo2", .model_types = model_types, .metadata_keys = metadata_keys, .read_config = read_config,
    .read_metadata = read_metadata, .binds = olmo_binds, .bind_count = OLMO_BINDS, .layer = decoder_layer};
