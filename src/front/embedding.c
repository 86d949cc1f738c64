/* front/embedding.c - which of a text's hidden rows are its embedding, as the model's files say, and the vector made of them.
 *
 * GGUF: ARCH.pooling_type.  Hugging Face directories: modules.json and the pooling module's config.json, as sentence-transformers writes them.
 * Files that say nothing: the last row, which alone has seen the whole text.
 * The vector is scaled to length 1; one of fewer dimensions is its beginning, scaled again. */
#include "front/front_int.h"

#include "base/mem.h"
#include "format/gguf.h"
#include "format/safetensors.h"

#include <stdio.h>

enum { GGUF_POOL_NONE, GGUF_POOL_MEAN, GGUF_POOL_CLS, GGUF_POOL_LAST, GGUF_POOL_RANK };

static int pool_of_gguf(const struct gguf *g, enum engine_pool *out, struct err *err)
{
    static const char *const names[] = {"none", "mean", "cls", "last", "rank"};
    struct str arch = {0};
    char key[128];
    uint32_t type = GGUF_POOL_NONE;
    int rc = gguf_get_str(g, "general.architecture", &arch, err);
    snprintf(key, sizeof key, "%.*s.pooling_type", (int)(arch.n < 100 ? arch.n : 100), arch.p ? arch.p : "");
    rc = rc ? rc : gguf_get_u32(g, key, &type, err);
    if (rc)
        return rc;
    if (type == GGUF_POOL_CLS || type >= GGUF_POOL_RANK)
        return err_set(err, ERR_UNSUPPORTED, "%s: pooling by '%s' (%u) is not supported; expected mean or last", key,
                       type <= GGUF_POOL_RANK ? names[type] : "?", type);
    *out = type == GGUF_POOL_MEAN ? ENGINE_POOL_MEAN : ENGINE_POOL_LAST;
    return 0;
}

/* The pooling module's own file: one mode is on. */
static int pool_of_modes(struct hfdir *dir, const char *file, enum engine_pool *out, struct err *err)
{
    struct str text = {0};
    int rc = hfdir_file(dir, file, &text, err);
    if (rc || !text.p)
        return rc ? rc : err_set(err, ERR_NOT_FOUND, "%s is missing, though modules.json names it", file);
    yyjson_doc *doc = json_parse(text, file, err);
    yyjson_obj_iter it = yyjson_obj_iter_with(yyjson_doc_get_root(doc));
    uint32_t modes = 0;
    rc = doc ? 0 : ERR_FORMAT;
    for (yyjson_val *k; rc == 0 && (k = yyjson_obj_iter_next(&it));) {
        struct str name = json_str(k);
        if (!str_starts(name, STR("pooling_mode_")) || !yyjson_is_true(yyjson_obj_iter_get_val(k)))
            continue;
        modes++;
        if (str_is(name, "pooling_mode_mean_tokens"))
            *out = ENGINE_POOL_MEAN;
        else if (str_is(name, "pooling_mode_lasttoken"))
            *out = ENGINE_POOL_LAST;
        else
            rc = err_set(err, ERR_UNSUPPORTED, "%s: '%.*s' is not supported; expected pooling_mode_mean_tokens or pooling_mode_lasttoken", file,
                         STR_ARG(name));
    }
    if (rc == 0 && modes != 1)
        rc = err_set(err, ERR_UNSUPPORTED, "%s: %u pooling modes at once; expected one", file, modes);
    json_free(doc);
    return rc;
}

static int pool_of_module(struct hfdir *dir, yyjson_val *module, enum engine_pool *out, struct err *err)
{
    struct str type = json_str(yyjson_obj_get(module, "type")), path = json_str(yyjson_obj_get(module, "path"));
    char file[512];
    if (str_ends(type, STR(".Transformer")) || str_ends(type, STR(".Normalize")))
        return 0;
    if (!str_ends(type, STR(".Pooling")))
        return err_set(err, ERR_UNSUPPORTED, "modules.json: a module of type '%.*s' is not supported", STR_ARG(type));
    snprintf(file, sizeof file, "%.*s%sconfig.json", (int)(path.n < 400 ? path.n : 400), path.p ? path.p : "", path.n ? "/" : "");
    return pool_of_modes(dir, file, out, err);
}

static int pool_of_dir(struct hfdir *dir, enum engine_pool *out, struct err *err)
{
    struct str text = {0};
    size_t i, n;
    yyjson_val *module;
    int rc = hfdir_file(dir, "modules.json", &text, err);
    *out = ENGINE_POOL_LAST;
    if (rc || !text.p)
        return rc;
    yyjson_doc *doc = json_parse(text, "modules.json", err);
    if (!doc)
        return ERR_FORMAT;
    yyjson_arr_foreach(yyjson_doc_get_root(doc), i, n, module)
        if (rc == 0)
            rc = pool_of_module(dir, module, out, err);
    json_free(doc);
    return rc;
}

void embedding_read(struct texts *t)
{
    t->pool = ENGINE_POOL_LAST;
    t->pool_rc = t->gguf ? pool_of_gguf(t->gguf, &t->pool, &t->pool_err) : pool_of_dir(t->hfdir, &t->pool, &t->pool_err);
}

int embedding_pool(const struct texts *t, enum rh_embed asked, enum engine_pool *out, struct err *err)
{
    *out = asked == RH_EMBED_MEAN ? ENGINE_POOL_MEAN : asked == RH_EMBED_LAST ? ENGINE_POOL_LAST : ENGINE_POOL_NONE;
    if (asked != RH_EMBED_MODEL)
        return 0;
    *out = t->pool;
    return t->pool_rc ? err_set(err, t->pool_rc, "embeddings: %s", t->pool_err.text) : 0;
}

void embedding_scale(const float *from, uint32_t count, float *to)
{
    double sum = 0;
    for (uint32_t i = 0; i < count; i++)
        sum += (double)from[i] * (double)from[i];
    double length = __builtin_sqrt(sum);
    for (uint32_t i = 0; i < count; i++)
        to[i] = length > 0 ? (float)((double)from[i] / length) : 0;
}
