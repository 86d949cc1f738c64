/* kv/prefix.h - known prefixes: a radix tree over page-sized runs of ids that holds pages by reference.
 *
 * Owns:       one reference to each page it holds.  Sequences made by kv_prefix_lease put their pages in as they are committed, so what
 *             a running sequence has computed is known at once; what it leaves stays until room is needed.
 * Thread:     engine thread only.
 * Invariants: 1. A node's ids are the ids whose state its pages hold; a lease gives the same bits as computing them (the first law).
 *             2. A leased position can be continued at once: every group has the pages a row at that position reads.
 *             3. free + open + live + cached == total (kv_check).
 *             4. Pages that sequences name are never taken from them: eviction only gives up the tree's references.
 * Window groups forget, so a position inside a known run can be continued only where their last pages were kept:
 *     pinned   by a mark: the positions a plan must have, a sequence's end, and what was hit once
 *     spare    two windows behind a running sequence, behind a plan's other positions, and every `mark_every`: given up first
 * Recurrent groups go on only from marks: a mark keeps the block of its position, which serves the positions before it in the block
 * too; a plan's other positions and every `mark_every` are optional marks.  Rows that pass such a position leave its block behind
 * (kv_extend took it), so no step is cut there.
 * Eviction, kv_prefix_evict, one step at a time: optional marks, spare pages, then the mark or leaf unused longest, then those of
 * session ends.
 * A leaf's last page may be partly filled; it is shared up to the common length and copied by whoever goes on (kv_extend).
 * Does not:   know models or text; cross keys: a lease finds only what was put under its own key. */
#ifndef RH_KV_PREFIX_H
#define RH_KV_PREFIX_H

#include "base/hash.h"
#include "kv/kv.h"

enum { KV_PREFIX_KEY_MAX = 1024 };

/* Where a sequence's state should stay usable.  Ascending; borrowed until the sequence is freed. */
struct kv_prefix_plan {
    uint32_t must[2];     /* positions; 0 = none */
    const uint32_t *may;  /* as bytes allow */
    uint32_t may_count;
};

struct kv_prefix_query {
    struct str key;       /* what parts may never share: tenant salt, adapters, hashes of media; at most KV_PREFIX_KEY_MAX bytes */
    const uint32_t *ids;
    uint32_t count;       /* of the prompt; at most count - 1 positions are leased */
    uint32_t reach;       /* positions it may come to: memory for all that follows is asked for here; 0: as it comes */
    struct kv_prefix_plan plan;
};

/* Why a lease is shorter than count - 1. */
enum kv_miss {
    KV_MISS_NONE,      /* it is not */
    KV_MISS_OFF,       /* the request wanted none */
    KV_MISS_EMPTY,     /* nothing is stored */
    KV_MISS_KEY,       /* nothing is stored under this key, but under others */
    KV_MISS_DIVERGED,  /* the nearest stored text goes on with another id */
    KV_MISS_END,       /* all of the nearest stored text is used: the prompt goes on where it ends */
    KV_MISS_EVICTED,   /* more was stored once */
    KV_MISS_STATE,     /* more ids are known, but the state of window or recurrent layers is kept only at `positions` */
    KV_MISS_COUNT
};
struct kv_prefix_hit {
    uint32_t positions; /* leased */
    uint32_t matched;   /* ids known */
    enum kv_miss miss;
    int64_t stored_id;  /* DIVERGED: the id stored at `matched`; else -1 */
};

/* A sequence with the longest usable prefix.  Nothing known: an empty one.  It puts what it commits into the tree. */
int kv_prefix_lease(struct kv *kv, const struct kv_prefix_query *q, struct kv_seq **out, struct kv_prefix_hit *hit, struct err *err);
/* A sequence's end: drops its room past what is covered and puts the last, partly filled page in, with a mark there.  session: this
 * is now its last entry, kept softly; NULL. */
void kv_prefix_keep(struct kv *kv, struct kv_seq *s, const struct hash128 *session);
/* Give up one thing; false: nothing is left to give up.  It may free less than a page that others name, so ask again. */
bool kv_prefix_evict(struct kv *kv);
void kv_prefix_clear(struct kv *kv); /* all that no running sequence is on */

struct kv_prefix_stats {
    uint32_t nodes, marks, sessions;
    uint64_t spares_evicted, marks_evicted, leaves_evicted;
};
void kv_prefix_stats(const struct kv *kv, struct kv_prefix_stats *out);

#endif
