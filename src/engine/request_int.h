/* engine/request_int.h - a request as the engine and its consumer share it, and its ring of events (request.c).
 *
 * What every step touches lies together: of many requests none is in a cache any more when its turn comes. */
#ifndef RH_ENGINE_REQUEST_INT_H
#define RH_ENGINE_REQUEST_INT_H

#include "engine/engine.h"
#include "engine/history.h"
#include "engine/reveal.h"

#include <pthread.h>
#include <stdatomic.h>

struct seq;

/* reference-counted by consumer and engine; fields after `engine thread` belong to it once submitted */
struct engine_request {
    _Atomic uint32_t refs;
    _Atomic uint32_t signal;    /* futex word of the consumer */
    _Atomic uint32_t sleepers;  /* who waits on it: announced before the word is compared, looked for after it changed */
    _Atomic bool cancelled;     /* any thread sets it; the engine reads it once per step */
    _Atomic uint64_t cancelled_at; /* steps that had ended then; set before the flag */
    _Atomic bool stalled;       /* the engine found the ring full and wants to know when it is not */
    _Atomic bool started;       /* outcomes[0] has its cache figures */
    _Atomic uint32_t progress;  /* positions of the first choice's prompt that are computed or known */
    struct engine *engine;      /* holds a reference */
    pthread_mutex_t hook_mutex; /* the two fields below, and held during a call */
    void (*hook)(void *ctx);
    void *hook_ctx;
    /* the ring: one writer (engine), one reader (consumer) */
    _Atomic uint32_t head, tail; /* written / read so far */
    uint32_t ring_cap;          /* power of two */
    uint32_t lent;              /* consumer: slots given out by the last poll, freed by the next */
    struct ring_slot *slots;
    uint32_t *top_ids;          /* [ring_cap][top] */
    float *top_logprobs;
    struct engine_outcome *outcomes; /* [n] */
    /* engine thread */
    struct seq *seqs;           /* [n] */
    struct engine_request *due_next; /* behind it in the list of those that are due */
    uint32_t live;              /* choices without their last event */
    uint32_t uses;              /* request_use */
    bool due;                   /* it has events nobody was woken for, and is in that list, which uses it */
    bool cancel_seen;           /* what this step read of `cancelled` */
    bool followers_out;         /* choices past the first were queued */
    /* constants */
    bool has_session, scoring, logprobs, no_reuse, soft; /* scoring: nothing is sampled; a score, or a pool */
    uint32_t n, top, chunk_max, prompt_count, limit, propose, propose_depth;
    uint32_t end_count, cut_count;
    uint32_t *end_ids, *cut_ids; /* ascending; these, and what else ends a copied span */
    struct reveal reveal;
    struct stop_set stops;
    struct engine_score score;
    int64_t max_tokens;
    char *stop_text;
    struct sample_bias *biases;
    struct sample_params sampling;
    uint32_t *allowed_ids, allowed_count;
    struct constraint_source constraint; /* open NULL: none */
    uint32_t penalty_window, min_tokens;
    char key[ENGINE_TENANT_MAX + sizeof(struct hash128)]; /* of its prefixes */
    uint32_t key_n;
    struct hash128 session;
    uint32_t *boundaries;       /* ascending */
    uint32_t boundary_count;
    int32_t priority;
    struct engine_request *next; /* submission queue (under the engine's mutex) */
};

/* How many of `wanted` more token events there is room for, the last events of all live choices kept free. */
uint32_t ring_room(struct engine_request *r, uint32_t tokens_in_flight, uint32_t wanted);
void ring_put_token(struct engine_request *r, uint32_t choice, const struct sample_result *s);
void ring_put_done(struct engine_request *r, uint32_t choice);
void ring_wake(struct engine *e); /* those who wait for events that were put since the last time */
void request_use(struct engine_request *r);   /* on the engine's thread; all its uses are one of the request's references, taken when it was submitted */
void request_unuse(struct engine_request *r);

#endif
