/* tests/unit/text_make.h - small tokenizer.json texts for the tests of text/. */
#ifndef TEXT_MAKE_H
#define TEXT_MAKE_H

#include "base/buf.h"
#include "base/utf8.h"

/* The byte-level character of a byte, by the rule GPT-2 published (kept apart from the library's). */
static inline uint32_t make_byte_char(unsigned byte)
{
    unsigned n = 0;
    for (unsigned b = 0; b < 256; b++) {
        int printable = (b >= 33 && b <= 126) || (b >= 161 && b <= 172) || (b >= 174 && b <= 255);
        if (b == byte)
            return printable ? b : 256 + n;
        n += !printable;
    }
    return 0;
}

/* Byte-level BPE: ids 0..255 are the bytes, 256.. `more` (JSON strings, byte-level spelling, comma-separated after the first
 * comma), then whatever top-level members `parts` adds. */
static inline void make_byte_level(struct buf *b, const char *more, const char *merges, const char *parts)
{
    buf_z(b, "{\"model\":{\"type\":\"BPE\",\"vocab\":{");
    for (unsigned i = 0; i < 256; i++) {
        char c[4];
        buf_z(b, i ? "," : "");
        buf_json_str(b, str_n(c, utf8_encode(make_byte_char(i), c)));
        buf_printf(b, ":%u", i);
    }
    buf_z(b, more);
    buf_printf(b, "},\"merges\":[%s]}%s}", merges, parts);
}

#define MAKE_BYTES                                                                                                               \
    ",\"pre_tokenizer\":{\"type\":\"ByteLevel\",\"add_prefix_space\":false,\"use_regex\":true},\"decoder\":{\"type\":"           \
    "\"ByteLevel\"}"

/* Character BPE with byte fallback: <unk> <s> </s>, then <0x00>..<0xFF> (ids 3..258), then `more`. */
static inline void make_spm(struct buf *b, const char *more, const char *merges, const char *parts)
{
    buf_z(b, "{\"model\":{\"type\":\"BPE\",\"unk_token\":\"<unk>\",\"fuse_unk\":true,\"byte_fallback\":true,\"vocab\":{\"<unk>\":"
             "0,\"<s>\":1,\"</s>\":2");
    for (unsigned i = 0; i < 256; i++)
        buf_printf(b, ",\"<0x%02X>\":%u", i, i + 3);
    buf_printf(b, "%s},\"merges\":[%s]}%s}", more, merges, parts);
}

#define MAKE_SPM                                                                                                                 \
    ",\"normalizer\":{\"type\":\"Sequence\",\"normalizers\":[{\"type\":\"Prepend\",\"prepend\":\"\xE2\x96\x81\"},"               \
    "{\"type\":\"Replace\",\"pattern\":{\"String\":\" \"},\"content\":\"\xE2\x96\x81\"}]},"                                      \
    "\"decoder\":{\"type\":\"Sequence\",\"decoders\":[{\"type\":\"Replace\",\"pattern\":{\"String\":\"\xE2\x96\x81\"},"          \
    "\"content\":\" \"},{\"type\":\"ByteFallback\"},{\"type\":\"Fuse\"},{\"type\":\"Strip\",\"content\":\" \",\"start\":1,"      \
    "\"stop\":0}]}"

#endif
