/* backend_cpu/cpu_weight.c - from a file's tensor to panels: planning, packing by the pool, freeing, reading a row back.
 *
 * Owns:       the memory of prepared weights.
 * Invariants: 1. Packing moves codes, it rounds nothing; cpu_weight_row gives the bits of weight_src_row.
 *             2. Types without a layout are dequantised into F16 when that is exact for the type, else into F32; a notice says so.
 *             3. A weight with a scale that is not finite is refused. */
#include "backend_cpu/cpu_weight.h"
#include "backend_cpu/pack.h"
#include "backend_cpu/unpack.h"

#include "base/log.h"
#include "base/mem.h"

#include <string.h>

/* how a source will be held */
struct layout_plan {
    struct cpu_panel panel;
    pack_unit_fn unit; /* NULL: float */
    bool converted;    /* through weight_src_row */
    uint32_t panels;
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
    p->bytes = (uint64_t)p->panel_bytes * p->panels;
}

static int plan_make(const struct weight_src *s, struct layout_plan *p, struct err *err)
{
    *p = (struct layout_plan){0};
    if (s->rows == 0 || s->cols == 0)
        return err_set(err, ERR_FORMAT, "cpu: tensor '%s' is empty: [%u][%u]", s->name, s->rows, s->cols);
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

/* ---- packing, as a record of the queue ---- */

struct pack_job {
    const struct weight_src *src;
    const struct layout_plan *plan;
    unsigned char *data;
    float *rows; /* [count][cols]: converted types only */
};

static void put_float(unsigned char *panel, enum cpu_layout layout, uint32_t k, uint32_t lane, const unsigned char *from)
{
    size_t n = layout == CPU_LAYOUT_F32 ? 4 : 2;
    memcpy(panel + ((size_t)k * CPU_PANEL_ROWS + lane) * n, from, n);
}

/* Columns [from, from + n) of up to 16 rows into the panel, by way of a small square: rows of a large file lie at distances that
 * fall on one another in the first cache.  place[lane]: where a column has the lane. */
enum { SQUARE = 32 };
static void lay_square(unsigned char *panel, const unsigned char *row, size_t row_bytes, uint32_t lanes, const uint8_t *place, size_t esize,
                       uint32_t from, uint32_t n)
{
    unsigned char square[CPU_PANEL_ROWS][SQUARE * 4];
    for (uint32_t lane = 0; lane < lanes; lane++)
        memcpy(square[lane], row + lane * row_bytes + from * esize, n * esize);
    for (uint32_t k = 0; k < n; k++) {
        unsigned char *to = panel + (size_t)(from + k) * CPU_PANEL_ROWS * esize;
        for (uint32_t lane = 0; lane < lanes; lane++) {
            if (esize == 4)
                memcpy(to + place[lane] * 4, square[lane] + k * 4, 4);
            else
                memcpy(to + place[lane] * 2, square[lane] + k * 2, 2);
        }
    }
}

static void pack_float_panel(const struct pack_job *j, uint32_t panel, unsigned char *out)
{
    static const uint8_t straight[CPU_PANEL_ROWS] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
    static const uint8_t paired[CPU_PANEL_ROWS] = {0, 2, 4, 6, 8, 10, 12, 14, 1, 3, 5, 7, 9, 11, 13, 15};
    const struct weight_src *s = j->src;
    enum cpu_layout layout = j->plan->panel.layout;
    uint32_t lanes = s->rows - panel * CPU_PANEL_ROWS < CPU_PANEL_ROWS ? s->rows - panel * CPU_PANEL_ROWS : CPU_PANEL_ROWS;
    const unsigned char *row = (const unsigned char *)s->data + panel * (uint64_t)CPU_PANEL_ROWS * s->row_bytes;
    for (uint32_t k = 0; k < s->cols; k += SQUARE)
        lay_square(out, row, s->row_bytes, lanes, layout == CPU_LAYOUT_BF16 ? paired : straight, layout == CPU_LAYOUT_F32 ? 4 : 2, k,
                   s->cols - k < SQUARE ? s->cols - k : SQUARE);
}

static void pack_converted_panel(const struct pack_job *j, uint32_t panel, float *row, unsigned char *out)
{
    const struct weight_src *s = j->src;
    for (uint32_t lane = 0; lane < CPU_PANEL_ROWS && panel * CPU_PANEL_ROWS + lane < s->rows; lane++) {
        weight_src_row(s, panel * CPU_PANEL_ROWS + lane, row);
        for (uint32_t k = 0; k < s->cols; k++) {
            if (j->plan->panel.layout == CPU_LAYOUT_F32) {
                put_float(out, CPU_LAYOUT_F32, k, lane, (const unsigned char *)&row[k]);
                continue;
            }
            uint16_t h = dtype_f32_to_f16(row[k]);
            put_float(out, CPU_LAYOUT_F16, k, lane, (const unsigned char *)&h);
        }
    }
}

static void pack_quant_panel(const struct pack_job *j, uint32_t panel, unsigned char *out)
{
    const struct cpu_panel *p = &j->plan->panel;
    uint32_t units = p->cols / (32 * p->unit);
    for (uint32_t u = 0; u < units; u++)
        for (uint32_t lane = 0; lane < CPU_PANEL_ROWS && panel * CPU_PANEL_ROWS + lane < j->src->rows; lane++)
            j->plan->unit(j->src, p, panel * CPU_PANEL_ROWS + lane, u, lane, out + (size_t)u * p->unit_bytes);
}

static void pack_run(struct device *d, uint32_t me, uint32_t count, const void *op)
{
    const struct pack_job *j = *(const struct pack_job *const *)op;
    (void)d;
    uint32_t from, to;
    cpu_split(j->plan->panels, 1, me, count, &from, &to);
    for (uint32_t i = from; i < to; i++) {
        unsigned char *out = j->data + i * j->plan->panel_bytes;
        if (j->plan->converted)
            pack_converted_panel(j, i, j->rows + (size_t)me * j->src->cols, out);
        else if (!j->plan->unit)
            pack_float_panel(j, i, out);
        else
            pack_quant_panel(j, i, out);
    }
}

static int pack_all(struct device *d, const struct weight_src *src, const struct layout_plan *plan, unsigned char *data, struct err *err)
{
    struct pack_job job = {src, plan, data, NULL}, *p = &job;
    if (plan->converted) {
        log_put(LOG_NOTICE, "cpu: tensor '%s': %s is not computed packed here, it is held as %s", src->name, dtype_name(src->type),
                layouts[plan->panel.layout].name);
        struct device_info info;
        backend_cpu.device_info(d, &info);
        job.rows = mem_try_array((size_t)info.n_threads * src->cols, sizeof *job.rows);
        if (!job.rows)
            return err_nomem(err, "cpu: rows to convert", (size_t)info.n_threads * src->cols * sizeof *job.rows);
    }
    int rc = cpu_enqueue(d, pack_run, &p, sizeof p);
    cpu_drain(d);
    mem_free(job.rows);
    return rc;
}

int cpu_weight_prepare(struct device *d, const struct weight_src *src, unsigned use, struct weight **out, struct err *err)
{
    (void)use;
    *out = NULL;
    struct layout_plan plan;
    int rc = plan_make(src, &plan, err);
    if (!rc)
        rc = dtype_check_scales(src, err);
    if (rc)
        return rc;
    size_t name_bytes = strlen(src->name) + 1;
    struct weight *w = mem_try_zero(1, sizeof *w + name_bytes);
    if (!w)
        return err_nomem(err, "cpu: weight", sizeof *w + name_bytes);
    memcpy(w->name, src->name, name_bytes);
    w->head = (struct weight_head){src->type, src->rows, src->cols, w->name};
    w->panel = plan.panel;
    w->panels = plan.panels;
    w->panel_bytes = plan.panel_bytes;
    w->bytes = (size_t)plan.bytes;
    w->data = mem_map(w->bytes);
    rc = w->data ? pack_all(d, src, &plan, w->data, err) : err_nomem(err, src->name, w->bytes);
    if (rc) {
        cpu_weight_free(d, w);
        return rc;
    }
    *out = w;
    return 0;
}

void cpu_weight_free(struct device *d, struct weight *w)
{
    (void)d;
    if (!w)
        return;
    mem_unmap(w->data, w->bytes);
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
