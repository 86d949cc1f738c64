/* A long text of a model with windows holds no more state for its window layers than a short one: what windows and the rewind slack reach while
 * it runs, and beside that, given up first, what the tree of known prefixes keeps usable.  And rounds that are refused across a window's edge. */
#define RIG_MICRO 1
#define RIG_CONTEXT 4096
#include "engine_rig.h"

enum { PROMPT = 60, ANSWER = 1200, WINDOW = 32, SMALL = 16, SLACK = 2 * KV_PAGE, ROWS = 32 };

/* The most pages that were held at any time. */
static uint64_t pages_most(uint32_t *count)
{
    struct engine_stats stats;
    struct engine_event event;
    uint32_t prompt[PROMPT];
    uint64_t most = 0;
    rig_prompt(3, prompt, PROMPT);
    struct engine_request_config c = rig_request(ANSWER, 0.7f, 4);
    c.no_reuse = false;
    struct engine_request *q = rig_submit(&rig, &c, prompt, PROMPT);
    for (bool done = false; !done;) {
        uint32_t seen = engine_request_seen(q);
        while (!done && engine_poll(q, &event)) {
            done = event.kind == ENGINE_DONE;
            *count += !done;
        }
        engine_stats(rig.engine, &stats);
        uint64_t held = stats.kv.pages_live + stats.kv.pages_cached;
        most = held > most ? held : most;
        if (!done)
            engine_request_wait(q, seen, -1);
    }
    engine_request_release(q);
    return most;
}

static void windows_bound_the_state_of_a_long_answer(void **state)
{
    uint64_t most[2];
    (void)state;
    for (int window = 0; window < 2; window++) {
        uint32_t count = 0;
        rig_window = window ? WINDOW : 0;
        rig_open(&rig, &(struct engine_config){0});
        most[window] = pages_most(&count);
        assert_int_equal(count, ANSWER);
        rig_close(&rig);
    }
    rig_window = 0;
    print_message("%d positions: %llu pages, with windows of %d: %llu\n", PROMPT + ANSWER, (unsigned long long)most[0], WINDOW, (unsigned long long)most[1]);
    assert_in_range(most[0], (PROMPT + ANSWER) / KV_PAGE, (PROMPT + ANSWER) / KV_PAGE + 2);
    /* live: window and slack, and the page begun; spare: a window and two; marks: of the prompt, and two on the way of window and a page each */
    assert_true(most[1] <= (WINDOW + 64) / KV_PAGE + 2 + WINDOW / KV_PAGE + 2 + 4 * (WINDOW / KV_PAGE + 1));
}

/* ---- layers with windows beside layers without ---- */

static uint32_t pages(uint32_t positions)
{
    return (positions + KV_PAGE - 1) / KV_PAGE;
}

/* what was seen over all turns of one request */
struct watched {
    uint32_t count;
    uint64_t beside_most, cached_most; /* live pages past those of the full layer; kept pages nobody runs on */
};

/* Turn by turn: the gate is ours between two of them. */
static void watch(struct engine_gate *gate, uint32_t prompt_count, uint32_t answer, struct watched *w)
{
    static uint32_t prompt[RIG_CONTEXT];
    struct engine_request_config c = rig_request(answer, 0.7f, 4);
    struct engine_stats stats;
    struct engine_event event;
    *w = (struct watched){0};
    rig_prompt(3, prompt, prompt_count);
    c.no_reuse = false;
    struct engine_request *q = rig_submit(&rig, &c, prompt, prompt_count);
    for (bool done = false; !done;) {
        engine_gate_enter(gate);
        while (!done && engine_poll(q, &event)) {
            done = event.kind == ENGINE_DONE;
            w->count += !done;
        }
        engine_stats(rig.engine, &stats);
        uint32_t known = w->count ? prompt_count + w->count : engine_request_progress(q);
        uint64_t full = pages(known + (rig_steps - 1) * ROWS), live = stats.running ? stats.kv.pages_live : 0;
        w->beside_most = live > full && live - full > w->beside_most ? live - full : w->beside_most;
        w->cached_most = stats.running && stats.kv.pages_cached > w->cached_most ? stats.kv.pages_cached : w->cached_most;
        engine_gate_leave(gate);
    }
    engine_request_release(q);
}

/* Gemma 3's kind, whatever the length and whether anything is kept, in so little memory that nothing more would fit. */
static void windows_beside_full_layers_are_bounded(void **state)
{
    static const uint32_t lengths[] = {300, 1200, 3500};
    uint64_t bound = (SMALL + SLACK + rig_steps * ROWS - 1 + KV_PAGE - 2) / KV_PAGE + 1; /* wherever that run begins in its page */
    (void)state;
    rig_window = SMALL;
    rig_gemma = true;
    for (int kept = 0; kept < 2; kept++) {
        for (uint32_t i = 0; i < 3; i++) {
            struct engine_gate gate;
            struct watched w;
            engine_gate_init(&gate);
            rig_open(&rig, &(struct engine_config){.gate = &gate, .retain_none = !kept, .state_bytes = 2u << 20});
            watch(&gate, lengths[i] - 100, 100, &w);
            print_message("%s, %u positions: %llu pages beside the full layer's (bound %llu), %llu kept\n", kept ? "kept" : "nothing kept", lengths[i],
                          (unsigned long long)w.beside_most, (unsigned long long)bound, (unsigned long long)w.cached_most);
            assert_int_equal(w.count, 100);
            assert_in_range(w.beside_most, SMALL / KV_PAGE + 1, bound);
            /* spare: a window and two pages; the prompt's marks and each thousandth position's: a window and a page */
            assert_true(w.cached_most <= (kept ? SMALL / KV_PAGE + 3 + (2 + lengths[i] / 1024) * (SMALL / KV_PAGE + 2) : 0));
            rig_close(&rig);
            engine_gate_free(&gate);
        }
    }
    rig_gemma = false;
    rig_window = 0;
}

/* Drafts refused by one row, and by a window's rows more or less one, at every place of a page: the answer is the plain one. */
static void rounds_are_refused_across_the_edge(void **state)
{
    static const uint32_t depths[] = {1, SMALL - 1, SMALL, SMALL + 1};
    static struct rig_result plain, again;
    uint32_t prompt[80];
    (void)state;
    rig_window = SMALL;
    rig_gemma = true;
    rig_open(&rig, &(struct engine_config){.retain_none = true});
    rig_prompt(5, prompt, 80);
    for (uint32_t i = 12; i < 80; i++)
        prompt[i] = prompt[i - 12];
    struct engine_request_config c = rig_request(130, 0.5f, 11);
    rig_logprobs(&c);
    rig_run(&rig, &c, prompt, 80, &plain);
    for (uint32_t i = 0; i < 4; i++) {
        c.propose = ENGINE_PROPOSE_ECHO | ENGINE_PROPOSE_LOOKUP;
        c.propose_depth = depths[i];
        rig_run(&rig, &c, prompt, 80, &again);
        const struct engine_speculation *sp = &again.outcome.speculation;
        print_message("depth %u: %u rounds, %u refused, %u of copies\n", depths[i], sp->rounds, sp->rejected, sp->fill.rejected);
        assert_true(sp->rejected + sp->fill.rejected >= depths[i]);
        rig_assert_equal(&plain, &again);
    }
    rig_close(&rig);
    rig_gemma = false;
    rig_window = 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(windows_bound_the_state_of_a_long_answer),
        cmocka_unit_test(windows_beside_full_layers_are_bounded),
        cmocka_unit_test(rounds_are_refused_across_the_edge),
    };
    return rig_run_group(tests);
}
