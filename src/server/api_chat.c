/* server/api_chat.c - POST /v1/chat/completions, and what it shares with /v1/completions. */
#include "base/mem.h"
#include "server/api_fields.h"
#include "server/body.h"
#include "server/api_openai.h"
#include "server/routes.h"

/* ---- shared ---- */

static void put_usage(const struct gen *g, struct buf *out)
{
    uint32_t completion = gen_completion_tokens(g);
    buf_printf(out, "\"usage\":{\"prompt_tokens\":%u,\"completion_tokens\":%u,\"total_tokens\":%u,\"prompt_tokens_details\":{\"cached_tokens\":%u,"
               "\"audio_tokens\":0},\"completion_tokens_details\":{\"reasoning_tokens\":%u,\"audio_tokens\":0,\"accepted_prediction_tokens\":0,"
               "\"rejected_prediction_tokens\":0}}", g->usage.prompt_tokens, completion, g->usage.prompt_tokens + completion, g->usage.cached_tokens,
               gen_reasoning_tokens(g));
}

static void put_timings(const struct gen *g, struct buf *out)
{
    const struct rh_timings *t = &g->timings;
    buf_printf(out, ",\"timings\":{\"queue_ms\":%.3f,\"prompt_ms\":%.3f,\"predicted_ms\":%.3f,\"prompt_per_second\":%.3f,"
               "\"predicted_per_second\":%.3f}", t->queue_ms, t->prefill_ms, t->decode_ms, t->prefill_tokens_per_s, t->decode_tokens_per_s);
}

void openai_put_bytes(struct buf *out, struct str bytes)
{
    buf_char(out, '[');
    for (size_t i = 0; i < bytes.n; i++)
        buf_printf(out, "%s%u", i ? "," : "", (unsigned char)bytes.p[i]);
    buf_char(out, ']');
}

void openai_failed(struct gen *g, const struct api_error *e)
{
    struct buf b = {0};
    api_error_put(&b, API_OPENAI, e);
    gen_event(g, NULL, buf_view(&b));
    gen_event(g, NULL, STR("[DONE]"));
    buf_free(&b);
}

/* A comment; with return_progress an event of its own. */
void openai_ping(struct gen *g)
{
    uint32_t done = 0, total = 0;
    if (g->request_count)
        rh_request_progress(g->requests[0], &done, &total);
    if (g->progress && total && !g->first_ns)
        buf_printf(&g->out, ": progress %u/%u\n\n", done, total);
    else
        buf_z(&g->out, ": keep-alive\n\n");
}

void openai_open(const struct gen *g, struct buf *out, const char *object)
{
    buf_printf(out, "{\"id\":\"%s\",\"object\":\"%s\",\"created\":%lld,\"model\":", g->id, object, (long long)g->created_s);
    buf_json_str(out, str_of(g->model));
    buf_z(out, ",\"system_fingerprint\":\"rhapsode-" RH_VERSION "\",\"choices\":[");
}

void openai_choice_end(const struct gen *g, struct gen_choice *c, const char *tools, struct buf *out)
{
    if (g->return_ids)
        buf_printf(out, ",\"token_ids\":[%s]", buf_cstr(&c->ids));
    if (c->stop_string) {
        buf_z(out, ",\"stop_reason\":");
        buf_json_str(out, str_of(c->stop_string));
    }
    buf_printf(out, ",\"finish_reason\":\"%s\"}", gen_finish(c, "stop", "length", tools));
}

void openai_close(struct gen *g, struct buf *out)
{
    buf_z(out, "],");
    put_usage(g, out);
    put_timings(g, out);
    buf_printf(out, ",\"seed\":%llu", (unsigned long long)g->choices[0].seed);
    if (g->return_ids)
        buf_printf(out, ",\"prompt_token_ids\":[%s]", buf_cstr(&g->prompt_ids));
}

void openai_send_chunk(struct gen *g, struct buf *b)
{
    buf_z(b, g->include_usage ? "],\"usage\":null}" : "]}");
    gen_event(g, NULL, buf_view(b));
    if (b->failed)
        g->out.failed = b->failed;
    buf_free(b);
}

void openai_end(struct gen *g, const char *object)
{
    if (g->include_usage) {
        struct buf b = {0};
        openai_open(g, &b, object);
        buf_z(&b, "],");
        put_usage(g, &b);
        put_timings(g, &b);
        buf_char(&b, '}');
        gen_event(g, NULL, buf_view(&b));
        buf_free(&b);
    }
    gen_event(g, NULL, STR("[DONE]"));
}

/* ---- logprobs ---- */

void openai_put_number(struct buf *out, float logprob)
{
    if (logprob > -9999)
        buf_json_f32(out, logprob);
    else
        buf_z(out, "-9999");
}

static void put_token(struct gen *g, struct buf *out, uint32_t id, float logprob)
{
    struct buf scratch = {0};
    struct str bytes = gen_token_bytes(g, id, &scratch);
    buf_z(out, "{\"token\":");
    buf_json_str(out, bytes);
    buf_z(out, ",\"logprob\":");
    openai_put_number(out, logprob);
    buf_z(out, ",\"bytes\":");
    openai_put_bytes(out, bytes);
    buf_free(&scratch);
}

static void put_prompt_token(struct gen *g, struct buf *out, uint32_t id, float logprob, uint32_t rank)
{
    struct buf scratch = {0};
    buf_printf(out, "\"%u\":{\"logprob\":", id);
    openai_put_number(out, logprob);
    if (rank)
        buf_printf(out, ",\"rank\":%u,\"decoded_token\":", rank);
    else
        buf_z(out, ",\"rank\":null,\"decoded_token\":");
    buf_json_str(out, gen_token_bytes(g, id, &scratch));
    buf_char(out, '}');
    buf_free(&scratch);
}

/* vLLM's shape: nothing for the first id, then an object of ids: the prompt's own and the likeliest. */
void openai_put_prompt_logprobs(struct gen *g, uint32_t request, struct buf *out)
{
    struct rh_top tops[RH_PROMPT_TOP_MAX];
    uint32_t count;
    float own;
    if (!g->show_prompt_logprobs)
        return;
    const struct gen_prompt *p = &g->prompts[request];
    buf_z(out, ",\"prompt_logprobs\":[null");
    for (size_t i = 1; i < p->n && rh_request_prompt_logprob(g->requests[request], i, &own, tops, &count); i++) {
        bool among = false;
        buf_z(out, ",{");
        for (uint32_t k = 0; k < count; k++)
            among |= tops[k].id == p->ids[i];
        if (!among)
            put_prompt_token(g, out, p->ids[i], own, 0);
        for (uint32_t k = 0; k < count; k++) {
            buf_z(out, k || !among ? "," : "");
            put_prompt_token(g, out, tops[k].id, tops[k].logprob, k + 1);
        }
        buf_char(out, '}');
    }
    buf_char(out, ']');
}

void openai_logprob(struct gen *g, struct gen_choice *c, const struct rh_event *e)
{
    struct buf *out = &c->logprobs;
    if (out->n)
        buf_char(out, ',');
    put_token(g, out, e->id, e->logprob);
    buf_z(out, ",\"top_logprobs\":[");
    for (uint32_t i = 0; i < e->top_count; i++) {
        if (i)
            buf_char(out, ',');
        put_token(g, out, e->tops[i].id, e->tops[i].logprob);
        buf_char(out, '}');
    }
    buf_z(out, "]}");
}

static void put_logprobs(struct gen *g, struct gen_choice *c, struct buf *out)
{
    if (!g->show_logprobs)
        return;
    buf_z(out, ",\"logprobs\":{\"content\":[");
    buf_str(out, buf_view(&c->logprobs));
    buf_z(out, "],\"refusal\":null}");
}

/* ---- stream ---- */

static void chunk_open(const struct gen *g, struct buf *b)
{
    openai_open(g, b, "chat.completion.chunk");
}

static void chat_begin(struct gen *g)
{
    for (uint32_t i = 0; i < g->choice_count; i++) {
        struct buf b = {0};
        chunk_open(g, &b);
        buf_printf(&b, "{\"index\":%u,\"delta\":{\"role\":\"assistant\",\"content\":\"\",\"refusal\":null},\"logprobs\":null,\"finish_reason\":null}", i);
        openai_send_chunk(g, &b);
    }
}

static void put_call_delta(const struct rh_event *e, struct buf *b)
{
    buf_printf(b, "\"tool_calls\":[{\"index\":%u", e->call);
    if (e->kind == RH_EVENT_CALL_BEGIN) {
        buf_z(b, ",\"id\":");
        buf_json_str(b, str_of(e->call_id));
        buf_z(b, ",\"type\":\"function\",\"function\":{\"name\":");
        buf_json_str(b, str_of(e->call_name));
        buf_z(b, ",\"arguments\":\"\"}}]");
        return;
    }
    buf_z(b, ",\"function\":{\"arguments\":");
    buf_json_str(b, str_n(e->text, e->text_n));
    buf_z(b, "}}]");
}

static void chat_piece(struct gen *g, uint32_t choice, const struct rh_event *e)
{
    struct gen_choice *c = &g->choices[choice];
    struct buf b = {0};
    bool shown = e->text_n || e->kind == RH_EVENT_CALL_BEGIN;
    if (!shown && !c->logprobs.n && !c->ids.n)
        return;
    chunk_open(g, &b);
    buf_printf(&b, "{\"index\":%u,\"delta\":{", choice);
    if (shown && e->kind != RH_EVENT_TEXT && e->kind != RH_EVENT_REASONING)
        put_call_delta(e, &b);
    else if (shown) {
        buf_z(&b, e->kind == RH_EVENT_REASONING ? "\"reasoning_content\":" : "\"content\":");
        buf_json_str(&b, str_n(e->text, e->text_n));
    }
    buf_char(&b, '}');
    if (c->logprobs.n)
        put_logprobs(g, c, &b);
    else
        buf_z(&b, ",\"logprobs\":null");
    if (c->ids.n)
        buf_printf(&b, ",\"token_ids\":[%s]", buf_cstr(&c->ids));
    c->logprobs.n = c->ids.n = 0;
    buf_z(&b, ",\"finish_reason\":null}");
    openai_send_chunk(g, &b);
}

static void chat_done(struct gen *g, uint32_t choice)
{
    const struct gen_choice *c = &g->choices[choice];
    struct buf b = {0};
    chunk_open(g, &b);
    buf_printf(&b, "{\"index\":%u,\"delta\":{},\"logprobs\":null,\"finish_reason\":\"%s\"}", choice, gen_finish(c, "stop", "length", "tool_calls"));
    openai_send_chunk(g, &b);
}

static void chat_end(struct gen *g)
{
    openai_end(g, "chat.completion.chunk");
}

/* ---- whole answers ---- */

static void put_calls(const struct gen_choice *c, struct buf *out)
{
    buf_z(out, ",\"tool_calls\":[");
    for (uint32_t i = 0; i < c->tool_count; i++) {
        const struct gen_tool *t = &c->tools[i];
        buf_z(out, i ? ",{\"id\":" : "{\"id\":");
        buf_json_str(out, str_of(t->id));
        buf_z(out, ",\"type\":\"function\",\"function\":{\"name\":");
        buf_json_str(out, buf_view(&t->name));
        buf_z(out, ",\"arguments\":");
        buf_json_str(out, buf_view(&t->arguments));
        buf_z(out, "}}");
    }
    buf_char(out, ']');
}

static void put_choice(struct gen *g, uint32_t i, struct buf *out)
{
    struct gen_choice *c = &g->choices[i];
    buf_printf(out, "%s{\"index\":%u,\"message\":{\"role\":\"assistant\",\"content\":", i ? "," : "", i);
    if (c->tool_count && c->text.n == 0)
        buf_z(out, "null");
    else
        buf_json_str(out, buf_view(&c->text));
    buf_z(out, ",\"refusal\":null");
    if (c->reasoning.n) {
        buf_z(out, ",\"reasoning_content\":");
        buf_json_str(out, buf_view(&c->reasoning));
    }
    if (c->tool_count)
        put_calls(c, out);
    buf_char(out, '}');
    if (g->show_logprobs)
        put_logprobs(g, c, out);
    else
        buf_z(out, ",\"logprobs\":null");
    openai_choice_end(g, c, "tool_calls", out);
}

static void chat_reply(struct gen *g, struct buf *out)
{
    openai_open(g, out, "chat.completion");
    for (uint32_t i = 0; i < g->choice_count; i++)
        put_choice(g, i, out);
    openai_close(g, out);
    openai_put_prompt_logprobs(g, 0, out);
    buf_char(out, '}');
}

static const struct gen_api chat_api = {
    .shape = API_OPENAI, .stream_type = "text/event-stream; charset=utf-8", .id_prefix = "chatcmpl-", .begin = chat_begin, .piece = chat_piece,
    .done = chat_done, .end = chat_end, .failed = openai_failed, .ping = openai_ping, .reply = chat_reply, .logprob = openai_logprob};

int openai_check_prompt_logprobs(struct reader *r)
{
    if (r->p->stream && r->p->o.prompt_logprobs)
        return api_fail(r->err, 400, "unsupported_parameter", "/prompt_logprobs", "/prompt_logprobs: not in a stream");
    return 0;
}

/* ---- the request ---- */

static int read_modalities(struct reader *r, yyjson_val *v, const char *pointer)
{
    if (yyjson_arr_size(v) == 1 && str_is(json_str(yyjson_arr_get_first(v)), "text"))
        return 0;
    return api_fail(r->err, 400, "unsupported_parameter", pointer, "%s: expected [\"text\"]", pointer);
}

static int read_verbosity(struct reader *r, yyjson_val *v, const char *pointer)
{
    if (str_is(json_str(v), "medium"))
        return 0;
    return api_fail(r->err, 400, "unsupported_parameter", pointer, "%s: expected medium, others are not supported", pointer);
}

static const struct field chat_fields[] = {
    CALLED("model", read_model), CALLED("messages", chat_messages_read), SAMPLER_FIELDS, EXTRA_FIELDS, CALLED("prompt_logprobs", read_prompt_logprobs),
    CALLED("seed", read_seed), {"max_tokens", FIELD_I64, 1, 4294967295.0, AT(max_tokens), NULL},
    {"max_completion_tokens", FIELD_I64, 1, 4294967295.0, AT(max_tokens), NULL}, CALLED("stop", read_stops),
    {"n", FIELD_U32, 1, 128, AT(n), NULL}, CALLED("logit_bias", read_bias), {"logprobs", FIELD_BOOL, 0, 0, AT(logprobs), NULL},
    {"top_logprobs", FIELD_U32, 0, 128, AT(top_logprobs), NULL}, {"stream", FIELD_BOOL, 0, 0, AT(stream), NULL},
    CALLED("stream_options", read_stream_options), CALLED("tools", chat_tools_read), CALLED("tool_choice", chat_tool_choice_read),
    CALLED("parallel_tool_calls", read_parallel), CALLED("reasoning_effort", read_effort), CALLED("chat_template_kwargs", read_variables),
    CALLED("response_format", read_response_format), CALLED("modalities", read_modalities), CALLED("truncation", read_truncation),
    REFUSED("audio"), REFUSED("functions"), REFUSED("function_call"), REFUSED("web_search_options"), REFUSED("chat_template"),
    REFUSED("documents"), REFUSED("continue_final_message"), SILENT("prediction"), CALLED("verbosity", read_verbosity), SILENT("user"), SILENT("metadata"),
    SILENT("store"), SILENT("service_tier"), SILENT("prompt_cache_key"), SILENT("prompt_cache_retention"), SILENT("safety_identifier"),
};
const struct field_list chat_field_list = {chat_fields, FIELDS_COUNT(chat_fields), false};

static int prepare(struct reader *r)
{
    struct params *p = r->p;
    if (p->top_logprobs && !p->logprobs)
        return api_fail(r->err, 400, "invalid_value", "/top_logprobs", "/top_logprobs needs logprobs: true");
    return openai_check_prompt_logprobs(r) || chat_call_check(r, p->tools) || chat_finish(r) ? -1 : 0;
}

static int start(struct reader *r, struct call *c)
{
    return gen_start(c, r->p, NULL, 0, &chat_api, NULL, &r->ignored, r->err);
}

int route_chat(struct call *c, struct api_error *e)
{
    static const struct body_plan plan = {&chat_field_list, "/messages", prepare, start, NULL};
    return body_route(c, e, &plan, NULL, 0);
}
