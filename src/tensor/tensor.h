/* tensor/tensor.h - what moves through the wall between models and backends: plain descriptors, no ownership. */
#ifndef RH_TENSOR_TENSOR_H
#define RH_TENSOR_TENSOR_H

#include "format/dtype.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Activations: f32 (or u32 for ids, positions, tables), row-major, in the device's memory.
 * `data` belongs to whoever allocated the buffer (models/driver.c) and stays valid until the step's event. */
struct tensor {
    void *data;
    uint32_t rows, cols; /* [rows][cols] */
    uint32_t stride;     /* elements between rows, >= cols */
};

struct device;  /* one backend instance: its memory, its in-order queue */
struct weight;  /* a prepared weight; layout is the backend's own */

/* Activation functions of the gated MLP: out = f(gate) * up. */
enum act { ACT_SILU, ACT_GELU_TANH, ACT_GELU_ERF, ACT_SIGMOID, ACT_COUNT };

/* Which elements of a head rope turns together. */
enum rope_pairing {
    ROPE_HALVES,   /* (i, i + rot/2): Hugging Face, GGUF "neox" */
    ROPE_ADJACENT, /* (2i, 2i + 1): GGUF "norm" */
};

enum { KV_BLOCK = 256 };      /* positions per attention partial: part of the numeric identity */
enum { KV_PAGE = 32 };        /* positions per page; divides KV_BLOCK */
enum { LOGIT_BLOCK = 4096 };  /* ids per partial of a vocabulary-wide reduction */
enum { NORM_INPUT_MAX = 4 };  /* weights that share one normed input in norm_linear */

/* Formats of stored K and V.  Which of them a backend has, kv_format_supported says. */
enum kv_format { KV_F32, KV_F16, KV_BF16, KV_Q8, KV_FORMAT_COUNT };

/* One layer's place in its group's pages.  A page holds KV_PAGE positions of every layer of the group, in one or more chunks
 * (slabs); the layer lies whole in one of them.  Layout inside the layer's part, for each kv head h in turn:
 *   K plane: [d_k][KV_PAGE] elements (transposed: the KV_PAGE positions of one element are adjacent);
 *   V plane: [KV_PAGE][d_v] elements.
 * Q8: K plane: int8 [d_k][KV_PAGE], then f16 scales [d_k/32][KV_PAGE]; V plane: int8 [KV_PAGE][d_v], then f16 scales [KV_PAGE][d_v/32]. */
struct kv_layer {
    enum kv_format k_format, v_format;
    uint32_t n_kv_heads, d_k, d_v;
    uint32_t head_bytes;           /* of one kv head: K plane + V plane, multiple of 64 */
    unsigned char *const *pages;   /* [page id] -> the chunk with this layer (device-visible table); NULL = not allocated */
    size_t offset;                 /* of the layer's part in that chunk, multiple of 64 */
};

/* One span's rows and its sequence's page table: device-visible plain data.  Position p lies in page tables[table_first + p / KV_PAGE]. */
struct kv_span {
    uint32_t row_first, row_count; /* rows of the step's packed tensors */
    uint32_t pos_first;            /* absolute position of its first row; rows are consecutive */
    uint32_t table_first;          /* index into the step's table array */
};

/* Bytes of one kv head's planes, and where V starts (K plane padded to 64). */
uint32_t kv_format_k_bytes(enum kv_format f, uint32_t d); /* whole page, one head; 0 when the format cannot hold d */
uint32_t kv_format_v_bytes(enum kv_format f, uint32_t d);
const char *kv_format_name(enum kv_format f);
int kv_format_parse(const char *name, size_t n); /* enum or -1 */

#endif
