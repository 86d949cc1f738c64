/* backend_cuda/k_attention.cu - attention over pages.
 *
 * A block of threads takes a tile of vectors (row of a span, head of a group) of one kv head.  KV blocks of 256 absolute positions are computed
 * each from nothing: four quarters of 64 positions, one warp each (and 16 vectors); scores are one chain of mma over the head, the weighted
 * values one chain over a quarter's positions, quarters are added in ascending order, blocks are folded in ascending order.  Positions a row does not see
 * have weight 0, so neither tiles nor cuts show.  Few tiles: an item is one block and attn_fold folds (split); many: an item is a tile and folds itself.
 * The TALL form has 64 vectors a tile.  The DEEP form, for wide heads, has three more warps a quarter that only fetch, and fetches a chunk of K or V while the one
 * before it is computed.  The same sums. */
#define KV_TABLE [[maybe_unused]] static __device__ const
#include "tensor/kv_tables.h"

#include "backend_cuda/k_pages.cuh"
#include "backend_cuda/attend.cuh"

enum { CHUNK = 128, PAD = 8, TILES_THREADS = 1024, DEEP_WITH = CUDA_ATTEND_DEEP_THREADS / 128 };

/* ---- tiles ---- */

static __device__ __forceinline__ void tile_of(const cuda_p_tiles &p, const kv_span &s, uint32_t first, cuda_tile *t)
{
    uint32_t vectors = s.row_count * p.group, last = first + p.tile_vectors < vectors ? first + p.tile_vectors : vectors;
    uint32_t row0 = s.pos_first + first / p.group, row1 = s.pos_first + (last - 1) / p.group;
    uint32_t low = p.window && row0 + 1 > p.window ? row0 + 1 - p.window : 0;
    t->first = first;
    t->count = last - first;
    t->block_first = low / KV_BLOCK;
    t->block_count = row1 / KV_BLOCK + 1 - t->block_first;
}

static __device__ __forceinline__ uint32_t warp_scan(uint32_t v)
{
    for (uint32_t o = 1; o < 32; o *= 2) {
        uint32_t u = __shfl_up_sync(0xffffffffu, v, o);
        v += threadIdx.x % 32 >= o ? u : 0;
    }
    return v;
}
/* Inclusive sum over the block's threads; shared: a word a warp. */
static __device__ __forceinline__ uint32_t scan(uint32_t v, uint32_t *shared)
{
    uint32_t warp = threadIdx.x / 32;
    v = warp_scan(v);
    if (threadIdx.x % 32 == 31)
        shared[warp] = v;
    __syncthreads();
    if (warp == 0)
        shared[threadIdx.x] = warp_scan(shared[threadIdx.x]);
    __syncthreads();
    return v + (warp ? shared[warp - 1] : 0);
}

static __global__ void __launch_bounds__(TILES_THREADS) make_tiles(const __grid_constant__ cuda_p_tiles p)
{
    dev_begin();
    __shared__ uint32_t a[TILES_THREADS / 32], b[TILES_THREADS / 32], done_tiles, done_items;
    if (threadIdx.x == 0)
        done_tiles = done_items = 0;
    __syncthreads();
    for (uint32_t from = 0; from < p.span_count; from += blockDim.x) {
        uint32_t i = from + threadIdx.x, tiles = 0, items = 0;
        cuda_tile t;
        kv_span s = {0, 0, 0, 0};
        if (i < p.span_count)
            s = p.spans[i];
        for (uint32_t v = 0; v < s.row_count * p.group; v += p.tile_vectors, tiles++) {
            tile_of(p, s, v, &t);
            items += t.block_count;
        }
        uint32_t tiles_end = scan(tiles, a), items_end = scan(items, b);
        uint32_t at = done_tiles + tiles_end - tiles, item = done_items + items_end - items;
        for (uint32_t v = 0; v < s.row_count * p.group; v += p.tile_vectors, at++) {
            tile_of(p, s, v, &t);
            t.span = i;
            t.item_first = item;
            item += t.block_count;
            if (at < p.tiles_max)
                p.tiles->tiles[at] = {t, s.row_first, s.pos_first, s.table_first, {}};
            else
                *p.failed = 1;
        }
        __syncthreads();
        if (threadIdx.x == blockDim.x - 1)
            done_tiles += tiles_end, done_items += items_end;
        __syncthreads();
    }
    if (threadIdx.x)
        return;
    uint32_t whole = done_tiles * p.kv_heads, parts = done_items * p.kv_heads;
    bool split = p.tile_vectors == 16 && parts <= p.items_max && whole < 4 * p.workers;
    p.tiles->tile_count = done_tiles;
    p.tiles->split = split;
    p.tiles->blocks = done_items;
    p.tiles->item_count = split ? parts : whole;
}

/* ---- attention ---- */

/* Shared memory of a block of threads, in this order. */
template <int MT, int WITH> struct shared_form { /* WITH: warps that fetch for each that computes */
    enum { VECTORS = 16 * MT, THREADS = 128 * MT * WITH, AHEAD = WITH > 1, TILE = 4 * CHUNK * (QUARTER + PAD) };
    uint32_t d_k, d_v;
    __host__ __device__ uint32_t q_stride() const { return (d_k + 15) / 16 * 16 + PAD; }
    __host__ __device__ uint32_t tile_bytes() const { return (1 + AHEAD) * TILE * 2; } /* K [element][position], or V [position][element] */
    __host__ __device__ uint32_t total() const
    {
        uint32_t turning = VECTORS * d_k * 4, tile = tile_bytes() > turning ? tile_bytes() : turning;
        return (VECTORS * q_stride() * 2 + 15) / 16 * 16 + tile + VECTORS * d_v * 4 + VECTORS * CHUNK * 4 + VECTORS * 4 * 14;
    }
};

template <int MT, int WITH> struct attention {
    using form = shared_form<MT, WITH>;
    const cuda_p_attention &p;
    __half *q, *tile;
    float *total, *block, *turning;
    float *maxima, *sums;      /* [4][vectors] of a block's quarters */
    float *m, *l, *m_block, *l_block, *q_inverse; /* [vectors] */
    int *pos;                  /* of each vector's row */
    kv_span span;
    const uint32_t *table;
    uint32_t kv_head, first, count, warp_m, quarter, lane;
    bool helper;               /* of the warps that only fetch */
    int most, least;           /* positions any vector of the tile sees */

    __device__ attention(const cuda_p_attention &param, unsigned char *shared) : p(param)
    {
        form f = {p.d_k, p.d_v};
        uint32_t turn = form::VECTORS * p.d_k * 4, tile_size = f.tile_bytes() > turn ? f.tile_bytes() : turn;
        q = (__half *)shared;
        shared += (form::VECTORS * f.q_stride() * 2 + 15) / 16 * 16;
        tile = (__half *)shared, turning = (float *)shared;
        total = (float *)(shared + tile_size);
        block = total + form::VECTORS * p.d_v;
        maxima = block + form::VECTORS * CHUNK;
        sums = maxima + 4 * form::VECTORS;
        m = sums + 4 * form::VECTORS, l = m + form::VECTORS, m_block = l + form::VECTORS, l_block = m_block + form::VECTORS;
        q_inverse = l_block + form::VECTORS;
        pos = (int *)(q_inverse + form::VECTORS);
        lane = threadIdx.x & 31, quarter = threadIdx.x / 32 % 4, warp_m = threadIdx.x / 128 % MT, helper = threadIdx.x >= 128 * MT;
    }

    __device__ uint32_t row_of(uint32_t v) const { return span.row_first + (first + v) / (p.heads / p.kv_heads); }
    __device__ uint32_t head_of(uint32_t v) const { return kv_head * (p.heads / p.kv_heads) + (first + v) % (p.heads / p.kv_heads); }

    /* Queries: turned as K is, a power of two apart, to f16. */
    __device__ void queries()
    {
        uint32_t stride = form{p.d_k, p.d_v}.q_stride(), warp = threadIdx.x / 32;
        for (uint32_t v = warp; v < form::VECTORS; v += form::THREADS / 32) {
            float *x = turning + v * p.d_k, most_q = 0;
            for (uint32_t e = lane; e < p.d_k; e += 32)
                x[e] = v < count ? p.q[(size_t)row_of(v) * p.q_stride + (size_t)head_of(v) * p.d_k + e] : 0.0f;
            __syncwarp();
            if (p.pk.turn)
                pages_turn(p.pk, x, p.d_k, lane);
            for (uint32_t e = lane; e < p.d_k; e += 32) {
                float a = fabsf(x[e]);
                most_q = a > most_q || a != a ? a : most_q;
            }
            for (int o = 16; o > 0; o >>= 1) {
                float u = __shfl_xor_sync(0xffffffffu, most_q, o);
                most_q = u > most_q || u != u ? u : most_q;
            }
            float inverse, up = dev_row_factor(most_q, &inverse);
            for (uint32_t e = lane; e < stride; e += 32)
                q[v * stride + e] = __float2half_rn(e < p.d_k ? x[e] * up : 0.0f);
            if (lane == 0) {
                q_inverse[v] = inverse;
                pos[v] = v < count ? (int)(span.pos_first + (first + v) / (p.heads / p.kv_heads)) : -1;
                m[v] = -DEV_INF, l[v] = 0;
            }
        }
        for (uint32_t i = threadIdx.x; i < form::VECTORS * p.d_v; i += form::THREADS)
            total[i] = 0;
        most = (int)(span.pos_first + (first + count - 1) / (p.heads / p.kv_heads));
        least = (int)(span.pos_first + first / (p.heads / p.kv_heads)) + 1 - (int)p.window;
        least = p.window && least > 0 ? least : 0;
        __syncthreads();
    }

    /* Elements [from, from + CHUNK) of a quarter's K or V as f16; what no vector of the tile sees is 0. */
    __device__ void fill(uint32_t kv_block, uint32_t from, bool key, __half *to)
    {
        const cuda_plane &plane = key ? p.pk : p.pv;
        uint32_t wide = key ? p.d_k : p.d_v, d = p.latent ? p.d_k : wide, n = wide - from < CHUNK ? wide - from : CHUNK, mine = lane + threadIdx.x / 128 * 32;
        for (int half = 0; half < 2; half++) {
            int start = (int)(kv_block * KV_BLOCK + quarter * QUARTER + half * KV_PAGE), end = start + KV_PAGE;
            bool seen = start <= most && end > least;
            const unsigned char *page = NULL;
            if (seen)
                page = p.pages[table[start / KV_PAGE]] + p.offset + (size_t)kv_head * p.head_bytes + (key || p.latent ? 0 : p.k_bytes);
            if (key)
                pages_keys(page, plane, d, from, n, to + half * KV_PAGE, QUARTER + PAD, mine, 32 * MT * WITH);
            else
                pages_values(page, plane, d, from, n, to + half * KV_PAGE * (CHUNK + PAD), CHUNK + PAD, least - start, most - start, p.latent,
                             mine, 32 * MT * WITH);
        }
    }
    /* Chunks of a KV block in the order they are read: K's, then V's. */
    __device__ uint32_t keys() const { return (p.d_k + CHUNK - 1) / CHUNK; }
    __device__ __half *chunk(uint32_t c) { return tile + (form::AHEAD ? c % 2 * form::TILE : 0) + quarter * CHUNK * (QUARTER + PAD); }
    __device__ void ask(uint32_t kv_block, uint32_t c)
    {
        if (c < keys())
            fill(kv_block, c * CHUNK, true, chunk(c));
        else if ((c - keys()) * CHUNK < p.d_v)
            fill(kv_block, (c - keys()) * CHUNK, false, chunk(c));
        pages_sent();
    }
    /* Chunk c is there for all, and the next one is on its way where there is room for it. */
    __device__ void await(uint32_t kv_block, uint32_t c)
    {
        ask(kv_block, c + form::AHEAD);
        if (form::AHEAD)
            pages_arrived_but_last();
        else
            pages_arrived();
        __syncthreads();
    }

    /* s[8][4]: 16 vectors by 64 positions */
    __device__ void scores(uint32_t kv_block, float s[8][4])
    {
        uint32_t stride = form{p.d_k, p.d_v}.q_stride();
        const __half *mine = q + warp_m * 16 * stride;
        for (int n = 0; n < 8; n++)
            s[n][0] = s[n][1] = s[n][2] = s[n][3] = 0;
        for (uint32_t from = 0; from < p.d_k; from += CHUNK) {
            await(kv_block, from / CHUNK);
            const __half *k = chunk(from / CHUNK);
            uint32_t n = helper ? 0 : p.d_k - from < CHUNK ? p.d_k - from : CHUNK;
            for (uint32_t e = 0; e < n; e += 16) {
                uint32_t a[4], b[4];
                matrix_read(a, mine + (lane % 16) * stride + from + e + lane / 16 * 8);
#pragma unroll
                for (int j = 0; j < 8; j += 2) {
                    matrix_read_turned(b, k + (e + lane % 16) * (QUARTER + PAD) + (j + lane / 16) * 8);
                    mma(s[j], a, b[0], b[1]);
                    mma(s[j + 1], a, b[2], b[3]);
                }
            }
            __syncthreads();
        }
    }

    /* Scores to weights in base 2; the block's maxima and sums. */
    __device__ void weigh(uint32_t kv_block, float s[8][4])
    {
        uint32_t g = lane >> 2, t = lane & 3, base = kv_block * KV_BLOCK + quarter * QUARTER;
        float high[2] = {-DEV_INF, -DEV_INF};
#pragma unroll
        for (int n = 0; n < 8; n++)
#pragma unroll
            for (int i = 0; i < 4; i++) {
                uint32_t v = warp_m * 16 + g + 8 * (i >> 1);
                int at = (int)(base + 8 * n + 2 * t + (i & 1));
                float x = s[n][i] * (q_inverse[v] * p.scale);
                if (p.softcap > 0)
                    x = p.softcap * dev_tanh(x / p.softcap);
                x = x * DEV_LOG2E;
                bool seen = at <= pos[v] && (!p.window || at + (int)p.window > pos[v]);
                s[n][i] = seen ? x : -DEV_INF;
                high[i >> 1] = s[n][i] > high[i >> 1] || s[n][i] != s[n][i] ? s[n][i] : high[i >> 1];
            }
#pragma unroll
        for (int r = 0; r < 2; r++)
            for (int o = 1; o < 4; o *= 2) {
                float u = __shfl_xor_sync(0xffffffffu, high[r], o);
                high[r] = u > high[r] || u != u ? u : high[r];
            }
        if (t == 0 && !helper)
            maxima[quarter * form::VECTORS + warp_m * 16 + g] = high[0], maxima[quarter * form::VECTORS + warp_m * 16 + g + 8] = high[1];
        __syncthreads();
        float sum[2] = {0, 0};
#pragma unroll
        for (int r = 0; r < 2; r++) {
            uint32_t v = warp_m * 16 + g + 8 * r;
            float top = maxima[v];
            for (int i = 1; i < 4; i++) {
                float u = maxima[i * form::VECTORS + v];
                top = u > top || u != u ? u : top;
            }
            if (quarter == 0 && t == 0 && !helper)
                m_block[v] = top;
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
            if (t == 0 && !helper)
                sums[quarter * form::VECTORS + v] = sum[r];
        }
        __syncthreads();
        if (threadIdx.x < form::VECTORS) {
            uint32_t v = threadIdx.x;
            l_block[v] = ((sums[v] + sums[form::VECTORS + v]) + sums[2 * form::VECTORS + v]) + sums[3 * form::VECTORS + v];
        }
    }

    /* block = weights times values, elements [from, from + CHUNK) */
    __device__ void values(uint32_t kv_block, uint32_t from, const float s[8][4])
    {
        uint32_t g = lane >> 2, t = lane & 3;
        const __half *v = chunk(keys() + from / CHUNK);
        float o[16][4];
        await(kv_block, keys() + from / CHUNK);
#pragma unroll
        for (int n = 0; n < 16; n++)
            o[n][0] = o[n][1] = o[n][2] = o[n][3] = 0;
#pragma unroll
        for (int j = 0; j < 4; j++) {
            uint32_t a[4], b[4];
            if (helper)
                break;
#pragma unroll
            for (int i = 0; i < 4; i++) {
                __half2 h = __floats2half2_rn(s[2 * j + (i >> 1)][2 * (i & 1)], s[2 * j + (i >> 1)][2 * (i & 1) + 1]);
                a[i] = *reinterpret_cast<uint32_t *>(&h);
            }
#pragma unroll
            for (int n = 0; n < 16; n += 2) {
                matrix_read_turned(b, v + (16 * j + lane % 16) * (CHUNK + PAD) + (n + lane / 16) * 8);
                mma(o[n], a, b[0], b[1]);
                mma(o[n + 1], a, b[2], b[3]);
            }
        }
        for (uint32_t turn = 0; turn < 4; turn++) {
            if (quarter == turn && !helper)
#pragma unroll
                for (int n = 0; n < 16; n++)
#pragma unroll
                    for (int i = 0; i < 4; i++) {
                        float *to = block + (warp_m * 16 + g + 8 * (i >> 1)) * CHUNK + 8 * n + 2 * t + (i & 1);
                        *to = turn ? *to + o[n][i] : o[n][i];
                    }
            __syncthreads();
        }
    }

    /* fold the block's elements into the total */
    __device__ void fold(uint32_t from)
    {
        uint32_t n = p.d_v - from < CHUNK ? p.d_v - from : CHUNK;
        for (uint32_t i = threadIdx.x; i < form::VECTORS * n; i += form::THREADS) {
            uint32_t v = i / n, e = i % n;
            float mb = m_block[v];
            if (mb == -DEV_INF)
                continue; /* nothing seen in this block */
            float top = m[v] > mb ? m[v] : mb;
            if (mb != mb)
                top = mb;
            float x = total[v * p.d_v + from + e];
            total[v * p.d_v + from + e] = __fmaf_rn(x, exp2_fast(m[v] - top), block[v * CHUNK + e] * exp2_fast(mb - top));
        }
    }
    __device__ void fold_sums()
    {
        __syncthreads();
        if (threadIdx.x < form::VECTORS) {
            uint32_t v = threadIdx.x;
            float mb = m_block[v];
            if (mb != -DEV_INF) {
                float top = m[v] > mb ? m[v] : mb;
                if (mb != mb)
                    top = mb;
                l[v] = __fmaf_rn(l[v], exp2_fast(m[v] - top), l_block[v] * exp2_fast(mb - top));
                m[v] = top;
            }
        }
        __syncthreads();
    }

    __device__ void one_block(uint32_t kv_block, float *partial)
    {
        float s[8][4];
        if (form::AHEAD)
            ask(kv_block, 0);
        scores(kv_block, s);
        weigh(kv_block, s);
        for (uint32_t from = 0; from < p.d_v; from += CHUNK) {
            values(kv_block, from, s);
            uint32_t n = p.d_v - from < CHUNK ? p.d_v - from : CHUNK;
            if (!partial)
                fold(from);
            for (uint32_t i = threadIdx.x; partial && i < form::VECTORS * n; i += form::THREADS)
                partial[(size_t)(i / n) * (p.d_v + 2) + from + i % n] = block[i / n * CHUNK + i % n];
            __syncthreads();
        }
        if (!partial)
            fold_sums();
        else if (threadIdx.x < form::VECTORS) {
            partial[(size_t)threadIdx.x * (p.d_v + 2) + p.d_v] = m_block[threadIdx.x];
            partial[(size_t)threadIdx.x * (p.d_v + 2) + p.d_v + 1] = l_block[threadIdx.x];
        }
        __syncthreads();
    }

    /* y = total / l, with the sink's share, turned back where V is turned */
    __device__ void finish()
    {
        uint32_t warp = threadIdx.x / 32;
        for (uint32_t v = warp; v < count; v += form::THREADS / 32) {
            float *x = total + v * p.d_v, by = share(p, head_of(v), m[v], l[v]);
            for (uint32_t e = lane; e < p.d_v; e += 32)
                x[e] = x[e] * by;
            __syncwarp();
            if (p.pv.turn)
                pages_turn_back(p.pv, x, p.d_v, lane);
            for (uint32_t e = lane; e < p.d_v; e += 32)
                p.y[(size_t)row_of(v) * p.y_stride + (size_t)head_of(v) * p.d_v + e] = x[e];
        }
        __syncthreads();
    }

    __device__ void take(const cuda_tile &t, uint32_t head)
    {
        span = p.spans[t.span];
        table = p.tables + span.table_first;
        first = t.first, count = t.count, kv_head = head;
    }
};

template <int MT, int WITH> static __global__ void __launch_bounds__(128 * MT * WITH, 1) attend(const __grid_constant__ cuda_p_attention p)
{
    dev_begin();
    extern __shared__ __align__(16) unsigned char shared[];
    attention<MT, WITH> a(p, shared);
    uint32_t items = p.tiles->item_count, split = p.tiles->split;
    for (uint32_t x = blockIdx.x; x < items; x += gridDim.x) {
        if (split) {
            cuda_tile t = p.tiles->tiles[tile_find(p.tiles, p.kv_heads, x)].tile;
            uint32_t rest = x - t.item_first * p.kv_heads;
            a.take(t, rest / t.block_count);
            a.queries();
            a.one_block(t.block_first + rest % t.block_count, p.partial + (size_t)x * 16 * (p.d_v + 2));
            continue;
        }
        cuda_tile t = p.tiles->tiles[x / p.kv_heads].tile;
        a.take(t, x % p.kv_heads);
        a.queries();
        for (uint32_t b = 0; b < t.block_count; b++)
            a.one_block(t.block_first + b, NULL);
        a.finish();
    }
}

/* Partials of a tile, blocks ascending. */
static __global__ void __launch_bounds__(128) attn_fold(const __grid_constant__ cuda_p_attention p)
{
    dev_begin();
    __shared__ float row[PAGES_HEAD_MAX];
    if (!p.tiles->split)
        return;
    uint32_t total = p.tiles->tile_count * p.kv_heads * 16, group = p.heads / p.kv_heads;
    for (uint32_t x = blockIdx.x; x < total; x += gridDim.x) {
        uint32_t v = x % 16, head = x / 16 % p.kv_heads;
        cuda_tile t = p.tiles->tiles[x / 16 / p.kv_heads].tile;
        if (v >= t.count)
            continue;
        kv_span span = p.spans[t.span];
        const float *part = p.partial + ((size_t)(t.item_first * p.kv_heads + head * t.block_count) * 16 + v) * (p.d_v + 2);
        size_t step = (size_t)16 * (p.d_v + 2);
        float m = -DEV_INF, l = 0, o[5] = {0, 0, 0, 0, 0};
        for (uint32_t b = 0; b < t.block_count; b++, part += step) {
            float mb = part[p.d_v], lb = part[p.d_v + 1];
            if (mb == -DEV_INF)
                continue;
            float top = m > mb ? m : mb;
            if (mb != mb)
                top = mb;
            float keep = exp2_fast(m - top), add = exp2_fast(mb - top);
            l = __fmaf_rn(l, keep, lb * add);
            m = top;
#pragma unroll
            for (int i = 0; i < 5; i++)
                if (threadIdx.x + 128 * i < p.d_v)
                    o[i] = __fmaf_rn(o[i], keep, part[threadIdx.x + 128 * i] * add);
        }
        float by = share(p, head * group + (t.first + v) % group, m, l);
        for (int i = 0; i < 5; i++)
            if (threadIdx.x + 128 * i < p.d_v)
                row[threadIdx.x + 128 * i] = o[i] * by;
        __syncthreads();
        if (p.pv.turn && threadIdx.x < 32)
            pages_turn_back(p.pv, row, p.d_v, threadIdx.x);
        __syncthreads();
        float *y = p.y + (size_t)(span.row_first + (t.first + v) / group) * p.y_stride + (size_t)(head * group + (t.first + v) % group) * p.d_v;
        for (uint32_t e = threadIdx.x; e < p.d_v; e += 128)
            y[e] = row[e];
        __syncthreads();
    }
}

extern "C" uint32_t cuda_attention_smem(uint32_t d_k, uint32_t d_v, bool tall)
{
    return tall ? shared_form<4, 1>{d_k, d_v}.total() : shared_form<1, 1>{d_k, d_v}.total();
}
extern "C" uint32_t cuda_attention_deep_smem(uint32_t d_k, uint32_t d_v)
{
    return shared_form<1, DEEP_WITH>{d_k, d_v}.total();
}

extern "C" const void *const cuda_kernels_attention[CUDA_K_ATTENTION_COUNT] = {
    (const void *)make_tiles, (const void *)attend<1, 1>, (const void *)attend<4, 1>, (const void *)attn_fold, (const void *)attend<1, DEEP_WITH>};
