/* engine/engine.c - the engine's thread: plan, run, commit, over and over; sleep when there is nothing to do.
 *
 *     sched_take, sched_admit | sched_plan -> batch_run (model_forward: only enqueued) -> model_wait -> resolve_step
 *                               no memory is asked for from here on (base/mem.h, mem_forbid_push)
 *
 * Consumers are woken, and figures published, after the next run, so that the device works meanwhile.
 * Up to steps_in_flight steps are between run and commit; with one, the next is planned and enqueued ahead and held (hold.c), and otherwise
 * plan follows commit directly. */
#include "base/log.h"
#include "base/mem.h"
#include "engine/engine_int.h"
#include "plan/plan.h"

#include <limits.h>
#include <stdlib.h>

_Static_assert((int)MODEL_STEPS_IN_FLIGHT <= (int)STEPS_MAX, "a step each");
enum { RUNNING_DEFAULT = 64, WAITING_DEFAULT = 4096, ROWS_DEFAULT = 512, REWIND_SLACK = 2 * KV_PAGE };

#ifdef NDEBUG
enum { CHECK_EVERY = 0, CHECK_ABORTS = 0 };
#else
enum { CHECK_EVERY = 256, CHECK_ABORTS = 1 }; /* debug builds look at their state now and then */
#endif

/* a function to run alone; lives on its caller's stack until done */
struct engine_task {
    int (*fn)(void *ctx, struct kv *kv, struct err *err);
    void *ctx;
    struct err *err;
    int rc;
    _Atomic uint32_t done; /* futex word */
};

void engine_wake(struct engine *e)
{
    atomic_fetch_add(&e->wake, 1);
    thread_futex_wake(&e->wake, 1);
}

/* ---- the loop ---- */

static void publish_stats(struct engine *e)
{
    struct engine_stats s = {.waiting = e->waiting_count, .running = e->running_count, .cache = e->cache, .steps = e->step_total,
                             .rows = e->row_total, .preempted = e->preempted, .check_failures = e->check_failures,
                             .waiting_again = e->waiting_again, .cancelled = e->cancelled, .cancel_steps_max = e->cancel_steps_max,
                             .failed_steps = e->failed_steps, .device_failed = e->device_failed, .held_went = e->held_went,
                             .held_run = e->held_run, .held_dropped = e->held_dropped};
    memcpy(s.step_rows, e->step_rows, sizeof s.step_rows);
    for (uint32_t i = 0; i < e->running_count; i++)
        s.prefilling += e->running[i]->state == SEQ_PREFILL;
    kv_stats(e->kv, &s.kv);
    kv_prefix_stats(e->kv, &s.prefix);
    uint64_t used = s.kv.total_bytes - s.kv.free_bytes;
    if (used > e->state_peak)
        e->state_peak = used;
    s.state_peak_bytes = e->state_peak;
    s.draft_live_bytes = draft_live_bytes(e);
    pthread_mutex_lock(&e->mutex);
    e->stats = s;
    pthread_mutex_unlock(&e->mutex);
}

static struct step *oldest_step(struct engine *e)
{
    struct step *s = &e->steps[e->step_first];
    e->step_first = (e->step_first + 1) % e->step_slots;
    e->step_pending--;
    e->step_total++;
    atomic_store(&e->steps_ended, e->step_total);
    return s;
}

/* A device says that something failed, not in which step: those enqueued behind may be what failed, or have read what it left. */
static void fail_all_in_flight(struct engine *e, struct step *s, const struct err *err)
{
    for (;; s = oldest_step(e)) {
        log_put(LOG_WARN, "engine: a step of %u sequences failed: %s", s->item_count, err->text);
        resolve_failed(e, s, err);
        if (!e->step_pending)
            return;
        model_wait(e->model, e->steps[e->step_first].event, NULL);
    }
}

/* A step has ended, well or not. */
static void note_end(struct engine *e, int rc)
{
    e->failed_steps += rc != 0;
    e->device_failed = rc == ERR_DEVICE;
    atomic_store(&e->busy_since, thread_now_ns());
}

/* Commit the oldest step in flight. */
static void commit(struct engine *e)
{
    struct step *s = oldest_step(e);
    struct err err = {0};
    int rc = model_wait(e->model, s->event, &err);
    hold_settle(e);
    note_end(e, rc);
    if (rc) {
        err_set(&err, rc, "%s", err_text(rc));
        hold_drop(e);
        fail_all_in_flight(e, s, &err);
        return;
    }
    sched_learn(e, s, thread_now_ns());
    resolve_step(e, s);
}

/* A forward that failed half-way left ops in the queue; they end before the pages they name are given to others. */
void engine_drain(struct engine *e)
{
    const struct backend *b = device_backend(e->cfg.device);
    uint64_t event;
    if (b->event_record(e->cfg.device, &event) == 0)
        b->event_wait(e->cfg.device, event, NULL);
}

static bool run(struct engine *e, struct step *s)
{
    struct err err = {0};
    int rc = batch_run(e, s, &err);
    if (rc == 0) {
        e->step_pending++;
        return true;
    }
    note_end(e, rc);
    err_set(&err, rc, "a step was refused: %s", err_text(rc));
    engine_drain(e);
    log_put(LOG_WARN, "engine: a step of %u sequences failed: %s", s->item_count, err.text);
    resolve_failed(e, s, &err);
    return true; /* the others may go on */
}

static void check_state(struct engine *e)
{
    struct err err = {0};
    if (e->cfg.check_every == 0 || ++e->turns % e->cfg.check_every)
        return;
    int rc = kv_check(e->kv, &err);
    rc = rc ? rc : draft_check(e, &err);
    if (rc == 0 || rc == ERR_NOMEM) /* it could not look */
        return;
    e->check_failures++;
    log_put(LOG_ERROR, "engine: %s", err.text);
    if (CHECK_ABORTS)
        abort();
}

/* A step is planned and run when one more may be in flight, and the oldest committed when none more may be, or none could be.  s: NULL when
 * none is to be planned; ran: the one that was held runs. */
static bool make_step(struct engine *e, struct step *s, bool ran)
{
    bool worked = ran;
    mem_forbid_push();
    if (s) {
        sched_plan(e, s);
        worked = s->item_count && run(e, s);
    }
    publish_stats(e); /* as of the last commit and with what the next step took: while the device works */
    ring_wake(e);
    hold_make(e);
    if (e->step_pending == e->cfg.steps_in_flight || (!worked && e->step_pending)) { /* with one, the next may be in flight afterwards */
        commit(e);
        worked = true;
    }
    mem_forbid_pop();
    return worked;
}

/* What comes, who runs, and the step that follows; unless it began without that (hold.c).  *ran: the one that was held runs. */
static struct step *next_step(struct engine *e, bool *ran)
{
    if (e->step_pending == e->cfg.steps_in_flight)
        return NULL;
    e->heard = atomic_load(&e->wake);
    sched_take(e);
    *ran = hold_run(e);
    if (e->step_pending == e->cfg.steps_in_flight)
        return NULL;
    struct step *s = &e->steps[(e->step_first + e->step_pending) % e->step_slots];
    sched_admit(e, s);
    return s;
}

/* One turn; false when there was nothing to do. */
static bool turn(struct engine *e)
{
    bool ran = false;
    if (!e->gate_kept)
        engine_gate_enter(e->cfg.gate);
    struct step *s = next_step(e, &ran);
    bool worked = make_step(e, s, ran);
    check_state(e);
    if (engine_gate_wanted(e->cfg.gate)) { /* the next run is another engine's */
        hold_drop(e);
        publish_stats(e);
        ring_wake(e);
    }
    e->gate_kept = e->held || e->step_pending == e->cfg.steps_in_flight; /* its records are in the device's queue */
    if (!e->gate_kept)
        engine_gate_leave(e->cfg.gate);
    return worked;
}

static bool run_task(struct engine *e)
{
    pthread_mutex_lock(&e->mutex);
    struct engine_task *t = e->running_count || e->step_pending || e->held || e->waiting ? NULL : e->task;
    if (t)
        e->task = NULL;
    pthread_mutex_unlock(&e->mutex);
    if (!t)
        return false;
    ring_wake(e); /* the task may take long: whoever waits for what ended before it hears of it now */
    engine_gate_enter(e->cfg.gate);
    kv_prefix_clear(e->kv);
    t->rc = t->fn(t->ctx, e->kv, t->err);
    engine_gate_leave(e->cfg.gate);
    atomic_store(&t->done, 1);
    thread_futex_wake(&t->done, INT_MAX);
    return true;
}

static bool finished(struct engine *e)
{
    if (!atomic_load(&e->closing) || e->running_count || e->waiting || e->step_pending || e->held)
        return false;
    pthread_mutex_lock(&e->mutex);
    bool none = e->submitted == NULL && e->task == NULL;
    pthread_mutex_unlock(&e->mutex);
    return none;
}

static void *engine_thread(void *arg)
{
    struct engine *e = arg;
    thread_name("engine");
    atomic_store(&e->busy_since, thread_now_ns());
    while (!finished(e)) {
        uint32_t seen = atomic_load(&e->wake);
        bool worked = turn(e);
        worked |= run_task(e);
        if (!worked && !finished(e)) {
            atomic_store(&e->busy_since, 0);
            thread_futex_wait(&e->wake, seen, -1);
            atomic_store(&e->busy_since, thread_now_ns());
        }
    }
    ring_wake(e);
    return NULL;
}

/* ---- open and close ---- */

static void set_defaults(struct engine_config *c)
{
    c->rows_max = c->rows_max ? c->rows_max : ROWS_DEFAULT;
    c->steps_in_flight = c->steps_in_flight ? c->steps_in_flight : 1;
    c->running_max = c->running_max ? c->running_max : RUNNING_DEFAULT;
    c->running_max = c->running_max < c->rows_max ? c->running_max : c->rows_max;
    c->waiting_max = c->waiting_max ? c->waiting_max : WAITING_DEFAULT;
    c->check_every = c->check_every ? c->check_every : CHECK_EVERY;
}

void engine_kv_config(struct model *model, struct device *device, uint32_t rows_max, struct kv_config *out)
{
    *out = (struct kv_config){.device = device, .rewind_slack = REWIND_SLACK, .context_max = model_info(model)->context,
                              .rows_max = rows_max ? rows_max : ROWS_DEFAULT, .start = model_kv_start(model)};
    out->layers = model_kv_layers(model, &out->layer_count);
}

static int open_state(struct engine *e, struct err *err)
{
    struct kv_config kv;
    engine_kv_config(e->model, e->cfg.device, e->cfg.rows_max, &kv);
    kv.rows_max *= e->cfg.steps_in_flight;
    kv.budget_bytes = e->cfg.state_bytes;
    kv.prefix_off = e->cfg.retain_none;
    kv.mark_every = e->cfg.mark_every;
    e->context = kv.context_max;
    e->positions_max = plan_positions_alone(&kv, kv.budget_bytes, kv.context_max);
    if (e->positions_max < 2)
        return err_set(err, ERR_LIMIT, "state budget of %llu bytes: one sequence of %u positions takes %llu",
                       (unsigned long long)kv.budget_bytes, 2 * KV_PAGE, (unsigned long long)kv_plan_bytes(&kv, 2 * KV_PAGE));
    int rc = kv_open(&kv, &e->kv, err);
    return rc ? rc : draft_open_pool(e, err);
}

int engine_open(const struct engine_config *cfg, struct engine **out, struct err *err)
{
    *out = NULL;
    if (cfg->steps_in_flight > model_steps_in_flight(cfg->model))
        return err_set(err, ERR_UNSUPPORTED, "%u steps in flight: the model was opened for %u", cfg->steps_in_flight,
                       model_steps_in_flight(cfg->model));
    struct engine *e = mem_try_zero(1, sizeof *e);
    if (!e)
        return err_nomem(err, "engine", sizeof *e);
    e->cfg = *cfg;
    set_defaults(&e->cfg);
    atomic_store(&e->refs, 1);
    pthread_mutex_init(&e->mutex, NULL);
    e->submitted_end = &e->submitted;
    e->model = cfg->model;
    e->vocab = model_info(e->model)->vocab;
    e->holds = !cfg->hold_off && e->cfg.steps_in_flight == 1 && model_holds(e->model);
    e->step_slots = e->cfg.steps_in_flight + e->holds;
    e->running = mem_try_array(e->cfg.running_max, sizeof *e->running);
    int rc = e->running ? 0 : err_nomem(err, "engine", e->cfg.running_max * sizeof *e->running);
    if (rc == 0)
        rc = batch_open(e, err);
    if (rc == 0)
        rc = open_state(e, err);
    if (rc == 0) {
        publish_stats(e);
        if (pthread_create(&e->thread, NULL, engine_thread, e))
            rc = err_set(err, ERR_NOMEM, "engine: cannot start its thread");
        else
            e->started = true;
    }
    if (rc) {
        engine_close(e);
        return rc;
    }
    *out = e;
    return 0;
}

void engine_close(struct engine *e)
{
    if (!e)
        return;
    pthread_mutex_lock(&e->mutex); /* after this no submission gets in */
    atomic_store(&e->closing, true);
    pthread_mutex_unlock(&e->mutex);
    engine_wake(e);
    if (e->started)
        pthread_join(e->thread, NULL);
    engine_gate_enter(e->cfg.gate); /* it waits for the queue, in which another engine may hold a step */
    draft_close_pool(e);
    kv_close(e->kv);
    engine_gate_leave(e->cfg.gate);
    batch_close(e);
    mem_free(e->running);
    buf_free(&e->bytes);
    if (atomic_fetch_sub(&e->refs, 1) == 1)
        mem_free(e);
}

int engine_exclusive(struct engine *e, int (*fn)(void *ctx, struct kv *kv, struct err *err), void *ctx, struct err *err)
{
    struct engine_task task = {.fn = fn, .ctx = ctx, .err = err};
    int rc = 0;
    pthread_mutex_lock(&e->mutex);
    if (e->task || atomic_load(&e->closing))
        rc = err_set(err, ERR_BUSY, "another measurement runs, or the model is being closed");
    else
        e->task = &task;
    pthread_mutex_unlock(&e->mutex);
    if (rc)
        return rc;
    engine_wake(e);
    while (atomic_load(&task.done) == 0)
        thread_futex_wait(&task.done, 0, -1);
    return task.rc;
}

void engine_stats(struct engine *e, struct engine_stats *out)
{
    pthread_mutex_lock(&e->mutex);
    *out = e->stats;
    pthread_mutex_unlock(&e->mutex);
}

int64_t engine_stalled_ns(const struct engine *e)
{
    int64_t since = atomic_load(&e->busy_since);
    return since ? thread_now_ns() - since : 0;
}

uint32_t engine_positions_max(const struct engine *e)
{
    return e->positions_max;
}
