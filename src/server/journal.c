/* server/journal.c - see journal.h. */
#include "server/journal.h"

#include "base/thread.h"
#include "server/gen.h"

#include <fcntl.h>
#include <stdio.h>
#include <time.h>
#include <unistd.h>

void journal_open(struct journal *j, uv_loop_t *loop, int fd)
{
    *j = (struct journal){.loop = loop, .fd = fd, .waiting.max = JOURNAL_MAX};
}

int journal_open_file(struct journal *j, uv_loop_t *loop, const char *path, struct err *err)
{
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    journal_open(j, loop, fd);
    j->own_fd = fd >= 0;
    return fd >= 0 ? 0 : err_set(err, ERR_IO, "cannot write '%s'", path);
}

static void start(struct journal *j);

static void on_written(uv_fs_t *w)
{
    struct journal *j = w->data;
    ssize_t n = w->result;
    uv_fs_req_cleanup(w);
    j->writing = false;
    if (n <= 0) { /* nobody reads it any more */
        j->fd = -1;
        return;
    }
    j->flown += (size_t)n;
    start(j);
}

static void start(struct journal *j)
{
    if (j->writing || j->fd < 0)
        return;
    if (j->flown == j->flying.n) {
        struct buf empty = j->flying;
        empty.n = 0;
        empty.max = JOURNAL_MAX;
        j->flying = j->waiting;
        j->waiting = empty;
        j->flown = 0;
    }
    if (j->flying.n == 0)
        return;
    uv_buf_t b = uv_buf_init(j->flying.p + j->flown, (unsigned)(j->flying.n - j->flown));
    j->write.data = j;
    j->writing = uv_fs_write(j->loop, &j->write, j->fd, &b, 1, -1, on_written) == 0;
}

void journal_put(struct journal *j, struct str line)
{
    if (j->fd < 0)
        return;
    if (j->waiting.n + line.n + 1 > JOURNAL_MAX || j->waiting.failed) {
        j->dropped++;
        return;
    }
    buf_str(&j->waiting, line);
    buf_char(&j->waiting, '\n');
    start(j);
}

void journal_close(struct journal *j)
{
    struct str rest[2] = {str_from(buf_view(&j->flying), j->flown), buf_view(&j->waiting)};
    for (int i = 0; i < 2 && j->fd >= 0; i++)
        if (rest[i].n)
            (void)!write(j->fd, rest[i].p, rest[i].n);
    buf_free(&j->flying);
    buf_free(&j->waiting);
    if (j->own_fd && j->fd >= 0)
        close(j->fd);
    j->fd = -1;
}

/* ---- lines ---- */

static void put_time(struct buf *b)
{
    struct timespec t;
    struct tm utc;
    char text[64];
    clock_gettime(CLOCK_REALTIME, &t);
    gmtime_r(&t.tv_sec, &utc);
    strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%S", &utc);
    buf_printf(b, "{\"time\":\"%s.%03ldZ\"", text, t.tv_nsec / 1000000);
}

static void put_str(struct buf *b, const char *key, struct str s)
{
    buf_printf(b, ",\"%s\":", key);
    buf_json_str(b, s);
}

void journal_answer(struct server *s, const struct http_request *r, int status)
{
    static const char *const names[] = {"GET", "HEAD", "POST", "DELETE", "OPTIONS", "other"};
    struct buf b = {0};
    if (!s->cfg->log_requests)
        return;
    put_time(&b);
    buf_printf(&b, ",\"event\":\"answer\",\"method\":\"%s\"", names[r->method]);
    put_str(&b, "path", r->path);
    buf_printf(&b, ",\"status\":%d,\"ms\":%.3f}", status, r->arrived_ns ? (double)(thread_now_ns() - r->arrived_ns) / 1e6 : 0.0);
    if (!b.failed)
        journal_put(&s->log, buf_view(&b));
    buf_free(&b);
}

static void put_span(struct buf *b, const struct gen *g, const char *name, double from_ms, double ms)
{
    buf_printf(b, "{\"name\":\"%s\",\"ph\":\"X\",\"pid\":1,\"tid\":%llu,\"ts\":%.1f,\"dur\":%.1f,\"args\":{\"id\":\"%s\"}},\n", name,
               (unsigned long long)g->number, (double)g->arrived_ns / 1e3 + from_ms * 1e3, ms * 1e3, g->id);
}

/* Phases one after the other, as the library measured them; what is left before them is preparation. */
static void trace(const struct gen *g, double total_ms)
{
    const struct rh_timings *t = &g->timings;
    struct buf b = {0};
    double known = t->queue_ms + t->prefill_ms + t->decode_ms, prepare = total_ms > known ? total_ms - known : 0;
    put_span(&b, g, "request", 0, total_ms);
    put_span(&b, g, "prepare", 0, prepare);
    put_span(&b, g, "queue", prepare, t->queue_ms);
    put_span(&b, g, "prefill", prepare + t->queue_ms, t->prefill_ms);
    put_span(&b, g, "decode", prepare + t->queue_ms + t->prefill_ms, t->decode_ms);
    if (b.n && !b.failed)
        journal_put(&g->s->trace, str_n(b.p, b.n - 1));
    buf_free(&b);
}

void journal_generation(const struct gen *g, const char *error)
{
    const struct server *s = g->s;
    const struct rh_timings *t = &g->timings;
    double total_ms = (double)(thread_now_ns() - g->arrived_ns) / 1e6;
    struct buf b = {0};
    if (s->trace.fd >= 0)
        trace(g, total_ms);
    if (!s->cfg->log_requests)
        return;
    put_time(&b);
    put_str(&b, "event", STR("generation"));
    put_str(&b, "id", str_of(g->id));
    if (g->key_name)
        put_str(&b, "key", str_of(g->key_name));
    buf_printf(&b, ",\"stream\":%s,\"choices\":%u,\"prompt_tokens\":%u,\"cached_tokens\":%u,\"completion_tokens\":%u", g->stream ? "true" : "false",
               g->choice_count, g->usage.prompt_tokens, g->usage.cached_tokens, gen_completion_tokens(g));
    put_str(&b, "finish", str_of(error ? "error" : g->done_count < g->choice_count ? "left" : gen_finish(&g->choices[0], "stop", "length", "tool_calls")));
    if (error)
        put_str(&b, "error", str_of(error));
    if (g->cache.reason)
        put_str(&b, "miss", str_of(g->cache.reason));
    buf_printf(&b, ",\"queue_ms\":%.3f,\"prefill_ms\":%.3f,\"decode_ms\":%.3f,\"first_ms\":%.3f,\"total_ms\":%.3f", t->queue_ms, t->prefill_ms,
               t->decode_ms, g->first_ns ? (double)(g->first_ns - g->arrived_ns) / 1e6 : 0.0, total_ms);
    if (s->cfg->log_prompts && g->logged)
        put_str(&b, "prompt", str_of(g->logged));
    buf_char(&b, '}');
    if (!b.failed)
        journal_put((struct journal *)(uintptr_t)&s->log, buf_view(&b));
    buf_free(&b);
}
