/* backend_cuda/k_tall.cu - linear over many rows: wgmma, the same sums as k_linear.cu.
 *
 * The weights are the row operand, taken from packed tiles to registers as in decode; rows of x come to shared memory (128-byte swizzle).  A segment is
 * one chain of wgmma k16 steps from zero, added to the total in ascending order: the bits of k_linear.cu (ops_rows_law compares them).
 * A block: two warpgroups of 64 weight rows each and 128 rows of x; a warp has a tile of 16 weight rows.  For a pair the first warpgroup has the
 * gate, the second the same rows of up. */
#include "backend_cuda/weight_layout.cuh"
#include "backend_cuda/wgmma.cuh"

enum { ROWS = 128, STAGES = 4, STAGE_BYTES = ROWS * 128, THREADS = 256 };

static __device__ __forceinline__ void copy_async(uint32_t to, const void *from, uint32_t bytes) /* the rest of 16 is zeros */
{
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(bytes) : "memory");
}
/* Unit u of 128 rows of x. */
static __device__ __forceinline__ void stage_fill(const cuda_p_linear &p, uint32_t shared, uint32_t u, uint32_t row0)
{
    if (u < p.units) {
        uint32_t to = shared + u % STAGES * STAGE_BYTES;
        for (uint32_t i = threadIdx.x; i < ROWS * 8; i += THREADS) {
            uint32_t r = i / 8, j = i % 8, row = row0 + r;
            const uint16_t *from = p.x + (size_t)(row < p.rows ? row : 0) * p.units * CUDA_UNIT + u * CUDA_UNIT + j * 8;
            copy_async(to + r * 128 + ((j ^ (r & 7)) << 4), from, row < p.rows ? 16 : 0);
        }
    }
    asm volatile("cp.async.commit_group;" ::: "memory");
}

static __device__ __forceinline__ float finish(const cuda_p_linear &p, const cuda_linear_part &part, uint32_t o, uint32_t row, float sum)
{
    float v = sum * (part.row_scale[o] * p.x_scale[row]);
    if (part.bias)
        v = v + part.bias[o];
    return p.alpha != 1.0f ? v * p.alpha : v;
}

template <int BITS, int SCALE, int OFF>
static __global__ void __launch_bounds__(THREADS, 1) tall(const __grid_constant__ cuda_p_linear p)
{
    extern __shared__ unsigned char memory[];
    uint32_t shared = ((uint32_t)__cvta_generic_to_shared(memory) + 1023) / 1024 * 1024;
    uint32_t lane = threadIdx.x & 31, warp = threadIdx.x >> 5, row0 = blockIdx.x * ROWS, part = 0;
    uint32_t tile = p.pair ? blockIdx.y * 4 + warp % 4 : blockIdx.y * 8 + warp;
    if (p.pair)
        part = warp / 4;
    bool mine = tile < (p.pair ? p.tiles / 2 : p.tiles); /* else a warp keeps pace with nothing to write */
    while (!p.pair && part + 1 < p.part_count && tile >= p.part[part + 1].tile_first)
        part++;
    const cuda_linear_part &q = p.part[part];
    const uint8_t *planes = q.planes + (size_t)(mine ? tile - q.tile_first : 0) * p.tile_bytes;
    uint32_t size = cuda_segment_units(p.units), o0 = (tile - q.tile_first) * 16 + (lane >> 2);
    float total[64], acc[64];
#pragma unroll
    for (int i = 0; i < 64; i++)
        total[i] = 0;
    unit<BITS, SCALE, OFF> w[2];
    uint32_t a[2][4][4];
    w[0].load(planes, 0, lane);
    w[1].load(planes, p.units > 1 ? 1 : 0, lane);
    dev_wait(); /* weights are there before; x is not */
    dev_launch_next();
    stage_fill(p, shared, 0, row0);
    stage_fill(p, shared, 1, row0);
    for (uint32_t u0 = 0; u0 < p.units; u0 += 2) {
#pragma unroll
        for (int h = 0; h < 2; h++) {
            uint32_t u = u0 + h;
            if (u >= p.units)
                break;
            /* while the unit before is multiplied; a[h] was read by the one before that, which has ended */
#pragma unroll
            for (int c = 0; c < 4; c++) {
                w[h].fragment(c, a[h][c]);
#pragma unroll
                for (int i = 0; BITS == 16 && i < 4; i++) /* registers of their own: w[h] is loaded again while these are read */
                    asm volatile("mov.b32 %0, %1;" : "=r"(a[h][c][i]) : "r"(a[h][c][i]));
            }
            if (u + 2 < p.units)
                w[h].load(planes, u + 2, lane);
            asm volatile("cp.async.wait_group 1;" ::: "memory");
            asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
            __syncthreads();
            stage_fill(p, shared, u + 2, row0); /* over unit u - 2, which every warp has ended */
            uint32_t first = u % size == 0, last = (u + 1) % size == 0 || u + 1 == p.units;
            uint64_t b = descriptor(shared + u % STAGES * STAGE_BYTES);
            wgmma_fence();
            wgmma(acc, a[h][0], b, !first);
            wgmma(acc, a[h][1], b + 2, 1);
            wgmma(acc, a[h][2], b + 4, 1);
            wgmma(acc, a[h][3], b + 6, 1);
            wgmma_commit();
            if (!last) {
                wgmma_wait<1>();
                continue;
            }
            wgmma_wait<0>();
#pragma unroll
            for (int i = 0; i < 64; i++)
                total[i] = u < size ? acc[i] : total[i] + acc[i];
        }
    }
    __syncthreads();
    float *ups = (float *)(memory + (shared - (uint32_t)__cvta_generic_to_shared(memory))); /* [128 rows][64]: a pair's up */
#pragma unroll
    for (int i = 0; i < 64; i++) {
        uint32_t n = i / 4 * 8 + 2 * (lane & 3) + (i & 1), o = o0 + 8 * (i >> 1 & 1), row = row0 + n;
        if (!mine || row >= p.rows || o >= q.rows)
            continue;
        float v = finish(p, q, o, row, total[i]);
        if (p.pair) {
            total[i] = v;
            if (warp >= 4)
                ups[n * 64 + warp % 4 * 16 + (o & 15)] = v;
            continue;
        }
        float *y = q.y + (size_t)row * q.y_stride + o;
        *y = p.add ? *y + v : v;
    }
    if (!p.pair)
        return;
    __syncthreads();
#pragma unroll
    for (int i = 0; i < 64; i++) {
        uint32_t n = i / 4 * 8 + 2 * (lane & 3) + (i & 1), o = o0 + 8 * (i >> 1 & 1), row = row0 + n;
        if (warp < 4 && mine && row < p.rows && o < q.rows)
            q.y[(size_t)row * q.y_stride + o] = dev_gate(p.act, total[i], ups[n * 64 + warp * 16 + (o & 15)]);
    }
}

extern "C" uint32_t cuda_tall_smem(void)
{
    return STAGES * STAGE_BYTES + 1024;
}

/* Kinds that prompts are read with often; the others take k_linear.cu for any number of rows: the same bits. */
#define F16 (const void *)tall<16, CUDA_SCALE_NONE, 0>
#define Q4 (const void *)tall<4, CUDA_SCALE_ONE, 8>
#define Q8 (const void *)tall<8, CUDA_SCALE_ONE, 128>
#define A4 (const void *)tall<4, CUDA_SCALE_TWO, 0>
#define G4 (const void *)tall<4, CUDA_SCALE_WIDE, 0>
#define K4 (const void *)tall<4, CUDA_SCALE_SUPER, 0>
#define K6 (const void *)tall<6, CUDA_SCALE_SIXTEEN, 32>
extern "C" const void *const cuda_kernels_tall[CUDA_KIND_COUNT] = {
    F16, Q4, NULL, Q8, NULL, NULL, A4, NULL, NULL, NULL, G4, NULL, NULL, NULL, K4, NULL, K6, NULL, NULL}; /* in the order of CUDA_KINDS */
