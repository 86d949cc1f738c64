/* text/norm_int.h - private to normalise.c and norm_unicode.c: one step from text to text. */
#ifndef RH_TEXT_NORM_INT_H
#define RH_TEXT_NORM_INT_H

#include "base/utf8.h"
#include "text/text_int.h"
#include "text/unicode.h"

struct norm_ctx {
    struct str in;
    const uint32_t *align; /* of `in`; NULL: in is the original */
    bool track;
    struct norm_text *out;
};

enum norm_step { STEP_LOWER, STEP_MARKS, STEP_MARKS_BERT, STEP_NMT, STEP_CLEAN_BERT, STEP_CHINESE, STEP_BYTES };

/* Place in the original of the character that holds byte `at` of the input. */
static inline uint32_t norm_source(const struct norm_ctx *c, size_t at)
{
    if (c->align)
        return c->align[at];
    while (at && ((uint8_t)c->in.p[at] & 0xC0) == 0x80)
        at--;
    return (uint32_t)at;
}

void norm_put(struct norm_ctx *c, const char *p, size_t n, size_t from); /* bytes that come from input byte `from` */
void norm_put_cp(struct norm_ctx *c, uint32_t cp, size_t from);
void norm_copy(struct norm_ctx *c, size_t start, size_t end); /* input unchanged */

uint32_t norm_lower(uint32_t cp);
int norm_unicode(struct norm_ctx *c, bool compose, bool compat, struct err *err);
void norm_precompiled(struct norm_ctx *c, const struct norm_op *op);

#endif
