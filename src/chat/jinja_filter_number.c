/* chat/jinja_filter_number.c - filters that make numbers, and int() and float() of text as Python reads it.
 *
 * Invariants: text with digits outside ASCII is not read as a number (Python would); everything else is. */
#include "chat/jinja_filters.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

/* ---- reading -------------------------------------------------------------------------------------------------------------- */

static int digit(char c)
{
    return c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'z' ? c - 'a' + 10 : c >= 'A' && c <= 'Z' ? c - 'A' + 10 : 99;
}

/* the base a prefix names, 0 = none */
static int64_t prefix_base(struct str s)
{
    char c = s.n > 2 && s.p[0] == '0' ? (char)(s.p[1] | 0x20) : 0;
    return c == 'x' ? 16 : c == 'o' ? 8 : c == 'b' ? 2 : 0;
}

/* int(text, base): false = ValueError; *over: does not fit 64 bits */
static bool int_parse(struct str s, int64_t base, int64_t *out, bool *over)
{
    bool neg, under = true, any = false;
    uint64_t v = 0;
    *over = false;
    s = jstr_strip(s, true, true);
    neg = s.n && s.p[0] == '-';
    if (s.n && (s.p[0] == '-' || s.p[0] == '+'))
        s = str_from(s, 1);
    int64_t named = prefix_base(s);
    if (named && (base == named || base == 0)) {
        s = str_from(s, 2);
        base = named;
        under = false; /* 0x_1 is allowed */
    } else if (base == 0) {
        base = 10;
        if (s.n > 1 && s.p[0] == '0')
            for (size_t i = 0; i < s.n; i++)
                if (s.p[i] != '0' && s.p[i] != '_')
                    return false;
    }
    if (base < 2 || base > 36)
        return false;
    for (size_t i = 0; i < s.n; i++) {
        if (s.p[i] == '_') {
            if (under)
                return false;
            under = true;
            continue;
        }
        int d = digit(s.p[i]);
        if (d >= base)
            return false;
        *over |= __builtin_mul_overflow(v, (uint64_t)base, &v) || __builtin_add_overflow(v, (uint64_t)d, &v);
        any = true;
        under = false;
    }
    if (!any || under)
        return false;
    *over |= v > (uint64_t)INT64_MAX + neg;
    *out = neg ? (int64_t)(0 - v) : (int64_t)v;
    return true;
}

static bool float_word(struct str s, double *out)
{
    static const struct {
        const char *text;
        double value;
    } words[] = {{"inf", HUGE_VAL}, {"infinity", HUGE_VAL}, {"nan", NAN}};
    bool neg = s.n && s.p[0] == '-';
    if (s.n && (neg || s.p[0] == '+'))
        s = str_from(s, 1);
    for (size_t k = 0; k < 3; k++) {
        if (s.n != strlen(words[k].text))
            continue;
        size_t i = 0;
        while (i < s.n && (s.p[i] | 0x20) == words[k].text[i])
            i++;
        if (i == s.n) {
            *out = neg ? -words[k].value : words[k].value;
            return true;
        }
    }
    return false;
}

/* float(text) */
static bool float_parse(struct jx *jx, struct str s, double *out)
{
    s = jstr_strip(s, true, true);
    if (float_word(s, out))
        return true;
    char *text = jx_alloc(jx, s.n + 1, 1), *end;
    size_t n = 0;
    bool digits = false;
    for (size_t i = 0; text && i < s.n; i++) {
        char c = s.p[i];
        bool dec = c >= '0' && c <= '9';
        if (c == '_' && i && i + 1 < s.n && digit(s.p[i - 1]) < 10 && digit(s.p[i + 1]) < 10)
            continue;
        if (!dec && c != '+' && c != '-' && c != '.' && c != 'e' && c != 'E')
            return false;
        digits |= dec;
        text[n++] = c;
    }
    if (!text || !digits)
        return false;
    *out = strtod(text, &end);
    return end == text + n;
}

/* ---- filters -------------------------------------------------------------------------------------------------------------- */

static struct jv int_of_float(struct jx *jx, double d, struct jv fallback, bool overflow_is_default)
{
    if (isnan(d) || (isinf(d) && overflow_is_default))
        return fallback;
    if (isinf(d))
        jx_fail(jx, ERR_TEMPLATE, "cannot convert float infinity to integer");
    else if (d < -0x1p63 || d >= 0x1p63)
        jx_fail(jx, ERR_TEMPLATE, "whole numbers beyond 64 bits are not supported");
    return jx->rc ? JV_NONE : JV_INT((int64_t)d);
}

JFILTER(int)
{
    struct jv fallback = jv_given(a[0]) ? a[0] : JV_INT(0);
    int64_t base = jarg_int_or(jx, a[1], 10), i;
    bool over;
    double d;
    if (jx->rc)
        return JV_NONE;
    if (v.type == JT_UNDEF)
        return jundef_raise(jx, v);
    if (v.type == JT_FLOAT)
        return int_of_float(jx, v.f, fallback, false);
    if (jv_index_int(v, &i))
        return JV_INT(i);
    if (v.type == JT_INT)
        return v;
    if (v.type != JT_STR)
        return fallback;
    if (int_parse(jstr_text(v.s), base, &i, &over)) {
        if (over)
            jx_fail(jx, ERR_TEMPLATE, "whole numbers beyond 64 bits are not supported");
        return jx->rc ? JV_NONE : JV_INT(i);
    }
    return float_parse(jx, jstr_text(v.s), &d) ? int_of_float(jx, d, fallback, true) : jx->rc ? JV_NONE : fallback;
}

JFILTER(float)
{
    struct jv fallback = jv_given(a[0]) ? a[0] : JV_FLOAT(0);
    double d;
    if (v.type == JT_UNDEF)
        return jundef_raise(jx, v);
    if (jv_number(v, &d) || (v.type == JT_STR && float_parse(jx, jstr_text(v.s), &d)))
        return JV_FLOAT(d);
    return jx->rc ? JV_NONE : fallback;
}

JFILTER(abs)
{
    int64_t i;
    (void)a;
    if (v.type == JT_FLOAT)
        return JV_FLOAT(fabs(v.f));
    if (jv_index_int(v, &i))
        return i < 0 ? jop_unary(jx, true, JV_INT(i)) : JV_INT(i);
    if (v.type == JT_INT)
        return v;
    if (v.type == JT_UNDEF)
        return jundef_raise(jx, v);
    jx_fail(jx, ERR_TEMPLATE, "bad operand type for abs(): '%s'", jv_type_name(v));
    return JV_NONE;
}

/* round(x, ndigits) of a float: the exact binary value, ties to even, as the decimal text of printf does */
static double round_float(double x, int64_t digits)
{
    char text[400 + 32];
    if (!isfinite(x) || digits > 22 + 308)
        return x;
    if (digits >= 0) {
        snprintf(text, sizeof text, "%.*f", (int)(digits < 330 ? digits : 330), x);
        return strtod(text, NULL);
    }
    if (digits < -308)
        return copysign(0.0, x);
    /* left of the point: keep so many significant digits of the exact value */
    int whole = snprintf(text, sizeof text, "%.0f", fabs(trunc(x)));
    int64_t keep = whole + digits;
    if (keep < 0)
        return copysign(0.0, x);
    if (keep == 0) {
        double half = 5;
        for (int64_t i = -1; i > digits; i--)
            half *= 10;
        return copysign(fabs(x) > half ? half * 2 : 0.0, x);
    }
    snprintf(text, sizeof text, "%.*e", (int)keep - 1, x);
    return strtod(text, NULL);
}

static struct jv round_int(struct jx *jx, int64_t i, int64_t digits)
{
    int64_t unit = 1;
    if (digits >= 0)
        return JV_INT(i);
    for (int64_t k = 0; k > digits; k--)
        if (k < -18 || __builtin_mul_overflow(unit, 10, &unit))
            return JV_INT(0);
    int64_t rest = ((i % unit) + unit) % unit, down = 0;
    if (__builtin_sub_overflow(i, rest, &down)) {
        jx_fail(jx, ERR_TEMPLATE, "whole numbers beyond 64 bits are not supported");
        return JV_NONE;
    }
    bool up = rest > unit - rest || (rest == unit - rest && (down / unit) % 2 != 0);
    return up ? jop_binary(jx, JTOK_ADD, JV_INT(down), JV_INT(unit)) : JV_INT(down);
}

static struct jv round_to(struct jx *jx, struct jv v, struct jv digits, bool up)
{
    struct jv scale = jop_binary(jx, JTOK_POW, JV_INT(10), digits);
    struct jv scaled = jx->rc ? JV_NONE : jop_binary(jx, JTOK_MUL, v, scale);
    double d = 0;
    if (jx->rc)
        return JV_NONE;
    if (scaled.type == JT_FLOAT)
        d = up ? ceil(scaled.f) : floor(scaled.f);
    else if (!jv_number(scaled, &d))
        jx_fail(jx, ERR_TEMPLATE, "must be real number, not %s", jv_type_name(scaled));
    if (jx->rc)
        return JV_NONE;
    return jop_binary(jx, JTOK_DIV, JV_FLOAT(d), scale);
}

JFILTER(round)
{
    struct jv digits = jv_given(a[0]) ? a[0] : JV_INT(0);
    struct str method = jv_given(a[1]) && a[1].type == JT_STR ? jstr_text(a[1].s) : STR("common");
    int64_t n, i;
    if (!str_is(method, "common") && !str_is(method, "ceil") && !str_is(method, "floor"))
        jx_fail(jx, ERR_TEMPLATE, "method must be common, ceil or floor");
    if (!jarg_int(jx, digits, &n))
        return JV_NONE;
    if (!str_is(method, "common"))
        return round_to(jx, v, digits, str_is(method, "ceil"));
    if (v.type == JT_FLOAT)
        return JV_FLOAT(round_float(v.f, n));
    if (jv_index_int(v, &i))
        return round_int(jx, i, n);
    jx_fail(jx, ERR_TEMPLATE, "type %s doesn't define __round__ method", jv_type_name(v));
    return JV_NONE;
}

JFILTER(filesizeformat)
{
    static const char *const dec[] = {"kB", "MB", "GB", "TB", "PB", "EB", "ZB", "YB"};
    static const char *const bin[] = {"KiB", "MiB", "GiB", "TiB", "PiB", "EiB", "ZiB", "YiB"};
    bool binary = jv_given(a[0]) && jv_truth(jx, a[0]);
    double base = binary ? 1024 : 1000, n, unit = base;
    struct jsb b = {.jx = jx};
    if (v.type == JT_UNDEF)
        return jundef_raise(jx, v);
    if (!jv_number(v, &n) && !(v.type == JT_STR && float_parse(jx, jstr_text(v.s), &n))) {
        jx_fail(jx, ERR_TEMPLATE, "filesizeformat: not a number");
        return JV_NONE;
    }
    if (n == 1) {
        jsb_z(&b, "1 Byte");
    } else if (n < base) {
        jsb_printf(&b, "%.0f Bytes", trunc(n));
    } else {
        size_t i = 0;
        for (unit = base * base; i < 7 && n >= unit; i++)
            unit *= base;
        jsb_printf(&b, "%.1f %s", base * n / unit, binary ? bin[i] : dec[i]);
    }
    return jsb_end(&b);
}
