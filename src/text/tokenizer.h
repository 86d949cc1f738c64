/* text/tokenizer.h - text <-> token ids, byte-exact with Hugging Face `tokenizers`.
 *
 * Owns:       vocabulary, merges, tables; immutable after open (any thread may encode and decode).
 * Invariants: 1. encode(text) equals tokenizers' ids for the same tokenizer.json; invalid UTF-8 is first replaced by maximal
 *                subparts (U+FFFD), as Python's errors='replace'.
 *             2. decode pieces concatenate to exactly what tokenizers' decoder gives; a stream never splits a scalar.
 * Does not:   know chat templates or models. */
#ifndef RH_TEXT_TOKENIZER_H
#define RH_TEXT_TOKENIZER_H

#include "base/buf.h"
#include "base/err.h"
#include "base/str.h"

#include <stdbool.h>
#include <stdint.h>

struct gguf;
struct tokenizer;

/* From tokenizer.json (and tokenizer_config.json for bos/eos/add_bos rules; may be {NULL,0}). */
int tokenizer_open_json(struct str tokenizer_json, struct str tokenizer_config_json, struct tokenizer **out, struct err *err);
/* From GGUF metadata (tokenizer.ggml.*). */
int tokenizer_open_gguf(const struct gguf *g, struct tokenizer **out, struct err *err);
void tokenizer_close(struct tokenizer *t);

struct tokenizer_info {
    const char *model;   /* "bpe", "spm", "unigram" */
    const char *pretok;  /* "gpt-2", "llama-bpe", ..., "custom (PCRE2)", "none" */
    uint32_t vocab_size; /* ids are below it; holes decode to nothing */
    uint32_t merge_count, special_count;
    int64_t bos, eos, unk, pad; /* -1 = none */
    bool add_bos, add_eos;
    const uint32_t *eog; /* ids that end generation by themselves (eos, eot, eom ...), ascending */
    uint32_t eog_count;
};
void tokenizer_info(const struct tokenizer *t, struct tokenizer_info *out); /* pointers live as long as t */

/* growing list of ids; owner frees with mem_free(ids) */
struct token_ids {
    uint32_t *ids;
    size_t n, cap;
};
int token_ids_push(struct token_ids *list, uint32_t id); /* 0 or ERR_NOMEM */
void token_ids_free(struct token_ids *list);

/* A piece of input.  `special`: added/special token texts inside it become their ids (template text); false for text that came
 * from a user and must stay text. */
struct text_span {
    struct str text;
    bool special;
};

struct encode_options {
    bool add_bos;       /* apply the model's BOS/EOS rule */
    bool parse_special; /* for tokenizer_encode: special tokens in the text become ids */
};

/* Appends to out.  Errors: ERR_NOMEM, ERR_LIMIT (a pattern's match limit). */
int tokenizer_encode(const struct tokenizer *t, struct str text, const struct encode_options *opt, struct token_ids *out,
                     struct err *err);
/* Pieces are encoded as ONE text.  A special token is recognised where it begins and ends in special pieces: a template may build one
 * around a user's word ("<|" + role + "|>"), but a user's text neither holds one nor completes one. */
int tokenizer_encode_spans(const struct tokenizer *t, const struct text_span *spans, size_t n, bool add_bos,
                           struct token_ids *out, struct err *err);

/* The same, and where the ids fall apart: ids[i] = how many ids (of this call) stand before byte bytes[i] of the joined text, when a
 * special token begins or ends there, so that the ids on either side do not depend on the other; else SIZE_MAX. */
struct token_cuts {
    const size_t *bytes; /* [count] ascending */
    size_t *ids;         /* [count] */
    size_t count;
};
int tokenizer_encode_cut(const struct tokenizer *t, const struct text_span *spans, size_t n, bool add_bos, struct token_cuts *cuts,
                         struct token_ids *out, struct err *err);

struct str tokenizer_piece(const struct tokenizer *t, uint32_t id); /* the vocabulary's own text of the id; {NULL,0} for a hole */
int64_t tokenizer_find(const struct tokenizer *t, struct str piece); /* id of exactly this vocabulary/added text, or -1 */
bool tokenizer_is_special(const struct tokenizer *t, uint32_t id);
bool tokenizer_is_added(const struct tokenizer *t, uint32_t id); /* found in the text as a whole, special or not */

/* All ids at once: bytes as tokenizers' decode(skip_special_tokens) gives them, but undecodable bytes stay raw bytes. */
int tokenizer_decode(const struct tokenizer *t, const uint32_t *ids, size_t n, bool skip_special, struct buf *out);

/* Streaming: feed ids one by one, take bytes.  Zero-initialise; no memory of its own. */
struct detok {
    bool started; /* a first piece's leading space rule is spent */
    bool skip_special;
    bool raw_bytes;  /* what cannot become text is given as it is, not as U+FFFD */
    uint8_t held[4]; /* bytes of an unfinished scalar */
    uint8_t held_count;
    uint8_t stripped; /* leading characters the decoder dropped so far; 255: the text has begun */
};
int detok_put(struct detok *d, const struct tokenizer *t, uint32_t id, struct buf *out); /* whole scalars, and what cannot complete */
int detok_end(struct detok *d, struct buf *out);                                         /* what is still held: it stays broken */
/* The raw bytes of one id in mid-text (byte tokens as their byte): for stop strings and grammars. */
int tokenizer_id_bytes(const struct tokenizer *t, uint32_t id, bool first, struct buf *out);

#endif
