/* backend_cuda/k_router.cu - steps of a row in shared memory (chain), and of one row: its steps, the router's logits from what one of them gives, and the choice
 * of experts, by a cluster of eight blocks.  The sums of k_rows.cu, k_linear.cu and k_route.cu.
 *
 * Each block of the cluster makes all steps for itself, and writes those of the rows that are its own once all have read what is there.  Its tiles of the router's
 * matrix lie in shared memory before the row is there.  Logits are sent to the first block, where a warp chooses. */
#include "backend_cuda/pack_row.cuh"
#include "backend_cuda/route_row.cuh"
#include "backend_cuda/row_chain.cuh"
#include "backend_cuda/row_tile.cuh"

enum { THREADS = CUDA_CHAIN_THREADS, WARPS = THREADS / 32, RANKS = CUDA_ROUTER_CLUSTER };

static __global__ void __launch_bounds__(THREADS, 1) chain(const __grid_constant__ cuda_p_chain p)
{
    extern __shared__ __align__(128) unsigned char memory[];
    float *rows = reinterpret_cast<float *>(memory), *words = reinterpret_cast<float *>(memory + chain_bytes(p));
    chain_weights(p, rows);
    dev_begin();
    chain_read(p, blockIdx.x, rows);
    __syncthreads();
    chain_steps(p, rows, words);
#pragma unroll 1
    for (uint32_t i = 0; i < p.rows; i++)
        chain_write(p, i, blockIdx.x, rows);
}

/* Shared memory behind the chain's, in this order: tiles, x as f16; then floats. */
struct router_form {
    uint32_t first, tile_bytes, own, units, experts, segments; /* own: tiles of a block at most */
    __host__ __device__ router_form(const cuda_p_router &p)
    {
        first = (chain_bytes(p.chain) + 127) / 128 * 128;
        tile_bytes = p.tile_bytes, own = (p.tiles + RANKS - 1) / RANKS, units = p.units, experts = p.tiles * CUDA_TILE;
        uint32_t size = cuda_segment_units(units);
        segments = (units + size - 1) / size;
    }
    __host__ __device__ uint32_t x() const { return first + own * tile_bytes; }
    __host__ __device__ uint32_t sums() const { return x() + units * CUDA_UNIT * 2; }
    __host__ __device__ uint32_t logits() const { return sums() + own * segments * CUDA_TILE * 4; }
    __host__ __device__ uint32_t words() const { return logits() + experts * 4; }
    __host__ __device__ uint32_t bar() const { return words() + CHAIN_WORDS * 4; }
    __host__ __device__ uint32_t total() const { return bar() + 16; }
};

/* The row to f16; gives what takes its power of two back. */
static __device__ __forceinline__ float row_pack(const cuda_p_router &p, const float *row, __half *to, float *words)
{
    uint32_t most = 0, *shared = reinterpret_cast<uint32_t *>(words), cols = p.chain.cols;
    float inverse;
#pragma unroll 2
    for (uint32_t c = threadIdx.x; c < cols; c += THREADS)
        most = max(most, __float_as_uint(row[c]) & 0x7fffffffu); /* as integers NaN is the largest */
    most = __reduce_max_sync(0xffffffffu, most);
    if (threadIdx.x % 32 == 0)
        shared[threadIdx.x / 32] = most;
    __syncthreads();
    most = __reduce_max_sync(0xffffffffu, shared[threadIdx.x % 32]);
    float up = dev_row_factor(__uint_as_float(most), &inverse);
#pragma unroll 2
    for (uint32_t c = threadIdx.x; c < p.units * CUDA_UNIT; c += THREADS)
        to[c / 64 * 64 + pack_place(c)] = __float2half_rn(c < cols ? row[c] * up : 0.0f);
    return inverse;
}

/* Sums of the block's strips, a segment of a tile each. */
static __device__ __forceinline__ void strips(const cuda_p_router &p, const router_form &form, uint32_t own, const unsigned char *memory, float *sums)
{
    uint32_t lane = threadIdx.x % 32, size = cuda_segment_units(p.units);
#pragma unroll 1
    for (uint32_t i = threadIdx.x / 32; i < own * form.segments; i += WARPS) {
        uint32_t tile = i / form.segments, from = (i - tile * form.segments) * size, to = min(from + size, p.units);
        float acc[4] = {};
#pragma unroll 1
        for (uint32_t u = from; u < to; u++) {
            unit<16, CUDA_SCALE_NONE, 0> w;
            w.template load_at<read_shared>(memory + form.first + tile * p.tile_bytes + u * 2048, NULL, lane);
            const uint4 *x = reinterpret_cast<const uint4 *>(memory + form.x() + u * 128) + (lane & 3) * 2;
            unit_times_row(acc, w, x);
        }
        if (lane % 4 == 0)
            sums[i * 16 + lane / 4] = acc[0], sums[i * 16 + lane / 4 + 8] = acc[2];
    }
}

/* Logits of the block's tiles, to memory and to the first block. */
static __device__ __forceinline__ void send(const cuda_p_router &p, const router_form &form, uint32_t rank, uint32_t own, float scale, const float *sums, uint32_t logits,
                                            uint32_t bar)
{
    uint32_t i = threadIdx.x, tile = i / 16, o = (tile * RANKS + rank) * 16 + i % 16;
    const float *mine = sums + tile * form.segments * 16 + i % 16;
    if (i >= own * 16 || o >= p.route.experts)
        return;
    float v = mine[0];
#pragma unroll 1
    for (uint32_t s = 1; s < form.segments; s++)
        v = v + mine[16 * s];
    v = v * (__ldg(p.row_scale + o) * scale);
    v = p.bias ? v + __ldg(p.bias + o) : v;
    v = p.alpha != 1.0f ? v * p.alpha : v;
    p.y[o] = v;
    asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.b32 [%0], %1, [%2];" ::"r"(bar_far(logits + o * 4, 0)), "r"(__float_as_uint(v)),
                 "r"(bar_far(bar, 0))
                 : "memory");
}

/* N: a 32nd of the experts at most */
template <int N> static __global__ void __cluster_dims__(RANKS, 1, 1) __launch_bounds__(THREADS, 1) router(const __grid_constant__ cuda_p_router p)
{
    extern __shared__ __align__(128) unsigned char memory[];
    const router_form form(p);
    uint32_t rank = cluster_rank(), own = rank < p.tiles ? (p.tiles - rank + RANKS - 1) / RANKS : 0, bar = shared_at(memory + form.bar());
    float *rows = reinterpret_cast<float *>(memory), *words = reinterpret_cast<float *>(memory + form.words()), *sums = reinterpret_cast<float *>(memory + form.sums());
    const float *logits = reinterpret_cast<const float *>(memory + form.logits());
    chain_weights(p.chain, rows);
#pragma unroll 1
    for (uint32_t t = 0; t < own; t++)
#pragma unroll 1
        for (uint32_t at = 16 * threadIdx.x; at < p.tile_bytes; at += 16 * THREADS)
            copy16(shared_at(memory + form.first + t * p.tile_bytes + at), p.planes + (size_t)(t * RANKS + rank) * p.tile_bytes + at, true);
    if (threadIdx.x == 0) {
        bar_init(bar, 1);
        bar_init_end();
        if (rank == 0)
            bar_expect(bar, p.route.experts * 4);
    }
    dev_begin();
    chain_read(p.chain, 0, rows);
    __syncthreads();
    asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory"); /* this block has read */
    chain_steps(p.chain, rows, words);
    __syncthreads();
    float scale = row_pack(p, rows + p.from * chain_floats(p.chain), reinterpret_cast<__half *>(memory + form.x()), words);
    __syncthreads();
    strips(p, form, own, memory, sums);
    __syncthreads();
    asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
    send(p, form, rank, own, scale, sums, shared_at(logits), bar);
    if (rank && rank <= p.chain.rows)
        chain_write(p.chain, rank - 1, 0, rows);
    if (rank == 0 && p.chain.rows == RANKS)
        chain_write(p.chain, RANKS - 1, 0, rows);
    if (rank || threadIdx.x >= 32)
        return;
    bar_wait(bar, 0);
    route_row<N>(p.route, 0, [=](uint32_t e) { return logits[e]; }, threadIdx.x);
}

extern "C" uint32_t cuda_chain_smem(const struct cuda_p_chain *p)
{
    return chain_bytes(*p) + CHAIN_WORDS * 4;
}
extern "C" uint32_t cuda_router_smem(const struct cuda_p_router *p)
{
    return router_form(*p).total();
}

extern "C" const void *const cuda_kernel_chain = (const void *)chain;
extern "C" const void *cuda_kernel_router(uint32_t experts)
{
    return experts <= 128 ? (const void *)router<4> : experts <= 256 ? (const void *)router<8> : (const void *)router<16>;
}
