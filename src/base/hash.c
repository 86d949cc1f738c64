/* base/hash.c - see hash.h. */
#include "base/hash.h"

#include "base/mem.h"

#include <openssl/evp.h>
#include <stdio.h>
#include <xxhash.h>

struct hash128 hash_xxh3(const void *data, size_t n)
{
    XXH128_hash_t h = XXH3_128bits(data, n);
    return (struct hash128){h.low64, h.high64};
}

struct hash_stream *hash_stream_new(void)
{
    XXH3_state_t *s = XXH3_createState();
    if (s)
        XXH3_128bits_reset(s);
    return (struct hash_stream *)s;
}

void hash_stream_put(struct hash_stream *s, const void *data, size_t n)
{
    XXH3_128bits_update((XXH3_state_t *)s, data, n);
}

struct hash128 hash_stream_end(struct hash_stream *s)
{
    XXH128_hash_t h = XXH3_128bits_digest((XXH3_state_t *)s);
    XXH3_freeState((XXH3_state_t *)s);
    return (struct hash128){h.low64, h.high64};
}

void hash128_hex(struct hash128 h, char out[33])
{
    snprintf(out, 33, "%016llx%016llx", (unsigned long long)h.hi, (unsigned long long)h.lo);
}

struct sha256 *sha256_new(void)
{
    EVP_MD_CTX *c = EVP_MD_CTX_new();
    if (c && EVP_DigestInit_ex(c, EVP_sha256(), NULL) != 1) {
        EVP_MD_CTX_free(c);
        c = NULL;
    }
    return (struct sha256 *)c;
}

void sha256_put(struct sha256 *s, const void *data, size_t n)
{
    EVP_DigestUpdate((EVP_MD_CTX *)s, data, n);
}

void sha256_end(struct sha256 *s, char hex[65])
{
    unsigned char d[32] = {0};
    EVP_DigestFinal_ex((EVP_MD_CTX *)s, d, NULL);
    EVP_MD_CTX_free((EVP_MD_CTX *)s);
    for (int i = 0; i < 32; i++)
        snprintf(hex + 2 * i, 3, "%02x", d[i]);
}

static inline uint64_t rotl(uint64_t x, int b)
{
    return x << b | x >> (64 - b);
}

struct sip {
    uint64_t a, b, c, d;
};

static inline struct sip sip_round(struct sip v)
{
    v.a += v.b, v.b = rotl(v.b, 13) ^ v.a, v.a = rotl(v.a, 32);
    v.c += v.d, v.d = rotl(v.d, 16) ^ v.c;
    v.a += v.d, v.d = rotl(v.d, 21) ^ v.a;
    v.c += v.b, v.b = rotl(v.b, 17) ^ v.c, v.c = rotl(v.c, 32);
    return v;
}

static inline struct sip sip_word(struct sip v, uint64_t m)
{
    v.d ^= m;
    v = sip_round(v);
    v.a ^= m;
    return v;
}

/* The last 0 .. 7 bytes, little-endian. */
static inline uint64_t sip_tail(const unsigned char *p, size_t n)
{
    uint32_t lo = 0, hi = 0;
    if (n >= 4) { /* two words that may overlap */
        memcpy(&lo, p, 4);
        memcpy(&hi, p + n - 4, 4);
        return lo | (uint64_t)hi << 8 * (n - 4);
    }
    for (size_t i = 0; i < n; i++)
        lo |= (uint32_t)p[i] << 8 * i;
    return lo;
}

uint64_t hash_sip(const uint64_t key[2], const void *data, size_t n)
{
    const unsigned char *p = data;
    struct sip v = {key[0] ^ 0x736f6d6570736575, key[1] ^ 0x646f72616e646f6d, key[0] ^ 0x6c7967656e657261, key[1] ^ 0x7465646279746573};
    size_t left = n;
    for (; left >= 8; left -= 8, p += 8) {
        uint64_t m;
        memcpy(&m, p, 8);
        v = sip_word(v, m);
    }
    v = sip_word(v, sip_tail(p, left) | (uint64_t)n << 56);
    v.c ^= 0xff;
    v = sip_round(sip_round(sip_round(v)));
    return v.a ^ v.b ^ v.c ^ v.d;
}
