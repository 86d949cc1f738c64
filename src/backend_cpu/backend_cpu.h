/* backend_cpu/backend_cpu.h - the CPU backend: all levels give the same bits (docs/arithmetic.md). */
#ifndef RH_BACKEND_CPU_H
#define RH_BACKEND_CPU_H

#include "tensor/backend.h"

extern const struct backend backend_cpu;

/* Where the time of steps goes, as worker 0 sees it.  For measuring only: the clock is read twice a record. */
struct cpu_profile_row {
    const char *name;      /* of the function the records run */
    uint64_t count;
    int64_t run_ns, wait_ns; /* computing; waiting for the other workers at the end */
};
/* Around a mark, of all workers: when the last one left the kernel before it and the first one began the kernel behind it. */
struct cpu_profile_edge {
    _Atomic int64_t left, begun;
};
enum { CPU_PROFILE_ROWS = 32, CPU_PROFILE_GAPS = 4096 };
struct cpu_profile {
    struct cpu_profile_row rows[CPU_PROFILE_ROWS]; /* in order of first appearance; the last takes what finds no room */
    uint32_t count;
    int64_t idle_ns; /* nothing to run: between steps, or the host was behind */
    struct cpu_profile_edge edges[2]; /* in turns */
    int64_t gaps[CPU_PROFILE_GAPS];   /* ns between the kernels of one step and those of the next; marks and copies are no kernels */
    uint32_t gap_count;
};
/* Add up into `out` from now on; NULL: stop.  Between steps. */
void cpu_profile(struct device *d, struct cpu_profile *out);

#endif
