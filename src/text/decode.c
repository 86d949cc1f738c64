/* text/decode.c - ids back to bytes: all at once, or one by one without ever cutting a scalar.
 *
 * The decoder chain of a tokenizer.json acts on each token by itself (replace, strip, byte-level characters, <0xNN>), and then on
 * the joined text at most at its start.  So the bytes of every id are computed once, at open, and decoding is copying.
 * Invariants: 1. detok_put appends whole scalars only; a scalar that may still complete is held, and what cannot complete any
 * more becomes one U+FFFD per maximal subpart, or stays as it is (raw_bytes).  2. tokenizer_decode leaves such bytes raw. */
#include "text/text_int.h"

#include "base/mem.h"
#include "base/utf8.h"
#include "text/unicode.h"

static bool known(const struct tokenizer *t, uint32_t id)
{
    return id < t->info.vocab_size;
}

static struct str id_text(const struct tokenizer *t, uint32_t id)
{
    return str_n(t->decoder.text + t->decoder.at[id], t->decoder.at[id + 1] - t->decoder.at[id]);
}

/* The rules of the first token(s): metaspace's mark vanishes, leading spaces are stripped. */
static void put_first(const struct tokenizer *t, struct detok *d, uint32_t id, struct buf *out)
{
    const struct decoder *dec = &t->decoder;
    struct str s = id_text(t, id);
    if (!d->started && dec->first_drop.n) {
        s = t->text_of[id];
        for (size_t f; (f = str_find(s, dec->first_drop)) != SIZE_MAX; s = str_from(s, f + dec->first_drop.n))
            buf_put(out, s.p, f);
        buf_str(out, s);
        return;
    }
    while (s.n && d->stripped < dec->strip_left) {
        const char *p = s.p;
        if ((uint8_t)*p >= 0x80 && !utf8_valid(s)) /* a raw byte: not the character to strip */
            break;
        if (unicode_next(&p) != dec->strip_cp)
            break;
        d->stripped++;
        s = str_from(s, (size_t)(p - s.p));
    }
    if (s.n)
        d->stripped = UINT8_MAX;
    buf_str(out, s);
}

static void put_id(const struct tokenizer *t, struct detok *d, uint32_t id, struct buf *out)
{
    if (!known(t, id) || (d->skip_special && t->special[id]) || !t->text_of[id].p)
        return;
    if (t->decoder.spaces && d->started)
        buf_char(out, ' ');
    if (!d->started || d->stripped < t->decoder.strip_left)
        put_first(t, d, id, out);
    else
        buf_str(out, id_text(t, id));
    d->started = true;
}

int tokenizer_decode(const struct tokenizer *t, const uint32_t *ids, size_t n, bool skip_special, struct buf *out)
{
    struct detok d = {.skip_special = skip_special};
    for (size_t i = 0; i < n; i++)
        put_id(t, &d, ids[i], out);
    return out->failed;
}

int tokenizer_id_bytes(const struct tokenizer *t, uint32_t id, bool first, struct buf *out)
{
    struct detok d = {.started = !first, .stripped = first ? 0 : UINT8_MAX};
    struct detok mid = {.started = true, .stripped = UINT8_MAX};
    if (t->decoder.spaces && known(t, id))
        buf_str(out, id_text(t, id));
    else
        put_id(t, first ? &d : &mid, id, out);
    return out->failed;
}

/* A maximal subpart that is no scalar and will be none. */
static void put_broken(const struct detok *d, const void *bytes, size_t n, struct buf *out)
{
    if (d->raw_bytes)
        buf_put(out, bytes, n);
    else
        buf_put(out, "\xEF\xBF\xBD", 3);
}

/* Move whole scalars of held + more to `out`; keep the rest held. */
static void release(struct detok *d, struct str more, struct buf *out)
{
    while (more.n) {
        if (!d->held_count) { /* the usual case: a run of whole scalars */
            size_t open = utf8_tail_open(more), whole = more.n - open;
            struct str run = str_n(more.p, whole);
            while (run.n) {
                uint32_t cp;
                size_t used = utf8_decode(run, &cp);
                if (cp == UTF8_BAD)
                    put_broken(d, run.p, used, out);
                else
                    buf_put(out, run.p, used);
                run = str_from(run, used);
            }
            memcpy(d->held, more.p + whole, open);
            d->held_count = (uint8_t)open;
            return;
        }
        d->held[d->held_count++] = (uint8_t)more.p[0];
        struct str held = str_n(d->held, d->held_count);
        if (utf8_tail_open(held) == held.n) { /* still open */
            more = str_from(more, 1);
            continue;
        }
        uint32_t cp;
        size_t used = utf8_decode(held, &cp);
        if (cp != UTF8_BAD) {
            buf_put(out, held.p, used);
            d->held_count = 0;
            more = str_from(more, 1);
        } else { /* the new byte does not continue what was held, and is looked at again */
            put_broken(d, d->held, d->held_count - 1u, out);
            d->held_count = 0;
        }
    }
}

int detok_put(struct detok *d, const struct tokenizer *t, uint32_t id, struct buf *out)
{
    if (d->started && d->stripped >= t->decoder.strip_left && known(t, id) && !t->decoder.spaces) {
        if (t->text_of[id].p && !(d->skip_special && t->special[id]))
            release(d, id_text(t, id), out);
        return out->failed;
    }
    struct buf piece = {0};
    put_id(t, d, id, &piece);
    release(d, buf_view(&piece), out);
    int failed = piece.failed;
    buf_free(&piece);
    return failed ? failed : out->failed;
}

int detok_end(struct detok *d, struct buf *out)
{
    if (d->held_count)
        put_broken(d, d->held, d->held_count, out);
    d->held_count = 0;
    return out->failed;
}
