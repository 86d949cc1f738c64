/* text/norm_unicode.c - Unicode normal forms, lower case and SentencePiece's precompiled character maps, on utf8proc.
 *
 * The reference's tables are older than utf8proc's: code points it does not know (UNICODE_INERT) never change and nothing moves
 * across them.  Text is handled in segments that no composition can cross; marks are sorted by a stable merge sort of our own,
 * since utf8proc's takes quadratic time. */
#include "text/norm_int.h"

#include "base/mem.h"

#include <utf8proc.h>

uint32_t norm_lower(uint32_t cp)
{
    if (cp < 128)
        return cp >= 'A' && cp <= 'Z' ? cp + 32 : cp;
    uint32_t lo = 0, hi = unicode_lower_count;
    while (lo < hi) {
        uint32_t mid = lo + (hi - lo) / 2;
        if (unicode_lower[2 * mid] < cp)
            lo = mid + 1;
        else
            hi = mid;
    }
    if (lo < unicode_lower_count && unicode_lower[2 * lo] == cp)
        return unicode_lower[2 * lo + 1];
    return (uint32_t)utf8proc_tolower((utf8proc_int32_t)cp);
}

/* code points of one segment, decomposed */
struct segment {
    int32_t *cp;
    uint8_t *ccc;
    int32_t *spare;
    uint8_t *spare_ccc;
    size_t n, cap;
};

static int segment_room(struct segment *s, size_t more)
{
    if (s->n + more <= s->cap)
        return 0;
    size_t cap = s->cap ? s->cap * 2 : 64;
    while (cap < s->n + more)
        cap *= 2;
    int32_t *cp = mem_try_resize(s->cp, cap * sizeof *cp);
    s->cp = cp ? cp : s->cp;
    uint8_t *ccc = cp ? mem_try_resize(s->ccc, cap) : NULL;
    s->ccc = ccc ? ccc : s->ccc;
    int32_t *spare = ccc ? mem_try_resize(s->spare, cap * sizeof *spare) : NULL;
    s->spare = spare ? spare : s->spare;
    uint8_t *spare_ccc = spare ? mem_try_resize(s->spare_ccc, cap) : NULL;
    s->spare_ccc = spare_ccc ? spare_ccc : s->spare_ccc;
    if (!spare_ccc)
        return ERR_NOMEM;
    s->cap = cap;
    return 0;
}

static void segment_free(struct segment *s)
{
    mem_free(s->cp);
    mem_free(s->ccc);
    mem_free(s->spare);
    mem_free(s->spare_ccc);
}

static int decompose(uint32_t cp, bool compat, int32_t out[32])
{
    if (unicode_more(cp) & UNICODE_INERT) {
        out[0] = (int32_t)cp;
        return 1;
    }
    int last = 0;
    int n =
        (int)utf8proc_decompose_char((utf8proc_int32_t)cp, out, 32, UTF8PROC_DECOMPOSE | (compat ? UTF8PROC_COMPAT : 0), &last);
    if (n < 1 || n > 32) {
        out[0] = (int32_t)cp;
        return 1;
    }
    return n;
}

static uint8_t combining_class(int32_t cp)
{
    return unicode_more((uint32_t)cp) & UNICODE_INERT ? 0 : (uint8_t)utf8proc_get_property(cp)->combining_class;
}

/* May the character join what stands before it (a mark, or the second half of a composition)? */
static bool joins_back(int32_t cp)
{
    if (cp < 0x300 || unicode_more((uint32_t)cp) & UNICODE_INERT)
        return false;
    const utf8proc_property_t *p = utf8proc_get_property(cp);
    bool vowel_or_tail = (cp >= 0x1161 && cp <= 0x1175) || (cp >= 0x11A7 && cp <= 0x11C2);
    return p->combining_class || vowel_or_tail || (p->comb_index != UINT16_MAX && p->comb_index >= 0x8000);
}

/* Stable merge sort of [lo, hi) by combining class, bottom up. */
static void sort_marks(struct segment *s, size_t lo, size_t hi)
{
    for (size_t width = 1; width < hi - lo; width *= 2) {
        for (size_t at = lo; at < hi; at += 2 * width) {
            size_t mid = at + width < hi ? at + width : hi, end = at + 2 * width < hi ? at + 2 * width : hi;
            size_t i = at, j = mid;
            for (size_t k = at; k < end; k++) {
                size_t from = i < mid && (j >= end || s->ccc[i] <= s->ccc[j]) ? i++ : j++;
                s->spare[k] = s->cp[from];
                s->spare_ccc[k] = s->ccc[from];
            }
        }
        memcpy(s->cp + lo, s->spare + lo, (hi - lo) * sizeof *s->cp);
        memcpy(s->ccc + lo, s->spare_ccc + lo, hi - lo);
    }
}

static void segment_order(struct segment *s)
{
    for (size_t i = 0; i < s->n;) {
        if (!s->ccc[i]) {
            i++;
            continue;
        }
        size_t end = i;
        bool sorted = true;
        while (end < s->n && s->ccc[end]) {
            sorted &= end == i || s->ccc[end - 1] <= s->ccc[end];
            end++;
        }
        if (!sorted)
            sort_marks(s, i, end);
        i = end;
    }
}

static void segment_flush(struct norm_ctx *c, struct segment *s, bool compose, size_t from)
{
    segment_order(s);
    size_t n = s->n;
    if (compose && n > 1) {
        utf8proc_ssize_t m = utf8proc_normalize_utf32(s->cp, (utf8proc_ssize_t)n, UTF8PROC_COMPOSE | UTF8PROC_STABLE);
        n = m < 0 ? n : (size_t)m;
    }
    for (size_t i = 0; i < n; i++)
        norm_put_cp(c, (uint32_t)s->cp[i], from);
    s->n = 0;
}

int norm_unicode(struct norm_ctx *c, bool compose, bool compat, struct err *err)
{
    struct segment s = {0};
    const char *p = c->in.p, *end = p + c->in.n;
    size_t from = 0;
    int rc = 0;
    while (p < end && !rc) {
        const char *start = p;
        /* ASCII before ASCII (or the end) is its own segment and never changes */
        while (p < end && (uint8_t)*p < 0x80 && (p + 1 == end || (uint8_t)p[1] < 0x80))
            p++;
        if (p > start) {
            segment_flush(c, &s, compose, from);
            norm_copy(c, (size_t)(start - c->in.p), (size_t)(p - c->in.p));
            continue;
        }
        int32_t d[32];
        uint32_t cp = unicode_next(&p);
        int n = decompose(cp, compat, d);
        if (!joins_back(d[0])) {
            segment_flush(c, &s, compose, from);
            from = (size_t)(start - c->in.p);
        }
        if (segment_room(&s, (size_t)n)) {
            rc = err_nomem(err, "normalisation", s.cap * 10);
            break;
        }
        for (int i = 0; i < n; i++) {
            s.cp[s.n] = d[i];
            s.ccc[s.n++] = combining_class(d[i]);
        }
    }
    if (!rc)
        segment_flush(c, &s, compose, from);
    segment_free(&s);
    return rc;
}

/* The shortest key of the double array (darts-clone) that starts the text; its replacement in *with. */
static bool trie_first(const struct norm_op *op, struct str text, struct str *with)
{
    size_t node = 0;
    uint32_t unit = op->trie[0];
    node ^= (size_t)(unit >> 10) << ((unit & 1u << 9) >> 6);
    for (size_t i = 0; i < text.n && text.p[i]; i++) {
        node ^= (uint8_t)text.p[i];
        if (node >= op->trie_n)
            return false;
        unit = op->trie[node];
        if ((unit & (1u << 31 | 0xFF)) != (uint8_t)text.p[i])
            return false;
        node ^= (size_t)(unit >> 10) << ((unit & 1u << 9) >> 6);
        if (unit >> 8 & 1) {
            if (node >= op->trie_n)
                return false;
            size_t at = op->trie[node] & 0x7FFFFFFF;
            if (at >= op->strings.n || ((uint8_t)op->strings.p[at] & 0xC0) == 0x80) /* outside, or inside a character */
                return false;
            *with = str_n(op->strings.p + at, strlen(op->strings.p + at)); /* the blob is terminated at load */
            return true;
        }
    }
    return false;
}

static void precompiled_part(struct norm_ctx *c, const struct norm_op *op, struct str part, size_t from)
{
    struct str with;
    if (trie_first(op, part, &with))
        norm_put(c, with.p, with.n, from);
    else
        norm_put(c, part.p, part.n, from);
}

void norm_precompiled(struct norm_ctx *c, const struct norm_op *op)
{
    const char *p = c->in.p, *end = p + c->in.n;
    while (p < end) {
        const char *start = p, *next = p;
        int32_t state = 0;
        uint32_t cp = unicode_next(&p);
        while (p < end) { /* the grapheme */
            next = p;
            uint32_t after = unicode_next(&next);
            if (utf8proc_grapheme_break_stateful((utf8proc_int32_t)cp, (utf8proc_int32_t)after, &state))
                break;
            p = next;
            cp = after;
        }
        struct str grapheme = str_n(start, (size_t)(p - start)), with;
        if (grapheme.n < 6 && trie_first(op, grapheme, &with)) {
            norm_put(c, with.p, with.n, (size_t)(start - c->in.p));
            continue;
        }
        for (const char *q = start; q < p;) {
            const char *part = q;
            unicode_next(&q);
            precompiled_part(c, op, str_n(part, (size_t)(q - part)), (size_t)(part - c->in.p));
        }
    }
}
