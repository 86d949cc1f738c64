/* format/dtype_weight.c - a two-dimensional weight row by row, and the check that its block scales are finite.
 *
 * MLX affine codes are one stream of bits per row, lowest bit first (code i at bit i * bits), in little-endian u32 words.
 * MXFP4 of Hugging Face: byte j of a block holds elements 2 j (low nibble) and 2 j + 1 (high); GGUF's: j and j + 16.
 * Invariants: source fields may have any alignment. */
#include "format/dtype_int.h"

static float scale_at(enum dtype t, const void *p, uint64_t i)
{
    const uint8_t *s = p;
    float f;
    switch (t) {
    case DTYPE_F16:
        return rd_f16(s + 2 * i);
    case DTYPE_BF16:
        return dtype_bf16_to_f32(rd_u16(s + 2 * i));
    default:
        memcpy(&f, s + 4 * i, sizeof f);
        return f;
    }
}

/* Code i of a packed row.  A code spans at most two bytes; the second is read only when it does, so never past the row. */
static uint32_t mlx_code(const uint8_t *row, uint64_t i, uint32_t bits)
{
    uint64_t at = i * bits;
    uint32_t shift = (uint32_t)(at & 7), v = row[at >> 3];
    if (shift + bits > 8)
        v |= (uint32_t)row[(at >> 3) + 1] << 8;
    return v >> shift & ((1u << bits) - 1);
}

static void row_mlx(const struct weight_src *w, uint32_t row, float *dst)
{
    const uint8_t *codes = (const uint8_t *)w->data + row * w->row_bytes;
    uint64_t groups = w->cols / w->group, first = row * groups;
    for (uint64_t g = 0; g < groups; g++) {
        float scale = scale_at(w->scale_type, w->scales, first + g), bias = scale_at(w->scale_type, w->biases, first + g);
        for (uint64_t i = g * w->group; i < (g + 1) * w->group; i++)
            dst[i] = (float)mlx_code(codes, i, w->bits) * scale + bias;
    }
}

static void row_mxfp4_split(const struct weight_src *w, uint32_t row, float *dst)
{
    const uint8_t *q = (const uint8_t *)w->data + row * w->row_bytes;
    const uint8_t *scales = (const uint8_t *)w->scales + (uint64_t)row * (w->cols / 32);
    for (uint32_t b = 0; b < w->cols / 32; b++, q += 16, dst += 32) {
        float half = dtype_e8m0_half(scales[b]);
        for (int j = 0; j < 16; j++) {
            dst[2 * j] = half * (float)dtype_fp4_doubled[q[j] & 15];
            dst[2 * j + 1] = half * (float)dtype_fp4_doubled[q[j] >> 4];
        }
    }
}

void weight_src_row(const struct weight_src *w, uint32_t row, float *dst)
{
    if (w->type == DTYPE_MLX)
        row_mlx(w, row, dst);
    else if (w->type == DTYPE_MXFP4 && w->scales)
        row_mxfp4_split(w, row, dst);
    else
        dtype_dequant(w->type, (const uint8_t *)w->data + row * w->row_bytes, dst, w->cols);
}

static bool f32_finite(float f)
{
    uint32_t u;
    memcpy(&u, &f, sizeof u);
    return (u & 0x7F800000u) != 0x7F800000u;
}

/* Where the f16 scales of a block are; second = 0: there is only one. */
struct scale_place {
    uint16_t first, second;
};

static const struct scale_place f16_places[DTYPE_COUNT] = {
    [DTYPE_Q4_1] = {0, 2}, [DTYPE_Q5_1] = {0, 2}, [DTYPE_Q8_1] = {0, 2},   [DTYPE_Q2_K] = {80, 82}, [DTYPE_Q3_K] = {108, 0},
    [DTYPE_Q4_K] = {0, 2}, [DTYPE_Q5_K] = {0, 2}, [DTYPE_Q6_K] = {208, 0}, [DTYPE_TQ1_0] = {52, 0}, [DTYPE_TQ2_0] = {64, 0},
    /* all other types with f16 scales have one, at the start of the block */
};

/* Are all values of this block finite in f32?  A finite f16 scale cannot overflow; the wider scales can. */
static bool block_finite(const struct weight_src *w, const uint8_t *block)
{
    const uint8_t *s = block + 48; /* IQ1_M: the top nibbles of four u16 */
    float d;
    switch (w->type) {
    case DTYPE_IQ1_M: /* the exponent is bits 10-14: the top nibble without the sign, and two bits of the next */
        return (rd_u16(s + 6) >> 12 & 7) != 7 || (rd_u16(s + 4) >> 12 & 12) != 12;
    case DTYPE_MXFP4: /* 6 * 2^(253 - 127) is past f32's range; 255 is NaN */
        return block[0] < 253;
    case DTYPE_Q8_K:
        memcpy(&d, block, sizeof d);
        return f32_finite(d * -128.0f);
    default: {
        struct scale_place p = f16_places[w->type];
        return (rd_u16(block + p.first) & 0x7C00) != 0x7C00 && (!p.second || (rd_u16(block + p.second) & 0x7C00) != 0x7C00);
    }
    }
}

static bool group_finite(const struct weight_src *w, uint32_t row, uint64_t b)
{
    if (w->type == DTYPE_MLX) { /* monotone in the code: both ends finite means all finite */
        uint64_t at = (uint64_t)row * (w->cols / w->group) + b;
        float scale = scale_at(w->scale_type, w->scales, at), bias = scale_at(w->scale_type, w->biases, at);
        return f32_finite(bias) && f32_finite((float)((1u << w->bits) - 1) * scale + bias);
    }
    if (w->type == DTYPE_MXFP4 && w->scales)
        return ((const uint8_t *)w->scales)[(uint64_t)row * (w->cols / 32) + b] < 253;
    return block_finite(w, (const uint8_t *)w->data + row * w->row_bytes + b * dtype_block_bytes(w->type));
}

/* The usual row, f16 scales in every block, in one pass without branches; the exact block is looked for only when this is false.
 */
static bool row_finite(const struct weight_src *w, uint32_t row, uint64_t blocks)
{
    if (w->type == DTYPE_MLX || w->type == DTYPE_MXFP4 || w->type == DTYPE_IQ1_M || w->type == DTYPE_Q8_K)
        return false; /* not this kind: block by block */
    struct scale_place p = f16_places[w->type];
    const uint8_t *block = (const uint8_t *)w->data + row * w->row_bytes;
    uint32_t bytes = dtype_block_bytes(w->type), second = p.second ? p.second : p.first, bad = 0;
    for (uint64_t b = 0; b < blocks; b++, block += bytes) {
        bad |= (rd_u16(block + p.first) & 0x7C00) == 0x7C00;
        bad |= (rd_u16(block + second) & 0x7C00) == 0x7C00;
    }
    return !bad;
}

int dtype_check_rows(const struct weight_src *w, uint32_t first, uint32_t count, struct err *err)
{
    bool mlx = w->type == DTYPE_MLX;
    if (!mlx && dtype_block_len(w->type) == 1)
        return 0; /* plain elements have no scales */
    uint64_t blocks = w->cols / (mlx ? w->group : dtype_block_len(w->type));
    for (uint32_t row = first; row < first + count; row++) {
        if (row_finite(w, row, blocks))
            continue;
        for (uint64_t b = 0; b < blocks; b++)
            if (!group_finite(w, row, b))
                return err_set(err, ERR_FORMAT,
                               "tensor '%s' (%s): row %u, block %llu: expected a finite scale, got one that is not (NaN, "
                               "infinite or past f32's range)",
                               w->name ? w->name : "?", dtype_name(w->type), row, (unsigned long long)b);
    }
    return 0;
}

int dtype_check_scales(const struct weight_src *w, struct err *err)
{
    return dtype_check_rows(w, 0, w->rows, err);
}
