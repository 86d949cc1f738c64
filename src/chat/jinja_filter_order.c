/* chat/jinja_filter_order.c - filters that compare: sort, unique, dictsort, min, max, groupby.
 *
 * Invariants: without case_sensitive, text is compared in lower case, and only there. */
#include "chat/jinja_filters.h"

static struct jv fold(struct jx *jx, struct jv v, bool case_sensitive)
{
    return v.type == JT_STR && !case_sensitive ? jstr_case(jx, v.s, JCASE_LOWER) : v;
}

static bool flag(struct jx *jx, struct jv v)
{
    return jv_given(v) && jv_truth(jx, v);
}

/* the sort key of an item: a list, one entry per comma-separated attribute */
static struct jv multi_key(struct jx *jx, struct jv item, struct jv attr, bool case_sensitive)
{
    struct jlist *key = jlist_new(jx, 1);
    if (attr.type != JT_STR) {
        jlist_push(jx, key, fold(jx, jattr_path(jx, item, attr, JV_MISSING), case_sensitive));
        return jlist_value(key, JT_LIST);
    }
    struct str rest = jstr_text(attr.s), part;
    while (!jx->rc && str_split(&rest, ',', &part)) {
        struct jv path = jstr_new(jx, part, false);
        struct jv v = jx->rc ? JV_NONE : jattr_path(jx, item, path, JV_MISSING);
        jlist_push(jx, key, fold(jx, v, case_sensitive));
    }
    return jlist_value(key, JT_LIST);
}

JFILTER(sort)
{
    struct jlist *l = jv_list(jx, v), *keys = l ? jlist_new(jx, l->n) : NULL;
    bool case_sensitive = flag(jx, a[1]);
    for (size_t i = 0; l && i < l->n && !jx->rc; i++)
        jlist_push(jx, keys, multi_key(jx, l->v[i], a[2], case_sensitive));
    jsort(jx, l, keys, flag(jx, a[0]));
    return jx->rc ? JV_NONE : jlist_value(l, JT_LIST);
}

JFILTER(unique)
{
    struct jlist *l = jv_list(jx, v), *out = jlist_new(jx, 4);
    struct jdict *seen = jdict_new(jx, 4);
    bool case_sensitive = flag(jx, a[0]);
    for (size_t i = 0; l && seen && i < l->n && !jx->rc; i++) {
        struct jv key = fold(jx, jattr_path(jx, l->v[i], a[1], JV_MISSING), case_sensitive);
        if (jx->rc || jdict_find(jx, seen, key))
            continue;
        jdict_set(jx, seen, key, JV_NONE);
        jlist_push(jx, out, l->v[i]);
    }
    return jx->rc ? JV_NONE : jgen_new(jx, out, "generator");
}

JFILTER(dictsort)
{
    struct str by = jv_given(a[1]) && a[1].type == JT_STR ? jstr_text(a[1].s) : jv_given(a[1]) ? STR("") : STR("key");
    bool case_sensitive = flag(jx, a[0]);
    if (!str_is(by, "key") && !str_is(by, "value"))
        jx_fail(jx, ERR_TEMPLATE, "You can only sort by either \"key\" or \"value\"");
    if (v.type == JT_UNDEF)
        return jundef_raise(jx, v);
    if (v.type != JT_DICT)
        jx_fail(jx, ERR_TEMPLATE, "'%s' object has no attribute 'items'", jv_type_name(v));
    if (jx->rc)
        return JV_NONE;
    struct jlist *l = jv_list(jx, (struct jv){.type = JT_VIEW, .sub = JVIEW_ITEMS, .d = v.d}), *keys = jlist_new(jx, v.d->n);
    for (size_t i = 0; l && i < l->n && !jx->rc; i++)
        jlist_push(jx, keys, fold(jx, l->v[i].l->v[str_is(by, "value")], case_sensitive));
    jsort(jx, l, keys, flag(jx, a[2]));
    return jx->rc ? JV_NONE : jlist_value(l, JT_LIST);
}

static struct jv extreme(struct jx *jx, struct jv v, struct jv *a, bool max)
{
    struct jiter it;
    struct jv item, best = JV_MISSING, best_key = JV_MISSING;
    bool case_sensitive = flag(jx, a[0]);
    if (!jv_iter(jx, v, &it))
        return JV_NONE;
    while (jiter_next(&it, &item)) {
        struct jv key = fold(jx, jattr_path(jx, item, a[1], JV_MISSING), case_sensitive);
        bool better = best.type == JT_MISSING;
        if (!better && !jx->rc)
            better = max ? jv_compare(jx, key, best_key, ">") == 1 : jv_compare(jx, key, best_key, "<") == -1;
        if (better) {
            best = item;
            best_key = key;
        }
    }
    if (jx->rc)
        return JV_NONE;
    return best.type == JT_MISSING ? jundef_hint(jx, "No aggregated item, sequence was empty.") : best;
}

JFILTER(min)
{
    return extreme(jx, v, a, false);
}

JFILTER(max)
{
    return extreme(jx, v, a, true);
}

static void group_push(struct jx *jx, struct jlist *out, struct jv grouper, struct jlist *items)
{
    struct jv pair = jtuple_pair(jx, grouper, jlist_value(items, JT_LIST));
    if (pair.type == JT_TUPLE)
        pair.l->group = true;
    jlist_push(jx, out, pair);
}

JFILTER(groupby)
{
    struct jlist *l = jv_list(jx, v), *keys = l ? jlist_new(jx, l->n) : NULL, *out = jlist_new(jx, 4), *group = NULL;
    bool case_sensitive = flag(jx, a[2]);
    struct jv fallback = jv_given(a[1]) ? a[1] : JV_NONE;
    for (size_t i = 0; l && i < l->n && !jx->rc; i++)
        jlist_push(jx, keys, fold(jx, jattr_path(jx, l->v[i], a[0], fallback), case_sensitive));
    jsort(jx, l, keys, false);
    for (size_t i = 0; l && i < l->n && !jx->rc; i++) {
        if (!group || !jv_equal(jx, keys->v[i - 1], keys->v[i])) {
            group = jlist_new(jx, 4);
            group_push(jx, out, jattr_path(jx, l->v[i], a[0], fallback), group);
        }
        jlist_push(jx, group, l->v[i]);
    }
    return jx->rc ? JV_NONE : jlist_value(out, JT_LIST);
}
