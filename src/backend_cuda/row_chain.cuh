/* backend_cuda/row_chain.cuh - steps of a row one after the other in shared memory, by a block of 1,024 threads: the sums of k_rows.cu, whose comment has their
 * order.  Each thread keeps to its columns, so that steps need not wait for one another but where they sum. */
#ifndef RH_CUDA_ROW_CHAIN_CUH
#define RH_CUDA_ROW_CHAIN_CUH

#include "backend_cuda/async.cuh"
#include "backend_cuda/device_math.cuh"
#include "backend_cuda/kernels_router.h"

enum { CHAIN_WORDS = 64 }; /* shared floats besides rows and weights */

/* Shared memory, in this order: the chain's rows, then weights of the steps, each of `cols` floats up to a multiple of 4. */
static __host__ __device__ __forceinline__ uint32_t chain_floats(const cuda_p_chain &p) { return (p.cols + 3) / 4 * 4; }
static __host__ __device__ __forceinline__ uint32_t chain_bytes(const cuda_p_chain &p) { return (p.rows + p.steps) * chain_floats(p) * 4; }

static __device__ __forceinline__ void chain_fetch(float *to, const float *from, uint32_t n)
{
    bool whole = ((uintptr_t)from | n * 4) % 16 == 0;
#pragma unroll 1
    for (uint32_t c = 4 * threadIdx.x; whole && c < n; c += 4 * CUDA_CHAIN_THREADS)
        copy16(shared_at(to + c), from + c, true);
#pragma unroll 1
    for (uint32_t c = threadIdx.x; !whole && c < n; c += CUDA_CHAIN_THREADS)
        to[c] = __ldcg(from + c);
}
/* Weights, which are there before the kernel ahead has ended; a group of copies. */
static __device__ __forceinline__ void chain_weights(const cuda_p_chain &p, float *memory)
{
#pragma unroll 1
    for (uint32_t i = 0; i < p.steps; i++)
        if (p.step[i].w)
            chain_fetch(memory + (p.rows + i) * chain_floats(p), p.step[i].w, p.cols);
    copies_commit();
}
/* Row r of what is read; behind the next barrier it is there, as all copies are. */
static __device__ __forceinline__ void chain_read(const cuda_p_chain &p, uint32_t r, float *memory)
{
#pragma unroll 1
    for (uint32_t i = 0; i < p.rows; i++)
        if (p.row[i].read)
            chain_fetch(memory + i * chain_floats(p), p.row[i].at + (size_t)r * p.row[i].stride, p.cols);
    asm volatile("cp.async.wait_all;" ::: "memory");
}

/* The tree of dev_block_sum over 32 warps. */
static __device__ __forceinline__ float chain_sum(float v, float *shared)
{
    float sum = 0;
#pragma unroll
    for (int o = 16; o > 0; o >>= 1)
        v = v + __shfl_xor_sync(0xffffffffu, v, o);
    if (threadIdx.x % 32 == 0)
        shared[threadIdx.x / 32] = v;
    __syncthreads();
#pragma unroll
    for (int w = 0; w < 32; w++)
        sum = sum + shared[w];
    return sum;
}

/* words: CHAIN_WORDS floats; sums in turn use one half and the other. */
static __device__ __forceinline__ void chain_steps(const cuda_p_chain &p, float *memory, float *words)
{
    uint32_t turn = 0, each = chain_floats(p);
#pragma unroll 1
    for (uint32_t i = 0; i < p.steps; i++) {
        const cuda_chain_step &s = p.step[i];
        const float *x = memory + s.x * each, *w = memory + (p.rows + i) * each;
        float *y = memory + s.y * each, mean = 0, sum = 0, by = 1;
        if (s.norm && s.centred) {
#pragma unroll 1
            for (uint32_t c = threadIdx.x; c < p.cols; c += CUDA_CHAIN_THREADS)
                sum = sum + x[c];
            mean = chain_sum(sum, words + turn) / (float)p.cols, turn ^= 32, sum = 0;
        }
        if (s.norm) {
#pragma unroll 2
            for (uint32_t c = threadIdx.x; c < p.cols; c += CUDA_CHAIN_THREADS)
                sum = __fmaf_rn(x[c] - mean, x[c] - mean, sum);
            by = 1.0f / sqrtf(chain_sum(sum, words + turn) / (float)p.cols + s.eps), turn ^= 32;
        }
#pragma unroll 2
        for (uint32_t c = threadIdx.x; c < p.cols; c += CUDA_CHAIN_THREADS) {
            if (s.norm) {
                float v = ((x[c] - mean) * by) * w[c];
                y[c] = s.add ? y[c] + v * s.scale : v;
            } else {
                y[c] = (s.w ? y[c] * w[c] : y[c]) * s.scale;
            }
        }
    }
}

/* Row r of what was written, of row i of the chain. */
static __device__ __forceinline__ void chain_write(const cuda_p_chain &p, uint32_t i, uint32_t r, const float *memory)
{
    if (p.row[i].written)
#pragma unroll 2
        for (uint32_t c = threadIdx.x; c < p.cols; c += CUDA_CHAIN_THREADS)
            p.row[i].at[(size_t)r * p.row[i].stride + c] = memory[i * chain_floats(p) + c];
}

#endif
