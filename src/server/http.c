/* server/http.c - listeners, deadlines, answers.  Connections themselves: http_conn.c. */
#include "server/http.h"

#include "base/mem.h"
#include "server/http_int.h"

#include <netdb.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

enum { BACKLOG = 1024 };

int http_open(uv_loop_t *loop, const struct http_limits *limits, const struct http_handler *handler, struct http_server **out, struct err *err)
{
    struct http_server *s = mem_try_zero(1, sizeof *s);
    *out = s;
    if (!s)
        return err_nomem(err, "HTTP server", sizeof *s);
    struct http_limits *l = &s->limits;
    s->loop = loop;
    s->handler = *handler;
    *l = *limits;
    l->head_bytes = l->head_bytes ? l->head_bytes : 32 << 10;
    l->url_bytes = l->url_bytes ? l->url_bytes : 8 << 10;
    l->body_bytes = l->body_bytes ? l->body_bytes : 32 << 20;
    l->connections = l->connections ? l->connections : HTTP_CONNECTIONS_DEFAULT;
    l->head_ms = l->head_ms ? l->head_ms : 10000;
    l->body_ms = l->body_ms ? l->body_ms : 30000;
    l->idle_ms = l->idle_ms ? l->idle_ms : 75000;
    l->write_ms = l->write_ms ? l->write_ms : 30000;
    return 0;
}

/* ---- listening ---- */

static void on_listener_closed(uv_handle_t *h)
{
    struct http_listener *l = (struct http_listener *)(void *)h;
    if (l->unix_path)
        unlink(l->unix_path);
    mem_free(l->unix_path);
    mem_free(l);
}

static void on_connection(uv_stream_t *h, int status)
{
    if (status == 0)
        conn_accept((struct http_listener *)(void *)h);
}

static struct http_listener *listener_new(struct http_server *s, struct err *err)
{
    struct http_listener *l = mem_try_zero(1, sizeof *l);
    if (!l) {
        err_nomem(err, "listener", sizeof *l);
        return NULL;
    }
    l->server = s;
    return l;
}

static void listener_add(struct http_listener *l)
{
    l->next = l->server->listeners;
    l->server->listeners = l;
}

static int resolve(const char *host, struct sockaddr_storage *out, struct err *err)
{
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_PASSIVE}, *list = NULL;
    int rc = getaddrinfo(host, NULL, &hints, &list);
    if (rc)
        return err_set(err, ERR_NET, "host '%s': %s", host, gai_strerror(rc));
    memcpy(out, list->ai_addr, list->ai_addrlen);
    freeaddrinfo(list);
    return 0;
}

int http_listen_tcp(struct http_server *s, const char *host, uint16_t port, struct tls_context *tls, uint16_t *port_out, struct err *err)
{
    struct sockaddr_storage addr = {0};
    int rc = resolve(host, &addr, err), n = (int)sizeof addr;
    struct http_listener *l = rc ? NULL : listener_new(s, err);
    if (!l)
        return rc ? rc : ERR_NOMEM;
    if (addr.ss_family == AF_INET6)
        ((struct sockaddr_in6 *)(void *)&addr)->sin6_port = htons(port);
    else
        ((struct sockaddr_in *)(void *)&addr)->sin_port = htons(port);
    l->tls = tls;
    uv_tcp_init(s->loop, &l->h.tcp);
    listener_add(l);
    rc = uv_tcp_bind(&l->h.tcp, (const struct sockaddr *)&addr, 0);
    rc = rc ? rc : uv_listen(&l->h.stream, BACKLOG, on_connection);
    if (rc)
        return err_set(err, ERR_NET, "cannot listen on %s port %u: %s", host, port, uv_strerror(rc));
    uv_tcp_getsockname(&l->h.tcp, (struct sockaddr *)&addr, &n);
    *port_out = ntohs(addr.ss_family == AF_INET6 ? ((struct sockaddr_in6 *)(void *)&addr)->sin6_port
                                                 : ((struct sockaddr_in *)(void *)&addr)->sin_port);
    return 0;
}

int http_listen_unix(struct http_server *s, const char *path, struct err *err)
{
    struct stat st;
    struct http_listener *l = listener_new(s, err);
    if (!l)
        return ERR_NOMEM;
    if (lstat(path, &st) == 0 && S_ISSOCK(st.st_mode))
        unlink(path); /* of a server that was killed */
    l->unix_path = mem_try_strndup(path, strlen(path));
    uv_pipe_init(s->loop, &l->h.pipe, 0);
    listener_add(l);
    mode_t old = umask(0177); /* the owner's only */
    int rc = uv_pipe_bind(&l->h.pipe, path);
    rc = rc ? rc : uv_listen(&l->h.stream, BACKLOG, on_connection);
    umask(old);
    return rc ? err_set(err, ERR_NET, "cannot listen on '%s': %s", path, uv_strerror(rc)) : 0;
}

void http_stop(struct http_server *s)
{
    s->stopping = true;
    while (s->listeners) {
        struct http_listener *l = s->listeners;
        s->listeners = l->next;
        uv_close(&l->h.handle, on_listener_closed);
    }
    for (struct http_conn *c = s->conns, *next; c; c = next) {
        next = c->next;
        c->end_after = true;
        if (c->state == CONN_IDLE && c->writes == 0)
            conn_close(c);
    }
}

void http_abort(struct http_server *s)
{
    for (struct http_conn *c = s->conns, *next; c; c = next) {
        next = c->next;
        conn_close(c);
    }
}

bool http_idle(const struct http_server *s)
{
    return s->stopping && !s->conns;
}

void http_close(struct http_server *s)
{
    mem_free(s);
}

const struct http_counts *http_counts(const struct http_server *s)
{
    return &s->counts;
}

/* ---- deadlines ---- */

static bool overdue(const struct http_server *s, struct http_conn *c, uint64_t now)
{
    const struct http_limits *l = &s->limits;
    size_t queued = uv_stream_get_write_queue_size(&c->h.stream);
    if (queued == 0 || queued < c->queue_seen)
        c->wrote_ms = now;
    c->queue_seen = queued;
    if (queued && now - c->wrote_ms > l->write_ms)
        return true;
    if (c->state == CONN_LINGER)
        return now - c->since_ms > HTTP_LINGER_MS;
    if (c->state == CONN_IDLE)
        return now - c->since_ms > l->idle_ms;
    if (c->state == CONN_READING)
        return now - c->since_ms > (c->parser.at == HTTP_AT_HEAD ? l->head_ms : l->body_ms);
    return false;
}

void http_tick(struct http_server *s)
{
    uint64_t now = uv_now(s->loop);
    for (struct http_conn *c = s->conns, *next; c; c = next) {
        next = c->next;
        if (c->state == CONN_CLOSING || !overdue(s, c, now))
            continue;
        if (c->state == CONN_READING && c->writes == 0)
            conn_refuse(c, 408, "the request did not come in time");
        else
            conn_close(c);
    }
}

/* ---- answers ---- */

const char *http_status_text(int status)
{
    static const struct {
        int status;
        const char *text;
    } list[] = {{200, "OK"}, {204, "No Content"}, {400, "Bad Request"}, {401, "Unauthorized"}, {403, "Forbidden"}, {404, "Not Found"},
                {405, "Method Not Allowed"}, {408, "Request Timeout"}, {409, "Conflict"}, {413, "Content Too Large"}, {414, "URI Too Long"},
                {415, "Unsupported Media Type"}, {417, "Expectation Failed"}, {421, "Misdirected Request"}, {422, "Unprocessable Content"},
                {429, "Too Many Requests"}, {431, "Request Header Fields Too Large"}, {499, "Client Closed Request"},
                {500, "Internal Server Error"}, {501, "Not Implemented"}, {502, "Bad Gateway"}, {503, "Service Unavailable"},
                {505, "HTTP Version Not Supported"}, {529, "Overloaded"}};
    for (size_t i = 0; i < sizeof list / sizeof *list; i++)
        if (list[i].status == status)
            return list[i].text;
    return "Status";
}

static void put_head(struct http_conn *c, int status, const char *type, struct str headers)
{
    c->status = status;
    buf_printf(&c->out, "HTTP/1.1 %d %s\r\n", status, http_status_text(status));
    if (type)
        buf_printf(&c->out, "Content-Type: %s\r\n", type);
    buf_str(&c->out, headers);
    buf_str(&c->out, buf_view(&c->extra));
    if (c->end_after || c->server->stopping || !c->parser.keep_alive) {
        c->end_after = true;
        buf_z(&c->out, "Connection: close\r\n");
    } else if (!c->parser.version_11)
        buf_z(&c->out, "Connection: keep-alive\r\n");
}

void http_reply(struct http_conn *c, int status, const char *type, struct str headers, struct str body)
{
    if (c->parser.at != HTTP_AT_END)
        c->end_after = c->linger = true; /* the rest of the request is not read */
    put_head(c, status, type, headers);
    if (status != 204)
        buf_printf(&c->out, "Content-Length: %zu\r\n", body.n);
    buf_z(&c->out, "\r\n");
    if (!c->no_body)
        buf_str(&c->out, body);
    conn_next(c);
}

void http_reply_take(struct http_conn *c, int status, const char *type, struct str headers, struct buf *body)
{
    if (body->n <= HTTP_PIECE || c->no_body || c->parser.at != HTTP_AT_END) {
        http_reply(c, status, type, headers, buf_view(body));
        buf_free(body);
        return;
    }
    put_head(c, status, type, headers);
    buf_printf(&c->out, "Content-Length: %zu\r\n\r\n", body->n);
    c->body = *body;
    c->body_at = 0;
    *body = (struct buf){0};
    c->user = NULL; /* whoever answered has nothing more to do with it */
    conn_body(c);
}

void http_body_take(struct http_conn *c, struct buf *out)
{
    *out = c->parser.body;
    c->parser.body = (struct buf){.max = out->max};
    c->parser.request.body = (struct str){"", 0};
}

void http_stream_begin(struct http_conn *c, int status, const char *type, struct str headers)
{
    c->streaming = true;
    c->chunked = c->parser.version_11;
    if (!c->chunked)
        c->end_after = true; /* its end is the end of the body */
    put_head(c, status, type, headers);
    buf_z(&c->out, c->chunked ? "Transfer-Encoding: chunked\r\n\r\n" : "\r\n");
}

void http_stream_put(struct http_conn *c, struct str data)
{
    if (data.n == 0 || c->no_body)
        return;
    if (c->chunked)
        buf_printf(&c->out, "%zx\r\n", data.n);
    buf_str(&c->out, data);
    if (c->chunked)
        buf_z(&c->out, "\r\n");
}

void http_stream_end(struct http_conn *c)
{
    if (c->chunked && !c->no_body)
        buf_z(&c->out, "0\r\n\r\n");
    conn_next(c);
}

bool http_full(const struct http_conn *c)
{
    bool full = c->out.n + uv_stream_get_write_queue_size(&c->h.stream) > HTTP_HIGH_WATER;
    ((struct http_conn *)(uintptr_t)c)->was_full |= full;
    return full;
}

void http_extra_set(struct http_conn *c, struct str headers)
{
    c->extra.n = 0;
    buf_str(&c->extra, headers);
}

void http_user_set(struct http_conn *c, void *user)
{
    c->user = user;
}

void *http_user(const struct http_conn *c)
{
    return c->user;
}

uint64_t http_conn_id(const struct http_conn *c)
{
    return c->id;
}
