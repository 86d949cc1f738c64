/* server/server.c - the loop: listeners, the wake-up from the library, a tick for deadlines, signals, the end.
 *
 *     RUNNING -- SIGTERM or SIGINT --> DRAINING -- all answered, or a second signal, or drain_s passed --> CLOSING -> server_run returns */
#include "server/server.h"

#include "base/log.h"
#include "base/mem.h"
#include "base/thread.h"
#include "server/api_responses.h"
#include "server/notify.h"
#include "server/routes.h"
#include "server/tls.h"

#include <signal.h>
#include <stdio.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum { TICK_MS = 250, DRAIN_DEFAULT_S = 30, SPARE_FILES = 64 };

static void on_wake(uv_async_t *a)
{
    gen_wake(a->data);
}

/* Right before the loop sleeps: what this thread has worked since the last time is how long everybody else waited. */
static void on_turn(uv_prepare_t *p)
{
    struct server *s = p->data;
    int64_t now = thread_cpu_ns(), worked = now - s->turn_cpu_ns;
    s->turn_max_ns = worked > s->turn_max_ns ? worked : s->turn_max_ns;
    s->turn_cpu_ns = now;
}

static void close_handles(struct server *s)
{
    uv_close((uv_handle_t *)&s->turn, NULL);
    uv_close((uv_handle_t *)&s->wake, NULL);
    uv_close((uv_handle_t *)&s->tick, NULL);
    for (int i = 0; i < 2; i++)
        uv_close((uv_handle_t *)&s->signals[i], NULL);
}

static void note_health(struct server *s)
{
    struct rh_stats t;
    rh_stats(s->model, &t);
    health_note(&s->health, &t, uv_now(&s->loop));
}

static void on_tick(uv_timer_t *timer)
{
    struct server *s = timer->data;
    uint64_t now = uv_now(&s->loop), limit = 1000ull * (s->cfg->drain_s ? s->cfg->drain_s : DRAIN_DEFAULT_S);
    note_health(s);
    http_tick(s->http);
    gen_tick(s);
    notify_tick(s);
    if (!s->draining)
        return;
    if (now - s->drain_since_ms > limit)
        http_abort(s->http);
    if (http_idle(s->http) && !s->gen_count && !s->job_count && !s->body_count)
        uv_timer_stop(timer), close_handles(s);
}

static void on_signal(uv_signal_t *signal, int number)
{
    struct server *s = signal->data;
    (void)number;
    if (s->draining) {
        log_put(LOG_NOTICE, "second signal: closing");
        http_abort(s->http);
        return;
    }
    log_put(LOG_NOTICE, "draining: %u generations under way", s->gen_count);
    s->draining = true;
    s->drain_since_ms = uv_now(&s->loop);
    notify_send(s, "STOPPING=1");
    http_stop(s->http);
    uv_timer_start(&s->tick, on_tick, 0, TICK_MS / 5);
}

/* ---- opening ---- */

static bool is_loopback(const char *host)
{
    return !strcmp(host, "localhost") || !strcmp(host, "::1") || !strncmp(host, "127.", 4);
}

static int listen_all(struct server *s, struct err *err)
{
    const struct server_config *cfg = s->cfg;
    const char *host = cfg->host ? cfg->host : "127.0.0.1";
    char address[512];
    if (host[0]) {
        if (!is_loopback(host) && cfg->key_count == 0 && !cfg->open_bind)
            return err_set(err, ERR_ARGUMENT, "refusing to listen on %s without an API key (--api-key-file, or --no-key to let everyone in)", host);
        int rc = http_listen_tcp(s->http, host, cfg->port, s->tls, &s->port, err);
        if (rc)
            return rc;
        snprintf(address, sizeof address, strchr(host, ':') ? "%s://[%s]:%u" : "%s://%s:%u", s->tls ? "https" : "http", host, s->port);
        if (cfg->listening)
            cfg->listening(cfg->listening_ctx, address);
    }
    if (cfg->unix_path) {
        int rc = http_listen_unix(s->http, cfg->unix_path, err);
        if (rc)
            return rc;
        snprintf(address, sizeof address, "unix:%s", cfg->unix_path);
        if (cfg->listening)
            cfg->listening(cfg->listening_ctx, address);
    }
    return host[0] || cfg->unix_path ? 0 : err_set(err, ERR_ARGUMENT, "expected --host or --unix to listen on");
}

static void take_model(struct server *s)
{
    struct rh_stats t;
    struct err err = {0};
    rh_stats(s->model, &t);
    s->context = t.positions_max;
    if (rh_model_info_json(s->model, 0, &s->info_json, NULL))
        s->info_json = NULL;
    yyjson_doc *doc = s->info_json ? json_parse(str_of(s->info_json), "info", &err) : NULL;
    yyjson_val *info = yyjson_doc_get_root(doc);
    const char *path = yyjson_get_str(yyjson_obj_get(info, "path"));
    struct stat st;
    s->vocab = (uint32_t)yyjson_get_uint(yyjson_obj_get(yyjson_obj_get(info, "tokenizer"), "vocab"));
    s->file_bytes = yyjson_get_uint(yyjson_obj_get(info, "file_bytes")); /* of the tensors; one file has more in it */
    s->file_s = s->started_s;
    if (path && stat(path, &st) == 0) {
        s->file_s = (int64_t)st.st_mtime;
        if (S_ISREG(st.st_mode) && (uint64_t)st.st_size > s->file_bytes)
            s->file_bytes = (uint64_t)st.st_size;
    }
    json_free(doc);
    if (s->cfg->sampling)
        s->sampling = *s->cfg->sampling;
    else
        rh_sampling_default(s->model, &s->sampling);
}

static void init_handles(struct server *s)
{
    static const int numbers[2] = {SIGTERM, SIGINT};
    uv_async_init(&s->loop, &s->wake, on_wake);
    uv_timer_init(&s->loop, &s->tick);
    uv_prepare_init(&s->loop, &s->turn);
    s->wake.data = s->tick.data = s->turn.data = s;
    s->turn_cpu_ns = thread_cpu_ns();
    uv_prepare_start(&s->turn, on_turn);
    uv_timer_start(&s->tick, on_tick, TICK_MS, TICK_MS);
    for (int i = 0; i < 2; i++) {
        uv_signal_init(&s->loop, &s->signals[i]);
        s->signals[i].data = s;
        uv_signal_start(&s->signals[i], on_signal, numbers[i]);
    }
}

static int open_http(struct server *s, struct err *err)
{
    const struct server_config *cfg = s->cfg;
    struct http_handler handler = routes_handler(s);
    struct http_limits limits = {.body_bytes = cfg->body_bytes, .connections = cfg->connections, .idle_ms = 1000 * cfg->idle_s,
                                 .head_ms = 1000 * cfg->header_s, .write_ms = 1000 * cfg->write_s};
    int rc = http_open(&s->loop, &limits, &handler, &s->http, err);
    if (rc == 0 && !cfg->tls_cert != !cfg->tls_key)
        rc = err_set(err, ERR_ARGUMENT, "TLS: expected both --tls-cert and --tls-key");
    if (rc == 0 && cfg->tls_cert)
        rc = tls_context_open(cfg->tls_cert, cfg->tls_key, &s->tls, err);
    return rc ? rc : listen_all(s, err);
}

/* As many files as connections and their surroundings take, where the system allows it without asking. */
static void raise_files(uint32_t connections)
{
    struct rlimit limit;
    rlim_t want = (rlim_t)(connections ? connections : HTTP_CONNECTIONS_DEFAULT) + SPARE_FILES;
    if (getrlimit(RLIMIT_NOFILE, &limit) || limit.rlim_cur >= want)
        return;
    limit.rlim_cur = limit.rlim_max == RLIM_INFINITY || limit.rlim_max > want ? want : limit.rlim_max;
    if (setrlimit(RLIMIT_NOFILE, &limit) || limit.rlim_cur < want)
        log_put(LOG_WARN, "%llu open files are allowed, %llu connections may want %llu", (unsigned long long)limit.rlim_cur,
                (unsigned long long)want - SPARE_FILES, (unsigned long long)want);
}

int server_run(const struct server_config *cfg, struct err *err)
{
    struct server *s = mem_try_zero(1, sizeof *s);
    if (!s)
        return err_nomem(err, "server", sizeof *s);
    s->cfg = cfg;
    s->model = cfg->model;
    s->started_s = (int64_t)time(NULL);
    s->notify_fd = -1;
    raise_files(cfg->connections);
    int rc = uv_loop_init(&s->loop);
    if (rc) {
        mem_free(s);
        return err_set(err, ERR_IO, "event loop: %s", uv_strerror(rc));
    }
    init_handles(s);
    take_model(s);
    journal_open(&s->log, &s->loop, STDERR_FILENO);
    journal_open(&s->trace, &s->loop, -1);
    rc = cfg->trace_path ? journal_open_file(&s->trace, &s->loop, cfg->trace_path, err) : 0;
    if (rc == 0 && cfg->trace_path)
        journal_put(&s->trace, STR("["));
    if (rc == 0)
        rc = open_http(s, err);
    if (rc == 0) {
        notify_open(s);
        notify_send(s, "READY=1");
    } else {
        if (s->http)
            http_stop(s->http);
        close_handles(s);
    }
    uv_run(&s->loop, UV_RUN_DEFAULT);
    uv_loop_close(&s->loop);
    notify_close(s);
    if (s->http)
        http_close(s->http);
    journal_close(&s->log);
    journal_close(&s->trace);
    responses_close(s);
    tls_context_close(s->tls);
    rh_free(s->info_json);
    mem_free(s);
    return rc;
}
