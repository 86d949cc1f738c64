/* text/normalise.c - the normalisers of tokenizer.json.
 *
 * Each op reads one text and writes another; two buffers take turns.  When somebody asks (track), every output byte carries the
 * place in the original it comes from, moved along exactly as the reference moves its alignments.
 * Invariants: 1. input and output are valid UTF-8.  2. time is linear (n log n for heaps of combining marks).
 * Does not:   know added tokens or segments; norm_run gets one segment. */
#include "text/norm_int.h"

#include "base/mem.h"

void norm_text_free(struct norm_text *t)
{
    buf_free(&t->text);
    mem_free(t->align);
    *t = (struct norm_text){0};
}

static bool out_room(struct norm_ctx *c, size_t n)
{
    struct norm_text *o = c->out;
    if (!c->track || o->text.n + n <= o->align_cap)
        return true;
    size_t cap = o->align_cap ? o->align_cap : 256;
    while (cap < o->text.n + n)
        cap *= 2;
    uint32_t *a = mem_try_resize(o->align, cap * sizeof *a);
    if (!a) {
        o->text.failed = ERR_NOMEM;
        return false;
    }
    o->align = a;
    o->align_cap = cap;
    return true;
}

void norm_put(struct norm_ctx *c, const char *p, size_t n, size_t from)
{
    if (!out_room(c, n))
        return;
    size_t at = c->out->text.n;
    buf_put(&c->out->text, p, n);
    if (!c->track || c->out->text.failed)
        return;
    uint32_t src = c->in.n ? norm_source(c, from < c->in.n ? from : c->in.n - 1) : 0;
    for (size_t i = 0; i < n; i++)
        c->out->align[at + i] = src;
}

void norm_put_cp(struct norm_ctx *c, uint32_t cp, size_t from)
{
    char b[4];
    norm_put(c, b, utf8_encode(cp, b), from);
}

void norm_copy(struct norm_ctx *c, size_t start, size_t end)
{
    if (!c->track) {
        buf_put(&c->out->text, c->in.p + start, end - start);
        return;
    }
    while (start < end) {
        const char *p = c->in.p + start;
        unicode_next(&p);
        size_t next = (size_t)(p - c->in.p);
        norm_put(c, c->in.p + start, next - start, start);
        start = next;
    }
}

static void strip(struct norm_ctx *c, const struct norm_op *op)
{
    const char *p = c->in.p, *end = p + c->in.n, *q;
    while (op->left && p < end && (q = p, unicode_is_space(unicode_next(&q))))
        p = q;
    while (op->right && p < end && (q = end, unicode_is_space(unicode_prev(&q))))
        end = q;
    norm_copy(c, (size_t)(p - c->in.p), (size_t)(end - c->in.p));
}

static void prepend(struct norm_ctx *c, const struct norm_op *op)
{
    if (c->in.n)
        norm_put(c, op->content.p, op->content.n, 0);
    norm_copy(c, 0, c->in.n);
}

static int replace(struct norm_ctx *c, const struct norm_op *op, struct err *err)
{
    struct regex_cursor cursor = {0};
    size_t start, end, at = 0;
    int rc = regex_cursor_open(&cursor, op->re, c->in, err);
    while (!rc && c->in.n && (rc = regex_next(&cursor, &start, &end, err)) == 1) {
        norm_copy(c, at, start);
        norm_put(c, op->content.p, op->content.n, end ? end - 1 : 0);
        at = end;
        rc = 0;
    }
    norm_copy(c, at, c->in.n);
    regex_cursor_free(&cursor);
    return rc;
}

/* A plain string replaced by another: the usual case (' ' by '▁'), without the pattern machine. */
static void replace_literal(struct norm_ctx *c, struct str what, struct str with)
{
    size_t at = 0;
    for (;;) {
        struct str rest = str_from(c->in, at);
        const char *hit = what.n == 1 ? (rest.n ? memchr(rest.p, what.p[0], rest.n) : NULL) : NULL;
        if (what.n > 1) {
            size_t f = str_find(rest, what);
            hit = f == SIZE_MAX ? NULL : rest.p + f;
        }
        if (!hit)
            break;
        size_t start = (size_t)(hit - c->in.p);
        norm_copy(c, at, start);
        at = start + what.n;
        norm_put(c, with.p, with.n, at - 1);
    }
    norm_copy(c, at, c->in.n);
}

static bool nmt_drops(uint32_t cp)
{
    return (cp >= 1 && cp <= 8) || cp == 0x0B || (cp >= 0x0E && cp <= 0x1F) || cp == 0x7F || cp == 0x8F || cp == 0x9F;
}

static bool nmt_spaces(uint32_t cp)
{
    return cp == 9 || cp == 10 || cp == 12 || cp == 13 || cp == 0x1680 || (cp >= 0x200B && cp <= 0x200F) || cp == 0x2028 ||
           cp == 0x2029 || cp == 0x2581 || cp == 0xFEFF || cp == 0xFFFD;
}

static bool bert_chinese(uint32_t cp)
{
    static const uint32_t range[][2] = {{0x4E00, 0x9FFF},   {0x3400, 0x4DBF},   {0x20000, 0x2A6DF}, {0x2A700, 0x2B73F},
                                        {0x2B740, 0x2B81F}, {0x2B920, 0x2CEAF}, {0xF900, 0xFAFF},   {0x2F800, 0x2FA1F}};
    for (size_t i = 0; i < sizeof range / sizeof *range; i++)
        if (cp >= range[i][0] && cp <= range[i][1])
            return true;
    return false;
}

static void lower(struct norm_ctx *c, uint32_t cp, size_t from)
{
    if (cp == 0x130) { /* the only letter whose lower case is two characters */
        norm_put(c, "i\xCC\x87", 3, from);
        return;
    }
    norm_put_cp(c, norm_lower(cp), from);
}

/* Ops that look at one character at a time. */
static void by_char(struct norm_ctx *c, enum norm_step step)
{
    const char *p = c->in.p, *end = p + c->in.n;
    while (p < end) {
        size_t from = (size_t)(p - c->in.p);
        const char *start = p;
        uint32_t cp = unicode_next(&p);
        size_t n = (size_t)(p - start);
        switch (step) {
        case STEP_LOWER:
            lower(c, cp, from);
            break;
        case STEP_MARKS:
            if (!(unicode_more(cp) & UNICODE_MARK))
                norm_put(c, start, n, from);
            break;
        case STEP_MARKS_BERT:
            if (!(unicode_more(cp) & UNICODE_MARK_BERT))
                norm_put(c, start, n, from);
            break;
        case STEP_NMT:
            if (nmt_spaces(cp))
                norm_put(c, " ", 1, from);
            else if (!nmt_drops(cp))
                norm_put(c, start, n, from);
            break;
        case STEP_CLEAN_BERT:
            if (unicode_more(cp) & UNICODE_OTHER_BERT)
                break;
            if (unicode_is_space(cp))
                norm_put(c, " ", 1, from);
            else
                norm_put(c, start, n, from);
            break;
        case STEP_CHINESE:
            if (bert_chinese(cp))
                norm_put(c, " ", 1, from);
            norm_put(c, start, n, from);
            if (bert_chinese(cp))
                norm_put(c, " ", 1, from);
            break;
        case STEP_BYTES:
            for (size_t i = 0; i < n; i++) {
                char b[2];
                size_t len;
                pretok_byte_char((uint8_t)start[i], b, &len);
                norm_put(c, b, len, from);
            }
            break;
        }
    }
}

/* ---- steps: BertNormalizer is up to four of them, everything else one */

static int run_step(struct norm_ctx *c, const struct norm_op *op, uint32_t step, struct err *err)
{
    static const enum norm_step bert[4] = {STEP_CLEAN_BERT, STEP_CHINESE, STEP_MARKS_BERT, STEP_LOWER};
    switch (op->kind) {
    case NORM_NFC:
        return norm_unicode(c, true, false, err);
    case NORM_NFD:
        return norm_unicode(c, false, false, err);
    case NORM_NFKC:
        return norm_unicode(c, true, true, err);
    case NORM_NFKD:
        return norm_unicode(c, false, true, err);
    case NORM_LOWERCASE:
        by_char(c, STEP_LOWER);
        return 0;
    case NORM_STRIP_ACCENTS:
        by_char(c, STEP_MARKS);
        return 0;
    case NORM_NMT:
        by_char(c, STEP_NMT);
        return 0;
    case NORM_BYTE_LEVEL:
        by_char(c, STEP_BYTES);
        return 0;
    case NORM_STRIP:
        strip(c, op);
        return 0;
    case NORM_PREPEND:
        prepend(c, op);
        return 0;
    case NORM_PRECOMPILED:
        norm_precompiled(c, op);
        return 0;
    case NORM_REPLACE:
        if (op->re)
            return replace(c, op, err);
        replace_literal(c, op->pattern, op->content);
        return 0;
    case NORM_BERT:
        if (step == 2)
            return norm_unicode(c, false, false, err);
        by_char(c, bert[step > 2 ? step - 1 : step]);
        return 0;
    }
    return err_set(err, ERR_INTERNAL, "normaliser kind %d", (int)op->kind);
}

/* Bert's steps: clean, spaces around ideographs, decompose, drop marks, lower */
static bool step_applies(const struct norm_op *op, uint32_t step)
{
    if (op->kind != NORM_BERT)
        return step == 0;
    return (step == 0 && op->clean) || (step == 1 && op->chinese) || ((step == 2 || step == 3) && op->accents) ||
           (step == 4 && op->lower);
}

int norm_run(const struct norm_op *ops, uint32_t n, struct str in, bool track, struct norm_text *a, struct norm_text *b,
             struct norm_text **out, struct err *err)
{
    struct norm_text *from = NULL, *to = a;
    for (uint32_t i = 0; i < n; i++) {
        for (uint32_t step = 0; step < 5; step++) {
            if (!step_applies(&ops[i], step))
                continue;
            struct norm_ctx c = {from ? buf_view(&from->text) : in, from ? from->align : NULL, track, to};
            to->text.n = 0;
            to->text.max = TOKENIZER_TEXT_MAX;
            if (!buf_room(&to->text, c.in.n + 1)) /* also makes p non-NULL */
                return buf_check(&to->text, "normalised text", err);
            int rc = run_step(&c, &ops[i], step, err);
            if (!rc)
                rc = buf_check(&to->text, "normalised text", err);
            if (rc)
                return rc;
            from = to;
            to = to == a ? b : a;
        }
    }
    *out = from; /* NULL: nothing to do, the text is its own normal form */
    return 0;
}
