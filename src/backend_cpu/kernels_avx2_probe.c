/* backend_cpu/kernels_avx2_probe.c - limits of level avx2: 8-bit dots by maddubs + madd + add; else probe_vec.h. */
#define VEC __m256
#define VEC_BITS __m256i
#define MM(op) _mm256_##op
#define WHOLE(op) _mm256_##op##_si256
#define LOW128 _mm256_castsi256_si128
#define BITS_OF _mm256_castps_si256
#define INT8_DOT(sum, w, a) _mm256_add_epi32(sum, _mm256_madd_epi16(_mm256_maddubs_epi16(w, a), _mm256_set1_epi16(1)))
#include "backend_cpu/probe_vec.h"

const struct probe_loops probe_loops_avx2 = {read_set, int8_dots, fma_chains, 12 * 64, 12 * 16};
