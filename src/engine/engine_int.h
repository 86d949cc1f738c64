/* engine/engine_int.h - inside the engine only.
 *
 * Files: engine.c (open, thread, loop), request.c (request, ring of events), sched.c (plan: admission, rows, pages, pre-emption),
 *        clock.c (what rows cost), batch.c (run: a step's spans), hold.c (the next step, ahead), resolve.c (commit: tokens, ends),
 *        cache.c (known prefixes),
 *        reveal.c (what a prompt's rows say), sampler.c (history counts), stop.c (stop strings), walk.c (which rows of a round count), propose.c (which proposal, how deep),
 *        proposer.c echo.c lookup.c draft.c (who guesses),
 *        constrain.c (what may come next).
 * Thread: everything here belongs to the engine thread, except what is marked otherwise. */
#ifndef RH_ENGINE_INT_H
#define RH_ENGINE_INT_H

#include "base/thread.h"
#include "engine/clock.h"
#include "engine/draft.h"
#include "engine/engine.h"
#include "engine/history.h"
#include "engine/propose.h"
#include "engine/proposer.h"
#include "engine/request_int.h"
#include "engine/walk.h"


enum { STEPS_MAX = 2, STEP_LOGIT_ROWS = 16 };

/* ---- sequences ---- */

/* drafts of a round; their ids lie behind the sequence's tokens once it is placed */
struct proposal {
    struct proposer *proposer;
    uint32_t class, count;
    uint32_t beside_rows, sequences; /* of the step without it */
    uint32_t ids[PROPOSE_DEPTH_MAX];
};

enum seq_state { SEQ_NEW, SEQ_WAITING, SEQ_PREFILL, SEQ_DECODE, SEQ_DONE, SEQ_CANCELLED, SEQ_FAILED };

/* one choice of a request; lifetime: the request's.  Owns kv while PREFILL or DECODE, tokens, sampler, stop.
 * What every step touches lies in front, in as few cache lines as it takes: of many sequences none is near any more when its turn comes. */
struct seq {
    struct engine_request *request;
    struct kv_seq *kv;
    uint32_t *tokens;      /* prompt, then what was chosen; room for all it may come to and a round of drafts behind */
    uint32_t choice;
    enum seq_state state;
    uint32_t count;
    uint32_t in_flight;    /* rows of steps not committed */
    uint32_t samples;      /* choices in flight */
    uint32_t placed;       /* rows in the step being planned */
    uint32_t generated;    /* completion tokens, a sampled end included */
    uint32_t forwards;     /* steps it generated in */
    uint64_t age;          /* order of submission */
    struct constraint *constraint; /* what may come next; NULL: anything */
    const struct sample_result *flying; /* where the choice in flight will lie */
    bool admitted_before;  /* pre-empted since: its figures stay those of the first time */
    bool guessing;         /* somebody has a guess: the next step waits for what is chosen */
    struct sampler sampler;
    struct stop_match stop;
    struct proposer *proposers[PROPOSER_KINDS]; /* NULL: not asked for */
    uint32_t *masks;       /* [PROPOSE_DEPTH_MAX + 1][words] of the rows in flight; with a constraint only */
    struct proposal round; /* of the step being planned */
    double credit;         /* what guessing may still cost it, in steps: so much was saved, and a little given */
    double decoded;        /* steps it decoded in, those with others in part */
    struct seq *next;      /* waiting list */
};

/* ---- steps ---- */

struct step_item { /* one span: known ids, then the drafts of a round */
    struct seq *seq;
    uint32_t position, rows;
    uint32_t out_first;    /* first row that goes through the head; = rows: none */
    uint32_t result_first; /* into results: of the first row that goes through the head... */
    uint32_t sample_first; /* ...and of the first that is sampled */
    uint32_t samples;      /* rows sampled: 0, or one and the drafts; they are the last */
    const uint32_t *slot;  /* the row's id is not known yet: an earlier step will have put it there */
    bool logits;
    struct proposal round;
};
/* engine lifetime; everything a step in flight names */
struct step {
    struct step_item *items;       /* [rows_max] */
    uint32_t item_count, row_count, out_count, logit_count, logit_row, hidden_row;
    struct span *spans;            /* [rows_max] */
    struct sample_row *rows;       /* [rows_max] */
    struct sample_result *results; /* [rows_max] */
    struct sample_seen *patches;   /* [rows_max][PROPOSE_DEPTH_MAX], counts of rows that assume drafts */
    uint32_t patch_count;
    float *logits;                 /* [STEP_LOGIT_ROWS][vocab], made when a score first asks for logits */
    float *hidden;                 /* [rows_max][hidden], made when a pool first asks for rows */
    uint64_t event;
    int64_t started_ns;
    uint32_t decode_count;         /* sequences that decode */
    uint32_t decode_rows;          /* their rows */
};

struct engine {
    struct engine_config cfg;
    _Atomic uint32_t refs;      /* the owner's and one per request */
    struct model *model;
    struct kv *kv;
    uint32_t vocab, context, positions_max;
    pthread_t thread;
    bool started;
    _Atomic uint32_t wake;      /* futex word of the engine thread */
    _Atomic bool closing;
    _Atomic uint64_t steps_ended; /* = step_total, for other threads */
    _Atomic int64_t busy_since; /* its thread works, and no step has ended since; 0: it sleeps */
    pthread_mutex_t mutex;      /* submitted, submitted_count, task, stats */
    struct engine_request *submitted, **submitted_end;
    uint32_t submitted_count;   /* requests submitted and not ended */
    struct engine_task *task;
    struct engine_stats stats;
    uint64_t ages;
    /* engine thread */
    struct engine_request *due; /* whose consumers are to be woken */
    struct seq *waiting;        /* FIFO by age */
    struct seq **running;       /* [running_max] ascending age */
    uint32_t running_count, waiting_count, waiting_again; /* again: pre-empted ones */
    struct seq *head;           /* of waiting: who is admitted next; NULL: to be chosen, the lists changed */
    bool device_failed, head_waits; /* waits: it was looked at, and there was no room beside `head_reused` known positions */
    uint32_t head_reused;
    struct engine_cache_stats cache;
    struct step steps[STEPS_MAX];
    uint32_t step_slots;        /* of them in use: those in flight, and one that is held */
    uint32_t step_first, step_pending; /* ring of steps in flight */
    bool holds;                 /* steps may be held (hold.c) */
    struct step *held;          /* the one behind the one in flight... */
    const struct step *held_behind; /* ...which is this; NULL, and not set: none is */
    uint32_t heard;             /* `wake` when sched_take last looked */
    bool gate_kept;             /* from one turn to the next */
    struct sched_clock clock;
    struct draft_pool *draft;   /* NULL: no draft model */
    struct buf bytes;           /* of one id */
    bool bytes_ready;           /* it has room for the longest */
    uint64_t step_total, row_total, preempted, state_peak, turns, check_failures, cancelled, cancel_steps_max, failed_steps,
             held_went, held_run, held_dropped;
    uint64_t step_rows[ENGINE_STEP_BUCKETS]; /* as in engine_stats; so is device_failed */
};

/* engine.c */
void engine_wake(struct engine *e);
void engine_drain(struct engine *e); /* waits for all that was enqueued */

/* sched.c: past sched_admit no memory is asked for before the step's events are out */
void sched_take(struct engine *e);                  /* submissions and cancels */
void sched_admit(struct engine *e, struct step *s); /* empties the step; who runs from here on has all it may need */
void sched_plan(struct engine *e, struct step *s);  /* fills it */
void sched_empty(struct step *s);
bool sched_admits(struct engine *e);                /* would sched_admit change who runs? */
bool sched_goes_on(struct engine *e, struct seq *s); /* by one plain row: nothing but its id depends on what the step in flight chooses */
bool sched_place_next(struct engine *e, struct step *step, struct seq *s); /* that row, into a step that is held; false: no room */
void sched_count(struct engine *e, const struct step *s); /* it runs: figures, and the turn of prompt rows */
uint32_t seq_reach(const struct seq *s);            /* positions it may come to */
void sched_queue(struct engine *e, struct seq *s);  /* into waiting, by age */
uint32_t sched_tokens_room(struct seq *s, uint32_t wanted); /* how many of `wanted` tokens its consumer has room for */
void sched_learn(struct engine *e, const struct step *s, int64_t now_ns);
void sched_queue_followers(struct engine *e, struct engine_request *r);
void seq_finish(struct engine *e, struct seq *s, enum engine_finish finish, int stop, const struct err *err);
void seq_fail(struct engine *e, struct seq *s, const struct err *err);

/* batch.c */
int batch_open(struct engine *e, struct err *err);
int batch_want_logits(struct engine *e, struct err *err); /* somebody will score */
int batch_want_hidden(struct engine *e, struct err *err); /* somebody will pool */
void batch_close(struct engine *e);
int batch_run(struct engine *e, struct step *s, struct err *err);

/* hold.c */
void hold_make(struct engine *e);   /* while the step in flight runs: the next one is held, if it can be known */
void hold_settle(struct engine *e); /* after the wait for the step in flight: the one that was held may be in flight now */
bool hold_run(struct engine *e);    /* after commit and sched_take: it runs, if it is what would be planned now; else it is dropped */
void hold_drop(struct engine *e);   /* nothing of it is left; no step held: nothing */

/* resolve.c */
bool resolve_is_end(const struct engine_request *r, uint32_t id);
void resolve_step(struct engine *e, struct step *s);
void resolve_failed(struct engine *e, struct step *s, const struct err *err);

/* cache.c */
int cache_configure(struct engine_request *r, const struct engine_request_config *cfg, struct err *err);
void cache_query(const struct seq *s, struct kv_prefix_query *out);
/* Gives the sequence state: what is known of its tokens, and memory for all it may come to. */
int cache_take(struct engine *e, struct seq *s, struct kv_prefix_hit *hit, struct err *err);
void cache_started(struct engine *e, struct seq *s, const struct kv_prefix_hit *hit); /* it runs with what was taken */
void cache_leave(struct engine *e, struct seq *s, bool ended); /* its state goes, what it covered stays known */

#endif
