/* tensor/state.c - the geometry of recurrent state (state.h describes it).
 *
 * Invariant: every array of a head's part starts at a multiple of 64 bytes.
 * Does not:  compute anything; that is each backend's. */
#include "tensor/state.h"

bool state_shape_valid(const struct state_shape *s)
{
    bool sizes = s->anchor != 0 && s->anchor <= STATE_ANCHOR_MAX && s->anchor % 8 == 0 && s->heads != 0 && s->channels != 0 &&
                 s->channels <= 1u << 20 && s->taps >= 2 && s->taps <= STATE_TAPS_MAX && s->taps <= s->anchor;
    if (s->values == 0)
        return sizes && s->d_k == 0 && s->d_v == 0;
    return sizes && s->values <= 64 && s->d_k != 0 && s->d_v != 0 && s->d_k <= STATE_DIM_MAX && s->d_v <= STATE_DIM_MAX &&
           s->d_k % 8 == 0 && s->d_v % 8 == 0 && s->channels == 2 * s->d_k + s->values * s->d_v;
}

static size_t lay(size_t *at, size_t floats)
{
    size_t here = *at;
    *at += (floats + 15) / 16 * 16;
    return here;
}

void state_layout(const struct state_shape *s, struct state_layout *out)
{
    size_t at = 0, c = s->anchor, channels = s->channels, values = s->values;
    out->tail = lay(&at, (s->taps - 1) * channels);
    out->inputs = lay(&at, c * channels);
    out->state = lay(&at, values * s->d_k * s->d_v);
    out->keys = lay(&at, values ? s->d_k * c : 0);
    out->deltas = lay(&at, values * c * s->d_v);
    out->gates = lay(&at, values * c);
    out->size_bytes = at * sizeof(float);
}
