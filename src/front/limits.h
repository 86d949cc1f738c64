/* front/limits.h - what a device can do at best, measured: printed beside results, and alone by `bench --limits`.
 *
 * The one place above the backends that knows their probes (with lib_bench.c, which reads the stolen time). */
#ifndef RH_FRONT_LIMITS_H
#define RH_FRONT_LIMITS_H

#include "base/buf.h"
#include "tensor/backend.h"

/* one line of the report; best and median over the repeats */
struct limit {
    const char *key;
    double best, median;
};
enum { LIMITS_MAX = 8 };
struct limits {
    struct limit rows[LIMITS_MAX];
    uint32_t count; /* 0: a backend without probes */
};
/* Nothing else may run on the device.  read_bytes: how much a pass of the CPU's reading takes. */
int limits_measure(struct device *d, size_t read_bytes, struct limits *out, struct err *err);
double limits_best(const struct limits *l, const char *key); /* 0: not measured */
void limits_put(const struct limits *l, struct buf *out); /* "limits":{...} */

#endif
