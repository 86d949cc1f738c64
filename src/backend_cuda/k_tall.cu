/* backend_cuda/k_tall.cu - linear over many rows: wgmma, the same sums as k_linear.cu.
 *
 * The weights are the row operand, taken from packed tiles to registers as in decode; rows of x come to shared memory (128-byte swizzle).  A segment is
 * one chain of wgmma k16 steps from zero, added to the total in ascending order: the bits of k_linear.cu (ops_rows_law compares them).
 * A block: two warpgroups of 64 weight rows each and 128 rows of x; a warp has a tile of 16 weight rows.  For a pair the first warpgroup has the
 * gate, the second the same rows of up. */
#include "backend_cuda/weight_layout.cuh"

enum { ROWS = 128, STAGES = 4, STAGE_BYTES = ROWS * 128, THREADS = 256 };

/* d[64]: 64 by 128 of which a lane has rows g and g + 8 of its warp's 16, columns 8 j + 2 t and the next */
static __device__ __forceinline__ void wgmma(float *d, const uint32_t *a, uint64_t b, uint32_t carry)
{
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %69, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n128k16.f32.f16.f16 {%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
                 "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
                 "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
                 "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63}, {%64, %65, %66, %67}, %68, p, 1, 1, 0;\n}"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]),
                   "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15]),
                   "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23]),
                   "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31]),
                   "+f"(d[32]), "+f"(d[33]), "+f"(d[34]), "+f"(d[35]), "+f"(d[36]), "+f"(d[37]), "+f"(d[38]), "+f"(d[39]),
                   "+f"(d[40]), "+f"(d[41]), "+f"(d[42]), "+f"(d[43]), "+f"(d[44]), "+f"(d[45]), "+f"(d[46]), "+f"(d[47]),
                   "+f"(d[48]), "+f"(d[49]), "+f"(d[50]), "+f"(d[51]), "+f"(d[52]), "+f"(d[53]), "+f"(d[54]), "+f"(d[55]),
                   "+f"(d[56]), "+f"(d[57]), "+f"(d[58]), "+f"(d[59]), "+f"(d[60]), "+f"(d[61]), "+f"(d[62]), "+f"(d[63])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(carry));
}
static __device__ __forceinline__ void wgmma_fence(void)
{
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}
static __device__ __forceinline__ void wgmma_commit(void)
{
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
template <int N> static __device__ __forceinline__ void wgmma_wait(void)
{
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(N) : "memory");
}
static __device__ __forceinline__ void copy_async(uint32_t to, const void *from, uint32_t bytes) /* the rest of 16 is zeros */
{
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(bytes) : "memory");
}
static __device__ __forceinline__ uint64_t descriptor(uint32_t at) /* K-major, 128-byte swizzle, 8 rows 1,024 bytes apart */
{
    return (uint64_t)((at & 0x3ffff) >> 4) | 1ull << 16 | 64ull << 32 | 1ull << 62;
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
    w[0].load(planes, 0, lane);
    w[1].load(planes, p.units > 1 ? 1 : 0, lane);
    stage_fill(p, shared, 0, row0);
    stage_fill(p, shared, 1, row0);
    for (uint32_t u0 = 0; u0 < p.units; u0 += 2) {
#pragma unroll
        for (int h = 0; h < 2; h++) {
            uint32_t u = u0 + h, a[4][4];
            if (u >= p.units)
                break;
#pragma unroll
            for (int c = 0; c < 4; c++)
                w[h].fragment(c, a[c]);
            if (u + 2 < p.units)
                w[h].load(planes, u + 2, lane);
            asm volatile("cp.async.wait_group 1;" ::: "memory");
            asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
            __syncthreads();
            stage_fill(p, shared, u + 2, row0);
            uint32_t first = u % size == 0, last = (u + 1) % size == 0 || u + 1 == p.units;
            uint64_t b = descriptor(shared + u % STAGES * STAGE_BYTES);
            wgmma_fence();
            wgmma(acc, a[0], b, !first);
            wgmma(acc, a[1], b + 2, 1);
            wgmma(acc, a[2], b + 4, 1);
            wgmma(acc, a[3], b + 6, 1);
            wgmma_commit();
            wgmma_wait<0>();
            if (last) {
#pragma unroll
                for (int i = 0; i < 64; i++)
                    total[i] = u < size ? acc[i] : total[i] + acc[i];
            }
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
            q.y[(size_t)row * q.y_stride + o] = dev_activate(p.act, total[i]) * ups[n * 64 + warp * 16 + (o & 15)];
    }
}

extern "C" uint32_t cuda_tall_smem(void)
{
    return STAGES * STAGE_BYTES + 1024;
}

#define ENTRY(name, bits, scale, off) (const void *)tall<bits, CUDA_SCALE_##scale, off>,
extern "C" const void *const cuda_kernels_tall[CUDA_KIND_COUNT] = {CUDA_KINDS(ENTRY)};
