/* server/api_responses.c - /v1/responses: input items become messages, earlier answers go before them, answers are kept and told again. */
#include "server/api_responses.h"

#include "base/mem.h"
#include "server/api_fields.h"
#include "server/body.h"
#include "server/routes.h"
#include "server/turn.h"

enum { TOOLS_MAX = 1024 };

struct responses_fields { /* read together */
    yyjson_val *input, *instructions, *tools, *metadata, *include;
    struct str previous;
    bool store;
    struct responses *made;
};

static struct responses_fields *own(struct reader *r)
{
    return r->p->own;
}

static int no_memory(struct reader *r)
{
    return api_fail(r->err, 503, NULL, "", "out of memory");
}

/* ---- items -> messages ---- */

/* Parts of an answer wait until its last item. */
struct input {
    struct buf *out;
    struct turn turn;
};

static int put_texts(struct reader *r, struct buf *out, yyjson_val *v, const char *pointer)
{
    size_t i, n;
    yyjson_val *part;
    char at[256], inner[256];
    if (yyjson_is_str(v)) {
        buf_str(out, json_str(v));
        return 0;
    }
    if (!yyjson_is_arr(v))
        return field_type(r, v, pointer, "a string or an array of parts");
    yyjson_arr_foreach(v, i, n, part) {
        struct str type = json_str(yyjson_obj_get(part, "type")), text = json_str(yyjson_obj_get(part, str_is(type, "refusal") ? "refusal" : "text"));
        pointer_index(at, pointer, i);
        if (!str_starts(type, STR("input_text")) && !str_is(type, "output_text") && !str_is(type, "refusal") && !str_is(type, "text") &&
            !str_is(type, "reasoning_text") && !str_is(type, "summary_text"))
            return api_fail(r->err, 400, "unsupported_content", pointer_at(inner, at, "type"), "%s: content of type '%.*s' is not supported; expected text",
                            inner, STR_ARG(type));
        if (!text.p)
            return field_type(r, yyjson_obj_get(part, "text"), pointer_at(inner, at, "text"), "a string");
        if (out->n && i)
            buf_char(out, '\n');
        buf_str(out, text);
    }
    return 0;
}

static int put_plain(struct reader *r, struct input *in, const char *role, yyjson_val *content, const char *pointer)
{
    struct buf text = {0};
    char at[256];
    turn_end(&in->turn, in->out);
    int rc = put_texts(r, &text, content, pointer_at(at, pointer, "content"));
    if (rc == 0) {
        message_begin(in->out, role);
        if (!strcmp(role, "system"))
            chat_system_put(r, in->out, buf_view(&text));
        else
            buf_json_str(in->out, buf_view(&text));
        buf_char(in->out, '}');
    }
    if (text.failed)
        rc = no_memory(r);
    buf_free(&text);
    return rc;
}

static int put_message(struct reader *r, struct input *in, yyjson_val *item, const char *pointer)
{
    struct turn *t = &in->turn;
    struct str role = json_str(yyjson_obj_get(item, "role"));
    yyjson_val *content = yyjson_obj_get(item, "content");
    char at[256];
    if (str_is(role, "assistant")) {
        if (t->calls.n || t->text.n)
            turn_end(t, in->out);
        t->open = true;
        return put_texts(r, &t->text, content, pointer_at(at, pointer, "content"));
    }
    if (!str_is(role, "user") && !str_is(role, "system") && !str_is(role, "developer"))
        return api_fail(r->err, 400, "invalid_value", pointer_at(at, pointer, "role"), "%s: expected user, system, developer or assistant, got '%.*s'", at,
                        STR_ARG(role));
    return put_plain(r, in, str_is(role, "user") ? "user" : "system", content, pointer);
}

static int put_call(struct reader *r, struct turn *t, yyjson_val *item, const char *pointer)
{
    struct str id = json_str(yyjson_obj_get(item, "call_id")), name = json_str(yyjson_obj_get(item, "name")),
               args = json_str(yyjson_obj_get(item, "arguments"));
    struct err err = {0};
    if (!id.p || !name.p || !args.p)
        return api_fail(r->err, 400, "invalid_type", pointer, "%s: expected call_id, name and arguments (strings)", pointer);
    yyjson_doc *doc = json_parse(args, "arguments", &err);
    struct buf quoted = {0};
    if (!yyjson_is_obj(yyjson_doc_get_root(doc))) {
        buf_json_str(&quoted, args);
        args = buf_view(&quoted);
    }
    turn_call(t, id, name, args);
    if (quoted.failed)
        t->calls.failed = quoted.failed;
    buf_free(&quoted);
    json_free(doc);
    return 0;
}

static int put_output(struct reader *r, struct input *in, yyjson_val *item, const char *pointer)
{
    struct buf text = {0};
    struct str id = json_str(yyjson_obj_get(item, "call_id"));
    char at[256];
    turn_end(&in->turn, in->out);
    if (!id.p)
        return field_type(r, yyjson_obj_get(item, "call_id"), pointer_at(at, pointer, "call_id"), "a string");
    int rc = put_texts(r, &text, yyjson_obj_get(item, "output"), pointer_at(at, pointer, "output"));
    if (rc == 0) {
        message_begin(in->out, "tool");
        buf_json_str(in->out, buf_view(&text));
        buf_z(in->out, ",\"tool_call_id\":");
        buf_json_str(in->out, id);
        buf_char(in->out, '}');
    }
    if (text.failed)
        rc = no_memory(r);
    buf_free(&text);
    return rc;
}

static int put_item(struct reader *r, struct input *in, yyjson_val *item, const char *pointer)
{
    struct turn *t = &in->turn;
    struct str type = json_str(yyjson_obj_get(item, "type"));
    char at[256];
    if (!yyjson_is_obj(item))
        return field_type(r, item, pointer, "an object");
    if (str_is(type, "message") || (!type.p && yyjson_obj_get(item, "role")))
        return put_message(r, in, item, pointer);
    if (str_is(type, "function_call"))
        return put_call(r, t, item, pointer);
    if (str_is(type, "function_call_output"))
        return put_output(r, in, item, pointer);
    if (str_is(type, "reasoning")) {
        yyjson_val *content = yyjson_obj_get(item, "content");
        if (t->calls.n || t->text.n)
            turn_end(t, in->out);
        t->open = true;
        return yyjson_is_arr(content) ? put_texts(r, &t->thinking, content, pointer_at(at, pointer, "content")) : 0;
    }
    return api_fail(r->err, 400, "unsupported_content", pointer_at(at, pointer, "type"), "%s: items of type '%.*s' are not supported", at, STR_ARG(type));
}

/* The new input as messages with commas between. */
static int put_input(struct reader *r, struct buf *out)
{
    yyjson_val *v = own(r)->input, *item;
    struct input in = {.out = out};
    size_t i, n;
    char at[256];
    int rc = 0;
    if (yyjson_is_str(v)) {
        message_begin(out, "user");
        buf_json_str(out, json_str(v));
        buf_char(out, '}');
    } else if (!yyjson_is_arr(v))
        rc = v ? field_type(r, v, "/input", "a string or an array of items")
               : api_fail(r->err, 400, "missing_required_parameter", "/input", "/input is missing");
    yyjson_arr_foreach(v, i, n, item)
        if (rc == 0)
            rc = put_item(r, &in, item, pointer_index(at, "/input", i));
    turn_end(&in.turn, out);
    turn_free(&in.turn);
    return rc ? rc : out->failed ? no_memory(r) : 0;
}

/* ---- fields ---- */

static int keep_input(struct reader *r, yyjson_val *v, const char *pointer)
{
    (void)pointer;
    own(r)->input = v;
    return 0;
}

static int keep_instructions(struct reader *r, yyjson_val *v, const char *pointer)
{
    if (!yyjson_is_str(v))
        return field_type(r, v, pointer, "a string");
    own(r)->instructions = v;
    return 0;
}

static int keep_metadata(struct reader *r, yyjson_val *v, const char *pointer)
{
    if (!yyjson_is_obj(v))
        return field_type(r, v, pointer, "an object");
    own(r)->metadata = v;
    return 0;
}

static int read_previous(struct reader *r, yyjson_val *v, const char *pointer)
{
    if (!yyjson_is_str(v))
        return field_type(r, v, pointer, "a string");
    own(r)->previous = json_str(v);
    return 0;
}

static int read_store(struct reader *r, yyjson_val *v, const char *pointer)
{
    if (!yyjson_is_bool(v))
        return field_type(r, v, pointer, "true or false");
    own(r)->store = yyjson_get_bool(v);
    return 0;
}

static int read_include(struct reader *r, yyjson_val *v, const char *pointer)
{
    size_t i, n;
    yyjson_val *item;
    if (!yyjson_is_arr(v))
        return field_type(r, v, pointer, "an array");
    yyjson_arr_foreach(v, i, n, item)
        r->p->logprobs |= str_is(json_str(item), "message.output_text.logprobs");
    return 0;
}

static int refuse_true(struct reader *r, yyjson_val *v, const char *pointer)
{
    if (yyjson_is_false(v))
        return 0;
    return api_fail(r->err, 400, "unsupported_parameter", pointer, "%s: true is not supported", pointer);
}

static int read_text(struct reader *r, yyjson_val *v, const char *pointer)
{
    char at[256];
    yyjson_val *format = yyjson_obj_get(v, "format"), *verbosity = yyjson_obj_get(v, "verbosity");
    if (!yyjson_is_obj(v))
        return field_type(r, v, pointer, "an object");
    if (verbosity && !yyjson_is_null(verbosity) && !str_is(json_str(verbosity), "medium"))
        return api_fail(r->err, 400, "unsupported_parameter", pointer_at(at, pointer, "verbosity"), "%s: expected medium", at);
    return format && !yyjson_is_null(format) ? read_response_format(r, format, pointer_at(at, pointer, "format")) : 0;
}

static int read_reasoning(struct reader *r, yyjson_val *v, const char *pointer)
{
    static const struct field list[] = {CALLED("effort", read_effort), SILENT("summary"), SILENT("generate_summary")};
    return fields_read(r, v, pointer, list, FIELDS_COUNT(list));
}

static int keep_tools(struct reader *r, yyjson_val *v, const char *pointer)
{
    if (!yyjson_is_arr(v) || yyjson_arr_size(v) > TOOLS_MAX)
        return field_type(r, v, pointer, "an array of at most 1024 tools");
    own(r)->tools = v;
    return 0;
}

static const struct field responses_fields[] = {
    CALLED("model", read_model), CALLED("input", keep_input), CALLED("instructions", keep_instructions), SAMPLER_FIELDS, EXTRA_FIELDS,
    CALLED("seed", read_seed), {"max_output_tokens", FIELD_I64, 1, 4294967295.0, AT(max_tokens), NULL}, {"stream", FIELD_BOOL, 0, 0, AT(stream), NULL},
    CALLED("stream_options", read_stream_options), CALLED("tools", keep_tools), CALLED("tool_choice", chat_tool_choice_read),
    CALLED("parallel_tool_calls", read_parallel), CALLED("previous_response_id", read_previous), CALLED("store", read_store),
    CALLED("text", read_text), CALLED("reasoning", read_reasoning), CALLED("truncation", read_truncation), CALLED("include", read_include),
    {"top_logprobs", FIELD_U32, 0, 128, AT(top_logprobs), NULL}, CALLED("chat_template_kwargs", read_variables), CALLED("metadata", keep_metadata),
    CALLED("background", refuse_true), CALLED("stop", read_stops), REFUSED("prompt_logprobs"), REFUSED("conversation"), REFUSED("prompt"), REFUSED("max_tool_calls"),
    REFUSED("context_management"), REFUSED("moderation"), SILENT("user"), SILENT("service_tier"), SILENT("prompt_cache_key"),
    SILENT("prompt_cache_retention"), SILENT("prompt_cache_options"), SILENT("safety_identifier"),
};
const struct field_list responses_field_list = {responses_fields, FIELDS_COUNT(responses_fields), false};

/* ---- tools: flat here, nested in templates ---- */

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
        yyjson_val *schema = yyjson_obj_get(tool, "parameters"), *text = yyjson_obj_get(tool, "description");
        pointer_index(at, "/tools", i);
        if (!str_is(type, "function"))
            rc = api_fail(r->err, 400, "unsupported_parameter", pointer_at(inner, at, "type"), "%s: tools of type '%.*s' are not supported; expected function",
                          inner, STR_ARG(type));
        else if (name.n == 0)
            rc = api_fail(r->err, 400, "invalid_value", pointer_at(inner, at, "name"), "%s: expected a name", inner);
        else if (yyjson_is_true(yyjson_obj_get(tool, "strict")))
            rc = api_fail(r->err, 400, "unsupported_parameter", pointer_at(inner, at, "strict"), "%s: true is not supported", inner);
        else if (schema && !yyjson_is_null(schema) && !yyjson_is_obj(schema))
            rc = field_type(r, schema, pointer_at(inner, at, "parameters"), "an object");
        if (rc)
            break;
        if (chat_tool_told(r->p, name))
            tool_put(&b, name, json_str(text), yyjson_is_obj(schema) ? schema : NULL);
    }
    buf_char(&b, ']');
    struct str kept = rc || b.failed ? (struct str){0} : arena_try_str(&r->p->arena, buf_view(&b));
    if (rc == 0 && !kept.p)
        rc = no_memory(r);
    if (n)
        r->p->chat.tools_json = (struct rh_text){kept.p, kept.n};
    buf_free(&b);
    return rc;
}

/* ---- the request ---- */

static void put_value(struct buf *b, const char *key, yyjson_val *v, const char *otherwise)
{
    buf_printf(b, ",\"%s\":", key);
    if (v)
        json_put(b, v);
    else
        buf_z(b, otherwise);
}

/* What the object repeats of the request. */
static int make_echo(struct reader *r, struct responses *o)
{
    const struct params *p = r->p;
    struct buf b = {0};
    put_value(&b, "instructions", own(r)->instructions, "null");
    put_value(&b, "metadata", own(r)->metadata, "{}");
    put_value(&b, "tools", own(r)->tools, "[]");
    put_value(&b, "tool_choice", p->tool_choice, "\"auto\"");
    buf_printf(&b, ",\"parallel_tool_calls\":%s,\"store\":%s,\"truncation\":\"%s\",\"background\":false", p->parallel_off ? "false" : "true",
               own(r)->store ? "true" : "false", p->o.truncate ? "auto" : "disabled");
    buf_z(&b, ",\"temperature\":");
    buf_json_f32(&b, p->sampling.temperature);
    buf_z(&b, ",\"top_p\":");
    buf_json_f32(&b, p->sampling.top_p);
    if (p->max_tokens)
        buf_printf(&b, ",\"max_output_tokens\":%lld", (long long)p->max_tokens);
    else
        buf_z(&b, ",\"max_output_tokens\":null");
    buf_z(&b, ",\"previous_response_id\":");
    if (own(r)->previous.n)
        buf_json_str(&b, own(r)->previous);
    else
        buf_z(&b, "null");
    buf_z(&b, ",\"text\":{\"format\":{\"type\":\"text\"}},\"reasoning\":{\"effort\":");
    if (p->effort.n)
        buf_json_str(&b, p->effort);
    else
        buf_z(&b, "null");
    buf_printf(&b, ",\"summary\":null},\"top_logprobs\":%u,\"user\":null", p->top_logprobs);
    buf_cstr(&b);
    if (b.failed) {
        buf_free(&b);
        return no_memory(r);
    }
    o->echo = b.p; /* a heap block like any other */
    return 0;
}

/* What is new of the conversation -> o->conversation, with commas between. */
static int make_talk(struct reader *r, struct responses *o)
{
    struct buf talk = {0};
    int rc = put_input(r, &talk);
    buf_cstr(&talk);
    if (rc == 0 && talk.failed)
        rc = no_memory(r);
    if (rc) {
        buf_free(&talk);
        return rc;
    }
    o->conversation = talk.p; /* a heap block like any other */
    return 0;
}

/* What was said before goes in front of it. */
static int take_earlier(struct reader *r, const struct call *c, struct responses *o)
{
    struct buf talk = {0};
    struct kept kept = {0};
    if (!own(r)->previous.n)
        return 0;
    if (!responses_find(c->s, own(r)->previous, c->key, &kept))
        return api_fail(r->err, 404, "previous_response_not_found", "/previous_response_id", "no response '%.*s' is kept here", STR_ARG(own(r)->previous));
    buf_z(&talk, kept.conversation);
    buf_z(&talk, talk.n && o->conversation[0] ? "," : "");
    buf_z(&talk, o->conversation);
    buf_cstr(&talk);
    if (talk.failed) {
        buf_free(&talk);
        return no_memory(r);
    }
    mem_free(o->conversation);
    o->conversation = talk.p; /* a heap block like any other */
    return 0;
}

/* Instructions and the conversation -> p->messages. */
static int make_messages(struct reader *r, const struct responses *o)
{
    struct buf *m = &r->p->messages;
    buf_char(m, '[');
    if (own(r)->instructions) {
        buf_z(m, "{\"role\":\"system\",\"content\":");
        chat_system_put(r, m, json_str(own(r)->instructions));
        buf_z(m, o->conversation[0] ? "}," : "}");
    }
    buf_z(m, o->conversation);
    buf_char(m, ']');
    return m->failed ? no_memory(r) : m->n > 2 ? 0 : api_fail(r->err, 400, "invalid_value", "/input", "/input: expected at least one item");
}

static void drop(struct reader *r)
{
    responses_free(own(r)->made);
    own(r)->made = NULL;
}

static int prepare(struct reader *r)
{
    struct responses *o = own(r)->made = mem_try_zero(1, sizeof *o);
    if (!o)
        return no_memory(r);
    o->store = own(r)->store;
    r->p->logprobs |= r->p->top_logprobs > 0;
    o->show_logprobs = r->p->logprobs;
    int rc = make_talk(r, o);
    if (rc == 0 && own(r)->tools && !r->p->tools_off)
        rc = put_tools(r);
    if (rc == 0)
        rc = chat_call_check(r, own(r)->tools);
    if (rc == 0)
        rc = make_echo(r, o);
    if (rc)
        drop(r);
    return rc;
}

static int start(struct reader *r, struct call *c)
{
    struct responses *o = own(r)->made;
    int rc = take_earlier(r, c, o);
    if (rc == 0)
        rc = make_messages(r, o);
    if (rc == 0)
        rc = chat_finish(r);
    if (rc == 0)
        rc = gen_start(c, r->p, NULL, 0, &responses_api, o, &r->ignored, r->err);
    if (rc)
        drop(r);
    return rc;
}

int route_responses(struct call *c, struct api_error *e)
{
    static const struct body_plan plan = {&responses_field_list, "/input", prepare, start, drop};
    return body_route(c, e, &plan, &(struct responses_fields){.store = true}, sizeof(struct responses_fields));
}

/* ---- earlier answers ---- */

static int reply(struct call *c, struct buf *b)
{
    call_reply_json(c, 200, (struct str){0}, b);
    buf_free(b);
    return 0;
}

static bool may_touch(const struct call *c, const struct gen *g)
{
    return g && g->api == &responses_api && (!c->key || c->key->admin || (g->key_name && !strcmp(g->key_name, c->key->name)));
}

static int not_found(const struct call *c, struct api_error *e)
{
    return api_fail(e, 404, "response_not_found", "", "no response '%.100s' is kept here", c->tail);
}

int route_response_get(struct call *c, struct api_error *e)
{
    struct kept kept;
    struct buf b = {0};
    const struct gen *g = gen_find(c->s, str_of(c->tail));
    if (responses_find(c->s, str_of(c->tail), c->key, &kept))
        buf_z(&b, kept.object);
    else if (may_touch(c, g))
        responses_put(g, &b, "in_progress");
    else
        return not_found(c, e);
    return reply(c, &b);
}

int route_response_delete(struct call *c, struct api_error *e)
{
    struct buf b = {0};
    if (!responses_forget(c->s, str_of(c->tail), c->key))
        return not_found(c, e);
    buf_z(&b, "{\"id\":");
    buf_json_str(&b, str_of(c->tail));
    buf_z(&b, ",\"object\":\"response.deleted\",\"deleted\":true}");
    return reply(c, &b);
}

int route_response_cancel(struct call *c, struct api_error *e)
{
    struct str id = str_of(c->tail);
    struct buf b = {0};
    if (!str_ends(id, STR("/cancel")))
        return not_found(c, e);
    id.n -= 7;
    struct gen *g = gen_find(c->s, id);
    if (!may_touch(c, g))
        return not_found(c, e);
    gen_cancel(g);
    responses_put(g, &b, "cancelled");
    return reply(c, &b);
}
