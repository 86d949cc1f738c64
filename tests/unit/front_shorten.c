/* Prompts that are too long: how few messages go, and how few renderings it takes to know. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "base/mem.h"
#include "base/rng.h"
#include "front/front_int.h"

enum { TURNS = 2000, MESSAGES = 2 * TURNS + 1 };

/* A chat with a system message, and what each message costs in ids: its bytes, at a rate of its own. */
struct chat {
    struct buf json;
    uint32_t ids[MESSAGES];
};

static uint32_t draw(uint32_t seed, uint32_t i)
{
    uint32_t c[4] = {seed, i, 0, 0}, r[4];
    rng_philox(31, c, r);
    return r[0];
}

static void chat_make(struct chat *c, uint32_t seed, uint32_t turns)
{
    memset(c, 0, sizeof *c);
    buf_z(&c->json, "[{\"role\":\"system\",\"content\":\"Be brief.\"}");
    c->ids[0] = 8;
    for (uint32_t i = 1; i < 2 * turns; i++) { /* the last one is a user's */
        uint32_t n = 10 + draw(seed, i) % (seed % 3 ? 400 : 4000), rate = seed % 2 ? 4 : 2 + draw(seed, i + MESSAGES) % 7;
        buf_printf(&c->json, ",{\"role\":\"%s\",\"content\":\"", i % 2 ? "user" : "assistant");
        for (uint32_t k = 0; k < n; k++)
            buf_char(&c->json, 'x');
        buf_z(&c->json, "\"}");
        c->ids[i] = 5 + n / rate;
    }
    buf_char(&c->json, ']');
}

static size_t ids_from(const struct chat *c, uint32_t turns, uint32_t start)
{
    size_t sum = c->ids[0];
    for (uint32_t i = start; i < 2 * turns; i++)
        sum += c->ids[i];
    return sum;
}

/* Where the fewest messages go: by trying all starts. */
static uint32_t by_trying(const struct chat *c, uint32_t turns, const struct shortening *s, size_t most)
{
    uint32_t k = 0;
    while (k < s->start_count && ids_from(c, turns, s->starts[k]) > most)
        k++;
    return k;
}

static void few_tries_find_the_fewest_messages(void **state)
{
    static struct chat c;
    uint32_t runs = 0, tries = 0, exact = 0, worst = 0;
    (void)state;
    for (uint32_t seed = 0; seed < 12; seed++) {
        uint32_t turns = seed == 11 ? 1 : TURNS >> seed % 6;
        struct shortening s;
        chat_make(&c, seed, turns);
        assert_int_equal(shorten_open(&s, (struct rh_text){c.json.p, c.json.n}, NULL), 0);
        assert_int_equal(s.start_count, turns - 1); /* the first question is where it begins already */
        size_t all = ids_from(&c, turns, 1);
        for (uint32_t part = 1; part < 100; part += 7) {
            size_t most = all * part / 100;
            struct shorten_search q;
            uint32_t k = 0, n = 0;
            shorten_search_open(&q, &s, most, all);
            for (; shorten_search_next(&q, &k); n++)
                shorten_search_tell(&q, k, ids_from(&c, turns, s.starts[k]));
            uint32_t want = by_trying(&c, turns, &s, most);
            assert_true(n <= SHORTEN_TRIES && q.to >= want);
            assert_true(q.to == s.start_count || ids_from(&c, turns, s.starts[q.to]) <= most);
            exact += q.to == want;
            worst = n > worst ? n : worst;
            tries += n;
            runs++;
        }
        shorten_close(&s);
        buf_free(&c.json);
    }
    print_message("%u searches in up to %d starts: %.1f renderings, at most %u; %u found the fewest messages\n", runs, TURNS - 1, (double)tries / runs, worst,
                  exact);
    assert_true(exact == runs && tries < 6 * runs);
}

/* Sizes that say nothing about ids: what is taken fits all the same, and the work is bounded. */
static void what_is_taken_fits_however_sizes_mislead(void **state)
{
    static struct chat c;
    struct shortening s;
    struct shorten_search q;
    uint32_t k, n = 0;
    (void)state;
    chat_make(&c, 3, TURNS);
    assert_int_equal(shorten_open(&s, (struct rh_text){c.json.p, c.json.n}, NULL), 0);
    for (uint32_t i = 0; i < 2 * TURNS; i++)
        c.ids[i] = i > 3980 ? 100000 : 1; /* all of it stands at the end */
    shorten_search_open(&q, &s, 450000, ids_from(&c, TURNS, 1));
    for (; shorten_search_next(&q, &k); n++)
        shorten_search_tell(&q, k, ids_from(&c, TURNS, s.starts[k]));
    assert_true(n <= SHORTEN_TRIES);
    assert_true(q.to == s.start_count || ids_from(&c, TURNS, s.starts[q.to]) <= 450000);
    shorten_close(&s);
    buf_free(&c.json);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(few_tries_find_the_fewest_messages),
        cmocka_unit_test(what_is_taken_fits_however_sizes_mislead),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
