/* format/dtype_int.h - private to the room: one dequantiser per block type, and reads of unaligned little-endian fields. */
#ifndef RH_FORMAT_DTYPE_INT_H
#define RH_FORMAT_DTYPE_INT_H

#include "format/dtype.h"

#include <string.h>

/* `blocks` blocks at src to blocks * block length values at dst */
typedef void (*dtype_block_fn)(const uint8_t *src, float *dst, size_t blocks);

#define DTYPE_BLOCK_FNS(X)                                                                                            \
    X(q4_0) X(q4_1) X(q5_0) X(q5_1) X(q8_0) X(q8_1) X(q2_k) X(q3_k) X(q4_k) X(q5_k) X(q6_k) X(q8_k)                   \
    X(iq2_xxs) X(iq2_xs) X(iq3_xxs) X(iq1_s) X(iq4_nl) X(iq3_s) X(iq2_s) X(iq4_xs) X(iq1_m) X(tq1_0) X(tq2_0) X(mxfp4)

#define DTYPE_BLOCK_PROTO(name) void dtype_block_##name(const uint8_t *src, float *dst, size_t blocks);
DTYPE_BLOCK_FNS(DTYPE_BLOCK_PROTO)
#undef DTYPE_BLOCK_PROTO

/* Values of the 4-bit codes of IQ4_NL and IQ4_XS, and of FP4 (E2M1) doubled. */
extern const int8_t dtype_iq4_values[16];
extern const int8_t dtype_fp4_doubled[16];

/* Code books of the IQ types (dtype_iq_tables.c): rows packed in a word, element 0 lowest, 2 bits each (iq3: 4). */
extern const uint16_t dtype_iq2xxs_book[256], dtype_iq2xs_book[512], dtype_iq2s_book[1024];
extern const uint16_t dtype_iq3xxs_book[256], dtype_iq3s_book[512], dtype_iq1s_book[2048];

/* Half of the E8M0 scale 2^(e - 127), so that half * doubled value = scale * value; exact for all 256 codes. */
float dtype_e8m0_half(uint8_t e);

static inline uint16_t rd_u16(const void *p)
{
    uint16_t v;
    memcpy(&v, p, sizeof v);
    return v;
}

static inline uint32_t rd_u32(const void *p)
{
    uint32_t v;
    memcpy(&v, p, sizeof v);
    return v;
}

static inline uint64_t rd_u64(const void *p)
{
    uint64_t v;
    memcpy(&v, p, sizeof v);
    return v;
}

static inline float rd_f16(const void *p)
{
    return dtype_f16_to_f32(rd_u16(p));
}

#endif
