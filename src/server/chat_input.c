/* server/chat_input.c - messages and tools of OpenAI's shape -> what templates take.
 *
 * Text parts become one string, "developer" becomes "system", arguments of earlier calls become objects (templates write them as JSON).
 * What would change the answer and cannot be had (images, audio) is refused with a pointer to it. */
#include "server/api.h"

#include "base/mem.h"
#include "server/volatile.h"

#include <stdio.h>

enum { TOOLS_MAX = 1024, TOOL_NAME_MAX = 256 };

static int no_memory(struct reader *r)
{
    return api_fail(r->err, 503, NULL, "", "out of memory");
}

/* Any value as JSON text. */
static int put_value(struct reader *r, struct buf *out, yyjson_val *v)
{
    json_put(out, v);
    return out->failed ? no_memory(r) : 0;
}

static int put_part(struct reader *r, struct buf *text, yyjson_val *part, const char *pointer)
{
    char at[256];
    struct str type = json_str(yyjson_obj_get(part, "type"));
    if (!yyjson_is_obj(part))
        return field_type(r, part, pointer, "an object");
    if (!str_is(type, "text") && !str_is(type, "input_text") && !str_is(type, "output_text") && !str_is(type, "refusal"))
        return api_fail(r->err, 400, "unsupported_content", pointer_at(at, pointer, "type"), "%s: content of type '%.*s' is not supported; expected text",
                        at, STR_ARG(type));
    yyjson_val *v = yyjson_obj_get(part, str_is(type, "refusal") ? "refusal" : "text");
    if (!yyjson_is_str(v))
        return field_type(r, v, pointer_at(at, pointer, "text"), "a string");
    if (text->n)
        buf_char(text, '\n');
    buf_str(text, json_str(v));
    return 0;
}

void chat_system_put(struct reader *r, struct buf *out, struct str text)
{
    struct buf kept = {0};
    if (r->s->cfg->verbatim) {
        buf_json_str(out, text);
        return;
    }
    volatile_put(&kept, text, r->s->cfg->undated, &r->p->left_away);
    buf_json_str(out, buf_view(&kept));
    if (kept.failed)
        out->failed = kept.failed;
    buf_free(&kept);
}

static void put_text(struct reader *r, struct buf *out, struct str text, bool system)
{
    if (system)
        chat_system_put(r, out, text);
    else
        buf_json_str(out, text);
}

static int put_content(struct reader *r, struct buf *out, yyjson_val *v, bool system, const char *pointer)
{
    struct buf text = {0};
    size_t i, n;
    yyjson_val *part;
    char at[256];
    int rc = 0;
    if (yyjson_is_str(v)) {
        put_text(r, out, json_str(v), system);
        return 0;
    }
    if (v && !yyjson_is_null(v) && !yyjson_is_arr(v))
        return field_type(r, v, pointer, "a string or an array of parts");
    yyjson_arr_foreach(v, i, n, part)
        if (rc == 0)
            rc = put_part(r, &text, part, pointer_index(at, pointer, i));
    if (rc == 0)
        put_text(r, out, buf_view(&text), system);
    if (text.failed)
        rc = no_memory(r);
    buf_free(&text);
    return rc;
}

/* A call's arguments: an object where they can be read as one, else the text they are. */
static int put_arguments(struct reader *r, struct buf *out, yyjson_val *v)
{
    struct err err = {0};
    yyjson_doc *doc = yyjson_is_str(v) ? json_parse(json_str(v), "arguments", &err) : NULL;
    int rc = 0;
    if (doc && yyjson_is_obj(yyjson_doc_get_root(doc)))
        rc = put_value(r, out, yyjson_doc_get_root(doc));
    else if (yyjson_is_str(v) && yyjson_get_len(v) == 0)
        buf_z(out, "{}");
    else
        rc = put_value(r, out, v);
    json_free(doc);
    return rc;
}

static int put_calls(struct reader *r, struct buf *out, yyjson_val *v, const char *pointer)
{
    size_t i, n;
    yyjson_val *call;
    char at[256];
    if (!yyjson_is_arr(v))
        return field_type(r, v, pointer, "an array");
    buf_z(out, ",\"tool_calls\":[");
    yyjson_arr_foreach(v, i, n, call) {
        yyjson_val *f = yyjson_obj_get(call, "function"), *name = yyjson_obj_get(f, "name"), *id = yyjson_obj_get(call, "id");
        pointer_index(at, pointer, i);
        if (!yyjson_is_str(name))
            return api_fail(r->err, 400, "invalid_type", at, "%s: expected a function call with a name", at);
        buf_z(out, i ? ",{\"type\":\"function\"," : "{\"type\":\"function\",");
        if (yyjson_is_str(id)) {
            buf_z(out, "\"id\":");
            buf_json_str(out, json_str(id));
            buf_char(out, ',');
        }
        buf_z(out, "\"function\":{\"name\":");
        buf_json_str(out, json_str(name));
        buf_z(out, ",\"arguments\":");
        yyjson_val *args = yyjson_obj_get(f, "arguments");
        if (args && put_arguments(r, out, args))
            return -1;
        buf_z(out, args ? "}}" : "{}}}");
    }
    buf_char(out, ']');
    return 0;
}

static int put_string(struct reader *r, struct buf *out, yyjson_val *m, const char *name, const char *as, const char *pointer)
{
    char at[256];
    yyjson_val *v = yyjson_obj_get(m, name);
    if (!v || yyjson_is_null(v))
        return 0;
    if (!yyjson_is_str(v))
        return field_type(r, v, pointer_at(at, pointer, name), "a string");
    buf_printf(out, ",\"%s\":", as);
    buf_json_str(out, json_str(v));
    return 0;
}

static int put_message(struct reader *r, struct buf *out, yyjson_val *m, const char *pointer)
{
    static const char *const roles[] = {"system", "developer", "user", "assistant", "tool", "function"};
    struct str role = json_str(yyjson_obj_get(m, "role"));
    size_t i = 0;
    char at[256];
    if (!yyjson_is_obj(m))
        return field_type(r, m, pointer, "an object");
    while (i < 6 && !str_is(role, roles[i]))
        i++;
    if (i == 6)
        return api_fail(r->err, 400, "invalid_value", pointer_at(at, pointer, "role"),
                        "%s: expected system, developer, user, assistant or tool, got '%.*s'", at, STR_ARG(role));
    yyjson_val *content = yyjson_obj_get(m, "content"), *calls = yyjson_obj_get(m, "tool_calls");
    if (!content && i != 3)
        return api_fail(r->err, 400, "missing_required_parameter", pointer_at(at, pointer, "content"), "%s is missing", at);
    if (yyjson_is_obj(yyjson_obj_get(m, "function_call")) || yyjson_is_obj(yyjson_obj_get(m, "audio")))
        return api_fail(r->err, 400, "unsupported_parameter", pointer, "%s: function_call and audio are not supported", pointer);
    buf_printf(out, "{\"role\":\"%s\",\"content\":", i == 1 ? "system" : i == 5 ? "tool" : roles[i]);
    if (put_content(r, out, content, i < 2, pointer_at(at, pointer, "content")))
        return -1;
    if (put_string(r, out, m, "name", "name", pointer) || put_string(r, out, m, "tool_call_id", "tool_call_id", pointer) ||
        put_string(r, out, m, "reasoning_content", "reasoning_content", pointer) ||
        (!yyjson_obj_get(m, "reasoning_content") && put_string(r, out, m, "reasoning", "reasoning_content", pointer)))
        return -1;
    if (calls && !yyjson_is_null(calls) && yyjson_arr_size(calls) && put_calls(r, out, calls, pointer_at(at, pointer, "tool_calls")))
        return -1;
    if (calls && !yyjson_is_null(calls) && !yyjson_is_arr(calls))
        return field_type(r, calls, pointer_at(at, pointer, "tool_calls"), "an array");
    buf_char(out, '}');
    return 0;
}

int chat_messages_read(struct reader *r, yyjson_val *v, const char *pointer)
{
    struct buf *out = &r->p->messages;
    size_t i, n;
    yyjson_val *m;
    char at[256];
    if (!yyjson_is_arr(v))
        return field_type(r, v, pointer, "an array of messages");
    if (yyjson_arr_size(v) == 0)
        return api_fail(r->err, 400, "invalid_value", pointer, "%s: expected at least one message", pointer);
    out->n = 0;
    buf_char(out, '[');
    yyjson_arr_foreach(v, i, n, m) {
        if (i)
            buf_char(out, ',');
        if (put_message(r, out, m, pointer_index(at, pointer, i)))
            return -1;
    }
    buf_char(out, ']');
    return out->failed ? no_memory(r) : 0;
}

int chat_tools_read(struct reader *r, yyjson_val *v, const char *pointer)
{
    size_t i, n;
    yyjson_val *tool;
    char at[256], inner[256];
    if (!yyjson_is_arr(v))
        return field_type(r, v, pointer, "an array of tools");
    if (yyjson_arr_size(v) > TOOLS_MAX)
        return api_fail(r->err, 400, "invalid_value", pointer, "%s: at most %d, got %zu", pointer, TOOLS_MAX, yyjson_arr_size(v));
    yyjson_arr_foreach(v, i, n, tool) {
        struct str type = json_str(yyjson_obj_get(tool, "type"));
        yyjson_val *f = yyjson_obj_get(tool, "function"), *name = yyjson_obj_get(f, "name"), *schema = yyjson_obj_get(f, "parameters");
        pointer_index(at, pointer, i);
        if (!yyjson_is_obj(tool))
            return field_type(r, tool, at, "an object");
        if (!str_is(type, "function"))
            return api_fail(r->err, 400, "unsupported_parameter", pointer_at(inner, at, "type"), "%s: tools of type '%.*s' are not supported; expected function",
                            inner, STR_ARG(type));
        if (!yyjson_is_str(name) || yyjson_get_len(name) == 0 || yyjson_get_len(name) > TOOL_NAME_MAX)
            return api_fail(r->err, 400, "invalid_value", pointer_at(inner, at, "function/name"), "%s: expected a name of 1 to %d bytes", inner,
                            TOOL_NAME_MAX);
        if (schema && !yyjson_is_null(schema) && !yyjson_is_obj(schema))
            return field_type(r, schema, pointer_at(inner, at, "function/parameters"), "an object");
        if (yyjson_is_true(yyjson_obj_get(f, "strict")))
            return api_fail(r->err, 400, "unsupported_parameter", pointer_at(inner, at, "function/strict"), "%s: true is not supported", inner);
    }
    r->p->tools = n ? v : NULL;
    return 0;
}

/* The tools of a list: {type: function, function: {name}} in chats, {type: function, name} in Responses. */
static struct str tool_name(yyjson_val *tool)
{
    yyjson_val *f = yyjson_obj_get(tool, "function");
    return json_str(yyjson_obj_get(f ? f : tool, "name"));
}

static bool among(yyjson_val *tools, struct str name)
{
    size_t i, n;
    yyjson_val *tool;
    yyjson_arr_foreach(tools, i, n, tool)
        if (str_eq(tool_name(tool), name))
            return true;
    return false;
}

bool chat_tool_told(const struct params *p, struct str name)
{
    return !p->allowed || among(p->allowed, name);
}

/* {type: allowed_tools, allowed_tools: {mode, tools}} in chats, {type: allowed_tools, mode, tools} in Responses. */
static int read_allowed(struct reader *r, yyjson_val *v, const char *pointer)
{
    yyjson_val *inner = yyjson_obj_get(v, "allowed_tools"), *box = inner ? inner : v, *tools = yyjson_obj_get(box, "tools"), *tool;
    struct str mode = json_str(yyjson_obj_get(box, "mode"));
    char own[256], at[256], each[256];
    size_t i, n;
    snprintf(own, sizeof own, "%s%s", pointer, inner ? "/allowed_tools" : "");
    r->p->call_required = str_is(mode, "required");
    if (!r->p->call_required && !str_is(mode, "auto"))
        return api_fail(r->err, 400, "invalid_value", pointer_at(at, own, "mode"), "%s: expected auto or required", at);
    pointer_at(at, own, "tools");
    if (!yyjson_is_arr(tools) || yyjson_arr_size(tools) == 0 || yyjson_arr_size(tools) > TOOLS_MAX)
        return api_fail(r->err, 400, "invalid_type", at, "%s: expected an array of 1 to %d tools", at, TOOLS_MAX);
    yyjson_arr_foreach(tools, i, n, tool) {
        if (!str_is(json_str(yyjson_obj_get(tool, "type")), "function") || !tool_name(tool).p)
            return api_fail(r->err, 400, "invalid_type", pointer_index(each, at, i), "%s: expected a function and its name", each);
    }
    r->p->allowed = tools;
    r->p->o.told_calls = true;
    return 0;
}

/* "auto", "none", "required", one tool, or some. */
int chat_tool_choice_read(struct reader *r, yyjson_val *v, const char *pointer)
{
    struct str text = json_str(v), type = json_str(yyjson_obj_get(v, "type"));
    yyjson_val *f = yyjson_obj_get(v, "function"), *name = yyjson_obj_get(f ? f : v, "name");
    char at[256];
    r->p->tool_choice = v;
    r->p->tools_off = str_is(text, "none");
    r->p->call_required = str_is(text, "required");
    if (r->p->tools_off || r->p->call_required || str_is(text, "auto"))
        return 0;
    if (!yyjson_is_obj(v))
        return yyjson_is_str(v) ? api_fail(r->err, 400, "invalid_value", pointer, "%s: expected auto, none, required or a function, got '%.*s'", pointer,
                                           STR_ARG(text))
                                : field_type(r, v, pointer, "a string or an object");
    if (str_is(type, "allowed_tools"))
        return read_allowed(r, v, pointer);
    if (!str_is(type, "function"))
        return api_fail(r->err, 400, "unsupported_parameter", pointer_at(at, pointer, "type"),
                        "%s: '%.*s' is not supported; expected function or allowed_tools", at, STR_ARG(type));
    if (!yyjson_is_str(name))
        return field_type(r, name, pointer_at(at, pointer, f ? "function/name" : "name"), "a string");
    r->p->call_required = true;
    r->p->call_name = json_str(name);
    return 0;
}

int chat_call_check(struct reader *r, yyjson_val *tools)
{
    const struct params *p = r->p;
    struct str missing = p->call_name.p && !among(tools, p->call_name) ? p->call_name : (struct str){0};
    size_t i, n;
    yyjson_val *tool;
    yyjson_arr_foreach(p->allowed, i, n, tool)
        if (!missing.p && !among(tools, tool_name(tool)))
            missing = tool_name(tool);
    if (missing.p)
        return api_fail(r->err, 400, "invalid_value", "/tool_choice", "/tool_choice: there is no tool '%.*s'", STR_ARG(missing));
    if (p->call_required && yyjson_arr_size(tools) == 0)
        return api_fail(r->err, 400, "invalid_value", "/tool_choice", "/tool_choice: a call is required, but there are no tools");
    return 0;
}

/* All of them as they came, or those that may be called. */
static int put_tools(struct reader *r, struct buf *out)
{
    size_t i, n;
    yyjson_val *tool;
    if (!r->p->allowed)
        return put_value(r, out, r->p->tools);
    buf_char(out, '[');
    yyjson_arr_foreach(r->p->tools, i, n, tool) {
        if (!chat_tool_told(r->p, tool_name(tool)))
            continue;
        if (out->n > 1)
            buf_char(out, ',');
        json_put(out, tool);
    }
    buf_char(out, ']');
    return out->failed ? no_memory(r) : 0;
}

/* Variables of the template: what the request says, effort among them. */
static int variables_text(struct reader *r, struct buf *b)
{
    struct params *p = r->p;
    yyjson_obj_iter it = yyjson_obj_iter_with(p->variables);
    bool has_effort = yyjson_obj_get(p->variables, "reasoning_effort"), has_thinking = yyjson_obj_get(p->variables, "enable_thinking");
    buf_char(b, '{');
    for (yyjson_val *k; p->variables && (k = yyjson_obj_iter_next(&it));) {
        if (b->n > 1)
            buf_char(b, ',');
        buf_json_str(b, json_str(k));
        buf_char(b, ':');
        if (put_value(r, b, yyjson_obj_iter_get_val(k)))
            return -1;
    }
    if (p->effort.n && !has_effort && !str_is(p->effort, "none")) {
        buf_z(b, b->n > 1 ? ",\"reasoning_effort\":" : "\"reasoning_effort\":");
        buf_json_str(b, p->effort);
    }
    if ((p->no_think || str_is(p->effort, "none")) && !has_thinking)
        buf_z(b, b->n > 1 ? ",\"enable_thinking\":false" : "\"enable_thinking\":false");
    buf_char(b, '}');
    return b->failed ? no_memory(r) : 0;
}

static int keep(struct reader *r, struct buf *b, struct rh_text *out)
{
    struct str kept = b->failed ? (struct str){0} : arena_try_str(&r->p->arena, buf_view(b));
    *out = (struct rh_text){kept.p, kept.n};
    return kept.p ? 0 : no_memory(r);
}

int chat_finish(struct reader *r)
{
    struct params *p = r->p;
    struct buf b = {0};
    int rc = 0;
    if (p->messages.n == 0)
        return api_fail(r->err, 400, "missing_required_parameter", "/messages", "messages is missing");
    p->chat.messages_json = (struct rh_text){p->messages.p, p->messages.n};
    if (p->tools && !p->tools_off && !p->chat.tools_json.p) {
        rc = put_tools(r, &b);
        rc = rc ? rc : keep(r, &b, &p->chat.tools_json);
        b.n = 0;
    }
    if (rc == 0)
        rc = variables_text(r, &b);
    if (rc == 0)
        rc = keep(r, &b, &p->chat.variables_json);
    buf_free(&b);
    p->o.chat = &p->chat;
    return rc;
}
