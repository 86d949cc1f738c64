/* Requests of every kind at once, drawn at random, in so little memory that prefixes go and sequences are pre-empted all the time: each answer
 * is what the same request gives alone, plainly, where nothing is known; what was cancelled is its beginning.
 * The draw is a function of MIXED_SEED (0), the work of MIXED_REQUESTS (each model and sixteen times as many in check long). */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <cmocka.h>

#include "base/rng.h"
#include "rhapsode.h"

#include <pthread.h>
#include <stdatomic.h>

enum { KINDS = 48, CLIENTS = 4, HELD = 24, REQUESTS = 240, IDS_MAX = 400, ANSWER_MAX = 120, TEXT_MAX = 4096, CHOICES = 3, TOPS = 3, VOCAB = 384,
       PATIENCE_MS = 60000 };

static const char *const paths[] = {TEST_DATA "/../golden/llama", TEST_DATA "/../golden/gemma3", TEST_DATA "/../golden/lfm2",
                                    TEST_DATA "/../golden/qwen3_5"};

/* ---- draws ---- */

struct draw {
    uint32_t a, b, at;
};

static uint32_t drawn(struct draw *d, uint32_t below)
{
    uint32_t c[4] = {d->a, d->b, d->at++, 0}, bits[4];
    const char *seed = getenv("MIXED_SEED");
    rng_philox(seed ? strtoull(seed, NULL, 10) : 0, c, bits);
    return (uint32_t)((uint64_t)bits[0] * below >> 32);
}

static bool one_in(struct draw *d, uint32_t n)
{
    return drawn(d, n) == 0;
}

/* ---- kinds of requests: what an answer depends on ---- */

struct kind {
    uint32_t ids[IDS_MAX], stop_ids[3], allowed[40], boundaries[2];
    struct rh_bias biases[12];
    char stop_text[2][4];
    struct rh_text stops[2];
    struct rh_sampling sampling;
    struct rh_request_options options; /* points into the others */
};

struct answer { /* of one choice */
    uint32_t ids[ANSWER_MAX], count, text_n;
    float logprobs[ANSWER_MAX];
    struct rh_top tops[ANSWER_MAX][TOPS];
    char text[TEXT_MAX], stop[4];
    enum rh_finish finish;
    uint32_t completion;
    int error;
    bool done;
};

static struct kind kinds[KINDS];
static struct answer alone[KINDS][CHOICES];
static struct rh_model *model;

/* Prompts begin alike in fours, repeat themselves, and some are the beginning of others. */
static void draw_prompt(struct kind *k, uint32_t number, struct draw *d)
{
    struct draw family = {1000 + number / 4, 1, 0};
    uint32_t count = 1 + drawn(d, number % 5 ? 120 : IDS_MAX - ANSWER_MAX), period = 5 + drawn(d, 60), shared = drawn(&family, 100);
    for (uint32_t i = 0; i < IDS_MAX; i++)
        k->ids[i] = i < shared ? drawn(&family, VOCAB) : i >= period && i % 9 ? k->ids[i - period] : drawn(d, VOCAB);
    k->options.ids = k->ids;
    k->options.id_count = count;
    k->boundaries[0] = 1 + drawn(d, 40);
    k->boundaries[1] = k->boundaries[0] + 1 + drawn(d, 60);
    k->options.boundaries = k->boundaries;
    k->options.boundary_count = drawn(d, 3);
}

static void draw_sampling(struct kind *k, struct draw *d)
{
    struct rh_sampling *s = &k->sampling;
    rh_sampling_default(model, s);
    s->temperature = one_in(d, 3) ? 0 : 0.2f + (float)drawn(d, 10) * 0.1f;
    s->top_p = one_in(d, 2) ? 1 : 0.8f;
    s->top_k = one_in(d, 2) ? 0 : 1 + drawn(d, 40);
    s->min_p = one_in(d, 4) ? 0.05f : 0;
    s->typical_p = one_in(d, 5) ? 0.9f : 1;
    s->top_n_sigma = one_in(d, 5) ? 2 : 0;
    s->xtc_probability = one_in(d, 5) ? 0.5f : 0;
    s->xtc_threshold = 0.1f;
    if (one_in(d, 3)) {
        s->repetition_penalty = 1.1f;
        s->presence_penalty = 0.1f * (float)drawn(d, 3);
        s->frequency_penalty = 0.1f * (float)drawn(d, 3);
        s->penalty_window = drawn(d, 3) * 20;
    }
    s->min_tokens = one_in(d, 4) ? drawn(d, 20) : 0;
    s->bias_count = one_in(d, 2) ? 0 : drawn(d, 12);
    for (uint32_t i = 0; i < s->bias_count; i++)
        k->biases[i] = (struct rh_bias){7 + 31 * i + drawn(d, 30), (float)drawn(d, 40) - 15};
    s->biases = k->biases;
}

static void draw_ends(struct kind *k, struct draw *d)
{
    struct rh_request_options *o = &k->options;
    o->stop_count = one_in(d, 2) ? 0 : 1 + drawn(d, 2);
    for (uint32_t i = 0; i < o->stop_count; i++) {
        for (uint32_t c = 0; c < 3; c++)
            k->stop_text[i][c] = (char)("etaoins rhl"[drawn(d, 11)]);
        k->stops[i] = (struct rh_text){k->stop_text[i], 1 + drawn(d, 2)};
    }
    o->stop = k->stops;
    o->stop_id_count = drawn(d, 4);
    for (uint32_t i = 0; i < o->stop_id_count; i++)
        k->stop_ids[i] = drawn(d, VOCAB);
    o->stop_ids = k->stop_ids;
    o->ignore_eos = one_in(d, 2);
    o->max_tokens = one_in(d, 6) ? 1 + drawn(d, 3) : 1 + drawn(d, ANSWER_MAX);
    o->allowed_id_count = one_in(d, 5) ? 40 : 0;
    for (uint32_t i = 0; i < 40; i++)
        k->allowed[i] = (i * 9 + drawn(d, 9)) % VOCAB;
    o->allowed_ids = k->allowed;
}

static void draw_kind(struct kind *k, uint32_t number)
{
    struct draw d = {number, 0, 0};
    memset(k, 0, sizeof *k);
    draw_prompt(k, number, &d);
    draw_sampling(k, &d);
    draw_ends(k, &d);
    k->options.sampling = &k->sampling;
    k->options.seed_given = true;
    k->options.seed = number;
    k->options.n = one_in(&d, 4) ? 1 + drawn(&d, CHOICES) : 1;
    k->options.logprobs = one_in(&d, 2);
    k->options.top_logprobs = one_in(&d, 2) ? TOPS : 0;
}

/* ---- one request ---- */

struct asked {
    struct rh_request *r;
    uint32_t kind, cancel_after; /* events; UINT32_MAX: never */
    struct answer *got;          /* [CHOICES] */
};

static _Atomic uint32_t wrong, cancelled, errors, proposed;

static void take(struct answer *a, const struct rh_event *e)
{
    if (e->has_token && a->count < ANSWER_MAX) {
        memcpy(a->tops[a->count], e->tops, (e->top_count < TOPS ? e->top_count : TOPS) * sizeof *e->tops);
        a->logprobs[a->count] = e->logprob;
        a->ids[a->count++] = e->id;
    }
    if (e->kind == RH_EVENT_TEXT && a->text_n + e->text_n <= TEXT_MAX) {
        memcpy(a->text + a->text_n, e->text, e->text_n);
        a->text_n += (uint32_t)e->text_n;
    }
    if (e->kind != RH_EVENT_DONE)
        return;
    a->done = true;
    a->finish = e->finish;
    a->completion = e->usage.completion_tokens;
    a->error = e->error.code;
    snprintf(a->stop, sizeof a->stop, "%s", e->stop_string ? e->stop_string : "");
    proposed += e->speculation.drafted + e->speculation.fill.injected;
}

static void collect(struct asked *q)
{
    struct rh_event e;
    int rc;
    memset(q->got, 0, CHOICES * sizeof *q->got);
    for (uint32_t events = 0; (rc = rh_poll(q->r, &e, PATIENCE_MS)) == 1; events++) {
        if (e.kind == RH_EVENT_TEXT || e.kind == RH_EVENT_DONE)
            take(&q->got[e.choice], &e);
        if (events == q->cancel_after)
            rh_request_cancel(q->r);
    }
    if (rc != RH_ERR_END) {
        fprintf(stderr, "kind %u: nothing came for %d ms\n", q->kind, PATIENCE_MS);
        abort();
    }
    rh_request_free(q->r);
}

static bool same_beginning(const struct answer *a, const struct answer *whole)
{
    return a->count <= whole->count && memcmp(a->ids, whole->ids, a->count * sizeof *a->ids) == 0 &&
           memcmp(a->logprobs, whole->logprobs, a->count * sizeof *a->logprobs) == 0 &&
           memcmp(a->tops, whole->tops, a->count * sizeof *a->tops) == 0 && a->text_n <= whole->text_n &&
           memcmp(a->text, whole->text, a->text_n) == 0;
}

static bool same(const struct answer *a, const struct answer *whole)
{
    return same_beginning(a, whole) && a->count == whole->count && a->text_n == whole->text_n && a->finish == whole->finish &&
           a->completion == whole->completion && a->error == whole->error && strcmp(a->stop, whole->stop) == 0;
}

static void compare(const struct asked *q)
{
    uint32_t n = kinds[q->kind].options.n;
    for (uint32_t i = 0; i < n; i++) {
        const struct answer *a = &q->got[i], *whole = &alone[q->kind][i];
        bool cut = q->cancel_after != UINT32_MAX && a->finish == RH_FINISH_CANCELLED;
        bool good = a->done && (cut ? same_beginning(a, whole) : same(a, whole));
        cancelled += cut;
        errors += a->finish == RH_FINISH_ERROR;
        wrong += !good;
        if (!good)
            fprintf(stderr, "kind %u, choice %u: %u tokens (finish %d, %u counted, error %d, stop '%s', %u bytes), alone %u (%d, %u, %d, '%s', %u)\n",
                    q->kind, i, a->count, a->finish, a->completion, a->error, a->stop, a->text_n, whole->count, whole->finish, whole->completion,
                    whole->error, whole->stop, whole->text_n);
    }
}

/* ---- alone ---- */

static void run_alone(uint32_t kind)
{
    char tenant[16];
    struct rh_request_options o = kinds[kind].options;
    struct asked q = {.kind = kind, .cancel_after = UINT32_MAX, .got = alone[kind]};
    struct rh_error err = {0};
    snprintf(tenant, sizeof tenant, "alone %u", kind);
    o.tenant = tenant;
    o.propose = "none";
    o.boundary_count = 0;
    if (rh_submit(model, &o, &q.r, &err))
        fail_msg("kind %u: %s", kind, err.text);
    collect(&q);
}

/* ---- together: what no answer depends on is drawn for each ---- */

static _Atomic uint32_t next_request;
static uint32_t requests, round_number;

static void submit(struct asked *q, uint32_t number)
{
    static const char *const propose[] = {"none", "auto", "echo", "lookup", "draft", "echo,lookup,draft"}, *const names[] = {NULL, "a", "b", "c"};
    struct draw d = {number, 2 + round_number, 0};
    q->kind = drawn(&d, KINDS);
    struct rh_request_options o = kinds[q->kind].options;
    struct rh_error err = {0};
    o.propose = propose[drawn(&d, 6)];
    o.propose_depth = one_in(&d, 2) ? drawn(&d, RH_DEPTH_MAX + 1) : 0;
    o.session = names[drawn(&d, 4)];
    o.tenant = one_in(&d, 8) ? "other" : NULL;
    o.priority = (int)drawn(&d, 3);
    while (o.boundary_count && kinds[q->kind].boundaries[o.boundary_count - 1] >= o.id_count)
        o.boundary_count--;
    q->cancel_after = one_in(&d, 5) ? drawn(&d, 60) : UINT32_MAX;
    if (rh_submit(model, &o, &q->r, &err)) {
        fprintf(stderr, "kind %u: %s\n", q->kind, err.text);
        abort();
    }
    if (one_in(&d, 30)) {
        rh_request_cancel(q->r);
        q->cancel_after = 0;
    }
}

/* Holds several at a time and reads the last one first: the others' rings fill. */
static void *client(void *arg)
{
    struct asked q[HELD];
    (void)arg;
    struct answer *got = calloc(CHOICES, sizeof *got);
    for (uint32_t number; (number = atomic_fetch_add(&next_request, HELD)) < requests;) {
        for (uint32_t i = 0; i < HELD; i++) {
            q[i].got = got;
            submit(&q[i], number + i);
        }
        for (uint32_t i = HELD; i-- > 0;) {
            collect(&q[i]);
            compare(&q[i]);
        }
    }
    free(got);
    return NULL;
}

static void everybody_at_once(void)
{
    pthread_t threads[CLIENTS];
    next_request = 0;
    for (uint32_t i = 0; i < CLIENTS; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, client, NULL), 0);
    for (uint32_t i = 0; i < CLIENTS; i++)
        pthread_join(threads[i], NULL);
}

/* With the least memory in which each request fits alone. */
static uint32_t open_tight(const char *path, struct rh_host **host)
{
    struct rh_error err = {0};
    struct rh_model_options opt = {.rows_max = 40, .draft = path};
    for (uint32_t mib = 2; mib < 64; mib += 2) {
        struct rh_host_options o = {.backend = "cpu", .threads = 1, .no_pin = true, .state_bytes = (uint64_t)mib << 20};
        struct rh_stats stats;
        assert_int_equal(rh_host_open(&o, host, &err), 0);
        if (rh_model_open(*host, path, &opt, &model, &err) == 0) {
            rh_stats(model, &stats);
            if (stats.positions_max >= IDS_MAX)
                return mib;
            rh_model_close(model);
        }
        rh_host_close(*host);
    }
    fail_msg("%s: %s", path, err.text);
    return 0;
}

static void answers_are_what_they_are_alone(void **state)
{
    const char *asked = getenv("MIXED_REQUESTS");
    bool all = asked || getenv("CHECK_LONG");
    (void)state;
    requests = asked ? (uint32_t)strtoul(asked, NULL, 10) : getenv("CHECK_LONG") ? 16 * REQUESTS : REQUESTS;
    for (uint32_t m = 0; m < sizeof paths / sizeof *paths; m++) {
        struct rh_host *host = NULL;
        struct rh_stats stats;
        wrong = cancelled = errors = proposed = 0;
        round_number = m;
        uint32_t mib = open_tight(paths[m], &host);
        for (uint32_t k = 0; k < KINDS; k++) {
            draw_kind(&kinds[k], k);
            run_alone(k);
        }
        everybody_at_once();
        rh_stats(model, &stats);
        print_message("%s, %u MiB: %u requests, %u choices cancelled, %u ended by an error as alone, %u tokens guessed, %llu pre-empted, %llu of %llu prompt tokens known\n",
                      strrchr(paths[m], '/') + 1, mib, requests, cancelled, errors, proposed, (unsigned long long)stats.preempted,
                      (unsigned long long)stats.cached_tokens, (unsigned long long)stats.prompt_tokens);
        assert_int_equal(wrong, 0);
        assert_true(cancelled > 0 && proposed > 0 && stats.cached_tokens > 0);
        assert_int_equal(stats.running + stats.waiting, 0);
        rh_model_close(model);
        rh_host_close(host);
        if (!all && m == 1)
            break;
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(answers_are_what_they_are_alone)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
