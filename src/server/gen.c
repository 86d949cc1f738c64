/* server/gen.c - see gen.h. */
#include "server/gen_int.h"

#include "base/mem.h"
#include "base/thread.h"

#include <stdio.h>
#include <time.h>

enum { WORK_PER_TURN = 256, QUEUE_DEFAULT = 1024, PROMPTS_MAX = 4096, SCORES_MAX = 1 << 20, HEARTBEAT_DEFAULT_S = 10, FLUSH_AT = 64 << 10 };

/* ---- ready list ---- */

/* The library's threads: this generation has events. */
static void on_notify(void *ctx)
{
    struct gen *g = ctx;
    struct server *s = g->s;
    if (atomic_exchange(&g->queued, true))
        return;
    struct gen *head = atomic_load(&s->ready);
    do
        g->ready_next = head;
    while (!atomic_compare_exchange_weak(&s->ready, &head, g));
    if (!head)
        uv_async_send(&s->wake);
}

/* ---- the end ---- */

static void choice_free(struct gen_choice *c)
{
    buf_free(&c->text);
    buf_free(&c->reasoning);
    buf_free(&c->logprobs);
    buf_free(&c->ids);
    for (uint32_t i = 0; i < c->tool_count; i++) {
        buf_free(&c->tools[i].name);
        buf_free(&c->tools[i].arguments);
    }
    mem_free(c->tools);
    mem_free(c->stop_string);
    mem_free(c->embedding);
}

static void gen_free(struct gen *g)
{
    for (uint32_t i = 0; g->choices && i < g->choice_count; i++)
        choice_free(&g->choices[i]);
    for (uint32_t i = 0; g->prompts && i < g->choice_count / g->per_request; i++)
        mem_free(g->prompts[i].ids);
    mem_free(g->prompts);
    mem_free(g->choices);
    mem_free(g->requests);
    mem_free(g->model);
    mem_free(g->ignored);
    mem_free(g->logged);
    buf_free(&g->prompt_ids);
    buf_free(&g->body);
    buf_free(&g->out);
    mem_free(g);
}

/* Its requests are given up; the memory goes when no list names it. */
void gen_end(struct gen *g, const char *error)
{
    struct server *s = g->s;
    if (g->dead)
        return;
    journal_generation(g, error);
    for (uint32_t i = 0; i < g->request_count; i++)
        rh_request_free(g->requests[i]); /* no notice comes after this */
    g->request_count = 0;
    if (g->api->close)
        g->api->close(g);
    if (g->prev)
        g->prev->next = g->next;
    else
        s->gens = g->next;
    if (g->next)
        g->next->prev = g->prev;
    s->gen_count--;
    s->prompt_count -= g->prompt_count;
    g->conn = NULL;
    g->dead = true;
    if (!atomic_load(&g->queued) && !g->busy)
        gen_free(g);
}

static void on_gone(struct pending *p)
{
    struct gen *g = (struct gen *)(void *)p;
    if (g->writing) /* a worker reads it: over when that has ended */
        g->conn = NULL;
    else
        gen_end(g, NULL);
}

/* ---- events ---- */

static struct gen_tool *tool_at(struct gen_choice *c, uint32_t index)
{
    while (c->tool_count <= index) {
        if (c->tool_count == c->tool_cap) {
            uint32_t cap = c->tool_cap ? 2 * c->tool_cap : 4;
            struct gen_tool *grown = mem_try_resize(c->tools, cap * sizeof *grown);
            if (!grown)
                return NULL;
            c->tools = grown;
            c->tool_cap = cap;
        }
        struct gen_tool *t = &c->tools[c->tool_count++];
        *t = (struct gen_tool){.text_at = c->text.n, .reasoning_at = c->reasoning.n};
    }
    return &c->tools[index];
}

static void keep_text(struct gen_choice *c, const struct rh_event *e)
{
    struct gen_tool *t;
    switch (e->kind) {
    case RH_EVENT_TEXT:
        buf_put(&c->text, e->text, e->text_n);
        return;
    case RH_EVENT_REASONING:
        buf_put(&c->reasoning, e->text, e->text_n);
        return;
    case RH_EVENT_CALL_BEGIN:
    case RH_EVENT_CALL_ARGUMENTS:
        t = tool_at(c, e->call);
        if (!t)
            c->text.failed = ERR_NOMEM;
        else if (e->kind == RH_EVENT_CALL_BEGIN) {
            buf_z(&t->name, e->call_name);
            snprintf(t->id, sizeof t->id, "%s", e->call_id);
        } else
            buf_put(&t->arguments, e->text, e->text_n);
        return;
    default:
        return;
    }
}

static void note_token(struct gen *g, struct gen_choice *c, const struct rh_event *e)
{
    int64_t now = thread_now_ns();
    if (!g->first_ns)
        metrics_observe(&g->s->metrics, METRIC_TTFT, (double)(now - g->arrived_ns) / 1e9);
    else
        metrics_observe(&g->s->metrics, METRIC_INTER_TOKEN, (double)(now - g->last_ns) / 1e9);
    g->first_ns = g->first_ns ? g->first_ns : now;
    g->last_ns = now;
    if (g->show_logprobs && g->api->logprob)
        g->api->logprob(g, c, e);
    if (g->return_ids)
        buf_printf(&c->ids, "%s%u", c->ids.n ? "," : "", e->id);
}

/* One call is all that is wanted of this answer; its request ends when that holds for all of its answers. */
static void cut_off(struct gen *g, uint32_t choice)
{
    uint32_t request = choice / g->per_request, going = 0;
    g->choices[choice].cut = true;
    for (uint32_t i = request * g->per_request; i < (request + 1) * g->per_request; i++)
        going += !g->choices[i].cut && !g->choices[i].done;
    if (!going)
        rh_request_cancel(g->requests[request]);
}

/* Text, reasoning, a piece of a call. */
static void on_piece(struct gen *g, uint32_t choice, const struct rh_event *e)
{
    struct gen_choice *c = &g->choices[choice];
    if (c->cut)
        return;
    c->tokens += e->has_token;
    if (e->has_token)
        note_token(g, c, e);
    keep_text(c, e);
    if (g->stream || g->api->always)
        g->api->piece(g, choice, e);
    if (g->parallel_off && e->kind == RH_EVENT_CALL_END)
        cut_off(g, choice);
}

static void on_done(struct gen *g, uint32_t choice, const struct rh_event *e)
{
    struct gen_choice *c = &g->choices[choice];
    c->done = true;
    c->finish = c->cut ? RH_FINISH_STOP : e->finish;
    c->usage = e->usage;
    if (c->cut) /* what it wrote until it was heard is nobody's */
        c->usage.completion_tokens = c->tokens;
    c->seed = e->seed;
    if (e->embedding && (c->embedding = mem_try_array(e->embedding_n, sizeof *c->embedding))) {
        memcpy(c->embedding, e->embedding, e->embedding_n * sizeof *c->embedding);
        c->embedding_n = e->embedding_n;
    } else if (e->embedding)
        c->text.failed = ERR_NOMEM;
    if (e->stop_string)
        c->stop_string = mem_try_strndup(e->stop_string, strlen(e->stop_string));
    g->done_count++;
    g->timings = e->timings;
    if (choice % g->per_request == 0 && (choice || !g->started)) { /* the first's was counted at the start */
        g->usage.prompt_tokens += e->usage.prompt_tokens;
        g->usage.cached_tokens += e->usage.cached_tokens;
    }
    metrics_done(&g->s->metrics, e);
    metrics_observe(&g->s->metrics, METRIC_E2E, (double)(thread_now_ns() - g->arrived_ns) / 1e9);
    if (g->stream || g->api->always)
        g->api->done(g, choice);
}

static void on_prompt(struct gen *g, uint32_t request, const struct rh_event *e)
{
    struct gen_prompt *p = g->prompts ? &g->prompts[request] : NULL;
    g->dropped += e->dropped;
    if (p && (p->ids = mem_try_array(e->prompt_count, sizeof *p->ids))) {
        p->n = e->prompt_count;
        if (p->n)
            memcpy(p->ids, e->prompt_ids, p->n * sizeof *p->ids);
        if (g->api->prompt)
            g->api->prompt(g, request);
    }
    for (size_t i = 0; request == 0 && g->return_ids && i < e->prompt_count; i++)
        buf_printf(&g->prompt_ids, "%s%u", g->prompt_ids.n ? "," : "", e->prompt_ids[i]);
}

/* What prompts' ids are asked about is written at once, while nobody else is answered. */
static bool scores_fit(struct gen *g, const struct rh_event *e)
{
    struct api_error error = {0};
    if (!g->prompt_scores)
        return true;
    g->score_count += (uint64_t)e->prompt_count * g->scores_each * g->per_request;
    if (g->score_count <= SCORES_MAX)
        return true;
    api_fail(&error, 400, "invalid_value", g->show_prompt_logprobs ? "/prompt_logprobs" : "/logprobs", "log-probabilities of prompts: at most %d in one answer (ids x likeliest of each and its own x n), got %llu",
             SCORES_MAX, (unsigned long long)g->score_count);
    gen_answer_error(g, &error);
    return false;
}

static void fail(struct gen *g, uint32_t request, const struct rh_event *e)
{
    struct api_error error = {0};
    char input[256];
    if (g->input_list)
        pointer_index(input, g->input, request);
    if (e->finish == RH_FINISH_ERROR)
        api_fail_rh(&error, &e->error, g->input_list ? input : g->input);
    else /* there is no part of a vector */
        api_fail(&error, 499, "cancelled", "", "cancelled before the embedding was there");
    gen_answer_error(g, &error);
}

/* False: the generation is over and freed. */
static bool take(struct gen *g, uint32_t request, const struct rh_event *e)
{
    uint32_t choice = request * g->per_request + e->choice;
    if (e->kind == RH_EVENT_PROMPT && !scores_fit(g, e))
        return false;
    if (e->kind == RH_EVENT_PROMPT)
        on_prompt(g, request, e);
    else if (e->kind == RH_EVENT_START && request == 0) {
        g->started = true;
        g->cache = e->cache;
        g->usage.prompt_tokens += e->usage.prompt_tokens; /* others may have ended */
        g->usage.cached_tokens += e->usage.cached_tokens;
        if (g->stream)
            gen_begin(g);
    } else if (e->kind >= RH_EVENT_TEXT && e->kind < RH_EVENT_DONE) {
        if (g->stream)
            gen_begin(g);
        on_piece(g, choice, e);
    } else if (e->kind == RH_EVENT_DONE && (e->finish == RH_FINISH_ERROR || (e->finish == RH_FINISH_CANCELLED && g->embeds))) {
        metrics_done(&g->s->metrics, e);
        fail(g, request, e);
        return false;
    } else if (e->kind == RH_EVENT_DONE) {
        if (g->stream)
            gen_begin(g);
        on_done(g, choice, e);
        if (g->done_count == g->choice_count) {
            gen_answer(g);
            return false;
        }
    }
    return true;
}

/* Polls one request; false: the generation is over. */
static bool poll_request(struct gen *g, uint32_t i, uint32_t *budget)
{
    struct rh_event e;
    int rc;
    while (*budget && !http_full(g->conn) && (rc = rh_poll(g->requests[i], &e, 0)) != RH_ERR_END) {
        if (rc == 0)
            return true;
        if (rc < 0) {
            struct api_error error = {0};
            api_fail(&error, 503, NULL, "", "out of memory for the answer's text");
            gen_answer_error(g, &error);
            return false;
        }
        uint32_t work = 1 + e.top_count / 8; /* what is written of it */
        *budget -= work < *budget ? work : *budget;
        if (!take(g, i, &e))
            return false;
        if (g->out.n > FLUSH_AT)
            gen_flush(g);
        if (g->dead)
            return false;
    }
    return true;
}

static void pump(struct gen *g)
{
    uint32_t budget = WORK_PER_TURN, i = 0;
    if (g->writing)
        return;
    g->busy = true; /* a write that fails ends it from within */
    while (i < g->request_count && poll_request(g, i, &budget))
        i++;
    if (!g->dead && g->begun)
        gen_flush(g);
    g->busy = false;
    if (!g->dead && !budget && !g->writing)
        on_notify(g); /* the others first */
    else if (g->dead && !atomic_load(&g->queued))
        gen_free(g);
}

static void on_drained(struct pending *p)
{
    on_notify(p);
}

void gen_wake(struct server *s)
{
    struct gen *list = atomic_exchange(&s->ready, NULL), *first = NULL;
    while (list) { /* in the order they came */
        struct gen *next = list->ready_next;
        list->ready_next = first;
        first = list;
        list = next;
    }
    while (first) {
        struct gen *g = first;
        first = g->ready_next; /* before the mark goes: it may be queued again at once */
        atomic_store(&g->queued, false);
        if (g->dead)
            gen_free(g);
        else
            pump(g);
    }
}

void gen_tick(struct server *s)
{
    uint64_t now = uv_now(&s->loop), beat = 1000ull * (s->cfg->heartbeat_s ? s->cfg->heartbeat_s : HEARTBEAT_DEFAULT_S);
    for (struct gen *g = s->gens, *next; g; g = next) {
        next = g->next;
        if (!g->stream || now - g->sent_ms < beat || http_full(g->conn))
            continue;
        gen_begin(g);
        g->api->ping(g);
        gen_flush(g);
    }
}

void gen_cancel(struct gen *g)
{
    for (uint32_t i = 0; i < g->request_count; i++)
        rh_request_cancel(g->requests[i]);
}

struct gen *gen_find(struct server *s, struct str id)
{
    struct gen *g = s->gens;
    while (g && !str_is(id, g->id))
        g = g->next;
    return g;
}

/* ---- the beginning ---- */

static int submit_all(struct gen *g, struct params *p, const struct gen_input *inputs, uint32_t input_count, struct api_error *e)
{
    struct rh_request_options o = p->o;
    struct rh_error err = {0};
    o.notify = on_notify;
    o.notify_ctx = g;
    for (uint32_t i = 0; i < input_count; i++) {
        if (inputs) {
            o.prompt = inputs[i].text;
            o.ids = inputs[i].ids;
            o.id_count = inputs[i].id_count;
        }
        if (rh_submit(g->s->model, &o, &g->requests[i], &err))
            return api_fail_rh(e, &err, p->input);
        g->request_count++;
    }
    return 0;
}

/* What is asked, for the log: the chat, or texts and ids with line ends between. */
static char *prompt_text(const struct params *p, const struct gen_input *inputs, uint32_t count)
{
    struct buf b = {0};
    struct rh_text whole = p->o.chat ? p->o.chat->messages_json : p->o.prompt;
    if (!inputs)
        buf_put(&b, whole.p, whole.n);
    for (uint32_t i = 0; inputs && i < count; i++) {
        buf_z(&b, i ? "\n" : "");
        buf_put(&b, inputs[i].text.p, inputs[i].text.n);
        for (size_t k = 0; k < inputs[i].id_count; k++)
            buf_printf(&b, k ? " %u" : "%u", inputs[i].ids[k]);
    }
    buf_cstr(&b);
    if (b.failed)
        buf_free(&b);
    return b.p; /* a heap block like any other */
}

static struct gen *gen_new(const struct call *c, const struct params *p, const struct gen_input *list, uint32_t inputs, const struct buf *ignored)
{
    struct gen *g = mem_try_zero(1, sizeof *g);
    if (!g)
        return NULL;
    g->per_request = p->n;
    g->choice_count = inputs * p->n;
    g->requests = mem_try_zero(inputs, sizeof *g->requests);
    g->prompt_scores = p->o.prompt_logprobs;
    g->scores_each = p->o.prompt_top_logprobs + 1;
    g->prompts = g->prompt_scores ? mem_try_zero(inputs, sizeof *g->prompts) : NULL;
    g->choices = mem_try_zero(g->choice_count, sizeof *g->choices);
    g->model = p->model.p ? mem_try_strndup(p->model.p, p->model.n) : mem_try_strndup(c->s->cfg->model_id, strlen(c->s->cfg->model_id));
    if (c->s->cfg->log_prompts)
        g->logged = prompt_text(p, list, inputs);
    g->number = ++c->s->gen_number;
    if (ignored && ignored->n)
        g->ignored = mem_try_strndup(ignored->p, ignored->n);
    if (!g->requests || !g->choices || !g->model || (g->prompt_scores && !g->prompts) || (ignored && ignored->n && !g->ignored)) {
        gen_free(g);
        return NULL;
    }
    return g;
}

static void options_of(struct params *p, const struct call *c)
{
    struct rh_request_options *o = &p->o;
    o->sampling = &p->sampling;
    p->sampling.min_tokens = p->min_tokens;
    o->max_tokens = p->max_tokens;
    o->ignore_eos = p->ignore_eos;
    o->seed_given = p->has_seed;
    o->seed = p->seed;
    o->n = p->n;
    o->logprobs = p->logprobs || p->top_logprobs;
    o->top_logprobs = p->top_logprobs;
    o->stop = p->stops;
    o->stop_count = p->stop_count;
    o->stop_ids = p->stop_ids;
    o->stop_id_count = p->stop_id_count;
    o->call_required = p->call_required;
    o->call_name = p->call_name.p ? arena_try_strndup(&p->arena, p->call_name) : NULL;
    struct str affinity = http_header_find(c->http, "x-session-affinity");
    if (!p->session.p && affinity.n)
        p->session = arena_try_str(&p->arena, affinity);
    o->session = p->session.n ? arena_try_strndup(&p->arena, p->session) : NULL;
    if (!o->session && c->s->cfg->key_count > 1 && c->key)
        o->session = c->key->name; /* keys share evenly */
}

/* What one key's prompts leave in the cache is not found by another. */
static int tenant_of(struct params *p, const struct call *c, struct api_error *e)
{
    struct buf b = {.max = 256};
    if (c->s->cfg->key_count > 1 && c->key)
        buf_z(&b, c->key->name);
    if (p->salt.n) {
        buf_char(&b, '/');
        buf_str(&b, p->salt);
    }
    p->o.tenant = b.n ? arena_try_strndup(&p->arena, buf_view(&b)) : NULL;
    bool failed = b.failed || (b.n && !p->o.tenant);
    buf_free(&b);
    return failed ? api_fail(e, 400, NULL, "/cache_salt", "cache_salt: longer than 200 bytes") : 0;
}

/* Requests are counted, and their prompts: one of embeddings has up to thousands. */
static int check_queue(struct server *s, uint32_t inputs, struct api_error *e)
{
    uint32_t most = s->cfg->queue ? s->cfg->queue : QUEUE_DEFAULT, prompts = most > PROMPTS_MAX ? most : PROMPTS_MAX;
    if (s->gen_count < most && s->prompt_count + inputs <= prompts)
        return 0;
    s->metrics.rejected++;
    e->retry_s = 1;
    if (s->gen_count >= most)
        return api_fail(e, 429, "queue_full", "", "%u requests are under way, the most there may be", most);
    return api_fail(e, 429, "queue_full", "", "%u prompts are under way, and these would be %u more: at most %u", s->prompt_count, inputs, prompts);
}

int gen_start(const struct call *c, struct params *p, const struct gen_input *inputs, uint32_t input_count, const struct gen_api *api, void *own,
              const struct buf *ignored, struct api_error *e)
{
    struct server *s = c->s;
    struct gen *g = NULL;
    input_count = inputs ? input_count : 1;
    if (check_queue(s, input_count, e))
        return -1;
    options_of(p, c);
    if (tenant_of(p, c, e))
        return -1;
    if (!(g = gen_new(c, p, inputs, input_count, ignored)))
        return api_fail(e, 503, NULL, "", "out of memory");
    g->s = s;
    g->api = api;
    g->pending = (struct pending){on_gone, on_drained};
    api_id(g->id, api->id_prefix);
    g->created_s = (int64_t)time(NULL);
    g->arrived_ns = c->http->arrived_ns;
    g->stream = p->stream;
    g->include_usage = p->include_usage;
    g->show_logprobs = p->o.logprobs;
    g->return_ids = p->return_ids;
    g->parallel_off = p->parallel_off || p->call_name.p;
    g->left_away = p->left_away;
    g->input = p->input;
    g->input_list = p->input_list;
    g->embeds = p->o.embed != RH_EMBED_NONE;
    g->tops = p->top_logprobs;
    g->show_prompt_logprobs = p->show_prompt_logprobs;
    g->has_tools = p->chat.tools_json.p;
    g->progress = p->progress;
    g->key_name = c->key ? c->key->name : NULL;
    g->sent_ms = uv_now(&s->loop);
    g->next = s->gens;
    if (g->next)
        g->next->prev = g;
    s->gens = g;
    s->gen_count++;
    s->prompt_count += g->prompt_count = input_count;
    if (submit_all(g, p, inputs, input_count, e)) {
        g->api = &(struct gen_api){0}; /* own stays the caller's */
        gen_end(g, e->text);
        return -1;
    }
    g->own = own;
    g->conn = c->conn;
    http_user_set(c->conn, g);
    return 0;
}

/* ---- for the APIs ---- */

const char *gen_finish(const struct gen_choice *c, const char *stop, const char *length, const char *tools)
{
    if (c->finish == RH_FINISH_STOP)
        return c->tool_count ? tools : stop;
    return c->finish == RH_FINISH_LENGTH ? length : "cancelled";
}

uint32_t gen_completion_tokens(const struct gen *g)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < g->choice_count; i++)
        n += g->choices[i].usage.completion_tokens;
    return n;
}

uint32_t gen_reasoning_tokens(const struct gen *g)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < g->choice_count; i++)
        n += g->choices[i].usage.reasoning_tokens;
    return n;
}

struct str gen_token_bytes(struct gen *g, uint32_t id, struct buf *scratch)
{
    char *text = NULL;
    size_t n = 0;
    scratch->n = 0;
    if (rh_token_bytes(g->s->model, id, &text, &n, NULL) == 0)
        buf_put(scratch, text, n);
    rh_free(text);
    return buf_view(scratch);
}
