/* backend_cuda/k_attend_wide.cu - attention of many rows over F16 pages by wgmma: the sums of k_attention.cu, whose comment says what tiles, blocks and quarters are.
 *
 * A block of threads has a tile of 128 vectors, each of its two warpgroups 64 of them.  All scores of a KV block are in registers at once, so that they are computed
 * once: the largest is known before the first weight.  Weights are wgmma's row operand as they lie.  Totals lie in shared memory, a thread's own.  K of the next KV
 * block comes behind the scores, V behind the fold.  Both are read as pages hold them, K [element][position] and V [position][element]: rows of 64, whose pieces
 * of 8 are turned by the row.  No soft cap. */
#include "backend_cuda/async.cuh"
#include "backend_cuda/attend.cuh"
#include "backend_cuda/wgmma.cuh"

enum { THREADS = CUDA_ATTEND_TALL_THREADS, VECTORS = CUDA_ATTEND_TALL_VECTORS, GROUP = 128 /* threads that multiply together */, ROWS = 64, LINE = 64 /* halves of a row in shared memory */ };

/* d[64]: 64 by 128; both operands from shared memory, the second one with its columns side by side */
static __device__ __forceinline__ void wgmma_scores(float *d, uint64_t a, uint64_t b, uint32_t carry)
{
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %66, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n128k16.f32.f16.f16 {%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63}, %64, %65, p, 1, 1, 0, 1;\n}"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]),
                   "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15]),
                   "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23]),
                   "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31]),
                   "+f"(d[32]), "+f"(d[33]), "+f"(d[34]), "+f"(d[35]), "+f"(d[36]), "+f"(d[37]), "+f"(d[38]), "+f"(d[39]),
                   "+f"(d[40]), "+f"(d[41]), "+f"(d[42]), "+f"(d[43]), "+f"(d[44]), "+f"(d[45]), "+f"(d[46]), "+f"(d[47]),
                   "+f"(d[48]), "+f"(d[49]), "+f"(d[50]), "+f"(d[51]), "+f"(d[52]), "+f"(d[53]), "+f"(d[54]), "+f"(d[55]),
                   "+f"(d[56]), "+f"(d[57]), "+f"(d[58]), "+f"(d[59]), "+f"(d[60]), "+f"(d[61]), "+f"(d[62]), "+f"(d[63])
                 : "l"(a), "l"(b), "r"(carry));
}
/* d[32]: 64 by 64, likewise; the row operand from registers */
static __device__ __forceinline__ void wgmma_values(float *d, const uint32_t *a, uint64_t b, uint32_t carry)
{
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %37, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n64k16.f32.f16.f16 {%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, {%32, %33, %34, %35}, %36, p, 1, 1, 1;\n}"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]),
                   "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15]),
                   "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23]),
                   "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(carry));
}
/* Columns side by side: 64 of them in a row of 128 bytes, 8 rows 1,024 bytes apart, the next 64 columns `apart` bytes on. */
static __device__ __forceinline__ uint64_t columns(uint32_t at, uint32_t apart)
{
    return (uint64_t)((at & 0x3ffff) >> 4) | (uint64_t)(apart >> 4) << 16 | 64ull << 32 | 1ull << 62;
}

static __device__ __forceinline__ void copy16(const void *to, const void *from)
{
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(shared_at(to)), "l"(from) : "memory");
}
static __device__ __forceinline__ void commit(void)
{
    asm volatile("cp.async.commit_group;" ::: "memory");
}
/* All copies of a thread but those of its last group are there, and products see them after the next barrier. */
static __device__ __forceinline__ void arrived_but_one(void)
{
    asm volatile("cp.async.wait_group 1;\nfence.proxy.async.shared::cta;" ::: "memory");
}
static __device__ __forceinline__ float larger(float a, float b) /* NaN is the largest */
{
    float y;
    asm("max.NaN.f32 %0, %1, %2;" : "=f"(y) : "f"(a), "f"(b));
    return y;
}

template <int D> struct wide_form {
    enum { QUERIES = VECTORS * D * 2, KEYS = D * KV_BLOCK * 2, VALUES = KV_BLOCK * D * 2, TOTALS = VECTORS * D * 4,
           ALL = 1024 + QUERIES + KEYS + VALUES + TOTALS + VECTORS * 4 };
};

template <int D> struct attend_wide {
    enum { HALVES = D / 64, SUMS = D / 2 };
    const cuda_p_attention &p;
    __half *queries, *keys, *values; /* [warpgroup][half][vector][64], [64 positions][element][64], [half][position][64] */
    float4 *totals;                  /* [SUMS / 4][thread] */
    float *factors;                  /* of the vectors' scores */
    uint32_t lane, warp, group_of;   /* warpgroup */
    cuda_tile t;
    kv_span span;
    uint32_t kv_head;
    int pos[2], most, low, high, group_high, group_low; /* of the lane's rows; the tile's last; first and last of the warp, of the warpgroup */
    float factor[2], m[2], l[2];

    __device__ attend_wide(const cuda_p_attention &param, unsigned char *shared) : p(param)
    {
        using form = wide_form<D>;
        shared += (shared_at(shared) + 1023) / 1024 * 1024 - shared_at(shared);
        queries = (__half *)shared, keys = (__half *)(shared + form::QUERIES), values = (__half *)(shared + form::QUERIES + form::KEYS);
        totals = (float4 *)(shared + form::QUERIES + form::KEYS + form::VALUES) + threadIdx.x;
        factors = (float *)(shared + form::QUERIES + form::KEYS + form::VALUES + form::TOTALS);
        lane = threadIdx.x & 31, warp = __shfl_sync(0xffffffffu, threadIdx.x >> 5, 0), group_of = warp / (GROUP / 32);
    }
    __device__ uint32_t group() const { return p.heads / p.kv_heads; }
    __device__ int pos_of(uint32_t v) const { return (int)(span.pos_first + (t.first + v) / group()); }
    __device__ int least_of(int at) const { return p.window && at + 1 > (int)p.window ? at + 1 - (int)p.window : 0; }

    __device__ void take(const cuda_tile &tile, uint32_t head)
    {
        t = tile, kv_head = head, span = p.spans[t.span];
        uint32_t g = lane >> 2, last = t.count - 1;
        most = pos_of(last);
        low = pos_of(min(warp * 16, last)), high = warp * 16 < t.count ? pos_of(min(warp * 16 + 15, last)) : -1;
        group_low = pos_of(min(group_of * ROWS, last)), group_high = group_of * ROWS < t.count ? pos_of(min(group_of * ROWS + ROWS - 1, last)) : -1;
#pragma unroll
        for (int r = 0; r < 2; r++) {
            uint32_t v = warp * 16 + g + 8 * r;
            pos[r] = v < t.count ? pos_of(v) : -1;
            m[r] = -DEV_INF, l[r] = 0;
        }
#pragma unroll
        for (int i = 0; i < SUMS / 4; i++)
            totals[i * THREADS] = make_float4(0, 0, 0, 0);
    }

    /* A power of two apart, to f16; a warp its own 16. */
    __device__ void query()
    {
        enum { AT_ONCE = 8 };
        for (uint32_t from = warp * 16; from < warp * 16 + 16; from += AT_ONCE) {
            float2 x[AT_ONCE][HALVES];
#pragma unroll
            for (uint32_t i = 0; i < AT_ONCE; i++)
#pragma unroll
                for (int h = 0; h < HALVES; h++) {
                    uint32_t v = t.first + min(from + i, t.count - 1), row = span.row_first + v / group(), head = kv_head * group() + v % group();
                    const float *at = p.q + (size_t)row * p.q_stride + (size_t)head * D + 64 * h + 2 * lane;
                    x[i][h] = make_float2(__ldcg(at), __ldcg(at + 1));
                }
#pragma unroll
            for (uint32_t i = 0; i < AT_ONCE; i++) {
                uint32_t top = 0, row = (from + i) % ROWS;
#pragma unroll
                for (int h = 0; h < HALVES; h++)
                    top = max(top, max(__float_as_uint(x[i][h].x) & 0x7fffffffu, __float_as_uint(x[i][h].y) & 0x7fffffffu));
                float inverse, up = dev_row_factor(__uint_as_float(__reduce_max_sync(0xffffffffu, top)), &inverse);
#pragma unroll
                for (int h = 0; h < HALVES; h++)
                    *(__half2 *)(queries + ((group_of * HALVES + h) * ROWS + row) * LINE + (lane / 4 ^ (row & 7)) * 8 + lane % 4 * 2) =
                        __floats2half2_rn(x[i][h].x * up, x[i][h].y * up);
                if (lane == 0)
                    factors[from + i] = inverse * p.scale;
            }
        }
        __syncwarp();
        factor[0] = factors[warp * 16 + (lane >> 2)], factor[1] = factors[warp * 16 + (lane >> 2) + 8];
    }

    /* A warp fetches one page of the KV block; what the tile does not see is 0 in V. */
    __device__ void fetch(uint32_t block, bool key)
    {
        int start = (int)(block * KV_BLOCK + warp * KV_PAGE), least = least_of((int)(span.pos_first + t.first / group()));
        const unsigned char *page = NULL;
        if (start <= most && start + KV_PAGE > least)
            page = p.pages[p.tables[span.table_first + start / KV_PAGE]] + p.offset + (size_t)kv_head * p.head_bytes + (key ? 0 : p.k_bytes);
        if (key && page) {
#pragma unroll 2
            for (uint32_t i = lane; i < D * 4; i += 32) {
                uint32_t e = i / 4, piece = warp * 4 + i % 4;
                copy16(keys + ((piece / 8) * D + e) * LINE + (piece % 8 ^ (e & 7)) * 8, (const uint4 *)page + i);
            }
        }
        if (!key) {
            bool whole = page && start >= least && start + KV_PAGE - 1 <= most;
#pragma unroll 2
            for (uint32_t i = lane; i < KV_PAGE * (D / 8); i += 32) {
                uint32_t slot = i / (D / 8), piece = i % (D / 8);
                __half *at = values + ((piece / 8) * KV_BLOCK + warp * KV_PAGE + slot) * LINE + (piece % 8 ^ (slot & 7)) * 8;
                if (whole || (page && start + (int)slot >= least && start + (int)slot <= most))
                    copy16(at, (const uint4 *)page + i);
                else
                    *(uint4 *)at = make_uint4(0, 0, 0, 0);
            }
        }
        commit();
    }

    /* s[half]: of 128 positions each, for registers free up by halves only. */
    __device__ __forceinline__ void scores(float s[2][64]) const
    {
        uint32_t q = shared_at(queries) + group_of * HALVES * ROWS * LINE * 2, k = shared_at(keys);
#pragma unroll
        for (int i = 0; i < 128; i++)
            s[i / 64][i % 64] = 0;
        wgmma_fence();
#pragma unroll
        for (int half = 0; half < 2; half++)
#pragma unroll
            for (int e = 0; e < D; e += 16)
                wgmma_scores(s[half], descriptor(q + e / 64 * ROWS * LINE * 2 + e % 64 * 2), columns(k + (half * 2 * D + e) * LINE * 2, D * LINE * 2), e);
        wgmma_commit();
        wgmma_wait<0>();
    }

    /* In base 2; what a row does not see is -inf; the block's largest. */
    __device__ __forceinline__ void largest(uint32_t block, float s[2][64], float top[2]) const
    {
        int from = (int)(block * KV_BLOCK);
        bool whole = from + KV_BLOCK - 1 <= low && least_of(high) <= from;
        top[0] = top[1] = -DEV_INF;
#pragma unroll
        for (int i = 0; i < 128; i++)
            s[i / 64][i % 64] = (s[i / 64][i % 64] * factor[i >> 1 & 1]) * DEV_LOG2E;
        if (!whole)
#pragma unroll
            for (int i = 0; i < 128; i++) {
                int at = from + 2 * (int)(lane & 3) + i / 4 * 8 + (i & 1), row = pos[i >> 1 & 1];
                s[i / 64][i % 64] = at <= row && at >= least_of(row) ? s[i / 64][i % 64] : -DEV_INF;
                asm volatile("" : "+f"(s[i / 64][i % 64])); /* decided here, not carried on */
            }
#pragma unroll
        for (int i = 0; i < 128; i++)
            top[i >> 1 & 1] = larger(top[i >> 1 & 1], s[i / 64][i % 64]);
#pragma unroll
        for (int r = 0; r < 2; r++) {
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
        uint32_t v = shared_at(values) + (half * KV_BLOCK + quarter * QUARTER) * LINE * 2;
#pragma unroll
        for (int i = 0; i < 32; i++)
            o[i] = 0;
        wgmma_fence();
#pragma unroll
        for (int j = 0; j < 4; j++)
            wgmma_values(o, w[4 * quarter + j], columns(v + 16 * j * LINE * 2, 0), j);
        wgmma_commit();
    }

    /* The block's weighted values, folded into the totals. */
    __device__ __forceinline__ void fold(const uint32_t w[16][4], const float top[2], const float parts[2])
    {
        float keep[2], add[2];
        bool none[2] = {top[0] == -DEV_INF, top[1] == -DEV_INF}; /* nothing is seen in this block */
#pragma unroll
        for (int r = 0; r < 2; r++) {
            float now = top[r] != top[r] || !(m[r] > top[r]) ? top[r] : m[r];
            keep[r] = exp2_fast(m[r] - now), add[r] = exp2_fast(top[r] - now);
            l[r] = none[r] ? l[r] : __fmaf_rn(l[r], keep[r], parts[r] * add[r]), m[r] = none[r] ? m[r] : now;
        }
#pragma unroll
        for (int half = 0; half < HALVES; half++) {
            float o[2][32], sums[32];
            weighted(half, 0, w, o[0]);
#pragma unroll
            for (int quarter = 0; quarter < 4; quarter++) {
                if (quarter < 3)
                    weighted(half, quarter + 1, w, o[(quarter + 1) % 2]);
                if (quarter < 3)
                    wgmma_wait<1>();
                else
                    wgmma_wait<0>();
#pragma unroll
                for (int i = 0; i < 32; i++)
                    sums[i] = quarter ? sums[i] + o[quarter % 2][i] : o[quarter % 2][i];
            }
#pragma unroll
            for (int i = 0; i < 8; i++) {
                float4 x = totals[(half * 8 + i) * THREADS];
                x.x = none[0] ? x.x : __fmaf_rn(x.x, keep[0], sums[4 * i] * add[0]);
                x.y = none[0] ? x.y : __fmaf_rn(x.y, keep[0], sums[4 * i + 1] * add[0]);
                x.z = none[1] ? x.z : __fmaf_rn(x.z, keep[1], sums[4 * i + 2] * add[1]);
                x.w = none[1] ? x.w : __fmaf_rn(x.w, keep[1], sums[4 * i + 3] * add[1]);
                totals[(half * 8 + i) * THREADS] = x;
            }
        }
    }

    __device__ __forceinline__ void one_block(uint32_t block, bool more)
    {
        float s[2][64], top[2], parts[2];
        uint32_t w[16][4];
        arrived_but_one();
        __syncthreads();
        scores(s);
        largest(block, s, top);
        weigh(s, top, w);
        __syncthreads();
        if (more)
            fetch(block + 1, true);
        else
            commit();
        add(w, parts);
        arrived_but_one();
        __syncthreads();
        fold(w, top, parts);
        __syncthreads();
        if (more)
            fetch(block + 1, false);
        else
            commit();
    }

    __device__ void finish()
    {
#pragma unroll
        for (int r = 0; r < 2; r++) {
            uint32_t v = warp * 16 + (lane >> 2) + 8 * r, head = kv_head * group() + (t.first + v) % group();
            if (v >= t.count)
                continue;
            float by = share(p, head, m[r], l[r]);
            float *y = p.y + (size_t)(span.row_first + (t.first + v) / group()) * p.y_stride + (size_t)head * D + 2 * (lane & 3);
#pragma unroll
            for (int n = 0; n < D / 8; n++) {
                float4 x = totals[n * THREADS];
                y[8 * n] = (r ? x.z : x.x) * by, y[8 * n + 1] = (r ? x.w : x.y) * by;
            }
        }
    }
};

template <int D> static __global__ void __launch_bounds__(THREADS, 1) attend_many(const __grid_constant__ cuda_p_attention p)
{
    dev_begin();
    extern __shared__ __align__(1024) unsigned char shared[];
    attend_wide<D> a(p, shared);
    uint32_t items = p.tiles->tile_count * p.kv_heads;
    for (uint32_t i = blockIdx.x; i < items; i += gridDim.x) {
        uint32_t x = items - 1 - i; /* the longest ones first */
        a.take(p.tiles->tiles[x / p.kv_heads], x % p.kv_heads);
        a.fetch(a.t.block_first, true);
        a.fetch(a.t.block_first, false);
        a.query();
        for (uint32_t b = 0; b < a.t.block_count; b++)
            a.one_block(a.t.block_first + b, b + 1 < a.t.block_count);
        a.finish();
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
