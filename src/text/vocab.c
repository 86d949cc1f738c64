/* text/vocab.c - token text <-> id: an array and an open-addressed hash of it.
 *
 * Invariants: 1. the hash is keyed with random bits, so no file can make lookups slow.  2. texts are borrowed from the
 * tokenizer's arena. */
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
    v->piece = mem_map((size_t)n * sizeof *v->piece); /* whole pages: lookups jump about in megabytes */
    v->slot = mem_map((size_t)slots * sizeof *v->slot);
    v->hint = mem_try_zero(slots / 8, sizeof *v->hint);
    v->key[0] = rng_seed_draw();
    v->key[1] = rng_seed_draw();
    if (!v->piece || !v->slot || !v->hint)
        return err_nomem(err, "the vocabulary", (size_t)n * sizeof *v->piece);
    return 0;
}

void vocab_free(struct vocab *v)
{
    mem_unmap(v->piece, (size_t)v->n * sizeof *v->piece);
    mem_unmap(v->slot, ((size_t)v->mask + 1) * sizeof *v->slot);
    mem_free(v->hint);
    *v = (struct vocab){0};
}

static uint64_t *hint_word(const struct vocab *v, uint64_t hash)
{
    return &v->hint[(hash >> 6) & (v->mask >> 3)];
}

/* A slot holds 32 hash bits and id + 1, so that other tokens are seldom looked at. */
static uint64_t slot_of(uint64_t hash, uint32_t id)
{
    return hash >> 32 << 32 | (id + 1);
}

int vocab_put(struct vocab *v, uint32_t id, struct str text, struct err *err)
{
    if (id >= v->n)
        return err_set(err, ERR_FORMAT, "vocabulary: token '%.*s' has id %u, expected below %u", STR_ARG(text), id, v->n);
    if (v->piece[id].p)
        return err_set(err, ERR_FORMAT, "vocabulary: id %u is both '%.*s' and '%.*s'", id, STR_ARG(v->piece[id]), STR_ARG(text));
    uint64_t hash = hash_sip(v->key, text.p, text.n);
    uint32_t at = (uint32_t)hash & v->mask;
    for (; v->slot[at]; at = (at + 1) & v->mask) {
        uint32_t other = (uint32_t)v->slot[at] - 1;
        if (v->slot[at] >> 32 == hash >> 32 && str_eq(v->piece[other], text))
            return err_set(err, ERR_FORMAT, "vocabulary: token '%.*s' appears twice, with ids %u and %u", STR_ARG(text), other,
                           id);
    }
    v->piece[id] = text;
    *hint_word(v, hash) |= 1ull << (hash & 63);
    v->slot[at] = slot_of(hash, id);
    v->count++;
    return 0;
}

uint32_t vocab_find(const struct vocab *v, struct str text)
{
    if (!v->slot)
        return ID_NONE;
    uint64_t hash = hash_sip(v->key, text.p, text.n);
    if (!(*hint_word(v, hash) >> (hash & 63) & 1))
        return ID_NONE;
    uint32_t at = (uint32_t)hash & v->mask;
    for (; v->slot[at]; at = (at + 1) & v->mask) {
        uint32_t id = (uint32_t)v->slot[at] - 1;
        if (v->slot[at] >> 32 == hash >> 32 && str_eq(v->piece[id], text))
            return id;
    }
    return ID_NONE;
}
