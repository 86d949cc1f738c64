/* backend_cuda/k_expert.cu - experts of a few rows, all slots in one launch: gate and up with what comes behind them, or the last product with the weighted
 * sum over slots; the sums of k_linear.cu.
 *
 * A strip is a segment of a tile of 16 outputs: of gate and of up, or of each slot that a row's outputs are summed over.  A block takes tile after tile; what its
 * strips are but for the expert is made out while the kernel ahead still runs, by a thread each, and kept in shared memory.  A warp takes strip after strip; its lanes copy pieces of packed weights to the warp's
 * own ring, and wait for their own copies in order.  Two jobs of one kind of weights may share a launch: the matrix beside the experts, and the experts.  Pieces of
 * the first job are asked for while the kernel ahead still runs, those of experts once it is known which.
 * A strip's sums are kept in shared memory; when all are there, segments are added in ascending order, slots likewise.
 * x is made to f16 by every block for itself, all rows side by side. */
#include "backend_cuda/async.cuh"
#include "backend_cuda/kernels_slots.h"
#include "backend_cuda/pack_row.cuh"
#include "backend_cuda/row_tile.cuh"

enum { THREADS = CUDA_EXPERT_THREADS, WARPS = THREADS / 32, STAGES_MAX = 6 };
static_assert((int)THREADS == (int)PACK_THREADS, "a block packs its row");

/* What a warp copies at once: so many units, and the factors of the fours they are of. */
template <int BITS, int SCALE, int OFF> struct slot_piece {
    using lay = layout<BITS, SCALE, OFF>;
    static constexpr uint32_t N = BITS == 16 ? 1 : BITS > 4 ? 2 : 4, units_bytes = N * lay::unit_bytes, super = lay::super_bytes, bytes = units_bytes + 2 * super;
};

struct strip {
    const uint8_t *source;      /* its first unit, of matrix 0 */
    uint32_t x_at, id_at;       /* bytes from the beginning of shared memory: of x, of the expert's number */
    uint32_t matrix;            /* bytes of one / 16 */
    uint16_t first, units;      /* of the tile's units */
    uint32_t outer, slot, tile; /* outer: the slot, or the row whose slots are summed */
    uint32_t row;               /* of x */
    uint16_t part, job;
};

/* Strip i of the block's tiles, of which the first `own` are the first job's. */
template <int BITS, int SCALE, int OFF>
static __device__ __forceinline__ void strip_make(const cuda_p_slots &s, uint32_t i, uint32_t own, unsigned char *memory)
{
    const cuda_p_expert &p = s.p;
    uint32_t before = own * s.at[0].strips, job = i >= before, strips = s.at[job].strips, in = i - (job ? before : 0), nth = in / strips;
    const cuda_expert_job &q = p.job[job];
    const cuda_expert_at &at = s.at[job];
    uint32_t t = blockIdx.x + ((job ? own : 0) + nth) * gridDim.x - (job ? q.tile_first : 0), which = in - nth * strips;
    strip e;
    e.job = (uint16_t)job;
    e.outer = t / q.tiles, e.tile = t - e.outer * q.tiles;
    e.part = (uint16_t)(which / at.segments);
    e.slot = q.weights ? e.outer * q.parts + e.part : e.outer;
    e.first = (uint16_t)((which - e.part * at.segments) * at.segment_units);
    e.units = (uint16_t)min(at.segment_units, q.units - e.first);
    e.source = q.planes[q.weights ? 0 : e.part] + (size_t)e.tile * q.tile_bytes + layout<BITS, SCALE, OFF>::unit_at(e.first);
    e.matrix = (uint32_t)((size_t)q.tiles * q.tile_bytes / 16);
    e.row = e.slot / q.share;
    e.x_at = at.x + (e.row * q.units + e.first) * 128, e.id_at = at.ids + e.slot * 4;
    reinterpret_cast<strip *>(memory + s.entries)[i] = e;
}

static __device__ __forceinline__ uint32_t id_of(const strip &e, const unsigned char *memory)
{
    return *reinterpret_cast<const uint32_t *>(memory + e.id_at);
}

/* Scales of the rows of a tile, whose first strip this is. */
static __device__ __forceinline__ void factors_ask(const cuda_p_slots &s, uint32_t i, unsigned char *memory)
{
    const strip &e = reinterpret_cast<const strip *>(memory + s.entries)[i];
    const cuda_expert_job &q = s.p.job[e.job];
    if (e.first)
        return;
    const float *from = q.row_scale[q.weights ? 0 : e.part] + (size_t)id_of(e, memory) * q.each + e.tile * 16;
#pragma unroll
    for (uint32_t j = 0; j < 4; j++)
        copy16(shared_at(memory + s.factors) + i * 64 + j * 16, from + j * 4, true);
}

/* The pieces a warp asks for, strip after strip. */
template <class PIECE> struct asking {
    const strip *strips;        /* shared memory */
    const unsigned char *memory;
    uint32_t at, total;         /* the next one to ask for, of those that are known */
    const uint8_t *source;      /* the piece's first unit */
    uint32_t left, four;        /* units of the strip; the piece's first within its four */

    __device__ __forceinline__ void set()
    {
        left = 0;
        if (at >= total)
            return;
        const strip &e = strips[at];
        source = e.source + (size_t)id_of(e, memory) * e.matrix * 16, left = e.units, four = e.first % 4;
    }
    /* One piece to shared memory, or none when all were asked for: a group in any case. */
    __device__ __forceinline__ void ask(uint32_t there, uint32_t lane)
    {
        constexpr uint32_t UNIT = PIECE::lay::unit_bytes, SUPER = PIECE::super, N = PIECE::N;
        if (left) {
            uint32_t n = min(left, N), bytes = n * UNIT, seam = SUPER ? (4 - four) * UNIT : 0xffffffffu;
#pragma unroll
            for (uint32_t i = 0; i < N * UNIT; i += 512) {
                uint32_t mine = i + lane * 16;
                if (mine < bytes)
                    copy16_stream(there + mine, source + mine + (mine >= seam ? SUPER : 0));
            }
            if (SUPER && lane * 16 + 16 <= 2 * SUPER && (lane * 16 + 16 <= SUPER || four + n > 4))
                copy16_stream(there + N * UNIT + lane * 16, source + seam + (lane * 16 + 16 <= SUPER ? 0 : 4 * UNIT) + lane * 16);
            source += bytes + (four + n >= 4 ? SUPER : 0);
            four = (four + n) % 4, left -= n;
            if (left == 0)
                at += WARPS, set();
        }
        copies_commit();
    }
};

/* Unit i of a piece, whose first unit is number `four` of its four, times a unit of the row. */
template <int BITS, int SCALE, int OFF>
static __device__ __forceinline__ void multiply(float *acc, const uint8_t *piece, uint32_t i, uint32_t four, const unsigned char *x_unit, uint32_t lane)
{
    using own = slot_piece<BITS, SCALE, OFF>;
    unit<BITS, SCALE, OFF> w;
    w.template load_at<read_shared>(piece + i * own::lay::unit_bytes, piece + own::units_bytes + (four + i >= 4 ? own::super : 0), lane);
    const uint4 *x = reinterpret_cast<const uint4 *>(x_unit) + (lane & 3) * 2;
    unit_times_row(acc, w, x);
}

/* The warp's strips, each from zero. */
template <int BITS, int SCALE, int OFF>
static __device__ __forceinline__ void strips_multiply(const cuda_p_slots &s, asking<slot_piece<BITS, SCALE, OFF>> &q, const unsigned char *ring,
                                                       const unsigned char *memory, float *sums, uint32_t total, uint32_t lane)
{
    using own = slot_piece<BITS, SCALE, OFF>;
    constexpr uint32_t N = own::N;
    uint32_t slot = 0;
    for (uint32_t i = threadIdx.x / 32; i < total; i += WARPS) {
        const strip &e = q.strips[i];
        uint32_t left = e.units, four = e.first % 4;
        const unsigned char *x = memory + e.x_at;
        float acc[4] = {};
#pragma unroll 1
        for (; left; four = (four + N) % 4, x += N * 128) {
            const uint8_t *piece = ring + slot * own::bytes;
            uint32_t n = min(left, N);
            copies_wait<0, 5>(s.stages - 1);
            __syncwarp();
            if (n == N) {
#pragma unroll
                for (uint32_t j = 0; j < N; j++)
                    multiply<BITS, SCALE, OFF>(acc, piece, j, four, x + j * 128, lane);
            } else {
#pragma unroll 1
                for (uint32_t j = 0; j < n; j++)
                    multiply<BITS, SCALE, OFF>(acc, piece, j, four, x + j * 128, lane);
            }
            __syncwarp();
            q.ask(shared_at(piece), lane); /* into the place just read */
            slot = slot + 1 == s.stages ? 0 : slot + 1;
            left -= n;
        }
        if (lane % 4 == 0)
            sums[i * 16 + lane / 4] = acc[0], sums[i * 16 + lane / 4 + 8] = acc[2];
    }
}

/* Rows of a job to shared memory, a group of copies. */
static __device__ __forceinline__ void rows_ask(const cuda_p_slots &s, unsigned char *memory)
{
#pragma unroll 1
    for (uint32_t j = 0; j < s.p.jobs; j++) {
        const cuda_expert_job &q = s.p.job[j];
        float *rows = reinterpret_cast<float *>(memory + s.at[j].rows);
        uint32_t padded = q.units * CUDA_UNIT, whole = q.x_stride == padded && q.cols == padded ? q.x_rows : 1; /* rows that lie together */
#pragma unroll 1
        for (uint32_t r = 0; r < q.x_rows; r += whole)
            pack_fetch(rows + r * padded, q.x + (size_t)r * q.x_stride, whole > 1 ? whole * padded : q.cols, whole * padded);
    }
    copies_commit();
}

/* Part i of all jobs' rows: a warp's. */
struct row_part {
    uint32_t job, row, from, to, first; /* units; first: the first part of the same row */
    __device__ __forceinline__ row_part(const cuda_p_slots &s, uint32_t i)
    {
        uint32_t before = s.p.job[0].x_rows * s.at[0].parts, in;
        job = s.p.jobs > 1 && i >= before, in = i - (job ? before : 0);
        uint32_t parts = s.at[job].parts, units = s.p.job[job].units;
        row = in / parts, first = i - (in - row * parts);
        from = (i - first) * s.part_units, to = min(from + s.part_units, units);
    }
};

/* A row's values, two a lane and unit, normed where there is a norm. */
static __device__ __forceinline__ float2 *row_at(const cuda_p_slots &s, const row_part &part, unsigned char *memory, uint32_t u, uint32_t lane)
{
    return reinterpret_cast<float2 *>(memory + s.at[part.job].rows) + (part.row * s.p.job[part.job].units + u) * 32 + lane;
}

/* The rows, which are there, to f16: largest values of parts, then of rows.  part: of this warp, its first. */
static __device__ __forceinline__ void pack_all(const cuda_p_slots &s, row_part part, unsigned char *memory)
{
    uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    uint32_t parts = s.p.job[0].x_rows * s.at[0].parts + (s.p.jobs > 1 ? s.p.job[1].x_rows * s.at[1].parts : 0);
    float *words = reinterpret_cast<float *>(memory + s.words), by = 1;
    uint32_t *tops = reinterpret_cast<uint32_t *>(words + PACK_SHARED);
    const cuda_expert_job &first = s.p.job[0];
    if (first.norm_w)
        by = pack_norm({first.x, NULL, first.cols, first.eps}, reinterpret_cast<const float *>(memory + s.at[0].rows), words);
#pragma unroll 1
    for (uint32_t i = warp; i < parts; i += WARPS) {
        if (i != warp)
            part = row_part(s, i);
        const float2 *w = part.job == 0 && first.norm_w ? reinterpret_cast<const float2 *>(memory + s.at[0].norm) + lane : NULL;
        uint32_t most = 0;
#pragma unroll 4
        for (uint32_t u = part.from; u < part.to; u++) {
            float2 *at = row_at(s, part, memory, u, lane), v = *at;
            if (w) {
                float2 n = u * 64 + 2 * lane < first.cols ? w[u * 32] : make_float2(0, 0);
                *at = v = make_float2((v.x * by) * n.x, (v.y * by) * n.y);
            }
            most = max(most, max(__float_as_uint(v.x) & 0x7fffffffu, __float_as_uint(v.y) & 0x7fffffffu)); /* as integers NaN is the largest */
        }
        most = __reduce_max_sync(0xffffffffu, most);
        if (lane == 0)
            tops[i] = most;
    }
    __syncthreads();
#pragma unroll 1
    for (uint32_t i = warp; i < parts; i += WARPS) {
        if (i != warp || parts > WARPS)
            part = row_part(s, i);
        uint32_t n = s.at[part.job].parts, most = __reduce_max_sync(0xffffffffu, lane < n ? tops[part.first + lane] : 0), place = pack_place(2 * lane);
        float inverse, up = dev_row_factor(__uint_as_float(most), &inverse);
        __half *to = reinterpret_cast<__half *>(memory + s.at[part.job].x) + part.row * s.p.job[part.job].units * 64 + place;
#pragma unroll 4
        for (uint32_t u = part.from; u < part.to; u++) {
            float2 v = *row_at(s, part, memory, u, lane);
            *reinterpret_cast<__half2 *>(to + u * 64) = __floats2half2_rn(v.x * up, v.y * up);
        }
        if (part.first == i && lane == 0)
            reinterpret_cast<float *>(memory + s.at[part.job].scales)[part.row] = inverse;
    }
}

/* ---- the ends of tiles ---- */

/* Where the products of a block's tiles begin among its strips: `own` tiles of the first job, `all` of both. */
struct products {
    uint32_t before, strips, count; /* products and strips of the first job; of both */
    __device__ __forceinline__ products(const cuda_p_slots &s, uint32_t own, uint32_t all)
    {
        before = own * s.p.job[0].parts, strips = own * s.at[0].strips;
        count = before + (all - own) * s.p.job[1].parts;
    }
    __device__ __forceinline__ uint32_t strip_of(const cuda_p_slots &s, uint32_t i) const
    {
        return i < before ? i * s.at[0].segments : strips + (i - before) * s.at[1].segments;
    }
};

/* Output i of a product, whose segments' sums are at sums[0], [16], .. */
static __device__ __forceinline__ float product(const cuda_p_slots &s, const strip &e, const unsigned char *memory, const float *sums, float factor, uint32_t i)
{
    const cuda_expert_job &q = s.p.job[e.job];
    const cuda_expert_at &at = s.at[e.job];
    const float *bias = q.bias[q.weights ? 0 : e.part];
    uint32_t o = e.tile * 16 + i;
    float each[CUDA_SEGMENTS], scale = reinterpret_cast<const float *>(memory + at.scales)[e.row];
#pragma unroll
    for (uint32_t j = 0; j < CUDA_SEGMENTS; j++)
        each[j] = sums[16 * (j < at.segments ? j : 0)];
    float v = each[0];
#pragma unroll
    for (uint32_t j = 1; j < CUDA_SEGMENTS; j++)
        v = j < at.segments ? v + each[j] : v;
    v = v * (factor * scale);
    if (bias && o < q.each)
        v = v + bias[(size_t)id_of(e, memory) * q.each + o];
    return q.weights ? reinterpret_cast<const float *>(memory + s.weights)[(e.job ? s.p.job[0].slots : 0) + e.slot] * v : v;
}

static __device__ __forceinline__ void ends(const cuda_p_slots &s, const products &n, unsigned char *memory, float *sums)
{
    const strip *strips = reinterpret_cast<const strip *>(memory + s.entries);
    const float *factors = reinterpret_cast<const float *>(memory + s.factors);
    uint32_t i = threadIdx.x % 16;
#pragma unroll 1
    for (uint32_t j = threadIdx.x / 16; j < n.count; j += THREADS / 16) {
        uint32_t at = n.strip_of(s, j);
        sums[at * 16 + i] = product(s, strips[at], memory, sums + at * 16 + i, factors[at * 16 + i], i);
    }
    __syncthreads();
#pragma unroll 1
    for (uint32_t j = threadIdx.x / 16; j < n.count; j += THREADS / 16) {
        uint32_t at = n.strip_of(s, j);
        const strip &e = strips[at];
        const cuda_expert_job &q = s.p.job[e.job];
        uint32_t o = e.tile * 16 + i, step = s.at[e.job].segments * 16;
        if (e.part || o >= q.each)
            continue;
        float *y = q.y + (size_t)e.outer * q.y_stride + o, before = q.add ? __ldcg(y) : 0, v = sums[at * 16 + i];
        if (q.weights) {
#pragma unroll 4
            for (uint32_t part = 1; part < q.parts; part++)
                v = v + sums[at * 16 + i + part * step];
        } else if (q.parts > 1) {
            v = dev_gate(q.act, v, sums[at * 16 + i + step]);
        }
        *y = q.add ? before + v : v;
    }
}

/* Experts of the job's slots. */
static __device__ __forceinline__ void ids_read(const cuda_p_slots &s, uint32_t job, unsigned char *memory)
{
    const cuda_expert_job &q = s.p.job[job];
    for (uint32_t i = threadIdx.x; i < q.slots; i += THREADS) {
        uint32_t id = q.ids ? __ldcg(q.ids + i) : 0;
        reinterpret_cast<float *>(memory + s.weights)[(job ? s.p.job[0].slots : 0) + i] = q.weights ? __ldcg(q.weights + i) : 0;
        if (id >= q.matrices)
            *s.p.failed = 1, id = 0;
        reinterpret_cast<uint32_t *>(memory + s.at[job].ids)[i] = id;
    }
}

static __device__ __forceinline__ uint32_t tiles_of_block(uint32_t tiles)
{
    return tiles > blockIdx.x ? (tiles - blockIdx.x + gridDim.x - 1) / gridDim.x : 0;
}

template <int BITS, int SCALE, int OFF> static __global__ void __launch_bounds__(THREADS, 1) expert(const __grid_constant__ cuda_p_slots s)
{
    using own = slot_piece<BITS, SCALE, OFF>;
    extern __shared__ __align__(128) unsigned char memory[];
    uint32_t warp = threadIdx.x >> 5, lane = threadIdx.x & 31, first = tiles_of_block(s.p.jobs > 1 ? s.p.job[1].tile_first : s.p.tiles);
    uint32_t total = first * s.at[0].strips + (tiles_of_block(s.p.tiles) - first) * s.at[1].strips, known = s.p.job[0].ids ? 0 : first * s.at[0].strips, asked = 0;
    unsigned char *ring = memory + s.rings + warp * s.stages * own::bytes;
    float *sums = reinterpret_cast<float *>(memory + s.sums);
    asking<own> q = {reinterpret_cast<const strip *>(memory + s.entries), memory, warp, known};
    if (s.p.job[0].norm_w)
        pack_fetch(reinterpret_cast<float *>(memory + s.at[0].norm), s.p.job[0].norm_w, s.p.job[0].cols, s.p.job[0].cols);
    if (known)
        ids_read(s, 0, memory);
    const row_part part(s, warp);
    for (uint32_t i = threadIdx.x; i < total; i += THREADS)
        strip_make<BITS, SCALE, OFF>(s, i, first, memory);
    __syncthreads();
    q.set();
#pragma unroll 1
    for (; q.left && asked < s.stages; asked++) /* what there is to ask for before the kernel ahead has ended */
        q.ask(shared_at(ring) + asked * own::bytes, lane);
    dev_begin();
    rows_ask(s, memory);
    for (uint32_t j = known ? 1 : 0; j < s.p.jobs; j++)
        ids_read(s, j, memory);
    __syncthreads();
    q.total = total;
    if (!q.left)
        q.set();
    for (uint32_t i = threadIdx.x; i < total; i += THREADS)
        factors_ask(s, i, memory);
    uint32_t behind = s.stages - asked;
#pragma unroll 1
    for (; asked < s.stages; asked++)
        q.ask(shared_at(ring) + asked * own::bytes, lane);
    copies_wait<0, 5>(behind); /* x, the norm's weights, and what was asked for before */
    __syncthreads();
    pack_all(s, part, memory);
    __syncthreads();
    strips_multiply<BITS, SCALE, OFF>(s, q, ring, memory, sums, total, lane);
    pack_arrived(); /* the scales, and all strips' sums */
    ends(s, products(s, first, tiles_of_block(s.p.tiles)), memory, sums);
}

/* ---- the form ---- */

template <int BITS, int SCALE, int OFF> static uint32_t piece_of(void)
{
    return slot_piece<BITS, SCALE, OFF>::bytes;
}
static uint32_t piece_bytes(enum cuda_kind kind)
{
    switch (kind) {
#define CASE(name, bits, scale, off) \
    case CUDA_KIND_##name:           \
        return piece_of<bits, CUDA_SCALE_##scale, off>();
        CUDA_KINDS(CASE)
    default:
        return 0;
    }
}

static uint32_t take(uint32_t *used, uint32_t bytes)
{
    uint32_t at = *used;
    *used += (bytes + 15) / 16 * 16;
    return at;
}

/* Parts of all rows. */
static uint32_t parts_of(const struct cuda_p_slots *s)
{
    uint32_t n = 0;
    for (uint32_t j = 0; j < s->p.jobs; j++)
        n += s->p.job[j].x_rows * s->at[j].parts;
    return n;
}

/* As small as leaves one to a warp; of more rows than warps each is one. */
static void parts_set(struct cuda_p_slots *s)
{
    uint32_t most = 0, rows = 0;
    for (uint32_t j = 0; j < s->p.jobs; j++)
        most = s->p.job[j].units > most ? s->p.job[j].units : most, rows += s->p.job[j].x_rows;
    for (s->part_units = rows < WARPS ? (most + WARPS - 1) / WARPS : most;; s->part_units++) {
        for (uint32_t j = 0; j < s->p.jobs; j++)
            s->at[j].parts = (s->p.job[j].units + s->part_units - 1) / s->part_units;
        if (s->part_units >= most || parts_of(s) <= WARPS)
            return;
    }
}

extern "C" uint32_t cuda_slots_form(enum cuda_kind kind, struct cuda_p_slots *s, uint32_t blocks, uint32_t most)
{
    const cuda_p_expert &p = s->p;
    uint32_t used = 0, strips = 0, tiles_before = p.jobs > 1 ? p.job[1].tile_first : p.tiles;
    uint32_t slots = 0;
    s->at[1] = cuda_expert_at{};
    for (uint32_t j = 0; j < p.jobs; j++) {
        const cuda_expert_job &q = p.job[j];
        cuda_expert_at *at = &s->at[j];
        at->segment_units = cuda_segment_units(q.units);
        at->segments = (q.units + at->segment_units - 1) / at->segment_units;
        at->strips = q.parts * at->segments;
        at->rows = take(&used, q.x_rows * q.units * CUDA_UNIT * 4);
        at->norm = take(&used, q.norm_w ? q.cols * 4 : 0);
        at->x = take(&used, q.x_rows * q.units * CUDA_UNIT * 2);
        at->ids = take(&used, q.slots * 4);
        at->scales = take(&used, q.x_rows * 4);
        slots += q.slots;
    }
    parts_set(s);
    for (uint32_t b = 0; b < blocks; b++) { /* of the block with the most */
        uint32_t first = tiles_before > b ? (tiles_before - b + blocks - 1) / blocks : 0, all = p.tiles > b ? (p.tiles - b + blocks - 1) / blocks : 0;
        uint32_t n = first * s->at[0].strips + (all - first) * s->at[1].strips;
        strips = n > strips ? n : strips;
    }
    s->weights = take(&used, slots * 4);
    s->words = take(&used, (PACK_SHARED + parts_of(s)) * 4);
    s->sums = take(&used, strips * 64);
    s->factors = take(&used, strips * 64);
    s->entries = take(&used, strips * sizeof(strip));
    s->rings = (used + 127) / 128 * 128;
    uint32_t stage = WARPS * piece_bytes(kind);
    for (s->stages = STAGES_MAX; s->stages > 2 && s->rings + s->stages * stage > most; s->stages--)
        ;
    uint32_t total = s->rings + s->stages * stage;
    return total <= most ? total : 0;
}

#define ENTRY(name, bits, scale, off) (const void *)expert<bits, CUDA_SCALE_##scale, off>,
extern "C" const void *const cuda_kernels_expert[CUDA_KIND_COUNT] = {CUDA_KINDS(ENTRY)};
