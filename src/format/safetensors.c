/* format/safetensors.c - one safetensors file: u64 length of a JSON header, the header, the data area.
 *
 *   {"name": {"dtype": "BF16", "shape": [rows, cols], "data_offsets": [begin, end]}, ..., "__metadata__": {text: text}}
 *
 * Owns:       nothing beyond the shard it fills.
 * Invariants: 1. each tensor's bytes are what its shape and type need, and lie in the data area;
 *             2. the tensors fill the data area without gap or overlap (the format's own rule);
 *             3. data may have any alignment: some writers do not pad the header. */
#include "format/hfdir_int.h"

#include "base/mem.h"
#include "format/dtype_int.h"

#include <stdlib.h>

enum { HEADER_BYTES_MAX = 100 * 1000 * 1000 }; /* the reference reader's limit */

#define ULL(x) ((unsigned long long)(x))

/* Parsing one tensor's entry: where we are, for messages. */
struct entry {
    struct st_shard *s;
    struct st_tensor *t;
    char show[NAMES_SHOW_MAX];
    struct err *err;
};

static int entry_bad(struct entry *e, const char *key, const char *want, yyjson_val *got)
{
    return err_set(e->err, ERR_FORMAT, "%s: tensor '%s': '%s': expected %s, got %s", e->s->path, e->show, key, want,
                   json_type_name(got));
}

static int read_dtype(struct entry *e, yyjson_val *v)
{
    struct str name = json_str(v);
    char show[NAMES_SHOW_MAX];
    if (!name.p)
        return entry_bad(e, "dtype", "a string", v);
    int t = dtype_from_safetensors(name.p, name.n);
    if (t < 0)
        return err_set(e->err, ERR_UNSUPPORTED, "%s: tensor '%s': dtype '%s' is not supported", e->s->path, e->show,
                       names_show(name, show));
    e->t->type = (enum dtype)t;
    return 0;
}

static int read_shape(struct entry *e, yyjson_val *v)
{
    if (!yyjson_is_arr(v))
        return entry_bad(e, "shape", "an array", v);
    if (yyjson_arr_size(v) > 8)
        return err_set(e->err, ERR_FORMAT, "%s: tensor '%s': expected at most 8 dimensions, got %zu", e->s->path, e->show,
                       yyjson_arr_size(v));
    yyjson_arr_iter it;
    yyjson_arr_iter_init(v, &it);
    for (yyjson_val *d; (d = yyjson_arr_iter_next(&it));) {
        if (!yyjson_is_uint(d) || yyjson_get_uint(d) == 0)
            return entry_bad(e, "shape", "whole numbers from 1 to 2^64 - 1", d);
        e->t->shape[e->t->n_dims++] = yyjson_get_uint(d);
    }
    return 0;
}

/* data_offsets: begin into t->offset (relative), length into t->size_bytes. */
static int read_offsets(struct entry *e, yyjson_val *v)
{
    yyjson_val *b = yyjson_arr_get(v, 0), *end = yyjson_arr_get(v, 1);
    if (yyjson_arr_size(v) != 2 || !yyjson_is_uint(b) || !yyjson_is_uint(end))
        return entry_bad(e, "data_offsets", "two whole numbers", v);
    uint64_t lo = yyjson_get_uint(b), hi = yyjson_get_uint(end), area = e->s->n - e->s->data_at;
    if (lo > hi || hi > area)
        return err_set(e->err, ERR_FORMAT,
                       "%s: tensor '%s': expected data_offsets inside the %llu bytes of data, got [%llu, %llu] (truncated?)",
                       e->s->path, e->show, ULL(area), ULL(lo), ULL(hi));
    e->t->offset = lo;
    e->t->size_bytes = hi - lo;
    return 0;
}

static int check_size(struct entry *e)
{
    uint64_t bytes = dtype_block_bytes(e->t->type);
    bool ok = true;
    for (uint32_t d = 0; d < e->t->n_dims; d++)
        ok = ok && !__builtin_mul_overflow(bytes, e->t->shape[d], &bytes);
    if (!ok)
        return err_set(e->err, ERR_FORMAT,
                       "%s: tensor '%s': expected a size under 2^64 bytes, got a shape whose product overflows", e->s->path,
                       e->show);
    if (bytes != e->t->size_bytes)
        return err_set(e->err, ERR_FORMAT,
                       "%s: tensor '%s' at byte %llu: expected %llu bytes as its shape and dtype %s need, got %llu", e->s->path,
                       e->show, ULL(e->s->data_at + e->t->offset), ULL(bytes), dtype_name(e->t->type), ULL(e->t->size_bytes));
    return 0;
}

static int read_entry(struct entry *e, yyjson_val *v)
{
    enum { DTYPE = 1, SHAPE = 2, OFFSETS = 4 };
    int seen = 0, rc = 0;
    yyjson_obj_iter it;
    if (!yyjson_is_obj(v))
        return entry_bad(e, "entry", "an object", v);
    yyjson_obj_iter_init(v, &it);
    for (yyjson_val *k; !rc && (k = yyjson_obj_iter_next(&it));) {
        yyjson_val *x = yyjson_obj_iter_get_val(k);
        struct str key = json_str(k);
        int bit = str_is(key, "dtype") ? DTYPE : str_is(key, "shape") ? SHAPE : str_is(key, "data_offsets") ? OFFSETS : 0;
        if (seen & bit)
            return err_set(e->err, ERR_FORMAT, "%s: tensor '%s': expected '%s' once, got it twice", e->s->path, e->show, key.p);
        seen |= bit;
        rc = bit == DTYPE ? read_dtype(e, x) : bit == SHAPE ? read_shape(e, x) : bit == OFFSETS ? read_offsets(e, x) : 0;
    }
    if (rc)
        return rc;
    if (seen != (DTYPE | SHAPE | OFFSETS))
        return entry_bad(e, !(seen & DTYPE) ? "dtype" : !(seen & SHAPE) ? "shape" : "data_offsets", "a value", NULL);
    return check_size(e);
}

static int by_offset(const void *a, const void *b)
{
    const struct st_tensor *x = *(const struct st_tensor *const *)a, *y = *(const struct st_tensor *const *)b;
    return x->offset < y->offset ? -1 : x->offset > y->offset;
}

/* No gaps, no overlaps, from the first byte of data to the last. */
static int check_cover(struct st_shard *s, struct err *err)
{
    const struct st_tensor **order = mem_try_array(s->n_tensors, sizeof *order);
    if (!order)
        return err_nomem(err, "order of tensors", s->n_tensors * sizeof *order);
    for (size_t i = 0; i < s->n_tensors; i++)
        order[i] = &s->tensors[i];
    qsort(order, s->n_tensors, sizeof *order, by_offset);
    uint64_t at = s->data_at;
    int rc = 0;
    for (size_t i = 0; !rc && i < s->n_tensors; at = order[i]->offset + order[i]->size_bytes, i++) {
        char show[NAMES_SHOW_MAX];
        if (order[i]->offset != at)
            rc = err_set(err, ERR_FORMAT,
                         "%s: tensor '%s': expected its data at byte %llu, where the one before ends, got byte %llu (%s)",
                         s->path, names_show(order[i]->name, show), ULL(at), ULL(order[i]->offset),
                         order[i]->offset < at ? "overlap" : "gap");
    }
    mem_free(order);
    if (!rc && at != s->n)
        rc = err_set(err, ERR_FORMAT, "%s: expected the tensors to end with the file at byte %zu, got byte %llu", s->path, s->n,
                     ULL(at));
    return rc;
}

static int read_header(struct st_shard *s, struct err *err)
{
    uint64_t n;
    if (s->n < 8)
        return err_set(err, ERR_FORMAT, "%s: truncated: expected at least 8 bytes, got %zu", s->path, s->n);
    n = rd_u64(s->p);
    if (n > s->n - 8 || n > HEADER_BYTES_MAX)
        return err_set(err, ERR_FORMAT, "%s: header at byte 8: expected at most %llu bytes, got a length of %llu", s->path,
                       ULL(s->n - 8 < HEADER_BYTES_MAX ? s->n - 8 : HEADER_BYTES_MAX), ULL(n));
    if (n == 0 || s->p[8] != '{')
        return err_set(err, ERR_FORMAT, "%s: header at byte 8: expected a JSON object", s->path);
    s->data_at = 8 + n;
    s->doc = json_parse(str_n(s->p + 8, (size_t)n), s->path, err);
    return s->doc ? 0 : err && err->code ? err->code : ERR_FORMAT;
}

int st_shard_parse(struct st_shard *s, uint32_t index, struct err *err)
{
    int rc = read_header(s, err);
    if (rc)
        return rc;
    yyjson_val *root = yyjson_doc_get_root(s->doc);
    size_t count = yyjson_obj_size(root);
    s->tensors = mem_try_zero(count, sizeof *s->tensors);
    if (!s->tensors)
        return err_nomem(err, "safetensors tensors", count * sizeof *s->tensors);
    yyjson_obj_iter it;
    yyjson_obj_iter_init(root, &it);
    for (yyjson_val *k; (k = yyjson_obj_iter_next(&it));) {
        struct entry e = {.s = s, .t = &s->tensors[s->n_tensors], .err = err};
        struct str name = json_str(k);
        if (str_is(name, "__metadata__"))
            continue;
        names_show(name, e.show);
        if (!names_valid(name))
            return err_set(err, ERR_FORMAT, "%s: tensor name '%s': expected 1 to 65535 bytes without control characters", s->path,
                           e.show);
        *e.t = (struct st_tensor){.name = name, .shard = index};
        if ((rc = read_entry(&e, yyjson_obj_iter_get_val(k))))
            return rc;
        e.t->offset += s->data_at;
        e.t->data = s->p + e.t->offset;
        s->n_tensors++;
    }
    return check_cover(s, err);
}

int st_shard_open(struct st_shard *s, const char *path, uint32_t index, struct err *err)
{
    s->path = mem_try_strndup(path, strlen(path));
    if (!s->path)
        return err_nomem(err, "path", strlen(path) + 1);
    int rc = file_map_open(&s->map, path, err);
    if (rc)
        return rc;
    s->p = s->map.p;
    s->n = s->map.n;
    return st_shard_parse(s, index, err);
}

void st_shard_free(struct st_shard *s)
{
    mem_free(s->tensors);
    json_free(s->doc);
    file_map_close(&s->map);
    mem_free(s->path);
    *s = (struct st_shard){0};
}
