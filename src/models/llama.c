/* models/llama.c - Llama 1 to 3 and what is converted to GGUF as "llama" (Mistral among them).
 * GGUF files have q and k permuted for rope over adjacent elements; Hugging Face files turn halves. */
#include "models/decoder_binds.h"

static const struct bind binds[] = {
    BINDS_ENDS, BINDS_PRE_NORMS, BINDS_QKV, BINDS_QKV_FUSED, BINDS_QKV_BIAS, BINDS_O, BINDS_O_BIAS, BINDS_MLP, BINDS_MLP_BIAS};

static int read_config(struct hparams *hp, const struct config_reader *cfg, struct err *err)
{
    int rc = config_read_common(hp, cfg, err);
    return rc != 0 ? rc : config_read_rope(hp, 0, cfg, NULL, err);
}

static int read_metadata(struct hparams *hp, const struct metadata_reader *md, struct err *err)
{
    hp->pairing = ROPE_ADJACENT;
    int rc = metadata_read_common(hp, md, err);
    if (rc == 0) {
        rc = metadata_read_rope(hp, md, err);
    }
    if (rc == 0) {
        rc = metadata_u32(md, "attention.sliding_window", &hp->window, err);
    }
    memset(hp->sliding, hp->window != 0, sizeof hp->sliding);
    return rc;
}

static const char *const model_types[] = {"llama", NULL};
static const char *const config_keys[] = {"mlp_bias", NULL};
static const char *const metadata_keys[] = {"attention.sliding_window", NULL};

const struct arch arch_llama = {
    .name = "llama", .gguf = "llama", .model_types = model_types, .config_keys = config_keys, .metadata_keys = metadata_keys,
    .read_config = read_config, .read_metadata = read_metadata, .binds = binds, .bind_count = sizeof binds / sizeof binds[0],
    .layer = decoder_layer};
