/* format/gguf.c - a GGUF file or split set: opening, look-ups, typed access to metadata.  See gguf.h.
 *
 * Owns:       the shards (mappings, metadata) and one array of all tensors with its table of names.
 * Invariants: 1. the arrays never move after gguf_open, so pointers into them stay good until gguf_close;
 *             2. values are those of the first shard: the others repeat none but their split.* keys. */
#include "format/gguf.h"

#include "base/mem.h"
#include "format/dtype_int.h"
#include "format/gguf_int.h"

#include <stdio.h>

struct gguf {
    struct gguf_shard *shards;
    uint32_t n_shards;
    struct gguf_tensor *tensors; /* of all shards, in file order */
    size_t n_tensors;
    struct names names;
};

static int shard_open(struct gguf_shard *s, const char *path, uint32_t index, struct err *err)
{
    s->path = mem_try_strndup(path, strlen(path));
    if (!s->path)
        return err_nomem(err, "path", strlen(path) + 1);
    int rc = file_map_open(&s->map, path, err);
    if (rc)
        return rc;
    s->p = s->map.p;
    s->n = s->map.n;
    return gguf_shard_parse(s, index, err);
}

/* An integer of a shard's split.* keys; absent gives `absent`. */
static int split_key(const struct gguf_shard *s, const char *key, int64_t absent, int64_t *out, struct err *err)
{
    const struct gguf_value *v = gguf_shard_find(s, key);
    *out = absent;
    if (v && (v->type == GGUF_ARRAY || !gguf_value_i64(v->type, v->data, out)))
        return err_set(err, ERR_FORMAT, "%s: %s: expected an integer, got %s", s->path, key, gguf_type_name(v->type));
    return 0;
}

/* "dir/name-00001-of-00003.gguf" -> the path of shard `no` (from 0); the first path must have this form. */
static int sibling_path(const char *first, int64_t no, int64_t count, char *out, size_t cap, struct err *err)
{
    char tail[64];
    size_t n = strlen(first);
    size_t m = (size_t)snprintf(tail, sizeof tail, "-00001-of-%05lld.gguf", (long long)count);
    if (n < m || strcmp(first + n - m, tail) != 0)
        return err_set(err, ERR_FORMAT, "%s: first of %lld split files: expected a name that ends in '%s'", first,
                       (long long)count, tail);
    if (snprintf(out, cap, "%.*s-%05lld-of-%05lld.gguf", (int)(n - m), first, (long long)no + 1, (long long)count) >= (int)cap)
        return err_set(err, ERR_ARGUMENT, "%s: path too long", first);
    return 0;
}

static int open_sibling(struct gguf *g, uint32_t no, int64_t count, struct err *err)
{
    char path[4096];
    int64_t got_no, got_count;
    int rc = sibling_path(g->shards[0].path, no, count, path, sizeof path, err);
    if (rc)
        return rc;
    struct gguf_shard *s = &g->shards[no];
    g->n_shards = no + 1;
    if ((rc = shard_open(s, path, no, err))) {
        err_prefix(err, "split file %u of %lld", no + 1, (long long)count);
        return rc;
    }
    if ((rc = split_key(s, "split.no", -1, &got_no, err)) || (rc = split_key(s, "split.count", -1, &got_count, err)))
        return rc;
    if (got_no != no || got_count != count)
        return err_set(err, ERR_FORMAT, "%s: expected split.no %u and split.count %lld, got %lld and %lld", path, no,
                       (long long)count, (long long)got_no, (long long)got_count);
    return 0;
}

/* The siblings of shard 0, if it says it has any. */
static int open_siblings(struct gguf *g, bool from_file, struct err *err)
{
    int64_t no, count, total;
    struct gguf_shard *first = &g->shards[0];
    int rc = split_key(first, "split.no", 0, &no, err);
    if (!rc)
        rc = split_key(first, "split.count", 1, &count, err);
    if (rc)
        return rc;
    if (count < 0 || count > 65535)
        return err_set(err, ERR_FORMAT, "%s: split.count: expected 0 to 65535, got %lld", first->path, (long long)count);
    if (count <= 1)
        return 0;
    if (!from_file)
        return err_set(err, ERR_UNSUPPORTED, "%s: a split set cannot be opened from memory", first->path);
    if (no != 0)
        return err_set(err, ERR_ARGUMENT, "%s: this is file %lld of a split set of %lld: open the first one", first->path,
                       (long long)no + 1, (long long)count);
    struct gguf_shard *all = mem_try_zero((size_t)count, sizeof *all);
    if (!all)
        return err_nomem(err, "split set", (size_t)count * sizeof *all);
    all[0] = g->shards[0];
    mem_free(g->shards);
    g->shards = all;
    size_t n = all[0].n_tensors;
    for (uint32_t i = 1; i < (uint32_t)count; i++) {
        if ((rc = open_sibling(g, i, count, err)))
            return rc;
        n += all[i].n_tensors;
    }
    if ((rc = split_key(&all[0], "split.tensors.count", (int64_t)n, &total, err)))
        return rc;
    if (total != (int64_t)n)
        return err_set(err, ERR_FORMAT, "%s: split.tensors.count: expected %zu as the files have, got %lld", all[0].path, n,
                       (long long)total);
    return 0;
}

/* One array of all shards' tensors, and its table of names. */
static int gather(struct gguf *g, struct err *err)
{
    size_t n = 0;
    for (uint32_t i = 0; i < g->n_shards; i++)
        n += g->shards[i].n_tensors;
    if (g->n_shards == 1) {
        g->tensors = g->shards[0].tensors;
        g->shards[0].tensors = NULL;
    } else {
        g->tensors = mem_try_array(n, sizeof *g->tensors);
        if (!g->tensors)
            return err_nomem(err, "GGUF tensors", n * sizeof *g->tensors);
        size_t at = 0;
        for (uint32_t i = 0; i < g->n_shards; i++) {
            struct gguf_shard *s = &g->shards[i];
            if (s->n_tensors)
                memcpy(g->tensors + at, s->tensors, s->n_tensors * sizeof *s->tensors);
            at += s->n_tensors;
            mem_free(s->tensors);
            s->tensors = NULL;
        }
    }
    g->n_tensors = n;
    int rc = names_init(&g->names, g->tensors, sizeof *g->tensors, n, err);
    for (size_t i = 0; !rc && i < n; i++) {
        size_t other = names_add(&g->names, i);
        char show[NAMES_SHOW_MAX];
        if (other != i)
            rc = err_set(err, ERR_FORMAT, "%s: tensor '%s': expected each name once, got it at byte %llu and in %s at byte %llu",
                         g->shards[g->tensors[i].shard].path, names_show(g->tensors[i].name, show),
                         (unsigned long long)g->tensors[i].offset, g->shards[g->tensors[other].shard].path,
                         (unsigned long long)g->tensors[other].offset);
    }
    return rc;
}

static struct gguf *gguf_new(struct err *err)
{
    struct gguf *g = mem_try_zero(1, sizeof *g);
    if (g)
        g->shards = mem_try_zero(1, sizeof *g->shards);
    if (!g || !g->shards) {
        mem_free(g);
        err_nomem(err, "GGUF", sizeof *g);
        return NULL;
    }
    g->n_shards = 1;
    return g;
}

int gguf_open(const char *path, struct gguf **out, struct err *err)
{
    *out = NULL;
    struct gguf *g = gguf_new(err);
    if (!g)
        return ERR_NOMEM;
    int rc = shard_open(&g->shards[0], path, 0, err);
    if (!rc)
        rc = open_siblings(g, true, err);
    if (!rc)
        rc = gather(g, err);
    if (rc) {
        gguf_close(g);
        return rc;
    }
    *out = g;
    return 0;
}

int gguf_open_memory(const void *data, size_t n, struct gguf **out, struct err *err)
{
    *out = NULL;
    struct gguf *g = gguf_new(err);
    if (!g)
        return ERR_NOMEM;
    struct gguf_shard *s = &g->shards[0];
    s->p = data;
    s->n = n;
    s->path = mem_try_strndup("(memory)", 8);
    int rc = s->path ? gguf_shard_parse(s, 0, err) : err_nomem(err, "path", 9);
    if (!rc)
        rc = open_siblings(g, false, err);
    if (!rc)
        rc = gather(g, err);
    if (rc) {
        gguf_close(g);
        return rc;
    }
    *out = g;
    return 0;
}

void gguf_close(struct gguf *g)
{
    if (!g)
        return;
    names_free(&g->names);
    mem_free(g->tensors);
    for (uint32_t i = 0; i < g->n_shards; i++)
        gguf_shard_free(&g->shards[i]);
    mem_free(g->shards);
    mem_free(g);
}

const char *gguf_path(const struct gguf *g)
{
    return g->shards[0].path;
}

uint32_t gguf_file_count(const struct gguf *g)
{
    return g->n_shards;
}

const char *gguf_file_at(const struct gguf *g, uint32_t i)
{
    return g->shards[i].path;
}

uint32_t gguf_version(const struct gguf *g)
{
    return g->shards[0].version;
}

size_t gguf_tensor_count(const struct gguf *g)
{
    return g->n_tensors;
}

const struct gguf_tensor *gguf_tensor_at(const struct gguf *g, size_t i)
{
    return i < g->n_tensors ? &g->tensors[i] : NULL;
}

const struct gguf_tensor *gguf_tensor_find(const struct gguf *g, struct str name)
{
    size_t i = names_find(&g->names, name);
    return i == SIZE_MAX ? NULL : &g->tensors[i];
}

size_t gguf_value_count(const struct gguf *g)
{
    return g->shards[0].n_values;
}

const struct gguf_value *gguf_value_at(const struct gguf *g, size_t i)
{
    return i < g->shards[0].n_values ? &g->shards[0].values[i] : NULL;
}

const struct gguf_value *gguf_value_find(const struct gguf *g, const char *key)
{
    return gguf_shard_find(&g->shards[0], key);
}

static int wrong_type(const struct gguf *g, const struct gguf_value *v, const char *key, const char *want, struct err *err)
{
    return err_set(err, ERR_FORMAT, "%s: '%s': expected %s, got %s%s", gguf_path(g), key, want, gguf_type_name(v->type),
                   v->type == GGUF_ARRAY ? "" : " (or out of range)");
}

static bool value_f32(enum gguf_type type, const uint8_t *p, float *out)
{
    double d;
    if (type == GGUF_F32) {
        memcpy(out, p, 4);
        return true;
    }
    if (type != GGUF_F64)
        return false;
    memcpy(&d, p, 8);
    *out = (float)d;
    return true;
}

/* A whole number that was written as a float. */
static bool value_whole(enum gguf_type type, const uint8_t *p, int64_t *out)
{
    float f;
    if (!value_f32(type, p, &f) || !(f >= -16777216.0f && f <= 16777216.0f) || (float)(int64_t)f != f)
        return false;
    *out = (int64_t)f;
    return true;
}

int gguf_get_i64(const struct gguf *g, const char *key, int64_t *out, struct err *err)
{
    const struct gguf_value *v = gguf_value_find(g, key);
    int64_t n;
    if (!v)
        return 0;
    if (v->type == GGUF_BOOL || (!gguf_value_i64(v->type, v->data, &n) && !value_whole(v->type, v->data, &n)))
        return wrong_type(g, v, key, "an integer", err);
    *out = n;
    return 0;
}

int gguf_get_u32(const struct gguf *g, const char *key, uint32_t *out, struct err *err)
{
    int64_t n = *out;
    int rc = gguf_get_i64(g, key, &n, err);
    if (rc)
        return rc;
    if (n < 0 || n > UINT32_MAX)
        return err_set(err, ERR_FORMAT, "%s: '%s': expected 0 to 4294967295, got %lld", gguf_path(g), key, (long long)n);
    *out = (uint32_t)n;
    return 0;
}

int gguf_get_f32(const struct gguf *g, const char *key, float *out, struct err *err)
{
    const struct gguf_value *v = gguf_value_find(g, key);
    if (!v || value_f32(v->type, v->data, out))
        return 0;
    return wrong_type(g, v, key, "f32 or f64", err);
}

int gguf_get_bool(const struct gguf *g, const char *key, bool *out, struct err *err)
{
    const struct gguf_value *v = gguf_value_find(g, key);
    if (!v)
        return 0;
    if (v->type != GGUF_BOOL)
        return wrong_type(g, v, key, "bool", err);
    *out = v->data[0] != 0;
    return 0;
}

int gguf_get_str(const struct gguf *g, const char *key, struct str *out, struct err *err)
{
    const struct gguf_value *v = gguf_value_find(g, key);
    if (!v)
        return 0;
    if (v->type != GGUF_STRING)
        return wrong_type(g, v, key, "a string", err);
    *out = str_n(v->data + 8, (size_t)v->size_bytes - 8);
    return 0;
}

int gguf_array_f32(const struct gguf_value *v, uint64_t i, float *out)
{
    if (v->type != GGUF_ARRAY || i >= v->count)
        return ERR_ARGUMENT;
    return value_f32(v->item_type, v->data + i * gguf_type_bytes(v->item_type), out) ? 0 : ERR_FORMAT;
}

int gguf_array_i64(const struct gguf_value *v, uint64_t i, int64_t *out)
{
    if (v->type != GGUF_ARRAY || i >= v->count)
        return ERR_ARGUMENT;
    return gguf_value_i64(v->item_type, v->data + i * gguf_type_bytes(v->item_type), out) ? 0 : ERR_FORMAT;
}

bool gguf_string_next(const struct gguf_value *v, uint64_t *at, struct str *out)
{
    if (v->item_type != GGUF_STRING || *at >= v->size_bytes)
        return false;
    uint64_t n = rd_u64(v->data + *at);
    *out = str_n(v->data + *at + 8, (size_t)n);
    *at += 8 + n;
    return true;
}

void gguf_tensor_drop(const struct gguf *g, const struct gguf_tensor *t)
{
    file_map_drop(&g->shards[t->shard].map, (size_t)t->offset, (size_t)t->size_bytes);
}

int gguf_content_hash(const struct gguf *g, struct hash128 *out, struct err *err)
{
    struct hash_stream *h = hash_stream_new();
    if (!h)
        return err_nomem(err, "hash", 0);
    size_t at = 0;
    for (uint32_t i = 0; i < g->n_shards; i++) {
        const struct gguf_shard *s = &g->shards[i];
        hash_stream_put(h, s->p, s->data_at < s->n ? (size_t)s->data_at : s->n);
        for (; at < g->n_tensors && g->tensors[at].shard == i; at++)
            hash_stream_put(h, g->tensors[at].data, (size_t)g->tensors[at].size_bytes);
    }
    *out = hash_stream_end(h);
    return 0;
}
