/* front/lib_poll.c - what a request gives back: the engine's events become text, reasoning, pieces of calls, and ends. */
#include "front/request_int.h"

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
