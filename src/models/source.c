/* models/source.c - tensors of a GGUF file or a Hugging Face directory under one set of names, each marked when bound.
 *
 * Hugging Face names may stand under a multimodal model: "language_model.model.*", or "model.language_model.*". */
#include "models/arch.h"

#include "base/mem.h"

#include <stdio.h>

enum { MARK_NONE, MARK_IGNORED, MARK_BOUND, MARK_DROPPED };

static size_t source_count(const struct source *s)
{
    return s->gguf != NULL ? gguf_tensor_count(s->gguf) : hfdir_tensor_count(s->hf);
}

static struct str source_name_at(const struct source *s, size_t i)
{
    return s->gguf != NULL ? gguf_tensor_at(s->gguf, i)->name : hfdir_tensor_at(s->hf, i)->name;
}

/* The name as the file has it, with `suffix` behind. */
static struct str source_name(const struct source *s, const char *name, const char *suffix, char out[MODEL_NAME_MAX])
{
    const char *prefix = s->prefix;
    if (strcmp(prefix, "model.language_model.") == 0) {
        bool inner = strncmp(name, "model.", 6) == 0;
        prefix = inner ? prefix : "";
        name = inner ? name + 6 : name;
    }
    snprintf(out, MODEL_NAME_MAX, "%s%s%s", prefix, name, suffix);
    return str_of(out);
}

static bool present(const struct source *s, struct str name)
{
    return s->gguf != NULL ? gguf_tensor_find(s->gguf, name) != NULL : hfdir_tensor_find(s->hf, name) != NULL;
}

static void mark(struct source *s, struct str name)
{
    const struct gguf_tensor *g = s->gguf != NULL ? gguf_tensor_find(s->gguf, name) : NULL;
    const struct st_tensor *t = s->hf != NULL ? hfdir_tensor_find(s->hf, name) : NULL;
    if (g != NULL) {
        s->marks[g - gguf_tensor_at(s->gguf, 0)] = MARK_BOUND;
    } else if (t != NULL) {
        s->marks[t - hfdir_tensor_at(s->hf, 0)] = MARK_BOUND;
    }
}

int source_open(struct source *s, const struct gguf *gguf, struct hfdir *hf, struct err *err)
{
    static const char *const prefixes[] = {"", "language_model.", "model.language_model."};
    *s = (struct source){.gguf = gguf, .hf = hf, .prefix = ""};
    s->marks = mem_try_zero(source_count(s) + 1, 1);
    if (s->marks == NULL) {
        return err_nomem(err, "tensor marks", source_count(s) + 1);
    }
    for (size_t i = 0; hf != NULL && i < sizeof prefixes / sizeof prefixes[0]; i++) {
        s->prefix = prefixes[i];
        if (source_has(s, "model.embed_tokens.weight")) {
            return 0;
        }
    }
    s->prefix = "";
    return 0;
}

void source_close(struct source *s)
{
    mem_free(s->marks);
    *s = (struct source){0};
}

bool source_has(const struct source *s, const char *name)
{
    char text[MODEL_NAME_MAX];
    return present(s, source_name(s, name, "", text));
}

static int gguf_weight(const struct source *s, struct str name, struct weight_src *out, struct err *err)
{
    const struct gguf_tensor *t = gguf_tensor_find(s->gguf, name);
    if (t == NULL) {
        return err_set(err, ERR_FORMAT, "tensor '%.*s' is missing", STR_ARG(name));
    }
    if (t->n_dims > 3 || t->ne[0] > UINT32_MAX || t->ne[1] > UINT32_MAX || t->ne[2] > UINT32_MAX) {
        return err_set(err, ERR_FORMAT, "tensor '%.*s': expected 2 dimensions, or 3 of experts, file has %u", STR_ARG(name), t->n_dims);
    }
    *out = (struct weight_src){.type = t->type, .rows = (uint32_t)t->ne[1], .cols = (uint32_t)t->ne[0], .data = t->data,
                               .n_experts = t->n_dims == 3 ? (uint32_t)t->ne[2] : 0};
    if (!dtype_row_bytes(t->type, t->ne[0], &out->row_bytes)) {
        return err_set(err, ERR_FORMAT, "tensor '%.*s': %u columns of type %s", STR_ARG(name), out->cols, dtype_name(t->type));
    }
    return 0;
}

/* Where a Hugging Face weight's elements are: NAME.weight, NAME_blocks or NAME. */
static const struct st_tensor *hf_weight_tensor(const struct source *s, const char *name)
{
    static const char *const suffixes[] = {".weight", "_blocks", ""};
    const struct st_tensor *t = NULL;
    for (size_t i = 0; i < sizeof suffixes / sizeof suffixes[0] && t == NULL; i++) {
        char text[MODEL_NAME_MAX];
        t = hfdir_tensor_find(s->hf, source_name(s, name, suffixes[i], text));
    }
    return t;
}

/* A third dimension, in front, is a stack's. */
static int hf_weight(const struct source *s, const char *name, struct weight_src *out, struct err *err)
{
    char base[MODEL_NAME_MAX];
    const struct st_tensor *t = hf_weight_tensor(s, name);
    if (t == NULL) {
        return err_set(err, ERR_FORMAT, "tensor '%.*s.weight' is missing", STR_ARG(source_name(s, name, "", base)));
    }
    int rc = hfdir_weight(s->hf, source_name(s, name, "", base), out, err);
    uint32_t matrix = str_ends(t->name, STR("_blocks")) ? 3 : 2;
    if (rc == 0 && t->n_dims > matrix) {
        if (t->n_dims > matrix + 1 || t->shape[0] > UINT32_MAX || out->rows % (uint32_t)t->shape[0] != 0) {
            return err_set(err, ERR_FORMAT, "tensor '%.*s': %u dimensions", STR_ARG(t->name), t->n_dims);
        }
        out->n_experts = (uint32_t)t->shape[0];
        out->rows /= out->n_experts;
    }
    return rc;
}

bool source_conv_turned(const struct source *s, const char *name)
{
    char text[MODEL_NAME_MAX];
    const struct st_tensor *t = s->hf != NULL ? hfdir_tensor_find(s->hf, source_name(s, name, "", text)) : NULL;
    return t != NULL && t->n_dims == 3 && t->shape[1] != 1 && t->shape[2] == 1;
}

bool source_has_weight(const struct source *s, const char *name)
{
    char text[MODEL_NAME_MAX];
    return s->gguf != NULL ? present(s, source_name(s, name, ".weight", text)) : hf_weight_tensor(s, name) != NULL;
}

int source_weight(struct source *s, const char *name, struct weight_src *out, struct err *err)
{
    static const char *const parts[] = {".weight", ".scales", ".biases", "_blocks", "_scales", ""};
    char text[MODEL_NAME_MAX];
    int rc = s->gguf != NULL ? gguf_weight(s, source_name(s, name, ".weight", text), out, err) : hf_weight(s, name, out, err);
    for (size_t i = 0; i < sizeof parts / sizeof parts[0] && rc == 0; i++) {
        mark(s, source_name(s, name, parts[i], text));
    }
    return rc;
}

/* Shape as rows x cols of a number, a vector, or of a matrix that may have a middle or (MLX) a last dimension of 1; 0 x 0 when it is
 * neither. */
static void vec_shape(const struct gguf_tensor *g, const struct st_tensor *t, uint64_t *rows, uint64_t *cols)
{
    uint32_t n_dims = g != NULL ? g->n_dims : t->n_dims;
    bool last = g == NULL && n_dims == 3 && t->shape[2] == 1;
    bool flat = n_dims == 2 || last || (g == NULL && n_dims == 3 && t->shape[1] == 1);
    *rows = *cols = 0;
    if (n_dims == 0) {
        *rows = *cols = 1;
    } else if (n_dims == 1) {
        *rows = g != NULL ? g->ne[0] : t->shape[0];
        *cols = 1;
    } else if (flat) {
        *rows = g != NULL ? g->ne[1] : t->shape[0];
        *cols = g != NULL ? g->ne[0] : t->shape[last ? 1 : n_dims - 1];
    }
}

uint32_t source_vec_length(const struct source *s, const char *name)
{
    char text[MODEL_NAME_MAX];
    struct str full = source_name(s, name, "", text);
    const struct gguf_tensor *g = s->gguf != NULL ? gguf_tensor_find(s->gguf, full) : NULL;
    const struct st_tensor *t = s->hf != NULL ? hfdir_tensor_find(s->hf, full) : NULL;
    uint64_t n = g != NULL && g->n_dims == 1 ? g->ne[0] : t != NULL && t->n_dims == 1 ? t->shape[0] : 0;
    return n <= UINT32_MAX ? (uint32_t)n : 0;
}

int source_vec(struct source *s, const char *name, uint32_t rows, uint32_t cols, float *out, enum dtype *type_out, struct err *err)
{
    char text[MODEL_NAME_MAX];
    struct str full = source_name(s, name, "", text);
    const void *data = NULL;
    uint64_t n = 0, m = 0;
    enum dtype type = DTYPE_F32;
    const struct gguf_tensor *g = s->gguf != NULL ? gguf_tensor_find(s->gguf, full) : NULL;
    const struct st_tensor *t = s->hf != NULL ? hfdir_tensor_find(s->hf, full) : NULL;
    if (g == NULL && t == NULL) {
        return err_set(err, ERR_FORMAT, "tensor '%s' is missing", text);
    }
    data = g != NULL ? g->data : t->data;
    type = g != NULL ? g->type : t->type;
    vec_shape(g, t, &n, &m);
    if (n != rows || m != cols) {
        return err_set(err, ERR_FORMAT, "tensor '%s': expected shape [%u, %u], file has %u dimensions and [%llu, %llu]", text, rows,
                       cols, g != NULL ? g->n_dims : t->n_dims, (unsigned long long)n, (unsigned long long)m);
    }
    if (type != DTYPE_F32 && type != DTYPE_F16 && type != DTYPE_BF16) {
        return err_set(err, ERR_UNSUPPORTED, "tensor '%s': expected type F32, F16 or BF16, file has %s", text, dtype_name(type));
    }
    dtype_dequant(type, data, out, (size_t)rows * cols);
    *type_out = type;
    mark(s, full);
    return 0;
}

void source_drop(struct source *s)
{
    for (size_t i = 0; i < source_count(s); i++) {
        if (s->marks[i] != MARK_BOUND) {
            continue;
        }
        if (s->gguf != NULL) {
            gguf_tensor_drop(s->gguf, gguf_tensor_at(s->gguf, i));
        } else {
            hfdir_tensor_drop(s->hf, hfdir_tensor_at(s->hf, i));
        }
        s->marks[i] = MARK_DROPPED;
    }
}

size_t source_ignore(struct source *s, const char *what, bool suffix)
{
    size_t n = 0;
    for (size_t i = 0; i < source_count(s); i++) {
        struct str name = source_name_at(s, i);
        if (suffix ? str_ends(name, str_of(what)) : str_starts(name, str_of(what))) {
            s->marks[i] = MARK_IGNORED;
            n++;
        }
    }
    return n;
}

void source_ignore_tensor(struct source *s, const char *name)
{
    static const char *const parts[] = {"", ".weight", ".scales", ".biases"};
    char text[MODEL_NAME_MAX];
    for (size_t p = 0; p < sizeof parts / sizeof parts[0]; p++) {
        struct str full = source_name(s, name, parts[p], text);
        for (size_t i = 0; i < source_count(s); i++) {
            s->marks[i] = str_eq(source_name_at(s, i), full) ? MARK_IGNORED : s->marks[i];
        }
    }
}

size_t source_ignore_layer(struct source *s, uint32_t layer)
{
    char name[48], text[MODEL_NAME_MAX];
    snprintf(name, sizeof name, s->gguf != NULL ? "blk.%u." : "model.layers.%u.", layer);
    return source_ignore(s, source_name(s, name, "", text).p, false);
}

int source_check_marks(const struct source *s, struct err *err)
{
    for (size_t i = 0; i < source_count(s); i++) {
        if (s->marks[i] == MARK_NONE) {
            return err_set(err, ERR_UNSUPPORTED, "tensor '%.*s' is not one this architecture has", STR_ARG(source_name_at(s, i)));
        }
    }
    return 0;
}
