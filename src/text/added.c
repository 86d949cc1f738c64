/* text/added.c - added and special tokens: leftmost-longest search, and the spaces some of them take along.
 *
 * The tokens lie sorted by their bytes; a walk from one position narrows the range of those that still fit, byte by byte.
 * Invariants: 1. a match that is refused (not a single word, special where specials do not count) is skipped as a whole, as the
 *                reference does; one that lies only partly where specials count gives way to shorter ones.
 *             2. no token is longer than TOKENIZER_TOKEN_BYTES_MAX, which bounds the walk. */
#include "text/text_int.h"

#include "base/mem.h"
#include "text/unicode.h"

#include <stdlib.h>

struct sort_item {
    struct str match;
    uint32_t index;
};

static int by_match(const void *a, const void *b)
{
    return str_cmp(((const struct sort_item *)a)->match, ((const struct sort_item *)b)->match);
}

static int set_build(const struct added *a, struct added_set *s, bool normalized, struct err *err)
{
    struct sort_item *item = mem_try_array(a->n, sizeof *item);
    s->order = mem_try_array(a->n, sizeof *s->order);
    if (!item || !s->order) {
        mem_free(item);
        return err_nomem(err, "added tokens", a->n * sizeof *item);
    }
    uint32_t n = 0;
    for (uint32_t i = 0; i < a->n; i++)
        if (a->token[i].normalized == normalized)
            item[n++] = (struct sort_item){a->token[i].match, i};
    qsort(item, n, sizeof *item, by_match);
    int rc = 0;
    for (uint32_t i = 0; i < n && !rc; i++) {
        const struct added_token *t = &a->token[item[i].index];
        if (!t->match.n)
            rc = err_set(err, ERR_FORMAT, "added token '%.*s' (id %u) is empty after normalisation", STR_ARG(t->content), t->id);
        else if (i && str_eq(t->match, item[i - 1].match))
            rc = err_set(err, ERR_FORMAT, "added tokens %u and %u are the same text '%.*s'", a->token[item[i - 1].index].id,
                         t->id, STR_ARG(t->match));
        s->order[i] = item[i].index;
    }
    s->n = n;
    uint32_t at = 0;
    for (uint32_t b = 0; b <= 256; b++) {
        while (at < n && (uint8_t)item[at].match.p[0] < b)
            at++;
        s->first[b] = at;
        if (rc)
            break;
    }
    mem_free(item);
    return rc;
}

int added_build(struct added *a, struct err *err)
{
    int rc = set_build(a, &a->raw, false, err);
    return rc ? rc : set_build(a, &a->normalized, true, err);
}

void added_free(struct added *a)
{
    mem_free(a->token);
    mem_free(a->raw.order);
    mem_free(a->normalized.order);
}

const struct added_token *added_find_id(const struct added *a, uint32_t id)
{
    uint32_t lo = 0, hi = a->n;
    while (lo < hi) {
        uint32_t mid = lo + (hi - lo) / 2;
        if (a->token[mid].id < id)
            lo = mid + 1;
        else
            hi = mid;
    }
    return lo < a->n && a->token[lo].id == id ? &a->token[lo] : NULL;
}

/* First of order[lo..hi) whose byte at `depth` is >= b (shorter texts sort first). */
static uint32_t lower(const struct added *a, const struct added_set *s, uint32_t lo, uint32_t hi, size_t depth, uint32_t b)
{
    while (lo < hi) {
        uint32_t mid = lo + (hi - lo) / 2;
        struct str m = a->token[s->order[mid]].match;
        if (m.n <= depth || (uint8_t)m.p[depth] < b)
            lo = mid + 1;
        else
            hi = mid;
    }
    return lo;
}

/* The longest token that starts at `at` and is shorter than `below`. */
static const struct added_token *longest(const struct added *a, const struct added_set *s, struct str text, size_t at,
                                         size_t below)
{
    uint32_t b = (uint8_t)text.p[at], lo = s->first[b], hi = s->first[b + 1];
    const struct added_token *found = NULL;
    for (size_t depth = 1; lo < hi && depth < below; depth++) {
        const struct added_token *t = &a->token[s->order[lo]];
        if (t->match.n == depth) { /* the exact text sorts before its extensions */
            found = t;
            lo++;
        }
        if (at + depth >= text.n || lo >= hi)
            break;
        uint32_t next = (uint8_t)text.p[at + depth];
        lo = lower(a, s, lo, hi, depth, next);
        hi = lower(a, s, lo, hi, depth, next + 1);
    }
    return found;
}

static bool word_around(struct str text, size_t start, size_t end)
{
    const char *p = text.p + start, *q = text.p + end;
    return (start && unicode_more(unicode_prev(&p)) & UNICODE_WORD) ||
           (end < text.n && unicode_more(unicode_next(&q)) & UNICODE_WORD);
}

static void take_spaces(const struct added_token *t, struct str text, size_t from, struct added_match *m)
{
    const char *p = text.p + m->start;
    while (t->lstrip && p > text.p + from) {
        const char *q = p;
        if (!unicode_is_space(unicode_prev(&q)))
            break;
        p = q;
    }
    m->start = (size_t)(p - text.p);
    p = text.p + m->end;
    while (t->rstrip && p < text.p + text.n) {
        const char *q = p;
        if (!unicode_is_space(unicode_next(&q)))
            break;
        p = q;
    }
    m->end = (size_t)(p - text.p);
}

bool added_next(const struct added *a, const struct added_set *s, struct str text, size_t *at, size_t from,
                added_special_fn special, void *ctx, struct added_match *m)
{
    while (s->n && *at < text.n) {
        uint8_t b = (uint8_t)text.p[*at];
        if (s->first[b] == s->first[b + 1]) {
            *at += 1;
            continue;
        }
        const struct added_token *t = longest(a, s, text, *at, SIZE_MAX);
        int where = 1;
        while (t && t->special && special && (where = special(ctx, *at, *at + t->match.n)) < 0)
            t = longest(a, s, text, *at, t->match.n);
        if (!t) {
            *at += 1;
            continue;
        }
        size_t start = *at, end = *at + t->match.n;
        *at = end;
        if ((t->special && where == 0) || (t->single_word && word_around(text, start, end)))
            continue;
        *m = (struct added_match){start, end, t->id};
        take_spaces(t, text, from, m);
        if (t->lstrip && m->start < from) /* an earlier token took these spaces */
            m->start = from;
        if (m->start >= m->end)
            continue;
        return true;
    }
    return false;
}
