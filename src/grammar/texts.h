/* grammar/texts.h - a text that must begin with one of some given texts, and is free afterwards.
 *
 *      WAITING --- the mark was written ---> FORCED --- one of the texts is complete ---> FREE
 *      (only with a mark)
 *
 * While FORCED an id may come when its bytes go on in one of the texts that are still possible, or complete one and go beyond.  Where the
 * text goes on with a special token's own text, only that token may come: markers are never spelled out.  Before FREE no text may end.
 *
 * Owns:       copies of the texts.  The bytes of the ids are borrowed, for the life of the model.
 * Thread:     as constraint.h says. */
#ifndef RH_GRAMMAR_TEXTS_H
#define RH_GRAMMAR_TEXTS_H

#include "base/str.h"
#include "grammar/constraint.h"

/* What every id writes, special tokens their own text; immutable. */
struct id_texts {
    uint32_t count;          /* ids */
    const char *bytes;
    const uint32_t *ends;    /* [count] of each in bytes */
    const uint32_t *special; /* bits; [constraint_words(count)] */
    /* by id_texts_sort: */
    uint32_t *order;         /* ids that write something, ascending by bytes, then by id: plain_count plain ones, then special_count special ones */
    uint32_t plain_count, special_count;
    uint32_t longest;        /* bytes of one */
};
/* Fills order from what stands above it; the owner frees order by mem_free.  Without it no constraint can be opened. */
int id_texts_sort(struct id_texts *t, struct err *err);

enum { TEXTS_REWIND_MAX = 64, TEXTS_MARK_MAX = 64, TEXTS_COUNT_MAX = 4096 };

struct texts_config {
    const struct id_texts *ids;
    const struct str *texts;   /* [count] none empty, none the beginning of another */
    uint32_t count;
    struct str mark;           /* after which the texts are due, white space left away; {NULL, 0}: from the start */
    const uint32_t *end_ids;   /* [end_count] that may not come before the text is free */
    uint32_t end_count;
};
int constraint_texts_open(const struct texts_config *cfg, uint32_t vocab, struct constraint **out, struct err *err);

#endif
