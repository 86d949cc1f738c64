/* backend_cpu/kernels.h - the CPU backend's inner functions, as one list, and the table of them that each level exports.
 *
 * A level (ref, avx2, ...) has one const table per family: kernels_<level>_linear.c and kernels_<level>_rows.c.  `ref` fills every
 * field; the others fill only what they improve (NULL elsewhere).  cpu_select.c merges worst to best into one table per device.
 * Invariants: 1. Every level gives the bits of ref, for every input a model can produce (orders: docs/arithmetic.md).
 *             2. A kernel works on whole rows, panels or tiles; it allocates nothing and knows no threads.
 *             3. Tables are data: no code of a wide level runs before cpu_select chose it.
 * Included by kernel files, with their own instruction-set flags: only types and macros here, no code. */
#ifndef RH_CPU_KERNELS_H
#define RH_CPU_KERNELS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "backend_cpu/panel.h"

/* ---- linear ---- */

/* Quantise one row: cols (a multiple of 32) floats to cols / 32 blocks. */
typedef void (*cpu_quantize_fn)(const float *x, uint32_t cols, struct cpu_act *out);

/* Some panels of a weight times some rows of activations. */
struct cpu_dot {
    const unsigned char *w;        /* first panel */
    size_t panel_bytes;
    uint32_t panels;
    const struct cpu_panel *panel; /* the weight's geometry */
    const void *x;                 /* quantised layouts: struct cpu_act [cols / 32]; float layouts: f32 [cols] */
    size_t x_stride;               /* bytes between rows */
    uint32_t rows;                 /* 1 .. CPU_DOT_ROWS */
    float *out;                    /* [rows][out_stride]: panel p's 16 outputs at 16 p */
    size_t out_stride;             /* floats */
    void *tmp;                     /* CPU_DOT_TMP bytes, 64-byte aligned */
};
enum { CPU_DOT_ROWS = 128, CPU_DOT_TMP = 64 << 10 };
typedef void (*cpu_dot_fn)(const struct cpu_dot *job);

#define CPU_KERNELS_LINEAR(X) \
    X(cpu_quantize_fn, quantize)

/* ---- rows: norms, rope, activations, attention, sampling.  X(type, field). ---- */

#define CPU_KERNELS_ROWS(X)

struct cpu_kernels {
#define CPU_KERNEL_FIELD(type, name) type name;
    CPU_KERNELS_LINEAR(CPU_KERNEL_FIELD)
    CPU_KERNELS_ROWS(CPU_KERNEL_FIELD)
#undef CPU_KERNEL_FIELD
    cpu_dot_fn dot[CPU_LAYOUT_COUNT]; /* by panel layout */
};

/* One table per level and family; which of them exist on this machine's architecture, cpu_select.c says. */
#define CPU_TABLE_PROTO(level)                               \
    extern const struct cpu_kernels cpu_kernels_##level##_linear; \
    extern const struct cpu_kernels cpu_kernels_##level##_rows;
CPU_TABLE_PROTO(ref)
CPU_TABLE_PROTO(avx2)
CPU_TABLE_PROTO(avx512)
CPU_TABLE_PROTO(avx512vnni)
#undef CPU_TABLE_PROTO

#endif
