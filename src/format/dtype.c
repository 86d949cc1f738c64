/* format/dtype.c - the list of element types as tables, scalar conversions, and the dispatch to the block types.
 *
 * Owns:       nothing; pure functions.
 * Invariants: every field is read with memcpy (rd_*), so any alignment of the source is fine: safetensors files written
 *             without header padding have odd offsets.
 * Does not:   know files.  Block types live in dtype_block.c (groups of 32, ternary), dtype_k.c and dtype_iq.c. */
#include "format/dtype.h"

#include "format/dtype_int.h"

static const struct {
    const char *name;
    int gguf_id;
    uint32_t len, bytes;
} types[DTYPE_COUNT] = {
#define DTYPE_ROW(id, text, gguf, l, b) [DTYPE_##id] = {text, gguf, l, b},
    DTYPE_LIST(DTYPE_ROW)
#undef DTYPE_ROW
        [DTYPE_MLX] = {"MLX", -1, 1, 0},
};

const char *dtype_name(enum dtype t)
{
    return (unsigned)t < DTYPE_COUNT ? types[t].name : "?";
}

int dtype_from_gguf(uint32_t gguf_id)
{
    for (int t = 0; t < DTYPE_COUNT; t++)
        if (types[t].gguf_id >= 0 && (uint32_t)types[t].gguf_id == gguf_id)
            return t;
    return -1;
}

int dtype_from_safetensors(const char *name, size_t n)
{
    static const enum dtype known[] = {DTYPE_F32, DTYPE_F16, DTYPE_BF16, DTYPE_F64,     DTYPE_I8,
                                       DTYPE_I16, DTYPE_I32, DTYPE_I64,  DTYPE_U8,      DTYPE_U16,
                                       DTYPE_U32, DTYPE_U64, DTYPE_BOOL, DTYPE_F8_E4M3, DTYPE_F8_E5M2};
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (strlen(types[known[i]].name) == n && memcmp(types[known[i]].name, name, n) == 0)
            return (int)known[i];
    return -1;
}

uint32_t dtype_block_len(enum dtype t)
{
    return types[t].len;
}

uint32_t dtype_block_bytes(enum dtype t)
{
    return types[t].bytes;
}

bool dtype_row_bytes(enum dtype t, uint64_t cols, uint64_t *bytes)
{
    return types[t].bytes && cols % types[t].len == 0 &&
           !__builtin_mul_overflow(cols / types[t].len, (uint64_t)types[t].bytes, bytes);
}

static float f32_of_bits(uint32_t u)
{
    float f;
    memcpy(&f, &u, sizeof f);
    return f;
}

static uint32_t bits_of_f32(float f)
{
    uint32_t u;
    memcpy(&u, &f, sizeof u);
    return u;
}

uint16_t dtype_f32_to_f16(float f)
{
    uint32_t u = bits_of_f32(f), sign = u >> 16 & 0x8000, a = u & 0x7FFFFFFFu;
    if (a > 0x7F800000u)
        return (uint16_t)(sign | 0x7E00 | (a >> 13 & 0x3FF));
    if (a >= 0x477FF000u) /* 65520 and above round to infinity */
        return (uint16_t)(sign | 0x7C00);
    if (a < 0x38800000u) /* below 2^-14: adding 0.5 leaves |f| rounded to a multiple of 2^-24 in the low bits */
        return (uint16_t)(sign | (bits_of_f32(f32_of_bits(a) + 0.5f) - 0x3F000000u));
    return (uint16_t)(sign | ((a - 0x38000000u + 0xFFF + (a >> 13 & 1)) >> 13));
}

static float f8_e4m3(uint8_t b)
{
    uint32_t sign = (uint32_t)(b & 0x80) << 24, exp = b >> 3 & 15, man = b & 7;
    if (exp == 15 && man == 7) /* the only NaN; no infinities */
        return f32_of_bits(sign | 0x7FC00000u);
    if (exp == 0)
        return f32_of_bits(sign | bits_of_f32((float)man * 0x1p-9f));
    return f32_of_bits(sign | (exp + 120) << 23 | man << 20);
}

/* Plain element types: one loop each. */
#define DTYPE_PLAIN(name, T, expression)                                                                                         \
    static void plain_##name(const uint8_t *s, float *dst, size_t n)                                                             \
    {                                                                                                                            \
        for (size_t i = 0; i < n; i++) {                                                                                         \
            T v;                                                                                                                 \
            memcpy(&v, s + i * sizeof v, sizeof v);                                                                              \
            dst[i] = (expression);                                                                                               \
        }                                                                                                                        \
    }
DTYPE_PLAIN(f32, float, v)
DTYPE_PLAIN(f16, uint16_t, dtype_f16_to_f32(v))
DTYPE_PLAIN(bf16, uint16_t, dtype_bf16_to_f32(v))
DTYPE_PLAIN(f64, double, (float)v)
DTYPE_PLAIN(i8, int8_t, (float)v)
DTYPE_PLAIN(i16, int16_t, (float)v)
DTYPE_PLAIN(i32, int32_t, (float)v)
DTYPE_PLAIN(i64, int64_t, (float)v)
DTYPE_PLAIN(u8, uint8_t, (float)v)
DTYPE_PLAIN(u16, uint16_t, (float)v)
DTYPE_PLAIN(u32, uint32_t, (float)v)
DTYPE_PLAIN(u64, uint64_t, (float)v)
DTYPE_PLAIN(bool, uint8_t, v ? 1.0f : 0.0f)
DTYPE_PLAIN(f8_e4m3, uint8_t, f8_e4m3(v))
DTYPE_PLAIN(f8_e5m2, uint8_t, dtype_f16_to_f32((uint16_t)(v << 8)))

static const dtype_block_fn block_fns[DTYPE_COUNT] = {
    [DTYPE_F32] = plain_f32,
    [DTYPE_F16] = plain_f16,
    [DTYPE_BF16] = plain_bf16,
    [DTYPE_F64] = plain_f64,
    [DTYPE_I8] = plain_i8,
    [DTYPE_I16] = plain_i16,
    [DTYPE_I32] = plain_i32,
    [DTYPE_I64] = plain_i64,
    [DTYPE_U8] = plain_u8,
    [DTYPE_U16] = plain_u16,
    [DTYPE_U32] = plain_u32,
    [DTYPE_U64] = plain_u64,
    [DTYPE_BOOL] = plain_bool,
    [DTYPE_F8_E4M3] = plain_f8_e4m3,
    [DTYPE_F8_E5M2] = plain_f8_e5m2,
    [DTYPE_Q4_0] = dtype_block_q4_0,
    [DTYPE_Q4_1] = dtype_block_q4_1,
    [DTYPE_Q5_0] = dtype_block_q5_0,
    [DTYPE_Q5_1] = dtype_block_q5_1,
    [DTYPE_Q8_0] = dtype_block_q8_0,
    [DTYPE_Q8_1] = dtype_block_q8_1,
    [DTYPE_Q2_K] = dtype_block_q2_k,
    [DTYPE_Q3_K] = dtype_block_q3_k,
    [DTYPE_Q4_K] = dtype_block_q4_k,
    [DTYPE_Q5_K] = dtype_block_q5_k,
    [DTYPE_Q6_K] = dtype_block_q6_k,
    [DTYPE_Q8_K] = dtype_block_q8_k,
    [DTYPE_IQ2_XXS] = dtype_block_iq2_xxs,
    [DTYPE_IQ2_XS] = dtype_block_iq2_xs,
    [DTYPE_IQ3_XXS] = dtype_block_iq3_xxs,
    [DTYPE_IQ1_S] = dtype_block_iq1_s,
    [DTYPE_IQ4_NL] = dtype_block_iq4_nl,
    [DTYPE_IQ3_S] = dtype_block_iq3_s,
    [DTYPE_IQ2_S] = dtype_block_iq2_s,
    [DTYPE_IQ4_XS] = dtype_block_iq4_xs,
    [DTYPE_IQ1_M] = dtype_block_iq1_m,
    [DTYPE_TQ1_0] = dtype_block_tq1_0,
    [DTYPE_TQ2_0] = dtype_block_tq2_0,
    [DTYPE_MXFP4] = dtype_block_mxfp4,
};

void dtype_dequant(enum dtype t, const void *src, float *dst, size_t count)
{
    block_fns[t](src, dst, count / types[t].len);
}
