/* bench/stall.c - what a long prompt costs those who are being answered, and what they cost it.
 *
 * usage: stall MODEL [PROMPT_TOKENS [STREAMS [STEP_MS]]]      defaults: 24000 tokens, 2 streams, 0 (twice what decoding alone takes)
 *
 * Phases: the prompt alone (tokens/s); the streams alone (gaps between tokens); the prompt beside the streams (both); the streams alone again, so
 * that the idle gaps are those of before and after.  Each stream is read by a thread of its own that sleeps until there is a token.  Random ids,
 * greedy, end ids ignored.  Prints one line a phase, the two ratios, and the longest gap. */
#include "rhapsode.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

enum { STREAMS_MAX = 16, GAPS_MAX = 1 << 16, IDLE_TOKENS = 150, STREAM_TOKENS = 6000 };
enum phase { IDLE, BUSY, PHASES };

struct gaps {
    double ms[GAPS_MAX];
    _Atomic size_t n;
};
struct stream {
    struct rh_request *r;
    pthread_t thread;
};

static struct gaps gaps[PHASES];
static _Atomic int phase;
static _Atomic uint32_t ended;

static double now_ms(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e3 + (double)t.tv_nsec / 1e6;
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double quantile(struct gaps *g, double q)
{
    size_t n = g->n < GAPS_MAX ? g->n : GAPS_MAX;
    qsort(g->ms, n, sizeof *g->ms, by_value);
    return n ? g->ms[(size_t)((double)(n - 1) * q)] : 0;
}

static void fail(const char *what, const struct rh_error *err)
{
    fprintf(stderr, "stall: %s: %s\n", what, err->text);
    exit(1);
}

static struct rh_request *submit(struct rh_model *m, const uint32_t *ids, size_t n, int64_t tokens)
{
    struct rh_sampling greedy;
    struct rh_error err = {0};
    struct rh_request *r;
    rh_sampling_default(m, &greedy);
    greedy.temperature = 0;
    struct rh_request_options o = {.ids = ids, .id_count = n, .max_tokens = tokens, .ignore_eos = true, .sampling = &greedy, .propose = "none"};
    if (rh_submit(m, &o, &r, &err))
        fail("submit", &err);
    return r;
}

/* A gap counts for the phase it ends in, when it began in it too. */
static void *read_stream(void *arg)
{
    const struct stream *s = arg;
    struct rh_event e;
    double last = 0;
    int last_phase = -1, rc;
    while ((rc = rh_poll(s->r, &e, -1)) == 1 && e.kind != RH_EVENT_DONE) {
        if (!e.has_token)
            continue;
        double now = now_ms();
        int in = atomic_load(&phase);
        if (in == last_phase) {
            size_t at = atomic_fetch_add(&gaps[in].n, 1);
            if (at < GAPS_MAX)
                gaps[in].ms[at] = now - last;
        }
        last = now;
        last_phase = in;
    }
    atomic_fetch_add(&ended, 1);
    return NULL;
}

/* The prompt to its first token; prefill tokens/s. */
static double read_prompt(struct rh_model *m, const uint32_t *ids, size_t n)
{
    struct rh_request *r = submit(m, ids, n, 1);
    struct rh_event e = {0};
    while (rh_poll(r, &e, -1) == 1 && e.kind != RH_EVENT_DONE) {
    }
    if (e.finish == RH_FINISH_ERROR)
        fail("prompt", &e.error);
    double rate = e.timings.prefill_tokens_per_s;
    rh_request_free(r);
    return rate;
}

static void idle_tokens(size_t count)
{
    struct timespec t = {0, 20000000};
    size_t from = gaps[IDLE].n;
    while (gaps[IDLE].n - from < count && atomic_load(&ended) == 0)
        nanosleep(&t, NULL);
}

int main(int argc, char **argv)
{
    struct stream s[STREAMS_MAX] = {0};
    struct rh_error err = {0};
    struct rh_host *host;
    struct rh_model *m;
    size_t n = argc > 2 ? strtoul(argv[2], NULL, 10) : 24000, streams = argc > 3 ? strtoul(argv[3], NULL, 10) : 2;
    struct rh_host_options ho = {.state_bytes = 4ull << 30};
    struct rh_model_options mo = {.step_ms = argc > 4 ? (uint32_t)strtoul(argv[4], NULL, 10) : 0};
    if (argc < 2 || streams == 0 || streams > STREAMS_MAX || n < 16) {
        fputs("usage: stall MODEL [PROMPT_TOKENS [STREAMS [STEP_MS]]]\n", stderr);
        return 2;
    }
    if (rh_host_open(&ho, &host, &err) || rh_model_open(host, argv[1], &mo, &m, &err))
        fail("open", &err);
    uint32_t *ids = malloc(n * sizeof *ids);
    for (size_t i = 0; ids && i < n; i++)
        ids[i] = 1000 + (uint32_t)(i * 2654435761u >> 8) % 20000;
    double alone = read_prompt(m, ids, n);
    for (size_t i = 0; i < streams; i++) {
        s[i].r = submit(m, ids + 7 * i, 64, STREAM_TOKENS);
        if (pthread_create(&s[i].thread, NULL, read_stream, &s[i]))
            return 1;
    }
    idle_tokens(IDLE_TOKENS * streams);
    ids[0] ^= 1; /* another prompt: nothing of it is known */
    atomic_store(&phase, BUSY);
    double beside = read_prompt(m, ids, n);
    atomic_store(&phase, IDLE);
    idle_tokens(IDLE_TOKENS * streams);
    for (size_t i = 0; i < streams; i++)
        rh_request_cancel(s[i].r);
    for (size_t i = 0; i < streams; i++)
        pthread_join(s[i].thread, NULL);
    double p50 = quantile(&gaps[IDLE], 0.5), idle99 = quantile(&gaps[IDLE], 0.99), p99 = quantile(&gaps[BUSY], 0.99);
    printf("prompt of %zu tokens alone: %.0f tokens/s\n", n, alone);
    printf("%zu streams alone: gap p50 %.2f ms, p99 %.2f ms\n", streams, p50, idle99);
    printf("together: prompt %.0f tokens/s (%.0f %%), gap p50 %.2f ms, p99 %.2f ms (%.2f x idle p50, %.2f x idle p99), longest %.2f ms of %zu\n",
           beside, 100 * beside / alone, quantile(&gaps[BUSY], 0.5), p99, p99 / p50, p99 / idle99, quantile(&gaps[BUSY], 1), (size_t)gaps[BUSY].n);
    for (size_t i = 0; i < streams; i++)
        rh_request_free(s[i].r);
    free(ids);
    rh_model_close(m);
    rh_host_close(host);
    return atomic_load(&ended) < streams;
}
