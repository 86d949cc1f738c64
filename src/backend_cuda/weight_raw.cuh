/* backend_cuda/weight_raw.cuh - rows as files have them, read on the device: a column's code, its scales, its value.
 *
 * The layouts are those of format/dtype_block.c, dtype_k.c, dtype_iq.c and dtype_weight.c, whose code is their definition; the op tests
 * compare every type with it.  raw_value has their operations and roundings. */
#ifndef RH_CUDA_WEIGHT_RAW_CUH
#define RH_CUDA_WEIGHT_RAW_CUH

#include "backend_cuda/device_math.cuh"
#include "backend_cuda/kernels.h"

/* One column of a row: value = book or (code - offset) times scale plus minimum. */
struct raw_column {
    uint32_t code;
    float d, m;     /* scale and minimum as factors of the file: d sc and m mn where there are two levels */
    float sc, mn;   /* 1 where there is one level */
};

static __device__ __forceinline__ float raw_f16(const uint8_t *p)
{
    return __half2float(__ushort_as_half((unsigned short)(p[0] | p[1] << 8)));
}

static __device__ __forceinline__ float raw_scale(const uint8_t *p, uint64_t i, uint32_t type)
{
    if (type == DTYPE_F32) {
        p += 4 * i;
        return __uint_as_float(p[0] | p[1] << 8 | p[2] << 16 | (uint32_t)p[3] << 24);
    }
    p += 2 * i;
    return type == DTYPE_F16 ? raw_f16(p) : __uint_as_float((uint32_t)(p[0] | p[1] << 8) << 16);
}

static __device__ __forceinline__ float raw_e8m0_half(uint32_t e)
{
    return __uint_as_float(e < 2 ? 0x00200000u << e : (e - 1) << 23);
}

static __device__ __forceinline__ int raw_iq4(uint32_t code)
{
    const int8_t book[16] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};
    return book[code & 15];
}
static __device__ __forceinline__ int raw_fp4(uint32_t code)
{
    const int8_t book[8] = {0, 1, 2, 3, 4, 6, 8, 12};
    return code & 8 ? -book[code & 7] : book[code & 7];
}

static __device__ __forceinline__ void raw_super(const uint8_t *s, uint32_t g, float *sc, float *mn)
{
    *sc = (float)(g < 4 ? s[g] & 63 : (s[g + 4] & 15) | (s[g - 4] >> 6) << 4);
    *mn = (float)(g < 4 ? s[g + 4] & 63 : s[g + 4] >> 4 | (s[g] >> 6) << 4);
}

static __device__ __forceinline__ uint32_t raw_nibble(const uint8_t *q, uint32_t j) /* of a block of 32 */
{
    return q[j & 15] >> (j >> 4 << 2) & 15;
}

static __device__ __forceinline__ raw_column raw_small(const cuda_raw &w, const uint8_t *row, uint32_t k)
{
    raw_column c = {0, 0, 0, 1, 1};
    uint32_t b = k / 32, j = k % 32;
    const uint8_t *p;
    switch (w.type) {
    case DTYPE_Q4_0:
    case DTYPE_IQ4_NL:
        p = row + b * 18;
        c.d = raw_f16(p), c.code = raw_nibble(p + 2, j);
        break;
    case DTYPE_Q4_1:
        p = row + b * 20;
        c.d = raw_f16(p), c.m = raw_f16(p + 2), c.code = raw_nibble(p + 4, j);
        break;
    case DTYPE_Q5_0:
        p = row + b * 22;
        c.d = raw_f16(p), c.code = raw_nibble(p + 6, j) | (uint32_t)(p[2 + j / 8] >> (j & 7) & 1) << 4;
        break;
    case DTYPE_Q5_1:
        p = row + b * 24;
        c.d = raw_f16(p), c.m = raw_f16(p + 2), c.code = raw_nibble(p + 8, j) | (uint32_t)(p[4 + j / 8] >> (j & 7) & 1) << 4;
        break;
    case DTYPE_Q8_0:
        p = row + b * 34;
        c.d = raw_f16(p), c.code = p[2 + j] ^ 128;
        break;
    case DTYPE_MXFP4:
        p = row + b * 17;
        if (w.split) {
            p = row + b * 16;
            c.code = p[j / 2] >> (j & 1) * 4 & 15;
            c.d = raw_e8m0_half(w.scales[(size_t)(row - w.data) / w.row_bytes * (w.cols / 32) + b]);
        } else {
            c.d = raw_e8m0_half(p[0]), c.code = raw_nibble(p + 1, j);
        }
        break;
    default: { /* MLX */
        uint64_t at = (uint64_t)k * w.bits;
        uint32_t shift = (uint32_t)at & 7, v = row[at >> 3];
        if (shift + w.bits > 8)
            v |= (uint32_t)row[(at >> 3) + 1] << 8;
        uint64_t g = (uint64_t)(row - w.data) / w.row_bytes * (w.cols / w.group) + k / w.group;
        c.code = v >> shift & ((1u << w.bits) - 1);
        c.d = raw_scale(w.scales, g, w.scale_type), c.m = raw_scale(w.biases, g, w.scale_type);
    }
    }
    return c;
}

static __device__ __forceinline__ raw_column raw_large(const cuda_raw &w, const uint8_t *row, uint32_t k)
{
    raw_column c = {0, 0, 0, 1, 1};
    uint32_t b = k / 256, i = k % 256, g;
    const uint8_t *p;
    switch (w.type) {
    case DTYPE_Q2_K:
        p = row + b * 84;
        c.d = raw_f16(p + 80), c.m = raw_f16(p + 82), c.sc = (float)(p[i / 16] & 15), c.mn = (float)(p[i / 16] >> 4);
        c.code = p[16 + i / 128 * 32 + i % 32] >> (i % 128 / 32 * 2) & 3;
        break;
    case DTYPE_Q3_K: {
        p = row + b * 110;
        g = i / 16;
        const uint8_t *s = p + 96;
        uint32_t low = g < 8 ? s[g] & 15 : s[g - 8] >> 4;
        c.d = raw_f16(p + 108);
        c.sc = (float)((int)(low | (s[8 + g % 4] >> (g / 4 * 2) & 3) << 4) - 32);
        c.code = (p[32 + i / 128 * 32 + i % 32] >> (i % 128 / 32 * 2) & 3) | (uint32_t)(p[i % 32] >> (i / 32) & 1) << 2;
        break;
    }
    case DTYPE_Q4_K:
        p = row + b * 144;
        g = i / 32;
        c.d = raw_f16(p), c.m = raw_f16(p + 2);
        raw_super(p + 4, g, &c.sc, &c.mn);
        c.code = p[16 + g / 2 * 32 + i % 32] >> (g % 2 * 4) & 15;
        break;
    case DTYPE_Q5_K:
        p = row + b * 176;
        g = i / 32;
        c.d = raw_f16(p), c.m = raw_f16(p + 2);
        raw_super(p + 4, g, &c.sc, &c.mn);
        c.code = (p[48 + g / 2 * 32 + i % 32] >> (g % 2 * 4) & 15) | (uint32_t)(p[16 + i % 32] >> g & 1) << 4;
        break;
    case DTYPE_IQ4_XS: { /* f16 d, u16 high scale bits, 4 bytes of low scale nibbles, 128 of codes */
        p = row + b * 136;
        g = i / 32;
        uint32_t low = p[4 + g / 2] >> (g & 1) * 4 & 15, high = (uint32_t)(p[2] | p[3] << 8) >> (2 * g) & 3;
        c.d = raw_f16(p), c.sc = (float)((int)(low | high << 4) - 32);
        c.code = raw_nibble(p + 8 + g * 16, i % 32);
        break;
    }
    default: { /* Q6_K */
        uint32_t half = i / 128, r = i % 128;
        p = row + b * 210;
        c.d = raw_f16(p + 208), c.sc = (float)(int8_t)p[192 + i / 16];
        c.code = (p[half * 64 + r % 64] >> (r / 64 * 4) & 15) | (uint32_t)(p[128 + half * 32 + r % 32] >> (r / 32 * 2) & 3) << 4;
    }
    }
    return c;
}

static __device__ __forceinline__ bool raw_is_large(uint32_t type)
{
    return type == DTYPE_Q2_K || type == DTYPE_Q3_K || type == DTYPE_Q4_K || type == DTYPE_Q5_K || type == DTYPE_Q6_K || type == DTYPE_IQ4_XS;
}
static __device__ __forceinline__ bool raw_is_float(uint32_t type)
{
    return type == DTYPE_F32 || type == DTYPE_F16 || type == DTYPE_BF16;
}

static __device__ __forceinline__ raw_column raw_at(const cuda_raw &w, const uint8_t *row, uint32_t k)
{
    return raw_is_large(w.type) ? raw_large(w, row, k) : raw_small(w, row, k);
}

static __device__ __forceinline__ float raw_value(const cuda_raw &w, const uint8_t *row, uint32_t k)
{
    if (raw_is_float(w.type))
        return raw_scale(row, k, w.type);
    raw_column c = raw_at(w, row, k);
    float d = c.d * c.sc, q = (float)c.code;
    switch (w.type) {
    case DTYPE_Q4_0:
        return d * (q - 8.0f);
    case DTYPE_Q5_0:
        return d * (q - 16.0f);
    case DTYPE_Q8_0:
        return d * (q - 128.0f);
    case DTYPE_Q6_K:
        return d * (q - 32.0f);
    case DTYPE_Q3_K:
        return d * (q - 4.0f);
    case DTYPE_IQ4_NL:
    case DTYPE_IQ4_XS:
        return d * (float)raw_iq4(c.code);
    case DTYPE_MXFP4:
        return d * (float)raw_fp4(c.code);
    case DTYPE_Q2_K:
    case DTYPE_Q4_K:
    case DTYPE_Q5_K:
        return d * q - c.m * c.mn;
    default: /* Q4_1, Q5_1, MLX */
        return d * q + c.m;
    }
}

#endif
