/* chat/jinja_text.c - str() and repr() of values, byte for byte Python's.
 *
 * Invariants: 1. A value that came whole from a user gives text marked as the user's, brackets and quotes included; in a list
 *                the template built, only the user's items are marked.
 *             2. Floats are the shortest decimal that reads back the same. */
#include "chat/jinja_int.h"

#include "base/utf8.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

/* ---- numbers -------------------------------------------------------------------------------------------------------------- */

/* Shortest digits of |f| and its decimal exponent: f = 0.d1d2d3... * 10^exp10. */
static size_t shortest_digits(double f, char digits[32], int *exp10)
{
    char text[40];
    for (int prec = 0; prec < 17; prec++) {
        snprintf(text, sizeof text, "%.*e", prec, f);
        if (strtod(text, NULL) == f)
            break;
    }
    char *e = strchr(text, 'e');
    size_t n = 0;
    for (char *c = text; c < e; c++)
        if (*c >= '0' && *c <= '9')
            digits[n++] = *c;
    while (n > 1 && digits[n - 1] == '0')
        n--;
    *exp10 = atoi(e + 1) + 1;
    return n;
}

void jsb_float(struct jsb *b, double f, bool user)
{
    char digits[32], out[64];
    size_t n = 0;
    int e;
    if (isnan(f) || isinf(f)) {
        const char *z = isnan(f) ? "nan" : f < 0 ? "-inf" : "inf";
        jsb_put(b, z, strlen(z), user);
        return;
    }
    if (signbit(f))
        out[n++] = '-';
    size_t count = shortest_digits(fabs(f), digits, &e);
    if (f == 0)
        e = 1;
    if (e > 16 || e < -3) { /* 1e+16, 1e-05 */
        out[n++] = digits[0];
        if (count > 1)
            out[n++] = '.';
        memcpy(out + n, digits + 1, count - 1);
        n += count - 1;
        n += (size_t)snprintf(out + n, sizeof out - n, "e%c%02d", e - 1 < 0 ? '-' : '+', abs(e - 1));
    } else if (e <= 0) {
        out[n++] = '0';
        out[n++] = '.';
        for (int i = e; i < 0; i++)
            out[n++] = '0';
        memcpy(out + n, digits, count);
        n += count;
    } else {
        for (int i = 0; i < e; i++)
            out[n++] = (size_t)i < count ? digits[i] : '0';
        out[n++] = '.';
        if (count > (size_t)e) {
            memcpy(out + n, digits + e, count - (size_t)e);
            n += count - (size_t)e;
        } else {
            out[n++] = '0';
        }
    }
    jsb_put(b, out, n, user);
}

static void put_int(struct jsb *b, struct jv v)
{
    char tmp[32];
    int n = v.big ? snprintf(tmp, sizeof tmp, "%llu", (unsigned long long)(uint64_t)v.i)
                  : snprintf(tmp, sizeof tmp, "%lld", (long long)v.i);
    jsb_put(b, tmp, (size_t)n, v.user);
}

/* ---- repr of strings ------------------------------------------------------------------------------------------------------ */

/* the escape of cp inside quotes, or 0 when it stands for itself */
static size_t repr_escape(uint32_t cp, char quote, char out[12])
{
    if (cp == (uint32_t)quote || cp == '\\') {
        out[0] = '\\';
        out[1] = (char)cp;
        return 2;
    }
    if (cp == '\n' || cp == '\r' || cp == '\t') {
        out[0] = '\\';
        out[1] = cp == '\n' ? 'n' : cp == '\r' ? 'r' : 't';
        return 2;
    }
    if (cp >= 0x20 && cp < 0x7F)
        return 0;
    if (cp >= 0x80 && jchar_is_printable(cp))
        return 0;
    return (size_t)snprintf(out, 12, cp < 0x100 ? "\\x%02x" : cp < 0x10000 ? "\\u%04x" : "\\U%08x", cp);
}

static void repr_str(struct jsb *b, const struct jstr *s, bool user)
{
    bool single = s->n && memchr(s->p, '\'', s->n), dbl = s->n && memchr(s->p, '"', s->n), all = user || jstr_all_user(s);
    char quote = single && !dbl ? '"' : '\'', esc[12];
    if (s->safe)
        jsb_z(b, "Markup(");
    jsb_put(b, &quote, 1, all);
    size_t start = 0, cursor = 0;
    for (size_t i = 0; i < s->n && !b->jx->rc;) {
        uint32_t cp;
        size_t used = utf8_decode(str_from(jstr_text(s), i), &cp), n = repr_escape(cp, quote, esc);
        if (n) {
            jsb_sub(b, s, start, i);
            jsb_put(b, esc, n, jstr_user_at(s, &cursor, i));
            start = i + used;
        }
        i += used;
    }
    jsb_sub(b, s, start, s->n);
    jsb_put(b, &quote, 1, all);
    if (s->safe)
        jsb_z(b, ")");
}

/* ---- repr of the rest ----------------------------------------------------------------------------------------------------- */

static void put_mark(struct jsb *b, const char *z, bool user)
{
    jsb_put(b, z, strlen(z), user);
}

static void repr_any(struct jsb *b, struct jv v, unsigned depth, bool user);

static void repr_list(struct jsb *b, struct jv v, const char *open, const char *close, unsigned depth)
{
    put_mark(b, open, v.user);
    for (size_t i = 0; i < v.l->n && !b->jx->rc; i++) {
        if (i)
            put_mark(b, ", ", v.user);
        repr_any(b, v.l->v[i], depth + 1, v.user);
    }
    if (v.type == JT_TUPLE && v.l->n == 1)
        put_mark(b, ",", v.user);
    put_mark(b, close, v.user);
}

static void repr_dict(struct jsb *b, struct jv v, unsigned depth)
{
    put_mark(b, "{", v.user);
    for (size_t i = 0; i < v.d->n && !b->jx->rc; i++) {
        if (i)
            put_mark(b, ", ", v.user);
        repr_any(b, v.d->e[i].key, depth + 1, v.user);
        put_mark(b, ": ", v.user);
        repr_any(b, v.d->e[i].value, depth + 1, v.user);
    }
    put_mark(b, "}", v.user);
}

static void repr_view(struct jsb *b, struct jv v, unsigned depth)
{
    put_mark(b, jv_type_name(v), v.user);
    put_mark(b, "([", v.user);
    for (size_t i = 0; i < v.d->n && !b->jx->rc; i++) {
        if (i)
            put_mark(b, ", ", v.user);
        repr_any(b, jview_item(b->jx, v.d, (enum jview)v.sub, i), depth + 1, v.user);
    }
    put_mark(b, "])", v.user);
}

static void repr_scalar(struct jsb *b, struct jv v)
{
    switch (v.type) {
    case JT_NONE:
        put_mark(b, "None", v.user);
        break;
    case JT_BOOL:
        put_mark(b, v.b ? "True" : "False", v.user);
        break;
    case JT_INT:
        put_int(b, v);
        break;
    case JT_FLOAT:
        jsb_float(b, v.f, v.user);
        break;
    case JT_UNDEF:
        jsb_z(b, "Undefined");
        break;
    case JT_RANGE:
        jsb_printf(b, "range(%lld, %lld", (long long)v.r->start, (long long)v.r->stop);
        if (v.r->step != 1)
            jsb_printf(b, ", %lld", (long long)v.r->step);
        jsb_z(b, ")");
        break;
    case JT_MACRO:
        jsb_z(b, v.m->is_caller ? "<Macro anonymous" : "<Macro '");
        if (!v.m->is_caller) {
            jsb_put(b, v.m->node->name.p, v.m->node->name.n, false);
            jsb_z(b, "'");
        }
        jsb_z(b, ">");
        break;
    case JT_LOOP:
        jsb_printf(b, "<LoopContext %lld/%lld>", (long long)v.loop->index0 + 1, (long long)jv_len(b->jx, v));
        break;
    default: /* functions, generators: Python prints an address, we do not */
        jsb_printf(b, "<%s object>", jv_type_name(v));
    }
}

static void repr_any(struct jsb *b, struct jv v, unsigned depth, bool user)
{
    v.user |= user;
    if (b->jx->rc || !jx_step(b->jx, 1))
        return;
    if (depth > JX_VALUE_DEPTH_MAX) {
        jx_fail(b->jx, ERR_LIMIT, "values nested deeper than %d", JX_VALUE_DEPTH_MAX);
        return;
    }
    switch (v.type) {
    case JT_STR:
        repr_str(b, v.s, v.user);
        break;
    case JT_LIST:
        repr_list(b, v, "[", "]", depth);
        break;
    case JT_TUPLE:
        repr_list(b, v, "(", ")", depth);
        break;
    case JT_DICT:
        repr_dict(b, v, depth);
        break;
    case JT_NS:
        jsb_z(b, "<Namespace ");
        repr_dict(b, v, depth);
        jsb_z(b, ">");
        break;
    case JT_VIEW:
        repr_view(b, v, depth);
        break;
    default:
        repr_scalar(b, v);
    }
}

void jsb_repr(struct jsb *b, struct jv v, unsigned depth)
{
    repr_any(b, v, depth, false);
}

void jsb_value(struct jsb *b, struct jv v)
{
    if (v.type == JT_STR)
        jsb_str(b, v.s);
    else if (v.type != JT_UNDEF)
        jsb_repr(b, v, 0);
}

struct jv jv_soft_str(struct jx *jx, struct jv v)
{
    if (v.type == JT_STR)
        return v;
    struct jsb b = {.jx = jx};
    jsb_value(&b, v);
    return jsb_end(&b);
}

struct jv jv_str(struct jx *jx, struct jv v)
{
    v = jv_soft_str(jx, v);
    return v.type == JT_STR ? jstr_as_safe(jx, v.s, false) : v;
}

struct str jv_repr_short(struct jx *jx, struct jv v)
{
    struct jsb b = {.jx = jx};
    jsb_repr(&b, v, 0);
    return jx->rc ? STR("?") : str_n(b.p ? b.p : "", b.n < 200 ? b.n : 200);
}
