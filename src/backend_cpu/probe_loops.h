/* backend_cpu/probe_loops.h - the inner loops of probe.c that need a level's instructions; one const table per level. */
#ifndef RH_CPU_PROBE_LOOPS_H
#define RH_CPU_PROBE_LOOPS_H

#include <stddef.h>
#include <stdint.h>

struct probe_loops {
    uint64_t (*read)(const void *set, size_t bytes, uint32_t rounds); /* bytes: a multiple of 4096 */
    uint64_t (*int8)(const void *set, size_t bytes, uint32_t rounds); /* set, bytes: not used */
    uint64_t (*fma)(const void *set, size_t bytes, uint32_t rounds);
    uint32_t int8_ops, fma_ops; /* operations of one round */
};

extern const struct probe_loops probe_loops_avx2, probe_loops_avx512, probe_loops_avx512vnni;

/* The loops of a level (NULL: the best this machine can run); NULL when there are none. */
const struct probe_loops *probe_loops_of(const char *level);

#endif
