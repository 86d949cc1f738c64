/* server/journal.h - lines for whoever watches: requests as JSON on standard error, phases of generations as a trace file.
 *
 * Invariants: 1. Nothing here blocks: lines wait in memory while one write runs on a worker; beyond JOURNAL_MAX they are dropped and counted.
 *             2. Prompts are written only when that was asked for.
 * Thread: I/O thread. */
#ifndef RH_SERVER_JOURNAL_H
#define RH_SERVER_JOURNAL_H

#include "base/buf.h"
#include "base/err.h"

#include <uv.h>

enum { JOURNAL_MAX = 4 << 20 };

/* one file; owns its lines */
struct journal {
    uv_loop_t *loop;
    uv_fs_t write;
    int fd;             /* -1: none */
    bool own_fd, writing;
    struct buf waiting, flying;
    size_t flown;       /* of flying */
    uint64_t dropped;   /* lines */
};
void journal_open(struct journal *j, uv_loop_t *loop, int fd);                    /* fd stays the caller's */
int journal_open_file(struct journal *j, uv_loop_t *loop, const char *path, struct err *err);
void journal_put(struct journal *j, struct str line);                              /* and a line end */
void journal_close(struct journal *j);                                             /* after the loop: what is left is written at once */

struct server;
struct gen;
struct http_request;
void journal_answer(struct server *s, const struct http_request *r, int status); /* --log-requests */
void journal_generation(const struct gen *g, const char *error);                  /* --log-requests, --trace */

#endif
