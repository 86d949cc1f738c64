/* Rounds of proposals: whoever guesses, however deep, the answer is the plain one: ids, log-probabilities, ends, counts. */
#define RIG_MICRO 1
#include "engine_rig.h"

#include <math.h>

enum kind { GREEDY, NARROW, SEEDED, PENALTIES, LOGPROBS, CHOICES, ALLOWED, KINDS };

static const uint32_t allowed[] = {5, 60, 9, 33, 34, 2, 63};

static struct engine_request_config config(enum kind kind, int64_t max_tokens)
{
    /* low: guesses are often right, and often wrong */
    struct engine_request_config c = rig_request(max_tokens, kind == GREEDY || kind == NARROW ? 0 : 0.35f, 11);
    if (kind == NARROW) { /* few ids: the text runs in circles, which is what copying is for */
        static const struct sample_bias few[] = {{3, 100}, {17, 100}, {40, 100}};
        c.sampling.biases = few;
        c.sampling.bias_count = 3;
    }
    if (kind == PENALTIES) {
        rig_penalties(&c, 1.05f, 0.1f, 0.05f, 24);
        c.min_tokens = 7;
    }
    if (kind == LOGPROBS)
        rig_logprobs(&c);
    if (kind == ALLOWED) {
        c.allowed_ids = allowed;
        c.allowed_count = sizeof allowed / sizeof *allowed;
        c.logprobs = true;
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

static uint32_t sum(const uint32_t *list, uint32_t n, uint32_t weight)
{
    uint32_t total = 0;
    for (uint32_t i = 0; i < n; i++)
        total += list[i] * (weight ? i : 1);
    return total;
}

/* The figures of a text that ended by its length say how it came about: one token by its prompt's last row, one by every row after it that was
 * no draft, and those that were guessed.  The last round may have had no room for its own token. */
static void check_figures(const struct rig_result *r)
{
    const struct engine_speculation *sp = &r->outcome.speculation;
    const struct engine_fill *f = &sp->fill;
    uint32_t made = 1 + sp->forwards + sp->accepted + f->injected;
    assert_in_range(r->outcome.completion_count, made - 1, made);
    assert_true(made == r->outcome.completion_count || sp->rounds + f->events > 0);
    assert_int_equal(sp->drafted, sp->accepted + sp->rejected);
    assert_int_equal(sp->rounds, sum(sp->lengths, ENGINE_DEPTH_MAX + 1, 0));
    assert_int_equal(sp->accepted, sum(sp->lengths, ENGINE_DEPTH_MAX + 1, 1));
    assert_int_equal(sp->drafted, sum(sp->drafted_at, ENGINE_DEPTH_MAX, 0));
    for (uint32_t i = 0; i < ENGINE_DEPTH_MAX; i++) /* accepted there: rounds that accepted more than i */
        assert_int_equal(sp->accepted_at[i], sum(sp->lengths + i + 1, ENGINE_DEPTH_MAX - i, 0));
    assert_int_equal(f->injected, f->echo + f->forced);
    assert_int_equal(f->accepted, f->echo);
    assert_int_equal(f->events, sum(f->lengths, ENGINE_DEPTH_MAX + 1, 0));
    assert_true(sp->forwards <= r->outcome.completion_count - 1);
}

static void proposals_change_nothing(void **state)
{
    static const uint32_t who[] = {ENGINE_PROPOSE_ECHO, ENGINE_PROPOSE_LOOKUP, ENGINE_PROPOSE_ECHO | ENGINE_PROPOSE_LOOKUP};
    static struct rig_result plain[3], again[3];
    uint32_t prompt[90], accepted = 0, rejected = 0, copied = 0;
    (void)state;
    repeating(5, prompt, 60, 20);
    for (enum kind kind = 0; kind < KINDS; kind++) {
        struct engine_request_config c = config(kind, 45);
        rig_run(&rig, &c, prompt, 60, plain);
        check_figures(&plain[0]);
        assert_int_equal(plain[0].outcome.speculation.forwards, 44);
        for (uint32_t i = 0; i < 3; i++) {
            for (uint32_t depth = 0; depth <= ENGINE_DEPTH_MAX; depth = depth ? depth * 6 + 1 : rig_steps) {
                c.propose = who[i];
                c.propose_depth = depth;
                c.chunk_max = depth ? 5 * depth : 0;
                rig_run(&rig, &c, prompt, 60, again);
                for (uint32_t k = 0; k < c.n; k++) {
                    const struct engine_speculation *sp = &again[k].outcome.speculation;
                    rig_assert_equal(&plain[k], &again[k]);
                    accepted += sp->accepted;
                    rejected += sp->rejected;
                    copied += sp->fill.injected;
                    check_figures(&again[k]);
                    assert_true(who[i] != ENGINE_PROPOSE_ECHO || sp->rounds + sp->drafted == 0); /* copies are forwards, no drafts */
                    assert_true(who[i] != ENGINE_PROPOSE_LOOKUP || sp->fill.events + sp->fill.injected == 0);
                }
            }
        }
    }
    print_message("accepted %u, rejected %u, copied %u\n", accepted, rejected, copied);
    assert_true(accepted > 100 && rejected > 100 && copied > 0);
}

/* The ids that an answer is made of, said to be delimiters: nothing of it is copied, and it is the same. */
static void copies_end_at_delimiters(void **state)
{
    static struct rig_result plain, copied, cut;
    uint32_t prompt[90], found = 0;
    (void)state;
    for (uint32_t seed = 5; seed < 13; seed++) {
        struct engine_request_config c = config(GREEDY, 45);
        repeating(seed, prompt, 60, 20);
        rig_run(&rig, &c, prompt, 60, &plain);
        c.propose = ENGINE_PROPOSE_ECHO;
        c.propose_depth = ENGINE_DEPTH_MAX;
        rig_run(&rig, &c, prompt, 60, &copied);
        c.cut_ids = plain.ids;
        c.cut_count = plain.outcome.completion_count;
        rig_run(&rig, &c, prompt, 60, &cut);
        rig_assert_equal(&plain, &copied);
        rig_assert_equal(&plain, &cut);
        assert_int_equal(cut.outcome.speculation.fill.injected, 0);
        found += copied.outcome.speculation.fill.injected;
    }
    assert_true(found > 0);
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
    for (uint32_t at = rig_steps; at < 40; at += 4) {
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

/* ---- constraints ---- */

/* An allow-list says the same as a bias of minus infinity on everything else. */
static void an_allow_list_is_a_bias(void **state)
{
    static struct rig_result listed, biased;
    static struct sample_bias biases[RIG_VOCAB];
    uint32_t prompt[40], n = 0;
    (void)state;
    rig_prompt(12, prompt, 40);
    for (uint32_t id = 0; id < RIG_VOCAB; id++) {
        bool in = false;
        for (size_t i = 0; i < sizeof allowed / sizeof *allowed; i++)
            in |= allowed[i] == id;
        if (!in)
            biases[n++] = (struct sample_bias){id, -INFINITY};
    }
    for (int noisy = 0; noisy < 2; noisy++) {
        struct engine_request_config a = config(ALLOWED, 30), b;
        a.sampling.temperature = noisy ? 0.8f : 0;
        b = a;
        b.allowed_count = 0;
        b.sampling.biases = biases;
        b.sampling.bias_count = n;
        rig_run(&rig, &a, prompt, 40, &listed);
        rig_run(&rig, &b, prompt, 40, &biased);
        rig_assert_equal(&listed, &biased);
    }
}

/* words of the cycle: anything below 20, then only 7, then only 8, then an even id; over after `most` tokens */
struct cycle {
    struct constraint base;
    uint32_t at, most;
};

static bool cycle_takes(const struct cycle *c, uint32_t id)
{
    static const uint32_t only[] = {0, 7, 8, 0};
    return c->at % 4 == 0 ? id < 20 : c->at % 4 == 3 ? id % 2 == 0 : id == only[c->at % 4];
}

static void cycle_mask(struct constraint *b, uint32_t *words)
{
    memset(words, 0, constraint_words(RIG_VOCAB) * sizeof *words);
    for (uint32_t id = 0; id < RIG_VOCAB; id++)
        words[id / 32] |= (uint32_t)cycle_takes((struct cycle *)b, id) << id % 32;
}

static bool cycle_advance(struct constraint *b, uint32_t id)
{
    struct cycle *c = (struct cycle *)b;
    bool takes = cycle_takes(c, id);
    c->at += takes;
    return takes;
}

static void cycle_rewind(struct constraint *b, uint32_t count)
{
    ((struct cycle *)b)->at -= count;
}

static bool cycle_complete(const struct constraint *b)
{
    return ((const struct cycle *)b)->at == ((const struct cycle *)b)->most;
}

static void cycle_free(struct constraint *b)
{
    mem_free(b);
}

static int cycle_open(void *ctx, uint32_t vocab, struct constraint **out, struct err *err)
{
    static const struct constraint_ops ops = {cycle_mask, cycle_advance, cycle_rewind, cycle_complete, cycle_free};
    struct cycle *c = mem_try_zero(1, sizeof *c);
    (void)vocab;
    *out = &c->base;
    if (!c)
        return err_nomem(err, "cycle", sizeof *c);
    c->base.ops = &ops;
    c->most = *(uint32_t *)ctx;
    return 0;
}

static void constraints_hold_in_every_round(void **state)
{
    static struct rig_result plain, again;
    uint32_t prompt[40], most = 43, forwards = 0;
    struct constraint_source source = {cycle_open, &most};
    (void)state;
    rig_prompt(13, prompt, 40);
    struct engine_request_config c = config(SEEDED, 60);
    c.constraint = &source;
    c.logprobs = true; /* nothing is asserted: a row says every log-probability */
    rig_run(&rig, &c, prompt, 40, &plain);
    assert_int_equal(plain.count, most);
    assert_int_equal(plain.outcome.finish, ENGINE_STOP);
    struct cycle check = {.most = most};
    for (uint32_t i = 0; i < plain.count; i++)
        assert_true(cycle_advance(&check.base, plain.ids[i]));
    for (uint32_t who = 0; who < 4; who++) {
        c.propose = who;
        c.propose_depth = who ? 7 : 0;
        for (int asserted = 0; asserted < 2; asserted++) {
            c.logprobs = !asserted;
            rig_run(&rig, &c, prompt, 40, &again);
            rig_assert_same(&plain, &again);
            assert_int_equal(again.outcome.finish, ENGINE_STOP);
            if (!asserted)
                rig_assert_equal(&plain, &again);
            else {
                const struct engine_speculation *sp = &again.outcome.speculation;
                assert_true(sp->fill.forced >= (who ? 1 : 20));
                assert_true(sp->forwards < plain.outcome.speculation.forwards);
                forwards = sp->forwards;
            }
        }
    }
    print_message("%u tokens, %u forwards plainly, %u asserted\n", plain.count, plain.outcome.speculation.forwards, forwards);
    c.propose = 0;
    c.max_tokens = 13; /* the budget ends inside a forced run */
    rig_run(&rig, &c, prompt, 40, &again);
    assert_int_equal(again.count, 13);
    assert_int_equal(again.outcome.finish, ENGINE_LENGTH);
    c.ring = 8; /* little room: forced ids wait for the consumer */
    c.max_tokens = 60;
    rig_run(&rig, &c, prompt, 40, &again);
    rig_assert_same(&plain, &again);
}

static void impossible_constraints_end_their_own_sequence(void **state)
{
    static struct rig_result none, other;
    uint32_t prompt[20], end = 5;
    struct err err = {0};
    struct engine_request *q;
    (void)state;
    rig_prompt(14, prompt, 20);
    struct engine_request_config c = config(GREEDY, 10), o = config(SEEDED, 40);
    c.allowed_ids = c.end_ids = &end;
    c.allowed_count = c.end_count = 1;
    struct engine_request *beside = rig_submit(&rig, &o, prompt, 20);
    rig_run(&rig, &c, prompt, 20, &none); /* only the end: an empty answer */
    assert_int_equal(none.outcome.finish, ENGINE_STOP);
    assert_int_equal(none.count, 0);
    assert_int_equal(none.outcome.completion_count, 1);
    c.min_tokens = 3; /* and the end is not allowed yet */
    rig_run(&rig, &c, prompt, 20, &none);
    assert_int_equal(none.outcome.finish, ENGINE_ERROR);
    assert_int_equal(none.outcome.err.code, ERR_ARGUMENT);
    rig_finish(beside, 1, &other);
    assert_int_equal(other.outcome.finish, ENGINE_LENGTH);
    end = RIG_VOCAB;
    c.end_count = 0;
    assert_int_equal(engine_request_new(rig.engine, &c, &q, &err), 0);
    assert_int_equal(engine_submit(q, prompt, 20, &err), ERR_ARGUMENT);
    engine_request_release(q);
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
    rig_config = (struct engine_config){.rows_max = 48};
    const struct CMUnitTest tests[] = {
        RIG_TEST(proposals_change_nothing),
        RIG_TEST(copies_end_at_delimiters),
        RIG_TEST(ends_fall_where_they_do_plainly),
        RIG_TEST(state_after_rounds_is_plain_state),
        RIG_TEST(beside_others),
        RIG_TEST(an_allow_list_is_a_bias),
        RIG_TEST(constraints_hold_in_every_round),
        RIG_TEST(impossible_constraints_end_their_own_sequence),
        RIG_TEST(wrong_depths_are_refused),
    };
    return rig_run_group(tests);
}
