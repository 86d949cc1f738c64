/* models/decoder.c - one pre-norm transformer layer, with what its members differ in taken from hparams: biases, norms of q, k and v,
 * norms after each block, scales, soft cap, sliding window, two ropes or none, a gate of attention's output, no norm before the blocks,
 * one norm for both blocks, sizes of each layer's own, K and V of an earlier layer, v that is k, recurrent layers.
 *
 *   x += scale * [post] Wo attention(rope [norm] Wq n(x), rope [norm] Wk n(x), [norm] Wv n(x)) [sigmoid(Wg n(x))]     n: RMS norm
 *   x += scale * [post] Wdown (act(Wgate n(x)) * Wup n(x)), or experts (experts.c) */
#include "models/arch.h"

int decoder_output(struct model *m, struct weight *w, const float *bias, struct tensor x, const float *post, struct err *err)
{
    const struct hparams *hp = &m->hp;
    struct tensor stream = step_rows(m, m->step.x), block = step_rows(m, m->step.block);
    if (post == NULL) {
        struct op_linear op = {.w = w, .bias = bias, .x = x, .y = stream, .alpha = hp->residual_scale, .add = true};
        return op_linear(m->device, &op, err);
    }
    struct op_linear op = {.w = w, .bias = bias, .x = x, .y = block, .alpha = 1.0f};
    int rc = op_linear(m->device, &op, err);
    if (rc != 0) {
        return rc;
    }
    struct op_norm norm = {.x = block, .y = stream, .dim = hp->hidden, .w = post, .eps = hp->eps, .add = true,
                           .scale = hp->residual_scale};
    return op_norm(m->device, &norm, err);
}

/* y_i = W_i n(x) + bias_i; of x itself where the architecture has no norm before its blocks, of one norm where both blocks share it. */
static int block_inputs(struct model *m, const struct op_norm_linear *op, struct err *err)
{
    bool shared = (m->hp.flags & HP_PARALLEL) != 0;
    if (!shared && (m->hp.flags & HP_NO_PRE_NORM) == 0) {
        return op_norm_linear(m->device, op, err);
    }
    int rc = 0;
    for (uint32_t i = 0; i < op->n && rc == 0; i++) {
        struct op_linear linear = {.w = op->w[i], .bias = op->bias[i], .x = shared ? op->scratch : op->x, .y = op->y[i], .alpha = 1.0f};
        rc = op_linear(m->device, &linear, err);
    }
    return rc;
}

/* What a layer's attention works on: views of the step's buffers. */
struct attention {
    const struct layer_shape *shape;
    const struct layer_weights *l;
    struct tensor q, k, v, y, gate;
    bool own, gated; /* K and V of its own; a gate of its output */
};

static struct attention attention_of(const struct model *m, uint32_t layer)
{
    const struct hparams *hp = &m->hp;
    const struct layer_shape *shape = &hp->shape[layer];
    uint32_t q = hp->heads * shape->head_dim, kv = shape->kv_heads * shape->head_dim;
    struct attention a = {.shape = shape, .l = &m->layers[layer], .own = hp->kv_from[layer] == 0,
                          .gated = (hp->flags & HP_ATTN_GATE) != 0};
    a.q = tensor_cols(step_rows(m, m->step.q), 0, q);
    a.k = tensor_cols(step_rows(m, m->step.k), 0, kv);
    a.v = tensor_cols(step_rows(m, m->step.v), 0, kv);
    a.y = tensor_cols(step_rows(m, m->step.att), 0, q);
    a.gate = a.gated ? tensor_cols(step_rows(m, m->step.q_gate), 0, q) : (struct tensor){0};
    return a;
}

static void input_add(struct op_norm_linear *op, const struct weight *w, const float *bias, struct tensor y)
{
    op->w[op->n] = w;
    op->bias[op->n] = bias;
    op->y[op->n++] = y;
}

static int norm_heads(struct model *m, struct tensor x, struct tensor y, uint32_t dim, const float *w, struct err *err)
{
    struct op_norm op = {.x = x, .y = y, .dim = dim, .w = w, .eps = m->hp.eps};
    return op_norm(m->device, &op, err);
}

/* q, k, v and the gate of attention's output. */
static int attention_inputs(struct model *m, uint32_t layer, const struct attention *a, struct err *err)
{
    const struct hparams *hp = &m->hp;
    const struct layer_weights *l = a->l;
    struct op_norm_linear in = {.x = step_rows(m, m->step.x), .norm_w = l->v[V_ATTN_NORM], .eps = hp->eps,
                                .scratch = step_rows(m, m->step.normed)};
    input_add(&in, l->w[W_Q], l->v[V_Q_BIAS], a->q);
    if (a->own) {
        input_add(&in, l->w[W_K], l->v[V_K_BIAS], a->k);
    }
    if (a->own && !hp->v_is_k[layer]) {
        input_add(&in, l->w[W_V], l->v[V_V_BIAS], a->v);
    }
    if (a->gated) {
        input_add(&in, l->w[W_Q_GATE], NULL, a->gate);
    }
    int rc = block_inputs(m, &in, err);
    if (rc == 0 && (hp->flags & HP_QK_NORM_WIDE) != 0) {
        rc = norm_heads(m, a->q, a->q, a->q.cols, l->v[V_Q_NORM], err);
        rc = rc != 0 ? rc : norm_heads(m, a->k, a->k, a->k.cols, l->v[V_K_NORM], err);
    }
    if (rc == 0 && a->own && (hp->flags & HP_V_NORM) != 0) {
        rc = norm_heads(m, hp->v_is_k[layer] ? a->k : a->v, a->v, a->shape->head_dim, m->vecs[V_ONES], err);
    }
    return rc;
}

/* K and V of a step whose spans lie in pages of two kinds: op_attn_prepare's composition, stored part by part. */
static int prepare_parts(struct model *m, const struct op_attn_prepare *op, const struct step_part *parts, uint32_t count, struct err *err)
{
    struct op_rope q = {.x = op->q, .n_heads = op->n_heads, .head_dim = op->head_dim, .table = op->table, .pairing = op->pairing}, k = q;
    k.x = op->k;
    k.n_heads = parts[0].layer->n_kv_heads;
    int rc = op->q_norm != NULL ? norm_heads(m, op->q, op->q, op->head_dim, op->q_norm, err) : 0;
    rc = rc == 0 && op->k_norm != NULL ? norm_heads(m, op->k, op->k, op->head_dim, op->k_norm, err) : rc;
    rc = rc == 0 && op->table.rows != 0 ? op_rope(m->device, &q, err) : rc;
    rc = rc == 0 && op->table.rows != 0 ? op_rope(m->device, &k, err) : rc;
    for (uint32_t i = 0; i < count && rc == 0; i++) {
        struct op_kv_write write = {.k = op->k, .v = op->v, .layer = parts[i].layer, .spans = parts[i].spans,
                                    .span_count = parts[i].span_count, .tables = parts[i].tables};
        rc = op_kv_write(m->device, &write, err);
    }
    return rc;
}

/* Norms of the heads and rope; K and V, where the layer has its own, into the pages. */
static int attention_prepare(struct model *m, uint32_t layer, const struct attention *a, const struct step_part *parts, uint32_t count,
                             struct err *err)
{
    const struct hparams *hp = &m->hp;
    bool wide = (hp->flags & HP_QK_NORM_WIDE) != 0;
    struct tensor rope = step_rows(m, m->step.rope[hp->rope_sets > 1 && hp->sliding[layer]]);
    const float *q_norm = wide ? NULL : a->l->v[V_Q_NORM], *k_norm = wide ? NULL : a->l->v[V_K_NORM];
    if (a->own) {
        struct op_attn_prepare op = {.q = a->q, .k = a->k, .v = a->v, .n_heads = hp->heads, .head_dim = a->shape->head_dim,
                                     .q_norm = q_norm, .k_norm = k_norm, .eps = hp->eps,
                                     .table = hp->no_rope[layer] ? (struct tensor){0} : rope, .pairing = hp->pairing,
                                     .layer = parts[0].layer, .spans = parts[0].spans, .span_count = parts[0].span_count,
                                     .tables = parts[0].tables};
        return count == 1 ? op_attn_prepare(m->device, &op, err) : prepare_parts(m, &op, parts, count, err);
    }
    int rc = q_norm != NULL ? norm_heads(m, a->q, a->q, a->shape->head_dim, q_norm, err) : 0;
    struct op_rope turn = {.x = a->q, .n_heads = hp->heads, .head_dim = a->shape->head_dim, .table = rope, .pairing = hp->pairing};
    return rc != 0 || hp->no_rope[layer] ? rc : op_rope(m->device, &turn, err);
}

static int attention_block(struct model *m, uint32_t layer, struct err *err)
{
    const struct hparams *hp = &m->hp;
    struct attention a = attention_of(m, layer);
    struct step_part parts[2];
    uint32_t count = step_parts(m, layer, parts);
    int rc = attention_inputs(m, layer, &a, err);
    if (rc == 0) {
        rc = attention_prepare(m, layer, &a, parts, count, err);
    }
    for (uint32_t i = 0; i < count && rc == 0; i++) {
        bool sliding = m->kv_layers[layer].policy == KV_WINDOW;
        struct op_attention op = {.q = a.q, .y = a.y, .n_heads = hp->heads, .layer = parts[i].layer, .spans = parts[i].spans,
                                  .span_count = parts[i].span_count, .tables = parts[i].tables, .scale = hp->attn_scale,
                                  .softcap = hp->attn_softcap, .window = sliding ? hp->window : 0,
                                  .sinks = m->layers[layer].v[V_SINKS]};
        rc = op_attention(m->device, &op, err);
    }
    if (rc == 0 && a.gated) {
        struct op_gated gate = {.gate = a.gate, .up = a.y, .y = a.y, .act = ACT_SIGMOID};
        rc = op_gated(m->device, &gate, err);
    }
    return rc != 0 ? rc : decoder_output(m, a.l->w[W_O], a.l->v[V_O_BIAS], a.y, a.l->v[V_POST_ATTN_NORM], err);
}

int decoder_mlp_gate(struct model *m, uint32_t layer, struct tensor *out, struct err *err)
{
    const struct hparams *hp = &m->hp;
    const struct layer_weights *l = &m->layers[layer];
    uint32_t ffn = hp->shape[layer].ffn;
    struct tensor x = step_rows(m, m->step.x), gate = tensor_cols(step_rows(m, m->step.gate), 0, ffn);
    struct tensor up = tensor_cols(step_rows(m, m->step.up), 0, ffn);
    int rc = 0;
    if ((hp->flags & (HP_MLP_BIAS | HP_NO_PRE_NORM | HP_PARALLEL)) == 0 && !hp->sparse[layer]) {
        struct op_norm_gated op = {.x = x, .norm_w = l->v[V_FFN_NORM], .eps = hp->eps, .gate = l->w[W_GATE], .up = l->w[W_UP],
                                   .act = hp->act, .y = gate, .scratch = step_rows(m, m->step.normed), .scratch_gate = gate,
                                   .scratch_up = up};
        rc = op_norm_gated(m->device, &op, err);
    } else {
        struct op_norm_linear op = {.x = x, .norm_w = l->v[V_FFN_NORM], .eps = hp->eps, .n = 2, .w = {l->w[W_GATE], l->w[W_UP]},
                                    .bias = {l->v[V_GATE_BIAS], l->v[V_UP_BIAS]}, .y = {gate, up},
                                    .scratch = step_rows(m, m->step.normed)};
        struct op_sparsify sparsify = {.x = gate, .factor = hp->sparse_factor[layer]};
        rc = block_inputs(m, &op, err);
        if (rc == 0 && hp->sparse[layer]) {
            rc = op_sparsify(m->device, &sparsify, err);
        }
        if (rc == 0) {
            struct op_gated act = {.gate = gate, .up = up, .y = gate, .act = hp->act};
            rc = op_gated(m->device, &act, err);
        }
    }
    *out = gate;
    return rc;
}

int decoder_mlp(struct model *m, uint32_t layer, struct err *err)
{
    const struct layer_weights *l = &m->layers[layer];
    struct tensor gate = {0};
    int rc = decoder_mlp_gate(m, layer, &gate, err);
    return rc != 0 ? rc : decoder_output(m, l->w[W_DOWN], l->v[V_DOWN_BIAS], gate, l->v[V_POST_FFN_NORM], err);
}

int decoder_mix(struct model *m, uint32_t layer, struct err *err)
{
    if (m->hp.recurrent[layer]) {
        return recurrent_block(m, layer, err);
    }
    return m->hp.mla.rank != 0 ? mla_block(m, layer, err) : attention_block(m, layer, err);
}

int decoder_layer(struct model *m, uint32_t layer, struct err *err)
{
    int rc = 0;
    if ((m->hp.flags & HP_PARALLEL) != 0) {
        struct op_norm norm = {.x = step_rows(m, m->step.x), .y = step_rows(m, m->step.normed), .dim = m->hp.hidden,
                               .w = m->layers[layer].v[V_ATTN_NORM], .eps = m->hp.eps, .centred = (m->hp.flags & HP_LAYER_NORM) != 0};
        rc = op_norm(m->device, &norm, err);
    }
    if (rc == 0) {
        rc = decoder_mix(m, layer, err);
    }
    if (rc != 0) {
        return rc;
    }
    return m->hp.moe.experts != 0 && !m->hp.dense[layer] ? experts_block(m, layer, err) : decoder_mlp(m, layer, err);
}
