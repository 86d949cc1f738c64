/* models/apertus.c - Apertus: norms of q and k heads, llama3 rope, an MLP of two matrices with the xIELU activation between, whose
 * two strengths are learned in each layer.
 *
 *   xielu(x) = ap x^2 + b x  where x > 0, else (exp(min(x, eps)) - 1 - x) an + b x;   ap = softplus(alpha_p), an = b + softplus(alpha_n) */
#include "models/decoder_binds.h"

#include "base/math.h"

#define XIELU_NUMBER(slot_, hf_) {.kind = BIND_LAYER_NUMBER, .slot = slot_, .hf = "model.layers.%u.mlp.act_fn." hf_}

static const struct bind binds[] = {
    BINDS_ENDS, BINDS_QKV, BINDS_QKV_FUSED, BINDS_QKV_BIAS, BINDS_QK_NORM, BINDS_O, BINDS_O_BIAS,
    BIND_VECTOR(V_ATTN_NORM, "attn_norm.weight", "attention_layernorm.weight", DIM_HIDDEN),
    BIND_VECTOR(V_FFN_NORM, "ffn_norm.weight", "feedforward_layernorm.weight", DIM_HIDDEN),
    BIND_MATRIX(W_UP, "ffn_up", "mlp.up_proj", DIM_FFN, DIM_HIDDEN, SPLIT_ROWS),
    BIND_MATRIX(W_DOWN, "ffn_down", "mlp.down_proj", DIM_HIDDEN, DIM_FFN, SPLIT_COLS),
    XIELU_NUMBER(N_ALPHA_P, "alpha_p"), XIELU_NUMBER(N_ALPHA_N, "alpha_n"), XIELU_NUMBER(N_BETA, "beta"), XIELU_NUMBER(N_EPS, "eps")};

static void defaults(struct hparams *hp)
{
    hp->flags |= HP_QK_NORM;
    hp->own_act = "xielu";
    hp->eps = 1e-5f;
    hp->context_train = 65536;
    hp->rope[0].theta = 12e6;
}

static int read_config(struct hparams *hp, const struct config_reader *cfg, struct err *err)
{
    defaults(hp);
    struct rope_params *rope = &hp->rope[0];
    yyjson_val *given = yyjson_obj_get(cfg->root, "rope_parameters");
    if ((given == NULL || yyjson_is_null(given)) && yyjson_obj_get(cfg->root, "rope_scaling") == NULL) {
        rope->kind = ROPE_LLAMA3;
        rope->factor = 8.0, rope->low_freq = 1.0, rope->high_freq = 4.0, rope->original = 8192;
    }
    static const struct config_fact norms = {"qk_norm", NULL, 1.0};
    int rc = config_read_common(hp, cfg, err);
    rc = rc != 0 ? rc : config_check_facts(cfg, &norms, 1, err);
    return rc != 0 ? rc : config_read_rope(hp, 0, cfg, NULL, err);
}

static int read_metadata(struct hparams *hp, const struct metadata_reader *md, struct err *err)
{
    defaults(hp);
    int rc = metadata_read_common(hp, md, err);
    return rc != 0 ? rc : metadata_read_rope(hp, md, err);
}

/* GGUF keeps the numbers of all layers in lists, under names without the architecture's. */
static int read_numbers(struct model *m, struct err *err)
{
    static const struct {
        const char *key;
        enum layer_number slot;
    } lists[] = {{"xielu.alpha_p", N_ALPHA_P}, {"xielu.alpha_n", N_ALPHA_N}, {"xielu.beta", N_BETA}, {"xielu.eps", N_EPS}};
    for (size_t i = 0; i < sizeof lists / sizeof lists[0]; i++) {
        const struct gguf_value *v = gguf_value_find(m->gguf, lists[i].key);
        bool list = v != NULL && v->type == GGUF_ARRAY && v->count == m->hp.layers;
        for (uint32_t l = 0; l < m->hp.layers; l++) {
            float *out = &m->layers[l].n[lists[i].slot];
            if (!list || gguf_array_f32(v, l, out) != 0 || !__builtin_isfinite(*out)) {
                return err_set(err, ERR_FORMAT, "%s: expected a list of %u numbers", lists[i].key, m->hp.layers);
            }
        }
    }
    return 0;
}

static float softplus(float x)
{
    double e = math_expd(x < 0 ? (double)x : -(double)x);
    return (float)((x > 0 ? (double)x : 0.0) + math_logd(1.0 + e));
}

static int numbers_ready(struct model *m, struct err *err)
{
    int rc = m->gguf != NULL ? read_numbers(m, err) : 0;
    for (uint32_t l = 0; l < m->hp.layers && rc == 0; l++) {
        float *n = m->layers[l].n;
        n[N_ALPHA_P] = softplus(n[N_ALPHA_P]);
        n[N_ALPHA_N] = n[N_BETA] + softplus(n[N_ALPHA_N]);
    }
    return rc;
}

static int apertus_layer(struct model *m, uint32_t layer, struct err *err)
{
    const struct layer_weights *l = &m->layers[layer];
    struct tensor up = step_rows(m, m->step.up);
    struct op_norm_linear in = {.x = step_rows(m, m->step.x), .norm_w = l->v[V_FFN_NORM], .eps = m->hp.eps, .n = 1, .w = {l->w[W_UP]},
                                .y = {up}, .scratch = step_rows(m, m->step.normed)};
    struct op_xielu act = {.x = up, .alpha_p = l->n[N_ALPHA_P], .alpha_n = l->n[N_ALPHA_N], .beta = l->n[N_BETA], .eps = l->n[N_EPS]};
    int rc = decoder_mix(m, layer, err);
    if (rc == 0) {
        rc = op_norm_linear(m->device, &in, err);
    }
    if (rc == 0) {
        rc = op_xielu(m->device, &act, err);
    }
    return rc != 0 ? rc : decoder_output(m, l->w[W_DOWN], NULL, up, NULL, err);
}

static const char *const model_types[] = {"apertus", NULL};
static const char *const config_keys[] = {"qk_norm", NULL};

const struct arch arch_apertus = {
    .name = "apertus", .gguf = "apertus", .model_types = model_types, .config_keys = config_keys, .read_config = read_config,
    .read_metadata = read_metadata, .binds = binds, .bind_count = sizeof binds / sizeof binds[0], .layer = apertus_layer,
    .bound = numbers_ready};
