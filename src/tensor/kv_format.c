/* tensor/kv_format.c - the geometry and names of the K and V formats (tensor.h describes the layout).
 *
 * Invariant: the bytes of a plane are a multiple of 64, so one head's planes, the next head and the next layer stay aligned.
 * Does not:  encode or decode; that is kv_codec.c. */
#include "tensor/kv_codec.h"

#include "base/str.h"

#include <stdio.h>

static const struct {
    const char *name;
    enum kv_code code;
    uint32_t bits, group;
    enum kv_turn turn;
} formats[KV_FORMAT_COUNT] = {
#define KV_FORMAT_ROW(id, name, code, bits, group, turn) {name, KV_CODE_##code, bits, group, KV_TURN_##turn},
    KV_FORMATS(KV_FORMAT_ROW)
#undef KV_FORMAT_ROW
};

static const struct {
    const char *name;
    enum kv_format k, v;
} pairs[] = {{"k8v4", KV_A8G32, KV_V4}, {"k8v3", KV_A8G32, KV_V3}, {"k4v4", KV_A4G32, KV_V4}};
enum { PAIR_COUNT = sizeof pairs / sizeof *pairs };

const char kv_formats_text[] = "f32 f16 bf16 q8 a8g32 a8g64 a8g128 a4g32 a4g64 a4g128 q4h tq4 tq3, or one of k8v4 k8v3 k4v4";

/* The group asked for, else the largest of 64, 32 below it that divides d; 0: none does. */
static uint32_t group_of(uint32_t asked, uint32_t d)
{
    if (asked == 0)
        return d % 32 == 0 ? d : 0;
    for (uint32_t g = asked; g >= 32; g /= 2)
        if (d % g == 0)
            return g;
    return 0;
}

/* A Hadamard turn mixes runs of the largest power of two <= TURN_MAX that divides d. */
enum { TURN_MAX = 128 };
static uint32_t run_of(enum kv_turn turn, uint32_t d)
{
    uint32_t n = TURN_MAX;
    while (d % n != 0)
        n /= 2;
    return turn == KV_TURN_NONE ? 0 : n;
}

struct kv_shape kv_shape_of(enum kv_format f, uint32_t d)
{
    struct kv_shape s = {0};
    if ((unsigned)f >= KV_FORMAT_COUNT || d == 0 || d > KV_HEAD_MAX || d % 8 != 0)
        return s;
    s.code = formats[f].code;
    s.turn = formats[f].turn;
    s.run = run_of(s.turn, d);
    s.bits = formats[f].bits;
    uint32_t codes = KV_PAGE * d / 8 * s.bits;
    if (s.code == KV_CODE_FLOAT) {
        s.group = d, s.groups = 1, s.plane_bytes = codes;
        return s;
    }
    s.group = group_of(formats[f].group, d);
    if (s.group == 0)
        return s;
    s.groups = d / s.group;
    s.scales_at = codes;
    s.plane_bytes = codes + KV_PAGE * s.groups * 2;
    if (s.code == KV_CODE_AFFINE) {
        s.minima_at = s.plane_bytes;
        s.plane_bytes += KV_PAGE * s.groups * 2;
    }
    return s;
}

uint32_t kv_format_k_bytes(enum kv_format f, uint32_t d)
{
    return f == KV_V4 || f == KV_V3 ? 0 : kv_shape_of(f, d).plane_bytes;
}

struct kv_shape kv_shape_latent(enum kv_format f, uint32_t d_k, uint32_t d_v)
{
    struct kv_shape s = kv_shape_of(f, d_k);
    bool whole = s.groups == 1; /* one scale, or none */
    uint32_t unit = s.code == KV_CODE_FLOAT ? 8 : 32;
    if (kv_format_k_bytes(f, d_k) == 0 || d_v == 0 || d_v > d_k || d_v % unit != 0 || (!whole && d_v % s.group != 0) ||
        (s.run != 0 && d_v % s.run != 0)) {
        s.plane_bytes = 0;
        return s;
    }
    s.group = whole ? d_v : s.group;
    s.groups = d_v / s.group;
    return s;
}

uint32_t kv_layer_head_bytes(const struct kv_layer *l)
{
    uint32_t k = kv_format_k_bytes(l->k_format, l->d_k), v = kv_format_v_bytes(l->v_format, l->d_v);
    if (l->latent) {
        return l->v_format == l->k_format && kv_shape_latent(l->k_format, l->d_k, l->d_v).plane_bytes != 0 ? k : 0;
    }
    return k != 0 && v != 0 ? k + v : 0;
}

uint32_t kv_format_v_bytes(enum kv_format f, uint32_t d)
{
    return kv_shape_of(f, d).plane_bytes;
}

const char *kv_format_name(enum kv_format f)
{
    return (unsigned)f < KV_FORMAT_COUNT ? formats[f].name : "?";
}

static int one_parse(struct str name)
{
    for (int i = 0; i < KV_V4; i++) /* V4 and V3 have no name of their own */
        if (str_is(name, formats[i].name))
            return i;
    return -1;
}

int kv_formats_parse(const char *name, size_t n, enum kv_format *k, enum kv_format *v)
{
    struct str rest = str_n(name, n), key = rest;
    for (int i = 0; i < PAIR_COUNT; i++)
        if (str_is(rest, pairs[i].name)) {
            *k = pairs[i].k, *v = pairs[i].v;
            return 0;
        }
    str_split(&rest, ':', &key);
    bool both = !rest.p;
    int a = one_parse(key), b = both ? a : one_parse(rest);
    if (a < 0 || b < 0)
        return -1;
    *k = (enum kv_format)a, *v = (enum kv_format)b;
    return 0;
}

const char *kv_formats_name(enum kv_format k, enum kv_format v, char out[KV_NAME_MAX])
{
    for (int i = 0; i < PAIR_COUNT; i++)
        if (pairs[i].k == k && pairs[i].v == v) {
            snprintf(out, KV_NAME_MAX, "%s", pairs[i].name);
            return out;
        }
    if ((unsigned)k >= KV_FORMAT_COUNT || (unsigned)v >= KV_FORMAT_COUNT)
        snprintf(out, KV_NAME_MAX, "?");
    else
        snprintf(out, KV_NAME_MAX, "%s:%s", formats[k].name, formats[v].name);
    return out;
}
