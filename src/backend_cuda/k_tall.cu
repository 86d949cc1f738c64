/* backend_cuda/k_tall.cu - linear over many rows: wgmma, the same sums as k_linear.cu.
 *
 * The weights are the row operand, taken from packed tiles to registers as in decode; rows of x come to shared memory as pack left them (128-byte
 * swizzle).  A segment is one chain of wgmma k16 steps from zero, added to the total in ascending order: the bits of k_linear.cu (ops_rows_law compares
 * them).  A block of 16 warps has four parts:
 *   two warpgroups multiply 64 weight rows each by 128 rows of x: operands of a unit are made while the products of the one before it run
 *   one warpgroup writes the sums that these leave in shared memory (gates, biases, what is added), while they are at the next tile
 *   of the last one, a warp fetches x and one the packed weights, by bulk copies
 * A piece of weights is given back once products that read it are under way: only then are its operands in registers.
 * Where blocks would be fewer than half of the multiprocessors, they have half of the weights: both warpgroups the same 64 rows, each with 64 rows of x.
 * For a pair the first warpgroup has the gate, the second the same rows of up.  The two blocks of a cluster have other weights and the same rows of x: each fetches
 * half of these, for both.  Blocks stay and take tile after tile: 16 blocks of rows, then the next weights, so both are found in L2.  Unused registers go to those
 * that multiply.  The last tile of a block is written by all three.  The loop is short on purpose: what a warp does between its products decides the speed, and the compiler would make out addresses and
 * ring places again for each unit. */
#include "backend_cuda/async.cuh"
#include "backend_cuda/weight_layout.cuh"
#include "backend_cuda/wgmma.cuh"

enum { ROWS = CUDA_TALL_ROWS, STAGE_BYTES = ROWS * 128, WARPS = 8, WRITERS = 128,
       THREADS = CUDA_TALL_THREADS, BAND = 16, ROOM = 227 * 1024 - 2048 /* of shared memory, barriers and scales apart */,
       CLUSTER = CUDA_TALL_CLUSTER, HALF_STAGE = STAGE_BYTES / CLUSTER,
       EMPTY = 1, FULL = 3 /* named barriers: room for the sums of warpgroup 0, of 1; all sums are there */ };

/* TILES of 16 weight rows in a block: 8, or 4. */
template <int BITS, int SCALE, int OFF, int TILES> struct tall_form {
    using lay = layout<BITS, SCALE, OFF>;
    enum { UNITS = BITS == 16 ? 2 : lay::piece_units /* of a piece: small copies come slowly */, PIECE = UNITS * lay::unit_bytes + lay::super_bytes,
           PIECES = TILES * PIECE, SUMS = TILES * 8 /* of a thread */, OUT_BYTES = ROWS * TILES * 64,
           W = 8 / TILES * (PIECE > 2100 ? 3 : 5), MOST = (ROOM - OUT_BYTES - W * PIECES) / STAGE_BYTES, X = MOST < 6 ? MOST : 6,
           TOTAL = 1024 + X * STAGE_BYTES + OUT_BYTES + W * PIECES };
};

/* Where a block works: rows of x, and the i-th of its tiles of weights. */
struct spot {
    uint32_t row0, rows, tile, part, before; /* before: tiles of matrices before this one */
    bool mine; /* else it keeps pace with nothing to write */
};

template <int TILES> struct plan {
    uint32_t row_blocks, groups, total, rank;
    __device__ __forceinline__ plan(const cuda_p_linear &p)
    {
        uint32_t tiles = p.pair ? p.tiles / 2 : p.tiles, per = p.pair ? TILES / 2 : TILES;
        rank = cluster_rank();
        row_blocks = p.groups ? __ldcg(&p.groups->count) : (p.rows + ROWS - 1) / ROWS;
        groups = ((tiles + per - 1) / per + CLUSTER - 1) / CLUSTER;
        total = row_blocks * groups;
    }
    __device__ __forceinline__ spot at(const cuda_p_linear &p, uint32_t id, uint32_t i) const
    {
        uint32_t band = id / (BAND * groups), rest = id - band * BAND * groups, left = row_blocks - band * BAND, rows = left < BAND ? left : BAND;
        uint32_t block = rest / rows * CLUSTER + rank, row_block = band * BAND + rest % rows;
        spot s;
        s.row0 = row_block * ROWS, s.rows = p.rows - s.row0 < ROWS ? p.rows - s.row0 : ROWS, s.before = 0;
        if (p.groups) {
            const uint4 item = __ldcg(reinterpret_cast<const uint4 *>(p.groups->items + row_block));
            s.row0 = item.y, s.rows = item.z, s.before = item.x * (p.each / 16);
        }
        s.tile = p.pair ? block * (TILES / 2) + i % (TILES / 2) : block * TILES + i;
        s.mine = s.tile < (p.pair ? p.tiles / 2 : p.tiles);
        s.part = p.pair ? i / (TILES / 2) : 0;
        while (!p.pair && s.part + 1 < p.part_count && s.tile >= p.part[s.part + 1].tile_first)
            s.part++;
        s.tile -= p.pair ? 0 : p.part[s.part].tile_first;
        return s;
    }
};

/* Walks through the places of a ring. */
template <int N> struct walk {
    uint32_t slot, phase;
    __device__ __forceinline__ void next()
    {
        slot = slot + 1 == N ? 0 : slot + 1;
        phase ^= slot == 0;
    }
};

/* Where things are in shared memory. */
struct places {
    uint32_t stages, rings, full, empty, filled, used;
};

/* Packed weights of the block's tiles, piece after piece, a lane a tile. */
template <int BITS, int SCALE, int OFF, int TILES>
static __device__ void fetch_weights(const cuda_p_linear &p, const plan<TILES> &all, const places &to, uint32_t first, uint32_t step, uint32_t lane)
{
    using lay = layout<BITS, SCALE, OFF>;
    using form = tall_form<BITS, SCALE, OFF, TILES>;
    walk<form::W> at = {0, 1};
    for (uint32_t id = first; id < all.total; id += step) {
        spot s = all.at(p, id, lane % TILES);
        const uint8_t *planes = p.part[s.part].planes + (size_t)(s.before + (s.mine ? s.tile : 0)) * p.tile_bytes;
        for (uint32_t piece = 0; piece * form::UNITS < p.units; piece++, at.next()) {
            uint32_t left = p.units - piece * form::UNITS, bar = to.filled + 8 * at.slot;
            uint32_t bytes = lay::super_bytes || left >= form::UNITS ? (uint32_t)form::PIECE : left * lay::unit_bytes;
            if (lane == 0) {
                bar_wait_idle(to.used + 8 * at.slot, at.phase);
                bar_expect(bar, TILES * bytes);
            }
            __syncwarp();
            if (lane < TILES)
                bulk_copy(to.rings + at.slot * form::PIECES + lane * form::PIECE, planes + piece * form::PIECE, bytes, bar);
        }
    }
}

/* Rows of x, unit after unit; half of each, for both blocks. */
template <int X, int TILES> static __device__ void fetch(const cuda_p_linear &p, const plan<TILES> &all, const places &to, uint32_t first, uint32_t step)
{
    const uint8_t *x = reinterpret_cast<const uint8_t *>(p.x) + all.rank * HALF_STAGE;
    walk<X> at = {0, 1};
    for (uint32_t id = first; id < all.total; id += step) {
        const uint8_t *from = x + (size_t)(all.at(p, id, 0).row0 / ROWS) * p.units * STAGE_BYTES;
        for (uint32_t u = 0; u < p.units; u++, from += STAGE_BYTES, at.next()) {
            bar_wait_idle(to.empty + 8 * at.slot, at.phase);
            bar_expect(to.full + 8 * at.slot, STAGE_BYTES);
            bulk_copy_all(to.stages + at.slot * STAGE_BYTES + all.rank * HALF_STAGE, from, HALF_STAGE, to.full + 8 * at.slot, (1 << CLUSTER) - 1);
        }
    }
}

/* ---- products ---- */

/* Shared memory by its address: the compiler would make that out again and again from where the arrays are. */
struct read_at {
    static __device__ __forceinline__ uint32_t at(const uint8_t *p) { return (uint32_t)(uintptr_t)p; }
    static __device__ __forceinline__ uint4 read16(const uint8_t *p)
    {
        uint4 v;
        asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "r"(at(p)) : "memory");
        return v;
    }
    static __device__ __forceinline__ uint2 read8(const uint8_t *p)
    {
        uint2 v;
        asm volatile("ld.shared.v2.u32 {%0, %1}, [%2];" : "=r"(v.x), "=r"(v.y) : "r"(at(p)) : "memory");
        return v;
    }
    static __device__ __forceinline__ uint32_t read4(const uint8_t *p)
    {
        uint32_t v;
        asm volatile("ld.shared.u32 %0, [%1];" : "=r"(v) : "r"(at(p)) : "memory");
        return v;
    }
};
static __device__ __forceinline__ uint32_t opaque(uint32_t v)
{
    asm volatile("mov.u32 %0, %0;" : "+r"(v));
    return v;
}

/* A warp's weights on their way to operands: taken apart while products of the unit before run, for whose registers the last step waits; a 16-bit unit needs
 * no making and is read when it is wanted. */
template <int BITS, int SCALE, int OFF> struct operands {
    __half2 v[4][4], d[4][2], m[4][2];
    template <int IN> __device__ __forceinline__ void take(uint32_t piece, uint32_t lane)
    {
        if (BITS == 16)
            return;
        unit<BITS, SCALE, OFF> raw;
        raw.template load<read_at>((const uint8_t *)(uintptr_t)piece, IN, lane);
#pragma unroll
        for (int c = 0; c < 4; c++)
            raw.codes(c, v[c], d[c], m[c]);
#pragma unroll
        for (int i = 0; i < 16; i++)
            asm volatile("" : "+r"(*reinterpret_cast<uint32_t *>(&v[i / 4][i % 4]))::"memory");
    }
    template <int IN> __device__ __forceinline__ void make(uint32_t piece, uint32_t lane, uint32_t a[4][4])
    {
#pragma unroll
        for (int c = 0; c < 4; c++) {
            if (BITS == 16) {
                uint4 x = read_at::read16((const uint8_t *)(uintptr_t)(piece + lane * 16 + (IN * 4 + c) * 512));
                a[c][0] = x.x, a[c][1] = x.y, a[c][2] = x.z, a[c][3] = x.w;
            } else {
                unit<BITS, SCALE, OFF>::scaled(v[c], d[c], m[c], a[c]);
            }
        }
#pragma unroll
        for (int i = 0; i < 16; i++) /* none of them is made between the products */
            asm volatile("" : "+r"(a[i / 4][i % 4])::"memory");
    }
};

/* State of a warp that multiplies. */
template <int BITS, int SCALE, int OFF, int TILES> struct multiplier {
    using lay = layout<BITS, SCALE, OFF>;
    using form = tall_form<BITS, SCALE, OFF, TILES>;
    enum { SUMS = form::SUMS };
    uint32_t units, size, lane;
    uint32_t x_full, x_phase, x_places, x_stages, before; /* barrier of the next stage; where those and the stages begin; barrier of the stage before */
    uint32_t w_full, w_phase, w_places, piece, pieces;    /* likewise; the warp's part of the piece in hand, and of the first */
    uint32_t x_far;                                       /* from those of x to the one of the block that this lane tells of what was read */
    uint32_t end, carry;                                  /* of the segment; 0: it begins */
    operands<BITS, SCALE, OFF> w;
    uint32_t a[2][4][4];

    __device__ __forceinline__ multiplier(const cuda_p_linear &p, const places &at, uint32_t warp, uint32_t lane_)
    {
        units = p.units, size = cuda_segment_units(units), lane = lane_;
        x_full = x_places = opaque(at.full), x_phase = 0;
        x_stages = opaque(at.stages + (TILES == 4 ? warp / 4 * (STAGE_BYTES / 2) : 0));
        w_full = w_places = opaque(at.filled), w_phase = 0;
        piece = pieces = opaque(at.rings + warp % TILES * form::PIECE);
        x_far = bar_far(x_places + 8 * form::X, lane % CLUSTER) - x_places;
    }
    /* The piece in hand was read. */
    __device__ __forceinline__ void piece_read()
    {
        __syncwarp();
        bar_arrive_if(w_full + 8 * form::W, lane == 0);
        w_full += 8, piece += form::PIECES;
        if (w_full == w_places + 8 * form::W)
            w_full = w_places, piece = pieces, w_phase ^= 1;
    }
    __device__ __forceinline__ void stage_read(uint32_t bar) { bar_arrive_far(bar + x_far, lane < CLUSTER); }
    static __device__ __forceinline__ void multiply(float *acc, const uint32_t *operand, uint64_t b, uint32_t go_on)
    {
        if (TILES == 8)
            wgmma(acc, operand, b, go_on);
        else
            wgmma_half(acc, operand, b, go_on);
    }
    /* The first unit of a tile. */
    __device__ __forceinline__ void first()
    {
        bar_wait(w_full, w_phase);
        w.template take<0>(piece, lane);
        w.template make<0>(piece, lane, a[0]);
    }

    /* Products of unit u, the I-th of four, whose operands are there; meanwhile those of the next one are made.  WHOLE: segments are of fours, and the next
     * unit may be the next tile's.  True behind the last unit. */
    template <int I, bool WHOLE> __device__ __forceinline__ bool step(uint32_t u, bool last, float *total, float *acc)
    {
        constexpr int P = I % 2, IN = (I + 1) % form::UNITS;
        bool more = WHOLE ? I < 3 || !last || u + 1 < units : u + 1 < units, goes_on = (WHOLE && I) || carry;
        uint32_t bar = x_full;
        uint64_t b = descriptor(x_stages + (x_full - x_places) * (STAGE_BYTES / 8));
        bar_wait(x_full, x_phase);
        wgmma_fence();
        multiply(acc, a[P][0], b, goes_on);
        multiply(acc, a[P][1], b + 2, 1);
        multiply(acc, a[P][2], b + 4, 1);
        multiply(acc, a[P][3], b + 6, 1);
        wgmma_commit();
        x_full += 8;
        if (x_full == x_places + 8 * form::X)
            x_full = x_places, x_phase ^= 1;
        if (IN == 0 || (!WHOLE && u + 1 == units))
            piece_read(); /* its operands are in registers, or the products would not run */
        if (more) {
            if (IN == 0)
                bar_wait(w_full, w_phase);
            w.template take<IN>(piece, lane);
        }
        wgmma_wait<1>();
        if (goes_on)
            stage_read(before);
        before = bar, carry = 1;
        if (more)
            w.template make<IN>(piece, lane, a[1 - P]);
        if ((!WHOLE || I == 3) && u + 1 == end) {
            wgmma_wait<0>();
            stage_read(bar);
            end = end + size < units ? end + size : units, carry = 0;
#pragma unroll
            for (int i = 0; i < SUMS; i++)
                total[i] = total[i] + acc[i];
            return u + 1 == units;
        }
        return false;
    }

    /* All units of one tile: total = segment 0 + segment 1 + .. */
    template <bool WHOLE> __device__ __forceinline__ void tile(bool last, float *total)
    {
        float acc[SUMS];
#pragma unroll
        for (int i = 0; i < SUMS; i++)
            total[i] = -0.0f; /* changes nothing that is added */
        end = size < units ? size : units, carry = 0;
        if (!WHOLE)
            first();
#pragma unroll 1
        for (uint32_t u = 0;; u += 4)
            if (step<0, WHOLE>(u, last, total, acc) || step<1, WHOLE>(u + 1, last, total, acc) || step<2, WHOLE>(u + 2, last, total, acc) ||
                step<3, WHOLE>(u + 3, last, total, acc))
                break;
    }
};

/* ---- what is written ---- */

template <int TILES> static __device__ __forceinline__ uint32_t out_at(uint32_t n, uint32_t o) /* from 32 lanes to 32 banks, as products lie and as rows do */
{
    return n * (TILES * 16) + (o ^ (n >> 1 & 3) * 8);
}

template <int TILES> static __device__ __forceinline__ void leave(const float *total, float *out, uint32_t warp, uint32_t lane)
{
    uint32_t n0 = TILES == 8 ? 0 : warp / 4 * 64, o0 = warp % TILES * 16;
#pragma unroll
    for (int i = 0; i < TILES * 8; i++)
        out[out_at<TILES>(n0 + i / 4 * 8 + 2 * (lane & 3) + (i & 1), o0 + (lane >> 2) + 8 * (i >> 1 & 1))] = total[i];
}

/* The sequence that `/` is, without what it does for large and small numbers: both of magnitudes in [2^-60, 2^60]. */
static __device__ __forceinline__ float quotient(float a, float b)
{
    float r;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(b));
    r = __fmaf_rn(__fmaf_rn(-b, r, 1.0f), r, r);
    float q = __fmul_rn(a, r);
    q = __fmaf_rn(__fmaf_rn(-b, q, a), r, q);
    return __fmaf_rn(__fmaf_rn(-b, q, a), r, q);
}

/* v = dev_gate(act, v, up) of several, side by side where it is x / (1 + exp) of common numbers. */
template <int N> static __device__ __forceinline__ void gates(uint32_t act, float *v, const float *up)
{
    bool plain = act == ACT_SILU || act == ACT_GELU_TANH;
    float y[N];
#pragma unroll
    for (int i = 0; i < N; i++) {
        float z = act == ACT_SILU ? -v[i] : __fmaf_rn((v[i] * v[i]) * v[i], 0.044715f, v[i]) * -1.5957691f, below = 1.0f + dev_exp(z);
        y[i] = quotient(v[i], below) * up[i];
        plain = plain && fabsf(v[i]) > 0x1p-60f && fabsf(v[i]) < 0x1p60f && below < 0x1p60f;
    }
    if (plain) {
#pragma unroll
        for (int i = 0; i < N; i++)
            v[i] = y[i];
        return;
    }
#pragma unroll 1
    for (int i = 0; i < N; i++)
        v[i] = dev_gate(act, v[i], up[i]);
}

/* Column after column of y's rows: whole lines.  N outputs of a thread at once; of a pair: gate and up. */
template <int N, bool PAIR, int TILES>
static __device__ __forceinline__ void write_some(const cuda_p_linear &p, const plan<TILES> &all, uint32_t id, const float *out, const float *x_scales,
                                                  uint32_t thread, uint32_t threads)
{
    enum { COLUMNS = PAIR ? TILES * 8 : TILES * 16 };
    uint32_t column = thread % COLUMNS, n0 = thread / COLUMNS, step = threads / COLUMNS;
    const spot s = all.at(p, id, column / 16);
    const cuda_linear_part &q = p.part[s.part];
    uint32_t o = s.tile * 16 + column % 16, in = s.before * 16 + o, rows = s.rows;
    bool mine = s.mine && o < q.rows;
    float scale = mine ? q.row_scale[in] : 0, up_scale = PAIR && mine ? p.part[1].row_scale[in] : 0, bias = mine && q.bias ? q.bias[in] : 0;
    float up_bias = PAIR && mine && p.part[1].bias ? p.part[1].bias[in] : 0;
    float *y = q.y + o, other[N]; /* up, or what was there */
    auto at = [&](uint32_t n) { return y + (size_t)(p.order ? p.order[s.row0 + n] : s.row0 + n) * q.y_stride; };
    auto before = [&](uint32_t from) {
#pragma unroll
        for (uint32_t i = 0; i < N; i++)
            other[i] = mine && from + i * step < rows ? __ldcg(at(from + i * step)) : 0;
    };
    if (!PAIR && p.add)
        before(n0);
    some_sync(FULL, 32 * WARPS + WRITERS);
#pragma unroll 1
    for (uint32_t from = n0; mine && from < rows; from += N * step) {
        float v[N];
        if (!PAIR && p.add && from != n0)
            before(from);
#pragma unroll
        for (uint32_t i = 0; i < N; i++) {
            uint32_t n = from + i * step < ROWS ? from + i * step : 0;
            v[i] = out[out_at<TILES>(n, column)] * (scale * x_scales[n]);
            v[i] = q.bias ? v[i] + bias : v[i];
            if (PAIR) {
                other[i] = out[out_at<TILES>(n, COLUMNS + column)] * (up_scale * x_scales[n]);
                other[i] = p.part[1].bias ? other[i] + up_bias : other[i];
            }
        }
        if (PAIR)
            gates<N>(p.act, v, other);
        else
#pragma unroll
            for (uint32_t i = 0; i < N; i++) {
                v[i] = p.alpha != 1.0f ? v[i] * p.alpha : v[i];
                v[i] = p.add ? other[i] + v[i] : v[i];
            }
#pragma unroll
        for (uint32_t i = 0; i < N; i++)
            if (from + i * step < rows)
                *at(from + i * step) = v[i];
    }
}
template <int TILES>
static __device__ __forceinline__ void write(const cuda_p_linear &p, const plan<TILES> &all, uint32_t id, const float *out, const float *x_scales,
                                             uint32_t thread, uint32_t threads)
{
    if (p.pair)
        write_some<8, true>(p, all, id, out, x_scales, thread, threads);
    else
        write_some<16, false>(p, all, id, out, x_scales, thread, threads);
}

/* Scales of a tile's rows of x, by the warpgroup that writes. */
template <int TILES>
static __device__ __forceinline__ void scales(const cuda_p_linear &p, const plan<TILES> &all, uint32_t id, float *x_scales, uint32_t thread)
{
    const spot s = all.at(p, id, 0);
    x_scales[thread] = thread < s.rows ? __ldcg(p.x_scale + s.row0 + thread) : 0;
}

template <int BITS, int SCALE, int OFF, int TILES>
static __global__ void __cluster_dims__(CLUSTER, 1, 1) __launch_bounds__(THREADS, 1) tall(const __grid_constant__ cuda_p_linear p)
{
    using form = tall_form<BITS, SCALE, OFF, TILES>;
    static_assert((int)WRITERS == (int)ROWS, "a scale of x a thread");
    extern __shared__ unsigned char memory[];
    __shared__ __align__(8) uint64_t full[2 * form::X], filled[2 * form::W]; /* and behind those: empty, used */
    __shared__ float x_scales[2][ROWS]; /* of this tile and the one before: a warp that writes may be that far behind */
    uint64_t *empty = full + form::X, *used = filled + form::W;
    if (p.groups)
        dev_wait(); /* they say which weights */
    const plan<TILES> all(p);
    uint32_t lane = threadIdx.x & 31, warp = threadIdx.x >> 5, first = blockIdx.x / CLUSTER, step = gridDim.x / CLUSTER;
    uint32_t stages = (shared_at(memory) + 1023) / 1024 * 1024;
    float *out = reinterpret_cast<float *>(memory + (stages - shared_at(memory)) + form::X * STAGE_BYTES);
    const unsigned char *rings = reinterpret_cast<unsigned char *>(out) + form::OUT_BYTES;
    const places at = {stages, shared_at(rings), shared_at(full), shared_at(empty), shared_at(filled), shared_at(used)};
    if (threadIdx.x < form::X) {
        bar_init(shared_at(full + threadIdx.x), 1);
        bar_init(shared_at(empty + threadIdx.x), CLUSTER * WARPS);
    }
    if (threadIdx.x < form::W) {
        bar_init(shared_at(filled + threadIdx.x), 1);
        bar_init(shared_at(used + threadIdx.x), WARPS);
    }
    bar_init_end();
    cluster_sync();
    if (warp < WARPS) {
        registers_more<208>();
        multiplier<BITS, SCALE, OFF, TILES> m(p, at, warp, lane);
        bool whole = m.size % 4 == 0 && p.units % 4 == 0;
        float total[form::SUMS];
        dev_begin();
        if (whole && first < all.total)
            m.first();
        uint32_t id = first, turn = 0;
        for (; id < all.total; id += step, turn++) {
            bool last = id + step >= all.total;
            if (whole)
                m.template tile<true>(last, total);
            else
                m.template tile<false>(true, total);
            some_sync(EMPTY + warp / 4, 128 + WRITERS);
            leave<TILES>(total, out, warp, lane);
            if (last)
                break;
            some_arrive(FULL, 32 * WARPS + WRITERS);
        }
        if (id < all.total)
            write(p, all, id, out, x_scales[turn % 2], threadIdx.x, 32 * WARPS + WRITERS);
    } else if (warp < WARPS + WRITERS / 32) {
        registers_less<64>();
        dev_begin();
        for (uint32_t id = first, turn = 0; id < all.total; id += step, turn++) {
            bool last = id + step >= all.total;
            some_arrive(EMPTY, 128 + WRITERS);
            some_arrive(EMPTY + 1, 128 + WRITERS);
            scales(p, all, id, x_scales[turn % 2], threadIdx.x - 32 * WARPS);
            write(p, all, id, out, x_scales[turn % 2], last ? threadIdx.x : threadIdx.x - 32 * WARPS, last ? 32 * WARPS + WRITERS : (uint32_t)WRITERS);
        }
    } else {
        registers_less<24>();
        if (warp == THREADS / 32 - 1) /* weights are there; x is not */
            fetch_weights<BITS, SCALE, OFF, TILES>(p, all, at, first, step, lane);
        dev_begin();
        if (warp == THREADS / 32 - 2 && lane == 0)
            fetch<form::X, TILES>(p, all, at, first, step);
        __syncwarp();
    }
    cluster_sync(); /* other blocks may still write here */
}

/* Kinds that prompts are read with often; the others take k_linear.cu for any number of rows: the same bits.  Of the most common ones narrow blocks, too. */
#define FORM(bits, scale, off, tiles) {(const void *)tall<bits, CUDA_SCALE_##scale, off, tiles>, tall_form<bits, CUDA_SCALE_##scale, off, tiles>::TOTAL, tiles}
#define KIND(bits, scale, off) {FORM(bits, scale, off, 8), MISSING}
#define BOTH(bits, scale, off) {FORM(bits, scale, off, 8), FORM(bits, scale, off, 4)}
#define MISSING {NULL, 0, 0}
#define ABSENT {MISSING, MISSING}
extern "C" const struct cuda_tall cuda_kernels_tall[CUDA_KIND_COUNT][CUDA_TALL_FORMS] = { /* in the order of CUDA_KINDS */
    BOTH(16, NONE, 0), KIND(4, ONE, 8), KIND(5, ONE, 16), BOTH(8, ONE, 128), ABSENT, ABSENT, KIND(4, TWO, 0), ABSENT, ABSENT, ABSENT,
    KIND(4, WIDE, 0), ABSENT, ABSENT, ABSENT, BOTH(4, SUPER, 0), ABSENT, BOTH(6, SIXTEEN, 32), ABSENT, ABSENT};
