/* format/gguf_read.c - one GGUF file: header, metadata values, tensor infos, all bounds-checked against the file's size.
 *
 *   "GGUF", u32 version, u64 tensors, u64 values, values..., infos..., padding to the alignment, data
 *   value:  string key, u32 type, payload        string: u64 length, bytes        array: u32 item type, u64 count, items
 *   info:   string name, u32 dims, u64 x dims, u32 type, u64 offset (from the start of data)
 *
 * Owns:       nothing beyond the shard it fills.
 * Invariants: 1. no count read from the file is used before it was compared with the bytes that are left, so
 *                allocation is bounded by a small multiple of the file's size;
 *             2. tensors lie inside the file, aligned and disjoint. */
#include "format/gguf_int.h"

#include "base/mem.h"
#include "base/utf8.h"
#include "format/dtype_int.h"

#include <stdio.h>
#include <stdlib.h>

enum {
    VALUE_MIN_BYTES = 8 + 1 + 4 + 1,        /* one-letter key, one byte of payload */
    INFO_MIN_BYTES = 8 + 1 + 4 + 8 + 4 + 8, /* one-letter name, one dimension */
    ALIGNMENT_DEFAULT = 32,
};

struct cursor {
    struct gguf_shard *s;
    size_t at;
    struct err *err;
};

#define ULL(x) ((unsigned long long)(x))

static int bad(struct cursor *c, const char *what, const char *want, uint64_t got)
{
    return err_set(c->err, ERR_FORMAT, "%s: %s at byte %zu: expected %s, got %llu", c->s->path, what, c->at, want, ULL(got));
}

static int need(struct cursor *c, uint64_t n, const char *what)
{
    size_t left = c->s->n - c->at;
    if (n <= left)
        return 0;
    return err_set(c->err, ERR_FORMAT, "%s: truncated: %s at byte %zu: expected %llu bytes, got %zu to the end of the file",
                   c->s->path, what, c->at, ULL(n), left);
}

static int get_u32(struct cursor *c, uint32_t *out, const char *what)
{
    int rc = need(c, 4, what);
    if (rc)
        return rc;
    *out = rd_u32(c->s->p + c->at);
    c->at += 4;
    return 0;
}

static int get_u64(struct cursor *c, uint64_t *out, const char *what)
{
    int rc = need(c, 8, what);
    if (rc)
        return rc;
    *out = rd_u64(c->s->p + c->at);
    c->at += 8;
    return 0;
}

static int get_str(struct cursor *c, struct str *out, const char *what)
{
    uint64_t n;
    int rc = get_u64(c, &n, what);
    if (!rc)
        rc = need(c, n, what);
    if (rc)
        return rc;
    *out = str_n(c->s->p + c->at, (size_t)n);
    c->at += (size_t)n;
    return 0;
}

static int get_name(struct cursor *c, struct str *out, const char *what)
{
    size_t at = c->at;
    char show[NAMES_SHOW_MAX];
    int rc = get_str(c, out, what);
    if (rc || names_valid(*out))
        return rc;
    return err_set(c->err, ERR_FORMAT,
                   "%s: %s at byte %zu: expected 1 to 65535 bytes of UTF-8 without control characters, got '%s' (%zu bytes)",
                   c->s->path, what, at, names_show(*out, show), out->n);
}

size_t gguf_type_bytes(enum gguf_type type)
{
    static const uint8_t bytes[] = {1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8};
    return bytes[type];
}

const char *gguf_type_name(uint32_t type)
{
    static const char *const names[] = {"u8",   "i8",     "u16",   "i16", "u32", "i32", "f32",
                                        "bool", "string", "array", "u64", "i64", "f64"};
    return type <= GGUF_F64 ? names[type] : "unknown";
}

static int bools_ok(struct cursor *c, const uint8_t *p, uint64_t count)
{
    for (uint64_t i = 0; i < count; i++)
        if (p[i] > 1)
            return bad(c, "bool", "0 or 1", p[i]);
    return 0;
}

/* `count` items of one type in a row (a scalar is one item). */
static int skip_items(struct cursor *c, struct gguf_value *v, enum gguf_type type, const char *what)
{
    size_t size = gguf_type_bytes(type), start = c->at;
    uint64_t total;
    v->data = c->s->p + c->at;
    if (size) {
        if (__builtin_mul_overflow(v->count, (uint64_t)size, &total))
            total = UINT64_MAX;
        int rc = need(c, total, what);
        if (!rc && type == GGUF_BOOL)
            rc = bools_ok(c, v->data, v->count);
        if (rc)
            return rc;
        c->at += (size_t)total;
    } else {
        if (v->count > (c->s->n - c->at) / 8) /* eight bytes of length each, at least */
            return bad(c, what, "as many strings as the file has room for", v->count);
        for (uint64_t i = 0; i < v->count; i++) {
            struct str ignored;
            int rc = get_str(c, &ignored, what);
            if (rc)
                return rc;
        }
    }
    v->size_bytes = c->at - start;
    return 0;
}

static int read_value(struct cursor *c, struct gguf_value *v)
{
    char show[NAMES_SHOW_MAX], what[NAMES_SHOW_MAX + 16];
    uint32_t type, item;
    int rc = get_name(c, &v->key, "metadata key");
    if (rc)
        return rc;
    snprintf(what, sizeof what, "value of '%s'", names_show(v->key, show));
    if ((rc = get_u32(c, &type, what)))
        return rc;
    if (type > GGUF_F64)
        return bad(c, what, "a value type from 0 to 12", type);
    v->type = v->item_type = (enum gguf_type)type;
    v->count = 1;
    if (type != GGUF_ARRAY)
        return skip_items(c, v, v->type, what);
    if ((rc = get_u32(c, &item, what)) || (rc = get_u64(c, &v->count, what)))
        return rc;
    if (item == GGUF_ARRAY)
        return err_set(c->err, ERR_UNSUPPORTED, "%s: %s at byte %zu: arrays of arrays are not supported", c->s->path, what,
                       c->at);
    if (item > GGUF_F64)
        return bad(c, what, "an array item type from 0 to 12", item);
    v->item_type = (enum gguf_type)item;
    return skip_items(c, v, v->item_type, what);
}

static int read_values(struct cursor *c, uint64_t count)
{
    struct gguf_shard *s = c->s;
    if (count > (s->n - c->at) / VALUE_MIN_BYTES)
        return bad(c, "count of metadata values", "as many as the file has room for", count);
    s->values = mem_try_zero((size_t)count, sizeof *s->values);
    if (!s->values)
        return err_nomem(c->err, "GGUF metadata", (size_t)count * sizeof *s->values);
    int rc = names_init(&s->value_names, s->values, sizeof *s->values, (size_t)count, c->err);
    for (uint64_t i = 0; !rc && i < count; i++) {
        char show[NAMES_SHOW_MAX];
        size_t at = c->at;
        if ((rc = read_value(c, &s->values[i])))
            break;
        s->n_values = (size_t)i + 1;
        if (names_add(&s->value_names, (size_t)i) != i)
            rc = err_set(c->err, ERR_FORMAT, "%s: metadata key '%s' at byte %zu: expected each key once, got it twice", s->path,
                         names_show(s->values[i].key, show), at);
    }
    return rc;
}

/* Types of GGUF that are known by name but not read, for messages. */
static const char *type_text(uint32_t id)
{
    static const struct {
        uint32_t id;
        const char *name;
    } known[] = {{4, "Q4_2 (withdrawn)"},
                 {5, "Q4_3 (withdrawn)"},
                 {31, "Q4_0_4_4 (withdrawn)"},
                 {32, "Q4_0_4_8 (withdrawn)"},
                 {33, "Q4_0_8_8 (withdrawn)"},
                 {36, "IQ4_NL_4_4 (withdrawn)"},
                 {37, "IQ4_NL_4_8 (withdrawn)"},
                 {38, "IQ4_NL_8_8 (withdrawn)"},
                 {40, "NVFP4"},
                 {41, "Q1_0"}};
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (known[i].id == id)
            return known[i].name;
    return "unknown";
}

/* Bytes of the tensor, from its dimensions and type; checks both. */
static int size_tensor(struct cursor *c, struct gguf_tensor *t, const char *show, size_t at)
{
    const char *path = c->s->path;
    uint64_t elements = 1, bytes = 0;
    bool ok = true;
    for (uint32_t d = 0; d < t->n_dims; d++) {
        if (t->ne[d] == 0)
            return err_set(c->err, ERR_FORMAT,
                           "%s: tensor '%s' at byte %zu: expected dimensions of at least 1, got 0 in dimension %u", path, show,
                           at, d);
        ok = ok && !__builtin_mul_overflow(elements, t->ne[d], &elements);
    }
    if (!ok || elements > INT64_MAX)
        return err_set(c->err, ERR_FORMAT,
                       "%s: tensor '%s' at byte %zu: expected fewer than 2^63 elements, got [%llu, %llu, %llu, %llu]", path, show,
                       at, ULL(t->ne[0]), ULL(t->ne[1]), ULL(t->ne[2]), ULL(t->ne[3]));
    uint32_t len = dtype_block_len(t->type);
    if (t->ne[0] % len)
        return err_set(c->err, ERR_FORMAT,
                       "%s: tensor '%s' at byte %zu: expected rows of a multiple of %u elements (%s), got %llu", path, show, at,
                       len, dtype_name(t->type), ULL(t->ne[0]));
    if (__builtin_mul_overflow(elements / len, (uint64_t)dtype_block_bytes(t->type), &bytes) || bytes > c->s->n)
        return err_set(c->err, ERR_FORMAT,
                       "%s: tensor '%s' at byte %zu: expected data inside the file of %zu bytes, got %llu elements of %s", path,
                       show, at, c->s->n, ULL(elements), dtype_name(t->type));
    t->size_bytes = bytes;
    return 0;
}

static int read_info(struct cursor *c, struct gguf_tensor *t)
{
    char show[NAMES_SHOW_MAX], what[NAMES_SHOW_MAX + 16];
    size_t at = c->at;
    uint32_t type;
    int rc = get_name(c, &t->name, "tensor name");
    if (rc)
        return rc;
    names_show(t->name, show);
    snprintf(what, sizeof what, "tensor '%s'", show);
    if ((rc = get_u32(c, &t->n_dims, what)))
        return rc;
    if (t->n_dims < 1 || t->n_dims > 4)
        return bad(c, what, "1 to 4 dimensions", t->n_dims);
    for (int d = 0; d < 4; d++)
        t->ne[d] = 1;
    for (uint32_t d = 0; d < t->n_dims; d++)
        if ((rc = get_u64(c, &t->ne[d], what)))
            return rc;
    if ((rc = get_u32(c, &type, what)) || (rc = get_u64(c, &t->offset, what)))
        return rc;
    int known = dtype_from_gguf(type);
    if (known < 0)
        return err_set(c->err, ERR_UNSUPPORTED, "%s: %s at byte %zu: tensor type %u (%s) is not supported", c->s->path, what, at,
                       type, type_text(type));
    t->type = (enum dtype)known;
    return size_tensor(c, t, show, at);
}

/* From offsets in the data area to places in the file. */
static int place_tensors(struct cursor *c, uint32_t alignment)
{
    struct gguf_shard *s = c->s;
    char show[NAMES_SHOW_MAX];
    for (size_t i = 0; i < s->n_tensors; i++) {
        struct gguf_tensor *t = &s->tensors[i];
        if (t->offset % alignment)
            return err_set(c->err, ERR_FORMAT,
                           "%s: tensor '%s': expected an offset that is a multiple of %u, got %llu (misaligned)", s->path,
                           names_show(t->name, show), alignment, ULL(t->offset));
        if (s->data_at > s->n || t->offset > s->n - s->data_at || t->size_bytes > s->n - s->data_at - t->offset)
            return err_set(
                c->err, ERR_FORMAT,
                "%s: tensor '%s': expected data inside the file of %zu bytes, got %llu bytes at byte %llu + %llu (truncated?)",
                s->path, names_show(t->name, show), s->n, ULL(t->size_bytes), ULL(s->data_at), ULL(t->offset));
        t->offset += s->data_at;
        t->data = s->p + t->offset;
    }
    return 0;
}

static int by_offset(const void *a, const void *b)
{
    const struct gguf_tensor *x = *(const struct gguf_tensor *const *)a, *y = *(const struct gguf_tensor *const *)b;
    return x->offset < y->offset ? -1 : x->offset > y->offset;
}

static int check_disjoint(struct cursor *c)
{
    struct gguf_shard *s = c->s;
    const struct gguf_tensor **order = mem_try_array(s->n_tensors, sizeof *order);
    if (!order)
        return err_nomem(c->err, "order of tensors", s->n_tensors * sizeof *order);
    bool sorted = true;
    for (size_t i = 0; i < s->n_tensors; i++) {
        order[i] = &s->tensors[i];
        sorted = sorted && (i == 0 || s->tensors[i].offset >= s->tensors[i - 1].offset);
    }
    if (!sorted)
        qsort(order, s->n_tensors, sizeof *order, by_offset);
    int rc = 0;
    for (size_t i = 1; !rc && i < s->n_tensors; i++) {
        const struct gguf_tensor *a = order[i - 1], *b = order[i];
        char x[NAMES_SHOW_MAX], y[NAMES_SHOW_MAX];
        if (a->offset + a->size_bytes > b->offset)
            rc = err_set(c->err, ERR_FORMAT,
                         "%s: tensor '%s' at byte %llu: expected a start at or after byte %llu, the end of '%s' (overlap)",
                         s->path, names_show(b->name, y), ULL(b->offset), ULL(a->offset + a->size_bytes), names_show(a->name, x));
    }
    mem_free(order);
    return rc;
}

static int read_alignment(struct cursor *c, uint32_t *alignment)
{
    const struct gguf_value *v = gguf_shard_find(c->s, "general.alignment");
    int64_t n = ALIGNMENT_DEFAULT;
    if (v && (v->type == GGUF_ARRAY || !gguf_value_i64(v->type, v->data, &n)))
        return err_set(c->err, ERR_FORMAT, "%s: general.alignment: expected an integer, got %s", c->s->path,
                       gguf_type_name(v->type));
    if (n < 8 || n > 1 << 30 || (n & (n - 1)))
        return err_set(c->err, ERR_FORMAT, "%s: general.alignment: expected a power of two from 8 to 2^30, got %lld", c->s->path,
                       (long long)n);
    *alignment = (uint32_t)n;
    return 0;
}

static int read_tensors(struct cursor *c, uint64_t count, uint32_t index)
{
    struct gguf_shard *s = c->s;
    uint32_t alignment = ALIGNMENT_DEFAULT;
    int rc = read_alignment(c, &alignment);
    if (rc)
        return rc;
    if (count > (s->n - c->at) / INFO_MIN_BYTES)
        return bad(c, "count of tensors", "as many as the file has room for", count);
    s->tensors = mem_try_zero((size_t)count, sizeof *s->tensors);
    if (!s->tensors)
        return err_nomem(c->err, "GGUF tensors", (size_t)count * sizeof *s->tensors);
    s->n_tensors = (size_t)count;
    for (size_t i = 0; i < s->n_tensors; i++) {
        s->tensors[i].shard = index;
        if ((rc = read_info(c, &s->tensors[i])))
            return rc;
    }
    s->data_at = ((uint64_t)c->at + alignment - 1) & ~(uint64_t)(alignment - 1);
    rc = place_tensors(c, alignment);
    return rc ? rc : check_disjoint(c);
}

int gguf_shard_parse(struct gguf_shard *s, uint32_t index, struct err *err)
{
    struct cursor c = {.s = s, .err = err};
    uint64_t n_tensors, n_values;
    int rc = need(&c, 4, "magic");
    if (rc)
        return rc;
    if (memcmp(s->p, "GGUF", 4) != 0)
        return err_set(err, ERR_FORMAT, "%s: expected the magic 'GGUF' at byte 0, got %02x %02x %02x %02x", s->path, s->p[0],
                       s->p[1], s->p[2], s->p[3]);
    c.at = 4;
    if ((rc = get_u32(&c, &s->version, "version")))
        return rc;
    if (s->version && (s->version & 0xFFFF) == 0)
        return err_set(err, ERR_UNSUPPORTED, "%s: big-endian GGUF is not supported", s->path);
    if (s->version != 2 && s->version != 3)
        return err_set(err, ERR_UNSUPPORTED, "%s: GGUF version %u is not supported: expected 2 or 3", s->path, s->version);
    if ((rc = get_u64(&c, &n_tensors, "count of tensors")) || (rc = get_u64(&c, &n_values, "count of metadata values")))
        return rc;
    rc = read_values(&c, n_values);
    return rc ? rc : read_tensors(&c, n_tensors, index);
}

void gguf_shard_free(struct gguf_shard *s)
{
    mem_free(s->tensors);
    names_free(&s->value_names);
    mem_free(s->values);
    file_map_close(&s->map);
    mem_free(s->path);
    *s = (struct gguf_shard){0};
}

const struct gguf_value *gguf_shard_find(const struct gguf_shard *s, const char *key)
{
    size_t i = names_find(&s->value_names, str_of(key));
    return i == SIZE_MAX ? NULL : &s->values[i];
}

bool gguf_value_i64(enum gguf_type type, const uint8_t *p, int64_t *out)
{
    uint64_t u;
    switch (type) {
    case GGUF_U8:
    case GGUF_BOOL:
        *out = p[0];
        return true;
    case GGUF_I8:
        *out = (int8_t)p[0];
        return true;
    case GGUF_U16:
        *out = rd_u16(p);
        return true;
    case GGUF_I16:
        *out = (int16_t)rd_u16(p);
        return true;
    case GGUF_U32:
        *out = rd_u32(p);
        return true;
    case GGUF_I32:
        *out = (int32_t)rd_u32(p);
        return true;
    case GGUF_U64:
    case GGUF_I64:
        u = rd_u64(p);
        if (type == GGUF_U64 && u > INT64_MAX)
            return false;
        *out = (int64_t)u;
        return true;
    default:
        return false;
    }
}
