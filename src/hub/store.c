/* hub/store.c - entries on disk: names to folders, listing, adding, removing. */
#include "hub/hub_int.h"

#include "base/file.h"
#include "base/hash.h"
#include "base/json.h"
#include "base/mem.h"
#include "base/near.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum { NAME_MAX_BYTES = 200, REMOVE_DEPTH = 16 };

/* A name as one folder name: everything but letters, digits, '-', '_' and inner '.' is %XX. */
static int escape(char *out, size_t cap, const char *name, struct err *err)
{
    size_t n = 0, len = strlen(name);
    if (len == 0 || len > NAME_MAX_BYTES)
        return err_set(err, ERR_ARGUMENT, "model name: expected 1 to %d bytes, got %zu", NAME_MAX_BYTES, len);
    for (size_t i = 0; i < len; i++) {
        unsigned char c = (unsigned char)name[i];
        bool plain = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' || c == '_' || (c == '.' && i);
        if (n + 4 > cap)
            return err_set(err, ERR_ARGUMENT, "model name '%s': too long", name);
        n += (size_t)snprintf(out + n, cap - n, plain ? "%c" : "%%%02X", c);
    }
    return 0;
}

static void unescape(char *out, size_t cap, const char *dir)
{
    size_t n = 0;
    for (; *dir && n + 1 < cap; n++) {
        unsigned v;
        if (*dir == '%' && sscanf(dir + 1, "%2X", &v) == 1 && dir[1] && dir[2]) {
            out[n] = (char)v;
            dir += 3;
        } else {
            out[n] = *dir++;
        }
    }
    out[n] = 0;
}

int hub_entry_dir(char out[HUB_PATH_MAX], const char *store, const char *name, struct err *err)
{
    char folder[3 * NAME_MAX_BYTES + 8];
    int rc = escape(folder, sizeof folder, name, err);
    if (rc)
        return rc;
    if (snprintf(out, HUB_PATH_MAX, "%s/models/%s", store, folder) >= HUB_PATH_MAX - 16)
        return err_set(err, ERR_ARGUMENT, "%s: path too long", store);
    return 0;
}

int hub_entry_write(const char *dir, const char *name, const struct hub_file *files, size_t count, const char *source, const char *revision,
                    struct err *err)
{
    struct buf b = {0};
    char path[HUB_PATH_MAX];
    buf_z(&b, "{\"name\":");
    buf_json_str(&b, str_of(name));
    buf_z(&b, ",\"source\":");
    buf_json_str(&b, str_of(source));
    buf_z(&b, ",\"revision\":");
    buf_json_str(&b, str_of(revision));
    buf_z(&b, ",\"files\":[");
    for (size_t i = 0; i < count; i++) {
        buf_z(&b, i ? ",{\"path\":" : "{\"path\":");
        buf_json_str(&b, files[i].path);
        buf_printf(&b, ",\"bytes\":%llu,\"sha256\":\"%s\"}", (unsigned long long)files[i].size_bytes, files[i].sha256);
    }
    buf_z(&b, "]}\n");
    int rc = buf_check(&b, "store entry", err);
    rc = rc ? rc : file_join(path, sizeof path, dir, "entry.json", err);
    rc = rc ? rc : file_write_atomic(path, buf_view(&b), err);
    buf_free(&b);
    return rc;
}

static int hash_file(const char *path, char hex[65], struct err *err)
{
    struct file_map m;
    int rc = file_map_open(&m, path, err);
    if (rc)
        return rc;
    struct sha256 *s = sha256_new();
    if (!s) {
        file_map_close(&m);
        return err_nomem(err, "SHA-256", 0);
    }
    sha256_put(s, m.p, m.n);
    sha256_end(s, hex);
    file_map_close(&m);
    return 0;
}

/* Hard link where the file system allows it, else copy beside and rename. */
static int take_file(const char *from, const char *to, struct err *err)
{
    unlink(to);
    if (linkat(AT_FDCWD, from, AT_FDCWD, to, AT_SYMLINK_FOLLOW) == 0) /* the file, not a link to it: a hub's own cache is made of these */
        return 0;
    struct file_map m;
    int rc = file_map_open(&m, from, err);
    rc = rc ? rc : file_write_atomic(to, str_n(m.p, m.n), err);
    if (m.p)
        file_map_close(&m);
    return rc;
}

static int remove_tree(const char *dir, int depth, struct err *err)
{
    if (!depth)
        return err_set(err, ERR_LIMIT, "%s: nested deeper than %d folders", dir, REMOVE_DEPTH);
    DIR *d = opendir(dir);
    if (!d)
        return err_set(err, ERR_IO, "%s: cannot open: %s", dir, strerror(errno));
    int rc = 0;
    for (struct dirent *e; !rc && (e = readdir(d));) {
        char path[HUB_PATH_MAX];
        struct stat st;
        if (!strcmp(e->d_name, ".") || !strcmp(e->d_name, ".."))
            continue;
        rc = file_join(path, sizeof path, dir, e->d_name, err);
        if (!rc && lstat(path, &st) == 0 && S_ISDIR(st.st_mode))
            rc = remove_tree(path, depth - 1, err);
        else if (!rc && unlink(path))
            rc = err_set(err, ERR_IO, "%s: cannot remove: %s", path, strerror(errno));
    }
    closedir(d);
    if (!rc && rmdir(dir))
        rc = err_set(err, ERR_IO, "%s: cannot remove: %s", dir, strerror(errno));
    return rc;
}

/* Whether a file stands anywhere below, depth bounded. */
static bool has_file(const char *dir, int depth)
{
    bool found = false;
    DIR *d = depth ? opendir(dir) : NULL;
    for (struct dirent *e; d && !found && (e = readdir(d));) {
        char path[HUB_PATH_MAX];
        if (!strcmp(e->d_name, ".") || !strcmp(e->d_name, "..") || file_join(path, sizeof path, dir, e->d_name, NULL))
            continue;
        found = !file_is_dir(path) || has_file(path, depth - 1);
    }
    if (d)
        closedir(d);
    return found;
}

void hub_entry_prune(const char *dir)
{
    char files[HUB_PATH_MAX];
    if (file_join(files, sizeof files, dir, "files", NULL) == 0 && !has_file(files, REMOVE_DEPTH))
        remove_tree(dir, REMOVE_DEPTH, NULL);
}

/* Into the folder `files`; hashes and sizes of what was taken. */
static int take_files(const char *files, const char *dir, struct hub_file *list, size_t count, const char *sha256, struct err *err)
{
    int rc = file_mkdirs(files, err);
    for (size_t i = 0; rc == 0 && i < count; i++) {
        char from[HUB_PATH_MAX], to[HUB_PATH_MAX];
        rc = file_join(from, sizeof from, dir, list[i].path.p, err);
        rc = rc ? rc : file_join(to, sizeof to, files, list[i].path.p, err);
        rc = rc ? rc : hash_file(from, list[i].sha256, err);
        if (!rc && i == 0 && sha256 && strcmp(sha256, list[0].sha256))
            rc = err_set(err, ERR_FORMAT, "%s: expected SHA-256 %s, got %s", from, sha256, list[0].sha256);
        rc = rc ? rc : take_file(from, to, err);
        list[i].size_bytes = rc ? 0 : (uint64_t)file_size(to);
    }
    return rc;
}

int hub_store_add(const char *store, const char *name, const char *dir, const char *const *names, size_t count, const char *sha256, struct err *err)
{
    char entry[HUB_PATH_MAX], fresh[HUB_PATH_MAX], files[HUB_PATH_MAX];
    struct hub_file *list = mem_try_zero(count, sizeof *list);
    int rc = list ? hub_entry_dir(entry, store, name, err) : err_nomem(err, "files of a model", count * sizeof *list);
    for (size_t i = 0; rc == 0 && i < count; i++)
        list[i].path = str_of(names[i]);
    /* beside, and into place when it is whole: an entry of that name stays until then */
    if (rc == 0 && snprintf(fresh, sizeof fresh, "%.3000s/models/.new.%ld", store, (long)getpid()) >= HUB_PATH_MAX - 16)
        rc = err_set(err, ERR_ARGUMENT, "%s: path too long", store);
    if (rc == 0) {
        rc = file_join(files, sizeof files, fresh, "files", err);
        rc = rc ? rc : take_files(files, dir, list, count, sha256, err);
        rc = rc ? rc : hub_entry_write(fresh, name, list, count, "local", "", err);
        if (!rc && file_is_dir(entry))
            rc = remove_tree(entry, REMOVE_DEPTH, err);
        if (!rc && rename(fresh, entry))
            rc = err_set(err, ERR_IO, "%s: cannot rename into place: %s", entry, strerror(errno));
        if (rc && file_is_dir(fresh))
            remove_tree(fresh, REMOVE_DEPTH, NULL);
    }
    mem_free(list);
    return rc;
}

struct entry {
    char name[NAME_MAX_BYTES + 1];
    char path[HUB_PATH_MAX]; /* what to open; "" when not complete */
    uint64_t bytes;
    bool complete;
    int64_t modified_s;
    char sha256[65];         /* of an entry of one file; "" when not known */
};

/* Bytes of all files below, links not followed; depth bounded. */
static uint64_t tree_bytes(const char *dir, int depth)
{
    uint64_t total = 0;
    DIR *d = depth ? opendir(dir) : NULL;
    for (struct dirent *e; d && (e = readdir(d));) {
        char path[HUB_PATH_MAX];
        struct stat st;
        if (!strcmp(e->d_name, ".") || !strcmp(e->d_name, "..") || file_join(path, sizeof path, dir, e->d_name, NULL) || lstat(path, &st))
            continue;
        total += S_ISDIR(st.st_mode) ? tree_bytes(path, depth - 1) : (uint64_t)st.st_blocks * 512;
    }
    if (d)
        closedir(d);
    return total;
}

static void read_entry(const char *models, const char *folder, struct entry *e)
{
    char dir[HUB_PATH_MAX], json[HUB_PATH_MAX];
    struct buf text = {0};
    *e = (struct entry){0};
    unescape(e->name, sizeof e->name, folder);
    if (file_join(dir, sizeof dir, models, folder, NULL) || file_join(json, sizeof json, dir, "entry.json", NULL))
        return;
    struct stat st;
    if (stat(dir, &st) == 0)
        e->modified_s = st.st_mtime;
    yyjson_doc *doc = file_read(&text, json, 8 << 20, NULL) ? NULL : json_parse(buf_view(&text), json, NULL);
    yyjson_val *files = yyjson_obj_get(yyjson_doc_get_root(doc), "files"), *file;
    size_t i, n;
    yyjson_arr_foreach(files, i, n, file) {
        e->bytes += yyjson_get_uint(yyjson_obj_get(file, "bytes"));
        struct str p = json_str(yyjson_obj_get(file, "path"));
        if (i || !hub_path_safe(p))
            continue;
        struct str sha = json_str(yyjson_obj_get(file, "sha256"));
        if (n == 1 && sha.n == 64)
            memcpy(e->sha256, sha.p, 64);
        int len = str_is(p, "config.json") ? snprintf(e->path, sizeof e->path, "%.3000s/files", dir)
                                           : snprintf(e->path, sizeof e->path, "%.3000s/files/%.*s", dir, (int)p.n, p.p);
        e->complete = len > 0 && len < (int)sizeof e->path && file_exists(e->path);
    }
    if (!doc)
        e->bytes = tree_bytes(dir, REMOVE_DEPTH);
    json_free(doc);
    buf_free(&text);
}

static int by_name(const void *a, const void *b)
{
    return strcmp(((const struct entry *)a)->name, ((const struct entry *)b)->name);
}

static int read_all(const char *store, struct entry **out, size_t *count, struct err *err)
{
    char models[HUB_PATH_MAX];
    size_t n = 0, cap = 0;
    struct entry *list = NULL;
    *out = NULL;
    *count = 0;
    int rc = file_join(models, sizeof models, store, "models", err);
    DIR *d = rc ? NULL : opendir(models);
    if (!d)
        return rc;
    for (struct dirent *e; !rc && (e = readdir(d));) {
        if (e->d_name[0] == '.')
            continue;
        if (n == cap) {
            cap = cap ? cap * 2 : 16;
            struct entry *more = mem_try_resize(list, cap * sizeof *more);
            if (!more) {
                rc = err_nomem(err, "store listing", cap * sizeof *more);
                break;
            }
            list = more;
        }
        read_entry(models, e->d_name, &list[n++]);
    }
    closedir(d);
    if (rc) {
        mem_free(list);
        return rc;
    }
    if (n)
        qsort(list, n, sizeof *list, by_name);
    *out = list;
    *count = n;
    return 0;
}

int hub_store_list(const char *store, struct buf *json, struct err *err)
{
    struct entry *list;
    size_t n;
    int rc = read_all(store, &list, &n, err);
    if (rc)
        return rc;
    buf_char(json, '[');
    for (size_t i = 0; i < n; i++) {
        buf_z(json, i ? ",{\"name\":" : "{\"name\":");
        buf_json_str(json, str_of(list[i].name));
        buf_z(json, ",\"path\":");
        buf_json_str(json, str_of(list[i].path));
        buf_printf(json, ",\"bytes\":%llu,\"complete\":%s,\"modified\":%lld", (unsigned long long)list[i].bytes, list[i].complete ? "true" : "false",
                   (long long)list[i].modified_s);
        if (list[i].sha256[0]) {
            buf_z(json, ",\"sha256\":");
            buf_json_str(json, str_of(list[i].sha256));
        }
        buf_char(json, '}');
    }
    buf_char(json, ']');
    mem_free(list);
    return buf_check(json, "store listing", err);
}

/* What to say of a name that is not there: the one it may have been meant for, or how it gets there. */
static void put_hint(struct err *err, const struct entry *list, size_t n, const char *name, bool partial)
{
    struct near near;
    size_t used = strlen(err->text), slashes = 0;
    near_begin(&near, str_of(name));
    for (size_t i = 0; i < n; i++)
        if (list[i].complete || partial)
            near_try(&near, str_of(list[i].name));
    for (const char *p = name; *p; p++)
        slashes += *p == '/';
    if (near_best(&near))
        snprintf(err->text + used, sizeof err->text - used, "; did you mean '%s'?", near_best(&near));
    else if (slashes == 1 && name[0] != '/' && name[0] != '.' && !str_ends(str_of(name), STR(".gguf")) && !partial)
        snprintf(err->text + used, sizeof err->text - used, "; a model of the hub is fetched by: rhapsode pull %.200s", name);
}

int hub_store_find(const char *store, const char *name, struct buf *path, struct err *err)
{
    struct entry *list;
    size_t n, hit = SIZE_MAX, prefixed = 0;
    int rc = read_all(store, &list, &n, err);
    if (rc)
        return rc;
    for (size_t i = 0; i < n; i++) {
        if (!list[i].complete)
            continue;
        if (!strcmp(list[i].name, name)) {
            hit = i;
            prefixed = 1;
            break;
        }
        if (!strncmp(list[i].name, name, strlen(name)) && name[0]) {
            hit = i;
            prefixed++;
        }
    }
    if (prefixed == 1)
        buf_z(path, list[hit].path);
    else if (prefixed > 1)
        rc = err_set(err, ERR_ARGUMENT, "model '%s': %zu names in the store start with it; say more", name, prefixed);
    else
        rc = err_set(err, ERR_NOT_FOUND, "model '%.400s': no such file or directory, and not in the store %.300s", name, store);
    if (rc == ERR_NOT_FOUND && err)
        put_hint(err, list, n, name, false);
    mem_free(list);
    return rc ? rc : buf_check(path, "model path", err);
}

int hub_store_remove(const char *store, const char *name, struct err *err)
{
    char dir[HUB_PATH_MAX];
    int rc = hub_entry_dir(dir, store, name, err);
    if (rc || file_is_dir(dir))
        return rc ? rc : remove_tree(dir, REMOVE_DEPTH, err);
    struct entry *list = NULL;
    size_t n = 0;
    rc = read_all(store, &list, &n, err);
    rc = rc ? rc : err_set(err, ERR_NOT_FOUND, "model '%.400s': not in the store %.300s", name, store);
    if (rc == ERR_NOT_FOUND && err)
        put_hint(err, list, n, name, true);
    mem_free(list);
    return rc;
}
