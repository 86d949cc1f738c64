/* backend_cuda/mma.cuh - mma m16n8k16: f16 operands, sums in f32; and matrices from shared memory to its operands. */
#ifndef RH_CUDA_MMA_CUH
#define RH_CUDA_MMA_CUH

#include <cuda_fp16.h>
#include <stdint.h>

static __device__ __forceinline__ void mma(float *c, const uint32_t *a, uint32_t b0, uint32_t b1)
{
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
static __device__ __forceinline__ void matrix_read(uint32_t *v, const __half *p)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v[0]), "=r"(v[1]), "=r"(v[2]), "=r"(v[3]) : "r"((uint32_t)__cvta_generic_to_shared(p)));
}
static __device__ __forceinline__ void matrix_read_turned_at(uint32_t *v, uint32_t at) /* of shared memory */
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v[0]), "=r"(v[1]), "=r"(v[2]), "=r"(v[3]) : "r"(at) : "memory");
}
static __device__ __forceinline__ void matrix_read_turned(uint32_t *v, const __half *p)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v[0]), "=r"(v[1]), "=r"(v[2]), "=r"(v[3]) : "r"((uint32_t)__cvta_generic_to_shared(p)));
}

#endif
