/* text/regex.h - the regular expressions of tokenizer files, with the meaning Oniguruma gives them.
 *
 * Patterns made of sets, repeats, groups, alternatives and one-character look-ahead (all known pre-tokenizers) run on a matcher
 * of our own over Unicode 16 tables; the rest is rewritten for PCRE2 with every property spelled out as ranges. Invariants: 1. a
 * compiled regex is immutable: any number of threads may search it, each with a cursor of its own.
 *             2. every search ends: steps are counted and a pattern that needs too many fails with ERR_LIMIT.
 * Does not:   capture groups. */
#ifndef RH_TEXT_REGEX_H
#define RH_TEXT_REGEX_H

#include "base/err.h"
#include "base/str.h"

#include <stdbool.h>

struct regex;

/* `where` names the file key for messages. */
int regex_compile(struct str pattern, const char *where, struct regex **out, struct err *err);
/* A pattern that is exactly this text. */
int regex_compile_literal(struct str text, struct regex **out, struct err *err);
void regex_free(struct regex *re);
bool regex_is_own(const struct regex *re); /* false: runs on PCRE2 */
/* The first byte of `text` at or after `from` that is of a kind which every match holds one of: text.n where no match can be. */
size_t regex_need_at(const struct regex *re, struct str text, size_t from);

struct regex_frame {
    uint32_t pc;
    const char *pos, *low; /* low == NULL: plain choice; else a run that may give back down to low */
};

enum { REGEX_FRAMES_FIXED = 32 };

/* One search over one text (valid UTF-8).  Owner: the calling thread; regex_cursor_free when done. */
struct regex_cursor {
    const struct regex *re;
    struct str text;
    size_t at, last_end; /* where the next search starts; end of the last match */
    size_t need_at;      /* no byte before it, from `at` on, is one that every match needs */
    bool matched;        /* last_end is set */
    uint64_t steps_left;
    struct regex_frame fixed[REGEX_FRAMES_FIXED];
    struct regex_frame *frame; /* fixed or grown */
    size_t frame_cap;
    void *pcre_match; /* pcre2_match_data */
};

int regex_cursor_open(struct regex_cursor *c, const struct regex *re, struct str text, struct err *err);
/* 1: [*start, *end) is the next match; 0: no more; negative: error. */
int regex_next(struct regex_cursor *c, size_t *start, size_t *end, struct err *err);
void regex_cursor_free(struct regex_cursor *c);

#endif
