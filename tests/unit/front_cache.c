/* Reuse through the public library: conversations, rewinds and retries compute the new rows alone and give the bits of a cold run; answers keep
 * the ids that were chosen; tenants do not see each other; a miss says why. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "rhapsode.h"

enum { IDS_MAX = 512, TOPS = 20, PAGE = 32, TURNS = 20 };

static const char *const paths[] = {TEST_DATA "/../golden/llama", TEST_DATA "/../golden/gemma3"}; /* the second has windows of 16 */
static struct rh_host *host;

struct answer {
    uint32_t prompt[IDS_MAX], prompt_n, ids[IDS_MAX], n;
    float logprobs[IDS_MAX];
    struct rh_top tops[IDS_MAX][TOPS];
    char text[4096];
    size_t text_n;
    struct rh_event done;
};

static struct rh_model *open_model(const char *path)
{
    struct rh_error err = {0};
    struct rh_model *m = NULL;
    if (rh_model_open(host, path, &(struct rh_model_options){.rows_max = 64}, &m, &err))
        fail_msg("%s", err.text);
    return m;
}

static void run(struct rh_model *m, const struct rh_request_options *o, struct answer *a)
{
    struct rh_error err = {0};
    struct rh_request *r = NULL;
    struct rh_event e;
    memset(a, 0, sizeof *a);
    if (rh_submit(m, o, &r, &err))
        fail_msg("submit: %s", err.text);
    while (rh_poll(r, &e, -1) == 1) {
        if (e.kind == RH_EVENT_PROMPT) {
            assert_true(e.prompt_count <= IDS_MAX);
            a->prompt_n = (uint32_t)e.prompt_count;
            memcpy(a->prompt, e.prompt_ids, e.prompt_count * sizeof *e.prompt_ids);
        }
        if (e.kind == RH_EVENT_TEXT) {
            memcpy(a->text + a->text_n, e.text, e.text_n);
            a->text_n += e.text_n;
        }
        if (e.kind == RH_EVENT_TEXT && e.has_token) {
            memcpy(a->tops[a->n], e.tops, e.top_count * sizeof *e.tops);
            a->logprobs[a->n] = e.logprob;
            a->ids[a->n++] = e.id;
        }
        if (e.kind == RH_EVENT_DONE)
            a->done = e;
    }
    rh_request_free(r);
    if (a->done.finish == RH_FINISH_ERROR)
        fail_msg("%s", a->done.error.text);
}

/* The same prompt ids where nothing is known: every bit of every row that chose a token. */
static void assert_cold_same(struct rh_model *m, const struct rh_request_options *o, const struct answer *warm)
{
    static struct answer cold;
    static uint32_t runs;
    char tenant[32];
    struct rh_request_options c = *o;
    snprintf(tenant, sizeof tenant, "cold %u", runs++);
    c.chat = NULL;
    c.ids = warm->prompt;
    c.id_count = warm->prompt_n;
    c.boundaries = NULL;
    c.boundary_count = 0;
    c.tenant = tenant;
    run(m, &c, &cold);
    assert_int_equal(cold.done.cache.cached_tokens, 0);
    assert_int_equal(cold.n, warm->n);
    assert_memory_equal(cold.ids, warm->ids, warm->n * sizeof *warm->ids);
    assert_memory_equal(cold.logprobs, warm->logprobs, warm->n * sizeof *warm->logprobs);
    assert_memory_equal(cold.tops, warm->tops, warm->n * sizeof *warm->tops);
}

static uint32_t computed(const struct answer *a)
{
    return a->done.usage.prompt_tokens - a->done.usage.cached_tokens;
}

/* Only printable ASCII that JSON takes as it is. */
static void ascii_sampling(struct rh_model *m, struct rh_sampling *s, struct rh_bias *bias)
{
    uint32_t n = 0;
    rh_sampling_default(m, s);
    for (uint32_t id = 0; id < 384; id++) {
        char *text = NULL;
        size_t text_n = 0;
        bool good = rh_token_text(m, id, &text, &text_n, NULL) == 0 && text_n > 0;
        for (size_t i = 0; good && i < text_n; i++)
            good = text[i] >= ' ' && text[i] < 127 && text[i] != '"' && text[i] != '\\';
        good = good && text[0] != '<';
        rh_free(text);
        if (!good)
            bias[n++] = (struct rh_bias){id, -1000};
    }
    s->temperature = 1;
    s->top_p = 1;
    s->top_k = 0;
    s->biases = bias;
    s->bias_count = n;
}

static bool encodes_so(struct rh_model *m, const struct answer *a)
{
    struct rh_ids ids = {0};
    struct rh_error err = {0};
    assert_int_equal(rh_tokenize(m, (struct rh_text){a->text, a->text_n}, true, true, &ids, &err), 0);
    bool same = ids.n == a->n && memcmp(ids.ids, a->ids, a->n * sizeof *a->ids) == 0;
    rh_free(ids.ids);
    return same;
}

static void a_conversation_computes_what_is_new(void **state)
{
    static struct answer turn[TURNS];
    static struct rh_bias bias[384];
    static char messages[16384];
    uint32_t other_ids = 0;
    (void)state;
    for (int k = 0; k < 2; k++) {
        struct rh_model *m = open_model(paths[k]);
        struct rh_sampling sampling;
        size_t at = 0;
        ascii_sampling(m, &sampling, bias);
        for (uint32_t t = 0; t < TURNS; t++) {
            if (t)
                at += (size_t)snprintf(messages + at, sizeof messages - at, ",{\"role\":\"assistant\",\"content\":\"%.*s\"},", (int)turn[t - 1].text_n,
                                       turn[t - 1].text);
            at += (size_t)snprintf(messages + at, sizeof messages - at, "%s{\"role\":\"user\",\"content\":\"so %u\"}", t ? "" : "[", t);
            messages[at] = ']';
            struct rh_chat chat = {.messages_json = {messages, at + 1}};
            struct rh_request_options o = {.chat = &chat, .max_tokens = 9, .ignore_eos = true, .sampling = &sampling, .seed_given = true,
                                           .seed = t, .top_logprobs = TOPS, .session = "talk"};
            run(m, &o, &turn[t]);
            assert_int_equal(turn[t].n, 9);
            other_ids += !encodes_so(m, &turn[t]);
            if (t) {
                const struct answer *old = &turn[t - 1];
                uint32_t known = old->prompt_n + old->n;
                assert_memory_equal(turn[t].prompt, old->prompt, old->prompt_n * sizeof *old->prompt);
                assert_memory_equal(turn[t].prompt + old->prompt_n, old->ids, old->n * sizeof *old->ids);
                assert_true(computed(&turn[t]) <= turn[t].prompt_n - known + 1); /* the last token of an answer was never fed */
            }
            assert_cold_same(m, &o, &turn[t]);
            struct answer *again = malloc(sizeof *again); /* regenerate: one row */
            run(m, &o, again);
            assert_int_equal(computed(again), 1);
            assert_null(again->done.cache.reason);
            assert_memory_equal(again->ids, turn[t].ids, turn[t].n * sizeof *turn[t].ids);
            assert_memory_equal(again->tops, turn[t].tops, turn[t].n * sizeof *turn[t].tops);
            free(again);
        }
        rh_model_close(m);
    }
    print_message("%u of %u answers would have been encoded otherwise\n", other_ids, 2 * (unsigned)TURNS);
    assert_true(other_ids > 0);
}

static void rewinds_compute_what_is_new(void **state)
{
    static struct answer first, warm;
    static const uint32_t back[] = {1, 15, 16, 17, 40}; /* of a window of 16: 1, w - 1, w, w + 1 */
    (void)state;
    for (int k = 0; k < 2; k++) {
        for (uint32_t b = 0; b < 5; b++) {
            struct rh_model *m = open_model(paths[k]);
            uint32_t ids[IDS_MAX];
            for (uint32_t i = 0; i < IDS_MAX; i++)
                ids[i] = 10 + i * 7 % 200;
            struct rh_request_options o = {.ids = ids, .id_count = 150, .max_tokens = 90, .ignore_eos = true, .top_logprobs = TOPS,
                                           .seed_given = true};
            run(m, &o, &first);
            memcpy(ids + 150, first.ids, 90 * sizeof *ids);
            uint32_t at = 239 - back[b]; /* the last token was never fed */
            for (uint32_t i = at; i < at + 25; i++)
                ids[i] = (ids[i] + 1) % 300;
            o.id_count = at + 25;
            o.max_tokens = 20;
            run(m, &o, &warm);
            assert_int_equal(warm.done.cache.known_tokens, at);
            assert_true(computed(&warm) <= 25 + (back[b] <= 17 || k == 0 ? PAGE : 90));
            assert_cold_same(m, &o, &warm);
            rh_model_close(m);
        }
    }
}

static void tenants_are_apart_and_misses_say_why(void **state)
{
    static struct answer a;
    (void)state;
    struct rh_model *m = open_model(paths[0]);
    uint32_t ids[100];
    for (uint32_t i = 0; i < 100; i++)
        ids[i] = 10 + i;
    struct rh_request_options o = {.ids = ids, .id_count = 80, .max_tokens = 1, .ignore_eos = true, .tenant = "a"};
    run(m, &o, &a);
    assert_string_equal(a.done.cache.reason, "empty");
    o.tenant = "b";
    run(m, &o, &a);
    assert_string_equal(a.done.cache.reason, "other_key");
    assert_int_equal(a.done.usage.cached_tokens, 0);
    o.tenant = "a";
    o.id_count = 100;
    run(m, &o, &a);
    assert_string_equal(a.done.cache.reason, "new_text");
    assert_int_equal(a.done.usage.cached_tokens, 80);
    ids[50] = 5;
    run(m, &o, &a);
    assert_string_equal(a.done.cache.reason, "diverged");
    assert_int_equal(a.done.cache.known_tokens, 50);
    assert_int_equal(a.done.cache.stored_id, 60);
    assert_int_equal(a.done.cache.prompt_id, 5);
    char long_name[300];
    memset(long_name, 'x', 299);
    long_name[299] = 0;
    o.tenant = long_name;
    struct rh_request *r = NULL;
    struct rh_error err = {0};
    assert_int_equal(rh_submit(m, &o, &r, &err), RH_ERR_LIMIT);
    rh_model_close(m);
}

/* A question asked again after the boundary of its turn: window layers go on there however long the answer was. */
static void boundaries_are_kept(void **state)
{
    static struct answer a;
    (void)state;
    struct rh_model *m = open_model(paths[1]);
    uint32_t ids[400], boundaries[] = {70, 131};
    for (uint32_t i = 0; i < 400; i++)
        ids[i] = 10 + i * 11 % 300;
    struct rh_request_options o = {.ids = ids, .id_count = 150, .max_tokens = 120, .ignore_eos = true, .boundaries = boundaries, .boundary_count = 2,
                                   .top_logprobs = TOPS, .seed_given = true};
    run(m, &o, &a);
    o.max_tokens = 5;
    for (int b = 1; b >= 0; b--) {
        for (uint32_t i = boundaries[b]; i < 400; i++)
            ids[i] = 10 + i * (13 + (uint32_t)b) % 300;
        run(m, &o, &a);
        assert_int_equal(a.done.usage.cached_tokens, boundaries[b]);
        assert_cold_same(m, &o, &a);
    }
    boundaries[1] = 70;
    struct rh_request *r = NULL;
    struct rh_event e = {0};
    assert_int_equal(rh_submit(m, &o, &r, NULL), 0);
    while (rh_poll(r, &e, -1) == 1)
        if (e.kind == RH_EVENT_DONE)
            assert_int_equal(e.error.code, RH_ERR_ARGUMENT);
    rh_request_free(r);
    rh_model_close(m);
}

/* The text of an answer in a user's mouth, or special tokens spelt by a user, are not what the engine wrote. */
static void only_the_same_rendering_keeps_ids(void **state)
{
    static struct answer a, b;
    static struct rh_bias bias[384];
    char messages[4096];
    struct rh_sampling sampling;
    (void)state;
    struct rh_model *m = open_model(paths[0]);
    ascii_sampling(m, &sampling, bias);
    const char *first = "[{\"role\":\"user\",\"content\":\"hi\"}]";
    struct rh_chat chat = {.messages_json = {first, strlen(first)}};
    struct rh_request_options o = {.chat = &chat, .max_tokens = 12, .ignore_eos = true, .sampling = &sampling, .seed_given = true, .seed = 3};
    do { /* an answer whose text is encoded otherwise */
        o.seed++;
        run(m, &o, &a);
    } while (encodes_so(m, &a) && o.seed < 200);
    assert_false(encodes_so(m, &a));
    /* one user message whose bytes are the old rendering's, its special tokens included */
    snprintf(messages, sizeof messages, "[{\"role\":\"user\",\"content\":\"hi<|end|><|assistant|>%.*s\"}]", (int)a.text_n, a.text);
    chat.messages_json = (struct rh_text){messages, strlen(messages)};
    run(m, &o, &b);
    assert_true(b.prompt_n > a.prompt_n && memcmp(b.prompt, a.prompt, a.prompt_n * sizeof *a.prompt) != 0);
    /* another tenant sends the same history: its text is encoded anew */
    snprintf(messages, sizeof messages, "[{\"role\":\"user\",\"content\":\"hi\"},{\"role\":\"assistant\",\"content\":\"%.*s\"},"
             "{\"role\":\"user\",\"content\":\"go\"}]", (int)a.text_n, a.text);
    chat.messages_json = (struct rh_text){messages, strlen(messages)};
    o.tenant = "other";
    run(m, &o, &b);
    assert_true(memcmp(b.prompt + a.prompt_n, a.ids, a.n * sizeof *a.ids) != 0);
    o.tenant = NULL;
    run(m, &o, &b);
    assert_memory_equal(b.prompt + a.prompt_n, a.ids, a.n * sizeof *a.ids);
    rh_model_close(m);
}

/* The first reference model with a template that ends turns in plain text. */
static struct rh_model *open_plain_turns(char dir[64])
{
    static const char *const files[] = {"config.json", "generation_config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"};
    static const char turns[] = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
                                "{% if add_generation_prompt %}assistant: {% endif %}";
    char from[512], to[512];
    snprintf(dir, 64, "/tmp/turns-XXXXXX");
    assert_non_null(mkdtemp(dir));
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        snprintf(from, sizeof from, "%s/%s", paths[0], files[i]);
        snprintf(to, sizeof to, "%s/%s", dir, files[i]);
        assert_int_equal(symlink(from, to), 0);
    }
    snprintf(to, sizeof to, "%s/chat_template.jinja", dir);
    FILE *f = fopen(to, "w");
    assert_non_null(f);
    fputs(turns, f);
    fclose(f);
    return open_model(dir);
}

/* Then they are kept up to the last place where an id of then and one of now end together, and the text is the same. */
static void plain_turn_ends_keep_ids_too(void **state)
{
    static struct answer a, b;
    static struct rh_bias bias[384];
    char messages[4096], dir[64], command[96];
    struct rh_sampling sampling;
    uint32_t kept = 0, all = 0, whole = 0;
    (void)state;
    struct rh_model *m = open_plain_turns(dir);
    ascii_sampling(m, &sampling, bias);
    for (uint64_t seed = 1; seed <= 40; seed++) {
        const char *first = "[{\"role\":\"user\",\"content\":\"hi\"}]";
        struct rh_chat chat = {.messages_json = {first, strlen(first)}};
        struct rh_request_options o = {.chat = &chat, .max_tokens = 12, .ignore_eos = true, .sampling = &sampling, .seed_given = true, .seed = seed,
                                       .top_logprobs = TOPS};
        run(m, &o, &a);
        snprintf(messages, sizeof messages, "[{\"role\":\"user\",\"content\":\"hi\"},{\"role\":\"assistant\",\"content\":\"%.*s\"},"
                 "{\"role\":\"user\",\"content\":\"go on\"}]", (int)a.text_n, a.text);
        chat.messages_json = (struct rh_text){messages, strlen(messages)};
        run(m, &o, &b);
        uint32_t same = 0, n = a.prompt_n + a.n;
        while (same < n && b.prompt[same] == (same < a.prompt_n ? a.prompt[same] : a.ids[same - a.prompt_n]))
            same++;
        kept += same > a.prompt_n ? same - a.prompt_n : 0;
        all += a.n;
        whole += same == n;
        assert_true(b.done.usage.cached_tokens + 1 >= same);
        assert_cold_same(m, &o, &b);
    }
    print_message("%u of %u ids kept, %u of 40 answers whole\n", kept, all, whole);
    assert_true(whole >= 20 && kept * 10 >= all * 6); /* of a model whose answers are noise: words seldom break where they would */
    rh_model_close(m);
    snprintf(command, sizeof command, "rm -r %s", dir);
    assert_int_equal(system(command), 0);
}

static int setup(void **state)
{
    struct rh_error err = {0};
    (void)state;
    return rh_host_open(&(struct rh_host_options){.state_bytes = 64 << 20}, &host, &err);
}

static int teardown(void **state)
{
    (void)state;
    rh_host_close(host);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_conversation_computes_what_is_new),
        cmocka_unit_test(rewinds_compute_what_is_new),
        cmocka_unit_test(tenants_are_apart_and_misses_say_why),
        cmocka_unit_test(boundaries_are_kept),
        cmocka_unit_test(only_the_same_rendering_keeps_ids),
        cmocka_unit_test(plain_turn_ends_keep_ids_too),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
