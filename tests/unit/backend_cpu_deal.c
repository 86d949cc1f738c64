/* Work that workers take from each other: every item once, whoever comes late, and never past a lot's end. */
#include "backend_cpu/cpu_deal.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <cmocka.h>

enum { ITEMS = 4096, LOTS = 4 };

static _Atomic uint32_t taken[LOTS][ITEMS];
static _Atomic uint32_t takes, others; /* and of those by a worker whose run it was not */

struct deal_op {
    struct cpu_lot lots[LOTS];
    uint32_t n, most, late; /* the worker that begins late; past the last: none */
};

static void deal_run(struct device *d, uint32_t me, uint32_t count, const void *arg)
{
    const struct deal_op *op = arg;
    struct cpu_deal deal;
    struct cpu_take take, first;
    if (me == op->late)
        nanosleep(&(struct timespec){0, 300000}, NULL);
    bool some = cpu_deal_own(op->lots, op->n, me, count, 0, &first), began = false;
    cpu_deal_start(&deal, d, op->lots, op->n, op->most, me, count);
    while (cpu_deal_next(&deal, &take)) {
        takes++;
        if (deal.from_whom != me)
            others++;
        else if (!began && some && op->late == count && count == 1 && (take.lot != first.lot || take.from != first.from))
            cpu_fail(d, ERR_INTERNAL, "a run does not begin where it was said to");
        began = true;
        if (take.lot >= op->n || take.from >= take.to || take.to > op->lots[take.lot].items || take.to - take.from > op->most)
            cpu_fail(d, ERR_INTERNAL, "a take that no lot has");
        else
            for (uint32_t i = take.from; i < take.to; i++)
                taken[take.lot][i]++;
    }
}

static void deals(uint32_t threads, uint32_t rounds)
{
    struct device_config cfg = {.n_threads = threads};
    struct device *d;
    struct err err = {0};
    uint32_t seed = 1 + threads;
    assert_int_equal(backend_cpu.device_open(&cfg, &d, &err), 0);
    for (uint32_t r = 0; r < rounds; r++) {
        struct deal_op op = {.n = 1 + r % LOTS, .most = 1 + r % 9, .late = r % (threads + 1)};
        uint64_t event;
        for (uint32_t i = 0; i < op.n; i++) {
            seed = seed * 1664525 + 1013904223;
            op.lots[i] = (struct cpu_lot){(seed >> 8) % (r % 5 ? 40 : ITEMS), 1 + (seed >> 20) % 700};
        }
        memset(taken, 0, sizeof taken);
        assert_int_equal(cpu_enqueue(d, deal_run, &op, sizeof op), 0);
        assert_int_equal(backend_cpu.event_record(d, &event), 0);
        if (backend_cpu.event_wait(d, event, &err))
            fail_msg("%s", err.text);
        for (uint32_t i = 0; i < LOTS; i++)
            for (uint32_t k = 0; k < ITEMS; k++)
                if (taken[i][k] != (i < op.n && k < op.lots[i].items))
                    fail_msg("%u threads, round %u: item %u of lot %u was taken %u times", threads, r, k, i, taken[i][k]);
    }
    backend_cpu.device_close(d);
}

static void test_every_item_once(void **state)
{
    (void)state;
    static const uint32_t threads[] = {1, 2, 3, 7};
    for (size_t i = 0; i < sizeof threads / sizeof threads[0]; i++) {
        takes = others = 0;
        deals(threads[i], 300);
        print_message("%u threads: %u takes, %u of others' runs\n", threads[i], takes, others);
        if (threads[i] > 1)
            assert_true(others > 0);
    }
}

/* The runs of all workers, stretch by stretch, are all items. */
static void test_runs_cover(void **state)
{
    (void)state;
    uint32_t seed = 3;
    for (uint32_t r = 0; r < 2000; r++) {
        struct cpu_lot lots[LOTS];
        struct cpu_take own;
        uint32_t n = 1 + r % LOTS, count = 1 + r % 9, all = 0, sum = 0;
        for (uint32_t i = 0; i < n; i++) {
            seed = seed * 1664525 + 1013904223;
            lots[i] = (struct cpu_lot){(seed >> 8) % 30, 1 + (seed >> 20) % 700};
            all += lots[i].items;
        }
        memset(taken, 0, sizeof taken);
        for (uint32_t me = 0; me < count; me++)
            for (uint32_t i = 0; cpu_deal_own(lots, n, me, count, i, &own); i++)
                for (uint32_t k = own.from; k < own.to; k++, sum++)
                    assert_int_equal(taken[own.lot][k]++, 0);
        assert_int_equal(sum, all);
    }
}

/* More rounds than a round has numbers. */
static void test_rounds_wrap(void **state)
{
    (void)state;
    struct device_config cfg = {.n_threads = 2};
    struct device *d;
    struct err err = {0};
    uint64_t event;
    assert_int_equal(backend_cpu.device_open(&cfg, &d, &err), 0);
    struct deal_op op = {.lots = {{3, 1}}, .n = 1, .most = 1, .late = 2};
    memset(taken, 0, sizeof taken);
    for (uint32_t r = 0; r < 70000; r++)
        assert_int_equal(cpu_enqueue(d, deal_run, &op, sizeof op), 0);
    assert_int_equal(backend_cpu.event_record(d, &event), 0);
    assert_int_equal(backend_cpu.event_wait(d, event, &err), 0);
    for (uint32_t k = 0; k < 3; k++)
        assert_int_equal(taken[0][k], 70000);
    backend_cpu.device_close(d);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_every_item_once), cmocka_unit_test(test_runs_cover),
                                       cmocka_unit_test(test_rounds_wrap)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
