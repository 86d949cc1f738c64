/* models/gemma.c - what the Gemma architectures share: layer kinds, scales, metadata; keys and values that later layers read;
 * embeddings of each layer. */
#include "models/gemma.h"

int gemma_read_scales(struct hparams *hp, const struct config_reader *cfg, struct err *err)
{
    float query_scalar = 256.0f;
    int rc = json_get_f32(cfg->root, "query_pre_attn_scalar", &query_scalar, cfg->where, err);
    if (rc == 0) {
        rc = json_get_f32(cfg->root, "attn_logit_softcapping", &hp->attn_softcap, cfg->where, err);
    }
    if (rc == 0) {
        rc = json_get_f32(cfg->root, "final_logit_softcapping", &hp->final_softcap, cfg->where, err);
    }
    if (rc == 0) {
        rc = json_get_u32(cfg->root, "sliding_window", &hp->window, cfg->where, err);
    }
    if (rc == 0 && !(query_scalar > 0.0f)) {
        return err_set(err, ERR_FORMAT, "%s: query_pre_attn_scalar: expected a number above 0, got %g", cfg->where,
                       (double)query_scalar);
    }
    hp->attn_scale = (float)(1.0 / __builtin_sqrt((double)query_scalar));
    hp->embed_scale = __builtin_sqrtf((float)hp->hidden);
    return rc;
}

int gemma_read_rope(struct hparams *hp, const struct config_reader *cfg, struct err *err)
{
    if (yyjson_obj_get(yyjson_obj_get(cfg->root, "rope_parameters"), "full_attention") != NULL) {
        int rc = config_read_rope(hp, 0, cfg, "full_attention", err);
        return rc != 0 ? rc : config_read_rope(hp, 1, cfg, "sliding_attention", err);
    }
    int rc = json_get_f64(cfg->root, "rope_local_base_freq", &hp->rope[1].theta, cfg->where, err);
    return rc != 0 ? rc : config_read_rope(hp, 0, cfg, NULL, err);
}

void gemma_defaults_two_ropes(struct hparams *hp)
{
    hp->flags |= HP_QK_NORM | HP_POST_NORM;
    hp->act = ACT_GELU_TANH;
    hp->rope_sets = 2;
    hp->rope[0].theta = 1e6;
    hp->rope[1].theta = 1e4;
}

int gemma_refuse_bidirectional(const struct config_reader *cfg, struct err *err)
{
    yyjson_val *v = yyjson_obj_get(cfg->root, "use_bidirectional_attention");
    bool off = v == NULL || yyjson_is_null(v) || yyjson_is_false(v) || str_is(json_str(v), "vision"); /* of pictures only */
    return off ? 0 : err_set(err, ERR_UNSUPPORTED, "%s: use_bidirectional_attention is not supported", cfg->where);
}

int gemma_read_layers(struct hparams *hp, const struct config_reader *cfg, uint32_t period, struct err *err)
{
    bool known = false;
    int rc = gemma_read_scales(hp, cfg, err);
    if (rc == 0) {
        rc = gemma_refuse_bidirectional(cfg, err);
    }
    if (rc == 0) {
        rc = config_read_layer_types(hp, cfg, &known, err);
    }
    if (!known) {
        hparams_layers_by_period(hp, period);
    }
    return rc;
}

int gemma_read_metadata(struct hparams *hp, const struct metadata_reader *md, uint32_t layers_27b, struct err *err)
{
    int rc = metadata_read_common(hp, md, err);
    if (rc == 0) {
        rc = metadata_read_rope(hp, md, err);
    }
    if (rc == 0) {
        rc = metadata_u32(md, "attention.sliding_window", &hp->window, err);
    }
    if (rc == 0) {
        rc = metadata_f32(md, "attn_logit_softcapping", &hp->attn_softcap, err);
    }
    if (rc == 0) {
        rc = metadata_f32(md, "final_logit_softcapping", &hp->final_softcap, err);
    }
    /* the file does not say: the 27B model scales by hidden / heads, all others by the head */
    if (rc == 0 && hp->heads != 0 && hp->layers == layers_27b) {
        hp->attn_scale = (float)(1.0 / __builtin_sqrt((double)(hp->hidden / hp->heads)));
    }
    hp->embed_scale = __builtin_sqrtf((float)hp->hidden);
    return rc;
}

/* ---- layers that read another's keys and values ---- */

int gemma_share_kv(struct hparams *hp, uint32_t shared, struct err *err)
{
    if (shared >= hp->layers || hp->layers > MODEL_LAYERS_MAX) {
        return err_set(err, ERR_FORMAT, "%u of %u layers read the keys and values of earlier ones", shared, hp->layers);
    }
    uint32_t own = hp->layers - shared, last[2] = {0}; /* 1 + the last layer that is full, that slides */
    for (uint32_t i = 0; i < own; i++) {
        last[hp->sliding[i] != 0] = i + 1;
    }
    for (uint32_t i = own; i < hp->layers; i++) {
        hp->kv_from[i] = (uint16_t)last[hp->sliding[i] != 0];
        if (hp->kv_from[i] == 0) {
            return err_set(err, ERR_FORMAT, "layer %u reads keys and values of a %s layer before layer %u: there is none", i,
                           hp->sliding[i] ? "sliding" : "full", own);
        }
    }
    return 0;
}

/* ---- embeddings of each layer ---- */

int gemma_layer_inputs(struct hparams *hp, uint32_t n, uint32_t vocab, bool wrap, struct err *err)
{
    if (n == 0) {
        return 0;
    }
    if (n > 1u << 14 || vocab == 0 || (vocab < hp->vocab && !wrap) || vocab > 1u << 24) {
        return err_set(err, ERR_UNSUPPORTED, "embeddings of each layer: %u elements for %u ids: expected 1 to %u for %u or more", n,
                       vocab, 1u << 14, wrap ? 1 : hp->vocab);
    }
    hp->flags |= HP_LAYER_INPUTS;
    hp->layer_inputs = n;
    hp->layer_vocab = vocab;
    hp->layer_wrap = wrap;
    hp->extra[GEMMA_INPUTS] = hp->extra[GEMMA_EMBEDDED] = hp->layers * n;
    hp->extra[GEMMA_GATE] = n;
    return 0;
}

int gemma_inputs_begin(struct model *m, struct err *err)
{
    const struct hparams *hp = &m->hp;
    if (hp->layer_inputs == 0) {
        return 0;
    }
    const float half = 0.70710678f; /* sqrt(1/2) */
    struct tensor x = step_rows(m, m->step.x), in = step_rows(m, m->step.extra[GEMMA_INPUTS]);
    struct op_embed embed = {.w = m->weights[W_EMBED_LAYERS], .ids = m->step.ids, .y = step_rows(m, m->step.extra[GEMMA_EMBEDDED]),
                             .scale = __builtin_sqrtf((float)hp->layer_inputs), .wrap = hp->layer_wrap};
    struct op_linear project = {.w = m->weights[W_LAYERS_IN], .x = x, .y = in, .alpha = 1.0f / __builtin_sqrtf((float)hp->hidden)};
    struct op_norm norm = {.x = in, .y = in, .dim = hp->layer_inputs, .w = m->vecs[V_LAYERS_NORM], .eps = hp->eps};
    struct op_add mix = {.x = embed.y, .y = in, .x_scale = half, .y_scale = half};
    int rc = op_embed(m->device, &embed, err);
    if (rc == 0) {
        rc = op_linear(m->device, &project, err);
    }
    if (rc == 0) {
        rc = op_norm(m->device, &norm, err);
    }
    return rc != 0 ? rc : op_add(m->device, &mix, err);
}

int gemma_input_gate(struct model *m, uint32_t layer, struct tensor x, struct tensor *gate, struct err *err)
{
    uint32_t n = m->hp.layer_inputs;
    *gate = step_rows(m, m->step.extra[GEMMA_GATE]);
    struct op_linear linear = {.w = m->layers[layer].w[W_INPUT_GATE], .x = x, .y = *gate, .alpha = 1.0f};
    struct op_gated act = {.gate = *gate, .up = tensor_cols(step_rows(m, m->step.extra[GEMMA_INPUTS]), layer * n, n), .y = *gate,
                           .act = m->hp.act};
    int rc = op_linear(m->device, &linear, err);
    return rc != 0 ? rc : op_gated(m->device, &act, err);
}
