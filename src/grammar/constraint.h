/* grammar/constraint.h - what may come next in a text: {mask, advance, rewind}.
 *
 * Lifetime: one per choice of a request.  Thread: whoever drives the sequence (the engine's).
 * Invariants: 1. The mask after advance(a), advance(b), rewind(2) is the mask before: rows that assume drafts are asked for one by one
 *                and taken back.
 *             2. mask, advance and rewind ask for no memory: what a text can need is taken when the constraint is opened.
 * Does not:   know logits, sequences or text outside the ids it was given. */
#ifndef RH_GRAMMAR_CONSTRAINT_H
#define RH_GRAMMAR_CONSTRAINT_H

#include "base/err.h"

#include <stdbool.h>
#include <stdint.h>

struct constraint {
    const struct constraint_ops *ops;
};

struct constraint_ops {
    /* Bit id % 32 of words[id / 32]: may `id` come next?  Words for the whole vocabulary. */
    void (*mask)(struct constraint *c, uint32_t *words);
    /* `id` comes next; false: it may not, and nothing has changed.  End ids are never given. */
    bool (*advance)(struct constraint *c, uint32_t id);
    void (*rewind)(struct constraint *c, uint32_t count); /* takes the last `count` advances back */
    bool (*complete)(const struct constraint *c);         /* nothing may follow: the text ends here */
    void (*free)(struct constraint *c);
};

/* How a request asks for one: called once per choice. */
struct constraint_source {
    int (*open)(void *ctx, uint32_t vocab, struct constraint **out, struct err *err);
    void *ctx;
};

static inline uint32_t constraint_words(uint32_t vocab)
{
    return vocab / 32 + (vocab % 32 != 0);
}

void constraint_free(struct constraint *c); /* NULL is fine */

/* The only id the mask admits; -1 when there is none or more than one. */
int64_t constraint_only(const uint32_t *words, uint32_t vocab);

/* The plainest constraint: only these ids, again and again.  End ids count like any other. */
int constraint_allow_open(const uint32_t *ids, uint32_t count, uint32_t vocab, struct constraint **out, struct err *err);

#endif
