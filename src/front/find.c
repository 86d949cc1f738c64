/* front/find.c - a model's name, as people write it -> the file or folder to open; or what is wrong with it and what to give instead.
 *
 * Does not:   open models.  What a file holds is judged by who reads it; here only what cannot be one is told from what can. */
#include "base/file.h"
#include "base/mem.h"
#include "base/near.h"
#include "front/front_int.h"

#include <dirent.h>
#include <stdio.h>

enum { PATH_BYTES_MAX = 4096 };

static bool is_gguf_name(struct str name)
{
    return str_ends(name, STR(".gguf"));
}

static bool is_later_shard(const char *name)
{
    unsigned no = 0, of = 0;
    const char *tail = strstr(name, "-of-");
    return tail && tail - name > 6 && sscanf(tail - 6, "-%5u-of-%5u.gguf", &no, &of) == 2 && no > 1;
}

static bool has_config(const char *dir)
{
    char path[PATH_BYTES_MAX];
    return file_join(path, sizeof path, dir, "config.json", NULL) == 0 && file_exists(path);
}

/* The first .gguf file of a folder by name, and how many models of that kind it holds; whether weights stand there, too. */
static size_t scan(const char *dir, char first[NEAR_NAME_MAX], bool *weights)
{
    size_t n = 0;
    struct dirent *e;
    DIR *d = opendir(dir);
    first[0] = 0;
    *weights = false;
    while (d && (e = readdir(d))) {
        *weights |= str_ends(str_of(e->d_name), STR(".safetensors"));
        if (!is_gguf_name(str_of(e->d_name)) || is_later_shard(e->d_name) || strlen(e->d_name) >= NEAR_NAME_MAX)
            continue;
        n++;
        if (!first[0] || strcmp(e->d_name, first) < 0)
            memcpy(first, e->d_name, strlen(e->d_name) + 1);
    }
    if (d)
        closedir(d);
    return n;
}

static int check_dir(const char *path, struct err *err)
{
    char first[NEAR_NAME_MAX];
    bool weights;
    if (has_config(path))
        return 0;
    size_t n = scan(path, first, &weights);
    if (n)
        return err_set(err, ERR_FORMAT, "%.400s: a folder with %zu .gguf %s: give a file, such as %.400s/%s", path, n, n == 1 ? "model" : "models", path,
                       first);
    return err_set(err, ERR_FORMAT, "%.400s: expected config.json in the folder%s, got none: a model is a .gguf file, or a folder with config.json, "
                   "tokenizer.json and .safetensors files", path, weights ? " beside the .safetensors files" : "");
}

/* One file of a folder that is a model, or would be. */
static int check_file(const char *path, struct err *err)
{
    char dir[PATH_BYTES_MAX];
    const char *slash = strrchr(path, '/');
    bool weights = str_ends(str_of(path), STR(".safetensors"));
    if (!weights && !str_ends(str_of(path), STR(".json")))
        return 0;
    if (snprintf(dir, sizeof dir, "%.*s", slash ? (int)(slash - path) : 1, slash ? path : ".") >= (int)sizeof dir)
        return 0;
    if (slash == path)
        snprintf(dir, sizeof dir, "/");
    if (has_config(dir))
        return err_set(err, ERR_FORMAT, "%.400s: one file of a model: give its folder, %.400s", path, dir);
    return weights ? err_set(err, ERR_FORMAT, "%.400s: weights alone: config.json and tokenizer.json belong beside them, and their folder is what to give",
                             path)
                   : 0;
}

int find_check(const char *path, struct err *err)
{
    return file_is_dir(path) ? check_dir(path, err) : check_file(path, err);
}

/* A slip in the last part of a path: the file or folder beside that has nearly this name. */
static void put_neighbour(const char *name, struct err *err)
{
    char dir[PATH_BYTES_MAX];
    struct near near;
    struct dirent *e;
    const char *slash = strrchr(name, '/');
    if ((!slash && !is_gguf_name(str_of(name))) || strstr(err->text, "did you mean") ||
        snprintf(dir, sizeof dir, "%.*s", slash ? (int)(slash - name) + 1 : 1, slash ? name : ".") >= (int)sizeof dir)
        return;
    near_begin(&near, str_of(slash ? slash + 1 : name));
    DIR *d = opendir(dir);
    while (d && (e = readdir(d)))
        if (e->d_name[0] != '.' && (e->d_type == DT_DIR || is_gguf_name(str_of(e->d_name))))
            near_try(&near, str_of(e->d_name));
    if (d)
        closedir(d);
    size_t used = strlen(err->text);
    if (near_best(&near))
        snprintf(err->text + used, sizeof err->text - used, "; did you mean '%.300s%s'?", slash ? dir : "", near_best(&near));
}

int find_model(const char *store_dir, const char *name, char **path, struct err *err)
{
    struct rh_error rerr = {0};
    int rc = 0;
    *path = NULL;
    if (!file_exists(name)) {
        rc = store_dir ? rh_store_find(store_dir, name, path, &rerr) : ERR_NOT_FOUND;
        if (rc && rerr.text[0])
            err_set(err, rc, "%s", rerr.text);
        else if (rc)
            err_set(err, rc, "model '%.400s': no such file or directory", name);
        if (rc == ERR_NOT_FOUND && err)
            put_neighbour(name, err);
        return rc;
    }
    rc = find_check(name, err);
    if (rc == 0 && !(*path = mem_try_strndup(name, strlen(name))))
        rc = err_nomem(err, "model path", strlen(name));
    return rc;
}
