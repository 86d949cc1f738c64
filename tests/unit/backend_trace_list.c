/* backend_trace: one line an op, weights by name, nothing read. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "backend_trace/backend_trace.h"

static void test_listing(void **state)
{
    (void)state;
    struct err err = {0};
    struct device_config cfg = {0};
    struct device *d;
    assert_int_equal(backend_check(&backend_trace, &err), 0);
    assert_int_equal(backend_trace.device_open(&cfg, &d, &err), 0);
    struct weight_src src = {.name = "blk.0.ffn_down", .type = DTYPE_Q4_K, .rows = 64, .cols = 256, .data = NULL, .row_bytes = 144};
    struct weight *w;
    assert_int_equal(backend_trace.weight_prepare(d, &src, WEIGHT_LINEAR, &w, &err), 0);
    void *memory;
    assert_int_equal(backend_trace.buffer_new(d, 1 << 20, &memory, &err), 0);
    struct tensor x = {memory, 2, 256, 256}, y = {(float *)memory + 1024, 2, 64, 64};
    struct op_linear linear = {.w = w, .x = x, .y = y, .alpha = 0.5f, .add = true};
    struct op_norm_gated fusion = {.x = y, .norm_w = memory, .gate = w, .up = w, .y = y};
    assert_int_equal(op_linear(d, &linear, &err), 0);
    assert_int_equal(op_norm_gated(d, &fusion, &err), ERR_INTERNAL); /* shapes are checked here as everywhere */
    struct op_norm norm = {.x = x, .y = x, .dim = 256, .w = memory, .eps = 0.5f};
    assert_int_equal(op_norm(d, &norm, NULL), 0);
    assert_string_equal(buf_cstr(trace_text(d)), "linear w=blk.0.ffn_down(Q4_K [64][256]) x[2][256] y[2][64] alpha=0.5 add\n"
                                                 "norm x[2][256] y[2][256] dim=256 eps=0.5\n");
    uint64_t event;
    assert_int_equal(backend_trace.event_record(d, &event), 0);
    assert_true(backend_trace.event_done(d, event));
    backend_trace.buffer_free(d, memory, 1 << 20);
    backend_trace.weight_free(d, w);
    backend_trace.device_close(d);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_listing)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
