/* backend_cuda/k_expert.cu - experts of a few rows, all slots in one launch: gate and up with what comes behind them, or the last product with the weighted
 * sum over slots; the sums of k_linear.cu.
 *
 * A strip is a segment of a tile of 16 outputs: of gate and of up, or of each slot that a row's outputs are summed over.  A block stays and takes tile after
 * tile; its warps take strip after strip, two batches of units ahead of the products.  A strip's sums are kept in shared memory; when all are there, segments are
 * added in ascending order, slots likewise.  Two jobs of one kind of weights may share a launch: experts, and the matrix beside them.
 * x is made to f16 by every block for itself, a row by all warps, several rows by a warp each. */
#include "backend_cuda/mma.cuh"
#include "backend_cuda/pack_row.cuh"
#include "backend_cuda/weight_layout.cuh"

enum { THREADS = CUDA_EXPERT_THREADS, WARPS = THREADS / 32, NONE = 0xffffffffu, UNITS_ALONE = 16 /* of a row that a warp packs while others are at other rows */ };
static_assert((int)THREADS == (int)PACK_THREADS, "a block packs its row");

/* Units of a batch: two batches are kept in registers. */
static __host__ __device__ constexpr int batch_units(int bits, int scale)
{
    return bits == 16 ? 1 : bits == 8 || scale == CUDA_SCALE_FINE ? 2 : 4;
}

/* Shared memory, in this order: of each job rows in f32 and the norm's weights, then x in fragments of a row; ids, weights of the slots' sum, scales of x; for each
 * strip its sums, and for each product of a tile scales of its rows. */
struct expert_form {
    uint32_t second, ids, weights, scales, words, sums, factors, total; /* second: where the second job's begin */
    static __host__ __device__ uint32_t x_of(const cuda_expert_job &q) { return (q.x_rows + (q.norm_w != NULL)) * q.units * CUDA_UNIT * 4; }
    static __host__ __device__ uint32_t bytes_of(const cuda_expert_job &q) { return x_of(q) + q.x_rows * q.units * CUDA_UNIT * 2; }
    static __host__ __device__ uint32_t strips_of(const cuda_expert_job &q)
    {
        uint32_t size = cuda_segment_units(q.units);
        return q.parts * ((q.units + size - 1) / size);
    }
    __host__ __device__ expert_form(const cuda_p_expert &p, uint32_t blocks)
    {
        const cuda_expert_job &q = p.job[0], &r = p.job[1];
        bool both = p.jobs > 1;
        uint32_t strips = strips_of(q), more = both ? strips_of(r) : 0, slots = q.slots + (both ? r.slots : 0);
        second = bytes_of(q);
        ids = second + (both ? bytes_of(r) : 0);
        weights = ids + slots * 4;
        scales = weights + slots * 4;
        words = scales + (q.x_rows + (both ? r.x_rows : 0)) * 4;
        sums = (words + PACK_SHARED * 4 + 15) / 16 * 16;
        uint32_t size = (p.tiles + blocks - 1) / blocks * (strips > more ? strips : more) * CUDA_TILE * 4;
        factors = sums + size, total = factors + size;
    }
    __device__ __forceinline__ uint32_t rows(uint32_t job) const { return job ? second : 0; }
    __device__ __forceinline__ uint32_t x(const cuda_p_expert &p, uint32_t job) const { return rows(job) + x_of(p.job[job]); }
};

/* A tile: whose, which. */
struct place {
    const cuda_expert_job *job;
    uint32_t which, outer, tile, segments; /* outer: the slot, or the row whose slots are summed */
    __device__ __forceinline__ place(const cuda_p_expert &p, uint32_t t)
    {
        which = p.jobs > 1 && t >= p.job[1].tile_first;
        job = &p.job[which];
        t -= which ? job->tile_first : 0;
        outer = t / job->tiles, tile = t - outer * job->tiles;
        uint32_t size = cuda_segment_units(job->units);
        segments = (job->units + size - 1) / size;
    }
    __device__ __forceinline__ uint32_t strips() const { return job->parts * segments; }
    __device__ __forceinline__ uint32_t slot(uint32_t part) const { return job->weights ? outer * job->parts + part : outer; }
};

template <int BITS, int SCALE, int OFF> struct batch {
    static constexpr int N = batch_units(BITS, SCALE);
    unit<BITS, SCALE, OFF> w[N];
    uint32_t n, x_at, sum_at; /* units, 0: there is no more; bytes of x; where the strip's sums go if this is its end */

    __device__ __forceinline__ void multiply(float *acc, const unsigned char *memory, uint32_t lane) const
    {
#pragma unroll
        for (int i = 0; i < N; i++) {
            if ((uint32_t)i >= n)
                break;
            const uint4 *x = reinterpret_cast<const uint4 *>(memory + x_at + i * 128) + (lane & 3) * 2;
            uint4 b[2] = {x[0], x[1]};
            const uint32_t *words = reinterpret_cast<const uint32_t *>(b);
#pragma unroll
            for (int c = 0; c < 4; c++) {
                uint32_t a[4];
                w[i].fragment(c, a);
                mma(acc, a, words[2 * c], words[2 * c + 1]);
            }
        }
    }
};

/* A warp's strips, batch by batch. */
template <int BITS, int SCALE, int OFF> struct strips {
    using block = batch<BITS, SCALE, OFF>;
    const cuda_p_expert &p;
    const expert_form &form;
    const uint32_t *ids;        /* shared memory */
    uint32_t t, strip, before;  /* tile, strip of it, strips of the block's tiles before it */
    uint32_t u, to, x_at;
    const uint8_t *tile;

    __device__ __forceinline__ void set()
    {
        while (t < p.tiles) {
            const place at(p, t);
            if (strip >= at.strips()) {
                strip -= at.strips(), before += at.strips(), t += gridDim.x;
                continue;
            }
            const cuda_expert_job &q = *at.job;
            uint32_t part = strip / at.segments, size = cuda_segment_units(q.units), slot = at.slot(part);
            tile = q.planes[q.weights ? 0 : part] + ((size_t)ids[(at.which ? p.job[0].slots : 0) + slot] * q.tiles + at.tile) * q.tile_bytes;
            u = strip % at.segments * size, to = min(u + size, q.units);
            x_at = form.x(p, at.which) + slot / q.share * q.units * 128;
            return;
        }
    }
    __device__ __forceinline__ void next(block &b, uint32_t lane)
    {
        b.n = 0;
        if (t >= p.tiles)
            return;
        b.n = min(to - u, (uint32_t)block::N), b.x_at = x_at + u * 128, b.sum_at = NONE;
#pragma unroll
        for (int i = 0; i < block::N; i++)
            if ((uint32_t)i < b.n)
                b.w[i].template load<read_global>(tile, u + i, lane);
        u += b.n;
        if (u < to)
            return;
        b.sum_at = before + strip;
        strip += WARPS;
        set();
    }
};

template <int BITS, int SCALE, int OFF>
static __device__ __forceinline__ void step(batch<BITS, SCALE, OFF> &b, strips<BITS, SCALE, OFF> &s, float *acc, const unsigned char *memory, float *sums, uint32_t lane)
{
    b.multiply(acc, memory, lane);
    uint32_t sum_at = b.sum_at;
    s.next(b, lane);
    if (sum_at == NONE)
        return;
    if (lane % 4 == 0)
        sums[sum_at * 16 + lane / 4] = acc[0], sums[sum_at * 16 + lane / 4 + 8] = acc[2];
    acc[0] = acc[1] = acc[2] = acc[3] = 0;
}

/* A row of x without a norm by one warp; gives what takes its power of two back. */
static __device__ __forceinline__ float pack_alone(const float *x, uint32_t cols, uint32_t units, float *row, __half *to, uint32_t lane)
{
    uint32_t most = 0, place = pack_place(2 * lane);
    float inverse;
#pragma unroll 4
    for (uint32_t u = 0; u < units; u++) {
        uint32_t c = u * 64 + 2 * lane;
        float2 v = make_float2(c < cols ? __ldcg(x + c) : 0, c + 1 < cols ? __ldcg(x + c + 1) : 0);
        most = max(most, max(__float_as_uint(v.x) & 0x7fffffffu, __float_as_uint(v.y) & 0x7fffffffu)); /* as integers NaN is the largest */
        *reinterpret_cast<float2 *>(row + c) = v;
    }
    float up = dev_row_factor(__uint_as_float(__reduce_max_sync(0xffffffffu, most)), &inverse);
#pragma unroll 4
    for (uint32_t u = 0; u < units; u++) {
        const float2 v = *reinterpret_cast<const float2 *>(row + u * 64 + 2 * lane);
        *reinterpret_cast<__half2 *>(to + u * 64 + place) = __floats2half2_rn(v.x * up, v.y * up);
    }
    return inverse;
}

/* One row, that all warps pack together? */
static __device__ __forceinline__ bool together(const cuda_p_expert &p, const cuda_expert_job &q)
{
    return q.x_rows == 1 && (p.jobs == 1 || q.norm_w || q.units > UNITS_ALONE);
}

/* Rows that are packed together, and norms, are asked for. */
static __device__ __forceinline__ void fetch_all(const cuda_p_expert &p, const expert_form &form, unsigned char *memory)
{
    for (uint32_t j = 0; j < p.jobs; j++) {
        const cuda_expert_job &q = p.job[j];
        float *row = reinterpret_cast<float *>(memory + form.rows(j));
        if (!together(p, q))
            continue;
        pack_fetch(row, q.x, q.cols, q.units * CUDA_UNIT);
        if (q.norm_w)
            pack_fetch(row + q.units * CUDA_UNIT, q.norm_w, q.cols, q.cols);
    }
}

static __device__ __forceinline__ void pack_all(const cuda_p_expert &p, const expert_form &form, unsigned char *memory, float *scales)
{
    uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    pack_arrived();
    for (uint32_t j = 0, turn = 0; j < p.jobs; j++) {
        const cuda_expert_job &q = p.job[j];
        __half *xs = reinterpret_cast<__half *>(memory + form.x(p, j));
        float *row = reinterpret_cast<float *>(memory + form.rows(j)), *words = reinterpret_cast<float *>(memory + form.words);
        uint32_t padded = q.units * CUDA_UNIT;
        if (j)
            __syncthreads(); /* the words hold the first job's maxima until all have read them */
        if (together(p, q)) {
            scales[turn++] = pack_row({q.x, q.norm_w ? row + padded : NULL, q.cols, q.eps}, padded, row, words,
                                      [&](uint32_t c, __half2 v) { *reinterpret_cast<__half2 *>(xs + c / 64 * 64 + pack_place(c)) = v; }, true);
            continue;
        }
        for (uint32_t r = 0; r < q.x_rows; r++, turn++)
            if (turn % WARPS == warp)
                scales[turn] = pack_alone(q.x + (size_t)r * q.x_stride, q.cols, q.units, row + r * padded, xs + r * padded, lane);
    }
}

/* Scales of the rows that a block's tiles are of, by output of each product. */
static __device__ __forceinline__ void factors_read(const cuda_p_expert &p, const uint32_t *ids, float *factors)
{
    for (uint32_t t = blockIdx.x; t < p.tiles; t += gridDim.x) {
        const place at(p, t);
        const cuda_expert_job &q = *at.job;
        for (uint32_t i = threadIdx.x; i < q.parts * 16; i += THREADS) {
            uint32_t part = i / 16, id = ids[(at.which ? p.job[0].slots : 0) + at.slot(part)];
            factors[part * at.segments * 16 + i % 16] = __ldg(q.row_scale[q.weights ? 0 : part] + (size_t)id * q.each + at.tile * 16 + i % 16);
        }
        factors += at.strips() * 16;
    }
}

static __device__ __forceinline__ float segments_sum(const float *sums, uint32_t segments)
{
    float v = sums[0];
    for (uint32_t s = 1; s < segments; s++)
        v = v + sums[16 * s];
    return v;
}

/* What belongs to a job of what all slots have in shared memory. */
struct slots_of {
    const uint32_t *ids;
    const float *weights, *scales;
};

/* Output i of a tile; sums: those of its strips; factors likewise. */
static __device__ __forceinline__ void end(const place &at, const slots_of &of, const float *sums, const float *factors, uint32_t i)
{
    const cuda_expert_job &q = *at.job;
    uint32_t o = at.tile * 16 + i;
    float *y = q.y + (size_t)at.outer * q.y_stride + o, total = 0, gate = 0, before = q.add && o < q.each ? __ldcg(y) : 0;
    if (o >= q.each)
        return;
    for (uint32_t part = 0; part < q.parts; part++, sums += at.segments * 16, factors += at.segments * 16) {
        uint32_t slot = at.slot(part);
        const float *bias = q.bias[q.weights ? 0 : part];
        float v = segments_sum(sums, at.segments) * (*factors * of.scales[slot / q.share]);
        v = bias ? v + bias[(size_t)of.ids[slot] * q.each + o] : v;
        if (q.weights) {
            float w = of.weights[slot] * v;
            total = part ? total + w : w;
        } else {
            total = part ? dev_gate(q.act, gate, v) : v;
            gate = v;
        }
    }
    *y = q.add ? before + total : total;
}

template <int BITS, int SCALE, int OFF> static __global__ void __launch_bounds__(THREADS, 1) expert(const __grid_constant__ cuda_p_expert p)
{
    extern __shared__ __align__(128) unsigned char memory[];
    const expert_form form(p, gridDim.x);
    uint32_t warp = threadIdx.x >> 5, lane = threadIdx.x & 31, slots = p.job[0].slots, all = slots + (p.jobs > 1 ? p.job[1].slots : 0);
    uint32_t *ids = reinterpret_cast<uint32_t *>(memory + form.ids);
    float *weights = reinterpret_cast<float *>(memory + form.weights), *scales = reinterpret_cast<float *>(memory + form.scales), acc[4] = {};
    float *sums = reinterpret_cast<float *>(memory + form.sums), *factors = reinterpret_cast<float *>(memory + form.factors);
    dev_begin();
    for (uint32_t i = threadIdx.x; i < all; i += THREADS) {
        const cuda_expert_job &q = p.job[i >= slots];
        uint32_t at = i < slots ? i : i - slots, id = q.ids ? __ldcg(q.ids + at) : 0;
        weights[i] = q.weights ? __ldcg(q.weights + at) : 0;
        if (id >= q.matrices)
            *p.failed = 1, id = 0;
        ids[i] = id;
    }
    fetch_all(p, form, memory);
    __syncthreads();
    strips<BITS, SCALE, OFF> s = {p, form, ids, blockIdx.x, warp, 0};
    batch<BITS, SCALE, OFF> a, b;
    s.set();
    s.next(a, lane), s.next(b, lane);
    factors_read(p, ids, factors);
    pack_all(p, form, memory, scales);
    __syncthreads();
    while (a.n) {
        step(a, s, acc, memory, sums, lane);
        if (!b.n)
            break;
        step(b, s, acc, memory, sums, lane);
    }
    __syncthreads();
    for (uint32_t t = blockIdx.x, i = 0, first = threadIdx.x % 16; t < p.tiles; t += gridDim.x, i++) {
        const place at(p, t);
        const slots_of of = {ids + (at.which ? slots : 0), weights + (at.which ? slots : 0), scales + (at.which ? p.job[0].x_rows : 0)};
        if (i % (THREADS / 16) == threadIdx.x / 16)
            end(at, of, sums + first, factors + first, threadIdx.x % 16);
        first += at.strips() * 16;
    }
}

extern "C" uint32_t cuda_expert_smem(const struct cuda_p_expert *p, uint32_t blocks)
{
    return expert_form(*p, blocks).total;
}

#define ENTRY(name, bits, scale, off) (const void *)expert<bits, CUDA_SCALE_##scale, off>,
extern "C" const void *const cuda_kernels_expert[CUDA_KIND_COUNT] = {CUDA_KINDS(ENTRY)};
