/* kv/pages.c - page ids of each group: reference counts, chunks, and the pointer tables the device reads; kv_open and kv_close.
 *
 * Invariants: 1. refs[id] > 0 exactly when every chunk pointer of the id is set.
 *             2. A device table keeps its address for the life of the kv.
 *             3. A pointer is enqueued to the device before any op that names its page (kv_publish), from a copy that stays as it is until
 *                the next but one.
 *             4. cached == pages with refs == kept > 0. */
#include "kv/prefix_int.h"

#include "base/mem.h"

#include <assert.h>
#include <string.h>

/* [chunks][capacity], in one block. */
static int pointers_new(unsigned char ****out, uint32_t chunks, uint32_t capacity, struct err *err)
{
    unsigned char ***p = *out = mem_try_zero(chunks, sizeof *p);
    if (p == NULL || (p[0] = mem_try_zero((size_t)chunks * capacity, sizeof *p[0])) == NULL) {
        return err_nomem(err, "page table", (size_t)chunks * capacity * sizeof *p[0]);
    }
    for (uint32_t c = 1; c < chunks; c++) {
        p[c] = p[c - 1] + capacity;
    }
    return 0;
}

static void pointers_free(unsigned char ***p)
{
    if (p != NULL) {
        mem_free(p[0]);
    }
    mem_free(p);
}

static int group_open(struct kv *kv, uint32_t index, struct err *err)
{
    struct kv_group *g = &kv->groups[index];
    g->layout = &kv->layout.groups[index];
    uint64_t most = (uint64_t)kv->slab_count * KV_SLAB / kv_layout_page_bytes(&kv->layout, index) + 1;
    if (most >= KV_FILLED) {
        return err_set(err, ERR_LIMIT, "%llu pages of state", (unsigned long long)most);
    }
    g->capacity = (uint32_t)most;
    uint32_t chunks = g->layout->chunk_count;
    g->refs = mem_try_zero(g->capacity, sizeof *g->refs);
    g->kept = mem_try_zero(g->capacity, sizeof *g->kept);
    g->free_ids = mem_try_zero(g->capacity, sizeof *g->free_ids);
    g->device = mem_try_zero(chunks, sizeof *g->device);
    int rc = pointers_new(&g->host, chunks, g->capacity, err);
    for (uint32_t i = 0; i < KV_PUBLISH_TURNS; i++) {
        rc = rc != 0 ? rc : pointers_new(&g->staging[i], chunks, g->capacity, err);
    }
    if (rc != 0) {
        return rc;
    }
    if (g->refs == NULL || g->kept == NULL || g->free_ids == NULL || g->device == NULL) {
        return err_nomem(err, "page table", g->capacity * sizeof *g->refs);
    }
    for (uint32_t c = 0; c < chunks; c++) {
        void *table = NULL;
        rc = kv->backend->buffer_new(kv->device, g->capacity * sizeof *g->host[c], &table, err);
        if (rc != 0) {
            return rc;
        }
        g->device[c] = table;
    }
    for (uint32_t id = g->capacity - 1; id > 0; id--) {
        g->free_ids[g->free_count++] = id;
    }
    g->dirty_from = g->capacity;
    return 0;
}

int kv_groups_open(struct kv *kv, struct err *err)
{
    for (uint32_t i = 0; i < kv->layout.group_count; i++) {
        int rc = group_open(kv, i, err);
        if (rc != 0) {
            return rc;
        }
    }
    return 0;
}

void kv_groups_close(struct kv *kv)
{
    for (uint32_t i = 0; kv->groups != NULL && i < kv->layout.group_count; i++) {
        struct kv_group *g = &kv->groups[i];
        uint32_t chunks = g->layout ? g->layout->chunk_count : 0;
        for (uint32_t c = 0; c < chunks; c++) {
            if (g->device != NULL && g->device[c] != NULL) {
                kv->backend->buffer_free(kv->device, g->device[c], g->capacity * sizeof *g->host[c]);
            }
        }
        mem_free(g->device);
        pointers_free(g->host);
        for (uint32_t t = 0; t < KV_PUBLISH_TURNS; t++) {
            pointers_free(g->staging[t]);
        }
        mem_free(g->refs);
        mem_free(g->kept);
        mem_free(g->free_ids);
    }
    mem_free(kv->groups);
}

static void page_release(struct kv *kv, struct kv_group *g, uint32_t page)
{
    for (uint32_t c = 0; c < g->layout->chunk_count; c++) {
        if (g->host[c][page] != NULL) {
            kv_chunk_give(kv, g->host[c][page]);
            g->host[c][page] = NULL;
        }
    }
    g->free_ids[g->free_count++] = page;
}

uint32_t kv_page_take(struct kv *kv, uint32_t group)
{
    struct kv_group *g = &kv->groups[group];
    if (g->free_count == 0) {
        return 0;
    }
    uint32_t page = g->free_ids[--g->free_count];
    for (uint32_t c = 0; c < g->layout->chunk_count; c++) {
        g->host[c][page] = kv_chunk_take(kv, kv->layout.chunk_pool[g->layout->chunk_first + c]);
        if (g->host[c][page] == NULL) {
            page_release(kv, g, page);
            return 0;
        }
    }
    g->refs[page] = 1;
    g->dirty_from = page < g->dirty_from ? page : g->dirty_from;
    g->dirty_to = page + 1 > g->dirty_to ? page + 1 : g->dirty_to;
    return page;
}

void kv_page_hold(struct kv *kv, uint32_t group, uint32_t page)
{
    struct kv_group *g = &kv->groups[group];
    assert(g->refs[page] > 0);
    g->cached -= g->refs[page] == g->kept[page];
    g->refs[page]++;
}

void kv_page_drop(struct kv *kv, uint32_t group, uint32_t page)
{
    struct kv_group *g = &kv->groups[group];
    assert(g->refs[page] > 0);
    if (--g->refs[page] == 0) {
        page_release(kv, g, page);
    } else {
        g->cached += g->refs[page] == g->kept[page];
    }
}

/* What names it besides stays, so whether it is cached does not change. */
void kv_page_keep(struct kv *kv, uint32_t group, uint32_t page)
{
    struct kv_group *g = &kv->groups[group];
    assert(g->refs[page] > 0);
    g->kept[page]++;
    g->refs[page]++;
}

void kv_page_unkeep(struct kv *kv, uint32_t group, uint32_t page)
{
    struct kv_group *g = &kv->groups[group];
    assert(g->kept[page]);
    g->cached -= g->refs[page] == 1;
    g->kept[page]--;
    if (--g->refs[page] == 0) {
        page_release(kv, g, page);
    }
}

int kv_page_copy(struct kv *kv, uint32_t group, uint32_t from, uint32_t to, struct err *err)
{
    struct kv_group *g = &kv->groups[group];
    for (uint32_t c = 0; c < g->layout->chunk_count; c++) {
        struct op_copy op = {g->host[c][to], g->host[c][from],
                             kv->layout.pools[kv->layout.chunk_pool[g->layout->chunk_first + c]].chunk_bytes};
        int rc = op_copy(kv->device, &op, err);
        if (rc != 0) {
            return rc;
        }
    }
    return 0;
}

static int group_publish(struct kv *kv, struct kv_group *g, struct err *err)
{
    g->sent_from = g->dirty_from;
    g->sent_to = g->dirty_to;
    if (g->dirty_from >= g->dirty_to) {
        return 0;
    }
    for (uint32_t c = 0; c < g->layout->chunk_count; c++) {
        unsigned char **staging = g->staging[kv->publish_turn][c] + g->dirty_from;
        struct op_copy_in op = {g->device[c] + g->dirty_from, staging, (g->dirty_to - g->dirty_from) * sizeof *staging};
        memcpy(staging, g->host[c] + g->dirty_from, op.size_bytes);
        int rc = op_copy_in(kv->device, &op, err);
        if (rc != 0) {
            return rc;
        }
    }
    g->dirty_from = g->capacity;
    g->dirty_to = 0;
    return 0;
}

int kv_publish(struct kv *kv, struct err *err)
{
    int rc = 0;
    kv->publish_turn = (kv->publish_turn + 1) % KV_PUBLISH_TURNS;
    for (uint32_t i = 0; i < kv->layout.group_count && rc == 0; i++) {
        rc = group_publish(kv, &kv->groups[i], err);
    }
    return rc;
}

void kv_publish_undo(struct kv *kv)
{
    for (uint32_t i = 0; i < kv->layout.group_count; i++) {
        struct kv_group *g = &kv->groups[i];
        g->dirty_from = g->sent_from < g->dirty_from ? g->sent_from : g->dirty_from;
        g->dirty_to = g->sent_to > g->dirty_to ? g->sent_to : g->dirty_to;
    }
}

static int views_make(struct kv *kv, const struct kv_layer_spec *specs, struct err *err)
{
    const struct kv_layout *lay = &kv->layout;
    uint32_t all = lay->kinds * lay->layer_count;
    kv->views = mem_try_zero(all, sizeof *kv->views);
    kv->states = mem_try_zero(all, sizeof *kv->states);
    kv->parts = mem_try_zero(lay->unit_count, sizeof *kv->parts);
    if (kv->views == NULL || kv->states == NULL || kv->parts == NULL) {
        return err_nomem(err, "state views", all * sizeof *kv->views);
    }
    for (uint32_t u = 0; u < lay->unit_count; u++) {
        kv->parts[u] = (struct state_part){kv->groups[lay->units[u].group].device[lay->units[u].chunk], lay->units[u].offset};
    }
    for (uint32_t i = 0; i < all; i++) {
        const struct kv_layer_layout *l = &lay->layers[i];
        const struct kv_layer_spec *spec = &specs[i % lay->layer_count];
        const struct state_part *part = &kv->parts[l->unit_first];
        bool early = i >= lay->layer_count;
        if (spec->policy == KV_RECURRENT) {
            kv->states[i] = (struct state_layer){spec->state, part};
            continue;
        }
        struct kv_layer_spec own = *spec;
        if (early) {
            own.k_format = own.v_format = KV_F16;
        }
        kv->views[i] = kv_layer_shape(&own);
        kv->views[i].pages = part->pages;
        kv->views[i].offset = part->offset;
    }
    return 0;
}

/* The smallest use, one page of each group, must fit. */
static int budget_check(const struct kv *kv, uint64_t budget_bytes, struct err *err)
{
    uint64_t least = kv_bytes_for(kv, 1);
    if (least > (uint64_t)kv->slab_count * KV_SLAB) {
        return err_set(err, ERR_ARGUMENT, "state budget of %llu bytes: one page of every layer takes %llu",
                       (unsigned long long)budget_bytes, (unsigned long long)least);
    }
    return 0;
}

int kv_open(const struct kv_config *cfg, struct kv **out, struct err *err)
{
    *out = NULL;
    if (cfg->context_max == 0 || cfg->context_max > (1u << 30)) {
        return err_set(err, ERR_ARGUMENT, "context of %u positions: expected 1 to 2^30", cfg->context_max);
    }
    struct kv *kv = mem_try_zero(1, sizeof *kv);
    if (kv == NULL) {
        return err_nomem(err, "sequence state", sizeof *kv);
    }
    kv->device = cfg->device;
    kv->backend = device_backend(cfg->device);
    kv->rewind_slack = cfg->rewind_slack;
    kv->context_max = cfg->context_max;
    kv->rows_max = cfg->rows_max ? cfg->rows_max : 512;
    int rc = kv_layout_build(&kv->layout, cfg->layers, cfg->layer_count, cfg->start, err);
    if (rc == 0) {
        rc = kv_slabs_open(kv, cfg->budget_bytes, err);
    }
    if (rc == 0) {
        rc = budget_check(kv, cfg->budget_bytes, err);
    }
    if (rc == 0) {
        kv->groups = mem_try_zero(kv->layout.group_count, sizeof *kv->groups);
        rc = kv->groups ? kv_groups_open(kv, err) : err_nomem(err, "groups", kv->layout.group_count * sizeof *kv->groups);
    }
    if (rc == 0) {
        rc = views_make(kv, cfg->layers, err);
    }
    if (rc == 0) {
        rc = prefix_open(kv, cfg->prefix_off, cfg->mark_every, err);
    }
    if (rc != 0) {
        kv_close(kv);
        return rc;
    }
    *out = kv;
    return 0;
}

void kv_close(struct kv *kv)
{
    if (kv == NULL) {
        return;
    }
    uint64_t event = 0; /* a step that was given up may have left copies in the queue */
    if (kv->groups != NULL && kv->backend->event_record(kv->device, &event) == 0) {
        kv->backend->event_wait(kv->device, event, NULL);
    }
    while (kv->seqs != NULL) {
        kv_seq_free(kv, kv->seqs);
    }
    prefix_close(kv);
    kv_groups_close(kv);
    kv_slabs_close(kv);
    mem_free(kv->views);
    mem_free(kv->states);
    mem_free(kv->parts);
    kv_layout_free(&kv->layout);
    mem_free(kv);
}

void kv_stats(const struct kv *kv, struct kv_stats *out)
{
    *out = (struct kv_stats){.total_bytes = (uint64_t)kv->slab_count * KV_SLAB, .free_bytes = (uint64_t)kv->slabs_free * KV_SLAB,
                             .group_count = kv->layout.group_count};
    for (uint32_t g = 0; g < kv->layout.group_count; g++) {
        const struct kv_group_layout *lay = &kv->layout.groups[g];
        uint64_t page = kv_layout_page_bytes(&kv->layout, g);
        const struct kv_group *group = &kv->groups[g];
        uint64_t live = group->capacity - 1 - group->free_count - group->cached;
        out->pages_free += group->free_count;
        out->pages_cached += group->cached;
        out->pages_live += live;
        out->cached_bytes += group->cached * page;
        out->live_bytes += live * page;
        if (lay->stage == KV_EARLY) {
            continue; /* gone once it counts */
        }
        if (lay->policy == KV_FULL) {
            out->bytes_per_position += (page + KV_PAGE - 1) / KV_PAGE;
        } else {
            out->window_bytes += page * kv_layout_pages(lay, kv->context_max, kv->rewind_slack, kv->rows_max);
        }
    }
    out->open_bytes = out->total_bytes - out->free_bytes - out->cached_bytes - out->live_bytes;
}

static uint32_t layer_at(const struct kv *kv, uint32_t layer, bool early)
{
    return early && kv->layout.start != 0 ? kv->layout.layer_count + layer : layer;
}

uint32_t kv_layer_group(const struct kv *kv, uint32_t layer, bool early)
{
    return kv->layout.layers[layer_at(kv, layer, early)].group;
}

uint32_t kv_group_count(const struct kv *kv)
{
    return kv->layout.group_count;
}

const struct kv_layer *kv_layer_view(const struct kv *kv, uint32_t layer, bool early)
{
    return &kv->views[layer_at(kv, layer, early)];
}

const struct state_layer *kv_state_view(const struct kv *kv, uint32_t layer)
{
    return &kv->states[layer];
}
