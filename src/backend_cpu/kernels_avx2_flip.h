/* backend_cpu/kernels_avx2_flip.h - level avx2: rows of a K plane turned into columns, a tile of rows and positions at a time.  Included by
 * kernels_avx2_rows.c only.  Bits move, nothing is computed.
 *
 * One step interleaves vector k with vector k + n / 2: the topmost bit of an element's row becomes the lowest bit of its place.  After as
 * many steps as a row's number has bits, places are rows and vectors are positions. */
#ifndef RH_KERNELS_AVX2_FLIP_H
#define RH_KERNELS_AVX2_FLIP_H

#include "backend_cpu/kernels_avx2_product.h"

#include <string.h>

#define FLIP_STEP(bits, n, v)                                          \
    {                                                                  \
        __m128i t[n];                                                  \
        _Pragma("GCC unroll 4") for (uint32_t k = 0; k < (n) / 2; k++) \
        {                                                              \
            t[2 * k] = _mm_unpacklo_epi##bits(v[k], v[k + (n) / 2]);   \
            t[2 * k + 1] = _mm_unpackhi_epi##bits(v[k], v[k + (n) / 2]); \
        }                                                              \
        memcpy(v, t, sizeof t);                                        \
    }

/* `n` rows and as many positions as a vector holds; the rows behind the last whole tile one by one */
#define FLIP(name, bits, n, STEPS, put)                                                                             \
    static void name(const void *src, void *dst, uint32_t rows)                                                     \
    {                                                                                                               \
        uint32_t r = 0;                                                                                             \
        for (; r + (n) <= rows; r += (n))                                                                           \
            for (uint32_t i = 0; i < KV_PAGE; i += 128 / (bits)) {                                                  \
                __m128i v[n];                                                                                       \
                _Pragma("GCC unroll 8") for (uint32_t k = 0; k < (n); k++) v[k] =                                   \
                    _mm_loadu_si128((const __m128i *)(const void *)((const uint##bits##_t *)src + (size_t)(r + k) * KV_PAGE + i)); \
                STEPS(bits, n, v)                                                                                   \
                _Pragma("GCC unroll 8") for (uint32_t k = 0; k < (n); k++)                                          \
                    put((uint##bits##_t *)dst + ((size_t)i + k * (128 / (bits) / (n))) * rows + r, v[k], rows);     \
            }                                                                                                       \
        for (; r < rows; r++)                                                                                       \
            for (uint32_t i = 0; i < KV_PAGE; i++)                                                                  \
                ((uint##bits##_t *)dst)[(size_t)i * rows + r] = ((const uint##bits##_t *)src)[(size_t)r * KV_PAGE + i]; \
    }
#define FLIP_STEPS_2(bits, n, v) FLIP_STEP(bits, n, v) FLIP_STEP(bits, n, v)
#define FLIP_STEPS_3(bits, n, v) FLIP_STEPS_2(bits, n, v) FLIP_STEP(bits, n, v)

INLINE void put_position(void *at, __m128i v, uint32_t rows)
{
    (void)rows;
    _mm_storeu_si128((__m128i *)at, v);
}

/* eight bytes each of two positions */
INLINE void put_two_positions(uint8_t *at, __m128i v, uint32_t rows)
{
    _mm_storel_epi64((__m128i *)(void *)at, v);
    _mm_storel_epi64((__m128i *)(void *)(at + rows), _mm_unpackhi_epi64(v, v));
}

FLIP(flip8, 8, 8, FLIP_STEPS_3, put_two_positions)
FLIP(flip16, 16, 8, FLIP_STEPS_3, put_position)
FLIP(flip32, 32, 4, FLIP_STEPS_2, put_position)

#endif
