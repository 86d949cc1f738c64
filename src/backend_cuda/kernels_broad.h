/* backend_cuda/kernels_broad.h - parameters and entries of attention of one row with wide heads (k_attend_broad.cu). */
#ifndef RH_CUDA_KERNELS_BROAD_H
#define RH_CUDA_KERNELS_BROAD_H

#include "backend_cuda/kernels.h"

#ifdef __cplusplus
extern "C" {
#endif

struct cuda_p_attend_broad { /* partials: [item][slice][vectors][d / slices + 2]; arrived: [tile][kv head][slice] */
    struct cuda_p_attend_row row;
    /* V before its norm, or as it is; normed, it is stored in row.w.v too */
    const float *v_from, *v_norm;
    uint32_t v_from_stride;
    float v_eps;
};
const void *cuda_kernel_attend_broad(uint32_t d); /* for keys and values of d elements, on Hopper, in clusters; NULL: not for these */
enum { CUDA_ATTEND_BROAD_CLUSTER = 4, CUDA_ATTEND_BROAD_PARTIAL = 8 /* floats besides d of a vector's partial */ };
uint32_t cuda_attend_broad_smem(uint32_t d), cuda_attend_broad_blocks(uint32_t d); /* of a block; blocks that fit on a multiprocessor */

#ifdef __cplusplus
}
#endif

#endif
