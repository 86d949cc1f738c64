/* models/qwen3_5.c - Qwen3.5 dense, text: gated delta nets in three layers of four, attention with a gate of its output and partial
 * rope in the fourth; norms with weight 1 + w (GGUF files have the 1 added), but not the one behind the delta net.
 *
 * GGUF files have the value heads in another order: those of one key head are not neighbours but `heads` apart.
 * Qwen3-Next and the models with experts are built on the same layers (qwen.h). */
#include "models/decoder_binds.h"
#include "models/qwen.h"

#include <stdio.h>

static const struct bind binds[] = {
    BINDS_ENDS, BINDS_DELTA_LAYERS, BINDS_DELTA_APART, BINDS_MLP, {.kind = BIND_IGNORED, .hf = "model.visual."}, {.kind = BIND_IGNORED, .hf = "vision_tower."}};

static void defaults(struct hparams *hp)
{
    hp->flags |= HP_QK_NORM | HP_ATTN_GATE;
    hp->head_dim = 256;
    hp->context_train = 32768;
    hp->state = (struct state_shape){.anchor = STATE_ANCHOR, .heads = 16, .taps = 4, .d_k = 128, .d_v = 128};
}

/* What follows from the numbers of heads. */
static int state_finish(struct hparams *hp, uint32_t values, struct err *err)
{
    struct state_shape *s = &hp->state;
    if (s->heads == 0 || values == 0 || values % s->heads != 0 || values > 4096 || s->d_k > STATE_DIM_MAX || s->d_v > STATE_DIM_MAX) {
        return err_set(err, ERR_UNSUPPORTED, "%u value heads of %u over %u key heads of %u", values, s->d_v, s->heads, s->d_k);
    }
    s->values = values / s->heads;
    s->channels = 2 * s->d_k + s->values * s->d_v;
    return 0;
}

static int layers_by_interval(struct hparams *hp, uint32_t interval, struct err *err)
{
    if (interval == 0) {
        return err_set(err, ERR_FORMAT, "full_attention_interval is 0: expected 1 or more");
    }
    for (uint32_t i = 0; i < hp->layers && i < MODEL_LAYERS_MAX; i++) {
        hp->recurrent[i] = (i + 1) % interval != 0;
    }
    return 0;
}

int qwen_delta_read_config(struct hparams *hp, const struct config_reader *cfg, struct err *err)
{
    bool known = false, gate = true;
    uint32_t values = 32, interval = 4;
    struct state_shape *s = &hp->state;
    defaults(hp);
    const struct {
        const char *key;
        uint32_t *out;
    } sizes[] = {{"linear_conv_kernel_dim", &s->taps}, {"linear_key_head_dim", &s->d_k}, {"linear_value_head_dim", &s->d_v},
                 {"linear_num_key_heads", &s->heads}, {"linear_num_value_heads", &values}, {"full_attention_interval", &interval}};
    hp->norm_shift = 1.0f;
    hp->rope[0].sections = true;
    int rc = config_read_common(hp, cfg, err);
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0] && rc == 0; i++) {
        rc = json_get_u32(cfg->root, sizes[i].key, sizes[i].out, cfg->where, err);
    }
    if (rc == 0) {
        rc = json_get_bool(cfg->root, "attn_output_gate", &gate, cfg->where, err);
    }
    if (rc == 0 && !gate) {
        return err_set(err, ERR_UNSUPPORTED, "%s: attn_output_gate false is not supported", cfg->where);
    }
    if (rc == 0) {
        rc = state_finish(hp, values, err);
    }
    if (rc == 0) {
        rc = config_read_rope(hp, 0, cfg, NULL, err);
    }
    bool partial = yyjson_obj_get(cfg->root, "partial_rotary_factor") != NULL ||
                   yyjson_obj_get(yyjson_obj_get(cfg->root, "rope_parameters"), "partial_rotary_factor") != NULL;
    if (!partial) {
        hp->rope[0].rot = hp->head_dim / 4;
    }
    if (rc == 0) {
        rc = config_read_layer_types(hp, cfg, &known, err);
    }
    return rc != 0 || known ? rc : layers_by_interval(hp, interval, err);
}

/* attention.recurrent_layers, one flag a block, or the interval. */
static int read_layers(struct hparams *hp, const struct metadata_reader *md, uint32_t blocks, struct err *err)
{
    uint32_t interval = 4;
    bool known = false;
    int rc = metadata_flags(md, "attention.recurrent_layers", blocks, hp->recurrent, &known, err);
    if (rc == 0 && !known) {
        rc = metadata_u32(md, "full_attention_interval", &interval, err);
        rc = rc != 0 ? rc : layers_by_interval(hp, interval, err);
    }
    return rc;
}

int qwen_delta_read_metadata(struct hparams *hp, const struct metadata_reader *md, struct err *err)
{
    uint32_t values = 32, inner = 0, blocks = 0;
    struct state_shape *s = &hp->state;
    defaults(hp);
    hp->state_tiled = true;
    int rc = metadata_read_common(hp, md, err);
    hp->flags &= ~(uint32_t)HP_FUSED_QKV; /* attn_qkv is the recurrent layers' */
    hp->rope[0].rot = hp->head_dim / 4;
    const struct {
        const char *key;
        uint32_t *out;
    } sizes[] = {{"ssm.conv_kernel", &s->taps}, {"ssm.state_size", &s->d_k}, {"ssm.group_count", &s->heads},
                 {"ssm.time_step_rank", &values}, {"ssm.inner_size", &inner}};
    if (rc == 0) {
        rc = metadata_read_rope(hp, md, err);
    }
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0] && rc == 0; i++) {
        rc = metadata_u32(md, sizes[i].key, sizes[i].out, err);
    }
    if (rc != 0) {
        return rc;
    }
    blocks = hp->layers;
    if (inner != 0 && (values == 0 || inner % values != 0)) {
        return err_set(err, ERR_FORMAT, "%s: %u value heads share %u", md->arch, values, inner);
    }
    s->d_v = inner != 0 ? inner / values : s->d_k;
    rc = metadata_drop_predictors(hp, md, err);
    rc = rc != 0 ? rc : state_finish(hp, values, err);
    return rc != 0 ? rc : read_layers(hp, md, blocks, err);
}

static const char *const model_types[] = {"qwen3_5_text", "qwen3_5", NULL};
static const char *const config_keys[] = {DELTA_CONFIG_KEYS, NULL};
static const char *const metadata_keys[] = {DELTA_METADATA_KEYS, NULL};

const struct arch arch_qwen3_5 = {
    .name = "qwen3_5", .gguf = "qwen35", .model_types = model_types, .config_keys = config_keys, .metadata_keys = metadata_keys,
    .read_config = qwen_delta_read_config, .read_metadata = qwen_delta_read_metadata, .binds = binds, .bind_count = sizeof binds / sizeof binds[0],
    .layer = decoder_layer};
