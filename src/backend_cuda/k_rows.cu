/* backend_cuda/k_rows.cu - ops that work row by row, and the scatter of small copies.
 *
 * A row's sums run in one tree: thread i of 1,024 takes columns i, i + 1,024, .. ascending, then the warp, then the warps ascending. */
#include "backend_cuda/weight_layout.cuh"
#include "backend_cuda/device_math.cuh"

enum { ROW_THREADS = 1024 };

/* ---- copies: staging or device memory to device memory, in phases ---- */

static __global__ void __launch_bounds__(1024) scatter(const __grid_constant__ cuda_p_scatter p)
{
    dev_begin();
    const cuda_scatter_list *list = p.list;
    uint32_t count = list->count, phases = list->phases;
    for (uint32_t phase = 0; phase < phases; phase++) {
        for (uint32_t i = 0; i < count; i++) {
            cuda_scatter_item item = list->items[i];
            if (item.phase != phase)
                continue;
            if (((uintptr_t)item.dst | (uintptr_t)item.src | item.size_bytes) % 16 == 0)
                for (uint32_t at = threadIdx.x; at < item.size_bytes / 16; at += blockDim.x)
                    ((uint4 *)item.dst)[at] = ((const uint4 *)item.src)[at];
            else if (((uintptr_t)item.dst | (uintptr_t)item.src | item.size_bytes) % 4 == 0)
                for (uint32_t at = threadIdx.x; at < item.size_bytes / 4; at += blockDim.x)
                    ((uint32_t *)item.dst)[at] = ((const uint32_t *)item.src)[at];
            else
                for (uint32_t at = threadIdx.x; at < item.size_bytes; at += blockDim.x)
                    ((uint8_t *)item.dst)[at] = ((const uint8_t *)item.src)[at];
        }
        __syncthreads();
    }
}

/* ---- sums of a row ---- */

static __device__ __forceinline__ float mean_of(const float *x, uint32_t n, float *shared)
{
    float sum = 0;
    for (uint32_t c = threadIdx.x; c < n; c += blockDim.x)
        sum = sum + x[c];
    return dev_block_sum(sum, shared) / (float)n;
}
/* Mean of the squares of x less `mean`. */
static __device__ __forceinline__ float squares_of(const float *x, uint32_t n, float mean, float *shared)
{
    float sum = 0;
    for (uint32_t c = threadIdx.x; c < n; c += blockDim.x)
        sum = __fmaf_rn(x[c] - mean, x[c] - mean, sum);
    return dev_block_sum(sum, shared) / (float)n;
}

/* ---- norm, rope, element by element ---- */

static __global__ void __launch_bounds__(ROW_THREADS) norm_rows(const __grid_constant__ cuda_p_norm p)
{
    dev_begin();
    __shared__ float shared[32];
    uint32_t r = blockIdx.x / p.groups, at = blockIdx.x % p.groups * p.dim;
    const float *x = p.x + (size_t)r * p.x_stride + at;
    float *y = p.y + (size_t)r * p.y_stride + at;
    const float *w = p.w + (p.own ? at : 0);
    float mean = p.centred ? mean_of(x, p.dim, shared) : 0.0f, by = 1.0f / sqrtf(squares_of(x, p.dim, mean, shared) + p.eps);
    for (uint32_t c = threadIdx.x; c < p.dim; c += blockDim.x) {
        float v = ((x[c] - mean) * by) * w[c];
        y[c] = p.add ? y[c] + v * p.scale : v;
    }
}

/* Each thread keeps to its columns, so that steps need not wait for one another but where they sum. */
static __global__ void __launch_bounds__(ROW_THREADS) row_steps(const __grid_constant__ cuda_p_row_steps p)
{
    dev_begin();
    __shared__ float shared[32];
    uint32_t r = blockIdx.x;
    for (uint32_t i = 0; i < p.count; i++) {
        const cuda_row_step &s = p.step[i];
        const float *x = s.x + (size_t)r * s.x_stride, *w = s.w;
        float *y = s.y + (size_t)r * s.y_stride;
        if (!s.x) {
            for (uint32_t c = threadIdx.x; c < p.cols; c += blockDim.x)
                y[c] = (w ? y[c] * w[c] : y[c]) * s.scale;
            continue;
        }
        float mean = s.centred ? mean_of(x, p.cols, shared) : 0.0f, by = 1.0f / sqrtf(squares_of(x, p.cols, mean, shared) + s.eps);
        for (uint32_t c = threadIdx.x; c < p.cols; c += blockDim.x) {
            float v = ((x[c] - mean) * by) * w[c];
            y[c] = s.add ? y[c] + v * s.scale : v;
        }
    }
}

static __global__ void rope_table(const __grid_constant__ cuda_p_rope_table p)
{
    dev_begin();
    uint32_t i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= p.rows * p.n)
        return;
    double s, c;
    dev_sincos((double)((float)p.pos[i / p.n] * p.inv_freq[i % p.n]), &s, &c);
    float *to = p.table + (size_t)(i / p.n) * p.stride + i % p.n;
    to[0] = (float)c * p.mscale;
    to[p.n] = (float)s * p.mscale;
}

static __global__ void rope(const __grid_constant__ cuda_p_rope p)
{
    dev_begin();
    uint32_t i = blockIdx.x * blockDim.x + threadIdx.x, per = p.heads * p.n;
    if (i >= p.rows * per)
        return;
    uint32_t r = i / per, h = i % per / p.n, j = i % p.n;
    float *x = p.x + (size_t)r * p.stride + (size_t)h * p.head_dim;
    const float *table = p.table + (size_t)r * p.table_stride;
    uint32_t a = p.adjacent ? 2 * j : j, b = p.adjacent ? 2 * j + 1 : j + p.n;
    float x0 = x[a], x1 = x[b], c = table[j], s = table[p.n + j];
    x[a] = __fmaf_rn(-x1, s, x0 * c);
    x[b] = __fmaf_rn(x0, s, x1 * c);
}

static __device__ __forceinline__ void wise_at(const cuda_p_wise &p, uint32_t r, uint32_t c)
{
    float *y = p.y + (size_t)r * p.y_stride + c;
    if (p.what == CUDA_WISE_GATHER) {
        uint32_t from = p.index[r];
        if (from >= p.a_rows)
            *p.failed = 1;
        else
            *y = p.a[(size_t)from * p.a_stride + c];
        return;
    }
    if (p.what == CUDA_WISE_SUM) { /* slots ascending, b their weights */
        uint32_t slots = p.a_rows / p.rows;
        float v = p.b[(size_t)r * slots] * p.a[(size_t)r * slots * p.a_stride + c];
        for (uint32_t i = 1; i < slots; i++)
            v = v + p.b[(size_t)r * slots + i] * p.a[((size_t)r * slots + i) * p.a_stride + c];
        *y = p.s != 0 ? *y + v : v;
        return;
    }
    float a = p.a[(size_t)r * p.a_stride + c];
    if (p.what == CUDA_WISE_ADD)
        *y = *y * p.t + a * p.s;
    else if (p.what == CUDA_WISE_SOFTCAP)
        *y = p.s * dev_tanh(a / p.s);
    else if (p.what == CUDA_WISE_SCALE)
        *y = (p.b ? a * p.b[c] : a) * p.s;
    else if (p.what == CUDA_WISE_XIELU) /* s, t: of positive and negative x; u: beta; v: eps */
        *y = (a > 0 ? (p.s * a) * a : ((dev_exp(a < p.v ? a : p.v) - 1.0f) - a) * p.t) + p.u * a;
    else
        *y = dev_gate(p.what - CUDA_WISE_GATED, a, p.b[(size_t)r * p.b_stride + c]);
}
/* Grid (columns, rows): of rows there may be more than a grid can have. */
static __global__ void wise(const __grid_constant__ cuda_p_wise p)
{
    dev_begin();
    uint32_t c = blockIdx.x * blockDim.x + threadIdx.x;
    for (uint32_t r = blockIdx.y; c < p.cols && r < p.rows; r += gridDim.y)
        wise_at(p, r, c);
}

/* ---- what gemma3n has beside: rows blended, matched in size, cut off below ---- */

static __global__ void blend(const __grid_constant__ cuda_p_blend p)
{
    dev_begin();
    uint32_t c = blockIdx.x * blockDim.x + threadIdx.x;
    for (uint32_t r = blockIdx.y; c < p.cols && r < p.rows; r += gridDim.y)
        for (uint32_t i = 0; i < p.m; i++) {
            float sum = p.base[i].data[(size_t)r * p.base[i].stride + c];
            for (uint32_t j = 0; j < p.n; j++)
                sum = __fmaf_rn(p.coef[(size_t)r * p.coef_stride + i * p.n + j] + p.shift, p.x[j].data[(size_t)r * p.x[j].stride + c], sum);
            p.y[i].data[(size_t)r * p.y[i].stride + c] = sum;
        }
}

static __global__ void __launch_bounds__(ROW_THREADS) match(const __grid_constant__ cuda_p_level p)
{
    dev_begin();
    __shared__ float shared[32];
    float *y = p.y + (size_t)blockIdx.x * p.y_stride;
    float wanted = sqrtf(squares_of(p.x + (size_t)blockIdx.x * p.x_stride, p.cols, 0.0f, shared));
    float own = squares_of(y, p.cols, 0.0f, shared), by = wanted / sqrtf(own > p.s || own != own ? own : p.s);
    for (uint32_t c = threadIdx.x; c < p.cols; c += blockDim.x)
        y[c] = y[c] * by;
}

static __global__ void __launch_bounds__(ROW_THREADS) sparsify(const __grid_constant__ cuda_p_level p)
{
    dev_begin();
    __shared__ float shared[32];
    float *y = p.y + (size_t)blockIdx.x * p.y_stride, mean = mean_of(y, p.cols, shared);
    float cut = mean + sqrtf(squares_of(y, p.cols, mean, shared)) * p.s;
    for (uint32_t c = threadIdx.x; c < p.cols; c += blockDim.x) {
        float v = y[c] - cut;
        y[c] = v > 0 || v != v ? v : 0.0f;
    }
}

extern "C" const void *const cuda_kernels_rows[CUDA_K_ROWS_COUNT] = {
    (const void *)scatter, (const void *)norm_rows, (const void *)rope_table, (const void *)rope,
    (const void *)wise, (const void *)blend, (const void *)match, (const void *)sparsify, (const void *)row_steps};
