/* models/gemma4.c - Gemma 4, text: sliding layers and full ones, which have heads, key/value heads and a rope of their own; norms of q,
 * k and v heads, before and after each block, with weights as stored; a scale behind each layer; scaled embedding.
 *
 * Full layers may take k for v.  Later layers may read what the last earlier layer of their kind stored; their MLP may be twice as wide.
 * E models have an embedding of each layer, mixed with a projection of the token's own before the first layer, and put through a
 * gate behind each one.
 *
 * A model with experts has them beside the MLP: each reads the stream through a norm of its own, the router through one whose weights
 * also count the hidden size; both outputs are normed, added, and normed again.
 *
 * Rope of full layers turns the first part of the pairs (i, i + head / 2); in GGUF files the others' frequencies are divided by 1e30. */
#include "models/gemma.h"

#define GATE_UP "model.layers.%u.experts.gate_up_proj"
#define EXPERT_VECTOR(slot, gguf, hf, rows) BIND_VECTOR(slot, gguf, hf, rows, .layers = LAYERS_EXPERTS)

#define MLX_EXPERTS "model.layers.%u.experts.switch_glu."

static const struct bind binds[] = {
    BINDS_ENDS, BINDS_O, BINDS_MLP,
    {.kind = BIND_ONES, .slot = V_ONES, .rows = DIM_HEAD_MOST, .cols = DIM_1},
    BIND_MATRIX(W_Q, "attn_q", "self_attn.q_proj", DIM_Q, DIM_HIDDEN, SPLIT_HEADS),
    BIND_MATRIX(W_K, "attn_k", "self_attn.k_proj", DIM_KV, DIM_HIDDEN, SPLIT_HEADS, .layers = LAYERS_OWN_KV),
    BIND_MATRIX(W_V, "attn_v", "self_attn.v_proj", DIM_KV, DIM_HIDDEN, SPLIT_HEADS, .layers = LAYERS_OWN_V),
    BIND_VECTOR(V_Q_NORM, "attn_q_norm.weight", "self_attn.q_norm.weight", DIM_HEAD, .when = HP_QK_NORM),
    BIND_VECTOR(V_K_NORM, "attn_k_norm.weight", "self_attn.k_norm.weight", DIM_HEAD, .when = HP_QK_NORM, .layers = LAYERS_OWN_KV),
    BINDS_UNUSED_KV,
    BINDS_GEMMA_NORMS,
    {.kind = BIND_LAYER_NUMBER, .slot = N_SCALE, .gguf = "blk.%u.layer_output_scale.weight", .hf = "model.layers.%u.layer_scalar",
     .when = HP_LAYER_SCALE},
    BINDS_LAYER_INPUTS,
    EXPERT_VECTOR(V_ROUTER_NORM, "ffn_gate_inp.scale", "router.scale", DIM_HIDDEN),
    EXPERT_VECTOR(V_EXPERTS_NORM, "pre_ffw_norm_2.weight", "pre_feedforward_layernorm_2.weight", DIM_HIDDEN),
    EXPERT_VECTOR(V_POST_MLP_NORM, "post_ffw_norm_1.weight", "post_feedforward_layernorm_1.weight", DIM_HIDDEN),
    EXPERT_VECTOR(V_POST_EXPERTS_NORM, "post_ffw_norm_2.weight", "post_feedforward_layernorm_2.weight", DIM_HIDDEN),
    EXPERT_VECTOR(V_EXPERT_SCALE, "ffn_down_exps.scale", "router.per_expert_scale", DIM_EXPERTS),
    BIND_MATRIX(W_ROUTER, "ffn_gate_inp", "router.proj", DIM_EXPERTS, DIM_HIDDEN, SPLIT_NONE, .layers = LAYERS_EXPERTS),
    BIND_STACK(W_EXPERT_GATE, "blk.%u.ffn_gate_exps", MLX_EXPERTS "gate_proj", DIM_EXPERT_FFN, DIM_HIDDEN, .unless = HP_EXPERTS_FUSED),
    BIND_STACK(W_EXPERT_UP, "blk.%u.ffn_up_exps", MLX_EXPERTS "up_proj", DIM_EXPERT_FFN, DIM_HIDDEN, .unless = HP_EXPERTS_FUSED),
    BIND_STACK(W_EXPERT_GATE, "blk.%u.ffn_gate_up_exps", GATE_UP, DIM_EXPERT_FFN, DIM_HIDDEN, .of = DIM_2_EXPERT_FFN,
               .when = HP_EXPERTS_FUSED),
    BIND_STACK(W_EXPERT_UP, "blk.%u.ffn_gate_up_exps", GATE_UP, DIM_EXPERT_FFN, DIM_HIDDEN, .first = DIM_EXPERT_FFN,
               .of = DIM_2_EXPERT_FFN, .when = HP_EXPERTS_FUSED),
    BIND_STACK(W_EXPERT_DOWN, "blk.%u.ffn_down_exps", "model.layers.%u.experts.down_proj|" MLX_EXPERTS "down_proj", DIM_HIDDEN, DIM_EXPERT_FFN,
               .when = 0),
    BINDS_MODALITIES};

static void defaults(struct hparams *hp)
{
    gemma_defaults_two_ropes(hp);
    hp->flags |= HP_V_NORM;
    hp->context_train = 131072;
    hp->window = 512;
    hp->attn_scale = 1.0f;
}

/* ---- what follows from the numbers ---- */

/* Full layers: their heads; with `k_is_v` their v is k. */
static void full_layers(struct hparams *hp, uint32_t head_dim, uint32_t kv_heads, bool k_is_v)
{
    for (uint32_t i = 0; i < hp->layers && i < MODEL_LAYERS_MAX; i++) {
        if (!hp->sliding[i]) {
            hp->shape[i].head_dim = hp->shape[i].head_dim ? hp->shape[i].head_dim : head_dim;
            hp->shape[i].kv_heads = hp->shape[i].kv_heads ? hp->shape[i].kv_heads : kv_heads;
            hp->v_is_k[i] = k_is_v;
        }
    }
}

static void experts_finish(struct hparams *hp)
{
    struct experts_params *p = &hp->moe;
    if (p->experts != 0) {
        p->beside = p->normalise = true;
        p->score = ROUTE_SOFTMAX;
        p->router_scale = hp->hidden != 0 ? (float)(1.0 / __builtin_sqrt((double)hp->hidden)) : 1.0f;
        hp->extra[GEMMA_ROUTER] = hp->extra[GEMMA_EXPERTS] = hp->hidden;
    }
}

/* ---- config.json ---- */

static int read_experts(struct hparams *hp, const struct config_reader *cfg, struct err *err)
{
    bool on = false;
    int rc = json_get_bool(cfg->root, "enable_moe_block", &on, cfg->where, err);
    if (rc == 0 && on) {
        hp->moe.scale = 1.0f;
        rc = experts_read_config(hp, cfg, err);
        rc = rc != 0 || hp->moe.experts != 0 ? rc : err_set(err, ERR_FORMAT, "%s: enable_moe_block without num_experts", cfg->where);
    }
    experts_finish(hp);
    return rc;
}

/* per_layer_config: {"<layer>": {"head_dim": n, "num_key_value_heads": n}} */
static int read_layer_config(struct hparams *hp, const struct config_reader *cfg, yyjson_val *all, struct err *err)
{
    yyjson_obj_iter it, fields;
    yyjson_obj_iter_init(all, &it);
    for (yyjson_val *k = yyjson_obj_iter_next(&it); k != NULL; k = yyjson_obj_iter_next(&it)) {
        uint64_t layer = 0;
        yyjson_val *own = yyjson_obj_iter_get_val(k);
        if (!str_to_u64(json_str(k), &layer) || layer >= hp->layers || layer >= MODEL_LAYERS_MAX || !yyjson_is_obj(own)) {
            return err_set(err, ERR_FORMAT, "%s: per_layer_config: '%.*s': expected a layer below %u and an object", cfg->where,
                           STR_ARG(json_str(k)), hp->layers);
        }
        yyjson_obj_iter_init(own, &fields);
        for (yyjson_val *f = yyjson_obj_iter_next(&fields); f != NULL; f = yyjson_obj_iter_next(&fields)) {
            if (!str_is(json_str(f), "head_dim") && !str_is(json_str(f), "num_key_value_heads")) {
                return err_set(err, ERR_UNSUPPORTED, "%s: per_layer_config: '%.*s' is not known", cfg->where, STR_ARG(json_str(f)));
            }
        }
        struct layer_shape *shape = &hp->shape[layer];
        int rc = json_get_u32(own, "head_dim", &shape->head_dim, cfg->where, err);
        rc = rc != 0 ? rc : json_get_u32(own, "num_key_value_heads", &shape->kv_heads, cfg->where, err);
        if (rc != 0) {
            return rc;
        }
    }
    return 0;
}

/* Full layers' heads: of each layer by number, or one for all of them, with key/value heads of their own where v is k. */
static int read_heads(struct hparams *hp, const struct config_reader *cfg, struct err *err)
{
    uint32_t head_dim = 512, kv_heads = 0;
    bool k_is_v = false;
    yyjson_val *all = yyjson_obj_get(cfg->root, "per_layer_config");
    int rc = json_get_bool(cfg->root, "attention_k_eq_v", &k_is_v, cfg->where, err);
    if (rc == 0 && all != NULL && !yyjson_is_null(all)) {
        rc = read_layer_config(hp, cfg, all, err);
        head_dim = 0;
    } else if (rc == 0) {
        rc = json_get_u32(cfg->root, "global_head_dim", &head_dim, cfg->where, err);
        rc = rc != 0 || !k_is_v ? rc : json_get_u32(cfg->root, "num_global_key_value_heads", &kv_heads, cfg->where, err);
    }
    full_layers(hp, head_dim, kv_heads, k_is_v);
    return rc;
}

static int read_rope(struct hparams *hp, const struct config_reader *cfg, struct err *err)
{
    for (uint32_t i = hp->layers; i-- > 0;) {
        hp->rope[0].head = hp->rope[0].head == 0 && !hp->sliding[i] ? hp->shape[i].head_dim : hp->rope[0].head;
    }
    yyjson_val *rope = yyjson_obj_get(cfg->root, "rope_parameters");
    if (rope == NULL || yyjson_is_null(rope)) {
        hp->rope[0].kind = ROPE_PROPORTIONAL;
        hp->rope[0].rot = hp->rope[0].head ? hp->rope[0].head : hp->head_dim;
        hp->rope[0].turned = hp->rope[0].rot / 8;
        return 0;
    }
    int rc = config_read_rope(hp, 0, cfg, "full_attention", err);
    return rc != 0 ? rc : config_read_rope(hp, 1, cfg, "sliding_attention", err);
}

static int read_layers(struct hparams *hp, const struct config_reader *cfg, struct err *err)
{
    bool known = false, wide = false;
    uint32_t shared = 0;
    int rc = config_read_layer_types(hp, cfg, &known, err);
    if (rc == 0 && !known) {
        hparams_layers_by_period(hp, 6);
    }
    if (rc == 0) {
        rc = json_get_u32(cfg->root, "num_kv_shared_layers", &shared, cfg->where, err);
    }
    if (rc == 0) {
        rc = json_get_bool(cfg->root, "use_double_wide_mlp", &wide, cfg->where, err);
    }
    if (rc == 0 && (hp->layers == 0 || hp->layers > MODEL_LAYERS_MAX)) {
        rc = err_set(err, ERR_FORMAT, "%s: num_hidden_layers: expected 1 to %d, got %u", cfg->where, MODEL_LAYERS_MAX, hp->layers);
    }
    if (rc != 0) {
        return rc;
    }
    hp->sliding[hp->layers - 1] = 0; /* whatever the list says */
    rc = gemma_share_kv(hp, shared, err);
    for (uint32_t i = 0; i < hp->layers && wide; i++) {
        hp->shape[i].ffn = hp->kv_from[i] != 0 && hp->ffn < 1u << 30 ? 2 * hp->ffn : 0;
    }
    return rc;
}

static int read_config(struct hparams *hp, const struct config_reader *cfg, struct err *err)
{
    uint32_t inputs = 256, vocab = 262144;
    defaults(hp);
    hp->heads = 8, hp->kv_heads = 4, hp->vocab = 262144, hp->head_dim = 256;
    hp->flags |= HP_TIED | HP_LAYER_SCALE;
    int rc = config_read_common(hp, cfg, err);
    if (rc == 0) {
        rc = read_layers(hp, cfg, err);
    }
    if (rc == 0) {
        rc = read_heads(hp, cfg, err);
    }
    if (rc == 0) {
        rc = read_rope(hp, cfg, err);
    }
    if (rc == 0) {
        rc = gemma_read_scales(hp, cfg, err);
    }
    if (rc == 0) {
        rc = gemma_refuse_bidirectional(cfg, err);
    }
    hp->attn_scale = 1.0f;
    if (rc == 0) {
        rc = json_get_u32(cfg->root, "hidden_size_per_layer_input", &inputs, cfg->where, err);
    }
    if (rc == 0) {
        rc = json_get_u32(cfg->root, "vocab_size_per_layer_input", &vocab, cfg->where, err);
    }
    if (rc == 0) {
        rc = read_experts(hp, cfg, err);
    }
    return rc != 0 ? rc : gemma_layer_inputs(hp, inputs, vocab, false, err);
}

/* ---- GGUF ---- */

/* key_length is of full layers, key_length_swa of the others. */
static int read_metadata_heads(struct hparams *hp, const struct metadata_reader *md, struct err *err)
{
    uint32_t full = hp->head_dim, values = full;
    int rc = metadata_u32(md, "attention.key_length_swa", &hp->head_dim, err);
    if (rc == 0) {
        values = hp->head_dim;
        rc = metadata_u32(md, "attention.value_length_swa", &values, err);
    }
    if (rc == 0 && values != hp->head_dim) {
        return err_set(err, ERR_UNSUPPORTED, "%s.attention.value_length_swa is %u and key_length_swa %u: expected the same", md->arch,
                       values, hp->head_dim);
    }
    full_layers(hp, full, 0, false);
    for (uint32_t i = 0; i < hp->layers; i++) {
        hp->v_is_k[i] = !metadata_has_tensor(md, i, "attn_v.weight");
    }
    hp->rope[1].rot = hp->head_dim;
    return rc != 0 ? rc : metadata_u32(md, "rope.dimension_count_swa", &hp->rope[1].rot, err);
}

static int read_metadata(struct hparams *hp, const struct metadata_reader *md, struct err *err)
{
    bool known = false;
    uint32_t shared = 0, inputs = 0;
    defaults(hp);
    int rc = gemma_read_metadata(hp, md, 0, err);
    if (rc == 0) {
        rc = metadata_flags(md, "attention.sliding_window_pattern", hp->layers, hp->sliding, &known, err);
    }
    if (rc == 0 && !known) {
        return err_set(err, ERR_FORMAT, "%s.attention.sliding_window_pattern is missing", md->arch);
    }
    if (rc == 0) {
        rc = metadata_u32(md, "attention.shared_kv_layers", &shared, err);
    }
    if (rc == 0) {
        rc = metadata_u32(md, "embedding_length_per_layer_input", &inputs, err);
    }
    if (rc == 0) {
        rc = read_metadata_heads(hp, md, err);
    }
    if (rc == 0) {
        rc = gemma_share_kv(hp, shared, err);
    }
    hp->flags |= metadata_has_tensor(md, 0, "layer_output_scale.weight") ? HP_LAYER_SCALE : 0;
    if (rc == 0 && hp->moe.experts != 0) {
        rc = experts_read_metadata(hp, md, err);
    }
    experts_finish(hp);
    return rc != 0 ? rc : gemma_layer_inputs(hp, inputs, hp->vocab, false, err);
}

/* ---- a step ---- */

/* y = norm(x) with weights w */
static int norm_into(struct model *m, struct tensor x, struct tensor y, const float *w, bool add, struct err *err)
{
    struct op_norm op = {.x = x, .y = y, .dim = m->hp.hidden, .w = w, .eps = m->hp.eps, .add = add, .scale = 1.0f};
    return op_norm(m->device, &op, err);
}

/* The first half of experts(norm(x)), chosen by router norm(x). */
static int experts_beside(struct model *m, uint32_t layer, struct tensor x, struct err *err)
{
    const struct layer_weights *l = &m->layers[layer];
    struct tensor router = step_rows(m, m->step.extra[GEMMA_ROUTER]), in = step_rows(m, m->step.normed);
    int rc = norm_into(m, x, router, l->v[V_ROUTER_NORM], false, err);
    if (rc == 0) {
        rc = norm_into(m, x, in, l->v[V_EXPERTS_NORM], false, err);
    }
    if (rc == 0) {
        rc = experts_route(m, layer, router, err);
    }
    return rc != 0 ? rc : experts_gated(m, layer, in, err);
}

/* x += norm(norm(mlp(norm(x))) + norm(experts)); both go side by side, a half after the other */
static int feed_forward(struct model *m, uint32_t layer, struct err *err)
{
    const struct layer_weights *l = &m->layers[layer];
    struct tensor x = step_rows(m, m->step.x), block = step_rows(m, m->step.block), gate = {0};
    struct tensor experts = step_rows(m, m->step.extra[GEMMA_EXPERTS]);
    if (m->hp.moe.experts == 0) {
        return decoder_mlp(m, layer, err);
    }
    int rc = experts_beside(m, layer, x, err);
    if (rc == 0) {
        rc = decoder_mlp_gate(m, layer, &gate, err);
    }
    if (rc == 0) {
        rc = experts_output(m, layer, experts, false, err);
    }
    if (rc == 0) {
        struct op_linear down = {.w = l->w[W_DOWN], .x = gate, .y = block, .alpha = 1.0f};
        rc = op_linear(m->device, &down, err);
    }
    if (rc == 0) {
        rc = norm_into(m, block, block, l->v[V_POST_MLP_NORM], false, err);
    }
    if (rc == 0) {
        rc = norm_into(m, experts, block, l->v[V_POST_EXPERTS_NORM], true, err);
    }
    return rc != 0 ? rc : norm_into(m, block, x, l->v[V_POST_FFN_NORM], true, err);
}

/* x += norm(Wout (act(Wgate x) * the layer's inputs)) */
static int layer_input(struct model *m, uint32_t layer, struct err *err)
{
    struct tensor gate = {0};
    const struct layer_weights *l = &m->layers[layer];
    int rc = gemma_input_gate(m, layer, step_rows(m, m->step.x), &gate, err);
    return rc != 0 ? rc : decoder_output(m, l->w[W_INPUT_OUT], NULL, gate, l->v[V_INPUT_NORM], err);
}

static int gemma4_layer(struct model *m, uint32_t layer, struct err *err)
{
    int rc = decoder_mix(m, layer, err);
    if (rc == 0) {
        rc = feed_forward(m, layer, err);
    }
    if (rc == 0 && m->hp.layer_inputs != 0) {
        rc = layer_input(m, layer, err);
    }
    if (rc == 0 && (m->hp.flags & HP_LAYER_SCALE) != 0) {
        struct op_scale op = {.x = step_rows(m, m->step.x), .scale = m->layers[layer].n[N_SCALE]};
        rc = op_scale(m->device, &op, err);
    }
    return rc;
}

static const char *const model_types[] = {"gemma4_text", "gemma4", NULL};
static const char *const config_keys[] = {
    "final_logit_softcapping", "sliding_window", "use_bidirectional_attention", "layer_types", "hidden_activation",
    "per_layer_config", "global_head_dim", "num_global_key_value_heads", "attention_k_eq_v", "num_kv_shared_layers",
    "use_double_wide_mlp", "enable_moe_block", "num_experts", "top_k_experts", "moe_intermediate_size", "expert_intermediate_size", "hidden_size_per_layer_input",
    "vocab_size_per_layer_input", GEMMA_MODALITY_KEYS, NULL};
static const char *const metadata_keys[] = {
    "attention.sliding_window", "attention.sliding_window_pattern", "attention.shared_kv_layers", "attention.key_length_swa",
    "attention.value_length_swa", "final_logit_softcapping", "embedding_length_per_layer_input", "rope.freq_base_swa",
    "rope.dimension_count_swa", "expert_feed_forward_length", NULL};

const struct arch arch_gemma4 = {
    .name = "gemma4", .gguf = "gemma4", .model_types = model_types, .config_keys = config_keys, .metadata_keys = metadata_keys,
    .read_config = read_config, .read_metadata = read_metadata, .binds = binds, .bind_count = sizeof binds / sizeof binds[0],
    .layer = gemma4_layer, .begin = gemma_inputs_begin};
