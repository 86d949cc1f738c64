/* models/gemma3n.c - Gemma 3n, text: four streams of which a layer works on one (AltUp), a low-rank path beside attention (Laurel), gates
 * of which only values far above the row's mean pass in early layers, embeddings of each layer, keys and values of earlier layers.
 *
 *   m(x) = tanh(Wr norm(x) / hidden);  a: the active stream
 *   p_i = s_i + sum_j (Wp m(s_a))_ij s_j;  x = p_a;  n = norm(x);  l = n + norm(Wright Wleft n)
 *   x += norm(attention(n));  x = (x + l) / sqrt 2;  x += norm(mlp(norm(x)))
 *   s_i = p_i + ((Wc m(x))_i + 1) (x - p_a);  s_i += norm(Wout (act(Wgate (scale s_a)) * the layer's inputs)), i > 0
 * Before the layers s_i = W_i s_0, brought to the magnitude of s_0; behind them the streams are brought to it likewise, and their mean is
 * what the head reads. */
#include "models/gemma.h"

#include "base/math.h"

enum { STREAMS = 4 };
/* step buffers: streams, predictions, a router's values, coefficients, Laurel's inner and outer vectors */
enum {
    ALTUP_STREAM = GEMMA_EXTRA, ALTUP_PREDICTED = ALTUP_STREAM + STREAMS, ALTUP_ROUTED = ALTUP_PREDICTED + STREAMS, ALTUP_COEF,
    LAUREL_LOW, LAUREL, GEMMA3N_EXTRA
};
_Static_assert((int)GEMMA3N_EXTRA <= (int)MODEL_EXTRA, "step buffers");
static const float MAGNITUDE_LEAST = 1e-5f;

/* one matrix of three: a tensor of its own, or a part of one */
#define STREAM_MATRIX(slot_, gguf_, hf_, first_)                                                                                 \
    {.kind = BIND_WEIGHT, .slot = slot_, .gguf = gguf_, .rows = DIM_HIDDEN, .cols = DIM_HIDDEN, .first = first_, .of = DIM_3_HIDDEN}, \
    {.kind = BIND_WEIGHT, .slot = slot_, .hf = hf_, .rows = DIM_HIDDEN, .cols = DIM_HIDDEN}

static const struct bind binds[] = {
    BINDS_ENDS, BINDS_O, BINDS_MLP, BINDS_LAYER_INPUTS, BINDS_UNUSED_KV, BINDS_MODALITIES,
    {.kind = BIND_ONES, .slot = V_ONES, .rows = DIM_HEAD_MOST, .cols = DIM_1},
    BIND_MATRIX(W_Q, "attn_q", "self_attn.q_proj", DIM_Q, DIM_HIDDEN, SPLIT_HEADS),
    BIND_MATRIX(W_K, "attn_k", "self_attn.k_proj", DIM_KV, DIM_HIDDEN, SPLIT_HEADS, .layers = LAYERS_OWN_KV),
    BIND_MATRIX(W_V, "attn_v", "self_attn.v_proj", DIM_KV, DIM_HIDDEN, SPLIT_HEADS, .layers = LAYERS_OWN_KV),
    BIND_VECTOR(V_Q_NORM, "attn_q_norm.weight", "self_attn.q_norm.weight", DIM_HEAD, .when = HP_QK_NORM),
    BIND_VECTOR(V_K_NORM, "attn_k_norm.weight", "self_attn.k_norm.weight", DIM_HEAD, .when = HP_QK_NORM, .layers = LAYERS_OWN_KV),
    BINDS_GEMMA_NORMS,
    BIND_MATRIX(W_LAUREL_LEFT, "laurel_l", "laurel.linear_left", DIM_LAUREL, DIM_HIDDEN, SPLIT_NONE),
    BIND_MATRIX(W_LAUREL_RIGHT, "laurel_r", "laurel.linear_right", DIM_HIDDEN, DIM_LAUREL, SPLIT_NONE),
    BIND_VECTOR(V_LAUREL_NORM, "laurel_post_norm.weight", "laurel.post_laurel_norm.weight", DIM_HIDDEN),
    BIND_MATRIX(W_ALTUP_ROUTER, "altup_router", "altup.modality_router", DIM_STREAMS, DIM_HIDDEN, SPLIT_NONE),
    BIND_MATRIX(W_ALTUP_PREDICT, "altup_predict_coef", "altup.prediction_coefs", DIM_STREAMS_2, DIM_STREAMS, SPLIT_NONE),
    BIND_MATRIX(W_ALTUP_CORRECT, "altup_correct_coef", "altup.correction_coefs", DIM_STREAMS, DIM_STREAMS, SPLIT_NONE),
    BIND_VECTOR(V_ALTUP_NORM, "altup_router_norm.weight", "altup.router_norm.weight", DIM_HIDDEN),
    BIND_VECTOR(V_ALTUP_SCALE, "altup_correct_scale.weight", "altup.correct_output_scale", DIM_HIDDEN),
    STREAM_MATRIX(W_STREAM_IN, "altup_proj", "model.altup_projections.0", DIM_0),
    STREAM_MATRIX(W_STREAM_IN + 1, "altup_proj", "model.altup_projections.1", DIM_HIDDEN),
    STREAM_MATRIX(W_STREAM_IN + 2, "altup_proj", "model.altup_projections.2", DIM_2_HIDDEN),
    STREAM_MATRIX(W_STREAM_OUT, "altup_unembd_proj", "model.altup_unembed_projections.0", DIM_0),
    STREAM_MATRIX(W_STREAM_OUT + 1, "altup_unembd_proj", "model.altup_unembed_projections.1", DIM_HIDDEN),
    STREAM_MATRIX(W_STREAM_OUT + 2, "altup_unembd_proj", "model.altup_unembed_projections.2", DIM_2_HIDDEN)};

static void defaults(struct hparams *hp)
{
    gemma_defaults_two_ropes(hp);
    hp->flags |= HP_V_NORM;
    hp->context_train = 32768;
    hp->window = 512;
    hp->final_softcap = 30.0f;
    hp->attn_scale = 1.0f;
    hp->streams = STREAMS;
    hp->laurel = 64;
}

/* Sizes that both file kinds name; layers and sizes are known. */
static int finish(struct hparams *hp, uint32_t streams, uint32_t shared, uint32_t inputs, uint32_t vocab, struct err *err)
{
    if (streams != STREAMS || hp->active_stream >= STREAMS || hp->laurel == 0 || hp->laurel > 1u << 16 || inputs == 0) {
        return err_set(err, ERR_UNSUPPORTED, "%u streams of which number %u is active, laurel rank %u, %u inputs of each layer: expected %d, 0 "
                       "to %d, 1 to 65536, 1 or more", streams, hp->active_stream, hp->laurel, inputs, STREAMS, STREAMS - 1);
    }
    int rc = gemma_share_kv(hp, shared, err);
    if (rc == 0) {
        rc = gemma_layer_inputs(hp, inputs, vocab, true, err);
    }
    for (int i = 0; i < 2 * STREAMS; i++) {
        hp->extra[ALTUP_STREAM + i] = hp->hidden;
    }
    hp->extra[ALTUP_ROUTED] = STREAMS;
    hp->extra[ALTUP_COEF] = STREAMS * STREAMS;
    hp->extra[LAUREL_LOW] = hp->laurel;
    hp->extra[LAUREL] = hp->hidden;
    return rc;
}

/* ---- config.json ---- */

/* (1 + erf(x / sqrt 2)) / 2 by its series; its terms are of one sign */
static double normal_below(double x)
{
    double term = x, sum = x;
    for (int i = 1; i < 400; i++) {
        term *= x * x / (2 * i + 1);
        sum += term;
    }
    return 0.5 + sum * math_expd(-0.5 * x * x) * 0.3989422804014327;
}

/* The x that a share `p` of a normal distribution lies below, 0 < p < 1. */
static double normal_quantile(double p)
{
    double low = -8.0, high = 8.0;
    for (int i = 0; i < 80; i++) {
        double middle = 0.5 * (low + high);
        *(normal_below(middle) < p ? &low : &high) = middle;
    }
    return 0.5 * (low + high);
}

/* activation_sparsity_pattern: which share of a layer's gates is to be 0: one number a layer; without it the first ten of more layers. */
static int read_sparsity_config(struct hparams *hp, const struct config_reader *cfg, struct err *err)
{
    yyjson_val *list = yyjson_obj_get(cfg->root, "activation_sparsity_pattern");
    bool named = list != NULL && !yyjson_is_null(list);
    if (yyjson_is_arr(list) && yyjson_arr_size(list) != hp->layers) {
        return err_set(err, ERR_FORMAT, "%s: activation_sparsity_pattern: expected a number or a list of %u", cfg->where, hp->layers);
    }
    for (uint32_t i = 0; i < hp->layers; i++) {
        yyjson_val *v = yyjson_is_arr(list) ? yyjson_arr_get(list, i) : list;
        double p = !named ? (hp->layers > 10 && i < 10 ? 0.95 : 0.0) : yyjson_is_num(v) ? yyjson_get_num(v) : -1.0;
        if (!(p >= 0.0) || !(p < 1.0)) {
            return err_set(err, ERR_FORMAT, "%s: activation_sparsity_pattern: layer %u: expected a number from 0 to below 1", cfg->where, i);
        }
        hp->sparse[i] = p > 0.0;
        hp->sparse_factor[i] = p > 0.0 ? (float)normal_quantile((double)(float)p) : 0.0f;
    }
    return 0;
}

static int read_sizes(struct hparams *hp, const struct config_reader *cfg, struct err *err)
{
    uint32_t streams = 4, shared = 15, inputs = 256, vocab = 262144;
    bool scaled = true;
    const struct {
        const char *key;
        uint32_t *out;
    } sizes[] = {{"altup_num_inputs", &streams}, {"altup_active_idx", &hp->active_stream}, {"laurel_rank", &hp->laurel},
                 {"num_kv_shared_layers", &shared}, {"hidden_size_per_layer_input", &inputs}, {"vocab_size_per_layer_input", &vocab}};
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        int rc = json_get_u32(cfg->root, sizes[i].key, sizes[i].out, cfg->where, err);
        if (rc != 0) {
            return rc;
        }
    }
    int rc = json_get_bool(cfg->root, "altup_correct_scale", &scaled, cfg->where, err);
    hp->flags |= scaled ? HP_STREAM_SCALE : 0;
    return rc != 0 ? rc : finish(hp, streams, shared, inputs, vocab, err);
}

static int read_config(struct hparams *hp, const struct config_reader *cfg, struct err *err)
{
    bool known = false;
    defaults(hp);
    hp->heads = 8, hp->kv_heads = 2, hp->vocab = 262400, hp->head_dim = 256, hp->hidden = 2048, hp->layers = 35;
    hp->flags |= HP_TIED;
    int rc = config_read_common(hp, cfg, err);
    if (rc == 0 && (hp->layers == 0 || hp->layers > MODEL_LAYERS_MAX)) {
        rc = err_set(err, ERR_FORMAT, "%s: num_hidden_layers: expected 1 to %d, got %u", cfg->where, MODEL_LAYERS_MAX, hp->layers);
    }
    if (rc == 0) {
        rc = read_sparsity_config(hp, cfg, err);
    }
    if (rc == 0) {
        rc = config_read_layer_types(hp, cfg, &known, err);
    }
    if (rc == 0 && !known) {
        hparams_layers_by_period(hp, 5);
    }
    if (rc == 0) {
        rc = gemma_read_rope(hp, cfg, err);
    }
    if (rc == 0) {
        rc = gemma_read_scales(hp, cfg, err);
    }
    hp->attn_scale = 1.0f;
    if (rc == 0) {
        rc = gemma_refuse_bidirectional(cfg, err);
    }
    return rc != 0 ? rc : read_sizes(hp, cfg, err);
}

/* ---- GGUF ---- */

/* activation_sparsity_scale: the quantile of each layer's share, minus infinity where all pass. */
static int read_sparsity(struct hparams *hp, const struct metadata_reader *md, struct err *err)
{
    char name[128];
    metadata_key(name, md, "activation_sparsity_scale");
    const struct gguf_value *v = gguf_value_find(md->gguf, name);
    for (uint32_t i = 0; v != NULL && i < hp->layers; i++) {
        float factor = 0.0f;
        if (v->type != GGUF_ARRAY || v->count != hp->layers || gguf_array_f32(v, i, &factor) != 0 || factor != factor || factor > 100.0f) {
            return err_set(err, ERR_FORMAT, "%s: expected %u numbers", name, hp->layers);
        }
        hp->sparse[i] = factor > -100.0f;
        hp->sparse_factor[i] = hp->sparse[i] ? factor : 0.0f;
    }
    return 0;
}

static int read_metadata(struct hparams *hp, const struct metadata_reader *md, struct err *err)
{
    uint32_t streams = STREAMS, shared = 0, inputs = 0;
    defaults(hp);
    hp->flags |= HP_STREAM_SCALE;
    const struct {
        const char *key;
        uint32_t *out;
    } sizes[] = {{"altup.num_inputs", &streams}, {"altup.active_idx", &hp->active_stream}, {"attention.shared_kv_layers", &shared},
                 {"embedding_length_per_layer_input", &inputs}};
    int rc = gemma_read_metadata(hp, md, 0, err);
    hp->attn_scale = 1.0f;
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0] && rc == 0; i++) {
        rc = metadata_u32(md, sizes[i].key, sizes[i].out, err);
    }
    if (rc == 0) {
        rc = metadata_read_pattern(hp, md, 5, err);
    }
    if (rc == 0) {
        rc = read_sparsity(hp, md, err);
    }
    const struct gguf_tensor *left = gguf_tensor_find(md->gguf, STR("blk.0.laurel_l.weight"));
    hp->laurel = left != NULL && left->ne[1] <= UINT32_MAX ? (uint32_t)left->ne[1] : hp->laurel; /* no key says it */
    return rc != 0 ? rc : finish(hp, streams, shared, inputs, hp->vocab, err);
}

/* ---- a step ---- */

static struct tensor extra(const struct model *m, int which)
{
    return step_rows(m, m->step.extra[which]);
}

static int copy(struct model *m, struct tensor from, struct tensor to, struct err *err)
{
    struct op_copy op = {to.data, from.data, (size_t)from.rows * from.stride * sizeof(float)};
    return op_copy(m->device, &op, err);
}

static int linear(struct model *m, const struct weight *w, struct tensor x, struct tensor y, float alpha, struct err *err)
{
    struct op_linear op = {.w = w, .x = x, .y = y, .alpha = alpha};
    return op_linear(m->device, &op, err);
}

static int match(struct model *m, struct tensor x, struct tensor y, struct err *err)
{
    struct op_match op = {.x = x, .y = y, .least = MAGNITUDE_LEAST};
    return op_match(m->device, &op, err);
}

static int gemma3n_begin(struct model *m, struct err *err)
{
    struct tensor x = step_rows(m, m->step.x);
    int rc = gemma_inputs_begin(m, err);
    if (rc == 0) {
        rc = copy(m, x, extra(m, ALTUP_STREAM), err);
    }
    for (int i = 1; i < STREAMS && rc == 0; i++) {
        struct tensor s = extra(m, ALTUP_STREAM + i);
        rc = linear(m, m->weights[W_STREAM_IN + i - 1], x, s, 1.0f, err);
        rc = rc != 0 ? rc : match(m, x, s, err);
    }
    return rc;
}

static int gemma3n_end(struct model *m, struct err *err)
{
    struct tensor x = step_rows(m, m->step.x), first = extra(m, ALTUP_STREAM), block = step_rows(m, m->step.block);
    int rc = copy(m, first, x, err);
    for (int i = 1; i < STREAMS && rc == 0; i++) {
        struct op_add add = {.x = block, .y = x, .x_scale = 1.0f, .y_scale = 1.0f};
        rc = linear(m, m->weights[W_STREAM_OUT + i - 1], extra(m, ALTUP_STREAM + i), block, 1.0f, err);
        rc = rc != 0 ? rc : match(m, first, block, err);
        rc = rc != 0 ? rc : op_add(m->device, &add, err);
    }
    struct op_scale mean = {.x = x, .scale = 1.0f / STREAMS};
    return rc != 0 ? rc : op_scale(m->device, &mean, err);
}

/* Coefficients W tanh(Wr norm(x) / hidden) into `coef`. */
static int route(struct model *m, uint32_t layer, struct tensor x, enum layer_weight w, struct tensor coef, struct err *err)
{
    const struct layer_weights *l = &m->layers[layer];
    struct tensor normed = step_rows(m, m->step.normed), routed = extra(m, ALTUP_ROUTED);
    struct op_norm norm = {.x = x, .y = normed, .dim = m->hp.hidden, .w = l->v[V_ALTUP_NORM], .eps = m->hp.eps};
    struct op_softcap bend = {.x = routed, .cap = 1.0f};
    int rc = op_norm(m->device, &norm, err);
    if (rc == 0) {
        rc = linear(m, l->w[W_ALTUP_ROUTER], normed, routed, 1.0f / (float)m->hp.hidden, err);
    }
    if (rc == 0) {
        rc = op_softcap(m->device, &bend, err);
    }
    return rc != 0 ? rc : linear(m, l->w[w], routed, coef, 1.0f, err);
}

/* Predictions of all streams; the active one's is the stream that the layer works on. */
static int predict(struct model *m, uint32_t layer, struct err *err)
{
    struct op_blend mix = {.n = STREAMS, .m = STREAMS, .coef = extra(m, ALTUP_COEF)};
    for (int i = 0; i < STREAMS; i++) {
        mix.x[i] = mix.base[i] = extra(m, ALTUP_STREAM + i);
        mix.y[i] = extra(m, ALTUP_PREDICTED + i);
    }
    uint32_t a = m->hp.active_stream;
    int rc = route(m, layer, mix.x[a], W_ALTUP_PREDICT, mix.coef, err);
    rc = rc != 0 ? rc : op_blend(m->device, &mix, err);
    return rc != 0 ? rc : copy(m, mix.y[a], step_rows(m, m->step.x), err);
}

/* Every stream: its prediction and its share of what the layer changed. */
static int correct(struct model *m, uint32_t layer, struct err *err)
{
    struct tensor x = step_rows(m, m->step.x), news = step_rows(m, m->step.block);
    struct op_blend mix = {.n = 1, .m = STREAMS, .x = {news}, .coef = tensor_cols(extra(m, ALTUP_COEF), 0, STREAMS), .shift = 1.0f};
    for (int i = 0; i < STREAMS; i++) {
        mix.base[i] = extra(m, ALTUP_PREDICTED + i);
        mix.y[i] = extra(m, ALTUP_STREAM + i);
    }
    struct op_add change = {.x = mix.base[m->hp.active_stream], .y = news, .x_scale = -1.0f, .y_scale = 1.0f};
    int rc = route(m, layer, x, W_ALTUP_CORRECT, mix.coef, err);
    rc = rc != 0 ? rc : copy(m, x, news, err);
    rc = rc != 0 ? rc : op_add(m->device, &change, err);
    return rc != 0 ? rc : op_blend(m->device, &mix, err);
}

/* n + norm(Wright Wleft n), n the normed stream */
static int laurel(struct model *m, uint32_t layer, struct err *err)
{
    const struct layer_weights *l = &m->layers[layer];
    struct tensor out = extra(m, LAUREL), low = extra(m, LAUREL_LOW), block = step_rows(m, m->step.block);
    struct op_norm in = {.x = step_rows(m, m->step.x), .y = out, .dim = m->hp.hidden, .w = l->v[V_ATTN_NORM], .eps = m->hp.eps};
    struct op_norm post = {.x = block, .y = out, .dim = m->hp.hidden, .w = l->v[V_LAUREL_NORM], .eps = m->hp.eps, .add = true, .scale = 1.0f};
    int rc = op_norm(m->device, &in, err);
    rc = rc != 0 ? rc : linear(m, l->w[W_LAUREL_LEFT], out, low, 1.0f, err);
    rc = rc != 0 ? rc : linear(m, l->w[W_LAUREL_RIGHT], low, block, 1.0f, err);
    return rc != 0 ? rc : op_norm(m->device, &post, err);
}

/* What the layer's embedding says, onto every stream but the first. */
static int inputs(struct model *m, uint32_t layer, struct err *err)
{
    const struct layer_weights *l = &m->layers[layer];
    struct tensor gate = {0}, block = step_rows(m, m->step.block);
    struct op_scale scale = {.x = block, .scale = 1.0f, .w = l->v[V_ALTUP_SCALE]};
    int rc = copy(m, extra(m, ALTUP_STREAM + (int)m->hp.active_stream), block, err);
    if (rc == 0 && (m->hp.flags & HP_STREAM_SCALE) != 0) {
        rc = op_scale(m->device, &scale, err);
    }
    rc = rc != 0 ? rc : gemma_input_gate(m, layer, block, &gate, err);
    rc = rc != 0 ? rc : linear(m, l->w[W_INPUT_OUT], gate, block, 1.0f, err);
    for (int i = 1; i < STREAMS && rc == 0; i++) {
        struct op_norm norm = {.x = block, .y = extra(m, ALTUP_STREAM + i), .dim = m->hp.hidden, .w = l->v[V_INPUT_NORM], .eps = m->hp.eps,
                               .add = true, .scale = 1.0f};
        rc = op_norm(m->device, &norm, err);
    }
    return rc;
}

static int gemma3n_layer(struct model *m, uint32_t layer, struct err *err)
{
    const float half = 0.70710678f; /* sqrt(1/2) */
    struct op_add join = {.x = extra(m, LAUREL), .y = step_rows(m, m->step.x), .x_scale = half, .y_scale = half};
    int rc = predict(m, layer, err);
    rc = rc != 0 ? rc : laurel(m, layer, err);
    rc = rc != 0 ? rc : decoder_mix(m, layer, err);
    rc = rc != 0 ? rc : op_add(m->device, &join, err);
    rc = rc != 0 ? rc : decoder_mlp(m, layer, err);
    rc = rc != 0 ? rc : correct(m, layer, err);
    return rc != 0 ? rc : inputs(m, layer, err);
}

static const char *const model_types[] = {"gemma3n_text", "gemma3n", NULL};
static const char *const config_keys[] = {
    "final_logit_softcapping", "sliding_window", "use_bidirectional_attention", "layer_types", "hidden_activation", "rope_local_base_freq",
    "altup_active_idx", "altup_correct_scale", "altup_num_inputs", "laurel_rank", "activation_sparsity_pattern", "num_kv_shared_layers",
    "hidden_size_per_layer_input", "vocab_size_per_layer_input",
    "altup_coef_clip", "altup_lr_multiplier", /* in training */
    "query_pre_attn_scalar", /* read by nobody: scores are not scaled */
    GEMMA_MODALITY_KEYS, NULL};
static const char *const metadata_keys[] = {
    "attention.sliding_window", "attention.sliding_window_pattern", "attention.shared_kv_layers", "final_logit_softcapping",
    "embedding_length_per_layer_input", "altup.active_idx", "altup.num_inputs", "activation_sparsity_scale", "rope.freq_base_swa", NULL};

const struct arch arch_gemma3n = {
    .name = "gemma3n", .gguf = "gemma3n", .model_types = model_types, .config_keys = config_keys, .metadata_keys = metadata_keys,
    .read_config = read_config, .read_metadata = read_metadata, .binds = binds, .bind_count = sizeof binds / sizeof binds[0],
    .layer = gemma3n_layer, .begin = gemma3n_begin, .end = gemma3n_end};
