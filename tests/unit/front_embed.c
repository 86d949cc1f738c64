/* Embeddings, log-probabilities of prompts and required calls depend on the text alone: not on chunks, neighbours, threads, level, guesses, or what
 * was known of it. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/buf.h"
#include "base/mem.h"
#include "base/rng.h"
#include "rhapsode.h"

#define LLAMA TEST_DATA "/../golden/llama"
#define RECURRENT TEST_DATA "/../golden/qwen3_5"
#define WINDOW TEST_DATA "/../golden/gemma3"

enum { TEXTS = 6, IDS_MAX = 200, DIMS_MAX = 512, TOP = 3 };

struct setting {
    const char *backend, *isa;
    uint32_t threads, rows;
};
enum { MANY_ROWS = 2, LEVEL_REF = 3 }; /* level ref is ten times as slow */
static const struct setting settings[] = {{"cpu", NULL, 1, 5}, {"cpu", NULL, 2, 64}, [MANY_ROWS] = {"cpu", NULL, 2, 512}, [LEVEL_REF] = {"cpu", "ref", 1, 512}};

/* of one text */
struct result {
    float embedding[DIMS_MAX];
    size_t n;
    float logprobs[IDS_MAX], tops[IDS_MAX][TOP];
    uint32_t top_ids[IDS_MAX][TOP];
    uint32_t cached;
};

static uint32_t ids_of(uint32_t text, uint32_t *ids)
{
    uint32_t n = 7 + 31 * text;
    for (uint32_t i = 0; i < n; i++) {
        uint32_t c[4] = {i, text < 4 ? text : 3, 0, 0}, bits[4]; /* the last ones begin alike */
        rng_philox(11, c, bits);
        ids[i] = 3 + bits[0] % 250;
    }
    return n;
}

static void collect(struct rh_request *r, struct result *out)
{
    struct rh_event e;
    struct rh_top tops[TOP];
    uint32_t count;
    int rc;
    memset(out, 0, sizeof *out);
    while ((rc = rh_poll(r, &e, -1)) == 1) {
        if (e.kind != RH_EVENT_DONE)
            continue;
        assert_int_not_equal(e.finish, RH_FINISH_ERROR);
        out->n = e.embedding_n;
        out->cached = e.usage.cached_tokens;
        if (e.embedding_n)
            memcpy(out->embedding, e.embedding, e.embedding_n * sizeof *e.embedding);
    }
    assert_int_equal(rc, RH_ERR_END);
    for (uint32_t i = 1; rh_request_prompt_logprob(r, i, &out->logprobs[i], tops, &count); i++)
        for (uint32_t k = 0; k < count; k++) {
            out->tops[i][k] = tops[k].logprob;
            out->top_ids[i][k] = tops[k].id;
        }
    rh_request_free(r);
}

static struct rh_request *submit(struct rh_model *m, uint32_t text, enum rh_embed embed, bool scores, uint32_t dimensions)
{
    uint32_t ids[IDS_MAX];
    struct rh_error err = {0};
    struct rh_request *r = NULL;
    struct rh_request_options o = {.ids = ids, .id_count = ids_of(text, ids), .embed = embed, .prompt_logprobs = scores,
                                   .prompt_top_logprobs = scores ? TOP : 0, .max_tokens = 4, .ignore_eos = true, .dimensions = dimensions};
    if (rh_submit(m, &o, &r, &err))
        fail_msg("submit: %s", err.text);
    return r;
}

struct all {
    struct result mean[TEXTS], last[TEXTS], scored[TEXTS];
};

/* One after the other, then all at once, and once more when all is known. */
static void run(struct rh_model *m, int how, struct all *out)
{
    struct rh_request *q[3][TEXTS];
    struct result *to[3] = {out->mean, out->last, out->scored};
    for (uint32_t t = 0; t < TEXTS; t++)
        for (int kind = 0; kind < 3; kind++) {
            q[kind][t] = submit(m, t, kind == 0 ? RH_EMBED_MEAN : kind == 1 ? RH_EMBED_LAST : RH_EMBED_NONE, kind == 2, 0);
            if (how == 0)
                collect(q[kind][t], &to[kind][t]);
        }
    for (uint32_t t = 0; t < TEXTS && how; t++)
        for (int kind = 0; kind < 3; kind++)
            collect(q[kind][t], &to[kind][t]);
}

static void same(const struct all *a, const struct all *b)
{
    for (uint32_t t = 0; t < TEXTS; t++) {
        const struct result *x[3] = {&a->mean[t], &a->last[t], &a->scored[t]}, *y[3] = {&b->mean[t], &b->last[t], &b->scored[t]};
        for (int kind = 0; kind < 3; kind++) {
            assert_int_equal(x[kind]->n, y[kind]->n);
            assert_memory_equal(x[kind]->embedding, y[kind]->embedding, sizeof x[kind]->embedding);
            assert_memory_equal(x[kind]->logprobs, y[kind]->logprobs, sizeof x[kind]->logprobs);
            assert_memory_equal(x[kind]->tops, y[kind]->tops, sizeof x[kind]->tops);
            assert_memory_equal(x[kind]->top_ids, y[kind]->top_ids, sizeof x[kind]->top_ids);
        }
    }
}

static void open_with(const struct setting *s, const char *path, struct rh_host **h, struct rh_model **m)
{
    struct rh_error err = {0};
    struct rh_host_options ho = {.backend = s->backend, .cpu_isa = s->isa, .threads = s->threads, .no_pin = true, .state_bytes = 64u << 20};
    struct rh_model_options mo = {.rows_max = s->rows};
    if (rh_host_open(&ho, h, &err) || rh_model_open(*h, path, &mo, m, &err))
        fail_msg("%s: %s", path, err.text);
}

static void vectors_depend_on_their_text_alone(void **state)
{
    static const char *const models[] = {LLAMA, RECURRENT, WINDOW};
    static struct all first, other;
    (void)state;
    for (size_t k = 0; k < sizeof models / sizeof *models; k++)
        for (size_t i = 0; i < sizeof settings / sizeof *settings; i++) {
            struct rh_host *h;
            struct rh_model *m;
            open_with(&settings[i], models[k], &h, &m);
            for (int how = 0; how < (i == LEVEL_REF ? 1 : i ? 2 : 3); how++) {
                run(m, how, i + (size_t)how ? &other : &first);
                if (i + (size_t)how)
                    same(&first, &other);
            }
            assert_true(other.last[TEXTS - 1].cached > 0); /* it was known by then, and the vector is the same */
            assert_int_equal(other.mean[TEXTS - 1].cached, 0);
            rh_model_close(m);
            rh_host_close(h);
        }
}

static double length(const struct result *r)
{
    double sum = 0;
    for (size_t i = 0; i < r->n; i++)
        sum += (double)r->embedding[i] * (double)r->embedding[i];
    return sum;
}

static void vectors_have_length_one_and_as_many_dimensions_as_asked(void **state)
{
    struct rh_host *h;
    struct rh_model *m;
    struct rh_error err = {0};
    struct rh_request *q = NULL;
    static struct result whole, part;
    uint32_t ids[IDS_MAX];
    (void)state;
    open_with(&settings[0], LLAMA, &h, &m);
    collect(submit(m, 2, RH_EMBED_MODEL, false, 0), &whole);
    collect(submit(m, 2, RH_EMBED_LAST, false, 16), &part);
    assert_int_equal(whole.n, 64);
    assert_int_equal(part.n, 16);
    assert_true(length(&whole) > 0.999999 && length(&whole) < 1.000001 && length(&part) > 0.999999 && length(&part) < 1.000001);
    for (int i = 1; i < 16; i++) { /* files that say nothing: the last row */
        double ratio = (double)part.embedding[i] / (double)whole.embedding[i] * (double)whole.embedding[0] / (double)part.embedding[0];
        assert_true(ratio > 0.9999 && ratio < 1.0001);
    }
    struct rh_request_options o = {.ids = ids, .id_count = ids_of(1, ids), .embed = RH_EMBED_LAST, .dimensions = 65};
    assert_int_equal(rh_submit(m, &o, &q, &err), RH_ERR_ARGUMENT);
    assert_non_null(strstr(err.text, "65"));
    o.dimensions = 0;
    o.n = 2;
    assert_int_equal(rh_submit(m, &o, &q, &err), RH_ERR_ARGUMENT);
    rh_model_close(m);
    rh_host_close(h);
}

/* What follows a prompt is the same whether it was asked about or not, and a prompt's log-probabilities are score's. */
static void prompts_are_scored_beside_their_answer(void **state)
{
    struct rh_host *h;
    struct rh_model *m;
    char *json = NULL;
    struct rh_error err = {0};
    uint32_t ids[IDS_MAX], n = ids_of(4, ids);
    static struct result r;
    (void)state;
    open_with(&settings[MANY_ROWS], LLAMA, &h, &m);
    collect(submit(m, 4, RH_EMBED_NONE, true, 0), &r);
    struct rh_score_options so = {.ids = ids, .id_count = n};
    assert_int_equal(rh_score_json(m, &so, &json, &err), 0);
    const char *at = strstr(json, "\"logprob_of_next\":[");
    assert_non_null(at);
    at += strlen("\"logprob_of_next\":[");
    for (uint32_t i = 1; i < n; i++) {
        char *end;
        float v = strtof(at, &end);
        assert_true(v == r.logprobs[i]);
        assert_true(r.tops[i][0] >= r.logprobs[i] && r.tops[i][0] >= r.tops[i][1] && r.tops[i][1] >= r.tops[i][2]);
        at = end + 1;
    }
    assert_true(r.logprobs[n] == 0 && r.logprobs[0] == 0);
    rh_free(json);
    rh_model_close(m);
    rh_host_close(h);
}

#define TOOLS "[{\"type\":\"function\",\"function\":{\"name\":\"get_time\"}},{\"type\":\"function\",\"function\":{\"name\":\"get_place\"}}]"

/* Ids of the answers to a chat that must begin with a call. */
static uint32_t called(struct rh_model *m, const char *propose, const char *name, uint32_t choices, uint32_t *ids)
{
    static const char messages[] = "[{\"role\":\"user\",\"content\":\"hello\"}]";
    struct rh_chat chat = {.messages_json = {messages, strlen(messages)}, .tools_json = {TOOLS, strlen(TOOLS)}};
    struct rh_sampling sampling;
    struct rh_error err = {0};
    struct rh_request *r = NULL;
    struct rh_event e;
    uint32_t count[2] = {0}, begun[2] = {0};
    rh_sampling_default(m, &sampling);
    sampling.temperature = 0.9f;
    struct rh_request_options o = {.chat = &chat, .output = "hermes", .call_required = true, .call_name = name, .max_tokens = 70, .ignore_eos = true,
                                   .seed_given = true, .seed = 5, .sampling = &sampling, .propose = propose, .propose_depth = 6, .n = choices};
    if (rh_submit(m, &o, &r, &err))
        fail_msg("submit: %s", err.text);
    while (rh_poll(r, &e, -1) == 1) {
        if (e.has_token)
            ids[e.choice * 100 + count[e.choice]++] = e.id;
        if (e.kind == RH_EVENT_CALL_BEGIN && begun[e.choice]++ == 0)
            assert_true(name ? !strcmp(e.call_name, name) : !strcmp(e.call_name, "get_time") || !strcmp(e.call_name, "get_place"));
        if (e.kind == RH_EVENT_DONE && e.finish != RH_FINISH_LENGTH)
            fail_msg("finish %d: %s", e.finish, e.error.text);
    }
    rh_request_free(r);
    for (uint32_t i = 0; i < choices; i++)
        assert_int_equal(begun[i] > 0, 1);
    return count[0] + count[1];
}

/* The same ids by any proposer, threads and chunks, and for each choice. */
static void required_calls_depend_on_nothing_else(void **state)
{
    static const char *const proposers[] = {"none", "lookup", "echo", "echo,lookup"};
    static const char *const names[] = {NULL, "get_place"};
    (void)state;
    for (int named = 0; named < 2; named++) {
        uint32_t first[200] = {0}, other[200] = {0}, n = 0;
        for (size_t i = 0; i < sizeof settings / sizeof *settings; i++) {
            struct rh_host *h;
            struct rh_model *m;
            open_with(&settings[i], LLAMA, &h, &m);
            for (size_t k = 0; k < 4; k++)
                if (i + k == 0)
                    n = called(m, proposers[k], names[named], 2, first);
                else {
                    assert_int_equal(called(m, proposers[k], names[named], 2, other), n);
                    assert_memory_equal(first, other, sizeof first);
                }
            rh_model_close(m);
            rh_host_close(h);
        }
    }
}

/* Embeddings, scored prompts, required calls, chats that are shortened: whichever request for memory fails, the request does, and by name. */
static void memory_may_fail_anywhere(void **state)
{
    struct rh_host *h;
    struct rh_model *m;
    uint32_t ids[IDS_MAX];
    struct buf messages = {0};
    (void)state;
    buf_z(&messages, "[{\"role\":\"system\",\"content\":\"a\"}");
    for (int i = 0; i < 120; i++)
        buf_z(&messages, i % 2 ? ",{\"role\":\"assistant\",\"content\":\"b c\"}" : ",{\"role\":\"user\",\"content\":\"d e f g\"}");
    buf_z(&messages, ",{\"role\":\"user\",\"content\":\"h\"}]");
    struct rh_chat chat = {.messages_json = {messages.p, messages.n}, .tools_json = {TOOLS, strlen(TOOLS)}};
    struct rh_request_options list[] = {
        {.ids = ids, .id_count = ids_of(1, ids), .embed = RH_EMBED_MEAN},
        {.ids = ids, .id_count = ids_of(1, ids), .prompt_logprobs = true, .prompt_top_logprobs = 2, .max_tokens = 1},
        {.chat = &chat, .output = "hermes", .call_required = true, .call_name = "get_time", .truncate = true, .max_tokens = 3}};
    open_with(&settings[MANY_ROWS], LLAMA, &h, &m);
    for (size_t k = 0; k < sizeof list / sizeof *list; k++) {
        int good = 0, failed = 0;
        for (int64_t n = 0; n < 4000 && good < 2; n += 1 + n / 40) {
            struct rh_error err = {0};
            struct rh_request *r = NULL;
            struct rh_event e;
            mem_fault_set(n);
            int rc = rh_submit(m, &list[k], &r, &err), code = rc;
            while (rc == 0 && rh_poll(r, &e, -1) == 1)
                if (e.kind == RH_EVENT_DONE && e.finish == RH_FINISH_ERROR)
                    code = e.error.code;
            mem_fault_set(-1);
            rh_request_free(r);
            assert_true(code == 0 || code == RH_ERR_NOMEM);
            good = code ? 0 : good + 1;
            failed += code != 0;
        }
        print_message("request %zu: %d of its requests for memory failed\n", k, failed);
        assert_true(good == 2 && failed > 5);
    }
    buf_free(&messages);
    rh_model_close(m);
    rh_host_close(h);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(vectors_depend_on_their_text_alone),
        cmocka_unit_test(vectors_have_length_one_and_as_many_dimensions_as_asked),
        cmocka_unit_test(prompts_are_scored_beside_their_answer),
        cmocka_unit_test(required_calls_depend_on_nothing_else),
        cmocka_unit_test(memory_may_fail_anywhere),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
