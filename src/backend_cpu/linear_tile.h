/* backend_cpu/linear_tile.h - the products of quantised panels with rows, written once for all vector levels.
 *
 * A kernel file defines the vector words (vec_*), then includes this.  Two vectors of 32-bit lanes are always in flight: with 8 lanes
 * (avx2) the two halves of one panel, with 16 lanes two panels, `delta` bytes apart.  Up to DIRECT_ROWS rows read the packed panel
 * directly; more rows go through a chunk: 8 blocks unpacked once to bytes, read by every group of rows.
 * Orders: docs/arithmetic.md, quantised linear.  One float chain per output: acc = fma(P, D s, acc), then the minimum.
 * Variables are named, not arrays: gcc keeps arrays of vectors in memory. */

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
#define CODE2(b, g, v) pair(b, g, v, 0, delta)
#define CODE3(b, g, v) vec_or(pair(b, g, v, 0, delta), bit((b) + 128, g, v, 2, delta))
#define CODE4(b, g, v) nibble(b, g, v, delta)
#define CODE5(b, g, v) vec_or(nibble(b, g, v, delta), bit((b) + 256, g, v, 4, delta))
#define CODE6(b, g, v) vec_or(nibble(b, g, v, delta), pair((b) + 256, g, v, 4, delta))
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

/* ---- one block times R rows: integer sums c<r>_<v>, then the float chains acc<r>_<v> ---- */

#define ACT(r) (a##r + at)
#define DECLARE_C(r, g) vi c##r##_0, c##r##_1;
#define DECLARE_P(r, g) vp p##r##_0, p##r##_1;
#define DECLARE_ACC(r, g) vf acc##r##_0 = vec_zerof(), acc##r##_1 = vec_zerof();
#define DECLARE_ACT(r, g) \
    const struct cpu_act *a##r = (const struct cpu_act *)(const void *)((const uint8_t *)j->x + (r) * j->x_stride);

/* start of a chain: what the offsets of the codes come to */
#define START_WIDE(r, g)                                                \
    c##r##_0 = c##r##_1 = vec_start_wide(ACT(r)->pair, KIND, Z, POST);
#define START_LOW(r, g) c##r##_0 = c##r##_1 = vec_start_half(ACT(r)->pair_lo, Z);
#define START_HIGH(r, g) c##r##_0 = c##r##_1 = vec_start_half(ACT(r)->pair_hi, Z);
/* one group onto it */
#define STEP(r, g)                                     \
    {                                                  \
        vi a = vec_repeat32(ACT(r)->q + 4 * (g));      \
        c##r##_0 = vec_dot(c##r##_0, w0, a);           \
        c##r##_1 = vec_dot(c##r##_1, w1, a);           \
    }
#define STEP_SIGNED(r, g)                                              \
    {                                                                  \
        vi a = vec_repeat32(ACT(r)->q + 4 * (g));                      \
        c##r##_0 = vec_dot_signed(c##r##_0, w0, s0, a);                \
        c##r##_1 = vec_dot_signed(c##r##_1, w1, s1, a);                \
    }
#define GROUP(ROWS, W, g)                 \
    {                                     \
        vi w0 = W(body, g, 0), w1 = W(body, g, 1);    \
        ROWS(STEP, g)                     \
    }
#define GROUP_SIGNED(ROWS, W, g)                          \
    {                                                     \
        vi w0 = W(body, g, 0), w1 = W(body, g, 1);                    \
        vsign s0 = vec_sign(w0), s1 = vec_sign(w1);       \
        w0 = vec_size(w0), w1 = vec_size(w1);             \
        ROWS(STEP_SIGNED, g)                              \
    }
/* the same from a chunk: sizes and masks were made when it was unpacked (vec_dot_flipped) */
#define START_FLIPPED(r, g) c##r##_0 = vec_load(c->fix[at][0]), c##r##_1 = vec_load(c->fix[at][1]);
#define STEP_FLIPPED(r, g)                                        \
    {                                                             \
        vi a = vec_repeat32(ACT(r)->q + 4 * (g));                 \
        c##r##_0 = vec_dot_flipped(c##r##_0, w0, s0, a);          \
        c##r##_1 = vec_dot_flipped(c##r##_1, w1, s1, a);          \
    }
#define GROUP_FLIPPED(ROWS, W, g)                                              \
    {                                                                          \
        vi w0 = W(body, g, 0), w1 = W(body, g, 1);                             \
        vi s0 = vec_load(c->flip[at][g][0]), s1 = vec_load(c->flip[at][g][1]); \
        ROWS(STEP_FLIPPED, g)                                                  \
    }
#if VEC_FLIPS
#define CHUNK_START START_FLIPPED
#define CHUNK_GROUP GROUP_FLIPPED
#else
#define CHUNK_START START_WIDE
#define CHUNK_GROUP GROUP_SIGNED
#endif
/* the finished sum as the exact float P */
#define SUM_WIDE(r, g)                                                             \
    p##r##_0 = vec_sum_wide(c##r##_0, ACT(r)->pair, KIND, POST);                   \
    p##r##_1 = vec_sum_wide(c##r##_1, ACT(r)->pair, KIND, POST);
#define SUM_LOW(r, g)                              \
    p##r##_0 = vec_sum_low(c##r##_0, sc0);         \
    p##r##_1 = vec_sum_low(c##r##_1, sc1);
#define SUM_HIGH(r, g)                                                     \
    p##r##_0 = vec_sum_high(p##r##_0, c##r##_0, sc0, ACT(r)->pair, POST);  \
    p##r##_1 = vec_sum_high(p##r##_1, c##r##_1, sc1, ACT(r)->pair, POST);
#define CHAIN(r, g)                                                                       \
    {                                                                                     \
        vf s = vec_repeatf(&ACT(r)->s);                                                   \
        acc##r##_0 = vec_fma(vec_p(p##r##_0), vec_mul(d0, s), acc##r##_0);                \
        acc##r##_1 = vec_fma(vec_p(p##r##_1), vec_mul(d1, s), acc##r##_1);                \
    }
#define CHAIN_MIN(r, g)                                                                   \
    {                                                                                     \
        vf ss = vec_repeatf(&ACT(r)->ss);                                                 \
        acc##r##_0 = vec_fma(m0, ss, acc##r##_0);                                         \
        acc##r##_1 = vec_fma(m1, ss, acc##r##_1);                                         \
    }
#define CHAIN_MIN_INT(r, g)                                                               \
    {                                                                                     \
        vf s = vec_repeatf(&ACT(r)->s);                                                   \
        vi half = vec_repeat32(ACT(r)->half);                                             \
        acc##r##_0 = vec_fma(vec_tof(vec_madd(half, n0)), vec_mul(m0, s), acc##r##_0);    \
        acc##r##_1 = vec_fma(vec_tof(vec_madd(half, n1)), vec_mul(m1, s), acc##r##_1);    \
    }

/* Uses u, b, body: the unit, the block, its codes (whatever W, D, M, SC, MN make of them); at: the block's index in the rows. */
#define BLOCK(ROWS, W, D, M, SC, MN, START, SGROUP)                                                                     \
    {                                                                                                            \
        ROWS(DECLARE_P, 0)                                                                                       \
        {                                                                                                        \
            ROWS(DECLARE_C, 0)                                                                                   \
            if (KIND == KIND_WIDE) {                                                                             \
                ROWS(START_WIDE, 0)                                                                              \
                GROUP(ROWS, W, 0) GROUP(ROWS, W, 1) GROUP(ROWS, W, 2) GROUP(ROWS, W, 3)                          \
                GROUP(ROWS, W, 4) GROUP(ROWS, W, 5) GROUP(ROWS, W, 6) GROUP(ROWS, W, 7)                          \
                ROWS(SUM_WIDE, 0)                                                                                \
            } else if (KIND == KIND_SIGNED) {                                                                    \
                ROWS(START, 0)                                                                                   \
                SGROUP(ROWS, W, 0) SGROUP(ROWS, W, 1) SGROUP(ROWS, W, 2) SGROUP(ROWS, W, 3)                      \
                SGROUP(ROWS, W, 4) SGROUP(ROWS, W, 5) SGROUP(ROWS, W, 6) SGROUP(ROWS, W, 7)                      \
                ROWS(SUM_WIDE, 0)                                                                                \
            } else {                                                                                             \
                {                                                                                                \
                    ROWS(START_LOW, 0)                                                                           \
                    GROUP(ROWS, W, 0) GROUP(ROWS, W, 1) GROUP(ROWS, W, 2) GROUP(ROWS, W, 3)                      \
                    vsc sc0 = SC(b, 0, 0), sc1 = SC(b, 0, 1);                                                          \
                    ROWS(SUM_LOW, 0)                                                                             \
                }                                                                                                \
                ROWS(START_HIGH, 0)                                                                              \
                GROUP(ROWS, W, 4) GROUP(ROWS, W, 5) GROUP(ROWS, W, 6) GROUP(ROWS, W, 7)                          \
                vsc sc0 = SC(b, 1, 0), sc1 = SC(b, 1, 1);                                                              \
                ROWS(SUM_HIGH, 0)                                                                                \
            }                                                                                                    \
        }                                                                                                        \
        {                                                                                                        \
            vf d0 = D(u, b, 0), d1 = D(u, b, 1);                                                                             \
            ROWS(CHAIN, 0)                                                                                       \
        }                                                                                                        \
        if (MIN == MIN_FLOAT) {                                                                                  \
            vf m0 = M(u, b, 0), m1 = M(u, b, 1);                                                                             \
            ROWS(CHAIN_MIN, 0)                                                                                   \
        }                                                                                                        \
        if (MIN == MIN_INT) {                                                                                    \
            vf m0 = M(u, b, 0), m1 = M(u, b, 1);                                                                             \
            vi n0 = MN(b, 0), n1 = MN(b, 1);                                                                           \
            ROWS(CHAIN_MIN_INT, 0)                                                                               \
        }                                                                                                        \
    }

/* ---- few rows: straight from the packed panel ---- */

#define STORE_ACC(r, g)                                                                  \
    {                                                                                    \
        float *o = j->out + (r) * j->out_stride + i * CPU_PANEL_ROWS;                    \
        vec_storef(o, acc##r##_0);                                                       \
        if (both)                                                                        \
            vec_storef(o + VEC_BYTES / 4, acc##r##_1);                                   \
    }
#define CLASS_OF(class)                                                                                          \
    const int KIND = KIND_OF_##class, Z = Z_OF_##class, POST = POST_OF_##class, MIN = MIN_OF_##class;            \
    (void)KIND, (void)Z, (void)POST, (void)MIN;

#define DIRECT(name, ROWS, R, class, W, D, M, SC, MN, BHEAD, BODY)                                               \
    static void direct_##name##_##R(const struct cpu_dot *j)                                                     \
    {                                                                                                            \
        CLASS_OF(class)                                                                                          \
        const enum cpu_scale scale = j->panel->scale;                                                            \
        const uint32_t unit_head = j->panel->unit_head, unit = j->panel->unit, blocks = j->panel->cols / 32;     \
        (void)scale;                                                                                             \
        ROWS(DECLARE_ACT, 0)                                                                                     \
        for (uint32_t i = 0; i < j->panels; i += PANEL_STEP) {                                                   \
            const bool both = PANEL_STEP == 1 || i + 1 < j->panels;                                              \
            const size_t delta = both ? j->panel_bytes : 0;                                                      \
            const uint8_t *u = j->w + i * j->panel_bytes, *b = u + unit_head;                                    \
            ROWS(DECLARE_ACC, 0)                                                                                 \
            for (uint32_t at = 0, left = unit; at < blocks; at++) {                                              \
                const uint8_t *body = b + (BHEAD);                                                               \
                prefetch(body, BODY, delta);                                                                     \
                BLOCK(ROWS, W, D, M, SC, MN, START_WIDE, GROUP_SIGNED)                                                                     \
                b = body + (BODY);                                                                               \
                if (--left == 0)                                                                                 \
                    u = b, b += unit_head, left = unit;                                                          \
            }                                                                                                    \
            ROWS(STORE_ACC, 0)                                                                                   \
        }                                                                                                        \
    }

/* ---- many rows: a chunk of 8 blocks (256 columns) as bytes, then every group of rows ---- */

enum { CHUNK = CPU_ACT_CHUNK, LANES = VEC_BYTES / 4 };

struct chunk {
    _Alignas(64) uint8_t w[CHUNK][8][2][VEC_BYTES];
    float d[CHUNK][2][LANES], m[CHUNK][2][LANES];
    int32_t sc[CHUNK][2][2][LANES], mn[CHUNK][2][LANES];
    /* signed codes of levels without a signed product: w holds |w|, flip the mask of w < 0, fix the sum of |w| where w < 0 */
    uint8_t flip[CHUNK][8][2][VEC_BYTES];
    int32_t fix[CHUNK][2][LANES];
};
_Static_assert(sizeof(struct chunk) + (CPU_DOT_ROWS + 1) * 2 * VEC_BYTES <= CPU_DOT_TMP, "a chunk and the sums of all rows fit into tmp");

#define CHUNK_W(body, g, v) vec_load(c->w[at][g][v])
#define CHUNK_D(u, b, v) vec_loadf(c->d[at][v])
#define CHUNK_M(u, b, v) vec_loadf(c->m[at][v])
#define CHUNK_SC(b, h, v) vec_load_scale(c->sc[at][h][v])
#define CHUNK_MN(b, v) vec_load(c->mn[at][v])

#define UNPACK_WORD(W, g, v)                                              \
    {                                                                     \
        vi w = W(body, g, v);                                             \
        if (KIND == KIND_SIGNED && VEC_FLIPS) {                           \
            vi mask = vec_negative(w);                                    \
            w = vec_size(w);                                              \
            vec_store(c->flip[k][g][v], mask);                            \
            fix##v = vec_addd(fix##v, vec_sum8(vec_and(w, mask)));        \
        }                                                                 \
        vec_store(c->w[k][g][v], w);                                      \
    }
#define UNPACK_GROUP(W, g) UNPACK_WORD(W, g, 0) UNPACK_WORD(W, g, 1)
#define UNPACK_VECTOR(D, M, SC, MN, v)                           \
    vec_storef(c->d[k][v], D(u, b, v));                          \
    if (MIN != MIN_NONE)                                         \
        vec_storef(c->m[k][v], M(u, b, v));                      \
    if (KIND == KIND_HALVES) {                                   \
        vec_store_scale(c->sc[k][0][v], SC(b, 0, v));            \
        vec_store_scale(c->sc[k][1][v], SC(b, 1, v));            \
    }                                                            \
    if (MIN == MIN_INT)                                          \
        vec_store(c->mn[k][v], MN(b, v));

/* Blocks [at, at + n) of panel i; at is a multiple of CHUNK, so of every unit. */
#define UNPACK(name, class, W, D, M, SC, MN, BHEAD, BODY)                                                        \
    static void unpack_##name(const struct cpu_dot *j, uint32_t i, size_t delta, uint32_t at, uint32_t n, struct chunk *c) \
    {                                                                                                            \
        CLASS_OF(class)                                                                                          \
        const enum cpu_scale scale = j->panel->scale;                                                            \
        const uint32_t unit_head = j->panel->unit_head, unit = j->panel->unit;                                   \
        (void)scale, (void)delta;                                                                                \
        const uint8_t *u = j->w + i * j->panel_bytes + (size_t)(at / unit) * j->panel->unit_bytes, *b = u + unit_head; \
        for (uint32_t k = 0, left = unit; k < n; k++) {                                                          \
            const uint8_t *body = b + (BHEAD);                                                                   \
            vi fix0 = vec_set32(0), fix1 = fix0;                                                                 \
            prefetch(body, BODY, delta);                                                                         \
            UNPACK_GROUP(W, 0) UNPACK_GROUP(W, 1) UNPACK_GROUP(W, 2) UNPACK_GROUP(W, 3)                          \
            UNPACK_GROUP(W, 4) UNPACK_GROUP(W, 5) UNPACK_GROUP(W, 6) UNPACK_GROUP(W, 7)                          \
            UNPACK_VECTOR(D, M, SC, MN, 0)                                                                       \
            UNPACK_VECTOR(D, M, SC, MN, 1)                                                                       \
            if (KIND == KIND_SIGNED && VEC_FLIPS) {                                                              \
                vec_store(c->fix[k][0], fix0);                                                                   \
                vec_store(c->fix[k][1], fix1);                                                                   \
            }                                                                                                    \
            (void)fix0, (void)fix1;                                                                              \
            b = body + (BODY);                                                                                   \
            if (--left == 0)                                                                                     \
                u = b, b += unit_head, left = unit;                                                              \
        }                                                                                                        \
    }

/* What the next chunk is unpacked from, fetched while this one is computed, a block's lines at a time: all at once they would wait for
 * each other, and computing would wait for them. */
struct ahead {
    const uint8_t *at;
    size_t delta;
    uint32_t bytes; /* per block; 0: nothing to fetch */
};
INLINE void ahead_block(struct ahead *a)
{
    for (uint32_t i = 0; i < a->bytes; i += 64) {
        _mm_prefetch((const char *)a->at + i, _MM_HINT_T0);
        if (PANEL_STEP == 2)
            _mm_prefetch((const char *)a->at + a->delta + i, _MM_HINT_T0);
    }
    a->at += a->bytes;
}

#define TILE_ACT(r, g) const struct cpu_act *a##r = (const struct cpu_act *)(const void *)(x + (r) * stride);
#define TILE_LOAD(r, g) vf acc##r##_0 = vec_loadf(sums + (2 * (r)) * LANES), acc##r##_1 = vec_loadf(sums + (2 * (r) + 1) * LANES);
#define TILE_STORE(r, g)                                   \
    vec_storef(sums + (2 * (r)) * LANES, acc##r##_0);      \
    vec_storef(sums + (2 * (r) + 1) * LANES, acc##r##_1);
#define TILE(class, ROWS, R)                                                                                     \
    static void tile_##class##_##R(const struct chunk *c, uint32_t n, const uint8_t *x, size_t stride, float *sums, \
                                   struct ahead next)                                                            \
    {                                                                                                            \
        CLASS_OF(class)                                                                                          \
        ROWS(TILE_ACT, 0)                                                                                        \
        ROWS(TILE_LOAD, 0)                                                                                       \
        for (uint32_t at = 0; at < n; at++) {                                                                    \
            ahead_block(&next);                                                                                  \
            BLOCK(ROWS, CHUNK_W, CHUNK_D, CHUNK_M, CHUNK_SC, CHUNK_MN, CHUNK_START, CHUNK_GROUP)                 \
        }                                                                                                        \
        ROWS(TILE_STORE, 0)                                                                                      \
    }
/* 8 rows at once need 32 registers, and halves need twice as many sums. */
#if VEC_BYTES == 64
#define TILE_OF_8(name, kind) TILE(name, ROWS8, 8)
#define TILE_8_OR_NONE(name, kind) ((kind) == KIND_HALVES ? NULL : tile_##name##_8)
#else
#define TILE_OF_8(name, kind)
#define TILE_8_OR_NONE(name, kind) NULL
#endif
#define TILES(name, kind, z, post, min) TILE(name, ROWS2, 2) TILE(name, ROWS4, 4) TILE_OF_8(name, kind)
TILE_CLASSES(TILES)

typedef void (*tile_fn)(const struct chunk *c, uint32_t n, const uint8_t *x, size_t stride, float *sums, struct ahead next);
static const tile_fn tiles[CLASS_COUNT][3] = { /* 2, 4, 8 rows */
#define TILE_ENTRY(name, kind, z, post, min) [CLASS_##name] = {tile_##name##_2, tile_##name##_4, TILE_8_OR_NONE(name, kind)},
    TILE_CLASSES(TILE_ENTRY)
#undef TILE_ENTRY
};

typedef void (*unpack_fn)(const struct cpu_dot *j, uint32_t i, size_t delta, uint32_t at, uint32_t n, struct chunk *c);

static void chunk_rows(const struct cpu_dot *j, const tile_fn *tile, const struct chunk *c, uint32_t at, uint32_t n, struct ahead next,
                       float *sums)
{
    const uint8_t *x = (const uint8_t *)j->x + at / CHUNK * j->x_chunk;
    uint32_t r = 0;
    for (; tile[2] && r + 8 <= j->rows; r += 8, next.bytes = 0)
        tile[2](c, n, x + r * j->x_stride, j->x_stride, sums + r * 2 * LANES, next);
    for (; r + 4 <= j->rows; r += 4, next.bytes = 0)
        tile[1](c, n, x + r * j->x_stride, j->x_stride, sums + r * 2 * LANES, next);
    for (; r < j->rows; r += 2, next.bytes = 0) /* a last odd row is computed twice, the second time into sums nobody reads */
        tile[0](c, n, x + r * j->x_stride, r + 1 < j->rows ? j->x_stride : 0, sums + r * 2 * LANES, next);
}

static void chunked(const struct cpu_dot *j, enum tile_class class, unpack_fn unpack)
{
    struct chunk *c = j->tmp;
    float *sums = (float *)(void *)(c + 1);
    uint32_t blocks = j->panel->cols / 32, block_bytes = (j->panel->unit_bytes + j->panel->unit - 1) / j->panel->unit;
    for (uint32_t i = 0; i < j->panels; i += PANEL_STEP) {
        bool both = PANEL_STEP == 1 || i + 1 < j->panels;
        memset(sums, 0, (size_t)(j->rows + 1) * 2 * VEC_BYTES);
        for (uint32_t at = 0; at < blocks; at += CHUNK) {
            uint32_t n = blocks - at < CHUNK ? blocks - at : CHUNK;
            unpack(j, i, both ? j->panel_bytes : 0, at, n, c);
            struct ahead next = {j->w + i * j->panel_bytes + (size_t)(at + n) * block_bytes, both ? j->panel_bytes : 0, block_bytes};
            chunk_rows(j, tiles[class], c, at, n, next, sums);
        }
        size_t bytes = both ? 2 * VEC_BYTES : VEC_BYTES;
        for (uint32_t r = 0; r < j->rows; r++)
            memcpy(j->out + r * j->out_stride + i * CPU_PANEL_ROWS, sums + r * 2 * LANES, bytes);
    }
}

/* ---- per format ---- */

/* Rows whose blocks lie together can be read straight through. */
INLINE bool together(const struct cpu_dot *j)
{
    return j->x_chunk == CPU_ACT_CHUNK_BYTES;
}

#define FORMAT_ONE(name, class, W, D, M, SC, MN, BHEAD, BODY)                    \
    DIRECT(name, ROWS1, 1, class, W, D, M, SC, MN, BHEAD, BODY)                  \
    UNPACK(name, class, W, D, M, SC, MN, BHEAD, BODY)                            \
    static void dot_##name(const struct cpu_dot *j)                              \
    {                                                                            \
        if (j->rows == 1 && together(j))                                         \
            direct_##name##_1(j);                                                \
        else                                                                     \
            chunked(j, CLASS_##class, unpack_##name);                            \
    }
#define FORMAT_FEW(name, class, W, D, M, SC, MN, BHEAD, BODY)                    \
    DIRECT(name, ROWS1, 1, class, W, D, M, SC, MN, BHEAD, BODY)                  \
    DIRECT(name, ROWS2, 2, class, W, D, M, SC, MN, BHEAD, BODY)                  \
    DIRECT(name, ROWS4, 4, class, W, D, M, SC, MN, BHEAD, BODY)                  \
    UNPACK(name, class, W, D, M, SC, MN, BHEAD, BODY)                            \
    static void dot_##name(const struct cpu_dot *j)                              \
    {                                                                            \
        if (j->rows == 1 && together(j))                                         \
            direct_##name##_1(j);                                                \
        else if (j->rows == 2 && together(j))                                    \
            direct_##name##_2(j);                                                \
        else if (j->rows == 4 && together(j))                                    \
            direct_##name##_4(j);                                                \
        else                                                                     \
            chunked(j, CLASS_##class, unpack_##name);                            \
    }
#define FORMAT(name, directs, class, W, D, M, SC, MN, BHEAD, BODY) FORMAT_##directs(name, class, W, D, M, SC, MN, BHEAD, BODY)
TILE_FORMATS(FORMAT)
