/* kv/check.c - walk everything and compare with the counts.  For tests and debug builds: takes host memory of its own. */
#include "kv/prefix_int.h"

#include "base/mem.h"

static int check_table(const struct kv *kv, const struct kv_seq *s, uint32_t group, uint32_t *named, struct err *err)
{
    const struct kv_table *t = &s->tables[group];
    uint32_t len = kv_pages_for(t->group, s->room);
    if (!kv_stage_is(t->group->stage, s->early)) {
        len = s->early && s->room == kv->layout.start ? t->len : 0; /* late pages: taken to be encoded into, or not yet */
    }
    if (t->len != len || t->first > t->len || t->len > t->cap) {
        return err_set(err, ERR_INTERNAL, "kv: group %u: table of %u pages (%u released, room for %u), %u rows", group, t->len,
                       t->first, t->cap, s->room);
    }
    for (uint32_t i = 0; i < t->len; i++) {
        uint32_t page = t->pages[i];
        uint32_t at = s->covered / t->group->page;
        bool skipped = t->group->policy == KV_RECURRENT && (i > at || s->covered == 0); /* a block a step passes by is not kept */
        if ((page != 0 && i < t->first) || (page == 0 && i >= t->first && !skipped) || page >= kv->groups[group].capacity) {
            return err_set(err, ERR_INTERNAL, "kv: group %u: page %u of a table is %u, %u are released", group, i, page,
                           t->first);
        }
        named[page] += page != 0;
    }
    return 0;
}

static int check_group(const struct kv *kv, uint32_t group, uint64_t *chunks, struct err *err)
{
    const struct kv_group *g = &kv->groups[group];
    uint32_t *named = mem_try_zero(g->capacity, sizeof *named);
    if (named == NULL) {
        return err_nomem(err, "state check", g->capacity * sizeof *named);
    }
    int rc = 0;
    uint32_t live = 0;
    for (const struct kv_seq *s = kv->seqs; s != NULL && rc == 0; s = s->next) {
        rc = check_table(kv, s, group, named, err);
    }
    if (rc == 0) {
        rc = prefix_check(kv, group, named, err);
    }
    for (uint32_t id = 1; id < g->capacity && rc == 0; id++) {
        if (named[id] != g->refs[id]) {
            rc = err_set(err, ERR_INTERNAL, "kv: group %u: page %u counts %u, tables and nodes name it %u times", group, id, g->refs[id],
                         named[id]);
        }
        live += g->refs[id] != 0;
        for (uint32_t c = 0; c < g->layout->chunk_count && rc == 0; c++) {
            if ((g->host[c][id] != NULL) != (g->refs[id] != 0)) {
                rc = err_set(err, ERR_INTERNAL, "kv: group %u: page %u has %u names and chunk %u at %p", group, id, g->refs[id],
                             c, (void *)g->host[c][id]);
            }
            chunks[kv->layout.chunk_pool[g->layout->chunk_first + c]] += g->refs[id] != 0;
        }
    }
    if (rc == 0 && live + g->free_count + 1 != g->capacity) {
        rc = err_set(err, ERR_INTERNAL, "kv: group %u: %u live + %u free pages of %u", group, live, g->free_count,
                     g->capacity - 1);
    }
    mem_free(named);
    return rc;
}

static uint32_t slab_popcount(const struct kv_slab *s)
{
    uint32_t n = 0;
    for (uint32_t w = 0; w < KV_SLAB_CHUNKS_MAX / 64; w++) {
        n += (uint32_t)__builtin_popcountll(s->taken[w]);
    }
    return n;
}

static int check_slabs(const struct kv *kv, const uint64_t *chunks, struct err *err)
{
    uint32_t free_slabs = 0;
    for (uint32_t p = 0; p < kv->layout.pool_count; p++) {
        uint64_t used = 0, open = 0, listed = 0, places = 0;
        for (uint32_t i = 0; i < kv->slab_count; i++) {
            const struct kv_slab *s = &kv->slabs[i];
            if (s->pool == p) {
                used += s->used;
                open += s->used < kv->layout.pools[p].per_slab;
                places += kv->layout.pools[p].per_slab - s->used;
            }
        }
        for (uint32_t i = kv->layout.pools[p].open_head; i != KV_NONE && listed <= kv->slab_count; i = kv->slabs[i].next) {
            listed++;
        }
        if (used != chunks[p] || open != listed) {
            return err_set(err, ERR_INTERNAL, "kv: pool %u: slabs count %llu chunks, pages %llu; %llu open slabs, %llu listed", p,
                           (unsigned long long)used, (unsigned long long)chunks[p], (unsigned long long)open,
                           (unsigned long long)listed);
        }
        if (places != kv->layout.pools[p].open_count) {
            return err_set(err, ERR_INTERNAL, "kv: pool %u: %llu free chunks, counted %llu", p, (unsigned long long)places,
                           (unsigned long long)kv->layout.pools[p].open_count);
        }
    }
    for (uint32_t i = 0; i < kv->slab_count; i++) {
        const struct kv_slab *s = &kv->slabs[i];
        if (slab_popcount(s) != s->used || (s->pool == KV_NONE) != (s->used == 0)) {
            return err_set(err, ERR_INTERNAL, "kv: slab %u: counts %u chunks, %u taken, pool %u", i, s->used, slab_popcount(s),
                           s->pool);
        }
        free_slabs += s->pool == KV_NONE;
    }
    if (free_slabs != kv->slabs_free) {
        return err_set(err, ERR_INTERNAL, "kv: %u free slabs, counted %u", kv->slabs_free, free_slabs);
    }
    return 0;
}

/* free + open + live + cached == total: kv_stats calls the rest open; here it is counted, chunk by chunk. */
static int check_total(const struct kv *kv, struct err *err)
{
    struct kv_stats s;
    uint64_t open = 0;
    kv_stats(kv, &s);
    for (uint32_t i = 0; i < kv->slab_count; i++) {
        const struct kv_slab *slab = &kv->slabs[i];
        if (slab->pool != KV_NONE) {
            uint32_t per = kv->layout.pools[slab->pool].per_slab;
            open += (uint64_t)(per - slab->used) * (KV_SLAB / per) + KV_SLAB % per;
        }
    }
    if (open != s.open_bytes) {
        return err_set(err, ERR_INTERNAL, "kv: %llu free + %llu open + %llu live + %llu cached bytes of %llu", (unsigned long long)s.free_bytes,
                       (unsigned long long)open, (unsigned long long)s.live_bytes, (unsigned long long)s.cached_bytes,
                       (unsigned long long)s.total_bytes);
    }
    return 0;
}

int kv_check(const struct kv *kv, struct err *err)
{
    uint64_t *chunks = mem_try_zero(kv->layout.pool_count, sizeof *chunks);
    if (chunks == NULL) {
        return err_nomem(err, "state check", kv->layout.pool_count * sizeof *chunks);
    }
    int rc = 0;
    for (uint32_t g = 0; g < kv->layout.group_count && rc == 0; g++) {
        rc = check_group(kv, g, chunks, err);
    }
    for (const struct kv_seq *s = kv->seqs; s != NULL && rc == 0; s = s->next) {
        if (s->covered > s->room || s->covered > s->ids_cap) {
            rc = err_set(err, ERR_INTERNAL, "kv: sequence covers %u of %u rows, ids for %u", s->covered, s->room, s->ids_cap);
        }
    }
    if (rc == 0) {
        rc = check_slabs(kv, chunks, err);
    }
    if (rc == 0) {
        rc = check_total(kv, err);
    }
    if (rc == 0) {
        rc = prefix_check_tree(kv, err);
    }
    mem_free(chunks);
    return rc;
}
