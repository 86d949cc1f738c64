/* backend_cpu/cpu_pack.c - a file's tensors into panels, by the pool.
 *
 * Weights to be packed gather in a list; the next thing that is enqueued puts one record for all of them in front of it.  Its workers
 * take zones of the panels' memory, in order, until none is left: a zone is a huge page, so that two workers seldom wait for the same
 * page to be cleared, and nobody waits at the end of a weight.
 * Invariants: 1. Packing moves codes, it rounds nothing.
 *             2. A weight with a scale that is not finite fails the record: the next wait reports it.
 * Threads:    lists: the engine's thread; panels: the workers. */
#include "backend_cpu/cpu_device.h"
#include "backend_cpu/cpu_weight.h"

#include "base/mem.h"

enum { ZONE_SHIFT_MAX = 21, ZONE_SHIFT_MIN = 14, ZONES_PER_WORKER = 8 };

/* `s`: the matrix of the weight that the panel is of; `panel` counts in it. */
static uint32_t panel_lanes(const struct weight_src *s, uint32_t panel)
{
    uint32_t left = s->rows - panel * CPU_PANEL_ROWS;
    return left < CPU_PANEL_ROWS ? left : CPU_PANEL_ROWS;
}

/* ---- float panels ---- */

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

static void pack_float_panel(const struct weight *w, const struct weight_src *s, uint32_t panel, unsigned char *out)
{
    static const uint8_t straight[CPU_PANEL_ROWS] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
    static const uint8_t paired[CPU_PANEL_ROWS] = {0, 2, 4, 6, 8, 10, 12, 14, 1, 3, 5, 7, 9, 11, 13, 15};
    enum cpu_layout layout = w->panel.layout;
    uint32_t lanes = panel_lanes(s, panel);
    const unsigned char *row = (const unsigned char *)s->data + panel * (uint64_t)CPU_PANEL_ROWS * s->row_bytes;
    for (uint32_t k = 0; k < s->cols; k += SQUARE)
        lay_square(out, row, s->row_bytes, lanes, layout == CPU_LAYOUT_BF16 ? paired : straight, layout == CPU_LAYOUT_F32 ? 4 : 2, k,
                   s->cols - k < SQUARE ? s->cols - k : SQUARE);
}

static void pack_converted_panel(const struct weight *w, const struct weight_src *s, uint32_t panel, float *row, unsigned char *out)
{
    for (uint32_t lane = 0; lane < panel_lanes(s, panel); lane++) {
        weight_src_row(s, panel * CPU_PANEL_ROWS + lane, row);
        for (uint32_t k = 0; k < s->cols; k++) {
            if (w->panel.layout == CPU_LAYOUT_F32) {
                put_float(out, CPU_LAYOUT_F32, k, lane, (const unsigned char *)&row[k]);
                continue;
            }
            uint16_t h = dtype_f32_to_f16(row[k]);
            put_float(out, CPU_LAYOUT_F16, k, lane, (const unsigned char *)&h);
        }
    }
}

/* ---- quantised panels ---- */

/* Where each row's units start and how far apart they are; rows past the last read zeros. */
struct row_starts {
    const unsigned char *data[CPU_PANEL_ROWS], *scales[CPU_PANEL_ROWS], *biases[CPU_PANEL_ROWS];
    size_t step[CPU_PANEL_ROWS], scale_step[CPU_PANEL_ROWS];
};

static void row_starts_find(const struct weight *w, const struct weight_src *s, uint32_t panel, struct row_starts *r)
{
    static const unsigned char zeros[PACK_UNIT_BYTES_MAX];
    uint32_t lanes = panel_lanes(s, panel), units = s->cols / (32 * w->panel.unit);
    size_t scale = s->type == DTYPE_MLX && s->scale_type == DTYPE_F32 ? 4 : s->type == DTYPE_MLX ? 2 : 1;
    for (uint32_t i = 0; i < CPU_PANEL_ROWS; i++) {
        size_t row = (size_t)panel * CPU_PANEL_ROWS + i;
        bool there = i < lanes;
        r->data[i] = there ? (const unsigned char *)s->data + row * s->row_bytes : zeros;
        r->scales[i] = there && s->scales ? (const unsigned char *)s->scales + row * units * scale : zeros;
        r->biases[i] = there && s->biases ? (const unsigned char *)s->biases + row * units * scale : zeros;
        r->step[i] = there ? s->row_bytes / units : 0;
        r->scale_step[i] = there && s->scales ? scale : 0;
    }
}

static void pack_quant_panel(const struct weight *w, const struct weight_src *s, uint32_t panel, unsigned char *out)
{
    const struct cpu_panel *p = &w->panel;
    struct row_starts r;
    row_starts_find(w, s, panel, &r);
    uint32_t units = p->cols / (32 * p->unit);
    size_t ahead = CPU_PANEL_ROWS * (size_t)s->row_bytes, step = ahead / units; /* the next panel's rows lie behind this one's */
    for (uint32_t k = 0; k < units; k++) {
        for (size_t at = 0; at < step; at += 64)
            __builtin_prefetch(r.data[0] + ahead + k * step + at, 0, 2);
        struct pack_unit u = {.src = s, .p = p, .out = out + (size_t)k * p->unit_bytes};
        for (uint32_t lane = 0; lane < CPU_PANEL_ROWS; lane += PACK_ROWS) {
            u.lane = lane;
            for (uint32_t i = 0; i < PACK_ROWS; i++) {
                uint32_t row = lane + i;
                u.data[i] = r.data[row] + k * r.step[row];
                u.scales[i] = r.scales[row] + k * r.scale_step[row];
                u.biases[i] = r.biases[row] + k * r.scale_step[row];
            }
            w->unit(&u);
        }
    }
}

/* ---- scales ---- */

/* Headers of halves, looked at where they now lie side by side. */
static bool halves_finite(const struct weight *w, const unsigned char *out)
{
    const struct cpu_panel *p = &w->panel;
    uint32_t units = p->cols / (32 * p->unit), bad = 0;
    for (uint32_t k = 0; k < units; k++, out += p->unit_bytes)
        for (uint32_t i = 0; i < p->unit_head; i += 2)
            bad |= (pack_u16(out + i) & 0x7C00) == 0x7C00;
    return !bad;
}

static bool head_is_halves(enum cpu_layout layout)
{
    return layout >= CPU_LAYOUT_Q4_0 && layout <= CPU_LAYOUT_IQ4_XS;
}

static void check_scales(struct device *d, const struct weight *w, const struct weight_src *s, uint32_t panel, const unsigned char *out)
{
    struct err err = {0};
    if (head_is_halves(w->panel.layout) && halves_finite(w, out))
        return;
    if (dtype_check_rows(s, panel * CPU_PANEL_ROWS, panel_lanes(s, panel), &err))
        cpu_fail(d, ERR_FORMAT, err.text);
}

/* ---- the record ---- */

static void pack_panel(struct device *d, const struct weight *w, uint32_t panel, uint32_t me)
{
    unsigned char *out = w->data + panel * w->panel_bytes;
    const struct weight_src *s = weight_src_expert(&w->src, panel / w->panels);
    panel %= w->panels;
    if (w->converted)
        pack_converted_panel(w, s, panel, w->rows + (size_t)me * s->cols, out);
    else if (!w->unit)
        pack_float_panel(w, s, panel, out);
    else
        pack_quant_panel(w, s, panel, out);
    check_scales(d, w, s, panel, out);
}

/* A zone is 1 << this many bytes: less than a huge page when there are too few for all workers. */
static int zone_shift(const struct weight *list, uint32_t count)
{
    uint64_t total = 0;
    for (const struct weight *w = list; w; w = w->next)
        total += (uint64_t)w->panels_all * w->panel_bytes;
    int shift = ZONE_SHIFT_MAX;
    while (shift > ZONE_SHIFT_MIN && total >> shift < (uint64_t)count * ZONES_PER_WORKER)
        shift--;
    return shift;
}

static void pack_run(struct device *d, uint32_t me, uint32_t count, const void *op)
{
    struct weight *list = *(struct weight *const *)op;
    int shift = zone_shift(list, count);
    uintptr_t last = (uintptr_t)list->data >> shift;
    uint32_t zone = 0, mine = atomic_fetch_add(&list->zones_taken, 1); /* counted along the list */
    for (const struct weight *w = list; w; w = w->next) {
        for (uint32_t panel = 0; panel < w->panels_all; panel++) {
            uintptr_t at = (uintptr_t)(w->data + panel * w->panel_bytes) >> shift;
            zone += at != last;
            last = at;
            while (mine < zone)
                mine = atomic_fetch_add(&list->zones_taken, 1);
            if (mine == zone)
                pack_panel(d, w, panel, me);
        }
    }
}

/* ---- the lists ---- */

void cpu_pack_put(struct device *d, struct weight *w)
{
    struct cpu_packing *p = &d->packing;
    if (p->waiting)
        p->waiting_last->next = w;
    else
        p->waiting = w;
    p->waiting_last = w;
}

int cpu_pack_flush(struct device *d)
{
    struct cpu_packing *p = &d->packing;
    struct weight *list = p->waiting;
    if (!list)
        return 0;
    p->waiting = p->waiting_last = NULL;
    if (p->running) /* one list at a time; nothing waits now, so this ends there */
        cpu_drain(d);
    p->running = list;
    int rc = cpu_enqueue(d, pack_run, &list, sizeof list);
    p->running_until = d->queue.head;
    return rc;
}

void cpu_pack_settle(struct device *d)
{
    struct cpu_packing *p = &d->packing;
    if (!p->running || atomic_load(&d->queue.completed) < p->running_until)
        return;
    for (struct weight *w = p->running, *next; w; w = next) {
        next = w->next;
        w->next = NULL;
        mem_free(w->rows);
        w->rows = NULL;
        mem_free((void *)(uintptr_t)w->src.experts);
        w->src.experts = NULL;
    }
    p->running = NULL;
}
