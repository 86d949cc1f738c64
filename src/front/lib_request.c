/* front/lib_request.c - requests of the public library: prepared by a worker, run by the engine, polled as text.
 *
 *     rh_submit -> (worker) template, tokenizer -> engine_submit == ring ==> rh_poll: ids -> text with hold-back
 *
 * Lifetime: one reference is the caller's, one the preparation job's.  Thread: a request is polled and freed by one thread at a time. */
#include "base/log.h"
#include "base/mem.h"
#include "base/rng.h"
#include "base/utf8.h"
#include "front/front_int.h"

enum { DEFAULT_MAX_TOKENS = 512, OWN_TEXTS = 6 };
enum prepare_state { PREPARE_WAITING, PREPARE_DONE, PREPARE_FAILED };

/* what a choice of a chat said so far; owns all */
struct answer {
    struct token_ids ids;
    struct token_ids ends; /* bytes of text after each id; UINT32_MAX: inside a character */
    struct buf text;       /* as it was given out */
    bool failed;           /* no memory, or an id that shows no text: it is not remembered */
};

struct rh_request {
    struct prepare_job job;     /* first: the worker is given this */
    _Atomic uint32_t refs;
    struct rh_model *model;     /* holds a reference */
    struct engine_request *engine;
    /* input, copied */
    struct rh_chat chat;
    struct rh_text prompt;
    bool has_chat, has_prompt;
    char *own[OWN_TEXTS];       /* the copies' memory */
    const char *tenant;         /* own[4], or "" */
    struct call_choice call;    /* form NULL: the answer is free; name: own[5] */
    bool truncate;
    uint32_t dropped;
    int64_t max_tokens;
    enum rh_embed embed;
    uint32_t dimensions;
    float *embedding;           /* [dimensions] */
    struct token_ids ids;       /* given, or prepared */
    struct prompt_trace trace;  /* of a chat */
    struct answer *answers;     /* [n]; of a chat */
    const struct output_format *output;
    bool no_calls;
    struct reading *readings;   /* [n]; opened when the prompt is known */
    struct str stops[ENGINE_STOP_MAX];
    uint32_t stop_count;
    char *stop_text;
    uint32_t n;
    uint64_t seed;
    _Atomic int state;          /* enum prepare_state; ids and err are complete once it is not WAITING */
    struct err err;
    /* consumer */
    bool prompt_given, start_given;
    uint32_t ended;             /* choices whose DONE was given */
    struct text_stream *streams; /* [n] */
    struct rh_top tops[SAMPLE_TOP_MAX];
    bool done_pending;          /* the last text of a choice was given, its DONE comes next */
    uint32_t event_choice;      /* whose events wait, or whose DONE is pending */
};

static void request_unref(struct rh_request *r)
{
    if (atomic_fetch_sub(&r->refs, 1) != 1)
        return;
    engine_request_release(r->engine);
    for (int i = 0; i < OWN_TEXTS; i++)
        mem_free(r->own[i]);
    for (uint32_t i = 0; r->streams && i < r->n; i++)
        stream_free(&r->streams[i]);
    for (uint32_t i = 0; r->readings && i < r->n; i++)
        reading_free(&r->readings[i]);
    for (uint32_t i = 0; r->answers && i < r->n; i++) {
        token_ids_free(&r->answers[i].ids);
        token_ids_free(&r->answers[i].ends);
        buf_free(&r->answers[i].text);
    }
    mem_free(r->streams);
    mem_free(r->readings);
    mem_free(r->answers);
    mem_free(r->embedding);
    mem_free(r->stop_text);
    token_ids_free(&r->ids);
    prompt_trace_free(&r->trace);
    model_unref(r->model);
    mem_free(r);
}

/* ---- preparation (worker thread) ---- */

/* Positions the prompt may take when it is to be shortened: the answer gets what it asked for, or an eighth. */
static size_t prompt_room(const struct rh_request *r)
{
    size_t all = engine_positions_max(r->model->engine), answer = r->embed ? 0 : r->max_tokens > 0 ? (size_t)r->max_tokens : all / 8 + 1;
    return answer < all ? all - answer : 0;
}

static int encode_from(struct rh_request *r, struct shortening *s, uint32_t k, struct err *err)
{
    struct rh_chat chat = r->chat;
    token_ids_free(&r->ids);
    prompt_trace_free(&r->trace);
    r->ids = (struct token_ids){0};
    int rc = shorten_messages(s, k, &chat.messages_json, &r->dropped, err);
    return rc ? rc : history_encode(&r->model->history, &r->model->texts, &chat, r->tenant, &r->ids, &r->trace, err);
}

/* The fewest messages go that make it fit; when nothing does, the shortest is what the engine refuses. */
static int shorten_chat(struct rh_request *r, size_t most, struct err *err)
{
    struct shortening s;
    int rc = shorten_open(&s, r->chat.messages_json, err);
    uint32_t from = 0, to = s.start_count, encoded = UINT32_MAX;
    while (rc == 0 && from < to) {
        uint32_t mid = from + (to - from) / 2;
        rc = encode_from(r, &s, mid, err);
        encoded = mid;
        if (r->ids.n <= most)
            to = mid;
        else
            from = mid + 1;
    }
    uint32_t last = from < s.start_count ? from : from - 1;
    if (rc == 0 && s.start_count && encoded != last)
        rc = encode_from(r, &s, last, err);
    shorten_close(&s);
    return rc;
}

static int fit_prompt(struct rh_request *r, struct err *err)
{
    size_t most = prompt_room(r);
    if (!r->truncate || most == 0 || r->ids.n <= most)
        return 0;
    if (r->has_chat)
        return shorten_chat(r, most, err);
    r->dropped = shorten_ids(&r->ids, most, &r->model->texts.info, r->embed != RH_EMBED_NONE);
    return 0;
}

static int make_ids(struct rh_request *r, struct err *err)
{
    const struct texts *t = &r->model->texts;
    struct encode_options opt = {.add_bos = true, .parse_special = true};
    if (r->has_chat)
        return history_encode(&r->model->history, t, &r->chat, r->tenant, &r->ids, &r->trace, err);
    if (r->has_prompt)
        return tokenizer_encode(t->tokenizer, front_str(r->prompt), &opt, &r->ids, err);
    return 0;
}

static int give_boundaries(struct rh_request *r, struct err *err)
{
    uint32_t n = r->trace.cut_count;
    while (n && r->trace.cut_positions[n - 1] > r->ids.n)
        n--;
    return engine_request_boundaries(r->engine, r->trace.cut_positions, n, err);
}

enum { TAIL_IDS = 32 };

/* The end of the prompt as text, special tokens included, says where the answer begins. */
static int open_readings(struct rh_request *r, struct err *err)
{
    struct buf tail = {0};
    size_t n = r->ids.n < TAIL_IDS ? r->ids.n : TAIL_IDS;
    bool calls = !r->no_calls && (!r->has_chat || r->chat.tools_json.n);
    int rc = tokenizer_decode(r->model->texts.tokenizer, r->ids.ids + (r->ids.n - n), n, false, &tail);
    for (uint32_t i = 0; i < r->n && rc == 0; i++)
        rc = reading_open(&r->readings[i], r->output, front_str(r->chat.tools_json), calls, buf_view(&tail), err);
    buf_free(&tail);
    return rc;
}

static void prepare(struct prepare_job *job)
{
    struct rh_request *r = (struct rh_request *)(void *)job;
    int rc = make_ids(r, &r->err);
    if (rc == 0 && r->ids.n > UINT32_MAX / 2)
        rc = err_set(&r->err, ERR_LIMIT, "prompt of %zu tokens", r->ids.n);
    if (rc == 0)
        rc = fit_prompt(r, &r->err);
    if (rc == 0)
        rc = give_boundaries(r, &r->err);
    if (rc == 0)
        rc = open_readings(r, &r->err);
    if (rc == 0)
        rc = engine_submit(r->engine, r->ids.ids, (uint32_t)r->ids.n, &r->err);
    if (rc && !r->err.code)
        err_set(&r->err, rc, "%s", err_text(rc));
    atomic_store(&r->state, rc ? PREPARE_FAILED : PREPARE_DONE);
    engine_request_signal(r->engine);
    request_unref(r);
}

/* ---- submission ---- */

static int copy_text(struct rh_request *r, int slot, struct rh_text in, struct rh_text *out, struct err *err)
{
    if (!in.p)
        return 0;
    r->own[slot] = mem_try_strndup(in.p, in.n);
    if (!r->own[slot])
        return err_nomem(err, "request text", in.n);
    *out = (struct rh_text){r->own[slot], in.n};
    return 0;
}

static int copy_boundaries(struct rh_request *r, const struct rh_request_options *o, struct err *err)
{
    if (o->boundary_count > o->id_count)
        return err_set(err, ERR_ARGUMENT, "boundaries: %zu in a prompt of %zu ids", o->boundary_count, o->id_count);
    r->trace.cut_positions = mem_try_array(o->boundary_count, sizeof *r->trace.cut_positions);
    if (!r->trace.cut_positions)
        return err_nomem(err, "boundaries", o->boundary_count * sizeof *r->trace.cut_positions);
    if (o->boundary_count)
        memcpy(r->trace.cut_positions, o->boundaries, o->boundary_count * sizeof *r->trace.cut_positions);
    r->trace.cut_count = (uint32_t)o->boundary_count;
    return 0;
}

static int copy_input(struct rh_request *r, const struct rh_request_options *o, struct err *err)
{
    int rc = 0;
    if ((o->prompt.p != NULL) + (o->ids != NULL) + (o->chat != NULL) != 1)
        return err_set(err, ERR_ARGUMENT, "expected exactly one of prompt, ids and chat");
    r->has_prompt = o->prompt.p != NULL;
    r->has_chat = o->chat != NULL;
    if (o->boundary_count && !o->ids)
        return err_set(err, ERR_ARGUMENT, "boundaries: they are for prompts given as ids");
    if (r->has_prompt)
        return copy_text(r, 0, o->prompt, &r->prompt, err);
    if (r->has_chat) {
        r->chat.no_generation_prompt = o->chat->no_generation_prompt;
        if ((rc = copy_text(r, 1, o->chat->messages_json, &r->chat.messages_json, err)) ||
            (rc = copy_text(r, 2, o->chat->tools_json, &r->chat.tools_json, err)))
            return rc;
        return copy_text(r, 3, o->chat->variables_json, &r->chat.variables_json, err);
    }
    r->ids.ids = mem_try_array(o->id_count, sizeof *r->ids.ids);
    if (!r->ids.ids)
        return err_nomem(err, "prompt ids", o->id_count * sizeof *r->ids.ids);
    if (o->id_count)
        memcpy(r->ids.ids, o->ids, o->id_count * sizeof *r->ids.ids);
    r->ids.n = r->ids.cap = o->id_count;
    return copy_boundaries(r, o, err);
}

static int copy_stops(struct rh_request *r, const struct rh_request_options *o, struct err *err)
{
    size_t total = 0, at = 0;
    if (o->stop_count > ENGINE_STOP_MAX)
        return err_set(err, ERR_LIMIT, "stop strings: at most %d, got %zu", ENGINE_STOP_MAX, o->stop_count);
    for (size_t i = 0; i < o->stop_count; i++) {
        if (o->stop[i].n == 0 || !utf8_valid(front_str(o->stop[i])))
            return err_set(err, ERR_ARGUMENT, "stop strings: number %zu is %s", i + 1, o->stop[i].n ? "not UTF-8" : "empty");
        total += o->stop[i].n + 1;
    }
    r->stop_text = mem_try(total);
    if (!r->stop_text)
        return err_nomem(err, "stop strings", total);
    for (size_t i = 0; i < o->stop_count; i++) {
        memcpy(r->stop_text + at, o->stop[i].p, o->stop[i].n);
        r->stop_text[at + o->stop[i].n] = 0; /* shown to the caller as a C string */
        r->stops[i] = str_n(r->stop_text + at, o->stop[i].n);
        at += o->stop[i].n + 1;
    }
    r->stop_count = (uint32_t)o->stop_count;
    return 0;
}

/* EOS ids (unless ignored) and the request's stop ids. */
static int end_ids_of(const struct rh_model *m, const struct rh_request_options *o, uint32_t **ids, uint32_t *count, struct err *err)
{
    size_t own = o->ignore_eos ? 0 : m->end_count;
    *ids = o->stop_id_count > UINT32_MAX / 8 ? NULL : mem_try_array(own + o->stop_id_count, sizeof **ids);
    if (!*ids)
        return err_nomem(err, "stop ids", o->stop_id_count * sizeof **ids);
    if (own)
        memcpy(*ids, m->end_ids, own * sizeof **ids);
    if (o->stop_id_count)
        memcpy(*ids + own, o->stop_ids, o->stop_id_count * sizeof **ids);
    *count = (uint32_t)(own + o->stop_id_count);
    return 0;
}

static int check_kv(const struct rh_model *m, const struct rh_request_options *o, struct err *err)
{
    enum kv_format k, v;
    char own[KV_NAME_MAX];
    const char *kv = o->kv;
    if (o->kv_start_given && o->kv_start != m->options.kv_start)
        return err_set(err, ERR_UNSUPPORTED, "kv start: this model was opened with %u, the request asks for %u", m->options.kv_start, o->kv_start);
    if (!kv || (kv_formats_parse(kv, strlen(kv), &k, &v) == 0 && k == m->options.k_format && v == m->options.v_format))
        return 0;
    return err_set(err, ERR_UNSUPPORTED, "kv: this model was opened with %s, the request asks for '%.64s'",
                   kv_formats_name(m->options.k_format, m->options.v_format, own), kv);
}

static int choose_output(struct rh_request *r, const struct rh_request_options *o, struct err *err)
{
    const char *name = o->output ? o->output : o->chat ? "auto" : "none";
    r->output = strcmp(name, "auto") == 0 ? r->model->texts.output : output_format_find(str_of(name));
    if (!r->output)
        return err_set(err, ERR_ARGUMENT, "output: no format is named '%.64s' (see docs/output.md)", name);
    return 0;
}

/* Names joined by commas -> bits. */
static int parse_propose(const struct rh_model *m, const char *text, uint32_t *out, struct err *err)
{
    static const struct {
        const char *name;
        uint32_t bits;
    } list[] = {{"none", 0}, {"auto", ENGINE_PROPOSE_ECHO | ENGINE_PROPOSE_LOOKUP}, {"echo", ENGINE_PROPOSE_ECHO}, {"lookup", ENGINE_PROPOSE_LOOKUP}, {"draft", ENGINE_PROPOSE_DRAFT}};
    struct str rest = str_of(text ? text : "auto"), piece;
    *out = 0;
    while (str_split(&rest, ',', &piece)) {
        size_t i = 0, n = sizeof list / sizeof *list;
        while (i < n && !str_is(str_trim(piece), list[i].name))
            i++;
        if (i == n)
            return err_set(err, ERR_ARGUMENT, "propose: expected none, auto, or some of echo, lookup, draft, got '%.64s'", text);
        *out |= list[i].bits | (i == 1 && m->draft ? ENGINE_PROPOSE_DRAFT : 0);
    }
    return 0;
}

/* The engine opens one for each choice while the request is submitted: the prompt is known by then. */
static int open_call(void *ctx, uint32_t vocab, struct constraint **out, struct err *err)
{
    struct rh_request *r = ctx;
    if (r->readings[0].parser)
        r->call.mark = output_reasoning_close(r->readings[0].parser);
    r->call.tools_json = front_str(r->chat.tools_json);
    return calls_open(r->model, &r->call, vocab, out, err);
}

static int choose_call(struct rh_request *r, const struct rh_request_options *o, struct err *err)
{
    struct rh_text name = {o->call_name, o->call_name ? strlen(o->call_name) : 0};
    if (!o->call_required)
        return o->call_name ? err_set(err, ERR_ARGUMENT, "call_name without call_required") : 0;
    if (!r->has_chat || o->no_calls)
        return err_set(err, ERR_ARGUMENT, "a call is required: expected a chat with tools, and not no_calls");
    r->call.form = texts_call_form(&r->model->texts, r->output);
    if (!r->call.form)
        return err_set(err, ERR_UNSUPPORTED, "a call is required, but the output format '%s' has none", output_format_name(r->output));
    int rc = copy_text(r, 5, name, &name, err);
    r->call.name = r->own[5];
    return rc;
}

static int choose_embed(struct rh_request *r, const struct rh_request_options *o, enum engine_pool *pool, struct err *err)
{
    uint32_t cols = model_info(r->model->model)->hidden;
    r->embed = o->embed;
    r->dimensions = o->dimensions ? o->dimensions : cols;
    if (!o->embed)
        return 0;
    if (r->dimensions > cols)
        return err_set(err, ERR_ARGUMENT, "dimensions: the model's embeddings have %u, the request asks for %u", cols, r->dimensions);
    r->embedding = mem_try_array(r->dimensions, sizeof *r->embedding);
    return r->embedding ? embedding_pool(&r->model->texts, o->embed, pool, err) : err_nomem(err, "embedding", r->dimensions * sizeof(float));
}

static int make_engine_request(struct rh_request *r, const struct rh_request_options *o, struct err *err)
{
    const struct constraint_source call = {open_call, r};
    struct rh_model *m = r->model;
    struct rh_sampling defaults;
    struct sample_bias *biases = NULL;
    uint32_t *end_ids = NULL;
    struct engine_request_config c = {.n = r->n, .logprobs = o->logprobs, .top = o->top_logprobs, .stops = r->stops,
                                      .stop_count = r->stop_count, .allowed_ids = o->allowed_ids,
                                      .prompt_logprobs = o->prompt_logprobs || o->prompt_top_logprobs, .prompt_top = o->prompt_top_logprobs};
    c.tenant = str_of(r->tenant);
    c.constraint = r->call.form ? &call : NULL;
    c.session = o->session ? str_of(o->session) : (struct str){0};
    sampling_defaults(m, &defaults);
    const struct rh_sampling *s = o->sampling ? o->sampling : &defaults;
    c.propose_depth = o->propose_depth;
    c.priority = o->priority;
    c.allowed_count = o->allowed_id_count < UINT32_MAX / 8 ? (uint32_t)o->allowed_id_count : UINT32_MAX / 8;
    int rc = parse_propose(m, o->propose, &c.propose, err);
    if (rc == 0)
        rc = choose_embed(r, o, &c.pool, err);
    if (rc == 0)
        rc = sampling_convert(s, &c.sampling, &biases, err);
    if (rc == 0)
        rc = end_ids_of(m, o, &end_ids, &c.end_count, err);
    if (rc == 0) {
        c.end_ids = end_ids;
        c.sampling.seed = r->seed;
        c.penalty_window = s->penalty_window;
        c.min_tokens = s->min_tokens;
        c.max_tokens_soft = o->max_tokens == 0;
        c.max_tokens = o->max_tokens ? o->max_tokens : r->has_chat ? -1 : DEFAULT_MAX_TOKENS;
        rc = engine_request_new(m->engine, &c, &r->engine, err);
    }
    if (rc == 0)
        engine_request_hook(r->engine, o->notify, o->notify_ctx);
    mem_free(biases);
    mem_free(end_ids);
    return rc;
}

static int fill_request(struct rh_request *r, const struct rh_request_options *o, struct err *err)
{
    int rc = model_need_engine(r->model, err);
    if (rc || (rc = check_kv(r->model, o, err)) || (rc = choose_output(r, o, err)) || (rc = copy_input(r, o, err)) ||
        (rc = copy_stops(r, o, err)) || (rc = choose_call(r, o, err)))
        return rc;
    r->truncate = o->truncate;
    r->max_tokens = o->max_tokens;
    r->n = o->n ? o->n : 1;
    if (r->n > ENGINE_CHOICES_MAX)
        return err_set(err, ERR_LIMIT, "n: at most %d choices, got %u", ENGINE_CHOICES_MAX, r->n);
    r->seed = o->seed_given ? o->seed : rng_seed_draw();
    r->no_calls = o->no_calls;
    r->streams = mem_try_zero(r->n, sizeof *r->streams);
    r->readings = mem_try_zero(r->n, sizeof *r->readings);
    if (r->has_chat)
        r->answers = mem_try_zero(r->n, sizeof *r->answers);
    if (!r->streams || !r->readings || (r->has_chat && !r->answers))
        return err_nomem(err, "request", r->n * sizeof *r->answers);
    r->tenant = "";
    if (o->tenant) {
        struct rh_text tenant = {o->tenant, strlen(o->tenant)};
        int rc_copy = copy_text(r, 4, tenant, &tenant, err);
        if (rc_copy)
            return rc_copy;
        r->tenant = r->own[4];
    }
    for (uint32_t i = 0; i < r->n; i++)
        stream_open(&r->streams[i]);
    return make_engine_request(r, o, err);
}

int rh_submit(struct rh_model *m, const struct rh_request_options *opt, struct rh_request **out, struct rh_error *rerr)
{
    struct err err = {0};
    struct rh_request *r = mem_try_zero(1, sizeof *r);
    *out = NULL;
    if (!r)
        return front_error(rerr, &err, err_nomem(&err, "request", sizeof *r));
    atomic_store(&r->refs, 1);
    r->model = m;
    model_ref(m);
    int rc = fill_request(r, opt, &err);
    if (rc == 0) {
        r->job.run = prepare;
        atomic_fetch_add(&r->refs, 1);
        rc = prepare_put(&m->host->prepare, &r->job, &err);
        if (rc)
            atomic_fetch_sub(&r->refs, 1);
    }
    if (rc) {
        if (r->engine)
            engine_request_hook(r->engine, NULL, NULL);
        request_unref(r);
        return front_error(rerr, &err, rc);
    }
    *out = r;
    return 0;
}

void rh_request_cancel(struct rh_request *r)
{
    if (r)
        engine_request_cancel(r->engine);
}

void rh_request_free(struct rh_request *r)
{
    if (!r)
        return;
    engine_request_hook(r->engine, NULL, NULL);
    engine_request_cancel(r->engine);
    request_unref(r);
}

/* ---- events ---- */

static double ms_between(int64_t from, int64_t to)
{
    return from && to > from ? (double)(to - from) / 1e6 : 0;
}

_Static_assert((int)RH_DEPTH_MAX == (int)ENGINE_DEPTH_MAX, "one depth");

static void fill_speculation(struct rh_speculation *to, const struct engine_outcome *o)
{
    const struct engine_speculation *from = &o->speculation;
    const struct engine_fill *f = &from->fill;
    *to = (struct rh_speculation){.decode_forwards = from->forwards, .drafted = from->drafted, .accepted = from->accepted,
                                  .rejected = from->rejected, .rounds = from->rounds};
    to->forwards_saved = o->completion_count > from->forwards + 1 ? o->completion_count - 1 - from->forwards : 0;
    to->tokens_per_forward = from->forwards ? (double)o->completion_count / from->forwards : 0;
    memcpy(to->acceptance_lengths, from->lengths, sizeof to->acceptance_lengths);
    memcpy(to->drafted_by_position, from->drafted_at, sizeof to->drafted_by_position);
    memcpy(to->accepted_by_position, from->accepted_at, sizeof to->accepted_by_position);
    to->fill = (struct rh_fill){.events = f->events, .injected = f->injected, .echo = f->echo, .forced = f->forced,
                                .wasted_samples = f->wasted, .accepted = f->accepted, .rejected = f->rejected};
    memcpy(to->fill.span_lengths, f->lengths, sizeof to->fill.span_lengths);
}

static void fill_cache(const struct rh_request *r, const struct engine_outcome *o, struct rh_cache *out)
{
    const struct kv_prefix_hit *hit = &o->cache;
    *out = (struct rh_cache){.cached_tokens = hit->positions, .known_tokens = hit->matched, .stored_id = hit->stored_id, .prompt_id = -1,
                             .reason = !o->admitted_ns ? "off" : hit->miss ? front_miss_names[hit->miss] : NULL};
    if (o->admitted_ns && hit->miss == KV_MISS_DIVERGED && hit->matched < r->ids.n)
        out->prompt_id = r->ids.ids[hit->matched];
    else
        out->stored_id = -1;
}

/* How the chat goes on from here is known with its own ids. */
static void remember(struct rh_request *r, uint32_t choice)
{
    struct answer *a = r->answers ? &r->answers[choice] : NULL;
    size_t n = a && !a->failed && !a->text.failed ? a->ids.n : 0;
    while (n && a->ends.ids[n - 1] != a->text.n)
        n--;
    if (n)
        history_add(&r->model->history, r->tenant, &r->trace, &r->ids, buf_view(&a->text), a->ids.ids, n);
}

static void fill_done(struct rh_request *r, uint32_t choice, struct rh_event *out)
{
    static const enum rh_finish names[] = {RH_FINISH_STOP, RH_FINISH_LENGTH, RH_FINISH_CANCELLED, RH_FINISH_ERROR};
    const struct engine_outcome *o = engine_request_outcome(r->engine, choice);
    int64_t prefill_end = o->first_ns ? o->first_ns : o->done_ns;
    *out = (struct rh_event){.kind = RH_EVENT_DONE, .choice = choice, .finish = names[o->finish], .seed = r->seed,
                             .stop_string = o->stop >= 0 ? r->stops[o->stop].p : NULL};
    if (r->readings[choice].parser)
        out->call_count = output_call_count(r->readings[choice].parser);
    out->usage = (struct rh_usage){.prompt_tokens = o->prompt_count, .cached_tokens = o->cached_count, .completion_tokens = o->completion_count,
                                   .reasoning_tokens = r->readings[choice].reasoning_tokens};
    fill_cache(r, o, &out->cache);
    if (o->finish != ENGINE_ERROR)
        remember(r, choice);
    struct rh_timings *t = &out->timings;
    t->load_ms = r->model->load_ms;
    t->queue_ms = ms_between(o->submitted_ns, o->admitted_ns ? o->admitted_ns : o->done_ns);
    t->prefill_ms = ms_between(o->admitted_ns, prefill_end);
    t->decode_ms = ms_between(o->first_ns, o->done_ns);
    if (t->prefill_ms > 0)
        t->prefill_tokens_per_s = (o->prompt_count - o->cached_count) / t->prefill_ms * 1e3;
    if (t->decode_ms > 0 && o->completion_count > 1)
        t->decode_tokens_per_s = (o->completion_count - 1) / t->decode_ms * 1e3;
    fill_speculation(&out->speculation, o);
    if (o->pooled) {
        embedding_scale(o->pooled, r->dimensions, r->embedding);
        out->embedding = r->embedding;
        out->embedding_n = r->dimensions;
    }
    if (o->finish == ENGINE_ERROR)
        front_error(&out->error, &o->err, o->err.code ? o->err.code : ERR_INTERNAL);
}

static int fail_text(struct rh_request *r, int rc) /* no memory for text */
{
    engine_request_cancel(r->engine);
    return rc;
}

/* The first event of what the stream gives out now. */
static int take_text(struct rh_request *r, uint32_t choice, bool ended, struct rh_event *out)
{
    struct reading *g = &r->readings[choice];
    struct buf *raw = r->answers ? &r->answers[choice].text : NULL;
    struct str text = stream_take(&r->streams[choice], r->stops, r->stop_count, ended);
    int rc = 0;
    out->kind = RH_EVENT_TEXT;
    out->choice = choice;
    out->text = "";
    if (g->parser) {
        rc = reading_take(g, r->model->texts.tokenizer, &r->streams[choice], text, raw);
        if (ended && rc == 0)
            rc = output_end(g->parser);
        reading_next(g, out);
        return rc;
    }
    out->text = text.p ? text.p : "";
    out->text_n = text.n;
    if (raw)
        buf_str(raw, text);
    return 0;
}

/* An id and how long the text is with it. */
static void note_token(struct rh_request *r, uint32_t choice, uint32_t id, bool marked)
{
    struct answer *a = r->answers ? &r->answers[choice] : NULL;
    const struct text_stream *s = &r->streams[choice];
    if (!a || a->failed)
        return;
    size_t end = s->detok.held_count ? UINT32_MAX : a->text.n + s->pending.n + s->mark_bytes;
    a->failed = (tokenizer_is_special(r->model->texts.tokenizer, id) && !marked) || end > UINT32_MAX || token_ids_push(&a->ids, id) ||
                token_ids_push(&a->ends, (uint32_t)end);
}

static int on_token(struct rh_request *r, const struct engine_event *e, struct rh_event *out)
{
    const struct tokenizer *t = r->model->texts.tokenizer;
    struct reading *g = &r->readings[e->choice];
    bool marked = reading_marks(g, t, e->id);
    int rc = stream_put(&r->streams[e->choice], t, e->id);
    if (rc == 0 && marked)
        rc = stream_mark(&r->streams[e->choice], e->id, tokenizer_piece(t, e->id).n);
    if (rc)
        return fail_text(r, rc);
    note_token(r, e->choice, e->id, marked);
    *out = (struct rh_event){.has_token = true, .id = e->id, .logprob = e->logprob, .tops = r->tops, .top_count = e->top_count};
    for (uint32_t i = 0; i < e->top_count; i++)
        r->tops[i] = (struct rh_top){e->top_ids[i], e->top_logprobs[i]};
    rc = take_text(r, e->choice, false, out);
    g->reasoning_tokens += g->reasons;
    r->event_choice = e->choice;
    return rc ? fail_text(r, rc) : 1;
}

static int give_done(struct rh_request *r, uint32_t choice, struct rh_event *out)
{
    r->done_pending = false;
    r->ended++;
    fill_done(r, choice, out);
    return 1;
}

/* What was held back comes out as last events, then the end. */
static int on_done(struct rh_request *r, uint32_t choice, struct rh_event *out)
{
    const struct engine_outcome *o = engine_request_outcome(r->engine, choice);
    int rc = stream_end(&r->streams[choice], o->stop >= 0 ? &r->stops[o->stop] : NULL);
    *out = (struct rh_event){0};
    r->event_choice = choice;
    if (rc || (rc = take_text(r, choice, true, out)))
        return fail_text(r, rc);
    r->done_pending = true;
    return out->text_n || out->kind != RH_EVENT_TEXT ? 1 : give_done(r, choice, out);
}

static int failed_preparation(struct rh_request *r, struct rh_event *out)
{
    *out = (struct rh_event){.kind = RH_EVENT_DONE, .choice = r->ended++, .finish = RH_FINISH_ERROR, .seed = r->seed};
    if (r->err.code == ERR_CANCELLED)
        out->finish = RH_FINISH_CANCELLED;
    out->usage.prompt_tokens = (uint32_t)r->ids.n;
    out->timings.load_ms = r->model->load_ms;
    out->cache = (struct rh_cache){.reason = "off", .stored_id = -1, .prompt_id = -1};
    front_error(&out->error, &r->err, r->err.code);
    return 1;
}

static int next_event(struct rh_request *r, struct rh_event *out) /* 0: nothing yet */
{
    struct engine_event e;
    int state = atomic_load(&r->state);
    if (state == PREPARE_WAITING)
        return 0;
    if (state == PREPARE_FAILED)
        return failed_preparation(r, out);
    if (!r->prompt_given) {
        r->prompt_given = true;
        *out = (struct rh_event){.kind = RH_EVENT_PROMPT, .prompt_ids = r->ids.ids, .prompt_count = r->ids.n, .dropped = r->dropped};
        return 1;
    }
    *out = (struct rh_event){.choice = r->event_choice};
    if (reading_next(&r->readings[r->event_choice], out))
        return 1;
    if (r->done_pending)
        return give_done(r, r->event_choice, out);
    bool waiting = engine_request_waiting(r->engine); /* asked first: what waits was put there after the start */
    if (!r->start_given && engine_request_started(r->engine)) {
        const struct engine_outcome *o = engine_request_outcome(r->engine, 0);
        r->start_given = true;
        *out = (struct rh_event){.kind = RH_EVENT_START, .usage = {.prompt_tokens = o->prompt_count, .cached_tokens = o->cached_count}};
        fill_cache(r, o, &out->cache);
        return 1;
    }
    if (!waiting || !engine_poll(r->engine, &e))
        return 0;
    return e.kind == ENGINE_TOKEN ? on_token(r, &e, out) : on_done(r, e.choice, out);
}

int rh_poll(struct rh_request *r, struct rh_event *out, int timeout_ms)
{
    int64_t until = timeout_ms < 0 ? INT64_MAX : thread_now_ns() + (int64_t)timeout_ms * 1000000;
    for (;;) {
        uint32_t seen = engine_request_seen(r->engine);
        if (r->ended == r->n)
            return RH_ERR_END;
        int rc = next_event(r, out);
        if (rc)
            return rc;
        int64_t left = timeout_ms < 0 ? -1 : until - thread_now_ns();
        if (timeout_ms >= 0 && left <= 0)
            return 0;
        engine_request_wait(r->engine, seen, left);
    }
}

bool rh_request_prompt_logprob(const struct rh_request *r, size_t position, float *logprob, struct rh_top *tops, uint32_t *top_count)
{
    const uint32_t *ids;
    const float *logprobs;
    *top_count = 0;
    if (position > UINT32_MAX || !engine_request_prompt_score(r->engine, (uint32_t)position, logprob, &ids, &logprobs, top_count))
        return false;
    for (uint32_t i = 0; i < *top_count; i++)
        tops[i] = (struct rh_top){ids[i], logprobs[i]};
    return true;
}

void rh_request_progress(struct rh_request *r, uint32_t *done, uint32_t *total)
{
    bool known = atomic_load(&r->state) == PREPARE_DONE;
    *total = known ? (uint32_t)r->ids.n : 0;
    *done = known ? engine_request_progress(r->engine) : 0;
    *done = *done < *total ? *done : *total;
}
