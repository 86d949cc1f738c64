/* grammar/constraint.c - what constraints share, and the allow-list. */
#include "grammar/constraint.h"

#include "base/mem.h"

#include <string.h>

void constraint_free(struct constraint *c)
{
    if (c)
        c->ops->free(c);
}

int64_t constraint_only(const uint32_t *words, uint32_t vocab)
{
    int64_t only = -1;
    for (uint32_t w = 0; w < constraint_words(vocab); w++) {
        if (words[w] == 0)
            continue;
        if (only >= 0 || (words[w] & (words[w] - 1)))
            return -1;
        only = (int64_t)w * 32 + __builtin_ctz(words[w]);
    }
    return only;
}

/* ---- the allow-list ---- */

struct allow {
    struct constraint base;
    uint32_t words;
    uint32_t mask[]; /* [words] */
};

static void allow_mask(struct constraint *c, uint32_t *words)
{
    const struct allow *a = (const struct allow *)(const void *)c;
    memcpy(words, a->mask, a->words * sizeof *words);
}

static bool allow_advance(struct constraint *c, uint32_t id)
{
    const struct allow *a = (const struct allow *)(const void *)c;
    return id / 32 < a->words && a->mask[id / 32] >> id % 32 & 1;
}

static void allow_rewind(struct constraint *c, uint32_t count)
{
    (void)c;
    (void)count;
}

static bool allow_complete(const struct constraint *c)
{
    (void)c;
    return false;
}

static void allow_free(struct constraint *c)
{
    mem_free(c);
}

static const struct constraint_ops allow_ops = {allow_mask, allow_advance, allow_rewind, allow_complete, allow_free};

int constraint_allow_open(const uint32_t *ids, uint32_t count, uint32_t vocab, struct constraint **out, struct err *err)
{
    uint32_t words = constraint_words(vocab);
    size_t bytes = sizeof(struct allow) + words * sizeof(uint32_t);
    *out = NULL;
    if (count == 0)
        return err_set(err, ERR_ARGUMENT, "allowed ids: expected at least one");
    struct allow *a = mem_try_zero(1, bytes);
    if (!a)
        return err_nomem(err, "allowed ids", bytes);
    a->base.ops = &allow_ops;
    a->words = words;
    for (uint32_t i = 0; i < count; i++) {
        if (ids[i] >= vocab) {
            mem_free(a);
            return err_set(err, ERR_ARGUMENT, "allowed ids: id %u at place %u is outside the vocabulary of %u", ids[i], i, vocab);
        }
        a->mask[ids[i] / 32] |= 1u << ids[i] % 32;
    }
    *out = &a->base;
    return 0;
}
