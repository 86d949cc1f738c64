/* backend_cpu/kernels_avx2_unpack.h - level avx2: packed 4 and 3 bit codes of K and V planes to a byte each.  Included by
 * kernels_avx2_rows.c only. */
#ifndef RH_KERNELS_AVX2_UNPACK_H
#define RH_KERNELS_AVX2_UNPACK_H

#include "backend_cpu/kernels.h"
#include "backend_cpu/vec_avx2.h"
#include "tensor/tensor.h"

static inline __attribute__((always_inline)) __m256i look_up(__m256i table, __m256i codes, int mask)
{
    return _mm256_shuffle_epi8(table, _mm256_and_si256(codes, _mm256_set1_epi8((char)mask)));
}

static void unpack4(const struct cpu_unpack *job)
{
    const __m256i table = _mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i *)(const void *)job->table));
    size_t bytes = (size_t)job->blocks * 16 * job->width, high = 16 * (size_t)job->width;
    const char *next = job->next;
    for (size_t i = 0; i < bytes; i += 32) {
        __m256i x = _mm256_loadu_si256((const __m256i *)(const void *)(job->src + i));
        __m256i a = look_up(table, x, 15), b = look_up(table, _mm256_srli_epi16(x, 4), 15);
        if (i % 64 == 0)
            __builtin_prefetch(next + i, 0, 2);
        unsigned char *to = job->dst + 2 * i;
        if (job->width == 1) { /* two blocks, 16 bytes each */
            _mm256_storeu_si256((__m256i *)(void *)to, _mm256_permute2x128_si256(a, b, 0x20));
            _mm256_storeu_si256((__m256i *)(void *)(to + 32), _mm256_permute2x128_si256(a, b, 0x31));
        } else {
            to -= i % high;
            _mm256_storeu_si256((__m256i *)(void *)to, a);
            _mm256_storeu_si256((__m256i *)(void *)(to + high), b);
        }
    }
}

/* one block of V: element e of lane e / 8 of 64 bits, or of lane e / 4 of 32 bits */
static inline __attribute__((always_inline)) void unpack3_value(const unsigned char *src, __m256i table, unsigned char *dst)
{
    int64_t low;
    int32_t high;
    __builtin_memcpy(&low, src, 8);
    __builtin_memcpy(&high, src + 8, 4);
    __m256i a = _mm256_srlv_epi64(_mm256_set1_epi64x(low), _mm256_setr_epi64x(0, 2, 4, 6));
    __m256i b = _mm256_srlv_epi32(_mm256_set1_epi32(high), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
    a = _mm256_and_si256(a, _mm256_set1_epi8(3));
    b = _mm256_slli_epi16(_mm256_and_si256(b, _mm256_set1_epi8(1)), 2);
    _mm256_storeu_si256((__m256i *)(void *)dst, _mm256_shuffle_epi8(table, _mm256_or_si256(a, b)));
}

static inline __attribute__((always_inline)) void unpack3_key(const unsigned char *src, __m256i table, unsigned char *dst)
{
    for (int e = 0; e < 32; e++) {
        __m256i a = _mm256_loadu_si256((const __m256i *)(const void *)(src + (size_t)(e % 8) * KV_PAGE));
        __m256i b = _mm256_loadu_si256((const __m256i *)(const void *)(src + (size_t)(8 + e % 4) * KV_PAGE));
        a = _mm256_and_si256(_mm256_srl_epi16(a, _mm_cvtsi32_si128(e / 8 * 2)), _mm256_set1_epi8(3));
        b = _mm256_and_si256(_mm256_srl_epi16(b, _mm_cvtsi32_si128(e / 4)), _mm256_set1_epi8(1));
        a = _mm256_or_si256(a, _mm256_slli_epi16(b, 2));
        _mm256_storeu_si256((__m256i *)(void *)(dst + (size_t)e * KV_PAGE), _mm256_shuffle_epi8(table, a));
    }
}

static void unpack3(const struct cpu_unpack *job)
{
    const __m256i table = _mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i *)(const void *)job->table));
    size_t step = 12 * (size_t)job->width;
    for (uint32_t b = 0; b < job->blocks; b++) {
        __builtin_prefetch((const char *)job->next + b * step, 0, 2);
        if (job->width == 1)
            unpack3_value(job->src + b * step, table, job->dst + (size_t)b * 32);
        else
            unpack3_key(job->src + b * step, table, job->dst + (size_t)b * 32 * KV_PAGE);
    }
}

#endif
