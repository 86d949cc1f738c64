/* models/qwen2.c - Qwen2 and Qwen2.5: Llama with biases on q, k and v; optional sliding layers. */
#include "models/decoder_binds.h"
#include "models/qwen.h"

static const struct bind binds[] = {BINDS_ENDS, BINDS_PRE_NORMS, BINDS_QKV, BINDS_QKV_FUSED, BINDS_QKV_BIAS, BINDS_O, BINDS_MLP};

int qwen_read_sliding(struct hparams *hp, const struct config_reader *cfg, struct err *err)
{
    bool use = false, known = false;
    uint32_t from = 28;
    int rc = json_get_bool(cfg->root, "use_sliding_window", &use, cfg->where, err);
    if (rc == 0 && use) {
        hp->window = 4096;
        rc = json_get_u32(cfg->root, "sliding_window", &hp->window, cfg->where, err);
    }
    if (rc == 0) {
        rc = json_get_u32(cfg->root, "max_window_layers", &from, cfg->where, err);
    }
    if (rc == 0) {
        rc = config_read_layer_types(hp, cfg, &known, err);
    }
    for (uint32_t i = 0; rc == 0 && !known && i < hp->layers; i++) {
        hp->sliding[i] = use && i >= from;
    }
    return rc;
}

static int read_config(struct hparams *hp, const struct config_reader *cfg, struct err *err)
{
    int rc = config_read_common(hp, cfg, err);
    hp->flags |= HP_QKV_BIAS;
    if (rc == 0) {
        rc = config_read_rope(hp, 0, cfg, NULL, err);
    }
    return rc != 0 ? rc : qwen_read_sliding(hp, cfg, err);
}

static int read_metadata(struct hparams *hp, const struct metadata_reader *md, struct err *err)
{
    int rc = metadata_read_common(hp, md, err);
    hp->flags |= HP_QKV_BIAS;
    return rc != 0 ? rc : metadata_read_rope(hp, md, err);
}

static const char *const model_types[] = {"qwen2", NULL};
static const char *const config_keys[] = {"sliding_window", "use_sliding_window", "max_window_layers", "layer_types", NULL};

const struct arch arch_qwen2 = {
    .name = "qwen2", .gguf = "qwen2", .model_types = model_types, .config_keys = config_keys, .read_config = read_config,
    .read_metadata = read_metadata, .binds = binds, .bind_count = sizeof binds / sizeof binds[0], .layer = decoder_layer};
