/* backend_cpu/kernels_avx512vnni_probe.c - limits of level avx512vnni: 8-bit dots by dpbusd; else probe_512.h. */
#define INT8_DOT(sum, w, a) _mm512_dpbusd_epi32(sum, w, a)
#include "backend_cpu/probe_512.h"

const struct probe_loops probe_loops_avx512vnni = {read_set, int8_dots, fma_chains, 12 * 128, 12 * 32};
