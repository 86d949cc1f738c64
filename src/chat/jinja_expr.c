/* chat/jinja_expr.c - the expression half of the parser: Jinja2's grammar, level by level.
 *
 * Invariants: 1. Precedence and associativity are Jinja2's (`**` binds to the left; unary minus binds tighter than filters).
 *             2. Recursion is bounded by jparse_enter, the tree's depth by jnode_adopt.
 *             3. Functions return NULL only when p->rc is set. */
#include "chat/jinja_ast.h"
#include "chat/jinja_int.h"

static struct jnode *parse_unary(struct jparse *p, bool with_filter);

static struct jnode *node_const(struct jparse *p, struct jv v, uint32_t line)
{
    struct jnode *n = jnode_new(p, JN_CONST, line);
    if (n)
        n->value = v;
    return n;
}

static struct jv const_str(struct jparse *p, struct str text)
{
    struct jstr *s = jparse_alloc(p, 1, sizeof *s);
    if (!s)
        return JV_NONE;
    *s = (struct jstr){.p = text.p, .n = text.n, .chars = SIZE_MAX};
    jstr_chars(s); /* counted now: the tree is read by many threads later */
    return (struct jv){.type = JT_STR, .s = s};
}

static struct jnode *node2(struct jparse *p, enum jkind kind, uint8_t op, struct jnode *a, struct jnode *b, uint32_t line)
{
    struct jnode *n = jnode_new(p, kind, line);
    if (!n || !a || !b)
        return NULL;
    n->op = op;
    n->a = a;
    n->b = b;
    jnode_adopt(p, n, a);
    jnode_adopt(p, n, b);
    return p->rc ? NULL : n;
}

static struct jnode *node1(struct jparse *p, enum jkind kind, struct jnode *a, uint32_t line)
{
    struct jnode *n = jnode_new(p, kind, line);
    if (!n || !a)
        return NULL;
    n->a = a;
    jnode_adopt(p, n, a);
    return p->rc ? NULL : n;
}

/* ---- literals and names --------------------------------------------------------------------------------------------------- */

static struct jnode *parse_string(struct jparse *p)
{
    const struct jtoken *t = jparse_next(p);
    struct str text = t->text;
    while (jparse_now(p)->type == JTOK_STRING) { /* "a" "b" is one string */
        struct str more = jparse_next(p)->text;
        char *both = jparse_alloc(p, text.n + more.n + 1, 1);
        if (!both)
            return NULL;
        if (text.n)
            memcpy(both, text.p, text.n);
        if (more.n)
            memcpy(both + text.n, more.p, more.n);
        text = str_n(both, text.n + more.n);
    }
    return node_const(p, const_str(p, text), t->line);
}

static struct jnode *parse_name(struct jparse *p, bool with_ns)
{
    const struct jtoken *t = jparse_next(p);
    if (str_is(t->text, "true") || str_is(t->text, "True"))
        return node_const(p, JV_BOOL(true), t->line);
    if (str_is(t->text, "false") || str_is(t->text, "False"))
        return node_const(p, JV_BOOL(false), t->line);
    if (str_is(t->text, "none") || str_is(t->text, "None"))
        return node_const(p, JV_NONE, t->line);
    bool ns = with_ns && jparse_skip(p, JTOK_DOT);
    struct jnode *n = jnode_new(p, ns ? JN_NSREF : JN_NAME, t->line);
    if (!n)
        return NULL;
    n->id = jintern_id(p, t->text);
    n->name = t->text;
    if (ns) {
        const struct jtoken *attr = jparse_expect(p, JTOK_NAME);
        if (!attr)
            return NULL;
        n->value = const_str(p, attr->text);
    }
    return p->rc ? NULL : n;
}

static struct jnode *parse_list(struct jparse *p)
{
    struct jnode *n = jnode_new(p, JN_LIST, jparse_next(p)->line);
    while (n && !p->rc && jparse_now(p)->type != JTOK_RBRACKET) {
        if (n->list.n && !jparse_expect(p, JTOK_COMMA))
            return NULL;
        if (jparse_now(p)->type == JTOK_RBRACKET)
            break;
        struct jnode *item = jparse_expression(p, true);
        if (!item)
            return NULL;
        jnodes_push(p, &n->list, item);
        jnode_adopt(p, n, item);
    }
    return jparse_expect(p, JTOK_RBRACKET) ? n : NULL;
}

static struct jnode *parse_dict(struct jparse *p)
{
    struct jnode *n = jnode_new(p, JN_DICT, jparse_next(p)->line);
    while (n && !p->rc && jparse_now(p)->type != JTOK_RBRACE) {
        if (n->list.n && !jparse_expect(p, JTOK_COMMA))
            return NULL;
        if (jparse_now(p)->type == JTOK_RBRACE)
            break;
        struct jnode *key = jparse_expression(p, true);
        if (!key || !jparse_expect(p, JTOK_COLON))
            return NULL;
        struct jnode *value = jparse_expression(p, true);
        if (!value)
            return NULL;
        jnodes_push(p, &n->list, key);
        jnodes_push(p, &n->other, value);
        jnode_adopt(p, n, key);
        jnode_adopt(p, n, value);
    }
    return jparse_expect(p, JTOK_RBRACE) ? n : NULL;
}

static struct jnode *parse_primary(struct jparse *p, bool with_ns)
{
    const struct jtoken *t = jparse_now(p);
    struct jnode *n;
    switch (t->type) {
    case JTOK_NAME:
        return parse_name(p, with_ns);
    case JTOK_STRING:
        return parse_string(p);
    case JTOK_INT:
        jparse_next(p);
        return node_const(p, (struct jv){.type = JT_INT, .big = t->big, .i = t->i}, t->line);
    case JTOK_FLOAT:
        jparse_next(p);
        return node_const(p, JV_FLOAT(t->f), t->line);
    case JTOK_LPAREN:
        jparse_next(p);
        n = jparse_tuple(p, true, NULL, true);
        return n && jparse_expect(p, JTOK_RPAREN) ? n : NULL;
    case JTOK_LBRACKET:
        return parse_list(p);
    case JTOK_LBRACE:
        return parse_dict(p);
    default:
        jparse_fail(p, t->line, t->type == JTOK_EOF ? "unexpected end of template in an expression" : "unexpected '%.*s'",
                    STR_ARG(t->text));
        return NULL;
    }
}

/* ---- calls, subscripts, filters, tests ------------------------------------------------------------------------------------ */

static bool keyword_push(struct jparse *p, struct jcall *c, struct str key, struct jnode *value)
{
    for (size_t i = 0; i < c->kw_count; i++)
        if (str_eq(c->kw[i].key, key))
            return jparse_fail(p, value->line, "keyword argument repeated: %.*s", STR_ARG(key)), false;
    if (c->kw_count == c->kw_cap) {
        size_t cap = c->kw_cap ? c->kw_cap * 2 : 4;
        struct jkeyword *kw = jparse_alloc(p, cap, sizeof *kw);
        if (!kw)
            return false;
        if (c->kw_count)
            memcpy(kw, c->kw, c->kw_count * sizeof *kw);
        c->kw = kw;
        c->kw_cap = cap;
    }
    c->kw[c->kw_count++] = (struct jkeyword){key, value};
    return true;
}

static bool parse_argument(struct jparse *p, struct jcall *c, struct jnode *owner, uint32_t line)
{
    bool star = jparse_now(p)->type == JTOK_MUL, stars = jparse_now(p)->type == JTOK_POW;
    bool kw = jparse_now(p)->type == JTOK_NAME && jparse_look(p)->type == JTOK_ASSIGN;
    struct str key = jparse_now(p)->text;
    if (c->star_star || (c->star && !stars && !kw) || (c->kw_count && !star && !stars && !kw))
        return jparse_fail(p, line, "invalid syntax for function call expression"), false;
    if (star || stars)
        jparse_next(p);
    if (kw) {
        jparse_next(p);
        jparse_next(p);
    }
    struct jnode *v = jparse_expression(p, true);
    if (!v)
        return false;
    jnode_adopt(p, owner, v);
    if (kw)
        return keyword_push(p, c, key, v);
    if (star)
        c->star = v;
    else if (stars)
        c->star_star = v;
    else
        jnodes_push(p, &c->pos, v);
    return !p->rc;
}

/* "(" arguments ")" for `owner` */
static bool parse_call_args(struct jparse *p, struct jnode *owner)
{
    uint32_t line = jparse_now(p)->line;
    struct jcall *c = jparse_alloc(p, 1, sizeof *c);
    if (!c || !jparse_expect(p, JTOK_LPAREN))
        return false;
    owner->call = c;
    bool comma = false;
    while (jparse_now(p)->type != JTOK_RPAREN) {
        if (comma && !jparse_expect(p, JTOK_COMMA))
            return false;
        if (comma && jparse_now(p)->type == JTOK_RPAREN)
            break;
        if (!parse_argument(p, c, owner, line))
            return false;
        comma = true;
    }
    return jparse_expect(p, JTOK_RPAREN) != NULL;
}

static struct jnode *parse_call(struct jparse *p, struct jnode *node)
{
    struct jnode *n = node1(p, JN_CALL, node, jparse_now(p)->line);
    return n && parse_call_args(p, n) && !p->rc ? n : NULL;
}

static bool slice_end(const struct jparse *p)
{
    return jparse_now(p)->type == JTOK_RBRACKET || jparse_now(p)->type == JTOK_COMMA;
}

/* one item between brackets: an expression or a slice */
static struct jnode *parse_subscribed(struct jparse *p)
{
    uint32_t line = jparse_now(p)->line;
    struct jnode *part[3] = {0};
    if (jparse_now(p)->type != JTOK_COLON) {
        part[0] = jparse_expression(p, true);
        if (!part[0] || jparse_now(p)->type != JTOK_COLON)
            return part[0];
    }
    jparse_next(p);
    if (jparse_now(p)->type != JTOK_COLON && !slice_end(p) && !(part[1] = jparse_expression(p, true)))
        return NULL;
    if (jparse_skip(p, JTOK_COLON) && !slice_end(p) && !(part[2] = jparse_expression(p, true)))
        return NULL;
    struct jnode *n = jnode_new(p, JN_SLICE, line);
    if (!n)
        return NULL;
    n->a = part[0];
    n->b = part[1];
    n->c = part[2];
    for (int i = 0; i < 3; i++)
        if (part[i])
            jnode_adopt(p, n, part[i]);
    return p->rc ? NULL : n;
}

static struct jnode *parse_brackets(struct jparse *p, struct jnode *node, uint32_t line)
{
    struct jnode *tuple = jnode_new(p, JN_TUPLE, line);
    while (tuple && !p->rc && jparse_now(p)->type != JTOK_RBRACKET) {
        if (tuple->list.n && !jparse_expect(p, JTOK_COMMA))
            return NULL;
        struct jnode *item = parse_subscribed(p);
        if (!item)
            return NULL;
        jnodes_push(p, &tuple->list, item);
        jnode_adopt(p, tuple, item);
    }
    if (!tuple || !jparse_expect(p, JTOK_RBRACKET))
        return NULL;
    if (tuple->list.n == 1)
        return node2(p, JN_ITEM, 0, node, tuple->list.v[0], line);
    for (size_t i = 0; i < tuple->list.n; i++)
        if (tuple->list.v[i]->kind == JN_SLICE)
            return jparse_fail(p, line, "slices inside a tuple of subscripts are not supported"), NULL;
    return node2(p, JN_ITEM, 0, node, tuple, line);
}

static struct jnode *parse_subscript(struct jparse *p, struct jnode *node)
{
    const struct jtoken *t = jparse_next(p);
    if (t->type == JTOK_LBRACKET)
        return parse_brackets(p, node, t->line);
    const struct jtoken *attr = jparse_next(p);
    if (attr->type == JTOK_NAME) {
        struct jnode *n = node1(p, JN_ATTR, node, t->line);
        if (n)
            n->name = attr->text;
        return n;
    }
    if (attr->type != JTOK_INT)
        return jparse_fail(p, attr->line, "expected name or number"), NULL;
    struct jnode *index = node_const(p, (struct jv){.type = JT_INT, .big = attr->big, .i = attr->i}, attr->line);
    return node2(p, JN_ITEM, 0, node, index, t->line);
}

static struct jnode *parse_postfix(struct jparse *p, struct jnode *node)
{
    while (node && !p->rc) {
        enum jtok t = jparse_now(p)->type;
        if (t == JTOK_DOT || t == JTOK_LBRACKET)
            node = parse_subscript(p, node);
        else if (t == JTOK_LPAREN)
            node = parse_call(p, node);
        else
            break;
    }
    return node;
}

/* a filter's or test's name, dots included */
static struct str parse_dotted(struct jparse *p)
{
    const struct jtoken *t = jparse_expect(p, JTOK_NAME);
    struct str name = t ? t->text : STR("");
    while (t && jparse_now(p)->type == JTOK_DOT) {
        jparse_next(p);
        t = jparse_expect(p, JTOK_NAME);
        if (t)
            name.n = (size_t)(t->text.p + t->text.n - name.p);
    }
    return name;
}

struct jnode *jparse_filters(struct jparse *p, struct jnode *node, bool start_inline)
{
    while (!p->rc && (start_inline || jparse_now(p)->type == JTOK_PIPE)) {
        if (!start_inline)
            jparse_next(p);
        struct jnode *n = jnode_new(p, JN_FILTER, jparse_now(p)->line);
        if (!n)
            return NULL;
        n->a = node; /* NULL: the text of a filter block */
        if (node)
            jnode_adopt(p, n, node);
        n->name = parse_dotted(p);
        if (!p->rc && jparse_now(p)->type == JTOK_LPAREN && !parse_call_args(p, n))
            return NULL;
        n->entry = (int16_t)jfilter_find(n->name); /* jscope_analyze decides whether an unknown one may stay */
        node = n;
        start_inline = false;
    }
    return p->rc ? NULL : node;
}

static bool test_argument_ahead(const struct jparse *p)
{
    enum jtok t = jparse_now(p)->type;
    if (t == JTOK_NAME)
        return !jparse_is_name(p, "else") && !jparse_is_name(p, "or") && !jparse_is_name(p, "and");
    return t == JTOK_STRING || t == JTOK_INT || t == JTOK_FLOAT || t == JTOK_LBRACKET || t == JTOK_LBRACE;
}

static struct jnode *parse_test(struct jparse *p, struct jnode *node)
{
    uint32_t line = jparse_next(p)->line;
    bool negated = jparse_skip_name(p, "not");
    struct jnode *n = node1(p, JN_TEST, node, line);
    if (!n)
        return NULL;
    n->name = parse_dotted(p);
    if (p->rc)
        return NULL;
    if (jparse_now(p)->type == JTOK_LPAREN) {
        if (!parse_call_args(p, n))
            return NULL;
    } else if (test_argument_ahead(p)) {
        if (jparse_is_name(p, "is"))
            return jparse_fail(p, line, "You cannot chain multiple tests with is"), NULL;
        struct jnode *arg = parse_postfix(p, parse_primary(p, false));
        n->call = jparse_alloc(p, 1, sizeof *n->call);
        if (!arg || !n->call)
            return NULL;
        jnodes_push(p, &n->call->pos, arg);
        jnode_adopt(p, n, arg);
    }
    n->entry = (int16_t)jtest_find(n->name);
    if (p->rc)
        return NULL;
    return negated ? node1(p, JN_NOT, n, line) : n;
}

static struct jnode *parse_filter_expr(struct jparse *p, struct jnode *node)
{
    while (node && !p->rc) {
        if (jparse_now(p)->type == JTOK_PIPE)
            node = jparse_filters(p, node, false);
        else if (jparse_is_name(p, "is"))
            node = parse_test(p, node);
        else if (jparse_now(p)->type == JTOK_LPAREN)
            node = parse_call(p, node);
        else
            break;
    }
    return node;
}

/* ---- operators ------------------------------------------------------------------------------------------------------------ */

static struct jnode *parse_unary(struct jparse *p, bool with_filter)
{
    const struct jtoken *t = jparse_now(p);
    struct jnode *n;
    if (!jparse_enter(p))
        return NULL;
    if (t->type == JTOK_SUB || t->type == JTOK_ADD) {
        jparse_next(p);
        n = node1(p, t->type == JTOK_SUB ? JN_NEG : JN_POS, parse_unary(p, false), t->line);
    } else {
        n = parse_primary(p, false);
    }
    n = parse_postfix(p, n);
    if (with_filter)
        n = parse_filter_expr(p, n);
    jparse_leave(p);
    return p->rc ? NULL : n;
}

/* The left-associative levels from `**` (0) up to `+` (3); `~` is its own kind of node. */
static int binary_level(enum jtok t)
{
    switch (t) {
    case JTOK_POW:
        return 0;
    case JTOK_MUL:
    case JTOK_DIV:
    case JTOK_FLOORDIV:
    case JTOK_MOD:
        return 1;
    case JTOK_TILDE:
        return 2;
    case JTOK_ADD:
    case JTOK_SUB:
        return 3;
    default:
        return -1;
    }
}

static struct jnode *parse_binary(struct jparse *p, int level)
{
    struct jnode *left = level ? parse_binary(p, level - 1) : parse_unary(p, true);
    while (left && binary_level(jparse_now(p)->type) == level) {
        const struct jtoken *t = jparse_next(p);
        struct jnode *right = level ? parse_binary(p, level - 1) : parse_unary(p, true);
        if (!right)
            return NULL;
        if (level != 2) {
            left = node2(p, JN_BINARY, (uint8_t)t->type, left, right, left->line);
            continue;
        }
        if (left->kind != JN_CONCAT || left->flag) { /* flag: a finished ~ in parentheses */
            struct jnode *first = left;
            left = jnode_new(p, JN_CONCAT, first->line);
            if (!left)
                return NULL;
            jnodes_push(p, &left->list, first);
            jnode_adopt(p, left, first);
        }
        jnodes_push(p, &left->list, right);
        jnode_adopt(p, left, right);
    }
    if (left && left->kind == JN_CONCAT)
        left->flag = true;
    return p->rc ? NULL : left;
}

/* the comparison operator ahead, -1 = none; eats it */
static int compare_op(struct jparse *p)
{
    static const struct {
        enum jtok t;
        enum jcmp op;
    } map[] = {{JTOK_EQ, JCMP_EQ}, {JTOK_NE, JCMP_NE}, {JTOK_LT, JCMP_LT},
               {JTOK_LE, JCMP_LE}, {JTOK_GT, JCMP_GT}, {JTOK_GE, JCMP_GE}};
    for (size_t i = 0; i < sizeof map / sizeof *map; i++)
        if (jparse_skip(p, map[i].t))
            return map[i].op;
    if (jparse_skip_name(p, "in"))
        return JCMP_IN;
    if (jparse_is_name(p, "not") && jparse_look(p)->type == JTOK_NAME && str_is(jparse_look(p)->text, "in")) {
        jparse_next(p);
        jparse_next(p);
        return JCMP_NOT_IN;
    }
    return -1;
}

static struct jnode *parse_compare(struct jparse *p)
{
    uint32_t line = jparse_now(p)->line;
    struct jnode *left = parse_binary(p, 3), *n = NULL;
    int op;
    while (left && !p->rc && (op = compare_op(p)) >= 0) {
        if (!n) {
            n = node1(p, JN_COMPARE, left, line);
            if (!n)
                return NULL;
        }
        struct jnode *right = parse_binary(p, 3);
        uint8_t *ops = jparse_alloc(p, n->list.n + 1, 1);
        if (!right || !ops)
            return NULL;
        if (n->list.n)
            memcpy(ops, n->ops, n->list.n);
        ops[n->list.n] = (uint8_t)op;
        n->ops = ops;
        jnodes_push(p, &n->list, right);
        jnode_adopt(p, n, right);
    }
    return p->rc ? NULL : n ? n : left;
}

static struct jnode *parse_not(struct jparse *p)
{
    if (!jparse_is_name(p, "not"))
        return parse_compare(p);
    uint32_t line = jparse_next(p)->line;
    if (!jparse_enter(p))
        return NULL;
    struct jnode *n = node1(p, JN_NOT, parse_not(p), line);
    jparse_leave(p);
    return n;
}

static struct jnode *parse_and(struct jparse *p)
{
    struct jnode *left = parse_not(p);
    while (left && jparse_skip_name(p, "and"))
        left = node2(p, JN_AND, 0, left, parse_not(p), left->line);
    return left;
}

static struct jnode *parse_or(struct jparse *p)
{
    struct jnode *left = parse_and(p);
    while (left && jparse_skip_name(p, "or"))
        left = node2(p, JN_OR, 0, left, parse_and(p), left->line);
    return left;
}

struct jnode *jparse_expression(struct jparse *p, bool with_cond)
{
    if (!jparse_enter(p))
        return NULL;
    uint32_t line = jparse_now(p)->line;
    struct jnode *n = parse_or(p);
    while (n && with_cond && jparse_skip_name(p, "if")) {
        struct jnode *test = parse_or(p), *other = NULL;
        if (test && jparse_skip_name(p, "else"))
            other = jparse_expression(p, true);
        struct jnode *cond = p->rc ? NULL : node2(p, JN_COND, 0, test, n, line);
        if (!cond)
            break;
        cond->c = other;
        if (other)
            jnode_adopt(p, cond, other);
        line = jparse_now(p)->line;
        n = cond;
    }
    jparse_leave(p);
    return p->rc ? NULL : n;
}

static bool tuple_end(const struct jparse *p, const char *end_name)
{
    enum jtok t = jparse_now(p)->type;
    return t == JTOK_VAR_END || t == JTOK_BLOCK_END || t == JTOK_RPAREN || (end_name && jparse_is_name(p, end_name));
}

/* `simple`: names and literals only, as in assignment targets */
static struct jnode *parse_items(struct jparse *p, bool simple, bool with_cond, const char *end_name, bool parens, bool with_ns)
{
    struct jnode *tuple = jnode_new(p, JN_TUPLE, jparse_now(p)->line);
    bool is_tuple = false;
    while (tuple && !p->rc) {
        if (tuple->list.n && !jparse_expect(p, JTOK_COMMA))
            return NULL;
        if (tuple_end(p, end_name))
            break;
        struct jnode *item = simple ? parse_primary(p, with_ns) : jparse_expression(p, with_cond);
        if (!item)
            return NULL;
        jnodes_push(p, &tuple->list, item);
        jnode_adopt(p, tuple, item);
        if (jparse_now(p)->type != JTOK_COMMA)
            break;
        is_tuple = true;
    }
    if (p->rc || !tuple)
        return NULL;
    if (!is_tuple && tuple->list.n)
        return tuple->list.v[0];
    if (!is_tuple && !parens) {
        struct str got = jparse_now(p)->text;
        jparse_fail(p, jparse_now(p)->line, "Expected an expression, got '%.*s'", STR_ARG(got));
        return NULL;
    }
    return tuple;
}

struct jnode *jparse_tuple(struct jparse *p, bool with_cond, const char *end_name, bool parens)
{
    return parse_items(p, false, with_cond, end_name, parens, false);
}

static bool can_assign(struct jparse *p, const struct jnode *n)
{
    static const char *const names[] = {[JN_CONST] = "const", [JN_LIST] = "list", [JN_DICT] = "dict"};
    if (n->kind == JN_NAME || n->kind == JN_NSREF)
        return true;
    if (n->kind != JN_TUPLE) {
        const char *what = n->kind == JN_CONST || n->kind == JN_LIST || n->kind == JN_DICT ? names[n->kind] : "expression";
        return jparse_fail(p, n->line, "can't assign to '%s'", what), false;
    }
    for (size_t i = 0; i < n->list.n; i++)
        if (!can_assign(p, n->list.v[i]))
            return false;
    return true;
}

struct jnode *jparse_target(struct jparse *p, const char *end_name, bool with_ns)
{
    struct jnode *n = parse_items(p, true, true, end_name, false, with_ns);
    return n && can_assign(p, n) ? n : NULL;
}

struct jnode *jparse_target_name(struct jparse *p)
{
    const struct jtoken *t = jparse_now(p);
    if (t->type != JTOK_NAME)
        return jparse_expect(p, JTOK_NAME), NULL;
    struct jnode *n = parse_name(p, false);
    return n && can_assign(p, n) ? n : NULL;
}
