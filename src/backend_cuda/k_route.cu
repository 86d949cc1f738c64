/* backend_cuda/k_route.cu - the router of experts: a block of threads a row.
 *
 * Scores, then choices, then the slots one after the other: each the free expert with the largest choice, ties to the lowest index. */
#include "backend_cuda/device_math.cuh"
#include "backend_cuda/kernels.h"

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

/* ---- a warp a row: up to 512 experts, one group.  Lane l has experts l, l + 32, ..; the same sums ---- */

template <int N> struct route_lane {
    float x[N], score[N];
    uint32_t key[N]; /* of the choice: larger first; 0: taken */

    __device__ __forceinline__ void scores(const cuda_p_route &p, const float *logits, uint32_t lane)
    {
        float most = -DEV_INF, sum = 0;
#pragma unroll
        for (int i = 0; i < N; i++) {
            bool there = 32 * i + lane < p.experts;
            x[i] = there ? __ldcg(logits + 32 * i + lane) : -DEV_INF;
            most = x[i] > most || (there && x[i] != x[i]) ? x[i] : most;
        }
#pragma unroll
        for (int o = 16; o > 0; o >>= 1) {
            float u = __shfl_xor_sync(0xffffffffu, most, o);
            most = u > most || u != u ? u : most;
        }
#pragma unroll
        for (int i = 0; i < N; i++) {
            bool there = 32 * i + lane < p.experts;
            score[i] = p.score == ROUTE_SOFTMAX ? dev_exp(x[i] - most) : p.score == ROUTE_SIGMOID ? 1.0f / (1.0f + dev_exp(-x[i])) : x[i];
            float v = there ? score[i] : 0.0f;
#pragma unroll
            for (int o = 16; o > 0; o >>= 1)
                v = v + __shfl_xor_sync(0xffffffffu, v, o);
            sum = sum + v;
        }
#pragma unroll
        for (int i = 0; i < N; i++) {
            uint32_t e = 32 * i + lane;
            if (p.score == ROUTE_SOFTMAX)
                score[i] = score[i] / sum;
            float choice = p.bias && e < p.experts ? score[i] + p.bias[e] : p.score == ROUTE_SIGMOID ? score[i] : x[i];
            uint32_t bits = __float_as_uint(choice + 0.0f); /* of zeros one sign */
            key[i] = bits & 0x80000000u ? ~bits : bits | 0x80000000u;
            key[i] = e >= p.experts ? 0 : key[i] ? key[i] : 1;
        }
    }
    /* The free one with the largest choice, ties to the lowest; it is taken. */
    __device__ __forceinline__ uint32_t best(uint32_t lane)
    {
        uint32_t most = key[0], id = 0xffffffffu;
#pragma unroll
        for (int i = 1; i < N; i++)
            most = max(most, key[i]);
        most = __reduce_max_sync(0xffffffffu, most);
#pragma unroll
        for (int i = N - 1; i >= 0; i--)
            id = key[i] == most ? 32 * i + lane : id;
        id = __reduce_min_sync(0xffffffffu, id);
#pragma unroll
        for (int i = 0; i < N; i++)
            key[i] = id == 32 * i + lane ? 0 : key[i];
        return id;
    }
    __device__ __forceinline__ float score_of(uint32_t id) const
    {
        float v = score[0];
#pragma unroll
        for (int i = 1; i < N; i++)
            v = id / 32 == (uint32_t)i ? score[i] : v;
        return __shfl_sync(0xffffffffu, v, id % 32);
    }
};

/* A value of each lane below n, added up in the lanes' order. */
static __device__ __forceinline__ float lanes_sum(float v, uint32_t n)
{
    float total = 0;
    for (uint32_t s = 0; s < n; s++)
        total = total + __shfl_sync(0xffffffffu, v, s);
    return total;
}

template <int N> static __device__ __forceinline__ void route_row(const cuda_p_route &p, uint32_t row, uint32_t lane)
{
    route_lane<N> r;
    uint32_t *ids = p.ids + (size_t)row * p.top, mine = 0;
    float w = 0, most = -DEV_INF;
    bool there = lane < p.top;
    r.scores(p, p.logits + (size_t)row * p.stride, lane);
    if (p.replay && there)
        mine = __ldcg(ids + lane);
    if (__any_sync(0xffffffffu, mine >= p.experts)) {
        *p.failed = 1;
        return;
    }
    for (uint32_t s = 0; s < p.top; s++) {
        uint32_t id = p.replay ? __shfl_sync(0xffffffffu, mine, s) : r.best(lane);
        float score = r.score_of(id);
        most = score > most ? score : most;
        mine = lane == s ? id : mine, w = lane == s ? score : w;
    }
    if (p.score == ROUTE_SOFTMAX_TOP) {
        w = dev_exp(w - most);
        w = w / lanes_sum(w, p.top);
    }
    float total = lanes_sum(w, p.top);
    w = p.normalise ? w / (total + 1e-20f) : w;
    w = w * p.scale;
    if (!there)
        return;
    p.weights[(size_t)row * p.top + lane] = p.expert_scale ? w * p.expert_scale[mine] : w;
    if (!p.replay)
        ids[lane] = mine;
}

static __global__ void __launch_bounds__(32 * CUDA_ROUTE_WARPS) route_warp(const __grid_constant__ cuda_p_route p)
{
    dev_begin();
    uint32_t row = blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32, lane = threadIdx.x % 32;
    if (row >= p.rows)
        return;
    if (p.experts <= 128)
        route_row<4>(p, row, lane);
    else if (p.experts <= 256)
        route_row<8>(p, row, lane);
    else
        route_row<16>(p, row, lane);
}

extern "C" const void *const cuda_kernel_route = (const void *)route;
extern "C" const void *const cuda_kernel_route_warp = (const void *)route_warp;
