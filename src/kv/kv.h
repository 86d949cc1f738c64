/* kv/kv.h - all sequence state: paged, counted by reference, copied on write, rewound.
 *
 * Owns:       every byte of sequence state on one device.  Callers hold sequences and page ids, never pointers.
 * Thread:     engine thread only.
 * Invariants: 1. refcount(page) == number of page-table entries and prefix-tree nodes that name it.
 *             2. A page named more than once is never written: kv_extend copies it first (whole: the positions of one element of K are
 *                adjacent, so fewer of them are the same cache lines; what lies past the used positions of a page is never read).
 *             3. free + open + live + cached == total, after every call (kv_check asserts all of this in debug builds and tests).
 *             4. A sequence's `covered` ids are exactly those whose state is stored.
 * Shape:      layers with the same policy form a group with its own page table per sequence.  KV_FULL keeps every page; KV_WINDOW
 *             releases pages that no row at or past `covered - rewind slack` can see; KV_RECURRENT has blocks of `anchor`
 *             positions for pages (tensor/state.h) and keeps the block of `covered - 1` and those after it: the old block goes
 *             when a commit passes its end, never before.  A layer may read another layer's pages (`shares`); in a latent layer
 *             (compressed K and V) the pages hold K alone, and V is the beginning of each of its vectors.
 *             Pools take and return slabs of KV_SLAB bytes of the device, so groups never strand each other's memory.
 * kv_start:   below `start` attention layers keep f16 in pages of their own, the early ones.  kv_commit encodes them when it covers exactly
 *             `start` positions; no span crosses that position, and no row at or past it comes before.  The early pages go then; what the
 *             prefix tree holds of them stays known under a root of its own. */
#ifndef RH_KV_KV_H
#define RH_KV_KV_H

#include "base/err.h"
#include "tensor/backend.h"
#include "tensor/state.h"

enum { KV_SLAB = 2u << 20 };
enum kv_policy { KV_FULL, KV_WINDOW, KV_RECURRENT };

/* What one layer stores, declared by its architecture. */
struct kv_layer_spec {
    enum kv_policy policy;
    uint32_t window;        /* KV_WINDOW: positions a row sees */
    uint32_t n_kv_heads, d_k, d_v;
    enum kv_format k_format, v_format;
    uint32_t latent;          /* 1: V is the first d_v elements of K and not stored; v_format is k_format */
    struct state_shape state; /* KV_RECURRENT: all of the above unused */
    uint32_t shares;          /* 1 + an earlier layer of the same kind whose pages this one reads; 0: its own */
};

struct kv;
struct kv_seq;

struct kv_config {
    struct device *device;
    const struct kv_layer_spec *layers;
    uint32_t layer_count;
    uint32_t rewind_slack;  /* positions a window group keeps behind its window; rows of a step that may be refused (recurrent) */
    uint64_t budget_bytes;  /* of slabs */
    uint32_t context_max;   /* positions a sequence may reach */
    uint32_t rows_max; /* rows a step may add to one sequence before its commit; 0 = 512 (only for the sizes of window groups) */
    bool prefix_off;        /* keep nothing of finished sequences (prefix.h) */
    uint32_t start;         /* rows before this position read and write f16, whatever the layers' formats; 0: none do */
    uint32_t mark_every;    /* positions between the places where window state stays usable as bytes allow; 0 = 4 windows, at least 1024 */
};

int kv_open(const struct kv_config *cfg, struct kv **out, struct err *err);
void kv_close(struct kv *kv);

struct kv_stats {
    uint64_t total_bytes;                         /* of the budget; free + open + live + cached */
    uint64_t free_bytes;                          /* whole slabs */
    uint64_t live_bytes;                          /* pages that sequences name */
    uint64_t cached_bytes;                        /* pages that only the prefix tree names */
    uint64_t open_bytes;                          /* the rest of slabs in use: room for pages of their size */
    uint64_t pages_free, pages_live, pages_cached; /* pages of all groups; free: of slabs in use */
    uint64_t bytes_per_position;                  /* all full-attention layers; the others excluded */
    uint64_t window_bytes;                        /* the most the window and recurrent layers of one sequence take */
    uint32_t group_count;
};
void kv_stats(const struct kv *kv, struct kv_stats *out);
uint64_t kv_bytes_for(const struct kv *kv, uint32_t positions); /* what one sequence of that length takes, whole pages */
uint64_t kv_share_bytes(const struct kv *kv,
                        uint32_t positions); /* its pages' share of slabs, not rounded to slabs: to set against free + open */
uint64_t kv_plan_bytes(const struct kv_config *cfg, uint32_t positions); /* the same before anything is open */
uint32_t kv_plan_groups(const struct kv_layer_spec *layers, uint32_t count, uint32_t start);
uint32_t kv_plan_table(const struct kv_layer_spec *layers, uint32_t count, uint32_t positions); /* the longest table's entries */

int kv_seq_new(struct kv *kv, struct kv_seq **out, struct err *err);
void kv_seq_free(struct kv *kv, struct kv_seq *s);
/* Arrays for that many positions: until they are passed, kv_extend, kv_commit and kv_rewind ask for no host memory. */
int kv_seq_reserve(struct kv *kv, struct kv_seq *s, uint32_t positions, struct err *err);
/* A second sequence with the first `positions` of `from` (pages shared by reference). */
int kv_seq_fork(struct kv *kv, const struct kv_seq *from, uint32_t positions, struct kv_seq **out, struct err *err);

/* How many of `rows` rows from `position` on may be one span now: none crosses `start`, and none is past it before all before it are covered. */
uint32_t kv_rows_before(const struct kv_seq *s, uint32_t position, uint32_t rows);
/* Room for rows [covered, covered + count): pages taken, shared last page copied.  All or nothing: ERR_KV_FULL changes nothing.
 * Room never shrinks here, so a step in flight keeps its own. */
int kv_extend(struct kv *kv, struct kv_seq *s, uint32_t count, struct err *err);
/* Gives room past `room` positions back that kv_extend took for rows which then were not enqueued: everything is as before it. */
void kv_shrink(struct kv *kv, struct kv_seq *s, uint32_t room);
bool kv_seq_shared(const struct kv *kv, const struct kv_seq *s); /* others name the page of `covered` too: kv_extend would copy it */
/* The step that wrote rows up to here was committed: `ids` are now covered.  Recurrent groups keep no block of a step's rows that end
 * more than the rewind slack before the room taken: a commit that ends in one is ERR_LIMIT and changes nothing.  At `start` the early
 * pages are encoded: enqueued, so an error of the device shows in the next event; the sequence is then of no use. */
int kv_commit(struct kv *kv, struct kv_seq *s, const uint32_t *ids, uint32_t count, struct err *err);
/* Forget every position >= `position` (and room taken past it).  Always possible for rows not committed; before `covered` for window
 * groups inside the rewind slack, for recurrent groups inside the block of `covered - 1`, not before `start` once that was covered; else
 * ERR_LIMIT. */
int kv_rewind(struct kv *kv, struct kv_seq *s, uint32_t position, struct err *err);

uint32_t kv_seq_covered(const struct kv_seq *s);
uint32_t kv_seq_room(const struct kv_seq *s); /* rows kv_extend took room for, covered ones included */
const uint32_t *kv_seq_ids(const struct kv_seq *s); /* the covered ids */
uint32_t kv_seq_oldest(const struct kv_seq *s);     /* lowest position every group can be rewound to */

/* Once a step, after its kv_extend calls and before its ops: what has changed of where pages lie is enqueued.  The step before the last one
 * must have ended: a copy on its way is never touched, whatever the host does meanwhile. */
int kv_publish(struct kv *kv, struct err *err);
void kv_publish_undo(struct kv *kv); /* what the last one enqueued will not run */

/* An attention layer's shape: its view without pages. */
struct kv_layer kv_layer_shape(const struct kv_layer_spec *spec);

/* For a step: the group of a layer, its kv_layer, and a sequence's table of that group (page ids for positions 0..; entries of
 * released window pages are 0 and never read).  `tables` must have room for kv_table_len entries. */
bool kv_seq_early(const struct kv_seq *s); /* its attention layers' rows read and write early pages */
uint32_t kv_layer_group(const struct kv *kv, uint32_t layer, bool early);
uint32_t kv_group_count(const struct kv *kv);
const struct kv_layer *kv_layer_view(const struct kv *kv, uint32_t layer, bool early);
const struct state_layer *kv_state_view(const struct kv *kv, uint32_t layer); /* of a recurrent layer */
uint32_t kv_table_len(const struct kv_seq *s, uint32_t group);
void kv_table_copy(const struct kv_seq *s, uint32_t group, uint32_t *tables);

/* What a page of one head of an attention layer holds, decoded: k [KV_PAGE][d_k], v [KV_PAGE][d_v].  Between steps; for measurements. */
int kv_read_page(struct kv *kv, const struct kv_seq *s, uint32_t layer, uint32_t head, uint32_t page, float *k, float *v,
                 struct err *err);
/* Walk everything and compare with the counts; 0 or ERR_INTERNAL with what differs. */
int kv_check(const struct kv *kv, struct err *err);

#endif
