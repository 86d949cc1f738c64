/* backend_cuda/weight_layout.cuh - packed weights: where the bytes of a unit are, and how a lane takes them to matrix fragments.
 *
 * A tile is 16 rows, a unit 64 columns of them, a chunk 16 columns: one A operand of mma.m16n8k16.  Lane (g = lane / 4, t = lane % 4) holds of
 * a chunk c the pairs i = 0..3: row g + 8 (i & 1), columns 16 c + 2 t + 8 (i >> 1) and the next.
 * A unit's bytes:  codes, then scales [8 g][...]; SUPER and SIXTEEN have f16 factors behind every fourth unit.
 *   16 bits: [chunk][lane] 16 bytes;  8: [chunk pair][lane] 16 bytes, a chunk = 8 codes in pair order
 *   4: [lane] a word a chunk, low halves of the pairs at bits 4 i, high halves at 16 + 4 i
 *   5, 6: as 4, then [lane] a word (two words) of high bits: pair p = 4 c + i at bit p (2 (p % 8)) and 16 above
 * 4 bits with a minimum: a code is read as the f16 that its bits are where they lie, times 2^-24 in row g, 2^-20 in row g + 8; scales have that taken back.
 * Values are f16: code to f16 exactly, then one fused multiply-add with scale and minimum in f16: one rounding. */
#ifndef RH_CUDA_WEIGHT_LAYOUT_CUH
#define RH_CUDA_WEIGHT_LAYOUT_CUH

#include "backend_cuda/device_math.cuh"
#include "backend_cuda/kernels.h"

static __host__ __device__ constexpr uint32_t layout_code_bytes(uint32_t bits) { return bits == 16 ? 2048 : bits == 8 ? 1024 : bits == 6 ? 768 : bits == 5 ? 640 : 512; }
static __host__ __device__ constexpr uint32_t layout_scale_bytes(uint32_t scale)
{
    return scale == CUDA_SCALE_NONE ? 0 : scale == CUDA_SCALE_TWO ? 128 : scale == CUDA_SCALE_FINE ? 256 : 64;
}
static __host__ __device__ constexpr uint32_t layout_super_bytes(uint32_t scale) { return scale == CUDA_SCALE_SUPER ? 64 : scale == CUDA_SCALE_SIXTEEN ? 32 : 0; }

template <int BITS, int SCALE, int OFF> struct layout {
    static constexpr uint32_t unit_bytes = layout_code_bytes(BITS) + layout_scale_bytes(SCALE);
    static constexpr uint32_t super_bytes = layout_super_bytes(SCALE);
    static constexpr uint32_t four_bytes = 4 * unit_bytes + super_bytes;
    static __host__ __device__ __forceinline__ uint32_t unit_at(uint32_t u)
    {
        return super_bytes ? u / 4 * four_bytes + u % 4 * unit_bytes : u * unit_bytes;
    }
    static __host__ __device__ uint32_t tile_bytes(uint32_t units)
    {
        return super_bytes ? units / 4 * four_bytes : units * unit_bytes;
    }
    /* Pieces that are copied at once: whole fours where these have factors, else about 2 KB. */
    static constexpr uint32_t piece_units = super_bytes ? 4 : unit_bytes >= 2048 ? 1 : unit_bytes >= 1024 ? 2 : 4;
    static constexpr uint32_t piece_bytes = piece_units * unit_bytes + super_bytes;
};

/* Where packed weights are read: in device memory, or in shared memory where a bulk copy put them. */
struct read_global {
    static __device__ __forceinline__ uint4 read16(const uint8_t *p)
    {
        uint4 v;
        asm("ld.global.nc.L1::no_allocate.L2::128B.v4.u32 {%0, %1, %2, %3}, [%4];" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(p));
        return v;
    }
    static __device__ __forceinline__ uint2 read8(const uint8_t *p)
    {
        uint2 v;
        asm("ld.global.nc.L1::no_allocate.v2.u32 {%0, %1}, [%2];" : "=r"(v.x), "=r"(v.y) : "l"(p));
        return v;
    }
    static __device__ __forceinline__ uint32_t read4(const uint8_t *p)
    {
        uint32_t v;
        asm("ld.global.nc.L1::no_allocate.u32 %0, [%1];" : "=r"(v) : "l"(p));
        return v;
    }
};
struct read_shared {
    static __device__ __forceinline__ uint4 read16(const uint8_t *p) { return *reinterpret_cast<const uint4 *>(p); }
    static __device__ __forceinline__ uint2 read8(const uint8_t *p) { return *reinterpret_cast<const uint2 *>(p); }
    static __device__ __forceinline__ uint32_t read4(const uint8_t *p) { return *reinterpret_cast<const uint32_t *>(p); }
};

static __host__ __device__ constexpr bool layout_bare(uint32_t bits, uint32_t scale) /* codes that need no conversion: see above */
{
    return bits == 4 && (scale == CUDA_SCALE_TWO || scale == CUDA_SCALE_WIDE || scale == CUDA_SCALE_FINE || scale == CUDA_SCALE_SUPER);
}

static __device__ __forceinline__ __half2 layout_half2(uint32_t v) { return *reinterpret_cast<__half2 *>(&v); }
static __device__ __forceinline__ uint32_t layout_bits(__half2 v) { return *reinterpret_cast<uint32_t *>(&v); }
static __device__ __forceinline__ __half2 layout_both(uint32_t pair, int which) /* one half of a pair, twice */
{
    return layout_half2(__byte_perm(pair, pair, which ? 0x3232 : 0x1010));
}

/* 1024 twice in f16, which the compiler takes for a variable. */
static __device__ __forceinline__ uint32_t layout_magic(void)
{
    uint32_t v;
    asm("mov.u32 %0, 0x64006400;" : "=r"(v));
    return v;
}

/* One lane's share of a unit: loaded whole, then taken apart chunk by chunk. */
template <int BITS, int SCALE, int OFF> struct unit {
    uint4 code[BITS == 16 ? 4 : BITS == 8 ? 2 : 1];
    uint2 high;      /* of 5 and 6 bits */
    uint4 scale[SCALE == CUDA_SCALE_FINE ? 2 : 1];
    uint2 super;
    template <class FROM = read_global> __device__ __forceinline__ void load(const uint8_t *tile, uint32_t u, uint32_t lane)
    {
        load_at<FROM>(tile + layout<BITS, SCALE, OFF>::unit_at(u), tile + layout<BITS, SCALE, OFF>::unit_at(u / 4 * 4) + 4 * layout<BITS, SCALE, OFF>::unit_bytes, lane);
    }
    template <class FROM> __device__ __forceinline__ void load_at(const uint8_t *p, const uint8_t *factors, uint32_t lane) /* factors: behind the unit's four */
    {
#pragma unroll
        for (int i = 0; i < (BITS == 16 ? 4 : BITS == 8 ? 2 : 1); i++)
            code[i] = FROM::read16(p + i * 512 + lane * 16);
        if (BITS == 5)
            high.x = FROM::read4(p + 512 + lane * 4);
        if (BITS == 6)
            high = FROM::read8(p + 512 + lane * 8);
        const uint8_t *s = p + layout_code_bytes(BITS);
        uint32_t g = lane >> 2;
        if (SCALE == CUDA_SCALE_TWO) {
            scale[0] = FROM::read16(s + g * 16);
        } else if (SCALE == CUDA_SCALE_FINE) {
            scale[0] = FROM::read16(s + g * 32);
            scale[1] = FROM::read16(s + g * 32 + 16);
        } else if (SCALE != CUDA_SCALE_NONE) {
            uint2 v = FROM::read8(s + g * 8);
            scale[0].x = v.x, scale[0].y = v.y;
        }
        if (SCALE == CUDA_SCALE_SUPER)
            super = FROM::read8(factors + g * 8);
        if (SCALE == CUDA_SCALE_SIXTEEN)
            super.x = FROM::read4(factors + g * 4);
    }

    /* Scales and minima of a chunk for both rows of the lane. */
    __device__ __forceinline__ void scales(int c, __half2 *d, __half2 *m) const
    {
        const uint32_t *s = reinterpret_cast<const uint32_t *>(scale);
        if (SCALE == CUDA_SCALE_ONE || SCALE == CUDA_SCALE_BOOK || SCALE == CUDA_SCALE_FP || SCALE == CUDA_SCALE_TWO) {
            d[0] = layout_both(s[0], c >> 1), d[1] = layout_both(s[1], c >> 1);
            if (SCALE == CUDA_SCALE_TWO)
                m[0] = layout_both(s[2], c >> 1), m[1] = layout_both(s[3], c >> 1);
        } else if (SCALE == CUDA_SCALE_WIDE) {
            d[0] = layout_both(s[0], 0), d[1] = layout_both(s[0], 1);
            m[0] = layout_both(s[1], 0), m[1] = layout_both(s[1], 1);
        } else if (SCALE == CUDA_SCALE_FINE) {
            d[0] = layout_both(s[c >> 1], c & 1), d[1] = layout_both(s[2 + (c >> 1)], c & 1);
            m[0] = layout_both(s[4 + (c >> 1)], c & 1), m[1] = layout_both(s[6 + (c >> 1)], c & 1);
        } else if (SCALE == CUDA_SCALE_SUPER) { /* s[0]: scale and minimum of both blocks of row g; s[1]: of row g + 8 */
            const __half2 bias = __float2half2_rn(1024.0f);
            int b = c >> 1;
#pragma unroll
            for (int r = 0; r < 2; r++) {
                uint32_t factors = r ? super.y : super.x; /* d, -dmin */
                uint32_t both = __byte_perm(s[r], 0x64646464u, b ? 0x4342 : 0x4140); /* scale, minimum */
                __half2 product = __hmul2(__hsub2(layout_half2(both), bias), layout_half2(factors));
                d[r] = __low2half2(product), m[r] = __high2half2(product);
            }
        } else if (SCALE == CUDA_SCALE_SIXTEEN) { /* bytes of chunk after chunk, row g and row g + 8 */
            const __half2 bias = __float2half2_rn(1152.0f);
            uint32_t both = __byte_perm(s[c >> 1], 0x64646464u, c & 1 ? 0x4342 : 0x4140);
            __half2 product = __hmul2(__hsub2(layout_half2(both), bias), layout_half2(super.x));
            d[0] = __low2half2(product), d[1] = __high2half2(product);
        }
    }

    /* Pair i of chunk c as exact integers in f16, offset taken off; or bare. */
    __device__ __forceinline__ __half2 pair(int c, int i) const
    {
        const uint32_t *w = reinterpret_cast<const uint32_t *>(code);
        if (BITS == 8) {
            uint32_t v = __byte_perm(w[2 * c + (i >> 1)], 0x64646464u, i & 1 ? 0x4342 : 0x4140);
            return __hsub2(layout_half2(v), __float2half2_rn(1024.0f + OFF));
        }
        uint32_t v = w[c] >> (i >> 1) * 8; /* the pair's nibbles at bits 0 or 4 of each half */
        int p = 4 * c + i;
        const uint32_t mask = i & 1 ? 0x00f000f0u : 0x000f000fu;
        uint32_t bits;
        if (layout_bare(BITS, SCALE))
            return layout_half2(v & mask);
        asm("lop3.b32 %0, %1, %2, %3, 0xea;" : "=r"(bits) : "r"(v), "r"(mask), "r"(layout_magic())); /* one operation: magic is in a register */
        if (BITS == 5) {
            int to = i & 1 ? 8 : 4;
            bits |= (p < to ? high.x << (to - p) : high.x >> (p - to)) & (i & 1 ? 0x01000100u : 0x00100010u);
        }
        if (BITS == 6) {
            uint32_t h = c & 2 ? high.y : high.x;
            int to = i & 1 ? 8 : 4, from = 2 * (p & 7);
            bits |= (from < to ? h << (to - from) : h >> (from - to)) & (i & 1 ? 0x03000300u : 0x00300030u);
        }
        if (i & 1)
            return __hfma2(layout_half2(bits), __float2half2_rn(0.0625f), __float2half2_rn(-64.0f - OFF));
        return __hsub2(layout_half2(bits), __float2half2_rn(1024.0f + OFF));
    }

    __device__ __forceinline__ void book(int c, __half2 *v) const /* IQ4's values, exact */
    {
        const uint32_t t0 = 0x3f2d1801u, t1 = 0x766a5d4fu; /* values + 128: 1 24 45 63 | 79 93 106 118 */
        const uint32_t t2 = 0xa6998d81u, t3 = 0xf1d9c5b5u;               /* 129 141 153 166 | 181 197 217 241 */
        uint32_t w = reinterpret_cast<const uint32_t *>(code)[c], bytes[2];
#pragma unroll
        for (int h = 0; h < 2; h++) {
            uint32_t n = h ? w >> 16 : w & 0xffffu;
            uint32_t low = __byte_perm(t0, t1, n & 0x7777u), high8 = __byte_perm(t2, t3, n & 0x7777u);
            bytes[h] = __byte_perm(low, high8, 0x3210u | (n & 0x8888u) >> 1);
        }
#pragma unroll
        for (int i = 0; i < 4; i++) {
            uint32_t two = __byte_perm(bytes[0], bytes[1], (uint32_t)(i | (4 + i) << 4));
            v[i] = __hsub2(layout_half2(__byte_perm(two, 0x64646464u, 0x4140)), __float2half2_rn(1152.0f));
        }
    }

    __device__ __forceinline__ __half2 fp4(int c, int i) const /* 2^-14 times the value, exact */
    {
        uint32_t w = reinterpret_cast<const uint32_t *>(code)[c];
        uint32_t at0 = i == 3 ? w >> 3 : w << (9 - 4 * i), sign = i == 3 ? w : w << (12 - 4 * i);
        return layout_half2((at0 & 0x0e000e00u) | (sign & 0x80008000u));
    }

    /* Values of chunk c without their scales, and those; of 16 bits there are none. */
    __device__ __forceinline__ void codes(int c, __half2 *v, __half2 *d, __half2 *m) const
    {
        scales(c, d, m);
        if (SCALE == CUDA_SCALE_BOOK)
            book(c, v);
#pragma unroll
        for (int i = 0; i < 4; i++)
            if (SCALE == CUDA_SCALE_FP)
                v[i] = fp4(c, i);
            else if (SCALE != CUDA_SCALE_BOOK)
                v[i] = pair(c, i);
    }
    static __device__ __forceinline__ void scaled(const __half2 *v, const __half2 *d, const __half2 *m, uint32_t *a)
    {
#pragma unroll
        for (int i = 0; i < 4; i++)
            if (SCALE == CUDA_SCALE_TWO || SCALE == CUDA_SCALE_WIDE || SCALE == CUDA_SCALE_FINE || SCALE == CUDA_SCALE_SUPER)
                a[i] = layout_bits(__hfma2(v[i], d[i & 1], m[i & 1]));
            else
                a[i] = layout_bits(__hmul2(v[i], d[i & 1]));
    }

    /* The A operand of chunk c. */
    __device__ __forceinline__ void fragment(int c, uint32_t *a) const
    {
        if (BITS == 16) {
            a[0] = code[c % 4].x, a[1] = code[c % 4].y, a[2] = code[c % 4].z, a[3] = code[c % 4].w;
            return;
        }
        __half2 v[4], d[2], m[2];
        codes(c, v, d, m);
        scaled(v, d, m, a);
    }
};

#endif
