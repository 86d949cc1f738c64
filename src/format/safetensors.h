/* format/safetensors.h - a Hugging Face model directory: config files, safetensors shards, MLX quantization.
 *
 * Owns:       the mappings and parsed JSON; everything returned is borrowed until hfdir_close.
 * Invariants: every tensor lies inside its file, the tensors of a file fill its data area without gap or overlap, no dimension
 *             is 0; shard index and files agree.  Data may have ANY alignment: MLX writes headers without padding.
 * Threads:    read-only after open. */
#ifndef RH_FORMAT_SAFETENSORS_H
#define RH_FORMAT_SAFETENSORS_H

#include "base/err.h"
#include "base/hash.h"
#include "base/json.h"
#include "format/dtype.h"

/* shape as safetensors writes it: shape[0] outermost (rows), row-major */
struct st_tensor {
    struct str name;
    enum dtype type;
    uint32_t n_dims;
    uint64_t shape[8];
    const uint8_t *data;
    uint64_t size_bytes;
    uint32_t shard;
    uint64_t offset; /* of data in that file */
};

struct hfdir;

int hfdir_open(const char *dir, struct hfdir **out, struct err *err);
void hfdir_close(struct hfdir *h);
/* One safetensors file from memory, no directory (tests, fuzzing). */
int hfdir_open_memory(const void *data, size_t n, struct hfdir **out, struct err *err);

const char *hfdir_path(const struct hfdir *h);
size_t hfdir_tensor_count(const struct hfdir *h);
const struct st_tensor *hfdir_tensor_at(const struct hfdir *h, size_t i);
const struct st_tensor *hfdir_tensor_find(const struct hfdir *h, struct str name); /* NULL when absent */
void hfdir_tensor_drop(const struct hfdir *h, const struct st_tensor *t);

yyjson_val *hfdir_config(const struct hfdir *h);            /* config.json, never NULL after hfdir_open */
yyjson_val *hfdir_generation_config(const struct hfdir *h); /* NULL when absent */
/* Another file of the directory (tokenizer.json, chat_template.jinja, ...) whole: {NULL,0} when absent. */
int hfdir_file(struct hfdir *h, const char *name, struct str *out, struct err *err);

/* The weight `name` ("model.layers.0.self_attn.q_proj", without ".weight") as a 2-D source: plain, or MLX affine when
 * config.json has `quantization` and the .scales / .biases exist (per-layer overrides respected, shapes checked).  Modes other
 * than affine, fp8, GPTQ and AWQ are refused by name (at hfdir_open). */
int hfdir_weight(const struct hfdir *h, struct str name, struct weight_src *out, struct err *err);

int hfdir_content_hash(const struct hfdir *h, struct hash128 *out, struct err *err);

#endif
