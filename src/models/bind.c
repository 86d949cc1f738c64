/* models/bind.c - walk an architecture's bind table: check shapes, prepare weights, collect vectors, count what info prints.
 *
 * Vectors (norms, biases, inverse frequencies) are f32 in one block of device memory, written once at the end.
 * With plan_only the same walk sizes and checks everything, and nothing is prepared. */
#include "models/arch.h"

#include "base/log.h"
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
    has = hp->mlp_only[layer] ? LAYERS_MLP : has;
    has |= hp->moe.experts != 0 && !hp->dense[layer] ? LAYERS_EXPERTS : LAYERS_DENSE;
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
                 {HP_CONV_BIAS, "a bias of the convolution"},
                 {HP_STATE_BIAS, "biases around the convolution"},
                 {HP_LAYER_SCALE, "a scale behind each layer"},
                 {HP_LAYER_INPUTS, "embeddings of each layer"},
                 {HP_FUSED_GATE_UP, "gate and up in one tensor"},
                 {HP_EXPERTS_FUSED, "gate and up of all experts in one tensor"},
                 {HP_EXPERT_BIAS, "biases of experts"},
                 {HP_ROUTE_BIAS, "a bias of the choice of experts"},
                 {HP_SHARED, "a shared expert"},
                 {HP_SHARED_GATE, "a gate of the shared expert"},
                 {HP_SINKS, "attention sinks"}};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        bool served = (m->hp.flags & names[i].flag) == 0;
        for (uint32_t b = 0; b < m->arch->bind_count && !served; b++) {
            served = (m->arch->binds[b].when & names[i].flag) != 0;
        }
        if (!served) {
            return err_set(err, ERR_UNSUPPORTED, "%s with %s is not supported", m->arch->name, names[i].what);
        }
    }
    bool experts = m->hp.moe.experts == 0;
    for (uint32_t b = 0; b < m->arch->bind_count && !experts; b++) {
        experts = (m->arch->binds[b].layers & LAYERS_EXPERTS) != 0;
    }
    return experts ? 0 : err_set(err, ERR_UNSUPPORTED, "%s with %u experts is not supported", m->arch->name, m->hp.moe.experts);
}

/* What files of one architecture differ in: gate and up of experts, or all experts, in one tensor; keys and values of the latent vector
 * apart.  A flag holds when the file has a tensor of its rows.  Files in which MLX has turned the convolutions round have the 1 in their
 * norms already. */
static void file_facts(struct model *m)
{
    static const uint32_t facts = HP_EXPERTS_FUSED | HP_KV_B_SPLIT;
    for (uint32_t i = 0; i < m->arch->bind_count; i++) {
        const struct bind *b = m->arch->binds + i;
        bool fact = (b->when & facts) != 0 && b->kind == BIND_LAYER_WEIGHT, conv = b->kind == BIND_LAYER_VEC && b->slot == V_STATE_CONV;
        for (uint32_t l = 0; (fact || conv) && (m->gguf != NULL ? b->gguf : b->hf) != NULL && l < m->hp.layers; l++) {
            char name[MODEL_NAME_MAX];
            bind_name(m, b, l, 0, name);
            m->hp.flags |= fact && source_has_weight(&m->source, name) ? b->when & facts : 0;
            m->hp.norm_shift = conv && source_conv_turned(&m->source, name) ? 0.0f : m->hp.norm_shift;
        }
    }
}

/* ---- weights ---- */

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
    uint64_t row = src->row_bytes + (src->biases != NULL ? 2ull : 1ull) * weight_scale_row_bytes(src);
    return src->rows * row * (src->n_experts ? src->n_experts : 1);
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
        m->opt.progress(m->opt.progress_ctx, done < m->info.tensor_bytes ? done : m->info.tensor_bytes, m->info.tensor_bytes);
    }
    return 0;
}

/* The device wants room near it for as many of a layer's weights as one op reads. */
static void note_away(struct model *m, uint32_t layer, uint64_t bytes)
{
    uint64_t *largest = m->layers[layer].away_largest, sum = 0;
    for (uint32_t i = 0; i < NORM_INPUT_MAX; i++) {
        uint64_t held = largest[i];
        largest[i] = bytes > held ? bytes : held;
        bytes = bytes > held ? held : bytes;
        sum += (largest[i] + 255) / 256 * 256;
    }
    m->away_most = sum > m->away_most ? sum : m->away_most;
}

/* Do the weight's bytes stay in the host's memory? */
static bool stays_away(const struct model *m, const struct bind *b, uint32_t layer, const struct weight_src *src)
{
    uint32_t left = m->hp.layers - layer; /* this layer and those behind it */
    return b->kind == BIND_LAYER_WEIGHT && (left <= m->opt.away_layers || (src->n_experts != 0 && left <= m->opt.away_experts));
}

static int weight_put(struct model *m, const struct bind *b, uint32_t layer, const struct bound *bound, bool plan_only, unsigned use,
                      struct err *err)
{
    const struct backend *be = device_backend(m->device);
    struct weight **slot = b->kind == BIND_WEIGHT ? &m->weights[b->slot] : &m->layers[layer].w[b->slot];
    uint64_t device_bytes = 0;
    int rc = be->weight_plan(m->device, &bound->src, use, &device_bytes, err);
    if (rc == 0 && !plan_only) {
        rc = be->weight_prepare(m->device, &bound->src, use, slot, err);
        m->unsettled_bytes += src_bytes(&bound->src);
    }
    if (rc == 0 && bound->memory != NULL) {
        rc = weights_settle(m, false, err); /* the device reads from it until then */
    }
    if (rc != 0) {
        return rc;
    }
    const struct weight_src *src = &bound->src;
    uint64_t elements = (uint64_t)src->rows * src->cols;
    uint64_t all = src->n_experts ? src->n_experts : 1, read = src->n_experts ? m->hp.moe.used : 1; /* by a row */
    count_type(m, src->type, b->first == DIM_0, elements * all, src_bytes(src));
    if ((use & WEIGHT_AWAY) != 0) {
        m->info.away_bytes += device_bytes;
        note_away(m, layer, device_bytes);
    } else {
        m->info.weight_bytes += device_bytes;
    }
    m->info.read_bytes_per_token += (use & WEIGHT_LINEAR) != 0 ? device_bytes / all * read : 0;
    m->info.operations_per_token += (use & WEIGHT_LINEAR) != 0 ? 2 * elements * read : 0;
    return 0;
}

static int bind_weight(struct model *m, const struct bind *b, uint32_t layer, bool plan_only, struct err *err)
{
    bool model = b->kind == BIND_WEIGHT, embed = model && (b->slot == W_EMBED || b->slot == W_EMBED_LAYERS);
    bool tied = model && b->slot == W_EMBED && (m->hp.flags & HP_TIED) != 0;
    struct bound bound;
    int rc = bound_find(m, b, layer, !plan_only, &bound, err);
    if (rc == 0) {
        unsigned use = embed ? WEIGHT_EMBED | (tied ? WEIGHT_LINEAR : 0u) : WEIGHT_LINEAR;
        use |= stays_away(m, b, layer, &bound.src) ? WEIGHT_AWAY : 0u;
        rc = weight_put(m, b, layer, &bound, plan_only, use, err);
        if (rc != 0) {
            err_prefix(err, "tensor '%s'", bound.name);
        }
    }
    bound_free(&bound);
    return rc != 0 || m->unsettled_bytes < SETTLE_BYTES ? rc : weights_settle(m, true, err);
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
    if (cols == 1 || b->map == MAP_ROWS) {
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

/* A vector's tensor as f32: whole, a run of it, or (MAP_ROWS) columns first, first + group, .. of every row. */
static int vec_read(struct model *m, const struct bind *b, uint32_t layer, const char *name, float *out, enum dtype *type, struct err *err)
{
    uint32_t rows = bind_dim(m, layer, b->rows), cols = bind_dim(m, layer, b->cols);
    uint32_t of = bind_dim(m, layer, b->of), group = bind_dim(m, layer, b->group), first = bind_dim(m, layer, b->first);
    bool row_by_row = b->map == MAP_ROWS;
    if (b->of == DIM_0 || (!row_by_row && source_vec_length(&m->source, name) != of)) {
        return source_vec(&m->source, name, rows, cols, out, type, err);
    }
    uint32_t lines = row_by_row ? rows : 1;
    float *whole = mem_try_array((size_t)lines * of, sizeof *whole);
    if (whole == NULL) {
        return err_nomem(err, name, (size_t)lines * of * sizeof *whole);
    }
    int rc = row_by_row ? source_vec(&m->source, name, rows, of, whole, type, err) : source_vec(&m->source, name, of, 1, whole, type, err);
    if (rc == 0 && !row_by_row) {
        memcpy(out, whole + first, rows * sizeof *out);
    }
    for (uint32_t r = 0; row_by_row && r < rows && rc == 0; r++) {
        for (uint32_t c = 0; c < cols; c++) {
            out[(size_t)r * cols + c] = whole[(size_t)r * of + (size_t)c * group + first];
        }
    }
    mem_free(whole);
    return rc;
}

static int bind_vec(struct model *m, const struct bind *b, uint32_t layer, struct err *err)
{
    char name[MODEL_NAME_MAX];
    uint32_t count = vec_count(m, b, layer);
    const float **slot = b->kind == BIND_VEC ? &m->vecs[b->slot] : &m->layers[layer].v[b->slot];
    float *host = vec_take(m, count, slot);
    bind_name(m, b, layer, 0, name);
    enum dtype type = DTYPE_F32;
    int rc = vec_read(m, b, layer, name, host, &type, err);
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
    bind_name(m, b, layer, 0, name);
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

static void ignored_tell(const struct model *m, const char *what, size_t tensors, bool plan_only)
{
    if (tensors != 0 && !plan_only) {
        log_put(LOG_NOTICE, "%s: %zu tensors '%s' are left aside: no forward over text reads them", m->arch->name, tensors, what);
    }
}

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
        ignored_tell(m, what, source_ignore(&m->source, what, what[strlen(what) - 1] != '.'), plan_only);
        return 0;
    case BIND_IGNORED_LAYER:
        bind_name(m, b, layer, 0, name);
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
    file_facts(m);
    int rc = flags_check(m, err);
    if (rc != 0) {
        return rc;
    }
    if (m->hp.ignored_layers > MODEL_LAYERS_MAX) {
        return err_set(err, ERR_LIMIT, "%u layers that predict further tokens, at most %d", m->hp.ignored_layers, MODEL_LAYERS_MAX);
    }
    if (m->hfdir != NULL && (m->hp.flags & HP_TIED) != 0) {
        source_ignore(&m->source, "lm_head.", false); /* tied: a copy some files carry along */
        source_ignore(&m->source, "language_model.lm_head.", false);
    }
    for (uint32_t i = 0; i < m->hp.ignored_layers; i++) {
        ignored_tell(m, "of a layer that predicts further tokens", source_ignore_layer(&m->source, m->hp.layers + i), plan_only);
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
    if (rc == 0 && m->arch->bound != NULL) {
        rc = m->arch->bound(m, err);
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
