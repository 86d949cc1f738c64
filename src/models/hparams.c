/* models/hparams.c - what follows from the hyper-parameters of either file kind: values left open, sizes as bind tables name them, the
 * widest layer's, and the checks of everything that was read.
 *
 * Invariant: after hparams_check no product of sizes here leaves 32 bits. */
#include "models/hparams.h"

#include "models/arch.h"

/* What follows from the sizes when the file left it out. */
void hparams_finish(struct hparams *hp)
{
    hp->kv_heads = hp->kv_heads ? hp->kv_heads : hp->heads;
    hp->head_dim = hp->head_dim ? hp->head_dim : hp->heads ? hp->hidden / hp->heads : 0;
    hp->ffn = hp->ffn || hp->moe.experts == 0 ? hp->ffn : hp->moe.ffn; /* of no layer then */
    for (uint32_t i = 0; i < MODEL_LAYERS_MAX; i++) {
        struct layer_shape *l = &hp->shape[i];
        l->kv_heads = l->kv_heads ? l->kv_heads : hp->kv_heads;
        l->head_dim = l->head_dim ? l->head_dim : hp->head_dim;
        l->ffn = l->ffn ? l->ffn : hp->ffn;
    }
    for (uint32_t s = 0; s < MODEL_ROPE_SETS; s++) {
        hp->rope[s].rot = hp->rope[s].rot ? hp->rope[s].rot : hp->head_dim;
    }
    if (hp->attn_scale == 0.0f && hp->head_dim != 0) {
        hp->attn_scale = (float)(1.0 / __builtin_sqrt((double)hp->head_dim));
    }
}

void hparams_layers_by_period(struct hparams *hp, uint32_t period)
{
    for (uint32_t i = 0; i < hp->layers && i < MODEL_LAYERS_MAX; i++) {
        hp->sliding[i] = period != 0 && (i + 1) % period != 0;
    }
}

static uint32_t widest(const struct hparams *hp, uint32_t (*of)(const struct layer_shape *l))
{
    uint32_t most = 0;
    for (uint32_t i = 0; i < hp->layers && i < MODEL_LAYERS_MAX; i++) {
        uint32_t n = of(&hp->shape[i]);
        most = n > most ? n : most;
    }
    return most;
}

static uint32_t shape_head_dim(const struct layer_shape *l)
{
    return l->head_dim;
}

static uint32_t shape_kv_cols(const struct layer_shape *l)
{
    return l->kv_heads * l->head_dim;
}

static uint32_t shape_ffn(const struct layer_shape *l)
{
    return l->ffn;
}

uint32_t model_head_dim(const struct hparams *hp)
{
    return widest(hp, shape_head_dim);
}

uint32_t model_q_cols(const struct hparams *hp)
{
    return hp->heads * model_head_dim(hp);
}

uint32_t model_kv_cols(const struct hparams *hp)
{
    return widest(hp, shape_kv_cols);
}

uint32_t model_ffn(const struct hparams *hp)
{
    return widest(hp, shape_ffn);
}

static uint32_t value_heads(const struct hparams *hp)
{
    return hp->state.heads * hp->state.values;
}

uint32_t model_state_cols(const struct hparams *hp)
{
    return hp->state.values == 0 ? 3 * hp->state.channels : hp->state.heads * hp->state.channels;
}

uint32_t model_state_out(const struct hparams *hp)
{
    return hp->state.values == 0 ? hp->state.channels : value_heads(hp) * hp->state.d_v;
}

uint32_t hparams_dim(const struct hparams *hp, uint32_t layer, enum model_dim d)
{
    const struct layer_shape *l = &hp->shape[layer];
    const struct mla_params *m = &hp->mla;
    uint32_t q = hp->heads * l->head_dim, kv = l->kv_heads * l->head_dim;
    const uint32_t dims[] = {[DIM_0] = 0, [DIM_1] = 1, [DIM_HIDDEN] = hp->hidden, [DIM_FFN] = l->ffn, [DIM_2_FFN] = 2 * l->ffn,
                             [DIM_VOCAB] = hp->vocab, [DIM_Q] = q, [DIM_KV] = kv, [DIM_Q_KV] = q + kv, [DIM_QKV] = q + 2 * kv,
                             [DIM_HEAD] = l->head_dim, [DIM_ROT_HALF] = hp->rope[0].rot / 2, [DIM_2_Q] = 2 * q,
                             [DIM_2_HEAD] = 2 * l->head_dim, [DIM_TAPS] = hp->state.taps,
                             [DIM_CHANNELS] = hp->state.heads * hp->state.channels, [DIM_STATE_COLS] = model_state_cols(hp),
                             [DIM_STATE_OUT] = model_state_out(hp), [DIM_STATE_VALUES] = value_heads(hp),
                             [DIM_STATE_HEAD] = hp->state.d_v, [DIM_HEAD_MOST] = model_head_dim(hp),
                             [DIM_INPUT] = hp->layer_inputs, [DIM_INPUTS] = hp->layers * hp->layer_inputs,
                             [DIM_INPUT_VOCAB] = hp->layer_vocab, [DIM_CHANNEL_HEAD] = hp->state.channels,
                             [DIM_STATE_GROUP] = hp->state.channels + hp->state.values * hp->state.d_v,
                             [DIM_STATE_GROUPS] = hp->state.heads * (hp->state.channels + hp->state.values * hp->state.d_v),
                             [DIM_VALUES] = hp->state.values, [DIM_2_VALUES] = 2 * hp->state.values,
                             [DIM_2_STATE_VALUES] = 2 * value_heads(hp), [DIM_2] = 2, [DIM_HEADS] = hp->heads,
                             [DIM_STATE_OUT_COLS] = model_state_out(hp) + model_state_cols(hp),
                             [DIM_STATE_ALL] = model_state_out(hp) + model_state_cols(hp) + value_heads(hp),
                             [DIM_KEY_HEADS] = hp->state.heads, [DIM_KEY_HEAD_OUT] = hp->state.values * hp->state.d_v,
                             [DIM_2_HIDDEN] = 2 * hp->hidden, [DIM_3_HIDDEN] = 3 * hp->hidden, [DIM_STREAMS] = hp->streams,
                             [DIM_STREAMS_2] = hp->streams * hp->streams, [DIM_LAUREL] = hp->laurel,
                             [DIM_EXPERTS] = hp->moe.experts, [DIM_EXPERT_IN] = hp->moe.latent ? hp->moe.latent : hp->hidden,
                             [DIM_EXPERT_FFN] = hp->moe.ffn, [DIM_2_EXPERT_FFN] = 2 * hp->moe.ffn,
                             [DIM_SHARED_FFN] = hp->moe.shared_ffn, [DIM_Q_RANK] = m->q_rank, [DIM_RANK] = m->rank, [DIM_NOPE] = m->nope,
                             [DIM_RANK_ROPE] = m->rank + m->rope, [DIM_K_B] = hp->heads * m->rank, [DIM_V_B] = hp->heads * m->v,
                             [DIM_KV_B] = hp->heads * (m->nope + m->v), [DIM_KV_B_HEAD] = m->nope + m->v};
    return dims[d];
}

/* ---- are the values in their ranges and do they fit each other ---- */

struct hparams_range {
    const char *what;
    uint32_t value, most;
};

static int ranges_check(const struct hparams_range *ranges, size_t count, struct err *err)
{
    for (size_t i = 0; i < count; i++) {
        if (ranges[i].value == 0 || ranges[i].value > ranges[i].most) {
            return err_set(err, ERR_FORMAT, "%s: expected 1 to %u, got %u", ranges[i].what, ranges[i].most, ranges[i].value);
        }
    }
    return 0;
}

static int state_check(const struct hparams *hp, uint32_t layer, struct err *err)
{
    const struct state_shape *s = &hp->state;
    return state_shape_valid(s) ? 0
                                : err_set(err, ERR_UNSUPPORTED,
                                          "recurrent layer %u of %u heads, %u channels, %u taps, %u value heads each, dims %u and %u",
                                          layer, s->heads, s->channels, s->taps, s->values, s->d_k, s->d_v);
}

static int layer_check(const struct hparams *hp, uint32_t layer, struct err *err)
{
    const struct layer_shape *l = &hp->shape[layer];
    const struct hparams_range ranges[] = {{"key/value heads", l->kv_heads, 4096}, {"head dim", l->head_dim, 2 * MODEL_ROPE_PAIRS_MAX},
                                           {"feed-forward size", l->ffn, 1u << 22}};
    const struct rope_params *rope = &hp->rope[hp->rope_sets > 1 && hp->sliding[layer]];
    uint32_t from = hp->kv_from[layer];
    int rc = ranges_check(ranges, sizeof ranges / sizeof ranges[0], err);
    if (rc != 0 || hp->recurrent[layer]) {
        return rc != 0 ? rc : state_check(hp, layer, err);
    }
    if (hp->heads % l->kv_heads != 0) {
        return err_set(err, ERR_FORMAT, "%u heads are no multiple of %u key/value heads", hp->heads, l->kv_heads);
    }
    if (rope->rot == 0 || rope->rot % 2 != 0 || rope->rot > l->head_dim || !(rope->theta > 1.0)) {
        return err_set(err, ERR_FORMAT, "rope over %u of %u head elements with base %g: expected an even number of them, and a base above 1",
                       rope->rot, l->head_dim, rope->theta);
    }
    if (from != 0 && (from > layer || hp->kv_from[from - 1] != 0 || hp->recurrent[from - 1] ||
                      hp->shape[from - 1].kv_heads != l->kv_heads || hp->shape[from - 1].head_dim != l->head_dim ||
                      hp->sliding[from - 1] != hp->sliding[layer])) {
        return err_set(err, ERR_FORMAT, "layer %u cannot read the keys and values of layer %u", layer, from - 1);
    }
    return 0;
}

int hparams_check(const struct hparams *hp, struct err *err)
{
    const struct hparams_range ranges[] = {
        {"layers", hp->layers, MODEL_LAYERS_MAX}, {"hidden size", hp->hidden, 1u << 20}, {"heads", hp->heads, 4096},
        {"vocabulary", hp->vocab, 1u << 24}, {"training context", hp->context_train, 1u << 30}};
    int rc = ranges_check(ranges, sizeof ranges / sizeof ranges[0], err);
    if (rc == 0 && hp->mlp_only[0]) {
        rc = err_set(err, ERR_UNSUPPORTED, "the first layer is an MLP alone: expected one that reads the text before");
    }
    for (uint32_t i = 0; rc == 0 && i < hp->layers; i++) {
        rc = layer_check(hp, i, err);
    }
    if (rc != 0) {
        return rc;
    }
    const float scales[] = {hp->eps, hp->embed_scale, hp->residual_scale, hp->attn_scale, hp->logit_scale};
    for (size_t i = 0; i < sizeof scales / sizeof scales[0]; i++) {
        if (!(scales[i] > 0.0f) || scales[i] > 1e6f) {
            return err_set(err, ERR_FORMAT, "a scale or the norm epsilon is %g: expected above 0 to 1e6", (double)scales[i]);
        }
    }
    if (!(hp->attn_softcap >= 0.0f) || !(hp->final_softcap >= 0.0f)) {
        return err_set(err, ERR_FORMAT, "soft caps %g and %g: expected 0 or more", (double)hp->attn_softcap,
                       (double)hp->final_softcap);
    }
    return hp->moe.experts != 0 ? experts_check(hp, err) : 0;
}
