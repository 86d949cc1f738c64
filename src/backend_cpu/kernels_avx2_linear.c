/* backend_cpu/kernels_avx2_linear.c - level avx2 of the linear family: AVX2, FMA, F16C, BMI2.
 *
 * Integer sums by maddubs: the 16 products a 16-bit lane collects stay below 2^15 by the choice of offsets (linear_tile.h), signed
 * bytes are multiplied as |w| * sign(a, w) (a >= -127).  Bit-equal to level ref. */
#include "backend_cpu/kernels.h"
#include "backend_cpu/linear_kinds.h"

#include <immintrin.h>
#include <string.h>

#define VEC_BYTES 32
typedef __m256i vi;
typedef __m256 vf;
typedef __m256i vp;    /* P, an integer */
typedef __m256i vsc;   /* an integer scale in both 16-bit halves of a lane */
typedef __m256i vsign; /* the signed weights themselves */

#define VEC static inline __attribute__((always_inline))

VEC vi vec_load(const void *p)
{
    return _mm256_loadu_si256(p);
}
VEC void vec_store(void *p, vi v)
{
    _mm256_storeu_si256(p, v);
}
VEC vf vec_loadf(const float *p)
{
    return _mm256_loadu_ps(p);
}
VEC void vec_storef(float *p, vf v)
{
    _mm256_storeu_ps(p, v);
}
VEC vi vec_set8(int v)
{
    return _mm256_set1_epi8((char)v);
}
VEC vi vec_set16(int v)
{
    return _mm256_set1_epi16((short)v);
}
VEC vi vec_set32(int v)
{
    return _mm256_set1_epi32(v);
}
VEC vf vec_zerof(void)
{
    return _mm256_setzero_ps();
}
VEC vi vec_repeat32(const void *p)
{
    return _mm256_castps_si256(_mm256_broadcast_ss((const float *)p)); /* in the load unit alone */
}
VEC vf vec_repeatf(const float *p)
{
    return _mm256_broadcast_ss(p);
}
VEC vi vec_and(vi a, vi b)
{
    return _mm256_and_si256(a, b);
}
VEC vi vec_or(vi a, vi b)
{
    return _mm256_or_si256(a, b);
}
VEC vi vec_srl16(vi a, int n)
{
    return _mm256_srli_epi16(a, n);
}
VEC vi vec_sll16(vi a, int n)
{
    return _mm256_slli_epi16(a, n);
}
VEC vi vec_srl32(vi a, int n)
{
    return _mm256_srli_epi32(a, n);
}
VEC vi vec_sll32(vi a, int n)
{
    return _mm256_slli_epi32(a, n);
}
VEC vi vec_sllv32(vi a, vi n)
{
    return _mm256_sllv_epi32(a, n);
}
VEC vi vec_addd(vi a, vi b)
{
    return _mm256_add_epi32(a, b);
}
VEC vi vec_madd(vi a, vi b)
{
    return _mm256_madd_epi16(a, b);
}
VEC vi vec_select_less(vi a, vi b, vi less, vi otherwise) /* a < b, per 32 bits */
{
    return _mm256_blendv_epi8(otherwise, less, _mm256_cmpgt_epi32(b, a));
}
VEC vf vec_as_f(vi a)
{
    return _mm256_castsi256_ps(a);
}
VEC vf vec_tof(vi a)
{
    return _mm256_cvtepi32_ps(a);
}
VEC vf vec_mul(vf a, vf b)
{
    return _mm256_mul_ps(a, b);
}
VEC vf vec_addf(vf a, vf b)
{
    return _mm256_add_ps(a, b);
}
VEC vf vec_fma(vf a, vf b, vf c)
{
    return _mm256_fmadd_ps(a, b, c);
}
VEC vf vec_neg(vf a)
{
    return _mm256_xor_ps(a, _mm256_set1_ps(-0.0f));
}
VEC vf vec_f16(const void *p)
{
    return _mm256_cvtph_ps(_mm_loadu_si128(p));
}
VEC vf vec_bf16(const void *p)
{
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128(p)), 16));
}
VEC vi vec_u8(const void *p)
{
    return _mm256_cvtepu8_epi32(_mm_loadl_epi64(p));
}
VEC vi vec_i8(const void *p)
{
    return _mm256_cvtepi8_epi32(_mm_loadl_epi64(p));
}
VEC vi vec_lookup(__m128i table, vi index)
{
    return _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(table), index);
}
VEC vi vec_signed(vi w)
{
    return w;
}
VEC vsign vec_sign(vi w)
{
    return w;
}
VEC vi vec_size(vi w)
{
    return _mm256_abs_epi8(w);
}

/* ---- integer sums ---- */

VEC vi vec_start_wide(const int16_t *pair, int kind, int z, int post)
{
    (void)post;
    return kind == KIND_WIDE && z ? _mm256_mullo_epi16(vec_repeat32(pair), vec_set16(-z)) : _mm256_setzero_si256();
}
VEC vi vec_start_half(const int16_t *pair, int z)
{
    return z ? _mm256_mullo_epi16(vec_repeat32(pair), vec_set16(-z)) : _mm256_setzero_si256();
}
/* Integer sums may be put into any order, and compilers do: all products first, then a tree, everything spilled in between.  This
 * keeps a chain a chain. */
VEC vi vec_in_order(vi c)
{
    __asm__("" : "+x"(c));
    return c;
}
VEC vi vec_dot(vi c, vi w, vi a)
{
    return vec_in_order(_mm256_add_epi16(c, _mm256_maddubs_epi16(w, a)));
}
VEC vi vec_dot_signed(vi c, vi size, vsign sign, vi a)
{
    vi products = _mm256_maddubs_epi16(size, _mm256_sign_epi8(a, sign));
    return vec_in_order(_mm256_add_epi32(c, _mm256_madd_epi16(products, vec_set16(1))));
}
/* Where many rows meet a signed weight w: sum w a = sum |w| (a ^ m) + sum of |w| where w < 0, m the mask of w < 0: the mask is made
 * once, the exclusive or runs on any port where sign would not, and the last sum is the weights' own. */
#define VEC_FLIPS 1
VEC vi vec_negative(vi w)
{
    return _mm256_cmpgt_epi8(_mm256_setzero_si256(), w);
}
VEC vi vec_sum8(vi w) /* unsigned bytes <= 128 to sums of 4 */
{
    return _mm256_madd_epi16(_mm256_maddubs_epi16(w, vec_set8(1)), vec_set16(1));
}
VEC vi vec_dot_flipped(vi c, vi size, vi mask, vi a)
{
    vi products = _mm256_maddubs_epi16(size, _mm256_xor_si256(a, mask));
    return vec_in_order(_mm256_add_epi32(c, _mm256_madd_epi16(products, vec_set16(1))));
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

VEC void prefetch(const uint8_t *body, int bytes, size_t delta)
{
    (void)delta;
    for (int i = 0; i < bytes; i += 64)
        _mm_prefetch((const char *)body + 4096 + i, _MM_HINT_T0);
}

#define table_iq4 _mm_setr_epi8(-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)
#define table_fp4 _mm_setr_epi8(12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0) /* doubled, + 12 */

#include "backend_cpu/linear_tile.h"
#include "backend_cpu/linear_many.h"
#include "backend_cpu/linear_float.h"

/* ---- activations ---- */

VEC vf biggest(vf m, vf x)
{
    return _mm256_max_ps(_mm256_andnot_ps(_mm256_set1_ps(-0.0f), x), m); /* a NaN is passed over */
}

static void quantize_block(const float *x, struct cpu_act *out)
{
    vf x0 = vec_loadf(x), x1 = vec_loadf(x + 8), x2 = vec_loadf(x + 16), x3 = vec_loadf(x + 24);
    vf m8 = biggest(biggest(biggest(biggest(vec_zerof(), x0), x1), x2), x3);
    __m128 m4 = _mm_max_ps(_mm256_castps256_ps128(m8), _mm256_extractf128_ps(m8, 1));
    m4 = _mm_max_ps(m4, _mm_movehl_ps(m4, m4));
    float m = _mm_cvtss_f32(_mm_max_ss(m4, _mm_movehdup_ps(m4)));
    float s = 0.0f, id = 0.0f;
    if (m >= 1e-30f)
        s = m / 127.0f, id = 127.0f / m;
    vf scale = _mm256_set1_ps(id);
    vi q0 = _mm256_cvtps_epi32(vec_mul(x0, scale)), q1 = _mm256_cvtps_epi32(vec_mul(x1, scale));
    vi q2 = _mm256_cvtps_epi32(vec_mul(x2, scale)), q3 = _mm256_cvtps_epi32(vec_mul(x3, scale));
    vi q = _mm256_packs_epi16(_mm256_packs_epi32(q0, q1), _mm256_packs_epi32(q2, q3));
    q = _mm256_permutevar8x32_epi32(q, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
    vi bad = _mm256_cmpeq_epi8(q, vec_set8(-128)); /* only what is not finite becomes -128 */
    if (_mm256_movemask_epi8(bad))
        s = __builtin_nanf(""), q = _mm256_sub_epi8(q, bad);
    _mm256_storeu_si256((void *)out->q, q);
    /* sums of pairs within groups of 4, then over the 4 groups of each half */
    vi pair = _mm256_maddubs_epi16(vec_set8(1), q);
    pair = _mm256_add_epi16(pair, _mm256_srli_si256(pair, 8));
    pair = _mm256_add_epi16(pair, _mm256_srli_si256(pair, 4));
    int low = _mm_cvtsi128_si32(_mm256_castsi256_si128(pair)), high = _mm_cvtsi128_si32(_mm256_extracti128_si256(pair, 1));
    memcpy(out->pair_lo, &low, sizeof low);
    memcpy(out->pair_hi, &high, sizeof high);
    for (int i = 0; i < 2; i++)
        out->pair[i] = (int16_t)(out->pair_lo[i] + out->pair_hi[i]);
    out->half[0] = (int16_t)(out->pair_lo[0] + out->pair_lo[1]);
    out->half[1] = (int16_t)(out->pair_hi[0] + out->pair_hi[1]);
    out->s = s;
    out->ss = s * (float)(out->half[0] + out->half[1]);
}

static void quantize(const float *x, uint32_t cols, struct cpu_act *out)
{
    for (uint32_t b = 0; b < cols / 32; b++)
        quantize_block(x + 32 * b, out + b);
}

static void finish_row(const float *dot, float *y, const struct cpu_finish *j)
{
    vf alpha = _mm256_set1_ps(j->alpha);
    uint32_t i = 0;
    for (; i + 8 <= j->cols; i += 8) {
        vf v = vec_loadf(dot + i);
        v = j->bias ? vec_addf(v, vec_loadf(j->bias + i)) : v;
        v = vec_mul(v, alpha); /* times 1 changes nothing */
        vec_storef(y + i, j->add ? vec_addf(vec_loadf(y + i), v) : v);
    }
    for (; i < j->cols; i++) {
        float v = j->bias ? dot[i] + j->bias[i] : dot[i];
        v = v * j->alpha;
        y[i] = j->add ? y[i] + v : v;
    }
}

static void finish(const struct cpu_finish *j)
{
    for (uint32_t r = 0; r < j->rows; r++)
        finish_row(j->dot + r * j->dot_stride, j->y + r * j->y_stride, j);
}

const struct cpu_kernels cpu_kernels_avx2_linear = {
    .quantize = quantize,
    .finish = finish,
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
