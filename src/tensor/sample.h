/* tensor/sample.h - what sample_rows reads and writes for one row.  The meaning of every field: docs/sampling.md.
 *
 * Order: logit_bias -> repetition penalty -> presence, frequency -> banned ids (min_tokens) -> mask | log-probabilities are read
 * here | temperature -> filters in `order` -> draw.  Temperature 0 = arg-max, ties to the lowest id.
 * Noise: Philox4x32-10, key = seed, counter = (index, choice, stream, id / 4), lane id % 4; the drawn id is the arg-max over the
 * survivors of logit / T + Gumbel(noise), ties to the lowest id.  Gumbel(u) = -log(-log(u)), u = ((bits >> 9) + 0.5) / 2^23 (exact
 * in f32), with math_logf. */
#ifndef RH_TENSOR_SAMPLE_H
#define RH_TENSOR_SAMPLE_H

#include <stdbool.h>
#include <stdint.h>

enum sample_filter { FILTER_TOP_N_SIGMA, FILTER_TOP_K, FILTER_TYPICAL_P, FILTER_TOP_P, FILTER_MIN_P, FILTER_XTC, FILTER_COUNT };
enum { SAMPLE_STREAM = 0, SAMPLE_STREAM_XTC = 1 };
enum { SAMPLE_TOP_MAX = 128 }; /* top log-probabilities a row may ask for */
#define SAMPLE_TEMPERATURE_MIN 1e-6f /* below it a temperature counts as 0 */

struct sample_bias {
    uint32_t id;
    float bias;
};

/* One id of the history with its counts; penalty windows are already applied by the engine. */
struct sample_seen {
    uint32_t id;
    uint32_t in_any;    /* occurrences in prompt + output (repetition penalty) */
    uint32_t in_output; /* occurrences in the output (presence, frequency) */
};

/* request-lifetime constants of a sampler */
struct sample_params {
    float temperature;       /* 0 = greedy */
    float top_n_sigma;       /* <= 0 off */
    uint32_t top_k;          /* 0 off */
    float typical_p;         /* >= 1 off */
    float top_p;             /* >= 1 off */
    float min_p;             /* <= 0 off */
    float xtc_probability, xtc_threshold; /* probability <= 0 off */
    float repetition_penalty; /* 1 off */
    float presence_penalty, frequency_penalty; /* 0 off */
    uint64_t seed;
    uint32_t choice;         /* which of n choices */
    uint8_t order[FILTER_COUNT]; /* enum sample_filter, a permutation */
    const struct sample_bias *biases; /* ascending ids */
    uint32_t bias_count;
};

/* one row to sample or score; everything borrowed until the step's event */
struct sample_row {
    const struct sample_params *params; /* NULL: no draw, only log-probabilities */
    uint32_t index;                     /* 0-based place in the sequence of the token being chosen */
    const struct sample_seen *seen;     /* ascending ids; only needed with penalties */
    uint32_t seen_count;
    const struct sample_seen *patch;    /* ascending ids; these counts hold instead of seen's (rows of a round that assume drafts) */
    uint32_t patch_count;
    const uint32_t *banned;             /* ids set to -inf (min_tokens) */
    uint32_t banned_count;
    const uint32_t *mask;               /* one bit per id, 1 = allowed; NULL = all */
    bool want_logprob;                  /* of the drawn id */
    int64_t score_id;                   /* >= 0: also the log-probability of this id */
    uint32_t top;                       /* 0..SAMPLE_TOP_MAX */
};

struct sample_result {
    uint32_t id;        /* drawn; UINT32_MAX when params == NULL or when no id is allowed */
    float logprob;      /* of id, log-softmax after processors */
    float score_logprob;/* of score_id; -inf past the vocabulary */
    uint32_t top_count;
    uint32_t top_ids[SAMPLE_TOP_MAX];   /* by falling log-probability, ties by rising id */
    float top_logprobs[SAMPLE_TOP_MAX];
};

#endif
