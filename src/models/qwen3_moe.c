/* models/qwen3_moe.c - Qwen3 with experts: its dense layer with a mixture of experts in the MLP's place, softmax over all of them. */
#include "models/decoder_binds.h"
#include "models/qwen.h"

static const struct bind binds[] = {
    BINDS_ENDS, BINDS_PRE_NORMS, BINDS_QKV, BINDS_QKV_FUSED, BINDS_QKV_BIAS, BINDS_QK_NORM, BINDS_O, BINDS_O_BIAS, BINDS_MLP_DENSE,
    BINDS_EXPERTS("mlp.gate")};

static int read_config(struct hparams *hp, const struct config_reader *cfg, struct err *err)
{
    static const struct config_fact facts[] = {{"use_qk_norm", NULL, 1.0}, {"shared_expert_intermediate_size", NULL, 0.0}};
    hp->head_dim = 128;
    hp->moe = (struct experts_params){.experts = 128, .used = 8, .ffn = 768, .score = ROUTE_SOFTMAX, .scale = 1.0f};
    int rc = config_read_common(hp, cfg, err);
    hp->flags |= HP_QK_NORM;
    if (rc == 0) {
        rc = config_read_rope(hp, 0, cfg, NULL, err);
    }
    if (rc == 0) {
        rc = config_check_facts(cfg, facts, sizeof facts / sizeof facts[0], err);
    }
    if (rc == 0) {
        rc = experts_read_config(hp, cfg, err);
    }
    return rc != 0 ? rc : qwen_read_sliding(hp, cfg, err);
}

static int read_metadata(struct hparams *hp, const struct metadata_reader *md, struct err *err)
{
    hp->moe.normalise = true; /* the format has no key for it */
    int rc = metadata_read_common(hp, md, err);
    hp->flags |= HP_QK_NORM;
    if (rc == 0) {
        rc = metadata_read_rope(hp, md, err);
    }
    return rc != 0 ? rc : experts_read_metadata(hp, md, err);
}

static const char *const model_types[] = {"qwen3_moe", NULL};
static const char *const config_keys[] = {
    "sliding_window", "use_sliding_window", "max_window_layers", "layer_types", "decoder_sparse_step", "mlp_only_layers",
    "moe_intermediate_size", "norm_topk_prob", "num_experts", "num_local_experts", "num_experts_per_tok",
    "use_qk_norm", "shared_expert_intermediate_size", EXPERT_KEYS_TRAINING, NULL};
static const char *const metadata_keys[] = {"expert_feed_forward_length", "expert_shared_feed_forward_length", "expert_weights_norm", "expert_weights_scale", NULL};

const struct arch arch_qwen3_moe = {
    .name = "qwen3_moe", .gguf = "qwen3moe", .model_types = model_types, .config_keys = config_keys, .metadata_keys = metadata_keys,
    .read_config = read_config, .read_metadata = read_metadata, .binds = binds, .bind_count = sizeof binds / sizeof binds[0],
    .layer = decoder_layer};
