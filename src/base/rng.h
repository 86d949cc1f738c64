/* base/rng.h - Philox4x32-10: counter-based noise, a pure function of (key, counter); the same on every backend. */
#ifndef RH_BASE_RNG_H
#define RH_BASE_RNG_H

#include <stdint.h>

static inline void rng_philox(uint64_t key, const uint32_t counter[4], uint32_t out[4])
{
    uint32_t k0 = (uint32_t)key, k1 = (uint32_t)(key >> 32);
    uint32_t c0 = counter[0], c1 = counter[1], c2 = counter[2], c3 = counter[3];
    for (int r = 0; r < 10; r++) {
        uint64_t a = (uint64_t)0xD2511F53u * c0, b = (uint64_t)0xCD9E8D57u * c2;
        uint32_t n0 = (uint32_t)(b >> 32) ^ c1 ^ k0, n2 = (uint32_t)(a >> 32) ^ c3 ^ k1;
        c0 = n0, c1 = (uint32_t)b, c2 = n2, c3 = (uint32_t)a;
        k0 += 0x9E3779B9u, k1 += 0xBB67AE85u;
    }
    out[0] = c0, out[1] = c1, out[2] = c2, out[3] = c3;
}

/* 32 random bits -> (0, 1): ((bits >> 9) + 0.5) / 2^23, exact in f32. */
static inline float rng_open01(uint32_t bits)
{
    return ((float)(bits >> 9) + 0.5f) * 0x1p-23f;
}

uint64_t rng_seed_draw(void); /* from the system; for requests that name no seed */

#endif
