/* backend_cuda/kernels.h - what the C side and the kernels share: parameter structs, kinds of packed weights, kernel entries.
 *
 * Every kernel takes one of these structs by value.  Plain data, the same in C and CUDA C++.
 * Orders of every sum: docs/arithmetic.md, "The CUDA backend".  A parameter that changes from step to step lies in device memory or in
 * the step's staging, never in the struct: so a step with the same shape is the same graph. */
#ifndef RH_CUDA_KERNELS_H
#define RH_CUDA_KERNELS_H

#include "backend_cuda/cuts.h"
#include "backend_cuda/kernels_expert.h"
#include "backend_cuda/kernels_state.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- weights in tiles of 16 rows, 64 columns a unit (weight_layout.h) ---- */

/* X(name, code bits a column, where scales are, what is subtracted from a code) */
#define CUDA_KINDS(X)     \
    X(F16, 16, NONE, 0)   \
    X(Q4, 4, ONE, 8)      \
    X(Q5, 5, ONE, 16)     \
    X(Q8, 8, ONE, 128)    \
    X(IQ4, 4, BOOK, 0)    \
    X(FP4, 4, FP, 0)      \
    X(A4, 4, TWO, 0)      \
    X(A5, 5, TWO, 0)      \
    X(A6, 6, TWO, 0)      \
    X(A8, 8, TWO, 0)      \
    X(G4, 4, WIDE, 0)     \
    X(G5, 5, WIDE, 0)     \
    X(G6, 6, WIDE, 0)     \
    X(G8, 8, WIDE, 0)     \
    X(K4, 4, SUPER, 0)    \
    X(K5, 5, SUPER, 0)    \
    X(K6, 6, SIXTEEN, 32) \
    X(K3, 4, SIXTEEN, 4)  \
    X(K2, 4, FINE, 0)
enum cuda_kind {
#define CUDA_KIND_ENUM(name, ...) CUDA_KIND_##name,
    CUDA_KINDS(CUDA_KIND_ENUM)
#undef CUDA_KIND_ENUM
    CUDA_KIND_COUNT
};
/* ONE, BOOK, FP: f16 a block of 32 columns; TWO: f16 scale and minimum a block; WIDE: both a unit of 64; FINE: both for 16 columns; SUPER: 8-bit
 * scale and minimum a block times f16 pairs for 256 columns; SIXTEEN: 8-bit scale for 16 columns times f16 for 256. */
enum cuda_scale { CUDA_SCALE_NONE, CUDA_SCALE_ONE, CUDA_SCALE_BOOK, CUDA_SCALE_FP, CUDA_SCALE_TWO, CUDA_SCALE_WIDE, CUDA_SCALE_FINE,
                  CUDA_SCALE_SUPER, CUDA_SCALE_SIXTEEN };

/* Raw rows as the file has them, in device memory. */
struct cuda_raw {
    const uint8_t *data, *scales, *biases;
    uint64_t row_bytes;
    uint32_t type, cols;        /* enum dtype */
    uint32_t bits, group, scale_type; /* MLX */
    uint32_t split;             /* MXFP4 with scales apart */
};
struct cuda_p_repack {
    struct cuda_raw raw;        /* of `rows` rows that begin at row `first` of the weight */
    uint32_t kind, first, rows, units;
    uint32_t tile_bytes, pad_;
    uint8_t *planes;            /* of the whole weight */
    float *row_scale;           /* [rows of the weight, padded to 16] */
    uint32_t *bad;              /* set to the weight's number when a scale is not finite */
    uint32_t number;
};
struct cuda_p_embed {
    struct cuda_raw raw;
    const uint32_t *ids;
    float *y;
    uint32_t rows, stride, vocab, wrap, pad_;
    float scale;
    uint32_t *failed;
};

/* ---- rows ---- */

struct cuda_p_pack { /* x (normed, if w) to f16 in fragment order or blocks of 128 rows, a power of two per row apart */
    const float *x;
    const float *w;             /* NULL: no norm */
    float *y;                   /* where linear_heads's tails go */
    uint16_t *packed;
    float *row_scale;           /* [rows] */
    uint32_t rows, cols, stride, y_stride, units;
    float eps;
    uint32_t tall;              /* 1: blocks of 128 rows, unit by unit; 0: fragments of 8 rows */
    uint32_t heads, x_step;     /* row i is head i % heads of x's row i / heads, x_step apart */
    uint32_t tail, y_step, y_out; /* linear_heads: what lies behind a head of x goes behind y_out elements of y's */
};
struct cuda_p_norm {
    const float *x, *w;
    float *y;
    uint32_t rows, groups, dim, x_stride, y_stride, add, own, centred;
    float eps, scale;
};
struct cuda_p_rope_table {
    const uint32_t *pos;
    const float *inv_freq;
    float *table;
    uint32_t rows, n, stride;
    float mscale;
};
struct cuda_p_rope {
    float *x;
    const float *table;
    uint32_t rows, heads, head_dim, n, stride, table_stride, adjacent;
};
struct cuda_p_wise { /* gated, add, scale, softcap, xielu, gather, expert_sum: element by element */
    const float *a, *b;
    float *y;
    const uint32_t *index;
    uint32_t rows, cols, a_stride, b_stride, y_stride, what, a_rows;
    float s, t, u, v;
    uint32_t *failed;
};
struct cuda_rows { /* a tensor of floats */
    float *data;
    uint32_t stride, pad_;
};
struct cuda_p_blend {
    struct cuda_rows x[BLEND_MAX], base[BLEND_MAX], y[BLEND_MAX];
    const float *coef;
    uint32_t coef_stride, n, m, cols, rows;
    float shift;
};
struct cuda_p_level { /* match (s: the least mean square), sparsify (y alone; s: the factor) */
    const float *x;
    float *y;
    uint32_t cols, x_stride, y_stride;
    float s;
};
struct cuda_scatter_item {
    void *dst;
    const void *src;            /* staging or device memory */
    uint32_t size_bytes, phase;
};
struct cuda_scatter_list {
    uint32_t count, phases;
    struct cuda_scatter_item items[];
};
struct cuda_p_scatter {
    const struct cuda_scatter_list *list; /* in staging */
};

/* ---- linear ---- */

struct cuda_linear_part {
    const uint8_t *planes;
    const float *row_scale, *bias;
    float *y;
    uint32_t rows, tile_first, y_stride, pad_;
};
enum { CUDA_LINEAR_PARTS = 4 };
struct cuda_p_linear {
    struct cuda_linear_part part[CUDA_LINEAR_PARTS];
    const uint16_t *x;
    const float *x_scale;
    uint32_t part_count, rows, units, tile_bytes, tiles;
    uint32_t pair;              /* 1: parts 0 and 1 are gate and up, y = act(gate) * up */
    uint32_t act, add;
    float alpha;
    /* a matrix for each row (experts, heads): row i of y is head i % heads of its row i / heads, of matrix ids[i] or i % heads */
    uint32_t each;              /* rows of a matrix in the stack; 0: one matrix for all */
    uint32_t x_share, heads, y_step; /* rows of y that read one row of x */
    const uint32_t *ids;
    uint32_t matrices;
    /* the same in groups (k_group.cu), not NULL: rows of x are packed rows, of y order[packed row]; each is of whole tiles */
    const struct cuda_groups *groups;
    const uint32_t *order;
    /* one row (k_row.cu): x as it is, normed on the way if norm_w */
    uint32_t cols;
    const float *raw, *norm_w;
    float eps;
    uint32_t stages, segments, segment_units, segment_inverse, own; /* of cuda_row_form */
    uint32_t beside;            /* 1: the kernel ahead reads the same x, and its y is not read here: both run at a time */
    uint32_t *failed;
};

struct cuda_p_probe {
    void *a, *b;
    size_t words;               /* of 16 bytes */
};

/* ---- entries: what cudaLaunchKernel is given ---- */

enum { CUDA_GRID_ROWS = 65535 /* a grid has no more along its second axis; embed, wise and blend take further rows in turn */ };
enum cuda_rows_kernel { CUDA_K_SCATTER, CUDA_K_NORM, CUDA_K_ROPE_TABLE, CUDA_K_ROPE, CUDA_K_WISE, CUDA_K_BLEND, CUDA_K_MATCH,
                        CUDA_K_SPARSIFY, CUDA_K_ROW_STEPS, CUDA_K_ROWS_COUNT };
enum cuda_wise { CUDA_WISE_GATED, CUDA_WISE_ADD = CUDA_WISE_GATED + ACT_COUNT, CUDA_WISE_SOFTCAP, CUDA_WISE_SCALE, CUDA_WISE_XIELU, CUDA_WISE_SUM, CUDA_WISE_GATHER };
extern const void *const cuda_kernels_rows[CUDA_K_ROWS_COUNT];
enum cuda_weight_kernel { CUDA_K_EMBED, CUDA_K_ROW_SCALE, CUDA_K_REPACK, CUDA_K_WEIGHT_COUNT };
extern const void *const cuda_kernels_weight[CUDA_K_WEIGHT_COUNT];
enum { CUDA_LINEAR_WIDTHS = 4 }; /* 8, 16, 32 rows at a time; one row with a matrix of its own */
extern const void *const cuda_kernels_linear[CUDA_KIND_COUNT][CUDA_LINEAR_WIDTHS];
struct cuda_tall { const void *kernel; uint32_t smem, tiles; }; /* 128 rows at a time by so many tiles of weights; kernel NULL: not for this kind */
enum { CUDA_TALL_FORMS = 2 }; /* wide and narrow blocks */
extern const struct cuda_tall cuda_kernels_tall[CUDA_KIND_COUNT][CUDA_TALL_FORMS];
enum { CUDA_TALL_THREADS = 512, CUDA_TALL_ROWS = 128, CUDA_TALL_CLUSTER = 2 /* blocks with other weights and the same rows */ };
extern const void *const cuda_kernels_row[CUDA_KIND_COUNT]; /* one row */
enum { CUDA_ROW_THREADS = 512, CUDA_ROW_NORM = 16384 /* columns with a norm before, at most */ };
void cuda_row_form(enum cuda_kind kind, struct cuda_p_linear *p, uint32_t workers, bool spread, uint32_t *blocks, uint32_t *smem);
extern const void *const cuda_kernel_pack;
enum { CUDA_PACK_THREADS = 512 };
enum cuda_pages_kernel { CUDA_K_KV_WRITE, CUDA_K_KV_WRITE_MANY, CUDA_K_KV_CONVERT, CUDA_K_PAGES_COUNT };
enum { CUDA_KV_MANY_ROWS = 32, CUDA_KV_MANY_WARPS = 8, CUDA_KV_MANY_HEAD = 256 }; /* rows of a block; elements of a head at most */
extern const void *const cuda_kernels_pages[CUDA_K_PAGES_COUNT];
enum cuda_state_kernel { CUDA_K_CONV_PRODUCT, CUDA_K_CONV_TAIL, CUDA_K_CONV, CUDA_K_DELTA_CONV, CUDA_K_DELTA, CUDA_K_STATE_COUNT };
extern const void *const cuda_kernels_state[CUDA_K_STATE_COUNT];
enum cuda_sample_kernel { CUDA_K_SAMPLE_BLOCKS, CUDA_K_SAMPLE_ROWS, CUDA_K_SAMPLE_COUNT };
extern const void *const cuda_kernels_sample[CUDA_K_SAMPLE_COUNT];

enum { CUDA_PROBE_STEPS = 256, CUDA_PROBE_CHAINS = 8 };
enum cuda_probe_kernel { CUDA_K_PROBE_FILL, CUDA_K_PROBE_READ, CUDA_K_PROBE_MULTIPLY, CUDA_K_PROBE_NOTHING, CUDA_K_PROBE_COUNT };
extern const void *const cuda_kernel_probe_wgmma; /* Hopper's multiply */
extern const void *const cuda_kernels_probe[CUDA_K_PROBE_COUNT];

/* Bytes a kind takes: of a tile of 16 rows over all columns. */
uint32_t cuda_tile_bytes(enum cuda_kind kind, uint32_t cols);

#ifdef __cplusplus
}
#endif

#endif
