/* Health: red within seconds when nothing moves, red at once when the device failed, green while a long step goes on; volatile parts of prompts. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "server/health.h"
#include "server/volatile.h"

static void a_stall_is_seen_within_seconds(void **state)
{
    struct health h = {0};
    struct rh_stats t = {.steps = 10, .device_progress = 5};
    uint64_t now = 1000;
    (void)state;
    for (; now < 60000; now += 250) { /* at rest */
        health_note(&h, &t, now);
        assert_int_equal(h.state, HEALTH_WELL);
    }
    uint64_t began = now;
    while (h.state == HEALTH_WELL) { /* works, and nothing moves */
        t.stalled_ms = (double)(now - began) + 1;
        health_note(&h, &t, now);
        now += 250;
        assert_true(now - began < 10000);
    }
    assert_int_equal(h.state, HEALTH_STALLED);
    assert_true(now - began <= HEALTH_STALL_MS + 1000);
    t.device_progress++;
    health_note(&h, &t, now);
    assert_int_equal(h.state, HEALTH_WELL);
}

static void a_long_step_is_no_stall(void **state)
{
    struct health h = {0};
    struct rh_stats t = {.steps = 10, .device_progress = 5};
    (void)state;
    for (uint64_t now = 1000; now < 600000; now += 250) {
        t.stalled_ms = (double)now;
        t.device_progress += now % 3000 == 0;
        health_note(&h, &t, now);
        assert_int_equal(h.state, HEALTH_WELL);
    }
}

static void a_failed_device_is_red_until_a_step_ends_well(void **state)
{
    struct health h = {0};
    struct rh_stats t = {.steps = 10};
    (void)state;
    health_note(&h, &t, 1000);
    t.device_failed = true;
    health_note(&h, &t, 1250);
    assert_int_equal(h.state, HEALTH_DEVICE);
    assert_string_equal(health_text(&h), "the device failed");
    t.device_failed = false;
    health_note(&h, &t, 1500);
    assert_int_equal(h.state, HEALTH_WELL);
}

static void check(const char *in, const char *out, unsigned what)
{
    struct buf b = {0};
    unsigned got = 0;
    volatile_put(&b, str_of(in), &got);
    assert_string_equal(buf_cstr(&b), out);
    assert_int_equal(got, what);
    buf_free(&b);
}

static void volatile_parts_are_left_away(void **state)
{
    (void)state;
    check("You are helpful.\nBe brief.\n", "You are helpful.\nBe brief.\n", 0);
    check("", "", 0);
    check("x-anthropic-billing-header: cc_version=2.1.0; cch=00000;\nYou are", "You are", VOLATILE_BILLING);
    check("x-anthropic-billing-header: cc_version=2.1.0; cch=00000;", "", VOLATILE_BILLING);
    check("You\nx-anthropic-billing-header: a", "You\nx-anthropic-billing-header: a", 0);
    check("<env>\nToday's date: 2026-11-30\n</env>", "<env>\nToday's date: 2026-11-30\n</env>", 0);
    check("The current date is 2026-11-30 14:05:09.\nGo", "The current date is 2026-11-30 .\nGo", VOLATILE_TIME);
    check("# Current Time\n- Current time: 2026-11-30T03:04:05.123Z", "# Current Time\n- Current time: 2026-11-30", VOLATILE_TIME);
    check("Current date and time: 11/30/2026, 3:05 PM (UTC+01:00)", "Current date and time: 11/30/2026,  (UTC+01:00)", VOLATILE_TIME);
    check("Current time: 03:04:05+02:00", "Current time: ", VOLATILE_TIME);
    check("Meet at 14:05:09 on 1:2:3", "Meet at 14:05:09 on 1:2:3", 0);
    check("Current time: 123:45 1:234 a:12", "Current time: 123:45 1:234 a:12", 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_stall_is_seen_within_seconds),
        cmocka_unit_test(a_long_step_is_no_stall),
        cmocka_unit_test(a_failed_device_is_red_until_a_step_ends_well),
        cmocka_unit_test(volatile_parts_are_left_away),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
