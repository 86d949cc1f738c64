/* Health: red within seconds when nothing moves, red at once when the device failed, green while a long step goes on. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "server/health.h"

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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_stall_is_seen_within_seconds),
        cmocka_unit_test(a_long_step_is_no_stall),
        cmocka_unit_test(a_failed_device_is_red_until_a_step_ends_well),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
