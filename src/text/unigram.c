/* text/unigram.c - the unigram model: the split of a piece with the highest sum of scores.
 *
 * Owns:       a trie of the vocabulary as hashed edges.
 * Invariants: 1. scores are added left to right in double precision and the first of equal paths wins, as in the reference, so
 * the ids are the same to the last tie.  2. time is the length of the piece times the longest token. */
#include "text/text_int.h"

#include "base/mem.h"
#include "base/rng.h"
#include "text/unicode.h"

#include <stdio.h>

#define UNIGRAM_UNK_PENALTY 10.0

struct unigram_edge {
    uint64_t key; /* (node << 8 | byte) + 1; 0: empty */
    uint32_t to;
    uint32_t id; /* that ends at `to`, or ID_NONE */
};

struct unigram_best {
    double score;
    uint32_t from; /* ID_NONE: nothing ends here yet */
    uint32_t id;
};

static struct unigram_edge *edge_slot(const struct unigram *u, uint32_t node, uint8_t byte)
{
    uint64_t key = ((uint64_t)node << 8 | byte) + 1;
    uint32_t at = (uint32_t)((key * u->edge_mul) >> u->edge_shift);
    while (u->edge[at].key && u->edge[at].key != key)
        at = (at + 1) & u->edge_mask;
    return &u->edge[at];
}

static int trie_insert(struct unigram *u, struct str text, uint32_t id, uint32_t node_max)
{
    struct unigram_edge *e = NULL;
    uint32_t node = 0;
    for (size_t i = 0; i < text.n; i++) {
        e = edge_slot(u, node, (uint8_t)text.p[i]);
        if (!e->key) {
            if (u->node_count == node_max)
                return ERR_INTERNAL;
            e->key = ((uint64_t)node << 8 | (uint8_t)text.p[i]) + 1;
            e->to = u->node_count++;
            e->id = ID_NONE;
        }
        node = e->to;
    }
    e->id = id;
    return 0;
}

static int edges_open(struct unigram *u, uint32_t bits, struct err *err)
{
    u->edge_mask = (1u << bits) - 1;
    u->edge_shift = 64 - bits;
    u->edge = mem_try_zero((size_t)1 << bits, sizeof *u->edge);
    return u->edge ? 0 : err_nomem(err, "the vocabulary", ((size_t)1 << bits) * sizeof *u->edge);
}

static uint32_t edge_bits(uint64_t edges) /* at most half full */
{
    uint32_t bits = 8;
    while (((uint64_t)1 << bits) < 2 * edges + 2)
        bits++;
    return bits;
}

/* Pieces share most of their first bytes: into a table of the size that the edges need, since every look-up is a cache miss. */
static int edges_shrink(struct unigram *u, struct err *err)
{
    struct unigram_edge *all = u->edge;
    uint64_t n = (uint64_t)u->edge_mask + 1;
    int rc = edges_open(u, edge_bits(u->node_count), err);
    for (uint64_t i = 0; i < n && !rc; i++)
        if (all[i].key)
            *edge_slot(u, (uint32_t)((all[i].key - 1) >> 8), (uint8_t)(all[i].key - 1)) = all[i];
    mem_free(all);
    return rc;
}

int unigram_finish(struct tokenizer *t, struct err *err)
{
    struct unigram *u = &t->unigram;
    uint64_t bytes = 1;
    double min = 0;
    for (uint32_t id = 0; id < t->vocab.n; id++) {
        bytes += t->vocab.piece[id].n;
        if (t->vocab.piece[id].p && (id == 0 || u->score[id] < min))
            min = u->score[id];
    }
    u->unk_score = min - UNIGRAM_UNK_PENALTY;
    if (edge_bits(bytes) > 31)
        return err_set(err, ERR_LIMIT, "vocabulary of %llu bytes is too large", (unsigned long long)bytes);
    u->edge_mul = rng_seed_draw() | 1;
    u->node_count = 1;
    int rc = edges_open(u, edge_bits(bytes), err);
    for (uint32_t id = 0; id < t->vocab.n && !rc; id++)
        if (t->vocab.piece[id].n && trie_insert(u, t->vocab.piece[id], id, (uint32_t)bytes))
            rc = err_set(err, ERR_INTERNAL, "vocabulary trie");
    rc = rc ? rc : edges_shrink(u, err);
    for (uint32_t i = 0; i < 256 && !rc; i++) {
        char text[8];
        snprintf(text, sizeof text, "<0x%02X>", i);
        u->fallback_id[i] = vocab_find(&t->vocab, str_n(text, 6));
    }
    return rc;
}

void unigram_free(struct unigram *u)
{
    mem_free(u->score);
    mem_free(u->edge);
}

static void offer(struct unigram_best *best, double score, uint32_t from, uint32_t id)
{
    if (best->from == ID_NONE || score > best->score)
        *best = (struct unigram_best){score, from, id};
}

/* Fills best[1..n]; false: a character that no token covers and no unknown token. */
static bool forward(const struct unigram *u, struct unigram_best *best, struct str s)
{
    for (size_t i = 0; i <= s.n; i++)
        best[i] = (struct unigram_best){0, ID_NONE, 0};
    for (size_t at = 0; at < s.n;) {
        const char *p = s.p + at;
        unicode_next(&p);
        size_t one = (size_t)(p - s.p) - at;
        double here = best[at].score;
        bool covered = false;
        uint32_t node = 0;
        for (size_t i = at; i < s.n; i++) {
            const struct unigram_edge *e = edge_slot(u, node, (uint8_t)s.p[i]);
            if (!e->key)
                break;
            node = e->to;
            if (e->id == ID_NONE)
                continue;
            offer(&best[i + 1], u->score[e->id] + here, (uint32_t)at, e->id);
            covered |= i + 1 - at == one;
        }
        if (!covered) {
            if (u->unk == ID_NONE)
                return false;
            offer(&best[at + one], u->unk_score + here, (uint32_t)at, u->unk);
        }
        at += one;
    }
    return true;
}

static int push(struct token_ids *out, uint32_t id, struct err *err)
{
    return token_ids_push(out, id) ? err_nomem(err, "token ids", out->n * sizeof *out->ids) : 0;
}

/* A token by its text: fused unknown text may be a token after all, or bytes. */
static int emit_text(const struct tokenizer *t, struct str text, struct token_ids *out, struct err *err)
{
    const struct unigram *u = &t->unigram;
    uint32_t id = vocab_find(&t->vocab, text);
    if (id != ID_NONE)
        return push(out, id, err);
    bool all = u->byte_fallback;
    for (size_t i = 0; all && i < text.n; i++)
        all = u->fallback_id[(uint8_t)text.p[i]] != ID_NONE;
    if (!all)
        return u->unk == ID_NONE ? err_set(err, ERR_FORMAT, "text needs an unknown token and the vocabulary names none")
                                 : push(out, u->unk, err);
    int rc = 0;
    for (size_t i = 0; i < text.n && !rc; i++)
        rc = push(out, u->fallback_id[(uint8_t)text.p[i]], err);
    return rc;
}

int unigram_encode(const struct tokenizer *t, struct scratch *s, struct str piece, struct token_ids *out, struct err *err)
{
    const struct unigram *u = &t->unigram;
    if (s->best_cap < piece.n + 1) {
        mem_free(s->best);
        s->best_cap = piece.n + piece.n / 4 + 64;
        s->best = mem_try_array(s->best_cap, sizeof *s->best);
        if (!s->best) {
            s->best_cap = 0;
            return err_nomem(err, "splitting a piece", piece.n * sizeof *s->best);
        }
    }
    if (!forward(u, s->best, piece))
        return err_set(err, ERR_FORMAT, "text needs an unknown token and the vocabulary names none");
    /* turn the links around: from[end] becomes to[start] */
    struct unigram_best *best = s->best;
    uint32_t to = ID_NONE;
    for (uint32_t end = (uint32_t)piece.n; end > 0;) {
        uint32_t start = best[end].from, id = best[end].id;
        best[end].from = to; /* where the token that starts at `end` ends */
        to = end;
        best[end].id = id; /* still the token that ends at `end` */
        end = start;
    }
    int rc = 0;
    for (uint32_t at = 0, end = to; end != ID_NONE && !rc;) {
        uint32_t id = best[end].id, start = at;
        if (id == u->unk)
            while (best[end].from != ID_NONE && best[best[end].from].id == u->unk)
                end = best[end].from;
        rc = id == u->unk ? emit_text(t, str_n(piece.p + start, end - start), out, err) : push(out, id, err);
        at = end;
        end = best[end].from;
    }
    return rc;
}
