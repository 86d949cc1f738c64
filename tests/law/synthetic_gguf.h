/* tests/law/synthetic_gguf.h - a small llama in GGUF with matrices of random blocks of one type: rows of 256, 512 and 768
 * columns. */
#ifndef RH_TESTS_SYNTHETIC_GGUF_H
#define RH_TESTS_SYNTHETIC_GGUF_H

#include "base/buf.h"
#include "base/file.h"
#include "format/gguf.h"
#include "ops/random_weight.h"

enum {
    SYN_LAYERS = 2,
    SYN_HIDDEN = 256,
    SYN_HEADS = 8,
    SYN_KV_HEADS = 2,
    SYN_HEAD = 64,
    SYN_FFN = 768,
    SYN_VOCAB = 320,
    SYN_ALIGN = 32
};

struct syn {
    struct buf head, data;
    uint64_t tensors, values, seed;
};

static inline void syn_u32(struct buf *b, uint32_t v)
{
    buf_put(b, &v, sizeof v);
}

static inline void syn_u64(struct buf *b, uint64_t v)
{
    buf_put(b, &v, sizeof v);
}

static inline void syn_text(struct buf *b, const char *z)
{
    syn_u64(b, strlen(z));
    buf_z(b, z);
}

static inline void syn_key_u32(struct syn *s, struct buf *b, const char *key, uint32_t v)
{
    syn_text(b, key);
    syn_u32(b, GGUF_U32);
    syn_u32(b, v);
    s->values++;
}

static inline uint32_t syn_gguf_id(enum dtype t)
{
    uint32_t id = 0;
    while (dtype_from_gguf(id) != (int)t) {
        id++;
    }
    return id;
}

/* One tensor; rows == 0: a vector of ones. */
static inline void syn_tensor(struct syn *s, const char *name, enum dtype type, uint32_t rows, uint32_t cols)
{
    while (s->data.n % SYN_ALIGN != 0) {
        buf_char(&s->data, 0);
    }
    syn_text(&s->head, name);
    syn_u32(&s->head, rows != 0 ? 2 : 1);
    syn_u64(&s->head, cols);
    if (rows != 0) {
        syn_u64(&s->head, rows);
    }
    syn_u32(&s->head, syn_gguf_id(rows != 0 ? type : DTYPE_F32));
    syn_u64(&s->head, s->data.n);
    if (rows != 0) {
        struct random_kind kind = {.type = type};
        struct weight_src w;
        random_weight(&w, &kind, rows, cols, s->seed++);
        buf_put(&s->data, w.data, rows * w.row_bytes);
        random_weight_free(&w);
    } else {
        float one = 1.0f;
        for (uint32_t i = 0; i < cols; i++) {
            buf_put(&s->data, &one, sizeof one);
        }
    }
    s->tensors++;
}

static inline void syn_layer(struct syn *s, enum dtype t, uint32_t layer)
{
    static const struct {
        const char *name;
        uint32_t rows, cols;
    } parts[] = {{"attn_norm", 0, SYN_HIDDEN},
                 {"attn_q", SYN_HEADS * SYN_HEAD, SYN_HIDDEN},
                 {"attn_k", SYN_KV_HEADS * SYN_HEAD, SYN_HIDDEN},
                 {"attn_v", SYN_KV_HEADS * SYN_HEAD, SYN_HIDDEN},
                 {"attn_output", SYN_HIDDEN, SYN_HEADS * SYN_HEAD},
                 {"ffn_norm", 0, SYN_HIDDEN},
                 {"ffn_gate", SYN_FFN, SYN_HIDDEN},
                 {"ffn_up", SYN_FFN, SYN_HIDDEN},
                 {"ffn_down", SYN_HIDDEN, SYN_FFN}};
    for (size_t i = 0; i < sizeof parts / sizeof parts[0]; i++) {
        char name[64];
        snprintf(name, sizeof name, "blk.%u.%s.weight", layer, parts[i].name);
        syn_tensor(s, name, t, parts[i].rows, parts[i].cols);
    }
}

static inline void syn_metadata(struct syn *s, struct buf *meta)
{
    syn_text(meta, "general.architecture");
    syn_u32(meta, GGUF_STRING);
    syn_text(meta, "llama");
    s->values++;
    syn_key_u32(s, meta, "llama.block_count", SYN_LAYERS);
    syn_key_u32(s, meta, "llama.context_length", 2048);
    syn_key_u32(s, meta, "llama.embedding_length", SYN_HIDDEN);
    syn_key_u32(s, meta, "llama.feed_forward_length", SYN_FFN);
    syn_key_u32(s, meta, "llama.attention.head_count", SYN_HEADS);
    syn_key_u32(s, meta, "llama.attention.head_count_kv", SYN_KV_HEADS);
    syn_key_u32(s, meta, "llama.attention.key_length", SYN_HEAD);
    syn_key_u32(s, meta, "llama.attention.value_length", SYN_HEAD);
    syn_key_u32(s, meta, "llama.rope.dimension_count", SYN_HEAD);
}

static inline int synthetic_gguf(const char *path, enum dtype type, struct err *err)
{
    struct syn s = {.seed = 1000 + (uint64_t)type};
    struct buf meta = {0}, file = {0};
    syn_metadata(&s, &meta);
    syn_tensor(&s, "token_embd.weight", type, SYN_VOCAB, SYN_HIDDEN);
    syn_tensor(&s, "output.weight", type, SYN_VOCAB, SYN_HIDDEN);
    syn_tensor(&s, "output_norm.weight", type, 0, SYN_HIDDEN);
    for (uint32_t l = 0; l < SYN_LAYERS; l++) {
        syn_layer(&s, type, l);
    }
    buf_z(&file, "GGUF");
    syn_u32(&file, 3);
    syn_u64(&file, s.tensors);
    syn_u64(&file, s.values);
    buf_str(&file, buf_view(&meta));
    buf_str(&file, buf_view(&s.head));
    while (file.n % SYN_ALIGN != 0) {
        buf_char(&file, 0);
    }
    buf_str(&file, buf_view(&s.data));
    int rc = buf_check(&file, "synthetic model", err);
    if (rc == 0) {
        rc = file_write_atomic(path, buf_view(&file), err);
    }
    buf_free(&meta);
    buf_free(&s.head);
    buf_free(&s.data);
    buf_free(&file);
    return rc;
}

#endif
