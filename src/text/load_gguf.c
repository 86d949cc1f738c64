/* text/load_gguf.c - tokenizer.ggml.* metadata -> struct tokenizer.
 *
 * A GGUF names its pre-tokenizer; what the name stands for in the model's published tokenizer.json is the table in gguf_pre.c.
 * Merges of "llama" vocabularies are not in the file: they are derived from the vocabulary as the published conversion does it.
 * Errors name the key and the index. */
#include "text/gguf_pre.h"
#include "text/text_int.h"

#include "base/mem.h"
#include "base/utf8.h"
#include "format/gguf.h"
#include "text/unicode.h"

#include <stdio.h>
#include <stdlib.h>

enum token_type { TYPE_NORMAL = 1, TYPE_UNKNOWN, TYPE_CONTROL, TYPE_USER, TYPE_UNUSED, TYPE_BYTE };

struct source {
    const struct gguf *g;
    const struct gguf_value *tokens, *types, *scores, *merges;
    struct str model, pre, name, arch;
    bool gemma;
};

static int value_array(const struct gguf *g, const char *key, bool strings, uint64_t want, const struct gguf_value **out,
                       struct err *err)
{
    const struct gguf_value *v = gguf_value_find(g, key);
    *out = v;
    if (!v)
        return 0;
    if (v->type != GGUF_ARRAY || (v->item_type == GGUF_STRING) != strings)
        return err_set(err, ERR_FORMAT, "%s: expected an array of %s", key, strings ? "strings" : "numbers");
    if (want && v->count != want)
        return err_set(err, ERR_FORMAT, "%s: expected %llu items, got %llu", key, (unsigned long long)want,
                       (unsigned long long)v->count);
    return 0;
}

static int type_at(const struct source *s, uint64_t i)
{
    int64_t v = TYPE_NORMAL;
    return s->types && !gguf_array_i64(s->types, i, &v) ? (int)v : TYPE_NORMAL;
}

/* A place the file fills up because the model has no such token. */
static bool is_padding(struct str text, uint64_t i, int type)
{
    char name[40];
    if (type != TYPE_USER && type != TYPE_UNUSED)
        return false;
    int n = snprintf(name, sizeof name, "[PAD%llu]", (unsigned long long)i);
    return str_eq(text, str_n(name, (size_t)n));
}

/* Gemma files spell tokens of several spaces with real spaces; the vocabulary has '▁'. */
static bool respell(const struct source *s, struct str text, struct buf *out)
{
    if (!s->gemma || !text.n || text.p[0] != ' ' || str_trim(text).n)
        return false;
    out->n = 0;
    for (size_t i = 0; i < text.n; i++)
        buf_str(out, STR("▁"));
    return true;
}

static int vocabulary(struct tokenizer *t, const struct source *s, struct err *err)
{
    struct buf marks = {0};
    struct str text;
    uint64_t at = 0, n = s->tokens->count, i = 0;
    if (n > TOKENIZER_IDS_MAX)
        return err_set(err, ERR_LIMIT, "tokenizer.ggml.tokens: %llu tokens, at most %d", (unsigned long long)n,
                       TOKENIZER_IDS_MAX);
    int rc = vocab_init(&t->vocab, (uint32_t)n, err);
    for (; !rc && gguf_string_next(s->tokens, &at, &text); i++) {
        if (!text.n || is_padding(text, i, type_at(s, i))) /* a hole */
            continue;
        if (!utf8_valid(text))
            rc = err_set(err, ERR_FORMAT, "tokenizer.ggml.tokens[%llu]: not valid UTF-8", (unsigned long long)i);
        if (respell(s, text, &marks))
            text = buf_view(&marks);
        struct str kept = arena_try_str(&t->mem, text);
        if (!rc && (!kept.p || marks.failed))
            rc = err_nomem(err, "the vocabulary", text.n);
        if (!rc)
            rc = vocab_put(&t->vocab, (uint32_t)i, kept, err);
    }
    if (!rc && i != n)
        rc =
            err_set(err, ERR_FORMAT, "tokenizer.ggml.tokens: %llu strings of %llu", (unsigned long long)i, (unsigned long long)n);
    buf_free(&marks);
    return rc;
}

/* ---- merges */

static int merges_given(struct tokenizer *t, const struct source *s, struct err *err)
{
    struct str text;
    uint64_t at = 0;
    uint32_t rank = 0;
    int rc = bpe_pairs_init(&t->bpe, s->merges->count, err);
    for (; !rc && gguf_string_next(s->merges, &at, &text); rank++) {
        /* the border is the first space that is not the first byte: tokens themselves may be spaces */
        const char *space = text.n > 1 ? memchr(text.p + 1, ' ', text.n - 1) : NULL;
        if (!space)
            return err_set(err, ERR_FORMAT, "tokenizer.ggml.merges[%u]: expected two tokens with a space between, got '%.*s'",
                           rank, STR_ARG(text));
        size_t n = (size_t)(space - text.p);
        rc = bpe_merge_add(t, str_n(text.p, n), str_from(text, n + 1), rank, "tokenizer.ggml.merges", err);
    }
    return rc;
}

struct derived {
    float score;
    uint32_t left, right, id;
    uint16_t left_chars, right_chars;
    uint32_t order; /* where the reference's stable sort starts from */
};

/* Best score first, then the longer left, then the longer right part. */
static int by_merge(const void *a, const void *b)
{
    const struct derived *x = a, *y = b;
    if (x->score != y->score)
        return x->score > y->score ? -1 : 1;
    if (x->left_chars != y->left_chars)
        return x->left_chars > y->left_chars ? -1 : 1;
    if (x->right_chars != y->right_chars)
        return x->right_chars > y->right_chars ? -1 : 1;
    return (x->order > y->order) - (x->order < y->order);
}

struct derived_list {
    struct derived *p;
    size_t n, cap;
};

static int derived_push(struct derived_list *l, struct derived d)
{
    if (l->n == l->cap) {
        size_t cap = l->cap ? l->cap * 2 : 65536;
        struct derived *bigger = mem_try_resize(l->p, cap * sizeof *bigger);
        if (!bigger)
            return ERR_NOMEM;
        l->p = bigger;
        l->cap = cap;
    }
    d.order = (uint32_t)l->n;
    l->p[l->n++] = d;
    return 0;
}

/* Every split of a token into two tokens of the vocabulary. */
static int derive_token(const struct vocab *v, uint32_t id, float score, struct derived_list *l)
{
    struct str s = v->piece[id];
    uint32_t chars = 0, total = 0;
    for (const char *p = s.p; p < s.p + s.n; total++)
        unicode_next(&p);
    if (total > UINT16_MAX)
        return 0;
    for (const char *p = s.p, *end = s.p + s.n; p < end;) {
        unicode_next(&p);
        if (++chars == total)
            break;
        struct str left = str_n(s.p, (size_t)(p - s.p)), right = str_n(p, (size_t)(end - p));
        uint32_t a = vocab_find(v, left), b = a == ID_NONE ? ID_NONE : vocab_find(v, right);
        if (b != ID_NONE && derived_push(l, (struct derived){score, a, b, id, (uint16_t)chars, (uint16_t)(total - chars), 0}))
            return ERR_NOMEM;
    }
    return 0;
}

static int merges_derived(struct tokenizer *t, const struct source *s, struct err *err)
{
    struct derived_list l = {0};
    int rc = 0;
    if (!s->scores && !s->gemma)
        return err_set(err, ERR_FORMAT, "tokenizer.ggml.scores: needed when tokenizer.ggml.merges is absent");
    for (uint32_t id = 0; id < t->vocab.n && !rc; id++) {
        float score = -(float)id; /* Gemma's merges follow the order of the tokens, not their scores */
        if (!s->gemma && gguf_array_f32(s->scores, id, &score))
            rc = err_set(err, ERR_FORMAT, "tokenizer.ggml.scores[%u]: not a number", id);
        if (!rc && score != score)
            rc = err_set(err, ERR_FORMAT, "tokenizer.ggml.scores[%u]: not a number", id);
        if (!rc && t->vocab.piece[id].n && derive_token(&t->vocab, id, score, &l))
            rc = err_nomem(err, "merges", l.cap * sizeof *l.p);
    }
    if (!rc && l.n)
        qsort(l.p, l.n, sizeof *l.p, by_merge);
    rc = rc ? rc : bpe_pairs_init(&t->bpe, l.n, err);
    for (size_t i = 0; i < l.n && !rc; i++)
        bpe_pair_put(&t->bpe, l.p[i].left, l.p[i].right, (uint32_t)i, l.p[i].id);
    mem_free(l.p);
    return rc;
}

/* ---- the rest */

/* Phi-3's published tokenizer lets these tokens take the white space after them; the file has no place to say so. */
static bool phi3_strips(const struct source *s, struct str text)
{
    return str_is(s->arch, "phi3") && (str_is(text, "</s>") || (str_starts(text, STR("<|")) && !str_is(text, "<|endoftext|>")));
}

static int added(struct tokenizer *t, const struct source *s, struct err *err)
{
    int rc = 0;
    for (uint32_t id = 0; id < t->vocab.n && !rc; id++) {
        int type = type_at(s, id);
        struct str text = t->vocab.piece[id];
        bool special = type == TYPE_CONTROL || type == TYPE_UNKNOWN;
        if (!text.n || !(special || type == TYPE_USER))
            continue;
        rc = load_added(t, (struct added_token){.content = text, .id = id, .special = special, .rstrip = phi3_strips(s, text)},
                        err);
    }
    return rc;
}

/* An id key; absent: *out stays. */
static int id_key(const struct tokenizer *t, const struct gguf *g, const char *key, int64_t *out, struct err *err)
{
    int64_t v = -1;
    int rc = gguf_get_i64(g, key, &v, err);
    if (rc || v < 0 || !gguf_value_find(g, key) || v == UINT32_MAX)
        return rc;
    if (v >= (int64_t)t->vocab.n)
        return err_set(err, ERR_FORMAT, "%s: id %lld, expected below %u", key, (long long)v, t->vocab.n);
    *out = v;
    return 0;
}

static int ends(struct tokenizer *t, const struct gguf *g, struct err *err)
{
    static const char *const keys[] = {"tokenizer.ggml.eot_token_id", "tokenizer.ggml.eom_token_id"};
    t->eog = arena_try_array(&t->mem, 2, sizeof *t->eog);
    if (!t->eog)
        return err_nomem(err, "end tokens", 8);
    for (size_t i = 0; i < 2; i++) {
        int64_t id = -1;
        int rc = id_key(t, g, keys[i], &id, err);
        if (rc)
            return rc;
        if (id >= 0)
            t->eog[t->info.eog_count++] = (uint32_t)id;
    }
    return 0;
}

static int identities(struct tokenizer *t, const struct source *s, struct err *err)
{
    bool llama = str_is(s->model, "llama"), t5 = str_is(s->model, "t5");
    struct tokenizer_info *info = &t->info;
    bool add_bos = llama || (str_is(s->model, "gpt2") && gguf_pre_adds_bos(s->pre)), add_eos = t5;
    if (llama && !gguf_value_find(s->g, "tokenizer.ggml.bos_token_id") && t->vocab.n > 2) /* the family's customary places */
        info->bos = 1, info->eos = 2, info->unk = 0;
    int rc = id_key(t, s->g, "tokenizer.ggml.bos_token_id", &info->bos, err);
    rc = rc ? rc : id_key(t, s->g, "tokenizer.ggml.eos_token_id", &info->eos, err);
    rc = rc ? rc : id_key(t, s->g, "tokenizer.ggml.unknown_token_id", &info->unk, err);
    rc = rc ? rc : id_key(t, s->g, "tokenizer.ggml.padding_token_id", &info->pad, err);
    rc = rc ? rc : gguf_get_bool(s->g, "tokenizer.ggml.add_bos_token", &add_bos, err);
    rc = rc ? rc : gguf_get_bool(s->g, "tokenizer.ggml.add_eos_token", &add_eos, err);
    if (str_is(s->model, "gemma4")) /* its template writes <bos> itself and the published tokenizer adds none */
        add_bos = false;
    if (add_bos && info->bos >= 0)
        t->before[t->before_n++] = (uint32_t)info->bos;
    if (add_eos && info->eos >= 0)
        t->after[t->after_n++] = (uint32_t)info->eos;
    return rc ? rc : ends(t, s->g, err);
}

static int load_scores(struct tokenizer *t, const struct source *s, struct err *err)
{
    if (!s->scores)
        return err_set(err, ERR_FORMAT, "tokenizer.ggml.scores: missing");
    t->unigram.score = mem_try_zero(t->vocab.n, sizeof *t->unigram.score);
    if (!t->unigram.score)
        return err_nomem(err, "scores", t->vocab.n * sizeof *t->unigram.score);
    for (uint32_t id = 0; id < t->vocab.n; id++) {
        float score;
        if (gguf_array_f32(s->scores, id, &score) || score != score)
            return err_set(err, ERR_FORMAT, "tokenizer.ggml.scores[%u]: not a number", id);
        t->unigram.score[id] = score_as_written((double)score);
    }
    return 0;
}

static int charsmap(struct tokenizer *t, const struct source *s, struct err *err)
{
    const struct gguf_value *v = gguf_value_find(s->g, "tokenizer.ggml.precompiled_charsmap");
    if (!v)
        return 0;
    if (v->type != GGUF_ARRAY || (v->item_type != GGUF_U8 && v->item_type != GGUF_I8))
        return err_set(err, ERR_FORMAT, "tokenizer.ggml.precompiled_charsmap: expected an array of bytes");
    if (!v->count)
        return 0;
    return load_charsmap(t, str_n(v->data, v->size_bytes), &t->norm[t->norm_n++], err);
}

static int model_and_steps(struct tokenizer *t, const struct source *s, const char **decoder, struct err *err)
{
    bool space_prefix = str_is(s->model, "llama");
    int rc = gguf_get_bool(s->g, "tokenizer.ggml.add_space_prefix", &space_prefix, err);
    if (rc)
        return rc;
    if (str_is(s->model, "gpt2")) {
        if (!s->merges)
            return err_set(err, ERR_FORMAT, "tokenizer.ggml.merges: missing");
        rc = merges_given(t, s, err);
        return rc ? rc : gguf_pre_byte_level(t, s->pre, decoder, err);
    }
    if (str_is(s->model, "llama") || str_is(s->model, "gemma4")) {
        t->kind = MODEL_SPM;
        t->bpe.byte_fallback = t->bpe.fuse_unk = true;
        t->bpe.unk = t->info.unk < 0 ? ID_NONE : (uint32_t)t->info.unk;
        rc = s->merges ? merges_given(t, s, err) : merges_derived(t, s, err);
        return rc ? rc : gguf_pre_spm(t, space_prefix, decoder, err);
    }
    t->kind = MODEL_UNIGRAM;
    t->unigram.unk = t->info.unk < 0 ? ID_NONE : (uint32_t)t->info.unk;
    for (uint32_t id = 0; id < t->vocab.n; id++)
        t->unigram.byte_fallback |= type_at(s, id) == TYPE_BYTE;
    rc = load_scores(t, s, err);
    rc = rc ? rc : charsmap(t, s, err);
    return rc ? rc : gguf_pre_unigram(t, decoder, err);
}

static int read_source(const struct gguf *g, struct source *s, struct err *err)
{
    s->g = g;
    int rc = gguf_get_str(g, "tokenizer.ggml.model", &s->model, err);
    rc = rc ? rc : gguf_get_str(g, "tokenizer.ggml.pre", &s->pre, err);
    rc = rc ? rc : gguf_get_str(g, "general.architecture", &s->arch, err);
    rc = rc ? rc : value_array(g, "tokenizer.ggml.tokens", true, 0, &s->tokens, err);
    if (!rc && !s->model.p)
        rc = err_set(err, ERR_FORMAT, "tokenizer.ggml.model: missing");
    if (!rc && !str_is(s->model, "gpt2") && !str_is(s->model, "llama") && !str_is(s->model, "t5") && !str_is(s->model, "gemma4"))
        rc = err_set(err, ERR_UNSUPPORTED, "tokenizer.ggml.model: '%.*s' is not supported (gpt2, llama, t5 and gemma4 are)",
                     STR_ARG(s->model));
    if (!rc && !s->tokens)
        rc = err_set(err, ERR_FORMAT, "tokenizer.ggml.tokens: missing");
    rc = rc ? rc : value_array(g, "tokenizer.ggml.token_type", false, s->tokens->count, &s->types, err);
    rc = rc ? rc : value_array(g, "tokenizer.ggml.scores", false, s->tokens->count, &s->scores, err);
    rc = rc ? rc : value_array(g, "tokenizer.ggml.merges", true, 0, &s->merges, err);
    s->gemma = str_is(s->model, "llama") && str_starts(s->arch, STR("gemma"));
    return rc;
}

static int build(struct tokenizer *t, const struct gguf *g, struct err *err)
{
    struct source s = {0};
    const char *decoder = NULL;
    int rc = read_source(g, &s, err);
    rc = rc ? rc : vocabulary(t, &s, err);
    rc = rc ? rc : identities(t, &s, err);
    rc = rc ? rc : model_and_steps(t, &s, &decoder, err);
    rc = rc ? rc : added(t, &s, err);
    if (rc)
        return rc;
    yyjson_doc *doc = json_parse(str_of(decoder), "decoder", err);
    rc = doc ? load_finish(t, yyjson_doc_get_root(doc), err) : err_nomem(err, "the decoder", 0);
    json_free(doc);
    return rc;
}

int tokenizer_open_gguf(const struct gguf *g, struct tokenizer **out, struct err *err)
{
    struct tokenizer *t = tokenizer_new();
    int rc = t ? build(t, g, err) : err_nomem(err, "a tokenizer", sizeof *t);
    if (rc)
        tokenizer_close(t);
    else
        *out = t;
    return rc;
}
