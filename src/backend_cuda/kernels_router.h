/* backend_cuda/kernels_router.h - parameters and entries of a row's steps (norms, scales) in shared memory, and of the router behind them (k_router.cu). */
#ifndef RH_CUDA_KERNELS_ROUTER_H
#define RH_CUDA_KERNELS_ROUTER_H

#include "backend_cuda/kernels.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { CUDA_CHAIN_ROWS = 8, CUDA_CHAIN_THREADS = 1024, CUDA_ROUTER_CLUSTER = 8 };
struct cuda_chain_row { /* what steps read and write, each once however often they do */
    float *at;
    uint32_t stride, read, written; /* read: it is there before the first step */
};
struct cuda_chain_step {
    const float *w;             /* NULL: none */
    uint32_t norm, x, y, add, centred; /* x, y: rows of the chain; without norm y = y w scale */
    float eps, scale;
};
struct cuda_p_chain {
    struct cuda_chain_row row[CUDA_CHAIN_ROWS];
    struct cuda_chain_step step[CUDA_ROW_STEPS];
    uint32_t rows, steps, cols;
};
extern const void *const cuda_kernel_chain; /* a block for each of what cuda_p_row_steps calls rows */
uint32_t cuda_chain_smem(const struct cuda_p_chain *p);

struct cuda_p_router { /* of one row: its steps, the product with one of the chain's rows, the choice of experts */
    struct cuda_p_chain chain;
    const uint8_t *planes;      /* 16 bits a weight */
    const float *row_scale, *bias; /* bias NULL: none */
    float *y;                   /* [experts] */
    float alpha;
    uint32_t from, units, tiles, tile_bytes;
    struct cuda_p_route route;
};
const void *cuda_kernel_router(uint32_t experts);
uint32_t cuda_router_smem(const struct cuda_p_router *p);

#ifdef __cplusplus
}
#endif

#endif
