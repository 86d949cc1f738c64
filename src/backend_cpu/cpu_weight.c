/* backend_cpu/cpu_weight.c - prepared weights: their plan, their life, a row back.  cpu_pack.c fills the panels.
 *
 * Invariants: 1. cpu_weight_row gives the bits of weight_src_row.
 *             2. Types without a layout are dequantised into F16 when that is exact for the type, else into F32; a notice says so. */
#include "backend_cpu/cpu_device.h"
#include "backend_cpu/cpu_weight.h"
#include "backend_cpu/unpack.h"

#include "base/log.h"
#include "base/mem.h"

#include <string.h>

/* how a source will be held */
struct layout_plan {
    struct cpu_panel panel;
    pack_unit_fn unit; /* NULL: float */
    bool converted;    /* through weight_src_row */
    uint32_t panels, panels_all;
    size_t panel_bytes;
    uint64_t bytes;
};

static const struct {
    const char *name;
    uint16_t unit_head, block_head, body, unit;
} layouts[CPU_LAYOUT_COUNT] = {
#define LAYOUT_ENTRY(name, unit_head, block_head, body, unit) {#name, unit_head, block_head, body, unit},
    CPU_LAYOUTS(LAYOUT_ENTRY)
#undef LAYOUT_ENTRY
};

/* Types whose every value is exact in f16: small integers, 8-bit floats, a f16 scale times -1, 0 or 1. */
static bool exact_in_f16(enum dtype t)
{
    return t == DTYPE_I8 || t == DTYPE_U8 || t == DTYPE_BOOL || t == DTYPE_F8_E4M3 || t == DTYPE_F8_E5M2 || t == DTYPE_TQ1_0 ||
           t == DTYPE_TQ2_0;
}

static int mlx_check(const struct weight_src *s, struct err *err)
{
    if (!pack_mlx_type(s->bits).known || (s->group != 32 && s->group != 64 && s->group != 128))
        return err_set(err, ERR_UNSUPPORTED, "cpu: tensor '%s': MLX affine of %u bits in groups of %u is not supported", s->name, s->bits,
                       s->group);
    if (s->cols % s->group)
        return err_set(err, ERR_FORMAT, "cpu: tensor '%s': %u columns are no multiple of the group of %u", s->name, s->cols, s->group);
    if (s->scale_type != DTYPE_F32 && s->scale_type != DTYPE_F16 && s->scale_type != DTYPE_BF16)
        return err_set(err, ERR_UNSUPPORTED, "cpu: tensor '%s': scales of type %s", s->name, dtype_name(s->scale_type));
    return 0;
}

static void plan_geometry(const struct weight_src *s, struct layout_plan *p)
{
    struct cpu_panel *g = &p->panel;
    g->cols = s->cols;
    size_t bytes;
    if (g->layout <= CPU_LAYOUT_BF16) {
        bytes = (size_t)s->cols * CPU_PANEL_ROWS * (g->layout == CPU_LAYOUT_F32 ? 4 : 2);
    } else {
        g->unit = layouts[g->layout].unit;
        g->unit_head = layouts[g->layout].unit_head;
        if (s->type == DTYPE_MLX) {
            g->scale = s->scale_type == DTYPE_F32 ? CPU_SCALE_F32 : s->scale_type == DTYPE_F16 ? CPU_SCALE_F16 : CPU_SCALE_BF16;
            g->unit = s->group / 32;
            g->unit_head = 2 * CPU_PANEL_ROWS * (g->scale == CPU_SCALE_F32 ? 4 : 2);
        }
        g->block_head = layouts[g->layout].block_head;
        g->block_bytes = g->block_head + layouts[g->layout].body;
        g->bits = layouts[g->layout].body / 64;
        g->unit_bytes = g->unit_head + g->unit * g->block_bytes;
        bytes = (size_t)(s->cols / (32 * g->unit)) * g->unit_bytes;
    }
    p->panel_bytes = (bytes + 63) / 64 * 64;
    p->panels = (uint32_t)(((uint64_t)s->rows + CPU_PANEL_ROWS - 1) / CPU_PANEL_ROWS);
    p->panels_all = p->panels * (s->n_experts ? s->n_experts : 1);
    p->bytes = (uint64_t)p->panel_bytes * p->panels_all;
}

static int plan_make(const struct weight_src *s, struct layout_plan *p, struct err *err)
{
    *p = (struct layout_plan){0};
    if (s->rows == 0 || s->cols == 0)
        return err_set(err, ERR_FORMAT, "cpu: tensor '%s' is empty: [%u][%u]", s->name, s->rows, s->cols);
    if (s->n_experts > ROUTE_EXPERTS_MAX)
        return err_set(err, ERR_UNSUPPORTED, "cpu: tensor '%s': a stack of %u, at most %d", s->name, s->n_experts, ROUTE_EXPERTS_MAX);
    int rc = s->type == DTYPE_MLX ? mlx_check(s, err) : 0;
    if (rc)
        return rc;
    struct pack_type t = s->type == DTYPE_MLX ? pack_mlx_type(s->bits) : pack_ggml_type(s->type);
    uint32_t block = s->type == DTYPE_MLX ? s->group : dtype_block_len(s->type);
    if (s->type >= DTYPE_COUNT || !block || s->cols % block)
        return err_set(err, ERR_FORMAT, "cpu: tensor '%s' (%s): %u columns are no multiple of %u", s->name, dtype_name(s->type), s->cols,
                       block);
    p->converted = !t.known;
    p->panel.layout = t.known ? t.layout : exact_in_f16(s->type) ? CPU_LAYOUT_F16 : CPU_LAYOUT_F32;
    p->unit = t.unit;
    plan_geometry(s, p);
    return 0;
}

int cpu_weight_plan(struct device *d, const struct weight_src *src, unsigned use, uint64_t *size_bytes, struct err *err)
{
    (void)d, (void)use; /* both uses read the same panels */
    struct layout_plan p;
    int rc = plan_make(src, &p, err);
    *size_bytes = rc ? 0 : p.bytes;
    return rc;
}

static int weight_fill(struct device *d, struct weight *w, const struct layout_plan *plan, struct err *err)
{
    w->data = cpu_slab_take(&d->slabs, (size_t)plan->bytes, &w->slab);
    if (!w->data)
        return err_nomem(err, w->name, (size_t)plan->bytes);
    if (!plan->converted)
        return 0;
    log_put(LOG_NOTICE, "cpu: tensor '%s': %s is not computed packed here, it is held as %s", w->name, dtype_name(w->src.type),
            layouts[plan->panel.layout].name);
    w->rows = mem_try_array((size_t)d->n_threads * w->src.cols, sizeof *w->rows);
    return w->rows ? 0 : err_nomem(err, "cpu: rows to convert", (size_t)d->n_threads * w->src.cols * sizeof *w->rows);
}

/* Packing reads them later: a list of our own. */
static int experts_copy(struct weight *w, const struct weight_src *src, struct err *err)
{
    if (!src->n_experts)
        return 0;
    struct weight_src *copy = mem_try_array(src->n_experts, sizeof *copy);
    if (!copy)
        return err_nomem(err, w->name, src->n_experts * sizeof *copy);
    memcpy(copy, src->experts, src->n_experts * sizeof *copy);
    for (uint32_t e = 0; e < src->n_experts; e++)
        copy[e].name = w->name;
    w->src.experts = copy;
    return 0;
}

int cpu_weight_prepare(struct device *d, const struct weight_src *src, unsigned use, struct weight **out, struct err *err)
{
    (void)use;
    *out = NULL;
    struct layout_plan plan;
    int rc = plan_make(src, &plan, err);
    if (rc)
        return rc;
    size_t name_bytes = strlen(src->name) + 1;
    struct weight *w = mem_try_zero(1, sizeof *w + name_bytes);
    if (!w)
        return err_nomem(err, "cpu: weight", sizeof *w + name_bytes);
    memcpy(w->name, src->name, name_bytes);
    w->head = (struct weight_head){src->type, src->rows, src->cols, w->name, src->n_experts};
    w->panel = plan.panel;
    w->panels = plan.panels;
    w->panels_all = plan.panels_all;
    w->panel_bytes = plan.panel_bytes;
    w->src = *src;
    w->src.name = w->name;
    w->src.experts = NULL;
    w->unit = plan.unit;
    w->converted = plan.converted;
    rc = experts_copy(w, src, err);
    if (!rc)
        rc = weight_fill(d, w, &plan, err);
    if (rc) {
        cpu_weight_free(d, w);
        return rc;
    }
    cpu_pack_put(d, w);
    *out = w;
    return 0;
}

void cpu_weight_free(struct device *d, struct weight *w)
{
    if (!w)
        return;
    cpu_drain(d); /* it may still be on its way into panels */
    if (w->slab)
        cpu_slab_give(&d->slabs, w->slab);
    mem_free(w->rows);
    mem_free((void *)(uintptr_t)w->src.experts);
    mem_free(w);
}

/* ---- a row back ---- */

static void float_row(const struct weight *w, const unsigned char *panel, uint32_t lane, float *dst)
{
    for (uint32_t k = 0; k < w->head.cols; k++) {
        const unsigned char *at = panel + (size_t)k * CPU_PANEL_ROWS * 2;
        if (w->panel.layout == CPU_LAYOUT_F32)
            memcpy(&dst[k], panel + ((size_t)k * CPU_PANEL_ROWS + lane) * 4, 4);
        else if (w->panel.layout == CPU_LAYOUT_F16)
            dst[k] = dtype_f16_to_f32(pack_u16(at + 2 * lane));
        else
            dst[k] = dtype_bf16_to_f32(pack_u16(at + 2 * (2 * (lane & 7) + (lane >> 3))));
    }
}

void cpu_weight_row(const struct weight *w, uint32_t row, float *dst)
{
    const struct cpu_panel *p = &w->panel;
    const unsigned char *panel = w->data + (row / CPU_PANEL_ROWS) * w->panel_bytes;
    uint32_t lane = row % CPU_PANEL_ROWS;
    if (cpu_weight_is_float(w)) {
        float_row(w, panel, lane, dst);
        return;
    }
    for (uint32_t b = 0; b < p->cols / 32; b++, dst += 32) {
        struct unpack_block u;
        unpack_lane(p, panel, b, lane, &u);
        unpack_values(&u, dst);
    }
}
