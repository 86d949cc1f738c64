/* models/mistral.c - Mistral 7B and its kin: Llama with a sliding window in every layer (when the file names one).
 * Their GGUF files call themselves "llama". */
#include "models/decoder_binds.h"

static const struct bind binds[] = {BINDS_ENDS, BINDS_PRE_NORMS, BINDS_QKV, BINDS_O, BINDS_MLP};

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

static const char *const model_types[] = {"mistral", NULL};
static const char *const config_keys[] = {"sliding_window", NULL};

const struct arch arch_mistral = {
    .name = "mistral", .model_types = model_types, .config_keys = config_keys, .read_config = read_config, .binds = binds,
    .bind_count = sizeof binds / sizeof binds[0], .layer = decoder_layer};
