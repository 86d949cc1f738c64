/* format/dtype_k.c - the K types: 256 elements a block with two levels of scales.
 *
 * Layouts (d, dmin = f16):
 *   Q2_K  16 bytes (low nibble scale, high nibble minimum, of 16 elements), 64 bytes of 2-bit codes, d, dmin
 *   Q3_K  32 bytes of high bits, 64 bytes of 2-bit codes, 12 bytes of 16 six-bit scales, d
 *   Q4_K  d, dmin, 12 bytes of 8 six-bit scales and minima, 128 bytes of nibbles
 *   Q5_K  d, dmin, 12 bytes as Q4_K, 32 bytes of fifth bits, 128 bytes of nibbles
 *   Q6_K  128 bytes of low nibbles, 64 bytes of 2-bit high parts, 16 x i8 scales, d
 *   Q8_K  f32 d, 256 x i8, 16 x i16 sums (unused here)
 * Invariants: scale products are rounded to f32 first, then the element product, then the minimum is subtracted. */
#include "format/dtype_int.h"

void dtype_block_q2_k(const uint8_t *src, float *dst, size_t blocks)
{
    for (size_t b = 0; b < blocks; b++, src += 84, dst += 256) {
        const uint8_t *qs = src + 16;
        float d = rd_f16(src + 80), dmin = rd_f16(src + 82);
        for (int g = 0; g < 16; g++) { /* group g: elements 16 g .. 16 g + 15 */
            float dl = d * (float)(src[g] & 15), ml = dmin * (float)(src[g] >> 4);
            for (int j = 0; j < 16; j++) {
                int i = g * 16 + j, q = qs[i / 128 * 32 + i % 32] >> (i % 128 / 32 * 2) & 3;
                dst[i] = dl * (float)q - ml;
            }
        }
    }
}

/* 16 six-bit scales: low nibbles in bytes 0..7 (0-7 low, 8-15 high), two high bits in bytes 8..11. */
static int q3_scale(const uint8_t *s, int g)
{
    int low = g < 8 ? s[g] & 15 : s[g - 8] >> 4;
    return (low | (s[8 + g % 4] >> (g / 4 * 2) & 3) << 4) - 32;
}

void dtype_block_q3_k(const uint8_t *src, float *dst, size_t blocks)
{
    for (size_t b = 0; b < blocks; b++, src += 110, dst += 256) {
        const uint8_t *high = src, *qs = src + 32;
        float d = rd_f16(src + 108);
        for (int g = 0; g < 16; g++) {
            float dl = d * (float)q3_scale(src + 96, g);
            for (int j = 0; j < 16; j++) {
                int i = g * 16 + j, low = qs[i / 128 * 32 + i % 32] >> (i % 128 / 32 * 2) & 3;
                int bit = high[i % 32] >> (i / 32) & 1; /* 0 means minus 4 */
                dst[i] = dl * (float)(low - (bit ? 0 : 4));
            }
        }
    }
}

/* 8 six-bit scales and minima in 12 bytes: 0-3 in the low six bits of bytes 0-3 and 4-7; 4-7 as nibbles of bytes 8-11 with
 * their two high bits on top of bytes 0-3 and 4-7. */
static void k4_scale_min(const uint8_t *s, int g, int *scale, int *min)
{
    if (g < 4) {
        *scale = s[g] & 63;
        *min = s[g + 4] & 63;
    } else {
        *scale = (s[g + 4] & 15) | (s[g - 4] >> 6) << 4;
        *min = s[g + 4] >> 4 | (s[g] >> 6) << 4;
    }
}

void dtype_block_q4_k(const uint8_t *src, float *dst, size_t blocks)
{
    for (size_t b = 0; b < blocks; b++, src += 144, dst += 256) {
        float d = rd_f16(src), dmin = rd_f16(src + 2);
        for (int g = 0; g < 8; g++) {
            int sc, m;
            k4_scale_min(src + 4, g, &sc, &m);
            float dl = d * (float)sc, ml = dmin * (float)m;
            const uint8_t *q = src + 16 + g / 2 * 32;
            for (int j = 0; j < 32; j++)
                dst[g * 32 + j] = dl * (float)(q[j] >> (g % 2 * 4) & 15) - ml;
        }
    }
}

void dtype_block_q5_k(const uint8_t *src, float *dst, size_t blocks)
{
    for (size_t b = 0; b < blocks; b++, src += 176, dst += 256) {
        float d = rd_f16(src), dmin = rd_f16(src + 2);
        const uint8_t *high = src + 16;
        for (int g = 0; g < 8; g++) {
            int sc, m;
            k4_scale_min(src + 4, g, &sc, &m);
            float dl = d * (float)sc, ml = dmin * (float)m;
            const uint8_t *q = src + 48 + g / 2 * 32;
            for (int j = 0; j < 32; j++)
                dst[g * 32 + j] = dl * (float)((q[j] >> (g % 2 * 4) & 15) | (high[j] >> g & 1) << 4) - ml;
        }
    }
}

void dtype_block_q6_k(const uint8_t *src, float *dst, size_t blocks)
{
    for (size_t b = 0; b < blocks; b++, src += 210, dst += 256) {
        const uint8_t *low = src, *high = src + 128;
        float d = rd_f16(src + 208);
        for (int g = 0; g < 16; g++) {
            float dl = d * (float)(int8_t)src[192 + g];
            for (int j = 0; j < 16; j++) {
                int i = g * 16 + j, half = i / 128, r = i % 128;
                int lo = low[half * 64 + r % 64] >> (r / 64 * 4) & 15;
                int hi = high[half * 32 + r % 32] >> (r / 32 * 2) & 3;
                dst[i] = dl * (float)((lo | hi << 4) - 32);
            }
        }
    }
}

void dtype_block_q8_k(const uint8_t *src, float *dst, size_t blocks)
{
    for (size_t b = 0; b < blocks; b++, src += 292, dst += 256) {
        float d;
        memcpy(&d, src, sizeof d);
        for (int j = 0; j < 256; j++)
            dst[j] = d * (float)(int8_t)src[4 + j];
    }
}
