/* backend_cuda/k_attend_broad.cu - attention of spans of one row with wide heads (256, 512) over F16 pages, and what comes before it: norms, rope, K and V
 * into the page.
 *
 * The sums of k_attention.cu, whose comment says what tiles, items, KV blocks and quarters are.  An item is a cluster's of four blocks of threads: a block has a
 * quarter, whose K and V are both in its shared memory, asked for at once and before q is looked at, while the kernel ahead still runs: that one wrote this
 * step's rows only, which are put over what was read (of one sequence the step may have several).  Scores: eight positions a warp; weights: by every warp for
 * itself; values: 32 elements a warp.  Largest scores, sums and quarters' values are sent to where they are added: each block has a quarter of the elements
 * (a slice), of which it folds the KV blocks; split, the last of a tile's items does that.  What is sent is counted at a barrier of the receiver. */
#define KV_TABLE [[maybe_unused]] static __device__ const
#include "tensor/kv_tables.h"

#include "backend_cuda/async.cuh"
#include "backend_cuda/attend.cuh"
#include "backend_cuda/head_vectors.cuh"
#include "backend_cuda/k_pages.cuh"
#include "backend_cuda/kernels_broad.h"

enum { RANKS = CUDA_ATTEND_BROAD_CLUSTER, VECTORS = 16, PAD = 8, SCORE_STRIDE = QUARTER + 8, TOP_STRIDE = 36, TILES = QUARTER / 8 };

/* ---- what is sent to a block of the cluster ---- */

static __device__ __forceinline__ void send(uint32_t to, float x, uint32_t bar)
{
    asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.b32 [%0], %1, [%2];" ::"r"(to), "r"(__float_as_uint(x)), "r"(bar) : "memory");
}
static __device__ __forceinline__ void send2(uint32_t to, float x, float y, uint32_t bar)
{
    asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.v2.b32 [%0], {%1, %2}, [%3];" ::"r"(to), "r"(__float_as_uint(x)),
                 "r"(__float_as_uint(y)), "r"(bar)
                 : "memory");
}
static __device__ __forceinline__ void cluster_arrive(void)
{
    asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
}
static __device__ __forceinline__ void cluster_await(void)
{
    asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
}
/* 1 where this is the last of `count` arrivals, each behind what its block wrote; then what all wrote is there. */
static __device__ __forceinline__ uint32_t arrive_last(uint32_t *counter, uint32_t count)
{
    uint32_t before;
    asm volatile("atom.acq_rel.gpu.global.inc.u32 %0, [%1], %2;" : "=r"(before) : "l"(counter), "r"(count - 1) : "memory");
    return before == count - 1;
}

/* ---- a head vector by one warp: element lane + 32 i in x[i] ---- */

template <int D> struct head_row {
    enum { N = D / 32, HALF = N / 2 };
    float x[N], w[N], c[HALF], s[HALF];
    bool turns; /* rope is of pairs (i, i + D / 2): in registers */

    /* What was there before the kernel ahead. */
    __device__ __forceinline__ void begin(const float *norm, const float *table, uint32_t pairs, bool adjacent, uint32_t lane)
    {
        turns = table && pairs == D / 2 && !adjacent;
#pragma unroll
        for (int i = 0; i < N; i++)
            w[i] = norm ? __ldg(norm + lane + 32 * i) : 1.0f;
#pragma unroll
        for (int i = 0; i < HALF; i++) {
            c[i] = turns ? __ldcg(table + lane + 32 * i) : 1.0f;
            s[i] = turns ? __ldcg(table + D / 2 + lane + 32 * i) : 0.0f;
        }
    }
    __device__ __forceinline__ void read(const float *from, uint32_t lane)
    {
#pragma unroll
        for (int i = 0; i < N; i++)
            x[i] = __ldcg(from + lane + 32 * i);
    }
    __device__ __forceinline__ void norm(float eps) /* the tree of pages_norm */
    {
        float t[N], sum = 0;
#pragma unroll
        for (int i = 0; i < N; i++)
            t[i] = __fmaf_rn(x[i], x[i], 0.0f);
#pragma unroll
        for (int o = 16; o > 0; o >>= 1)
#pragma unroll
            for (int i = 0; i < N; i++)
                t[i] = t[i] + __shfl_xor_sync(0xffffffffu, t[i], o);
#pragma unroll
        for (int i = 0; i < N; i++)
            sum = sum + t[i];
        float by = 1.0f / sqrtf(sum / (float)D + eps);
#pragma unroll
        for (int i = 0; i < N; i++)
            x[i] = (x[i] * by) * w[i];
    }
    /* other: rope of another form, in D floats of shared memory */
    __device__ __forceinline__ void rope(const float *table, uint32_t pairs, bool adjacent, float *other, uint32_t lane)
    {
        if (turns) {
#pragma unroll
            for (int i = 0; i < HALF; i++) {
                float a = x[i], b = x[i + HALF];
                x[i] = __fmaf_rn(-b, s[i], a * c[i]);
                x[i + HALF] = __fmaf_rn(a, s[i], b * c[i]);
            }
            return;
        }
#pragma unroll
        for (int i = 0; i < N; i++)
            other[lane + 32 * i] = x[i];
        __syncwarp();
        pages_rope(other, table, pairs, adjacent, lane);
#pragma unroll
        for (int i = 0; i < N; i++)
            x[i] = other[lane + 32 * i];
        __syncwarp();
    }
};

/* ---- */

/* Shared memory, in this order: K [element][position], V [position][element], queries, then floats. */
template <int D> struct broad_form {
    enum { WARPS = D / 32, THREADS = 32 * WARPS, SLICE = D / RANKS, OWN = WARPS / RANKS /* warps with elements of a slice */ };
    static constexpr uint32_t values = D * QUARTER * 2, queries = 2 * values, scores = queries + VECTORS * (D + PAD) * 2,
                              tops = scores + VECTORS * SCORE_STRIDE * 4, parts = tops + VECTORS * TOP_STRIDE * 4,
                              totals = parts + RANKS * VECTORS * SLICE * 4, sums = totals + VECTORS * SLICE * 4, words = sums + RANKS * VECTORS * 4,
                              bars = words + 5 * VECTORS * 4, total = bars + 16;
};

/* A step's row behind a span, of K or V: or a query. */
struct broad_task {
    uint32_t which; /* span */
    uint32_t kind;  /* of queries the vector, then K, V */
};
enum { TASK_KEY = VECTORS, TASK_VALUE };

template <int D> struct attend_broad {
    using form = broad_form<D>;
    enum { WARPS = form::WARPS, THREADS = form::THREADS, SLICE = form::SLICE };
    const cuda_p_attend_row *p;
    const cuda_p_attend_broad &all;
    unsigned char *memory;
    float *scores, *tops, *parts, *totals, *sums, *q_inverse, *m, *l, *top;
    uint32_t *word;
    uint32_t lane, warp, rank, bars, phase;
    cuda_tile t;
    kv_span span;
    uint32_t kv_head, run;  /* run: first span of the step with the same sequence */
    int pos, least, fresh;  /* the row's; the first that it sees; the first of this step */
    const unsigned char *page_own; /* where the row goes: without layer and head */
    head_row<D> row;

    __device__ attend_broad(const cuda_p_attend_broad &param, unsigned char *shared) : p(&param.row), all(param), memory(shared)
    {
        lane = threadIdx.x & 31, warp = threadIdx.x >> 5, rank = cluster_rank(), phase = 0;
        scores = (float *)(memory + form::scores), tops = (float *)(memory + form::tops), parts = (float *)(memory + form::parts);
        totals = (float *)(memory + form::totals), sums = (float *)(memory + form::sums);
        q_inverse = (float *)(memory + form::words), m = q_inverse + VECTORS, l = m + VECTORS, top = l + VECTORS, word = (uint32_t *)(top + VECTORS);
        bars = shared_at(memory + form::bars);
        if (threadIdx.x == 0) {
            bar_init(bars, 1), bar_init(bars + 8, 1);
            bar_init_end();
        }
        cluster_arrive();
    }

    __device__ uint32_t group() const { return p->a.heads / p->a.kv_heads; }
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
    __device__ size_t in_page() const { return p->a.offset + (size_t)kv_head * p->a.head_bytes; }

    /* Item x: its first KV block, and that behind its last. */
    __device__ void item(uint32_t x, uint32_t *tile, uint32_t *from, uint32_t *to)
    {
        uint32_t split = __ldcg(&p->a.tiles->split);
        *tile = split ? tile_find(p->a.tiles, p->a.kv_heads, x) : x / p->a.kv_heads;
        const uint2 *at = (const uint2 *)&p->a.tiles->tiles[*tile].tile;
        uint2 v[3] = {__ldcg(at), __ldcg(at + 1), __ldcg(at + 2)};
        t = {v[0].x, v[0].y, v[1].x, v[1].y, v[2].x, v[2].y};
        uint32_t rest = x - t.item_first * p->a.kv_heads;
        kv_head = split ? rest / t.block_count : x % p->a.kv_heads;
        *from = t.block_first + (split ? rest % t.block_count : 0), *to = split ? *from + 1 : t.block_first + t.block_count;
        span = span_at(t.span);
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

    /* K and V of this block's quarter that lie in pages. */
    __device__ __forceinline__ void fetch(uint32_t block)
    {
        int start = (int)(block * KV_BLOCK + rank * QUARTER);
        const unsigned char *page[2];
#pragma unroll
        for (int i = 0; i < 2; i++) {
            int first = start + i * KV_PAGE;
            page[i] = first < fresh && first + KV_PAGE > least ? page_at((uint32_t)first) + in_page() : NULL;
        }
        const unsigned char *keys = threadIdx.x & 4 ? page[1] : page[0];
        unsigned char *to = memory;
        if (keys)
#pragma unroll 4
            for (uint32_t i = threadIdx.x; i < D * 8; i += THREADS) {
                uint32_t e = i / 8, piece = i % 8;
                pages_copy((__half *)(to + e * 128 + (piece ^ (e & 7)) * 16), keys + e * 64 + piece % 4 * 16, true);
            }
        to = memory + form::values;
#pragma unroll 4
        for (uint32_t i = threadIdx.x; i < QUARTER * D / 8; i += THREADS) {
            uint32_t slot = i / (D / 8), piece = i % (D / 8);
            int at = start + (int)slot;
            const unsigned char *values = slot < KV_PAGE ? page[0] : page[1];
            __half *there = (__half *)(to + slot * (D * 2) + (piece ^ (slot & 7)) * 16);
            if (values && at >= least && at < fresh)
                pages_copy(there, values + p->a.k_bytes + slot % KV_PAGE * (D * 2) + piece * 16, true);
            else if (at < fresh || at > pos)
                *(uint4 *)there = make_uint4(0, 0, 0, 0);
        }
    }

    /* ---- vectors: queries, then K and V of the step's rows ---- */

    __device__ __forceinline__ uint32_t rows() const { return p->prepare ? t.span + 1 - run : 0; }
    __device__ __forceinline__ broad_task task(uint32_t i) const
    {
        if (i < t.count)
            return {t.span, i};
        return {run + (i - t.count) / 2, TASK_KEY + (i - t.count) % 2};
    }
    __device__ __forceinline__ const float *table(uint32_t r) const { return p->w.rope ? p->w.rope + (size_t)r * p->w.rope_stride : NULL; }
    __device__ __forceinline__ const float *norm_of(const broad_task &k) const
    {
        return !p->prepare ? NULL : k.kind < VECTORS ? p->w.q_norm : k.kind == TASK_KEY ? p->w.k_norm : all.v_norm;
    }
    __device__ __forceinline__ void task_begin(uint32_t i)
    {
        if (i >= t.count + 2 * rows())
            return;
        broad_task k = task(i);
        kv_span s = k.which == t.span ? span : span_at(k.which);
        row.begin(norm_of(k), p->prepare && k.kind != TASK_VALUE ? table(s.row_first) : NULL, p->w.rope_pairs, p->w.adjacent, lane);
    }
    /* The vector of a task that was begun; false: K or V of a row that is not in this block's quarter of the KV block. */
    __device__ __forceinline__ bool task_make(const broad_task &k, const kv_span &s, uint32_t block)
    {
        bool query = k.kind < VECTORS, key = k.kind == TASK_KEY;
        if (!query && s.pos_first / QUARTER != block * (KV_BLOCK / QUARTER) + rank)
            return false;
        const float *from = query ? p->a.q + (size_t)s.row_first * p->a.q_stride + (size_t)(kv_head * group() + k.kind) * D
                            : key ? p->w.k + (size_t)s.row_first * p->w.k_stride + (size_t)kv_head * D
                                  : all.v_from + (size_t)s.row_first * all.v_from_stride + (size_t)kv_head * D;
        row.read(from, lane);
        if (norm_of(k))
            row.norm(query || key ? p->w.eps : all.v_eps);
        if (p->prepare && k.kind != TASK_VALUE && p->w.rope)
            row.rope(table(s.row_first), p->w.rope_pairs, p->w.adjacent, parts + warp * D, lane);
        return true;
    }
    /* Queries, and what of the step's rows lies in this KV block, a vector a warp; K and V that were asked for are waited for before any is put over them. */
    __device__ __forceinline__ void tasks(uint32_t block, bool first)
    {
        uint32_t count = t.count + 2 * rows(), i = (first ? 0 : t.count) + warp;
        bool waited = false;
        do {
            broad_task k = task(i < count ? i : 0);
            kv_span s = k.which == t.span ? span : span_at(k.which);
            if (i < count && (!first || waited))
                task_begin(i);
            bool made = i < count && task_make(k, s, block);
            if (!waited) {
                pages_arrived();
                __syncthreads();
            }
            if (made && k.kind < VECTORS)
                put_query(k.kind);
            else if (made)
                put_row(k, s);
            waited = true, i += WARPS;
        } while (i < count);
        __syncthreads();
    }
    __device__ __forceinline__ void put_query(uint32_t v)
    {
        uint32_t most = 0;
#pragma unroll
        for (int i = 0; i < D / 32; i++)
            most = max(most, __float_as_uint(row.x[i]) & 0x7fffffffu);
        float inverse, up = dev_row_factor(__uint_as_float(__reduce_max_sync(0xffffffffu, most)), &inverse);
        __half *to = (__half *)(memory + form::queries) + v * (D + PAD) + lane;
#pragma unroll
        for (int i = 0; i < D / 32; i++)
            to[32 * i] = __float2half_rn(row.x[i] * up);
        if (lane == 0)
            q_inverse[v] = inverse;
    }
    /* Over what was fetched; the row's own to its page too, and, normed, to where it belongs. */
    __device__ __forceinline__ void put_row(const broad_task &k, const kv_span &s)
    {
        uint32_t at = s.pos_first % QUARTER, slot = s.pos_first % KV_PAGE;
        bool key = k.kind == TASK_KEY;
        unsigned char *page = k.which == t.span && page_own ? (unsigned char *)page_own + in_page() + (key ? 0 : p->a.k_bytes) : NULL;
        float *y = !key && all.v_norm && k.which == t.span ? p->w.v + (size_t)s.row_first * p->w.v_stride + (size_t)kv_head * D : NULL;
        if (k.which == t.span && !page_own && lane == 0)
            *p->w.failed = 1;
        __half *keys = (__half *)memory + at % 8, *values = (__half *)(memory + form::values) + at * D;
#pragma unroll
        for (int i = 0; i < D / 32; i++) {
            uint32_t e = lane + 32 * i;
            __half h = __float2half_rn(row.x[i]);
            *(key ? keys + e * QUARTER + (at / 8 ^ (e & 7)) * 8 : values + (e / 8 ^ (at & 7)) * 8 + e % 8) = h;
            if (page)
                ((__half *)page)[key ? e * KV_PAGE + slot : slot * D + e] = h;
            if (y)
                y[e] = row.x[i];
        }
    }

    /* ---- a KV block ---- */

    /* Scores of this warp's eight positions, in base 2; the largest to all. */
    __device__ __forceinline__ void score(uint32_t block)
    {
        float s[4] = {}, high[2] = {-DEV_INF, -DEV_INF};
        const __half *q = (const __half *)(memory + form::queries) + (lane % 16) * (D + PAD) + lane / 16 * 8;
        const unsigned char *k = memory + lane * 128 + (warp ^ (lane & 7)) * 16;
#pragma unroll 4
        for (uint32_t e = 0; e < D; e += 32) {
            uint32_t a[4], b[4];
            matrix_read_turned(b, (const __half *)(k + e * 128));
            matrix_read(a, q + e);
            mma(s, a, b[0], b[1]);
            matrix_read(a, q + e + 16);
            mma(s, a, b[2], b[3]);
        }
        uint32_t g = lane >> 2, c = lane & 3, first = rank * QUARTER + 8 * warp + 2 * c;
#pragma unroll
        for (int i = 0; i < 4; i++) {
            if (i >= 2 && t.count <= 8)
                break;
            uint32_t v = g + 8 * (i >> 1);
            int at = (int)(block * KV_BLOCK + first + (i & 1));
            float x = s[i] * (q_inverse[v] * p->a.scale);
            if (p->a.softcap > 0)
                x = p->a.softcap * dev_tanh(x / p->a.softcap);
            x = x * DEV_LOG2E;
            x = at <= pos && at >= least ? x : -DEV_INF;
            scores[v * SCORE_STRIDE + 8 * warp + 2 * c + (i & 1)] = x;
            high[i >> 1] = x > high[i >> 1] || x != x ? x : high[i >> 1];
        }
#pragma unroll
        for (int r = 0; r < 2; r++) {
            if (r && t.count <= 8)
                break;
            for (int o = 1; o < 4; o *= 2) {
                float u = __shfl_xor_sync(0xffffffffu, high[r], o);
                high[r] = u > high[r] || u != u ? u : high[r];
            }
            send(bar_far(shared_at(tops + (g + 8 * r) * TOP_STRIDE + rank * TILES + warp), c), high[r], bar_far(bars, c)); /* lane c of four to block c */
        }
    }

    /* The quarter's weights of vectors g and g + 8 as mma's row operands, four of 16 positions; their sums to all by warp 0. */
    template <int ROWS> __device__ __forceinline__ void weigh(uint32_t a[4][4])
    {
        uint32_t g = lane >> 2, c = lane & 3;
#pragma unroll
        for (int r = 0; r < ROWS; r++) {
            const float *mine = tops + (g + 8 * r) * TOP_STRIDE + c * TILES, *x = scores + (g + 8 * r) * SCORE_STRIDE + 2 * c;
            float high = mine[0], sum = 0;
#pragma unroll
            for (int i = 1; i < TILES; i++)
                high = mine[i] > high || mine[i] != mine[i] ? mine[i] : high;
            for (int o = 1; o < 4; o *= 2) {
                float u = __shfl_xor_sync(0xffffffffu, high, o);
                high = u > high || u != u ? u : high;
            }
#pragma unroll
            for (int n = 0; n < 8; n++) {
                float2 v = *(const float2 *)(x + 8 * n);
                __half2 w = __floats2half2_rn(v.x == -DEV_INF ? 0.0f : exp2_fast(v.x - high), v.y == -DEV_INF ? 0.0f : exp2_fast(v.y - high));
                sum = sum + __low2float(w), sum = sum + __high2float(w);
                a[n / 2][2 * (n % 2) + r] = *reinterpret_cast<uint32_t *>(&w);
            }
            for (int o = 1; o < 4; o *= 2)
                sum = sum + __shfl_xor_sync(0xffffffffu, sum, o);
            if (warp == 0) {
                send(bar_far(shared_at(sums + rank * VECTORS + g + 8 * r), c), sum, bar_far(bars + 8, c));
                if (c == 0)
                    top[g + 8 * r] = high;
            }
        }
    }

    /* The quarter's weights times values: this warp's 32 elements, to the block whose slice they are of. */
    template <int ROWS> __device__ __forceinline__ void weighted()
    {
        uint32_t a[4][4] = {}, g = lane >> 2, c = lane & 3;
        float o[4][4] = {};
        weigh<ROWS>(a);
        const unsigned char *v = memory + form::values + (lane % 16) * (D * 2);
#pragma unroll
        for (int j = 0; j < 4; j++)
#pragma unroll
            for (int n = 0; n < 4; n += 2) {
                uint32_t b[4], piece = warp * 4 + n + lane / 16;
                matrix_read_turned(b, (const __half *)(v + 16 * j * (D * 2) + (piece ^ (lane & 7)) * 16));
                mma(o[n], a[j], b[0], b[1]);
                mma(o[n + 1], a[j], b[2], b[3]);
            }
        uint32_t owner = warp / form::OWN, bar = bar_far(bars + 8, owner);
        uint32_t to = bar_far(shared_at(parts + (rank * VECTORS + g) * SLICE + warp % form::OWN * 32 + 2 * c), owner);
#pragma unroll
        for (int r = 0; r < ROWS; r++)
#pragma unroll
            for (int n = 0; n < 4; n++)
                if (g + 8 * r < t.count)
                    send2(to + (8 * r * SLICE + 8 * n) * 4, o[n][2 * r], o[n][2 * r + 1], bar);
    }

    __device__ __forceinline__ float sum_of(uint32_t v) const { return ((sums[v] + sums[VECTORS + v]) + sums[2 * VECTORS + v]) + sums[3 * VECTORS + v]; }

    /* The KV block's sums of the slice to the totals, or to `partial`. */
    __device__ __forceinline__ void fold(float *partial)
    {
#pragma unroll 1
        for (uint32_t i = threadIdx.x; i < t.count * SLICE; i += THREADS) {
            uint32_t v = i / SLICE;
            const uint32_t apart = VECTORS * SLICE;
            float value = ((parts[i] + parts[i + apart]) + parts[i + 2 * apart]) + parts[i + 3 * apart], mb = top[v], mv = m[v], most = mb != mb || !(mv > mb) ? mb : mv;
            if (partial)
                partial[i + 2 * v] = value;
            else if (mb != -DEV_INF) /* else nothing is seen in this block */
                totals[i] = __fmaf_rn(totals[i], exp2_fast(mv - most), value * exp2_fast(mb - most));
        }
        if (!partial)
            __syncthreads(); /* m is read above */
        if (threadIdx.x < t.count) {
            uint32_t v = threadIdx.x;
            float mb = top[v], lb = sum_of(v), mv = m[v], most = mb != mb || !(mv > mb) ? mb : mv;
            if (partial)
                partial[v * (SLICE + 2) + SLICE] = mb, partial[v * (SLICE + 2) + SLICE + 1] = lb;
            else if (mb != -DEV_INF)
                l[v] = __fmaf_rn(l[v], exp2_fast(mv - most), lb * exp2_fast(mb - most)), m[v] = most;
        }
        __syncthreads();
    }

    /* One KV block whose K and V are on their way; of the first, the tasks that come first are begun. */
    __device__ __forceinline__ void one_block(uint32_t block, bool first, float *partial)
    {
        if (first) {
            for (uint32_t i = threadIdx.x; i < VECTORS * SLICE; i += THREADS)
                totals[i] = 0;
            if (threadIdx.x < VECTORS)
                m[threadIdx.x] = -DEV_INF, l[threadIdx.x] = 0;
        }
        if (threadIdx.x == 0) {
            uint32_t sent = t.count <= 8 ? 8 : VECTORS;
            bar_expect(bars, RANKS * TILES * sent * 4);
            bar_expect(bars + 8, RANKS * (t.count * SLICE + sent) * 4);
        }
        tasks(block, first);
        if (first)
            cluster_await();
        if (warp < TILES)
            score(block);
        __syncthreads();
        bar_wait(bars, phase);
        if (t.count <= 8)
            weighted<1>();
        else
            weighted<2>();
        bar_wait(bars + 8, phase);
        __syncthreads();
        phase ^= 1;
        fold(partial);
    }

    __device__ __forceinline__ float *y_of(uint32_t v) const
    {
        return p->a.y + (size_t)span.row_first * p->a.y_stride + (size_t)(kv_head * group() + v) * D + rank * SLICE;
    }
    __device__ __forceinline__ void finish() /* y of the totals */
    {
#pragma unroll 1
        for (uint32_t i = threadIdx.x; i < t.count * SLICE; i += THREADS) {
            uint32_t v = i / SLICE;
            y_of(v)[i % SLICE] = totals[i] * share(p->a, kv_head * group() + v, m[v], l[v]);
        }
    }
    /* y of the tile's partials, in ascending order. */
    __device__ __forceinline__ void finish_parts()
    {
        const uint32_t step = RANKS * VECTORS * (SLICE + 2);
        const float *from = p->a.partial + (size_t)(t.item_first * p->a.kv_heads + kv_head * t.block_count) * step + rank * VECTORS * (SLICE + 2);
#pragma unroll 1
        for (uint32_t i = threadIdx.x; i < t.count * SLICE; i += THREADS) {
            uint32_t v = i / SLICE, e = i % SLICE;
            const float *at = from + v * (SLICE + 2);
            float x = 0, mv = -DEV_INF, lv = 0;
#pragma unroll 1
            for (uint32_t b = 0; b < t.block_count; b += 5) {
                float value[5], mb[5], lb[5];
#pragma unroll
                for (uint32_t j = 0; j < 5; j++) {
                    const float *part = at + (size_t)min(b + j, t.block_count - 1) * step;
                    value[j] = __ldcg(part + e);
                    float2 ml = __ldcg((const float2 *)(part + SLICE));
                    mb[j] = ml.x, lb[j] = ml.y;
                }
#pragma unroll
                for (uint32_t j = 0; j < 5; j++) {
                    float most = mb[j] != mb[j] || !(mv > mb[j]) ? mb[j] : mv, keep = exp2_fast(mv - most), add = exp2_fast(mb[j] - most);
                    if (b + j >= t.block_count || mb[j] == -DEV_INF)
                        continue;
                    x = __fmaf_rn(x, keep, value[j] * add), lv = __fmaf_rn(lv, keep, lb[j] * add), mv = most;
                }
            }
            y_of(v)[e] = x * share(p->a, kv_head * group() + v, mv, lv);
        }
    }
    /* A whole item, whose first KV block is on its way, and more of them behind it or not. */
    __device__ __forceinline__ void work(uint32_t x, uint32_t tile, uint32_t from, uint32_t to, bool more)
    {
        bool partial = __ldcg(&p->a.tiles->split) && t.block_count > 1;
        float *mine = partial ? p->a.partial + ((size_t)x * RANKS + rank) * VECTORS * (SLICE + 2) : NULL;
#pragma unroll 1
        for (uint32_t b = from; b < to; b++) {
            if (b != from)
                fetch(b);
            one_block(b, b == from, mine);
            if (b + 1 < to || more) { /* others may still wait for what is sent */
                cluster_arrive();
                if (b + 1 < to)
                    cluster_await();
            }
        }
        if (!partial) {
            finish();
        } else {
            if (threadIdx.x == 0)
                *word = arrive_last(p->arrived + (tile * p->a.kv_heads + kv_head) * RANKS + rank, t.block_count);
            __syncthreads();
            if (*word)
                finish_parts();
        }
        if (more)
            __syncthreads();
    }
};

template <int D>
static __global__ void __cluster_dims__(RANKS, 1, 1) __launch_bounds__(D, D == 256 ? 2 : 1) attend_broads(const __grid_constant__ cuda_p_attend_broad all)
{
    extern __shared__ __align__(128) unsigned char shared[];
    const cuda_p_attend_row &p = all.row;
    attend_broad<D> a(all, shared);
    if (!p.early)
        dev_wait();
    uint32_t items = __ldcg(&p.a.tiles->item_count), mine = blockIdx.x / RANKS, step = gridDim.x / RANKS;
    for (uint32_t x = mine; x < items || x == mine; x += step) {
        uint32_t tile = 0, from = 0, to = 0;
        if (x < items) {
            a.item(x, &tile, &from, &to);
            a.fetch(from);
            a.task_begin(a.warp);
        }
        if (x == mine) {
            if (p.early)
                dev_wait();
            dev_launch_next();
        }
        if (x < items)
            a.work(x, tile, from, to, x + step < items);
        else
            cluster_await();
    }
}

extern "C" uint32_t cuda_attend_broad_smem(uint32_t d)
{
    return d == 256 ? broad_form<256>::total : broad_form<512>::total;
}

extern "C" uint32_t cuda_attend_broad_blocks(uint32_t d)
{
    return d == 256 ? 2 : 1;
}

extern "C" const void *cuda_kernel_attend_broad(uint32_t d)
{
    return d == 256 ? (const void *)attend_broads<256> : d == 512 ? (const void *)attend_broads<512> : NULL;
}
