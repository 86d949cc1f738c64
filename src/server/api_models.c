/* server/api_models.c - what is served and how it fares: /v1/models, /health, /ready, /metrics, /stats, /v1/cancel. */
#include "server/api_fields.h"
#include "server/body.h"
#include "server/gen.h"
#include "server/routes.h"

static void put_model(const struct server *s, const char *name, struct buf *b)
{
    buf_z(b, "{\"id\":");
    buf_json_str(b, str_of(name));
    buf_printf(b, ",\"object\":\"model\",\"created\":%lld,\"owned_by\":\"rhapsode\",\"max_model_len\":%u,\"root\":", (long long)s->started_s, s->context);
    buf_json_str(b, str_of(s->cfg->model_id));
    buf_z(b, ",\"parent\":null}");
}

static int reply(struct call *c, int status, struct buf *b)
{
    call_reply_json(c, status, (struct str){0}, b);
    buf_free(b);
    return 0;
}

/* For whoever opens the address in a browser. */
int route_root(struct call *c, struct api_error *e)
{
    static const struct {
        const char *method, *path, *text;
    } list[] = {
#define ROOT_ROW(method, path, prefix, who, shape, fn, text) {#method, path, text},
        ROUTE_LIST(ROOT_ROW)
#undef ROOT_ROW
    };
    struct buf b = {0};
    (void)e;
    buf_z(&b, "{\"name\":\"rhapsode\",\"version\":\"" RH_VERSION "\"");
    if (c->s->cfg->key_count == 0) { /* else it is for those who have one */
        buf_z(&b, ",\"model\":");
        buf_json_str(&b, str_of(c->s->cfg->model_id));
    }
    buf_z(&b, ",\"document\":\"/openapi.json\",\"endpoints\":{");
    for (size_t i = 0; i < sizeof list / sizeof *list; i++) {
        buf_printf(&b, "%s\"%s %s\":", i ? ",\n" : "\n", list[i].method, list[i].path);
        buf_json_str(&b, str_of(list[i].text));
    }
    buf_z(&b, "}}\n");
    return reply(c, 200, &b);
}

int route_models(struct call *c, struct api_error *e)
{
    struct buf b = {0};
    (void)e;
    buf_z(&b, "{\"object\":\"list\",\"data\":[");
    put_model(c->s, c->s->cfg->model_id, &b);
    for (size_t i = 0; i < c->s->cfg->alias_count; i++) {
        buf_char(&b, ',');
        put_model(c->s, c->s->cfg->aliases[i], &b);
    }
    buf_z(&b, "]}");
    return reply(c, 200, &b);
}

int route_model(struct call *c, struct api_error *e)
{
    struct buf b = {0};
    if (!model_is_served(c->s, str_of(c->tail)))
        return api_fail(e, 404, "model_not_found", "", "model '%.200s' is not served here; '%.200s' is", c->tail, c->s->cfg->model_id);
    put_model(c->s, c->tail, &b);
    return reply(c, 200, &b);
}

bool server_healthy(const struct server *s)
{
    return s->health.state == HEALTH_WELL;
}

int route_health(struct call *c, struct api_error *e)
{
    struct buf b = {0};
    (void)e;
    bool good = server_healthy(c->s);
    buf_printf(&b, "{\"status\":\"%s\"}", health_text(&c->s->health));
    return reply(c, good ? 200 : 503, &b);
}

int route_ready(struct call *c, struct api_error *e)
{
    struct buf b = {0};
    (void)e;
    bool good = server_healthy(c->s) && !c->s->draining;
    buf_printf(&b, "{\"status\":\"%s\"}", good ? "ready" : c->s->draining ? "draining" : health_text(&c->s->health));
    return reply(c, good ? 200 : 503, &b);
}

int route_metrics(struct call *c, struct api_error *e)
{
    struct buf b = {0};
    metrics_put(c->s, &b);
    if (b.failed) {
        buf_free(&b);
        return api_fail(e, 503, NULL, "", "out of memory");
    }
    http_reply(c->conn, 200, "text/plain; version=0.0.4; charset=utf-8", (struct str){0}, buf_view(&b));
    buf_free(&b);
    return 0;
}

int route_stats(struct call *c, struct api_error *e)
{
    const struct server *s = c->s;
    const struct http_counts *h = http_counts(s->http);
    struct rh_stats t;
    struct buf b = {0};
    (void)e;
    rh_stats(s->model, &t);
    buf_printf(&b, "{\"requests\":{\"under_way\":%u,\"waiting\":%u,\"running\":%u,\"rejected\":%llu},", s->gen_count, t.waiting, t.running,
               (unsigned long long)s->metrics.rejected);
    buf_printf(&b, "\"connections\":{\"open\":%u,\"accepted\":%llu,\"refused\":%llu,\"malformed\":%llu},\"io_turn_ms_max\":%.3f,", h->open,
               (unsigned long long)h->accepted, (unsigned long long)h->refused, (unsigned long long)h->malformed, (double)s->turn_max_ns / 1e6);
    buf_printf(&b, "\"engine\":{\"steps\":%llu,\"rows\":%llu,\"preempted\":%llu,\"positions_max\":%u,\"cancelled\":%llu,\"cancel_steps_max\":%llu,"
               "\"failed_steps\":%llu,\"waiting_again\":%u,\"prefilling\":%u},", (unsigned long long)t.steps, (unsigned long long)t.rows,
               (unsigned long long)t.preempted, t.positions_max, (unsigned long long)t.cancelled, (unsigned long long)t.cancel_steps_max,
               (unsigned long long)t.failed_steps, t.waiting_again, t.prefilling);
    buf_printf(&b, "\"state\":{\"total_bytes\":%llu,\"free_bytes\":%llu,\"live_bytes\":%llu,\"cached_bytes\":%llu,\"peak_bytes\":%llu},",
               (unsigned long long)t.state_total_bytes, (unsigned long long)t.state_free_bytes, (unsigned long long)t.state_live_bytes,
               (unsigned long long)t.state_cached_bytes, (unsigned long long)t.state_peak_bytes);
    buf_printf(&b, "\"cache\":{\"prompt_tokens\":%llu,\"cached_tokens\":%llu,\"reasons\":{", (unsigned long long)t.prompt_tokens,
               (unsigned long long)t.cached_tokens);
    for (int i = 0; i < RH_MISS_COUNT; i++)
        buf_printf(&b, "%s\"%s\":%llu", i ? "," : "", t.miss_names[i], (unsigned long long)t.misses[i]);
    buf_printf(&b, "}},\"model\":%s}", s->info_json ? s->info_json : "null");
    return reply(c, 200, &b);
}

int route_cancel(struct call *c, struct api_error *e)
{
    yyjson_doc *doc = body_parse(c, e);
    if (!doc)
        return -1;
    struct str id = json_str(yyjson_obj_get(yyjson_doc_get_root(doc), "id"));
    struct gen *g = id.p ? gen_find(c->s, id) : NULL;
    struct buf b = {0};
    int rc = 0;
    if (!id.p)
        rc = api_fail(e, 400, "missing_required_parameter", "/id", "id is missing");
    else if (!g || (c->key && !c->key->admin && (!g->key_name || strcmp(g->key_name, c->key->name))))
        rc = api_fail(e, 404, "not_found", "/id", "no generation '%.*s' is under way", STR_ARG(id));
    else {
        gen_cancel(g);
        buf_printf(&b, "{\"id\":\"%s\",\"cancelled\":true}", g->id);
        rc = reply(c, 200, &b);
    }
    json_free(doc);
    return rc;
}
