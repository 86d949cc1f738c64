/* chat/jinja_attr.c - v.name, v[key], v[a:b:c] as the immutable sandbox answers them.
 *
 * v.name looks for an attribute first and an item second, v[key] the other way round.  Methods that would change a list or dict
 * exist but are unsafe: they read as undefined, and calling them is an error. */
#include "chat/jinja_int.h"

/* ---- attributes ----------------------------------------------------------------------------------------------------------- */

static struct jv method_value(struct jx *jx, struct jv self, const struct jmethod_row *row)
{
    struct jmethod *m = jx_alloc(jx, 1, sizeof *m);
    if (!m)
        return JV_NONE;
    *m = (struct jmethod){self, row};
    return (struct jv){.type = JT_METHOD, .bound = m};
}

static struct jv range_attr(const struct jrange *r, struct str name)
{
    return str_is(name, "start")  ? JV_INT(r->start)
           : str_is(name, "stop") ? JV_INT(r->stop)
           : str_is(name, "step") ? JV_INT(r->step)
                                  : JV_MISSING;
}

static struct jv macro_attr(struct jx *jx, const struct jmacro *m, struct str name)
{
    const struct jmacro_sig *sig = m->node->sig;
    if (str_is(name, "name"))
        return m->is_caller ? JV_NONE : jstr_new(jx, m->node->name, false);
    if (str_is(name, "catch_kwargs"))
        return JV_BOOL(sig->uses_kwargs);
    if (str_is(name, "catch_varargs"))
        return JV_BOOL(sig->uses_varargs);
    if (str_is(name, "caller"))
        return JV_BOOL(sig->uses_caller);
    if (!str_is(name, "arguments"))
        return JV_MISSING;
    struct jlist *l = jlist_new(jx, sig->count);
    for (size_t i = 0; i < sig->count; i++)
        jlist_push(jx, l, jstr_new(jx, sig->params[i]->name, false));
    return jlist_value(l, JT_TUPLE);
}

static struct jv group_attr(const struct jlist *l, struct str name)
{
    return str_is(name, "grouper") ? l->v[0] : str_is(name, "list") ? l->v[1] : JV_MISSING;
}

struct jv jattr_only(struct jx *jx, struct jv v, struct str name)
{
    struct jv found = JV_MISSING;
    struct jentry *e;
    if (v.type == JT_NS) { /* a namespace has nothing but what it was given */
        e = jdict_find_str(jx, v.d, name);
        return e ? e->value : JV_MISSING;
    }
    if (v.type == JT_LOOP)
        return jloop_attr(jx, v.loop, name);
    if (v.type == JT_RANGE)
        found = range_attr(v.r, name);
    else if (v.type == JT_MACRO)
        found = macro_attr(jx, v.m, name);
    else if (v.type == JT_TUPLE && v.l->group)
        found = group_attr(v.l, name);
    else if (v.type == JT_CYCLER && str_is(name, "current"))
        found = v.cycle->items->v[v.cycle->pos];
    if (found.type != JT_MISSING)
        return found;
    const struct jmethod_row *row = jmethod_find((enum jtype)v.type, name);
    if (row)
        return method_value(jx, v, row);
    return jmethod_forbidden((enum jtype)v.type, name) ? jundef_unsafe(jx, v, name) : JV_MISSING;
}

static bool dunder(struct str name)
{
    return name.n > 4 && str_starts(name, STR("__")) && str_ends(name, STR("__"));
}

/* The attributes every Python object has; the sandbox knows them and hides them. */
static bool object_dunder(struct str name)
{
    static const char *const known[] = {
        "__class__",   "__doc__",    "__init__",         "__repr__",          "__str__",    "__eq__",        "__hash__",
        "__dir__",     "__format__", "__getattribute__", "__new__",           "__reduce__", "__reduce_ex__", "__setattr__",
        "__delattr__", "__sizeof__", "__subclasshook__", "__init_subclass__", "__ne__",     "__lt__",        "__gt__",
        "__le__",      "__ge__"};
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (str_is(name, known[i]))
            return true;
    return false;
}

static struct jv attr_or_unsafe(struct jx *jx, struct jv v, struct str name)
{
    if (dunder(name) && v.type != JT_NS && object_dunder(name))
        return jundef_unsafe(jx, v, name);
    return jattr_only(jx, v, name);
}

/* ---- items ---------------------------------------------------------------------------------------------------------------- */

static struct jv index_item(struct jx *jx, struct jv v, int64_t at)
{
    int64_t n = 0;
    if (!jv_len_known(v, &n, jx))
        return JV_MISSING;
    if (at < 0)
        at += n;
    if (at < 0 || at >= n)
        return JV_MISSING;
    if (v.type == JT_RANGE)
        return jrange_item(v.r, at);
    if (v.type != JT_STR)
        return v.l->v[at];
    size_t from = jstr_byte_of(v.s, (size_t)at), to = from + 1;
    while (to < v.s->n && ((unsigned char)v.s->p[to] & 0xC0) == 0x80)
        to++;
    return jstr_sub(jx, v.s, from, to);
}

/* v[key] without falling back to attributes; JT_MISSING: no such item */
static struct jv item_only(struct jx *jx, struct jv v, struct jv key)
{
    int64_t at;
    uint64_t hash;
    struct jentry *e;
    switch (v.type) {
    case JT_DICT:
        if (!jv_hash(jx, key, &hash))
            return JV_MISSING;
        e = jdict_find(jx, v.d, key);
        return e ? e->value : JV_MISSING;
    case JT_STR:
    case JT_LIST:
    case JT_TUPLE:
    case JT_RANGE:
        return jv_index_int(key, &at) ? index_item(jx, v, at) : JV_MISSING;
    default:
        return JV_MISSING;
    }
}

struct jv jattr_get(struct jx *jx, struct jv v, struct str name)
{
    if (v.type == JT_UNDEF)
        return jundef_raise(jx, v);
    struct jv found = attr_or_unsafe(jx, v, name);
    if (found.type == JT_MISSING && v.type == JT_DICT && !jx->rc) {
        struct jentry *e = jdict_find_str(jx, v.d, name);
        if (e)
            found = e->value;
    }
    return found.type == JT_MISSING && !jx->rc ? jundef_attr(jx, v, name) : found;
}

struct jv jattr_item(struct jx *jx, struct jv v, struct jv key)
{
    if (v.type == JT_UNDEF)
        return jundef_raise(jx, v);
    struct jv found = item_only(jx, v, key);
    if (found.type == JT_MISSING && key.type == JT_STR && !jx->rc)
        found = attr_or_unsafe(jx, v, jstr_text(key.s));
    return found.type == JT_MISSING && !jx->rc ? jundef_item(jx, v, key) : found;
}

/* ---- slices --------------------------------------------------------------------------------------------------------------- */

struct slice {
    int64_t from, step, count;
};

static bool slice_part(struct jx *jx, struct jv v, int64_t *out, bool *given)
{
    *given = v.type != JT_NONE;
    if (!*given || jv_index_int(v, out))
        return true;
    if (v.type == JT_UNDEF)
        jx_fail(jx, ERR_TEMPLATE, "slice indices must be integers or None or have an __index__ method");
    else
        jx_fail(jx, ERR_TEMPLATE, "slice indices must be integers or None or have an __index__ method, not %s", jv_type_name(v));
    return false;
}

static int64_t clamp(int64_t at, int64_t n, int64_t lo, int64_t hi)
{
    if (at < 0)
        at = at < -n ? lo - 1 : at + n;
    return at < lo ? lo : at > hi ? hi : at;
}

/* PySlice_AdjustIndices */
static bool slice_init(struct jx *jx, struct slice *s, int64_t n, struct jv from, struct jv to, struct jv step)
{
    int64_t a = 0, b = 0, k = 1;
    bool has_a, has_b, has_k;
    if (!slice_part(jx, from, &a, &has_a) || !slice_part(jx, to, &b, &has_b) || !slice_part(jx, step, &k, &has_k))
        return false;
    if (!has_k)
        k = 1;
    if (k == 0) {
        jx_fail(jx, ERR_TEMPLATE, "slice step cannot be zero");
        return false;
    }
    if (k == INT64_MIN)
        k = -INT64_MAX;
    int64_t lo = k < 0 ? -1 : 0, hi = k < 0 ? n - 1 : n;
    a = has_a ? clamp(a, n, lo, hi) : k < 0 ? hi : lo;
    b = has_b ? clamp(b, n, lo, hi) : k < 0 ? lo : hi;
    int64_t span = k > 0 ? b - a : a - b, size = k > 0 ? k : -k;
    *s = (struct slice){a, k, span > 0 ? (span - 1) / size + 1 : 0};
    return true;
}

static struct jv slice_str(struct jx *jx, struct jstr *str, struct slice s)
{
    if (s.step == 1 || s.count == 0) {
        size_t from = jstr_byte_of(str, s.count ? (size_t)s.from : 0);
        return jstr_sub(jx, str, from, s.count ? jstr_byte_of(str, (size_t)(s.from + s.count)) : from);
    }
    struct jsb b = {.jx = jx};
    for (int64_t i = 0; i < s.count && jx_step(jx, 1); i++) {
        size_t from = jstr_byte_of(str, (size_t)(s.from + i * s.step)), to = from + 1;
        while (to < str->n && ((unsigned char)str->p[to] & 0xC0) == 0x80)
            to++;
        jsb_sub(&b, str, from, to);
    }
    struct jv v = jsb_end(&b);
    if (v.type == JT_STR)
        v.s->safe = str->safe;
    return v;
}

static struct jv slice_range(struct jx *jx, const struct jrange *r, struct slice s)
{
    struct jrange *out = jx_alloc(jx, 1, sizeof *out);
    if (!out)
        return JV_NONE;
    /* all items fit; only the step past the last one may wrap around */
    out->start = (int64_t)((uint64_t)r->start + (uint64_t)s.from * (uint64_t)r->step);
    out->step = (int64_t)((uint64_t)r->step * (uint64_t)s.step);
    out->n = s.count;
    out->stop = (int64_t)((uint64_t)out->start + (uint64_t)s.count * (uint64_t)out->step);
    return (struct jv){.type = JT_RANGE, .r = out};
}

struct jv jattr_slice(struct jx *jx, struct jv v, struct jv from, struct jv to, struct jv step)
{
    struct slice s;
    if (v.type == JT_UNDEF)
        return jundef_raise(jx, v);
    if (v.type == JT_DICT) {
        jx_fail(jx, ERR_TEMPLATE, "unhashable type: 'slice'");
        return JV_NONE;
    }
    if (v.type != JT_STR && v.type != JT_LIST && v.type != JT_TUPLE && v.type != JT_RANGE) {
        jx_fail(jx, ERR_TEMPLATE, "'%s' object is not subscriptable", jv_type_name(v));
        return JV_NONE;
    }
    if (!slice_init(jx, &s, jv_len(jx, v), from, to, step))
        return JV_NONE;
    if (v.type == JT_STR)
        return slice_str(jx, v.s, s);
    if (v.type == JT_RANGE)
        return slice_range(jx, v.r, s);
    if (!jx_step(jx, (uint64_t)s.count))
        return JV_NONE;
    struct jlist *l = jlist_new(jx, (size_t)s.count);
    for (int64_t i = 0; i < s.count; i++)
        jlist_push(jx, l, v.l->v[s.from + i * s.step]);
    struct jv out = jlist_value(l, (enum jtype)v.type);
    out.user = v.user;
    return out;
}

/* ---- "address.city", "0" -------------------------------------------------------------------------------------------------- */

static bool all_digits(struct str s)
{
    for (size_t i = 0; i < s.n; i++)
        if (s.p[i] < '0' || s.p[i] > '9')
            return false;
    return s.n > 0;
}

struct jv jattr_path(struct jx *jx, struct jv v, struct jv path, struct jv fallback)
{
    bool has_fallback = fallback.type != JT_MISSING && fallback.type != JT_NONE;
    if (path.type == JT_NONE || path.type == JT_MISSING)
        return v;
    if (path.type != JT_STR) {
        v = jattr_item(jx, v, path);
        return has_fallback && v.type == JT_UNDEF ? fallback : v;
    }
    struct str rest = jstr_text(path.s), part;
    while (!jx->rc && str_split(&rest, '.', &part)) {
        int64_t at;
        struct jv key = all_digits(part) && str_to_i64(part, &at) ? JV_INT(at) : jstr_new(jx, part, false);
        v = jx->rc ? JV_NONE : jattr_item(jx, v, key);
        if (has_fallback && v.type == JT_UNDEF)
            v = fallback;
    }
    return jx->rc ? JV_NONE : v;
}
