/* models/decoder.c - one pre-norm transformer layer, with what its members differ in taken from hparams: biases, norms of q and
 * k, norms after each block, scales, soft cap, sliding window, two ropes or none, a gate of attention's output, no norm before the blocks, recurrent layers.
 *
 *   x += scale * [post] Wo attention(rope [norm] Wq n(x), rope [norm] Wk n(x), Wv n(x)) [sigmoid(Wg n(x))]     n: RMS norm
 *   x += scale * [post] Wdown (act(Wgate n(x)) * Wup n(x)) */
#include "models/arch.h"

static struct tensor rows_of(const struct model *m, struct tensor t)
{
    return tensor_rows(t, 0, m->step.rows);
}

int decoder_output(struct model *m, struct weight *w, const float *bias, struct tensor x, const float *post, struct err *err)
{
    const struct hparams *hp = &m->hp;
    struct tensor stream = rows_of(m, m->step.x), block = rows_of(m, m->step.block);
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

/* y_i = W_i n(x) + bias_i, or of x itself where the architecture has no norm before its blocks. */
static int block_inputs(struct model *m, const struct op_norm_linear *op, struct err *err)
{
    if ((m->hp.flags & HP_NO_PRE_NORM) == 0) {
        return op_norm_linear(m->device, op, err);
    }
    int rc = 0;
    for (uint32_t i = 0; i < op->n && rc == 0; i++) {
        struct op_linear linear = {.w = op->w[i], .bias = op->bias[i], .x = op->x, .y = op->y[i], .alpha = 1.0f};
        rc = op_linear(m->device, &linear, err);
    }
    return rc;
}

/* q, k, v and the gate of attention's output. */
static int attention_inputs(struct model *m, const struct layer_weights *l, struct tensor q, struct tensor k, struct err *err)
{
    const struct hparams *hp = &m->hp;
    bool gated = (hp->flags & HP_ATTN_GATE) != 0;
    struct op_norm_linear qkv = {.x = rows_of(m, m->step.x),
                                 .norm_w = l->v[V_ATTN_NORM],
                                 .eps = hp->eps,
                                 .n = gated ? 4 : 3,
                                 .w = {l->w[W_Q], l->w[W_K], l->w[W_V], l->w[W_Q_GATE]},
                                 .bias = {l->v[V_Q_BIAS], l->v[V_K_BIAS], l->v[V_V_BIAS]},
                                 .y = {q, k, rows_of(m, m->step.v), gated ? rows_of(m, m->step.q_gate) : (struct tensor){0}},
                                 .scratch = rows_of(m, m->step.normed)};
    int rc = block_inputs(m, &qkv, err);
    if (rc == 0 && (hp->flags & HP_QK_NORM_WIDE) != 0) {
        struct op_norm norm_q = {.x = q, .y = q, .dim = q.cols, .w = l->v[V_Q_NORM], .eps = hp->eps};
        struct op_norm norm_k = {.x = k, .y = k, .dim = k.cols, .w = l->v[V_K_NORM], .eps = hp->eps};
        rc = op_norm(m->device, &norm_q, err);
        rc = rc != 0 ? rc : op_norm(m->device, &norm_k, err);
    }
    return rc;
}

static int attention_block(struct model *m, uint32_t layer, struct err *err)
{
    const struct hparams *hp = &m->hp;
    const struct layer_weights *l = &m->layers[layer];
    const struct kv_layer *kv = kv_layer_view(m->step.kv, layer);
    const uint32_t *tables = m->step.tables + (size_t)kv_layer_group(m->step.kv, layer) * m->step.tables_cap;
    bool sliding = m->kv_layers[layer].policy == KV_WINDOW, wide = (hp->flags & HP_QK_NORM_WIDE) != 0;
    struct tensor q = rows_of(m, m->step.q), k = rows_of(m, m->step.k), att = rows_of(m, m->step.att);
    struct tensor rope = rows_of(m, m->step.rope[hp->rope_sets > 1 && hp->sliding[layer]]);
    int rc = attention_inputs(m, l, q, k, err);
    if (rc != 0) {
        return rc;
    }
    struct op_attn_prepare prepare = {.q = q,
                                      .k = k,
                                      .v = rows_of(m, m->step.v),
                                      .n_heads = hp->heads,
                                      .head_dim = hp->head_dim,
                                      .q_norm = wide ? NULL : l->v[V_Q_NORM],
                                      .k_norm = wide ? NULL : l->v[V_K_NORM],
                                      .eps = hp->eps,
                                      .table = hp->no_rope[layer] ? (struct tensor){0} : rope,
                                      .pairing = hp->pairing,
                                      .layer = kv,
                                      .spans = m->step.spans,
                                      .span_count = m->step.span_count,
                                      .tables = tables};
    rc = op_attn_prepare(m->device, &prepare, err);
    if (rc != 0) {
        return rc;
    }
    struct op_attention attention = {
        .q = q, .y = att, .n_heads = hp->heads, .layer = kv, .spans = m->step.spans, .span_count = m->step.span_count,
        .tables = tables, .scale = hp->attn_scale, .softcap = hp->attn_softcap, .window = sliding ? hp->window : 0};
    rc = op_attention(m->device, &attention, err);
    if (rc == 0 && (hp->flags & HP_ATTN_GATE) != 0) {
        struct op_gated gate = {.gate = rows_of(m, m->step.q_gate), .up = att, .y = att, .act = ACT_SIGMOID};
        rc = op_gated(m->device, &gate, err);
    }
    return rc != 0 ? rc : decoder_output(m, l->w[W_O], l->v[V_O_BIAS], att, l->v[V_POST_ATTN_NORM], err);
}

static int mlp_block(struct model *m, uint32_t layer, struct err *err)
{
    const struct hparams *hp = &m->hp;
    const struct layer_weights *l = &m->layers[layer];
    struct tensor x = rows_of(m, m->step.x), gate = rows_of(m, m->step.gate), up = rows_of(m, m->step.up);
    int rc = 0;
    if ((hp->flags & (HP_MLP_BIAS | HP_NO_PRE_NORM)) == 0) {
        struct op_norm_gated op = {.x = x, .norm_w = l->v[V_FFN_NORM], .eps = hp->eps, .gate = l->w[W_GATE], .up = l->w[W_UP],
                                   .act = hp->act, .y = gate, .scratch = rows_of(m, m->step.normed), .scratch_gate = gate,
                                   .scratch_up = up};
        rc = op_norm_gated(m->device, &op, err);
    } else {
        struct op_norm_linear op = {.x = x, .norm_w = l->v[V_FFN_NORM], .eps = hp->eps, .n = 2, .w = {l->w[W_GATE], l->w[W_UP]},
                                    .bias = {l->v[V_GATE_BIAS], l->v[V_UP_BIAS]}, .y = {gate, up},
                                    .scratch = rows_of(m, m->step.normed)};
        rc = block_inputs(m, &op, err);
        if (rc == 0) {
            struct op_gated act = {.gate = gate, .up = up, .y = gate, .act = hp->act};
            rc = op_gated(m->device, &act, err);
        }
    }
    return rc != 0 ? rc : decoder_output(m, l->w[W_DOWN], l->v[V_DOWN_BIAS], gate, l->v[V_POST_FFN_NORM], err);
}

int decoder_layer(struct model *m, uint32_t layer, struct err *err)
{
    int rc = m->hp.recurrent[layer] ? recurrent_block(m, layer, err) : attention_block(m, layer, err);
    return rc != 0 ? rc : mlp_block(m, layer, err);
}
