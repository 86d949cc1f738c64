/* text/pretok.c - the pre-tokenizers of tokenizer.json: a text becomes a list of pieces.
 *
 * A pre-tokenizer cuts pieces of one text into smaller pieces of the same text, or rewrites the text (a leading space, '▁' for '
 * ', byte-level characters) and its list.  Two texts and two lists take turns. Invariants: 1. pieces are never empty and stand in
 * order.  2. a byte-level op that comes last only marks the pieces as raw bytes: the model reads them through its byte table. */
#include "text/text_int.h"

#include "base/mem.h"
#include "base/utf8.h"
#include "text/unicode.h"

/* ---- byte-level characters: printable Latin-1 stands for itself, the other 68 bytes for U+0100 and up */

static bool byte_is_itself(uint32_t b)
{
    return (b >= '!' && b <= '~') || (b >= 0xA1 && b <= 0xAC) || (b >= 0xAE && b <= 0xFF);
}

/* 0..0x20 -> 0x100.., 0x7F..0xA0 -> 0x121.., 0xAD -> 0x143 */
void pretok_byte_char(uint8_t b, char out[2], size_t *n)
{
    uint32_t cp = byte_is_itself(b) ? b : b <= 0x20 ? 0x100u + b : b == 0xAD ? 0x143 : 0x121u + b - 0x7F;
    if (cp < 0x80) {
        out[0] = (char)cp;
        *n = 1;
        return;
    }
    out[0] = (char)(0xC0 | cp >> 6);
    out[1] = (char)(0x80 | (cp & 0x3F));
    *n = 2;
}

int pretok_char_byte(uint32_t cp)
{
    if (cp < 0x100)
        return byte_is_itself(cp) ? (int)cp : -1;
    if (cp <= 0x120)
        return (int)cp - 0x100;
    if (cp <= 0x142)
        return (int)cp - 0x121 + 0x7F;
    return cp == 0x143 ? 0xAD : -1;
}

int pieces_push(struct pieces *p, size_t start, size_t end)
{
    if (start == end)
        return 0;
    if (p->n == p->cap) {
        size_t cap = p->cap ? p->cap * 2 : 64;
        struct piece *bigger = mem_try_resize(p->p, cap * sizeof *bigger);
        if (!bigger)
            return ERR_NOMEM;
        p->p = bigger;
        p->cap = cap;
    }
    p->p[p->n++] = (struct piece){(uint32_t)start, (uint32_t)(end - start)};
    return 0;
}

/* ---- what to do with the parts a pattern matched and those it did not */

struct fold {
    struct pieces *out;
    enum split_behavior behavior;
    bool invert;
    size_t start, end; /* the part still growing or waiting */
    bool open, open_is_match, previous_match;
    int failed;
};

static void fold_flush(struct fold *f)
{
    if (f->open && pieces_push(f->out, f->start, f->end))
        f->failed = ERR_NOMEM;
    f->open = false;
}

static void fold_part(struct fold *f, size_t start, size_t end, bool match)
{
    match ^= f->invert;
    bool joins = false;
    switch (f->behavior) {
    case SPLIT_REMOVED:
        if (match)
            fold_flush(f);
        break;
    case SPLIT_ISOLATED:
        break;
    case SPLIT_CONTIGUOUS:
        joins = f->open && match == f->open_is_match;
        break;
    case SPLIT_MERGED_PREVIOUS:
        joins = f->open && match && !f->previous_match;
        break;
    case SPLIT_MERGED_NEXT:
        joins = f->open && f->open_is_match && !match;
        break;
    }
    f->previous_match = match;
    if (f->behavior == SPLIT_REMOVED && match)
        return;
    if (joins) {
        f->end = end;
        f->open_is_match = match;
        return;
    }
    fold_flush(f);
    f->open = true;
    f->start = start;
    f->end = end;
    f->open_is_match = match;
}

/* ---- cutting by a test on single characters */

static bool char_matches(const struct pretok_op *op, uint32_t cp)
{
    switch (op->kind) {
    case PRE_DIGITS:
        return unicode_main(cp) & UNICODE_NUMERIC;
    case PRE_PUNCTUATION:
        return unicode_more(cp) & UNICODE_PUNCT;
    case PRE_DELIMITER:
        return cp == op->cp;
    case PRE_METASPACE:
        return cp == op->cp;
    default:
        return unicode_is_space(cp);
    }
}

static void cut_by_char(struct fold *f, const struct pretok_op *op, struct str text, struct piece piece)
{
    const char *p = text.p + piece.start, *end = p + piece.n, *from = p;
    while (p < end) {
        const char *start = p;
        if (!char_matches(op, unicode_next(&p)))
            continue;
        if (from < start)
            fold_part(f, (size_t)(from - text.p), (size_t)(start - text.p), false);
        fold_part(f, (size_t)(start - text.p), (size_t)(p - text.p), true);
        from = p;
    }
    if (from < end)
        fold_part(f, (size_t)(from - text.p), (size_t)(end - text.p), false);
}

/* \w+|[^\w\s]+ : words and the signs between them */
static void cut_whitespace(struct fold *f, struct str text, struct piece piece)
{
    const char *p = text.p + piece.start, *end = p + piece.n;
    while (p < end) {
        const char *start = p, *q = p;
        uint32_t cp = unicode_next(&q);
        bool space = unicode_is_space(cp), word = unicode_more(cp) & UNICODE_WORD;
        for (; p < end; p = q) {
            q = p;
            cp = unicode_next(&q);
            bool w = unicode_more(cp) & UNICODE_WORD;
            if (w != word || (!w && unicode_is_space(cp) != space))
                break;
        }
        if (!space || word)
            fold_part(f, (size_t)(start - text.p), (size_t)(p - text.p), false), fold_flush(f);
    }
}

static int cut_by_regex(struct fold *f, struct scratch *s, const struct pretok_op *op, struct str text, struct piece piece,
                        struct err *err)
{
    struct str part = str_n(text.p + piece.start, piece.n);
    size_t start, end, at = 0;
    int rc = regex_cursor_open(&s->cursor, op->re, part, err);
    while (!rc && (rc = regex_next(&s->cursor, &start, &end, err)) == 1) {
        if (at < start)
            fold_part(f, piece.start + at, piece.start + start, false);
        fold_part(f, piece.start + start, piece.start + end, true);
        at = end;
        rc = f->failed;
    }
    if (at < part.n)
        fold_part(f, piece.start + at, piece.start + part.n, false);
    return rc;
}

static int cut_fixed(struct pieces *out, const struct pretok_op *op, struct str text, struct piece piece)
{
    const char *p = text.p + piece.start, *end = p + piece.n, *from = p;
    int rc = 0;
    for (uint32_t n = 0; p < end && !rc;) {
        unicode_next(&p);
        if (++n == op->length || p == end) {
            rc = pieces_push(out, (size_t)(from - text.p), (size_t)(p - text.p));
            from = p;
            n = 0;
        }
    }
    return rc;
}

/* Cut every piece of `in`. */
static int cut(struct scratch *s, const struct pretok_op *op, struct str text, const struct pieces *in, struct pieces *out,
               struct err *err)
{
    struct fold f = {.out = out, .behavior = op->behavior, .invert = op->invert};
    size_t need = 0; /* patterns of one tokenizer stand in a row, and most pieces have nothing that most of them need */
    int rc = 0;
    out->n = 0;
    for (size_t i = 0; i < in->n && !rc && !f.failed; i++) {
        size_t start = in->p[i].start, end = start + in->p[i].n;
        f.previous_match = false;
        switch (op->kind) {
        case PRE_SPLIT:
        case PRE_BYTE_LEVEL:
            need = need < start ? start : need;
            need = need < end ? regex_need_at(op->re, text, need) : need;
            if (need >= end)
                fold_part(&f, start, end, false);
            else
                rc = cut_by_regex(&f, s, op, text, in->p[i], err);
            break;
        case PRE_WHITESPACE:
            cut_whitespace(&f, text, in->p[i]);
            break;
        case PRE_FIXED_LENGTH:
            f.failed = cut_fixed(out, op, text, in->p[i]);
            break;
        default:
            cut_by_char(&f, op, text, in->p[i]);
            break;
        }
        fold_flush(&f);
    }
    if (!rc && f.failed)
        rc = err_nomem(err, "pieces", out->n * sizeof *out->p);
    return rc;
}

/* ---- rewriting */

/* state of one run over a segment */
struct pre_run {
    struct scratch *s;
    struct str text;
    struct pieces *in, *out;
    int next_text;   /* which of s->pre is free */
    size_t at_start; /* bytes of the text that come from the start of the original */
    struct err *err;
};

static void swap(struct pre_run *r)
{
    struct pieces *p = r->in;
    r->in = r->out;
    r->out = p;
}

enum rewrite { REWRITE_SPACE, REWRITE_META, REWRITE_BYTES };

static void put_piece(struct buf *b, const struct pretok_op *op, enum rewrite how, struct str part, bool first)
{
    if (how == REWRITE_BYTES) {
        char *to = buf_room(b, 2 * part.n); /* of a byte's character at most */
        for (size_t i = 0; to && i < part.n; i++) {
            size_t n;
            pretok_byte_char((uint8_t)part.p[i], to, &n);
            to += n;
            b->n += n;
        }
        return;
    }
    if (how == REWRITE_SPACE) {
        if (part.p[0] != ' ')
            buf_char(b, ' ');
        buf_str(b, part);
        return;
    }
    bool marked = part.p[0] == ' ' || str_starts(part, op->mark);
    if (!marked && (op->scheme == PREPEND_ALWAYS || (op->scheme == PREPEND_FIRST && first)))
        buf_str(b, op->mark);
    for (size_t at = 0; at < part.n;) {
        const char *hit = memchr(part.p + at, ' ', part.n - at);
        size_t stop = hit ? (size_t)(hit - part.p) : part.n;
        buf_put(b, part.p + at, stop - at);
        if (hit)
            buf_str(b, op->mark);
        at = stop + (hit != NULL);
    }
}

static int rewrite(struct pre_run *r, const struct pretok_op *op, enum rewrite how)
{
    struct buf *b = &r->s->pre[r->next_text];
    size_t at_start = 0;
    r->next_text ^= 1;
    b->n = 0;
    b->max = TOKENIZER_TEXT_MAX;
    if (!buf_room(b, r->text.n + 4))
        return buf_check(b, "pre-tokenized text", r->err);
    r->out->n = 0;
    for (size_t i = 0; i < r->in->n; i++) {
        struct piece p = r->in->p[i];
        size_t start = b->n;
        bool first = p.start < r->at_start;
        put_piece(b, op, how, str_n(r->text.p + p.start, p.n), first);
        if (pieces_push(r->out, start, b->n))
            return err_nomem(r->err, "pieces", r->out->n * sizeof *r->out->p);
        if (first) /* only ever the first character: the piece that holds it starts the text */
            at_start = start + 1;
    }
    r->at_start = at_start;
    r->text = buf_view(b);
    swap(r);
    return buf_check(b, "pre-tokenized text", r->err);
}

static int one_op(struct pre_run *r, const struct pretok_op *op)
{
    int rc = 0;
    if (op->kind == PRE_BYTE_LEVEL && op->add_prefix_space)
        rc = rewrite(r, op, REWRITE_SPACE);
    if (op->kind == PRE_METASPACE)
        rc = rewrite(r, op, REWRITE_META);
    if (rc)
        return rc;
    if ((op->kind == PRE_METASPACE && !op->split) || (op->kind == PRE_BYTE_LEVEL && !op->re))
        return 0;
    if (op->kind != PRE_BERT) {
        rc = cut(r->s, op, r->text, r->in, r->out, r->err);
        swap(r);
        return rc;
    }
    struct pretok_op spaces = {.kind = PRE_WHITESPACE_SPLIT, .behavior = SPLIT_REMOVED};
    struct pretok_op signs = {.kind = PRE_PUNCTUATION, .behavior = SPLIT_ISOLATED};
    rc = cut(r->s, &spaces, r->text, r->in, r->out, r->err);
    swap(r);
    if (!rc) {
        rc = cut(r->s, &signs, r->text, r->in, r->out, r->err);
        swap(r);
    }
    return rc;
}

int pretok_run(const struct tokenizer *t, struct scratch *s, struct str text, size_t at_start_bytes, struct str *out_text,
               struct pieces **out, bool *raw, struct err *err)
{
    struct pre_run r = {s, text, &s->pieces[0], &s->pieces[1], 0, at_start_bytes, err};
    r.in->n = 0;
    *raw = false;
    if (pieces_push(r.in, 0, text.n))
        return err_nomem(err, "pieces", 64 * sizeof *r.in->p);
    for (uint32_t i = 0; i < t->pre_n; i++) {
        const struct pretok_op *op = &t->pre[i];
        int rc = one_op(&r, op);
        if (!rc && op->kind == PRE_BYTE_LEVEL) {
            *raw = i + 1 == t->pre_n;
            if (!*raw)
                rc = rewrite(&r, op, REWRITE_BYTES);
        }
        if (rc)
            return rc;
    }
    *out_text = r.text;
    *out = r.in;
    return 0;
}
