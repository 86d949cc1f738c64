/* front/kvcheck_store.c - kvcheck's figures in the model store, and what they say about a format when a model is opened.
 *
 * STORE/kvcheck/<bytes of the tensors>-<content hash>-a<arithmetic>.json: the newest figures of every format measured.  The size stands
 * first so that a model nobody measured is not hashed. */
#include "base/file.h"
#include "base/log.h"
#include "base/mem.h"
#include "front/kvcheck.h"

#include <dirent.h>
#include <stdlib.h>

enum { RESULT_MAX = 4 << 20 };
static const double TOP1_LEAST = 0.8, KL_MOST = 0.3;

static int result_path(struct rh_model *m, char out[4096], struct err *err)
{
    char hex[33], name[96], dir[4096];
    struct device_info d;
    int rc = identity_content(m, hex, err);
    if (rc)
        return rc;
    m->host->backend->device_info(m->host->device, &d);
    snprintf(name, sizeof name, "%llu-%s-%s%u.json", (unsigned long long)model_info(m->model)->tensor_bytes, hex, d.backend, d.arithmetic);
    rc = file_join(dir, sizeof dir, m->host->store_dir, "kvcheck", err);
    if (rc == 0)
        rc = file_mkdirs(dir, err);
    return rc ? rc : file_join(out, 4096, dir, name, err);
}

static yyjson_val *format_find(yyjson_val *root, const char *name)
{
    size_t i, n;
    yyjson_val *entry;
    yyjson_arr_foreach(yyjson_obj_get(root, "formats"), i, n, entry)
        if (yyjson_equals_str(yyjson_obj_get(entry, "format"), name))
            return entry;
    return NULL;
}

static yyjson_doc *result_read(const char *path, struct err *err)
{
    struct buf text = {0};
    yyjson_doc *doc = file_read(&text, path, RESULT_MAX, err) == 0 ? json_parse(buf_view(&text), path, err) : NULL;
    buf_free(&text);
    return doc;
}

/* Old figures of formats that were not measured again. */
static int merge(yyjson_mut_doc *doc, yyjson_val *fresh, yyjson_val *old)
{
    size_t i, n;
    yyjson_val *entry;
    yyjson_mut_val *formats = yyjson_mut_obj_get(yyjson_mut_doc_get_root(doc), "formats");
    yyjson_arr_foreach(yyjson_obj_get(old, "formats"), i, n, entry)
    {
        const char *name = yyjson_get_str(yyjson_obj_get(entry, "format"));
        if (!name || format_find(fresh, name))
            continue;
        yyjson_mut_val *copy = yyjson_val_mut_copy(doc, entry);
        if (!copy || !yyjson_mut_arr_append(formats, copy))
            return ERR_NOMEM;
    }
    return 0;
}

int kvcheck_keep(struct rh_model *m, struct str json, struct err *err)
{
    char path[4096];
    int rc = result_path(m, path, err);
    if (rc)
        return rc;
    yyjson_doc *fresh = json_parse(json, "kvcheck", err), *old = file_exists(path) ? result_read(path, NULL) : NULL;
    yyjson_mut_doc *doc = fresh ? yyjson_doc_mut_copy(fresh, NULL) : NULL;
    size_t n = 0;
    char *text = NULL;
    rc = doc ? merge(doc, yyjson_doc_get_root(fresh), yyjson_doc_get_root(old)) : ERR_NOMEM;
    if (rc == 0 && !(text = yyjson_mut_write(doc, 0, &n)))
        rc = ERR_NOMEM;
    rc = rc ? err_nomem(err, "kvcheck", json.n) : file_write_atomic(path, str_n(text, n), err);
    free(text);
    yyjson_mut_doc_free(doc);
    json_free(fresh);
    json_free(old);
    return rc;
}

/* Is there a result of a model of this size? */
static bool measured_size(const struct rh_model *m)
{
    char dir[4096], start[32];
    bool found = false;
    snprintf(start, sizeof start, "%llu-", (unsigned long long)model_info(m->model)->tensor_bytes);
    DIR *d = file_join(dir, sizeof dir, m->host->store_dir, "kvcheck", NULL) == 0 ? opendir(dir) : NULL;
    for (struct dirent *e = d ? readdir(d) : NULL; e && !found; e = readdir(d))
        found = strncmp(e->d_name, start, strlen(start)) == 0;
    if (d)
        closedir(d);
    return found;
}

static bool plain(enum kv_format f)
{
    return f <= KV_BF16;
}

static int judge(const char *name, yyjson_val *entry, bool force, struct err *err)
{
    double top1 = yyjson_get_num(yyjson_obj_get(entry, "top1")), kl = yyjson_get_num(yyjson_obj_get(entry, "kl_mean"));
    if (!yyjson_is_num(yyjson_obj_get(entry, "top1")) || (top1 >= TOP1_LEAST && kl <= KL_MOST))
        return 0;
    if (force) {
        log_put(LOG_WARN, "kv: %s collapsed on this model (top-1 agreement %.3f, mean KL %.3g); forced", name, top1, kl);
        return 0;
    }
    return err_set(err, ERR_UNSUPPORTED,
                   "kv: %s collapses on this model: top-1 agreement %.3f (expected at least %.1f), mean KL %.3g (at most %.1f), as kvcheck measured; "
                   "--kv-force opens it all the same",
                   name, top1, TOP1_LEAST, kl, KL_MOST);
}

int kvcheck_gate(struct rh_model *m, bool force, struct err *err)
{
    char name[KV_NAME_MAX], path[4096];
    if (!m->host->store_dir)
        return 0;
    if (m->options.kv_layer_count) {
        log_put(LOG_NOTICE, "kv: what formats layer by layer cost this model is not measured");
        return 0;
    }
    if (plain(m->options.k_format) && plain(m->options.v_format))
        return 0;
    kv_formats_name(m->options.k_format, m->options.v_format, name);
    yyjson_doc *doc = NULL;
    if (measured_size(m) && result_path(m, path, NULL) == 0 && file_exists(path))
        doc = result_read(path, NULL);
    yyjson_val *entry = doc ? format_find(yyjson_doc_get_root(doc), name) : NULL;
    int rc = entry ? judge(name, entry, force, err) : 0;
    if (!entry)
        log_put(LOG_NOTICE, "kv: what %s costs this model is not measured (rhapsode kvcheck)", name);
    json_free(doc);
    return rc;
}
