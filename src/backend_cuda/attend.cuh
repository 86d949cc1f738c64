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
        if (tiles->tiles[mid].tile.item_first * kv_heads <= x)
            low = mid;
        else
            high = mid;
    }
    return low;
}

/* ---- many rows over F16 pages: tiles of CUDA_ATTEND_TALL_VECTORS vectors (k_attend_tall.cu, k_attend_wide.cu) ---- */

static __device__ __forceinline__ float larger(float a, float b) /* NaN is the largest */
{
    float y;
    asm("max.NaN.f32 %0, %1, %2;" : "=f"(y) : "f"(a), "f"(b));
    return y;
}

/* A tile and the KV head it is computed for. */
struct attend_item {
    cuda_tile t;
    kv_span span;
    uint32_t kv_head, group, window;
    int most, least; /* positions that its vectors see together */

    __device__ __forceinline__ void take(const cuda_p_attention &p, const cuda_tile &tile, uint32_t head)
    {
        t = tile, kv_head = head, span = p.spans[t.span], group = p.heads / p.kv_heads, window = p.window;
        most = pos_of(t.count - 1), least = least_of(pos_of(0));
    }
    __device__ __forceinline__ int pos_of(uint32_t v) const { return (int)(span.pos_first + (t.first + v) / group); }
    __device__ __forceinline__ int least_of(int at) const { return window && at + 1 > (int)window ? at + 1 - (int)window : 0; }
    __device__ __forceinline__ uint32_t row_of(uint32_t v) const { return span.row_first + (t.first + v) / group; }
    __device__ __forceinline__ uint32_t head_of(uint32_t v) const { return kv_head * group + (t.first + v) % group; }
    /* A KV page of the span, by its first position; NULL: no vector sees any of it. */
    __device__ __forceinline__ const unsigned char *page(const cuda_p_attention &p, int start) const
    {
        if (start > most || start + KV_PAGE <= least)
            return NULL;
        return p.pages[p.tables[span.table_first + start / KV_PAGE]] + p.offset + (size_t)kv_head * p.head_bytes;
    }
};

/* Queries of a warp's 16 vectors, D elements each, a power of two apart to f16: put(vector, half of 64 elements, two halves); factors: of their scores. */
template <int D, int AT_ONCE, class PUT>
static __device__ __forceinline__ void attend_queries(const cuda_p_attention &p, const attend_item &it, uint32_t first, uint32_t lane, float *factors, PUT put)
{
    enum { HALVES = D / 64 };
    for (uint32_t from = first; from < first + 16; from += AT_ONCE) {
        float2 x[AT_ONCE][HALVES];
#pragma unroll
        for (uint32_t i = 0; i < AT_ONCE; i++)
#pragma unroll
            for (int h = 0; h < HALVES; h++) {
                uint32_t v = min(from + i, it.t.count - 1);
                const float *at = p.q + (size_t)it.row_of(v) * p.q_stride + (size_t)it.head_of(v) * D + 64 * h + 2 * lane;
                x[i][h] = make_float2(__ldcg(at), __ldcg(at + 1));
            }
#pragma unroll
        for (uint32_t i = 0; i < AT_ONCE; i++) {
            uint32_t top = 0;
#pragma unroll
            for (int h = 0; h < HALVES; h++)
                top = max(top, max(__float_as_uint(x[i][h].x) & 0x7fffffffu, __float_as_uint(x[i][h].y) & 0x7fffffffu));
            float inverse, up = dev_row_factor(__uint_as_float(__reduce_max_sync(0xffffffffu, top)), &inverse);
#pragma unroll
            for (int h = 0; h < HALVES; h++)
                put(from + i, h, __floats2half2_rn(x[i][h].x * up, x[i][h].y * up));
            if (lane == 0)
                factors[from + i] = inverse * p.scale;
        }
    }
    __syncwarp();
}

#endif
