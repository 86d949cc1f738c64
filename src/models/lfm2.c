/* models/lfm2.c - LFM2 dense: short convolutions in most layers, attention with norms of q and k in the others; the norm before the
 * head has the embedding's name. */
#include "models/decoder_binds.h"

static const struct bind binds[] = {
    BIND_EMBED_AND_HEAD,
    {.kind = BIND_VEC, .slot = V_FINAL_NORM, .gguf = "token_embd_norm.weight", .hf = "model.embedding_norm.weight",
     .rows = DIM_HIDDEN, .cols = DIM_1},
    BIND_VECTOR(V_ATTN_NORM, "attn_norm.weight", "operator_norm.weight", DIM_HIDDEN),
    BIND_VECTOR(V_FFN_NORM, "ffn_norm.weight", "ffn_norm.weight", DIM_HIDDEN),
    BIND_MATRIX(W_Q, "attn_q", "self_attn.q_proj", DIM_Q, DIM_HIDDEN, SPLIT_HEADS, .layers = LAYERS_ATTENTION),
    BIND_MATRIX(W_K, "attn_k", "self_attn.k_proj", DIM_KV, DIM_HIDDEN, SPLIT_HEADS, .layers = LAYERS_ATTENTION),
    BIND_MATRIX(W_V, "attn_v", "self_attn.v_proj", DIM_KV, DIM_HIDDEN, SPLIT_HEADS, .layers = LAYERS_ATTENTION),
    BIND_MATRIX(W_O, "attn_output", "self_attn.out_proj", DIM_HIDDEN, DIM_Q, SPLIT_COLS, .layers = LAYERS_ATTENTION),
    BIND_VECTOR(V_Q_NORM, "attn_q_norm.weight", "self_attn.q_layernorm.weight", DIM_HEAD, .when = HP_QK_NORM,
                .layers = LAYERS_ATTENTION),
    BIND_VECTOR(V_K_NORM, "attn_k_norm.weight", "self_attn.k_layernorm.weight", DIM_HEAD, .when = HP_QK_NORM,
                .layers = LAYERS_ATTENTION),
    BIND_MATRIX(W_STATE_IN, "shortconv.in_proj", "conv.in_proj", DIM_STATE_COLS, DIM_HIDDEN, SPLIT_NONE,
                .layers = LAYERS_RECURRENT),
    BIND_MATRIX(W_STATE_OUT, "shortconv.out_proj", "conv.out_proj", DIM_HIDDEN, DIM_STATE_OUT, SPLIT_NONE,
                .layers = LAYERS_RECURRENT),
    BIND_TAPS("shortconv.conv.weight", "conv.conv.weight"),
    BIND_VECTOR(V_STATE_CONV_BIAS, "shortconv.conv.bias", "conv.conv.bias", DIM_CHANNELS, .when = HP_CONV_BIAS,
                .layers = LAYERS_RECURRENT),
    BIND_VECTOR(V_STATE_IN_BIAS, "shortconv.in_proj.bias", "conv.in_proj.bias", DIM_STATE_COLS, .when = HP_STATE_BIAS,
                .layers = LAYERS_RECURRENT),
    BIND_VECTOR(V_STATE_OUT_BIAS, "shortconv.out_proj.bias", "conv.out_proj.bias", DIM_HIDDEN, .when = HP_STATE_BIAS,
                .layers = LAYERS_RECURRENT),
    BIND_MATRIX(W_GATE, "ffn_gate", "feed_forward.w1", DIM_FFN, DIM_HIDDEN, SPLIT_ROWS),
    BIND_MATRIX(W_UP, "ffn_up", "feed_forward.w3", DIM_FFN, DIM_HIDDEN, SPLIT_ROWS),
    BIND_MATRIX(W_DOWN, "ffn_down", "feed_forward.w2", DIM_HIDDEN, DIM_FFN, SPLIT_COLS)};

static void state_set(struct hparams *hp, uint32_t taps)
{
    hp->state = (struct state_shape){.anchor = STATE_ANCHOR_CONV, .heads = 1, .channels = hp->hidden, .taps = taps};
}

/* The width the model's code makes of intermediate_size: two thirds, times a factor, rounded up. */
static int ffn_adjust(struct hparams *hp, const struct config_reader *cfg, struct err *err)
{
    bool adjust = true;
    float by = 1.0f;
    uint32_t multiple = 256;
    int rc = json_get_u32(cfg->root, "block_ff_dim", &hp->ffn, cfg->where, err); /* the older name, which counts */
    if (rc == 0) {
        rc = json_get_bool(cfg->root, "block_auto_adjust_ff_dim", &adjust, cfg->where, err);
    }
    if (rc == 0) {
        rc = json_get_f32(cfg->root, "block_ffn_dim_multiplier", &by, cfg->where, err);
    }
    if (rc == 0) {
        rc = json_get_u32(cfg->root, "block_multiple_of", &multiple, cfg->where, err);
    }
    if (rc != 0 || !adjust) {
        return rc;
    }
    if (hp->ffn == 0 || hp->ffn > 1u << 24 || !(by > 0.0f) || by > 64.0f || multiple == 0 || multiple > 1u << 20) {
        return err_set(err, ERR_FORMAT, "%s: feed-forward size %u times %g in multiples of %u", cfg->where, hp->ffn, (double)by,
                       multiple);
    }
    uint32_t wide = (uint32_t)((double)by * (double)(2 * hp->ffn / 3));
    hp->ffn = (wide + multiple - 1) / multiple * multiple;
    return 0;
}

/* full_attn_idxs, where layer_types is not there. */
static int attention_layers(struct hparams *hp, const struct config_reader *cfg, struct err *err)
{
    yyjson_val *list = yyjson_obj_get(cfg->root, "full_attn_idxs");
    for (uint32_t i = 0; i < hp->layers && i < MODEL_LAYERS_MAX; i++) {
        hp->recurrent[i] = list != NULL && !yyjson_is_null(list);
    }
    yyjson_arr_iter it;
    yyjson_arr_iter_init(list, &it);
    for (yyjson_val *v = yyjson_arr_iter_next(&it); v != NULL; v = yyjson_arr_iter_next(&it)) {
        if (!yyjson_is_uint(v) || yyjson_get_uint(v) >= hp->layers || yyjson_get_uint(v) >= MODEL_LAYERS_MAX) {
            return err_set(err, ERR_FORMAT, "%s: full_attn_idxs: expected numbers below %u", cfg->where, hp->layers);
        }
        hp->recurrent[yyjson_get_uint(v)] = 0;
    }
    return 0;
}

static int read_config(struct hparams *hp, const struct config_reader *cfg, struct err *err)
{
    bool known = false, bias = false;
    uint32_t taps = 3;
    hp->flags |= HP_QK_NORM | HP_TIED;
    hp->eps = 1e-5f;
    hp->rope[0].theta = 1e6;
    hp->context_train = 128000;
    int rc = config_read_common(hp, cfg, err);
    if (rc == 0) {
        rc = json_get_f32(cfg->root, "norm_eps", &hp->eps, cfg->where, err);
    }
    if (rc == 0) {
        rc = config_read_flag(hp, cfg, "tie_embedding", HP_TIED, err); /* the older name, which counts */
    }
    if (rc == 0) {
        rc = config_read_rope(hp, 0, cfg, NULL, err);
    }
    if (rc == 0) {
        rc = ffn_adjust(hp, cfg, err);
    }
    if (rc == 0) {
        rc = json_get_u32(cfg->root, "conv_L_cache", &taps, cfg->where, err);
    }
    if (rc == 0) {
        rc = json_get_bool(cfg->root, "conv_bias", &bias, cfg->where, err);
    }
    hp->flags |= bias ? HP_CONV_BIAS | HP_STATE_BIAS : 0;
    state_set(hp, taps);
    if (rc == 0) {
        rc = config_read_layer_types(hp, cfg, &known, err);
    }
    return rc != 0 || known ? rc : attention_layers(hp, cfg, err);
}

static int read_metadata(struct hparams *hp, const struct metadata_reader *md, struct err *err)
{
    uint32_t taps = 3;
    hp->flags |= HP_QK_NORM;
    hp->eps = 1e-5f;
    int rc = metadata_read_common(hp, md, err);
    if (rc == 0) {
        rc = metadata_read_rope(hp, md, err);
    }
    if (rc == 0) {
        rc = metadata_u32(md, "shortconv.l_cache", &taps, err);
    }
    state_set(hp, taps);
    for (uint32_t i = 0; i < hp->layers && rc == 0; i++) {
        hp->flags |= metadata_has_tensor(md, i, "shortconv.conv.bias") ? HP_CONV_BIAS | HP_STATE_BIAS : 0;
    }
    return rc;
}

static const char *const model_types[] = {"lfm2", NULL};
static const char *const config_keys[] = {
    "block_auto_adjust_ff_dim", "block_dim", "block_ff_dim", "block_ffn_dim_multiplier", "block_mlp_init_scale",
    "block_multiple_of", "block_norm_eps", "block_out_init_scale", "block_use_swiglu", "block_use_xavier_init", "conv_L_cache",
    "conv_bias", "conv_dim", "conv_dim_out", "conv_use_xavier_init", "full_attn_idxs", "layer_types", "norm_eps", "num_heads",
    "tie_embedding", "use_pos_enc", NULL};
static const char *const metadata_keys[] = {"shortconv.l_cache", NULL};

const struct arch arch_lfm2 = {
    .name = "lfm2", .gguf = "lfm2", .model_types = model_types, .config_keys = config_keys, .metadata_keys = metadata_keys,
    .read_config = read_config, .read_metadata = read_metadata, .binds = binds, .bind_count = sizeof binds / sizeof binds[0],
    .layer = decoder_layer};
