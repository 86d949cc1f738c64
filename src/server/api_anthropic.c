/* server/api_anthropic.c - POST /v1/messages and /v1/messages/count_tokens: Anthropic's shapes and its grammar of events.
 *
 *     message_start  ( content_block_start content_block_delta* content_block_stop )*  message_delta  message_stop      (ping anywhere)
 *
 * Its content blocks become messages as templates take them: results of tools are messages of their own, thinking is reasoning_content. */
#include "base/mem.h"
#include "server/api_fields.h"
#include "server/body.h"
#include "server/gen.h"
#include "server/jobs.h"
#include "server/routes.h"
#include "server/turn.h"

enum { TOOLS_MAX = 1024 };

/* ---- stream ---- */

enum block { BLOCK_NONE, BLOCK_TEXT, BLOCK_THINKING, BLOCK_TOOL };
struct blocks { /* of a stream: which block is open */
    enum block open;
    uint32_t index; /* of the open one, or the next */
};

static struct blocks *blocks_of(struct gen *g)
{
    return g->own;
}

static void put_usage(const struct gen *g, struct buf *b, uint32_t output)
{
    buf_printf(b, "\"usage\":{\"input_tokens\":%u,\"cache_creation_input_tokens\":0,\"cache_read_input_tokens\":%u,\"output_tokens\":%u}",
               g->usage.prompt_tokens - g->usage.cached_tokens, g->usage.cached_tokens, output);
}

static void send_event(struct gen *g, const char *name, struct buf *b)
{
    gen_event(g, name, buf_view(b));
    if (b->failed)
        g->out.failed = b->failed;
    buf_free(b);
}

static void on_begin(struct gen *g)
{
    struct buf b = {0};
    buf_printf(&b, "{\"type\":\"message_start\",\"message\":{\"id\":\"%s\",\"type\":\"message\",\"role\":\"assistant\",\"model\":", g->id);
    buf_json_str(&b, str_of(g->model));
    buf_z(&b, ",\"content\":[],\"stop_reason\":null,\"stop_sequence\":null,");
    put_usage(g, &b, 0);
    buf_z(&b, "}}");
    send_event(g, "message_start", &b);
}

static void close_block(struct gen *g)
{
    struct blocks *k = blocks_of(g);
    struct buf b = {0};
    if (k->open == BLOCK_NONE)
        return;
    if (k->open == BLOCK_THINKING) {
        buf_printf(&b, "{\"type\":\"content_block_delta\",\"index\":%u,\"delta\":{\"type\":\"signature_delta\",\"signature\":\"%s\"}}", k->index, g->id);
        send_event(g, "content_block_delta", &b);
    }
    buf_printf(&b, "{\"type\":\"content_block_stop\",\"index\":%u}", k->index);
    send_event(g, "content_block_stop", &b);
    k->open = BLOCK_NONE;
    k->index++;
}

static void open_block(struct gen *g, enum block kind, const struct rh_event *e)
{
    struct blocks *k = blocks_of(g);
    struct buf b = {0};
    if (k->open == kind && kind != BLOCK_TOOL)
        return;
    close_block(g);
    k->open = kind;
    buf_printf(&b, "{\"type\":\"content_block_start\",\"index\":%u,\"content_block\":", k->index);
    if (kind == BLOCK_TOOL) {
        buf_z(&b, "{\"type\":\"tool_use\",\"id\":");
        buf_json_str(&b, str_of(e->call_id));
        buf_z(&b, ",\"name\":");
        buf_json_str(&b, str_of(e->call_name));
        buf_z(&b, ",\"input\":{}}}");
    } else
        buf_z(&b, kind == BLOCK_TEXT ? "{\"type\":\"text\",\"text\":\"\"}}" : "{\"type\":\"thinking\",\"thinking\":\"\",\"signature\":\"\"}}");
    send_event(g, "content_block_start", &b);
}

static void put_delta(struct gen *g, const char *type, const char *key, const struct rh_event *e)
{
    struct buf b = {0};
    buf_printf(&b, "{\"type\":\"content_block_delta\",\"index\":%u,\"delta\":{\"type\":\"%s\",\"%s\":", blocks_of(g)->index, type, key);
    buf_json_str(&b, str_n(e->text, e->text_n));
    buf_z(&b, "}}");
    send_event(g, "content_block_delta", &b);
}

static void on_piece(struct gen *g, uint32_t choice, const struct rh_event *e)
{
    (void)choice;
    switch (e->kind) {
    case RH_EVENT_CALL_BEGIN:
        open_block(g, BLOCK_TOOL, e);
        return;
    case RH_EVENT_CALL_ARGUMENTS:
        put_delta(g, "input_json_delta", "partial_json", e);
        return;
    case RH_EVENT_CALL_END:
        close_block(g);
        return;
    default:
        break;
    }
    if (e->text_n == 0)
        return;
    open_block(g, e->kind == RH_EVENT_REASONING ? BLOCK_THINKING : BLOCK_TEXT, e);
    if (e->kind == RH_EVENT_REASONING)
        put_delta(g, "thinking_delta", "thinking", e);
    else
        put_delta(g, "text_delta", "text", e);
}

static void put_stop(const struct gen *g, struct buf *b)
{
    const struct gen_choice *c = &g->choices[0];
    if (c->stop_string) {
        buf_z(b, "\"stop_reason\":\"stop_sequence\",\"stop_sequence\":");
        buf_json_str(b, str_of(c->stop_string));
    } else
        buf_printf(b, "\"stop_reason\":\"%s\",\"stop_sequence\":null", gen_finish(c, "end_turn", "max_tokens", "tool_use"));
}

static void on_done(struct gen *g, uint32_t choice)
{
    struct buf b = {0};
    (void)choice;
    close_block(g);
    buf_z(&b, "{\"type\":\"message_delta\",\"delta\":{");
    put_stop(g, &b);
    buf_z(&b, "},");
    put_usage(g, &b, gen_completion_tokens(g));
    buf_char(&b, '}');
    send_event(g, "message_delta", &b);
}

static void on_end(struct gen *g)
{
    gen_event(g, "message_stop", STR("{\"type\":\"message_stop\"}"));
}

static void on_failed(struct gen *g, const struct api_error *e)
{
    struct buf b = {0};
    api_error_put(&b, API_ANTHROPIC, e);
    send_event(g, "error", &b);
}

static void on_ping(struct gen *g)
{
    gen_event(g, "ping", STR("{\"type\":\"ping\"}"));
}

/* ---- whole answers ---- */

/* A call that broke off has no JSON object; what there is of it is shown. */
static void put_input(struct buf *out, struct str arguments)
{
    struct err err = {0};
    yyjson_doc *doc = json_parse(arguments, "arguments", &err);
    if (yyjson_is_obj(yyjson_doc_get_root(doc)))
        buf_str(out, arguments);
    else {
        buf_z(out, "{\"incomplete\":");
        buf_json_str(out, arguments);
        buf_char(out, '}');
    }
    json_free(doc);
}

/* Blocks in the order in which the model wrote them, as a stream shows them: what came from *reasoning and *text on, up to the given ends. */
static void put_said(const struct gen *g, struct buf *out, size_t *reasoning, size_t reasoning_end, size_t *text, size_t text_end)
{
    const struct gen_choice *c = &g->choices[0];
    if (reasoning_end > *reasoning) {
        buf_json_comma(out);
        buf_z(out, "{\"type\":\"thinking\",\"thinking\":");
        buf_json_str(out, str_n(c->reasoning.p + *reasoning, reasoning_end - *reasoning));
        buf_printf(out, ",\"signature\":\"%s\"}", g->id);
    }
    if (text_end > *text) {
        buf_json_comma(out);
        buf_z(out, "{\"type\":\"text\",\"text\":");
        buf_json_str(out, str_n(c->text.p + *text, text_end - *text));
        buf_char(out, '}');
    }
    *reasoning = reasoning_end;
    *text = text_end;
}

static void put_content(const struct gen *g, struct buf *out)
{
    const struct gen_choice *c = &g->choices[0];
    size_t reasoning = 0, text = 0;
    for (uint32_t i = 0; i < c->tool_count; i++) {
        const struct gen_tool *t = &c->tools[i];
        put_said(g, out, &reasoning, t->reasoning_at, &text, t->text_at);
        buf_json_comma(out);
        buf_z(out, "{\"type\":\"tool_use\",\"id\":");
        buf_json_str(out, str_of(t->id));
        buf_z(out, ",\"name\":");
        buf_json_str(out, buf_view(&t->name));
        buf_z(out, ",\"input\":");
        put_input(out, buf_view(&t->arguments));
        buf_char(out, '}');
    }
    put_said(g, out, &reasoning, c->reasoning.n, &text, c->text.n);
}

static void reply(struct gen *g, struct buf *out)
{
    buf_printf(out, "{\"id\":\"%s\",\"type\":\"message\",\"role\":\"assistant\",\"model\":", g->id);
    buf_json_str(out, str_of(g->model));
    buf_z(out, ",\"content\":[");
    put_content(g, out);
    buf_z(out, "],");
    put_stop(g, out);
    buf_char(out, ',');
    put_usage(g, out, gen_completion_tokens(g));
    buf_char(out, '}');
}

static void close_own(struct gen *g)
{
    mem_free(g->own);
}

static const struct gen_api messages_api = {
    .shape = API_ANTHROPIC, .stream_type = "text/event-stream; charset=utf-8", .id_prefix = "msg_", .begin = on_begin, .piece = on_piece,
    .done = on_done, .end = on_end, .failed = on_failed, .ping = on_ping, .reply = reply, .close = close_own};

/* ---- the request ---- */

struct anthropic { /* values of fields that are read together */
    yyjson_val *system, *messages, *tools;
};

static int no_memory(struct reader *r)
{
    return api_fail(r->err, 503, NULL, "", "out of memory");
}

static struct anthropic *own(struct reader *r)
{
    return r->p->own;
}

static int keep_system(struct reader *r, yyjson_val *v, const char *pointer)
{
    (void)pointer;
    own(r)->system = v;
    return 0;
}

static int keep_messages(struct reader *r, yyjson_val *v, const char *pointer)
{
    (void)pointer;
    own(r)->messages = v;
    return 0;
}

static int keep_tools(struct reader *r, yyjson_val *v, const char *pointer)
{
    if (!yyjson_is_arr(v) || yyjson_arr_size(v) > TOOLS_MAX)
        return field_type(r, v, pointer, "an array of at most 1024 tools");
    own(r)->tools = yyjson_arr_size(v) ? v : NULL;
    return 0;
}

/* Text blocks joined by line ends; a string is one block. */
static int put_text(struct reader *r, struct buf *out, yyjson_val *v, const char *pointer)
{
    size_t i, n;
    yyjson_val *block;
    char at[256], inner[256];
    if (yyjson_is_str(v)) {
        buf_str(out, json_str(v));
        return 0;
    }
    if (!yyjson_is_arr(v))
        return field_type(r, v, pointer, "a string or an array of blocks");
    yyjson_arr_foreach(v, i, n, block) {
        struct str type = json_str(yyjson_obj_get(block, "type")), text = json_str(yyjson_obj_get(block, "text"));
        pointer_index(at, pointer, i);
        if (!str_is(type, "text"))
            return api_fail(r->err, 400, "unsupported_content", pointer_at(inner, at, "type"), "%s: blocks of type '%.*s' are not supported here; expected text",
                            inner, STR_ARG(type));
        if (!text.p)
            return field_type(r, yyjson_obj_get(block, "text"), pointer_at(inner, at, "text"), "a string");
        if (out->n)
            buf_char(out, '\n');
        buf_str(out, text);
    }
    return 0;
}

static int put_tool_result(struct reader *r, struct buf *out, yyjson_val *block, const char *pointer)
{
    struct buf text = {0};
    char at[256];
    yyjson_val *content = yyjson_obj_get(block, "content"), *id = yyjson_obj_get(block, "tool_use_id");
    int rc = 0;
    if (!yyjson_is_str(id))
        return field_type(r, id, pointer_at(at, pointer, "tool_use_id"), "a string");
    if (content && !yyjson_is_null(content))
        rc = put_text(r, &text, content, pointer_at(at, pointer, "content"));
    if (rc == 0) {
        message_begin(out, "tool");
        buf_json_str(out, buf_view(&text));
        buf_z(out, ",\"tool_call_id\":");
        buf_json_str(out, json_str(id));
        buf_char(out, '}');
    }
    if (text.failed)
        rc = no_memory(r);
    buf_free(&text);
    return rc;
}

static int put_user(struct reader *r, struct buf *out, yyjson_val *content, const char *pointer)
{
    struct buf text = {0};
    size_t i, n;
    yyjson_val *block;
    char at[256], inner[256];
    int rc = 0;
    bool any_text = yyjson_is_str(content);
    if (any_text)
        buf_str(&text, json_str(content));
    else if (!yyjson_is_arr(content))
        rc = field_type(r, content, pointer, "a string or an array of blocks");
    yyjson_arr_foreach(content, i, n, block) {
        struct str type = json_str(yyjson_obj_get(block, "type"));
        pointer_index(at, pointer, i);
        if (rc == 0 && str_is(type, "tool_result"))
            rc = put_tool_result(r, out, block, at);
        else if (rc == 0 && str_is(type, "text") && yyjson_is_str(yyjson_obj_get(block, "text"))) {
            if (text.n)
                buf_char(&text, '\n');
            buf_str(&text, json_str(yyjson_obj_get(block, "text")));
            any_text = true;
        } else if (rc == 0)
            rc = api_fail(r->err, 400, "unsupported_content", pointer_at(inner, at, "type"), "%s: blocks of type '%.*s' are not supported", inner, STR_ARG(type));
    }
    if (rc == 0 && (any_text || n == 0)) {
        message_begin(out, "user");
        buf_json_str(out, buf_view(&text));
        buf_char(out, '}');
    }
    if (text.failed)
        rc = no_memory(r);
    buf_free(&text);
    return rc;
}

/* One block of an earlier answer into its three parts. */
static int put_answer_block(struct reader *r, yyjson_val *block, const char *pointer, struct turn *t)
{
    struct str type = json_str(yyjson_obj_get(block, "type"));
    char at[256];
    if (str_is(type, "text"))
        buf_str(&t->text, json_str(yyjson_obj_get(block, "text")));
    else if (str_is(type, "thinking"))
        buf_str(&t->thinking, json_str(yyjson_obj_get(block, "thinking")));
    else if (str_is(type, "tool_use")) {
        yyjson_val *name = yyjson_obj_get(block, "name"), *id = yyjson_obj_get(block, "id"), *input = yyjson_obj_get(block, "input");
        if (!yyjson_is_str(name) || !yyjson_is_str(id) || !yyjson_is_obj(input))
            return api_fail(r->err, 400, "invalid_type", pointer, "%s: expected id, name and input (an object)", pointer);
        struct buf json = {0};
        json_put(&json, input);
        turn_call(t, json_str(id), json_str(name), buf_view(&json));
        t->calls.failed |= json.failed;
        buf_free(&json);
    } else if (!str_is(type, "redacted_thinking"))
        return api_fail(r->err, 400, "unsupported_content", pointer_at(at, pointer, "type"), "%s: blocks of type '%.*s' are not supported", at, STR_ARG(type));
    return 0;
}

static int put_assistant(struct reader *r, struct buf *out, yyjson_val *content, const char *pointer)
{
    struct turn t = {.open = true};
    size_t i, n;
    yyjson_val *block;
    char at[256];
    int rc = 0;
    if (yyjson_is_str(content))
        buf_str(&t.text, json_str(content));
    else if (!yyjson_is_arr(content))
        rc = field_type(r, content, pointer, "a string or an array of blocks");
    yyjson_arr_foreach(content, i, n, block)
        if (rc == 0)
            rc = put_answer_block(r, block, pointer_index(at, pointer, i), &t);
    if (rc == 0)
        turn_end(&t, out);
    turn_free(&t);
    return rc;
}

static int put_messages(struct reader *r, struct buf *out)
{
    yyjson_val *list = own(r)->messages, *m;
    size_t i, n;
    char at[256], inner[256];
    if (!list)
        return api_fail(r->err, 400, "missing_required_parameter", "/messages", "/messages is missing");
    if (!yyjson_is_arr(list) || yyjson_arr_size(list) == 0)
        return field_type(r, list, "/messages", "an array of at least one message");
    yyjson_arr_foreach(list, i, n, m) {
        struct str role = json_str(yyjson_obj_get(m, "role"));
        bool answer = str_is(role, "assistant");
        pointer_index(at, "/messages", i);
        if (!answer && !str_is(role, "user"))
            return api_fail(r->err, 400, "invalid_value", pointer_at(inner, at, "role"), "%s: expected user or assistant, got '%.*s'", inner, STR_ARG(role));
        if (answer && i + 1 == n)
            return api_fail(r->err, 400, "unsupported_parameter", at, "%s: to go on from the beginning of an answer is not supported; expected a user's message last", at);
        pointer_at(inner, at, "content");
        yyjson_val *content = yyjson_obj_get(m, "content");
        if (answer ? put_assistant(r, out, content, inner) : put_user(r, out, content, inner))
            return -1;
    }
    return 0;
}

static int put_system(struct reader *r, struct buf *out)
{
    struct buf text = {0};
    int rc = own(r)->system ? put_text(r, &text, own(r)->system, "/system") : 0;
    if (rc == 0 && text.n) {
        message_begin(out, "system");
        chat_system_put(r, out, buf_view(&text));
        buf_char(out, '}');
    }
    if (text.failed)
        rc = no_memory(r);
    buf_free(&text);
    return rc;
}

/* Tools in OpenAI's shape, which templates know. */
static int put_tools(struct reader *r)
{
    struct buf b = {0};
    size_t i, n;
    yyjson_val *tool;
    char at[256], inner[256];
    int rc = 0;
    buf_char(&b, '[');
    yyjson_arr_foreach(own(r)->tools, i, n, tool) {
        struct str type = json_str(yyjson_obj_get(tool, "type")), name = json_str(yyjson_obj_get(tool, "name"));
        yyjson_val *schema = yyjson_obj_get(tool, "input_schema"), *text = yyjson_obj_get(tool, "description");
        pointer_index(at, "/tools", i);
        if (rc == 0 && type.p && !str_is(type, "custom"))
            rc = api_fail(r->err, 400, "unsupported_parameter", pointer_at(inner, at, "type"), "%s: tools of type '%.*s' are not supported; expected custom", inner,
                          STR_ARG(type));
        if (rc == 0 && (name.n == 0 || !yyjson_is_obj(schema)))
            rc = api_fail(r->err, 400, "invalid_type", at, "%s: expected a name and an input_schema (an object)", at);
        if (rc)
            break;
        tool_put(&b, name, json_str(text), schema);
    }
    buf_char(&b, ']');
    struct str kept = rc || b.failed ? (struct str){0} : arena_try_str(&r->p->arena, buf_view(&b));
    if (rc == 0 && !kept.p)
        rc = no_memory(r);
    r->p->chat.tools_json = (struct rh_text){kept.p, kept.n};
    buf_free(&b);
    return rc;
}

static int read_tool_choice(struct reader *r, yyjson_val *v, const char *pointer)
{
    struct str type = json_str(yyjson_obj_get(v, "type")), name = json_str(yyjson_obj_get(v, "name"));
    char at[256];
    r->p->parallel_off = yyjson_is_true(yyjson_obj_get(v, "disable_parallel_tool_use"));
    r->p->tools_off = str_is(type, "none");
    r->p->call_required = str_is(type, "any") || str_is(type, "tool");
    if (str_is(type, "tool") && !name.p)
        return field_type(r, yyjson_obj_get(v, "name"), pointer_at(at, pointer, "name"), "a string");
    if (str_is(type, "tool"))
        r->p->call_name = name;
    if (str_is(type, "auto") || r->p->tools_off || r->p->call_required)
        return 0;
    return api_fail(r->err, 400, "invalid_value", pointer, "%s: expected {\"type\": ...} auto, any, tool or none", pointer);
}

static int read_thinking(struct reader *r, yyjson_val *v, const char *pointer)
{
    struct str type = json_str(yyjson_obj_get(v, "type"));
    r->p->no_think = str_is(type, "disabled");
    if (r->p->no_think || str_is(type, "enabled") || str_is(type, "adaptive"))
        return 0;
    return api_fail(r->err, 400, "invalid_value", pointer, "%s: expected {\"type\": ...} enabled, adaptive or disabled", pointer);
}

static int read_output_config(struct reader *r, yyjson_val *v, const char *pointer)
{
    static const struct field list[] = {CALLED("effort", read_effort), REFUSED("format")};
    return fields_read(r, v, pointer, list, FIELDS_COUNT(list));
}

#define MESSAGE_PARTS                                                                                                                \
    CALLED("model", read_model), CALLED("messages", keep_messages), CALLED("system", keep_system), CALLED("tools", keep_tools),        \
        CALLED("tool_choice", read_tool_choice), CALLED("thinking", read_thinking), CALLED("chat_template_kwargs", read_variables),    \
        SILENT("cache_control"), SILENT("context_management"), SILENT("betas"), SILENT("inference_geo"), SILENT("speed"), SILENT("diagnostics"),     \
        SILENT("user_profile_id"), SILENT("workspace_id"), CALLED("output_config", read_output_config), REFUSED("mcp_servers"), REFUSED("output_format"), REFUSED("container")

static const struct field message_fields[] = {
    MESSAGE_PARTS, SAMPLER_FIELDS, EXTRA_FIELDS, CALLED("truncation", read_truncation), REFUSED("prompt_logprobs"), CALLED("seed", read_seed), {"max_tokens", FIELD_I64, 1, 4294967295.0, AT(max_tokens), NULL},
    CALLED("stop_sequences", read_stops), {"stream", FIELD_BOOL, 0, 0, AT(stream), NULL}, SILENT("metadata"), SILENT("service_tier")};
static const struct field count_fields[] = {MESSAGE_PARTS};
const struct field_list message_field_list = {message_fields, FIELDS_COUNT(message_fields), false};
const struct field_list count_field_list = {count_fields, FIELDS_COUNT(count_fields), false};

static int make_chat(struct reader *r)
{
    struct buf *out = &r->p->messages;
    buf_char(out, '[');
    if (put_system(r, out) || put_messages(r, out))
        return -1;
    buf_char(out, ']');
    if (out->failed)
        return no_memory(r);
    if ((own(r)->tools && !r->p->tools_off && put_tools(r)) || chat_call_check(r, own(r)->tools))
        return -1;
    return chat_finish(r);
}

static int start_count(struct reader *r, struct call *c)
{
    return job_count_tokens(c, r->p, r->err);
}

static int prepare(struct reader *r)
{
    if (make_chat(r))
        return -1;
    if (r->p->max_tokens == 0)
        return api_fail(r->err, 400, "missing_required_parameter", "/max_tokens", "/max_tokens is missing");
    return 0;
}

static int start(struct reader *r, struct call *c)
{
    struct blocks *blocks = mem_try_zero(1, sizeof *blocks);
    int rc = blocks ? gen_start(c, r->p, NULL, 0, &messages_api, blocks, &r->ignored, r->err) : no_memory(r);
    if (rc)
        mem_free(blocks);
    return rc;
}

int route_messages(struct call *c, struct api_error *e)
{
    static const struct body_plan plan = {&message_field_list, "/messages", prepare, start, NULL};
    return body_route(c, e, &plan, &(struct anthropic){0}, sizeof(struct anthropic));
}

int route_count_tokens(struct call *c, struct api_error *e)
{
    static const struct body_plan plan = {&count_field_list, "/messages", make_chat, start_count, NULL};
    return body_route(c, e, &plan, &(struct anthropic){0}, sizeof(struct anthropic));
}
