/* backend_cpu/linear_float.h - the products of float panels with f32 rows, written once for all vector levels.
 *
 * Included after the vector words, like linear_tile.h.  Per output: parts of 256 columns, each p = fma(w, x, p) from +0, then
 * y = y + p (docs/arithmetic.md, float linear).  Weights are widened in registers at every row count. */

/* Vectors 0 and 1 of one column.  With 8 lanes the halves of a panel's column, with 16 lanes two panels' columns. */
#if VEC_BYTES == 32
#define F32_W(p) vf w0 = vec_loadf((const float *)(const void *)(p)), w1 = vec_loadf((const float *)(const void *)((p) + 32));
#define F16_W(p) vf w0 = vec_f16(p), w1 = vec_f16((p) + 16);
#define BF16_W(p)                       \
    vi both16 = vec_load(p);            \
    vf w0 = vec_as_f(vec_sll32(both16, 16)), w1 = vec_as_f(vec_and(both16, vec_set32((int)0xffff0000)));
#define FLOAT_STORE(o, v, acc) vec_storef((o) + 8 * (v), acc)
#else
#define F32_W(p) vf w0 = vec_loadf((const float *)(const void *)(p)), w1 = vec_loadf((const float *)(const void *)((p) + delta));
#define F16_W(p) vf w0 = vec_f16(p), w1 = vec_f16((p) + delta);
#define BF16_W(p) vf w0 = vec_bf16_rows(p), w1 = vec_bf16_rows((p) + delta);
#define FLOAT_STORE(o, v, acc)                                \
    if ((v) == 0 || both)                                     \
        vec_storef((o) + 16 * (v), acc);
#endif

#define ROWS3(X, g) X(0, g) X(1, g) X(2, g)
#define ROWS5(X, g) X(0, g) X(1, g) X(2, g) X(3, g) X(4, g)
#define ROWS6(X, g) X(0, g) X(1, g) X(2, g) X(3, g) X(4, g) X(5, g)

#define FLOAT_X(r, g) const float *x##r = (const float *)(const void *)((const uint8_t *)j->x + (row + (r)) * j->x_stride);
#define FLOAT_P(r, g) vf p##r##_0 = vec_zerof(), p##r##_1 = vec_zerof();
#define FLOAT_STEP(r, g)                                      \
    {                                                         \
        vf x = vec_repeatf(x##r + k);                         \
        p##r##_0 = vec_fma(w0, x, p##r##_0);                  \
        p##r##_1 = vec_fma(w1, x, p##r##_1);                  \
    }
#define FLOAT_ADD(r, g)                                                                 \
    sums[2 * (r)] = vec_addf(sums[2 * (r)], p##r##_0);                                  \
    sums[2 * (r) + 1] = vec_addf(sums[2 * (r) + 1], p##r##_1);
#define FLOAT_OUT(r, g)                                                                 \
    {                                                                                   \
        float *o = j->out + (row + (r)) * j->out_stride + i * CPU_PANEL_ROWS;           \
        FLOAT_STORE(o, 0, sums[2 * (r)]);                                               \
        FLOAT_STORE(o, 1, sums[2 * (r) + 1]);                                           \
    }

#define FLOAT_DIRECT(name, ESIZE, W, ROWS, R)                                                                    \
    static void float_##name##_##R(const struct cpu_dot *j, uint32_t i, uint32_t row)                            \
    {                                                                                                            \
        const bool both = PANEL_STEP == 1 || i + 1 < j->panels;                                                  \
        const size_t delta = both ? j->panel_bytes : 0;                                                          \
        (void)delta;                                                                                             \
        const uint8_t *w = j->w + i * j->panel_bytes;                                                            \
        const uint32_t cols = j->panel->cols;                                                                    \
        vf sums[2 * R];                                                                                          \
        for (int r = 0; r < 2 * R; r++)                                                                          \
            sums[r] = vec_zerof();                                                                               \
        ROWS(FLOAT_X, 0)                                                                                         \
        for (uint32_t k0 = 0; k0 < cols; k0 += 256) {                                                            \
            const uint32_t end = cols - k0 < 256 ? cols : k0 + 256;                                              \
            ROWS(FLOAT_P, 0)                                                                                     \
            for (uint32_t k = k0; k < end; k++, w += CPU_PANEL_ROWS * (ESIZE)) {                                 \
                W(w)                                                                                             \
                ROWS(FLOAT_STEP, 0)                                                                              \
            }                                                                                                    \
            ROWS(FLOAT_ADD, 0)                                                                                   \
        }                                                                                                        \
        ROWS(FLOAT_OUT, 0)                                                                                       \
    }

#define FLOAT_FORMAT(name, ESIZE, W)                                                                             \
    FLOAT_DIRECT(name, ESIZE, W, ROWS1, 1)                                                                       \
    FLOAT_DIRECT(name, ESIZE, W, ROWS2, 2)                                                                       \
    FLOAT_DIRECT(name, ESIZE, W, ROWS3, 3)                                                                       \
    FLOAT_DIRECT(name, ESIZE, W, ROWS4, 4)                                                                       \
    FLOAT_DIRECT(name, ESIZE, W, ROWS5, 5)                                                                       \
    FLOAT_DIRECT(name, ESIZE, W, ROWS6, 6)                                                                       \
    static void dot_##name(const struct cpu_dot *j)                                                              \
    {                                                                                                            \
        static void (*const some[7])(const struct cpu_dot *, uint32_t, uint32_t) = {                             \
            NULL,           float_##name##_1, float_##name##_2, float_##name##_3,                                \
            float_##name##_4, float_##name##_5, float_##name##_6};                                               \
        for (uint32_t i = 0; i < j->panels; i += PANEL_STEP)                                                     \
            for (uint32_t row = 0, n; row < j->rows; row += n) {                                                 \
                n = rows_next(j->rows - row);                                                                    \
                some[n](j, i, row);                                                                              \
            }                                                                                                    \
    }

/* Groups of 6 rows, and the rest so that no group is tiny: 7 = 4 + 3, 8 = 4 + 4. */
static inline uint32_t rows_next(uint32_t left)
{
    return left <= 6 ? left : left == 7 || left == 8 ? 4 : 6;
}

FLOAT_FORMAT(F32, 4, F32_W)
FLOAT_FORMAT(F16, 2, F16_W)
FLOAT_FORMAT(BF16, 2, BF16_W)
