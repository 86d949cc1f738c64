/* text/unicode.h - classes of code points as `tokenizers` sees them.
 *
 * The regular expressions of that library know Unicode 16; its other parts carry other versions, so each class below says whose
 * it is.  The tables are made by scripts/text_unicode_tables.py and compared with the library code point by code point in the
 * tests. */
#ifndef RH_TEXT_UNICODE_H
#define RH_TEXT_UNICODE_H

#include <stdbool.h>
#include <stdint.h>

/* general categories, in the order of the tables */
#define UNICODE_GC_LIST(X)                                                                                                       \
    X(Lu)                                                                                                                        \
    X(Ll) X(Lt) X(Lm) X(Lo) X(Mn) X(Mc) X(Me) X(Nd) X(Nl) X(No) X(Pc) X(Pd) X(Ps) X(Pe) X(Pi) X(Pf) X(Po) X(Sm) X(Sc) X(Sk)      \
        X(So) X(Zs) X(Zl) X(Zp) X(Cc) X(Cf) X(Cs) X(Co) X(Cn)

enum unicode_gc {
#define GC_ENUM(name) UNICODE_##name,
    UNICODE_GC_LIST(GC_ENUM)
#undef GC_ENUM
        UNICODE_GC_COUNT
};

enum unicode_main_bits {
    UNICODE_GC_MASK = 0x1F,
    UNICODE_SPACE = 0x20,   /* White_Space */
    UNICODE_HAN = 0x40,     /* script Han */
    UNICODE_NUMERIC = 0x80, /* Rust's char::is_numeric */
};

enum unicode_more_bits {
    UNICODE_WORD = 0x01,       /* \w of Rust's regex crate */
    UNICODE_PUNCT = 0x02,      /* Punctuation, BertPreTokenizer */
    UNICODE_MARK = 0x04,       /* StripAccents */
    UNICODE_MARK_BERT = 0x08,  /* dropped by BertNormalizer strip_accents */
    UNICODE_OTHER_BERT = 0x10, /* dropped by BertNormalizer clean_text */
    UNICODE_WORD_ONIG = 0x20,  /* \w of Oniguruma */
    UNICODE_INERT = 0x40,      /* newer than the normaliser's tables: never decomposes, combines or moves */
};

extern const uint8_t unicode_main_index[4352], unicode_more_index[4352];
extern const uint8_t unicode_main_block[], unicode_more_block[];
extern const uint32_t unicode_lower_count, unicode_lower[]; /* pairs (code point, lower case) newer than utf8proc's */

static inline uint8_t unicode_main(uint32_t cp)
{
    return unicode_main_block[(uint32_t)unicode_main_index[cp >> 8] << 8 | (cp & 255)];
}

static inline uint8_t unicode_more(uint32_t cp)
{
    return unicode_more_block[(uint32_t)unicode_more_index[cp >> 8] << 8 | (cp & 255)];
}

static inline bool unicode_is_space(uint32_t cp)
{
    return unicode_main(cp) & UNICODE_SPACE;
}

static inline uint32_t unicode_gc_bit(uint32_t cp)
{
    return 1u << (unicode_main(cp) & UNICODE_GC_MASK);
}

/* One scalar of text known to be valid UTF-8; p < end. */
static inline uint32_t unicode_next(const char **p)
{
    const uint8_t *s = (const uint8_t *)*p;
    if (s[0] < 0x80) {
        *p += 1;
        return s[0];
    }
    if (s[0] < 0xE0) {
        *p += 2;
        return (uint32_t)(s[0] & 0x1F) << 6 | (s[1] & 0x3F);
    }
    if (s[0] < 0xF0) {
        *p += 3;
        return (uint32_t)(s[0] & 0x0F) << 12 | (uint32_t)(s[1] & 0x3F) << 6 | (s[2] & 0x3F);
    }
    *p += 4;
    return (uint32_t)(s[0] & 7) << 18 | (uint32_t)(s[1] & 0x3F) << 12 | (uint32_t)(s[2] & 0x3F) << 6 | (s[3] & 0x3F);
}

/* The scalar that ends at p; p > start. */
static inline uint32_t unicode_prev(const char **p)
{
    const char *at = *p - 1;
    while (((uint8_t)*at & 0xC0) == 0x80)
        at--;
    *p = at;
    const char *again = at;
    return unicode_next(&again);
}

#endif
