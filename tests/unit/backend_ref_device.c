/* The reference backend: sample_rows against an independent implementation; deferred records; weights. */
#include "sample_fixture.h"

#include "backend_ref/backend_ref.h"

static struct device *open_device(const char *level)
{
    struct device_config cfg = {.level = level};
    struct device *d;
    struct err err = {0};
    assert_int_equal(backend_ref.device_open(&cfg, &d, &err), 0);
    return d;
}

static void test_fixture(void **state)
{
    (void)state;
    struct device *d = open_device(NULL);
    fixture_run(d);
    backend_ref.device_close(d);
}

static void test_complete(void **state)
{
    (void)state;
    struct err err = {0};
    assert_int_equal(backend_check(&backend_ref, &err), 0);
    struct backend cut = backend_ref;
    cut.gather = NULL;
    assert_int_equal(backend_check(&cut, &err), ERR_UNSUPPORTED);
    assert_non_null(strstr(err.text, "gather"));
}

static void add_twice(struct device *d, float *x, float *y, uint64_t *event)
{
    struct err err = {0};
    struct op_add op = {.x = {x, 1, 4, 4}, .y = {y, 1, 4, 4}, .x_scale = 1, .y_scale = 1};
    assert_int_equal(op_add(d, &op, &err), 0);
    assert_int_equal(op_add(d, &op, &err), 0);
    assert_int_equal(backend_ref.event_record(d, event), 0);
}

/* Deferred: nothing is visible before the wait.  Immediate: done at once. */
static void test_deferred(void **state)
{
    (void)state;
    float x[4] = {1, 2, 3, 4}, y[4] = {0};
    struct err err = {0};
    uint64_t event;
    struct device *d = open_device("deferred");
    add_twice(d, x, y, &event);
    assert_false(backend_ref.event_done(d, event));
    assert_true(y[3] == 0);
    assert_int_equal(backend_ref.event_wait(d, event, &err), 0);
    assert_true(y[3] == 8 && backend_ref.event_done(d, event));
    assert_int_equal(backend_ref.event_wait(d, event + 1, &err), ERR_INTERNAL);
    backend_ref.device_close(d);
    d = open_device(NULL);
    add_twice(d, x, y, &event);
    assert_true(y[3] == 16 && backend_ref.event_done(d, event));
    backend_ref.device_close(d);
}

static void test_failure_is_kept(void **state)
{
    (void)state;
    struct device *d = open_device(NULL);
    struct err err = {0};
    float x[2] = {0}, y[2];
    uint32_t row = 5;
    uint64_t event;
    struct op_gather op = {.x = {x, 1, 2, 2}, .y = {y, 1, 2, 2}, .rows = &row};
    assert_int_equal(op_gather(d, &op, &err), 0);
    backend_ref.event_record(d, &event);
    assert_int_equal(backend_ref.event_wait(d, event, &err), ERR_INTERNAL);
    assert_int_equal(backend_ref.event_wait(d, event, NULL), 0);
    backend_ref.device_close(d);
}

static void test_weight_not_finite(void **state)
{
    (void)state;
    struct device *d = open_device(NULL);
    struct err err = {0};
    float values[4] = {0, 1, INFINITY, 2};
    struct weight_src src = {.name = "blk.0.w", .type = DTYPE_F32, .rows = 2, .cols = 2, .data = values, .row_bytes = 8};
    struct weight *w;
    assert_int_equal(backend_ref.weight_prepare(d, &src, WEIGHT_LINEAR, &w, &err), ERR_FORMAT);
    assert_non_null(strstr(err.text, "blk.0.w"));
    values[2] = 3;
    assert_int_equal(backend_ref.weight_prepare(d, &src, WEIGHT_LINEAR, &w, NULL), 0);
    assert_string_equal(weight_info(w)->name, "blk.0.w");
    backend_ref.weight_free(d, w);
    backend_ref.device_close(d);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_fixture), cmocka_unit_test(test_complete), cmocka_unit_test(test_deferred),
                                       cmocka_unit_test(test_failure_is_kept), cmocka_unit_test(test_weight_not_finite)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
