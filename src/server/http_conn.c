/* server/http_conn.c - the life of a connection (drawn in http.h): read, parse, hand over, write, close. */
#include "server/http_int.h"

#include "base/mem.h"

struct write_job { /* owns its bytes, which follow it */
    uv_write_t w;
    struct http_conn *conn;
    char bytes[];
};

/* ---- the end ---- */

static void on_closed(uv_handle_t *h)
{
    struct http_conn *c = (struct http_conn *)(void *)h;
    struct http_server *s = c->server;
    if (c->prev)
        c->prev->next = c->next;
    else
        s->conns = c->next;
    if (c->next)
        c->next->prev = c->prev;
    s->counts.open--;
    tls_free(c->tls);
    http_parser_free(&c->parser);
    buf_free(&c->in);
    buf_free(&c->out);
    buf_free(&c->cipher);
    buf_free(&c->extra);
    buf_free(&c->body);
    mem_free(c);
}

void conn_close(struct http_conn *c)
{
    if (c->state == CONN_CLOSING)
        return;
    bool owed = c->state == CONN_BUSY;
    c->state = CONN_CLOSING;
    uv_close(&c->h.handle, on_closed);
    if (owed)
        c->server->handler.gone(c->server->handler.ctx, c);
}

/* ---- writing ---- */

static void after_write(struct http_conn *c)
{
    const struct http_handler *h = &c->server->handler;
    size_t queued = uv_stream_get_write_queue_size(&c->h.stream);
    if (c->state == CONN_CLOSING)
        return;
    if (c->end_after && c->state == CONN_IDLE && queued == 0) {
        if (!c->linger || uv_shutdown(&c->shutdown, &c->h.stream, NULL)) {
            conn_close(c);
            return;
        }
        c->state = CONN_LINGER;
        c->since_ms = uv_now(c->server->loop);
        conn_read_on(c);
        return;
    }
    if (c->body.n) {
        conn_body(c);
        return;
    }
    if (c->was_full && queued < HTTP_LOW_WATER) {
        c->was_full = false;
        if (c->state == CONN_BUSY)
            h->drained(h->ctx, c);
    }
}

static void on_written(uv_write_t *w, int status)
{
    struct write_job *job = (struct write_job *)(void *)w;
    struct http_conn *c = job->conn;
    mem_free(job);
    c->writes--;
    if (status)
        conn_close(c);
    else
        after_write(c);
}

/* What the socket does not take at once is copied and queued: all of it, when on_written must be told. */
static void send_raw(struct http_conn *c, struct str data)
{
    uv_buf_t b = uv_buf_init((char *)(uintptr_t)data.p, (unsigned)data.n);
    int done = c->writes || c->body.n ? UV_EAGAIN : uv_try_write(&c->h.stream, &b, 1);
    c->server->counts.bytes_out += data.n;
    if (done < 0 && done != UV_EAGAIN) {
        conn_close(c);
        return;
    }
    data = str_from(data, done > 0 ? (size_t)done : 0);
    if (data.n == 0)
        return;
    struct write_job *job = mem_try(sizeof *job + data.n);
    if (!job) {
        conn_close(c);
        return;
    }
    job->conn = c;
    memcpy(job->bytes, data.p, data.n);
    b = uv_buf_init(job->bytes, (unsigned)data.n);
    if (c->writes++ == 0)
        c->wrote_ms = uv_now(c->server->loop);
    if (uv_write(&job->w, &c->h.stream, &b, 1, on_written)) {
        mem_free(job);
        c->writes--;
        conn_close(c);
    }
}

void http_flush(struct http_conn *c)
{
    if (c->state == CONN_CLOSING)
        return;
    if (c->out.failed) { /* no memory for the answer */
        conn_close(c);
        return;
    }
    if (c->out.n && c->tls && (tls_send(c->tls, buf_view(&c->out), &c->cipher) || c->cipher.failed)) {
        conn_close(c);
        return;
    }
    struct buf *from = c->tls ? &c->cipher : &c->out;
    if (from->n)
        send_raw(c, buf_view(from));
    c->out.n = c->cipher.n = 0;
}

/* One piece for each turn of the loop: the next when this one is written. */
void conn_body(struct http_conn *c)
{
    struct str rest = str_from(buf_view(&c->body), c->body_at), piece = str_n(rest.p, rest.n < HTTP_PIECE ? rest.n : HTTP_PIECE);
    if (c->writes)
        return;
    buf_str(&c->out, piece);
    c->body_at += piece.n;
    if (piece.n == rest.n) { /* the answer has ended */
        buf_free(&c->body);
        conn_next(c);
    } else
        http_flush(c);
}

/* ---- reading ---- */

void conn_refuse(struct http_conn *c, int status, const char *text)
{
    struct buf body = {0};
    c->server->handler.refusal(c->server->handler.ctx, status, text, &body);
    c->end_after = true;
    c->state = CONN_BUSY;
    http_reply(c, status, "application/json", status == 429 || status == 503 ? STR("Retry-After: 1\r\n") : (struct str){0}, buf_view(&body));
    buf_free(&body);
}

/* False: the exchange is over or an answer is owed. */
static bool take_parsed(struct http_conn *c, enum http_parsed r)
{
    const struct http_handler *h = &c->server->handler;
    const struct http_request *q = &c->parser.request;
    if (r == HTTP_PARSED_REFUSED) {
        c->server->counts.malformed++;
        conn_refuse(c, c->parser.status, c->parser.text);
        return false;
    }
    if (r == HTTP_PARSED_HEAD) {
        c->no_body = q->method == METHOD_HEAD;
        c->state = CONN_BUSY; /* while the handler may answer */
        if (h->head(h->ctx, c, q))
            return false;
        c->state = CONN_READING;
        if (c->parser.expects_continue && !c->parser.complete) {
            buf_z(&c->out, "HTTP/1.1 100 Continue\r\n\r\n");
            http_flush(c);
        }
        return c->state != CONN_CLOSING;
    }
    if (r != HTTP_PARSED_DONE)
        return true;
    c->server->counts.requests++;
    c->state = CONN_BUSY;
    h->request(h->ctx, c, q);
    return false;
}

static void parse(struct http_conn *c)
{
    size_t at = 0, used;
    enum http_parsed r = HTTP_PARSED_MORE;
    c->parsing = true;
    while (c->state == CONN_READING || (c->state == CONN_IDLE && !c->end_after)) {
        struct str rest = str_from(buf_view(&c->in), at);
        r = http_parser_feed(&c->parser, rest, &used);
        at += used;
        if (c->state == CONN_IDLE && !http_parser_idle(&c->parser)) {
            c->state = CONN_READING;
            c->since_ms = uv_now(c->server->loop);
        } else if (c->parser.at == HTTP_AT_BODY && used)
            c->since_ms = uv_now(c->server->loop);
        if (r == HTTP_PARSED_MORE)
            break;
        if (take_parsed(c, r))
            continue;
    }
    c->parsing = false;
    if (c->state == CONN_CLOSING)
        return;
    if (c->end_after && c->state != CONN_READING && c->state != CONN_BUSY)
        at = c->in.n;
    if (at) {
        memmove(c->in.p, c->in.p + at, c->in.n - at);
        c->in.n -= at;
    }
}

static void on_read(uv_stream_t *h, ssize_t n, const uv_buf_t *b);

static void on_alloc(uv_handle_t *h, size_t n, uv_buf_t *b)
{
    struct http_conn *c = (struct http_conn *)(void *)h;
    (void)n;
    *b = uv_buf_init(c->server->chunk, sizeof c->server->chunk);
}

/* A peer that pipelines beyond the buffer is not read until its answer has ended. */
void conn_read_on(struct http_conn *c)
{
    bool want = c->state != CONN_CLOSING && !(c->state == CONN_BUSY && c->in.n > HTTP_PIPELINE_MAX);
    if (want == c->reading)
        return;
    c->reading = want;
    if (!want)
        uv_read_stop(&c->h.stream);
    else if (uv_read_start(&c->h.stream, on_alloc, on_read))
        conn_close(c);
}

static void receive(struct http_conn *c, struct str data)
{
    bool ended = false;
    c->server->counts.bytes_in += data.n;
    if (c->state == CONN_LINGER)
        return;
    if (!c->tls)
        buf_str(&c->in, data);
    else if (tls_receive(c->tls, data, &c->in, &c->cipher, &ended)) {
        http_flush(c); /* the alert */
        conn_close(c);
        return;
    }
    if (c->cipher.n)
        http_flush(c);
    if (c->in.failed || ended) {
        conn_close(c);
        return;
    }
    if (c->state != CONN_BUSY && c->state != CONN_CLOSING)
        parse(c);
    if (c->state != CONN_CLOSING)
        conn_read_on(c);
}

static void on_read(uv_stream_t *h, ssize_t n, const uv_buf_t *b)
{
    struct http_conn *c = (struct http_conn *)(void *)h;
    if (n == UV_EOF && c->state == CONN_IDLE && c->writes) { /* the last answer is still on its way */
        c->end_after = true;
        c->reading = false;
        uv_read_stop(h);
    } else if (n < 0) /* the peer's end, also while an answer is owed: nobody waits for it */
        conn_close(c);
    else if (n > 0)
        receive(c, str_n(b->base, (size_t)n));
}

void conn_next(struct http_conn *c)
{
    if (c->state == CONN_CLOSING)
        return;
    c->server->handler.answered(c->server->handler.ctx, &c->parser.request, c->status);
    c->state = CONN_IDLE;
    c->since_ms = uv_now(c->server->loop);
    c->streaming = c->chunked = c->no_body = false;
    c->user = NULL;
    c->extra.n = 0;
    http_flush(c);
    if (c->state == CONN_CLOSING)
        return;
    if (c->end_after) {
        if (c->tls) {
            tls_shutdown(c->tls, &c->cipher);
            http_flush(c);
        }
        after_write(c);
        return;
    }
    http_parser_next(&c->parser);
    if (!c->parsing) { /* a pipelined request */
        parse(c);
        if (c->state != CONN_CLOSING)
            conn_read_on(c);
    }
}

/* ---- the beginning ---- */

void conn_accept(struct http_listener *l)
{
    struct http_server *s = l->server;
    struct http_conn *c = mem_try_zero(1, sizeof *c);
    if (!c)
        return; /* stays in the backlog until there is memory */
    c->server = s;
    c->id = ++s->next_id;
    c->since_ms = c->wrote_ms = uv_now(s->loop);
    http_parser_open(&c->parser, &s->limits);
    c->in.max = s->limits.head_bytes + HTTP_READ_CHUNK * 4 + HTTP_PIPELINE_MAX;
    if (l->h.handle.type == UV_TCP) {
        uv_tcp_init(s->loop, &c->h.tcp);
        uv_tcp_nodelay(&c->h.tcp, 1);
    } else
        uv_pipe_init(s->loop, &c->h.pipe, 0);
    c->next = s->conns;
    if (c->next)
        c->next->prev = c;
    s->conns = c;
    s->counts.open++;
    s->counts.accepted++;
    if (uv_accept(&l->h.stream, &c->h.stream) || s->stopping || (l->tls && !(c->tls = tls_new(l->tls)))) {
        conn_close(c);
        return;
    }
    if (s->counts.open > s->limits.connections) {
        s->counts.refused++;
        if (c->tls)
            conn_close(c);
        else
            conn_refuse(c, 429, "too many connections");
        return;
    }
    conn_read_on(c);
}
