/* text/decode.c: streaming never splits a scalar and never shows U+FFFD for text that completes later; what cannot complete
 * becomes one U+FFFD per maximal subpart, as in one piece. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include <cmocka.h>

#include "text/tokenizer.h"

#include "text_make.h"

static struct tokenizer *bytes, *spm;

static struct tokenizer *open_json(struct buf *b)
{
    struct tokenizer *t = NULL;
    struct err err = {0};
    assert_int_equal(buf_check(b, "json", &err), 0);
    if (tokenizer_open_json(buf_view(b), (struct str){0}, &t, &err))
        fail_msg("%s", err.text);
    buf_free(b);
    return t;
}

static int setup(void **state)
{
    struct buf b = {0};
    (void)state;
    make_byte_level(&b, ",\"ab\":256", "[\"a\",\"b\"]", MAKE_BYTES);
    bytes = open_json(&b);
    make_spm(&b,
             ",\"\xE2\x96\x81\":259,\"a\":260,\"\xE2\x96\x81"
             "a\":261,\"\xC3\xA9\":262",
             "[\"\xE2\x96\x81\",\"a\"]", MAKE_SPM);
    spm = open_json(&b);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    tokenizer_close(bytes);
    tokenizer_close(spm);
    return 0;
}

/* Every scalar, a byte at a time, after a letter: nothing until its last byte, then all of it. */
static void every_scalar(const struct tokenizer *t, uint32_t byte_zero, uint32_t letter)
{
    struct buf out = {0};
    for (uint32_t cp = 0x80; cp < 0x110000; cp++) {
        char c[4];
        if (cp >= 0xD800 && cp < 0xE000)
            continue;
        size_t n = utf8_encode(cp, c);
        struct detok d = {0};
        out.n = 0;
        detok_put(&d, t, letter, &out);
        bool good = out.n == 1;
        for (size_t i = 0; i < n; i++) {
            detok_put(&d, t, byte_zero + (uint8_t)c[i], &out);
            good &= out.n == (i + 1 == n ? 1 + n : 1);
        }
        detok_end(&d, &out);
        if (!good || out.n != 1 + n || memcmp(out.p + 1, c, n))
            fail_msg("U+%04X: %zu bytes", cp, out.n);
    }
    buf_free(&out);
}

static void test_every_scalar(void **state)
{
    (void)state;
    every_scalar(bytes, 0, 'a');
    every_scalar(spm, 3, 260);
}

/* The same scalars cut in two tokens at every byte, the second token going on with more text. */
static void test_split_in_two(void **state)
{
    (void)state;
    for (uint32_t cp = 0x80; cp < 0x110000; cp += 199) {
        char c[4];
        if (cp >= 0xD800 && cp < 0xE000)
            continue;
        size_t n = utf8_encode(cp, c);
        for (size_t cut = 1; cut < n; cut++) {
            struct buf json = {0}, out = {0};
            struct detok d = {0};
            buf_z(&json, ",\"");
            for (size_t i = 0; i < n; i++) { /* two tokens of the vocabulary: head, tail + 'x' */
                char u[4];
                buf_put(&json, u, utf8_encode(make_byte_char((uint8_t)c[i]), u));
                if (i + 1 == cut)
                    buf_z(&json, "#\":256,\"");
            }
            buf_z(&json, "x\":257,\"");
            for (size_t i = 0; i < cut; i++) {
                char u[4];
                buf_put(&json, u, utf8_encode(make_byte_char((uint8_t)c[i]), u));
            }
            buf_z(&json, "\":258");
            if (cut == 1) { /* a single byte is in the vocabulary already */
                buf_free(&json);
                detok_put(&d, bytes, (uint8_t)c[0], &out);
                assert_int_equal(out.n, 0);
                detok_end(&d, &out);
                assert_memory_equal(out.p, "\xEF\xBF\xBD", 3);
                buf_free(&out);
                continue;
            }
            struct buf b = {0};
            make_byte_level(&b, buf_cstr(&json), "", MAKE_BYTES);
            struct tokenizer *t = open_json(&b);
            detok_put(&d, t, 258, &out);
            assert_int_equal(out.n, 0);
            detok_put(&d, t, 257, &out);
            assert_int_equal(out.n, n + 1);
            assert_memory_equal(out.p, c, n);
            tokenizer_close(t);
            buf_free(&json);
            buf_free(&out);
        }
    }
}

static void whole(struct str s, struct buf *out)
{
    while (s.n) {
        uint32_t cp;
        size_t n = utf8_decode(s, &cp);
        buf_put(out, cp == UTF8_BAD ? "\xEF\xBF\xBD" : s.p, cp == UTF8_BAD ? 3 : n);
        s = str_from(s, n);
    }
}

static void same_as_whole(struct str s)
{
    struct buf out = {0}, want = {0}, raw = {0}, streamed = {0};
    struct detok d = {0}, r = {.raw_bytes = true};
    uint32_t ids[8];
    bool good = true;
    for (size_t i = 0; i < s.n; i++) {
        ids[i] = (uint8_t)s.p[i];
        detok_put(&d, bytes, ids[i], &out);
        detok_put(&r, bytes, ids[i], &streamed);
        good &= utf8_valid(buf_view(&out)) && streamed.n <= i + 1;
    }
    detok_end(&d, &out);
    detok_end(&r, &streamed);
    good &= str_eq(buf_view(&streamed), s);
    whole(s, &want);
    good &= str_eq(buf_view(&out), buf_view(&want));
    good &= !tokenizer_decode(bytes, ids, s.n, false, &raw) && str_eq(buf_view(&raw), s);
    if (!good)
        fail_msg("bytes %02x %02x ..", (uint8_t)s.p[0], s.n > 1 ? (uint8_t)s.p[1] : 0);
    buf_free(&out);
    buf_free(&want);
    buf_free(&raw);
    buf_free(&streamed);
}

/* Every lead byte with every second byte, alone and followed by interesting third and fourth bytes. */
static void test_invalid_leads(void **state)
{
    static const uint8_t next[] = {0x00, 'a', 0x7F, 0x80, 0x8F, 0x90, 0x9F, 0xA0, 0xBF, 0xC0, 0xC2, 0xE0, 0xED, 0xF0, 0xF4, 0xFF};
    (void)state;
    for (int a = 0x80; a < 256; a++)
        for (int b = 0; b < 256; b++) {
            same_as_whole(str_n((char[]){(char)a, (char)b}, 2));
            for (size_t i = 0; i < sizeof next; i++)
                for (size_t k = 0; k < sizeof next; k += (b >= 0x80 && b < 0xC0) ? 1 : 5)
                    same_as_whole(str_n((char[]){(char)a, (char)b, (char)next[i], (char)next[k]}, 4));
        }
}

static void expect_text(const struct tokenizer *t, const uint32_t *ids, size_t n, const char *want)
{
    struct buf out = {0}, one = {0};
    struct detok d = {0};
    assert_int_equal(tokenizer_decode(t, ids, n, false, &out), 0);
    assert_string_equal(buf_cstr(&out), want);
    for (size_t i = 0; i < n; i++)
        detok_put(&d, t, ids[i], &one);
    detok_end(&d, &one);
    assert_string_equal(buf_cstr(&one), want);
    buf_free(&out);
    buf_free(&one);
}

static void test_leading_space(void **state)
{
    (void)state;
    expect_text(spm, (uint32_t[]){261, 261}, 2, "a a");
    expect_text(spm, (uint32_t[]){259, 259, 260}, 3, " a");
    expect_text(spm, (uint32_t[]){3 + ' ', 260}, 2, "a");
    expect_text(spm, (uint32_t[]){260, 261}, 2, "a a");
    expect_text(spm, (uint32_t[]){9999, 261}, 2, "a"); /* no such id: nothing */
    expect_text(spm, (uint32_t[]){3 + 0xC3, 3 + 0xA9, 262}, 3, "\xC3\xA9\xC3\xA9");
    struct buf b = {0};
    assert_int_equal(tokenizer_id_bytes(spm, 261, false, &b), 0);
    assert_string_equal(buf_cstr(&b), " a");
    b.n = 0;
    assert_int_equal(tokenizer_id_bytes(spm, 261, true, &b), 0);
    assert_string_equal(buf_cstr(&b), "a");
    b.n = 0;
    assert_int_equal(tokenizer_id_bytes(spm, 3 + 0xE2, false, &b), 0);
    assert_int_equal(b.n, 1);
    assert_int_equal((uint8_t)b.p[0], 0xE2);
    buf_free(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_every_scalar), cmocka_unit_test(test_split_in_two),
                                       cmocka_unit_test(test_invalid_leads), cmocka_unit_test(test_leading_space)};
    return cmocka_run_group_tests(tests, setup, teardown);
}
