/* text/text_int.h - private to the room: the parts a tokenizer is made of.
 *
 * Order of an encode: added tokens in the raw text (added.c) -> normaliser (normalise.c) -> added tokens in the normalised text
 * -> pre-tokenizer (pretok.c) -> model (bpe.c, unigram.c) on each piece -> ids before and after (tokenizer.c). Lifetime:
 * everything here but struct scratch is the model's: built at open, immutable afterwards. */
#ifndef RH_TEXT_INT_H
#define RH_TEXT_INT_H

#include "base/arena.h"
#include "base/json.h"
#include "text/norm.h"
#include "text/regex.h"
#include "text/tokenizer.h"

enum { TOKENIZER_IDS_MAX = 1 << 24, TOKENIZER_OPS_MAX = 32, TOKENIZER_TOKEN_BYTES_MAX = 1024, TOKENIZER_AFFIX_MAX = 8 };
#define TOKENIZER_TEXT_MAX ((size_t)1 << 30) /* bytes of one encode, before and after normalisation */
#define ID_NONE UINT32_MAX

/* ---- vocab.c: token text <-> id of the model's own vocabulary */
struct vocab {
    struct str *piece; /* [n]; p == NULL: a hole */
    uint32_t n;        /* highest id + 1 */
    uint32_t count;    /* ids in use */
    uint64_t *slot;    /* [mask + 1] hash bits and id + 1, open addressing */
    uint64_t *hint;    /* one bit for every 1/8 slot: most absent texts are known from here */
    uint32_t mask;
    uint64_t key[2]; /* of the hash: file contents cannot choose collisions */
};

int vocab_init(struct vocab *v, uint32_t n, struct err *err);
int vocab_put(struct vocab *v, uint32_t id, struct str text, struct err *err); /* borrows text; duplicates are errors */
uint32_t vocab_find(const struct vocab *v, struct str text);                   /* ID_NONE when absent */
void vocab_free(struct vocab *v);

/* ---- added.c: tokens found in the text before the model sees it */
struct added_token {
    struct str content, match; /* match: what is searched (content, normalised when `normalized`) */
    uint32_t id;
    bool special, lstrip, rstrip, single_word, normalized;
};

/* tokens of one kind sorted by match text; first[b]..first[b+1] are those starting with byte b */
struct added_set {
    uint32_t *order; /* index into added.token */
    uint32_t n;
    uint32_t first[257];
};

struct added {
    struct added_token *token; /* ascending by id after added_build */
    uint32_t n, cap;
    uint32_t fresh; /* how many are not in the vocabulary */
    struct added_set raw, normalized;
};

struct added_match {
    size_t start, end; /* spaces taken by lstrip / rstrip included */
    uint32_t id;
};

/* Is [start, end) of the text inside spans where special tokens count?  NULL: everywhere. */
typedef int (*added_special_fn)(void *ctx, size_t start, size_t end); /* 1 yes, 0 nowhere, -1 partly */

/* Next match at or after *at (updated); `from` is where the part not yet taken starts.  False: no more. */
bool added_next(const struct added *a, const struct added_set *s, struct str text, size_t *at, size_t from,
                added_special_fn special, void *ctx, struct added_match *m);
int added_build(struct added *a, struct err *err); /* sorts and indexes; match texts must be set */
const struct added_token *added_find_id(const struct added *a, uint32_t id);
void added_free(struct added *a);

/* ---- pretok.c */
enum split_behavior { SPLIT_REMOVED, SPLIT_ISOLATED, SPLIT_MERGED_PREVIOUS, SPLIT_MERGED_NEXT, SPLIT_CONTIGUOUS };

enum pretok_kind {
    PRE_SPLIT,
    PRE_BYTE_LEVEL,
    PRE_METASPACE,
    PRE_DIGITS,
    PRE_PUNCTUATION,
    PRE_WHITESPACE,
    PRE_WHITESPACE_SPLIT,
    PRE_BERT,
    PRE_DELIMITER,
    PRE_FIXED_LENGTH
};

enum prepend_scheme { PREPEND_ALWAYS, PREPEND_FIRST, PREPEND_NEVER };

struct pretok_op {
    enum pretok_kind kind;
    struct regex *re; /* split; byte level with use_regex */
    enum split_behavior behavior;
    bool invert, individual, add_prefix_space, split;
    enum prepend_scheme scheme;
    uint32_t cp;     /* delimiter */
    uint32_t length; /* fixed length */
    struct str mark; /* metaspace's character */
};

struct piece {
    uint32_t start, n;
};

struct pieces {
    struct piece *p;
    size_t n, cap;
};

/* ---- the models */
struct bpe_pair {
    uint64_t key; /* (left << 32 | right) + 1; 0: empty */
    uint32_t rank, id;
};

struct bpe {
    struct bpe_pair *pair;
    uint32_t pair_mask, pair_shift, pair_count;
    uint32_t merged_last; /* while loading: the token of the last merge */
    uint64_t pair_mul;
    uint32_t byte_id[256];     /* id of the byte-level character of a byte */
    uint32_t *bmp_id;          /* [65536] id of a character of the first plane */
    uint32_t fallback_id[256]; /* <0x00> ... */
    uint32_t unk;              /* ID_NONE: unknown characters vanish */
    bool fuse_unk, byte_fallback, ignore_merges;
    struct str prefix, suffix; /* continuing_subword_prefix, end_of_word_suffix */
    uint32_t *cut_keep;        /* sorted characters after which a '▁' may join (see bpe_cut_prepare) */
    uint32_t cut_keep_n;
    bool cut; /* text may be cut before '▁' */
};

struct unigram {
    double *score;
    double unk_score;
    uint32_t unk; /* ID_NONE: an unknown character is an error */
    bool byte_fallback;
    uint32_t fallback_id[256];
    struct unigram_edge *edge; /* (node, byte) -> node, open addressing */
    uint32_t edge_mask, edge_shift, node_count;
    uint64_t edge_mul;
};

/* ---- decode.c */
struct decoder {
    uint32_t *at; /* [n_ids + 1] bytes of id i = text[at[i], at[i + 1]) in mid-text */
    char *text;
    struct str first_drop;         /* metaspace: this character vanishes from the first token */
    uint32_t strip_cp, strip_left; /* after fusing: this many leading characters go */
    bool spaces;                   /* no decoder: tokens joined by a space */
};

enum model_kind { MODEL_BPE, MODEL_SPM, MODEL_UNIGRAM };

struct tokenizer {
    struct arena mem;
    enum model_kind kind;
    struct vocab vocab;
    struct added added;
    struct norm_op norm[TOKENIZER_OPS_MAX];
    uint32_t norm_n;
    struct pretok_op pre[TOKENIZER_OPS_MAX];
    uint32_t pre_n;
    bool track_first; /* some op asks whether a piece starts the text */
    struct bpe bpe;
    struct unigram unigram;
    struct decoder decoder;
    uint32_t before[TOKENIZER_AFFIX_MAX], after[TOKENIZER_AFFIX_MAX]; /* ids the post-processor adds */
    uint32_t before_n, after_n;
    uint8_t *special;    /* [n_ids] skipped when decoding */
    struct str *piece;   /* [n_ids] the id's own text; p == NULL: a hole */
    struct str *text_of; /* [n_ids] what the decoder starts from: piece, or an added token's normalised text */
    uint32_t *eog;
    struct tokenizer_info info; /* info.vocab_size is n_ids */
};

/* ---- one encode call; owner: the calling thread */
struct word_slot;
struct scratch {
    struct norm_text norm[2];
    struct buf pre[2]; /* texts rewritten by pre-tokenizers */
    struct pieces pieces[2];
    struct regex_cursor cursor;
    bool first_piece_at_start; /* the segment starts the original text */
    const uint32_t *align;     /* of the text being split; NULL: identity from align_base */
    struct word_slot *words;   /* pieces seen before -> ids */
    uint32_t words_mask;
    struct bpe_symbol *symbol;
    size_t symbol_cap;
    uint64_t *heap;
    size_t heap_cap;
    struct unigram_best *best;
    size_t best_cap;
    struct buf word; /* a piece in byte-level characters */
};

int pretok_run(const struct tokenizer *t, struct scratch *s, struct str text, size_t at_start_bytes, struct str *out_text,
               struct pieces **out, bool *raw, struct err *err);
int pieces_push(struct pieces *p, size_t start, size_t end);
void pretok_byte_char(uint8_t b, char out[2], size_t *n); /* the byte-level character of a byte, as UTF-8 */
int pretok_char_byte(uint32_t cp);                        /* the byte of such a character, or -1 */

int bpe_finish(struct tokenizer *t, struct err *err); /* tables that follow from vocabulary and merges */
int bpe_pairs_init(struct bpe *b, size_t n, struct err *err);
void bpe_pair_put(struct bpe *b, uint32_t left, uint32_t right, uint32_t rank, uint32_t id);
int bpe_merge_add(struct tokenizer *t, struct str left, struct str right, uint32_t rank, const char *where, struct err *err);
int bpe_encode(const struct tokenizer *t, struct scratch *s, struct str piece, bool raw, struct token_ids *out, struct err *err);
size_t bpe_cut(const struct tokenizer *t, struct str text, size_t at); /* end of the part that starts at `at` */
void bpe_free(struct bpe *b);

int unigram_finish(struct tokenizer *t, struct err *err);
int unigram_encode(const struct tokenizer *t, struct scratch *s, struct str piece, struct token_ids *out, struct err *err);
void unigram_free(struct unigram *u);
bool score_parse(struct str text,
                 double *out);     /* score.c: a JSON number as the reference library reads it; false: out of range */
double score_as_written(double v); /* what it would read for this number's shortest decimal text */

/* ---- load_*.c */
struct tokenizer *tokenizer_new(void);
int load_charsmap(struct tokenizer *t, struct str blob, struct norm_op *op,
                  struct err *err); /* SentencePiece's precompiled map */
int load_normalizer(struct tokenizer *t, yyjson_val *v, struct err *err);
int load_pre_tokenizer(struct tokenizer *t, yyjson_val *v, struct err *err);
int load_decoder(struct tokenizer *t, yyjson_val *v, struct err *err); /* after the vocabulary and added tokens are complete */
int load_added(struct tokenizer *t, struct added_token tok, struct err *err); /* in file order; id ID_NONE: the next free one */
int load_finish(struct tokenizer *t, yyjson_val *decoder,
                struct err *err);                              /* added tokens, model tables, decoder, special, eog */
int64_t load_find(const struct tokenizer *t, struct str text); /* id of an added or vocabulary text, or -1 */

#endif
