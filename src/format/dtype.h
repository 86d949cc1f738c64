/* format/dtype.h - element types of tensors in files: names, block geometry, and exact dequantisation to f32.
 *
 * Invariants: 1. dtype_dequant is total: any bytes give some f32 values (NaN and Inf included), equal bit for bit to the
 *                definition of the type (the `gguf` package's NumPy code for GGUF types; for MLX affine q * scale + bias in
 *                f32 with one rounding each).
 *                A NaN result is some NaN: its payload is not defined.
 *             2. A row is cols / block_len blocks, contiguous.
 *             3. Sources may have any alignment (files written by MLX have odd data offsets): read fields with memcpy.
 * Threads: pure functions. */
#ifndef RH_FORMAT_DTYPE_H
#define RH_FORMAT_DTYPE_H

#include "base/err.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* enum suffix, printed name, GGUF type id (-1: not a GGUF type), elements per block, bytes per block */
#define DTYPE_LIST(X)             \
    X(F32, "F32", 0, 1, 4)        \
    X(F16, "F16", 1, 1, 2)        \
    X(BF16, "BF16", 30, 1, 2)     \
    X(F64, "F64", 28, 1, 8)       \
    X(I8, "I8", 24, 1, 1)         \
    X(I16, "I16", 25, 1, 2)       \
    X(I32, "I32", 26, 1, 4)       \
    X(I64, "I64", 27, 1, 8)       \
    X(U8, "U8", -1, 1, 1)         \
    X(U16, "U16", -1, 1, 2)       \
    X(U32, "U32", -1, 1, 4)       \
    X(U64, "U64", -1, 1, 8)       \
    X(BOOL, "BOOL", -1, 1, 1)     \
    X(F8_E4M3, "F8_E4M3", -1, 1, 1) \
    X(F8_E5M2, "F8_E5M2", -1, 1, 1) \
    X(Q4_0, "Q4_0", 2, 32, 18)    \
    X(Q4_1, "Q4_1", 3, 32, 20)    \
    X(Q5_0, "Q5_0", 6, 32, 22)    \
    X(Q5_1, "Q5_1", 7, 32, 24)    \
    X(Q8_0, "Q8_0", 8, 32, 34)    \
    X(Q8_1, "Q8_1", 9, 32, 36)    \
    X(Q2_K, "Q2_K", 10, 256, 84)  \
    X(Q3_K, "Q3_K", 11, 256, 110) \
    X(Q4_K, "Q4_K", 12, 256, 144) \
    X(Q5_K, "Q5_K", 13, 256, 176) \
    X(Q6_K, "Q6_K", 14, 256, 210) \
    X(Q8_K, "Q8_K", 15, 256, 292) \
    X(IQ2_XXS, "IQ2_XXS", 16, 256, 66) \
    X(IQ2_XS, "IQ2_XS", 17, 256, 74) \
    X(IQ3_XXS, "IQ3_XXS", 18, 256, 98) \
    X(IQ1_S, "IQ1_S", 19, 256, 50) \
    X(IQ4_NL, "IQ4_NL", 20, 32, 18) \
    X(IQ3_S, "IQ3_S", 21, 256, 110) \
    X(IQ2_S, "IQ2_S", 22, 256, 82) \
    X(IQ4_XS, "IQ4_XS", 23, 256, 136) \
    X(IQ1_M, "IQ1_M", 29, 256, 56) \
    X(TQ1_0, "TQ1_0", 34, 256, 54) \
    X(TQ2_0, "TQ2_0", 35, 256, 66) \
    X(MXFP4, "MXFP4", 39, 32, 17)

enum dtype {
#define DTYPE_ENUM(id, name, gguf, len, bytes) DTYPE_##id,
    DTYPE_LIST(DTYPE_ENUM)
#undef DTYPE_ENUM
    /* MLX affine: three tensors (packed u32 words, scales, biases); geometry in struct weight_src */
    DTYPE_MLX,
    DTYPE_COUNT
};

const char *dtype_name(enum dtype t);
int dtype_from_gguf(uint32_t gguf_id);            /* enum dtype, or -1 for an id that is unknown */
int dtype_from_safetensors(const char *name, size_t n); /* "BF16" ...; -1 unknown */
uint32_t dtype_block_len(enum dtype t);           /* elements per block; 1 for plain types */
uint32_t dtype_block_bytes(enum dtype t);
/* Bytes of `cols` elements; false when cols is no multiple of the block or the product overflows. */
bool dtype_row_bytes(enum dtype t, uint64_t cols, uint64_t *bytes);

/* Dequantise `count` elements (a multiple of the block length) to f32.  Not for DTYPE_MLX. */
void dtype_dequant(enum dtype t, const void *src, float *dst, size_t count);

/* exact; a NaN keeps its payload and becomes quiet, as the hardware conversions do */
static inline float dtype_f16_to_f32(uint16_t h) /* no branches: loops over it become vector code */
{
    uint32_t exp = (h >> 10) & 31, man = h & 1023;
    union { float f; uint32_t u; } small = {(float)man * 0x1p-24f}; /* zero and subnormals: exact */
    uint32_t is_small = 0u - (exp == 0), is_top = 0u - (exp == 31), is_nan = is_top & (0u - (man != 0));
    small.u = (small.u & is_small) | (((exp + 112) << 23 | man << 13) & ~is_small);
    small.u |= (is_top & 0x7F800000u) | (is_nan & 0x400000u) | (uint32_t)(h & 0x8000) << 16;
    return small.f;
}
uint16_t dtype_f32_to_f16(float f);   /* round to nearest even */
static inline float dtype_bf16_to_f32(uint16_t b)
{
    union { uint32_t u; float f; } v = {(uint32_t)b << 16};
    return v.f;
}

/* A two-dimensional weight as the file has it: rows x cols, each output row contiguous.  Borrows the mapped file. */
struct weight_src {
    const char *name;      /* tensor name, for messages */
    enum dtype type;
    uint32_t rows, cols;   /* [rows][cols]; y = W x has `rows` outputs */
    const void *data;      /* MLX: u32 words, cols * bits / 32 per row */
    uint64_t row_bytes;    /* stride of data between rows */
    /* MLX affine only */
    uint32_t bits, group;  /* 2 3 4 5 6 8; 32 64 128 */
    enum dtype scale_type; /* F32, F16 or BF16, of scales and biases */
    const void *scales, *biases; /* [rows][cols / group] */
    /* MXFP4 of Hugging Face (gpt-oss): data = blocks [rows][cols/32][16], scales = U8 [rows][cols/32]; else NULL.
     * (With type MXFP4 and scales == NULL the data are GGUF's 17-byte blocks.) */
    /* A stack of matrices of one type and shape, each [rows][cols] (experts): where each lies; data is then the first's. */
    uint32_t n_experts;    /* 0: no stack */
    const struct weight_src *experts; /* [n_experts] */
};

/* Matrix e of a stack; w itself when it is none. */
static inline const struct weight_src *weight_src_expert(const struct weight_src *w, uint32_t e)
{
    return w->n_experts ? w->experts + e : w;
}

/* One row of any weight to f32 (every type, MLX included): the meaning of the bytes.  dst holds cols values. */
void weight_src_row(const struct weight_src *w, uint32_t row, float *dst);

/* Refuse block scales that make values which are not finite (NaN, infinite, past f32's range): ERR_FORMAT naming tensor, row
 * and block.  Plain element types have no scales: 0. */
int dtype_check_scales(const struct weight_src *w, struct err *err);
int dtype_check_rows(const struct weight_src *w, uint32_t first, uint32_t count, struct err *err); /* some rows only */

#endif
