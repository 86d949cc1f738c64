/* backend_cuda/row_tile.cuh - which of a launch's weights a tile is of (k_row.cu). */
#ifndef RH_CUDA_ROW_TILE_CUH
#define RH_CUDA_ROW_TILE_CUH

#include "backend_cuda/async.cuh"
#include "backend_cuda/weight_layout.cuh"

static __device__ __forceinline__ uint32_t part_of(const cuda_p_linear &p, uint32_t tile)
{
    uint32_t part = 0;
    while (!p.pair && part + 1 < p.part_count && tile >= p.part[part + 1].tile_first)
        part++;
    return part;
}

#endif
