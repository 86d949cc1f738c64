/* backend_cuda/k_state.cu - recurrent layers: the short convolution, and gated delta nets and Mamba 2 in their anchored form.
 *
 * The sums are those of the CPU backend (docs/arithmetic.md, "Recurrent layers"), unit length and its tree apart.  A row's values come from its
 * block alone; passes are kernels, so what spans of one sequence read of each other is there. */
#include "backend_cuda/device_math.cuh"
#include "backend_cuda/kernels.h"

enum { CONV_THREADS = 128, DELTA_THREADS = 128 };

/* ---- blocks ---- */

static __device__ __forceinline__ float *part_of(const cuda_p_state &p, const kv_span &s, uint32_t head, uint32_t block)
{
    uint32_t id = p.tables[s.table_first + block];
    return id ? (float *)(void *)(p.parts[head].pages[id] + p.parts[head].offset) : NULL;
}

/* a channel of a head: column of x, place in the head's part */
struct channel {
    uint32_t column, head, at;
};

static __device__ __forceinline__ channel channel_of(const cuda_p_state &p, uint32_t column)
{
    const state_shape &s = p.shape;
    if (s.values == 0)
        return {column, 0, column};
    uint32_t keys = s.heads * s.d_k;
    if (column - p.q_at < keys) /* below the first column the difference is large */
        return {column, (column - p.q_at) / s.d_k, (column - p.q_at) % s.d_k};
    if (column - p.k_at < keys)
        return {column, (column - p.k_at) / s.d_k, s.d_k + (column - p.k_at) % s.d_k};
    uint32_t value = (column - p.v_at) / s.d_v, c = (column - p.v_at) % s.d_v;
    uint32_t head = p.tiled ? value % s.heads : value / s.values, index = p.tiled ? value / s.heads : value % s.values;
    return {column, head, 2 * s.d_k + index * s.d_v + c};
}

/* Input r of the span (which may lie before it) of one channel, from the block; r < 0. */
static __device__ __forceinline__ float input_before(const cuda_p_state &p, const kv_span &s, const channel &c, int r)
{
    uint32_t block = s.pos_first / p.shape.anchor;
    int t = (int)(s.pos_first % p.shape.anchor) + r;
    if (block == 0 && t < 0)
        return 0;
    const float *part = part_of(p, s, c.head, block);
    return t >= 0 ? part[p.at.inputs + (size_t)t * p.shape.channels + c.at]
                  : part[p.at.tail + (size_t)(t + (int)p.shape.taps - 1) * p.shape.channels + c.at];
}

/* Grid (channels, spans): products (short_conv), inputs into the blocks that are kept.  A span that may not start where it does fails. */
static __global__ void __launch_bounds__(CONV_THREADS) inputs_keep(const __grid_constant__ cuda_p_state p)
{
    dev_begin();
    uint32_t column = blockIdx.x * blockDim.x + threadIdx.x, all = p.shape.heads * p.shape.channels;
    if (column >= all)
        return;
    for (uint32_t i = blockIdx.y; i < p.span_count; i += gridDim.y) {
        kv_span s = p.spans[i];
        if (s.pos_first != 0 && p.tables[s.table_first + s.pos_first / p.shape.anchor] == 0) {
            *p.failed = 1;
            continue;
        }
        channel c = channel_of(p, column);
        for (uint32_t r = 0; r < s.row_count; r++) {
            float *x = p.x + (size_t)(s.row_first + r) * p.x_stride + column;
            if (p.shape.values == 0)
                *x = *x * x[2 * all];
            uint32_t pos = s.pos_first + r;
            float *part = part_of(p, s, c.head, pos / p.shape.anchor);
            if (part)
                part[p.at.inputs + (size_t)(pos % p.shape.anchor) * p.shape.channels + c.at] = *x;
        }
    }
}

/* The last inputs of a block into the tail of the next: every input is in place. */
static __global__ void __launch_bounds__(CONV_THREADS) tails_keep(const __grid_constant__ cuda_p_state p)
{
    dev_begin();
    uint32_t column = blockIdx.x * blockDim.x + threadIdx.x, all = p.shape.heads * p.shape.channels, anchor = p.shape.anchor;
    if (column >= all)
        return;
    channel c = channel_of(p, column);
    for (uint32_t i = blockIdx.y; i < p.span_count; i += gridDim.y) {
        kv_span s = p.spans[i];
        if (s.pos_first != 0 && p.tables[s.table_first + s.pos_first / anchor] == 0)
            continue;
        for (uint32_t end = (s.pos_first / anchor + 1) * anchor; end <= s.pos_first + s.row_count; end += anchor) {
            float *next = part_of(p, s, c.head, end / anchor);
            for (uint32_t k = 0; next && k + 1 < p.shape.taps; k++) {
                int r = (int)(end - s.pos_first) - (int)p.shape.taps + 1 + (int)k;
                next[p.at.tail + (size_t)k * p.shape.channels + c.at] =
                    r >= 0 ? p.x[(size_t)(s.row_first + (uint32_t)r) * p.x_stride + column] : input_before(p, s, c, r);
            }
        }
    }
}

static __device__ __forceinline__ float convolve(const cuda_p_state &p, const kv_span &s, const channel &c, uint32_t r, uint32_t step)
{
    float sum = 0;
    for (uint32_t i = 0; i < p.shape.taps; i++) {
        int at = (int)r + 1 + (int)i - (int)p.shape.taps;
        float z = at >= 0 ? p.x[(size_t)(s.row_first + (uint32_t)at) * p.x_stride + c.column] : input_before(p, s, c, at);
        sum = __fmaf_rn(p.w[(size_t)i * step + c.column], z, sum);
    }
    return sum;
}

static __global__ void __launch_bounds__(CONV_THREADS) short_conv(const __grid_constant__ cuda_p_state p)
{
    dev_begin();
    uint32_t column = blockIdx.x * blockDim.x + threadIdx.x, n = p.shape.channels;
    if (column >= n)
        return;
    channel c = channel_of(p, column);
    for (uint32_t i = blockIdx.y; i < p.span_count; i += gridDim.y) {
        kv_span s = p.spans[i];
        if (s.pos_first != 0 && p.tables[s.table_first + s.pos_first / p.shape.anchor] == 0)
            continue;
        for (uint32_t r = blockIdx.z; r < s.row_count; r += gridDim.z) {
            uint32_t row = s.row_first + r;
            float sum = convolve(p, s, c, r, n);
            if (p.bias)
                sum = sum + p.bias[column];
            p.y[(size_t)row * p.y_stride + column] = sum * p.x[(size_t)row * p.x_stride + n + column];
        }
    }
}

/* ---- delta net and Mamba 2 (whose C, B, x, dt, times are q, k, v, a, b), pass 1: grid (q, k and v heads, spans), a thread a channel ---- */

static __device__ __forceinline__ float softplus(float x)
{
    float e = dev_exp(x < 0 ? x : -x), u = 1.0f + e;
    float log1 = u == 1.0f ? e : dev_log(u) * (e / (u - 1.0f));
    return x > 0 ? x + log1 : log1;
}

/* The row's log gate, and its beta or time; the gate into its block. */
static __device__ void gates_make(const cuda_p_state &p, uint32_t row, uint32_t value, float *part, uint32_t t)
{
    float *a = p.a + (size_t)row * p.a_stride + value, *b = p.b + (size_t)row * p.b_stride + value, time = softplus(*a + p.dt_bias[value]);
    if (p.skip)
        *b = time = time > p.dt_least ? time : p.dt_least;
    else
        *b = 1.0f / (1.0f + dev_exp(-*b));
    *a = p.rate[value] * time;
    if (part)
        part[p.at.gates + (size_t)(p.tiled ? value / p.shape.heads : value % p.shape.values) * p.shape.anchor + t] = *a;
}

static __global__ void __launch_bounds__(256) delta_conv(const __grid_constant__ cuda_p_state p)
{
    dev_begin();
    __shared__ float shared[32];
    const state_shape &sh = p.shape;
    uint32_t slice = blockIdx.x, heads = sh.heads, e = threadIdx.x;
    bool is_value = slice >= 2 * heads, is_key = !is_value && slice >= heads;
    uint32_t n = is_value ? sh.d_v : sh.d_k, value = slice - 2 * heads, all = heads * sh.channels;
    uint32_t column = (is_value ? p.v_at + value * sh.d_v : (is_key ? p.k_at : p.q_at) + slice % heads * sh.d_k) + e;
    channel c = {0, 0, 0};
    if (e < n)
        c = channel_of(p, column);
    float query_scale = 1.0f / sqrtf((float)sh.d_k);
    for (uint32_t i = blockIdx.y; i < p.span_count; i += gridDim.y) {
        kv_span s = p.spans[i];
        if (s.pos_first != 0 && p.tables[s.table_first + s.pos_first / sh.anchor] == 0)
            continue;
        for (uint32_t r = s.row_count; r-- > 0;) { /* from the end: the inputs of a row are those before it */
            uint32_t pos = s.pos_first + r, row = s.row_first + r;
            float z = e < n ? convolve(p, s, c, r, all) : 0;
            if (p.bias && e < n)
                z = z + p.bias[column];
            z = z / (1.0f + dev_exp(-z));
            if (!is_value && !p.skip) {
                float by = 1.0f / sqrtf(dev_block_sum(__fmul_rn(z, z), shared) + p.eps);
                z = (z * by) * (is_key ? 1.0f : query_scale);
            }
            if (e < n)
                p.x[(size_t)row * p.x_stride + column] = z;
            float *part = e < n ? part_of(p, s, c.head, pos / sh.anchor) : NULL;
            if (is_key && part)
                part[p.at.keys + (size_t)e * sh.anchor + pos % sh.anchor] = z;
            if (is_value && e == 0)
                gates_make(p, row, value, part, pos % sh.anchor);
        }
    }
}

/* ---- pass 2: grid (value heads, spans); a thread has a column of d_v ---- */

struct delta {
    const cuda_p_state &p;
    float *decay, *kk, *qk, *q, *k; /* shared: [C + 1], [C], [C], [d_k], [d_k] */
    float *work_state, *work_keys, *work_deltas; /* of blocks that are not kept */
    uint32_t value, head, index;

    __device__ const float *row_x(uint32_t row, uint32_t first) const /* first: q_at, k_at */
    {
        return p.x + (size_t)row * p.x_stride + first + (size_t)head * p.shape.d_k;
    }

    /* Rows of one block, and the fold behind its last. */
    __device__ void block(const kv_span &s, uint32_t r0, uint32_t t0, uint32_t t1, uint32_t number, float *gates)
    {
        const state_shape &sh = p.shape;
        uint32_t C = sh.anchor, c = threadIdx.x;
        float *part = part_of(p, s, head, number);
        const float *state = number == 0 ? NULL : part ? part + p.at.state + (size_t)index * sh.d_k * sh.d_v : work_state;
        float *keys = part ? part + p.at.keys : work_keys;
        float *deltas = part ? part + p.at.deltas + (size_t)index * C * sh.d_v : work_deltas;
        __syncthreads();
        for (uint32_t t = threadIdx.x; t < t1; t += blockDim.x)
            gates[t] = t < t0 ? part[p.at.gates + (size_t)index * C + t] : p.a[(size_t)(s.row_first + r0 + t - t0) * p.a_stride + value];
        for (uint32_t t = t0; !part && t < t1; t++)
            for (uint32_t e = threadIdx.x; e < sh.d_k; e += blockDim.x)
                keys[(size_t)e * C + t] = row_x(s.row_first + r0 + t - t0, p.k_at)[e];
        __syncthreads();
        for (uint32_t t = t0; t < t1; t++)
            row(s.row_first + r0 + t - t0, t, C, state, keys, deltas, gates);
        if (t1 < C)
            return;
        float *next = part_of(p, s, head, number + 1), gate = decay[C - 1];
        float *to = next ? next + p.at.state + (size_t)index * sh.d_k * sh.d_v : work_state;
        __syncthreads();
        if (c < sh.d_v)
            for (uint32_t e = 0; e < sh.d_k; e++) {
                float sum = state ? state[(size_t)e * sh.d_v + c] * gate : 0.0f;
                for (uint32_t j = 0; j < C; j++) {
                    float key = keys[(size_t)e * C + j];
                    sum = __fmaf_rn(j + 1 == C ? key : decay[j] * key, deltas[(size_t)j * sh.d_v + c], sum);
                }
                to[(size_t)e * sh.d_v + c] = sum;
            }
        __syncthreads();
    }

    __device__ void row(uint32_t at, uint32_t t, uint32_t C, const float *state, const float *keys, float *deltas, const float *gates)
    {
        const state_shape &sh = p.shape;
        uint32_t c = threadIdx.x;
        for (uint32_t e = threadIdx.x; e < sh.d_k; e += blockDim.x)
            q[e] = row_x(at, p.q_at)[e], k[e] = row_x(at, p.k_at)[e];
        __syncthreads();
        for (uint32_t j = threadIdx.x; j <= t; j += blockDim.x) {
            float by_k = 0, by_q = 0, sum = gates[t];
            for (uint32_t e = 0; e < sh.d_k; e++) {
                float key = keys[(size_t)e * C + j];
                by_k = __fmaf_rn(k[e], key, by_k);
                by_q = __fmaf_rn(q[e], key, by_q);
            }
            for (uint32_t i = t; i > j + 1; i--) /* l_t + .. + l_{j + 1} */
                sum = sum + gates[i - 1];
            float d = j == t ? 1.0f : dev_exp(sum);
            if (j < t)
                decay[j] = d;
            kk[j] = by_k * d;
            qk[j] = j == t ? by_q : by_q * d;
        }
        if (threadIdx.x == blockDim.x - 1) {
            float sum = gates[t];
            for (uint32_t i = t; i > 0; i--)
                sum = sum + gates[i - 1];
            decay[t] = dev_exp(sum); /* g; D(t, t) is 1 and needs no place */
        }
        __syncthreads();
        float gate = decay[t];
        if (c < sh.d_v) {
            float seen = 0, asked = 0, past = 0, y = 0, by = p.b[(size_t)at * p.b_stride + value];
            for (uint32_t e = 0; state && e < sh.d_k; e++) {
                float x = state[(size_t)e * sh.d_v + c];
                seen = __fmaf_rn(k[e], x, seen);
                asked = __fmaf_rn(q[e], x, asked);
            }
            for (uint32_t j = 0; !p.skip && j < t; j++)
                past = __fmaf_rn(kk[j], deltas[(size_t)j * sh.d_v + c], past);
            float v = p.x[(size_t)at * p.x_stride + p.v_at + (size_t)value * sh.d_v + c];
            float u = p.skip ? v * by : (__fmaf_rn(-gate, seen, v) - past) * by;
            deltas[(size_t)t * sh.d_v + c] = u;
            for (uint32_t j = 0; j <= t; j++)
                y = __fmaf_rn(qk[j], deltas[(size_t)j * sh.d_v + c], y);
            y = __fmaf_rn(gate, asked, y);
            p.y[(size_t)at * p.y_stride + (size_t)value * sh.d_v + c] = p.skip ? __fmaf_rn(p.skip[value], v, y) : y;
        }
        __syncthreads();
    }
};

static __global__ void __launch_bounds__(256) delta_run(const __grid_constant__ cuda_p_state p)
{
    dev_begin();
    __shared__ float decay[STATE_ANCHOR_MAX + 1], kk[STATE_ANCHOR_MAX], qk[STATE_ANCHOR_MAX], q[STATE_DIM_MAX], k[STATE_DIM_MAX],
        gates[STATE_ANCHOR_MAX];
    const state_shape &sh = p.shape;
    uint32_t value = blockIdx.x;
    float *work = p.work + (size_t)(blockIdx.y * gridDim.x + blockIdx.x) * p.work_floats;
    delta d = {p, decay, kk, qk, q, k, work, work + sh.d_k * sh.d_v, work + sh.d_k * sh.d_v + sh.d_k * sh.anchor, value,
               p.tiled ? value % sh.heads : value / sh.values, p.tiled ? value / sh.heads : value % sh.values};
    for (uint32_t i = blockIdx.y; i < p.span_count; i += gridDim.y) {
        if (i > 0 && p.spans[i].table_first == p.spans[i - 1].table_first)
            continue; /* it follows the one before, by the same threads */
        for (uint32_t j = i; j < p.span_count && p.spans[j].table_first == p.spans[i].table_first; j++) {
            kv_span s = p.spans[j];
            if (s.pos_first != 0 && p.tables[s.table_first + s.pos_first / sh.anchor] == 0)
                continue;
            for (uint32_t r = 0; r < s.row_count;) {
                uint32_t pos = s.pos_first + r, t0 = pos % sh.anchor, left = s.row_count - r;
                uint32_t t1 = t0 + left < sh.anchor ? t0 + left : sh.anchor;
                d.block(s, r, t0, t1, pos / sh.anchor, gates);
                r += t1 - t0;
            }
        }
    }
}

extern "C" const void *const cuda_kernels_state[CUDA_K_STATE_COUNT] = {(const void *)inputs_keep, (const void *)tails_keep,
                                                                       (const void *)short_conv, (const void *)delta_conv,
                                                                       (const void *)delta_run};
