/* server/http_parse.h - bytes -> requests: strict line rules first, llhttp for the rest.  No sockets: the fuzz target feeds it.
 *
 * Invariants: 1. What is accepted does not depend on how the bytes were cut.
 *             2. Head and body stay under their limits, whatever is sent.
 * Thread: its owner only. */
#ifndef RH_SERVER_HTTP_PARSE_H
#define RH_SERVER_HTTP_PARSE_H

#include "server/http.h"

#include <llhttp.h>

enum http_parsed {
    HTTP_PARSED_MORE,  /* every byte was taken, more are needed */
    HTTP_PARSED_HEAD,  /* request's head is there, its body is not; feed on */
    HTTP_PARSED_DONE,  /* the whole request is there; http_parser_next before more is fed */
    HTTP_PARSED_REFUSED /* status and text say why; nothing more can be read from this peer */
};

/* owns head and body */
struct http_parser {
    llhttp_t llhttp;
    const struct http_limits *limits;
    struct buf head, body;
    struct http_request request; /* points into head and body */
    enum { HTTP_AT_HEAD, HTTP_AT_BODY, HTTP_AT_END } at;
    size_t line_bytes;           /* of the line being read */
    bool first_line;             /* it is the request line */
    uint32_t blank_lines;        /* before it */
    uint32_t spaces;             /* in it */
    char last;                   /* byte before */
    uint64_t body_raw;           /* bytes taken for the body, framing included */
    bool complete, keep_alive, version_11, expects_continue, too_large;
    int status;                  /* HTTP_PARSED_REFUSED */
    const char *text;
};
void http_parser_open(struct http_parser *p, const struct http_limits *limits);
void http_parser_free(struct http_parser *p);
void http_parser_next(struct http_parser *p);
/* *used: how many bytes were taken. */
enum http_parsed http_parser_feed(struct http_parser *p, struct str data, size_t *used);
static inline bool http_parser_idle(const struct http_parser *p) /* nothing of a request was read yet */
{
    return p->at == HTTP_AT_HEAD && p->head.n == 0;
}

#endif
