/* Containment: whatever request for memory fails, the engine goes on, other answers stay what they are, and no page is lost.  With
 * CHECK_LONG=1 every one of two runs, else those of a start and a sample. */
#include "engine_rig.h"

static struct engine_request_config config(uint64_t seed)
{
    struct engine_request_config c = rig_request(66, 0.8f, seed);
    c.no_reuse = false;
    rig_penalties(&c, 1, 0, 0.3f, 0);
    rig_logprobs(&c);
    return c;
}

/* Submits while the fault may hit the caller as well: 1 = submitted. */
static bool try_submit(const struct engine_request_config *c, const uint32_t *ids, uint32_t count, struct engine_request **q)
{
    struct err err = {0};
    *q = NULL;
    if (engine_request_new(rig.engine, c, q, &err) == 0 && engine_submit(*q, ids, count, &err) == 0)
        return true;
    assert_int_equal(err.code, ERR_NOMEM);
    engine_request_release(*q);
    return false;
}

static void every_failed_allocation_is_contained(void **state)
{
    uint32_t prompt[90];
    static struct rig_result plain[2], r;
    struct engine_request *q[2];
    struct engine_stats stats;
    uint32_t failed = 0, refused = 0;
    int64_t n = 0, most;
    (void)state;
    rig_prompt(30, prompt, 90);
    struct str stops[] = {STR("never")};
    struct engine_request_config c[2] = {config(1), config(2)};
    c[0].stops = c[1].stops = stops;
    c[0].stop_count = c[1].stop_count = 1;
    mem_fault_set(-1);
    for (int i = 0; i < 2; i++)
        rig_run(&rig, &c[i], prompt, 60 + 20 * (uint32_t)i, &plain[i]);
    most = mem_request_count();
    print_message("%lld requests for memory in two plain runs\n", (long long)most);
    for (n = 0; n < most + 20; n += n < 50 || getenv("CHECK_LONG") ? 1 : 1 + most / 40) { /* all of a start, a sample of the rest */
        bool in[2];
        mem_fault_set(n);
        for (int i = 0; i < 2; i++)
            in[i] = try_submit(&c[i], prompt, 60 + 20 * (uint32_t)i, &q[i]);
        for (int i = 0; i < 2; i++) {
            if (!in[i]) {
                refused++;
                continue;
            }
            rig_finish(q[i], 1, &r);
            if (r.outcome.finish == ENGINE_ERROR) {
                assert_int_equal(r.outcome.err.code, ERR_NOMEM);
                failed++;
                continue;
            }
            assert_int_equal(r.outcome.finish, ENGINE_LENGTH);
            rig_assert_same(&plain[i], &r);
        }
        mem_fault_set(-1);
    }
    print_message("%u refused at submission, %u failed while running\n", refused, failed);
    assert_true(refused > 0 && failed > 0);
    rig_run(&rig, &c[0], prompt, 60, &r);
    rig_assert_same(&plain[0], &r);
    rig_settle(&stats);
    assert_int_equal(stats.kv.live_bytes, 0);
}

int main(void)
{
    rig_config = (struct engine_config){.retain_none = true, .check_every = UINT32_MAX};
    const struct CMUnitTest tests[] = {
        RIG_TEST(every_failed_allocation_is_contained),
    };
    return rig_run_group(tests);
}
