/* models/metadata.c - GGUF metadata -> hparams.
 *
 * Keys under "<arch>." are all known: read, or without effect on a forward; another one is an error that names it. */
#include "models/arch.h"

#include <stdio.h>

static const char *const keys_common[] = {
    "block_count", "context_length", "embedding_length", "feed_forward_length", "attention.head_count", "attention.head_count_kv",
    "attention.key_length", "attention.value_length", "attention.layer_norm_rms_epsilon", "attention.causal",
    "rope.dimension_count", "rope.freq_base", "rope.scale_linear", "rope.scaling.type", "rope.scaling.factor",
    "rope.scaling.original_context_length", "rope.scaling.attn_factor", "rope.scaling.yarn_attn_factor",
    "rope.scaling.yarn_ext_factor", "rope.scaling.yarn_beta_fast", "rope.scaling.yarn_beta_slow",
    "rope.scaling.yarn_log_multiplier", "expert_count", "expert_used_count",
    /* no effect */
    "vocab_size", "rope.scaling.finetuned", "tensor_data_layout", NULL};

void metadata_key(char out[128], const struct metadata_reader *md, const char *key)
{
    snprintf(out, 128, "%s.%s", md->arch, key);
}

int metadata_u32(const struct metadata_reader *md, const char *key, uint32_t *out, struct err *err)
{
    char name[128];
    metadata_key(name, md, key);
    return gguf_get_u32(md->gguf, name, out, err);
}

int metadata_f32(const struct metadata_reader *md, const char *key, float *out, struct err *err)
{
    char name[128];
    metadata_key(name, md, key);
    return gguf_get_f32(md->gguf, name, out, err);
}

static int metadata_f64(const struct metadata_reader *md, const char *key, double *out, struct err *err)
{
    float v = (float)*out;
    int rc = metadata_f32(md, key, &v, err);
    if (v != (float)*out) {
        *out = (double)v;
    }
    return rc;
}

static bool listed(const char *const *list, struct str key)
{
    for (; list != NULL && *list != NULL; list++) {
        if (str_is(key, *list)) {
            return true;
        }
    }
    return false;
}

int metadata_check_keys(const struct metadata_reader *md, const struct arch *arch, struct err *err)
{
    size_t n = strlen(md->arch);
    for (size_t i = 0; i < gguf_value_count(md->gguf); i++) {
        struct str key = gguf_value_at(md->gguf, i)->key;
        if (key.n <= n + 1 || memcmp(key.p, md->arch, n) != 0 || key.p[n] != '.') {
            continue;
        }
        struct str rest = str_from(key, n + 1);
        if (!listed(keys_common, rest) && !listed(arch->metadata_keys, rest)) {
            return err_set(err, ERR_UNSUPPORTED, "metadata '%.*s' is not known and might change what the model computes",
                           STR_ARG(key));
        }
    }
    return 0;
}

static bool has(const struct metadata_reader *md, const char *tensor)
{
    return gguf_tensor_find(md->gguf, str_of(tensor)) != NULL;
}

/* What the tensors say that the metadata do not. */
static void flags_from_tensors(struct hparams *hp, const struct metadata_reader *md)
{
    static const struct {
        const char *tensor;
        uint32_t flag;
    } facts[] = {{"blk.0.attn_q.bias", HP_QKV_BIAS}, {"blk.0.attn_output.bias", HP_O_BIAS}, {"blk.0.ffn_down.bias", HP_MLP_BIAS},
                 {"blk.0.attn_qkv.weight", HP_FUSED_QKV}, {"blk.0.attn_qkv.bias", HP_QKV_BIAS}, {"rope_freqs.weight", HP_ROPE_FREQS},
                 {"rope_factors_long.weight", HP_ROPE_LONG}, {"blk.0.attn_sinks.weight", HP_SINKS}};
    for (size_t i = 0; i < sizeof facts / sizeof facts[0]; i++) {
        hp->flags |= has(md, facts[i].tensor) ? facts[i].flag : 0;
    }
    hp->flags |= has(md, "output.weight") ? 0 : HP_TIED;
    const struct gguf_tensor *embed = gguf_tensor_find(md->gguf, STR("token_embd.weight"));
    if (embed != NULL && embed->ne[1] <= UINT32_MAX) {
        hp->vocab = (uint32_t)embed->ne[1];
    }
}

static int refuse_variants(const struct metadata_reader *md, bool latent, uint32_t value_length, uint32_t head_dim, struct err *err)
{
    char key[128];
    bool causal = true;
    metadata_key(key, md, "attention.causal");
    int rc = gguf_get_bool(md->gguf, key, &causal, err);
    if (rc == 0 && !causal) {
        return err_set(err, ERR_UNSUPPORTED, "%s is false: not a causal model", key);
    }
    if (rc == 0 && !latent && value_length != head_dim) {
        return err_set(err, ERR_UNSUPPORTED, "%s.attention.value_length is %u and key_length %u: expected the same", md->arch,
                       value_length, head_dim);
    }
    return rc;
}

/* A number, or one a layer, into `values`; false in `known` when the key is absent. */
static int read_layers_u32(const struct metadata_reader *md, const char *key, uint32_t layers, uint32_t *values, bool *known,
                           struct err *err)
{
    char name[128];
    uint32_t one = 0;
    metadata_key(name, md, key);
    const struct gguf_value *v = gguf_value_find(md->gguf, name);
    bool array = v != NULL && v->type == GGUF_ARRAY;
    *known = v != NULL;
    if (array && v->count != layers) {
        return err_set(err, ERR_FORMAT, "%s: expected %u entries, got %llu", name, layers, (unsigned long long)v->count);
    }
    int rc = v != NULL && !array ? gguf_get_u32(md->gguf, name, &one, err) : 0;
    for (uint32_t i = 0; i < layers && rc == 0; i++) {
        int64_t n = one;
        if (array && (gguf_array_i64(v, i, &n) != 0 || n < 0 || n > UINT32_MAX)) {
            return err_set(err, ERR_FORMAT, "%s: layer %u: expected a number of 32 bits", name, i);
        }
        values[i] = (uint32_t)n;
    }
    return rc;
}

int metadata_flags(const struct metadata_reader *md, const char *key, uint32_t blocks, uint8_t *out, bool *known, struct err *err)
{
    char name[128];
    metadata_key(name, md, key);
    const struct gguf_value *v = gguf_value_find(md->gguf, name);
    *known = v != NULL;
    for (uint32_t i = 0; v != NULL && i < blocks && i < MODEL_LAYERS_MAX; i++) {
        int64_t flag = 0;
        if (v->type != GGUF_ARRAY || v->count != blocks || gguf_array_i64(v, i, &flag) != 0) {
            return err_set(err, ERR_FORMAT, "%s: expected %u flags", name, blocks);
        }
        out[i] = flag != 0;
    }
    return 0;
}

int metadata_read_pattern(struct hparams *hp, const struct metadata_reader *md, uint32_t period, struct err *err)
{
    static const char key[] = "attention.sliding_window_pattern";
    char name[128];
    bool known = false;
    metadata_key(name, md, key);
    const struct gguf_value *v = gguf_value_find(md->gguf, name);
    if (v != NULL && v->type == GGUF_ARRAY) {
        return metadata_flags(md, key, hp->layers, hp->sliding, &known, err);
    }
    int rc = metadata_u32(md, key, &period, err);
    hparams_layers_by_period(hp, period);
    return rc;
}

int metadata_drop_predictors(struct hparams *hp, const struct metadata_reader *md, struct err *err)
{
    int rc = metadata_u32(md, "nextn_predict_layers", &hp->ignored_layers, err);
    if (rc == 0 && hp->ignored_layers >= hp->layers) {
        return err_set(err, ERR_FORMAT, "%s: %u of %u blocks predict further tokens", md->arch, hp->ignored_layers, hp->layers);
    }
    hp->layers -= rc == 0 ? hp->ignored_layers : 0;
    return rc;
}

bool metadata_has_tensor(const struct metadata_reader *md, uint32_t layer, const char *what)
{
    char name[MODEL_NAME_MAX];
    snprintf(name, sizeof name, "blk.%u.%s", layer, what);
    return gguf_tensor_find(md->gguf, str_of(name)) != NULL;
}

/* Key/value heads, 0 of them for recurrent layers, and feed-forward sizes; the model's are the first layer's that has any. */
static int read_shapes(struct hparams *hp, const struct metadata_reader *md, struct err *err)
{
    uint32_t values[MODEL_LAYERS_MAX] = {0}, layers = hp->layers;
    bool known = false;
    if (layers > MODEL_LAYERS_MAX) {
        return err_set(err, ERR_FORMAT, "layers: expected 1 to %d, got %u", MODEL_LAYERS_MAX, layers);
    }
    int rc = read_layers_u32(md, "attention.head_count_kv", layers, values, &known, err);
    for (uint32_t i = 0; i < layers && rc == 0 && known; i++) {
        hp->kv_heads = hp->kv_heads != 0 ? hp->kv_heads : values[i];
        hp->shape[i].kv_heads = values[i];
        hp->recurrent[i] = values[i] == 0;
    }
    if (rc == 0) {
        rc = read_layers_u32(md, "feed_forward_length", layers, values, &known, err);
    }
    for (uint32_t i = 0; i < layers && rc == 0 && known; i++) {
        hp->ffn = hp->ffn != 0 ? hp->ffn : values[i];
        hp->shape[i].ffn = values[i];
    }
    return rc;
}

int metadata_read_common(struct hparams *hp, const struct metadata_reader *md, struct err *err)
{
    uint32_t value_length = 0;
    const struct {
        const char *key;
        uint32_t *out;
    } sizes[] = {{"embedding_length", &hp->hidden}, {"block_count", &hp->layers}, {"attention.head_count", &hp->heads},
                 {"context_length", &hp->context_train}, {"expert_count", &hp->moe.experts},
                 {"expert_used_count", &hp->moe.used}};
    int rc = 0;
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0] && rc == 0; i++) {
        rc = metadata_u32(md, sizes[i].key, sizes[i].out, err);
    }
    if (rc == 0) {
        rc = read_shapes(hp, md, err);
    }
    hp->head_dim = hp->heads ? hp->hidden / hp->heads : 0;
    value_length = hp->head_dim;
    if (rc == 0) {
        rc = metadata_u32(md, "attention.key_length", &hp->head_dim, err);
    }
    if (rc == 0) {
        rc = metadata_u32(md, "attention.value_length", &value_length, err);
    }
    if (rc == 0) {
        rc = metadata_f32(md, "attention.layer_norm_rms_epsilon", &hp->eps, err);
    }
    if (rc == 0) {
        rc = refuse_variants(md, hp->mla.rank != 0, value_length, hp->head_dim, err);
    }
    flags_from_tensors(hp, md);
    return rc;
}

static int rope_kind_read(struct rope_params *p, const struct metadata_reader *md, struct err *err)
{
    char key[128];
    struct str name = STR("none");
    metadata_key(key, md, "rope.scaling.type");
    int rc = gguf_get_str(md->gguf, key, &name, err);
    if (rc != 0) {
        return rc;
    }
    if (str_is(name, "linear") || (str_is(name, "none") && p->factor != 0.0)) {
        p->kind = p->factor > 0.0 ? ROPE_LINEAR : ROPE_PLAIN;
    } else if (str_is(name, "yarn")) {
        p->kind = ROPE_YARN;
    } else if (str_is(name, "longrope")) {
        p->kind = ROPE_LONGROPE;
    } else if (!str_is(name, "none") && !str_is(name, "")) {
        return err_set(err, ERR_UNSUPPORTED, "%s: '%.*s' is not supported", key, STR_ARG(name));
    }
    return 0;
}

/* GGUF keeps what is left of the attention factor after 1 + 0.1 ln(factor), which users of these files apply. */
static int yarn_read(struct rope_params *p, const struct metadata_reader *md, double rest, struct err *err)
{
    double ext = 1.0;
    int rc = metadata_f64(md, "rope.scaling.yarn_beta_fast", &p->beta_fast, err);
    if (rc == 0) {
        rc = metadata_f64(md, "rope.scaling.yarn_beta_slow", &p->beta_slow, err);
    }
    if (rc == 0) {
        rc = metadata_f64(md, "rope.scaling.yarn_log_multiplier", &p->mscale_all, err);
    }
    if (rc == 0) {
        rc = metadata_f64(md, "rope.scaling.yarn_attn_factor", &p->attention_factor, err);
    }
    if (rc == 0) {
        rc = metadata_f64(md, "rope.scaling.yarn_ext_factor", &ext, err);
    }
    if (rc == 0 && (ext != 1.0 || rest != 1.0)) {
        return err_set(err, ERR_UNSUPPORTED, "%s.rope.scaling: yarn_ext_factor %g, attn_factor %g: expected 1 and 1", md->arch,
                       ext, rest);
    }
    p->mscale = p->mscale_all != 0.0 ? 1.0 : 0.0;
    return rc;
}

int metadata_read_rope(struct hparams *hp, const struct metadata_reader *md, struct err *err)
{
    struct rope_params *p = &hp->rope[0];
    double attn = 1.0;
    p->rot = hp->head_dim;
    int rc = metadata_u32(md, "rope.dimension_count", &p->rot, err);
    if (rc == 0) {
        rc = metadata_f64(md, "rope.freq_base", &p->theta, err);
    }
    if (rc == 0) {
        rc = metadata_f64(md, "rope.scale_linear", &p->factor, err);
    }
    if (rc == 0) {
        rc = metadata_f64(md, "rope.scaling.factor", &p->factor, err);
    }
    if (rc == 0) {
        rc = metadata_u32(md, "rope.scaling.original_context_length", &p->original, err);
    }
    if (rc == 0) {
        rc = metadata_f64(md, "rope.scaling.attn_factor", &attn, err);
    }
    if (rc == 0) {
        rc = rope_kind_read(p, md, err);
    }
    if (rc == 0 && p->kind == ROPE_YARN) {
        return yarn_read(p, md, attn, err);
    }
    if ((hp->flags & HP_ROPE_LONG) != 0) {
        p->kind = ROPE_LONGROPE; /* converters that leave rope.scaling.type out still write the factors */
    }
    if (rc == 0 && p->kind == ROPE_LONGROPE) {
        p->attention_factor = attn;
    } else if (rc == 0 && attn != 1.0) {
        return err_set(err, ERR_UNSUPPORTED, "%s.rope.scaling.attn_factor is %g without yarn or longrope", md->arch, attn);
    }
    if (hp->rope_sets > 1) {
        hp->rope[1].rot = p->rot;
        rc = rc != 0 ? rc : metadata_f64(md, "rope.freq_base_swa", &hp->rope[1].theta, err);
    }
    return rc;
}
