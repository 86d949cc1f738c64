/* backend_cuda/k_pages.cu - K and V into pages: head vectors to codes, the bytes of tensor/kv_codec.c, whose orders these are.
 *
 * A warp has a head vector, in shared memory; a lane has a group of it.  kv_write stores rows of a step (attn_prepare: normed and turned by rope
 * first), kv_write_many those of prompts where pages have no codes: 32 rows of a head together, for in K rows are neighbours.  kv_convert stores what pages
 * hold as another layer does. */
#define KV_TABLE [[maybe_unused]] static __device__ const
#include "tensor/kv_tables.h"

#include "backend_cuda/head_vectors.cuh"
#include "backend_cuda/k_pages.cuh"

enum { PAGES_WARPS = 4 };

/* ---- a group to codes, by one lane ---- */

static __device__ __forceinline__ float pages_keep(float v, float low, float high)
{
    v = v > low ? v : low;
    return v < high ? v : high;
}
static __device__ __forceinline__ uint16_t pages_half(float v)
{
    return __half_as_ushort(__float2half_rn(pages_keep(v, -65504.0f, 65504.0f)));
}

static __device__ uint16_t pages_q8(const float *x, uint32_t n, uint8_t *codes)
{
    float most = 0;
    for (uint32_t i = 0; i < n; i++)
        most = fabsf(x[i]) > most ? fabsf(x[i]) : most;
    uint16_t scale = pages_half(most / 127);
    float d = pages_float(scale), inverse = d > 0 ? 1 / d : 0;
    for (uint32_t i = 0; i < n; i++)
        codes[i] = (uint8_t)(int8_t)dev_round(pages_keep(x[i] * inverse, -127, 127));
    return scale;
}

static __device__ uint16_t pages_affine(const float *x, uint32_t n, float most, uint8_t *codes, uint16_t *minimum)
{
    float low = x[0], high = x[0];
    for (uint32_t i = 1; i < n; i++) {
        low = x[i] < low ? x[i] : low;
        high = x[i] > high ? x[i] : high;
    }
    uint16_t scale = pages_half((high - low) / most);
    *minimum = pages_half(low);
    float d = pages_float(scale), m = pages_float(*minimum);
    for (uint32_t i = 0; i < n; i++)
        codes[i] = d > 0 ? (uint8_t)dev_round(pages_keep((x[i] - m) / d, 0, most)) : 0;
    return scale;
}

static __device__ double pages_fit_q4(const float *x, uint32_t n, float inverse, uint8_t *codes)
{
    double product = 0, square = 0;
    for (uint32_t i = 0; i < n; i++) {
        float q = dev_round(pages_keep(x[i] * inverse, -8, 7));
        codes[i] = (uint8_t)(q + 8);
        product = __dadd_rn(product, __dmul_rn((double)x[i], (double)q));
        square = __dadd_rn(square, (double)(q * q));
    }
    return square > 0 ? product / square : 0;
}

static __device__ uint16_t pages_q4h(const float *x, uint32_t n, uint8_t *codes)
{
    float most = x[0];
    for (uint32_t i = 1; i < n; i++)
        most = fabsf(x[i]) > fabsf(most) ? x[i] : most;
    if (fabsf(most) < 1e-30f) {
        for (uint32_t i = 0; i < n; i++)
            codes[i] = 8;
        return 0;
    }
    double scale = pages_fit_q4(x, n, -8 / most, codes);
    scale = pages_fit_q4(x, n, (float)(1 / scale), codes);
    return pages_half((float)scale);
}

static __device__ uint16_t pages_book(const float *x, uint32_t n, bool four, uint8_t *codes)
{
    double squares = 0, sum = 0;
    for (uint32_t i = 0; i < n; i++)
        squares = __dadd_rn(squares, __dmul_rn((double)x[i], (double)x[i]));
    float rms = (float)sqrt(squares / n), inverse = rms < 1e-30f ? 0 : (four ? book4_unit : book3_unit) / rms;
    for (uint32_t i = 0; i < n; i++) {
        float t = x[i] * inverse;
        uint32_t code = 0;
        for (uint32_t b = 0; b < (four ? 15u : 7u); b++)
            code += t > (four ? book4_borders[b] : book3_borders[b]);
        codes[i] = (uint8_t)code;
        int v = four ? book4[code] : book3[code];
        sum = __dadd_rn(sum, (double)(v * v));
    }
    return inverse > 0 ? pages_half((float)sqrt(squares / sum)) : 0;
}

static __device__ void pages_put(unsigned char *plane, const cuda_plane &p, uint32_t d, uint32_t slot, bool key, const uint8_t *c, uint32_t lane)
{
    uint32_t rows = 4 * p.bits;
    for (uint32_t i = lane; i < d / 32 * rows; i += 32) {
        uint32_t b = i / rows, r = i % rows, byte;
        const uint8_t *q = c + 32 * b;
        if (p.bits == 8)
            byte = q[r];
        else if (p.bits == 4)
            byte = q[r] | (uint32_t)q[r + 16] << 4;
        else {
            byte = 0;
            for (uint32_t k = 0; r < 8 && k < 4; k++)
                byte |= (q[r + 8 * k] & 3u) << (2 * k);
            for (uint32_t k = 0; r >= 8 && k < 8; k++)
                byte |= (uint32_t)(q[r - 8 + 4 * k] >> 2) << k;
        }
        plane[pages_code_at(p, d, slot, b, r, key)] = (unsigned char)byte;
    }
}

static __device__ __forceinline__ void pages_put_float(unsigned char *plane, uint32_t format, size_t at, float x)
{
    uint32_t u = __float_as_uint(x);
    if (format == KV_F32)
        ((float *)plane)[at] = x;
    else if (format == KV_F16)
        ((__half *)plane)[at] = __float2half_rn(x);
    else
        ((uint16_t *)plane)[at] = (uint16_t)(x != x ? u >> 16 | 0x40 : (u + 0x7fff + (u >> 16 & 1)) >> 16);
}
static __device__ void pages_store_float(unsigned char *plane, uint32_t format, uint32_t d, uint32_t slot, bool key, const float *x, uint32_t lane)
{
    for (uint32_t e = lane; e < d; e += 32)
        pages_put_float(plane, format, key ? (size_t)e * KV_PAGE + slot : (size_t)slot * d + e, x[e]);
}

/* One head vector of one position, by one warp. */
static __device__ void pages_store(unsigned char *plane, const cuda_plane &p, uint32_t d, uint32_t slot, bool key, float *x, uint8_t *codes,
                                   uint32_t lane)
{
    if (p.code == CODE_FLOAT) {
        pages_store_float(plane, p.format, d, slot, key, x, lane);
        return;
    }
    pages_turn(p, x, d, lane);
    for (uint32_t e = lane; e < d; e += 32)
        x[e] = x[e] == x[e] ? pages_keep(x[e], -3.402823466e38f, 3.402823466e38f) : 0;
    __syncwarp();
    for (uint32_t i = lane; i < p.groups; i += 32) {
        const float *from = x + i * p.group;
        uint8_t *to = codes + i * p.group;
        uint16_t minimum = 0, scale;
        if (p.code == CODE_BOOK)
            scale = pages_book(from, p.group, p.bits == 4, to);
        else if (p.code == CODE_AFFINE)
            scale = pages_affine(from, p.group, (float)((1u << p.bits) - 1), to, &minimum);
        else
            scale = p.bits == 8 ? pages_q8(from, p.group, to) : pages_q4h(from, p.group, to);
        ((uint16_t *)(plane + p.scales_at))[pages_scale_at(p, slot, i, key)] = scale;
        if (p.minima_at)
            ((uint16_t *)(plane + p.minima_at))[pages_scale_at(p, slot, i, key)] = minimum;
    }
    __syncwarp();
    pages_put(plane, p, d, slot, key, codes, lane);
}

/* The span a row is in; ~0: none. */
static __device__ uint32_t pages_span(const kv_span *spans, uint32_t count, uint32_t row, uint32_t lane)
{
    uint32_t span = 0xffffffffu;
    for (uint32_t from = 0; from < count && span == 0xffffffffu; from += 32) {
        uint32_t s = from + lane;
        bool mine = s < count && row >= spans[s].row_first && row - spans[s].row_first < spans[s].row_count;
        uint32_t found = __ballot_sync(0xffffffffu, mine);
        span = found ? from + __ffs(found) - 1 : span;
    }
    return span;
}

/* Where the pages' planes of a row of span `s` are, and its slot there; NULL: its page is not there. */
static __device__ __forceinline__ unsigned char *pages_place(const cuda_p_kv_write &p, const kv_span &s, uint32_t row, uint32_t *slot)
{
    uint32_t position = s.pos_first + row - s.row_first;
    unsigned char *page = p.pages[p.tables[s.table_first + position / KV_PAGE]];
    if (!page)
        *p.failed = 1;
    *slot = position % KV_PAGE;
    return page ? page + p.offset : NULL;
}

/* The head vector number `which` of a row: of q (attn_prepare only), k, v. */
struct head_vector {
    float *at;
    const float *norm;
    uint32_t d, stride, head;
    bool query, key;
    __device__ __forceinline__ head_vector(const cuda_p_kv_write &p, uint32_t which)
    {
        head = which < p.q_heads ? which : (which - p.q_heads) % p.heads;
        query = which < p.q_heads, key = !query && which < p.q_heads + p.heads;
        d = query || key ? p.d_k : p.d_v;
        norm = query ? p.q_norm : key ? p.k_norm : NULL;
        at = query ? p.q : key ? p.k : p.v;
        stride = query ? p.q_stride : key ? p.k_stride : p.v_stride;
        at += (size_t)head * d;
    }
    __device__ __forceinline__ bool changed(const cuda_p_kv_write &p) const { return (norm || p.rope) && (query || key); }
    __device__ __forceinline__ size_t plane(const cuda_p_kv_write &p) const { return (size_t)head * p.head_bytes + (key ? 0 : p.k_bytes); }
    /* Norm and rope of it in shared memory, then back to where it came from. */
    __device__ __forceinline__ void prepare(const cuda_p_kv_write &p, uint32_t row, float *x, uint32_t lane) const
    {
        if (!changed(p))
            return;
        if (norm)
            pages_norm(x, norm, d, p.eps, lane);
        if (p.rope)
            pages_rope(x, p.rope + (size_t)row * p.rope_stride, p.rope_pairs, p.adjacent, lane);
        for (uint32_t e = lane; e < d; e += 32)
            at[(size_t)row * stride + e] = x[e];
    }
};

/* A warp a head vector: norm, rope, then K and V into the page. */
static __global__ void __launch_bounds__(32 * PAGES_WARPS) kv_write(const __grid_constant__ cuda_p_kv_write p)
{
    dev_begin();
    __shared__ float vectors[PAGES_WARPS][PAGES_HEAD_MAX];
    __shared__ uint8_t codes[PAGES_WARPS][PAGES_HEAD_MAX];
    uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32, i = blockIdx.x * PAGES_WARPS + warp, slot;
    uint32_t per = p.q_heads + 2 * p.heads, row = i / per;
    const head_vector v(p, i % per);
    if (row >= p.rows || (!v.query && !v.key && p.latent))
        return;
    float *x = vectors[warp];
    for (uint32_t e = lane; e < v.d; e += 32)
        x[e] = v.at[(size_t)row * v.stride + e];
    __syncwarp();
    v.prepare(p, row, x, lane);
    uint32_t span = v.query ? 0xffffffffu : pages_span(p.spans, p.span_count, row, lane);
    unsigned char *page = span == 0xffffffffu ? NULL : pages_place(p, p.spans[span], row, &slot);
    if (page)
        pages_store(page + v.plane(p), v.key ? p.pk : p.pv, v.d, slot, v.key, x, codes[warp], lane);
}

/* A block 32 rows of one head, a warp four of them; then, of K, a warp an element of all. */
static __global__ void __launch_bounds__(32 * CUDA_KV_MANY_WARPS) kv_write_many(const __grid_constant__ cuda_p_kv_write p)
{
    dev_begin();
    enum { WARPS = CUDA_KV_MANY_WARPS, ROWS = CUDA_KV_MANY_ROWS, EACH = ROWS / WARPS };
    extern __shared__ float many[]; /* [ROWS][d + 1] */
    __shared__ unsigned char *pages[ROWS];
    __shared__ uint32_t slots[ROWS];
    uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32, row0 = blockIdx.x * ROWS + warp * EACH;
    const head_vector v(p, blockIdx.y);
    float *x = many + warp * EACH * (v.d + 1);
#pragma unroll 4
    for (uint32_t e = lane; e < v.d; e += 32)
#pragma unroll
        for (uint32_t i = 0; i < EACH; i++)
            if (row0 + i < p.rows)
                asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"((uint32_t)__cvta_generic_to_shared(x + i * (v.d + 1) + e)),
                             "l"(v.at + (size_t)(row0 + i) * v.stride + e)
                             : "memory");
    kv_span mine = {0, 0, 0, 0}, s = mine; /* of row `lane` of the warp's; of the one looked at: most often all are of one span */
    for (uint32_t i = 0; !v.query && i < EACH && row0 + i < p.rows; i++) {
        if (row0 + i - s.row_first >= s.row_count) {
            uint32_t span = pages_span(p.spans, p.span_count, row0 + i, lane);
            s = span == 0xffffffffu ? kv_span{0, 0, 0, 0} : p.spans[span];
        }
        mine = lane == i ? s : mine;
    }
    if (lane < EACH) {
        uint32_t slot = 0;
        pages[warp * EACH + lane] = mine.row_count ? pages_place(p, mine, row0 + lane, &slot) : NULL;
        slots[warp * EACH + lane] = slot;
    }
    pages_arrived();
    __syncwarp();
    for (uint32_t i = 0; i < EACH && row0 + i < p.rows; i++) {
        v.prepare(p, row0 + i, x + i * (v.d + 1), lane);
        if (!v.query && !v.key && pages[warp * EACH + i])
            pages_store_float(pages[warp * EACH + i] + v.plane(p), p.pv.format, v.d, slots[warp * EACH + i], false, x + i * (v.d + 1), lane);
    }
    if (!v.key)
        return;
    __syncthreads();
    unsigned char *page = pages[lane];
    for (uint32_t e = warp; page && e < v.d; e += WARPS)
        pages_put_float(page + v.plane(p), p.pk.format, (size_t)e * KV_PAGE + slots[lane], many[lane * (v.d + 1) + e]);
}

/* A warp a head vector of a slot: decoded, turned back, stored anew. */
static __global__ void __launch_bounds__(32 * PAGES_WARPS) kv_convert(const __grid_constant__ cuda_p_kv_convert p)
{
    dev_begin();
    __shared__ float vectors[PAGES_WARPS][PAGES_HEAD_MAX];
    __shared__ uint8_t codes[PAGES_WARPS][PAGES_HEAD_MAX];
    uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32, i = blockIdx.x * PAGES_WARPS + warp, planes = p.latent ? 1 : 2;
    uint32_t slot = i % KV_PAGE, part = i / KV_PAGE % (planes * p.heads), page = i / KV_PAGE / (planes * p.heads), head = part / planes;
    bool key = part % planes == 0;
    if (page >= p.page_count || slot >= (page + 1 < p.page_count ? KV_PAGE : p.positions_last))
        return;
    const unsigned char *from = p.from.pages[p.from_ids[page]];
    unsigned char *to = p.to.pages[p.to_ids[page]];
    if (!from || !to) {
        *p.failed = 1;
        return;
    }
    const cuda_plane &plane = key ? p.from.k : p.from.v;
    uint32_t d = key ? p.d_k : p.d_v;
    float *x = vectors[warp];
    from += p.from.offset + (size_t)head * p.from.head_bytes + (key ? 0 : p.from.k_bytes);
    for (uint32_t e = lane; e < d; e += 32)
        x[e] = pages_value(from, plane, d, slot, e, key);
    __syncwarp();
    pages_turn_back(plane, x, d, lane);
    pages_store(to + p.to.offset + (size_t)head * p.to.head_bytes + (key ? 0 : p.to.k_bytes), key ? p.to.k : p.to.v, d, slot, key, x, codes[warp], lane);
}

extern "C" const void *const cuda_kernels_pages[CUDA_K_PAGES_COUNT] = {(const void *)kv_write, (const void *)kv_write_many, (const void *)kv_convert};
