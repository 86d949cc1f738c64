/* engine/retain.c - finished sequences whose state is kept for the next prompt that begins the same way.
 *
 * Invariants: 1. The ids a kept state stands for are exactly kv_seq_ids; only a common prefix of them is ever used.
 *             2. Kept states are under the one budget of sequence state: they go, the one unused longest first, before anything waits.
 * Does not:   copy state: a hit is a fork that shares pages by reference. */
#include "base/mem.h"
#include "engine/engine_int.h"

static uint32_t common_prefix(const struct kv_seq *kv, const uint32_t *tokens, uint32_t most)
{
    uint32_t n = kv_seq_covered(kv);
    const uint32_t *ids = kv_seq_ids(kv);
    n = n < most ? n : most;
    for (uint32_t i = 0; i < n; i++)
        if (ids[i] != tokens[i])
            return i;
    return n;
}

const struct kv_seq *retain_find(struct engine *e, const uint32_t *tokens, uint32_t count, uint32_t *positions)
{
    const struct kv_seq *best = NULL;
    struct retained *hit = NULL;
    *positions = 0;
    for (uint32_t i = 0; i < e->retained_count + e->running_count; i++) {
        struct retained *r = i < e->retained_count ? &e->retained[i] : NULL;
        const struct seq *live = r ? NULL : e->running[i - e->retained_count];
        if (live && live->in_flight)
            continue; /* rows of it may still be written into its last page */
        const struct kv_seq *kv = r ? r->kv : live->kv;
        uint32_t n = common_prefix(kv, tokens, count - 1);
        if (n > *positions && n >= kv_seq_oldest(kv)) {
            *positions = n;
            best = kv;
            hit = r;
        }
    }
    if (hit)
        hit->used = ++e->uses;
    return best;
}

static void remove_at(struct engine *e, uint32_t i)
{
    kv_seq_free(e->kv, e->retained[i].kv);
    e->retained[i] = e->retained[--e->retained_count];
}

void retain_put(struct engine *e, struct kv_seq *kv)
{
    uint32_t covered = kv_seq_covered(kv);
    if (covered == 0 || e->cfg.retain_none || kv_rewind(e->kv, kv, covered, NULL)) {
        kv_seq_free(e->kv, kv);
        return;
    }
    /* What this one also stands for need not be kept twice (an older state of a window layer is another state). */
    for (uint32_t i = e->retained_count; i-- > 0;) {
        const struct kv_seq *old = e->retained[i].kv;
        uint32_t n = kv_seq_covered(old);
        if ((!e->windows || n == covered) && common_prefix(kv, kv_seq_ids(old), n) == n)
            remove_at(e, i);
    }
    if (e->retained_count == e->cfg.retained_max)
        retain_evict(e, NULL);
    e->retained[e->retained_count++] = (struct retained){kv, ++e->uses};
}

void retain_prompt(struct engine *e, const struct seq *s)
{
    struct kv_seq *copy;
    uint32_t positions = s->request->prompt_count - 1;
    if (!e->windows || e->cfg.retain_none || s->request->scoring || positions < kv_seq_oldest(s->kv))
        return;
    if (kv_seq_fork(e->kv, s->kv, positions, &copy, NULL) == 0)
        retain_put(e, copy);
}

bool retain_evict(struct engine *e, const struct kv_seq *except)
{
    uint32_t best = UINT32_MAX;
    for (uint32_t i = 0; i < e->retained_count; i++)
        if (e->retained[i].kv != except && (best == UINT32_MAX || e->retained[i].used < e->retained[best].used))
            best = i;
    if (best == UINT32_MAX)
        return false;
    remove_at(e, best);
    e->evicted++;
    return true;
}

void retain_clear(struct engine *e)
{
    while (e->retained_count)
        remove_at(e, e->retained_count - 1);
}
