/* format/dtype_iq.c - the IQ types of 256 elements: rows of a code book, signs, and small scales.
 *
 * Layouts (d = f16 unless said):
 *   IQ2_XXS d, 8 x {4 book indices u8, u32: four 7-bit sign words, top nibble scale}
 *   IQ2_XS  d, 32 x u16 {9-bit index, 7-bit sign word}, 16 nibble scales
 *   IQ2_S   d, 32 low index bytes, 32 sign bytes, 8 bytes of 2-bit high index parts, 16 nibble scales
 *   IQ3_XXS d, 64 index bytes (4 elements each), 8 x u32 as in IQ2_XXS
 *   IQ3_S   d, 64 low index bytes, 8 bytes of ninth bits, 32 sign bytes, 8 nibble scales
 *   IQ1_S   d, 32 low index bytes, 8 x u16 {four 3-bit high parts, 3-bit scale, sign of the offset}
 *   IQ1_M   32 low index bytes, 16 bytes of nibbles {3-bit high part, sign of the offset}, 4 x u16: 12 bits are four 3-bit
 *           scales, the top nibbles together are d
 *   IQ4_XS  d, u16 of 2-bit high scale parts, 4 bytes of low nibbles, 128 bytes of nibbles through the IQ4_NL table
 * Invariants: products in the order of the types' definition; all are exact in f32 while d is finite. */
#include "format/dtype_int.h"

static const float iq2_values[4] = {8, 25, 43, 0}; /* code 3 does not occur in the books */
static const float iq3xxs_values[16] = {4, 12, 20, 28, 36, 44, 52, 62};
static const float iq3s_values[16] = {1, 3, 5, 7, 9, 11, 13, 15};

/* Seven sign bits are stored; the eighth makes their number even. */
static uint8_t sign_byte(uint32_t seven)
{
    return (uint8_t)(seven | (uint32_t)(__builtin_popcount(seven) & 1) << 7);
}

static float sign_of(uint8_t signs, int j)
{
    return signs >> j & 1 ? -1.0f : 1.0f;
}

static void put8(float *dst, float db, uint16_t row, uint8_t signs)
{
    for (int j = 0; j < 8; j++)
        dst[j] = db * iq2_values[row >> (2 * j) & 3] * sign_of(signs, j);
}

static void put4(float *dst, float db, const float *values, uint16_t row, uint8_t signs)
{
    for (int j = 0; j < 4; j++)
        dst[j] = db * values[row >> (4 * j) & 15] * sign_of(signs, j);
}

void dtype_block_iq2_xxs(const uint8_t *src, float *dst, size_t blocks)
{
    for (size_t b = 0; b < blocks; b++, src += 66) {
        float d = rd_f16(src);
        for (int g = 0; g < 8; g++) {
            const uint8_t *q = src + 2 + g * 8;
            uint32_t w = rd_u32(q + 4);
            float db = d * (0.5f + (float)(w >> 28)) * 0.25f;
            for (int k = 0; k < 4; k++, dst += 8)
                put8(dst, db, dtype_iq2xxs_book[q[k]], sign_byte(w >> (7 * k) & 127));
        }
    }
}

void dtype_block_iq2_xs(const uint8_t *src, float *dst, size_t blocks)
{
    for (size_t b = 0; b < blocks; b++, src += 74) {
        float d = rd_f16(src);
        for (int k = 0; k < 32; k++, dst += 8) {
            uint16_t q = rd_u16(src + 2 + 2 * k);
            float db = d * (0.5f + (float)(src[66 + k / 4] >> (k / 2 % 2 * 4) & 15)) * 0.25f;
            put8(dst, db, dtype_iq2xs_book[q & 511], sign_byte(q >> 9));
        }
    }
}

void dtype_block_iq2_s(const uint8_t *src, float *dst, size_t blocks)
{
    for (size_t b = 0; b < blocks; b++, src += 82) {
        float d = rd_f16(src);
        for (int k = 0; k < 32; k++, dst += 8) {
            int index = src[2 + k] | (src[66 + k / 4] >> (k % 4 * 2) & 3) << 8;
            float db = d * (0.5f + (float)(src[74 + k / 4] >> (k / 2 % 2 * 4) & 15)) * 0.25f;
            put8(dst, db, dtype_iq2s_book[index], src[34 + k]);
        }
    }
}

void dtype_block_iq3_xxs(const uint8_t *src, float *dst, size_t blocks)
{
    for (size_t b = 0; b < blocks; b++, src += 98) {
        float d = rd_f16(src);
        for (int g = 0; g < 8; g++) {
            uint32_t w = rd_u32(src + 66 + 4 * g);
            float db = d * (0.5f + (float)(w >> 28)) * 0.5f;
            for (int k = 0; k < 8; k++, dst += 4) {
                uint8_t signs = (uint8_t)(sign_byte(w >> (k / 2 * 7) & 127) >> (k % 2 * 4));
                put4(dst, db, iq3xxs_values, dtype_iq3xxs_book[src[2 + g * 8 + k]], signs);
            }
        }
    }
}

void dtype_block_iq3_s(const uint8_t *src, float *dst, size_t blocks)
{
    for (size_t b = 0; b < blocks; b++, src += 110) {
        float d = rd_f16(src);
        for (int k = 0; k < 64; k++, dst += 4) {
            int index = src[2 + k] | (src[66 + k / 8] >> (k % 8) & 1) << 8;
            float db = d * (float)(1 + 2 * (src[106 + k / 16] >> (k / 8 % 2 * 4) & 15));
            put4(dst, db, iq3s_values, dtype_iq3s_book[index], (uint8_t)(src[74 + k / 2] >> (k % 2 * 4)));
        }
    }
}

static void put_iq1(float *dst, float dl, uint16_t row, float delta)
{
    for (int j = 0; j < 8; j++)
        dst[j] = dl * ((float)((row >> (2 * j) & 3) - 1) + delta);
}

void dtype_block_iq1_s(const uint8_t *src, float *dst, size_t blocks)
{
    for (size_t b = 0; b < blocks; b++, src += 50) {
        float d = rd_f16(src);
        for (int k = 0; k < 32; k++, dst += 8) {
            uint16_t h = rd_u16(src + 34 + k / 4 * 2);
            float dl = d * (float)(2 * (h >> 12 & 7) + 1);
            int index = src[2 + k] | (h >> (k % 4 * 3) & 7) << 8;
            put_iq1(dst, dl, dtype_iq1s_book[index], h & 0x8000 ? -0.125f : 0.125f);
        }
    }
}

void dtype_block_iq1_m(const uint8_t *src, float *dst, size_t blocks)
{
    for (size_t b = 0; b < blocks; b++, src += 56) {
        const uint8_t *scales = src + 48;
        uint16_t bits = 0;
        for (int i = 0; i < 4; i++)
            bits |= (uint16_t)((rd_u16(scales + 2 * i) >> 12) << (4 * i));
        float d = dtype_f16_to_f32(bits);
        for (int k = 0; k < 32; k++, dst += 8) {
            int high = src[32 + k / 2] >> (k % 2 * 4);
            float dl = d * (float)(2 * (rd_u16(scales + k / 8 * 2) >> (k / 2 % 4 * 3) & 7) + 1);
            put_iq1(dst, dl, dtype_iq1s_book[src[k] | (high & 7) << 8], high & 8 ? -0.125f : 0.125f);
        }
    }
}

void dtype_block_iq4_xs(const uint8_t *src, float *dst, size_t blocks)
{
    for (size_t b = 0; b < blocks; b++, src += 136, dst += 256) {
        float d = rd_f16(src);
        uint16_t high = rd_u16(src + 2);
        for (int g = 0; g < 8; g++) {
            int scale = (src[4 + g / 2] >> (g % 2 * 4) & 15) | (high >> (2 * g) & 3) << 4;
            float dl = d * (float)(scale - 32);
            const uint8_t *q = src + 8 + 16 * g;
            for (int j = 0; j < 16; j++) {
                dst[g * 32 + j] = dl * (float)dtype_iq4_values[q[j] & 15];
                dst[g * 32 + j + 16] = dl * (float)dtype_iq4_values[q[j] >> 4];
            }
        }
    }
}
