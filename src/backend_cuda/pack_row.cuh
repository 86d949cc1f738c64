/* backend_cuda/pack_row.cuh - one row of x as linear reads it, normed or not, by a block of 512 threads.
 *
 * A thread stands for two of the 1,024 threads that the order of a row's sums speaks of (docs/arithmetic.md): i and i + 512.  Rows are read past the first
 * cache: another kernel wrote them.  The row is kept in shared memory, so that loops need not be unrolled: a kernel of a decode step runs this once, and its
 * instructions come from far. */
#ifndef RH_CUDA_PACK_ROW_CUH
#define RH_CUDA_PACK_ROW_CUH

#include "backend_cuda/device_math.cuh"

enum { PACK_THREADS = 512, PACK_SHARED = 48 }; /* words shared besides the row */

struct pack_source {
    const float *x, *w; /* w NULL: no norm */
    uint32_t cols;
    float eps;
};

/* A vector to shared memory, zeros behind it up to `padded`; pack_arrived waits for it. */
static __device__ __forceinline__ void pack_fetch(float *to, const float *from, uint32_t cols, uint32_t padded)
{
    bool whole = ((uintptr_t)from | cols * 4) % 16 == 0;
#pragma unroll 1
    for (uint32_t c = 4 * threadIdx.x; whole && c < cols; c += 4 * PACK_THREADS)
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"((uint32_t)__cvta_generic_to_shared(to + c)), "l"(from + c) : "memory");
#pragma unroll 4
    for (uint32_t c = threadIdx.x; !whole && c < cols; c += PACK_THREADS)
        to[c] = __ldcg(from + c);
#pragma unroll 1
    for (uint32_t c = cols + threadIdx.x; c < padded; c += PACK_THREADS)
        to[c] = 0;
}
static __device__ __forceinline__ void pack_arrived(void)
{
    asm volatile("cp.async.wait_all;" ::: "memory");
    __syncthreads();
}

/* r of the norm: 1 / sqrt(mean of squares + eps). */
static __device__ __forceinline__ float pack_norm(const pack_source &s, const float *row, float *shared)
{
    float a = 0, b = 0, sum = 0;
#pragma unroll 4
    for (uint32_t c = threadIdx.x; c < s.cols; c += 2 * PACK_THREADS) {
        float x = row[c], y = c + PACK_THREADS < s.cols ? row[c + PACK_THREADS] : 0.0f;
        a = __fmaf_rn(x, x, a), b = __fmaf_rn(y, y, b);
    }
#pragma unroll
    for (int o = 16; o > 0; o >>= 1) {
        a = a + __shfl_xor_sync(0xffffffffu, a, o);
        b = b + __shfl_xor_sync(0xffffffffu, b, o);
    }
    if (threadIdx.x % 32 == 0)
        shared[threadIdx.x / 32] = a, shared[16 + threadIdx.x / 32] = b;
    __syncthreads();
#pragma unroll
    for (int w = 0; w < 32; w++)
        sum = sum + shared[w];
    return 1.0f / sqrtf(sum / (float)s.cols + s.eps);
}

static __device__ __forceinline__ float pack_most(uint32_t most, float *shared)
{
    uint32_t *words = reinterpret_cast<uint32_t *>(shared) + 32;
    most = __reduce_max_sync(0xffffffffu, most);
    if (threadIdx.x % 32 == 0)
        words[threadIdx.x / 32] = most;
    __syncthreads();
#pragma unroll
    for (int w = 0; w < PACK_THREADS / 32; w++)
        most = max(most, words[w]);
    return __uint_as_float(most);
}

/* The row in shared memory, normed where there is a norm; gives the power of two that takes it to f16, and what takes that back. */
static __device__ __forceinline__ float pack_factor(const pack_source &s, uint32_t padded, float *row, float *shared, float *inverse)
{
    float by = 1;
    uint32_t most = 0;
    pack_fetch(row, s.x, s.cols, padded);
    pack_arrived();
    if (s.w)
        by = pack_norm(s, row, shared);
#pragma unroll 4
    for (uint32_t c = threadIdx.x; c < s.cols; c += PACK_THREADS) {
        float v = row[c];
        if (s.w)
            row[c] = v = (v * by) * s.w[c];
        most = max(most, __float_as_uint(v) & 0x7fffffffu); /* as integers NaN is the largest */
    }
    return dev_row_factor(pack_most(most, shared), inverse);
}

/* put(c, half) for every column c below `padded`; gives what takes the power of two back.  row: of `padded` floats in shared memory. */
template <class PUT> static __device__ __forceinline__ float pack_row(const pack_source &s, uint32_t padded, float *row, float *shared, PUT put)
{
    float inverse, up = pack_factor(s, padded, row, shared, &inverse);
#pragma unroll 4
    for (uint32_t c = threadIdx.x; c < padded; c += PACK_THREADS)
        put(c, __float2half_rn(row[c] * up));
    return inverse;
}

/* put(c, eight halves) likewise, for every eighth column. */
template <class PUT> static __device__ __forceinline__ float pack_row_eights(const pack_source &s, uint32_t padded, float *row, float *shared, PUT put)
{
    float inverse, up = pack_factor(s, padded, row, shared, &inverse);
#pragma unroll 2
    for (uint32_t c = 8 * threadIdx.x; c < padded; c += 8 * PACK_THREADS) {
        const float4 a = *reinterpret_cast<const float4 *>(row + c), b = *reinterpret_cast<const float4 *>(row + c + 4);
        __half2 h[4] = {__floats2half2_rn(a.x * up, a.y * up), __floats2half2_rn(a.z * up, a.w * up), __floats2half2_rn(b.x * up, b.y * up),
                        __floats2half2_rn(b.z * up, b.w * up)};
        put(c, *reinterpret_cast<uint4 *>(h));
    }
    return inverse;
}

/* Place of a column in its unit of 64, in the order of mma's column operand: lane of four, chunk, half of the chunk, which of the pair. */
static __device__ __forceinline__ uint32_t pack_place(uint32_t c)
{
    uint32_t k = c % 64;
    return (k % 8) / 2 * 16 + k / 16 * 4 + k % 16 / 8 * 2 + k % 2;
}

#endif
