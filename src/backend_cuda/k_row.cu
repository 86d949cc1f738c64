/* backend_cuda/k_row.cu - linear of one row of x: norm, packing and product in one kernel, the sums of k_linear.cu.
 *
 * One block of 16 warps a multiprocessor.  A group of warps, one a segment, takes tile after tile; each warp has its own ring of pieces of packed
 * weights in shared memory, filled by bulk copies.  The rings are filled before x is there: while the kernel ahead still runs.  x is made to f16 by every
 * block for itself.  Segments are added in ascending order by one warp, which changes from tile to tile. */
#include "backend_cuda/mma.cuh"
#include "backend_cuda/pack_row.cuh"
#include "backend_cuda/row_tile.cuh"

enum { WARPS = 16, THREADS = 32 * WARPS, GROUPS_MAX = 8 };
static_assert((int)THREADS == (int)PACK_THREADS, "a block packs its row");

/* Unit i of a piece times unit u of the row: 16 sums in column 0. */
template <int BITS, int SCALE, int OFF>
static __device__ __forceinline__ void multiply(float *acc, const uint8_t *piece, uint32_t i, const unsigned char *xs, uint32_t u, uint32_t lane)
{
    unit<BITS, SCALE, OFF> w;
    w.template load<read_shared>(piece, i, lane);
    const uint4 *x = reinterpret_cast<const uint4 *>(xs + u * 128) + (lane & 3) * 2;
    uint4 b[2] = {x[0], x[1]};
    const uint32_t *words = reinterpret_cast<const uint32_t *>(b);
#pragma unroll
    for (int c = 0; c < 4; c++) {
        uint32_t a[4];
        w.fragment(c, a);
        mma(acc, a, words[2 * c], words[2 * c + 1]);
    }
}

/* What a lane needs to end output o of a tile, read before the tile's sums are there. */
struct ending {
    const cuda_linear_part *part;
    uint32_t o;
    float scale, up_scale, bias, old;

    __device__ __forceinline__ void read(const cuda_p_linear &p, uint32_t tile, uint32_t lane)
    {
        part = &p.part[part_of(p, tile)];
        o = (tile - (p.pair ? 0 : part->tile_first)) * 16 + lane;
        if (lane >= 16 || o >= part->rows)
            return;
        scale = __ldg(part->row_scale + o);
        up_scale = p.pair ? __ldg(p.part[1].row_scale + o) : 0;
        bias = part->bias ? __ldg(part->bias + o) : 0;
        old = p.add ? __ldcg(part->y + o) : 0;
    }
    /* sums[segment][16]; of a pair's up `apart` behind */
    __device__ __forceinline__ void write(const cuda_p_linear &p, const float *sums, uint32_t segments, uint32_t apart, float x_scale, uint32_t lane) const
    {
        if (lane >= 16 || o >= part->rows)
            return;
        float v = sums[lane];
        for (uint32_t s = 1; s < segments; s++)
            v = v + sums[16 * s + lane];
        v = v * (scale * x_scale);
        if (p.pair) {
            float up = sums[apart + lane];
            for (uint32_t s = 1; s < segments; s++)
                up = up + sums[apart + 16 * s + lane];
            part->y[o] = dev_gate(p.act, v, up * (up_scale * x_scale));
            return;
        }
        if (part->bias)
            v = v + bias;
        if (p.alpha != 1.0f)
            v = v * p.alpha;
        part->y[o] = p.add ? old + v : v;
    }
};

/* Shared memory, in this order. */
struct shared_form {
    uint32_t stages, piece_bytes, units, norm;
    __host__ __device__ uint32_t bars() const { return WARPS * stages * piece_bytes; }
    __host__ __device__ uint32_t x() const { return bars() + WARPS * stages * 8; }
    __host__ __device__ uint32_t sums() const { return x() + units * 128; }     /* [2][2][WARPS][16] */
    __host__ __device__ uint32_t row() const { return sums() + 4 * WARPS * 64; } /* f32; then the norm's weights */
    __host__ __device__ uint32_t words() const { return row() + (1 + norm) * units * CUDA_UNIT * 4; }
    __host__ __device__ uint32_t total() const { return words() + PACK_SHARED * 4; }
};

/* One tile, of a pair both: the warp's segment against the row. */
template <int BITS, int SCALE, int OFF>
static __device__ __forceinline__ void tile_sums(pieces<BITS, SCALE, OFF> &q, const unsigned char *ring, const unsigned char *xs, float *sums, uint32_t *slot,
                                                 uint32_t *phase, uint32_t lane)
{
    using lay = layout<BITS, SCALE, OFF>;
    for (uint32_t half = 0; half <= q.p.pair; half++) {
        float acc[4] = {};
        for (uint32_t piece = q.first(); piece <= q.last(); piece++) {
            const uint8_t *at = ring + *slot * lay::piece_bytes;
            uint32_t u0 = piece * lay::piece_units;
            bar_wait(q.bars + 8 * *slot, *phase);
            if (u0 >= q.from && u0 + lay::piece_units <= q.to) {
#pragma unroll
                for (uint32_t i = 0; i < lay::piece_units; i++)
                    multiply<BITS, SCALE, OFF>(acc, at, i, xs, u0 + i, lane);
            } else {
                for (uint32_t i = 0; i < lay::piece_units; i++)
                    if (u0 + i >= q.from && u0 + i < q.to)
                        multiply<BITS, SCALE, OFF>(acc, at, i, xs, u0 + i, lane);
            }
            __syncwarp();
            if (lane == 0)
                q.ask(); /* into the place just read */
            *slot = *slot + 1 == q.p.stages ? 0 : *slot + 1;
            *phase ^= *slot == 0;
        }
        if (lane % 4 == 0) {
            sums[half * WARPS * 16 + lane / 4] = acc[0];
            sums[half * WARPS * 16 + lane / 4 + 8] = acc[2];
        }
    }
}

template <int BITS, int SCALE, int OFF>
static __global__ void __launch_bounds__(THREADS, 2) row_linear(const __grid_constant__ cuda_p_linear p)
{
    using lay = layout<BITS, SCALE, OFF>;
    extern __shared__ __align__(128) unsigned char memory[];
    const shared_form form = {p.stages, lay::piece_bytes, p.units, p.norm_w != NULL};
    uint32_t warp = threadIdx.x >> 5, lane = threadIdx.x & 31, size = cuda_segment_units(p.units), segments = (p.units + size - 1) / size;
    uint32_t groups = WARPS / segments < GROUPS_MAX ? WARPS / segments : GROUPS_MAX, group = warp / segments, segment = warp % segments;
    bool idle = group >= groups;
    const unsigned char *ring = memory + warp * p.stages * lay::piece_bytes;
    pieces<BITS, SCALE, OFF> q = {p, shared_at(ring), shared_at(memory + form.bars()) + warp * p.stages * 8};
    q.from = segment * size, q.to = q.from + size < p.units ? q.from + size : p.units;
    q.tile = group * gridDim.x + blockIdx.x, q.step = groups * gridDim.x, q.tiles = idle ? 0 : p.pair ? p.tiles / 2 : p.tiles;
    q.begin();
    if (lane == 0) {
        for (uint32_t i = 0; i < p.stages; i++)
            bar_init(q.bars + 8 * i, 1);
        bar_init_end();
        for (uint32_t i = 0; i < p.stages; i++)
            q.ask(); /* weights are there; x is not */
    }
    float *row = reinterpret_cast<float *>(memory + form.row()), *norm = p.norm_w ? row + p.units * CUDA_UNIT : NULL;
    if (norm)
        pack_fetch(norm, p.norm_w, p.cols, p.cols);
    dev_begin();
    __half *xs = reinterpret_cast<__half *>(memory + form.x());
    float x_scale = pack_row({p.raw, norm, p.cols, p.eps}, p.units * CUDA_UNIT, row, reinterpret_cast<float *>(memory + form.words()),
                             [&](uint32_t c, __half2 v) { *reinterpret_cast<__half2 *>(xs + c / 64 * 64 + pack_place(c)) = v; });
    __syncthreads();
    float *sums = reinterpret_cast<float *>(memory + form.sums());
    uint32_t slot = 0, phase = 0, turn = 0;
    for (uint32_t tile = group * gridDim.x + blockIdx.x; tile < q.tiles; tile += q.step, turn++) {
        ending end;
        bool mine = turn % segments == segment;
        if (mine)
            end.read(p, tile, lane);
        tile_sums(q, ring, memory + form.x(), sums + warp * 16, &slot, &phase, lane);
        some_sync(1 + group, 32 * segments);
        if (mine)
            end.write(p, sums + group * segments * 16, segments, WARPS * 16, x_scale, lane);
        sums = reinterpret_cast<float *>(memory + form.sums()) + (turn % 2 ? 0 : 2 * WARPS * 16);
    }
}

template <int BITS, int SCALE, int OFF> static uint32_t piece_of(void)
{
    return layout<BITS, SCALE, OFF>::piece_bytes;
}

/* Stages of the rings, by kind, K and whether a norm comes before; shared memory such that no second block fits on a multiprocessor: where two of the next kernel's blocks began beside each other,
 * others would have nothing to do. */
extern "C" uint32_t cuda_row_stages(enum cuda_kind kind, uint32_t units, uint32_t norm, uint32_t *smem)
{
    enum { ROOM = 200 << 10, ALONE = 116 << 10, STAGES_MAX = 4 };
    uint32_t bytes = 0, stages = STAGES_MAX;
    switch (kind) {
#define CASE(name, bits, scale, off)                            \
    case CUDA_KIND_##name:                                      \
        bytes = piece_of<bits, CUDA_SCALE_##scale, off>();      \
        break;
        CUDA_KINDS(CASE)
    default:
        break;
    }
    while (stages > 2 && shared_form{stages, bytes, units, norm}.total() > ROOM)
        stages--;
    uint32_t total = shared_form{stages, bytes, units, norm}.total();
    *smem = total < ALONE ? (uint32_t)ALONE : total;
    return stages;
}

#define ENTRY(name, bits, scale, off) (const void *)row_linear<bits, CUDA_SCALE_##scale, off>,
extern "C" const void *const cuda_kernels_row[CUDA_KIND_COUNT] = {CUDA_KINDS(ENTRY)};
