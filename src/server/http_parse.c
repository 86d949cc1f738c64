/* server/http_parse.c - see http_parse.h. */
#include "server/http_parse.h"

#include "base/thread.h"

#include <strings.h>

enum { BLANK_LINES_MAX = 4, REQUEST_LINE_REST = 64, FRAMING_MIN = 64 << 10, FRAMING_RATIO = 16 };

static const llhttp_settings_t *settings(void);

static void restart(struct http_parser *p)
{
    llhttp_init(&p->llhttp, HTTP_REQUEST, settings());
    p->llhttp.data = p;
    p->request = (struct http_request){0};
    p->at = HTTP_AT_HEAD;
    p->line_bytes = 0;
    p->first_line = true;
    p->blank_lines = p->spaces = 0;
    p->last = '\n';
    p->body_raw = 0;
    p->complete = p->keep_alive = p->version_11 = p->expects_continue = p->too_large = false;
}

void http_parser_open(struct http_parser *p, const struct http_limits *limits)
{
    *p = (struct http_parser){.limits = limits, .head.max = limits->head_bytes + 1, .body.max = limits->body_bytes + 1};
    restart(p);
}

void http_parser_free(struct http_parser *p)
{
    buf_free(&p->head);
    buf_free(&p->body);
}

void http_parser_next(struct http_parser *p)
{
    p->head.n = 0;
    if (p->body.cap > FRAMING_MIN) { /* a large body's memory is not kept for the next request */
        size_t max = p->body.max;
        buf_free(&p->body);
        p->body.max = max;
    }
    p->body.n = 0;
    restart(p);
}

static enum http_parsed refuse(struct http_parser *p, int status, const char *text)
{
    p->status = status;
    p->text = text;
    return HTTP_PARSED_REFUSED;
}

/* ---- what llhttp reports ---- */

static int on_url(llhttp_t *l, const char *at, size_t n)
{
    struct http_parser *p = l->data;
    struct str *path = &p->request.path;
    *path = path->p ? str_n(path->p, path->n + n) : str_n(at, n);
    return 0;
}

static int on_headers_complete(llhttp_t *l)
{
    struct http_parser *p = l->data;
    p->keep_alive = llhttp_should_keep_alive(l);
    l->upgrade = 0; /* offers to speak another protocol are not taken */
    return 0;
}

static int on_body(llhttp_t *l, const char *at, size_t n)
{
    struct http_parser *p = l->data;
    if (p->body.n + n > p->limits->body_bytes) {
        p->too_large = true;
        return -1;
    }
    buf_put(&p->body, at, n);
    return p->body.failed ? -1 : 0;
}

static int on_message_complete(llhttp_t *l)
{
    struct http_parser *p = l->data;
    p->complete = true;
    return HPE_PAUSED;
}

static const llhttp_settings_t *settings(void)
{
    static const llhttp_settings_t s = {
        .on_url = on_url, .on_headers_complete = on_headers_complete, .on_body = on_body, .on_message_complete = on_message_complete};
    return &s;
}

/* ---- head ---- */

static bool name_is(struct str name, const char *z)
{
    return name.n == strlen(z) && strncasecmp(name.p, z, name.n) == 0;
}

struct str http_header_find(const struct http_request *r, const char *name)
{
    for (uint32_t i = 0; i < r->header_count; i++)
        if (name_is(r->headers[i].name, name))
            return r->headers[i].value;
    return (struct str){0};
}

static uint32_t header_count(const struct http_request *r, const char *name)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < r->header_count; i++)
        n += name_is(r->headers[i].name, name);
    return n;
}

static struct str trim_blanks(struct str s)
{
    while (s.n && (s.p[0] == ' ' || s.p[0] == '\t'))
        s.p++, s.n--;
    while (s.n && (s.p[s.n - 1] == ' ' || s.p[s.n - 1] == '\t'))
        s.n--;
    return s;
}

/* llhttp has accepted the lines; here they are only cut. */
static bool split_headers(struct http_parser *p)
{
    struct http_request *r = &p->request;
    struct str rest = buf_view(&p->head), line, name;
    str_split(&rest, '\n', &line); /* the request line */
    while (str_split(&rest, '\n', &line) && line.n > 1) {
        line.n--; /* CR */
        if (r->header_count == HTTP_HEADERS_MAX)
            return false;
        str_split(&line, ':', &name);
        r->headers[r->header_count++] = (struct http_header){name, line.p ? trim_blanks(line) : (struct str){"", 0}};
    }
    return true;
}

static enum http_parsed check_framing(struct http_parser *p)
{
    struct http_request *r = &p->request;
    struct str coding = http_header_find(r, "transfer-encoding"), expect = http_header_find(r, "expect");
    uint32_t lengths = header_count(r, "content-length"), codings = header_count(r, "transfer-encoding");
    if (header_count(r, "host") > 1 || (p->version_11 && header_count(r, "host") == 0))
        return refuse(p, 400, "expected exactly one Host header");
    if (lengths > 1 || codings > 1 || (lengths && codings))
        return refuse(p, 400, "expected one Content-Length or Transfer-Encoding header");
    if (codings && !p->version_11)
        return refuse(p, 400, "Transfer-Encoding needs HTTP/1.1");
    if (codings && !name_is(coding, "chunked"))
        return refuse(p, 501, "the only Transfer-Encoding taken is chunked");
    if (http_header_find(r, "content-encoding").n && !name_is(http_header_find(r, "content-encoding"), "identity"))
        return refuse(p, 415, "Content-Encoding of requests is not supported");
    if (lengths && p->llhttp.content_length > p->limits->body_bytes)
        return refuse(p, 413, "the body is longer than this server takes");
    if (expect.n && !name_is(expect, "100-continue"))
        return refuse(p, 417, "the only Expect taken is 100-continue");
    p->expects_continue = expect.n && p->version_11;
    return HTTP_PARSED_HEAD;
}

static enum http_method method_of(const llhttp_t *l)
{
    switch (llhttp_get_method((llhttp_t *)(uintptr_t)l)) {
    case HTTP_GET: return METHOD_GET;
    case HTTP_HEAD: return METHOD_HEAD;
    case HTTP_POST: return METHOD_POST;
    case HTTP_DELETE: return METHOD_DELETE;
    case HTTP_OPTIONS: return METHOD_OPTIONS;
    default: return METHOD_OTHER;
    }
}

static enum http_parsed read_head(struct http_parser *p)
{
    struct http_request *r = &p->request;
    llhttp_errno_t rc = llhttp_execute(&p->llhttp, p->head.p, p->head.n);
    if (rc != HPE_OK && !(rc == HPE_PAUSED && p->complete))
        return rc == HPE_INVALID_METHOD ? refuse(p, 405, "a method that is not known here")
                                        : refuse(p, rc == HPE_INVALID_VERSION ? 505 : 400, "malformed request head");
    int major = llhttp_get_http_major(&p->llhttp), minor = llhttp_get_http_minor(&p->llhttp);
    if (major != 1 || minor > 1)
        return refuse(p, 505, "expected HTTP/1.0 or HTTP/1.1");
    p->version_11 = minor == 1;
    r->method = method_of(&p->llhttp);
    r->arrived_ns = thread_now_ns();
    str_split(&r->path, '?', &r->query);
    struct str path = r->query, query = r->path;
    r->path = path;
    r->query = query.p ? query : (struct str){"", 0};
    if (path.n > p->limits->url_bytes)
        return refuse(p, 414, "the address is longer than this server takes");
    if (path.n == 0 || path.p[0] != '/')
        return refuse(p, 400, "expected a path that begins with '/'");
    if (!split_headers(p))
        return refuse(p, 431, "too many header lines");
    p->at = HTTP_AT_BODY;
    return check_framing(p);
}

/* One byte of the head.  HTTP_PARSED_MORE: go on. */
static enum http_parsed head_byte(struct http_parser *p, char c)
{
    bool begins = p->last == '\n' && p->line_bytes == 0;
    if (c == 0 || (p->last == '\r' && c != '\n') || (c == '\n' && p->last != '\r'))
        return refuse(p, 400, "malformed line end or a NUL in the request head");
    if (p->first_line && c != '\r' && c != '\n' && (c < ' ' || c > '~'))
        return refuse(p, 400, "a byte in the request line that is not printable ASCII");
    if (p->first_line && c == ' ' && (p->last == ' ' || p->line_bytes == 0 || ++p->spaces > 2))
        return refuse(p, 400, "expected METHOD PATH VERSION with one blank between");
    if (begins && !p->first_line && (c == ' ' || c == '\t' || c == ':'))
        return refuse(p, 400, "folded header line or empty header name");
    if (p->head.n >= p->limits->head_bytes)
        return refuse(p, 431, "the request head is longer than this server takes");
    p->line_bytes++;
    if (p->first_line && p->line_bytes > p->limits->url_bytes + REQUEST_LINE_REST)
        return refuse(p, 414, "the address is longer than this server takes");
    buf_char(&p->head, c);
    p->last = c;
    if (c != '\n')
        return HTTP_PARSED_MORE;
    bool blank = p->line_bytes == 2;
    p->line_bytes = 0;
    if (blank && p->first_line) { /* left over from a sloppy client's last request */
        p->head.n = 0;
        return p->blank_lines++ < BLANK_LINES_MAX ? HTTP_PARSED_MORE : refuse(p, 400, "blank lines instead of a request");
    }
    p->first_line = false;
    return blank ? HTTP_PARSED_HEAD : HTTP_PARSED_MORE;
}

static enum http_parsed feed_head(struct http_parser *p, struct str data, size_t *used)
{
    for (size_t i = 0; i < data.n; i++) {
        enum http_parsed r = head_byte(p, data.p[i]);
        *used = i + 1;
        if (p->head.failed)
            return refuse(p, 503, "out of memory");
        if (r == HTTP_PARSED_REFUSED)
            return r;
        if (r == HTTP_PARSED_HEAD)
            return read_head(p);
    }
    return HTTP_PARSED_MORE;
}

/* ---- body ---- */

static enum http_parsed feed_body(struct http_parser *p, struct str data, size_t *used)
{
    if (!p->complete && data.n) {
        llhttp_errno_t rc = llhttp_execute(&p->llhttp, data.p, data.n);
        *used = rc == HPE_OK ? data.n : (size_t)(llhttp_get_error_pos(&p->llhttp) - data.p);
        p->body_raw += *used;
        if (p->too_large || p->body_raw > FRAMING_RATIO * (uint64_t)p->body.n + p->body.n + FRAMING_MIN)
            return refuse(p, 413, "the body is longer than this server takes");
        if (p->body.failed)
            return refuse(p, 503, "out of memory");
        if (rc != HPE_OK && !(rc == HPE_PAUSED && p->complete))
            return refuse(p, 400, "malformed chunk in the request body");
    }
    if (!p->complete)
        return HTTP_PARSED_MORE;
    p->at = HTTP_AT_END;
    p->request.body = p->body.n ? buf_view(&p->body) : (struct str){"", 0};
    return HTTP_PARSED_DONE;
}

enum http_parsed http_parser_feed(struct http_parser *p, struct str data, size_t *used)
{
    *used = 0;
    if (p->at == HTTP_AT_HEAD)
        return feed_head(p, data, used);
    return p->at == HTTP_AT_BODY ? feed_body(p, data, used) : HTTP_PARSED_DONE;
}
