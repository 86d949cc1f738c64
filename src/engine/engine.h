/* engine/engine.h - the loop: one thread per model that plans, runs and commits steps of spans.
 *
 * Owns:       the model's sequence state (kv), every sequence, the order in which they run.  The model and its device are borrowed.
 * Invariants: 1. Requests come in by one queue and leave by one bounded ring of events each; nothing else is shared with other threads.
 *             2. Which ids a request gets depends on its ids, sampling and seed only, never on what runs beside it.
 *             3. A full ring holds its own sequences back, never the engine.
 *             4. A failed step fails the sequences in it and no other.
 * Does not:   know text (it asks for the bytes of ids, for stop strings), sockets, files or JSON.
 *
 * A sequence (one choice of a request):
 *
 *                 engine_submit            sched_admit               resolve_rows (last prompt row)
 *      (new) ----------------> WAITING ----------------> PREFILL ---------------------------> DECODE --+
 *                                 ^                         |                                   |   ^  |  resolve_rows
 *                                 |   sched_preempt         |                                   |   +--+
 *                                 +-------------------------+-----------------------------------+
 *                                                           |
 *      from any of the three, seq_finish:   DONE (stop, length) | CANCELLED | FAILED
 *
 *   A pre-empted sequence is WAITING again, ahead of all that came later, and computes its state anew: the same bits. */
#ifndef RH_ENGINE_ENGINE_H
#define RH_ENGINE_ENGINE_H

#include "base/buf.h"
#include "base/err.h"
#include "engine/gate.h"
#include "grammar/constraint.h"
#include "kv/kv.h"
#include "kv/prefix.h"
#include "models/model.h"

enum { ENGINE_STOP_MAX = 16, ENGINE_CHOICES_MAX = 128, ENGINE_TENANT_MAX = 256, ENGINE_DEPTH_MAX = 31 };
enum { ENGINE_PROPOSE_ECHO = 1, ENGINE_PROPOSE_LOOKUP = 2, ENGINE_PROPOSE_DRAFT = 4, ENGINE_PROPOSE_ALL = 7 };
enum { ENGINE_PROMPT_TOP_MAX = 20, ENGINE_STEP_BUCKETS = 12 };

struct engine;
struct engine_request;

struct engine_config {
    struct model *model;          /* borrowed until engine_close */
    struct device *device;        /* the model's */
    struct engine_gate *gate;     /* of the device, when several engines share it; NULL */
    uint64_t state_bytes;         /* budget of sequence state */
    uint32_t rows_max;            /* rows of a step, as the model was opened with */
    uint32_t steps_in_flight;     /* 0 = 1; as many as the model was opened for */
    bool hold_off;                /* with one step in flight: never prepare the next one while it runs (tests; backends that cannot hold never do) */
    uint32_t step_ms;             /* what a step with decoding sequences may take, prefill rows filling it; 0: twice what decoding alone takes */
    uint32_t running_max;         /* sequences with state at a time; 0 = 64, at most rows_max */
    uint32_t waiting_max;         /* beyond it submit answers ERR_BUSY; 0 = 4096 */
    bool retain_none;             /* keep no state of ended sequences; running ones share theirs all the same */
    uint32_t mark_every;          /* see kv_config */
    uint32_t preempt_at;          /* tests: every sequence is pre-empted once, when it has so many tokens; 0 = only when pages run out */
    uint32_t check_every;         /* tests: kv_check after every so many turns, failures counted in stats.check_failures; 0 = never (debug builds: now
                                   * and then, and a failure aborts) */
    struct model *draft;          /* a smaller model of the same vocabulary that guesses, on the same device; borrowed; NULL */
    uint64_t draft_state_bytes;   /* budget of its state */
    /* The bytes of an id in the text, for stop strings; called on the engine thread or, while that sleeps, on one of the device's. */
    int (*id_bytes)(void *ctx, uint32_t id, struct buf *out);
    void *id_bytes_ctx;
};
/* What kv_open gets, budget apart: for plans before an engine is there. */
void engine_kv_config(struct model *model, struct device *device, uint32_t rows_max, struct kv_config *out);
int engine_open(const struct engine_config *cfg, struct engine **out, struct err *err);
void engine_close(struct engine *e); /* cancels what runs, gives every choice its last event, joins; requests stay pollable */

struct engine_cache_stats { /* since the engine was opened */
    uint64_t prompt_tokens, cached_tokens; /* of prompts that were admitted */
    uint64_t misses[KV_MISS_COUNT];        /* prompts, by why no more of them was reused */
};
struct engine_stats {
    struct kv_stats kv;
    struct kv_prefix_stats prefix;
    struct engine_cache_stats cache;
    uint32_t waiting, running;
    uint32_t waiting_again, prefilling; /* of waiting: pre-empted; of running: not through their prompt yet */
    uint64_t steps, rows, preempted, state_peak_bytes, check_failures;
    uint64_t step_rows[ENGINE_STEP_BUCKETS]; /* steps of up to 2^i rows; the last: of more */
    uint64_t cancelled;        /* sequences that ended because their request was cancelled... */
    uint64_t cancel_steps_max; /* ...and the most steps that ended between the one and the other */
    uint64_t failed_steps;
    uint64_t held_went, held_run, held_dropped; /* steps held ready: begun without the engine's thread; by it; in vain */
    bool device_failed;        /* the last step failed by the device */
    uint64_t draft_live_bytes; /* of the draft model's state */
};
void engine_stats(struct engine *e, struct engine_stats *out); /* any thread: as of the last step */
/* For how long the engine's thread has been in its turn without any step of it ending, ns; 0: it sleeps, or just ended one.  Any thread. */
int64_t engine_stalled_ns(const struct engine *e);
uint32_t engine_positions_max(const struct engine *e);         /* context, or less when the state budget is smaller */

/* Run fn on the engine thread while nothing else runs (measurements); kept state is dropped first.  Blocks the caller. */
int engine_exclusive(struct engine *e, int (*fn)(void *ctx, struct kv *kv, struct err *err), void *ctx, struct err *err);

/* ---- requests ---- */

/* Scoring instead of generating: every row is reported from the engine thread, in order; nothing is sampled. */
struct engine_score {
    void (*row)(void *ctx, uint32_t position, const struct sample_result *result, const float *logits); /* logits may be NULL */
    void *ctx;
    uint32_t top;
    bool logits_last, logits_all;
};

enum engine_pool { ENGINE_POOL_NONE, ENGINE_POOL_MEAN, ENGINE_POOL_LAST };

struct engine_request_config { /* copied */
    int64_t max_tokens;           /* < 0: as far as context and memory allow */
    bool max_tokens_soft;         /* a default: cut to what fits instead of refused */
    const uint32_t *end_ids;      /* ids that end a sequence and are not emitted: EOS and stop ids */
    uint32_t end_count;
    const uint32_t *cut_ids;      /* further ids that no copied span goes past: delimiters of calls */
    uint32_t cut_count;
    const struct str *stops;      /* stop strings */
    uint32_t stop_count;
    struct sample_params sampling; /* choice is set per choice; biases in any order */
    uint32_t penalty_window, min_tokens;
    uint32_t n;                   /* choices; 0 = 1 */
    bool logprobs;
    uint32_t top;                 /* per token, 0..SAMPLE_TOP_MAX */
    uint32_t propose;             /* ENGINE_PROPOSE_X: who may guess tokens ahead */
    uint32_t propose_depth;       /* most ids of a guess, taken whatever they cost; 0: as many as pay */
    const uint32_t *allowed_ids;  /* the only ids that may be chosen; end ids count like any other; none = all */
    uint32_t allowed_count;
    const struct constraint_source *constraint; /* what may come next, one for each choice; its ctx lives until submit returns; NULL */
    uint32_t chunk_max;           /* rows of one span at most; 0 = rows_max */
    int32_t priority;             /* the higher one is admitted first; same priorities by session, then in order of arrival */
    bool no_reuse;                /* compute every row, even of a known prefix */
    uint32_t ring;                /* events; 0 = 256 */
    struct str tenant;            /* salt: prefixes are shared under the same one only; at most ENGINE_TENANT_MAX bytes */
    struct str session;           /* who asks: sessions share places and prefill evenly; its last entry is kept rather than others; empty = its own */
    struct hash128 media;         /* of what the prompt's ids stand for beside text; zero = nothing */
    const struct engine_score *score; /* its row and ctx must live until the last event; NULL = generate */
    enum engine_pool pool;        /* not NONE: nothing is sampled, the outcome has the mean (or last) of the prompt's hidden rows */
    bool prompt_logprobs;         /* how likely each id of the prompt was: engine_request_prompt_score.  All of its rows are computed */
    uint32_t prompt_top;          /* and the best ids there, 0..ENGINE_PROMPT_TOP_MAX */
};
int engine_request_new(struct engine *e, const struct engine_request_config *cfg, struct engine_request **out, struct err *err);

/* Ascending positions of the prompt where its text may go on in another way (turn ends); before engine_submit.  Copied. */
int engine_request_boundaries(struct engine_request *r, const uint32_t *positions, uint32_t count, struct err *err);
/* Give the prompt and hand the request to the engine.  ERR_LIMIT with both numbers when it cannot fit alone; then it was not taken. */
int engine_submit(struct engine_request *r, const uint32_t *ids, uint32_t count, struct err *err);
void engine_request_cancel(struct engine_request *r);  /* any thread, any state */
void engine_request_release(struct engine_request *r); /* the consumer's reference; cancel first when nobody will poll */

enum engine_event_kind { ENGINE_TOKEN, ENGINE_DONE };
struct engine_event {
    enum engine_event_kind kind;
    uint32_t choice;
    uint32_t id; /* TOKEN */
    float logprob;
    uint32_t top_count;
    const uint32_t *top_ids; /* valid until the next poll */
    const float *top_logprobs;
};
bool engine_poll(struct engine_request *r, struct engine_event *out); /* consumer thread only */

/* Changes whenever an event was added (or engine_request_signal called): read it, poll, then wait on it. */
uint32_t engine_request_seen(struct engine_request *r);
void engine_request_wait(struct engine_request *r, uint32_t seen, int64_t timeout_ns);
void engine_request_signal(struct engine_request *r); /* front: preparation failed or got further */
/* Instead of waiting: fn is called on whichever thread signals, after each change.  It must neither block nor call the engine.  Set it before
 * engine_submit; NULL takes it away, and once that has returned no call runs any more. */
void engine_request_hook(struct engine_request *r, void (*fn)(void *ctx), void *ctx);
/* The first choice has its state: how much of the prompt was known is in its outcome, cache and cached_count, for good. */
bool engine_request_started(struct engine_request *r);
bool engine_request_waiting(struct engine_request *r); /* engine_poll would give an event */
bool engine_request_cancelled(const struct engine_request *r); /* any thread */
/* Positions of the prompt whose state is there, for whoever shows progress. */
uint32_t engine_request_progress(struct engine_request *r);

/* Spans that were known before they were sampled: copies (echo) and what a constraint forces. */
struct engine_fill {
    uint32_t events, injected;       /* spans; their ids that were emitted... */
    uint32_t echo, forced;           /* ...by kind */
    uint32_t lengths[ENGINE_DEPTH_MAX + 1]; /* spans of so many ids */
    uint32_t wasted;                 /* rows sampled and not used, drafting rounds included */
    uint32_t accepted, rejected;     /* ids of verified spans */
};
/* Rounds of drafting proposers; echo and forced spans count as forwards only. */
struct engine_speculation {
    uint32_t forwards;               /* steps with a row of it after its first token */
    uint32_t rounds, drafted, accepted, rejected;
    uint32_t lengths[ENGINE_DEPTH_MAX + 1]; /* rounds that accepted so many */
    uint32_t drafted_at[ENGINE_DEPTH_MAX], accepted_at[ENGINE_DEPTH_MAX]; /* by position in the round */
    struct engine_fill fill;
};

enum engine_finish { ENGINE_STOP, ENGINE_LENGTH, ENGINE_CANCELLED, ENGINE_ERROR };
struct engine_outcome { /* of one choice, complete before its DONE event */
    enum engine_finish finish;
    int stop; /* index of the stop string that ended it, or -1 */
    uint32_t prompt_count, cached_count, completion_count;
    struct kv_prefix_hit cache; /* how much of the prompt was known, and why no more */
    int64_t submitted_ns, admitted_ns, first_ns, done_ns; /* monotonic; 0 = never */
    struct engine_speculation speculation;
    const float *pooled; /* [hidden] of a request with a pool; NULL */
    struct err err;
};
const struct engine_outcome *engine_request_outcome(const struct engine_request *r, uint32_t choice);

/* After the first choice's last event, of a request with prompt_logprobs: the log-probability of the prompt's id at `position` (from 1 on)
 * and what was likeliest there, by falling log-probability.  False: it is not known (it was not asked for, or the request ended before). */
bool engine_request_prompt_score(const struct engine_request *r, uint32_t position, float *logprob, const uint32_t **ids,
                                 const float **logprobs, uint32_t *count);

#endif
