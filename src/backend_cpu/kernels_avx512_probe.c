/* backend_cpu/kernels_avx512_probe.c - limits of level avx512: 8-bit dots by maddubs + madd + add; else probe_512.h. */
#define INT8_DOT(sum, w, a) _mm512_add_epi32(sum, _mm512_madd_epi16(_mm512_maddubs_epi16(w, a), _mm512_set1_epi16(1)))
#include "backend_cpu/probe_512.h"

const struct probe_loops probe_loops_avx512 = {read_set, int8_dots, fma_chains, 12 * 128, 12 * 32};
