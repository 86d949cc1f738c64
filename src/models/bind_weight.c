/* models/bind_weight.c - one weight of a bind table as a backend takes it: a tensor, rows of one, or a stack of matrices.
 *
 * Owns:       the memory of rows that do not lie together in the file.
 * Invariants: 1. Every matrix of a stack has the shape of the table's row, and one type.
 *             2. Nothing is read of the file but what is gathered. */
#include "models/arch.h"

#include "base/mem.h"

#include <stdio.h>

/* Bytes of a row's scales (or biases); 0 when they are part of the row. */
size_t weight_scale_row_bytes(const struct weight_src *src)
{
    if (src->type == DTYPE_MXFP4 && src->scales != NULL) {
        return src->cols / 32;
    }
    return src->type == DTYPE_MLX ? (size_t)(src->cols / src->group) * (src->scale_type == DTYPE_F32 ? 4 : 2) : 0;
}

/* One of a row's names, up to its end or the next '|', with its numbers put in; how many it took. */
static uint32_t name_fill(const char *pattern, uint32_t layer, uint32_t expert, char out[MODEL_NAME_MAX])
{
    uint32_t numbers[2] = {layer, expert}, n = 0;
    size_t used = 0;
    for (const char *p = pattern; *p != '\0' && *p != '|' && used + 12 < MODEL_NAME_MAX; p++) {
        if (p[0] == '%' && p[1] == 'u' && n < 2) {
            used += (size_t)snprintf(out + used, MODEL_NAME_MAX - used, "%u", numbers[n++]);
            p++;
        } else {
            out[used++] = *p;
        }
    }
    out[used] = '\0';
    return n;
}

/* The first of a row's names that the file has, or else the first of all, so that it is the one missed. */
static const char *pattern_of(const struct model *m, const struct bind *b, uint32_t layer)
{
    const char *first = m->gguf != NULL ? b->gguf : b->hf, *p = first;
    bool weight = b->kind == BIND_WEIGHT || b->kind == BIND_LAYER_WEIGHT;
    for (; p != NULL && strchr(first, '|') != NULL; p = strchr(p, '|') != NULL ? strchr(p, '|') + 1 : NULL) {
        char name[MODEL_NAME_MAX];
        name_fill(p, layer, 0, name);
        if (weight ? source_has_weight(&m->source, name) : source_has(&m->source, name)) {
            return p;
        }
    }
    return first;
}

void bind_name(const struct model *m, const struct bind *b, uint32_t layer, uint32_t expert, char out[MODEL_NAME_MAX])
{
    name_fill(pattern_of(m, b, layer), layer, expert, out);
}

/* Has every matrix of the stack a tensor of its own? */
static bool named_apart(const struct model *m, const struct bind *b, uint32_t layer)
{
    char name[MODEL_NAME_MAX];
    return name_fill(pattern_of(m, b, layer), layer, 0, name) == 2;
}

/* ---- shapes ---- */

static bool plain(const struct weight_src *src)
{
    return src->type == DTYPE_F32 || src->type == DTYPE_F16 || src->type == DTYPE_BF16;
}

static bool transposed(const struct bind *b, const struct weight_src *src)
{
    return b->map == MAP_TRANSPOSED && plain(src);
}

/* In the file the rows that a group of ours is turned from are as many as ours have columns. */
static bool turned(const struct bind *b)
{
    return b->map == MAP_TURNED;
}

static bool scattered(const struct bind *b, const struct weight_src *src)
{
    return b->group != DIM_0 || transposed(b, src);
}

static int shape_check(const struct model *m, const struct bind *b, uint32_t layer, const struct weight_src *src, struct err *err)
{
    uint32_t rows = hparams_dim(&m->hp, layer, b->of != DIM_0 ? b->of : b->rows), cols = hparams_dim(&m->hp, layer, b->cols);
    uint32_t stack = b->stack != DIM_0 && !named_apart(m, b, layer) ? hparams_dim(&m->hp, layer, b->stack) : 0;
    uint32_t a = transposed(b, src) ? cols : rows, c = transposed(b, src) ? rows : cols;
    if (turned(b)) {
        c = hparams_dim(&m->hp, layer, b->rows) / (rows / hparams_dim(&m->hp, layer, b->group));
    }
    if (src->n_experts != stack) {
        return err_set(err, ERR_FORMAT, "tensor '%s': expected a stack of %u, file has one of %u (0: a matrix)", src->name, stack,
                       src->n_experts);
    }
    if (src->rows != a || src->cols != c) {
        return err_set(err, ERR_FORMAT, "tensor '%s': expected shape [%u, %u], file has [%u, %u]", src->name, a, c, src->rows,
                       src->cols);
    }
    return 0;
}

/* The matrix whose rows begin `first` rows further. */
static struct weight_src from_row(const struct weight_src *src, uint64_t first)
{
    struct weight_src s = *src;
    size_t scale = weight_scale_row_bytes(src);
    s.data = (const unsigned char *)src->data + first * src->row_bytes;
    if (scale != 0) {
        s.scales = (const unsigned char *)src->scales + first * scale;
        s.biases = src->biases != NULL ? (const unsigned char *)src->biases + first * scale : NULL;
    }
    s.n_experts = 0;
    return s;
}

/* ---- gathering ---- */

/* Runs of the file's rows: of every group of `group` rows, `take` from `first`; all groups' of one run before the next run's. */
struct gather {
    uint32_t rows, group, groups, count;
    struct {
        uint32_t first, take;
    } run[3];
};

static struct gather gather_of(const struct model *m, const struct bind *b, uint32_t layer)
{
    uint32_t rows = hparams_dim(&m->hp, layer, b->rows);
    struct gather g = {.rows = rows, .group = rows, .groups = 1, .count = 1, .run = {{0, rows}}};
    if (b->group != DIM_0) {
        g.group = hparams_dim(&m->hp, layer, b->group);
        g.groups = hparams_dim(&m->hp, layer, b->of) / g.group;
        g.run[0].first = hparams_dim(&m->hp, layer, b->first);
        g.run[0].take = rows / g.groups;
    }
    if (b->map == MAP_STATE_IN) {
        uint32_t d_k = m->hp.state.d_k, v = m->hp.state.values * m->hp.state.d_v;
        g.count = 3;
        g.run[0].take = g.run[1].first = g.run[1].take = d_k;
        g.run[2].first = 2 * d_k;
        g.run[2].take = v;
    }
    return g;
}

/* Which rows of the file follow one another in ours: the next `take` of them from `from`; false at the end. */
struct walk {
    uint32_t run, at_group;
    uint32_t to, from, take; /* ours, the file's, how many */
};

static bool walk_next(const struct gather *g, struct walk *w)
{
    w->to += w->take;
    if (w->take != 0 && ++w->at_group == g->groups) {
        w->at_group = 0;
        w->run++;
    }
    if (w->run == g->count) {
        return false;
    }
    w->from = w->at_group * g->group + g->run[w->run].first;
    w->take = g->run[w->run].take;
    return true;
}

/* `src` is the file's matrix; its elements are plain and lie [cols][rows]. */
static void gather_columns(const struct gather *g, struct weight_src *src, unsigned char *to)
{
    size_t size = dtype_block_bytes(src->type), cols = src->rows;
    const unsigned char *from = src->data;
    for (struct walk w = {0}; walk_next(g, &w);) {
        for (uint32_t r = 0; r < w.take; r++) {
            for (size_t c = 0; c < cols; c++) {
                memcpy(to + ((size_t)(w.to + r) * cols + c) * size, from + c * src->row_bytes + (size_t)(w.from + r) * size, size);
            }
        }
    }
    src->data = to;
    src->rows = g->rows;
    src->cols = (uint32_t)cols;
    src->row_bytes = cols * size;
}

/* Data, then scales, then biases. */
static void gather_rows(const struct gather *g, struct weight_src *src, unsigned char *to)
{
    const void **arrays[] = {&src->data, &src->scales, &src->biases};
    const size_t row_bytes[] = {src->row_bytes, weight_scale_row_bytes(src), weight_scale_row_bytes(src)};
    for (int i = 0; i < 3; i++) {
        const unsigned char *from = *arrays[i];
        if (from == NULL || row_bytes[i] == 0) {
            continue;
        }
        for (struct walk w = {0}; walk_next(g, &w);) {
            memcpy(to + (size_t)w.to * row_bytes[i], from + (size_t)w.from * row_bytes[i], w.take * row_bytes[i]);
        }
        *arrays[i] = to;
        to += (size_t)g->rows * row_bytes[i];
    }
    src->rows = g->rows;
}

/* `src`: n matrices as the file has them; each becomes what the table's row asks for. */
static int matrices_gather(const struct model *m, const struct bind *b, uint32_t layer, struct weight_src *src, uint32_t n,
                           struct bound *out, struct err *err)
{
    struct gather g = gather_of(m, b, layer);
    uint32_t cols = hparams_dim(&m->hp, layer, b->cols);
    size_t row = transposed(b, src) ? (size_t)cols * dtype_block_bytes(src->type) : src->row_bytes + 2 * weight_scale_row_bytes(src);
    size_t each = ((size_t)g.rows * row + 63) / 64 * 64;
    out->memory = mem_try_aligned(64, each * n);
    if (out->memory == NULL) {
        return err_nomem(err, src->name, each * n);
    }
    for (uint32_t e = 0; e < n; e++) {
        (transposed(b, src + e) ? gather_columns : gather_rows)(&g, src + e, out->memory + e * each);
    }
    return 0;
}

/* Of every group of the file's rows, as many as ours have columns: they become the columns of as many rows as they are long.  Without
 * `gather` only what `src` will be. */
static int matrix_turn(const struct model *m, const struct bind *b, uint32_t layer, bool gather, struct bound *out, struct err *err)
{
    struct weight_src from = out->src, *to = &out->src;
    uint32_t cols = hparams_dim(&m->hp, layer, b->cols), group = hparams_dim(&m->hp, layer, b->group);
    uint32_t first = hparams_dim(&m->hp, layer, b->first), high = from.cols;
    size_t size = plain(&from) ? dtype_block_bytes(from.type) : sizeof(float), bytes = (size_t)from.rows / group * high * cols * size;
    *to = (struct weight_src){.name = from.name, .type = plain(&from) ? from.type : DTYPE_F32, .rows = from.rows / group * high,
                              .cols = cols, .row_bytes = cols * size};
    if (!gather) {
        return 0;
    }
    int rc = dtype_check_scales(&from, err);
    if (rc != 0) {
        return rc;
    }
    bytes = (bytes + 63) / 64 * 64;
    out->memory = mem_try_aligned(64, bytes + high * sizeof(float)); /* and one row */
    if (out->memory == NULL) {
        return err_nomem(err, from.name, bytes);
    }
    float *row = (float *)(void *)(out->memory + bytes);
    for (uint32_t i = 0; i < from.rows / group * cols; i++) {
        uint32_t g = i / cols, c = i % cols, at = g * group + first + c;
        const unsigned char *x = (const unsigned char *)from.data + at * from.row_bytes;
        if (!plain(&from)) {
            weight_src_row(&from, at, row);
            x = (const unsigned char *)row;
        }
        for (uint32_t r = 0; r < high; r++) {
            memcpy(out->memory + (((size_t)g * high + r) * cols + c) * size, x + r * size, size);
        }
    }
    to->data = out->memory;
    return 0;
}

/* ---- finding ---- */

static bool same_kind(const struct weight_src *a, const struct weight_src *b)
{
    return a->type == b->type && a->bits == b->bits && a->group == b->group && a->scale_type == b->scale_type;
}

/* All matrices of a stack, as the file has them. */
static int stack_find(struct model *m, const struct bind *b, uint32_t layer, struct bound *out, struct err *err)
{
    uint32_t n = hparams_dim(&m->hp, layer, b->stack);
    bool apart = named_apart(m, b, layer);
    out->experts = mem_try_zero(n, sizeof *out->experts);
    if (out->experts == NULL) {
        return err_nomem(err, "experts", n * sizeof *out->experts);
    }
    for (uint32_t e = 0; e < n; e++) {
        struct weight_src *s = out->experts + e;
        if (e > 0 && !apart) {
            *s = from_row(out->experts, (uint64_t)e * out->experts[0].rows);
            continue;
        }
        bind_name(m, b, layer, e, out->name);
        int rc = source_weight(&m->source, out->name, s, err);
        s->name = out->name;
        rc = rc != 0 ? rc : shape_check(m, b, layer, s, err);
        if (rc == 0 && !same_kind(s, out->experts)) {
            rc = err_set(err, ERR_UNSUPPORTED, "tensor '%s': type %s, the first expert's is %s", s->name, dtype_name(s->type),
                         dtype_name(out->experts[0].type));
        }
        if (rc != 0) {
            return rc;
        }
    }
    out->experts[0].n_experts = 0;
    bind_name(m, b, layer, 0, out->name);
    return 0;
}

int bound_find(struct model *m, const struct bind *b, uint32_t layer, bool gather, struct bound *out, struct err *err)
{
    *out = (struct bound){0};
    bool stack = b->stack != DIM_0;
    uint32_t n = stack ? hparams_dim(&m->hp, layer, b->stack) : 1;
    bind_name(m, b, layer, 0, out->name);
    int rc = stack ? stack_find(m, b, layer, out, err) : source_weight(&m->source, out->name, &out->src, err);
    out->src.name = out->name;
    if (rc == 0 && !stack && b->of != DIM_0 && out->src.n_experts != 0) { /* the matrices of a stack as one, rows under rows */
        out->src.rows *= out->src.n_experts;
        out->src.n_experts = 0;
    }
    rc = rc != 0 || stack ? rc : shape_check(m, b, layer, &out->src, err);
    if (rc != 0 || turned(b)) {
        return rc != 0 ? rc : matrix_turn(m, b, layer, gather, out, err);
    }
    struct weight_src *each = stack ? out->experts : &out->src;
    if (!scattered(b, each)) {
        for (uint32_t e = 0; e < n; e++) {
            each[e] = from_row(each + e, hparams_dim(&m->hp, layer, b->first));
        }
    } else if (gather) {
        rc = matrices_gather(m, b, layer, each, n, out, err);
    }
    for (uint32_t e = 0; e < n; e++) {
        each[e].rows = hparams_dim(&m->hp, layer, b->rows);
        each[e].cols = hparams_dim(&m->hp, layer, b->cols);
    }
    if (stack) {
        out->src = out->experts[0];
        out->src.n_experts = n;
        out->src.experts = out->experts;
    }
    return rc;
}

void bound_free(struct bound *b)
{
    mem_free(b->memory);
    mem_free(b->experts);
    b->memory = NULL;
    b->experts = NULL;
}
