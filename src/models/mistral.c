/* models/mistral.c - Mistral 7B and its kin: Llama with a sliding window in every layer (when the file names one); alone, or inside a model
 * that reads pictures too (mistral3).
 * Their GGUF files call themselves "llama", and "mistral3" those of the latter. */
#include "models/decoder_binds.h"

static const struct bind binds[] = {BINDS_ENDS, BINDS_PRE_NORMS, BINDS_QKV, BINDS_QKV_FUSED, BINDS_O, BINDS_MLP, BINDS_PICTURES};

static int read_config(struct hparams *hp, const struct config_reader *cfg, struct err *err)
{
    hp->kv_heads = 8;
    int rc = config_read_common(hp, cfg, err);
    if (rc == 0) {
        rc = config_read_rope(hp, 0, cfg, NULL, err);
    }
    if (rc == 0) {
        rc = json_get_u32(cfg->root, "sliding_window", &hp->window, cfg->where, err);
    }
    memset(hp->sliding, hp->window != 0, sizeof hp->sliding);
    return rc;
}

/* Files of models that read pictures too: q and k are turned as in Llama's. */
static int read_metadata(struct hparams *hp, const struct metadata_reader *md, struct err *err)
{
    hp->pairing = ROPE_ADJACENT;
    int rc = metadata_read_common(hp, md, err);
    return rc != 0 ? rc : metadata_read_rope(hp, md, err);
}

static const char *const model_types[] = {"mistral", NULL};
static const char *const config_keys[] = {"sliding_window", NULL};

const struct arch arch_mistral = {
    .name = "mistral", .gguf = "mistral3", .model_types = model_types, .config_keys = config_keys, .read_config = read_config,
    .read_metadata = read_metadata, .binds = binds, .bind_count = sizeof binds / sizeof binds[0], .layer = decoder_layer};
