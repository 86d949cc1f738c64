/* models/nemotron_h.c - Nemotron-H: every layer is one block behind one norm: a Mamba 2 mixer, attention without rope, an MLP of two
 * matrices with the square of relu between, or a mixture of such MLPs beside one that every row takes.
 *
 * Experts: sigmoid routing with a bias of the choice; they may work on a smaller product of the row, and what they give be brought back.
 * GGUF files tell a layer's kind by its numbers: of key/value heads and of feed-forward elements; a mixer has neither.  Those with experts
 * have another name and no other MLPs. */
#include "models/decoder_binds.h"

#define NH_MIXER "backbone.layers.%u.mixer."
#define NH_MATRIX(slot_, gguf_, hf_, rows_, cols_, ...)                                                                          \
    {.kind = BIND_LAYER_WEIGHT, .slot = slot_, .gguf = "blk.%u." gguf_, .hf = NH_MIXER hf_, .rows = rows_, .cols = cols_, __VA_ARGS__}
/* a matrix each, one stack, or as MLX has it */
#define NH_EXPERTS(name, mlx) NH_MIXER "experts.%u." name "|" NH_MIXER "experts." name "|" NH_MIXER "switch_mlp." mlx
#define NH_VECTOR(slot_, gguf_, hf_, rows_, ...)                                                                                 \
    {.kind = BIND_LAYER_VEC, .slot = slot_, .gguf = "blk.%u." gguf_, .hf = NH_MIXER hf_, .rows = rows_, .cols = DIM_1, .layers = LAYERS_RECURRENT, __VA_ARGS__}
/* rows of the one matrix that gives gate, x B C, and dt */
#define NH_IN(slot_, rows_, first_) \
    NH_MATRIX(slot_, "ssm_in", "in_proj", rows_, DIM_HIDDEN, .first = first_, .of = DIM_STATE_ALL, .layers = LAYERS_RECURRENT)

enum { LATENT_IN, LATENT_OUT }; /* step buffers: what experts read and what they give, where it is not the row itself */

static const struct bind binds[] = {
    {.kind = BIND_WEIGHT, .slot = W_EMBED, .gguf = "token_embd", .hf = "backbone.embeddings", .rows = DIM_VOCAB, .cols = DIM_HIDDEN,
     .split = SPLIT_ROWS},
    {.kind = BIND_WEIGHT, .slot = W_HEAD, .gguf = "output", .hf = "lm_head", .rows = DIM_VOCAB, .cols = DIM_HIDDEN, .unless = HP_TIED,
     .split = SPLIT_ROWS},
    {.kind = BIND_VEC, .slot = V_FINAL_NORM, .gguf = "output_norm.weight", .hf = "backbone.norm_f.weight", .rows = DIM_HIDDEN,
     .cols = DIM_1},
    {.kind = BIND_LAYER_VEC, .slot = V_ATTN_NORM, .gguf = "blk.%u.attn_norm.weight", .hf = "backbone.layers.%u.norm.weight",
     .rows = DIM_HIDDEN, .cols = DIM_1},
    NH_MATRIX(W_Q, "attn_q", "q_proj", DIM_Q, DIM_HIDDEN, .layers = LAYERS_ATTENTION),
    NH_MATRIX(W_K, "attn_k", "k_proj", DIM_KV, DIM_HIDDEN, .layers = LAYERS_ATTENTION),
    NH_MATRIX(W_V, "attn_v", "v_proj", DIM_KV, DIM_HIDDEN, .layers = LAYERS_ATTENTION),
    NH_MATRIX(W_O, "attn_output", "o_proj", DIM_HIDDEN, DIM_Q, .layers = LAYERS_ATTENTION),
    NH_MATRIX(W_UP, "ffn_up", "up_proj", DIM_FFN, DIM_HIDDEN, .layers = LAYERS_MLP | LAYERS_DENSE),
    NH_MATRIX(W_DOWN, "ffn_down", "down_proj", DIM_HIDDEN, DIM_FFN, .layers = LAYERS_MLP | LAYERS_DENSE),
    NH_MATRIX(W_ROUTER, "ffn_gate_inp", "gate", DIM_EXPERTS, DIM_HIDDEN, .layers = LAYERS_EXPERTS),
    {.kind = BIND_LAYER_VEC, .slot = V_ROUTE_BIAS, .gguf = "blk.%u.exp_probs_b.bias", .hf = NH_MIXER "gate.e_score_correction_bias",
     .rows = DIM_EXPERTS, .cols = DIM_1, .layers = LAYERS_EXPERTS, .when = HP_ROUTE_BIAS},
    BIND_STACK(W_EXPERT_UP, "blk.%u.ffn_up_exps", NH_EXPERTS("up_proj", "fc1"), DIM_EXPERT_FFN, DIM_EXPERT_IN),
    BIND_STACK(W_EXPERT_DOWN, "blk.%u.ffn_down_exps", NH_EXPERTS("down_proj", "fc2"), DIM_EXPERT_IN, DIM_EXPERT_FFN),
    NH_MATRIX(W_SHARED_UP, "ffn_up_shexp", "shared_experts.up_proj", DIM_SHARED_FFN, DIM_HIDDEN, .layers = LAYERS_EXPERTS,
              .when = HP_SHARED),
    NH_MATRIX(W_SHARED_DOWN, "ffn_down_shexp", "shared_experts.down_proj", DIM_HIDDEN, DIM_SHARED_FFN, .layers = LAYERS_EXPERTS,
              .when = HP_SHARED),
    NH_MATRIX(W_LATENT_IN, "ffn_latent_down", "fc1_latent_proj", DIM_EXPERT_IN, DIM_HIDDEN, .layers = LAYERS_EXPERTS, .when = HP_LATENT),
    NH_MATRIX(W_LATENT_OUT, "ffn_latent_up", "fc2_latent_proj", DIM_HIDDEN, DIM_EXPERT_IN, .layers = LAYERS_EXPERTS, .when = HP_LATENT),
    NH_IN(W_STATE_GATE, DIM_STATE_OUT, DIM_0), NH_IN(W_STATE_IN, DIM_STATE_COLS, DIM_STATE_OUT),
    NH_IN(W_STATE_A, DIM_STATE_VALUES, DIM_STATE_OUT_COLS),
    NH_MATRIX(W_STATE_OUT, "ssm_out", "out_proj", DIM_HIDDEN, DIM_STATE_OUT, .layers = LAYERS_RECURRENT),
    {.kind = BIND_LAYER_VEC, .slot = V_STATE_CONV, .gguf = "blk.%u.ssm_conv1d.weight", .hf = "backbone.layers.%u.mixer.conv1d.weight",
     .rows = DIM_CHANNELS, .cols = DIM_TAPS, .layers = LAYERS_RECURRENT},
    NH_VECTOR(V_STATE_CONV_BIAS, "ssm_conv1d.bias", "conv1d.bias", DIM_CHANNELS, .when = HP_CONV_BIAS),
    NH_VECTOR(V_STATE_RATE, "ssm_a", "A_log", DIM_STATE_VALUES, .map = MAP_NEG_EXP),
    NH_VECTOR(V_STATE_DT, "ssm_dt.bias", "dt_bias", DIM_STATE_VALUES, .map = MAP_NONE),
    NH_VECTOR(V_STATE_SKIP, "ssm_d", "D", DIM_STATE_VALUES, .map = MAP_NONE),
    {.kind = BIND_LAYER_VEC, .slot = V_STATE_NORM, .hf = "backbone.layers.%u.mixer.norm.weight", .rows = DIM_STATE_OUT, .cols = DIM_1,
     .layers = LAYERS_RECURRENT},
    {.kind = BIND_LAYER_VEC, .slot = V_STATE_NORM, .gguf = "blk.%u.ssm_norm.weight", .rows = DIM_KEY_HEADS, .cols = DIM_KEY_HEAD_OUT,
     .layers = LAYERS_RECURRENT, .map = MAP_ROWS},
    {.kind = BIND_IGNORED, .hf = "mtp."}};

static void defaults(struct hparams *hp)
{
    hp->flags |= HP_MAMBA;
    hp->eps = 1e-5f;
    hp->context_train = 4096;
    hp->rope_sets = 0;
    hp->state = (struct state_shape){.anchor = STATE_ANCHOR, .heads = 8, .taps = 4, .d_k = 128, .d_v = 64};
}

static int state_finish(struct hparams *hp, uint32_t values, struct err *err)
{
    struct state_shape *s = &hp->state;
    if (s->heads == 0 || values == 0 || values % s->heads != 0 || values > 4096 || s->d_k > STATE_DIM_MAX || s->d_v > STATE_DIM_MAX) {
        return err_set(err, ERR_UNSUPPORTED, "%u heads of %u over %u groups of %u", values, s->d_v, s->heads, s->d_k);
    }
    s->values = values / s->heads;
    s->channels = 2 * s->d_k + s->values * s->d_v;
    return 0;
}

/* ---- config.json ---- */

static int layer_kind(struct hparams *hp, uint32_t layer, struct str name, const char *where, struct err *err)
{
    static const struct {
        const char *letter, *name, *older;
    } kinds[] = {{"M", "linear_attention", "mamba"}, {"*", "full_attention", "attention"}, {"-", "mlp", "mlp"}, {"E", "moe", "moe"}};
    for (size_t k = 0; k < sizeof kinds / sizeof kinds[0]; k++) {
        if (str_is(name, kinds[k].letter) || str_is(name, kinds[k].name) || str_is(name, kinds[k].older)) {
            hp->recurrent[layer] = k == 0;
            hp->mlp_only[layer] = k >= 2;
            hp->dense[layer] = k != 3;
            hp->no_rope[layer] = 1;
            return 0;
        }
    }
    return err_set(err, ERR_UNSUPPORTED, "%s: layer %u: '%.*s' is not supported", where, layer, STR_ARG(name));
}

/* hybrid_override_pattern, a letter a layer, or layers_block_type; how many there are is the number of layers. */
static int read_layers(struct hparams *hp, const struct config_reader *cfg, struct err *err)
{
    yyjson_val *list = yyjson_obj_get(cfg->root, "layers_block_type");
    struct str letters = json_str(yyjson_obj_get(cfg->root, "hybrid_override_pattern"));
    size_t n = yyjson_is_arr(list) ? yyjson_arr_size(list) : letters.n;
    if (n == 0 || n > MODEL_LAYERS_MAX) {
        return err_set(err, ERR_FORMAT, "%s: layers_block_type or hybrid_override_pattern: expected 1 to %d layers, got %zu", cfg->where,
                       MODEL_LAYERS_MAX, n);
    }
    hp->layers = (uint32_t)n;
    for (uint32_t i = 0; i < hp->layers; i++) {
        struct str name = yyjson_is_arr(list) ? json_str(yyjson_arr_get(list, i)) : (struct str){letters.p + i, 1};
        int rc = layer_kind(hp, i, name, cfg->where, err);
        if (rc != 0) {
            return rc;
        }
    }
    return 0;
}

static const struct config_fact facts[] = {{"mlp_hidden_act", "relu2", 0.0}, {"mamba_hidden_act", "silu", 0.0}};

/* What layers of experts have; nothing of it counts where there is none. */
static int read_experts(struct hparams *hp, const struct config_reader *cfg, struct err *err)
{
    struct experts_params *p = &hp->moe;
    uint8_t dense[MODEL_LAYERS_MAX];
    uint32_t experts = 0, mlps = 0;
    memcpy(dense, hp->dense, sizeof dense);
    for (uint32_t i = 0; i < hp->layers; i++) {
        experts += !dense[i];
        mlps += dense[i] && hp->mlp_only[i];
    }
    if (experts == 0) {
        return 0;
    }
    *p = (struct experts_params){.experts = 8, .used = 2, .ffn = 7688, .shared_ffn = 7688, .score = ROUTE_SIGMOID, .groups = 1,
                                 .group_top = 1, .group_best = 2, .normalise = true, .scale = 1.0f};
    int rc = experts_read_config(hp, cfg, err);
    memcpy(hp->dense, dense, sizeof dense);
    p->shared_ffn = 7688; /* whatever n_shared_experts says: there is one, of its own width */
    if (rc == 0) {
        rc = json_get_u32(cfg->root, "moe_shared_expert_intermediate_size", &p->shared_ffn, cfg->where, err);
    }
    if (rc == 0) {
        rc = json_get_u32(cfg->root, "moe_latent_size", &p->latent, cfg->where, err);
    }
    hp->ffn = mlps == 0 ? 0 : hp->ffn;
    hp->flags |= HP_ROUTE_BIAS | HP_SHARED;
    return rc;
}

/* Sizes that both file kinds name; a latent row is that of two step buffers. */
static void experts_finish(struct hparams *hp)
{
    hp->flags |= hp->moe.latent != 0 ? HP_LATENT : 0;
    hp->extra[LATENT_IN] = hp->extra[LATENT_OUT] = hp->moe.latent;
}

static int read_config(struct hparams *hp, const struct config_reader *cfg, struct err *err)
{
    uint32_t values = 128;
    bool conv_bias = true;
    struct state_shape *s = &hp->state;
    defaults(hp);
    hp->head_dim = 128, hp->heads = 32, hp->kv_heads = 8;
    hp->dt_least = 0.001f;
    const struct {
        const char *key;
        uint32_t *out;
    } sizes[] = {{"conv_kernel", &s->taps}, {"ssm_state_size", &s->d_k}, {"mamba_head_dim", &s->d_v}, {"n_groups", &s->heads},
                 {"mamba_num_heads", &values}, {"attention_head_dim", &hp->head_dim}, {"head_dim", &hp->head_dim}};
    int rc = config_read_common(hp, cfg, err);
    hp->act = ACT_RELU; /* of what it is multiplied with: relu(x) x */
    hp->flags &= ~(uint32_t)HP_TIED; /* whatever tie_word_embeddings says: the head is a matrix of its own */
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0] && rc == 0; i++) {
        rc = json_get_u32(cfg->root, sizes[i].key, sizes[i].out, cfg->where, err);
    }
    if (rc == 0) {
        rc = json_get_f32(cfg->root, "layer_norm_epsilon", &hp->eps, cfg->where, err);
    }
    if (rc == 0) {
        rc = json_get_f32(cfg->root, "time_step_min", &hp->dt_least, cfg->where, err);
    }
    if (rc == 0) {
        rc = json_get_bool(cfg->root, "use_conv_bias", &conv_bias, cfg->where, err);
    }
    hp->flags |= conv_bias ? HP_CONV_BIAS : 0;
    if (rc == 0) {
        rc = config_check_facts(cfg, facts, sizeof facts / sizeof facts[0], err);
    }
    if (rc == 0) {
        rc = read_layers(hp, cfg, err);
    }
    if (rc == 0) {
        rc = read_experts(hp, cfg, err);
    }
    experts_finish(hp);
    return rc != 0 ? rc : state_finish(hp, values, err);
}

/* ---- GGUF ---- */

static int read_metadata_experts(struct hparams *hp, const struct metadata_reader *md, struct err *err)
{
    hp->act = ACT_RELU;
    hp->moe.score = ROUTE_SIGMOID;
    hp->moe.group_best = 2;
    int rc = experts_read_metadata(hp, md, err);
    if (rc == 0) {
        rc = metadata_u32(md, "moe_latent_size", &hp->moe.latent, err);
    }
    for (uint32_t i = 0; i < hp->layers; i++) {
        hp->dense[i] = !hp->mlp_only[i];
    }
    hp->flags |= HP_ROUTE_BIAS;
    experts_finish(hp);
    return rc;
}

static int read_metadata(struct hparams *hp, const struct metadata_reader *md, struct err *err)
{
    uint32_t values = 0, inner = 0;
    struct state_shape *s = &hp->state;
    defaults(hp);
    int rc = metadata_f32(md, "attention.layer_norm_epsilon", &hp->eps, err);
    if (rc == 0) {
        rc = metadata_read_common(hp, md, err);
    }
    const struct {
        const char *key;
        uint32_t *out;
    } sizes[] = {{"ssm.conv_kernel", &s->taps}, {"ssm.state_size", &s->d_k}, {"ssm.group_count", &s->heads},
                 {"ssm.time_step_rank", &values}, {"ssm.inner_size", &inner}};
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0] && rc == 0; i++) {
        rc = metadata_u32(md, sizes[i].key, sizes[i].out, err);
    }
    rc = rc != 0 ? rc : metadata_drop_predictors(hp, md, err);
    for (uint32_t i = 0; i < hp->layers && i < MODEL_LAYERS_MAX && rc == 0; i++) {
        hp->mlp_only[i] = hp->shape[i].ffn != 0;
        hp->recurrent[i] = hp->shape[i].ffn == 0 && hp->shape[i].kv_heads == 0;
        hp->no_rope[i] = 1;
        hp->flags |= metadata_has_tensor(md, i, "ssm_conv1d.bias") ? HP_CONV_BIAS : 0;
    }
    if (rc == 0 && (values == 0 || inner % values != 0)) {
        return err_set(err, ERR_FORMAT, "%s: %u heads share %u", md->arch, values, inner);
    }
    s->d_v = rc == 0 ? inner / values : 0;
    if (rc == 0 && hp->moe.experts != 0) {
        rc = read_metadata_experts(hp, md, err);
    }
    return rc != 0 ? rc : state_finish(hp, values, err);
}

/* ---- a step ---- */

/* x += Wdown relu(Wup n(x))^2 */
static int mlp(struct model *m, uint32_t layer, struct err *err)
{
    const struct layer_weights *l = &m->layers[layer];
    struct tensor up = tensor_cols(step_rows(m, m->step.up), 0, m->hp.shape[layer].ffn);
    struct op_norm_linear in = {.x = step_rows(m, m->step.x), .norm_w = l->v[V_ATTN_NORM], .eps = m->hp.eps, .n = 1, .w = {l->w[W_UP]},
                                .y = {up}, .scratch = step_rows(m, m->step.normed)};
    struct op_gated square = {.gate = up, .up = up, .y = up, .act = ACT_RELU};
    int rc = op_norm_linear(m->device, &in, err);
    rc = rc != 0 ? rc : op_gated(m->device, &square, err);
    return rc != 0 ? rc : decoder_output(m, l->w[W_DOWN], NULL, up, NULL, err);
}

/* y = or += W x */
static int product(struct model *m, const struct weight *w, struct tensor x, struct tensor y, bool add, struct err *err)
{
    struct op_linear op = {.w = w, .x = x, .y = y, .alpha = 1.0f, .add = add};
    return op_linear(m->device, &op, err);
}

/* x += [Wout] experts([Win] n(x)) + shared(n(x)) */
static int experts(struct model *m, uint32_t layer, struct err *err)
{
    const struct layer_weights *l = &m->layers[layer];
    struct tensor x = step_rows(m, m->step.x), n = step_rows(m, m->step.normed);
    struct tensor in = tensor_rows(m->step.extra[LATENT_IN], 0, m->step.rows), out = tensor_rows(m->step.extra[LATENT_OUT], 0, m->step.rows);
    struct op_norm norm = {.x = x, .y = n, .dim = m->hp.hidden, .w = l->v[V_ATTN_NORM], .eps = m->hp.eps, .scale = 1.0f};
    bool latent = m->hp.moe.latent != 0;
    int rc = op_norm(m->device, &norm, err);
    if (rc == 0) {
        rc = experts_route(m, layer, n, err);
    }
    if (rc == 0 && latent) {
        rc = product(m, l->w[W_LATENT_IN], n, in, false, err);
    }
    if (rc == 0) {
        rc = experts_gated(m, layer, latent ? in : n, err);
    }
    if (rc == 0) {
        rc = experts_output(m, layer, latent ? out : x, !latent, err);
    }
    if (rc == 0 && latent) {
        rc = product(m, l->w[W_LATENT_OUT], out, x, true, err);
    }
    return rc != 0 ? rc : experts_shared(m, layer, n, x, err);
}

static int nemotron_h_layer(struct model *m, uint32_t layer, struct err *err)
{
    if (!m->hp.mlp_only[layer]) {
        return decoder_mix(m, layer, err);
    }
    return m->hp.moe.experts != 0 && !m->hp.dense[layer] ? experts(m, layer, err) : mlp(m, layer, err);
}

static const char *const model_types[] = {"nemotron_h", NULL};
static const char *const config_keys[] = {
    "layers_block_type", "hybrid_override_pattern", "conv_kernel", "ssm_state_size", "mamba_head_dim", "mamba_num_heads", "n_groups",
    "attention_head_dim", "layer_norm_epsilon", "time_step_min", "use_conv_bias", "mlp_hidden_act", "mamba_hidden_act",
    "moe_intermediate_size", "moe_latent_size", "moe_shared_expert_intermediate_size", "n_group", "n_routed_experts", "n_shared_experts",
    "norm_topk_prob", "num_experts_per_tok", "routed_scaling_factor", "topk_group",
    "norm_eps", "time_step_rank", /* read by nobody */
    /* of layers that predict further tokens; of training; of how sums are cut, kept and done at once elsewhere */
    "moe_shared_expert_overlap", "mtp_layers_block_type", "mtp_hybrid_override_pattern", "num_nextn_predict_layers", "time_step_max", "time_step_floor", "time_step_limit", "chunk_size", "expand", "mamba_ssm_cache_dtype",
    "use_mamba_kernels", "residual_in_fp32", "rescale_prenorm_residual", "num_logits_to_keep", NULL};
static const char *const metadata_keys[] = {
    "ssm.conv_kernel", "ssm.state_size", "ssm.group_count", "ssm.time_step_rank", "ssm.inner_size", "attention.layer_norm_epsilon",
    "expert_feed_forward_length", "expert_shared_feed_forward_length", "expert_shared_count", "expert_group_count",
    "expert_group_used_count", "expert_gating_func", "expert_weights_norm", "expert_weights_scale", "moe_latent_size",
    "nextn_predict_layers", NULL};

const struct arch arch_nemotron_h = {
    .name = "nemotron_h", .gguf = "nemotron_h", .gguf_experts = "nemotron_h_moe", .model_types = model_types, .config_keys = config_keys, .metadata_keys = metadata_keys,
    .read_config = read_config, .read_metadata = read_metadata, .binds = binds, .bind_count = sizeof binds / sizeof binds[0],
    .layer = nemotron_h_layer};
