/* cli/generate.c - generate: one request, streamed as text or collected as JSON. */
#include "base/buf.h"
#include "base/mem.h"
#include "base/utf8.h"
#include "cli/session.h"
#include "cli/verbs.h"

#include <stdio.h>
#include <unistd.h>

enum { POLL_MS = 50 };

struct choice { /* what came back of one choice */
    struct buf text, ids, logprobs;
    struct buf reasoning, calls, arguments; /* calls: JSON objects, with commas; arguments: of the open one */
    struct rh_event done;
    size_t id_count;
};

struct generation {
    const struct options *o;
    struct rh_model *model;
    struct choice *choices;
    uint32_t n;
    bool ended;
};

static const char *finish_name(enum rh_finish f)
{
    static const char *const names[] = {"stop", "length", "cancelled", "error"};
    return names[f];
}

static void add_logprob(struct buf *b, const struct rh_event *e)
{
    buf_printf(b, "%s{\"id\":%u,\"logprob\":", b->n ? "," : "", e->id);
    buf_json_f32(b, e->logprob);
    buf_z(b, ",\"top\":[");
    for (uint32_t i = 0; i < e->top_count; i++) {
        buf_printf(b, "%s{\"id\":%u,\"logprob\":", i ? "," : "", e->tops[i].id);
        buf_json_f32(b, e->tops[i].logprob);
        buf_char(b, '}');
    }
    buf_z(b, "]}");
}

static bool read_output(const struct generation *g)
{
    return g->o->output && strcmp(g->o->output, "none") != 0;
}

/* A call, once it is complete: one JSON object. */
static void take_call(struct generation *g, struct choice *c, const struct rh_event *e)
{
    if (e->kind == RH_EVENT_CALL_BEGIN) {
        buf_printf(&c->calls, "%s{\"id\":", c->calls.n && g->o->json ? "," : "");
        buf_json_str(&c->calls, str_of(e->call_id));
        buf_z(&c->calls, ",\"name\":");
        buf_json_str(&c->calls, str_of(e->call_name));
    } else if (e->kind == RH_EVENT_CALL_ARGUMENTS) {
        buf_put(&c->arguments, e->text, e->text_n);
    } else {
        buf_z(&c->calls, ",\"arguments\":");
        buf_json_str(&c->calls, buf_view(&c->arguments));
        buf_printf(&c->calls, ",\"whole\":%s}%s", e->call_whole ? "true" : "false", g->o->json ? "" : "\n");
        c->arguments.n = 0;
    }
}

/* Text of a kind of its own. */
static void take_part(struct generation *g, struct choice *c, const struct rh_event *e)
{
    if (e->kind == RH_EVENT_REASONING)
        buf_put(&c->reasoning, e->text, e->text_n);
    else
        take_call(g, c, e);
}

static void take_event(struct generation *g, const struct rh_event *e)
{
    struct choice *c = &g->choices[e->choice];
    if (e->kind == RH_EVENT_DONE) {
        c->done = *e;
        return;
    }
    if (e->kind < RH_EVENT_TEXT)
        return;
    bool text = e->kind == RH_EVENT_TEXT;
    if (!text)
        take_part(g, c, e);
    if (!g->o->json && text) {
        if (g->n == 1 && e->text_n) {
            fwrite(e->text, 1, e->text_n, stdout);
            fflush(stdout);
        } else
            buf_put(&c->text, e->text, e->text_n);
        return;
    }
    if (text)
        buf_put(&c->text, e->text, e->text_n);
    if (!e->has_token || !g->o->json)
        return;
    buf_printf(&c->ids, "%s%u", c->ids.n ? "," : "", e->id);
    if (g->o->logprobs || g->o->given[OPT_TOP_LOGPROBS])
        add_logprob(&c->logprobs, e);
}

static void put_f64(struct buf *b, const char *key, double v)
{
    buf_printf(b, "\"%s\":", key);
    buf_json_f64(b, v);
}

static void put_counts(struct buf *b, const char *key, const uint32_t *counts, uint32_t n)
{
    while (n && counts[n - 1] == 0)
        n--;
    buf_printf(b, ",\"%s\":[", key);
    for (uint32_t i = 0; i < n; i++)
        buf_printf(b, "%s%u", i ? "," : "", counts[i]);
    buf_char(b, ']');
}

static void put_speculation(struct buf *b, const struct rh_speculation *s)
{
    const struct rh_fill *f = &s->fill;
    buf_printf(b, ",\"speculation\":{\"decode_forwards\":%u,\"rounds\":%u,\"drafted\":%u,\"accepted\":%u,\"rejected\":%u,"
               "\"forwards_saved\":%u,", s->decode_forwards, s->rounds, s->drafted, s->accepted, s->rejected, s->forwards_saved);
    put_f64(b, "tokens_per_forward", s->tokens_per_forward);
    put_counts(b, "acceptance_lengths", s->acceptance_lengths, RH_DEPTH_MAX + 1);
    put_counts(b, "drafted_by_position", s->drafted_by_position, RH_DEPTH_MAX);
    put_counts(b, "accepted_by_position", s->accepted_by_position, RH_DEPTH_MAX);
    buf_printf(b, "},\"fill\":{\"events\":%u,\"injected\":%u,\"by_kind\":{\"echo\":%u,\"forced\":%u},\"wasted_samples\":%u,"
               "\"verify_accepted\":%u,\"verify_rejected\":%u", f->events, f->injected, f->echo, f->forced, f->wasted_samples, f->accepted,
               f->rejected);
    put_counts(b, "span_lengths", f->span_lengths, RH_DEPTH_MAX + 1);
    buf_char(b, '}');
}

static void put_token(struct buf *b, const struct generation *g, const char *key, int64_t id)
{
    char *text = NULL;
    size_t n = 0;
    if (id < 0 || rh_token_text(g->model, (uint32_t)id, &text, &n, NULL))
        return;
    buf_printf(b, ",\"%s\":{\"id\":%lld,\"text\":", key, (long long)id);
    buf_json_str(b, str_n(text, n));
    buf_char(b, '}');
    rh_free(text);
}

static void put_cache(struct buf *b, const struct generation *g, const struct rh_cache *c)
{
    buf_printf(b, ",\"cache\":{\"cached_tokens\":%u,\"known_tokens\":%u,\"reason\":", c->cached_tokens, c->known_tokens);
    if (c->reason)
        buf_json_str(b, str_of(c->reason));
    else
        buf_z(b, "null");
    put_token(b, g, "stored", c->stored_id);
    put_token(b, g, "prompt", c->prompt_id);
    buf_char(b, '}');
}

static void put_choice(struct buf *b, const struct generation *g, const struct choice *c)
{
    const struct rh_timings *t = &c->done.timings;
    buf_z(b, "\"ids\":[");
    buf_str(b, buf_view(&c->ids));
    buf_z(b, "],\"text\":");
    buf_json_str(b, buf_view(&c->text));
    if (!utf8_valid(buf_view(&c->text))) {
        buf_z(b, ",\"text_bytes\":\"");
        buf_base64(b, buf_view(&c->text));
        buf_char(b, '"');
    }
    if (read_output(g)) {
        buf_z(b, ",\"reasoning\":");
        buf_json_str(b, buf_view(&c->reasoning));
        buf_z(b, ",\"tool_calls\":[");
        buf_str(b, buf_view(&c->calls));
        buf_char(b, ']');
    }
    buf_printf(b, ",\"finish_reason\":\"%s\"", finish_name(c->done.finish));
    if (c->done.finish == RH_FINISH_ERROR) {
        buf_z(b, ",\"error\":");
        buf_json_str(b, str_of(c->done.error.text));
    }
    buf_printf(b, ",\"usage\":{\"prompt_tokens\":%u,\"cached_tokens\":%u,\"completion_tokens\":%u",
               c->done.usage.prompt_tokens, c->done.usage.cached_tokens, c->done.usage.completion_tokens);
    if (read_output(g))
        buf_printf(b, ",\"reasoning_tokens\":%u", c->done.usage.reasoning_tokens);
    buf_z(b, "},\"timings\":{");
    put_f64(b, "load_ms", t->load_ms), buf_char(b, ',');
    put_f64(b, "queue_ms", t->queue_ms), buf_char(b, ',');
    put_f64(b, "prefill_ms", t->prefill_ms), buf_char(b, ',');
    put_f64(b, "decode_ms", t->decode_ms), buf_char(b, ',');
    put_f64(b, "prefill_tokens_per_s", t->prefill_tokens_per_s), buf_char(b, ',');
    put_f64(b, "decode_tokens_per_s", t->decode_tokens_per_s);
    buf_printf(b, "},\"seed\":%llu", (unsigned long long)c->done.seed);
    put_speculation(b, &c->done.speculation);
    put_cache(b, g, &c->done.cache);
    if (g->o->logprobs || g->o->given[OPT_TOP_LOGPROBS]) {
        buf_z(b, ",\"logprobs\":[");
        buf_str(b, buf_view(&c->logprobs));
        buf_char(b, ']');
    }
}

static void put_f32(struct buf *b, const char *key, float v)
{
    buf_printf(b, "\"%s\":", key);
    buf_json_f32(b, v);
    buf_char(b, ',');
}

static void put_sampling(struct buf *b, const struct rh_sampling *s)
{
    buf_z(b, ",\"sampling\":{");
    put_f32(b, "temperature", s->temperature);
    buf_printf(b, "\"top_k\":%u,", s->top_k);
    put_f32(b, "top_p", s->top_p);
    put_f32(b, "min_p", s->min_p);
    put_f32(b, "typical_p", s->typical_p);
    put_f32(b, "top_n_sigma", s->top_n_sigma);
    put_f32(b, "xtc_probability", s->xtc_probability);
    put_f32(b, "xtc_threshold", s->xtc_threshold);
    put_f32(b, "repetition_penalty", s->repetition_penalty);
    put_f32(b, "presence_penalty", s->presence_penalty);
    put_f32(b, "frequency_penalty", s->frequency_penalty);
    buf_printf(b, "\"penalty_window\":%u,\"min_tokens\":%u,\"order\":", s->penalty_window, s->min_tokens);
    buf_json_str(b, str_of(s->order ? s->order : "top_n_sigma,top_k,typical_p,top_p,min_p,xtc"));
    buf_char(b, '}');
}

static int print_json(const struct generation *g, const struct rh_sampling *sampling)
{
    struct buf b = {0};
    buf_char(&b, '{');
    put_choice(&b, g, &g->choices[0]);
    put_sampling(&b, sampling);
    if (g->n > 1) {
        buf_z(&b, ",\"choices\":[");
        for (uint32_t i = 0; i < g->n; i++) {
            buf_z(&b, i ? ",{" : "{");
            put_choice(&b, g, &g->choices[i]);
            buf_char(&b, '}');
        }
        buf_char(&b, ']');
    }
    buf_char(&b, '}');
    bool failed = b.failed;
    for (uint32_t i = 0; i < g->n; i++)
        failed |= g->choices[i].text.failed || g->choices[i].reasoning.failed || g->choices[i].calls.failed || g->choices[i].arguments.failed ||
                  g->choices[i].ids.failed || g->choices[i].logprobs.failed;
    if (!failed)
        puts(buf_cstr(&b));
    buf_free(&b);
    return failed ? session_failed("generate", "out of memory") : 0;
}

static void print_text(const struct buf *b)
{
    if (b->n)
        fwrite(b->p, 1, b->n, stdout);
}

static void print_choices(const struct generation *g)
{
    for (uint32_t i = 0; g->n > 1 && i < g->n; i++) {
        printf("%s--- choice %u\n", i ? "\n" : "", i);
        print_text(&g->choices[i].text);
    }
    for (uint32_t i = 0; i < g->n; i++)
        print_text(&g->choices[i].calls);
    if (isatty(STDOUT_FILENO))
        putchar('\n');
}

/* Polls to the end; Ctrl-C cancels. */
static int follow(struct generation *g, struct rh_request *r)
{
    struct rh_event e;
    bool cancelled = false;
    int rc;
    while ((rc = rh_poll(r, &e, POLL_MS)) >= 0) {
        if (rc == 1)
            take_event(g, &e);
        if (session_interrupted() && !cancelled) {
            rh_request_cancel(r);
            cancelled = true;
        }
    }
    int status = 0;
    for (uint32_t i = 0; i < g->n; i++) {
        const struct rh_event *done = &g->choices[i].done;
        if (done->finish == RH_FINISH_ERROR && status == 0)
            status = session_fail("generate", &done->error);
        else if (done->finish == RH_FINISH_CANCELLED && status == 0)
            status = 130;
    }
    return status;
}

static int read_input(struct rh_request_options *r, struct session_chat *chat, const struct options *o)
{
    struct err err = {0};
    uint32_t *ids;
    if (!!o->prompt + !!o->ids + !!o->chat != 1)
        return session_usage("generate", "expected one of --prompt, --ids and --chat");
    if (!o->chat && (o->tools || o->set.n || o->no_generation_prompt))
        return session_usage("generate", "--%s: of a chat's template; expected --chat, too",
                             o->tools ? "tools" : o->set.n ? "set" : "no-generation-prompt");
    if (!o->json && (o->logprobs || o->given[OPT_TOP_LOGPROBS]))
        return session_usage("generate", "%s: printed with --json only", o->logprobs ? "--logprobs" : "--top-logprobs");
    if (o->prompt)
        r->prompt = (struct rh_text){o->prompt, strlen(o->prompt)};
    if (o->ids && options_ids("--ids: ", str_of(o->ids), &ids, &r->id_count, &err))
        return session_usage("generate", "%s", err.text);
    if (o->ids)
        r->ids = ids;
    if (o->chat) {
        r->chat = &chat->chat;
        return session_chat_read(chat, "generate", o->chat, o);
    }
    return 0;
}

static void choice_free(struct choice *c)
{
    struct buf *all[] = {&c->text, &c->ids, &c->logprobs, &c->reasoning, &c->calls, &c->arguments};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        buf_free(all[i]);
}

static int generate(struct session *s, struct rh_request_options *ro, const struct options *o)
{
    struct rh_sampling sampling;
    struct rh_bias *biases = NULL;
    struct rh_request *request = NULL;
    struct rh_error err = {0};
    struct generation g = {.o = o, .model = s->model, .n = o->choices ? o->choices : 1};
    int rc = session_sampling(s, o, &sampling, &biases);
    if (rc)
        return rc;
    g.choices = mem_alloc(g.n * sizeof *g.choices);
    memset(g.choices, 0, g.n * sizeof *g.choices);
    ro->sampling = &sampling;
    session_interrupts();
    if (rh_submit(s->model, ro, &request, &err))
        rc = session_fail("generate", &err);
    else {
        rc = follow(&g, request);
        if (o->json && (rc == 0 || rc == 130 || g.choices[0].done.finish != RH_FINISH_ERROR))
            rc = print_json(&g, &sampling) ? 1 : rc;
        else if (!o->json)
            print_choices(&g);
    }
    rh_request_free(request);
    for (uint32_t i = 0; i < g.n; i++)
        choice_free(&g.choices[i]);
    mem_free(g.choices);
    mem_free(biases);
    return rc;
}

int cli_generate(struct options *o)
{
    struct session s = {0};
    struct session_chat chat = {0};
    struct rh_text *stop = NULL;
    uint32_t *stop_ids = NULL, *allowed = NULL;
    struct err err = {0};
    struct rh_request_options r = {.max_tokens = o->max_tokens, .ignore_eos = o->ignore_eos, .seed_given = o->given[OPT_SEED],
                                   .seed = o->seed, .n = o->choices, .logprobs = o->logprobs || o->given[OPT_TOP_LOGPROBS],
                                   .top_logprobs = o->top_logprobs, .propose = o->propose, .propose_depth = o->propose_depth,
                                   .output = o->output ? o->output : "none", .raw_bytes = o->json};
    int rc = read_input(&r, &chat, o);
    if (rc == 0)
        rc = session_stops("generate", o, &r, &stop, &stop_ids);
    if (rc == 0 && o->allow_ids && options_ids("--allow-ids: ", str_of(o->allow_ids), &allowed, &r.allowed_id_count, &err))
        rc = session_usage("generate", "%s", err.text);
    r.allowed_ids = allowed;
    if (rc == 0)
        rc = session_open(&s, "generate", o, false);
    if (rc == 0)
        rc = generate(&s, &r, o);
    session_close(&s);
    session_chat_free(&chat);
    mem_free((void *)(uintptr_t)r.ids);
    mem_free(stop);
    mem_free(stop_ids);
    mem_free(allowed);
    return rc;
}
