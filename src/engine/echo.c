/* engine/echo.c - the model copies: an index of all runs of ECHO_GRAM ids, and what followed them.
 *
 * The state asked is the one before the last token: the ECHO_GRAM ids that end there are looked up, their nearest ECHO_OCCURRENCES earlier
 * occurrences are followed side by side as long as they agree, and the span found counts only if its first id is the token that was
 * then sampled.  So a wide verify never starts on a guess that has not been confirmed once.
 *
 * Invariant: heads and prev chain the places where a run ends whose next id is known, nearest first; a place ECHO ring sizes back is gone. */
#include "engine/proposer.h"

#include "base/mem.h"

#include <string.h>

enum { CHAIN_MOST = 4 * ECHO_OCCURRENCES }; /* places looked at, runs of another text with the same hash included */

struct echo {
    struct proposer base;
    const uint32_t *cut_ids;
    uint32_t cut_count;
    uint32_t cap;      /* places remembered; power of two */
    uint32_t indexed;  /* runs that end before this place are in the index */
    uint32_t *heads;   /* [cap] hash -> place + 1 */
    uint32_t *prev;    /* [cap] place -> the one before with that hash, + 1 */
};

static uint32_t hash_run(const struct echo *e, const uint32_t *last) /* of the run that ends at *last */
{
    uint64_t h = 0x9e3779b97f4a7c15u;
    for (uint32_t i = 0; i < ECHO_GRAM; i++)
        h = (h ^ last[-(int32_t)i]) * 0xff51afd7ed558ccdu, h ^= h >> 29;
    return (uint32_t)(h >> 20) & (e->cap - 1);
}

static bool same_run(const uint32_t *a, const uint32_t *b)
{
    return memcmp(a - (ECHO_GRAM - 1), b - (ECHO_GRAM - 1), ECHO_GRAM * sizeof *a) == 0;
}

/* Runs that end before place `to` go in. */
static void index_until(struct echo *e, const uint32_t *tokens, uint32_t to)
{
    for (; e->indexed < to; e->indexed++) {
        if (e->indexed < ECHO_GRAM - 1)
            continue;
        uint32_t h = hash_run(e, tokens + e->indexed);
        e->prev[e->indexed & (e->cap - 1)] = e->heads[h];
        e->heads[h] = e->indexed + 1;
    }
}

static void echo_observe(struct proposer *p, const uint32_t *tokens, uint32_t count)
{
    if (count >= 3)
        index_until((struct echo *)(void *)p, tokens, count - 2);
}

static uint32_t occurrences(const struct echo *e, const uint32_t *tokens, uint32_t tail, uint32_t *places)
{
    uint32_t n = 0, at = e->heads[hash_run(e, tokens + tail)], newest = e->indexed;
    for (uint32_t looked = 0; at && n < ECHO_OCCURRENCES && looked < CHAIN_MOST; looked++) {
        uint32_t place = at - 1;
        if (newest - place > e->cap)
            break;
        if (same_run(tokens + place, tokens + tail))
            places[n++] = place;
        uint32_t before = e->prev[place & (e->cap - 1)];
        if (before > place)
            break;
        at = before;
    }
    return n;
}

static bool is_cut(const struct echo *e, uint32_t id)
{
    for (uint32_t i = 0; i < e->cut_count; i++)
        if (e->cut_ids[i] == id)
            return true;
    return false;
}

/* What all places still inside the text go on with; stops at a fork and before an id that ends spans. */
static uint32_t follow(const struct echo *e, const uint32_t *tokens, uint32_t count, const uint32_t *places, uint32_t n, uint32_t most,
                       uint32_t *span)
{
    uint32_t len = 0;
    for (; len < most; len++) {
        bool any = false;
        uint32_t id = 0;
        for (uint32_t i = 0; i < n; i++) {
            if (places[i] + 1 + len >= count)
                continue;
            uint32_t next = tokens[places[i] + 1 + len];
            if (any && next != id)
                return len;
            id = next;
            any = true;
        }
        if (!any || is_cut(e, id))
            return len;
        span[len] = id;
    }
    return len;
}

static uint32_t echo_propose(struct proposer *p, const uint32_t *tokens, uint32_t count, uint32_t room, uint32_t *out, uint32_t *class)
{
    struct echo *e = (struct echo *)(void *)p;
    uint32_t places[ECHO_OCCURRENCES], span[ECHO_SPAN_MOST];
    *class = 0;
    if (count < ECHO_GRAM + 2)
        return 0;
    uint32_t n = occurrences(e, tokens, count - 2, places);
    uint32_t most = room + 1 < ECHO_SPAN_MOST ? room + 1 : ECHO_SPAN_MOST;
    uint32_t len = n ? follow(e, tokens, count - 1, places, n, most, span) : 0;
    if (len < ECHO_SPAN_LEAST || span[0] != tokens[count - 1])
        return 0;
    memcpy(out, span + 1, (len - 1) * sizeof *out);
    return len - 1;
}

static void echo_free(struct proposer *p)
{
    struct echo *e = (struct echo *)(void *)p;
    mem_free(e->heads);
    mem_free(e->prev);
    mem_free(e);
}

static const struct proposer_ops echo_ops = {.name = "echo", .kind = PROPOSER_ECHO, .prior = {0.9, 0.9, 0.9, 0.9}, .propose = echo_propose,
                                             .observe = echo_observe, .free = echo_free};

int echo_open(uint32_t positions, const uint32_t *cut_ids, uint32_t cut_count, struct proposer **out, struct err *err)
{
    struct echo *e = mem_try_zero(1, sizeof *e);
    *out = NULL;
    if (!e)
        return err_nomem(err, "echo", sizeof *e);
    proposer_init(&e->base, &echo_ops);
    e->cut_ids = cut_ids;
    e->cut_count = cut_count;
    for (e->cap = 64; e->cap < positions && e->cap < PROPOSE_HISTORY_MAX;)
        e->cap *= 2;
    e->heads = mem_try_zero(e->cap, sizeof *e->heads);
    e->prev = mem_try_zero(e->cap, sizeof *e->prev);
    if (!e->heads || !e->prev) {
        size_t bytes = e->cap * sizeof *e->prev;
        echo_free(&e->base);
        return err_nomem(err, "echo", bytes);
    }
    *out = &e->base;
    return 0;
}
