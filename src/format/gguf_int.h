/* format/gguf_int.h - private: one parsed GGUF file of a set. */
#ifndef RH_FORMAT_GGUF_INT_H
#define RH_FORMAT_GGUF_INT_H

#include "base/arena.h"
#include "base/file.h"
#include "format/gguf.h"
#include "format/names.h"

/* owns map, values and tensors; the tensors move into the set */
struct gguf_shard {
    char *path;
    struct file_map map; /* empty when opened from memory */
    const uint8_t *p;    /* the file's bytes */
    size_t n;
    uint32_t version;
    uint64_t data_at; /* where tensor data begin; header = [0, data_at) */
    struct gguf_value *values;
    size_t n_values;
    struct names value_names;
    struct gguf_tensor *tensors;
    size_t n_tensors;
};

/* Parse s->p, s->n (path set): header, values, tensors, each checked.  On failure the caller frees the shard. */
int gguf_shard_parse(struct gguf_shard *s, uint32_t index, struct err *err);
void gguf_shard_free(struct gguf_shard *s);
const struct gguf_value *gguf_shard_find(const struct gguf_shard *s, const char *key);

/* An integer value of any width; false when it is no integer or above INT64_MAX. */
bool gguf_value_i64(enum gguf_type type, const uint8_t *p, int64_t *out);
/* Bytes of a value of fixed size; 0 for strings and arrays. */
size_t gguf_type_bytes(enum gguf_type type);
const char *gguf_type_name(uint32_t type);

#endif
