/* backend_cuda/k_row.cu - linear of one row of x: norm, packing and product in one kernel, the sums of k_linear.cu.
 *
 * A block of 16 warps on each multiprocessor, a strip a warp after the other: a strip is a segment of a tile (of a pair, of gate's or of up's).  Each warp has
 * its own ring of pieces of packed weights in shared memory; its lanes copy a piece together, asynchronously, and wait for their own copies in order, so
 * that asking and waiting cost little.  The rings are filled before x is there: while the kernel ahead still runs; of kinds with short codes two blocks fit
 * on a multiprocessor for that, and blocks without work linger.  x is made to f16 by every block for itself.  A strip's sums are kept in shared memory;
 * when all are there, segments are added in ascending order, an output a thread. */
#include "backend_cuda/async.cuh"
#include "backend_cuda/pack_row.cuh"
#include "backend_cuda/row_tile.cuh"

enum { WARPS = 16, THREADS = 32 * WARPS };
static_assert((int)THREADS == (int)PACK_THREADS, "a block packs its row");

/* Shared memory, in this order. */
struct shared_form {
    uint32_t stages, piece_bytes, units, norm, segments, own; /* own: tiles of a block, of pairs both halves */
    __host__ __device__ uint32_t x() const { return WARPS * stages * piece_bytes; }
    __host__ __device__ uint32_t sums() const { return x() + units * 128; }                /* [strip][16] */
    __host__ __device__ uint32_t norms() const { return sums() + own * segments * CUDA_TILE * 4; } /* the norm's weights */
    __host__ __device__ uint32_t words() const { return norms() + norm * units * CUDA_UNIT * 4; }
    __host__ __device__ uint32_t kept() const { return own * CUDA_TILE < (uint32_t)THREADS ? own * CUDA_TILE : (uint32_t)THREADS; } /* outputs known ahead */
    __host__ __device__ uint32_t ends() const { return words() + PACK_SHARED * 4; }
    __host__ __device__ uint32_t places() const { return ends() + kept() * 16; }
    __host__ __device__ uint32_t tiles() const { return places() + kept() * 8; } /* where each of the block's tiles lies */
    __host__ __device__ uint32_t total() const { return tiles() + own * 8; }
};

/* Which strip a warp is at: of the block's tiles (and halves of pairs) the one and of that the segment. */
struct place {
    uint32_t segment, which;
    __device__ __forceinline__ void next(uint32_t segments, uint32_t segment_step, uint32_t which_step)
    {
        segment += segment_step, which += which_step;
        if (segment >= segments)
            segment -= segments, which++;
    }
};

/* What all of a block's warps have in common. */
struct work {
    uint32_t size, segments, count;          /* units of a segment; count: tiles of the block, of pairs both halves */
    uint32_t segment_step, which_step;       /* from a warp's strip to its next */
    __device__ __forceinline__ work(const cuda_p_linear &p)
    {
        size = p.segment_units, segments = p.segments;
        count = p.own - ((p.own - 1) * gridDim.x + blockIdx.x >= (p.pair ? p.tiles / 2 : p.tiles)) << p.pair;
        which_step = WARPS * p.segment_inverse >> 16, segment_step = WARPS - which_step * segments;
    }
    __device__ __forceinline__ place first(const cuda_p_linear &p) const
    {
        uint32_t warp = threadIdx.x >> 5, which = warp * p.segment_inverse >> 16;
        return {warp - which * segments, which};
    }
};

/* What a warp copies at once: units that begin at a multiple of their number, and the factors of their four behind them. */
template <int BITS, int SCALE, int OFF> struct row_piece {
    using lay = layout<BITS, SCALE, OFF>;
    static constexpr uint32_t N = BITS == 16 ? 1 : BITS > 4 ? 2 : 4, units_bytes = N * lay::unit_bytes, bytes = units_bytes + lay::super_bytes;
};

static __device__ __forceinline__ const uint8_t *tile_at(const cuda_p_linear &p, uint32_t which)
{
    uint32_t tile = (which >> p.pair) * gridDim.x + blockIdx.x, part = p.pair ? which & 1 : part_of(p, tile);
    return p.part[part].planes + (size_t)(tile - (p.pair ? 0 : p.part[part].tile_first)) * p.tile_bytes;
}

/* The pieces a warp asks for, strip after strip. */
template <class PIECE> struct asking {
    place at;
    const uint8_t *source; /* this lane's part of the piece at unit u */
    uint32_t u, to, units; /* to: end of the strip, 0 when all was asked for; of the tile */

    /* tiles: in shared memory, where each of the block's tiles lies; read when all know it (KNOWN) */
    template <bool KNOWN> __device__ __forceinline__ void set(const cuda_p_linear &p, const work &w, uint32_t lane, uint32_t tiles)
    {
        u = to = 0, units = p.units;
        if (at.which >= w.count)
            return;
        uint32_t from = at.segment * w.size;
        u = from / PIECE::N * PIECE::N, to = min(from + w.size, p.units);
        const uint8_t *tile;
        if (KNOWN)
            asm volatile("ld.shared.u64 %0, [%1];" : "=l"(tile) : "r"(tiles + at.which * 8) : "memory");
        else
            tile = tile_at(p, at.which);
        source = tile + (PIECE::lay::unit_at(u) + lane * 16);
    }
    /* One piece to shared memory, or none when all were asked for: a group in any case. */
    template <bool KNOWN> __device__ __forceinline__ void ask(const cuda_p_linear &p, const work &w, uint32_t there, uint32_t lane, uint32_t tiles)
    {
        constexpr uint32_t N = PIECE::N, SUPER = PIECE::lay::super_bytes;
        constexpr bool behind = SUPER && N == 4; /* the factors lie behind the units */
        constexpr uint32_t B = PIECE::units_bytes + (behind ? SUPER : 0);
        if (u < to) {
            if (SUPER || N == 1 || u + N <= units) {
#pragma unroll
                for (uint32_t i = 0; i < B; i += 512)
                    if (i + 512 <= B)
                        copy16_stream(there + i, source + i);
                    else
                        copy16_stream_if(there + i, source + i, lane * 16 < B - i);
                if (SUPER && !behind)
                    copy16_stream_if(there + B, source + (4 - u % 4) * PIECE::lay::unit_bytes, lane < SUPER / 16);
            } else {
#pragma unroll 1
                for (uint32_t i = 0; i + lane * 16 < (units - u) * PIECE::lay::unit_bytes; i += 512)
                    copy16_stream(there + i, source + i);
            }
            u += N;
            source += B + (!behind && u % 4 == 0 ? SUPER : 0);
            if (u >= to) {
                at.next(w.segments, w.segment_step, w.which_step);
                set<KNOWN>(p, w, lane, tiles);
            }
        }
        copies_commit();
    }
};

/* Unit i of a piece times a unit of the row: 16 sums in column 0. */
template <int BITS, int SCALE, int OFF>
static __device__ __forceinline__ void multiply(float *acc, const uint8_t *piece, uint32_t i, const unsigned char *x_unit, uint32_t lane)
{
    using own = row_piece<BITS, SCALE, OFF>;
    unit<BITS, SCALE, OFF> w;
    w.template load_at<read_shared>(piece + i * own::lay::unit_bytes, piece + own::units_bytes, lane);
    const uint4 *x = reinterpret_cast<const uint4 *>(x_unit);
    unit_times_row(acc, w, x);
}

/* Output i of the block. */
struct output {
    uint32_t part, o;
    bool there;
    __device__ __forceinline__ output(const cuda_p_linear &p, uint32_t i, uint32_t tiles)
    {
        uint32_t tile = i / 16 * gridDim.x + blockIdx.x;
        there = tile < tiles;
        part = there ? part_of(p, tile) : 0;
        o = (tile - (p.pair ? 0 : p.part[part].tile_first)) * 16 + i % 16;
        there = there && o < p.part[part].rows;
    }
    /* scale, that of up, bias (without one what changes no sum): read before x is there */
    __device__ __forceinline__ float4 read(const cuda_p_linear &p) const
    {
        const cuda_linear_part &q = p.part[part];
        if (!there)
            return make_float4(0, 0, 0, 0);
        return make_float4(__ldg(q.row_scale + o), p.pair ? __ldg(p.part[1].row_scale + o) : 0, q.bias ? __ldg(q.bias + o) : -0.0f, 0);
    }
    __device__ __forceinline__ float *place(const cuda_p_linear &p) const { return there ? p.part[part].y + o : NULL; }
    static __device__ __forceinline__ float total(const float *sums, uint32_t segments)
    {
        float v[CUDA_SEGMENTS], sum;
#pragma unroll
        for (uint32_t s = 0; s < CUDA_SEGMENTS; s++)
            v[s] = sums[16 * (s < segments ? s : 0)];
        sum = v[0];
#pragma unroll
        for (uint32_t s = 1; s < CUDA_SEGMENTS; s++)
            sum = s < segments ? sum + v[s] : sum;
        return sum;
    }
    /* sums[segment][16], of a pair's up behind gate's; with: as read, and what was in y */
    static __device__ __forceinline__ void write(const cuda_p_linear &p, float *y, float4 with, const float *sums, uint32_t segments, float x_scale)
    {
        float v = total(sums, segments) * (with.x * x_scale);
        if (p.pair) {
            float up = total(sums + 16 * segments, segments);
            *y = dev_gate(p.act, v, up * (with.y * x_scale));
            return;
        }
        v = v + with.z;
        if (p.alpha != 1.0f)
            v = v * p.alpha;
        *y = p.add ? with.w + v : v;
    }
};

/* The warp's strips, each from zero: sums of segment s of tile w at sums[w * segments + s][16]. */
template <int BITS, int SCALE, int OFF>
static __device__ __forceinline__ void strips(const cuda_p_linear &p, const work &w, asking<row_piece<BITS, SCALE, OFF>> &q, const unsigned char *ring,
                                              const unsigned char *xs, float *sums, uint32_t tiles, uint32_t lane)
{
    using own = row_piece<BITS, SCALE, OFF>;
    constexpr uint32_t N = own::N;
    uint32_t slot = 0, ring_at = shared_at(ring) + lane * 16;
    xs += (lane & 3) * 32;
    for (place at = w.first(p); at.which < w.count; at.next(w.segments, w.segment_step, w.which_step)) {
        uint32_t from = at.segment * w.size, to = min(from + w.size, p.units);
        float acc[4] = {};
#pragma unroll 1
        for (uint32_t u = from / N * N; u < to; u += N) {
            const uint8_t *piece = ring + slot * own::bytes;
            copies_wait<1, 3>(p.stages - 1);
            __syncwarp();
            if (N == 1 || (u >= from && u + N <= to)) {
#pragma unroll
                for (uint32_t i = 0; i < N; i++)
                    multiply<BITS, SCALE, OFF>(acc, piece, i, xs + (u + i) * 128, lane);
            } else {
#pragma unroll 1
                for (uint32_t i = u < from ? from - u : 0; i < N && u + i < to; i++)
                    multiply<BITS, SCALE, OFF>(acc, piece, i, xs + (u + i) * 128, lane);
            }
            __syncwarp();
            q.template ask<true>(p, w, ring_at + slot * own::bytes, lane, tiles); /* into the place just read */
            slot = slot + 1 == p.stages ? 0 : slot + 1;
        }
        if (lane % 4 == 0) {
            float *to_sums = sums + (at.which * w.segments + at.segment) * 16 + lane / 4;
            to_sums[0] = acc[0], to_sums[8] = acc[2];
        }
    }
}

template <int BITS, int SCALE, int OFF>
static __global__ void __launch_bounds__(THREADS, 2) row_linear(const __grid_constant__ cuda_p_linear p)
{
    using own = row_piece<BITS, SCALE, OFF>;
    extern __shared__ __align__(128) unsigned char memory[];
    uint32_t warp = threadIdx.x >> 5, lane = threadIdx.x & 31, tiles = p.pair ? p.tiles / 2 : p.tiles;
    const work w(p);
    const shared_form form = {p.stages, own::bytes, p.units, p.norm_w != NULL, w.segments, p.own << p.pair};
    const unsigned char *ring = memory + warp * p.stages * own::bytes;
    float *norm = p.norm_w ? reinterpret_cast<float *>(memory + form.norms()) : NULL, *sums = reinterpret_cast<float *>(memory + form.sums());
    float4 *kept = reinterpret_cast<float4 *>(memory + form.ends()) + threadIdx.x;
    float **place = reinterpret_cast<float **>(memory + form.places()) + threadIdx.x;
    bool ends = threadIdx.x < form.kept();
    asking<own> q = {w.first(p)};
    if (norm)
        pack_fetch(norm, p.norm_w, p.cols, p.cols);
    q.template set<false>(p, w, lane, 0);
#pragma unroll 1
    for (uint32_t i = 0; i < p.stages; i++)
        q.template ask<false>(p, w, shared_at(ring) + i * own::bytes + lane * 16, lane, 0); /* weights are there; x is not */
    float4 with = make_float4(0, 0, 0, 0); /* kept when x is packed: nothing waits for it until then */
    if (ends) {
        output out(p, threadIdx.x, tiles);
        with = out.read(p), *place = out.place(p);
    }
    const uint8_t **where = reinterpret_cast<const uint8_t **>(memory + form.tiles());
#pragma unroll 1
    for (uint32_t i = threadIdx.x; i < w.count; i += THREADS)
        where[i] = tile_at(p, i);
    if (p.beside)
        dev_launch_next(); /* x was there before the kernel ahead began to compute */
    else
        dev_begin();
    if (w.count == 0) {
        copies_wait<1, 3>(p.stages - 1);
        dev_linger(1000); /* more would be the longest part of a small model's linears */
        return;
    }
    if (ends && p.add && *place)
        with.w = __ldcg(*place);
    float x_scale = pack_own({p.raw, norm, p.cols, p.eps}, p.units * CUDA_UNIT, reinterpret_cast<float *>(memory + form.words()),
                             reinterpret_cast<__half *>(memory + form.x()), [&]() { copies_wait<1, 3>(p.stages - 1); });
    if (ends)
        *kept = with;
    __syncthreads();
    strips<BITS, SCALE, OFF>(p, w, q, ring, memory + form.x(), sums, shared_at(where), lane);
    __syncthreads();
    const float *mine = sums + (threadIdx.x / CUDA_TILE * w.segments << p.pair) * CUDA_TILE + threadIdx.x % CUDA_TILE;
    if (ends && *place)
        output::write(p, *place, *kept, mine, w.segments, x_scale);
#pragma unroll 1
    for (uint32_t i = threadIdx.x + THREADS; i < (w.count >> p.pair) * CUDA_TILE; i += THREADS) {
        output out(p, i, tiles);
        float4 with = out.read(p);
        float *y = out.place(p);
        mine += (THREADS / CUDA_TILE * w.segments << p.pair) * CUDA_TILE;
        if (y && p.add)
            with.w = __ldcg(y);
        if (y)
            output::write(p, y, with, mine, w.segments, x_scale);
    }
    if (p.beside)
        dev_wait(); /* for what comes behind both */
}

template <int BITS, int SCALE, int OFF> static uint32_t piece_of(void)
{
    return row_piece<BITS, SCALE, OFF>::bytes;
}
static uint32_t piece_bytes(enum cuda_kind kind, uint32_t *code_bits)
{
    switch (kind) {
#define CASE(name, bits, scale, off) \
    case CUDA_KIND_##name:           \
        *code_bits = bits;           \
        return piece_of<bits, CUDA_SCALE_##scale, off>();
        CUDA_KINDS(CASE)
    default:
        *code_bits = 0;
        return 0;
    }
}

/* How one row's linear is cut: p's stages and what a block has of tiles and segments; its blocks and their shared memory.  Of kinds with short codes two
 * blocks fit on a multiprocessor: the next kernel's block begins and asks for its weights while this one computes.  Long codes need the room for their
 * rings; of these, and where the kernel ahead is not spread (one block on every multiprocessor), just one fits: where two of a kernel's blocks began beside
 * each other, others would have nothing to do. */
extern "C" void cuda_row_form(enum cuda_kind kind, struct cuda_p_linear *p, uint32_t workers, bool spread, uint32_t *blocks, uint32_t *smem)
{
    enum { HALF = 111 << 10, ROOM = 220 << 10, ALONE = 116 << 10, SUMS_MAX = 64 << 10, STAGES_MAX = 4 };
    uint32_t tiles = p->pair ? p->tiles / 2 : p->tiles, bits, bytes = piece_bytes(kind, &bits);
    p->segment_units = cuda_segment_units(p->units);
    p->segments = (p->units + p->segment_units - 1) / p->segment_units;
    p->segment_inverse = (65536 + p->segments - 1) / p->segments;
    uint32_t most = SUMS_MAX / (p->segments * CUDA_TILE * 4 << p->pair);
    *blocks = tiles < workers && (bits >= 8 || p->beside) ? tiles : workers; /* the others linger */
    if ((tiles + *blocks - 1) / *blocks > most)
        *blocks = (tiles + most - 1) / most;
    p->own = (tiles + *blocks - 1) / *blocks;
    shared_form form = {STAGES_MAX, bytes, p->units, p->norm_w != NULL, p->segments, p->own << p->pair};
    while (form.stages > 2 && form.total() > (bits < 8 ? HALF : ROOM))
        form.stages--;
    if (form.total() > HALF)
        for (form.stages = STAGES_MAX; form.stages > 2 && form.total() > ROOM; form.stages--)
            ;
    p->stages = form.stages;
    *smem = (bits >= 8 || !spread) && form.total() < ALONE ? (uint32_t)ALONE : form.total();
}

#define ENTRY(name, bits, scale, off) (const void *)row_linear<bits, CUDA_SCALE_##scale, off>,
extern "C" const void *const cuda_kernels_row[CUDA_KIND_COUNT] = {CUDA_KINDS(ENTRY)};
