/* backend_cuda/k_attend_tall.cu - attention of many rows over F16 pages: the sums of k_attention.cu, whose comment says what tiles, blocks and quarters are.
 *
 * A block of threads has a tile of 128 vectors, a warp 16 of them.  A KV block's largest scores have to be known before its first weight, and the scores of
 * 256 positions do not fit in registers: they are computed twice, a quarter at a time.  K of the next KV block comes meanwhile, V behind the fold.  No soft
 * cap.  Quarters that no row of a warp sees are not multiplied: their sums are 0. */
#include "backend_cuda/attend.cuh"
#include "backend_cuda/async.cuh"

enum { THREADS = 256, VECTORS = 128 };

/* All copies of a thread but those of its last group are there. */
static __device__ __forceinline__ void arrived_but_one(void)
{
    asm volatile("cp.async.wait_group 1;" ::: "memory");
}

template <int D> struct tall_form {
    enum { KEYS = D * KV_BLOCK * 2, VALUES = KV_BLOCK * D * 2, QUERIES = VECTORS * D * 2, TOTAL = 2 * KEYS + VALUES + QUERIES + VECTORS * 4 };
};

template <int D> struct attend_tall {
    enum { HALVES = D / 64 };
    const cuda_p_attention &p;
    __half *keys, *values, *queries; /* twice [element][position], [position][element], [vector][element]; pieces of 8 turned by the row */
    float *factors;                  /* of the vectors' scores */
    uint32_t lane, warp;
    attend_item it;
    int pos[2], low, high;           /* of the lane's rows; the warp's first and last position */
    float factor[2], m[2], l[2];
    float total[8 * HALVES][4];
    __device__ attend_tall(const cuda_p_attention &param, unsigned char *shared) : p(param)
    {
        using form = tall_form<D>;
        keys = (__half *)shared;
        values = (__half *)(shared + 2 * form::KEYS);
        queries = (__half *)(shared + 2 * form::KEYS + form::VALUES);
        factors = (float *)(shared + 2 * form::KEYS + form::VALUES + form::QUERIES);
        lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    }
    __device__ __half *keys_of(uint32_t block) const { return keys + block % 2 * (D * KV_BLOCK); }

    __device__ void take(const cuda_tile &tile, uint32_t head)
    {
        it.take(p, tile, head);
        uint32_t g = lane >> 2, count = it.t.count, last = count - 1;
        low = it.pos_of(min(warp * 16, last)), high = warp * 16 < count ? it.pos_of(min(warp * 16 + 15, last)) : -1;
#pragma unroll
        for (int r = 0; r < 2; r++) {
            uint32_t v = warp * 16 + g + 8 * r;
            pos[r] = v < count ? it.pos_of(v) : -1;
            m[r] = -DEV_INF, l[r] = 0;
        }
#pragma unroll
        for (int n = 0; n < 8 * HALVES; n++)
            total[n][0] = total[n][1] = total[n][2] = total[n][3] = 0;
    }

    __device__ void query()
    {
        attend_queries<D, 8>(p, it, warp * 16, lane, factors, [&](uint32_t v, int h, __half2 two) {
            *(__half2 *)(queries + v * D + ((8 * h + lane / 4) ^ (v & 7)) * 8 + lane % 4 * 2) = two;
        });
        factor[0] = factors[warp * 16 + (lane >> 2)], factor[1] = factors[warp * 16 + (lane >> 2) + 8];
    }

    /* A warp fetches one page of the KV block; what the tile does not see is 0 in V. */
    __device__ void fetch(uint32_t block, bool key)
    {
        int start = (int)(block * KV_BLOCK + warp * KV_PAGE);
        const unsigned char *page = it.page(p, start);
        if (key && page) {
#pragma unroll 8
            for (uint32_t i = lane; i < D * 4; i += 32) {
                uint32_t e = i / 4, piece = warp * 4 + i % 4;
                copy16(shared_at(keys_of(block) + e * KV_BLOCK + (piece ^ (e & 7)) * 8), page + i * 16, true);
            }
        }
        if (!key) {
#pragma unroll 8
            for (uint32_t i = lane; i < KV_PAGE * (D / 8); i += 32) {
                uint32_t slot = i / (D / 8), piece = i % (D / 8);
                bool there = page && start + (int)slot >= it.least && start + (int)slot <= it.most;
                copy16(shared_at(values + (warp * KV_PAGE + slot) * D + (piece ^ (slot & 7)) * 8), there ? page + p.k_bytes + i * 16 : (const unsigned char *)p.q,
                       there);
            }
        }
        copies_commit();
    }

    __device__ __forceinline__ bool sees(uint32_t block, int quarter) const /* a row of the warp sees one of its positions */
    {
        int start = (int)(block * KV_BLOCK) + quarter * QUARTER;
        return start <= high && start + QUARTER > it.least_of(low);
    }

    /* Scores in base 2 of a quarter: 16 vectors by 64 positions; what a row does not see is -inf. */
    __device__ __forceinline__ void scores(uint32_t block, int quarter, float s[8][4])
    {
        const __half *q = queries + (warp * 16 + lane % 16) * D, *k = keys_of(block);
        int from = (int)(block * KV_BLOCK) + quarter * QUARTER;
        bool whole = from + QUARTER - 1 <= low && it.least_of(high) <= from;
#pragma unroll
        for (int n = 0; n < 8; n++)
            s[n][0] = s[n][1] = s[n][2] = s[n][3] = 0;
#pragma unroll 4
        for (int e = 0; e < D; e += 16) {
            uint32_t a[4], b[4], row = e + lane % 16;
            matrix_read(a, q + ((e / 8 + lane / 16) ^ (row & 7)) * 8);
#pragma unroll
            for (int j = 0; j < 8; j += 2) {
                matrix_read_turned(b, k + row * KV_BLOCK + ((quarter * 8 + j + lane / 16) ^ (row & 7)) * 8);
                mma(s[j], a, b[0], b[1]);
                mma(s[j + 1], a, b[2], b[3]);
            }
        }
#pragma unroll
        for (int n = 0; n < 8; n++)
#pragma unroll
            for (int i = 0; i < 4; i++) {
                int at = from + 2 * (int)(lane & 3) + 8 * n + (i & 1);
                float x = (s[n][i] * factor[i >> 1]) * DEV_LOG2E;
                s[n][i] = whole || (at <= pos[i >> 1] && at >= it.least_of(pos[i >> 1])) ? x : -DEV_INF;
            }
    }

    /* The block's largest scores. */
    __device__ __forceinline__ void largest(uint32_t block, float top[2])
    {
        top[0] = top[1] = -DEV_INF;
#pragma unroll 1
        for (int quarter = 0; quarter < 4; quarter++) {
            float s[8][4];
            if (!sees(block, quarter))
                continue;
            scores(block, quarter, s);
#pragma unroll
            for (int n = 0; n < 8; n++)
#pragma unroll
                for (int i = 0; i < 4; i++)
                    top[i >> 1] = larger(top[i >> 1], s[n][i]);
        }
#pragma unroll
        for (int r = 0; r < 2; r++) {
            top[r] = larger(top[r], __shfl_xor_sync(0xffffffffu, top[r], 1));
            top[r] = larger(top[r], __shfl_xor_sync(0xffffffffu, top[r], 2));
        }
    }

    /* Scores to weights, as mma's row operand w[step of 16 positions]; and their sums. */
    __device__ __forceinline__ void weigh(const float s[8][4], const float top[2], uint32_t w[4][4], float sum[2])
    {
#pragma unroll
        for (int r = 0; r < 2; r++) {
            sum[r] = 0;
#pragma unroll
            for (int n = 0; n < 8; n++) {
                float x0 = s[n][2 * r], x1 = s[n][2 * r + 1];
                __half2 h = __floats2half2_rn(x0 == -DEV_INF ? 0.0f : exp2_fast(x0 - top[r]), x1 == -DEV_INF ? 0.0f : exp2_fast(x1 - top[r]));
                float2 f = __half22float2(h);
                sum[r] = (sum[r] + f.x) + f.y;
                w[n / 2][n % 2 * 2 + r] = *reinterpret_cast<uint32_t *>(&h);
            }
            sum[r] = sum[r] + __shfl_xor_sync(0xffffffffu, sum[r], 1);
            sum[r] = sum[r] + __shfl_xor_sync(0xffffffffu, sum[r], 2);
        }
    }

    /* The quarter's weights times values, added to the sums of those before. */
    __device__ __forceinline__ void weighted(int quarter, const uint32_t w[4][4], float sums[8 * HALVES][4])
    {
        float o[8 * HALVES][4];
#pragma unroll
        for (int n = 0; n < 8 * HALVES; n++)
            o[n][0] = o[n][1] = o[n][2] = o[n][3] = 0;
#pragma unroll
        for (int j = 0; j < 4; j++) {
            uint32_t b[4], row = quarter * QUARTER + 16 * j + lane % 16;
#pragma unroll
            for (int n = 0; n < 8 * HALVES; n += 2) {
                matrix_read_turned(b, values + row * D + ((n + lane / 16) ^ (row & 7)) * 8);
                mma(o[n], w[j], b[0], b[1]);
                mma(o[n + 1], w[j], b[2], b[3]);
            }
        }
#pragma unroll
        for (int n = 0; n < 8 * HALVES; n++)
#pragma unroll
            for (int i = 0; i < 4; i++)
                sums[n][i] = quarter ? sums[n][i] + o[n][i] : o[n][i];
    }

    /* The block's sums, folded into the totals.  A quarter that no row of the warp sees adds zeros. */
    __device__ __forceinline__ void fold(uint32_t block, const float top[2])
    {
        float sums[8 * HALVES][4] = {}, parts[2] = {0, 0}, keep[2], add[2];
#pragma unroll 1
        for (int quarter = 0; quarter < 4; quarter++) {
            float s[8][4], part[2];
            uint32_t w[4][4];
            if (!sees(block, quarter)) {
#pragma unroll
                for (int n = 0; n < 8 * HALVES; n++)
#pragma unroll
                    for (int i = 0; i < 4; i++)
                        sums[n][i] = sums[n][i] + 0.0f;
                continue;
            }
            scores(block, quarter, s);
            weigh(s, top, w, part);
            parts[0] = parts[0] + part[0], parts[1] = parts[1] + part[1];
            weighted(quarter, w, sums);
        }
#pragma unroll
        for (int r = 0; r < 2; r++) {
            if (top[r] == -DEV_INF)
                continue; /* nothing seen in this block */
            float now = m[r] > top[r] ? m[r] : top[r];
            if (top[r] != top[r])
                now = top[r];
            keep[r] = exp2_fast(m[r] - now), add[r] = exp2_fast(top[r] - now);
            l[r] = __fmaf_rn(l[r], keep[r], parts[r] * add[r]), m[r] = now;
#pragma unroll
            for (int n = 0; n < 8 * HALVES; n++)
                total[n][2 * r] = __fmaf_rn(total[n][2 * r], keep[r], sums[n][2 * r] * add[r]),
                total[n][2 * r + 1] = __fmaf_rn(total[n][2 * r + 1], keep[r], sums[n][2 * r + 1] * add[r]);
        }
    }

    __device__ __forceinline__ void one_block(uint32_t block, bool more)
    {
        float top[2];
        bool mine = (int)(block * KV_BLOCK) <= high;
        arrived_but_one();
        __syncthreads();
        if (more)
            fetch(block + 1, true);
        else
            copies_commit();
        if (mine)
            largest(block, top);
        arrived_but_one();
        __syncthreads();
        if (mine)
            fold(block, top);
        __syncthreads();
        if (more)
            fetch(block + 1, false);
        else
            copies_commit();
    }

    __device__ void finish()
    {
#pragma unroll
        for (int r = 0; r < 2; r++) {
            uint32_t v = warp * 16 + (lane >> 2) + 8 * r, head = it.head_of(v);
            if (v >= it.t.count)
                continue;
            float by = share(p, head, m[r], l[r]);
            float *y = p.y + (size_t)it.row_of(v) * p.y_stride + (size_t)head * D + 2 * (lane & 3);
#pragma unroll
            for (int n = 0; n < 8 * HALVES; n++)
                y[8 * n] = total[n][2 * r] * by, y[8 * n + 1] = total[n][2 * r + 1] * by;
        }
    }
};

template <int D> static __global__ void __launch_bounds__(THREADS, 1) attend_many(const __grid_constant__ cuda_p_attention p)
{
    dev_begin();
    extern __shared__ __align__(128) unsigned char shared[];
    attend_tall<D> a(p, shared);
    uint32_t items = p.tiles->tile_count * p.kv_heads;
    for (uint32_t i = blockIdx.x; i < items; i += gridDim.x) {
        uint32_t x = items - 1 - i; /* the longest ones first */
        a.take(p.tiles->tiles[x / p.kv_heads].tile, x % p.kv_heads);
        a.fetch(a.it.t.block_first, true);
        a.fetch(a.it.t.block_first, false);
        a.query();
        for (uint32_t b = 0; b < a.it.t.block_count; b++)
            a.one_block(a.it.t.block_first + b, b + 1 < a.it.t.block_count);
        a.finish();
    }
}

extern "C" uint32_t cuda_attend_tall_smem(uint32_t d)
{
    return d == 64 ? (uint32_t)tall_form<64>::TOTAL : (uint32_t)tall_form<128>::TOTAL;
}
extern "C" const void *cuda_kernel_attend_tall(uint32_t d_k, uint32_t d_v)
{
    return d_k != d_v ? NULL : d_k == 64 ? (const void *)attend_many<64> : d_k == 128 ? (const void *)attend_many<128> : NULL;
}
