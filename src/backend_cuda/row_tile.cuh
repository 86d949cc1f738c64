/* backend_cuda/row_tile.cuh - what kernels of one row have: which of a launch's weights a tile is of, and a unit of it times one of the row. */
#ifndef RH_CUDA_ROW_TILE_CUH
#define RH_CUDA_ROW_TILE_CUH

#include "backend_cuda/mma.cuh"
#include "backend_cuda/weight_layout.cuh"

static __device__ __forceinline__ uint32_t part_of(const cuda_p_linear &p, uint32_t tile)
{
    uint32_t part = 0;
    while (!p.pair && part + 1 < p.part_count && tile >= p.part[part + 1].tile_first)
        part++;
    return part;
}

/* 16 sums in column 0; x: the lane's part of the row's unit, in the order of mma's column operand. */
template <class UNIT> static __device__ __forceinline__ void unit_times_row(float *acc, const UNIT &w, const uint4 *x)
{
    uint4 b[2] = {x[0], x[1]};
    const uint32_t *words = reinterpret_cast<const uint32_t *>(b);
#pragma unroll
    for (int c = 0; c < 4; c++) {
        uint32_t a[4];
        w.fragment(c, a);
        mma(acc, a, words[2 * c], words[2 * c + 1]);
    }
}

#endif
