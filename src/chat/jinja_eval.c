/* chat/jinja_eval.c - expressions: a walk over the tree, and the budget every walk is charged to.
 *
 * Invariants: 1. Operands are evaluated left to right, once; `and`, `or` and conditionals only as far as needed.
 *             2. Every node costs one step; depth counts nodes and nested values together.
 * Does not:   change scopes (jinja_exec.c does). */
#include "chat/jinja_int.h"

#include <stdio.h>

int jx_fail(struct jx *jx, int code, const char *fmt, ...)
{
    char text[900];
    va_list ap;
    if (jx->rc)
        return jx->rc;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    jx->rc = err_set(jx->err, code, "chat template, line %u: %s", jx->line, text);
    return jx->rc;
}

bool jx_step(struct jx *jx, uint64_t n)
{
    if (jx->rc)
        return false;
    jx->steps += n;
    if (jx->steps <= jx->steps_max)
        return true;
    jx_fail(jx, ERR_LIMIT, "more than %llu steps", (unsigned long long)jx->steps_max);
    return false;
}

/* ---- arguments ------------------------------------------------------------------------------------------------------------ */

static bool args_star(struct jx *jx, struct jargs *out, struct jv v)
{
    struct jlist *more = jv_list(jx, v);
    struct jv *all = more ? jx_alloc(jx, out->n + more->n + 1, sizeof *all) : NULL;
    if (!all)
        return false;
    if (out->n)
        memcpy(all, out->v, out->n * sizeof *all);
    if (more->n)
        memcpy(all + out->n, more->v, more->n * sizeof *all);
    out->v = all;
    out->n += more->n;
    return true;
}

static bool args_star_star(struct jx *jx, struct jargs *out, struct jv v, size_t reserve)
{
    if (v.type != JT_DICT) {
        jx_fail(jx, ERR_TEMPLATE, "argument after ** must be a mapping, not %s", jv_type_name(v));
        return false;
    }
    struct jkwv *all = jx_alloc(jx, out->kw_count + v.d->n + reserve, sizeof *all);
    if (!all)
        return false;
    if (out->kw_count)
        memcpy(all, out->kw, out->kw_count * sizeof *all);
    out->kw = all;
    for (size_t i = 0; i < v.d->n; i++) {
        if (v.d->e[i].key.type != JT_STR) {
            jx_fail(jx, ERR_TEMPLATE, "keywords must be strings");
            return false;
        }
        struct str key = jstr_text(v.d->e[i].key.s);
        for (size_t k = 0; k < out->kw_count; k++)
            if (str_eq(out->kw[k].key, key))
                jx_fail(jx, ERR_TEMPLATE, "got multiple values for keyword argument '%.*s'", STR_ARG(key));
        out->kw[out->kw_count++] = (struct jkwv){key, v.d->e[i].value};
    }
    return !jx->rc;
}

bool jeval_args(struct jx *jx, struct jscope *s, const struct jcall *c, struct jargs *out, struct jv caller)
{
    *out = (struct jargs){0};
    size_t extra = caller.type != JT_MISSING;
    if (!c && !extra)
        return !jx->rc;
    out->v = jx_alloc(jx, (c ? c->pos.n : 0) + 1, sizeof *out->v);
    out->kw = jx_alloc(jx, (c ? c->kw_count : 0) + 1, sizeof *out->kw);
    for (size_t i = 0; c && i < c->pos.n && !jx->rc; i++)
        out->v[out->n++] = jeval(jx, s, c->pos.v[i]);
    for (size_t i = 0; c && i < c->kw_count && !jx->rc; i++)
        out->kw[out->kw_count++] = (struct jkwv){c->kw[i].key, jeval(jx, s, c->kw[i].value)};
    if (c && c->star && !jx->rc && !args_star(jx, out, jeval(jx, s, c->star)))
        return false;
    if (c && c->star_star && !jx->rc && !args_star_star(jx, out, jeval(jx, s, c->star_star), 1))
        return false;
    if (extra && !jx->rc)
        out->kw[out->kw_count++] = (struct jkwv){STR("caller"), caller};
    return !jx->rc;
}

/* ---- nodes ---------------------------------------------------------------------------------------------------------------- */

static struct jv eval_items(struct jx *jx, struct jscope *s, const struct jnode *n)
{
    struct jlist *l = jlist_new(jx, n->list.n);
    for (size_t i = 0; i < n->list.n && !jx->rc; i++)
        jlist_push(jx, l, jeval(jx, s, n->list.v[i]));
    return jx->rc ? JV_NONE : jlist_value(l, n->kind == JN_TUPLE ? JT_TUPLE : JT_LIST);
}

static struct jv eval_dict(struct jx *jx, struct jscope *s, const struct jnode *n)
{
    struct jdict *d = jdict_new(jx, n->list.n);
    for (size_t i = 0; i < n->list.n && !jx->rc; i++) {
        struct jv key = jeval(jx, s, n->list.v[i]);
        struct jv value = jeval(jx, s, n->other.v[i]);
        jx->line = n->line;
        jdict_set(jx, d, key, value);
    }
    return jx->rc ? JV_NONE : (struct jv){.type = JT_DICT, .d = d};
}

static struct jv eval_cond(struct jx *jx, struct jscope *s, const struct jnode *n)
{
    char hint[160];
    struct jv test = jeval(jx, s, n->a);
    if (jx->rc)
        return JV_NONE;
    if (jv_truth(jx, test))
        return jeval(jx, s, n->b);
    if (n->c)
        return jeval(jx, s, n->c);
    snprintf(hint, sizeof hint, "the inline if-expression on line %u evaluated to false and no else section was defined.",
             n->line);
    struct str text = arena_try_str(jx->mem, str_of(hint));
    return jundef_hint(jx, text.p ? text.p : "");
}

static struct jv eval_compare(struct jx *jx, struct jscope *s, const struct jnode *n)
{
    struct jv left = jeval(jx, s, n->a);
    bool ok = true;
    for (size_t i = 0; ok && i < n->list.n && !jx->rc; i++) {
        struct jv right = jeval(jx, s, n->list.v[i]);
        jx->line = n->line;
        ok = !jx->rc && jop_compare(jx, (enum jcmp)n->ops[i], left, right);
        left = right;
    }
    return JV_BOOL(ok);
}

static struct jv eval_concat(struct jx *jx, struct jscope *s, const struct jnode *n)
{
    struct jv left = jv_str(jx, jeval(jx, s, n->list.v[0]));
    for (size_t i = 1; i < n->list.n && !jx->rc; i++) {
        struct jv right = jv_soft_str(jx, jeval(jx, s, n->list.v[i]));
        if (!jx->rc)
            left = jstr_cat(jx, left.s, right.s);
    }
    return left;
}

static struct jv eval_item(struct jx *jx, struct jscope *s, const struct jnode *n)
{
    struct jv v = jeval(jx, s, n->a);
    if (n->b->kind != JN_SLICE) {
        struct jv key = jeval(jx, s, n->b);
        jx->line = n->line;
        return jx->rc ? JV_NONE : jattr_item(jx, v, key);
    }
    struct jv part[3] = {JV_NONE, JV_NONE, JV_NONE};
    const struct jnode *from[3] = {n->b->a, n->b->b, n->b->c};
    for (int i = 0; i < 3; i++)
        if (from[i])
            part[i] = jeval(jx, s, from[i]);
    jx->line = n->line;
    return jx->rc ? JV_NONE : jattr_slice(jx, v, part[0], part[1], part[2]);
}

static struct jv eval_call(struct jx *jx, struct jscope *s, const struct jnode *n, struct jv caller)
{
    struct jargs args;
    struct jv f = jeval(jx, s, n->a);
    if (!jeval_args(jx, s, n->call, &args, caller))
        return JV_NONE;
    jx->line = n->line;
    return jcall_value(jx, f, &args);
}

struct jv jeval_filter(struct jx *jx, struct jscope *s, const struct jnode *n, struct jv self)
{
    struct jargs args;
    if (n->a)
        self = n->a->kind == JN_FILTER ? jeval_filter(jx, s, n->a, self) : jeval(jx, s, n->a);
    jx->line = n->line;
    if (n->entry < 0)
        jx_fail(jx, ERR_TEMPLATE, "No filter named '%.*s' found.", STR_ARG(n->name));
    if (jx->rc || !jeval_args(jx, s, n->call, &args, JV_MISSING))
        return JV_NONE;
    jx->line = n->line;
    return jfilter_call(jx, n->entry, self, &args);
}

static struct jv eval_test(struct jx *jx, struct jscope *s, const struct jnode *n)
{
    struct jargs args;
    struct jv self = jeval(jx, s, n->a);
    jx->line = n->line;
    if (n->entry < 0)
        jx_fail(jx, ERR_TEMPLATE, "No test named '%.*s' found.", STR_ARG(n->name));
    if (jx->rc || !jeval_args(jx, s, n->call, &args, JV_MISSING))
        return JV_NONE;
    jx->line = n->line;
    return JV_BOOL(jtest_call(jx, n->entry, self, &args));
}

static struct jv eval_binary(struct jx *jx, struct jscope *s, const struct jnode *n)
{
    struct jv a = jeval(jx, s, n->a), b = jeval(jx, s, n->b);
    jx->line = n->line;
    return jx->rc ? JV_NONE : jop_binary(jx, (enum jtok)n->op, a, b);
}

static struct jv eval_logic(struct jx *jx, struct jscope *s, const struct jnode *n)
{
    struct jv a = jeval(jx, s, n->a);
    if (jx->rc)
        return JV_NONE;
    if (n->kind == JN_NOT)
        return JV_BOOL(!jv_truth(jx, a));
    if (jv_truth(jx, a) == (n->kind == JN_OR))
        return a;
    return jeval(jx, s, n->b);
}

static struct jv eval_unary(struct jx *jx, struct jscope *s, const struct jnode *n)
{
    struct jv v = jeval(jx, s, n->a);
    jx->line = n->line;
    return jx->rc ? JV_NONE : jop_unary(jx, n->kind == JN_NEG, v);
}

static struct jv eval_attr(struct jx *jx, struct jscope *s, const struct jnode *n)
{
    struct jv v = jeval(jx, s, n->a);
    jx->line = n->line;
    return jx->rc ? JV_NONE : jattr_get(jx, v, n->name);
}

static struct jv eval_node(struct jx *jx, struct jscope *s, const struct jnode *n)
{
    switch (n->kind) {
    case JN_CONST:
        return n->value;
    case JN_NAME:
        return jscope_get(jx, s, n->id, n->name);
    case JN_TUPLE:
    case JN_LIST:
        return eval_items(jx, s, n);
    case JN_DICT:
        return eval_dict(jx, s, n);
    case JN_COND:
        return eval_cond(jx, s, n);
    case JN_OR:
    case JN_AND:
    case JN_NOT:
        return eval_logic(jx, s, n);
    case JN_COMPARE:
        return eval_compare(jx, s, n);
    case JN_BINARY:
        return eval_binary(jx, s, n);
    case JN_CONCAT:
        return eval_concat(jx, s, n);
    case JN_NEG:
    case JN_POS:
        return eval_unary(jx, s, n);
    case JN_ATTR:
        return eval_attr(jx, s, n);
    case JN_ITEM:
        return eval_item(jx, s, n);
    case JN_CALL:
        return eval_call(jx, s, n, JV_MISSING);
    case JN_FILTER:
        return jeval_filter(jx, s, n, JV_NONE);
    case JN_TEST:
        return eval_test(jx, s, n);
    default:
        jx_fail(jx, ERR_INTERNAL, "node %d is no expression", (int)n->kind);
        return JV_NONE;
    }
}

struct jv jeval(struct jx *jx, struct jscope *s, const struct jnode *n)
{
    if (!jx_step(jx, 1))
        return JV_NONE;
    if (jx->depth >= JX_DEPTH_MAX) {
        jx->line = n->line;
        jx_fail(jx, ERR_LIMIT, "nested deeper than %d", JX_DEPTH_MAX);
        return JV_NONE;
    }
    jx->depth++;
    jx->line = n->line;
    struct jv v = eval_node(jx, s, n);
    jx->depth--;
    return jx->rc ? JV_NONE : v;
}
