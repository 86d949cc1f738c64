/* text/load_json.c - tokenizer.json (and tokenizer_config.json) -> struct tokenizer.
 *
 * Errors name the key and, in lists, the index.  Does not: truncate or pad (those keys are ignored: they shape batches, not ids).
 */
#include "text/text_int.h"

#include "base/mem.h"
#include "base/utf8.h"

static int wrong(const char *key, const char *want, yyjson_val *v, struct err *err)
{
    return err_set(err, ERR_FORMAT, "tokenizer.json: '%s': expected %s, got %s", key, want, json_type_name(v));
}

static int keep(struct tokenizer *t, struct str s, struct str *out, struct err *err)
{
    *out = arena_try_str(&t->mem, s);
    return out->p ? 0 : err_nomem(err, "the vocabulary", s.n);
}

/* ---- model */

static int vocab_object(struct tokenizer *t, yyjson_val *v, struct err *err)
{
    yyjson_val *key, *val;
    size_t i, n;
    uint64_t max = 0;
    if (!yyjson_is_obj(v))
        return wrong("model.vocab", "an object", v, err);
    yyjson_obj_foreach(v, i, n, key, val)
    {
        if (!yyjson_is_uint(val) || yyjson_get_uint(val) >= TOKENIZER_IDS_MAX)
            return err_set(err, ERR_FORMAT, "tokenizer.json: 'model.vocab': token '%.*s': expected an id below %d, got %s",
                           STR_ARG(json_str(key)), TOKENIZER_IDS_MAX, yyjson_is_uint(val) ? "a larger one" : json_type_name(val));
        max = yyjson_get_uint(val) > max ? yyjson_get_uint(val) : max;
    }
    int rc = vocab_init(&t->vocab, n ? (uint32_t)max + 1 : 0, err);
    if (rc)
        return rc;
    yyjson_obj_foreach(v, i, n, key, val)
    {
        struct str text;
        rc = keep(t, json_str(key), &text, err);
        rc = rc ? rc : vocab_put(&t->vocab, (uint32_t)yyjson_get_uint(val), text, err);
        if (rc)
            return rc;
    }
    return 0;
}

static int merges(struct tokenizer *t, yyjson_val *v, struct err *err)
{
    yyjson_val *m;
    size_t i, n;
    if (!yyjson_is_arr(v))
        return wrong("model.merges", "an array", v, err);
    int rc = bpe_pairs_init(&t->bpe, yyjson_arr_size(v), err);
    uint32_t rank = 0;
    yyjson_arr_foreach(v, i, n, m)
    {
        struct str left = json_str(yyjson_arr_get(m, 0)), right = json_str(yyjson_arr_get(m, 1));
        if (yyjson_is_str(m)) { /* "left right" */
            struct str rest = json_str(m);
            if (str_starts(rest, STR("#version")))
                continue;
            const char *space = rest.n ? memchr(rest.p, ' ', rest.n) : NULL;
            left = str_n(rest.p, space ? (size_t)(space - rest.p) : 0);
            right = space ? str_from(rest, left.n + 1) : (struct str){0};
            if (!space || memchr(right.p, ' ', right.n))
                return err_set(err, ERR_FORMAT,
                               "tokenizer.json: 'model.merges'[%zu]: expected two tokens with one space between, got '%.*s'", i,
                               STR_ARG(rest));
        } else if (!left.p || !right.p || yyjson_arr_size(m) != 2) {
            return err_set(err, ERR_FORMAT, "tokenizer.json: 'model.merges'[%zu]: expected two strings", i);
        }
        rc = rc ? rc : bpe_merge_add(t, left, right, rank++, "tokenizer.json: 'model.merges'", err);
        if (rc)
            return rc;
    }
    return rc;
}

static int model_bpe(struct tokenizer *t, yyjson_val *m, struct err *err)
{
    const char *where = "tokenizer.json: model";
    struct str unk = {0}, prefix = {0}, suffix = {0};
    struct bpe *b = &t->bpe;
    double dropout = 0;
    int rc = json_get_f64(m, "dropout", &dropout, where, err);
    if (!rc && dropout != 0)
        rc = err_set(err, ERR_UNSUPPORTED, "%s: 'dropout' %g is not supported: ids would be random", where, dropout);
    rc = rc ? rc : json_get_str(m, "unk_token", &unk, where, err);
    rc = rc ? rc : json_get_str(m, "continuing_subword_prefix", &prefix, where, err);
    rc = rc ? rc : json_get_str(m, "end_of_word_suffix", &suffix, where, err);
    rc = rc ? rc : json_get_bool(m, "fuse_unk", &b->fuse_unk, where, err);
    rc = rc ? rc : json_get_bool(m, "byte_fallback", &b->byte_fallback, where, err);
    rc = rc ? rc : json_get_bool(m, "ignore_merges", &b->ignore_merges, where, err);
    rc = rc ? rc : keep(t, prefix, &b->prefix, err);
    rc = rc ? rc : keep(t, suffix, &b->suffix, err);
    if (!rc && (prefix.n > 64 || suffix.n > 64))
        rc = err_set(err, ERR_LIMIT, "%s: prefix or suffix longer than 64 bytes", where);
    rc = rc ? rc : vocab_object(t, yyjson_obj_get(m, "vocab"), err);
    rc = rc ? rc : merges(t, yyjson_obj_get(m, "merges"), err);
    if (rc || !unk.p)
        return rc;
    b->unk = vocab_find(&t->vocab, unk);
    t->info.unk = b->unk;
    return b->unk == ID_NONE ? err_set(err, ERR_FORMAT, "%s: 'unk_token' '%.*s' is not in the vocabulary", where, STR_ARG(unk))
                             : 0;
}

/* Scores are read from their digits (see score.c), so the file is read once more with numbers as they are written. */
static int scores(struct tokenizer *t, struct str json, struct err *err)
{
    yyjson_doc *doc = yyjson_read_opts((char *)(uintptr_t)json.p, json.n, YYJSON_READ_NUMBER_AS_RAW, NULL, NULL);
    yyjson_val *list = yyjson_obj_get(yyjson_obj_get(yyjson_doc_get_root(doc), "model"), "vocab"), *item;
    size_t i, n;
    int rc = doc ? 0 : err_nomem(err, "scores", json.n);
    yyjson_arr_foreach(list, i, n, item)
    {
        yyjson_val *score = yyjson_arr_get(item, 1);
        if (!rc && !score_parse(str_n(yyjson_get_raw(score), yyjson_get_len(score)), &t->unigram.score[i]))
            rc = err_set(err, ERR_FORMAT, "tokenizer.json: 'model.vocab'[%zu]: score out of range", i);
    }
    json_free(doc);
    return rc;
}

static int model_unigram(struct tokenizer *t, yyjson_val *m, struct str json, struct err *err)
{
    yyjson_val *list = yyjson_obj_get(m, "vocab"), *item;
    size_t i, n = yyjson_arr_size(list);
    uint32_t unk = ID_NONE;
    t->kind = MODEL_UNIGRAM;
    if (!yyjson_is_arr(list) || n > TOKENIZER_IDS_MAX)
        return wrong("model.vocab", "an array of tokens with scores", list, err);
    int rc = json_get_bool(m, "byte_fallback", &t->unigram.byte_fallback, "tokenizer.json: model", err);
    rc = rc ? rc : json_get_u32(m, "unk_id", &unk, "tokenizer.json: model", err);
    if (!rc && unk != ID_NONE && unk >= n)
        rc = err_set(err, ERR_FORMAT, "tokenizer.json: model: 'unk_id' is %u, expected below %zu", unk, n);
    rc = rc ? rc : vocab_init(&t->vocab, (uint32_t)n, err);
    t->unigram.unk = unk;
    t->info.unk = unk == ID_NONE ? -1 : (int64_t)unk;
    t->unigram.score = mem_try_zero(n, sizeof *t->unigram.score);
    if (!rc && !t->unigram.score)
        rc = err_nomem(err, "scores", n * sizeof *t->unigram.score);
    yyjson_arr_foreach(list, i, n, item)
    {
        struct str text = json_str(yyjson_arr_get(item, 0));
        yyjson_val *score = yyjson_arr_get(item, 1);
        if (!rc && (!text.p || !yyjson_is_num(score)))
            rc = err_set(err, ERR_FORMAT, "tokenizer.json: 'model.vocab'[%zu]: expected a string and a number", i);
        rc = rc ? rc : keep(t, text, &text, err);
        rc = rc ? rc : vocab_put(&t->vocab, (uint32_t)i, text, err);
        if (rc)
            return rc;
    }
    return rc ? rc : scores(t, json, err);
}

static int model(struct tokenizer *t, yyjson_val *m, struct str json, struct err *err)
{
    struct str type = json_str(yyjson_obj_get(m, "type"));
    if (!yyjson_is_obj(m))
        return wrong("model", "an object", m, err);
    if (str_is(type, "BPE") || (!type.p && yyjson_obj_get(m, "merges")))
        return model_bpe(t, m, err);
    if (str_is(type, "Unigram") || (!type.p && yyjson_is_arr(yyjson_obj_get(m, "vocab"))))
        return model_unigram(t, m, json, err);
    return err_set(err, ERR_UNSUPPORTED, "tokenizer.json: a model of type '%.*s' is not supported", STR_ARG(type));
}

/* ---- added tokens */

static int added_tokens(struct tokenizer *t, yyjson_val *list, struct err *err)
{
    yyjson_val *v;
    size_t i, n;
    if (list && !yyjson_is_arr(list) && !yyjson_is_null(list))
        return wrong("added_tokens", "an array", list, err);
    yyjson_arr_foreach(list, i, n, v)
    {
        struct added_token tok = {.id = ID_NONE, .normalized = true};
        const char *where = "tokenizer.json: 'added_tokens'";
        struct str content = {0};
        int rc = json_get_str(v, "content", &content, where, err);
        rc = rc ? rc : json_get_u32(v, "id", &tok.id, where, err);
        rc = rc ? rc : json_get_bool(v, "single_word", &tok.single_word, where, err);
        rc = rc ? rc : json_get_bool(v, "lstrip", &tok.lstrip, where, err);
        rc = rc ? rc : json_get_bool(v, "rstrip", &tok.rstrip, where, err);
        rc = rc ? rc : json_get_bool(v, "normalized", &tok.normalized, where, err);
        rc = rc ? rc : json_get_bool(v, "special", &tok.special, where, err);
        if (!rc && (!content.p || tok.id == ID_NONE))
            rc = err_set(err, ERR_FORMAT, "%s[%zu]: expected 'id' and 'content'", where, i);
        rc = rc ? rc : keep(t, content, &tok.content, err);
        rc = rc ? rc : load_added(t, tok, err);
        if (rc) {
            err_prefix(err, "%s[%zu]", where, i);
            return rc;
        }
    }
    return 0;
}

/* ---- post-processor: only what it puts before and after the text */

static int affix(struct tokenizer *t, bool before, uint32_t id, struct err *err)
{
    uint32_t *n = before ? &t->before_n : &t->after_n;
    if (*n == TOKENIZER_AFFIX_MAX)
        return err_set(err, ERR_LIMIT, "tokenizer.json: post_processor adds more than %d tokens", TOKENIZER_AFFIX_MAX);
    (before ? t->before : t->after)[(*n)++] = id;
    return 0;
}

static int template(struct tokenizer *t, yyjson_val *v, struct err *err)
{
    yyjson_val *list = yyjson_obj_get(v, "single"), *item, *specials = yyjson_obj_get(v, "special_tokens");
    size_t i, n;
    bool before = true;
    if (!yyjson_is_arr(list))
        return wrong("post_processor.single", "an array", list, err);
    yyjson_arr_foreach(list, i, n, item)
    {
        yyjson_val *token = yyjson_obj_get(item, "SpecialToken"), *id;
        if (yyjson_obj_get(item, "Sequence")) {
            if (!before || !str_is(json_str(yyjson_obj_get(yyjson_obj_get(item, "Sequence"), "id")), "A"))
                return err_set(err, ERR_UNSUPPORTED,
                               "tokenizer.json: 'post_processor.single' must hold the text once, as sequence A");
            before = false;
            continue;
        }
        struct str name = json_str(yyjson_obj_get(token, "id"));
        yyjson_val *ids = yyjson_obj_get(yyjson_obj_getn(specials, name.p ? name.p : "", name.n), "ids");
        size_t k, count;
        if (!name.p || !yyjson_is_arr(ids))
            return err_set(err, ERR_FORMAT,
                           "tokenizer.json: 'post_processor.single'[%zu]: token '%.*s' is not in 'special_tokens'", i,
                           STR_ARG(name));
        yyjson_arr_foreach(ids, k, count, id)
        {
            if (!yyjson_is_uint(id) || yyjson_get_uint(id) >= TOKENIZER_IDS_MAX)
                return err_set(err, ERR_FORMAT, "tokenizer.json: 'post_processor.special_tokens': '%.*s': expected ids",
                               STR_ARG(name));
            int rc = affix(t, before, (uint32_t)yyjson_get_uint(id), err);
            if (rc)
                return rc;
        }
    }
    return before ? err_set(err, ERR_UNSUPPORTED, "tokenizer.json: 'post_processor.single' does not hold the text") : 0;
}

static int cls_sep(struct tokenizer *t, yyjson_val *v, struct err *err)
{
    yyjson_val *cls = yyjson_arr_get(yyjson_obj_get(v, "cls"), 1), *sep = yyjson_arr_get(yyjson_obj_get(v, "sep"), 1);
    if (!yyjson_is_uint(cls) || !yyjson_is_uint(sep) || yyjson_get_uint(cls) >= TOKENIZER_IDS_MAX ||
        yyjson_get_uint(sep) >= TOKENIZER_IDS_MAX)
        return err_set(err, ERR_FORMAT, "tokenizer.json: 'post_processor': expected 'cls' and 'sep' with ids");
    int rc = affix(t, true, (uint32_t)yyjson_get_uint(cls), err);
    return rc ? rc : affix(t, false, (uint32_t)yyjson_get_uint(sep), err);
}

static int post_processor(struct tokenizer *t, yyjson_val *v, int depth, struct err *err)
{
    struct str type = json_str(yyjson_obj_get(v, "type"));
    if (!v || yyjson_is_null(v) || str_is(type, "ByteLevel"))
        return 0;
    bool adds = str_is(type, "TemplateProcessing") || str_is(type, "RobertaProcessing") || str_is(type, "BertProcessing");
    if (adds && (t->before_n || t->after_n))
        return err_set(err, ERR_UNSUPPORTED, "tokenizer.json: post_processor: two processors that add tokens are not supported");
    if (str_is(type, "TemplateProcessing"))
        return template(t, v, err);
    if (adds)
        return cls_sep(t, v, err);
    if (!str_is(type, "Sequence") || depth > 8)
        return err_set(err, ERR_UNSUPPORTED, "tokenizer.json: a post_processor of type '%.*s' is not supported", STR_ARG(type));
    yyjson_val *list = yyjson_obj_get(v, "processors"), *item;
    size_t i, n;
    yyjson_arr_foreach(list, i, n, item)
    {
        int rc = post_processor(t, item, depth + 1, err);
        if (rc)
            return rc;
    }
    return 0;
}

/* ---- tokenizer_config.json */

/* A token given as text or as an object with 'content'. */
static int64_t config_token(const struct tokenizer *t, yyjson_val *config, const char *key)
{
    yyjson_val *v = yyjson_obj_get(config, key);
    struct str s = yyjson_is_obj(v) ? json_str(yyjson_obj_get(v, "content")) : json_str(v);
    return s.p ? load_find(t, s) : -1;
}

static int configure(struct tokenizer *t, yyjson_val *config, struct err *err)
{
    static const char *const bos_names[] = {"<|begin_of_text|>", "<bos>", "<s>", "<|startoftext|>", "<｜begin▁of▁sentence｜>"};
    t->info.bos = config_token(t, config, "bos_token");
    t->info.eos = config_token(t, config, "eos_token");
    t->info.pad = config_token(t, config, "pad_token");
    if (t->info.unk < 0)
        t->info.unk = config_token(t, config, "unk_token");
    if (!config && t->before_n == 1)
        for (size_t i = 0; i < sizeof bos_names / sizeof *bos_names; i++)
            if (load_find(t, str_of(bos_names[i])) == (int64_t)t->before[0])
                t->info.bos = t->before[0];
    yyjson_val *bos = yyjson_obj_get(config, "add_bos_token"), *eos = yyjson_obj_get(config, "add_eos_token");
    bool add_bos = false, add_eos = false;
    int rc = json_get_bool(config, "add_bos_token", &add_bos, "tokenizer_config.json", err);
    rc = rc ? rc : json_get_bool(config, "add_eos_token", &add_eos, "tokenizer_config.json", err);
    if (rc || (!yyjson_is_bool(bos) && !yyjson_is_bool(eos)))
        return rc;
    /* either key, when present, replaces the file's post-processor */
    t->before_n = t->after_n = 0;
    if (add_bos && t->info.bos >= 0)
        t->before[t->before_n++] = (uint32_t)t->info.bos;
    if (add_eos && t->info.eos >= 0)
        t->after[t->after_n++] = (uint32_t)t->info.eos;
    return 0;
}

static int build(struct tokenizer *t, yyjson_val *root, yyjson_val *config, struct str json, struct err *err)
{
    if (!yyjson_is_obj(root))
        return err_set(err, ERR_FORMAT, "tokenizer.json: expected an object, got %s", json_type_name(root));
    int rc = model(t, yyjson_obj_get(root, "model"), json, err);
    rc = rc ? rc : load_normalizer(t, yyjson_obj_get(root, "normalizer"), err);
    rc = rc ? rc : load_pre_tokenizer(t, yyjson_obj_get(root, "pre_tokenizer"), err);
    rc = rc ? rc : added_tokens(t, yyjson_obj_get(root, "added_tokens"), err);
    rc = rc ? rc : post_processor(t, yyjson_obj_get(root, "post_processor"), 0, err);
    rc = rc ? rc : configure(t, config, err);
    if (!rc && t->kind == MODEL_BPE && (t->pre_n == 0 || t->pre[t->pre_n - 1].kind != PRE_BYTE_LEVEL) && t->bpe.byte_fallback)
        t->kind = MODEL_SPM;
    return rc ? rc : load_finish(t, yyjson_obj_get(root, "decoder"), err);
}

int tokenizer_open_json(struct str tokenizer_json, struct str tokenizer_config_json, struct tokenizer **out, struct err *err)
{
    yyjson_doc *doc = NULL, *config = NULL;
    struct tokenizer *t = NULL;
    int rc = 0;
    doc = json_parse(tokenizer_json, "tokenizer.json", err);
    if (tokenizer_config_json.n)
        config = json_parse(tokenizer_config_json, "tokenizer_config.json", err);
    if (!doc || (tokenizer_config_json.n && !config)) {
        rc = err && err->code ? err->code : ERR_FORMAT;
        goto out;
    }
    t = tokenizer_new();
    rc = t ? build(t, yyjson_doc_get_root(doc), yyjson_doc_get_root(config), tokenizer_json, err)
           : err_nomem(err, "a tokenizer", sizeof *t);
    if (!rc) {
        *out = t;
        t = NULL;
    }
out:
    tokenizer_close(t);
    json_free(config);
    json_free(doc);
    return rc;
}
