/* backend_cuda/backend_cuda.h - one NVIDIA GPU as a backend: weights packed in device memory, a stream, steps as graphs.
 *
 * device_config.index says which GPU.  The program starts without a driver: opening a device then fails with the reason.
 * device_config.level: NULL, or for tests and measurements "host": buffers are host memory that the device reads too; "in_turn": no kernel is
 * launched before the one ahead of it has ended.
 * Weak: a program that is linked without this room finds NULL here.
 * Arithmetic: docs/arithmetic.md, "The CUDA backend". */
#ifndef RH_BACKEND_CUDA_H
#define RH_BACKEND_CUDA_H

#include "tensor/backend.h"

extern const struct backend backend_cuda __attribute__((weak));

#endif
