/* text/gguf_pre.c - tokenizer.ggml.pre: name -> normaliser, pre-tokenizer and ignore_merges of the model's published
 * tokenizer.json.
 *
 * A name that is not in the table is refused: a wrong split gives ids the model has never seen, and nobody would notice. */
#include "text/gguf_pre.h"

#define CONTRACTION "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
#define TAIL "\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"
#define CL100K(digits) CONTRACTION "|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|" digits "| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|" TAIL
#define UPPER "[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]"
#define LOWER "[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]"
#define O200K(suffix, digits)                                                                                                    \
    "[^\\r\\n\\p{L}\\p{N}]?" UPPER "*" LOWER "+" suffix "|[^\\r\\n\\p{L}\\p{N}]?" UPPER "+" LOWER "*" suffix "|" digits          \
    "| ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*|" TAIL
#define GPT2_WORDS "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+"
#define PUNCT_WORD "[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+"
#define DEEPSEEK3 PUNCT_WORD "|[^\\r\\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+| ?[\\p{P}\\p{S}]+[\\r\\n]*|" TAIL
#define BLOOM_WORDS " ?[^(\\s|.,!?\u2026\u3002\uFF0C\u3001\u0964\u06D4\u060C)]+"
#define CJK_OLD "[\u4E00-\u9FA5\u0800-\u4E00\uAC00-\uD7FF]+"
#define CASED                                                                                                                    \
    "A-Za-z\u00B5\u00C0-\u00D6\u00D8-\u00F6\u00F8-\u01BA\u01BC-\u01BF\u01C4-\u0293\u0295-\u02AF\u0370-\u0373\u0376\u0377"        \
    "\u037B-\u037D\u037F\u0386\u0388-\u038A\u038C\u038E-\u03A1\u03A3-\u03F5\u03F7-\u0481\u048A-\u052F\u0531-\u0556\u10A0-"       \
    "\u10C5\u13A0-\u13F5\u13F8-\u13FD\u1C90-\u1CBA\u1CBD-\u1CBF\u1D00-\u1D2B\u1D6B-\u1D77\u1D79-\u1D9A\u1E00-\u1F15\u1F18-"      \
    "\u1F1D\u1F20-\u1F45\u1F48-\u1F4D\u1F50-\u1F57\u1F59\u1F5B\u1F5D\u1F5F-\u1F7D\u1F80-\u1FB4\u1FB6-\u1FBC\u1FBE\u1FC2-"        \
    "\u1FC4\u1FC6-\u1FCC\u1FD0-\u1FD3\u1FD6-\u1FDB\u1FE0-\u1FEC\u1FF2-\u1FF4\u1FF6-\u1FFC\u2102\u2107\u210A-\u2113\u2115"        \
    "\u2119-\u211D\u2124\u2126\u2128\u212A-\u212D\u212F-\u2134\u2139\u213C-\u213F\u2145-\u2149\u214E\u2183\u2184\u2C00-"         \
    "\u2C7B\u2C7E-\u2CE4\u2CEB-\u2CEE\u2CF2\u2CF3\uA640-\uA66D\uA680-\uA69B\uA722-\uA76F\uA771-\uA787\uA78B-\uA78E\uAB70-"       \
    "\uABBF\uFB00-\uFB06\uFB13-\uFB17\uFF21-\uFF3A\uFF41-\uFF5A\U00010400-\U0001044F\U000104B0-\U000104D3\U000104D8-"            \
    "\U000104FB\U00010C80-\U00010CB2\U00010CC0-\U00010CF2\U000118A0-\U000118DF\U0001E900-\U0001E943"

enum step_kind { END, SPLIT, DIGITS, DIGIT_RUNS, PUNCT_RUNS, BYTES };

struct step {
    enum step_kind kind;
    const char *pattern; /* split, isolated; byte level: the words it cuts first, or NULL */
};

enum { STEPS_MAX = 8 };

/* the pre-tokenizers, each once */
enum recipe {
    GPT2,
    LLAMA3,
    QWEN2,
    QWEN35,
    TEKKEN,
    GPT4O,
    STARCODER,
    FALCON,
    DEEPSEEK_LLM,
    DEEPSEEK_CODER,
    DEEPSEEK_V3,
    BLOOM,
    VIKING,
    BAILING,
    SEED,
    HUNYUAN,
    EXAONE_MOE,
    UFAKZEKA
};

static const struct step recipes[][STEPS_MAX] = {
    [GPT2] = {{BYTES, GPT2_WORDS}},
    [LLAMA3] = {{SPLIT, CL100K("\\p{N}{1,3}")}, {BYTES, NULL}},
    [QWEN2] = {{SPLIT, CL100K("\\p{N}")}, {BYTES, NULL}},
    [QWEN35] = {{SPLIT, CONTRACTION "|[^\\r\\n\\p{L}\\p{N}]?[\\p{L}\\p{M}]+|\\p{N}| ?[^\\s\\p{L}\\p{M}\\p{N}]+[\\r\\n]*|" TAIL},
                {BYTES, NULL}},
    [TEKKEN] = {{SPLIT, O200K("", "\\p{N}")}, {BYTES, NULL}},
    [GPT4O] = {{SPLIT, O200K(CONTRACTION "?", "\\p{N}{1,3}")}, {BYTES, NULL}},
    [STARCODER] = {{DIGITS, NULL}, {BYTES, GPT2_WORDS}},
    [FALCON] = {{PUNCT_RUNS, NULL}, {BYTES, GPT2_WORDS}, {DIGIT_RUNS, NULL}, {SPLIT, "[0-9][0-9][0-9]"}},
    [DEEPSEEK_LLM] = {{SPLIT, "[\r\n]"},
                      {SPLIT, "\\s?[" CASED "]+"},
                      {SPLIT, "\\s?[!-/:-~\uFF01-\uFF0F\uFF1A-\uFF5E\u2018-\u201F\u3000-\u3002]+"},
                      {SPLIT, "\\s+$"},
                      {SPLIT, CJK_OLD},
                      {DIGITS, NULL},
                      {BYTES, NULL}},
    [DEEPSEEK_CODER] =
        {{SPLIT, "[\r\n]"}, {SPLIT, "\\s?\\p{L}+"}, {SPLIT, "\\s?\\p{P}+"}, {SPLIT, CJK_OLD}, {DIGITS, NULL}, {BYTES, NULL}},
    [DEEPSEEK_V3] = {{SPLIT, "\\p{N}{1,3}"},
                     {SPLIT, "[\u4E00-\u9FA5\u3040-\u309F\u30A0-\u30FF]+"},
                     {SPLIT, DEEPSEEK3},
                     {BYTES, NULL}},
    [BLOOM] = {{SPLIT, BLOOM_WORDS}, {BYTES, NULL}},
    [VIKING] = {{SPLIT, BLOOM_WORDS}, {DIGITS, NULL}, {BYTES, NULL}},
    [BAILING] = {{SPLIT, "'(?i:[sdmt]|ll|ve|re)|[^\\r\\n\\p{L}\\p{N}]?+\\p{L}+|\\p{N}| "
                         "?[^\\s\\p{L}\\p{N}]++[\\r\\n]*|\\s*[\\r\\n]|\\s+(?!\\S)|\\s+"},
                 {BYTES, NULL}},
    [SEED] = {{SPLIT, CONTRACTION "|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1}| ?[^\\s\\p{L}\\p{N}\\r\\n]+|" TAIL}, {BYTES, NULL}},
    [HUNYUAN] = {{SPLIT, CL100K("\\p{N}")}, {BYTES, NULL}},
    [EXAONE_MOE] = {{SPLIT, CONTRACTION
                     "|[^\\r\\n\\p{L}\\p{N}]?(?:\\p{L}\\p{M}*(?: \\p{L}\\p{M}*)*)+|\\p{N}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]?"
                     "|\\s*[\\r\\n]|\\s+(?!\\S)|\\s+"},
                    {BYTES, NULL}},
    [UFAKZEKA] = {{SPLIT, "[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|" TAIL}, {BYTES, NULL}},
};

enum { NFC = 1, WHOLE = 2, BOS = 4 }; /* normalised to NFC; ignore_merges; BOS in front unless the file says otherwise */

static const struct {
    const char *name;
    enum recipe recipe;
    int flags;
} names[] = {
    {"gpt-2", GPT2, 0},
    {"default", GPT2, 0},
    {"phi-2", GPT2, 0},
    {"mpt", GPT2, NFC},
    {"olmo", GPT2, NFC},
    {"gigachat", GPT2, 0},
    {"a.x-4.0", GPT2, 0},
    {"mellum", GPT2, 0},
    {"modern-bert", GPT2, NFC},
    {"jais", GPT2, 0},
    {"trillion", GPT2, 0},
    {"exaone4", GPT2, NFC},
    {"llama-bpe", LLAMA3, WHOLE | BOS},
    {"llama3", LLAMA3, WHOLE | BOS},
    {"llama-v3", LLAMA3, WHOLE | BOS},
    {"falcon3", LLAMA3, WHOLE},
    {"falcon-h1", LLAMA3, WHOLE},
    {"pixtral", LLAMA3, WHOLE | BOS},
    {"midm-2.0", LLAMA3, WHOLE},
    {"lfm2", LLAMA3, WHOLE | BOS},
    {"dbrx", LLAMA3, 0},
    {"smaug-bpe", LLAMA3, WHOLE},
    {"chatglm-bpe", LLAMA3, 0},
    {"glm4", LLAMA3, WHOLE},
    {"glm5", LLAMA3, WHOLE},
    {"qwen2", QWEN2, NFC},
    {"deepseek-r1-qwen", QWEN2, NFC},
    {"megrez", QWEN2, NFC},
    {"kormo", QWEN2, NFC},
    {"f2llmv2", QWEN2, NFC},
    {"stablelm2", QWEN2, NFC},
    {"grok-2", QWEN2, 0},
    {"solar-open", QWEN2, 0},
    {"qwen35", QWEN35, NFC},
    {"hunyuan", HUNYUAN, 0},
    {"hunyuan-dense", DEEPSEEK_V3, 0},
    {"tekken", TEKKEN, WHOLE | BOS},
    {"gpt-4o", GPT4O, 0},
    {"llama4", GPT4O, 0},
    {"kanana2", GPT4O, 0},
    {"talkie", GPT4O, 0},
    {"minimax-m2", GPT4O, 0},
    {"starcoder", STARCODER, 0},
    {"refact", STARCODER, 0},
    {"command-r", STARCODER, NFC},
    {"smollm", STARCODER, 0},
    {"codeshell", STARCODER, 0},
    {"exaone", STARCODER, 0},
    {"minerva-7b", STARCODER, 0},
    {"mellum2", STARCODER, 0},
    {"falcon", FALCON, 0},
    {"deepseek-llm", DEEPSEEK_LLM, 0},
    {"deepseek-coder", DEEPSEEK_CODER, 0},
    {"deepseek-v3", DEEPSEEK_V3, 0},
    {"joyai-llm", DEEPSEEK_V3, 0},
    {"hy_v4", DEEPSEEK_V3, 0},
    {"bloom", BLOOM, 0},
    {"poro-chat", BLOOM, 0},
    {"gpt3-finnish", BLOOM, 0},
    {"viking", VIKING, 0},
    {"bailingmoe", BAILING, 0},
    {"bailingmoe2", BAILING, 0},
    {"llada-moe", BAILING, 0},
    {"seed-coder", SEED, 0},
    {"exaone-moe", EXAONE_MOE, 0},
    {"ufakzeka", UFAKZEKA, 0},
};

static int add_step(struct tokenizer *t, const struct step *s, struct err *err)
{
    static const enum pretok_kind kinds[] = {[SPLIT] = PRE_SPLIT,
                                             [DIGITS] = PRE_DIGITS,
                                             [DIGIT_RUNS] = PRE_DIGITS,
                                             [PUNCT_RUNS] = PRE_PUNCTUATION,
                                             [BYTES] = PRE_BYTE_LEVEL};
    struct pretok_op *op = &t->pre[t->pre_n++];
    *op = (struct pretok_op){.kind = kinds[s->kind], .behavior = SPLIT_ISOLATED};
    if (s->kind == DIGIT_RUNS || s->kind == PUNCT_RUNS)
        op->behavior = SPLIT_CONTIGUOUS;
    return s->pattern ? regex_compile(str_of(s->pattern), "tokenizer.ggml.pre", &op->re, err) : 0;
}

bool gguf_pre_adds_bos(struct str name)
{
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (str_is(name, names[i].name))
            return names[i].flags & BOS;
    return false;
}

int gguf_pre_byte_level(struct tokenizer *t, struct str name, const char **decoder, struct err *err)
{
    size_t n = sizeof names / sizeof *names, i = 0;
    *decoder = "{\"type\":\"ByteLevel\"}";
    if (!name.p)
        name = STR("default");
    while (i < n && !str_is(name, names[i].name))
        i++;
    if (i == n)
        return err_set(err, ERR_UNSUPPORTED, "tokenizer.ggml.pre: '%.*s' is not supported", STR_ARG(name));
    t->info.pretok = names[i].name;
    t->bpe.ignore_merges = names[i].flags & WHOLE;
    if (names[i].flags & NFC)
        t->norm[t->norm_n++] = (struct norm_op){.kind = NORM_NFC};
    int rc = 0;
    for (const struct step *s = recipes[names[i].recipe]; s->kind != END && !rc; s++)
        rc = add_step(t, s, err);
    return rc;
}

/* ' ' becomes '▁', with one more in front when the model wants it; no pre-tokenizer. */
int gguf_pre_spm(struct tokenizer *t, bool space_prefix, const char **decoder, struct err *err)
{
    (void)err;
    *decoder =
        space_prefix
            ? "{\"type\":\"Sequence\",\"decoders\":[{\"type\":\"Replace\",\"pattern\":{\"String\":\"▁\"},\"content\":\" \"},"
              "{\"type\":\"ByteFallback\"},{\"type\":\"Fuse\"},{\"type\":\"Strip\",\"content\":\" \",\"start\":1,\"stop\":0}]}"
            : "{\"type\":\"Sequence\",\"decoders\":[{\"type\":\"Replace\",\"pattern\":{\"String\":\"▁\"},\"content\":\" \"},"
              "{\"type\":\"ByteFallback\"},{\"type\":\"Fuse\"}]}";
    if (space_prefix)
        t->norm[t->norm_n++] = (struct norm_op){.kind = NORM_PREPEND, .content = STR("▁")};
    t->norm[t->norm_n++] = (struct norm_op){.kind = NORM_REPLACE, .pattern = STR(" "), .content = STR("▁")};
    t->info.pretok = "none";
    return 0;
}

int gguf_pre_unigram(struct tokenizer *t, const char **decoder, struct err *err)
{
    *decoder = "{\"type\":\"Metaspace\",\"replacement\":\"▁\",\"prepend_scheme\":\"always\"}";
    t->info.pretok = "metaspace";
    t->pre[t->pre_n++] = (struct pretok_op){.kind = PRE_WHITESPACE_SPLIT, .behavior = SPLIT_REMOVED};
    t->pre[t->pre_n++] = (struct pretok_op){.kind = PRE_METASPACE,
                                            .behavior = SPLIT_MERGED_NEXT,
                                            .cp = 0x2581,
                                            .mark = STR("▁"),
                                            .scheme = PREPEND_ALWAYS,
                                            .split = true};
    (void)err;
    return 0;
}
