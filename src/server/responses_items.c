/* server/responses_items.c - an answer as OpenAI's Responses API tells it: items one after the other, each with its events.
 *
 *     response.created  response.in_progress
 *       ( response.output_item.added
 *           message:   content_part.added    output_text.delta*              output_text.done              content_part.done
 *           reasoning: content_part.added    reasoning_text.delta*           reasoning_text.done           content_part.done
 *           call:                            function_call_arguments.delta*  function_call_arguments.done
 *         response.output_item.done )*
 *     response.completed | response.incomplete | response.failed */
#include "base/mem.h"
#include "server/api_openai.h"
#include "server/api_responses.h"
#include "server/turn.h"

static struct responses *own(const struct gen *g)
{
    return g->own;
}

void responses_free(struct responses *r)
{
    if (!r)
        return;
    for (uint32_t i = 0; i < r->count; i++) {
        buf_free(&r->items[i].text);
        buf_free(&r->items[i].name);
        buf_free(&r->items[i].logprobs);
    }
    mem_free(r->items);
    mem_free(r->echo);
    mem_free(r->conversation);
    mem_free(r->error);
    buf_free(&r->object);
    buf_free(&r->talk);
    mem_free(r);
}

static void close_own(struct gen *g)
{
    responses_free(g->own);
}

/* ---- events ---- */

/* {"type":NAME,"sequence_number":N, then the caller's. */
static void event_open(struct gen *g, struct buf *b, const char *name)
{
    buf_printf(b, "{\"type\":\"%s\",\"sequence_number\":%llu", name, (unsigned long long)own(g)->sequence++);
}

static void event_send(struct gen *g, struct buf *b, const char *name)
{
    buf_char(b, '}');
    gen_event(g, name, buf_view(b));
    if (b->failed)
        g->out.failed = b->failed;
    buf_free(b);
}

static void item_event_open(struct gen *g, struct buf *b, const char *name, uint32_t index)
{
    event_open(g, b, name);
    buf_printf(b, ",\"item_id\":\"%s\",\"output_index\":%u", own(g)->items[index].id, index);
}

/* ---- the object ---- */

static void put_part(struct buf *b, const struct item *t, struct str text, bool show_logprobs)
{
    buf_z(b, t->kind == ITEM_REASONING ? "{\"type\":\"reasoning_text\",\"text\":" : "{\"type\":\"output_text\",\"annotations\":[],\"text\":");
    buf_json_str(b, text);
    if (t->kind == ITEM_MESSAGE) {
        buf_z(b, ",\"logprobs\":[");
        if (show_logprobs && text.n)
            buf_str(b, buf_view(&t->logprobs));
        buf_char(b, ']');
    }
    buf_char(b, '}');
}

static void put_item(struct buf *b, const struct responses *r, const struct item *t, const char *status, bool empty)
{
    buf_printf(b, "{\"id\":\"%s\",\"status\":\"%s\",", t->id, status);
    if (t->kind == ITEM_CALL) {
        buf_z(b, "\"type\":\"function_call\",\"call_id\":");
        buf_json_str(b, str_of(t->call_id));
        buf_z(b, ",\"name\":");
        buf_json_str(b, buf_view(&t->name));
        buf_z(b, ",\"arguments\":");
        buf_json_str(b, empty ? (struct str){"", 0} : buf_view(&t->text));
        buf_char(b, '}');
        return;
    }
    buf_z(b, t->kind == ITEM_REASONING ? "\"type\":\"reasoning\",\"summary\":[],\"content\":[" : "\"type\":\"message\",\"role\":\"assistant\",\"content\":[");
    if (!empty)
        put_part(b, t, buf_view(&t->text), r->show_logprobs);
    buf_z(b, "]}");
}

static const char *status_of(const struct gen *g)
{
    const struct gen_choice *c = &g->choices[0];
    if (own(g)->error)
        return "failed";
    return c->finish == RH_FINISH_STOP ? "completed" : c->finish == RH_FINISH_LENGTH ? "incomplete" : "cancelled";
}

void responses_put(const struct gen *g, struct buf *out, const char *status)
{
    const struct responses *r = own(g);
    bool over = !status;
    status = over ? status_of(g) : status;
    buf_printf(out, "{\"id\":\"%s\",\"object\":\"response\",\"created_at\":%lld,\"status\":\"%s\",\"model\":", g->id, (long long)g->created_s, status);
    buf_json_str(out, str_of(g->model));
    buf_printf(out, ",\"error\":%s,\"incomplete_details\":%s,\"output\":[", r->error ? r->error : "null",
               !strcmp(status, "incomplete") ? "{\"reason\":\"max_output_tokens\"}" : "null");
    for (uint32_t i = 0; over && i < r->count; i++) {
        buf_z(out, i ? "," : "");
        put_item(out, r, &r->items[i], r->items[i].whole ? "completed" : "incomplete", false);
    }
    buf_z(out, "]");
    buf_z(out, r->echo);
    uint32_t output = gen_completion_tokens(g);
    if (over)
        buf_printf(out, ",\"usage\":{\"input_tokens\":%u,\"input_tokens_details\":{\"cached_tokens\":%u},\"output_tokens\":%u,"
                   "\"output_tokens_details\":{\"reasoning_tokens\":%u},\"total_tokens\":%u}}", g->usage.prompt_tokens, g->usage.cached_tokens, output,
                   gen_reasoning_tokens(g), g->usage.prompt_tokens + output);
    else
        buf_z(out, ",\"usage\":null}");
}

static void object_event(struct gen *g, const char *name, const char *status)
{
    struct buf b = {0};
    event_open(g, &b, name);
    buf_z(&b, ",\"response\":");
    responses_put(g, &b, status);
    event_send(g, &b, name);
}

/* ---- items ---- */

static struct item *last(const struct gen *g)
{
    struct responses *r = own(g);
    return r->count && r->items[r->count - 1].open ? &r->items[r->count - 1] : NULL;
}

static void part_event(struct gen *g, const char *name, const struct item *t, uint32_t index, struct str text)
{
    struct buf b = {0};
    item_event_open(g, &b, name, index);
    buf_z(&b, ",\"content_index\":0,\"part\":");
    put_part(&b, t, text, own(g)->show_logprobs);
    event_send(g, &b, name);
}

static void item_event(struct gen *g, const char *name, const struct item *t, uint32_t index, const char *status, bool empty)
{
    struct buf b = {0};
    event_open(g, &b, name);
    buf_printf(&b, ",\"output_index\":%u,\"item\":", index);
    put_item(&b, own(g), t, status, empty);
    event_send(g, &b, name);
}

static void text_done(struct gen *g, const struct item *t, uint32_t index)
{
    static const char *const names[] = {"response.reasoning_text.done", "response.output_text.done", "response.function_call_arguments.done"};
    struct buf b = {0};
    item_event_open(g, &b, names[t->kind], index);
    if (t->kind == ITEM_CALL) {
        buf_z(&b, ",\"name\":");
        buf_json_str(&b, buf_view(&t->name));
        buf_z(&b, ",\"arguments\":");
    } else
        buf_z(&b, t->kind == ITEM_MESSAGE ? ",\"content_index\":0,\"logprobs\":[],\"text\":" : ",\"content_index\":0,\"text\":");
    buf_json_str(&b, buf_view(&t->text));
    event_send(g, &b, names[t->kind]);
}

static void item_end(struct gen *g, bool whole)
{
    struct item *t = last(g);
    if (!t)
        return;
    uint32_t index = (uint32_t)(t - own(g)->items);
    t->open = false;
    t->whole = whole;
    if (!g->stream)
        return;
    text_done(g, t, index);
    if (t->kind != ITEM_CALL)
        part_event(g, "response.content_part.done", t, index, buf_view(&t->text));
    item_event(g, "response.output_item.done", t, index, whole ? "completed" : "incomplete", false);
}

static struct item *item_new(struct gen *g, enum item_kind kind)
{
    static const char *const prefixes[] = {"rs_", "msg_", "fc_"};
    struct responses *r = own(g);
    if (r->count == r->cap) {
        uint32_t cap = r->cap ? 2 * r->cap : 4;
        struct item *grown = mem_try_resize(r->items, cap * sizeof *grown);
        if (!grown)
            return NULL;
        r->items = grown;
        r->cap = cap;
    }
    struct item *t = &r->items[r->count++];
    *t = (struct item){.kind = kind, .open = true};
    api_id(t->id, prefixes[kind]);
    return t;
}

/* The open item of this kind, opened if need be. */
static struct item *item_for(struct gen *g, enum item_kind kind, const struct rh_event *e)
{
    struct item *t = last(g);
    if (t && t->kind == kind && e->kind != RH_EVENT_CALL_BEGIN)
        return t;
    item_end(g, true);
    t = item_new(g, kind);
    if (!t) {
        g->choices[0].text.failed = ERR_NOMEM;
        return NULL;
    }
    if (kind == ITEM_CALL) {
        buf_z(&t->name, e->call_name);
        memcpy(t->call_id, e->call_id, strnlen(e->call_id, sizeof t->call_id - 1));
    }
    if (g->stream) {
        uint32_t index = own(g)->count - 1;
        item_event(g, "response.output_item.added", t, index, "in_progress", true);
        if (kind != ITEM_CALL)
            part_event(g, "response.content_part.added", t, index, (struct str){"", 0});
    }
    return t;
}

static void put_delta(struct gen *g, const struct item *t, struct str text, struct str logprobs)
{
    static const char *const names[] = {"response.reasoning_text.delta", "response.output_text.delta", "response.function_call_arguments.delta"};
    struct buf b = {0};
    item_event_open(g, &b, names[t->kind], own(g)->count - 1);
    if (t->kind != ITEM_CALL)
        buf_z(&b, ",\"content_index\":0");
    if (t->kind == ITEM_MESSAGE) {
        buf_z(&b, ",\"logprobs\":[");
        buf_str(&b, logprobs);
        buf_char(&b, ']');
    }
    buf_z(&b, ",\"delta\":");
    buf_json_str(&b, text);
    event_send(g, &b, names[t->kind]);
}

static void on_piece(struct gen *g, uint32_t choice, const struct rh_event *e)
{
    struct gen_choice *c = &g->choices[choice];
    enum item_kind kind = e->kind == RH_EVENT_TEXT ? ITEM_MESSAGE : e->kind == RH_EVENT_REASONING ? ITEM_REASONING : ITEM_CALL;
    if (e->kind == RH_EVENT_CALL_END) {
        item_end(g, e->call_whole);
        return;
    }
    if (e->text_n == 0 && e->kind != RH_EVENT_CALL_BEGIN)
        return;
    struct item *t = item_for(g, kind, e);
    if (!t || e->kind == RH_EVENT_CALL_BEGIN)
        return;
    buf_put(&t->text, e->text, e->text_n);
    if (c->logprobs.n && t->kind == ITEM_MESSAGE) {
        buf_z(&t->logprobs, t->logprobs.n ? "," : "");
        buf_str(&t->logprobs, buf_view(&c->logprobs));
    }
    if (g->stream)
        put_delta(g, t, str_n(e->text, e->text_n), buf_view(&c->logprobs));
    c->logprobs.n = 0;
    if (t->text.failed || t->logprobs.failed)
        c->text.failed = ERR_NOMEM;
}

/* ---- the whole ---- */

static void on_begin(struct gen *g)
{
    object_event(g, "response.created", "in_progress");
    object_event(g, "response.in_progress", "in_progress");
}

static void on_done(struct gen *g, uint32_t choice)
{
    item_end(g, g->choices[choice].finish == RH_FINISH_STOP);
}

/* The answer as messages of a chat, for whoever goes on from it. */
static void put_turn(const struct responses *r, struct buf *b)
{
    struct turn turn = {.open = true};
    for (uint32_t i = 0; i < r->count; i++) {
        const struct item *t = &r->items[i];
        if (t->kind == ITEM_CALL)
            turn_call(&turn, str_of(t->call_id), buf_view(&t->name), t->whole ? buf_view(&t->text) : STR("{}"));
        else
            buf_str(t->kind == ITEM_MESSAGE ? &turn.text : &turn.thinking, buf_view(&t->text));
    }
    buf_z(b, r->conversation);
    turn_end(&turn, b);
    turn_free(&turn);
}

static void keep(struct gen *g)
{
    if (own(g)->store)
        responses_keep(g->s, g->id, g->key_name, &own(g)->object, &own(g)->talk);
}

static void on_end(struct gen *g)
{
    const char *status = status_of(g);
    object_event(g, !strcmp(status, "completed") ? "response.completed" : !strcmp(status, "failed") ? "response.failed" : "response.incomplete", NULL);
    if (own(g)->store) {
        responses_put(g, &own(g)->object, NULL);
        put_turn(own(g), &own(g)->talk);
    }
    keep(g);
}

static void on_failed(struct gen *g, const struct api_error *e)
{
    struct buf b = {0};
    item_end(g, false);
    buf_printf(&b, "{\"code\":\"%s\",\"message\":", e->code ? e->code : "server_error");
    buf_json_str(&b, str_of(e->text));
    buf_char(&b, '}');
    buf_cstr(&b);
    if (b.failed)
        buf_free(&b);
    own(g)->error = b.p; /* a heap block like any other */
    on_end(g);
}

static void on_ping(struct gen *g)
{
    openai_ping(g);
}

static void reply(struct gen *g, struct buf *out)
{
    responses_put(g, out, NULL);
    if (own(g)->store) {
        buf_str(&own(g)->object, buf_view(out));
        put_turn(own(g), &own(g)->talk);
    }
}

const struct gen_api responses_api = {
    .shape = API_OPENAI, .stream_type = "text/event-stream; charset=utf-8", .id_prefix = "resp_", .always = true, .begin = on_begin, .piece = on_piece,
    .done = on_done, .end = on_end, .failed = on_failed, .ping = on_ping, .reply = reply, .written = keep, .logprob = openai_logprob, .close = close_own};
