/* Fuzz: a GGUF file from memory; whatever opens is walked whole, weights dequantised, scales checked. */
#include "format/gguf.h"

#include <stdlib.h>

static void walk_values(const struct gguf *g)
{
    for (size_t i = 0; i < gguf_value_count(g); i++) {
        const struct gguf_value *v = gguf_value_at(g, i);
        uint64_t at = 0, sum = 0;
        struct str s;
        float f;
        int64_t n;
        char key[64];
        while (gguf_string_next(v, &at, &s))
            sum += s.n ? (unsigned char)s.p[s.n - 1] : 0;
        for (uint64_t k = 0; v->type == GGUF_ARRAY && k < v->count && k < 64; k++) {
            gguf_array_f32(v, k, &f);
            gguf_array_i64(v, v->count - 1 - k, &n);
        }
        if (v->key.n >= sizeof key)
            continue;
        memcpy(key, v->key.p, v->key.n);
        key[v->key.n] = 0;
        struct err err = {0};
        uint32_t u = (uint32_t)sum;
        bool b;
        gguf_get_u32(g, key, &u, &err);
        gguf_get_f32(g, key, &f, &err);
        gguf_get_bool(g, key, &b, &err);
        gguf_get_str(g, key, &s, &err);
    }
}

static void walk_tensor(const struct gguf *g, const struct gguf_tensor *t)
{
    struct err err = {0};
    struct weight_src w = {.name = "t", .type = t->type, .data = t->data, .cols = (uint32_t)t->ne[0]};
    uint64_t rows = t->ne[1] * t->ne[2] * t->ne[3];
    if (gguf_tensor_find(g, t->name) != t || t->ne[0] > 1 << 20 || !dtype_row_bytes(t->type, t->ne[0], &w.row_bytes))
        return;
    w.rows = rows > 64 ? 64 : (uint32_t)rows;
    float *row = malloc(sizeof *row * w.cols);
    for (uint32_t r = 0; row && r < w.rows; r++)
        weight_src_row(&w, r, row);
    dtype_check_scales(&w, &err);
    free(row);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    struct gguf *g;
    struct err err = {0};
    struct hash128 h;
    if (gguf_open_memory(data, n, &g, &err)) {
        if (!err.code || !err.text[0])
            abort();
        return 0;
    }
    walk_values(g);
    for (size_t i = 0; i < gguf_tensor_count(g); i++)
        walk_tensor(g, gguf_tensor_at(g, i));
    gguf_content_hash(g, &h, &err);
    gguf_close(g);
    return 0;
}
