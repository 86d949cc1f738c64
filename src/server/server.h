/* server/server.h - `rhapsode serve`: the HTTP APIs over one open model.
 *
 * Owns:       the loop, its sockets and whatever requests are under way; the model is the caller's.
 * Thread:     server_run's caller becomes the I/O thread; it returns when SIGTERM or SIGINT has been served and everything is closed.
 * Invariants: 1. Nothing on the I/O thread blocks: the library works on its own threads and wakes the loop; texts are cut by workers.
 *             2. Whoever leaves takes their request with them: a closed connection cancels it, whatever its state.
 *             3. What a model writes never makes an error of the server's.
 * Uses rhapsode.h and base only. */
#ifndef RH_SERVER_SERVER_H
#define RH_SERVER_SERVER_H

#include "base/err.h"
#include "rhapsode.h"

struct server_key { /* strings live as long as the configuration */
    const char *name, *key;
    bool admin;
};

/* zero = the default; strings live until server_run returns */
struct server_config {
    struct rh_model *model;
    const char *model_id;          /* the name clients see and ask for */
    const char *const *aliases;    /* further names of it */
    size_t alias_count;
    const char *digest;            /* SHA-256 of the model's file, 64 hex digits; NULL: not known */
    bool any_model;                /* answer whatever model a request names */
    bool verbatim;                 /* leave nothing out of prompts (volatile.h) */
    bool undated;                  /* leave dates out, too */
    const struct rh_sampling *sampling; /* where a request says nothing */
    const char *host;              /* "127.0.0.1"; "" = none */
    uint16_t port;                 /* 0: a free one */
    const char *unix_path;         /* NULL */
    const char *tls_cert, *tls_key;/* PEM files; NULL = plain */
    const struct server_key *keys;
    size_t key_count;
    bool open_bind;                /* listen beyond loopback without a key */
    const char *const *hosts;      /* further names that Host may say; "*" = any */
    size_t host_count;
    const char *const *origins;    /* that browsers may come from (CORS); "*" = any */
    size_t origin_count;
    bool strict;                   /* refuse unknown fields */
    bool log_requests, log_prompts;/* JSON lines on standard error */
    const char *trace_path;        /* phases of generations, for chrome://tracing and the like; NULL */
    uint64_t body_bytes;
    uint32_t connections, idle_s, header_s, write_s;
    uint32_t queue;                /* generations at a time; more are answered 429; 0 = 1024 */
    uint32_t heartbeat_s;          /* 0 = 10 */
    uint32_t drain_s;              /* after SIGTERM; 0 = 30 */
    const char *notify_socket;     /* systemd's; NULL */
    uint64_t watchdog_us;          /* systemd's; 0 = none */
    void (*listening)(void *ctx, const char *address); /* one call for each */
    void *listening_ctx;
};
int server_run(const struct server_config *cfg, struct err *err);

#endif
