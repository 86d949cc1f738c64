/* server/api.h - what the API files share: the server, errors, reading of JSON bodies, requests under way.
 *
 *     http -> routes.c: who may ask what -> api_*.c: JSON -> struct params -> gen.c: rh_submit ... events -> api_*.c: JSON -> http
 *
 * Thread: I/O thread, but for what is marked. */
#ifndef RH_SERVER_API_H
#define RH_SERVER_API_H

#include "base/arena.h"
#include "base/buf.h"
#include "base/json.h"
#include "rhapsode.h"
#include "server/health.h"
#include "server/http.h"
#include "server/journal.h"
#include "server/metrics.h"
#include "server/server.h"

struct gen;
struct gen_input;
struct kept_response;

/* process lifetime */
struct server {
    const struct server_config *cfg;
    struct rh_model *model;
    uv_loop_t loop;
    uv_async_t wake;
    uv_timer_t tick;
    uv_prepare_t turn;
    int64_t turn_cpu_ns, turn_max_ns; /* CPU time of this thread at the last turn of the loop, and the most that one turn took */
    uv_signal_t signals[2];
    struct http_server *http;
    struct http_limits limits;
    struct tls_context *tls;
    _Atomic(struct gen *) ready;  /* gens with events, pushed by the library's threads */
    struct gen *gens;             /* all */
    uint32_t gen_count, prompt_count, job_count, body_count; /* prompts: of all gens; bodies: being read by workers */
    struct metrics metrics;
    struct kept_response *responses; /* responses_store.c */
    struct rh_sampling sampling;  /* defaults of requests */
    uint32_t vocab, context;
    char *info_json;              /* what `rhapsode info` says */
    uint64_t file_bytes;          /* of the model */
    int64_t file_s;               /* when it was written */
    int64_t started_s;            /* wall clock */
    uint16_t port;
    bool draining;
    uint64_t drain_since_ms;
    struct health health;
    struct journal log, trace;
    uint64_t gen_number;
    int notify_fd;
    uint64_t notified_ms;
};

/* ---- errors ---- */

enum api_shape { API_OPENAI, API_ANTHROPIC, API_OLLAMA };

struct api_error {
    int status;        /* HTTP; 0 = none */
    const char *code;  /* "context_length_exceeded", or NULL */
    char param[256];   /* JSON pointer to what is wrong, or "" */
    char text[1024];
    uint32_t retry_s;  /* 429, 503 */
};
/* Fills an empty *e; returns -1. */
int api_fail(struct api_error *e, int status, const char *code, const char *param, const char *fmt, ...)
    __attribute__((format(printf, 5, 6)));
int api_fail_rh(struct api_error *e, const struct rh_error *err, const char *input); /* what the library said; input: pointer to the text it got */
void api_error_put(struct buf *out, enum api_shape shape, const struct api_error *e);
void api_error_reply(struct server *s, struct http_conn *c, enum api_shape shape, const struct api_error *e);

/* ---- one call of a route ---- */

struct call {
    struct server *s;
    struct http_conn *conn;
    const struct http_request *http;
    enum api_shape shape;
    const char *tail;           /* of a prefix route: what follows, decoded */
    const struct server_key *key; /* NULL: none are configured */
};
void call_reply_json(const struct call *c, int status, struct str headers, struct buf *body); /* takes body over; a failed one becomes a 503 */

/* ---- reading bodies ---- */

enum field_kind { FIELD_BOOL, FIELD_F32, FIELD_U32, FIELD_I64, FIELD_CALL, FIELD_SILENT, FIELD_REFUSED };
struct reader;
struct field {
    const char *name;
    enum field_kind kind;
    double low, high;
    size_t offset; /* into struct params */
    int (*read)(struct reader *r, yyjson_val *v, const char *pointer); /* FIELD_CALL */
};

/* What is asked of the model, whatever the API.  Everything lives in its arena or in the document, until rh_submit has copied it. */
struct params {
    struct arena arena;
    struct rh_sampling sampling;
    struct rh_request_options o;   /* completed by gen_start */
    struct rh_chat chat;
    struct buf messages;           /* chat.messages_json, as templates take it */
    struct str model;              /* as asked */
    const char *input;             /* pointer to the text asked about: "/messages" */
    bool input_list;               /* ...which is a list of them */
    bool stream, include_usage, logprobs, has_seed, ignore_eos, echo, return_ids, no_think, parallel_off;
    uint32_t top_logprobs, n, min_tokens, best_of;
    int64_t max_tokens;            /* 0: not said */
    uint64_t seed;
    yyjson_val *tools;
    bool tools_off;                /* tool_choice none */
    bool show_prompt_logprobs;
    bool call_required;            /* tool_choice required, or a tool's name */
    struct str call_name;          /* {NULL, 0}: any */
    yyjson_val *allowed;           /* tool_choice allowed_tools: the only ones that the template is told of and that may be called; NULL: all */
    yyjson_val *tool_choice;       /* as it was given; NULL */
    unsigned left_away;            /* VOLATILE_X of its texts */
    yyjson_val *variables;         /* chat_template_kwargs */
    struct str effort, session, salt, reasoning_format;
    struct rh_text *stops;
    size_t stop_count;
    uint32_t *stop_ids;
    size_t stop_id_count;
    bool progress;
    void *own;                     /* the API's, in the arena */
};

struct field_list {
    const struct field *list;
    size_t count;
    bool streams; /* unless the request says otherwise */
};

struct reader {
    struct server *s;
    struct params *p;
    struct api_error *err;
    struct buf ignored;            /* names with commas */
};
/* Reads an object by its list of fields.  Unknown names are noted in r->ignored, or refused when the server is strict. */
int fields_read(struct reader *r, yyjson_val *obj, const char *pointer, const struct field *list, size_t count);
#define FIELDS_COUNT(list) (sizeof(list) / sizeof *(list))
int field_type(struct reader *r, yyjson_val *v, const char *pointer, const char *expected); /* "expected X, got Y" */
int read_stops(struct reader *r, yyjson_val *v, const char *pointer);
int read_stop_ids(struct reader *r, yyjson_val *v, const char *pointer);
int read_bias(struct reader *r, yyjson_val *v, const char *pointer);
int read_seed(struct reader *r, yyjson_val *v, const char *pointer);
int read_model(struct reader *r, yyjson_val *v, const char *pointer);
int read_session(struct reader *r, yyjson_val *v, const char *pointer);
int read_salt(struct reader *r, yyjson_val *v, const char *pointer);
int read_propose(struct reader *r, yyjson_val *v, const char *pointer);
int read_kv(struct reader *r, yyjson_val *v, const char *pointer);
int read_variables(struct reader *r, yyjson_val *v, const char *pointer);
int read_truncation(struct reader *r, yyjson_val *v, const char *pointer);
int read_kv_start(struct reader *r, yyjson_val *v, const char *pointer);
int read_prompt_logprobs(struct reader *r, yyjson_val *v, const char *pointer);
int read_inputs(struct reader *r, yyjson_val *v, const char *pointer, uint32_t most, struct gen_input **list, uint32_t *count); /* texts or ids */
bool model_is_served(const struct server *s, struct str name);
int read_ids(struct reader *r, yyjson_val *v, const char *pointer, uint32_t **ids, size_t *n); /* into the arena */
char *pointer_at(char out[256], const char *pointer, const char *key); /* pointer + "/" + key, cut when too long */
char *pointer_index(char out[256], const char *pointer, size_t index);

/* chat_input.c: messages of OpenAI's shape -> p->messages; tools. */
int chat_messages_read(struct reader *r, yyjson_val *v, const char *pointer);
int chat_tools_read(struct reader *r, yyjson_val *v, const char *pointer);
int chat_tool_choice_read(struct reader *r, yyjson_val *v, const char *pointer);
/* Are the tools there that tool_choice names?  Each is {name} or {function: {name}}. */
int chat_call_check(struct reader *r, yyjson_val *tools);
bool chat_tool_told(const struct params *p, struct str name); /* tool_choice leaves it to the model */
void chat_system_put(struct reader *r, struct buf *out, struct str text); /* a system message's text as JSON, without what is volatile */
/* p->chat from what was read; variables with effort and thinking among them. */
int chat_finish(struct reader *r);

/* ---- ids ---- */

void api_id(char out[48], const char *prefix); /* prefix and 24 random characters */

#endif
