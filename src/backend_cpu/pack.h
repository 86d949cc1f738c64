/* backend_cpu/pack.h - writing and reading the planes of a panel (panel.h).
 *
 * Written by four rows at once: four columns of each are one u32 word, four rows' words one vector (the compiler's own, so every CPU
 * has it).  Read one row at a time. */
#ifndef RH_CPU_PACK_H
#define RH_CPU_PACK_H

#include "backend_cpu/panel.h"
#include "format/dtype.h"

#include <stdbool.h>
#include <string.h>

enum { NIBBLES = 0x0f0f0f0f, PAIRS = 0x03030303, BITS = 0x01010101, SIXES = 0x3f3f3f3f };
enum { PACK_ROWS = 4, PACK_UNIT_BYTES_MAX = 256 /* of one row in a file */ };

typedef uint32_t pack_lanes __attribute__((vector_size(4 * PACK_ROWS)));

/* codes of one row's block of 32 columns: byte j of word g = column 4 g + j */
struct pack_codes {
    uint32_t c[8];
};
/* the same of four rows */
struct pack_block {
    pack_lanes c[8];
};

/* One unit of four rows, as the file has it, and where the panel has it. */
struct pack_unit {
    const struct weight_src *src;
    const struct cpu_panel *p;
    const unsigned char *data[PACK_ROWS];                       /* a row past the last: zeros */
    const unsigned char *scales[PACK_ROWS], *biases[PACK_ROWS]; /* formats that have them apart */
    uint32_t lane;                                              /* of the first row: 0, 4, 8 or 12 */
    unsigned char *out;
};
typedef void (*pack_unit_fn)(const struct pack_unit *u);

static inline uint32_t pack_u32(const void *p)
{
    uint32_t v;
    memcpy(&v, p, sizeof v);
    return v;
}
static inline uint16_t pack_u16(const void *p)
{
    uint16_t v;
    memcpy(&v, p, sizeof v);
    return v;
}

/* ---- reading four rows */

static inline pack_lanes pack_word(const unsigned char *const *rows, size_t at)
{
    return (pack_lanes){pack_u32(rows[0] + at), pack_u32(rows[1] + at), pack_u32(rows[2] + at), pack_u32(rows[3] + at)};
}
/* Four words of each row from byte `at`: out[i] = word i of all rows. */
static inline void pack_words(const unsigned char *const *rows, size_t at, pack_lanes out[4])
{
    pack_lanes a, b, c, d;
    memcpy(&a, rows[0] + at, sizeof a);
    memcpy(&b, rows[1] + at, sizeof b);
    memcpy(&c, rows[2] + at, sizeof c);
    memcpy(&d, rows[3] + at, sizeof d);
    pack_lanes ab = __builtin_shufflevector(a, b, 0, 4, 1, 5), cd = __builtin_shufflevector(c, d, 0, 4, 1, 5);
    out[0] = __builtin_shufflevector(ab, cd, 0, 1, 4, 5);
    out[1] = __builtin_shufflevector(ab, cd, 2, 3, 6, 7);
    ab = __builtin_shufflevector(a, b, 2, 6, 3, 7), cd = __builtin_shufflevector(c, d, 2, 6, 3, 7);
    out[2] = __builtin_shufflevector(ab, cd, 0, 1, 4, 5);
    out[3] = __builtin_shufflevector(ab, cd, 2, 3, 6, 7);
}

/* ---- writing four rows */

/* A half of each row, to the place of the first row's. */
static inline void pack_put_halves(unsigned char *scales, uint32_t lane, const unsigned char *const *rows, size_t at)
{
    uint16_t v[PACK_ROWS] = {pack_u16(rows[0] + at), pack_u16(rows[1] + at), pack_u16(rows[2] + at), pack_u16(rows[3] + at)};
    memcpy(scales + 2 * lane, v, sizeof v);
}
static inline void pack_put_word(unsigned char *plane, uint32_t lane, pack_lanes v)
{
    memcpy(plane + 4 * lane, &v, sizeof v);
}

static inline void pack_put_nibbles(unsigned char *body, uint32_t lane, const struct pack_block *k)
{
    for (int g = 0; g < 4; g++)
        pack_put_word(body + 64 * g, lane, (k->c[g] & NIBBLES) | (k->c[g + 4] & NIBBLES) << 4);
}
static inline void pack_put_pairs(unsigned char *plane, uint32_t lane, const struct pack_block *k, int shift)
{
    for (int h = 0; h < 2; h++) {
        pack_lanes w = {0};
        for (int i = 0; i < 4; i++)
            w |= (k->c[4 * h + i] >> shift & PAIRS) << 2 * i;
        pack_put_word(plane + 64 * h, lane, w);
    }
}
static inline void pack_put_bits(unsigned char *plane, uint32_t lane, const struct pack_block *k, int shift)
{
    pack_lanes w = {0};
    for (int g = 0; g < 8; g++)
        w |= (k->c[g] >> shift & BITS) << g;
    pack_put_word(plane, lane, w);
}

static inline void pack_put_sixes(unsigned char *body, uint32_t lane, const struct pack_block *k)
{
    for (int g = 0; g < 8; g++) {
        int last = g / 4 * 4 + 3; /* whose bits the three before it carry */
        if (g != last)
            pack_put_word(body + 64 * (g - g / 4), lane, (k->c[g] & SIXES) | (k->c[last] >> 2 * (g % 4) & PAIRS) << 6);
    }
}

/* Four rows' block body, codes of `bits` bits. */
static inline void pack_put_body(unsigned char *body, uint32_t bits, uint32_t lane, const struct pack_block *k)
{
    switch (bits) {
    case 2:
        pack_put_pairs(body, lane, k, 0);
        return;
    case 3:
        pack_put_pairs(body, lane, k, 0);
        pack_put_bits(body + 128, lane, k, 2);
        return;
    case 4:
        pack_put_nibbles(body, lane, k);
        return;
    case 5:
        pack_put_nibbles(body, lane, k);
        pack_put_bits(body + 256, lane, k, 4);
        return;
    case 6:
        pack_put_sixes(body, lane, k);
        return;
    default:
        for (int g = 0; g < 8; g++)
            pack_put_word(body + 64 * g, lane, k->c[g]);
    }
}

static inline uint32_t pack_get_six(const unsigned char *p, uint32_t g)
{
    uint32_t w = 0;
    if (g % 4 < 3)
        return pack_u32(p + 64 * (g - g / 4)) & SIXES;
    for (uint32_t i = 0; i < 3; i++)
        w |= (pack_u32(p + 192 * (g / 4) + 64 * i) >> 6 & PAIRS) << 2 * i;
    return w;
}

/* The inverse, for one row. */
static inline void pack_get_body(const unsigned char *body, uint32_t bits, uint32_t lane, struct pack_codes *k)
{
    const unsigned char *p = body + 4 * lane;
    for (uint32_t g = 0; g < 8; g++) {
        uint32_t w;
        if (bits == 8)
            w = pack_u32(p + 64 * g);
        else if (bits == 6)
            w = pack_get_six(p, g);
        else if (bits >= 4)
            w = pack_u32(p + 64 * (g & 3)) >> (g & 4) & NIBBLES;
        else
            w = pack_u32(p + 64 * (g >> 2)) >> 2 * (g & 3) & PAIRS;
        if (bits == 3)
            w |= (pack_u32(p + 128) >> g & BITS) << 2;
        if (bits == 5)
            w |= (pack_u32(p + 256) >> g & BITS) << 4;
        k->c[g] = w;
    }
}

struct pack_type {
    bool known;
    enum cpu_layout layout;
    pack_unit_fn unit; /* NULL: a float layout, packed by cpu_pack.c */
};
struct pack_type pack_ggml_type(enum dtype t);
struct pack_type pack_mlx_type(uint32_t bits);

#endif
