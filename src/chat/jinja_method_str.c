/* chat/jinja_method_str.c - str methods that cut, search and join.
 *
 * Invariants: 1. Positions given and returned count characters; inside, bytes.
 *             2. Pieces are views of the string they come from: no byte is copied by strip, split, partition.
 *             3. Methods of a Markup give Markup, and escape what they put in. */
#include "chat/jinja_methods.h"

#include "base/utf8.h"

static size_t char_len(const struct jstr *s, size_t at)
{
    size_t n = 1;
    while (at + n < s->n && ((unsigned char)s->p[at + n] & 0xC0) == 0x80)
        n++;
    return n;
}

static size_t char_before(const struct jstr *s, size_t at)
{
    size_t n = 1;
    while (n < at && ((unsigned char)s->p[at - n] & 0xC0) == 0x80)
        n++;
    return n;
}

static bool space_at(const struct jstr *s, size_t at)
{
    uint32_t cp;
    utf8_decode(str_from(jstr_text(s), at), &cp);
    return jchar_is_space(cp);
}

/* ---- strip ---------------------------------------------------------------------------------------------------------------- */

static bool strippable(const struct jstr *s, size_t at, size_t n, const struct jstr *chars)
{
    if (!chars)
        return space_at(s, at);
    for (size_t i = 0; i < chars->n; i += char_len(chars, i))
        if (char_len(chars, i) == n && memcmp(chars->p + i, s->p + at, n) == 0)
            return true;
    return false;
}

static struct jv strip(struct jx *jx, struct jv v, struct jv chars, bool left, bool right)
{
    const struct jstr *s = v.s;
    struct jstr *set = NULL;
    size_t from = 0, to = s->n;
    if (jv_given(chars) && chars.type != JT_NONE && !jarg_str(jx, chars, &set))
        return JV_NONE;
    while (left && from < to && strippable(s, from, char_len(s, from), set))
        from += char_len(s, from);
    while (right && to > from && strippable(s, to - char_before(s, to), char_before(s, to), set))
        to -= char_before(s, to);
    return jstr_sub(jx, s, from, to);
}

JMETHOD(strip)
{
    return strip(jx, v, a[0], true, true);
}

JMETHOD(lstrip)
{
    return strip(jx, v, a[0], true, false);
}

JMETHOD(rstrip)
{
    return strip(jx, v, a[0], false, true);
}

/* ---- split ---------------------------------------------------------------------------------------------------------------- */

static size_t find_from(const struct jstr *s, size_t at, size_t to, struct str what)
{
    size_t hit = str_find(str_n(s->p + at, to - at), what);
    return hit == SIZE_MAX ? SIZE_MAX : at + hit;
}

static size_t find_back(const struct jstr *s, size_t from, size_t to, struct str what)
{
    for (size_t at = to; to - from >= what.n && at >= from + what.n; at--) {
        if (what.n == 0 || memcmp(s->p + at - what.n, what.p, what.n) == 0)
            return at - what.n;
    }
    return SIZE_MAX;
}

static void split_space(struct jx *jx, const struct jstr *s, int64_t max, struct jlist *out)
{
    size_t at = 0;
    while (!jx->rc && jx_step(jx, 1)) {
        while (at < s->n && space_at(s, at))
            at += char_len(s, at);
        if (at >= s->n)
            return;
        size_t to = at;
        if (max-- == 0) { /* the rest in one piece, white space at its end included */
            jlist_push(jx, out, jstr_sub(jx, s, at, s->n));
            return;
        }
        while (to < s->n && !space_at(s, to))
            to += char_len(s, to);
        jlist_push(jx, out, jstr_sub(jx, s, at, to));
        at = to;
    }
}

static void rsplit_space(struct jx *jx, const struct jstr *s, int64_t max, struct jlist *out)
{
    size_t to = s->n;
    while (!jx->rc && jx_step(jx, 1)) {
        while (to > 0 && space_at(s, to - char_before(s, to)))
            to -= char_before(s, to);
        if (to == 0)
            return;
        size_t at = to;
        if (max-- == 0) {
            jlist_push(jx, out, jstr_sub(jx, s, 0, to));
            return;
        }
        while (at > 0 && !space_at(s, at - char_before(s, at)))
            at -= char_before(s, at);
        jlist_push(jx, out, jstr_sub(jx, s, at, to));
        to = at;
    }
}

static void split_text(struct jx *jx, const struct jstr *s, struct str sep, int64_t max, struct jlist *out)
{
    size_t at = 0, hit;
    while (max-- != 0 && (hit = find_from(s, at, s->n, sep)) != SIZE_MAX && jx_step(jx, 1)) {
        jlist_push(jx, out, jstr_sub(jx, s, at, hit));
        at = hit + sep.n;
    }
    jlist_push(jx, out, jstr_sub(jx, s, at, s->n));
}

static void rsplit_text(struct jx *jx, const struct jstr *s, struct str sep, int64_t max, struct jlist *out)
{
    size_t to = s->n, hit;
    while (max-- != 0 && (hit = find_back(s, 0, to, sep)) != SIZE_MAX && jx_step(jx, 1)) {
        jlist_push(jx, out, jstr_sub(jx, s, hit + sep.n, to));
        to = hit;
    }
    jlist_push(jx, out, jstr_sub(jx, s, 0, to));
}

static void reverse(struct jlist *l)
{
    for (size_t i = 0; i < l->n / 2; i++) {
        struct jv t = l->v[i];
        l->v[i] = l->v[l->n - 1 - i];
        l->v[l->n - 1 - i] = t;
    }
}

static struct jv split(struct jx *jx, struct jv v, struct jv *a, bool right)
{
    struct jlist *out = jlist_new(jx, 4);
    struct jstr *sep = NULL;
    int64_t max = jarg_int_or(jx, a[1], -1);
    if (jv_given(a[0]) && a[0].type != JT_NONE && jarg_str(jx, a[0], &sep) && !sep->n)
        jx_fail(jx, ERR_TEMPLATE, "empty separator");
    if (jx->rc)
        return JV_NONE;
    if (sep && right)
        rsplit_text(jx, v.s, jstr_text(sep), max, out);
    else if (sep)
        split_text(jx, v.s, jstr_text(sep), max, out);
    else if (right)
        rsplit_space(jx, v.s, max, out);
    else
        split_space(jx, v.s, max, out);
    if (right && !jx->rc)
        reverse(out);
    return jx->rc ? JV_NONE : jlist_value(out, JT_LIST);
}

JMETHOD(split)
{
    return split(jx, v, a, false);
}

JMETHOD(rsplit)
{
    return split(jx, v, a, true);
}

JMETHOD(splitlines)
{
    struct jlist *out = jlist_new(jx, 4);
    bool keep = jv_given(a[0]) && jv_truth(jx, a[0]);
    size_t start = 0;
    for (size_t i = 0; i < v.s->n && !jx->rc;) {
        uint32_t cp;
        size_t n = utf8_decode(str_from(jstr_text(v.s), i), &cp);
        if (jchar_is_line_end(cp)) {
            if (cp == '\r' && i + 1 < v.s->n && v.s->p[i + 1] == '\n')
                n++;
            jlist_push(jx, out, jstr_sub(jx, v.s, start, keep ? i + n : i));
            start = i + n;
        }
        i += n;
    }
    if (start < v.s->n)
        jlist_push(jx, out, jstr_sub(jx, v.s, start, v.s->n));
    return jx->rc ? JV_NONE : jlist_value(out, JT_LIST);
}

static struct jv partition(struct jx *jx, struct jv v, struct jv sep_value, bool right)
{
    struct jstr *sep;
    struct jlist *out = jlist_new(jx, 3);
    if (!jarg_str(jx, sep_value, &sep))
        return JV_NONE;
    if (!sep->n) {
        jx_fail(jx, ERR_TEMPLATE, "empty separator");
        return JV_NONE;
    }
    size_t hit = right ? find_back(v.s, 0, v.s->n, jstr_text(sep)) : find_from(v.s, 0, v.s->n, jstr_text(sep));
    size_t head = hit == SIZE_MAX ? (right ? 0 : v.s->n) : hit, tail = hit == SIZE_MAX ? head : hit + sep->n;
    jlist_push(jx, out, jstr_sub(jx, v.s, 0, head));
    jlist_push(jx, out, jstr_sub(jx, v.s, head, tail));
    jlist_push(jx, out, jstr_sub(jx, v.s, tail, v.s->n));
    return jx->rc ? JV_NONE : jlist_value(out, JT_TUPLE);
}

JMETHOD(partition)
{
    return partition(jx, v, a[0], false);
}

JMETHOD(rpartition)
{
    return partition(jx, v, a[0], true);
}

/* ---- search --------------------------------------------------------------------------------------------------------------- */

/* [start, end) given in characters -> bytes; false: an empty range that not even "" is in */
static bool byte_range(struct jx *jx, struct jstr *s, struct jv start, struct jv end, size_t *from, size_t *to)
{
    int64_t n = (int64_t)jstr_chars(s), a = jarg_int_or(jx, start, 0), b = jarg_int_or(jx, end, n);
    if (b > n)
        b = n;
    if (b < 0)
        b = b + n < 0 ? 0 : b + n;
    if (a < 0)
        a = a + n < 0 ? 0 : a + n;
    if (jx->rc || a > b)
        return false;
    *from = jstr_byte_of(s, (size_t)a);
    *to = jstr_byte_of(s, (size_t)b);
    return true;
}

/* does s[from:to] start (or end) with one of `what`, a text or a tuple of them? */
static struct jv affix(struct jx *jx, struct jv v, struct jv *a, bool end)
{
    size_t from = 0, to = 0, n = a[0].type == JT_TUPLE ? a[0].l->n : 1;
    bool any = byte_range(jx, v.s, a[1], a[2], &from, &to), yes = false;
    struct str text = str_n(v.s->p + from, to - from);
    for (size_t i = 0; i < n && !jx->rc; i++) {
        struct jv one = a[0].type == JT_TUPLE ? a[0].l->v[i] : a[0];
        if (one.type != JT_STR)
            jx_fail(jx, ERR_TEMPLATE, "%s first arg must be str or a tuple of str, not %s", end ? "endswith" : "startswith",
                    jv_type_name(one));
        else
            yes |= any && (end ? str_ends(text, jstr_text(one.s)) : str_starts(text, jstr_text(one.s)));
    }
    return jx->rc ? JV_NONE : JV_BOOL(yes);
}

JMETHOD(startswith)
{
    return affix(jx, v, a, false);
}

JMETHOD(endswith)
{
    return affix(jx, v, a, true);
}

static int64_t find(struct jx *jx, struct jv v, struct jv *a, bool right)
{
    size_t from, to, hit;
    struct jstr *what;
    if (!jarg_str(jx, a[0], &what) || !byte_range(jx, v.s, a[1], a[2], &from, &to))
        return -1;
    hit = right ? find_back(v.s, from, to, jstr_text(what)) : find_from(v.s, from, to, jstr_text(what));
    return hit == SIZE_MAX ? -1 : (int64_t)jstr_char_of(v.s, hit);
}

JMETHOD(find)
{
    return JV_INT(find(jx, v, a, false));
}

JMETHOD(rfind)
{
    return JV_INT(find(jx, v, a, true));
}

static struct jv found_or_fail(struct jx *jx, int64_t at)
{
    if (at < 0)
        jx_fail(jx, ERR_TEMPLATE, "substring not found");
    return JV_INT(at);
}

JMETHOD(index)
{
    return found_or_fail(jx, find(jx, v, a, false));
}

JMETHOD(rindex)
{
    return found_or_fail(jx, find(jx, v, a, true));
}

JMETHOD(count)
{
    size_t from, to, hit;
    struct jstr *what;
    int64_t n = 0;
    if (!jarg_str(jx, a[0], &what) || !byte_range(jx, v.s, a[1], a[2], &from, &to))
        return JV_INT(0);
    if (!what->n)
        return JV_INT((int64_t)(jstr_char_of(v.s, to) - jstr_char_of(v.s, from)) + 1);
    for (; (hit = find_from(v.s, from, to, jstr_text(what))) != SIZE_MAX; n++)
        from = hit + what->n;
    return JV_INT(n);
}

/* ---- building ------------------------------------------------------------------------------------------------------------- */

static struct jv keep_safe(struct jv r, struct jv self)
{
    if (r.type == JT_STR)
        r.s->safe = self.s->safe;
    return r;
}

/* "" is found before every character and at the end */
static void replace_empty(struct jsb *b, const struct jstr *s, const struct jstr *new, int64_t max)
{
    size_t i = 0;
    for (; i < s->n && max != 0 && !b->jx->rc; max--) {
        size_t n = char_len(s, i);
        jsb_str(b, new);
        jsb_sub(b, s, i, i + n);
        i += n;
    }
    if (i < s->n)
        jsb_sub(b, s, i, s->n);
    else if (max != 0)
        jsb_str(b, new);
}

JMETHOD(replace)
{
    struct jstr *old, *new;
    struct jsb b = {.jx = jx};
    int64_t max = jarg_int_or(jx, a[2], -1);
    if (!jarg_str(jx, a[0], &old) || !jarg_str(jx, a[1], &new))
        return JV_NONE;
    if (v.s->safe) {
        struct jv escaped = jstr_escape(jx, new);
        if (jx->rc)
            return JV_NONE;
        new = escaped.s;
    }
    size_t at = 0, hit;
    if (!old->n) {
        replace_empty(&b, v.s, new, max);
        return keep_safe(jsb_end(&b), v);
    }
    while (max-- != 0 && (hit = find_from(v.s, at, v.s->n, jstr_text(old))) != SIZE_MAX && jx_step(jx, 1)) {
        jsb_sub(&b, v.s, at, hit);
        jsb_str(&b, new);
        at = hit + old->n;
    }
    if (at == 0 && !jx->rc)
        return v;
    jsb_sub(&b, v.s, at, v.s->n);
    return keep_safe(jsb_end(&b), v);
}

JMETHOD(join)
{
    struct jsb b = {.jx = jx};
    struct jiter it;
    struct jv item;
    size_t at = 0;
    if (!jv_iter(jx, a[0], &it))
        return JV_NONE;
    for (; jiter_next(&it, &item); at++) {
        if (v.s->safe)
            item = jv_soft_str(jx, item);
        if (item.type != JT_STR && !jx->rc)
            jx_fail(jx, ERR_TEMPLATE, "sequence item %zu: expected str instance, %s found", at, jv_type_name(item));
        if (v.s->safe && !jx->rc)
            item = jstr_escape(jx, item.s);
        if (jx->rc)
            return JV_NONE;
        if (at)
            jsb_str(&b, v.s);
        jsb_str(&b, item.s);
    }
    return keep_safe(jsb_end(&b), v);
}

JMETHOD(removeprefix)
{
    struct jstr *what;
    if (!jarg_str(jx, a[0], &what))
        return JV_NONE;
    return str_starts(jstr_text(v.s), jstr_text(what)) ? jstr_sub(jx, v.s, what->n, v.s->n) : v;
}

JMETHOD(removesuffix)
{
    struct jstr *what;
    if (!jarg_str(jx, a[0], &what))
        return JV_NONE;
    return what->n && str_ends(jstr_text(v.s), jstr_text(what)) ? jstr_sub(jx, v.s, 0, v.s->n - what->n) : v;
}
