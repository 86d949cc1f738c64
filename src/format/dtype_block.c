/* format/dtype_block.c - block types with 32 elements a block, and the ternary types: bytes to f32.
 *
 * Layouts (little-endian; d, m = f16):  Q4_0 d, 16 bytes of nibbles (element j low in byte j, element j + 16 high)
 *   Q4_1 d m nibbles   Q5_0 d, u32 of fifth bits, nibbles   Q5_1 d m u32 nibbles   Q8_0 d, 32 x i8   Q8_1 d, sum, 32 x i8
 *   IQ4_NL d, nibbles through a table   MXFP4 E8M0 scale, nibbles of E2M1
 *   TQ1_0 48 + 4 bytes of base-3 digits, d   TQ2_0 64 bytes of 2-bit digits, d
 * Invariants: the operations and their order are those of the types' definition: one f32 rounding per * and +. */
#include "format/dtype_int.h"

const int8_t dtype_iq4_values[16] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};
const int8_t dtype_fp4_doubled[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};

float dtype_e8m0_half(uint8_t e)
{
    uint32_t bits = e < 2 ? 0x00200000u << e : (uint32_t)(e - 1) << 23;
    float f;
    memcpy(&f, &bits, sizeof f);
    return f;
}

void dtype_block_q4_0(const uint8_t *src, float *dst, size_t blocks)
{
    for (size_t b = 0; b < blocks; b++, src += 18, dst += 32) {
        float d = rd_f16(src);
        for (int j = 0; j < 16; j++) {
            dst[j] = d * (float)((src[2 + j] & 15) - 8);
            dst[j + 16] = d * (float)((src[2 + j] >> 4) - 8);
        }
    }
}

void dtype_block_q4_1(const uint8_t *src, float *dst, size_t blocks)
{
    for (size_t b = 0; b < blocks; b++, src += 20, dst += 32) {
        float d = rd_f16(src), m = rd_f16(src + 2);
        for (int j = 0; j < 16; j++) {
            dst[j] = d * (float)(src[4 + j] & 15) + m;
            dst[j + 16] = d * (float)(src[4 + j] >> 4) + m;
        }
    }
}

void dtype_block_q5_0(const uint8_t *src, float *dst, size_t blocks)
{
    for (size_t b = 0; b < blocks; b++, src += 22, dst += 32) {
        float d = rd_f16(src);
        uint32_t high = rd_u32(src + 2);
        for (int j = 0; j < 16; j++) {
            int lo = (src[6 + j] & 15) | (int)(high >> j & 1) << 4;
            int hi = (src[6 + j] >> 4) | (int)(high >> (j + 16) & 1) << 4;
            dst[j] = d * (float)(lo - 16);
            dst[j + 16] = d * (float)(hi - 16);
        }
    }
}

void dtype_block_q5_1(const uint8_t *src, float *dst, size_t blocks)
{
    for (size_t b = 0; b < blocks; b++, src += 24, dst += 32) {
        float d = rd_f16(src), m = rd_f16(src + 2);
        uint32_t high = rd_u32(src + 4);
        for (int j = 0; j < 16; j++) {
            int lo = (src[8 + j] & 15) | (int)(high >> j & 1) << 4;
            int hi = (src[8 + j] >> 4) | (int)(high >> (j + 16) & 1) << 4;
            dst[j] = d * (float)lo + m;
            dst[j + 16] = d * (float)hi + m;
        }
    }
}

void dtype_block_q8_0(const uint8_t *src, float *dst, size_t blocks)
{
    for (size_t b = 0; b < blocks; b++, src += 34, dst += 32) {
        float d = rd_f16(src);
        for (int j = 0; j < 32; j++)
            dst[j] = (float)(int8_t)src[2 + j] * d;
    }
}

void dtype_block_q8_1(const uint8_t *src, float *dst, size_t blocks)
{
    for (size_t b = 0; b < blocks; b++, src += 36, dst += 32) {
        float d = rd_f16(src);
        for (int j = 0; j < 32; j++)
            dst[j] = (float)(int8_t)src[4 + j] * d;
    }
}

void dtype_block_iq4_nl(const uint8_t *src, float *dst, size_t blocks)
{
    for (size_t b = 0; b < blocks; b++, src += 18, dst += 32) {
        float d = rd_f16(src);
        for (int j = 0; j < 16; j++) {
            dst[j] = d * (float)dtype_iq4_values[src[2 + j] & 15];
            dst[j + 16] = d * (float)dtype_iq4_values[src[2 + j] >> 4];
        }
    }
}

void dtype_block_mxfp4(const uint8_t *src, float *dst, size_t blocks)
{
    for (size_t b = 0; b < blocks; b++, src += 17, dst += 32) {
        float half = dtype_e8m0_half(src[0]);
        for (int j = 0; j < 16; j++) {
            dst[j] = half * (float)dtype_fp4_doubled[src[1 + j] & 15];
            dst[j + 16] = half * (float)dtype_fp4_doubled[src[1 + j] >> 4];
        }
    }
}

/* A byte holds base-3 digits as a fraction of 256: multiplying by 3^k (mod 256) brings digit k to the top. */
static float ternary(uint8_t byte, int power, float d)
{
    static const uint8_t pow3[5] = {1, 3, 9, 27, 81};
    uint8_t q = (uint8_t)(byte * pow3[power]);
    return d * (float)((q * 3 >> 8) - 1);
}

void dtype_block_tq1_0(const uint8_t *src, float *dst, size_t blocks)
{
    for (size_t b = 0; b < blocks; b++, src += 54, dst += 256) {
        float d = rd_f16(src + 52);
        for (int k = 0; k < 5; k++) {
            for (int j = 0; j < 32; j++)
                dst[k * 32 + j] = ternary(src[j], k, d);
            for (int j = 0; j < 16; j++)
                dst[160 + k * 16 + j] = ternary(src[32 + j], k, d);
        }
        for (int k = 0; k < 4; k++)
            for (int j = 0; j < 4; j++)
                dst[240 + k * 4 + j] = ternary(src[48 + j], k, d);
    }
}

void dtype_block_tq2_0(const uint8_t *src, float *dst, size_t blocks)
{
    for (size_t b = 0; b < blocks; b++, src += 66, dst += 256) {
        float d = rd_f16(src + 64);
        for (int i = 0; i < 256; i++) /* groups of 128: four planes of 32 */
            dst[i] = d * (float)((src[i / 128 * 32 + i % 32] >> (i % 128 / 32 * 2) & 3) - 1);
    }
}
