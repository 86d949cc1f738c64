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

static __device__ __forceinline__ float4 pack_weights(const pack_source &s, uint32_t c, bool whole)
{
    if (whole)
        return c < s.cols ? *reinterpret_cast<const float4 *>(s.w + c) : make_float4(0, 0, 0, 0);
    return make_float4(c < s.cols ? s.w[c] : 0, c + 1 < s.cols ? s.w[c + 1] : 0, c + 2 < s.cols ? s.w[c + 2] : 0, c + 3 < s.cols ? s.w[c + 3] : 0);
}

/* The row in shared memory, where it may be already, normed where there is a norm; gives the power of two that takes it to f16, and what takes that back. */
static __device__ __forceinline__ float pack_factor(const pack_source &s, uint32_t padded, float *row, float *shared, float *inverse, bool there = false)
{
    float by = 1;
    uint32_t most = 0;
    bool whole = ((uintptr_t)s.w | s.cols * 4) % 16 == 0;
    float4 *four = reinterpret_cast<float4 *>(row);
    if (!there) {
        pack_fetch(row, s.x, s.cols, padded);
        pack_arrived();
    }
    if (s.w)
        by = pack_norm(s, row, shared);
#pragma unroll 2
    for (uint32_t c = 4 * threadIdx.x; c < padded; c += 4 * PACK_THREADS) {
        float4 v = four[c / 4];
        if (s.w) {
            float4 w = pack_weights(s, c, whole);
            four[c / 4] = v = make_float4((v.x * by) * w.x, (v.y * by) * w.y, (v.z * by) * w.z, (v.w * by) * w.w);
        }
        most = max(max(most, __float_as_uint(v.x) & 0x7fffffffu), __float_as_uint(v.y) & 0x7fffffffu); /* as integers NaN is the largest */
        most = max(max(most, __float_as_uint(v.z) & 0x7fffffffu), __float_as_uint(v.w) & 0x7fffffffu);
    }
    return dev_row_factor(pack_most(most, shared), inverse);
}

/* put(c, halves of columns c and c + 1) for every even c below `padded`; gives what takes the power of two back.  row: of `padded` floats in shared memory. */
template <class PUT> static __device__ __forceinline__ float pack_row(const pack_source &s, uint32_t padded, float *row, float *shared, PUT put, bool there = false)
{
    float inverse, up = pack_factor(s, padded, row, shared, &inverse, there);
#pragma unroll 2
    for (uint32_t c = 4 * threadIdx.x; c < padded; c += 4 * PACK_THREADS) {
        float4 v = *reinterpret_cast<const float4 *>(row + c);
        put(c, __floats2half2_rn(v.x * up, v.y * up));
        put(c + 2, __floats2half2_rn(v.z * up, v.w * up));
    }
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

enum { PACK_OWN = 16 /* pairs of columns that a thread keeps in registers */, PACK_STEP = 2 * PACK_THREADS, PACK_GROUP = 4 /* without a branch between */ };

/* The larger magnitude; NaN is the largest. */
static __device__ __forceinline__ float pack_more(float most, float v)
{
    asm("max.NaN.f32 %0, %1, %2;" : "=f"(most) : "f"(most), "f"(fabsf(v)));
    return most;
}
/* r of the norm by the same tree: here a thread stands for threads 2 i and 2 i + 1 of the 1,024.  Waits for this thread's part of the norm's weights before
 * its barrier. */
template <class WAIT> static __device__ __forceinline__ float pack_norm_own(const pack_source &s, const float2 *v, float *shared, WAIT wait)
{
    float a = 0, b = 0, sum = 0;
#pragma unroll
    for (uint32_t j = 0; j < PACK_OWN; j++) {
        if (j % PACK_GROUP == 0 && PACK_STEP * j >= s.cols)
            break;
        a = __fmaf_rn(v[j].x, v[j].x, a), b = __fmaf_rn(v[j].y, v[j].y, b);
    }
#pragma unroll
    for (int o = 8; o > 0; o >>= 1) {
        a = a + __shfl_xor_sync(0xffffffffu, a, o);
        b = b + __shfl_xor_sync(0xffffffffu, b, o);
    }
    if (threadIdx.x % 16 == 0)
        shared[threadIdx.x / 16] = a + b;
    wait();
    __syncthreads();
    const float4 *four = reinterpret_cast<const float4 *>(shared);
#pragma unroll
    for (int w = 0; w < 8; w++) {
        float4 f = four[w];
        sum = sum + f.x, sum = sum + f.y, sum = sum + f.z, sum = sum + f.w;
    }
    return 1.0f / sqrtf(sum / (float)s.cols + s.eps);
}

/* Place of a column in its unit of 64, in the order of mma's column operand: lane of four, chunk, half of the chunk, which of the pair. */
static __device__ __forceinline__ uint32_t pack_place(uint32_t c)
{
    uint32_t k = c % 64;
    return (k % 8) / 2 * 16 + k / 16 * 4 + k % 16 / 8 * 2 + k % 2;
}

/* A row to `to` in the order of mma's column operand, the row in registers: cols even, x at a multiple of 8 bytes; s.w in shared memory (with a norm at most
 * PACK_STEP PACK_OWN columns), on its way there until `wait`.  Gives what takes the power of two back.  Every instruction here is
 * one that the whole multiprocessor waits for: a kernel of a decode step has nothing else to do until x is packed. */
template <class WAIT> static __device__ __forceinline__ float pack_own(const pack_source &s, uint32_t padded, float *shared, __half *to, WAIT wait)
{
    const uint32_t mine = 2 * threadIdx.x;
    const float2 *x = reinterpret_cast<const float2 *>(s.x) + threadIdx.x, *w = reinterpret_cast<const float2 *>(s.w) + threadIdx.x;
    uint32_t *words = reinterpret_cast<uint32_t *>(shared) + 32;
    float most = 0;
    float2 v[PACK_OWN];
    asm("" : "+l"(x)); /* one address for all loads */
    to += mine / 64 * 64 + pack_place(mine); /* PACK_STEP is a multiple of 64 */
#pragma unroll
    for (uint32_t j = 0; j < PACK_OWN; j++) {
        if (j % PACK_GROUP == 0 && PACK_STEP * j >= s.cols)
            break;
        v[j] = mine + PACK_STEP * j < s.cols ? __ldcg(x + PACK_THREADS * j) : make_float2(0, 0);
    }
    if (s.w) {
        float by = pack_norm_own(s, v, shared, wait);
#pragma unroll
        for (uint32_t j = 0; j < PACK_OWN; j++) {
            if (j % PACK_GROUP == 0 && PACK_STEP * j >= s.cols)
                break;
            float2 f = mine + PACK_STEP * j < s.cols ? w[PACK_THREADS * j] : make_float2(0, 0);
            v[j] = make_float2((v[j].x * by) * f.x, (v[j].y * by) * f.y);
        }
    }
#pragma unroll
    for (uint32_t j = 0; j < PACK_OWN; j++) {
        if (j % PACK_GROUP == 0 && PACK_STEP * j >= s.cols)
            break;
        most = pack_more(pack_more(most, v[j].x), v[j].y);
    }
#pragma unroll 1
    for (uint32_t c = mine + PACK_STEP * PACK_OWN; c < s.cols; c += PACK_STEP) {
        float2 far = __ldcg(reinterpret_cast<const float2 *>(s.x + c));
        most = pack_more(pack_more(most, far.x), far.y);
    }
    uint32_t bits = __reduce_max_sync(0xffffffffu, __float_as_uint(most));
    if (threadIdx.x % 32 == 0)
        words[threadIdx.x / 32] = bits;
    __syncthreads();
    bits = __reduce_max_sync(0xffffffffu, words[threadIdx.x % 16]);
    float inverse, up = dev_row_factor(__uint_as_float(bits), &inverse);
#pragma unroll
    for (uint32_t j = 0; j < PACK_OWN; j++) {
        if (j % PACK_GROUP == 0 && PACK_STEP * j >= padded)
            break;
        if (mine + PACK_STEP * j < padded)
            *reinterpret_cast<__half2 *>(to + PACK_STEP * j) = __floats2half2_rn(v[j].x * up, v[j].y * up);
    }
#pragma unroll 1
    for (uint32_t c = PACK_STEP * PACK_OWN; mine + c < padded; c += PACK_STEP) {
        float2 far = mine + c < s.cols ? __ldcg(reinterpret_cast<const float2 *>(s.x + mine + c)) : make_float2(0, 0);
        *reinterpret_cast<__half2 *>(to + c) = __floats2half2_rn(far.x * up, far.y * up);
    }
    return inverse;
}

#endif
