/* engine/sampler.c - the history a sampler looks at: how often each id occurred, ascending by id.
 *
 * Invariant: seen holds exactly the ids of the last `window` tokens (all, when 0), with their counts in prompt + output and in the output. */
#include "base/mem.h"
#include "engine/engine_int.h"

#include <stdlib.h>

static uint32_t lower_bound(const struct sampler *s, uint32_t id)
{
    uint32_t low = 0, high = s->seen_count;
    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        if (s->seen[middle].id < id)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

static int add(struct sampler *s, uint32_t id, bool output)
{
    uint32_t at = lower_bound(s, id);
    if (at == s->seen_count || s->seen[at].id != id) {
        if (s->seen_count == s->seen_cap)
            return ERR_INTERNAL;
        memmove(s->seen + at + 1, s->seen + at, (s->seen_count - at) * sizeof *s->seen);
        s->seen[at] = (struct sample_seen){.id = id};
        s->seen_count++;
    }
    s->seen[at].in_any++;
    s->seen[at].in_output += output;
    return 0;
}

static void drop(struct sampler *s, uint32_t id, bool output)
{
    uint32_t at = lower_bound(s, id);
    s->seen[at].in_output -= output;
    if (--s->seen[at].in_any)
        return;
    memmove(s->seen + at, s->seen + at + 1, (s->seen_count - at - 1) * sizeof *s->seen);
    s->seen_count--;
}

static int by_id(const void *a, const void *b)
{
    uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    return (x > y) - (x < y);
}

int sampler_start(struct sampler *s, const uint32_t *prompt, uint32_t count, uint32_t reach, uint32_t ids)
{
    const struct sample_params *p = &s->params;
    s->counts = p->repetition_penalty != 1 || p->presence_penalty != 0 || p->frequency_penalty != 0;
    if (!s->counts)
        return 0;
    uint32_t from = s->window && count > s->window ? count - s->window : 0, n = count - from;
    uint32_t *sorted = mem_try_array(n, sizeof *sorted), most = s->window && s->window < reach ? s->window : reach;
    s->seen_cap = (most < ids ? most : ids) + 1; /* the next id is there before the one that leaves the window is gone */
    s->seen = mem_try_array(s->seen_cap, sizeof *s->seen);
    if (!sorted || !s->seen) {
        mem_free(sorted);
        return ERR_NOMEM;
    }
    memcpy(sorted, prompt + from, n * sizeof *sorted);
    qsort(sorted, n, sizeof *sorted, by_id);
    for (uint32_t i = 0; i < n; i++) {
        if (s->seen_count == 0 || s->seen[s->seen_count - 1].id != sorted[i])
            s->seen[s->seen_count++] = (struct sample_seen){.id = sorted[i]};
        s->seen[s->seen_count - 1].in_any++;
    }
    mem_free(sorted);
    return 0;
}

int sampler_observe(struct sampler *s, const uint32_t *history, uint32_t count, uint32_t prompt_count)
{
    if (!s->counts)
        return 0;
    if (s->window && count > s->window)
        drop(s, history[count - 1 - s->window], count - 1 - s->window >= prompt_count);
    return add(s, history[count - 1], true);
}

static uint32_t patch_adjust(const struct sampler *s, struct sample_seen *patch, uint32_t n, uint32_t id, int step, bool output)
{
    uint32_t at = 0, base;
    while (at < n && patch[at].id < id)
        at++;
    if (at == n || patch[at].id != id) {
        memmove(patch + at + 1, patch + at, (n - at) * sizeof *patch);
        base = lower_bound(s, id);
        patch[at] = base < s->seen_count && s->seen[base].id == id ? s->seen[base] : (struct sample_seen){.id = id};
        n++;
    }
    patch[at].in_any += (uint32_t)step;
    patch[at].in_output += output ? (uint32_t)step : 0;
    return n;
}

uint32_t sampler_patch(const struct sampler *s, struct sample_seen *patch, uint32_t n, const uint32_t *history, uint32_t at,
                       uint32_t prompt_count)
{
    if (!s->counts)
        return 0;
    if (s->window && at + 1 > s->window)
        n = patch_adjust(s, patch, n, history[at - s->window], -1, at - s->window >= prompt_count);
    return patch_adjust(s, patch, n, history[at], 1, true);
}

void sampler_free(struct sampler *s)
{
    mem_free(s->seen);
    s->seen = NULL;
    s->seen_count = s->seen_cap = 0;
}
