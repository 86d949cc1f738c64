/* server/fields.c - JSON bodies read by lists of fields: types, ranges, unknown names, and a pointer to what is wrong. */
#include "server/api_fields.h"

#include "base/mem.h"
#include "server/gen.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>

enum { STOPS_MAX = 16, STOP_IDS_MAX = 1024, BIASES_MAX = 4096, IDS_MAX = 1 << 22, IGNORED_MAX = 2048, PROMPT_TOP_MAX = 20 };

int api_fail(struct api_error *e, int status, const char *code, const char *param, const char *fmt, ...)
{
    va_list ap;
    if (e->status)
        return -1;
    e->status = status;
    e->code = code;
    snprintf(e->param, sizeof e->param, "%s", param);
    va_start(ap, fmt);
    vsnprintf(e->text, sizeof e->text, fmt, ap);
    va_end(ap);
    return -1;
}

/* The field that an error of the library is about, by how its text begins; what is about none of these is about the text it got. */
static const char *field_of(const struct rh_error *err, const char *input)
{
    static const struct {
        const char *begins, *field;
    } list[] = {{"kv:", "/kv"}, {"kv start:", "/kv_start"}, {"propose:", "/propose"}, {"a draft was asked", "/propose"}, {"depth of proposals", "/propose_depth"},
                {"output:", "/output"}, {"dimensions:", "/dimensions"}, {"a call", "/tool_choice"}, {"n:", "/n"}, {"top logprobs", "/top_logprobs"},
                {"logit bias", "/logit_bias"}, {"stop", "/stop"}, {"embeddings:", ""}};
    for (size_t i = 0; i < sizeof list / sizeof *list; i++)
        if (str_starts(str_of(err->text), str_of(list[i].begins)))
            return list[i].field;
    return err->code == RH_ERR_LIMIT || err->code == RH_ERR_ARGUMENT || err->code == RH_ERR_TEMPLATE || err->code == RH_ERR_FORMAT ? input : "";
}

int api_fail_rh(struct api_error *e, const struct rh_error *err, const char *input)
{
    static const struct {
        int rh, status;
        const char *code;
    } list[] = {{RH_ERR_LIMIT, 400, "context_length_exceeded"}, {RH_ERR_BUSY, 429, "queue_full"}, {RH_ERR_CANCELLED, 503, "shutting_down"},
                {RH_ERR_TEMPLATE, 400, "template_error"}, {RH_ERR_UNSUPPORTED, 400, "unsupported"}, {RH_ERR_NOT_FOUND, 400, NULL}};
    size_t i = 0, n = sizeof list / sizeof *list;
    while (i < n && list[i].rh != err->code)
        i++;
    if (err->code == RH_ERR_BUSY)
        e->retry_s = 1;
    return api_fail(e, i < n ? list[i].status : err_http_status(err->code), i < n ? list[i].code : NULL, field_of(err, input), "%s",
                    err->text[0] ? err->text : err_text(err->code));
}

char *pointer_at(char out[256], const char *pointer, const char *key)
{
    char copy[256];
    snprintf(copy, sizeof copy, "%s", pointer);
    snprintf(out, 256, "%.180s/%.70s", copy, key);
    return out;
}

char *pointer_index(char out[256], const char *pointer, size_t index)
{
    char key[24];
    snprintf(key, sizeof key, "%zu", index);
    return pointer_at(out, pointer, key);
}

int field_type(struct reader *r, yyjson_val *v, const char *pointer, const char *expected)
{
    return api_fail(r->err, 400, "invalid_type", pointer, "%s: expected %s, got %s", pointer, expected, json_type_name(v));
}

/* ---- plain kinds ---- */

static int read_number(struct reader *r, const struct field *f, yyjson_val *v, const char *pointer)
{
    void *to = (char *)r->p + f->offset;
    double d = yyjson_get_num(v);
    bool whole = yyjson_is_int(v) || (yyjson_is_real(v) && d == floor(d) && fabs(d) < 9e15);
    if (!yyjson_is_num(v) || (f->kind != FIELD_F32 && !whole))
        return field_type(r, v, pointer, f->kind == FIELD_F32 ? "a number" : "a whole number");
    if (!(d >= f->low && d <= f->high))
        return api_fail(r->err, 400, "invalid_value", pointer, "%s: expected %.10g to %.10g, got %.10g", pointer, f->low, f->high, d);
    if (f->kind == FIELD_F32)
        *(float *)to = (float)d;
    else if (f->kind == FIELD_U32)
        *(uint32_t *)to = (uint32_t)d;
    else
        *(int64_t *)to = (int64_t)d;
    return 0;
}

static int read_field(struct reader *r, const struct field *f, yyjson_val *v, const char *pointer)
{
    switch (f->kind) {
    case FIELD_BOOL:
        if (!yyjson_is_bool(v))
            return field_type(r, v, pointer, "true or false");
        *(bool *)((char *)r->p + f->offset) = yyjson_get_bool(v);
        return 0;
    case FIELD_CALL:
        return f->read(r, v, pointer);
    case FIELD_SILENT:
        return 0;
    case FIELD_REFUSED:
        return api_fail(r->err, 400, "unsupported_parameter", pointer, "%s is not supported", pointer);
    default:
        return read_number(r, f, v, pointer);
    }
}

static int unknown(struct reader *r, struct str key, const char *pointer)
{
    if (r->s->cfg->strict)
        return api_fail(r->err, 400, "unknown_parameter", pointer, "%s is not known (the server is strict)", pointer);
    if (r->ignored.n + key.n + 2 > IGNORED_MAX)
        return 0;
    if (r->ignored.n)
        buf_z(&r->ignored, ",");
    for (const char *p = pointer + 1; *p; p++) /* it becomes a header */
        buf_char(&r->ignored, *p > 32 && *p < 127 ? *p : '_');
    return 0;
}

int fields_read(struct reader *r, yyjson_val *obj, const char *pointer, const struct field *list, size_t count)
{
    uint64_t seen[4] = {0};
    yyjson_obj_iter it = yyjson_obj_iter_with(obj);
    char at[256];
    if (!yyjson_is_obj(obj))
        return field_type(r, obj, pointer[0] ? pointer : "the body", "an object");
    for (yyjson_val *k; (k = yyjson_obj_iter_next(&it));) {
        yyjson_val *v = yyjson_obj_iter_get_val(k);
        size_t i = 0;
        pointer_at(at, pointer, yyjson_get_str(k));
        while (i < count && !str_is(json_str(k), list[i].name))
            i++;
        if (i == count) {
            if (unknown(r, json_str(k), at))
                return -1;
            continue;
        }
        if (seen[i / 64] >> i % 64 & 1)
            return api_fail(r->err, 400, "duplicate_parameter", at, "%s is there twice", at);
        seen[i / 64] |= 1ull << i % 64;
        if (!yyjson_is_null(v) && read_field(r, &list[i], v, at))
            return -1;
    }
    return 0;
}

/* ---- fields with a shape of their own ---- */

static int no_memory(struct reader *r)
{
    return api_fail(r->err, 503, NULL, "", "out of memory");
}

int read_model(struct reader *r, yyjson_val *v, const char *pointer)
{
    if (!yyjson_is_str(v))
        return field_type(r, v, pointer, "a string");
    r->p->model = json_str(v);
    if (r->s->cfg->any_model || model_is_served(r->s, r->p->model))
        return 0;
    return api_fail(r->err, 404, "model_not_found", pointer, "%s: '%.*s' is not served here; '%.200s' is (GET /v1/models)", pointer,
                    STR_ARG(r->p->model), r->s->cfg->model_id);
}

bool model_is_served(const struct server *s, struct str name)
{
    if (str_ends(name, STR(":latest")) && !str_is(name, s->cfg->model_id)) /* Ollama's clients add it */
        name.n -= 7;
    bool found = str_is(name, s->cfg->model_id);
    for (size_t i = 0; i < s->cfg->alias_count; i++)
        found |= str_is(name, s->cfg->aliases[i]);
    return found;
}

static int read_text(struct reader *r, yyjson_val *v, const char *pointer, size_t max, struct str *out)
{
    if (!yyjson_is_str(v))
        return field_type(r, v, pointer, "a string");
    if (yyjson_get_len(v) > max || memchr(yyjson_get_str(v), 0, yyjson_get_len(v)))
        return api_fail(r->err, 400, "invalid_value", pointer, "%s: expected at most %zu bytes and no NUL", pointer, max);
    *out = json_str(v);
    return 0;
}

int read_session(struct reader *r, yyjson_val *v, const char *pointer)
{
    return read_text(r, v, pointer, 256, &r->p->session);
}

int read_salt(struct reader *r, yyjson_val *v, const char *pointer)
{
    return read_text(r, v, pointer, 128, &r->p->salt);
}

int read_propose(struct reader *r, yyjson_val *v, const char *pointer)
{
    struct str text = {0};
    if (read_text(r, v, pointer, 64, &text))
        return -1;
    r->p->o.propose = text.p;
    return 0;
}

int read_kv(struct reader *r, yyjson_val *v, const char *pointer)
{
    struct str text = {0};
    if (read_text(r, v, pointer, 64, &text))
        return -1;
    r->p->o.kv = text.p;
    return 0;
}

int read_truncation(struct reader *r, yyjson_val *v, const char *pointer)
{
    struct str text = {0};
    if (read_text(r, v, pointer, 64, &text))
        return -1;
    r->p->o.truncate = str_is(text, "auto");
    if (r->p->o.truncate || str_is(text, "disabled"))
        return 0;
    return api_fail(r->err, 400, "invalid_value", pointer, "%s: expected auto or disabled, got '%.*s'", pointer, STR_ARG(text));
}

int read_kv_start(struct reader *r, yyjson_val *v, const char *pointer)
{
    if (!yyjson_is_uint(v) || yyjson_get_uint(v) > UINT32_MAX)
        return api_fail(r->err, 400, "invalid_value", pointer, "%s: expected a whole number", pointer);
    r->p->o.kv_start_given = true;
    r->p->o.kv_start = (uint32_t)yyjson_get_uint(v);
    return 0;
}

int read_prompt_logprobs(struct reader *r, yyjson_val *v, const char *pointer)
{
    if (!yyjson_is_uint(v) || yyjson_get_uint(v) > PROMPT_TOP_MAX)
        return api_fail(r->err, 400, "invalid_value", pointer, "%s: expected a whole number from 0 to %d", pointer, PROMPT_TOP_MAX);
    r->p->o.prompt_logprobs = r->p->show_prompt_logprobs = true;
    r->p->o.prompt_top_logprobs = (uint32_t)yyjson_get_uint(v);
    return 0;
}

int read_variables(struct reader *r, yyjson_val *v, const char *pointer)
{
    if (!yyjson_is_obj(v))
        return field_type(r, v, pointer, "an object");
    r->p->variables = v;
    return 0;
}

int read_seed(struct reader *r, yyjson_val *v, const char *pointer)
{
    if (!yyjson_is_int(v))
        return field_type(r, v, pointer, "a whole number");
    r->p->has_seed = true;
    r->p->seed = yyjson_is_uint(v) ? yyjson_get_uint(v) : (uint64_t)yyjson_get_sint(v);
    return 0;
}

int read_stops(struct reader *r, yyjson_val *v, const char *pointer)
{
    size_t i, n, count = yyjson_is_str(v) ? 1 : yyjson_arr_size(v);
    yyjson_val *item;
    char at[256];
    if (!yyjson_is_str(v) && !yyjson_is_arr(v))
        return field_type(r, v, pointer, "a string or an array of strings");
    if (count > STOPS_MAX)
        return api_fail(r->err, 400, "invalid_value", pointer, "%s: at most %d, got %zu", pointer, STOPS_MAX, count);
    struct rh_text *list = arena_try_array(&r->p->arena, count + 1, sizeof *list);
    if (!list)
        return no_memory(r);
    if (yyjson_is_str(v))
        list[0] = (struct rh_text){yyjson_get_str(v), yyjson_get_len(v)};
    yyjson_arr_foreach(v, i, n, item) {
        if (!yyjson_is_str(item))
            return field_type(r, item, pointer_index(at, pointer, i), "a string");
        list[i] = (struct rh_text){yyjson_get_str(item), yyjson_get_len(item)};
    }
    for (i = 0; i < count; i++)
        if (list[i].n == 0)
            return api_fail(r->err, 400, "invalid_value", pointer, "%s: an empty stop string", pointer);
    r->p->stops = list;
    r->p->stop_count = count;
    return 0;
}

int read_ids(struct reader *r, yyjson_val *v, const char *pointer, uint32_t **ids, size_t *n_out)
{
    size_t i, n;
    yyjson_val *item;
    char at[256];
    if (!yyjson_is_arr(v))
        return field_type(r, v, pointer, "an array of token ids");
    if (yyjson_arr_size(v) > IDS_MAX)
        return api_fail(r->err, 400, "invalid_value", pointer, "%s: at most %d ids, got %zu", pointer, IDS_MAX, yyjson_arr_size(v));
    *ids = arena_try_array(&r->p->arena, yyjson_arr_size(v) + 1, sizeof **ids);
    if (!*ids)
        return no_memory(r);
    yyjson_arr_foreach(v, i, n, item) {
        if (!yyjson_is_uint(item) || yyjson_get_uint(item) >= r->s->vocab)
            return api_fail(r->err, 400, "invalid_value", pointer_index(at, pointer, i), "%s: expected a token id below %u", at, r->s->vocab);
        (*ids)[i] = (uint32_t)yyjson_get_uint(item);
    }
    *n_out = n;
    return 0;
}

static int read_input(struct reader *r, yyjson_val *v, const char *pointer, struct gen_input *in)
{
    if (yyjson_is_str(v)) {
        in->text = (struct rh_text){yyjson_get_str(v), yyjson_get_len(v)};
        return 0;
    }
    uint32_t *ids;
    if (read_ids(r, v, pointer, &ids, &in->id_count))
        return -1;
    in->ids = ids;
    return in->id_count ? 0 : api_fail(r->err, 400, "invalid_value", pointer, "%s: expected at least one token", pointer);
}

int read_inputs(struct reader *r, yyjson_val *v, const char *pointer, uint32_t most, struct gen_input **list, uint32_t *count)
{
    bool one = !yyjson_is_arr(v) || yyjson_is_num(yyjson_arr_get_first(v));
    size_t i, n = one ? 1 : yyjson_arr_size(v);
    yyjson_val *item;
    char at[256];
    if (n == 0 || n > most)
        return api_fail(r->err, 400, "invalid_value", pointer, "%s: expected 1 to %u texts, got %zu", pointer, most, n);
    *list = arena_try_array(&r->p->arena, n, sizeof **list);
    if (!*list)
        return no_memory(r);
    *count = (uint32_t)n;
    r->p->input_list = !one;
    if (one)
        return read_input(r, v, pointer, *list);
    yyjson_arr_foreach(v, i, n, item)
        if (read_input(r, item, pointer_index(at, pointer, i), &(*list)[i]))
            return -1;
    return 0;
}

int read_stop_ids(struct reader *r, yyjson_val *v, const char *pointer)
{
    if (yyjson_arr_size(v) > STOP_IDS_MAX)
        return api_fail(r->err, 400, "invalid_value", pointer, "%s: at most %d, got %zu", pointer, STOP_IDS_MAX, yyjson_arr_size(v));
    return read_ids(r, v, pointer, &r->p->stop_ids, &r->p->stop_id_count);
}

int read_bias(struct reader *r, yyjson_val *v, const char *pointer)
{
    yyjson_obj_iter it = yyjson_obj_iter_with(v);
    size_t n = 0;
    char at[256];
    if (!yyjson_is_obj(v))
        return field_type(r, v, pointer, "an object of token ids and numbers");
    if (yyjson_obj_size(v) > BIASES_MAX)
        return api_fail(r->err, 400, "invalid_value", pointer, "%s: at most %d entries, got %zu", pointer, BIASES_MAX, yyjson_obj_size(v));
    struct rh_bias *list = arena_try_array(&r->p->arena, yyjson_obj_size(v) + 1, sizeof *list);
    if (!list)
        return no_memory(r);
    for (yyjson_val *k; (k = yyjson_obj_iter_next(&it));) {
        yyjson_val *value = yyjson_obj_iter_get_val(k);
        uint64_t id;
        pointer_at(at, pointer, yyjson_get_str(k));
        if (!str_to_u64(json_str(k), &id) || id >= r->s->vocab)
            return api_fail(r->err, 400, "invalid_value", at, "%s: expected a token id below %u", at, r->s->vocab);
        double d = yyjson_get_num(value);
        if (!yyjson_is_num(value) || !(d >= -100 && d <= 100))
            return api_fail(r->err, 400, "invalid_value", at, "%s: expected a number from -100 to 100", at);
        for (size_t i = 0; i < n; i++)
            if (list[i].id == id)
                return api_fail(r->err, 400, "invalid_value", at, "%s is there twice", at);
        /* -100 bans the token, as this API has it */
        list[n++] = (struct rh_bias){(uint32_t)id, d <= -100 ? -__builtin_inff() : (float)d};
    }
    r->p->sampling.biases = list;
    r->p->sampling.bias_count = n;
    return 0;
}

int read_top_k(struct reader *r, yyjson_val *v, const char *pointer)
{
    int64_t k = yyjson_is_sint(v) ? yyjson_get_sint(v) : (int64_t)yyjson_get_uint(v);
    if (!yyjson_is_int(v))
        return field_type(r, v, pointer, "a whole number");
    if (k < -1 || k > UINT32_MAX)
        return api_fail(r->err, 400, "invalid_value", pointer, "%s: expected -1 or 0 (off) or more, got %lld", pointer, (long long)k);
    r->p->sampling.top_k = k < 0 ? 0 : (uint32_t)k;
    return 0;
}

/* As in vLLM the lower value is served first; the library has the higher one first. */
int read_priority(struct reader *r, yyjson_val *v, const char *pointer)
{
    int64_t n = yyjson_get_sint(v);
    if (!yyjson_is_int(v) || n < -1000000 || n > 1000000)
        return api_fail(r->err, 400, "invalid_value", pointer, "%s: expected a whole number from -1000000 to 1000000", pointer);
    r->p->o.priority = (int)-n;
    return 0;
}

int read_stream_options(struct reader *r, yyjson_val *v, const char *pointer)
{
    static const struct field list[] = {{"include_usage", FIELD_BOOL, 0, 0, offsetof(struct params, include_usage), NULL},
                                        {"include_obfuscation", FIELD_SILENT, 0, 0, 0, NULL},
                                        {"continuous_usage_stats", FIELD_REFUSED, 0, 0, 0, NULL}};
    return fields_read(r, v, pointer, list, FIELDS_COUNT(list));
}

int read_response_format(struct reader *r, yyjson_val *v, const char *pointer)
{
    struct str type = json_str(yyjson_obj_get(v, "type"));
    if (!yyjson_is_obj(v))
        return field_type(r, v, pointer, "an object");
    if (str_is(type, "text"))
        return 0;
    return api_fail(r->err, 400, "unsupported_parameter", pointer, "%s: '%.*s' is not supported; expected text", pointer, STR_ARG(type));
}

int read_effort(struct reader *r, yyjson_val *v, const char *pointer)
{
    static const char *const list[] = {"none", "minimal", "low", "medium", "high", "xhigh", "max"};
    size_t i = 0;
    while (i < 7 && !str_is(json_str(v), list[i]))
        i++;
    if (i == 7)
        return api_fail(r->err, 400, "invalid_value", pointer, "%s: expected none, minimal, low, medium, high, xhigh or max", pointer);
    r->p->effort = json_str(v);
    return 0;
}

int read_parallel(struct reader *r, yyjson_val *v, const char *pointer)
{
    if (!yyjson_is_bool(v))
        return field_type(r, v, pointer, "true or false");
    r->p->parallel_off = !yyjson_get_bool(v);
    return 0;
}

int read_output(struct reader *r, yyjson_val *v, const char *pointer)
{
    struct str text = {0};
    if (read_text(r, v, pointer, 64, &text))
        return -1;
    r->p->o.output = text.p;
    return 0;
}
