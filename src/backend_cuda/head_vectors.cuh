/* backend_cuda/head_vectors.cuh - norm and rope of a head vector in shared memory, by one warp: before pages and before attention alike. */
#ifndef RH_CUDA_HEAD_VECTORS_CUH
#define RH_CUDA_HEAD_VECTORS_CUH

#include <stdint.h>

/* The norm of k_rows.cu by one warp: the same tree. */
static __device__ void pages_norm(float *x, const float *w, uint32_t d, float eps, uint32_t lane)
{
    float sum = 0;
    for (uint32_t j = 0; 32 * j < d; j++) { /* d is less than the 1,024 threads of a norm */
        uint32_t c = 32 * j + lane;
        float s = c < d ? __fmaf_rn(x[c], x[c], 0.0f) : 0.0f;
        for (int o = 16; o > 0; o >>= 1)
            s = s + __shfl_xor_sync(0xffffffffu, s, o);
        sum = sum + s;
    }
    float by = 1.0f / sqrtf(sum / (float)d + eps);
    for (uint32_t c = lane; c < d; c += 32)
        x[c] = (x[c] * by) * w[c];
    __syncwarp();
}

static __device__ void pages_rope(float *x, const float *table, uint32_t n, uint32_t adjacent, uint32_t lane)
{
    for (uint32_t j = lane; j < n; j += 32) {
        uint32_t a = adjacent ? 2 * j : j, b = adjacent ? 2 * j + 1 : j + n;
        float x0 = x[a], x1 = x[b], c = table[j], s = table[n + j];
        x[a] = __fmaf_rn(-x1, s, x0 * c);
        x[b] = __fmaf_rn(x0, s, x1 * c);
    }
    __syncwarp();
}

#endif
