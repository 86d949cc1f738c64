/* backend_cuda/k_weight.cu - weights: from the files' rows to packed tiles, and rows of the embedding.
 *
 * What a lane reads of a tile says weight_layout.cuh, what the files hold weight_raw.cuh. */
#include "backend_cuda/weight_layout.cuh"
#include "backend_cuda/weight_raw.cuh"

enum { ROW_THREADS = 1024 };

/* Called, not inlined: every type's layout stands here once, not once a column of every kind. */
static __device__ __noinline__ raw_column column_of(const cuda_raw &w, const uint8_t *row, uint32_t k)
{
    return raw_at(w, row, k);
}
static __device__ __noinline__ float value_of(const cuda_raw &w, const uint8_t *row, uint32_t k)
{
    return raw_value(w, row, k);
}

static __device__ __forceinline__ void embed_at(const cuda_p_embed &p, uint32_t r, uint32_t c)
{
    uint32_t id = p.ids[r];
    float v = 0;
    if (p.wrap && id != 0xffffffffu && id >= p.vocab)
        id = 0;
    if (id != 0xffffffffu && id >= p.vocab)
        *p.failed = 1;
    else if (id != 0xffffffffu)
        v = value_of(p.raw, p.raw.data + (size_t)id * p.raw.row_bytes, c);
    p.y[(size_t)r * p.stride + c] = v * p.scale;
}
static __global__ void embed(const __grid_constant__ cuda_p_embed p)
{
    dev_begin();
    uint32_t c = blockIdx.x * blockDim.x + threadIdx.x;
    for (uint32_t r = blockIdx.y; c < p.raw.cols && r < p.rows; r += gridDim.y)
        embed_at(p, r, c);
}

static __device__ __forceinline__ bool scale_is_fp(uint32_t kind)
{
    return kind == CUDA_KIND_FP4;
}

static __device__ __forceinline__ bool kind_is_bare(uint32_t kind)
{
    switch (kind) {
#define BARE(name, bits, scale, off) \
    case CUDA_KIND_##name:           \
        return layout_bare(bits, CUDA_SCALE_##scale);
        CUDA_KINDS(BARE)
#undef BARE
    }
    return false;
}

/* Largest magnitude a row needs in f16 -> its power of two.  row_scale takes it back. */
static __global__ void __launch_bounds__(ROW_THREADS) row_scale(const __grid_constant__ cuda_p_repack p)
{
    dev_begin();
    __shared__ float shared[32];
    const uint8_t *row = p.raw.data + (size_t)blockIdx.x * p.raw.row_bytes;
    float most = 0, scale = 0;
    for (uint32_t k = threadIdx.x; k < p.raw.cols; k += blockDim.x) {
        float v = fabsf(value_of(p.raw, row, k));
        if (!raw_is_float(p.raw.type)) {
            raw_column c = column_of(p.raw, row, k);
            float d = fabsf(c.d), ds = fabsf(c.d * c.sc), m = fabsf(c.m), mm = fabsf(c.m * c.mn);
            if (scale_is_fp(p.kind))
                d = d * 12.0f, ds = d;
            scale = fmaxf(scale, fmaxf(d, ds));
            v = d > v || d != d ? d : v, v = ds > v || ds != ds ? ds : v, v = m > v || m != m ? m : v, v = mm > v || mm != mm ? mm : v;
        }
        most = v > most || v != v ? v : most;
    }
    most = dev_block_max(most, shared);
    scale = dev_block_max(scale, shared);
    if (threadIdx.x)
        return;
    int e = (int)(__float_as_uint(most) >> 23) & 255, up = e < 14 ? 0 : (scale_is_fp(p.kind) ? 126 : 140) - e;
    if (kind_is_bare(p.kind)) { /* scales times 2^24 have to be f16 */
        int most_up = 118 - (int)((__float_as_uint(scale) + 0x1000) >> 23); /* as rounded: just below a power of two it would become infinite */
        up = most_up < up ? most_up : up;
    }
    up = up < -126 ? -126 : up > 126 ? 126 : up;
    if (e == 255)
        *p.bad = p.number, up = 0;
    p.row_scale[p.first + blockIdx.x] = __uint_as_float((uint32_t)(127 - up) << 23);
}

static __device__ __forceinline__ uint32_t bits_of(float v, float up)
{
    return __half_as_ushort(__float2half_rn(v * up));
}
/* of a scale of row g or, r 1, g + 8 */
static __device__ __forceinline__ uint32_t scale_bits(float v, float up, uint32_t bits, uint32_t scale, int r)
{
    return bits_of(v * up, layout_bare(bits, scale) ? (r ? 0x1p20f : 0x1p24f) : 1.0f);
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
        return there(o, k) ? column_of(p->raw, row(o), k).code : 0;
    }
    __device__ float up(uint32_t o) const /* the inverse of a power of two, exactly */
    {
        return o < p->first + p->rows ? 1.0f / p->row_scale[o] : 1.0f;
    }
    __device__ raw_column at(uint32_t o, uint32_t k) const
    {
        raw_column none = {0, 0, 0, 0, 0};
        return there(o, k) ? column_of(p->raw, row(o), k) : none;
    }
    __device__ void floats() const
    {
        for (int c = 0; c < 4; c++)
            for (int i = 0; i < 4; i++) {
                uint32_t o = out_row(i), k = column(c, i), v = 0;
                for (int e = 0; e < 2; e++)
                    if (there(o, k + e))
                        v |= bits_of(value_of(p->raw, row(o), k + e), up(o)) << 16 * e;
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
    __device__ void scales(uint32_t bits, uint32_t scale, float fp) const
    {
        uint32_t g = lane >> 2;
        uint8_t *s = to + layout_code_bytes(bits);
        for (int r = 0; r < 2; r++) {
            uint32_t o = tile * 16 + g + 8 * r;
            float by = up(o);
            for (int c = 0; c < 4; c++) {
                raw_column x = at(o, u * 64 + 16 * c);
                uint16_t d = (uint16_t)scale_bits(x.d * x.sc * fp, by, bits, scale, r), m = (uint16_t)bits_of(x.m * x.mn, by);
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
                    s[g * 8 + 4 * r + c / 2 * 2] = (uint8_t)x.sc, s[g * 8 + 4 * r + c / 2 * 2 + 1] = (uint8_t)x.mn;
                if (scale == CUDA_SCALE_SIXTEEN)
                    s[g * 8 + 2 * c + r] = (uint8_t)((int)x.sc + 128);
            }
        }
    }
    __device__ void factors(uint32_t bits, uint32_t scale, uint8_t *s) const /* of 256 columns */
    {
        uint32_t g = lane >> 2;
        for (int r = 0; r < 2; r++) {
            uint32_t o = tile * 16 + g + 8 * r;
            raw_column x = at(o, u * 64);
            if (scale == CUDA_SCALE_SUPER) {
                ((uint16_t *)(s + g * 8))[2 * r] = (uint16_t)scale_bits(x.d, up(o), bits, scale, r);
                ((uint16_t *)(s + g * 8))[2 * r + 1] = (uint16_t)bits_of(-x.m, up(o));
            } else {
                ((uint16_t *)(s + g * 4))[r] = (uint16_t)bits_of(x.d, up(o));
            }
        }
    }
};

/* The kind's form, and where a unit of it lies. */
struct form {
    uint32_t bits, scale, at, factors; /* factors of its four units; 0: none, or not the first of the four */
};

static __device__ form form_of(uint32_t kind, uint32_t u)
{
    switch (kind) {
#define FORM(name, b, s, off)                                                                                                  \
    case CUDA_KIND_##name: {                                                                                                   \
        using lay = layout<b, CUDA_SCALE_##s, off>;                                                                            \
        return {b, CUDA_SCALE_##s, lay::unit_at(u), lay::super_bytes && u % 4 == 0 ? u / 4 * lay::four_bytes + 4 * lay::unit_bytes : 0}; \
    }
        CUDA_KINDS(FORM)
    }
    return {0, 0, 0, 0};
}

static __global__ void repack(const __grid_constant__ cuda_p_repack p)
{
    dev_begin();
    uint64_t i = (uint64_t)blockIdx.x * blockDim.x + threadIdx.x;
    uint32_t lane = (uint32_t)i & 31, u = (uint32_t)((i >> 5) % p.units), tile = p.first / 16 + (uint32_t)((i >> 5) / p.units);
    if (tile * 16 >= p.first + p.rows)
        return;
    form f = form_of(p.kind, u);
    uint8_t *base = p.planes + (size_t)tile * p.tile_bytes;
    packer k = {&p, base + f.at, tile, u, lane};
    if (f.bits == 16) {
        k.floats();
        return;
    }
    k.codes(f.bits);
    if (lane % 4)
        return;
    k.scales(f.bits, f.scale, f.scale == CUDA_SCALE_FP ? 32768.0f : 1.0f); /* fp4: twice 2^14 times the halved scale */
    if (f.factors)
        k.factors(f.bits, f.scale, base + f.factors);
}

extern "C" const void *const cuda_kernels_weight[CUDA_K_WEIGHT_COUNT] = {(const void *)embed, (const void *)row_scale, (const void *)repack};
