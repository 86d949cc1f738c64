/* engine/sched.c - plan: who gets state, and which rows the next step has.
 *
 * Admission: the highest priority; then who was pre-empted; then the session with fewest running sequences; then first come.  That one gets
 * state when its prompt and one page fit beside what the running sequences still need, and nobody overtakes it meanwhile.  A step takes
 * decode rows first, then prefill chunks: every session's oldest an even part of what the clock allows, then the oldest what is left, until
 * rows_max.  When pages run out, known
 * prefixes go first (kv/prefix.h), then sequences whose consumer stopped reading are pre-empted, then the youngest; the oldest that goes on
 * never is, so somebody always gets on.  Who stopped reading is not admitted again before there is room for a token.
 *
 * Invariants: 1. running is ascending by age; waiting too.
 *             2. A sequence in the step has room for its rows; one taken out of the step again has no row in it.
 *             3. No order chosen here changes any result (the first law), so the size of chunks may follow the clock. */
#include "engine/engine_int.h"

#include "base/log.h"

/* ---- queues ---- */

void sched_queue(struct engine *e, struct seq *s)
{
    struct seq **at = &e->waiting;
    while (*at && (*at)->age < s->age)
        at = &(*at)->next;
    s->next = *at;
    *at = s;
    s->state = SEQ_WAITING;
    e->waiting_count++;
    e->waiting_again += s->admitted_before;
    e->head = NULL;
}

static void unqueue(struct engine *e, struct seq *s)
{
    for (struct seq **at = &e->waiting; *at; at = &(*at)->next)
        if (*at == s) {
            *at = s->next;
            s->next = NULL;
            e->waiting_count--;
            e->waiting_again -= s->admitted_before;
            e->head = NULL;
            return;
        }
}

static void run_add(struct engine *e, struct seq *s)
{
    uint32_t at = e->running_count++;
    for (; at > 0 && e->running[at - 1]->age > s->age; at--)
        e->running[at] = e->running[at - 1];
    e->running[at] = s;
    e->head = NULL;
}

static void run_remove(struct engine *e, struct seq *s)
{
    uint32_t at = 0;
    while (e->running[at] != s)
        at++;
    e->head = NULL;
    e->running_count--;
    memmove(e->running + at, e->running + at + 1, (e->running_count - at) * sizeof *e->running);
}

/* ---- the end of a sequence ---- */

static void request_end(struct engine *e, struct engine_request *r)
{
    pthread_mutex_lock(&e->mutex);
    e->submitted_count--;
    pthread_mutex_unlock(&e->mutex);
    request_unuse(r);
}

/* Choices past the first share the first one's prompt, so they are queued when it is there (or will never be). */
void sched_queue_followers(struct engine *e, struct engine_request *r)
{
    if (r->followers_out)
        return;
    r->followers_out = true;
    for (uint32_t i = 1; i < r->n; i++)
        sched_queue(e, &r->seqs[i]);
}

/* Whatever the state: gives up or keeps its state, writes the outcome and the last event.  The request may be gone afterwards.
 * Rows of it still in flight are dropped by their commit; what they write lies past `covered`, where nobody reads, and before whatever
 * the next owner of those pages enqueues (a device's queue is in order). */
void seq_finish(struct engine *e, struct seq *s, enum engine_finish finish, int stop, const struct err *err)
{
    struct engine_request *r = s->request;
    struct engine_outcome *o = &r->outcomes[s->choice];
    if (s->state == SEQ_WAITING)
        unqueue(e, s);
    else
        run_remove(e, s);
    draft_end(e, s);
    if (s->kv && finish == ENGINE_ERROR)
        kv_seq_free(e->kv, s->kv); /* poisoned */
    else if (s->kv)
        cache_leave(e, s, true);
    s->kv = NULL;
    s->state = finish == ENGINE_ERROR ? SEQ_FAILED : finish == ENGINE_CANCELLED ? SEQ_CANCELLED : SEQ_DONE;
    o->finish = finish;
    o->stop = stop;
    o->completion_count = s->generated;
    o->speculation.forwards = s->forwards;
    o->done_ns = thread_now_ns();
    if (finish == ENGINE_CANCELLED && atomic_load(&r->cancelled)) {
        uint64_t steps = e->step_total - atomic_load(&r->cancelled_at);
        e->cancelled++;
        e->cancel_steps_max = steps > e->cancel_steps_max ? steps : e->cancel_steps_max;
    }
    if (err)
        o->err = *err;
    sched_queue_followers(e, r);
    r->live--;
    ring_put_done(r, s->choice);
    if (r->live == 0)
        request_end(e, r);
}

void seq_fail(struct engine *e, struct seq *s, const struct err *err)
{
    seq_finish(e, s, ENGINE_ERROR, -1, err);
}

/* ---- submissions and cancels ---- */

static void cancel_request(struct engine *e, struct engine_request *r)
{
    request_use(r);
    sched_queue_followers(e, r);
    for (uint32_t i = 0; i < r->n; i++) {
        struct seq *s = &r->seqs[i];
        if (s->state >= SEQ_WAITING && s->state <= SEQ_DECODE)
            seq_finish(e, s, ENGINE_CANCELLED, -1, NULL);
    }
    request_unuse(r);
}

void sched_take(struct engine *e)
{
    pthread_mutex_lock(&e->mutex);
    struct engine_request *r = e->submitted;
    e->submitted = NULL;
    e->submitted_end = &e->submitted;
    pthread_mutex_unlock(&e->mutex);
    while (r) {
        struct engine_request *next = r->next;
        for (uint32_t i = 0; i < r->n; i++)
            r->seqs[i].age = e->ages++;
        sched_queue(e, &r->seqs[0]);
        r = next;
    }
    bool closing = atomic_load(&e->closing);
    /* one read of each flag per step; a request that ends here leaves both lists, so start over after each */
again:
    for (struct seq *s = e->waiting; s; s = s->next)
        if (closing || atomic_load(&s->request->cancelled)) {
            s->request->cancel_seen = true;
            cancel_request(e, s->request);
            goto again;
        }
    for (uint32_t i = 0; i < e->running_count; i++) {
        struct seq *s = e->running[i];
        if (!s->request->cancel_seen && (closing || atomic_load(&s->request->cancelled))) {
            s->request->cancel_seen = true;
            cancel_request(e, s->request);
            goto again;
        }
    }
}

/* ---- room ---- */

static void unplace(struct step *step, struct seq *s)
{
    uint32_t n = 0;
    if (s->placed == 0)
        return;
    for (uint32_t i = 0; i < step->item_count; i++)
        if (step->items[i].seq != s)
            step->items[n++] = step->items[i];
    step->item_count = n;
    step->row_count -= s->placed;
    s->in_flight -= s->placed;
    s->placed = 0;
    s->samples = 0;
}

/* Back to the queue, its state given up: what of it nobody needs the room for is known when it comes back, the rest is computed anew. */
static void preempt(struct engine *e, struct step *step, struct seq *s)
{
    unplace(step, s);
    run_remove(e, s);
    cache_leave(e, s, false);
    s->admitted_before = true;
    e->preempted++;
    sched_queue(e, s);
    log_put(LOG_DEBUG, "engine: sequence of %u tokens pre-empted", s->count);
}

/* A test asked that it gives its state up once, now that it got so far. */
static bool preempt_due(const struct seq *s)
{
    uint32_t at = s->request->engine->cfg.preempt_at;
    return at && s->generated >= at && !s->admitted_before;
}

static bool may_run(const struct seq *s)
{
    return !preempt_due(s) && !s->request->cancel_seen;
}

/* What a test asked for: sequences that got far enough give their state up once, as soon as no row of them runs. */
static void preempt_asked(struct engine *e, struct step *step)
{
    for (uint32_t i = e->running_count; e->cfg.preempt_at && i-- > 0;) {
        struct seq *s = e->running[i];
        if (preempt_due(s) && s->in_flight == 0 && !s->request->cancel_seen)
            preempt(e, step, s);
    }
}

/* Its consumer has stopped reading: it cannot go on, and its pages are of no use until it can. */
static bool is_stalled(struct seq *s)
{
    return s->generated && !s->in_flight && !s->request->cancel_seen && sched_tokens_room(s, 1) == 0;
}

static struct seq *stalled_running(struct engine *e)
{
    for (uint32_t i = e->running_count; i-- > 0;)
        if (is_stalled(e->running[i]))
            return e->running[i];
    return NULL;
}

/* Something that is younger than `s`, or stalled, and can give its pages up at once. */
static struct seq *victim_of(struct engine *e, const struct seq *s)
{
    struct seq *stalled = stalled_running(e);
    if (stalled && stalled != s)
        return stalled;
    for (uint32_t i = e->running_count; i-- > 0;) {
        struct seq *v = e->running[i];
        if (v->age <= s->age)
            return NULL;
        if (v->in_flight == v->placed) /* no row of it runs */
            return v;
    }
    return NULL;
}

static bool make_room(struct engine *e, struct step *step, struct seq *s)
{
    if (kv_prefix_evict(e->kv))
        return true;
    struct seq *victim = victim_of(e, s);
    if (!victim)
        return false;
    preempt(e, step, victim);
    return true;
}

/* ---- admission ---- */

static uint32_t with_page(const struct engine *e, const struct seq *s)
{
    return s->count + KV_PAGE < e->positions_max ? s->count + KV_PAGE : e->positions_max;
}

/* Bytes of state the running sequences will still take for the tokens they have and one page. */
static uint64_t promised(const struct engine *e)
{
    uint64_t sum = 0;
    for (uint32_t i = 0; i < e->running_count; i++) {
        const struct seq *s = e->running[i];
        uint64_t want = kv_share_bytes(e->kv, with_page(e, s)), has = kv_share_bytes(e->kv, kv_seq_covered(s->kv));
        sum += want > has ? want - has : 0;
    }
    return sum;
}

/* Bytes that must be free before it gets state. */
static uint64_t needed(const struct engine *e, const struct seq *s, uint32_t reused)
{
    uint64_t shared = kv_share_bytes(e->kv, reused / KV_PAGE * KV_PAGE), need = kv_share_bytes(e->kv, with_page(e, s));
    return (need > shared ? need - shared : 0) + promised(e);
}

/* Could there be room, whatever is given up for it?  Asked of a head that waits, so that it is not looked up at every step. */
static bool may_have_room(const struct engine *e, const struct seq *s, uint32_t reused)
{
    struct kv_stats stats;
    kv_stats(e->kv, &stats);
    return stats.free_bytes + stats.open_bytes + stats.cached_bytes >= needed(e, s, reused);
}

/* Known prefixes give way to it; none does in vain. */
static bool has_room(struct engine *e, const struct seq *s, uint32_t reused)
{
    struct kv_stats stats;
    uint64_t need = needed(e, s, reused);
    while (may_have_room(e, s, reused)) {
        kv_stats(e->kv, &stats);
        if (stats.free_bytes + stats.open_bytes >= need)
            return true;
        if (!kv_prefix_evict(e->kv))
            return false;
    }
    return false;
}

static void started(struct seq *s)
{
    struct engine_outcome *o = &s->request->outcomes[s->choice];
    s->state = SEQ_PREFILL;
    if (s->admitted_before)
        return;
    o->admitted_ns = thread_now_ns();
    if (s->choice)
        return;
    atomic_store(&s->request->progress, o->cached_count);
    atomic_store(&s->request->started, true);
    engine_request_signal(s->request);
}

static bool same_session(const struct engine_request *a, const struct engine_request *b)
{
    return a == b || (a->has_session && b->has_session && a->session.lo == b->session.lo && a->session.hi == b->session.hi);
}

/* Nobody else is of its session. */
static bool is_alone(const struct engine_request *r)
{
    return !r->has_session && r->n == 1;
}

/* r waits. */
static uint32_t session_running(const struct engine *e, const struct engine_request *r)
{
    uint32_t n = 0;
    for (uint32_t i = 0; !is_alone(r) && i < e->running_count; i++)
        n += same_session(e->running[i]->request, r);
    return n;
}

/* The order of admission; who comes first in the list wins among equals.  NULL: nobody could go on. */
static struct seq *next_waiting(const struct engine *e)
{
    struct seq *best = NULL;
    uint32_t best_running = 0;
    for (struct seq *s = e->waiting; s; s = s->next) {
        if ((best && s->request->priority < best->request->priority) || is_stalled(s))
            continue;
        uint32_t running = s->admitted_before ? 0 : 1 + session_running(e, s->request); /* pre-empted: before whoever waits anew */
        if (!best || s->request->priority > best->request->priority || running < best_running) {
            best = s;
            best_running = running;
        }
    }
    return best;
}

/* Who is to be admitted next, if somebody is and may find room. */
static struct seq *choose_head(struct engine *e)
{
    if (e->head && is_stalled(e->head))
        e->head = NULL;
    if (!e->head) {
        e->head = next_waiting(e);
        e->head_waits = false;
    }
    bool look = e->head && (!e->head_waits || stalled_running(e) || may_have_room(e, e->head, e->head_reused));
    return look ? e->head : NULL;
}

/* The bytes of ids are asked for inside steps: the longest of all makes room for any. */
static int want_bytes(struct engine *e, struct err *err)
{
    for (uint32_t id = 0; !e->bytes_ready && id < e->vocab; id++) {
        e->bytes.n = 0;
        if (e->cfg.id_bytes(e->cfg.id_bytes_ctx, id, &e->bytes) || e->bytes.failed) {
            buf_free(&e->bytes);
            return err_nomem(err, "bytes of ids", 1);
        }
    }
    e->bytes_ready = true;
    return 0;
}

/* All the memory it may need beside that of its state. */
static int prepare(struct engine *e, struct seq *s, struct err *err)
{
    const struct engine_request *r = s->request;
    int rc = r->scoring && (r->score.logits_last || r->score.logits_all) ? batch_want_logits(e, err) : 0;
    if (rc == 0 && r->reveal.pool)
        rc = batch_want_hidden(e, err);
    return rc == 0 && r->stops.count ? want_bytes(e, err) : rc;
}

/* Who is to get state now, or is to be looked up for it; NULL: nobody. */
static struct seq *admission(struct engine *e)
{
    return e->waiting && e->running_count < e->cfg.running_max ? choose_head(e) : NULL;
}

bool sched_admits(struct engine *e)
{
    for (uint32_t i = 0; e->cfg.preempt_at && i < e->running_count; i++)
        if (preempt_due(e->running[i]))
            return true;
    return admission(e) != NULL;
}

static void admit(struct engine *e, struct step *step)
{
    struct seq *s, *stalled;
    while ((s = admission(e))) {
        struct err err = {0};
        struct kv_prefix_hit hit;
        if (prepare(e, s, &err) || cache_take(e, s, &hit, &err)) {
            seq_finish(e, s, ENGINE_ERROR, -1, &err);
            continue;
        }
        if (!has_room(e, s, hit.positions) && e->running_count) {
            kv_seq_free(e->kv, s->kv);
            s->kv = NULL;
            if ((stalled = stalled_running(e))) { /* it has what the head needs, and does not go on */
                preempt(e, step, stalled);
                continue;
            }
            e->head_waits = true;
            e->head_reused = hit.positions;
            return; /* the head waits, and so do those behind it */
        }
        unqueue(e, s);
        run_add(e, s);
        draft_admit(e, s);
        cache_started(e, s, &hit);
        started(s);
    }
}

/* ---- rows ---- */

static uint32_t rows_left(const struct seq *s)
{
    uint32_t seen = kv_seq_covered(s->kv) + s->in_flight; /* one more than count while a row runs ahead */
    return seen < s->count ? s->count - seen : 0;
}

uint32_t sched_tokens_room(struct seq *s, uint32_t wanted)
{
    uint32_t flying = 0;
    for (uint32_t i = 0; i < s->request->n; i++)
        flying += s->request->seqs[i].samples;
    return s->request->scoring ? wanted : ring_room(s->request, flying, wanted);
}

/* A score and a mean want every row through the head, and a prompt all that it is asked about; else only the last row of all, and those that
 * the drafts of a round hang on, are wanted. */
static void set_out_rows(struct step *step, struct step_item *it, const struct seq *s, bool last)
{
    const struct engine_request *r = s->request;
    it->samples = last && !r->scoring ? it->round.count + 1 : 0;
    it->out_first = it->rows - it->samples;
    if (r->reveal.pool == ENGINE_POOL_LAST)
        it->out_first -= last;
    else if (r->scoring || (r->reveal.logprobs && s->choice == 0 && it->position + 1 < r->prompt_count))
        it->out_first = 0;
    it->logits = r->scoring && (r->score.logits_all || (r->score.logits_last && last));
    step->logit_count += it->logits ? it->rows : 0;
}

/* Rows of a score whose raw logits are wanted: as many as the step holds; a wanted last row is a span of its own. */
static uint32_t score_rows(const struct step *step, const struct seq *s, uint32_t rows)
{
    const struct engine_score *score = &s->request->score;
    uint32_t room = STEP_LOGIT_ROWS - step->logit_count, left = rows_left(s);
    if (score->logits_last && !score->logits_all && left > 1)
        return rows < left ? rows : left - 1;
    if (score->logits_all || score->logits_last)
        return rows < room ? rows : room;
    return rows;
}

/* Room for the sequence's rows in flight and `rows` more, others' state given up for it where that is allowed. */
static int extend(struct engine *e, struct step *step, struct seq *s, uint32_t rows, struct err *err)
{
    int rc;
    while ((rc = kv_extend(e->kv, s->kv, s->in_flight + rows, err)) == ERR_KV_FULL) {
        err_none(err);
        if (!make_room(e, step, s))
            break;
    }
    return rc;
}

static void put_item(struct step *step, struct seq *s, uint32_t rows, const struct proposal *round, bool last)
{
    struct step_item *it = &step->items[step->item_count++];
    it->seq = s; /* the ids of a round are many: they are not cleared where there is none */
    it->position = kv_seq_covered(s->kv) + s->in_flight;
    it->rows = rows;
    it->slot = NULL;
    it->round.count = 0;
    if (round) {
        it->round = *round;
        it->rows += round->count;
        memcpy(s->tokens + s->count, round->ids, round->count * sizeof *round->ids);
    }
    set_out_rows(step, it, s, last);
    s->in_flight += it->rows;
    s->samples += it->samples;
    s->placed += it->rows;
    step->row_count += it->rows;
}

static bool place(struct engine *e, struct step *step, struct seq *s, uint32_t rows)
{
    struct err err;
    err_none(&err);
    if (s->request->scoring && (rows = score_rows(step, s, rows)) == 0)
        return false;
    rows = kv_rows_before(s->kv, kv_seq_covered(s->kv) + s->in_flight, rows);
    if (rows == 0)
        return false;
    bool last = rows == rows_left(s);
    if (last && sched_tokens_room(s, 1) == 0) {
        if (rows == 1)
            return false;
        last = false; /* the rows before the last one need no room in the ring */
        rows--;
    }
    int rc = extend(e, step, s, rows, &err);
    if (rc == ERR_KV_FULL && (e->running_count > 1 || s->in_flight))
        return false; /* waits with what it has: an older one gets on, or rows in flight end */
    if (rc) {
        if (rc == ERR_KV_FULL)
            err_set(&err, rc, "no room for position %u of the only sequence", kv_seq_covered(s->kv) + rows);
        seq_fail(e, s, &err);
        return false;
    }
    put_item(step, s, rows, NULL, last);
    return true;
}

/* Drafts that a round may have beside `taken` rows of the step. */
static uint32_t round_room(const struct engine *e, struct seq *s, uint32_t taken)
{
    uint32_t rows = rows_left(s), left = e->cfg.rows_max > taken ? e->cfg.rows_max - taken : 0, budget = s->request->limit - s->generated;
    uint32_t room = left > rows ? left - rows : 0;
    room = room + 1 < budget ? room : budget ? budget - 1 : 0;
    uint32_t may = kv_rows_before(s->kv, kv_seq_covered(s->kv), rows + room);
    room = may > rows ? may - rows : 0;
    room = room ? sched_tokens_room(s, room + 1) : 0;
    return room ? room - 1 : 0;
}

static bool decodes(const struct seq *s)
{
    return may_run(s) && s->state == SEQ_DECODE && !s->in_flight && rows_left(s); /* one round open at a time */
}

/* Everybody's guess for the step, before any row of it is placed: a draft model guesses for all in the same forwards. */
static void make_rounds(struct engine *e)
{
    uint32_t rows = 0, sequences = 0;
    e->clock.draft_held_ns = 0;
    for (uint32_t i = 0; i < e->running_count; i++) {
        struct seq *s = e->running[i];
        s->round.count = 0;
        if (decodes(s)) {
            rows += rows_left(s);
            sequences++;
        }
    }
    for (uint32_t i = 0; i < e->running_count; i++) {
        struct seq *s = e->running[i];
        uint32_t room = s->request->propose && decodes(s) ? round_room(e, s, rows - rows_left(s)) : 0;
        if (room)
            propose_round(e, s, rows, sequences, room);
        rows += s->round.count;
    }
    draft_guess(e);
}

/* A round: the sequence's known ids and drafts behind them, when somebody has a guess worth its rows.  Known prefixes give way to it, but
 * nobody is pre-empted for a guess. */
static bool place_round(struct engine *e, struct step *step, struct seq *s)
{
    struct proposal *round = &s->round;
    uint32_t rows = rows_left(s), room = round->count ? round_room(e, s, step->row_count) : 0;
    int rc;
    round->count = round->count < room ? round->count : room;
    if (s->in_flight || (round->count = constrain_drafts(s, round->ids, round->count)) == 0)
        return false;
    do {
        rc = kv_extend(e->kv, s->kv, rows + round->count, NULL);
    } while (rc == ERR_KV_FULL && kv_prefix_evict(e->kv));
    if (rc)
        return false;
    put_item(step, s, rows, round, true);
    return true;
}

/* A plain row whose id is still being chosen by the step before: its history must not matter, nor a guess want to take its place. */
static bool place_ahead(struct engine *e, struct step *step, struct seq *s)
{
    const struct engine_request *r = s->request;
    if (s->samples != 1 || s->placed || rows_left(s) || e->cfg.steps_in_flight < 2 || r->scoring || s->sampler.counts || s->constraint ||
        s->guessing || s->generated + 1 >= r->limit || sched_tokens_room(s, 1) == 0 || kv_extend(e->kv, s->kv, s->in_flight + 1, NULL))
        return false;
    put_item(step, s, 1, NULL, true);
    step->items[step->item_count - 1].slot = &s->flying->id;
    return true;
}

bool sched_goes_on(struct engine *e, struct seq *s)
{
    const struct engine_request *r = s->request;
    return may_run(s) && s->samples == 1 && !rows_left(s) && !r->scoring && !r->propose && !s->sampler.counts && !s->constraint &&
           s->generated + 1 < r->limit && !kv_seq_early(s->kv) && !kv_seq_shared(e->kv, s->kv) && sched_tokens_room(s, 1);
}

bool sched_place_next(struct engine *e, struct step *step, struct seq *s)
{
    if (kv_extend(e->kv, s->kv, s->in_flight + 1, NULL))
        return false;
    put_item(step, s, 1, NULL, true);
    return true;
}

/* where a walk over `running` is */
struct by_age {
    uint64_t from;
    uint32_t at;
};

/* Placing may take other sequences out of `running` (pre-emption) or this one (failure), so walk by age. */
static struct seq *next_by_age(const struct engine *e, struct by_age *w)
{
    uint32_t i = w->at < e->running_count ? w->at : e->running_count;
    while (i > 0 && e->running[i - 1]->age >= w->from)
        i--;
    while (i < e->running_count && e->running[i]->age < w->from)
        i++;
    w->at = i;
    if (i == e->running_count)
        return NULL;
    w->from = e->running[i]->age + 1;
    return e->running[i];
}

static bool wants_prefill(const struct seq *s)
{
    return !s->samples && !s->placed && may_run(s) && rows_left(s);
}

/* The first of its session that has prompt rows left, or got some in this step. */
static bool leads_session(const struct engine *e, const struct seq *s)
{
    for (uint32_t i = 0; !is_alone(s->request) && e->running[i] != s; i++)
        if (same_session(e->running[i]->request, s->request) &&
            (wants_prefill(e->running[i]) || (e->running[i]->placed && e->running[i]->state == SEQ_PREFILL)))
            return false;
    return true;
}

static void place_prefill(struct engine *e, struct step *step, uint32_t budget)
{
    uint32_t sessions = 0;
    struct seq *s;
    for (uint32_t i = 0; i < e->running_count; i++)
        sessions += wants_prefill(e->running[i]) && leads_session(e, e->running[i]);
    uint32_t part = sessions ? (budget + sessions - 1) / sessions : 0;
    for (int pass = sessions < 2; sessions && pass < 2; pass++) { /* an even part each; then whoever was not served, oldest first */
        struct by_age walk = {0};
        while (budget > 0 && (s = next_by_age(e, &walk))) {
            if (!wants_prefill(s) || (pass == 0 && !leads_session(e, s)))
                continue;
            uint32_t left = rows_left(s), had = step->row_count, rows = left < s->request->chunk_max ? left : s->request->chunk_max;
            rows = rows < budget ? rows : budget;
            rows = pass == 0 && rows > part ? part : rows;
            if (place(e, step, s, rows))
                budget -= step->row_count - had < budget ? step->row_count - had : budget;
        }
    }
}

static uint32_t decode_rows(const struct engine *e, const struct step *step, const struct seq *s)
{
    uint32_t left = rows_left(s), room = e->cfg.rows_max - step->row_count; /* more than one: ids that were forced */
    return left < room ? left : room;
}

static uint32_t step_bucket(uint32_t rows)
{
    uint32_t i = 0;
    while (i < ENGINE_STEP_BUCKETS - 1 && rows > 1u << i)
        i++;
    return i;
}

void sched_empty(struct step *step)
{
    step->item_count = step->row_count = step->out_count = step->logit_count = step->decode_count = 0;
}

void sched_admit(struct engine *e, struct step *step)
{
    sched_empty(step);
    preempt_asked(e, step);
    admit(e, step);
}

/* How many rows of prompts may stand beside those that decode. */
static uint32_t prompt_rows(struct engine *e, const struct step *step)
{
    return clock_rows(&e->clock, e->cfg.rows_max - step->row_count, step->decode_count != 0, e->running_count + e->waiting_count > 1,
                      e->cfg.step_ms);
}

static void count_rows(struct engine *e, const struct step *step)
{
    e->row_total += step->row_count;
    if (step->row_count)
        e->step_rows[step_bucket(step->row_count)]++;
}

void sched_plan(struct engine *e, struct step *step)
{
    struct seq *s;
    struct by_age walk = {0};
    make_rounds(e);
    while (step->row_count < e->cfg.rows_max && (s = next_by_age(e, &walk))) {
        if (!may_run(s))
            continue;
        if (s->samples)
            step->decode_count += place_ahead(e, step, s);
        else if (s->state == SEQ_DECODE && rows_left(s))
            step->decode_count += place_round(e, step, s) || place(e, step, s, decode_rows(e, step, s));
    }
    step->decode_rows = step->row_count;
    if (step->row_count < e->cfg.rows_max) /* ids that were forced may have filled it */
        place_prefill(e, step, prompt_rows(e, step));
    for (uint32_t i = 0; i < step->item_count; i++)
        step->items[i].seq->placed = 0, request_use(step->items[i].seq->request);
    count_rows(e, step);
}

void sched_count(struct engine *e, const struct step *step)
{
    if (step->row_count < e->cfg.rows_max)
        prompt_rows(e, step);
    count_rows(e, step);
}

void sched_learn(struct engine *e, const struct step *step, int64_t now_ns)
{
    struct sched_clock *c = &e->clock;
    double took = (double)(now_ns - (step->started_ns > c->last_ns ? step->started_ns : c->last_ns));
    uint32_t prefill = step->row_count - step->decode_rows;
    c->last_ns = now_ns;
    if (prefill == 0)
        costs_learn(&c->decode, step->row_count, took);
    clock_learn(c, prefill, step->decode_count != 0, took);
}
