/* Rounds of proposals: whoever guesses, however deep, the answer is the plain one: ids, log-probabilities, ends, counts. */
#include "engine_rig.h"

static struct rig rig;

enum kind { GREEDY, NARROW, SEEDED, PENALTIES, LOGPROBS, CHOICES, KINDS };

static struct engine_request_config config(enum kind kind, int64_t max_tokens)
{
    struct engine_request_config c = {.max_tokens = max_tokens, .sampling = rig_greedy(), .no_reuse = true, .n = 1};
    if (kind == NARROW) { /* few ids: the text runs in circles, which is what copying is for */
        static const struct sample_bias few[] = {{3, 100}, {17, 100}, {40, 100}};
        c.sampling.biases = few;
        c.sampling.bias_count = 3;
    } else if (kind != GREEDY) {
        c.sampling.temperature = 0.35f; /* low: guesses are often right, and often wrong */
        c.sampling.seed = 11;
    }
    if (kind == PENALTIES) {
        c.sampling.repetition_penalty = 1.05f;
        c.sampling.presence_penalty = 0.1f;
        c.sampling.frequency_penalty = 0.05f;
        c.penalty_window = 24;
        c.min_tokens = 7;
    }
    if (kind == LOGPROBS) {
        c.logprobs = true;
        c.top = 2;
    }
    if (kind == CHOICES) {
        c.n = 3;
        c.no_reuse = false;
    }
    return c;
}

/* A prompt that repeats itself, so that copies are to be found. */
static void repeating(uint32_t seed, uint32_t *ids, uint32_t count, uint32_t period)
{
    rig_prompt(seed, ids, count);
    for (uint32_t i = period; i < count; i++)
        ids[i] = ids[i - period];
}

static int setup(void **state)
{
    (void)state;
    rig_open(&rig, &(struct engine_config){.rows_max = 48});
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    rig_close(&rig);
    return 0;
}

static void proposals_change_nothing(void **state)
{
    static const uint32_t who[] = {ENGINE_PROPOSE_ECHO, ENGINE_PROPOSE_LOOKUP, ENGINE_PROPOSE_ECHO | ENGINE_PROPOSE_LOOKUP};
    static struct rig_result plain[3], again[3];
    uint32_t prompt[90], accepted = 0, rejected = 0, copied = 0;
    (void)state;
    repeating(5, prompt, 90, 30);
    for (enum kind kind = 0; kind < KINDS; kind++) {
        struct engine_request_config c = config(kind, 70);
        rig_run(&rig, &c, prompt, 90, plain);
        for (uint32_t i = 0; i < 3; i++) {
            for (uint32_t depth = 0; depth <= ENGINE_DEPTH_MAX; depth = depth ? depth * 3 + 1 : 1) {
                c.propose = who[i];
                c.propose_depth = depth;
                c.chunk_max = depth ? 5 * depth : 0;
                rig_run(&rig, &c, prompt, 90, again);
                for (uint32_t k = 0; k < c.n; k++) {
                    const struct engine_speculation *sp = &again[k].outcome.speculation;
                    rig_assert_equal(&plain[k], &again[k]);
                    accepted += sp->accepted;
                    rejected += sp->rejected;
                    copied += sp->fill.injected;
                    assert_int_equal(sp->drafted, sp->accepted + sp->rejected);
                    assert_true(sp->forwards + sp->accepted + sp->fill.injected + 1 >= again[k].count);
                }
            }
        }
    }
    print_message("accepted %u, rejected %u, copied %u\n", accepted, rejected, copied);
    assert_true(accepted > 100 && rejected > 100 && copied > 20);
}

/* Every place where an answer can end, inside rounds: budget, end id, stop string. */
static void ends_fall_where_they_do_plainly(void **state)
{
    static struct rig_result plain, again;
    uint32_t prompt[60], end;
    char text[32];
    (void)state;
    repeating(6, prompt, 60, 20);
    struct engine_request_config whole = config(GREEDY, 40);
    static struct rig_result full;
    rig_run(&rig, &whole, prompt, 60, &full);
    for (uint32_t at = 0; at < 40; at++) {
        for (int how = 0; how < 3; how++) {
            struct engine_request_config c = config(GREEDY, how ? 40 : at + 1);
            struct str stop = {text, (size_t)snprintf(text, sizeof text, "%u>", full.ids[at])};
            end = full.ids[at];
            c.end_ids = how == 1 ? &end : NULL;
            c.end_count = how == 1;
            c.stops = how == 2 ? &stop : NULL;
            c.stop_count = how == 2;
            rig_run(&rig, &c, prompt, 60, &plain);
            c.propose = ENGINE_PROPOSE_ECHO | ENGINE_PROPOSE_LOOKUP;
            c.propose_depth = 1 + at % 9;
            rig_run(&rig, &c, prompt, 60, &again);
            rig_assert_equal(&plain, &again);
        }
    }
}

/* What was refused is forgotten: the state kept afterwards serves the next prompt with the same bits. */
static void state_after_rounds_is_plain_state(void **state)
{
    static struct rig_result first, warm, cold;
    uint32_t prompt[200];
    (void)state;
    repeating(7, prompt, 60, 12);
    struct engine_request_config c = config(SEEDED, 50);
    c.no_reuse = false;
    c.propose = ENGINE_PROPOSE_LOOKUP;
    c.propose_depth = 6;
    rig_run(&rig, &c, prompt, 60, &first);
    memcpy(prompt + 60, first.ids, 50 * sizeof *prompt);
    rig_prompt(8, prompt + 110, 20);
    rig_run(&rig, &c, prompt, 130, &warm);
    assert_true(warm.outcome.cached_count >= 109);
    c.no_reuse = true;
    c.propose = 0;
    rig_run(&rig, &c, prompt, 130, &cold);
    rig_assert_equal(&cold, &warm);
}

static void beside_others(void **state)
{
    static struct rig_result plain[6], again[6];
    struct engine_request *q[6];
    uint32_t prompt[6][70];
    (void)state;
    for (uint32_t i = 0; i < 6; i++) {
        struct engine_request_config c = config(i % 2 ? SEEDED : PENALTIES, 60);
        repeating(60 + i, prompt[i], 70, 9 + i);
        rig_run(&rig, &c, prompt[i], 70, &plain[i]);
    }
    engine_close(rig.engine);
    for (uint32_t tight = 0; tight < 2; tight++) {
        rig_engine(&rig, &(struct engine_config){.rows_max = 48, .state_bytes = tight ? 2u << 20 : 0});
        for (uint32_t i = 0; i < 6; i++) {
            struct engine_request_config c = config(i % 2 ? SEEDED : PENALTIES, 60);
            c.propose = i % 3 == 2 ? 0 : ENGINE_PROPOSE_LOOKUP;
            c.propose_depth = i % 3 ? 10 : 2;
            c.ring = i == 4 ? 8 : 0;
            q[i] = rig_submit(&rig, &c, prompt[i], 70);
        }
        for (uint32_t i = 0; i < 6; i++) {
            rig_finish(q[i], 1, &again[i]);
            rig_assert_equal(&plain[i], &again[i]);
        }
        if (!tight)
            engine_close(rig.engine);
    }
}

static void wrong_depths_are_refused(void **state)
{
    struct engine_request *q;
    struct err err = {0};
    struct engine_request_config c = config(GREEDY, 5);
    (void)state;
    c.propose_depth = ENGINE_DEPTH_MAX + 1;
    assert_int_equal(engine_request_new(rig.engine, &c, &q, &err), ERR_LIMIT);
    c.propose_depth = 0;
    c.propose = 1u << 30;
    assert_int_equal(engine_request_new(rig.engine, &c, &q, &err), ERR_ARGUMENT);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(proposals_change_nothing, setup, teardown),
        cmocka_unit_test_setup_teardown(ends_fall_where_they_do_plainly, setup, teardown),
        cmocka_unit_test_setup_teardown(state_after_rounds_is_plain_state, setup, teardown),
        cmocka_unit_test_setup_teardown(beside_others, setup, teardown),
        cmocka_unit_test_setup_teardown(wrong_depths_are_refused, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
