/* backend_cpu/probe.h - what this machine can do at best, measured: the limits that benchmarks print beside their results. */
#ifndef RH_CPU_PROBE_H
#define RH_CPU_PROBE_H

#include "base/err.h"

#include <stddef.h>
#include <stdint.h>

struct probe_result {
    double best, median; /* over the repeats, by the clock on the wall */
    double cpu_best;     /* by the threads' own CPU time: what it would be if nobody else ran */
};

/* GB/s of `threads` pinned threads reading a set of `set_bytes` again and again, each its own slice. */
int probe_read(uint32_t threads, size_t set_bytes, uint32_t repeats, struct probe_result *out, struct err *err);

/* Integer limit of a level: G operations per second (a multiply and an add are two) of its int8 dot instructions with 32-bit sums
 * (avx2: maddubs, madd, add; vnni: dpbusd); level ref has none: 0. */
int probe_int8(const char *level, uint32_t threads, uint32_t repeats, struct probe_result *out, struct err *err);
/* The same for f32 fused multiply-adds. */
int probe_fma(const char *level, uint32_t threads, uint32_t repeats, struct probe_result *out, struct err *err);

/* Ticks of all CPUs so far (/proc/stat): what a hypervisor took away, and the sum of all kinds.  Zeros where the system has none. */
struct probe_ticks {
    uint64_t steal, total;
};
struct probe_ticks probe_ticks_now(void);
double probe_steal_share(struct probe_ticks from, struct probe_ticks to); /* 0 .. 1 */

#endif
