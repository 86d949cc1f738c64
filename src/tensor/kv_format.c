/* tensor/kv_format.c - the geometry and names of the K and V formats (tensor.h describes the layout).
 *
 * Invariant: the bytes of a plane are a multiple of 64, so one head's planes, the next head and the next layer stay aligned.
 * Does not:  encode or decode; that is each backend's. */
#include "tensor/tensor.h"

#include "base/str.h"

enum { HEAD_DIM_MAX = 512 };

static const char *const names[KV_FORMAT_COUNT] = {"f32", "f16", "bf16", "q8"};

/* Bytes of one plane: KV_PAGE positions of d elements; 0 when d cannot be held.  K and V planes have the same size. */
static uint32_t plane_bytes(enum kv_format f, uint32_t d)
{
    if (d == 0 || d > HEAD_DIM_MAX || d % 8 != 0)
        return 0;
    switch (f) {
    case KV_F32:
        return KV_PAGE * d * 4;
    case KV_F16:
    case KV_BF16:
        return KV_PAGE * d * 2;
    case KV_Q8:
        return d % 32 == 0 ? KV_PAGE * d + KV_PAGE * (d / 32) * 2 : 0;
    case KV_FORMAT_COUNT:
        break;
    }
    return 0;
}

uint32_t kv_format_k_bytes(enum kv_format f, uint32_t d)
{
    return plane_bytes(f, d);
}

uint32_t kv_format_v_bytes(enum kv_format f, uint32_t d)
{
    return plane_bytes(f, d);
}

const char *kv_format_name(enum kv_format f)
{
    return (unsigned)f < KV_FORMAT_COUNT ? names[f] : "?";
}

int kv_format_parse(const char *name, size_t n)
{
    for (int i = 0; i < KV_FORMAT_COUNT; i++)
        if (str_is(str_n(name, n), names[i]))
            return i;
    return -1;
}
