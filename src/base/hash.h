/* base/hash.h - content hashes.  XXH3-128 for blocks and model contents, SHA-256 for what is downloaded, SipHash-1-3 for tables
 * whose keys a client chooses. */
#ifndef RH_BASE_HASH_H
#define RH_BASE_HASH_H

#include "base/str.h"

struct hash128 {
    uint64_t lo, hi;
};

struct hash128 hash_xxh3(const void *data, size_t n);

struct hash_stream; /* XXH3-128 over pieces */
struct hash_stream *hash_stream_new(void); /* NULL: no memory */
void hash_stream_put(struct hash_stream *s, const void *data, size_t n);
struct hash128 hash_stream_end(struct hash_stream *s); /* frees it */
void hash128_hex(struct hash128 h, char out[33]);      /* high half first, terminated */

struct sha256; /* SHA-256 over pieces */
struct sha256 *sha256_new(void);
void sha256_put(struct sha256 *s, const void *data, size_t n);
void sha256_end(struct sha256 *s, char hex[65]); /* frees it; terminated lower-case hex */

uint64_t hash_sip(const uint64_t key[2], const void *data, size_t n);

#endif
