/* base/rng.c - see rng.h. */
#include "base/rng.h"

#include <sys/random.h>
#include <time.h>

uint64_t rng_seed_draw(void)
{
    uint64_t v;
    if (getrandom(&v, sizeof v, 0) == (ssize_t)sizeof v)
        return v >> 11; /* 53 bits: exact in JSON readers that hold numbers as doubles */
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    return ((uint64_t)t.tv_sec * 1000000007u ^ (uint64_t)t.tv_nsec) >> 11;
}
