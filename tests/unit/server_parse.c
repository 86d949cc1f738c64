/* Requests from bytes: the same however they were cut; what is not HTTP as it should be is refused with a status. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "server/http_parse.h"

static const struct http_limits limits = {.head_bytes = 512, .url_bytes = 64, .body_bytes = 32};

/* Feeds `cut` bytes at a time until a request is whole or refused.  0: more is needed; 1: whole; else the status. */
static int parse(struct http_parser *p, const char *text, size_t n, size_t cut)
{
    http_parser_open(p, &limits);
    for (size_t at = 0; at < n; at += cut) {
        struct str piece = str_n(text + at, n - at < cut ? n - at : cut);
        enum http_parsed r;
        do {
            size_t used;
            r = http_parser_feed(p, piece, &used);
            piece = str_from(piece, used);
        } while (r == HTTP_PARSED_HEAD);
        if (r != HTTP_PARSED_MORE)
            return r == HTTP_PARSED_DONE ? 1 : p->status;
    }
    return 0;
}

#define H "Host: a\r\n"

static void requests(void **state)
{
    static const struct {
        const char *text;
        int result;
        const char *body;
    } list[] = {
        {"GET / HTTP/1.1\r\n" H "\r\n", 1, ""},
        {"\r\n\r\nGET / HTTP/1.1\r\n" H "\r\n", 1, ""},
        {"GET / HTTP/1.0\r\n\r\n", 1, ""},
        {"POST / HTTP/1.1\r\n" H "Content-Length: 3\r\n\r\nabc", 1, "abc"},
        {"POST / HTTP/1.1\r\n" H "content-length:3\r\n\r\nabcdef", 1, "abc"},
        {"POST / HTTP/1.1\r\n" H "Transfer-Encoding: chunked\r\n\r\n2\r\nab\r\n1;x=y\r\nc\r\n0\r\nT: 1\r\n\r\n", 1, "abc"},
        {"POST / HTTP/1.1\r\n" H "Content-Length: 3\r\n\r\nab", 0, NULL},
        {"GET / HTTP/1.1\r\n" H, 0, NULL},
        {"POST / HTTP/1.1\r\n" H "Content-Length: 33\r\n\r\n", 413, NULL},
        {"POST / HTTP/1.1\r\n" H "Transfer-Encoding: chunked\r\n\r\n21\r\n000000000011111111112222222222333\r\n0\r\n\r\n", 413, NULL},
        {"GET / HTTP/1.1\r\n\r\n", 400, NULL},
        {"GET / HTTP/1.1\r\n" H H "\r\n", 400, NULL},
        {"GET  / HTTP/1.1\r\n" H "\r\n", 400, NULL},
        {"GET / HTTP/1.1 \r\n" H "\r\n", 400, NULL},
        {"GET / HTTP/1.1\n" H "\r\n", 400, NULL},
        {"GET / HTTP/1.1\r\n" H "A: b\r\n c\r\n\r\n", 400, NULL},
        {"GET / HTTP/1.1\r\n" H ": b\r\n\r\n", 400, NULL},
        {"GET / HTTP/1.1\r\n" H "A : b\r\n\r\n", 400, NULL},
        {"GET /\xc3\xa4 HTTP/1.1\r\n" H "\r\n", 400, NULL},
        {"POST / HTTP/1.1\r\n" H "Content-Length: 1\r\nContent-Length: 1\r\n\r\na", 400, NULL},
        {"POST / HTTP/1.1\r\n" H "Content-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400, NULL},
        {"POST / HTTP/1.1\r\n" H "Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n", 501, NULL},
        {"POST / HTTP/1.1\r\n" H "Expect: x\r\n\r\n", 417, NULL},
        {"GET /aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa HTTP/1.1\r\n" H "\r\n", 414, NULL},
    };
    (void)state;
    for (size_t i = 0; i < sizeof list / sizeof *list; i++)
        for (size_t cut = 1; cut < 90; cut = cut < 10 ? cut + 1 : cut + 40) {
            struct http_parser p;
            int got = parse(&p, list[i].text, strlen(list[i].text), cut);
            if (got != list[i].result)
                fail_msg("case %zu cut %zu: expected %d, got %d", i, cut, list[i].result, got);
            if (got == 1)
                assert_true(str_is(p.request.body, list[i].body));
            http_parser_free(&p);
        }
}

static void heads_are_cut_into_names_and_values(void **state)
{
    static const char text[] = "POST /a/b?c=d&e HTTP/1.1\r\n" H "X-Empty:\r\nX-Blank: \t v \t\r\nConnection: close\r\n\r\n";
    struct http_parser p;
    (void)state;
    assert_int_equal(parse(&p, text, sizeof text - 1, sizeof text), 1);
    assert_true(str_is(p.request.path, "/a/b"));
    assert_true(str_is(p.request.query, "c=d&e"));
    assert_int_equal(p.request.method, METHOD_POST);
    assert_true(str_is(http_header_find(&p.request, "x-EMPTY"), ""));
    assert_non_null(http_header_find(&p.request, "x-empty").p);
    assert_null(http_header_find(&p.request, "x-none").p);
    assert_true(str_is(http_header_find(&p.request, "x-blank"), "v"));
    assert_false(p.keep_alive);
    http_parser_free(&p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(requests), cmocka_unit_test(heads_are_cut_into_names_and_values)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
