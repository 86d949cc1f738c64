/* backend_cpu/kernels_avx512vnni_rows.c - level avx512vnni: int8 scores with vpdpwssd (exact sums, no saturation); the rest is avx512's. */
#include "backend_cpu/kernels_avx512_attention.h"

CODE_SCORE(_mm512_dpwssd_epi32)

const struct cpu_kernels cpu_kernels_avx512vnni_rows = {
    .score_q8 = score_q8,
    .score_a8 = score_a8,
};
