/* chat/jinja_format.c - "...".format(values), braces style.
 *
 * Invariants: fields reach attributes and items through the sandbox's own look-up; nesting in a specification goes one level. */
#include "chat/jinja_int.h"

#include "base/utf8.h"

struct braces {
    struct jx *jx;
    const struct jargs *args;
    struct jstr *fmt;
    int64_t next; /* automatic numbering; -1: the fields are numbered by hand */
    bool safe;
};

static void format_text(struct braces *f, struct jsb *out, size_t from, size_t to, unsigned depth);

/* ---- specification -------------------------------------------------------------------------------------------------------- */

static bool is_align(uint32_t cp)
{
    return cp == '<' || cp == '>' || cp == '=' || cp == '^';
}

static int64_t spec_int(struct str *s, int64_t absent)
{
    int64_t n = 0;
    size_t i = 0;
    for (; i < s->n && s->p[i] >= '0' && s->p[i] <= '9'; i++)
        n = n < 100000000 ? n * 10 + (s->p[i] - '0') : n;
    *s = str_from(*s, i);
    return i ? n : absent;
}

static bool take(struct str *s, const char *set, char *out)
{
    if (!s->n || !s->p[0] || !strchr(set, s->p[0]))
        return false;
    *out = s->p[0];
    *s = str_from(*s, 1);
    return true;
}

static bool parse_spec(struct jx *jx, struct str s, struct jspec *out)
{
    uint32_t cp = 0;
    char c;
    *out = (struct jspec){.fill = ' ', .width = -1, .prec = -1};
    size_t n = s.n ? utf8_decode(s, &cp) : 0;
    bool filled = n && n < s.n && is_align((unsigned char)s.p[n]);
    if (filled) {
        out->fill = cp;
        out->align = s.p[n];
        s = str_from(s, n + 1);
    } else {
        take(&s, "<>=^", &out->align);
    }
    take(&s, "+- ", &out->sign);
    out->alt = take(&s, "#", &c);
    out->zero = take(&s, "0", &c);
    if (out->zero && !filled)
        out->fill = '0';
    out->width = spec_int(&s, -1);
    take(&s, ",_", &out->group);
    if (take(&s, ".", &c) && (out->prec = spec_int(&s, -1)) < 0) {
        jx_fail(jx, ERR_TEMPLATE, "Format specifier missing precision");
        return false;
    }
    if (s.n > 1) {
        jx_fail(jx, ERR_TEMPLATE, "Invalid format specifier");
        return false;
    }
    out->type = s.n ? s.p[0] : 0;
    return true;
}

static void bad_code(struct jx *jx, char type, struct jv v)
{
    jx_fail(jx, ERR_TEMPLATE, "Unknown format code '%c' for object of type '%s'", type, jv_type_name(v));
}

static void put_str(struct jsb *b, struct jv v, struct jspec *s)
{
    if (s->type && s->type != 's') {
        bad_code(b->jx, s->type, v);
        return;
    }
    if (s->sign || s->align == '=' || s->group)
        jx_fail(b->jx, ERR_TEMPLATE, "Sign, '=' and grouping are not allowed in a string format specifier");
    if (!b->jx->rc && s->prec >= 0 && (size_t)s->prec < jstr_chars(v.s))
        v = jstr_sub(b->jx, v.s, 0, jstr_byte_of(v.s, (size_t)s->prec));
    if (!b->jx->rc)
        jspec_pad(b, v.s, 0, s, '<');
}

static void put_num(struct jsb *b, struct jv v, struct jspec *s)
{
    const char *codes = v.type == JT_FLOAT ? "eEfFgGn%" : "bcdoxXneEfFgG%";
    int64_t i;
    if (s->type && !strchr(codes, s->type)) {
        bad_code(b->jx, s->type, v);
        return;
    }
    if (v.type != JT_FLOAT && s->prec >= 0 && !(s->type && strchr("eEfFgG%", s->type))) {
        jx_fail(b->jx, ERR_TEMPLATE, "Precision not allowed in integer format specifier");
        return;
    }
    if (s->type == 'c' && jv_index_int(v, &i) && i >= 0 && i <= 0x10FFFF && !(i >= 0xD800 && i < 0xE000)) {
        struct jsb c = {.jx = b->jx};
        jsb_char(&c, (uint32_t)i, false);
        struct jv text = jsb_end(&c);
        if (text.type == JT_STR)
            jspec_pad(b, text.s, 0, s, '<');
        return;
    }
    if (s->type == 'n' && v.type != JT_FLOAT)
        s->type = 'd';
    jspec_number(b, v, s);
}

/* format(v, spec) */
static void put_value(struct jsb *b, struct jv v, struct str spec)
{
    struct jspec s;
    if (!spec.n) {
        jsb_value(b, v);
        return;
    }
    double d;
    bool number = jv_number(v, &d);
    if (v.type != JT_STR && !number) {
        jx_fail(b->jx, ERR_TEMPLATE, "unsupported format string passed to %s.__format__", jv_type_name(v));
        return;
    }
    if (!parse_spec(b->jx, spec, &s))
        return;
    if (number)
        put_num(b, v, &s);
    else
        put_str(b, v, &s);
}

/* ---- fields --------------------------------------------------------------------------------------------------------------- */

static bool digits_only(struct str s)
{
    for (size_t i = 0; i < s.n; i++)
        if (s.p[i] < '0' || s.p[i] > '9')
            return false;
    return s.n > 0;
}

static struct jv positional(struct braces *f, int64_t at)
{
    if (at >= 0 && (size_t)at < f->args->n)
        return f->args->v[at];
    jx_fail(f->jx, ERR_TEMPLATE, "Replacement index %lld out of range for positional args tuple", (long long)at);
    return JV_NONE;
}

static struct jv first_part(struct braces *f, struct str name)
{
    int64_t at = 0;
    if (!name.n || digits_only(name)) {
        if (!name.n && f->next < 0)
            jx_fail(f->jx, ERR_TEMPLATE, "cannot switch from manual field specification to automatic field numbering");
        else if (name.n && f->next > 0)
            jx_fail(f->jx, ERR_TEMPLATE, "cannot switch from automatic field numbering to manual field specification");
        if (name.n && !str_to_i64(name, &at))
            at = INT64_MAX;
        if (name.n)
            f->next = -1;
        else
            at = f->next++;
        return f->jx->rc ? JV_NONE : positional(f, at);
    }
    for (size_t i = 0; i < f->args->kw_count; i++)
        if (str_eq(f->args->kw[i].key, name))
            return f->args->kw[i].value;
    jx_fail(f->jx, ERR_TEMPLATE, "KeyError: '%.*s'", STR_ARG(name));
    return JV_NONE;
}

static size_t part_end(struct str s, size_t at)
{
    while (at < s.n && s.p[at] != '.' && s.p[at] != '[')
        at++;
    return at;
}

/* name(.attr | [item])* */
static struct jv field_value(struct braces *f, struct str name)
{
    size_t at = part_end(name, 0);
    struct jv v = first_part(f, str_n(name.p, at));
    while (at < name.n && !f->jx->rc) {
        size_t from = at + 1, to;
        if (name.p[at] == '.') {
            to = part_end(name, from);
            v = jattr_get(f->jx, v, str_n(name.p + from, to - from));
            at = to;
            continue;
        }
        for (to = from; to < name.n && name.p[to] != ']';)
            to++;
        struct str key = str_n(name.p + from, to - from);
        int64_t i;
        if (to == name.n || !key.n) {
            jx_fail(f->jx, ERR_TEMPLATE, "Missing ']' or empty attribute in format string");
            return JV_NONE;
        }
        bool number = digits_only(key) && str_to_i64(key, &i);
        struct jv k = number ? JV_INT(i) : jstr_new(f->jx, key, false);
        v = f->jx->rc ? JV_NONE : jattr_item(f->jx, v, k);
        at = to + 1;
    }
    return v;
}

/* the end of the field that starts after "{": its "}", braces and brackets counted */
static size_t field_end(const struct jstr *s, size_t at, size_t to)
{
    unsigned depth = 1;
    for (; at < to; at++) {
        depth += s->p[at] == '{';
        if (s->p[at] == '}' && --depth == 0)
            return at;
    }
    return to;
}

static void put_field(struct braces *f, struct jsb *out, size_t from, size_t to, unsigned depth)
{
    size_t name_end = from;
    bool bracket = false;
    char conv = 0;
    for (; name_end < to; name_end++) {
        char c = f->fmt->p[name_end];
        bracket = c == '[' ? true : c == ']' ? false : bracket;
        if (!bracket && (c == '!' || c == ':'))
            break;
    }
    struct jv v = field_value(f, str_n(f->fmt->p + from, name_end - from));
    if (name_end < to && f->fmt->p[name_end] == '!') {
        conv = name_end + 1 < to ? f->fmt->p[name_end + 1] : 0;
        name_end += 2;
        if (!conv || !strchr("rsa", conv) || (name_end < to && f->fmt->p[name_end] != ':'))
            jx_fail(f->jx, ERR_TEMPLATE, "expected ':' after conversion specifier");
    }
    struct jsb spec = {.jx = f->jx}, field = {.jx = f->jx}, repr = {.jx = f->jx};
    if (name_end < to)
        format_text(f, &spec, name_end + 1, to, depth + 1);
    if (f->jx->rc)
        return;
    if (conv == 's')
        v = jv_soft_str(f->jx, v);
    if (conv == 'r' || conv == 'a') { /* !a differs from !r only outside ASCII */
        jsb_repr(&repr, v, 0);
        v = jsb_end(&repr);
    }
    if (!f->jx->rc)
        put_value(&field, v, str_n(spec.p ? spec.p : "", spec.n));
    struct jv text = jsb_end(&field);
    if (f->jx->rc)
        return;
    if (f->safe && !(v.type == JT_STR && v.s->safe))
        jsb_escape(out, text.s);
    else
        jsb_str(out, text.s);
}

static void format_text(struct braces *f, struct jsb *out, size_t from, size_t to, unsigned depth)
{
    const char *p = f->fmt->p;
    size_t start = from;
    if (depth > 2)
        jx_fail(f->jx, ERR_TEMPLATE, "Max string recursion exceeded");
    for (size_t i = from; i < to && !f->jx->rc && jx_step(f->jx, 1);) {
        if (p[i] != '{' && p[i] != '}') {
            i++;
            continue;
        }
        jsb_sub(out, f->fmt, start, i);
        if (i + 1 < to && p[i + 1] == p[i]) {
            jsb_sub(out, f->fmt, i, i + 1);
            start = i += 2;
            continue;
        }
        size_t end = p[i] == '{' ? field_end(f->fmt, i + 1, to) : to;
        if (end == to)
            jx_fail(f->jx, ERR_TEMPLATE,
                    p[i] == '{' ? "expected '}' before end of string" : "Single '}' encountered in format string");
        else
            put_field(f, out, i + 1, end, depth);
        start = i = end + 1;
    }
    if (!f->jx->rc && start < to)
        jsb_sub(out, f->fmt, start, to);
}

struct jv jformat_braces(struct jx *jx, struct jstr *fmt, const struct jargs *args)
{
    struct braces f = {.jx = jx, .args = args, .fmt = fmt, .safe = fmt->safe};
    struct jsb out = {.jx = jx};
    format_text(&f, &out, 0, fmt->n, 0);
    return jsb_end(&out);
}
