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
enum { CPU_PROFILE_ROWS = 32 };
struct cpu_profile {
    struct cpu_profile_row rows[CPU_PROFILE_ROWS]; /* in order of first appearance; the last takes what finds no room */
    uint32_t count;
    int64_t idle_ns; /* nothing to run: between steps, or the host was behind */
};
/* Add up into `out` from now on; NULL: stop.  Between steps. */
void cpu_profile(struct device *d, struct cpu_profile *out);

#endif
