/* format/gguf.h - GGUF v2 and v3, little-endian, mapped, split sets.
 *
 * Owns:       the mappings of all shards; everything it returns is borrowed from them and lives until gguf_close.
 * Invariants: after gguf_open every tensor lies inside its file, is aligned, overlaps no other, has 1..4 dimensions with a
 *             product and byte size that fit, and every metadata value lies inside the file.
 * Does not:   know architectures, or dequantise (dtype.h).
 * Threads:    read-only after open. */
#ifndef RH_FORMAT_GGUF_H
#define RH_FORMAT_GGUF_H

#include "base/err.h"
#include "base/hash.h"
#include "base/str.h"
#include "format/dtype.h"

enum gguf_type {
    GGUF_U8, GGUF_I8, GGUF_U16, GGUF_I16, GGUF_U32, GGUF_I32, GGUF_F32, GGUF_BOOL, GGUF_STRING, GGUF_ARRAY, GGUF_U64, GGUF_I64, GGUF_F64
};

struct gguf;

/* ne as GGUF writes it: ne[0] is the contiguous dimension (columns), ne[1] rows, ... unused are 1 */
struct gguf_tensor {
    struct str name;
    enum dtype type;
    uint32_t n_dims;
    uint64_t ne[4];
    const uint8_t *data;
    uint64_t size_bytes;
    uint32_t shard;       /* which file of the set */
    uint64_t offset;      /* of data in that file */
};

struct gguf_value {
    struct str key;
    enum gguf_type type;
    enum gguf_type item_type; /* arrays */
    uint64_t count;           /* arrays: items; else 1 */
    const uint8_t *data;      /* scalars, or packed items; strings: u64 length + bytes each */
    uint64_t size_bytes;
};

/* Open a file, or the first of a split set (its siblings are found by split.no / split.count and the -00001-of-0000N name). */
int gguf_open(const char *path, struct gguf **out, struct err *err);
/* The same from memory (tests, fuzzing): single file only; borrows data. */
int gguf_open_memory(const void *data, size_t n, struct gguf **out, struct err *err);
void gguf_close(struct gguf *g);

const char *gguf_path(const struct gguf *g); /* of the first shard, for messages */
uint32_t gguf_file_count(const struct gguf *g); /* of the set */
const char *gguf_file_at(const struct gguf *g, uint32_t i); /* path */
uint32_t gguf_version(const struct gguf *g);
size_t gguf_tensor_count(const struct gguf *g);
const struct gguf_tensor *gguf_tensor_at(const struct gguf *g, size_t i);
const struct gguf_tensor *gguf_tensor_find(const struct gguf *g, struct str name); /* NULL when absent */
size_t gguf_value_count(const struct gguf *g);
const struct gguf_value *gguf_value_at(const struct gguf *g, size_t i);
const struct gguf_value *gguf_value_find(const struct gguf *g, const char *key);

/* Scalars with conversion between integer widths (range-checked), and of floats that are whole numbers to 2^24 to integers.  Absent: 0 and *out untouched.  Wrong type: ERR_FORMAT. */
int gguf_get_u32(const struct gguf *g, const char *key, uint32_t *out, struct err *err);
int gguf_get_i64(const struct gguf *g, const char *key, int64_t *out, struct err *err);
int gguf_get_f32(const struct gguf *g, const char *key, float *out, struct err *err);
int gguf_get_bool(const struct gguf *g, const char *key, bool *out, struct err *err);
int gguf_get_str(const struct gguf *g, const char *key, struct str *out, struct err *err);
/* Array items: the i-th as a number or string (linear for strings: walk with gguf_strings). */
int gguf_array_f32(const struct gguf_value *v, uint64_t i, float *out);
int gguf_array_i64(const struct gguf_value *v, uint64_t i, int64_t *out);
/* Walk a string array: *at starts at 0. */
bool gguf_string_next(const struct gguf_value *v, uint64_t *at, struct str *out);

/* Drop the mapped pages of a tensor (after it was repacked). */
void gguf_tensor_drop(const struct gguf *g, const struct gguf_tensor *t);
/* XXH3-128 of header and tensors of all shards. */
int gguf_content_hash(const struct gguf *g, struct hash128 *out, struct err *err);

#endif
