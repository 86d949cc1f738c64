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
#else
#define F32_W(p) vf w0 = vec_loadf((const float *)(const void *)(p)), w1 = vec_loadf((const float *)(const void *)((p) + delta));
#define F16_W(p) vf w0 = vec_f16(p), w1 = vec_f16((p) + delta);
#define BF16_W(p) vf w0 = vec_bf16_rows(p), w1 = vec_bf16_rows((p) + delta);
#endif

#define ROWS3(X, g) X(0, g) X(1, g) X(2, g)
#define ROWS5(X, g) X(0, g) X(1, g) X(2, g) X(3, g) X(4, g)
#define ROWS6(X, g) X(0, g) X(1, g) X(2, g) X(3, g) X(4, g) X(5, g)

#define FLOAT_X(r, g) const float *x##r = (const float *)(const void *)(x + (r) * stride);
#define FLOAT_P(r, g) vf p##r##_0 = vec_zerof(), p##r##_1 = vec_zerof();
#define FLOAT_STEP(r, g)                                      \
    {                                                         \
        vf x_k = vec_repeatf(x##r + k);                       \
        p##r##_0 = vec_fma(w0, x_k, p##r##_0);                \
        p##r##_1 = vec_fma(w1, x_k, p##r##_1);                \
    }
#define FLOAT_ADD(r, g)                                                                                          \
    vec_storef(sums + 2 * (r) * LANES, vec_addf(vec_loadf(sums + 2 * (r) * LANES), p##r##_0));                   \
    vec_storef(sums + (2 * (r) + 1) * LANES, vec_addf(vec_loadf(sums + (2 * (r) + 1) * LANES), p##r##_1));

/* One part (n <= 256 columns) of R rows, added to their sums.  The part's weights stay in the first cache for all rows. */
#define FLOAT_PART(name, ESIZE, W, ROWS, R)                                                                      \
    static void float_##name##_##R(const uint8_t *w, size_t delta, uint32_t n, const uint8_t *x, size_t stride, float *sums) \
    {                                                                                                            \
        (void)delta;                                                                                             \
        ROWS(FLOAT_X, 0)                                                                                         \
        ROWS(FLOAT_P, 0)                                                                                         \
        for (uint32_t k = 0; k < n; k++, w += CPU_PANEL_ROWS * (ESIZE)) {                                        \
            W(w)                                                                                                 \
            ROWS(FLOAT_STEP, 0)                                                                                  \
        }                                                                                                        \
        ROWS(FLOAT_ADD, 0)                                                                                       \
    }

typedef void (*part_fn)(const uint8_t *w, size_t delta, uint32_t n, const uint8_t *x, size_t stride, float *sums);

/* Groups of 6 rows, and the rest so that no group is tiny: 7 = 4 + 3, 8 = 4 + 4. */
static inline uint32_t rows_next(uint32_t left)
{
    return left <= 6 ? left : left == 7 || left == 8 ? 4 : 6;
}

static void float_panels(const struct cpu_dot *j, const part_fn *parts, size_t esize)
{
    float *sums = j->tmp;
    const uint32_t cols = j->panel->cols;
    for (uint32_t i = 0; i < j->panels; i += PANEL_STEP) {
        const bool both = PANEL_STEP == 1 || i + 1 < j->panels;
        const uint8_t *w = j->w + i * j->panel_bytes;
        memset(sums, 0, (size_t)j->rows * 2 * VEC_BYTES);
        for (uint32_t k = 0; k < cols; k += 256) {
            const uint32_t n = cols - k < 256 ? cols - k : 256;
            for (uint32_t r = 0, some; r < j->rows; r += some) {
                some = rows_next(j->rows - r);
                parts[some](w + k * CPU_PANEL_ROWS * esize, both ? j->panel_bytes : 0, n,
                            (const uint8_t *)j->x + r * j->x_stride + k * sizeof(float), j->x_stride, sums + r * 2 * LANES);
            }
        }
        const size_t bytes = both ? 2 * VEC_BYTES : VEC_BYTES;
        for (uint32_t r = 0; r < j->rows; r++)
            memcpy(j->out + r * j->out_stride + i * CPU_PANEL_ROWS, sums + r * 2 * LANES, bytes);
    }
}

#define FLOAT_FORMAT(name, ESIZE, W)                                                                             \
    FLOAT_PART(name, ESIZE, W, ROWS1, 1)                                                                         \
    FLOAT_PART(name, ESIZE, W, ROWS2, 2)                                                                         \
    FLOAT_PART(name, ESIZE, W, ROWS3, 3)                                                                         \
    FLOAT_PART(name, ESIZE, W, ROWS4, 4)                                                                         \
    FLOAT_PART(name, ESIZE, W, ROWS5, 5)                                                                         \
    FLOAT_PART(name, ESIZE, W, ROWS6, 6)                                                                         \
    static void dot_##name(const struct cpu_dot *j)                                                              \
    {                                                                                                            \
        static const part_fn parts[7] = {NULL,           float_##name##_1, float_##name##_2, float_##name##_3,   \
                                         float_##name##_4, float_##name##_5, float_##name##_6};                  \
        float_panels(j, parts, ESIZE);                                                                           \
    }

FLOAT_FORMAT(F32, 4, F32_W)
FLOAT_FORMAT(F16, 2, F16_W)
FLOAT_FORMAT(BF16, 2, BF16_W)
