/* tests/ops/random_weight.h - weights of random bytes with sane scales, for every type a backend takes. */
#ifndef RH_TESTS_RANDOM_WEIGHT_H
#define RH_TESTS_RANDOM_WEIGHT_H

#include "format/dtype.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct random_kind {
    enum dtype type;
    uint32_t bits, group;  /* MLX */
    enum dtype scale_type; /* MLX */
    bool split;            /* MXFP4 as Hugging Face has it */
    char name[40];
};

static inline uint32_t random_u32(uint64_t *state)
{
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(*state >> 32);
}
static inline float random_unit(uint64_t *state) /* -1 .. 1 */
{
    return (float)(int32_t)random_u32(state) / 2147483648.0f;
}
/* Roughly normal, now and then an outlier: what activations look like. */
static inline float random_value(uint64_t *state)
{
    float v = random_unit(state) + random_unit(state) + random_unit(state);
    return random_u32(state) % 97 == 0 ? 8.0f * v : v;
}

static inline void random_scale(unsigned char *at, enum dtype t, float v)
{
    uint16_t h = 0;
    uint32_t u;
    memcpy(&u, &v, sizeof u);
    if (t == DTYPE_F32) {
        memcpy(at, &v, 4);
        return;
    }
    h = t == DTYPE_F16 ? dtype_f32_to_f16(v) : (uint16_t)(u >> 16);
    memcpy(at, &h, 2);
}

static inline void random_block_scales(enum dtype t, unsigned char *b, uint64_t *s)
{
    static const struct {
        enum dtype t;
        int first, second;
    } places[] = {{DTYPE_Q4_0, 0, -1}, {DTYPE_Q4_1, 0, 2}, {DTYPE_Q5_0, 0, -1}, {DTYPE_Q5_1, 0, 2}, {DTYPE_Q8_0, 0, -1},
                  {DTYPE_Q2_K, 80, 82}, {DTYPE_Q3_K, 108, -1}, {DTYPE_Q4_K, 0, 2}, {DTYPE_Q5_K, 0, 2}, {DTYPE_Q6_K, 208, -1},
                  {DTYPE_IQ4_NL, 0, -1}, {DTYPE_IQ4_XS, 0, -1}, {DTYPE_TQ1_0, 52, -1}, {DTYPE_TQ2_0, 64, -1}, {DTYPE_IQ2_XXS, 0, -1},
                  {DTYPE_IQ2_XS, 0, -1}, {DTYPE_IQ2_S, 0, -1}, {DTYPE_IQ3_XXS, 0, -1}, {DTYPE_IQ3_S, 0, -1}, {DTYPE_IQ1_S, 0, -1}};
    if (t == DTYPE_MXFP4)
        b[0] = (unsigned char)(random_u32(s) % 200 == 0 ? random_u32(s) % 3 : 110 + random_u32(s) % 16);
    for (size_t i = 0; i < sizeof places / sizeof places[0]; i++) {
        if (places[i].t != t)
            continue;
        random_scale(b + places[i].first, DTYPE_F16, 0.02f * random_unit(s));
        if (places[i].second >= 0)
            random_scale(b + places[i].second, DTYPE_F16, 0.02f * random_unit(s));
    }
}

/* Free w->data, w->scales, w->biases with random_weight_free. */
static inline void random_weight(struct weight_src *w, const struct random_kind *k, uint32_t rows, uint32_t cols, uint64_t seed)
{
    uint64_t s = seed * 77 + 5;
    *w = (struct weight_src){.name = k->name, .type = k->type, .rows = rows, .cols = cols};
    size_t scales = 0, scale_bytes = 0, block = k->type == DTYPE_MLX ? 0 : dtype_block_bytes(k->type);
    if (k->type == DTYPE_MLX) {
        w->bits = k->bits, w->group = k->group, w->scale_type = k->scale_type;
        w->row_bytes = (uint64_t)cols * k->bits / 8;
        scales = (size_t)rows * (cols / k->group);
        scale_bytes = k->scale_type == DTYPE_F32 ? 4 : 2;
    } else if (k->split) {
        w->row_bytes = cols / 2;
        scales = (size_t)rows * (cols / 32);
        scale_bytes = 1;
    } else {
        dtype_row_bytes(k->type, cols, &w->row_bytes);
    }
    unsigned char *data = malloc(rows * w->row_bytes), *sc = scales ? malloc(scales * scale_bytes) : NULL, *bi = NULL;
    for (size_t i = 0; i < rows * w->row_bytes; i++)
        data[i] = (unsigned char)random_u32(&s);
    if (k->type == DTYPE_F32 || k->type == DTYPE_F16 || k->type == DTYPE_BF16)
        for (size_t i = 0; i < (size_t)rows * cols; i++)
            random_scale(data + i * block, k->type, 0.1f * random_unit(&s));
    else if (k->type == DTYPE_MLX) {
        bi = malloc(scales * scale_bytes);
        for (size_t i = 0; i < scales; i++) {
            random_scale(sc + i * scale_bytes, k->scale_type, 0.02f * random_unit(&s));
            random_scale(bi + i * scale_bytes, k->scale_type, 0.1f * random_unit(&s));
        }
    } else if (k->split)
        for (size_t i = 0; i < scales; i++)
            sc[i] = (unsigned char)(110 + random_u32(&s) % 16);
    else
        for (size_t i = 0; i < rows * w->row_bytes / block; i++)
            random_block_scales(k->type, data + i * block, &s);
    w->data = data, w->scales = sc, w->biases = bi;
}

static inline void random_weight_free(struct weight_src *w)
{
    free((void *)(uintptr_t)w->data);
    free((void *)(uintptr_t)w->scales);
    free((void *)(uintptr_t)w->biases);
}

/* All kinds that are computed packed; how many. */
static inline size_t random_kinds(struct random_kind *out, size_t cap)
{
    static const enum dtype types[] = {DTYPE_F32, DTYPE_F16, DTYPE_BF16, DTYPE_Q4_0, DTYPE_Q4_1, DTYPE_Q5_0, DTYPE_Q5_1, DTYPE_Q8_0,
                                       DTYPE_Q2_K, DTYPE_Q3_K, DTYPE_Q4_K, DTYPE_Q5_K, DTYPE_Q6_K, DTYPE_IQ4_NL, DTYPE_IQ4_XS,
                                       DTYPE_MXFP4};
    static const uint32_t bits[] = {2, 3, 4, 5, 6, 8};
    static const enum dtype scales[] = {DTYPE_F32, DTYPE_F16, DTYPE_BF16};
    size_t n = 0;
    for (size_t i = 0; i < sizeof types / sizeof types[0] && n < cap; i++, n++) {
        out[n] = (struct random_kind){.type = types[i]};
        snprintf(out[n].name, sizeof out[n].name, "%s", dtype_name(types[i]));
    }
    if (n < cap)
        out[n++] = (struct random_kind){.type = DTYPE_MXFP4, .split = true, .name = "MXFP4 split"};
    for (size_t b = 0; b < 6; b++)
        for (uint32_t g = 32; g <= 128; g *= 2)
            for (size_t t = 0; t < 3 && n < cap; t++, n++) {
                out[n] = (struct random_kind){.type = DTYPE_MLX, .bits = bits[b], .group = g, .scale_type = scales[t]};
                snprintf(out[n].name, sizeof out[n].name, "MLX %u bit g%u %s", bits[b], g, dtype_name(scales[t]));
            }
    return n;
}

static inline uint32_t random_kind_step(const struct random_kind *k) /* columns must be a multiple of this */
{
    return k->type == DTYPE_MLX ? k->group : dtype_block_len(k->type);
}

#endif
