/* plan/plan.h - what memory a model and its state take, per space, planned and live; and what the machine has.
 *
 * Owns:       nothing: tables are plain values.
 * Invariants: 1. Every component that lives as long as the model has a row; the sum of `planned` is what admission may rely on.
 *             2. Budgets are chosen here once, before weights are loaded, never while requests run.
 * Does not:   allocate, schedule, or read models' files (only their sizes).
 * Threads:    pure functions; the machine's figures are read from /proc and the cgroup files at each call. */
#ifndef RH_PLAN_PLAN_H
#define RH_PLAN_PLAN_H

#include "kv/kv.h"
#include "models/model.h"

enum { PLAN_ROWS_MAX = 16 };

struct plan_row {
    const char *space;     /* "host", or a device's name */
    const char *component; /* "weights", "state", ... */
    uint64_t planned_bytes, live_bytes;
};
struct plan {
    struct plan_row rows[PLAN_ROWS_MAX];
    uint32_t count;
};

void plan_add(struct plan *p, const char *space, const char *component, uint64_t planned_bytes, uint64_t live_bytes);
uint64_t plan_total(const struct plan *p, const char *space); /* planned bytes; space NULL = all */

/* What the machine gives this process. */
struct plan_machine {
    uint64_t total_bytes;     /* physical, or the cgroup's limit when that is lower */
    uint64_t available_bytes; /* MemAvailable, or what the cgroup leaves */
    uint64_t rss_anon_bytes;  /* of this process, now */
};
void plan_machine_read(struct plan_machine *out);

/* The memory that weights, step buffers and state are planned in: the host's, or a device's own. */
struct plan_space {
    const char *name;          /* "host", "cuda" */
    bool own;                  /* a device's */
    uint64_t total_bytes, available_bytes;
};
/* Of a device: what it has free, and no more than `limit_bytes` (0: none) with what it holds already. */
void plan_space_read(const struct device_info *d, uint64_t limit_bytes, struct plan_space *out);
/* Refuses what a device's own memory cannot hold, with both numbers, before a byte goes up; state_bytes: the least a sequence needs, or what was
 * asked for. */
int plan_admit_device(const char *what, const struct plan_space *space, const struct model_info *model, uint64_t state_bytes, struct err *err);

/* What of a model's weights stays in the host's memory: all of the last `layers`, and the experts of the last `experts`. */
struct plan_away {
    uint32_t layers, experts;
};
/* The least that must stay away for `fits` to give 0: experts first, of which a row reads few.  Its last ERR_NOMEM when nothing does, or another
 * error of it.  Fewer on the device never take more there. */
int plan_fit_away(uint32_t layers, bool experts, int (*fits)(void *ctx, struct plan_away away, struct err *err), void *ctx, struct plan_away *out,
                  struct err *err);
/* Refuses weights that stay away and that the host's memory cannot hold. */
int plan_admit_away(const char *what, uint64_t away_bytes, struct err *err);

/* Bytes of a model's weight files as they lie on disk: a .gguf file, all files of its split set, or the safetensors of a directory. */
uint64_t plan_file_bytes(const char *path);
/* Refuses what cannot fit, with both numbers, before a byte of it is read. */
int plan_admit_weights(const char *path, struct err *err);

/* Budget of sequence state.  asked > 0: that.  Else what one sequence of the whole context takes, but at most nine tenths of
 * `free_bytes` (what is left after weights and step buffers), and at least one slab per group. */
uint64_t plan_state_budget(const struct kv_config *kv, uint64_t asked, uint64_t free_bytes);

/* Most positions one sequence can reach alone under `budget_bytes`, at most `context`. */
uint32_t plan_positions_alone(const struct kv_config *kv, uint64_t budget_bytes, uint32_t context);

/* The table of one model: weights, step buffers, state, text tables; the same of a draft model. */
struct plan_input {
    const struct model_info *model;
    uint64_t state_planned, state_live;
    uint64_t text_bytes;    /* tokenizer and template */
    const struct model_info *draft; /* NULL: none */
    uint64_t draft_state_planned, draft_state_live;
    bool loaded;            /* live = planned for what loading takes */
    const char *space;      /* of all but the text tables; NULL: "host" */
};
void plan_make(const struct plan_input *in, struct plan *out);

#endif
