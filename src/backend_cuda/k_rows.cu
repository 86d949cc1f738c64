/* backend_cuda/k_rows.cu - ops that work row by row, the scatter of small copies, and weights from files to packed tiles.
 *
 * A row's sums run in one tree: thread i of 1,024 takes columns i, i + 1,024, .. ascending, then the warp, then the warps ascending. */
#include "backend_cuda/weight_layout.cuh"
#include "backend_cuda/weight_raw.cuh"

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

/* ---- what linear reads ---- */

static __device__ __forceinline__ uint32_t halves(float a, float b)
{
    return layout_bits(__floats2half2_rn(a, b));
}

/* r of a norm: 1 / sqrt(mean of squares + eps). */
static __device__ __forceinline__ float norm_of(const float *x, uint32_t n, float eps, float *shared)
{
    float sum = 0;
    for (uint32_t c = threadIdx.x; c < n; c += blockDim.x)
        sum = __fmaf_rn(x[c], x[c], sum);
    return 1.0f / sqrtf(dev_block_sum(sum, shared) / (float)n + eps);
}

static __global__ void __launch_bounds__(ROW_THREADS) pack(const __grid_constant__ cuda_p_pack p)
{
    dev_begin();
    extern __shared__ float row[];
    __shared__ float shared[32];
    uint32_t r = blockIdx.x, padded = p.units * CUDA_UNIT;
    const float *x = p.x + (size_t)(r / p.heads) * p.stride + (size_t)(r % p.heads) * p.x_step;
    for (uint32_t c = threadIdx.x; c < p.tail; c += blockDim.x)
        p.y[(size_t)(r / p.heads) * p.y_stride + (size_t)(r % p.heads) * p.y_step + p.y_out + c] = x[p.cols + c];
    float by = p.w ? norm_of(x, p.cols, p.eps, shared) : 1.0f, most = 0;
    for (uint32_t c = threadIdx.x; c < padded; c += blockDim.x) {
        float v = c < p.cols ? x[c] : 0.0f;
        if (p.w && c < p.cols)
            v = (v * by) * p.w[c];
        row[c] = v;
        v = fabsf(v);
        most = v > most || v != v ? v : most;
    }
    float inverse, up = dev_row_factor(dev_block_max(most, shared), &inverse);
    __syncthreads();
    if (threadIdx.x == 0)
        p.row_scale[r] = inverse;
    if (p.tall) {
        uint32_t *to = (uint32_t *)(p.packed + (size_t)r * padded);
        for (uint32_t c = threadIdx.x; c < padded / 2; c += blockDim.x)
            to[c] = halves(row[2 * c] * up, row[2 * c + 1] * up);
        return;
    }
    uint32_t *to = (uint32_t *)p.packed + (size_t)(r / 8) * p.units * 256 + (r % 8) * 32;
    for (uint32_t i = threadIdx.x; i < padded / 2; i += blockDim.x) { /* pair i: unit, lane of the row, chunk, half of the chunk */
        uint32_t u = i / 32, t = i / 8 % 4, c = i / 2 % 4, at = u * 64 + 16 * c + 2 * t + 8 * (i % 2);
        to[(size_t)u * 256 + i % 32] = halves(row[at] * up, row[at + 1] * up);
    }
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
    float mean = 0, sum = 0;
    for (uint32_t c = threadIdx.x; p.centred && c < p.dim; c += blockDim.x)
        mean = mean + x[c];
    if (p.centred)
        mean = dev_block_sum(mean, shared) / (float)p.dim;
    for (uint32_t c = threadIdx.x; c < p.dim; c += blockDim.x)
        sum = __fmaf_rn(x[c] - mean, x[c] - mean, sum);
    float by = 1.0f / sqrtf(dev_block_sum(sum, shared) / (float)p.dim + p.eps);
    for (uint32_t c = threadIdx.x; c < p.dim; c += blockDim.x) {
        float v = ((x[c] - mean) * by) * w[c];
        y[c] = p.add ? y[c] + v * p.scale : v;
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

static __global__ void wise(const __grid_constant__ cuda_p_wise p)
{
    dev_begin();
    uint32_t c = blockIdx.x * blockDim.x + threadIdx.x, r = blockIdx.y;
    if (c >= p.cols)
        return;
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
        *y = a * p.s;
    else if (p.what == CUDA_WISE_XIELU) /* s, t: of positive and negative x; u: beta; v: eps */
        *y = (a > 0 ? (p.s * a) * a : ((dev_exp(a < p.v ? a : p.v) - 1.0f) - a) * p.t) + p.u * a;
    else
        *y = dev_gate(p.what - CUDA_WISE_GATED, a, p.b[(size_t)r * p.b_stride + c]);
}

/* ---- route: a block a row ---- */

struct chosen {
    float value;
    uint32_t id;
};

/* The free one with the largest choice of [from, to), ties to the lowest; id `to` when none is. */
static __device__ chosen best_of(const float *choice, const uint8_t *barred, uint32_t from, uint32_t to, chosen *shared)
{
    chosen best = {-DEV_INF, to};
    for (uint32_t e = from + threadIdx.x; e < to; e += blockDim.x)
        if (!barred[e] && (best.id == to || choice[e] > best.value))
            best = {choice[e], e};
    for (int o = 16; o > 0; o >>= 1) {
        chosen other = {__shfl_xor_sync(0xffffffffu, best.value, o), __shfl_xor_sync(0xffffffffu, best.id, o)};
        if (other.id != to && (best.id == to || other.value > best.value || (other.value == best.value && other.id < best.id)))
            best = other;
    }
    __syncthreads();
    if ((threadIdx.x & 31) == 0)
        shared[threadIdx.x >> 5] = best;
    __syncthreads();
    for (uint32_t w = 0; w < blockDim.x / 32; w++) {
        chosen other = shared[w];
        if (other.id != to && (best.id == to || other.value > best.value || (other.value == best.value && other.id < best.id)))
            best = other;
    }
    __syncthreads();
    return best;
}

static __global__ void __launch_bounds__(ROW_THREADS) route(const __grid_constant__ cuda_p_route p)
{
    dev_begin();
    extern __shared__ float score[]; /* [experts] scores, then choices, then barred */
    __shared__ float shared[32], sums[ROUTE_GROUPS_MAX];
    __shared__ chosen places[32];
    __shared__ uint32_t kept[ROUTE_GROUPS_MAX];
    float *choice = score + p.experts;
    uint8_t *barred = (uint8_t *)(choice + p.experts);
    const float *x = p.logits + (size_t)blockIdx.x * p.stride;
    uint32_t *ids = p.ids + (size_t)blockIdx.x * p.top, n = p.experts;
    float *weights = p.weights + (size_t)blockIdx.x * p.top, most = -DEV_INF, sum = 0;
    for (uint32_t e = threadIdx.x; e < n; e += blockDim.x)
        most = x[e] > most || x[e] != x[e] ? x[e] : most;
    most = dev_block_max(most, shared);
    for (uint32_t e = threadIdx.x; e < n; e += blockDim.x) {
        score[e] = p.score == ROUTE_SOFTMAX ? dev_exp(x[e] - most) : p.score == ROUTE_SIGMOID ? 1.0f / (1.0f + dev_exp(-x[e])) : x[e];
        sum = sum + score[e];
    }
    sum = dev_block_sum(sum, shared);
    for (uint32_t e = threadIdx.x; e < n; e += blockDim.x) {
        if (p.score == ROUTE_SOFTMAX)
            score[e] = score[e] / sum;
        choice[e] = p.bias ? score[e] + p.bias[e] : p.score == ROUTE_SIGMOID ? score[e] : x[e];
        barred[e] = 0;
    }
    __syncthreads();
    if (p.groups > 1 && !p.replay) {
        uint32_t each = n / p.groups;
        for (uint32_t g = 0; g < p.groups; g++) {
            float total = 0;
            for (uint32_t i = 0; i < p.group_best; i++) {
                chosen c = best_of(choice, barred, g * each, (g + 1) * each, places);
                total = total + c.value;
                if (threadIdx.x == 0 && c.id < (g + 1) * each)
                    barred[c.id] = 1;
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
        for (uint32_t e = threadIdx.x; e < n; e += blockDim.x)
            barred[e] = !kept[e / each];
        __syncthreads();
    }
    for (uint32_t s = 0; s < p.top && !p.replay; s++) {
        chosen c = best_of(choice, barred, 0, n, places);
        if (threadIdx.x == 0) {
            if (c.id >= n)
                *p.failed = 1, c.id = 0;
            ids[s] = c.id;
            barred[c.id] = 1;
        }
        __syncthreads();
    }
    if (threadIdx.x)
        return;
    float top = -DEV_INF, total = 0;
    for (uint32_t s = 0; s < p.top; s++) {
        if (ids[s] >= n) {
            *p.failed = 1;
            return;
        }
        weights[s] = score[ids[s]];
        top = weights[s] > top ? weights[s] : top;
    }
    for (uint32_t s = 0; s < p.top && p.score == ROUTE_SOFTMAX_TOP; s++)
        weights[s] = dev_exp(weights[s] - top), total = total + weights[s];
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

/* ---- weights ---- */

static __global__ void embed(const __grid_constant__ cuda_p_embed p)
{
    dev_begin();
    uint32_t c = blockIdx.x * blockDim.x + threadIdx.x, r = blockIdx.y;
    if (c >= p.raw.cols)
        return;
    uint32_t id = p.ids[r];
    float v = 0;
    if (id != 0xffffffffu && id >= p.vocab)
        *p.failed = 1;
    else if (id != 0xffffffffu)
        v = raw_value(p.raw, p.raw.data + (size_t)id * p.raw.row_bytes, c);
    p.y[(size_t)r * p.stride + c] = v * p.scale;
}

static __device__ __forceinline__ bool scale_is_fp(uint32_t kind)
{
    return kind == CUDA_KIND_FP4;
}

/* Largest magnitude a row needs in f16 -> its power of two.  row_scale takes it back. */
static __global__ void __launch_bounds__(ROW_THREADS) row_scale(const __grid_constant__ cuda_p_repack p)
{
    dev_begin();
    __shared__ float shared[32];
    const uint8_t *row = p.raw.data + (size_t)blockIdx.x * p.raw.row_bytes;
    float most = 0;
    for (uint32_t k = threadIdx.x; k < p.raw.cols; k += blockDim.x) {
        float v = fabsf(raw_value(p.raw, row, k));
        if (!raw_is_float(p.raw.type)) {
            raw_column c = raw_at(p.raw, row, k);
            float d = fabsf(c.d), ds = fabsf(c.d * c.sc), m = fabsf(c.m), mm = fabsf(c.m * c.mn);
            if (scale_is_fp(p.kind))
                d = d * 12.0f, ds = d;
            v = d > v || d != d ? d : v, v = ds > v || ds != ds ? ds : v, v = m > v || m != m ? m : v, v = mm > v || mm != mm ? mm : v;
        }
        most = v > most || v != v ? v : most;
    }
    most = dev_block_max(most, shared);
    if (threadIdx.x)
        return;
    int e = (int)(__float_as_uint(most) >> 23) & 255, up = e < 14 ? 0 : (scale_is_fp(p.kind) ? 126 : 140) - e;
    up = up < -126 ? -126 : up > 126 ? 126 : up;
    if (e == 255)
        *p.bad = p.number, up = 0;
    p.row_scale[p.first + blockIdx.x] = __uint_as_float((uint32_t)(127 - up) << 23);
}

static __device__ __forceinline__ uint32_t bits_of(float v, float up)
{
    return __half_as_ushort(__float2half_rn(v * up));
}

/* codes of one lane's unit, scales by the first lane of each row pair */
struct packer {
    const cuda_p_repack *p;
    uint8_t *to;   /* of the unit */
    uint32_t tile, u, lane;

    __device__ bool there(uint32_t o, uint32_t k) const
    {
        return o < p->first + p->rows && k < p->raw.cols;
    }
    __device__ const uint8_t *row(uint32_t o) const
    {
        return p->raw.data + (size_t)(o - p->first) * p->raw.row_bytes;
    }
    __device__ uint32_t out_row(int i) const
    {
        return tile * 16 + (lane >> 2) + 8 * (i & 1);
    }
    __device__ uint32_t column(int c, int i) const
    {
        return u * 64 + 16 * c + 2 * (lane & 3) + 8 * (i >> 1);
    }
    __device__ uint32_t code(uint32_t o, uint32_t k) const
    {
        return there(o, k) ? raw_at(p->raw, row(o), k).code : 0;
    }
    __device__ float up(uint32_t o) const /* the inverse of a power of two, exactly */
    {
        return o < p->first + p->rows ? 1.0f / p->row_scale[o] : 1.0f;
    }
    __device__ raw_column at(uint32_t o, uint32_t k) const
    {
        raw_column none = {0, 0, 0, 0, 0};
        return there(o, k) ? raw_at(p->raw, row(o), k) : none;
    }
    __device__ void floats() const
    {
        for (int c = 0; c < 4; c++)
            for (int i = 0; i < 4; i++) {
                uint32_t o = out_row(i), k = column(c, i), v = 0;
                for (int e = 0; e < 2; e++)
                    if (there(o, k + e))
                        v |= bits_of(raw_value(p->raw, row(o), k + e), up(o)) << 16 * e;
                ((uint32_t *)(to + c * 512 + lane * 16))[i] = v;
            }
    }
    __device__ void codes(uint32_t bits) const
    {
        uint32_t words[8] = {0}, high[2] = {0};
        for (int c = 0; c < 4; c++)
            for (int i = 0; i < 4; i++)
                for (int e = 0; e < 2; e++) {
                    uint32_t q = code(out_row(i), column(c, i) + e), pair = 4 * c + i;
                    if (bits == 8)
                        words[2 * c + (i >> 1)] |= q << (16 * (i & 1) + 8 * e);
                    else
                        words[c] |= (q & 15) << (4 * i + 16 * e);
                    if (bits == 5)
                        high[0] |= (q >> 4) << (pair + 16 * e);
                    if (bits == 6)
                        high[pair / 8] |= (q >> 4) << (2 * (pair % 8) + 16 * e);
                }
        for (int w = 0; w < (bits == 8 ? 8 : 4); w++)
            ((uint32_t *)(to + (w / 4) * 512 + lane * 16))[w % 4] = words[w];
        if (bits == 5)
            *(uint32_t *)(to + 512 + lane * 4) = high[0];
        if (bits == 6)
            ((uint32_t *)(to + 512 + lane * 8))[0] = high[0], ((uint32_t *)(to + 512 + lane * 8))[1] = high[1];
    }
    /* one lane of four: the scales of rows g and g + 8 */
    __device__ void scales(uint32_t scale, float fp) const
    {
        uint32_t bits = 0, g = lane >> 2;
        switch (p->kind) {
#define BITS(name, b, s, off)      \
        case CUDA_KIND_##name:     \
            bits = b;              \
            break;
            CUDA_KINDS(BITS)
        }
        uint8_t *s = to + layout_code_bytes(bits);
        for (int r = 0; r < 2; r++) {
            uint32_t o = tile * 16 + g + 8 * r;
            float by = up(o);
            for (int c = 0; c < 4; c++) {
                raw_column x = at(o, u * 64 + 16 * c);
                uint16_t d = (uint16_t)bits_of(x.d * x.sc * fp, by), m = (uint16_t)bits_of(x.m * x.mn, by);
                if (raw_is_large(p->raw.type))
                    m ^= 0x8000; /* minima are subtracted */
                if (scale == CUDA_SCALE_ONE || scale == CUDA_SCALE_BOOK || scale == CUDA_SCALE_FP)
                    ((uint16_t *)(s + g * 8))[2 * r + c / 2] = d;
                if (scale == CUDA_SCALE_TWO)
                    ((uint16_t *)(s + g * 16))[2 * r + c / 2] = d, ((uint16_t *)(s + g * 16))[4 + 2 * r + c / 2] = m;
                if (scale == CUDA_SCALE_WIDE)
                    ((uint16_t *)(s + g * 8))[r] = d, ((uint16_t *)(s + g * 8))[2 + r] = m;
                if (scale == CUDA_SCALE_FINE)
                    ((uint16_t *)(s + g * 32))[4 * r + c] = d, ((uint16_t *)(s + g * 32))[8 + 4 * r + c] = m;
                if (scale == CUDA_SCALE_SUPER)
                    s[g * 8 + 2 * r + c / 2] = (uint8_t)x.sc, s[g * 8 + 4 + 2 * r + c / 2] = (uint8_t)x.mn;
                if (scale == CUDA_SCALE_SIXTEEN)
                    s[g * 8 + 4 * r + c] = (uint8_t)((int)x.sc + 128);
            }
        }
    }
    __device__ void factors(uint32_t scale, uint8_t *s) const /* of 256 columns */
    {
        uint32_t g = lane >> 2;
        for (int r = 0; r < 2; r++) {
            uint32_t o = tile * 16 + g + 8 * r;
            raw_column x = at(o, u * 64);
            if (scale == CUDA_SCALE_SUPER) {
                ((uint16_t *)(s + g * 8))[2 * r] = (uint16_t)bits_of(x.d, up(o));
                ((uint16_t *)(s + g * 8))[2 * r + 1] = (uint16_t)bits_of(-x.m, up(o));
            } else {
                ((uint16_t *)(s + g * 4))[r] = (uint16_t)bits_of(x.d, up(o));
            }
        }
    }
};

template <int BITS, int SCALE, int OFF> static __device__ void repack_unit(const cuda_p_repack &p, uint32_t tile, uint32_t u, uint32_t lane)
{
    using lay = layout<BITS, SCALE, OFF>;
    uint8_t *base = p.planes + (size_t)tile * p.tile_bytes;
    packer k = {&p, base + lay::unit_at(u), tile, u, lane};
    if (BITS == 16) {
        k.floats();
        return;
    }
    k.codes(BITS);
    if (lane % 4)
        return;
    k.scales(SCALE, SCALE == CUDA_SCALE_FP ? 32768.0f : 1.0f); /* fp4: twice 2^14 times the halved scale */
    if (lay::super_bytes && u % 4 == 0)
        k.factors(SCALE, base + u / 4 * lay::four_bytes + 4 * lay::unit_bytes);
}

static __global__ void repack(const __grid_constant__ cuda_p_repack p)
{
    dev_begin();
    uint64_t i = (uint64_t)blockIdx.x * blockDim.x + threadIdx.x;
    uint32_t lane = (uint32_t)i & 31, u = (uint32_t)((i >> 5) % p.units), tile = p.first / 16 + (uint32_t)((i >> 5) / p.units);
    if (tile * 16 >= p.first + p.rows)
        return;
    switch (p.kind) {
#define UNIT(name, bits, scale, off)                                   \
    case CUDA_KIND_##name:                                             \
        repack_unit<bits, CUDA_SCALE_##scale, off>(p, tile, u, lane);  \
        break;
        CUDA_KINDS(UNIT)
    }
}

extern "C" const void *const cuda_kernels_rows[CUDA_K_ROWS_COUNT] = {
    (const void *)scatter, (const void *)pack, (const void *)norm_rows, (const void *)rope_table, (const void *)rope,
    (const void *)wise, (const void *)route, (const void *)embed, (const void *)row_scale, (const void *)repack};
