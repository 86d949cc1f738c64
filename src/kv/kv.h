/* kv/kv.h - all sequence state: paged, counted by reference, copied on write, rewound.
 *
 * Owns:       every byte of sequence state on one device.  Callers hold sequences and page ids, never pointers.
 * Thread:     engine thread only.
 * Invariants: 1. refcount(page) == number of page-table entries that name it.
 *             2. A page named more than once is never written: kv_extend copies it first (whole; what lies past the used
 *                positions of a page is never read).
 *             3. free + live == total, after every call (kv_check asserts all of this in debug builds and tests).
 *             4. A sequence's `covered` ids are exactly those whose state is stored.
 * Shape:      layers with the same policy form a group with its own page table per sequence.  Policies now: KV_FULL keeps every
 *             page; KV_WINDOW releases pages that no row at or past `covered - rewind slack` can see.  (Recurrent state is a
 *             later policy.)
 *             Pools take and return slabs of KV_SLAB bytes of the device, so groups never strand each other's memory. */
#ifndef RH_KV_KV_H
#define RH_KV_KV_H

#include "base/err.h"
#include "tensor/backend.h"

enum { KV_SLAB = 2u << 20 };
enum kv_policy { KV_FULL, KV_WINDOW };

/* What one layer stores, declared by its architecture. */
struct kv_layer_spec {
    enum kv_policy policy;
    uint32_t window;        /* KV_WINDOW: positions a row sees */
    uint32_t n_kv_heads, d_k, d_v;
    enum kv_format k_format, v_format;
};

struct kv;
struct kv_seq;

struct kv_config {
    struct device *device;
    const struct kv_layer_spec *layers;
    uint32_t layer_count;
    uint32_t rewind_slack;  /* positions a window group keeps behind its window */
    uint64_t budget_bytes;  /* of slabs */
    uint32_t context_max;   /* positions a sequence may reach */
    uint32_t rows_max; /* rows a step may add to one sequence before its commit; 0 = 512 (only for the sizes of window groups) */
};

int kv_open(const struct kv_config *cfg, struct kv **out, struct err *err);
void kv_close(struct kv *kv);

struct kv_stats {
    uint64_t total_bytes, live_bytes, free_bytes; /* of the budget, in whole slabs */
    uint64_t open_bytes;                          /* room for pages inside live slabs */
    uint64_t bytes_per_position;                  /* all full-attention layers; window layers excluded */
    uint64_t window_bytes;                        /* the most the window layers of one sequence take */
    uint32_t group_count;
};
void kv_stats(const struct kv *kv, struct kv_stats *out);
uint64_t kv_bytes_for(const struct kv *kv, uint32_t positions); /* what one sequence of that length takes, whole pages */
uint64_t kv_share_bytes(const struct kv *kv,
                        uint32_t positions); /* its pages' share of slabs, not rounded to slabs: to set against free + open */
uint64_t kv_plan_bytes(const struct kv_config *cfg, uint32_t positions); /* the same before anything is open */

int kv_seq_new(struct kv *kv, struct kv_seq **out, struct err *err);
void kv_seq_free(struct kv *kv, struct kv_seq *s);
/* A second sequence with the first `positions` of `from` (pages shared by reference). */
int kv_seq_fork(struct kv *kv, const struct kv_seq *from, uint32_t positions, struct kv_seq **out, struct err *err);

/* Room for rows [covered, covered + count): pages taken, shared last page copied.  All or nothing: ERR_KV_FULL changes nothing.
 * Room never shrinks here, so a step in flight keeps its own. */
int kv_extend(struct kv *kv, struct kv_seq *s, uint32_t count, struct err *err);
/* The step that wrote rows up to here was committed: `ids` are now covered. */
int kv_commit(struct kv *kv, struct kv_seq *s, const uint32_t *ids, uint32_t count, struct err *err);
/* Forget every position >= `position` (and room taken past it).  Always possible inside the rewind slack; else for window
 * groups ERR_LIMIT. */
int kv_rewind(struct kv *kv, struct kv_seq *s, uint32_t position, struct err *err);

uint32_t kv_seq_covered(const struct kv_seq *s);
const uint32_t *kv_seq_ids(const struct kv_seq *s); /* the covered ids */
uint32_t kv_seq_oldest(const struct kv_seq *s);     /* lowest position every group can be rewound to */

/* For a step: the group of a layer, its kv_layer, and a sequence's table of that group (page ids for positions 0..; entries of
 * released window pages are 0 and never read).  `tables` must have room for kv_table_len entries. */
uint32_t kv_layer_group(const struct kv *kv, uint32_t layer);
uint32_t kv_group_count(const struct kv *kv);
const struct kv_layer *kv_layer_view(const struct kv *kv, uint32_t layer);
uint32_t kv_table_len(const struct kv_seq *s, uint32_t group);
void kv_table_copy(const struct kv_seq *s, uint32_t group, uint32_t *tables);

/* Walk everything and compare with the counts; 0 or ERR_INTERNAL with what differs. */
int kv_check(const struct kv *kv, struct err *err);

#endif
