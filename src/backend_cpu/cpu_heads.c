/* backend_cpu/cpu_heads.c - linear_heads: a product for each head, of that head's rows of one weight and its part of x.
 *
 * A worker takes a contiguous run of (head, row block, panel) items and prepares the rows it needs for itself: they are narrow, and a
 * barrier would cost more.  A head's rows may begin inside a panel: its outputs are then picked from the panel's.
 * Invariants: 1. An output is what linear would give for the head alone: the same preparation, the same dot. */
#include "backend_cpu/cpu_product.h"

#include <string.h>

/* rows [row, row + rows) of one head */
struct head_part {
    uint32_t head, row, rows;
    struct input in;
};

/* Rows of a head's part that are prepared at a time. */
static uint32_t head_rows_max(const struct op_linear_heads *op, const struct own *own)
{
    uint32_t cols = op->w->head.cols, n = (uint32_t)(ROWS_BYTES / (cols * sizeof(float)));
    if (!cpu_weight_is_float(op->w))
        n = (uint32_t)(sizeof own->acts / act_bytes(cols));
    return n < 1 ? 1 : n < CPU_DOT_ROWS ? n : CPU_DOT_ROWS;
}

/* What the weight reads of those rows. */
static void head_prepare(const struct cpu_kernels *k, const struct op_linear_heads *op, struct head_part *p, struct own *own)
{
    uint32_t in = op->w->head.cols;
    const float *x = tensor_row(&op->x, p->row) + (size_t)p->head * (in + op->tail);
    p->in = (struct input){.rows = p->rows, .cols = in, .f = x, .f_stride = op->x.stride * sizeof(float)};
    if (cpu_weight_is_float(op->w))
        return;
    quantised_at(&p->in, own->acts, true);
    for (uint32_t r = 0; r < p->rows; r++)
        quantise_chunks(k, &p->in, own->acts, x + (size_t)r * op->x.stride, r, 0, act_chunks(in));
}

/* What goes past the weight. */
static void head_tail(const struct op_linear_heads *op, const struct head_part *p)
{
    uint32_t in = op->w->head.cols, out = op->w->head.rows / op->n_heads;
    for (uint32_t r = p->row; op->tail && r < p->row + p->rows; r++) {
        const float *x = tensor_row(&op->x, r) + (size_t)p->head * (in + op->tail) + in;
        float *y = (float *)op->y.data + (size_t)r * op->y.stride + (size_t)p->head * (out + op->tail) + out;
        memcpy(y, x, op->tail * sizeof *y);
    }
}

/* Panels [from, to) of the weight, as far as they are the head's. */
static void head_panels(const struct cpu_kernels *k, const struct op_linear_heads *op, const struct head_part *p, uint32_t from, uint32_t to,
                        struct own *own)
{
    uint32_t out = op->w->head.rows / op->n_heads, first = p->head * out, step = call_panels(&p->in, p->rows);
    float *y = (float *)op->y.data + (size_t)p->row * op->y.stride + (size_t)p->head * (out + op->tail);
    for (uint32_t i = from; i < to; i += step) {
        uint32_t n = to - i < step ? to - i : step, col = i * CPU_PANEL_ROWS, width = n * CPU_PANEL_ROWS;
        uint32_t low = col > first ? col : first, high = col + width < first + out ? col + width : first + out;
        if (high - low == width) {
            dot(k, op->w, &p->in, 0, p->rows, i, n, y + low - first, op->y.stride, own->tmp);
            continue;
        }
        dot(k, op->w, &p->in, 0, p->rows, i, n, own->out[0], width, own->tmp);
        for (uint32_t r = 0; r < p->rows; r++)
            memcpy(y + (size_t)r * op->y.stride + low - first, own->out[0] + (size_t)r * width + low - col, (high - low) * sizeof *y);
    }
}

static void linear_heads_run(struct device *d, uint32_t me, uint32_t count, const void *arg)
{
    const struct op_linear_heads *op = arg;
    const struct cpu_kernels *k = cpu_kernels_of(d);
    struct own *own = cpu_scratch(d, me, sizeof *own);
    if (!own)
        return;
    uint32_t out = op->w->head.rows / op->n_heads, panels = (out - 1) / CPU_PANEL_ROWS + 2; /* of a head at most, wherever it starts */
    uint32_t step = head_rows_max(op, own), blocks = (op->x.rows + step - 1) / step, from, to;
    cpu_split(op->n_heads * blocks * panels, 1, me, count, &from, &to);
    while (from < to) {
        struct head_part p = {.head = from / panels / blocks, .row = from / panels % blocks * step};
        uint32_t at = from % panels, n = to - from < panels - at ? to - from : panels - at;
        uint32_t first = p.head * out / CPU_PANEL_ROWS, last = ((p.head + 1) * out - 1) / CPU_PANEL_ROWS;
        p.rows = op->x.rows - p.row < step ? op->x.rows - p.row : step;
        if (at == 0)
            head_tail(op, &p);
        if (first + at <= last) {
            head_prepare(k, op, &p, own);
            head_panels(k, op, &p, first + at, first + at + n <= last + 1 ? first + at + n : last + 1, own);
        }
        from += n;
    }
}

int cpu_op_linear_heads(struct device *d, const struct op_linear_heads *op)
{
    struct own *own = NULL;
    bool fits = cpu_weight_is_float(op->w) || act_bytes(op->w->head.cols) <= sizeof own->acts;
    return fits ? cpu_enqueue(d, linear_heads_run, op, sizeof *op) : ERR_UNSUPPORTED;
}
