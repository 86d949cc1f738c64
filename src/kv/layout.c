/* kv/layout.c - from layers to groups, units, chunks and pools; sizes before anything is allocated.
 *
 * Layers with the same policy (and window, or anchor) form a group.  With a kv_start every attention layer is there twice: as it is, and
 * early, in f16; early layers form groups of their own.  A group's page is cut into chunks of n consecutive units each;
 * n is the one that wastes least of the slabs, the largest among equals within 1 %. */
#include "kv/kv_int.h"

#include "base/mem.h"

#include <string.h>

static uint32_t round_up(uint32_t n, uint32_t to)
{
    return (n + to - 1) / to * to;
}

static uint32_t chunk_round(uint64_t bytes)
{
    uint32_t least = KV_SLAB / KV_SLAB_CHUNKS_MAX;
    return bytes < least ? least : round_up((uint32_t)bytes, 64);
}

struct kv_layer kv_layer_shape(const struct kv_layer_spec *spec)
{
    struct kv_layer l = {.k_format = spec->k_format, .v_format = spec->v_format, .n_kv_heads = spec->n_kv_heads, .d_k = spec->d_k,
                         .d_v = spec->d_v, .latent = spec->latent != 0};
    l.head_bytes = kv_layer_head_bytes(&l);
    return l;
}

/* Bytes of an attention layer in one page: one unit. */
static int attention_measure(struct kv_layer_layout *l, const struct kv_layer_spec *spec, uint32_t index, uint64_t *bytes,
                             struct err *err)
{
    uint32_t head = kv_layer_shape(spec).head_bytes;
    if (head == 0) {
        char name[KV_NAME_MAX];
        return err_set(err, ERR_UNSUPPORTED, "layer %u: KV format %s cannot hold head dims %u and %u%s", index,
                       kv_formats_name(spec->k_format, spec->v_format, name), spec->d_k, spec->d_v,
                       spec->latent ? ", the second being part of the first" : "");
    }
    if (spec->n_kv_heads == 0 || (spec->policy == KV_WINDOW && spec->window == 0)) {
        return err_set(err, ERR_ARGUMENT, "layer %u: %u KV heads, window %u", index, spec->n_kv_heads, spec->window);
    }
    *bytes = (uint64_t)head * spec->n_kv_heads;
    l->unit_count = 1;
    return 0;
}

/* Bytes of one head of a recurrent layer in one block; every head is a unit. */
static int recurrent_measure(struct kv_layer_layout *l, const struct kv_layer_spec *spec, uint32_t index, uint64_t *bytes,
                             struct err *err)
{
    const struct state_shape *shape = &spec->state;
    struct state_layout lay;
    if (!state_shape_valid(shape)) {
        return err_set(err, ERR_UNSUPPORTED, "layer %u: no recurrent state of %u heads, %u channels, %u taps, %u values, dims %u and %u",
                       index, shape->heads, shape->channels, shape->taps, shape->values, shape->d_k, shape->d_v);
    }
    state_layout(shape, &lay);
    *bytes = lay.size_bytes;
    l->unit_count = shape->heads;
    return 0;
}

/* What layers of one group have in common. */
static struct kv_group_layout group_of(const struct kv_layer_spec *spec, enum kv_stage stage)
{
    return (struct kv_group_layout){.policy = spec->policy, .stage = spec->policy == KV_RECURRENT ? KV_ALWAYS : stage, .window = spec->policy == KV_WINDOW ? spec->window : 0,
                                    .page = spec->policy == KV_RECURRENT ? spec->state.anchor : KV_PAGE};
}

static bool group_same(const struct kv_group_layout *a, const struct kv_group_layout *b)
{
    return a->policy == b->policy && a->stage == b->stage && a->window == b->window && a->page == b->page;
}

static enum kv_stage stage_of(const struct kv_layout *lay, uint32_t index)
{
    return lay->start == 0 ? KV_ALWAYS : index < lay->layer_count ? KV_LATE : KV_EARLY;
}

/* What a layer stores; past the layers themselves, what they store early. */
static struct kv_layer_spec spec_of(const struct kv_layout *lay, const struct kv_layer_spec *specs, uint32_t index)
{
    struct kv_layer_spec spec = specs[index % lay->layer_count];
    if (index < lay->layer_count) {
        return spec;
    }
    if (spec.policy == KV_RECURRENT) { /* one and the same */
        spec.shares = spec.shares != 0 ? spec.shares : index - lay->layer_count + 1;
        return spec;
    }
    spec.k_format = spec.v_format = KV_F16;
    spec.shares = spec.shares != 0 ? spec.shares + lay->layer_count : 0;
    return spec;
}

static uint32_t group_find(struct kv_layout *lay, const struct kv_layer_spec *spec, enum kv_stage stage)
{
    struct kv_group_layout own = group_of(spec, stage);
    for (uint32_t g = 0; g < lay->group_count; g++) {
        if (group_same(&lay->groups[g], &own)) {
            return g;
        }
    }
    lay->groups[lay->group_count] = own;
    return lay->group_count++;
}

/* Units and group of one layer; without `place` they are only counted. */
static int layer_measure(struct kv_layout *lay, const struct kv_layer_spec *specs, uint32_t index, bool place, struct err *err)
{
    const struct kv_layer_spec made = spec_of(lay, specs, index), *spec = &made;
    struct kv_layer_layout *l = &lay->layers[index];
    uint64_t bytes = 0;
    int rc = spec->policy == KV_RECURRENT ? recurrent_measure(l, spec, index % lay->layer_count, &bytes, err)
                                          : attention_measure(l, spec, index % lay->layer_count, &bytes, err);
    if (rc != 0) {
        return rc;
    }
    if (bytes > KV_SLAB) {
        return err_set(err, ERR_UNSUPPORTED, "layer %u: one page of its state takes %llu bytes, at most %u fit", index % lay->layer_count,
                       (unsigned long long)bytes, (unsigned)KV_SLAB);
    }
    if (!place) {
        lay->unit_count += spec->shares != 0 ? 0 : l->unit_count;
        return 0;
    }
    if (spec->shares != 0) {
        struct kv_layer_spec own = made, other = {0};
        if (spec->shares <= index) {
            other = spec_of(lay, specs, spec->shares - 1);
        }
        own.shares = other.shares;
        if (spec->shares > index || memcmp(&own, &other, sizeof own) != 0) {
            return err_set(err, ERR_ARGUMENT, "layer %u cannot share the state of layer %u: not an earlier one of its kind", index,
                           spec->shares - 1);
        }
        *l = lay->layers[spec->shares - 1];
        l->shares = true;
        return 0;
    }
    l->group = group_find(lay, spec, stage_of(lay, index));
    l->unit_first = lay->unit_count;
    for (uint32_t i = 0; i < l->unit_count; i++) {
        lay->units[lay->unit_count++] = (struct kv_unit){.group = l->group, .bytes = (uint32_t)bytes};
    }
    lay->groups[l->group].unit_count += l->unit_count;
    return 0;
}

/* Slab bytes one page of the group takes when chunks hold n units each; 0 when a chunk would not fit. */
static uint64_t cut_cost(const struct kv_layout *lay, uint32_t group, uint32_t n)
{
    uint64_t cost = 0, bytes = 0;
    uint32_t held = 0, left = lay->groups[group].unit_count;
    for (uint32_t i = 0; i < lay->unit_count; i++) {
        if (lay->units[i].group != group) {
            continue;
        }
        bytes += lay->units[i].bytes;
        held++, left--;
        if (bytes > KV_SLAB) {
            return 0;
        }
        if (held == n || left == 0) {
            cost += KV_SLAB / (KV_SLAB / chunk_round(bytes));
            held = 0, bytes = 0;
        }
    }
    return cost;
}

static uint32_t cut_choose(const struct kv_layout *lay, uint32_t group)
{
    uint64_t least = UINT64_MAX;
    uint32_t best = 1, most = 0; /* more units than fit in a slab cost nothing to try, but there may be thousands */
    for (uint32_t n = 1; n <= lay->groups[group].unit_count; n++) {
        uint64_t cost = cut_cost(lay, group, n);
        if (cost == 0) {
            break; /* n + 1 would not fit either */
        }
        most = n;
        least = cost < least ? cost : least;
    }
    for (uint32_t n = 1; n <= most; n++) {
        best = cut_cost(lay, group, n) <= least + least / 100 ? n : best;
    }
    return best;
}

static uint32_t pool_find(struct kv_layout *lay, uint32_t chunk_bytes)
{
    for (uint32_t p = 0; p < lay->pool_count; p++) {
        if (lay->pools[p].chunk_bytes == chunk_bytes) {
            return p;
        }
    }
    lay->pools[lay->pool_count] = (struct kv_pool){chunk_bytes, KV_SLAB / chunk_bytes, KV_NONE, 0};
    return lay->pool_count++;
}

static void group_cut(struct kv_layout *lay, uint32_t group, uint32_t *chunks_total)
{
    struct kv_group_layout *g = &lay->groups[group];
    uint32_t n = cut_choose(lay, group), held = 0, left = g->unit_count, bytes = 0;
    g->chunk_first = *chunks_total;
    for (uint32_t i = 0; i < lay->unit_count; i++) {
        struct kv_unit *u = &lay->units[i];
        if (u->group != group) {
            continue;
        }
        u->chunk = g->chunk_count;
        u->offset = bytes;
        bytes += u->bytes;
        held++, left--;
        if (held == n || left == 0) {
            lay->chunk_pool[(*chunks_total)++] = pool_find(lay, chunk_round(bytes));
            g->chunk_count++;
            held = 0, bytes = 0;
        }
    }
}

int kv_layout_build(struct kv_layout *lay, const struct kv_layer_spec *layers, uint32_t count, uint32_t start, struct err *err)
{
    uint32_t all = start != 0 ? 2 * count : count;
    *lay = (struct kv_layout){.layer_count = count, .start = start, .kinds = start != 0 ? 2 : 1};
    if (count == 0) {
        return err_set(err, ERR_ARGUMENT, "no layers with state");
    }
    lay->layers = mem_try_zero(all, sizeof *lay->layers);
    lay->groups = mem_try_zero(all, sizeof *lay->groups);
    int rc = lay->layers != NULL && lay->groups != NULL ? 0 : err_nomem(err, "state layout", all * sizeof *lay->layers);
    for (uint32_t i = 0; i < all && rc == 0; i++) {
        rc = layer_measure(lay, layers, i, false, err);
    }
    if (rc != 0) {
        goto out;
    }
    lay->units = mem_try_zero(lay->unit_count, sizeof *lay->units);
    lay->pools = mem_try_zero(lay->unit_count, sizeof *lay->pools);
    lay->chunk_pool = mem_try_zero(lay->unit_count, sizeof *lay->chunk_pool);
    if (lay->units == NULL || lay->pools == NULL || lay->chunk_pool == NULL) {
        rc = err_nomem(err, "state layout", lay->unit_count * sizeof *lay->units);
        goto out;
    }
    lay->unit_count = 0;
    for (uint32_t i = 0; i < all && rc == 0; i++) {
        rc = layer_measure(lay, layers, i, true, err);
    }
    uint32_t chunks_total = 0;
    for (uint32_t g = 0; g < lay->group_count && rc == 0; g++) {
        group_cut(lay, g, &chunks_total);
    }
out:
    if (rc != 0) {
        kv_layout_free(lay);
    }
    return rc;
}

void kv_layout_free(struct kv_layout *lay)
{
    mem_free(lay->layers);
    mem_free(lay->groups);
    mem_free(lay->units);
    mem_free(lay->pools);
    mem_free(lay->chunk_pool);
    *lay = (struct kv_layout){0};
}

uint32_t kv_layout_pages(const struct kv_group_layout *g, uint32_t positions, uint32_t slack, uint32_t rows_max)
{
    uint32_t all = kv_pages_for(g, positions);
    if (g->policy == KV_FULL) {
        return all;
    }
    if (g->policy == KV_RECURRENT) {
        /* the blocks of covered - 1 and covered, of those a step enters the ones that end inside the slack, and one where its state must stay */
        uint64_t most = ((uint64_t)(slack < rows_max ? slack : rows_max) + g->page - 1) / g->page + 4;
        return most < all ? (uint32_t)most : all;
    }
    /* from covered - slack - window + 1 to covered + rows_max - 1, wherever that run starts in its page */
    uint64_t run = (uint64_t)g->window + slack + rows_max - 1;
    uint64_t most = (run + KV_PAGE - 2) / KV_PAGE + 1;
    return most < all ? (uint32_t)most : all;
}

uint64_t kv_layout_page_bytes(const struct kv_layout *lay, uint32_t group)
{
    const struct kv_group_layout *g = &lay->groups[group];
    uint64_t bytes = 0;
    for (uint32_t c = 0; c < g->chunk_count; c++) {
        bytes += KV_SLAB / lay->pools[lay->chunk_pool[g->chunk_first + c]].per_slab;
    }
    return bytes;
}

/* positions of one sequence, by what holds them */
struct held {
    uint32_t early, late;
};

/* What a sequence of that length needs most: a row at `start` needs both kinds of what is before it. */
static uint32_t held_most(const struct kv_layout *lay, uint32_t positions, struct held out[2])
{
    if (lay->start == 0) {
        out[0] = (struct held){0, positions};
        return 1;
    }
    if (positions < lay->start) {
        out[0] = (struct held){positions, 0};
        return 1;
    }
    out[0] = (struct held){lay->start, lay->start};
    out[1] = (struct held){0, positions};
    return 2;
}

static uint32_t held_by(const struct kv_group_layout *g, const struct held *h)
{
    return g->stage == KV_EARLY ? h->early : g->stage == KV_LATE || h->late > h->early ? h->late : h->early;
}

/* Whole slabs when nothing else lives. */
static uint64_t held_slabs(const struct kv_layout *lay, const struct held *h, uint32_t slack, uint32_t rows_max)
{
    uint64_t slabs = 0;
    for (uint32_t p = 0; p < lay->pool_count; p++) {
        uint64_t chunks = 0;
        for (uint32_t g = 0; g < lay->group_count; g++) {
            uint32_t pages = kv_layout_pages(&lay->groups[g], held_by(&lay->groups[g], h), slack, rows_max);
            for (uint32_t c = 0; c < lay->groups[g].chunk_count; c++) {
                chunks += lay->chunk_pool[lay->groups[g].chunk_first + c] == p ? pages : 0;
            }
        }
        slabs += (chunks + lay->pools[p].per_slab - 1) / lay->pools[p].per_slab;
    }
    return slabs;
}

/* Whole slabs of one sequence of that length when nothing else lives. */
static uint64_t layout_bytes_for(const struct kv_layout *lay, uint32_t positions, uint32_t slack, uint32_t rows_max)
{
    struct held held[2];
    uint64_t most = 0;
    for (uint32_t i = held_most(lay, positions, held); i-- > 0;) {
        uint64_t slabs = held_slabs(lay, &held[i], slack, rows_max);
        most = slabs > most ? slabs : most;
    }
    return most * KV_SLAB;
}

uint64_t kv_bytes_for(const struct kv *kv, uint32_t positions)
{
    return layout_bytes_for(&kv->layout, positions, kv->rewind_slack, kv->rows_max);
}

uint64_t kv_share_bytes(const struct kv *kv, uint32_t positions)
{
    struct held held[2];
    uint64_t most = 0;
    for (uint32_t i = held_most(&kv->layout, positions, held); i-- > 0;) {
        uint64_t bytes = 0;
        for (uint32_t g = 0; g < kv->layout.group_count; g++) {
            const struct kv_group_layout *lay = &kv->layout.groups[g];
            bytes += kv_layout_page_bytes(&kv->layout, g) * kv_layout_pages(lay, held_by(lay, &held[i]), kv->rewind_slack, kv->rows_max);
        }
        most = bytes > most ? bytes : most;
    }
    return most;
}

uint32_t kv_plan_groups(const struct kv_layer_spec *layers, uint32_t count, uint32_t start)
{
    uint32_t groups = 0;
    for (uint32_t i = 0; i < count; i++) {
        struct kv_group_layout own = group_of(&layers[i], KV_ALWAYS);
        bool seen = false;
        for (uint32_t j = 0; j < i && !seen; j++) {
            struct kv_group_layout other = group_of(&layers[j], KV_ALWAYS);
            seen = group_same(&own, &other);
        }
        groups += seen ? 0 : start != 0 && own.policy != KV_RECURRENT ? 2 : 1;
    }
    return groups;
}

uint32_t kv_plan_table(const struct kv_layer_spec *layers, uint32_t count, uint32_t positions)
{
    uint32_t most = 0;
    for (uint32_t i = 0; i < count; i++) {
        struct kv_group_layout own = group_of(&layers[i], KV_ALWAYS);
        uint32_t len = kv_pages_for(&own, positions);
        most = len > most ? len : most;
    }
    return most;
}

uint64_t kv_plan_bytes(const struct kv_config *cfg, uint32_t positions)
{
    struct kv_layout lay;
    if (kv_layout_build(&lay, cfg->layers, cfg->layer_count, cfg->start, NULL) != 0) {
        return UINT64_MAX;
    }
    uint64_t bytes = layout_bytes_for(&lay, positions, cfg->rewind_slack, cfg->rows_max ? cfg->rows_max : 512);
    kv_layout_free(&lay);
    return bytes;
}
