/* format/hfdir_int.h - private: safetensors files and the quantisation part of config.json. */
#ifndef RH_FORMAT_HFDIR_INT_H
#define RH_FORMAT_HFDIR_INT_H

#include "base/buf.h"
#include "base/file.h"
#include "format/names.h"
#include "format/safetensors.h"

/* owns path, map, doc (its keys are the tensors' names) and, until they move into the directory, tensors */
struct st_shard {
    char *path;
    struct file_map map; /* empty when opened from memory */
    const uint8_t *p;    /* the file's bytes */
    size_t n;
    yyjson_doc *doc; /* the header */
    uint64_t data_at;
    struct st_tensor *tensors;
    size_t n_tensors;
};

int st_shard_open(struct st_shard *s, const char *path, uint32_t index, struct err *err);
int st_shard_parse(struct st_shard *s, uint32_t index, struct err *err); /* s->p, s->n, s->path are set */
void st_shard_free(struct st_shard *s);

struct hf_form {          /* of MLX's codes */
    uint32_t bits, group;
    bool mxfp4;           /* MXFP4 in groups of 32, scales alone beside it; else affine */
};
struct hf_layer {
    struct str name; /* first: struct names reads it */
    bool quantised;
    struct hf_form form;
};

/* What config.json says about weights.  owns layers and the table; names borrow the document */
struct hf_quant {
    bool mlx;
    struct hf_form form; /* of layers not named below */
    struct hf_layer *layers;
    size_t n_layers;
    struct names names;
};

int hf_quant_parse(struct hf_quant *q, yyjson_val *config, const char *where, struct err *err);
void hf_quant_free(struct hf_quant *q);

#endif
