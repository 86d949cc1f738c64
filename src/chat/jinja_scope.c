/* chat/jinja_scope.c - what Jinja2's compiler settles about names before a template runs.
 *
 * Frames (the template, bodies of for, macro, call, filter, with, set, generation and block) are looked at from the outside in.
 * A name whose first appearance in a frame is an assignment outside any `if`, and which no frame around it knows, starts as
 * missing there: reading it earlier gives undefined even when a variable of that name was passed in.  All other names are
 * looked up through the frames at run time, which gives what Jinja2's aliases give.
 *
 * Invariants: 1. Every frame-opening node has its `missing` list filled.
 *             2. Unknown filters and tests outside `if` are refused here, as Jinja2 does when it compiles.
 * Does not:   change the tree's shape. */
#include "chat/jinja_ast.h"
#include "chat/jinja_int.h"

struct frame {
    struct jparse *p;
    const struct frame *parent;
    uint64_t *known; /* one bit per name */
    struct jnames *missing;
    unsigned branch; /* inside how many `if` bodies */
    bool in_for;
};

static void visit(struct frame *f, struct jnode *n);
static void frames(struct frame *f, struct jnode *n, bool soft);

static bool frame_init(struct frame *f, struct jparse *p, const struct frame *parent, struct jnames *missing)
{
    *f = (struct frame){.p = p, .parent = parent, .missing = missing, .in_for = parent && parent->in_for};
    f->known = arena_try_array(&p->scratch, p->t->names.n / 64 + 1, sizeof *f->known);
    if (!f->known && !p->rc)
        p->rc = err_nomem(p->err, "template frame", p->t->names.n / 8);
    return f->known != NULL;
}

static bool knows(const struct frame *f, uint32_t id)
{
    for (; f; f = f->parent)
        if (f->known[id / 64] >> (id % 64) & 1)
            return true;
    return false;
}

static void learn(struct frame *f, uint32_t id)
{
    f->known[id / 64] |= (uint64_t)1 << (id % 64);
}

static void load(struct frame *f, uint32_t id)
{
    if (!knows(f, id))
        learn(f, id);
}

static void store(struct frame *f, uint32_t id, uint32_t line)
{
    struct jnames *m = f->missing;
    bool own = f->known[id / 64] >> (id % 64) & 1;
    if (f->in_for && str_is(f->p->t->names.names[id], "loop"))
        jparse_fail(f->p, line, "Can't assign to special loop variable in for-loop target");
    if (own)
        return;
    bool fresh = !knows(f, id);
    learn(f, id);
    if (!fresh || f->branch)
        return;
    if (m->n == m->cap) {
        size_t cap = m->cap ? m->cap * 2 : 8;
        uint32_t *ids = jparse_alloc(f->p, cap, sizeof *ids);
        if (!ids)
            return;
        if (m->n)
            memcpy(ids, m->id, m->n * sizeof *ids);
        m->id = ids;
        m->cap = cap;
    }
    m->id[m->n++] = id;
}

/* an assignment target; params: names that are given when the frame is entered */
static void target(struct frame *f, struct jnode *n, bool params)
{
    if (n->kind == JN_NSREF)
        load(f, n->id);
    else if (n->kind == JN_NAME && params)
        learn(f, n->id);
    else if (n->kind == JN_NAME)
        store(f, n->id, n->line);
    for (size_t i = 0; i < n->list.n; i++)
        target(f, n->list.v[i], params);
}

static void visit_all(struct frame *f, const struct jnodes *l)
{
    for (size_t i = 0; i < l->n; i++)
        visit(f, l->v[i]);
}

static void visit_call(struct frame *f, const struct jcall *c)
{
    if (!c)
        return;
    visit_all(f, &c->pos);
    for (size_t i = 0; i < c->kw_count; i++)
        visit(f, c->kw[i].value);
    visit(f, c->star);
    visit(f, c->star_star);
}

static void visit_if(struct frame *f, struct jnode *n)
{
    visit(f, n->a);
    f->branch++;
    visit_all(f, &n->list);
    visit_all(f, &n->other);
    if (n->b)
        visit_all(f, &n->b->list);
    f->branch--;
}

/* One node as seen by the frame it stands in: bodies that are frames of their own are left out. */
static void visit(struct frame *f, struct jnode *n)
{
    if (!n || f->p->rc)
        return;
    switch (n->kind) {
    case JN_NAME:
        load(f, n->id);
        return;
    case JN_IF:
        visit_if(f, n);
        return;
    case JN_FOR:
        visit(f, n->b);
        return;
    case JN_SET:
        visit(f, n->b);
        target(f, n->a, false);
        return;
    case JN_SET_BLOCK:
        target(f, n->a, false);
        return;
    case JN_MACRO:
        store(f, n->id, n->line);
        return;
    case JN_CALL_BLOCK:
    case JN_FILTER_BLOCK:
        visit(f, n->a);
        return;
    case JN_WITH:
        visit_all(f, &n->other);
        return;
    case JN_GENERATION:
    case JN_BLOCK:
        return;
    default: /* expressions and output: everything below */
        visit(f, n->a);
        visit(f, n->b);
        visit(f, n->c);
        visit_all(f, &n->list);
        visit_all(f, &n->other);
        visit_call(f, n->call);
    }
}

/* ---- caller, kwargs, varargs: does a macro's body use them undeclared? ------------------------------------------------------
 */

struct uses {
    uint32_t id[3];
    bool open[3], used[3];
};

static void uses_walk(struct uses *u, const struct jnode *n, bool stored);

static void uses_all(struct uses *u, const struct jnodes *l)
{
    for (size_t i = 0; i < l->n; i++)
        uses_walk(u, l->v[i], false);
}

static void uses_walk(struct uses *u, const struct jnode *n, bool stored)
{
    if (!n || n->kind == JN_BLOCK)
        return;
    for (int i = 0; n->kind == JN_NAME && i < 3; i++) {
        if (n->id != u->id[i])
            continue;
        u->used[i] |= !stored && u->open[i];
        u->open[i] &= !stored;
    }
    bool target_a = n->kind == JN_FOR || n->kind == JN_SET || n->kind == JN_SET_BLOCK || n->kind == JN_WITH;
    uses_walk(u, n->a, target_a);
    for (size_t i = 0; n->sig && i < n->sig->count; i++) {
        uses_walk(u, n->sig->params[i], true);
        uses_walk(u, n->sig->defaults[i], false);
    }
    uses_walk(u, n->b, false);
    uses_walk(u, n->c, false);
    if (n->kind == JN_TUPLE && stored)
        for (size_t i = 0; i < n->list.n; i++)
            uses_walk(u, n->list.v[i], true);
    else
        uses_all(u, &n->list);
    uses_all(u, &n->other);
    if (n->call) {
        uses_all(u, &n->call->pos);
        for (size_t i = 0; i < n->call->kw_count; i++)
            uses_walk(u, n->call->kw[i].value, false);
        uses_walk(u, n->call->star, false);
        uses_walk(u, n->call->star_star, false);
    }
}

static void macro_uses(struct frame *f, struct jnode *n)
{
    static const char *const names[3] = {"caller", "kwargs", "varargs"};
    struct uses u = {.open = {true, true, true}};
    bool param[3] = {0};
    for (int i = 0; i < 3; i++)
        u.id[i] = jintern_find(&f->p->t->names, str_of(names[i]));
    uses_all(&u, &n->list);
    for (size_t i = 0; i < n->sig->count; i++)
        for (int k = 0; k < 3; k++)
            param[k] |= n->sig->params[i]->id == u.id[k];
    if (u.used[0] && param[0]) {
        for (size_t i = 0; i < n->sig->count; i++)
            if (n->sig->params[i]->id == u.id[0] && !n->sig->defaults[i])
                jparse_fail(f->p, n->line,
                            "When defining macros or call blocks the special \"caller\" argument must be omitted or be "
                            "given a default.");
    }
    n->sig->uses_caller = u.used[0] && !param[0];
    n->sig->uses_kwargs = u.used[1] && !param[1];
    n->sig->uses_varargs = u.used[2] && !param[2];
    for (int k = 0; k < 3; k++)
        if (u.used[k])
            learn(f, u.id[k]);
}

/* ---- frames inside frames -------------------------------------------------------------------------------------------------- */

static void frames_all(struct frame *f, const struct jnodes *l, bool soft)
{
    for (size_t i = 0; i < l->n; i++)
        frames(f, l->v[i], soft);
}

static void body_frame(const struct frame *outer, struct jnode *n, struct jnodes *body, struct jnames *missing, bool in_for)
{
    struct frame f;
    if (!frame_init(&f, outer->p, n->kind == JN_BLOCK ? NULL : outer, missing))
        return;
    f.in_for |= in_for;
    if (n->kind == JN_WITH)
        target(&f, n->a, true);
    if (n->kind == JN_FOR && in_for)
        target(&f, n->a, true);
    for (size_t i = 0; n->sig && i < n->sig->count; i++)
        learn(&f, n->sig->params[i]->id);
    for (size_t i = 0; n->sig && i < n->sig->count; i++)
        visit(&f, n->sig->defaults[i]);
    if (n->sig)
        macro_uses(&f, n);
    visit_all(&f, body);
    for (size_t i = 0; n->sig && i < n->sig->count; i++)
        frames(&f, n->sig->defaults[i], false);
    frames_all(&f, body, false);
}

static void frames_for(struct frame *f, struct jnode *n, bool soft)
{
    if (n->a->kind == JN_NAME && str_is(n->a->name, "loop"))
        jparse_fail(f->p, n->line, "Can't assign to special loop variable in for-loop target");
    frames(f, n->b, soft);
    frames(f, n->c, false);
    body_frame(f, n, &n->list, &n->missing, true);
    body_frame(f, n, &n->other, &n->missing2, false);
}

static void frames_call(struct frame *f, const struct jcall *c, bool soft)
{
    if (!c)
        return;
    frames_all(f, &c->pos, soft);
    for (size_t i = 0; i < c->kw_count; i++)
        frames(f, c->kw[i].value, soft);
    frames(f, c->star, soft);
    frames(f, c->star_star, soft);
}

/* Walks everything once more and opens the frames; `soft`: inside an if, where an unknown filter may stay unreached. */
static void frames(struct frame *f, struct jnode *n, bool soft)
{
    if (!n || f->p->rc)
        return;
    switch (n->kind) {
    case JN_FOR:
        frames_for(f, n, soft);
        return;
    case JN_MACRO:
    case JN_CALL_BLOCK:
    case JN_FILTER_BLOCK:
    case JN_WITH:
    case JN_SET_BLOCK:
    case JN_GENERATION:
    case JN_BLOCK:
        frames(f, n->kind == JN_WITH || n->kind == JN_SET_BLOCK ? NULL : n->a, n->kind == JN_CALL_BLOCK && soft);
        frames(f, n->kind == JN_SET_BLOCK ? n->b : NULL, false);
        if (n->kind == JN_WITH)
            frames_all(f, &n->other, soft);
        body_frame(f, n, &n->list, &n->missing, false);
        return;
    case JN_IF:
    case JN_COND:
        soft = true;
        break;
    case JN_FILTER:
    case JN_TEST:
        if (n->entry < 0 && !soft)
            jparse_fail(f->p, n->line, "No %s named '%.*s'.", n->kind == JN_FILTER ? "filter" : "test", STR_ARG(n->name));
        break;
    default:
        break;
    }
    frames(f, n->a, soft);
    frames(f, n->b, soft);
    frames(f, n->c, soft);
    frames_all(f, &n->list, soft);
    frames_all(f, &n->other, soft);
    frames_call(f, n->call, soft);
}

int jscope_analyze(struct jparse *p)
{
    struct frame f;
    static const char *const special[] = {"loop", "caller", "kwargs", "varargs"};
    for (size_t i = 0; i < sizeof special / sizeof *special; i++)
        jintern_id(p, str_of(special[i]));
    if (p->rc || !frame_init(&f, p, NULL, &p->t->missing))
        return p->rc;
    visit_all(&f, &p->t->body);
    frames_all(&f, &p->t->body, false);
    return p->rc;
}
