/* Memory plans: sums, budgets, and what the machine is asked. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "plan/plan.h"

static const struct kv_layer_spec layers[2] = {
    {.policy = KV_FULL, .n_kv_heads = 8, .d_k = 64, .d_v = 64, .k_format = KV_F16, .v_format = KV_F16},
    {.policy = KV_FULL, .n_kv_heads = 8, .d_k = 64, .d_v = 64, .k_format = KV_F16, .v_format = KV_F16},
};

static struct kv_config config(uint32_t context)
{
    return (struct kv_config){.layers = layers, .layer_count = 2, .rewind_slack = 64, .context_max = context};
}

static void budgets(void **state)
{
    struct kv_config kv = config(100000);
    uint64_t whole = kv_plan_bytes(&kv, 100000);
    (void)state;
    assert_int_equal(plan_state_budget(&kv, 123456789, 1), 123456789);
    assert_int_equal(plan_state_budget(&kv, 0, UINT64_MAX / 2), whole);
    assert_int_equal(plan_state_budget(&kv, 0, 100u << 20), 90u << 20);
    assert_int_equal(plan_state_budget(&kv, 0, 0), kv_plan_bytes(&kv, 1));
}

static void positions_alone_are_the_most_that_fit(void **state)
{
    struct kv_config kv = config(5000);
    (void)state;
    for (uint64_t budget = 1u << 20; budget < 64u << 20; budget += 1500000) {
        uint32_t n = plan_positions_alone(&kv, budget, 5000);
        if (n)
            assert_true(kv_plan_bytes(&kv, n) <= budget);
        if (n < 5000)
            assert_true(kv_plan_bytes(&kv, n + 1) > budget);
    }
}

struct made_model { /* bytes of a layer's experts and of the rest of it */
    uint32_t layers;
    uint64_t experts, rest, room;
    uint32_t asked;
};

static int made_fits(void *ctx, struct plan_away away, struct err *err)
{
    struct made_model *m = ctx;
    uint32_t experts = away.experts > away.layers ? away.experts : away.layers;
    uint64_t there = (m->layers - experts) * m->experts + (m->layers - away.layers) * m->rest;
    m->asked++;
    return there <= m->room ? 0 : err_set(err, ERR_NOMEM, "%llu bytes", (unsigned long long)there);
}

static void the_fewest_weights_stay_away_experts_first(void **state)
{
    (void)state;
    for (uint64_t room = 0; room < 1200; room += 7) {
        struct made_model m = {.layers = 10, .experts = 90, .rest = 25, .room = room};
        struct plan_away away = {0};
        struct err err = {0};
        assert_int_equal(plan_fit_away(10, true, made_fits, &m, &away, &err), 0);
        uint64_t need = 1150 > room ? 1150 - room : 0, experts = need > 900 ? 900 : need;
        assert_int_equal(away.experts, (experts + 89) / 90);
        assert_int_equal(away.layers, (need - experts + 24) / 25);
        assert_true(m.asked <= 8);
        m = (struct made_model){.layers = 10, .rest = 115, .room = room};
        assert_int_equal(plan_fit_away(10, false, made_fits, &m, &away, &err), 0);
        assert_int_equal(away.layers, (need + 114) / 115);
        assert_int_equal(away.experts, 0);
    }
}

static int never_fits(void *ctx, struct plan_away away, struct err *err)
{
    (void)ctx, (void)away;
    return err_set(err, ERR_NOMEM, "no room");
}

static void what_never_fits_is_refused(void **state)
{
    struct plan_away away;
    struct err err = {0};
    (void)state;
    assert_int_equal(plan_fit_away(4, true, never_fits, NULL, &away, &err), ERR_NOMEM);
    assert_string_equal(err.text, "no room");
    err = (struct err){0};
    assert_int_equal(plan_admit_away("m", 0, &err), 0);
    assert_int_equal(plan_admit_away("m", UINT64_C(1) << 60, &err), ERR_NOMEM);
    assert_non_null(strstr(err.text, "would stay in the host's memory"));
}

static void tables_sum_up(void **state)
{
    struct plan p;
    struct model_info info = {.weight_bytes = 100, .step_bytes = 20};
    (void)state;
    plan_make(&(struct plan_input){.model = &info, .state_planned = 3000, .state_live = 7, .text_bytes = 5, .loaded = true}, &p);
    assert_int_equal(plan_total(&p, NULL), 3125);
    assert_int_equal(plan_total(&p, "host"), 3125);
    assert_int_equal(plan_total(&p, "device"), 0);
    info.away_bytes = 50;
    plan_make(&(struct plan_input){.model = &info, .space = "cuda"}, &p);
    assert_int_equal(plan_total(&p, "cuda"), 120);
    assert_int_equal(plan_total(&p, "host"), 50);
}

static void a_device_has_memory_of_its_own(void **state)
{
    struct plan_space s;
    struct plan p;
    struct err err = {0};
    struct model_info info = {.weight_bytes = 600ull << 20, .step_bytes = 100ull << 20};
    struct device_info d = {.backend = "cuda", .own_memory = true, .memory_total_bytes = 2000ull << 20, .memory_free_bytes = 1000ull << 20,
                            .memory_held_bytes = 500ull << 20};
    (void)state;
    plan_space_read(&d, 0, &s);
    assert_true(s.own);
    assert_string_equal(s.name, "cuda");
    assert_int_equal(s.available_bytes, 1000ull << 20);
    plan_space_read(&d, 800ull << 20, &s);
    assert_int_equal(s.available_bytes, 300ull << 20);
    plan_space_read(&d, 400ull << 20, &s); /* less than is held */
    assert_int_equal(s.available_bytes, 0);
    plan_space_read(&d, 1ull << 40, &s); /* more than there is */
    assert_int_equal(s.available_bytes, 1000ull << 20);
    assert_int_equal(plan_admit_device("m", &s, &info, 300ull << 20, &err), 0);
    assert_int_equal(plan_admit_device("m", &s, &info, (300ull << 20) + 1, &err), ERR_NOMEM);
    assert_non_null(strstr(err.text, "need 1001 MiB, but 1000 MiB of cuda memory"));
    plan_make(&(struct plan_input){.model = &info, .state_planned = 3000, .text_bytes = 5, .space = "cuda"}, &p);
    assert_int_equal(plan_total(&p, "host"), 5);
    assert_int_equal(plan_total(&p, "cuda"), (700ull << 20) + 3000);
    d.own_memory = false;
    plan_space_read(&d, 0, &s);
    assert_false(s.own);
    assert_string_equal(s.name, "host");
    assert_true(s.total_bytes > s.available_bytes && s.available_bytes > 0);
}

static void the_machine_has_memory(void **state)
{
    struct plan_machine m;
    (void)state;
    plan_machine_read(&m);
    assert_true(m.total_bytes > 0 && m.available_bytes > 0 && m.available_bytes <= m.total_bytes);
    assert_true(m.rss_anon_bytes > 0 && m.rss_anon_bytes < m.total_bytes);
}

static void sparse_file(const char *path, uint64_t bytes)
{
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    fclose(f);
    assert_int_equal(truncate(path, (off_t)bytes), 0);
}

static void weights_that_cannot_fit_are_refused(void **state)
{
    char dir[] = "/tmp/plan-XXXXXX", path[3][64];
    struct err err = {0};
    (void)state;
    assert_non_null(mkdtemp(dir));
    snprintf(path[0], sizeof path[0], "%s/m-00001-of-00002.gguf", dir);
    snprintf(path[1], sizeof path[1], "%s/m-00002-of-00002.gguf", dir);
    snprintf(path[2], sizeof path[2], "%s/a.safetensors", dir);
    sparse_file(path[0], 1000);
    sparse_file(path[1], 2000);
    sparse_file(path[2], 500);
    assert_int_equal(plan_file_bytes(path[0]), 3000);
    assert_int_equal(plan_file_bytes(path[2]), 500);
    assert_int_equal(plan_file_bytes(dir), 500);
    assert_int_equal(plan_file_bytes("/no/such"), 0);
    assert_int_equal(plan_admit_weights(path[0], &err), 0);
    sparse_file(path[1], 1ull << 43);
    assert_int_equal(plan_admit_weights(path[0], &err), ERR_NOMEM);
    assert_non_null(strstr(err.text, "8388608 MiB"));
    for (int i = 0; i < 3; i++)
        unlink(path[i]);
    rmdir(dir);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(budgets),
        cmocka_unit_test(positions_alone_are_the_most_that_fit),
        cmocka_unit_test(the_fewest_weights_stay_away_experts_first),
        cmocka_unit_test(what_never_fits_is_refused),
        cmocka_unit_test(tables_sum_up),
        cmocka_unit_test(a_device_has_memory_of_its_own),
        cmocka_unit_test(the_machine_has_memory),
        cmocka_unit_test(weights_that_cannot_fit_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
