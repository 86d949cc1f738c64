/* The step that is held ready: what is computed, in which order and on which pages is what an engine that never holds one computes, whatever
 * ends, comes, fails or is cancelled meanwhile. */
#define RIG_MICRO 1
#define RIG_BACKEND backend_name
static const char *backend_name = "ref"; /* then the CPU's, whose workers let steps go */
#include "engine_rig.h"

#include <pthread.h>
#include <stdatomic.h>

enum { MANY = 12, CHOICES = 3, LENGTH = 70 };

/* ---- the device's table, looked at ---- */

static struct backend watched;
static const struct backend *whole;
static _Atomic bool held;                  /* between hold and hold_end */
static _Atomic uint32_t holds, wents, runs, drops, wrong;
static _Atomic int64_t fail_held, fail_op; /* waits, ops while a step is held that pass before one fails; negative: all */

static bool due(_Atomic int64_t *left)
{
    return *left >= 0 && (*left)-- == 0;
}

static void hold(struct device *d)
{
    wrong += held;
    held = true;
    holds++;
    whole->hold(d);
}

/* Every third time it is too late: nobody is asked, and the engine's thread decides. */
static void hold_ask(struct device *d, bool (*ask)(void *ctx), void *ctx)
{
    if (holds % 3)
        whole->hold_ask(d, ask, ctx);
}

static bool hold_went(struct device *d)
{
    bool went = whole->hold_went(d);
    wrong += went && !held;
    held = held && !went;
    wents += went;
    return went;
}

static void hold_end(struct device *d, bool run)
{
    wrong += !held;
    held = false;
    *(run ? &runs : &drops) += 1;
    whole->hold_end(d, run);
}

static int event_wait(struct device *d, uint64_t event, struct err *err)
{
    int rc = whole->event_wait(d, event, err);
    return rc == 0 && held && due(&fail_held) ? err_set(err, ERR_DEVICE, "made up: the device failed") : rc;
}

static int linear(struct device *d, const struct op_linear *op)
{
    return held && due(&fail_op) ? ERR_DEVICE : whole->linear(d, op);
}

static void reopen(const struct engine_config *with)
{
    struct device_head *head = (struct device_head *)(void *)rig.device;
    engine_close(rig.engine);
    if (!whole || head->backend != &watched) {
        whole = head->backend;
        watched = *whole;
        watched.hold = hold;
        watched.hold_ask = hold_ask;
        watched.hold_end = hold_end;
        watched.hold_went = hold_went;
        watched.event_wait = event_wait;
        watched.linear = linear;
        head->backend = &watched;
    }
    fail_held = fail_op = -1;
    holds = wents = runs = drops = wrong = 0;
    held = false;
    rig_engine(&rig, with);
}

/* ---- requests of every kind, submitted together ---- */

struct work {
    struct engine_request_config c[MANY];
    uint32_t prompt[MANY][LENGTH], count[MANY], end[MANY];
    struct str stops[MANY];
    char text[MANY][16];
};

static void make(struct work *w, uint32_t seed, bool reuse)
{
    for (uint32_t i = 0; i < MANY; i++) {
        uint32_t counter[4] = {i, seed, 0, 0}, bits[4];
        rng_philox(31, counter, bits);
        w->c[i] = rig_request(1 + bits[0] % 60, bits[1] % 3 ? 0.9f : 0, seed * MANY + i);
        w->c[i].no_reuse = !reuse;
        w->c[i].n = bits[1] % 11 == 0 ? CHOICES : 1;
        if (bits[2] % 4 == 0)
            rig_logprobs(&w->c[i]);
        if (bits[2] % 31 == 0)
            rig_penalties(&w->c[i], 1.2f, 0.1f, 0, 20);
        w->end[i] = bits[3] % RIG_VOCAB;
        w->c[i].end_ids = &w->end[i];
        w->c[i].end_count = bits[3] % 4 != 0;
        snprintf(w->text[i], sizeof w->text[i], "%u><%u", bits[0] % 10, bits[1] % 10);
        w->stops[i] = (struct str){w->text[i], strlen(w->text[i])};
        w->c[i].stops = &w->stops[i];
        w->c[i].stop_count = bits[3] / 2 % 2;
        w->count[i] = 1 + bits[2] % LENGTH;
        rig_prompt(seed * 5 + i % 5, w->prompt[i], w->count[i]);
    }
}

/* `most` of them at a time; what they gave, and the figures afterwards. */
static void run_all(struct work *w, struct engine_gate *gate, struct rig_result (*out)[CHOICES], struct engine_stats *stats)
{
    struct engine_request *q[MANY];
    engine_gate_enter(gate);
    for (uint32_t i = 0; i < MANY; i++)
        q[i] = rig_submit(&rig, &w->c[i], w->prompt[i], w->count[i]);
    engine_gate_leave(gate);
    for (uint32_t i = 0; i < MANY; i++)
        rig_finish(q[i], w->c[i].n, out[i]);
    rig_settle(stats);
}

static void compare(const struct work *w, struct rig_result (*a)[CHOICES], struct rig_result (*b)[CHOICES])
{
    for (uint32_t i = 0; i < MANY; i++)
        for (uint32_t k = 0; k < w->c[i].n; k++)
            rig_assert_equal(&a[i][k], &b[i][k]);
}

static struct work work;
static struct rig_result plain[MANY][CHOICES], again[MANY][CHOICES];

/* Steps are as many rows in all: none is computed that nobody wants.  Pages are those of an engine that never holds. */
static void it_is_what_would_have_been_planned(void **state)
{
    struct engine_gate gate;
    struct engine_stats off, on;
    uint64_t went = 0, run = 0, dropped = 0;
    (void)state;
    engine_gate_init(&gate);
    for (uint32_t seed = 0; seed < 6; seed++) {
        struct engine_config cfg = {.gate = &gate, .running_max = 3 + seed % 3 * 4, .hold_off = true};
        make(&work, seed, false);
        reopen(&cfg);
        run_all(&work, &gate, plain, &off);
        assert_int_equal(holds, 0);
        cfg.hold_off = false;
        reopen(&cfg);
        run_all(&work, &gate, again, &on);
        compare(&work, plain, again);
        assert_int_equal(on.rows, off.rows);
        assert_int_equal(on.kv.pages_live + on.kv.pages_cached, off.kv.pages_live + off.kv.pages_cached);
        assert_int_equal(on.kv.free_bytes, off.kv.free_bytes);
        assert_int_equal(wrong, 0);
        assert_int_equal(wents, on.held_went);
        assert_int_equal(runs, on.held_run);
        assert_int_equal(drops, on.held_dropped);
        assert_int_equal(holds, wents + runs + drops);
        went += on.held_went;
        run += on.held_run;
        dropped += on.held_dropped;
    }
    print_message("held steps: %llu went, %llu were run, %llu dropped\n", (unsigned long long)went, (unsigned long long)run, (unsigned long long)dropped);
    assert_true(went > 50 && run > 25 && dropped > 0);
    engine_close(rig.engine);
    rig.engine = NULL;
    engine_gate_free(&gate);
}

/* With known prefixes, little room (eviction, pre-emption), and sequences that are pre-empted on purpose. */
static void pressure_changes_nothing(void **state)
{
    struct engine_gate gate;
    struct engine_stats off, on;
    uint64_t run = 0, preempted = 0;
    (void)state;
    engine_gate_init(&gate);
    for (uint32_t seed = 0; seed < 4; seed++) {
        struct engine_config cfg = {.gate = &gate, .state_bytes = 2u << 20, .preempt_at = seed % 2 ? 9 : 0, .hold_off = true};
        make(&work, 100 + seed, true);
        reopen(&cfg);
        run_all(&work, &gate, plain, &off);
        cfg.hold_off = false;
        reopen(&cfg);
        run_all(&work, &gate, again, &on);
        compare(&work, plain, again);
        assert_int_equal(on.kv.pages_live, 0);
        assert_int_equal(wrong, 0);
        assert_int_equal(on.check_failures, 0);
        run += on.held_went + on.held_run;
        preempted += on.preempted;
    }
    assert_true(run > 50 && preempted > 0);
    engine_close(rig.engine);
    rig.engine = NULL;
    engine_gate_free(&gate);
}

/* ---- faults while a step is held ---- */

/* The step that runs fails: those in it fail, nothing that was held is ever run.  Or the held one cannot be enqueued: nobody fails, it is
 * planned anew. */
static void a_fault_meanwhile_fails_whom_it_would_without(void **state)
{
    struct engine_request *q[3];
    static struct rig_result one[3], r[3];
    uint32_t prompt[60];
    (void)state;
    reopen(&(struct engine_config){.running_max = 2});
    for (uint32_t how = 0; how < 2; how++)
        for (int64_t after = 0; after < 24; after += 5) {
            struct engine_request_config c = rig_request(20, 0, 0);
            for (uint32_t i = 0; i < 3; i++) {
                rig_prompt(60 + i, prompt, 60);
                rig_run(&rig, &c, prompt, 60, &one[i]);
            }
            for (uint32_t i = 0; i < 3; i++) {
                rig_prompt(60 + i, prompt, 60);
                q[i] = rig_submit(&rig, &c, prompt, 60);
            }
            *(how ? &fail_op : &fail_held) = after;
            uint32_t failed = 0;
            for (uint32_t i = 0; i < 3; i++) {
                rig_finish(q[i], 1, &r[i]);
                failed += r[i].outcome.finish == ENGINE_ERROR;
                if (r[i].outcome.finish != ENGINE_ERROR)
                    rig_assert_equal(&one[i], &r[i]);
                else
                    assert_memory_equal(r[i].ids, one[i].ids, r[i].count * sizeof *r[i].ids);
            }
            assert_in_range(failed, how ? 0 : 1, how ? 0 : 2);
            assert_true(fail_held < 0 && fail_op < 0);
            fail_held = fail_op = -1;
        }
    assert_int_equal(wrong, 0);
}

/* ---- others on the same device ---- */

static _Atomic bool stop;
static uint32_t entered;

/* Whoever has the gate finds nothing held.  It is wanted again once something was. */
static void *intrude(void *arg)
{
    struct engine_gate *gate = arg;
    while (!stop) {
        engine_gate_enter(gate);
        wrong += held;
        entered++;
        engine_gate_leave(gate);
        uint32_t seen = holds;
        for (int i = 0; i < 10000 && holds == seen && !stop; i++)
            rig_sleep_us(500);
    }
    return NULL;
}

static void nothing_is_held_while_others_have_the_gate(void **state)
{
    struct engine_gate gate;
    struct engine_stats stats;
    struct engine *first, *second;
    pthread_t thread;
    (void)state;
    engine_gate_init(&gate);
    make(&work, 200, false);
    reopen(&(struct engine_config){.gate = &gate, .hold_off = true});
    run_all(&work, &gate, plain, &stats);
    reopen(&(struct engine_config){.gate = &gate});
    first = rig.engine;
    rig_engine(&rig, &(struct engine_config){.gate = &gate}); /* its steps and the first one's are of one device and model */
    second = rig.engine;
    stop = false;
    assert_int_equal(pthread_create(&thread, NULL, intrude, &gate), 0);
    struct engine_request *q[2][MANY];
    for (uint32_t engines = 1; engines <= 2; engines++) { /* the first one alone: it holds, and drops what it holds; then both */
        for (uint32_t e = 0; e < engines; e++) {
            rig.engine = e ? second : first;
            for (uint32_t i = 0; i < MANY; i++)
                q[e][i] = rig_submit(&rig, &work.c[i], work.prompt[i], work.count[i]);
        }
        for (uint32_t e = 0; e < engines; e++) {
            for (uint32_t i = 0; i < MANY; i++)
                rig_finish(q[e][i], work.c[i].n, again[i]);
            compare(&work, plain, again);
        }
    }
    stop = true;
    pthread_join(thread, NULL);
    engine_close(first);
    engine_close(second);
    rig.engine = NULL;
    engine_gate_free(&gate);
    print_message("the gate was had %u times; %u steps held, %u of them run\n", entered, holds, wents + runs);
    assert_int_equal(wrong, 0);
    assert_true(entered > 0 && holds > 0);
}

/* ---- ends that nobody foresees ---- */

/* Closed, or cancelled, while a step is held: it never runs, and the cancel is seen within one step. */
static void cancel_and_close_drop_it(void **state)
{
    static struct rig_result r[MANY];
    struct engine_request *q[MANY];
    struct engine_stats stats;
    uint32_t prompt[20];
    (void)state;
    for (uint32_t round = 0; round < 12; round++) {
        reopen(&(struct engine_config){.running_max = MANY});
        struct engine_request_config c = rig_request(-1, 0.5f, round);
        c.ring = 1024;
        for (uint32_t i = 0; i < MANY; i++) {
            rig_prompt(i, prompt, 20);
            q[i] = rig_submit(&rig, &c, prompt, 20);
        }
        while (wents + runs < 3 + round)
            rig_sleep_us(100);
        for (uint32_t i = 0; i < MANY && round % 2; i++)
            engine_request_cancel(q[i]);
        if (round % 2) {
            rig_settle(&stats);
            assert_true(stats.cancel_steps_max <= 1);
            assert_int_equal(stats.kv.live_bytes, 0);
        }
        engine_close(rig.engine);
        rig.engine = NULL;
        assert_false(held);
        assert_int_equal(holds, wents + runs + drops);
        for (uint32_t i = 0; i < MANY; i++) {
            rig_finish(q[i], 1, &r[i]);
            assert_int_equal(r[i].outcome.finish, ENGINE_CANCELLED);
        }
        rig_engine(&rig, &(struct engine_config){0});
    }
    assert_int_equal(wrong, 0);
}

/* A request that comes meanwhile is planned with: the step that was held goes. */
static void who_comes_is_in_the_next_step(void **state)
{
    static struct rig_result r, other;
    uint32_t prompt[20];
    (void)state;
    reopen(&(struct engine_config){.running_max = 4});
    for (uint32_t i = 0; i < 6; i++) {
        struct engine_request_config c = rig_request(400, 0.5f, i), one = rig_request(1, 0, 0);
        c.ring = 1024;
        rig_prompt(i, prompt, 20);
        struct engine_request *q = rig_submit(&rig, &c, prompt, 20);
        uint32_t seen = wents + runs;
        while (wents + runs < seen + 3)
            rig_sleep_us(50);
        rig_run(&rig, &one, prompt, 3, &other);
        engine_request_cancel(q);
        rig_finish(q, 1, &r);
        assert_int_equal(other.outcome.finish, ENGINE_LENGTH);
    }
    assert_int_equal(wrong, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        RIG_TEST(it_is_what_would_have_been_planned),
        RIG_TEST(pressure_changes_nothing),
        RIG_TEST(a_fault_meanwhile_fails_whom_it_would_without),
        RIG_TEST(nothing_is_held_while_others_have_the_gate),
        RIG_TEST(cancel_and_close_drop_it),
        RIG_TEST(who_comes_is_in_the_next_step),
    };
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    backend_name = "cpu";
    return failed + cmocka_run_group_tests(tests, NULL, NULL);
}
