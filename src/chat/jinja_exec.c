/* chat/jinja_exec.c - statements and scopes.
 *
 * Invariants: 1. Each frame of jinja_scope.c is one scope at run time; assignments go to the innermost, reads go outwards.
 *             2. Output goes to jx->out, which captures (set, macro, call, filter, generation) replace for a while.
 * Does not:   loop (jinja_loop.c). */
#include "chat/jinja_int.h"

/* ---- scopes --------------------------------------------------------------------------------------------------------------- */

struct jscope *jscope_new(struct jx *jx, struct jscope *parent, const struct jnames *missing)
{
    struct jscope *s = jx_alloc(jx, 1, sizeof *s);
    if (!s)
        return NULL;
    s->parent = parent;
    for (size_t i = 0; missing && i < missing->n; i++)
        jscope_set(jx, s, missing->id[i], JV_MISSING);
    return s;
}

void jscope_set(struct jx *jx, struct jscope *s, uint32_t id, struct jv v)
{
    if (jx->rc || !s)
        return;
    for (size_t i = 0; i < s->n; i++) {
        if (s->slots[i].id == id) {
            s->slots[i].value = v;
            return;
        }
    }
    if (s->n == s->cap) {
        size_t cap = s->cap ? s->cap * 2 : 4;
        struct jslot *slots = jx_alloc(jx, cap, sizeof *slots);
        if (!slots)
            return;
        if (s->n)
            memcpy(slots, s->slots, s->n * sizeof *slots);
        s->slots = slots;
        s->cap = cap;
    }
    s->slots[s->n++] = (struct jslot){id, v};
}

struct jv jscope_get(struct jx *jx, const struct jscope *s, uint32_t id, struct str name)
{
    for (; s; s = s->parent)
        for (size_t i = 0; i < s->n; i++)
            if (s->slots[i].id == id)
                return s->slots[i].value.type == JT_MISSING ? jundef_name(jx, name) : s->slots[i].value;
    struct jv global = jglobal_find(jx, name);
    return global.type == JT_MISSING ? jundef_name(jx, name) : global;
}

/* ---- assignment ----------------------------------------------------------------------------------------------------------- */

static void assign_ns(struct jx *jx, struct jscope *s, const struct jnode *target, struct jv v)
{
    struct jv ns = jscope_get(jx, s, target->id, target->name);
    struct str attr = jstr_text(target->value.s);
    if (jx->rc)
        return;
    if (ns.type != JT_NS)
        jx_fail(jx, ERR_TEMPLATE, "cannot assign attribute on non-namespace object");
    else if (attr.n && attr.p[0] == '_')
        jx_fail(jx, ERR_TEMPLATE, "Chat templates cannot store underscore-prefixed attributes on a namespace, but got '%.*s'.",
                STR_ARG(attr));
    else
        jdict_set(jx, ns.d, target->value, v);
}

static void assign_tuple(struct jx *jx, struct jscope *s, const struct jnode *target, struct jv v)
{
    struct jiter it;
    struct jv item;
    size_t want = target->list.n;
    struct jlist *got = NULL;
    if (v.type != JT_UNDEF && v.type != JT_ITER && v.type != JT_STR) {
        int64_t n;
        if (!jv_len_known(v, &n, jx)) {
            jx_fail(jx, ERR_TEMPLATE, "cannot unpack non-iterable %s object", jv_type_name(v));
            return;
        }
    }
    if (!jv_iter(jx, v, &it) || !(got = jlist_new(jx, want)))
        return;
    while (got->n < want && jiter_next(&it, &item))
        jlist_push(jx, got, item);
    if (got->n < want)
        jx_fail(jx, ERR_TEMPLATE, "not enough values to unpack (expected %zu, got %zu)", want, got->n);
    else if (jiter_next(&it, &item))
        jx_fail(jx, ERR_TEMPLATE, "too many values to unpack (expected %zu)", want);
    for (size_t i = 0; i < want && !jx->rc; i++)
        jexec_assign(jx, s, target->list.v[i], got->v[i]);
}

void jexec_assign(struct jx *jx, struct jscope *s, const struct jnode *target, struct jv v)
{
    if (jx->rc)
        return;
    if (target->kind == JN_NAME)
        jscope_set(jx, s, target->id, v);
    else if (target->kind == JN_NSREF)
        assign_ns(jx, s, target, v);
    else
        assign_tuple(jx, s, target, v);
}

/* Every namespace named in a target must be one before the value is even evaluated. */
static bool check_ns(struct jx *jx, struct jscope *s, const struct jnode *target)
{
    for (size_t i = 0; target->kind == JN_TUPLE && i < target->list.n; i++)
        if (!check_ns(jx, s, target->list.v[i]))
            return false;
    if (target->kind == JN_NSREF && jscope_get(jx, s, target->id, target->name).type != JT_NS)
        jx_fail(jx, ERR_TEMPLATE, "cannot assign attribute on non-namespace object");
    return !jx->rc;
}

/* ---- statements ----------------------------------------------------------------------------------------------------------- */

struct jv jexec_capture(struct jx *jx, struct jscope *s, const struct jnodes *body)
{
    struct jsb b = {.jx = jx}, *out = jx->out;
    jx->out = &b;
    jexec_body(jx, s, body);
    jx->out = out;
    return jx->rc ? JV_NONE : jsb_end(&b);
}

static void exec_output(struct jx *jx, struct jscope *s, const struct jnode *n)
{
    for (size_t i = 0; i < n->list.n && !jx->rc; i++) {
        struct jv v = jeval(jx, s, n->list.v[i]);
        if (!jx->rc)
            jsb_value(jx->out, v);
    }
}

static enum jflow exec_if(struct jx *jx, struct jscope *s, const struct jnode *n)
{
    struct jv v = jeval(jx, s, n->a);
    if (jx->rc)
        return JFLOW_NEXT;
    if (jv_truth(jx, v))
        return jexec_body(jx, s, &n->list);
    for (size_t i = 0; i < n->other.n; i++) {
        v = jeval(jx, s, n->other.v[i]->a);
        if (jx->rc)
            return JFLOW_NEXT;
        if (jv_truth(jx, v))
            return jexec_body(jx, s, &n->other.v[i]->list);
    }
    return n->b ? jexec_body(jx, s, &n->b->list) : JFLOW_NEXT;
}

static void exec_set(struct jx *jx, struct jscope *s, const struct jnode *n)
{
    if (!check_ns(jx, s, n->a))
        return;
    struct jv v = jeval(jx, s, n->b);
    jx->line = n->line;
    jexec_assign(jx, s, n->a, v);
}

static void exec_set_block(struct jx *jx, struct jscope *s, const struct jnode *n)
{
    struct jscope *inner = jscope_new(jx, s, &n->missing);
    struct jv v = jexec_capture(jx, inner, &n->list);
    if (n->b && !jx->rc)
        v = jeval_filter(jx, inner, n->b, v);
    jexec_assign(jx, s, n->a, v);
}

static struct jv macro_new(struct jx *jx, struct jscope *s, const struct jnode *n)
{
    struct jmacro *m = jx_alloc(jx, 1, sizeof *m);
    if (!m)
        return JV_NONE;
    *m = (struct jmacro){.node = n, .scope = s, .is_caller = n->kind != JN_MACRO};
    return (struct jv){.type = JT_MACRO, .m = m};
}

static void exec_call_block(struct jx *jx, struct jscope *s, const struct jnode *n)
{
    struct jv caller = macro_new(jx, s, n);
    struct jargs args;
    struct jv f = jx->rc ? JV_NONE : jeval(jx, s, n->a->a);
    if (!jeval_args(jx, s, n->a->call, &args, caller))
        return;
    jx->line = n->line;
    f = jcall_value(jx, f, &args);
    if (!jx->rc)
        jsb_value(jx->out, f);
}

static void exec_generation(struct jx *jx, struct jscope *s, const struct jnode *n)
{
    struct jscope *inner = jscope_new(jx, s, &n->missing);
    struct jv v = jexec_capture(jx, inner, &n->list);
    if (!jx->rc)
        jsb_value(jx->out, v);
}

/* break and continue may leave a filter block, whose text is then dropped as in Jinja2 */
static enum jflow exec_filter_block(struct jx *jx, struct jscope *s, const struct jnode *n)
{
    struct jscope *inner = jscope_new(jx, s, &n->missing);
    struct jsb b = {.jx = jx}, *out = jx->out;
    jx->out = &b;
    enum jflow flow = jexec_body(jx, inner, &n->list);
    jx->out = out;
    if (jx->rc || flow != JFLOW_NEXT)
        return flow;
    struct jv v = jeval_filter(jx, inner, n->a, jsb_end(&b));
    if (!jx->rc)
        jsb_value(jx->out, v);
    return JFLOW_NEXT;
}

static enum jflow exec_with(struct jx *jx, struct jscope *s, const struct jnode *n)
{
    struct jscope *inner = jscope_new(jx, s, &n->missing);
    for (size_t i = 0; i < n->other.n && !jx->rc; i++)
        jexec_assign(jx, inner, n->a->list.v[i], jeval(jx, s, n->other.v[i]));
    return jx->rc ? JFLOW_NEXT : jexec_body(jx, inner, &n->list);
}

static void exec_block(struct jx *jx, struct jscope *s, const struct jnode *n)
{
    struct jscope *inner = jscope_new(jx, n->flag ? s : jx->root, &n->missing);
    jexec_body(jx, inner, &n->list);
}

static enum jflow exec_node(struct jx *jx, struct jscope *s, const struct jnode *n)
{
    switch (n->kind) {
    case JN_DATA:
        jsb_put(jx->out, n->name.p, n->name.n, false);
        return JFLOW_NEXT;
    case JN_OUTPUT:
        exec_output(jx, s, n);
        return JFLOW_NEXT;
    case JN_IF:
        return exec_if(jx, s, n);
    case JN_FOR:
        return jexec_for(jx, s, n);
    case JN_SET:
        exec_set(jx, s, n);
        return JFLOW_NEXT;
    case JN_SET_BLOCK:
        exec_set_block(jx, s, n);
        return JFLOW_NEXT;
    case JN_MACRO:
        jscope_set(jx, s, n->id, macro_new(jx, s, n));
        return JFLOW_NEXT;
    case JN_CALL_BLOCK:
        exec_call_block(jx, s, n);
        return JFLOW_NEXT;
    case JN_FILTER_BLOCK:
        return exec_filter_block(jx, s, n);
    case JN_GENERATION:
        exec_generation(jx, s, n);
        return JFLOW_NEXT;
    case JN_WITH:
        return exec_with(jx, s, n);
    case JN_BLOCK:
        exec_block(jx, s, n);
        return JFLOW_NEXT;
    case JN_BREAK:
        return JFLOW_BREAK;
    case JN_CONTINUE:
        return JFLOW_CONTINUE;
    default:
        jx_fail(jx, ERR_INTERNAL, "node %d is no statement", (int)n->kind);
        return JFLOW_NEXT;
    }
}

enum jflow jexec_body(struct jx *jx, struct jscope *s, const struct jnodes *body)
{
    enum jflow flow = JFLOW_NEXT;
    if (jx->rc)
        return flow;
    if (jx->depth >= JX_DEPTH_MAX) {
        jx_fail(jx, ERR_LIMIT, "nested deeper than %d", JX_DEPTH_MAX);
        return flow;
    }
    jx->depth++;
    for (size_t i = 0; i < body->n && flow == JFLOW_NEXT && jx_step(jx, 1); i++) {
        jx->line = body->v[i]->line;
        flow = exec_node(jx, s, body->v[i]);
    }
    jx->depth--;
    return flow;
}
