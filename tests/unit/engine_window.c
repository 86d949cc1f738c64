/* A long answer of a model with windows holds no more state than a short one: what its windows and the rewind slack reach, and what the tree of
 * known prefixes keeps usable.  The same answer without windows holds every page. */
#define RIG_MICRO 1
#define RIG_CONTEXT 4096
#include "engine_rig.h"

enum { PROMPT = 60, ANSWER = 1200, WINDOW = 32 };

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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(windows_bound_the_state_of_a_long_answer),
    };
    return rig_run_group(tests);
}
