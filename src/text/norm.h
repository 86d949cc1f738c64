/* text/norm.h - private to the room: normalisers as a list of ops, run over one stretch of text (normalise.c, norm_unicode.c). */
#ifndef RH_TEXT_NORM_H
#define RH_TEXT_NORM_H

#include "base/buf.h"
#include "base/err.h"
#include "base/str.h"
#include "text/regex.h"

enum norm_kind {
    NORM_NFC,
    NORM_NFD,
    NORM_NFKC,
    NORM_NFKD,
    NORM_LOWERCASE,
    NORM_STRIP_ACCENTS,
    NORM_STRIP,
    NORM_REPLACE,
    NORM_PREPEND,
    NORM_NMT,
    NORM_PRECOMPILED,
    NORM_BYTE_LEVEL,
    NORM_BERT
};

struct norm_op {
    enum norm_kind kind;
    bool left, right;                    /* strip */
    bool clean, chinese, accents, lower; /* Bert */
    struct str content, pattern;         /* replacement or prefix; text to replace when re is NULL */
    struct regex *re;                    /* replace */
    const uint32_t *trie;                /* precompiled: double array of trie_n units */
    uint32_t trie_n;
    struct str strings; /* precompiled: terminated replacement texts */
};

/* A text under transformation: align[i] = byte of the original that byte i comes from; NULL when nobody needs it. */
struct norm_text {
    struct buf text;
    uint32_t *align;
    size_t align_cap;
};

int norm_run(const struct norm_op *ops, uint32_t n, struct str in, bool track, struct norm_text *a, struct norm_text *b,
             struct norm_text **out, struct err *err);
void norm_text_free(struct norm_text *t);

#endif
