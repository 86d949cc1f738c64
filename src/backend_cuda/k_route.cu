/* backend_cuda/k_route.cu - the router of experts: a block of threads a row.
 *
 * Scores, then choices, then the slots one after the other: each the free expert with the largest choice, ties to the lowest index. */
#include "backend_cuda/device_math.cuh"
#include "backend_cuda/kernels.h"
#include "backend_cuda/route_row.cuh"

enum { ROUTE_THREADS = 1024 };

struct chosen {
    float value;
    uint32_t id;
};

/* shared memory of a row */
struct routing {
    const cuda_p_route &p;
    float *score, *choice;     /* [experts] */
    uint8_t *barred;           /* [experts]: taken, or of a group that is out */
    chosen *places;            /* [32] */
    float *shared;             /* [32] */
};

/* The better of two; id `none` is no expert. */
static __device__ __forceinline__ chosen better(chosen a, chosen b, uint32_t none)
{
    bool take = b.id != none && (a.id == none || b.value > a.value || (b.value == a.value && b.id < a.id));
    return take ? b : a;
}

/* The free one with the largest choice of [from, to); id `to` when none is. */
static __device__ chosen best_of(const routing &r, uint32_t from, uint32_t to)
{
    chosen best = {-DEV_INF, to};
    for (uint32_t e = from + threadIdx.x; e < to; e += blockDim.x)
        if (!r.barred[e] && (best.id == to || r.choice[e] > best.value))
            best = {r.choice[e], e};
    for (int o = 16; o > 0; o >>= 1)
        best = better(best, {__shfl_xor_sync(0xffffffffu, best.value, o), __shfl_xor_sync(0xffffffffu, best.id, o)}, to);
    __syncthreads();
    if ((threadIdx.x & 31) == 0)
        r.places[threadIdx.x >> 5] = best;
    __syncthreads();
    for (uint32_t w = 0; w < blockDim.x / 32; w++)
        best = better(best, r.places[w], to);
    __syncthreads();
    return best;
}

static __device__ void make_scores(const routing &r, const float *x)
{
    const cuda_p_route &p = r.p;
    float most = -DEV_INF, sum = 0;
    for (uint32_t e = threadIdx.x; e < p.experts; e += blockDim.x)
        most = x[e] > most || x[e] != x[e] ? x[e] : most;
    most = dev_block_max(most, r.shared);
    for (uint32_t e = threadIdx.x; e < p.experts; e += blockDim.x) {
        r.score[e] = p.score == ROUTE_SOFTMAX ? dev_exp(x[e] - most) : p.score == ROUTE_SIGMOID ? 1.0f / (1.0f + dev_exp(-x[e])) : x[e];
        sum = sum + r.score[e];
    }
    sum = dev_block_sum(sum, r.shared);
    for (uint32_t e = threadIdx.x; e < p.experts; e += blockDim.x) {
        if (p.score == ROUTE_SOFTMAX)
            r.score[e] = r.score[e] / sum;
        r.choice[e] = p.bias ? r.score[e] + p.bias[e] : p.score == ROUTE_SIGMOID ? r.score[e] : x[e];
        r.barred[e] = 0;
    }
    __syncthreads();
}

/* Only the group_top groups stay whose group_best largest choices sum highest. */
static __device__ void bar_groups(const routing &r, float *sums, uint32_t *kept)
{
    const cuda_p_route &p = r.p;
    uint32_t each = p.experts / p.groups;
    for (uint32_t g = 0; g < p.groups; g++) {
        float total = 0;
        for (uint32_t i = 0; i < p.group_best; i++) {
            chosen c = best_of(r, g * each, (g + 1) * each);
            total = total + c.value;
            if (threadIdx.x == 0 && c.id < (g + 1) * each)
                r.barred[c.id] = 1;
            __syncthreads();
        }
        if (threadIdx.x == 0)
            sums[g] = total, kept[g] = 0;
    }
    __syncthreads();
    for (uint32_t i = 0; threadIdx.x == 0 && i < p.group_top; i++) {
        uint32_t best = p.groups;
        for (uint32_t g = 0; g < p.groups; g++)
            if (!kept[g] && (best == p.groups || sums[g] > sums[best]))
                best = g;
        if (best < p.groups)
            kept[best] = 1;
    }
    __syncthreads();
    for (uint32_t e = threadIdx.x; e < p.experts; e += blockDim.x)
        r.barred[e] = !kept[e / each];
    __syncthreads();
}

static __device__ void choose(const routing &r, uint32_t *ids)
{
    for (uint32_t s = 0; s < r.p.top; s++) {
        chosen c = best_of(r, 0, r.p.experts);
        if (threadIdx.x == 0) {
            if (c.id >= r.p.experts)
                *r.p.failed = 1, c.id = 0;
            ids[s] = c.id;
            r.barred[c.id] = 1;
        }
        __syncthreads();
    }
}

/* By one thread: the chosen ones' weights. */
static __device__ void weigh(const cuda_p_route &p, const float *score, const uint32_t *ids, float *weights)
{
    float most = -DEV_INF, total = 0;
    for (uint32_t s = 0; s < p.top; s++) {
        if (ids[s] >= p.experts) {
            *p.failed = 1;
            return;
        }
        weights[s] = score[ids[s]];
        most = weights[s] > most ? weights[s] : most;
    }
    for (uint32_t s = 0; s < p.top && p.score == ROUTE_SOFTMAX_TOP; s++)
        weights[s] = dev_exp(weights[s] - most), total = total + weights[s];
    for (uint32_t s = 0; s < p.top && p.score == ROUTE_SOFTMAX_TOP; s++)
        weights[s] = weights[s] / total;
    total = 0;
    for (uint32_t s = 0; s < p.top; s++)
        total = total + weights[s];
    for (uint32_t s = 0; s < p.top; s++) {
        float w = p.normalise ? weights[s] / (total + 1e-20f) : weights[s];
        w = w * p.scale;
        weights[s] = p.expert_scale ? w * p.expert_scale[ids[s]] : w;
    }
}

static __global__ void __launch_bounds__(ROUTE_THREADS) route(const __grid_constant__ cuda_p_route p)
{
    dev_begin();
    extern __shared__ float memory[]; /* [experts] scores, then choices, then barred */
    __shared__ float shared[32], sums[ROUTE_GROUPS_MAX];
    __shared__ chosen places[32];
    __shared__ uint32_t kept[ROUTE_GROUPS_MAX];
    routing r = {p, memory, memory + p.experts, (uint8_t *)(memory + 2 * p.experts), places, shared};
    uint32_t *ids = p.ids + (size_t)blockIdx.x * p.top;
    make_scores(r, p.logits + (size_t)blockIdx.x * p.stride);
    if (p.groups > 1 && !p.replay)
        bar_groups(r, sums, kept);
    if (!p.replay)
        choose(r, ids);
    if (threadIdx.x == 0)
        weigh(p, r.score, ids, p.weights + (size_t)blockIdx.x * p.top);
}

/* ---- a warp a row ---- */

static __global__ void __launch_bounds__(32 * CUDA_ROUTE_WARPS) route_warp(const __grid_constant__ cuda_p_route p)
{
    dev_begin();
    uint32_t row = blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32, lane = threadIdx.x % 32;
    if (row >= p.rows)
        return;
    const float *logits = p.logits + (size_t)row * p.stride;
    route_any(p, row, [=](uint32_t e) { return __ldcg(logits + e); }, lane);
}

extern "C" const void *const cuda_kernel_route = (const void *)route;
extern "C" const void *const cuda_kernel_route_warp = (const void *)route_warp;
