/* backend_cuda/k_attend_row.cu - attention of spans of one row over F16 pages, and what comes before it: norms, rope, K and V into the page.
 *
 * The sums of k_attention.cu, whose comment says what tiles, items, blocks and quarters are.  A block of threads has two warps a quarter, each with half of
 * the values' elements.  All of a KV block's K and V are on their way before q is looked at, those of the first one while the kernel ahead still runs: that
 * one wrote this step's rows only, which are put over what was read (of one sequence the step may have several).  K of the next KV block is fetched behind
 * the scores, V behind the fold.  Split: the last of a tile's items folds the partials, in ascending order.  Loops are kept rolled: most of the code is run
 * once, and a step is as slow as its instructions come. */
#define KV_TABLE static __device__ const
#include "tensor/kv_tables.h"

#include "backend_cuda/attend.cuh"
#include "backend_cuda/head_vectors.cuh"
#include "backend_cuda/k_pages.cuh"

enum { THREADS = 256, WARPS = THREADS / 32, VECTORS = 16, HEAD = 128, PAD = 8 };

/* Shared memory of a block of threads, in this order. */
struct row_form {
    uint32_t d_k, d_v;
    __host__ __device__ uint32_t wide() const { return (d_v + 63) / 64 * 64; }                     /* elements of a row of V */
    __host__ __device__ uint32_t keys() const { return 4 * d_k * QUARTER * 2; }                    /* [quarter][element][position] */
    __host__ __device__ uint32_t values() const { return 4 * QUARTER * wide() * 2; }               /* [quarter][position][element]; then sums [vector][element] */
    __host__ __device__ uint32_t queries() const { return VECTORS * (d_k + PAD) * 2; }
    __host__ __device__ uint32_t total() const { return keys() + values() + queries() + (WARPS + VECTORS) * HEAD * 4 + 11 * VECTORS * 4 + 16; }
};

static __device__ __forceinline__ void commit(void)
{
    asm volatile("cp.async.commit_group;" ::: "memory");
}
static __device__ __forceinline__ void arrived_but_one(void)
{
    asm volatile("cp.async.wait_group 1;" ::: "memory");
}

static __device__ __noinline__ float soft_cap(float x, float cap)
{
    return cap * dev_tanh(x / cap);
}

struct attend_row {
    const cuda_p_attend_row &p;
    __half *keys, *values, *queries;
    float *turning, *maxima, *sums, *q_inverse; /* [warp][HEAD]; [4][VECTORS] of a KV block's quarters; [VECTORS] */
    float *total, *m, *l;   /* [vector][d_v], [VECTORS] */
    uint32_t *word;
    uint32_t lane, warp, quarter, part, wide;
    cuda_tile t;
    kv_span span;
    uint32_t kv_head, run;  /* run: first span of the step with the same sequence */
    int pos, least, fresh;  /* the row's; the first that it sees; the first of this step */

    __device__ attend_row(const cuda_p_attend_row &param, unsigned char *shared) : p(param)
    {
        row_form f = {p.a.d_k, p.a.d_v};
        keys = (__half *)shared;
        values = (__half *)(shared + f.keys());
        queries = (__half *)(shared + f.keys() + f.values());
        turning = (float *)(shared + f.keys() + f.values() + f.queries());
        maxima = turning + WARPS * HEAD, sums = maxima + 4 * VECTORS, q_inverse = sums + 4 * VECTORS;
        m = q_inverse + VECTORS, l = m + VECTORS, total = l + VECTORS;
        word = (uint32_t *)(total + VECTORS * HEAD);
        wide = f.wide();
        lane = threadIdx.x & 31, warp = threadIdx.x >> 5, quarter = warp / 2, part = warp % 2;
    }

    __device__ uint32_t group() const { return p.a.heads / p.a.kv_heads; }
    __device__ kv_span span_at(uint32_t i) const
    {
        uint4 v = __ldcg((const uint4 *)(p.a.spans + i));
        return {v.x, v.y, v.z, v.w};
    }
    __device__ unsigned char *page_at(uint32_t position) const
    {
        uint32_t id = __ldcg(p.a.tables + span.table_first + position / KV_PAGE);
        unsigned char *page = (unsigned char *)__ldcg((const unsigned long long *)p.a.pages + id);
        return page ? page + p.a.offset + (size_t)kv_head * p.a.head_bytes : NULL;
    }

    __device__ void take(uint32_t tile, uint32_t head)
    {
        const uint2 *from = (const uint2 *)(p.a.tiles->tiles + tile);
        uint2 v[3] = {__ldcg(from), __ldcg(from + 1), __ldcg(from + 2)};
        t = {v[0].x, v[0].y, v[1].x, v[1].y, v[2].x, v[2].y};
        span = span_at(t.span);
        kv_head = head;
        pos = (int)span.pos_first;
        least = p.a.window && pos + 1 > (int)p.a.window ? pos + 1 - (int)p.a.window : 0;
        run = t.span, fresh = p.prepare ? pos : pos + 1;
        while (p.prepare && run > 0) {
            kv_span before = span_at(run - 1);
            if (before.table_first != span.table_first)
                break;
            run--, fresh = (int)before.pos_first;
        }
    }

    /* A warp fetches one page of the KV block. */
    __device__ void fetch(uint32_t block, bool key)
    {
        int start = (int)(block * KV_BLOCK + warp * KV_PAGE);
        const unsigned char *page = start < fresh && start + KV_PAGE > least ? page_at((uint32_t)start) : NULL;
        if (key) {
            __half *to = keys + quarter * p.a.d_k * QUARTER;
#pragma unroll 2
            for (uint32_t i = lane; page && i < p.a.d_k * 4; i += 32) {
                uint32_t e = i / 4, piece = part * 4 + i % 4;
                pages_copy(to + e * QUARTER + (piece ^ (e & 7)) * 8, (const uint4 *)page + i, true);
            }
        } else {
            __half *to = values + (quarter * QUARTER + part * KV_PAGE) * wide;
            const __half *from = (const __half *)(page + p.a.k_bytes);
            uint32_t pieces = p.a.d_v / 8, all = wide / 8;
#pragma unroll 2
            for (uint32_t i = lane; i < KV_PAGE * all; i += 32) {
                uint32_t slot = i / all, piece = i % all;
                bool there = page && start + (int)slot >= least && start + (int)slot < fresh && piece < pieces;
                __half *at = to + slot * wide + (piece ^ (slot & 7)) * 8;
                if (there)
                    pages_copy(at, from + slot * p.a.d_v + piece * 8, true);
                else if (start + (int)slot < fresh || start + (int)slot > pos)
                    *(uint4 *)at = make_uint4(0, 0, 0, 0);
            }
        }
        commit();
    }

    /* A head vector of q, k or v in `turning`, normed and turned. */
    __device__ float *vector_read(const float *from, uint32_t d, const float *norm, uint32_t row, bool turned)
    {
        float *x = turning + warp * HEAD;
        for (uint32_t e = lane; e < d; e += 32)
            x[e] = __ldcg(from + e);
        __syncwarp();
        if (p.prepare && norm)
            pages_norm(x, norm, d, p.w.eps, lane);
        if (p.prepare && turned && p.w.rope)
            pages_rope(x, p.w.rope + (size_t)row * p.w.rope_stride, p.w.rope_pairs, p.w.adjacent, lane);
        return x;
    }

    __device__ void query(uint32_t v)
    {
        const float *from = p.a.q + (size_t)span.row_first * p.a.q_stride + (size_t)(kv_head * group() + v) * p.a.d_k;
        float *x = vector_read(from, p.a.d_k, p.w.q_norm, span.row_first, true);
        uint32_t most = 0;
        for (uint32_t e = lane; e < p.a.d_k; e += 32)
            most = max(most, __float_as_uint(x[e]) & 0x7fffffffu);
        float inverse, up = dev_row_factor(__uint_as_float(__reduce_max_sync(0xffffffffu, most)), &inverse);
        for (uint32_t e = lane; e < p.a.d_k; e += 32)
            queries[v * (p.a.d_k + PAD) + e] = __float2half_rn(x[e] * up);
        if (lane == 0)
            q_inverse[v] = inverse;
        __syncwarp();
    }

    /* K or V of a row of this step, over what was fetched; the row's own to its page. */
    __device__ void put(uint32_t which, bool key, uint32_t block)
    {
        kv_span s = span_at(which);
        if (s.pos_first / KV_BLOCK != block)
            return;
        uint32_t d = key ? p.a.d_k : p.a.d_v, at = s.pos_first % KV_BLOCK, slot = at % KV_PAGE;
        const float *from = key ? p.w.k + (size_t)s.row_first * p.w.k_stride : p.w.v + (size_t)s.row_first * p.w.v_stride;
        float *x = vector_read(from + (size_t)kv_head * d, d, key ? p.w.k_norm : NULL, s.row_first, key);
        unsigned char *page = which == t.span ? page_at(s.pos_first) : NULL;
        if (which == t.span && !page && lane == 0)
            *p.w.failed = 1;
        for (uint32_t e = lane; e < d; e += 32) {
            __half h = __float2half_rn(x[e]);
            uint32_t q = at / QUARTER, i = at % QUARTER;
            if (key)
                keys[(q * d + e) * QUARTER + ((i / 8 ^ e & 7) * 8 + i % 8)] = h;
            else
                values[(q * QUARTER + i) * wide + ((e / 8 ^ i & 7) * 8 + e % 8)] = h;
            if (page)
                ((__half *)(page + (key ? 0 : p.a.k_bytes)))[key ? e * KV_PAGE + slot : slot * d + e] = h;
        }
        __syncwarp();
    }

    __device__ void vectors(uint32_t block, bool first)
    {
        uint32_t q = first ? t.count : 0, n = p.prepare ? 2 * (t.span + 1 - run) : 0;
        for (uint32_t i = warp; i < q + n; i += WARPS)
            if (i < q)
                query(i);
            else
                put(run + (i - q) / 2, (i - q) % 2 == 0, block);
    }

    /* s[8][4]: 16 vectors by the quarter's 64 positions */
    __device__ __forceinline__ void scores(float s[8][4])
    {
        const __half *k = keys + quarter * p.a.d_k * QUARTER;
        uint32_t stride = p.a.d_k + PAD;
#pragma unroll
        for (int n = 0; n < 8; n++)
            s[n][0] = s[n][1] = s[n][2] = s[n][3] = 0;
#pragma unroll 2
        for (uint32_t e = 0; e < p.a.d_k; e += 16) {
            uint32_t a[4], b[4], row = e + lane % 16;
            matrix_read(a, queries + (lane % 16) * stride + e + lane / 16 * 8);
#pragma unroll
            for (int j = 0; j < 8; j += 2) {
                matrix_read_turned(b, k + row * QUARTER + ((j + lane / 16) ^ (row & 7)) * 8);
                mma(s[j], a, b[0], b[1]);
                mma(s[j + 1], a, b[2], b[3]);
            }
        }
    }

    /* Scores to weights in base 2; the quarters' maxima and sums. */
    __device__ __forceinline__ void weigh(uint32_t block, float s[8][4])
    {
        uint32_t g = lane >> 2, column = lane & 3, base = block * KV_BLOCK + quarter * QUARTER;
        float high[2] = {-DEV_INF, -DEV_INF}, sum[2] = {0, 0};
#pragma unroll
        for (int n = 0; n < 8; n++)
#pragma unroll
            for (int i = 0; i < 4; i++) {
                int at = (int)(base + 8 * n + 2 * column + (i & 1));
                float x = s[n][i] * (q_inverse[g + 8 * (i >> 1)] * p.a.scale);
                if (p.a.softcap > 0)
                    x = soft_cap(x, p.a.softcap);
                x = x * DEV_LOG2E;
                s[n][i] = at <= pos && at >= least ? x : -DEV_INF;
                high[i >> 1] = s[n][i] > high[i >> 1] || s[n][i] != s[n][i] ? s[n][i] : high[i >> 1];
            }
#pragma unroll
        for (int r = 0; r < 2; r++) {
            for (int o = 1; o < 4; o *= 2) {
                float u = __shfl_xor_sync(0xffffffffu, high[r], o);
                high[r] = u > high[r] || u != u ? u : high[r];
            }
            if (column == 0)
                maxima[quarter * VECTORS + g + 8 * r] = high[r];
        }
        __syncthreads();
#pragma unroll
        for (int r = 0; r < 2; r++) {
            float top = top_of(g + 8 * r);
#pragma unroll
            for (int n = 0; n < 8; n++)
#pragma unroll
                for (int i = 0; i < 2; i++) {
                    float x = s[n][2 * r + i], w = x == -DEV_INF ? 0.0f : exp2_fast(x - top);
                    w = __half2float(__float2half_rn(w));
                    s[n][2 * r + i] = w;
                    sum[r] = sum[r] + w;
                }
            for (int o = 1; o < 4; o *= 2)
                sum[r] = sum[r] + __shfl_xor_sync(0xffffffffu, sum[r], o);
            if (column == 0)
                sums[quarter * VECTORS + g + 8 * r] = sum[r];
        }
    }
    __device__ __forceinline__ float top_of(uint32_t v) const /* a block's largest score */
    {
        float top = maxima[v];
        for (int i = 1; i < 4; i++) {
            float u = maxima[i * VECTORS + v];
            top = u > top || u != u ? u : top;
        }
        return top;
    }
    __device__ __forceinline__ float sum_of(uint32_t v) const
    {
        return ((sums[v] + sums[VECTORS + v]) + sums[2 * VECTORS + v]) + sums[3 * VECTORS + v];
    }

    /* A quarter's weights times values: this warp's half of the elements, to where the quarter's V was. */
    __device__ __forceinline__ void weighted(const float s[8][4])
    {
        uint32_t g = lane >> 2, column = lane & 3, first = part * 8, tiles = p.a.d_v / 8;
        const __half *v = values + quarter * QUARTER * wide;
        float o[8][4];
#pragma unroll
        for (int n = 0; n < 8; n++)
            o[n][0] = o[n][1] = o[n][2] = o[n][3] = 0;
#pragma unroll
        for (int j = 0; j < 4; j++) {
            uint32_t a[4], b[4], row = 16 * j + lane % 16;
#pragma unroll
            for (int i = 0; i < 4; i++) {
                __half2 h = __floats2half2_rn(s[2 * j + (i >> 1)][2 * (i & 1)], s[2 * j + (i >> 1)][2 * (i & 1) + 1]);
                a[i] = *reinterpret_cast<uint32_t *>(&h);
            }
#pragma unroll
            for (int n = 0; n < 8; n += 2) {
                if (first + n >= tiles)
                    continue;
                matrix_read_turned(b, v + row * wide + ((first + n + lane / 16) ^ (row & 7)) * 8);
                mma(o[n], a, b[0], b[1]);
                mma(o[n + 1], a, b[2], b[3]);
            }
        }
        asm volatile("bar.sync %0, 64;" ::"r"(1 + quarter) : "memory");
        float *to = (float *)(values + quarter * QUARTER * wide);
#pragma unroll
        for (int n = 0; n < 8; n++)
#pragma unroll
            for (int i = 0; i < 4; i++)
                if (first + n < tiles && g + 8 * (i >> 1) < t.count)
                    to[(g + 8 * (i >> 1)) * p.a.d_v + 8 * (first + n) + 2 * column + (i & 1)] = o[n][i];
        __syncthreads();
    }

    __device__ __forceinline__ float block_sum(uint32_t i) const /* of the quarters, element i of [vector][element] */
    {
        const float *v = (const float *)values;
        uint32_t apart = QUARTER * wide / 2;
        return ((v[i] + v[apart + i]) + v[2 * apart + i]) + v[3 * apart + i];
    }

    /* The KV block's sums to the totals, or to `partial`. */
    __device__ __forceinline__ void fold(float *partial)
    {
        uint32_t wanted = t.count * p.a.d_v;
#pragma unroll 1
        for (uint32_t i = threadIdx.x; i < wanted; i += THREADS) {
            uint32_t v = i / p.a.d_v;
            float value = block_sum(i), mb = top_of(v), mv = m[v], top = mb != mb || !(mv > mb) ? mb : mv;
            if (partial)
                partial[(size_t)v * (p.a.d_v + 2) + i % p.a.d_v] = value;
            else if (mb != -DEV_INF) /* else nothing is seen in this block */
                total[i] = __fmaf_rn(total[i], exp2_fast(mv - top), value * exp2_fast(mb - top));
        }
        __syncthreads();
        if (threadIdx.x < t.count) {
            uint32_t v = threadIdx.x;
            float mb = top_of(v), lb = sum_of(v), mv = m[v], top = mb != mb || !(mv > mb) ? mb : mv;
            if (partial)
                partial[(size_t)v * (p.a.d_v + 2) + p.a.d_v] = mb, partial[(size_t)v * (p.a.d_v + 2) + p.a.d_v + 1] = lb;
            else if (mb != -DEV_INF)
                l[v] = __fmaf_rn(l[v], exp2_fast(mv - top), lb * exp2_fast(mb - top)), m[v] = top;
        }
        __syncthreads();
    }

    /* One KV block whose K and V are on their way; the next one is fetched meanwhile, if it is one of this item's. */
    __device__ __forceinline__ void one_block(uint32_t block, bool first, bool more, float *partial)
    {
        float s[8][4];
        arrived_but_one();
        __syncthreads();
        if (first) {
            for (uint32_t i = threadIdx.x; i < t.count * p.a.d_v; i += THREADS)
                total[i] = 0;
            if (threadIdx.x < VECTORS)
                m[threadIdx.x] = -DEV_INF, l[threadIdx.x] = 0;
        }
        vectors(block, first);
        __syncthreads();
        scores(s);
        weigh(block, s);
        if (more)
            fetch(block + 1, true);
        else
            commit();
        arrived_but_one();
        __syncthreads();
        weighted(s);
        fold(partial);
        if (more)
            fetch(block + 1, false);
        else
            commit();
    }

    /* Split: true for the one block of threads that finds all partials of its tile there. */
    __device__ bool last_of_tile(uint32_t tile)
    {
        __threadfence();
        __syncthreads();
        if (threadIdx.x == 0)
            *word = atomicInc(p.arrived + tile * p.a.kv_heads + kv_head, t.block_count - 1) == t.block_count - 1;
        __syncthreads();
        __threadfence();
        return *word;
    }
    __device__ __forceinline__ void put_row(uint32_t i, float x, float m_all, float l_all)
    {
        uint32_t v = i / p.a.d_v, e = i % p.a.d_v, head = kv_head * group() + v;
        p.a.y[(size_t)span.row_first * p.a.y_stride + (size_t)head * p.a.d_v + e] = x * share(p.a, head, m_all, l_all);
    }
    /* y: of the totals, or of the tile's `parts` partials in ascending order. */
    __device__ __forceinline__ void finish(uint32_t parts)
    {
        uint32_t step = VECTORS * (p.a.d_v + 2);
        const float *from = p.a.partial + (size_t)(t.item_first * p.a.kv_heads + kv_head * t.block_count) * step;
#pragma unroll 1
        for (uint32_t i = threadIdx.x; i < t.count * p.a.d_v; i += THREADS) {
            uint32_t v = i / p.a.d_v;
            const float *part = from + v * (p.a.d_v + 2);
            float x = parts ? 0 : total[i], mv = parts ? -DEV_INF : m[v], lv = parts ? 0 : l[v];
#pragma unroll 2
            for (uint32_t b = 0; b < parts; b++, part += step) {
                float value = __ldcg(part + i % p.a.d_v), mb = __ldcg(part + p.a.d_v), lb = __ldcg(part + p.a.d_v + 1);
                float top = mb != mb || !(mv > mb) ? mb : mv, keep = exp2_fast(mv - top), add = exp2_fast(mb - top);
                if (mb == -DEV_INF)
                    continue;
                x = __fmaf_rn(x, keep, value * add), lv = __fmaf_rn(lv, keep, lb * add), mv = top;
            }
            put_row(i, x, mv, lv);
        }
    }
};

static __global__ void __launch_bounds__(THREADS, 2) attend_rows(const __grid_constant__ cuda_p_attend_row p)
{
    extern __shared__ __align__(128) unsigned char shared[];
    attend_row a(p, shared);
    if (!p.early)
        dev_wait();
    uint32_t items = __ldcg(&p.a.tiles->item_count), split = __ldcg(&p.a.tiles->split);
    for (uint32_t x = blockIdx.x; x < items || x == blockIdx.x; x += gridDim.x) {
        uint32_t tile = 0, from = 0, to = 0;
        if (x < items) {
            tile = split ? tile_find(p.a.tiles, p.a.kv_heads, x) : x / p.a.kv_heads;
            a.take(tile, x % p.a.kv_heads);
            uint32_t rest = x - a.t.item_first * p.a.kv_heads;
            if (split)
                a.kv_head = rest / a.t.block_count;
            from = a.t.block_first + (split ? rest % a.t.block_count : 0), to = split ? from + 1 : a.t.block_first + a.t.block_count;
#pragma unroll 1
            for (int value = 0; value < 2; value++)
                a.fetch(from, value == 0);
        }
        if (x == blockIdx.x) {
            if (p.early)
                dev_wait();
            dev_launch_next();
        }
        if (x >= items)
            break;
        bool partial = split && a.t.block_count > 1;
#pragma unroll 1
        for (uint32_t b = from; b < to; b++)
            a.one_block(b, b == from, b + 1 < to, partial ? p.a.partial + (size_t)x * VECTORS * (p.a.d_v + 2) : NULL);
        if (!partial || a.last_of_tile(tile))
            a.finish(partial ? a.t.block_count : 0);
    }
}

extern "C" uint32_t cuda_attend_row_smem(uint32_t d_k, uint32_t d_v)
{
    return row_form{d_k, d_v}.total();
}

extern "C" const void *const cuda_kernel_attend_row = (const void *)attend_rows;
