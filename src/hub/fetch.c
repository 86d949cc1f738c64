/* hub/fetch.c - one file by parallel ranges, resumable, hashed while it is written.
 *
 * The file is cut in chunks of CHUNK bytes.  X.partial has the file's full size from the start; X.partial.json says how many bytes at the
 * head of each chunk are there.  A connection fetches one chunk's missing tail at a time; a dropped one is simply a shorter head and
 * is tried again (the address is resolved anew, so an expired signed address heals itself).  The hash follows the longest run of
 * complete chunks from the start, reading back what was written (it is in the page cache). */
#include "hub/curl.h"
#include "hub/hub_int.h"

#include "base/file.h"
#include "base/hash.h"
#include "base/json.h"
#include "base/mem.h"
#include "base/thread.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <unistd.h>

#define CHUNK ((uint64_t)16 << 20)
enum { CONNECTIONS_MAX = 16, TRIES_MAX = 8 };

struct transfer { /* one connection */
    struct fetch *f;
    void *curl, *headers;
    size_t chunk;
    bool active;
    bool checked; /* the reply's status was looked at */
};

struct fetch { /* one file; lives for hub_fetch_file */
    const struct hub_fetch *in;
    const struct hub_file *file;
    char path[HUB_PATH_MAX], partial[HUB_PATH_MAX], state[HUB_PATH_MAX], url[2048];
    int fd;
    uint64_t *have; /* [chunks] bytes at the head of each chunk */
    bool *taken;    /* [chunks] a connection works on it */
    size_t chunks;
    struct sha256 *sha;
    uint64_t hashed, got;
    CURLM *multi;
    struct transfer t[CONNECTIONS_MAX];
    uint32_t connections, failures; /* failures in a row without a byte */
    long bad_status;
    int write_errno;
    int64_t rate_at_ns;
    uint64_t rate_bytes;
    double rate;
};

static uint64_t chunk_size(const struct fetch *f, size_t i)
{
    uint64_t at = i * CHUNK, left = f->file->size_bytes - at;
    return left < CHUNK ? left : CHUNK;
}

static int state_write(const struct fetch *f, struct err *err)
{
    struct buf b = {0};
    buf_printf(&b, "{\"size\":%llu,\"sha256\":\"%s\",\"chunk\":%llu,\"have\":[", (unsigned long long)f->file->size_bytes, f->file->sha256,
               (unsigned long long)CHUNK);
    for (size_t i = 0; i < f->chunks; i++)
        buf_printf(&b, "%s%llu", i ? "," : "", (unsigned long long)f->have[i]);
    buf_z(&b, "]}\n");
    int rc = buf_check(&b, f->state, err);
    if (!rc)
        rc = file_write_atomic(f->state, buf_view(&b), err);
    buf_free(&b);
    return rc;
}

/* Take over what an earlier pull left, if it is of the same file; anything odd means starting again. */
static void state_read(struct fetch *f)
{
    struct buf text = {0};
    if (file_size(f->partial) != (int64_t)f->file->size_bytes || file_read(&text, f->state, 8 << 20, NULL)) {
        buf_free(&text);
        return;
    }
    yyjson_doc *doc = json_parse(buf_view(&text), f->state, NULL);
    yyjson_val *root = yyjson_doc_get_root(doc), *have = yyjson_obj_get(root, "have");
    bool same = yyjson_get_uint(yyjson_obj_get(root, "size")) == f->file->size_bytes && yyjson_get_uint(yyjson_obj_get(root, "chunk")) == CHUNK &&
                str_is(json_str(yyjson_obj_get(root, "sha256")), f->file->sha256) && yyjson_arr_size(have) == f->chunks;
    for (size_t i = 0; same && i < f->chunks; i++) {
        uint64_t n = yyjson_get_uint(yyjson_arr_get(have, i));
        f->have[i] = n <= chunk_size(f, i) ? n : 0;
        f->got += f->have[i];
    }
    json_free(doc);
    buf_free(&text);
}

static void progress(struct fetch *f)
{
    const struct hub_pull_options *opt = f->in->opt;
    int64_t now = thread_now_ns();
    if (now - f->rate_at_ns < 200000000)
        return;
    double rate = (double)(f->got - f->rate_bytes) / ((double)(now - f->rate_at_ns) * 1e-9);
    f->rate = f->rate == 0 ? rate : 0.7 * f->rate + 0.3 * rate;
    f->rate_at_ns = now;
    f->rate_bytes = f->got;
    if (!opt->progress)
        return;
    struct hub_progress p = {f->file->path.p, f->in->done_before_bytes + f->got, f->in->total_bytes, f->rate};
    opt->progress(opt->progress_ctx, &p);
}

static size_t on_data(char *p, size_t size, size_t n, void *ctx)
{
    struct transfer *t = ctx;
    struct fetch *f = t->f;
    uint64_t room = chunk_size(f, t->chunk) - f->have[t->chunk], bytes = size * n;
    if (!t->checked) {
        long status = 0;
        hub_curl.easy_getinfo((CURL *)t->curl, CURLINFO_RESPONSE_CODE, &status);
        bool whole = status == 200 && t->chunk == 0 && f->have[0] == 0; /* a server without ranges: only a first chunk can use it */
        if (status != 206 && !whole) {
            f->bad_status = status;
            return 0;
        }
        t->checked = true;
    }
    uint64_t take = bytes < room ? bytes : room;
    for (uint64_t done = 0; done < take;) {
        ssize_t w = pwrite(f->fd, p + done, take - done, (off_t)(t->chunk * CHUNK + f->have[t->chunk]));
        if (w < 0 && errno == EINTR)
            continue;
        if (w <= 0) {
            f->write_errno = errno ? errno : EIO;
            return 0;
        }
        done += (uint64_t)w;
        f->have[t->chunk] += (uint64_t)w;
        f->got += (uint64_t)w;
        f->failures = 0;
    }
    return take < bytes ? 0 : bytes; /* more than asked for: stop the transfer, what is kept is right */
}

static int start_one(struct fetch *f, struct transfer *t, struct err *err)
{
    size_t i = 0;
    while (i < f->chunks && (f->taken[i] || f->have[i] == chunk_size(f, i)))
        i++;
    if (i == f->chunks)
        return 0;
    t->f = f;
    t->chunk = i;
    t->checked = false;
    t->curl = hub_http_handle(f->in->opt, f->url, &t->headers);
    if (!t->curl)
        return err_nomem(err, "http request", 0);
    char range[64];
    uint64_t from = i * CHUNK + f->have[i], to = i * CHUNK + chunk_size(f, i) - 1;
    snprintf(range, sizeof range, "%llu-%llu", (unsigned long long)from, (unsigned long long)to);
    hub_curl.easy_setopt((CURL *)t->curl, CURLOPT_RANGE, range);
    hub_curl.easy_setopt((CURL *)t->curl, CURLOPT_WRITEFUNCTION, on_data);
    hub_curl.easy_setopt((CURL *)t->curl, CURLOPT_WRITEDATA, t);
    hub_curl.easy_setopt((CURL *)t->curl, CURLOPT_PRIVATE, t);
    if (hub_curl.multi_add_handle(f->multi, (CURL *)t->curl) != CURLM_OK) {
        hub_curl.easy_cleanup((CURL *)t->curl);
        hub_curl.slist_free_all(t->headers);
        return err_nomem(err, "http request", 0);
    }
    t->active = f->taken[i] = true;
    return 0;
}

static void stop_one(struct fetch *f, struct transfer *t)
{
    if (!t->active)
        return;
    hub_curl.multi_remove_handle(f->multi, (CURL *)t->curl);
    hub_curl.easy_cleanup((CURL *)t->curl);
    hub_curl.slist_free_all(t->headers);
    f->taken[t->chunk] = t->active = false;
}

/* Hash what now is complete from the start. */
static int hash_follow(struct fetch *f, unsigned char *block, size_t block_bytes, uint64_t most, struct err *err)
{
    uint64_t end = 0;
    size_t i = (size_t)(f->hashed / CHUNK);
    for (end = f->hashed; i < f->chunks; i++) {
        end = i * CHUNK + f->have[i];
        if (f->have[i] < chunk_size(f, i))
            break;
    }
    while (f->sha && f->hashed < end && most) {
        uint64_t n = end - f->hashed < block_bytes ? end - f->hashed : block_bytes;
        ssize_t r = pread(f->fd, block, n, (off_t)f->hashed);
        if (r < 0 && errno == EINTR)
            continue;
        if (r <= 0)
            return err_set(err, ERR_IO, "%s: cannot read back at byte %llu: %s", f->partial, (unsigned long long)f->hashed, strerror(errno));
        sha256_put(f->sha, block, (size_t)r);
        f->hashed += (uint64_t)r;
        most -= most < (uint64_t)r ? most : (uint64_t)r;
    }
    return 0;
}

/* Look at finished transfers; start others.  1 when the file is complete. */
static int turn(struct fetch *f, struct err *err)
{
    int left;
    for (CURLMsg *m; (m = hub_curl.multi_info_read(f->multi, &left));) {
        if (m->msg != CURLMSG_DONE)
            continue;
        struct transfer *t = NULL;
        CURLcode result = m->data.result;
        hub_curl.easy_getinfo(m->easy_handle, CURLINFO_PRIVATE, (char **)&t);
        long status = 0;
        hub_curl.easy_getinfo(m->easy_handle, CURLINFO_RESPONSE_CODE, &status);
        bool whole = f->have[t->chunk] == chunk_size(f, t->chunk);
        if (status != 200) /* a refusal without a body never got to on_data; a 200 in place of a range did */
            f->bad_status = status == 206 ? 0 : status;
        stop_one(f, t);
        if (f->write_errno)
            return err_set(err, ERR_IO, "%s: cannot write: %s", f->partial, strerror(f->write_errno));
        int rc = whole ? state_write(f, err) : 0;
        if (rc)
            return rc;
        if (!whole && status >= 400 && status < 500 && status != 403 && status != 408 && status != 429)
            return hub_http_status_error(status, f->url, err);
        if (!whole && ++f->failures > TRIES_MAX)
            return f->bad_status ? hub_http_status_error(f->bad_status, f->url, err)
                                 : err_set(err, ERR_NET, "%s: no byte in %d tries: %s", f->url, TRIES_MAX, hub_curl.easy_strerror(result));
        if (!whole && f->failures > 1)
            usleep(100000u << (f->failures < 5 ? f->failures : 5));
    }
    bool any = false;
    for (uint32_t i = 0; i < f->connections; i++) {
        int rc = f->t[i].active ? 0 : start_one(f, &f->t[i], err);
        if (rc)
            return rc;
        any = any || f->t[i].active;
    }
    return any ? 0 : 1;
}

static int run(struct fetch *f, struct err *err)
{
    enum { BLOCK = 1 << 20 };
    unsigned char *block = mem_try(BLOCK);
    int rc = block ? 0 : err_nomem(err, "pull buffer", BLOCK), running;
    while (!rc) {
        rc = turn(f, err);
        if (rc)
            break;
        if (f->in->opt->cancelled && *f->in->opt->cancelled)
            rc = err_set(err, ERR_CANCELLED, f->got ? "cancelled; what was fetched is kept, and the next pull goes on from it" : "cancelled");
        else if (hub_curl.multi_perform(f->multi, &running) != CURLM_OK || hub_curl.multi_poll(f->multi, NULL, 0, 100, NULL) != CURLM_OK)
            rc = err_set(err, ERR_NET, "%s: transfer loop failed", f->url);
        else
            rc = hash_follow(f, block, BLOCK, 8 << 20, err);
        progress(f);
    }
    if (rc == 1)
        rc = hash_follow(f, block, BLOCK, UINT64_MAX, err);
    for (uint32_t i = 0; i < f->connections; i++)
        stop_one(f, &f->t[i]);
    mem_free(block);
    if (rc && f->got)
        state_write(f, NULL);
    else if (rc) /* nothing to go on from */
        unlink(f->partial), unlink(f->state);
    return rc;
}

static int make_dirs(const struct fetch *f, struct err *err)
{
    char dir[HUB_PATH_MAX];
    snprintf(dir, sizeof dir, "%s", f->path);
    *strrchr(dir, '/') = 0;
    return file_mkdirs(dir, err);
}

static int open_partial(struct fetch *f, struct err *err)
{
    f->fd = open(f->partial, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    if (f->fd < 0 || ftruncate(f->fd, (off_t)f->file->size_bytes))
        return err_set(err, ERR_IO, "%s: cannot create a file of %llu bytes: %s", f->partial, (unsigned long long)f->file->size_bytes, strerror(errno));
    return 0;
}

static int finish(struct fetch *f, struct err *err)
{
    char got[65] = "";
    if (f->sha)
        sha256_end(f->sha, got);
    f->sha = NULL;
    if (f->file->sha256[0] && strcmp(got, f->file->sha256)) {
        unlink(f->partial);
        unlink(f->state);
        return err_set(err, ERR_FORMAT, "%s: expected SHA-256 %s, got %s; the file was thrown away", f->file->path.p, f->file->sha256, got);
    }
    if (fsync(f->fd) || rename(f->partial, f->path))
        return err_set(err, ERR_IO, "%s: cannot finish: %s", f->path, strerror(errno));
    unlink(f->state);
    return 0;
}

int hub_fetch_file(const struct hub_fetch *in, const struct hub_file *file, struct err *err)
{
    struct fetch *f = mem_try_zero(1, sizeof *f);
    if (!f)
        return err_nomem(err, "pull", sizeof *f);
    int rc = 0;
    f->in = in;
    f->file = file;
    f->fd = -1;
    f->chunks = (size_t)((file->size_bytes + CHUNK - 1) / CHUNK);
    f->connections = in->opt->connections ? in->opt->connections : 4;
    if (f->connections > CONNECTIONS_MAX)
        f->connections = CONNECTIONS_MAX;
    int n = snprintf(f->path, sizeof f->path, "%s/%s", in->dir, file->path.p);
    snprintf(f->partial, sizeof f->partial, "%.4000s.partial", f->path);
    snprintf(f->state, sizeof f->state, "%.4000s.partial.json", f->path);
    int u = snprintf(f->url, sizeof f->url, "%s/%s/resolve/%s/%s", hub_endpoint(in->opt), in->repo, in->commit, file->path.p);
    if (n >= 4000 || u >= (int)sizeof f->url)
        rc = err_set(err, ERR_LIMIT, "%s: path too long", file->path.p);
    else if (file_size(f->path) == (int64_t)file->size_bytes)
        goto out; /* already here, was checked when it got its name */
    rc = rc ? rc : hub_curl_load(err);
    if (rc)
        goto out;
    f->have = mem_try_zero(f->chunks, sizeof *f->have);
    f->taken = mem_try_zero(f->chunks, sizeof *f->taken);
    f->multi = hub_curl.multi_init();
    f->sha = file->sha256[0] ? sha256_new() : NULL;
    if (!f->have || !f->taken || !f->multi || (file->sha256[0] && !f->sha))
        rc = err_nomem(err, "pull", f->chunks * 9);
    rc = rc ? rc : make_dirs(f, err);
    if (!rc)
        state_read(f);
    rc = rc ? rc : open_partial(f, err);
    f->rate_at_ns = thread_now_ns();
    f->rate_bytes = f->got;
    rc = rc ? rc : run(f, err);
    rc = rc ? rc : finish(f, err);
out:
    if (f->sha)
        sha256_end(f->sha, (char[65]){0});
    if (f->fd >= 0)
        close(f->fd);
    if (f->multi)
        hub_curl.multi_cleanup(f->multi);
    mem_free(f->have);
    mem_free(f->taken);
    mem_free(f);
    return rc;
}
