/* chat/jinja_loop.c - for loops and the `loop` variable.
 *
 * Invariants: 1. The filter of a loop (`for x in y if z`) is asked item by item, in time with the body, as a generator would be.
 *             2. loop.last and loop.nextitem look one item ahead; loop.length of a filtered loop takes all that is left at once.
 * Does not:   loop recursively (refused by the parser). */
#include "chat/jinja_int.h"

/* the next item the filter lets through */
static bool source_next(struct jloop *l, struct jv *out)
{
    struct jx *jx = l->jx;
    while (jiter_next(&l->source, out)) {
        if (!l->node->c)
            return true;
        struct jscope *s = jscope_new(jx, l->test_scope, NULL);
        jexec_assign(jx, s, l->node->a, *out);
        struct jv test = jx->rc ? JV_NONE : jeval(jx, s, l->node->c);
        if (jx->rc)
            return false;
        if (jv_truth(jx, test))
            return true;
    }
    return false;
}

static bool advance(struct jloop *l, struct jv *out)
{
    if (!l->rest)
        return source_next(l, out);
    if (l->rest_at >= l->rest->n)
        return false;
    *out = l->rest->v[l->rest_at++];
    return true;
}

static bool peek(struct jloop *l)
{
    struct jv v;
    if (l->after.type == JT_MISSING && advance(l, &v))
        l->after = v;
    return l->after.type != JT_MISSING;
}

bool jloop_next(struct jloop *l, struct jv *out)
{
    struct jv v = l->after;
    if (v.type == JT_MISSING && !advance(l, &v))
        return false;
    l->after = JV_MISSING;
    l->index0++;
    l->before = l->current;
    l->current = v;
    *out = v;
    return !l->jx->rc;
}

static int64_t loop_length(struct jloop *l)
{
    struct jv v;
    if (l->length >= 0)
        return l->length;
    struct jlist *rest = jlist_new(l->jx, 4);
    while (rest && advance(l, &v))
        jlist_push(l->jx, rest, v);
    if (l->jx->rc)
        return 0;
    l->rest = rest;
    l->rest_at = 0;
    l->length = (int64_t)rest->n + l->index0 + 1 + (l->after.type != JT_MISSING);
    return l->length;
}

static struct jv loop_method(struct jx *jx, struct jloop *l, struct str name)
{
    const struct jmethod_row *row = jmethod_find(JT_LOOP, name);
    struct jmethod *m = row ? jx_alloc(jx, 1, sizeof *m) : NULL;
    if (!m)
        return JV_MISSING;
    m->self = (struct jv){.type = JT_LOOP, .loop = l};
    m->row = row;
    return (struct jv){.type = JT_METHOD, .bound = m};
}

struct jv jloop_attr(struct jx *jx, struct jloop *l, struct str name)
{
    if (str_is(name, "index0"))
        return JV_INT(l->index0);
    if (str_is(name, "index"))
        return JV_INT(l->index0 + 1);
    if (str_is(name, "first"))
        return JV_BOOL(l->index0 == 0);
    if (str_is(name, "last"))
        return JV_BOOL(!peek(l));
    if (str_is(name, "length"))
        return JV_INT(loop_length(l));
    if (str_is(name, "revindex"))
        return JV_INT(loop_length(l) - l->index0);
    if (str_is(name, "revindex0"))
        return JV_INT(loop_length(l) - l->index0 - 1);
    if (str_is(name, "depth"))
        return JV_INT(l->depth0 + 1);
    if (str_is(name, "depth0"))
        return JV_INT(l->depth0);
    if (str_is(name, "previtem"))
        return l->index0 == 0 ? jundef_hint(jx, "there is no previous item") : l->before;
    if (str_is(name, "nextitem"))
        return peek(l) ? l->after : jundef_hint(jx, "there is no next item");
    return loop_method(jx, l, name);
}

static enum jflow loop_body(struct jx *jx, struct jscope *s, const struct jnode *n, struct jloop *l, struct jv item,
                            uint32_t loop_id)
{
    struct jscope *inner = jscope_new(jx, s, &n->missing);
    if (loop_id != UINT32_MAX)
        jscope_set(jx, inner, loop_id, (struct jv){.type = JT_LOOP, .loop = l});
    jx->line = n->line;
    jexec_assign(jx, inner, n->a, item);
    return jx->rc ? JFLOW_BREAK : jexec_body(jx, inner, &n->list);
}

enum jflow jexec_for(struct jx *jx, struct jscope *s, const struct jnode *n)
{
    struct jv src = jeval(jx, s, n->b), item;
    struct jloop *l = jx_alloc(jx, 1, sizeof *l);
    if (!l)
        return JFLOW_NEXT;
    *l = (struct jloop){.jx = jx, .node = n, .test_scope = s, .length = -1, .index0 = -1};
    jx->line = n->line;
    if (!jv_iter(jx, src, &l->source))
        return JFLOW_NEXT;
    if (!n->c && src.type != JT_ITER && !jv_len_known(src, &l->length, jx))
        l->length = -1;
    uint32_t loop_id = jintern_find(&jx->t->names, STR("loop"));
    bool none = true;
    while (!jx->rc && jloop_next(l, &item)) {
        enum jflow flow = loop_body(jx, s, n, l, item, loop_id);
        if (flow == JFLOW_BREAK) { /* leaves the else branch's mark as it was: a break in the first round runs `else` */
            break;
        }
        if (flow == JFLOW_NEXT)
            none = false;
    }
    if (none && n->other.n && !jx->rc)
        return jexec_body(jx, jscope_new(jx, s, &n->missing2), &n->other);
    return JFLOW_NEXT;
}
