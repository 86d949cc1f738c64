/* models/qwen3_5_moe.c - Qwen3.5 with experts, text: the layers of qwen3_5.c, a softmax router whose weights are normalised, and a shared
 * expert with a gate. */
#include "models/qwen.h"

static const struct bind binds[] = {
    BINDS_ENDS, BINDS_DELTA_LAYERS, BINDS_DELTA_APART, BINDS_QWEN_EXPERTS, {.kind = BIND_IGNORED, .hf = "model.visual."}, {.kind = BIND_IGNORED, .hf = "vision_tower."}};

static void defaults(struct hparams *hp, uint32_t experts, uint32_t used)
{
    hp->moe = (struct experts_params){.experts = experts, .used = used, .ffn = 512, .shared_ffn = 512, .score = ROUTE_SOFTMAX, .scale = 1.0f,
                                      .normalise = true};
    hp->flags |= HP_SHARED_GATE;
}

int qwen_moe_read_config(struct hparams *hp, uint32_t experts, uint32_t used, const struct config_reader *cfg, struct err *err)
{
    defaults(hp, experts, used);
    int rc = qwen_delta_read_config(hp, cfg, err);
    return rc != 0 ? rc : experts_read_config(hp, cfg, err);
}

static int read_config(struct hparams *hp, const struct config_reader *cfg, struct err *err)
{
    return qwen_moe_read_config(hp, 256, 8, cfg, err);
}

int qwen_moe_read_metadata(struct hparams *hp, const struct metadata_reader *md, struct err *err)
{
    defaults(hp, 0, 0);
    int rc = qwen_delta_read_metadata(hp, md, err);
    return rc != 0 ? rc : experts_read_metadata(hp, md, err);
}

static const char *const model_types[] = {"qwen3_5_moe_text", "qwen3_5_moe", NULL};
static const char *const config_keys[] = {DELTA_CONFIG_KEYS, QWEN_EXPERT_CONFIG_KEYS, NULL};
static const char *const metadata_keys[] = {DELTA_METADATA_KEYS, QWEN_EXPERT_METADATA_KEYS, NULL};

const struct arch arch_qwen3_5_moe = {
    .name = "qwen3_5_moe", .gguf = "qwen35moe", .model_types = model_types, .config_keys = config_keys, .metadata_keys = metadata_keys,
    .read_config = read_config, .read_metadata = qwen_moe_read_metadata, .binds = binds, .bind_count = sizeof binds / sizeof binds[0],
    .layer = decoder_layer};
