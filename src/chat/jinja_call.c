/* chat/jinja_call.c - calls: binding arguments to parameters, macros, and the global functions of chat templates.
 *
 * Invariants: 1. Macro calls nest at most JX_MACRO_MAX deep.
 *             2. range() gives at most JX_RANGE_MAX items, as the sandbox has it.
 * Does not:   know what filters and methods do (their tables name their parameters). */
#include "chat/jinja_int.h"

#include <time.h>

/* ---- binding -------------------------------------------------------------------------------------------------------------- */

/* position of `key` among "a|b|c", -1: not there */
static int param_index(const char *params, struct str key)
{
    struct str rest = str_of(params), part;
    for (int i = 0; str_split(&rest, '|', &part); i++)
        if (str_eq(part, key))
            return i;
    return -1;
}

static size_t param_count(const char *params)
{
    size_t n = *params != 0;
    for (; *params; params++)
        n += *params == '|';
    return n;
}

static bool bind_keywords(struct jx *jx, const struct jfunc_row *row, const char *params, const struct jargs *args,
                          struct jv *slots)
{
    for (size_t i = 0; i < args->kw_count; i++) {
        int at = row->params[0] == '/' ? -1 : param_index(params, args->kw[i].key);
        if (at < 0)
            jx_fail(jx, ERR_TEMPLATE, "%s() got an unexpected keyword argument '%.*s'", row->name, STR_ARG(args->kw[i].key));
        else if (slots[at].type != JT_MISSING)
            jx_fail(jx, ERR_TEMPLATE, "%s() got multiple values for argument '%.*s'", row->name, STR_ARG(args->kw[i].key));
        else
            slots[at] = args->kw[i].value;
        if (jx->rc)
            return false;
    }
    return true;
}

struct jv jcall_row(struct jx *jx, const struct jfunc_row *row, struct jv self, const struct jargs *args)
{
    struct jv slots[JARGS_MAX] = {0};
    if (jx->rc)
        return JV_NONE;
    if (row->refused) {
        jx_fail(jx, ERR_TEMPLATE, "'%s' is not supported in a chat template: %s", row->name, row->refused);
        return JV_NONE;
    }
    if (row->raw)
        return row->raw(jx, self, args);
    const char *params = row->params + (row->params[0] == '/');
    size_t max = param_count(params);
    if (args->n > max) {
        jx_fail(jx, ERR_TEMPLATE, "%s() takes at most %zu arguments (%zu given)", row->name, max, args->n);
        return JV_NONE;
    }
    if (args->n)
        memcpy(slots, args->v, args->n * sizeof *slots);
    if (!bind_keywords(jx, row, params, args, slots))
        return JV_NONE;
    for (int i = 0; i < row->min; i++) {
        if (slots[i].type == JT_MISSING) {
            jx_fail(jx, ERR_TEMPLATE, "%s() missing required argument %d", row->name, i + 1);
            return JV_NONE;
        }
    }
    return row->fn(jx, self, slots);
}

/* ---- macros --------------------------------------------------------------------------------------------------------------- */

/* takes the keyword out of the list; JT_MISSING when it is not there */
static struct jv kw_pop(struct jargs *a, struct str key)
{
    for (size_t i = 0; i < a->kw_count; i++) {
        if (!str_eq(a->kw[i].key, key))
            continue;
        struct jv v = a->kw[i].value;
        memmove(a->kw + i, a->kw + i + 1, (a->kw_count - i - 1) * sizeof *a->kw);
        a->kw_count--;
        return v;
    }
    return JV_MISSING;
}

static struct jv macro_kwargs(struct jx *jx, const struct jargs *a)
{
    struct jdict *d = jdict_new(jx, a->kw_count);
    for (size_t i = 0; i < a->kw_count; i++)
        jdict_set(jx, d, jstr_new(jx, a->kw[i].key, false), a->kw[i].value);
    return d ? (struct jv){.type = JT_DICT, .d = d} : JV_NONE;
}

static struct jv macro_varargs(struct jx *jx, const struct jargs *a, size_t from)
{
    struct jlist *l = jlist_new(jx, 0);
    for (size_t i = from; i < a->n; i++)
        jlist_push(jx, l, a->v[i]);
    return jlist_value(l, JT_TUPLE);
}

static uint32_t name_id(struct jx *jx, const char *name)
{
    return jintern_find(&jx->t->names, str_of(name));
}

/* caller, kwargs, varargs: bound when the body names them, complained about when not */
static void bind_special(struct jx *jx, struct jmacro *m, struct jscope *s, struct jargs *a, bool found_caller)
{
    const struct jmacro_sig *sig = m->node->sig;
    struct str name = m->is_caller ? STR("None") : m->node->name;
    if (sig->uses_caller && !found_caller) {
        struct jv caller = kw_pop(a, STR("caller"));
        if (caller.type == JT_MISSING || caller.type == JT_NONE)
            caller = jundef_hint(jx, "No caller defined");
        jscope_set(jx, s, name_id(jx, "caller"), caller);
    }
    if (sig->uses_kwargs)
        jscope_set(jx, s, name_id(jx, "kwargs"), macro_kwargs(jx, a));
    else if (a->kw_count && str_is(a->kw[0].key, "caller"))
        jx_fail(jx, ERR_TEMPLATE,
                "macro '%.*s' was invoked with two values for the special caller argument. This is most likely a bug.",
                STR_ARG(name));
    else if (a->kw_count)
        jx_fail(jx, ERR_TEMPLATE, "macro '%.*s' takes no keyword argument '%.*s'", STR_ARG(name), STR_ARG(a->kw[0].key));
    if (sig->uses_varargs)
        jscope_set(jx, s, name_id(jx, "varargs"), macro_varargs(jx, a, sig->count));
    else if (a->n > sig->count)
        jx_fail(jx, ERR_TEMPLATE, "macro '%.*s' takes not more than %zu argument(s)", STR_ARG(name), sig->count);
}

static void bind_params(struct jx *jx, struct jmacro *m, struct jscope *s, struct jargs *a)
{
    const struct jmacro_sig *sig = m->node->sig;
    bool found_caller = false;
    for (size_t i = 0; i < sig->count; i++) {
        struct jv v = i < a->n ? a->v[i] : kw_pop(a, sig->params[i]->name);
        found_caller |= str_is(sig->params[i]->name, "caller");
        jscope_set(jx, s, sig->params[i]->id, v);
    }
    bind_special(jx, m, s, a, found_caller);
    for (size_t i = 0; i < sig->count && !jx->rc; i++) {
        if (s->slots[i].value.type != JT_MISSING)
            continue;
        struct jsb hint = {.jx = jx};
        if (sig->defaults[i]) {
            jscope_set(jx, s, sig->params[i]->id, jeval(jx, s, sig->defaults[i]));
            continue;
        }
        jsb_z(&hint, "parameter '");
        jsb_put(&hint, sig->params[i]->name.p, sig->params[i]->name.n, false);
        jsb_put(&hint, "' was not provided\0", 19, false);
        jscope_set(jx, s, sig->params[i]->id, jx->rc ? JV_NONE : jundef_hint(jx, hint.p));
    }
}

struct jv jcall_macro(struct jx *jx, struct jmacro *m, const struct jargs *args)
{
    static const struct jnames none = {0};
    struct jargs a = *args;
    struct jscope *s = jscope_new(jx, m->scope, &none);
    if (jx->macros >= JX_MACRO_MAX)
        jx_fail(jx, ERR_LIMIT, "macros call each other deeper than %d", JX_MACRO_MAX);
    if (jx->rc)
        return JV_NONE;
    a.kw = jx_alloc(jx, args->kw_count + 1, sizeof *a.kw); /* names are taken out one by one */
    if (!a.kw)
        return JV_NONE;
    if (args->kw_count)
        memcpy(a.kw, args->kw, args->kw_count * sizeof *a.kw);
    jx->macros++;
    bind_params(jx, m, s, &a);
    for (size_t i = 0; i < m->node->missing.n; i++)
        jscope_set(jx, s, m->node->missing.id[i], JV_MISSING);
    struct jv v = jx->rc ? JV_NONE : jexec_capture(jx, s, &m->node->list);
    jx->macros--;
    return v;
}

/* ---- globals -------------------------------------------------------------------------------------------------------------- */

static struct jv global_range(struct jx *jx, struct jv self, const struct jargs *args)
{
    int64_t part[3] = {0, 0, 1};
    (void)self;
    if (args->n < 1 || args->n > 3 || args->kw_count) {
        jx_fail(jx, ERR_TEMPLATE, "range expected 1 to 3 arguments, got %zu", args->n + args->kw_count);
        return JV_NONE;
    }
    for (size_t i = 0; i < args->n; i++)
        if (!jarg_int(jx, args->v[i], &part[args->n == 1 ? 1 : i]))
            return JV_NONE;
    if (part[2] == 0) {
        jx_fail(jx, ERR_TEMPLATE, "range() arg 3 must not be zero");
        return JV_NONE;
    }
    uint64_t span = part[2] > 0 ? (uint64_t)part[1] - (uint64_t)part[0] : (uint64_t)part[0] - (uint64_t)part[1];
    bool empty = part[2] > 0 ? part[1] <= part[0] : part[1] >= part[0];
    uint64_t size = part[2] > 0 ? (uint64_t)part[2] : 0 - (uint64_t)part[2], n = empty ? 0 : (span - 1) / size + 1;
    if (n > JX_RANGE_MAX) {
        jx_fail(jx, ERR_TEMPLATE, "Range too big. The sandbox blocks ranges larger than MAX_RANGE (%d).", JX_RANGE_MAX);
        return JV_NONE;
    }
    struct jrange *r = jx_alloc(jx, 1, sizeof *r);
    if (!r)
        return JV_NONE;
    *r = (struct jrange){part[0], part[1], part[2], (int64_t)n};
    return (struct jv){.type = JT_RANGE, .r = r};
}

static void dict_fill(struct jx *jx, struct jdict *d, struct jv from)
{
    struct jiter it;
    struct jv item;
    if (from.type == JT_DICT) {
        for (size_t i = 0; i < from.d->n; i++)
            jdict_set(jx, d, from.d->e[i].key, from.d->e[i].value);
        return;
    }
    if (!jv_iter(jx, from, &it))
        return;
    for (size_t at = 0; jiter_next(&it, &item); at++) {
        struct jlist *pair = jv_list(jx, item);
        if (pair && pair->n != 2)
            jx_fail(jx, ERR_TEMPLATE, "dictionary update sequence element #%zu has length %zu; 2 is required", at, pair->n);
        if (pair && !jx->rc)
            jdict_set(jx, d, pair->v[0], pair->v[1]);
    }
}

static struct jv global_dict(struct jx *jx, struct jv self, const struct jargs *args)
{
    struct jdict *d = jdict_new(jx, 4);
    (void)self;
    if (args->n > 1)
        jx_fail(jx, ERR_TEMPLATE, "dict expected at most 1 argument, got %zu", args->n);
    if (args->n == 1 && d)
        dict_fill(jx, d, args->v[0]);
    for (size_t i = 0; i < args->kw_count && d; i++)
        jdict_set(jx, d, jstr_new(jx, args->kw[i].key, false), args->kw[i].value);
    return jx->rc ? JV_NONE : (struct jv){.type = JT_DICT, .d = d};
}

static struct jv global_namespace(struct jx *jx, struct jv self, const struct jargs *args)
{
    struct jv v = global_dict(jx, self, args);
    for (size_t i = 0; v.type == JT_DICT && i < v.d->n; i++) {
        struct jv key = v.d->e[i].key;
        if (key.type == JT_STR && key.s->n && key.s->p[0] == '_')
            jx_fail(jx, ERR_TEMPLATE,
                    "Chat templates cannot store underscore-prefixed attributes on a namespace, but got '%.*s'.",
                    STR_ARG(jstr_text(key.s)));
    }
    if (jx->rc)
        return JV_NONE;
    v.type = JT_NS;
    return v;
}

static struct jv global_raise(struct jx *jx, struct jv self, struct jv *a)
{
    struct jv text = jv_str(jx, a[0]);
    (void)self;
    if (!jx->rc)
        jx_fail(jx, ERR_TEMPLATE, "%.*s", STR_ARG(jstr_text(text.s)));
    return JV_NONE;
}

/* Python answers %f, %z and %Z of a naive time itself. */
static bool python_directive(struct jsb *b, char c)
{
    if (c == 'f')
        jsb_z(b, "000000");
    return c == 'f' || c == 'z' || c == 'Z';
}

static struct jv global_strftime(struct jx *jx, struct jv self, struct jv *a)
{
    struct jstr *fmt;
    struct jsb b = {.jx = jx}, out = {.jx = jx};
    time_t now = (time_t)jx->now_s;
    struct tm tm;
    char text[4096];
    (void)self;
    if (!jarg_str(jx, a[0], &fmt))
        return JV_NONE;
    for (size_t i = 0; i < fmt->n; i++) {
        if (fmt->p[i] == '%' && i + 1 < fmt->n && python_directive(&b, fmt->p[i + 1])) {
            i++;
        } else if (fmt->p[i] == '%' && i + 1 < fmt->n) {
            jsb_put(&b, fmt->p + i++, 2, false);
        } else {
            jsb_put(&b, fmt->p + i, 1, false);
        }
    }
    jsb_put(&b, "", 1, false);
    if (jx->rc || !localtime_r(&now, &tm))
        return JV_NONE;
    size_t n = b.n > 1 ? strftime(text, sizeof text, b.p, &tm) : 0;
    if (b.n > 1 && n == 0 && fmt->n > 512)
        jx_fail(jx, ERR_LIMIT, "strftime_now: the text is longer than %zu bytes", sizeof text);
    jsb_put(&out, text, n, fmt->seg_count > 0);
    return jsb_end(&out);
}

static struct jv cycle_value(struct jx *jx, struct jlist *items, enum jtype type)
{
    struct jcycle *c = jx_alloc(jx, 1, sizeof *c);
    if (!c || !items)
        return JV_NONE;
    c->items = items;
    return (struct jv){.type = (uint8_t)type, .cycle = c};
}

static struct jv global_cycler(struct jx *jx, struct jv self, const struct jargs *args)
{
    struct jlist *l = jlist_new(jx, args->n);
    (void)self;
    if (!args->n || args->kw_count)
        jx_fail(jx, ERR_TEMPLATE, args->n ? "cycler() takes no keyword arguments" : "at least one item has to be provided");
    for (size_t i = 0; i < args->n; i++)
        jlist_push(jx, l, args->v[i]);
    return cycle_value(jx, l, JT_CYCLER);
}

static struct jv global_joiner(struct jx *jx, struct jv self, struct jv *a)
{
    struct jlist *l = jlist_new(jx, 1);
    (void)self;
    jlist_push(jx, l, jv_given(a[0]) ? a[0] : jstr_z(jx, ", "));
    return cycle_value(jx, l, JT_JOINER);
}

static const struct jfunc_row globals[JG_COUNT] = {
    [JG_RANGE] = {.name = "range", .raw = global_range},
    [JG_DICT] = {.name = "dict", .raw = global_dict},
    [JG_NAMESPACE] = {.name = "namespace", .raw = global_namespace},
    [JG_RAISE] = {.name = "raise_exception", .fn = global_raise, .params = "message", .min = 1},
    [JG_STRFTIME] = {.name = "strftime_now", .fn = global_strftime, .params = "format", .min = 1},
    [JG_CYCLER] = {.name = "cycler", .raw = global_cycler},
    [JG_JOINER] = {.name = "joiner", .fn = global_joiner, .params = "sep"},
    [JG_LIPSUM] = {.name = "lipsum", .raw = global_dict, .refused = "its text is random"},
};

struct jv jglobal_find(struct jx *jx, struct str name)
{
    (void)jx;
    for (int i = 0; i < JG_COUNT; i++)
        if (str_is(name, globals[i].name))
            return (struct jv){.type = JT_GLOBAL, .sub = (uint16_t)i};
    return JV_MISSING;
}

static struct jv call_joiner(struct jx *jx, struct jcycle *c)
{
    if (c->pos++)
        return c->items->v[0];
    return jstr_z(jx, "");
}

struct jv jcall_value(struct jx *jx, struct jv f, const struct jargs *args)
{
    if (jx->rc)
        return JV_NONE;
    switch (f.type) {
    case JT_UNDEF:
        return jundef_raise(jx, f);
    case JT_MACRO:
        return jcall_macro(jx, f.m, args);
    case JT_METHOD:
        return jcall_row(jx, &f.bound->row->f, f.bound->self, args);
    case JT_GLOBAL:
        return jcall_row(jx, &globals[f.sub], JV_NONE, args);
    case JT_JOINER:
        return call_joiner(jx, f.cycle);
    case JT_LOOP:
        jx_fail(jx, ERR_TEMPLATE, "recursive loops are not supported: loop(...)");
        return JV_NONE;
    default:
        jx_fail(jx, ERR_TEMPLATE, "'%s' object is not callable", jv_type_name(f));
        return JV_NONE;
    }
}
