/* models/defaults.c - what the model's own files say about sampling and about ids that end a text. */
#include "models/arch.h"

#include "base/mem.h"

enum { EOS_MAX = 64 };

static void params_neutral(struct sample_params *out)
{
    *out = (struct sample_params){.temperature = 0.0f, .typical_p = 1.0f, .top_p = 1.0f, .repetition_penalty = 1.0f};
    for (uint8_t i = 0; i < FILTER_COUNT; i++) {
        out->order[i] = i;
    }
}

static bool finite_number(yyjson_val *v)
{
    return yyjson_is_num(v) && __builtin_isfinite(yyjson_get_num(v));
}

static void take_f32(yyjson_val *obj, const char *key, float *out)
{
    yyjson_val *v = yyjson_obj_get(obj, key);
    *out = finite_number(v) ? (float)yyjson_get_num(v) : *out;
}

/* generation_config.json counts when do_sample is true; what it leaves out has the values transformers gives it. */
static bool defaults_hf(const struct model *m, struct sample_params *out)
{
    yyjson_val *gen = hfdir_generation_config(m->hfdir);
    if (!yyjson_is_true(yyjson_obj_get(gen, "do_sample"))) {
        return false;
    }
    out->temperature = 1.0f;
    out->top_k = 50;
    yyjson_val *k = yyjson_obj_get(gen, "top_k");
    out->top_k = yyjson_is_uint(k) && yyjson_get_uint(k) <= UINT32_MAX ? (uint32_t)yyjson_get_uint(k) : out->top_k;
    take_f32(gen, "temperature", &out->temperature);
    take_f32(gen, "top_p", &out->top_p);
    take_f32(gen, "min_p", &out->min_p);
    take_f32(gen, "typical_p", &out->typical_p);
    take_f32(gen, "repetition_penalty", &out->repetition_penalty);
    return true;
}

static bool defaults_gguf(const struct model *m, struct sample_params *out)
{
    const struct {
        const char *key;
        float *out;
    } numbers[] = {{"general.sampling.temp", &out->temperature}, {"general.sampling.top_p", &out->top_p},
                   {"general.sampling.min_p", &out->min_p}, {"general.sampling.xtc_probability", &out->xtc_probability},
                   {"general.sampling.xtc_threshold", &out->xtc_threshold},
                   {"general.sampling.penalty_repeat", &out->repetition_penalty}};
    bool named = false;
    int64_t k = 0;
    out->temperature = 0.8f;
    out->top_p = 0.95f;
    for (size_t i = 0; i < sizeof numbers / sizeof numbers[0]; i++) {
        float v = *numbers[i].out;
        bool there = gguf_value_find(m->gguf, numbers[i].key) != NULL;
        if (there && gguf_get_f32(m->gguf, numbers[i].key, &v, NULL) == 0 && __builtin_isfinite(v)) {
            *numbers[i].out = v;
            named = true;
        }
    }
    if (gguf_value_find(m->gguf, "general.sampling.top_k") != NULL &&
        gguf_get_i64(m->gguf, "general.sampling.top_k", &k, NULL) == 0) {
        out->top_k = k > 0 && k <= UINT32_MAX ? (uint32_t)k : 0;
        named = true;
    }
    return named;
}

bool model_default_sampling(const struct model *m, struct sample_params *out)
{
    params_neutral(out);
    return m->gguf != NULL ? defaults_gguf(m, out) : defaults_hf(m, out);
}

/* ---- ids that end a text ---- */

static void eos_add(struct model *m, int64_t id)
{
    if (id < 0 || id >= (int64_t)m->hp.vocab || m->eos_count == EOS_MAX) {
        return;
    }
    for (uint32_t i = 0; i < m->eos_count; i++) {
        if (m->eos_ids[i] == (uint32_t)id) {
            return;
        }
    }
    m->eos_ids[m->eos_count++] = (uint32_t)id;
}

static void eos_add_json(struct model *m, yyjson_val *v)
{
    if (yyjson_is_int(v)) {
        eos_add(m, yyjson_get_sint(v));
    }
    yyjson_arr_iter it;
    if (yyjson_arr_iter_init(v, &it)) {
        for (yyjson_val *x = yyjson_arr_iter_next(&it); x != NULL; x = yyjson_arr_iter_next(&it)) {
            eos_add(m, yyjson_is_int(x) ? yyjson_get_sint(x) : -1);
        }
    }
}

static void eos_hf(struct model *m)
{
    yyjson_val *config = hfdir_config(m->hfdir), *gen = hfdir_generation_config(m->hfdir);
    eos_add_json(m, yyjson_obj_get(gen, "eos_token_id"));
    if (m->eos_count == 0) {
        eos_add_json(m, yyjson_obj_get(config, "eos_token_id"));
    }
    if (m->eos_count == 0) {
        eos_add_json(m, yyjson_obj_get(yyjson_obj_get(config, "text_config"), "eos_token_id"));
    }
}

/* GGUF names one id, or two; chat formats end turns with others, known by their text among the control tokens. */
static void eos_gguf(struct model *m)
{
    static const char *const keys[] = {"tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id",
                                       "tokenizer.ggml.eom_token_id"};
    static const char *const texts[] = {"<|eot_id|>", "<|im_end|>", "<|end|>", "<end_of_turn>", "<|eom_id|>", "<|endoftext|>",
                                        "<|end_of_text|>", "<|return|>", "<|call|>", "<EOT>"};
    enum { TOKEN_CONTROL = 3, TOKEN_USER = 4 };
    for (size_t i = 0; i < sizeof keys / sizeof keys[0]; i++) {
        int64_t id = -1;
        if (gguf_value_find(m->gguf, keys[i]) != NULL && gguf_get_i64(m->gguf, keys[i], &id, NULL) == 0) {
            eos_add(m, id);
        }
    }
    const struct gguf_value *tokens = gguf_value_find(m->gguf, "tokenizer.ggml.tokens");
    const struct gguf_value *types = gguf_value_find(m->gguf, "tokenizer.ggml.token_type");
    if (tokens == NULL || types == NULL || tokens->type != GGUF_ARRAY || tokens->item_type != GGUF_STRING ||
        types->type != GGUF_ARRAY) {
        return;
    }
    struct str text = {0};
    uint64_t at = 0;
    for (uint64_t id = 0; id < tokens->count && gguf_string_next(tokens, &at, &text); id++) {
        int64_t type = 0;
        if (text.n < 3 || text.n > 16 || text.p[0] != '<' || gguf_array_i64(types, id, &type) != 0 ||
            (type != TOKEN_CONTROL && type != TOKEN_USER)) {
            continue;
        }
        for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++) {
            if (str_is(text, texts[i])) {
                eos_add(m, (int64_t)id);
            }
        }
    }
}

int model_read_eos(struct model *m, struct err *err)
{
    m->eos_ids = mem_try_zero(EOS_MAX, sizeof *m->eos_ids);
    if (m->eos_ids == NULL) {
        return err_nomem(err, "end ids", EOS_MAX * sizeof *m->eos_ids);
    }
    if (m->gguf != NULL) {
        eos_gguf(m);
    } else {
        eos_hf(m);
    }
    return 0;
}

const uint32_t *model_eos_ids(const struct model *m, uint32_t *count)
{
    *count = m->eos_count;
    return m->eos_ids;
}
