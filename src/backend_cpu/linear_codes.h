/* backend_cpu/linear_codes.h - what the panels of each format hold, as vectors: codes, scales and minima; and the formats themselves.
 *
 * Included by linear_tile.h, after the vector words.  Two vectors of 32-bit lanes make a column group: with 8 lanes (avx2) the two
 * halves of one panel, with 16 lanes two panels, `delta` bytes apart. */

#define INLINE static inline __attribute__((always_inline))

#define ROWS1(X, g) X(0, g)
#define ROWS2(X, g) X(0, g) X(1, g)
#define ROWS4(X, g) X(0, g) X(1, g) X(2, g) X(3, g)
#define ROWS8(X, g) X(0, g) X(1, g) X(2, g) X(3, g) X(4, g) X(5, g) X(6, g) X(7, g)

/* Second vector's distance from the first for [16] elements of e bytes. */
#if VEC_BYTES == 32
#define SECOND(e) (8 * (e))
#define PANEL_STEP 1
#else
#define SECOND(e) delta
#define PANEL_STEP 2
#endif
#define AT(p, v, e) ((p) + ((v) ? SECOND(e) : 0))

/* ---- codes: vector v of group g of a body ---- */

INLINE vi nibble(const uint8_t *body, int g, int v, size_t delta)
{
    (void)delta;
    vi raw = vec_load(AT(body + 64 * (g & 3), v, 4));
    return vec_and(g < 4 ? raw : vec_srl16(raw, 4), vec_set8(15));
}
INLINE vi pair(const uint8_t *plane, int g, int v, int to, size_t delta) /* 2 bits, at bit `to` */
{
    (void)delta;
    vi raw = vec_load(AT(plane + 64 * (g >> 2), v, 4));
    int shift = 2 * (g & 3) - to;
    return vec_and(shift >= 0 ? vec_srl16(raw, shift) : vec_sll16(raw, -shift), vec_set8(3 << to));
}
INLINE vi bit(const uint8_t *plane, int g, int v, int to, size_t delta)
{
    (void)delta;
    vi raw = vec_load(AT(plane, v, 4));
    int shift = g - to;
    return vec_and(shift >= 0 ? vec_srl16(raw, shift) : vec_sll16(raw, -shift), vec_set8(1 << to));
}
INLINE vi six(const uint8_t *body, int g, int v, size_t delta)
{
    (void)delta;
    const uint8_t *p = body + 192 * (g >> 2) + 64 * (g & 3);
    if ((g & 3) < 3)
        return vec_and(vec_load(AT(p, v, 4)), vec_set8(63));
    p -= 192;
    vi low = vec_and(vec_srl16(vec_load(AT(p, v, 4)), 6), vec_set8(3));
    vi middle = vec_and(vec_srl16(vec_load(AT(p + 64, v, 4)), 4), vec_set8(12));
    return vec_or(vec_or(low, middle), vec_and(vec_srl16(vec_load(AT(p + 128, v, 4)), 2), vec_set8(48)));
}
#define CODE2(b, g, v) pair(b, g, v, 0, delta)
#define CODE3(b, g, v) vec_or(pair(b, g, v, 0, delta), bit((b) + 128, g, v, 2, delta))
#define CODE4(b, g, v) nibble(b, g, v, delta)
#define CODE5(b, g, v) vec_or(nibble(b, g, v, delta), bit((b) + 256, g, v, 4, delta))
#define CODE6(b, g, v) six(b, g, v, delta)
#define CODE8(b, g, v) vec_signed(vec_load(AT((b) + 64 * (g), v, 4)))
#define CODE_IQ4(b, g, v) vec_lookup(table_iq4, nibble(b, g, v, delta))
#define CODE_FP4(b, g, v) vec_lookup(table_fp4, nibble(b, g, v, delta))

/* ---- scales of vector v ---- */

#define F16_AT(p, v) vec_f16(AT(p, v, 2))
#define U8_AT(p, v) vec_u8(AT(p, v, 1)) /* as 32-bit lanes */
#define I8_AT(p, v) vec_i8(AT(p, v, 1))

INLINE vf mlx_scale(const uint8_t *p, int v, enum cpu_scale t, size_t delta)
{
    (void)delta;
    if (t == CPU_SCALE_BF16)
        return vec_bf16(AT(p, v, 2));
    if (t == CPU_SCALE_F16)
        return vec_f16(AT(p, v, 2));
    return vec_loadf((const float *)(const void *)AT(p, v, 4));
}
/* 2^(e - 128), as the exponent's bits; below 2^-126 they are a bit of the mantissa. */
INLINE vf e8m0_half(const uint8_t *p, int v, size_t delta)
{
    (void)delta;
    vi e = U8_AT(p, v);
    vi normal = vec_sll32(vec_addd(e, vec_set32(-1)), 23), tiny = vec_sllv32(vec_set32(0x00200000), e);
    return vec_as_f(vec_select_less(e, vec_set32(2), tiny, normal));
}

/* Parts of a block as macros of (unit, block, ...) so that one text serves panels and chunks. */
#define NO_M(u, b, v) vec_zerof()
#define NO_SC(b, h, v) vec_scale(vec_set32(1))
#define NO_MN(b, v) vec_set32(0)
#define F16_D(u, b, v) F16_AT(u, v)
#define F16_M(u, b, v) F16_AT((u) + 32, v)
#define K4_D(u, b, v) vec_mul(F16_AT(u, v), vec_tof(U8_AT(b, v)))
#define K4_M(u, b, v) vec_neg(vec_mul(F16_AT((u) + 32, v), vec_tof(U8_AT((b) + 16, v))))
#define K2_M(u, b, v) vec_neg(F16_AT((u) + 32, v))
#define K2_SC(b, h, v) vec_scale(vec_and(U8_AT((b) + 16 * (h), v), vec_set32(15)))
#define K2_MN(b, v) vec_or(vec_srl32(U8_AT(b, v), 4), vec_sll32(vec_srl32(U8_AT((b) + 16, v), 4), 16))
#define K6_SC(b, h, v) vec_scale(I8_AT((b) + 16 * (h), v))
#define IQ4_D(u, b, v) vec_mul(F16_AT(u, v), vec_tof(I8_AT(b, v)))
#define FP4_D(u, b, v) e8m0_half(u, v, delta)
#define MLX_D(u, b, v) mlx_scale(u, v, scale, delta)
#define MLX_M(u, b, v) mlx_scale((u) + unit_head / 2, v, scale, delta)

/* class: kind, Z, POST, minimum */
#define TILE_CLASSES(X)                        \
    X(W0F, KIND_WIDE, 0, 0, MIN_FLOAT)         \
    X(W8, KIND_WIDE, 8, 0, MIN_NONE)           \
    X(W12, KIND_WIDE, 12, 0, MIN_NONE)         \
    X(W16, KIND_WIDE, 16, 0, MIN_NONE)         \
    X(W16F, KIND_WIDE, 16, 16, MIN_FLOAT)      \
    X(S, KIND_SIGNED, 0, 0, MIN_NONE)          \
    X(S128F, KIND_SIGNED, 0, 128, MIN_FLOAT)   \
    X(H0I, KIND_HALVES, 0, 0, MIN_INT)         \
    X(H4, KIND_HALVES, 4, 0, MIN_NONE)         \
    X(H32, KIND_HALVES, 32, 0, MIN_NONE)       \
    X(H32F, KIND_HALVES, 32, 32, MIN_FLOAT)
enum tile_class {
#define CLASS_ENUM(name, kind, z, post, min) CLASS_##name,
    TILE_CLASSES(CLASS_ENUM)
#undef CLASS_ENUM
    CLASS_COUNT
};
#define CLASS_CONSTANTS(name, kind, z, post, min) enum { KIND_OF_##name = kind, Z_OF_##name = z, POST_OF_##name = post, MIN_OF_##name = min };
TILE_CLASSES(CLASS_CONSTANTS)
#undef CLASS_CONSTANTS

/* format, direct rows (ONE: 1; FEW: 1, 2 and 4, for the formats that models are mostly made of), class, code, D, M, SC, MN, block
 * header, body */
#define TILE_FORMATS(X)                                                     \
    X(Q4_0, FEW, W8, CODE4, F16_D, NO_M, NO_SC, NO_MN, 0, 256)              \
    X(Q4_1, FEW, W0F, CODE4, F16_D, F16_M, NO_SC, NO_MN, 0, 256)            \
    X(Q5_0, ONE, W16, CODE5, F16_D, NO_M, NO_SC, NO_MN, 0, 320)             \
    X(Q5_1, ONE, W16F, CODE5, F16_D, F16_M, NO_SC, NO_MN, 0, 320)           \
    X(Q8_0, FEW, S, CODE8, F16_D, NO_M, NO_SC, NO_MN, 0, 512)               \
    X(Q2_K, ONE, H0I, CODE2, F16_D, K2_M, K2_SC, K2_MN, 32, 128)            \
    X(Q3_K, ONE, H4, CODE3, F16_D, NO_M, K6_SC, NO_MN, 32, 192)             \
    X(Q4_K, FEW, W0F, CODE4, K4_D, K4_M, NO_SC, NO_MN, 32, 256)             \
    X(Q5_K, ONE, W16F, CODE5, K4_D, K4_M, NO_SC, NO_MN, 32, 320)            \
    X(Q6_K, FEW, H32, CODE6, F16_D, NO_M, K6_SC, NO_MN, 32, 384)            \
    X(IQ4_NL, ONE, S, CODE_IQ4, F16_D, NO_M, NO_SC, NO_MN, 0, 256)          \
    X(IQ4_XS, ONE, S, CODE_IQ4, IQ4_D, NO_M, NO_SC, NO_MN, 16, 256)         \
    X(MXFP4, ONE, W12, CODE_FP4, FP4_D, NO_M, NO_SC, NO_MN, 0, 256)         \
    X(MLX2, ONE, W0F, CODE2, MLX_D, MLX_M, NO_SC, NO_MN, 0, 128)            \
    X(MLX3, ONE, W0F, CODE3, MLX_D, MLX_M, NO_SC, NO_MN, 0, 192)            \
    X(MLX4, FEW, W0F, CODE4, MLX_D, MLX_M, NO_SC, NO_MN, 0, 256)            \
    X(MLX5, ONE, W16F, CODE5, MLX_D, MLX_M, NO_SC, NO_MN, 0, 320)           \
    X(MLX6, ONE, H32F, CODE6, MLX_D, MLX_M, NO_SC, NO_MN, 0, 384)           \
    X(MLX8, ONE, S128F, CODE8, MLX_D, MLX_M, NO_SC, NO_MN, 0, 512)
