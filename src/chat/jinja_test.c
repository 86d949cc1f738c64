/* chat/jinja_test.c - the tests behind `is`, with the table of their names. */
#include "chat/jinja_int.h"

enum test {
    T_DEFINED,
    T_UNDEFINED,
    T_NONE,
    T_BOOLEAN,
    T_TRUE,
    T_FALSE,
    T_INTEGER,
    T_FLOAT,
    T_NUMBER,
    T_STRING,
    T_MAPPING,
    T_SEQUENCE,
    T_ITERABLE,
    T_CALLABLE,
    T_ESCAPED,
    T_LOWER,
    T_UPPER,
    T_ODD,
    T_EVEN,
    T_FILTER,
    T_TEST,
    /* from here on with an argument */
    T_DIVISIBLEBY,
    T_IN,
    T_SAMEAS,
    T_EQ,
    T_NE,
    T_GT,
    T_GE,
    T_LT,
    T_LE,
};

static const struct {
    const char *name;
    enum test test;
    const char *param;
} tests[] = {
    {"odd", T_ODD, ""},
    {"even", T_EVEN, ""},
    {"divisibleby", T_DIVISIBLEBY, "num"},
    {"defined", T_DEFINED, ""},
    {"undefined", T_UNDEFINED, ""},
    {"filter", T_FILTER, ""},
    {"test", T_TEST, ""},
    {"none", T_NONE, ""},
    {"boolean", T_BOOLEAN, ""},
    {"false", T_FALSE, ""},
    {"true", T_TRUE, ""},
    {"integer", T_INTEGER, ""},
    {"float", T_FLOAT, ""},
    {"lower", T_LOWER, ""},
    {"upper", T_UPPER, ""},
    {"string", T_STRING, ""},
    {"mapping", T_MAPPING, ""},
    {"number", T_NUMBER, ""},
    {"sequence", T_SEQUENCE, ""},
    {"iterable", T_ITERABLE, ""},
    {"callable", T_CALLABLE, ""},
    {"sameas", T_SAMEAS, "other"},
    {"escaped", T_ESCAPED, ""},
    {"in", T_IN, "seq"},
    {"==", T_EQ, "/"},
    {"eq", T_EQ, "/"},
    {"equalto", T_EQ, "/"},
    {"!=", T_NE, "/"},
    {"ne", T_NE, "/"},
    {">", T_GT, "/"},
    {"gt", T_GT, "/"},
    {"greaterthan", T_GT, "/"},
    {"ge", T_GE, "/"},
    {">=", T_GE, "/"},
    {"<", T_LT, "/"},
    {"lt", T_LT, "/"},
    {"lessthan", T_LT, "/"},
    {"<=", T_LE, "/"},
    {"le", T_LE, "/"},
};

int jtest_find(struct str name)
{
    for (size_t i = 0; i < sizeof tests / sizeof *tests; i++)
        if (str_is(name, tests[i].name))
            return (int)i;
    return -1;
}

static bool is_sequence(struct jv v)
{
    return v.type == JT_STR || v.type == JT_LIST || v.type == JT_TUPLE || v.type == JT_DICT || v.type == JT_RANGE ||
           v.type == JT_UNDEF;
}

static bool is_callable(struct jv v)
{
    return v.type == JT_MACRO || v.type == JT_METHOD || v.type == JT_GLOBAL || v.type == JT_JOINER || v.type == JT_LOOP ||
           v.type == JT_UNDEF;
}

static bool remainder_is(struct jx *jx, struct jv v, struct jv by, int64_t want)
{
    struct jv r = jop_binary(jx, JTOK_MOD, v, by);
    return !jx->rc && jv_equal(jx, r, JV_INT(want));
}

/* str.islower / str.isupper of the value's text */
static bool has_case(struct jx *jx, struct jv v, const char *method)
{
    struct jargs none = {0};
    v = jv_str(jx, v);
    if (jx->rc)
        return false;
    v = jcall_row(jx, &jmethod_find(JT_STR, str_of(method))->f, v, &none);
    return !jx->rc && v.b;
}

static bool named(struct jx *jx, struct jv v, int (*find)(struct str name))
{
    uint64_t hash;
    if (v.type == JT_STR)
        return find(jstr_text(v.s)) >= 0;
    if (!jv_hash(jx, v, &hash))
        jx_fail(jx, ERR_TEMPLATE, "unhashable type: '%s'", jv_type_name(v));
    return false;
}

static bool same_object(struct jx *jx, struct jv a, struct jv b)
{
    if (a.type != b.type)
        return false;
    if (a.type == JT_NONE || a.type == JT_BOOL || a.type == JT_INT || a.type == JT_FLOAT)
        return jv_equal(jx, a, b);
    if (a.type == JT_GLOBAL)
        return a.sub == b.sub;
    return a.s == b.s;
}

static bool test_two(struct jx *jx, enum test t, struct jv v, struct jv arg)
{
    static const enum jcmp op[] = {
        [T_EQ] = JCMP_EQ, [T_NE] = JCMP_NE, [T_GT] = JCMP_GT, [T_GE] = JCMP_GE, [T_LT] = JCMP_LT, [T_LE] = JCMP_LE};
    switch (t) {
    case T_DIVISIBLEBY:
        return remainder_is(jx, v, arg, 0);
    case T_IN:
        return jv_contains(jx, arg, v);
    case T_SAMEAS:
        return same_object(jx, v, arg);
    default:
        return jop_compare(jx, op[t], v, arg);
    }
}

static bool test_one(struct jx *jx, enum test t, struct jv v)
{
    double d;
    switch (t) {
    case T_DEFINED:
        return v.type != JT_UNDEF;
    case T_UNDEFINED:
        return v.type == JT_UNDEF;
    case T_NONE:
        return v.type == JT_NONE;
    case T_BOOLEAN:
        return v.type == JT_BOOL;
    case T_TRUE:
        return v.type == JT_BOOL && v.b;
    case T_FALSE:
        return v.type == JT_BOOL && !v.b;
    case T_INTEGER:
        return v.type == JT_INT;
    case T_FLOAT:
        return v.type == JT_FLOAT;
    case T_NUMBER:
        return jv_number(v, &d);
    case T_STRING:
        return v.type == JT_STR;
    case T_MAPPING:
        return v.type == JT_DICT;
    case T_SEQUENCE:
        return is_sequence(v);
    case T_ITERABLE:
        return is_sequence(v) || v.type == JT_VIEW || v.type == JT_ITER || v.type == JT_LOOP;
    case T_CALLABLE:
        return is_callable(v);
    case T_ESCAPED:
        return v.type == JT_STR && v.s->safe;
    case T_LOWER:
        return has_case(jx, v, "islower");
    case T_UPPER:
        return has_case(jx, v, "isupper");
    case T_ODD:
        return remainder_is(jx, v, JV_INT(2), 1);
    case T_EVEN:
        return remainder_is(jx, v, JV_INT(2), 0);
    case T_FILTER:
        return named(jx, v, jfilter_find);
    default:
        return named(jx, v, jtest_find);
    }
}

bool jtest_call(struct jx *jx, int entry, struct jv self, const struct jargs *args)
{
    enum test t = tests[entry].test;
    size_t want = t >= T_DIVISIBLEBY;
    struct jv arg = args->n ? args->v[0] : JV_NONE;
    if (jx->rc)
        return false;
    if (want && !args->n && args->kw_count == 1 && str_is(args->kw[0].key, tests[entry].param))
        arg = args->kw[0].value;
    else if (args->n != want || args->kw_count)
        jx_fail(jx, ERR_TEMPLATE, "test '%s' takes %zu argument(s) but %zu were given", tests[entry].name, want,
                args->n + args->kw_count);
    if (jx->rc)
        return false;
    bool yes = want ? test_two(jx, t, self, arg) : test_one(jx, t, self);
    return !jx->rc && yes;
}
