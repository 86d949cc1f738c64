/* backend_cuda/k_sample.cu - sample_rows on the device (docs/sampling.md has the meaning).
 *
 * Stage 1, by (row, block of LOGIT_BLOCK ids): processors, the block's maximum and its sum when log-probabilities are wanted.  Stage 2, by row:
 * log-probabilities, filters, the draw.  A set of ids is a list of keys in no order: ascending keys = falling logits, ties by rising id.
 * Nothing depends on the list's order: probabilities are integers (2^40 times), counts are integers, maxima are maxima; the place in the order
 * where something is reached is found digit by digit of the key. */
#include "backend_cuda/device_math.cuh"
#include "backend_cuda/kernels.h"

enum { BLOCK_THREADS = 256, ROW_THREADS = 1024 };

typedef unsigned long long u64;

static __device__ __forceinline__ bool wants(const cuda_sample_row &r)
{
    return (r.flags & CUDA_SAMPLE_LOGPROB) || r.score_id >= 0 || r.top > 0;
}
static __device__ __forceinline__ bool has_params(const cuda_sample_row &r)
{
    return r.flags & CUDA_SAMPLE_PARAMS;
}

/* ---- stage 1 ---- */

static __device__ __forceinline__ void penalise(const cuda_sample_row &p, const sample_seen &s, float *x)
{
    if (s.in_any && p.repetition != 1)
        *x = *x > 0 ? *x / p.repetition : *x * p.repetition;
    if (s.in_output) {
        *x = *x - p.presence;
        *x = *x - p.frequency * (float)s.in_output;
    }
}

static __device__ __forceinline__ bool patched(const sample_seen *patch, uint32_t n, uint32_t id)
{
    uint32_t from = 0;
    while (from < n) {
        uint32_t mid = (from + n) / 2;
        if (patch[mid].id == id)
            return true;
        if (patch[mid].id < id)
            from = mid + 1;
        else
            n = mid;
    }
    return false;
}

static __device__ void process(const cuda_sample_row &r, const uint8_t *data, float *x, uint32_t from, uint32_t to)
{
    const sample_bias *biases = (const sample_bias *)(data + r.biases);
    const sample_seen *seen = (const sample_seen *)(data + r.seen), *patch = (const sample_seen *)(data + r.patch);
    const uint32_t *banned = (const uint32_t *)(data + r.banned), *mask = (const uint32_t *)(data + r.mask);
    if (has_params(r)) {
        for (uint32_t i = threadIdx.x; i < r.bias_count; i += blockDim.x)
            if (biases[i].id >= from && biases[i].id < to)
                x[biases[i].id] += biases[i].bias;
        __syncthreads();
        for (uint32_t i = threadIdx.x; i < r.patch_count; i += blockDim.x)
            if (patch[i].id >= from && patch[i].id < to)
                penalise(r, patch[i], x + patch[i].id);
        for (uint32_t i = threadIdx.x; i < r.seen_count; i += blockDim.x)
            if (seen[i].id >= from && seen[i].id < to && !patched(patch, r.patch_count, seen[i].id))
                penalise(r, seen[i], x + seen[i].id);
        __syncthreads();
    }
    for (uint32_t i = threadIdx.x; i < r.banned_count; i += blockDim.x)
        if (banned[i] >= from && banned[i] < to)
            x[banned[i]] = -DEV_INF;
    for (uint32_t i = from + threadIdx.x; (r.flags & CUDA_SAMPLE_MASK) && i < to; i += blockDim.x)
        if (!(mask[i / 32] >> (i % 32) & 1))
            x[i] = -DEV_INF;
    __syncthreads();
}

/* unsigned order of floats, -0 = +0 */
static __device__ __forceinline__ uint32_t rising(float f)
{
    uint32_t u = __float_as_uint(__fadd_rn(f, 0.0f));
    return u >> 31 ? ~u : u | 0x80000000u;
}
static __device__ __forceinline__ float of_rising(uint32_t u)
{
    return __uint_as_float(u >> 31 ? u & 0x7fffffffu : ~u);
}
static __device__ __forceinline__ u64 key_of(float x, uint32_t id)
{
    return (u64)~rising(x) << 32 | id;
}

static __device__ u64 block_least(u64 v, u64 *shared)
{
    for (int o = 16; o > 0; o >>= 1) {
        u64 u = __shfl_xor_sync(0xffffffffu, v, o);
        v = u < v ? u : v;
    }
    __syncthreads();
    if ((threadIdx.x & 31) == 0)
        shared[threadIdx.x >> 5] = v;
    __syncthreads();
    for (uint32_t w = 0; w < blockDim.x / 32; w++)
        v = shared[w] < v ? shared[w] : v;
    return v;
}
static __device__ u64 block_total(u64 v, u64 *shared)
{
    for (int o = 16; o > 0; o >>= 1)
        v += __shfl_xor_sync(0xffffffffu, v, o);
    __syncthreads();
    if ((threadIdx.x & 31) == 0)
        shared[threadIdx.x >> 5] = v;
    __syncthreads();
    u64 sum = 0;
    for (uint32_t w = 0; w < blockDim.x / 32; w++)
        sum += shared[w];
    return sum;
}

static __global__ void __launch_bounds__(BLOCK_THREADS) sample_blocks(const __grid_constant__ cuda_p_sample p)
{
    dev_begin();
    __shared__ u64 keys[32];
    __shared__ float sums[32];
    const cuda_sample_row r = p.rows[blockIdx.y];
    uint32_t from = blockIdx.x * LOGIT_BLOCK, to = from + LOGIT_BLOCK < p.vocab ? from + LOGIT_BLOCK : p.vocab;
    float *x = p.logits + (size_t)blockIdx.y * p.stride;
    process(r, p.data, x, from, to);
    u64 best = ~0ull;
    for (uint32_t i = from + threadIdx.x; i < to; i += blockDim.x)
        if (x[i] > -DEV_INF) {
            u64 k = key_of(x[i], i);
            best = k < best ? k : best;
        }
    best = block_least(best, keys);
    float most = best == ~0ull ? -DEV_INF : of_rising(~(uint32_t)(best >> 32)), sum = 0;
    if (wants(r) && best != ~0ull) {
        for (uint32_t i = from + threadIdx.x; i < to; i += blockDim.x)
            sum = sum + (x[i] > -DEV_INF ? dev_exp2((x[i] - most) * DEV_LOG2E) : 0.0f);
        sum = dev_block_sum(sum, sums);
    }
    if (threadIdx.x == 0)
        p.blocks[(size_t)blockIdx.y * p.per_row + blockIdx.x] = {most, sum, (uint32_t)best, 0};
}

/* ---- stage 2 ---- */

/* rng_philox of base/rng.h: word `lane` */
static __device__ __forceinline__ uint32_t philox(const cuda_sample_row &r, uint32_t stream, uint32_t c3, uint32_t lane)
{
    uint32_t c0 = r.index, c1 = r.choice, c2 = stream, k0 = (uint32_t)r.seed, k1 = (uint32_t)(r.seed >> 32);
    for (int i = 0; i < 10; i++) {
        u64 a = (u64)0xD2511F53u * c0, b = (u64)0xCD9E8D57u * c2;
        uint32_t n0 = (uint32_t)(b >> 32) ^ c1 ^ k0, n2 = (uint32_t)(a >> 32) ^ c3 ^ k1;
        c0 = n0, c1 = (uint32_t)b, c2 = n2, c3 = (uint32_t)a;
        k0 += 0x9E3779B9u, k1 += 0xBB67AE85u;
    }
    return lane == 0 ? c0 : lane == 1 ? c1 : lane == 2 ? c2 : c3;
}
static __device__ __forceinline__ float open01(uint32_t bits)
{
    return ((float)(bits >> 9) + 0.5f) * 0x1p-23f;
}
static __device__ __forceinline__ float noise(const cuda_sample_row &r, uint32_t id)
{
    return -dev_log(-dev_log(open01(philox(r, SAMPLE_STREAM, id / 4, id % 4))));
}

struct survivors {
    const cuda_p_sample &p;
    const cuda_sample_row &r;
    const float *x;
    u64 *list;          /* [n]; ~0 = gone */
    uint32_t n;
    u64 *shared;        /* [32] */
    u64 *histogram;     /* [256] */
    uint32_t *count;

    __device__ float z_of(float v) const { return v / r.temperature; }
    __device__ float z_at(u64 key) const { return z_of(x[(uint32_t)key]); }

    __device__ void gather()
    {
        __syncthreads();
        if (threadIdx.x == 0)
            *count = 0;
        __syncthreads();
        for (uint32_t base = 0; base < p.vocab; base += blockDim.x) {
            uint32_t i = base + threadIdx.x;
            bool in = i < p.vocab && x[i] > -DEV_INF;
            uint32_t ballot = __ballot_sync(0xffffffffu, in), lane = threadIdx.x & 31, at = 0;
            if (lane == 0 && ballot)
                at = atomicAdd(count, __popc(ballot));
            at = __shfl_sync(0xffffffffu, at, 0) + __popc(ballot & ((1u << lane) - 1));
            if (in)
                list[at] = key_of(x[i], i);
        }
        __syncthreads();
        n = *count;
        __syncthreads();
    }
    __device__ u64 least() const
    {
        u64 k = ~0ull;
        for (uint32_t i = threadIdx.x; i < n; i += blockDim.x)
            k = list[i] < k ? list[i] : k;
        return block_least(k, shared);
    }
    __device__ float z_max() const { return z_at(least()); }
    __device__ static u64 weight(float z, float most)
    {
        double e = (double)dev_exp2((z - most) * DEV_LOG2E) * 1099511627776.0;
        return (u64)(__dsub_rn(__dadd_rn(e, 4503599627370496.0), 4503599627370496.0));
    }
    __device__ u64 mass(float most) const
    {
        u64 sum = 0;
        for (uint32_t i = threadIdx.x; i < n; i += blockDim.x)
            if (list[i] != ~0ull)
                sum += weight(z_at(list[i]), most);
        return block_total(sum, shared);
    }
    __device__ u64 alive() const
    {
        u64 sum = 0;
        for (uint32_t i = threadIdx.x; i < n; i += blockDim.x)
            sum += list[i] != ~0ull;
        return block_total(sum, shared);
    }
    /* The first key in ascending order at which the sum of what keys weigh reaches `limit` (as f64); ~0 - 1 when it is not reached. */
    __device__ u64 reach(double limit, bool by_mass, float most)
    {
        u64 prefix = 0, before = 0;
        for (int shift = 56; shift >= 0; shift -= 8) {
            __syncthreads();
            for (uint32_t i = threadIdx.x; i < 256; i += blockDim.x)
                histogram[i] = 0;
            __syncthreads();
            for (uint32_t i = threadIdx.x; i < n; i += blockDim.x) {
                u64 k = list[i];
                if (k == ~0ull || (shift < 56 && k >> (shift + 8) != prefix >> (shift + 8)))
                    continue;
                atomicAdd(&histogram[k >> shift & 255], by_mass ? weight(z_at(k), most) : 1ull);
            }
            __syncthreads();
            uint32_t digit = 0;
            u64 sum = before;
            while (digit < 256 && (histogram[digit] == 0 || (double)(sum + histogram[digit]) < limit)) /* a limit of 0 is reached by the first */
                sum += histogram[digit++];
            if (digit == 256)
                return ~0ull - 1;
            before = sum;
            prefix |= (u64)digit << shift;
        }
        return prefix;
    }
    __device__ void keep(u64 low, u64 high)
    {
        __syncthreads();
        for (uint32_t i = threadIdx.x; i < n; i += blockDim.x)
            if (list[i] < low || list[i] > high)
                list[i] = ~0ull;
        __syncthreads();
    }
    __device__ void keep_above(double limit)
    {
        __syncthreads();
        for (uint32_t i = threadIdx.x; i < n; i += blockDim.x)
            if (list[i] != ~0ull && !((double)z_at(list[i]) >= limit))
                list[i] = ~0ull;
        __syncthreads();
    }

    /* ---- filters ---- */

    __device__ void top_k(uint32_t k)
    {
        keep(0, reach((double)k, false, 0));
    }
    __device__ void top_p()
    {
        float most = z_max();
        keep(0, reach((double)r.top_p * (double)mass(most), true, most));
    }
    __device__ void min_p()
    {
        float p_min = r.min_p < 1 ? (r.min_p > 1.175494351e-38f ? r.min_p : 1.175494351e-38f) : 1;
        keep_above((double)(z_max() + dev_log(p_min)));
    }
    /* Mean and deviation from integers, so that they have no order: distances below the maximum, then their squares. */
    __device__ void top_n_sigma()
    {
        float most = z_max();
        double count_all = (double)alive();
        u64 sum = 0, squares = 0;
        for (uint32_t i = threadIdx.x; i < n; i += blockDim.x)
            if (list[i] != ~0ull) {
                double y = (double)most - (double)z_at(list[i]);
                sum += (u64)__double2ull_rn((y < 1048576.0 ? y : 1048576.0) * 16777216.0);
            }
        double mean = (double)block_total(sum, shared) / 16777216.0 / count_all;
        for (uint32_t i = threadIdx.x; i < n; i += blockDim.x)
            if (list[i] != ~0ull) {
                double y = (double)most - (double)z_at(list[i]) - mean;
                y = __dmul_rn(y, y);
                squares += (u64)__double2ull_rn((y < 16777216.0 ? y : 16777216.0) * 1048576.0);
            }
        double deviation = sqrt((double)block_total(squares, shared) / 1048576.0 / count_all);
        keep_above((double)most - (double)r.top_n_sigma * deviation);
    }
    __device__ void typical_p()
    {
        float most = z_max();
        u64 sum = 0, spread = 0;
        for (uint32_t i = threadIdx.x; i < n; i += blockDim.x)
            if (list[i] != ~0ull) {
                float z = z_at(list[i]), e = dev_exp2((z - most) * DEV_LOG2E);
                sum += weight(z, most);
                if (e > 0)
                    spread += (u64)(__dsub_rn(__dadd_rn((double)e * 1099511627776.0 * (double)(most - z), 4503599627370496.0), 4503599627370496.0));
            }
        sum = block_total(sum, shared);
        spread = block_total(spread, shared);
        double centre = (double)spread / (double)sum;
        for (uint32_t i = threadIdx.x; i < n; i += blockDim.x)
            if (list[i] != ~0ull) {
                float distance = (float)fabs((double)(most - z_at(list[i])) - centre);
                list[i] = (u64)rising(distance) << 32 | (uint32_t)list[i];
            }
        keep(0, reach((double)r.typical_p * (double)sum, true, most));
        for (uint32_t i = threadIdx.x; i < n; i += blockDim.x)
            if (list[i] != ~0ull)
                list[i] = key_of(x[(uint32_t)list[i]], (uint32_t)list[i]);
        __syncthreads();
    }
    __device__ void xtc()
    {
        if (open01(philox(r, SAMPLE_STREAM_XTC, 0, 0)) >= r.xtc_probability)
            return;
        float most = z_max();
        double limit = (double)r.xtc_threshold * (double)mass(most);
        u64 above = 0;
        for (uint32_t i = threadIdx.x; i < n; i += blockDim.x)
            above += list[i] != ~0ull && (double)weight(z_at(list[i]), most) >= limit;
        above = block_total(above, shared);
        if (above >= 2)
            keep(reach((double)above, false, 0), ~0ull - 1);
    }
    __device__ bool active(uint8_t f) const
    {
        switch (f) {
        case FILTER_TOP_N_SIGMA:
            return r.top_n_sigma > 0;
        case FILTER_TOP_K:
            return r.top_k > 0;
        case FILTER_TYPICAL_P:
            return r.typical_p < 1;
        case FILTER_TOP_P:
            return r.top_p < 1;
        case FILTER_MIN_P:
            return r.min_p > 0;
        default:
            return r.xtc_probability > 0;
        }
    }
    __device__ bool any() const
    {
        bool found = false;
        for (int i = 0; i < FILTER_COUNT; i++)
            found |= active(r.order[i]);
        return found;
    }
    __device__ void apply(uint8_t f)
    {
        if (f == FILTER_TOP_N_SIGMA)
            top_n_sigma();
        else if (f == FILTER_TOP_K)
            top_k(r.top_k);
        else if (f == FILTER_TYPICAL_P)
            typical_p();
        else if (f == FILTER_TOP_P)
            top_p();
        else if (f == FILTER_MIN_P)
            min_p();
        else
            xtc();
    }
    __device__ uint32_t draw()
    {
        bool filtered = any();
        if (filtered) {
            gather();
            for (int i = 0; i < FILTER_COUNT; i++)
                if (active(r.order[i]))
                    apply(r.order[i]);
        }
        u64 best = ~0ull;
        for (uint32_t i = threadIdx.x; i < (filtered ? n : p.vocab); i += blockDim.x) {
            u64 k = filtered ? list[i] : (u64)i;
            uint32_t id = (uint32_t)k;
            if (k == ~0ull || !(x[id] > -DEV_INF))
                continue;
            k = key_of(z_of(x[id]) + noise(r, id), id);
            best = k < best ? k : best;
        }
        return (uint32_t)block_least(best, shared);
    }
    /* The best ids in order, by rank among themselves. */
    __device__ uint32_t top(u64 *picked)
    {
        gather();
        uint32_t k = r.top < n ? r.top : n;
        u64 last = k ? reach((double)k, false, 0) : 0;
        __syncthreads();
        if (threadIdx.x == 0)
            *count = 0;
        __syncthreads();
        for (uint32_t i = threadIdx.x; k && i < n; i += blockDim.x)
            if (list[i] <= last)
                picked[atomicAdd(count, 1)] = list[i];
        __syncthreads();
        return k;
    }
};

static __global__ void __launch_bounds__(ROW_THREADS) sample_rows(const __grid_constant__ cuda_p_sample p)
{
    dev_begin();
    __shared__ u64 shared[32], histogram[256], picked[SAMPLE_TOP_MAX];
    __shared__ uint32_t count;
    const cuda_sample_row r = p.rows[blockIdx.x];
    const cuda_logit_block *b = p.blocks + (size_t)blockIdx.x * p.per_row;
    cuda_sample_out *out = p.out + blockIdx.x;
    survivors s = {p, r, p.logits + (size_t)blockIdx.x * p.stride, (u64 *)p.keys + (size_t)blockIdx.x * p.vocab, 0, shared, histogram, &count};
    float max = -DEV_INF, sum = 0;
    uint32_t arg = 0xffffffffu, id = 0xffffffffu;
    for (uint32_t i = 0; i < p.per_row; i++) {
        if (!(b[i].max > -DEV_INF))
            continue;
        float most = b[i].max > max ? b[i].max : max;
        sum = __fmaf_rn(sum, dev_exp2((max - most) * DEV_LOG2E), b[i].sum * dev_exp2((b[i].max - most) * DEV_LOG2E));
        arg = b[i].max > max ? b[i].arg : arg;
        max = most;
    }
    float log_sum = sum > 0 ? dev_log(sum) : 0;
    if (has_params(r) && arg != 0xffffffffu)
        id = r.temperature < SAMPLE_TEMPERATURE_MIN ? arg : s.draw();
    uint32_t top = r.top && arg != 0xffffffffu ? s.top(picked) : 0;
#define LOGPROB(v) ((v) > -DEV_INF ? ((v) - max) - log_sum : -DEV_INF)
    for (uint32_t i = threadIdx.x; i < top; i += blockDim.x) {
        uint32_t rank = 0;
        for (uint32_t j = 0; j < top; j++)
            rank += picked[j] < picked[i];
        out->top_ids[rank] = (uint32_t)picked[i];
        out->top_logprobs[rank] = LOGPROB(s.x[(uint32_t)picked[i]]);
    }
    if (threadIdx.x)
        return;
    out->id = p.ids[blockIdx.x] = id;
    out->top_count = top;
    if (r.score_id >= 0)
        out->score_logprob = r.score_id < p.vocab ? LOGPROB(s.x[r.score_id]) : -DEV_INF;
    if ((r.flags & CUDA_SAMPLE_LOGPROB) && id != 0xffffffffu)
        out->logprob = LOGPROB(s.x[id]);
}

extern "C" const void *const cuda_kernels_sample[CUDA_K_SAMPLE_COUNT] = {(const void *)sample_blocks, (const void *)sample_rows};
