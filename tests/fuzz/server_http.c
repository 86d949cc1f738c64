/* HTTP requests, cut in two ways: both must be read alike, under their limits, without a fault. */
#include "base/mem.h"
#include "server/http_parse.h"

#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

enum { OUT_MAX = 64 };
struct reading { /* what came out: results, then the refusal */
    int results[OUT_MAX], count, status;
    size_t bodies, headers, paths;
};

static void feed(struct http_parser *p, struct str piece, struct reading *r, bool *over)
{
    while (!*over) {
        size_t used = 0;
        enum http_parsed got = http_parser_feed(p, piece, &used);
        if (used > piece.n)
            abort();
        piece = str_from(piece, used);
        if (got == HTTP_PARSED_MORE) {
            if (piece.n)
                abort();
            return;
        }
        if (r->count < OUT_MAX)
            r->results[r->count++] = got;
        if (got == HTTP_PARSED_REFUSED) {
            r->status = p->status;
            *over = true;
        } else if (got == HTTP_PARSED_HEAD) {
            r->headers += p->request.header_count;
            r->paths += p->request.path.n + p->request.query.n;
            for (uint32_t i = 0; i < p->request.header_count; i++)
                r->headers += p->request.headers[i].name.n + p->request.headers[i].value.n;
        } else {
            r->bodies += p->request.body.n;
            http_parser_next(p);
        }
    }
}

static struct reading read_cut(const uint8_t *data, size_t n, size_t cut)
{
    static const struct http_limits limits = {.head_bytes = 2048, .url_bytes = 256, .body_bytes = 4096};
    struct http_parser p;
    struct reading r = {0};
    bool over = false;
    http_parser_open(&p, &limits);
    for (size_t at = 0; at < n && !over; at += cut)
        feed(&p, str_n(data + at, n - at < cut ? n - at : cut), &r, &over);
    if (p.head.n > limits.head_bytes || p.body.n > limits.body_bytes)
        abort();
    http_parser_free(&p);
    return r;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    struct reading a = read_cut(data, n, n ? n : 1), b = read_cut(data, n, 1);
    if (a.count != b.count || memcmp(a.results, b.results, sizeof a.results) || a.status != b.status || a.bodies != b.bodies ||
        a.headers != b.headers || a.paths != b.paths)
        abort();
    return 0;
}
