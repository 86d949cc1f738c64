/* backend_cpu/pack_mlx.c - MLX affine weights to panel units: a unit is one group.
 *
 * Codes are one stream of bits per row, lowest bit first.  8-bit codes are stored as c - 128 (signed), the others as they are. */
#include "backend_cpu/pack.h"

/* 32 codes of `bits` bits from 4 * bits bytes. */
static void codes_get(const unsigned char *s, uint32_t bits, struct pack_codes *k)
{
    unsigned char c[32] = {0};
    uint32_t mask = (1u << bits) - 1, have = 0, n = 0;
    uint64_t acc = 0;
    for (uint32_t i = 0; i < bits; i++) {
        acc |= (uint64_t)pack_u32(s + 4 * i) << have;
        have += 32;
        for (; have >= bits && n < 32; have -= bits, acc >>= bits)
            c[n++] = (unsigned char)(acc & mask);
    }
    memcpy(k, c, sizeof *k);
}

static void put_scales(unsigned char *scales, uint32_t lane, const unsigned char *const *from, enum cpu_scale type)
{
    size_t n = type == CPU_SCALE_F32 ? 4 : 2;
    for (uint32_t i = 0; i < PACK_ROWS; i++)
        memcpy(scales + n * (lane + i), from[i], n);
}

static void unit_mlx(const struct pack_unit *u)
{
    uint32_t bits = u->src->bits, flip = bits == 8 ? 0x80808080u : 0;
    put_scales(u->out, u->lane, u->scales, u->p->scale);
    put_scales(u->out + u->p->unit_head / 2, u->lane, u->biases, u->p->scale);
    for (uint32_t b = 0; b < u->p->unit; b++) {
        struct pack_block k;
        for (uint32_t i = 0; i < PACK_ROWS; i++) {
            struct pack_codes one;
            codes_get(u->data[i] + b * 4 * bits, bits, &one);
            for (int g = 0; g < 8; g++)
                k.c[g][i] = one.c[g] ^ flip;
        }
        pack_put_body(u->out + u->p->unit_head + b * u->p->block_bytes, bits, u->lane, &k);
    }
}

struct pack_type pack_mlx_type(uint32_t bits)
{
    static const enum cpu_layout layouts[9] = {[2] = CPU_LAYOUT_MLX2, [3] = CPU_LAYOUT_MLX3, [4] = CPU_LAYOUT_MLX4,
                                               [5] = CPU_LAYOUT_MLX5, [6] = CPU_LAYOUT_MLX6, [8] = CPU_LAYOUT_MLX8};
    if (bits > 8 || !layouts[bits])
        return (struct pack_type){0};
    return (struct pack_type){true, layouts[bits], unit_mlx};
}
