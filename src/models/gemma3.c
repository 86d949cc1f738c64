/* models/gemma3.c - Gemma 3, text: five sliding layers and one full in turn, each kind with its own rope; norms before and after
 * each block, of every q and k head, all with weight 1 + w (GGUF files have the 1 added already); scaled embedding.
 *
 * The embedding scale is sqrt(hidden) in f32, as transformers computes it for f32 weights and as GGUF's users do. */
#include "models/gemma.h"

static const struct bind binds[] = {
    BINDS_ENDS, BINDS_QKV, BINDS_QKV_FUSED, BINDS_QKV_BIAS, BINDS_QK_NORM, BINDS_O, BINDS_O_BIAS, BINDS_MLP, BINDS_GEMMA_NORMS, BINDS_PICTURES};

static void defaults(struct hparams *hp)
{
    gemma_defaults_two_ropes(hp);
    hp->head_dim = 256;
    hp->context_train = 131072;
}

static int read_config(struct hparams *hp, const struct config_reader *cfg, struct err *err)
{
    uint32_t pattern = 6;
    defaults(hp);
    hp->heads = 8, hp->kv_heads = 4, hp->vocab = 262208, hp->window = 4096;
    hp->flags |= HP_TIED;
    hp->norm_shift = 1.0f;
    int rc = config_read_common(hp, cfg, err);
    if (rc == 0) {
        rc = gemma_read_rope(hp, cfg, err);
    }
    if (rc == 0) {
        rc = json_get_u32(cfg->root, "_sliding_window_pattern", &pattern, cfg->where, err);
    }
    if (rc == 0) {
        rc = json_get_u32(cfg->root, "sliding_window_pattern", &pattern, cfg->where, err);
    }
    return rc != 0 ? rc : gemma_read_layers(hp, cfg, pattern, err);
}

static int read_metadata(struct hparams *hp, const struct metadata_reader *md, struct err *err)
{
    defaults(hp);
    int rc = gemma_read_metadata(hp, md, 62, err);
    if (rc == 0) {
        rc = metadata_read_pattern(hp, md, 6, err);
    }
    if (hp->window == 0) {
        memset(hp->sliding, 0, sizeof hp->sliding);
    }
    return rc;
}

static const char *const model_types[] = {"gemma3_text", "gemma3", NULL};
static const char *const config_keys[] = {
    "query_pre_attn_scalar", "attn_logit_softcapping", "final_logit_softcapping", "sliding_window", "use_bidirectional_attention",
    "_sliding_window_pattern", "sliding_window_pattern", "layer_types", "rope_local_base_freq", "hidden_activation", NULL};
static const char *const metadata_keys[] = {"attention.sliding_window", "attention.sliding_window_pattern",
                                            "final_logit_softcapping", "rope.freq_base_swa", NULL};

const struct arch arch_gemma3 = {
    .name = "gemma3", .gguf = "gemma3", .model_types = model_types, .config_keys = config_keys, .metadata_keys = metadata_keys,
    .read_config = read_config, .read_metadata = read_metadata, .binds = binds, .bind_count = sizeof binds / sizeof binds[0],
    .layer = decoder_layer};
