/* tests/cuda/fake_runtime.h - a CUDA runtime that computes nothing: what the backend asks of it is checked against what a GPU could do.
 *
 * Linked instead of the toolkit's: memory is the host's and is never touched on the device's behalf, kernels are looked at and not run.  A breach is
 * printed, counted, and refused as the runtime would refuse it. */
#ifndef RH_TESTS_FAKE_RUNTIME_H
#define RH_TESTS_FAKE_RUNTIME_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct fake_launch {
    const void *kernel; /* what the host calls it by */
    const char *name;   /* mangled */
    uint32_t grid[3], block, smem;
    bool early;         /* may begin before the kernel ahead has ended */
};

/* The GPU that devices opened from now on are: 80, 89 or 90. */
void fake_gpu_set(int capability);
size_t fake_breaches(void);
size_t fake_launches(void);
size_t fake_graphs(void);
/* Given by the program: what it knows of a kernel.  NULL, or what is wrong with the launch. */
const char *fake_launch_wrong(const struct fake_launch *l);

#endif
