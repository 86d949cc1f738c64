/* text/load_gguf.c: small vocabularies in memory: what they mean, what is refused and how the message names it, every failing
 * allocation. */
#include "format_make.h"

#include "text/tokenizer.h"

#include "text_make.h"

/* What a file holds; zero members are left out. */
struct file {
    const char *model, *pre, *arch;
    const char *const *tokens;
    const int32_t *types;
    const float *scores;
    const char *const *merges;
    uint32_t n, types_n, merges_n;
    int bos, eos, unk, eot; /* -1: absent */
    int add_bos, prefix;    /* -1: absent */
};

#define FILE_NONE .bos = -1, .eos = -1, .unk = -1, .eot = -1, .add_bos = -1, .prefix = -1

static void put_string_array(struct buf *b, const char *key, const char *const *items, uint32_t n)
{
    gguf_put_key(b, key, GGUF_ARRAY);
    put_u32(b, GGUF_STRING);
    put_u64(b, n);
    for (uint32_t i = 0; i < n; i++)
        put_text(b, items[i]);
}

static void put_numbers(struct buf *b, const char *key, uint32_t type, const void *items, uint32_t n)
{
    gguf_put_key(b, key, GGUF_ARRAY);
    put_u32(b, type);
    put_u64(b, n);
    buf_put(b, items, (size_t)n * 4);
}

static void put_id(struct buf *b, const char *key, int id, uint64_t *count)
{
    if (id < 0)
        return;
    gguf_put_u32(b, key, (uint32_t)id);
    ++*count;
}

static void put_flag(struct buf *b, const char *key, int flag, uint64_t *count)
{
    if (flag < 0)
        return;
    gguf_put_key(b, key, GGUF_BOOL);
    buf_char(b, (char)flag);
    ++*count;
}

static void make_file(struct buf *out, const struct file *f)
{
    struct buf b = {0};
    uint64_t count = 0;
    const char *const texts[][2] = {
        {"tokenizer.ggml.model", f->model}, {"tokenizer.ggml.pre", f->pre}, {"general.architecture", f->arch}};
    for (size_t i = 0; i < 3; i++)
        if (texts[i][1]) {
            gguf_put_key(&b, texts[i][0], GGUF_STRING);
            put_text(&b, texts[i][1]);
            count++;
        }
    if (f->tokens)
        put_string_array(&b, "tokenizer.ggml.tokens", f->tokens, f->n), count++;
    if (f->types)
        put_numbers(&b, "tokenizer.ggml.token_type", GGUF_I32, f->types, f->types_n ? f->types_n : f->n), count++;
    if (f->scores)
        put_numbers(&b, "tokenizer.ggml.scores", GGUF_F32, f->scores, f->n), count++;
    if (f->merges)
        put_string_array(&b, "tokenizer.ggml.merges", f->merges, f->merges_n), count++;
    put_id(&b, "tokenizer.ggml.bos_token_id", f->bos, &count);
    put_id(&b, "tokenizer.ggml.eos_token_id", f->eos, &count);
    put_id(&b, "tokenizer.ggml.unknown_token_id", f->unk, &count);
    put_id(&b, "tokenizer.ggml.eot_token_id", f->eot, &count);
    put_flag(&b, "tokenizer.ggml.add_bos_token", f->add_bos, &count);
    put_flag(&b, "tokenizer.ggml.add_space_prefix", f->prefix, &count);
    gguf_begin(out, 3, 0, count);
    buf_str(out, buf_view(&b));
    put_padding(out, 32);
    buf_free(&b);
}

static int open_file(const struct file *f, struct tokenizer **t, struct err *err)
{
    struct buf b = {0};
    struct gguf *g = NULL;
    make_file(&b, f);
    int rc = gguf_open_memory(b.p, b.n, &g, err);
    rc = rc ? rc : tokenizer_open_gguf(g, t, err);
    gguf_close(g);
    buf_free(&b);
    return rc;
}

static void expect(const struct file *f, const char *text, bool bos, const uint32_t *want, size_t n)
{
    struct tokenizer *t = NULL;
    struct token_ids ids = {0};
    struct err err = {0};
    if (open_file(f, &t, &err) || tokenizer_encode(t, str_of(text), &(struct encode_options){bos, true}, &ids, &err))
        fail_msg("%s", err.text);
    assert_int_equal(ids.n, n);
    for (size_t i = 0; i < n; i++)
        assert_int_equal(ids.ids[i], want[i]);
    token_ids_free(&ids);
    tokenizer_close(t);
}

#define EXPECT(f, text, bos, ...) expect(f, text, bos, (uint32_t[]){__VA_ARGS__}, sizeof((uint32_t[]){__VA_ARGS__}) / 4)

static const char *const bpe_tokens[] = {"a",
                                         "b",
                                         "\xC4\xA0",
                                         "ab",
                                         "\xC4\xA0"
                                         "ab",
                                         "<|im_end|>",
                                         "<u>",
                                         "[PAD7]",
                                         "1"};
static const int32_t bpe_types[] = {1, 1, 1, 1, 1, 3, 4, 5, 1};
static const char *const bpe_merges[] = {"a b", "\xC4\xA0 ab"};
#define BPE                                                                                                                      \
    .model = "gpt2", .pre = "gpt-2", .tokens = bpe_tokens, .types = bpe_types, .n = 9, .merges = bpe_merges, .merges_n = 2,      \
    FILE_NONE

static void test_bpe(void **state)
{
    (void)state;
    struct file f = {BPE};
    EXPECT(&f, "ab ab<u>b<|im_end|>", false, 3, 4, 6, 1, 5);
    f.pre = NULL;
    EXPECT(&f, "11 ab", true, 8, 8, 4);
    f.bos = 0;
    f.add_bos = 1;
    EXPECT(&f, "b", true, 0, 1);
    struct tokenizer *t = NULL;
    struct tokenizer_info info;
    f.eot = 3;
    assert_int_equal(open_file(&f, &t, NULL), 0);
    tokenizer_info(t, &info);
    assert_int_equal(info.vocab_size, 9);
    assert_null(tokenizer_piece(t, 7).p); /* a filled-up place is a hole */
    assert_int_equal(info.eog_count, 2);  /* the key's and the name's */
    assert_int_equal(info.eog[0], 3);
    assert_int_equal(info.eog[1], 5);
    assert_true(info.add_bos);
    tokenizer_close(t);
}

/* merges come from the scores: "ab" (-1) is better than "bc" (-2), and of a token's splits the longer left part counts first */
static const char *const spm_tokens[] = {"<unk>", "<s>", "</s>", "\xE2\x96\x81", "a", "b", "c", "ab", "bc", "abc", "<0x0A>"};
static const int32_t spm_types[] = {2, 3, 3, 1, 1, 1, 1, 1, 1, 1, 6};
static const float spm_scores[] = {0, 0, 0, -10, -11, -12, -13, -1, -2, -3, 0};
#define SPM                                                                                                                      \
    .model = "llama", .tokens = spm_tokens, .types = spm_types, .scores = spm_scores, .n = 11, .bos = 1, .eos = 2, .unk = 0,     \
    .eot = -1, .add_bos = -1, .prefix = -1

static void test_spm(void **state)
{
    (void)state;
    struct file f = {SPM};
    EXPECT(&f, "abc", true, 1, 3, 9);
    EXPECT(&f, "bc ab", false, 3, 8, 3, 7);
    EXPECT(&f, "\nxyb", false, 3, 10, 0, 5); /* bytes where there are, unknown fused */
    EXPECT(&f, "</s>a", false, 2, 3, 4);
    f.prefix = 0;
    EXPECT(&f, "abc a", false, 9, 3, 4);
}

static void test_unigram(void **state)
{
    static const char *const tokens[] = {"<pad>",
                                         "</s>",
                                         "<unk>",
                                         "\xE2\x96\x81",
                                         "a",
                                         "\xE2\x96\x81"
                                         "ab",
                                         "b"};
    static const int32_t types[] = {3, 3, 2, 1, 1, 1, 1};
    static const float scores[] = {0, 0, 0, -3, -2, -2.5f, -4};
    (void)state;
    struct file f = {.model = "t5", .tokens = tokens, .types = types, .scores = scores, .n = 7, FILE_NONE};
    f.eos = 1, f.unk = 2;
    EXPECT(&f, " ab  a ab?", true, 5, 3, 4, 5, 2, 1);
}

static const struct {
    struct file f;
    int code;
    const char *says;
} bad[] = {
    {{.tokens = bpe_tokens, .n = 9, FILE_NONE}, ERR_FORMAT, "tokenizer.ggml.model: missing"},
    {{.model = "rwkv", .tokens = bpe_tokens, .n = 9, FILE_NONE}, ERR_UNSUPPORTED, "'rwkv'"},
    {{.model = "gpt2", FILE_NONE}, ERR_FORMAT, "tokenizer.ggml.tokens: missing"},
    {{.model = "gpt2", .tokens = bpe_tokens, .n = 9, FILE_NONE}, ERR_FORMAT, "tokenizer.ggml.merges: missing"},
    {{.model = "gpt2", .pre = "made-up", .tokens = bpe_tokens, .n = 9, .merges = bpe_merges, .merges_n = 2, FILE_NONE},
     ERR_UNSUPPORTED,
     "'made-up'"},
    {{.model = "gpt2",
      .tokens = bpe_tokens,
      .types = bpe_types,
      .n = 9,
      .types_n = 8,
      .merges = bpe_merges,
      .merges_n = 2,
      FILE_NONE},
     ERR_FORMAT,
     "token_type: expected 9 items, got 8"},
    {{.model = "gpt2", .tokens = (const char *const[]){"a", "b", "a"}, .n = 3, .merges = bpe_merges, .merges_n = 0, FILE_NONE},
     ERR_FORMAT,
     "'a' appears twice"},
    {{.model = "gpt2", .tokens = (const char *const[]){"a", "\xFF"}, .n = 2, .merges = bpe_merges, .merges_n = 0, FILE_NONE},
     ERR_FORMAT,
     "tokens[1]"},
    {{.model = "gpt2", .tokens = bpe_tokens, .n = 9, .merges = (const char *const[]){"a b", "ab"}, .merges_n = 2, FILE_NONE},
     ERR_FORMAT,
     "merges[1]"},
    {{.model = "gpt2", .tokens = bpe_tokens, .n = 9, .merges = (const char *const[]){"a zz"}, .merges_n = 1, FILE_NONE},
     ERR_FORMAT,
     "merges[0]"},
    {{.model = "gpt2", .tokens = bpe_tokens, .n = 9, .merges = (const char *const[]){"b a"}, .merges_n = 1, FILE_NONE},
     ERR_FORMAT,
     "'ba'"},
    {{.model = "llama", .tokens = spm_tokens, .n = 11, FILE_NONE}, ERR_FORMAT, "tokenizer.ggml.scores"},
    {{.model = "t5", .tokens = spm_tokens, .n = 11, FILE_NONE}, ERR_FORMAT, "tokenizer.ggml.scores"},
    {{.model = "gpt2",
      .tokens = bpe_tokens,
      .n = 9,
      .merges = bpe_merges,
      .merges_n = 2,
      .bos = 9,
      .eos = -1,
      .unk = -1,
      .eot = -1,
      .add_bos = -1,
      .prefix = -1},
     ERR_FORMAT,
     "bos_token_id: id 9, expected below 9"},
};

static void test_refused(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        struct tokenizer *t = NULL;
        struct err err = {0};
        int rc = open_file(&bad[i].f, &t, &err);
        if (rc != bad[i].code || !strstr(err.text, bad[i].says))
            fail_msg("case %zu: expected %s and '%s', got %s: %s", i, err_name(bad[i].code), bad[i].says, err_name(rc), err.text);
    }
}

static void every_fault(const struct file *f)
{
    struct buf b = {0};
    struct gguf *g = NULL;
    make_file(&b, f);
    assert_int_equal(gguf_open_memory(b.p, b.n, &g, NULL), 0);
    for (int64_t n = 0;; n++) {
        struct tokenizer *t = NULL;
        struct err err = {0};
        mem_fault_set(n);
        int rc = tokenizer_open_gguf(g, &t, &err);
        int64_t used = mem_request_count();
        mem_fault_set(-1);
        if (!rc)
            tokenizer_close(t);
        if (used <= n) {
            assert_int_equal(rc, 0);
            break;
        }
        if (rc != ERR_NOMEM)
            fail_msg("request %lld of %lld: %s %s", (long long)n, (long long)used, err_name(rc), err.text);
    }
    gguf_close(g);
    buf_free(&b);
}

static void test_faults(void **state)
{
    (void)state;
    every_fault(&(struct file){BPE});
    every_fault(&(struct file){SPM});
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_bpe), cmocka_unit_test(test_spm), cmocka_unit_test(test_unigram),
                                       cmocka_unit_test(test_refused), cmocka_unit_test(test_faults)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
