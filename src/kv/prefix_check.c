/* kv/prefix_check.c - walks the prefix tree for kv_check: names of pages, pins, lists, attached sequences. */
#include "kv/prefix_int.h"

#include "base/mem.h"

/* The node after n in depth-first order without recursion. */
static const struct prefix_node *tree_next(const struct prefix_node *n)
{
    const struct prefix_node *next = prefix_child_first(n);
    for (; next == NULL && n->parent != NULL; n = n->parent) {
        next = prefix_child_next(n);
    }
    return next;
}

/* The tree's names of pages in this node: its own, and the blocks of its marks. */
static uint32_t node_names(const struct kv *kv, const struct prefix_node *n, uint32_t group, uint32_t *kept)
{
    uint32_t page = n->pages[group].page, wrong = page >= kv->groups[group].capacity;
    kept[wrong ? 0 : page]++;
    for (const struct prefix_mark *m = n->marks; m != NULL; m = m->sibling) {
        bool outside = m->blocks[group] >= kv->groups[group].capacity;
        kept[outside ? 0 : m->blocks[group]]++;
        wrong += outside;
    }
    return wrong;
}

int prefix_check(const struct kv *kv, uint32_t group, uint32_t *named, struct err *err)
{
    const struct kv_group *g = &kv->groups[group];
    uint32_t cached = 0, wrong = 0, *kept = mem_try_zero(g->capacity, sizeof *kept);
    if (kept == NULL) {
        return err_nomem(err, "state check", g->capacity * sizeof *kept);
    }
    for (uint32_t r = 0; r < kv->prefix->root_count; r++) {
        for (const struct prefix_node *n = kv->prefix->roots[r]; n != NULL; n = tree_next(n)) {
            wrong += node_names(kv, n, group, kept);
        }
    }
    for (uint32_t id = 1; id < g->capacity; id++) {
        wrong += kept[id] != g->kept[id];
        named[id] += kept[id];
        cached += kept[id] != 0 && g->refs[id] == kept[id];
    }
    mem_free(kept);
    if (wrong != 0 || cached != g->cached) {
        return err_set(err, ERR_INTERNAL, "kv: group %u: %u pages have other names in the prefix tree than are counted; %u cached, "
                       "counted %u", group, wrong, cached, g->cached);
    }
    return 0;
}

static uint32_t ring_count(const struct prefix_link *head)
{
    uint32_t n = 0;
    for (const struct prefix_link *l = head->next; l != head; l = l->next) {
        n++;
    }
    return n;
}

/* Marks of the list at or below this node that pin its page of the group. */
static uint32_t pins_count(const struct kv *kv, const struct prefix_node *n, uint32_t group, const struct prefix_link *list)
{
    uint32_t pins = 0;
    for (const struct prefix_link *l = list->next; l != list; l = l->next) {
        const struct prefix_mark *m = (const struct prefix_mark *)(const void *)l; /* link comes first */
        const struct prefix_node *at = m->node;
        while (at->parent != NULL && at->index > n->index) {
            at = at->parent;
        }
        pins += at == n && at->early == n->early && n->index >= prefix_floor(kv, group, m->position);
    }
    return pins;
}

static int node_check(const struct kv *kv, const struct prefix_node *n, struct err *err)
{
    uint32_t attached = 0;
    for (const struct kv_seq *s = kv->seqs; s != NULL; s = s->next) {
        attached += (s->node == n) + (s->late == n);
    }
    uint32_t children = 0;
    for (const struct prefix_node *c = prefix_child_first(n), *next; c != NULL; c = next, children++) {
        next = prefix_child_next(c);
        if (c->parent != n || (c->above != NULL && c->above->weight < c->weight) || (next != NULL && prefix_lower(n, next->ids, next->count) != next)) {
            return err_set(err, ERR_INTERNAL, "kv: a child of a node of the prefix tree is not where it belongs");
        }
    }
    if (children != n->child_count) {
        return err_set(err, ERR_INTERNAL, "kv: a node of the prefix tree has %u children, counts %u", children, n->child_count);
    }
    bool leaf = n->parent != NULL && n->child_count == 0 && n->attached == 0;
    if (attached != n->attached || leaf != (n->leaf.next != NULL)) {
        return err_set(err, ERR_INTERNAL, "kv: a node of the prefix tree counts %u sequences, has %u; %u children, %s", n->attached,
                       attached, n->child_count, n->leaf.next ? "listed as a leaf" : "not listed as a leaf");
    }
    if (n->parent == NULL) {
        return 0;
    }
    if (n->count == 0 || n->count > KV_PAGE || (n->count < KV_PAGE && n->child_count != 0) || n->index != n->parent->index + 1) {
        return err_set(err, ERR_INTERNAL, "kv: a node of the prefix tree: page %u, %u ids, %u children", n->index, n->count,
                       n->child_count);
    }
    bool spare = false;
    for (uint32_t g = 0; g < kv->layout.group_count; g++) {
        const struct prefix_page *p = &n->pages[g];
        bool window = prefix_has(kv, n, g, KV_WINDOW);
        uint32_t pins = window ? pins_count(kv, n, g, &kv->prefix->marks) + pins_count(kv, n, g, &kv->prefix->extras) : 0;
        if (pins != p->pins || (pins != 0 && p->page == 0) || (p->page == 0 && prefix_has(kv, n, g, KV_FULL)) ||
            (p->page != 0 && !kv_stage_is(kv->layout.groups[g].stage, n->early))) {
            return err_set(err, ERR_INTERNAL, "kv: group %u: page %u of the prefix tree is pinned %u times, counts %u", g, p->page,
                           pins, p->pins);
        }
        spare |= window && p->page != 0 && p->pins == 0;
    }
    if (spare != (n->spare.next != NULL)) {
        return err_set(err, ERR_INTERNAL, "kv: a node of the prefix tree is %slisted for its spare pages", spare ? "not " : "");
    }
    return 0;
}

static uint32_t promised_nodes(const struct kv *kv)
{
    uint32_t n = 0;
    for (const struct kv_seq *s = kv->seqs; s != NULL; s = s->next) {
        n += s->node_promise;
    }
    return n;
}

int prefix_check_tree(const struct kv *kv, struct err *err)
{
    const struct prefix *px = kv->prefix;
    uint32_t nodes = 0, leaves = 0, sessions = 0;
    for (uint32_t r = 0; r < px->root_count; r++) {
        for (const struct prefix_node *n = px->roots[r]; n != NULL; n = tree_next(n)) {
            int rc = node_check(kv, n, err);
            if (rc != 0) {
                return rc;
            }
            nodes += n->parent != NULL;
            leaves += n->leaf.next != NULL;
            sessions += n->sessions;
        }
    }
    if (px->node_pool.promised != promised_nodes(kv)) {
        return err_set(err, ERR_INTERNAL, "kv: %u nodes of the prefix tree are promised, sequences have %u", px->node_pool.promised,
                       promised_nodes(kv));
    }
    if (nodes != px->node_count || leaves != ring_count(&px->leaves) + ring_count(&px->soft) || sessions != px->session_count ||
        ring_count(&px->marks) + ring_count(&px->extras) != px->mark_count) {
        return err_set(err, ERR_INTERNAL, "kv: prefix tree: %u nodes, counted %u; %u leaves; %u session ends, counted %u; %u marks",
                       nodes, px->node_count, leaves, sessions, px->session_count, px->mark_count);
    }
    return 0;
}
