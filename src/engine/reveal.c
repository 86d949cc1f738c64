/* engine/reveal.c - see reveal.h. */
#include "engine/reveal.h"

#include "base/mem.h"

#include <string.h>

int reveal_open(struct reveal *v, const struct engine_request_config *cfg, uint32_t hidden, struct err *err)
{
    *v = (struct reveal){.pool = cfg->pool, .hidden = hidden, .logprobs = cfg->prompt_logprobs, .top = cfg->prompt_top};
    if (cfg->prompt_top > ENGINE_PROMPT_TOP_MAX)
        return err_set(err, ERR_LIMIT, "top logprobs of the prompt: at most %d, got %u", ENGINE_PROMPT_TOP_MAX, cfg->prompt_top);
    if ((cfg->score != NULL) + (cfg->pool != ENGINE_POOL_NONE) + cfg->prompt_logprobs > 1)
        return err_set(err, ERR_ARGUMENT, "expected at most one of a score, a pool and log-probabilities of the prompt");
    if (!v->pool)
        return 0;
    v->sum = mem_try_zero(hidden, sizeof *v->sum);
    v->pooled = mem_try_zero(hidden, sizeof *v->pooled);
    return v->sum && v->pooled ? 0 : err_nomem(err, "embedding", hidden * sizeof *v->sum);
}

int reveal_prompt(struct reveal *v, uint32_t count, struct err *err)
{
    size_t tops = (size_t)count * v->top;
    if (!v->logprobs)
        return 0;
    v->scores = mem_try_array(count, sizeof *v->scores);
    v->top_ids = mem_try_array(tops, sizeof *v->top_ids);
    v->top_logprobs = mem_try_array(tops, sizeof *v->top_logprobs);
    return v->scores && v->top_ids && v->top_logprobs ? 0 : err_nomem(err, "log-probabilities of the prompt", tops * sizeof *v->top_ids);
}

void reveal_free(struct reveal *v)
{
    mem_free(v->sum);
    mem_free(v->pooled);
    mem_free(v->scores);
    mem_free(v->top_ids);
    mem_free(v->top_logprobs);
}

/* By ascending positions whatever the chunks, so the sum's bits are the text's alone. */
void reveal_add(struct reveal *v, uint32_t position, const float *rows, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++) {
        if (position + i < v->next)
            continue;
        for (uint32_t c = 0; c < v->hidden; c++)
            v->sum[c] += (double)rows[(size_t)i * v->hidden + c];
        v->next = position + i + 1;
    }
}

const float *reveal_pooled(struct reveal *v, uint32_t count)
{
    uint32_t rows = v->pool == ENGINE_POOL_MEAN ? count : 1;
    for (uint32_t c = 0; c < v->hidden; c++)
        v->pooled[c] = (float)(v->sum[c] / rows);
    return v->pooled;
}

void reveal_score(struct reveal *v, uint32_t position, const struct sample_result *result)
{
    uint32_t top = result->top_count < v->top ? result->top_count : v->top;
    uint32_t *ids = v->top_ids + (size_t)position * v->top;
    v->scores[position] = result->score_logprob;
    if (top) {
        memcpy(ids, result->top_ids, top * sizeof *ids);
        memcpy(v->top_logprobs + (size_t)position * v->top, result->top_logprobs, top * sizeof *v->top_logprobs);
    }
    for (uint32_t i = top; i < v->top; i++) /* a small vocabulary, or logits that are no numbers */
        ids[i] = UINT32_MAX;
    v->scored = position > v->scored ? position : v->scored;
}

uint32_t reveal_tops(const struct reveal *v, uint32_t position)
{
    const uint32_t *ids = v->top_ids + (size_t)position * v->top;
    uint32_t n = v->top;
    while (n && ids[n - 1] == UINT32_MAX)
        n--;
    return n;
}
