/* models/granite.c - Granite 3 and 4 dense: Llama with scales on embedding, residual, attention and logits. */
#include "models/decoder_binds.h"

static const struct bind binds[] = {
    BINDS_ENDS, BINDS_PRE_NORMS, BINDS_QKV, BINDS_QKV_FUSED, BINDS_QKV_BIAS, BINDS_O, BINDS_O_BIAS, BINDS_MLP, BINDS_MLP_BIAS};

/* The file divides the logits by what it names. */
static int logit_scale_set(struct hparams *hp, float divisor, const char *key, struct err *err)
{
    if (!(divisor > 0.0f)) {
        return err_set(err, ERR_FORMAT, "%s: expected a number above 0, got %g", key, (double)divisor);
    }
    hp->logit_scale = 1.0f / divisor;
    return 0;
}

static int read_config(struct hparams *hp, const struct config_reader *cfg, struct err *err)
{
    float divisor = 1.0f;
    hp->attn_scale = 1.0f;
    int rc = config_read_common(hp, cfg, err);
    if (rc == 0) {
        rc = config_read_rope(hp, 0, cfg, NULL, err);
    }
    if (rc == 0) {
        rc = json_get_f32(cfg->root, "embedding_multiplier", &hp->embed_scale, cfg->where, err);
    }
    if (rc == 0) {
        rc = json_get_f32(cfg->root, "residual_multiplier", &hp->residual_scale, cfg->where, err);
    }
    if (rc == 0) {
        rc = json_get_f32(cfg->root, "attention_multiplier", &hp->attn_scale, cfg->where, err);
    }
    if (rc == 0) {
        rc = json_get_f32(cfg->root, "logits_scaling", &divisor, cfg->where, err);
    }
    return rc != 0 ? rc : logit_scale_set(hp, divisor, "logits_scaling", err);
}

static int read_metadata(struct hparams *hp, const struct metadata_reader *md, struct err *err)
{
    float divisor = 1.0f;
    hp->pairing = ROPE_ADJACENT;
    int rc = metadata_read_common(hp, md, err);
    if (rc == 0) {
        rc = metadata_read_rope(hp, md, err);
    }
    if (rc == 0) {
        rc = metadata_f32(md, "embedding_scale", &hp->embed_scale, err);
    }
    if (rc == 0) {
        rc = metadata_f32(md, "residual_scale", &hp->residual_scale, err);
    }
    if (rc == 0) {
        rc = metadata_f32(md, "attention.scale", &hp->attn_scale, err);
    }
    if (rc == 0) {
        rc = metadata_f32(md, "logit_scale", &divisor, err);
    }
    return rc != 0 ? rc : logit_scale_set(hp, divisor, "granite.logit_scale", err);
}

static const char *const model_types[] = {"granite", NULL};
static const char *const config_keys[] = {"mlp_bias", "embedding_multiplier", "residual_multiplier", "attention_multiplier",
                                          "logits_scaling", NULL};
static const char *const metadata_keys[] = {"embedding_scale", "residual_scale", "attention.scale", "logit_scale", NULL};

const struct arch arch_granite = {
    .name = "granite", .gguf = "granite", .model_types = model_types, .config_keys = config_keys, .metadata_keys = metadata_keys,
    .read_config = read_config, .read_metadata = read_metadata, .binds = binds, .bind_count = sizeof binds / sizeof binds[0],
    .layer = decoder_layer};
