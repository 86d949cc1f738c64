/* chat/jinja_method.c - the table of methods, and those of dicts, lists, numbers, loops and cyclers.
 *
 * Invariants: methods that change a list or dict are not in the table; jmethod_forbidden knows their names, so that reading one
 * gives the sandbox's unsafe undefined instead of an item of that name. */
#include "chat/jinja_methods.h"

#include <math.h>

static struct jv dict_get(struct jx *jx, struct jv v, struct jv *a)
{
    struct jentry *e = jdict_find(jx, v.d, a[0]);
    return e ? e->value : jv_given(a[1]) ? a[1] : JV_NONE;
}

static struct jv view(struct jv v, enum jview kind)
{
    return (struct jv){.type = JT_VIEW, .sub = (uint16_t)kind, .user = v.user, .d = v.d};
}

static struct jv dict_items(struct jx *jx, struct jv v, struct jv *a)
{
    (void)jx;
    (void)a;
    return view(v, JVIEW_ITEMS);
}

static struct jv dict_keys(struct jx *jx, struct jv v, struct jv *a)
{
    (void)jx;
    (void)a;
    return view(v, JVIEW_KEYS);
}

static struct jv dict_values(struct jx *jx, struct jv v, struct jv *a)
{
    (void)jx;
    (void)a;
    return view(v, JVIEW_VALUES);
}

static struct jv same(struct jx *jx, struct jv v, struct jv *a) /* copies are not needed: nothing changes */
{
    (void)jx;
    (void)a;
    return v;
}

static int64_t seq_find(struct jx *jx, struct jv v, struct jv what, int64_t from, int64_t to)
{
    struct jiter it;
    struct jv item;
    if (!jv_iter(jx, v, &it))
        return -1;
    for (int64_t i = 0; i < to && jiter_next(&it, &item); i++)
        if (i >= from && jv_equal(jx, item, what))
            return i;
    return -1;
}

static struct jv seq_index(struct jx *jx, struct jv v, struct jv *a)
{
    int64_t n = jv_len(jx, v), from = jarg_int_or(jx, a[1], 0), to = jarg_int_or(jx, a[2], n);
    from = from < 0 ? from + n : from;
    to = to < 0 ? to + n : to;
    int64_t at = jx->rc ? -1 : seq_find(jx, v, a[0], from, to);
    if (at < 0)
        jx_fail(jx, ERR_TEMPLATE, "%.*s is not in list", STR_ARG(jv_repr_short(jx, a[0])));
    return JV_INT(at);
}

static struct jv seq_count(struct jx *jx, struct jv v, struct jv *a)
{
    struct jiter it;
    struct jv item;
    int64_t n = 0;
    if (jv_iter(jx, v, &it))
        while (jiter_next(&it, &item))
            n += jv_equal(jx, item, a[0]);
    return JV_INT(n);
}

static struct jv str_format(struct jx *jx, struct jv v, const struct jargs *args)
{
    struct jv r = jformat_braces(jx, v.s, args);
    if (r.type == JT_STR)
        r.s->safe = v.s->safe;
    return r;
}

static struct jv str_format_map(struct jx *jx, struct jv v, struct jv *a)
{
    struct jargs args = {0};
    if (a[0].type != JT_DICT) {
        jx_fail(jx, ERR_TEMPLATE, "format_map() argument must be a mapping, not %s", jv_type_name(a[0]));
        return JV_NONE;
    }
    args.kw = jx_alloc(jx, a[0].d->n + 1, sizeof *args.kw);
    for (size_t i = 0; args.kw && i < a[0].d->n; i++)
        if (a[0].d->e[i].key.type == JT_STR)
            args.kw[args.kw_count++] = (struct jkwv){jstr_text(a[0].d->e[i].key.s), a[0].d->e[i].value};
    return jx->rc ? JV_NONE : str_format(jx, v, &args);
}

static struct jv float_is_integer(struct jx *jx, struct jv v, struct jv *a)
{
    (void)jx;
    (void)a;
    return JV_BOOL(isfinite(v.f) && floor(v.f) == v.f);
}

static struct jv int_bit_length(struct jx *jx, struct jv v, struct jv *a)
{
    int64_t i = 0, n = 0;
    (void)a;
    if (!jarg_int(jx, v, &i))
        return JV_NONE;
    for (uint64_t u = i < 0 ? 0 - (uint64_t)i : (uint64_t)i; u; u >>= 1)
        n++;
    return JV_INT(n);
}

static struct jv loop_cycle(struct jx *jx, struct jv v, const struct jargs *args)
{
    if (!args->n || args->kw_count) {
        jx_fail(jx, ERR_TEMPLATE, "no items for cycling given");
        return JV_NONE;
    }
    return args->v[(size_t)v.loop->index0 % args->n];
}

static struct jv loop_changed(struct jx *jx, struct jv v, const struct jargs *args)
{
    struct jlist *now = jlist_new(jx, args->n);
    for (size_t i = 0; i < args->n; i++)
        jlist_push(jx, now, args->v[i]);
    struct jv value = jlist_value(now, JT_TUPLE);
    if (jx->rc)
        return JV_NONE;
    if (v.loop->changed.type != JT_MISSING && jv_equal(jx, v.loop->changed, value))
        return JV_BOOL(false);
    v.loop->changed = value;
    return JV_BOOL(true);
}

static struct jv cycler_next(struct jx *jx, struct jv v, struct jv *a)
{
    (void)jx;
    (void)a;
    struct jv item = v.cycle->items->v[v.cycle->pos];
    v.cycle->pos = (v.cycle->pos + 1) % v.cycle->items->n;
    return item;
}

static struct jv cycler_reset(struct jx *jx, struct jv v, struct jv *a)
{
    (void)jx;
    (void)a;
    v.cycle->pos = 0;
    return JV_NONE;
}

#define STR_METHOD(n, p, m) {JT_STR, {.name = #n, .fn = jstrm_##n, .params = p, .min = m}}
#define STR_REFUSED(n, why) {JT_STR, {.name = #n, .raw = str_format, .refused = why}}

static const struct jmethod_row methods[] = {
    STR_METHOD(split, "sep|maxsplit", 0),
    STR_METHOD(strip, "/chars", 0),
    STR_METHOD(lstrip, "/chars", 0),
    STR_METHOD(rstrip, "/chars", 0),
    STR_METHOD(startswith, "/prefix|start|end", 1),
    STR_METHOD(endswith, "/suffix|start|end", 1),
    STR_METHOD(replace, "/old|new|count", 2),
    STR_METHOD(join, "/iterable", 1),
    {JT_STR, {.name = "format", .raw = str_format}},
    {JT_STR, {.name = "format_map", .fn = str_format_map, .params = "/mapping", .min = 1}},
    STR_METHOD(upper, "", 0),
    STR_METHOD(lower, "", 0),
    STR_METHOD(title, "", 0),
    STR_METHOD(capitalize, "", 0),
    STR_METHOD(swapcase, "", 0),
    STR_METHOD(rsplit, "sep|maxsplit", 0),
    STR_METHOD(splitlines, "keepends", 0),
    STR_METHOD(find, "/sub|start|end", 1),
    STR_METHOD(rfind, "/sub|start|end", 1),
    STR_METHOD(index, "/sub|start|end", 1),
    STR_METHOD(rindex, "/sub|start|end", 1),
    STR_METHOD(count, "/sub|start|end", 1),
    STR_METHOD(partition, "/sep", 1),
    STR_METHOD(rpartition, "/sep", 1),
    STR_METHOD(removeprefix, "/prefix", 1),
    STR_METHOD(removesuffix, "/suffix", 1),
    STR_METHOD(ljust, "/width|fillchar", 1),
    STR_METHOD(rjust, "/width|fillchar", 1),
    STR_METHOD(center, "/width|fillchar", 1),
    STR_METHOD(zfill, "/width", 1),
    STR_METHOD(expandtabs, "tabsize", 0),
    STR_METHOD(isalpha, "", 0),
    STR_METHOD(isalnum, "", 0),
    STR_METHOD(isdigit, "", 0),
    STR_METHOD(isdecimal, "", 0),
    STR_METHOD(isnumeric, "", 0),
    STR_METHOD(isspace, "", 0),
    STR_METHOD(isupper, "", 0),
    STR_METHOD(islower, "", 0),
    STR_METHOD(istitle, "", 0),
    STR_METHOD(isascii, "", 0),
    STR_METHOD(isprintable, "", 0),
    STR_METHOD(isidentifier, "", 0),
    STR_REFUSED(casefold, "use lower"),
    STR_REFUSED(encode, "templates have no bytes"),
    STR_REFUSED(translate, "templates have no translation tables"),
    STR_REFUSED(maketrans, "templates have no translation tables"),
    {JT_DICT, {.name = "get", .fn = dict_get, .params = "/key|default", .min = 1}},
    {JT_DICT, {.name = "items", .fn = dict_items, .params = ""}},
    {JT_DICT, {.name = "keys", .fn = dict_keys, .params = ""}},
    {JT_DICT, {.name = "values", .fn = dict_values, .params = ""}},
    {JT_DICT, {.name = "copy", .fn = same, .params = ""}},
    {JT_DICT, {.name = "fromkeys", .raw = str_format, .refused = "build the dict with a loop"}},
    {JT_LIST, {.name = "index", .fn = seq_index, .params = "/value|start|stop", .min = 1}},
    {JT_LIST, {.name = "count", .fn = seq_count, .params = "/value", .min = 1}},
    {JT_LIST, {.name = "copy", .fn = same, .params = ""}},
    {JT_TUPLE, {.name = "index", .fn = seq_index, .params = "/value|start|stop", .min = 1}},
    {JT_TUPLE, {.name = "count", .fn = seq_count, .params = "/value", .min = 1}},
    {JT_RANGE, {.name = "index", .fn = seq_index, .params = "/value", .min = 1}},
    {JT_RANGE, {.name = "count", .fn = seq_count, .params = "/value", .min = 1}},
    {JT_FLOAT, {.name = "is_integer", .fn = float_is_integer, .params = ""}},
    {JT_INT, {.name = "bit_length", .fn = int_bit_length, .params = ""}},
    {JT_LOOP, {.name = "cycle", .raw = loop_cycle}},
    {JT_LOOP, {.name = "changed", .raw = loop_changed}},
    {JT_CYCLER, {.name = "next", .fn = cycler_next, .params = ""}},
    {JT_CYCLER, {.name = "reset", .fn = cycler_reset, .params = ""}},
};

const struct jmethod_row *jmethod_find(enum jtype type, struct str name)
{
    for (size_t i = 0; i < sizeof methods / sizeof *methods; i++)
        if (methods[i].type == type && str_is(name, methods[i].f.name))
            return &methods[i];
    return NULL;
}

bool jmethod_forbidden(enum jtype type, struct str name)
{
    static const char *const dict[] = {"clear", "pop", "popitem", "setdefault", "update"};
    static const char *const list[] = {"append", "clear", "pop", "reverse", "insert", "sort", "extend", "remove"};
    for (size_t i = 0; type == JT_DICT && i < sizeof dict / sizeof *dict; i++)
        if (str_is(name, dict[i]))
            return true;
    for (size_t i = 0; type == JT_LIST && i < sizeof list / sizeof *list; i++)
        if (str_is(name, list[i]))
            return true;
    return false;
}
