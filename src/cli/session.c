/* cli/session.c - see session.h. */
#include "cli/session.h"

#include "base/file.h"
#include "base/mem.h"
#include "base/str.h"

#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

enum { SMALL_FILE_MAX = 64 << 20 };

static volatile sig_atomic_t interrupted;

static void on_interrupt(int sig)
{
    (void)sig;
    interrupted = 1;
}

void session_interrupts(void)
{
    struct sigaction a = {.sa_handler = on_interrupt, .sa_flags = (int)SA_RESETHAND};
    sigemptyset(&a.sa_mask);
    sigaction(SIGINT, &a, NULL);
}

bool session_interrupted(void)
{
    return interrupted;
}

int session_fail(const char *verb, const struct rh_error *err)
{
    fprintf(stderr, "rhapsode %s: %s\n", verb, err->text[0] ? err->text : err_text(err->code));
    return err->code == RH_ERR_ARGUMENT ? 2 : err->code == RH_ERR_CANCELLED ? 130 : 1;
}

static void say(const char *verb, const char *fmt, va_list ap)
{
    fprintf(stderr, "rhapsode %s: ", verb);
    vfprintf(stderr, fmt, ap);
    fputc('\n', stderr);
}

int session_failed(const char *verb, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    say(verb, fmt, ap);
    va_end(ap);
    return 1;
}

int session_usage(const char *verb, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    say(verb, fmt, ap);
    va_end(ap);
    return 2;
}

static int fail_err(const char *verb, const struct err *err)
{
    fprintf(stderr, "rhapsode %s: %s\n", verb, err->text[0] ? err->text : err_text(err->code));
    return 1;
}

int session_open_host(struct session *s, const char *verb, const struct options *o)
{
    struct rh_error err = {0};
    struct rh_host_options host = {.backend = o->backend, .cpu_isa = o->cpu_isa, .threads = o->threads, .no_pin = o->no_pin,
                                   .state_bytes = o->state, .gpu_bytes = o->gpu_memory, .store_dir = o->store_dir,
                                   .spin_us = s->spin_us, .cpus_left = s->cpus_left};
    s->verb = verb;
    return rh_host_open(&host, &s->host, &err) ? session_fail(verb, &err) : 0;
}

/* "all", "auto" or a number; -1: none of them. */
static int read_gpu_layers(const char *text, int32_t *out)
{
    uint64_t n = 0;
    bool named = !text || strcmp(text, "auto") == 0 || strcmp(text, "all") == 0;
    *out = text && strcmp(text, "all") == 0 ? RH_GPU_LAYERS_ALL : RH_GPU_LAYERS_FIT;
    if (named)
        return 0;
    if (!str_to_u64(str_of(text), &n) || n > 1 << 20)
        return -1;
    *out = n ? (int32_t)n : RH_GPU_LAYERS_NONE;
    return 0;
}

int session_open(struct session *s, const char *verb, const struct options *o, bool inspect_only)
{
    struct rh_error rerr = {0};
    struct err err = {0};
    if (o->kv && rh_kv_check(o->kv, &rerr))
        return session_usage(verb, "--%s", rerr.text);
    if (o->chat_template) {
        if (file_read(&s->template_text, o->chat_template, SMALL_FILE_MAX, &err) || buf_check(&s->template_text, "chat template", &err))
            return fail_err(verb, &err);
        buf_cstr(&s->template_text);
    }
    if (o->kv_config && file_read(&s->kv_config, o->kv_config, SMALL_FILE_MAX, &err))
        return fail_err(verb, &err);
    struct rh_model_options model = {.context = o->context, .kv = o->kv, .kv_config = {s->kv_config.p, s->kv_config.n},
                                     .kv_start = o->kv_start, .kv_force = o->kv_force, .rows_max = o->rows, .draft = o->draft, .step_ms = o->step_ms,
                                     .inspect_only = inspect_only,
                                     .chat_template = o->chat_template ? s->template_text.p : NULL};
    if (read_gpu_layers(o->gpu_layers, &model.gpu_layers))
        return session_usage(verb, "--gpu-layers: expected a number of layers, all or auto, got '%s'", o->gpu_layers);
    int rc = session_open_host(s, verb, o);
    if (rc == 0 && rh_model_open(s->host, o->args[0], &model, &s->model, &rerr))
        rc = session_fail(verb, &rerr);
    return rc;
}

void session_close(struct session *s)
{
    rh_model_close(s->model);
    rh_host_close(s->host);
    buf_free(&s->template_text);
    buf_free(&s->kv_config);
}

/* ---- sampling ---- */

static int parse_bias(const char *text, struct rh_bias *out)
{
    struct str rest = str_of(text), key;
    uint64_t id;
    double v = 0;
    str_split(&rest, '=', &key);
    bool minus_inf = rest.p && (str_is(rest, "-inf") || str_is(rest, "-Infinity"));
    if (!rest.p || !str_to_u64(str_trim(key), &id) || id > UINT32_MAX || (!minus_inf && !str_to_f64(str_trim(rest), &v)))
        return -1;
    *out = (struct rh_bias){(uint32_t)id, minus_inf ? -__builtin_inff() : (float)v};
    return 0;
}

int session_sampling(const struct session *s, const struct options *o, struct rh_sampling *out, struct rh_bias **biases)
{
    rh_sampling_default(s->model, out);
#define TAKE(ID, field)         \
    if (o->given[OPT_##ID])     \
        out->field = o->field;
    TAKE(TEMPERATURE, temperature)
    TAKE(TOP_P, top_p)
    TAKE(MIN_P, min_p)
    TAKE(TYPICAL_P, typical_p)
    TAKE(TOP_N_SIGMA, top_n_sigma)
    TAKE(TOP_K, top_k)
    TAKE(XTC_PROBABILITY, xtc_probability)
    TAKE(XTC_THRESHOLD, xtc_threshold)
    TAKE(REPETITION_PENALTY, repetition_penalty)
    TAKE(PRESENCE_PENALTY, presence_penalty)
    TAKE(FREQUENCY_PENALTY, frequency_penalty)
    TAKE(PENALTY_WINDOW, penalty_window)
    TAKE(MIN_TOKENS, min_tokens)
#undef TAKE
    if (o->sampler_order)
        out->order = o->sampler_order;
    *biases = mem_alloc((o->logit_bias.n + 1) * sizeof **biases);
    for (size_t i = 0; i < o->logit_bias.n; i++)
        if (parse_bias(o->logit_bias.items[i], &(*biases)[i])) {
            mem_free(*biases);
            *biases = NULL;
            return session_usage(s->verb, "--logit-bias: expected ID=B, got '%.200s'", o->logit_bias.items[i]);
        }
    out->biases = *biases;
    out->bias_count = o->logit_bias.n;
    return 0;
}

/* ---- stops ---- */

int session_stops(const char *verb, const struct options *o, struct rh_request_options *r, struct rh_text **stop, uint32_t **stop_ids)
{
    *stop = mem_alloc((o->stop.n + 1) * sizeof **stop);
    *stop_ids = mem_alloc((o->stop_id.n + 1) * sizeof **stop_ids);
    for (size_t i = 0; i < o->stop.n; i++)
        (*stop)[i] = (struct rh_text){o->stop.items[i], strlen(o->stop.items[i])};
    for (size_t i = 0; i < o->stop_id.n; i++) {
        uint64_t id;
        if (!str_to_u64(str_of(o->stop_id.items[i]), &id) || id > UINT32_MAX)
            return session_usage(verb, "--stop-id: expected a token id, got '%.100s'", o->stop_id.items[i]);
        (*stop_ids)[i] = (uint32_t)id;
    }
    r->stop = *stop;
    r->stop_count = o->stop.n;
    r->stop_ids = *stop_ids;
    r->stop_id_count = o->stop_id.n;
    return 0;
}

/* ---- chat ---- */

static int read_json(const char *verb, const char *path, yyjson_doc **doc)
{
    struct buf b = {0};
    struct err err = {0};
    *doc = NULL;
    if (file_read(&b, path, SMALL_FILE_MAX, &err) == 0)
        *doc = json_parse(buf_view(&b), path, &err);
    buf_free(&b);
    return *doc ? 0 : fail_err(verb, &err);
}

static char *json_text(yyjson_val *v)
{
    char *text = yyjson_val_write(v, 0, NULL);
    if (!text)
        mem_exhausted(0);
    return text;
}

static int take_tools(struct session_chat *c, const char *verb, const char *path)
{
    yyjson_doc *doc;
    int rc = read_json(verb, path, &doc);
    if (rc)
        return rc;
    if (yyjson_is_arr(yyjson_doc_get_root(doc)))
        c->tools = json_text(yyjson_doc_get_root(doc));
    else
        rc = session_failed(verb, "%s: expected a JSON array of tools, got %s", path, json_type_name(yyjson_doc_get_root(doc)));
    json_free(doc);
    return rc;
}

static int take_variables(struct session_chat *c, const char *verb, const struct option_list *set)
{
    struct buf b = {0};
    buf_char(&b, '{');
    for (size_t i = 0; i < set->n; i++) {
        struct str rest = str_of(set->items[i]), key;
        struct err err = {0};
        str_split(&rest, '=', &key);
        yyjson_doc *doc = rest.p && key.n ? json_parse(rest, "--set", &err) : NULL;
        if (!doc) {
            buf_free(&b);
            return session_usage(verb, "--set: expected KEY=JSON, got '%.200s'", set->items[i]);
        }
        json_free(doc);
        buf_z(&b, i ? "," : "");
        buf_json_str(&b, key);
        buf_char(&b, ':');
        buf_str(&b, rest);
    }
    buf_char(&b, '}');
    buf_cstr(&b);
    if (b.failed)
        mem_exhausted(b.n);
    c->variables = b.p; /* a heap block like any other */
    return 0;
}

/* Parts that are no text would be lost, unless they are only to be rendered. */
static int check_part(const char *verb, const char *where, yyjson_val *part)
{
    struct str type = json_str(yyjson_obj_get(part, "type"));
    if (!yyjson_is_obj(part))
        return session_failed(verb, "%s: expected an object, got %s", where, json_type_name(part));
    if (!type.p)
        return session_failed(verb, "%s.type: expected a string, got %s", where, json_type_name(yyjson_obj_get(part, "type")));
    if (str_is(type, "text") && !yyjson_is_str(yyjson_obj_get(part, "text")))
        return session_failed(verb, "%s.text: expected a string, got %s", where, json_type_name(yyjson_obj_get(part, "text")));
    if (!str_is(type, "text") && strcmp(verb, "render") != 0)
        return session_failed(verb, "%s.type: expected text, got '%.*s': pictures and sound are not read", where, STR_ARG(type));
    return 0;
}

/* Templates pass over messages of roles they do not know; a slip would lose one. */
static int check_role(const char *verb, const char *where, yyjson_val *v)
{
    static const char *const known[] = {"system", "developer", "user", "assistant", "tool", "function", "ipython"};
    struct str role = json_str(v);
    if (!role.p)
        return session_failed(verb, "%s.role: expected a string, got %s", where, json_type_name(v));
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (str_is(role, known[i]))
            return 0;
    return strcmp(verb, "render") == 0 ? 0 : session_failed(verb, "%s.role: expected system, developer, user, assistant or tool, got '%.*s'", where,
                                                            (int)(role.n < 60 ? role.n : 60), role.p);
}

/* An assistant may only have called or reasoned, and a tool may answer with any value. */
static int check_message(const char *verb, const char *path, size_t index, yyjson_val *m)
{
    static const char *const instead[] = {"tool_calls", "reasoning_content", "reasoning", "thinking"};
    char where[600];
    size_t i, n;
    yyjson_val *part, *content = yyjson_obj_get(m, "content");
    struct str role = json_str(yyjson_obj_get(m, "role"));
    bool may_lack = false, any = str_is(role, "tool") || str_is(role, "function") || str_is(role, "ipython");
    snprintf(where, sizeof where, "%.500s: messages[%zu]", path, index);
    if (!yyjson_is_obj(m))
        return session_failed(verb, "%s: expected an object, got %s", where, json_type_name(m));
    if (check_role(verb, where, yyjson_obj_get(m, "role")))
        return 1;
    for (i = 0; i < sizeof instead / sizeof *instead; i++)
        may_lack |= yyjson_obj_get(m, instead[i]) != NULL;
    if (any ? content != NULL : yyjson_is_str(content) || (may_lack && (!content || yyjson_is_null(content))))
        return 0;
    if (!yyjson_is_arr(content))
        return session_failed(verb, "%s.content: expected a string or an array of parts, got %s", where, json_type_name(content));
    yyjson_arr_foreach(content, i, n, part) {
        char at[700];
        snprintf(at, sizeof at, "%s.content[%zu]", where, i);
        if (check_part(verb, at, part))
            return 1;
    }
    return 0;
}

static int check_messages(const char *verb, const char *path, yyjson_val *messages)
{
    size_t i, n;
    yyjson_val *m;
    if (!yyjson_is_arr(messages))
        return session_failed(verb, "%s: expected a JSON array of messages, or an object with one as 'messages', got %s", path, json_type_name(messages));
    if (yyjson_arr_size(messages) == 0)
        return session_failed(verb, "%s: expected at least one message, got none", path);
    yyjson_arr_foreach(messages, i, n, m)
        if (check_message(verb, path, i, m))
            return 1;
    return 0;
}

int session_chat_read(struct session_chat *c, const char *verb, const char *path, const struct options *o)
{
    yyjson_doc *doc;
    int rc = read_json(verb, path, &doc);
    if (rc)
        return rc;
    yyjson_val *root = yyjson_doc_get_root(doc), *messages = yyjson_is_obj(root) ? yyjson_obj_get(root, "messages") : root;
    yyjson_val *tools = yyjson_is_obj(root) ? yyjson_obj_get(root, "tools") : NULL;
    rc = check_messages(verb, path, messages);
    if (rc) {
        json_free(doc);
        return rc;
    }
    c->messages = json_text(messages);
    if (yyjson_is_arr(tools))
        c->tools = json_text(tools);
    json_free(doc);
    if (o->tools) {
        free(c->tools);
        c->tools = NULL;
        rc = take_tools(c, verb, o->tools);
    }
    if (rc == 0 && o->set.n)
        rc = take_variables(c, verb, &o->set);
    c->chat = (struct rh_chat){.messages_json = {c->messages, strlen(c->messages)}, .no_generation_prompt = o->no_generation_prompt};
    if (c->tools)
        c->chat.tools_json = (struct rh_text){c->tools, strlen(c->tools)};
    if (c->variables)
        c->chat.variables_json = (struct rh_text){c->variables, strlen(c->variables)};
    return rc;
}

void session_chat_free(struct session_chat *c)
{
    free(c->messages); /* yyjson's own blocks */
    free(c->tools);
    mem_free(c->variables);
}
