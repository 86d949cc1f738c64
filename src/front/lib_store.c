/* front/lib_store.c - the public store functions: hub behind rhapsode.h's conventions. */
#include "base/file.h"
#include "base/mem.h"
#include "format/gguf.h"
#include "front/front_int.h"
#include "hub/hub.h"

#include <dirent.h>
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

struct file_list { /* names within one folder; owns them */
    char **names;
    size_t n, cap;
};

static int list_put(struct file_list *l, const char *name, struct err *err)
{
    if (l->n == l->cap) {
        size_t cap = l->cap ? 2 * l->cap : 16;
        char **more = mem_try_resize(l->names, cap * sizeof *more);
        if (!more)
            return err_nomem(err, "files of a model", cap * sizeof *more);
        l->names = more;
        l->cap = cap;
    }
    l->names[l->n] = mem_try_strndup(name, strlen(name));
    return l->names[l->n] ? (l->n++, 0) : err_nomem(err, "files of a model", strlen(name));
}

static void list_free(struct file_list *l)
{
    while (l->n)
        mem_free(l->names[--l->n]);
    mem_free(l->names);
}

/* config.json first: it is what an entry opens. */
static int list_dir(struct file_list *l, const char *dir, struct err *err)
{
    int rc = list_put(l, "config.json", err);
    struct dirent *e;
    DIR *d = opendir(dir);
    if (!d)
        return rc ? rc : err_set(err, ERR_IO, "%s: cannot open the folder", dir);
    while (!rc && (e = readdir(d)))
        if (e->d_name[0] != '.' && hub_model_file(str_of(e->d_name)) && strcmp(e->d_name, "config.json") != 0)
            rc = list_put(l, e->d_name, err);
    closedir(d);
    return rc;
}

static const char *last_part(const char *path)
{
    const char *slash = strrchr(path, '/');
    return slash ? slash + 1 : path;
}

/* All that info reads: headers, hyper-parameters, shapes, tokenizer; no weight is touched. */
static int inspect(const char *path, struct rh_host **host, struct rh_model **model, struct err *err)
{
    struct rh_host_options ho = {.backend = "ref"};
    struct rh_model_options mo = {.inspect_only = true};
    struct rh_error rerr = {0};
    int rc = rh_host_open(&ho, host, &rerr);
    rc = rc ? rc : rh_model_open(*host, path, &mo, model, &rerr);
    if (rc)
        return err_set(err, rc, "%s", rerr.text);
    return model_inspect_late(*model, err);
}

int rh_store_add(const char *store_dir, const char *name, const char *path, const char *sha256, struct rh_error *rerr)
{
    struct err err = {0};
    struct rh_host *host = NULL;
    struct rh_model *model = NULL;
    struct file_list files = {0};
    bool dir = file_is_dir(path);
    char *folder = mem_try_strndup(path, dir ? strlen(path) : (size_t)(last_part(path) - path));
    int rc = folder ? 0 : err_nomem(&err, "path", strlen(path));
    if (!rc && !file_exists(path))
        rc = err_set(&err, ERR_NOT_FOUND, "%s: no such file or directory", path);
    if (!rc && dir && sha256)
        rc = err_set(&err, ERR_ARGUMENT, "%s: a SHA-256 is of one file, this is a folder", path);
    rc = rc ? rc : inspect(path, &host, &model, &err);
    if (!rc && dir)
        rc = list_dir(&files, path, &err);
    for (uint32_t i = 0; !rc && !dir && i < gguf_file_count(model->texts.gguf); i++)
        rc = list_put(&files, last_part(gguf_file_at(model->texts.gguf, i)), &err);
    if (!rc)
        rc = hub_store_add(store_dir, name, folder[0] ? folder : ".", (const char *const *)files.names, files.n, sha256, &err);
    rh_model_close(model);
    rh_host_close(host);
    list_free(&files);
    mem_free(folder);
    return give_error(rc, &err, rerr);
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
