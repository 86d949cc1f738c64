/* backend_cpu/probe_512.h - limits of the levels of 16 lanes: plain reading, fused multiply-add, and dots of 8-bit elements as the level has
 * them: INT8_DOT(sum, w, a).  Included once by each kernels_avx512*_probe.c. */
#include "backend_cpu/probe_loops.h"

#include <immintrin.h>

#define CHAINS(X) X(0) X(1) X(2) X(3) X(4) X(5) X(6) X(7) X(8) X(9) X(10) X(11)

static uint64_t first(__m512i v)
{
    return (uint64_t)_mm_cvtsi128_si64(_mm512_castsi512_si128(v));
}

static uint64_t read_set(const void *set, size_t bytes, uint32_t rounds)
{
    __m512i a = _mm512_setzero_si512(), b = a, c = a, d = a;
    for (uint32_t n = 0; n < rounds; n++)
        for (const char *p = set, *end = p + bytes; p < end; p += 256) {
            a = _mm512_xor_si512(a, _mm512_loadu_si512(p));
            b = _mm512_xor_si512(b, _mm512_loadu_si512(p + 64));
            c = _mm512_xor_si512(c, _mm512_loadu_si512(p + 128));
            d = _mm512_xor_si512(d, _mm512_loadu_si512(p + 192));
        }
    return first(_mm512_xor_si512(_mm512_xor_si512(a, b), _mm512_xor_si512(c, d)));
}

#define INT8_START(i) __m512i c##i = _mm512_setzero_si512();
#define INT8_STEP(i)                                                                                \
    c##i = INT8_DOT(c##i, w, a);                                                                    \
    __asm__ volatile("" : "+v"(w), "+v"(a));
#define INT8_END(i) c0 = _mm512_xor_si512(c0, c##i);
static uint64_t int8_dots(const void *set, size_t bytes, uint32_t rounds)
{
    (void)set, (void)bytes;
    __m512i w = _mm512_set1_epi8(3), a = _mm512_set1_epi8(5);
    CHAINS(INT8_START)
    for (uint32_t n = 0; n < rounds; n++) {
        CHAINS(INT8_STEP)
    }
    CHAINS(INT8_END)
    return first(c0);
}

#define FMA_START(i) __m512 f##i = _mm512_set1_ps(i);
#define FMA_STEP(i) f##i = _mm512_fmadd_ps(x, y, f##i);
#define FMA_END(i) f0 = _mm512_xor_ps(f0, f##i);
static uint64_t fma_chains(const void *set, size_t bytes, uint32_t rounds)
{
    (void)set, (void)bytes;
    __m512 x = _mm512_set1_ps(0.5f), y = _mm512_set1_ps(0.25f);
    CHAINS(FMA_START)
    for (uint32_t n = 0; n < rounds; n++) {
        __asm__ volatile("" : "+v"(x), "+v"(y));
        CHAINS(FMA_STEP)
    }
    CHAINS(FMA_END)
    return first(_mm512_castps_si512(f0));
}
