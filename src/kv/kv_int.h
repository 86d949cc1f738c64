/* kv/kv_int.h - inside the kv room only: how pages are cut into chunks of slabs.
 *
 * layout.c    layers -> groups -> chunks -> pools; sizes before anything is allocated
 * slabs.c     slabs of KV_SLAB bytes, each cut into equal chunks while a pool holds it
 * pages.c     page ids of a group, their counts and the device's pointer tables
 * sequence.c  page tables of sequences: extend, commit, rewind, fork
 * check.c     walks everything and compares
 * prefix*.c   the tree of known prefixes, see prefix_int.h
 *
 * A page of a group has one chunk for each run of its layers.  A pool is a chunk size: chunks of one size come from the same
 * slabs, whatever group they serve.  A slab with no live chunk returns to the free slabs at once. */
#ifndef RH_KV_INT_H
#define RH_KV_INT_H

#include "kv/kv.h"
#include "kv/prefix.h"

enum { KV_NONE = 0xFFFFFFFFu };
enum { KV_PUBLISH_TURNS = 2 }; /* steps in flight at most */
enum { KV_FILLED = 0x80000000u }; /* on a page id, while kv_extend runs */
enum { KV_SLAB_CHUNKS_MAX = 1024 }; /* so no chunk is smaller than 2 KiB */

struct kv_pool {
    uint32_t chunk_bytes, per_slab;
    uint32_t open_head; /* slabs of this pool with a free chunk, linked; KV_NONE = none */
    uint64_t open_count; /* free chunks in them */
};

/* Which sequences have pages of a group: all, those before kv_start, those past it. */
enum kv_stage { KV_ALWAYS, KV_EARLY, KV_LATE };

struct kv_group_layout {
    enum kv_policy policy;
    enum kv_stage stage;
    uint32_t window;
    uint32_t page;        /* positions of a page */
    uint32_t unit_count, chunk_count;
    uint32_t chunk_first; /* into kv_layout.chunk_pool */
};

/* What stays together in a chunk: all of an attention layer in one page, or one head of a recurrent layer in one block. */
struct kv_unit {
    uint32_t group, chunk; /* chunk: which of its group's */
    uint32_t bytes;
    uint32_t offset;       /* in the chunk */
};

struct kv_layer_layout {
    uint32_t group;
    uint32_t unit_first, unit_count; /* those of another layer when it shares */
    bool shares;
};

/* owns its arrays; kv lifetime */
struct kv_layout {
    uint32_t layer_count, group_count, pool_count, unit_count;
    uint32_t start;                  /* kv_start */
    uint32_t kinds;                  /* 1, or 2 with a start: every layer again, as it is early */
    struct kv_layer_layout *layers;  /* [kinds * layer_count] */
    struct kv_group_layout *groups;  /* [group_count], room for kinds * layer_count */
    struct kv_unit *units;           /* [unit_count] */
    struct kv_pool *pools;           /* [pool_count], room for unit_count */
    uint32_t *chunk_pool;            /* [sum of chunk_count] -> pool, room for unit_count */
};

struct kv_slab {
    uint32_t pool; /* KV_NONE = free */
    uint32_t used; /* live chunks */
    uint32_t prev, next; /* open list of its pool, or next free slab */
    uint64_t taken[KV_SLAB_CHUNKS_MAX / 64];
};

struct kv_group {
    const struct kv_group_layout *layout;
    uint32_t capacity;    /* page ids 0..capacity - 1; 0 names no page */
    uint32_t *refs;       /* [capacity] names: of tables, and of the prefix tree */
    uint32_t *kept;       /* [capacity] names of the prefix tree among them */
    uint32_t cached;      /* pages that only the prefix tree names */
    uint32_t *free_ids;   /* stack */
    uint32_t free_count;
    unsigned char ***host;   /* [chunk_count][capacity] pointers into the slabs: the host's copy of... */
    unsigned char ***device; /* [chunk_count] ...the tables the device reads */
    unsigned char ***staging[KV_PUBLISH_TURNS]; /* [chunk_count][capacity] what is on its way there */
    uint32_t dirty_from, dirty_to; /* ids whose pointers the device has not got yet */
    uint32_t sent_from, sent_to;   /* those of the last kv_publish */
};

struct kv_table {
    const struct kv_group_layout *group;
    uint32_t *pages; /* [cap] page ids; 0 = released, or a block never kept (recurrent) */
    uint32_t len, cap;
    uint32_t first;  /* pages before it are released */
    uint32_t extend_len, extend_copy; /* while kv_extend runs: what it took so far */
};

struct kv_seq {
    struct kv_seq *prev, *next;
    uint32_t covered, room; /* rows stored and committed; rows pages were taken for */
    uint32_t start;         /* kv_start */
    bool early;             /* its attention pages are those of before kv_start */
    uint32_t *ids;          /* [ids_cap], covered of them valid */
    uint32_t ids_cap;
    struct prefix_node *node; /* on the prefix tree: deepest node it covers all of; NULL: not on it */
    uint32_t noted;         /* pages of it that are nodes on the tree */
    struct prefix_node *late; /* while early: the root it goes on under from the start on, held; NULL */
    uint32_t node_promise, mark_promise; /* of the tree's pools */
    struct kv_prefix_plan plan;
    uint32_t group_count;
    struct kv_table tables[]; /* one a group */
};

struct kv {
    struct device *device;
    const struct backend *backend;
    struct kv_layout layout;
    uint32_t rewind_slack, context_max, rows_max;
    unsigned char *memory; /* slab_count * KV_SLAB */
    struct kv_slab *slabs;
    uint32_t slab_count, slabs_free, free_head;
    struct kv_group *groups;  /* [layout.group_count] */
    uint32_t publish_turn;    /* which staging the last kv_publish used */
    struct kv_layer *views;   /* [kinds * layer_count] */
    struct state_layer *states; /* [kinds * layer_count]; of recurrent layers */
    struct state_part *parts; /* [unit_count] */
    struct kv_seq *seqs;
    struct prefix *prefix;
};

struct prefix;
struct prefix_node;

int kv_layout_build(struct kv_layout *lay, const struct kv_layer_spec *layers, uint32_t count, uint32_t start, struct err *err);
void kv_layout_free(struct kv_layout *lay);
/* Pages a group holds at most for one sequence of that length, were it alone in its stage. */
uint32_t kv_layout_pages(const struct kv_group_layout *g, uint32_t positions, uint32_t slack, uint32_t rows_max);
/* A page's share of slabs, in bytes. */
uint64_t kv_layout_page_bytes(const struct kv_layout *lay, uint32_t group);

int kv_slabs_open(struct kv *kv, uint64_t budget_bytes, struct err *err);
void kv_slabs_close(struct kv *kv);
unsigned char *kv_chunk_take(struct kv *kv, uint32_t pool); /* NULL: none left */
void kv_chunk_give(struct kv *kv, unsigned char *chunk);

int kv_groups_open(struct kv *kv, struct err *err);
void kv_groups_close(struct kv *kv);
uint32_t kv_page_take(struct kv *kv, uint32_t group); /* with one reference; 0: none left */
void kv_page_hold(struct kv *kv, uint32_t group, uint32_t page);
void kv_page_drop(struct kv *kv, uint32_t group, uint32_t page);
void kv_page_keep(struct kv *kv, uint32_t group, uint32_t page);   /* a name of the prefix tree */
void kv_page_unkeep(struct kv *kv, uint32_t group, uint32_t page);
int kv_page_copy(struct kv *kv, uint32_t group, uint32_t from, uint32_t to, struct err *err);

static inline bool kv_stage_is(enum kv_stage stage, bool early)
{
    return stage == KV_ALWAYS || (stage == KV_EARLY) == early;
}

/* Entries of a table that has room for that many positions: recurrent groups count the block whose anchor is at the end. */
static inline uint32_t kv_pages_for(const struct kv_group_layout *g, uint32_t positions)
{
    if (g->policy == KV_RECURRENT) {
        return positions != 0 ? positions / g->page + 1 : 0;
    }
    return positions / g->page + (positions % g->page != 0);
}

#endif
