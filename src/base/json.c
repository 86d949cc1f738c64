/* base/json.c - see json.h. */
#include "base/json.h"

#include "base/mem.h"

#include <math.h>

/* Nesting depth by a scan that knows strings and escapes: yyjson has no limit of its own. */
static bool depth_ok(struct str s)
{
    size_t depth = 0;
    bool quoted = false;
    for (size_t i = 0; i < s.n; i++) {
        char c = s.p[i];
        if (quoted) {
            if (c == '\\')
                i++;
            else if (c == '"')
                quoted = false;
        } else if (c == '"') {
            quoted = true;
        } else if (c == '{' || c == '[') {
            if (++depth > JSON_DEPTH_MAX)
                return false;
        } else if ((c == '}' || c == ']') && depth) {
            depth--;
        }
    }
    return true;
}

static yyjson_doc *parse(struct str text, yyjson_read_flag flags, const char *where, struct err *err)
{
    if (!depth_ok(text)) {
        err_set(err, ERR_LIMIT, "%s: JSON nested deeper than %d", where, JSON_DEPTH_MAX);
        return NULL;
    }
    yyjson_read_err re;
    /* the flags never ask for in-place parsing, so the text is not written */
    yyjson_doc *doc = yyjson_read_opts((char *)(uintptr_t)text.p, text.n, flags, NULL, &re);
    if (doc)
        return doc;
    size_t line = 1, col = 1;
    for (size_t i = 0; i < re.pos && i < text.n; i++) {
        col++;
        if (text.p[i] == '\n')
            line++, col = 1;
    }
    int code = re.code == YYJSON_READ_ERROR_MEMORY_ALLOCATION ? ERR_NOMEM : ERR_FORMAT;
    err_set(err, code, "%s: not valid JSON at line %zu column %zu (byte %zu of %zu): %s", where, line, col, re.pos, text.n, re.msg);
    return NULL;
}

/* mem_try's blocks, so that fault tests reach this, too. */
static void *put_alloc(void *ctx, size_t size)
{
    (void)ctx;
    return mem_try(size);
}

static void *put_resize(void *ctx, void *old, size_t old_size, size_t size)
{
    (void)ctx;
    (void)old_size;
    return mem_try_resize(old, size);
}

static void put_free(void *ctx, void *p)
{
    (void)ctx;
    mem_free(p);
}

void json_put(struct buf *out, yyjson_val *v)
{
    static const yyjson_alc alc = {put_alloc, put_resize, put_free, NULL};
    size_t n = 0;
    char *text = yyjson_val_write_opts(v, YYJSON_WRITE_NOFLAG, &alc, &n, NULL);
    if (text)
        buf_put(out, text, n);
    else
        out->failed = ERR_NOMEM;
    mem_free(text);
}

yyjson_doc *json_parse(struct str text, const char *where, struct err *err)
{
    return parse(text, YYJSON_READ_NOFLAG, where, err);
}

yyjson_doc *json_parse_python(struct str text, const char *where, struct err *err)
{
    return parse(text, YYJSON_READ_ALLOW_INF_AND_NAN, where, err);
}

void json_free(yyjson_doc *doc)
{
    yyjson_doc_free(doc);
}

struct str json_str(yyjson_val *v)
{
    return yyjson_is_str(v) ? (struct str){yyjson_get_str(v), yyjson_get_len(v)} : (struct str){NULL, 0};
}

const char *json_type_name(yyjson_val *v)
{
    return !v ? "absent" : yyjson_is_num(v) ? "number" : yyjson_get_type_desc(v);
}

static int wrong(const char *where, const char *key, const char *want, yyjson_val *v, struct err *err)
{
    if (yyjson_is_num(v))
        return err_set(err, ERR_FORMAT, "%s: '%s': expected %s, got %.17g", where, key, want, yyjson_get_num(v));
    return err_set(err, ERR_FORMAT, "%s: '%s': expected %s, got %s", where, key, want, json_type_name(v));
}

int json_get_u32(yyjson_val *obj, const char *key, uint32_t *out, const char *where, struct err *err)
{
    yyjson_val *v = yyjson_obj_get(obj, key);
    if (!v || yyjson_is_null(v))
        return 0;
    if (yyjson_is_uint(v) && yyjson_get_uint(v) <= UINT32_MAX) {
        *out = (uint32_t)yyjson_get_uint(v);
        return 0;
    }
    double d = yyjson_is_real(v) ? yyjson_get_real(v) : -1;
    if (d >= 0 && d <= UINT32_MAX && floor(d) == d) {
        *out = (uint32_t)d;
        return 0;
    }
    return wrong(where, key, "a whole number from 0 to 4294967295", v, err);
}

int json_get_f64(yyjson_val *obj, const char *key, double *out, const char *where, struct err *err)
{
    yyjson_val *v = yyjson_obj_get(obj, key);
    if (!v || yyjson_is_null(v))
        return 0;
    if (!yyjson_is_num(v) || !isfinite(yyjson_get_num(v)))
        return wrong(where, key, "a number", v, err);
    *out = yyjson_get_num(v);
    return 0;
}

int json_get_f32(yyjson_val *obj, const char *key, float *out, const char *where, struct err *err)
{
    double d = (double)*out;
    int rc = json_get_f64(obj, key, &d, where, err);
    if (rc)
        return rc;
    if (fabs(d) > 3.4028234e38)
        return wrong(where, key, "a number in f32's range", yyjson_obj_get(obj, key), err);
    *out = (float)d;
    return 0;
}

int json_get_bool(yyjson_val *obj, const char *key, bool *out, const char *where, struct err *err)
{
    yyjson_val *v = yyjson_obj_get(obj, key);
    if (!v || yyjson_is_null(v))
        return 0;
    if (!yyjson_is_bool(v))
        return wrong(where, key, "true or false", v, err);
    *out = yyjson_get_bool(v);
    return 0;
}

int json_get_str(yyjson_val *obj, const char *key, struct str *out, const char *where, struct err *err)
{
    yyjson_val *v = yyjson_obj_get(obj, key);
    if (!v || yyjson_is_null(v))
        return 0;
    if (!yyjson_is_str(v))
        return wrong(where, key, "a string", v, err);
    *out = json_str(v);
    return 0;
}
