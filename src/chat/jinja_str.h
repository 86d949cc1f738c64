/* chat/jinja_str.h - strings that remember which bytes a user wrote, their builder, and what is known of characters.
 *
 * Owns:       nothing: bytes and segments live in the rendering's arena, or in the template's for constants.
 * Invariants: 1. A string never changes; its segments are ascending, disjoint and inside it; every operation carries them along.
 *             2. Text is valid UTF-8 throughout; Python's character positions are counted in scalars.
 * Does not:   know other values (jinja_value.h). */
#ifndef RH_CHAT_JINJA_STR_H
#define RH_CHAT_JINJA_STR_H

#include "base/str.h"

#include <stdbool.h>
#include <stdint.h>

struct jx; /* one rendering, jinja_int.h */
struct jv; /* any value, jinja_value.h */

struct jseg { /* bytes [from, to) came from a user */
    size_t from, to;
};

struct jstr {
    const char *p;
    size_t n;                /* bytes */
    size_t chars;            /* scalars; SIZE_MAX = not counted yet */
    const struct jseg *segs; /* ascending, disjoint, inside [0, n) */
    size_t seg_count;
    struct jseg one;         /* room for the usual single segment */
    struct jtail *tail;      /* storage that may be extended in place, or NULL */
    bool safe;               /* markupsafe.Markup */
};

/* strings: jinja_str.c ------------------------------------------------------------------------------------------------------- */

struct jsb { /* grows in the arena; zero-initialise with .jx set */
    struct jx *jx;
    char *p;
    size_t n, cap;
    struct jseg *segs;
    size_t seg_count, seg_cap;
};

void jsb_put(struct jsb *b, const void *p, size_t n, bool user);
void jsb_z(struct jsb *b, const char *z);
void jsb_char(struct jsb *b, uint32_t cp, bool user);
void jsb_printf(struct jsb *b, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
void jsb_str(struct jsb *b, const struct jstr *s);
void jsb_sub(struct jsb *b, const struct jstr *s, size_t from, size_t to); /* bytes */
void jsb_fill(struct jsb *b, const struct jstr *s, size_t times);
void jsb_escape(struct jsb *b, const struct jstr *s); /* HTML */
struct jv jsb_end(struct jsb *b);

struct jv jstr_new(struct jx *jx, struct str text, bool user); /* borrows the bytes */
struct jv jstr_z(struct jx *jx, const char *z);
struct jv jstr_sub(struct jx *jx, const struct jstr *s, size_t from, size_t to); /* bytes; keeps marks and `safe` */
struct jv jstr_cat(struct jx *jx, const struct jstr *a, const struct jstr *b);
struct jv jstr_as_safe(struct jx *jx, const struct jstr *s, bool safe);
struct jv jstr_escape(struct jx *jx, const struct jstr *s); /* Markup.escape: a safe string stays as it is */
size_t jstr_chars(struct jstr *s);
size_t jstr_byte_of(struct jstr *s, size_t at);  /* byte position of character `at` <= chars */
size_t jstr_char_of(struct jstr *s, size_t byte); /* and back */
bool jstr_all_user(const struct jstr *s);
size_t jstr_seg_after(const struct jstr *s, size_t at); /* number of the first segment that ends after byte `at` */

/* Is byte `at` the user's?  *cursor starts at 0 and serves a walk with ascending `at`. */
static inline bool jstr_user_at(const struct jstr *s, size_t *cursor, size_t at)
{
    while (*cursor < s->seg_count && s->segs[*cursor].to <= at)
        ++*cursor;
    return *cursor < s->seg_count && s->segs[*cursor].from <= at;
}

static inline struct str jstr_text(const struct jstr *s)
{
    return (struct str){s->p, s->n};
}

/* characters: jinja_chars.c -------------------------------------------------------------------------------------------------- */

bool jchar_is_space(uint32_t cp);
bool jchar_is_line_end(uint32_t cp);
bool jchar_is_printable(uint32_t cp);
bool jchar_is_alpha(uint32_t cp);
bool jchar_is_decimal(uint32_t cp);
bool jchar_is_digit(uint32_t cp);
bool jchar_is_numeric(uint32_t cp);
bool jchar_is_alnum(uint32_t cp);
bool jchar_is_upper(uint32_t cp);
bool jchar_is_lower(uint32_t cp);
bool jchar_is_title(uint32_t cp);
enum jcase { JCASE_UPPER, JCASE_LOWER, JCASE_TITLE };
size_t jchar_case(uint32_t cp, enum jcase how, uint32_t out[3]); /* how many scalars, 1..3 */
struct jv jstr_case(struct jx *jx, const struct jstr *s, enum jcase how); /* the whole string; sigma's final form included */
void jsb_case(struct jsb *b, const struct jstr *s, size_t from, size_t to, enum jcase how);
struct str jstr_strip(struct str s, bool left, bool right); /* white space as Python sees it */

#endif
