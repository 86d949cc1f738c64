/* The public library on a small model: order of events, errors as events, lifetimes, two models under one host, many threads. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "rhapsode.h"

#include <pthread.h>

#define LLAMA TEST_DATA "/../golden/llama"
#define GEMMA TEST_DATA "/../golden/gemma3"

static struct rh_host *host;
static struct rh_model *model;

static const uint32_t prompt[] = {1, 20, 33, 47, 5, 99, 120, 7};

struct answer {
    uint32_t ids[400], count;
    char text[4096];
    size_t text_n;
    struct rh_event done;
    int events, prompts;
};

static struct rh_request *submit(struct rh_model *m, const struct rh_request_options *o)
{
    struct rh_error err = {0};
    struct rh_request *r = NULL;
    if (rh_submit(m, o, &r, &err))
        fail_msg("submit: %s", err.text);
    return r;
}

static void collect(struct rh_request *r, struct answer *a)
{
    struct rh_event e;
    int rc;
    memset(a, 0, sizeof *a);
    while ((rc = rh_poll(r, &e, -1)) == 1) {
        if (a->events++ == 0 && e.kind != RH_EVENT_DONE)
            assert_int_equal(e.kind, RH_EVENT_PROMPT);
        a->prompts += e.kind == RH_EVENT_PROMPT;
        if (e.kind == RH_EVENT_TEXT && e.choice == 0) {
            if (e.has_token)
                a->ids[a->count++] = e.id;
            assert_true(a->text_n + e.text_n < sizeof a->text);
            memcpy(a->text + a->text_n, e.text, e.text_n);
            a->text_n += e.text_n;
        }
        if (e.kind == RH_EVENT_DONE && e.choice == 0)
            a->done = e;
    }
    assert_int_equal(rc, RH_ERR_END);
    assert_int_equal(rh_poll(r, &e, 0), RH_ERR_END);
    rh_request_free(r);
}

static struct rh_request_options ids_options(int64_t max_tokens)
{
    return (struct rh_request_options){.ids = prompt, .id_count = sizeof prompt / sizeof *prompt, .max_tokens = max_tokens, .ignore_eos = true,
                                       .seed_given = true, .seed = 4};
}

static void events_come_in_order(void **state)
{
    static struct answer a, b;
    (void)state;
    struct rh_request_options o = ids_options(20);
    collect(submit(model, &o), &a);
    assert_int_equal(a.prompts, 1);
    assert_int_equal(a.count, 20);
    assert_int_equal(a.done.finish, RH_FINISH_LENGTH);
    assert_int_equal(a.done.usage.completion_tokens, 20);
    assert_int_equal(a.done.usage.prompt_tokens, 8);
    assert_int_equal(a.done.seed, 4);
    assert_true(a.done.timings.prefill_ms > 0 && a.done.timings.decode_ms > 0 && a.done.timings.load_ms > 0);
    collect(submit(model, &o), &b);
    assert_memory_equal(a.ids, b.ids, sizeof a.ids);
    assert_int_equal(b.done.usage.cached_tokens, 7); /* all but the last token of a known prompt */
}

/* Plainly one forward a token after the first; guessed tokens save theirs. */
static void figures_say_what_happened(void **state)
{
    static struct answer plain, guessed;
    uint32_t ids[60];
    (void)state;
    for (uint32_t i = 0; i < 60; i++)
        ids[i] = 20 + i % 7;
    struct rh_sampling sampling;
    static const struct rh_bias few[] = {{20, 60}, {21, 60}, {22, 60}}; /* the text runs in circles */
    rh_sampling_default(model, &sampling);
    sampling.temperature = 0;
    sampling.biases = few;
    sampling.bias_count = 3;
    struct rh_request_options o = {.ids = ids, .id_count = 60, .max_tokens = 50, .ignore_eos = true, .sampling = &sampling, .propose = "none"};
    collect(submit(model, &o), &plain);
    o.propose = "lookup";
    o.propose_depth = 6;
    collect(submit(model, &o), &guessed);
    for (int i = 0; i < 2; i++) {
        const struct rh_event *e = i ? &guessed.done : &plain.done;
        const struct rh_speculation *s = &e->speculation;
        const struct rh_timings *t = &e->timings;
        assert_int_equal(e->usage.completion_tokens, 50);
        assert_true(i ? s->decode_forwards < 49 : s->decode_forwards == 49);
        assert_int_equal(s->forwards_saved, 49 - s->decode_forwards);
        assert_true(s->tokens_per_forward == 50.0 / s->decode_forwards);
        assert_true(t->decode_tokens_per_s == 49 / t->decode_ms * 1e3);
        assert_true(t->prefill_tokens_per_s == (e->usage.prompt_tokens - e->usage.cached_tokens) / t->prefill_ms * 1e3);
        assert_int_equal(s->drafted, s->accepted + s->rejected);
        assert_true(i ? s->rounds > 0 && s->accepted > 0 : s->rounds + s->drafted == 0);
    }
    assert_int_equal(plain.count, guessed.count);
    assert_memory_equal(plain.ids, guessed.ids, plain.count * sizeof *plain.ids);
}

static void a_chat_goes_on_from_its_own_state(void **state)
{
    static struct answer a, b;
    char messages[8192];
    const char *first = "[{\"role\":\"user\",\"content\":\"Tell me of the sea, and of ships.\"}]";
    struct rh_chat chat = {.messages_json = {first, strlen(first)}};
    struct rh_request_options o = {.chat = &chat, .max_tokens = 6, .ignore_eos = true};
    (void)state;
    collect(submit(model, &o), &a);
    /* a history that repeats the first turn: everything up to its end is known */
    snprintf(messages, sizeof messages, "[{\"role\":\"user\",\"content\":\"Tell me of the sea, and of ships.\"},"
             "{\"role\":\"assistant\",\"content\":\"x\"},{\"role\":\"user\",\"content\":\"More.\"}]");
    chat.messages_json = (struct rh_text){messages, strlen(messages)};
    collect(submit(model, &o), &b);
    assert_true(b.done.usage.cached_tokens >= a.done.usage.prompt_tokens - 1);
    assert_true(b.done.usage.prompt_tokens > a.done.usage.prompt_tokens);
}

/* The answer is edited: the prompt's state is still used, by window layers too, and the bits are those of a cold run. */
static void an_edited_answer_keeps_the_prompt(void **state)
{
    static const char *const paths[] = {LLAMA, GEMMA};
    static struct answer a, warm, cold;
    struct rh_error err = {0};
    uint32_t ids[300];
    (void)state;
    for (uint32_t i = 0; i < 300; i++)
        ids[i] = 10 + i * 7 % 200;
    for (int k = 0; k < 2; k++) {
        struct rh_model *m[2];
        for (int i = 0; i < 2; i++)
            assert_int_equal(rh_model_open(host, paths[k], &(struct rh_model_options){.rows_max = 32 + 17 * (uint32_t)i}, &m[i], &err), 0);
        struct rh_request_options o = {.ids = ids, .id_count = 150, .max_tokens = 120, .ignore_eos = true};
        collect(submit(m[0], &o), &a);
        o.id_count = 200; /* another continuation than the answer */
        o.max_tokens = 20;
        collect(submit(m[0], &o), &warm);
        collect(submit(m[1], &o), &cold);
        assert_int_equal(a.done.finish, RH_FINISH_LENGTH);
        assert_true(warm.done.usage.cached_tokens >= 149);
        assert_int_equal(cold.done.usage.cached_tokens, 0);
        assert_memory_equal(warm.ids, cold.ids, 20 * sizeof *warm.ids);
        rh_model_close(m[0]);
        rh_model_close(m[1]);
    }
}

static void preparation_errors_are_events(void **state)
{
    static struct answer a;
    const char *bad[] = {"{", "{}", "[1]"};
    (void)state;
    for (int i = 0; i < 3; i++) {
        struct rh_chat chat = {.messages_json = {bad[i], strlen(bad[i])}};
        struct rh_request_options o = {.chat = &chat, .n = i == 0 ? 2 : 1};
        collect(submit(model, &o), &a);
        assert_int_equal(a.done.finish, RH_FINISH_ERROR);
        assert_true(a.done.error.code < 0 && a.done.error.text[0]);
        assert_int_equal(a.events, i == 0 ? 2 : 1);
    }
    struct rh_request_options o = ids_options(100000);
    collect(submit(model, &o), &a);
    assert_int_equal(a.done.finish, RH_FINISH_ERROR);
    assert_int_equal(a.done.error.code, RH_ERR_LIMIT);
    assert_non_null(strstr(a.done.error.text, "100000"));
}

static void bad_options_are_refused(void **state)
{
    struct rh_error err;
    struct rh_request *r;
    struct rh_sampling s;
    struct rh_bias bias = {3, __builtin_nanf("")};
    struct rh_text stop = {"\xff", 1};
    (void)state;
    rh_sampling_default(model, &s);
    struct rh_request_options list[10];
    for (int i = 0; i < 10; i++)
        list[i] = ids_options(4);
    list[0].ids = NULL;
    list[1].prompt = (struct rh_text){"x", 1};
    list[2].kv = "q8";
    list[3].n = 129;
    list[4].top_logprobs = 129;
    list[5].stop = &stop, list[5].stop_count = 1;
    list[6].stop = &stop, list[6].stop_count = 17;
    struct rh_sampling hot = s, biased = s;
    hot.temperature = -1;
    biased.biases = &bias, biased.bias_count = 1;
    list[7].sampling = &hot;
    list[8].sampling = &biased;
    list[9].kv_start_given = true, list[9].kv_start = 7;
    for (int i = 0; i < 10; i++) {
        err = (struct rh_error){0};
        assert_true(rh_submit(model, &list[i], &r, &err) < 0);
        assert_null(r);
        assert_true(err.code < 0 && err.text[0]);
    }
    struct rh_request_options same = ids_options(4);
    same.kv = "f16:f16";
    same.kv_start_given = true;
    collect(submit(model, &same), &(struct answer){0});
}

static void cancel_and_free_at_any_time(void **state)
{
    struct rh_event e;
    static struct answer a;
    (void)state;
    struct rh_request_options o = ids_options(-1);
    for (int i = 0; i < 30; i++) {
        struct rh_request *r = submit(model, &o);
        for (int k = 0; k < i; k++)
            rh_poll(r, &e, 1);
        if (i % 2) {
            rh_request_cancel(r);
            while (rh_poll(r, &e, -1) == 1)
                if (e.kind == RH_EVENT_DONE)
                    assert_int_equal(e.finish, RH_FINISH_CANCELLED);
        }
        rh_request_free(r);
    }
    o = ids_options(5);
    collect(submit(model, &o), &a);
    assert_int_equal(a.count, 5);
    rh_request_free(NULL);
    rh_model_close(NULL);
    rh_host_close(NULL);
}

static void closing_a_model_ends_its_requests(void **state)
{
    struct rh_error err = {0};
    struct rh_model *second;
    struct rh_request *r[8];
    struct rh_event e;
    (void)state;
    assert_int_equal(rh_model_open(host, GEMMA, &(struct rh_model_options){.context = 256}, &second, &err), 0);
    struct rh_request_options o = ids_options(-1);
    for (int i = 0; i < 8; i++)
        r[i] = submit(second, &o);
    rh_model_close(second);
    for (int i = 0; i < 8; i++) {
        int rc;
        enum rh_finish finish = RH_FINISH_ERROR;
        while ((rc = rh_poll(r[i], &e, -1)) == 1)
            if (e.kind == RH_EVENT_DONE)
                finish = e.finish;
        assert_int_equal(rc, RH_ERR_END);
        assert_int_equal(finish, RH_FINISH_CANCELLED);
        rh_request_free(r[i]);
    }
}

struct client {
    struct rh_model *m;
    struct answer plain;
    int wrong;
};

static void *client_thread(void *arg)
{
    struct client *c = arg;
    struct answer *a = malloc(sizeof *a);
    struct rh_request_options o = ids_options(12);
    for (int i = 0; i < 5; i++) {
        collect(submit(c->m, &o), a);
        c->wrong += a->count != c->plain.count || memcmp(a->ids, c->plain.ids, a->count * sizeof *a->ids) != 0;
    }
    free(a);
    return NULL;
}

/* A preparation that goes on when the engine is no longer there reads nothing of it. */
static void a_model_is_closed_while_prompts_are_prepared(void **state)
{
    enum { WORDS = 400000, WORD = 8 };
    struct rh_error err = {0};
    struct rh_model *second;
    struct rh_request *r[4];
    char *text = malloc(WORDS * WORD);
    (void)state;
    for (size_t i = 0; i < WORDS * WORD; i++)
        text[i] = i % WORD == 0 ? ' ' : (char)('a' + i * i % 23);
    assert_int_equal(rh_model_open(host, GEMMA, &(struct rh_model_options){.context = 256}, &second, &err), 0);
    struct rh_request_options o = {.prompt = {text, WORDS * WORD}, .max_tokens = 4, .truncate = true};
    for (int i = 0; i < 4; i++)
        r[i] = submit(second, &o);
    rh_model_close(second);
    for (int i = 0; i < 4; i++) {
        struct rh_event e;
        int rc;
        while ((rc = rh_poll(r[i], &e, -1)) == 1)
            assert_true(e.kind != RH_EVENT_DONE || e.finish == RH_FINISH_CANCELLED || e.finish == RH_FINISH_ERROR);
        rh_request_free(r[i]);
    }
    free(text);
}

static void two_models_share_a_host(void **state)
{
    struct rh_error err = {0};
    struct rh_model *second;
    static struct client c[4];
    pthread_t t[4];
    (void)state;
    assert_int_equal(rh_model_open(host, GEMMA, &(struct rh_model_options){0}, &second, &err), 0);
    for (int i = 0; i < 4; i++) {
        struct rh_request_options o = ids_options(12);
        c[i].m = i % 2 ? second : model;
        collect(submit(c[i].m, &o), &c[i].plain);
    }
    for (int i = 0; i < 4; i++)
        assert_int_equal(pthread_create(&t[i], NULL, client_thread, &c[i]), 0);
    for (int i = 0; i < 4; i++) {
        pthread_join(t[i], NULL);
        assert_int_equal(c[i].wrong, 0);
    }
    rh_model_close(second);
}

static void inspection_loads_no_weights(void **state)
{
    struct rh_error err = {0};
    struct rh_model *m;
    struct rh_request *r;
    struct rh_ids ids;
    char *text = NULL;
    size_t n = 0;
    (void)state;
    assert_int_equal(rh_model_open(host, LLAMA, &(struct rh_model_options){.inspect_only = true}, &m, &err), 0);
    assert_int_equal(rh_tokenize(m, (struct rh_text){"hello", 5}, true, false, &ids, &err), 0);
    assert_int_equal(rh_detokenize(m, ids.ids, ids.n, &text, &n, &err), 0);
    assert_int_equal(n, 5);
    assert_memory_equal(text, "hello", 5);
    rh_free(text);
    assert_int_equal(rh_token_text(m, ids.ids[0], &text, &n, &err), 0);
    rh_free(text);
    rh_free(ids.ids);
    struct rh_request_options o = ids_options(4);
    assert_int_equal(rh_submit(m, &o, &r, &err), RH_ERR_ARGUMENT);
    assert_int_equal(rh_model_info_json(m, 0, &text, &err), 0);
    assert_non_null(strstr(text, "\"identity\":\"model="));
    rh_free(text);
    rh_model_close(m);
    err = (struct rh_error){0};
    assert_int_equal(rh_model_open(host, "/no/such/file", &(struct rh_model_options){0}, &m, &err), RH_ERR_NOT_FOUND);
    assert_null(m);
    assert_non_null(strstr(err.text, "/no/such/file"));
}

static int setup(void **state)
{
    struct rh_error err = {0};
    (void)state;
    if (rh_host_open(&(struct rh_host_options){0}, &host, &err) || rh_model_open(host, LLAMA, &(struct rh_model_options){0}, &model, &err)) {
        print_error("%s\n", err.text);
        return -1;
    }
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    rh_model_close(model);
    rh_host_close(host);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(events_come_in_order),
        cmocka_unit_test(figures_say_what_happened),
        cmocka_unit_test(a_chat_goes_on_from_its_own_state),
        cmocka_unit_test(an_edited_answer_keeps_the_prompt),
        cmocka_unit_test(preparation_errors_are_events),
        cmocka_unit_test(bad_options_are_refused),
        cmocka_unit_test(cancel_and_free_at_any_time),
        cmocka_unit_test(closing_a_model_ends_its_requests),
        cmocka_unit_test(a_model_is_closed_while_prompts_are_prepared),
        cmocka_unit_test(two_models_share_a_host),
        cmocka_unit_test(inspection_loads_no_weights),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
