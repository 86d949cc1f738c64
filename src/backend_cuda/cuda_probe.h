/* backend_cuda/cuda_probe.h - what the GPU can do at best, measured: the limits that benchmarks print beside their results. */
#ifndef RH_CUDA_PROBE_H
#define RH_CUDA_PROBE_H

#include "tensor/backend.h"

/* best and median of the repeats */
struct cuda_limit {
    double best, median;
};
struct cuda_limits {
    struct cuda_limit read, copy; /* GB/s: reading only, 16 bytes a thread and eight in flight; copying, both ways counted */
    struct cuda_limit f16;        /* G operations/s of wgmma (else mma), f16 in and f32 sums, random data */
    struct cuda_limit edge_us;    /* microseconds from one empty kernel of a graph to the next */
};
/* Weak, as backend_cuda.  Takes `bytes` of device memory twice while it runs (less when there is less). */
int cuda_probe(struct device *d, size_t bytes, uint32_t repeats, struct cuda_limits *out, struct err *err)
    __attribute__((weak));

#endif
