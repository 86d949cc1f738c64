/* text/regex_pcre.c - patterns outside our own subset, on PCRE2 (JIT, UTF).
 *
 * PCRE2 knows an older Unicode and reads some escapes differently, so the pattern is rewritten first: every property, \s, \d, \w,
 * \h and \b becomes explicit ranges from our tables; what would change its meaning otherwise is refused by name. */
#define PCRE2_CODE_UNIT_WIDTH 8
#include "text/regex_int.h"

#include "base/buf.h"
#include "base/mem.h"
#include "base/utf8.h"

#include <pcre2.h>

enum { PCRE_MATCH_LIMIT = 10000000, PCRE_HEAP_KIB = 64 * 1024 };

static void *pcre_alloc(size_t n, void *ctx)
{
    (void)ctx;
    return mem_try(n);
}

static void pcre_release(void *p, void *ctx)
{
    (void)ctx;
    mem_free(p);
}

static bool in_class(const struct regex_set *s, uint32_t cp)
{
    static const struct regex none;
    return regex_set_high(&none, s, cp);
}

/* The ranges of a class, as text inside brackets. */
static void put_ranges(struct buf *b, const struct regex_set *s)
{
    for (uint32_t cp = 0; cp < 0x110000; cp++) {
        if (!in_class(s, cp) || (cp >= 0xD800 && cp < 0xE000))
            continue;
        uint32_t hi = cp;
        while (hi + 1 < 0x110000 && in_class(s, hi + 1) && hi + 1 != 0xD800)
            hi++;
        buf_printf(b, "\\x{%x}-\\x{%x}", cp, hi);
        cp = hi;
    }
}

/* A class escape (the letter after the backslash) as a set; false when it is none.  *at is moved behind it. */
static bool class_escape(struct str pattern, size_t *at, struct regex_set *s, bool *bad)
{
    const uint32_t all = (1u << UNICODE_GC_COUNT) - 1;
    char c = pattern.p[*at];
    *s = (struct regex_set){0};
    *bad = false;
    switch (c) {
    case 's':
        s->props = PROP_SPACE;
        break;
    case 'S':
        s->props = PROP_NOT_SPACE;
        break;
    case 'd':
        s->gc = 1u << UNICODE_Nd;
        break;
    case 'D':
        s->gc = all & ~(1u << UNICODE_Nd);
        break;
    case 'w':
        s->props = PROP_WORD;
        break;
    case 'W':
        s->props = PROP_NOT_WORD;
        break;
    case 'p':
    case 'P': {
        size_t end = *at + 1;
        while (end < pattern.n && pattern.p[end] != '}')
            end++;
        if (end >= pattern.n || pattern.p[*at + 1] != '{') {
            *bad = true;
            return true;
        }
        bool negated = c == 'P';
        struct str name = str_n(pattern.p + *at + 2, end - *at - 2);
        if (name.n && name.p[0] == '^')
            negated = !negated, name = str_from(name, 1);
        uint32_t mask = regex_gc_mask(name);
        if (mask)
            s->gc = negated ? all & ~mask : mask;
        else if (str_is(name, "Han"))
            s->props = negated ? PROP_NOT_HAN : PROP_HAN;
        else
            *bad = true;
        *at = end + 1;
        return true;
    }
    default:
        return false;
    }
    *at += 1;
    return true;
}

/* \b and \B; the words' set stands once, at the end of the pattern */
static void put_word_border(struct buf *b, bool negated)
{
    buf_z(b, negated ? "(?:(?<=(?&rhword))(?=(?&rhword))|(?<!(?&rhword))(?!(?&rhword)))"
                     : "(?:(?<=(?&rhword))(?!(?&rhword))|(?<!(?&rhword))(?=(?&rhword)))");
}

static void put_word_set(struct buf *b)
{
    struct regex_set word = {.props = PROP_WORD};
    buf_z(b, "(?(DEFINE)(?<rhword>[");
    put_ranges(b, &word);
    buf_z(b, "]))");
}

/* Under (?i) some pairs of letters are equal to one character (ss and ß); PCRE2 does not know that. */
static bool folds_pairs(struct str p)
{
    static const char *const pairs[] = {"ss", "st", "ff", "fi", "fl", "\xC3\x9F", "\xE1\xBA\x9E", "\xEF\xAC"};
    if (str_find(p, STR("(?i")) == SIZE_MAX)
        return false;
    for (size_t at = 0; at < p.n; at++)
        for (size_t i = 0; i < sizeof pairs / sizeof *pairs; i++) {
            size_t n = strlen(pairs[i]), k = 0;
            while (k < n && at + k < p.n && (p.p[at + k] == pairs[i][k] || (p.p[at + k] | 32) == pairs[i][k]))
                k++;
            if (k == n)
                return true;
        }
    return false;
}

static int refuse(const char *where, const char *what, size_t at, struct err *err)
{
    return err_set(err, ERR_UNSUPPORTED, "%s: regular expression: %s at byte %zu is not supported", where, what, at);
}

/* One escape; *at is behind the backslash. */
static int rewrite_escape(struct buf *b, struct str p, size_t *at, bool inside, const char *where, struct err *err)
{
    struct regex_set s;
    bool bad;
    if (*at >= p.n)
        return refuse(where, "a backslash at the end", *at, err);
    char c = p.p[*at];
    if (class_escape(p, at, &s, &bad)) {
        if (bad)
            return refuse(where, "this property", *at, err);
        buf_z(b, inside ? "" : "[");
        put_ranges(b, &s);
        buf_z(b, inside ? "" : "]");
        return 0;
    }
    *at += 1;
    if (c == 'h') {
        buf_z(b, inside ? "0-9a-fA-F" : "[0-9a-fA-F]");
    } else if (c == 'H' && !inside) {
        buf_z(b, "[^0-9a-fA-F]");
    } else if (!inside && (c == 'b' || c == 'B')) {
        put_word_border(b, c == 'B');
    } else if (strchr("rntfvaexAzZ", c) || (c >= '0' && c <= '9') || !((c | 32) >= 'a' && (c | 32) <= 'z')) {
        buf_char(b, '\\');
        buf_char(b, c);
    } else {
        return refuse(where, "this escape", *at - 1, err);
    }
    return 0;
}

static int rewrite(struct buf *b, struct str p, const char *where, struct err *err)
{
    bool inside = false, words = str_find(p, STR("\\b")) != SIZE_MAX || str_find(p, STR("\\B")) != SIZE_MAX;
    size_t class_start = 0;
    if (folds_pairs(p))
        return refuse(where, "letters that fold together under (?i)", 0, err);
    buf_z(b, words ? "(?:" : "");
    for (size_t at = 0; at < p.n;) {
        char c = p.p[at++];
        if (c == '\\') {
            int rc = rewrite_escape(b, p, &at, inside, where, err);
            if (rc)
                return rc;
            continue;
        }
        if (inside) {
            bool first = at - 1 == class_start || (at - 1 == class_start + 1 && p.p[class_start] == '^');
            if (c == '[' || (c == '&' && at < p.n && p.p[at] == '&'))
                return refuse(where, "a set inside a set", at - 1, err);
            inside = c != ']' || first;
        } else if (c == '[') {
            inside = true;
            class_start = at;
        } else if (c == '(' && at + 1 < p.n && p.p[at] == '?' && !strchr(":=!<>i", p.p[at + 1])) {
            return refuse(where, "this kind of group", at - 1, err);
        } else if (c == '}' && at < p.n && p.p[at] == '+') {
            return refuse(where, "'}+'", at - 1, err);
        }
        buf_char(b, c);
    }
    buf_z(b, words ? ")" : "");
    if (words)
        put_word_set(b);
    return buf_check(b, "a rewritten regular expression", err);
}

int regex_compile_pcre(struct regex *re, struct str pattern, const char *where, struct err *err)
{
    struct buf text = {.max = 8u << 20};
    pcre2_general_context *general = NULL;
    pcre2_compile_context *compile = NULL;
    if (!utf8_valid(pattern) || memchr(pattern.p ? pattern.p : "", 0, pattern.n))
        return err_set(err, ERR_FORMAT, "%s: regular expression is not valid text", where);
    int rc = rewrite(&text, pattern, where, err);
    if (rc)
        goto out;
    general = pcre2_general_context_create(pcre_alloc, pcre_release, NULL);
    compile = general ? pcre2_compile_context_create(general) : NULL;
    if (!compile) {
        rc = err_nomem(err, "a regular expression", pattern.n);
        goto out;
    }
    pcre2_set_newline(compile, PCRE2_NEWLINE_LF);
    int code;
    PCRE2_SIZE offset;
    re->pcre = pcre2_compile((PCRE2_SPTR)text.p, text.n,
                             PCRE2_UTF | PCRE2_NO_UTF_CHECK | PCRE2_MULTILINE | PCRE2_NEVER_BACKSLASH_C, &code, &offset, compile);
    if (!re->pcre) {
        PCRE2_UCHAR message[160] = "";
        pcre2_get_error_message(code, message, sizeof message);
        rc = err_set(err, code == PCRE2_ERROR_NOMEMORY || code == 121 ? ERR_NOMEM : ERR_FORMAT,
                     "%s: regular expression '%.*s': %s", where, STR_ARG(pattern), (const char *)message);
        goto out;
    }
    re->pcre_limits = pcre2_match_context_create(general);
    if (!re->pcre_limits) {
        regex_free_pcre(re);
        rc = err_nomem(err, "a regular expression", pattern.n);
        goto out;
    }
    pcre2_set_match_limit(re->pcre_limits, PCRE_MATCH_LIMIT);
    pcre2_set_heap_limit(re->pcre_limits, PCRE_HEAP_KIB);
    /* where there is no JIT the interpreter gives the same matches */
    if (pcre2_jit_compile(re->pcre, PCRE2_JIT_COMPLETE) == PCRE2_ERROR_NOMEMORY) {
        regex_free_pcre(re);
        rc = err_nomem(err, "a regular expression", pattern.n);
    }
out:
    pcre2_compile_context_free(compile);
    pcre2_general_context_free(general);
    buf_free(&text);
    return rc;
}

void regex_free_pcre(struct regex *re)
{
    pcre2_code_free(re->pcre);
    pcre2_match_context_free(re->pcre_limits);
    re->pcre = re->pcre_limits = NULL;
}

void regex_cursor_free_pcre(struct regex_cursor *c)
{
    pcre2_match_data_free(c->pcre_match);
    c->pcre_match = NULL;
}

int regex_next_pcre(struct regex_cursor *c, size_t *start, size_t *end, struct err *err)
{
    if (!c->pcre_match)
        c->pcre_match = pcre2_match_data_create_from_pattern(c->re->pcre, NULL);
    if (!c->pcre_match)
        return err_nomem(err, "pattern matching", 0);
    PCRE2_SPTR text = (PCRE2_SPTR)c->text.p;
    int n = pcre2_match(c->re->pcre, text, c->text.n, c->at, PCRE2_NO_UTF_CHECK, c->pcre_match, c->re->pcre_limits);
    if (n == PCRE2_ERROR_JIT_STACKLIMIT)
        n = pcre2_match(c->re->pcre, text, c->text.n, c->at, PCRE2_NO_UTF_CHECK | PCRE2_NO_JIT, c->pcre_match,
                        c->re->pcre_limits);
    if (n == PCRE2_ERROR_NOMATCH)
        return 0;
    if (n < 0)
        return err_set(err, n == PCRE2_ERROR_NOMEMORY ? ERR_NOMEM : ERR_LIMIT,
                       "pattern gave up at byte %zu of %zu (PCRE2 error %d)", c->at, c->text.n, n);
    const PCRE2_SIZE *v = pcre2_get_ovector_pointer(c->pcre_match);
    *start = v[0];
    *end = v[1];
    return 1;
}
