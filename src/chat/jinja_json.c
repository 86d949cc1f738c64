/* chat/jinja_json.c - the tojson filter: json.dumps as chat templates call it, without HTML escapes.
 *
 * Invariants: 1. The text is json.dumps's for the same options: separators, indent, ensure_ascii, sort_keys.
 *             2. What came whole from a user is the user's text, braces included; inside a dict of the template only the user's
 *                strings are.
 * Does not:   read JSON (template.c turns yyjson values into ours). */
#include "chat/jinja_int.h"

#include "base/utf8.h"

#include <math.h>
#include <stdio.h>

static size_t json_escape(uint32_t cp, bool ascii, char out[16])
{
    static const char from[] = "\"\\\n\r\t\f\b", to[] = "\"\\nrtfb";
    const char *hit = cp && cp < 0x80 ? strchr(from, (int)cp) : NULL;
    if (hit) {
        out[0] = '\\';
        out[1] = to[hit - from];
        return 2;
    }
    if (cp >= 0x20 && (cp < 0x7F || !ascii))
        return 0;
    if (cp < 0x10000)
        return (size_t)snprintf(out, 16, "\\u%04x", cp);
    cp -= 0x10000;
    return (size_t)snprintf(out, 16, "\\u%04x\\u%04x", 0xD800 + (cp >> 10), 0xDC00 + (cp & 0x3FF));
}

static void json_str(struct jsb *b, const struct jstr *s, bool ascii, bool user)
{
    bool all = user || jstr_all_user(s);
    char esc[16];
    size_t start = 0, cursor = 0;
    jsb_put(b, "\"", 1, all);
    for (size_t i = 0; i < s->n && !b->jx->rc;) {
        uint32_t cp;
        size_t used = utf8_decode(str_from(jstr_text(s), i), &cp), n = json_escape(cp, ascii, esc);
        if (n) {
            jsb_sub(b, s, start, i);
            jsb_put(b, esc, n, all || jstr_user_at(s, &cursor, i));
            start = i + used;
        }
        i += used;
    }
    jsb_sub(b, s, start, s->n);
    jsb_put(b, "\"", 1, all);
}

static void json_float(struct jsb *b, double f, bool user)
{
    const char *z = isnan(f) ? "NaN" : f < 0 ? "-Infinity" : "Infinity";
    if (isnan(f) || isinf(f))
        jsb_put(b, z, strlen(z), user);
    else
        jsb_float(b, f, user);
}

/* true when v was a scalar and is written */
static bool json_scalar(struct jsb *b, struct jv v, const struct jjson_opts *o, bool user)
{
    const char *z;
    switch (v.type) {
    case JT_STR:
        json_str(b, v.s, o->ascii, user);
        return true;
    case JT_NONE:
    case JT_BOOL:
        z = v.type == JT_NONE ? "null" : v.b ? "true" : "false";
        jsb_put(b, z, strlen(z), v.user);
        return true;
    case JT_FLOAT:
        json_float(b, v.f, v.user);
        return true;
    case JT_INT:
        jsb_repr(b, v, 0);
        return true;
    default:
        return false;
    }
}

static void json_key(struct jsb *b, struct jv key, const struct jjson_opts *o, bool user)
{
    if (key.type == JT_STR) {
        json_str(b, key.s, o->ascii, user);
        return;
    }
    if (key.type != JT_NONE && key.type != JT_BOOL && key.type != JT_INT && key.type != JT_FLOAT) {
        jx_fail(b->jx, ERR_TEMPLATE, "keys must be str, int, float, bool or None, not %s", jv_type_name(key));
        return;
    }
    jsb_put(b, "\"", 1, user);
    json_scalar(b, key, o, user);
    jsb_put(b, "\"", 1, user);
}

static void put_sep(struct jsb *b, const struct jstr *sep, bool user)
{
    if (sep->seg_count)
        jsb_str(b, sep);
    else
        jsb_put(b, sep->p, sep->n, user);
}

static void newline(struct jsb *b, const struct jjson_opts *o, unsigned depth, bool user)
{
    if (!o->indented)
        return;
    jsb_put(b, "\n", 1, user);
    for (unsigned i = 0; i < depth; i++)
        put_sep(b, o->indent, user);
}

/* entries of a dict in the order they are written */
static struct jentry *sorted_entries(struct jx *jx, const struct jdict *d)
{
    struct jlist *items = jlist_new(jx, d->n), *keys = jlist_new(jx, d->n);
    struct jentry *out = jx_alloc(jx, d->n, sizeof *out);
    if (!items || !keys || !out)
        return NULL;
    for (size_t i = 0; i < d->n; i++) {
        jlist_push(jx, keys, d->e[i].key);
        jlist_push(jx, items, JV_INT((int64_t)i));
    }
    jsort(jx, items, keys, false);
    for (size_t i = 0; i < d->n && !jx->rc; i++)
        out[i] = d->e[items->v[i].i];
    return jx->rc ? NULL : out;
}

static void json_dict(struct jsb *b, struct jv v, const struct jjson_opts *o, unsigned depth, bool user)
{
    if (!v.d->n) {
        jsb_put(b, "{}", 2, user);
        return;
    }
    const struct jentry *e = o->sort ? sorted_entries(b->jx, v.d) : v.d->e;
    jsb_put(b, "{", 1, user);
    for (size_t i = 0; e && i < v.d->n && !b->jx->rc; i++) {
        if (i)
            put_sep(b, o->item_sep, user);
        newline(b, o, depth + 1, user);
        json_key(b, e[i].key, o, user);
        put_sep(b, o->key_sep, user);
        jsb_json(b, e[i].value, o, depth + 1, user);
    }
    newline(b, o, depth, user);
    jsb_put(b, "}", 1, user);
}

static void json_list(struct jsb *b, struct jv v, const struct jjson_opts *o, unsigned depth, bool user)
{
    if (!v.l->n) {
        jsb_put(b, "[]", 2, user);
        return;
    }
    jsb_put(b, "[", 1, user);
    for (size_t i = 0; i < v.l->n && !b->jx->rc; i++) {
        if (i)
            put_sep(b, o->item_sep, user);
        newline(b, o, depth + 1, user);
        jsb_json(b, v.l->v[i], o, depth + 1, user);
    }
    newline(b, o, depth, user);
    jsb_put(b, "]", 1, user);
}

void jsb_json(struct jsb *b, struct jv v, const struct jjson_opts *o, unsigned depth, bool user)
{
    user |= v.user;
    if (b->jx->rc || !jx_step(b->jx, 1))
        return;
    if (depth > JX_VALUE_DEPTH_MAX)
        jx_fail(b->jx, ERR_LIMIT, "values nested deeper than %d", JX_VALUE_DEPTH_MAX);
    else if (v.type == JT_DICT)
        json_dict(b, v, o, depth, user);
    else if (v.type == JT_LIST || v.type == JT_TUPLE)
        json_list(b, v, o, depth, user);
    else if (!json_scalar(b, v, o, user))
        jx_fail(b->jx, ERR_TEMPLATE, "Object of type %s is not JSON serializable", jv_type_name(v));
}
