/* backend_cuda/k_attend_wide.cu - attention of many rows over F16 pages by wgmma: the sums of k_attention.cu, whose comment says what tiles, blocks and quarters are.
 *
 * A block of threads has a tile of 128 vectors.  Two warpgroups have 64 of them each and take turns at the scores, so that one multiplies while the other makes
 * weights.  A third one fetches.  All scores of a KV block are in registers at once, so that they are computed once: the
 * largest is known before the first weight.  Weights are wgmma's row operand as they lie.  Totals lie in shared memory, a thread's own.
 * K comes by halves of 128 positions, V by halves of 64 elements, each into its place as soon as both warpgroups have read what was there.  Both are read as pages
 * hold them, K [element][position] and V [position][element]: rows of 64, whose pieces of 8 are turned by the row.  No soft cap. */
#include "backend_cuda/async.cuh"
#include "backend_cuda/attend.cuh"
#include "backend_cuda/wgmma.cuh"

enum { THREADS = CUDA_ATTEND_WIDE_THREADS, VECTORS = CUDA_ATTEND_TALL_VECTORS, GROUP = 128 /* threads of a warpgroup */, MULTIPLIERS = 2 * GROUP,
       ROWS = 64 /* vectors of a warpgroup */, LINE = 64 /* halves of a row in shared memory */, PAGES = KV_BLOCK / KV_PAGE,
       TURN = 1, OWN = 3 /* named barriers: it is the turn of warpgroup 0, of 1; threads of warpgroup 0, of 1 */ };

/* Shared memory, by its address: of each part of K and V a barrier that says it is there, and one that says it was read. */
template <int D> struct wide_form {
    enum { HALVES = D / 64, QUERIES = VECTORS * D * 2, KEYS = D * KV_BLOCK * 2, VALUES = KV_BLOCK * D * 2, TOTALS = VECTORS * D * 4,
           KEY_PART = KEYS / 2, VALUE_PART = VALUES / HALVES,
           KEYS_AT = QUERIES, VALUES_AT = KEYS_AT + KEYS, TOTALS_AT = VALUES_AT + VALUES, FACTORS_AT = TOTALS_AT + TOTALS,
           K_FULL = FACTORS_AT + VECTORS * 4, V_FULL = K_FULL + 16, K_EMPTY = V_FULL + 16, V_EMPTY = K_EMPTY + 16, ITEMS_AT = V_EMPTY + 16,
           ALL = 1024 + ITEMS_AT + 2 * 64 };
    /* queries [warpgroup][half][vector][64], keys [64 positions][element][64], values [half][position][64], totals [D / 8][thread] of four */
};
static_assert(sizeof(attend_item) <= 64, "an item of each warpgroup");

/* ---- the warpgroup that fetches ---- */

template <int D> struct wide_fetch {
    using form = wide_form<D>;
    enum { WARPS = GROUP / 32 };
    const cuda_p_attention &p;
    uint32_t at, lane, warp, phase; /* shared memory; .. of the barriers that say what was read */
    attend_item it;
    const unsigned char *mine;  /* lane i: page i of the KV block to come */

    __device__ __forceinline__ wide_fetch(const cuda_p_attention &param, uint32_t shared) : p(param), at(shared)
    {
        lane = threadIdx.x & 31, warp = __shfl_sync(0xffffffffu, threadIdx.x / 32, 0) % WARPS, phase = 1;
    }
    __device__ __forceinline__ void look_up(uint32_t block)
    {
        mine = lane < PAGES ? it.page(p, (int)(block * KV_BLOCK + lane * KV_PAGE)) : NULL;
    }
    static __device__ __forceinline__ const unsigned char *page_of(const unsigned char *mine, uint32_t i)
    {
        return (const unsigned char *)__shfl_sync(0xffffffffu, (unsigned long long)mine, i);
    }

    /* 128 positions, a page a warp. */
    __device__ __forceinline__ void keys(const unsigned char *pages, int part)
    {
        const unsigned char *from = page_of(pages, part * WARPS + warp);
        uint32_t to = at + form::KEYS_AT + part * form::KEY_PART + (warp / 2 * D + lane / 4) * (LINE * 2) + ((warp % 2 * 4 + lane % 4) ^ lane / 4) * 16;
        bar_wait_idle(at + form::K_EMPTY + 8 * part, phase);
        if (from != NULL)
#pragma unroll
            for (int i = 0; i < D / 8; i++)
                copy16(to + i * 8 * LINE * 2, from + lane * 16 + i * 512, true);
        copies_arrive(at + form::K_FULL + 8 * part);
    }
    /* 64 elements of 256 positions, two pages a warp; what the tile does not see is 0. */
    __device__ __forceinline__ void values(const unsigned char *pages, uint32_t block, int half)
    {
        bar_wait_idle(at + form::V_EMPTY + 8 * half, phase);
#pragma unroll
        for (uint32_t n = 0; n < PAGES / WARPS; n++) {
            uint32_t page = n * WARPS + warp, slot = lane / 8;
            const unsigned char *from = page_of(pages, page);
            int start = (int)(block * KV_BLOCK + page * KV_PAGE + slot);
            bool there = from != NULL;
            uint32_t to = at + form::VALUES_AT + half * form::VALUE_PART + (page * KV_PAGE + slot) * (LINE * 2), piece = lane % 8;
            from = there ? from + p.k_bytes + slot * D * 2 + half * 128 + piece * 16 : (const unsigned char *)p.q;
#pragma unroll
            for (uint32_t i = 0; i < KV_PAGE / 4; i++)
                copy16(to + i * 4 * LINE * 2 + (piece ^ (slot + 4 * (i % 2))) * 16, from + (there ? i * 4 * D * 2 : 0),
                       there && start + (int)(4 * i) >= it.least && start + (int)(4 * i) <= it.most);
        }
        copies_arrive(at + form::V_FULL + 8 * half);
    }

    __device__ __forceinline__ void item()
    {
        look_up(it.t.block_first);
#pragma unroll 1
        for (uint32_t b = it.t.block_first; b < it.t.block_first + it.t.block_count; b++, phase ^= 1) {
            const unsigned char *pages = mine;
            keys(pages, 0);
            keys(pages, 1);
            if (b + 1 < it.t.block_first + it.t.block_count)
                look_up(b + 1);
#pragma unroll
            for (int half = 0; half < form::HALVES; half++)
                values(pages, b, half);
        }
    }
};

/* ---- the warpgroups that multiply ---- */

template <int D> struct attend_wide {
    using form = wide_form<D>;
    enum { HALVES = form::HALVES, PARTS = 4 * HALVES /* chains of values of a KV block */ };
    const cuda_p_attention &p;
    unsigned char *shared;
    attend_item &it;               /* in shared memory, the warpgroup's: registers are few */
    uint32_t at, lane, warp, group_of; /* shared memory; .. warpgroup */
    uint32_t k_phase, v_phase;
    int pos[2], low, high;         /* of the lane's rows; first and last of the warp */
    float factor[2], m[2], l[2];

    __device__ __forceinline__ attend_wide(const cuda_p_attention &param, unsigned char *memory)
        : p(param), shared(memory), it(*reinterpret_cast<attend_item *>(memory + form::ITEMS_AT + threadIdx.x / GROUP * 64)), at(shared_at(memory))
    {
        lane = threadIdx.x & 31, warp = __shfl_sync(0xffffffffu, threadIdx.x >> 5, 0), group_of = warp / (GROUP / 32);
        k_phase = v_phase = 0;
    }
    __device__ __forceinline__ float4 &total(int i) const { return reinterpret_cast<float4 *>(shared + form::TOTALS_AT)[i * MULTIPLIERS + threadIdx.x]; }

    __device__ __forceinline__ void take(const cuda_tile &tile, uint32_t head)
    {
        some_sync(OWN + group_of, GROUP); /* the item before is done with */
        if (threadIdx.x % GROUP == 0)
            it.take(p, tile, head);
        some_sync(OWN + group_of, GROUP);
        uint32_t g = lane >> 2, count = it.t.count, last = count - 1;
        low = it.pos_of(min(warp * 16, last)), high = warp * 16 < count ? it.pos_of(min(warp * 16 + 15, last)) : -1;
#pragma unroll
        for (int r = 0; r < 2; r++) {
            uint32_t v = warp * 16 + g + 8 * r;
            pos[r] = v < count ? it.pos_of(v) : -1;
            m[r] = -DEV_INF, l[r] = 0;
        }
#pragma unroll
        for (int i = 0; i < D / 8; i++)
            total(i) = make_float4(0, 0, 0, 0);
        float *factors = reinterpret_cast<float *>(shared + form::FACTORS_AT);
        attend_queries<D, 16>(p, it, warp * 16, lane, factors, [&](uint32_t v, int h, __half2 two) {
            uint32_t row = v % ROWS;
            *(__half2 *)(shared + ((group_of * HALVES + h) * ROWS + row) * LINE * 2 + (lane / 4 ^ (row & 7)) * 16 + lane % 4 * 4) = two;
        });
        factor[0] = factors[warp * 16 + (lane >> 2)], factor[1] = factors[warp * 16 + (lane >> 2) + 8];
        product_fence();
        some_sync(OWN + group_of, GROUP);
    }

    /* s[half]: of 128 positions each, for registers free up by halves only. */
    __device__ __forceinline__ void scores(float s[2][64])
    {
        uint32_t q = at + group_of * HALVES * ROWS * LINE * 2;
#pragma unroll
        for (int i = 0; i < 128; i++)
            s[i / 64][i % 64] = 0;
#pragma unroll
        for (int half = 0; half < 2; half++) {
            bar_wait(at + form::K_FULL + 8 * half, k_phase);
            product_fence();
            wgmma_fence();
#pragma unroll
            for (int e = 0; e < D; e += 16)
                wgmma_scores(s[half], descriptor(q + e / 64 * ROWS * LINE * 2 + e % 64 * 2),
                             columns(at + form::KEYS_AT + half * form::KEY_PART + e * LINE * 2, D * LINE * 2), e);
            wgmma_commit();
        }
        wgmma_wait<0>();
        bar_arrive_if(at + form::K_EMPTY, lane == 0);
        bar_arrive_if(at + form::K_EMPTY + 8, lane == 0);
        wgmma_sums<64>(s[0]);
        wgmma_sums<64>(s[1]);
        k_phase ^= 1;
    }

    /* In base 2; what a row does not see is -inf; the block's largest. */
    __device__ __forceinline__ void largest(uint32_t block, float s[2][64], float top[2]) const
    {
        int from = (int)(block * KV_BLOCK);
        bool whole = from + KV_BLOCK - 1 <= low && it.least_of(high) <= from;
        float most[8]; /* short chains */
#pragma unroll
        for (int i = 0; i < 128; i++)
            s[i / 64][i % 64] = (s[i / 64][i % 64] * factor[i >> 1 & 1]) * DEV_LOG2E;
        if (!whole)
#pragma unroll
            for (int i = 0; i < 128; i++) {
                int at = from + 2 * (int)(lane & 3) + i / 4 * 8 + (i & 1), row = pos[i >> 1 & 1];
                s[i / 64][i % 64] = at <= row && at >= it.least_of(row) ? s[i / 64][i % 64] : -DEV_INF;
                asm volatile("" : "+f"(s[i / 64][i % 64])); /* decided here, not carried on */
            }
#pragma unroll
        for (int i = 0; i < 128; i++)
            most[i % 8] = i < 8 ? s[0][i] : larger(most[i % 8], s[i / 64][i % 64]);
#pragma unroll
        for (int r = 0; r < 2; r++) {
            top[r] = larger(larger(most[2 * r], most[2 * r + 1]), larger(most[2 * r + 4], most[2 * r + 5]));
            top[r] = larger(top[r], __shfl_xor_sync(0xffffffffu, top[r], 1));
            top[r] = larger(top[r], __shfl_xor_sync(0xffffffffu, top[r], 2));
        }
    }

    /* Scores to weights, as the row operand w[step of 16 positions]. */
    __device__ __forceinline__ void weigh(const float s[2][64], const float top[2], uint32_t w[16][4]) const
    {
        float base[2] = {top[0] == -DEV_INF ? 0.0f : top[0], top[1] == -DEV_INF ? 0.0f : top[1]}; /* ex2(-inf) is 0 */
#pragma unroll
        for (int i = 0; i < 64; i++) {
            int r = i & 1, n = i >> 1;
            float x0 = s[n / 16][n % 16 * 4 + 2 * r], x1 = s[n / 16][n % 16 * 4 + 2 * r + 1];
            __half2 h = __floats2half2_rn(exp2_fast(x0 - base[r]), exp2_fast(x1 - base[r]));
            w[n / 2][n % 2 * 2 + r] = *reinterpret_cast<uint32_t *>(&h);
            asm volatile("" : "+r"(w[n / 2][n % 2 * 2 + r])); /* all are made before they are added: each takes the room of two scores */
        }
    }
    /* Their sums: of the quarters ascending, each lane by lane and then across. */
    __device__ __forceinline__ void add(const uint32_t w[16][4], float parts[2]) const
    {
#pragma unroll
        for (int r = 0; r < 2; r++) {
            parts[r] = 0;
#pragma unroll
            for (int quarter = 0; quarter < 4; quarter++) {
                float sum = 0;
#pragma unroll
                for (int n = 8 * quarter; n < 8 * quarter + 8; n++) {
                    float2 f = __half22float2(*reinterpret_cast<const __half2 *>(&w[n / 2][n % 2 * 2 + r]));
                    sum = (sum + f.x) + f.y;
                }
                sum = sum + __shfl_xor_sync(0xffffffffu, sum, 1);
                sum = sum + __shfl_xor_sync(0xffffffffu, sum, 2);
                parts[r] = parts[r] + sum;
            }
        }
    }

    /* A quarter's weights times values: 64 elements of them. */
    __device__ __forceinline__ void weighted(int half, int quarter, const uint32_t w[16][4], float *o) const
    {
        uint32_t v = at + form::VALUES_AT + half * form::VALUE_PART + quarter * QUARTER * LINE * 2;
#pragma unroll
        for (int i = 0; i < 32; i++)
            o[i] = 0;
        if (quarter == 0) {
            bar_wait(at + form::V_FULL + 8 * half, v_phase);
            product_fence();
        }
        wgmma_fence();
#pragma unroll
        for (int j = 0; j < 4; j++)
            wgmma_values(o, w[4 * quarter + j], columns(v + 16 * j * LINE * 2, 0), j);
        wgmma_commit();
    }

    /* The block's weighted values, folded into the totals; a chain runs while the one before it is added. */
    __device__ __forceinline__ void fold(const uint32_t w[16][4], const float top[2], const float parts[2])
    {
        float keep[2], add[2], o[2][32], sums[32];
        bool none[2] = {top[0] == -DEV_INF, top[1] == -DEV_INF}; /* nothing is seen in this block */
        weighted(0, 0, w, o[0]);
#pragma unroll
        for (int r = 0; r < 2; r++) {
            float now = top[r] != top[r] || !(m[r] > top[r]) ? top[r] : m[r];
            keep[r] = exp2_fast(m[r] - now), add[r] = exp2_fast(top[r] - now);
            l[r] = none[r] ? l[r] : __fmaf_rn(l[r], keep[r], parts[r] * add[r]), m[r] = none[r] ? m[r] : now;
        }
#pragma unroll
        for (int n = 0; n < PARTS; n++) {
            int half = n / 4;
            if (n + 1 < PARTS) {
                weighted((n + 1) / 4, (n + 1) % 4, w, o[(n + 1) % 2]);
                wgmma_wait<1>();
            } else {
                wgmma_wait<0>();
            }
            wgmma_sums<32>(o[n % 2]);
            if (n % 4 == 3)
                bar_arrive_if(at + form::V_EMPTY + 8 * half, lane == 0);
#pragma unroll
            for (int i = 0; i < 32; i++)
                sums[i] = n % 4 ? sums[i] + o[n % 2][i] : o[n % 2][i];
#pragma unroll
            for (int i = 0; n % 4 == 3 && i < 8; i++) {
                float4 x = total(half * 8 + i);
                x.x = none[0] ? x.x : __fmaf_rn(x.x, keep[0], sums[4 * i] * add[0]);
                x.y = none[0] ? x.y : __fmaf_rn(x.y, keep[0], sums[4 * i + 1] * add[0]);
                x.z = none[1] ? x.z : __fmaf_rn(x.z, keep[1], sums[4 * i + 2] * add[1]);
                x.w = none[1] ? x.w : __fmaf_rn(x.w, keep[1], sums[4 * i + 3] * add[1]);
                total(half * 8 + i) = x;
            }
        }
        v_phase ^= 1;
    }

    __device__ __forceinline__ void one_block(uint32_t block)
    {
        float s[2][64], top[2], parts[2];
        uint32_t w[16][4];
        some_sync(TURN + group_of, MULTIPLIERS);
        scores(s);
        some_arrive(TURN + 1 - group_of, MULTIPLIERS);
        largest(block, s, top);
        weigh(s, top, w);
        add(w, parts);
        fold(w, top, parts);
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
            for (int n = 0; n < D / 8; n++) {
                float4 x = total(n);
                y[8 * n] = (r ? x.z : x.x) * by, y[8 * n + 1] = (r ? x.w : x.y) * by;
            }
        }
    }
};

/* Item of a block's turn: the longest ones first, to and fro, so that all blocks have about as much. */
static __device__ __forceinline__ uint32_t item_of(uint32_t turn)
{
    return turn * gridDim.x + (turn % 2 ? gridDim.x - 1 - blockIdx.x : blockIdx.x);
}

template <int D> static __global__ void __launch_bounds__(THREADS, 1) attend_many(const __grid_constant__ cuda_p_attention p)
{
    using form = wide_form<D>;
    extern __shared__ __align__(1024) unsigned char memory[];
    unsigned char *shared = memory + ((shared_at(memory) + 1023) / 1024 * 1024 - shared_at(memory));
    uint32_t at = shared_at(shared);
    if (threadIdx.x < 4) { /* two of K's parts, two of V's */
        bar_init(at + form::K_FULL + 8 * threadIdx.x, GROUP);
        bar_init(at + form::K_EMPTY + 8 * threadIdx.x, MULTIPLIERS / 32);
    }
    bar_init_end();
    __syncthreads();
    dev_begin();
    uint32_t items = p.tiles->tile_count * p.kv_heads;
    if (threadIdx.x >= MULTIPLIERS) {
        registers_less<24>();
        wide_fetch<D> f(p, at);
        for (uint32_t turn = 0; turn * gridDim.x < items; turn++) {
            uint32_t i = item_of(turn), x = items - 1 - i;
            if (i >= items)
                continue;
            f.it.take(p, p.tiles->tiles[x / p.kv_heads].tile, x % p.kv_heads);
            f.item();
        }
    } else {
        registers_more<240>();
        attend_wide<D> a(p, shared);
        if (a.group_of == 1)
            some_arrive(TURN, MULTIPLIERS); /* warpgroup 0 begins */
        for (uint32_t turn = 0; turn * gridDim.x < items; turn++) {
            uint32_t i = item_of(turn), x = items - 1 - i;
            if (i >= items)
                continue;
            a.take(p.tiles->tiles[x / p.kv_heads].tile, x % p.kv_heads);
            for (uint32_t b = 0; b < a.it.t.block_count; b++)
                a.one_block(a.it.t.block_first + b);
            a.finish();
        }
        if (a.group_of == 0)
            some_sync(TURN, MULTIPLIERS); /* the last turn is given to nobody */
    }
}

extern "C" uint32_t cuda_attend_wide_smem(uint32_t d)
{
    return d == 64 ? (uint32_t)wide_form<64>::ALL : (uint32_t)wide_form<128>::ALL;
}
extern "C" const void *cuda_kernel_attend_wide(uint32_t d)
{
    return d == 64 ? (const void *)attend_many<64> : d == 128 ? (const void *)attend_many<128> : NULL;
}
