/* engine/request.c - a request: its constants, its choices, and the ring its events leave by.
 *
 * Invariants: 1. One reference is the consumer's, one the engine's from submission to the last event; the last one frees.
 *             2. The ring has one writer (engine thread) and one reader (consumer); head - tail <= ring_cap.
 *             3. A token is written only while a slot per live choice stays free for its last event, so that one always fits.
 * Threads: engine_request_cancel from any; engine_poll and _release from the consumer; ring_put_* from the engine thread. */
#include "base/mem.h"
#include "engine/engine_int.h"

#include <limits.h>
#include <stdlib.h>

enum { RING_DEFAULT = 256, RING_MAX = 1 << 20 };

struct ring_slot {
    enum engine_event_kind kind;
    uint32_t choice, id, top_count;
    float logprob;
};

/* ---- building ---- */

static int by_value(const void *a, const void *b)
{
    uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    return (x > y) - (x < y);
}

static int by_bias_id(const void *a, const void *b)
{
    const struct sample_bias *x = a, *y = b;
    return (x->id > y->id) - (x->id < y->id);
}

static int copy_end_ids(struct engine_request *r, const struct engine_request_config *cfg, struct err *err)
{
    uint32_t n = 0;
    r->end_ids = mem_try_array(cfg->end_count, sizeof *r->end_ids);
    if (!r->end_ids)
        return err_nomem(err, "end ids", cfg->end_count * sizeof *r->end_ids);
    if (cfg->end_count)
        memcpy(r->end_ids, cfg->end_ids, cfg->end_count * sizeof *r->end_ids);
    qsort(r->end_ids, cfg->end_count, sizeof *r->end_ids, by_value);
    for (uint32_t i = 0; i < cfg->end_count; i++)
        if ((n == 0 || r->end_ids[n - 1] != r->end_ids[i]) && r->end_ids[i] < r->engine->vocab)
            r->end_ids[n++] = r->end_ids[i];
    r->end_count = n;
    return 0;
}

static int copy_cut_ids(struct engine_request *r, const struct engine_request_config *cfg, struct err *err)
{
    size_t n = (size_t)r->end_count + cfg->cut_count;
    r->cut_ids = mem_try_array(n, sizeof *r->cut_ids);
    if (!r->cut_ids)
        return err_nomem(err, "ids that end a span", n * sizeof *r->cut_ids);
    if (r->end_count)
        memcpy(r->cut_ids, r->end_ids, r->end_count * sizeof *r->cut_ids);
    if (cfg->cut_count)
        memcpy(r->cut_ids + r->end_count, cfg->cut_ids, cfg->cut_count * sizeof *r->cut_ids);
    r->cut_count = (uint32_t)n;
    return 0;
}

static int copy_biases(struct engine_request *r, struct err *err)
{
    uint32_t n = r->sampling.bias_count;
    r->biases = mem_try_array(n, sizeof *r->biases);
    if (!r->biases)
        return err_nomem(err, "logit biases", n * sizeof *r->biases);
    if (n)
        memcpy(r->biases, r->sampling.biases, n * sizeof *r->biases);
    qsort(r->biases, n, sizeof *r->biases, by_bias_id);
    for (uint32_t i = 0; i < n; i++) {
        if (r->biases[i].id >= r->engine->vocab)
            return err_set(err, ERR_ARGUMENT, "logit bias: id %u is outside the vocabulary of %u", r->biases[i].id, r->engine->vocab);
        if (i && r->biases[i].id == r->biases[i - 1].id)
            return err_set(err, ERR_ARGUMENT, "logit bias: id %u is given twice", r->biases[i].id);
    }
    r->sampling.biases = r->biases;
    return 0;
}

static int copy_stops(struct engine_request *r, const struct engine_request_config *cfg, struct err *err)
{
    size_t total = 0, at = 0;
    if (cfg->stop_count > ENGINE_STOP_MAX)
        return err_set(err, ERR_LIMIT, "stop strings: at most %d, got %u", ENGINE_STOP_MAX, cfg->stop_count);
    for (uint32_t i = 0; i < cfg->stop_count; i++) {
        if (cfg->stops[i].n == 0)
            return err_set(err, ERR_ARGUMENT, "stop strings: number %u is empty", i + 1);
        total += cfg->stops[i].n;
    }
    r->stop_text = mem_try(total);
    if (!r->stop_text)
        return err_nomem(err, "stop strings", total);
    for (uint32_t i = 0; i < cfg->stop_count; i++) {
        memcpy(r->stop_text + at, cfg->stops[i].p, cfg->stops[i].n);
        r->stops.items[i] = str_n(r->stop_text + at, cfg->stops[i].n);
        at += cfg->stops[i].n;
        r->stops.longest = cfg->stops[i].n > r->stops.longest ? cfg->stops[i].n : r->stops.longest;
    }
    r->stops.count = cfg->stop_count;
    return 0;
}

static int copy_allowed(struct engine_request *r, const struct engine_request_config *cfg, struct err *err)
{
    if (cfg->constraint)
        r->constraint = *cfg->constraint;
    if (cfg->allowed_count == 0)
        return 0;
    if (cfg->constraint)
        return err_set(err, ERR_ARGUMENT, "allowed ids beside a grammar: expected one of them");
    r->allowed_ids = mem_try_array(cfg->allowed_count, sizeof *r->allowed_ids);
    if (!r->allowed_ids)
        return err_nomem(err, "allowed ids", cfg->allowed_count * sizeof *r->allowed_ids);
    memcpy(r->allowed_ids, cfg->allowed_ids, cfg->allowed_count * sizeof *r->allowed_ids);
    r->allowed_count = cfg->allowed_count;
    return 0;
}

static int make_ring(struct engine_request *r, uint32_t asked, struct err *err)
{
    uint32_t least = 4 * r->n + 4, want = asked ? asked : RING_DEFAULT;
    want = want < least ? least : want > RING_MAX ? RING_MAX : want;
    for (r->ring_cap = 8; r->ring_cap < want;)
        r->ring_cap *= 2;
    r->slots = mem_try_zero(r->ring_cap, sizeof *r->slots);
    r->top_ids = mem_try_zero((size_t)r->ring_cap * r->top, sizeof *r->top_ids);
    r->top_logprobs = mem_try_zero((size_t)r->ring_cap * r->top, sizeof *r->top_logprobs);
    r->outcomes = mem_try_zero(r->n, sizeof *r->outcomes);
    r->seqs = mem_try_zero(r->n, sizeof *r->seqs);
    if (!r->slots || !r->top_ids || !r->top_logprobs || !r->outcomes || !r->seqs)
        return err_nomem(err, "request", r->ring_cap * sizeof *r->slots);
    for (uint32_t i = 0; i < r->n; i++) {
        struct seq *s = &r->seqs[i];
        s->request = r;
        s->choice = i;
        s->sampler = (struct sampler){.params = r->sampling, .window = r->penalty_window, .min_tokens = r->min_tokens};
        s->sampler.params.choice = i;
        r->outcomes[i].stop = -1;
    }
    return 0;
}

static int check_config(const struct engine_request_config *cfg, struct err *err)
{
    if (cfg->n > ENGINE_CHOICES_MAX)
        return err_set(err, ERR_LIMIT, "n: at most %d choices, got %u", ENGINE_CHOICES_MAX, cfg->n);
    if (cfg->top > SAMPLE_TOP_MAX || (cfg->score && cfg->score->top > SAMPLE_TOP_MAX))
        return err_set(err, ERR_LIMIT, "top logprobs: at most %d, got %u", SAMPLE_TOP_MAX, cfg->top);
    if ((cfg->score || cfg->pool) && cfg->n > 1)
        return err_set(err, ERR_ARGUMENT, "n: a scored text has one choice, got %u", cfg->n);
    if (cfg->propose_depth > ENGINE_DEPTH_MAX)
        return err_set(err, ERR_LIMIT, "depth of proposals: at most %d, got %u", ENGINE_DEPTH_MAX, cfg->propose_depth);
    if (cfg->propose & ~ENGINE_PROPOSE_ALL)
        return err_set(err, ERR_ARGUMENT, "proposers: bits %#x are not known", cfg->propose & ~ENGINE_PROPOSE_ALL);
    return 0;
}

int engine_request_new(struct engine *e, const struct engine_request_config *cfg, struct engine_request **out, struct err *err)
{
    *out = NULL;
    int rc = check_config(cfg, err);
    struct engine_request *r = rc ? NULL : mem_try_zero(1, sizeof *r);
    if (!r)
        return rc ? rc : err_nomem(err, "request", sizeof *r);
    atomic_store(&r->refs, 1);
    pthread_mutex_init(&r->hook_mutex, NULL);
    r->engine = e;
    atomic_fetch_add(&e->refs, 1);
    r->scoring = cfg->score || cfg->pool;
    if (cfg->score)
        r->score = *cfg->score;
    r->logprobs = cfg->logprobs || cfg->top;
    r->no_reuse = cfg->no_reuse || (r->scoring && cfg->pool != ENGINE_POOL_LAST);
    r->soft = cfg->max_tokens_soft;
    r->max_tokens = cfg->max_tokens;
    r->n = cfg->n ? cfg->n : 1;
    r->top = cfg->top;
    r->chunk_max = cfg->chunk_max && cfg->chunk_max < e->cfg.rows_max ? cfg->chunk_max : e->cfg.rows_max;
    r->sampling = cfg->sampling;
    r->penalty_window = cfg->penalty_window;
    r->min_tokens = cfg->min_tokens;
    r->priority = cfg->priority;
    r->propose = cfg->propose;
    if (r->propose & ENGINE_PROPOSE_DRAFT && !e->draft) {
        engine_request_release(r);
        return err_set(err, ERR_ARGUMENT, "a draft was asked for, but no draft model is open");
    }
    r->propose_depth = cfg->propose_depth;
    if ((rc = cache_configure(r, cfg, err)) || (rc = copy_end_ids(r, cfg, err)) || (rc = copy_cut_ids(r, cfg, err)) || (rc = copy_biases(r, err)) || (rc = copy_stops(r, cfg, err)) ||
        (rc = copy_allowed(r, cfg, err)) || (rc = reveal_open(&r->reveal, cfg, model_info(e->model)->hidden, err)) || (rc = make_ring(r, cfg->ring, err))) {
        engine_request_release(r);
        return rc;
    }
    *out = r;
    return 0;
}

void request_use(struct engine_request *r)
{
    r->uses++;
}

void request_unuse(struct engine_request *r)
{
    if (--r->uses == 0)
        engine_request_release(r);
}

void engine_request_release(struct engine_request *r)
{
    if (!r || atomic_fetch_sub(&r->refs, 1) != 1)
        return;
    for (uint32_t i = 0; r->seqs && i < r->n; i++) {
        mem_free(r->seqs[i].tokens);
        sampler_free(&r->seqs[i].sampler);
        propose_close(&r->seqs[i]);
        constrain_close(&r->seqs[i]);
        buf_free(&r->seqs[i].stop.tail);
    }
    mem_free(r->seqs);
    mem_free(r->outcomes);
    mem_free(r->slots);
    mem_free(r->top_ids);
    mem_free(r->top_logprobs);
    mem_free(r->end_ids);
    mem_free(r->cut_ids);
    mem_free(r->biases);
    mem_free(r->allowed_ids);
    reveal_free(&r->reveal);
    mem_free(r->stop_text);
    mem_free(r->boundaries);
    pthread_mutex_destroy(&r->hook_mutex);
    if (atomic_fetch_sub(&r->engine->refs, 1) == 1)
        mem_free(r->engine);
    mem_free(r);
}

/* ---- submission ---- */

static int check_prompt(const struct engine_request *r, const uint32_t *ids, uint32_t count, struct err *err)
{
    if (count == 0)
        return err_set(err, ERR_ARGUMENT, "prompt: expected at least one token, got none");
    for (uint32_t i = 0; i < count; i++)
        if (ids[i] >= r->engine->vocab)
            return err_set(err, ERR_ARGUMENT, "prompt: id %u at place %u is outside the vocabulary of %u", ids[i], i, r->engine->vocab);
    return 0;
}

/* How many tokens may follow; or the refusal with both numbers. */
static int set_limit(struct engine_request *r, uint32_t count, struct err *err)
{
    const struct engine *e = r->engine;
    const char *what = e->positions_max < e->context ? "the state budget" : "the context";
    int64_t room = (int64_t)e->positions_max - count;
    if (r->scoring) {
        r->limit = 0;
        return room >= 0 ? 0 : err_set(err, ERR_LIMIT, "%u ids to score, but %s holds %u positions", count, what, e->positions_max);
    }
    if (room <= 0)
        return err_set(err, ERR_LIMIT, "prompt of %u tokens and one more, but %s holds %u positions", count, what, e->positions_max);
    if (r->max_tokens > room && !r->soft)
        return err_set(err, ERR_LIMIT, "prompt of %u tokens + max_tokens %lld = %lld positions, but %s holds %u", count,
                       (long long)r->max_tokens, (long long)r->max_tokens + count, what, e->positions_max);
    r->limit = (uint32_t)(r->max_tokens < 0 || r->max_tokens > room ? room : r->max_tokens);
    return 0;
}

uint32_t seq_reach(const struct seq *s)
{
    return s->request->prompt_count + s->request->limit;
}

static int start_seq(struct seq *s, const uint32_t *ids, uint32_t count, struct err *err)
{
    const struct engine_request *r = s->request;
    size_t room = (size_t)seq_reach(s) + PROPOSE_DEPTH_MAX + 1;
    s->tokens = mem_try_array(room, sizeof *s->tokens);
    if (!s->tokens || (!r->scoring && sampler_start(&s->sampler, ids, count, seq_reach(s), r->engine->vocab)) || stop_open(&s->stop, &r->stops))
        return err_nomem(err, "sequence", room * sizeof *s->tokens);
    memcpy(s->tokens, ids, count * sizeof *ids);
    s->count = count;
    if (r->scoring)
        return 0;
    int rc = propose_open(s, seq_reach(s), err);
    if (rc == 0)
        propose_observe(s);
    return rc ? rc : constrain_open(s, err);
}

static int enqueue(struct engine_request *r, struct err *err)
{
    struct engine *e = r->engine;
    int rc = 0;
    pthread_mutex_lock(&e->mutex);
    if (atomic_load(&e->closing))
        rc = err_set(err, ERR_CANCELLED, "the model is being closed");
    else if (e->submitted_count >= e->cfg.waiting_max)
        rc = err_set(err, ERR_BUSY, "%u requests are waiting or running, the most there may be", e->submitted_count);
    else {
        atomic_fetch_add(&r->refs, 1);
        r->uses = 1;
        if (atomic_load(&r->cancelled)) /* while it was prepared: the engine hears of it now */
            atomic_store(&r->cancelled_at, atomic_load(&e->steps_ended));
        e->submitted_count++;
        r->next = NULL;
        *e->submitted_end = r;
        e->submitted_end = &r->next;
    }
    pthread_mutex_unlock(&e->mutex);
    if (rc == 0)
        engine_wake(e);
    return rc;
}

int engine_submit(struct engine_request *r, const uint32_t *ids, uint32_t count, struct err *err)
{
    int rc = check_prompt(r, ids, count, err);
    if (rc || (rc = set_limit(r, count, err)))
        return rc;
    r->prompt_count = count;
    r->live = r->n;
    if ((rc = reveal_prompt(&r->reveal, count, err)))
        return rc;
    for (uint32_t i = 0; i < r->n; i++) {
        r->outcomes[i].prompt_count = count;
        r->outcomes[i].submitted_ns = thread_now_ns();
        if ((rc = start_seq(&r->seqs[i], ids, count, err)))
            return rc;
    }
    return enqueue(r, err);
}

void engine_request_cancel(struct engine_request *r)
{
    if (!atomic_load(&r->cancelled)) {
        atomic_store(&r->cancelled_at, atomic_load(&r->engine->steps_ended));
        atomic_store(&r->cancelled, true);
    }
    engine_wake(r->engine);
}

bool engine_request_cancelled(const struct engine_request *r)
{
    return atomic_load(&r->cancelled);
}

const struct engine_outcome *engine_request_outcome(const struct engine_request *r, uint32_t choice)
{
    return &r->outcomes[choice];
}

bool engine_request_prompt_score(const struct engine_request *r, uint32_t position, float *logprob, const uint32_t **ids,
                                 const float **logprobs, uint32_t *count)
{
    const struct reveal *v = &r->reveal;
    if (position == 0 || position > v->scored)
        return false;
    *logprob = v->scores[position];
    *ids = v->top_ids + (size_t)position * v->top;
    *logprobs = v->top_logprobs + (size_t)position * v->top;
    *count = reveal_tops(v, position);
    return true;
}

/* ---- the ring ---- */

static uint32_t ring_free(struct engine_request *r)
{
    return r->ring_cap - (atomic_load(&r->head) - atomic_load(&r->tail));
}

uint32_t ring_room(struct engine_request *r, uint32_t tokens_in_flight, uint32_t wanted)
{
    uint32_t taken = r->live + tokens_in_flight, free = ring_free(r);
    if (free <= taken) {
        atomic_store(&r->stalled, true); /* then look again: the reader frees first and asks after */
        if ((free = ring_free(r)) <= taken)
            return 0;
        atomic_store(&r->stalled, false);
    }
    return free - taken < wanted ? free - taken : wanted;
}

/* The event is there at once; whoever sleeps for it is woken when the next step runs (ring_wake): a call to the kernel for each of many
 * sequences would be time in which the device has nothing to do. */
static void publish(struct engine_request *r)
{
    atomic_store_explicit(&r->head, atomic_load_explicit(&r->head, memory_order_relaxed) + 1, memory_order_release); /* nobody else writes it */
    if (r->due)
        return;
    r->due = true;
    request_use(r);
    r->due_next = r->engine->due;
    r->engine->due = r;
}

void ring_wake(struct engine *e)
{
    while (e->due) {
        struct engine_request *r = e->due;
        e->due = r->due_next;
        r->due = false;
        engine_request_signal(r);
        request_unuse(r);
    }
}

void ring_put_token(struct engine_request *r, uint32_t choice, const struct sample_result *s)
{
    uint32_t at = atomic_load_explicit(&r->head, memory_order_relaxed) & (r->ring_cap - 1);
    uint32_t top = s->top_count < r->top ? s->top_count : r->top;
    r->slots[at] = (struct ring_slot){ENGINE_TOKEN, choice, s->id, top, r->logprobs ? s->logprob : 0};
    if (top) {
        memcpy(r->top_ids + (size_t)at * r->top, s->top_ids, top * sizeof *s->top_ids);
        memcpy(r->top_logprobs + (size_t)at * r->top, s->top_logprobs, top * sizeof *s->top_logprobs);
    }
    publish(r);
}

void ring_put_done(struct engine_request *r, uint32_t choice)
{
    uint32_t at = atomic_load_explicit(&r->head, memory_order_relaxed) & (r->ring_cap - 1);
    r->slots[at] = (struct ring_slot){.kind = ENGINE_DONE, .choice = choice};
    publish(r);
}

bool engine_poll(struct engine_request *r, struct engine_event *out)
{
    if (r->lent) { /* what the last poll gave out is free again */
        r->lent = 0;
        atomic_fetch_add(&r->tail, 1);
        if (atomic_load(&r->stalled) && ring_free(r) >= r->ring_cap / 2 && atomic_exchange(&r->stalled, false))
            engine_wake(r->engine);
    }
    uint32_t tail = atomic_load_explicit(&r->tail, memory_order_relaxed);
    if (atomic_load(&r->head) == tail)
        return false;
    uint32_t at = tail & (r->ring_cap - 1);
    const struct ring_slot *s = &r->slots[at];
    *out = (struct engine_event){.kind = s->kind, .choice = s->choice, .id = s->id, .logprob = s->logprob, .top_count = s->top_count,
                                 .top_ids = r->top_ids + (size_t)at * r->top, .top_logprobs = r->top_logprobs + (size_t)at * r->top};
    r->lent = 1;
    return true;
}

uint32_t engine_request_seen(struct engine_request *r)
{
    return atomic_load(&r->signal);
}

void engine_request_wait(struct engine_request *r, uint32_t seen, int64_t timeout_ns)
{
    atomic_fetch_add(&r->sleepers, 1);
    thread_futex_wait(&r->signal, seen, timeout_ns);
    atomic_fetch_sub(&r->sleepers, 1);
}

void engine_request_signal(struct engine_request *r)
{
    atomic_fetch_add(&r->signal, 1);
    pthread_mutex_lock(&r->hook_mutex);
    bool hooked = r->hook != NULL;
    if (hooked)
        r->hook(r->hook_ctx);
    pthread_mutex_unlock(&r->hook_mutex);
    if (!hooked && atomic_load(&r->sleepers))
        thread_futex_wake(&r->signal, INT_MAX);
}

void engine_request_hook(struct engine_request *r, void (*fn)(void *ctx), void *ctx)
{
    pthread_mutex_lock(&r->hook_mutex);
    r->hook = fn;
    r->hook_ctx = ctx;
    pthread_mutex_unlock(&r->hook_mutex);
}

bool engine_request_started(struct engine_request *r)
{
    return atomic_load(&r->started);
}

bool engine_request_waiting(struct engine_request *r)
{
    return atomic_load(&r->head) != atomic_load(&r->tail) + r->lent;
}

uint32_t engine_request_progress(struct engine_request *r)
{
    return atomic_load(&r->progress);
}
