/* backend_cuda/k_pages.cuh - planes of pages on the device: head vectors to codes (the bytes of tensor/kv_codec.c, whose orders these are), and
 * planes to f16 for attention.  Included by k_attention.cu only, after tensor/kv_tables.h. */
#ifndef RH_CUDA_K_PAGES_CUH
#define RH_CUDA_K_PAGES_CUH

#include "backend_cuda/device_math.cuh"
#include "backend_cuda/kernels.h"

enum { PAGES_HEAD_MAX = 640, PAGES_WARPS = 4 };
enum { CODE_FLOAT, CODE_SIGNED, CODE_AFFINE, CODE_BOOK }; /* enum kv_code */
enum { TURN_NONE, TURN_HADAMARD, TURN_SIGNS };            /* enum kv_turn */

/* ---- turns, by one warp over a vector in shared memory ---- */

static __device__ void pages_hadamard(float *x, uint32_t d, uint32_t n, uint32_t lane)
{
    float by = (float)(1 / sqrt((double)n));
    for (uint32_t half = 1; half < n; half *= 2) {
        for (uint32_t i = lane; i < d / 2; i += 32) {
            uint32_t at = i / half * 2 * half + i % half;
            float a = x[at], b = x[at + half];
            x[at] = a + b;
            x[at + half] = a - b;
        }
        __syncwarp();
    }
    for (uint32_t e = lane; e < d; e += 32)
        x[e] = x[e] * by;
    __syncwarp();
}

static __device__ void pages_signs(float *x, uint32_t d, uint32_t lane)
{
    for (uint32_t e = lane; e < d; e += 32)
        x[e] = sign_bits[e / 32] >> (e % 32) & 1 ? -x[e] : x[e];
    __syncwarp();
}

static __device__ void pages_turn(const cuda_plane &p, float *x, uint32_t d, uint32_t lane)
{
    if (p.turn == TURN_SIGNS)
        pages_signs(x, d, lane);
    if (p.turn != TURN_NONE)
        pages_hadamard(x, d, p.run, lane);
}
static __device__ void pages_turn_back(const cuda_plane &p, float *x, uint32_t d, uint32_t lane)
{
    if (p.turn != TURN_NONE)
        pages_hadamard(x, d, p.run, lane);
    if (p.turn == TURN_SIGNS)
        pages_signs(x, d, lane);
}

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
static __device__ __forceinline__ float pages_float(uint16_t h)
{
    return __half2float(__ushort_as_half(h));
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

/* ---- planes ---- */

static __device__ __forceinline__ size_t pages_scale_at(const cuda_plane &p, uint32_t slot, uint32_t g, bool key)
{
    return key ? (size_t)g * KV_PAGE + slot : (size_t)slot * p.groups + g;
}
static __device__ __forceinline__ size_t pages_code_at(const cuda_plane &p, uint32_t d, uint32_t slot, uint32_t b, uint32_t row, bool key)
{
    size_t at = (size_t)b * 4 * p.bits + row;
    return key ? at * KV_PAGE + slot : (size_t)slot * (d / 32) * 4 * p.bits + at;
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

static __device__ void pages_store_float(unsigned char *plane, uint32_t format, uint32_t d, uint32_t slot, bool key, const float *x, uint32_t lane)
{
    for (uint32_t e = lane; e < d; e += 32) {
        size_t at = key ? (size_t)e * KV_PAGE + slot : (size_t)slot * d + e;
        uint32_t u = __float_as_uint(x[e]);
        if (format == KV_F32)
            ((float *)plane)[at] = x[e];
        else if (format == KV_F16)
            ((__half *)plane)[at] = __float2half_rn(x[e]);
        else
            ((uint16_t *)plane)[at] = (uint16_t)(x[e] != x[e] ? u >> 16 | 0x40 : (u + 0x7fff + (u >> 16 & 1)) >> 16);
    }
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

/* The norm of k_rows.cu by one warp: the same tree. */
static __device__ void pages_norm(float *x, const float *w, uint32_t d, float eps, uint32_t lane)
{
    float sum = 0;
    for (uint32_t j = 0; 32 * j < d; j++) { /* d is less than the 1,024 threads of a norm */
        uint32_t c = 32 * j + lane;
        float s = c < d ? __fmaf_rn(x[c], x[c], 0.0f) : 0.0f;
        for (int o = 16; o > 0; o >>= 1)
            s = s + __shfl_xor_sync(0xffffffffu, s, o);
        sum = sum + s;
    }
    float by = 1.0f / sqrtf(sum / (float)d + eps);
    for (uint32_t c = lane; c < d; c += 32)
        x[c] = (x[c] * by) * w[c];
    __syncwarp();
}

static __device__ void pages_rope(float *x, const float *table, uint32_t n, uint32_t adjacent, uint32_t lane)
{
    for (uint32_t j = lane; j < n; j += 32) {
        uint32_t a = adjacent ? 2 * j : j, b = adjacent ? 2 * j + 1 : j + n;
        float x0 = x[a], x1 = x[b], c = table[j], s = table[n + j];
        x[a] = __fmaf_rn(-x1, s, x0 * c);
        x[b] = __fmaf_rn(x0, s, x1 * c);
    }
    __syncwarp();
}

/* A warp a head vector: of q (attn_prepare only), k, v.  Norm, rope, then K and V into the page. */
static __global__ void __launch_bounds__(32 * PAGES_WARPS) kv_write(const __grid_constant__ cuda_p_kv_write p)
{
    dev_begin();
    __shared__ float vectors[PAGES_WARPS][PAGES_HEAD_MAX];
    __shared__ uint8_t codes[PAGES_WARPS][PAGES_HEAD_MAX];
    uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32, i = blockIdx.x * PAGES_WARPS + warp;
    uint32_t per = p.q_heads + 2 * p.heads, row = i / per, which = i % per, head = which < p.q_heads ? which : (which - p.q_heads) % p.heads;
    bool query = which < p.q_heads, key = !query && which < p.q_heads + p.heads;
    if (row >= p.rows || (!query && !key && p.latent))
        return;
    uint32_t d = query || key ? p.d_k : p.d_v;
    float *x = vectors[warp], *from = query ? p.q + (size_t)row * p.q_stride : key ? p.k + (size_t)row * p.k_stride : p.v + (size_t)row * p.v_stride;
    const float *norm = query ? p.q_norm : key ? p.k_norm : NULL;
    from += (size_t)head * d;
    for (uint32_t e = lane; e < d; e += 32)
        x[e] = from[e];
    __syncwarp();
    if (norm)
        pages_norm(x, norm, d, p.eps, lane);
    if (p.rope && (query || key))
        pages_rope(x, p.rope + (size_t)row * p.rope_stride, p.rope_pairs, p.adjacent, lane);
    for (uint32_t e = lane; (norm || p.rope) && (query || key) && e < d; e += 32)
        from[e] = x[e];
    if (query)
        return;
    uint32_t span = pages_span(p.spans, p.span_count, row, lane);
    if (span == 0xffffffffu)
        return;
    kv_span s = p.spans[span];
    uint32_t position = s.pos_first + row - s.row_first;
    unsigned char *page = p.pages[p.tables[s.table_first + position / KV_PAGE]];
    if (!page) {
        *p.failed = 1;
        return;
    }
    pages_store(page + p.offset + (size_t)head * p.head_bytes + (key ? 0 : p.k_bytes), key ? p.pk : p.pv, d, position % KV_PAGE, key, x,
                codes[warp], lane);
}

/* ---- planes to f16 ---- */

/* Element e of a slot as it is stored (not turned back). */
static __device__ __forceinline__ float pages_value(const unsigned char *plane, const cuda_plane &p, uint32_t d, uint32_t slot, uint32_t e,
                                                    bool key)
{
    size_t at = key ? (size_t)e * KV_PAGE + slot : (size_t)slot * d + e;
    if (p.format == KV_F32)
        return ((const float *)plane)[at];
    if (p.format == KV_F16)
        return __half2float(((const __half *)plane)[at]);
    if (p.format == KV_BF16)
        return __uint_as_float((uint32_t)((const uint16_t *)plane)[at] << 16);
    uint32_t b = e / 32, i = e % 32;
    int v;
    if (p.bits == 8) {
        uint32_t c = plane[pages_code_at(p, d, slot, b, i, key)];
        v = p.code == CODE_AFFINE ? (int)c : (int)(int8_t)c;
    } else if (p.bits == 4) {
        uint32_t c = plane[pages_code_at(p, d, slot, b, i % 16, key)] >> (i / 16 * 4) & 15;
        v = p.code == CODE_AFFINE ? (int)c : p.code == CODE_SIGNED ? (int)c - 8 : book4[c];
    } else {
        uint32_t c = (plane[pages_code_at(p, d, slot, b, i % 8, key)] >> (i / 8 * 2) & 3) |
                     (plane[pages_code_at(p, d, slot, b, 8 + i % 4, key)] >> (i / 4) & 1) << 2;
        v = book3[c];
    }
    size_t s = pages_scale_at(p, slot, e / p.group, key);
    float scale = pages_float(((const uint16_t *)(plane + p.scales_at))[s]);
    float minimum = p.minima_at ? pages_float(((const uint16_t *)(plane + p.minima_at))[s]) : 0.0f;
    return __fmaf_rn((float)v, scale, minimum);
}

static __device__ __forceinline__ __half pages_to_half(float v) /* within f16; NaN stays */
{
    return __float2half_rn(v > 65504.0f ? 65504.0f : v < -65504.0f ? -65504.0f : v);
}

/* 16 bytes to shared memory without a register; `there` false: zeros.  pages_arrived waits for all of a thread's. */
static __device__ __forceinline__ void pages_copy(__half *to, const void *from, bool there)
{
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"((uint32_t)__cvta_generic_to_shared(to)), "l"(from), "r"(there ? 16 : 0)
                 : "memory");
}
static __device__ __forceinline__ void pages_arrived(void)
{
    asm volatile("cp.async.wait_all;" ::: "memory");
}

/* K of a page, elements [from, from + n), to [element][position]; rows up to a multiple of 16 are cleared.  NULL: zeros. */
static __device__ void pages_keys(const unsigned char *plane, const cuda_plane &p, uint32_t d, uint32_t from, uint32_t n, __half *to,
                                  uint32_t stride, uint32_t me, uint32_t threads)
{
    uint32_t rows = (n + 15) / 16 * 16;
    if (plane && p.format == KV_F16) {
        for (uint32_t i = me; i < rows * 4; i += threads)
            pages_copy(to + (i / 4) * stride + i % 4 * 8, (const uint4 *)plane + (i / 4 < n ? (from + i / 4) * 4 + i % 4 : 0), i / 4 < n);
        return;
    }
    for (uint32_t i = me; i < rows * KV_PAGE; i += threads) {
        uint32_t e = i / KV_PAGE, slot = i % KV_PAGE;
        to[e * stride + slot] = plane && e < n ? pages_to_half(pages_value(plane, p, d, slot, from + e, true)) : __float2half_rn(0.0f);
    }
}

/* V of a page to [position][element of 128]; slots outside [least, most] are zeros.  Latent: V is the beginning of K's plane. */
static __device__ void pages_values(const unsigned char *plane, const cuda_plane &p, uint32_t d, uint32_t from, uint32_t n, __half *to,
                                    uint32_t stride, int least, int most, bool latent, uint32_t me, uint32_t threads)
{
    if (latent) { /* neighbours in the plane are positions */
        for (uint32_t i = me; i < KV_PAGE * 128; i += threads) {
            int slot = (int)(i % KV_PAGE);
            uint32_t e = i / KV_PAGE;
            bool there = plane && slot >= least && slot <= most && e < n;
            to[slot * stride + e] = there ? pages_to_half(pages_value(plane, p, d, (uint32_t)slot, from + e, true)) : __float2half_rn(0.0f);
        }
        return;
    }
    if (plane && p.format == KV_F16 && n % 8 == 0) {
        for (uint32_t i = me; i < KV_PAGE * 16; i += threads) {
            int slot = (int)(i / 16);
            uint32_t e = i % 16 * 8;
            bool there = slot >= least && slot <= most && e < n;
            pages_copy(to + slot * stride + e, (const __half *)plane + (there ? (size_t)slot * d + from + e : 0), there);
        }
        return;
    }
    for (uint32_t i = me; i < KV_PAGE * 128; i += threads) {
        int slot = (int)(i / 128);
        uint32_t e = i % 128;
        bool there = plane && slot >= least && slot <= most && e < n;
        to[slot * stride + e] = there ? pages_to_half(pages_value(plane, p, d, (uint32_t)slot, from + e, false)) : __float2half_rn(0.0f);
    }
}

#endif
