/* models/bind.c - walk an architecture's bind table: check shapes, prepare weights, collect vectors, count what info prints.
 *
 * Vectors (norms, biases, inverse frequencies) are f32 in one block of device memory, written once at the end.
 * With plan_only the same walk sizes and checks everything, and nothing is prepared. */
#include "models/arch.h"

#include "base/math.h"
#include "base/mem.h"

#include <stdio.h>

enum { VEC_ALIGN = 16 /* floats */, SETTLE_BYTES = 256 << 20 };

static bool bind_holds(const struct model *m, const struct bind *b)
{
    bool named = b->kind == BIND_ONES || (m->gguf != NULL ? b->gguf != NULL : b->hf != NULL);
    return named && (m->hp.flags & b->when) == b->when && (m->hp.flags & b->unless) == 0;
}

static uint32_t bind_times(const struct model *m, const struct bind *b)
{
    bool each = b->kind == BIND_LAYER_WEIGHT || b->kind == BIND_LAYER_VEC || b->kind == BIND_LAYER_NUMBER || b->kind == BIND_IGNORED_LAYER;
    return each ? m->hp.layers : 1;
}

static bool bind_in_layer(const struct model *m, const struct bind *b, uint32_t layer)
{
    const struct hparams *hp = &m->hp;
    bool own = hp->kv_from[layer] == 0;
    unsigned has = hp->recurrent[layer] ? LAYERS_RECURRENT : LAYERS_ATTENTION | (own ? LAYERS_OWN_KV : LAYERS_OTHERS_KV);
    has |= own && !hp->recurrent[layer] && !hp->v_is_k[layer] ? LAYERS_OWN_V : 0;
    return (has & b->layers) == b->layers;
}

static uint32_t bind_dim(const struct model *m, uint32_t layer, enum model_dim d)
{
    return hparams_dim(&m->hp, layer, d);
}

static uint32_t vec_count(const struct model *m, const struct bind *b, uint32_t layer)
{
    return bind_dim(m, layer, b->rows) * bind_dim(m, layer, b->cols);
}

static void bind_name(const struct model *m, const struct bind *b, uint32_t layer, char out[MODEL_NAME_MAX])
{
    const char *pattern = m->gguf != NULL ? b->gguf : b->hf;
    const char *at = strstr(pattern, "%u");
    if (at == NULL) {
        snprintf(out, MODEL_NAME_MAX, "%s", pattern);
    } else {
        snprintf(out, MODEL_NAME_MAX, "%.*s%u%s", (int)(at - pattern), pattern, layer, at + 2);
    }
}

static uint32_t vec_round(uint32_t n)
{
    return (n + VEC_ALIGN - 1) / VEC_ALIGN * VEC_ALIGN;
}

/* ---- flags that no row of the table serves are features the architecture does not have ---- */

static int flags_check(const struct model *m, struct err *err)
{
    static const struct {
        uint32_t flag;
        const char *what;
    } names[] = {{HP_QKV_BIAS, "biases of q, k and v"},
                 {HP_O_BIAS, "a bias of the attention output"},
                 {HP_MLP_BIAS, "MLP biases"},
                 {HP_QK_NORM, "norms of q and k"},
                 {HP_ATTN_GATE, "a gate of the attention output"},
                 {HP_QK_NORM_WIDE, "norms of all of q and k"},
                 {HP_FUSED_QKV, "q, k and v in one tensor"},
                 {HP_LAYER_SCALE, "a scale behind each layer"},
                 {HP_LAYER_INPUTS, "embeddings of each layer"},
                 {HP_FUSED_GATE_UP, "gate and up in one tensor"}};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        bool served = (m->hp.flags & names[i].flag) == 0;
        for (uint32_t b = 0; b < m->arch->bind_count && !served; b++) {
            served = (m->arch->binds[b].when & names[i].flag) != 0;
        }
        if (!served) {
            return err_set(err, ERR_UNSUPPORTED, "%s with %s is not supported", m->arch->name, names[i].what);
        }
    }
    return 0;
}

/* ---- weights ---- */

/* Bytes of a row's scales (or biases); 0 when they are part of the row. */
static size_t scale_row_bytes(const struct weight_src *src)
{
    return src->type == DTYPE_MLX ? (size_t)(src->cols / src->group) * (src->scale_type == DTYPE_F32 ? 4 : 2) : 0;
}

static int weight_slice(const struct model *m, const struct bind *b, uint32_t layer, struct weight_src *src, struct err *err)
{
    uint32_t rows = bind_dim(m, layer, b->rows), cols = bind_dim(m, layer, b->cols);
    uint32_t whole = b->of != DIM_0 ? bind_dim(m, layer, b->of) : rows, first = bind_dim(m, layer, b->first);
    if (src->rows != whole || src->cols != cols) {
        return err_set(err, ERR_FORMAT, "tensor '%s': expected shape [%u, %u], file has [%u, %u]", src->name, whole, cols,
                       src->rows, src->cols);
    }
    src->rows = rows;
    if (b->group != DIM_0) {
        return 0; /* weight_gather */
    }
    src->data = (const unsigned char *)src->data + (size_t)first * src->row_bytes;
    if (src->type == DTYPE_MLX) {
        size_t row = scale_row_bytes(src);
        src->scales = (const unsigned char *)src->scales + first * row;
        src->biases = (const unsigned char *)src->biases + first * row;
    }
    return 0;
}

/* The bound rows of every group, one after the other in memory of their own (given back by the caller). */
static int weight_gather(const struct model *m, const struct bind *b, uint32_t layer, struct weight_src *src, unsigned char **memory,
                         struct err *err)
{
    uint32_t group = bind_dim(m, layer, b->group), first = bind_dim(m, layer, b->first);
    uint32_t groups = bind_dim(m, layer, b->of) / group, take = src->rows / groups;
    const void **arrays[] = {&src->data, &src->scales, &src->biases};
    const size_t row_bytes[] = {src->row_bytes, scale_row_bytes(src), scale_row_bytes(src)};
    size_t total = 0, at = 0;
    for (int i = 0; i < 3; i++) {
        total += (size_t)src->rows * row_bytes[i];
    }
    unsigned char *p = *memory = mem_try_aligned(64, total);
    if (p == NULL) {
        return err_nomem(err, src->name, total);
    }
    for (int i = 0; i < 3 && row_bytes[i] != 0; i++) {
        const unsigned char *from = *arrays[i];
        for (uint32_t g = 0; g < groups; g++) {
            memcpy(p + at + (size_t)g * take * row_bytes[i], from + ((size_t)g * group + first) * row_bytes[i], take * row_bytes[i]);
        }
        *arrays[i] = p + at;
        at += (size_t)src->rows * row_bytes[i];
    }
    return 0;
}

static void count_type(struct model *m, enum dtype type, bool whole, uint64_t elements, uint64_t bytes)
{
    uint32_t i = 0;
    while (i < m->info.type_count && m->info.types[i].type != type) {
        i++;
    }
    if (i == m->info.type_count) {
        m->info.types[m->info.type_count++].type = type;
    }
    m->info.types[i].tensors += whole;
    m->info.types[i].elements += elements;
    m->info.types[i].file_bytes += bytes;
    m->info.parameters += elements;
}

static uint64_t src_bytes(const struct weight_src *src)
{
    return src->rows * (src->row_bytes + 2ull * scale_row_bytes(src));
}

/* Wait for the weights prepared so far.  Giving a file's pages back takes time, and they can be had back by whoever needs them: it is
 * worth it for large files only. */
static int weights_settle(struct model *m, bool drop, struct err *err)
{
    const struct backend *be = device_backend(m->device);
    uint64_t event = 0, done = 0;
    int rc = be->event_record(m->device, &event);
    rc = rc != 0 ? rc : be->event_wait(m->device, event, err);
    if (rc != 0) {
        return rc;
    }
    if (drop) {
        source_drop(&m->source);
    }
    m->unsettled_bytes = 0;
    for (uint32_t i = 0; i < m->info.type_count; i++) {
        done += m->info.types[i].file_bytes;
    }
    if (m->opt.progress != NULL) {
        m->opt.progress(m->opt.progress_ctx, done < m->info.file_bytes ? done : m->info.file_bytes, m->info.file_bytes);
    }
    return 0;
}

static int bind_weight(struct model *m, const struct bind *b, uint32_t layer, bool plan_only, struct err *err)
{
    const struct backend *be = device_backend(m->device);
    char name[MODEL_NAME_MAX];
    struct weight_src src = {0};
    uint64_t device_bytes = 0;
    bind_name(m, b, layer, name);
    int rc = source_weight(&m->source, name, &src, err);
    if (rc != 0) {
        return rc;
    }
    src.name = name;
    rc = weight_slice(m, b, layer, &src, err);
    if (rc != 0) {
        return rc;
    }
    bool model = b->kind == BIND_WEIGHT, embed = model && (b->slot == W_EMBED || b->slot == W_EMBED_LAYERS);
    bool tied = model && b->slot == W_EMBED && (m->hp.flags & HP_TIED) != 0;
    unsigned use = embed ? WEIGHT_EMBED | (tied ? WEIGHT_LINEAR : 0u) : WEIGHT_LINEAR;
    rc = be->weight_plan(m->device, &src, use, &device_bytes, err);
    unsigned char *gathered = NULL;
    if (rc == 0 && !plan_only && b->group != DIM_0) {
        rc = weight_gather(m, b, layer, &src, &gathered, err);
    }
    if (rc == 0 && !plan_only) {
        struct weight **slot = b->kind == BIND_WEIGHT ? &m->weights[b->slot] : &m->layers[layer].w[b->slot];
        rc = be->weight_prepare(m->device, &src, use, slot, err);
        m->unsettled_bytes += src_bytes(&src);
    }
    if (rc == 0 && gathered != NULL) {
        rc = weights_settle(m, false, err); /* the device reads from it until then */
    }
    mem_free(gathered);
    if (rc != 0) {
        return err_prefix(err, "tensor '%s'", name);
    }
    uint64_t elements = (uint64_t)src.rows * src.cols;
    count_type(m, src.type, b->first == DIM_0, elements, src_bytes(&src));
    m->info.weight_bytes += device_bytes;
    m->info.read_bytes_per_token += (use & WEIGHT_LINEAR) != 0 ? device_bytes : 0;
    m->info.operations_per_token += (use & WEIGHT_LINEAR) != 0 ? 2 * elements : 0;
    return m->unsettled_bytes < SETTLE_BYTES ? 0 : weights_settle(m, true, err);
}

/* ---- vectors ---- */

static size_t vec_total(const struct model *m)
{
    size_t n = 0;
    for (uint32_t i = 0; i < m->arch->bind_count; i++) {
        const struct bind *b = &m->arch->binds[i];
        if ((b->kind == BIND_VEC || b->kind == BIND_LAYER_VEC || b->kind == BIND_ONES) && bind_holds(m, b)) {
            for (uint32_t l = 0; l < bind_times(m, b); l++) {
                n += b->kind != BIND_LAYER_VEC || bind_in_layer(m, b, l) ? vec_round(vec_count(m, b, l)) : 0;
            }
        }
    }
    return n + (size_t)MODEL_ROPE_SETS * vec_round(model_head_dim(&m->hp));
}

/* Room for one vector: where to write it now, and where the device will have it. */
static float *vec_take(struct model *m, uint32_t count, const float **device)
{
    float *host = m->vec_host + m->vec_used;
    *device = m->vec_memory != NULL ? (const float *)(const void *)m->vec_memory + m->vec_used : NULL;
    m->vec_used += vec_round(count);
    return host;
}

/* What a Hugging Face file has otherwise than GGUF; a matrix [rows][cols] becomes [cols][rows]. */
static int vec_transform(const struct model *m, const struct bind *b, uint32_t layer, float *x, struct err *err)
{
    uint32_t rows = bind_dim(m, layer, b->rows), cols = bind_dim(m, layer, b->cols);
    for (uint32_t i = 0; b->map == MAP_NEG_EXP && m->hfdir != NULL && i < rows; i++) {
        x[i] = -(float)math_expd((double)x[i]);
    }
    if (cols == 1) {
        return 0;
    }
    float *copy = mem_try_array((size_t)rows * cols, sizeof *copy);
    if (copy == NULL) {
        return err_nomem(err, "transposed vector", (size_t)rows * cols * sizeof *copy);
    }
    memcpy(copy, x, (size_t)rows * cols * sizeof *copy);
    for (uint32_t r = 0; r < rows; r++) {
        for (uint32_t c = 0; c < cols; c++) {
            x[(size_t)c * rows + r] = copy[(size_t)r * cols + c];
        }
    }
    mem_free(copy);
    return 0;
}

static int bind_vec(struct model *m, const struct bind *b, uint32_t layer, struct err *err)
{
    char name[MODEL_NAME_MAX];
    uint32_t count = vec_count(m, b, layer);
    const float **slot = b->kind == BIND_VEC ? &m->vecs[b->slot] : &m->layers[layer].v[b->slot];
    float *host = vec_take(m, count, slot);
    bind_name(m, b, layer, name);
    enum dtype type = DTYPE_F32;
    int rc = source_vec(&m->source, name, bind_dim(m, layer, b->rows), bind_dim(m, layer, b->cols), host, &type, err);
    if (rc == 0) {
        rc = vec_transform(m, b, layer, host, err);
    }
    for (uint32_t i = 0; rc == 0 && b->norm && i < count; i++) {
        host[i] += m->hp.norm_shift;
    }
    for (uint32_t i = 0; rc == 0 && i < count; i++) {
        if (!__builtin_isfinite(host[i])) {
            rc = err_set(err, ERR_FORMAT, "tensor '%s': element %u is not finite", name, i);
        }
    }
    if (rc == 0) {
        count_type(m, type, true, count, (uint64_t)count * (type == DTYPE_F32 ? 4 : 2));
    }
    if (rc == 0 && b->kind == BIND_VEC && (b->slot == V_ROPE_LONG || b->slot == V_ROPE_SHORT)) {
        struct rope_params *p = &m->hp.rope[0];
        memcpy(b->slot == V_ROPE_LONG ? p->factors_long : p->factors_short, host, count * sizeof *host);
        p->factor_count = count;
    }
    return rc;
}

/* A tensor of one element that the host reads. */
static int bind_number(struct model *m, const struct bind *b, uint32_t layer, struct err *err)
{
    char name[MODEL_NAME_MAX];
    float *out = &m->layers[layer].n[b->slot];
    enum dtype type = DTYPE_F32;
    bind_name(m, b, layer, name);
    int rc = source_vec(&m->source, name, 1, 1, out, &type, err);
    if (rc == 0 && !__builtin_isfinite(*out)) {
        rc = err_set(err, ERR_FORMAT, "tensor '%s' is not finite", name);
    }
    if (rc == 0) {
        count_type(m, type, true, 1, type == DTYPE_F32 ? 4 : 2);
    }
    return rc;
}

static void bind_ones(struct model *m, const struct bind *b)
{
    uint32_t count = vec_count(m, b, 0);
    float *host = vec_take(m, count, &m->vecs[b->slot]);
    for (uint32_t i = 0; i < count; i++) {
        host[i] = 1.0f;
    }
}

static int bind_rope(struct model *m, const float *divisors, struct err *err)
{
    for (uint32_t s = 0; s < m->hp.rope_sets; s++) {
        float *host = vec_take(m, m->hp.rope[s].rot / 2, &m->inv_freq[s]);
        int rc = rope_frequencies(&m->hp.rope[s], m->hp.context_train, m->context, s == 0 ? divisors : NULL, host,
                                  &m->rope_mscale[s], err);
        if (rc != 0) {
            return rc;
        }
    }
    return 0;
}

/* ---- the walk ---- */

static int bind_row(struct model *m, const struct bind *b, uint32_t layer, bool plan_only, struct err *err)
{
    char name[MODEL_NAME_MAX];
    const char *what = m->gguf != NULL ? b->gguf : b->hf;
    switch (b->kind) {
    case BIND_WEIGHT:
    case BIND_LAYER_WEIGHT:
        return bind_weight(m, b, layer, plan_only, err);
    case BIND_VEC:
    case BIND_LAYER_VEC:
        return bind_vec(m, b, layer, err);
    case BIND_LAYER_NUMBER:
        return bind_number(m, b, layer, err);
    case BIND_ONES:
        bind_ones(m, b);
        return 0;
    case BIND_IGNORED:
        source_ignore(&m->source, what, what[strlen(what) - 1] != '.');
        return 0;
    case BIND_IGNORED_LAYER:
        bind_name(m, b, layer, name);
        source_ignore_tensor(&m->source, name);
        return 0;
    }
    return err_set(err, ERR_INTERNAL, "bind row of kind %d", (int)b->kind);
}

static int bind_rows(struct model *m, bool plan_only, struct err *err)
{
    const float *divisors = NULL;
    for (uint32_t i = 0; i < m->arch->bind_count; i++) {
        const struct bind *b = &m->arch->binds[i];
        if (!bind_holds(m, b)) {
            continue;
        }
        if (b->kind == BIND_VEC && b->slot == V_ROPE_FREQS) {
            divisors = m->vec_host + m->vec_used;
        }
        for (uint32_t l = 0; l < bind_times(m, b); l++) {
            bool whole = b->kind == BIND_WEIGHT || b->kind == BIND_VEC || b->kind == BIND_ONES || b->kind == BIND_IGNORED;
            int rc = whole || bind_in_layer(m, b, l) ? bind_row(m, b, l, plan_only, err) : 0;
            if (rc != 0) {
                return rc;
            }
        }
    }
    return bind_rope(m, divisors, err);
}

int model_bind(struct model *m, bool plan_only, struct err *err)
{
    const struct backend *be = device_backend(m->device);
    int rc = flags_check(m, err);
    if (rc != 0) {
        return rc;
    }
    if (m->hfdir != NULL && (m->hp.flags & HP_TIED) != 0) {
        source_ignore(&m->source, "lm_head.", false); /* tied: a copy some files carry along */
        source_ignore(&m->source, "language_model.lm_head.", false);
    }
    for (uint32_t i = 0; i < m->hp.ignored_layers; i++) {
        char prefix[32];
        snprintf(prefix, sizeof prefix, "blk.%u.", m->hp.layers + i);
        source_ignore(&m->source, prefix, false);
    }
    m->layers = mem_try_zero(m->hp.layers, sizeof *m->layers);
    m->vec_bytes = vec_total(m) * sizeof(float);
    m->vec_host = mem_try_zero(1, m->vec_bytes);
    if (m->layers == NULL || m->vec_host == NULL) {
        return err_nomem(err, "layers", m->hp.layers * sizeof *m->layers + m->vec_bytes);
    }
    if (!plan_only) {
        void *memory = NULL;
        rc = be->buffer_new(m->device, m->vec_bytes, &memory, err);
        m->vec_memory = memory;
    }
    if (rc == 0) {
        rc = bind_rows(m, plan_only, err);
    }
    if (rc == 0) {
        rc = source_check_marks(&m->source, err);
    }
    if (rc == 0 && !plan_only) {
        rc = weights_settle(m, false, err);
    }
    if (rc == 0 && !plan_only) {
        rc = be->buffer_write(m->device, m->vec_memory, m->vec_host, m->vec_bytes, err);
    }
    if (rc == 0 && (m->hp.flags & HP_TIED) != 0) {
        m->weights[W_HEAD] = m->weights[W_EMBED];
    }
    if (rc != 0 && !plan_only) {
        weights_settle(m, false, NULL); /* what fails in the queue is this model's failure, not the next one's */
    }
    m->info.weight_bytes += m->vec_bytes;
    mem_free(m->vec_host);
    m->vec_host = NULL;
    return rc;
}

void model_unbind(struct model *m)
{
    const struct backend *be = device_backend(m->device);
    if (m->weights[W_HEAD] == m->weights[W_EMBED]) {
        m->weights[W_HEAD] = NULL; /* tied: one weight */
    }
    for (uint32_t i = 0; i < MODEL_WEIGHTS; i++) {
        if (m->weights[i] != NULL) {
            be->weight_free(m->device, m->weights[i]);
        }
    }
    for (uint32_t l = 0; m->layers != NULL && l < m->hp.layers; l++) {
        for (uint32_t i = 0; i < LAYER_WEIGHTS; i++) {
            if (m->layers[l].w[i] != NULL) {
                be->weight_free(m->device, m->layers[l].w[i]);
            }
        }
    }
    if (m->vec_memory != NULL) {
        be->buffer_free(m->device, m->vec_memory, m->vec_bytes);
    }
    mem_free(m->vec_host);
    mem_free(m->layers);
}
