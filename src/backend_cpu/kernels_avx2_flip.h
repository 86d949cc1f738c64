/* backend_cpu/kernels_avx2_flip.h - level avx2: rows of a K plane turned into columns, 8 rows and 8 positions at a time.  Included by
 * kernels_avx2_rows.c only.  Bits move, nothing is computed. */
#ifndef RH_KERNELS_AVX2_FLIP_H
#define RH_KERNELS_AVX2_FLIP_H

#include "backend_cpu/kernels_avx2_product.h"

#define FLIP_TAIL(type)                                                     \
    for (; r < rows; r++)                                                   \
        for (uint32_t i = 0; i < KV_PAGE; i++)                              \
            ((type *)dst)[(size_t)i * rows + r] = ((const type *)src)[(size_t)r * KV_PAGE + i];

INLINE __m128i row_128(const void *src, size_t at_bytes)
{
    return _mm_loadu_si128((const __m128i *)(const void *)((const char *)src + at_bytes));
}

INLINE void put_64(void *dst, size_t at_bytes, __m128i v)
{
    _mm_storel_epi64((__m128i *)(void *)((char *)dst + at_bytes), v);
}

INLINE void put_128(void *dst, size_t at_bytes, __m128i v)
{
    _mm_storeu_si128((__m128i *)(void *)((char *)dst + at_bytes), v);
}

/* what two vectors hold, in pairs: a0 b0 a1 b1 .. (low half, high half) */
#define INTERLEAVE(bits, low, high, a, b)      \
    __m128i low = _mm_unpacklo_epi##bits(a, b); \
    __m128i high = _mm_unpackhi_epi##bits(a, b);

static void flip8(const void *src, void *dst, uint32_t rows)
{
    uint32_t r = 0;
    for (; r + 8 <= rows; r += 8)
        for (uint32_t i = 0; i < KV_PAGE; i += 16) { /* 16 positions: x.. the first 8, y.. the others */
            __m128i v[8];
            for (uint32_t k = 0; k < 8; k++)
                v[k] = row_128(src, (size_t)(r + k) * KV_PAGE + i);
            INTERLEAVE(8, x01, y01, v[0], v[1])
            INTERLEAVE(8, x23, y23, v[2], v[3])
            INTERLEAVE(8, x45, y45, v[4], v[5])
            INTERLEAVE(8, x67, y67, v[6], v[7])
            INTERLEAVE(16, xa, xb, x01, x23)
            INTERLEAVE(16, xc, xd, x45, x67)
            INTERLEAVE(16, ya, yb, y01, y23)
            INTERLEAVE(16, yc, yd, y45, y67)
            INTERLEAVE(32, p0, p2, xa, xc)
            INTERLEAVE(32, p4, p6, xb, xd)
            INTERLEAVE(32, p8, p10, ya, yc)
            INTERLEAVE(32, p12, p14, yb, yd)
            const __m128i pairs[8] = {p0, p2, p4, p6, p8, p10, p12, p14};
            for (uint32_t k = 0; k < 8; k++) {
                put_64(dst, (size_t)(i + 2 * k) * rows + r, pairs[k]);
                put_64(dst, (size_t)(i + 2 * k + 1) * rows + r, _mm_unpackhi_epi64(pairs[k], pairs[k]));
            }
        }
    FLIP_TAIL(uint8_t)
}

static void flip16(const void *src, void *dst, uint32_t rows)
{
    uint32_t r = 0;
    for (; r + 8 <= rows; r += 8)
        for (uint32_t i = 0; i < KV_PAGE; i += 8) {
            __m128i v[8];
            for (uint32_t k = 0; k < 8; k++)
                v[k] = row_128(src, 2 * ((size_t)(r + k) * KV_PAGE + i));
            INTERLEAVE(16, a0, a4, v[0], v[1])
            INTERLEAVE(16, b0, b4, v[2], v[3])
            INTERLEAVE(16, c0, c4, v[4], v[5])
            INTERLEAVE(16, d0, d4, v[6], v[7])
            INTERLEAVE(32, e0, e2, a0, b0)
            INTERLEAVE(32, f0, f2, c0, d0)
            INTERLEAVE(32, e4, e6, a4, b4)
            INTERLEAVE(32, f4, f6, c4, d4)
            INTERLEAVE(64, p0, p1, e0, f0)
            INTERLEAVE(64, p2, p3, e2, f2)
            INTERLEAVE(64, p4, p5, e4, f4)
            INTERLEAVE(64, p6, p7, e6, f6)
            const __m128i out[8] = {p0, p1, p2, p3, p4, p5, p6, p7};
            for (uint32_t k = 0; k < 8; k++)
                put_128(dst, 2 * ((size_t)(i + k) * rows + r), out[k]);
        }
    FLIP_TAIL(uint16_t)
}

static void flip32(const void *src, void *dst, uint32_t rows)
{
    uint32_t r = 0;
    for (; r + 4 <= rows; r += 4)
        for (uint32_t i = 0; i < KV_PAGE; i += 4) {
            __m128i v[4];
            for (uint32_t k = 0; k < 4; k++)
                v[k] = row_128(src, 4 * ((size_t)(r + k) * KV_PAGE + i));
            INTERLEAVE(32, a0, a2, v[0], v[1])
            INTERLEAVE(32, b0, b2, v[2], v[3])
            INTERLEAVE(64, p0, p1, a0, b0)
            INTERLEAVE(64, p2, p3, a2, b2)
            put_128(dst, 4 * ((size_t)i * rows + r), p0);
            put_128(dst, 4 * ((size_t)(i + 1) * rows + r), p1);
            put_128(dst, 4 * ((size_t)(i + 2) * rows + r), p2);
            put_128(dst, 4 * ((size_t)(i + 3) * rows + r), p3);
        }
    FLIP_TAIL(uint32_t)
}

#endif
