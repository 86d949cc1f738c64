/* kv/prefix_evict.c - the order in which the prefix tree gives things up, and the sessions whose last entries go last.
 *
 *     optional marks -> spare window pages -> (mark or leaf, whichever was unused longest) -> the same of session ends
 *
 * Every list is a ring with the least recently used first.  A node goes in at its `used`, walking from the nearer end: what was used
 * just now goes last, a node that became a leaf because its last child went is about as old as the child. */
#include "kv/prefix_int.h"

#include "base/mem.h"

/* ---- lists ---- */

void prefix_link_out(struct prefix_link *l)
{
    if (l->next == NULL) {
        return;
    }
    l->prev->next = l->next;
    l->next->prev = l->prev;
    l->prev = l->next = NULL;
}

static void link_before(struct prefix_link *at, struct prefix_link *l)
{
    l->prev = at->prev;
    l->next = at;
    at->prev->next = l;
    at->prev = l;
}

static struct prefix_node *leaf_of(struct prefix_link *l)
{
    return (struct prefix_node *)(void *)((char *)l - offsetof(struct prefix_node, leaf));
}

static struct prefix_node *spare_of(struct prefix_link *l)
{
    return (struct prefix_node *)(void *)((char *)l - offsetof(struct prefix_node, spare));
}

static struct prefix_mark *mark_of(struct prefix_link *l)
{
    return (struct prefix_mark *)(void *)((char *)l - offsetof(struct prefix_mark, link));
}

static uint64_t leaf_used(struct prefix_link *l)
{
    return leaf_of(l)->used;
}

static uint64_t spare_used(struct prefix_link *l)
{
    return spare_of(l)->used;
}

static uint64_t mark_used(struct prefix_link *l)
{
    return mark_of(l)->used;
}

/* By `used`, from whichever end is nearer in time. */
static void link_in(struct prefix_link *head, struct prefix_link *l, uint64_t (*used)(struct prefix_link *))
{
    uint64_t mine = used(l);
    prefix_link_out(l);
    bool late = head->next == head || mine >= used(head->prev);
    if (!late && (mine <= used(head->next) || mine - used(head->next) < used(head->prev) - mine)) {
        struct prefix_link *at = head->next;
        while (at != head && used(at) <= mine) {
            at = at->next;
        }
        link_before(at, l);
        return;
    }
    struct prefix_link *at = head->prev;
    while (at != head && used(at) > mine) {
        at = at->prev;
    }
    link_before(at->next, l);
}

static bool has_spare(const struct kv *kv, const struct prefix_node *n)
{
    for (uint32_t g = 0; g < kv->layout.group_count; g++) {
        if (prefix_policy(kv, g, KV_WINDOW) && n->pages[g].page != 0 && n->pages[g].pins == 0) {
            return true;
        }
    }
    return false;
}

void prefix_settle(struct kv *kv, struct prefix_node *n)
{
    struct prefix *px = kv->prefix;
    if (n->parent == NULL) {
        return;
    }
    if (n->child_count != 0 || n->attached != 0) {
        prefix_link_out(&n->leaf);
    } else if (n->leaf.next == NULL) {
        link_in(n->sessions != 0 ? &px->soft : &px->leaves, &n->leaf, leaf_used);
    }
    if (!px->windows || !has_spare(kv, n)) {
        prefix_link_out(&n->spare);
    } else if (n->spare.next == NULL) {
        link_in(&px->spares, &n->spare, spare_used);
    }
}

void prefix_mark_settle(struct kv *kv, struct prefix_mark *m)
{
    link_in(m->optional ? &kv->prefix->extras : &kv->prefix->marks, &m->link, mark_used);
}

/* Those above are used as late as those below, so a parent never goes before its children would. */
void prefix_touch(struct kv *kv, struct prefix_node *n)
{
    uint64_t now = ++kv->prefix->clock;
    for (; n->parent != NULL; n = n->parent) {
        n->used = now;
        prefix_link_out(&n->leaf);
        prefix_link_out(&n->spare);
        prefix_settle(kv, n);
    }
}

/* ---- sessions ---- */

static void session_point(struct kv *kv, struct prefix_session *s, struct prefix_node *n)
{
    struct prefix_node *old = s->node;
    if (n != NULL) {
        n->sessions++;
        prefix_link_out(&n->leaf);
        prefix_settle(kv, n);
    }
    s->node = n;
    kv->prefix->session_count += (n != NULL) - (old != NULL);
    if (old != NULL) {
        old->sessions--;
        prefix_link_out(&old->leaf);
        prefix_settle(kv, old);
    }
}

void prefix_sessions_move(struct kv *kv, struct prefix_node *from, struct prefix_node *to)
{
    for (uint32_t i = 0; from->sessions != 0 && i < PREFIX_SESSIONS; i++) {
        struct prefix_session *s = &kv->prefix->sessions[i];
        if (s->node == from) {
            session_point(kv, s, to != NULL && to->parent != NULL ? to : NULL);
        }
    }
}

void prefix_session_set(struct kv *kv, const struct hash128 *name, struct prefix_node *n)
{
    struct prefix *px = kv->prefix;
    struct prefix_session *best = &px->sessions[0];
    for (uint32_t i = 0; i < PREFIX_SESSIONS; i++) {
        struct prefix_session *s = &px->sessions[i];
        if (s->node != NULL && s->name.lo == name->lo && s->name.hi == name->hi) {
            best = s;
            break;
        }
        uint64_t age = s->node != NULL ? s->used : 0, best_age = best->node != NULL ? best->used : 0;
        best = age < best_age ? s : best;
    }
    best->name = *name;
    best->used = ++px->clock;
    session_point(kv, best, n);
}

/* ---- eviction ---- */

static void leaf_evict(struct kv *kv, struct prefix_node *n)
{
    if (n->count == KV_PAGE) {
        kv->prefix->ghosts[n->hash % PREFIX_GHOSTS] = n->hash;
    }
    kv->prefix->leaves_evicted++;
    prefix_node_free(kv, n);
}

bool prefix_leaf_evict(struct kv *kv)
{
    struct prefix *px = kv->prefix;
    struct prefix_link *head = px->leaves.next != &px->leaves ? &px->leaves : &px->soft;
    if (head->next == head) {
        return false;
    }
    leaf_evict(kv, leaf_of(head->next));
    return true;
}

/* The mark unused longest; soft: of session ends too. */
static struct prefix_mark *mark_oldest(struct prefix *px, bool soft)
{
    for (struct prefix_link *l = px->marks.next; l != &px->marks; l = l->next) {
        if (soft || mark_of(l)->node->sessions == 0) {
            return mark_of(l);
        }
    }
    return NULL;
}

static bool evict_from(struct kv *kv, struct prefix_link *leaves, bool soft)
{
    struct prefix *px = kv->prefix;
    struct prefix_node *leaf = leaves->next != leaves ? leaf_of(leaves->next) : NULL;
    struct prefix_mark *mark = mark_oldest(px, soft);
    if (leaf != NULL && (mark == NULL || mark->node == leaf || leaf->used <= mark->used)) {
        leaf_evict(kv, leaf);
        return true;
    }
    if (mark == NULL) {
        return false;
    }
    px->marks_evicted++;
    prefix_mark_drop(kv, mark);
    return true;
}

bool kv_prefix_evict(struct kv *kv)
{
    struct prefix *px = kv->prefix;
    if (px->extras.next != &px->extras) {
        px->spares_evicted++;
        prefix_mark_drop(kv, mark_of(px->extras.next));
        return true;
    }
    if (px->spares.next != &px->spares) {
        px->spares_evicted++;
        prefix_spare_drop(kv, spare_of(px->spares.next));
        return true;
    }
    return evict_from(kv, &px->leaves, false) || evict_from(kv, &px->soft, true);
}

void kv_prefix_clear(struct kv *kv)
{
    while (kv_prefix_evict(kv)) {
    }
    memset(kv->prefix->ghosts, 0, sizeof kv->prefix->ghosts);
}

void kv_prefix_stats(const struct kv *kv, struct kv_prefix_stats *out)
{
    const struct prefix *px = kv->prefix;
    *out = (struct kv_prefix_stats){.nodes = px->node_count, .marks = px->mark_count, .sessions = px->session_count,
                                    .spares_evicted = px->spares_evicted, .marks_evicted = px->marks_evicted,
                                    .leaves_evicted = px->leaves_evicted};
}
