/* server/api_completions.c - POST /v1/completions: raw texts or ids go on. */
#include "base/mem.h"
#include "server/api_fields.h"
#include "server/body.h"
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

static void lists_free(struct token_lists *l)
{
    buf_free(&l->tokens);
    buf_free(&l->logprobs);
    buf_free(&l->tops);
    buf_free(&l->offsets);
}

static void completions_free(struct completions *own)
{
    if (!own)
        return;
    for (uint32_t i = 0; own->lists && i < own->choices; i++)
        lists_free(&own->lists[i]);
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

static void put_tops(struct gen *g, struct buf *out, const struct rh_top *tops, uint32_t count)
{
    struct buf scratch = {0};
    buf_char(out, '{');
    for (uint32_t i = 0; i < count; i++) {
        buf_z(out, i ? "," : "");
        buf_json_str(out, gen_token_bytes(g, tops[i].id, &scratch));
        buf_char(out, ':');
        openai_put_number(out, tops[i].logprob);
    }
    buf_char(out, '}');
    buf_free(&scratch);
}

/* Bytes of a prompt's id in the text that is echoed: a start token is not in it when the prompt was a text. */
static struct str prompt_bytes(struct gen *g, uint32_t request, size_t i, struct buf *scratch)
{
    const struct completions *own = g->own;
    struct str bytes = gen_token_bytes(g, g->prompts[request].ids[i], scratch);
    return i == 0 && !str_starts(buf_view(&own->echoes[request]), bytes) ? (struct str){"", 0} : bytes;
}

/* Echo with log-probabilities: the answer's tokens come after the prompt's. */
static void on_prompt(struct gen *g, uint32_t request)
{
    struct completions *own = g->own;
    struct buf scratch = {0};
    size_t n = 0;
    for (size_t i = 0; own->echoes[request].n && i < g->prompts[request].n; i++)
        n += characters(prompt_bytes(g, request, i, &scratch));
    for (uint32_t i = 0; i < g->per_request; i++)
        own->lists[request * g->per_request + i].characters = n;
    buf_free(&scratch);
}

/* The prompt's part of the four lists, in front of the answer's. */
static void put_prompt_lists(struct gen *g, uint32_t request, struct token_lists *to)
{
    struct rh_top tops[RH_PROMPT_TOP_MAX];
    struct buf scratch = {0};
    uint32_t count;
    float own;
    for (size_t i = 0; i < g->prompts[request].n; i++) {
        const char *comma = i ? "," : "";
        struct str bytes = prompt_bytes(g, request, i, &scratch);
        bool known = rh_request_prompt_logprob(g->requests[request], i, &own, tops, &count);
        buf_z(&to->tokens, comma);
        buf_json_str(&to->tokens, bytes);
        buf_printf(&to->offsets, "%s%zu", comma, to->characters);
        to->characters += characters(bytes);
        buf_z(&to->logprobs, comma);
        buf_z(&to->tops, comma);
        if (known) {
            openai_put_number(&to->logprobs, own);
            put_tops(g, &to->tops, tops, count);
        } else {
            buf_z(&to->logprobs, "null");
            buf_z(&to->tops, "null");
        }
    }
    buf_free(&scratch);
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
    openai_put_number(&l->logprobs, e->logprob);
    buf_printf(&l->offsets, "%s%zu", comma, l->characters);
    l->characters += characters(bytes);
    buf_z(&l->tops, comma);
    put_tops(g, &l->tops, e->tops, e->top_count);
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
    struct token_lists before = {0};
    if (g->prompt_scores && own->echoes[choice / g->per_request].n)
        put_prompt_lists(g, choice / g->per_request, &before);
    const struct buf *lists[4][2] = {{&before.tokens, &l->tokens}, {&before.logprobs, &l->logprobs}, {&before.tops, &l->tops}, {&before.offsets, &l->offsets}};
    for (int i = 0; i < 4; i++) {
        static const char *const heads[] = {"\"logprobs\":{\"tokens\":[", "],\"token_logprobs\":[", "],\"top_logprobs\":[", "],\"text_offset\":["};
        buf_z(out, heads[i]);
        buf_str(out, buf_view(lists[i][0]));
        buf_z(out, lists[i][0]->n && lists[i][1]->n ? "," : "");
        buf_str(out, buf_view(lists[i][1]));
        if (lists[i][0]->failed)
            out->failed = lists[i][0]->failed;
    }
    buf_z(out, "]}");
    lists_free(&before);
    l->tokens.n = l->logprobs.n = l->tops.n = l->offsets.n = 0;
}

/* ---- answers ---- */

static void put_chunk(struct gen *g, uint32_t choice, struct str text, const char *finish)
{
    struct gen_choice *c = &g->choices[choice];
    struct buf b = {0};
    openai_open(g, &b, "text_completion");
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
    openai_send_chunk(g, &b);
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
    openai_end(g, "text_completion");
}

static void reply(struct gen *g, struct buf *out)
{
    openai_open(g, out, "text_completion");
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
        openai_put_prompt_logprobs(g, i / g->per_request, out);
        openai_choice_end(g, c, "stop", out);
    }
    openai_close(g, out);
    buf_char(out, '}');
}

static const struct gen_api completions_api = {
    .shape = API_OPENAI, .stream_type = "text/event-stream; charset=utf-8", .id_prefix = "cmpl-", .prompt = on_prompt, .begin = on_begin, .piece = on_text,
    .done = on_done, .end = on_end, .failed = openai_failed, .ping = openai_ping, .reply = reply, .logprob = add_logprob, .close = close_own};

/* ---- the request ---- */

struct prompts { /* in the arena */
    struct gen_input *inputs;
    uint32_t count;
    struct completions *made;
};

static int no_memory(struct reader *r)
{
    return api_fail(r->err, 503, NULL, "", "out of memory");
}

static int read_prompt(struct reader *r, yyjson_val *v, const char *pointer)
{
    struct prompts *list = r->p->own;
    return read_inputs(r, v, pointer, PROMPTS_MAX, &list->inputs, &list->count);
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
    CALLED("model", read_model), CALLED("prompt", read_prompt), SAMPLER_FIELDS, EXTRA_FIELDS, CALLED("prompt_logprobs", read_prompt_logprobs),
    CALLED("truncation", read_truncation), CALLED("seed", read_seed),
    {"max_tokens", FIELD_I64, 1, 4294967295.0, AT(max_tokens), NULL}, CALLED("stop", read_stops), {"n", FIELD_U32, 1, 128, AT(n), NULL},
    {"best_of", FIELD_U32, 1, 128, AT(best_of), NULL}, CALLED("logit_bias", read_bias), CALLED("logprobs", read_logprobs),
    {"stream", FIELD_BOOL, 0, 0, AT(stream), NULL}, CALLED("stream_options", read_stream_options), {"echo", FIELD_BOOL, 0, 0, AT(echo), NULL},
    CALLED("response_format", read_response_format), REFUSED("suffix"), SILENT("user"), SILENT("metadata"),
};
const struct field_list completion_field_list = {completion_fields, FIELDS_COUNT(completion_fields), false};

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
            return api_fail_rh(r->err, &err, r->p->input);
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
    if (!list->inputs)
        return api_fail(r->err, 400, "missing_required_parameter", "/prompt", "prompt is missing");
    if (p->best_of && p->best_of != p->n)
        return api_fail(r->err, 400, "unsupported_parameter", "/best_of", "/best_of: only the value of n (%u) is supported", p->n);
    if (p->echo && p->logprobs && p->stream)
        return api_fail(r->err, 400, "unsupported_parameter", "/logprobs", "/logprobs with echo: not in a stream");
    if (p->echo && p->o.truncate) /* what was left away cannot be told from what is repeated */
        return api_fail(r->err, 400, "unsupported_parameter", "/echo", "/echo: not with truncation");
    if (p->echo && p->logprobs && p->top_logprobs > RH_PROMPT_TOP_MAX)
        return api_fail(r->err, 400, "invalid_value", "/logprobs", "/logprobs with echo: at most %d, got %u", RH_PROMPT_TOP_MAX, p->top_logprobs);
    if (p->echo && p->logprobs) {
        p->o.prompt_logprobs = true;
        p->o.prompt_top_logprobs = p->o.prompt_top_logprobs > p->top_logprobs ? p->o.prompt_top_logprobs : p->top_logprobs;
    }
    if (list->count * p->n > CHOICES_MAX)
        return api_fail(r->err, 400, "invalid_value", "/n", "%u prompts with n = %u are more than %d answers", list->count, p->n, CHOICES_MAX);
    return openai_check_prompt_logprobs(r);
}

static void drop(struct reader *r)
{
    struct prompts *list = r->p->own;
    completions_free(list->made);
    list->made = NULL;
}

static int prepare(struct reader *r)
{
    struct prompts *list = r->p->own;
    if (check(r))
        return -1;
    int rc = make_own(r, list, &list->made);
    if (rc)
        drop(r);
    return rc;
}

static int start(struct reader *r, struct call *c)
{
    const struct prompts *list = r->p->own;
    int rc = gen_start(c, r->p, list->inputs, list->count, &completions_api, list->made, &r->ignored, r->err);
    if (rc)
        drop(r);
    return rc;
}

int route_completions(struct call *c, struct api_error *e)
{
    static const struct body_plan plan = {&completion_field_list, "/prompt", prepare, start, drop};
    return body_route(c, e, &plan, &(struct prompts){0}, sizeof(struct prompts));
}
