/* tests/ops/sample_cases.h - sample_rows on random rows with random parameters; every filter alone, and mixtures in any order. */
#ifndef RH_TESTS_SAMPLE_CASES_H
#define RH_TESTS_SAMPLE_CASES_H

#include "row_cases.h"

#include <math.h>

enum { SAMPLE_CASES = 240, SAMPLE_ROWS = 5 };

static inline float case_unit(struct bench *b) /* 0 .. 1 */
{
    return (float)(bench_u32(b) >> 8) / 16777216.0f;
}

static inline bool case_chance(struct bench *b, uint32_t one_in)
{
    return bench_u32(b) % one_in == 0;
}

static inline void sample_case_params(struct bench *b, size_t i, struct sample_params *p)
{
    *p = (struct sample_params){.temperature = 0.25f + 2 * case_unit(b), .typical_p = 1, .top_p = 1, .repetition_penalty = 1,
                                .seed = (uint64_t)bench_u32(b) << 32 | bench_u32(b), .choice = bench_u32(b) % 3};
    for (uint32_t f = 0; f < FILTER_COUNT; f++)
        p->order[f] = (uint8_t)f;
    for (uint32_t f = FILTER_COUNT; i % 3 == 2 && f-- > 1;) {
        uint32_t j = bench_u32(b) % (f + 1);
        uint8_t t = p->order[f];
        p->order[f] = p->order[j], p->order[j] = t;
    }
    uint32_t which = (uint32_t)i % 8;
    if (which == 7)
        p->temperature = 0;
    bool mix = i % 5 == 4;
    if (which == 1 || (mix && case_chance(b, 3)))
        p->top_n_sigma = 0.3f + 3 * case_unit(b);
    if (which == 2 || (mix && case_chance(b, 2)))
        p->top_k = 1 + bench_u32(b) % (case_chance(b, 4) ? 6000 : 50);
    if (which == 3 || (mix && case_chance(b, 3)))
        p->typical_p = 0.05f + 0.94f * case_unit(b);
    if (which == 4 || (mix && case_chance(b, 2)))
        p->top_p = case_chance(b, 10) ? 0.0f : 0.05f + 0.949f * case_unit(b);
    if (which == 5 || (mix && case_chance(b, 2)))
        p->min_p = 0.3f * case_unit(b);
    if (which == 6 || (mix && case_chance(b, 3)))
        p->xtc_probability = case_chance(b, 2) ? 1.0f : 0.5f, p->xtc_threshold = 0.02f + 0.2f * case_unit(b);
}

static inline void sample_case_row(struct bench *b, size_t i, uint32_t vocab, struct sample_params *p, struct sample_row *r)
{
    *r = (struct sample_row){.params = case_chance(b, 9) ? NULL : p, .index = bench_u32(b) % 1000, .score_id = -1};
    if (case_chance(b, 2)) {
        uint32_t n = 1 + bench_u32(b) % 60, id = 0;
        struct sample_seen *seen = bench_new(b, n * sizeof *seen);
        for (uint32_t k = 0; k < n && id < vocab; k++, id += 1 + bench_u32(b) % (1 + vocab / 50))
            seen[r->seen_count++] = (struct sample_seen){id, 1 + bench_u32(b) % 4, bench_u32(b) % 3};
        r->seen = seen;
        struct sample_seen *patch = bench_new(b, n * sizeof *patch); /* some counts anew, some ids not seen before */
        for (uint32_t k = 0; i % 3 == 0 && k < r->seen_count; k++)
            patch[r->patch_count++] = (struct sample_seen){seen[k].id + bench_u32(b) % 2 * (k + 1 == r->seen_count), bench_u32(b) % 4, bench_u32(b) % 3};
        r->patch = patch;
        p->repetition_penalty = 0.9f + case_unit(b);
        p->presence_penalty = case_unit(b);
        p->frequency_penalty = case_unit(b) - 0.3f;
    }
    if (case_chance(b, 3)) {
        struct sample_bias *bias = bench_new(b, 3 * sizeof *bias);
        for (uint32_t k = 0; k < 3; k++)
            bias[k] = (struct sample_bias){vocab * k / 3 + bench_u32(b) % (vocab / 3), 8 * case_unit(b) - 4};
        p->biases = bias, p->bias_count = 3;
    }
    if (case_chance(b, 3)) {
        uint32_t *banned = bench_new(b, 2 * sizeof *banned);
        banned[0] = bench_u32(b) % vocab, banned[1] = bench_u32(b) % vocab;
        r->banned = banned, r->banned_count = 2;
    }
    if (case_chance(b, 4)) {
        uint32_t words = (vocab + 31) / 32, *mask = bench_new(b, words * sizeof *mask);
        for (uint32_t w = 0; w < words; w++)
            mask[w] = i % 16 == 3 ? 0 : case_chance(b, 2) ? UINT32_MAX : bench_u32(b);
        r->mask = mask;
    }
    r->want_logprob = case_chance(b, 2);
    r->score_id = case_chance(b, 2) ? (int64_t)(bench_u32(b) % (vocab + 3)) : -1;
    r->top = case_chance(b, 2) ? bench_u32(b) % (SAMPLE_TOP_MAX + 1) : 0;
}

static inline void sample_case_run(struct bench *b, size_t i, struct outcome *out)
{
    static const uint32_t vocabs[] = {97, 4096, 5000, 12289, 32003};
    struct err err = {0};
    out->count = 0;
    bench_reset(b, 1000 + i);
    uint32_t vocab = vocabs[i % 5], rows = i % 4 == 0 ? SAMPLE_ROWS : 1;
    struct tensor logits = bench_tensor(b, rows, vocab + (i % 2 ? 13 : 0), i % 7 == 0 ? 0.01f : i % 7 == 1 ? 6.0f : 2.5f);
    float *x = logits.data;
    for (size_t k = 0; i % 6 == 0 && k < (size_t)rows * logits.stride; k++)
        x[k] = (float)(int)(x[k] * 2) / 2; /* many ties */
    struct sample_params *params = bench_new(b, rows * sizeof *params);
    struct sample_row *row = bench_new(b, rows * sizeof *row);
    struct sample_result *result = bench_new(b, rows * sizeof *result);
    for (uint32_t r = 0; r < rows; r++) {
        sample_case_params(b, i + r, params + r);
        sample_case_row(b, i, vocab, params + r, row + r);
    }
    struct op_sample_rows op = {.logits = logits, .rows = row, .results = result, .vocab = vocab};
    tried(b, op_sample_rows(b->d, &op, &err), &err);
    bench_wait(b);
    uint32_t ids[SAMPLE_ROWS * (SAMPLE_TOP_MAX + 2)] = {0};
    float values[SAMPLE_ROWS * (SAMPLE_TOP_MAX + 2)] = {0};
    for (uint32_t r = 0; r < rows; r++) {
        uint32_t *id = ids + r * (SAMPLE_TOP_MAX + 2);
        float *value = values + r * (SAMPLE_TOP_MAX + 2);
        id[0] = result[r].id, id[1] = result[r].top_count;
        value[0] = row[r].want_logprob && result[r].id != UINT32_MAX ? result[r].logprob : 0;
        value[1] = row[r].score_id >= 0 ? result[r].score_logprob : 0;
        memcpy(id + 2, result[r].top_ids, result[r].top_count * sizeof *id);
        memcpy(value + 2, result[r].top_logprobs, result[r].top_count * sizeof *value);
    }
    keep(out, PART_BYTES, ids, sizeof ids);
    keep(out, PART_FLOATS, values, sizeof values);
}

#endif
