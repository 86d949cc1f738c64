/* The acceptance walk against its table, and against plain decoding over every small case. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "engine/walk.h"

enum { MOST = 6, NO_DONE = 99, END = 'E' };

struct row {
    const char *drafts, *samples;
    uint32_t remaining, grammar_after; /* complete after so many tokens */
    uint32_t accepted;
    const char *emitted;
    int correction;       /* -1: none */
    enum walk_end end;
    uint32_t used, retained;
};

static const struct row table[] = {
    {"abc", "abcd", 10, NO_DONE, 3, "abcd", 'd', WALK_CONTINUE, 4, 3},
    {"abc", "ax..", 10, NO_DONE, 1, "ax", 'x', WALK_CONTINUE, 2, 1}, /* keeps two inputs: pending and a */
    {"aEc", "aE..", 10, NO_DONE, 2, "a", -1, WALK_STOP, 2, 1},
    {"abc", "aE..", 10, NO_DONE, 1, "a", 'E', WALK_STOP, 2, 1},
    {"abc", "ab..", 2, NO_DONE, 2, "ab", -1, WALK_LENGTH, 2, 2},
    {"abc", "a...", 10, 1, 1, "a", -1, WALK_STOP, 1, 1},
    {"", "x", 10, NO_DONE, 0, "x", 'x', WALK_CONTINUE, 1, 0},
    {"", "E", 10, NO_DONE, 0, "", 'E', WALK_STOP, 1, 0},
    {"", "x", 1, NO_DONE, 0, "x", 'x', WALK_LENGTH, 1, 0},
    {"a", "aE", 10, NO_DONE, 1, "a", 'E', WALK_STOP, 2, 1},
    {"ab", "x..", 1, 1, 0, "x", 'x', WALK_STOP, 1, 0}, /* grammar complete and budget used: stop comes first */
    {"E", "E.", 1, NO_DONE, 1, "", -1, WALK_STOP, 1, 0},
};

static void ids_of(const char *text, uint32_t *out)
{
    for (uint32_t i = 0; text[i]; i++)
        out[i] = (unsigned char)text[i];
}

static void the_table_holds(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        const struct row *t = &table[i];
        uint32_t drafts[MOST], samples[MOST], emitted[MOST], n = 0, at = 0;
        struct walk w;
        ids_of(t->drafts, drafts);
        ids_of(t->samples, samples);
        walk_open(&w, drafts, (uint32_t)strlen(t->drafts), t->remaining);
        while (!w.done) {
            uint32_t id = samples[at++];
            if (walk_feed(&w, id, id == END, id != END && n + 1 == t->grammar_after))
                emitted[n++] = id;
        }
        print_message("%s | %s | %u\n", t->drafts, t->samples, t->remaining);
        assert_int_equal(w.accepted, t->accepted);
        assert_int_equal(n, strlen(t->emitted));
        assert_int_equal(w.emitted, n);
        for (uint32_t k = 0; k < n; k++)
            assert_int_equal(emitted[k], (unsigned char)t->emitted[k]);
        assert_int_equal(w.correction, t->correction);
        assert_int_equal(walk_end(&w), t->end);
        assert_int_equal(at, t->used);
        assert_int_equal(walk_retained(&w, n), t->retained);
    }
}

static void delivery_that_stops_keeps_what_was_delivered(void **state)
{
    uint32_t drafts[] = {1, 2, 3};
    struct walk w;
    (void)state;
    walk_open(&w, drafts, 3, 10);
    assert_true(walk_feed(&w, 1, false, false));
    assert_true(walk_feed(&w, 2, false, false)); /* a stop string ends here */
    assert_false(w.done);
    assert_int_equal(walk_retained(&w, 2), 2);
    assert_int_equal(walk_retained(&w, 1), 1);
    assert_int_equal(walk_retained(&w, 0), 0);
}

/* Any text, any drafts: what is emitted, and why it ends, is what one token at a time gives. */
static void rounds_emit_what_plain_decoding_does(void **state)
{
    (void)state;
    for (uint32_t code = 0; code < 3 * 3 * 3 * 3 * 27 * 4; code++) {
        uint32_t text[4], drafts[3], c = code, plain = 0, budget;
        for (int i = 0; i < 4; i++, c /= 3)
            text[i] = c % 3; /* 0 is an end id */
        for (int i = 0; i < 3; i++, c /= 3)
            drafts[i] = c % 3;
        budget = c + 1;
        while (plain < budget && plain < 4 && text[plain] != 0)
            plain++;
        bool stops = plain < budget && plain < 4;
        struct walk w;
        walk_open(&w, drafts, 3, budget);
        for (uint32_t i = 0; !w.done; i++)
            walk_feed(&w, text[i], text[i] == 0, false);
        assert_true(w.emitted <= plain);
        for (uint32_t i = 0; i < w.accepted; i++)
            assert_int_equal(drafts[i], text[i]);
        if (walk_end(&w) == WALK_CONTINUE)
            assert_true(w.emitted < budget && w.correction >= 0 && w.emitted == w.accepted + 1);
        else {
            assert_int_equal(w.emitted, plain);
            assert_int_equal(walk_end(&w), stops ? WALK_STOP : WALK_LENGTH);
        }
        assert_true(walk_retained(&w, w.emitted) <= w.emitted);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_table_holds),
        cmocka_unit_test(delivery_that_stops_keeps_what_was_delivered),
        cmocka_unit_test(rounds_emit_what_plain_decoding_does),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
