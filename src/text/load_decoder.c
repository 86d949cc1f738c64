/* text/load_decoder.c - the decoder of a tokenizer.json, run once over the vocabulary.
 *
 * A chain is accepted when it acts on each token by itself and, after the tokens are joined, only strips leading characters or
 * replaces single ones: then decoding is copying (see decode.c).  Any other chain is refused by name. */
#include "text/text_int.h"

#include "base/mem.h"
#include "base/utf8.h"
#include "text/unicode.h"

enum dec_kind { DEC_REPLACE, DEC_STRIP, DEC_BYTE_FALLBACK, DEC_BYTE_LEVEL, DEC_METASPACE };

struct dec_op {
    enum dec_kind kind;
    struct regex *re;
    struct str pattern, content;
    uint32_t cp, start, stop;
};

struct chain {
    struct dec_op op[TOKENIZER_OPS_MAX];
    uint32_t n;
    bool joined;
};

static int refuse(const char *what, struct str type, struct err *err)
{
    return err_set(err, ERR_UNSUPPORTED, "tokenizer.json: decoder: %s '%.*s' is not supported", what, STR_ARG(type));
}

static int dec_replace(struct chain *c, struct dec_op *op, yyjson_val *v, struct err *err)
{
    yyjson_val *p = yyjson_obj_get(v, "pattern");
    struct str text = json_str(yyjson_obj_get(p, "String")), re = json_str(yyjson_obj_get(p, "Regex"));
    uint32_t cp;
    op->kind = DEC_REPLACE;
    op->content = json_str(yyjson_obj_get(v, "content"));
    if ((!text.p && !re.p) || !op->content.p)
        return err_set(err, ERR_FORMAT, "tokenizer.json: decoder: Replace: expected 'pattern' {String or Regex} and 'content'");
    if (text.p ? !text.n : c->joined)
        return refuse("after joining, the pattern of", STR("Replace"), err);
    if (c->joined && utf8_decode(text, &cp) != text.n)
        return refuse("after joining, the long pattern of", STR("Replace"), err);
    op->pattern = text;
    return text.p ? 0 : regex_compile(re, "decoder: Replace", &op->re, err);
}

static int dec_strip(struct tokenizer *t, struct chain *c, struct dec_op *op, yyjson_val *v, struct err *err)
{
    struct str content = json_str(yyjson_obj_get(v, "content"));
    const char *where = "tokenizer.json: decoder: Strip";
    int rc = json_get_u32(v, "start", &op->start, where, err);
    rc = rc ? rc : json_get_u32(v, "stop", &op->stop, where, err);
    if (rc)
        return rc;
    if (!content.n || utf8_decode(content, &op->cp) != content.n || op->cp == UTF8_BAD)
        return err_set(err, ERR_FORMAT, "%s: 'content': expected one character", where);
    op->kind = DEC_STRIP;
    if (!c->joined)
        return 0;
    if (op->stop || op->start > 200 || t->decoder.strip_left)
        return refuse("after joining, stop > 0 of", STR("Strip"), err);
    t->decoder.strip_left = op->start;
    t->decoder.strip_cp = op->cp;
    op->start = 0; /* nothing to do per token */
    return 0;
}

static int chain_add(struct tokenizer *t, struct chain *c, yyjson_val *v, int depth, struct err *err)
{
    struct str type = json_str(yyjson_obj_get(v, "type"));
    if (str_is(type, "Sequence")) {
        yyjson_val *list = yyjson_obj_get(v, "decoders"), *item;
        size_t i, n;
        if (!yyjson_is_arr(list) || depth > 8)
            return err_set(err, ERR_FORMAT, "tokenizer.json: decoder: Sequence: 'decoders': expected an array, got %s",
                           json_type_name(list));
        yyjson_arr_foreach(list, i, n, item)
        {
            int rc = chain_add(t, c, item, depth + 1, err);
            if (rc)
                return rc;
        }
        return 0;
    }
    if (c->n == TOKENIZER_OPS_MAX)
        return err_set(err, ERR_LIMIT, "tokenizer.json: decoder: more than %d steps", TOKENIZER_OPS_MAX);
    struct dec_op *op = &c->op[c->n++];
    if (str_is(type, "Replace"))
        return dec_replace(c, op, v, err);
    if (str_is(type, "Strip"))
        return dec_strip(t, c, op, v, err);
    if (str_is(type, "Fuse")) {
        c->joined = true;
        c->n--;
        return 0;
    }
    if (c->joined)
        return refuse("after joining,", type, err);
    if (str_is(type, "ByteFallback")) {
        op->kind = DEC_BYTE_FALLBACK;
    } else if (str_is(type, "ByteLevel")) {
        op->kind = DEC_BYTE_LEVEL;
        c->joined = true;
    } else if (str_is(type, "Metaspace")) {
        struct str mark = json_str(yyjson_obj_get(v, "replacement"));
        op->kind = DEC_METASPACE;
        if (!mark.n || utf8_decode(mark, &op->cp) != mark.n || c->n != 1)
            return refuse("this use of", type, err);
        op->pattern = mark;
        bool prefix = true;
        int rc = json_get_bool(v, "add_prefix_space", &prefix, "tokenizer.json: decoder: Metaspace", err);
        if (rc)
            return rc;
        if (prefix && !str_is(json_str(yyjson_obj_get(v, "prepend_scheme")), "never"))
            t->decoder.first_drop = arena_try_str(&t->mem, mark);
    } else {
        return refuse("type", type, err);
    }
    return 0;
}

static int hex(char c)
{
    return c >= '0' && c <= '9' ? c - '0' : (c | 32) >= 'a' && (c | 32) <= 'f' ? (c | 32) - 'a' + 10 : -1;
}

/* <0xNN>; the reference's number reader also takes <0x+N> */
static int byte_token(struct str s)
{
    if (s.n != 6 || memcmp(s.p, "<0x", 3) || s.p[5] != '>')
        return -1;
    int hi = s.p[3] == '+' ? 0 : hex(s.p[3]), lo = hex(s.p[4]);
    return hi < 0 || lo < 0 ? -1 : hi * 16 + lo;
}

static int replace_in(const struct dec_op *op, struct str in, struct buf *out, struct err *err)
{
    if (!op->re) {
        for (size_t f; (f = str_find(in, op->pattern)) != SIZE_MAX; in = str_from(in, f + op->pattern.n)) {
            buf_put(out, in.p, f);
            buf_str(out, op->content);
        }
        buf_str(out, in);
        return 0;
    }
    struct regex_cursor c = {0};
    size_t start, end, at = 0;
    int rc = regex_cursor_open(&c, op->re, in, err);
    while (!rc && in.n && (rc = regex_next(&c, &start, &end, err)) == 1) {
        buf_put(out, in.p + at, start - at);
        buf_str(out, op->content);
        at = end;
        rc = 0;
    }
    regex_cursor_free(&c);
    buf_str(out, str_from(in, at));
    return rc;
}

static void strip_in(const struct dec_op *op, struct str in, struct buf *out)
{
    const char *p = in.p, *end = p + in.n, *q;
    for (uint32_t i = 0; i < op->start && p < end && (q = p, unicode_next(&q) == op->cp); i++)
        p = q;
    for (uint32_t i = 0; i < op->stop && p < end && (q = end, unicode_prev(&q) == op->cp); i++)
        end = q;
    buf_put(out, p, (size_t)(end - p));
}

static void byte_level_in(struct str in, struct buf *out)
{
    char *to = buf_room(out, in.n);
    size_t n = 0;
    if (!to)
        return;
    for (const char *p = in.p, *end = p + in.n; p < end;) {
        int b = pretok_char_byte(unicode_next(&p));
        if (b < 0) { /* one foreign character: the token stands as it is */
            memmove(to, in.p, in.n);
            n = in.n;
            break;
        }
        to[n++] = (char)b;
    }
    out->n += n;
}

/* One token through the chain; a and b take turns, the result is a view of one of them or of s. */
static int run_chain(const struct chain *c, struct str s, struct buf *a, struct buf *b, struct str *out, struct err *err)
{
    bool bytes = false;
    int rc = 0;
    for (uint32_t i = 0; i < c->n && !rc; i++) {
        const struct dec_op *op = &c->op[i];
        a->n = 0;
        if (!buf_room(a, s.n + 1))
            return buf_check(a, "the decoder", err);
        if (bytes) /* a raw byte is no text any more */
            break;
        int byte;
        switch (op->kind) {
        case DEC_REPLACE:
            rc = replace_in(op, s, a, err);
            break;
        case DEC_METASPACE:
            rc = replace_in(&(struct dec_op){.pattern = op->pattern, .content = STR(" ")}, s, a, err);
            break;
        case DEC_STRIP:
            strip_in(op, s, a);
            break;
        case DEC_BYTE_LEVEL:
            byte_level_in(s, a);
            break;
        case DEC_BYTE_FALLBACK:
            byte = byte_token(s);
            if (byte < 0)
                continue;
            buf_char(a, (char)byte);
            bytes = byte >= 0x80;
            break;
        }
        s = buf_view(a);
        struct buf *t = a;
        a = b;
        b = t;
    }
    *out = s;
    return rc;
}

static int fill(struct tokenizer *t, const struct chain *c, struct err *err)
{
    uint32_t n = t->info.vocab_size;
    struct buf all = {.max = UINT32_MAX}, a = {0}, b = {0};
    int rc = 0;
    t->decoder.at = mem_try_array((size_t)n + 1, sizeof *t->decoder.at);
    if (!t->decoder.at)
        return err_nomem(err, "the decoder", n * sizeof *t->decoder.at);
    for (uint32_t id = 0; id < n && !rc; id++) {
        struct str out;
        t->decoder.at[id] = (uint32_t)all.n;
        if (!t->text_of[id].p)
            continue;
        if (c->n == 1 && c->op[0].kind == DEC_BYTE_LEVEL) { /* most vocabularies: straight to its place */
            byte_level_in(t->text_of[id], &all);
        } else {
            rc = run_chain(c, t->text_of[id], &a, &b, &out, err);
            if (!rc)
                buf_str(&all, out);
        }
        if (!rc && (a.failed || b.failed || all.failed))
            rc = err_nomem(err, "the decoder", all.n);
    }
    t->decoder.at[n] = (uint32_t)all.n;
    t->decoder.text = all.p;
    buf_free(&a);
    buf_free(&b);
    return rc;
}

int load_decoder(struct tokenizer *t, yyjson_val *v, struct err *err)
{
    struct chain c = {0};
    int rc = 0;
    t->decoder.spaces = !v || yyjson_is_null(v);
    if (!t->decoder.spaces)
        rc = yyjson_is_obj(v)
                 ? chain_add(t, &c, v, 0, err)
                 : err_set(err, ERR_FORMAT, "tokenizer.json: 'decoder': expected an object, got %s", json_type_name(v));
    if (!rc)
        rc = fill(t, &c, err);
    for (uint32_t i = 0; i < c.n; i++)
        regex_free(c.op[i].re);
    return rc;
}
