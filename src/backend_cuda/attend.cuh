/* backend_cuda/attend.cuh - what the kernels of attention share. */
#ifndef RH_CUDA_ATTEND_CUH
#define RH_CUDA_ATTEND_CUH

#include "backend_cuda/device_math.cuh"
#include "backend_cuda/kernels.h"
#include "backend_cuda/mma.cuh"

enum { QUARTER = 64 }; /* positions of a chain of values */

static __device__ __forceinline__ float exp2_fast(float t)
{
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(t));
    return y;
}

/* What the values' sum is multiplied by: 1 / l, a sink being one more score without a value. */
static __device__ __forceinline__ float share(const cuda_p_attention &p, uint32_t head, float m, float l)
{
    if (!p.sinks)
        return 1.0f / l;
    float sink = p.sinks[head] * DEV_LOG2E, top = m > sink ? m : sink;
    float keep = exp2_fast(m - top);
    return keep / __fmaf_rn(l, keep, exp2_fast(sink - top));
}

/* Tile whose items, of all heads, hold item x. */
static __device__ __forceinline__ uint32_t tile_find(const cuda_tiles *tiles, uint32_t kv_heads, uint32_t x)
{
    uint32_t low = 0, high = tiles->tile_count;
    while (high - low > 1) {
        uint32_t mid = (low + high) / 2;
        if (tiles->tiles[mid].item_first * kv_heads <= x)
            low = mid;
        else
            high = mid;
    }
    return low;
}

#endif
