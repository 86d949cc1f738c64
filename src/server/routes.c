/* server/routes.c - who may ask what: Host and Origin, keys, methods; then the route's handler.  Errors in each API's own shape. */
#include "server/routes.h"

#include "base/mem.h"
#include "base/rng.h"
#include "server/pending.h"

#include <stdio.h>
#include <strings.h>

enum who { OPEN, USER, ADMIN };
enum { TAIL_MAX = 512 };

struct route {
    enum http_method method;
    const char *path;
    bool prefix;
    enum who who;
    enum api_shape shape;
    int (*handle)(struct call *c, struct api_error *e);
};

static const struct route routes[] = {
#define ROUTE_ROW(method, path, prefix, who, shape, fn, text) {METHOD_##method, path, prefix, who, API_##shape, fn},
    ROUTE_LIST(ROUTE_ROW)
#undef ROUTE_ROW
};
enum { ROUTE_COUNT = sizeof routes / sizeof *routes };

/* ---- errors ---- */

static const char *openai_type(int status)
{
    switch (status) {
    case 401: return "authentication_error";
    case 403: return "permission_error";
    case 404: return "not_found_error";
    case 429: return "rate_limit_error";
    default: return status < 500 ? "invalid_request_error" : "server_error";
    }
}

static const char *anthropic_type(int status)
{
    switch (status) {
    case 401: return "authentication_error";
    case 403: return "permission_error";
    case 404: return "not_found_error";
    case 413: return "request_too_large";
    case 429: return "rate_limit_error";
    case 503: case 529: return "overloaded_error";
    default: return status < 500 ? "invalid_request_error" : "api_error";
    }
}

void api_error_put(struct buf *out, enum api_shape shape, const struct api_error *e)
{
    struct str text = str_of(e->text);
    if (shape == API_OLLAMA) {
        struct buf b = {0};
        if (e->param[0] && !str_starts(text, str_of(e->param))) /* this API's errors are a text and nothing else */
            buf_printf(&b, "%s: ", e->param);
        buf_str(&b, text);
        buf_z(out, "{\"error\":");
        buf_json_str(out, buf_view(&b));
        buf_char(out, '}');
        out->failed = out->failed ? out->failed : b.failed;
        buf_free(&b);
        return;
    }
    if (shape == API_ANTHROPIC) {
        buf_printf(out, "{\"type\":\"error\",\"error\":{\"type\":\"%s\",\"message\":", anthropic_type(e->status));
        buf_json_str(out, text);
        if (e->param[0]) {
            buf_z(out, ",\"param\":");
            buf_json_str(out, str_of(e->param));
        }
        buf_z(out, "}}");
        return;
    }
    buf_z(out, "{\"error\":{\"message\":");
    buf_json_str(out, text);
    buf_printf(out, ",\"type\":\"%s\",\"param\":", openai_type(e->status));
    if (e->param[0])
        buf_json_str(out, str_of(e->param));
    else
        buf_z(out, "null");
    buf_z(out, ",\"code\":");
    if (e->code)
        buf_json_str(out, str_of(e->code));
    else
        buf_z(out, "null");
    buf_z(out, "}}");
}

void api_error_reply(struct server *s, struct http_conn *c, enum api_shape shape, const struct api_error *e)
{
    struct buf body = {0}, headers = {0};
    api_error_put(&body, shape, e);
    if (e->retry_s)
        buf_printf(&headers, "Retry-After: %u\r\n", e->retry_s);
    if (e->status == 401)
        buf_z(&headers, "WWW-Authenticate: Bearer\r\n");
    s->metrics.statuses[e->status / 100 % 6]++;
    http_reply(c, e->status, "application/json", buf_view(&headers), buf_view(&body));
    buf_free(&body);
    buf_free(&headers);
}

void call_reply_json(const struct call *c, int status, struct str headers, struct buf *body)
{
    if (body->failed) {
        struct api_error e = {0};
        api_fail(&e, 503, NULL, "", "out of memory for the answer");
        api_error_reply(c->s, c->conn, c->shape, &e);
        return;
    }
    c->s->metrics.statuses[status / 100 % 6]++;
    http_reply_take(c->conn, status, "application/json", headers, body);
}

void api_id(char out[48], const char *prefix)
{
    static const char letters[] = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";
    int n = snprintf(out, 24, "%s", prefix);
    for (int i = 0; i < 24; i += 8) {
        uint64_t bits = rng_seed_draw();
        for (int k = 0; k < 8; k++, bits /= 62)
            out[n++] = letters[bits % 62];
    }
    out[n] = 0;
}

/* ---- where from ---- */

static bool name_is(struct str name, const char *z)
{
    return name.n == strlen(z) && strncasecmp(name.p, z, name.n) == 0;
}

/* The name in "name:port" or "[v6]:port". */
static struct str host_name(struct str host)
{
    struct str rest = host, name;
    if (host.n && host.p[0] == '[') {
        size_t end = 0;
        while (end < host.n && host.p[end] != ']')
            end++;
        return str_n(host.p, end < host.n ? end + 1 : host.n);
    }
    str_split(&rest, ':', &name);
    return name;
}

static bool listed(const char *const *list, size_t n, struct str what)
{
    for (size_t i = 0; i < n; i++)
        if (!strcmp(list[i], "*") || name_is(what, list[i]))
            return true;
    return false;
}

static bool is_address(struct str s, bool v6)
{
    for (size_t i = 0; i < s.n; i++) {
        char c = s.p[i], low = (char)(c | 32);
        if (!((c >= '0' && c <= '9') || c == '.' || (v6 && (c == ':' || (low >= 'a' && low <= 'f')))))
            return false;
    }
    return s.n > 0;
}

/* A page in a browser can make a name of its own point here: only names that are ours are answered. */
static bool host_allowed(const struct server *s, struct str host)
{
    struct str name = host_name(host);
    const char *bound = s->cfg->host;
    struct str plain = name.n > 2 && name.p[0] == '[' ? str_n(name.p + 1, name.n - 2) : name;
    if (listed(s->cfg->hosts, s->cfg->host_count, name) || (bound && name_is(plain, bound)))
        return true;
    if (name_is(name, "localhost") || name_is(name, "[::1]") || (str_starts(name, STR("127.")) && is_address(plain, false)))
        return true;
    /* a server that listens on all addresses: any address, but no foreign name */
    bool all = bound && (!strcmp(bound, "0.0.0.0") || !strcmp(bound, "::"));
    return all && name.n && is_address(plain, name.p[0] == '[');
}

static bool origin_allowed(const struct server *s, const struct http_request *r)
{
    struct str origin = http_header_find(r, "origin"), host = http_header_find(r, "host");
    if (!origin.n || listed(s->cfg->origins, s->cfg->origin_count, origin))
        return true;
    struct str rest = str_starts(origin, STR("https://")) ? str_from(origin, 8) : str_starts(origin, STR("http://")) ? str_from(origin, 7) : (struct str){0};
    return rest.n && str_eq(rest, host); /* our own page */
}

static void put_cors(const struct server *s, const struct http_request *r, struct buf *h)
{
    struct str origin = http_header_find(r, "origin");
    if (!origin.n || !listed(s->cfg->origins, s->cfg->origin_count, origin))
        return;
    buf_z(h, "Access-Control-Allow-Origin: ");
    buf_str(h, origin);
    buf_z(h, "\r\nVary: Origin\r\n");
}

static void preflight(const struct server *s, struct http_conn *c, const struct http_request *r)
{
    struct buf h = {0};
    if (listed(s->cfg->origins, s->cfg->origin_count, http_header_find(r, "origin")))
        buf_z(&h, "Access-Control-Allow-Methods: GET, POST, DELETE, OPTIONS\r\nAccess-Control-Allow-Headers: authorization, content-type, x-api-key, "
                  "anthropic-version, anthropic-beta, x-session-affinity\r\nAccess-Control-Max-Age: 600\r\n");
    buf_z(&h, "Allow: GET, POST, DELETE, OPTIONS\r\n");
    http_reply(c, 204, NULL, buf_view(&h), (struct str){0});
    buf_free(&h);
}

/* ---- keys ---- */

/* Every byte is looked at, whatever the first difference. */
static bool same_key(struct str given, const char *key)
{
    size_t n = strlen(key);
    unsigned diff = given.n != n;
    for (size_t i = 0; i < given.n; i++)
        diff |= (unsigned char)given.p[i] ^ (unsigned char)key[n ? i % n : 0];
    return n && diff == 0;
}

static const struct server_key *key_of(const struct server *s, const struct http_request *r)
{
    struct str auth = http_header_find(r, "authorization"), given = http_header_find(r, "x-api-key");
    const struct server_key *found = NULL;
    if (auth.n > 7 && strncasecmp(auth.p, "Bearer ", 7) == 0)
        given = str_trim(str_from(auth, 7));
    for (size_t i = 0; i < s->cfg->key_count; i++)
        if (same_key(given, s->cfg->keys[i].key))
            found = &s->cfg->keys[i];
    return found;
}

/* ---- routes ---- */

static const struct route *find(const struct http_request *r, bool *other_method)
{
    enum http_method method = r->method == METHOD_HEAD ? METHOD_GET : r->method;
    *other_method = false;
    for (int i = 0; i < ROUTE_COUNT; i++) {
        const struct route *t = &routes[i];
        if (t->prefix ? !(str_starts(r->path, str_of(t->path)) && r->path.n > strlen(t->path)) : !str_is(r->path, t->path))
            continue;
        if (t->method == method)
            return t;
        *other_method = true;
    }
    return NULL;
}

static enum api_shape shape_of(const struct http_request *r)
{
    for (int i = 0; i < ROUTE_COUNT; i++)
        if (routes[i].path[1] && str_starts(r->path, str_of(routes[i].path))) /* all begin with "/" */
            return routes[i].shape;
    return str_starts(r->path, STR("/api/")) ? API_OLLAMA : API_OPENAI;
}

static int hex_of(char c)
{
    return c >= '0' && c <= '9' ? c - '0' : (c | 32) >= 'a' && (c | 32) <= 'f' ? (c | 32) - 'a' + 10 : -1;
}

static bool decode_tail(struct str in, char out[TAIL_MAX])
{
    size_t n = 0;
    for (size_t i = 0; i < in.n; i++) {
        char c = in.p[i];
        if (c == '%' && i + 2 < in.n && hex_of(in.p[i + 1]) >= 0 && hex_of(in.p[i + 2]) >= 0) {
            c = (char)(hex_of(in.p[i + 1]) * 16 + hex_of(in.p[i + 2]));
            i += 2;
        }
        if (c == 0 || n + 1 >= TAIL_MAX)
            return false;
        out[n++] = c;
    }
    out[n] = 0;
    return true;
}

/* Everything that can be said before the body is read. */
static int admit(struct server *s, const struct http_request *r, const struct route **route, const struct server_key **key, struct api_error *e)
{
    bool other = false;
    *route = NULL;
    *key = NULL;
    if (http_header_find(r, "host").p && !host_allowed(s, http_header_find(r, "host")))
        return api_fail(e, 421, "host_not_allowed", "", "Host '%.*s' is not one of this server's names (--allow-host adds one)",
                        STR_ARG(http_header_find(r, "host")));
    if (!origin_allowed(s, r))
        return api_fail(e, 403, "origin_not_allowed", "", "pages of '%.*s' may not ask this server (--allow-origin adds one)",
                        STR_ARG(http_header_find(r, "origin")));
    if (r->method == METHOD_OPTIONS)
        return 0;
    *route = find(r, &other);
    if (!*route)
        return api_fail(e, other ? 405 : 404, other ? "method_not_allowed" : "not_found", "", other ? "%.*s does not take this method" : "there is no %.*s here",
                        STR_ARG(r->path));
    if ((*route)->who == OPEN || s->cfg->key_count == 0)
        return 0;
    *key = key_of(s, r);
    if (!*key)
        return api_fail(e, 401, "invalid_api_key", "", "expected a known API key (Authorization: Bearer KEY, or x-api-key)");
    if ((*route)->who == ADMIN && !(*key)->admin)
        return api_fail(e, 403, "not_admin", "", "%s is for keys of administrators", (*route)->path);
    return 0;
}

static int on_head(void *ctx, struct http_conn *c, const struct http_request *r)
{
    struct server *s = ctx;
    struct api_error e = {0};
    const struct route *route;
    const struct server_key *key;
    if (admit(s, r, &route, &key, &e) == 0)
        return 0;
    api_error_reply(s, c, shape_of(r), &e);
    return -1;
}

static void on_request(void *ctx, struct http_conn *conn, const struct http_request *r)
{
    struct server *s = ctx;
    struct api_error e = {0};
    char tail[TAIL_MAX] = "";
    const struct route *route;
    struct call c = {.s = s, .conn = conn, .http = r, .tail = tail, .shape = shape_of(r)};
    if (admit(s, r, &route, &c.key, &e)) {
        api_error_reply(s, conn, c.shape, &e);
        return;
    }
    struct buf cors = {0};
    put_cors(s, r, &cors);
    http_extra_set(conn, buf_view(&cors));
    buf_free(&cors);
    if (!route) {
        preflight(s, conn, r);
        return;
    }
    int rc = 0;
    if (route->prefix && !decode_tail(str_from(r->path, strlen(route->path)), tail))
        rc = api_fail(&e, 404, "not_found", "", "there is no %.*s here", STR_ARG(r->path));
    else
        rc = route->handle(&c, &e);
    if (rc)
        api_error_reply(s, conn, c.shape, &e);
}

static void on_gone(void *ctx, struct http_conn *c)
{
    struct pending *p = http_user(c);
    (void)ctx;
    http_user_set(c, NULL);
    if (p)
        p->gone(p);
}

static void on_drained(void *ctx, struct http_conn *c)
{
    struct pending *p = http_user(c);
    (void)ctx;
    if (p && p->drained)
        p->drained(p);
}

static void on_answered(void *ctx, const struct http_request *r, int status)
{
    journal_answer(ctx, r, status);
}

static void on_refusal(void *ctx, int status, const char *text, struct buf *body)
{
    struct server *s = ctx;
    struct api_error e = {0};
    api_fail(&e, status, NULL, "", "%s", text);
    s->metrics.statuses[status / 100 % 6]++;
    api_error_put(body, API_OPENAI, &e);
}

struct http_handler routes_handler(struct server *s)
{
    return (struct http_handler){.head = on_head, .request = on_request, .gone = on_gone, .drained = on_drained, .answered = on_answered, .refusal = on_refusal, .ctx = s};
}
