/* models/config.c - config.json -> hparams.
 *
 * Every key is known: one that is read, or one on the list of those that change no arithmetic of a forward.  Another key is an
 * error that names it, unless its value is null, false or empty. */
#include "models/arch.h"

#include <stdio.h>

/* read below, whatever the architecture */
static const char *const keys_common[] = {
    "attention_bias", "head_dim", "hidden_act", "hidden_size", "intermediate_size", "max_position_embeddings", "model_type",
    "num_attention_heads", "num_hidden_layers", "num_key_value_heads", "rms_norm_eps", "rope_parameters", "rope_scaling",
    "rope_theta", "partial_rotary_factor", "tie_word_embeddings", "vocab_size", NULL};

/* change nothing a forward computes (training, generation, bookkeeping); quantization is the file format's matter */
static const char *const keys_harmless[] = {
    "_attn_implementation", "_attn_implementation_autoset", "_commit_hash", "_from_model_config", "_name_or_path",
    "architectures", "attention_dropout", "attn_implementation", "attn_pdrop", "auto_map", "bad_words_ids", "begin_suppress_tokens",
    "boi_token_index", "bos_token_id", "cache_implementation", "chunk_size_feed_forward", "custom_pipelines", "decoder_start_token_id",
    "diversity_penalty", "do_sample", "dtype", "embd_pdrop", "encoder_no_repeat_ngram_size", "eoi_token_index", "eos_token_id",
    "finetuning_task", "hidden_dropout", "id2label", "image_token_index", "initializer_range", "is_llama_config", "label2id",
    "length_penalty", "max_length", "min_length", "mm_tokens_per_image", "model_name", "no_repeat_ngram_size", "num_beam_groups",
    "num_beams", "num_return_sequences", "output_attentions", "output_hidden_states", "pad_token_id", "prefix", "pretraining_tp",
    "problem_type", "quantization", "quantization_config", "repetition_penalty", "resid_pdrop", "return_dict", "router_jitter_noise",
    "sep_token_id", "task_specific_params", "temperature", "text_config", "tokenizer_class", "top_k", "top_p", "torch_dtype",
    "transformers.js_config", "transformers_version", "typical_p", "unk_token_id", "unsloth_fixed", "unsloth_version", "use_cache",
    "vision_config", NULL};
/* of an object around a text model's: how pictures become embeddings */
static const char *const keys_around[] = {
    "multimodal_projector_bias", "projector_hidden_act", "spatial_merge_size", "vision_feature_layer", NULL};

static bool listed(const char *const *list, struct str key)
{
    for (; list != NULL && *list != NULL; list++) {
        if (str_is(key, *list)) {
            return true;
        }
    }
    return false;
}

static bool says_nothing(yyjson_val *v)
{
    bool list = yyjson_is_arr(v) || yyjson_is_obj(v);
    return yyjson_is_null(v) || yyjson_is_false(v) || (list && yyjson_get_len(v) == 0);
}

static int check_object(yyjson_val *obj, const struct arch *arch, const char *const *more, const char *where, struct err *err)
{
    yyjson_obj_iter it;
    yyjson_obj_iter_init(obj, &it);
    for (yyjson_val *k = yyjson_obj_iter_next(&it); k != NULL; k = yyjson_obj_iter_next(&it)) {
        yyjson_val *v = yyjson_obj_iter_get_val(k);
        struct str key = json_str(k);
        if (listed(keys_common, key) || listed(keys_harmless, key) || listed(arch->config_keys, key) || listed(more, key) ||
            says_nothing(v)) {
            continue;
        }
        return err_set(err, ERR_UNSUPPORTED, "%s: '%.*s' is not known for %s and might change what the model computes", where,
                       STR_ARG(key), arch->name);
    }
    return 0;
}

int config_check_keys(const struct config_reader *cfg, const struct arch *arch, struct err *err)
{
    int rc = check_object(cfg->root, arch, NULL, cfg->where, err);
    if (rc == 0 && cfg->outer != cfg->root) {
        rc = check_object(cfg->outer, arch, keys_around, cfg->where, err);
    }
    return rc;
}

static void fact_text(yyjson_val *v, char *out, size_t n)
{
    struct str text = json_str(v);
    if (text.p != NULL) {
        snprintf(out, n, "'%.*s'", text.n < 40 ? (int)text.n : 40, text.p);
    } else if (yyjson_is_num(v)) {
        snprintf(out, n, "%g", yyjson_get_num(v));
    } else {
        snprintf(out, n, "%s", yyjson_is_true(v) ? "true" : yyjson_is_false(v) ? "false" : json_type_name(v));
    }
}

static int check_fact(const struct config_reader *cfg, const struct config_fact *fact, struct err *err)
{
    yyjson_val *v = yyjson_obj_get(cfg->root, fact->key);
    double number = yyjson_is_bool(v) ? (yyjson_is_true(v) ? 1.0 : 0.0) : yyjson_get_num(v);
    bool same = fact->text != NULL ? yyjson_is_str(v) && str_is(json_str(v), fact->text)
                                   : (yyjson_is_num(v) || yyjson_is_bool(v)) && number == fact->number;
    if (v == NULL || yyjson_is_null(v) || same) {
        return 0;
    }
    char got[64], want[64];
    fact_text(v, got, sizeof got);
    if (fact->text != NULL) {
        snprintf(want, sizeof want, "'%s'", fact->text);
    } else if (yyjson_is_bool(v)) {
        snprintf(want, sizeof want, "%s", fact->number != 0.0 ? "true" : "false");
    } else {
        snprintf(want, sizeof want, "%g", fact->number);
    }
    return err_set(err, ERR_UNSUPPORTED, "%s: %s %s is not supported: expected %s", cfg->where, fact->key, got, want);
}

int config_check_facts(const struct config_reader *cfg, const struct config_fact *facts, size_t count, struct err *err)
{
    int rc = 0;
    for (size_t i = 0; i < count && rc == 0; i++) {
        rc = check_fact(cfg, facts + i, err);
    }
    return rc;
}

static int read_act(struct hparams *hp, const struct config_reader *cfg, struct err *err)
{
    static const struct {
        const char *name;
        enum act act;
    } known[] = {{"silu", ACT_SILU}, {"swish", ACT_SILU}, {"gelu_pytorch_tanh", ACT_GELU_TANH}, {"gelu_new", ACT_GELU_TANH},
                 {"gelu_fast", ACT_GELU_TANH}, {"gelu", ACT_GELU_ERF}};
    struct str name = {0};
    int rc = json_get_str(cfg->root, "hidden_act", &name, cfg->where, err);
    if (rc == 0) {
        rc = json_get_str(cfg->root, "hidden_activation", &name, cfg->where, err);
    }
    if (rc != 0 || name.p == NULL) {
        return rc;
    }
    if (hp->own_act != NULL && str_is(name, hp->own_act)) {
        return 0;
    }
    for (size_t i = 0; i < sizeof known / sizeof known[0] && hp->own_act == NULL; i++) {
        if (str_is(name, known[i].name)) {
            hp->act = known[i].act;
            return 0;
        }
    }
    return err_set(err, ERR_UNSUPPORTED, "%s: hidden_act '%.*s' is not supported", cfg->where, STR_ARG(name));
}

int config_read_flag(struct hparams *hp, const struct config_reader *cfg, const char *key, uint32_t flags, struct err *err)
{
    bool on = (hp->flags & flags) == flags;
    int rc = json_get_bool(cfg->root, key, &on, cfg->where, err);
    hp->flags = on ? hp->flags | flags : hp->flags & ~flags;
    return rc;
}

/* intermediate_size: one number, or one a layer. */
static int read_ffn(struct hparams *hp, const struct config_reader *cfg, struct err *err)
{
    yyjson_val *list = yyjson_obj_get(cfg->root, "intermediate_size");
    if (!yyjson_is_arr(list)) {
        return json_get_u32(cfg->root, "intermediate_size", &hp->ffn, cfg->where, err);
    }
    if (yyjson_arr_size(list) != hp->layers || hp->layers > MODEL_LAYERS_MAX) {
        return err_set(err, ERR_FORMAT, "%s: intermediate_size: expected a number or a list of %u, got a list of %zu", cfg->where, hp->layers,
                       yyjson_arr_size(list));
    }
    for (uint32_t i = 0; i < hp->layers; i++) {
        yyjson_val *v = yyjson_arr_get(list, i);
        if (!yyjson_is_uint(v) || yyjson_get_uint(v) == 0 || yyjson_get_uint(v) > UINT32_MAX) {
            return err_set(err, ERR_FORMAT, "%s: intermediate_size[%u]: expected a number above 0", cfg->where, i);
        }
        hp->shape[i].ffn = (uint32_t)yyjson_get_uint(v);
        hp->ffn = hp->shape[0].ffn;
    }
    return 0;
}

int config_read_common(struct hparams *hp, const struct config_reader *cfg, struct err *err)
{
    const struct {
        const char *key;
        uint32_t *out;
    } sizes[] = {{"hidden_size", &hp->hidden}, {"num_hidden_layers", &hp->layers}, {"num_attention_heads", &hp->heads},
                 {"num_key_value_heads", &hp->kv_heads}, {"head_dim", &hp->head_dim},
                 {"vocab_size", &hp->vocab}, {"max_position_embeddings", &hp->context_train}};
    int rc = 0;
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0] && rc == 0; i++) {
        rc = json_get_u32(cfg->root, sizes[i].key, sizes[i].out, cfg->where, err);
    }
    if (rc == 0) {
        rc = read_ffn(hp, cfg, err);
    }
    if (rc == 0) {
        rc = json_get_f32(cfg->root, "rms_norm_eps", &hp->eps, cfg->where, err);
    }
    if (rc == 0) {
        rc = read_act(hp, cfg, err);
    }
    if (rc == 0) {
        rc = config_read_flag(hp, cfg, "tie_word_embeddings", HP_TIED, err);
    }
    if (rc == 0 && cfg->outer != cfg->root) {
        struct config_reader outer = {cfg->outer, cfg->outer, cfg->where};
        rc = config_read_flag(hp, &outer, "tie_word_embeddings", HP_TIED, err);
    }
    if (rc == 0) {
        rc = config_read_flag(hp, cfg, "attention_bias", HP_QKV_BIAS | HP_O_BIAS, err);
    }
    if (rc == 0) {
        rc = config_read_flag(hp, cfg, "mlp_bias", HP_MLP_BIAS, err);
    }
    return rc;
}

int config_read_layer_types(struct hparams *hp, const struct config_reader *cfg, bool *known, struct err *err)
{
    yyjson_val *types = yyjson_obj_get(cfg->root, "layer_types");
    *known = yyjson_is_arr(types);
    if (types == NULL || yyjson_is_null(types)) {
        return 0;
    }
    if (!*known || yyjson_arr_size(types) != hp->layers || hp->layers > MODEL_LAYERS_MAX) {
        return err_set(err, ERR_FORMAT, "%s: layer_types: expected a list of %u names, got %s of %zu", cfg->where, hp->layers,
                       json_type_name(types), yyjson_arr_size(types));
    }
    yyjson_arr_iter it;
    yyjson_arr_iter_init(types, &it);
    for (uint32_t i = 0; i < hp->layers; i++) {
        struct str name = json_str(yyjson_arr_iter_next(&it));
        hp->sliding[i] = str_is(name, "sliding_attention");
        hp->recurrent[i] = hp->state.anchor != 0 && (str_is(name, "linear_attention") || str_is(name, "conv"));
        if (!hp->sliding[i] && !hp->recurrent[i] && !str_is(name, "full_attention")) {
            return err_set(err, ERR_UNSUPPORTED, "%s: layer_types: '%.*s' is not supported", cfg->where, STR_ARG(name));
        }
    }
    return 0;
}

/* ---- rope ---- */

static const char *const rope_keys[] = {
    "rope_type", "type", "rope_theta", "factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings",
    "beta_fast", "beta_slow", "attention_factor", "mscale", "mscale_all_dim", "truncate", "long_factor", "short_factor",
    "partial_rotary_factor", "finetuned", NULL};
/* which of several positions a pair turns by: in text all are the same */
static const char *const rope_keys_sections[] = {"mrope_section", "mrope_interleaved", NULL};

static int rope_check_keys(const struct rope_params *p, yyjson_val *obj, const char *where, struct err *err)
{
    yyjson_obj_iter it;
    yyjson_obj_iter_init(obj, &it);
    for (yyjson_val *k = yyjson_obj_iter_next(&it); k != NULL; k = yyjson_obj_iter_next(&it)) {
        bool known = listed(rope_keys, json_str(k)) || (p->sections && listed(rope_keys_sections, json_str(k)));
        if (!known && !yyjson_is_null(yyjson_obj_iter_get_val(k))) {
            return err_set(err, ERR_UNSUPPORTED, "%s: rope parameter '%.*s' is not known", where, STR_ARG(json_str(k)));
        }
    }
    return 0;
}

static int rope_read_kind(struct rope_params *p, yyjson_val *obj, const char *where, struct err *err)
{
    static const struct {
        const char *name;
        enum rope_kind kind;
    } known[] = {{"default", ROPE_PLAIN}, {"linear", ROPE_LINEAR}, {"llama3", ROPE_LLAMA3}, {"yarn", ROPE_YARN},
                 {"longrope", ROPE_LONGROPE}, {"su", ROPE_LONGROPE}, {"proportional", ROPE_PROPORTIONAL}};
    struct str name = STR("default");
    int rc = json_get_str(obj, "type", &name, where, err);
    if (rc == 0) {
        rc = json_get_str(obj, "rope_type", &name, where, err);
    }
    for (size_t i = 0; i < sizeof known / sizeof known[0] && rc == 0; i++) {
        if (str_is(name, known[i].name)) {
            p->kind = known[i].kind;
            return 0;
        }
    }
    if (rc == 0 && str_is(name, "dynamic")) {
        return err_set(err, ERR_UNSUPPORTED,
                       "%s: rope_type 'dynamic' (NTK) is refused: its angles depend on the length of the whole text", where);
    }
    return rc != 0 ? rc : err_set(err, ERR_UNSUPPORTED, "%s: rope_type '%.*s' is not supported", where, STR_ARG(name));
}

static int rope_read_factors(yyjson_val *obj, const char *key, float *out, uint32_t *count, const char *where, struct err *err)
{
    yyjson_val *list = yyjson_obj_get(obj, key);
    size_t n = yyjson_arr_size(list);
    if (n == 0 || n > MODEL_ROPE_PAIRS_MAX) {
        return err_set(err, ERR_FORMAT, "%s: %s: expected a list of 1 to %u numbers, got %s of %zu", where, key,
                       (unsigned)MODEL_ROPE_PAIRS_MAX, json_type_name(list), n);
    }
    yyjson_arr_iter it;
    yyjson_arr_iter_init(list, &it);
    for (size_t i = 0; i < n; i++) {
        yyjson_val *v = yyjson_arr_iter_next(&it);
        out[i] = (float)yyjson_get_num(v);
        if (!yyjson_is_num(v) || !(out[i] > 0.0f) || out[i] > 1e30f) {
            return err_set(err, ERR_FORMAT, "%s: %s[%zu]: expected a number above 0", where, key, i);
        }
    }
    if (*count != 0 && *count != n) {
        return err_set(err, ERR_FORMAT, "%s: long_factor and short_factor have %u and %zu entries", where, *count, n);
    }
    *count = (uint32_t)n;
    return 0;
}

static int rope_read_object(struct rope_params *p, yyjson_val *obj, const char *where, struct err *err)
{
    const struct {
        const char *key;
        double *out;
    } numbers[] = {{"rope_theta", &p->theta}, {"factor", &p->factor}, {"low_freq_factor", &p->low_freq},
                   {"high_freq_factor", &p->high_freq}, {"beta_fast", &p->beta_fast}, {"beta_slow", &p->beta_slow},
                   {"attention_factor", &p->attention_factor}, {"mscale", &p->mscale}, {"mscale_all_dim", &p->mscale_all}};
    int rc = rope_check_keys(p, obj, where, err);
    if (rc == 0) {
        rc = rope_read_kind(p, obj, where, err);
    }
    for (size_t i = 0; i < sizeof numbers / sizeof numbers[0] && rc == 0; i++) {
        rc = json_get_f64(obj, numbers[i].key, numbers[i].out, where, err);
    }
    if (rc == 0) {
        rc = json_get_u32(obj, "original_max_position_embeddings", &p->original, where, err);
    }
    if (rc == 0) {
        rc = json_get_bool(obj, "truncate", &p->truncate, where, err);
    }
    if (rc == 0 && p->kind == ROPE_LONGROPE) {
        rc = rope_read_factors(obj, "short_factor", p->factors_short, &p->factor_count, where, err);
    }
    if (rc == 0 && p->kind == ROPE_LONGROPE) {
        rc = rope_read_factors(obj, "long_factor", p->factors_long, &p->factor_count, where, err);
    }
    return rc;
}

int config_read_rope(struct hparams *hp, uint32_t set, const struct config_reader *cfg, const char *part, struct err *err)
{
    struct rope_params *p = &hp->rope[set];
    double partial = 1.0;
    int rc = json_get_f64(cfg->root, "rope_theta", &p->theta, cfg->where, err);
    if (rc == 0) {
        rc = json_get_f64(cfg->root, "partial_rotary_factor", &partial, cfg->where, err);
    }
    yyjson_val *obj = yyjson_obj_get(cfg->root, "rope_parameters");
    if (obj == NULL || yyjson_is_null(obj)) {
        obj = yyjson_obj_get(cfg->root, "rope_scaling");
    }
    if (part != NULL) {
        obj = yyjson_obj_get(obj, part);
    }
    if (rc == 0 && obj != NULL && !yyjson_is_null(obj)) {
        if (!yyjson_is_obj(obj)) {
            return err_set(err, ERR_FORMAT, "%s: rope parameters: expected an object, got %s", cfg->where, json_type_name(obj));
        }
        rc = rope_read_object(p, obj, cfg->where, err);
        if (rc == 0) {
            rc = json_get_f64(obj, "partial_rotary_factor", &partial, cfg->where, err);
        }
    }
    if (rc != 0) {
        return rc;
    }
    if (!(partial > 0.0) || partial > 1.0) {
        return err_set(err, ERR_FORMAT, "%s: partial_rotary_factor: expected above 0 to 1, got %g", cfg->where, partial);
    }
    uint32_t head = p->head ? p->head : hp->head_dim ? hp->head_dim : hp->heads ? hp->hidden / hp->heads : 0;
    p->rot = (uint32_t)((double)head * partial);
    if (p->kind == ROPE_PROPORTIONAL) { /* pairs as of the whole head, the first of them with an angle */
        p->rot = head;
        p->turned = (uint32_t)((double)head * partial / 2.0);
    }
    return 0;
}
