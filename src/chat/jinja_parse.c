/* chat/jinja_parse.c - the statement half of the parser, and what both halves share.
 *
 * Owns:       the scratch arena with the tokens, for the time of the parse.
 * Invariants: 1. What Jinja2 refuses is refused, with its words and the line; so is what needs a template loader.
 *             2. p->rc is set exactly when p->err is; nothing goes on after it.
 * Does not:   run anything; scoping is settled in jinja_scope.c. */
#include "chat/jinja_ast.h"
#include "chat/jinja_int.h"

#include "base/hash.h"

#include <stdarg.h>
#include <stdio.h>

/* ---- shared helpers ------------------------------------------------------------------------------------------------------- */

int jparse_fail(struct jparse *p, uint32_t line, const char *fmt, ...)
{
    char text[512];
    va_list ap;
    if (p->rc)
        return p->rc;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    p->rc = err_set(p->err, ERR_TEMPLATE, "chat template, line %u: %s", line, text);
    return p->rc;
}

void *jparse_alloc(struct jparse *p, size_t count, size_t size_bytes)
{
    void *m = p->rc ? NULL : arena_try_array(p->mem, count, size_bytes);
    if (!m && !p->rc)
        p->rc = err_nomem(p->err, "template tree", count * size_bytes);
    return m;
}

struct jnode *jnode_new(struct jparse *p, enum jkind kind, uint32_t line)
{
    struct jnode *n = jparse_alloc(p, 1, sizeof *n);
    if (n) {
        n->kind = kind;
        n->line = line;
        n->depth = 1;
        n->entry = -1;
    }
    return n;
}

void jnode_adopt(struct jparse *p, struct jnode *n, const struct jnode *child)
{
    if (!n || !child || child->depth < n->depth)
        return;
    if (child->depth >= JNODE_DEPTH_MAX)
        jparse_fail(p, child->line, "nested deeper than %d", JNODE_DEPTH_MAX);
    else
        n->depth = (uint16_t)(child->depth + 1);
}

void jnodes_push(struct jparse *p, struct jnodes *l, struct jnode *n)
{
    if (p->rc || !n)
        return;
    if (l->n == l->cap) {
        size_t cap = l->cap ? l->cap * 2 : 4;
        struct jnode **v = jparse_alloc(p, cap, sizeof(struct jnode *));
        if (!v)
            return;
        if (l->n)
            memcpy(v, l->v, l->n * sizeof *v);
        l->v = v;
        l->cap = cap;
    }
    l->v[l->n++] = n;
}

static size_t intern_slot(const struct jintern *t, struct str name)
{
    static const uint64_t key[2] = {0x6a696e6a61, 0x6e616d6573}; /* the template's author is not an attacker of this table */
    size_t i = hash_sip(key, name.p, name.n) & (t->index_cap - 1);
    while (t->index[i] && !str_eq(t->names[t->index[i] - 1], name))
        i = (i + 1) & (t->index_cap - 1);
    return i;
}

uint32_t jintern_find(const struct jintern *t, struct str name)
{
    size_t i = t->index_cap ? intern_slot(t, name) : 0;
    return t->index_cap && t->index[i] ? t->index[i] - 1 : UINT32_MAX;
}

static bool intern_grow(struct jparse *p, struct jintern *t)
{
    size_t cap = t->index_cap ? t->index_cap * 2 : 128;
    uint32_t *index = jparse_alloc(p, cap, sizeof *index);
    struct str *names = jparse_alloc(p, cap / 2, sizeof *names);
    if (!index || !names)
        return false;
    if (t->n)
        memcpy(names, t->names, t->n * sizeof *names);
    *t = (struct jintern){.names = names, .n = t->n, .cap = cap / 2, .index = index, .index_cap = cap};
    for (size_t i = 0; i < t->n; i++)
        index[intern_slot(t, names[i])] = (uint32_t)i + 1;
    return true;
}

uint32_t jintern_id(struct jparse *p, struct str name)
{
    struct jintern *t = &p->t->names;
    uint32_t id = jintern_find(t, name);
    if (id != UINT32_MAX || p->rc)
        return id;
    if (t->n == t->cap && !intern_grow(p, t))
        return 0;
    t->names[t->n] = name;
    t->index[intern_slot(t, name)] = (uint32_t)++t->n;
    return (uint32_t)t->n - 1;
}

const struct jtoken *jparse_now(const struct jparse *p)
{
    return &p->tokens.v[p->at];
}

const struct jtoken *jparse_look(const struct jparse *p)
{
    return &p->tokens.v[p->at + 1 < p->tokens.n ? p->at + 1 : p->at];
}

const struct jtoken *jparse_next(struct jparse *p)
{
    const struct jtoken *t = jparse_now(p);
    if (p->at + 1 < p->tokens.n)
        p->at++;
    return t;
}

bool jparse_skip(struct jparse *p, enum jtok type)
{
    if (jparse_now(p)->type != type)
        return false;
    jparse_next(p);
    return true;
}

bool jparse_is_name(const struct jparse *p, const char *name)
{
    return jparse_now(p)->type == JTOK_NAME && str_is(jparse_now(p)->text, name);
}

bool jparse_skip_name(struct jparse *p, const char *name)
{
    if (!jparse_is_name(p, name))
        return false;
    jparse_next(p);
    return true;
}

static const char *token_name(enum jtok type)
{
    static const char *const names[] = {
        [JTOK_EOF] = "end of template", [JTOK_DATA] = "template data / text", [JTOK_VAR_BEGIN] = "begin of print statement",
        [JTOK_VAR_END] = "end of print statement", [JTOK_BLOCK_BEGIN] = "begin of statement block",
        [JTOK_BLOCK_END] = "end of statement block", [JTOK_NAME] = "name", [JTOK_STRING] = "string", [JTOK_INT] = "integer",
        [JTOK_FLOAT] = "float", [JTOK_LPAREN] = "(", [JTOK_RPAREN] = ")", [JTOK_LBRACKET] = "[", [JTOK_RBRACKET] = "]",
        [JTOK_LBRACE] = "{", [JTOK_RBRACE] = "}", [JTOK_ASSIGN] = "=", [JTOK_COLON] = ":", [JTOK_COMMA] = ",", [JTOK_DOT] = ".",
    };
    return type < sizeof names / sizeof *names && names[type] ? names[type] : "operator";
}

static struct str token_text(const struct jtoken *t)
{
    return t->type == JTOK_NAME || t->type >= JTOK_ADD ? t->text : str_of(token_name(t->type));
}

const struct jtoken *jparse_expect(struct jparse *p, enum jtok type)
{
    const struct jtoken *t = jparse_now(p);
    if (p->rc)
        return NULL;
    if (t->type == type)
        return jparse_next(p);
    if (t->type == JTOK_EOF)
        jparse_fail(p, t->line, "unexpected end of template, expected '%s'.", token_name(type));
    else
        jparse_fail(p, t->line, "expected token '%s', got '%.*s'", token_name(type), STR_ARG(token_text(t)));
    return NULL;
}

bool jparse_enter(struct jparse *p)
{
    if (p->rc)
        return false;
    if (p->nest >= JNODE_DEPTH_MAX) {
        jparse_fail(p, jparse_now(p)->line, "nested deeper than %d", JNODE_DEPTH_MAX);
        return false;
    }
    p->nest++;
    return true;
}

void jparse_leave(struct jparse *p)
{
    p->nest--;
}

/* ---- statements ----------------------------------------------------------------------------------------------------------- */

static void parse_body(struct jparse *p, struct jnode *owner, struct jnodes *out, const char *const *ends);

static bool at_end_tag(const struct jparse *p, const char *const *ends)
{
    for (; ends && *ends; ends++)
        if (jparse_is_name(p, *ends))
            return true;
    return false;
}

/* "%}" body until one of `ends`, which becomes the current token */
static void parse_statements(struct jparse *p, struct jnode *owner, struct jnodes *out, const char *const *ends)
{
    jparse_skip(p, JTOK_COLON);
    if (!jparse_expect(p, JTOK_BLOCK_END))
        return;
    parse_body(p, owner, out, ends);
    if (!p->rc && jparse_now(p)->type == JTOK_EOF)
        jparse_fail(p, jparse_now(p)->line, "Unexpected end of template. Jinja was looking for the following tags: '%s'%s%s%s.",
                    ends[0], ends[1] ? " or '" : "", ends[1] ? ends[1] : "", ends[1] ? "'" : "");
}

/* the same, the end tag eaten */
static void parse_until(struct jparse *p, struct jnode *owner, struct jnodes *out, const char *end)
{
    parse_statements(p, owner, out, (const char *const[]){end, NULL});
    if (!p->rc)
        jparse_next(p);
}

static struct jnode *parse_if(struct jparse *p, uint32_t line)
{
    static const char *const ends[] = {"elif", "else", "endif", NULL};
    struct jnode *first = jnode_new(p, JN_IF, line), *n = first;
    while (n && !p->rc) { /* elif chains are a list of `if` nodes in first->other; else is n->b's list of the first */
        n->a = jparse_tuple(p, false, NULL, false);
        if (!n->a)
            return NULL;
        jnode_adopt(p, n, n->a);
        parse_statements(p, n, &n->list, ends);
        if (n != first)
            jnode_adopt(p, first, n);
        if (p->rc)
            return NULL;
        const struct jtoken *t = jparse_next(p);
        if (str_is(t->text, "elif")) {
            n = jnode_new(p, JN_IF, t->line);
            jnodes_push(p, &first->other, n);
            continue;
        }
        if (str_is(t->text, "else")) {
            first->b = jnode_new(p, JN_SCOPE, t->line);
            if (!first->b)
                return NULL;
            parse_until(p, first->b, &first->b->list, "endif");
            jnode_adopt(p, first, first->b);
        }
        break;
    }
    return p->rc ? NULL : first;
}

static struct jnode *parse_for(struct jparse *p, uint32_t line)
{
    static const char *const ends[] = {"endfor", "else", NULL};
    struct jnode *n = jnode_new(p, JN_FOR, line);
    if (!n || !(n->a = jparse_target(p, "in", false)))
        return NULL;
    if (!jparse_skip_name(p, "in"))
        return jparse_fail(p, jparse_now(p)->line, "expected token 'in', got '%.*s'", STR_ARG(token_text(jparse_now(p)))), NULL;
    if (!(n->b = jparse_tuple(p, false, "recursive", false)))
        return NULL;
    if (jparse_skip_name(p, "if") && !(n->c = jparse_expression(p, true)))
        return NULL;
    if (jparse_is_name(p, "recursive"))
        return jparse_fail(p, line, "recursive loops are not supported"), NULL;
    jnode_adopt(p, n, n->a);
    jnode_adopt(p, n, n->b);
    if (n->c)
        jnode_adopt(p, n, n->c);
    p->loops++;
    parse_statements(p, n, &n->list, ends);
    p->loops--;
    if (!p->rc && str_is(jparse_next(p)->text, "else"))
        parse_until(p, n, &n->other, "endfor");
    return p->rc ? NULL : n;
}

static struct jnode *parse_set(struct jparse *p, uint32_t line)
{
    struct jnode *n = jnode_new(p, JN_SET, line);
    if (!n || !(n->a = jparse_target(p, NULL, true)))
        return NULL;
    jnode_adopt(p, n, n->a);
    if (jparse_skip(p, JTOK_ASSIGN)) {
        if (!(n->b = jparse_tuple(p, true, NULL, false)))
            return NULL;
        jnode_adopt(p, n, n->b);
        return p->rc ? NULL : n;
    }
    n->kind = JN_SET_BLOCK;
    if (jparse_now(p)->type == JTOK_PIPE && !(n->b = jparse_filters(p, NULL, false)))
        return NULL;
    if (n->b)
        jnode_adopt(p, n, n->b);
    parse_until(p, n, &n->list, "endset");
    return p->rc ? NULL : n;
}

/* "(" name [= default], ... ")" */
static bool parse_signature(struct jparse *p, struct jnode *n)
{
    struct jnodes params = {0}, defaults = {0};
    size_t with_default = 0;
    if (!jparse_expect(p, JTOK_LPAREN))
        return false;
    while (!p->rc && jparse_now(p)->type != JTOK_RPAREN) {
        if (params.n && !jparse_expect(p, JTOK_COMMA))
            return false;
        struct jnode *name = jparse_target_name(p), *value = NULL;
        if (!name)
            return false;
        for (size_t i = 0; i < params.n; i++)
            if (params.v[i]->id == name->id)
                return jparse_fail(p, name->line, "duplicate argument '%.*s' in a macro", STR_ARG(name->name)), false;
        if (jparse_skip(p, JTOK_ASSIGN)) {
            if (!(value = jparse_expression(p, true)))
                return false;
            with_default++;
            jnode_adopt(p, n, value);
            jnodes_push(p, &defaults, value);
        } else if (with_default) {
            return jparse_fail(p, name->line, "non-default argument follows default argument"), false;
        }
        jnodes_push(p, &params, name);
    }
    if (!jparse_expect(p, JTOK_RPAREN))
        return false;
    n->sig->params = params.v;
    n->sig->count = params.n;
    n->sig->defaults = params.n ? jparse_alloc(p, params.n, sizeof *n->sig->defaults) : NULL;
    for (size_t i = 0; !p->rc && i < defaults.n; i++)
        n->sig->defaults[params.n - defaults.n + i] = defaults.v[i];
    return !p->rc;
}

/* the body of a macro or call block: a function of its own, so no break or continue to a loop outside */
static struct jnode *parse_function_body(struct jparse *p, struct jnode *n, const char *end)
{
    unsigned loops = p->loops;
    p->loops = 0;
    parse_until(p, n, &n->list, end);
    p->loops = loops;
    return p->rc ? NULL : n;
}

static struct jnode *parse_macro(struct jparse *p, uint32_t line)
{
    struct jnode *n = jnode_new(p, JN_MACRO, line), *name = jparse_target_name(p);
    if (!n || !name || !(n->sig = jparse_alloc(p, 1, sizeof *n->sig)))
        return NULL;
    n->id = name->id;
    n->name = name->name;
    return parse_signature(p, n) ? parse_function_body(p, n, "endmacro") : NULL;
}

static struct jnode *parse_call_block(struct jparse *p, uint32_t line)
{
    struct jnode *n = jnode_new(p, JN_CALL_BLOCK, line);
    if (!n || !(n->sig = jparse_alloc(p, 1, sizeof *n->sig)))
        return NULL;
    n->name = STR("caller");
    if (jparse_now(p)->type == JTOK_LPAREN && !parse_signature(p, n))
        return NULL;
    if (!(n->a = jparse_expression(p, true)))
        return NULL;
    if (n->a->kind != JN_CALL)
        return jparse_fail(p, line, "expected call"), NULL;
    jnode_adopt(p, n, n->a);
    return parse_function_body(p, n, "endcall");
}

static struct jnode *parse_filter_block(struct jparse *p, uint32_t line)
{
    struct jnode *n = jnode_new(p, JN_FILTER_BLOCK, line);
    if (!n || !(n->a = jparse_filters(p, NULL, true)))
        return NULL;
    jnode_adopt(p, n, n->a);
    parse_until(p, n, &n->list, "endfilter");
    return p->rc ? NULL : n;
}

static struct jnode *parse_with(struct jparse *p, uint32_t line)
{
    struct jnode *n = jnode_new(p, JN_WITH, line);
    struct jnodes targets = {0};
    if (!n)
        return NULL;
    while (!p->rc && jparse_now(p)->type != JTOK_BLOCK_END) {
        if (targets.n && !jparse_expect(p, JTOK_COMMA))
            return NULL;
        struct jnode *target = jparse_target(p, NULL, false);
        if (!target || !jparse_expect(p, JTOK_ASSIGN))
            return NULL;
        struct jnode *value = jparse_expression(p, true);
        if (!value)
            return NULL;
        jnodes_push(p, &targets, target);
        jnodes_push(p, &n->other, value);
        jnode_adopt(p, n, value);
    }
    n->a = jnode_new(p, JN_TUPLE, line);
    if (!n->a)
        return NULL;
    n->a->list = targets;
    parse_until(p, n, &n->list, "endwith");
    return p->rc ? NULL : n;
}

static struct jnode *parse_print(struct jparse *p, uint32_t line)
{
    struct jnode *n = jnode_new(p, JN_OUTPUT, line);
    while (n && !p->rc && jparse_now(p)->type != JTOK_BLOCK_END) {
        if (n->list.n && !jparse_expect(p, JTOK_COMMA))
            return NULL;
        struct jnode *e = jparse_expression(p, true);
        if (!e)
            return NULL;
        jnodes_push(p, &n->list, e);
        jnode_adopt(p, n, e);
    }
    return p->rc ? NULL : n;
}

static struct jnode *parse_block(struct jparse *p, uint32_t line)
{
    struct jnode *n = jnode_new(p, JN_BLOCK, line);
    const struct jtoken *name = jparse_expect(p, JTOK_NAME);
    if (!n || !name)
        return NULL;
    n->name = name->text;
    n->flag = jparse_skip_name(p, "scoped");
    if (jparse_is_name(p, "required"))
        return jparse_fail(p, line, "required blocks are not supported: they need another template"), NULL;
    unsigned loops = p->loops;
    p->loops = 0;
    parse_until(p, n, &n->list, "endblock");
    p->loops = loops;
    if (!p->rc && jparse_now(p)->type == JTOK_NAME && str_eq(jparse_now(p)->text, n->name))
        jparse_next(p);
    return p->rc ? NULL : n;
}

static struct jnode *parse_generation(struct jparse *p, uint32_t line)
{
    struct jnode *n = jnode_new(p, JN_GENERATION, line);
    return n ? parse_function_body(p, n, "endgeneration") : NULL;
}

static struct jnode *parse_break(struct jparse *p, enum jkind kind, uint32_t line)
{
    if (!p->loops)
        return jparse_fail(p, line, "'%s' outside loop", kind == JN_BREAK ? "break" : "continue"), NULL;
    return jnode_new(p, kind, line);
}

static struct jnode *parse_refused(struct jparse *p, uint32_t line, const char *name)
{
    jparse_fail(p, line, "'%s' is not supported in a chat template", name);
    return NULL;
}

static struct jnode *parse_statement(struct jparse *p, const char *const *ends)
{
    const struct jtoken *t = jparse_now(p);
    static const struct {
        const char *name;
        struct jnode *(*parse)(struct jparse *p, uint32_t line);
    } tags[] = {
        {"for", parse_for}, {"if", parse_if}, {"set", parse_set}, {"macro", parse_macro}, {"call", parse_call_block},
        {"filter", parse_filter_block}, {"with", parse_with}, {"print", parse_print}, {"block", parse_block},
        {"generation", parse_generation},
    };
    static const char *const refused[] = {"include", "import", "from", "extends", "autoescape"};
    if (t->type != JTOK_NAME)
        return jparse_fail(p, t->line, "tag name expected"), NULL;
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++)
        if (str_is(t->text, refused[i]))
            return parse_refused(p, t->line, refused[i]);
    if (jparse_skip_name(p, "break"))
        return parse_break(p, JN_BREAK, t->line);
    if (jparse_skip_name(p, "continue"))
        return parse_break(p, JN_CONTINUE, t->line);
    for (size_t i = 0; i < sizeof tags / sizeof *tags; i++) {
        if (!jparse_skip_name(p, tags[i].name))
            continue;
        if (!jparse_enter(p))
            return NULL;
        struct jnode *n = tags[i].parse(p, t->line);
        jparse_leave(p);
        return n;
    }
    if (ends)
        jparse_fail(p, t->line, "Encountered unknown tag '%.*s'. Jinja was looking for the following tags: '%s'.",
                    STR_ARG(t->text), ends[0]);
    else
        jparse_fail(p, t->line, "Encountered unknown tag '%.*s'.", STR_ARG(t->text));
    return NULL;
}

static struct jnode *data_node(struct jparse *p, const struct jtoken *t)
{
    struct jnode *n = jnode_new(p, JN_DATA, t->line);
    if (n)
        n->name = t->text;
    return n;
}

static void parse_body(struct jparse *p, struct jnode *owner, struct jnodes *out, const char *const *ends)
{
    while (!p->rc && jparse_now(p)->type != JTOK_EOF) {
        const struct jtoken *t = jparse_next(p);
        struct jnode *n = NULL;
        if (t->type == JTOK_DATA) {
            n = data_node(p, t);
        } else if (t->type == JTOK_VAR_BEGIN) {
            n = jnode_new(p, JN_OUTPUT, t->line);
            struct jnode *e = n ? jparse_tuple(p, true, NULL, false) : NULL;
            if (!e)
                return;
            jnodes_push(p, &n->list, e);
            jnode_adopt(p, n, e);
            jparse_expect(p, JTOK_VAR_END);
        } else if (t->type == JTOK_BLOCK_BEGIN) {
            if (at_end_tag(p, ends))
                return;
            n = parse_statement(p, ends);
            if (!p->rc)
                jparse_expect(p, JTOK_BLOCK_END);
        } else {
            jparse_fail(p, t->line, "unexpected '%.*s'", STR_ARG(token_text(t)));
        }
        jnodes_push(p, out, n);
        jnode_adopt(p, owner, n);
    }
}

int jparse_template(struct jtemplate *t, struct str source, struct err *err)
{
    struct jparse p = {.t = t, .mem = &t->mem, .err = err};
    struct jnode root = {.depth = 1};
    jlex(&p, source);
    if (!p.rc)
        parse_body(&p, &root, &t->body, NULL);
    if (!p.rc)
        jscope_analyze(&p);
    arena_free(&p.scratch);
    return p.rc;
}
