/* backend_cuda/k_attend_stream.cu - attention of many spans of one row each, as fast as pages come from memory.
 *
 * The sums of k_attention.cu, whose comment says what tiles, blocks and quarters are.  Here a warp computes a whole KV block by itself and needs no
 * other: scores of 256 positions, weights, values and totals lie in its registers.  It has a ring in shared memory that its own lanes fill, a plane of a
 * page at a time (K of the eight pages, then V), those of the next KV block on their way while this one's are multiplied.  All KV blocks of all tiles are
 * one list, of which each warp has a stretch.  Of a tile that was cut the first piece leaves its totals, others leave each KV block's sums; whoever comes
 * last says so, and when a block's stretches are done its warps fold such tiles in ascending order.
 * Rows of this step are put over what was read, and into their pages (attn_prepare), as in k_attend_row.cu.  Loops over pages are kept rolled: the code
 * of a KV block is to stay in the instruction cache. */
#include "backend_cuda/attend_stream.cuh"

template <int D, enum kv_format F> struct attend_stream {
    using form = stream_form<D, F>;
    enum { BITS = form::BITS, TURNED = F == KV_Q8 /* K, V, and so q and y */, WARPS = form::WARPS, AT_ONCE = form::AT_ONCE, STEPS = D / 16,
           STAGES = form::STAGES, EACH = form::CODES / 512 /* copies of a lane for a plane */, TILES = D / 8, ROW = D * BITS / 8 /* bytes */,
           PER = form::PER /* pages at a time */ };
    const cuda_p_attend_row &p;
    uint32_t lane, ring, group;
    unsigned char *ring_at;
    __half *queries;         /* [vector][Q_STRIDE] */
    float *turning, *factors;
    stream_block now, next;
    const unsigned char *pages, *pages_next; /* of a block, a lane's page is number lane % 8; beginnings, without layer and head */
    uint32_t page_id;
    uint32_t x, x_end, x_first, share_least, share_more; /* item, the end of this warp's, the first of all its tile's; shares of the list */
    bool folding;            /* the piece began with its tile */
    float total[D / 4], m, l; /* m, l: of vector lane / 4 */
    uint32_t *waits;        /* [warp][2] tiles whose last piece came from there, tile * kv_heads + head: they are folded at the end; ~0: none */

    __device__ attend_stream(const cuda_p_attend_row &param, unsigned char *shared) : p(param)
    {
        uint32_t warp = threadIdx.x >> 5;
        lane = threadIdx.x & 31;
        ring_at = shared + warp * form::RING, ring = shared_at(ring_at);
        unsigned char *rest = shared + WARPS * form::RING + warp * form::REST;
        queries = (__half *)rest, turning = (float *)(rest + form::QUERIES), factors = turning + AT_ONCE * D;
        waits = (uint32_t *)(shared + form::WAITS) + 2 * warp;
        if (lane < 2)
            waits[lane] = ~0u;
        group = p.a.heads / p.a.kv_heads;
    }

    __device__ __forceinline__ uint32_t record_floats() const { return 2 * VECTORS + group * D; } /* largest scores, sums; then elements */
    /* ---- the list ---- */

    /* Returns the tile's first item, heads apart. */
    __device__ uint32_t take(stream_block &b, uint32_t tile)
    {
        const uint4 *from = (const uint4 *)(p.a.tiles->tiles + tile);
        uint4 u = __ldcg(from), v = __ldcg(from + 1);
        b.table = __ldcg((const uint32_t *)(from + 2));
        b.tile = tile, b.row = v.z, b.block_first = u.w, b.block_end = u.w + v.x, b.pos = (int)v.w;
        b.least = p.a.window && b.pos + 1 > (int)p.a.window ? b.pos + 1 - (int)p.a.window : 0;
        b.fresh = p.prepare ? b.pos : b.pos + 1;
        for (uint32_t before = tile; p.prepare && before-- > 0;) {
            kv_span s = stream_span(p, before);
            if (s.table_first != b.table)
                break;
            b.fresh = (int)s.pos_first;
        }
        return v.y;
    }
    /* The tile whose items, of all heads, hold item i: 32 of them looked at together. */
    __device__ uint32_t find(uint32_t i) const
    {
        uint32_t low = 0, count = __ldcg(&p.a.tiles->tile_count);
        while (count > 1) {
            uint32_t step = (count + 31) / 32, at = low + lane * step;
            bool before = lane * step < count && __ldcg(&p.a.tiles->tiles[at].tile.item_first) * p.a.kv_heads <= i;
            uint32_t last = 31 - __clz(__ballot_sync(0xffffffffu, before));
            low += last * step, count = min(step, count - last * step);
        }
        return low;
    }
    /* The first item of a head of the tile. */
    __device__ __forceinline__ uint32_t item_of(const stream_block &b, uint32_t item_first) const
    {
        return item_first * p.a.kv_heads + b.kv_head * (b.block_end - b.block_first);
    }
    /* Where a warp's stretch begins, and whose an item is. */
    __device__ uint32_t share_begin(uint32_t r) const { return r * share_least + min(r, share_more); }
    __device__ uint32_t share_of(uint32_t i) const
    {
        uint32_t of_more = share_more * (share_least + 1);
        return i < of_more ? i / (share_least + 1) : share_more + (i - of_more) / share_least;
    }
    /* This warp's stretch; cut between tiles where there is no room for what pieces leave. */
    __device__ bool stretch(void)
    {
        uint32_t all = __ldcg(&p.a.tiles->blocks) * p.a.kv_heads, shares = gridDim.x * WARPS, mine = (threadIdx.x >> 5) * gridDim.x + blockIdx.x;
        bool cut = all <= p.records_max;
        uint32_t n = cut ? all : __ldcg(&p.a.tiles->tile_count) * p.a.kv_heads;
        share_least = n / shares, share_more = n % shares;
        x = share_begin(mine), x_end = share_begin(mine + 1);
        if (x == x_end)
            return false;
        if (!cut) {
            uint32_t ends = x_end, last = take(next, ends / p.a.kv_heads - (ends == n));
            next.kv_head = ends % p.a.kv_heads;
            x_end = ends == n ? all : item_of(next, last);
            last = take(now, x / p.a.kv_heads);
            now.kv_head = x % p.a.kv_heads, now.block = now.block_first;
            x = item_of(now, last);
            return true;
        }
        uint32_t rest = x - take(now, find(x)) * p.a.kv_heads, count = now.block_end - now.block_first;
        now.kv_head = rest / count, now.block = now.block_first + rest % count;
        return true;
    }
    __device__ __forceinline__ void follow(void) /* next: the block behind now */
    {
        next = now;
        next.block++;
        if (!now.ends())
            return;
        if (++next.kv_head == p.a.kv_heads)
            take(next, now.tile + 1), next.kv_head = 0;
        next.block = next.block_first;
    }

    /* ---- pages ---- */

    __device__ __forceinline__ int start_of(const stream_block &b, uint32_t i) const { return (int)(b.block * KV_BLOCK + i * KV_PAGE); }
    __device__ __forceinline__ bool seen(const stream_block &b, int start) const { return start <= b.pos && start + KV_PAGE > b.least; }
    __device__ __forceinline__ void ids(const stream_block &b)
    {
        int start = start_of(b, lane % PAGES);
        if (seen(b, start))
            page_id = __ldcg(p.a.tables + b.table + (uint32_t)start / KV_PAGE);
    }
    __device__ __forceinline__ const unsigned char *addresses(const stream_block &b) const
    {
        return seen(b, start_of(b, lane % PAGES)) ? (const unsigned char *)__ldcg((const unsigned long long *)p.a.pages + page_id) : NULL;
    }
    __device__ __forceinline__ const unsigned char *plane(uint32_t kv_head, const unsigned char *all, uint32_t i) const /* of page i: K's */
    {
        return (const unsigned char *)__shfl_sync(0xffffffffu, (unsigned long long)all, i) + p.a.offset + (size_t)kv_head * p.a.head_bytes;
    }
    /* Stage number k from the beginning of `now` to where stage k - STAGES was: the plane of a page.  What the row does not see of V is 0 there; of K its
     * scores are not looked at. */
    __device__ __forceinline__ void fetch(uint32_t k, uint32_t to)
    {
        bool later = k >= 2 * PAGES, key = k < PAGES || later;
        uint32_t i = k % PAGES, block = later ? next.block : now.block, kv_head = later ? next.kv_head : now.kv_head;
        const unsigned char *all = later ? pages_next : pages, *from = plane(kv_head, all, i) + (key ? 0 : p.a.k_bytes) + lane * 16;
        int start = (int)(block * KV_BLOCK + i * KV_PAGE), least = later ? next.least : now.least, fresh = later ? next.fresh : now.fresh;
        constexpr uint32_t row = ROW / 16, page_row = BITS / 4; /* pieces of V's, of K's */
        bool there = __shfl_sync(0xffffffffu, all != NULL, i) && start < fresh && (!later || x + 1 < x_end);
        uint32_t turn = key ? 0 : 7; /* copy j goes 512 bytes behind copy j - 1, but pieces of V change places */
        if (BITS == 8 && there && lane < form::SCALES / 16)
            copy16(to + form::CODES + lane * 16, from + form::CODES, true);
        to += key ? stream_key_at<BITS>(lane / page_row, lane % page_row) : stream_value_at<ROW>(lane / row, lane % row);
        if (there && (key || (start >= least && start + KV_PAGE <= fresh))) {
#pragma unroll
            for (uint32_t j = 0; j < EACH; j++)
                copy16_stream((to ^ (j * (32 / row) & turn) << 4) + j * 512, from + j * 512);
        } else if (!key) {
#pragma unroll 1
            for (uint32_t j = 0; j < EACH; j++) {
                int slot = start + (int)(lane / row + j * (32 / row));
                bool row_there = there && slot >= least && slot < fresh;
                copy16((to ^ (j * (32 / row) & turn) << 4) + j * 512, row_there ? from + j * 512 : (const unsigned char *)p.a.partial, row_there);
            }
        }
        copies_commit();
    }

    /* ---- rows of this step ---- */

    __device__ void query(void)
    {
        const float *from = p.a.q + (size_t)now.row * p.a.q_stride + (size_t)(now.kv_head * group) * D;
#pragma unroll 1
        for (uint32_t first = 0; first < group; first += AT_ONCE) {
            float v[AT_ONCE][D / 32];
#pragma unroll
            for (uint32_t i = 0; i < AT_ONCE; i++)
#pragma unroll
                for (uint32_t j = 0; j < D / 32; j++)
                    v[i][j] = first + i < group ? __ldcg(from + (first + i) * D + 32 * j + lane) : 0.0f;
#pragma unroll
            for (uint32_t i = 0; i < AT_ONCE; i++)
#pragma unroll
                for (uint32_t j = 0; j < D / 32; j++)
                    turning[i * D + 32 * j + lane] = v[i][j];
#pragma unroll 1
            for (uint32_t i = 0; i < AT_ONCE; i++) {
                float *at = turning + i * D, inverse;
                stream_prepare<D>(p, at, p.w.q_norm, now.row, lane);
                if (TURNED)
                    pages_hadamard(at, D, D, lane);
                uint32_t most = 0;
                for (uint32_t e = lane; e < D; e += 32)
                    most = max(most, __float_as_uint(at[e]) & 0x7fffffffu);
                float up = dev_row_factor(__uint_as_float(__reduce_max_sync(0xffffffffu, most)), &inverse);
                for (uint32_t e = lane; e < D; e += 32)
                    queries[(first + i) * form::Q_STRIDE + e] = __float2half_rn(at[e] * up);
                if (lane == 0)
                    factors[first + i] = inverse * p.a.scale;
            }
        }
        __syncwarp();
    }
    /* Rows of this step over a page that was read. */
    __device__ __forceinline__ void put_rows(uint32_t i, unsigned char *stage, bool key)
    {
        bool there = __shfl_sync(0xffffffffu, pages != NULL, i);
        unsigned char *page = there ? (unsigned char *)plane(now.kv_head, pages, i) : NULL;
        stream_put<D>(p, now.tile, now.kv_head, (uint32_t)start_of(now, i) / KV_PAGE, page, stage, turning, key);
    }
    __device__ __forceinline__ bool puts(int start) const { return p.prepare && start <= now.pos && start + KV_PAGE > now.fresh; }

    /* ---- one KV block ---- */

    /* Where a lane reads mma's row operand from: vectors 0 to 7, and once more as rows 8 to 15, which are not looked at. */
    __device__ __forceinline__ const __half *operand(void) const { return queries + lane % 8 * form::Q_STRIDE + lane / 16 * 8; }
    /* Scores of a page's 32 positions. */
    __device__ __forceinline__ void scores(uint32_t stage, float s[4][2])
    {
        float c[4][4];
        const __half *mine = operand();
        uint32_t row = lane % 16, first = stage + stream_key_at<16>(row, lane / 16), second = stage + stream_key_at<16>(row, 2 + lane / 16);
#pragma unroll
        for (int j = 0; j < 4; j++)
            c[j][0] = c[j][1] = c[j][2] = c[j][3] = 0;
#pragma unroll
        for (int k = 0; k < STEPS; k++) {
            uint32_t a[4], b[4];
            matrix_read(a, mine + k * 16);
            matrix_read_turned_at(b, first + k * 1024);
            stream_halves<F>(b);
            mma(c[0], a, b[0], b[1]);
            mma(c[1], a, b[2], b[3]);
            matrix_read_turned_at(b, second + k * 1024);
            stream_halves<F>(b);
            mma(c[2], a, b[0], b[1]);
            mma(c[3], a, b[2], b[3]);
        }
#pragma unroll
        for (int j = 0; j < 4; j++)
            s[j][0] = c[j][0], s[j][1] = c[j][1];
    }

    /* The same of q8.  A lane has of 16 positions numbers 4 t to 4 t + 3: even ones in s[0], s[2], odd ones in s[1], s[3]. */
    template <bool CLAMPED> __device__ __forceinline__ void scores_coded(uint32_t stage, float s[4][2])
    {
        float c[4][4];
        const __half *mine = operand();
        uint32_t codes = stage + stream_key_at<8>(lane % 16, lane / 16), at = stage + form::CODES + lane / 4 * 4, scales[2];
#pragma unroll
        for (int j = 0; j < 4; j++)
            c[j][0] = c[j][1] = c[j][2] = c[j][3] = 0;
#pragma unroll
        for (int k = 0; k < STEPS; k++) {
            uint32_t a[4], b[4];
            matrix_read(a, mine + k * 16);
            matrix_read_turned_at(b, codes + k * 512);
#pragma unroll
            for (int half = 0; half < 2; half++) {
                if (k % 2 == 0)
                    scales[half] = shared_word(at + k / 2 * (KV_PAGE * 2) + half * 32);
                uint32_t first = b[2 * half] ^ 0x80808080u, second = b[2 * half + 1] ^ 0x80808080u;
                __half2 even = stream_pair(scales[half], scales[half], 0x1010), odd = stream_pair(scales[half], scales[half], 0x3232);
                mma(c[2 * half], a, stream_decoded<CLAMPED>(__byte_perm(first, 0x64646464u, EVEN_BYTES), even),
                    stream_decoded<CLAMPED>(__byte_perm(second, 0x64646464u, EVEN_BYTES), even));
                mma(c[2 * half + 1], a, stream_decoded<CLAMPED>(__byte_perm(first, 0x64646464u, ODD_BYTES), odd),
                    stream_decoded<CLAMPED>(__byte_perm(second, 0x64646464u, ODD_BYTES), odd));
            }
        }
#pragma unroll
        for (int j = 0; j < 4; j++)
            s[j][0] = c[j][0], s[j][1] = c[j][1];
    }
    /* Is one of a plane's scales so large that a value may not be within f16? */
    __device__ __forceinline__ bool large(uint32_t stage) const
    {
        bool any = false;
#pragma unroll
        for (int i = (int)lane; i < form::SCALES / 4; i += 32)
            any = any || stream_large(shared_word(stage + form::CODES + i * 4));
        return __any_sync(0xffffffffu, any);
    }
    __device__ __forceinline__ void page_scores(uint32_t stage, float s[4][2])
    {
        if (BITS == 16)
            scores(stage, s);
        else if (large(stage))
            scores_coded<true>(stage, s);
        else
            scores_coded<false>(stage, s);
    }
    /* Which of 16 positions and of eight vectors' columns number i of s[n] is. */
    __device__ __forceinline__ int position(int n, int i) const
    {
        return BITS == 16 ? 8 * n + 2 * (int)(lane & 3) + i : n / 2 * 16 + 4 * (int)(lane & 3) + 2 * i + n % 2;
    }

    /* Scores to weights in base 2, w[8 positions]; the block's largest score and sum. */
    __device__ __forceinline__ void weigh(float s[32][2], uint32_t w[32], float *top_out, float *sum_out)
    {
        int base = (int)(now.block * KV_BLOCK);
        float factor = factors[lane >> 2], top = -DEV_INF, all = 0;
#pragma unroll
        for (int n = 0; n < 32; n++)
#pragma unroll
            for (int i = 0; i < 2; i++)
                s[n][i] = (s[n][i] * factor) * DEV_LOG2E;
        if (base + KV_BLOCK - 1 > now.pos || base < now.least)
#pragma unroll
            for (int n = 0; n < 32; n++)
#pragma unroll
                for (int i = 0; i < 2; i++) {
                    int at = base + position(n, i);
                    s[n][i] = at <= now.pos && at >= now.least ? s[n][i] : -DEV_INF;
                }
#pragma unroll
        for (int n = 0; n < 32; n++)
            top = larger(larger(top, s[n][0]), s[n][1]);
        top = larger(top, __shfl_xor_sync(0xffffffffu, top, 1));
        top = larger(top, __shfl_xor_sync(0xffffffffu, top, 2));
        float from = top == -DEV_INF ? 0.0f : top; /* nothing seen: all weights 0 */
#pragma unroll
        for (int n = 0; n < 32; n += 2) {
            int j = BITS == 16 ? 0 : 1; /* neighbours: of one tile, or of the even and the odd one */
            __half2 u = __floats2half2_rn(exp2_fast(s[n][0] - from), exp2_fast(s[n + j][1 - j] - from));
            __half2 v = __floats2half2_rn(exp2_fast(s[n + 1 - j][j] - from), exp2_fast(s[n + 1][1] - from));
            w[n] = *reinterpret_cast<uint32_t *>(&u), w[n + 1] = *reinterpret_cast<uint32_t *>(&v);
            if (BITS == 8) { /* to where f16's would be */
                uint32_t low = lane & ~3u | (lane & 3) / 2, a0 = __shfl_sync(0xffffffffu, w[n], low), a1 = __shfl_sync(0xffffffffu, w[n + 1], low);
                uint32_t b0 = __shfl_sync(0xffffffffu, w[n], low + 2), b1 = __shfl_sync(0xffffffffu, w[n + 1], low + 2);
                w[n] = lane & 1 ? a1 : a0, w[n + 1] = lane & 1 ? b1 : b0;
            }
        }
#pragma unroll
        for (int q = 0; q < 4; q++) {
            float sum = 0;
#pragma unroll
            for (int n = 8 * q; n < 8 * q + 8; n++) {
                float2 f = __half22float2(*reinterpret_cast<__half2 *>(&w[n]));
                sum = (sum + f.x) + f.y;
            }
            sum = sum + __shfl_xor_sync(0xffffffffu, sum, 1);
            sum = sum + __shfl_xor_sync(0xffffffffu, sum, 2);
            all = q ? all + sum : sum;
        }
        *top_out = top, *sum_out = all;
    }

    /* Element and vector of number i of a lane's D / 4 sums of values. */
    static __device__ __forceinline__ uint32_t element(int i, uint32_t lane)
    {
        return BITS == 8 ? i / 4 * 16 + 2 * (lane >> 2) + (i >> 1 & 1) : i / 4 * 16 + (lane >> 2) + 8 * (i >> 1 & 1);
    }
    static __device__ __forceinline__ uint32_t vector(int i, uint32_t lane) { return 2 * (lane & 3) + (i & 1); }

    struct products { float c[D / 16][4]; };
    __device__ __forceinline__ void clear(products &o)
    {
#pragma unroll
        for (int n = 0; n < D / 16; n++)
            o.c[n][0] = o.c[n][1] = o.c[n][2] = o.c[n][3] = 0;
    }
    /* A page's weights times values: w of 32 positions. */
    __device__ __forceinline__ void values(uint32_t stage, const uint32_t w[4], products &o)
    {
#pragma unroll
        for (int k = 0; k < 2; k++) {
            uint32_t a[4], at = stage + stream_value_at<ROW>(16 * k + lane / 16 * 8 + lane % 8, lane / 8 % 2); /* the row operand: elements by slots */
#pragma unroll
            for (int n = 0; n < TILES; n += 2) {
                matrix_read_turned_at(a, at ^ (n << 4));
                stream_halves<F>(a);
                mma(o.c[n / 2], a, w[2 * k], w[2 * k + 1]);
            }
        }
    }
    /* The same of q8. */
    template <bool CLAMPED> __device__ __forceinline__ void values_coded(uint32_t stage, const uint32_t w[4], products &o)
    {
#pragma unroll
        for (int k = 0; k < 2; k++) {
            uint32_t b[4], at = stage + stream_value_at<ROW>(16 * k + lane % 16, lane / 16), from = stage + form::CODES + (16 * k + 2 * (lane & 3)) * (D / 16);
            uint4 s0 = shared_words(from), s1 = shared_words(from + 8 * (D / 16)); /* of slots 2 t, 2 t + 1 and the same 8 further */
#pragma unroll
            for (int n = 0; n < D / 16; n += 2) { /* 16 elements, twice */
                bool second = n / 2 & 1, high = n / 4;
                uint32_t which = second ? HIGH_HALVES : LOW_HALVES;
                __half2 near = stream_pair(high ? s0.y : s0.x, high ? s0.w : s0.z, which), far = stream_pair(high ? s1.y : s1.x, high ? s1.w : s1.z, which);
                matrix_read_turned_at(b, at ^ (n << 4));
#pragma unroll
                for (int i = 0; i < 2; i++) {
                    uint32_t first = b[2 * i] ^ 0x80808080u, behind = b[2 * i + 1] ^ 0x80808080u;
                    uint32_t a[4] = {stream_decoded<CLAMPED>(__byte_perm(first, 0x64646464u, EVEN_BYTES), near),
                                     stream_decoded<CLAMPED>(__byte_perm(first, 0x64646464u, ODD_BYTES), near),
                                     stream_decoded<CLAMPED>(__byte_perm(behind, 0x64646464u, EVEN_BYTES), far),
                                     stream_decoded<CLAMPED>(__byte_perm(behind, 0x64646464u, ODD_BYTES), far)};
                    mma(o.c[n + i], a, w[2 * k], w[2 * k + 1]);
                }
            }
        }
    }
    /* Scales of slots that the row does not see are 0, as their codes are. */
    __device__ __forceinline__ void scales_clear(unsigned char *stage, int start)
    {
        bool away = start + (int)lane < now.least || start + (int)lane >= now.fresh;
        if (away)
            *(uint2 *)(stage + form::CODES + lane * (D / 16)) = make_uint2(0, 0);
        __syncwarp();
    }
    __device__ __forceinline__ void page_values(uint32_t stage, unsigned char *bytes, int start, const uint32_t w[4], products &o)
    {
        if (BITS == 16) {
            values(stage, w, o);
            return;
        }
        if (start < now.least || start + KV_PAGE > now.fresh)
            scales_clear(bytes, start);
        if (large(stage))
            values_coded<true>(stage, w, o);
        else
            values_coded<false>(stage, w, o);
    }

    /* The block's sums into the totals, or to a record of their own. */
    __device__ __forceinline__ void fold(const float sums[D / 4], float mb, float lb)
    {
        if (!folding) {
            put_record(x, sums, mb, lb);
            return;
        }
        float top = mb != mb || !(m > mb) ? mb : m, keep = exp2_fast(m - top), add = exp2_fast(mb - top);
        bool none = mb == -DEV_INF; /* nothing is seen in this block */
        keep = none ? 1.0f : keep, add = none ? 0.0f : add;
        if (!none)
            l = __fmaf_rn(l, keep, lb * add), m = top;
        float keeps[2], adds[2];
        bool nones[2];
#pragma unroll
        for (int i = 0; i < 2; i++) {
            uint32_t from = 4 * vector(i, lane);
            keeps[i] = __shfl_sync(0xffffffffu, keep, from), adds[i] = __shfl_sync(0xffffffffu, add, from);
            nones[i] = __shfl_sync(0xffffffffu, none, from);
        }
#pragma unroll
        for (int i = 0; i < D / 4; i++) {
            float x = __fmaf_rn(total[i], keeps[i & 1], sums[i] * adds[i & 1]);
            total[i] = nones[i & 1] ? total[i] : x;
        }
    }
    __device__ __forceinline__ void put_record(uint32_t item, const float sums[D / 4], float mb, float lb)
    {
        float *to = p.a.partial + (size_t)item * record_floats();
        if (lane % 4 == 0)
            to[lane / 4] = mb, to[VECTORS + lane / 4] = lb;
        to += 2 * VECTORS;
#pragma unroll
        for (int i = 0; i < D / 4; i++)
            if (vector(i, lane) < group)
                to[vector(i, lane) * D + element(i, lane)] = sums[i];
    }

    /* What stage k's place holds has come; then it is used, and stage k + STAGES asked for. */
    template <class USE> __device__ __forceinline__ void stage(uint32_t k, uint32_t &slot, USE use)
    {
        copies_wait<STAGES - 1>();
        __syncwarp();
        use(ring + slot * form::PLANE, ring_at + slot * form::PLANE);
        fetch(k + STAGES, ring + slot * form::PLANE);
        slot = slot + 1 == STAGES ? 0 : slot + 1;
    }
    __device__ __forceinline__ void one_block(uint32_t &slot)
    {
        float s[32][2] = {}, mb, lb, sums[D / 4];
        uint32_t w[32];
        bool more = x + 1 < x_end;
        if (more)
            follow(), ids(next);
#pragma unroll 1
        for (uint32_t i = 0; i < PAGES; i += PER) {
#pragma unroll
            for (int n = 0; n < 32 - 4 * PER; n++)
                s[n][0] = s[n + 4 * PER][0], s[n][1] = s[n + 4 * PER][1];
#pragma unroll
            for (uint32_t j = 0; j < PER; j++)
                stage(i + j, slot, [&](uint32_t at, unsigned char *bytes) {
                    if (F == KV_F16 && puts(start_of(now, i + j)))
                        put_rows(i + j, bytes, true);
                    page_scores(at, s + 32 - 4 * PER + 4 * j);
                });
        }
        if (more)
            pages_next = addresses(next);
        weigh(s, w, &mb, &lb);
        products o;
#pragma unroll 1
        for (uint32_t i = 0; i < PAGES; i += PER) {
            if (PER == 2 || i % 2 == 0)
                clear(o);
#pragma unroll
            for (uint32_t j = 0; j < PER; j++)
                stage(PAGES + i + j, slot, [&](uint32_t at, unsigned char *bytes) {
                    if (F == KV_F16 && puts(start_of(now, i + j)))
                        put_rows(i + j, bytes, false);
                    page_values(at, bytes, start_of(now, i + j), w + 4 * j, o);
                });
            if (PER == 2 || i % 2)
#pragma unroll
                for (int e = 0; e < D / 4; e++)
                    sums[e] = i > 1 ? sums[e] + o.c[e / 4][e % 4] : o.c[e / 4][e % 4];
#pragma unroll
            for (int n = 0; n < 32 - 4 * PER; n++)
                w[n] = w[n + 4 * PER];
        }
        fold(sums, mb, lb);
    }

    /* ---- pieces of tiles ---- */

    __device__ __forceinline__ void begin(void)
    {
        folding = now.block == now.block_first, x_first = x;
        m = -DEV_INF, l = 0;
#pragma unroll
        for (int i = 0; i < D / 4; i++)
            total[i] = 0;
        query();
    }
    __device__ __forceinline__ void put(const stream_block &b, uint32_t v, uint32_t e, float value)
    {
        p.a.y[(size_t)b.row * p.a.y_stride + b.kv_head * group * D + v * D + e] = value;
    }
    /* y of the totals where V is turned. */
    __device__ __forceinline__ void put_turned(void)
    {
#pragma unroll 1
        for (uint32_t first = 0; first < group; first += AT_ONCE) {
            __syncwarp();
#pragma unroll
            for (int i = 0; i < D / 4; i++)
                if (vector(i, lane) - first < AT_ONCE)
                    turning[(vector(i, lane) - first) * D + element(i, lane)] = total[i];
            __syncwarp();
            put_back(first);
        }
    }
    /* y of vectors from `first` on, whose values lie in shared memory. */
    __device__ void put_back(uint32_t first)
    {
#pragma unroll 1
        for (uint32_t v = 0; v < AT_ONCE && first + v < group; v++) {
            pages_hadamard(turning + v * D, D, D, lane);
            for (uint32_t e = lane; e < D; e += 32)
                put(now, first + v, e, turning[v * D + e]);
        }
    }
    /* The piece is done: y, or word to those that have the others. */
    __device__ __forceinline__ void end(void)
    {
        if (folding && now.ends()) {
            float by = lane / 4 < group ? share(p.a, now.kv_head * group + lane / 4, m, l) : 0.0f, bys[2];
#pragma unroll
            for (int i = 0; i < 2; i++)
                bys[i] = __shfl_sync(0xffffffffu, by, 4 * vector(i, lane));
#pragma unroll
            for (int i = 0; i < D / 4; i++)
                total[i] = total[i] * bys[i & 1];
            if (TURNED)
                put_turned();
#pragma unroll
            for (int i = 0; !TURNED && i < D / 4; i++)
                if (vector(i, lane) < group)
                    put(now, vector(i, lane), element(i, lane), total[i]);
            return;
        }
        if (folding)
            put_record(x_first, total, m, l);
        __threadfence();
        __syncwarp();
        uint32_t *arrived = p.arrived + now.tile * p.a.kv_heads + now.kv_head, blocks = x + 1 - x_first;
        if (lane == 0 && atomicAdd(arrived, blocks) + blocks == now.block_end - now.block_first) {
            *arrived = 0;
            waits[waits[0] != ~0u] = now.tile * p.a.kv_heads + now.kv_head;
            __threadfence();
        }
        __syncwarp();
    }

    /* y of a tile from the records of its pieces, as many at a time as the ring has room for: of its groups of 32 elements the `slice`-th part. */
    __device__ void fold_records(uint32_t tile, uint32_t kv_head, uint32_t slice, uint32_t slices)
    {
        uint32_t first = take(now, tile);
        now.kv_head = kv_head, first = item_of(now, first);
        uint32_t cut = share_begin(share_of(first) + 1), records = 1 + first + now.block_end - now.block_first - cut, floats = record_floats();
        uint32_t groups = group * (D / 32), low = slice * groups / slices, high = (slice + 1) * groups / slices;
        uint32_t pieces = VECTORS / 2 + (high - low) * 8, most = form::RING / 16 / pieces;
        float sum[VECTORS][D / 32], mv[VECTORS], lv[VECTORS];
#pragma unroll
        for (int v = 0; v < VECTORS; v++) {
            mv[v] = -DEV_INF, lv[v] = 0;
#pragma unroll
            for (int j = 0; j < D / 32; j++)
                sum[v][j] = 0;
        }
#pragma unroll 1
        for (uint32_t done = 0; done < records && low < high; done += most) {
            uint32_t n = min(most, records - done);
            __syncwarp();
#pragma unroll 4
            for (uint32_t i = lane; i < n * pieces; i += 32) {
                uint32_t r = done + i / pieces, item = r ? cut + r - 1 : first, piece = i % pieces;
                copy16(ring + i * 16, p.a.partial + (size_t)item * floats + (piece < VECTORS / 2 ? piece : piece + low * 8) * 4, true);
            }
            copies_commit();
            copies_wait<0>();
            __syncwarp();
#pragma unroll 1
            for (uint32_t r = 0; r < n; r++) {
                const float *at = (const float *)ring_at + r * pieces * 4, *from = at + 2 * VECTORS + lane;
#pragma unroll
                for (int v = 0; v < VECTORS; v++) {
                    if ((v + 1) * (D / 32) <= low || v * (D / 32) >= high)
                        continue;
                    float mb = at[v], lb = at[VECTORS + v];
                    if (mb == -DEV_INF)
                        continue;
                    float top = mb != mb || !(mv[v] > mb) ? mb : mv[v], keep = exp2_fast(mv[v] - top), add = exp2_fast(mb - top);
                    lv[v] = __fmaf_rn(lv[v], keep, lb * add), mv[v] = top;
#pragma unroll
                    for (int j = 0; j < D / 32; j++)
                        if (v * (D / 32) + j >= low && v * (D / 32) + j < high)
                            sum[v][j] = __fmaf_rn(sum[v][j], keep, from[(v * (D / 32) + j - low) * 32] * add);
                }
            }
        }
#pragma unroll
        for (int v = 0; v < VECTORS; v++) {
            if ((v + 1) * (D / 32) <= low || v * (D / 32) >= high)
                continue;
            float by = share(p.a, kv_head * group + v, mv[v], lv[v]);
            __syncwarp();
#pragma unroll
            for (int j = 0; j < D / 32; j++)
                turning[32 * j + lane] = sum[v][j] * by;
            __syncwarp();
            if (TURNED)
                pages_hadamard(turning, D, D, lane);
#pragma unroll
            for (int j = 0; j < D / 32; j++)
                if (v * (D / 32) + j >= low && v * (D / 32) + j < high)
                    put(now, v, 32 * j + lane, turning[32 * j + lane]);
        }
    }
    /* Tiles that wait, each by as many of the block's warps as there are for it. */
    __device__ void fold_all(void)
    {
        uint32_t warp = threadIdx.x >> 5, mine = lane < 2 * WARPS ? waits[(int)lane - 2 * (int)warp] : ~0u, there = __ballot_sync(0xffffffffu, mine != ~0u);
        uint32_t count = __popc(there), slices = 1;
        while (count && 2 * slices * count <= WARPS && (!TURNED || group % (2 * slices) == 0))
            slices *= 2;
#pragma unroll 1
        for (uint32_t i = warp; i < count * slices; i += WARPS) {
            uint32_t left = there;
            for (uint32_t skip = i / slices; skip > 0; skip--)
                left &= left - 1;
            uint32_t tile = __shfl_sync(0xffffffffu, mine, __ffs(left) - 1);
            fold_records(tile / p.a.kv_heads, tile % p.a.kv_heads, i % slices, slices);
        }
    }

    __device__ void work(void)
    {
        uint32_t slot = 0;
        begin();
#pragma unroll 1
        for (;;) {
            one_block(slot);
            bool last = x + 1 == x_end, ends = now.ends();
            if (last || ends)
                end();
            if (last)
                break;
            now = next, pages = pages_next, x++;
            if (ends)
                begin();
        }
        copies_wait<0>();
    }
    __device__ void ahead(void) /* the first pages, before what the kernel ahead writes is there */
    {
        ids(now);
        pages = addresses(now);
#pragma unroll 1
        for (uint32_t k = 0; k < STAGES; k++)
            fetch(k, ring + k * form::PLANE);
    }
};

template <int D, enum kv_format F>
static __global__ void __launch_bounds__(32 * stream_form<D, F>::WARPS, 1) attend_stream_rows(const __grid_constant__ cuda_p_attend_row p)
{
    extern __shared__ __align__(1024) unsigned char shared[];
    attend_stream<D, F> a(p, shared);
    if (!p.early)
        dev_wait();
    bool any = a.stretch();
    if (any)
        a.ahead();
    if (p.early)
        dev_wait();
    dev_launch_next();
    if (any)
        a.work();
    __syncthreads();
    a.fold_all();
}

/* X(format, elements of a head) */
#define STREAMS(X) X(KV_F16, 64) X(KV_F16, 128) X(KV_BF16, 64) X(KV_BF16, 128) X(KV_Q8, 128)

extern "C" struct cuda_stream cuda_kernel_attend_stream(uint32_t d, enum kv_format f)
{
#define STREAM_KERNEL(format, elements)  \
    if (f == format && d == elements)    \
        return {(const void *)attend_stream_rows<elements, format>, 32 * stream_form<elements, format>::WARPS, stream_form<elements, format>::TOTAL};
    STREAMS(STREAM_KERNEL)
    return {NULL, 0, 0};
}
