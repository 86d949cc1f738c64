/* backend_cuda/cuda_attention.c - pages, attention and recurrent layers: parameters into launches.
 *
 * The host does not look at spans: which tiles there are is made out on the device, once for all layers that share spans, group and window. */
#include "backend_cuda/cuda_int.h"

#include "backend_cuda/kernels_broad.h"
#include "tensor/kv_codec.h"

#include <string.h>

enum { ALONE = 115 << 10 /* shared memory of a block beside which there is room for a linear's, but for none of its own kind */ };
enum { WRITE_WARPS = 4, ROW_VECTORS = 16, TALL_VECTORS = 64, CONV_THREADS = 128, SPAN_LANES = 64, ROW_LANES = 64 };

static struct cuda_plane plane_of(enum kv_format f, const struct kv_shape *s)
{
    return (struct cuda_plane){f, s->code, s->turn, s->run, s->bits, s->group, s->groups, s->scales_at, s->minima_at};
}

/* Planes of a layer; V of a latent one is read where K lies, by K's shape. */
static void planes_of(const struct kv_layer *l, struct cuda_plane *k, struct cuda_plane *v)
{
    struct kv_shape sk = kv_shape_of(l->k_format, l->d_k), sv = kv_shape_of(l->v_format, l->d_v);
    *k = plane_of(l->k_format, &sk);
    *v = l->latent ? *k : plane_of(l->v_format, &sv);
}

static struct cuda_p_kv_write write_params(struct device *d, const struct kv_layer *l, const struct tensor *k, const struct tensor *v)
{
    struct cuda_p_kv_write p = {.k = k->data, .v = v->data, .pages = l->pages, .offset = l->offset, .rows = k->rows, .heads = l->n_kv_heads,
                                .d_k = l->d_k, .d_v = l->d_v, .k_stride = k->stride, .v_stride = v->stride, .head_bytes = l->head_bytes,
                                .k_bytes = kv_format_k_bytes(l->k_format, l->d_k), .latent = l->latent, .failed = d->failed};
    planes_of(l, &p.pk, &p.pv);
    return p;
}

static bool no_codes(enum kv_format f)
{
    return f == KV_F32 || f == KV_F16 || f == KV_BF16;
}

int cuda_kv_write_launch(struct device *d, const struct cuda_p_kv_write *p)
{
    uint32_t heads = p->q_heads + (p->latent ? 1 : 2) * p->heads, most = p->d_k > p->d_v ? p->d_k : p->d_v;
    if (p->rows >= CUDA_KV_MANY_ROWS && most <= CUDA_KV_MANY_HEAD && no_codes(p->pk.format) && no_codes(p->pv.format))
        return cuda_launch(d, cuda_kernels_pages[CUDA_K_KV_WRITE_MANY], (p->rows + CUDA_KV_MANY_ROWS - 1) / CUDA_KV_MANY_ROWS, heads, 1,
                           32 * CUDA_KV_MANY_WARPS, CUDA_KV_MANY_ROWS * (most + 1) * sizeof(float), p, sizeof *p);
    uint32_t vectors = p->rows * (p->q_heads + 2 * p->heads);
    return cuda_launch(d, cuda_kernels_pages[CUDA_K_KV_WRITE], (vectors + WRITE_WARPS - 1) / WRITE_WARPS, 1, 1, 32 * WRITE_WARPS, 0, p,
                       sizeof *p);
}

int cuda_op_kv_write(struct device *d, const struct op_kv_write *op)
{
    struct cuda_p_kv_write p = write_params(d, op->layer, &op->k, &op->v);
    p.spans = op->spans, p.span_count = op->span_count, p.tables = op->tables;
    return cuda_kv_write_launch(d, &p);
}

static bool halves_only(const struct kv_layer *l)
{
    return l->k_format == KV_F16 && l->v_format == KV_F16 && !l->latent;
}

/* Spans of one row each, over F16 pages that a kernel of their own reads. */
static bool row_shaped(const struct device *d, const struct kv_layer *l, uint32_t rows, uint32_t spans, uint32_t heads)
{
    uint32_t most = l->d_k > l->d_v ? l->d_k : l->d_v;
    return rows == spans && halves_only(l) && most <= CUDA_ATTEND_ROW_HEAD && l->d_k % 16 == 0 &&
           l->d_v % 16 == 0 && heads / l->n_kv_heads <= 16 && cuda_attend_row_smem(l->d_k, l->d_v) <= d->smem_max;
}

/* The same with wide heads. */
static bool broad_shaped(const struct device *d, const struct kv_layer *l, uint32_t rows, uint32_t spans, uint32_t heads)
{
    return d->wgmma && rows == spans && halves_only(l) && l->d_k == l->d_v && cuda_kernel_attend_broad(l->d_k) && heads / l->n_kv_heads <= 16;
}

/* Does the norm that waits make V of this one row? */
static bool norm_before(const struct device *d, const struct op_attn_prepare *op)
{
    const struct cuda_p_norm *n = &d->head_norm;
    return d->head_norm_set && op->span_count == 1 && n->y == op->v.data && n->dim == op->layer->d_v && n->groups == op->layer->n_kv_heads;
}

int cuda_op_attn_prepare(struct device *d, const struct op_attn_prepare *op)
{
    struct cuda_p_kv_write p = write_params(d, op->layer, &op->k, &op->v);
    p.spans = op->spans, p.span_count = op->span_count, p.tables = op->tables;
    p.q = op->q.data, p.q_heads = op->n_heads, p.q_stride = op->q.stride;
    p.q_norm = op->q_norm, p.k_norm = op->k_norm, p.eps = op->eps;
    if (op->table.rows)
        p.rope = op->table.data, p.rope_stride = op->table.stride, p.rope_pairs = op->table.cols / 2, p.adjacent = op->pairing == ROPE_ADJACENT;
    bool broad = broad_shaped(d, op->layer, op->k.rows, op->span_count, op->n_heads);
    if (!broad && !row_shaped(d, op->layer, op->k.rows, op->span_count, op->n_heads))
        return cuda_kv_write_launch(d, &p);
    int rc = broad && norm_before(d, op) ? 0 : cuda_held_emit(d);
    d->held = p; /* until the next op shows whether it is the attention of these rows */
    d->held_set = rc == 0;
    return rc;
}

static struct cuda_kv_side side_of(const struct kv_layer *l)
{
    struct cuda_kv_side s = {.pages = l->pages, .offset = l->offset, .head_bytes = l->head_bytes, .k_bytes = kv_format_k_bytes(l->k_format, l->d_k)};
    planes_of(l, &s.k, &s.v);
    return s;
}

int cuda_op_kv_convert(struct device *d, const struct op_kv_convert *op)
{
    _Static_assert((int)CUDA_CONVERT_PAGES == (int)KV_CONVERT_PAGES, "pages of a conversion");
    struct cuda_p_kv_convert p = {.from = side_of(op->from), .to = side_of(op->to), .heads = op->from->n_kv_heads, .d_k = op->from->d_k,
                                  .d_v = op->from->d_v, .latent = op->from->latent, .page_count = op->page_count,
                                  .positions_last = op->positions_last, .failed = d->failed};
    memcpy(p.from_ids, op->from_pages, op->page_count * sizeof *p.from_ids);
    memcpy(p.to_ids, op->to_pages, op->page_count * sizeof *p.to_ids);
    uint32_t vectors = op->page_count * KV_PAGE * op->from->n_kv_heads * (op->from->latent ? 1 : 2);
    return cuda_launch(d, cuda_kernels_pages[CUDA_K_KV_CONVERT], (vectors + WRITE_WARPS - 1) / WRITE_WARPS, 1, 1, 32 * WRITE_WARPS, 0, &p, sizeof p);
}

/* The work list that an attention can use, if there is one already. */
static const struct cuda_tile_set *tiles_there(const struct device *d, const struct op_attention *op, uint32_t vectors)
{
    uint32_t group = op->n_heads / op->layer->n_kv_heads;
    for (uint32_t i = 0; i < CUDA_TILE_SETS; i++) {
        const struct cuda_tile_set *s = &d->sets[i];
        if (s->spans == op->spans && s->count == op->span_count && s->group == group && s->window == op->window && s->vectors == vectors &&
            s->kv_heads == op->layer->n_kv_heads)
            return s;
    }
    return NULL;
}

static int tiles_get(struct device *d, const struct op_attention *op, uint32_t vectors, uint32_t items_max, const struct cuda_tiles **out)
{
    uint32_t group = op->n_heads / op->layer->n_kv_heads;
    const struct cuda_tile_set *there = tiles_there(d, op, vectors);
    if (there) {
        *out = there->tiles;
        return 0;
    }
    struct cuda_tile_set *s = &d->sets[d->set_at++ % CUDA_TILE_SETS];
    *s = (struct cuda_tile_set){op->spans, op->span_count, group, op->window, vectors, op->layer->n_kv_heads, s->tiles};
    struct cuda_p_tiles p = {.spans = op->spans, .tiles = s->tiles, .span_count = op->span_count, .group = group,
                             .tile_vectors = vectors, .window = op->window, .kv_heads = op->layer->n_kv_heads, .items_max = items_max,
                             .tiles_max = d->tiles_max, .workers = d->workers, .failed = d->failed};
    *out = s->tiles;
    return cuda_launch(d, cuda_kernels_attention[CUDA_K_TILES], 1, 1, 1, 1024, 0, &p, sizeof p);
}

/* Wide heads: with the norm of V that waits, if there is one. */
static int broad_attention(struct device *d, const struct cuda_p_attend_row *row, const struct op_attention *op, uint32_t items_max)
{
    struct cuda_p_attend_broad p = {.row = *row};
    const struct cuda_p_norm *n = &d->head_norm;
    uint32_t head = op->layer->d_k, most = cuda_attend_broad_blocks(head) * d->workers / CUDA_ATTEND_BROAD_CLUSTER * CUDA_ATTEND_BROAD_CLUSTER;
    if (row->prepare) {
        p.row.w = d->held, d->held_set = false;
        p.v_from = d->held.v, p.v_from_stride = d->held.v_stride;
    }
    if (row->prepare && d->head_norm_set) {
        p.v_from = n->x, p.v_from_stride = n->x_stride, p.v_norm = n->w, p.v_eps = n->eps;
        d->head_norm_set = false;
    }
    int rc = tiles_get(d, op, ROW_VECTORS, items_max, &p.row.a.tiles);
    return rc ? rc : cuda_launch(d, cuda_kernel_attend_broad(head), most, 1, 1, head, cuda_attend_broad_smem(head), &p, sizeof p);
}

/* So many that a warp for each KV block keeps the multiprocessors busy, and a kernel of their own. */
static bool many_rows(const struct device *d, const struct op_attention *op)
{
    const struct kv_layer *l = op->layer;
    bool plain = op->q.rows == op->span_count && !l->latent && l->k_format == l->v_format && l->d_k == l->d_v && op->softcap == 0;
    if (!plain || op->n_heads / l->n_kv_heads > CUDA_ATTEND_STREAM_VECTORS || 2 * op->span_count * l->n_kv_heads < d->workers)
        return false;
    struct cuda_stream s = cuda_kernel_attend_stream(l->d_k, l->k_format);
    return s.kernel && s.smem <= d->smem_max;
}

/* With the attn_prepare that waits, if it is of the same rows and pages. */
static int row_attention(struct device *d, const struct cuda_p_attention *a, const struct op_attention *op, uint32_t items_max)
{
    const struct cuda_p_kv_write *w = &d->held;
    bool prepare = d->held_set && w->q == a->q && w->pages == a->pages && w->offset == a->offset && w->spans == a->spans && w->tables == a->tables &&
                   w->span_count == op->span_count;
    bool early = prepare && tiles_there(d, op, ROW_VECTORS) && !d->pending;
    struct cuda_p_attend_row p = {.a = *a, .prepare = prepare, .early = early, .arrived = d->arrived};
    const struct kv_layer *l = op->layer;
    if (broad_shaped(d, l, op->q.rows, op->span_count, op->n_heads))
        return broad_attention(d, &p, op, items_max);
    if (prepare)
        p.w = *w, d->held_set = false;
    int rc = tiles_get(d, op, ROW_VECTORS, items_max, &p.a.tiles);
    if (rc == 0 && many_rows(d, op)) {
        struct cuda_stream s = cuda_kernel_attend_stream(l->d_k, l->k_format);
        p.records_max = (uint32_t)(d->partial_bytes / ((16 + op->n_heads / l->n_kv_heads * l->d_v) * sizeof(float)));
        return cuda_launch(d, s.kernel, d->workers, 1, 1, s.threads, s.smem, &p, sizeof p);
    }
    uint32_t smem = cuda_attend_row_smem(l->d_k, l->d_v);
    if (d->wgmma && op->span_count * l->n_kv_heads <= d->workers && smem < ALONE)
        smem = ALONE;
    return rc ? rc : cuda_launch(d, cuda_kernel_attend_row, d->workers, 1, 1, CUDA_ATTEND_ROW_THREADS, smem, &p, sizeof p);
}

/* Tiles of 128 vectors, or of 64 where pages are of another format. */
static int tall_attention(struct device *d, struct cuda_p_attention *p, const struct op_attention *op)
{
    const struct kv_layer *l = op->layer;
    bool halves = halves_only(l) && op->softcap == 0, wide = d->wgmma && halves && l->d_k == l->d_v && cuda_kernel_attend_wide(l->d_k);
    const void *kernel = wide ? cuda_kernel_attend_wide(l->d_k) : halves ? cuda_kernel_attend_tall(l->d_k, l->d_v) : NULL;
    uint32_t smem = !kernel ? 0 : wide ? cuda_attend_wide_smem(l->d_k) : cuda_attend_tall_smem(l->d_k);
    if (smem > d->smem_max)
        kernel = NULL;
    p->tile_vectors = kernel ? CUDA_ATTEND_TALL_VECTORS : TALL_VECTORS;
    int rc = tiles_get(d, op, p->tile_vectors, 0, &p->tiles);
    if (rc)
        return rc;
    if (kernel)
        return cuda_launch(d, kernel, d->workers, 1, 1, wide ? CUDA_ATTEND_WIDE_THREADS : CUDA_ATTEND_TALL_THREADS, smem, p, sizeof *p);
    return cuda_launch(d, cuda_kernels_attention[CUDA_K_ATTENTION_TALL], d->workers, 1, 1, 512, cuda_attention_smem(l->d_k, l->d_v, true), p, sizeof *p);
}

int cuda_op_attention(struct device *d, const struct op_attention *op)
{
    const struct kv_layer *l = op->layer;
    uint32_t group = op->n_heads / l->n_kv_heads, widest = l->d_k > l->d_v ? l->d_k : l->d_v;
    struct cuda_p_attention p = {.q = op->q.data, .y = op->y.data, .pages = l->pages, .spans = op->spans, .tables = op->tables,
                                 .partial = d->partial, .offset = l->offset, .heads = op->n_heads, .kv_heads = l->n_kv_heads, .d_k = l->d_k,
                                 .d_v = l->d_v, .q_stride = op->q.stride, .y_stride = op->y.stride, .head_bytes = l->head_bytes,
                                 .k_bytes = kv_format_k_bytes(l->k_format, l->d_k), .window = op->window, .scale = op->scale,
                                 .softcap = op->softcap, .tile_vectors = ROW_VECTORS, .rows = op->q.rows, .latent = l->latent, .sinks = op->sinks};
    planes_of(l, &p.pk, &p.pv);
    uint32_t items_max = (uint32_t)(d->partial_bytes / (16 * (l->d_v + CUDA_ATTEND_BROAD_PARTIAL) * sizeof(float)));
    if (broad_shaped(d, l, op->q.rows, op->span_count, op->n_heads) || row_shaped(d, l, op->q.rows, op->span_count, op->n_heads) || many_rows(d, op))
        return row_attention(d, &p, op, items_max);
    if (widest <= 256 && op->q.rows / op->span_count * group >= TALL_VECTORS && cuda_attention_smem(l->d_k, l->d_v, true) <= d->smem_max)
        return tall_attention(d, &p, op);
    int rc = tiles_get(d, op, ROW_VECTORS, items_max, &p.tiles);
    uint32_t deep = cuda_attention_deep_smem(l->d_k, l->d_v);
    if (widest > CUDA_ATTEND_DEEP_HEAD && deep <= d->smem_max)
        rc = rc ? rc : cuda_launch(d, cuda_kernels_attention[CUDA_K_ATTENTION_DEEP], d->workers, 1, 1, CUDA_ATTEND_DEEP_THREADS, deep, &p, sizeof p);
    else
        rc = rc ? rc : cuda_launch(d, cuda_kernels_attention[CUDA_K_ATTENTION], 2 * d->workers, 1, 1, 128, cuda_attention_smem(l->d_k, l->d_v, false), &p, sizeof p);
    uint64_t vectors = (uint64_t)op->q.rows * op->n_heads + 16ull * op->span_count * l->n_kv_heads, most = 16ull * d->workers;
    return rc ? rc : cuda_launch(d, cuda_kernels_attention[CUDA_K_FOLD], (uint32_t)(vectors < most ? vectors : most), 1, 1, 128, 0, &p, sizeof p);
}

/* ---- recurrent layers ---- */

static int state_parts(struct cuda_p_state *p, const struct state_layer *l)
{
    p->shape = l->shape;
    state_layout(&l->shape, &p->at);
    if (l->shape.heads > sizeof p->parts / sizeof *p->parts)
        return ERR_UNSUPPORTED;
    for (uint32_t h = 0; h < l->shape.heads; h++)
        p->parts[h] = l->parts[h];
    return 0;
}

static uint32_t least(uint64_t a, uint64_t b)
{
    return (uint32_t)(a < b ? a : b);
}

int cuda_op_short_conv(struct device *d, const struct op_short_conv *op)
{
    struct cuda_p_state p = {.x = op->x.data, .y = op->y.data, .w = op->w, .bias = op->bias, .spans = op->spans, .tables = op->tables,
                             .span_count = op->span_count, .x_stride = op->x.stride, .y_stride = op->y.stride, .rows = op->x.rows,
                             .failed = d->failed};
    int rc = state_parts(&p, op->layer);
    uint32_t x = (p.shape.channels + CONV_THREADS - 1) / CONV_THREADS, y = least(op->span_count, SPAN_LANES);
    for (int k = CUDA_K_CONV_PRODUCT; k <= CUDA_K_CONV && rc == 0; k++)
        rc = cuda_launch(d, cuda_kernels_state[k], x, y, k == CUDA_K_CONV ? least(op->x.rows, ROW_LANES) : 1, CONV_THREADS, 0, &p, sizeof p);
    return rc;
}

/* delta_net and mamba: two passes over the columns, then the rows of each value head. */
static int net_launch(struct device *d, struct cuda_p_state *p, const struct state_layer *l)
{
    int rc = state_parts(p, l);
    const struct state_shape *s = &p->shape;
    uint32_t values = s->heads * s->values, x = (s->heads * s->channels + CONV_THREADS - 1) / CONV_THREADS;
    uint32_t y = least(p->span_count, SPAN_LANES), wide = s->d_k > s->d_v ? s->d_k : s->d_v, threads = (wide + 31) / 32 * 32;
    p->work = d->work;
    p->failed = d->failed;
    p->work_floats = s->d_k * s->d_v + s->d_k * s->anchor + s->anchor * s->d_v;
    uint64_t room = d->work_bytes / sizeof(float) / p->work_floats / values;
    if (rc || room == 0)
        return rc ? rc : ERR_INTERNAL;
    rc = cuda_launch(d, cuda_kernels_state[CUDA_K_CONV_PRODUCT], x, y, 1, CONV_THREADS, 0, p, sizeof *p);
    if (rc == 0)
        rc = cuda_launch(d, cuda_kernels_state[CUDA_K_CONV_TAIL], x, y, 1, CONV_THREADS, 0, p, sizeof *p);
    if (rc == 0)
        rc = cuda_launch(d, cuda_kernels_state[CUDA_K_DELTA_CONV], 2 * s->heads + values, y, 1, threads, 0, p, sizeof *p);
    return rc ? rc : cuda_launch(d, cuda_kernels_state[CUDA_K_DELTA], values, least(p->span_count, room), 1, threads, 0, p, sizeof *p);
}

int cuda_op_delta_net(struct device *d, const struct op_delta_net *op)
{
    uint32_t keys = op->layer->shape.heads * op->layer->shape.d_k;
    struct cuda_p_state p = {.x = op->qkv.data, .y = op->y.data, .a = op->a.data, .b = op->b.data, .w = op->conv, .rate = op->rate,
                             .dt_bias = op->dt_bias, .spans = op->spans, .tables = op->tables, .span_count = op->span_count,
                             .x_stride = op->qkv.stride, .y_stride = op->y.stride, .a_stride = op->a.stride, .b_stride = op->b.stride,
                             .tiled = op->tiled, .rows = op->qkv.rows, .eps = op->eps, .k_at = keys, .v_at = 2 * keys};
    return net_launch(d, &p, op->layer);
}

int cuda_op_mamba(struct device *d, const struct op_mamba *op)
{
    const struct state_shape *s = &op->layer->shape;
    uint32_t values = s->heads * s->values * s->d_v;
    struct cuda_p_state p = {.x = op->xbc.data, .y = op->y.data, .a = op->dt.data, .b = op->times.data, .w = op->conv, .bias = op->conv_bias,
                             .rate = op->rate, .dt_bias = op->dt_bias, .skip = op->skip, .dt_least = op->dt_least, .spans = op->spans,
                             .tables = op->tables, .span_count = op->span_count, .x_stride = op->xbc.stride, .y_stride = op->y.stride,
                             .a_stride = op->dt.stride, .b_stride = op->times.stride, .rows = op->xbc.rows, .k_at = values,
                             .q_at = values + s->heads * s->d_k};
    return net_launch(d, &p, op->layer);
}
