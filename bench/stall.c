/* bench/stall.c - what a long prompt costs those who are being answered, and what they cost it.
 *
 * usage: stall MODEL [PROMPT_TOKENS [STREAMS [STEP_MS]]]      defaults: 24000 tokens, 2 streams, 0 (twice what decoding alone takes)
 *
 * Three phases: the streams alone (gaps between tokens); the prompt alone (tokens/s); the prompt beside the streams (both).  Random ids, greedy,
 * end ids ignored.  Prints one line a phase and the two ratios. */
#include "rhapsode.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { STREAMS_MAX = 16, GAPS_MAX = 1 << 16, IDLE_TOKENS = 100 };

struct stream {
    struct rh_request *r;
    double last_ms;
};
struct gaps {
    double ms[GAPS_MAX];
    size_t n;
};

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
    qsort(g->ms, g->n, sizeof *g->ms, by_value);
    return g->n ? g->ms[(size_t)((double)(g->n - 1) * q)] : 0;
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

/* Polls every stream once; gaps go to `g`.  False when one ended. */
static bool poll_streams(struct stream *s, size_t n, struct gaps *g)
{
    struct rh_event e;
    bool running = true;
    for (size_t i = 0; i < n; i++)
        while (rh_poll(s[i].r, &e, 0) == 1) {
            double now = now_ms();
            running &= e.kind != RH_EVENT_DONE;
            if (!e.has_token)
                continue;
            if (s[i].last_ms > 0 && g->n < GAPS_MAX)
                g->ms[g->n++] = now - s[i].last_ms;
            s[i].last_ms = now;
        }
    struct timespec t = {0, 200000};
    nanosleep(&t, NULL);
    return running;
}

/* The prompt to its first token; prefill tokens/s. */
static double read_prompt(struct rh_model *m, const uint32_t *ids, size_t n, struct stream *s, size_t streams, struct gaps *g)
{
    struct rh_request *r = submit(m, ids, n, 1);
    struct rh_event e = {0};
    int rc;
    while ((rc = rh_poll(r, &e, streams ? 0 : 50)) >= 0) {
        if (rc == 1 && e.kind == RH_EVENT_DONE)
            break;
        if (streams)
            poll_streams(s, streams, g);
    }
    if (e.finish == RH_FINISH_ERROR)
        fail("prompt", &e.error);
    double rate = e.timings.prefill_tokens_per_s;
    rh_request_free(r);
    return rate;
}

int main(int argc, char **argv)
{
    static struct gaps idle, busy, none;
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
    double alone = read_prompt(m, ids, n, NULL, 0, &none);
    for (size_t i = 0; i < streams; i++)
        s[i].r = submit(m, ids + 7 * i, 64, 4000);
    while (idle.n < IDLE_TOKENS * streams && poll_streams(s, streams, &idle)) {
    }
    ids[0] ^= 1; /* another prompt: nothing of it is known */
    double beside = read_prompt(m, ids, n, s, streams, &busy);
    double p50 = quantile(&idle, 0.5), p99 = quantile(&busy, 0.99);
    printf("prompt of %zu tokens alone: %.0f tokens/s\n", n, alone);
    printf("%zu streams alone: gap p50 %.2f ms, p99 %.2f ms\n", streams, p50, quantile(&idle, 0.99));
    printf("together: prompt %.0f tokens/s (%.0f %%), gap p50 %.2f ms, p99 %.2f ms (%.2f x idle p50)\n", beside, 100 * beside / alone,
           quantile(&busy, 0.5), p99, p99 / p50);
    for (size_t i = 0; i < streams; i++)
        rh_request_free(s[i].r);
    free(ids);
    rh_model_close(m);
    rh_host_close(host);
    return 0;
}
