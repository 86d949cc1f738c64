/* chat/jinja_value.c - lists, dicts, undefined, and what Python does with any value: truth, equality, order, length, walking.
 *
 * Invariants: 1. Dicts keep insertion order; equal numbers (1, 1.0, True) are one key.
 *             2. Recursion over nested values is counted against the rendering's depth.
 * Does not:   turn values into text (jinja_text.c, jinja_json.c). */
#include "chat/jinja_int.h"

#include "base/hash.h"
#include "base/utf8.h"

#include <math.h>

void *jx_alloc(struct jx *jx, size_t count, size_t size_bytes)
{
    if (jx->rc)
        return NULL;
    void *p = arena_try_array(jx->mem, count, size_bytes);
    if (!p) {
        size_t max = jx->mem->max_bytes;
        if (max && (size_bytes && count > (max - jx->mem->used_bytes) / size_bytes))
            jx_fail(jx, ERR_LIMIT, "the template needs more than %zu bytes of memory", max);
        else
            jx->rc = err_nomem(jx->err, "chat template", count * size_bytes);
    }
    return p;
}

/* ---- lists ---------------------------------------------------------------------------------------------------------------- */

struct jlist *jlist_new(struct jx *jx, size_t cap)
{
    struct jlist *l = jx_alloc(jx, 1, sizeof *l);
    if (l && cap) {
        l->v = jx_alloc(jx, cap, sizeof *l->v);
        if (!l->v)
            return NULL;
        l->cap = cap;
    }
    return l;
}

void jlist_push(struct jx *jx, struct jlist *l, struct jv v)
{
    if (jx->rc || !l)
        return;
    if (l->n == l->cap) {
        size_t cap = l->cap ? l->cap * 2 : 4;
        struct jv *items = jx_alloc(jx, cap, sizeof *items);
        if (!items)
            return;
        if (l->n)
            memcpy(items, l->v, l->n * sizeof *items);
        l->v = items;
        l->cap = cap;
    }
    l->v[l->n++] = v;
}

struct jv jlist_value(struct jlist *l, enum jtype type)
{
    return l ? (struct jv){.type = (uint8_t)type, .l = l} : JV_NONE;
}

struct jv jtuple_pair(struct jx *jx, struct jv a, struct jv b)
{
    struct jlist *l = jlist_new(jx, 2);
    jlist_push(jx, l, a);
    jlist_push(jx, l, b);
    return jlist_value(l, JT_TUPLE);
}

struct jv jgen_new(struct jx *jx, struct jlist *items, const char *what)
{
    struct jgen *g = jx_alloc(jx, 1, sizeof *g);
    if (!g || !items)
        return JV_NONE;
    g->items = items;
    g->what = what;
    return (struct jv){.type = JT_ITER, .g = g};
}

/* ---- dicts ---------------------------------------------------------------------------------------------------------------- */

static uint64_t hash_bits(struct jx *jx, uint64_t x)
{
    return hash_sip(jx->hash_key, &x, sizeof x);
}

bool jv_hash(struct jx *jx, struct jv v, uint64_t *out)
{
    double d;
    bool ok = true;
    switch (v.type) {
    case JT_STR:
        *out = hash_sip(jx->hash_key, v.s->p, v.s->n);
        return true;
    case JT_BOOL:
        *out = hash_bits(jx, v.b);
        return true;
    case JT_INT:
        *out = hash_bits(jx, (uint64_t)v.i);
        return true;
    case JT_FLOAT:
        d = v.f;
        if (d >= -0x1p63 && d < 0x1p63 && d == (double)(int64_t)d)
            *out = hash_bits(jx, (uint64_t)(int64_t)d); /* as the equal int */
        else
            *out = hash_sip(jx->hash_key, &d, sizeof d);
        return true;
    case JT_TUPLE:
        *out = 7;
        if (++jx->depth > JX_DEPTH_MAX)
            jx_fail(jx, ERR_LIMIT, "values nested too deep");
        for (size_t i = 0; ok && !jx->rc && i < v.l->n; i++) {
            uint64_t h = 0;
            ok = jv_hash(jx, v.l->v[i], &h);
            *out = hash_bits(jx, *out * 31 + h);
        }
        jx->depth--;
        return ok;
    case JT_LIST:
    case JT_DICT:
    case JT_VIEW:
        return false;
    case JT_UNDEF:
    case JT_NONE:
    case JT_RANGE:
        *out = v.type;
        return true;
    default:
        *out = hash_bits(jx, (uint64_t)(uintptr_t)v.s);
        return true;
    }
}

struct jdict *jdict_new(struct jx *jx, size_t cap)
{
    struct jdict *d = jx_alloc(jx, 1, sizeof *d);
    if (d && cap) {
        d->e = jx_alloc(jx, cap, sizeof *d->e);
        if (!d->e)
            return NULL;
        d->cap = cap;
    }
    return d;
}

static struct jentry *find_hashed(struct jx *jx, const struct jdict *d, struct jv key, uint64_t hash)
{
    if (!d->index) {
        for (size_t i = 0; i < d->n; i++)
            if (d->e[i].hash == hash && jv_equal(jx, d->e[i].key, key))
                return &d->e[i];
        return NULL;
    }
    for (size_t i = hash & (d->index_cap - 1); d->index[i]; i = (i + 1) & (d->index_cap - 1)) {
        struct jentry *e = &d->e[d->index[i] - 1];
        if (e->hash == hash && jv_equal(jx, e->key, key))
            return e;
    }
    return NULL;
}

struct jentry *jdict_find(struct jx *jx, const struct jdict *d, struct jv key)
{
    uint64_t hash;
    if (jx->rc)
        return NULL;
    if (!jv_hash(jx, key, &hash)) {
        jx_fail(jx, ERR_TEMPLATE, "unhashable type: '%s'", jv_type_name(key));
        return NULL;
    }
    return find_hashed(jx, d, key, hash);
}

struct jentry *jdict_find_str(struct jx *jx, const struct jdict *d, struct str key)
{
    struct jstr s = {.p = key.p, .n = key.n, .chars = SIZE_MAX};
    return jdict_find(jx, d, (struct jv){.type = JT_STR, .s = &s});
}

static void index_put(struct jdict *d, size_t entry)
{
    size_t i = d->e[entry].hash & (d->index_cap - 1);
    while (d->index[i])
        i = (i + 1) & (d->index_cap - 1);
    d->index[i] = (uint32_t)entry + 1;
}

/* room for one more entry; the index comes when a dict outgrows a quick walk */
static bool dict_grow(struct jx *jx, struct jdict *d)
{
    if (d->n == d->cap) {
        size_t cap = d->cap ? d->cap * 2 : 4;
        struct jentry *e = jx_alloc(jx, cap, sizeof *e);
        if (!e)
            return false;
        if (d->n)
            memcpy(e, d->e, d->n * sizeof *e);
        d->e = e;
        d->cap = cap;
    }
    if (d->n >= 8 && (d->n + 1) * 2 > d->index_cap) {
        size_t cap = d->index_cap ? d->index_cap * 2 : 32;
        while (cap < (d->n + 1) * 2)
            cap *= 2;
        uint32_t *index = jx_alloc(jx, cap, sizeof *index);
        if (!index)
            return false;
        d->index = index;
        d->index_cap = cap;
        for (size_t i = 0; i < d->n; i++)
            index_put(d, i);
    }
    return true;
}

void jdict_set(struct jx *jx, struct jdict *d, struct jv key, struct jv value)
{
    struct jentry *e = d ? jdict_find(jx, d, key) : NULL;
    uint64_t hash;
    if (e)
        e->value = value;
    if (jx->rc || !d || e || !jv_hash(jx, key, &hash) || !dict_grow(jx, d))
        return;
    d->e[d->n] = (struct jentry){key, value, hash};
    d->n++;
    if (d->index)
        index_put(d, d->n - 1);
}

/* ---- undefined ------------------------------------------------------------------------------------------------------------ */

static struct jv undef(struct jx *jx, enum jundef_kind kind, struct str name, struct str owner)
{
    struct jundef *u = jx_alloc(jx, 1, sizeof *u);
    if (!u)
        return JV_NONE;
    *u = (struct jundef){kind, name, owner};
    return (struct jv){.type = JT_UNDEF, .u = u};
}

/* object_type_repr of Jinja2 */
static struct str owner_name(struct jx *jx, struct jv v)
{
    if (v.type == JT_NONE)
        return STR("None");
    struct jsb b = {.jx = jx};
    static const char *const where[] = {[JT_NS] = "jinja2.utils.", [JT_MACRO] = "jinja2.runtime.", [JT_LOOP] = "jinja2.runtime.",
                                        [JT_CYCLER] = "jinja2.utils.", [JT_JOINER] = "jinja2.utils."};
    if (where[v.type])
        jsb_z(&b, where[v.type]);
    jsb_z(&b, jv_type_name(v));
    jsb_z(&b, " object");
    return jx->rc ? STR("") : str_n(b.p, b.n);
}

struct jv jundef_name(struct jx *jx, struct str name)
{
    return undef(jx, JU_NAME, name, STR(""));
}

struct jv jundef_attr(struct jx *jx, struct jv owner, struct str name)
{
    return undef(jx, JU_ATTR, name, owner_name(jx, owner));
}

struct jv jundef_item(struct jx *jx, struct jv owner, struct jv item)
{
    if (item.type == JT_STR)
        return jundef_attr(jx, owner, jstr_text(item.s));
    return undef(jx, JU_ITEM, jv_repr_short(jx, item), owner_name(jx, owner));
}

struct jv jundef_hint(struct jx *jx, const char *hint)
{
    return undef(jx, JU_HINT, STR(""), str_of(hint));
}

struct jv jundef_unsafe(struct jx *jx, struct jv owner, struct str name)
{
    return undef(jx, JU_UNSAFE, name, str_of(jv_type_name(owner)));
}

struct jv jundef_raise(struct jx *jx, struct jv v)
{
    const struct jundef *u = v.u;
    switch (u->kind) {
    case JU_NAME:
        jx_fail(jx, ERR_TEMPLATE, "'%.*s' is undefined", STR_ARG(u->name));
        break;
    case JU_ATTR:
        jx_fail(jx, ERR_TEMPLATE, "'%.*s' has no attribute '%.*s'", STR_ARG(u->owner), STR_ARG(u->name));
        break;
    case JU_ITEM:
        jx_fail(jx, ERR_TEMPLATE, "%.*s has no element %.*s", STR_ARG(u->owner), STR_ARG(u->name));
        break;
    case JU_UNSAFE:
        jx_fail(jx, ERR_TEMPLATE, "access to attribute '%.*s' of '%.*s' object is unsafe.", STR_ARG(u->name), STR_ARG(u->owner));
        break;
    default:
        jx_fail(jx, ERR_TEMPLATE, "%.*s", STR_ARG(u->owner));
    }
    return JV_NONE;
}

/* ---- facts about values --------------------------------------------------------------------------------------------------- */

const char *jv_type_name(struct jv v)
{
    static const char *const names[] = {
        [JT_MISSING] = "missing", [JT_UNDEF] = "Undefined",  [JT_NONE] = "NoneType",
        [JT_BOOL] = "bool",       [JT_INT] = "int",          [JT_FLOAT] = "float",
        [JT_STR] = "str",         [JT_LIST] = "list",        [JT_TUPLE] = "tuple",
        [JT_DICT] = "dict",       [JT_RANGE] = "range",      [JT_ITER] = "generator",
        [JT_NS] = "Namespace",    [JT_MACRO] = "Macro",      [JT_METHOD] = "builtin_function_or_method",
        [JT_GLOBAL] = "function", [JT_LOOP] = "LoopContext", [JT_CYCLER] = "Cycler",
        [JT_JOINER] = "Joiner",
    };
    if (v.type == JT_VIEW)
        return v.sub == JVIEW_KEYS ? "dict_keys" : v.sub == JVIEW_VALUES ? "dict_values" : "dict_items";
    if (v.type == JT_STR && v.s->safe)
        return "Markup";
    if (v.type == JT_ITER)
        return v.g->what;
    return names[v.type];
}

bool jv_index_int(struct jv v, int64_t *out)
{
    if (v.type == JT_BOOL)
        *out = v.b;
    else if (v.type == JT_INT && !v.big)
        *out = v.i;
    else
        return false;
    return true;
}

bool jv_number(struct jv v, double *out)
{
    if (v.type == JT_FLOAT)
        *out = v.f;
    else if (v.type == JT_INT)
        *out = v.big ? (double)(uint64_t)v.i : (double)v.i;
    else if (v.type == JT_BOOL)
        *out = v.b;
    else
        return false;
    return true;
}

bool jv_len_known(struct jv v, int64_t *out, struct jx *jx)
{
    switch (v.type) {
    case JT_STR:
        *out = (int64_t)jstr_chars(v.s);
        return true;
    case JT_LIST:
    case JT_TUPLE:
        *out = (int64_t)v.l->n;
        return true;
    case JT_DICT:
    case JT_VIEW:
        *out = (int64_t)v.d->n;
        return true;
    case JT_RANGE:
        *out = v.r->n;
        return true;
    case JT_UNDEF:
        *out = 0;
        return true;
    case JT_LOOP:
        v = jloop_attr(jx, v.loop, STR("length"));
        *out = v.i;
        return v.type == JT_INT;
    default:
        return false;
    }
}

int64_t jv_len(struct jx *jx, struct jv v)
{
    int64_t n = 0;
    if (!jx->rc && !jv_len_known(v, &n, jx))
        jx_fail(jx, ERR_TEMPLATE, "object of type '%s' has no len()", jv_type_name(v));
    return n;
}

bool jv_truth(struct jx *jx, struct jv v)
{
    int64_t n;
    switch (v.type) {
    case JT_MISSING:
    case JT_UNDEF:
    case JT_NONE:
        return false;
    case JT_BOOL:
        return v.b;
    case JT_INT:
        return v.i != 0;
    case JT_FLOAT:
        return v.f != 0;
    case JT_STR:
        return v.s->n != 0;
    default:
        return jv_len_known(v, &n, jx) ? n != 0 : true;
    }
}

static bool value_enter(struct jx *jx)
{
    if (jx->rc)
        return false;
    if (jx->depth >= JX_DEPTH_MAX) {
        jx_fail(jx, ERR_LIMIT, "values nested too deep");
        return false;
    }
    jx->depth++;
    return jx_step(jx, 1);
}

static bool numbers_equal(struct jv a, struct jv b)
{
    if (a.type == JT_FLOAT || b.type == JT_FLOAT) {
        double x = 0, y = 0;
        jv_number(a, &x);
        jv_number(b, &y);
        return x == y;
    }
    int64_t x = a.type == JT_BOOL ? a.b : a.i, y = b.type == JT_BOOL ? b.b : b.i;
    return x == y && a.big == b.big;
}

static bool dicts_equal(struct jx *jx, const struct jdict *a, const struct jdict *b)
{
    if (a->n != b->n)
        return false;
    for (size_t i = 0; i < a->n && !jx->rc; i++) {
        struct jentry *e = find_hashed(jx, b, a->e[i].key, a->e[i].hash);
        if (!e || !jv_equal(jx, a->e[i].value, e->value))
            return false;
    }
    return !jx->rc;
}

static bool ranges_equal(const struct jrange *a, const struct jrange *b)
{
    return a->n == b->n && (a->n == 0 || (a->start == b->start && (a->n == 1 || a->step == b->step)));
}

static bool compound_equal(struct jx *jx, struct jv a, struct jv b)
{
    bool same = true;
    switch (a.type) {
    case JT_LIST:
    case JT_TUPLE:
        same = a.l->n == b.l->n;
        for (size_t i = 0; same && i < a.l->n; i++)
            same = jv_equal(jx, a.l->v[i], b.l->v[i]);
        return same;
    case JT_DICT:
        return dicts_equal(jx, a.d, b.d);
    case JT_RANGE:
        return ranges_equal(a.r, b.r);
    default:
        return a.s == b.s;
    }
}

bool jv_equal(struct jx *jx, struct jv a, struct jv b)
{
    double d;
    if (a.type == JT_STR || b.type == JT_STR)
        return a.type == b.type && str_eq(jstr_text(a.s), jstr_text(b.s));
    if (jv_number(a, &d) || jv_number(b, &d))
        return jv_number(a, &d) && jv_number(b, &d) && numbers_equal(a, b);
    if (a.type != b.type)
        return false;
    if (a.type == JT_NONE || a.type == JT_UNDEF || a.type == JT_MISSING)
        return true;
    if (!value_enter(jx))
        return false;
    bool same = compound_equal(jx, a, b);
    jx->depth--;
    return same;
}

static int sign(double x, double y)
{
    return x < y ? -1 : x > y ? 1 : x == y ? 0 : 2;
}

static int numbers_compare(struct jv a, struct jv b)
{
    double x = 0, y = 0;
    if (a.type != JT_FLOAT && b.type != JT_FLOAT && !a.big && !b.big) {
        int64_t i = a.type == JT_BOOL ? a.b : a.i, j = b.type == JT_BOOL ? b.b : b.i;
        return i < j ? -1 : i > j;
    }
    if (a.big && b.big)
        return (uint64_t)a.i < (uint64_t)b.i ? -1 : (uint64_t)a.i > (uint64_t)b.i;
    jv_number(a, &x);
    jv_number(b, &y);
    return sign(x, y);
}

int jv_compare(struct jx *jx, struct jv a, struct jv b, const char *op)
{
    double d;
    if (a.type == JT_STR && b.type == JT_STR)
        return sign(str_cmp(jstr_text(a.s), jstr_text(b.s)), 0); /* UTF-8 sorts as code points do */
    if (jv_number(a, &d) && jv_number(b, &d))
        return numbers_compare(a, b);
    if (a.type == JT_UNDEF || b.type == JT_UNDEF) {
        jundef_raise(jx, a.type == JT_UNDEF ? a : b);
        return 0;
    }
    if (a.type != b.type || (a.type != JT_LIST && a.type != JT_TUPLE)) {
        jx_fail(jx, ERR_TEMPLATE, "'%s' not supported between instances of '%s' and '%s'", op, jv_type_name(a), jv_type_name(b));
        return 0;
    }
    if (!value_enter(jx))
        return 0;
    int order = a.l->n < b.l->n ? -1 : a.l->n > b.l->n;
    for (size_t i = 0; i < a.l->n && i < b.l->n && !jx->rc; i++) {
        if (jv_equal(jx, a.l->v[i], b.l->v[i]))
            continue;
        order = jv_compare(jx, a.l->v[i], b.l->v[i], op);
        break;
    }
    jx->depth--;
    return order;
}

static bool range_has(struct jx *jx, struct jv box, struct jv what)
{
    const struct jrange *r = box.r;
    double d;
    if (!jv_number(what, &d) || !r->n || d != floor(d))
        return false;
    (void)jx;
    int64_t last = r->start + (r->n - 1) * r->step, lo = r->step > 0 ? r->start : last, hi = r->step > 0 ? last : r->start;
    return d >= (double)lo && d <= (double)hi && ((int64_t)d - r->start) % r->step == 0;
}

bool jv_contains(struct jx *jx, struct jv box, struct jv what)
{
    struct jiter it;
    struct jv item;
    if (jx->rc)
        return false;
    if (box.type == JT_STR) {
        if (what.type != JT_STR) {
            jx_fail(jx, ERR_TEMPLATE, "'in <string>' requires string as left operand, not %s", jv_type_name(what));
            return false;
        }
        return str_find(jstr_text(box.s), jstr_text(what.s)) != SIZE_MAX;
    }
    if (box.type == JT_DICT || (box.type == JT_VIEW && box.sub == JVIEW_KEYS))
        return jdict_find(jx, box.d, what) != NULL;
    if (box.type == JT_RANGE)
        return range_has(jx, box, what);
    int64_t n;
    if (box.type != JT_ITER && !jv_len_known(box, &n, jx)) {
        jx_fail(jx, ERR_TEMPLATE, "argument of type '%s' is not iterable", jv_type_name(box));
        return false;
    }
    if (!jv_iter(jx, box, &it))
        return false;
    while (jiter_next(&it, &item))
        if (jv_equal(jx, item, what))
            return true;
    return false;
}

/* ---- walking -------------------------------------------------------------------------------------------------------------- */

struct jv jrange_item(const struct jrange *r, int64_t at)
{
    return JV_INT(r->start + at * r->step);
}

struct jv jview_item(struct jx *jx, const struct jdict *d, enum jview kind, size_t at)
{
    if (kind == JVIEW_ITEMS)
        return jtuple_pair(jx, d->e[at].key, d->e[at].value);
    return kind == JVIEW_KEYS ? d->e[at].key : d->e[at].value;
}

bool jv_iter(struct jx *jx, struct jv v, struct jiter *it)
{
    *it = (struct jiter){.jx = jx, .src = v};
    if (jx->rc)
        return false;
    switch (v.type) {
    case JT_UNDEF:
    case JT_STR:
    case JT_LIST:
    case JT_TUPLE:
    case JT_DICT:
    case JT_VIEW:
    case JT_RANGE:
    case JT_ITER:
        return true;
    default:
        jx_fail(jx, ERR_TEMPLATE, "'%s' object is not iterable", jv_type_name(v));
        return false;
    }
}

static bool next_char(struct jiter *it, struct jv *out)
{
    const struct jstr *s = it->src.s;
    uint32_t cp;
    if (it->pos >= s->n)
        return false;
    size_t n = utf8_decode(str_from(jstr_text(s), it->pos), &cp);
    *out = jstr_sub(it->jx, s, it->pos, it->pos + n);
    if (out->type == JT_STR)
        out->s->safe = false; /* walking a Markup gives plain characters */
    it->pos += n;
    return !it->jx->rc;
}

bool jiter_next(struct jiter *it, struct jv *out)
{
    struct jv v = it->src;
    if (it->jx->rc || !jx_step(it->jx, 1))
        return false;
    switch (v.type) {
    case JT_STR:
        return next_char(it, out);
    case JT_LIST:
    case JT_TUPLE:
        if (it->pos >= v.l->n)
            return false;
        *out = v.l->v[it->pos++];
        return true;
    case JT_DICT:
    case JT_VIEW:
        if (it->pos >= v.d->n)
            return false;
        *out = jview_item(it->jx, v.d, v.type == JT_DICT ? JVIEW_KEYS : (enum jview)v.sub, it->pos++);
        return !it->jx->rc;
    case JT_RANGE:
        if ((int64_t)it->pos >= v.r->n)
            return false;
        *out = jrange_item(v.r, (int64_t)it->pos++);
        return true;
    case JT_ITER:
        if (v.g->pos >= v.g->items->n)
            return false;
        *out = v.g->items->v[v.g->pos++];
        return true;
    default:
        return false;
    }
}

struct jlist *jv_list(struct jx *jx, struct jv v)
{
    struct jiter it;
    struct jv item;
    struct jlist *l = jv_iter(jx, v, &it) ? jlist_new(jx, 4) : NULL;
    while (l && jiter_next(&it, &item))
        jlist_push(jx, l, item);
    return jx->rc ? NULL : l;
}
