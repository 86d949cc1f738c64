/* server/http_int.h - a connection, inside http_*.c only. */
#ifndef RH_SERVER_HTTP_INT_H
#define RH_SERVER_HTTP_INT_H

#include "server/http.h"
#include "server/http_parse.h"
#include "server/tls.h"

enum { HTTP_READ_CHUNK = 64 << 10, HTTP_PIECE = 128 << 10, HTTP_PIPELINE_MAX = 64 << 10, HTTP_HIGH_WATER = 256 << 10, HTTP_LOW_WATER = 64 << 10, HTTP_LINGER_MS = 2000 };

/* LINGER: the last answer is out, what the peer still sends is dropped until it ends, so that the answer is not lost to a reset. */
enum conn_state { CONN_IDLE, CONN_READING, CONN_BUSY, CONN_LINGER, CONN_CLOSING };

/* owns everything in it; freed in the close callback of its handle */
struct http_conn {
    union {
        uv_handle_t handle;
        uv_stream_t stream;
        uv_tcp_t tcp;
        uv_pipe_t pipe;
    } h; /* first: handle->data is not needed to find the connection */
    struct http_server *server;
    struct http_conn *next, *prev;
    uint64_t id;
    enum conn_state state;
    struct tls *tls;         /* NULL: plain */
    struct http_parser parser;
    struct buf in;           /* received, plain, not parsed yet */
    struct buf out;          /* to be sent by the next flush, plain */
    struct buf cipher;       /* out after TLS */
    struct buf extra;        /* header lines of this exchange's answer */
    struct buf body;         /* of a whole answer, given out up to body_at; empty: none is under way */
    size_t body_at;
    bool reading;            /* uv_read_start is on */
    bool parsing;            /* conn_parse runs: answers given within do not start it again */
    bool streaming, chunked; /* the answer */
    int status;
    bool no_body;            /* HEAD */
    bool end_after;          /* close once the answer is out */
    bool was_full;           /* the handler was told to wait */
    bool linger;             /* the request was not read to its end */
    uv_shutdown_t shutdown;
    uint32_t writes;         /* in flight */
    uint64_t since_ms;       /* loop time: of the state's deadline */
    uint64_t wrote_ms;       /* the queue of writes got shorter */
    size_t queue_seen;
    void *user;
};

struct http_listener {
    union {
        uv_handle_t handle;
        uv_stream_t stream;
        uv_tcp_t tcp;
        uv_pipe_t pipe;
    } h;
    struct http_server *server;
    struct http_listener *next;
    struct tls_context *tls;
    char *unix_path; /* to be removed at the end; NULL */
};

struct http_server {
    uv_loop_t *loop;
    struct http_limits limits;
    struct http_handler handler;
    struct http_listener *listeners;
    struct http_conn *conns;
    struct http_counts counts;
    uint64_t next_id;
    bool stopping;
    char chunk[HTTP_READ_CHUNK]; /* what a read callback gets; used up before the next */
};

void conn_accept(struct http_listener *l);
void conn_close(struct http_conn *c);  /* at once; tells the handler when it owed an answer */
void conn_refuse(struct http_conn *c, int status, const char *text); /* an error answer, then the end */
void conn_read_on(struct http_conn *c);
void conn_next(struct http_conn *c);   /* an answer has ended */
void conn_body(struct http_conn *c);   /* the next piece of c->body */

#endif
