/* kv/sequence.c - a sequence: its covered ids and one page table a group.
 *
 *      kv_extend          kv_commit
 *   covered .......... room        covered = what was committed; rows between are a step's, in flight or refused
 *      kv_rewind drops everything past a position; window groups drop pages no row past covered - slack can see; recurrent
 *      groups drop blocks before that of covered - 1.
 *
 * With a kv_start a sequence is early until it covers that many positions: its attention pages are those of early groups.  The kv_extend
 * that reaches the start takes the late pages too, so that kv_commit, which encodes the early ones into them, cannot run out.
 *
 * Invariants: 1. len(table) == kv_pages_for(room), for groups of the sequence's stage; of the others 0, or all pages of the start.
 *             2. covered <= room.
 *             3. Only the page of position `covered` can be both shared and written: kv_extend replaces it by a copy first. */
#include "kv/prefix_int.h"

#include "base/mem.h"

#include <string.h>

int kv_seq_new(struct kv *kv, struct kv_seq **out, struct err *err)
{
    size_t bytes = sizeof(struct kv_seq) + kv->layout.group_count * sizeof(struct kv_table);
    struct kv_seq *s = mem_try_zero(1, bytes);
    *out = s;
    if (s == NULL) {
        return err_nomem(err, "sequence", bytes);
    }
    s->group_count = kv->layout.group_count;
    s->start = kv->layout.start;
    s->early = s->start != 0;
    for (uint32_t g = 0; g < s->group_count; g++) {
        s->tables[g].group = &kv->layout.groups[g];
    }
    s->next = kv->seqs;
    if (s->next != NULL) {
        s->next->prev = s;
    }
    kv->seqs = s;
    return 0;
}

/* Give back pages [len, table->len). */
static void table_cut(struct kv *kv, uint32_t group, struct kv_table *t, uint32_t len)
{
    while (t->len > len) {
        uint32_t page = t->pages[--t->len];
        if (page != 0) {
            kv_page_drop(kv, group, page);
        }
    }
    t->first = t->first < t->len ? t->first : t->len;
}

void kv_seq_free(struct kv *kv, struct kv_seq *s)
{
    if (s == NULL) {
        return;
    }
    prefix_leave(kv, s);
    for (uint32_t g = 0; g < kv->layout.group_count; g++) {
        table_cut(kv, g, &s->tables[g], 0);
        mem_free(s->tables[g].pages);
    }
    if (s->prev != NULL) {
        s->prev->next = s->next;
    } else {
        kv->seqs = s->next;
    }
    if (s->next != NULL) {
        s->next->prev = s->prev;
    }
    mem_free(s->ids);
    mem_free(s);
}

/* Arrays for `positions`, so that nothing after can fail for host memory. */
int kv_seq_reserve(struct kv *kv, struct kv_seq *s, uint32_t positions, struct err *err)
{
    if (positions > s->ids_cap) {
        uint64_t cap = positions + positions / 2u + KV_PAGE;
        cap = cap < kv->context_max ? cap : kv->context_max;
        uint32_t *ids = mem_try_resize(s->ids, cap * sizeof *ids);
        if (ids == NULL) {
            return err_nomem(err, "sequence ids", cap * sizeof *ids);
        }
        s->ids = ids;
        s->ids_cap = (uint32_t)cap;
    }
    for (uint32_t g = 0; g < kv->layout.group_count; g++) {
        struct kv_table *t = &s->tables[g];
        uint32_t pages = kv_pages_for(t->group, positions), cap = kv_pages_for(t->group, s->ids_cap);
        if (pages <= t->cap) {
            continue;
        }
        uint32_t *table = mem_try_resize(t->pages, cap * sizeof *table);
        if (table == NULL) {
            return err_nomem(err, "page table", cap * sizeof *table);
        }
        t->pages = table;
        t->cap = cap;
    }
    return 0;
}

int kv_seq_fork(struct kv *kv, const struct kv_seq *from, uint32_t positions, struct kv_seq **out, struct err *err)
{
    *out = NULL;
    if (positions > from->covered) {
        return err_set(err, ERR_ARGUMENT, "fork at position %u of a sequence with %u", positions, from->covered);
    }
    if (positions != 0 && positions < kv_seq_oldest(from)) {
        return err_set(err, ERR_LIMIT, "fork at position %u: the state of positions from %u on is kept", positions,
                       kv_seq_oldest(from));
    }
    struct kv_seq *s = NULL;
    int rc = kv_seq_new(kv, &s, err);
    if (rc == 0) {
        rc = kv_seq_reserve(kv, s, positions, err);
    }
    if (rc != 0) {
        kv_seq_free(kv, s);
        return rc;
    }
    s->early = positions < kv->layout.start;
    for (uint32_t g = 0; g < kv->layout.group_count; g++) {
        struct kv_table *t = &s->tables[g];
        if (!kv_stage_is(t->group->stage, s->early)) {
            continue;
        }
        t->len = kv_pages_for(t->group, positions);
        t->first = from->tables[g].first < t->len ? from->tables[g].first : t->len;
        for (uint32_t i = 0; i < t->len; i++) {
            t->pages[i] = from->tables[g].pages[i];
            if (t->pages[i] != 0) {
                kv_page_hold(kv, g, t->pages[i]);
            }
        }
    }
    if (positions != 0) {
        memcpy(s->ids, from->ids, positions * sizeof *s->ids);
    }
    s->covered = s->room = positions;
    *out = s;
    return 0;
}

/* First page a step that ends at `end` is given: recurrent groups keep only blocks that hold a position inside the slack, and before them
 * those of positions where the state is to stay usable (prefix_block_wanted), which the step so leaves behind on its way. */
static uint32_t extend_first(const struct kv *kv, const struct kv_table *t, uint32_t end)
{
    uint32_t slack = kv->rewind_slack != 0 ? kv->rewind_slack : 1;
    return t->group->policy == KV_RECURRENT && end > slack ? (end - slack) / t->group->page : 0;
}

/* Blocks that a longer step, since given up, passed by and this one keeps. */
static int extend_fill(struct kv *kv, uint32_t group, struct kv_table *t, uint32_t at, uint32_t end, struct err *err)
{
    uint32_t first = extend_first(kv, t, end);
    for (uint32_t i = first > at ? first : at; i < t->len && i <= end / t->group->page; i++) {
        if (t->pages[i] == 0) {
            uint32_t page = kv_page_take(kv, group);
            if (page == 0) {
                return err_set(err, ERR_KV_FULL, "no page left for position %u", i * t->group->page);
            }
            t->pages[i] = page | KV_FILLED;
        }
    }
    return 0;
}

/* Lowest position a row at or past `from` sees in a window of `window`. */
static uint32_t window_floor(uint32_t from, uint32_t window)
{
    return from >= window ? from - window + 1 : 0;
}

/* Pages to encode the early ones into, those that a row at the start still sees. */
static int late_take(struct kv *kv, struct kv_seq *s, uint32_t group, struct err *err)
{
    struct kv_table *t = &s->tables[group];
    uint32_t start = kv->layout.start, len = kv_pages_for(t->group, start);
    t->first = t->group->policy == KV_WINDOW ? window_floor(start, t->group->window) / KV_PAGE : 0;
    while (t->len < len) {
        uint32_t page = t->len >= t->first ? kv_page_take(kv, group) : 0;
        if (page == 0 && t->len >= t->first) {
            return err_set(err, ERR_KV_FULL, "no page left to encode position %u", t->len * KV_PAGE);
        }
        t->pages[t->len++] = page;
    }
    return 0;
}

/* Take what one group needs.  On failure the caller undoes every group. */
static int extend_group(struct kv *kv, struct kv_seq *s, uint32_t group, uint32_t end, uint32_t room, struct err *err)
{
    struct kv_table *t = &s->tables[group];
    uint32_t at = s->covered / t->group->page;
    if (!kv_stage_is(t->group->stage, s->early)) {
        return s->early && room == kv->layout.start ? late_take(kv, s, group, err) : 0;
    }
    if (at < t->len && kv->groups[group].refs[t->pages[at]] > 1) {
        t->extend_copy = kv_page_take(kv, group);
        if (t->extend_copy == 0) {
            return err_set(err, ERR_KV_FULL, "no page left to copy a shared one");
        }
        int rc = kv_page_copy(kv, group, t->pages[at], t->extend_copy, err);
        if (rc != 0) {
            return rc;
        }
    }
    int rc = t->group->policy == KV_RECURRENT ? extend_fill(kv, group, t, at, end, err) : 0;
    uint32_t len = kv_pages_for(t->group, room), first = extend_first(kv, t, end);
    while (t->len < len && rc == 0) {
        enum prefix_want want = t->len >= first ? PREFIX_MUST : prefix_block_wanted(kv, s, t->len * t->group->page, t->group->page, end);
        uint32_t page = want != PREFIX_NOT ? kv_page_take(kv, group) : 0;
        if (page == 0 && want == PREFIX_MUST) {
            return err_set(err, ERR_KV_FULL, "no page left for position %u", t->len * t->group->page);
        }
        t->pages[t->len++] = page;
    }
    return rc;
}

/* The marks of extend_fill go, and on failure what they mark. */
static void extend_settle(struct kv *kv, uint32_t group, struct kv_table *t, bool failed)
{
    for (uint32_t i = t->first; i < t->extend_len && t->group->policy == KV_RECURRENT; i++) {
        if ((t->pages[i] & KV_FILLED) != 0) {
            t->pages[i] &= ~(uint32_t)KV_FILLED;
            if (failed) {
                kv_page_drop(kv, group, t->pages[i]);
                t->pages[i] = 0;
            }
        }
    }
}

int kv_extend(struct kv *kv, struct kv_seq *s, uint32_t count, struct err *err)
{
    if (count > kv->context_max || s->covered > kv->context_max - count) {
        return err_set(err, ERR_LIMIT, "%u rows after position %u: the context is %u", count, s->covered, kv->context_max);
    }
    uint32_t end = s->covered + count, room = end > s->room ? end : s->room;
    if (s->early && end > kv->layout.start) {
        return err_set(err, ERR_ARGUMENT, "%u rows after position %u: no row past %u before all before it are covered", count, s->covered,
                       kv->layout.start);
    }
    int rc = kv_seq_reserve(kv, s, room, err);
    if (rc != 0 || count == 0) {
        return rc;
    }
    for (uint32_t g = 0; g < kv->layout.group_count; g++) {
        s->tables[g].extend_len = s->tables[g].len;
        s->tables[g].extend_copy = 0;
    }
    for (uint32_t g = 0; g < kv->layout.group_count && rc == 0; g++) {
        rc = extend_group(kv, s, g, end, room, err);
    }
    for (uint32_t g = 0; g < kv->layout.group_count; g++) {
        struct kv_table *t = &s->tables[g];
        uint32_t at = s->covered / t->group->page;
        extend_settle(kv, g, t, rc != 0);
        if (rc != 0) {
            table_cut(kv, g, t, t->extend_len);
        }
        if (t->extend_copy != 0) {
            uint32_t drop = rc == 0 ? t->pages[at] : t->extend_copy;
            t->pages[at] = rc == 0 ? t->extend_copy : t->pages[at];
            kv_page_drop(kv, g, drop);
        }
    }
    s->room = rc == 0 ? room : s->room;
    return rc;
}

void kv_shrink(struct kv *kv, struct kv_seq *s, uint32_t room)
{
    if (room >= s->room) {
        return;
    }
    for (uint32_t g = 0; g < kv->layout.group_count; g++) {
        struct kv_table *t = &s->tables[g];
        if (kv_stage_is(t->group->stage, s->early)) {
            table_cut(kv, g, t, kv_pages_for(t->group, room));
        }
    }
    s->room = room;
}

bool kv_seq_shared(const struct kv *kv, const struct kv_seq *s)
{
    for (uint32_t g = 0; g < kv->layout.group_count; g++) {
        const struct kv_table *t = &s->tables[g];
        uint32_t at = s->covered / t->group->page;
        if (kv_stage_is(t->group->stage, s->early) && at < t->len && kv->groups[g].refs[t->pages[at]] > 1) {
            return true;
        }
    }
    return false;
}

/* Pages before it are no longer needed. */
static uint32_t release_before(const struct kv *kv, const struct kv_seq *s, const struct kv_table *t)
{
    uint32_t from = s->covered > kv->rewind_slack ? s->covered - kv->rewind_slack : 0;
    if (t->group->policy == KV_WINDOW) {
        return window_floor(from, t->group->window) / KV_PAGE;
    }
    if (t->group->policy != KV_RECURRENT || s->covered == 0) {
        return 0;
    }
    uint32_t last = (s->covered - 1) / t->group->page; /* not there when the step passed it by: then the block of `covered` is */
    return t->pages[last] != 0 ? last : s->covered / t->group->page;
}

static void pages_release(struct kv *kv, struct kv_seq *s)
{
    for (uint32_t g = 0; g < kv->layout.group_count; g++) {
        struct kv_table *t = &s->tables[g];
        uint32_t keep = kv_stage_is(t->group->stage, s->early) ? release_before(kv, s, t) : 0;
        for (; t->first < keep && t->first < t->len; t->first++) {
            if (t->pages[t->first] != 0) {
                prefix_trail(kv, s, g, t->first);
                kv_page_drop(kv, g, t->pages[t->first]);
                t->pages[t->first] = 0;
            }
        }
    }
}

/* One layer's early pages into its late ones; the ops are in order behind whatever wrote them. */
static int layer_encode(struct kv *kv, const struct kv_seq *s, uint32_t layer, struct err *err)
{
    uint32_t early = kv->layout.layer_count + layer, start = kv->layout.start;
    const struct kv_table *from = &s->tables[kv->layout.layers[early].group], *to = &s->tables[kv->layout.layers[layer].group];
    int rc = 0;
    for (uint32_t at = to->first; at < to->len && rc == 0;) {
        struct op_kv_convert op = {.from = &kv->views[early], .to = &kv->views[layer]};
        for (; at < to->len && op.page_count < KV_CONVERT_PAGES; at++) {
            op.from_pages[op.page_count] = from->pages[at];
            op.to_pages[op.page_count++] = to->pages[at];
        }
        op.positions_last = at < to->len ? KV_PAGE : start - (to->len - 1) * KV_PAGE;
        rc = op_kv_convert(kv->device, &op, err);
    }
    return rc;
}

/* All before kv_start is covered: what attention layers hold of it is encoded, and the sequence goes on in its late pages. */
static int seq_encode(struct kv *kv, struct kv_seq *s, struct err *err)
{
    int rc = 0;
    for (uint32_t l = 0; l < kv->layout.layer_count && rc == 0; l++) {
        const struct kv_layer_layout *lay = &kv->layout.layers[l];
        rc = kv->layout.groups[lay->group].stage == KV_LATE && !lay->shares ? layer_encode(kv, s, l, err) : 0;
    }
    if (rc != 0) {
        return rc;
    }
    prefix_early_end(kv, s);
    for (uint32_t g = 0; g < kv->layout.group_count; g++) {
        if (kv->layout.groups[g].stage == KV_EARLY) {
            table_cut(kv, g, &s->tables[g], 0);
        }
    }
    s->early = false;
    prefix_late_begin(kv, s);
    return 0;
}

int kv_commit(struct kv *kv, struct kv_seq *s, const uint32_t *ids, uint32_t count, struct err *err)
{
    if (count > s->room - s->covered) {
        return err_set(err, ERR_ARGUMENT, "commit of %u rows at position %u: room was taken for %u", count, s->covered,
                       s->room - s->covered);
    }
    for (uint32_t g = 0; g < kv->layout.group_count && count != 0; g++) {
        const struct kv_table *t = &s->tables[g];
        if (t->group->policy == KV_RECURRENT && t->pages[(s->covered + count) / t->group->page] == 0) {
            return err_set(err, ERR_LIMIT, "commit up to position %u of %u: the state of the last %u rows alone is kept",
                           s->covered + count, s->room, kv->rewind_slack);
        }
    }
    if (count != 0) {
        memcpy(s->ids + s->covered, ids, count * sizeof *ids);
    }
    s->covered += count;
    prefix_note(kv, s);
    pages_release(kv, s);
    return s->early && s->covered == kv->layout.start ? seq_encode(kv, s, err) : 0;
}

uint32_t kv_seq_oldest(const struct kv_seq *s)
{
    uint32_t oldest = s->early ? 0 : s->start;
    for (uint32_t g = 0; g < s->group_count; g++) {
        const struct kv_table *t = &s->tables[g];
        uint64_t least = t->first ? (uint64_t)t->first * t->group->page : 0;
        least += t->first && t->group->policy == KV_WINDOW ? t->group->window - 1 : 0;
        oldest = least > oldest && kv_stage_is(t->group->stage, s->early) ? (uint32_t)least : oldest;
    }
    return oldest;
}

int kv_rewind(struct kv *kv, struct kv_seq *s, uint32_t position, struct err *err)
{
    if (position > s->covered) {
        return err_set(err, ERR_ARGUMENT, "rewind to position %u of a sequence with %u", position, s->covered);
    }
    if (position != 0 && position < kv_seq_oldest(s)) {
        return err_set(err, ERR_LIMIT, "rewind to position %u: the state of positions from %u on is kept", position,
                       kv_seq_oldest(s));
    }
    if (!s->early && position < kv->layout.start) { /* nothing stays */
        prefix_leave(kv, s);
        s->early = true;
    }
    for (uint32_t g = 0; g < kv->layout.group_count; g++) {
        struct kv_table *t = &s->tables[g];
        table_cut(kv, g, t, kv_stage_is(t->group->stage, s->early) ? kv_pages_for(t->group, position) : 0);
    }
    s->covered = s->room = position;
    prefix_cut(kv, s);
    return 0;
}

uint32_t kv_seq_covered(const struct kv_seq *s)
{
    return s->covered;
}

bool kv_seq_early(const struct kv_seq *s)
{
    return s->early;
}

uint32_t kv_rows_before(const struct kv_seq *s, uint32_t position, uint32_t rows)
{
    uint32_t left = s->early && position < s->start ? s->start - position : 0;
    return s->early && rows > left ? left : rows;
}

uint32_t kv_seq_room(const struct kv_seq *s)
{
    return s->room;
}

const uint32_t *kv_seq_ids(const struct kv_seq *s)
{
    return s->ids;
}

uint32_t kv_table_len(const struct kv_seq *s, uint32_t group)
{
    return kv_stage_is(s->tables[group].group->stage, s->early) ? s->tables[group].len : 0;
}

void kv_table_copy(const struct kv_seq *s, uint32_t group, uint32_t *tables)
{
    uint32_t len = kv_table_len(s, group);
    if (len != 0) {
        memcpy(tables, s->tables[group].pages, len * sizeof *tables);
    }
}
