/* chat/jinja_percent.c - "..." % values, printf style.
 *
 * Invariants: 1. As in Python: a tuple gives its items in turn, anything else is the one value, a dict also serves %(name)s.
 *             2. Values keep their marks; a Markup format escapes them. */
#include "chat/jinja_int.h"

#include "base/utf8.h"

#include <math.h>

struct percent {
    struct jx *jx;
    struct jsb out;
    struct jstr *fmt;
    size_t at;
    struct jv args;
    size_t used; /* of the tuple, or of the one value */
};

static struct jv next_arg(struct percent *p)
{
    size_t n = p->args.type == JT_TUPLE ? p->args.l->n : 1;
    if (p->used >= n) {
        jx_fail(p->jx, ERR_TEMPLATE, "not enough arguments for format string");
        return JV_NONE;
    }
    p->used++;
    return p->args.type == JT_TUPLE ? p->args.l->v[p->used - 1] : p->args;
}

static char now(const struct percent *p)
{
    return p->at < p->fmt->n ? p->fmt->p[p->at] : 0;
}

/* "(name)": the value of that key; JT_MISSING when there is no name */
static struct jv keyed_arg(struct percent *p)
{
    if (now(p) != '(')
        return JV_MISSING;
    size_t from = ++p->at, depth = 1;
    for (; p->at < p->fmt->n; p->at++) {
        depth += now(p) == '(';
        depth -= now(p) == ')';
        if (!depth)
            break;
    }
    if (depth) {
        jx_fail(p->jx, ERR_TEMPLATE, "incomplete format key");
        return JV_NONE;
    }
    struct str key = str_n(p->fmt->p + from, p->at++ - from);
    if (p->args.type != JT_DICT) {
        jx_fail(p->jx, ERR_TEMPLATE, "format requires a mapping");
        return JV_NONE;
    }
    struct jentry *e = jdict_find_str(p->jx, p->args.d, key);
    if (!e)
        jx_fail(p->jx, ERR_TEMPLATE, "KeyError: '%.*s'", STR_ARG(key));
    return e ? e->value : JV_NONE;
}

static int64_t number_or_star(struct percent *p, int64_t absent)
{
    int64_t n = 0;
    if (now(p) == '*') {
        p->at++;
        jarg_int(p->jx, next_arg(p), &n);
        return n;
    }
    if (now(p) < '0' || now(p) > '9')
        return absent;
    for (; now(p) >= '0' && now(p) <= '9'; p->at++)
        n = n < 100000000 ? n * 10 + (now(p) - '0') : n;
    return n;
}

static void parse_spec(struct percent *p, struct jspec *s)
{
    *s = (struct jspec){.fill = ' ', .width = -1, .prec = -1};
    for (; now(p) && strchr("#0- +", now(p)); p->at++) {
        s->alt |= now(p) == '#';
        s->zero |= now(p) == '0';
        if (now(p) == '-')
            s->align = '<';
        if (now(p) == '+' || (now(p) == ' ' && s->sign != '+'))
            s->sign = now(p);
    }
    s->width = number_or_star(p, -1);
    if (s->width < -1) {
        s->align = '<';
        s->width = -s->width;
    }
    if (now(p) == '.') {
        p->at++;
        s->prec = number_or_star(p, 0);
        s->prec = s->prec < 0 ? 0 : s->prec;
    }
    while (now(p) && strchr("hlL", now(p)))
        p->at++;
    s->type = now(p);
    p->at += p->at < p->fmt->n;
}

static void put_text(struct percent *p, struct jv text, const struct jspec *s)
{
    if (p->jx->rc)
        return;
    if (p->fmt->safe)
        text = jstr_escape(p->jx, text.s);
    if (!p->jx->rc && s->prec >= 0 && (size_t)s->prec < jstr_chars(text.s))
        text = jstr_sub(p->jx, text.s, 0, jstr_byte_of(text.s, (size_t)s->prec));
    if (!p->jx->rc)
        jspec_pad(&p->out, text.s, 0, s, '>');
}

static struct jv repr_text(struct percent *p, struct jv v, bool ascii)
{
    struct jsb b = {.jx = p->jx}, esc = {.jx = p->jx};
    jsb_repr(&b, v, 0);
    if (!ascii)
        return jsb_end(&b);
    for (size_t i = 0; i < b.n && !p->jx->rc;) {
        uint32_t cp;
        size_t n = utf8_decode(str_n(b.p + i, b.n - i), &cp);
        if (cp < 0x80)
            jsb_put(&esc, b.p + i, 1, false);
        else
            jsb_printf(&esc, cp < 0x100 ? "\\x%02x" : cp < 0x10000 ? "\\u%04x" : "\\U%08x", cp);
        i += n;
    }
    return jsb_end(&esc);
}

static void put_char(struct percent *p, struct jv v, struct jspec *s)
{
    int64_t i;
    s->prec = -1;
    if (v.type == JT_STR && jstr_chars(v.s) == 1) {
        put_text(p, v, s);
        return;
    }
    if (!jv_index_int(v, &i) || i < 0 || i > 0x10FFFF || (i >= 0xD800 && i < 0xE000)) {
        jx_fail(p->jx, ERR_TEMPLATE, "%%c requires int or char");
        return;
    }
    struct jsb b = {.jx = p->jx};
    jsb_char(&b, (uint32_t)i, false);
    put_text(p, jsb_end(&b), s);
}

static void put_number(struct percent *p, struct jv v, struct jspec *s)
{
    bool whole = strchr("diuoxX", s->type) != NULL, hex = strchr("oxX", s->type) != NULL;
    double f;
    if (v.type == JT_UNDEF) {
        jundef_raise(p->jx, v);
        return;
    }
    if (!jv_number(v, &f) || (hex && v.type == JT_FLOAT)) {
        jx_fail(p->jx, ERR_TEMPLATE, "%%%c format: %s is required, not %s", s->type, hex ? "an integer" : "a real number",
                jv_type_name(v));
        return;
    }
    if (whole && v.type == JT_FLOAT) {
        if (!(f > -0x1p63 && f < 0x1p63)) {
            jx_fail(p->jx, ERR_TEMPLATE, "whole numbers beyond 64 bits are not supported");
            return;
        }
        v = JV_INT((int64_t)f);
    }
    if (s->type == 'i' || s->type == 'u')
        s->type = 'd';
    jspec_number(&p->out, v, s);
}

static void convert(struct percent *p)
{
    struct jspec s;
    struct jv v = keyed_arg(p);
    if (p->jx->rc)
        return;
    parse_spec(p, &s);
    if (s.type == '%') {
        jsb_z(&p->out, "%");
        return;
    }
    if (!s.type) {
        jx_fail(p->jx, ERR_TEMPLATE, "incomplete format");
        return;
    }
    if (v.type == JT_MISSING)
        v = next_arg(p);
    if (p->jx->rc)
        return;
    if (s.type == 's')
        put_text(p, jv_soft_str(p->jx, v), &s);
    else if (s.type == 'r' || s.type == 'a')
        put_text(p, repr_text(p, v, s.type == 'a'), &s);
    else if (s.type == 'c')
        put_char(p, v, &s);
    else if (strchr("diuoxXeEfFgG", s.type))
        put_number(p, v, &s);
    else
        jx_fail(p->jx, ERR_TEMPLATE, "unsupported format character '%c'", s.type);
}

struct jv jformat_percent(struct jx *jx, struct jstr *fmt, struct jv args)
{
    struct percent p = {.jx = jx, .out = {.jx = jx}, .fmt = fmt, .args = args};
    while (p.at < fmt->n && !jx->rc && jx_step(jx, 1)) {
        size_t hit = str_find(str_n(fmt->p + p.at, fmt->n - p.at), STR("%"));
        size_t to = hit == SIZE_MAX ? fmt->n : p.at + hit;
        jsb_sub(&p.out, fmt, p.at, to);
        p.at = to + 1;
        if (to < fmt->n)
            convert(&p);
    }
    size_t given = args.type == JT_TUPLE ? args.l->n : 1;
    bool mapping = args.type == JT_DICT || args.type == JT_LIST || args.type == JT_UNDEF || args.type == JT_RANGE;
    if (p.used < given && !mapping)
        jx_fail(jx, ERR_TEMPLATE, "not all arguments converted during string formatting");
    struct jv v = jsb_end(&p.out);
    if (v.type == JT_STR)
        v.s->safe = fmt->safe;
    return v;
}
