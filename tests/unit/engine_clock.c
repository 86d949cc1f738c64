/* The clock of prefill chunks against made-up machines: a step of decoding sequences and prompt rows settles just under twice what
 * decoding takes, whatever that is, however it changes and however noisy it is; prefill keeps its share; no step grows past 250 ms. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include <cmocka.h>

#include "base/rng.h"
#include "engine/engine_int.h"

enum { ROOM = 500, STEPS = 400 };

/* ms */
struct machine {
    double decode, row, narrow; /* narrow: what a chunk costs beside its rows */
    double noise;               /* up to so much of a step's time more, and now and then three times all of it */
};

static double random01(uint32_t *n)
{
    uint32_t counter[4] = {(*n)++, 0, 0, 0}, bits[4];
    rng_philox(99, counter, bits);
    return rng_open01(bits[0]);
}

static double took_ms(const struct machine *m, uint32_t rows, bool decoding, uint32_t *random)
{
    double t = (decoding ? m->decode : m->decode / 3) + m->row * rows + (rows ? m->narrow : 0);
    t *= 1 + m->noise * random01(random);
    return m->noise > 0 && random01(random) < 0.02 ? 3 * t : t;
}

static void idle(struct sched_clock *c, const struct machine *m, uint32_t *random)
{
    for (int i = 0; i < 50; i++)
        clock_learn(c, 0, true, 1e6 * took_ms(m, 0, true, random));
}

/* Steps of both kinds; the mean time (without noise) of the last half over decode, and the share of its speed alone that prefill kept. */
static void run(struct sched_clock *c, const struct machine *m, uint32_t step_ms, uint32_t *random, double *times, double *share)
{
    double sum = 0, rows = 0;
    for (int i = 0; i < STEPS; i++) {
        struct machine quiet = *m;
        uint32_t n = clock_rows(c, ROOM, true, true, step_ms);
        quiet.noise = 0;
        clock_learn(c, n, true, 1e6 * took_ms(m, n, true, random));
        if (i >= STEPS / 2) {
            sum += took_ms(&quiet, n, true, random);
            rows += n;
        }
    }
    *times = sum / (STEPS / 2) / m->decode;
    *share = rows / sum * m->row;
}

static void a_step_stays_under_twice_decoding(void **state)
{
    static const struct machine machines[] = {{15, 1.5, 0, 0}, {15, 1.5, 3, 0}, {15, 1.5, 0, 0.3}, {100, 25, 0, 0.1}, {6, 0.05, 0.2, 0.2}, {15, 6, 0, 0.2}};
    (void)state;
    for (size_t i = 0; i < sizeof machines / sizeof *machines; i++) {
        const struct machine *m = &machines[i];
        struct sched_clock c = {0};
        uint32_t random = 0;
        double times, share, row = (m->row + m->narrow) / m->decode;
        for (int k = 0; k < 4; k++) /* the prompt before it, alone */
            clock_learn(&c, ROOM, false, 1e6 * took_ms(m, ROOM, false, &random));
        idle(&c, m, &random);
        run(&c, m, 0, &random, &times, &share);
        print_message("decode %.0f ms, row %.2f ms, chunk %.1f ms: %.2f x decode, share %.2f\n", m->decode, m->row, m->narrow, times, share);
        assert_true(times < 2 + row);
        assert_true(m->narrow > 1 || row > 0.2 || share > 0.44);
    }
}

/* Decoding becomes three times as slow while a prompt is read (load, depth, more sequences): the rows are not blamed for it, and back. */
static void slow_decoding_does_not_starve_a_prompt(void **state)
{
    struct machine m = {15, 1.5, 0, 0.3};
    struct sched_clock c = {0};
    uint32_t random = 7;
    double times, share;
    (void)state;
    idle(&c, &m, &random);
    run(&c, &m, 0, &random, &times, &share);
    for (int slow = 0; slow < 2; slow++) {
        m.decode = slow ? 15 : 45;
        run(&c, &m, 0, &random, &times, &share);
        print_message("decode %.0f ms: %.2f x, share %.2f\n", m.decode, times, share);
        assert_true(share > 0.3 && share < 0.6);
    }
    c = (struct sched_clock){.decode_ns = 15e6, .row_ns = 15e6}; /* a wrong belief: one row is as dear as decoding */
    run(&c, &m, 0, &random, &times, &share);
    print_message("after a wrong belief: %.2f x, share %.2f\n", times, share);
    assert_true(share > 0.4 && times < 2.2);
}

static void step_ms_is_kept_and_no_step_is_longer_than_a_quarter_second(void **state)
{
    struct machine m = {15, 1.5, 0, 0.1};
    struct sched_clock c = {0};
    uint32_t random = 3;
    double times, share;
    (void)state;
    idle(&c, &m, &random);
    run(&c, &m, 75, &random, &times, &share); /* five times idle */
    print_message("step of 75 ms: %.2f x decode, share %.2f\n", times, share);
    assert_true(times < 5.1 && share > 0.78);
    run(&c, &m, 10000, &random, &times, &share);
    assert_true(times * m.decode < 260);
    m = (struct machine){300, 40, 0, 0}; /* one row alone takes longer */
    idle(&c, &m, &random);
    run(&c, &m, 0, &random, &times, &share);
    assert_true(times * m.decode < 345);
    c = (struct sched_clock){.decode_ns = 15e6, .row_ns = 1.5e6};
    assert_int_equal(clock_rows(&c, ROOM, false, false, 0), 160); /* alone, where that costs nothing */
    c.decode_ns = 100e6;
    assert_int_equal(clock_rows(&c, ROOM, false, false, 0), ROOM);
    assert_int_equal(clock_rows(&c, ROOM, false, true, 0), 160);
}

/* Guesses of the decoding sequences may take all rows there are: no prompt row is asked for then, whatever one costs. */
static void a_full_step_gets_no_prompt_row(void **state)
{
    (void)state;
    for (int decoding = 0; decoding < 2; decoding++)
        for (int others = 0; others < 2; others++)
            for (double row = 0; row < 1e12; row = row * 10 + 1e5) {
                struct sched_clock quick = {.decode_ns = 15e6, .row_ns = row}, slow = {.decode_ns = 500e6, .row_ns = row};
                assert_int_equal(clock_rows(&quick, 0, decoding, others, 0), 0);
                assert_int_equal(clock_rows(&slow, 0, decoding, others, 0), 0);
            }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_full_step_gets_no_prompt_row),
        cmocka_unit_test(a_step_stays_under_twice_decoding),
        cmocka_unit_test(slow_decoding_does_not_starve_a_prompt),
        cmocka_unit_test(step_ms_is_kept_and_no_step_is_longer_than_a_quarter_second),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
