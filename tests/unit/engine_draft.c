/* A draft model beside the target: the answer is the plain one; a draft equal to the target is always right, sampled text too. */
#define RIG_MICRO 1
#include "engine_rig.h"

static struct rig other; /* `other`: a model of the same shape, opened for its weights only */
static struct model *same;

enum { MANY = 16 }; /* whose state does not fit into one slab together */
enum kind { GREEDY, SEEDED, PENALTIES, LOGPROBS, CHOICES, KINDS };

static struct engine_request_config config(enum kind kind)
{
    struct engine_request_config c = rig_request(40, kind ? 0.6f : 0, 21);
    c.n = kind == CHOICES ? 3 : 1;
    if (kind == LOGPROBS)
        rig_logprobs(&c);
    if (kind == PENALTIES) {
        rig_penalties(&c, 1.1f, 0, 0.1f, 16);
        c.min_tokens = 9;
    }
    return c;
}

static int setup(void **state)
{
    struct err err = {0};
    struct model_options opt = {.rows_max = 32, .k_format = KV_F32, .v_format = KV_F32};
    (void)state;
    rig_open(&rig, &(struct engine_config){0});
    rig_seed = 8;
    rig_open(&other, &(struct engine_config){0});
    rig_seed = 7;
    engine_close(other.engine);
    other.engine = NULL;
    model_close(other.model);
    if (model_open(rig.dir, rig.device, &opt, &same, &err) || model_open(other.dir, rig.device, &opt, &other.model, &err))
        fail_msg("draft: %s", err.text);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    engine_close(rig.engine);
    rig.engine = NULL;
    model_close(same);
    rig_close(&other);
    rig_close(&rig);
    return 0;
}

static void drafts_change_nothing(void **state)
{
    static struct rig_result plain[3], again[3];
    uint32_t prompt[75];
    (void)state;
    rig_prompt(31, prompt, 75);
    for (int own = 0; own < 2; own++) {
        uint32_t drafted = 0, accepted = 0;
            rig_reopen(&(struct engine_config){.draft = own ? same : other.model, .draft_state_bytes = 16u << 20});
        for (enum kind kind = 0; kind < KINDS; kind++) {
            struct engine_request_config c = config(kind);
            rig_run(&rig, &c, prompt, 75, plain);
            for (uint32_t depth = 0; depth < 12; depth += 5) {
                c.propose = ENGINE_PROPOSE_DRAFT | (depth == 10 ? ENGINE_PROPOSE_LOOKUP : 0);
                c.propose_depth = depth;
                rig_run(&rig, &c, prompt, 75, again);
                for (uint32_t k = 0; k < c.n; k++) {
                    const struct engine_speculation *sp = &again[k].outcome.speculation;
                    rig_assert_equal(&plain[k], &again[k]);
                    drafted += depth == 5 ? sp->drafted : 0;
                    accepted += depth == 5 ? sp->accepted : 0;
                    if (own && depth == 5) /* its noise is the target's: every guess is right, whatever the sampler */
                        assert_int_equal(sp->drafted, sp->accepted);
                }
            }
        }
        print_message("%s model: %u of %u accepted\n", own ? "the same" : "another", accepted, drafted);
        assert_true(drafted > 100);
    }
}

/* Little room for the draft's state: some guess nothing, none fails. */
static void drafts_without_room_are_silent(void **state)
{
    static struct rig_result plain[MANY], again[MANY];
    struct engine_request *q[MANY];
    uint32_t prompt[MANY][150], rounds = 0;
    (void)state;
    rig_reopen(&(struct engine_config){.draft = same, .draft_state_bytes = 2u << 20, .retain_none = true});
    for (uint32_t i = 0; i < MANY; i++) {
        struct engine_request_config c = config(i % CHOICES);
        c.max_tokens = 160;
        rig_prompt(70 + i, prompt[i], 150);
        rig_run(&rig, &c, prompt[i], 150, &plain[i]);
    }
    for (uint32_t i = 0; i < MANY; i++) {
        struct engine_request_config c = config(i % CHOICES);
        c.max_tokens = 160;
        c.propose = ENGINE_PROPOSE_DRAFT;
        c.propose_depth = 4;
        q[i] = rig_submit(&rig, &c, prompt[i], 150);
    }
    for (uint32_t i = 0; i < MANY; i++) {
        rig_finish(q[i], 1, &again[i]);
        rig_assert_equal(&plain[i], &again[i]);
        rounds += again[i].outcome.speculation.rounds;
    }
    assert_true(rounds > 0 && rounds < MANY * 159 / 5);
}

/* The next prompt that begins as an ended one finds the draft's state as it finds the target's. */
static void the_next_turn_finds_the_drafts_state(void **state)
{
    static struct rig_result first, warm, cold, begun;
    uint32_t prompt[200];
    (void)state;
    rig_reopen(&(struct engine_config){.draft = same, .draft_state_bytes = 16u << 20});
    rig_prompt(77, prompt, 60);
    struct engine_request_config c = config(SEEDED);
    c.no_reuse = false;
    c.propose = ENGINE_PROPOSE_DRAFT;
    c.propose_depth = 3;
    rig_run(&rig, &c, prompt, 60, &first);
    memcpy(prompt + 60, first.ids, 40 * sizeof *prompt);
    rig_prompt(78, prompt + 100, 20);
    rig_run(&rig, &c, prompt, 120, &warm);
    assert_int_equal(warm.outcome.speculation.drafted, warm.outcome.speculation.accepted);
    assert_true(warm.outcome.speculation.rounds >= 9);
    c.tenant = STR("other"); /* nothing is known there: the draft reads the prompt in steps of rows_max, and guesses nothing meanwhile */
    rig_run(&rig, &c, prompt, 120, &begun);
    print_message("%u forwards, where the draft had to read the prompt %u\n", warm.outcome.speculation.forwards, begun.outcome.speculation.forwards);
    assert_int_equal(begun.outcome.cached_count, 0);
    assert_true(warm.outcome.speculation.forwards + 1 < begun.outcome.speculation.forwards);
    c.tenant = (struct str){0};
    c.no_reuse = true;
    c.propose = 0;
    rig_run(&rig, &c, prompt, 120, &cold);
    rig_assert_equal(&cold, &warm);
}

static void a_draft_that_is_not_there_is_refused(void **state)
{
    struct engine_request *q;
    struct err err = {0};
    struct engine_request_config c = config(GREEDY);
    (void)state;
    c.propose = ENGINE_PROPOSE_DRAFT;
    assert_int_equal(engine_request_new(rig.engine, &c, &q, &err), ERR_ARGUMENT);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(drafts_change_nothing, setup, teardown),
        cmocka_unit_test_setup_teardown(drafts_without_room_are_silent, setup, teardown),
        cmocka_unit_test_setup_teardown(the_next_turn_finds_the_drafts_state, setup, teardown),
        cmocka_unit_test_setup_teardown(a_draft_that_is_not_there_is_refused, setup, teardown),
    };
    return rig_run_group(tests);
}
