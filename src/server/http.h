/* server/http.h - HTTP/1.1 on libuv and llhttp: connections, limits, replies and streams.
 *
 * Owns:       listeners, connections, every byte in and out of them.
 * Thread:     the I/O thread only.  Nothing here blocks.
 * Invariants: 1. One exchange at a time on a connection; pipelined requests wait their turn in its buffer.
 *             2. A handler is asked exactly once for each request that was whole and passed the limits; it answers with http_reply, or with
 *                http_stream_begin, _put, _end, then or later.
 *             3. `gone` is called at most once, only between the request and the end of its answer; after it the connection must not be named.
 *             4. A request head is taken by its own strict rules before llhttp sees it: CRLF line ends, no folded lines, no bare CR or NUL.
 *
 *      accept        first byte        blank line         body complete        answer ended
 *     -------> IDLE -----------> HEAD -----------> BODY ---------------> BUSY -------------+--> IDLE (keep-alive)
 *               |  idle deadline   |  head deadline  |  body deadlines     |  peer gone,    |
 *               +------------------+-----------------+---------------------+  write deadline+--> CLOSING -> freed
 *
 * Does not:   know routes, JSON or the engine. */
#ifndef RH_SERVER_HTTP_H
#define RH_SERVER_HTTP_H

#include "base/buf.h"
#include "base/err.h"
#include "base/str.h"

#include <stdbool.h>
#include <stdint.h>
#include <uv.h>

enum { HTTP_HEADERS_MAX = 100, HTTP_CONNECTIONS_DEFAULT = 4096 };

struct http_server;
struct http_conn;

struct http_header {
    struct str name, value;
};

enum http_method { METHOD_GET, METHOD_HEAD, METHOD_POST, METHOD_DELETE, METHOD_OPTIONS, METHOD_OTHER };

/* borrowed from the connection until the answer has ended */
struct http_request {
    enum http_method method;
    struct str path, query; /* as sent, before and after the '?' */
    struct str body;
    struct http_header headers[HTTP_HEADERS_MAX];
    uint32_t header_count;
    int64_t arrived_ns;     /* monotonic: the head was complete */
};
struct str http_header_find(const struct http_request *r, const char *name); /* {NULL,0}: absent */

struct http_limits { /* zero = the default */
    uint32_t head_bytes, url_bytes; /* 32 KiB, 8 KiB */
    uint64_t body_bytes;            /* 32 MiB */
    uint32_t connections;           /* 4096 */
    uint32_t head_ms;               /* a head must be whole so long after its first byte: 10 s */
    uint32_t body_ms;               /* and a body move on within: 30 s */
    uint32_t idle_ms;               /* a connection without a request is closed after: 75 s */
    uint32_t write_ms;              /* a peer that takes no byte for so long is cut off: 30 s */
};

struct http_handler {
    /* The head is complete: 0 lets the body in; else the answer was given (http_reply) and the connection ends after it. */
    int (*head)(void *ctx, struct http_conn *c, const struct http_request *r);
    void (*request)(void *ctx, struct http_conn *c, const struct http_request *r);
    void (*gone)(void *ctx, struct http_conn *c);    /* the peer left, or was cut off, before the answer ended */
    void (*drained)(void *ctx, struct http_conn *c); /* http_full no longer holds */
    void (*answered)(void *ctx, const struct http_request *r, int status); /* an answer has ended; of a malformed request little is known */
    /* The bytes of an error answer this file makes itself (limits, malformed requests). */
    void (*refusal)(void *ctx, int status, const char *text, struct buf *body);
    void *ctx;
};

struct http_counts {
    uint64_t accepted, refused; /* connections; refused: over the limit */
    uint32_t open;
    uint64_t requests, malformed;
    uint64_t bytes_in, bytes_out;
};

int http_open(uv_loop_t *loop, const struct http_limits *limits, const struct http_handler *handler, struct http_server **out, struct err *err);
struct tls_context; /* tls.h */
/* host: an address or a name; port 0 takes a free one.  *port_out = the port taken.  tls: NULL = plain. */
int http_listen_tcp(struct http_server *s, const char *host, uint16_t port, struct tls_context *tls, uint16_t *port_out, struct err *err);
int http_listen_unix(struct http_server *s, const char *path, struct err *err);
void http_stop(struct http_server *s);  /* no more connections; idle ones are closed, others after their answer */
void http_abort(struct http_server *s); /* closes every connection now */
void http_tick(struct http_server *s);  /* deadlines; called a few times a second */
bool http_idle(const struct http_server *s); /* stopped, and no connection is left */
void http_close(struct http_server *s); /* once the loop has run out of its handles */
const struct http_counts *http_counts(const struct http_server *s);

/* ---- answers ---- */

/* One whole answer.  headers: further header lines, each ended by CRLF, or {NULL,0}. */
void http_reply(struct http_conn *c, int status, const char *type, struct str headers, struct str body);
/* The same, taking body over (it is empty afterwards): a large one goes out piece by piece, between what others are sent. */
void http_reply_take(struct http_conn *c, int status, const char *type, struct str headers, struct buf *body);
/* The request's body becomes the caller's; the request has none afterwards. */
void http_body_take(struct http_conn *c, struct buf *out);
void http_stream_begin(struct http_conn *c, int status, const char *type, struct str headers);
void http_stream_put(struct http_conn *c, struct str data); /* collected until http_flush */
void http_stream_end(struct http_conn *c);                  /* flushes as well */
void http_flush(struct http_conn *c);
bool http_full(const struct http_conn *c);                  /* the peer reads slower than this is written: wait for `drained` */
void http_extra_set(struct http_conn *c, struct str headers); /* lines that every answer of this exchange carries */
void http_user_set(struct http_conn *c, void *user);
void *http_user(const struct http_conn *c);
uint64_t http_conn_id(const struct http_conn *c);

const char *http_status_text(int status);

#endif
