/* backend_cpu/kernels_avx2_probe.c - limits of level avx2: plain reading, maddubs + madd + add, fused multiply-add.
 * Twelve independent chains hide the latencies; an empty asm keeps the compiler from folding rounds. */
#include "backend_cpu/probe_loops.h"

#include <immintrin.h>

#define CHAINS(X) X(0) X(1) X(2) X(3) X(4) X(5) X(6) X(7) X(8) X(9) X(10) X(11)

static uint64_t first(__m256i v)
{
    return (uint64_t)_mm_cvtsi128_si64(_mm256_castsi256_si128(v));
}

static uint64_t read_set(const void *set, size_t bytes, uint32_t rounds)
{
    __m256i a = _mm256_setzero_si256(), b = a, c = a, d = a;
    for (uint32_t n = 0; n < rounds; n++)
        for (const __m256i *p = set, *end = p + bytes / 32; p < end; p += 4) {
            a = _mm256_xor_si256(a, _mm256_loadu_si256(p));
            b = _mm256_xor_si256(b, _mm256_loadu_si256(p + 1));
            c = _mm256_xor_si256(c, _mm256_loadu_si256(p + 2));
            d = _mm256_xor_si256(d, _mm256_loadu_si256(p + 3));
        }
    return first(_mm256_xor_si256(_mm256_xor_si256(a, b), _mm256_xor_si256(c, d)));
}

#define INT8_START(i) __m256i c##i = _mm256_setzero_si256();
#define INT8_STEP(i) c##i = _mm256_add_epi32(c##i, _mm256_madd_epi16(_mm256_maddubs_epi16(w, a), one));
#define INT8_END(i) c0 = _mm256_xor_si256(c0, c##i);
static uint64_t int8_dots(const void *set, size_t bytes, uint32_t rounds)
{
    (void)set, (void)bytes;
    __m256i w = _mm256_set1_epi8(3), a = _mm256_set1_epi8(5), one = _mm256_set1_epi16(1);
    CHAINS(INT8_START)
    for (uint32_t n = 0; n < rounds; n++) {
        __asm__ volatile("" : "+x"(w), "+x"(a));
        INT8_STEP(0) __asm__ volatile("" : "+x"(w), "+x"(a));
        INT8_STEP(1) __asm__ volatile("" : "+x"(w), "+x"(a));
        INT8_STEP(2) __asm__ volatile("" : "+x"(w), "+x"(a));
        INT8_STEP(3) __asm__ volatile("" : "+x"(w), "+x"(a));
        INT8_STEP(4) __asm__ volatile("" : "+x"(w), "+x"(a));
        INT8_STEP(5) __asm__ volatile("" : "+x"(w), "+x"(a));
        INT8_STEP(6) __asm__ volatile("" : "+x"(w), "+x"(a));
        INT8_STEP(7) __asm__ volatile("" : "+x"(w), "+x"(a));
        INT8_STEP(8) __asm__ volatile("" : "+x"(w), "+x"(a));
        INT8_STEP(9) __asm__ volatile("" : "+x"(w), "+x"(a));
        INT8_STEP(10) __asm__ volatile("" : "+x"(w), "+x"(a));
        INT8_STEP(11)
    }
    CHAINS(INT8_END)
    return first(c0);
}

#define FMA_START(i) __m256 f##i = _mm256_set1_ps(i);
#define FMA_STEP(i) f##i = _mm256_fmadd_ps(x, y, f##i);
#define FMA_END(i) f0 = _mm256_xor_ps(f0, f##i);
static uint64_t fma_chains(const void *set, size_t bytes, uint32_t rounds)
{
    (void)set, (void)bytes;
    __m256 x = _mm256_set1_ps(0.5f), y = _mm256_set1_ps(0.25f);
    CHAINS(FMA_START)
    for (uint32_t n = 0; n < rounds; n++) {
        __asm__ volatile("" : "+x"(x), "+x"(y));
        CHAINS(FMA_STEP)
    }
    CHAINS(FMA_END)
    return first(_mm256_castps_si256(f0));
}

const struct probe_loops probe_loops_avx2 = {read_set, int8_dots, fma_chains, 12 * 64, 12 * 16};
