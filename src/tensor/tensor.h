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

/* Activation functions of the gated MLP: out = f(gate) * up; clamped (gpt-oss): g = min(gate, 7), u = up within -7 .. 7,
 * out = g sigmoid(1.702 g) * (u + 1). */
enum act { ACT_SILU, ACT_GELU_TANH, ACT_GELU_ERF, ACT_SIGMOID, ACT_CLAMPED, ACT_RELU, ACT_COUNT };

/* How a router's logits become scores. */
enum route_score {
    ROUTE_SOFTMAX,     /* over all experts */
    ROUTE_SOFTMAX_TOP, /* over the chosen ones */
    ROUTE_SIGMOID,     /* each by itself */
    ROUTE_SCORE_COUNT
};

/* Which elements of a head rope turns together. */
enum rope_pairing {
    ROPE_HALVES,   /* (i, i + rot/2): Hugging Face, GGUF "neox" */
    ROPE_ADJACENT, /* (2i, 2i + 1): GGUF "norm" */
};

enum { KV_BLOCK = 256 };      /* positions per attention partial: part of the numeric identity */
enum { KV_PAGE = 32 };        /* positions per page; divides KV_BLOCK */
enum { LOGIT_BLOCK = 4096 };  /* ids per partial of a vocabulary-wide reduction */
enum { ROUTE_TOP_MAX = 64, ROUTE_GROUPS_MAX = 64, ROUTE_EXPERTS_MAX = 4096 };
enum { BLEND_MAX = 4 };       /* tensors that blend reads and writes */
enum { NORM_INPUT_MAX = 4 };  /* weights that share one normed input in norm_linear */

/* Formats of stored K and V.  Which of them a backend has, kv_format_supported says.  X(id, name, code, bits, elements per scale (0:
 * the whole head), turn); kv_codec.h has what the words mean.  V4 and V3 hold values only, as the second half of a pair. */
#define KV_FORMATS(X)                          \
    X(F32, "f32", FLOAT, 32, 0, NONE)          \
    X(F16, "f16", FLOAT, 16, 0, NONE)          \
    X(BF16, "bf16", FLOAT, 16, 0, NONE)        \
    X(Q8, "q8", SIGNED, 8, 32, HADAMARD)       \
    X(A8G32, "a8g32", AFFINE, 8, 32, HADAMARD) \
    X(A8G64, "a8g64", AFFINE, 8, 64, HADAMARD) \
    X(A8G128, "a8g128", AFFINE, 8, 128, HADAMARD) \
    X(A4G32, "a4g32", AFFINE, 4, 32, NONE)     \
    X(A4G64, "a4g64", AFFINE, 4, 64, NONE)     \
    X(A4G128, "a4g128", AFFINE, 4, 128, NONE)  \
    X(Q4H, "q4h", SIGNED, 4, 32, HADAMARD)     \
    X(TQ4, "tq4", BOOK, 4, 0, SIGNS)           \
    X(TQ3, "tq3", BOOK, 3, 0, SIGNS)           \
    X(V4, "v4", BOOK, 4, 32, SIGNS)            \
    X(V3, "v3", BOOK, 3, 32, SIGNS)
enum kv_format {
#define KV_FORMAT_ENUM(id, ...) KV_##id,
    KV_FORMATS(KV_FORMAT_ENUM)
#undef KV_FORMAT_ENUM
    KV_FORMAT_COUNT
};

/* One layer's place in its group's pages.  A page holds KV_PAGE positions of every layer of the group, in one or more chunks
 * (slabs); the layer lies whole in one of them.  Layout inside the layer's part, for each kv head h in turn, K plane then V plane.
 * A plane's elements lie [d][KV_PAGE] for K (the KV_PAGE positions of one element are adjacent), [KV_PAGE][d] for V.  Block formats:
 *   codes, then f16 scales, then (affine) f16 minima, both [groups][KV_PAGE] for K and [KV_PAGE][groups] for V, one group = the
 *   elements that share a scale;
 *   8 bits: a byte a code;
 *   4 bits: per 32 elements 16 bytes b (K: 16 rows of KV_PAGE bytes): element i < 16 is b[i] & 15, element i + 16 is b[i] >> 4;
 *   3 bits: per 32 elements 12 bytes: low two bits of element e are b[e % 8] >> 2 (e / 8) & 3, the high bit is b[8 + e % 4] >> e / 4 & 1.
 * So every position's bits are bytes of its own. */
struct kv_layer {
    enum kv_format k_format, v_format;
    uint32_t n_kv_heads, d_k, d_v;
    uint32_t head_bytes;           /* of one kv head: K plane + V plane (latent: K plane), multiple of 64 */
    unsigned char *const *pages;   /* [page id] -> the chunk with this layer (device-visible table); NULL = not allocated */
    size_t offset;                 /* of the layer's part in that chunk, multiple of 64 */
    bool latent;                   /* V is the first d_v elements of K: no V plane, v_format is k_format */
};

/* One span's rows and its sequence's page table: device-visible plain data.  Position p lies in page tables[table_first + p / KV_PAGE]. */
struct kv_span {
    uint32_t row_first, row_count; /* rows of the step's packed tensors */
    uint32_t pos_first;            /* absolute position of its first row; rows are consecutive */
    uint32_t table_first;          /* index into the step's table array */
};

/* What head_bytes must be, by formats, dims and latent; 0 when the formats cannot hold the dims. */
uint32_t kv_layer_head_bytes(const struct kv_layer *l);
/* Bytes of one kv head's planes; V starts right behind K. */
uint32_t kv_format_k_bytes(enum kv_format f, uint32_t d); /* whole page, one head; 0 when the format cannot hold d */
uint32_t kv_format_v_bytes(enum kv_format f, uint32_t d);
const char *kv_format_name(enum kv_format f);
/* "K:V", one name for both, or a pair's name (k8v4 k8v3 k4v4).  0, or -1 for a name that is not there. */
int kv_formats_parse(const char *name, size_t n, enum kv_format *k, enum kv_format *v);
enum { KV_NAME_MAX = 24 };
const char *kv_formats_name(enum kv_format k, enum kv_format v, char out[KV_NAME_MAX]); /* what kv_formats_parse reads */
extern const char kv_formats_text[]; /* all names, for messages */

#endif
