/* tests/ops/other_backend.h - the CUDA backend where it was built, for op tests that take it by name; opened with level "host" its buffers are
 * memory of the host too, so cases are written and read in place. */
#ifndef RH_TESTS_OTHER_BACKEND_H
#define RH_TESTS_OTHER_BACKEND_H

#include "tensor/backend.h"

#include "backend_cuda/backend_cuda.h"
static const struct backend *const cuda = &backend_cuda; /* NULL where it was not linked */

/* largest error over the largest value of products whose operands are f16; docs/arithmetic.md, "Tolerances" */
#define CUDA_LINEAR 3e-3

#endif
