/* kv/prefix_node.c - nodes of the prefix tree: made as sequences commit, the marks and spare window pages on them, and freed.
 *
 * Invariants: 1. No run of a node is a prefix of a sibling's: such a one grows into the longer.
 *             2. pins of a window page == marks at or below its node whose floor is at or before it.
 *             3. A kept page holds at least the node's `count` positions. */
#include "kv/prefix_int.h"

#include "base/mem.h"

/* ---- finding ---- */

uint64_t prefix_hash(const struct prefix_node *parent, const uint32_t *ids, uint32_t n)
{
    uint64_t key[2] = {parent->hash, n};
    return hash_sip(key, ids, n * sizeof *ids);
}

struct prefix_node *prefix_ancestor(struct prefix_node *n, uint32_t index)
{
    while (n->index != index) {
        n = n->parent;
    }
    return n;
}

/* ---- making ---- */

static int root_insert(struct prefix *px, uint32_t at, struct prefix_node *root)
{
    if (px->root_count == px->root_cap) {
        uint32_t more = px->root_cap ? 2 * px->root_cap : 4;
        struct prefix_node **grown = mem_try_resize(px->roots, more * sizeof *grown);
        if (grown == NULL) {
            return ERR_NOMEM;
        }
        px->roots = grown;
        px->root_cap = more;
    }
    memmove(px->roots + at + 1, px->roots + at, (px->root_count - at) * sizeof *px->roots);
    px->roots[at] = root;
    px->root_count++;
    return 0;
}

static void root_remove(struct prefix *px, const struct prefix_node *root)
{
    uint32_t at = 0;
    while (px->roots[at] != root) {
        at++;
    }
    px->root_count--;
    memmove(px->roots + at, px->roots + at + 1, (px->root_count - at) * sizeof *px->roots);
}

static struct prefix_node *node_new(struct kv *kv, struct kv_seq *s)
{
    return prefix_pool_take(&kv->prefix->node_pool, s != NULL ? &s->node_promise : NULL);
}

static int key_order(const struct prefix_node *root, struct str key)
{
    size_t n = root->key_n < key.n ? root->key_n : key.n;
    int c = n != 0 ? memcmp(root->key, key.p, n) : 0;
    return c != 0 ? c : (root->key_n > key.n) - (root->key_n < key.n);
}

/* Roots ascend by key; of one key the late one comes first. */
struct prefix_node *prefix_root(struct kv *kv, struct str key, bool early, bool make)
{
    struct prefix *px = kv->prefix;
    uint32_t from = 0, to = px->root_count;
    while (from < to) {
        uint32_t mid = from + (to - from) / 2;
        int c = key_order(px->roots[mid], key);
        c = c != 0 ? c : px->roots[mid]->early - early;
        if (c == 0) {
            return px->roots[mid];
        }
        from = c < 0 ? mid + 1 : from;
        to = c < 0 ? to : mid;
    }
    struct prefix_node *root = make ? node_new(kv, NULL) : NULL;
    if (root == NULL) {
        return NULL;
    }
    root->index = KV_NONE;
    root->early = early;
    root->key_n = (uint32_t)key.n;
    root->key = mem_try_strndup(key.p, key.n);
    root->hash = hash_xxh3(key.p, key.n).lo + early;
    if (root->key == NULL || root_insert(px, from, root) != 0) {
        mem_free(root->key);
        prefix_pool_give(&px->node_pool, root);
        return NULL;
    }
    return root;
}

void prefix_root_drop(struct kv *kv, struct prefix_node *root)
{
    struct prefix *px = kv->prefix;
    if (root->parent != NULL || root->child_count != 0 || root->attached != 0) {
        return;
    }
    prefix_sessions_move(kv, root, NULL);
    root_remove(px, root);
    mem_free(root->key);
    prefix_pool_give(&px->node_pool, root);
}

void prefix_node_free(struct kv *kv, struct prefix_node *n)
{
    struct prefix_node *parent = n->parent;
    while (n->marks != NULL) {
        prefix_mark_drop(kv, n->marks);
    }
    prefix_sessions_move(kv, n, parent);
    prefix_link_out(&n->leaf);
    prefix_link_out(&n->spare);
    for (uint32_t g = 0; g < kv->layout.group_count; g++) {
        if (n->pages[g].page != 0) {
            kv_page_unkeep(kv, g, n->pages[g].page);
        }
    }
    prefix_child_remove(parent, n);
    prefix_pool_give(&kv->prefix->node_pool, n);
    kv->prefix->node_count--;
    if (parent->parent != NULL) {
        prefix_settle(kv, parent);
    } else {
        prefix_root_drop(kv, parent);
    }
}

static uint32_t table_page(const struct kv_seq *s, uint32_t group, uint32_t index)
{
    const struct kv_table *t = &s->tables[group];
    return index >= t->first && index < t->len ? t->pages[index] : 0;
}

/* The sequence names the tree's page instead of its own of the same content. */
static void share_page(struct kv *kv, struct kv_seq *s, uint32_t group, uint32_t index, uint32_t page)
{
    uint32_t own = table_page(s, group, index);
    if (own == 0 || page == 0 || own == page) {
        return;
    }
    kv_page_hold(kv, group, page);
    s->tables[group].pages[index] = page;
    kv_page_drop(kv, group, own);
}

/* Does the sequence have a page that the node may name? */
static bool page_fits(const struct kv_seq *s, const struct prefix_node *n, uint32_t group)
{
    uint32_t page = table_page(s, group, n->index);
    return page != 0 && s->covered >= n->index * KV_PAGE + n->count;
}

static void page_give(struct kv *kv, const struct kv_seq *s, struct prefix_node *n, uint32_t group)
{
    n->pages[group].page = table_page(s, group, n->index);
    kv_page_keep(kv, group, n->pages[group].page);
}

/* Full groups have all their pages in every node. */
static bool full_fits(const struct kv *kv, const struct kv_seq *s, const struct prefix_node *n)
{
    for (uint32_t g = 0; g < kv->layout.group_count; g++) {
        if (prefix_has(kv, n, g, KV_FULL) && !page_fits(s, n, g)) {
            return false;
        }
    }
    return true;
}

/* A partly filled leaf becomes the longer run; its pages give way to the sequence's, which hold more positions. */
static bool node_grow(struct kv *kv, struct prefix_node *n, const struct kv_seq *s, const uint32_t *ids, uint32_t count)
{
    uint32_t old = n->count;
    n->count = count;
    bool fits = full_fits(kv, s, n);
    for (uint32_t g = 0; g < kv->layout.group_count; g++) {
        fits = fits && (n->pages[g].page == 0 || page_fits(s, n, g));
    }
    if (!fits) {
        n->count = old;
        return false;
    }
    for (uint32_t g = 0; g < kv->layout.group_count; g++) {
        if (n->pages[g].page != 0) {
            kv_page_unkeep(kv, g, n->pages[g].page);
            page_give(kv, s, n, g);
        }
    }
    memcpy(n->ids, ids, count * sizeof *ids);
    n->hash = prefix_hash(n->parent, ids, count);
    return true;
}

static struct prefix_node *node_make(struct kv *kv, struct prefix_node *parent, struct kv_seq *s, const uint32_t *ids, uint32_t count)
{
    struct prefix_node *n = node_new(kv, s);
    if (n == NULL) {
        return NULL;
    }
    n->index = parent->index + 1;
    n->early = parent->early;
    n->count = count;
    if (!full_fits(kv, s, n)) {
        prefix_pool_give(&kv->prefix->node_pool, n);
        return NULL;
    }
    n->parent = parent;
    n->used = ++kv->prefix->clock;
    n->hash = prefix_hash(parent, ids, count);
    memcpy(n->ids, ids, count * sizeof *ids);
    prefix_child_insert(kv, parent, n);
    for (uint32_t g = 0; g < kv->layout.group_count; g++) {
        if (prefix_has(kv, n, g, KV_FULL)) {
            page_give(kv, s, n, g);
        }
    }
    kv->prefix->node_count++;
    prefix_settle(kv, parent);
    prefix_settle(kv, n);
    return n;
}

/* The node of the sequence's page `index`, of which it covers `count` ids: found, grown or made.  NULL: not possible now. */
static struct prefix_node *node_enter(struct kv *kv, struct prefix_node *parent, struct kv_seq *s, uint32_t index, uint32_t count)
{
    const uint32_t *ids = s->ids + (size_t)index * KV_PAGE;
    while (kv->prefix->node_count >= kv->prefix->node_max && prefix_leaf_evict(kv)) {
    }
    struct prefix_node *lower = prefix_lower(parent, ids, count), *n = lower;
    if (n != NULL && prefix_common(n->ids, n->count, ids, count) == count) {
        for (uint32_t g = 0; count == KV_PAGE && g < kv->layout.group_count; g++) {
            share_page(kv, s, g, index, n->pages[g].page);
        }
        return n;
    }
    n = lower != NULL ? prefix_child_before(lower) : prefix_child_last(parent);
    if (n != NULL && n->count < count && prefix_common(n->ids, n->count, ids, count) == n->count) {
        if (node_grow(kv, n, s, ids, count)) {
            return n;
        }
        prefix_node_free(kv, n); /* the parent stays: the sequence is attached to it */
    }
    return node_make(kv, parent, s, ids, count);
}

/* ---- marks and spare pages ---- */

static bool window_possible(const struct prefix_node *n, uint32_t group, uint32_t floor, const struct kv_seq *s)
{
    for (; n->parent != NULL && n->index >= floor; n = n->parent) {
        if (n->pages[group].page == 0 && (s == NULL || !page_fits(s, n, group))) {
            return false;
        }
    }
    return true;
}

static void window_pin(struct kv *kv, struct prefix_node *n, uint32_t group, uint32_t floor, const struct kv_seq *s)
{
    for (; n->parent != NULL && n->index >= floor; n = n->parent) {
        if (n->pages[group].page == 0) {
            page_give(kv, s, n, group);
        }
        n->pages[group].pins++;
        prefix_settle(kv, n);
    }
}

static uint32_t block_page(const struct kv *kv, const struct kv_seq *s, uint32_t group, uint32_t position)
{
    return s != NULL ? table_page(s, group, position / kv->layout.groups[group].page) : 0;
}

static bool mark_possible(const struct kv *kv, const struct prefix_node *n, uint32_t position, const struct kv_seq *s)
{
    for (uint32_t g = 0; g < kv->layout.group_count; g++) {
        if (prefix_has(kv, n, g, KV_WINDOW) && !window_possible(n, g, prefix_floor(kv, g, position), s)) {
            return false;
        }
        if (prefix_has(kv, n, g, KV_RECURRENT) && block_page(kv, s, g, position) == 0) {
            return false;
        }
    }
    return true;
}

static bool mark_again(struct kv *kv, struct prefix_node *n, uint32_t position, bool optional)
{
    for (struct prefix_mark *m = n->marks; m != NULL; m = m->sibling) {
        if (m->position == position) {
            m->used = ++kv->prefix->clock;
            m->optional = m->optional && optional;
            prefix_mark_settle(kv, m);
            return true;
        }
    }
    return false;
}

/* Keeps what a row at `position` reads of the groups that forget; pages the tree lacks come from s (or NULL).  False: not possible. */
bool prefix_mark_make(struct kv *kv, struct prefix_node *n, uint32_t position, bool optional, struct kv_seq *s)
{
    bool never = !n->early && position < kv->layout.start; /* nobody goes on there in late pages */
    if ((!kv->prefix->windows && !kv->prefix->recurrent) || never || mark_again(kv, n, position, optional)) {
        return true;
    }
    if (!mark_possible(kv, n, position, s)) {
        return false;
    }
    struct prefix_mark *m = prefix_pool_take(&kv->prefix->mark_pool, s != NULL ? &s->mark_promise : NULL);
    if (m == NULL) {
        return false;
    }
    m->node = n;
    m->position = position;
    m->optional = optional;
    m->sibling = n->marks;
    m->used = ++kv->prefix->clock;
    n->marks = m;
    kv->prefix->mark_count++;
    for (uint32_t g = 0; g < kv->layout.group_count; g++) {
        if (prefix_has(kv, n, g, KV_WINDOW)) {
            window_pin(kv, n, g, prefix_floor(kv, g, position), s);
        } else if (prefix_has(kv, n, g, KV_RECURRENT)) {
            m->blocks[g] = block_page(kv, s, g, position);
            kv_page_keep(kv, g, m->blocks[g]);
        }
    }
    prefix_mark_settle(kv, m);
    return true;
}

void prefix_mark_drop(struct kv *kv, struct prefix_mark *m)
{
    struct prefix_mark **at = &m->node->marks;
    while (*at != m) {
        at = &(*at)->sibling;
    }
    *at = m->sibling;
    prefix_link_out(&m->link);
    kv->prefix->mark_count--;
    for (uint32_t g = 0; g < kv->layout.group_count; g++) {
        uint32_t floor = prefix_floor(kv, g, m->position);
        if (m->blocks[g] != 0) {
            kv_page_unkeep(kv, g, m->blocks[g]);
        }
        for (struct prefix_node *n = m->node; prefix_has(kv, m->node, g, KV_WINDOW) && n->parent != NULL && n->index >= floor;
             n = n->parent) {
            n->pages[g].pins--;
            prefix_settle(kv, n);
        }
    }
    prefix_pool_give(&kv->prefix->mark_pool, m);
}

void prefix_spare_drop(struct kv *kv, struct prefix_node *n)
{
    for (uint32_t g = 0; g < kv->layout.group_count; g++) {
        struct prefix_page *p = &n->pages[g];
        if (prefix_policy(kv, g, KV_WINDOW) && p->page != 0 && p->pins == 0) {
            kv_page_unkeep(kv, g, p->page);
            p->page = 0;
        }
    }
    prefix_settle(kv, n);
}

/* ---- what sequences do ---- */

void prefix_attach(struct kv *kv, struct kv_seq *s, struct prefix_node *n)
{
    struct prefix_node *old = s->node;
    n->attached++;
    s->node = n;
    prefix_settle(kv, n);
    if (old != NULL) {
        old->attached--;
        prefix_settle(kv, old);
    }
}

/* The marks a sequence wants in a node; what windows alone want beside what they must have is spare (prefix_trail). */
static void marks_in(struct kv *kv, struct kv_seq *s, struct prefix_node *n)
{
    uint32_t from = n->index * KV_PAGE, to = from + n->count < s->covered ? from + n->count : s->covered;
    for (uint32_t i = 0; i < 2; i++) {
        if (s->plan.must[i] > from && s->plan.must[i] <= to) {
            prefix_mark_make(kv, n, s->plan.must[i], false, s);
        }
    }
    if (!kv->prefix->recurrent) {
        return;
    }
    for (uint32_t i = 0; i < s->plan.may_count; i++) {
        if (s->plan.may[i] > from && s->plan.may[i] <= to) {
            prefix_mark_make(kv, n, s->plan.may[i], true, s);
        }
    }
    uint32_t every = to / kv->prefix->mark_every * kv->prefix->mark_every;
    if (every > from) {
        prefix_mark_make(kv, n, every, true, s);
    }
}

/* The first position after `from` where the state is to be kept. */
static uint32_t wanted_after(const struct kv *kv, const struct kv_seq *s, uint32_t from)
{
    uint64_t every = (uint64_t)(from / kv->prefix->mark_every + 1) * kv->prefix->mark_every;
    uint32_t next = every < KV_NONE ? (uint32_t)every : KV_NONE;
    for (uint32_t i = 0; i < 2; i++) {
        next = s->plan.must[i] > from && s->plan.must[i] < next ? s->plan.must[i] : next;
    }
    for (uint32_t i = 0; i < s->plan.may_count; i++) {
        next = s->plan.may[i] > from && s->plan.may[i] < next ? s->plan.may[i] : next;
    }
    return next;
}

enum prefix_want prefix_block_wanted(const struct kv *kv, const struct kv_seq *s, uint32_t from, uint32_t count, uint32_t end)
{
    if (!kv->prefix->recurrent || s->node == NULL || kv->prefix->off) {
        return PREFIX_NOT;
    }
    uint32_t last = from + count - 1 < end ? from + count - 1 : end, after = from > s->covered ? from - 1 : s->covered;
    for (uint32_t i = 0; i < 2; i++) {
        if (s->plan.must[i] > after && s->plan.must[i] <= last) {
            return PREFIX_MUST;
        }
    }
    return wanted_after(kv, s, after) <= last ? PREFIX_MAY : PREFIX_NOT;
}

void prefix_note(struct kv *kv, struct kv_seq *s)
{
    while (s->node != NULL && !kv->prefix->off && s->noted < s->covered / KV_PAGE) {
        struct prefix_node *n = node_enter(kv, s->node, s, s->noted, KV_PAGE);
        if (n == NULL) {
            return; /* no memory: again with the next rows */
        }
        prefix_attach(kv, s, n);
        s->noted++;
        marks_in(kv, s, n);
    }
}

void prefix_cut(struct kv *kv, struct kv_seq *s)
{
    uint32_t pages = s->covered / KV_PAGE;
    if (s->node == NULL || s->noted <= pages) {
        return;
    }
    struct prefix_node *n = s->node;
    for (; s->noted > pages; s->noted--) {
        n = n->parent;
        s->node_promise++; /* it may be evicted, so be there for whom it was promised to, and is made again */
        kv->prefix->node_pool.promised++;
    }
    prefix_attach(kv, s, n);
}

static void detach(struct kv *kv, struct prefix_node *n)
{
    n->attached--;
    if (n->parent != NULL) {
        prefix_settle(kv, n);
    } else {
        prefix_root_drop(kv, n);
    }
}

void prefix_leave(struct kv *kv, struct kv_seq *s)
{
    struct prefix_node *n = s->node, *late = s->late;
    prefix_pool_forgive(&kv->prefix->node_pool, &s->node_promise);
    prefix_pool_forgive(&kv->prefix->mark_pool, &s->mark_promise);
    s->node = s->late = NULL;
    if (n != NULL) {
        detach(kv, n);
    }
    if (late != NULL) {
        detach(kv, late);
    }
}

/* Is the page in front of a position that should stay usable? */
static bool page_wanted(const struct kv *kv, const struct kv_seq *s, uint32_t group, uint32_t index)
{
    uint32_t from = index * KV_PAGE + 1, to = index * KV_PAGE + KV_PAGE - 1 + kv->layout.groups[group].window;
    if (to / kv->prefix->mark_every > (from - 1) / kv->prefix->mark_every) {
        return true;
    }
    for (uint32_t i = 0; i < s->plan.may_count; i++) {
        if (s->plan.may[i] >= from && s->plan.may[i] <= to) {
            return true;
        }
    }
    return false;
}

void prefix_trail(struct kv *kv, struct kv_seq *s, uint32_t group, uint32_t index)
{
    if (s->node == NULL || kv->prefix->off || !prefix_policy(kv, group, KV_WINDOW) || index >= s->noted) {
        return;
    }
    struct prefix_node *n = prefix_ancestor(s->node, index);
    if (n->pages[group].page == 0 && page_fits(s, n, group)) {
        page_give(kv, s, n, group);
    }
    prefix_settle(kv, n);
    uint32_t behind = kv->layout.groups[group].window / KV_PAGE + 2;
    if (index < behind) {
        return;
    }
    n = prefix_ancestor(n, index - behind);
    struct prefix_page *p = &n->pages[group];
    if (p->page != 0 && p->pins == 0 && !page_wanted(kv, s, group, n->index)) {
        kv_page_unkeep(kv, group, p->page);
        p->page = 0;
        prefix_settle(kv, n);
    }
}

/* What the sequence has of window pages becomes spare pages of the nodes that lack them. */
static void give_windows(struct kv *kv, const struct kv_seq *s, struct prefix_node *n)
{
    for (; n->parent != NULL; n = n->parent) {
        bool any = false;
        for (uint32_t g = 0; g < kv->layout.group_count; g++) {
            any |= prefix_has(kv, n, g, KV_WINDOW) && n->index >= s->tables[g].first;
            if (prefix_has(kv, n, g, KV_WINDOW) && n->pages[g].page == 0 && page_fits(s, n, g)) {
                page_give(kv, s, n, g);
            }
        }
        prefix_settle(kv, n);
        if (!any) {
            return;
        }
    }
}

/* All that the sequence covers, its last, partly filled page too; NULL: not possible. */
static struct prefix_node *path_enter(struct kv *kv, struct kv_seq *s)
{
    prefix_note(kv, s);
    if (s->noted != s->covered / KV_PAGE) {
        return NULL;
    }
    struct prefix_node *n = s->node;
    if (s->covered % KV_PAGE != 0) {
        n = node_enter(kv, s->node, s, s->noted, s->covered % KV_PAGE);
        if (n == NULL) {
            return NULL;
        }
        marks_in(kv, s, n);
    }
    prefix_mark_make(kv, n, s->covered, false, s);
    give_windows(kv, s, n);
    prefix_touch(kv, n);
    return n;
}

void kv_prefix_keep(struct kv *kv, struct kv_seq *s, const struct hash128 *session)
{
    if (s->node == NULL || kv->prefix->off || s->covered == 0 || kv_rewind(kv, s, s->covered, NULL) != 0) {
        return;
    }
    struct prefix_node *n = path_enter(kv, s);
    if (n != NULL && session != NULL) {
        prefix_session_set(kv, session, n);
    }
}

void prefix_early_end(struct kv *kv, struct kv_seq *s)
{
    if (s->node != NULL && !kv->prefix->off) {
        path_enter(kv, s);
    }
}

static struct prefix_node *root_of(struct prefix_node *n)
{
    while (n->parent != NULL) {
        n = n->parent;
    }
    return n;
}

/* Without memory for that root nothing it computes from here on is shared. */
void prefix_late_begin(struct kv *kv, struct kv_seq *s)
{
    struct prefix_node *old = s->node, *late = s->late;
    if (old == NULL) {
        return;
    }
    if (late == NULL) {
        struct prefix_node *root = root_of(old);
        late = prefix_root(kv, str_n(root->key, root->key_n), false, true);
    }
    s->node = NULL;
    detach(kv, old);
    s->noted = 0;
    if (late != NULL) {
        prefix_attach(kv, s, late);
        prefix_note(kv, s);
    }
    if (s->late != NULL) {
        s->late->attached--; /* the sequence itself is on it, or on a node under it */
        s->late = NULL;
    }
}

int prefix_promise(struct kv *kv, struct kv_seq *s, uint32_t reach)
{
    struct prefix *px = kv->prefix;
    uint32_t start = kv->layout.start, pages = reach / KV_PAGE + 1, marks = 3; /* both that it must have, and its end */
    if (px->off || reach == 0) {
        return 0;
    }
    if (s->early) {
        pages += (start < reach ? start : reach) / KV_PAGE + 1;
        marks *= 2;
    }
    if (px->recurrent) {
        marks += s->plan.may_count + reach / px->mark_every;
    }
    if (s->early && reach > start) {
        const struct prefix_node *root = root_of(s->node);
        s->late = prefix_root(kv, str_n(root->key, root->key_n), false, true);
        if (s->late == NULL) {
            return ERR_NOMEM;
        }
        s->late->attached++;
    }
    if (!px->windows && !px->recurrent) {
        marks = 0;
    }
    int rc = prefix_pool_promise(&px->node_pool, pages - (s->noted < pages ? s->noted : pages), &s->node_promise);
    return rc != 0 ? rc : prefix_pool_promise(&px->mark_pool, marks, &s->mark_promise);
}
