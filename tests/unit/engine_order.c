/* Who is admitted and served first: priorities, sessions, order of arrival; what sessions and tenants share of known prompts. */
#include "engine_rig.h"

enum { LONG = 400, MANY = 6 };

static struct engine_request *start(uint32_t seed, uint32_t count, const char *session, int32_t priority, uint32_t n)
{
    uint32_t prompt[LONG];
    struct engine_request_config c = {.max_tokens = 8, .sampling = rig_greedy(), .no_reuse = true, .n = n, .priority = priority,
                                      .session = str_of(session)};
    rig_prompt(seed, prompt, count);
    return rig_submit(&rig, &c, prompt, count);
}

/* Something that holds the only place while the others are submitted: it stops when its ring is full. */
static struct engine_request *blocker(uint32_t count)
{
    uint32_t prompt[LONG];
    struct engine_request_config c = {.max_tokens = 100, .sampling = rig_greedy(), .no_reuse = true, .ring = 8};
    rig_prompt(1, prompt, count);
    struct engine_request *q = rig_submit(&rig, &c, prompt, count);
    while (engine_request_seen(q) == 0)
        engine_request_wait(q, 0, -1);
    return q;
}

static void unblock(struct engine_request *q)
{
    static struct rig_result r;
    engine_request_cancel(q);
    rig_finish(q, 1, &r);
}

static void admitted(struct engine_request **q, uint32_t count, int64_t *at)
{
    static struct rig_result r[2];
    for (uint32_t i = 0; i < count; i++) {
        rig_finish(q[i], 1, r);
        assert_int_equal(r[0].outcome.finish, ENGINE_LENGTH);
        at[i] = r[0].outcome.admitted_ns;
    }
}

static void the_highest_priority_first_then_arrival(void **state)
{
    static const int32_t priority[MANY] = {0, -5, 7, 0, 7, 2};
    static const uint32_t order[MANY] = {2, 4, 5, 0, 3, 1};
    struct engine_request *q[MANY], *hold;
    int64_t at[MANY];
    (void)state;
    rig_reopen(&(struct engine_config){.running_max = 1});
    hold = blocker(20);
    for (uint32_t i = 0; i < MANY; i++)
        q[i] = start(10 + i, 20, "", priority[i], 1);
    unblock(hold);
    admitted(q, MANY, at);
    for (uint32_t i = 1; i < MANY; i++)
        assert_true(at[order[i - 1]] < at[order[i]]);
}

/* Two places: five requests of one session, then one each of two others. */
static void places_are_shared_by_sessions(void **state)
{
    static const char *const session[] = {"a", "a", "a", "a", "a", "b", "c"};
    struct engine_request *q[7], *hold;
    int64_t at[7];
    (void)state;
    rig_reopen(&(struct engine_config){.running_max = 2});
    hold = blocker(20);
    for (uint32_t i = 0; i < 7; i++)
        q[i] = start(20 + i, 20 + i, session[i], 0, 1);
    unblock(hold);
    admitted(q, 7, at);
    assert_true(at[0] < at[5] && at[5] < at[1]); /* the first of a beside the blocker, then b and c before a's second */
    assert_true(at[6] < at[2]);
    for (uint32_t i = 1; i < 5; i++)
        assert_true(at[i - 1] < at[i]);
}

/* Long prompts: three of one session, then a short one of another.  It does not wait for them. */
static void prompt_rows_are_shared_by_sessions(void **state)
{
    static struct rig_result r[4];
    struct engine_request *q[4];
    struct engine_gate gate; /* while we hold it the engine plans nothing */
    (void)state;
    engine_gate_init(&gate);
    rig_reopen(&(struct engine_config){.running_max = 8, .rows_max = 16, .gate = &gate});
    engine_gate_enter(&gate);
    for (uint32_t i = 0; i < 3; i++)
        q[i] = start(30 + i, 160, "a", 0, 1);
    q[3] = start(33, 40, "b", 0, 1);
    engine_gate_leave(&gate);
    for (uint32_t i = 4; i-- > 0;)
        rig_finish(q[i], 1, &r[i]);
    engine_close(rig.engine);
    rig.engine = NULL;
    engine_gate_free(&gate);
    assert_true(r[3].outcome.first_ns < r[0].outcome.first_ns);
    assert_true(r[0].outcome.first_ns < r[1].outcome.first_ns && r[1].outcome.first_ns < r[2].outcome.first_ns);
}

static void sessions_share_known_prompts_and_tenants_do_not(void **state)
{
    static struct rig_result r;
    uint32_t prompt[100];
    (void)state;
    rig_reopen(&(struct engine_config){0});
    rig_prompt(40, prompt, 100);
    struct engine_request_config c = {.max_tokens = 4, .sampling = rig_greedy(), .session = STR("a"), .tenant = STR("t")};
    rig_run(&rig, &c, prompt, 100, &r);
    assert_int_equal(r.outcome.cached_count, 0);
    c.session = STR("b");
    rig_run(&rig, &c, prompt, 100, &r);
    assert_int_equal(r.outcome.cached_count, 99);
    c.tenant = STR("u");
    rig_run(&rig, &c, prompt, 100, &r);
    assert_int_equal(r.outcome.cached_count, 0);
    assert_int_equal(r.outcome.cache.miss, KV_MISS_KEY);
    c.tenant = STR("t");
    c.media.lo = 7; /* the same ids stand for something else */
    rig_run(&rig, &c, prompt, 100, &r);
    assert_int_equal(r.outcome.cached_count, 0);
    assert_int_equal(r.outcome.cache.miss, KV_MISS_KEY);
}

/* More prompts than the state holds: what a session ended with last goes after what nobody's session did, older as it is. */
static void the_last_entry_of_a_session_is_kept_longest(void **state)
{
    static struct rig_result r;
    uint32_t prompt[100];
    (void)state;
    rig_reopen(&(struct engine_config){.state_bytes = 2u << 20}); /* 512 positions */
    for (uint32_t i = 0; i < 6; i++) {
        struct engine_request_config c = {.max_tokens = 4, .sampling = rig_greedy(), .session = i == 1 ? STR("a") : STR("")};
        rig_prompt(60 + i, prompt, 100);
        rig_run(&rig, &c, prompt, 100, &r);
        assert_int_equal(r.outcome.cached_count, 0);
    }
    struct engine_request_config c = {.max_tokens = 1, .sampling = rig_greedy()};
    for (uint32_t i = 1; i <= 2; i++) {
        rig_prompt(60 + i, prompt, 100);
        rig_run(&rig, &c, prompt, 100, &r);
        print_message("prompt %u: %u known, %s\n", i, r.outcome.cached_count, r.outcome.cache.miss == KV_MISS_EVICTED ? "evicted" : "kept");
        assert_true(i == 1 ? r.outcome.cached_count == 99 : r.outcome.cached_count < 99 && r.outcome.cache.miss == KV_MISS_EVICTED);
    }
}

/* Nor does it keep others from their pages: it gives its own up, and computes them anew when it reads on. */
static void a_consumer_that_stops_keeps_no_room(void **state)
{
    static struct rig_result plain, r;
    struct engine_stats stats;
    (void)state;
    rig_reopen(&(struct engine_config){.state_bytes = 2u << 20, .running_max = 4}); /* one sequence of 400 positions */
    rig_finish(start(50, LONG, "x", 0, 1), 1, &plain);
    struct engine_request *stopped = blocker(250);
    for (int i = 0; i < 3; i++) {
        rig_finish(start(50, LONG, "x", 0, 1), 1, &r);
        rig_assert_equal(&plain, &r);
    }
    rig_finish(stopped, 1, &r);
    assert_int_equal(r.count, 100);
    engine_stats(rig.engine, &stats);
    assert_true(stats.preempted > 0);
}

/* Who cannot come in beside those that run, whatever is given up for it, costs nobody what is known. */
static void who_has_to_wait_drives_nothing_out(void **state)
{
    enum { KNOWN = 100, MORE = 60, BIG = LONG };
    static struct rig_result r;
    struct engine_stats stats;
    struct engine_event e;
    uint32_t prompt[LONG];
    struct engine_gate gate; /* ours between two of the engine's turns */
    (void)state;
    engine_gate_init(&gate);
    rig_reopen(&(struct engine_config){.state_bytes = 2u << 20, .gate = &gate}); /* 512 positions */
    struct engine_request_config c = {.max_tokens = 1, .sampling = rig_greedy()};
    rig_prompt(70, prompt, KNOWN);
    rig_run(&rig, &c, prompt, KNOWN, &r);
    c.max_tokens = 300;
    c.ring = 512;
    rig_prompt(71, prompt, MORE);
    struct engine_request *runs = rig_submit(&rig, &c, prompt, MORE);
    struct engine_request *waits = NULL;
    bool looked = false, ended = false;
    while (!looked && !ended) {
        engine_gate_enter(&gate);
        engine_stats(rig.engine, &stats);
        if (!waits && engine_poll(runs, &e))
            waits = start(72, BIG, "", 0, 1);
        looked = waits && stats.waiting == 1 && stats.running == 1;
        ended = waits && stats.waiting + stats.running == 0; /* it had far to go, and time for it */
        if (looked) {
            engine_request_cancel(waits);
            engine_request_cancel(runs);
        }
        engine_gate_leave(&gate);
    }
    assert_true(looked);
    rig_finish(waits, 1, &r);
    assert_int_equal(r.outcome.finish, ENGINE_CANCELLED);
    rig_finish(runs, 1, &r);
    c.max_tokens = 1;
    rig_prompt(70, prompt, KNOWN);
    rig_run(&rig, &c, prompt, KNOWN, &r);
    assert_int_equal(r.outcome.cached_count, KNOWN - 1);
    engine_close(rig.engine);
    rig.engine = NULL;
    engine_gate_free(&gate);
}

/* A consumer that stops reading, or is gone, ends or holds its own sequence only. */
static void a_consumer_that_stops_disturbs_nobody(void **state)
{
    static struct rig_result plain, r;
    (void)state;
    rig_reopen(&(struct engine_config){.running_max = 4});
    rig_finish(start(50, 60, "x", 0, 1), 1, &plain);
    struct engine_request *stopped = blocker(20), *gone = start(51, 60, "y", 0, 1);
    engine_request_cancel(gone);
    engine_request_release(gone);
    for (int i = 0; i < 3; i++) {
        rig_finish(start(50, 60, "x", 0, 1), 1, &r);
        rig_assert_equal(&plain, &r);
    }
    rig_finish(stopped, 1, &r); /* reads on: nothing was lost */
    assert_int_equal(r.outcome.finish, ENGINE_LENGTH);
    assert_int_equal(r.count, 100);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        RIG_TEST(the_highest_priority_first_then_arrival),
        RIG_TEST(places_are_shared_by_sessions),
        RIG_TEST(prompt_rows_are_shared_by_sessions),
        RIG_TEST(sessions_share_known_prompts_and_tenants_do_not),
        RIG_TEST(the_last_entry_of_a_session_is_kept_longest),
        RIG_TEST(who_has_to_wait_drives_nothing_out),
        RIG_TEST(a_consumer_that_stops_disturbs_nobody),
        RIG_TEST(a_consumer_that_stops_keeps_no_room),
    };
    return rig_run_group(tests);
}
