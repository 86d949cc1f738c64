/* hub/api.c - the tree of a repository, and which of its files a spec means. */
#include "hub/hub_int.h"

#include "base/json.h"
#include "base/mem.h"

#include <stdio.h>
#include <stdlib.h>
#include <strings.h>

bool hub_path_safe(struct str path)
{
    if (path.n == 0 || path.n > 1024 || path.p[0] == '/')
        return false;
    for (size_t i = 0; i < path.n; i++)
        if ((unsigned char)path.p[i] < 0x20 || path.p[i] == '\\' || path.p[i] == 0x7F)
            return false;
    struct str rest = path, piece;
    while (str_split(&rest, '/', &piece))
        if (piece.n == 0 || str_is(piece, ".") || str_is(piece, ".."))
            return false;
    return true;
}

void hub_listing_free(struct hub_listing *l)
{
    mem_free(l->files);
    arena_free(&l->arena);
    *l = (struct hub_listing){0};
}

static bool is_sha256(struct str s)
{
    for (size_t i = 0; i < s.n; i++)
        if (!((s.p[i] >= '0' && s.p[i] <= '9') || (s.p[i] >= 'a' && s.p[i] <= 'f')))
            return false;
    return s.n == 64;
}

static int add_file(struct hub_listing *l, yyjson_val *entry, const char *url, struct err *err)
{
    struct str path = json_str(yyjson_obj_get(entry, "path")), sha = json_str(yyjson_obj_get(yyjson_obj_get(entry, "lfs"), "oid"));
    yyjson_val *size = yyjson_obj_get(entry, "size");
    if (!str_is(json_str(yyjson_obj_get(entry, "type")), "file"))
        return 0;
    if (!hub_path_safe(path) || !yyjson_is_uint(size))
        return err_set(err, ERR_FORMAT, "%s: file entry: expected a relative path and a size, got '%.*s'", url, STR_ARG(path));
    if (l->count == HUB_FILES_MAX)
        return err_set(err, ERR_LIMIT, "%s: more than %d files", url, HUB_FILES_MAX);
    if (l->count == l->cap) {
        size_t cap = l->cap ? l->cap * 2 : 64;
        struct hub_file *more = mem_try_resize(l->files, cap * sizeof *more);
        if (!more)
            return err_nomem(err, "hub listing", cap * sizeof *more);
        l->files = more;
        l->cap = cap;
    }
    struct hub_file f = {.path = arena_try_str(&l->arena, path), .size_bytes = yyjson_get_uint(size)};
    if (!f.path.p)
        return err_nomem(err, "hub listing", path.n);
    if (is_sha256(sha))
        memcpy(f.sha256, sha.p, 64);
    l->files[l->count++] = f;
    return 0;
}

static int add_page(struct hub_listing *l, struct str body, const char *url, struct err *err)
{
    yyjson_doc *doc = json_parse(body, url, err);
    if (!doc)
        return ERR_FORMAT;
    int rc = 0;
    yyjson_val *root = yyjson_doc_get_root(doc), *entry;
    if (!yyjson_is_arr(root))
        rc = err_set(err, ERR_FORMAT, "%s: expected an array of files, got %s", url, json_type_name(root));
    size_t i, n;
    yyjson_arr_foreach(root, i, n, entry) {
        rc = rc ? rc : add_file(l, entry, url, err);
    }
    json_free(doc);
    return rc;
}

int hub_list(const char *repo, const struct hub_pull_options *opt, struct hub_listing *out, struct err *err)
{
    char url[2048];
    const char *revision = opt->revision ? opt->revision : "main";
    *out = (struct hub_listing){0};
    snprintf(url, sizeof url, "%s/api/models/%s/tree/%s?recursive=true", hub_endpoint(opt), repo, revision);
    int rc = 0;
    for (int page = 0; !rc && url[0]; page++) {
        struct hub_reply r;
        if (page == 1000)
            rc = err_set(err, ERR_LIMIT, "%s: more than 1000 pages of files", repo);
        else if (!(rc = hub_http_get(opt, url, false, &r, err))) {
            rc = add_page(out, buf_view(&r.body), url, err);
            if (r.commit[0])
                snprintf(out->commit, sizeof out->commit, "%s", r.commit);
            buf_free(&r.body);
            if (r.next[0] == '/')
                snprintf(url, sizeof url, "%.1000s%.1000s", hub_endpoint(opt), r.next);
            else
                snprintf(url, sizeof url, "%.2000s", r.next);
        }
    }
    if (!rc && !out->commit[0])
        snprintf(out->commit, sizeof out->commit, "%.64s", revision);
    if (rc)
        hub_listing_free(out);
    return rc;
}

static bool contains_nocase(struct str s, struct str what)
{
    for (size_t i = 0; what.n && i + what.n <= s.n; i++)
        if (strncasecmp(s.p + i, what.p, what.n) == 0)
            return true;
    return false;
}

/* "model-00002-of-00005.gguf": the stem before the number and the number; false for whole files. */
static bool shard_of(struct str path, struct str *stem, unsigned *index)
{
    static const size_t tail = sizeof "-00001-of-00005.gguf" - 1;
    if (path.n <= tail)
        return false;
    struct str t = str_from(path, path.n - tail);
    unsigned total;
    char text[32];
    snprintf(text, sizeof text, "%.*s", (int)t.n, t.p);
    if (sscanf(text, "-%5u-of-%5u.gguf", index, &total) != 2)
        return false;
    *stem = str_n(path.p, path.n - tail);
    return true;
}

/* Keep the file at `at` (and the rest of its split set, in order) only. */
static void keep_gguf(struct hub_listing *l, size_t at)
{
    struct str stem, other;
    unsigned index, n = 0;
    struct hub_file first = l->files[at];
    if (!shard_of(first.path, &stem, &index)) {
        l->files[0] = first;
        l->count = 1;
        return;
    }
    for (size_t i = 0; i < l->count; i++)
        if (shard_of(l->files[i].path, &other, &index) && str_eq(stem, other))
            l->files[n++] = l->files[i];
    l->count = n;
    for (size_t i = 1; i < l->count; i++) /* insertion sort by path: numbers are zero-padded */
        for (size_t k = i; k && str_cmp(l->files[k].path, l->files[k - 1].path) < 0; k--) {
            struct hub_file t = l->files[k];
            l->files[k] = l->files[k - 1];
            l->files[k - 1] = t;
        }
}

static bool is_projector(struct str path)
{
    return contains_nocase(path, STR("mmproj"));
}

/* The file of a quantisation name, or by our order of preference when `wanted` is empty.  SIZE_MAX: none. */
static size_t find_gguf(const struct hub_listing *l, struct str wanted)
{
    static const char *const order[] = {"Q4_K_M", "Q4_K_S", "Q4_1", "Q4_0", "Q5_K_M", "Q6_K", "Q8_0", "BF16", "F16", ""};
    for (size_t o = 0; o < sizeof order / sizeof order[0]; o++) {
        struct str want = wanted.n ? wanted : str_of(order[o]);
        for (size_t i = 0; i < l->count; i++) {
            struct str stem;
            unsigned index = 1;
            if (!str_ends(l->files[i].path, STR(".gguf")) || is_projector(l->files[i].path))
                continue;
            if (shard_of(l->files[i].path, &stem, &index) && index != 1)
                continue;
            if (want.n == 0 || contains_nocase(l->files[i].path, want))
                return i;
        }
        if (wanted.n)
            break;
    }
    return SIZE_MAX;
}

bool hub_model_file(struct str name)
{
    static const char *const ends[] = {".safetensors", ".json", ".jinja", ".model", "merges.txt", "vocab.txt"};
    for (size_t e = 0; e < sizeof ends / sizeof ends[0]; e++)
        if (str_ends(name, str_of(ends[e])))
            return true;
    return false;
}

/* A whole safetensors model: weights and the small files beside them, top folder only; config.json first. */
static int keep_safetensors(struct hub_listing *l, const char *repo, struct err *err)
{
    size_t n = 0, weights = 0, config = SIZE_MAX;
    for (size_t i = 0; i < l->count; i++) {
        struct str path = l->files[i].path;
        if (!hub_model_file(path) || memchr(path.p, '/', path.n))
            continue;
        weights += str_ends(path, STR(".safetensors"));
        if (str_is(path, "config.json"))
            config = n;
        l->files[n++] = l->files[i];
    }
    l->count = n;
    if (!weights || config == SIZE_MAX)
        return err_set(err, ERR_NOT_FOUND, "%s: expected a .gguf file, or config.json with .safetensors files; the repository has neither", repo);
    struct hub_file t = l->files[0];
    l->files[0] = l->files[config];
    l->files[config] = t;
    return 0;
}

int hub_select(struct hub_listing *l, struct str wanted, const char *repo, struct err *err)
{
    for (size_t i = 0; wanted.n && i < l->count; i++)
        if (str_eq(l->files[i].path, wanted)) {
            keep_gguf(l, i);
            return 0;
        }
    size_t at = find_gguf(l, wanted);
    if (at != SIZE_MAX) {
        keep_gguf(l, at);
        return 0;
    }
    if (wanted.n) {
        struct buf names = {.max = 600};
        for (size_t i = 0; i < l->count; i++)
            if (str_ends(l->files[i].path, STR(".gguf")))
                buf_printf(&names, " %.*s", STR_ARG(l->files[i].path));
        int rc = err_set(err, ERR_NOT_FOUND, "%s: expected a file '%.*s', the repository's .gguf files are:%s", repo, STR_ARG(wanted),
                         names.n ? buf_cstr(&names) : " none");
        buf_free(&names);
        return rc;
    }
    return keep_safetensors(l, repo, err);
}
