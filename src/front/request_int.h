/* front/request_int.h - a request of the public library; inside lib_request.c, prompt.c and lib_poll.c only.
 *
 *     lib_request.c: rh_submit -> prompt.c (worker): template, tokenizer -> engine_submit == ring ==> lib_poll.c, rh_poll: ids -> text with hold-back
 *
 * Lifetime: one reference is the caller's, one the preparation job's.  Thread: a request is polled and freed by one thread at a time. */
#ifndef RH_FRONT_REQUEST_INT_H
#define RH_FRONT_REQUEST_INT_H

#include "front/front_int.h"

enum { OWN_TEXTS = 6 };
enum prepare_state { PREPARE_WAITING, PREPARE_DONE, PREPARE_FAILED };

/* what a choice of a chat said so far; owns all */
struct answer {
    struct token_ids ids;
    struct token_ids ends; /* bytes of text after each id; UINT32_MAX: inside a character */
    struct buf text;       /* as it was given out */
    bool failed;           /* no memory, or an id that shows no text: it is not remembered */
};

struct rh_request {
    struct prepare_job job;     /* first: the worker is given this */
    _Atomic uint32_t refs;
    struct rh_model *model;     /* holds a reference */
    struct engine_request *engine;
    /* input, copied */
    struct rh_chat chat;
    struct rh_text prompt;
    bool has_chat, has_prompt;
    char *own[OWN_TEXTS];       /* the copies' memory */
    const char *tenant;         /* own[4], or "" */
    struct call_choice call;    /* form NULL: the answer is free; name: own[5] */
    bool truncate;
    uint32_t positions_max;     /* of the engine, which may be closed while the prompt is prepared */
    uint32_t dropped;
    int64_t max_tokens;
    enum rh_embed embed;
    uint32_t dimensions;
    float *embedding;           /* [dimensions] */
    struct token_ids ids;       /* given, or prepared */
    struct prompt_trace trace;  /* of a chat */
    struct answer *answers;     /* [n]; of a chat */
    const struct output_format *output;
    bool no_calls, told_calls;
    struct reading *readings;   /* [n]; opened when the prompt is known */
    struct str stops[ENGINE_STOP_MAX];
    uint32_t stop_count;
    char *stop_text;
    uint32_t n;
    uint64_t seed;
    _Atomic int state;          /* enum prepare_state; ids and err are complete once it is not WAITING */
    struct err err;
    /* consumer */
    bool prompt_given, start_given;
    uint32_t ended;             /* choices whose DONE was given */
    struct text_stream *streams; /* [n] */
    struct rh_top tops[SAMPLE_TOP_MAX];
    bool done_pending;          /* the last text of a choice was given, its DONE comes next */
    uint32_t event_choice;      /* whose events wait, or whose DONE is pending */
};
void request_unref(struct rh_request *r);
void request_prepare(struct prepare_job *job); /* on a worker; drops the job's reference */

#endif
