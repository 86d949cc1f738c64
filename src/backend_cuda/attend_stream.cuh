/* backend_cuda/attend_stream.cuh - what k_attend_stream.cu is made of: shared memory, where pieces of pages lie in it, rows of this step over them,
 * elements to f16. */
#ifndef RH_CUDA_ATTEND_STREAM_CUH
#define RH_CUDA_ATTEND_STREAM_CUH

#define KV_TABLE [[maybe_unused]] static __device__ const
#include "tensor/kv_tables.h"

#include "backend_cuda/async.cuh"
#include "backend_cuda/attend.cuh"
#include "backend_cuda/head_vectors.cuh"
#include "backend_cuda/k_pages.cuh"

enum { PAGES = KV_BLOCK / KV_PAGE, VECTORS = CUDA_ATTEND_STREAM_VECTORS };

/* Shared memory of a warp; all rings lie in front of all else.  F: of K and V; behind codes of q8 lie their scales (f16, of 32 elements). */
template <int D, enum kv_format F> struct stream_form {
    enum { BITS = F == KV_Q8 ? 8 : 16, WARPS = 8, PER = 2 /* pages that code is written out for */ };
    enum { CODES = D * KV_PAGE * BITS / 8, SCALES = BITS == 8 ? D / 32 * KV_PAGE * 2 : 0, PLANE = CODES + SCALES };
    enum { STAGES = BITS == 8 ? 5 : D == 128 ? 3 : 6, RING = STAGES * PLANE };
    enum { Q_STRIDE = D + 8 /* elements */, QUERIES = VECTORS * Q_STRIDE * 2, AT_ONCE = 4 /* queries read together */, TURNING = AT_ONCE * D * 4 };
    enum { REST = QUERIES + TURNING + VECTORS * 4, WAITS = WARPS * (RING + REST), TOTAL = WAITS + 2 * WARPS * 4 };
};

/* A KV block of a tile, which is a span, and KV head. */
struct stream_block {
    uint32_t tile, kv_head, block, block_first, block_end, row, table;
    int pos, least, fresh; /* the row's position; the first that it sees; the first of this step that its sequence has */
    __device__ __forceinline__ bool ends() const { return block + 1 == block_end; }
};

static __device__ __forceinline__ kv_span stream_span(const cuda_p_attend_row &p, uint32_t i)
{
    uint4 v = __ldcg((const uint4 *)(p.a.spans + i));
    return {v.x, v.y, v.z, v.w};
}
/* Pieces of 16 bytes: of K [element][position], two elements to 128 bytes, of V [slot][element]; turned so that eight rows lie in all banks. */
template <int BITS> static __device__ __forceinline__ uint32_t stream_key_at(uint32_t e, uint32_t piece)
{
    return BITS == 8 ? e * 32 + ((piece ^ (e >> 2 & 1)) << 4) : e * 64 + ((piece ^ (e >> 1 & 3)) << 4);
}
template <int ROW> static __device__ __forceinline__ uint32_t stream_value_at(uint32_t slot, uint32_t piece) /* ROW: bytes of a slot */
{
    return slot * ROW + ((piece ^ (slot & 7)) << 4);
}
/* A head vector normed and turned, where it lies in shared memory. */
template <int D> static __device__ void stream_prepare(const cuda_p_attend_row &p, float *v, const float *norm, uint32_t row, uint32_t lane)
{
    __syncwarp();
    if (p.prepare && norm)
        pages_norm(v, norm, D, p.w.eps, lane);
    if (p.prepare && p.w.rope)
        pages_rope(v, p.w.rope + (size_t)row * p.w.rope_stride, p.w.rope_pairs, p.w.adjacent, lane);
}
/* Rows of this step, of span `last` and those before it of the same sequence, that lie in page number `number`, over what `stage` has of it; the last
 * one's to the page. */
template <int D>
static __device__ __noinline__ void stream_put(const cuda_p_attend_row &p, uint32_t last, uint32_t kv_head, uint32_t number, unsigned char *page,
                                               unsigned char *stage, float *turning, bool key)
{
    uint32_t lane = threadIdx.x & 31;
    kv_span own = stream_span(p, last);
    for (uint32_t which = last + 1; which-- > 0;) {
        kv_span s = stream_span(p, which);
        if (s.table_first != own.table_first)
            break;
        if (s.pos_first / KV_PAGE != number)
            continue;
        const float *from = (key ? p.w.k + (size_t)s.row_first * p.w.k_stride : p.w.v + (size_t)s.row_first * p.w.v_stride) + (size_t)kv_head * D;
        uint32_t at = s.pos_first % KV_PAGE;
        if (which == last && !page && lane == 0)
            *p.w.failed = 1;
        for (uint32_t e = lane; e < D; e += 32)
            turning[e] = __ldcg(from + e);
        if (key)
            stream_prepare<D>(p, turning, p.w.k_norm, s.row_first, lane);
        for (uint32_t e = lane; e < D; e += 32) {
            __half h = __float2half_rn(turning[e]);
            *(__half *)(stage + (key ? stream_key_at<16>(e, at / 8) + at % 8 * 2 : stream_value_at<D * 2>(at, e / 8) + e % 8 * 2)) = h;
            if (which == last && page)
                ((__half *)(key ? page : page + p.a.k_bytes))[key ? e * KV_PAGE + at : at * D + e] = h;
        }
        __syncwarp();
    }
}

/* Two elements as f16: within its range, NaN stays. */
template <enum kv_format F> static __device__ __forceinline__ void stream_halves(uint32_t b[4])
{
#pragma unroll
    for (int i = 0; F == KV_BF16 && i < 4; i++) {
        __half2 h = __floats2half2_rn(__uint_as_float(b[i] << 16), __uint_as_float(b[i] & 0xffff0000u));
        h = __hmin2_nan(__hmax2_nan(h, __floats2half2_rn(-65504, -65504)), __floats2half2_rn(65504, 65504));
        b[i] = *reinterpret_cast<uint32_t *>(&h);
    }
}
/* Two codes of q8 that are the lower bytes of h, as f16, times their scales; CLAMPED: where a product may leave f16. */
template <bool CLAMPED> static __device__ __forceinline__ uint32_t stream_decoded(uint32_t h, __half2 scale)
{
    __half2 v = __hsub2(*reinterpret_cast<__half2 *>(&h), __floats2half2_rn(1152, 1152));
    v = __hmul2(v, scale);
    if (CLAMPED)
        v = __hmin2(__hmax2(v, __floats2half2_rn(-65504, -65504)), __floats2half2_rn(65504, 65504));
    return *reinterpret_cast<uint32_t *>(&v);
}
static __device__ __forceinline__ __half2 stream_pair(uint32_t low, uint32_t high, uint32_t which)
{
    uint32_t v = __byte_perm(low, high, which);
    return *reinterpret_cast<__half2 *>(&v);
}
enum { EVEN_BYTES = 0x4240, ODD_BYTES = 0x4341, LOW_HALVES = 0x5410, HIGH_HALVES = 0x7632, TOO_LARGE = 0x5fd0 /* 500 as f16 */ };
static __device__ __forceinline__ bool stream_large(uint32_t scales) /* two of them, not negative */
{
    return (scales & 0xffff) > TOO_LARGE || scales >> 16 > TOO_LARGE;
}

#endif
