/* Containment: whatever request for memory fails, the engine goes on, other answers stay what they are, and no page is lost.  With
 * CHECK_LONG=1 every one of two runs, else those of a start and a sample. */
#include "engine_rig.h"

enum { CHOICES = 2 };

static bool rich; /* more of what a request can ask for: choices, guesses, a constraint, known prefixes, layers with windows */

static struct engine_request_config config(uint64_t seed)
{
    static const uint32_t allowed[] = {5, 60, 9, 33, 34, 2, 63};
    struct engine_request_config c = rig_request(66, 0.8f, seed);
    c.no_reuse = false;
    rig_penalties(&c, 1, 0, 0.3f, 0);
    rig_logprobs(&c);
    if (rich) {
        c.n = CHOICES;
        c.propose = ENGINE_PROPOSE_ECHO | ENGINE_PROPOSE_LOOKUP;
        c.propose_depth = 4;
        c.allowed_ids = allowed;
        c.allowed_count = sizeof allowed / sizeof *allowed;
        c.tenant = STR("t");
        c.session = STR("s");
    }
    return c;
}

/* Submits while the fault may hit the caller as well: 1 = submitted. */
static bool try_submit(const struct engine_request_config *c, const uint32_t *ids, uint32_t count, struct engine_request **q)
{
    static const uint32_t boundaries[] = {20, 50};
    struct err err = {0};
    *q = NULL;
    if (engine_request_new(rig.engine, c, q, &err) == 0 && (!rich || engine_request_boundaries(*q, boundaries, 2, &err) == 0) &&
        engine_submit(*q, ids, count, &err) == 0)
        return true;
    assert_int_equal(err.code, ERR_NOMEM);
    engine_request_release(*q);
    return false;
}

static void every_failed_allocation_is_contained(void **state)
{
    uint32_t prompt[90];
    static struct rig_result plain[2][CHOICES], r[CHOICES];
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
        rig_run(&rig, &c[i], prompt, 60 + 20 * (uint32_t)i, plain[i]);
    most = mem_request_count();
    print_message("%lld requests for memory in two plain runs\n", (long long)most);
    for (n = 0; n < most + 20; n += getenv("CHECK_LONG") ? 1 : n < 50 ? 1 + rich : 1 + most / (rich ? 20 : 40)) { /* of a start, a sample of the rest */
        bool in[2];
        mem_fault_set(n);
        for (int i = 0; i < 2; i++)
            in[i] = try_submit(&c[i], prompt, 60 + 20 * (uint32_t)i, &q[i]);
        for (int i = 0; i < 2; i++) {
            if (!in[i]) {
                refused++;
                continue;
            }
            rig_finish(q[i], c[i].n, r);
            for (uint32_t k = 0; k < c[i].n; k++) {
                if (r[k].outcome.finish == ENGINE_ERROR) {
                    assert_int_equal(r[k].outcome.err.code, ERR_NOMEM);
                    failed++;
                    continue;
                }
                assert_int_equal(r[k].outcome.finish, ENGINE_LENGTH);
                rig_assert_same(&plain[i][k], &r[k]);
            }
        }
        mem_fault_set(-1);
    }
    print_message("%u refused at submission, %u failed while running\n", refused, failed);
    assert_true(refused > 0 && failed > 0);
    rig_run(&rig, &c[0], prompt, 60, r);
    rig_assert_same(&plain[0][0], &r[0]);
    rig_settle(&stats);
    assert_int_equal(stats.kv.live_bytes, 0);
}

static int setup_rich(void **state)
{
    (void)state;
    rich = true;
    rig_window = 24;
    rig_open(&rig, &(struct engine_config){.mark_every = 40, .check_every = UINT32_MAX});
    return 0;
}

static int teardown_rich(void **state)
{
    rich = false;
    rig_window = 0;
    return rig_teardown(state);
}

int main(void)
{
    rig_config = (struct engine_config){.retain_none = true, .check_every = UINT32_MAX};
    const struct CMUnitTest tests[] = {
        RIG_TEST(every_failed_allocation_is_contained),
        cmocka_unit_test_setup_teardown(every_failed_allocation_is_contained, setup_rich, teardown_rich),
    };
    return rig_run_group(tests);
}
