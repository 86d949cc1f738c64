/* backend_cpu/panel.h - how weights and quantised activations lie in memory.
 *
 * A weight is cut in panels of 16 rows (the last one padded with zero rows), one linear stream each.  A panel is cols / (32 unit)
 * units; a unit is a header (what 32 * unit columns share) and `unit` blocks of 32 columns (a block header and a body).
 * Float layouts: [cols][16] elements (BF16: dword i of a column = row i | row i + 8 << 16).
 * Bodies hold codes in planes over 64 byte lanes (lane 4 r + j: row r, element j of a group of 4 columns; 8 groups g per block):
 *   nibble plane  [4][64]: byte of g = code of group g | code of group g + 4 << 4
 *   byte plane    [8][64]: the code itself
 *   pair plane    [2][64]: 2 bits of groups 4 h .. 4 h + 3 at bit 2 (g & 3)
 *   bit plane     [64]:    bit g = 1 bit of group g
 *   six planes    [6][64]: byte of g = code of group g, for g of 0 1 2 4 5 6 | 2 bits of group 3 or 7 << 6, lowest bits first
 * Scales lie as [16 rows] vectors in headers.  Integers and halves are little-endian. */
#ifndef RH_CPU_PANEL_H
#define RH_CPU_PANEL_H

#include <stddef.h>
#include <stdint.h>

enum { CPU_PANEL_ROWS = 16 };

/* name, unit header bytes, block header bytes, body bytes, blocks per unit (0: float).  MLX headers depend on group and scale type. */
#define CPU_LAYOUTS(X)                                                          \
    X(F32, 0, 0, 0, 0)                                                          \
    X(F16, 0, 0, 0, 0)                                                          \
    X(BF16, 0, 0, 0, 0)                                                         \
    X(Q4_0, 32, 0, 256, 1)   /* d f16; nibble, w = d (c - 8) */                 \
    X(Q4_1, 64, 0, 256, 1)   /* d, m f16; nibble, w = d c + m */                \
    X(Q5_0, 32, 0, 320, 1)   /* d f16; nibble + bit, w = d (c - 16) */          \
    X(Q5_1, 64, 0, 320, 1)   /* d, m f16; nibble + bit */                       \
    X(Q8_0, 32, 0, 512, 1)   /* d f16; byte (signed) */                         \
    X(Q2_K, 64, 32, 128, 8)  /* d, dmin f16; [2][16] sc | mn << 4; pair */      \
    X(Q3_K, 32, 32, 192, 8)  /* d f16; [2][16] sc i8; pair + bit, c - 4 */      \
    X(Q4_K, 64, 32, 256, 8)  /* d, dmin f16; sc u8, mn u8; nibble */            \
    X(Q5_K, 64, 32, 320, 8)  /* d, dmin f16; sc u8, mn u8; nibble + bit */      \
    X(Q6_K, 32, 32, 384, 8)  /* d f16; [2][16] sc i8; six, c - 32 */       \
    X(IQ4_NL, 32, 0, 256, 1) /* d f16; nibble = index of the code book */       \
    X(IQ4_XS, 32, 16, 256, 8)/* d f16; ls i8; nibble = index */                 \
    X(MXFP4, 16, 0, 256, 1)  /* e8m0 u8; nibble = index */                      \
    X(MLX2, 0, 0, 128, 1)    /* scale, bias; pair */                            \
    X(MLX3, 0, 0, 192, 1)    /* pair + bit */                                   \
    X(MLX4, 0, 0, 256, 1)    /* nibble */                                       \
    X(MLX5, 0, 0, 320, 1)    /* nibble + bit */                                 \
    X(MLX6, 0, 0, 384, 1)    /* six */                                          \
    X(MLX8, 0, 0, 512, 1)    /* byte: c - 128, signed */

enum cpu_layout {
#define CPU_LAYOUT_ENUM(name, unit_head, block_head, body, unit) CPU_LAYOUT_##name,
    CPU_LAYOUTS(CPU_LAYOUT_ENUM)
#undef CPU_LAYOUT_ENUM
    CPU_LAYOUT_COUNT
};

enum cpu_scale { CPU_SCALE_F16, CPU_SCALE_BF16, CPU_SCALE_F32 }; /* of MLX headers */

/* geometry of one weight's panels */
struct cpu_panel {
    enum cpu_layout layout;
    enum cpu_scale scale;  /* MLX only */
    uint32_t cols;
    uint32_t unit;         /* 32-blocks per unit */
    uint32_t unit_head;    /* bytes */
    uint32_t block_head;   /* bytes */
    uint32_t bits;         /* of a code: 64 body bytes each */
    uint32_t block_bytes;  /* block header + body */
    uint32_t unit_bytes;   /* unit_head + unit * block_bytes */
};

/* One block of 32 quantised activations: x ~ s q. */
struct cpu_act {
    int8_t q[32];      /* -127 .. 127 */
    float s;           /* max|x| / 127, or 0 */
    float ss;          /* s * (float)(sum of q) */
    int16_t pair[2];   /* sum of q[4 g], q[4 g + 1] over all g; the same of q[4 g + 2], q[4 g + 3] */
    int16_t pair_lo[2];/* the same over g < 4 */
    int16_t pair_hi[2];/* over g >= 4 */
    int16_t half[2];   /* sum of q[0..15], of q[16..31] */
};

/* Activations of many rows lie chunk by chunk, [cols / 256][rows][8 blocks], as the kernels read them: rows of wide inputs would
 * fall on one another in the first cache. */
enum { CPU_ACT_CHUNK = 8, CPU_ACT_CHUNK_BYTES = CPU_ACT_CHUNK * sizeof(struct cpu_act) };

#endif
