/* models/metadata.c - GGUF metadata -> hparams, and the checks both file kinds share.
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

static int metadata_key(char out[128], const struct metadata_reader *md, const char *key)
{
    return snprintf(out, 128, "%s.%s", md->arch, key);
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
                 {"blk.0.attn_qkv.weight", HP_FUSED_QKV}, {"rope_freqs.weight", HP_ROPE_FREQS},
                 {"rope_factors_long.weight", HP_ROPE_LONG}};
    for (size_t i = 0; i < sizeof facts / sizeof facts[0]; i++) {
        hp->flags |= has(md, facts[i].tensor) ? facts[i].flag : 0;
    }
    hp->flags |= has(md, "output.weight") ? 0 : HP_TIED;
    const struct gguf_tensor *embed = gguf_tensor_find(md->gguf, STR("token_embd.weight"));
    if (embed != NULL && embed->ne[1] <= UINT32_MAX) {
        hp->vocab = (uint32_t)embed->ne[1];
    }
}

static int refuse_variants(const struct metadata_reader *md, uint32_t value_length, uint32_t head_dim, struct err *err)
{
    char key[128];
    uint32_t experts = 0;
    bool causal = true;
    int rc = metadata_u32(md, "expert_count", &experts, err);
    if (rc == 0 && experts != 0) {
        return err_set(err, ERR_UNSUPPORTED, "%s.expert_count is %u: mixtures of experts are not supported here", md->arch,
                       experts);
    }
    metadata_key(key, md, "attention.causal");
    if (rc == 0) {
        rc = gguf_get_bool(md->gguf, key, &causal, err);
    }
    if (rc == 0 && !causal) {
        return err_set(err, ERR_UNSUPPORTED, "%s is false: not a causal model", key);
    }
    if (rc == 0 && value_length != head_dim) {
        return err_set(err, ERR_UNSUPPORTED, "%s.attention.value_length is %u and key_length %u: expected the same", md->arch,
                       value_length, head_dim);
    }
    return rc;
}

/* attention.head_count_kv: one number, or one a layer: 0 for recurrent layers, the same for all others. */
static int read_kv_heads(struct hparams *hp, const struct metadata_reader *md, struct err *err)
{
    char key[128];
    metadata_key(key, md, "attention.head_count_kv");
    const struct gguf_value *v = gguf_value_find(md->gguf, key);
    if (v == NULL || v->type != GGUF_ARRAY) {
        return metadata_u32(md, "attention.head_count_kv", &hp->kv_heads, err);
    }
    if (v->count != hp->layers || hp->layers > MODEL_LAYERS_MAX) {
        return err_set(err, ERR_FORMAT, "%s: expected %u entries, got %llu", key, hp->layers, (unsigned long long)v->count);
    }
    for (uint32_t i = 0; i < hp->layers; i++) {
        int64_t n = 0;
        int rc = gguf_array_i64(v, i, &n);
        if (rc != 0 || n < 0 || n > 4096 || (n != 0 && hp->kv_heads != 0 && n != hp->kv_heads)) {
            return err_set(err, ERR_UNSUPPORTED, "%s: layer %u has %lld, others %u: expected one number for all", key, i,
                           (long long)n, hp->kv_heads);
        }
        hp->kv_heads = n != 0 ? (uint32_t)n : hp->kv_heads;
        hp->recurrent[i] = n == 0;
    }
    return 0;
}

int metadata_read_common(struct hparams *hp, const struct metadata_reader *md, struct err *err)
{
    uint32_t value_length = 0;
    const struct {
        const char *key;
        uint32_t *out;
    } sizes[] = {{"embedding_length", &hp->hidden}, {"block_count", &hp->layers}, {"attention.head_count", &hp->heads},
                 {"feed_forward_length", &hp->ffn}, {"context_length", &hp->context_train}};
    int rc = 0;
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0] && rc == 0; i++) {
        rc = metadata_u32(md, sizes[i].key, sizes[i].out, err);
    }
    if (rc == 0) {
        rc = read_kv_heads(hp, md, err);
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
        rc = refuse_variants(md, value_length, hp->head_dim, err);
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

/* ---- both file kinds ---- */

uint32_t model_q_cols(const struct hparams *hp)
{
    return hp->heads * hp->head_dim;
}

uint32_t model_kv_cols(const struct hparams *hp)
{
    return hp->kv_heads * hp->head_dim;
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

uint32_t hparams_dim(const struct hparams *hp, enum model_dim d)
{
    uint32_t q = model_q_cols(hp), kv = model_kv_cols(hp);
    const uint32_t dims[] = {[DIM_0] = 0, [DIM_1] = 1, [DIM_HIDDEN] = hp->hidden, [DIM_FFN] = hp->ffn, [DIM_2_FFN] = 2 * hp->ffn,
                             [DIM_VOCAB] = hp->vocab, [DIM_Q] = q, [DIM_KV] = kv, [DIM_Q_KV] = q + kv, [DIM_QKV] = q + 2 * kv,
                             [DIM_HEAD] = hp->head_dim, [DIM_ROT_HALF] = hp->rope[0].rot / 2, [DIM_2_Q] = 2 * q,
                             [DIM_2_HEAD] = 2 * hp->head_dim, [DIM_TAPS] = hp->state.taps,
                             [DIM_CHANNELS] = hp->state.heads * hp->state.channels, [DIM_STATE_COLS] = model_state_cols(hp),
                             [DIM_STATE_OUT] = model_state_out(hp), [DIM_STATE_VALUES] = value_heads(hp),
                             [DIM_STATE_HEAD] = hp->state.d_v};
    return dims[d];
}

int hparams_check(const struct hparams *hp, struct err *err)
{
    const struct {
        const char *what;
        uint32_t value, most;
    } ranges[] = {{"layers", hp->layers, MODEL_LAYERS_MAX}, {"hidden size", hp->hidden, 1u << 20}, {"heads", hp->heads, 4096},
                  {"key/value heads", hp->kv_heads, 4096}, {"head dim", hp->head_dim, 2 * MODEL_ROPE_PAIRS_MAX},
                  {"feed-forward size", hp->ffn, 1u << 22}, {"vocabulary", hp->vocab, 1u << 24},
                  {"training context", hp->context_train, 1u << 30}};
    for (size_t i = 0; i < sizeof ranges / sizeof ranges[0]; i++) {
        if (ranges[i].value == 0 || ranges[i].value > ranges[i].most) {
            return err_set(err, ERR_FORMAT, "%s: expected 1 to %u, got %u", ranges[i].what, ranges[i].most, ranges[i].value);
        }
    }
    for (uint32_t i = 0; i < hp->layers; i++) {
        if (hp->recurrent[i] && !state_shape_valid(&hp->state)) {
            return err_set(err, ERR_UNSUPPORTED,
                           "recurrent layer %u of %u heads, %u channels, %u taps, %u value heads each, dims %u and %u", i,
                           hp->state.heads, hp->state.channels, hp->state.taps, hp->state.values, hp->state.d_k, hp->state.d_v);
        }
    }
    if (hp->heads % hp->kv_heads != 0) {
        return err_set(err, ERR_FORMAT, "%u heads are no multiple of %u key/value heads", hp->heads, hp->kv_heads);
    }
    for (uint32_t s = 0; s < hp->rope_sets; s++) {
        if (hp->rope[s].rot == 0 || hp->rope[s].rot % 2 != 0 || hp->rope[s].rot > hp->head_dim || !(hp->rope[s].theta > 1.0)) {
            return err_set(err, ERR_FORMAT, "rope over %u of %u head elements with base %g", hp->rope[s].rot, hp->head_dim,
                           hp->rope[s].theta);
        }
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
    return 0;
}
