/* bench/guess.c - what a guess costs: a span of several rows, all of them sampled and all but the first taken back, beside a span of one.
 *
 * usage: bench_guess MODEL [-k rows, 4] [-t threads] [-d depth, 32] [-r steps, 64]
 * Steps of both kinds in turns, one sequence, greedy.  Prints the time of each kind of record (worker 0's) and the ratio of the medians. */
#include "../tests/model_run.h"

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/thread.h"

enum { ROWS_MAX = 512, GUESS_MAX = 32, STEPS_MAX = 4096 };

struct options {
    const char *path;
    uint32_t threads, depth, steps, rows;
};

static const struct sample_params greedy = {.top_p = 1.0f, .typical_p = 1.0f, .repetition_penalty = 1.0f};
static const struct sample_row sample = {.params = &greedy, .score_id = -1};
static struct sample_result results[GUESS_MAX];
static struct kv_seq *seq;
static uint32_t ids[ROWS_MAX];

static void must(int rc, const struct err *err)
{
    if (rc) {
        fprintf(stderr, "bench_guess: %s\n", err->text);
        exit(1);
    }
}

/* `rows` rows of the first sequence, each sampled; one stays. */
static int64_t guess(struct run *r, uint32_t rows)
{
    struct err err = {0};
    struct sample_row all[GUESS_MAX];
    uint64_t event = 0;
    for (uint32_t i = 0; i < rows; i++)
        all[i] = sample;
    must(kv_extend(r->kv, seq, rows, &err), &err);
    struct span span = {.seq = seq, .position = kv_seq_covered(seq), .row_count = rows, .ids = ids, .sample = all};
    int64_t begin = thread_now_ns();
    must(model_forward(r->model, r->kv, &span, 1, results, &event, &err), &err);
    must(model_wait(r->model, event, &err), &err);
    int64_t took = thread_now_ns() - begin;
    must(kv_commit(r->kv, seq, ids, 1, &err), &err);
    if (rows > 1)
        must(kv_rewind(r->kv, seq, kv_seq_covered(seq), &err), &err);
    for (uint32_t i = 0; i < GUESS_MAX; i++)
        ids[i] = (results[0].id + i) % model_info(r->model)->vocab;
    return took;
}

static int by_time(const void *a, const void *b)
{
    const int64_t *x = a, *y = b;
    return (*x > *y) - (*x < *y);
}

/* One step's records onto those of its kind. */
static void add_up(struct cpu_profile *all, const struct cpu_profile *step)
{
    for (uint32_t i = 0; i < step->count; i++) {
        uint32_t at = 0;
        while (at < all->count && strcmp(all->rows[at].name, step->rows[i].name) != 0)
            at++;
        if (at == CPU_PROFILE_ROWS)
            continue;
        all->count = at == all->count ? at + 1 : all->count;
        all->rows[at].name = step->rows[i].name;
        all->rows[at].run_ns += step->rows[i].run_ns;
    }
}

static void compare(struct run *r, const struct options *o)
{
    static int64_t times[2][STEPS_MAX];
    static struct cpu_profile profiles[2], one_step;
    uint32_t n = o->steps < STEPS_MAX ? o->steps : STEPS_MAX;
    for (uint32_t i = 0; i < 2 * (n + 2); i++) {
        cpu_profile(r->device, &one_step);
        int64_t took = guess(r, i % 2 ? o->rows : 1);
        cpu_profile(r->device, NULL);
        if (i < 4)
            continue;
        add_up(&profiles[i % 2], &one_step);
        times[i % 2][i / 2 - 2] = took;
    }
    for (int k = 0; k < 2; k++)
        qsort(times[k], n, sizeof times[k][0], by_time);
    printf("%-20s %12s %12s %8s\n", "record", "us, 1 row", "us, rows", "ratio");
    for (uint32_t i = 0; i < profiles[1].count; i++) {
        const struct cpu_profile_row *many = &profiles[1].rows[i], *one = NULL;
        for (uint32_t j = 0; j < profiles[0].count; j++)
            one = strcmp(profiles[0].rows[j].name, many->name) == 0 ? &profiles[0].rows[j] : one;
        double a = one ? (double)one->run_ns * 1e-3 / n : 0, b = (double)many->run_ns * 1e-3 / n;
        printf("%-20s %12.1f %12.1f %8.2f\n", many->name, a, b, a > 0 ? b / a : 0.0);
    }
    double a = (double)times[0][n / 2] * 1e-3, b = (double)times[1][n / 2] * 1e-3;
    printf("median step: 1 row %.1f us, %u rows %.1f us: %.2f x\n", a, o->rows, b, b / a);
}

static bool parse(int argc, char **argv, struct options *o)
{
    for (int c; (c = getopt(argc, argv, "t:d:r:k:")) != -1;) {
        uint32_t v = c == '?' ? 0 : (uint32_t)strtoul(optarg, NULL, 10);
        if (c == '?')
            return false;
        *(c == 't' ? &o->threads : c == 'd' ? &o->depth : c == 'r' ? &o->steps : &o->rows) = v;
    }
    o->path = argv[optind];
    return o->path && o->depth && o->depth <= ROWS_MAX && o->steps && o->rows && o->rows <= GUESS_MAX;
}

int main(int argc, char **argv)
{
    struct options o = {.depth = 32, .steps = 64, .rows = 4};
    if (!parse(argc, argv, &o)) {
        fprintf(stderr, "usage: bench_guess MODEL [-k rows, at most %d] [-t threads] [-d depth, at most %d] [-r steps]\n", GUESS_MAX, ROWS_MAX);
        return 1;
    }
    struct err err = {0};
    struct run r;
    struct run_config cfg = {.backend = "cpu", .threads = o.threads, .kv = "f16", .context = o.depth + 2 * o.steps + GUESS_MAX + 8,
                             .rows_max = ROWS_MAX, .logit_rows_max = GUESS_MAX, .kv_bytes = (uint64_t)1 << 30};
    must(run_open(&r, o.path, &cfg, &err), &err);
    must(kv_seq_new(r.kv, &seq, &err), &err);
    for (uint32_t i = 0; i < o.depth; i++)
        ids[i] = 5 + i * 7 % 1000;
    must(run_span(&r, seq, ids, o.depth, o.depth, NULL, &err), &err);
    compare(&r, &o);
    kv_seq_free(r.kv, seq);
    run_close(&r);
    return 0;
}
