/* models/recurrent.c - what stands in attention's place in a recurrent layer: a short convolution, a gated delta net, or Mamba 2.
 *
 *   short convolution:  b, c, v = Win n(x);  x += Wout (c * conv(b * v))
 *   delta net:          x += Wout (norm(delta(Win n(x), Wa n(x), Wb n(x))) * silu(Wz n(x)))        norm: per value head */
#include "models/arch.h"

static int conv_block(struct model *m, uint32_t layer, struct err *err)
{
    const struct layer_weights *l = &m->layers[layer];
    struct tensor in = step_rows(m, m->step.state_in), out = step_rows(m, m->step.state_out);
    struct op_norm_linear project = {.x = step_rows(m, m->step.x), .norm_w = l->v[V_ATTN_NORM], .eps = m->hp.eps, .n = 1,
                                     .w = {l->w[W_STATE_IN]}, .bias = {l->v[V_STATE_IN_BIAS]}, .y = {in}, .scratch = step_rows(m, m->step.normed)};
    int rc = op_norm_linear(m->device, &project, err);
    if (rc != 0) {
        return rc;
    }
    struct op_short_conv conv = {.x = in, .y = out, .w = l->v[V_STATE_CONV], .bias = l->v[V_STATE_CONV_BIAS],
                                 .layer = kv_state_view(m->step.kv, layer),
                                 .spans = m->step.spans, .span_count = m->step.span_count, .tables = step_tables(m, layer)};
    rc = op_short_conv(m->device, &conv, err);
    return rc != 0 ? rc : decoder_output(m, l->w[W_STATE_OUT], l->v[V_STATE_OUT_BIAS], out, NULL, err);
}

static int delta_block(struct model *m, uint32_t layer, struct err *err)
{
    const struct hparams *hp = &m->hp;
    const struct layer_weights *l = &m->layers[layer];
    struct tensor in = step_rows(m, m->step.state_in), z = step_rows(m, m->step.state_gate), a = step_rows(m, m->step.state_a);
    struct tensor b = step_rows(m, m->step.state_b), out = step_rows(m, m->step.state_out);
    struct op_norm_linear project = {.x = step_rows(m, m->step.x), .norm_w = l->v[V_ATTN_NORM], .eps = hp->eps, .n = 4,
                                     .w = {l->w[W_STATE_IN], l->w[W_STATE_GATE], l->w[W_STATE_A], l->w[W_STATE_B]},
                                     .y = {in, z, a, b}, .scratch = step_rows(m, m->step.normed)};
    int rc = op_norm_linear(m->device, &project, err);
    if (rc != 0) {
        return rc;
    }
    struct op_delta_net delta = {.qkv = in, .a = a, .b = b, .y = out, .conv = l->v[V_STATE_CONV], .rate = l->v[V_STATE_RATE],
                                 .dt_bias = l->v[V_STATE_DT], .eps = 1e-6f, .tiled = hp->state_tiled,
                                 .layer = kv_state_view(m->step.kv, layer), .spans = m->step.spans,
                                 .span_count = m->step.span_count, .tables = step_tables(m, layer)};
    rc = op_delta_net(m->device, &delta, err);
    if (rc == 0) {
        struct op_norm norm = {.x = out, .y = out, .dim = hp->state.d_v, .w = l->v[V_STATE_NORM], .eps = hp->eps};
        rc = op_norm(m->device, &norm, err);
    }
    if (rc == 0) {
        struct op_gated gate = {.gate = z, .up = out, .y = out, .act = ACT_SILU};
        rc = op_gated(m->device, &gate, err);
    }
    return rc != 0 ? rc : decoder_output(m, l->w[W_STATE_OUT], NULL, out, NULL, err);
}

/* x += Wout norm(mamba(Win n(x), Wdt n(x)) * silu(Wz n(x)))        norm: per group */
static int mamba_block(struct model *m, uint32_t layer, struct err *err)
{
    const struct hparams *hp = &m->hp;
    const struct layer_weights *l = &m->layers[layer];
    struct tensor in = step_rows(m, m->step.state_in), z = step_rows(m, m->step.state_gate), dt = step_rows(m, m->step.state_a);
    struct tensor out = step_rows(m, m->step.state_out);
    struct op_norm_linear project = {.x = step_rows(m, m->step.x), .norm_w = l->v[V_ATTN_NORM], .eps = hp->eps, .n = 3,
                                     .w = {l->w[W_STATE_IN], l->w[W_STATE_GATE], l->w[W_STATE_A]}, .y = {in, z, dt},
                                     .scratch = step_rows(m, m->step.normed)};
    struct op_mamba mamba = {.xbc = in, .dt = dt, .times = step_rows(m, m->step.state_b), .y = out, .conv = l->v[V_STATE_CONV],
                             .conv_bias = l->v[V_STATE_CONV_BIAS], .rate = l->v[V_STATE_RATE], .dt_bias = l->v[V_STATE_DT],
                             .skip = l->v[V_STATE_SKIP], .dt_least = hp->dt_least, .layer = kv_state_view(m->step.kv, layer),
                             .spans = m->step.spans, .span_count = m->step.span_count, .tables = step_tables(m, layer)};
    struct op_gated gate = {.gate = z, .up = out, .y = out, .act = ACT_SILU};
    struct op_norm norm = {.x = out, .y = out, .dim = hp->state.values * hp->state.d_v, .w = l->v[V_STATE_NORM], .eps = hp->eps, .own = true};
    int rc = op_norm_linear(m->device, &project, err);
    if (rc == 0) {
        rc = op_mamba(m->device, &mamba, err);
    }
    if (rc == 0) {
        rc = op_gated(m->device, &gate, err);
    }
    if (rc == 0) {
        rc = op_norm(m->device, &norm, err);
    }
    return rc != 0 ? rc : decoder_output(m, l->w[W_STATE_OUT], NULL, out, NULL, err);
}

int recurrent_block(struct model *m, uint32_t layer, struct err *err)
{
    if ((m->hp.flags & HP_MAMBA) != 0) {
        return mamba_block(m, layer, err);
    }
    return m->hp.state.values == 0 ? conv_block(m, layer, err) : delta_block(m, layer, err);
}
