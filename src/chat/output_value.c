/* chat/output_value.c - one value as models write it -> JSON, byte by byte.
 *
 * JSON comes out byte for byte as it went in, but for what JSON forbids and models write nevertheless: control characters in strings
 * and unknown escapes are escaped, a comma too many is dropped, half a surrogate pair becomes U+FFFD.  By flags also Python's
 * literals and strings between marks.
 * Invariants: 1. What came out before VALUE_DONE is one JSON value.  2. No recursion: containers are bits of a word. */
#include "chat/output_int.h"

#include "base/utf8.h"

enum { /* struct output_value.state */
    V_VALUE,    /* a value */
    V_FIRST,    /* a container was opened */
    V_COMMA,    /* after a comma */
    V_KEY_WORD, /* inside a bare key */
    V_COLON,    /* after a key */
    V_AFTER,    /* after a value */
    V_WORD,     /* inside a number, true, null, ... */
    V_MARK,     /* inside the opening mark of a string */
    V_STRING,
    V_ESCAPE,   /* after a backslash */
    V_HEX,      /* inside the digits of an escape */
    V_TWO,      /* after two quotes: an empty string, or a triple one begins */
    V_DONE
};

_Static_assert(OUTPUT_DEPTH_MAX <= 64, "a bit for each depth");

void value_open(struct output_value *v, unsigned flags, const char *mark)
{
    *v = (struct output_value){.flags = (uint8_t)flags, .mark = str_of(mark)};
}

static bool is_space(uint8_t c)
{
    return c == ' ' || c == '\n' || c == '\r' || c == '\t';
}

static bool python(const struct output_value *v)
{
    return v->flags & VALUE_PYTHON;
}

static bool in_object(const struct output_value *v)
{
    return v->depth && (v->objects >> (v->depth - 1) & 1);
}

void value_escape(uint8_t c, struct buf *out)
{
    static const char letters[] = "btnvfr"; /* 8..13 */
    if (c == '"' || c == '\\')
        buf_char(out, '\\'), buf_char(out, (char)c);
    else if (c >= 8 && c <= 13 && c != 11)
        buf_char(out, '\\'), buf_char(out, letters[c - 8]);
    else if (c < 0x20)
        buf_printf(out, "\\u%04x", c);
    else
        buf_char(out, (char)c);
}

/* ---- strings ---- */

static void begin_string(struct output_value *v, uint8_t quote, struct buf *out)
{
    v->quote = quote;
    v->run = 0;
    v->high = 0;
    v->triple = false;
    v->state = V_STRING;
    buf_char(out, '"');
}

static enum value_step end_value(struct output_value *v)
{
    v->state = v->depth ? V_AFTER : V_DONE;
    return v->depth ? VALUE_MORE : VALUE_DONE;
}

static void lone_surrogate(struct output_value *v, struct buf *out)
{
    if (v->high)
        buf_z(out, "\\ufffd");
    v->high = 0;
}

static enum value_step end_string(struct output_value *v, struct buf *out)
{
    lone_surrogate(v, out);
    buf_char(out, '"');
    v->raw = false;
    if (v->is_key) {
        v->is_key = false;
        v->state = V_COLON;
        return VALUE_MORE;
    }
    return end_value(v);
}

/* A code point an escape names. */
static void put_escaped(struct output_value *v, uint32_t cp, struct buf *out)
{
    if (cp >= 0xDC00 && cp <= 0xDFFF && v->high) {
        buf_printf(out, "\\u%04x\\u%04x", v->high, cp);
        v->high = 0;
        return;
    }
    lone_surrogate(v, out);
    if (cp >= 0xD800 && cp <= 0xDBFF)
        v->high = cp;
    else if (cp > 0x10FFFF || (cp >= 0xDC00 && cp <= 0xDFFF))
        buf_z(out, "\\ufffd");
    else if (cp < 0x80)
        value_escape((uint8_t)cp, out);
    else {
        char bytes[4];
        buf_put(out, bytes, utf8_encode(cp, bytes));
    }
}

static uint32_t hex_value(const struct output_value *v, unsigned base)
{
    uint32_t n = 0;
    for (uint8_t i = 0; i < v->hex_n; i++) {
        uint8_t c = (uint8_t)v->hex[i];
        n = n * base + (c <= '9' ? c - (uint32_t)'0' : (c | 32u) - 'a' + 10u);
    }
    return n;
}

/* \uXXXX: as it was written, unless half of a pair is missing. */
static void end_hex(struct output_value *v, struct buf *out)
{
    uint32_t cp = hex_value(v, 16);
    v->state = V_STRING;
    if (v->hex_want == 4 && (cp < 0xD800 || cp > 0xDFFF)) {
        lone_surrogate(v, out);
        buf_z(out, "\\u");
        buf_put(out, v->hex, 4);
    } else {
        put_escaped(v, cp, out);
    }
}

static enum value_step put_string(struct output_value *v, uint8_t c, struct buf *out);

/* Digits that are none: the escape stands for itself. */
static enum value_step broken_hex(struct output_value *v, uint8_t c, struct buf *out)
{
    static const char letter[] = {[2] = 'x', [4] = 'u', [8] = 'U'};
    lone_surrogate(v, out);
    buf_z(out, "\\\\");
    buf_char(out, letter[v->hex_want]);
    buf_put(out, v->hex, v->hex_n);
    v->state = V_STRING;
    return put_string(v, c, out);
}

static enum value_step put_hex(struct output_value *v, uint8_t c, struct buf *out)
{
    bool octal = v->hex_want == 3;
    bool digit = octal ? c >= '0' && c <= '7' : (c >= '0' && c <= '9') || ((c | 32) >= 'a' && (c | 32) <= 'f');
    if (!digit && !octal)
        return broken_hex(v, c, out);
    if (digit)
        v->hex[v->hex_n++] = (char)c;
    if (octal && (!digit || v->hex_n == 3)) {
        put_escaped(v, hex_value(v, 8), out);
        v->state = V_STRING;
        return digit ? VALUE_MORE : put_string(v, c, out);
    }
    if (v->hex_n == v->hex_want)
        end_hex(v, out);
    return VALUE_MORE;
}

static void want_hex(struct output_value *v, uint8_t digits)
{
    v->hex_n = 0;
    v->hex_want = digits;
    v->state = V_HEX;
}

static bool python_escape(struct output_value *v, uint8_t c, struct buf *out)
{
    v->state = V_STRING;
    if (c == 'x')
        want_hex(v, 2);
    else if (c == 'U')
        want_hex(v, 8);
    else if (c >= '0' && c <= '7') {
        want_hex(v, 3);
        v->hex[v->hex_n++] = (char)c;
    } else if (c == 'a' || c == 'v')
        put_escaped(v, c == 'a' ? 7 : 11, out);
    else if (c != '\n') /* a line break after a backslash is none */
        return false;
    return true;
}

static enum value_step put_escape(struct output_value *v, uint8_t c, struct buf *out)
{
    if (c == 'u') {
        want_hex(v, 4);
        return VALUE_MORE;
    }
    lone_surrogate(v, out);
    v->state = V_STRING;
    if (python(v) && python_escape(v, c, out))
        return VALUE_MORE;
    if (c == '\'')
        buf_char(out, '\'');
    else if (c == '"' || c == '\\' || c == 'b' || c == 'f' || c == 'n' || c == 'r' || c == 't' || (c == '/' && !python(v)))
        buf_char(out, '\\'), buf_char(out, (char)c);
    else {
        buf_z(out, "\\\\"); /* no escape: the backslash stands for itself */
        return put_string(v, c, out);
    }
    return VALUE_MORE;
}

/* Bytes that may close a string between marks or triple quotes. */
static bool closing_run(struct output_value *v, uint8_t c, struct buf *out, enum value_step *step)
{
    bool mark = v->quote == 'm';
    uint8_t need = mark ? (uint8_t)v->mark.n : 3;
    if (c == (mark ? (uint8_t)v->mark.p[v->run] : v->quote)) {
        *step = ++v->run == need ? end_string(v, out) : VALUE_MORE;
        return true;
    }
    for (uint8_t i = 0; i < v->run; i++)
        value_escape(mark ? (uint8_t)v->mark.p[i] : v->quote, out);
    bool again = v->run && mark && c == (uint8_t)v->mark.p[0];
    v->run = again;
    *step = VALUE_MORE;
    return again;
}

static enum value_step put_string(struct output_value *v, uint8_t c, struct buf *out)
{
    enum value_step step;
    bool closes_by_run = v->quote == 'm' || v->triple;
    if (closes_by_run && closing_run(v, c, out, &step))
        return step;
    if (c == '\\' && v->quote != 'm' && !v->raw) {
        v->state = V_ESCAPE;
        return VALUE_MORE;
    }
    if (c == v->quote && !closes_by_run)
        return end_string(v, out);
    lone_surrogate(v, out);
    value_escape(c, out);
    return VALUE_MORE;
}

/* After a first quote comes a second: empty, or the beginning of a triple one. */
static enum value_step put_two(struct output_value *v, uint8_t c, struct buf *out);

static enum value_step first_of_string(struct output_value *v, uint8_t c, struct buf *out)
{
    if (python(v) && v->after_string && c == v->quote && !v->triple) {
        v->after_string = 0;
        v->state = V_TWO;
        return VALUE_MORE;
    }
    v->after_string = 0;
    return put_string(v, c, out);
}

/* ---- words: numbers, true, null, and what else stands without quotes ---- */

static bool word_char(uint8_t c)
{
    return (c >= '0' && c <= '9') || ((c | 32) >= 'a' && (c | 32) <= 'z') || c >= 0x80 || (c && strchr("_-+.$@/#%&*!?~^|;", c));
}

/* Too long is found at the beginning of a character, never inside. */
static enum value_step more_of_word(struct output_value *v, uint8_t c)
{
    bool inside = (c & 0xC0) == 0x80;
    if (v->word_n == VALUE_WORD_MAX || (v->word_n > VALUE_WORD_MAX - 4 && !inside))
        return VALUE_FAIL;
    v->word[v->word_n++] = (char)c;
    return VALUE_MORE;
}

static size_t digits(struct str s, size_t at)
{
    size_t n = 0;
    while (at + n < s.n && s.p[at + n] >= '0' && s.p[at + n] <= '9')
        n++;
    return n;
}

static bool json_number(struct str s)
{
    size_t at = s.n && s.p[0] == '-', n = digits(s, at);
    if (n == 0 || (n > 1 && s.p[at] == '0'))
        return false;
    at += n;
    if (at < s.n && s.p[at] == '.') {
        n = digits(s, at + 1);
        if (n == 0)
            return false;
        at += 1 + n;
    }
    if (at < s.n && (s.p[at] | 32) == 'e') {
        at += 1 + (at + 1 < s.n && (s.p[at + 1] == '-' || s.p[at + 1] == '+'));
        n = digits(s, at);
        if (n == 0)
            return false;
        at += n;
    }
    return at == s.n;
}

/* 1_000, +5, .5, 5. as JSON writes them */
static bool python_number(struct str s, struct buf *out)
{
    char text[VALUE_WORD_MAX + 2];
    size_t n = 0;
    for (size_t i = 0; i < s.n; i++) {
        bool digit_before = i && s.p[i - 1] >= '0' && s.p[i - 1] <= '9', digit_after = digits(s, i + 1) > 0;
        if ((s.p[i] == '_' && digit_before && digit_after) || (s.p[i] == '+' && i == 0))
            continue;
        if (s.p[i] == '.' && !digit_before && digit_after)
            text[n++] = '0';
        text[n++] = s.p[i];
        if (s.p[i] == '.' && digit_before && !digit_after)
            text[n++] = '0';
        if (n > VALUE_WORD_MAX)
            return false;
    }
    if (!json_number(str_n(text, n)))
        return false;
    buf_put(out, text, n);
    return true;
}

static void put_quoted(struct str s, struct buf *out)
{
    buf_char(out, '"');
    for (size_t i = 0; i < s.n; i++)
        value_escape((uint8_t)s.p[i], out);
    buf_char(out, '"');
}

static bool put_word(struct output_value *v, struct buf *out)
{
    static const char *const words[][2] = {{"true", "True"}, {"false", "False"}, {"null", "None"}};
    struct str s = str_n(v->word, v->word_n);
    size_t before = out->n;
    bool known = json_number(s);
    if (known)
        buf_str(out, s);
    for (int i = 0; i < 3 && !known; i++)
        if (str_is(s, words[i][0]) || (v->flags && str_is(s, words[i][1]))) {
            buf_z(out, words[i][0]);
            known = true;
        }
    if (!known && python(v) && !(known = python_number(s, out))) {
        put_quoted(s, out);
        known = true;
    }
    if (known && v->depth == 0 && out->n > before)
        v->root = out->p[before] == '-' ? '0' : out->p[before];
    return known;
}

static enum value_step put_after(struct output_value *v, uint8_t c, struct buf *out);

static enum value_step in_word(struct output_value *v, uint8_t c, struct buf *out)
{
    bool quote = c == '"' || c == '\'';
    if (quote && python(v) && v->word_n == 1 && strchr("rRbBuUfF", v->word[0])) {
        v->raw = (v->word[0] | 32) == 'r';
        begin_string(v, c, out);
        v->after_string = 1;
        return VALUE_MORE;
    }
    if (word_char(c)) {
        return more_of_word(v, c);
    }
    if (!put_word(v, out))
        return VALUE_FAIL;
    if (end_value(v) == VALUE_DONE)
        return VALUE_DONE_BEFORE;
    return put_after(v, c, out);
}

/* ---- containers ---- */

static enum value_step open_container(struct output_value *v, uint8_t c, struct buf *out)
{
    bool keywords = c == '(' && v->depth == 0 && (v->flags & VALUE_KEYWORDS), object = c == '{' || keywords;
    if (v->depth == OUTPUT_DEPTH_MAX)
        return VALUE_FAIL;
    uint64_t bit = (uint64_t)1 << v->depth++;
    v->objects = object ? v->objects | bit : v->objects & ~bit;
    v->parens = c == '(' ? v->parens | bit : v->parens & ~bit;
    buf_char(out, object ? '{' : '[');
    v->state = V_FIRST;
    return VALUE_MORE;
}

static bool closes(const struct output_value *v, uint8_t c)
{
    bool paren = v->depth && (v->parens >> (v->depth - 1) & 1);
    return v->depth && c == (paren ? ')' : in_object(v) ? '}' : ']');
}

static enum value_step close_container(struct output_value *v, struct buf *out)
{
    buf_char(out, in_object(v) ? '}' : ']');
    v->depth--;
    v->comma = false;
    return end_value(v);
}

/* A comma and the white space after it, once something follows. */
static void flush_comma(struct output_value *v, struct buf *out)
{
    if (v->comma) {
        buf_char(out, ',');
        buf_put(out, v->gap, v->gap_n);
    }
    v->comma = false;
}

static enum value_step put_after(struct output_value *v, uint8_t c, struct buf *out)
{
    if (is_space(c)) {
        buf_char(out, (char)c);
        return VALUE_MORE;
    }
    if (closes(v, c))
        return close_container(v, out);
    if (c != ',')
        return VALUE_FAIL;
    v->comma = true;
    v->gap_n = 0;
    v->state = V_COMMA;
    return VALUE_MORE;
}

static bool opens_string(const struct output_value *v, uint8_t c)
{
    return c == '"' || (c == '\'' && (v->flags & (VALUE_PYTHON | VALUE_QUOTES)));
}

static enum value_step begin_quoted(struct output_value *v, uint8_t c, struct buf *out)
{
    if (v->mark.n && c == (uint8_t)v->mark.p[0]) {
        v->run = 1;
        v->state = V_MARK;
        return VALUE_MORE;
    }
    if (!opens_string(v, c))
        return VALUE_FAIL;
    begin_string(v, c, out);
    v->after_string = 1;
    return VALUE_MORE;
}

static enum value_step begin_key(struct output_value *v, uint8_t c, struct buf *out)
{
    if (python(v) && word_char(c)) {
        v->word[0] = (char)c;
        v->word_n = 1;
        v->state = V_KEY_WORD;
        return VALUE_MORE;
    }
    v->is_key = true;
    return begin_quoted(v, c, out);
}

static enum value_step begin_value(struct output_value *v, uint8_t c, struct buf *out)
{
    if (v->depth == 0)
        v->root = c == '(' ? (v->flags & VALUE_KEYWORDS ? '{' : '[') : (char)c;
    if (c == '{' || c == '[' || (c == '(' && (python(v) || (v->flags & VALUE_KEYWORDS))))
        return open_container(v, c, out);
    if (word_char(c)) {
        v->word[0] = (char)c;
        v->word_n = 1;
        v->state = V_WORD;
        return VALUE_MORE;
    }
    return begin_quoted(v, c, out);
}

static enum value_step put_item(struct output_value *v, uint8_t c, struct buf *out)
{
    if (is_space(c)) {
        if (v->state == V_COMMA && v->gap_n < sizeof v->gap)
            v->gap[v->gap_n++] = (char)c;
        else if (v->state == V_FIRST || (v->state == V_VALUE && v->depth))
            buf_char(out, (char)c);
        return VALUE_MORE;
    }
    if (v->state != V_VALUE && closes(v, c))
        return close_container(v, out);
    bool key = v->state != V_VALUE && in_object(v);
    flush_comma(v, out);
    return key ? begin_key(v, c, out) : begin_value(v, c, out);
}

static enum value_step put_colon(struct output_value *v, uint8_t c, struct buf *out)
{
    bool keywords = v->depth == 1 && (v->parens & 1);
    if (is_space(c)) {
        buf_char(out, (char)c);
        return VALUE_MORE;
    }
    if (c != (keywords ? '=' : ':'))
        return VALUE_FAIL;
    buf_char(out, ':');
    v->state = V_VALUE;
    return VALUE_MORE;
}

static enum value_step key_word(struct output_value *v, uint8_t c, struct buf *out)
{
    if (word_char(c)) {
        return more_of_word(v, c);
    }
    put_quoted(str_n(v->word, v->word_n), out);
    v->state = V_COLON;
    return put_colon(v, c, out);
}

static enum value_step put_mark(struct output_value *v, uint8_t c, struct buf *out)
{
    if (c != (uint8_t)v->mark.p[v->run])
        return VALUE_FAIL;
    if (++v->run == v->mark.n)
        begin_string(v, 'm', out);
    return VALUE_MORE;
}

static enum value_step put_two(struct output_value *v, uint8_t c, struct buf *out)
{
    if (c == v->quote) {
        v->triple = true;
        v->state = V_STRING;
        return VALUE_MORE;
    }
    enum value_step step = end_string(v, out);
    if (step == VALUE_DONE)
        return VALUE_DONE_BEFORE;
    return v->state == V_COLON ? put_colon(v, c, out) : put_after(v, c, out);
}

enum value_step value_put(struct output_value *v, uint8_t c, struct buf *out)
{
    switch (v->state) {
    case V_VALUE:
    case V_FIRST:
    case V_COMMA: return put_item(v, c, out);
    case V_KEY_WORD: return key_word(v, c, out);
    case V_COLON: return put_colon(v, c, out);
    case V_AFTER: return put_after(v, c, out);
    case V_WORD: return in_word(v, c, out);
    case V_MARK: return put_mark(v, c, out);
    case V_STRING: return first_of_string(v, c, out);
    case V_ESCAPE: return put_escape(v, c, out);
    case V_HEX: return put_hex(v, c, out);
    case V_TWO: return put_two(v, c, out);
    default: return VALUE_FAIL;
    }
}

bool value_finish(struct output_value *v, struct buf *out)
{
    if (v->state == V_WORD && v->depth == 0 && put_word(v, out))
        v->state = V_DONE;
    if (v->state == V_TWO && v->depth == 0 && end_string(v, out) == VALUE_DONE)
        v->state = V_DONE;
    return v->state == V_DONE;
}

void value_pending(const struct output_value *v, struct buf *out)
{
    if (v->high)
        buf_printf(out, "\\u%04x", v->high);
    switch (v->state) {
    case V_WORD:
    case V_KEY_WORD: buf_put(out, v->word, v->word_n); break;
    case V_COMMA:
        if (v->comma) {
            buf_char(out, ',');
            buf_put(out, v->gap, v->gap_n);
        }
        break;
    case V_MARK: buf_put(out, v->mark.p, v->run); break;
    case V_STRING:
        for (uint8_t i = 0; i < v->run; i++)
            value_escape(v->quote == 'm' ? (uint8_t)v->mark.p[i] : v->quote, out);
        break;
    case V_ESCAPE: buf_char(out, '\\'); break;
    case V_HEX:
        buf_z(out, v->hex_want == 4 ? "\\u" : "\\");
        buf_put(out, v->hex, v->hex_n);
        break;
    default: break;
    }
}
