/* models/experts.c - the mixture of experts in the MLP's place: its hyper-parameters of either file kind, and the block.
 *
 *   n = norm(x);  ids, w = route(Wr n);  x += sum over slots w_s Wdown_e (act(Wgate_e n) * Wup_e n), e = ids_s
 *   shared expert:  x += Wdown (act(Wgate n) * Wup n) [sigmoid(Wg n)]
 *   Without gate matrices gate and up are one.
 *
 * The gate of the shared expert is a routing among one: its weight is the sigmoid. */
#include "models/arch.h"

#include <stdio.h>

/* ---- the block ---- */

/* The rows' place in what is kept or given of a layer. */
static size_t routes_row(const struct model *m, uint32_t layer)
{
    return (size_t)layer * m->opt.routes->rows + m->step.host_positions[0];
}

static int routes_out(struct model *m, uint32_t layer, uint32_t *ids, struct err *err)
{
    uint32_t used = m->hp.moe.used;
    struct op_copy_out op = {ids + routes_row(m, layer) * used, m->step.route_ids, m->step.rows * used * sizeof(uint32_t)};
    return op_copy_out(m->device, &op, err);
}

static int logits_out(struct model *m, uint32_t layer, const struct tensor *logits, float *out, struct err *err)
{
    int rc = 0;
    for (uint32_t i = 0; rc == 0 && out != NULL && i < m->step.rows; i++) {
        struct op_copy_out row = {out + (routes_row(m, layer) + i) * logits->cols,
                                  (const float *)logits->data + (size_t)i * logits->stride, logits->cols * sizeof(float)};
        rc = op_copy_out(m->device, &row, err);
    }
    return rc;
}

/* The step's choice becomes the given one. */
static int routes_give(struct model *m, uint32_t layer, struct op_route *op, struct err *err)
{
    const struct model_routes *r = m->opt.routes;
    uint32_t used = m->hp.moe.used;
    struct op_copy_in ids = {m->step.route_ids, r->ids + routes_row(m, layer) * used, m->step.rows * used * sizeof(uint32_t)};
    int rc = r->own != NULL ? op_route(m->device, op, err) : 0;
    if (rc == 0 && r->own != NULL) {
        rc = routes_out(m, layer, r->own, err);
    }
    rc = rc != 0 ? rc : logits_out(m, layer, &op->logits, r->own_logits, err);
    op->replay = true;
    return rc != 0 ? rc : op_copy_in(m->device, &ids, err);
}

static int routes_keep(struct model *m, uint32_t layer, const struct tensor *logits, struct err *err)
{
    const struct model_routes *r = m->opt.routes;
    int rc = routes_out(m, layer, r->ids, err);
    return rc != 0 ? rc : logits_out(m, layer, logits, r->logits, err);
}

int experts_route(struct model *m, uint32_t layer, struct tensor x, struct err *err)
{
    const struct layer_weights *l = &m->layers[layer];
    const struct experts_params *p = &m->hp.moe;
    const struct model_routes *r = m->opt.routes;
    struct tensor logits = step_rows(m, m->step.route_logits);
    if (r != NULL && m->step.host_positions[0] + m->step.rows > r->rows) {
        return err_set(err, ERR_ARGUMENT, "routes of %u rows: a step ends at %u", r->rows, m->step.host_positions[0] + m->step.rows);
    }
    struct op_linear router = {.w = l->w[W_ROUTER], .bias = l->v[V_ROUTER_BIAS], .x = x, .y = logits,
                               .alpha = p->router_scale != 0.0f ? p->router_scale : 1.0f};
    struct op_route op = {.logits = logits, .score = p->score, .top = p->used, .bias = l->v[V_ROUTE_BIAS], .groups = p->groups,
                          .group_top = p->group_top, .group_best = p->group_best, .normalise = p->normalise, .scale = p->scale,
                          .expert_scale = l->v[V_EXPERT_SCALE], .ids = m->step.route_ids, .weights = m->step.route_weights};
    int rc = op_linear(m->device, &router, err);
    if (rc == 0 && r != NULL && r->replay) {
        rc = routes_give(m, layer, &op, err);
    }
    if (rc == 0) {
        rc = op_route(m->device, &op, err);
    }
    return rc == 0 && r != NULL && !r->replay ? routes_keep(m, layer, &logits, err) : rc;
}

/* mid = act(u) * u of every slot, u = Wup_e x */
static int routed_ungated(struct model *m, const struct layer_weights *l, struct tensor x, struct tensor mid, struct err *err)
{
    struct op_expert_linear up = {.w = l->w[W_EXPERT_UP], .bias = l->v[V_EXPERT_UP_BIAS], .x = x, .y = mid, .ids = m->step.route_ids};
    struct op_gated act = {.gate = mid, .up = mid, .y = mid, .act = m->hp.act};
    int rc = op_expert_linear(m->device, &up, err);
    return rc != 0 ? rc : op_gated(m->device, &act, err);
}

/* Of every slot, act(gate) * up of x. */
int experts_gated(struct model *m, uint32_t layer, struct tensor x, struct err *err)
{
    const struct layer_weights *l = &m->layers[layer];
    uint32_t slots = m->step.rows * m->hp.moe.used;
    struct tensor mid = tensor_rows(m->step.expert_mid, 0, slots);
    struct op_expert_gated gated = {.x = x, .y = mid, .gate = l->w[W_EXPERT_GATE], .up = l->w[W_EXPERT_UP],
                                    .gate_bias = l->v[V_EXPERT_GATE_BIAS], .up_bias = l->v[V_EXPERT_UP_BIAS], .act = m->hp.act,
                                    .ids = m->step.route_ids, .scratch_gate = mid,
                                    .scratch_up = tensor_rows(m->step.expert_up, 0, slots)};
    return gated.gate != NULL ? op_expert_gated(m->device, &gated, err) : routed_ungated(m, l, x, mid, err);
}

/* y = or += the weighted sum of the slots' last product. */
int experts_output(struct model *m, uint32_t layer, struct tensor y, bool add, struct err *err)
{
    const struct layer_weights *l = &m->layers[layer];
    uint32_t slots = m->step.rows * m->hp.moe.used;
    struct tensor mid = tensor_rows(m->step.expert_mid, 0, slots), out = tensor_rows(m->step.expert_out, 0, slots);
    struct op_expert_output down = {
        .linear = {.w = l->w[W_EXPERT_DOWN], .bias = l->v[V_EXPERT_DOWN_BIAS], .x = mid, .y = out, .ids = m->step.route_ids},
        .sum = {.x = out, .y = y, .weights = m->step.route_weights, .add = add}};
    return op_expert_output(m->device, &down, err);
}

/* The shared expert's output times the sigmoid of its gate, onto y. */
static int shared_gated(struct model *m, const struct layer_weights *l, struct tensor x, struct tensor mid, struct tensor y,
                        struct err *err)
{
    struct tensor out = step_rows(m, m->step.block), gate = step_rows(m, m->step.shared_weight);
    struct op_linear down = {.w = l->w[W_SHARED_DOWN], .x = mid, .y = out, .alpha = 1.0f};
    struct op_linear weight = {.w = l->w[W_SHARED_WEIGHT], .x = x, .y = gate, .alpha = 1.0f};
    struct op_route one = {.logits = gate, .score = ROUTE_SIGMOID, .top = 1, .scale = 1.0f, .ids = m->step.route_ids,
                           .weights = m->step.route_weights};
    struct op_expert_sum sum = {.x = out, .y = y, .weights = m->step.route_weights, .add = true};
    int rc = op_linear(m->device, &down, err);
    if (rc == 0) {
        rc = op_linear(m->device, &weight, err);
    }
    if (rc == 0) {
        rc = op_route(m->device, &one, err);
    }
    return rc != 0 ? rc : op_expert_sum(m->device, &sum, err);
}

int experts_shared(struct model *m, uint32_t layer, struct tensor x, struct tensor y, struct err *err)
{
    const struct layer_weights *l = &m->layers[layer];
    bool gated = l->w[W_SHARED_GATE] != NULL;
    struct tensor gate = step_rows(m, m->step.shared_gate), up = gated ? step_rows(m, m->step.shared_up) : gate;
    struct op_linear g = {.w = l->w[W_SHARED_GATE], .x = x, .y = gate, .alpha = 1.0f};
    struct op_linear u = {.w = l->w[W_SHARED_UP], .x = x, .y = up, .alpha = 1.0f};
    struct op_gated act = {.gate = gate, .up = up, .y = gate, .act = m->hp.act};
    struct op_linear down = {.w = l->w[W_SHARED_DOWN], .x = gate, .y = y, .alpha = 1.0f, .add = true};
    int rc = gated ? op_linear(m->device, &g, err) : 0;
    if (rc == 0) {
        rc = op_linear(m->device, &u, err);
    }
    if (rc == 0) {
        rc = op_gated(m->device, &act, err);
    }
    if (rc != 0) {
        return rc;
    }
    return l->w[W_SHARED_WEIGHT] != NULL ? shared_gated(m, l, x, gate, y, err) : op_linear(m->device, &down, err);
}

int experts_block(struct model *m, uint32_t layer, struct err *err)
{
    const struct hparams *hp = &m->hp;
    struct tensor x = step_rows(m, m->step.x), n = step_rows(m, m->step.normed);
    struct op_norm norm = {.x = x, .y = n, .dim = hp->hidden, .w = m->layers[layer].v[V_FFN_NORM], .eps = hp->eps, .scale = 1.0f};
    int rc = op_norm(m->device, &norm, err);
    if (rc == 0) {
        rc = experts_route(m, layer, n, err);
    }
    if (rc == 0) {
        rc = experts_gated(m, layer, n, err);
    }
    if (rc == 0) {
        rc = experts_output(m, layer, x, true, err);
    }
    return rc == 0 && hp->moe.shared_ffn != 0 ? experts_shared(m, layer, n, x, err) : rc;
}

/* ---- hyper-parameters ---- */

/* mlp_layer_types: "dense" or "sparse" for every layer; mlp_only_layers: numbers of dense ones; decoder_sparse_step: every n-th has
 * experts; first_k_dense_replace: the first have none. */
static int read_dense(struct hparams *hp, const struct config_reader *cfg, struct err *err)
{
    uint32_t step = 1, first = 0;
    yyjson_val *types = yyjson_obj_get(cfg->root, "mlp_layer_types"), *only = yyjson_obj_get(cfg->root, "mlp_only_layers");
    int rc = json_get_u32(cfg->root, "decoder_sparse_step", &step, cfg->where, err);
    if (rc == 0) {
        rc = json_get_u32(cfg->root, "first_k_dense_replace", &first, cfg->where, err);
    }
    if (rc != 0) {
        return rc;
    }
    if (step == 0 || hp->layers > MODEL_LAYERS_MAX) {
        return err_set(err, ERR_FORMAT, "%s: decoder_sparse_step %u of %u layers", cfg->where, step, hp->layers);
    }
    for (uint32_t i = 0; i < hp->layers; i++) {
        hp->dense[i] = i < first || (i + 1) % step != 0;
    }
    yyjson_arr_iter it;
    yyjson_arr_iter_init(only, &it);
    for (yyjson_val *v = yyjson_arr_iter_next(&it); v != NULL; v = yyjson_arr_iter_next(&it)) {
        if (!yyjson_is_uint(v) || yyjson_get_uint(v) >= hp->layers) {
            return err_set(err, ERR_FORMAT, "%s: mlp_only_layers: expected numbers below %u", cfg->where, hp->layers);
        }
        hp->dense[yyjson_get_uint(v)] = 1;
    }
    if (types != NULL && !yyjson_is_null(types) && yyjson_arr_size(types) != hp->layers) {
        return err_set(err, ERR_FORMAT, "%s: mlp_layer_types: expected a list of %u names, got %s of %zu", cfg->where, hp->layers,
                       json_type_name(types), yyjson_arr_size(types));
    }
    yyjson_arr_iter_init(types, &it);
    for (uint32_t i = 0; i < yyjson_arr_size(types); i++) {
        struct str name = json_str(yyjson_arr_iter_next(&it));
        hp->dense[i] = str_is(name, "dense");
        if (!hp->dense[i] && !str_is(name, "sparse")) {
            return err_set(err, ERR_UNSUPPORTED, "%s: mlp_layer_types: '%.*s' is not supported", cfg->where, STR_ARG(name));
        }
    }
    return 0;
}

int experts_read_config(struct hparams *hp, const struct config_reader *cfg, struct err *err)
{
    struct experts_params *p = &hp->moe;
    uint32_t shared = 0;
    const struct {
        const char *key;
        uint32_t *out;
    } sizes[] = {{"num_experts", &p->experts}, {"num_local_experts", &p->experts}, {"n_routed_experts", &p->experts},
                 {"num_experts_per_tok", &p->used}, {"top_k_experts", &p->used},
                 {"expert_intermediate_size", &p->ffn}, {"moe_intermediate_size", &p->ffn},
                 {"shared_expert_intermediate_size", &p->shared_ffn}, {"n_shared_experts", &shared}, {"n_group", &p->groups},
                 {"topk_group", &p->group_top}};
    int rc = 0;
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0] && rc == 0; i++) {
        rc = json_get_u32(cfg->root, sizes[i].key, sizes[i].out, cfg->where, err);
    }
    if (rc == 0) {
        rc = json_get_bool(cfg->root, "norm_topk_prob", &p->normalise, cfg->where, err);
    }
    if (rc == 0) {
        rc = json_get_f32(cfg->root, "routed_scaling_factor", &p->scale, cfg->where, err);
    }
    if (rc == 0 && shared != 0) {
        if (shared > 1024 || p->ffn > (1u << 20)) {
            return err_set(err, ERR_FORMAT, "%s: %u shared experts of %u", cfg->where, shared, p->ffn);
        }
        p->shared_ffn = shared * p->ffn;
    }
    hp->flags |= p->shared_ffn != 0 ? HP_SHARED : 0;
    return rc != 0 ? rc : read_dense(hp, cfg, err);
}

int experts_read_metadata(struct hparams *hp, const struct metadata_reader *md, struct err *err)
{
    enum { GATING_SOFTMAX = 1, GATING_SIGMOID = 2, GATING_SOFTMAX_TOP = 3 };
    struct experts_params *p = &hp->moe;
    uint32_t gating = p->score == ROUTE_SIGMOID ? GATING_SIGMOID : p->score == ROUTE_SOFTMAX ? GATING_SOFTMAX : GATING_SOFTMAX_TOP;
    uint32_t shared = 0, first = 0;
    const struct {
        const char *key;
        uint32_t *out;
    } sizes[] = {{"expert_feed_forward_length", &p->ffn}, {"expert_shared_feed_forward_length", &p->shared_ffn},
                 {"expert_shared_count", &shared}, {"expert_group_count", &p->groups}, {"expert_group_used_count", &p->group_top},
                 {"expert_gating_func", &gating}, {"leading_dense_block_count", &first}};
    int rc = 0;
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0] && rc == 0; i++) {
        rc = metadata_u32(md, sizes[i].key, sizes[i].out, err);
    }
    char key[128];
    snprintf(key, sizeof key, "%s.expert_weights_norm", md->arch);
    if (rc == 0) {
        rc = gguf_get_bool(md->gguf, key, &p->normalise, err);
    }
    if (rc == 0) {
        rc = metadata_f32(md, "expert_weights_scale", &p->scale, err);
    }
    if (rc != 0) {
        return rc;
    }
    if (gating < GATING_SOFTMAX || gating > GATING_SOFTMAX_TOP || shared > 1024 || p->ffn > (1u << 20) || first > hp->layers) {
        return err_set(err, ERR_UNSUPPORTED, "%s: expert_gating_func %u, %u shared experts of %u, %u dense blocks of %u", md->arch,
                       gating, shared, p->ffn, first, hp->layers);
    }
    p->score = gating == GATING_SIGMOID ? ROUTE_SIGMOID : gating == GATING_SOFTMAX ? ROUTE_SOFTMAX : ROUTE_SOFTMAX_TOP;
    p->shared_ffn = shared != 0 && p->shared_ffn == 0 ? shared * p->ffn : p->shared_ffn;
    hp->flags |= p->shared_ffn != 0 ? HP_SHARED : 0;
    p->scale = p->scale != 0.0f ? p->scale : 1.0f; /* 0: converters that have none */
    for (uint32_t i = 0; i < first && i < MODEL_LAYERS_MAX; i++) {
        hp->dense[i] = 1;
    }
    return 0;
}

int experts_check(const struct hparams *hp, struct err *err)
{
    const struct experts_params *p = &hp->moe;
    if (p->experts > ROUTE_EXPERTS_MAX || p->used == 0 || p->used > p->experts || p->used > ROUTE_TOP_MAX) {
        return err_set(err, ERR_UNSUPPORTED, "%u of %u experts: expected 1 to %d of at most %d", p->used, p->experts, ROUTE_TOP_MAX,
                       ROUTE_EXPERTS_MAX);
    }
    if (p->ffn == 0 || p->ffn > (1u << 22) || p->shared_ffn > (1u << 22) || p->latent > (1u << 20)) {
        return err_set(err, ERR_FORMAT, "experts' feed-forward size %u, the shared expert's %u, their rows' %u: expected 1 to %u", p->ffn,
                       p->shared_ffn, p->latent, 1u << 22);
    }
    if (p->groups > 1) {
        uint32_t each = p->experts / p->groups;
        if (p->groups > ROUTE_GROUPS_MAX || p->experts % p->groups != 0 || p->group_best == 0 || p->group_best > each ||
            p->group_top == 0 || p->group_top > p->groups || p->used > p->group_top * each) {
            return err_set(err, ERR_UNSUPPORTED, "%u of %u experts from %u of %u groups, a group's best %u", p->used, p->experts,
                           p->group_top, p->groups, p->group_best);
        }
    }
    if (!(p->scale > 0.0f) || p->scale > 1e6f) {
        return err_set(err, ERR_FORMAT, "scale of experts' weights is %g: expected above 0 to 1e6", (double)p->scale);
    }
    if (!p->beside && ((hp->flags & (HP_NO_PRE_NORM | HP_POST_NORM)) != 0 || hp->residual_scale != 1.0f)) {
        return err_set(err, ERR_UNSUPPORTED, "experts with norms after the blocks, without one before, or a residual scale");
    }
    return 0;
}
