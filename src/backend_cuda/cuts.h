/* backend_cuda/cuts.h - where a linear's K is cut: a part of the numeric identity (docs/arithmetic.md, "The CUDA backend"). */
#ifndef RH_CUDA_CUTS_H
#define RH_CUDA_CUTS_H

#include <stdint.h>

#ifdef __CUDACC__
#define CUDA_BOTH __host__ __device__
#else
#define CUDA_BOTH
#endif

enum { CUDA_UNIT = 64, CUDA_TILE = 16, CUDA_SEGMENTS = 8, CUDA_SEGMENT_UNITS = 4 };
/* How many segments there are at most.  Another number makes other sums, to measure what this one costs (cmake/cuda.cmake, RH_CUDA_CUTS). */
#ifndef CUDA_CUTS
#define CUDA_CUTS CUDA_SEGMENTS
#endif

static inline CUDA_BOTH uint32_t cuda_units(uint32_t cols)
{
    return (cols + CUDA_UNIT - 1) / CUDA_UNIT;
}
/* Units of a segment, by K alone. */
static inline CUDA_BOTH uint32_t cuda_segment_units(uint32_t units)
{
    uint32_t n = (units + CUDA_CUTS - 1) / CUDA_CUTS;
    return n < (uint32_t)CUDA_SEGMENT_UNITS ? (uint32_t)CUDA_SEGMENT_UNITS : n;
}

#endif
