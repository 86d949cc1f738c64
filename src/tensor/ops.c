/* tensor/ops.c - the checked entry of every op: shapes first, then the backend's function, or its composition when it has none.
 *
 * A shape that does not fit is a mistake of ours, never of a user: ERR_INTERNAL with the op's name and both numbers.
 * Invariants: 1. A backend's function sees only ops whose shapes fit.  2. An op over zero rows is done: the backend is not asked.
 *             3. A composition enqueues exactly the ops its comment in op.h names, in that order.
 * Does not:   look at values (ids, positions, page tables live on the device). */
#include "tensor/backend.h"

#include <math.h>

/* Fail with the op's name in front.  Used as: NEED(op_name, condition, "text", ...). */
#define NEED(op_name, condition, ...)                                                          \
    do {                                                                                       \
        if (!(condition))                                                                      \
            return err_set(err, ERR_INTERNAL, "op " op_name ": " __VA_ARGS__);                 \
    } while (0)
#define TRY(expression)          \
    do {                         \
        int try_rc = expression; \
        if (try_rc)              \
            return try_rc;       \
    } while (0)

static int need_tensor(const char *op, const char *what, const struct tensor *t, uint32_t rows, uint32_t cols, struct err *err)
{
    if (t->rows != rows || t->cols != cols)
        return err_set(err, ERR_INTERNAL, "op %s: %s is [%u][%u], expected [%u][%u]", op, what, t->rows, t->cols, rows, cols);
    if (t->stride < t->cols || (!t->data && rows && cols))
        return err_set(err, ERR_INTERNAL, "op %s: %s has stride %u for %u columns, data %p", op, what, t->stride, t->cols, t->data);
    return 0;
}

static int need_weight(const char *op, const char *what, const struct weight *w, uint32_t rows, uint32_t cols, struct err *err)
{
    if (!w)
        return err_set(err, ERR_INTERNAL, "op %s: no weight %s", op, what);
    const struct weight_head *h = weight_info(w);
    if (h->rows != rows || h->cols != cols)
        return err_set(err, ERR_INTERNAL, "op %s: %s '%s' is [%u][%u], expected [%u][%u]", op, what, h->name, h->rows, h->cols, rows,
                       cols);
    if (h->n_experts)
        return err_set(err, ERR_INTERNAL, "op %s: %s '%s' is a stack of %u, expected one matrix", op, what, h->name, h->n_experts);
    return 0;
}

static int need_stack(const char *op, const char *what, const struct weight *w, uint32_t rows, uint32_t cols, struct err *err)
{
    if (!w)
        return err_set(err, ERR_INTERNAL, "op %s: no weight %s", op, what);
    const struct weight_head *h = weight_info(w);
    if (h->rows != rows || h->cols != cols || !h->n_experts)
        return err_set(err, ERR_INTERNAL, "op %s: %s '%s' is a stack of %u of [%u][%u], expected one of [%u][%u]", op, what, h->name,
                       h->n_experts, h->rows, h->cols, rows, cols);
    return 0;
}

static int need_pointer(const char *op, const char *what, const void *p, struct err *err)
{
    return p ? 0 : err_set(err, ERR_INTERNAL, "op %s: %s is NULL", op, what);
}

static int need_layer(const char *op, const struct kv_layer *l, struct err *err)
{
    TRY(need_pointer(op, "layer", l, err));
    TRY(need_pointer(op, "page table of the layer", l->pages, err));
    uint32_t bytes = kv_layer_head_bytes(l);
    if (!bytes)
        return err_set(err, ERR_INTERNAL, "op %s: K %s of %u or V %s of %u elements cannot be held%s", op, kv_format_name(l->k_format),
                       l->d_k, kv_format_name(l->v_format), l->d_v, l->latent ? " as one" : "");
    if (l->head_bytes != bytes || l->offset % 64 != 0 || l->n_kv_heads == 0)
        return err_set(err, ERR_INTERNAL, "op %s: %u bytes a head at offset %zu, expected %u and a multiple of 64; %u heads", op,
                       l->head_bytes, l->offset, bytes, l->n_kv_heads);
    return 0;
}

/* What the spans say is not looked at here: they may lie in device memory that a queued copy has yet to fill. */
static int need_spans(const char *op, const struct kv_span *spans, uint32_t count, const uint32_t *tables, struct err *err)
{
    if (count && (!spans || !tables))
        return err_set(err, ERR_INTERNAL, "op %s: %u spans at %p, tables at %p", op, count, (const void *)spans, (const void *)tables);
    return 0;
}

/* The backend's answer; a refusal without words gets some. */
static int done(const char *op, int rc, struct err *err)
{
    return rc ? err_set(err, rc, "op %s: refused by the backend (%s)", op, err_text(rc)) : 0;
}
#define ENQUEUE(name) done(#name, device_backend(d)->name(d, op), err)

static int copy_check(const char *op, const void *dst, const void *src, size_t n, struct err *err)
{
    if (n && (!dst || !src))
        return err_set(err, ERR_INTERNAL, "op %s: %zu bytes from %p to %p", op, n, src, dst);
    return 0;
}

int op_copy_in(struct device *d, const struct op_copy_in *op, struct err *err)
{
    TRY(copy_check("copy_in", op->dst, op->src, op->size_bytes, err));
    return op->size_bytes ? ENQUEUE(copy_in) : 0;
}

int op_copy_out(struct device *d, const struct op_copy_out *op, struct err *err)
{
    TRY(copy_check("copy_out", op->dst, op->src, op->size_bytes, err));
    return op->size_bytes ? ENQUEUE(copy_out) : 0;
}

int op_copy(struct device *d, const struct op_copy *op, struct err *err)
{
    TRY(copy_check("copy", op->dst, op->src, op->size_bytes, err));
    return op->size_bytes ? ENQUEUE(copy) : 0;
}

int op_embed(struct device *d, const struct op_embed *op, struct err *err)
{
    TRY(need_pointer("embed", "weight", op->w, err));
    TRY(need_tensor("embed", "y", &op->y, op->y.rows, weight_info(op->w)->cols, err));
    if (op->y.rows == 0)
        return 0;
    TRY(need_pointer("embed", "ids", op->ids, err));
    return ENQUEUE(embed);
}

int op_linear(struct device *d, const struct op_linear *op, struct err *err)
{
    TRY(need_weight("linear", "w", op->w, op->y.cols, op->x.cols, err));
    TRY(need_tensor("linear", "x", &op->x, op->x.rows, op->x.cols, err));
    TRY(need_tensor("linear", "y", &op->y, op->x.rows, op->y.cols, err));
    return op->x.rows ? ENQUEUE(linear) : 0;
}

int op_linear_heads(struct device *d, const struct op_linear_heads *op, struct err *err)
{
    TRY(need_pointer("linear_heads", "w", op->w, err));
    const struct weight_head *w = weight_info(op->w);
    NEED("linear_heads", op->n_heads && w->rows % op->n_heads == 0 && !w->n_experts, "%u rows of '%s' for %u heads", w->rows, w->name, op->n_heads);
    uint32_t out = w->rows / op->n_heads;
    TRY(need_tensor("linear_heads", "x", &op->x, op->x.rows, op->n_heads * (w->cols + op->tail), err));
    TRY(need_tensor("linear_heads", "y", &op->y, op->x.rows, op->n_heads * (out + op->tail), err));
    NEED("linear_heads", op->x.data != op->y.data, "y is its own input");
    return op->x.rows ? ENQUEUE(linear_heads) : 0;
}

int op_norm(struct device *d, const struct op_norm *op, struct err *err)
{
    TRY(need_tensor("norm", "x", &op->x, op->x.rows, op->x.cols, err));
    TRY(need_tensor("norm", "y", &op->y, op->x.rows, op->x.cols, err));
    TRY(need_pointer("norm", "w", op->w, err));
    NEED("norm", op->dim && op->x.cols % op->dim == 0, "%u columns in groups of %u", op->x.cols, op->dim);
    NEED("norm", !op->add || op->x.data != op->y.data, "added onto its own input");
    NEED("norm", !op->add || !op->centred, "centred and added");
    return op->x.rows ? ENQUEUE(norm) : 0;
}

int op_rope_table(struct device *d, const struct op_rope_table *op, struct err *err)
{
    TRY(need_tensor("rope_table", "table", &op->table, op->table.rows, 2 * op->n, err));
    TRY(need_pointer("rope_table", "inv_freq", op->inv_freq, err));
    if (op->table.rows == 0)
        return 0;
    TRY(need_pointer("rope_table", "pos", op->pos, err));
    return ENQUEUE(rope_table);
}

static int rope_check(const char *op, const struct tensor *x, uint32_t n_heads, uint32_t head_dim, uint32_t first,
                      const struct tensor *table, struct err *err)
{
    if (n_heads == 0 || head_dim == 0 || first >= head_dim)
        return err_set(err, ERR_INTERNAL, "op %s: %u heads of %u, turned from %u on", op, n_heads, head_dim, first);
    TRY(need_tensor(op, "x", x, x->rows, n_heads * head_dim, err));
    TRY(need_tensor(op, "table", table, x->rows, table->cols, err));
    if (table->cols % 2 != 0 || table->cols > head_dim - first)
        return err_set(err, ERR_INTERNAL, "op %s: a table of %u columns for heads of %u", op, table->cols, head_dim - first);
    return 0;
}

int op_rope(struct device *d, const struct op_rope *op, struct err *err)
{
    TRY(rope_check("rope", &op->x, op->n_heads, op->head_dim, op->first, &op->table, err));
    return op->x.rows ? ENQUEUE(rope) : 0;
}

static int kv_rows_check(const char *op, const struct tensor *k, const struct tensor *v, const struct kv_layer *l, struct err *err)
{
    TRY(need_tensor(op, "k", k, k->rows, l->n_kv_heads * l->d_k, err));
    if (!l->latent)
        return need_tensor(op, "v", v, k->rows, l->n_kv_heads * l->d_v, err);
    return v->rows ? err_set(err, ERR_INTERNAL, "op %s: v of %u rows for a layer whose V is part of K", op, v->rows) : 0;
}

int op_kv_convert(struct device *d, const struct op_kv_convert *op, struct err *err)
{
    TRY(need_layer("kv_convert", op->from, err));
    TRY(need_layer("kv_convert", op->to, err));
    NEED("kv_convert", op->from->n_kv_heads == op->to->n_kv_heads && op->from->d_k == op->to->d_k && op->from->d_v == op->to->d_v &&
             op->from->latent == op->to->latent,
         "heads of %u and %u elements become others of %u and %u", op->from->d_k, op->from->d_v, op->to->d_k, op->to->d_v);
    NEED("kv_convert", op->page_count <= KV_CONVERT_PAGES && op->positions_last <= KV_PAGE, "%u pages, %u positions in the last",
         op->page_count, op->positions_last);
    return op->page_count ? ENQUEUE(kv_convert) : 0;
}

int op_kv_write(struct device *d, const struct op_kv_write *op, struct err *err)
{
    TRY(need_layer("kv_write", op->layer, err));
    TRY(kv_rows_check("kv_write", &op->k, &op->v, op->layer, err));
    TRY(need_spans("kv_write", op->spans, op->span_count, op->tables, err));
    return op->span_count ? ENQUEUE(kv_write) : 0;
}

int op_attention(struct device *d, const struct op_attention *op, struct err *err)
{
    TRY(need_layer("attention", op->layer, err));
    const struct kv_layer *l = op->layer;
    NEED("attention", op->n_heads && op->n_heads % l->n_kv_heads == 0, "%u heads over %u K heads", op->n_heads, l->n_kv_heads);
    TRY(need_tensor("attention", "q", &op->q, op->q.rows, op->n_heads * l->d_k, err));
    TRY(need_tensor("attention", "y", &op->y, op->q.rows, op->n_heads * l->d_v, err));
    NEED("attention", op->q.data != op->y.data, "y is its own input");
    NEED("attention", isfinite(op->scale) && op->softcap >= 0, "scale %g, softcap %g", (double)op->scale, (double)op->softcap);
    TRY(need_spans("attention", op->spans, op->span_count, op->tables, err));
    return op->span_count ? ENQUEUE(attention) : 0;
}

int op_gated(struct device *d, const struct op_gated *op, struct err *err)
{
    TRY(need_tensor("gated", "gate", &op->gate, op->gate.rows, op->gate.cols, err));
    TRY(need_tensor("gated", "up", &op->up, op->gate.rows, op->gate.cols, err));
    TRY(need_tensor("gated", "y", &op->y, op->gate.rows, op->gate.cols, err));
    NEED("gated", (unsigned)op->act < ACT_COUNT, "activation %d", (int)op->act);
    return op->gate.rows ? ENQUEUE(gated) : 0;
}

int op_xielu(struct device *d, const struct op_xielu *op, struct err *err)
{
    TRY(need_tensor("xielu", "x", &op->x, op->x.rows, op->x.cols, err));
    NEED("xielu", isfinite(op->alpha_p) && isfinite(op->alpha_n) && isfinite(op->beta) && op->eps <= 0, "alphas %g and %g, beta %g, eps %g",
         (double)op->alpha_p, (double)op->alpha_n, (double)op->beta, (double)op->eps);
    return op->x.rows ? ENQUEUE(xielu) : 0;
}

int op_add(struct device *d, const struct op_add *op, struct err *err)
{
    TRY(need_tensor("add", "x", &op->x, op->x.rows, op->x.cols, err));
    TRY(need_tensor("add", "y", &op->y, op->x.rows, op->x.cols, err));
    return op->x.rows ? ENQUEUE(add) : 0;
}

int op_scale(struct device *d, const struct op_scale *op, struct err *err)
{
    TRY(need_tensor("scale", "x", &op->x, op->x.rows, op->x.cols, err));
    NEED("scale", isfinite(op->scale), "scale %g", (double)op->scale);
    return op->x.rows ? ENQUEUE(scale) : 0;
}

int op_blend(struct device *d, const struct op_blend *op, struct err *err)
{
    NEED("blend", op->n >= 1 && op->n <= BLEND_MAX && op->m >= 1 && op->m <= BLEND_MAX, "%u of %u, at most %d", op->m, op->n, BLEND_MAX);
    uint32_t rows = op->y[0].rows, cols = op->y[0].cols;
    for (uint32_t j = 0; j < op->n; j++)
        TRY(need_tensor("blend", "x", &op->x[j], rows, cols, err));
    for (uint32_t i = 0; i < op->m; i++) {
        TRY(need_tensor("blend", "base", &op->base[i], rows, cols, err));
        TRY(need_tensor("blend", "y", &op->y[i], rows, cols, err));
        for (uint32_t j = 0; j < op->n; j++)
            NEED("blend", op->y[i].data != op->x[j].data, "y is its own input");
    }
    TRY(need_tensor("blend", "coef", &op->coef, rows, op->m * op->n, err));
    return rows ? ENQUEUE(blend) : 0;
}

int op_match(struct device *d, const struct op_match *op, struct err *err)
{
    TRY(need_tensor("match", "x", &op->x, op->x.rows, op->x.cols, err));
    TRY(need_tensor("match", "y", &op->y, op->x.rows, op->x.cols, err));
    NEED("match", op->x.cols && op->least > 0 && isfinite(op->least), "%u columns, least %g", op->x.cols, (double)op->least);
    NEED("match", op->x.data != op->y.data, "y is its own input");
    return op->x.rows ? ENQUEUE(match) : 0;
}

int op_sparsify(struct device *d, const struct op_sparsify *op, struct err *err)
{
    TRY(need_tensor("sparsify", "x", &op->x, op->x.rows, op->x.cols, err));
    NEED("sparsify", op->x.cols && isfinite(op->factor), "%u columns, factor %g", op->x.cols, (double)op->factor);
    return op->x.rows ? ENQUEUE(sparsify) : 0;
}

int op_softcap(struct device *d, const struct op_softcap *op, struct err *err)
{
    TRY(need_tensor("softcap", "x", &op->x, op->x.rows, op->x.cols, err));
    NEED("softcap", op->cap > 0 && isfinite(op->cap), "cap %g", (double)op->cap);
    return op->x.rows ? ENQUEUE(softcap) : 0;
}

int op_gather(struct device *d, const struct op_gather *op, struct err *err)
{
    TRY(need_tensor("gather", "x", &op->x, op->x.rows, op->x.cols, err));
    TRY(need_tensor("gather", "y", &op->y, op->y.rows, op->x.cols, err));
    if (op->y.rows == 0)
        return 0;
    TRY(need_pointer("gather", "rows", op->rows, err));
    NEED("gather", op->x.data != op->y.data, "y is its own input");
    return ENQUEUE(gather);
}

static int need_state(const char *op, const struct state_layer *l, bool delta, struct err *err)
{
    TRY(need_pointer(op, "layer", l, err));
    TRY(need_pointer(op, "parts of the layer", l->parts, err));
    const struct state_shape *s = &l->shape;
    if (!state_shape_valid(s) || (s->values != 0) != delta || (!delta && s->heads != 1))
        return err_set(err, ERR_INTERNAL, "op %s: state of %u heads, %u channels, %u taps, %u values", op, s->heads, s->channels, s->taps,
                       s->values);
    return 0;
}

int op_short_conv(struct device *d, const struct op_short_conv *op, struct err *err)
{
    TRY(need_state("short_conv", op->layer, false, err));
    uint32_t channels = op->layer->shape.channels;
    TRY(need_tensor("short_conv", "x", &op->x, op->x.rows, 3 * channels, err));
    TRY(need_tensor("short_conv", "y", &op->y, op->x.rows, channels, err));
    NEED("short_conv", op->x.data != op->y.data, "y is its own input");
    TRY(need_pointer("short_conv", "w", op->w, err));
    TRY(need_spans("short_conv", op->spans, op->span_count, op->tables, err));
    return op->span_count ? ENQUEUE(short_conv) : 0;
}

int op_delta_net(struct device *d, const struct op_delta_net *op, struct err *err)
{
    TRY(need_state("delta_net", op->layer, true, err));
    const struct state_shape *s = &op->layer->shape;
    uint32_t rows = op->qkv.rows, values = s->heads * s->values;
    TRY(need_tensor("delta_net", "qkv", &op->qkv, rows, s->heads * s->channels, err));
    TRY(need_tensor("delta_net", "a", &op->a, rows, values, err));
    TRY(need_tensor("delta_net", "b", &op->b, rows, values, err));
    TRY(need_tensor("delta_net", "y", &op->y, rows, values * s->d_v, err));
    NEED("delta_net", op->qkv.data != op->y.data, "y is its own input");
    TRY(need_pointer("delta_net", "conv", op->conv, err));
    TRY(need_pointer("delta_net", "rate", op->rate, err));
    TRY(need_pointer("delta_net", "dt_bias", op->dt_bias, err));
    TRY(need_spans("delta_net", op->spans, op->span_count, op->tables, err));
    return op->span_count ? ENQUEUE(delta_net) : 0;
}

int op_mamba(struct device *d, const struct op_mamba *op, struct err *err)
{
    TRY(need_state("mamba", op->layer, true, err));
    const struct state_shape *s = &op->layer->shape;
    uint32_t rows = op->xbc.rows, heads = s->heads * s->values;
    TRY(need_tensor("mamba", "xbc", &op->xbc, rows, s->heads * s->channels, err));
    TRY(need_tensor("mamba", "dt", &op->dt, rows, heads, err));
    TRY(need_tensor("mamba", "times", &op->times, rows, heads, err));
    TRY(need_tensor("mamba", "y", &op->y, rows, heads * s->d_v, err));
    NEED("mamba", op->xbc.data != op->y.data && op->dt.data != op->times.data, "y or times is its own input");
    NEED("mamba", op->dt_least >= 0 && isfinite(op->dt_least), "dt_least %g", (double)op->dt_least);
    TRY(need_pointer("mamba", "conv", op->conv, err));
    TRY(need_pointer("mamba", "rate", op->rate, err));
    TRY(need_pointer("mamba", "dt_bias", op->dt_bias, err));
    TRY(need_pointer("mamba", "skip", op->skip, err));
    TRY(need_spans("mamba", op->spans, op->span_count, op->tables, err));
    return op->span_count ? ENQUEUE(mamba) : 0;
}

int op_route(struct device *d, const struct op_route *op, struct err *err)
{
    uint32_t experts = op->logits.cols;
    TRY(need_tensor("route", "logits", &op->logits, op->logits.rows, experts, err));
    NEED("route", op->top && op->top <= ROUTE_TOP_MAX && op->top <= experts, "%u of %u experts, at most %d", op->top, experts, ROUTE_TOP_MAX);
    NEED("route", experts <= ROUTE_EXPERTS_MAX, "%u experts, at most %d", experts, ROUTE_EXPERTS_MAX);
    NEED("route", (unsigned)op->score < ROUTE_SCORE_COUNT, "score %d", (int)op->score);
    NEED("route", !op->bias || op->score != ROUTE_SOFTMAX_TOP, "a bias of scores that follow the choice");
    if (op->groups > 1) {
        uint32_t each = experts / op->groups;
        NEED("route", op->groups <= ROUTE_GROUPS_MAX && experts % op->groups == 0, "%u experts in %u groups", experts, op->groups);
        NEED("route", op->group_best && op->group_best <= each && op->group_top && op->group_top <= op->groups &&
             op->top <= op->group_top * each, "%u best of %u experts, %u of %u groups", op->group_best, each, op->group_top, op->groups);
    }
    if (op->logits.rows == 0)
        return 0;
    TRY(need_pointer("route", "ids", op->ids, err));
    TRY(need_pointer("route", "weights", op->weights, err));
    return ENQUEUE(route);
}

static int need_slots(const char *op, const struct tensor *x, const struct tensor *y, uint32_t cols, const void *ids, struct err *err)
{
    TRY(need_tensor(op, "x", x, x->rows, x->cols, err));
    TRY(need_tensor(op, "y", y, y->rows, cols, err));
    if (y->rows && (x->rows == 0 || y->rows % x->rows != 0))
        return err_set(err, ERR_INTERNAL, "op %s: %u slots of %u rows", op, y->rows, x->rows);
    return y->rows ? need_pointer(op, "ids", ids, err) : 0;
}

int op_expert_linear(struct device *d, const struct op_expert_linear *op, struct err *err)
{
    TRY(need_slots("expert_linear", &op->x, &op->y, op->y.cols, op->ids, err));
    TRY(need_stack("expert_linear", "w", op->w, op->y.cols, op->x.cols, err));
    NEED("expert_linear", op->x.data != op->y.data || !op->y.rows, "y is its own input");
    return op->y.rows ? ENQUEUE(expert_linear) : 0;
}

int op_expert_sum(struct device *d, const struct op_expert_sum *op, struct err *err)
{
    TRY(need_tensor("expert_sum", "x", &op->x, op->x.rows, op->x.cols, err));
    TRY(need_tensor("expert_sum", "y", &op->y, op->y.rows, op->x.cols, err));
    if (op->y.rows == 0)
        return 0;
    NEED("expert_sum", op->x.rows && op->x.rows % op->y.rows == 0, "%u slots of %u rows", op->x.rows, op->y.rows);
    TRY(need_pointer("expert_sum", "weights", op->weights, err));
    return ENQUEUE(expert_sum);
}

int op_sample_rows(struct device *d, const struct op_sample_rows *op, struct err *err)
{
    TRY(need_tensor("sample_rows", "logits", &op->logits, op->logits.rows, op->logits.cols, err));
    NEED("sample_rows", op->vocab && op->vocab <= op->logits.cols, "%u ids of %u columns", op->vocab, op->logits.cols);
    if (op->logits.rows == 0)
        return 0;
    TRY(need_pointer("sample_rows", "rows", op->rows, err));
    TRY(need_pointer("sample_rows", "results", op->results, err));
    return ENQUEUE(sample_rows);
}

/* ---- fusions ---- */

int op_norm_linear(struct device *d, const struct op_norm_linear *op, struct err *err)
{
    NEED("norm_linear", op->n >= 1 && op->n <= NORM_INPUT_MAX, "%u weights, at most %d", op->n, NORM_INPUT_MAX);
    TRY(need_tensor("norm_linear", "x", &op->x, op->x.rows, op->x.cols, err));
    TRY(need_tensor("norm_linear", "scratch", &op->scratch, op->x.rows, op->x.cols, err));
    TRY(need_pointer("norm_linear", "norm_w", op->norm_w, err));
    for (uint32_t i = 0; i < op->n; i++) {
        TRY(need_weight("norm_linear", "w", op->w[i], op->y[i].cols, op->x.cols, err));
        TRY(need_tensor("norm_linear", "y", &op->y[i], op->x.rows, op->y[i].cols, err));
    }
    if (op->x.rows == 0)
        return 0;
    if (device_backend(d)->norm_linear)
        return ENQUEUE(norm_linear);
    struct op_norm norm = {.x = op->x, .y = op->scratch, .dim = op->x.cols, .w = op->norm_w, .eps = op->eps};
    TRY(op_norm(d, &norm, err));
    for (uint32_t i = 0; i < op->n; i++) {
        struct op_linear linear = {.w = op->w[i], .bias = op->bias[i], .x = op->scratch, .y = op->y[i], .alpha = 1};
        TRY(op_linear(d, &linear, err));
    }
    return 0;
}

int op_norm_gated(struct device *d, const struct op_norm_gated *op, struct err *err)
{
    TRY(need_tensor("norm_gated", "x", &op->x, op->x.rows, op->x.cols, err));
    TRY(need_tensor("norm_gated", "y", &op->y, op->x.rows, op->y.cols, err));
    TRY(need_weight("norm_gated", "gate", op->gate, op->y.cols, op->x.cols, err));
    TRY(need_weight("norm_gated", "up", op->up, op->y.cols, op->x.cols, err));
    TRY(need_tensor("norm_gated", "scratch", &op->scratch, op->x.rows, op->x.cols, err));
    TRY(need_tensor("norm_gated", "scratch_gate", &op->scratch_gate, op->x.rows, op->y.cols, err));
    TRY(need_tensor("norm_gated", "scratch_up", &op->scratch_up, op->x.rows, op->y.cols, err));
    TRY(need_pointer("norm_gated", "norm_w", op->norm_w, err));
    NEED("norm_gated", (unsigned)op->act < ACT_COUNT, "activation %d", (int)op->act);
    if (op->x.rows == 0)
        return 0;
    if (device_backend(d)->norm_gated)
        return ENQUEUE(norm_gated);
    struct op_norm norm = {.x = op->x, .y = op->scratch, .dim = op->x.cols, .w = op->norm_w, .eps = op->eps};
    struct op_linear gate = {.w = op->gate, .x = op->scratch, .y = op->scratch_gate, .alpha = 1};
    struct op_linear up = {.w = op->up, .x = op->scratch, .y = op->scratch_up, .alpha = 1};
    struct op_gated gated = {.gate = op->scratch_gate, .up = op->scratch_up, .y = op->y, .act = op->act};
    TRY(op_norm(d, &norm, err));
    TRY(op_linear(d, &gate, err));
    TRY(op_linear(d, &up, err));
    return op_gated(d, &gated, err);
}

int op_expert_gated(struct device *d, const struct op_expert_gated *op, struct err *err)
{
    TRY(need_slots("expert_gated", &op->x, &op->y, op->y.cols, op->ids, err));
    TRY(need_stack("expert_gated", "gate", op->gate, op->y.cols, op->x.cols, err));
    TRY(need_stack("expert_gated", "up", op->up, op->y.cols, op->x.cols, err));
    NEED("expert_gated", weight_info(op->gate)->n_experts == weight_info(op->up)->n_experts, "%u gates, %u ups",
         weight_info(op->gate)->n_experts, weight_info(op->up)->n_experts);
    TRY(need_tensor("expert_gated", "scratch_gate", &op->scratch_gate, op->y.rows, op->y.cols, err));
    TRY(need_tensor("expert_gated", "scratch_up", &op->scratch_up, op->y.rows, op->y.cols, err));
    NEED("expert_gated", (unsigned)op->act < ACT_COUNT, "activation %d", (int)op->act);
    if (op->y.rows == 0)
        return 0;
    if (device_backend(d)->expert_gated)
        return ENQUEUE(expert_gated);
    struct op_expert_linear gate = {.w = op->gate, .bias = op->gate_bias, .x = op->x, .y = op->scratch_gate, .ids = op->ids};
    struct op_expert_linear up = {.w = op->up, .bias = op->up_bias, .x = op->x, .y = op->scratch_up, .ids = op->ids};
    struct op_gated gated = {.gate = op->scratch_gate, .up = op->scratch_up, .y = op->y, .act = op->act};
    TRY(op_expert_linear(d, &gate, err));
    TRY(op_expert_linear(d, &up, err));
    return op_gated(d, &gated, err);
}

int op_expert_output(struct device *d, const struct op_expert_output *op, struct err *err)
{
    const struct op_expert_linear *linear = &op->linear;
    const struct op_expert_sum *sum = &op->sum;
    TRY(need_slots("expert_output", &linear->x, &linear->y, sum->y.cols, linear->ids, err));
    TRY(need_stack("expert_output", "w", linear->w, sum->y.cols, linear->x.cols, err));
    TRY(need_tensor("expert_output", "y", &sum->y, sum->y.rows, sum->y.cols, err));
    if (sum->y.rows == 0)
        return 0;
    NEED("expert_output", linear->y.rows && linear->y.rows % sum->y.rows == 0, "%u slots of %u rows", linear->y.rows, sum->y.rows);
    NEED("expert_output", sum->x.data == linear->y.data && sum->x.rows == linear->y.rows, "the sum is not of the product");
    NEED("expert_output", linear->x.data != sum->y.data && linear->x.data != linear->y.data, "x is its own output");
    TRY(need_pointer("expert_output", "weights", sum->weights, err));
    if (device_backend(d)->expert_output)
        return ENQUEUE(expert_output);
    TRY(op_expert_linear(d, linear, err));
    return op_expert_sum(d, sum, err);
}

/* The composition of attn_prepare. */
static int attn_prepare_compose(struct device *d, const struct op_attn_prepare *op, struct err *err)
{
    const struct kv_layer *l = op->layer;
    if (op->q_norm) {
        struct op_norm norm = {.x = op->q, .y = op->q, .dim = op->head_dim, .w = op->q_norm, .eps = op->eps};
        TRY(op_norm(d, &norm, err));
    }
    if (op->k_norm) {
        struct op_norm norm = {.x = op->k, .y = op->k, .dim = op->head_dim, .w = op->k_norm, .eps = op->eps};
        TRY(op_norm(d, &norm, err));
    }
    if (op->table.rows) {
        struct op_rope q = {.x = op->q, .n_heads = op->n_heads, .head_dim = op->head_dim, .table = op->table, .pairing = op->pairing};
        struct op_rope k = {.x = op->k, .n_heads = l->n_kv_heads, .head_dim = op->head_dim, .table = op->table, .pairing = op->pairing};
        TRY(op_rope(d, &q, err));
        TRY(op_rope(d, &k, err));
    }
    struct op_kv_write write = {.k = op->k, .v = op->v, .layer = l, .spans = op->spans, .span_count = op->span_count, .tables = op->tables};
    return op_kv_write(d, &write, err);
}

int op_attn_prepare(struct device *d, const struct op_attn_prepare *op, struct err *err)
{
    TRY(need_layer("attn_prepare", op->layer, err));
    const struct kv_layer *l = op->layer;
    NEED("attn_prepare", op->head_dim == l->d_k, "heads of %u, the layer stores %u", op->head_dim, l->d_k);
    TRY(need_tensor("attn_prepare", "q", &op->q, op->q.rows, op->n_heads * op->head_dim, err));
    NEED("attn_prepare", op->k.rows == op->q.rows, "%u rows of K, %u of Q", op->k.rows, op->q.rows);
    TRY(kv_rows_check("attn_prepare", &op->k, &op->v, l, err));
    if (op->table.rows)
        TRY(rope_check("attn_prepare", &op->q, op->n_heads, op->head_dim, 0, &op->table, err));
    TRY(need_spans("attn_prepare", op->spans, op->span_count, op->tables, err));
    if (op->q.rows == 0)
        return 0;
    return device_backend(d)->attn_prepare ? ENQUEUE(attn_prepare) : attn_prepare_compose(d, op, err);
}

int device_group_check(const struct device_config *cfg, const char *backend, struct err *err)
{
    if (cfg->group.size <= 1)
        return 0;
    return err_set(err, ERR_UNSUPPORTED, "%s: one device holds a model, a group of %u is not there yet: name one device", backend, cfg->group.size);
}

int backend_check(const struct backend *b, struct err *err)
{
#define CHECK_REQUIRED(op)                                                                           \
    if (!b->op)                                                                                      \
        return err_set(err, ERR_UNSUPPORTED, "backend '%s' has no op '%s', which is required", b->name, #op);
#define CHECK_OPTIONAL(op)
    BACKEND_OPS(CHECK_REQUIRED, CHECK_OPTIONAL)
    CHECK_REQUIRED(device_open)
    CHECK_REQUIRED(device_close)
    CHECK_REQUIRED(device_info)
    CHECK_REQUIRED(reserve_plan)
    CHECK_REQUIRED(reserve)
    CHECK_REQUIRED(buffer_new)
    CHECK_REQUIRED(buffer_free)
    CHECK_REQUIRED(buffer_write)
    CHECK_REQUIRED(buffer_read)
    CHECK_REQUIRED(weight_plan)
    CHECK_REQUIRED(weight_prepare)
    CHECK_REQUIRED(weight_free)
    CHECK_REQUIRED(kv_format_supported)
    CHECK_REQUIRED(event_record)
    CHECK_REQUIRED(event_wait)
    CHECK_REQUIRED(event_done)
#undef CHECK_REQUIRED
#undef CHECK_OPTIONAL
    return 0;
}
