/* models/cohere2.c - Cohere 2 (Command R7B and its kin): one layer norm without bias before attention and MLP, which both read it and add to
 * the stream; three sliding layers with rope over neighbours and one full layer without rope in turn; scaled logits. */
#include "models/decoder_binds.h"

static const struct bind binds[] = {
    BINDS_ENDS, BINDS_QKV, BINDS_QKV_FUSED, BINDS_QKV_BIAS, BINDS_O, BINDS_O_BIAS, BINDS_MLP,
    BIND_VECTOR(V_ATTN_NORM, "attn_norm.weight", "input_layernorm.weight", DIM_HIDDEN)};

static void defaults(struct hparams *hp)
{
    hp->flags |= HP_LAYER_NORM | HP_PARALLEL;
    hp->pairing = ROPE_ADJACENT;
    hp->eps = 1e-5f;
    hp->window = 4096;
    hp->logit_scale = 0.0625f;
}

static void full_without_rope(struct hparams *hp)
{
    for (uint32_t i = 0; i < hp->layers && i < MODEL_LAYERS_MAX; i++) {
        hp->no_rope[i] = !hp->sliding[i];
    }
}

/* of the architecture, which older configs spell out */
static const struct config_fact facts[] = {
    {"position_embedding_type", "rope_gptj", 0.0}, {"order_of_interleaved_layers", "local_attn_first", 0.0}, {"use_parallel_block", NULL, 1.0},
    {"use_gated_activation", NULL, 1.0}, {"use_embedding_sharing", NULL, 1.0}, {"rotary_pct", NULL, 1.0}};

static int read_config(struct hparams *hp, const struct config_reader *cfg, struct err *err)
{
    bool known = false;
    uint32_t period = 4;
    defaults(hp);
    hp->flags |= HP_TIED;
    hp->context_train = 8192;
    int rc = config_read_common(hp, cfg, err);
    hp->head_dim = hp->heads != 0 ? hp->hidden / hp->heads : 0; /* whatever head_dim says */
    if (rc == 0) {
        rc = config_check_facts(cfg, facts, sizeof facts / sizeof facts[0], err);
    }
    if (rc == 0) {
        rc = json_get_f32(cfg->root, "layer_norm_eps", &hp->eps, cfg->where, err);
    }
    if (rc == 0) {
        rc = json_get_f32(cfg->root, "logit_scale", &hp->logit_scale, cfg->where, err);
    }
    if (rc == 0) {
        rc = config_read_rope(hp, 0, cfg, NULL, err);
    }
    if (rc == 0) {
        rc = json_get_u32(cfg->root, "sliding_window", &hp->window, cfg->where, err);
    }
    if (rc == 0) {
        rc = json_get_u32(cfg->root, "sliding_window_pattern", &period, cfg->where, err);
    }
    if (rc == 0) {
        rc = config_read_layer_types(hp, cfg, &known, err);
    }
    if (!known) {
        hparams_layers_by_period(hp, period);
    }
    full_without_rope(hp);
    return rc;
}

static int read_metadata(struct hparams *hp, const struct metadata_reader *md, struct err *err)
{
    defaults(hp);
    int rc = metadata_read_common(hp, md, err);
    if (rc == 0) {
        rc = metadata_f32(md, "attention.layer_norm_epsilon", &hp->eps, err);
    }
    if (rc == 0) {
        rc = metadata_f32(md, "logit_scale", &hp->logit_scale, err);
    }
    if (rc == 0) {
        rc = metadata_u32(md, "attention.sliding_window", &hp->window, err);
    }
    if (rc == 0) {
        rc = metadata_read_pattern(hp, md, 4, err);
    }
    full_without_rope(hp);
    return rc != 0 ? rc : metadata_read_rope(hp, md, err);
}

static const char *const model_types[] = {"cohere2", NULL};
static const char *const config_keys[] = {
    "layer_norm_eps", "logit_scale", "sliding_window", "sliding_window_pattern", "layer_types", "rotary_pct", "position_embedding_type",
    "order_of_interleaved_layers", "use_parallel_block", "use_gated_activation", "use_embedding_sharing",
    "layer_switch", /* the pattern again, read by nobody */
    NULL};
static const char *const metadata_keys[] = {"attention.layer_norm_epsilon", "logit_scale", "attention.sliding_window",
                                            "attention.sliding_window_pattern", NULL};

const struct arch arch_cohere2 = {
    .name = "cohere2", .gguf = "cohere2", .model_types = model_types, .config_keys = config_keys, .metadata_keys = metadata_keys,
    .read_config = read_config, .read_metadata = read_metadata, .binds = binds, .bind_count = sizeof binds / sizeof binds[0],
    .layer = decoder_layer};
