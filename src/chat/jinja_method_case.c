/* chat/jinja_method_case.c - str methods about case, padding and kinds of characters. */
#include "chat/jinja_methods.h"

#include "base/utf8.h"

static struct jv keep_safe(struct jv r, struct jv self)
{
    if (r.type == JT_STR)
        r.s->safe = self.s->safe;
    return r;
}

/* ---- case ----------------------------------------------------------------------------------------------------------------- */

JMETHOD(upper)
{
    (void)a;
    return jstr_case(jx, v.s, JCASE_UPPER);
}

JMETHOD(lower)
{
    (void)a;
    return jstr_case(jx, v.s, JCASE_LOWER);
}

static bool is_cased(uint32_t cp)
{
    return jchar_is_upper(cp) || jchar_is_lower(cp) || jchar_is_title(cp);
}

JMETHOD(capitalize)
{
    struct jsb b = {.jx = jx};
    uint32_t cp;
    size_t first = v.s->n ? utf8_decode(jstr_text(v.s), &cp) : 0;
    (void)a;
    jsb_case(&b, v.s, 0, first, JCASE_TITLE);
    jsb_case(&b, v.s, first, v.s->n, JCASE_LOWER);
    return keep_safe(jsb_end(&b), v);
}

JMETHOD(title)
{
    struct jsb b = {.jx = jx};
    bool inside = false;
    (void)a;
    for (size_t i = 0; i < v.s->n && !jx->rc;) {
        uint32_t cp;
        size_t n = utf8_decode(str_from(jstr_text(v.s), i), &cp);
        jsb_case(&b, v.s, i, i + n, inside ? JCASE_LOWER : JCASE_TITLE);
        inside = is_cased(cp);
        i += n;
    }
    return keep_safe(jsb_end(&b), v);
}

JMETHOD(swapcase)
{
    struct jsb b = {.jx = jx};
    (void)a;
    for (size_t i = 0; i < v.s->n && !jx->rc;) {
        uint32_t cp;
        size_t n = utf8_decode(str_from(jstr_text(v.s), i), &cp);
        if (jchar_is_upper(cp) || jchar_is_lower(cp))
            jsb_case(&b, v.s, i, i + n, jchar_is_upper(cp) ? JCASE_LOWER : JCASE_UPPER);
        else
            jsb_sub(&b, v.s, i, i + n);
        i += n;
    }
    return keep_safe(jsb_end(&b), v);
}

/* ---- padding -------------------------------------------------------------------------------------------------------------- */

/* width and fill of a padding method; how many fills are missing */
static bool pad_args(struct jx *jx, struct jv v, struct jv *a, struct jv *fill, int64_t *missing)
{
    int64_t width;
    *fill = jv_given(a[1]) ? a[1] : jstr_z(jx, " ");
    if (!jarg_int(jx, a[0], &width))
        return false;
    if (fill->type != JT_STR || jstr_chars(fill->s) != 1) {
        jx_fail(jx, ERR_TEMPLATE, "The fill character must be exactly one character long");
        return false;
    }
    if (v.s->safe)
        *fill = jstr_escape(jx, fill->s);
    int64_t chars = (int64_t)jstr_chars(v.s);
    *missing = width > chars ? width - chars : 0;
    return jx_step(jx, (uint64_t)*missing);
}

static struct jv pad(struct jx *jx, struct jv v, struct jv fill, int64_t left, int64_t right)
{
    struct jsb b = {.jx = jx};
    if (left + right == 0)
        return v;
    jsb_fill(&b, fill.s, (size_t)left);
    jsb_str(&b, v.s);
    jsb_fill(&b, fill.s, (size_t)right);
    return keep_safe(jsb_end(&b), v);
}

JMETHOD(ljust)
{
    struct jv fill;
    int64_t n;
    return pad_args(jx, v, a, &fill, &n) ? pad(jx, v, fill, 0, n) : JV_NONE;
}

JMETHOD(rjust)
{
    struct jv fill;
    int64_t n;
    return pad_args(jx, v, a, &fill, &n) ? pad(jx, v, fill, n, 0) : JV_NONE;
}

JMETHOD(center)
{
    struct jv fill;
    int64_t n;
    if (!pad_args(jx, v, a, &fill, &n))
        return JV_NONE;
    int64_t width = n + (int64_t)jstr_chars(v.s), left = n / 2 + (n & width & 1);
    return pad(jx, v, fill, left, n - left);
}

JMETHOD(zfill)
{
    int64_t width, chars = (int64_t)jstr_chars(v.s);
    struct jsb b = {.jx = jx};
    if (!jarg_int(jx, a[0], &width) || width <= chars)
        return v;
    if (!jx_step(jx, (uint64_t)(width - chars)))
        return JV_NONE;
    size_t sign = v.s->n && (v.s->p[0] == '+' || v.s->p[0] == '-');
    jsb_sub(&b, v.s, 0, sign);
    for (int64_t i = 0; i < width - chars && !jx->rc; i++)
        jsb_z(&b, "0");
    jsb_sub(&b, v.s, sign, v.s->n);
    return keep_safe(jsb_end(&b), v);
}

JMETHOD(expandtabs)
{
    struct jsb b = {.jx = jx};
    int64_t size = jarg_int_or(jx, a[0], 8), column = 0;
    for (size_t i = 0; i < v.s->n && !jx->rc;) {
        size_t n = 1;
        while (i + n < v.s->n && ((unsigned char)v.s->p[i + n] & 0xC0) == 0x80)
            n++;
        if (v.s->p[i] == '\t') {
            for (int64_t k = size > 0 ? size - column % size : 0; k > 0 && jx_step(jx, 1); k--, column++)
                jsb_z(&b, " ");
        } else {
            jsb_sub(&b, v.s, i, i + n);
            column = v.s->p[i] == '\n' || v.s->p[i] == '\r' ? 0 : column + 1;
        }
        i += n;
    }
    return keep_safe(jsb_end(&b), v);
}

/* ---- questions ------------------------------------------------------------------------------------------------------------ */

static struct jv all_are(struct jv v, bool (*is)(uint32_t cp))
{
    for (size_t i = 0; i < v.s->n;) {
        uint32_t cp;
        i += utf8_decode(str_from(jstr_text(v.s), i), &cp);
        if (!is(cp))
            return JV_BOOL(false);
    }
    return JV_BOOL(v.s->n > 0);
}

#define ALL_ARE(name, fn)             \
    JMETHOD(name)                     \
    {                                 \
        (void)jx;                     \
        (void)a;                      \
        return all_are(v, fn);        \
    }

ALL_ARE(isalpha, jchar_is_alpha)
ALL_ARE(isalnum, jchar_is_alnum)
ALL_ARE(isdigit, jchar_is_digit)
ALL_ARE(isdecimal, jchar_is_decimal)
ALL_ARE(isnumeric, jchar_is_numeric)
ALL_ARE(isspace, jchar_is_space)

/* isupper, islower: no letter of the other kind, one of this */
static struct jv one_case(struct jv v, bool upper)
{
    bool seen = false;
    for (size_t i = 0; i < v.s->n;) {
        uint32_t cp;
        i += utf8_decode(str_from(jstr_text(v.s), i), &cp);
        if ((upper ? jchar_is_lower(cp) : jchar_is_upper(cp)) || jchar_is_title(cp))
            return JV_BOOL(false);
        seen |= upper ? jchar_is_upper(cp) : jchar_is_lower(cp);
    }
    return JV_BOOL(seen);
}

JMETHOD(isupper)
{
    (void)jx;
    (void)a;
    return one_case(v, true);
}

JMETHOD(islower)
{
    (void)jx;
    (void)a;
    return one_case(v, false);
}

JMETHOD(istitle)
{
    bool seen = false, inside = false;
    (void)jx;
    (void)a;
    for (size_t i = 0; i < v.s->n;) {
        uint32_t cp;
        i += utf8_decode(str_from(jstr_text(v.s), i), &cp);
        bool big = jchar_is_upper(cp) || jchar_is_title(cp), small = jchar_is_lower(cp);
        if ((big && inside) || (small && !inside))
            return JV_BOOL(false);
        inside = big || small;
        seen |= inside;
    }
    return JV_BOOL(seen);
}

JMETHOD(isascii)
{
    (void)jx;
    (void)a;
    for (size_t i = 0; i < v.s->n; i++)
        if ((unsigned char)v.s->p[i] >= 0x80)
            return JV_BOOL(false);
    return JV_BOOL(true);
}

JMETHOD(isprintable)
{
    (void)jx;
    (void)a;
    return v.s->n ? all_are(v, jchar_is_printable) : JV_BOOL(true);
}

JMETHOD(isidentifier)
{
    (void)jx;
    (void)a;
    for (size_t i = 0; i < v.s->n;) {
        uint32_t cp;
        size_t n = utf8_decode(str_from(jstr_text(v.s), i), &cp);
        if (cp != '_' && !(i ? jchar_is_alnum(cp) : jchar_is_alpha(cp)))
            return JV_BOOL(false);
        i += n;
    }
    return JV_BOOL(v.s->n > 0);
}
