/* chat/jinja_op.c - operators, with Python's rules and Python's complaints.
 *
 * Invariants: 1. Whole numbers have 64 bits; what would not fit is an error, never a wrong number.
 *             2. A Markup string (safe, escape) escapes what is added to it, as markupsafe does. */
#include "chat/jinja_int.h"

#include <math.h>

static const char *op_text(enum jtok op)
{
    switch (op) {
    case JTOK_ADD:
        return "+";
    case JTOK_SUB:
        return "-";
    case JTOK_MUL:
        return "*";
    case JTOK_DIV:
        return "/";
    case JTOK_FLOORDIV:
        return "//";
    case JTOK_MOD:
        return "%";
    default:
        return "** or pow()";
    }
}

static struct jv unsupported(struct jx *jx, enum jtok op, struct jv a, struct jv b)
{
    if (a.type == JT_UNDEF || b.type == JT_UNDEF)
        return jundef_raise(jx, a.type == JT_UNDEF ? a : b);
    if (op == JTOK_ADD && (a.type == JT_STR || a.type == JT_LIST || a.type == JT_TUPLE))
        jx_fail(jx, ERR_TEMPLATE, "can only concatenate %s (not \"%s\") to %s", jv_type_name(a), jv_type_name(b),
                jv_type_name(a));
    else
        jx_fail(jx, ERR_TEMPLATE, "unsupported operand type(s) for %s: '%s' and '%s'", op_text(op), jv_type_name(a),
                jv_type_name(b));
    return JV_NONE;
}

static struct jv too_big(struct jx *jx)
{
    jx_fail(jx, ERR_TEMPLATE, "whole numbers beyond 64 bits are not supported");
    return JV_NONE;
}

static struct jv zero_division(struct jx *jx)
{
    jx_fail(jx, ERR_TEMPLATE, "division by zero");
    return JV_NONE;
}

/* ---- numbers -------------------------------------------------------------------------------------------------------------- */

static double float_mod(double x, double y)
{
    double m = fmod(x, y);
    if (m == 0)
        return copysign(0.0, y);
    return (m < 0) != (y < 0) ? m + y : m;
}

static double float_floordiv(double x, double y)
{
    double m = fmod(x, y), d = (x - m) / y;
    if (m != 0 && (y < 0) != (m < 0))
        d -= 1;
    if (d == 0)
        return copysign(0.0, x / y);
    double f = floor(d);
    return d - f > 0.5 ? f + 1 : f;
}

static struct jv float_pow(struct jx *jx, double x, double y)
{
    if (x == 0 && y < 0) {
        jx_fail(jx, ERR_TEMPLATE, "0.0 cannot be raised to a negative power");
        return JV_NONE;
    }
    if (x < 0 && y != floor(y)) {
        jx_fail(jx, ERR_TEMPLATE, "complex numbers are not supported: a negative number to a fractional power");
        return JV_NONE;
    }
    return JV_FLOAT(pow(x, y));
}

static struct jv float_op(struct jx *jx, enum jtok op, double x, double y)
{
    if (y == 0 && (op == JTOK_DIV || op == JTOK_FLOORDIV || op == JTOK_MOD))
        return zero_division(jx);
    switch (op) {
    case JTOK_ADD:
        return JV_FLOAT(x + y);
    case JTOK_SUB:
        return JV_FLOAT(x - y);
    case JTOK_MUL:
        return JV_FLOAT(x * y);
    case JTOK_DIV:
        return JV_FLOAT(x / y);
    case JTOK_FLOORDIV:
        return JV_FLOAT(float_floordiv(x, y));
    case JTOK_MOD:
        return JV_FLOAT(float_mod(x, y));
    default:
        return float_pow(jx, x, y);
    }
}

static struct jv int_pow(struct jx *jx, int64_t x, int64_t y)
{
    int64_t r = 1;
    if (y < 0)
        return float_pow(jx, (double)x, (double)y);
    if (x == 0 || x == 1 || x == -1)
        return JV_INT(y == 0 ? 1 : x == -1 && y % 2 == 0 ? 1 : x);
    for (; y > 0; y--)
        if (__builtin_mul_overflow(r, x, &r))
            return too_big(jx);
    return JV_INT(r);
}

static struct jv int_op(struct jx *jx, enum jtok op, int64_t x, int64_t y)
{
    int64_t r = 0;
    bool over = false;
    if (y == 0 && (op == JTOK_DIV || op == JTOK_FLOORDIV || op == JTOK_MOD))
        return zero_division(jx);
    switch (op) {
    case JTOK_ADD:
        over = __builtin_add_overflow(x, y, &r);
        break;
    case JTOK_SUB:
        over = __builtin_sub_overflow(x, y, &r);
        break;
    case JTOK_MUL:
        over = __builtin_mul_overflow(x, y, &r);
        break;
    case JTOK_DIV:
        return JV_FLOAT((double)x / (double)y);
    case JTOK_FLOORDIV:
        over = x == INT64_MIN && y == -1;
        r = over ? 0 : x / y - ((x % y != 0) && ((x < 0) != (y < 0)));
        break;
    case JTOK_MOD:
        r = y == -1 ? 0 : x % y;
        if (r != 0 && (r < 0) != (y < 0))
            r += y;
        break;
    default:
        return int_pow(jx, x, y);
    }
    return over ? too_big(jx) : JV_INT(r);
}

/* ---- sequences ------------------------------------------------------------------------------------------------------------ */

struct jv jop_concat(struct jx *jx, struct jv a, struct jv b)
{
    bool safe = a.s->safe || b.s->safe;
    if (safe) {
        a = jstr_escape(jx, a.s);
        b = jstr_escape(jx, b.s);
        if (jx->rc)
            return JV_NONE;
    }
    struct jv v = jstr_cat(jx, a.s, b.s);
    if (v.type == JT_STR)
        v.s->safe = safe;
    return v;
}

static struct jv lists_add(struct jx *jx, struct jv a, struct jv b)
{
    if (!jx_step(jx, a.l->n + b.l->n))
        return JV_NONE;
    struct jlist *l = jlist_new(jx, a.l->n + b.l->n);
    if (!l)
        return JV_NONE;
    if (a.l->n)
        memcpy(l->v, a.l->v, a.l->n * sizeof *l->v);
    if (b.l->n)
        memcpy(l->v + a.l->n, b.l->v, b.l->n * sizeof *l->v);
    l->n = a.l->n + b.l->n;
    return jlist_value(l, (enum jtype)a.type);
}

static struct jv repeat(struct jx *jx, struct jv v, int64_t times)
{
    uint64_t n = times > 0 ? (uint64_t)times : 0;
    if (v.type == JT_STR) {
        struct jsb b = {.jx = jx};
        if (v.s->n && n > jx->text_max / v.s->n)
            jx_fail(jx, ERR_LIMIT, "text longer than the limit of %zu bytes", jx->text_max);
        else if (jx_step(jx, v.s->n ? n : 0))
            jsb_fill(&b, v.s, n);
        struct jv r = jsb_end(&b);
        if (r.type == JT_STR)
            r.s->safe = v.s->safe;
        return r;
    }
    struct jlist *l = jlist_new(jx, 0);
    for (uint64_t i = 0; v.l->n && i < n && jx_step(jx, v.l->n); i++)
        for (size_t k = 0; k < v.l->n; k++)
            jlist_push(jx, l, v.l->v[k]);
    return jx->rc ? JV_NONE : jlist_value(l, (enum jtype)v.type);
}

static bool is_sequence(struct jv v)
{
    return v.type == JT_STR || v.type == JT_LIST || v.type == JT_TUPLE;
}

struct jv jop_binary(struct jx *jx, enum jtok op, struct jv a, struct jv b)
{
    int64_t i, j;
    double x, y;
    if (jv_index_int(a, &i) && jv_index_int(b, &j))
        return int_op(jx, op, i, j);
    if (jv_number(a, &x) && jv_number(b, &y)) {
        if ((a.type != JT_FLOAT && b.type != JT_FLOAT))
            return too_big(jx); /* one of them has all 64 bits */
        return float_op(jx, op, x, y);
    }
    if (op == JTOK_ADD && a.type == b.type && a.type == JT_STR)
        return jop_concat(jx, a, b);
    if (op == JTOK_ADD && a.type == b.type && is_sequence(a))
        return lists_add(jx, a, b);
    if (op == JTOK_MUL && is_sequence(a) && jv_index_int(b, &j))
        return repeat(jx, a, j);
    if (op == JTOK_MUL && is_sequence(b) && jv_index_int(a, &i))
        return repeat(jx, b, i);
    if (op == JTOK_MOD && a.type == JT_STR)
        return jformat_percent(jx, a.s, b);
    return unsupported(jx, op, a, b);
}

struct jv jop_unary(struct jx *jx, bool negate, struct jv v)
{
    int64_t i;
    if (v.type == JT_FLOAT)
        return JV_FLOAT(negate ? -v.f : v.f);
    if (jv_index_int(v, &i))
        return negate && i == INT64_MIN ? too_big(jx) : JV_INT(negate ? -i : i);
    if (v.type == JT_INT)
        return negate ? too_big(jx) : v;
    if (v.type == JT_UNDEF)
        return jundef_raise(jx, v);
    jx_fail(jx, ERR_TEMPLATE, "bad operand type for unary %s: '%s'", negate ? "-" : "+", jv_type_name(v));
    return JV_NONE;
}

bool jop_compare(struct jx *jx, enum jcmp op, struct jv a, struct jv b)
{
    int order;
    switch (op) {
    case JCMP_EQ:
        return jv_equal(jx, a, b);
    case JCMP_NE:
        return !jv_equal(jx, a, b);
    case JCMP_IN:
        return jv_contains(jx, b, a);
    case JCMP_NOT_IN:
        return !jv_contains(jx, b, a);
    case JCMP_LT:
        return jv_compare(jx, a, b, "<") == -1;
    case JCMP_GT:
        return jv_compare(jx, a, b, ">") == 1;
    case JCMP_LE:
        order = jv_compare(jx, a, b, "<=");
        return order == -1 || order == 0;
    default:
        order = jv_compare(jx, a, b, ">=");
        return order == 1 || order == 0;
    }
}
