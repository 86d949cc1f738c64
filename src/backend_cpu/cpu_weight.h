/* backend_cpu/cpu_weight.h - prepared weights: panels (panel.h) in memory of their own. */
#ifndef RH_CPU_WEIGHT_H
#define RH_CPU_WEIGHT_H

#include "backend_cpu/cpu_int.h"
#include "backend_cpu/pack.h"

/* model lifetime; immutable once packed */
struct weight {
    struct weight_head head;
    struct cpu_panel panel;
    uint32_t panels;      /* ceil(rows / 16), of one matrix */
    uint32_t panels_all;  /* of all matrices of a stack, one behind the other */
    size_t panel_bytes;   /* multiple of 64 */
    unsigned char *data;  /* in a slab */
    struct cpu_slab *slab;
    /* until packed */
    struct weight_src src;       /* of a stack: experts is a copy of our own */
    pack_unit_fn unit;           /* NULL: float */
    bool converted;              /* through weight_src_row */
    float *rows;                 /* [threads][cols]: converted types only */
    struct weight *next;         /* of a list of packing */
    _Atomic uint32_t zones_taken;/* of the list that starts here */
    char name[];
};

static inline bool cpu_weight_is_float(const struct weight *w)
{
    return w->panel.layout <= CPU_LAYOUT_BF16;
}

/* One row's values, bit-equal to weight_src_row of the source. */
void cpu_weight_row(const struct weight *w, uint32_t row, float *dst);

int cpu_weight_plan(struct device *d, const struct weight_src *src, unsigned use, uint64_t *size_bytes, struct err *err);
int cpu_weight_prepare(struct device *d, const struct weight_src *src, unsigned use, struct weight **out, struct err *err);
void cpu_weight_free(struct device *d, struct weight *w);

#endif
