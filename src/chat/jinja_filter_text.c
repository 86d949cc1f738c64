/* chat/jinja_filter_text.c - filters that make text.
 *
 * Invariants: 1. Markup stays Markup where Jinja2 keeps it (soft_str), and turns plain where Jinja2 calls str().
 *             2. Bytes keep their marks. */
#include "chat/jinja_filters.h"

#include "base/utf8.h"

#include <stdio.h>

/* The filter is a method of the text: look it up and call it. */
static struct jv as_method(struct jx *jx, struct jv v, const char *name, struct jv *a, size_t n)
{
    v = jv_soft_str(jx, v);
    const struct jmethod_row *row = jmethod_find(JT_STR, str_of(name));
    struct jargs args = {.v = a, .n = n};
    return jx->rc ? JV_NONE : jcall_row(jx, &row->f, v, &args);
}

JFILTER(upper)
{
    return as_method(jx, v, "upper", a, 0);
}

JFILTER(lower)
{
    return as_method(jx, v, "lower", a, 0);
}

JFILTER(capitalize)
{
    return as_method(jx, v, "capitalize", a, 0);
}

JFILTER(trim)
{
    return as_method(jx, v, "strip", a, jv_given(a[0]) ? 1 : 0);
}

JFILTER(center)
{
    if (!jv_given(a[0]))
        a[0] = JV_INT(80);
    return as_method(jx, v, "center", a, 1);
}

/* Words begin after - ( { [ < and white space, which is not what str.title does. */
JFILTER(title)
{
    struct jsb b = {.jx = jx};
    bool start = true;
    (void)a;
    v = jv_soft_str(jx, v);
    if (jx->rc)
        return JV_NONE;
    for (size_t i = 0; i < v.s->n;) {
        uint32_t cp;
        size_t n = utf8_decode(str_from(jstr_text(v.s), i), &cp);
        bool separator = jchar_is_space(cp) || (cp < 0x80 && strchr("-({[<", (int)cp) && cp);
        jsb_case(&b, v.s, i, i + n, start ? JCASE_UPPER : JCASE_LOWER);
        start = separator;
        i += n;
    }
    return jsb_end(&b);
}

JFILTER(replace)
{
    struct jv args[3] = {jv_str(jx, a[0]), jv_str(jx, a[1]), jv_given(a[2]) && a[2].type != JT_NONE ? a[2] : JV_INT(-1)};
    v = jv_str(jx, v);
    return jx->rc ? JV_NONE : as_method(jx, v, "replace", args, 3);
}

/* " " * width, or the text given */
static struct jv indent_text(struct jx *jx, struct jv width)
{
    if (width.type == JT_STR)
        return width;
    return jop_binary(jx, JTOK_MUL, jstr_z(jx, " "), jv_given(width) ? width : JV_INT(4));
}

JFILTER(indent)
{
    struct jsb b = {.jx = jx};
    struct jv width = indent_text(jx, a[0]), s = jx->rc ? JV_NONE : jop_binary(jx, JTOK_ADD, v, jstr_z(jx, "\n"));
    bool first = jv_given(a[1]) && jv_truth(jx, a[1]), blank = jv_given(a[2]) && jv_truth(jx, a[2]);
    struct jv lines = jx->rc ? JV_NONE : as_method(jx, s, "splitlines", NULL, 0);
    if (jx->rc)
        return JV_NONE;
    if (first)
        jsb_str(&b, width.s);
    for (size_t i = 0; i < lines.l->n; i++) {
        const struct jstr *line = lines.l->v[i].s;
        if (i)
            jsb_z(&b, "\n");
        if (i && (blank || line->n))
            jsb_str(&b, width.s);
        jsb_str(&b, line);
    }
    struct jv r = jsb_end(&b);
    if (r.type == JT_STR)
        r.s->safe = v.s->safe;
    return r;
}

static struct jv cut_last_word(struct jx *jx, struct jv v)
{
    size_t at = v.s->n;
    while (at > 0 && v.s->p[at - 1] != ' ')
        at--;
    return at ? jstr_sub(jx, v.s, 0, at - 1) : v;
}

JFILTER(truncate)
{
    int64_t length = jarg_int_or(jx, a[0], 255), leeway = jarg_int_or(jx, a[3], 5);
    struct jv end = jv_given(a[2]) ? a[2] : jstr_z(jx, "...");
    struct jstr *s;
    int64_t tail_len = jv_len(jx, end), chars = jv_len(jx, v);
    if (length < tail_len)
        jx_fail(jx, ERR_TEMPLATE, "expected length >= %lld, got %lld", (long long)tail_len, (long long)length);
    if (leeway < 0)
        jx_fail(jx, ERR_TEMPLATE, "expected leeway >= 0, got %lld", (long long)leeway);
    if (jx->rc || chars <= length || chars - length <= leeway)
        return v;
    if (!jarg_str(jx, v, &s))
        return JV_NONE;
    v = jstr_sub(jx, s, 0, jstr_byte_of(s, (size_t)(length - tail_len)));
    if (!jx->rc && !(jv_given(a[1]) && jv_truth(jx, a[1])))
        v = cut_last_word(jx, v);
    return jx->rc ? JV_NONE : jop_binary(jx, JTOK_ADD, v, end);
}

JFILTER(wordcount)
{
    int64_t words = 0;
    bool inside = false;
    (void)a;
    v = jv_soft_str(jx, v);
    for (size_t i = 0; !jx->rc && i < v.s->n;) {
        uint32_t cp;
        i += utf8_decode(str_from(jstr_text(v.s), i), &cp);
        bool word = cp == '_' || jchar_is_alnum(cp);
        words += word && !inside;
        inside = word;
    }
    return JV_INT(words);
}

JFILTER(escape)
{
    (void)a;
    v = jv_soft_str(jx, v);
    return jx->rc ? JV_NONE : jstr_escape(jx, v.s);
}

JFILTER(forceescape)
{
    (void)a;
    v = jv_str(jx, v);
    return jx->rc ? JV_NONE : jstr_escape(jx, v.s);
}

JFILTER(safe)
{
    (void)a;
    v = jv_soft_str(jx, v);
    return jx->rc ? JV_NONE : jstr_as_safe(jx, v.s, true);
}

JFILTER(string)
{
    (void)a;
    return jv_soft_str(jx, v);
}

JFILTER_RAW(format)
{
    v = jv_soft_str(jx, v);
    if (args->n && args->kw_count)
        jx_fail(jx, ERR_TEMPLATE, "can't handle positional and keyword arguments at the same time");
    if (jx->rc)
        return JV_NONE;
    if (args->kw_count) {
        struct jdict *d = jdict_new(jx, args->kw_count);
        for (size_t i = 0; i < args->kw_count; i++)
            jdict_set(jx, d, jstr_new(jx, args->kw[i].key, false), args->kw[i].value);
        return jx->rc ? JV_NONE : jformat_percent(jx, v.s, (struct jv){.type = JT_DICT, .d = d});
    }
    struct jlist *l = jlist_new(jx, args->n);
    for (size_t i = 0; i < args->n; i++)
        jlist_push(jx, l, args->v[i]);
    return jx->rc ? JV_NONE : jformat_percent(jx, v.s, jlist_value(l, JT_TUPLE));
}

/* ---- urlencode ------------------------------------------------------------------------------------------------------------ */

static void url_quote(struct jsb *b, struct jv v, bool query)
{
    static const char hex[] = "0123456789ABCDEF";
    v = jv_soft_str(b->jx, v);
    for (size_t i = 0; !b->jx->rc && i < v.s->n; i++) {
        unsigned char c = (unsigned char)v.s->p[i];
        bool plain = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || (c && strchr("_.-~", c)) ||
                     (c == '/' && !query);
        if (plain) {
            jsb_sub(b, v.s, i, i + 1);
            continue;
        }
        char out[3] = {'%', hex[c >> 4], hex[c & 15]};
        jsb_put(b, query && c == ' ' ? "+" : out, query && c == ' ' ? 1 : 3, v.s->seg_count > 0);
    }
}

JFILTER(urlencode)
{
    struct jsb b = {.jx = jx};
    struct jiter it;
    struct jv item;
    (void)a;
    int64_t n;
    if (v.type == JT_STR || (v.type != JT_ITER && !jv_len_known(v, &n, jx))) {
        url_quote(&b, v, false);
        return jsb_end(&b);
    }
    if (v.type == JT_DICT)
        v = (struct jv){.type = JT_VIEW, .sub = JVIEW_ITEMS, .d = v.d};
    if (!jv_iter(jx, v, &it))
        return JV_NONE;
    while (jiter_next(&it, &item)) {
        struct jlist *pair = jv_list(jx, item);
        if (pair && pair->n != 2)
            jx_fail(jx, ERR_TEMPLATE, "urlencode: expected pairs, got a sequence of %zu", pair->n);
        if (jx->rc)
            return JV_NONE;
        if (b.n)
            jsb_z(&b, "&");
        url_quote(&b, pair->v[0], true);
        jsb_z(&b, "=");
        url_quote(&b, pair->v[1], true);
    }
    return jsb_end(&b);
}

/* ---- tojson --------------------------------------------------------------------------------------------------------------- */

static bool json_indent(struct jx *jx, struct jv v, struct jjson_opts *o)
{
    int64_t n;
    o->indented = jv_given(v) && v.type != JT_NONE;
    if (!o->indented)
        return true;
    if (jv_index_int(v, &n))
        v = jop_binary(jx, JTOK_MUL, jstr_z(jx, " "), JV_INT(n));
    return jarg_str(jx, v, &o->indent);
}

static bool json_separators(struct jx *jx, struct jv v, struct jjson_opts *o)
{
    struct jv item = jstr_z(jx, o->indented ? "," : ", "), key = jstr_z(jx, ": ");
    if (jv_given(v) && v.type != JT_NONE) {
        struct jlist *pair = jv_list(jx, v);
        if (pair && pair->n != 2)
            jx_fail(jx, ERR_TEMPLATE, "tojson: separators: expected 2 values to unpack, got %zu", pair->n);
        if (jx->rc)
            return false;
        item = pair->v[0];
        key = pair->v[1];
    }
    return jarg_str(jx, item, &o->item_sep) && jarg_str(jx, key, &o->key_sep);
}

JFILTER(tojson)
{
    struct jjson_opts o = {.ascii = jv_given(a[0]) && jv_truth(jx, a[0]), .sort = jv_given(a[3]) && jv_truth(jx, a[3])};
    struct jsb b = {.jx = jx};
    if (!json_indent(jx, a[1], &o) || !json_separators(jx, a[2], &o))
        return JV_NONE;
    jsb_json(&b, v, &o, 0, false);
    return jsb_end(&b);
}
