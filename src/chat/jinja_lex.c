/* chat/jinja_lex.c - template text -> tokens, with trim_blocks and lstrip_blocks as chat templates are compiled.
 *
 * Owns:       nothing; tokens and unescaped strings go to the parse's arenas.
 * Invariants: 1. The source is normalised first: every line end is \n and one trailing newline is gone.
 *             2. A closing tag is seen only while all brackets of the tag are closed, as in Jinja2.
 * States:     text --{{--> variable --}}--> text;  text --{%--> block --%}--> text;  comments and raw blocks are eaten whole. */
#include "chat/jinja_ast.h"

#include "base/utf8.h"

#include <stdlib.h>

struct lexer {
    struct jparse *p;
    struct str src;
    size_t at;
    uint32_t line;
    bool line_start; /* what was eaten last ended with a newline */
    char open[JNODE_DEPTH_MAX];
    unsigned depth; /* brackets open inside a tag */
};

static size_t count_lines(const char *p, size_t n)
{
    size_t lines = 0;
    for (size_t i = 0; i < n; i++)
        lines += p[i] == '\n';
    return lines;
}

static bool has(const struct lexer *l, size_t at, const char *z)
{
    size_t n = strlen(z);
    return l->src.n - at >= n && memcmp(l->src.p + at, z, n) == 0;
}

/* bytes of white space at `at` */
static size_t space_run(const struct lexer *l, size_t at)
{
    size_t from = at;
    while (at < l->src.n) {
        uint32_t cp;
        size_t n = utf8_decode(str_from(l->src, at), &cp);
        if (!jchar_is_space(cp))
            break;
        at += n;
    }
    return at - from;
}

static struct jtoken *token_add(struct lexer *l, enum jtok type, struct str text)
{
    struct jparse *p = l->p;
    struct jtokens *t = &p->tokens;
    if (p->rc)
        return NULL;
    if (t->n == t->cap) {
        size_t cap = t->cap ? t->cap * 2 : 256;
        struct jtoken *v = arena_try_array(&p->scratch, cap, sizeof *v);
        if (!v) {
            p->rc = err_nomem(p->err, "template tokens", cap * sizeof *v);
            return NULL;
        }
        if (t->n)
            memcpy(v, t->v, t->n * sizeof *v);
        t->v = v;
        t->cap = cap;
    }
    struct jtoken *k = &t->v[t->n++];
    *k = (struct jtoken){.type = type, .line = l->line, .text = text};
    return k;
}

static void advance(struct lexer *l, size_t n)
{
    l->line += (uint32_t)count_lines(l->src.p + l->at, n);
    l->at += n;
    if (n)
        l->line_start = l->src.p[l->at - 1] == '\n';
}

/* ---- strings -------------------------------------------------------------------------------------------------------------- */

static int hex_value(char c)
{
    return c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
}

static size_t put_char(char *out, uint32_t cp)
{
    return utf8_encode(cp, out);
}

/* \xHH, \uHHHH, \UHHHHHHHH: returns the bytes after the letter, 0 when malformed */
static size_t unescape_hex(struct lexer *l, struct str s, size_t digits, uint32_t *cp)
{
    uint64_t v = 0;
    for (size_t i = 0; i < digits; i++) {
        int h = i < s.n ? hex_value(s.p[i]) : -1;
        if (h < 0) {
            jparse_fail(l->p, l->line, "truncated \\%c escape in a string", digits == 2 ? 'x' : digits == 4 ? 'u' : 'U');
            return 0;
        }
        v = v * 16 + (uint64_t)h;
    }
    if (v > 0x10FFFF || (v >= 0xD800 && v < 0xE000)) {
        jparse_fail(l->p, l->line, "string escape for %#llx: not a Unicode scalar value", (unsigned long long)v);
        return 0;
    }
    *cp = (uint32_t)v;
    return digits;
}

/* Python's unicode-escape puts a non-ASCII character after a backslash through a second escape; so do we. */
static size_t odd_escape(char *out, uint32_t cp)
{
    static const char hex[] = "0123456789abcdef";
    size_t digits = cp < 0x100 ? 2 : cp < 0x10000 ? 4 : 8, n = 0;
    out[n++] = '\\';
    out[n++] = cp < 0x100 ? 'x' : cp < 0x10000 ? 'u' : 'U';
    for (size_t i = digits; i-- > 0;)
        out[n++] = hex[cp >> (4 * i) & 15];
    return n;
}

/* One escape after the backslash at s[0]; returns the bytes read after it. */
static size_t unescape_one(struct lexer *l, struct str s, char *out, size_t *n)
{
    static const char from[] = "\\'\"abfnrtv", to[] = "\\'\"\a\b\f\n\r\t\v";
    char c = s.p[0];
    const char *hit = memchr(from, c, sizeof from - 1);
    uint32_t cp = 0;
    size_t used = 1;
    if (hit) {
        out[(*n)++] = to[hit - from];
        return 1;
    }
    if (c == '\n')
        return 1;
    if (c >= '0' && c <= '7') {
        for (used = 0; used < 3 && used < s.n && s.p[used] >= '0' && s.p[used] <= '7'; used++)
            cp = cp * 8 + (uint32_t)(s.p[used] - '0');
        *n += put_char(out + *n, cp);
        return used;
    }
    if (c == 'x' || c == 'u' || c == 'U') {
        size_t d = unescape_hex(l, str_from(s, 1), c == 'x' ? 2 : c == 'u' ? 4 : 8, &cp);
        if (d)
            *n += put_char(out + *n, cp);
        return 1 + d;
    }
    if (c == 'N') {
        jparse_fail(l->p, l->line, "\\N{...} escapes in strings are not supported");
        return 1;
    }
    used = utf8_decode(s, &cp);
    if (cp >= 0x80) {
        *n += odd_escape(out + *n, cp);
    } else {
        out[(*n)++] = '\\';
        out[(*n)++] = c;
    }
    return used;
}

static struct str unescape(struct lexer *l, struct str s)
{
    char *out = arena_try(l->p->mem, s.n * 4 + 1); /* an odd escape makes up to 10 bytes of 3 */
    if (!out) {
        l->p->rc = err_nomem(l->p->err, "template string", s.n);
        return s;
    }
    size_t n = 0;
    for (size_t i = 0; i < s.n && !l->p->rc;) {
        if (s.p[i] == '\\' && i + 1 < s.n) {
            i += 1 + unescape_one(l, str_from(s, i + 1), out, &n);
        } else {
            out[n++] = s.p[i++];
        }
    }
    return str_n(out, n);
}

static void lex_string(struct lexer *l)
{
    char quote = l->src.p[l->at];
    for (size_t i = l->at + 1; i < l->src.n; i++) {
        if (l->src.p[i] == '\\') {
            i++;
        } else if (l->src.p[i] == quote) {
            struct str raw = str_n(l->src.p + l->at + 1, i - l->at - 1);
            struct str text = memchr(raw.p, '\\', raw.n) ? unescape(l, raw) : arena_try_str(l->p->mem, raw);
            if (!text.p && !l->p->rc)
                l->p->rc = err_nomem(l->p->err, "template string", raw.n);
            token_add(l, JTOK_STRING, text);
            advance(l, i + 1 - l->at);
            return;
        }
    }
    jparse_fail(l->p, l->line, "unexpected char %s at %zu: the string is not closed", quote == '"' ? "'\"'" : "\"'\"", l->at);
}

/* ---- numbers, names, operators -------------------------------------------------------------------------------------------- */

static bool is_dec(char c)
{
    return c >= '0' && c <= '9';
}

/* digits with single underscores between them; returns the end */
static size_t digit_run(struct str s, size_t at, int base)
{
    while (at < s.n) {
        size_t d = s.p[at] == '_' && at + 1 < s.n ? at + 1 : at;
        int h = hex_value(s.p[d]);
        if (h < 0 || h >= base)
            break;
        at = d + 1;
    }
    return at;
}

/* the end of a float at `at`, or `at` when there is none */
static size_t float_end(struct str s, size_t at)
{
    size_t i = digit_run(s, at, 10), end = at;
    if (i + 1 < s.n && s.p[i] == '.' && is_dec(s.p[i + 1]))
        end = i = digit_run(s, i + 1, 10);
    if (i < s.n && (s.p[i] == 'e' || s.p[i] == 'E')) {
        size_t e = i + 1;
        if (e < s.n && (s.p[e] == '+' || s.p[e] == '-'))
            e++;
        if (e < s.n && is_dec(s.p[e]))
            end = digit_run(s, e, 10);
    }
    return end;
}

static void lex_float(struct lexer *l, size_t end)
{
    char text[64];
    size_t n = 0;
    for (size_t i = l->at; i < end && n < sizeof text - 1; i++)
        if (l->src.p[i] != '_')
            text[n++] = l->src.p[i];
    text[n] = 0;
    struct jtoken *t = token_add(l, JTOK_FLOAT, str_n(l->src.p + l->at, end - l->at));
    if (n == sizeof text - 1)
        jparse_fail(l->p, l->line, "number longer than %zu digits", sizeof text - 1);
    else if (t)
        t->f = strtod(text, NULL);
    advance(l, end - l->at);
}

static void lex_int(struct lexer *l)
{
    struct str s = l->src;
    size_t at = l->at, end;
    int base = 10;
    char mark = at + 1 < s.n ? (char)(s.p[at + 1] | 0x20) : 0;
    if (s.p[at] == '0' && (mark == 'x' || mark == 'o' || mark == 'b')) {
        base = mark == 'x' ? 16 : mark == 'o' ? 8 : 2;
        at += 2;
    }
    end = s.p[at < s.n ? at : l->at] == '0' && base == 10 ? digit_run(s, at, 1) : digit_run(s, at, base);
    uint64_t v = 0;
    for (size_t i = at; i < end; i++) {
        if (s.p[i] == '_')
            continue;
        if (__builtin_mul_overflow(v, (uint64_t)base, &v) || __builtin_add_overflow(v, (uint64_t)hex_value(s.p[i]), &v)) {
            jparse_fail(l->p, l->line, "whole numbers above 64 bits are not supported");
            return;
        }
    }
    if (end == at) { /* "0x" alone: a zero, then a name */
        end = l->at + 1;
        v = 0;
    }
    struct jtoken *t = token_add(l, JTOK_INT, str_n(s.p + l->at, end - l->at));
    if (t) {
        t->i = (int64_t)v;
        t->big = v > INT64_MAX;
    }
    advance(l, end - l->at);
}

static void lex_operator(struct lexer *l)
{
    static const struct {
        const char *text;
        enum jtok type;
    } ops[] = {
        {"//", JTOK_FLOORDIV}, {"**", JTOK_POW}, {"==", JTOK_EQ}, {"!=", JTOK_NE}, {">=", JTOK_GE}, {"<=", JTOK_LE},
        {"+", JTOK_ADD}, {"-", JTOK_SUB}, {"/", JTOK_DIV}, {"*", JTOK_MUL}, {"%", JTOK_MOD}, {"~", JTOK_TILDE},
        {"[", JTOK_LBRACKET}, {"]", JTOK_RBRACKET}, {"(", JTOK_LPAREN}, {")", JTOK_RPAREN}, {"{", JTOK_LBRACE},
        {"}", JTOK_RBRACE}, {">", JTOK_GT}, {"<", JTOK_LT}, {"=", JTOK_ASSIGN}, {".", JTOK_DOT}, {":", JTOK_COLON},
        {"|", JTOK_PIPE}, {",", JTOK_COMMA}, {";", JTOK_SEMICOLON},
    };
    for (size_t i = 0; i < sizeof ops / sizeof *ops; i++) {
        if (!has(l, l->at, ops[i].text))
            continue;
        char c = ops[i].text[0];
        if (c == '(' || c == '[' || c == '{') {
            if (l->depth == sizeof l->open) {
                jparse_fail(l->p, l->line, "brackets nested deeper than %zu", sizeof l->open);
                return;
            }
            l->open[l->depth++] = c == '(' ? ')' : c == '[' ? ']' : '}';
        } else if (c == ')' || c == ']' || c == '}') {
            if (!l->depth)
                jparse_fail(l->p, l->line, "unexpected '%c'", c);
            else if (l->open[--l->depth] != c)
                jparse_fail(l->p, l->line, "unexpected '%c', expected '%c'", c, l->open[l->depth]);
        }
        token_add(l, ops[i].type, str_of(ops[i].text));
        advance(l, strlen(ops[i].text));
        return;
    }
    uint32_t cp;
    size_t n = utf8_decode(str_from(l->src, l->at), &cp);
    jparse_fail(l->p, l->line, "unexpected char '%.*s' at %zu", (int)n, l->src.p + l->at, l->at);
}

static bool name_char(uint32_t cp, bool first)
{
    if (cp < 0x80)
        return cp == '_' || (cp >= 'a' && cp <= 'z') || (cp >= 'A' && cp <= 'Z') || (!first && cp >= '0' && cp <= '9');
    return first ? jchar_is_alpha(cp) : jchar_is_alnum(cp);
}

static size_t name_end(const struct lexer *l)
{
    size_t at = l->at;
    while (at < l->src.n) {
        uint32_t cp;
        size_t n = utf8_decode(str_from(l->src, at), &cp);
        if (!name_char(cp, at == l->at))
            break;
        at += n;
    }
    return at;
}

static void lex_expression_token(struct lexer *l)
{
    char c = l->src.p[l->at];
    size_t end;
    if ((end = space_run(l, l->at)) > 0) {
        advance(l, end);
    } else if (is_dec(c)) {
        end = l->at && l->src.p[l->at - 1] == '.' ? l->at : float_end(l->src, l->at);
        if (end > l->at)
            lex_float(l, end);
        else
            lex_int(l);
    } else if ((end = name_end(l)) > l->at) {
        token_add(l, JTOK_NAME, str_n(l->src.p + l->at, end - l->at));
        advance(l, end - l->at);
    } else if (c == '"' || c == '\'') {
        lex_string(l);
    } else {
        lex_operator(l);
    }
}

/* ---- tags ----------------------------------------------------------------------------------------------------------------- */

/* length of a closing tag at `at` (its trimming included), 0 = none: "+%}", "-%}" and white space, "%}" and a newline */
static size_t close_tag(const struct lexer *l, size_t at, const char *close, bool trim)
{
    if (l->src.p[at] == '-' && has(l, at + 1, close))
        return 3 + space_run(l, at + 3);
    if (trim && l->src.p[at] == '+' && has(l, at + 1, close))
        return 3;
    if (has(l, at, close))
        return 2 + (trim && at + 2 < l->src.n && l->src.p[at + 2] == '\n');
    return 0;
}

static void lex_tag(struct lexer *l, bool block)
{
    const char *close = block ? "%}" : "}}";
    token_add(l, block ? JTOK_BLOCK_BEGIN : JTOK_VAR_BEGIN, str_n(l->src.p + l->at, 2));
    l->depth = 0;
    while (l->at < l->src.n && !l->p->rc) {
        size_t n = l->depth ? 0 : close_tag(l, l->at, close, block);
        if (n) {
            token_add(l, block ? JTOK_BLOCK_END : JTOK_VAR_END, str_n(l->src.p + l->at, 2));
            advance(l, n);
            return;
        }
        lex_expression_token(l);
    }
}

static void lex_comment(struct lexer *l)
{
    for (size_t i = l->at; i < l->src.n; i++) {
        size_t n = close_tag(l, i, "#}", true);
        if (n) {
            advance(l, i + n - l->at);
            return;
        }
    }
    if (l->at < l->src.n) /* Jinja2 lets one that opens at the very end pass */
        jparse_fail(l->p, l->line, "Missing end of comment tag");
}

/* Text before a tag whose sign is `sign`: trailing white space goes with '-', a blank line start with lstrip_blocks. */
static struct str strip_before(struct str text, char sign, bool variable, bool line_start)
{
    if (sign == '-')
        return jstr_strip(text, false, true);
    if (sign == '+' || variable)
        return text;
    size_t from = text.n;
    while (from > 0 && text.p[from - 1] != '\n')
        from--;
    if (from == 0 && !line_start)
        return text;
    if (from < text.n && space_run(&(struct lexer){.src = text}, from) == text.n - from)
        text.n = from;
    return text;
}

/* A raw block opening at `at` ("{%"): its length, 0 when the tag is not raw. */
static size_t raw_open(const struct lexer *l, size_t at)
{
    size_t i = at + 2;
    if (i < l->src.n && (l->src.p[i] == '-' || l->src.p[i] == '+'))
        i++;
    i += space_run(l, i);
    if (!has(l, i, "raw"))
        return 0;
    i += 3;
    i += space_run(l, i);
    if (has(l, i, "-%}"))
        return i + 3 + space_run(l, i + 3) - at;
    return has(l, i, "%}") ? i + 2 - at : 0;
}

static void lex_raw(struct lexer *l)
{
    for (size_t i = l->at; i + 1 < l->src.n; i++) {
        if (!has(l, i, "{%"))
            continue;
        char sign = i + 2 < l->src.n ? l->src.p[i + 2] : 0;
        size_t j = i + 2 + (sign == '-' || sign == '+');
        j += space_run(l, j);
        if (!has(l, j, "endraw"))
            continue;
        j += 6;
        j += space_run(l, j);
        size_t n = j < l->src.n ? close_tag(l, j, "%}", true) : 0;
        if (!n)
            continue;
        struct str text = strip_before(str_n(l->src.p + l->at, i - l->at), sign, false, l->line_start);
        if (text.n)
            token_add(l, JTOK_DATA, text);
        advance(l, j + n - l->at);
        return;
    }
    if (l->at < l->src.n)
        jparse_fail(l->p, l->line, "Missing end of raw directive");
}

static void lex_text(struct lexer *l)
{
    size_t i = l->at;
    while (i + 1 < l->src.n && !(l->src.p[i] == '{' && strchr("{%#", l->src.p[i + 1]) && l->src.p[i + 1]))
        i++;
    if (i + 1 >= l->src.n) {
        token_add(l, JTOK_DATA, str_from(l->src, l->at));
        l->at = l->src.n;
        return;
    }
    char kind = l->src.p[i + 1], sign = i + 2 < l->src.n ? l->src.p[i + 2] : 0;
    size_t raw = kind == '%' ? raw_open(l, i) : 0;
    struct str text = strip_before(str_n(l->src.p + l->at, i - l->at), sign, kind == '{', l->line_start);
    if (text.n)
        token_add(l, JTOK_DATA, text);
    advance(l, i - l->at);
    if (raw) {
        advance(l, raw);
        lex_raw(l);
        return;
    }
    advance(l, 2 + (sign == '-' || sign == '+'));
    if (kind == '#')
        lex_comment(l);
    else
        lex_tag(l, kind == '%');
}

/* \r\n and \r become \n; one newline at the end is dropped */
static struct str normalize(struct jparse *p, struct str s)
{
    char *out = arena_try(p->mem, s.n + 1);
    if (!out) {
        p->rc = err_nomem(p->err, "template text", s.n);
        return s;
    }
    size_t n = 0;
    for (size_t i = 0; i < s.n; i++) {
        if (s.p[i] == '\r' && i + 1 < s.n && s.p[i + 1] == '\n')
            continue;
        out[n++] = s.p[i] == '\r' ? '\n' : s.p[i];
    }
    if (n && out[n - 1] == '\n')
        n--;
    return str_n(out, n);
}

int jlex(struct jparse *p, struct str source)
{
    if (!utf8_valid(source))
        return jparse_fail(p, 1, "the template is not valid UTF-8");
    struct lexer l = {.p = p, .src = normalize(p, source), .line = 1, .line_start = true};
    while (l.at < l.src.n && !p->rc)
        lex_text(&l);
    token_add(&l, JTOK_EOF, STR(""));
    return p->rc;
}
