/* tests/unit/sample_fixture.h - runs tests/data/sample/cases.txt (tests/fixtures/sample_fixtures.py) on a backend. */
#ifndef RH_TESTS_SAMPLE_FIXTURE_H
#define RH_TESTS_SAMPLE_FIXTURE_H

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/rng.h"
#include "tensor/backend.h"

enum { FIXTURE_DRAWS = 12, FIXTURE_VOCAB = 9001 };

struct fixture {
    unsigned vocab, divisor, use_mask;
    unsigned long long number;
    struct sample_params p;
    struct sample_seen seen[8];
    struct sample_bias biases[8];
    uint32_t banned[8], seen_count, banned_count;
    uint32_t mask[FIXTURE_VOCAB / 32 + 1];
};

static inline bool fixture_read(FILE *f, struct fixture *c)
{
    unsigned long long seed;
    char order[8];
    struct sample_params *p = &c->p;
    memset(c, 0, sizeof *c);
    if (fscanf(f, " case %llu %u %u %a %a %u %a %a %a %a %a %a %a %a %llu %u %7s %u", &c->number, &c->vocab, &c->divisor, &p->temperature,
               &p->top_n_sigma, &p->top_k, &p->typical_p, &p->top_p, &p->min_p, &p->xtc_probability, &p->xtc_threshold,
               &p->repetition_penalty, &p->presence_penalty, &p->frequency_penalty, &seed, &p->choice, order, &c->use_mask) != 18)
        return false;
    p->seed = seed;
    for (int i = 0; i < FILTER_COUNT; i++)
        p->order[i] = (uint8_t)(order[i] - '0');
    assert_int_equal(fscanf(f, "%u", &c->seen_count), 1);
    for (uint32_t i = 0; i < c->seen_count; i++)
        assert_int_equal(fscanf(f, "%u %u %u", &c->seen[i].id, &c->seen[i].in_any, &c->seen[i].in_output), 3);
    assert_int_equal(fscanf(f, "%u", &p->bias_count), 1);
    for (uint32_t i = 0; i < p->bias_count; i++)
        assert_int_equal(fscanf(f, "%u %a", &c->biases[i].id, &c->biases[i].bias), 2);
    assert_int_equal(fscanf(f, "%u", &c->banned_count), 1);
    for (uint32_t i = 0; i < c->banned_count; i++)
        assert_int_equal(fscanf(f, "%u", c->banned + i), 1);
    p->biases = c->biases;
    for (uint32_t i = 0; i < c->vocab; i++)
        c->mask[i / 32] |= (uint32_t)((i * 7 + 3) % 5 != 0) << i % 32;
    return true;
}

static inline void fixture_logits(const struct fixture *c, float *x)
{
    for (uint32_t i = 0; i < c->vocab; i++) {
        uint32_t counter[4] = {i, 0, 0, 9}, w[4];
        rng_philox(777 + c->number, counter, w);
        int sum = (int)((w[0] & 255) + (w[0] >> 8 & 255) + (w[0] >> 16 & 255) + (w[0] >> 24));
        x[i] = (float)(sum - 510) / (float)c->divisor;
    }
}

/* All draws of a case in one op; returns how many values were compared. */
static inline int fixture_case(struct device *d, FILE *f, const struct fixture *c, float *logits)
{
    struct sample_row rows[FIXTURE_DRAWS];
    static struct sample_result results[FIXTURE_DRAWS];
    uint32_t ids[FIXTURE_DRAWS];
    float logprobs[FIXTURE_DRAWS];
    struct err err = {0};
    for (int i = 0; i < FIXTURE_DRAWS; i++) {
        uint32_t index;
        assert_int_equal(fscanf(f, "%u %u %f", &index, ids + i, logprobs + i), 3);
        rows[i] = (struct sample_row){.params = &c->p, .index = index, .seen = c->seen, .seen_count = c->seen_count, .banned = c->banned,
                                      .banned_count = c->banned_count, .mask = c->use_mask ? c->mask : NULL, .want_logprob = true,
                                      .score_id = ids[i], .top = 3};
        fixture_logits(c, logits + (size_t)i * c->vocab);
    }
    struct op_sample_rows op = {.logits = {logits, FIXTURE_DRAWS, c->vocab, c->vocab}, .rows = rows, .results = results, .vocab = c->vocab};
    assert_int_equal(op_sample_rows(d, &op, &err), 0);
    uint64_t event;
    assert_int_equal(device_backend(d)->event_record(d, &event), 0);
    assert_int_equal(device_backend(d)->event_wait(d, event, &err), 0);
    for (int i = 0; i < FIXTURE_DRAWS; i++) {
        if (results[i].id != ids[i])
            fail_msg("case %llu, draw %d: id %u, expected %u", c->number, i, results[i].id, ids[i]);
        assert_true(fabsf(results[i].logprob - logprobs[i]) < 1e-5f * (1 + fabsf(logprobs[i])));
        assert_true(results[i].score_logprob == results[i].logprob);
    }
    for (uint32_t k = 0; k < 3; k++) {
        uint32_t id;
        float logprob;
        assert_int_equal(fscanf(f, "%u %f", &id, &logprob), 2);
        assert_int_equal(results[0].top_ids[k], id);
        assert_true(fabsf(results[0].top_logprobs[k] - logprob) < 1e-5f * (1 + fabsf(logprob)));
    }
    return FIXTURE_DRAWS * 2 + 3;
}

static inline void fixture_run(struct device *d)
{
    FILE *f = fopen(TEST_DATA "/sample/cases.txt", "r");
    static struct fixture c;
    float *logits = malloc(sizeof *logits * FIXTURE_DRAWS * FIXTURE_VOCAB);
    int cases = 0, compared = 0;
    assert_non_null(f);
    assert_non_null(logits);
    for (; fixture_read(f, &c); cases++)
        compared += fixture_case(d, f, &c, logits);
    printf("%d cases, %d values equal\n", cases, compared);
    assert_true(cases > 300);
    free(logits);
    fclose(f);
}

#endif
