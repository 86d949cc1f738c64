/* hub/pull.c - a pull: list, choose, fetch each file, write the entry last. */
#include "hub/hub_int.h"

#include "base/file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/file.h>
#include <unistd.h>

/* ORG/REPO[:FILE] */
static int parse_spec(const char *spec, char repo[256], struct str *wanted, struct err *err)
{
    struct str s = str_of(spec);
    const char *colon = memchr(s.p, ':', s.n);
    struct str head = colon ? str_n(s.p, (size_t)(colon - s.p)) : s;
    *wanted = colon ? str_from(s, head.n + 1) : (struct str){"", 0};
    size_t slashes = 0;
    bool ok = head.n > 2 && head.n < 250 && hub_path_safe(head);
    for (size_t i = 0; ok && i < head.n; i++) {
        char c = head.p[i];
        slashes += c == '/';
        ok = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' || c == '_' || c == '.' || c == '/';
    }
    if (!ok || slashes != 1 || (colon && !hub_path_safe(*wanted)))
        return err_set(err, ERR_ARGUMENT, "expected ORG/REPO or ORG/REPO:FILE, got '%s'", spec);
    snprintf(repo, 256, "%.*s", (int)head.n, head.p);
    return 0;
}

static int lock_entry(const char *dir, struct err *err)
{
    char path[HUB_PATH_MAX];
    int rc = file_join(path, sizeof path, dir, ".lock", err);
    int fd = rc ? -1 : open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    if (fd < 0)
        return rc ? rc : err_set(err, ERR_IO, "%s: cannot create: %s", path, strerror(errno));
    if (flock(fd, LOCK_EX | LOCK_NB)) {
        close(fd);
        return err_set(err, ERR_BUSY, "%s: another pull of this model is running", dir);
    }
    return fd;
}

static int fetch_all(const char *dir, const char *repo, const struct hub_listing *l, const struct hub_pull_options *opt, struct err *err)
{
    char files[HUB_PATH_MAX];
    int rc = file_join(files, sizeof files, dir, "files", err);
    struct hub_fetch f = {.opt = opt, .repo = repo, .commit = l->commit, .dir = files};
    for (size_t i = 0; i < l->count; i++)
        f.total_bytes += l->files[i].size_bytes;
    for (size_t i = 0; !rc && i < l->count; i++) {
        rc = hub_fetch_file(&f, &l->files[i], err);
        f.done_before_bytes += l->files[i].size_bytes;
    }
    if (!rc && opt->progress) {
        struct hub_progress p = {NULL, f.total_bytes, f.total_bytes, 0};
        opt->progress(opt->progress_ctx, &p);
    }
    return rc;
}

int hub_pull(const char *store, const char *spec, const struct hub_pull_options *opt, struct buf *path, struct err *err)
{
    static const struct hub_pull_options none;
    char repo[256], dir[HUB_PATH_MAX];
    struct str wanted;
    struct hub_listing l = {0};
    int lock = -1;
    opt = opt ? opt : &none;
    int rc = parse_spec(spec, repo, &wanted, err);
    rc = rc ? rc : hub_entry_dir(dir, store, spec, err);
    rc = rc ? rc : hub_list(repo, opt, &l, err);
    rc = rc ? rc : hub_select(&l, wanted, repo, err);
    rc = rc ? rc : file_mkdirs(dir, err);
    if (!rc) {
        lock = lock_entry(dir, err);
        rc = lock < 0 ? lock : 0;
    }
    rc = rc ? rc : fetch_all(dir, repo, &l, opt, err);
    rc = rc ? rc : hub_entry_write(dir, spec, l.files, l.count, repo, l.commit, err);
    rc = rc ? rc : hub_store_find(store, spec, path, err);
    hub_listing_free(&l);
    if (lock >= 0 && rc)
        hub_entry_prune(dir);
    if (lock >= 0)
        close(lock);
    return rc;
}
