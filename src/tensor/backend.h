/* tensor/backend.h - the wall: what a backend does for models, as one list.
 *
 * A device is an in-order queue.  Every op only enqueues and returns 0 or ERR_X for arguments it refuses; nothing it computes is
 * visible to the host before event_wait.  Every array an op names (tensors, spans, tables, sample rows) must stay valid and
 * unchanged until the event recorded after it was waited for.  Ops of one device run in the order they were enqueued.
 * Laws: each output element is a fixed sequence of operations that depends on its own row and on absolute positions only
 * (docs/arithmetic.md has the orders), whatever else is in the step, whatever the thread count or level.
 * Threads: one thread enqueues (the engine's); setup calls (open, weight_*, buffer_*) come before or between steps. */
#ifndef RH_TENSOR_BACKEND_H
#define RH_TENSOR_BACKEND_H

#include "base/err.h"
#include "tensor/op.h"

/* ---- the backend ---- */

/* The communicator's place: which of the devices that share one model this one is.  size 0 or 1: alone.  Reductions over a group fold in the order
 * of ranks, so that they are one tree too. */
struct device_group {
    uint32_t rank, size;
};

struct device_config {
    uint32_t n_threads;      /* 0 = physical cores */
    const char *level;       /* CPU level cap ("ref", "avx2", ...); NULL = best */
    bool pin;                /* pin workers */
    uint32_t spin_us;        /* how long idle workers spin before they sleep; 0 = 200 */
    uint32_t cpus_left;      /* CPUs that spinning workers leave to others; 0 = none */
    uint32_t index;          /* which device of the backend */
    struct device_group group; /* no backend has a group of more than one yet: device_group_check refuses it by name */
};
struct device_info {
    const char *backend;     /* "cpu" */
    char level[32];          /* "avx2" */
    char text[160];          /* what a person wants to read */
    uint32_t n_threads;
    uint64_t memory_total_bytes, memory_free_bytes; /* of the space it allocates from */
    bool own_memory;         /* that space is the device's own, not the host's */
    uint64_t memory_held_bytes; /* of its own memory: what this device has taken */
    uint32_t arithmetic;     /* arithmetic revision of this backend */
    bool levels_equal;       /* all levels give the same bits: the level is then no part of identities */
};
/* What steps will need at most; the backend sizes its own scratch once. */
struct device_reserve {
    uint32_t rows_max;       /* rows of a step */
    uint32_t cols_max;       /* widest linear input */
    uint32_t heads_max, head_dim_max;
    uint32_t context_max;    /* positions a sequence may reach */
    uint32_t logit_rows_max, vocab_max;
    uint32_t state_dim_max;  /* widest d_k or d_v of a delta net; 0: none */
    uint32_t experts_max, slots_max, expert_cols_max; /* experts a layer has, slots of a row, widest input of one; 0: none */
    uint32_t latent_dim_max; /* widest d_v of latent layers; 0: none */
    uint32_t away_mib_max;   /* of the largest NORM_INPUT_MAX weights of a layer that stay away; 0: none do */
};

/* AWAY: its bytes stay in the host's memory, which the device reads while it computes: the same bits, at the speed of the way there.  Means
 * nothing to a device that has no memory of its own. */
enum weight_use { WEIGHT_LINEAR = 1, WEIGHT_EMBED = 2, WEIGHT_AWAY = 4 };

struct backend {
    const char *name;
    int (*device_open)(const struct device_config *cfg, struct device **out, struct err *err);
    void (*device_close)(struct device *d); /* waits for the queue first */
    void (*device_info)(const struct device *d, struct device_info *out);
    uint64_t (*reserve_plan)(const struct device *d, const struct device_reserve *r); /* bytes reserve would take */
    int (*reserve)(struct device *d, const struct device_reserve *r, struct err *err); /* again = grow */

    int (*buffer_new)(struct device *d, size_t size_bytes, void **out, struct err *err); /* zeroed, 64-byte aligned */
    void (*buffer_free)(struct device *d, void *p, size_t size_bytes);
    int (*buffer_write)(struct device *d, void *dst, const void *src, size_t size_bytes, struct err *err); /* outside steps */
    int (*buffer_read)(struct device *d, void *dst, const void *src, size_t size_bytes, struct err *err);

    /* Bytes a weight will take, of the host's memory when it stays away; ERR_UNSUPPORTED naming type and tensor when it cannot be held. */
    int (*weight_plan)(struct device *d, const struct weight_src *src, unsigned use, uint64_t *size_bytes, struct err *err);
    /* Repack or upload: work that may wait in the queue like an op's.  The source's bytes (not its structs) must stay as they are until
     * an event recorded later was waited for.  Scales that are not finite are ERR_FORMAT, here or from that wait. */
    int (*weight_prepare)(struct device *d, const struct weight_src *src, unsigned use, struct weight **out, struct err *err);
    void (*weight_free)(struct device *d, struct weight *w);

    bool (*kv_format_supported)(const struct device *d, const struct kv_layer *l); /* its formats, dims and latent; no pages yet */

    /* Events count up: record enqueues a mark and gives its number (and hands all enqueued work to the device); wait blocks the
     * host until the queue passed it, and returns the first failure of the ops before it.  Why a record failed says a wait for event 0. */
    int (*event_record)(struct device *d, uint64_t *out);
    int (*event_wait)(struct device *d, uint64_t event, struct err *err);
    bool (*event_done)(struct device *d, uint64_t event);
    uint64_t (*progress)(struct device *d); /* any thread: grows with every op that ended; NULL: not known */
    void (*flush)(struct device *d); /* what was enqueued may begin before the next event is recorded; NULL: it begins when it likes */

    /* Work that may turn out not to be wanted: what is enqueued from hold on does not begin before it is let go, by hold_end(run) or by hold_ask;
     * hold_end(not run) takes it back as if it had never been enqueued, its events included.  Nothing is held when hold is called, and no event
     * recorded since is waited for while it is held.  ERR_LIMIT from an op: the device cannot hold so much.  NULL (all four): it cannot hold at all.
     * hold_ask, when all of it is enqueued: `ask` is called once, on whichever thread ends what was enqueued before, before anybody who waits
     * for that hears of it; true: what is held begins at once, with nobody woken in between.  Too late for that: it is never called.
     * hold_went, after a wait for what was enqueued before: was it let go so?  Then nothing is held any more. */
    void (*hold)(struct device *d);
    void (*hold_ask)(struct device *d, bool (*ask)(void *ctx), void *ctx);
    bool (*hold_went)(struct device *d);
    void (*hold_end)(struct device *d, bool run);

#define BACKEND_FIELD(name) int (*name)(struct device *d, const struct op_##name *op);
    BACKEND_OPS(BACKEND_FIELD, BACKEND_FIELD)
#undef BACKEND_FIELD
};

/* ---- tensor/ops.c: shape checks, then the backend's op or its composition.  Shape mistakes are ERR_INTERNAL (ours). ---- */

/* Every struct device starts with this. */
struct device_head {
    const struct backend *backend;
};
static inline const struct backend *device_backend(const struct device *d)
{
    return ((const struct device_head *)(const void *)d)->backend;
}

/* Every prepared weight starts with this (the trace backend has nothing more). */
struct weight_head {
    enum dtype type;
    uint32_t rows, cols;
    const char *name; /* owned by the weight */
    uint32_t n_experts; /* a stack of that many matrices [rows][cols]; 0: one matrix */
};
static inline const struct weight_head *weight_info(const struct weight *w)
{
    return (const struct weight_head *)(const void *)w;
}

#define OPS_PROTO(name) int op_##name(struct device *d, const struct op_##name *op, struct err *err);
BACKEND_OPS(OPS_PROTO, OPS_PROTO)
#undef OPS_PROTO

/* All required ops there?  Names the first that is missing. */
int backend_check(const struct backend *b, struct err *err);
/* ERR_UNSUPPORTED for more than one device. */
int device_group_check(const struct device_config *cfg, const char *backend, struct err *err);

static inline struct tensor tensor_cols(struct tensor t, uint32_t first, uint32_t cols) /* a view of some columns */
{
    return (struct tensor){(float *)t.data + first, t.rows, cols, t.stride};
}
static inline struct tensor tensor_rows(struct tensor t, uint32_t first, uint32_t rows)
{
    return (struct tensor){(float *)t.data + (size_t)first * t.stride, rows, t.cols, t.stride};
}

#endif
