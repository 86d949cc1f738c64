/* backend_cpu/pack_ggml.c - blocks of GGUF types (and MXFP4 in both orders) to panel units.
 *
 * Every function takes one row's block(s) and writes one lane; codes keep their value, only their place changes, so
 * nothing is rounded.  Sub-scales of K-quants are unpacked to bytes. */
#include "backend_cpu/pack.h"

static const unsigned char *block_at(const struct weight_src *src, uint32_t row, uint32_t block)
{
    return (const unsigned char *)src->data + row * src->row_bytes + (size_t)block * dtype_block_bytes(src->type);
}

/* 16 bytes: low nibbles are columns 0..15, high nibbles 16..31: already the panel's order. */
static void put_nibble_words(unsigned char *body, uint32_t lane, const unsigned char *qs)
{
    for (int g = 0; g < 4; g++)
        pack_put_word(body + 64 * g, lane, pack_u32(qs + 4 * g));
}

/* 32 bits, one per column, to the bit plane. */
static void put_column_bits(unsigned char *plane, uint32_t lane, uint32_t qh)
{
    uint32_t w = 0;
    for (int g = 0; g < 8; g++) {
        uint32_t b = qh >> 4 * g & 15;
        w |= ((b & 1) | (b & 2) << 7 | (b & 4) << 14 | (b & 8) << 21) << g;
    }
    pack_put_word(plane, lane, w);
}

#define UNIT(name)                                                                                                               \
    static void unit_##name(const struct weight_src *src, const struct cpu_panel *p, uint32_t row, uint32_t at, uint32_t lane,   \
                            unsigned char *u)

UNIT(q4_0) /* and IQ4_NL */
{
    const unsigned char *b = block_at(src, row, at);
    pack_put16(u, lane, pack_u16(b));
    put_nibble_words(u + p->unit_head, lane, b + 2);
}
UNIT(q4_1)
{
    const unsigned char *b = block_at(src, row, at);
    pack_put16(u, lane, pack_u16(b));
    pack_put16(u + 32, lane, pack_u16(b + 2));
    put_nibble_words(u + p->unit_head, lane, b + 4);
}
UNIT(q5_0)
{
    const unsigned char *b = block_at(src, row, at);
    pack_put16(u, lane, pack_u16(b));
    put_nibble_words(u + p->unit_head, lane, b + 6);
    put_column_bits(u + p->unit_head + 256, lane, pack_u32(b + 2));
}
UNIT(q5_1)
{
    const unsigned char *b = block_at(src, row, at);
    pack_put16(u, lane, pack_u16(b));
    pack_put16(u + 32, lane, pack_u16(b + 2));
    put_nibble_words(u + p->unit_head, lane, b + 8);
    put_column_bits(u + p->unit_head + 256, lane, pack_u32(b + 4));
}
UNIT(q8_0)
{
    const unsigned char *b = block_at(src, row, at);
    pack_put16(u, lane, pack_u16(b));
    for (int g = 0; g < 8; g++)
        pack_put_word(u + p->unit_head + 64 * g, lane, pack_u32(b + 2 + 4 * g));
}
UNIT(mxfp4)
{
    unsigned char *body = u + p->unit_head;
    if (!src->scales) {
        const unsigned char *b = block_at(src, row, at);
        u[lane] = b[0];
        put_nibble_words(body, lane, b + 1);
        return;
    }
    /* Hugging Face: byte j = columns 2 j, 2 j + 1 */
    const unsigned char *q = (const unsigned char *)src->data + row * src->row_bytes + (size_t)at * 16;
    u[lane] = ((const unsigned char *)src->scales)[(size_t)row * (src->cols / 32) + at];
    unsigned char c[32];
    for (int j = 0; j < 16; j++)
        c[2 * j] = q[j] & 15, c[2 * j + 1] = q[j] >> 4;
    struct pack_codes k;
    memcpy(&k, c, sizeof k);
    pack_put_nibbles(body, lane, &k);
}

/* 2-bit codes of block b (of 8): words of 128 columns' 32 bytes, 2 bits at 2 (b & 3). */
static void codes_2bit(const unsigned char *qs, uint32_t b, struct pack_codes *k)
{
    for (int g = 0; g < 8; g++)
        k->c[g] = pack_u32(qs + 32 * (b >> 2) + 4 * g) >> 2 * (b & 3) & PAIRS;
}
UNIT(q2_k)
{
    const unsigned char *s = block_at(src, row, at);
    pack_put16(u, lane, pack_u16(s + 80));
    pack_put16(u + 32, lane, pack_u16(s + 82));
    for (uint32_t b = 0; b < 8; b++) {
        unsigned char *o = u + p->unit_head + b * p->block_bytes;
        struct pack_codes k;
        o[lane] = s[2 * b];
        o[16 + lane] = s[2 * b + 1];
        codes_2bit(s + 16, b, &k);
        pack_put_body(o + 32, 2, lane, &k);
    }
}
UNIT(q3_k)
{
    const unsigned char *s = block_at(src, row, at), *hm = s, *qs = s + 32, *sc = s + 96;
    pack_put16(u, lane, pack_u16(s + 108));
    for (uint32_t b = 0; b < 8; b++) {
        unsigned char *o = u + p->unit_head + b * p->block_bytes;
        for (uint32_t h = 0; h < 2; h++) {
            uint32_t j = 2 * b + h;
            uint32_t lo = j < 8 ? sc[j] & 15u : sc[j - 8] >> 4, hi = sc[8 + j % 4] >> 2 * (j / 4) & 3u;
            o[16 * h + lane] = (unsigned char)((lo | hi << 4) - 32);
        }
        struct pack_codes k;
        codes_2bit(qs, b, &k);
        for (int g = 0; g < 8; g++)
            k.c[g] |= (pack_u32(hm + 4 * g) >> b & BITS) << 2;
        pack_put_body(o + 32, 3, lane, &k);
    }
}

/* 6-bit scale and minimum of block j of Q4_K and Q5_K. */
static void scale_min(const unsigned char *s, uint32_t j, unsigned char *sc, unsigned char *mn)
{
    if (j < 4) {
        *sc = s[j] & 63;
        *mn = s[j + 4] & 63;
        return;
    }
    *sc = (unsigned char)((s[j + 4] & 15) | s[j - 4] >> 6 << 4);
    *mn = (unsigned char)(s[j + 4] >> 4 | s[j] >> 6 << 4);
}
static void unit_q45_k(const unsigned char *s, const unsigned char *qh, const unsigned char *qs, const struct cpu_panel *p, uint32_t lane,
                       unsigned char *u)
{
    pack_put16(u, lane, pack_u16(s));
    pack_put16(u + 32, lane, pack_u16(s + 2));
    for (uint32_t b = 0; b < 8; b++) {
        unsigned char *o = u + p->unit_head + b * p->block_bytes;
        struct pack_codes k;
        scale_min(s + 4, b, o + lane, o + 16 + lane);
        for (int g = 0; g < 8; g++) {
            k.c[g] = pack_u32(qs + 32 * (b >> 1) + 4 * g) >> 4 * (b & 1) & NIBBLES;
            if (qh)
                k.c[g] |= (pack_u32(qh + 4 * g) >> b & BITS) << 4;
        }
        pack_put_body(o + 32, qh ? 5 : 4, lane, &k);
    }
}
UNIT(q4_k)
{
    const unsigned char *s = block_at(src, row, at);
    unit_q45_k(s, NULL, s + 16, p, lane, u);
}
UNIT(q5_k)
{
    const unsigned char *s = block_at(src, row, at);
    unit_q45_k(s, s + 16, s + 48, p, lane, u);
}
UNIT(q6_k)
{
    const unsigned char *s = block_at(src, row, at), *sc = s + 192;
    pack_put16(u, lane, pack_u16(s + 208));
    for (uint32_t b = 0; b < 8; b++) {
        const unsigned char *ql = s + 64 * (b >> 2) + 32 * (b & 1), *qh = s + 128 + 32 * (b >> 2);
        unsigned char *o = u + p->unit_head + b * p->block_bytes;
        struct pack_codes k;
        o[lane] = sc[2 * b];
        o[16 + lane] = sc[2 * b + 1];
        for (int g = 0; g < 8; g++)
            k.c[g] = (pack_u32(ql + 4 * g) >> 2 * (b & 2) & NIBBLES) | (pack_u32(qh + 4 * g) >> 2 * (b & 3) & PAIRS) << 4;
        pack_put_body(o + 32, 6, lane, &k);
    }
}
UNIT(iq4_xs)
{
    const unsigned char *s = block_at(src, row, at);
    uint32_t high = pack_u16(s + 2);
    pack_put16(u, lane, pack_u16(s));
    for (uint32_t b = 0; b < 8; b++) {
        unsigned char *o = u + p->unit_head + b * p->block_bytes;
        uint32_t lo = s[4 + b / 2] >> 4 * (b & 1) & 15u, hi = high >> 2 * b & 3;
        o[lane] = (unsigned char)((lo | hi << 4) - 32);
        put_nibble_words(o + 16, lane, s + 8 + 16 * b);
    }
}

static const struct pack_type types[DTYPE_COUNT] = {
    [DTYPE_F32] = {true, CPU_LAYOUT_F32, NULL},
    [DTYPE_F16] = {true, CPU_LAYOUT_F16, NULL},
    [DTYPE_BF16] = {true, CPU_LAYOUT_BF16, NULL},
    [DTYPE_Q4_0] = {true, CPU_LAYOUT_Q4_0, unit_q4_0},
    [DTYPE_Q4_1] = {true, CPU_LAYOUT_Q4_1, unit_q4_1},
    [DTYPE_Q5_0] = {true, CPU_LAYOUT_Q5_0, unit_q5_0},
    [DTYPE_Q5_1] = {true, CPU_LAYOUT_Q5_1, unit_q5_1},
    [DTYPE_Q8_0] = {true, CPU_LAYOUT_Q8_0, unit_q8_0},
    [DTYPE_Q2_K] = {true, CPU_LAYOUT_Q2_K, unit_q2_k},
    [DTYPE_Q3_K] = {true, CPU_LAYOUT_Q3_K, unit_q3_k},
    [DTYPE_Q4_K] = {true, CPU_LAYOUT_Q4_K, unit_q4_k},
    [DTYPE_Q5_K] = {true, CPU_LAYOUT_Q5_K, unit_q5_k},
    [DTYPE_Q6_K] = {true, CPU_LAYOUT_Q6_K, unit_q6_k},
    [DTYPE_IQ4_NL] = {true, CPU_LAYOUT_IQ4_NL, unit_q4_0},
    [DTYPE_IQ4_XS] = {true, CPU_LAYOUT_IQ4_XS, unit_iq4_xs},
    [DTYPE_MXFP4] = {true, CPU_LAYOUT_MXFP4, unit_mxfp4},
};

struct pack_type pack_ggml_type(enum dtype t)
{
    return t < DTYPE_COUNT ? types[t] : (struct pack_type){0};
}
