/* backend_cpu/cpu_queue.c - the in-order queue of a CPU device and the pool of workers that runs it.
 *
 * Owns:       the ring of records, the workers, the points where they wait.
 * Threads:    cpu_enqueue, events: the engine's thread.  Everything a record runs: the workers, never the caller.
 * Invariants: 1. All workers run record n, meet, and only then is completed > n and record n + 1 started.
 *             2. completed <= published <= head <= completed + CPU_RING.  While records are held published == held_from.
 *             3. A wait spins for a bounded time, and not at all while this process has more workers than CPUs, when a device leaves CPUs
 *                to others and as many spin as it may, or when the engine's thread was woken and has no CPU; then it sleeps on a futex.  Who sleeps announces it before looking again, who changes the state looks for sleepers after: no wake-up is lost.
 *             4. Workers round to nearest and keep denormals; they never ask for heap memory.
 * Does not:   know what ops compute. */
#include "backend_cpu/cpu_device.h"

#include "base/mem.h"

#include <assert.h>
#include <fenv.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>

enum { SPIN_STEP = 32, FETCH_LINES = 4 };

static _Atomic uint32_t workers_alive; /* of all devices of this process */
static _Atomic uint32_t spinning;      /* of those whose device leaves CPUs */
static uint32_t cpus;                  /* set before the first worker starts, then constant */
static pthread_once_t cpus_once = PTHREAD_ONCE_INIT;

static void cpus_count(void)
{
    cpus = thread_cpu_count();
}

/* ---- waiting ---- */

/* Spin until *word != seen or the budget is used up. */
static bool spin_for(_Atomic uint32_t *word, uint32_t seen, int64_t budget_ns)
{
    int64_t end = 0;
    for (uint32_t i = 1;; i++) {
        if (atomic_load_explicit(word, memory_order_acquire) != seen)
            return true;
        thread_pause();
        if (i % SPIN_STEP == 0) {
            int64_t now = thread_now_ns();
            if (!end)
                end = now + budget_ns;
            else if (now > end)
                return false;
        }
    }
}

static bool spin(const struct cpu_queue *q, _Atomic uint32_t *word, uint32_t seen)
{
    if (atomic_load_explicit(&workers_alive, memory_order_relaxed) > cpus)
        return false;
    if (q->cpus_left == 0)
        return spin_for(word, seen, q->spin_ns);
    uint32_t most = cpus > q->cpus_left ? cpus - q->cpus_left : 0;
    bool changed = atomic_fetch_add(&spinning, 1) < most && spin_for(word, seen, q->spin_ns);
    atomic_fetch_sub(&spinning, 1);
    return changed;
}

/* Until *word != seen. */
static void wait_asleep(_Atomic uint32_t *word, uint32_t seen, _Atomic uint32_t *sleepers)
{
    atomic_fetch_add(sleepers, 1);
    while (atomic_load(word) == seen)
        thread_futex_wait(word, seen, -1);
    atomic_fetch_sub(sleepers, 1);
}

static void wait_change(const struct cpu_queue *q, _Atomic uint32_t *word, uint32_t seen, _Atomic uint32_t *sleepers)
{
    if (!spin(q, word, seen))
        wait_asleep(word, seen, sleepers);
}

static void change(_Atomic uint32_t *word, _Atomic uint32_t *sleepers)
{
    atomic_fetch_add(word, 1);
    if (atomic_load(sleepers))
        thread_futex_wake(word, INT_MAX);
}

/* All before the held records has ended: they may be let go.  After a failure the engine's thread decides.  It sleeps until kernels run again:
 * it would take the CPU of a worker that they wait for. */
static void ask_held(struct device *d)
{
    struct cpu_queue *q = &d->queue;
    pthread_mutex_lock(&d->failure.lock);
    bool failed = d->failure.code != 0;
    pthread_mutex_unlock(&d->failure.lock);
    if (failed || !q->ask(q->ask_ctx)) {
        atomic_store(&q->hold, CPU_HELD);
        return;
    }
    q->wake_after = q->held_to - q->held_from > CPU_WAKE_AFTER ? q->held_from + CPU_WAKE_AFTER : q->held_to;
    atomic_store(&q->hold, CPU_WENT);
    atomic_store_explicit(&q->published, q->held_to, memory_order_release);
    change(&q->published_word, &q->published_sleepers);
}

/* The engine's thread is woken once, when what it waits for is done, not at every record.  True: it was. */
static bool complete(struct device *d, uint64_t count)
{
    struct cpu_queue *q = &d->queue;
    if (atomic_load_explicit(&q->hold, memory_order_acquire) == CPU_ASK && count == q->held_from)
        ask_held(d);
    atomic_store(&q->completed, count);
    if (count < atomic_load(&q->wake_at) || count < q->wake_after)
        return false;
    atomic_store(&q->wake_at, UINT64_MAX);
    atomic_fetch_add(&q->completed_word, 1);
    thread_futex_wake(&q->completed_word, INT_MAX);
    return true;
}

/* ---- reading ahead ---- */

/* The next piece of what this worker will read: of the record it had begun with, or of the first one ahead that reads anything. */
static bool fetch_next(struct device *d, struct cpu_worker *w)
{
    struct cpu_fetch *f = &w->fetch;
    uint64_t published = atomic_load_explicit(&d->queue.published, memory_order_acquire), k = f->record;
    if (k <= w->at) {
        for (k = w->at + 1; k < published && k <= w->at + CPU_FETCH_RECORDS && !d->queue.ring[k % CPU_RING].reads;)
            k++;
        if (k >= published || k > w->at + CPU_FETCH_RECORDS)
            return false;
        *f = (struct cpu_fetch){.record = k, .room = CPU_FETCH_BYTES};
    }
    const struct cpu_record *r = d->queue.ring + k % CPU_RING;
    return f->room && r->reads(r->op, w->me, d->n_threads, f->pieces++, &f->at, &f->left);
}

bool cpu_fetch_ahead(struct device *d, uint32_t me, uint32_t lines)
{
    struct cpu_worker *w = d->workers + me;
    struct cpu_fetch *f = &w->fetch;
    if ((f->record <= w->at || !f->left) && !fetch_next(d, w))
        return false;
    size_t bytes = 64 * (size_t)lines;
    bytes = bytes < f->left ? bytes : f->left;
    bytes = bytes < f->room ? bytes : f->room;
    for (size_t i = 0; i < bytes; i += 64)
        __builtin_prefetch(f->at + i, 0, 2);
    f->at += bytes;
    f->left -= bytes;
    f->room -= bytes;
    return f->room > 0;
}

/* All workers meet; the last one completes the record first when `end` is set.  Who waits at a record's end reads ahead.  True: this woke the
 * engine's thread. */
static bool meet(struct device *d, uint32_t me, const uint64_t *end)
{
    struct cpu_meet *m = &d->queue.meet;
    uint32_t generation = atomic_load_explicit(&m->generation, memory_order_relaxed);
    if (atomic_fetch_add_explicit(&m->arrived, 1, memory_order_acq_rel) + 1 < d->n_threads) {
        while (end && atomic_load_explicit(&m->generation, memory_order_acquire) == generation && cpu_fetch_ahead(d, me, FETCH_LINES)) {
        }
        wait_change(&d->queue, &m->generation, generation, &m->sleepers);
        return false;
    }
    atomic_store_explicit(&m->arrived, 0, memory_order_relaxed);
    bool woke = end && complete(d, *end);
    change(&m->generation, &m->sleepers);
    return woke;
}

void cpu_barrier(struct device *d, uint32_t me)
{
    if (d->n_threads > 1)
        meet(d, me, NULL);
}

/* ---- workers ---- */

/* False: the queue is empty and the pool is to end.  woke: this worker has just woken the engine's thread.  It gives it its CPU where there is none
 * to spare: a thread that spins is not put aside for one that woke before it has spun for as long as it may. */
static bool next_published(struct cpu_queue *q, uint64_t at, bool woke)
{
    bool asleep = woke && atomic_load_explicit(&workers_alive, memory_order_relaxed) >= cpus;
    for (;;) {
        uint32_t seen = atomic_load(&q->published_word);
        if (atomic_load_explicit(&q->published, memory_order_acquire) > at)
            return true;
        if (atomic_load(&q->stop))
            return false;
        if (asleep)
            wait_asleep(&q->published_word, seen, &q->published_sleepers);
        else
            wait_change(q, &q->published_word, seen, &q->published_sleepers);
        asleep = false;
    }
}

static int64_t profile_add(struct cpu_profile *p, const char *name, int64_t left, int64_t started, int64_t ran)
{
    uint32_t i = 0;
    while (i < p->count && strcmp(p->rows[i].name, name) != 0)
        i++;
    if (i == CPU_PROFILE_ROWS)
        i--;
    else if (i == p->count)
        p->rows[p->count++].name = name;
    int64_t now = thread_now_ns();
    p->rows[i].count++;
    p->rows[i].run_ns += ran - started;
    p->rows[i].wait_ns += now - ran;
    p->idle_ns += left ? started - left : 0;
    return now;
}

/* A record is about to run: a mark, or a kernel, which may be the first one behind a mark. */
static void profile_edge(struct cpu_profile *p, struct cpu_worker *w, const struct cpu_record *r)
{
    struct cpu_profile_edge *e = &p->edges[w->edge];
    if (!r->run) {
        int64_t seen = atomic_load(&e->left);
        while (seen < w->left && !atomic_compare_exchange_weak(&e->left, &seen, w->left)) {
        }
        w->marked = w->left != 0;
    } else if (w->marked) {
        int64_t seen = atomic_load(&e->begun), now = thread_now_ns();
        while ((!seen || now < seen) && !atomic_compare_exchange_weak(&e->begun, &seen, now)) {
        }
    }
}

/* All have left the record.  An edge is used again after the next one, which nobody leaves before worker 0 has been there. */
static void profile_gap(struct cpu_profile *p, struct cpu_worker *w)
{
    struct cpu_profile_edge *e = &p->edges[w->edge];
    if (w->me == 0) {
        p->gaps[p->gap_count++ % CPU_PROFILE_GAPS] = atomic_load(&e->begun) - atomic_load(&e->left);
        atomic_store(&e->begun, 0);
        atomic_store(&e->left, 0);
    }
    w->marked = false;
    w->edge ^= 1;
}

static bool is_kernel(const char *name)
{
    return strncmp(name, "run_copy", 8) != 0;
}

/* A record, with the clock read around it; what worker 0 sees of it is added up. */
static bool run_profiled(struct device *d, struct cpu_worker *w, struct cpu_profile *p, const struct cpu_record *r)
{
    const char *what = r->name; /* once all have met, its place may be used again */
    int64_t started = thread_now_ns();
    uint64_t end = w->at + 1;
    bool kernel = r->run && is_kernel(what);
    if (!r->run || kernel)
        profile_edge(p, w, r);
    if (r->run)
        r->run(d, w->me, d->n_threads, r->op);
    int64_t ran = thread_now_ns(), left = w->record_left;
    w->left = kernel ? ran : w->left;
    bool woke = meet(d, w->me, &end);
    if (kernel && w->marked)
        profile_gap(p, w);
    if (w->me == 0)
        w->record_left = profile_add(p, what, left, started, ran);
    return woke;
}

static void *worker_main(void *arg)
{
    struct cpu_worker *w = arg;
    struct device *d = w->d;
    struct cpu_queue *q = &d->queue;
    char name[16];
    snprintf(name, sizeof name, "rh-cpu-%u", w->me);
    thread_name(name);
    fesetenv(FE_DFL_ENV);
    if (d->pin)
        thread_pin(w->me);
    mem_forbid_push();
    bool woke = false;
    for (uint64_t at = 0; next_published(q, at, woke); at++) {
        const struct cpu_record *r = q->ring + at % CPU_RING;
        uint64_t end = at + 1;
        struct cpu_profile *p = d->profile;
        w->at = at;
        if (p) {
            woke = run_profiled(d, w, p, r);
            continue;
        }
        w->left = w->record_left = 0;
        if (r->run)
            r->run(d, w->me, d->n_threads, r->op);
        woke = meet(d, w->me, &end); /* marks too: a record's place is used again once it is completed, so all must have read it */
    }
    mem_forbid_pop();
    return NULL;
}

int cpu_queue_start(struct device *d, struct err *err)
{
    pthread_once(&cpus_once, cpus_count);
    d->queue.ring = mem_try_aligned(64, CPU_RING * sizeof *d->queue.ring);
    d->workers = mem_try_zero(d->n_threads, sizeof *d->workers);
    if (!d->queue.ring || !d->workers)
        return err_nomem(err, "cpu: the op queue", CPU_RING * sizeof *d->queue.ring);
    atomic_store(&d->queue.wake_at, UINT64_MAX);
    atomic_fetch_add(&workers_alive, d->n_threads);
    for (uint32_t i = 0; i < d->n_threads; i++) {
        struct cpu_worker *w = d->workers + i;
        *w = (struct cpu_worker){.d = d, .me = i};
        int rc = pthread_create(&w->thread, NULL, worker_main, w);
        if (rc)
            return err_set(err, ERR_DEVICE, "cpu: worker %u of %u cannot start: %s", i, d->n_threads, strerror(rc));
        w->started = true;
    }
    return 0;
}

static void publish(struct cpu_queue *q)
{
    uint32_t hold = atomic_load(&q->hold);
    uint64_t to = hold == CPU_HELD || hold == CPU_ASK ? q->held_from : q->head;
    if (atomic_load_explicit(&q->published, memory_order_relaxed) >= to)
        return;
    atomic_store_explicit(&q->published, to, memory_order_release);
    change(&q->published_word, &q->published_sleepers);
}

/* Until completed >= count; the caller sleeps, it never spins: the CPUs belong to the pool. */
static void wait_completed(struct cpu_queue *q, uint64_t count)
{
    while (atomic_load_explicit(&q->completed, memory_order_acquire) < count) {
        uint32_t seen = atomic_load(&q->completed_word);
        atomic_store(&q->wake_at, count);
        if (atomic_load(&q->completed) < count)
            thread_futex_wait(&q->completed_word, seen, -1);
        atomic_store(&q->wake_at, UINT64_MAX);
    }
}

void cpu_queue_stop(struct device *d)
{
    struct cpu_queue *q = &d->queue;
    bool all = d->workers && d->workers[d->n_threads - 1].started;
    assert(atomic_load(&q->hold) == CPU_FREE);
    if (all) {
        publish(q);
        wait_completed(q, q->head);
    }
    atomic_store(&q->stop, true);
    change(&q->published_word, &q->published_sleepers);
    for (uint32_t i = 0; d->workers && i < d->n_threads; i++)
        if (d->workers[i].started)
            pthread_join(d->workers[i].thread, NULL);
    if (d->workers && q->ring)
        atomic_fetch_sub(&workers_alive, d->n_threads);
    mem_free(d->workers);
    mem_free(q->ring);
    d->workers = NULL;
    q->ring = NULL;
}

/* ---- the engine's side ---- */

/* A place in the ring: when there is none, half of it is waited for, so that this is seldom.  Held records cannot be waited for. */
static int ring_room(struct cpu_queue *q)
{
    if (q->head < CPU_RING || atomic_load_explicit(&q->completed, memory_order_acquire) > q->head - CPU_RING)
        return 0;
    uint64_t until = q->head - CPU_RING / 2;
    until = atomic_load(&q->hold) == CPU_HELD && until > q->held_from ? q->held_from : until;
    if (until <= q->head - CPU_RING)
        return ERR_LIMIT;
    publish(q);
    wait_completed(q, until);
    return 0;
}

int cpu_enqueue_named(struct device *d, cpu_run run, const char *name, const void *op, size_t op_bytes)
{
    struct cpu_queue *q = &d->queue;
    if (op_bytes > CPU_OP_BYTES)
        return ERR_INTERNAL;
    int rc = cpu_pack_flush(d);
    rc = rc ? rc : ring_room(q);
    if (rc)
        return rc;
    struct cpu_record *r = q->ring + q->head % CPU_RING;
    r->run = run;
    r->reads = NULL;
    r->name = name;
    if (op_bytes)
        memcpy(r->op, op, op_bytes);
    q->head++;
    return 0;
}

void cpu_enqueued_reads(struct device *d, cpu_reads reads)
{
    d->queue.ring[(d->queue.head - 1) % CPU_RING].reads = reads;
}

void cpu_fail(struct device *d, int code, const char *text)
{
    struct cpu_failure *f = &d->failure;
    pthread_mutex_lock(&f->lock);
    if (!f->code) {
        f->code = code;
        f->record = atomic_load(&d->queue.completed);
        snprintf(f->text, sizeof f->text, "%s", text);
    }
    pthread_mutex_unlock(&f->lock);
}

int cpu_event_record(struct device *d, uint64_t *out)
{
    int rc = cpu_enqueue_named(d, NULL, "mark", NULL, 0);
    publish(&d->queue);
    *out = d->queue.head;
    return rc;
}

int cpu_event_wait(struct device *d, uint64_t event, struct err *err)
{
    if (event > d->queue.head)
        return err_set(err, ERR_INTERNAL, "cpu: event %llu was never recorded", (unsigned long long)event);
    publish(&d->queue);
    wait_completed(&d->queue, event);
    cpu_pack_settle(d);
    struct cpu_failure *f = &d->failure;
    int rc = 0;
    pthread_mutex_lock(&f->lock);
    if (f->code && f->record < event) {
        rc = err_set(err, f->code, "%s", f->text);
        f->code = 0;
    }
    pthread_mutex_unlock(&f->lock);
    return rc;
}

void cpu_flush(struct device *d)
{
    publish(&d->queue);
}

/* Weights on their way into panels are no part of what may be taken back. */
void cpu_hold(struct device *d)
{
    struct cpu_queue *q = &d->queue;
    assert(atomic_load(&q->hold) == CPU_FREE);
    cpu_pack_flush(d);
    publish(q);
    q->held_from = q->head;
    atomic_store(&q->hold, CPU_HELD);
}

void cpu_hold_ask(struct device *d, bool (*ask)(void *ctx), void *ctx)
{
    struct cpu_queue *q = &d->queue;
    assert(atomic_load(&q->hold) == CPU_HELD);
    q->held_to = q->head;
    q->ask = ask;
    q->ask_ctx = ctx;
    atomic_store(&q->hold, CPU_ASK);
}

bool cpu_hold_went(struct device *d)
{
    uint32_t went = CPU_WENT;
    return atomic_compare_exchange_strong(&d->queue.hold, &went, CPU_FREE);
}

/* Nobody is asked any more: what was before it has been waited for, or nobody was told whom to ask. */
void cpu_hold_end(struct device *d, bool run)
{
    struct cpu_queue *q = &d->queue;
    assert(atomic_load(&q->hold) == CPU_HELD || atomic_load(&q->completed) >= q->held_from);
    assert(!d->packing.waiting);
    if (!run)
        q->head = q->held_from;
    atomic_store(&q->hold, CPU_FREE);
    publish(q);
}

void cpu_drain(struct device *d)
{
    assert(atomic_load(&d->queue.hold) == CPU_FREE);
    cpu_pack_flush(d);
    publish(&d->queue);
    wait_completed(&d->queue, d->queue.head);
    cpu_pack_settle(d);
}

void cpu_profile(struct device *d, struct cpu_profile *out)
{
    cpu_drain(d);
    if (out)
        *out = (struct cpu_profile){0};
    d->profile = out; /* seen with the next record that is published */
}

bool cpu_event_done(struct device *d, uint64_t event)
{
    return atomic_load_explicit(&d->queue.completed, memory_order_acquire) >= event;
}

uint64_t cpu_progress(struct device *d)
{
    return atomic_load_explicit(&d->queue.completed, memory_order_relaxed);
}
