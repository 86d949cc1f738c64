/* engine/reveal.h - inside the engine: what a request wants to know of its prompt's rows: their hidden states, pooled, or how likely each id was.
 *
 * Lifetime: the request's.  Thread: engine thread, opening apart. */
#ifndef RH_ENGINE_REVEAL_H
#define RH_ENGINE_REVEAL_H

#include "engine/engine.h"

/* owns its arrays */
struct reveal {
    enum engine_pool pool;
    bool logprobs;
    double *sum;              /* [hidden] of the rows so far, in ascending positions */
    float *pooled;            /* [hidden] */
    uint32_t hidden, next;    /* rows before it are in the sum */
    uint32_t top, scored;     /* positions [1, scored] are known */
    float *scores;            /* [prompt] */
    uint32_t *top_ids;        /* [prompt][top] */
    float *top_logprobs;
};
int reveal_open(struct reveal *v, const struct engine_request_config *cfg, uint32_t hidden, struct err *err);
int reveal_prompt(struct reveal *v, uint32_t count, struct err *err); /* its length is known */
void reveal_free(struct reveal *v);

/* rows [count][hidden] from `position` on.  Rows that were there before (a pre-emption had them computed anew) change nothing. */
void reveal_add(struct reveal *v, uint32_t position, const float *rows, uint32_t count);
const float *reveal_pooled(struct reveal *v, uint32_t count); /* of `count` positions, all of which were added (LAST: the last one) */
void reveal_score(struct reveal *v, uint32_t position, const struct sample_result *result); /* of the id at `position` */
uint32_t reveal_tops(const struct reveal *v, uint32_t position); /* likeliest ids that are known there */

#endif
