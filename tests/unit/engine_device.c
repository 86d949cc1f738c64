/* Faults of the device: a forward that cannot be enqueued, or fails while it runs, fails the sequences in it and no other; what it may have
 * touched is never reused; the engine goes on. */
#include "engine_rig.h"

#include <time.h>

/* the device's table with two calls of ours */
static struct backend faulty;
static const struct backend *whole;
static _Atomic bool held; /* the device does not come to the end of a step */
static _Atomic int64_t waits_left, ops_left; /* calls that pass; negative: all */

static bool due(_Atomic int64_t *left)
{
    if (*left < 0)
        return false;
    return (*left)-- == 0;
}

static int event_wait(struct device *d, uint64_t event, struct err *err)
{
    struct timespec t = {0, 1000000};
    while (held)
        nanosleep(&t, NULL);
    int rc = whole->event_wait(d, event, err);
    return rc == 0 && due(&waits_left) ? err_set(err, ERR_DEVICE, "made up: the device failed") : rc;
}

static int linear(struct device *d, const struct op_linear *op)
{
    return due(&ops_left) ? ERR_DEVICE : whole->linear(d, op);
}

static int setup(void **state)
{
    (void)state;
    waits_left = ops_left = -1;
    rig_open(&rig, &(struct engine_config){.running_max = 2});
    struct device_head *head = (struct device_head *)(void *)rig.device;
    whole = head->backend;
    faulty = *whole;
    faulty.event_wait = event_wait;
    faulty.linear = linear;
    engine_close(rig.engine); /* nobody else looks at the table meanwhile */
    head->backend = &faulty;
    rig_engine(&rig, &(struct engine_config){.running_max = 2});
    return 0;
}

static struct engine_request *start(uint32_t seed, bool reuse)
{
    uint32_t prompt[60];
    struct engine_request_config c = rig_request(20, 0, 0);
    c.no_reuse = !reuse;
    rig_prompt(seed, prompt, 60);
    return rig_submit(&rig, &c, prompt, 60);
}

/* Two run and one waits when the fault comes. */
static void only_the_sequences_in_a_failed_step_fail(void **state)
{
    static struct rig_result plain[3], r[3];
    (void)state;
    for (uint32_t i = 0; i < 3; i++)
        rig_finish(start(60 + i, false), 1, &plain[i]);
    for (int how = 0; how < 2; how++) {
        for (int64_t after = 0; after < 20; after += how ? 7 : 3) {
            struct engine_request *q[3];
            struct engine_stats stats;
            for (uint32_t i = 0; i < 3; i++)
                q[i] = start(60 + i, true);
            *(how ? &ops_left : &waits_left) = after;
            uint32_t failed = 0;
            for (uint32_t i = 0; i < 3; i++) {
                rig_finish(q[i], 1, &r[i]);
                if (r[i].outcome.finish == ENGINE_ERROR) {
                    assert_int_equal(r[i].outcome.err.code, ERR_DEVICE);
                    failed++;
                    assert_true(r[i].count <= plain[i].count);
                    assert_memory_equal(r[i].ids, plain[i].ids, r[i].count * sizeof *r[i].ids);
                } else {
                    rig_assert_same(&plain[i], &r[i]);
                }
            }
            waits_left = ops_left = -1;
            print_message("%s, after %lld calls: %u failed\n", how ? "enqueuing" : "running", (long long)after, failed);
            assert_in_range(failed, 0, rig_steps > 1 ? 3 : 2);
            for (uint32_t i = 0; i < 3; i++) { /* what is known now serves the same bytes */
                rig_finish(start(60 + i, true), 1, &r[i]);
                rig_assert_same(&plain[i], &r[i]);
            }
            engine_stats(rig.engine, &stats);
            assert_int_equal(stats.check_failures, 0);
        }
    }
}

/* The first step fails: nothing of that prompt is known afterwards. */
static void a_failed_step_leaves_nothing_to_reuse(void **state)
{
    static struct rig_result r;
    (void)state;
    waits_left = 0;
    rig_finish(start(70, true), 1, &r);
    assert_int_equal(r.outcome.finish, ENGINE_ERROR);
    assert_int_equal(r.count, 0);
    rig_finish(start(70, true), 1, &r);
    assert_int_equal(r.outcome.finish, ENGINE_LENGTH);
    assert_int_equal(r.outcome.cached_count, 0);
}

/* A draft model's forward fails, when it is enqueued or while it runs: that sequence guesses no more, and goes on as it would plainly. */
static void a_draft_that_fails_only_stops_guessing(void **state)
{
    static struct rig_result plain, r;
    struct model *draft;
    struct err err = {0};
    struct model_options opt = {.rows_max = 32, .k_format = KV_F16, .v_format = KV_F16};
    uint32_t prompt[60], lived = 0, failed = 0;
    (void)state;
    if (model_open(rig.dir, rig.device, &opt, &draft, &err))
        fail_msg("draft: %s", err.text);
    rig_reopen(&(struct engine_config){.draft = draft, .draft_state_bytes = 16u << 20});
    rig_prompt(90, prompt, 60);
    struct engine_request_config c = rig_request(12, 0.7f, 3);
    rig_run(&rig, &c, prompt, 60, &plain);
    c.propose = ENGINE_PROPOSE_DRAFT;
    c.propose_depth = 3;
    for (int how = 0; how < 2; how++) {
        _Atomic int64_t *left = how ? &ops_left : &waits_left;
        for (int64_t after = 0;; after += how ? 11 : 1) {
            *left = after;
            rig_run(&rig, &c, prompt, 60, &r);
            bool hit = *left < 0;
            *left = -1;
            if (!hit) /* it ended before so many calls */
                break;
            if (r.outcome.finish == ENGINE_ERROR) {
                assert_int_equal(r.outcome.err.code, ERR_DEVICE);
                failed++;
            } else {
                rig_assert_same(&plain, &r);
                lived++;
            }
            rig_run(&rig, &c, prompt, 60, &r); /* what is known of both now serves the same bytes */
            rig_assert_same(&plain, &r);
            assert_int_equal(r.outcome.speculation.drafted, r.outcome.speculation.accepted);
        }
    }
    print_message("%u times the draft failed, %u times the model\n", lived, failed);
    assert_true(lived > 3 && failed > 3);
    engine_close(rig.engine);
    rig.engine = NULL;
    model_close(draft);
}

/* What health is told by. */
static void a_failed_and_a_standing_device_are_told(void **state)
{
    static struct rig_result r;
    struct engine_stats stats;
    struct timespec t = {0, 1000000};
    (void)state;
    rig_finish(start(80, false), 1, &r);
    engine_stats(rig.engine, &stats);
    assert_false(stats.device_failed);
    waits_left = 0;
    rig_finish(start(81, false), 1, &r);
    do /* the last event comes before the turn's figures */
        engine_stats(rig.engine, &stats);
    while (!stats.failed_steps);
    assert_true(stats.device_failed);
    waits_left = -1;
    rig_finish(start(82, false), 1, &r);
    do
        engine_stats(rig.engine, &stats);
    while (stats.running);
    assert_false(stats.device_failed);
    held = true;
    struct engine_request *q = start(83, false);
    while (engine_stalled_ns(rig.engine) < 50000000)
        nanosleep(&t, NULL);
    held = false;
    rig_finish(q, 1, &r);
    while (engine_stalled_ns(rig.engine))
        nanosleep(&t, NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(a_failed_and_a_standing_device_are_told, setup, rig_teardown),
        cmocka_unit_test_setup_teardown(only_the_sequences_in_a_failed_step_fail, setup, rig_teardown),
        cmocka_unit_test_setup_teardown(a_failed_step_leaves_nothing_to_reuse, setup, rig_teardown),
        cmocka_unit_test_setup_teardown(a_draft_that_fails_only_stops_guessing, setup, rig_teardown),
    };
    return rig_run_group(tests);
}
