/* backend_cuda/k_attend_row.cu - attention of spans of one row over F16 pages, and what comes before it: norms, rope, K and V into the page.
 *
 * The sums of k_attention.cu, whose comment says what tiles, items, blocks and quarters are.  A block of threads has two warps a quarter, each with half of
 * the values' elements.  Shared memory holds two halves of 32 KB: K's elements, then V's in their place, so that two blocks of threads fit on a
 * multiprocessor.  K of an item's first KV block is on its way before q is looked at, while the kernel ahead still runs: that one wrote this step's rows only,
 * which are put over what was read (of one sequence the step may have several).  Split: the last of a tile's items folds the partials, in ascending order.
 * Loops are kept rolled: most of the code is run once, and a step is as slow as its instructions come. */
#define KV_TABLE static __device__ const
#include "tensor/kv_tables.h"

#include "backend_cuda/attend.cuh"
#include "backend_cuda/head_vectors.cuh"
#include "backend_cuda/k_pages.cuh"

enum { THREADS = CUDA_ATTEND_ROW_THREADS, WARPS = THREADS / 32, VECTORS = 16, HEAD = 128, PAD = 8, HALF = 64 /* elements */,
       HALF_BYTES = 4 * QUARTER * HALF * 2 };

/* Shared memory, in this order: two halves, queries, then floats. */
struct row_form {
    uint32_t d_k;
    __host__ __device__ uint32_t queries() const { return VECTORS * (d_k + PAD) * 2; }
    __host__ __device__ uint32_t total() const { return 2 * HALF_BYTES + queries() + (WARPS + VECTORS) * HEAD * 4 + 11 * VECTORS * 4 + 16; }
};

static __device__ __noinline__ float soft_cap(float x, float cap)
{
    return cap * dev_tanh(x / cap);
}

struct attend_row {
    const cuda_p_attend_row *p;
    unsigned char *halves;  /* [half]: K [quarter][element][position], V [quarter][position][element], then sums [quarter][vector][element] */
    __half *queries;
    float *turning, *maxima, *sums, *q_inverse; /* [warp][HEAD]; [4][VECTORS] of a KV block's quarters; [VECTORS] */
    float *total, *m, *l;   /* [vector][d_v], [VECTORS] */
    uint32_t *word;
    uint32_t lane, warp, quarter, part;
    cuda_tile t;
    kv_span span;
    uint32_t kv_head, run;  /* run: first span of the step with the same sequence */
    int pos, least, fresh;  /* the row's; the first that it sees; the first of this step */
    const unsigned char *page_own, *page_mine; /* where the row goes; this warp's page of KV block `mine`: beginnings, without layer and head */
    uint32_t mine;

    __device__ attend_row(const cuda_p_attend_row *param, unsigned char *shared) : p(param), halves(shared)
    {
        lane = threadIdx.x & 31, warp = threadIdx.x >> 5, quarter = warp / 2, part = warp % 2;
        queries = (__half *)(shared + 2 * HALF_BYTES);
        turning = (float *)(shared + 2 * HALF_BYTES + row_form{p->a.d_k}.queries());
        maxima = turning + WARPS * HEAD, sums = maxima + 4 * VECTORS, q_inverse = sums + 4 * VECTORS;
        m = q_inverse + VECTORS, l = m + VECTORS, total = l + VECTORS;
        word = (uint32_t *)(total + VECTORS * HEAD);
    }

    __device__ uint32_t group() const { return p->a.heads / p->a.kv_heads; }
    __device__ uint32_t half_k() const { return (p->a.d_k / 2 + 15) / 16 * 16; }
    __device__ kv_span span_at(uint32_t i) const
    {
        uint4 v = __ldcg((const uint4 *)(p->a.spans + i));
        return {v.x, v.y, v.z, v.w};
    }
    __device__ const unsigned char *page_at(uint32_t position) const
    {
        uint32_t id = __ldcg(p->a.tables + span.table_first + position / KV_PAGE);
        return (const unsigned char *)__ldcg((const unsigned long long *)p->a.pages + id);
    }
    __device__ size_t in_page(void) const { return p->a.offset + (size_t)kv_head * p->a.head_bytes; }

    /* Item x: its first KV block, and that behind its last. */
    __device__ void item(uint32_t x, uint32_t *tile, uint32_t *from, uint32_t *to)
    {
        uint32_t split = __ldcg(&p->a.tiles->split);
        *tile = split ? tile_find(p->a.tiles, p->a.kv_heads, x) : x / p->a.kv_heads;
        take(*tile, x % p->a.kv_heads);
        uint32_t rest = x - t.item_first * p->a.kv_heads;
        if (split)
            kv_head = rest / t.block_count;
        *from = t.block_first + (split ? rest % t.block_count : 0), *to = split ? *from + 1 : t.block_first + t.block_count;
        page_of(*from);
    }
    __device__ void take(uint32_t tile, uint32_t head)
    {
        const uint2 *from = (const uint2 *)&p->a.tiles->tiles[tile].tile;
        uint2 v[3] = {__ldcg(from), __ldcg(from + 1), __ldcg(from + 2)};
        t = {v[0].x, v[0].y, v[1].x, v[1].y, v[2].x, v[2].y};
        span = span_at(t.span);
        kv_head = head;
        pos = (int)span.pos_first;
        least = p->a.window && pos + 1 > (int)p->a.window ? pos + 1 - (int)p->a.window : 0;
        run = t.span, fresh = p->prepare ? pos : pos + 1;
        while (p->prepare && run > 0) {
            kv_span before = span_at(run - 1);
            if (before.table_first != span.table_first)
                break;
            run--, fresh = (int)before.pos_first;
        }
        page_own = page_at(span.pos_first);
    }
    __device__ void page_of(uint32_t block)
    {
        int start = (int)(block * KV_BLOCK + warp * KV_PAGE);
        page_mine = start < fresh && start + KV_PAGE > least ? page_at((uint32_t)start) : NULL;
        mine = block;
    }

    /* A warp fetches one page of the KV block: K's elements of a half. */
    __device__ void fetch_keys(uint32_t half)
    {
        uint32_t first = half ? half_k() : 0, n = half ? p->a.d_k - first : half_k();
        __half *to = (__half *)(halves + half * HALF_BYTES) + quarter * half_k() * QUARTER;
        const uint4 *from = (const uint4 *)(page_mine + in_page()) + first * 4;
#pragma unroll 2
        for (uint32_t i = lane; page_mine && i < n * 4; i += 32) {
            uint32_t e = i / 4, piece = part * 4 + i % 4;
            pages_copy(to + e * QUARTER + (piece ^ (e & 7)) * 8, from + i, true);
        }
    }
    __device__ void fetch_values(uint32_t half)
    {
        uint32_t first = half * HALF, pieces = p->a.d_v > first ? (p->a.d_v - first) / 8 : 0;
        int start = (int)(mine * KV_BLOCK + warp * KV_PAGE);
        __half *to = (__half *)(halves + half * HALF_BYTES) + (quarter * QUARTER + part * KV_PAGE) * HALF;
        const __half *from = (const __half *)(page_mine + in_page() + p->a.k_bytes) + first;
#pragma unroll 2
        for (uint32_t i = lane; pieces && i < KV_PAGE * HALF / 8; i += 32) {
            uint32_t slot = i / 8, piece = i % 8;
            bool there = page_mine && start + (int)slot >= least && start + (int)slot < fresh && piece < pieces;
            __half *at = to + slot * HALF + (piece ^ (slot & 7)) * 8;
            if (there)
                pages_copy(at, from + slot * p->a.d_v + piece * 8, true);
            else if (start + (int)slot < fresh || start + (int)slot > pos)
                *(uint4 *)at = make_uint4(0, 0, 0, 0);
        }
    }

    /* A head vector of q or k in `turning`, normed and turned. */
    __device__ float *vector_read(const float *from, const float *norm, uint32_t row)
    {
        float *x = turning + warp * HEAD;
        for (uint32_t e = lane; e < p->a.d_k; e += 32)
            x[e] = __ldcg(from + e);
        __syncwarp();
        if (p->prepare && norm)
            pages_norm(x, norm, p->a.d_k, p->w.eps, lane);
        if (p->prepare && p->w.rope)
            pages_rope(x, p->w.rope + (size_t)row * p->w.rope_stride, p->w.rope_pairs, p->w.adjacent, lane);
        return x;
    }

    __device__ void query(uint32_t v)
    {
        const float *from = p->a.q + (size_t)span.row_first * p->a.q_stride + (size_t)(kv_head * group() + v) * p->a.d_k;
        float *x = vector_read(from, p->w.q_norm, span.row_first);
        uint32_t most = 0;
        for (uint32_t e = lane; e < p->a.d_k; e += 32)
            most = max(most, __float_as_uint(x[e]) & 0x7fffffffu);
        float inverse, up = dev_row_factor(__uint_as_float(__reduce_max_sync(0xffffffffu, most)), &inverse);
        for (uint32_t e = lane; e < p->a.d_k; e += 32)
            queries[v * (p->a.d_k + PAD) + e] = __float2half_rn(x[e] * up);
        if (lane == 0)
            q_inverse[v] = inverse;
        __syncwarp();
    }

    /* Where a row of this step is stored; NULL: not by this item. */
    __device__ unsigned char *page_to(uint32_t which)
    {
        if (which != t.span)
            return NULL;
        if (!page_own && lane == 0)
            *p->w.failed = 1;
        return page_own ? (unsigned char *)page_own + in_page() : NULL;
    }
    /* K of a row of this step, over what was fetched; the row's own to its page. */
    __device__ void put_key(uint32_t which, uint32_t block)
    {
        kv_span s = which == t.span ? span : span_at(which);
        if (s.pos_first / KV_BLOCK != block)
            return;
        uint32_t d = p->a.d_k, at = s.pos_first % KV_BLOCK, q = at / QUARTER, i = at % QUARTER;
        float *x = vector_read(p->w.k + (size_t)s.row_first * p->w.k_stride + (size_t)kv_head * d, p->w.k_norm, s.row_first);
        unsigned char *page = page_to(which);
        for (uint32_t e = lane; e < d; e += 32) {
            __half h = __float2half_rn(x[e]);
            uint32_t high = e >= half_k(), c = high ? e - half_k() : e;
            ((__half *)(halves + high * HALF_BYTES))[(q * half_k() + c) * QUARTER + ((i / 8 ^ c & 7) * 8 + i % 8)] = h;
            if (page)
                ((__half *)page)[e * KV_PAGE + at % KV_PAGE] = h;
        }
        __syncwarp();
    }
    /* The same of V, whose floats were read before. */
    __device__ void put_value(uint32_t which, uint32_t block, const float *x)
    {
        kv_span s = which == t.span ? span : span_at(which);
        if (s.pos_first / KV_BLOCK != block)
            return;
        uint32_t d = p->a.d_v, at = s.pos_first % KV_BLOCK, i = at % QUARTER;
        unsigned char *page = page_to(which);
#pragma unroll
        for (uint32_t j = 0; j < HEAD / 32; j++) {
            uint32_t e = lane + 32 * j, c = e % HALF;
            if (e >= d)
                break;
            __half h = __float2half_rn(x[j]);
            ((__half *)(halves + e / HALF * HALF_BYTES))[at * HALF + ((c / 8 ^ i & 7) * 8 + c % 8)] = h;
            if (page)
                ((__half *)(page + p->a.k_bytes))[at % KV_PAGE * d + e] = h;
        }
    }
    __device__ void value_read(uint32_t which, float *x)
    {
        kv_span s = which == t.span ? span : span_at(which);
        const float *from = p->w.v + (size_t)s.row_first * p->w.v_stride + (size_t)kv_head * p->a.d_v;
#pragma unroll
        for (uint32_t j = 0; j < HEAD / 32; j++)
            x[j] = lane + 32 * j < p->a.d_v ? __ldcg(from + lane + 32 * j) : 0;
    }

    /* Elements [from, to) added to s[8][4]: 16 vectors by the quarter's 64 positions. */
    __device__ __forceinline__ void scores(float s[8][4], uint32_t half)
    {
        uint32_t first = half ? half_k() : 0, n = half ? p->a.d_k - first : half_k(), stride = p->a.d_k + PAD;
        const __half *k = (const __half *)(halves + half * HALF_BYTES) + quarter * half_k() * QUARTER;
#pragma unroll 2
        for (uint32_t e = 0; e < n; e += 16) {
            uint32_t a[4], b[4], row = e + lane % 16;
            matrix_read(a, queries + (lane % 16) * stride + first + e + lane / 16 * 8);
#pragma unroll
            for (int j = 0; j < 8; j += 2) {
                matrix_read_turned(b, k + row * QUARTER + ((j + lane / 16) ^ (row & 7)) * 8);
                mma(s[j], a, b[0], b[1]);
                mma(s[j + 1], a, b[2], b[3]);
            }
        }
    }

    /* Scores to weights in base 2; the quarters' maxima and sums.  ROWS: of g and g + 8 */
    template <int ROWS> __device__ __forceinline__ void weigh(uint32_t block, float s[8][4])
    {
        uint32_t g = lane >> 2, column = lane & 3, base = block * KV_BLOCK + quarter * QUARTER;
        float high[2] = {-DEV_INF, -DEV_INF}, sum[2] = {0, 0};
#pragma unroll
        for (int n = 0; n < 8; n++)
#pragma unroll
            for (int i = 0; i < 2 * ROWS; i++) {
                int at = (int)(base + 8 * n + 2 * column + (i & 1));
                float x = s[n][i] * (q_inverse[g + 8 * (i >> 1)] * p->a.scale);
                if (p->a.softcap > 0)
                    x = soft_cap(x, p->a.softcap);
                x = x * DEV_LOG2E;
                s[n][i] = at <= pos && at >= least ? x : -DEV_INF;
                high[i >> 1] = s[n][i] > high[i >> 1] || s[n][i] != s[n][i] ? s[n][i] : high[i >> 1];
            }
#pragma unroll
        for (int r = 0; r < ROWS; r++) {
            for (int o = 1; o < 4; o *= 2) {
                float u = __shfl_xor_sync(0xffffffffu, high[r], o);
                high[r] = u > high[r] || u != u ? u : high[r];
            }
            if (column == 0)
                maxima[quarter * VECTORS + g + 8 * r] = high[r];
        }
        __syncthreads();
#pragma unroll
        for (int r = 0; r < ROWS; r++) {
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

    /* A quarter's weights times values: this warp's half of the elements, to where these V were; no other warp reads there. */
    __device__ __forceinline__ void weighted(const float s[8][4])
    {
        uint32_t g = lane >> 2, column = lane & 3, tiles = p->a.d_v > part * HALF ? (p->a.d_v - part * HALF) / 8 : 0;
        unsigned char *at = halves + part * HALF_BYTES + quarter * QUARTER * HALF * 2;
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
                if (n >= tiles)
                    continue;
                matrix_read_turned(b, (const __half *)at + row * HALF + ((n + lane / 16) ^ (row & 7)) * 8);
                mma(o[n], a, b[0], b[1]);
                mma(o[n + 1], a, b[2], b[3]);
            }
        }
        __syncwarp();
#pragma unroll
        for (int n = 0; n < 8; n++)
#pragma unroll
            for (int i = 0; i < 4; i++)
                if (n < tiles && g + 8 * (i >> 1) < t.count)
                    ((float *)at)[(g + 8 * (i >> 1)) * HALF + 8 * n + 2 * column + (i & 1)] = o[n][i];
        __syncthreads();
    }

    __device__ __forceinline__ float block_sum(uint32_t v, uint32_t e) const /* of the quarters */
    {
        const float *at = (const float *)(halves + e / HALF * HALF_BYTES) + v * HALF + e % HALF;
        const uint32_t apart = QUARTER * HALF / 2;
        return ((at[0] + at[apart]) + at[2 * apart]) + at[3 * apart];
    }

    /* The KV block's sums to the totals, or to `partial`. */
    __device__ __forceinline__ void fold(float *partial)
    {
        uint32_t wanted = t.count * p->a.d_v;
#pragma unroll 1
        for (uint32_t i = threadIdx.x; i < wanted; i += THREADS) {
            uint32_t v = i / p->a.d_v, e = i % p->a.d_v;
            float value = block_sum(v, e), mb = top_of(v), mv = m[v], top = mb != mb || !(mv > mb) ? mb : mv;
            if (partial)
                partial[(size_t)v * (p->a.d_v + 2) + e] = value;
            else if (mb != -DEV_INF) /* else nothing is seen in this block */
                total[i] = __fmaf_rn(total[i], exp2_fast(mv - top), value * exp2_fast(mb - top));
        }
        __syncthreads();
        if (threadIdx.x < t.count) {
            uint32_t v = threadIdx.x;
            float mb = top_of(v), lb = sum_of(v), mv = m[v], top = mb != mb || !(mv > mb) ? mb : mv;
            if (partial)
                partial[(size_t)v * (p->a.d_v + 2) + p->a.d_v] = mb, partial[(size_t)v * (p->a.d_v + 2) + p->a.d_v + 1] = lb;
            else if (mb != -DEV_INF)
                l[v] = __fmaf_rn(l[v], exp2_fast(mv - top), lb * exp2_fast(mb - top)), m[v] = top;
        }
        __syncthreads();
    }

    /* One KV block whose K is on its way. */
    __device__ __forceinline__ void one_block(uint32_t block, bool first, float *partial)
    {
        float s[8][4] = {}, v[HEAD / 32];
        uint32_t rows = p->prepare ? t.span + 1 - run : 0, queries_left = first ? t.count : 0;
        if (warp < rows)
            value_read(run + warp, v); /* looked at when V's place is free */
        pages_arrived();
        __syncthreads();
        if (first) {
            for (uint32_t i = threadIdx.x; i < t.count * p->a.d_v; i += THREADS)
                total[i] = 0;
            if (threadIdx.x < VECTORS)
                m[threadIdx.x] = -DEV_INF, l[threadIdx.x] = 0;
        }
        for (uint32_t i = warp; i < queries_left + rows; i += WARPS)
            if (i < queries_left)
                query(i);
            else
                put_key(run + i - queries_left, block);
        __syncthreads();
        scores(s, 0);
        __syncthreads();
        fetch_values(0);
        scores(s, 1);
        __syncthreads();
        fetch_values(1);
        for (uint32_t i = warp; i < rows; i += WARPS) {
            if (i != warp)
                value_read(run + i, v);
            put_value(run + i, block, v);
        }
        if (t.count <= 8)
            weigh<1>(block, s);
        else
            weigh<2>(block, s);
        pages_arrived();
        __syncthreads();
        weighted(s);
        fold(partial);
    }
    /* An item whose first KV block's K is on its way. */
    __device__ __forceinline__ void blocks(uint32_t from, uint32_t to, float *partial)
    {
#pragma unroll 1
        for (uint32_t b = from; b < to; b++) {
            if (b != from) {
                page_of(b);
                fetch_keys(0), fetch_keys(1);
            }
            one_block(b, b == from, partial);
        }
    }

    /* Split: true for the one block of threads that finds all partials of its tile there. */
    __device__ bool last_of_tile(uint32_t tile)
    {
        __threadfence();
        __syncthreads();
        if (threadIdx.x == 0)
            *word = atomicInc(p->arrived + tile * p->a.kv_heads + kv_head, t.block_count - 1) == t.block_count - 1;
        __syncthreads();
        __threadfence();
        return *word;
    }
    __device__ __forceinline__ void put_row(uint32_t v, uint32_t e, float x)
    {
        p->a.y[(size_t)span.row_first * p->a.y_stride + (size_t)(kv_head * group() + v) * p->a.d_v + e] = x;
    }
    __device__ __forceinline__ void finish(void) /* y of the totals */
    {
        if (threadIdx.x < t.count)
            maxima[threadIdx.x] = share(p->a, kv_head * group() + threadIdx.x, m[threadIdx.x], l[threadIdx.x]);
        __syncthreads();
#pragma unroll 1
        for (uint32_t i = threadIdx.x; i < t.count * p->a.d_v; i += THREADS)
            put_row(i / p->a.d_v, i % p->a.d_v, total[i] * maxima[i / p->a.d_v]);
    }
    /* y of the tile's partials in ascending order, as many at a time as the halves have room for. */
    __device__ void finish_parts(void)
    {
        const uint32_t step = VECTORS * (p->a.d_v + 2), each = (t.count * (p->a.d_v + 2) + 3) / 4, most = 2 * HALF_BYTES / 16 / each;
        const float *from = p->a.partial + (size_t)(t.item_first * p->a.kv_heads + kv_head * t.block_count) * step;
        uint32_t turn = 0;
#pragma unroll 1
        for (uint32_t first = 0; first < t.block_count; first += most, turn ^= VECTORS) {
            uint32_t n = min(most, t.block_count - first), last = first + n == t.block_count;
            __syncthreads();
#pragma unroll 2
            for (uint32_t i = threadIdx.x; i < n * each; i += THREADS)
                pages_copy((__half *)(halves + i * 16), (const uint4 *)(from + (size_t)(first + i / each) * step) + i % each, true);
            pages_arrived();
            __syncthreads();
#pragma unroll 1
            for (uint32_t i = threadIdx.x; i < t.count * p->a.d_v; i += THREADS) {
                uint32_t v = i / p->a.d_v, e = i % p->a.d_v;
                const float *at = (const float *)halves + v * (p->a.d_v + 2);
                float x = first ? total[i] : 0, mv = first ? maxima[turn + v] : -DEV_INF, lv = first ? sums[turn + v] : 0;
#pragma unroll 2
                for (uint32_t b = 0; b < n; b++, at += each * 4) {
                    float value = at[e], mb = at[p->a.d_v], lb = at[p->a.d_v + 1];
                    float top = mb != mb || !(mv > mb) ? mb : mv, keep = exp2_fast(mv - top), add = exp2_fast(mb - top);
                    if (mb == -DEV_INF)
                        continue;
                    x = __fmaf_rn(x, keep, value * add), lv = __fmaf_rn(lv, keep, lb * add), mv = top;
                }
                if (last)
                    put_row(v, e, x * share(p->a, kv_head * group() + v, mv, lv));
                else
                    total[i] = x;
                if (!last && e == 0)
                    maxima[(turn ^ VECTORS) + v] = mv, sums[(turn ^ VECTORS) + v] = lv;
            }
        }
        __syncthreads();
    }
    /* A whole item, whose first K is on its way. */
    __device__ __forceinline__ void work(uint32_t x, uint32_t tile, uint32_t from, uint32_t to)
    {
        bool partial = __ldcg(&p->a.tiles->split) && t.block_count > 1;
        blocks(from, to, partial ? p->a.partial + (size_t)x * VECTORS * (p->a.d_v + 2) : NULL);
        if (!partial)
            finish();
        else if (last_of_tile(tile))
            finish_parts();
    }
};

static __global__ void __launch_bounds__(THREADS, 2) attend_rows(const __grid_constant__ cuda_p_attend_row p)
{
    extern __shared__ __align__(128) unsigned char shared[];
    attend_row a(&p, shared);
    if (!p.early)
        dev_wait();
    uint32_t items = __ldcg(&p.a.tiles->item_count);
    for (uint32_t x = blockIdx.x; x < items || x == blockIdx.x; x += gridDim.x) {
        uint32_t tile = 0, from = 0, to = 0;
        if (x < items) {
            a.item(x, &tile, &from, &to);
            a.fetch_keys(0), a.fetch_keys(1);
        }
        if (x == blockIdx.x) {
            if (p.early)
                dev_wait();
            dev_launch_next();
        }
        if (x < items)
            a.work(x, tile, from, to);
        else
            dev_linger();
    }
}

extern "C" uint32_t cuda_attend_row_smem(uint32_t d_k, uint32_t)
{
    return row_form{d_k}.total();
}

extern "C" const void *const cuda_kernel_attend_row = (const void *)attend_rows;
