/* A known prefix of 2,048 tokens and 32 new ones: the first token takes about what the same 32 rows take in a sequence that lives at that
 * depth.  Both are measured by turns in one process; the smallest of each is compared.  The bar is for CHECK_LONG=1 (./check long): elsewhere other
 * programs run beside it. */
#define RIG_CONTEXT 4096
#define RIG_BACKEND "cpu"
#include "engine_rig.h"

#include "base/thread.h"

enum { DEPTH = 2048, NEW = 32, ROUNDS = 7 };

static uint32_t prompt[DEPTH + NEW];

static int forward(struct kv *kv, struct kv_seq *s, uint32_t rows, bool sample, struct err *err)
{
    static struct sample_row row;
    static struct sample_params params;
    static struct sample_result result[4];
    params = rig_greedy();
    row = (struct sample_row){.params = &params, .score_id = -1};
    uint32_t at = kv_seq_covered(s);
    struct span span = {.seq = s, .position = at, .row_count = rows, .ids = prompt + at, .out_first = sample ? rows - 1 : rows, .sample = &row};
    uint64_t event = 0;
    int rc = kv_extend(kv, s, rows, err);
    if (rc == 0)
        rc = model_forward(rig.model, kv, &span, 1, result, &event, err);
    if (rc == 0)
        rc = model_wait(rig.model, event, err);
    return rc ? rc : kv_commit(kv, s, prompt + at, rows, err);
}

static int live_task(void *ctx, struct kv *kv, struct err *err)
{
    struct kv_seq *s = NULL;
    int rc = kv_seq_new(kv, &s, err);
    for (uint32_t at = 0; at < DEPTH && rc == 0; at += 32)
        rc = forward(kv, s, 32, false, err);
    int64_t began = thread_now_ns();
    if (rc == 0)
        rc = forward(kv, s, NEW, true, err);
    *(int64_t *)ctx = thread_now_ns() - began;
    kv_seq_free(kv, s);
    return rc;
}

static void a_hit_costs_its_new_rows(void **state)
{
    static struct rig_result r;
    int64_t live_best = INT64_MAX, hit_best = INT64_MAX, live;
    struct err err = {0};
    (void)state;
    rig_prompt(1, prompt, DEPTH + NEW);
    struct engine_request_config c = {.max_tokens = 1, .sampling = rig_greedy()};
    bool bar = getenv("CHECK_LONG") != NULL;
    for (int i = 0; i < (bar ? ROUNDS : 2); i++) {
        if (engine_exclusive(rig.engine, live_task, &live, &err))
            fail_msg("%s", err.text);
        rig_run(&rig, &c, prompt, DEPTH, &r);
        rig_run(&rig, &c, prompt, DEPTH + NEW, &r);
        assert_int_equal(r.outcome.cached_count, DEPTH);
        int64_t hit = r.outcome.first_ns - r.outcome.submitted_ns;
        live_best = live < live_best ? live : live_best;
        hit_best = hit < hit_best ? hit : hit_best;
    }
    print_message("%d rows at depth %d: %.3f ms in a live sequence, %.3f ms after a hit: %.2f\n", NEW, DEPTH, (double)live_best / 1e6,
                  (double)hit_best / 1e6, (double)hit_best / (double)live_best);
    assert_true(!bar || (double)hit_best <= 1.2 * (double)live_best);
}

int main(void)
{
    rig_config = (struct engine_config){.check_every = UINT32_MAX};
    const struct CMUnitTest tests[] = {
        RIG_TEST(a_hit_costs_its_new_rows),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
