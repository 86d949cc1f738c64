/* models/qwen3.c - Qwen3 dense: norms of each q and k head, no biases unless the config asks for them. */
#include "models/decoder_binds.h"
#include "models/qwen.h"

static const struct bind binds[] = {
    BINDS_ENDS, BINDS_PRE_NORMS, BINDS_QKV, BINDS_QKV_FUSED, BINDS_QKV_BIAS, BINDS_QK_NORM, BINDS_O, BINDS_O_BIAS, BINDS_MLP};

static int read_config(struct hparams *hp, const struct config_reader *cfg, struct err *err)
{
    hp->head_dim = 128;
    int rc = config_read_common(hp, cfg, err);
    hp->flags |= HP_QK_NORM;
    if (rc == 0) {
        rc = config_read_rope(hp, 0, cfg, NULL, err);
    }
    return rc != 0 ? rc : qwen_read_sliding(hp, cfg, err);
}

static int read_metadata(struct hparams *hp, const struct metadata_reader *md, struct err *err)
{
    int rc = metadata_read_common(hp, md, err);
    hp->flags |= HP_QK_NORM;
    return rc != 0 ? rc : metadata_read_rope(hp, md, err);
}

static const char *const model_types[] = {"qwen3", NULL};
static const char *const config_keys[] = {"sliding_window", "use_sliding_window", "max_window_layers", "layer_types", NULL};

const struct arch arch_qwen3 = {
    .name = "qwen3", .gguf = "qwen3", .model_types = model_types, .config_keys = config_keys, .read_config = read_config,
    .read_metadata = read_metadata, .binds = binds, .bind_count = sizeof binds / sizeof binds[0], .layer = decoder_layer};
