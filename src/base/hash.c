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

static uint64_t rotl(uint64_t x, int b)
{
    return x << b | x >> (64 - b);
}

static void sip_round(uint64_t v[4])
{
    v[0] += v[1], v[1] = rotl(v[1], 13) ^ v[0], v[0] = rotl(v[0], 32);
    v[2] += v[3], v[3] = rotl(v[3], 16) ^ v[2];
    v[0] += v[3], v[3] = rotl(v[3], 21) ^ v[0];
    v[2] += v[1], v[1] = rotl(v[1], 17) ^ v[2], v[2] = rotl(v[2], 32);
}

uint64_t hash_sip(const uint64_t key[2], const void *data, size_t n)
{
    const unsigned char *p = data;
    uint64_t v[4] = {key[0] ^ 0x736f6d6570736575, key[1] ^ 0x646f72616e646f6d, key[0] ^ 0x6c7967656e657261, key[1] ^ 0x7465646279746573};
    size_t left = n;
    for (; left >= 8; left -= 8, p += 8) {
        uint64_t m;
        memcpy(&m, p, 8);
        v[3] ^= m;
        sip_round(v);
        v[0] ^= m;
    }
    uint64_t m = (uint64_t)n << 56;
    for (size_t i = 0; i < left; i++)
        m |= (uint64_t)p[i] << 8 * i;
    v[3] ^= m;
    sip_round(v);
    v[0] ^= m;
    v[2] ^= 0xff;
    for (int i = 0; i < 3; i++)
        sip_round(v);
    return v[0] ^ v[1] ^ v[2] ^ v[3];
}
