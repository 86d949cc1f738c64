/* server/api_completions.c - POST /v1/completions: raw texts or ids go on. */
#include "base/mem.h"
#include "server/api_fields.h"
#include "server/api_openai.h"
#include "server/routes.h"

enum { PROMPTS_MAX = 128, CHOICES_MAX = 1024 };

/* of one choice, in OpenAI's four lists; owns */
struct token_lists {
    struct buf tokens, logprobs, tops, offsets;
    size_t characters;
};
/* the arena of the request ends with gen_start: own memory */
struct completions {
    struct token_lists *lists; /* [choices] */
    struct buf *echoes;        /* [requests]; empty: none */
    uint32_t choices, requests;
};

static void completions_free(struct completions *own)
{
    if (!own)
        return;
    for (uint32_t i = 0; own->lists && i < own->choices; i++) {
        buf_free(&own->lists[i].tokens);
        buf_free(&own->lists[i].logprobs);
        buf_free(&own->lists[i].tops);
        buf_free(&own->lists[i].offsets);
    }
    for (uint32_t i = 0; own->echoes && i < own->requests; i++)
        buf_free(&own->echoes[i]);
    mem_free(own->lists);
    mem_free(own->echoes);
    mem_free(own);
}

static void close_own(struct gen *g)
{
    completions_free(g->own);
}

static const struct buf *echo_of(const struct gen *g, uint32_t choice)
{
    const struct completions *own = g->own;
    return &own->echoes[choice / g->per_request];
}

/* ---- logprobs ---- */

static size_t characters(struct str s)
{
    size_t n = 0;
    for (size_t i = 0; i < s.n; i++)
        n += ((unsigned char)s.p[i] & 0xC0) != 0x80;
    return n;
}

static void put_logprob(struct buf *out, float v)
{
    if (v > -9999)
        buf_json_f32(out, v);
    else
        buf_z(out, "-9999");
}

static void add_logprob(struct gen *g, struct gen_choice *c, const struct rh_event *e)
{
    struct completions *own = g->own;
    struct token_lists *l = &own->lists[c - g->choices];
    struct buf scratch = {0};
    const char *comma = l->tokens.n ? "," : "";
    struct str bytes = gen_token_bytes(g, e->id, &scratch);
    buf_z(&l->tokens, comma);
    buf_json_str(&l->tokens, bytes);
    buf_z(&l->logprobs, comma);
    put_logprob(&l->logprobs, e->logprob);
    buf_printf(&l->offsets, "%s%zu", comma, l->characters);
    l->characters += characters(bytes);
    buf_z(&l->tops, comma);
    buf_char(&l->tops, '{');
    for (uint32_t i = 0; i < e->top_count; i++) {
        buf_z(&l->tops, i ? "," : "");
        buf_json_str(&l->tops, gen_token_bytes(g, e->tops[i].id, &scratch));
        buf_char(&l->tops, ':');
        put_logprob(&l->tops, e->tops[i].logprob);
    }
    buf_char(&l->tops, '}');
    if (l->tokens.failed || l->tops.failed || l->logprobs.failed || l->offsets.failed)
        c->logprobs.failed = ERR_NOMEM;
    buf_free(&scratch);
}

static void put_logprobs(struct gen *g, uint32_t choice, struct buf *out)
{
    struct completions *own = g->own;
    struct token_lists *l = &own->lists[choice];
    if (!g->show_logprobs || (g->stream && l->tokens.n == 0)) {
        buf_z(out, "\"logprobs\":null");
        return;
    }
    buf_printf(out, "\"logprobs\":{\"tokens\":[");
    buf_str(out, buf_view(&l->tokens));
    buf_z(out, "],\"token_logprobs\":[");
    buf_str(out, buf_view(&l->logprobs));
    buf_z(out, "],\"top_logprobs\":[");
    buf_str(out, buf_view(&l->tops));
    buf_z(out, "],\"text_offset\":[");
    buf_str(out, buf_view(&l->offsets));
    buf_z(out, "]}");
    l->tokens.n = l->logprobs.n = l->tops.n = l->offsets.n = 0;
}

/* ---- answers ---- */

static void open_object(const struct gen *g, struct buf *b)
{
    buf_printf(b, "{\"id\":\"%s\",\"object\":\"text_completion\",\"created\":%lld,\"model\":", g->id, (long long)g->created_s);
    buf_json_str(b, str_of(g->model));
    buf_z(b, ",\"system_fingerprint\":\"rhapsode-" RH_VERSION "\",\"choices\":[");
}

static void send_chunk(struct gen *g, struct buf *b)
{
    buf_z(b, g->include_usage ? "],\"usage\":null}" : "]}");
    gen_event(g, NULL, buf_view(b));
    if (b->failed)
        g->out.failed = b->failed;
    buf_free(b);
}

static void put_chunk(struct gen *g, uint32_t choice, struct str text, const char *finish)
{
    struct gen_choice *c = &g->choices[choice];
    struct buf b = {0};
    open_object(g, &b);
    buf_printf(&b, "{\"index\":%u,\"text\":", choice);
    buf_json_str(&b, text);
    buf_char(&b, ',');
    put_logprobs(g, choice, &b);
    if (c->ids.n)
        buf_printf(&b, ",\"token_ids\":[%s]", buf_cstr(&c->ids));
    c->ids.n = 0;
    if (finish)
        buf_printf(&b, ",\"finish_reason\":\"%s\"}", finish);
    else
        buf_z(&b, ",\"finish_reason\":null}");
    send_chunk(g, &b);
}

static void on_begin(struct gen *g)
{
    for (uint32_t i = 0; i < g->choice_count; i++)
        if (echo_of(g, i)->n)
            put_chunk(g, i, buf_view(echo_of(g, i)), NULL);
}

static void on_text(struct gen *g, uint32_t choice, const struct rh_event *e)
{
    struct completions *own = g->own;
    if (e->text_n || own->lists[choice].tokens.n || g->choices[choice].ids.n)
        put_chunk(g, choice, str_n(e->text, e->text_n), NULL);
}

static void on_done(struct gen *g, uint32_t choice)
{
    put_chunk(g, choice, (struct str){"", 0}, gen_finish(&g->choices[choice], "stop", "length", "stop"));
}

static void on_end(struct gen *g)
{
    if (g->include_usage) {
        struct buf b = {0};
        open_object(g, &b);
        buf_z(&b, "],");
        openai_put_usage(g, &b);
        buf_char(&b, '}');
        gen_event(g, NULL, buf_view(&b));
        buf_free(&b);
    }
    openai_end_mark(g);
}

static void reply(struct gen *g, struct buf *out)
{
    open_object(g, out);
    for (uint32_t i = 0; i < g->choice_count; i++) {
        struct gen_choice *c = &g->choices[i];
        struct buf text = {0};
        buf_str(&text, buf_view(echo_of(g, i)));
        buf_str(&text, buf_view(&c->text));
        buf_printf(out, "%s{\"index\":%u,\"text\":", i ? "," : "", i);
        buf_json_str(out, buf_view(&text));
        if (text.failed)
            out->failed = text.failed;
        buf_free(&text);
        buf_char(out, ',');
        put_logprobs(g, i, out);
        if (g->return_ids)
            buf_printf(out, ",\"token_ids\":[%s]", buf_cstr(&c->ids));
        if (c->stop_string) {
            buf_z(out, ",\"stop_reason\":");
            buf_json_str(out, str_of(c->stop_string));
        }
        buf_printf(out, ",\"finish_reason\":\"%s\"}", gen_finish(c, "stop", "length", "stop"));
    }
    buf_z(out, "],");
    openai_put_usage(g, out);
    openai_put_timings(g, out);
    buf_printf(out, ",\"seed\":%llu", (unsigned long long)g->choices[0].seed);
    if (g->return_ids)
        buf_printf(out, ",\"prompt_token_ids\":[%s]", buf_cstr(&g->prompt_ids));
    buf_char(out, '}');
}

static const struct gen_api completions_api = {
    .shape = API_OPENAI, .stream_type = "text/event-stream; charset=utf-8", .id_prefix = "cmpl-", .begin = on_begin, .piece = on_text,
    .done = on_done, .end = on_end, .failed = openai_failed, .ping = openai_ping, .reply = reply, .logprob = add_logprob, .close = close_own};

/* ---- the request ---- */

struct prompts { /* in the arena */
    struct gen_input inputs[PROMPTS_MAX];
    uint32_t count;
};

static int no_memory(struct reader *r)
{
    return api_fail(r->err, 503, NULL, "", "out of memory");
}

static int read_one(struct reader *r, yyjson_val *v, const char *pointer, struct gen_input *in)
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

static int read_prompt(struct reader *r, yyjson_val *v, const char *pointer)
{
    struct prompts *list = arena_try(&r->p->arena, sizeof *list);
    size_t i, n;
    yyjson_val *item;
    char at[256];
    if (!list)
        return no_memory(r);
    r->p->own = list;
    list->count = 1;
    if (!yyjson_is_arr(v) || yyjson_is_num(yyjson_arr_get_first(v)))
        return read_one(r, v, pointer, &list->inputs[0]);
    if (yyjson_arr_size(v) == 0 || yyjson_arr_size(v) > PROMPTS_MAX)
        return api_fail(r->err, 400, "invalid_value", pointer, "%s: expected 1 to %d prompts, got %zu", pointer, PROMPTS_MAX, yyjson_arr_size(v));
    yyjson_arr_foreach(v, i, n, item)
        if (read_one(r, item, pointer_index(at, pointer, i), &list->inputs[i]))
            return -1;
    list->count = (uint32_t)n;
    return 0;
}

/* How many of the likeliest tokens: a number here, not true or false. */
static int read_logprobs(struct reader *r, yyjson_val *v, const char *pointer)
{
    if (!yyjson_is_uint(v) || yyjson_get_uint(v) > 128)
        return api_fail(r->err, 400, "invalid_value", pointer, "%s: expected a whole number from 0 to 128", pointer);
    r->p->logprobs = true;
    r->p->top_logprobs = (uint32_t)yyjson_get_uint(v);
    return 0;
}

static const struct field completion_fields[] = {
    CALLED("model", read_model), CALLED("prompt", read_prompt), SAMPLER_FIELDS, EXTRA_FIELDS, CALLED("seed", read_seed),
    {"max_tokens", FIELD_I64, 1, 4294967295.0, AT(max_tokens), NULL}, CALLED("stop", read_stops), {"n", FIELD_U32, 1, 128, AT(n), NULL},
    {"best_of", FIELD_U32, 1, 128, AT(best_of), NULL}, CALLED("logit_bias", read_bias), CALLED("logprobs", read_logprobs),
    {"stream", FIELD_BOOL, 0, 0, AT(stream), NULL}, CALLED("stream_options", read_stream_options), {"echo", FIELD_BOOL, 0, 0, AT(echo), NULL},
    CALLED("response_format", read_response_format), REFUSED("suffix"), SILENT("user"), SILENT("metadata"),
};
const struct field_list completion_field_list = {completion_fields, FIELDS_COUNT(completion_fields)};

static int make_own(struct reader *r, const struct prompts *list, struct completions **out)
{
    struct params *p = r->p;
    struct completions *own = *out = mem_try_zero(1, sizeof *own);
    if (!own)
        return no_memory(r);
    own->choices = list->count * p->n;
    own->requests = list->count;
    own->lists = mem_try_zero(own->choices, sizeof *own->lists);
    own->echoes = mem_try_zero(own->requests, sizeof *own->echoes);
    if (!own->lists || !own->echoes)
        return no_memory(r);
    for (uint32_t i = 0; p->echo && i < list->count; i++) {
        const struct gen_input *in = &list->inputs[i];
        char *text = NULL;
        size_t n = 0;
        struct rh_error err = {0};
        if (in->text.p)
            buf_put(&own->echoes[i], in->text.p, in->text.n);
        else if (rh_detokenize(r->s->model, in->ids, in->id_count, &text, &n, &err))
            return api_fail_rh(r->err, &err);
        buf_put(&own->echoes[i], text, n);
        rh_free(text);
        if (own->echoes[i].failed)
            return no_memory(r);
    }
    return 0;
}

static int check(struct reader *r)
{
    struct params *p = r->p;
    struct prompts *list = p->own;
    if (!list)
        return api_fail(r->err, 400, "missing_required_parameter", "/prompt", "prompt is missing");
    if (p->best_of && p->best_of != p->n)
        return api_fail(r->err, 400, "unsupported_parameter", "/best_of", "/best_of: only the value of n (%u) is supported", p->n);
    if (p->echo && p->logprobs)
        return api_fail(r->err, 400, "unsupported_parameter", "/logprobs", "/logprobs with echo (log-probabilities of the prompt) is not supported");
    if (list->count * p->n > CHOICES_MAX)
        return api_fail(r->err, 400, "invalid_value", "/n", "%u prompts with n = %u are more than %d answers", list->count, p->n, CHOICES_MAX);
    return 0;
}

int route_completions(struct call *c, struct api_error *e)
{
    struct params p;
    struct completions *own = NULL;
    yyjson_doc *doc = body_parse(c, e);
    if (!doc)
        return -1;
    params_open(&p, c->s);
    struct reader r = {.s = c->s, .p = &p, .err = e};
    int rc = fields_read(&r, yyjson_doc_get_root(doc), "", completion_fields, FIELDS_COUNT(completion_fields));
    if (rc == 0 && (rc = check(&r)) == 0)
        rc = make_own(&r, p.own, &own);
    if (rc == 0) {
        const struct prompts *list = p.own;
        rc = gen_start(c, &p, list->inputs, list->count, &completions_api, own, &r.ignored, e);
    }
    if (rc)
        completions_free(own);
    buf_free(&r.ignored);
    params_close(&p);
    json_free(doc);
    return rc;
}
