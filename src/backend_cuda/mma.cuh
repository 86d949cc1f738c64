/* backend_cuda/mma.cuh - mma.m16n8k16: f16 operands from registers, sums in f32; what every GPU from Ampere on has. */
#ifndef RH_CUDA_MMA_CUH
#define RH_CUDA_MMA_CUH

#include <stdint.h>

/* c[4] += a[4] (16 by 16) times b (16 by 8) */
static __device__ __forceinline__ void mma(float *c, const uint32_t *a, uint32_t b0, uint32_t b1)
{
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

#endif
