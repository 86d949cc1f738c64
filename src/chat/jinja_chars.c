/* chat/jinja_chars.c - what Python's str methods know about single characters.
 *
 * Invariants: 1. White space and line ends are Python's sets (the separators 0x1C-0x1F are white space).
 *             2. Case mapping is Unicode's full one, the final sigma included.
 * Does not:   fold case. */
#include "chat/jinja_int.h"

#include "base/utf8.h"

#include <utf8proc.h>

struct case_row {
    uint32_t cp, to[3];
};

#include "chat/jinja_case_table.h"

bool jchar_is_space(uint32_t cp)
{
    return (cp >= 9 && cp <= 13) || (cp >= 0x1C && cp <= 0x20) || cp == 0x85 || cp == 0xA0 || cp == 0x1680 ||
           (cp >= 0x2000 && cp <= 0x200A) || cp == 0x2028 || cp == 0x2029 || cp == 0x202F || cp == 0x205F || cp == 0x3000;
}

bool jchar_is_line_end(uint32_t cp)
{
    return (cp >= 10 && cp <= 13) || (cp >= 0x1C && cp <= 0x1E) || cp == 0x85 || cp == 0x2028 || cp == 0x2029;
}

static utf8proc_category_t category(uint32_t cp)
{
    return utf8proc_category((utf8proc_int32_t)cp);
}

bool jchar_is_printable(uint32_t cp)
{
    switch (category(cp)) {
    case UTF8PROC_CATEGORY_CC:
    case UTF8PROC_CATEGORY_CF:
    case UTF8PROC_CATEGORY_CS:
    case UTF8PROC_CATEGORY_CO:
    case UTF8PROC_CATEGORY_CN:
    case UTF8PROC_CATEGORY_ZL:
    case UTF8PROC_CATEGORY_ZP:
        return false;
    case UTF8PROC_CATEGORY_ZS:
        return cp == ' ';
    default:
        return true;
    }
}

bool jchar_is_alpha(uint32_t cp)
{
    utf8proc_category_t c = category(cp);
    return c >= UTF8PROC_CATEGORY_LU && c <= UTF8PROC_CATEGORY_LO;
}

bool jchar_is_decimal(uint32_t cp)
{
    return category(cp) == UTF8PROC_CATEGORY_ND;
}

static bool in_ranges(uint32_t cp, const uint32_t (*r)[2], size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (cp >= r[i][0] && cp <= r[i][1])
            return true;
    return false;
}

bool jchar_is_digit(uint32_t cp)
{
    static const uint32_t extra[][2] = {
        {0xB2, 0xB3},     {0xB9, 0xB9},       {0x1369, 0x1371},   {0x19DA, 0x19DA},   {0x2070, 0x2070},
        {0x2074, 0x2079}, {0x2080, 0x2089},   {0x2460, 0x2468},   {0x2474, 0x247C},   {0x2488, 0x2490},
        {0x24EA, 0x24EA}, {0x24F5, 0x24FD},   {0x24FF, 0x24FF},   {0x2776, 0x277E},   {0x2780, 0x2788},
        {0x278A, 0x2792}, {0x10A40, 0x10A43}, {0x10E60, 0x10E68}, {0x11052, 0x1105A}, {0x1F100, 0x1F10A},
    };
    return jchar_is_decimal(cp) || in_ranges(cp, extra, sizeof extra / sizeof *extra);
}

bool jchar_is_numeric(uint32_t cp)
{
    static const uint32_t han[][2] = {
        /* ideographs that are numbers */
        {0x3405, 0x3405}, {0x3483, 0x3483}, {0x382A, 0x382A}, {0x3B4D, 0x3B4D}, {0x4E00, 0x4E00}, {0x4E03, 0x4E03},
        {0x4E07, 0x4E07}, {0x4E09, 0x4E09}, {0x4E5D, 0x4E5D}, {0x4E8C, 0x4E8C}, {0x4E94, 0x4E94}, {0x4E96, 0x4E96},
        {0x4EBF, 0x4EC0}, {0x4EDF, 0x4EDF}, {0x4EE8, 0x4EE8}, {0x4F0D, 0x4F0D}, {0x4F70, 0x4F70}, {0x5104, 0x5104},
        {0x5146, 0x5146}, {0x5169, 0x5169}, {0x516B, 0x516B}, {0x516D, 0x516D}, {0x5341, 0x5341}, {0x5343, 0x5345},
        {0x534C, 0x534C}, {0x53C1, 0x53C4}, {0x56DB, 0x56DB}, {0x58F1, 0x58F1}, {0x58F9, 0x58F9}, {0x5E7A, 0x5E7A},
        {0x5EFE, 0x5EFF}, {0x5F0C, 0x5F0E}, {0x5F10, 0x5F10}, {0x62FE, 0x62FE}, {0x634C, 0x634C}, {0x67D2, 0x67D2},
        {0x6F06, 0x6F06}, {0x7396, 0x7396}, {0x767E, 0x767E}, {0x8086, 0x8086}, {0x842C, 0x842C}, {0x8CAE, 0x8CAE},
        {0x8CB3, 0x8CB3}, {0x8D30, 0x8D30}, {0x9621, 0x9621}, {0x9646, 0x9646}, {0x964C, 0x964C}, {0x9678, 0x9678},
        {0x96F6, 0x96F6},
    };
    utf8proc_category_t c = category(cp);
    return (c >= UTF8PROC_CATEGORY_ND && c <= UTF8PROC_CATEGORY_NO) || in_ranges(cp, han, sizeof han / sizeof *han);
}

bool jchar_is_alnum(uint32_t cp)
{
    utf8proc_category_t c = category(cp);
    return (c >= UTF8PROC_CATEGORY_LU && c <= UTF8PROC_CATEGORY_LO) || (c >= UTF8PROC_CATEGORY_ND && c <= UTF8PROC_CATEGORY_NO);
}

bool jchar_is_upper(uint32_t cp)
{
    static const uint32_t other[][2] = {
        {0x2160, 0x216F}, {0x24B6, 0x24CF}, {0x1F130, 0x1F149}, {0x1F150, 0x1F169}, {0x1F170, 0x1F189}};
    return category(cp) == UTF8PROC_CATEGORY_LU || in_ranges(cp, other, sizeof other / sizeof *other);
}

bool jchar_is_lower(uint32_t cp)
{
    static const uint32_t other[][2] = {
        {0xAA, 0xAA},     {0xBA, 0xBA},     {0x2B0, 0x2B8},     {0x2C0, 0x2C1},     {0x2E0, 0x2E4},     {0x345, 0x345},
        {0x37A, 0x37A},   {0x1D2C, 0x1D6A}, {0x1D78, 0x1D78},   {0x1D9B, 0x1DBF},   {0x2071, 0x2071},   {0x207F, 0x207F},
        {0x2090, 0x209C}, {0x2170, 0x217F}, {0x24D0, 0x24E9},   {0x2C7C, 0x2C7D},   {0xA69C, 0xA69D},   {0xA770, 0xA770},
        {0xA7F8, 0xA7F9}, {0xAB5C, 0xAB5F}, {0x10780, 0x10780}, {0x10783, 0x10785}, {0x10787, 0x107B0}, {0x107B2, 0x107BA},
    };
    return category(cp) == UTF8PROC_CATEGORY_LL || in_ranges(cp, other, sizeof other / sizeof *other);
}

bool jchar_is_title(uint32_t cp)
{
    return category(cp) == UTF8PROC_CATEGORY_LT;
}

/* the row of a special mapping, by halving */
static const struct case_row *case_find(uint32_t cp, const struct case_row *rows, size_t n)
{
    size_t lo = 0, hi = n;
    while (lo < hi) {
        size_t mid = (lo + hi) / 2;
        if (rows[mid].cp == cp)
            return &rows[mid];
        if (rows[mid].cp < cp)
            lo = mid + 1;
        else
            hi = mid;
    }
    return NULL;
}

size_t jchar_case(uint32_t cp, enum jcase how, uint32_t out[3])
{
    const struct case_row *row = NULL;
    if (cp >= 0x80 && how == JCASE_UPPER)
        row = case_find(cp, case_upper, sizeof case_upper / sizeof *case_upper);
    else if (cp >= 0x80 && how == JCASE_TITLE)
        row = case_find(cp, case_title, sizeof case_title / sizeof *case_title);
    if (row) {
        memcpy(out, row->to, sizeof row->to);
        return out[2] ? 3 : 2;
    }
    if (how == JCASE_LOWER && cp == 0x130) { /* the one lower case of two characters */
        out[0] = 'i';
        out[1] = 0x307;
        return 2;
    }
    utf8proc_int32_t c = (utf8proc_int32_t)cp;
    out[0] = (uint32_t)(how == JCASE_UPPER   ? utf8proc_toupper(c)
                        : how == JCASE_LOWER ? utf8proc_tolower(c)
                                             : utf8proc_totitle(c));
    return 1;
}

static bool is_cased(uint32_t cp)
{
    return jchar_is_upper(cp) || jchar_is_lower(cp) || jchar_is_title(cp);
}

static bool is_case_ignorable(uint32_t cp)
{
    utf8proc_category_t c = category(cp);
    return c == UTF8PROC_CATEGORY_MN || c == UTF8PROC_CATEGORY_ME || c == UTF8PROC_CATEGORY_CF || c == UTF8PROC_CATEGORY_LM ||
           c == UTF8PROC_CATEGORY_SK || cp == '\'' || cp == '.' || cp == ':' || cp == 0xB7 || cp == 0x2018 || cp == 0x2019 ||
           cp == 0x2024 || cp == 0x2027;
}

/* A capital sigma at [at, at + 2) ends a word: a cased letter before it, none after. */
static bool final_sigma(const struct jstr *s, size_t at)
{
    uint32_t cp = 0;
    bool before = false;
    for (size_t i = at; i > 0 && !before;) {
        do
            i--;
        while (i > 0 && ((unsigned char)s->p[i] & 0xC0) == 0x80);
        utf8_decode(str_from(jstr_text(s), i), &cp);
        if (is_case_ignorable(cp))
            continue;
        before = is_cased(cp);
        if (!before)
            return false;
    }
    for (size_t i = at + 2; i < s->n && before;) {
        i += utf8_decode(str_from(jstr_text(s), i), &cp);
        if (!is_case_ignorable(cp))
            return !is_cased(cp);
    }
    return before;
}

void jsb_case(struct jsb *b, const struct jstr *s, size_t from, size_t to, enum jcase how)
{
    size_t cursor = jstr_seg_after(s, from);
    for (size_t i = from; i < to && !b->jx->rc;) {
        uint32_t cp, out[3];
        size_t used = utf8_decode(str_from(jstr_text(s), i), &cp);
        size_t n = jchar_case(cp, how, out);
        if (how == JCASE_LOWER && cp == 0x3A3 && final_sigma(s, i))
            out[0] = 0x3C2;
        for (size_t k = 0; k < n; k++)
            jsb_char(b, out[k], jstr_user_at(s, &cursor, i));
        i += used;
    }
}

struct jv jstr_case(struct jx *jx, const struct jstr *s, enum jcase how)
{
    struct jsb b = {.jx = jx};
    jsb_case(&b, s, 0, s->n, how);
    struct jv v = jsb_end(&b);
    if (v.type == JT_STR)
        v.s->safe = s->safe;
    return v;
}

struct str jstr_strip(struct str s, bool left, bool right)
{
    uint32_t cp;
    while (left && s.n) {
        size_t n = utf8_decode(s, &cp);
        if (!jchar_is_space(cp))
            break;
        s = str_from(s, n);
    }
    while (right && s.n) {
        size_t at = s.n - 1;
        while (at > 0 && ((unsigned char)s.p[at] & 0xC0) == 0x80)
            at--;
        utf8_decode(str_from(s, at), &cp);
        if (!jchar_is_space(cp))
            break;
        s.n = at;
    }
    return s;
}
