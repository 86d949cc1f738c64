/* backend_cuda/k_few.cu - linear of 2 to 32 rows with K in eight segments: the sums of k_linear.cu by clusters of eight blocks.
 *
 * A block of a cluster has one segment: of x it keeps that segment in shared memory, and each of its 16 warps takes another tile, so weights and x are
 * read once.  Each warp has its own ring of pieces of packed weights, filled by bulk copies before x is there.  The eight sums of a tile are added in
 * ascending order by one of the blocks, which reads them from the others' shared memory. */
#include "backend_cuda/mma.cuh"
#include "backend_cuda/row_tile.cuh"

enum { WARPS = 16, THREADS = 32 * WARPS, BLOCKS = CUDA_SEGMENTS, OWN = WARPS / BLOCKS };

/* Shared memory, in this order. */
struct few_form {
    uint32_t stages, piece_bytes, size, groups, halves; /* units of a segment; groups of 8 rows; 2: gate and up */
    __host__ __device__ uint32_t x() const { return WARPS * stages * piece_bytes; }
    __host__ __device__ uint32_t sums() const { return x() + groups * size * 1024; }
    __host__ __device__ uint32_t sums_bytes() const { return WARPS * halves * groups * 512; } /* [warp][half][group][16][8] */
    __host__ __device__ uint32_t buffers() const { return groups == 4 ? 1 : 2; } /* of sums */
    __host__ __device__ uint32_t bars() const { return sums() + buffers() * sums_bytes(); }
    __host__ __device__ uint32_t total() const { return bars() + (WARPS * stages + 1) * 8; }
};

/* Unit i of a piece times unit k of the segment's x. */
template <int BITS, int SCALE, int OFF, int NT>
static __device__ __forceinline__ void multiply(float acc[NT][4], const uint8_t *piece, uint32_t i, const unsigned char *xs, uint32_t size, uint32_t k,
                                                uint32_t lane)
{
    unit<BITS, SCALE, OFF> w;
    uint4 b[NT][2];
    bool turned = lane & 4; /* so that eight lanes read from all banks */
    w.template load<read_shared>(piece, i, lane);
#pragma unroll
    for (int n = 0; n < NT; n++) {
        const uint4 *x = reinterpret_cast<const uint4 *>(xs + (n * size + k) * 1024) + lane * 2;
        uint4 one = x[turned], two = x[!turned];
        b[n][0] = turned ? two : one, b[n][1] = turned ? one : two;
    }
#pragma unroll
    for (int c = 0; c < 4; c++) {
        uint32_t a[4];
        w.fragment(c, a);
#pragma unroll
        for (int n = 0; n < NT; n++) {
            const uint32_t *words = reinterpret_cast<const uint32_t *>(b[n]);
            mma(acc[n], a, words[2 * c], words[2 * c + 1]);
        }
    }
}

template <int BITS, int SCALE, int OFF, int NT>
static __device__ __forceinline__ void tile_sums(pieces<BITS, SCALE, OFF> &q, const unsigned char *ring, const unsigned char *xs, float *sums, uint32_t *slot,
                                                 uint32_t *phase, uint32_t size, uint32_t lane)
{
    using lay = layout<BITS, SCALE, OFF>;
    for (uint32_t half = 0; half <= q.p.pair; half++, sums += NT * 128) {
        float acc[NT][4] = {};
        for (uint32_t u0 = q.from / lay::piece_units * lay::piece_units; u0 < q.to; u0 += lay::piece_units) {
            const uint8_t *at = ring + *slot * lay::piece_bytes;
            bar_wait(q.bars + 8 * *slot, *phase);
#pragma unroll
            for (uint32_t i = 0; i < lay::piece_units; i++)
                if (u0 + i >= q.from && u0 + i < q.to)
                    multiply<BITS, SCALE, OFF, NT>(acc, at, i, xs, size, u0 + i - q.from, lane);
            __syncwarp();
            if (lane == 0)
                q.ask(); /* into the place just read */
            *slot = *slot + 1 == q.p.stages ? 0 : *slot + 1;
            *phase ^= *slot == 0;
        }
        uint32_t g = lane >> 2, t = lane & 3;
#pragma unroll
        for (int n = 0; n < NT; n++) {
            *reinterpret_cast<float2 *>(sums + n * 128 + g * 8 + 2 * t) = make_float2(acc[n][0], acc[n][1]);
            *reinterpret_cast<float2 *>(sums + n * 128 + (g + 8) * 8 + 2 * t) = make_float2(acc[n][2], acc[n][3]);
        }
    }
}

static __device__ __forceinline__ float read_of(uint32_t at, uint32_t block) /* another block's shared memory */
{
    float v;
    asm volatile("{\n.reg .b32 there;\nmapa.shared::cluster.u32 there, %1, %2;\nld.shared::cluster.f32 %0, [there];\n}" : "=f"(v) : "r"(at), "r"(block));
    return v;
}
static __device__ __forceinline__ float sum_of(uint32_t at)
{
    float v[BLOCKS];
#pragma unroll
    for (uint32_t s = 0; s < BLOCKS; s++)
        v[s] = read_of(at, s);
    float sum = v[0];
#pragma unroll
    for (uint32_t s = 1; s < BLOCKS; s++)
        sum = sum + v[s];
    return sum;
}

/* Outputs of the tiles that this block ends: 16 times 8 NT each. */
template <int NT> static __device__ __forceinline__ void write(const cuda_p_linear &p, uint32_t sums, uint32_t first, uint32_t tiles, uint32_t rank)
{
    for (uint32_t i = threadIdx.x; i < OWN * NT * 128; i += THREADS) {
        uint32_t which = i / (NT * 128), at = i % (NT * 128), o16 = at % 16, row = at / 16, w = rank * OWN + which, tile = first + w;
        if (tile >= tiles || row >= p.rows)
            continue;
        const cuda_linear_part &part = p.part[part_of(p, tile)];
        uint32_t o = (tile - (p.pair ? 0 : part.tile_first)) * 16 + o16, from = sums + ((w * (1 + p.pair) * NT + row / 8) * 128 + o16 * 8 + row % 8) * 4;
        if (o >= part.rows)
            continue;
        float v = sum_of(from) * (part.row_scale[o] * p.x_scale[row]);
        float *y = part.y + (size_t)row * part.y_stride + o;
        if (p.pair) {
            *y = dev_gate(p.act, v, sum_of(from + NT * 512) * (p.part[1].row_scale[o] * p.x_scale[row]));
            continue;
        }
        if (part.bias)
            v = v + part.bias[o];
        if (p.alpha != 1.0f)
            v = v * p.alpha;
        *y = p.add ? __ldcg(y) + v : v;
    }
}

template <int BITS, int SCALE, int OFF, int NT>
static __global__ void __cluster_dims__(BLOCKS, 1, 1) __launch_bounds__(THREADS, 1) few(const __grid_constant__ cuda_p_linear p)
{
    using lay = layout<BITS, SCALE, OFF>;
    extern __shared__ __align__(128) unsigned char memory[];
    uint32_t warp = threadIdx.x >> 5, lane = threadIdx.x & 31, rank = cluster_rank(), size = cuda_segment_units(p.units);
    const few_form form = {p.stages, lay::piece_bytes, size, NT, 1 + p.pair};
    const unsigned char *ring = memory + warp * p.stages * lay::piece_bytes;
    uint32_t bars = shared_at(memory + form.bars()), x_bar = bars + WARPS * p.stages * 8, tiles = p.pair ? p.tiles / 2 : p.tiles;
    uint32_t begin = blockIdx.x / BLOCKS * WARPS, step = gridDim.x / BLOCKS * WARPS;
    pieces<BITS, SCALE, OFF> q = {p, shared_at(ring), bars + warp * p.stages * 8};
    q.from = rank * size, q.to = q.from + size < p.units ? q.from + size : p.units;
    q.tile = begin + warp, q.step = step, q.tiles = tiles;
    q.begin();
    if (lane == 0) {
        for (uint32_t i = 0; i < p.stages; i++)
            bar_init(q.bars + 8 * i, 1);
        if (warp == 0)
            bar_init(x_bar, 1);
        bar_init_end();
        for (uint32_t i = 0; i < p.stages; i++)
            q.ask(); /* weights are there; x is not */
    }
    dev_begin();
    const unsigned char *xs = memory + form.x();
    if (threadIdx.x == 0) {
        uint32_t bytes = (q.to - q.from) * 1024;
        bar_expect(x_bar, NT * bytes);
        for (uint32_t n = 0; n < NT; n++) /* groups of rows that are not there hold what was left in them: columns of their own */
            bulk_copy(shared_at(xs) + n * size * 1024, p.x + ((size_t)(n * 8 < p.rows ? n : 0) * p.units + q.from) * 512, bytes, x_bar);
    }
    __syncthreads();
    bar_wait(x_bar, 0);
    uint32_t slot = 0, phase = 0, turn = 0;
    for (uint32_t first = begin; first < tiles; first += step, turn ^= form.buffers() - 1) {
        float *sums = reinterpret_cast<float *>(memory + form.sums() + turn * form.sums_bytes());
        if (first + warp < tiles)
            tile_sums<BITS, SCALE, OFF, NT>(q, ring, xs, sums + warp * (1 + p.pair) * NT * 128, &slot, &phase, size, lane);
        cluster_sync();
        write<NT>(p, shared_at(sums), first, tiles, rank);
        if (form.buffers() == 1)
            cluster_sync();
    }
    cluster_sync(); /* others may still read here */
}

template <int BITS, int SCALE, int OFF> static uint32_t piece_of(void)
{
    return layout<BITS, SCALE, OFF>::piece_bytes;
}

/* Stages of the rings, 0 where the kernel is not for these: K not in eight segments, or x without room. */
extern "C" uint32_t cuda_few_stages(enum cuda_kind kind, uint32_t units, uint32_t rows, uint32_t pair, uint32_t *smem)
{
    enum { ROOM = 227 << 10, STAGES_MAX = 4 };
    uint32_t size = cuda_segment_units(units), groups = rows <= 8 ? 1 : rows <= 16 ? 2 : 4, bytes = 0;
    switch (kind) {
#define CASE(name, bits, scale, off)                            \
    case CUDA_KIND_##name:                                      \
        bytes = piece_of<bits, CUDA_SCALE_##scale, off>();      \
        break;
        CUDA_KINDS(CASE)
    default:
        break;
    }
    if ((units + size - 1) / size != BLOCKS)
        return 0;
    for (uint32_t stages = STAGES_MAX; stages >= 2; stages--) {
        *smem = few_form{stages, bytes, size, groups, 1 + pair}.total();
        if (*smem <= ROOM)
            return stages;
    }
    return 0;
}

#define KIND(bits, scale, off) \
    {(const void *)few<bits, CUDA_SCALE_##scale, off, 1>, (const void *)few<bits, CUDA_SCALE_##scale, off, 2>, (const void *)few<bits, CUDA_SCALE_##scale, off, 4>}
#define ABSENT {NULL, NULL, NULL}
/* Kinds that decode is run with often. */
extern "C" const void *const cuda_kernels_few[CUDA_KIND_COUNT][CUDA_FEW_WIDTHS] = { /* in the order of CUDA_KINDS */
    KIND(16, NONE, 0), ABSENT, ABSENT, KIND(8, ONE, 128), ABSENT, ABSENT, ABSENT, ABSENT, ABSENT, ABSENT, ABSENT, ABSENT, ABSENT, ABSENT, KIND(4, SUPER, 0), ABSENT,
    KIND(6, SIXTEEN, 32), ABSENT, ABSENT};
