/* engine/lookup.c - prompt lookup: what followed the nearest earlier occurrence of the last 3, 2 or 1 ids.
 *
 * Invariant: last[n - 1] maps the hash of n ids to the latest place where such a run ends and its next id is known; a run of another text
 * with the same hash takes the place over, so a lookup compares the ids. */
#include "engine/proposer.h"

#include "base/mem.h"

#include <string.h>

struct lookup {
    struct proposer base;
    uint32_t cap;      /* power of two */
    uint32_t indexed;  /* runs that end before this place are in the index */
    uint32_t *last[LOOKUP_GRAM_MOST]; /* [cap] place + 1 */
};

static uint32_t hash_run(const struct lookup *l, const uint32_t *last, uint32_t n)
{
    uint64_t h = n;
    for (uint32_t i = 0; i < n; i++)
        h = (h ^ last[-(int32_t)i]) * 0xff51afd7ed558ccdu, h ^= h >> 29;
    return (uint32_t)(h >> 20) & (l->cap - 1);
}

static void lookup_observe(struct proposer *p, const uint32_t *tokens, uint32_t count)
{
    struct lookup *l = (struct lookup *)(void *)p;
    for (; l->indexed + 1 < count; l->indexed++)
        for (uint32_t n = 1; n <= LOOKUP_GRAM_MOST && n <= l->indexed + 1; n++)
            l->last[n - 1][hash_run(l, tokens + l->indexed, n)] = l->indexed + 1;
}

static uint32_t lookup_propose(struct proposer *p, const uint32_t *tokens, uint32_t count, uint32_t room, uint32_t *out, uint32_t *class)
{
    struct lookup *l = (struct lookup *)(void *)p;
    for (uint32_t n = LOOKUP_GRAM_MOST; n >= 1; n--) {
        if (count < n + 1)
            continue;
        uint32_t at = l->last[n - 1][hash_run(l, tokens + count - 1, n)];
        if (at < n || count - at > PROPOSE_HISTORY_MAX || memcmp(tokens + at - n, tokens + count - n, n * sizeof *tokens))
            continue;
        uint32_t most = room < LOOKUP_IDS_MOST ? room : LOOKUP_IDS_MOST, have = count - at;
        most = most < have ? most : have;
        memcpy(out, tokens + at, most * sizeof *out);
        *class = n - 1;
        return most;
    }
    return 0;
}

static void lookup_free(struct proposer *p)
{
    struct lookup *l = (struct lookup *)(void *)p;
    for (uint32_t i = 0; i < LOOKUP_GRAM_MOST; i++)
        mem_free(l->last[i]);
    mem_free(l);
}

static const struct proposer_ops lookup_ops = {.name = "lookup", .kind = PROPOSER_LOOKUP, .counts_as_draft = true,
                                               .prior = {0.15, 0.4, 0.6, 0.6}, .propose = lookup_propose, .observe = lookup_observe,
                                               .free = lookup_free};

int lookup_open(uint32_t positions, struct proposer **out, struct err *err)
{
    struct lookup *l = mem_try_zero(1, sizeof *l);
    *out = NULL;
    if (!l)
        return err_nomem(err, "lookup", sizeof *l);
    proposer_init(&l->base, &lookup_ops);
    for (l->cap = 128; l->cap / 2 < positions && l->cap < 2 * PROPOSE_HISTORY_MAX;)
        l->cap *= 2;
    for (uint32_t i = 0; i < LOOKUP_GRAM_MOST; i++)
        if (!(l->last[i] = mem_try_zero(l->cap, sizeof *l->last[i]))) {
            lookup_free(&l->base);
            return err_nomem(err, "lookup", l->cap * sizeof *l->last[i]);
        }
    *out = &l->base;
    return 0;
}
