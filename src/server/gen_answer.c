/* server/gen_answer.c - what the peer of a generation is sent: heads, events, errors, whole answers. */
#include "server/gen_int.h"
#include "server/volatile.h"

enum { AT_ONCE_MAX = 64 << 10 };

void gen_flush(struct gen *g)
{
    if (g->out.n == 0 && !g->out.failed)
        return;
    if (g->out.failed)
        g->out.n = 0;
    http_stream_put(g->conn, buf_view(&g->out));
    g->out.n = 0;
    g->sent_ms = uv_now(&g->s->loop);
    http_flush(g->conn);
}

void gen_event(struct gen *g, const char *name, struct str json)
{
    if (name)
        buf_printf(&g->out, "event: %s\n", name);
    buf_z(&g->out, "data: ");
    buf_str(&g->out, json);
    buf_z(&g->out, "\n\n");
}

static void put_cache_header(struct gen *g, struct buf *h)
{
    buf_printf(h, "X-Rhapsode-Cache: hit=%u", g->cache.cached_tokens);
    if (g->cache.reason)
        buf_printf(h, " miss=\"%s\"", g->cache.reason);
    if (g->cache.reason && g->cache.stored_id >= 0)
        buf_printf(h, " known=%u stored=%lld prompt=%lld", g->cache.known_tokens, (long long)g->cache.stored_id, (long long)g->cache.prompt_id);
    buf_z(h, "\r\n");
}

static void put_left_away(unsigned what, struct buf *h)
{
    static const struct {
        unsigned bit;
        const char *name;
    } list[] = {{VOLATILE_BILLING, "billing"}, {VOLATILE_TIME, "time"}, {VOLATILE_DATE, "date"}};
    const char *comma = "X-Rhapsode-Left-Away: ";
    for (int i = 0; i < 3; i++)
        if (what & list[i].bit) {
            buf_printf(h, "%s%s", comma, list[i].name);
            comma = ",";
        }
    buf_z(h, "\r\n");
}

static void put_headers(struct gen *g, struct buf *h)
{
    buf_printf(h, "X-Request-Id: %s\r\n", g->id);
    if (g->api->shape == API_ANTHROPIC)
        buf_printf(h, "request-id: %s\r\n", g->id);
    if (g->started)
        put_cache_header(g, h);
    if (g->ignored)
        buf_printf(h, "X-Rhapsode-Ignored: %s\r\n", g->ignored);
    if (g->dropped)
        buf_printf(h, "X-Rhapsode-Truncated: %u\r\n", g->dropped);
    if (g->left_away)
        put_left_away(g->left_away, h);
    if (g->stream)
        buf_z(h, "Cache-Control: no-cache\r\nX-Accel-Buffering: no\r\n");
}

void gen_begin(struct gen *g)
{
    struct buf h = {0};
    if (g->begun)
        return;
    g->begun = true;
    put_headers(g, &h);
    http_stream_begin(g->conn, 200, g->api->stream_type, buf_view(&h));
    buf_free(&h);
    g->s->metrics.statuses[2]++;
    g->api->begin(g);
}

void gen_answer_error(struct gen *g, const struct api_error *e)
{
    struct http_conn *conn = g->conn;
    if (g->begun) {
        g->api->failed(g, e);
        gen_flush(g);
        gen_end(g, e->text);
        http_stream_end(conn);
        return;
    }
    enum api_shape shape = g->api->shape;
    struct server *s = g->s;
    gen_end(g, e->text);
    api_error_reply(s, conn, shape, e);
}

/* ---- whole answers ---- */

static bool complete(const struct gen *g) /* an answer with parts missing is none */
{
    bool failed = g->body.failed;
    for (uint32_t i = 0; i < g->choice_count; i++) {
        const struct gen_choice *c = &g->choices[i];
        failed |= c->text.failed || c->reasoning.failed || c->logprobs.failed || c->ids.failed;
    }
    for (uint32_t i = 0; g->prompts && i < g->request_count; i++)
        failed |= g->prompts[i].ids == NULL;
    return !failed;
}

static void send_whole(struct gen *g)
{
    struct http_conn *conn = g->conn;
    struct buf headers = {0}, body = g->body;
    bool good = complete(g);
    put_headers(g, &headers);
    if (good && !headers.failed) {
        if (g->api->written)
            g->api->written(g);
        g->body = (struct buf){0};
        g->s->metrics.statuses[2]++;
        gen_end(g, NULL);
        http_reply_take(conn, 200, "application/json", buf_view(&headers), &body);
    } else {
        struct api_error e = {0};
        api_fail(&e, 503, NULL, "", "out of memory for the answer");
        gen_answer_error(g, &e);
    }
    buf_free(&headers);
}

static void on_write(uv_work_t *w)
{
    struct gen *g = w->data;
    g->api->reply(g, &g->body);
}

static void on_written(uv_work_t *w, int status)
{
    struct gen *g = w->data;
    (void)status;
    g->writing = false;
    if (g->conn)
        send_whole(g);
    else
        gen_end(g, NULL); /* the peer has left meanwhile */
}

/* About how many bytes the answer has. */
static uint64_t weight(const struct gen *g)
{
    uint64_t sum = g->prompt_ids.n + (g->score_count << 6);
    for (uint32_t i = 0; i < g->choice_count; i++) {
        const struct gen_choice *c = &g->choices[i];
        sum += c->text.n + c->reasoning.n + c->logprobs.n + c->ids.n + 12 * c->embedding_n;
        sum += g->show_logprobs ? 64ull * c->usage.completion_tokens * (g->tops + 1ull) : 0;
        for (uint32_t k = 0; k < c->tool_count; k++)
            sum += c->tools[k].arguments.n;
    }
    return sum;
}

/* A large one is written by a worker, so that nobody else waits for it. */
void gen_answer(struct gen *g)
{
    struct http_conn *conn = g->conn;
    if (g->stream) {
        gen_begin(g); /* cancelled before it started */
        g->api->end(g);
        gen_flush(g);
        gen_end(g, NULL);
        http_stream_end(conn);
        return;
    }
    if (weight(g) > AT_ONCE_MAX) {
        g->writing = true;
        g->work.data = g;
        uv_queue_work(&g->s->loop, &g->work, on_write, on_written);
        return;
    }
    g->api->reply(g, &g->body);
    send_whole(g);
}
