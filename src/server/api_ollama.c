/* server/api_ollama.c - /api/chat, /api/generate and what Ollama's clients ask beside: JSON lines instead of events, durations in nanoseconds. */
#include "base/mem.h"
#include "server/api_fields.h"
#include "server/body.h"
#include "server/gen.h"
#include "server/routes.h"

#include <stdio.h>
#include <stdlib.h>
#include <time.h>

struct ollama { /* of a generation */
    bool chat;
};

static void put_time(struct buf *b, const struct timespec *t)
{
    struct tm utc;
    char text[64];
    gmtime_r(&t->tv_sec, &utc);
    strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%S", &utc);
    buf_printf(b, "\"%s.%09ldZ\"", text, t->tv_nsec);
}

static void put_now(struct buf *b)
{
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    put_time(b, &t);
}

static void open_line(struct gen *g, struct buf *b)
{
    buf_z(b, "{\"model\":");
    buf_json_str(b, str_of(g->model));
    buf_z(b, ",\"created_at\":");
    put_now(b);
}

static bool is_chat(const struct gen *g)
{
    return ((const struct ollama *)g->own)->chat;
}

/* A call's arguments are an object here; one that broke off shows what there is. */
static void put_call(struct buf *b, const struct gen_tool *t)
{
    struct err err = {0};
    struct str args = buf_view(&t->arguments);
    yyjson_doc *doc = json_parse(args, "arguments", &err);
    buf_z(b, "{\"function\":{\"name\":");
    buf_json_str(b, buf_view(&t->name));
    buf_z(b, ",\"arguments\":");
    if (yyjson_is_obj(yyjson_doc_get_root(doc)))
        buf_str(b, args);
    else {
        buf_z(b, "{\"incomplete\":");
        buf_json_str(b, args);
        buf_char(b, '}');
    }
    buf_z(b, "}}");
    json_free(doc);
}

static void put_parts(struct gen *g, struct buf *b, struct str text, struct str thinking, const struct gen_tool *tools, uint32_t tool_count)
{
    bool chat = is_chat(g);
    buf_z(b, chat ? ",\"message\":{\"role\":\"assistant\",\"content\":" : ",\"response\":");
    buf_json_str(b, text);
    if (thinking.n) {
        buf_z(b, ",\"thinking\":");
        buf_json_str(b, thinking);
    }
    if (chat && tool_count) {
        buf_z(b, ",\"tool_calls\":[");
        for (uint32_t i = 0; i < tool_count; i++) {
            buf_z(b, i ? "," : "");
            put_call(b, &tools[i]);
        }
        buf_char(b, ']');
    }
    if (chat)
        buf_char(b, '}');
}

static void put_line(struct gen *g, struct buf *b)
{
    buf_char(b, '\n');
    buf_str(&g->out, buf_view(b));
    if (b->failed)
        g->out.failed = b->failed;
    buf_free(b);
}

static void put_end(struct gen *g, struct buf *b)
{
    const struct rh_timings *t = &g->timings;
    const struct gen_choice *c = &g->choices[0];
    double total = t->queue_ms + t->prefill_ms + t->decode_ms;
    if (c->logprobs.n) {
        buf_z(b, ",\"logprobs\":[");
        buf_str(b, buf_view(&c->logprobs));
        buf_char(b, ']');
    }
    buf_printf(b, ",\"done\":true,\"done_reason\":\"%s\",\"total_duration\":%.0f,\"load_duration\":0,\"prompt_eval_count\":%u,"
               "\"prompt_eval_duration\":%.0f,\"eval_count\":%u,\"eval_duration\":%.0f}", gen_finish(c, "stop", "length", "stop"), total * 1e6,
               g->usage.prompt_tokens, t->prefill_ms * 1e6, gen_completion_tokens(g), t->decode_ms * 1e6);
}

/* ---- stream ---- */

static void on_begin(struct gen *g)
{
    (void)g;
}

static void on_piece(struct gen *g, uint32_t choice, const struct rh_event *e)
{
    struct gen_choice *c = &g->choices[choice];
    struct buf b = {0};
    struct str text = str_n(e->text, e->text_n);
    bool call = e->kind == RH_EVENT_CALL_END && is_chat(g) && e->call < c->tool_count;
    if (!call && (e->text_n == 0 || (e->kind != RH_EVENT_TEXT && e->kind != RH_EVENT_REASONING)))
        return;
    open_line(g, &b);
    if (call)
        put_parts(g, &b, (struct str){"", 0}, (struct str){0}, &c->tools[e->call], 1);
    else if (e->kind == RH_EVENT_TEXT)
        put_parts(g, &b, text, (struct str){0}, NULL, 0);
    else
        put_parts(g, &b, (struct str){"", 0}, text, NULL, 0);
    if (c->logprobs.n) {
        buf_z(&b, ",\"logprobs\":[");
        buf_str(&b, buf_view(&c->logprobs));
        buf_char(&b, ']');
    }
    c->logprobs.n = 0;
    buf_z(&b, ",\"done\":false}");
    put_line(g, &b);
}

static void on_done(struct gen *g, uint32_t choice)
{
    (void)g;
    (void)choice;
}

static void on_end(struct gen *g)
{
    struct buf b = {0};
    open_line(g, &b);
    put_parts(g, &b, (struct str){"", 0}, (struct str){0}, NULL, 0);
    put_end(g, &b);
    put_line(g, &b);
}

static void on_failed(struct gen *g, const struct api_error *e)
{
    struct buf b = {0};
    api_error_put(&b, API_OLLAMA, e);
    put_line(g, &b);
}

static void on_ping(struct gen *g) /* a line that says nothing is no JSON: silence */
{
    (void)g;
}

static void reply(struct gen *g, struct buf *out)
{
    const struct gen_choice *c = &g->choices[0];
    open_line(g, out);
    put_parts(g, out, buf_view(&c->text), buf_view(&c->reasoning), c->tools, c->tool_count);
    put_end(g, out);
}

static void put_token(struct gen *g, struct buf *out, uint32_t id, float logprob)
{
    struct buf scratch = {0};
    buf_z(out, "{\"token\":");
    buf_json_str(out, gen_token_bytes(g, id, &scratch));
    buf_z(out, ",\"logprob\":");
    buf_json_f32(out, logprob > -9999 ? logprob : -9999);
    buf_free(&scratch);
}

static void add_logprob(struct gen *g, struct gen_choice *c, const struct rh_event *e)
{
    struct buf *out = &c->logprobs;
    buf_z(out, out->n ? "," : "");
    put_token(g, out, e->id, e->logprob);
    if (e->top_count)
        buf_z(out, ",\"top_logprobs\":[");
    for (uint32_t i = 0; i < e->top_count; i++) {
        buf_z(out, i ? "," : "");
        put_token(g, out, e->tops[i].id, e->tops[i].logprob);
        buf_char(out, '}');
    }
    buf_z(out, e->top_count ? "]}" : "}");
}

static void close_own(struct gen *g)
{
    mem_free(g->own);
}

static const struct gen_api ollama_api = {
    .shape = API_OLLAMA, .stream_type = "application/x-ndjson", .id_prefix = "ollama-", .begin = on_begin, .piece = on_piece, .done = on_done,
    .end = on_end, .failed = on_failed, .ping = on_ping, .reply = reply, .logprob = add_logprob, .close = close_own};

/* ---- requests ---- */

struct ollama_fields {
    struct str prompt, system;
    bool raw, chat;
};

static struct ollama_fields *own(struct reader *r)
{
    return r->p->own;
}

static int read_string(struct reader *r, yyjson_val *v, const char *pointer, struct str *to)
{
    if (!yyjson_is_str(v))
        return field_type(r, v, pointer, "a string");
    *to = json_str(v);
    return 0;
}

static int read_prompt(struct reader *r, yyjson_val *v, const char *pointer)
{
    return read_string(r, v, pointer, &own(r)->prompt);
}

static int read_system(struct reader *r, yyjson_val *v, const char *pointer)
{
    return read_string(r, v, pointer, &own(r)->system);
}

static int read_raw(struct reader *r, yyjson_val *v, const char *pointer)
{
    if (!yyjson_is_bool(v))
        return field_type(r, v, pointer, "true or false");
    own(r)->raw = yyjson_get_bool(v);
    return 0;
}

static int read_think(struct reader *r, yyjson_val *v, const char *pointer)
{
    if (yyjson_is_str(v))
        return read_effort(r, v, pointer);
    if (!yyjson_is_bool(v))
        return field_type(r, v, pointer, "true, false or a level");
    r->p->no_think = !yyjson_get_bool(v);
    return 0;
}

/* "", [] and {} mean that nothing is asked. */
static int refuse_unless_empty(struct reader *r, yyjson_val *v, const char *pointer)
{
    if ((yyjson_is_str(v) && yyjson_get_len(v) == 0) || (yyjson_is_ctn(v) && yyjson_get_len(v) == 0))
        return 0;
    return api_fail(r->err, 400, "unsupported_parameter", pointer, "%s is not supported", pointer);
}

static int read_predict(struct reader *r, yyjson_val *v, const char *pointer)
{
    int64_t n = yyjson_get_sint(v);
    if (!yyjson_is_int(v) || n < -2 || n == 0 || n > UINT32_MAX)
        return api_fail(r->err, 400, "invalid_value", pointer, "%s: expected -1, -2 or a positive whole number", pointer);
    r->p->max_tokens = n < 0 ? -1 : n;
    return 0;
}

static const struct field option_fields[] = {
    SAMPLER_FIELDS, {"repeat_penalty", FIELD_F32, 0.001, 1000, AT(sampling.repetition_penalty), NULL},
    {"repeat_last_n", FIELD_U32, 0, 4294967295.0, AT(sampling.penalty_window), NULL}, CALLED("num_predict", read_predict), CALLED("seed", read_seed),
    CALLED("stop", read_stops), SILENT("num_ctx"), SILENT("num_batch"), SILENT("num_gpu"), SILENT("main_gpu"), SILENT("use_mmap"),
    SILENT("use_mlock"), SILENT("num_thread"), SILENT("num_keep"), SILENT("numa"), SILENT("low_vram"), SILENT("f16_kv"), SILENT("penalize_newline"),
    REFUSED("mirostat"), REFUSED("tfs_z")};

static int read_options(struct reader *r, yyjson_val *v, const char *pointer)
{
    return fields_read(r, v, pointer, option_fields, FIELDS_COUNT(option_fields));
}

#define OLLAMA_PARTS                                                                                                                 \
    CALLED("model", read_model), CALLED("options", read_options), {"stream", FIELD_BOOL, 0, 0, AT(stream), NULL}, CALLED("think", read_think), \
        CALLED("format", refuse_unless_empty), SILENT("keep_alive"), {"logprobs", FIELD_BOOL, 0, 0, AT(logprobs), NULL},               \
        {"top_logprobs", FIELD_U32, 0, 128, AT(top_logprobs), NULL}, {"truncate", FIELD_BOOL, 0, 0, AT(o.truncate), NULL}, SILENT("shift"), CALLED("chat_template_kwargs", read_variables)

static const struct field chat_fields[] = {OLLAMA_PARTS, CALLED("messages", chat_messages_read), CALLED("tools", chat_tools_read)};
static const struct field generate_fields[] = {OLLAMA_PARTS, CALLED("prompt", read_prompt), CALLED("system", read_system), CALLED("raw", read_raw),
                                               CALLED("suffix", refuse_unless_empty), CALLED("images", refuse_unless_empty),
                                               CALLED("template", refuse_unless_empty), CALLED("context", refuse_unless_empty)};
const struct field_list ollama_chat_field_list = {chat_fields, FIELDS_COUNT(chat_fields), true};
const struct field_list ollama_generate_field_list = {generate_fields, FIELDS_COUNT(generate_fields), true};

static int chat_of_prompt(struct reader *r)
{
    struct buf *m = &r->p->messages;
    buf_char(m, '[');
    if (own(r)->system.n) {
        buf_z(m, "{\"role\":\"system\",\"content\":");
        buf_json_str(m, own(r)->system);
        buf_z(m, "},");
    }
    buf_z(m, "{\"role\":\"user\",\"content\":");
    buf_json_str(m, own(r)->prompt);
    buf_z(m, "}]");
    return m->failed ? api_fail(r->err, 503, NULL, "", "out of memory") : chat_finish(r);
}

static int prepare(struct reader *r)
{
    if (own(r)->chat)
        return chat_finish(r);
    if (!own(r)->prompt.p)
        return api_fail(r->err, 400, "missing_required_parameter", "/prompt", "prompt is missing");
    if (!own(r)->raw)
        return chat_of_prompt(r);
    r->p->o.prompt = (struct rh_text){own(r)->prompt.p, own(r)->prompt.n};
    return 0;
}

static int start(struct reader *r, struct call *c)
{
    struct ollama *o = mem_try_zero(1, sizeof *o);
    if (!o)
        return api_fail(r->err, 503, NULL, "", "out of memory");
    o->chat = own(r)->chat;
    int rc = gen_start(c, r->p, NULL, 0, &ollama_api, o, &r->ignored, r->err);
    if (rc)
        mem_free(o);
    return rc;
}

int route_ollama_chat(struct call *c, struct api_error *e)
{
    static const struct body_plan plan = {&ollama_chat_field_list, "/messages", prepare, start, NULL};
    return body_route(c, e, &plan, &(struct ollama_fields){.chat = true}, sizeof(struct ollama_fields));
}

int route_ollama_generate(struct call *c, struct api_error *e)
{
    static const struct body_plan plan = {&ollama_generate_field_list, "/prompt", prepare, start, NULL};
    return body_route(c, e, &plan, &(struct ollama_fields){0}, sizeof(struct ollama_fields));
}

/* ---- what there is ---- */

static void put_details(const struct server *s, struct buf *b)
{
    struct err err = {0};
    yyjson_doc *doc = s->info_json ? json_parse(str_of(s->info_json), "info", &err) : NULL;
    yyjson_val *info = yyjson_doc_get_root(doc), *types = yyjson_obj_get(info, "types"), *best = NULL, *t;
    size_t i, n;
    double parameters = (double)yyjson_get_uint(yyjson_obj_get(info, "parameters"));
    yyjson_arr_foreach(types, i, n, t)
        if (!best || yyjson_get_uint(yyjson_obj_get(t, "elements")) > yyjson_get_uint(yyjson_obj_get(best, "elements")))
            best = t;
    struct str family = json_str(yyjson_obj_get(info, "architecture")), format = json_str(yyjson_obj_get(info, "format")),
               type = json_str(yyjson_obj_get(best, "type"));
    buf_z(b, "\"details\":{\"parent_model\":\"\",\"format\":");
    buf_json_str(b, format);
    buf_z(b, ",\"family\":");
    buf_json_str(b, family);
    buf_z(b, ",\"families\":[");
    buf_json_str(b, family);
    buf_printf(b, "],\"parameter_size\":\"%.1f%s\",\"quantization_level\":", parameters >= 1e9 ? parameters / 1e9 : parameters / 1e6,
               parameters >= 1e9 ? "B" : "M");
    buf_json_str(b, type);
    buf_char(b, '}');
    json_free(doc);
}

/* Size, age and digest of the model's file. */
static void put_file(const struct server *s, struct buf *b)
{
    struct timespec t = {.tv_sec = (time_t)s->file_s};
    buf_z(b, "\"modified_at\":");
    put_time(b, &t);
    buf_printf(b, ",\"size\":%llu,", (unsigned long long)s->file_bytes);
    if (s->cfg->digest)
        buf_printf(b, "\"digest\":\"%s\",", s->cfg->digest);
}

static int finish(struct call *c, struct buf *b)
{
    call_reply_json(c, 200, (struct str){0}, b);
    buf_free(b);
    return 0;
}

int route_ollama_tags(struct call *c, struct api_error *e)
{
    struct buf b = {0};
    (void)e;
    buf_z(&b, "{\"models\":[{\"name\":");
    buf_json_str(&b, str_of(c->s->cfg->model_id));
    buf_z(&b, ",\"model\":");
    buf_json_str(&b, str_of(c->s->cfg->model_id));
    buf_char(&b, ',');
    put_file(c->s, &b);
    put_details(c->s, &b);
    buf_z(&b, "}]}");
    return finish(c, &b);
}

int route_ollama_show(struct call *c, struct api_error *e)
{
    struct buf b = {0};
    (void)e;
    const char *output = rh_output_format(c->s->model);
    bool tools = strcmp(output, "none") != 0 && strcmp(output, "think") != 0;
    buf_z(&b, "{\"modelfile\":\"\",\"parameters\":\"\",\"template\":\"\",");
    put_file(c->s, &b);
    put_details(c->s, &b);
    buf_printf(&b, ",\"model_info\":{\"general.context_length\":%u,\"rhapsode.info\":%s},\"capabilities\":[\"completion\"%s,\"embedding\"]}",
               c->s->context, c->s->info_json ? c->s->info_json : "null", tools ? ",\"tools\"" : "");
    return finish(c, &b);
}

int route_ollama_version(struct call *c, struct api_error *e)
{
    struct buf b = {0};
    (void)e;
    buf_z(&b, "{\"version\":\"" RH_VERSION "\"}");
    return finish(c, &b);
}
