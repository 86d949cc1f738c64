/* Random requests from many threads with cancels in every state, under a budget that forces eviction, long answers pre-empted once: no
 * page is lost, and what was not cancelled is what it is alone; what was is its beginning.
 * With CHECK_LONG=1 (./check long) 100,000 requests; STRESS_REQUESTS says otherwise. */
#define RIG_MICRO 1
#define RIG_CONTEXT 256
#define RIG_BACKEND (rig_steps > 1 ? "ref" : "cpu") /* with two steps in flight the one that can have them */
#include "engine_rig.h"

#include "base/thread.h"

#include <pthread.h>
#include <stdatomic.h>

enum { THREADS = 5, KINDS = 24, REQUESTS = 2000, REQUESTS_LONG = 100000, PROMPT = 180, BATCH = 8 };

/* what a client does to its request */
enum deed { POLL, CANCEL_FIRST, CANCEL_LATER, CANCEL_AFTER_TOKEN, CANCEL_FULL, VANISH, VANISH_LATER, DEEDS };

static uint32_t prompts[KINDS][PROMPT], boundaries[KINDS][2];
static struct rig_result alone[KINDS][2];
static _Atomic uint32_t next_request, wrong, deeds[DEEDS], cancelled;
static uint32_t requests;

static uint32_t prompt_count(uint32_t kind)
{
    return 8 + kind * 37 % (PROMPT - 8);
}

static struct engine_request_config config(uint32_t kind)
{
    struct engine_request_config c = rig_request(kind % 2 ? 1 + kind * 5 % 19 : 70, kind % 3 ? 0.8f : 0, kind);
    c.n = kind % 7 == 3 ? 2 : 1;
    c.no_reuse = false;
    c.chunk_max = kind % 5 == 1 ? 7 : 0;
    return c;
}

/* Kinds begin alike in threes, and some are the beginning of others. */
static void make_kinds(void)
{
    for (uint32_t k = 0; k < KINDS; k++) {
        rig_prompt(k / 3, prompts[k], PROMPT);
        for (uint32_t i = 20 + k; i < PROMPT; i++)
            prompts[k][i] = (prompts[k][i] + k % 2) % RIG_VOCAB;
        boundaries[k][0] = 1 + k;
        boundaries[k][1] = 30 + k;
        struct engine_request_config c = config(k);
        c.no_reuse = true;
        rig_run(&rig, &c, prompts[k], prompt_count(k), alone[k]);
    }
}

static bool is_beginning(const struct rig_result *r, const struct rig_result *whole)
{
    return r->count <= whole->count && memcmp(r->ids, whole->ids, r->count * sizeof *r->ids) == 0;
}

static void wait_token(struct engine_request *q)
{
    struct engine_event e;
    uint32_t seen = engine_request_seen(q);
    if (!engine_poll(q, &e))
        engine_request_wait(q, seen, 2000000);
}

static struct engine_request *submit(uint32_t kind, enum deed deed, const uint32_t *bits)
{
    static const struct str names[] = {STR(""), STR("x"), STR("y")};
    struct engine_request_config c = config(kind);
    struct engine_request *q = NULL;
    struct err err = {0};
    c.ring = deed == CANCEL_FULL ? 8 : 64;
    c.tenant = names[bits[0] % 8 < 6 ? 0 : bits[0] % 3];
    c.session = names[bits[1] % 3];
    c.no_reuse = bits[2] % 16 == 0;
    if (engine_request_new(rig.engine, &c, &q, &err))
        return NULL;
    if (deed == CANCEL_FIRST)
        engine_request_cancel(q);
    uint32_t n = boundaries[kind][1] < prompt_count(kind) ? 2 : 0;
    if (engine_request_boundaries(q, boundaries[kind], n, &err) || engine_submit(q, prompts[kind], prompt_count(kind), &err)) {
        engine_request_release(q);
        return NULL;
    }
    return q;
}

/* False: nobody will poll it. */
static bool act(struct engine_request *q, enum deed deed, const uint32_t *bits)
{
    if (deed == CANCEL_LATER || deed == VANISH_LATER)
        rig_sleep_us(bits[0] % 1500);
    if (deed == CANCEL_AFTER_TOKEN) /* the token is lost to the test, so its result is not looked at */
        wait_token(q);
    if (deed == CANCEL_FULL)
        rig_sleep_us(200 + bits[0] % 3000);
    if (deed != POLL && deed != CANCEL_FIRST)
        engine_request_cancel(q);
    if (deed == VANISH || deed == VANISH_LATER) {
        engine_request_release(q);
        return false;
    }
    return true;
}

struct wanted { /* a request and what becomes of it */
    struct engine_request *q;
    uint32_t kind, bits[4];
    enum deed deed;
};

static void start(struct wanted *w, uint32_t number)
{
    uint32_t counter[4] = {number, 0, 0, 0}, bits[4];
    rng_philox(23, counter, bits);
    rng_philox(24, counter, w->bits);
    w->kind = bits[0] % KINDS;
    w->deed = bits[3] % 20 < 11 ? POLL : (enum deed)(bits[3] % 20 - 10) % DEEDS;
    w->q = submit(w->kind, w->deed, w->bits);
    deeds[w->deed]++;
    wrong += w->q == NULL;
}

static void finish(struct wanted *w, struct rig_result *r)
{
    uint32_t n = config(w->kind).n;
    if (!w->q || !act(w->q, w->deed, w->bits))
        return;
    rig_finish(w->q, n, r);
    for (uint32_t i = 0; i < n; i++) {
        bool stopped = r[i].outcome.finish == ENGINE_CANCELLED;
        cancelled += stopped;
        wrong += (stopped && w->deed == POLL) || r[i].outcome.finish == ENGINE_ERROR;
        if (w->deed != CANCEL_AFTER_TOKEN)
            wrong += !is_beginning(&r[i], &alone[w->kind][i]) || (!stopped && r[i].count != alone[w->kind][i].count);
    }
}

static void *client(void *arg)
{
    struct rig_result *r = calloc(2, sizeof *r);
    struct wanted w[BATCH];
    (void)arg;
    for (uint32_t number; (number = atomic_fetch_add(&next_request, BATCH)) < requests;) {
        for (uint32_t i = 0; i < BATCH; i++)
            start(&w[i], number + i);
        for (uint32_t i = BATCH; i-- > 0;)
            finish(&w[i], r);
    }
    free(r);
    return NULL;
}

static int check_task(void *ctx, struct kv *kv, struct err *err)
{
    struct kv_stats *stats = ctx;
    kv_stats(kv, stats); /* kept state was dropped */
    return kv_check(kv, err);
}

static void nothing_is_lost_and_nobody_disturbed(void **state)
{
    next_request = cancelled = 0;
    pthread_t threads[THREADS];
    struct engine_stats stats;
    struct kv_stats left;
    struct err err = {0};
    const char *asked = getenv("STRESS_REQUESTS");
    (void)state;
    requests = (asked ? (uint32_t)strtoul(asked, NULL, 10) : getenv("CHECK_LONG") ? REQUESTS_LONG : REQUESTS) / 2;
    requests = rig_steps > 1 ? requests / 4 : requests;
    make_kinds();
    int64_t began = thread_now_ns();
    for (uint32_t i = 0; i < THREADS; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, client, NULL), 0);
    for (uint32_t i = 0; i < THREADS; i++)
        pthread_join(threads[i], NULL);
    assert_int_equal(engine_exclusive(rig.engine, check_task, &left, &err), 0);
    engine_stats(rig.engine, &stats);
    print_message("%.0f requests/s\n", requests / ((double)(thread_now_ns() - began) / 1e9));
    print_message("%u requests, %u choices cancelled, %llu pre-empted, evicted: %llu spare, %llu marks, %llu leaves; %llu of %llu prompt tokens reused\n",
                  requests, cancelled, (unsigned long long)stats.preempted, (unsigned long long)stats.prefix.spares_evicted,
                  (unsigned long long)stats.prefix.marks_evicted, (unsigned long long)stats.prefix.leaves_evicted,
                  (unsigned long long)stats.cache.cached_tokens, (unsigned long long)stats.cache.prompt_tokens);
    assert_int_equal(wrong, 0);
    assert_int_equal(left.live_bytes + left.cached_bytes, 0);
    assert_int_equal(stats.check_failures, 0);
    assert_true(stats.cache.cached_tokens > 0 && cancelled > 0);
    print_message("steps held ready: %llu begun by workers, %llu by the engine's thread, %llu in vain\n", (unsigned long long)stats.held_went,
                  (unsigned long long)stats.held_run, (unsigned long long)stats.held_dropped);
    assert_true(stats.prefix.leaves_evicted > 0 && stats.preempted > 0);
    assert_true(rig_steps > 1 || (stats.held_went > 0 && stats.held_dropped > 0));
    assert_true(!rig_window || (stats.prefix.spares_evicted > 0 && stats.prefix.marks_evicted > 0));
    for (int d = 0; d < DEEDS; d++)
        assert_true(deeds[d] > 0);
}

static int setup_window(void **state)
{
    rig_window = 24;
    return rig_setup(state);
}

int main(void)
{
    rig_config = (struct engine_config){.state_bytes = 2u << 20, .check_every = 50, .running_max = 32, .mark_every = 40, .preempt_at = 12};
    const struct CMUnitTest tests[] = {
        RIG_TEST(nothing_is_lost_and_nobody_disturbed),
        cmocka_unit_test_setup_teardown(nothing_is_lost_and_nobody_disturbed, setup_window, rig_teardown),
    };
    int rc = cmocka_run_group_tests(tests, NULL, NULL);
    rig_steps = 2;
    rig_window = 0;
    return rc + cmocka_run_group_tests(tests, NULL, NULL);
}
