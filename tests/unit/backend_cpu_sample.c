/* sample_rows of the CPU backend against an independent implementation, at every level and with 1 and 3 threads. */
#include "sample_fixture.h"

#include "backend_cpu/backend_cpu.h"
#include "backend_cpu/cpu_level.h"

static void test_fixture(void **state)
{
    (void)state;
    static const uint32_t threads[] = {1, 3};
    for (int level = 0; level < cpu_level_count(); level++)
        for (int t = 0; t < 2 && cpu_level_usable(level); t++) {
            struct device_config cfg = {.n_threads = threads[t], .level = cpu_level_name(level)};
            struct device_reserve reserve = {.logit_rows_max = FIXTURE_DRAWS, .vocab_max = FIXTURE_VOCAB};
            struct device *d;
            struct err err = {0};
            assert_int_equal(backend_cpu.device_open(&cfg, &d, &err), 0);
            assert_int_equal(backend_cpu.reserve(d, &reserve, &err), 0);
            printf("level %s, %u threads: ", cfg.level, cfg.n_threads);
            fixture_run(d);
            backend_cpu.device_close(d);
        }
}

/* Nothing allowed: no id, and the other rows of the op are not touched by it. */
static void test_nothing_allowed(void **state)
{
    (void)state;
    struct device_config cfg = {.n_threads = 2};
    struct device_reserve reserve = {.logit_rows_max = 3, .vocab_max = 64};
    struct device *d;
    struct err err = {0};
    assert_int_equal(backend_cpu.device_open(&cfg, &d, &err), 0);
    assert_int_equal(backend_cpu.reserve(d, &reserve, &err), 0);
    uint32_t none[2] = {0, 0};
    float logits[3 * 64];
    struct sample_params greedy = {.repetition_penalty = 1, .top_p = 1, .typical_p = 1}, hot = greedy;
    hot.temperature = 1;
    hot.top_p = 0.5f;
    for (uint32_t i = 0; i < FILTER_COUNT; i++)
        hot.order[i] = greedy.order[i] = (uint8_t)i;
    for (int i = 0; i < 3 * 64; i++)
        logits[i] = i % 64 == 7 ? 50.0f : 0.0f;
    struct sample_row rows[3] = {{.params = &hot, .mask = none, .want_logprob = true, .top = 5, .score_id = 7},
                                 {.params = &hot, .score_id = -1},
                                 {.params = &greedy, .mask = none, .score_id = -1}};
    struct sample_result results[3];
    struct op_sample_rows op = {.logits = {logits, 3, 64, 64}, .rows = rows, .results = results, .vocab = 64};
    uint64_t event;
    assert_int_equal(op_sample_rows(d, &op, &err), 0);
    backend_cpu.event_record(d, &event);
    assert_int_equal(backend_cpu.event_wait(d, event, &err), 0);
    assert_int_equal(results[0].id, UINT32_MAX);
    assert_int_equal(results[0].top_count, 0);
    assert_true(results[0].score_logprob == -INFINITY);
    assert_int_equal(results[1].id, 7);
    assert_int_equal(results[2].id, UINT32_MAX);
    backend_cpu.device_close(d);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_fixture), cmocka_unit_test(test_nothing_allowed)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
