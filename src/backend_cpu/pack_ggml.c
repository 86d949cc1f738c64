/* backend_cpu/pack_ggml.c - blocks of GGUF types (and MXFP4 in both orders) to panel units.
 *
 * Every function takes the same block(s) of four rows and writes their lanes; codes keep their value, only their place changes, so
 * nothing is rounded.  Sub-scales of K-quants are unpacked to bytes. */
#include "backend_cpu/pack.h"

/* 16 bytes: low nibbles are columns 0..15, high nibbles 16..31: already the panel's order. */
static void put_nibble_words(unsigned char *body, const struct pack_unit *u, size_t at)
{
    pack_lanes w[4];
    pack_words(u->data, at, w);
    for (int g = 0; g < 4; g++)
        pack_put_word(body + 64 * g, u->lane, w[g]);
}

/* 32 bits, one per column, to the bit plane. */
static void put_column_bits(unsigned char *plane, uint32_t lane, pack_lanes qh)
{
    pack_lanes w = {0};
    for (int g = 0; g < 8; g++) {
        pack_lanes b = qh >> 4 * g & 15;
        w |= ((b & 1) | (b & 2) << 7 | (b & 4) << 14 | (b & 8) << 21) << g;
    }
    pack_put_word(plane, lane, w);
}

static void unit_q4_0(const struct pack_unit *u) /* and IQ4_NL */
{
    pack_put_halves(u->out, u->lane, u->data, 0);
    put_nibble_words(u->out + u->p->unit_head, u, 2);
}
static void unit_q4_1(const struct pack_unit *u)
{
    pack_put_halves(u->out, u->lane, u->data, 0);
    pack_put_halves(u->out + 32, u->lane, u->data, 2);
    put_nibble_words(u->out + u->p->unit_head, u, 4);
}
static void unit_q5_0(const struct pack_unit *u)
{
    unsigned char *body = u->out + u->p->unit_head;
    pack_put_halves(u->out, u->lane, u->data, 0);
    put_nibble_words(body, u, 6);
    put_column_bits(body + 256, u->lane, pack_word(u->data, 2));
}
static void unit_q5_1(const struct pack_unit *u)
{
    unsigned char *body = u->out + u->p->unit_head;
    pack_put_halves(u->out, u->lane, u->data, 0);
    pack_put_halves(u->out + 32, u->lane, u->data, 2);
    put_nibble_words(body, u, 8);
    put_column_bits(body + 256, u->lane, pack_word(u->data, 4));
}
static void unit_q8_0(const struct pack_unit *u)
{
    unsigned char *body = u->out + u->p->unit_head;
    pack_put_halves(u->out, u->lane, u->data, 0);
    put_nibble_words(body, u, 2);
    put_nibble_words(body + 256, u, 18);
}

/* Hugging Face: byte j = columns 2 j, 2 j + 1. */
static void mxfp4_split(const struct pack_unit *u)
{
    struct pack_block k;
    for (int i = 0; i < PACK_ROWS; i++) {
        unsigned char c[32];
        for (int j = 0; j < 16; j++)
            c[2 * j] = u->data[i][j] & 15, c[2 * j + 1] = u->data[i][j] >> 4;
        for (int g = 0; g < 8; g++)
            k.c[g][i] = pack_u32(c + 4 * g);
        u->out[u->lane + (uint32_t)i] = u->scales[i][0];
    }
    pack_put_nibbles(u->out + u->p->unit_head, u->lane, &k);
}
static void unit_mxfp4(const struct pack_unit *u)
{
    if (u->src->scales) {
        mxfp4_split(u);
        return;
    }
    for (int i = 0; i < PACK_ROWS; i++)
        u->out[u->lane + (uint32_t)i] = u->data[i][0];
    put_nibble_words(u->out + u->p->unit_head, u, 1);
}

/* 32 bytes of each row from `at`: words 0 .. 7. */
static void eight_words(const struct pack_unit *u, size_t at, pack_lanes w[8])
{
    pack_words(u->data, at, w);
    pack_words(u->data, at + 16, w + 4);
}

/* 2-bit codes of block b (of 8): words of 128 columns' 32 bytes, 2 bits at 2 (b & 3). */
static void codes_2bit(const pack_lanes w[8], uint32_t b, struct pack_block *k)
{
    for (int g = 0; g < 8; g++)
        k->c[g] = w[g] >> 2 * (b & 3) & PAIRS;
}
static void unit_q2_k(const struct pack_unit *u)
{
    pack_lanes w[8];
    pack_put_halves(u->out, u->lane, u->data, 80);
    pack_put_halves(u->out + 32, u->lane, u->data, 82);
    for (uint32_t b = 0; b < 8; b++) {
        unsigned char *o = u->out + u->p->unit_head + b * u->p->block_bytes;
        struct pack_block k;
        if (b % 4 == 0)
            eight_words(u, 16 + 8 * b, w);
        for (uint32_t i = 0; i < PACK_ROWS; i++)
            o[u->lane + i] = u->data[i][2 * b], o[16 + u->lane + i] = u->data[i][2 * b + 1];
        codes_2bit(w, b, &k);
        pack_put_body(o + 32, 2, u->lane, &k);
    }
}
static void unit_q3_k(const struct pack_unit *u)
{
    pack_lanes w[8], high[8];
    eight_words(u, 0, high);
    pack_put_halves(u->out, u->lane, u->data, 108);
    for (uint32_t b = 0; b < 8; b++) {
        unsigned char *o = u->out + u->p->unit_head + b * u->p->block_bytes;
        struct pack_block k;
        if (b % 4 == 0)
            eight_words(u, 32 + 8 * b, w);
        for (uint32_t i = 0; i < 2 * PACK_ROWS; i++) {
            const unsigned char *sc = u->data[i / 2] + 96;
            uint32_t j = 2 * b + i % 2;
            uint32_t lo = j < 8 ? sc[j] & 15u : sc[j - 8] >> 4, hi = sc[8 + j % 4] >> 2 * (j / 4) & 3u;
            o[16 * (i % 2) + u->lane + i / 2] = (unsigned char)((lo | hi << 4) - 32);
        }
        codes_2bit(w, b, &k);
        for (int g = 0; g < 8; g++)
            k.c[g] |= (high[g] >> b & BITS) << 2;
        pack_put_body(o + 32, 3, u->lane, &k);
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
/* qh: the fifth bits' words, or NULL; qs: where the nibbles start. */
static void unit_q45_k(const struct pack_unit *u, const pack_lanes *qh, size_t qs)
{
    pack_lanes w[8];
    pack_put_halves(u->out, u->lane, u->data, 0);
    pack_put_halves(u->out + 32, u->lane, u->data, 2);
    for (uint32_t b = 0; b < 8; b++) {
        unsigned char *o = u->out + u->p->unit_head + b * u->p->block_bytes;
        struct pack_block k;
        if (b % 2 == 0)
            eight_words(u, qs + 16 * b, w);
        for (uint32_t i = 0; i < PACK_ROWS; i++)
            scale_min(u->data[i] + 4, b, o + u->lane + i, o + 16 + u->lane + i);
        for (int g = 0; g < 8; g++) {
            k.c[g] = w[g] >> 4 * (b & 1) & NIBBLES;
            if (qh)
                k.c[g] |= (qh[g] >> b & BITS) << 4;
        }
        pack_put_body(o + 32, qh ? 5 : 4, u->lane, &k);
    }
}
static void unit_q4_k(const struct pack_unit *u)
{
    unit_q45_k(u, NULL, 16);
}
static void unit_q5_k(const struct pack_unit *u)
{
    pack_lanes qh[8];
    eight_words(u, 16, qh);
    unit_q45_k(u, qh, 48);
}
static void unit_q6_k(const struct pack_unit *u)
{
    pack_lanes ql[8], qh[8];
    pack_put_halves(u->out, u->lane, u->data, 208);
    for (uint32_t b = 0; b < 8; b++) {
        unsigned char *o = u->out + u->p->unit_head + b * u->p->block_bytes;
        struct pack_block k;
        if (b % 4 == 0)
            eight_words(u, 128 + 8 * b, qh);
        eight_words(u, 64 * (b >> 2) + 32 * (b & 1), ql);
        for (uint32_t i = 0; i < PACK_ROWS; i++)
            o[u->lane + i] = u->data[i][192 + 2 * b], o[16 + u->lane + i] = u->data[i][192 + 2 * b + 1];
        for (int g = 0; g < 8; g++)
            k.c[g] = (ql[g] >> 2 * (b & 2) & NIBBLES) | (qh[g] >> 2 * (b & 3) & PAIRS) << 4;
        pack_put_body(o + 32, 6, u->lane, &k);
    }
}
static void unit_iq4_xs(const struct pack_unit *u)
{
    pack_put_halves(u->out, u->lane, u->data, 0);
    for (uint32_t b = 0; b < 8; b++) {
        unsigned char *o = u->out + u->p->unit_head + b * u->p->block_bytes;
        for (uint32_t i = 0; i < PACK_ROWS; i++) {
            uint32_t lo = u->data[i][4 + b / 2] >> 4 * (b & 1) & 15u, hi = pack_u16(u->data[i] + 2) >> 2 * b & 3u;
            o[u->lane + i] = (unsigned char)((lo | hi << 4) - 32);
        }
        put_nibble_words(o + 16, u, 8 + 16 * b);
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
