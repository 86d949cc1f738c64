/* kv/prefix_int.h - inside the prefix tree only: nodes, marks, lists.
 *
 * prefix.c        finding and leasing
 * prefix_node.c   nodes: made as sequences commit, marks and spare window pages on them, freed
 * prefix_order.c  the order of a node's children; the pools of nodes and marks
 * prefix_evict.c  the order in which things go; sessions
 * prefix_check.c  walks the tree for kv_check
 *
 *     root --- [32 ids] --- [32 ids] --- [7 ids]      one page of every full group a node; of window groups where they are kept
 *       one a key    \                   mark: 69      of recurrent groups a block a mark
 *                     `---- [32 ids]
 *
 * A sequence on the tree names the deepest node all of whose ids it covers (`attached` counts them); such a node and those above it
 * stay.  A node without children and attached sequences is a leaf, in the list of leaves, least recently used first. */
#ifndef RH_KV_PREFIX_INT_H
#define RH_KV_PREFIX_INT_H

#include "kv/kv_int.h"
#include "kv/prefix.h"

#include <string.h>

enum { PREFIX_SESSIONS = 256, PREFIX_GHOSTS = 4096, PREFIX_TIES = 16 };

struct prefix_link { /* of a ring whose head is one too; alone: both NULL */
    struct prefix_link *prev, *next;
};

struct prefix_mark { /* a position whose window pages are pinned, with the recurrent state to go on from there */
    struct prefix_link link;
    struct prefix_node *node;    /* holds position - 1 */
    struct prefix_mark *sibling; /* of the same node */
    uint32_t position;
    bool optional;
    uint64_t used;
    uint32_t blocks[];           /* one a group; of recurrent groups the page of the position's block, else 0 */
};

struct prefix_page {
    uint32_t page; /* 0 = not kept */
    uint32_t pins; /* marks that need it */
};

struct prefix_node {
    struct prefix_node *parent;    /* NULL: a root */
    struct prefix_node *top;       /* of the treap of its children, which ascend by their ids; none is a prefix of another */
    struct prefix_node *left, *right, *above; /* in the treap it is in */
    uint64_t weight;
    uint32_t child_count;
    struct prefix_link leaf, spare;
    struct prefix_mark *marks;
    uint64_t used;                 /* clock of the last use */
    uint64_t hash;                 /* of the key and all ids up to its end */
    uint32_t index;                /* of its page; roots: KV_NONE, so that a child's is one more */
    uint32_t count;                /* ids, 1..KV_PAGE; roots: 0 */
    uint32_t attached, sessions;
    uint32_t ids[KV_PAGE];
    bool early;                    /* its attention pages are those of before kv_start */
    char *key;                     /* roots */
    uint32_t key_n;
    struct prefix_page pages[];    /* one a group */
};

struct prefix_session {
    struct hash128 name;
    struct prefix_node *node; /* NULL: free */
    uint64_t used;
};

struct prefix_block;
struct prefix_pool { /* items of one size; owns its blocks */
    size_t item_bytes;
    void *free;               /* given back, linked through their first word */
    struct prefix_block *blocks, *open; /* open: with items never used */
    uint32_t ready, promised; /* items that can be taken without memory; those that sequences may count on */
};

struct prefix {
    bool off;                 /* nothing is kept: leases share with running sequences only */
    bool windows, recurrent;  /* some group is so */
    uint32_t mark_every;
    struct prefix_node **roots;
    uint32_t root_count, root_cap, node_count, node_max, mark_count, session_count;
    struct prefix_link leaves, soft, marks, extras, spares; /* heads; least recently used first; extras: optional marks */
    struct prefix_pool node_pool, mark_pool;
    uint64_t clock, inserted;
    struct prefix_session sessions[PREFIX_SESSIONS];
    uint64_t ghosts[PREFIX_GHOSTS]; /* hashes of evicted nodes, by hash */
    uint32_t *runs;           /* [group_count], while finding */
    uint64_t spares_evicted, marks_evicted, leaves_evicted;
};

/* Lowest page a row at `position` reads in that group. */
static inline uint32_t prefix_floor(const struct kv *kv, uint32_t group, uint32_t position)
{
    uint32_t window = kv->layout.groups[group].window;
    return window != 0 && position >= window ? (position - window + 1) / KV_PAGE : 0;
}

static inline bool prefix_policy(const struct kv *kv, uint32_t group, enum kv_policy policy)
{
    return kv->layout.groups[group].policy == policy;
}

/* Does a node of that kind hold pages of the group, and are they kept by that policy? */
static inline bool prefix_has(const struct kv *kv, const struct prefix_node *n, uint32_t group, enum kv_policy policy)
{
    const struct kv_group_layout *g = &kv->layout.groups[group];
    return g->policy == policy && kv_stage_is(g->stage, n->early);
}

/* Ids of the run's beginning that two runs have in common. */
static inline uint32_t prefix_common(const uint32_t *a, uint32_t n, const uint32_t *b, uint32_t m)
{
    uint32_t i = 0, most = n < m ? n : m;
    while (i < most && a[i] == b[i]) {
        i++;
    }
    return i;
}

/* ---- prefix_order.c ---- */

struct prefix_node *prefix_lower(const struct prefix_node *parent, const uint32_t *ids, uint32_t count); /* first child not before them */
struct prefix_node *prefix_child_first(const struct prefix_node *parent); /* NULL: none */
struct prefix_node *prefix_child_last(const struct prefix_node *parent);
struct prefix_node *prefix_child_next(const struct prefix_node *n);
struct prefix_node *prefix_child_before(const struct prefix_node *n);
void prefix_child_insert(struct kv *kv, struct prefix_node *parent, struct prefix_node *n);
void prefix_child_remove(struct prefix_node *parent, struct prefix_node *n);

/* `count` items more are there for whoever holds the promise. */
int prefix_pool_promise(struct prefix_pool *p, uint32_t count, uint32_t *promise);
void prefix_pool_forgive(struct prefix_pool *p, uint32_t *promise); /* the rest of a promise is not wanted */
void *prefix_pool_take(struct prefix_pool *p, uint32_t *promise);   /* zeroed; promise NULL or used up: may ask for memory; NULL */
void prefix_pool_give(struct prefix_pool *p, void *item);
void prefix_pool_close(struct prefix_pool *p);

/* ---- prefix_node.c ---- */

uint64_t prefix_hash(const struct prefix_node *parent, const uint32_t *ids, uint32_t n);
struct prefix_node *prefix_root(struct kv *kv, struct str key, bool early, bool make); /* NULL: not there, or no memory */
struct prefix_node *prefix_ancestor(struct prefix_node *n, uint32_t index);
void prefix_root_drop(struct kv *kv, struct prefix_node *root); /* when nothing is under it */
void prefix_node_free(struct kv *kv, struct prefix_node *n);     /* a leaf */
bool prefix_mark_make(struct kv *kv, struct prefix_node *n, uint32_t position, bool optional, struct kv_seq *s);
void prefix_mark_drop(struct kv *kv, struct prefix_mark *m);
void prefix_spare_drop(struct kv *kv, struct prefix_node *n); /* its window pages no mark needs */

void prefix_attach(struct kv *kv, struct kv_seq *s, struct prefix_node *n); /* from where it was */

/* ---- prefix_evict.c ---- */

void prefix_touch(struct kv *kv, struct prefix_node *n);  /* used now, and all above it */
void prefix_settle(struct kv *kv, struct prefix_node *n); /* into or out of the lists it belongs to */
void prefix_mark_settle(struct kv *kv, struct prefix_mark *m);
void prefix_link_out(struct prefix_link *l);
void prefix_sessions_move(struct kv *kv, struct prefix_node *from, struct prefix_node *to); /* to: NULL, or its parent */
bool prefix_leaf_evict(struct kv *kv); /* the leaf unused longest; false: there is none */
void prefix_session_set(struct kv *kv, const struct hash128 *name, struct prefix_node *n);

/* ---- for sequence.c ---- */

enum prefix_want { PREFIX_NOT, PREFIX_MAY, PREFIX_MUST };
/* Is the recurrent state of a block [from, from + count) to be kept on the way of rows up to `end`?  MAY: as there is room. */
enum prefix_want prefix_block_wanted(const struct kv *kv, const struct kv_seq *s, uint32_t from, uint32_t count, uint32_t end);

/* Nodes and marks for all positions up to `reach` that it may come to; with a start also the root it will go on under. */
int prefix_promise(struct kv *kv, struct kv_seq *s, uint32_t reach);
int prefix_open(struct kv *kv, bool off, uint32_t mark_every, struct err *err);
void prefix_close(struct kv *kv);
void prefix_note(struct kv *kv, struct kv_seq *s);   /* rows were committed; before window pages are released */
void prefix_cut(struct kv *kv, struct kv_seq *s);    /* it was rewound */
void prefix_leave(struct kv *kv, struct kv_seq *s);  /* it goes */
void prefix_early_end(struct kv *kv, struct kv_seq *s); /* its early pages are about to go: what it covers stays known */
void prefix_late_begin(struct kv *kv, struct kv_seq *s); /* its late pages are there: it goes on under the other root */
/* A window page the sequence no longer needs: the tree may take a reference of its own. */
void prefix_trail(struct kv *kv, struct kv_seq *s, uint32_t group, uint32_t index);
/* kv_check: counts the tree's names of pages into named, and its kept pages. */
int prefix_check(const struct kv *kv, uint32_t group, uint32_t *named, struct err *err);
int prefix_check_tree(const struct kv *kv, struct err *err);

#endif
