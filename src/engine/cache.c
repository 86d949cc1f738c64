/* engine/cache.c - what requests and the tree of known prefixes (kv/prefix.h) have to do with each other.
 *
 * A sequence starts as a lease of the longest usable prefix under its request's key and leaves what it covered when it ends, is
 * cancelled or pre-empted.  The positions a request's state must stay usable at: its last boundary and the last of its prompt, so an
 * edited answer, another question and a retry find them; the other boundaries as bytes allow.
 * Key: the tenant's salt and the hash of the media.  The rest of the numeric identity is the engine's own: one model, one format.
 * Does not: order eviction (kv/prefix_evict.c) or decide when to evict (sched.c). */
#include "base/mem.h"
#include "engine/engine_int.h"

int cache_configure(struct engine_request *r, const struct engine_request_config *cfg, struct err *err)
{
    if (cfg->tenant.n > ENGINE_TENANT_MAX)
        return err_set(err, ERR_LIMIT, "tenant: at most %d bytes, got %zu", ENGINE_TENANT_MAX, cfg->tenant.n);
    memcpy(r->key, &cfg->media, sizeof cfg->media);
    if (cfg->tenant.n)
        memcpy(r->key + sizeof cfg->media, cfg->tenant.p, cfg->tenant.n);
    r->key_n = (uint32_t)(sizeof cfg->media + cfg->tenant.n);
    r->has_session = cfg->session.n != 0;
    if (r->has_session)
        r->session = hash_xxh3(cfg->session.p, cfg->session.n);
    return 0;
}

int engine_request_boundaries(struct engine_request *r, const uint32_t *positions, uint32_t count, struct err *err)
{
    for (uint32_t i = 0; i < count; i++)
        if (positions[i] == 0 || (i && positions[i] <= positions[i - 1]))
            return err_set(err, ERR_ARGUMENT, "boundaries: position %u at place %u, they must ascend from 1 on", positions[i], i);
    uint32_t *copy = mem_try_array(count, sizeof *copy);
    if (!copy)
        return err_nomem(err, "boundaries", count * sizeof *copy);
    if (count)
        memcpy(copy, positions, count * sizeof *copy);
    mem_free(r->boundaries);
    r->boundaries = copy;
    r->boundary_count = count;
    return 0;
}

static struct kv_prefix_plan plan_of(const struct engine_request *r)
{
    uint32_t last = r->prompt_count - 1, n = r->boundary_count;
    while (n && r->boundaries[n - 1] > last)
        n--;
    return (struct kv_prefix_plan){.must = {last, n ? r->boundaries[n - 1] : 0}, .may = r->boundaries, .may_count = n};
}

/* The figures are those of a choice's first start; choices past the first share the first one's prompt. */
void cache_started(struct engine *e, struct seq *s, const struct kv_prefix_hit *hit)
{
    struct engine_outcome *o = &s->request->outcomes[s->choice];
    if (s->admitted_before)
        return;
    o->cache = s->choice ? s->request->outcomes[0].cache : *hit;
    o->cached_count = o->cache.positions;
    if (s->choice)
        return;
    e->cache.prompt_tokens += s->request->prompt_count;
    e->cache.cached_tokens += hit->positions;
    e->cache.misses[hit->miss]++;
}

void cache_query(const struct seq *s, struct kv_prefix_query *out)
{
    const struct engine_request *r = s->request;
    *out = (struct kv_prefix_query){.key = {r->key, r->key_n}, .ids = s->tokens, .count = s->count, .reach = seq_reach(s), .plan = plan_of(r)};
}

int cache_take(struct engine *e, struct seq *s, struct kv_prefix_hit *hit, struct err *err)
{
    struct kv_prefix_query q;
    cache_query(s, &q);
    *hit = (struct kv_prefix_hit){.miss = KV_MISS_OFF, .stored_id = -1};
    bool whole = s->request->no_reuse || (s->request->reveal.logprobs && s->choice == 0); /* all of its rows are to be seen */
    if (!whole)
        return kv_prefix_lease(e->kv, &q, &s->kv, hit, err);
    int rc = kv_seq_new(e->kv, &s->kv, err);
    if (rc == 0 && (rc = kv_seq_reserve(e->kv, s->kv, q.reach, err))) {
        kv_seq_free(e->kv, s->kv);
        s->kv = NULL;
    }
    return rc;
}

void cache_leave(struct engine *e, struct seq *s, bool ended)
{
    kv_prefix_keep(e->kv, s->kv, ended && s->request->has_session ? &s->request->session : NULL);
    kv_seq_free(e->kv, s->kv);
    s->kv = NULL;
}
