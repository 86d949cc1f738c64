/* backend_cuda/k_tall.cu - linear over many rows: wgmma, the same sums as k_linear.cu.
 *
 * The weights are the row operand, taken from packed tiles to registers as in decode; rows of x come to shared memory as pack left them (128-byte
 * swizzle).  A segment is one chain of wgmma k16 steps from zero, added to the total in ascending order: the bits of k_linear.cu (ops_rows_law compares
 * them).  A block: two warpgroups of 64 weight rows each and 128 rows of x; a warp has a tile of 16 weight rows and its own ring of packed weights.  For a
 * pair the first warpgroup has the gate, the second the same rows of up.  A third warpgroup fetches: one warp x, one the weights.  Two blocks of a cluster have other weights and the same
 * rows: each fetches half of x for both.  Blocks stay and take tile after tile: 16 blocks of rows, then the next weights, so both are found in L2. */
#include "backend_cuda/async.cuh"
#include "backend_cuda/weight_layout.cuh"
#include "backend_cuda/wgmma.cuh"

enum { ROWS = 128, STAGES = 5, STAGE_BYTES = ROWS * 128, WARPS = 8, THREADS = 32 * WARPS + 128, CLUSTER = 2, BAND = 16,
       OUT = 132 /* floats from row to row of what is written */, OUT_BYTES = ROWS * OUT * 4 };

static __host__ __device__ constexpr uint32_t weight_stages(uint32_t piece_bytes)
{
    return piece_bytes > 3000 ? 2 : piece_bytes > 2100 ? 3 : 4;
}

/* Where a block works: rows of x, and the tile of weights of one of its warps. */
struct spot {
    uint32_t row0, tile, part;
    bool mine; /* else the warp keeps pace with nothing to write */
};

struct plan {
    uint32_t row_blocks, pairs, total; /* blocks of weights two by two */
    __device__ __forceinline__ plan(const cuda_p_linear &p)
    {
        uint32_t tiles = p.pair ? p.tiles / 2 : p.tiles, per = p.pair ? 4 : 8;
        row_blocks = (p.rows + ROWS - 1) / ROWS;
        pairs = ((tiles + per - 1) / per + CLUSTER - 1) / CLUSTER;
        total = row_blocks * pairs;
    }
    __device__ __forceinline__ spot at(const cuda_p_linear &p, uint32_t id, uint32_t rank, uint32_t warp) const
    {
        uint32_t band = id / (BAND * pairs), rest = id - band * BAND * pairs, left = row_blocks - band * BAND, rows = left < BAND ? left : BAND;
        uint32_t block = rest / rows * CLUSTER + rank;
        spot s;
        s.row0 = (band * BAND + rest % rows) * ROWS;
        s.tile = p.pair ? block * 4 + warp % 4 : block * 8 + warp;
        s.mine = s.tile < (p.pair ? p.tiles / 2 : p.tiles);
        s.part = p.pair ? warp / 4 : 0;
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

/* Packed weights of the warps' tiles: a lane fills the ring of a warp.  The first pieces are asked for before x is there. */
template <int BITS, int SCALE, int OFF>
static __device__ void fetch_weights(const cuda_p_linear &p, const plan &all, uint32_t ring, uint32_t full, uint32_t empty, uint32_t first, uint32_t step,
                                     uint32_t rank, uint32_t warp)
{
    using lay = layout<BITS, SCALE, OFF>;
    walk<weight_stages(lay::piece_bytes)> at = {0, 1};
    for (uint32_t id = first; id < all.total; id += step) {
        spot s = all.at(p, id, rank, warp);
        const uint8_t *planes = p.part[s.part].planes + (size_t)(s.mine ? s.tile : 0) * p.tile_bytes;
        for (uint32_t piece = 0; piece * lay::piece_units < p.units; piece++, at.next()) {
            uint32_t left = p.units - piece * lay::piece_units;
            uint32_t bytes = lay::super_bytes || left >= lay::piece_units ? lay::piece_bytes : left * lay::unit_bytes;
            bar_wait(empty + 8 * at.slot, at.phase);
            bar_expect(full + 8 * at.slot, bytes);
            bulk_copy(ring + at.slot * lay::piece_bytes, planes + piece * lay::piece_bytes, bytes, full + 8 * at.slot);
        }
    }
}

/* Half of x for both blocks of the cluster, unit after unit. */
static __device__ void fetch(const cuda_p_linear &p, const plan &all, uint32_t stages, uint32_t full, uint32_t empty, uint32_t first, uint32_t step, uint32_t rank)
{
    const uint8_t *x = reinterpret_cast<const uint8_t *>(p.x) + rank * (STAGE_BYTES / CLUSTER);
    uint32_t slot = 0, phase = 1;
    for (uint32_t id = first; id < all.total; id += step) {
        const uint8_t *from = x + (size_t)(all.at(p, id, rank, 0).row0 / ROWS) * p.units * STAGE_BYTES;
        for (uint32_t u = 0; u < p.units; u++, from += STAGE_BYTES) {
            bar_wait(empty + 8 * slot, phase);
            bar_expect(full + 8 * slot, STAGE_BYTES);
            bulk_copy_all(stages + slot * STAGE_BYTES + rank * (STAGE_BYTES / CLUSTER), from, STAGE_BYTES / CLUSTER, full + 8 * slot, (1 << CLUSTER) - 1);
            slot = slot + 1 == STAGES ? 0 : slot + 1;
            phase ^= slot == 0;
        }
    }
}

/* The block's 128 by 128 sums go through shared memory, so that a thread writes one column of y, row after row: little code, whole lines. */
static __device__ __forceinline__ void write(const cuda_p_linear &p, const plan &all, uint32_t id, uint32_t rank, const float *total, float *out, uint32_t warp,
                                             uint32_t lane)
{
#pragma unroll
    for (int i = 0; i < 64; i++) {
        uint32_t n = i / 4 * 8 + 2 * (lane & 3) + (i & 1), o = warp * 16 + (lane >> 2) + 8 * (i >> 1 & 1);
        out[n * OUT + o] = total[i];
    }
    some_sync(1, 32 * WARPS);
    uint32_t wide = p.pair ? 64 : 128, column = threadIdx.x % wide, n0 = threadIdx.x / wide, step = 32 * WARPS / wide;
    const spot s = all.at(p, id, rank, column / 16);
    const cuda_linear_part &q = p.part[s.part];
    uint32_t o = s.tile * 16 + column % 16, rows = p.rows - s.row0 < ROWS ? p.rows - s.row0 : ROWS;
    if (s.mine && o < q.rows) {
        float scale = q.row_scale[o], up_scale = p.pair ? p.part[1].row_scale[o] : 0, bias = q.bias ? q.bias[o] : 0;
        float *y = q.y + (size_t)s.row0 * q.y_stride + o;
        for (uint32_t n = n0; n < rows; n += step) {
            float x_scale = __ldcg(p.x_scale + s.row0 + n), v = out[n * OUT + column] * (scale * x_scale), *to = y + (size_t)n * q.y_stride;
            if (p.pair) {
                *to = dev_gate(p.act, v, out[n * OUT + 64 + column] * (up_scale * x_scale));
                continue;
            }
            v = q.bias ? v + bias : v;
            v = p.alpha != 1.0f ? v * p.alpha : v;
            *to = p.add ? __ldcg(to) + v : v;
        }
    }
    some_sync(1, 32 * WARPS);
}

/* What a warp multiplies with: its ring of weights and the stages of x; and what says that they are full or empty. */
struct places {
    const unsigned char *ring;
    uint32_t filled, used, stages, full, empty;
};

/* All units of one tile: total = segment 0 + segment 1 + ..  The other warpgroup's products run while this one makes its operands. */
template <int BITS, int SCALE, int OFF, int DEPTH>
static __device__ __forceinline__ void tile_sums(const places &at, uint32_t units, walk<DEPTH> *weights, walk<STAGES> *x, float *total, uint32_t lane)
{
    using lay = layout<BITS, SCALE, OFF>;
    uint32_t size = cuda_segment_units(units);
    float acc[64];
#pragma unroll
    for (int i = 0; i < 64; i++)
        total[i] = 0;
    for (uint32_t from = 0; from < units; from += size) {
        uint32_t to = from + size < units ? from + size : units;
        for (uint32_t u = from; u < to; u++) {
            uint32_t in = u % lay::piece_units, a[4][4];
            unit<BITS, SCALE, OFF> v;
            if (in == 0)
                bar_wait(at.filled + 8 * weights->slot, weights->phase);
            v.template load<read_shared>(at.ring + weights->slot * lay::piece_bytes, in, lane);
#pragma unroll
            for (int c = 0; c < 4; c++)
                v.fragment(c, a[c]);
            if (in + 1 == lay::piece_units || u + 1 == units) {
                __syncwarp();
                bar_arrive_if(at.used + 8 * weights->slot, lane == 0);
                weights->next();
            }
            bar_wait(at.full + 8 * x->slot, x->phase);
            uint64_t b = descriptor(at.stages + x->slot * STAGE_BYTES);
#pragma unroll
            for (int i = 0; i < 16; i++) /* none of them is made between the products */
                asm volatile("" : "+r"(a[i / 4][i % 4])::"memory");
            wgmma_fence();
            wgmma(acc, a[0], b, u != from);
            wgmma(acc, a[1], b + 2, 1);
            wgmma(acc, a[2], b + 4, 1);
            wgmma(acc, a[3], b + 6, 1);
            wgmma_commit();
            wgmma_wait<0>();
            bar_arrive_in(at.empty + 8 * x->slot, lane, lane < CLUSTER);
            x->next();
        }
#pragma unroll
        for (int i = 0; i < 64; i++)
            total[i] = from ? total[i] + acc[i] : acc[i];
    }
}

template <int BITS, int SCALE, int OFF>
static __global__ void __cluster_dims__(CLUSTER, 1, 1) __launch_bounds__(THREADS, 1) tall(const __grid_constant__ cuda_p_linear p)
{
    using lay = layout<BITS, SCALE, OFF>;
    constexpr int DEPTH = weight_stages(lay::piece_bytes);
    extern __shared__ unsigned char memory[];
    __shared__ __align__(8) uint64_t full[STAGES], empty[STAGES], filled[WARPS * 4], used[WARPS * 4];
    const plan all(p);
    uint32_t lane = threadIdx.x & 31, warp = threadIdx.x >> 5, rank = cluster_rank(), first = blockIdx.x / CLUSTER, step = gridDim.x / CLUSTER;
    uint32_t stages = (shared_at(memory) + 1023) / 1024 * 1024;
    float *out = reinterpret_cast<float *>(memory + (stages - shared_at(memory)) + STAGES * STAGE_BYTES);
    const unsigned char *rings = reinterpret_cast<unsigned char *>(out) + OUT_BYTES;
    if (threadIdx.x < STAGES) {
        bar_init(shared_at(full + threadIdx.x), 1);
        bar_init(shared_at(empty + threadIdx.x), CLUSTER * WARPS);
    }
    if (threadIdx.x < WARPS * 4) {
        bar_init(shared_at(filled + threadIdx.x), 1);
        bar_init(shared_at(used + threadIdx.x), 1);
    }
    bar_init_end();
    cluster_sync();
    if (warp >= WARPS) {
        registers_less<24>();
        if (warp == WARPS + 1 && lane < WARPS) /* weights are there; x is not */
            fetch_weights<BITS, SCALE, OFF>(p, all, shared_at(rings) + lane * DEPTH * lay::piece_bytes, shared_at(filled + lane * 4), shared_at(used + lane * 4),
                                            first, step, rank, lane);
        __syncwarp();
        dev_begin();
        if (warp == WARPS && lane == 0)
            fetch(p, all, stages, shared_at(full), shared_at(empty), first, step, rank);
        __syncwarp();
    } else {
        registers_more<240>();
        const places at = {rings + warp * DEPTH * lay::piece_bytes, shared_at(filled + warp * 4), shared_at(used + warp * 4), stages, shared_at(full),
                           shared_at(empty)};
        walk<DEPTH> weights = {0, 0};
        walk<STAGES> x = {0, 0};
        float total[64];
        dev_begin();
        for (uint32_t id = first; id < all.total; id += step) {
            tile_sums<BITS, SCALE, OFF>(at, p.units, &weights, &x, total, lane);
            write(p, all, id, rank, total, out, warp, lane);
        }
    }
    cluster_sync(); /* the other block may still write here */
}

extern "C" uint32_t cuda_tall_smem(void)
{
    return STAGES * STAGE_BYTES + 1024 + OUT_BYTES + WARPS * 8640;
}

/* Kinds that prompts are read with often; the others take k_linear.cu for any number of rows: the same bits. */
#define KIND(bits, scale, off) ((const void *)tall<bits, CUDA_SCALE_##scale, off>)
extern "C" const void *const cuda_kernels_tall[CUDA_KIND_COUNT] = { /* in the order of CUDA_KINDS */
    KIND(16, NONE, 0), KIND(4, ONE, 8), NULL, KIND(8, ONE, 128), NULL, NULL, KIND(4, TWO, 0), NULL, NULL, NULL, KIND(4, WIDE, 0), NULL, NULL, NULL,
    KIND(4, SUPER, 0), NULL, KIND(6, SIXTEEN, 32), NULL, NULL};
