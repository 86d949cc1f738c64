/* engine/lookup.c - prompt lookup: what followed an earlier occurrence of the last 3, 2 or 1 ids.
 *
 * The occurrence is the nearest, or the one that lies as far back as the last guess did when as many ids before it are the same: who copies a
 * text goes on where it is, however often its phrases occur elsewhere.  How likely ids are right is learnt apart by how many ids agree, up to
 * LOOKUP_LONG.
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
    uint32_t back;     /* how far behind the end the last guess was taken from; 0: none was */
};

enum { LOOKUP_LONG = 12, LOOKUP_PLACES_MOST = 1 << 16 }; /* longer texts: late runs take the places of early ones */

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

/* Ids before place `at` that are those at the end of the text, at most LOOKUP_LONG. */
static uint32_t agreeing(const uint32_t *tokens, uint32_t count, uint32_t at)
{
    uint32_t n = 0;
    while (n < LOOKUP_LONG && n < at && tokens[at - 1 - n] == tokens[count - 1 - n])
        n++;
    return n;
}

static uint32_t nearest(const struct lookup *l, const uint32_t *tokens, uint32_t count)
{
    for (uint32_t n = LOOKUP_GRAM_MOST; n >= 1; n--) {
        if (count < n + 1)
            continue;
        uint32_t at = l->last[n - 1][hash_run(l, tokens + count - 1, n)];
        if (at >= n && count - at <= PROPOSE_HISTORY_MAX && memcmp(tokens + at - n, tokens + count - n, n * sizeof *tokens) == 0)
            return at;
    }
    return 0;
}

static uint32_t lookup_propose(struct proposer *p, const uint32_t *tokens, uint32_t count, uint32_t room, uint32_t *out, uint32_t *class)
{
    struct lookup *l = (struct lookup *)(void *)p;
    uint32_t at = nearest(l, tokens, count), same = at ? agreeing(tokens, count, at) : 0;
    if (l->back && l->back < count) {
        uint32_t there = count - l->back, as_many = agreeing(tokens, count, there);
        if (as_many >= LOOKUP_GRAM_MOST && as_many >= same)
            at = there, same = as_many;
    }
    if (at == 0)
        return 0;
    uint32_t most = room < LOOKUP_IDS_MOST ? room : LOOKUP_IDS_MOST, have = count - at;
    most = most < have ? most : have;
    memcpy(out, tokens + at, most * sizeof *out);
    l->back = have;
    *class = same == LOOKUP_LONG ? LOOKUP_GRAM_MOST : (same < LOOKUP_GRAM_MOST ? same : LOOKUP_GRAM_MOST) - 1;
    return most;
}

static void lookup_free(struct proposer *p)
{
    struct lookup *l = (struct lookup *)(void *)p;
    for (uint32_t i = 0; i < LOOKUP_GRAM_MOST; i++)
        mem_free(l->last[i]);
    mem_free(l);
}

static const struct proposer_ops lookup_ops = {.name = "lookup", .kind = PROPOSER_LOOKUP, .counts_as_draft = true,
                                               .prior = {0.15, 0.4, 0.6, 0.8}, .propose = lookup_propose, .observe = lookup_observe,
                                               .free = lookup_free};

int lookup_open(uint32_t positions, struct proposer **out, struct err *err)
{
    struct lookup *l = mem_try_zero(1, sizeof *l);
    *out = NULL;
    if (!l)
        return err_nomem(err, "lookup", sizeof *l);
    proposer_init(&l->base, &lookup_ops);
    for (l->cap = 128; l->cap / 2 < positions && l->cap < LOOKUP_PLACES_MOST;)
        l->cap *= 2;
    for (uint32_t i = 0; i < LOOKUP_GRAM_MOST; i++)
        if (!(l->last[i] = mem_try_zero(l->cap, sizeof *l->last[i]))) {
            size_t bytes = l->cap * sizeof *l->last[i];
            lookup_free(&l->base);
            return err_nomem(err, "lookup", bytes);
        }
    *out = &l->base;
    return 0;
}
