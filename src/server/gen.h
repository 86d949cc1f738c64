/* server/gen.h - one API request that generates: its requests to the library, and what came back so far.
 *
 *     gen_start      RH_EVENT_START        texts        last DONE
 *     ---------> SENT ------------> BEGUN ------> BEGUN ---------> answered, freed
 *                  | DONE with an error: a plain error answer
 *                  + the peer leaves, /v1/cancel, the server ends: cancelled
 *
 * Thread: I/O thread; the library's threads only put it on the server's ready list, and a worker may write a large whole answer. */
#ifndef RH_SERVER_GEN_H
#define RH_SERVER_GEN_H

#include "server/api.h"
#include "server/pending.h"

struct gen_tool { /* owns */
    char id[264];
    struct buf name, arguments;
    size_t text_at, reasoning_at; /* bytes of the choice's that came before it */
};
/* owns its buffers */
struct gen_choice {
    struct buf text, reasoning;   /* kept unless streamed and not needed */
    struct buf logprobs;          /* entries with commas between, in the API's shape */
    struct buf ids;               /* token ids with commas between */
    struct gen_tool *tools;
    uint32_t tool_count, tool_cap;
    uint32_t tokens;              /* seen, until it was cut */
    bool done, cut;               /* cut: ended after its first call (parallel_tool_calls false) */
    enum rh_finish finish;
    char *stop_string;            /* NULL */
    struct rh_usage usage;
    uint64_t seed;
    float *embedding;             /* [embedding_n] */
    size_t embedding_n;
};

struct gen_prompt { /* owns */
    uint32_t *ids;
    size_t n;
};

struct gen_api {
    enum api_shape shape;
    const char *stream_type; /* content type */
    const char *id_prefix;
    bool always; /* piece and done are called for whole answers too, which the API collects itself */
    void (*prompt)(struct gen *g, uint32_t request); /* g->prompts[request] is known; only when prompt_scores; NULL */
    /* streaming: each puts into g->out */
    void (*begin)(struct gen *g);
    void (*piece)(struct gen *g, uint32_t choice, const struct rh_event *e); /* text, reasoning, a piece of a call */
    void (*done)(struct gen *g, uint32_t choice);
    void (*end)(struct gen *g);
    void (*failed)(struct gen *g, const struct api_error *e);
    void (*ping)(struct gen *g);
    /* or all at once: maybe on a worker, so it must not touch the server or the connection... */
    void (*reply)(struct gen *g, struct buf *body);
    void (*written)(struct gen *g); /* ...this may, afterwards; NULL */
    /* one token's entry into c->logprobs; NULL: the API shows none */
    void (*logprob)(struct gen *g, struct gen_choice *c, const struct rh_event *e);
    void (*close)(struct gen *g); /* frees g->own; NULL */
};

struct gen {
    struct pending pending; /* first */
    struct server *s;
    struct http_conn *conn; /* NULL once the peer has left */
    struct gen *next, *prev;
    struct gen *ready_next;
    _Atomic bool queued;    /* on the ready list */
    bool dead, busy;        /* over: freed when it is on no list and not being worked on */
    bool writing;           /* a worker writes the whole answer into body; nothing else changes it meanwhile */
    uv_work_t work;
    struct buf body;
    const struct gen_api *api;
    struct rh_request **requests;
    uint32_t request_count, prompt_count, ended_requests, per_request; /* choices of each */
    struct gen_choice *choices;
    uint32_t choice_count, done_count;
    char id[48];
    char *model, *ignored;  /* as asked; names of ignored fields */
    int64_t created_s, arrived_ns, first_ns, last_ns;
    bool stream, begun, started, include_usage, show_logprobs, return_ids, parallel_off, has_tools, progress, failed, prompt_scores, show_prompt_logprobs;
    uint32_t dropped;       /* messages or ids left away to make it fit */
    unsigned left_away;     /* VOLATILE_X */
    const char *input;      /* pointer to what was asked about, for errors about it */
    bool input_list, embeds;
    uint32_t tops;          /* likeliest tokens that each is shown with */
    uint32_t scores_each;   /* of an id of a prompt */
    uint64_t score_count;
    struct gen_prompt *prompts; /* [request_count] with prompt_scores */
    struct rh_usage usage;  /* of all choices; the prompt's from the start */
    struct rh_cache cache;
    struct rh_timings timings;
    struct buf prompt_ids;  /* with commas, when asked for */
    struct buf out;         /* frames to be sent */
    uint64_t sent_ms;       /* loop time of the last byte */
    const char *key_name;
    uint64_t number;        /* of this generation since the start */
    char *logged;           /* the prompt, with --log-prompts; NULL */
    void *own;              /* the API's */
};

/* Submits one request for each of `inputs` (NULL: p->o as it is).  p is not needed afterwards.  0, or *e is filled and nothing runs. */
struct gen_input { struct rh_text text; const uint32_t *ids; size_t id_count; };
int gen_start(const struct call *c, struct params *p, const struct gen_input *inputs, uint32_t input_count, const struct gen_api *api, void *own,
              const struct buf *ignored, struct api_error *e);
void gen_wake(struct server *s);              /* works the ready list off */
void gen_tick(struct server *s);              /* keep-alives */
void gen_cancel(struct gen *g);               /* ends as cancelled, answered all the same */
struct gen *gen_find(struct server *s, struct str id);

/* For the APIs. */
void gen_event(struct gen *g, const char *name, struct str json); /* "event: name" (NULL: none) and "data: json" */
const char *gen_finish(const struct gen_choice *c, const char *stop, const char *length, const char *tools);
uint32_t gen_completion_tokens(const struct gen *g);
uint32_t gen_reasoning_tokens(const struct gen *g);
struct str gen_token_bytes(struct gen *g, uint32_t id, struct buf *scratch);

#endif
