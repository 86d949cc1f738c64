/* Which weights are told to stay in the host's memory: of the last layers all, of more of them the experts, and nothing else. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "backend_trace/backend_trace.h"
#include "models/model.h"

enum { BYTES = 3 << 20 /* of every weight, as this device has it */ };

static struct {
    uint32_t away_layers, away_experts, layers;
    uint32_t weights, away, wrong, wrong_reserve;
    uint32_t away_mib;
} seen;

/* Both kinds of files name the layer after a dot: blk.2. and model.layers.2. */
static int layer_of(const char *name)
{
    int layer = -1;
    const char *at = strstr(name, "layers.");
    if (at)
        sscanf(at, "layers.%d.", &layer);
    return layer;
}

static int weight_plan(struct device *d, const struct weight_src *src, unsigned use, uint64_t *size_bytes, struct err *err)
{
    (void)d, (void)err;
    int layer = layer_of(src->name);
    uint32_t left = layer < 0 ? UINT32_MAX : seen.layers - (uint32_t)layer;
    bool away = left <= seen.away_layers || (src->n_experts && left <= seen.away_experts);
    *size_bytes = BYTES;
    seen.weights++;
    seen.away += away;
    seen.wrong += away != ((use & WEIGHT_AWAY) != 0);
    return 0;
}

static uint64_t reserve_plan(const struct device *d, const struct device_reserve *r)
{
    (void)d;
    seen.away_mib = r->away_mib_max;
    return 0;
}

static void look(const char *model, uint32_t away_layers, uint32_t away_experts, bool any)
{
    char path[512];
    struct device *d = NULL;
    struct model *m = NULL;
    struct err err = {0};
    struct backend hooked = backend_trace;
    struct device_config cfg = {0};
    struct model_options opt = {.k_format = KV_F16, .v_format = KV_F16, .rows_max = 8, .away_layers = away_layers, .away_experts = away_experts};
    snprintf(path, sizeof path, "%s/../golden/%s", TEST_DATA, model);
    assert_int_equal(backend_trace.device_open(&cfg, &d, &err), 0);
    memset(&seen, 0, sizeof seen);
    seen.away_layers = away_layers, seen.away_experts = away_experts, seen.layers = 3;
    hooked.weight_plan = weight_plan;
    hooked.reserve_plan = reserve_plan;
    ((struct device_head *)(void *)d)->backend = &hooked;
    if (model_inspect(path, d, &opt, &m, &err))
        fail_msg("%s: %s", model, err.text);
    const struct model_info *info = model_info(m);
    assert_int_equal(info->layers, 3);
    assert_int_equal(seen.wrong, 0);
    assert_int_equal(info->away_bytes, (uint64_t)seen.away * BYTES);
    assert_true(info->weight_bytes >= (uint64_t)(seen.weights - seen.away) * BYTES && info->weight_bytes < (uint64_t)(seen.weights - seen.away + 1) * BYTES);
    assert_int_equal(seen.away > 0, any);
    assert_true(any ? seen.away_mib >= 3 && seen.away_mib <= 3 * NORM_INPUT_MAX : seen.away_mib == 0);
    model_close(m);
    ((struct device_head *)(void *)d)->backend = &backend_trace;
    backend_trace.device_close(d);
}

static void dense(void **state)
{
    (void)state;
    look("llama", 0, 0, false);
    look("llama", 1, 0, true);
    look("llama", 2, 3, true);
    look("llama", 3, 0, true);
    look("llama", 1000, 0, true);
    look("llama", 0, 3, false); /* it has none */
}

static void experts(void **state)
{
    (void)state;
    look("qwen3_moe", 0, 0, false);
    look("qwen3_moe", 0, 1, true);
    look("qwen3_moe", 1, 3, true);
    look("qwen3_moe", 3, 0, true);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(dense), cmocka_unit_test(experts)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
