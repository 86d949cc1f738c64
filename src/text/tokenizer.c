/* text/tokenizer.c - opening and closing, and encode: the chain from text to ids (see text_int.h).
 *
 * Invariants: 1. encode writes nothing outside its own struct scratch and `out`.  2. on an error `out` is as long as before. */
#include "text/text_int.h"

#include "base/hash.h"
#include "base/mem.h"
#include "base/utf8.h"

#include <stdlib.h>

enum { WORD_BYTES = 20, WORD_IDS = 5, WORDS_TEXT_MIN = 512, WORDS_MAX = 1 << 14 };

/* a piece seen before in this call and its ids; a newer piece with the same hash takes the place */
struct word_slot {
    uint8_t n, ids, raw;
    char text[WORD_BYTES];
    uint32_t id[WORD_IDS];
};

struct tokenizer *tokenizer_new(void)
{
    struct tokenizer *t = mem_try_zero(1, sizeof *t);
    if (!t)
        return NULL;
    t->info.bos = t->info.eos = t->info.unk = t->info.pad = -1;
    t->bpe.unk = t->unigram.unk = ID_NONE;
    return t;
}

void tokenizer_close(struct tokenizer *t)
{
    if (!t)
        return;
    for (uint32_t i = 0; i < t->norm_n; i++)
        regex_free(t->norm[i].re);
    for (uint32_t i = 0; i < t->pre_n; i++)
        regex_free(t->pre[i].re);
    mem_free(t->decoder.at);
    mem_free(t->decoder.text);
    unigram_free(&t->unigram);
    bpe_free(&t->bpe);
    added_free(&t->added);
    vocab_free(&t->vocab);
    arena_free(&t->mem);
    mem_free(t);
}

void tokenizer_info(const struct tokenizer *t, struct tokenizer_info *out)
{
    *out = t->info;
}

struct str tokenizer_piece(const struct tokenizer *t, uint32_t id)
{
    return id < t->info.vocab_size ? t->piece[id] : (struct str){0};
}

int64_t tokenizer_find(const struct tokenizer *t, struct str piece)
{
    return load_find(t, piece);
}

bool tokenizer_is_special(const struct tokenizer *t, uint32_t id)
{
    return id < t->info.vocab_size && t->special[id];
}

bool tokenizer_is_added(const struct tokenizer *t, uint32_t id)
{
    return added_find_id(&t->added, id) != NULL;
}

int token_ids_push(struct token_ids *list, uint32_t id)
{
    if (list->n == list->cap) {
        size_t cap = list->cap ? list->cap * 2 : 64;
        uint32_t *bigger = mem_try_resize(list->ids, cap * sizeof *bigger);
        if (!bigger)
            return ERR_NOMEM;
        list->ids = bigger;
        list->cap = cap;
    }
    list->ids[list->n++] = id;
    return 0;
}

void token_ids_free(struct token_ids *list)
{
    mem_free(list->ids);
    *list = (struct token_ids){0};
}

/* ---- one encode call */

/* a stretch of the text and whether special tokens count in it */
struct reach {
    size_t end;
    bool special;
};

struct call {
    const struct tokenizer *t;
    struct scratch s;
    struct str text; /* the whole text, valid UTF-8 */
    struct buf repaired;
    struct reach *reach; /* [reach_n], by position; NULL: special tokens count everywhere */
    size_t reach_n;
    struct token_cuts *cuts; /* NULL: not asked for */
    size_t cut_next, first;  /* next of them; ids in out before the call */
    struct token_ids *out;
    struct err *err;
};

static void scratch_free(struct scratch *s)
{
    norm_text_free(&s->norm[0]);
    norm_text_free(&s->norm[1]);
    buf_free(&s->pre[0]);
    buf_free(&s->pre[1]);
    mem_free(s->pieces[0].p);
    mem_free(s->pieces[1].p);
    regex_cursor_free(&s->cursor);
    mem_free(s->words);
    mem_free(s->symbol);
    mem_free(s->heap);
    mem_free(s->best);
    buf_free(&s->word);
}

static int push(struct call *c, uint32_t id)
{
    return token_ids_push(c->out, id) ? err_nomem(c->err, "token ids", c->out->n * sizeof id) : 0;
}

static uint32_t word_hash(struct str s)
{
    uint64_t h = s.n * 0x9E3779B97F4A7C15ull, w;
    for (size_t at = 0; at < s.n; at += 8) {
        w = 0;
        memcpy(&w, s.p + at, s.n - at < 8 ? s.n - at : 8);
        h = (h ^ w) * 0xD6E8FEB86659FD93ull;
        h ^= h >> 32;
    }
    return (uint32_t)(h >> 16);
}

/* The model on one piece, through the memory of pieces. */
static int encode_piece(struct call *c, struct str piece, bool raw)
{
    struct word_slot *w = NULL;
    size_t before = c->out->n;
    if (c->s.words && piece.n <= WORD_BYTES) {
        w = &c->s.words[word_hash(piece) & c->s.words_mask];
        if (w->n == piece.n && w->raw == raw && !memcmp(w->text, piece.p, piece.n)) {
            for (uint32_t i = 0; i < w->ids; i++)
                if (push(c, w->id[i]))
                    return ERR_NOMEM;
            return 0;
        }
    }
    int rc = c->t->kind == MODEL_UNIGRAM ? unigram_encode(c->t, &c->s, piece, c->out, c->err)
                                         : bpe_encode(c->t, &c->s, piece, raw, c->out, c->err);
    size_t ids = c->out->n - before;
    if (!rc && w && ids <= WORD_IDS) {
        w->n = (uint8_t)piece.n;
        w->raw = raw;
        w->ids = (uint8_t)ids;
        memcpy(w->text, piece.p, piece.n);
        memcpy(w->id, c->out->ids + before, ids * sizeof *w->id);
    }
    return rc;
}

static int encode_pieces(struct call *c, struct str text, const struct pieces *pieces, bool raw)
{
    int rc = 0;
    for (size_t i = 0; i < pieces->n && !rc; i++) {
        struct str piece = str_n(text.p + pieces->p[i].start, pieces->p[i].n);
        while (!rc && piece.n) {
            size_t cut = !raw && piece.n > WORD_BYTES ? bpe_cut(c->t, piece, 0) : piece.n;
            rc = encode_piece(c, str_n(piece.p, cut), raw);
            piece = str_from(piece, cut);
        }
    }
    return rc;
}

/* 1: special tokens count at both ends of [start, end) of the text (a template may build one around a user's word); 0: nowhere in it;
 * -1: else, as where a user's text would complete one */
static int reach_at(const struct call *c, size_t start, size_t end)
{
    size_t lo = 0, hi = c->reach_n;
    while (lo < hi) { /* first stretch that ends after start */
        size_t mid = lo + (hi - lo) / 2;
        if (c->reach[mid].end <= start)
            lo = mid + 1;
        else
            hi = mid;
    }
    bool first = c->reach[lo].special, any = first;
    while (c->reach[lo].end < end)
        any |= c->reach[++lo].special;
    return first && c->reach[lo].special ? 1 : any ? -1 : 0;
}

/* a text inside the whole: where it starts, or where each of its bytes comes from */
struct origin {
    const struct call *c;
    size_t base;
    const uint32_t *align;
};

static int special_in(void *ctx, size_t start, size_t end)
{
    const struct origin *o = ctx;
    size_t s = o->base + (o->align ? o->align[start] : start);
    size_t e = o->base + (o->align ? o->align[end - 1] + 1 : end);
    return reach_at(o->c, s, e > s ? e : s + 1);
}

/* Bytes of the segment that come from the very start of the whole text. */
static size_t starting_bytes(const struct origin *o, struct str text, size_t at)
{
    size_t n = 0;
    if (o->base)
        return 0;
    if (!o->align)
        return at == 0 ? 1 : 0;
    while (at + n < text.n && o->align[at + n] == 0)
        n++;
    return n;
}

/* Text without added tokens in it. */
static int encode_plain(struct call *c, const struct origin *o, struct str text, size_t start, size_t end)
{
    struct str view;
    struct pieces *pieces;
    bool raw;
    if (start >= end)
        return 0;
    int rc =
        pretok_run(c->t, &c->s, str_n(text.p + start, end - start), starting_bytes(o, text, start), &view, &pieces, &raw, c->err);
    return rc ? rc : encode_pieces(c, view, pieces, raw);
}

/* A special token begins or ends at this byte of the whole text, before id number out->n. */
static void cut_at(struct call *c, size_t byte)
{
    struct token_cuts *cuts = c->cuts;
    while (cuts && c->cut_next < cuts->count && cuts->bytes[c->cut_next] < byte)
        c->cut_next++;
    for (size_t i = c->cut_next; cuts && i < cuts->count && cuts->bytes[i] == byte; i++)
        cuts->ids[i] = c->out->n - c->first;
}

static int with_added(struct call *c, const struct added_set *set, const struct origin *o, struct str text,
                      int (*gap)(struct call *, const struct origin *, struct str, size_t, size_t))
{
    struct added_match m;
    size_t at = 0, from = 0;
    int rc = 0;
    while (!rc && added_next(&c->t->added, set, text, &at, from, c->reach ? special_in : NULL, (void *)(uintptr_t)o, &m)) {
        if (from < m.start)
            rc = gap(c, o, text, from, m.start);
        if (!rc && set == &c->t->added.raw)
            cut_at(c, m.start);
        if (!rc)
            rc = push(c, m.id);
        if (!rc && set == &c->t->added.raw)
            cut_at(c, m.end);
        from = m.end;
    }
    return rc ? rc : gap(c, o, text, from, text.n);
}

/* Text between added tokens that are matched as they stand: normalise it, look for those matched in normal form. */
static int encode_segment(struct call *c, const struct origin *whole, struct str text, size_t start, size_t end)
{
    const struct tokenizer *t = c->t;
    struct norm_text *out = NULL;
    struct str segment = str_n(text.p + start, end - start);
    struct origin o = {c, whole->base + start, NULL};
    if (start >= end)
        return 0;
    bool track = (t->track_first && o.base == 0) || (c->reach && t->added.normalized.n);
    int rc = norm_run(t->norm, t->norm_n, segment, track, &c->s.norm[0], &c->s.norm[1], &out, c->err);
    if (rc)
        return rc;
    if (out) {
        segment = buf_view(&out->text);
        o.align = out->align && track ? out->align : NULL;
    }
    return with_added(c, &t->added.normalized, &o, segment, encode_plain);
}

/* ---- the text: valid UTF-8, spans joined */

static void repair(struct buf *out, struct str s)
{
    while (s.n) {
        uint32_t cp;
        size_t n = utf8_decode(s, &cp);
        if (cp == UTF8_BAD)
            buf_put(out, "\xEF\xBF\xBD", 3);
        else
            buf_put(out, s.p, n);
        s = str_from(s, n);
    }
}

static int gather_text(struct call *c, const struct text_span *spans, size_t n)
{
    size_t total = 0;
    bool all = true;
    for (size_t i = 0; i < n; i++) {
        if (spans[i].text.n > TOKENIZER_TEXT_MAX - total)
            return err_set(c->err, ERR_LIMIT, "text of more than %zu bytes", TOKENIZER_TEXT_MAX);
        total += spans[i].text.n;
        all &= spans[i].special;
    }
    if (n == 1 && utf8_valid(spans[0].text)) {
        c->text = spans[0].text;
    } else {
        c->repaired.max = 3 * TOKENIZER_TEXT_MAX;
        buf_room(&c->repaired, total + 1);
    }
    if (!all) {
        c->reach = mem_try_array(n, sizeof *c->reach);
        if (!c->reach)
            return err_nomem(c->err, "spans", n * sizeof *c->reach);
    }
    for (size_t i = 0; i < n; i++) {
        if (!c->text.p)
            repair(&c->repaired, spans[i].text);
        if (!all && spans[i].text.n)
            c->reach[c->reach_n++] = (struct reach){c->text.p ? total : c->repaired.n, spans[i].special};
    }
    if (!c->text.p)
        c->text = buf_view(&c->repaired);
    if (c->text.n > TOKENIZER_TEXT_MAX)
        return err_set(c->err, ERR_LIMIT, "text of more than %zu bytes", TOKENIZER_TEXT_MAX);
    return buf_check(&c->repaired, "the text", c->err);
}

static size_t joined_bytes(const struct text_span *spans, size_t n)
{
    size_t total = 0;
    for (size_t i = 0; i < n; i++)
        total += spans[i].text.n;
    return total;
}

static int words_open(struct call *c)
{
    size_t slots = 64;
    if (c->text.n < WORDS_TEXT_MIN)
        return 0;
    while (slots < WORDS_MAX && slots * 8 < c->text.n)
        slots *= 2;
    c->s.words = mem_try_zero(slots, sizeof *c->s.words);
    c->s.words_mask = (uint32_t)slots - 1;
    return c->s.words ? 0 : err_nomem(c->err, "encoding", slots * sizeof *c->s.words);
}

int tokenizer_encode_cut(const struct tokenizer *t, const struct text_span *spans, size_t n, bool add_bos, struct token_cuts *cuts,
                         struct token_ids *out, struct err *err)
{
    struct call *c = mem_try_zero(1, sizeof *c);
    size_t before = out->n;
    if (!c)
        return err_nomem(err, "encoding", sizeof *c);
    c->t = t;
    c->out = out;
    c->err = err;
    c->first = before;
    c->cuts = cuts;
    for (size_t i = 0; cuts && i < cuts->count; i++)
        cuts->ids[i] = SIZE_MAX;
    struct origin whole = {c, 0, NULL};
    int rc = gather_text(c, spans, n);
    rc = rc ? rc : words_open(c);
    if (c->text.n != joined_bytes(spans, n)) /* repaired: the caller's places are not the text's */
        c->cuts = NULL;
    for (uint32_t i = 0; add_bos && i < t->before_n && !rc; i++)
        rc = push(c, t->before[i]);
    rc = rc ? rc : with_added(c, &t->added.raw, &whole, c->text, encode_segment);
    for (uint32_t i = 0; add_bos && i < t->after_n && !rc; i++)
        rc = push(c, t->after[i]);
    if (rc)
        out->n = before;
    scratch_free(&c->s);
    buf_free(&c->repaired);
    mem_free(c->reach);
    mem_free(c);
    return rc;
}

int tokenizer_encode_spans(const struct tokenizer *t, const struct text_span *spans, size_t n, bool add_bos,
                           struct token_ids *out, struct err *err)
{
    return tokenizer_encode_cut(t, spans, n, add_bos, NULL, out, err);
}

int tokenizer_encode(const struct tokenizer *t, struct str text, const struct encode_options *opt, struct token_ids *out,
                     struct err *err)
{
    struct text_span span = {text, opt->parse_special};
    return tokenizer_encode_spans(t, &span, 1, opt->add_bos, out, err);
}
