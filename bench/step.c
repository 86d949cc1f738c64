/* bench/step.c - where a decode step's time goes: per kind of record, at barriers, outside kernels.
 *
 * Usage: bench_step MODEL [-t threads] [-n sequences] [-d depth] [-p rows] [-r steps] [-k format] [-b backend] [-w spin us] [-e [-h]]
 * Every step is one row of each sequence, greedy; with -p a whole prompt of so many rows, each time from the beginning.  Times of records are
 * worker 0's; "host" is what enqueuing takes on the calling thread, "outside" all of a step's wall time in which worker 0 ran no
 * record, less what reading the clock at every record takes.
 * "Between kernels", by step, is what a step loses outside its kernels: from when the last worker has left the last kernel of one step to when the
 * first one begins the first kernel of the next (copies and marks are no kernels): committing, planning, waking up, bringing inputs in.
 * -e: through the engine, whose requests are polled by this thread; what its thread works is counted too, by step: where every CPU has a worker,
 * that is taken from kernels.  -h: the engine holds no step ready.  -b cuda: no records; what of a step the host works, which is all of it in which
 * the loop does not wait for the device. */
#include "../tests/model_run.h"
#include "engine/engine.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/thread.h"

enum { SEQUENCES_MAX = 256, ROWS_MAX = 512 };

struct options {
    const char *path, *kv, *backend;
    uint32_t threads, sequences, depth, prompt, steps, spin_us;
    bool engine, hold_off;
};

static struct kv_seq *seqs[SEQUENCES_MAX];
static struct span spans[SEQUENCES_MAX];
static struct sample_row samples[SEQUENCES_MAX];
static struct sample_result results[SEQUENCES_MAX];
static uint32_t ids[SEQUENCES_MAX][ROWS_MAX];

static void must(int rc, const struct err *err)
{
    if (rc) {
        fprintf(stderr, "bench_step: %s\n", err->text);
        exit(1);
    }
}

/* The backend with a clock around its one wait. */
static struct backend timed;
static int (*device_wait)(struct device *d, uint64_t event, struct err *err);
static int64_t waited_ns;

static int timed_wait(struct device *d, uint64_t event, struct err *err)
{
    int64_t begin = thread_now_ns();
    int rc = device_wait(d, event, err);
    waited_ns += thread_now_ns() - begin;
    return rc;
}

static void time_waits(struct device *d)
{
    struct device_head *head = (struct device_head *)(void *)d;
    timed = *head->backend;
    device_wait = timed.event_wait;
    timed.event_wait = timed_wait;
    head->backend = &timed;
}

/* One step of n sequences, `rows` rows each; returns the nanoseconds that enqueuing took. */
static int64_t step(struct run *r, uint32_t n, uint32_t rows)
{
    struct err err = {0};
    uint64_t event = 0;
    for (uint32_t i = 0; i < n; i++) {
        must(kv_extend(r->kv, seqs[i], rows, &err), &err);
        spans[i] = (struct span){.seq = seqs[i], .position = kv_seq_covered(seqs[i]), .row_count = rows, .ids = ids[i],
                                 .out_first = rows - 1, .sample = &samples[i]};
    }
    int64_t begin = thread_now_ns();
    must(model_forward(r->model, r->kv, spans, n, results, &event, &err), &err);
    int64_t host = thread_now_ns() - begin;
    must(model_wait(r->model, event, &err), &err);
    for (uint32_t i = 0; i < n; i++) {
        must(kv_commit(r->kv, seqs[i], ids[i], rows, &err), &err);
        ids[i][0] = results[i].id;
    }
    return host;
}

static const struct sample_params greedy = {.top_p = 1.0f, .typical_p = 1.0f, .repetition_penalty = 1.0f};

static void fill(struct run *r, const struct options *o)
{
    struct err err = {0};
    for (uint32_t i = 0; i < o->sequences; i++) {
        must(kv_seq_new(r->kv, &seqs[i], &err), &err);
        samples[i] = (struct sample_row){.params = &greedy, .score_id = -1};
    }
    for (uint32_t i = 0; i < o->sequences; i++) { /* each alone: a step has room for ROWS_MAX rows */
        struct kv_seq *first = seqs[0];
        seqs[0] = seqs[i];
        for (uint32_t at = 0; at < o->depth; at += ROWS_MAX) {
            uint32_t n = o->depth - at < ROWS_MAX ? o->depth - at : ROWS_MAX;
            for (uint32_t k = 0; k < n; k++)
                ids[0][k] = 5 + (i * 7 + k) % 1000;
            step(r, 1, n);
        }
        seqs[0] = first;
    }
}

/* What one reading of the clock takes: the profile has one between any two records. */
static double clock_us(void)
{
    enum { READS = 100000 };
    int64_t begin = thread_now_ns();
    for (int i = 0; i < READS; i++)
        thread_now_ns();
    return (double)(thread_now_ns() - begin) * 1e-3 / READS;
}

static void print(const struct cpu_profile *p, const struct options *o, int64_t wall, int64_t host)
{
    double per = 1e-3 / o->steps;
    int64_t run = 0, wait = 0;
    uint64_t records = 0;
    if (strcmp(o->backend, "cpu") != 0) {
        printf("step %.1f us: waits for the device %.1f, host works %.1f\n", (double)wall * per, (double)waited_ns * per, (double)(wall - waited_ns) * per);
        return;
    }
    printf("%-20s %8s %10s %8s %10s\n", "record", "a step", "us run", "% step", "us wait");
    for (uint32_t i = 0; i < p->count; i++) {
        const struct cpu_profile_row *r = &p->rows[i];
        printf("%-20s %8.1f %10.1f %8.1f %10.1f\n", r->name, (double)r->count / o->steps, (double)r->run_ns * per,
               100.0 * (double)r->run_ns / (double)wall, (double)r->wait_ns * per);
        run += r->run_ns;
        records += r->count;
        wait += r->wait_ns;
    }
    double clocks = clock_us() * (double)records / o->steps;
    printf("step %.1f us: records %.1f, barriers %.1f, clocks %.1f, outside %.1f (host enqueues %.1f)\n", (double)wall * per, (double)run * per,
           (double)wait * per, clocks, (double)(wall - run - wait) * per - clocks, (double)host * per);
}

static void profile_begin(struct run *r, const struct options *o, struct cpu_profile *profile)
{
    waited_ns = 0;
    if (strcmp(o->backend, "cpu") == 0)
        cpu_profile(r->device, profile);
}

static void profile_end(struct run *r, const struct options *o)
{
    if (strcmp(o->backend, "cpu") == 0)
        cpu_profile(r->device, NULL);
}

/* A step of whole prompts, in new sequences. */
static int64_t prompts(struct run *r, const struct options *o)
{
    struct err err = {0};
    for (uint32_t i = 0; i < o->sequences; i++) {
        kv_seq_free(r->kv, seqs[i]);
        must(kv_seq_new(r->kv, &seqs[i], &err), &err);
        for (uint32_t k = 0; k < o->prompt; k++)
            ids[i][k] = 5 + (i * 7 + k) % 1000;
    }
    return step(r, o->sequences, o->prompt);
}

/* ---- through the engine ---- */

enum { STEPS_MAX = 4096 };

/* what the engine's thread had worked when each step was committed; before the first one all ids are asked for */
struct steps {
    int64_t worked[STEPS_MAX]; /* the last ones */
    uint32_t count;
};

/* Bytes of an id, for a stop string nothing matches: called on the engine's thread at each commit, for the last sequence; by workers too, who
 * look whether it would. */
static int on_token(void *ctx, uint32_t id, struct buf *out)
{
    static pthread_t engine_thread;
    struct steps *t = ctx;
    (void)id;
    if (t->count == 0)
        engine_thread = pthread_self();
    if (pthread_equal(engine_thread, pthread_self()))
        t->worked[t->count++ % STEPS_MAX] = thread_cpu_ns();
    buf_char(out, 'x');
    return out->failed;
}

static int by_value(const void *a, const void *b)
{
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return (x > y) - (x < y);
}

/* Of n steps: the middle is what a quiet machine has, whatever else took the CPU in some of them. */
static void print_spread(const char *what, int64_t *at, uint32_t n)
{
    if (n < 4)
        return;
    qsort(at, n, sizeof *at, by_value);
    printf("%s, by step: least %.1f us, a quarter below %.1f, half below %.1f, three quarters below %.1f\n", what, (double)at[0] * 1e-3,
           (double)at[n / 4] * 1e-3, (double)at[n / 2] * 1e-3, (double)at[3 * n / 4] * 1e-3);
}

/* The last n steps, past the beginning. */
static void print_steps(const struct cpu_profile *p, const struct steps *t, uint32_t n)
{
    int64_t at[STEPS_MAX];
    uint32_t gaps = n < p->gap_count ? n : p->gap_count, works = n < t->count ? n : t->count - (t->count != 0);
    gaps = gaps < STEPS_MAX ? gaps : STEPS_MAX;
    works = works < STEPS_MAX ? works : STEPS_MAX - 1;
    for (uint32_t i = 0; i < gaps; i++)
        at[i] = p->gaps[(p->gap_count - 1 - i) % CPU_PROFILE_GAPS];
    print_spread("between kernels", at, gaps);
    for (uint32_t i = 0; i < works; i++)
        at[i] = t->worked[(t->count - 1 - i) % STEPS_MAX] - t->worked[(t->count - 2 - i) % STEPS_MAX];
    print_spread("engine's thread works", at, works);
}

static struct engine_request *submit(struct engine *e, uint32_t i, uint32_t tokens, bool last)
{
    static const struct str never = STR("never");
    struct err err = {0};
    struct engine_request *q = NULL;
    struct engine_request_config c = {.max_tokens = tokens, .sampling = greedy, .no_reuse = true, .ring = tokens, .stops = &never, .stop_count = last};
    uint32_t id = 5 + i * 7 % 256; /* the smallest models have no more */
    for (uint32_t k = 0; k < 6; k++)
        c.sampling.order[k] = (uint8_t)k;
    must(engine_request_new(e, &c, &q, &err), &err);
    must(engine_submit(q, &id, 1, &err), &err);
    return q;
}

/* All requests to their ends, from prompts of one id: every step is one row of each. */
static void run_engine(struct run *r, const struct options *o)
{
    static struct engine_request *q[SEQUENCES_MAX];
    static struct cpu_profile profile;
    static struct steps times;
    struct engine_gate gate; /* held while they are submitted: they begin together */
    struct engine *e = NULL;
    struct err err = {0};
    struct engine_stats stats;
    uint32_t done = 0;
    engine_gate_init(&gate);
    struct engine_config cfg = {.model = r->model, .device = r->device, .gate = &gate, .state_bytes = (uint64_t)2 << 30, .rows_max = ROWS_MAX,
                                .running_max = SEQUENCES_MAX, .hold_off = o->hold_off, .id_bytes = on_token, .id_bytes_ctx = &times};
    must(engine_open(&cfg, &e, &err), &err);
    engine_gate_enter(&gate);
    for (uint32_t i = 0; i < o->sequences; i++)
        q[i] = submit(e, i, o->steps, i + 1 == o->sequences);
    profile_begin(r, o, &profile);
    int64_t begin = thread_now_ns();
    engine_gate_leave(&gate);
    while (done < o->sequences) {
        struct engine_event ev;
        uint32_t seen = engine_request_seen(q[done]);
        while (engine_poll(q[done], &ev) && ev.kind != ENGINE_DONE) {
        }
        if (engine_request_outcome(q[done], 0)->done_ns)
            done++;
        else
            engine_request_wait(q[done], seen, 100000000);
    }
    int64_t wall = thread_now_ns() - begin;
    engine_stats(e, &stats);
    for (uint32_t i = 0; i < o->sequences; i++)
        engine_request_release(q[i]);
    engine_close(e);
    profile_end(r, o);
    struct options steps = *o;
    steps.steps = (uint32_t)stats.steps;
    print(&profile, &steps, wall, 0);
    print_steps(&profile, &times, o->steps - o->steps / 8);
    printf("steps held ready: %llu begun by workers, %llu by the engine's thread, %llu in vain; %.1f tokens/s\n", (unsigned long long)stats.held_went,
           (unsigned long long)stats.held_run, (unsigned long long)stats.held_dropped, (double)o->sequences * o->steps / ((double)wall * 1e-9));
    engine_gate_free(&gate);
}

static bool parse(int argc, char **argv, struct options *o)
{
    for (int c; (c = getopt(argc, argv, "t:n:d:p:r:k:b:w:eh")) != -1;) {
        uint32_t v = c == '?' || c == 'e' || c == 'h' || c == 'k' || c == 'b' ? 0 : (uint32_t)strtoul(optarg, NULL, 10);
        if (c == 't')
            o->threads = v;
        else if (c == 'n')
            o->sequences = v;
        else if (c == 'd')
            o->depth = v;
        else if (c == 'p')
            o->prompt = v;
        else if (c == 'r')
            o->steps = v;
        else if (c == 'w')
            o->spin_us = v;
        else if (c == 'k')
            o->kv = optarg;
        else if (c == 'b')
            o->backend = optarg;
        else if (c == 'e')
            o->engine = true;
        else if (c == 'h')
            o->hold_off = true;
        else
            return false;
    }
    o->path = argv[optind];
    return o->path && run_backend(o->backend) && o->sequences && o->sequences <= SEQUENCES_MAX && o->prompt * o->sequences <= ROWS_MAX &&
           o->depth && o->steps;
}

int main(int argc, char **argv)
{
    struct options o = {.kv = "f16", .backend = "cpu", .sequences = 1, .depth = 32, .steps = 64};
    if (!parse(argc, argv, &o)) {
        fprintf(stderr, "usage: bench_step MODEL [-t threads] [-n sequences, at most %d] [-d depth] [-p rows] [-r steps] [-k format] [-b cpu|cuda] "
                "[-w spin us] [-e [-h]]\n", SEQUENCES_MAX);
        return 1;
    }
    struct err err = {0};
    struct run r;
    struct run_config cfg = {.backend = o.backend, .threads = o.threads, .spin_us = o.spin_us, .kv = o.kv, .rows_max = ROWS_MAX,
                             .context = (o.depth > o.prompt ? o.depth : o.prompt) + o.steps + 8,
                             .logit_rows_max = o.sequences, .kv_bytes = (uint64_t)2 << 30};
    must(run_open(&r, o.path, &cfg, &err), &err);
    time_waits(r.device);
    if (o.engine) {
        run_engine(&r, &o);
        run_close(&r);
        return 0;
    }
    fill(&r, &o);
    static struct cpu_profile profile;
    for (int i = 0; i < 4; i++)
        o.prompt ? prompts(&r, &o) : step(&r, o.sequences, 1);
    profile_begin(&r, &o, &profile);
    int64_t begin = thread_now_ns(), host = 0;
    for (uint32_t i = 0; i < o.steps; i++)
        host += o.prompt ? prompts(&r, &o) : step(&r, o.sequences, 1);
    int64_t wall = thread_now_ns() - begin;
    profile_end(&r, &o);
    print(&profile, &o, wall, host);
    print_steps(&profile, &(struct steps){0}, o.steps);
    for (uint32_t i = 0; i < o.sequences; i++)
        kv_seq_free(r.kv, seqs[i]);
    run_close(&r);
    return 0;
}
