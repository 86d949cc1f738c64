/* tests/unit/models_make.h - small Hugging Face directories for tests of the models room: a config, and the tensors
 * transformers would write for it, with small regular values. */
#ifndef RH_TESTS_MODELS_MAKE_H
#define RH_TESTS_MODELS_MAKE_H

#include "backend_trace/backend_trace.h"
#include "base/buf.h"
#include "base/file.h"
#include "models/model.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

enum { MK_HIDDEN = 64, MK_HEADS = 4, MK_KV = 2, MK_HEAD = 32, MK_FFN = 96, MK_VOCAB = 128, MK_LAYERS = 3 };

enum make_flag {
    MK_TIED = 1, MK_QKV_BIAS = 2, MK_O_BIAS = 4, MK_MLP_BIAS = 8, MK_QK_NORM = 16, MK_FUSED = 32, MK_GEMMA = 64,
};

struct make_model {
    const char *config;  /* whole config.json */
    unsigned flags;
    const char *drop;    /* a tensor to leave out */
    const char *extra;   /* a vector of 4 to add */
    const char *reshape; /* a tensor to write with one row too many */
    const char *prefix;  /* before all names ("language_model."), or in the place of "model." ("model.language_model.") */
};

#define MK_BASE                                                                                                                  \
    "\"hidden_size\": 64, \"num_attention_heads\": 4, \"num_key_value_heads\": 2, \"head_dim\": 32, \"intermediate_size\": 96, " \
    "\"vocab_size\": 128, \"num_hidden_layers\": 3, \"max_position_embeddings\": 512, \"rms_norm_eps\": 1e-5, "                  \
    "\"tie_word_embeddings\": false"

#define MK_LLAMA(more) {.config = "{\"model_type\": \"llama\", " more MK_BASE "}"}

struct make_state {
    const struct make_model *m;
    struct buf head, data;
    int count;
};

static inline void make_tensor(struct make_state *s, const char *name, unsigned rows, unsigned cols)
{
    if (s->m->drop != NULL && strcmp(s->m->drop, name) == 0) {
        return;
    }
    rows += s->m->reshape != NULL && strcmp(s->m->reshape, name) == 0;
    size_t from = s->data.n;
    for (size_t i = 0; i < (size_t)rows * (cols ? cols : 1); i++) {
        float v = cols != 0 ? (float)((int)(i * 2654435761u >> 24 & 255) - 128) / 1024.0f : 1.0f;
        uint32_t u;
        memcpy(&u, &v, sizeof u);
        uint16_t h = (uint16_t)(u >> 16);
        buf_put(&s->data, &h, sizeof h);
    }
    const char *prefix = s->m->prefix != NULL && name != s->m->extra ? s->m->prefix : "";
    if (strcmp(prefix, "model.language_model.") == 0) {
        bool inner = strncmp(name, "model.", 6) == 0;
        prefix = inner ? prefix : "";
        name += inner ? 6 : 0;
    }
    buf_printf(&s->head, "%s\"%s%s\":{\"dtype\":\"BF16\",\"shape\":[%u", s->count++ ? "," : "", prefix, name, rows);
    if (cols != 0) {
        buf_printf(&s->head, ",%u", cols);
    }
    buf_printf(&s->head, "],\"data_offsets\":[%zu,%zu]}", from, s->data.n);
}

static inline void make_part(struct make_state *s, unsigned layer, const char *part, unsigned rows, unsigned cols)
{
    char name[128];
    snprintf(name, sizeof name, "model.layers.%u.%s", layer, part);
    make_tensor(s, name, rows, cols);
}

static inline void make_attention(struct make_state *s, unsigned layer)
{
    unsigned q = MK_HEADS * MK_HEAD, kv = MK_KV * MK_HEAD, f = s->m->flags;
    if ((f & MK_FUSED) != 0) {
        make_part(s, layer, "self_attn.qkv_proj.weight", q + 2 * kv, MK_HIDDEN);
    } else {
        make_part(s, layer, "self_attn.q_proj.weight", q, MK_HIDDEN);
        make_part(s, layer, "self_attn.k_proj.weight", kv, MK_HIDDEN);
        make_part(s, layer, "self_attn.v_proj.weight", kv, MK_HIDDEN);
    }
    make_part(s, layer, "self_attn.o_proj.weight", MK_HIDDEN, q);
    if ((f & MK_QKV_BIAS) != 0) {
        make_part(s, layer, "self_attn.q_proj.bias", q, 0);
        make_part(s, layer, "self_attn.k_proj.bias", kv, 0);
        make_part(s, layer, "self_attn.v_proj.bias", kv, 0);
    }
    if ((f & MK_O_BIAS) != 0) {
        make_part(s, layer, "self_attn.o_proj.bias", MK_HIDDEN, 0);
    }
    if ((f & MK_QK_NORM) != 0) {
        make_part(s, layer, "self_attn.q_norm.weight", MK_HEAD, 0);
        make_part(s, layer, "self_attn.k_norm.weight", MK_HEAD, 0);
    }
}

static inline void make_layer(struct make_state *s, unsigned layer)
{
    unsigned f = s->m->flags;
    make_part(s, layer, "input_layernorm.weight", MK_HIDDEN, 0);
    make_attention(s, layer);
    make_part(s, layer, "post_attention_layernorm.weight", MK_HIDDEN, 0);
    if ((f & MK_GEMMA) != 0) {
        make_part(s, layer, "pre_feedforward_layernorm.weight", MK_HIDDEN, 0);
        make_part(s, layer, "post_feedforward_layernorm.weight", MK_HIDDEN, 0);
    }
    if ((f & MK_FUSED) != 0) {
        make_part(s, layer, "mlp.gate_up_proj.weight", 2 * MK_FFN, MK_HIDDEN);
    } else {
        make_part(s, layer, "mlp.gate_proj.weight", MK_FFN, MK_HIDDEN);
        make_part(s, layer, "mlp.up_proj.weight", MK_FFN, MK_HIDDEN);
    }
    make_part(s, layer, "mlp.down_proj.weight", MK_HIDDEN, MK_FFN);
    if ((f & MK_MLP_BIAS) != 0) {
        make_part(s, layer, "mlp.gate_proj.bias", MK_FFN, 0);
        make_part(s, layer, "mlp.up_proj.bias", MK_FFN, 0);
        make_part(s, layer, "mlp.down_proj.bias", MK_HIDDEN, 0);
    }
}

/* Write the directory; `dir` is a template for mkdtemp. */
static inline void make_model(char *dir, const struct make_model *m)
{
    struct make_state s = {.m = m};
    struct buf file = {0};
    char path[4096];
    if (mkdtemp(dir) == NULL) {
        abort();
    }
    make_tensor(&s, "model.embed_tokens.weight", MK_VOCAB, MK_HIDDEN);
    make_tensor(&s, "model.norm.weight", MK_HIDDEN, 0);
    if ((m->flags & MK_TIED) == 0) {
        make_tensor(&s, "lm_head.weight", MK_VOCAB, MK_HIDDEN);
    }
    for (unsigned l = 0; l < MK_LAYERS; l++) {
        make_layer(&s, l);
    }
    if (m->extra != NULL) {
        make_tensor(&s, m->extra, 4, 0);
    }
    uint64_t n = s.head.n + 2;
    buf_put(&file, &n, sizeof n);
    buf_char(&file, '{');
    buf_str(&file, buf_view(&s.head));
    buf_char(&file, '}');
    buf_str(&file, buf_view(&s.data));
    snprintf(path, sizeof path, "%s/model.safetensors", dir);
    int rc = file_write_atomic(path, buf_view(&file), NULL);
    snprintf(path, sizeof path, "%s/config.json", dir);
    rc |= file_write_atomic(path, str_of(m->config), NULL);
    if (rc != 0) {
        abort();
    }
    buf_free(&file);
    buf_free(&s.head);
    buf_free(&s.data);
}

static inline void make_remove(const char *dir)
{
    static const char *const files[] = {"model.safetensors", "config.json", "generation_config.json"};
    char path[4096];
    for (size_t i = 0; i < 3; i++) {
        snprintf(path, sizeof path, "%s/%s", dir, files[i]);
        unlink(path);
    }
    rmdir(dir);
}

static inline int make_open(const struct make_model *made, struct device **d, struct model **m, struct err *err)
{
    char dir[] = "/tmp/rh_models_XXXXXX";
    struct device_config cfg = {0};
    struct model_options opt = {.k_format = KV_F16, .v_format = KV_F16, .rows_max = 8, .logit_rows_max = 2};
    make_model(dir, made);
    int rc = backend_trace.device_open(&cfg, d, err);
    rc = rc != 0 ? rc : model_open(dir, *d, &opt, m, err);
    make_remove(dir);
    return rc;
}

#endif
