/* backend_cpu/pack.h - writing and reading the planes of a panel (panel.h), four columns of one row at a time as a u32 word. */
#ifndef RH_CPU_PACK_H
#define RH_CPU_PACK_H

#include "backend_cpu/panel.h"
#include "format/dtype.h"

#include <stdbool.h>
#include <string.h>

enum { NIBBLES = 0x0f0f0f0f, PAIRS = 0x03030303, BITS = 0x01010101 };

/* codes of one row's block of 32 columns: byte j of word g = column 4 g + j */
struct pack_codes {
    uint32_t c[8];
};

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
static inline void pack_put16(unsigned char *scales, uint32_t lane, uint16_t v)
{
    memcpy(scales + 2 * lane, &v, sizeof v);
}
static inline void pack_put_word(unsigned char *plane, uint32_t lane, uint32_t v)
{
    memcpy(plane + 4 * lane, &v, sizeof v);
}

/* Bits of a code by the size of its body: 64 bytes for each. */
static inline uint32_t pack_bits(uint32_t body_bytes)
{
    return body_bytes / 64;
}

static inline void pack_put_nibbles(unsigned char *body, uint32_t lane, const struct pack_codes *k)
{
    for (int g = 0; g < 4; g++)
        pack_put_word(body + 64 * g, lane, (k->c[g] & NIBBLES) | (k->c[g + 4] & NIBBLES) << 4);
}
static inline void pack_put_pairs(unsigned char *plane, uint32_t lane, const struct pack_codes *k, int shift)
{
    for (int h = 0; h < 2; h++) {
        uint32_t w = 0;
        for (int i = 0; i < 4; i++)
            w |= (k->c[4 * h + i] >> shift & PAIRS) << 2 * i;
        pack_put_word(plane + 64 * h, lane, w);
    }
}
static inline void pack_put_bits(unsigned char *plane, uint32_t lane, const struct pack_codes *k, int shift)
{
    uint32_t w = 0;
    for (int g = 0; g < 8; g++)
        w |= (k->c[g] >> shift & BITS) << g;
    pack_put_word(plane, lane, w);
}

/* A block's body, codes of `bits` bits. */
static inline void pack_put_body(unsigned char *body, uint32_t bits, uint32_t lane, const struct pack_codes *k)
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
        pack_put_nibbles(body, lane, k);
        pack_put_pairs(body + 256, lane, k, 4);
        return;
    default:
        for (int g = 0; g < 8; g++)
            pack_put_word(body + 64 * g, lane, k->c[g]);
    }
}

/* The inverse. */
static inline void pack_get_body(const unsigned char *body, uint32_t bits, uint32_t lane, struct pack_codes *k)
{
    const unsigned char *p = body + 4 * lane;
    for (uint32_t g = 0; g < 8; g++) {
        uint32_t w;
        if (bits == 8)
            w = pack_u32(p + 64 * g);
        else if (bits >= 4)
            w = pack_u32(p + 64 * (g & 3)) >> (g & 4) & NIBBLES;
        else
            w = pack_u32(p + 64 * (g >> 2)) >> 2 * (g & 3) & PAIRS;
        if (bits == 3)
            w |= (pack_u32(p + 128) >> g & BITS) << 2;
        if (bits == 5)
            w |= (pack_u32(p + 256) >> g & BITS) << 4;
        if (bits == 6)
            w |= (pack_u32(p + 256 + 64 * (g >> 2)) >> 2 * (g & 3) & PAIRS) << 4;
        k->c[g] = w;
    }
}

/* One lane of one unit: columns [32 unit_index unit ...) of source row `row` into `unit`. */
typedef void (*pack_unit_fn)(const struct weight_src *src, const struct cpu_panel *p, uint32_t row, uint32_t unit_index, uint32_t lane,
                             unsigned char *unit);

struct pack_type {
    bool known;
    enum cpu_layout layout;
    pack_unit_fn unit; /* NULL: a float layout, packed by cpu_weight.c */
};
struct pack_type pack_ggml_type(enum dtype t);
struct pack_type pack_mlx_type(uint32_t bits);

#endif
