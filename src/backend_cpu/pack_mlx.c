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

static void put_scale(unsigned char *scales, uint32_t lane, const void *from, size_t at, enum cpu_scale type)
{
    size_t n = type == CPU_SCALE_F32 ? 4 : 2;
    memcpy(scales + n * lane, (const unsigned char *)from + n * at, n);
}

static void unit_mlx(const struct weight_src *src, const struct cpu_panel *p, uint32_t row, uint32_t at, uint32_t lane, unsigned char *u)
{
    size_t group = (size_t)row * (src->cols / src->group) + at;
    put_scale(u, lane, src->scales, group, p->scale);
    put_scale(u + p->unit_head / 2, lane, src->biases, group, p->scale);
    const unsigned char *s = (const unsigned char *)src->data + row * src->row_bytes + (size_t)at * p->unit * 4 * src->bits;
    for (uint32_t b = 0; b < p->unit; b++, s += 4 * src->bits) {
        struct pack_codes k;
        codes_get(s, src->bits, &k);
        for (int g = 0; g < 8 && src->bits == 8; g++)
            k.c[g] ^= 0x80808080u;
        pack_put_body(u + p->unit_head + b * p->block_bytes, src->bits, lane, &k);
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
