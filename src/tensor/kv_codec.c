/* tensor/kv_codec.c - one head vector to codes and back: the definition of every K and V format.
 *
 * x is made finite first: NaN counts as 0, infinities as the largest f32.  rne = to nearest, ties to even.  Sums are f64, in order.
 *   q8:      d = f16(max|x| / 127), code = rne(x (1 / d));  d = 0 gives 0
 *   affine:  d = f16((hi - lo) / N), m = f16(lo), code = rne((x - m) / d) in 0 .. N = 2^bits - 1;  d = 0 gives 0
 *   q4h:     m = the first x of largest magnitude; q = rne(x (-8 / m)); e = sum x q / sum q q; q = rne(x (1 / e));
 *            d = f16(sum x q / sum q q); code = q + 8, q in -8 .. 7;  m = 0 gives d = 0
 *   book:    r = sqrt(sum x x / n) over the group; code = number of borders below x (unit / r);
 *            d = f16(sqrt(sum x x / sum book[code]^2)): the group keeps its norm;  r < 1e-30 gives d = 0
 * A scale is at most 65504.
 * Does not:  know pages or layers; backends place planes. */
#include "tensor/kv_codec.h"

#include "tensor/kv_tables.h"

#include <float.h>
#include <math.h>
#include <string.h>

/* ---- turns ---- */

static void hadamard(float *x, uint32_t n)
{
    for (uint32_t half = 1; half < n; half *= 2)
        for (uint32_t i = 0; i < n; i += 2 * half)
            for (uint32_t j = i; j < i + half; j++) {
                float a = x[j], b = x[j + half];
                x[j] = a + b;
                x[j + half] = a - b;
            }
    float by = (float)(1 / sqrt((double)n));
    for (uint32_t i = 0; i < n; i++)
        x[i] *= by;
}

static void signs(float *x, uint32_t d)
{
    for (uint32_t e = 0; e < d; e++)
        x[e] = sign_bits[e / 32] >> (e % 32) & 1 ? -x[e] : x[e];
}

static void hadamards(const struct kv_shape *s, float *x, uint32_t d)
{
    for (uint32_t i = 0; s->run != 0 && i < d; i += s->run)
        hadamard(x + i, s->run);
}

void kv_turn(const struct kv_shape *s, float *x, uint32_t d)
{
    if (s->turn == KV_TURN_SIGNS)
        signs(x, d);
    hadamards(s, x, d);
}

void kv_turn_back(const struct kv_shape *s, float *x, uint32_t d)
{
    hadamards(s, x, d);
    if (s->turn == KV_TURN_SIGNS)
        signs(x, d);
}

/* ---- a group: n elements to codes (one a byte), scale and minimum ---- */

struct group {
    uint8_t *codes;
    uint16_t scale, minimum; /* f16 */
};

static float nearest(float v) /* |v| < 2^22 */
{
    return (v + 0x1.8p23f) - 0x1.8p23f;
}

static float keep(float v, float low, float high)
{
    v = v > low ? v : low; /* NaN too */
    return v < high ? v : high;
}

static uint16_t half_of(float v)
{
    return dtype_f32_to_f16(keep(v, -65504, 65504));
}

static void encode_q8(const float *x, uint32_t n, struct group *g)
{
    float most = 0;
    for (uint32_t i = 0; i < n; i++)
        most = fabsf(x[i]) > most ? fabsf(x[i]) : most;
    g->scale = half_of(most / 127);
    float d = dtype_f16_to_f32(g->scale), inverse = d > 0 ? 1 / d : 0;
    for (uint32_t i = 0; i < n; i++)
        g->codes[i] = (uint8_t)(int8_t)nearest(keep(x[i] * inverse, -127, 127));
}

static void encode_affine(const float *x, uint32_t n, float most, struct group *g)
{
    float low = x[0], high = x[0];
    for (uint32_t i = 1; i < n; i++) {
        low = x[i] < low ? x[i] : low;
        high = x[i] > high ? x[i] : high;
    }
    g->scale = half_of((high - low) / most);
    g->minimum = half_of(low);
    float d = dtype_f16_to_f32(g->scale), m = dtype_f16_to_f32(g->minimum);
    for (uint32_t i = 0; i < n; i++)
        g->codes[i] = d > 0 ? (uint8_t)nearest(keep((x[i] - m) / d, 0, most)) : 0;
}

/* Codes of -8 .. 7 nearest to x inverse; returns the scale that fits them best. */
static double fit_q4(const float *x, uint32_t n, float inverse, uint8_t *codes)
{
    double product = 0, square = 0;
    for (uint32_t i = 0; i < n; i++) {
        float q = nearest(keep(x[i] * inverse, -8, 7));
        codes[i] = (uint8_t)(q + 8);
        product += (double)x[i] * (double)q;
        square += (double)(q * q);
    }
    return square > 0 ? product / square : 0;
}

static void encode_q4h(const float *x, uint32_t n, struct group *g)
{
    float most = x[0];
    for (uint32_t i = 1; i < n; i++)
        most = fabsf(x[i]) > fabsf(most) ? x[i] : most;
    if (fabsf(most) < 1e-30f) {
        memset(g->codes, 8, n);
        g->scale = 0;
        return;
    }
    double scale = fit_q4(x, n, -8 / most, g->codes);
    scale = fit_q4(x, n, (float)(1 / scale), g->codes);
    g->scale = half_of((float)scale);
}

static void encode_book(const float *x, uint32_t n, bool four, struct group *g)
{
    const int8_t *book = four ? book4 : book3;
    const float *borders = four ? book4_borders : book3_borders;
    double squares = 0, codes = 0;
    for (uint32_t i = 0; i < n; i++)
        squares += (double)x[i] * (double)x[i];
    float rms = (float)sqrt(squares / n), inverse = rms < 1e-30f ? 0 : (four ? book4_unit : book3_unit) / rms;
    for (uint32_t i = 0; i < n; i++) {
        float t = x[i] * inverse;
        uint8_t code = 0;
        for (uint32_t b = 0; b < (four ? 15u : 7u); b++)
            code = (uint8_t)(code + (t > borders[b]));
        g->codes[i] = code;
        codes += (double)(book[code] * book[code]);
    }
    g->scale = inverse > 0 ? half_of((float)sqrt(squares / codes)) : 0;
}

static void encode_group(const struct kv_shape *s, const float *x, struct group *g)
{
    if (s->code == KV_CODE_BOOK)
        encode_book(x, s->group, s->bits == 4, g);
    else if (s->code == KV_CODE_AFFINE)
        encode_affine(x, s->group, (float)((1u << s->bits) - 1), g);
    else if (s->bits == 8)
        encode_q8(x, s->group, g);
    else
        encode_q4h(x, s->group, g);
}

/* ---- planes ---- */

/* byte `row` of the codes of 32-block b, of one slot; `rows` bytes a block */
static size_t code_at(uint32_t d, uint32_t rows, uint32_t slot, uint32_t b, uint32_t row, bool key)
{
    size_t at = (size_t)b * rows + row;
    return key ? at * KV_PAGE + slot : (size_t)slot * (d / 32) * rows + at;
}

static size_t scale_at(const struct kv_shape *s, uint32_t slot, uint32_t g, bool key)
{
    return key ? (size_t)g * KV_PAGE + slot : (size_t)slot * s->groups + g;
}

static void put_codes(unsigned char *plane, const struct kv_shape *s, uint32_t d, uint32_t slot, bool key, const uint8_t *c)
{
    uint32_t rows = 4 * s->bits;
    for (uint32_t b = 0; b < d / 32; b++, c += 32)
        for (uint32_t r = 0; r < rows; r++) {
            unsigned byte = s->bits == 8 ? c[r] : c[r] | (unsigned)c[r + 16 < 32 ? r + 16 : r] << 4;
            if (s->bits == 3) {
                byte = 0;
                for (uint32_t i = 0; r < 8 && i < 4; i++)
                    byte |= (c[r + 8 * i] & 3u) << (2 * i);
                for (uint32_t i = 0; r >= 8 && i < 8; i++)
                    byte |= (unsigned)(c[r - 8 + 4 * i] >> 2) << i;
            }
            plane[code_at(d, rows, slot, b, r, key)] = (unsigned char)byte;
        }
}

/* put_codes read back: byte r of block b lies at[(b * rows + r) * step] */
static void get_codes(const unsigned char *plane, const struct kv_shape *s, uint32_t d, uint32_t slot, bool key, uint8_t *c)
{
    uint32_t rows = 4 * s->bits;
    const unsigned char *at = plane + code_at(d, rows, slot, 0, 0, key);
    size_t step = key ? KV_PAGE : 1;
    for (uint32_t b = 0; b < d / 32; b++, c += 32, at += rows * step) {
        for (uint32_t r = 0; s->bits == 8 && r < 32; r++)
            c[r] = at[r * step];
        for (uint32_t r = 0; s->bits == 4 && r < 16; r++) {
            c[r] = at[r * step] & 15;
            c[r + 16] = at[r * step] >> 4;
        }
        for (uint32_t r = 0; s->bits == 3 && r < 8; r++)
            for (uint32_t i = 0; i < 4; i++)
                c[r + 8 * i] = (uint8_t)((at[r * step] >> (2 * i) & 3) | (at[(8 + r % 4) * step] >> (2 * i + r / 4) & 1) << 2);
    }
}

static uint16_t to_bf16(float f)
{
    uint32_t u;
    memcpy(&u, &f, 4);
    if (f != f)
        return (uint16_t)(u >> 16 | 0x40);
    return (uint16_t)((u + 0x7fff + (u >> 16 & 1)) >> 16);
}

static void store_float(unsigned char *plane, enum kv_format f, uint32_t d, uint32_t slot, bool key, const float *x)
{
    for (uint32_t e = 0; e < d; e++) {
        size_t at = key ? (size_t)e * KV_PAGE + slot : (size_t)slot * d + e;
        uint16_t half = f == KV_F16 ? dtype_f32_to_f16(x[e]) : to_bf16(x[e]);
        if (f == KV_F32)
            memcpy(plane + 4 * at, x + e, 4);
        else
            memcpy(plane + 2 * at, &half, 2);
    }
}

static float load_float(const unsigned char *plane, enum kv_format f, size_t at)
{
    float whole;
    uint16_t half;
    if (f == KV_F32) {
        memcpy(&whole, plane + 4 * at, 4);
        return whole;
    }
    memcpy(&half, plane + 2 * at, 2);
    return f == KV_F16 ? dtype_f16_to_f32(half) : dtype_bf16_to_f32(half);
}

/* Halves that lie side by side: a multiple of 16 at once becomes vector code.  They are read as what they are: byte by byte would be a call each under
 * a sanitizer. */
static void load_halves(const uint16_t *restrict at, uint32_t n, float *restrict x)
{
    for (; n >= 16; n -= 16, at += 16, x += 16)
        for (uint32_t e = 0; e < 16; e++)
            x[e] = dtype_f16_to_f32(at[e]);
    for (uint32_t e = 0; e < n; e++)
        x[e] = dtype_f16_to_f32(at[e]);
}

static void load_floats(const unsigned char *plane, enum kv_format f, uint32_t d, uint32_t slot, bool key, float *x)
{
    size_t at = key ? slot : (size_t)slot * d, step = key ? KV_PAGE : 1;
    const float *whole = (const void *)plane;
    const uint16_t *half = (const void *)plane;
    if (f == KV_F32)
        for (uint32_t e = 0; e < d; e++, at += step)
            x[e] = whole[at];
    else if (f == KV_F16 && !key)
        load_halves(half + at, d, x);
    else
        for (uint32_t e = 0; e < d; e++, at += step)
            x[e] = f == KV_F16 ? dtype_f16_to_f32(half[at]) : dtype_bf16_to_f32(half[at]);
}

void kv_store(unsigned char *plane, enum kv_format f, uint32_t d, uint32_t slot, bool key, const float *x)
{
    struct kv_shape s = kv_shape_of(f, d);
    float turned[KV_HEAD_MAX];
    uint8_t codes[KV_HEAD_MAX];
    if (s.code == KV_CODE_FLOAT) {
        store_float(plane, f, d, slot, key, x);
        return;
    }
    for (uint32_t e = 0; e < d; e++)
        turned[e] = x[e];
    kv_turn(&s, turned, d);
    for (uint32_t e = 0; e < d; e++)
        turned[e] = turned[e] == turned[e] ? keep(turned[e], -FLT_MAX, FLT_MAX) : 0;
    for (uint32_t i = 0; i < s.groups; i++) {
        struct group g = {.codes = codes + (size_t)i * s.group};
        encode_group(&s, turned + (size_t)i * s.group, &g);
        memcpy(plane + s.scales_at + 2 * scale_at(&s, slot, i, key), &g.scale, 2);
        if (s.minima_at)
            memcpy(plane + s.minima_at + 2 * scale_at(&s, slot, i, key), &g.minimum, 2);
    }
    put_codes(plane, &s, d, slot, key, codes);
}

const int8_t *kv_code_table(enum kv_format f)
{
    static const int8_t plain[16] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
    static const int8_t middle[16] = {-8, -7, -6, -5, -4, -3, -2, -1, 0, 1, 2, 3, 4, 5, 6, 7};
    struct kv_shape s = kv_shape_of(f, 32);
    return s.code == KV_CODE_AFFINE ? plain : s.code == KV_CODE_SIGNED ? middle : s.bits == 4 ? book4 : book3;
}

static int code_value(const struct kv_shape *s, const int8_t *table, uint8_t code)
{
    if (s->bits < 8)
        return table[code];
    return s->code == KV_CODE_AFFINE ? code : (int8_t)code;
}

void kv_load(const unsigned char *plane, enum kv_format f, uint32_t d, uint32_t slot, bool key, float *x)
{
    struct kv_shape s = kv_shape_of(f, d);
    uint8_t codes[KV_HEAD_MAX];
    if (s.code == KV_CODE_FLOAT) {
        load_floats(plane, f, d, slot, key, x);
        return;
    }
    const int8_t *table = kv_code_table(f);
    get_codes(plane, &s, d, slot, key, codes);
    for (uint32_t g = 0; g < s.groups; g++) {
        size_t at = scale_at(&s, slot, g, key);
        double scale = (double)load_float(plane + s.scales_at, KV_F16, at);
        double minimum = s.minima_at ? (double)load_float(plane + s.minima_at, KV_F16, at) : 0;
        for (uint32_t e = g * s.group; e < (g + 1) * s.group; e++) /* exact in f64, so rounded once */
            x[e] = (float)(code_value(&s, table, codes[e]) * scale + minimum);
    }
    kv_turn_back(&s, x, d);
}

void kv_load_slots(const unsigned char *plane, enum kv_format f, uint32_t d, uint32_t first, uint32_t n, bool key, float *x)
{
    float column[KV_PAGE];
    const uint16_t *half = (const void *)plane;
    if (f != KV_F16 || !key) {
        for (uint32_t i = 0; i < n; i++)
            kv_load(plane, f, d, first + i, key, x + (size_t)i * d);
        return;
    }
    for (uint32_t e = 0; e < d; e++) {
        load_halves(half + (size_t)e * KV_PAGE, KV_PAGE, column);
        for (uint32_t i = 0; i < n; i++)
            x[(size_t)i * d + e] = column[first + i];
    }
}
