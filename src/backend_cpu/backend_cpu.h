/* backend_cpu/backend_cpu.h - the CPU backend: all levels give the same bits (docs/arithmetic.md). */
#ifndef RH_BACKEND_CPU_H
#define RH_BACKEND_CPU_H

#include "tensor/backend.h"

extern const struct backend backend_cpu;

#endif
