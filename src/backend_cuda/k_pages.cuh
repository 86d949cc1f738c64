/* backend_cuda/k_pages.cuh - planes of pages on the device: turns, what a slot holds (tensor/kv_codec.c is the meaning), and planes to f16 for
 * attention.  Included by k_pages.cu, which writes them, and by the kernels of attention, after tensor/kv_tables.h. */
#ifndef RH_CUDA_K_PAGES_CUH
#define RH_CUDA_K_PAGES_CUH

#include "backend_cuda/device_math.cuh"
#include "backend_cuda/kernels.h"

enum { PAGES_HEAD_MAX = 640 };
enum { CODE_FLOAT, CODE_SIGNED, CODE_AFFINE, CODE_BOOK }; /* enum kv_code */
enum { TURN_NONE, TURN_HADAMARD, TURN_SIGNS };            /* enum kv_turn */

/* ---- turns, by one warp over a vector in shared memory ---- */

static __device__ void pages_hadamard(float *x, uint32_t d, uint32_t n, uint32_t lane)
{
    float by = (float)(1 / sqrt((double)n));
    for (uint32_t half = 1; half < n; half *= 2) {
        for (uint32_t i = lane; i < d / 2; i += 32) {
            uint32_t at = i / half * 2 * half + i % half;
            float a = x[at], b = x[at + half];
            x[at] = a + b;
            x[at + half] = a - b;
        }
        __syncwarp();
    }
    for (uint32_t e = lane; e < d; e += 32)
        x[e] = x[e] * by;
    __syncwarp();
}

static __device__ void pages_signs(float *x, uint32_t d, uint32_t lane)
{
    for (uint32_t e = lane; e < d; e += 32)
        x[e] = sign_bits[e / 32] >> (e % 32) & 1 ? -x[e] : x[e];
    __syncwarp();
}

static __device__ void pages_turn(const cuda_plane &p, float *x, uint32_t d, uint32_t lane)
{
    if (p.turn == TURN_SIGNS)
        pages_signs(x, d, lane);
    if (p.turn != TURN_NONE)
        pages_hadamard(x, d, p.run, lane);
}
static __device__ void pages_turn_back(const cuda_plane &p, float *x, uint32_t d, uint32_t lane)
{
    if (p.turn != TURN_NONE)
        pages_hadamard(x, d, p.run, lane);
    if (p.turn == TURN_SIGNS)
        pages_signs(x, d, lane);
}

/* ---- planes ---- */

static __device__ __forceinline__ float pages_float(uint16_t h)
{
    return __half2float(__ushort_as_half(h));
}
static __device__ __forceinline__ size_t pages_scale_at(const cuda_plane &p, uint32_t slot, uint32_t g, bool key)
{
    return key ? (size_t)g * KV_PAGE + slot : (size_t)slot * p.groups + g;
}
static __device__ __forceinline__ size_t pages_code_at(const cuda_plane &p, uint32_t d, uint32_t slot, uint32_t b, uint32_t row, bool key)
{
    size_t at = (size_t)b * 4 * p.bits + row;
    return key ? at * KV_PAGE + slot : (size_t)slot * (d / 32) * 4 * p.bits + at;
}

/* ---- planes to f16 ---- */

/* Element e of a slot as it is stored (not turned back). */
static __device__ __forceinline__ float pages_value(const unsigned char *plane, const cuda_plane &p, uint32_t d, uint32_t slot, uint32_t e,
                                                    bool key)
{
    size_t at = key ? (size_t)e * KV_PAGE + slot : (size_t)slot * d + e;
    if (p.format == KV_F32)
        return ((const float *)plane)[at];
    if (p.format == KV_F16)
        return __half2float(((const __half *)plane)[at]);
    if (p.format == KV_BF16)
        return __uint_as_float((uint32_t)((const uint16_t *)plane)[at] << 16);
    uint32_t b = e / 32, i = e % 32;
    int v;
    if (p.bits == 8) {
        uint32_t c = plane[pages_code_at(p, d, slot, b, i, key)];
        v = p.code == CODE_AFFINE ? (int)c : (int)(int8_t)c;
    } else if (p.bits == 4) {
        uint32_t c = plane[pages_code_at(p, d, slot, b, i % 16, key)] >> (i / 16 * 4) & 15;
        v = p.code == CODE_AFFINE ? (int)c : p.code == CODE_SIGNED ? (int)c - 8 : book4[c];
    } else {
        uint32_t c = (plane[pages_code_at(p, d, slot, b, i % 8, key)] >> (i / 8 * 2) & 3) |
                     (plane[pages_code_at(p, d, slot, b, 8 + i % 4, key)] >> (i / 4) & 1) << 2;
        v = book3[c];
    }
    size_t s = pages_scale_at(p, slot, e / p.group, key);
    float scale = pages_float(((const uint16_t *)(plane + p.scales_at))[s]);
    float minimum = p.minima_at ? pages_float(((const uint16_t *)(plane + p.minima_at))[s]) : 0.0f;
    return __fmaf_rn((float)v, scale, minimum);
}

static __device__ __forceinline__ __half pages_to_half(float v) /* within f16; NaN stays */
{
    return __float2half_rn(v > 65504.0f ? 65504.0f : v < -65504.0f ? -65504.0f : v);
}

/* 16 bytes to shared memory without a register; `there` false: zeros.  pages_arrived waits for all of a thread's. */
static __device__ __forceinline__ void pages_copy(__half *to, const void *from, bool there)
{
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"((uint32_t)__cvta_generic_to_shared(to)), "l"(from), "r"(there ? 16 : 0)
                 : "memory");
}
static __device__ __forceinline__ void pages_arrived(void)
{
    asm volatile("cp.async.wait_all;" ::: "memory");
}

/* What a thread asked for up to here is one lot; all lots but the last are there. */
static __device__ __forceinline__ void pages_sent(void)
{
    asm volatile("cp.async.commit_group;" ::: "memory");
}
static __device__ __forceinline__ void pages_arrived_but_last(void)
{
    asm volatile("cp.async.wait_group 1;" ::: "memory");
}

/* K of a page, elements [from, from + n), to [element][position]; rows up to a multiple of 16 are cleared.  NULL: zeros. */
static __device__ void pages_keys(const unsigned char *plane, const cuda_plane &p, uint32_t d, uint32_t from, uint32_t n, __half *to,
                                  uint32_t stride, uint32_t me, uint32_t threads)
{
    uint32_t rows = (n + 15) / 16 * 16;
    if (plane && p.format == KV_F16) {
        for (uint32_t i = me; i < rows * 4; i += threads)
            pages_copy(to + (i / 4) * stride + i % 4 * 8, (const uint4 *)plane + (i / 4 < n ? (from + i / 4) * 4 + i % 4 : 0), i / 4 < n);
        return;
    }
    for (uint32_t i = me; i < rows * KV_PAGE; i += threads) {
        uint32_t e = i / KV_PAGE, slot = i % KV_PAGE;
        to[e * stride + slot] = plane && e < n ? pages_to_half(pages_value(plane, p, d, slot, from + e, true)) : __float2half_rn(0.0f);
    }
}

/* V of a page to [position][element of 128]; slots outside [least, most] are zeros.  Latent: V is the beginning of K's plane. */
static __device__ void pages_values(const unsigned char *plane, const cuda_plane &p, uint32_t d, uint32_t from, uint32_t n, __half *to,
                                    uint32_t stride, int least, int most, bool latent, uint32_t me, uint32_t threads)
{
    if (latent) { /* neighbours in the plane are positions */
        for (uint32_t i = me; i < KV_PAGE * 128; i += threads) {
            int slot = (int)(i % KV_PAGE);
            uint32_t e = i / KV_PAGE;
            bool there = plane && slot >= least && slot <= most && e < n;
            to[slot * stride + e] = there ? pages_to_half(pages_value(plane, p, d, (uint32_t)slot, from + e, true)) : __float2half_rn(0.0f);
        }
        return;
    }
    if (plane && p.format == KV_F16 && n % 8 == 0) {
        for (uint32_t i = me; i < KV_PAGE * 16; i += threads) {
            int slot = (int)(i / 16);
            uint32_t e = i % 16 * 8;
            bool there = slot >= least && slot <= most && e < n;
            pages_copy(to + slot * stride + e, (const __half *)plane + (there ? (size_t)slot * d + from + e : 0), there);
        }
        return;
    }
    for (uint32_t i = me; i < KV_PAGE * 128; i += threads) {
        int slot = (int)(i / 128);
        uint32_t e = i % 128;
        bool there = plane && slot >= least && slot <= most && e < n;
        to[slot * stride + e] = there ? pages_to_half(pages_value(plane, p, d, (uint32_t)slot, from + e, false)) : __float2half_rn(0.0f);
    }
}

#endif
