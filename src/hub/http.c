/* hub/http.c - small requests to the hub, and the options every transfer shares.
 *
 * Redirects are followed by curl; it sends the Authorization header to the first host only, so a signed address of another host never
 * sees the token.  Only http and https are spoken. */
#include "hub/curl.h"
#include "hub/hub_int.h"

#include "base/mem.h"

#include <stdio.h>
#include <stdlib.h>
#include <strings.h>

enum { BODY_MAX = 64 << 20 };

const char *hub_endpoint(const struct hub_pull_options *opt)
{
    return opt->endpoint && opt->endpoint[0] ? opt->endpoint : "https://huggingface.co";
}

static int watch(void *ctx, curl_off_t a, curl_off_t b, curl_off_t c, curl_off_t d)
{
    (void)a, (void)b, (void)c, (void)d;
    const struct hub_pull_options *opt = ctx;
    return opt->cancelled && *opt->cancelled;
}

void *hub_http_handle(const struct hub_pull_options *opt, const char *url, void **headers)
{
    CURL *c = hub_curl.easy_init();
    struct curl_slist *list = NULL;
    if (!c)
        return NULL;
    list = hub_curl.slist_append(list, "Accept-Encoding: identity");
    if (list && opt->token && opt->token[0]) {
        char line[1024];
        snprintf(line, sizeof line, "Authorization: Bearer %s", opt->token);
        struct curl_slist *more = hub_curl.slist_append(list, line);
        if (!more) {
            hub_curl.slist_free_all(list);
            hub_curl.easy_cleanup(c);
            return NULL;
        }
        list = more;
    }
    hub_curl.easy_setopt(c, CURLOPT_URL, url);
    hub_curl.easy_setopt(c, CURLOPT_HTTPHEADER, list);
    hub_curl.easy_setopt(c, CURLOPT_FOLLOWLOCATION, 1L);
    hub_curl.easy_setopt(c, CURLOPT_MAXREDIRS, 8L);
    hub_curl.easy_setopt(c, CURLOPT_PROTOCOLS_STR, "http,https");
    hub_curl.easy_setopt(c, CURLOPT_REDIR_PROTOCOLS_STR, "http,https");
    hub_curl.easy_setopt(c, CURLOPT_NOSIGNAL, 1L);
    hub_curl.easy_setopt(c, CURLOPT_CONNECTTIMEOUT, 20L);
    hub_curl.easy_setopt(c, CURLOPT_LOW_SPEED_LIMIT, 1L);
    hub_curl.easy_setopt(c, CURLOPT_LOW_SPEED_TIME, 30L);
    hub_curl.easy_setopt(c, CURLOPT_USERAGENT, "rhapsode");
    hub_curl.easy_setopt(c, CURLOPT_NOPROGRESS, 0L);
    hub_curl.easy_setopt(c, CURLOPT_XFERINFOFUNCTION, watch);
    hub_curl.easy_setopt(c, CURLOPT_XFERINFODATA, (void *)(uintptr_t)opt);
    *headers = list;
    return c;
}

static size_t on_body(char *p, size_t size, size_t n, void *ctx)
{
    struct buf *b = ctx;
    buf_put(b, p, size * n);
    return b->failed ? 0 : size * n;
}

static bool header_is(struct str line, const char *name, struct str *value)
{
    size_t n = strlen(name);
    if (line.n <= n || line.p[n] != ':' || strncasecmp(line.p, name, n))
        return false;
    *value = str_trim(str_from(line, n + 1));
    return true;
}

static void keep(char *out, size_t cap, struct str v)
{
    if (v.n >= 2 && v.p[0] == 'W' && v.p[1] == '/')
        v = str_from(v, 2);
    if (v.n >= 2 && v.p[0] == '"' && v.p[v.n - 1] == '"')
        v = str_n(v.p + 1, v.n - 2);
    if (v.n < cap)
        snprintf(out, cap, "%.*s", (int)v.n, v.p);
}

/* Link: <url>; rel="next" */
static void keep_next(struct hub_reply *r, struct str v)
{
    const char *lt = memchr(v.p, '<', v.n), *gt = memchr(v.p, '>', v.n);
    if (lt && gt && gt > lt && str_find(v, STR("rel=\"next\"")) != SIZE_MAX)
        keep(r->next, sizeof r->next, str_n(lt + 1, (size_t)(gt - lt - 1)));
}

static size_t on_header(char *p, size_t size, size_t n, void *ctx)
{
    struct hub_reply *r = ctx;
    struct str line = str_n(p, size * n), v;
    uint64_t bytes;
    if (header_is(line, "X-Repo-Commit", &v))
        keep(r->commit, sizeof r->commit, v);
    else if (header_is(line, "X-Linked-Etag", &v))
        keep(r->etag, sizeof r->etag, v);
    else if (header_is(line, "Link", &v))
        keep_next(r, v);
    else if (header_is(line, "X-Linked-Size", &v) && str_to_u64(v, &bytes))
        r->size = bytes, r->has_size = true;
    return size * n;
}

int hub_http_status_error(long status, const char *url, struct err *err)
{
    if (status == 401 || status == 403)
        return err_set(err, ERR_NET, "%s: the hub answered %ld: expected access, got none (is the repository gated or private, and is a token set?)", url,
                       status);
    if (status == 404)
        return err_set(err, ERR_NOT_FOUND, "%s: the hub answered 404: no such repository, revision or file", url);
    return err_set(err, ERR_NET, "%s: expected status 200 or 206, got %ld", url, status);
}

int hub_http_get(const struct hub_pull_options *opt, const char *url, bool head, struct hub_reply *out, struct err *err)
{
    *out = (struct hub_reply){.body = {.max = BODY_MAX}};
    int code = hub_curl_load(err);
    if (code)
        return code;
    void *headers = NULL;
    CURL *c = hub_http_handle(opt, url, &headers);
    if (!c)
        return err_nomem(err, "http request", 0);
    hub_curl.easy_setopt(c, CURLOPT_WRITEFUNCTION, on_body);
    hub_curl.easy_setopt(c, CURLOPT_WRITEDATA, &out->body);
    hub_curl.easy_setopt(c, CURLOPT_HEADERFUNCTION, on_header);
    hub_curl.easy_setopt(c, CURLOPT_HEADERDATA, out);
    hub_curl.easy_setopt(c, CURLOPT_NOBODY, head ? 1L : 0L);
    CURLcode rc = CURLE_OK;
    for (int attempt = 0; attempt < 4; attempt++) {
        out->body.n = 0;
        rc = hub_curl.easy_perform(c);
        hub_curl.easy_getinfo(c, CURLINFO_RESPONSE_CODE, &out->status);
        bool again = rc != CURLE_ABORTED_BY_CALLBACK && (rc != CURLE_OK || out->status >= 500 || out->status == 429);
        if (!again)
            break;
        struct timespec t = {0, 200000000L << attempt};
        if (t.tv_nsec >= 1000000000)
            t = (struct timespec){1, 0};
        nanosleep(&t, NULL);
    }
    if (out->body.failed)
        code = buf_check(&out->body, url, err);
    else if (rc == CURLE_ABORTED_BY_CALLBACK)
        code = err_set(err, ERR_CANCELLED, "cancelled");
    else if (rc != CURLE_OK)
        code = err_set(err, ERR_NET, "%s: %s", url, hub_curl.easy_strerror(rc));
    else if (out->status != 200)
        code = hub_http_status_error(out->status, url, err);
    hub_curl.easy_cleanup(c);
    hub_curl.slist_free_all(headers);
    if (code)
        buf_free(&out->body);
    return code;
}
