/* backend_cpu/probe_vec.h - limits of a level that computes in vectors: plain reading, fused multiply-add, and dots of 8-bit elements.
 *
 * Included once by each kernels_<level>_probe.c, which says what a vector is: VEC, VEC_BITS, MM(op), WHOLE(op) of all its bits, LOW128, BITS_OF,
 * and INT8_DOT(sum, w, a).  Twelve independent chains hide the latencies; an empty asm keeps the compiler from folding rounds. */
#include "backend_cpu/probe_loops.h"

#include <immintrin.h>

#define CHAINS(X) X(0) X(1) X(2) X(3) X(4) X(5) X(6) X(7) X(8) X(9) X(10) X(11)

static uint64_t first(VEC_BITS v)
{
    return (uint64_t)_mm_cvtsi128_si64(LOW128(v));
}

static uint64_t read_set(const void *set, size_t bytes, uint32_t rounds)
{
    VEC_BITS a = WHOLE(setzero)(), b = a, c = a, d = a;
    for (uint32_t n = 0; n < rounds; n++)
        for (const char *p = set, *end = p + bytes; p < end; p += 4 * sizeof a) {
            a = WHOLE(xor)(a, WHOLE(loadu)((const void *)p));
            b = WHOLE(xor)(b, WHOLE(loadu)((const void *)(p + sizeof a)));
            c = WHOLE(xor)(c, WHOLE(loadu)((const void *)(p + 2 * sizeof a)));
            d = WHOLE(xor)(d, WHOLE(loadu)((const void *)(p + 3 * sizeof a)));
        }
    return first(WHOLE(xor)(WHOLE(xor)(a, b), WHOLE(xor)(c, d)));
}

#define INT8_START(i) VEC_BITS c##i = WHOLE(setzero)();
#define INT8_STEP(i)                                                                                \
    c##i = INT8_DOT(c##i, w, a);                                                                    \
    __asm__ volatile("" : "+v"(w), "+v"(a));
#define INT8_END(i) c0 = WHOLE(xor)(c0, c##i);
static uint64_t int8_dots(const void *set, size_t bytes, uint32_t rounds)
{
    (void)set, (void)bytes;
    VEC_BITS w = MM(set1_epi8)(3), a = MM(set1_epi8)(5);
    CHAINS(INT8_START)
    for (uint32_t n = 0; n < rounds; n++) {
        CHAINS(INT8_STEP)
    }
    CHAINS(INT8_END)
    return first(c0);
}

#define FMA_START(i) VEC f##i = MM(set1_ps)(i);
#define FMA_STEP(i) f##i = MM(fmadd_ps)(x, y, f##i);
#define FMA_END(i) f0 = MM(xor_ps)(f0, f##i);
static uint64_t fma_chains(const void *set, size_t bytes, uint32_t rounds)
{
    (void)set, (void)bytes;
    VEC x = MM(set1_ps)(0.5f), y = MM(set1_ps)(0.25f);
    CHAINS(FMA_START)
    for (uint32_t n = 0; n < rounds; n++) {
        __asm__ volatile("" : "+v"(x), "+v"(y));
        CHAINS(FMA_STEP)
    }
    CHAINS(FMA_END)
    return first(BITS_OF(f0));
}
