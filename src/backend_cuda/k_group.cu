/* backend_cuda/k_group.cu - rows by the matrix they take: what experts of many rows need before their products.
 *
 * group: slots are counted by expert and laid one expert behind the other in packed rows, each expert at the beginning of a block of rows; the list says
 * which blocks there are.  One block of threads, no answer to the host: launches are of the largest number of blocks there can be.  In which order an expert's
 * slots lie is left to the hardware: a row's sums do not depend on its neighbours.
 * pack_slots: rows of x to f16 at the places of their slots, a warp a row (k_pack.cu has the forms; a row without a norm needs no sum, only its largest value). */
#include "backend_cuda/device_math.cuh"
#include "backend_cuda/kernels.h"
#include "backend_cuda/pack_row.cuh"

enum { THREADS = CUDA_GROUP_THREADS, PACK_WARPS = CUDA_PACK_SLOTS_THREADS / 32 };

/* Sum of the threads' values before this one, and of all. */
static __device__ uint32_t sum_before(uint32_t v, uint32_t *shared, uint32_t *all)
{
    uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32, sum = v;
    for (uint32_t o = 1; o < 32; o *= 2) {
        uint32_t u = __shfl_up_sync(0xffffffffu, sum, o);
        sum += lane >= o ? u : 0;
    }
    __syncthreads();
    if (lane == 31)
        shared[warp] = sum;
    __syncthreads();
    uint32_t before = 0;
    *all = 0;
    for (uint32_t w = 0; w < THREADS / 32; w++) {
        before += w < warp ? shared[w] : 0;
        *all += shared[w];
    }
    return before + sum - v;
}

static __global__ void __launch_bounds__(THREADS) group(const __grid_constant__ cuda_p_group p)
{
    dev_begin();
    extern __shared__ uint32_t memory[]; /* [experts] slots, then the place of the next; [experts] first block */
    __shared__ uint32_t shared[THREADS / 32];
    uint32_t *count = memory, *first = memory + p.experts, each = (p.experts + THREADS - 1) / THREADS;
    for (uint32_t e = threadIdx.x; e < p.experts; e += THREADS)
        count[e] = 0;
    __syncthreads();
    for (uint32_t i = threadIdx.x; i < p.slots; i += THREADS) {
        uint32_t id = __ldcg(p.ids + i);
        if (id < p.experts)
            atomicAdd(count + id, 1);
        else
            *p.failed = 1;
    }
    __syncthreads();
    uint32_t from = threadIdx.x * each, to = from + each < p.experts ? from + each : p.experts, blocks = 0, all;
    for (uint32_t e = from; e < to; e++)
        blocks += (count[e] + p.block_rows - 1) / p.block_rows;
    uint32_t block = sum_before(blocks, shared, &all);
    for (uint32_t e = from; e < to; e++) {
        first[e] = block;
        for (uint32_t at = 0; at < count[e]; at += p.block_rows, block++)
            p.groups->items[block] = cuda_group_item{e, block * p.block_rows, count[e] - at < p.block_rows ? count[e] - at : p.block_rows, 0};
        count[e] = 0;
    }
    if (threadIdx.x == 0)
        p.groups->count = all;
    __syncthreads();
    for (uint32_t i = threadIdx.x; i < p.slots; i += THREADS) {
        uint32_t id = __ldcg(p.ids + i), at = id < p.experts ? first[id] * p.block_rows + atomicAdd(count + id, 1) : CUDA_NO_PLACE;
        p.place[i] = at;
        if (at != CUDA_NO_PLACE)
            p.order[at] = i;
    }
}

/* Where eight columns of a packed row begin, in halves. */
static __device__ __forceinline__ size_t eight_at(const cuda_p_pack_slots &p, uint32_t row, uint32_t c)
{
    if (p.tall)
        return ((size_t)(row / 128) * p.units + c / 64) * 8192 + row % 128 * 64 + (c % 64 / 8 ^ row % 8) * 8;
    return ((size_t)(row / 8) * p.units + c / 64) * 512 + row % 8 * 64;
}

static __device__ __forceinline__ void eight_put(const cuda_p_pack_slots &p, uint32_t row, uint32_t c, const __half2 *v)
{
    __half *to = reinterpret_cast<__half *>(p.packed) + eight_at(p, row, c);
    if (p.tall) {
        *reinterpret_cast<uint4 *>(to) = *reinterpret_cast<const uint4 *>(v);
        return;
    }
#pragma unroll
    for (uint32_t i = 0; i < 4; i++)
        *reinterpret_cast<__half2 *>(to + pack_place(c + 2 * i)) = v[i];
}

static __global__ void __launch_bounds__(32 * PACK_WARPS) pack_slots(const __grid_constant__ cuda_p_pack_slots p)
{
    dev_begin();
    uint32_t r = blockIdx.x * PACK_WARPS + threadIdx.x / 32, lane = threadIdx.x % 32, most = 0;
    if (r >= p.rows)
        return;
    const float *x = p.x + (size_t)r * p.stride;
    for (uint32_t c = lane; c < p.cols; c += 32)
        most = max(most, __float_as_uint(__ldcg(x + c)) & 0x7fffffffu); /* as integers NaN is the largest */
    float inverse, up = dev_row_factor(__uint_as_float(__reduce_max_sync(0xffffffffu, most)), &inverse);
    for (uint32_t c = 8 * lane; c < p.units * CUDA_UNIT; c += 8 * 32) {
        __half2 v[4];
#pragma unroll
        for (uint32_t i = 0; i < 4; i++) {
            float a = c + 2 * i < p.cols ? __ldcg(x + c + 2 * i) : 0, b = c + 2 * i + 1 < p.cols ? __ldcg(x + c + 2 * i + 1) : 0;
            v[i] = __floats2half2_rn(a * up, b * up);
        }
        for (uint32_t s = 0; s < p.share; s++) {
            uint32_t row = __ldcg(p.place + (size_t)r * p.share + s);
            if (row != CUDA_NO_PLACE)
                eight_put(p, row, c, v);
        }
    }
    for (uint32_t s = lane; s < p.share; s += 32) {
        uint32_t row = __ldcg(p.place + (size_t)r * p.share + s);
        if (row != CUDA_NO_PLACE)
            p.row_scale[row] = inverse;
    }
}

extern "C" const void *const cuda_kernel_group = (const void *)group;
extern "C" const void *const cuda_kernel_pack_slots = (const void *)pack_slots;
