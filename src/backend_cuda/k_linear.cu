/* backend_cuda/k_linear.cu - y = W x for any number of rows, one order of sums for all of them.
 *
 * The weights are the row operand of mma.m16n8k16 (f16 in, f32 sums), rows of x the columns.  K is cut in segments by K alone
 * (cuda_segment_units); a segment is one chain of mma over ascending columns from zero, the segments are added in ascending order.  Here a warp
 * has a segment; k_tall.cu does the same segments one after the other.
 * Grid: (groups of 8 NT rows of x, tiles of 16 weight rows); a block has one warp a segment. */
#include "backend_cuda/mma.cuh"
#include "backend_cuda/weight_layout.cuh"

/* What a lane needs of a unit of 8 rows of x: 16 halves in a piece. */
struct columns {
    uint4 v[2];
    __device__ __forceinline__ void load(const uint16_t *x, bool there)
    {
        v[0] = v[1] = make_uint4(0, 0, 0, 0);
        if (there) {
            v[0] = *reinterpret_cast<const uint4 *>(x);
            v[1] = *reinterpret_cast<const uint4 *>(x + 8);
        }
    }
    __device__ __forceinline__ uint32_t at(int i) const
    {
        return reinterpret_cast<const uint32_t *>(v)[i];
    }
};

/* Units in flight a warp: the next ones are on their way while one is computed. */
static __host__ __device__ constexpr int ahead(int bits, int nt)
{
    return nt > 1 ? 2 : bits == 16 ? 2 : 3;
}

template <int BITS, int SCALE, int OFF, int NT>
static __device__ __forceinline__ void segment(const uint8_t *tile, const uint16_t *x, uint32_t units, uint32_t from, uint32_t to,
                                               uint32_t rows_left, float acc[NT][4])
{
    constexpr int AHEAD = ahead(BITS, NT);
    uint32_t lane = threadIdx.x & 31, g = lane >> 2;
    unit<BITS, SCALE, OFF> w[AHEAD];
    columns b[AHEAD][NT];
#pragma unroll
    for (int i = 0; i < AHEAD; i++)
        if (from + i < to)
            w[i].load(tile, from + i, lane);
    dev_wait(); /* weights are there before; x is not */
    dev_launch_next();
#pragma unroll
    for (int i = 0; i < AHEAD; i++)
#pragma unroll
        for (int n = 0; n < NT; n++)
            if (from + i < to)
                b[i][n].load(x + (((size_t)n * units + from + i) * 32 + lane) * 16, 8 * n + g < rows_left);
    for (uint32_t u = from; u < to; u += AHEAD) {
#pragma unroll
        for (int i = 0; i < AHEAD; i++) {
            if (u + i >= to)
                break;
#pragma unroll
            for (int c = 0; c < 4; c++) {
                uint32_t a[4];
                w[i].fragment(c, a);
#pragma unroll
                for (int n = 0; n < NT; n++)
                    mma(acc[n], a, b[i][n].at(2 * c), b[i][n].at(2 * c + 1));
            }
            uint32_t next = u + i + AHEAD;
            if (next >= to)
                continue;
            w[i].load(tile, next, lane);
#pragma unroll
            for (int n = 0; n < NT; n++)
                b[i][n].load(x + (((size_t)n * units + next) * 32 + lane) * 16, 8 * n + g < rows_left);
        }
    }
}

static __device__ __forceinline__ float sum_segments(const float *partial, uint32_t segments, uint32_t stride, uint32_t at)
{
    float sum = partial[at];
    for (uint32_t s = 1; s < segments; s++)
        sum = sum + partial[s * stride + at];
    return sum;
}

static __device__ __forceinline__ void store(const cuda_p_linear &p, const cuda_linear_part &part, uint32_t o, float *y, float x_scale, float sum)
{
    float v = sum * (part.row_scale[o] * x_scale);
    if (part.bias)
        v = v + part.bias[o];
    if (p.alpha != 1.0f)
        v = v * p.alpha;
    *y = p.add ? *y + v : v;
}

static __device__ __forceinline__ float scaled(const cuda_linear_part &part, uint32_t o, float x_scale, float sum)
{
    float v = sum * (part.row_scale[o] * x_scale);
    return part.bias ? v + part.bias[o] : v;
}

template <int BITS, int SCALE, int OFF, int NT>
static __global__ void __launch_bounds__(256, NT == 1 ? 3 : 2) linear(const __grid_constant__ cuda_p_linear p)
{
    extern __shared__ float partial[]; /* [segment][16][8 NT], for a pair twice */
    uint32_t warp = threadIdx.x >> 5, lane = threadIdx.x & 31, g = lane >> 2, t = lane & 3, segments = blockDim.x >> 5;
    uint32_t row0 = blockIdx.x * 8 * NT, rows_left = p.rows - row0, part = 0, before = 0; /* tiles of matrices before this one */
    if (p.groups) {
        dev_wait();
        if (blockIdx.x >= __ldcg(&p.groups->count))
            return;
        const uint4 item = __ldcg(reinterpret_cast<const uint4 *>(p.groups->items + blockIdx.x));
        before = item.x * (p.each / 16), row0 = item.y, rows_left = item.z;
    }
    while (!p.pair && part + 1 < p.part_count && blockIdx.y >= p.part[part + 1].tile_first)
        part++;
    uint32_t tile = blockIdx.y - p.part[part].tile_first, stride = 16 * 8 * NT, all = segments * stride;
    uint32_t size = cuda_segment_units(p.units), from = warp * size, to = from + size < p.units ? from + size : p.units;
    const uint16_t *x = p.x + (size_t)(row0 / 8) * p.units * 512;
    for (uint32_t i = 0; i <= p.pair; i++) {
        float acc[NT][4] = {};
        segment<BITS, SCALE, OFF, NT>(p.part[part + i].planes + (size_t)(before + tile) * p.tile_bytes, x, p.units, from, to, rows_left, acc);
        float *mine = partial + i * all + warp * stride;
#pragma unroll
        for (int n = 0; n < NT; n++) {
            mine[g * 8 * NT + 8 * n + 2 * t] = acc[n][0], mine[g * 8 * NT + 8 * n + 2 * t + 1] = acc[n][1];
            mine[(g + 8) * 8 * NT + 8 * n + 2 * t] = acc[n][2], mine[(g + 8) * 8 * NT + 8 * n + 2 * t + 1] = acc[n][3];
        }
    }
    __syncthreads();
    for (uint32_t i = threadIdx.x; i < stride; i += blockDim.x) {
        uint32_t o = tile * 16 + i % 16, n = i / 16, at = i % 16 * 8 * NT + n;
        if (o >= p.part[part].rows || n >= rows_left)
            continue;
        float sum = sum_segments(partial, segments, stride, at), x_scale = p.x_scale[row0 + n];
        float *y = p.part[part].y + (size_t)(p.order ? p.order[row0 + n] : row0 + n) * p.part[part].y_stride + o;
        o += before * 16;
        if (!p.pair) {
            store(p, p.part[part], o, y, x_scale, sum);
            continue;
        }
        float up = scaled(p.part[1], o, x_scale, sum_segments(partial + all, segments, stride, at));
        *y = dev_gate(p.act, scaled(p.part[0], o, x_scale, sum), up);
    }
}

/* A row with a matrix of its own (experts, heads): grid (rows of y, tiles of a matrix).  The same sums. */
template <int BITS, int SCALE, int OFF>
static __global__ void __launch_bounds__(256) linear_own(const __grid_constant__ cuda_p_linear p)
{
    extern __shared__ float partial[]; /* [segment][16][8], for a pair twice */
    dev_begin();
    uint32_t warp = threadIdx.x >> 5, lane = threadIdx.x & 31, g = lane >> 2, t = lane & 3, segments = blockDim.x >> 5;
    uint32_t i = blockIdx.x, from_row = i / p.x_share, column = from_row % 8, id = p.ids ? p.ids[i] : i % p.heads;
    if (id >= p.matrices) {
        *p.failed = 1;
        return;
    }
    uint32_t first = id * p.each, tile = first / 16 + blockIdx.y, all = segments * 16;
    uint32_t size = cuda_segment_units(p.units), from = warp * size, to = from + size < p.units ? from + size : p.units;
    const uint16_t *x = p.x + (size_t)(from_row / 8) * p.units * 512;
    if (tile * 16 >= first + p.each)
        return;
    for (uint32_t k = 0; k <= p.pair; k++) {
        float acc[1][4] = {};
        segment<BITS, SCALE, OFF, 1>(p.part[k].planes + (size_t)tile * p.tile_bytes, x, p.units, from, to, g == column ? 8 : 0, acc);
        if (t == column / 2) {
            partial[k * all + warp * 16 + g] = acc[0][column % 2];
            partial[k * all + warp * 16 + g + 8] = acc[0][2 + column % 2];
        }
    }
    __syncthreads();
    uint32_t o = tile * 16 + threadIdx.x;
    if (threadIdx.x >= 16 || o < first || o >= first + p.each)
        return;
    float v = sum_segments(partial, segments, 16, threadIdx.x) * (p.part[0].row_scale[o] * p.x_scale[from_row]);
    v = p.part[0].bias ? v + p.part[0].bias[o] : v;
    if (p.pair) {
        float up = sum_segments(partial + all, segments, 16, threadIdx.x) * (p.part[1].row_scale[o] * p.x_scale[from_row]);
        up = p.part[1].bias ? up + p.part[1].bias[o] : up;
        v = dev_gate(p.act, v, up);
    }
    p.part[0].y[(size_t)(i / p.heads) * p.part[0].y_stride + (size_t)(i % p.heads) * p.y_step + o - first] = v;
}

#define ENTRY(name, bits, scale, off)                                                                                               \
    {(const void *)linear<bits, CUDA_SCALE_##scale, off, 1>, (const void *)linear<bits, CUDA_SCALE_##scale, off, 2>,                \
     (const void *)linear<bits, CUDA_SCALE_##scale, off, 4>, (const void *)linear_own<bits, CUDA_SCALE_##scale, off>},
extern "C" const void *const cuda_kernels_linear[CUDA_KIND_COUNT][CUDA_LINEAR_WIDTHS] = {CUDA_KINDS(ENTRY)};

extern "C" uint32_t cuda_tile_bytes(enum cuda_kind kind, uint32_t cols)
{
    switch (kind) {
#define CASE(name, bits, scale, off) \
    case CUDA_KIND_##name:           \
        return layout<bits, CUDA_SCALE_##scale, off>::tile_bytes(cuda_units(cols));
        CUDA_KINDS(CASE)
    default:
        return 0;
    }
}
