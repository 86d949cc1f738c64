/* text/load_finish.c - what both kinds of file share: added tokens, the text of every id, the tables of the model, end tokens. */
#include "text/text_int.h"

#include "base/mem.h"

#include <stdlib.h>

int64_t load_find(const struct tokenizer *t, struct str text)
{
    uint32_t id = vocab_find(&t->vocab, text);
    if (id != ID_NONE) /* an added token of the same text has the same id */
        return id;
    for (uint32_t i = 0; i < t->added.n; i++)
        if (str_eq(t->added.token[i].content, text))
            return t->added.token[i].id;
    return -1;
}

/* Ids as the reference gives them: the vocabulary's, else the next free number. */
int load_added(struct tokenizer *t, struct added_token tok, struct err *err)
{
    struct added *a = &t->added;
    uint32_t id = vocab_find(&t->vocab, tok.content);
    if (!tok.content.n)
        return 0; /* ignored, as the reference does */
    if (tok.content.n > TOKENIZER_TOKEN_BYTES_MAX)
        return err_set(err, ERR_LIMIT, "added token %u: %zu bytes, at most %d", tok.id, tok.content.n, TOKENIZER_TOKEN_BYTES_MAX);
    if (id == ID_NONE)
        id = t->vocab.count + a->fresh++;
    if (tok.id != ID_NONE && tok.id != id)
        return err_set(err, ERR_FORMAT, "added token '%.*s': id %u in the file, but its place in the vocabulary is %u",
                       STR_ARG(tok.content), tok.id, id);
    if (id >= TOKENIZER_IDS_MAX)
        return err_set(err, ERR_LIMIT, "added token '%.*s': id %u, at most %d", STR_ARG(tok.content), id, TOKENIZER_IDS_MAX - 1);
    if (a->n == a->cap) {
        uint32_t cap = a->cap ? a->cap * 2 : 64;
        struct added_token *bigger = mem_try_resize(a->token, cap * sizeof *bigger);
        if (!bigger)
            return err_nomem(err, "added tokens", cap * sizeof *bigger);
        a->token = bigger;
        a->cap = cap;
    }
    tok.id = id;
    a->token[a->n++] = tok;
    return 0;
}

static int by_id(const void *a, const void *b)
{
    uint32_t x = ((const struct added_token *)a)->id, y = ((const struct added_token *)b)->id;
    return (x > y) - (x < y);
}

/* Sort by id; what is searched for is the content, or its normal form. */
static int added_prepare(struct tokenizer *t, struct err *err)
{
    struct added *a = &t->added;
    struct norm_text x = {0}, y = {0}, *out;
    int rc = 0;
    if (a->n)
        qsort(a->token, a->n, sizeof *a->token, by_id);
    for (uint32_t i = 0; i < a->n && !rc; i++) {
        struct added_token *tok = &a->token[i];
        if (i && tok->id == tok[-1].id)
            rc = err_set(err, ERR_FORMAT, "added tokens '%.*s' and '%.*s' have the same id %u", STR_ARG(tok[-1].content),
                         STR_ARG(tok->content), tok->id);
        tok->match = tok->content;
        if (rc || !tok->normalized || !t->norm_n)
            continue;
        rc = norm_run(t->norm, t->norm_n, tok->content, false, &x, &y, &out, err);
        if (!rc && out)
            tok->match = arena_try_str(&t->mem, buf_view(&out->text));
        if (!rc && !tok->match.p)
            rc = err_nomem(err, "added tokens", tok->content.n);
        if (!rc && tok->match.n > TOKENIZER_TOKEN_BYTES_MAX)
            rc = err_set(err, ERR_LIMIT, "added token '%.*s': more than %d bytes", STR_ARG(tok->content),
                         TOKENIZER_TOKEN_BYTES_MAX);
    }
    norm_text_free(&x);
    norm_text_free(&y);
    return rc ? rc : added_build(a, err);
}

static int texts(struct tokenizer *t, struct err *err)
{
    uint32_t n = t->vocab.n;
    if (t->added.n && t->added.token[t->added.n - 1].id + 1 > n)
        n = t->added.token[t->added.n - 1].id + 1;
    t->info.vocab_size = n;
    t->piece = arena_try_array(&t->mem, (size_t)n + 1, sizeof *t->piece);
    t->text_of = arena_try_array(&t->mem, (size_t)n + 1, sizeof *t->text_of);
    t->special = arena_try_array(&t->mem, (size_t)n + 1, 1);
    if (!t->piece || !t->text_of || !t->special)
        return err_nomem(err, "the vocabulary", n * sizeof *t->piece);
    for (uint32_t id = 0; id < t->vocab.n; id++)
        t->piece[id] = t->text_of[id] = t->vocab.piece[id];
    for (uint32_t i = 0; i < t->added.n; i++) {
        const struct added_token *tok = &t->added.token[i];
        t->piece[tok->id] = tok->content;
        t->text_of[tok->id] = tok->match;
        t->special[tok->id] = tok->special;
        t->info.special_count += tok->special;
    }
    return 0;
}

/* Texts that end a turn or a text wherever they are special tokens. */
static const char *const eog_names[] = {
    "<|eot_id|>",
    "<|im_end|>",
    "<|end|>",
    "<|return|>",
    "<|call|>",
    "<|flush|>",
    "<|calls|>",
    "<end_of_turn>",
    "<|endoftext|>",
    "</s>",
    "<|eom_id|>",
    "<EOT>",
    "_<EOT>",
    "[EOT]",
    "[EOS]",
    "<|end_of_text|>",
    "<end_of_utterance>",
    "<eos>",
    "<turn|>",
    "<|tool_response>",
    "<｜end▁of▁sentence｜>",
    "[e~[",
};

/* info.eos and what was put into t->eog so far stay; the names join. */
static int end_tokens(struct tokenizer *t, struct err *err)
{
    enum { NAMES = sizeof eog_names / sizeof *eog_names };
    uint32_t list[NAMES + 8], n = 0;
    for (uint32_t i = 0; i < t->info.eog_count; i++)
        list[n++] = t->eog[i];
    if (t->info.eos >= 0)
        list[n++] = (uint32_t)t->info.eos;
    for (uint32_t i = 0; i < NAMES; i++) {
        int64_t id = load_find(t, str_of(eog_names[i]));
        if (id >= 0 && t->special[id])
            list[n++] = (uint32_t)id;
    }
    t->eog = arena_try_array(&t->mem, n + 1, sizeof *t->eog);
    if (!t->eog)
        return err_nomem(err, "end tokens", n * sizeof *t->eog);
    uint32_t count = 0;
    for (int64_t last = -1;;) { /* ascending, once each */
        int64_t best = INT64_MAX;
        for (uint32_t i = 0; i < n; i++)
            if (list[i] > last && list[i] < best)
                best = list[i];
        if (best == INT64_MAX)
            break;
        t->eog[count++] = (uint32_t)best;
        last = best;
    }
    t->info.eog = t->eog;
    t->info.eog_count = count;
    return 0;
}

static bool one_regex(const struct tokenizer *t)
{
    for (uint32_t i = 0; i < t->pre_n; i++)
        if (t->pre[i].re && !regex_is_own(t->pre[i].re))
            return false;
    return true;
}

static int check_id(const struct tokenizer *t, int64_t id, const char *what, struct err *err)
{
    if (id < (int64_t)t->info.vocab_size)
        return 0;
    return err_set(err, ERR_FORMAT, "%s is id %lld, expected below %u", what, (long long)id, t->info.vocab_size);
}

int load_finish(struct tokenizer *t, yyjson_val *decoder, struct err *err)
{
    static const char *const models[] = {"bpe", "spm", "unigram"};
    int rc = added_prepare(t, err);
    rc = rc ? rc : texts(t, err);
    rc = rc ? rc : check_id(t, t->info.bos, "bos", err);
    rc = rc ? rc : check_id(t, t->info.eos, "eos", err);
    rc = rc ? rc : check_id(t, t->info.pad, "pad", err);
    rc = rc ? rc : check_id(t, t->info.unk, "unk", err);
    for (uint32_t i = 0; i < t->info.eog_count && !rc; i++)
        rc = check_id(t, t->eog[i], "an end token", err);
    for (uint32_t i = 0; i < t->before_n && !rc; i++)
        rc = check_id(t, t->before[i], "a token of the post-processor", err);
    for (uint32_t i = 0; i < t->after_n && !rc; i++)
        rc = check_id(t, t->after[i], "a token of the post-processor", err);
    rc = rc ? rc : t->kind == MODEL_UNIGRAM ? unigram_finish(t, err) : bpe_finish(t, err);
    rc = rc ? rc : load_decoder(t, decoder, err);
    rc = rc ? rc : end_tokens(t, err);
    if (rc)
        return rc;
    t->info.model = models[t->kind];
    t->info.merge_count = t->bpe.pair_count;
    t->info.add_bos = t->before_n && (int64_t)t->before[0] == t->info.bos;
    t->info.add_eos = t->after_n && (int64_t)t->after[t->after_n - 1] == t->info.eos;
    if (!t->info.pretok)
        t->info.pretok = !t->pre_n ? "none" : one_regex(t) ? "custom" : "custom (PCRE2)";
    return 0;
}
