/* chat/jinja_spec.c - numbers and padding by a format specification, shared by "%5.2f" % x and "{:5.2f}".format(x).
 *
 * Invariants: widths and precisions are bounded (JSPEC_MAX), as text is. */
#include "chat/jinja_int.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

enum { JSPEC_MAX = 100000, JSPEC_PREC_MAX = 400 };

void jspec_pad(struct jsb *b, const struct jstr *text, size_t sign_len, const struct jspec *s, char align)
{
    int64_t chars = (int64_t)jstr_chars((struct jstr *)(uintptr_t)text), n = s->width > chars ? s->width - chars : 0;
    if (s->align)
        align = s->align;
    if (n > JSPEC_MAX)
        jx_fail(b->jx, ERR_LIMIT, "a width of %lld is not supported", (long long)s->width);
    int64_t left = align == '<' ? 0 : align == '^' ? n / 2 : n;
    if (align == '=') {
        jsb_sub(b, text, 0, sign_len);
        for (int64_t i = 0; i < n && !b->jx->rc; i++)
            jsb_char(b, s->fill, false);
        jsb_sub(b, text, sign_len, text->n);
        return;
    }
    for (int64_t i = 0; i < left && !b->jx->rc; i++)
        jsb_char(b, s->fill, false);
    jsb_str(b, text);
    for (int64_t i = left; i < n && !b->jx->rc; i++)
        jsb_char(b, s->fill, false);
}

/* ---- digits --------------------------------------------------------------------------------------------------------------- */

/* digits of u in a base of 2, 8, 10 or 16 */
static size_t int_digits(uint64_t u, char type, char out[72])
{
    static const char lower[] = "0123456789abcdef", upper[] = "0123456789ABCDEF";
    unsigned base = type == 'b' ? 2 : type == 'o' ? 8 : type == 'x' || type == 'X' ? 16 : 10;
    char tmp[72];
    size_t n = 0;
    do
        tmp[n++] = (type == 'X' ? upper : lower)[u % base];
    while ((u /= base) != 0);
    for (size_t i = 0; i < n; i++)
        out[i] = tmp[n - 1 - i];
    return n;
}

/* repr with a precision: like %g but never without a fraction, and an exponent one digit sooner */
static int repr_digits(char *out, size_t cap, double f, int prec)
{
    char text[JSPEC_PREC_MAX + 40];
    if (!isfinite(f))
        return snprintf(out, cap, "%g", f);
    prec = prec < 1 ? 1 : prec;
    snprintf(text, sizeof text, "%.*e", prec - 1, f);
    int exp10 = 0;
    const char *e = strchr(text, 'e');
    sscanf(e + 1, "%d", &exp10);
    if (exp10 + 1 <= -4 || exp10 + 1 > prec - 1) {
        int mant = (int)(e - text);
        while (strchr(text, '.') && mant > 0 && (text[mant - 1] == '0' || text[mant - 1] == '.'))
            if (text[--mant] == '.')
                break;
        return snprintf(out, cap, "%.*se%c%02d", mant, text, exp10 < 0 ? '-' : '+', abs(exp10));
    }
    int decimals = prec - 1 - exp10, n = snprintf(out, cap, "%.*f", decimals, f);
    while (strchr(out, '.') && n > 2 && out[n - 1] == '0' && out[n - 2] != '.')
        n--;
    return decimals > 0 ? n : snprintf(out, cap, "%.0f.0", f);
}

static int float_digits(char *out, size_t cap, double f, char type, int64_t prec, bool alt)
{
    int p = prec < 0 ? 6 : (int)prec;
    switch (type) {
    case 'e':
        return snprintf(out, cap, alt ? "%#.*e" : "%.*e", p, f);
    case 'E':
        return snprintf(out, cap, alt ? "%#.*E" : "%.*E", p, f);
    case 'f':
    case '%':
        return snprintf(out, cap, alt ? "%#.*f" : "%.*f", p, f);
    case 'F':
        return snprintf(out, cap, alt ? "%#.*F" : "%.*F", p, f);
    case 'G':
        return snprintf(out, cap, alt ? "%#.*G" : "%.*G", p, f);
    case 'g':
    case 'n':
        return snprintf(out, cap, alt ? "%#.*g" : "%.*g", p, f);
    default:
        return repr_digits(out, cap, f, p);
    }
}

/* "1234567.5" -> "1,234,567.5": the digits up to the first other character */
static void put_grouped(struct jsb *b, const char *digits, size_t n, char group, size_t every)
{
    size_t whole = 0;
    while (whole < n && ((digits[whole] >= '0' && digits[whole] <= '9') || (every == 4 && digits[whole] >= 'A')))
        whole++;
    for (size_t i = 0; i < whole; i++) {
        if (group && i && (whole - i) % every == 0)
            jsb_put(b, &group, 1, false);
        jsb_put(b, digits + i, 1, false);
    }
    jsb_put(b, digits + whole, n - whole, false);
}

static size_t put_sign(struct jsb *b, bool neg, char sign)
{
    if (neg || sign == '+' || sign == ' ')
        jsb_z(b, neg ? "-" : sign == '+' ? "+" : " ");
    return b->n;
}

static void finish(struct jsb *b, struct jsb *text, size_t sign_len, const struct jspec *s)
{
    struct jspec spec = *s;
    struct jv v = jsb_end(text);
    if (b->jx->rc)
        return;
    if (spec.zero && !spec.align) {
        spec.fill = '0';
        spec.align = '=';
        if (spec.group && spec.width > (int64_t)v.s->n)
            jx_fail(b->jx, ERR_TEMPLATE, "zero padding together with '%c' is not supported", spec.group);
    }
    jspec_pad(b, v.s, sign_len, &spec, '>');
}

static void put_float(struct jsb *b, double f, const struct jspec *s)
{
    char out[JSPEC_PREC_MAX + 360];
    struct jsb text = {.jx = b->jx};
    bool neg = signbit(f) && !isnan(f);
    if (s->prec > JSPEC_PREC_MAX) {
        jx_fail(b->jx, ERR_LIMIT, "a precision of %lld is not supported", (long long)s->prec);
        return;
    }
    size_t sign_len = put_sign(&text, neg, s->sign);
    if (!s->type && s->prec < 0) {
        jsb_float(&text, fabs(f), false);
    } else {
        int n = float_digits(out, sizeof out, s->type == '%' ? fabs(f) * 100 : fabs(f), s->type, s->prec, s->alt);
        put_grouped(&text, out, n > 0 ? (size_t)n : 0, s->group, 3);
    }
    if (s->type == '%')
        jsb_z(&text, "%");
    finish(b, &text, sign_len, s);
}

static void put_int(struct jsb *b, struct jv v, const struct jspec *s)
{
    char digits[72];
    struct jsb text = {.jx = b->jx};
    int64_t i = v.type == JT_BOOL ? v.b : v.i;
    bool neg = !v.big && i < 0;
    size_t n = int_digits(neg ? 0 - (uint64_t)i : (uint64_t)i, s->type, digits), sign_len = put_sign(&text, neg, s->sign);
    if (s->alt && s->type && strchr("boxX", s->type)) {
        char prefix[3] = {'0', s->type, 0};
        jsb_z(&text, prefix);
        sign_len = text.n;
    }
    for (int64_t k = (int64_t)n; k < s->prec && k < JSPEC_MAX && !b->jx->rc; k++)
        jsb_z(&text, "0"); /* only "%.5d" has a precision */
    put_grouped(&text, digits, n, s->group, s->type && strchr("boxX", s->type) ? 4 : 3);
    finish(b, &text, sign_len, s);
}

bool jspec_number(struct jsb *b, struct jv v, const struct jspec *s)
{
    double f;
    if (!jv_number(v, &f))
        return false;
    if (v.type == JT_FLOAT || (s->type && strchr("eEfFgG%", s->type)))
        put_float(b, f, s);
    else
        put_int(b, v, s);
    return true;
}
