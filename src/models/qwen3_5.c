/* models/qwen3_5.c - Qwen3.5 dense, text: gated delta nets in three layers of four, attention with a gate of its output and partial
 * rope in the fourth; norms with weight 1 + w (GGUF files have the 1 added), but not the one behind the delta net.
 *
 * GGUF files have the value heads in another order: those of one key head are not neighbours but `heads` apart. */
#include "models/decoder_binds.h"

#define Q_HALF(slot, first_)                                                                                          \
    BIND_MATRIX(slot, "attn_q", "self_attn.q_proj", DIM_Q, DIM_HIDDEN, SPLIT_HEADS, .first = first_, .of = DIM_2_Q,   \
                .group = DIM_2_HEAD, .layers = LAYERS_ATTENTION)
#define STATE_MATRIX(slot, gguf, hf, rows) \
    BIND_MATRIX(slot, gguf, "linear_attn." hf, rows, DIM_HIDDEN, SPLIT_NONE, .layers = LAYERS_RECURRENT)
#define STATE_VECTOR(slot, gguf, hf, rows, ...) \
    BIND_VECTOR(slot, gguf, "linear_attn." hf, rows, .layers = LAYERS_RECURRENT, __VA_ARGS__)

static const struct bind binds[] = {
    BINDS_ENDS,
    BIND_VECTOR(V_ATTN_NORM, "attn_norm.weight", "input_layernorm.weight", DIM_HIDDEN, .norm = true),
    BIND_VECTOR(V_FFN_NORM, "post_attention_norm.weight", "post_attention_layernorm.weight", DIM_HIDDEN, .norm = true),
    Q_HALF(W_Q, DIM_0),
    Q_HALF(W_Q_GATE, DIM_HEAD),
    BIND_MATRIX(W_K, "attn_k", "self_attn.k_proj", DIM_KV, DIM_HIDDEN, SPLIT_HEADS, .layers = LAYERS_ATTENTION),
    BIND_MATRIX(W_V, "attn_v", "self_attn.v_proj", DIM_KV, DIM_HIDDEN, SPLIT_HEADS, .layers = LAYERS_ATTENTION),
    BIND_MATRIX(W_O, "attn_output", "self_attn.o_proj", DIM_HIDDEN, DIM_Q, SPLIT_COLS, .layers = LAYERS_ATTENTION,
                .when = HP_ATTN_GATE),
    BIND_VECTOR(V_Q_NORM, "attn_q_norm.weight", "self_attn.q_norm.weight", DIM_HEAD, .when = HP_QK_NORM, .norm = true,
                .layers = LAYERS_ATTENTION),
    BIND_VECTOR(V_K_NORM, "attn_k_norm.weight", "self_attn.k_norm.weight", DIM_HEAD, .when = HP_QK_NORM, .norm = true,
                .layers = LAYERS_ATTENTION),
    STATE_MATRIX(W_STATE_IN, "attn_qkv", "in_proj_qkv", DIM_STATE_COLS),
    STATE_MATRIX(W_STATE_GATE, "attn_gate", "in_proj_z", DIM_STATE_OUT),
    STATE_MATRIX(W_STATE_A, "ssm_alpha", "in_proj_a", DIM_STATE_VALUES),
    STATE_MATRIX(W_STATE_B, "ssm_beta", "in_proj_b", DIM_STATE_VALUES),
    BIND_MATRIX(W_STATE_OUT, "ssm_out", "linear_attn.out_proj", DIM_HIDDEN, DIM_STATE_OUT, SPLIT_NONE,
                .layers = LAYERS_RECURRENT),
    BIND_TAPS("ssm_conv1d.weight", "linear_attn.conv1d.weight"),
    STATE_VECTOR(V_STATE_RATE, "ssm_a", "A_log", DIM_STATE_VALUES, .map = MAP_NEG_EXP),
    STATE_VECTOR(V_STATE_DT, "ssm_dt.bias", "dt_bias", DIM_STATE_VALUES, .norm = false),
    STATE_VECTOR(V_STATE_NORM, "ssm_norm.weight", "norm.weight", DIM_STATE_HEAD, .norm = false),
    BINDS_MLP,
    {.kind = BIND_IGNORED, .hf = "mtp."},
    {.kind = BIND_IGNORED, .hf = "model.visual."}};

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

static int read_config(struct hparams *hp, const struct config_reader *cfg, struct err *err)
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

static int read_metadata(struct hparams *hp, const struct metadata_reader *md, struct err *err)
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
                 {"ssm.time_step_rank", &values}, {"ssm.inner_size", &inner}, {"nextn_predict_layers", &hp->ignored_layers}};
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
    if (hp->ignored_layers >= blocks || (inner != 0 && (values == 0 || inner % values != 0))) {
        return err_set(err, ERR_FORMAT, "qwen35: %u of %u blocks predict further tokens, %u value heads share %u", hp->ignored_layers,
                       blocks, values, inner);
    }
    hp->layers -= hp->ignored_layers;
    s->d_v = inner != 0 ? inner / values : s->d_k;
    rc = state_finish(hp, values, err);
    return rc != 0 ? rc : read_layers(hp, md, blocks, err);
}

static const char *const model_types[] = {"qwen3_5_text", "qwen3_5", NULL};
static const char *const config_keys[] = {
    "layer_types", "full_attention_interval", "linear_conv_kernel_dim", "linear_key_head_dim", "linear_value_head_dim",
    "linear_num_key_heads", "linear_num_value_heads", "attn_output_gate", "mamba_ssm_dtype", "mtp_num_hidden_layers",
    "mtp_use_dedicated_embeddings", "image_token_id", "video_token_id", "vision_start_token_id", "vision_end_token_id", NULL};
static const char *const metadata_keys[] = {
    "ssm.conv_kernel", "ssm.state_size", "ssm.group_count", "ssm.time_step_rank", "ssm.inner_size", "nextn_predict_layers",
    "full_attention_interval", "attention.recurrent_layers",
    "rope.dimension_sections", /* of several positions; in text all are the same */
    NULL};

const struct arch arch_qwen3_5 = {
    .name = "qwen3_5", .gguf = "qwen35", .model_types = model_types, .config_keys = config_keys, .metadata_keys = metadata_keys,
    .read_config = read_config, .read_metadata = read_metadata, .binds = binds, .bind_count = sizeof binds / sizeof binds[0],
    .layer = decoder_layer};
