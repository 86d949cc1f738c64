/* text/bpe.c - byte-pair encoding: a piece of text becomes symbols, the best-ranked neighbours merge until none can.
 *
 * Owns:       the pair table (left, right) -> (rank, id) and the ids of single characters.
 * Invariants: 1. of all possible merges the one with the lowest rank happens first, of equal ones the leftmost.
 *             2. short pieces scan (cheap for a few symbols), long ones use a heap: n log n whatever the text.
 *             3. nothing here is written after open; a call's memory is its struct scratch. */
#include "text/text_int.h"

#include "base/mem.h"
#include "base/rng.h"
#include "text/unicode.h"

#include <stdio.h>
#include <stdlib.h>

enum { BPE_SCAN_MAX = 48, BPE_SYMBOLS_MAX = 1 << 30 };
#define PAIR_EMPTY 0 /* so a table needs no filling */
#define SPACE_MARK 0x2581u

struct bpe_symbol {
    uint32_t id;
    uint32_t prev, next; /* ID_NONE at the ends */
};

/* Never 0: no id is as large as ID_NONE. */
static uint64_t pair_key(uint32_t left, uint32_t right)
{
    return ((uint64_t)left << 32 | right) + 1;
}

static uint32_t pair_slot(const struct bpe *b, uint64_t key)
{
    return (uint32_t)((key * b->pair_mul) >> b->pair_shift);
}

static const struct bpe_pair *pair_find(const struct bpe *b, uint32_t left, uint32_t right)
{
    uint64_t key = pair_key(left, right);
    for (uint32_t at = pair_slot(b, key);; at = (at + 1) & b->pair_mask) {
        const struct bpe_pair *p = &b->pair[at];
        if (p->key == key)
            return p;
        if (p->key == PAIR_EMPTY)
            return NULL;
    }
}

int bpe_pairs_init(struct bpe *b, size_t n, struct err *err)
{
    uint32_t bits = 6;
    while (((uint64_t)1 << bits) < 2 * (uint64_t)n + 2 && bits < 31)
        bits++;
    b->pair_mask = (1u << bits) - 1;
    b->pair_shift = 64 - bits;
    b->pair_mul = rng_seed_draw() | 1;
    b->pair = mem_map(((size_t)1 << bits) * sizeof *b->pair);
    if (!b->pair)
        return err_nomem(err, "the merges", ((size_t)1 << bits) * sizeof *b->pair);
    return 0;
}

/* A pair named again takes the later rank. */
void bpe_pair_put(struct bpe *b, uint32_t left, uint32_t right, uint32_t rank, uint32_t id)
{
    uint64_t key = pair_key(left, right);
    uint32_t at = pair_slot(b, key);
    while (b->pair[at].key != PAIR_EMPTY && b->pair[at].key != key)
        at = (at + 1) & b->pair_mask;
    b->pair_count += b->pair[at].key == PAIR_EMPTY;
    b->pair[at] = (struct bpe_pair){key, rank, id};
}

static bool is_joined(const struct vocab *v, uint32_t id, struct str left, struct str right)
{
    struct str s = id < v->n ? v->piece[id] : (struct str){0};
    return s.n == left.n + right.n && s.n && !memcmp(s.p, left.p, left.n) && !memcmp(s.p + left.n, right.p, right.n);
}

static int find_joined(const struct tokenizer *t, struct str left, struct str right, uint32_t rank, const char *where, uint32_t *id,
                       struct err *err)
{
    struct buf joined = {0};
    buf_str(&joined, left);
    buf_str(&joined, right);
    int rc = buf_check(&joined, "a merge", err);
    *id = rc ? ID_NONE : vocab_find(&t->vocab, buf_view(&joined));
    if (!rc && *id == ID_NONE)
        rc = err_set(err, ERR_FORMAT, "%s[%u]: merge '%.*s' + '%.*s': '%.*s' is not in the vocabulary", where, rank,
                     STR_ARG(left), STR_ARG(right), STR_ARG(buf_view(&joined)));
    buf_free(&joined);
    return rc;
}

int bpe_merge_add(struct tokenizer *t, struct str left, struct str right, uint32_t rank, const char *where, struct err *err)
{
    uint32_t l = vocab_find(&t->vocab, left), r = vocab_find(&t->vocab, right);
    if (l == ID_NONE || r == ID_NONE)
        return err_set(err, ERR_FORMAT, "%s[%u]: merge '%.*s' + '%.*s': the %s is not in the vocabulary", where, rank,
                       STR_ARG(left), STR_ARG(right), l == ID_NONE ? "left token" : "right token");
    size_t skip = t->bpe.prefix.n;
    if (skip > right.n)
        return err_set(err, ERR_FORMAT, "%s[%u]: right token '%.*s' is shorter than continuing_subword_prefix", where, rank,
                       STR_ARG(right));
    uint32_t id = t->bpe.merged_last + 1; /* merged tokens mostly follow one another */
    int rc = is_joined(&t->vocab, id, left, str_from(right, skip)) ? 0 : find_joined(t, left, str_from(right, skip), rank, where, &id, err);
    if (!rc)
        bpe_pair_put(&t->bpe, l, r, rank, id);
    t->bpe.merged_last = id;
    return rc;
}

static int by_value(const void *a, const void *b)
{
    uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    return (x > y) - (x < y);
}

/* Text without pre-tokenizer is one piece, megabytes long.  It may be cut before a '▁' wherever no merge can cross: when no
 * merged token holds (previous character, '▁').  The previous characters for which one does are kept in a list. */
static int bpe_cut_prepare(struct tokenizer *t, struct err *err)
{
    enum { KEEP_MAX = 4096 };
    struct bpe *b = &t->bpe;
    b->cut = !b->ignore_merges && !b->prefix.n && !b->suffix.n && b->bmp_id[SPACE_MARK] != ID_NONE;
    if (!b->cut)
        return 0;
    b->cut_keep = mem_try_array(KEEP_MAX, sizeof *b->cut_keep);
    if (!b->cut_keep)
        return err_nomem(err, "the vocabulary", KEEP_MAX * sizeof *b->cut_keep);
    for (size_t i = 0; i <= b->pair_mask; i++) {
        if (b->pair[i].key == PAIR_EMPTY)
            continue;
        struct str s = t->vocab.piece[b->pair[i].id];
        uint32_t before = SPACE_MARK;
        for (const char *p = s.p, *end = s.p + s.n; p < end;) {
            uint32_t cp = unicode_next(&p);
            if (cp == SPACE_MARK && before != SPACE_MARK) {
                if (b->cut_keep_n == KEEP_MAX) {
                    b->cut = false;
                    return 0;
                }
                bool known = b->cut_keep_n && b->cut_keep[b->cut_keep_n - 1] == before;
                b->cut_keep[b->cut_keep_n] = before;
                b->cut_keep_n += !known;
            }
            before = cp;
        }
    }
    qsort(b->cut_keep, b->cut_keep_n, sizeof *b->cut_keep, by_value);
    return 0;
}

int bpe_finish(struct tokenizer *t, struct err *err)
{
    struct bpe *b = &t->bpe;
    if (!b->pair) {
        int rc = bpe_pairs_init(b, 0, err);
        if (rc)
            return rc;
    }
    for (uint32_t i = 0; i < 256; i++) {
        char text[8];
        size_t n;
        pretok_byte_char((uint8_t)i, text, &n);
        b->byte_id[i] = vocab_find(&t->vocab, str_n(text, n));
        snprintf(text, sizeof text, "<0x%02X>", i);
        b->fallback_id[i] = vocab_find(&t->vocab, str_n(text, 6));
    }
    b->bmp_id = mem_try_array(65536, sizeof *b->bmp_id);
    if (!b->bmp_id)
        return err_nomem(err, "the vocabulary", 65536 * sizeof *b->bmp_id);
    memset(b->bmp_id, 0xFF, 65536 * sizeof *b->bmp_id);
    for (uint32_t id = 0; id < t->vocab.n; id++) {
        struct str s = t->vocab.piece[id];
        const char *p = s.p;
        if (!s.n || s.n > 3)
            continue;
        uint32_t cp = unicode_next(&p);
        if (p == s.p + s.n)
            b->bmp_id[cp] = id;
    }
    return bpe_cut_prepare(t, err);
}

void bpe_free(struct bpe *b)
{
    mem_unmap(b->pair, ((size_t)b->pair_mask + 1) * sizeof *b->pair);
    mem_free(b->bmp_id);
    mem_free(b->cut_keep);
}

static int symbols_room(struct scratch *s, size_t n, struct err *err)
{
    if (n <= s->symbol_cap)
        return 0;
    if (n > BPE_SYMBOLS_MAX)
        return err_set(err, ERR_LIMIT, "a piece of %zu characters: at most %d", n, BPE_SYMBOLS_MAX);
    size_t cap = n < 256 ? 256 : n + n / 4;
    mem_free(s->symbol);
    s->symbol = mem_try_array(cap, sizeof *s->symbol);
    s->symbol_cap = s->symbol ? cap : 0;
    return s->symbol ? 0 : err_nomem(err, "symbols of a piece", cap * sizeof *s->symbol);
}

/* symbols being gathered; a run of unknown characters waits in `unk` */
struct gather {
    struct bpe_symbol *symbol;
    size_t n;
    bool unk_waits;
};

static void gather_add(struct gather *g, uint32_t id)
{
    g->symbol[g->n++].id = id;
}

/* One character (with prefix or suffix already applied in `text`) that may be unknown. */
static void gather_char(const struct bpe *b, struct gather *g, uint32_t id, struct str text)
{
    if (id != ID_NONE) {
        if (g->unk_waits)
            gather_add(g, b->unk);
        g->unk_waits = false;
        gather_add(g, id);
        return;
    }
    bool all = b->byte_fallback;
    for (size_t i = 0; all && i < text.n; i++)
        all = b->fallback_id[(uint8_t)text.p[i]] != ID_NONE;
    if (all) { /* a waiting unknown stays behind these bytes: so does the reference */
        for (size_t i = 0; i < text.n; i++)
            gather_add(g, b->fallback_id[(uint8_t)text.p[i]]);
        return;
    }
    if (b->unk == ID_NONE)
        return;
    if (g->unk_waits && !b->fuse_unk)
        gather_add(g, b->unk);
    g->unk_waits = true;
}

/* Characters with continuing_subword_prefix or end_of_word_suffix. */
static int gather_affixed(const struct tokenizer *t, struct scratch *s, struct gather *g, struct str piece, struct err *err)
{
    const struct bpe *b = &t->bpe;
    const char *p = piece.p, *end = p + piece.n;
    while (p < end) {
        const char *start = p;
        unicode_next(&p);
        s->word.n = 0;
        if (start != piece.p)
            buf_str(&s->word, b->prefix);
        buf_put(&s->word, start, (size_t)(p - start));
        if (p == end)
            buf_str(&s->word, b->suffix);
        int rc = buf_check(&s->word, "a piece", err);
        if (rc)
            return rc;
        gather_char(b, g, vocab_find(&t->vocab, buf_view(&s->word)), buf_view(&s->word));
    }
    return 0;
}

static void gather_plain(const struct tokenizer *t, struct gather *g, struct str piece)
{
    const struct bpe *b = &t->bpe;
    const char *p = piece.p, *end = p + piece.n;
    while (p < end) {
        const char *start = p;
        uint32_t cp = unicode_next(&p);
        struct str text = str_n(start, (size_t)(p - start));
        gather_char(b, g, cp < 65536 ? b->bmp_id[cp] : vocab_find(&t->vocab, text), text);
    }
}

/* Few symbols: look at all pairs each time.  Returns how many are left. */
static size_t merge_scan(const struct bpe *b, struct bpe_symbol *sym, size_t n)
{
    uint32_t rank[BPE_SCAN_MAX], id[BPE_SCAN_MAX];
    for (size_t i = 0; i + 1 < n; i++) {
        const struct bpe_pair *p = pair_find(b, sym[i].id, sym[i + 1].id);
        rank[i] = p ? p->rank : UINT32_MAX;
        id[i] = p ? p->id : 0;
    }
    while (n > 1) {
        size_t best = 0;
        for (size_t i = 1; i + 1 < n; i++)
            if (rank[i] < rank[best])
                best = i;
        if (rank[best] == UINT32_MAX)
            break;
        sym[best].id = id[best];
        n--;
        for (size_t i = best + 1; i < n; i++)
            sym[i].id = sym[i + 1].id;
        for (size_t i = best + 1; i + 1 < n; i++)
            rank[i] = rank[i + 1], id[i] = id[i + 1];
        for (size_t i = best ? best - 1 : 0; i <= best && i + 1 < n; i++) {
            const struct bpe_pair *p = pair_find(b, sym[i].id, sym[i + 1].id);
            rank[i] = p ? p->rank : UINT32_MAX;
            id[i] = p ? p->id : 0;
        }
    }
    return n;
}

static void heap_down(uint64_t *h, size_t n, size_t at)
{
    uint64_t v = h[at];
    for (size_t child; (child = 4 * at + 1) < n; at = child) {
        size_t last = child + 4 < n ? child + 4 : n;
        for (size_t i = child + 1; i < last; i++)
            if (h[i] < h[child])
                child = i;
        if (h[child] >= v)
            break;
        h[at] = h[child];
    }
    h[at] = v;
}

static void heap_up(uint64_t *h, size_t at)
{
    uint64_t v = h[at];
    while (at && h[(at - 1) / 4] > v) {
        h[at] = h[(at - 1) / 4];
        at = (at - 1) / 4;
    }
    h[at] = v;
}

/* Heap of rank << 32 | position.  An entry is stale when the pair at its position has another rank by now. */
static size_t merge_heap(const struct bpe *b, struct bpe_symbol *sym, uint64_t *heap, size_t n)
{
    size_t h = 0;
    for (size_t i = 0; i < n; i++) {
        sym[i].prev = i ? (uint32_t)i - 1 : ID_NONE;
        sym[i].next = i + 1 < n ? (uint32_t)i + 1 : ID_NONE;
        const struct bpe_pair *p = i + 1 < n ? pair_find(b, sym[i].id, sym[i + 1].id) : NULL;
        if (p)
            heap[h++] = (uint64_t)p->rank << 32 | i;
    }
    for (size_t i = h / 4 + 1; i-- > 0;)
        if (i < h)
            heap_down(heap, h, i);
    while (h) {
        uint64_t top = heap[0];
        uint32_t at = (uint32_t)top, right = sym[at].next;
        heap[0] = heap[--h];
        if (h)
            heap_down(heap, h, 0);
        if (sym[at].id == ID_NONE || right == ID_NONE)
            continue;
        const struct bpe_pair *p = pair_find(b, sym[at].id, sym[right].id);
        if (!p || p->rank != (uint32_t)(top >> 32))
            continue;
        sym[at].id = p->id;
        sym[at].next = sym[right].next;
        sym[right].id = ID_NONE;
        if (sym[at].next != ID_NONE)
            sym[sym[at].next].prev = at;
        uint32_t side[2] = {sym[at].prev, at};
        for (int k = 0; k < 2; k++) { /* two entries at most for one taken and one symbol gone: the heap cannot outgrow 2n */
            if (side[k] == ID_NONE || sym[side[k]].next == ID_NONE)
                continue;
            p = pair_find(b, sym[side[k]].id, sym[sym[side[k]].next].id);
            if (p) {
                heap[h++] = (uint64_t)p->rank << 32 | side[k];
                heap_up(heap, h - 1);
            }
        }
    }
    size_t left = 0;
    for (size_t i = 0; i < n; i++)
        if (sym[i].id != ID_NONE)
            sym[left++].id = sym[i].id;
    return left;
}

static int merge_all(const struct bpe *b, struct scratch *s, size_t *n, struct err *err)
{
    if (*n <= BPE_SCAN_MAX) {
        *n = merge_scan(b, s->symbol, *n);
        return 0;
    }
    if (s->heap_cap < 2 * *n) {
        mem_free(s->heap);
        s->heap_cap = 2 * *n;
        s->heap = mem_try_array(s->heap_cap, sizeof *s->heap);
        if (!s->heap) {
            s->heap_cap = 0;
            return err_nomem(err, "merging a piece", 2 * *n * sizeof *s->heap);
        }
    }
    *n = merge_heap(b, s->symbol, s->heap, *n);
    return 0;
}

static int encode_part(const struct tokenizer *t, struct scratch *s, struct str piece, bool raw, struct token_ids *out,
                       struct err *err)
{
    const struct bpe *b = &t->bpe;
    int rc = symbols_room(s, (raw ? 2 : 1) * piece.n + b->suffix.n + b->prefix.n * piece.n + 2, err);
    if (rc)
        return rc;
    struct gather g = {.symbol = s->symbol};
    if (raw) {
        for (size_t i = 0; i < piece.n; i++) {
            char c[2];
            size_t n;
            uint32_t id = b->byte_id[(uint8_t)piece.p[i]];
            pretok_byte_char((uint8_t)piece.p[i], c, &n);
            gather_char(b, &g, id, str_n(c, n));
        }
    } else if (b->prefix.n || b->suffix.n) {
        rc = gather_affixed(t, s, &g, piece, err);
    } else {
        gather_plain(t, &g, piece);
    }
    if (rc)
        return rc;
    if (g.unk_waits)
        gather_add(&g, b->unk);
    rc = merge_all(b, s, &g.n, err);
    for (size_t i = 0; i < g.n && !rc; i++)
        if (token_ids_push(out, s->symbol[i].id))
            rc = err_nomem(err, "token ids", out->n * sizeof *out->ids);
    return rc;
}

/* Where the text may next be cut after `at`: before a '▁' no merge can reach across. */
static size_t cut_next(const struct bpe *b, struct str text, size_t at)
{
    const char *end = text.p + text.n;
    for (const char *p = text.p + at + 1; p < end && (p = memchr(p, 0xE2, (size_t)(end - p))); p++) {
        if (end - p < 3 || memcmp(p, "\xE2\x96\x81", 3) != 0)
            continue;
        const char *q = p;
        uint32_t before = unicode_prev(&q);
        if (before == SPACE_MARK || (b->cut_keep_n && bsearch(&before, b->cut_keep, b->cut_keep_n, sizeof before, by_value)))
            continue;
        return (size_t)(p - text.p);
    }
    return text.n;
}

/* A piece in raw bytes, spelled in byte-level characters. */
static int spell_bytes(struct scratch *s, struct str piece, struct err *err)
{
    s->word.n = 0;
    for (size_t i = 0; i < piece.n; i++) {
        char c[2];
        size_t n;
        pretok_byte_char((uint8_t)piece.p[i], c, &n);
        buf_put(&s->word, c, n);
    }
    return buf_check(&s->word, "a piece", err);
}

int bpe_encode(const struct tokenizer *t, struct scratch *s, struct str piece, bool raw, struct token_ids *out, struct err *err)
{
    if (t->bpe.ignore_merges) { /* a whole piece of the vocabulary is taken as it is */
        int rc = raw ? spell_bytes(s, piece, err) : 0;
        uint32_t id = rc ? ID_NONE : vocab_find(&t->vocab, raw ? buf_view(&s->word) : piece);
        if (rc || id != ID_NONE)
            return rc ? rc : token_ids_push(out, id) ? err_nomem(err, "token ids", out->n * sizeof *out->ids) : 0;
    }
    return encode_part(t, s, piece, raw, out, err);
}

size_t bpe_cut(const struct tokenizer *t, struct str text, size_t at)
{
    return t->bpe.cut ? cut_next(&t->bpe, text, at) : text.n;
}
