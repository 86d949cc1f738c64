/* text/vocab.c - token text <-> id: an array and an open-addressed hash of it.
 *
 * Invariants: 1. the hash is keyed with random bits, so no file can make lookups slow.  2. texts are borrowed from the tokenizer's
 * arena. */
#include "text/text_int.h"

#include "base/hash.h"
#include "base/mem.h"
#include "base/rng.h"

int vocab_init(struct vocab *v, uint32_t n, struct err *err)
{
    uint32_t slots = 16;
    while (slots < 2 * (uint64_t)n + 2)
        slots *= 2;
    *v = (struct vocab){.n = n, .mask = slots - 1};
    v->piece = mem_try_zero(n, sizeof *v->piece);
    v->slot = mem_try_zero(slots, sizeof *v->slot);
    v->key[0] = rng_seed_draw();
    v->key[1] = rng_seed_draw();
    if (!v->piece || !v->slot)
        return err_nomem(err, "the vocabulary", (size_t)n * sizeof *v->piece);
    return 0;
}

void vocab_free(struct vocab *v)
{
    mem_free(v->piece);
    mem_free(v->slot);
    *v = (struct vocab){0};
}

int vocab_put(struct vocab *v, uint32_t id, struct str text, struct err *err)
{
    if (id >= v->n)
        return err_set(err, ERR_FORMAT, "vocabulary: token '%.*s' has id %u, expected below %u", STR_ARG(text), id, v->n);
    if (v->piece[id].p)
        return err_set(err, ERR_FORMAT, "vocabulary: id %u is both '%.*s' and '%.*s'", id, STR_ARG(v->piece[id]), STR_ARG(text));
    uint32_t at = (uint32_t)hash_sip(v->key, text.p, text.n) & v->mask;
    for (; v->slot[at]; at = (at + 1) & v->mask)
        if (str_eq(v->piece[v->slot[at] - 1], text))
            return err_set(err, ERR_FORMAT, "vocabulary: token '%.*s' appears twice, with ids %u and %u", STR_ARG(text), v->slot[at] - 1, id);
    v->piece[id] = text;
    v->slot[at] = id + 1;
    v->count++;
    return 0;
}

uint32_t vocab_find(const struct vocab *v, struct str text)
{
    if (!v->slot)
        return ID_NONE;
    uint32_t at = (uint32_t)hash_sip(v->key, text.p, text.n) & v->mask;
    for (; v->slot[at]; at = (at + 1) & v->mask)
        if (str_eq(v->piece[v->slot[at] - 1], text))
            return v->slot[at] - 1;
    return ID_NONE;
}
