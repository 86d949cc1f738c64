/* Stop strings over text that comes in pieces, against a plain search in all of it: the string that ends first, the longest of those, is found with
 * the piece its last byte is in, wherever pieces are cut. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "base/rng.h"
#include "engine/history.h"

enum { TEXT = 60, STRINGS = 4, LONGEST = 9, ROUNDS = 20000 };

static uint32_t random_at;

static uint32_t draw(uint32_t below)
{
    uint32_t counter[4] = {random_at++, 0, 0, 0}, bits[4];
    rng_philox(43, counter, bits);
    return bits[0] % below;
}

/* Where the first string ends, and which; 0: none does. */
static size_t first_end(const struct stop_set *set, const char *text, size_t n, int *which)
{
    for (size_t end = 1; end <= n; end++) {
        *which = -1;
        for (uint32_t i = 0; i < set->count; i++) {
            size_t length = set->items[i].n;
            bool here = length <= end && memcmp(text + end - length, set->items[i].p, length) == 0;
            if (here && (*which < 0 || length > set->items[*which].n))
                *which = (int)i;
        }
        if (*which >= 0)
            return end;
    }
    return 0;
}

static void strings_are_found_wherever_pieces_are_cut(void **state)
{
    uint32_t found = 0, pieces = 0;
    (void)state;
    for (uint32_t round = 0; round < ROUNDS; round++) {
        char text[TEXT], strings[STRINGS][LONGEST];
        struct stop_set set = {.count = 1 + draw(STRINGS)};
        struct stop_match m = {0};
        int wanted = -1, which = -1;
        for (uint32_t i = 0; i < set.count; i++) {
            size_t n = 1 + draw(LONGEST);
            for (size_t c = 0; c < n; c++)
                strings[i][c] = (char)('a' + draw(2));
            set.items[i] = str_n(strings[i], n);
            set.longest = n > set.longest ? n : set.longest;
        }
        for (size_t c = 0; c < TEXT; c++)
            text[c] = (char)('a' + draw(2));
        size_t end = first_end(&set, text, TEXT, &wanted);
        assert_int_equal(stop_open(&m, &set), 0);
        for (size_t at = 0; at < TEXT && which < 0; pieces++) {
            size_t n = draw(5) ? draw(4) : draw(3 * LONGEST); /* some ids have no bytes */
            n = n < TEXT - at ? n : TEXT - at;
            bool would = stop_would(&m, &set, str_n(text + at, n)); /* asked ahead: yes when in doubt, and nothing changes */
            assert_int_equal(stop_feed(&m, &set, str_n(text + at, n), &which), 0);
            assert_true(would == (which >= 0) || (would && n > set.longest));
            if (which >= 0)
                assert_true(at < end && end <= at + n);
            else
                assert_true(!end || end > at + n);
            at += n;
        }
        assert_int_equal(which >= 0, end != 0);
        assert_true(!end || str_eq(set.items[which], set.items[wanted])); /* it may be there twice */
        found += end != 0;
        buf_free(&m.tail);
    }
    print_message("%u of %d texts, %u pieces\n", found, ROUNDS, pieces);
    assert_in_range(found, ROUNDS / 2, ROUNDS - 100);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(strings_are_found_wherever_pieces_are_cut)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
