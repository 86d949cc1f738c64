/* backend_cuda/device_math.cuh - elementary functions on the device: the sequences of base/math.c, operation by operation, which is their
 * definition (the CPU's vector kernels repeat them likewise), and reductions in a fixed order.
 *
 * Compiled with -fmad=false: fused multiply-add only where it is written. */
#ifndef RH_CUDA_DEVICE_MATH_CUH
#define RH_CUDA_DEVICE_MATH_CUH

#include "base/math_poly.h"

#include <cuda_fp16.h>
#include <stdint.h>

#define DEV_LOG2E 1.44269504f
#define DEV_INF __int_as_float(0x7f800000)

/* A kernel is launched before the one ahead of it has ended: everything another kernel wrote is read behind dev_wait only.  The next one is let in
 * behind dev_wait too: let in earlier, it could find in this multiprocessor's cache what kernels before this one had read there. */
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 900 /* kernels run one after the other there */
static __device__ __forceinline__ void dev_launch_next(void)
{
}
static __device__ __forceinline__ void dev_wait(void)
{
}
#else
static __device__ __forceinline__ void dev_launch_next(void)
{
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
}
static __device__ __forceinline__ void dev_wait(void)
{
    asm volatile("griddepcontrol.wait;" ::: "memory");
}
#endif
static __device__ __forceinline__ void dev_begin(void)
{
    dev_wait();
    dev_launch_next();
}

/* What a block without work does behind dev_launch_next: it keeps its place, for two microseconds if it is not a shorter kernel's.  Of a
 * kernel that leaves room for one block beside each of its own the next has one on every multiprocessor then; where places were free, two came together,
 * others had none, and so on from kernel to kernel. */
static __device__ __forceinline__ void dev_linger(long long cycles = 4000)
{
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    for (long long end = clock64() + cycles; clock64() < end;)
        __nanosleep(200);
#endif
}

static __device__ __forceinline__ float dev_round(float t)
{
    return __fsub_rn(__fadd_rn(t, 12582912.0f), 12582912.0f);
}

static __device__ __forceinline__ float dev_exp2_poly(float r, int n)
{
    float p = MATH_POLY_EXP2(__fmaf_rn, MATH_CONSTANT, r);
    return __uint_as_float(__float_as_uint(p) + ((uint32_t)n << 23));
}

static __device__ __forceinline__ float dev_exp2(float t)
{
    if (t < -125.0f)
        return 0.0f;
    if (t != t)
        return t;
    t = t > 127.0f ? 127.0f : t;
    float n = dev_round(t);
    return dev_exp2_poly(t - n, (int)n);
}

static __device__ __forceinline__ float dev_exp(float x) /* without branches: several side by side */
{
    float c = x > 88.0f ? 88.0f : x, n = dev_round(c * DEV_LOG2E);
    float r = __fmaf_rn(n, -0.693359375f, c);
    r = __fmaf_rn(n, 2.12194440e-4f, r);
    float y = dev_exp2_poly(r * DEV_LOG2E, (int)n);
    y = x < -86.0f ? 0.0f : y;
    return x != x ? x : y;
}

static __device__ __forceinline__ float dev_log(float x)
{
    uint32_t shifted = __float_as_uint(x) - 0x3f3504f3u;
    float e = (float)((int32_t)shifted >> 23);
    float f = __uint_as_float((shifted & 0x007fffffu) + 0x3f3504f3u) - 1.0f;
    float p = MATH_POLY_LOG(__fmaf_rn, MATH_CONSTANT, f);
    float y = __fmaf_rn(f * f, p, e * -2.12194440e-4f);
    y = y + f;
    return __fmaf_rn(e, 0.693359375f, y);
}

static __device__ __forceinline__ float dev_tanh(float x)
{
    float a = fabsf(x), y;
    if (a < 0.625f) {
        float s = a * a;
        float p = MATH_POLY_TANH(__fmaf_rn, MATH_CONSTANT, s);
        y = __fmaf_rn(a * s, p, a);
    } else {
        y = 1.0f - 2.0f / (dev_exp(a + a) + 1.0f);
    }
    return __uint_as_float(__float_as_uint(y) | (__float_as_uint(x) & 0x80000000u));
}

static __device__ __forceinline__ float dev_erf(float x)
{
    float a = fabsf(x), y;
    if (a < 0.921875f) {
        float s = a * a;
        float p = MATH_POLY_ERF(__fmaf_rn, MATH_CONSTANT, s);
        y = __fmaf_rn(a, p, a);
    } else {
        a = a > 4.0f ? 4.0f : a;
        float p = MATH_POLY_ERF_TAIL(__fmaf_rn, MATH_CONSTANT, a);
        y = 1.0f - dev_exp(p * a);
    }
    return __uint_as_float(__float_as_uint(y) | (__float_as_uint(x) & 0x80000000u));
}

static __device__ __forceinline__ void dev_sincos(double x, double *sin_out, double *cos_out)
{
    double n = __dsub_rn(__dadd_rn(x * 0.6366197723675814, 6755399441055744.0), 6755399441055744.0);
    double r = x - n * 0x1.921fb40000000p+0;
    r = r - n * 0x1.4442d00000000p-24;
    r = r - n * 0x1.8469898cc5170p-48;
    double z = r * r;
    double s = 1.0 / (16.0 * 17.0), c = 1.0 / (17.0 * 18.0);
    for (int k = 14; k >= 2; k -= 2) {
        s = (1.0 - s * z) / (double)(k * (k + 1));
        c = (1.0 - c * z) / (double)(k * (k + 1) + 2 * (k + 1));
    }
    s = r - r * (z * s);
    c = 1.0 - 0.5 * z * (1.0 - c * z);
    int q = (int)((long long)n & 3);
    *sin_out = q == 0 ? s : q == 1 ? c : q == 2 ? -s : -c;
    *cos_out = q == 0 ? c : q == 1 ? -s : q == 2 ? -c : s;
}

static __device__ __forceinline__ float dev_activate(uint32_t act, float x) /* enum act, but clamped */
{
    if (act == 5)
        return x > 0 ? x : 0;
    if (act == 0)
        return x / (1.0f + dev_exp(-x));
    if (act == 1) {
        float z = __fmaf_rn((x * x) * x, 0.044715f, x) * -1.5957691f;
        return x / (1.0f + dev_exp(z));
    }
    if (act == 2)
        return (x * 0.5f) * (1.0f + dev_erf(x * 0.70710678f));
    return 1.0f / (1.0f + dev_exp(-x));
}

/* act(gate) * up */
static __device__ __forceinline__ float dev_gate(uint32_t act, float gate, float up)
{
    if (act != 4)
        return dev_activate(act, gate) * up;
    gate = gate > 7 ? 7 : gate;
    up = up > 7 ? 7 : up < -7 ? -7 : up;
    return gate / (1.0f + dev_exp(-1.702f * gate)) * (up + 1.0f);
}

/* Sum over a warp, then over the warps of the block, in one fixed tree; every thread gets it.  `shared` has 32 floats. */
static __device__ __forceinline__ float dev_block_sum(float v, float *shared)
{
    for (int o = 16; o > 0; o >>= 1)
        v = v + __shfl_xor_sync(0xffffffffu, v, o);
    __syncthreads();
    if ((threadIdx.x & 31) == 0)
        shared[threadIdx.x >> 5] = v;
    __syncthreads();
    float sum = 0;
    for (uint32_t w = 0; w < (blockDim.x + 31) / 32; w++)
        sum = sum + shared[w];
    return sum;
}

static __device__ __forceinline__ float dev_block_max(float v, float *shared) /* NaN counts as the largest */
{
    for (int o = 16; o > 0; o >>= 1) {
        float u = __shfl_xor_sync(0xffffffffu, v, o);
        v = u > v || u != u ? u : v;
    }
    __syncthreads();
    if ((threadIdx.x & 31) == 0)
        shared[threadIdx.x >> 5] = v;
    __syncthreads();
    float most = shared[0];
    for (uint32_t w = 1; w < (blockDim.x + 31) / 32; w++)
        most = shared[w] > most || shared[w] != shared[w] ? shared[w] : most;
    return most;
}

/* The power of two that takes a row with that maximum into [2^7, 2^8), and its inverse; NaN for rows that are not finite. */
static __device__ __forceinline__ float dev_row_factor(float most, float *inverse)
{
    int e = (int)(__float_as_uint(most) >> 23) & 255;
    if (e == 255) {
        *inverse = __int_as_float(0x7fc00000);
        return 1.0f;
    }
    int up = e < 32 ? 0 : 134 - e; /* below 2^-95 a row counts as it is */
    *inverse = __uint_as_float((uint32_t)(127 - up) << 23);
    return __uint_as_float((uint32_t)(127 + up) << 23);
}

#endif
