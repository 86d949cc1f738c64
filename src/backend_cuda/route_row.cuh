/* backend_cuda/route_row.cuh - the choice of a row's experts by one warp: up to CUDA_ROUTE_WARP_EXPERTS, one group; the sums of k_route.cu.  Lane l has experts
 * l, l + 32, .. */
#ifndef RH_CUDA_ROUTE_ROW_CUH
#define RH_CUDA_ROUTE_ROW_CUH

#include "backend_cuda/device_math.cuh"
#include "backend_cuda/kernels.h"

template <int N> struct route_lane {
    float x[N], score[N];
    uint32_t key[N]; /* of the choice: larger first; 0: taken */

    /* logit(e): of expert e */
    template <class LOGIT> __device__ __forceinline__ void scores(const cuda_p_route &p, LOGIT logit, uint32_t lane)
    {
        float most = -DEV_INF, sum = 0;
#pragma unroll
        for (int i = 0; i < N; i++) {
            bool there = 32 * i + lane < p.experts;
            x[i] = there ? logit(32 * i + lane) : -DEV_INF;
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
    __device__ __forceinline__ float score_of(uint32_t id, uint32_t lane) const
    {
        float v = 0;
#pragma unroll
        for (int i = 0; i < N; i++)
            v = 32 * i + lane == id ? score[i] : v;
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

template <int N, class LOGIT> static __device__ __forceinline__ void route_row(const cuda_p_route &p, uint32_t row, LOGIT logit, uint32_t lane)
{
    route_lane<N> r;
    uint32_t *ids = p.ids + (size_t)row * p.top, mine = 0;
    float w = 0, most = -DEV_INF;
    bool there = lane < p.top;
    r.scores(p, logit, lane);
    if (p.replay && there)
        mine = __ldcg(ids + lane);
    if (__any_sync(0xffffffffu, mine >= p.experts)) {
        *p.failed = 1;
        return;
    }
    for (uint32_t s = 0; s < p.top; s++) {
        uint32_t id = p.replay ? __shfl_sync(0xffffffffu, mine, s) : r.best(lane);
        float score = r.score_of(id, lane);
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

/* By the number of experts. */
template <class LOGIT> static __device__ __forceinline__ void route_any(const cuda_p_route &p, uint32_t row, LOGIT logit, uint32_t lane)
{
    if (p.experts <= 128)
        route_row<4>(p, row, logit, lane);
    else if (p.experts <= 256)
        route_row<8>(p, row, logit, lane);
    else
        route_row<16>(p, row, logit, lane);
}

#endif
