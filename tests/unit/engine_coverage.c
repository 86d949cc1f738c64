/* Coverage is exact: what a cancelled answer had computed is known afterwards, no more and no less, in whatever state the cancel found it; and
 * the first token leaves before its own forward, so a consumer that stops there leaves the prompt alone.  A cancel is heard within a step, before
 * whatever else would end the answer. */
#include "engine_rig.h"

enum { PROMPT = 150, MORE = 20, ANSWER = 80 };

static struct engine_gate gate; /* while we hold it the engine plans nothing; mostly we have it between any two of its turns */
static uint32_t prompt[PROMPT + ANSWER + MORE];

static int setup(void **state)
{
    (void)state;
    engine_gate_init(&gate);
    rig_open(&rig, &(struct engine_config){.gate = &gate});
    rig_prompt(90, prompt, PROMPT + ANSWER + MORE);
    for (uint32_t i = 30; i < PROMPT; i++) /* there is something to copy */
        prompt[i] = prompt[i - 30];
    return 0;
}

static int teardown(void **state)
{
    struct engine_stats stats;
    engine_stats(rig.engine, &stats);
    assert_true(stats.cancelled > 0 && stats.cancel_steps_max <= 1); /* the gate was ours: exactly so many steps ended in between */
    rig_teardown(state);
    engine_gate_free(&gate);
    return 0;
}

static struct engine_request_config config(uint32_t seed)
{
    struct engine_request_config c = rig_request(ANSWER, 0.4f, seed);
    rig_logprobs(&c);
    c.no_reuse = false;
    return c;
}

/* Turn by turn until `tokens` have come and so many positions of the prompt are read; then cancelled.  Returns the tokens there were; UINT32_MAX:
 * it was over before. */
static uint32_t cancel_try(const struct engine_request_config *c, uint32_t tokens, uint32_t positions, uint32_t *answer, uint32_t *read)
{
    struct engine_request *q = rig_submit(&rig, c, prompt, PROMPT);
    struct engine_event e;
    uint32_t n = 0;
    bool done = false, told = false;
    while (!done) {
        engine_gate_enter(&gate);
        while (!done && engine_poll(q, &e)) {
            done = e.kind == ENGINE_DONE;
            if (!done)
                answer[n++] = e.id;
        }
        if (!told && !done && n >= tokens && engine_request_progress(q) >= positions) {
            *read = engine_request_progress(q);
            engine_request_cancel(q);
            told = true;
        }
        engine_gate_leave(&gate);
    }
    const struct engine_outcome *o = engine_request_outcome(q, 0);
    told = told && o->finish == ENGINE_CANCELLED;
    assert_true(!told || o->completion_count == n); /* an end id would be counted */
    engine_request_release(q);
    return told ? n : UINT32_MAX;
}

/* So that at most `most` tokens had come: on a busy machine the engine may have turns before we have ours, so it is tried again, under another
 * tenant each time. */
static uint32_t cancelled_at(struct engine_request_config *c, uint32_t tokens, uint32_t most, uint32_t positions, uint32_t *answer, uint32_t *read)
{
    static char tenant[16];
    static uint32_t number;
    uint32_t n, tries = 0;
    do {
        assert_true(tries++ < 200);
        snprintf(tenant, sizeof tenant, "%u", number++);
        c->tenant = str_of(tenant);
        n = cancel_try(c, tokens, positions, answer, read);
    } while (n > most);
    return n;
}

/* The text goes on with other ids: so much of it is known, and the answer is that of a cold run. */
static void assert_known(const struct engine_request_config *c, const uint32_t *ids, uint32_t count, uint32_t known)
{
    static struct rig_result warm, cold;
    struct engine_request_config plain = *c;
    plain.max_tokens = 12;
    plain.propose = 0;
    rig_run(&rig, &plain, ids, count, &warm);
    assert_int_equal(warm.outcome.cached_count, known);
    plain.no_reuse = true;
    rig_run(&rig, &plain, ids, count, &cold);
    rig_assert_equal(&cold, &warm);
}

static void who_stops_at_the_first_token_covers_the_prompt(void **state)
{
    uint32_t answer[ANSWER], read = 0;
    (void)state;
    struct engine_request_config c = config(1);
    cancelled_at(&c, 1, 1, 0, answer, &read);
    prompt[PROMPT] = answer[0];
    assert_known(&c, prompt, PROMPT + MORE, PROMPT);
}

static void rows_of_a_prompt_stay_known(void **state)
{
    static const uint32_t at[] = {1, 31, 32, 33, 100, 120};
    uint32_t answer[ANSWER], read = 0;
    (void)state;
    for (uint32_t i = 0; i < sizeof at / sizeof *at; i++) {
        struct engine_request_config c = config(2);
        c.chunk_max = 1 + i;
        cancelled_at(&c, 0, 0, at[i], answer, &read);
        assert_in_range(read, at[i], PROMPT - 1);
        assert_known(&c, prompt, PROMPT, read);
    }
}

/* The round in flight is rolled back; the last token that came was never fed. */
static void tokens_of_an_answer_stay_known(void **state)
{
    uint32_t answer[ANSWER], read = 0;
    (void)state;
    for (uint32_t i = 0; i < 9; i++) {
        struct engine_request_config c = config(3 + i);
        c.propose = i % 3 ? ENGINE_PROPOSE_ECHO | ENGINE_PROPOSE_LOOKUP : 0;
        c.propose_depth = i % 3 * 5;
        uint32_t n = cancelled_at(&c, 2 + 7 * i, ANSWER - 1, PROMPT, answer, &read);
        assert_in_range(n, 2 + 7 * i, ANSWER - 1);
        memcpy(prompt + PROMPT, answer, n * sizeof *answer);
        prompt[PROMPT + n] = (answer[n - 1] + 1) % RIG_VOCAB;
        assert_known(&c, prompt, PROMPT + n + 5, PROMPT + n - 1);
    }
}

/* What would have ended the answer with its next token comes too late: an end id, a stop string, its budget. */
static void a_cancel_comes_before_an_end(void **state)
{
    static struct rig_result plain;
    uint32_t answer[ANSWER], read = 0, at = 5, end;
    char text[16];
    (void)state;
    struct engine_request_config c = config(20);
    rig_run(&rig, &c, prompt, PROMPT, &plain);
    for (bool seen = true; seen;) { /* an id that did not come before */
        at++;
        seen = false;
        for (uint32_t i = 0; i < at; i++)
            seen |= plain.ids[i] == plain.ids[at];
    }
    end = plain.ids[at];
    struct str stop = {text, (size_t)snprintf(text, sizeof text, "<%u>", end)};
    for (int how = 0; how < 3; how++) {
        c = config(20);
        c.end_ids = &end;
        c.end_count = how == 0;
        c.stops = &stop;
        c.stop_count = how == 1;
        c.max_tokens = how == 2 ? at + 1 : ANSWER;
        assert_int_equal(cancelled_at(&c, at, at, PROMPT, answer, &read), at);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(who_stops_at_the_first_token_covers_the_prompt, setup, teardown),
        cmocka_unit_test_setup_teardown(rows_of_a_prompt_stay_known, setup, teardown),
        cmocka_unit_test_setup_teardown(tokens_of_an_answer_stay_known, setup, teardown),
        cmocka_unit_test_setup_teardown(a_cancel_comes_before_an_end, setup, teardown),
    };
    return rig_run_group(tests);
}
