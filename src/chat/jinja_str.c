/* chat/jinja_str.c - strings that remember which bytes a user wrote, and the builder that makes them.
 *
 * Owns:       nothing: bytes and segments live in the rendering's arena.
 * Invariants: 1. Segments of a string are ascending, disjoint and inside it; adjacent ones may touch.
 *             2. A string's bytes never change.  Storage behind it may grow in place for a longer string that starts the same,
 *                which makes `x = x + y` in a loop linear instead of quadratic.
 *             3. No string is longer than the rendering's output limit. */
#include "chat/jinja_int.h"

#include "base/utf8.h"

#include <stdio.h>

struct jtail { /* every string with this tail starts at p; the longest of them has n bytes and seg_count segments */
    char *p;
    size_t n, cap;
    struct jseg *segs;
    size_t seg_count, seg_cap;
};

/* ---- builder -------------------------------------------------------------------------------------------------------------- */

static char *room(struct jsb *b, size_t n)
{
    struct jx *jx = b->jx;
    if (jx->rc)
        return NULL;
    if (n > jx->text_max - b->n) {
        jx_fail(jx, ERR_LIMIT, "text longer than the limit of %zu bytes", jx->text_max);
        return NULL;
    }
    if (b->n + n > b->cap) {
        size_t cap = b->cap ? b->cap * 2 : 64;
        if (cap < b->n + n)
            cap = b->n + n;
        char *p = jx_alloc(jx, cap, 1);
        if (!p)
            return NULL;
        if (b->n)
            memcpy(p, b->p, b->n);
        b->p = p;
        b->cap = cap;
    }
    return b->p + b->n;
}

static void mark(struct jsb *b, size_t from, size_t to)
{
    if (from == to || b->jx->rc)
        return;
    if (b->seg_count && b->segs[b->seg_count - 1].to == from) {
        b->segs[b->seg_count - 1].to = to;
        return;
    }
    if (b->seg_count == b->seg_cap) {
        size_t cap = b->seg_cap ? b->seg_cap * 2 : 4;
        struct jseg *s = jx_alloc(b->jx, cap, sizeof *s);
        if (!s)
            return;
        if (b->seg_count)
            memcpy(s, b->segs, b->seg_count * sizeof *s);
        b->segs = s;
        b->seg_cap = cap;
    }
    b->segs[b->seg_count++] = (struct jseg){from, to};
}

void jsb_put(struct jsb *b, const void *p, size_t n, bool user)
{
    char *to = n ? room(b, n) : NULL;
    if (!to)
        return;
    memcpy(to, p, n);
    b->n += n;
    if (user)
        mark(b, b->n - n, b->n);
}

void jsb_z(struct jsb *b, const char *z)
{
    jsb_put(b, z, strlen(z), false);
}

void jsb_char(struct jsb *b, uint32_t cp, bool user)
{
    char tmp[4];
    jsb_put(b, tmp, utf8_encode(cp, tmp), user);
}

void jsb_printf(struct jsb *b, const char *fmt, ...)
{
    char tmp[512];
    va_list ap;
    va_start(ap, fmt);
    int n = vsnprintf(tmp, sizeof tmp, fmt, ap);
    va_end(ap);
    jsb_put(b, tmp, n < 0 ? 0 : (size_t)n < sizeof tmp ? (size_t)n : sizeof tmp - 1, false);
}

/* the first segment that ends after `at`, by halving: strings may be cut into as many pieces as they have segments */
size_t jstr_seg_after(const struct jstr *s, size_t at)
{
    size_t lo = 0, hi = s->seg_count;
    while (lo < hi) {
        size_t mid = (lo + hi) / 2;
        if (s->segs[mid].to <= at)
            lo = mid + 1;
        else
            hi = mid;
    }
    return lo;
}

void jsb_sub(struct jsb *b, const struct jstr *s, size_t from, size_t to)
{
    size_t at = b->n;
    jsb_put(b, s->p + from, to - from, false);
    for (size_t i = jstr_seg_after(s, from); !b->jx->rc && i < s->seg_count && s->segs[i].from < to; i++) {
        size_t lo = s->segs[i].from > from ? s->segs[i].from : from, hi = s->segs[i].to < to ? s->segs[i].to : to;
        mark(b, at + lo - from, at + hi - from);
    }
}

void jsb_str(struct jsb *b, const struct jstr *s)
{
    jsb_sub(b, s, 0, s->n);
}

void jsb_fill(struct jsb *b, const struct jstr *s, size_t times)
{
    for (size_t i = 0; i < times && s->n && !b->jx->rc; i++)
        jsb_str(b, s);
}

void jsb_escape(struct jsb *b, const struct jstr *s)
{
    static const struct {
        char c;
        const char *text;
    } map[] = {{'&', "&amp;"}, {'>', "&gt;"}, {'<', "&lt;"}, {'\'', "&#39;"}, {'"', "&#34;"}};
    size_t start = 0, cursor = 0;
    for (size_t i = 0; i < s->n; i++) {
        for (size_t k = 0; k < 5; k++) {
            if (s->p[i] != map[k].c)
                continue;
            jsb_sub(b, s, start, i);
            jsb_put(b, map[k].text, strlen(map[k].text), jstr_user_at(s, &cursor, i));
            start = i + 1;
        }
    }
    jsb_sub(b, s, start, s->n);
}

static struct jstr *str_alloc(struct jx *jx)
{
    struct jstr *s = jx_alloc(jx, 1, sizeof *s);
    if (s)
        s->chars = SIZE_MAX;
    return s;
}

static struct jv str_value(struct jstr *s)
{
    return s ? (struct jv){.type = JT_STR, .s = s} : JV_NONE;
}

struct jv jsb_end(struct jsb *b)
{
    struct jstr *s = str_alloc(b->jx);
    if (s) {
        s->p = b->p ? b->p : "";
        s->n = b->n;
        s->segs = b->segs;
        s->seg_count = b->seg_count;
    }
    return str_value(s);
}

/* ---- strings -------------------------------------------------------------------------------------------------------------- */

struct jv jstr_new(struct jx *jx, struct str text, bool user)
{
    struct jstr *s = str_alloc(jx);
    if (s) {
        s->p = text.p ? text.p : "";
        s->n = text.n;
        if (user && text.n) {
            s->one = (struct jseg){0, text.n};
            s->segs = &s->one;
            s->seg_count = 1;
        }
    }
    return str_value(s);
}

struct jv jstr_z(struct jx *jx, const char *z)
{
    return jstr_new(jx, str_of(z), false);
}

struct jv jstr_sub(struct jx *jx, const struct jstr *s, size_t from, size_t to)
{
    struct jstr *r = str_alloc(jx);
    if (!r)
        return JV_NONE;
    r->p = s->p + from;
    r->n = to - from;
    r->safe = s->safe;
    if (s->chars == s->n)
        r->chars = r->n; /* ASCII stays ASCII */
    size_t first = jstr_seg_after(s, from), last = first;
    while (last < s->seg_count && s->segs[last].from < to)
        last++;
    r->seg_count = last - first;
    if (from == to || !r->seg_count) {
        r->seg_count = 0;
        return str_value(r);
    }
    struct jseg *segs = r->seg_count == 1 ? &r->one : jx_alloc(jx, r->seg_count, sizeof *segs);
    if (!segs)
        return JV_NONE;
    for (size_t i = 0; i < r->seg_count; i++) {
        size_t lo = s->segs[first + i].from, hi = s->segs[first + i].to;
        segs[i] = (struct jseg){lo > from ? lo - from : 0, (hi < to ? hi : to) - from};
    }
    r->segs = segs;
    return str_value(r);
}

static bool tail_ends(const struct jtail *t, const struct jstr *a, const struct jstr *b)
{
    return t && a->n == t->n && t->cap - t->n >= b->n && a->seg_count == t->seg_count &&
           t->seg_cap - t->seg_count >= b->seg_count;
}

/* A fresh tail holding `a`, with room to grow. */
static struct jtail *tail_new(struct jx *jx, const struct jstr *a, const struct jstr *b)
{
    struct jtail *t = jx_alloc(jx, 1, sizeof *t);
    size_t cap = 2 * (a->n + b->n), seg_cap = 2 * (a->seg_count + b->seg_count) + 4;
    if (!t || !(t->p = jx_alloc(jx, cap, 1)) || !(t->segs = jx_alloc(jx, seg_cap, sizeof *t->segs)))
        return NULL;
    t->cap = cap;
    t->seg_cap = seg_cap;
    memcpy(t->p, a->p, a->n);
    t->n = a->n;
    if (a->seg_count)
        memcpy(t->segs, a->segs, a->seg_count * sizeof *t->segs);
    t->seg_count = a->seg_count;
    return t;
}

static struct jv cat_in_tail(struct jx *jx, const struct jstr *a, const struct jstr *b)
{
    struct jtail *t = a->tail;
    if (!tail_ends(t, a, b) && !(t = tail_new(jx, a, b)))
        return JV_NONE;
    struct jstr *r = str_alloc(jx);
    if (!r)
        return JV_NONE;
    memcpy(t->p + t->n, b->p, b->n);
    t->n += b->n;
    for (size_t i = 0; i < b->seg_count; i++)
        t->segs[t->seg_count++] = (struct jseg){b->segs[i].from + a->n, b->segs[i].to + a->n};
    *r = (struct jstr){.p = t->p, .n = t->n, .segs = t->segs, .seg_count = t->seg_count, .tail = t};
    r->chars = a->chars != SIZE_MAX && b->chars != SIZE_MAX ? a->chars + b->chars : SIZE_MAX;
    return str_value(r);
}

/* Plain concatenation: `safe` is the caller's matter. */
struct jv jstr_cat(struct jx *jx, const struct jstr *a, const struct jstr *b)
{
    if (jx->rc)
        return JV_NONE;
    if (a->n > jx->text_max - b->n || b->n > jx->text_max) {
        jx_fail(jx, ERR_LIMIT, "text longer than the limit of %zu bytes", jx->text_max);
        return JV_NONE;
    }
    if (!b->n)
        return jstr_sub(jx, a, 0, a->n);
    if (a->n + b->n > 256)
        return cat_in_tail(jx, a, b);
    struct jsb sb = {.jx = jx};
    if (room(&sb, a->n + b->n)) {
        jsb_str(&sb, a);
        jsb_str(&sb, b);
    }
    return jsb_end(&sb);
}

struct jv jstr_as_safe(struct jx *jx, const struct jstr *s, bool safe)
{
    if (s->safe == safe)
        return (struct jv){.type = JT_STR, .s = (struct jstr *)(uintptr_t)s};
    struct jv v = jstr_sub(jx, s, 0, s->n);
    if (v.type == JT_STR)
        v.s->safe = safe;
    return v;
}

struct jv jstr_escape(struct jx *jx, const struct jstr *s)
{
    if (s->safe)
        return jstr_as_safe(jx, s, true);
    struct jsb b = {.jx = jx};
    jsb_escape(&b, s);
    struct jv v = jsb_end(&b);
    if (v.type == JT_STR)
        v.s->safe = true;
    return v;
}

/* ---- positions ------------------------------------------------------------------------------------------------------------ */

static size_t count_chars(const char *p, size_t n)
{
    size_t chars = 0;
    for (size_t i = 0; i < n; i++)
        chars += ((unsigned char)p[i] & 0xC0) != 0x80;
    return chars;
}

size_t jstr_chars(struct jstr *s)
{
    if (s->chars == SIZE_MAX)
        s->chars = count_chars(s->p, s->n);
    return s->chars;
}

size_t jstr_byte_of(struct jstr *s, size_t at)
{
    if (jstr_chars(s) == s->n)
        return at;
    size_t i = 0;
    for (; at && i < s->n; at--) {
        i++;
        while (i < s->n && ((unsigned char)s->p[i] & 0xC0) == 0x80)
            i++;
    }
    return i;
}

size_t jstr_char_of(struct jstr *s, size_t byte)
{
    return jstr_chars(s) == s->n ? byte : count_chars(s->p, byte);
}

bool jstr_all_user(const struct jstr *s)
{
    size_t at = 0;
    for (size_t i = 0; i < s->seg_count; i++) {
        if (s->segs[i].from != at)
            return false;
        at = s->segs[i].to;
    }
    return s->n && at == s->n;
}
