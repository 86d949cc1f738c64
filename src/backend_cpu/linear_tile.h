/* backend_cpu/linear_tile.h - the products of quantised panels with few rows, written once for all vector levels.
 *
 * A kernel file defines the vector words (vec_*), includes this, then linear_many.h, which takes more rows.  Here 1, 2 or 4
 * rows read the packed panel directly.
 * Orders: docs/arithmetic.md, quantised linear.  One float chain per output: acc = fma(P, D s, acc), then the minimum.
 * Variables are named, not arrays: gcc keeps arrays of vectors in memory. */
#include "backend_cpu/linear_codes.h"

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
                prefetch(body, (BHEAD) + (BODY) + 64, delta); /* and what lies between bodies */                \
                BLOCK(ROWS, W, D, M, SC, MN, START_WIDE, GROUP_SIGNED)                                                                     \
                b = body + (BODY);                                                                               \
                if (--left == 0)                                                                                 \
                    u = b, b += unit_head, left = unit;                                                          \
            }                                                                                                    \
            ROWS(STORE_ACC, 0)                                                                                   \
        }                                                                                                        \
    }

/* ---- some blocks of 2 or 4 rows, whose sums lie in memory in between ---- */

/* What is read next, fetched while this is computed, a little at every block or tile: all at once they would wait for each other, and
 * computing would wait for them. */
struct ahead {
    const uint8_t *at;
    size_t delta;
    uint32_t step; /* bytes a block or tile */
};
INLINE void ahead_some(struct ahead *a)
{
    for (uint32_t i = 0; i < a->step; i += 64) {
        _mm_prefetch((const char *)a->at + i, _MM_HINT_T0);
        if (PANEL_STEP == 2)
            _mm_prefetch((const char *)a->at + a->delta + i, _MM_HINT_T0);
    }
    a->at += a->step;
}

#define TILE_ACT(r, g) const struct cpu_act *a##r = (const struct cpu_act *)(const void *)(x + (r) * stride);
#define TILE_LOAD(r, g) vf acc##r##_0 = vec_loadf(sums + (2 * (r)) * LANES), acc##r##_1 = vec_loadf(sums + (2 * (r) + 1) * LANES);
#define TILE_STORE(r, g)                                   \
    vec_storef(sums + (2 * (r)) * LANES, acc##r##_0);      \
    vec_storef(sums + (2 * (r) + 1) * LANES, acc##r##_1);
typedef void (*segment_fn)(const struct cpu_panel *panel, const uint8_t *packed, size_t delta, uint32_t n, const uint8_t *x, size_t stride,
                           float *sums, struct ahead next);
#define SEGMENT(name, ROWS, R, class, W, D, M, SC, MN, BHEAD, BODY)                                              \
    static void segment_##name##_##R(const struct cpu_panel *panel, const uint8_t *packed, size_t delta, uint32_t n, \
                                     const uint8_t *x, size_t stride, float *sums, struct ahead next)            \
    {                                                                                                            \
        CLASS_OF(class)                                                                                          \
        const enum cpu_scale scale = panel->scale;                                                               \
        const uint32_t unit_head = panel->unit_head, unit = panel->unit;                                         \
        const uint8_t *u = packed, *b = u + unit_head;                                                           \
        (void)scale, (void)delta;                                                                                \
        ROWS(TILE_ACT, 0)                                                                                        \
        ROWS(TILE_LOAD, 0)                                                                                       \
        for (uint32_t at = 0, left = unit; at < n; at++) {                                                       \
            const uint8_t *body = b + (BHEAD);                                                                   \
            ahead_some(&next);                                                                                  \
            BLOCK(ROWS, W, D, M, SC, MN, START_WIDE, GROUP_SIGNED)                                               \
            b = body + (BODY);                                                                                   \
            if (--left == 0)                                                                                     \
                u = b, b += unit_head, left = unit;                                                              \
        }                                                                                                        \
        ROWS(TILE_STORE, 0)                                                                                      \
    }
