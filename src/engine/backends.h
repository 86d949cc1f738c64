/* engine/backends.h - the backends there are. */
#ifndef RH_ENGINE_BACKENDS_H
#define RH_ENGINE_BACKENDS_H

#include "tensor/backend.h"

uint32_t backends_count(void);
const struct backend *backends_at(uint32_t i);
/* NULL name = the first of the list.  ERR_ARGUMENT names those there are; ERR_UNSUPPORTED: a GPU, and this build has none. */
int backends_find(const char *name, const struct backend **out, struct err *err);
/* Open a device by name: "cpu", "ref", "cuda", "cuda:1".  NULL or "auto": a GPU where one can be opened, else the CPU. */
int backends_open(const char *name, const struct device_config *cfg, const struct backend **backend, struct device **out, struct err *err);

#endif
