/* text/regex_parse.c - pattern text -> program of our own matcher, for the subset described in regex.h.
 *
 * Invariants: 1. what is accepted means exactly what Oniguruma's default syntax means; anything doubtful is left to PCRE2 by
 *                answering "outside the subset".
 *             2. recursion follows parentheses and is capped at REGEX_NESTING_MAX. */
#include "text/regex_int.h"

#include "base/utf8.h"

struct parser {
    struct regex *re;
    const char *p, *end;
    bool fold;   /* inside (?i: ) */
    bool refuse; /* outside the subset */
    int depth;
};

/* what a piece of program can match, for loops and first bytes */
struct atom {
    uint32_t ins_at;
    bool is_set; /* exactly one OP_SET */
    bool empty;  /* may match nothing */
};

static uint32_t peek(const struct parser *ps)
{
    uint32_t cp;
    return ps->p == ps->end ? UTF8_BAD : (utf8_decode(str_n(ps->p, (size_t)(ps->end - ps->p)), &cp), cp);
}

static uint32_t take(struct parser *ps)
{
    uint32_t cp;
    if (ps->p == ps->end) {
        ps->refuse = true;
        return 0;
    }
    ps->p += utf8_decode(str_n(ps->p, (size_t)(ps->end - ps->p)), &cp);
    ps->refuse |= cp == UTF8_BAD;
    return cp == UTF8_BAD ? 0 : cp;
}

static bool eat(struct parser *ps, const char *z)
{
    size_t n = strlen(z);
    if ((size_t)(ps->end - ps->p) < n || memcmp(ps->p, z, n))
        return false;
    ps->p += n;
    return true;
}

static struct regex_ins *emit(struct parser *ps, enum regex_op op)
{
    if (ps->re->ins_count == REGEX_INS_MAX) {
        ps->refuse = true;
        ps->re->ins_count--;
    }
    struct regex_ins *in = &ps->re->ins[ps->re->ins_count++];
    *in = (struct regex_ins){.op = (uint8_t)op};
    return in;
}

uint32_t regex_gc_mask(struct str name)
{
    static const char *const names[] = {
#define GC_NAME(n) #n,
        UNICODE_GC_LIST(GC_NAME)
#undef GC_NAME
    };
    static const struct {
        const char *long_name, *short_name;
    } longs[] = {{"Letter", "L"}, {"Mark", "M"},   {"Number", "N"}, {"Punctuation", "P"},
                 {"Punct", "P"},  {"Symbol", "S"}, {"Other", "C"}};
    for (size_t i = 0; i < sizeof longs / sizeof *longs; i++)
        if (str_is(name, longs[i].long_name))
            name = str_of(longs[i].short_name);
    if (name.n != 1 && name.n != 2)
        return 0;
    uint32_t mask = 0;
    for (uint32_t i = 0; i < UNICODE_GC_COUNT; i++)
        if (names[i][0] == name.p[0] && (name.n == 1 || names[i][1] == name.p[1]))
            mask |= 1u << i;
    return mask;
}

bool regex_set_high(const struct regex *re, const struct regex_set *s, uint32_t cp)
{
    uint8_t m = unicode_main(cp);
    bool hit = s->gc >> (m & UNICODE_GC_MASK) & 1;
    if (s->props && !hit) {
        hit = (s->props & PROP_SPACE && m & UNICODE_SPACE) || (s->props & PROP_NOT_SPACE && !(m & UNICODE_SPACE)) ||
              (s->props & PROP_HAN && m & UNICODE_HAN) || (s->props & PROP_NOT_HAN && !(m & UNICODE_HAN));
        if (!hit && s->props & (PROP_WORD | PROP_NOT_WORD))
            hit = !(unicode_more(cp) & UNICODE_WORD_ONIG) == !(s->props & PROP_WORD);
    }
    for (uint32_t i = 0; i < s->range_count && !hit; i++)
        hit = cp >= re->range[s->range_at + i].lo && cp <= re->range[s->range_at + i].hi;
    if (hit && s->both)
        hit = regex_set_has(re, &re->set[s->both - 1], cp);
    return hit != s->negate;
}

static struct regex_set *set_new(struct parser *ps)
{
    if (ps->re->set_count == REGEX_SETS_MAX) {
        ps->refuse = true;
        ps->re->set_count--;
    }
    struct regex_set *s = &ps->re->set[ps->re->set_count++];
    *s = (struct regex_set){.range_at = (uint16_t)ps->re->range_count};
    return s;
}

static void set_add(struct parser *ps, struct regex_set *s, uint32_t lo, uint32_t hi)
{
    if (lo > hi || ps->re->range_count == REGEX_RANGES_MAX) {
        ps->refuse = true;
        return;
    }
    ps->re->range[ps->re->range_count++] = (struct regex_range){lo, hi};
    s->range_count++;
}

/* Code points that fold to the same letter beyond ASCII: long s, Kelvin sign. */
static void set_add_folded(struct parser *ps, struct regex_set *s, uint32_t lo, uint32_t hi)
{
    set_add(ps, s, lo, hi);
    if (!ps->fold)
        return;
    for (uint32_t c = lo; c <= hi && !ps->refuse; c++) {
        if (c >= 128) {
            ps->refuse = true; /* folding beyond ASCII is not ours */
            return;
        }
        uint32_t l = c | 32;
        if (l < 'a' || l > 'z')
            continue;
        set_add(ps, s, c ^ 32, c ^ 32);
        if (l == 's' || l == 'k')
            set_add(ps, s, l == 's' ? 0x17F : 0x212A, l == 's' ? 0x17F : 0x212A);
    }
}

/* Fill the ASCII part from the general rule; note whether anything above may match. */
static uint16_t set_finish(struct parser *ps, struct regex_set *s)
{
    for (uint32_t c = 0; c < 128; c++)
        if (regex_set_high(ps->re, s, c))
            s->ascii[c >> 6] |= 1ull << (c & 63);
    s->high = s->negate || s->gc || s->props;
    for (uint32_t i = 0; i < s->range_count; i++)
        s->high |= ps->re->range[s->range_at + i].hi >= 128;
    return (uint16_t)(s - ps->re->set);
}

/* \p{X} or \P{X}: the letter is taken already. */
static void set_property(struct parser *ps, struct regex_set *s, bool negated)
{
    if (!eat(ps, "{")) {
        ps->refuse = true;
        return;
    }
    negated ^= eat(ps, "^");
    const char *name = ps->p;
    while (ps->p < ps->end && *ps->p != '}')
        ps->p++;
    struct str text = str_n(name, (size_t)(ps->p - name));
    if (!eat(ps, "}")) {
        ps->refuse = true;
        return;
    }
    uint32_t mask = regex_gc_mask(text);
    if (mask)
        s->gc |= negated ? ~mask & ((1u << UNICODE_GC_COUNT) - 1) : mask;
    else if (str_is(text, "Han"))
        s->props |= negated ? PROP_NOT_HAN : PROP_HAN;
    else
        ps->refuse = true;
}

/* After a backslash.  Returns true and *cp for a plain character, false when a class was added to the set. */
static bool escape(struct parser *ps, struct regex_set *s, uint32_t *cp)
{
    uint32_t c = take(ps);
    switch (c) {
    case 'r':
        *cp = '\r';
        return true;
    case 'n':
        *cp = '\n';
        return true;
    case 't':
        *cp = '\t';
        return true;
    case 'f':
        *cp = '\f';
        return true;
    case 's':
        s->props |= PROP_SPACE;
        return false;
    case 'S':
        s->props |= PROP_NOT_SPACE;
        return false;
    case 'd':
        s->gc |= 1u << UNICODE_Nd;
        return false;
    case 'D':
        s->gc |= ~(1u << UNICODE_Nd) & ((1u << UNICODE_GC_COUNT) - 1);
        return false;
    case 'w':
        s->props |= PROP_WORD;
        return false;
    case 'W':
        s->props |= PROP_NOT_WORD;
        return false;
    case 'p':
        set_property(ps, s, false);
        return false;
    case 'P':
        set_property(ps, s, true);
        return false;
    default:
        break;
    }
    if ((c | 32) >= 'a' && (c | 32) <= 'z')
        ps->refuse = true;
    if (c >= '0' && c <= '9')
        ps->refuse = true;
    *cp = c;
    return true;
}

static uint16_t bracket(struct parser *ps);

/* [X&&[Y]]: the Y, a whole set of its own; anything else about && is not ours */
static void intersection(struct parser *ps, struct regex_set *s, bool negate)
{
    if (negate || !eat(ps, "&&[") || ++ps->depth > REGEX_NESTING_MAX) {
        ps->refuse = true;
        return;
    }
    struct regex_set mine = *s;
    uint16_t other = bracket(ps);
    *s = mine;
    s->both = (uint16_t)(other + 1);
    ps->depth--;
    if (peek(ps) != ']')
        ps->refuse = true;
}

static uint16_t bracket(struct parser *ps)
{
    struct regex_set *s = set_new(ps);
    bool negate = eat(ps, "^");
    bool any = false;
    while (!ps->refuse && !(any && peek(ps) == ']')) {
        if (any && ps->end - ps->p >= 2 && ps->p[0] == '&' && ps->p[1] == '&') {
            intersection(ps, s, negate);
            continue;
        }
        uint32_t lo = take(ps), hi;
        any = true;
        if (lo == '[' || lo == ']' || (lo == '&' && peek(ps) == '&')) { /* nested sets and "[]" are not ours */
            ps->refuse = true;
            break;
        }
        if (lo == '\\' && !escape(ps, s, &lo))
            continue;
        hi = lo;
        if (ps->end - ps->p >= 2 && ps->p[0] == '-' && ps->p[1] != ']') {
            ps->p++;
            hi = take(ps);
            if (hi == '[' || (hi == '\\' && !escape(ps, s, &hi)))
                ps->refuse = true;
        }
        set_add_folded(ps, s, lo, hi);
    }
    if (ps->fold && (s->gc || s->props))
        ps->refuse = true;
    if (!eat(ps, "]"))
        ps->refuse = true;
    s->negate = negate;
    return set_finish(ps, s);
}

static uint16_t single(struct parser *ps, uint32_t cp)
{
    struct regex_set *s = set_new(ps);
    set_add_folded(ps, s, cp, cp);
    return set_finish(ps, s);
}

static void alternatives(struct parser *ps, bool top, bool *empty);

/* (?= or (?! around one set, as in (?!\S) */
static void look_ahead(struct parser *ps, enum regex_op op)
{
    struct regex_set *s;
    uint32_t cp;
    uint16_t set;
    if (eat(ps, "[")) {
        set = bracket(ps);
    } else if (eat(ps, "\\")) {
        s = set_new(ps);
        if (escape(ps, s, &cp))
            set_add(ps, s, cp, cp);
        set = set_finish(ps, s);
    } else {
        ps->refuse = true;
        return;
    }
    if (!eat(ps, ")"))
        ps->refuse = true;
    emit(ps, op)->set = set;
}

static struct atom group(struct parser *ps)
{
    struct atom a = {.ins_at = ps->re->ins_count};
    bool fold = ps->fold;
    if (eat(ps, "?=")) {
        look_ahead(ps, OP_LOOK);
        a.empty = true;
        return a;
    }
    if (eat(ps, "?!")) {
        look_ahead(ps, OP_LOOK_NOT);
        a.empty = true;
        return a;
    }
    if (eat(ps, "?i:"))
        ps->fold = true;
    else if (!eat(ps, "?:") && peek(ps) == '?')
        ps->refuse = true;
    if (++ps->depth > REGEX_NESTING_MAX)
        ps->refuse = true;
    else if (!ps->refuse)
        alternatives(ps, false, &a.empty);
    ps->depth--;
    ps->fold = fold;
    if (!eat(ps, ")"))
        ps->refuse = true;
    return a;
}

/* Sequences that fold to one character (ss, st, ff, fi, fl and the like) are not ours under (?i: ). */
static void fold_pairs(struct parser *ps, uint32_t cp)
{
    uint32_t next = peek(ps) | 32;
    cp |= 32;
    if ((cp == 's' && (next == 's' || next == 't')) || (cp == 'f' && (next == 'f' || next == 'i' || next == 'l')) ||
        (cp == 'h' || cp == 't' || cp == 'w' || cp == 'y' || cp == 'a' || cp == 'i' || cp == 'j' ? next >= 128 && next != UTF8_BAD
                                                                                                 : false))
        ps->refuse = true;
}

static struct atom atom(struct parser *ps)
{
    struct atom a = {.ins_at = ps->re->ins_count, .is_set = true};
    uint32_t cp = take(ps);
    uint16_t set;
    if (cp == '(')
        return group(ps);
    if (cp == '$') {
        emit(ps, OP_LINE_END);
        return (struct atom){.ins_at = a.ins_at, .empty = true};
    }
    if (cp == '[') {
        set = bracket(ps);
    } else if (cp == '\\') {
        struct regex_set *s = set_new(ps);
        if (escape(ps, s, &cp))
            set_add_folded(ps, s, cp, cp);
        else if (ps->fold)
            ps->refuse = true;
        set = set_finish(ps, s);
    } else {
        if (cp == '^' || cp == '.' || cp == '*' || cp == '+' || cp == '?')
            ps->refuse = true;
        if (ps->fold)
            fold_pairs(ps, cp);
        set = single(ps, cp);
    }
    emit(ps, OP_SET)->set = set;
    return a;
}

static bool number(struct parser *ps, uint32_t *n)
{
    const char *start = ps->p;
    uint32_t v = 0;
    while (ps->p < ps->end && *ps->p >= '0' && *ps->p <= '9' && v < 100000)
        v = v * 10 + (uint32_t)(*ps->p++ - '0');
    *n = v;
    return ps->p > start && v < 100000;
}

/* Reads a repeat sign; false when there is none. */
static bool repeat(struct parser *ps, uint32_t *min, uint32_t *max, bool *keep)
{
    *keep = false;
    if (eat(ps, "?"))
        *min = 0, *max = 1;
    else if (eat(ps, "*"))
        *min = 0, *max = REGEX_INF;
    else if (eat(ps, "+"))
        *min = 1, *max = REGEX_INF;
    else if (peek(ps) == '{') {
        ps->p++;
        if (!number(ps, min)) {
            ps->refuse = true;
            return true;
        }
        *max = *min;
        if (eat(ps, ",") && !number(ps, max))
            *max = REGEX_INF;
        if (!eat(ps, "}") || *max < *min)
            ps->refuse = true;
        if (eat(ps, "+")) { /* not possessive in this syntax: (X{n,m})+, which for n = 1 is X+ */
            ps->refuse |= *min != 1;
            *max = REGEX_INF;
        }
        ps->refuse |= peek(ps) == '?' || peek(ps) == '*' || peek(ps) == '{';
        return true;
    } else
        return false;
    *keep = eat(ps, "+");
    ps->refuse |= peek(ps) == '?' || peek(ps) == '*' || peek(ps) == '+' || peek(ps) == '{'; /* lazy or doubled */
    return true;
}

/* Repeats a group: (..)? (..)* (..)+ only; loops need a body that eats something. */
static void repeat_group(struct parser *ps, struct atom *a, uint32_t min, uint32_t max, bool keep)
{
    struct regex *re = ps->re;
    if (keep || (max != REGEX_INF && max != 1) || min > 1 || (a->empty && max == REGEX_INF) ||
        re->ins_count + 2 >= REGEX_INS_MAX) {
        ps->refuse = true;
        return;
    }
    if (min == 1 && max == 1)
        return;
    uint32_t body = re->ins_count - a->ins_at;
    if (min == 1) { /* body; split back, on */
        struct regex_ins *in = emit(ps, OP_SPLIT);
        in->x = a->ins_at;
        in->y = re->ins_count;
        return;
    }
    memmove(&re->ins[a->ins_at + 1], &re->ins[a->ins_at], body * sizeof *re->ins);
    re->ins_count++;
    for (uint32_t i = a->ins_at + 1; i < re->ins_count; i++)
        if (re->ins[i].op == OP_SPLIT || re->ins[i].op == OP_JUMP)
            re->ins[i].x++, re->ins[i].y++;
    if (max == REGEX_INF)
        emit(ps, OP_JUMP)->x = a->ins_at;
    re->ins[a->ins_at] = (struct regex_ins){.op = OP_SPLIT, .x = a->ins_at + 1, .y = re->ins_count};
    a->empty = true;
}

static void sequence(struct parser *ps, bool *empty)
{
    *empty = true;
    while (ps->p < ps->end && *ps->p != '|' && *ps->p != ')' && !ps->refuse) {
        struct atom a = atom(ps);
        uint32_t min = 1, max = 1;
        bool keep;
        if (!ps->refuse && repeat(ps, &min, &max, &keep)) {
            struct regex_ins *in = &ps->re->ins[a.ins_at];
            if (a.is_set && ps->re->ins_count == a.ins_at + 1) {
                *in = (struct regex_ins){.op = (uint8_t)(keep ? OP_RUN_KEEP : OP_RUN), .set = in->set, .min = min, .max = max};
                a.empty = min == 0;
            } else {
                repeat_group(ps, &a, min, max, keep);
            }
        }
        *empty &= a.empty;
    }
}

static void alternatives(struct parser *ps, bool top, bool *empty)
{
    struct regex *re = ps->re;
    uint32_t exits[REGEX_ALTS_MAX], exit_count = 0;
    *empty = false;
    for (;;) {
        uint32_t start = re->ins_count;
        bool one;
        if (top) {
            if (re->alt_count == REGEX_ALTS_MAX) {
                ps->refuse = true;
                return;
            }
            re->alt[re->alt_count++] = start;
        } else {
            emit(ps, OP_SPLIT); /* made a plain jump below when it is the last alternative */
        }
        sequence(ps, &one);
        *empty |= one;
        bool more = !ps->refuse && eat(ps, "|");
        if (top) {
            emit(ps, OP_MATCH);
        } else if (!ps->refuse) {
            re->ins[start].x = start + 1;
            if (!more)
                re->ins[start].op = OP_JUMP;
            else if (exit_count == REGEX_ALTS_MAX)
                ps->refuse = true;
            else {
                exits[exit_count++] = re->ins_count;
                emit(ps, OP_JUMP);
                re->ins[start].y = re->ins_count;
            }
        }
        if (!more)
            break;
    }
    for (uint32_t i = 0; i < exit_count; i++)
        re->ins[exits[i]].x = re->ins_count;
}

/* The first bytes of its characters. */
static void set_bytes(const struct regex_set *s, bool bytes[256])
{
    for (int b = 0; b < 256; b++)
        bytes[b] |= b < 128 ? s->ascii[b >> 6] >> (b & 63) & 1 : b >= 0xC0 && s->high;
}

/* Which first bytes may start a match at pc; `bit` is set in re->first.  Returns whether the end of text may match too. */
static bool first_bytes(struct regex *re, uint32_t pc, uint32_t bit, int depth)
{
    for (;; pc++) {
        const struct regex_ins *in = &re->ins[pc];
        if (in->op == OP_MATCH || in->op == OP_LINE_END || in->op == OP_LOOK || in->op == OP_LOOK_NOT || depth > 64) {
            for (int b = 0; b < 256; b++)
                re->first[b] |= bit;
            return true;
        }
        if (in->op == OP_JUMP || in->op == OP_SPLIT) {
            bool end = first_bytes(re, in->x, bit, depth + 1);
            return in->op == OP_SPLIT ? first_bytes(re, in->y, bit, depth + 1) || end : end;
        }
        bool bytes[256] = {0};
        set_bytes(&re->set[in->set], bytes);
        for (int b = 0; b < 256; b++)
            re->first[b] |= bytes[b] ? bit : 0;
        if (in->op == OP_SET || in->min > 0)
            return false;
    }
}

/* What every match of the alternative at pc must hold, where a first look tells: false if it does not. */
static bool needed_bytes(struct regex *re, uint32_t pc)
{
    for (uint32_t before = 0;; pc++) {
        const struct regex_ins *in = &re->ins[pc];
        if (in->op != OP_SET && in->op != OP_RUN && in->op != OP_RUN_KEEP)
            return false;
        if (in->op == OP_SET || in->min > 0) {
            set_bytes(&re->set[in->set], re->need);
            re->need_after = before > re->need_after ? before : re->need_after;
            return true;
        }
        before = in->max < REGEX_INF - before ? before + in->max : REGEX_INF;
    }
}

int regex_parse_own(struct regex *re, struct str pattern)
{
    struct parser ps = {.re = re, .p = pattern.p, .end = pattern.p + pattern.n};
    bool empty;
    if (pattern.n)
        alternatives(&ps, true, &empty);
    if (!pattern.n || ps.refuse || ps.p != ps.end) {
        *re = (struct regex){0};
        return 0;
    }
    for (uint32_t i = 0; i < re->alt_count; i++)
        if (first_bytes(re, re->alt[i], 1u << i, 0))
            re->empty_alts |= 1u << i;
    for (int b = 0x80; b < 0xC0; b++) /* no character starts with these */
        re->first[b] = 0;
    re->has_need = true;
    for (uint32_t i = 0; i < re->alt_count && re->has_need; i++)
        re->has_need = needed_bytes(re, re->alt[i]);
    const struct regex_ins *in = &re->ins[re->alt[0]];
    re->run_first = re->alt_count == 1 && in->op == OP_RUN && in->max == REGEX_INF && in->min <= 1;
    return 1;
}
