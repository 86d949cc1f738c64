/* backend_cuda/kernels_expert.h - parameter structs and entries of what mixtures of experts have: the router, slots in groups, products of a few slots;
 * and of the norms around them, which share a launch. */
#ifndef RH_CUDA_KERNELS_EXPERT_H
#define RH_CUDA_KERNELS_EXPERT_H

#include "tensor/tensor.h"

#ifdef __cplusplus
extern "C" {
#endif

struct cuda_p_route {
    const float *logits, *bias, *expert_scale;
    uint32_t *ids;
    float *weights;
    uint32_t rows, experts, stride, score, top, groups, group_top, group_best, normalise, replay;
    float scale;
    uint32_t *failed;
};
extern const void *const cuda_kernel_route, *const cuda_kernel_route_warp; /* a block a row; a warp, for few experts */
enum { CUDA_ROUTE_WARPS = 4, CUDA_ROUTE_WARP_EXPERTS = 512, CUDA_ROUTE_WARP_TOP = 32 };

/* ---- groups ---- */

/* Rows by matrix (k_group.cu): slots of one expert lie together in packed rows, from the beginning of a block of rows on. */
struct cuda_group_item {
    uint32_t matrix, row0, rows, pad_; /* one block */
};
struct cuda_groups {
    uint32_t count, pad_[3];
    struct cuda_group_item items[];
};
#define CUDA_NO_PLACE 0xffffffffu
struct cuda_p_group {
    const uint32_t *ids;        /* [slots] */
    uint32_t *order, *place;    /* slot of a packed row; packed row of a slot, CUDA_NO_PLACE where the id is out of range */
    struct cuda_groups *groups;
    uint32_t slots, experts, block_rows;
    uint32_t *failed;
};
struct cuda_p_pack_slots { /* x to f16 as cuda_p_pack has it, row r at the places of slots r share .. r share + share - 1 */
    const float *x;
    const uint32_t *place;
    uint16_t *packed;
    float *row_scale;           /* of packed rows */
    uint32_t rows, cols, stride, units, share, tall;
};
extern const void *const cuda_kernel_group, *const cuda_kernel_pack_slots;
enum { CUDA_GROUP_THREADS = 1024, CUDA_PACK_SLOTS_THREADS = 128 };

/* ---- experts of a few rows (k_expert.cu) ---- */

struct cuda_expert_job {
    const uint8_t *planes[2];   /* gate and up; one matrix */
    const float *row_scale[2], *bias[2]; /* of all matrices */
    const float *x, *norm_w;    /* norm_w: x has one row, and is normed on the way */
    float *y;
    const uint32_t *ids;        /* [slots]; NULL: matrix 0 */
    const float *weights;       /* [slots]; not NULL: a row of y is the weighted sum of its slots */
    uint32_t slots, x_rows, share; /* slots that read one row of x */
    uint32_t x_stride, y_stride, cols, units, tile_bytes;
    uint32_t each, tiles, matrices; /* rows and tiles of a matrix */
    uint32_t parts;             /* products that an output is made of: 1; 2: gate and up; slots of a row */
    uint32_t tile_first, act, add;
    float eps;
};
struct cuda_p_expert {
    struct cuda_expert_job job[2];
    uint32_t jobs, tiles;
    uint32_t *failed;
};
extern const void *const cuda_kernels_expert[]; /* by enum cuda_kind */
enum { CUDA_EXPERT_THREADS = 512 };

/* ---- norms ---- */

/* Steps of a row one after the other, each on all rows (k_rows.cu): y = norm x (add: y += it times scale), or y = y w scale. */
enum { CUDA_ROW_STEPS = 6 };
struct cuda_row_step {
    const float *x, *w;         /* x NULL: no norm; then w may be NULL */
    float *y;
    uint32_t x_stride, y_stride, add, centred;
    float eps, scale;
};
struct cuda_p_row_steps {
    struct cuda_row_step step[CUDA_ROW_STEPS];
    uint32_t count, cols;
};

#ifdef __cplusplus
}
#endif

#endif
