/* A step budget: beside an answer, a prompt is read in as many rows a step as the budget allows, and the answer goes on meanwhile. */
#include "engine_rig.h"

enum { PROMPT = 400 };

/* Steps from a prompt's submission to its first token, beside a running answer, which gets a token in each. */
static uint32_t steps_of(uint32_t step_ms)
{
    uint32_t prompt[PROMPT], tokens = 0, seen;
    struct engine_event e;
    struct rig r;
    static struct rig_result result;
    rig_open(&r, &(struct engine_config){.step_ms = step_ms, .check_every = UINT32_MAX});
    struct engine_request_config c = rig_request(RIG_CONTEXT - 10, 0, 0);
    c.ring = RIG_CONTEXT;
    rig_prompt(1, prompt, PROMPT);
    struct engine_request *answer = rig_submit(&r, &c, prompt, 10);
    for (uint32_t n = 0; n < 20; n += engine_poll(answer, &e)) /* what decoding takes is known */
        rig_sleep_us(100);
    c.max_tokens = 1;
    struct engine_request *q = rig_submit(&r, &c, prompt, PROMPT);
    while (seen = engine_request_seen(q), !engine_request_started(q))
        engine_request_wait(q, seen, -1);
    while (engine_poll(answer, &e)) {
    }
    rig_finish(q, 1, &result);
    while (engine_poll(answer, &e))
        tokens += e.kind == ENGINE_TOKEN;
    engine_request_cancel(answer);
    rig_finish(answer, 1, &result);
    rig_close(&r);
    return tokens;
}

static void a_longer_step_reads_more_of_a_prompt(void **state)
{
    (void)state;
    uint32_t brief = steps_of(1), lengthy = steps_of(5000);
    print_message("%d rows beside an answer: %u tokens of it in steps of 1 ms, %u in steps as long as they like\n", PROMPT, brief, lengthy);
    assert_true(lengthy >= PROMPT / 32 - 2);
    assert_true(brief > 2 * lengthy);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(a_longer_step_reads_more_of_a_prompt)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
