/* server/body.c - JSON bodies: small ones are read at once, large ones by a worker, so that nobody else waits while one is read.
 *
 *     I/O thread             worker, or at once        I/O thread
 *     body_route ----------> read: parse, fields, ----> start: the answer begins
 *                            the route's prepare   \--> an error; or the peer has left: all is dropped
 *
 * Invariant: what read calls uses the configuration, the model and its own memory, nothing that the I/O thread changes. */
#include "server/body.h"

#include "base/mem.h"
#include "server/pending.h"

enum { AT_ONCE_MAX = 64 << 10 };

struct body { /* owns all */
    struct pending pending; /* first */
    uv_work_t work;
    struct call call;       /* conn NULL: the peer has left */
    const struct body_plan *plan;
    struct params p;
    struct reader r;
    struct api_error err;
    struct buf text;        /* taken over from the connection */
    yyjson_doc *doc;
    int rc;
};

static void free_body(struct body *b)
{
    buf_free(&b->r.ignored);
    buf_free(&b->p.messages);
    arena_free(&b->p.arena);
    json_free(b->doc);
    buf_free(&b->text);
    mem_free(b);
}

static int check_type(const struct call *c, struct api_error *e)
{
    struct str type = http_header_find(c->http, "content-type");
    if (str_starts(type, STR("multipart/"))) /* curl -d says urlencoded; pages of others are stopped by their Origin */
        return api_fail(e, 415, NULL, "", "expected a JSON body, got '%.*s'", STR_ARG(type));
    return 0;
}

static yyjson_doc *parse(struct str text, struct api_error *e)
{
    struct err err = {0};
    yyjson_doc *doc = json_parse(text, "body", &err);
    if (!doc)
        api_fail(e, err.code == ERR_NOMEM ? 503 : 400, "invalid_json", "", "%s", err.text);
    else if (!yyjson_is_obj(yyjson_doc_get_root(doc))) {
        api_fail(e, 400, "invalid_type", "", "body: expected a JSON object, got %s", json_type_name(yyjson_doc_get_root(doc)));
        json_free(doc);
        return NULL;
    }
    return doc;
}

yyjson_doc *body_parse(const struct call *c, struct api_error *e)
{
    return check_type(c, e) ? NULL : parse(c->http->body, e);
}

/* Any thread. */
static int read_body(struct body *b, struct str text)
{
    b->doc = parse(text, &b->err);
    if (!b->doc || fields_read(&b->r, yyjson_doc_get_root(b->doc), "", b->plan->fields->list, b->plan->fields->count))
        return -1;
    return b->plan->prepare ? b->plan->prepare(&b->r) : 0;
}

static void on_gone(struct pending *p)
{
    ((struct body *)(void *)p)->call.conn = NULL;
}

static void on_work(uv_work_t *w)
{
    struct body *b = w->data;
    b->rc = read_body(b, buf_view(&b->text));
}

static void on_worked(uv_work_t *w, int status)
{
    struct body *b = w->data;
    struct call *c = &b->call;
    (void)status;
    c->s->body_count--;
    if (c->conn && (b->rc || b->plan->start(&b->r, c)))
        api_error_reply(c->s, c->conn, c->shape, &b->err);
    else if (!c->conn && b->rc == 0 && b->plan->drop)
        b->plan->drop(&b->r);
    free_body(b);
}

int body_route(struct call *c, struct api_error *e, const struct body_plan *plan, const void *own, size_t own_size)
{
    struct body *b = check_type(c, e) ? NULL : mem_try_zero(1, sizeof *b);
    if (!b)
        return api_fail(e, 503, NULL, "", "out of memory");
    *b = (struct body){.pending = {on_gone, NULL}, .work.data = b, .call = *c, .plan = plan,
                       .p = {.sampling = c->s->sampling, .n = 1, .stream = plan->fields->streams, .input = plan->input}};
    b->r = (struct reader){.s = c->s, .p = &b->p, .err = &b->err};
    b->call.tail = "";
    b->p.own = own_size ? arena_try(&b->p.arena, own_size) : NULL;
    int rc = own_size && !b->p.own ? api_fail(&b->err, 503, NULL, "", "out of memory") : 0;
    if (rc == 0 && own_size)
        memcpy(b->p.own, own, own_size);
    if (rc == 0 && c->http->body.n > AT_ONCE_MAX) {
        http_body_take(c->conn, &b->text);
        http_user_set(c->conn, b);
        c->s->body_count++;
        uv_queue_work(&c->s->loop, &b->work, on_work, on_worked);
        return 0;
    }
    rc = rc ? rc : read_body(b, c->http->body);
    rc = rc ? rc : plan->start(&b->r, &b->call);
    if (rc)
        *e = b->err;
    free_body(b);
    return rc;
}
