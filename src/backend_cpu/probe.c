/* backend_cpu/probe.c - measured limits: see probe.h.
 *
 * Each probe runs `repeats` times on pinned threads that start together; the time is from the common start to the last end.
 * The inner loops live in kernel files (they need a level's instructions): this file only runs and times them. */
#include "backend_cpu/probe.h"
#include "backend_cpu/cpu_level.h"
#include "backend_cpu/probe_loops.h"

#include "base/mem.h"
#include "base/thread.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { REPEATS_MAX = 64, THREADS_MAX = 512 };

struct probe_run {
    uint64_t (*loop)(const void *set, size_t bytes, uint32_t rounds); /* returns something that depends on the work */
    const unsigned char *set;
    size_t slice;      /* bytes per thread */
    uint32_t threads, rounds;
    pthread_barrier_t start, end;
    uint32_t repeats;
    _Atomic uint64_t sink;
};

struct probe_thread {
    struct probe_run *run;
    uint32_t me;
    pthread_t thread;
    int64_t cpu_ns[REPEATS_MAX + 1]; /* of each repeat */
};

static void *probe_main(void *arg)
{
    struct probe_thread *t = arg;
    struct probe_run *r = t->run;
    thread_pin(t->me);
    for (uint32_t i = 0; i < r->repeats + 1; i++) { /* the first is a warm-up */
        pthread_barrier_wait(&r->start);
        int64_t begin = thread_cpu_ns();
        uint64_t v = r->loop(r->set ? r->set + t->me * r->slice : NULL, r->slice, r->rounds);
        t->cpu_ns[i] = thread_cpu_ns() - begin;
        atomic_fetch_add(&r->sink, v);
        pthread_barrier_wait(&r->end);
    }
    return NULL;
}

static int by_size(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* `amount` / seconds of all threads' loops, best and median. */
static int probe_measure(struct probe_run *r, double amount, struct probe_result *out, struct err *err)
{
    struct probe_thread *t = mem_try_zero(r->threads, sizeof *t);
    double rates[REPEATS_MAX];
    if (!t)
        return err_nomem(err, "probe: threads", r->threads * sizeof *t);
    pthread_barrier_init(&r->start, NULL, r->threads + 1);
    pthread_barrier_init(&r->end, NULL, r->threads + 1);
    for (uint32_t i = 0; i < r->threads; i++) {
        t[i] = (struct probe_thread){.run = r, .me = i};
        if (pthread_create(&t[i].thread, NULL, probe_main, t + i)) {
            /* those that started wait at a barrier for ever: there is no way to measure or to go on */
            fprintf(stderr, "probe: a thread cannot start\n");
            abort();
        }
    }
    for (uint32_t i = 0; i < r->repeats + 1; i++) {
        int64_t begin = thread_now_ns();
        pthread_barrier_wait(&r->start);
        pthread_barrier_wait(&r->end);
        if (i)
            rates[i - 1] = amount / (double)(thread_now_ns() - begin);
    }
    for (uint32_t i = 0; i < r->threads; i++)
        pthread_join(t[i].thread, NULL);
    pthread_barrier_destroy(&r->start);
    pthread_barrier_destroy(&r->end);
    double cpu_best = 0;
    for (uint32_t i = 1; i <= r->repeats; i++) {
        double rate = 0;
        for (uint32_t j = 0; j < r->threads; j++)
            rate += amount / r->threads / (double)(t[j].cpu_ns[i] + 1);
        cpu_best = rate > cpu_best ? rate : cpu_best;
    }
    mem_free(t);
    qsort(rates, r->repeats, sizeof rates[0], by_size);
    *out = (struct probe_result){rates[r->repeats - 1], rates[r->repeats / 2], cpu_best};
    return 0;
}

static int probe_arguments(uint32_t threads, uint32_t repeats, struct err *err)
{
    if (threads == 0 || threads > THREADS_MAX || repeats == 0 || repeats > REPEATS_MAX)
        return err_set(err, ERR_ARGUMENT, "probe: %u threads and %u repeats, expected 1 .. %d and 1 .. %d", threads, repeats, THREADS_MAX,
                       REPEATS_MAX);
    return 0;
}

static uint64_t read_plain(const void *set, size_t bytes, uint32_t rounds)
{
    uint64_t a = 0, b = 0, c = 0, d = 0;
    for (uint32_t n = 0; n < rounds; n++) {
        const uint64_t *p = set;
        for (size_t i = 0; i + 4 <= bytes / 8; i += 4)
            a ^= p[i], b ^= p[i + 1], c ^= p[i + 2], d ^= p[i + 3];
    }
    return a ^ b ^ c ^ d;
}

int probe_read(uint32_t threads, size_t set_bytes, uint32_t repeats, struct probe_result *out, struct err *err)
{
    int rc = probe_arguments(threads, repeats, err);
    if (rc)
        return rc;
    const struct probe_loops *best = probe_loops_of(NULL);
    size_t slice = set_bytes / threads / 4096 * 4096, bytes = slice * threads;
    if (slice == 0)
        return err_set(err, ERR_ARGUMENT, "probe: a set of %zu bytes for %u threads", set_bytes, threads);
    unsigned char *set = mem_map(bytes);
    if (!set)
        return err_nomem(err, "probe: set", bytes);
    memset(set, 1, bytes);
    uint32_t rounds = bytes < (64u << 20) ? (uint32_t)((64u << 20) / bytes) : 1;
    struct probe_run r = {.loop = best ? best->read : read_plain, .set = set, .slice = slice, .threads = threads, .rounds = rounds,
                          .repeats = repeats};
    rc = probe_measure(&r, (double)bytes * rounds, out, err);
    mem_unmap(set, bytes);
    return rc;
}

static int probe_compute(const char *level, uint32_t threads, uint32_t repeats, bool fma, struct probe_result *out, struct err *err)
{
    int rc = probe_arguments(threads, repeats, err);
    if (rc)
        return rc;
    *out = (struct probe_result){0};
    const struct probe_loops *l = probe_loops_of(level);
    if (!l)
        return 0;
    struct probe_run r = {.loop = fma ? l->fma : l->int8, .threads = threads, .rounds = 400000, .repeats = repeats};
    return probe_measure(&r, (double)r.rounds * threads * (fma ? l->fma_ops : l->int8_ops), out, err);
}

int probe_int8(const char *level, uint32_t threads, uint32_t repeats, struct probe_result *out, struct err *err)
{
    return probe_compute(level, threads, repeats, false, out, err);
}

int probe_fma(const char *level, uint32_t threads, uint32_t repeats, struct probe_result *out, struct err *err)
{
    return probe_compute(level, threads, repeats, true, out, err);
}

struct probe_ticks probe_ticks_now(void)
{
    struct probe_ticks t = {0};
    unsigned long long v[8] = {0};
    FILE *f = fopen("/proc/stat", "re");
    if (!f)
        return t;
    if (fscanf(f, "cpu %llu %llu %llu %llu %llu %llu %llu %llu", v, v + 1, v + 2, v + 3, v + 4, v + 5, v + 6, v + 7) == 8)
        t.steal = v[7];
    for (int i = 0; i < 8; i++)
        t.total += v[i];
    fclose(f);
    return t;
}

double probe_steal_share(struct probe_ticks from, struct probe_ticks to)
{
    return to.total > from.total ? (double)(to.steal - from.steal) / (double)(to.total - from.total) : 0.0;
}
