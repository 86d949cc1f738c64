/* The two proposers that copy, against what they are said to do, looked up plainly: echo follows the nearest 24 places where the last 8 ids stood
 * as long as they agree, for 2 to 32 ids, once the first was chosen, never past an end id; lookup says what followed the last 3, 2 or 1 ids, at
 * most 10.  They see every token, also those of rounds that others served, and look back 131,072 of them. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "base/mem.h"
#include "base/rng.h"
#include "engine/proposer.h"

enum { LENGTH = 700, GRAM = 8, NEAREST = 24, SPAN_MOST = 32, LOOKUP_MOST = 10, FAR = 131072, FAR_LENGTH = FAR + 3000 };

static uint32_t random_at;

static uint32_t draw(uint32_t below)
{
    uint32_t counter[4] = {random_at++, 0, 0, 0}, bits[4];
    rng_philox(41, counter, bits);
    return bits[0] % below;
}

/* Ids of a small vocabulary, now and then a copy of what stood before, sometimes with one id changed. */
static void text_make(uint32_t *ids, uint32_t n, uint32_t vocab)
{
    uint32_t run = 0, from = 0;
    for (uint32_t i = 0; i < n; i++) {
        if (run == 0 && i > 20 && draw(6) == 0) {
            run = 8 + draw(50);
            from = draw(i - 10);
        }
        ids[i] = run && draw(40) ? ids[from] : draw(vocab);
        from++;
        run -= run > 0;
    }
}

/* ---- echo, plainly ---- */

static bool is_end(const uint32_t *ends, uint32_t n, uint32_t id)
{
    for (uint32_t i = 0; i < n; i++)
        if (ends[i] == id)
            return true;
    return false;
}

/* Of the text before its last token: how many ids all of the nearest places go on with, and which. */
static uint32_t span_of(const uint32_t *text, uint32_t n, const uint32_t *ends, uint32_t end_count, uint32_t *span)
{
    uint32_t places[NEAREST], count = 0, len = 0;
    for (uint32_t at = n - 1; at-- > GRAM - 1 && count < NEAREST;)
        if (memcmp(text + at + 1 - GRAM, text + n - GRAM, GRAM * sizeof *text) == 0)
            places[count++] = at;
    for (; len < SPAN_MOST; len++) {
        uint32_t inside = 0;
        for (uint32_t i = 0; i < count; i++) {
            uint32_t next = places[i] + 1 + len;
            if (next >= n)
                continue;
            if (inside++ && text[next] != span[len])
                return len;
            span[len] = text[next];
        }
        if (!inside || is_end(ends, end_count, span[len]))
            return len;
    }
    return len;
}

static uint32_t echo_plainly(const uint32_t *text, uint32_t n, uint32_t room, const uint32_t *ends, uint32_t end_count, uint32_t *out)
{
    uint32_t span[SPAN_MOST], len = n < GRAM + 2 ? 0 : span_of(text, n - 1, ends, end_count, span);
    len = len < room + 1 ? len : room + 1;
    if (len < 2 || span[0] != text[n - 1])
        return 0;
    memcpy(out, span + 1, (len - 1) * sizeof *out);
    return len - 1;
}

static void echo_copies_where_all_places_agree(void **state)
{
    static uint32_t text[LENGTH];
    uint32_t found = 0, longest = 0, asked = 0, ends[] = {1, 3};
    (void)state;
    for (uint32_t round = 0; round < 40; round++) {
        struct proposer *p;
        text_make(text, LENGTH, 4 + 8 * (round % 4));
        assert_int_equal(echo_open(LENGTH, ends, round % 3, &p, NULL), 0);
        for (uint32_t n = 1; n <= LENGTH; n += 1 + (draw(4) == 0 ? draw(12) : 0), asked++) {
            uint32_t got[PROPOSE_DEPTH_MAX], want[SPAN_MOST], class, room = draw(2) ? PROPOSE_DEPTH_MAX : 1 + draw(PROPOSE_DEPTH_MAX);
            p->ops->observe(p, text, n);
            uint32_t count = p->ops->propose(p, text, n, room, got, &class), expected = echo_plainly(text, n, room, ends, round % 3, want);
            assert_int_equal(count, expected);
            assert_memory_equal(got, want, count * sizeof *got);
            found += count > 0;
            longest = count > longest ? count : longest;
        }
        proposer_free(p);
    }
    print_message("%u of %u times, %u ids at most\n", found, asked, longest);
    assert_true(found > 1000);
    assert_int_equal(longest, SPAN_MOST - 1); /* and the one that was chosen */
}

/* ---- lookup, plainly ---- */

/* Where what followed the nearest earlier occurrence of the last `gram` ids begins; 0: there is none. */
static uint32_t followed(const uint32_t *text, uint32_t n, uint32_t gram)
{
    for (uint32_t at = n - 1; at >= gram; at--)
        if (memcmp(text + at - gram, text + n - gram, gram * sizeof *text) == 0)
            return at;
    return 0;
}

static uint32_t lookup_plainly(const uint32_t *text, uint32_t n)
{
    uint32_t at = 0;
    for (uint32_t gram = 3; gram > 0 && !at; gram--)
        at = n > gram ? followed(text, n, gram) : 0;
    return at;
}

static bool is_copy(const uint32_t *text, uint32_t n, const uint32_t *got, uint32_t count)
{
    for (uint32_t at = 1; at + count <= n; at++)
        if (text[at - 1] == text[n - 1] && memcmp(text + at, got, count * sizeof *got) == 0)
            return true;
    return false;
}

/* An index of one place a run: another run may have taken it, so nearly always, not always, it is the nearest occurrence. */
static void lookup_says_what_followed_the_last_ids(void **state)
{
    static uint32_t text[LENGTH];
    uint32_t found = 0, exact = 0, missed = 0;
    (void)state;
    for (uint32_t round = 0; round < 20; round++) {
        text_make(text, LENGTH, 4 + 100 * (round % 4));
        for (uint32_t n = 2; n <= LENGTH; n += 1 + draw(9)) {
            struct proposer *p; /* nothing was guessed before: it has no place to go on from */
            uint32_t got[PROPOSE_DEPTH_MAX], class, room = draw(2) ? PROPOSE_DEPTH_MAX : 1 + draw(4), at = lookup_plainly(text, n);
            assert_int_equal(lookup_open(LENGTH, &p, NULL), 0);
            for (uint32_t seen = 1; seen < n; seen += 1 + draw(20))
                p->ops->observe(p, text, seen);
            p->ops->observe(p, text, n);
            uint32_t count = p->ops->propose(p, text, n, room, got, &class), most = room < LOOKUP_MOST ? room : LOOKUP_MOST;
            assert_true(count <= most);
            assert_true(count == 0 || (at && is_copy(text, n, got, count)));
            missed += at && !count;
            found += count > 0;
            exact += count > 0 && count == (n - at < most ? n - at : most) && memcmp(got, text + at, count * sizeof *got) == 0;
            proposer_free(p);
        }
    }
    print_message("%u times, %u of them the nearest; none though there was one: %u\n", found, exact, missed);
    assert_true(found > 1000 && exact > found * 9 / 10 && missed < found / 100);
}

/* ---- both ---- */

static uint32_t offered(struct proposer *p, const uint32_t *text, uint32_t n)
{
    uint32_t got[PROPOSE_DEPTH_MAX], class;
    for (uint32_t seen = 1000; seen < n; seen += 1000)
        p->ops->observe(p, text, seen);
    p->ops->observe(p, text, n);
    return p->ops->propose(p, text, n, PROPOSE_DEPTH_MAX, got, &class);
}

static void nobody_looks_back_further_than_is_said(void **state)
{
    static uint32_t text[FAR_LENGTH];
    (void)state;
    for (int far = 0; far < 2; far++) {
        uint32_t from = far ? 1000 : FAR_LENGTH - FAR + 100, n = FAR_LENGTH;
        struct proposer *echo, *lookup;
        for (uint32_t i = 0; i < n; i++) /* no id twice */
            text[i] = i;
        memcpy(text + n - 20, text + from, 20 * sizeof *text);
        assert_int_equal(echo_open(n, NULL, 0, &echo, NULL), 0);
        assert_int_equal(lookup_open(n, &lookup, NULL), 0);
        assert_int_equal(offered(echo, text, n), far ? 0 : PROPOSE_DEPTH_MAX);
        uint32_t count = offered(lookup, text, n);
        assert_true(far ? count == 0 : count == 0 || count == LOOKUP_MOST); /* its index may have given the place to another run */
        proposer_free(echo);
        proposer_free(lookup);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(echo_copies_where_all_places_agree),
        cmocka_unit_test(lookup_says_what_followed_the_last_ids),
        cmocka_unit_test(nobody_looks_back_further_than_is_said),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
