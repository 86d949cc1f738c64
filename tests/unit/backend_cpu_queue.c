/* The queue of the CPU backend: order, events, barriers, failures, several devices at once, more threads than CPUs. */
#include "backend_cpu/cpu_int.h"

#include "base/mem.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

static struct device *open_threads(uint32_t threads)
{
    struct err err = {0};
    struct device *d;
    struct device_config cfg = {.n_threads = threads};
    if (backend_cpu.device_open(&cfg, &d, &err))
        fail_msg("%s", err.text);
    return d;
}

static uint64_t record(struct device *d)
{
    uint64_t event;
    assert_int_equal(backend_cpu.event_record(d, &event), 0);
    return event;
}

static void wait(struct device *d, uint64_t event)
{
    struct err err = {0};
    if (backend_cpu.event_wait(d, event, &err))
        fail_msg("%s", err.text);
}

/* Each worker adds to its own cell what the op says; the op checks that all workers finished the one before it. */
struct count_op {
    uint64_t *cells; /* [threads] */
    uint64_t expected;
    int barriers;
};

static void count_run(struct device *d, uint32_t me, uint32_t count, const void *arg)
{
    const struct count_op *op = arg;
    for (uint32_t i = 0; i < count; i++)
        if (op->cells[i * 16] != op->expected)
            cpu_fail(d, ERR_INTERNAL, "a worker is not where it should be");
    for (int i = 0; i <= op->barriers; i++)
        cpu_barrier(d, me);
    op->cells[me * 16]++;
    for (int i = 0; i < op->barriers; i++)
        cpu_barrier(d, me);
}

static void stress(uint32_t threads, uint32_t ops, uint32_t step)
{
    struct device *d = open_threads(threads);
    uint64_t *cells = calloc(threads * 16, sizeof *cells), last = 0;
    for (uint32_t i = 0; i < ops; i++) {
        struct count_op op = {cells, i, (int)(i % 3)};
        assert_int_equal(cpu_enqueue(d, count_run, &op, sizeof op), 0);
        if (i % step == step - 1) {
            uint64_t event = record(d);
            assert_true(event > last);
            last = event;
            if (i % (3 * step) == step - 1)
                wait(d, event);
        }
    }
    wait(d, record(d));
    for (uint32_t i = 0; i < threads; i++)
        assert_int_equal(cells[i * 16], ops);
    backend_cpu.device_close(d);
    free(cells);
}

static void many_tiny_ops(void **state)
{
    (void)state;
    stress(1, 20000, 7);
    stress(2, 20000, 1);
    stress(2, 20000, 3000); /* more than the ring holds between two events */
    stress(3, 3000, 5);
    stress(7, 1000, 64);
}

static void several_devices(void **state)
{
    (void)state;
    enum { DEVICES = 4, OPS = 2000, THREADS = 2 };
    struct device *d[DEVICES];
    uint64_t *cells[DEVICES], event[DEVICES];
    for (int i = 0; i < DEVICES; i++) {
        d[i] = open_threads(THREADS);
        cells[i] = calloc(THREADS * 16, sizeof **cells);
    }
    for (uint32_t k = 0; k < OPS; k++)
        for (int i = 0; i < DEVICES; i++) {
            struct count_op op = {cells[i], k, 1};
            assert_int_equal(cpu_enqueue(d[i], count_run, &op, sizeof op), 0);
            if (k % 100 == 99)
                event[i] = record(d[i]);
        }
    for (int i = DEVICES - 1; i >= 0; i--) {
        wait(d[i], event[i]);
        assert_int_equal(cells[i][0], OPS);
        backend_cpu.device_close(d[i]);
        free(cells[i]);
    }
}

static void fail_run(struct device *d, uint32_t me, uint32_t count, const void *arg)
{
    (void)count;
    if (me == 0)
        cpu_fail(d, ERR_DEVICE, *(const char *const *)arg);
}

static void the_first_failure_is_reported_once(void **state)
{
    (void)state;
    struct device *d = open_threads(2);
    const char *first = "first", *second = "second";
    uint64_t before = record(d);
    cpu_enqueue(d, fail_run, &first, sizeof first);
    cpu_enqueue(d, fail_run, &second, sizeof second);
    uint64_t event = record(d);
    struct err err = {0};
    assert_int_equal(backend_cpu.event_wait(d, before, &err), 0); /* a failure after an event is not that event's */
    assert_int_equal(backend_cpu.event_wait(d, event, &err), ERR_DEVICE);
    assert_string_equal(err.text, "first");
    assert_int_equal(backend_cpu.event_wait(d, event, &err), 0);
    assert_int_equal(backend_cpu.event_wait(d, event + 5, &err), ERR_INTERNAL);
    backend_cpu.device_close(d);
}

/* Work that was never waited for is done before the device goes. */
static void closing_waits(void **state)
{
    (void)state;
    struct device *d = open_threads(2);
    uint64_t cells[32] = {0};
    for (uint32_t i = 0; i < 500; i++) {
        struct count_op op = {cells, i, 0};
        cpu_enqueue(d, count_run, &op, sizeof op);
    }
    backend_cpu.device_close(d);
    assert_int_equal(cells[0], 500);
    assert_int_equal(cells[16], 500);
    backend_cpu.device_close(NULL);
}

static void wrong_arguments(void **state)
{
    (void)state;
    struct err err = {0};
    struct device *d;
    struct device_config cfg = {.n_threads = 100000};
    assert_int_equal(backend_cpu.device_open(&cfg, &d, &err), ERR_ARGUMENT);
    assert_null(d);
    cfg = (struct device_config){.level = "mmx"};
    err = (struct err){0};
    assert_int_equal(backend_cpu.device_open(&cfg, &d, &err), ERR_ARGUMENT);
    assert_non_null(strstr(err.text, "mmx"));
    d = open_threads(1);
    char big[CPU_OP_BYTES + 1] = {0};
    assert_int_equal(cpu_enqueue(d, count_run, big, sizeof big), ERR_INTERNAL);
    backend_cpu.device_close(d);
}

static void memory_failures_leave_nothing(void **state)
{
    (void)state;
    for (int64_t n = 0;; n++) {
        struct err err = {0};
        struct device *d = NULL;
        struct device_config cfg = {.n_threads = 2};
        struct device_reserve r = {.rows_max = 4, .cols_max = 256};
        mem_fault_set(n);
        int rc = backend_cpu.device_open(&cfg, &d, &err);
        if (!rc)
            rc = backend_cpu.reserve(d, &r, &err);
        bool reached = mem_request_count() > n;
        mem_fault_set(-1);
        backend_cpu.device_close(d);
        if (!reached) {
            assert_int_equal(rc, 0);
            break;
        }
        assert_int_equal(rc, ERR_NOMEM);
        assert_true(err.text[0]);
    }
}

static void reserve_grows(void **state)
{
    (void)state;
    struct device *d = open_threads(2);
    struct err err = {0};
    struct device_reserve a = {.rows_max = 8, .cols_max = 512}, b = {.rows_max = 2, .cols_max = 4096};
    assert_int_equal(backend_cpu.reserve(d, &a, &err), 0);
    assert_int_equal(backend_cpu.reserve(d, &b, &err), 0);
    assert_int_equal(cpu_reserved(d)->rows_max, 8);
    assert_int_equal(cpu_reserved(d)->cols_max, 4096);
    assert_true(backend_cpu.reserve_plan(d, &b) > 0);
    assert_non_null(cpu_scratch(d, 1, 4096));
    assert_null(cpu_scratch(d, 1, SIZE_MAX / 2));
    assert_int_equal(backend_cpu.event_wait(d, record(d), &err), ERR_INTERNAL);
    backend_cpu.device_close(d);
}

static void count_ops(struct device *d, uint64_t *cells, uint32_t from, uint32_t n)
{
    for (uint32_t i = from; i < from + n; i++) {
        struct count_op op = {cells, i, (int)(i % 3)};
        assert_int_equal(cpu_enqueue(d, count_run, &op, sizeof op), 0);
    }
}

/* What is held does not begin, whatever is waited for; what is taken back never runs, and its places, and numbers of events, are used again. */
static void held_records_run_or_never_were(void **state)
{
    (void)state;
    struct device *d = open_threads(2);
    uint64_t cells[32] = {0}, done = 0;
    for (uint32_t round = 0; round < 300; round++) {
        uint32_t n = 1 + round * 7 % 40;
        bool run = round % 3 != 0;
        count_ops(d, cells, (uint32_t)done, n);
        uint64_t event = record(d);
        backend_cpu.hold(d);
        count_ops(d, cells, (uint32_t)done + n, n);
        uint64_t second = record(d);
        if (round % 2)
            backend_cpu.flush(d);
        wait(d, event);
        assert_int_equal(cells[0], done + n);
        assert_false(backend_cpu.event_done(d, second));
        backend_cpu.hold_end(d, run);
        if (run)
            wait(d, second);
        done += run ? 2 * n : n;
        assert_int_equal(cells[16], done);
        if (!run) {
            wait(d, record(d));
            assert_int_equal(cells[0], done);
        }
    }
    backend_cpu.device_close(d);
}

struct asked {
    uint64_t *cells, done; /* what must have run when it is asked */
    bool answer, wrong;
    uint32_t times;
};

static bool ask(void *ctx)
{
    struct asked *a = ctx;
    a->times++;
    a->wrong |= a->cells[0] != a->done || a->cells[16] != a->done;
    return a->answer;
}

/* Whoever ends the work before it is asked, once, whether what is held begins; asked too late nobody answers, and the host says. */
static void the_last_worker_lets_go(void **state)
{
    (void)state;
    struct device *d = open_threads(2);
    uint64_t cells[32] = {0};
    uint32_t late = 0;
    struct asked a = {.cells = cells};
    for (uint32_t round = 0; round < 600; round++) {
        uint32_t n = 1 + round * 7 % 40, more = round % 5 ? n : 1; /* fewer than it sleeps for too */
        count_ops(d, cells, (uint32_t)a.done, n);
        uint64_t event = record(d);
        backend_cpu.hold(d);
        count_ops(d, cells, (uint32_t)a.done + n, more);
        uint64_t second = record(d);
        a.done += n;
        a.answer = round % 3 != 0;
        a.times = 0;
        backend_cpu.hold_ask(d, ask, &a);
        wait(d, event);
        bool went = backend_cpu.hold_went(d);
        assert_true(a.times <= 1 && went == (a.times && a.answer));
        late += !a.times;
        if (!went)
            backend_cpu.hold_end(d, a.answer);
        assert_false(backend_cpu.hold_went(d));
        a.done += a.answer ? more : 0;
        wait(d, a.answer ? second : record(d));
        assert_int_equal(cells[0], a.done);
        assert_int_equal(cells[16], a.done);
        assert_false(a.wrong);
    }
    print_message("nobody was asked %u times of 600\n", late);
    backend_cpu.device_close(d);
}

/* A step of more records than there are places is refused while it is held, and taken back whole. */
static void more_than_can_be_held_is_refused(void **state)
{
    (void)state;
    struct device *d = open_threads(2);
    uint64_t cells[32] = {0};
    count_ops(d, cells, 0, 100);
    backend_cpu.hold(d);
    struct count_op op = {cells, 100, 0};
    uint32_t n = 0;
    int rc;
    while ((rc = cpu_enqueue(d, count_run, &op, sizeof op)) == 0)
        n++;
    assert_int_equal(rc, ERR_LIMIT);
    assert_true(n > 1000);
    backend_cpu.hold_end(d, false);
    count_ops(d, cells, 100, 5000);
    wait(d, record(d));
    assert_int_equal(cells[0], 5100);
    backend_cpu.device_close(d);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(held_records_run_or_never_were),
        cmocka_unit_test(the_last_worker_lets_go),
        cmocka_unit_test(more_than_can_be_held_is_refused),
        cmocka_unit_test(many_tiny_ops),
        cmocka_unit_test(several_devices),
        cmocka_unit_test(the_first_failure_is_reported_once),
        cmocka_unit_test(closing_waits),
        cmocka_unit_test(wrong_arguments),
        cmocka_unit_test(memory_failures_leave_nothing),
        cmocka_unit_test(reserve_grows),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
