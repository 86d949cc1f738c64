/* backend_cuda/kernels_slots.h - how experts of a few rows are launched: what is asked for (kernels_expert.h), and how a block's shared memory is laid out. */
#ifndef RH_CUDA_KERNELS_SLOTS_H
#define RH_CUDA_KERNELS_SLOTS_H

#include "backend_cuda/kernels.h"

#ifdef __cplusplus
extern "C" {
#endif

struct cuda_expert_at { /* of a job: bytes from the beginning of shared memory, and how its tiles are cut */
    uint32_t rows, norm, x, ids, scales; /* rows in f32, the norm's weights, rows as f16; of its slots; of its rows */
    uint32_t segments, segment_units, strips; /* strips of a tile */
    uint32_t parts;             /* of a row, that warps pack side by side */
};
struct cuda_p_slots {
    struct cuda_p_expert p;
    struct cuda_expert_at at[2];
    uint32_t stages, part_units; /* of a warp's ring; of a part of a row at most */
    uint32_t rings, entries, sums, factors, words, weights; /* bytes likewise: [warp][stage] pieces, [strip] of each, what warps tell each other, [slot] */
};
/* Fills what is behind p; gives bytes of shared memory; 0: more than `most`. */
uint32_t cuda_slots_form(enum cuda_kind kind, struct cuda_p_slots *s, uint32_t blocks, uint32_t most);

#ifdef __cplusplus
}
#endif

#endif
