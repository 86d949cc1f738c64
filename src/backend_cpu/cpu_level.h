/* backend_cpu/cpu_level.h - levels by index (worst to best) and by name; see cpu_select.c. */
#ifndef RH_CPU_LEVEL_H
#define RH_CPU_LEVEL_H

#include "backend_cpu/kernels.h"
#include "base/err.h"

int cpu_level_count(void);
const char *cpu_level_name(int i);
bool cpu_level_usable(int i);

/* The merged table of the best usable level up to `cap` (NULL: no cap).  ERR_ARGUMENT for an unknown name, ERR_UNSUPPORTED for one
 * this machine cannot run. */
int cpu_level_select(const char *cap, struct cpu_kernels *out, const char **name, struct err *err);

#endif
