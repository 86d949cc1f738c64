/* backend_cuda/row_tile.cuh - what the kernels with a ring of packed weights a warp have: the part of a tile (k_row.cu, k_few.cu), and the pieces a warp reads
 * by bulk copies, in order (k_few.cu). */
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

/* Bytes of a piece whose first unit leaves `left` units of K. */
template <class LAYOUT> static __device__ __forceinline__ uint32_t piece_size(uint32_t left)
{
    return LAYOUT::super_bytes || left >= LAYOUT::piece_units ? LAYOUT::piece_bytes : left * LAYOUT::unit_bytes;
}

/* A warp's pieces, in the order it reads them: those of its segment, of gate and then of up, tile after tile.  One lane asks. */
template <int BITS, int SCALE, int OFF> struct pieces {
    using lay = layout<BITS, SCALE, OFF>;
    const cuda_p_linear &p;
    uint32_t ring, bars;           /* shared memory */
    uint32_t from, to;             /* units of the segment */
    uint32_t tile, step, tiles;    /* the next piece's tile */
    uint32_t half, slot, left, last_bytes;
    const uint8_t *source;         /* left: pieces of the tile */

    __device__ __forceinline__ uint32_t first() const { return from / lay::piece_units; }
    __device__ __forceinline__ uint32_t last() const { return (to - 1) / lay::piece_units; }
    __device__ __forceinline__ void tile_set()
    {
        if (tile >= tiles)
            return;
        const cuda_linear_part &part = p.part[p.pair ? half : part_of(p, tile)];
        source = part.planes + (size_t)(tile - (p.pair ? 0 : part.tile_first)) * p.tile_bytes + first() * lay::piece_bytes;
        left = last() - first() + 1;
    }
    __device__ __forceinline__ void begin()
    {
        half = slot = left = 0;
        last_bytes = piece_size<lay>(p.units - last() * lay::piece_units);
        tile_set();
    }
    __device__ __forceinline__ void ask()
    {
        if (left == 0)
            return;
        uint32_t bar = bars + 8 * slot, bytes = left == 1 ? last_bytes : lay::piece_bytes;
        bar_expect(bar, bytes);
        bulk_copy(ring + slot * lay::piece_bytes, source, bytes, bar);
        slot = slot + 1 == p.stages ? 0 : slot + 1;
        source += lay::piece_bytes;
        if (--left)
            return;
        if (half++ == p.pair)
            half = 0, tile += step;
        tile_set();
    }
};

#endif
