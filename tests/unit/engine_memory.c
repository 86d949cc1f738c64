/* No step asks for memory: once eight sequences of all kinds run (hits, choices, penalties, log-probabilities, constraints, stop strings, copies,
 * a draft model), on full and on window layers, no thread of the process asks for any until the first of them ends. */
#define RIG_BACKEND "cpu"
#include "engine_rig.h"

enum { REQUESTS = 8, PROMPT = 90, SHARED = 60, TOKENS = 150, FROM = 12, CHOICES = 3 };

static struct model *draft;
static const uint32_t allowed[] = {5, 60, 9, 33, 34, 2, 63};

static int setup(void **state)
{
    struct err err = {0};
    struct model_options opt = {.rows_max = 32, .k_format = KV_F16, .v_format = KV_F16};
    (void)state;
    rig_open(&rig, &(struct engine_config){0});
    if (model_open(rig.dir, rig.device, &opt, &draft, &err))
        fail_msg("draft: %s", err.text);
    rig_reopen(&(struct engine_config){.draft = draft, .draft_state_bytes = 64u << 20, .mark_every = 40, .check_every = UINT32_MAX});
    return 0;
}

static int setup_window(void **state)
{
    rig_window = 24;
    return setup(state);
}

static int teardown(void **state)
{
    (void)state;
    engine_close(rig.engine);
    rig.engine = NULL;
    model_close(draft);
    rig_close(&rig);
    return 0;
}

static struct engine_request_config config(uint32_t i)
{
    static const struct str stop = STR("never");
    struct engine_request_config c = rig_request(TOKENS, i ? 0.6f : 0, i);
    c.no_reuse = i == 2;
    if (i == 1)
        rig_penalties(&c, 1.1f, 0.1f, 0.1f, 30);
    if (i == 2)
        rig_logprobs(&c);
    c.n = i == 3 ? CHOICES : 1;
    if (i == 4) {
        c.allowed_ids = allowed;
        c.allowed_count = sizeof allowed / sizeof *allowed;
    }
    c.stops = &stop;
    c.stop_count = i == 5;
    c.propose = i == 6 ? ENGINE_PROPOSE_ECHO | ENGINE_PROPOSE_LOOKUP : i == 7 || i == 1 ? ENGINE_PROPOSE_DRAFT : 0;
    c.propose_depth = i == 7 ? 4 : 0;
    return c;
}

/* a request while it is read */
struct reading {
    struct engine_request *q;
    uint32_t choices, done, tokens[CHOICES];
};

static bool poll(struct reading *r)
{
    struct engine_event e;
    bool any = false;
    for (; engine_poll(r->q, &e); any = true) {
        r->tokens[e.choice] += e.kind == ENGINE_TOKEN;
        r->done += e.kind == ENGINE_DONE;
    }
    return any;
}

/* Who has fewest tokens; TOKENS when all are done. */
static uint32_t poll_all(struct reading *r)
{
    uint32_t least = TOKENS;
    bool any = false;
    for (uint32_t i = 0; i < REQUESTS; i++) {
        any |= poll(&r[i]);
        for (uint32_t k = 0; k < r[i].choices; k++)
            least = r[i].tokens[k] < least ? r[i].tokens[k] : least;
    }
    if (!any)
        rig_sleep_us(200);
    return least;
}

static void steps_ask_for_no_memory(void **state)
{
    static struct rig_result first;
    struct reading r[REQUESTS] = {0};
    uint32_t prompt[PROMPT];
    struct engine_request_config c = rig_request(4, 0, 0);
    (void)state;
    rig_prompt(80, prompt, PROMPT);
    c.no_reuse = false;
    rig_run(&rig, &c, prompt, SHARED + 5, &first);
    mem_fault_set(-1); /* counts from here */
    for (uint32_t i = 0; i < REQUESTS; i++) {
        c = config(i);
        rig_prompt(80 + i, prompt + SHARED, PROMPT - SHARED);
        r[i].q = rig_submit(&rig, &c, prompt, PROMPT);
        r[i].choices = c.n;
    }
    while (poll_all(r) < FROM) {
    }
    int64_t before = mem_request_count();
    while (poll_all(r) < TOKENS) {
    }
    int64_t after = mem_request_count();
    print_message("%lld requests for memory until all ran, %lld then\n", (long long)before, (long long)(after - before));
    assert_true(before > 0);
    assert_int_equal(after, before);
    for (uint32_t i = 0; i < REQUESTS; i++) {
        while (r[i].done < r[i].choices)
            poll(&r[i]);
        assert_int_equal(engine_request_outcome(r[i].q, 0)->finish, ENGINE_LENGTH);
        engine_request_release(r[i].q);
    }
    assert_int_equal(mem_forbidden_count(), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(steps_ask_for_no_memory, setup, teardown),
        cmocka_unit_test_setup_teardown(steps_ask_for_no_memory, setup_window, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
