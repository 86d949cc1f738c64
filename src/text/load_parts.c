/* text/load_parts.c - normalizer, pre_tokenizer and decoder of a tokenizer.json as lists of ops.
 *
 * Sequences are flattened.  What is not supported is refused by its type's name; missing or wrong members name their key. */
#include "text/text_int.h"

#include "base/utf8.h"
#include "text/unicode.h"

#include <stdio.h>
#include <stdlib.h>

enum { DEPTH_MAX = 8 };

static const char gpt2_pattern[] = "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+";

static struct str type_of(yyjson_val *v)
{
    return json_str(yyjson_obj_get(v, "type"));
}

static int unsupported(const char *where, struct str type, struct err *err)
{
    return err_set(err, ERR_UNSUPPORTED, "tokenizer.json: %s of type '%.*s' is not supported", where, STR_ARG(type));
}

/* A string member that must be there, copied into the tokenizer. */
static int need_str(struct tokenizer *t, yyjson_val *v, const char *key, const char *where, struct str *out, struct err *err)
{
    yyjson_val *m = yyjson_obj_get(v, key);
    if (!yyjson_is_str(m))
        return err_set(err, ERR_FORMAT, "tokenizer.json: %s: '%s': expected a string, got %s", where, key, json_type_name(m));
    *out = arena_try_str(&t->mem, json_str(m));
    return out->p ? 0 : err_nomem(err, where, yyjson_get_len(m));
}

/* The one character of a string member. */
static int need_char(struct tokenizer *t, yyjson_val *v, const char *key, const char *where, uint32_t *cp, struct str *text,
                     struct err *err)
{
    int rc = need_str(t, v, key, where, text, err);
    if (rc)
        return rc;
    if (!text->n || utf8_decode(*text, cp) != text->n || *cp == UTF8_BAD)
        return err_set(err, ERR_FORMAT, "tokenizer.json: %s: '%s': expected one character, got '%.*s'", where, key,
                       STR_ARG(*text));
    return 0;
}

/* {"String": "..."} or {"Regex": "..."}; a plain string gives *literal, with *re NULL when wanted so. */
static int pattern(struct tokenizer *t, yyjson_val *v, const char *where, bool literal_too, struct regex **re,
                   struct str *literal, struct err *err)
{
    yyjson_val *p = yyjson_obj_get(v, "pattern"), *s = yyjson_obj_get(p, "String"), *r = yyjson_obj_get(p, "Regex");
    if (!yyjson_is_str(s) && !yyjson_is_str(r))
        return err_set(err, ERR_FORMAT,
                       "tokenizer.json: %s: 'pattern': expected an object with a string 'String' or 'Regex', got %s", where,
                       json_type_name(p));
    if (yyjson_is_str(r))
        return regex_compile(json_str(r), where, re, err);
    *literal = arena_try_str(&t->mem, json_str(s));
    if (!literal->p)
        return err_nomem(err, where, yyjson_get_len(s));
    if (!literal->n)
        return err_set(err, ERR_UNSUPPORTED, "tokenizer.json: %s: an empty pattern is not supported", where);
    return literal_too ? 0 : regex_compile_literal(*literal, re, err);
}

/* Runs `one` on v, or on each member of a Sequence, in order. */
typedef int (*part_fn)(struct tokenizer *t, yyjson_val *v, struct err *err);

static int each(struct tokenizer *t, yyjson_val *v, const char *list_key, const char *where, part_fn one, int depth,
                struct err *err)
{
    if (!v || yyjson_is_null(v))
        return 0;
    if (!yyjson_is_obj(v))
        return err_set(err, ERR_FORMAT, "tokenizer.json: '%s': expected an object, got %s", where, json_type_name(v));
    if (!str_is(type_of(v), "Sequence"))
        return one(t, v, err);
    if (depth > DEPTH_MAX)
        return err_set(err, ERR_LIMIT, "tokenizer.json: '%s': sequences nested deeper than %d", where, DEPTH_MAX);
    yyjson_val *list = yyjson_obj_get(v, list_key), *item;
    if (!yyjson_is_arr(list))
        return err_set(err, ERR_FORMAT, "tokenizer.json: '%s': Sequence: '%s': expected an array, got %s", where, list_key,
                       json_type_name(list));
    size_t i, n;
    yyjson_arr_foreach(list, i, n, item)
    {
        int rc = each(t, item, list_key, where, one, depth + 1, err);
        if (rc)
            return rc;
    }
    return 0;
}

/* ---- normalizer */

static int base64_bytes(struct tokenizer *t, struct str s, struct str *out, struct err *err)
{
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    char *p = arena_try(&t->mem, s.n / 4 * 3 + 8);
    if (!p)
        return err_nomem(err, "precompiled_charsmap", s.n);
    size_t n = 0;
    uint32_t bits = 0, have = 0;
    for (size_t i = 0; i < s.n && s.p[i] != '='; i++) {
        const char *d = s.p[i] ? strchr(digits, s.p[i]) : NULL;
        if (!d)
            return err_set(err, ERR_FORMAT, "tokenizer.json: normalizer: 'precompiled_charsmap': not base64 at byte %zu", i);
        bits = bits << 6 | (uint32_t)(d - digits);
        have += 6;
        if (have >= 8) {
            have -= 8;
            p[n++] = (char)(bits >> have);
        }
    }
    *out = str_n(p, n);
    return 0;
}

int load_charsmap(struct tokenizer *t, struct str blob, struct norm_op *op, struct err *err)
{
    uint32_t trie_bytes = 0;
    if (blob.n >= 4)
        memcpy(&trie_bytes, blob.p, 4);
    if (blob.n < 8 || trie_bytes < 4 || trie_bytes % 4 || trie_bytes > blob.n - 4)
        return err_set(err, ERR_FORMAT, "precompiled_charsmap: trie of %u bytes in %zu", trie_bytes, blob.n);
    uint32_t *trie = arena_try(&t->mem, trie_bytes);
    struct str strings = arena_try_str(&t->mem, str_from(blob, 4 + trie_bytes));
    if (!trie || !strings.p)
        return err_nomem(err, "precompiled_charsmap", blob.n);
    memcpy(trie, blob.p + 4, trie_bytes);
    if (!utf8_valid(strings))
        return err_set(err, ERR_FORMAT, "precompiled_charsmap: replacement texts are not valid UTF-8");
    op->kind = NORM_PRECOMPILED;
    op->trie = trie;
    op->trie_n = trie_bytes / 4;
    op->strings = strings;
    return 0;
}

static int norm_bert(yyjson_val *v, struct norm_op *op, struct err *err)
{
    const char *where = "tokenizer.json: normalizer: BertNormalizer";
    op->kind = NORM_BERT;
    op->clean = op->chinese = op->lower = true;
    int rc = json_get_bool(v, "clean_text", &op->clean, where, err);
    rc = rc ? rc : json_get_bool(v, "handle_chinese_chars", &op->chinese, where, err);
    rc = rc ? rc : json_get_bool(v, "lowercase", &op->lower, where, err);
    op->accents = op->lower;
    return rc ? rc : json_get_bool(v, "strip_accents", &op->accents, where, err);
}

static int normalizer_one(struct tokenizer *t, yyjson_val *v, struct err *err)
{
    static const struct {
        const char *name;
        enum norm_kind kind;
    } plain[] = {{"NFC", NORM_NFC},
                 {"NFD", NORM_NFD},
                 {"NFKC", NORM_NFKC},
                 {"NFKD", NORM_NFKD},
                 {"Lowercase", NORM_LOWERCASE},
                 {"Nmt", NORM_NMT},
                 {"StripAccents", NORM_STRIP_ACCENTS},
                 {"ByteLevel", NORM_BYTE_LEVEL}};
    struct str type = type_of(v);
    if (t->norm_n == TOKENIZER_OPS_MAX)
        return err_set(err, ERR_LIMIT, "tokenizer.json: normalizer: more than %d steps", TOKENIZER_OPS_MAX);
    struct norm_op *op = &t->norm[t->norm_n];
    *op = (struct norm_op){0};
    t->norm_n++; /* counted at once: closing the tokenizer frees what it holds so far */
    for (size_t i = 0; i < sizeof plain / sizeof *plain; i++)
        if (str_is(type, plain[i].name)) {
            op->kind = plain[i].kind;
            return 0;
        }
    if (str_is(type, "Strip")) {
        op->kind = NORM_STRIP;
        op->left = op->right = true;
        int rc = json_get_bool(v, "strip_left", &op->left, "tokenizer.json: normalizer: Strip", err);
        return rc ? rc : json_get_bool(v, "strip_right", &op->right, "tokenizer.json: normalizer: Strip", err);
    }
    if (str_is(type, "Prepend")) {
        op->kind = NORM_PREPEND;
        return need_str(t, v, "prepend", "normalizer: Prepend", &op->content, err);
    }
    if (str_is(type, "Replace")) {
        op->kind = NORM_REPLACE;
        int rc = pattern(t, v, "normalizer: Replace", true, &op->re, &op->pattern, err);
        return rc ? rc : need_str(t, v, "content", "normalizer: Replace", &op->content, err);
    }
    if (str_is(type, "BertNormalizer"))
        return norm_bert(v, op, err);
    if (str_is(type, "Precompiled")) {
        struct str blob = {0};
        op->kind = NORM_NFC; /* until it is complete */
        yyjson_val *map = yyjson_obj_get(v, "precompiled_charsmap");
        if (!yyjson_is_str(map))
            return err_set(err, ERR_FORMAT, "tokenizer.json: normalizer: 'precompiled_charsmap': expected a string, got %s",
                           json_type_name(map));
        int rc = base64_bytes(t, json_str(map), &blob, err);
        return rc ? rc : load_charsmap(t, blob, op, err);
    }
    return unsupported("a normalizer", type, err);
}

int load_normalizer(struct tokenizer *t, yyjson_val *v, struct err *err)
{
    return each(t, v, "normalizers", "normalizer", normalizer_one, 0, err);
}

/* ---- pre_tokenizer */

static int behavior(yyjson_val *v, enum split_behavior *out, bool optional, const char *where, struct err *err)
{
    static const char *const names[] = {"Removed", "Isolated", "MergedWithPrevious", "MergedWithNext", "Contiguous"};
    yyjson_val *b = yyjson_obj_get(v, "behavior");
    if (!b && optional)
        return 0;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (str_is(json_str(b), names[i])) {
            *out = (enum split_behavior)i;
            return 0;
        }
    return err_set(err, ERR_FORMAT,
                   "tokenizer.json: %s: 'behavior': expected one of Removed, Isolated, MergedWithPrevious, MergedWithNext, "
                   "Contiguous, got '%.*s'",
                   where, STR_ARG(json_str(b)));
}

static int pre_metaspace(struct tokenizer *t, yyjson_val *v, struct pretok_op *op, struct err *err)
{
    static const char *const names[] = {"always", "first", "never"};
    const char *where = "pre_tokenizer: Metaspace";
    op->kind = PRE_METASPACE;
    op->split = true;
    op->behavior = SPLIT_MERGED_NEXT;
    int rc = need_char(t, v, "replacement", where, &op->cp, &op->mark, err);
    rc = rc ? rc : json_get_bool(v, "split", &op->split, where, err);
    yyjson_val *scheme = yyjson_obj_get(v, "prepend_scheme");
    bool found = !scheme || yyjson_is_null(scheme), prefix = true;
    for (size_t i = 0; i < 3; i++)
        if (str_is(json_str(scheme), names[i]))
            op->scheme = (enum prepend_scheme)i, found = true;
    if (!rc && !found)
        rc = err_set(err, ERR_FORMAT, "tokenizer.json: %s: 'prepend_scheme': expected always, first or never, got '%.*s'", where,
                     STR_ARG(json_str(scheme)));
    rc = rc ? rc : json_get_bool(v, "add_prefix_space", &prefix, where, err);
    if (!rc && !prefix && scheme && op->scheme != PREPEND_NEVER)
        rc = err_set(err, ERR_FORMAT, "tokenizer.json: %s: 'add_prefix_space' is false but 'prepend_scheme' is '%.*s'", where,
                     STR_ARG(json_str(scheme)));
    if (!prefix)
        op->scheme = PREPEND_NEVER;
    t->track_first |= op->scheme == PREPEND_FIRST;
    return rc;
}

static int pre_byte_level(yyjson_val *v, struct pretok_op *op, struct err *err)
{
    const char *where = "tokenizer.json: pre_tokenizer: ByteLevel";
    bool use_regex = true;
    op->kind = PRE_BYTE_LEVEL;
    op->behavior = SPLIT_ISOLATED;
    op->add_prefix_space = true;
    int rc = json_get_bool(v, "add_prefix_space", &op->add_prefix_space, where, err);
    rc = rc ? rc : json_get_bool(v, "use_regex", &use_regex, where, err);
    return rc || !use_regex ? rc : regex_compile(str_of(gpt2_pattern), where, &op->re, err);
}

static int pre_split(struct tokenizer *t, yyjson_val *v, struct pretok_op *op, struct err *err)
{
    struct str literal;
    op->kind = PRE_SPLIT;
    int rc = behavior(v, &op->behavior, false, "pre_tokenizer: Split", err);
    rc = rc ? rc : json_get_bool(v, "invert", &op->invert, "tokenizer.json: pre_tokenizer: Split", err);
    return rc ? rc : pattern(t, v, "pre_tokenizer: Split", false, &op->re, &literal, err);
}

static int pre_tokenizer_one(struct tokenizer *t, yyjson_val *v, struct err *err)
{
    struct str type = type_of(v);
    if (t->pre_n == TOKENIZER_OPS_MAX)
        return err_set(err, ERR_LIMIT, "tokenizer.json: pre_tokenizer: more than %d steps", TOKENIZER_OPS_MAX);
    struct pretok_op *op = &t->pre[t->pre_n++];
    *op = (struct pretok_op){.behavior = SPLIT_ISOLATED, .kind = PRE_DIGITS};
    if (str_is(type, "Split"))
        return pre_split(t, v, op, err);
    if (str_is(type, "ByteLevel"))
        return pre_byte_level(v, op, err);
    if (str_is(type, "Metaspace"))
        return pre_metaspace(t, v, op, err);
    if (str_is(type, "Digits")) {
        int rc = json_get_bool(v, "individual_digits", &op->individual, "tokenizer.json: pre_tokenizer: Digits", err);
        op->behavior = op->individual ? SPLIT_ISOLATED : SPLIT_CONTIGUOUS;
        return rc;
    }
    if (str_is(type, "Punctuation")) {
        op->kind = PRE_PUNCTUATION;
        return behavior(v, &op->behavior, true, "pre_tokenizer: Punctuation", err);
    }
    if (str_is(type, "Whitespace")) {
        op->kind = PRE_WHITESPACE;
        return 0;
    }
    if (str_is(type, "WhitespaceSplit")) {
        op->kind = PRE_WHITESPACE_SPLIT;
        op->behavior = SPLIT_REMOVED;
        return 0;
    }
    if (str_is(type, "BertPreTokenizer")) {
        op->kind = PRE_BERT;
        return 0;
    }
    if (str_is(type, "CharDelimiterSplit") || str_is(type, "Delimiter")) {
        op->kind = PRE_DELIMITER;
        op->behavior = SPLIT_REMOVED;
        return need_char(t, v, "delimiter", "pre_tokenizer: CharDelimiterSplit", &op->cp, &op->mark, err);
    }
    if (str_is(type, "FixedLength")) {
        op->kind = PRE_FIXED_LENGTH;
        op->length = 5;
        int rc = json_get_u32(v, "length", &op->length, "tokenizer.json: pre_tokenizer: FixedLength", err);
        return rc || op->length ? rc : err_set(err, ERR_FORMAT, "tokenizer.json: pre_tokenizer: FixedLength: 'length' is 0");
    }
    return unsupported("a pre_tokenizer", type, err);
}

int load_pre_tokenizer(struct tokenizer *t, yyjson_val *v, struct err *err)
{
    return each(t, v, "pretokenizers", "pre_tokenizer", pre_tokenizer_one, 0, err);
}
