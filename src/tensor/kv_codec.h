/* tensor/kv_codec.h - what the K and V formats mean: one head vector of one position to codes and back, in plain C.
 *
 * Everything here is a fixed sequence of IEEE operations (docs/arithmetic.md has the orders), so backends that use it store equal bytes.
 * A vector is encoded alone: no neighbour, position or earlier token takes part. */
#ifndef RH_TENSOR_KV_CODEC_H
#define RH_TENSOR_KV_CODEC_H

#include "tensor/tensor.h"

enum { KV_HEAD_MAX = 640 }; /* elements of a head */

/* value = FLOAT: the number;  SIGNED: scale (code - 2^(bits - 1) or two's complement at 8 bits);  AFFINE: scale code + minimum;
 * BOOK: scale book[code], the book being a Lloyd-Max quantiser of N(0,1) in integers */
enum kv_code { KV_CODE_FLOAT, KV_CODE_SIGNED, KV_CODE_AFFINE, KV_CODE_BOOK };
/* Before encoding: HADAMARD: x = H x over runs of the largest power of two <= 128 that divides d;  SIGNS: fixed signs first. */
enum kv_turn { KV_TURN_NONE, KV_TURN_HADAMARD, KV_TURN_SIGNS };

/* one plane: a page of one head */
struct kv_shape {
    enum kv_code code;
    enum kv_turn turn;
    uint32_t run;         /* elements a Hadamard turn mixes; 0: not turned */
    uint32_t bits;
    uint32_t group;       /* elements per scale; FLOAT: d */
    uint32_t groups;      /* d / group */
    uint32_t scales_at;   /* byte of the plane; 0 for FLOAT */
    uint32_t minima_at;   /* 0: none */
    uint32_t plane_bytes; /* 0: the format cannot hold d */
};
struct kv_shape kv_shape_of(enum kv_format f, uint32_t d);
/* The first d_v elements of K's d_k as V (latent layers): groups, turn and run are K's; plane_bytes only says whether they fit: 0 when
 * a group or a run of K does not end at d_v.  A scale for all of K's head is one for all of V's. */
struct kv_shape kv_shape_latent(enum kv_format f, uint32_t d_k, uint32_t d_v);
/* Value of each code of 4 and 3 bits as an integer (scale apart). */
const int8_t *kv_code_table(enum kv_format f);

/* x[d], d a multiple of the shape's run. */
void kv_turn(const struct kv_shape *s, float *x, uint32_t d);
void kv_turn_back(const struct kv_shape *s, float *x, uint32_t d);

/* x[d] into a plane's slot (0 .. KV_PAGE - 1), turned first; and what a slot holds, turned back. */
void kv_store(unsigned char *plane, enum kv_format f, uint32_t d, uint32_t slot, bool key, const float *x);
void kv_load(const unsigned char *plane, enum kv_format f, uint32_t d, uint32_t slot, bool key, float *x);
/* Slots first .. first + n - 1 of it: x [n][d]. */
void kv_load_slots(const unsigned char *plane, enum kv_format f, uint32_t d, uint32_t first, uint32_t n, bool key, float *x);

#endif
