/* backend_cpu/kernels_avx512_linear.c - level avx512 of the linear family: AVX-512 F, BW, VL, DQ, without VNNI.
 * The integer sums of level avx2 with 16 lanes: two panels at a time.  Bit-equal to level ref. */
#include "backend_cpu/kernels.h"
#include "backend_cpu/linear_kinds.h"
#include "backend_cpu/vec512_linear.h"

typedef __m512i vp;     /* P, an integer */
typedef __m512i vsc;    /* an integer scale in both 16-bit halves of a lane */
typedef __mmask64 vsign; /* where a weight is negative */

VEC vi vec_signed(vi w)
{
    return w;
}
VEC vsign vec_sign(vi w)
{
    return _mm512_movepi8_mask(w);
}
VEC vi vec_size(vi w)
{
    return _mm512_abs_epi8(w);
}
VEC vi vec_start_wide(const int16_t *pair, int kind, int z, int post)
{
    (void)post;
    return kind == KIND_WIDE && z ? _mm512_mullo_epi16(vec_repeat32(pair), vec_set16(-z)) : _mm512_setzero_si512();
}
VEC vi vec_start_half(const int16_t *pair, int z)
{
    return z ? _mm512_mullo_epi16(vec_repeat32(pair), vec_set16(-z)) : _mm512_setzero_si512();
}
VEC vi vec_dot(vi c, vi w, vi a)
{
    return vec_in_order(_mm512_add_epi16(c, _mm512_maddubs_epi16(w, a)));
}
VEC vi vec_dot_signed(vi c, vi size, vsign sign, vi a)
{
    vi products = _mm512_maddubs_epi16(size, _mm512_mask_sub_epi8(a, sign, _mm512_setzero_si512(), a));
    return vec_in_order(_mm512_add_epi32(c, _mm512_madd_epi16(products, vec_set16(1))));
}
#define VEC_FLIPS 1
VEC vi vec_negative(vi w)
{
    return _mm512_movm_epi8(_mm512_movepi8_mask(w));
}
VEC vi vec_sum8(vi w)
{
    return _mm512_madd_epi16(_mm512_maddubs_epi16(w, vec_set8(1)), vec_set16(1));
}
VEC vi vec_dot_flipped(vi c, vi size, vi mask, vi a)
{
    vi products = _mm512_maddubs_epi16(size, _mm512_xor_si512(a, mask));
    return vec_in_order(_mm512_add_epi32(c, _mm512_madd_epi16(products, vec_set16(1))));
}
VEC vi vec_post(vi p, const int16_t *pair, int post)
{
    return post ? vec_addd(p, vec_madd(vec_repeat32(pair), vec_set16(post))) : p;
}
VEC vp vec_sum_wide(vi c, const int16_t *pair, int kind, int post)
{
    return vec_post(kind == KIND_WIDE ? vec_madd(c, vec_set16(1)) : c, pair, post);
}
VEC vsc vec_scale(vi s)
{
    return vec_or(vec_and(s, vec_set32(0xffff)), vec_sll32(s, 16));
}
VEC vsc vec_load_scale(const int32_t *p)
{
    return vec_load(p);
}
VEC void vec_store_scale(int32_t *p, vsc s)
{
    vec_store(p, s);
}
VEC vp vec_sum_low(vi c, vsc s)
{
    return vec_madd(c, s);
}
VEC vp vec_sum_high(vp low, vi c, vsc s, const int16_t *pair, int post)
{
    return vec_post(vec_addd(low, vec_madd(c, s)), pair, post);
}
VEC vf vec_p(vp p)
{
    return vec_tof(p);
}

#define table_iq4 _mm_setr_epi8(-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)
#define table_fp4 _mm_setr_epi8(12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0) /* doubled, + 12 */

#include "backend_cpu/linear_tile.h"
#include "backend_cpu/linear_many.h"
#include "backend_cpu/linear_float.h"

const struct cpu_kernels cpu_kernels_avx512_linear = {
    .dot =
        {
#define DOT_ENTRY(name, directs, class, W, D, M, SC, MN, BHEAD, BODY) [CPU_LAYOUT_##name] = dot_##name,
            TILE_FORMATS(DOT_ENTRY)
#undef DOT_ENTRY
            [CPU_LAYOUT_F32] = dot_F32,
            [CPU_LAYOUT_F16] = dot_F16,
            [CPU_LAYOUT_BF16] = dot_BF16,
        },
};
