/* backend_trace/trace_device.c - see backend_trace.h.
 *
 * Owns:       the listing; the names of prepared weights.
 * Invariant:  events are done when they are recorded: nothing ever runs.
 * Threads:    one. */
#include "backend_trace/backend_trace.h"

#include "base/mem.h"

#include <stdio.h>
#include <string.h>

/* process lifetime; owned by who opened it */
struct device {
    struct device_head head;
    struct buf text;
    uint64_t events;
};

struct weight {
    struct weight_head head;
};

struct buf *trace_text(struct device *d)
{
    return &d->text;
}

static int device_open(const struct device_config *cfg, struct device **out, struct err *err)
{
    (void)cfg;
    *out = mem_try_zero(1, sizeof **out);
    if (!*out)
        return err_nomem(err, "trace device", sizeof **out);
    (*out)->head.backend = &backend_trace;
    (*out)->text.max = 64 << 20;
    return 0;
}

static void device_close(struct device *d)
{
    if (!d)
        return;
    buf_free(&d->text);
    mem_free(d);
}

static void device_info(const struct device *d, struct device_info *out)
{
    (void)d;
    *out = (struct device_info){.backend = "trace", .level = "none", .text = "lists ops, computes nothing", .n_threads = 1,
                                .memory_total_bytes = UINT64_C(1) << 46, .memory_free_bytes = UINT64_C(1) << 46, .levels_equal = true};
}

static uint64_t reserve_plan(const struct device *d, const struct device_reserve *r)
{
    (void)d, (void)r;
    return 0;
}

static int reserve(struct device *d, const struct device_reserve *r, struct err *err)
{
    (void)d, (void)r, (void)err;
    return 0;
}

static int buffer_new(struct device *d, size_t size_bytes, void **out, struct err *err)
{
    (void)d;
    *out = mem_map(size_bytes);
    return *out ? 0 : err_nomem(err, "trace buffer", size_bytes);
}

static void buffer_free(struct device *d, void *p, size_t size_bytes)
{
    (void)d;
    mem_unmap(p, size_bytes);
}

static int buffer_write(struct device *d, void *dst, const void *src, size_t size_bytes, struct err *err)
{
    (void)d, (void)dst, (void)src, (void)size_bytes, (void)err;
    return 0;
}

static int buffer_read(struct device *d, void *dst, const void *src, size_t size_bytes, struct err *err)
{
    (void)d, (void)src, (void)err;
    if (size_bytes)
        memset(dst, 0, size_bytes);
    return 0;
}

static int weight_plan(struct device *d, const struct weight_src *src, unsigned use, uint64_t *size_bytes, struct err *err)
{
    (void)d, (void)src, (void)use, (void)err;
    *size_bytes = 0;
    return 0;
}

static void weight_free(struct device *d, struct weight *w)
{
    (void)d;
    if (!w)
        return;
    mem_free((void *)(uintptr_t)w->head.name);
    mem_free(w);
}

static int weight_prepare(struct device *d, const struct weight_src *src, unsigned use, struct weight **out, struct err *err)
{
    (void)use;
    struct weight *w = mem_try_zero(1, sizeof *w);
    char *name = mem_try_strndup(src->name, strlen(src->name));
    *out = w;
    if (w && name) {
        w->head = (struct weight_head){src->type, src->rows, src->cols, name, src->n_experts};
        return 0;
    }
    mem_free(name);
    weight_free(d, w);
    *out = NULL;
    return err_nomem(err, src->name, sizeof *w);
}

static bool kv_format_supported(const struct device *d, const struct kv_layer *l)
{
    (void)d;
    return kv_layer_head_bytes(l) != 0;
}

static int event_record(struct device *d, uint64_t *out)
{
    *out = ++d->events;
    return 0;
}

static int event_wait(struct device *d, uint64_t event, struct err *err)
{
    if (event > d->events)
        return err_set(err, ERR_INTERNAL, "event %llu was never recorded", (unsigned long long)event);
    return 0;
}

static bool event_done(struct device *d, uint64_t event)
{
    return event <= d->events;
}

/* ---- the listing ---- */

static void put_tensor(struct device *d, const char *name, const struct tensor *t)
{
    buf_printf(&d->text, " %s[%u][%u]", name, t->rows, t->cols);
}

static void put_weight(struct device *d, const char *name, const struct weight *w)
{
    buf_printf(&d->text, " %s=%s(%s ", name, w->head.name, dtype_name(w->head.type));
    if (w->head.n_experts)
        buf_printf(&d->text, "[%u]", w->head.n_experts);
    buf_printf(&d->text, "[%u][%u])", w->head.rows, w->head.cols);
}

static void put_value(struct device *d, const char *name, float value, float plain)
{
    if (value != plain)
        buf_printf(&d->text, " %s=%.9g", name, (double)value);
}

static void put_layer(struct device *d, const struct kv_layer *l)
{
    if (l->latent) {
        buf_printf(&d->text, " kv[%u heads, K %s %u, V its first %u]", l->n_kv_heads, kv_format_name(l->k_format), l->d_k, l->d_v);
        return;
    }
    buf_printf(&d->text, " kv[%u heads, K %s %u, V %s %u]", l->n_kv_heads, kv_format_name(l->k_format), l->d_k, kv_format_name(l->v_format),
               l->d_v);
}

static int end_line(struct device *d)
{
    buf_char(&d->text, '\n');
    return d->text.failed;
}

static int op_copy_in_list(struct device *d, const struct op_copy_in *op)
{
    (void)d, (void)op;
    return 0;
}

static int op_copy_out_list(struct device *d, const struct op_copy_out *op)
{
    (void)d, (void)op;
    return 0;
}

static int op_copy_list(struct device *d, const struct op_copy *op)
{
    buf_printf(&d->text, "copy bytes=%zu", op->size_bytes);
    return end_line(d);
}

static int op_embed_list(struct device *d, const struct op_embed *op)
{
    buf_z(&d->text, "embed");
    put_weight(d, "w", op->w);
    put_tensor(d, "y", &op->y);
    put_value(d, "scale", op->scale, 1);
    return end_line(d);
}

static int op_linear_list(struct device *d, const struct op_linear *op)
{
    buf_z(&d->text, "linear");
    put_weight(d, "w", op->w);
    put_tensor(d, "x", &op->x);
    put_tensor(d, "y", &op->y);
    put_value(d, "alpha", op->alpha, 1);
    buf_z(&d->text, op->bias ? " bias" : "");
    buf_z(&d->text, op->add ? " add" : "");
    return end_line(d);
}

static int op_linear_heads_list(struct device *d, const struct op_linear_heads *op)
{
    buf_z(&d->text, "linear_heads");
    put_weight(d, "w", op->w);
    put_tensor(d, "x", &op->x);
    put_tensor(d, "y", &op->y);
    buf_printf(&d->text, " heads=%u", op->n_heads);
    if (op->tail)
        buf_printf(&d->text, " tail=%u", op->tail);
    return end_line(d);
}

static int op_norm_list(struct device *d, const struct op_norm *op)
{
    buf_z(&d->text, "norm");
    put_tensor(d, "x", &op->x);
    put_tensor(d, "y", &op->y);
    buf_printf(&d->text, " dim=%u eps=%.9g", op->dim, (double)op->eps);
    buf_z(&d->text, op->own ? " own" : "");
    buf_z(&d->text, op->centred ? " centred" : "");
    if (op->add) {
        buf_z(&d->text, " add");
        put_value(d, "scale", op->scale, 1);
    }
    return end_line(d);
}

static int op_rope_table_list(struct device *d, const struct op_rope_table *op)
{
    buf_z(&d->text, "rope_table");
    put_tensor(d, "table", &op->table);
    put_value(d, "mscale", op->mscale, 1);
    return end_line(d);
}

static int op_rope_list(struct device *d, const struct op_rope *op)
{
    buf_z(&d->text, "rope");
    put_tensor(d, "x", &op->x);
    put_tensor(d, "table", &op->table);
    buf_printf(&d->text, " heads=%u dim=%u %s", op->n_heads, op->head_dim, op->pairing == ROPE_HALVES ? "halves" : "adjacent");
    if (op->first)
        buf_printf(&d->text, " first=%u", op->first);
    return end_line(d);
}

static int op_kv_write_list(struct device *d, const struct op_kv_write *op)
{
    buf_z(&d->text, "kv_write");
    put_tensor(d, "k", &op->k);
    if (!op->layer->latent)
        put_tensor(d, "v", &op->v);
    put_layer(d, op->layer);
    buf_printf(&d->text, " spans=%u", op->span_count);
    return end_line(d);
}

static int op_kv_convert_list(struct device *d, const struct op_kv_convert *op)
{
    buf_z(&d->text, "kv_convert");
    put_layer(d, op->from);
    put_layer(d, op->to);
    buf_printf(&d->text, " pages=%u", op->page_count);
    return end_line(d);
}

static int op_attention_list(struct device *d, const struct op_attention *op)
{
    buf_z(&d->text, "attention");
    put_tensor(d, "q", &op->q);
    put_tensor(d, "y", &op->y);
    put_layer(d, op->layer);
    buf_printf(&d->text, " heads=%u spans=%u scale=%.9g", op->n_heads, op->span_count, (double)op->scale);
    put_value(d, "softcap", op->softcap, 0);
    if (op->window)
        buf_printf(&d->text, " window=%u", op->window);
    buf_z(&d->text, op->sinks ? " sinks" : "");
    return end_line(d);
}

static int op_gated_list(struct device *d, const struct op_gated *op)
{
    static const char *const names[ACT_COUNT] = {"silu", "gelu_tanh", "gelu_erf", "sigmoid", "clamped", "relu"};
    buf_printf(&d->text, "gated %s", names[op->act]);
    put_tensor(d, "y", &op->y);
    return end_line(d);
}

static int op_xielu_list(struct device *d, const struct op_xielu *op)
{
    buf_z(&d->text, "xielu");
    put_tensor(d, "x", &op->x);
    buf_printf(&d->text, " alphas=%.9g,%.9g beta=%.9g eps=%.9g", (double)op->alpha_p, (double)op->alpha_n, (double)op->beta, (double)op->eps);
    return end_line(d);
}

static int op_add_list(struct device *d, const struct op_add *op)
{
    buf_z(&d->text, "add");
    put_tensor(d, "y", &op->y);
    put_value(d, "x_scale", op->x_scale, 1);
    put_value(d, "y_scale", op->y_scale, 1);
    return end_line(d);
}

static int op_scale_list(struct device *d, const struct op_scale *op)
{
    buf_z(&d->text, "scale");
    put_tensor(d, "x", &op->x);
    buf_printf(&d->text, " scale=%.9g", (double)op->scale);
    buf_z(&d->text, op->w ? " by columns" : "");
    return end_line(d);
}

static int op_blend_list(struct device *d, const struct op_blend *op)
{
    buf_z(&d->text, "blend");
    put_tensor(d, "y", &op->y[0]);
    buf_printf(&d->text, " %u of %u", op->m, op->n);
    put_value(d, "shift", op->shift, 0);
    return end_line(d);
}

static int op_match_list(struct device *d, const struct op_match *op)
{
    buf_z(&d->text, "match");
    put_tensor(d, "y", &op->y);
    buf_printf(&d->text, " least=%.9g", (double)op->least);
    return end_line(d);
}

static int op_sparsify_list(struct device *d, const struct op_sparsify *op)
{
    buf_z(&d->text, "sparsify");
    put_tensor(d, "x", &op->x);
    buf_printf(&d->text, " factor=%.9g", (double)op->factor);
    return end_line(d);
}

static int op_softcap_list(struct device *d, const struct op_softcap *op)
{
    buf_z(&d->text, "softcap");
    put_tensor(d, "x", &op->x);
    buf_printf(&d->text, " cap=%.9g", (double)op->cap);
    return end_line(d);
}

static int op_gather_list(struct device *d, const struct op_gather *op)
{
    buf_z(&d->text, "gather");
    put_tensor(d, "x", &op->x);
    put_tensor(d, "y", &op->y);
    return end_line(d);
}

static void put_state(struct device *d, const struct state_layer *l)
{
    const struct state_shape *s = &l->shape;
    buf_printf(&d->text, " state[%u heads, %u channels, %u taps, block of %u", s->heads, s->channels, s->taps, s->anchor);
    if (s->values)
        buf_printf(&d->text, ", %u values of %ux%u", s->values, s->d_k, s->d_v);
    buf_char(&d->text, ']');
}

static int op_short_conv_list(struct device *d, const struct op_short_conv *op)
{
    buf_z(&d->text, "short_conv");
    put_tensor(d, "x", &op->x);
    put_tensor(d, "y", &op->y);
    put_state(d, op->layer);
    buf_printf(&d->text, " spans=%u", op->span_count);
    buf_z(&d->text, op->bias ? " bias" : "");
    return end_line(d);
}

static int op_mamba_list(struct device *d, const struct op_mamba *op)
{
    buf_z(&d->text, "mamba");
    put_tensor(d, "xbc", &op->xbc);
    put_tensor(d, "y", &op->y);
    put_state(d, op->layer);
    buf_printf(&d->text, " spans=%u", op->span_count);
    put_value(d, "dt_least", op->dt_least, 0);
    buf_z(&d->text, op->conv_bias ? " bias" : "");
    return end_line(d);
}

static int op_delta_net_list(struct device *d, const struct op_delta_net *op)
{
    buf_z(&d->text, "delta_net");
    put_tensor(d, "qkv", &op->qkv);
    put_tensor(d, "y", &op->y);
    put_state(d, op->layer);
    buf_printf(&d->text, " spans=%u eps=%.9g", op->span_count, (double)op->eps);
    buf_z(&d->text, op->tiled ? " tiled" : "");
    return end_line(d);
}

static int op_route_list(struct device *d, const struct op_route *op)
{
    static const char *const names[ROUTE_SCORE_COUNT] = {"softmax", "softmax_top", "sigmoid"};
    buf_printf(&d->text, "route %s", names[op->score]);
    put_tensor(d, "logits", &op->logits);
    buf_printf(&d->text, " top=%u", op->top);
    if (op->groups > 1)
        buf_printf(&d->text, " groups=%u of %u by %u", op->group_top, op->groups, op->group_best);
    buf_z(&d->text, op->bias ? " bias" : "");
    buf_z(&d->text, op->normalise ? " normalise" : "");
    put_value(d, "scale", op->scale, 1);
    buf_z(&d->text, op->expert_scale ? " expert_scale" : "");
    buf_z(&d->text, op->replay ? " replay" : "");
    return end_line(d);
}

static int op_expert_linear_list(struct device *d, const struct op_expert_linear *op)
{
    buf_z(&d->text, "expert_linear");
    put_weight(d, "w", op->w);
    put_tensor(d, "x", &op->x);
    put_tensor(d, "y", &op->y);
    buf_z(&d->text, op->bias ? " bias" : "");
    return end_line(d);
}

static int op_expert_sum_list(struct device *d, const struct op_expert_sum *op)
{
    buf_z(&d->text, "expert_sum");
    put_tensor(d, "x", &op->x);
    put_tensor(d, "y", &op->y);
    buf_z(&d->text, op->add ? " add" : "");
    return end_line(d);
}

static int op_sample_rows_list(struct device *d, const struct op_sample_rows *op)
{
    buf_z(&d->text, "sample_rows");
    put_tensor(d, "logits", &op->logits);
    buf_printf(&d->text, " vocab=%u", op->vocab);
    return end_line(d);
}

const struct backend backend_trace = {
    .name = "trace",
    .device_open = device_open,
    .device_close = device_close,
    .device_info = device_info,
    .reserve_plan = reserve_plan,
    .reserve = reserve,
    .buffer_new = buffer_new,
    .buffer_free = buffer_free,
    .buffer_write = buffer_write,
    .buffer_read = buffer_read,
    .weight_plan = weight_plan,
    .weight_prepare = weight_prepare,
    .weight_free = weight_free,
    .kv_format_supported = kv_format_supported,
    .event_record = event_record,
    .event_wait = event_wait,
    .event_done = event_done,
#define LIST_FIELD(name) .name = op_##name##_list,
#define NO_FIELD(name)
    BACKEND_OPS(LIST_FIELD, NO_FIELD)
#undef LIST_FIELD
#undef NO_FIELD
};
