/* front/lib_request.c - requests of the public library: what is asked for is checked and copied, and goes to a worker (prompt.c); the end of a
 * request.  What comes back: lib_poll.c. */
#include "front/request_int.h"

#include "base/mem.h"
#include "base/rng.h"
#include "base/utf8.h"

enum { DEFAULT_MAX_TOKENS = 512 };

void request_unref(struct rh_request *r)
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

/* The delimiters of the format's calls that are one added token each. */
static uint32_t delimiter_ids(const struct rh_model *m, const struct output_format *format, uint32_t ids[OUTPUT_DELIMITERS_MAX])
{
    struct str words[OUTPUT_DELIMITERS_MAX];
    size_t count = output_format_delimiters(format, words);
    uint32_t n = 0;
    for (size_t i = 0; i < count; i++) {
        int64_t id = m->texts.tokenizer ? tokenizer_find(m->texts.tokenizer, words[i]) : -1;
        if (id >= 0 && tokenizer_is_added(m->texts.tokenizer, (uint32_t)id))
            ids[n++] = (uint32_t)id;
    }
    return n;
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
        return err_set(err, ERR_UNSUPPORTED, "a call is required, but %s has no tool calls (output format '%s'; another can be named)",
                       o->output && strcmp(o->output, "auto") ? "what was asked for" : "this model's chat template", output_format_name(r->output));
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
    uint32_t *end_ids = NULL, cut_ids[OUTPUT_DELIMITERS_MAX];
    struct engine_request_config c = {.n = r->n, .logprobs = o->logprobs, .top = o->top_logprobs, .stops = r->stops,
                                      .stop_count = r->stop_count, .allowed_ids = o->allowed_ids,
                                      .prompt_logprobs = o->prompt_logprobs || o->prompt_top_logprobs, .prompt_top = o->prompt_top_logprobs};
    c.tenant = str_of(r->tenant);
    c.constraint = r->call.form ? &call : NULL;
    c.session = o->session ? str_of(o->session) : (struct str){0};
    sampling_defaults(m, &defaults);
    const struct rh_sampling *s = o->sampling ? o->sampling : &defaults;
    c.cut_ids = cut_ids;
    c.cut_count = o->no_calls || (r->has_chat && !r->chat.tools_json.n) ? 0 : delimiter_ids(m, r->output, cut_ids);
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
    r->positions_max = engine_positions_max(m->engine);
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
    r->told_calls = o->told_calls;
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
        stream_open(&r->streams[i], o->raw_bytes);
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
        r->job.run = request_prepare;
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
