/* text/: opening (good files, damaged ones, every failing allocation), spans, end tokens, holes, limits, many threads.  That ids
 * equal the reference library's is the business of tests/text_oracle.py and tests/text_parts.py. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>
#include <pthread.h>

#include "base/mem.h"
#include "text/tokenizer.h"

#include "text_make.h"

#define ADDED                                                                                                                    \
    ",\"added_tokens\":[{\"id\":258,\"content\":\"<|end|>\",\"normalized\":false,\"special\":true},"                             \
    "{\"id\":259,\"content\":\"<t>\",\"normalized\":false,\"special\":false},"                                                   \
    "{\"id\":260,\"content\":\"<|bos|>\",\"normalized\":true,\"special\":true}]"

static struct tokenizer *open_ok(struct buf *b, const char *config)
{
    struct tokenizer *t = NULL;
    struct err err = {0};
    if (tokenizer_open_json(buf_view(b), str_of(config), &t, &err))
        fail_msg("%s", err.text);
    return t;
}

static struct tokenizer *make(const char *parts)
{
    struct buf b = {0};
    make_byte_level(&b,
                    ",\"ab\":256,\"\xC4\xA0"
                    "ab\":257",
                    "[\"a\",\"b\"],[\"\xC4\xA0\",\"ab\"]", parts);
    struct tokenizer *t = open_ok(&b, "{\"bos_token\":\"<|bos|>\",\"eos_token\":{\"content\":\"<|end|>\"}}");
    buf_free(&b);
    return t;
}

static void expect(const struct tokenizer *t, const struct text_span *spans, size_t n, bool bos, const uint32_t *want,
                   size_t count)
{
    struct token_ids ids = {0};
    struct err err = {0};
    if (tokenizer_encode_spans(t, spans, n, bos, &ids, &err))
        fail_msg("%s", err.text);
    assert_int_equal(ids.n, count);
    for (size_t i = 0; i < count; i++)
        assert_int_equal(ids.ids[i], want[i]);
    token_ids_free(&ids);
}

#define EXPECT(t, spans, bos, ...)                                                                                               \
    expect(t, spans, sizeof(spans) / sizeof *(spans), bos, (uint32_t[]){__VA_ARGS__}, sizeof((uint32_t[]){__VA_ARGS__}) / 4)

static void test_spans(void **state)
{
    (void)state;
    struct tokenizer *t = make(MAKE_BYTES ADDED);
    struct text_span all[] = {{STR("ab<|end|> ab"), true}};
    EXPECT(t, all, false, 256, 258, 257);
    struct text_span user[] = {{STR("<|end|>"), false}};
    EXPECT(t, user, false, '<', '|', 'e', 'n', 'd', '|', '>');
    struct text_span mixed[] = {{STR("<|bos|>a"), true}, {STR("b<|end|><t>"), false}, {STR("<|end|>"), true}};
    EXPECT(t, mixed, false, 260, 256, '<', '|', 'e', 'n', 'd', '|', '>', 259, 258);
    /* a special token may not be put together from a user's text and the template's */
    struct text_span across[] = {{STR("<|e"), false}, {STR("nd|><|end|>"), true}};
    EXPECT(t, across, false, '<', '|', 'e', 'n', 'd', '|', '>', 258);
    /* but a template may build one around a user's word */
    struct text_span around[] = {{STR("<|"), true}, {STR("end"), false}, {STR("|>a"), true}};
    EXPECT(t, around, false, 258, 'a');
    struct text_span pieces[] = {{STR("<|e"), true}, {STR("nd|>"), true}, {STR(""), false}, {STR("a"), true}};
    EXPECT(t, pieces, false, 258, 'a');
    /* broken bytes are repaired span by span: halves of a scalar in two spans stay two signs */
    struct text_span halves[] = {{STR("\xC3"), true}, {STR("\xA9"), false}};
    EXPECT(t, halves, false, 0xEF, 0xBF, 0xBD, 0xEF, 0xBF, 0xBD);
    tokenizer_close(t);
}

static void test_spans_normalized(void **state)
{
    (void)state;
    struct tokenizer *t =
        make(MAKE_BYTES ADDED ",\"normalizer\":{\"type\":\"Sequence\",\"normalizers\":[{\"type\":\"Lowercase\"},"
                              "{\"type\":\"NFC\"},{\"type\":\"Replace\",\"pattern\":{\"String\":\"x\"},\"content\":\"\"}]}");
    struct text_span a[] = {{STR("x<|BOS|>X"), true}, {STR("<|bOs|>"), false}, {STR("<|bos|>"), true}};
    EXPECT(t, a, false, 260, '<', '|', 'b', 'o', 's', '|', '>', 260);
    tokenizer_close(t);
}

static void test_info(void **state)
{
    (void)state;
    struct tokenizer *t = make(MAKE_BYTES ADDED);
    struct tokenizer_info info;
    tokenizer_info(t, &info);
    assert_string_equal(info.model, "bpe");
    assert_int_equal(info.vocab_size, 261);
    assert_int_equal(info.merge_count, 2);
    assert_int_equal(info.special_count, 2);
    assert_int_equal(info.bos, 260);
    assert_int_equal(info.eos, 258);
    assert_int_equal(info.eog_count, 1);
    assert_int_equal(info.eog[0], 258);
    assert_false(info.add_bos);
    assert_true(tokenizer_is_special(t, 258));
    assert_false(tokenizer_is_special(t, 259));
    assert_int_equal(tokenizer_find(t, STR("<t>")), 259);
    assert_int_equal(tokenizer_find(t, STR("nowhere")), -1);
    assert_true(str_is(tokenizer_piece(t, 256), "ab"));
    assert_null(tokenizer_piece(t, 5000).p);
    tokenizer_close(t);
}

static void test_post_processor(void **state)
{
    (void)state;
    struct buf b = {0};
    make_byte_level(&b, "", "",
                    MAKE_BYTES ",\"added_tokens\":[{\"id\":256,\"content\":\"<s>\",\"special\":true},{\"id\":257,\"content\":\"</"
                               "s>\",\"special\":true}],"
                               "\"post_processor\":{\"type\":\"TemplateProcessing\",\"single\":[{\"SpecialToken\":{\"id\":\"<s>"
                               "\",\"type_id\":0}},{\"Sequence\":{\"id\":\"A\",\"type_id\":0}}],"
                               "\"pair\":[],\"special_tokens\":{\"<s>\":{\"id\":\"<s>\",\"ids\":[256],\"tokens\":[\"<s>\"]}}}");
    struct text_span a[] = {{STR("a"), true}};
    struct tokenizer *t = open_ok(&b, "");
    EXPECT(t, a, true, 256, 'a');
    EXPECT(t, a, false, 'a');
    tokenizer_close(t);
    t = open_ok(&b, "{\"bos_token\":\"<s>\",\"eos_token\":\"</s>\",\"add_bos_token\":false,\"add_eos_token\":true}");
    EXPECT(t, a, true, 'a', 257);
    struct tokenizer_info info;
    tokenizer_info(t, &info);
    assert_true(info.add_eos);
    assert_int_equal(info.eog_count, 1);
    tokenizer_close(t);
    buf_free(&b);
}

/* Holes decode to nothing and are no token. */
static void test_holes(void **state)
{
    (void)state;
    struct buf b = {0}, out = {0};
    make_byte_level(&b, ",\"ab\":300,\"zz\":305", "[\"a\",\"b\"]", MAKE_BYTES);
    struct tokenizer *t = open_ok(&b, "");
    struct text_span a[] = {{STR("ab"), true}};
    EXPECT(t, a, false, 300);
    assert_int_equal(tokenizer_decode(t, (uint32_t[]){299, 300, 301, 304, 'a'}, 5, true, &out), 0);
    assert_string_equal(buf_cstr(&out), "aba");
    assert_null(tokenizer_piece(t, 299).p);
    tokenizer_close(t);
    buf_free(&b);
    buf_free(&out);
}

#define SPLIT(regex)                                                                                                             \
    ",\"pre_tokenizer\":{\"type\":\"Split\",\"pattern\":{\"Regex\":\"" regex "\"},\"behavior\":\"Isolated\",\"invert\":false}"

static const struct damaged {
    const char *more, *merges, *parts;
    int code;
    const char *says;
} damaged[] = {
    {",\"x\":-1", "", "", ERR_FORMAT, "token 'x'"},
    {",\"x\":4294967296", "", "", ERR_FORMAT, "token 'x'"},
    {",\"xx\":16777216", "", "", ERR_FORMAT, "'xx'"},
    {",\"xx\":\"1\"", "", "", ERR_FORMAT, "'xx'"},
    {",\"xx\":7", "", "", ERR_FORMAT, "id 7 is both"},
    {",\"xx\":300,\"xx\":301", "", "", ERR_FORMAT, "appears twice"},
    {"", "[\"a\",\"b\"]", "", ERR_FORMAT, "'model.merges'[0]"},
    {",\"ab\":256", "[\"a\",\"b\"],[\"ab\",\"nope\"]", "", ERR_FORMAT, "'model.merges'[1]"},
    {",\"ab\":256", "\"a b\",\"a  b\"", "", ERR_FORMAT, "'model.merges'[1]"},
    {"", "[\"a\"]", "", ERR_FORMAT, "'model.merges'[0]"},
    {"", "5", "", ERR_FORMAT, "'model.merges'[0]"},
    {"", "", ",\"normalizer\":{\"type\":\"Sideways\"}", ERR_UNSUPPORTED, "'Sideways'"},
    {"", "", ",\"normalizer\":5", ERR_FORMAT, "'normalizer'"},
    {"", "", ",\"normalizer\":{\"type\":\"Precompiled\",\"precompiled_charsmap\":\"AAAA\"}", ERR_FORMAT, "precompiled_charsmap"},
    {"", "", ",\"normalizer\":{\"type\":\"Precompiled\",\"precompiled_charsmap\":\"!\"}", ERR_FORMAT, "base64"},
    {"", "", ",\"pre_tokenizer\":{\"type\":\"UnicodeScripts\"}", ERR_UNSUPPORTED, "'UnicodeScripts'"},
    {"", "", ",\"pre_tokenizer\":{\"type\":\"Split\",\"pattern\":{\"Regex\":\"a\"},\"behavior\":\"Up\"}", ERR_FORMAT,
     "'behavior'"},
    {"", "", SPLIT("(a"), ERR_FORMAT, "regular expression"},
    {"", "", SPLIT("(?m:a)"), ERR_UNSUPPORTED, "regular expression"},
    {"", "", SPLIT("\\\\p{Klingon}"), ERR_UNSUPPORTED, "property"},
    {"", "", SPLIT("(?i:ss)"), ERR_UNSUPPORTED, "fold"},
    {"", "", ",\"decoder\":{\"type\":\"WordPiece\"}", ERR_UNSUPPORTED, "'WordPiece'"},
    {"", "", ",\"decoder\":{\"type\":\"Sequence\",\"decoders\":[{\"type\":\"Fuse\"},{\"type\":\"ByteLevel\"}]}", ERR_UNSUPPORTED,
     "'ByteLevel'"},
    {"", "", ",\"post_processor\":{\"type\":\"Odd\"}", ERR_UNSUPPORTED, "'Odd'"},
    {"", "", ",\"added_tokens\":[{\"id\":300,\"content\":\"<x>\"}]", ERR_FORMAT, "id 300 in the file"},
    {"", "", ",\"added_tokens\":[{\"id\":256,\"content\":\"<x>\"},{\"id\":257,\"content\":\"<x>\"}]", ERR_FORMAT, "same text"},
    {"", "", ",\"added_tokens\":[{\"content\":\"<x>\"}]", ERR_FORMAT, "'added_tokens'[0]"},
    {"", "", ",\"added_tokens\":{}", ERR_FORMAT, "'added_tokens'"},
    {"", "", ",\"post_processor\":{\"type\":\"TemplateProcessing\",\"single\":[{\"SpecialToken\":{\"id\":\"<s>\"}}]}", ERR_FORMAT,
     "'<s>'"},
    {"", "", ",\"post_processor\":{\"type\":\"BertProcessing\",\"cls\":[\"a\",900],\"sep\":[\"b\",1]}", ERR_FORMAT, "id 900"},
};

static void test_damaged(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof damaged / sizeof *damaged; i++) {
        struct buf b = {0};
        struct tokenizer *t = NULL;
        struct err err = {0};
        make_byte_level(&b, damaged[i].more, damaged[i].merges, damaged[i].parts);
        int rc = tokenizer_open_json(buf_view(&b), (struct str){0}, &t, &err);
        if (rc != damaged[i].code || !strstr(err.text, damaged[i].says))
            fail_msg("case %zu: %s: expected %s and '%s', got %s: %s", i, damaged[i].parts, err_name(damaged[i].code),
                     damaged[i].says, err_name(rc), err.text);
        buf_free(&b);
    }
}

static void test_refused_models(void **state)
{
    static const char *const texts[] = {"{\"model\":{\"type\":\"WordPiece\",\"vocab\":{}}}",
                                        "{\"model\":{\"type\":\"WordLevel\",\"vocab\":{}}}",
                                        "{\"model\":{\"type\":\"BPE\",\"dropout\":0.1,\"vocab\":{},\"merges\":[]}}"};
    (void)state;
    for (size_t i = 0; i < 3; i++) {
        struct tokenizer *t = NULL;
        struct err err = {0};
        assert_int_equal(tokenizer_open_json(str_of(texts[i]), (struct str){0}, &t, &err), ERR_UNSUPPORTED);
    }
}

/* A pattern that needs more steps than allowed is an error, whichever engine runs it; `out` stays as it was. */
static void test_limits(void **state)
{
    static const char *const parts[] = {SPLIT("a*a*a*a*a*a*[bc]"), SPLIT("(?:a|aa)+(?<=b)")};
    (void)state;
    char *text = malloc(30000);
    memset(text, 'a', 30000);
    memset(text + 29990, '-', 9);
    text[29999] = 'c'; /* what every match needs is there, out of reach of all but the last */
    for (size_t i = 0; i < 2; i++) {
        struct buf b = {0};
        struct token_ids ids = {0};
        struct err err = {0};
        make_byte_level(&b, "", "", parts[i]);
        struct tokenizer *t = open_ok(&b, "");
        assert_int_equal(token_ids_push(&ids, 77), 0);
        int rc = tokenizer_encode(t, str_n(text, 30000), &(struct encode_options){0}, &ids, &err);
        if (rc != ERR_LIMIT)
            fail_msg("%s: expected LIMIT, got %s", parts[i], err_name(rc));
        assert_int_equal(ids.n, 1);
        token_ids_free(&ids);
        tokenizer_close(t);
        buf_free(&b);
    }
    free(text);
}

/* Long runs take the heap: n log n, not minutes. */
static void test_long_runs(void **state)
{
    (void)state;
    size_t n = 2u << 20;
    char *text = malloc(n);
    struct buf b = {0};
    make_byte_level(&b, ",\"aa\":256,\"aaaa\":257,\"\xC4\xA0\xC4\xA0\":258",
                    "[\"a\",\"a\"],[\"aa\",\"aa\"],[\"\xC4\xA0\",\"\xC4\xA0\"]", MAKE_BYTES);
    struct tokenizer *t = open_ok(&b, "");
    for (int k = 0; k < 2; k++) {
        struct token_ids ids = {0};
        struct err err = {0};
        memset(text, k ? ' ' : 'a', n);
        assert_int_equal(tokenizer_encode(t, str_n(text, n), &(struct encode_options){0}, &ids, &err), 0);
        assert_int_equal(ids.n, k ? n / 2 : n / 4);
        token_ids_free(&ids);
    }
    tokenizer_close(t);
    buf_free(&b);
    free(text);
}

/* ---- every allocation fails once: an error, no leak (the asan build looks), and the next try works */

#define FAULT_PARTS                                                                                                              \
    ADDED ",\"normalizer\":{\"type\":\"Sequence\",\"normalizers\":[{\"type\":\"NFKC\"},{\"type\":\"Lowercase\"},"                \
          "{\"type\":\"Replace\",\"pattern\":{\"Regex\":\"q\"},\"content\":\"qq\"}]},\"pre_tokenizer\":{\"type\":\"Sequence\","  \
          "\"pretokenizers\":["                                                                                                  \
          "{\"type\":\"Split\",\"pattern\":{\"Regex\":\"(?<=x)y\"},\"behavior\":\"Isolated\",\"invert\":false},"                 \
          "{\"type\":\"Metaspace\",\"replacement\":\"_\",\"prepend_scheme\":\"first\"},"                                         \
          "{\"type\":\"ByteLevel\",\"add_prefix_space\":true}]},\"decoder\":{\"type\":\"ByteLevel\"}"

static const char unigram[] = "{\"model\":{\"type\":\"Unigram\",\"unk_id\":0,\"vocab\":[[\"<unk>\",0],[\"a\",-1],[\"b\",-2],["
                              "\"ab\",-1.5]]},\"decoder\":{\"type\":\"Metaspace\","
                              "\"replacement\":\"_\"}}";

/* open, encode, decode; 0 or ERR_NOMEM */
static int round_trip(struct str json, struct str text)
{
    struct tokenizer *t = NULL;
    struct token_ids ids = {0};
    struct buf out = {0};
    struct err err = {0};
    struct text_span spans[] = {{text, true}, {STR("<|end|>ab"), false}};
    int rc = tokenizer_open_json(json, STR("{\"eos_token\":\"<|end|>\"}"), &t, &err);
    rc = rc ? rc : tokenizer_encode_spans(t, spans, 2, true, &ids, &err);
    rc = rc ? rc : tokenizer_decode(t, ids.ids, ids.n, false, &out);
    struct detok d = {0};
    for (size_t i = 0; !rc && i < ids.n; i++)
        rc = detok_put(&d, t, ids.ids[i], &out);
    if (rc && rc != ERR_NOMEM)
        fail_msg("%s %s", err_name(rc), err.text);
    buf_free(&out);
    token_ids_free(&ids);
    tokenizer_close(t);
    return rc;
}

static void every_fault(struct str json, struct str text)
{
    int64_t n = 0;
    for (;; n++) {
        mem_fault_set(n);
        int rc = round_trip(json, text);
        int64_t used = mem_request_count();
        mem_fault_set(-1);
        if (used <= n) {
            assert_int_equal(rc, 0);
            break;
        }
        if (rc != ERR_NOMEM)
            fail_msg("request %lld of %lld failed and nobody noticed: %s", (long long)n, (long long)used, err_name(rc));
    }
    assert_true(n > 20);
}

static void test_faults(void **state)
{
    (void)state;
    struct buf b = {0}, text = {0};
    buf_z(&text, "a <|end|>X<t> Qx y \xC3\xA9 e\xCC\x81\xCC\xA3 <|BOS|> ");
    for (int i = 0; i < 90; i++)
        buf_z(&text, "abab  ");
    buf_put(&text, "\xFF", 1);
    make_byte_level(&b,
                    ",\"ab\":256,\"\xC4\xA0"
                    "ab\":257",
                    "[\"a\",\"b\"],[\"\xC4\xA0\",\"ab\"]", FAULT_PARTS);
    every_fault(buf_view(&b), buf_view(&text));
    b.n = 0;
    make_spm(&b,
             ",\"\xE2\x96\x81\":259,\"a\":260,\"\xE2\x96\x81"
             "a\":261",
             "[\"\xE2\x96\x81\",\"a\"]", MAKE_SPM);
    every_fault(buf_view(&b), buf_view(&text));
    every_fault(str_of(unigram), buf_view(&text));
    buf_free(&b);
    buf_free(&text);
}

/* ---- one tokenizer, many threads */

struct worker {
    const struct tokenizer *t;
    int seed;
};

static void *work(void *arg)
{
    const struct worker *w = arg;
    for (int i = 0; i < 200; i++) {
        struct buf text = {0}, out = {0};
        struct token_ids ids = {0};
        for (int k = 0; k < 50; k++)
            buf_printf(&text, " ab %d<|end|>caf\xC3\xA9", w->seed * i + k);
        if (tokenizer_encode(w->t, buf_view(&text), &(struct encode_options){.parse_special = true}, &ids, NULL) ||
            tokenizer_decode(w->t, ids.ids, ids.n, false, &out) || !str_eq(buf_view(&out), buf_view(&text)))
            return "different";
        buf_free(&text);
        buf_free(&out);
        token_ids_free(&ids);
    }
    return NULL;
}

static void test_threads(void **state)
{
    (void)state;
    struct tokenizer *t = make(MAKE_BYTES ADDED);
    pthread_t id[4];
    struct worker w[4];
    for (int i = 0; i < 4; i++) {
        w[i] = (struct worker){t, i + 1};
        assert_int_equal(pthread_create(&id[i], NULL, work, &w[i]), 0);
    }
    for (int i = 0; i < 4; i++) {
        void *result;
        pthread_join(id[i], &result);
        assert_null(result);
    }
    tokenizer_close(t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_spans),          cmocka_unit_test(test_spans_normalized),
        cmocka_unit_test(test_info),           cmocka_unit_test(test_post_processor),
        cmocka_unit_test(test_holes),          cmocka_unit_test(test_damaged),
        cmocka_unit_test(test_refused_models), cmocka_unit_test(test_limits),
        cmocka_unit_test(test_long_runs),      cmocka_unit_test(test_faults),
        cmocka_unit_test(test_threads),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
