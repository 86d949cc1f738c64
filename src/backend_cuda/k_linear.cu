/* backend_cuda/k_linear.cu - y = W x for any number of rows, one order of sums for all of them.
 *
 * The weights are the row operand of mma.m16n8k16 (f16 in, f32 sums), rows of x the columns.  K is cut in segments by K alone
 * (cuda_segment_units); a segment is one chain of mma over ascending columns from zero, the segments are added in ascending order.  Here a warp
 * has a segment; k_tall.cu does the same segments one after the other.
 * Grid: (groups of 8 NT rows of x, tiles of 16 weight rows); a block has one warp a segment. */
#include "backend_cuda/weight_layout.cuh"

static __device__ __forceinline__ void mma(float *c, const uint32_t *a, uint32_t b0, uint32_t b1)
{
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

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

enum { AHEAD = 4 };

template <int BITS, int SCALE, int OFF, int NT>
static __device__ __forceinline__ void segment(const uint8_t *tile, const uint16_t *x, uint32_t units, uint32_t from, uint32_t to,
                                               uint32_t rows_left, float acc[NT][4])
{
    uint32_t lane = threadIdx.x & 31, g = lane >> 2;
    constexpr int step = NT == 1 ? AHEAD : NT == 2 ? 2 : 1;
    for (uint32_t u = from; u < to; u += step) {
        unit<BITS, SCALE, OFF> w[step];
        columns b[step][NT];
#pragma unroll
        for (int i = 0; i < step; i++)
            if (u + i < to)
                w[i].load(tile, u + i, lane);
#pragma unroll
        for (int i = 0; i < step; i++)
#pragma unroll
            for (int n = 0; n < NT; n++)
                if (u + i < to)
                    b[i][n].load(x + (((size_t)n * units + u + i) * 32 + lane) * 16, 8 * n + g < rows_left);
#pragma unroll
        for (int i = 0; i < step; i++) {
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

static __device__ __forceinline__ void store(const cuda_p_linear &p, const cuda_linear_part &part, uint32_t o, uint32_t row, float sum)
{
    float v = sum * (part.row_scale[o] * p.x_scale[row]);
    if (part.bias)
        v = v + part.bias[o];
    if (p.alpha != 1.0f)
        v = v * p.alpha;
    float *y = part.y + (size_t)row * part.y_stride + o;
    *y = p.add ? *y + v : v;
}

template <int BITS, int SCALE, int OFF, int NT>
static __global__ void __launch_bounds__(256) linear(const __grid_constant__ cuda_p_linear p)
{
    extern __shared__ float partial[]; /* [segment][16][8 NT], for a pair twice */
    uint32_t warp = threadIdx.x >> 5, lane = threadIdx.x & 31, g = lane >> 2, t = lane & 3, segments = blockDim.x >> 5;
    uint32_t row0 = blockIdx.x * 8 * NT, rows_left = p.rows - row0, part = 0;
    while (!p.pair && part + 1 < p.part_count && blockIdx.y >= p.part[part + 1].tile_first)
        part++;
    uint32_t tile = blockIdx.y - p.part[part].tile_first, stride = 16 * 8 * NT, all = segments * stride;
    uint32_t size = cuda_segment_units(p.units), from = warp * size, to = from + size < p.units ? from + size : p.units;
    const uint16_t *x = p.x + (size_t)(row0 / 8) * p.units * 512;
    for (uint32_t i = 0; i <= p.pair; i++) {
        float acc[NT][4] = {};
        segment<BITS, SCALE, OFF, NT>(p.part[part + i].planes + (size_t)tile * p.tile_bytes, x, p.units, from, to, rows_left, acc);
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
        float sum = sum_segments(partial, segments, stride, at);
        if (!p.pair) {
            store(p, p.part[part], o, row0 + n, sum);
            continue;
        }
        float gate = sum * (p.part[0].row_scale[o] * p.x_scale[row0 + n]);
        float up = sum_segments(partial + all, segments, stride, at) * (p.part[1].row_scale[o] * p.x_scale[row0 + n]);
        p.part[0].y[(size_t)(row0 + n) * p.part[0].y_stride + o] = dev_activate(p.act, gate) * up;
    }
}

#define ENTRY(name, bits, scale, off)                                                                                               \
    {(const void *)linear<bits, CUDA_SCALE_##scale, off, 1>, (const void *)linear<bits, CUDA_SCALE_##scale, off, 2>,                \
     (const void *)linear<bits, CUDA_SCALE_##scale, off, 4>},
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
