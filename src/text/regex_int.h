/* text/regex_int.h - private to regex*.c: the compiled forms. */
#ifndef RH_TEXT_REGEX_INT_H
#define RH_TEXT_REGEX_INT_H

#include "text/regex.h"
#include "text/unicode.h"

enum { REGEX_SETS_MAX = 96, REGEX_RANGES_MAX = 512, REGEX_INS_MAX = 400, REGEX_ALTS_MAX = 32, REGEX_NESTING_MAX = 16 };
enum { REGEX_INF = 0xFFFFFFFFu };

enum regex_prop { PROP_SPACE = 1, PROP_NOT_SPACE = 2, PROP_HAN = 4, PROP_NOT_HAN = 8, PROP_WORD = 16, PROP_NOT_WORD = 32 };

/* A set of code points.  ascii is final; the rest is asked as (gc | props | ranges) ^ negate. */
struct regex_set {
    uint64_t ascii[2];
    uint32_t gc;
    uint8_t props;
    bool negate;
    bool high; /* may hold something above ASCII */
    uint16_t range_at, range_count;
    uint16_t both;  /* 1 + another set that must hold too (&&), or 0 */
    uint16_t plane; /* 1 + number of its bit map, or 0 */
};

struct regex_range {
    uint32_t lo, hi;
};

enum regex_op { OP_SET, OP_RUN, OP_RUN_KEEP, OP_SPLIT, OP_JUMP, OP_LOOK, OP_LOOK_NOT, OP_LINE_END, OP_MATCH };

struct regex_ins {
    uint8_t op;
    uint16_t set;
    uint32_t min, max; /* runs */
    uint32_t x, y;     /* split: first choice, second choice; jump: x */
};

struct regex {
    struct regex_set set[REGEX_SETS_MAX];
    struct regex_range range[REGEX_RANGES_MAX];
    struct regex_ins ins[REGEX_INS_MAX];
    uint32_t set_count, range_count, ins_count;
    uint32_t alt[REGEX_ALTS_MAX], alt_count; /* where each top alternative starts */
    uint32_t first[256];                     /* by first byte: which alternatives may match (bit i = alternative i) */
    uint32_t empty_alts;                     /* alternatives that may match at the very end of the text */
    bool has_need, need[256];                /* every match holds a character that starts with one of these bytes */
    uint32_t need_after;                     /* ... and at most so many characters before it */
    uint64_t *plane;                         /* bit maps of the first plane, 1024 words each, for sets of many ranges */
    bool run_first;                          /* one alternative, starting with an unbounded run: see regex_next */
    void *pcre, *pcre_limits;                /* pcre2_code and pcre2_match_context (read-only when matching) when not our own */
};

bool regex_set_high(const struct regex *re, const struct regex_set *s, uint32_t cp); /* by the rule */

static inline bool regex_set_has(const struct regex *re, const struct regex_set *s, uint32_t cp)
{
    if (cp < 128)
        return s->ascii[cp >> 6] >> (cp & 63) & 1;
    if (s->plane && cp < 65536)
        return re->plane[(size_t)(s->plane - 1) * 1024 + (cp >> 6)] >> (cp & 63) & 1;
    return regex_set_high(re, s, cp);
}

/* 1: compiled; 0: outside our subset; negative: error */
int regex_parse_own(struct regex *re, struct str pattern);
int regex_compile_pcre(struct regex *re, struct str pattern, const char *where, struct err *err);
int regex_next_pcre(struct regex_cursor *c, size_t *start, size_t *end, struct err *err);
void regex_free_pcre(struct regex *re);
void regex_cursor_free_pcre(struct regex_cursor *c);
/* General categories named by a property ("L", "Lu", "Punct" ...); 0 = unknown. */
uint32_t regex_gc_mask(struct str name);

#endif
