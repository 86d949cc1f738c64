/* tensor/state.h - the state of recurrent layers: what one block of positions holds and where.  Plain descriptors, no ownership.
 *
 * Positions are cut in blocks of `anchor` (C) by absolute index; position p lies in block p / C.  A block holds the state at its first
 * position (the anchor) and, append-only, what its rows leave behind.  A row is computed from its block alone, so a rewind inside a
 * block is truncation.  The block of position 0 starts from zeros: its state is never read.
 * A layer has `heads` parts of a block, each an array of f32 in this order (offsets: state_layout):
 *   tail    [taps - 1][channels]     inputs of the convolution before the anchor
 *   inputs  [C][channels]            and of the block's rows
 *   state   [values][d_k][d_v]       at the anchor
 *   keys    [d_k][C]                 of the block's rows, transposed
 *   deltas  [values][C][d_v]
 *   gates   [values][C]              log gates */
#ifndef RH_TENSOR_STATE_H
#define RH_TENSOR_STATE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { STATE_ANCHOR = 64, STATE_ANCHOR_CONV = 32 }; /* C of delta nets, of short convolutions: part of the numeric identity */
enum { STATE_ANCHOR_MAX = 64, STATE_TAPS_MAX = 16, STATE_DIM_MAX = 256 };

struct state_shape {
    uint32_t anchor;
    uint32_t heads;          /* key heads; a short convolution has one */
    uint32_t channels, taps; /* of the convolution, a head; taps: inputs a row sees, its own included */
    uint32_t values;         /* value heads a key head; 0: the convolution is all */
    uint32_t d_k, d_v;
};

struct state_layout { /* floats from the start of a head's part */
    size_t tail, inputs, state, keys, deltas, gates;
    size_t size_bytes; /* multiple of 64 */
};

/* One head's place in the blocks of its group. */
struct state_part {
    unsigned char *const *pages; /* [block id] -> the chunk with this part (device-visible table) */
    size_t offset;               /* in that chunk, multiple of 64 */
};

/* A recurrent layer.  A span's table (struct kv_span) has the id of block b at table_first + b; 0: the block is not kept. */
struct state_layer {
    struct state_shape shape;
    const struct state_part *parts; /* [heads] */
};

/* False: a size is 0 or past what backends take. */
bool state_shape_valid(const struct state_shape *s);
void state_layout(const struct state_shape *s, struct state_layout *out);

#endif
