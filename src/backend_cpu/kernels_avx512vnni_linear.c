/* backend_cpu/kernels_avx512vnni_linear.c - level avx512vnni of the linear family: AVX-512 F, BW, VL, DQ and VNNI.
 *
 * Integer sums by dpbusd in 32-bit lanes.  Signed codes are stored or made w + 128 and the chain starts at -128 sum(q); every other
 * offset starts it the same way.  dpbusds, which saturates, is never used.  Bit-equal to level ref. */
#include "backend_cpu/kernels.h"
#include "backend_cpu/linear_kinds.h"
#include "backend_cpu/vec512_linear.h"

typedef __m512 vp;    /* P as a float: it is an integer below 2^24 */
typedef __m512 vsc;   /* an integer scale as a float: products and their sum stay exact */
typedef __m512i vsign; /* not used */

VEC vi vec_signed(vi w)
{
    return _mm512_xor_si512(w, vec_set8(-128));
}
VEC vsign vec_sign(vi w)
{
    return w;
}
VEC vi vec_size(vi w)
{
    return w;
}
/* coefficient * sum(q) in every lane */
VEC vi vec_start(const int16_t *pair, int coefficient)
{
    return coefficient ? vec_madd(vec_repeat32(pair), vec_set16(coefficient)) : _mm512_setzero_si512();
}
VEC vi vec_start_wide(const int16_t *pair, int kind, int z, int post)
{
    return vec_start(pair, kind == KIND_SIGNED ? post - 128 : post - z);
}
VEC vi vec_start_half(const int16_t *pair, int z)
{
    return vec_start(pair, -z);
}
VEC vi vec_dot(vi c, vi w, vi a)
{
    return _mm512_dpbusd_epi32(c, w, a);
}
VEC vi vec_dot_signed(vi c, vi w, vsign sign, vi a)
{
    (void)sign;
    return _mm512_dpbusd_epi32(c, w, a);
}
#define VEC_FLIPS 0
VEC vi vec_negative(vi w)
{
    return w;
}
VEC vi vec_sum8(vi w)
{
    return w;
}
VEC vp vec_sum_wide(vi c, const int16_t *pair, int kind, int post)
{
    (void)pair, (void)kind, (void)post; /* all of it is in the start */
    return vec_tof(c);
}
VEC vsc vec_scale(vi s)
{
    return vec_tof(s);
}
VEC vsc vec_load_scale(const int32_t *p)
{
    return vec_as_f(vec_load(p));
}
VEC void vec_store_scale(int32_t *p, vsc s)
{
    vec_store(p, _mm512_castps_si512(s));
}
VEC vp vec_sum_low(vi c, vsc s)
{
    return vec_mul(vec_tof(c), s);
}
VEC vp vec_sum_high(vp low, vi c, vsc s, const int16_t *pair, int post)
{
    vf p = vec_fma(vec_tof(c), s, low);
    return post ? vec_addf(p, vec_tof(vec_start(pair, post))) : p;
}
VEC vf vec_p(vp p)
{
    return p;
}

/* the code book of IQ4, + 128 */
#define table_iq4 _mm_setr_epi8(1, 24, 45, 63, 79, 93, 106, 118, -127, -115, -103, -90, -75, -59, -39, -15)
#define table_fp4 _mm_setr_epi8(12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0) /* doubled, + 12 */

#include "backend_cpu/linear_tile.h"
#include "backend_cpu/linear_many.h"

const struct cpu_kernels cpu_kernels_avx512vnni_linear = {
    .dot =
        {
#define DOT_ENTRY(name, directs, class, W, D, M, SC, MN, BHEAD, BODY) [CPU_LAYOUT_##name] = dot_##name,
            TILE_FORMATS(DOT_ENTRY)
#undef DOT_ENTRY
        },
};
