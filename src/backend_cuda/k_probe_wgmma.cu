/* backend_cuda/k_probe_wgmma.cu - the loop of cuda_probe.c that only Hopper has. */
#include "backend_cuda/kernels.h"
#include "backend_cuda/probe_values.cuh"
#include "backend_cuda/wgmma.cuh"

enum { PROBE_THREADS = 256, PROBE_STEPS = CUDA_PROBE_STEPS };

/* Chains of wgmma m64n128k16 over random operands: two warpgroups a block. */
static __global__ void __launch_bounds__(PROBE_THREADS, 1) multiply(const __grid_constant__ cuda_p_probe p)
{
    extern __shared__ unsigned char memory[];
    uint32_t base = (uint32_t)__cvta_generic_to_shared(memory), shared = (base + 1023) / 1024 * 1024;
    uint32_t *to = (uint32_t *)(memory + (shared - base)), a[4];
    for (uint32_t i = threadIdx.x; i < 128 * 32; i += blockDim.x)
        to[i] = random_halves(i * 2654435761u + blockIdx.x * 40503u);
    for (int i = 0; i < 4; i++)
        a[i] = random_halves(threadIdx.x * 747796405u + i * 2891336453u);
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    __syncthreads();
    uint64_t b = descriptor(shared);
    float d[64];
    for (int i = 0; i < 64; i++)
        d[i] = 0;
#pragma unroll 1
    for (int s = 0; s < PROBE_STEPS; s++) {
        wgmma_fence();
#pragma unroll
        for (int k = 0; k < 4; k++)
            wgmma(d, a, b + 2 * k, s | k);
        wgmma_commit();
        wgmma_wait<0>();
    }
    float sum = 0;
    for (int i = 0; i < 64; i++)
        sum = sum + d[i];
    if (sum == 12345.678f)
        ((float *)p.b)[0] = sum;
}

extern "C" const void *const cuda_kernel_probe_wgmma = (const void *)multiply;
