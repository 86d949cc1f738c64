/* Text streams: whatever the tokens, what is shown is the text before the stop string the engine decided on, and never a byte more. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

#include "base/rng.h"
#include "base/utf8.h"
#include "engine/engine_int.h"
#include "front/front_int.h"

enum { TOKENS = 60, ROUNDS = 3000 };

static struct texts texts;

static uint32_t draw(uint32_t *counter, uint32_t below)
{
    uint32_t c[4] = {(*counter)++, 5, 0, 0}, bits[4];
    rng_philox(99, c, bits);
    return bits[0] % below;
}

/* The whole text of ids in mid-text, by the tokenizer's own stream. */
static void whole_text(const uint32_t *ids, uint32_t n, struct buf *out)
{
    struct text_stream s = {0};
    stream_open(&s, false);
    for (uint32_t i = 0; i < n; i++)
        assert_int_equal(stream_put(&s, texts.tokenizer, ids[i]), 0);
    assert_int_equal(stream_end(&s, NULL), 0);
    buf_str(out, stream_take(&s, NULL, 0, true));
    stream_free(&s);
}

static int put_bytes(uint32_t id, struct buf *out)
{
    out->n = 0;
    return tokenizer_is_special(texts.tokenizer, id) ? 0 : tokenizer_id_bytes(texts.tokenizer, id, false, out);
}

/* Stop strings: pieces of the text itself (so that they occur), or noise. */
static uint32_t draw_stops(uint32_t *counter, struct str text, struct str *stops)
{
    uint32_t n = 0;
    for (uint32_t want = draw(counter, 4); want; want--) {
        uint32_t at = draw(counter, (uint32_t)text.n), len = 1 + draw(counter, 6);
        struct str piece = str_n(text.p + at, len < text.n - at ? len : text.n - at);
        if (piece.n && utf8_valid(piece) && str_find(piece, STR("\xEF\xBF\xBD")) == SIZE_MAX)
            stops[n++] = piece;
    }
    return n;
}

static void one_round(uint32_t *counter)
{
    uint32_t ids[TOKENS], count = 1 + draw(counter, TOKENS), range = draw(counter, 2) ? texts.info.vocab_size : 270;
    struct buf text = {0}, shown = {0}, bytes = {0};
    struct str stops[ENGINE_STOP_MAX];
    for (uint32_t i = 0; i < count; i++)
        ids[i] = draw(counter, range);
    whole_text(ids, count, &text);
    struct stop_set set = {.count = text.n ? draw_stops(counter, buf_view(&text), stops) : 0};
    struct stop_match match = {0};
    for (uint32_t i = 0; i < set.count; i++) {
        set.items[i] = stops[i];
        set.longest = stops[i].n > set.longest ? stops[i].n : set.longest;
    }
    struct text_stream s = {0};
    int which = -1;
    stream_open(&s, false);
    for (uint32_t i = 0; i < count && which < 0; i++) {
        assert_int_equal(put_bytes(ids[i], &bytes), 0);
        assert_int_equal(stop_feed(&match, &set, buf_view(&bytes), &which), 0);
        assert_int_equal(stream_put(&s, texts.tokenizer, ids[i]), 0);
        struct str part = stream_take(&s, stops, set.count, false);
        assert_true(utf8_valid(part));
        buf_str(&shown, part);
    }
    assert_int_equal(stream_end(&s, which >= 0 ? &stops[which] : NULL), 0);
    buf_str(&shown, stream_take(&s, stops, set.count, true));
    size_t expected = text.n; /* the earliest end decides */
    if (which >= 0) {
        expected = str_find(buf_view(&text), stops[which]);
        for (uint32_t i = 0; i < set.count; i++) {
            size_t at = str_find(buf_view(&text), stops[i]);
            if (at != SIZE_MAX)
                assert_true(at + stops[i].n >= expected + stops[which].n);
        }
    } else
        for (uint32_t i = 0; i < set.count; i++)
            assert_int_equal(str_find(buf_view(&text), stops[i]), SIZE_MAX);
    assert_int_equal(shown.n, expected);
    if (expected)
        assert_memory_equal(shown.p, text.p, expected);
    stream_free(&s);
    buf_free(&match.tail);
    buf_free(&text);
    buf_free(&shown);
    buf_free(&bytes);
}

static void shown_text_ends_where_the_engine_says(void **state)
{
    uint32_t counter = 0;
    (void)state;
    for (int i = 0; i < ROUNDS; i++)
        one_round(&counter);
}

/* "<|end|>" is a marker of harmony and a special token of this tokenizer; "<|user|>" is a special token only. */
static void special_tokens_reach_the_parser_and_nobody_else(void **state)
{
    (void)state;
    static const char *const pieces[] = {"<|channel|>analysis<|message|>hm", "<|end|>", "<|start|>assistant<|channel|>final<|message|>a STOP b", "<|user|>", "c",
                                         "<|end|>"};
    const struct str stops[] = {STR("STOP b!"), STR("never")};
    struct text_stream s = {0};
    struct reading g = {0};
    struct buf said = {0}, raw = {0};
    struct err err = {0};
    struct encode_options opt = {.parse_special = true};
    stream_open(&s, false);
    assert_int_equal(reading_open(&g, output_format_find(STR("harmony")), (struct str){0}, READING_CALLS, STR("<|start|>assistant"), &err), 0);
    for (size_t i = 0; i <= sizeof pieces / sizeof *pieces; i++) {
        struct token_ids ids = {0};
        bool ended = i == sizeof pieces / sizeof *pieces;
        if (!ended)
            assert_int_equal(tokenizer_encode(texts.tokenizer, str_of(pieces[i]), &opt, &ids, &err), 0);
        for (size_t k = 0; k < ids.n + ended; k++) {
            if (!ended) {
                assert_int_equal(stream_put(&s, texts.tokenizer, ids.ids[k]), 0);
                if (reading_marks(&g, texts.tokenizer, ids.ids[k]))
                    assert_int_equal(stream_mark(&s, ids.ids[k], tokenizer_piece(texts.tokenizer, ids.ids[k]).n), 0);
            } else
                assert_int_equal(stream_end(&s, NULL), 0);
            struct str text = stream_take(&s, stops, 2, ended);
            assert_int_equal(reading_take(&g, texts.tokenizer, &s, text, &raw), 0);
            if (ended)
                assert_int_equal(output_end(g.parser), 0);
            struct rh_event e = {0};
            while (reading_next(&g, &e)) {
                buf_z(&said, e.kind == RH_EVENT_REASONING ? "R" : "C");
                buf_put(&said, e.text, e.text_n);
            }
        }
        token_ids_free(&ids);
    }
    struct buf joined = {0}; /* deltas of one kind, joined */
    for (size_t i = 0; i < said.n; i++)
        if (said.p[i] != 'R' && said.p[i] != 'C')
            buf_char(&joined, said.p[i]);
    assert_true(str_is(buf_view(&joined), "hma STOP bc"));
    assert_true(said.n && said.p[0] == 'R' && str_find(buf_view(&said), STR("C")) != SIZE_MAX);
    assert_true(str_find(buf_view(&raw), STR("hm<|end|><|start|>")) != SIZE_MAX && str_find(buf_view(&raw), STR("<|user|>")) == SIZE_MAX);
    assert_int_equal(s.mark_bytes, 0);
    buf_free(&joined), buf_free(&said), buf_free(&raw);
    stream_free(&s);
    reading_free(&g);
}

static int setup(void **state)
{
    struct err err = {0};
    (void)state;
    if (texts_open(&texts, TEST_DATA "/../golden/llama", NULL, &err)) {
        print_error("%s\n", err.text);
        return -1;
    }
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    texts_close(&texts);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(shown_text_ends_where_the_engine_says),
        cmocka_unit_test(special_tokens_reach_the_parser_and_nobody_else),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
