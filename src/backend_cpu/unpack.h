/* backend_cpu/unpack.h - the meaning of a panel, block by block and lane by lane, in plain C: used by level ref and by row gathers.
 *
 * A block of one row means: value i = (float)(D sc) code + M' where integers are exact (docs/arithmetic.md, quantised linear). */
#ifndef RH_CPU_UNPACK_H
#define RH_CPU_UNPACK_H

#include "backend_cpu/pack.h"

enum unpack_min { UNPACK_MIN_NONE, UNPACK_MIN_FLOAT, UNPACK_MIN_INT };

struct unpack_block {
    int16_t c[32];       /* codes with their offset taken off */
    float d;             /* D */
    int sc[2];           /* integer scales of the two halves; 1 when the format has none */
    enum unpack_min min;
    float m;             /* FLOAT: M, added as it is.  INT: -dmin, times mn */
    int mn[2];
};

static const int8_t unpack_iq4[16] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};
static const int8_t unpack_fp4[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12}; /* doubled */

static inline float unpack_f16(const unsigned char *scales, uint32_t lane)
{
    return dtype_f16_to_f32(pack_u16(scales + 2 * lane));
}
static inline float unpack_scale(const unsigned char *scales, enum cpu_scale t, uint32_t lane)
{
    float f;
    if (t == CPU_SCALE_F16)
        return unpack_f16(scales, lane);
    if (t == CPU_SCALE_BF16)
        return dtype_bf16_to_f32(pack_u16(scales + 2 * lane));
    memcpy(&f, scales + 4 * lane, sizeof f);
    return f;
}
static inline float unpack_e8m0_half(uint8_t e)
{
    union {
        uint32_t u;
        float f;
    } v = {e < 2 ? 0x00200000u << e : (uint32_t)(e - 1) << 23};
    return v.f;
}

static inline void unpack_scales(const struct cpu_panel *p, const unsigned char *unit, const unsigned char *block, uint32_t lane,
                                 struct unpack_block *u)
{
    switch (p->layout) {
    case CPU_LAYOUT_Q4_1:
    case CPU_LAYOUT_Q5_1:
        u->min = UNPACK_MIN_FLOAT;
        u->m = unpack_f16(unit + 32, lane);
        break;
    case CPU_LAYOUT_Q2_K:
        u->min = UNPACK_MIN_INT;
        u->m = -unpack_f16(unit + 32, lane);
        for (int h = 0; h < 2; h++)
            u->sc[h] = block[16 * h + lane] & 15, u->mn[h] = block[16 * h + lane] >> 4;
        break;
    case CPU_LAYOUT_Q3_K:
    case CPU_LAYOUT_Q6_K:
        u->sc[0] = (int8_t)block[lane];
        u->sc[1] = (int8_t)block[16 + lane];
        break;
    case CPU_LAYOUT_Q4_K:
    case CPU_LAYOUT_Q5_K:
        u->min = UNPACK_MIN_FLOAT;
        u->m = -(unpack_f16(unit + 32, lane) * (float)block[16 + lane]);
        u->d *= (float)block[lane];
        break;
    case CPU_LAYOUT_IQ4_XS:
        u->d *= (float)(int8_t)block[lane];
        break;
    case CPU_LAYOUT_MXFP4:
        u->d = unpack_e8m0_half(unit[lane]);
        break;
    case CPU_LAYOUT_MLX2:
    case CPU_LAYOUT_MLX3:
    case CPU_LAYOUT_MLX4:
    case CPU_LAYOUT_MLX5:
    case CPU_LAYOUT_MLX6:
    case CPU_LAYOUT_MLX8:
        u->min = UNPACK_MIN_FLOAT;
        u->d = unpack_scale(unit, p->scale, lane);
        u->m = unpack_scale(unit + p->unit_head / 2, p->scale, lane);
        break;
    default:
        break;
    }
}

static inline int unpack_code(enum cpu_layout layout, uint8_t c)
{
    switch (layout) {
    case CPU_LAYOUT_Q4_0:
        return c - 8;
    case CPU_LAYOUT_Q5_0:
        return c - 16;
    case CPU_LAYOUT_Q3_K:
        return c - 4;
    case CPU_LAYOUT_Q6_K:
        return c - 32;
    case CPU_LAYOUT_Q8_0:
        return (int8_t)c;
    case CPU_LAYOUT_MLX8:
        return (int8_t)c + 128;
    case CPU_LAYOUT_IQ4_NL:
    case CPU_LAYOUT_IQ4_XS:
        return unpack_iq4[c];
    case CPU_LAYOUT_MXFP4:
        return unpack_fp4[c];
    default:
        return c;
    }
}

/* Block b of one lane of a panel. */
static inline void unpack_lane(const struct cpu_panel *p, const unsigned char *panel, uint32_t b, uint32_t lane, struct unpack_block *u)
{
    const unsigned char *unit = panel + (size_t)(b / p->unit) * p->unit_bytes;
    const unsigned char *block = unit + p->unit_head + (size_t)(b % p->unit) * p->block_bytes;
    struct pack_codes k;
    pack_get_body(block + p->block_head, p->bits, lane, &k);
    uint8_t bytes[32];
    memcpy(bytes, &k, sizeof bytes);
    *u = (struct unpack_block){.d = unpack_f16(unit, lane), .sc = {1, 1}};
    for (int i = 0; i < 32; i++)
        u->c[i] = (int16_t)unpack_code(p->layout, bytes[i]);
    unpack_scales(p, unit, block, lane, u);
}

/* Its 32 values: D sc is exact in f32, so each has the roundings of the type's definition: one per product and one per sum. */
static inline void unpack_values(const struct unpack_block *u, float *dst)
{
    for (int i = 0; i < 32; i++) {
        float v = u->d * (float)u->sc[i / 16] * (float)u->c[i];
        if (u->min == UNPACK_MIN_FLOAT)
            v = v + u->m;
        else if (u->min == UNPACK_MIN_INT)
            v = v + u->m * (float)u->mn[i / 16];
        dst[i] = v;
    }
}

#endif
