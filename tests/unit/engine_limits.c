/* A state budget that holds fewer positions than the model could have: what cannot fit alone is refused, with both numbers; an answer without a
 * limit of its own ends where the state does. */
#define RIG_MICRO 1
#define RIG_CONTEXT 4096
#define RIG_BACKEND "cpu"
#include "engine_rig.h"

enum { PROMPT = 1600 };

static void what_the_state_cannot_hold_is_refused(void **state)
{
    static uint32_t prompt[RIG_CONTEXT];
    static struct rig_result r;
    char number[16];
    struct err err = {0};
    struct engine_request *q;
    (void)state;
    uint32_t most = engine_positions_max(rig.engine);
    print_message("the state holds %u of %d positions\n", most, RIG_CONTEXT);
    assert_in_range(most, PROMPT + 2, PROMPT + RIG_IDS_MAX);
    rig_prompt(7, prompt, RIG_CONTEXT);
    struct engine_request_config c = rig_request(most - PROMPT + 1, 0, 0);
    assert_int_equal(engine_request_new(rig.engine, &c, &q, &err), 0);
    assert_int_equal(engine_submit(q, prompt, PROMPT, &err), ERR_LIMIT);
    engine_request_release(q);
    assert_non_null(strstr(err.text, "state budget"));
    snprintf(number, sizeof number, "holds %u", most);
    assert_non_null(strstr(err.text, number));
    snprintf(number, sizeof number, "= %u", most + 1);
    assert_non_null(strstr(err.text, number));
    err_none(&err);
    assert_int_equal(engine_request_new(rig.engine, &c, &q, &err), 0);
    assert_int_equal(engine_submit(q, prompt, most, &err), ERR_LIMIT); /* no room for a token of an answer */
    engine_request_release(q);
    c.max_tokens = most - PROMPT;
    rig_run(&rig, &c, prompt, PROMPT, &r);
    assert_int_equal(r.count, most - PROMPT);
    c.max_tokens = -1;
    rig_run(&rig, &c, prompt, PROMPT, &r);
    assert_int_equal(r.count, most - PROMPT);
    assert_int_equal(r.outcome.finish, ENGINE_LENGTH);
}

int main(void)
{
    rig_config = (struct engine_config){.state_bytes = 2u << 20, .check_every = UINT32_MAX};
    const struct CMUnitTest tests[] = {RIG_TEST(what_the_state_cannot_hold_is_refused)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
