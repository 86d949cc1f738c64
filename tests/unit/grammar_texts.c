/* Texts that must begin in one of some ways: what each id may do, against trying all bytes; borders of ids inside, across and beyond the texts. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "base/buf.h"
#include "base/mem.h"
#include "base/rng.h"
#include "base/thread.h"
#include "grammar/texts.h"

static const char *const pieces[] = {"<call>", "<", "call", ">", "<ca", "ll>", "\n", "{\"", "name", "\": \"", "get", "_w", "_t", "g", "e", "t", "\"", "\", ",
                                     "{", "x", "</think>", "</thi", "nk>", "nk>\n", "nk>\n<call", "nk>q", "think", "</", "\", {", "\", {\"a", "END", "", "_"};
enum { COUNT = sizeof pieces / sizeof *pieces, WORDS = (COUNT + 5 + 31) / 32, SPECIAL_CALL = 0, SPECIAL_THINK = 20, END_ID = 30 };

static char bytes[512];
static uint32_t ends[COUNT], special[WORDS];
static struct id_texts ids = {.count = COUNT, .bytes = bytes, .ends = ends, .special = special};

static void make_ids(bool with_special)
{
    size_t n = 0;
    memset(special, 0, sizeof special);
    for (uint32_t i = 0; i < COUNT; i++) {
        memcpy(bytes + n, pieces[i], strlen(pieces[i]));
        n += strlen(pieces[i]);
        ends[i] = (uint32_t)n;
    }
    if (with_special)
        special[0] = 1u << SPECIAL_CALL | 1u << SPECIAL_THINK;
    mem_free(ids.order);
    assert_int_equal(id_texts_sort(&ids, NULL), 0);
}

static const struct str two[] = {STR("<call>\n{\"name\": \"get_w\", {"), STR("<call>\n{\"name\": \"get_t\", {"), STR("<call>\n{\"name\": \"g\", {")};

static struct constraint *open_texts(const char *mark)
{
    static const uint32_t end_ids[] = {END_ID};
    struct texts_config cfg = {.ids = &ids, .texts = two, .count = 3, .mark = str_of(mark), .end_ids = end_ids, .end_count = 1};
    struct constraint *c = NULL;
    struct err err = {0};
    if (constraint_texts_open(&cfg, COUNT + 5, &c, &err))
        fail_msg("%s", err.text);
    return c;
}

/* May the whole text so far begin an answer?  By trying all texts. */
static bool allowed(const char *text, size_t n, const char *mark, bool *free_now)
{
    size_t at = 0;
    *free_now = false;
    if (mark) {
        size_t found = str_find(str_n(text, n), str_of(mark));
        if (found == SIZE_MAX)
            return true;
        at = found + strlen(mark);
        while (at < n && strchr(" \n\r\t", text[at]))
            at++;
    }
    struct str rest = str_n(text + at, n - at);
    for (size_t i = 0; i < 3; i++) {
        if (str_starts(rest, two[i]))
            *free_now = true;
        if (str_starts(rest, two[i]) || str_starts(two[i], rest))
            return true;
    }
    return false;
}

/* Random walks: every mask is what trying says, advance agrees with it, and rewinding gives the mask of then.  White space right after the mark is
 * left to the id that wrote the mark. */
static void masks_are_what_trying_all_texts_says(void **state)
{
    uint32_t words[WORDS], before[16][WORDS];
    uint32_t reached = 0;
    (void)state;
    make_ids(false);
    for (uint32_t seed = 0; seed < 3000; seed++) {
        const char *mark = seed % 2 ? "</think>" : NULL;
        struct constraint *c = open_texts(mark);
        char text[256];
        size_t n = 0, length[16];
        uint32_t steps = 0, tries = 0;
        bool is_free = false, done = false;
        for (; steps < 12 && n < 200 && tries < 60; steps++) {
            uint32_t choices[COUNT], k = 0;
            c->ops->mask(c, words);
            for (uint32_t id = 0; id < COUNT; id++) {
                size_t m = strlen(pieces[id]);
                bool free_then, plain;
                memcpy(text + n, pieces[id], m);
                plain = done || (allowed(text, n + m, mark, &free_then) && id != END_ID && (m || mark));
                bool got = words[id / 32] >> id % 32 & 1;
                bool waits = mark && str_find(str_n(text, n), str_of(mark)) == SIZE_MAX;
                if (m == 0 && !done && !waits)
                    plain = false;
                if (mark && !waits && !done && m && strchr(" \n", pieces[id][0]) && str_ends(str_n(text, n), STR("</think>")))
                    continue; /* a separate id of white space: the texts begin at once */
                if (mark && !waits && !done && n && strchr(" \n", text[n - 1]) && m && strchr(" \n", pieces[id][0]))
                    continue;
                if (got != plain)
                    fail_msg("seed %u: after '%.*s' id '%s': %d, expected %d", seed, (int)n, text, pieces[id], got, plain);
                if (got)
                    choices[k++] = id;
            }
            if (k == 0) /* these few ids cannot go on from here */
                break;
            uint32_t r[4], key[4] = {seed, tries++, 0, 0};
            rng_philox(5, key, r);
            uint32_t id = choices[r[0] % k];
            memcpy(before[steps % 16], words, sizeof words);
            assert_true(c->ops->advance(c, id));
            length[steps % 16] = n;
            memcpy(text + n, pieces[id], strlen(pieces[id]));
            n += strlen(pieces[id]);
            allowed(text, n, mark, &is_free);
            done |= is_free;
            if (steps >= 4 && r[1] % 4 == 0) {
                uint32_t back = 1 + r[2] % 4;
                c->ops->rewind(c, back);
                c->ops->mask(c, words);
                if (memcmp(words, before[(steps - back + 1) % 16], sizeof words))
                    fail_msg("seed %u: %u back from step %u, '%.*s'", seed, back, steps, (int)n, text);
                assert_memory_equal(words, before[(steps - back + 1) % 16], sizeof words);
                steps -= back;
                n = length[(steps + 1) % 16];
                done = false;
                if (allowed(text, n, mark, &is_free))
                    done = is_free;
            }
        }
        reached += done;
        constraint_free(c);
    }
    print_message("%u of 3000 walks got free\n", reached);
    assert_true(reached > 300);
}

static void a_marker_is_its_own_token(void **state)
{
    uint32_t words[WORDS] = {0};
    (void)state;
    make_ids(true);
    struct constraint *c = open_texts(NULL);
    c->ops->mask(c, words);
    assert_int_equal(constraint_only(words, COUNT + 5), SPECIAL_CALL);
    assert_false(c->ops->advance(c, 1));
    assert_true(c->ops->advance(c, SPECIAL_CALL));
    assert_true(c->ops->advance(c, 6));
    constraint_free(c);
}

static void bad_lists_are_refused(void **state)
{
    struct constraint *c = NULL;
    struct err err = {0};
    const struct str nested[] = {STR("abc"), STR("ab")}, empty[] = {STR("")}, twice[] = {STR("get"), STR("get")};
    (void)state;
    make_ids(false);
    struct texts_config cfg = {.ids = &ids, .texts = nested, .count = 2};
    assert_int_equal(constraint_texts_open(&cfg, COUNT, &c, &err), ERR_ARGUMENT);
    cfg.texts = empty;
    cfg.count = 1;
    assert_int_equal(constraint_texts_open(&cfg, COUNT, &c, &err), ERR_ARGUMENT);
    cfg.count = 0;
    assert_int_equal(constraint_texts_open(&cfg, COUNT, &c, &err), ERR_ARGUMENT);
    cfg.texts = twice;
    cfg.count = 2;
    assert_int_equal(constraint_texts_open(&cfg, COUNT, &c, &err), 0);
    constraint_free(c);
}

/* ---- a large vocabulary ---- */

enum { BIG = 160000, TOOLS = 300 };

struct big {
    struct id_texts ids;
    struct buf bytes, names;
    uint32_t *ends, *special;
    struct str texts[TOOLS];
};

/* Ids as real vocabularies have them: pieces of the texts of every length, long runs, many that nothing goes on with, a few hundred special ones. */
static void make_big(struct big *b)
{
    static const char letters[] = "abcdefgh_{\": \n<>";
    memset(b, 0, sizeof *b);
    for (uint32_t k = 0; k < TOOLS; k++)
        buf_printf(&b->names, "<call>\n{\"name\": \"get_%u_weather\", \"arguments\": {", k * 7919 % 1000);
    struct str all = buf_view(&b->names);
    for (uint32_t k = 0; k < TOOLS; k++) {
        size_t n = str_find(str_from(all, 1), STR("<call>"));
        b->texts[k] = str_n(all.p, n == SIZE_MAX ? all.n : n + 1);
        all = str_from(all, b->texts[k].n);
    }
    b->ends = mem_try_array(BIG, sizeof *b->ends);
    b->special = mem_try_zero(constraint_words(BIG), sizeof *b->special);
    for (uint32_t id = 0; id < BIG; id++) {
        uint32_t c[4] = {id, 0, 0, 0}, r[4];
        rng_philox(21, c, r);
        size_t n = r[0] % 12;
        for (size_t i = 0; i < n && id % 4; i++)
            buf_char(&b->bytes, letters[(r[1] >> i) % (sizeof letters - 1)]);
        if (id % 4 == 0)
            buf_str(&b->bytes, str_n(b->names.p + r[2] % (b->names.n - 16), n));
        b->ends[id] = (uint32_t)b->bytes.n;
        if (r[3] % 500 == 0)
            b->special[id / 32] |= 1u << id % 32;
    }
    b->ids = (struct id_texts){.count = BIG, .bytes = b->bytes.p, .ends = b->ends, .special = b->special};
    assert_int_equal(id_texts_sort(&b->ids, NULL), 0);
}

static void free_big(struct big *b)
{
    buf_free(&b->bytes);
    buf_free(&b->names);
    mem_free(b->ends);
    mem_free(b->special);
    mem_free(b->ids.order);
}

/* Each forced token costs a mask on the engine's thread, while all others wait. */
static void a_mask_is_what_advance_takes_and_does_not_walk_the_vocabulary(void **state)
{
    static struct big b;
    static uint32_t words[BIG / 32];
    struct constraint *c = NULL;
    int64_t ns = 0;
    uint32_t masks = 0;
    (void)state;
    make_big(&b);
    struct texts_config cfg = {.ids = &b.ids, .texts = b.texts, .count = TOOLS, .end_ids = (const uint32_t[]){40, 44}, .end_count = 2};
    for (uint32_t walk = 0; walk < 3; walk++) {
        assert_int_equal(constraint_texts_open(&cfg, BIG, &c, NULL), 0);
        for (uint32_t step = 0; step < 12; step++, masks++) {
            int64_t before = thread_cpu_ns();
            c->ops->mask(c, words);
            ns += thread_cpu_ns() - before;
            uint32_t chosen = UINT32_MAX, seen = 0, want, k[4] = {walk, step, 0, 0}, r[4];
            rng_philox(22, k, r);
            for (uint32_t id = 0; id < BIG; id++) {
                bool good = c->ops->advance(c, id);
                if (good)
                    c->ops->rewind(c, 1);
                if (good != (words[id / 32] >> id % 32 & 1))
                    fail_msg("walk %u step %u: id %u: advance says %d", walk, step, id, good);
                seen += good;
            }
            want = seen ? r[0] % seen : 0;
            for (uint32_t id = 0; id < BIG && chosen == UINT32_MAX; id++)
                if (words[id / 32] >> id % 32 & 1 && want-- == 0)
                    chosen = id;
            if (chosen == UINT32_MAX || seen > BIG / 2)
                break;
            assert_true(c->ops->advance(c, chosen));
        }
        constraint_free(c);
    }
    print_message("%u masks of %d ids and %d texts: %.1f us each\n", masks, BIG, TOOLS, (double)ns / 1e3 / masks);
    assert_true(ns / masks < 1000000);
    free_big(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(masks_are_what_trying_all_texts_says),
        cmocka_unit_test(a_marker_is_its_own_token),
        cmocka_unit_test(bad_lists_are_refused),
        cmocka_unit_test(a_mask_is_what_advance_takes_and_does_not_walk_the_vocabulary),
    };
    int rc = cmocka_run_group_tests(tests, NULL, NULL);
    mem_free(ids.order);
    return rc;
}
