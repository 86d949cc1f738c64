/* The loop: one answer whatever the schedule; ends, limits, the ring, cancel, reuse, pre-emption. */
#include "engine_rig.h"

#include <pthread.h>
#include <stdatomic.h>

static struct engine_request_config greedy_config(int64_t max_tokens)
{
    return rig_request(max_tokens, 0, 0);
}

static struct engine_request_config noisy_config(int64_t max_tokens, uint64_t seed)
{
    struct engine_request_config c = rig_request(max_tokens, 0.9f, seed);
    c.sampling.top_p = 0.95f;
    rig_penalties(&c, 1.1f, 0.2f, 0, 20);
    return c;
}

static void chunks_and_neighbours_change_nothing(void **state)
{
    uint32_t prompt[100], other[60];
    static struct rig_result plain, again[4], beside[3];
    (void)state;
    rig_prompt(1, prompt, 100);
    for (int noisy = 0; noisy < 2; noisy++) {
        struct engine_request_config c = noisy ? noisy_config(40, 5) : greedy_config(40);
        rig_run(&rig, &c, prompt, 100, &plain);
        assert_int_equal(plain.count, 40);
        assert_int_equal(plain.outcome.finish, ENGINE_LENGTH);
        for (uint32_t chunk = 1; chunk < 34; chunk += 11) {
            c.chunk_max = chunk;
            struct engine_request *q[3], *mine;
            for (uint32_t i = 0; i < 3; i++) {
                struct engine_request_config o = noisy_config(30, 100 + i);
                rig_prompt(50 + i, other, 60);
                q[i] = rig_submit(&rig, &o, other, 20 * (i + 1));
            }
            mine = rig_submit(&rig, &c, prompt, 100);
            rig_finish(mine, 1, &again[0]);
            for (uint32_t i = 0; i < 3; i++)
                rig_finish(q[i], 1, &beside[i]);
            rig_assert_same(&plain, &again[0]);
        }
    }
}

static void choices_share_the_prompt(void **state)
{
    uint32_t prompt[45];
    static struct rig_result one, three[3], again[3];
    (void)state;
    rig_prompt(2, prompt, 45);
    struct engine_request_config c = noisy_config(25, 9);
    c.no_reuse = false;
    rig_run(&rig, &c, prompt, 45, &one);
    c.n = 3;
    rig_run(&rig, &c, prompt, 45, three);
    rig_run(&rig, &c, prompt, 45, again);
    rig_assert_same(&one, &three[0]);
    for (int i = 0; i < 3; i++) {
        rig_assert_same(&three[i], &again[i]);
        assert_int_equal(three[i].outcome.prompt_count, 45);
        assert_int_equal(three[i].outcome.completion_count, 25);
    }
    assert_memory_not_equal(three[0].ids, three[1].ids, 25 * sizeof(uint32_t));
    assert_memory_not_equal(three[1].ids, three[2].ids, 25 * sizeof(uint32_t));
}

/* Eight choices of one prompt name its whole pages together; each has its own page from where the texts part.  They stand still because
 * nobody reads, so what is counted is what they hold. */
static void choices_share_pages_until_they_part(void **state)
{
    enum { N = 8, LENGTH = 100, WHOLE = LENGTH / KV_PAGE };
    uint32_t prompt[LENGTH];
    static struct rig_result r[N];
    struct engine_stats stats, before = {.steps = UINT64_MAX};
    (void)state;
    rig_prompt(12, prompt, LENGTH);
    struct engine_request_config c = noisy_config(24, 9);
    c.no_reuse = false;
    c.n = N;
    c.ring = 8; /* the least there is: four events a choice */
    struct engine_request *q = rig_submit(&rig, &c, prompt, LENGTH);
    engine_stats(rig.engine, &stats);
    while (stats.steps != before.steps || stats.running < N || stats.prefilling) {
        before = stats;
        rig_sleep_us(20000);
        engine_stats(rig.engine, &stats);
    }
    print_message("%d choices of %d tokens: %llu pages\n", N, LENGTH, (unsigned long long)(stats.kv.pages_live + stats.kv.pages_cached));
    assert_in_range(stats.kv.pages_live, WHOLE + N, WHOLE + N);
    assert_true(stats.kv.pages_cached <= 1); /* the prompt's last page as it was, known to the tree */
    rig_finish(q, N, r);
    for (int i = 0; i < N; i++)
        assert_int_equal(r[i].count, 24);
    rig_settle(&stats);
    assert_int_equal(stats.kv.pages_live, 0);
}

static void kept_state_is_reused_and_changes_nothing(void **state)
{
    uint32_t prompt[200];
    static struct rig_result first, warm, cold;
    (void)state;
    rig_prompt(3, prompt, 40);
    struct engine_request_config c = greedy_config(20);
    c.no_reuse = false;
    rig_run(&rig, &c, prompt, 40, &first);
    memcpy(prompt + 40, first.ids, 20 * sizeof *prompt);
    rig_prompt(4, prompt + 60, 30);
    rig_run(&rig, &c, prompt, 90, &warm);
    assert_int_equal(warm.outcome.cached_count, 59); /* the 20th token was never fed */
    c.no_reuse = true;
    rig_run(&rig, &c, prompt, 90, &cold);
    assert_int_equal(cold.outcome.cached_count, 0);
    rig_assert_same(&warm, &cold);
    c.no_reuse = false; /* the very same prompt: all but its last token */
    rig_run(&rig, &c, prompt, 90, &warm);
    assert_int_equal(warm.outcome.cached_count, 89);
    rig_assert_same(&warm, &cold);
    prompt[70] ^= 1; /* edited in the middle */
    rig_run(&rig, &c, prompt, 90, &warm);
    assert_int_equal(warm.outcome.cached_count, 70);
    c.no_reuse = true;
    rig_run(&rig, &c, prompt, 90, &cold);
    rig_assert_same(&warm, &cold);
}

static uint32_t first_new(const struct rig_result *r, uint32_t from) /* a place >= from whose id did not occur before */
{
    for (uint32_t i = from; i < r->count; i++) {
        bool seen = false;
        for (uint32_t j = 0; j < i; j++)
            seen |= r->ids[j] == r->ids[i];
        if (!seen)
            return i;
    }
    fail_msg("no new id");
    return 0;
}

static void end_ids_are_counted_not_emitted(void **state)
{
    uint32_t prompt[30];
    static struct rig_result plain, ended;
    (void)state;
    rig_prompt(5, prompt, 30);
    struct engine_request_config c = noisy_config(40, 3);
    rig_run(&rig, &c, prompt, 30, &plain);
    uint32_t at = first_new(&plain, 3), end = plain.ids[at];
    c.end_ids = &end;
    c.end_count = 1;
    rig_run(&rig, &c, prompt, 30, &ended);
    assert_int_equal(ended.outcome.finish, ENGINE_STOP);
    assert_int_equal(ended.outcome.stop, -1);
    assert_int_equal(ended.count, at);
    assert_int_equal(ended.outcome.completion_count, at + 1);
    c.max_tokens = at; /* no budget for the end: length */
    rig_run(&rig, &c, prompt, 30, &ended);
    assert_int_equal(ended.outcome.finish, ENGINE_LENGTH);
    assert_int_equal(ended.outcome.completion_count, at);
    c.max_tokens = 40;
    c.min_tokens = at + 5; /* banned there, so another id comes */
    rig_run(&rig, &c, prompt, 30, &ended);
    assert_true(ended.count >= at + 5);
    for (uint32_t i = 0; i < at; i++)
        assert_int_equal(ended.ids[i], plain.ids[i]);
    for (uint32_t i = 0; i < at + 5; i++)
        assert_int_not_equal(ended.ids[i], end);
}

static void stop_strings_cross_borders(void **state)
{
    uint32_t prompt[30];
    char text[64];
    static struct rig_result plain, ended;
    (void)state;
    rig_prompt(6, prompt, 30);
    struct engine_request_config c = noisy_config(40, 4);
    rig_run(&rig, &c, prompt, 30, &plain);
    uint32_t at = first_new(&plain, 5);
    snprintf(text, sizeof text, "%u><%u", plain.ids[at - 1] % 10, plain.ids[at]); /* the end of one id, most of the next */
    struct str stops[] = {STR("never"), {text, strlen(text)}};
    c.stops = stops;
    c.stop_count = 2;
    rig_run(&rig, &c, prompt, 30, &ended);
    assert_int_equal(ended.outcome.finish, ENGINE_STOP);
    assert_int_equal(ended.outcome.stop, 1);
    assert_int_equal(ended.count, at + 1);
    for (uint32_t i = 0; i <= at; i++)
        assert_int_equal(ended.ids[i], plain.ids[i]);
    c.max_tokens = at + 1; /* both hold at one token: stop comes before length */
    rig_run(&rig, &c, prompt, 30, &ended);
    assert_int_equal(ended.outcome.finish, ENGINE_STOP);
}

static void what_cannot_fit_is_refused_with_numbers(void **state)
{
    uint32_t prompt[RIG_CONTEXT + 1];
    struct err err = {0};
    struct engine_request *q;
    static struct rig_result r;
    (void)state;
    rig_prompt(7, prompt, RIG_CONTEXT + 1);
    struct engine_request_config c = greedy_config(500);
    assert_int_equal(engine_request_new(rig.engine, &c, &q, &err), 0);
    assert_int_equal(engine_submit(q, prompt, 100, &err), ERR_LIMIT);
    assert_non_null(strstr(err.text, "100"));
    assert_non_null(strstr(err.text, "500"));
    assert_non_null(strstr(err.text, "512"));
    engine_request_release(q);
    c.max_tokens_soft = true; /* a default is cut instead */
    rig_run(&rig, &c, prompt, 500, &r);
    assert_int_equal(r.count, 12);
    assert_int_equal(r.outcome.finish, ENGINE_LENGTH);
    c.max_tokens = -1;
    rig_run(&rig, &c, prompt, 505, &r);
    assert_int_equal(r.count, 7);
    err = (struct err){0};
    assert_int_equal(engine_request_new(rig.engine, &c, &q, &err), 0);
    assert_int_equal(engine_submit(q, prompt, RIG_CONTEXT, &err), ERR_LIMIT);
    engine_request_release(q);
    err = (struct err){0};
    assert_int_equal(engine_request_new(rig.engine, &c, &q, &err), 0);
    assert_int_equal(engine_submit(q, prompt, 0, &err), ERR_ARGUMENT);
    engine_request_release(q);
    prompt[3] = RIG_VOCAB;
    err = (struct err){0};
    assert_int_equal(engine_request_new(rig.engine, &c, &q, &err), 0);
    assert_int_equal(engine_submit(q, prompt, 10, &err), ERR_ARGUMENT);
    assert_non_null(strstr(err.text, "64"));
    engine_request_release(q);
}

static void a_full_ring_holds_only_its_own_back(void **state)
{
    uint32_t prompt[30];
    static struct rig_result slow, plain, other;
    struct engine_stats before, after;
    (void)state;
    rig_prompt(8, prompt, 30);
    struct engine_request_config c = noisy_config(60, 1), o = noisy_config(100, 2);
    rig_run(&rig, &c, prompt, 30, &plain);
    c.ring = 8;
    struct engine_request *q = rig_submit(&rig, &c, prompt, 30);
    for (int i = 0; i < 3; i++)
        rig_run(&rig, &o, prompt, 20, &other); /* nobody polls q meanwhile */
    assert_int_equal(other.count, 100);
    rig_sleep_us(30000);
    engine_stats(rig.engine, &before);
    rig_sleep_us(30000);
    engine_stats(rig.engine, &after);
    assert_int_equal(before.steps, after.steps); /* all are stalled: the engine sleeps */
    assert_int_equal(after.running, 1);
    rig_finish(q, 1, &slow);
    rig_assert_same(&plain, &slow);
}

static void cancel_in_every_state(void **state)
{
    uint32_t prompt[400];
    static struct rig_result r;
    struct engine_stats stats;
    struct engine_event e;
    (void)state;
    rig_prompt(9, prompt, 400);
    struct engine_request_config c = greedy_config(-1);
    for (int when = 0; when < 5; when++) {
        c.chunk_max = when == 1 ? 1 : 0;
        c.n = when == 3 ? 4 : 1;
        struct engine_request *q;
        struct err err = {0};
        assert_int_equal(engine_request_new(rig.engine, &c, &q, &err), 0);
        if (when == 0)
            engine_request_cancel(q); /* before it was submitted */
        assert_int_equal(engine_submit(q, prompt, when == 1 ? 400 : 40, &err), 0);
        if (when == 1)
            rig_sleep_us(2000); /* in its prefill */
        else if (when >= 2) {
            uint32_t seen = engine_request_seen(q); /* in decode, n > 1, and with a full ring */
            while (!engine_poll(q, &e)) {
                engine_request_wait(q, seen, -1);
                seen = engine_request_seen(q);
            }
            if (when == 4)
                rig_sleep_us(100000);
        }
        engine_request_cancel(q);
        static struct rig_result all[4];
        rig_finish(q, c.n, all);
        r = all[0];
        assert_int_equal(r.outcome.finish, ENGINE_CANCELLED);
    }
    engine_close(rig.engine);
    rig_engine(&rig, &(struct engine_config){.retain_none = true});
    c.n = 1;
    struct engine_request *q[20];
    for (int i = 0; i < 20; i++)
        q[i] = rig_submit(&rig, &c, prompt + i, 100);
    for (int i = 0; i < 20; i++) {
        engine_request_cancel(q[19 - i]);
        rig_finish(q[19 - i], 1, &r);
        assert_int_equal(r.outcome.finish, ENGINE_CANCELLED);
    }
    rig_run(&rig, &(struct engine_request_config){.max_tokens = 2, .sampling = rig_greedy()}, prompt, 10, &r);
    rig_sleep_us(20000);
    engine_stats(rig.engine, &stats);
    assert_int_equal(stats.running + stats.waiting, 0);
    assert_int_equal(stats.kv.live_bytes, 0); /* no page is lost */
}

static void preemption_changes_nothing(void **state)
{
    uint32_t prompt[6][60];
    static struct rig_result plain[6], tight[6];
    struct engine_request *q[6];
    struct engine_stats stats;
    (void)state;
    for (uint32_t i = 0; i < 6; i++) {
        struct engine_request_config c = noisy_config(150, i);
        rig_prompt(20 + i, prompt[i], 60);
        rig_run(&rig, &c, prompt[i], 60, &plain[i]);
    }
    engine_close(rig.engine);
    rig_engine(&rig, &(struct engine_config){.state_bytes = 2u << 20});
    for (uint32_t i = 0; i < 6; i++) {
        struct engine_request_config c = noisy_config(150, i);
        c.no_reuse = i % 2;
        q[i] = rig_submit(&rig, &c, prompt[i], 60);
    }
    for (uint32_t i = 0; i < 6; i++) {
        rig_finish(q[i], 1, &tight[i]);
        assert_int_equal(tight[i].outcome.finish, ENGINE_LENGTH);
        rig_assert_same(&plain[i], &tight[i]);
    }
    engine_stats(rig.engine, &stats);
    print_message("pre-empted %llu times, state %llu of %llu bytes\n", (unsigned long long)stats.preempted,
                  (unsigned long long)stats.state_peak_bytes, (unsigned long long)stats.kv.total_bytes);
    assert_true(stats.preempted > 0);
    assert_true(stats.kv.live_bytes <= stats.kv.total_bytes);
}

/* Twice the memory there is: whoever is pre-empted computes its state anew, in steps past those it takes plainly; the oldest never does. */
static void the_oldest_is_never_preempted(void **state)
{
    enum { REQUESTS = 6, ANSWER = 150 };
    uint32_t prompt[60], again = 0;
    static struct rig_result r;
    struct engine_request *q[REQUESTS];
    (void)state;
    rig_reopen(&(struct engine_config){.state_bytes = 2u << 20, .retain_none = true});
    for (uint32_t i = 0; i < REQUESTS; i++) {
        struct engine_request_config c = noisy_config(ANSWER, i);
        rig_prompt(20 + i, prompt, 60);
        q[i] = rig_submit(&rig, &c, prompt, 60);
    }
    for (uint32_t i = 0; i < REQUESTS; i++) {
        rig_finish(q[i], 1, &r);
        assert_int_equal(r.outcome.finish, ENGINE_LENGTH);
        assert_int_equal(r.count, ANSWER);
        assert_true(r.outcome.speculation.forwards >= ANSWER - 1);
        assert_true(i || r.outcome.speculation.forwards == ANSWER - 1);
        again += r.outcome.speculation.forwards > ANSWER - 1;
    }
    print_message("%u of %d computed rows again\n", again, REQUESTS);
    assert_true(again > 0);
}

static void closing_ends_everything(void **state)
{
    uint32_t prompt[40];
    static struct rig_result r;
    struct engine_request *q[30];
    (void)state;
    rig_prompt(11, prompt, 40);
    struct engine_request_config c = greedy_config(-1);
    for (int i = 0; i < 30; i++)
        q[i] = rig_submit(&rig, &c, prompt, 40);
    engine_close(rig.engine);
    rig.engine = NULL;
    for (int i = 0; i < 30; i++) {
        rig_finish(q[i], 1, &r);
        assert_int_equal(r.outcome.finish, ENGINE_CANCELLED);
    }
}

struct scored {
    float logprob[200];
    uint32_t rows;
    float last[RIG_VOCAB];
};

static void take_row(void *ctx, uint32_t position, const struct sample_result *r, const float *logits)
{
    struct scored *s = ctx;
    assert_int_equal(position, s->rows);
    s->logprob[s->rows++] = r->score_logprob;
    if (logits)
        memcpy(s->last, logits, sizeof s->last);
}

static void scores_do_not_depend_on_chunks(void **state)
{
    uint32_t prompt[150];
    static struct scored a, b;
    static struct rig_result r;
    (void)state;
    memset(&a, 0, sizeof a);
    memset(&b, 0, sizeof b);
    rig_prompt(12, prompt, 150);
    struct engine_score score = {.row = take_row, .ctx = &a, .top = 2, .logits_last = true};
    struct engine_request_config c = {.score = &score};
    rig_run(&rig, &c, prompt, 150, &r);
    assert_int_equal(r.outcome.finish, ENGINE_LENGTH);
    assert_int_equal(a.rows, 150);
    score.ctx = &b;
    score.logits_all = true;
    c.chunk_max = 7;
    rig_run(&rig, &c, prompt, 150, &r);
    assert_int_equal(b.rows, 150);
    assert_memory_equal(a.logprob, b.logprob, 149 * sizeof(float));
    assert_memory_equal(a.last, b.last, sizeof a.last);
}

/* The group runs with one step in flight, then with two: the second one's staging is in the plan. */
static void each_step_in_flight_is_planned(void **state)
{
    static uint64_t one;
    uint64_t bytes = model_info(rig.model)->step_bytes, ids = 32 * sizeof(uint32_t);
    (void)state;
    one = rig_steps == 1 ? bytes : one;
    assert_true(rig_steps == 1 || bytes > one + 3 * ids);
}

/* ---- a task of another kind, once nobody runs ---- */

static _Atomic bool told;

static int wait_until_told(void *ctx, struct kv *kv, struct err *err)
{
    (void)ctx;
    (void)kv;
    for (int i = 0; i < 400 && !atomic_load(&told); i++)
        rig_sleep_us(5000);
    return atomic_load(&told) ? 0 : err_set(err, ERR_BUSY, "nobody was told for two seconds");
}

static void *run_task(void *out)
{
    struct err err = {0};
    *(int *)out = engine_exclusive(rig.engine, wait_until_told, NULL, &err);
    return NULL;
}

/* A measurement may take long: who waits for the end of an answer hears of it before, not after. */
static void a_task_does_not_hold_the_last_events_back(void **state)
{
    uint32_t prompt[20];
    static struct rig_result r;
    pthread_t thread;
    int rc = 1;
    (void)state;
    rig_prompt(8, prompt, 20);
    struct engine_request_config c = greedy_config(30);
    atomic_store(&told, false);
    struct engine_request *q = rig_submit(&rig, &c, prompt, 20);
    assert_int_equal(pthread_create(&thread, NULL, run_task, &rc), 0);
    rig_finish(q, 1, &r);
    atomic_store(&told, true);
    pthread_join(thread, NULL);
    assert_int_equal(r.count, 30);
    assert_int_equal(rc, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        RIG_TEST(chunks_and_neighbours_change_nothing),
        RIG_TEST(choices_share_the_prompt),
        RIG_TEST(choices_share_pages_until_they_part),
        RIG_TEST(kept_state_is_reused_and_changes_nothing),
        RIG_TEST(end_ids_are_counted_not_emitted),
        RIG_TEST(stop_strings_cross_borders),
        RIG_TEST(what_cannot_fit_is_refused_with_numbers),
        RIG_TEST(a_full_ring_holds_only_its_own_back),
        RIG_TEST(cancel_in_every_state),
        RIG_TEST(preemption_changes_nothing),
        RIG_TEST(the_oldest_is_never_preempted),
        RIG_TEST(closing_ends_everything),
        RIG_TEST(scores_do_not_depend_on_chunks),
        RIG_TEST(each_step_in_flight_is_planned),
        RIG_TEST(a_task_does_not_hold_the_last_events_back),
    };
    return rig_run_group(tests);
}
