/* backend_cuda/probe_values.cuh - what the probes multiply. */
#ifndef RH_CUDA_PROBE_VALUES_CUH
#define RH_CUDA_PROBE_VALUES_CUH

#include <stdint.h>

static __device__ __forceinline__ uint32_t random_halves(uint32_t v) /* in 1 .. 2 and -2 .. -1 */
{
    return (v & 0x83ff83ffu) | 0x3c003c00u;
}

#endif
