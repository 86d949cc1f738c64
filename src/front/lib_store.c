/* front/lib_store.c - the public store functions: hub behind rhapsode.h's conventions. */
#include "rhapsode.h"

#include "base/mem.h"
#include "hub/hub.h"

#include <stdio.h>

static int give_error(int rc, const struct err *e, struct rh_error *err)
{
    if (rc && err) {
        err->code = rc;
        snprintf(err->text, sizeof err->text, "%s", e->text[0] ? e->text : err_text(rc));
    }
    return rc;
}

/* The buffer's text becomes the caller's. */
static int give_text(int rc, struct buf *b, char **out, const struct err *e, struct rh_error *err)
{
    struct err late = {0};
    if (!rc) {
        buf_cstr(b);
        rc = buf_check(b, "store", &late);
        e = rc ? &late : e;
    }
    if (rc) {
        buf_free(b);
        return give_error(rc, e, err);
    }
    *out = b->p;
    return 0;
}

struct relay {
    const struct rh_pull_options *opt;
};

static void relay_progress(void *ctx, const struct hub_progress *p)
{
    const struct relay *r = ctx;
    struct rh_pull_progress q = {p->file, p->done_bytes, p->total_bytes, p->bytes_per_s};
    r->opt->progress(r->opt->progress_ctx, &q);
}

int rh_store_pull(const char *store_dir, const char *spec, const struct rh_pull_options *opt, char **out_path, struct rh_error *err)
{
    static const struct rh_pull_options none;
    struct relay relay = {opt ? opt : &none};
    struct hub_pull_options h = {
        .endpoint = relay.opt->endpoint,
        .token = relay.opt->token,
        .revision = relay.opt->revision,
        .connections = relay.opt->connections,
        .progress = relay.opt->progress ? relay_progress : NULL,
        .progress_ctx = &relay,
        .cancelled = relay.opt->cancelled,
    };
    struct err e = {0};
    struct buf path = {0};
    return give_text(hub_pull(store_dir, spec, &h, &path, &e), &path, out_path, &e, err);
}

int rh_store_add(const char *store_dir, const char *name, const char *path, const char *sha256, struct rh_error *err)
{
    struct err e = {0};
    return give_error(hub_store_add(store_dir, name, path, sha256, &e), &e, err);
}

int rh_store_list_json(const char *store_dir, char **out, struct rh_error *err)
{
    struct err e = {0};
    struct buf json = {0};
    return give_text(hub_store_list(store_dir, &json, &e), &json, out, &e, err);
}

int rh_store_remove(const char *store_dir, const char *name, struct rh_error *err)
{
    struct err e = {0};
    return give_error(hub_store_remove(store_dir, name, &e), &e, err);
}

int rh_store_find(const char *store_dir, const char *name, char **out_path, struct rh_error *err)
{
    struct err e = {0};
    struct buf path = {0};
    return give_text(hub_store_find(store_dir, name, &path, &e), &path, out_path, &e, err);
}
