/* chat/jinja_filter_seq.c - filters over sequences that keep the order.
 *
 * Invariants: filters that are generators in Jinja2 give a JT_ITER: no length, always true, walked once. */
#include "chat/jinja_filters.h"

JFILTER(length)
{
    (void)a;
    return JV_INT(jv_len(jx, v));
}

JFILTER(list)
{
    (void)a;
    struct jlist *l = jv_list(jx, v);
    return jlist_value(l, JT_LIST);
}

JFILTER(first)
{
    struct jiter it;
    struct jv item;
    (void)a;
    if (!jv_iter(jx, v, &it))
        return JV_NONE;
    if (jiter_next(&it, &item))
        return item;
    return jx->rc ? JV_NONE : jundef_hint(jx, "No first item, sequence was empty.");
}

/* reversed(): false when the value has none (a generator, a number) */
static bool reversible(struct jv v)
{
    return v.type == JT_STR || v.type == JT_LIST || v.type == JT_TUPLE || v.type == JT_DICT || v.type == JT_VIEW ||
           v.type == JT_RANGE || v.type == JT_UNDEF;
}

JFILTER(last)
{
    (void)a;
    if (!reversible(v)) {
        jx_fail(jx, ERR_TEMPLATE, "'%s' object is not reversible", jv_type_name(v));
        return JV_NONE;
    }
    struct jlist *l = jv_list(jx, v);
    if (!l)
        return JV_NONE;
    return l->n ? l->v[l->n - 1] : jundef_hint(jx, "No last item, sequence was empty.");
}

static struct jv reverse_str(struct jx *jx, struct jv v)
{
    struct jsb b = {.jx = jx};
    for (size_t to = v.s->n; to > 0 && jx_step(jx, 1);) {
        size_t from = to - 1;
        while (from > 0 && ((unsigned char)v.s->p[from] & 0xC0) == 0x80)
            from--;
        jsb_sub(&b, v.s, from, to);
        to = from;
    }
    struct jv r = jsb_end(&b);
    if (r.type == JT_STR)
        r.s->safe = v.s->safe;
    return r;
}

JFILTER(reverse)
{
    (void)a;
    if (v.type == JT_STR)
        return reverse_str(jx, v);
    struct jlist *l = jv_list(jx, v);
    for (size_t i = 0; l && i < l->n / 2; i++) {
        struct jv t = l->v[i];
        l->v[i] = l->v[l->n - 1 - i];
        l->v[l->n - 1 - i] = t;
    }
    if (!l)
        return JV_NONE;
    return reversible(v) ? jgen_new(jx, l, "list_reverseiterator") : jlist_value(l, JT_LIST);
}

JFILTER(join)
{
    struct jsb b = {.jx = jx};
    struct jiter it;
    struct jv item, sep = jv_given(a[0]) ? jv_str(jx, a[0]) : jstr_z(jx, "");
    bool first = true;
    if (!jv_iter(jx, v, &it))
        return JV_NONE;
    while (jiter_next(&it, &item)) {
        if (jv_given(a[1]))
            item = jattr_path(jx, item, a[1], JV_MISSING);
        if (jx->rc)
            return JV_NONE;
        if (!first)
            jsb_str(&b, sep.s);
        jsb_value(&b, item);
        first = false;
    }
    return jsb_end(&b);
}

JFILTER(items)
{
    (void)a;
    if (v.type == JT_UNDEF)
        return jgen_new(jx, jlist_new(jx, 0), "generator");
    if (v.type != JT_DICT) {
        jx_fail(jx, ERR_TEMPLATE, "Can only get item pairs from a mapping.");
        return JV_NONE;
    }
    struct jlist *l = jv_list(jx, (struct jv){.type = JT_VIEW, .sub = JVIEW_ITEMS, .d = v.d});
    return jgen_new(jx, l, "generator");
}

JFILTER(default)
{
    bool falsy = jv_given(a[1]) && jv_truth(jx, a[1]) && !jv_truth(jx, v);
    if (v.type == JT_UNDEF || falsy)
        return jv_given(a[0]) ? a[0] : jstr_z(jx, "");
    return v;
}

JFILTER(attr)
{
    struct jstr *name;
    if (!jarg_str(jx, a[0], &name))
        return JV_NONE;
    if (v.type == JT_UNDEF)
        return jundef_raise(jx, v);
    struct jv found = jattr_only(jx, v, jstr_text(name));
    return found.type == JT_MISSING && !jx->rc ? jundef_attr(jx, v, jstr_text(name)) : found;
}

static struct jv list_part(struct jx *jx, const struct jlist *l, size_t from, size_t to, size_t want, struct jv fill)
{
    struct jlist *part = jlist_new(jx, to - from);
    for (size_t i = from; i < to; i++)
        jlist_push(jx, part, l->v[i]);
    for (size_t i = to - from; i < want && jv_given(fill) && fill.type != JT_NONE && jx_step(jx, 1); i++)
        jlist_push(jx, part, fill);
    return jlist_value(part, JT_LIST);
}

JFILTER(batch)
{
    int64_t size;
    struct jlist *l = jv_list(jx, v), *out = jlist_new(jx, 4);
    if (!l || !jarg_int(jx, a[0], &size))
        return JV_NONE;
    if (size < 1) /* Python's loop never closes a batch of no items but the first, empty one */
        jx_fail(jx, ERR_TEMPLATE, "batch: expected a size of at least 1, got %lld", (long long)size);
    for (size_t at = 0; at < l->n && !jx->rc; at += (size_t)size) {
        size_t to = l->n - at < (size_t)size ? l->n : at + (size_t)size;
        jlist_push(jx, out, list_part(jx, l, at, to, (size_t)size, a[1]));
    }
    return jx->rc ? JV_NONE : jgen_new(jx, out, "generator");
}

JFILTER(slice)
{
    int64_t slices;
    struct jlist *l = jv_list(jx, v), *out = jlist_new(jx, 4);
    if (!l || !jarg_int(jx, a[0], &slices))
        return JV_NONE;
    if (slices == 0)
        jx_fail(jx, ERR_TEMPLATE, "integer division or modulo by zero");
    size_t at = 0, per = slices > 0 ? l->n / (size_t)slices : 0, extra = slices > 0 ? l->n % (size_t)slices : 0;
    for (int64_t i = 0; i < slices && jx_step(jx, 1); i++) {
        size_t n = per + ((size_t)i < extra);
        bool fill = (size_t)i >= extra; /* Jinja2 fills these even when every slice is equal */
        jlist_push(jx, out, list_part(jx, l, at, at + n, fill ? n + 1 : n, a[1]));
        at += n;
    }
    return jx->rc ? JV_NONE : jgen_new(jx, out, "generator");
}

JFILTER(sum)
{
    struct jiter it;
    struct jv item, total = jv_given(a[1]) ? a[1] : JV_INT(0);
    bool by_attr = jv_given(a[0]) && a[0].type != JT_NONE;
    if (total.type == JT_STR) {
        jx_fail(jx, ERR_TEMPLATE, "sum() can't sum strings [use ''.join(seq) instead]");
        return JV_NONE;
    }
    if (!jv_iter(jx, v, &it))
        return JV_NONE;
    while (jiter_next(&it, &item)) {
        if (by_attr)
            item = jattr_path(jx, item, a[0], JV_MISSING);
        if (jx->rc)
            return JV_NONE;
        total = jop_binary(jx, JTOK_ADD, total, item);
    }
    return jx->rc ? JV_NONE : total;
}

/* ---- map, select and relatives -------------------------------------------------------------------------------------------- */

static struct jv map_attribute(struct jx *jx, struct jv v, const struct jargs *args)
{
    struct jv path = JV_MISSING, fallback = JV_MISSING, item;
    struct jlist *out = jlist_new(jx, 4);
    struct jiter it;
    for (size_t i = 0; i < args->kw_count; i++) {
        if (str_is(args->kw[i].key, "attribute"))
            path = args->kw[i].value;
        else if (str_is(args->kw[i].key, "default"))
            fallback = args->kw[i].value;
        else
            jx_fail(jx, ERR_TEMPLATE, "Unexpected keyword argument '%.*s'", STR_ARG(args->kw[i].key));
    }
    if (!jv_iter(jx, v, &it))
        return JV_NONE;
    while (jiter_next(&it, &item))
        jlist_push(jx, out, jattr_path(jx, item, path, fallback));
    return jx->rc ? JV_NONE : jgen_new(jx, out, "generator");
}

static bool has_keyword(const struct jargs *args, const char *name)
{
    for (size_t i = 0; i < args->kw_count; i++)
        if (str_is(args->kw[i].key, name))
            return true;
    return false;
}

JFILTER_RAW(map)
{
    struct jlist *out = jlist_new(jx, 4);
    struct jiter it;
    struct jv item;
    if (!jv_truth(jx, v))
        return jgen_new(jx, out, "generator");
    if (!args->n && has_keyword(args, "attribute"))
        return map_attribute(jx, v, args);
    if (!args->n)
        jx_fail(jx, ERR_TEMPLATE, "map requires a filter argument");
    struct jstr *name;
    if (jx->rc || !jarg_str(jx, args->v[0], &name))
        return JV_NONE;
    int entry = jfilter_find(jstr_text(name));
    if (entry < 0)
        jx_fail(jx, ERR_TEMPLATE, "No filter named '%.*s'.", STR_ARG(jstr_text(name)));
    struct jargs rest = {.v = args->v + 1, .n = args->n - 1, .kw = args->kw, .kw_count = args->kw_count};
    if (!jv_iter(jx, v, &it))
        return JV_NONE;
    if (++jx->depth > JX_DEPTH_MAX) /* map("map", ...) calls itself */
        jx_fail(jx, ERR_LIMIT, "nested deeper than %d", JX_DEPTH_MAX);
    while (jiter_next(&it, &item))
        jlist_push(jx, out, jfilter_call(jx, entry, item, &rest));
    jx->depth--;
    return jx->rc ? JV_NONE : jgen_new(jx, out, "generator");
}

/* `attr`: the first argument is a path into each item; then an optional test with its arguments */
static struct jv choose(struct jx *jx, struct jv v, const struct jargs *args, bool attr, bool keep)
{
    struct jlist *out = jlist_new(jx, 4);
    struct jiter it;
    struct jv item;
    size_t used = attr;
    int entry = -1;
    if (!jv_truth(jx, v))
        return jgen_new(jx, out, "generator");
    if (args->n < used)
        jx_fail(jx, ERR_TEMPLATE, "Missing parameter for attribute name");
    if (jx->rc)
        return JV_NONE;
    if (args->n > used) {
        struct jstr *name;
        if (!jarg_str(jx, args->v[used], &name))
            return JV_NONE;
        entry = jtest_find(jstr_text(name));
        if (entry < 0)
            jx_fail(jx, ERR_TEMPLATE, "No test named '%.*s'.", STR_ARG(jstr_text(name)));
        used++;
    }
    struct jargs rest = {.v = used ? args->v + used : args->v, .n = args->n - used, .kw = args->kw, .kw_count = args->kw_count};
    if (!jv_iter(jx, v, &it))
        return JV_NONE;
    while (jiter_next(&it, &item)) {
        struct jv seen = attr ? jattr_path(jx, item, args->v[0], JV_MISSING) : item;
        bool yes = !jx->rc && (entry < 0 ? jv_truth(jx, seen) : jtest_call(jx, entry, seen, &rest));
        if (!jx->rc && yes == keep)
            jlist_push(jx, out, item);
    }
    return jx->rc ? JV_NONE : jgen_new(jx, out, "generator");
}

JFILTER_RAW(select)
{
    return choose(jx, v, args, false, true);
}

JFILTER_RAW(reject)
{
    return choose(jx, v, args, false, false);
}

JFILTER_RAW(selectattr)
{
    return choose(jx, v, args, true, true);
}

JFILTER_RAW(rejectattr)
{
    return choose(jx, v, args, true, false);
}
