/* backend_cpu/linear_kinds.h - how the integer sum of a block of 32 columns is made; see linear_tile.h. */
#ifndef RH_CPU_LINEAR_KINDS_H
#define RH_CPU_LINEAR_KINDS_H

/* Codes are bytes u, their value is u - Z; POST * sum(q) is added at the end.
 * WIDE: the 16 products a 16-bit lane collects fit.  SIGNED: signed bytes.  HALVES: two sums of 16 columns, each times its scale. */
enum tile_kind { KIND_WIDE, KIND_SIGNED, KIND_HALVES };
enum tile_min { MIN_NONE, MIN_FLOAT, MIN_INT };

#endif
