/* backend_cpu/kernels_avx2_rows.c - level avx2 of norms, activations and sampling; attention is in kernels_avx2_attention.h.
 *
 * Every lane does what ref does (kernels_ref_rows.c); tails go through the same vector code on a padded copy or a mask. */
#include "backend_cpu/kernels_avx2_attention.h"
#include "backend_cpu/kernels_avx2_flip.h"
#include "backend_cpu/kernels_avx2_unpack.h"

#include <string.h>

/* Run `body` over n floats in vectors of 8: `at` is the index, `load`/`store` handle the tail.  */
static inline __attribute__((always_inline)) __m256 load_n(const float *p, uint32_t left)
{
    return left >= 8 ? _mm256_loadu_ps(p) : _mm256_maskload_ps(p, v8_first(left));
}

static inline __attribute__((always_inline)) void store_n(float *p, uint32_t left, __m256 v)
{
    if (left >= 8)
        _mm256_storeu_ps(p, v);
    else
        _mm256_maskstore_ps(p, v8_first(left), v);
}

#include "backend_cpu/kernels_avx2_state.h"

static float squares(const float *x, uint32_t n)
{
    __m256 low = _mm256_setzero_ps(), high = low;
    uint32_t i = 0;
    for (; i + 16 <= n; i += 16) {
        __m256 a = _mm256_loadu_ps(x + i), b = _mm256_loadu_ps(x + i + 8);
        low = _mm256_fmadd_ps(a, a, low);
        high = _mm256_fmadd_ps(b, b, high);
    }
    if (i < n) {
        __m256 a = load_n(x + i, n - i);
        low = _mm256_fmadd_ps(a, a, low); /* +0 onto a sum of squares changes nothing */
        if (n - i > 8) {
            a = load_n(x + i + 8, n - i - 8);
            high = _mm256_fmadd_ps(a, a, high);
        }
    }
    return v8_tree16(low, high);
}

static void norm(const float *x, const float *w, float *y, uint32_t n, float eps, bool add, float scale)
{
    float r = 1.0f / __builtin_sqrtf(squares(x, n) / (float)n + eps);
    __m256 rr = v8_set(r), ss = v8_set(scale);
    for (uint32_t i = 0; i < n; i += 8) {
        __m256 v = _mm256_mul_ps(_mm256_mul_ps(load_n(x + i, n - i), rr), load_n(w + i, n - i));
        if (add)
            v = _mm256_add_ps(load_n(y + i, n - i), _mm256_mul_ps(v, ss));
        store_n(y + i, n - i, v);
    }
}

/* Mean of n values and, in `square`, of the squares of what they are off it. */
static float mean_of(const float *x, uint32_t n, float *square)
{
    __m256 low = _mm256_setzero_ps(), high = low;
    for (uint32_t i = 0; i < n; i += 16) { /* +0 onto a sum that began with +0 changes nothing */
        low = _mm256_add_ps(low, load_n(x + i, n - i));
        if (n - i > 8)
            high = _mm256_add_ps(high, load_n(x + i + 8, n - i - 8));
    }
    float m = v8_tree16(low, high) / (float)n;
    __m256 mean = v8_set(m);
    low = high = _mm256_setzero_ps();
    for (uint32_t i = 0; i < n; i += 16) {
        uint32_t left = n - i;
        __m256 a = _mm256_sub_ps(load_n(x + i, left), mean), b = _mm256_setzero_ps();
        if (left < 8)
            a = _mm256_and_ps(a, _mm256_castsi256_ps(v8_first(left)));
        if (left > 8)
            b = _mm256_sub_ps(load_n(x + i + 8, left - 8), mean);
        if (left > 8 && left < 16)
            b = _mm256_and_ps(b, _mm256_castsi256_ps(v8_first(left - 8)));
        low = _mm256_fmadd_ps(a, a, low);
        high = _mm256_fmadd_ps(b, b, high);
    }
    *square = v8_tree16(low, high) / (float)n;
    return m;
}

static void norm_centred(const float *x, const float *w, float *y, uint32_t n, float eps)
{
    float square;
    __m256 mean = v8_set(mean_of(x, n, &square)), r = v8_set(1.0f / __builtin_sqrtf(square + eps));
    for (uint32_t i = 0; i < n; i += 8)
        store_n(y + i, n - i, _mm256_mul_ps(_mm256_mul_ps(_mm256_sub_ps(load_n(x + i, n - i), mean), r), load_n(w + i, n - i)));
}

static void sparsify(float *x, uint32_t n, float factor)
{
    float square, mean = mean_of(x, n, &square);
    __m256 cut = v8_set(mean + __builtin_sqrtf(square) * factor);
    for (uint32_t i = 0; i < n; i += 8)
        store_n(x + i, n - i, _mm256_max_ps(_mm256_sub_ps(load_n(x + i, n - i), cut), _mm256_setzero_ps()));
}

static void fused(float a, const float *x, float *y, uint32_t n)
{
    __m256 aa = v8_set(a);
    for (uint32_t i = 0; i < n; i += 8)
        store_n(y + i, n - i, _mm256_fmadd_ps(aa, load_n(x + i, n - i), load_n(y + i, n - i)));
}

static void rope_halves(float *x, const float *cosine, const float *sine, uint32_t n)
{
    const __m256 minus = v8_set(-0.0f);
    for (uint32_t i = 0; i < n; i += 8) {
        uint32_t left = n - i;
        __m256 x0 = load_n(x + i, left), x1 = load_n(x + n + i, left), c = load_n(cosine + i, left), s = load_n(sine + i, left);
        store_n(x + i, left, _mm256_fmadd_ps(_mm256_xor_ps(x1, minus), s, _mm256_mul_ps(x0, c)));
        store_n(x + n + i, left, _mm256_fmadd_ps(x0, s, _mm256_mul_ps(x1, c)));
    }
}

static void rope(float *x, const float *cosine, const float *sine, uint32_t n, bool adjacent)
{
    if (!adjacent) {
        rope_halves(x, cosine, sine, n);
        return;
    }
    for (uint32_t i = 0; i < n; i++) {
        float x0 = x[2 * i], x1 = x[2 * i + 1];
        x[2 * i] = __builtin_fmaf(-x1, sine[i], x0 * cosine[i]);
        x[2 * i + 1] = __builtin_fmaf(x0, sine[i], x1 * cosine[i]);
    }
}

static void gated_silu(const float *gate, const float *up, float *y, uint32_t n)
{
    const __m256 one = v8_set(1.0f), minus = v8_set(-0.0f);
    for (uint32_t i = 0; i < n; i += 8) {
        __m256 g = load_n(gate + i, n - i), u = load_n(up + i, n - i);
        __m256 d = _mm256_add_ps(one, v8_exp(_mm256_xor_ps(g, minus)));
        store_n(y + i, n - i, _mm256_mul_ps(_mm256_div_ps(g, d), u));
    }
}

static void gated_gelu_tanh(const float *gate, const float *up, float *y, uint32_t n)
{
    for (uint32_t i = 0; i < n; i += 8) {
        __m256 x = load_n(gate + i, n - i), u = load_n(up + i, n - i);
        __m256 z = _mm256_fmadd_ps(_mm256_mul_ps(_mm256_mul_ps(x, x), x), v8_set(0.044715f), x);
        z = _mm256_mul_ps(z, v8_set(-1.5957691f));
        store_n(y + i, n - i, _mm256_mul_ps(_mm256_div_ps(x, _mm256_add_ps(v8_set(1.0f), v8_exp(z))), u));
    }
}

static void gated_gelu_erf(const float *gate, const float *up, float *y, uint32_t n)
{
    for (uint32_t i = 0; i < n; i += 8) {
        __m256 x = load_n(gate + i, n - i), u = load_n(up + i, n - i);
        __m256 e = _mm256_add_ps(v8_set(1.0f), v8_erf(_mm256_mul_ps(x, v8_set(0.70710678f))));
        store_n(y + i, n - i, _mm256_mul_ps(_mm256_mul_ps(_mm256_mul_ps(x, v8_set(0.5f)), e), u));
    }
}

static void gated_sigmoid(const float *gate, const float *up, float *y, uint32_t n)
{
    const __m256 one = v8_set(1.0f), minus = v8_set(-0.0f);
    for (uint32_t i = 0; i < n; i += 8) {
        __m256 g = load_n(gate + i, n - i), u = load_n(up + i, n - i);
        __m256 d = _mm256_add_ps(one, v8_exp(_mm256_xor_ps(g, minus)));
        store_n(y + i, n - i, _mm256_mul_ps(_mm256_div_ps(one, d), u));
    }
}

/* min and max give their second operand where one is NaN: it stays */
static void gated_clamped(const float *gate, const float *up, float *y, uint32_t n)
{
    const __m256 one = v8_set(1.0f), most = v8_set(7.0f), least = v8_set(-7.0f), by = v8_set(-1.702f);
    for (uint32_t i = 0; i < n; i += 8) {
        __m256 g = _mm256_min_ps(most, load_n(gate + i, n - i)), u = _mm256_min_ps(most, load_n(up + i, n - i));
        u = _mm256_add_ps(_mm256_max_ps(least, u), one);
        __m256 d = _mm256_add_ps(one, v8_exp(_mm256_mul_ps(g, by)));
        store_n(y + i, n - i, _mm256_mul_ps(_mm256_div_ps(g, d), u));
    }
}

static void gated_relu(const float *gate, const float *up, float *y, uint32_t n)
{
    for (uint32_t i = 0; i < n; i += 8)
        store_n(y + i, n - i, _mm256_mul_ps(_mm256_max_ps(load_n(gate + i, n - i), _mm256_setzero_ps()), load_n(up + i, n - i)));
}

static void xielu(float *x, uint32_t n, float ap, float an, float b, float eps)
{
    __m256 pp = v8_set(ap), nn = v8_set(an), bb = v8_set(b), ee = v8_set(eps), one = v8_set(1.0f);
    for (uint32_t i = 0; i < n; i += 8) {
        __m256 v = load_n(x + i, n - i), e = _mm256_sub_ps(v8_exp(_mm256_min_ps(v, ee)), one);
        __m256 below = _mm256_mul_ps(_mm256_sub_ps(e, v), nn), above = _mm256_mul_ps(_mm256_mul_ps(pp, v), v);
        __m256 curve = _mm256_blendv_ps(below, above, _mm256_cmp_ps(v, _mm256_setzero_ps(), _CMP_GT_OQ));
        store_n(x + i, n - i, _mm256_add_ps(curve, _mm256_mul_ps(bb, v)));
    }
}

static void add(const float *x, float *y, uint32_t n, float x_scale, float y_scale)
{
    __m256 xs = v8_set(x_scale), ys = v8_set(y_scale);
    for (uint32_t i = 0; i < n; i += 8) {
        __m256 a = _mm256_mul_ps(load_n(y + i, n - i), ys), b = _mm256_mul_ps(load_n(x + i, n - i), xs);
        store_n(y + i, n - i, _mm256_add_ps(a, b));
    }
}

static void softcap(float *x, uint32_t n, float by, float cap)
{
    __m256 bb = v8_set(by), cc = v8_set(cap);
    for (uint32_t i = 0; i < n; i += 8) {
        __m256 t = _mm256_div_ps(_mm256_mul_ps(load_n(x + i, n - i), bb), cc);
        store_n(x + i, n - i, _mm256_mul_ps(cc, v8_tanh(t)));
    }
}

static void scale(const float *x, float *y, uint32_t n, float by)
{
    __m256 bb = v8_set(by);
    for (uint32_t i = 0; i < n; i += 8)
        store_n(y + i, n - i, _mm256_mul_ps(load_n(x + i, n - i), bb));
}

static void to_f16(const float *x, uint16_t *y, uint32_t n)
{
    uint32_t i = 0;
    for (; i + 8 <= n; i += 8)
        _mm_storeu_si128((__m128i *)(void *)(y + i), _mm256_cvtps_ph(_mm256_loadu_ps(x + i), _MM_FROUND_TO_NEAREST_INT));
    if (i < n) {
        uint16_t tail[8];
        _mm_storeu_si128((__m128i *)(void *)tail, _mm256_cvtps_ph(load_n(x + i, n - i), _MM_FROUND_TO_NEAREST_INT));
        memcpy(y + i, tail, (n - i) * sizeof *y);
    }
}

/* ---- sampling ---- */

static float argmax(const float *x, uint32_t n, uint32_t *index)
{
    __m256 best = v8_set(-__builtin_inff());
    __m256i where = _mm256_setzero_si256(), at = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7), eight = _mm256_set1_epi32(8);
    uint32_t i = 0;
    for (; i + 8 <= n; i += 8) {
        __m256 v = _mm256_loadu_ps(x + i), more = _mm256_cmp_ps(v, best, _CMP_GT_OQ);
        best = _mm256_blendv_ps(best, v, more);
        where = _mm256_blendv_epi8(where, at, _mm256_castps_si256(more));
        at = _mm256_add_epi32(at, eight);
    }
    float values[8], most = -__builtin_inff();
    uint32_t ids[8];
    _mm256_storeu_ps(values, best);
    _mm256_storeu_si256((__m256i *)(void *)ids, where);
    *index = 0;
    for (int j = 0; j < 8; j++)
        if (values[j] > most || (values[j] == most && most > -__builtin_inff() && ids[j] < *index))
            most = values[j], *index = ids[j];
    for (; i < n; i++)
        if (x[i] > most)
            most = x[i], *index = i;
    return most;
}

static float expsum(const float *x, uint32_t n, float max)
{
    __m256 low = _mm256_setzero_ps(), high = low, mm = v8_set(max), l2 = v8_set(1.44269504f);
    for (uint32_t i = 0; i < n; i += 16) {
        uint32_t left = n - i;
        __m256 e = v8_exp2(_mm256_mul_ps(_mm256_sub_ps(load_n(x + i, left), mm), l2));
        if (left < 8)
            e = _mm256_and_ps(e, _mm256_castsi256_ps(v8_first(left)));
        low = _mm256_add_ps(low, e);
        if (left <= 8)
            break;
        e = v8_exp2(_mm256_mul_ps(_mm256_sub_ps(load_n(x + i + 8, left - 8), mm), l2));
        if (left < 16)
            e = _mm256_and_ps(e, _mm256_castsi256_ps(v8_first(left - 8)));
        high = _mm256_add_ps(high, e);
    }
    return v8_tree16(low, high);
}

/* four f32 -> the integers rne(2^40 e), added to sum: 1.5 * 2^52 + integer has the integer in its low bits */
static inline __attribute__((always_inline)) __m256i mass_4(__m256i sum, __m128 e)
{
    const __m256d magic = _mm256_set1_pd(0x1.8p52);
    __m256d v = _mm256_add_pd(_mm256_mul_pd(_mm256_cvtps_pd(e), _mm256_set1_pd(0x1p40)), magic);
    return _mm256_add_epi64(sum, _mm256_sub_epi64(_mm256_castpd_si256(v), _mm256_castpd_si256(magic)));
}

static uint64_t mass(const float *x, uint32_t n, float t, float max)
{
    __m256i sum = _mm256_setzero_si256();
    __m256 tt = v8_set(t), mm = v8_set(max), l2 = v8_set(1.44269504f);
    for (uint32_t i = 0; i < n; i += 8) {
        __m256 z = _mm256_div_ps(load_n(x + i, n - i), tt);
        __m256 e = v8_exp2(_mm256_mul_ps(_mm256_sub_ps(z, mm), l2));
        if (n - i < 8)
            e = _mm256_and_ps(e, _mm256_castsi256_ps(v8_first(n - i)));
        sum = mass_4(sum, _mm256_castps256_ps128(e));
        sum = mass_4(sum, _mm256_extractf128_ps(e, 1));
    }
    uint64_t parts[4];
    _mm256_storeu_si256((__m256i *)(void *)parts, sum);
    return parts[0] + parts[1] + parts[2] + parts[3];
}

static uint32_t pick(const float *x, uint32_t n, float least, uint32_t *out, uint32_t cap)
{
    uint32_t count = 0;
    __m256 limit = v8_set(least);
    for (uint32_t i = 0; i < n; i += 8) {
        unsigned hits = (unsigned)_mm256_movemask_ps(_mm256_cmp_ps(load_n(x + i, n - i), limit, _CMP_GE_OQ));
        if (n - i < 8)
            hits &= (1u << (n - i)) - 1;
        for (; hits; hits &= hits - 1) {
            if (count == cap)
                return UINT32_MAX;
            out[count++] = i + (uint32_t)__builtin_ctz(hits);
        }
    }
    return count;
}

/* low and high 32 bits of a * b, b the same in all lanes */
static inline __attribute__((always_inline)) void mul_wide(__m256i a, __m256i b, __m256i *low, __m256i *high)
{
    __m256i even = _mm256_mul_epu32(a, b), odd = _mm256_mul_epu32(_mm256_srli_epi64(a, 32), b);
    *low = _mm256_blend_epi32(even, _mm256_slli_epi64(odd, 32), 0xaa);
    *high = _mm256_blend_epi32(_mm256_srli_epi64(even, 32), odd, 0xaa);
}

static inline __attribute__((always_inline)) __m256 gumbel_of(__m256i bits)
{
    const __m256 minus = v8_set(-0.0f);
    __m256 u = _mm256_cvtepi32_ps(_mm256_srli_epi32(bits, 9));
    u = _mm256_mul_ps(_mm256_add_ps(u, v8_set(0.5f)), v8_set(0x1p-23f));
    return _mm256_xor_ps(v8_log(_mm256_xor_ps(v8_log(u), minus)), minus);
}

/* Noise of 32 ids: counters at .. at + 7, one per lane. */
static void gumbel_32(uint64_t key, const uint32_t counter[3], uint32_t at, float *out)
{
    __m256i c0 = _mm256_set1_epi32((int)counter[0]), c1 = _mm256_set1_epi32((int)counter[1]), c2 = _mm256_set1_epi32((int)counter[2]);
    __m256i c3 = _mm256_add_epi32(_mm256_set1_epi32((int)at), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
    const __m256i ma = _mm256_set1_epi64x(0xD2511F53), mb = _mm256_set1_epi64x(0xCD9E8D57);
    uint32_t k0 = (uint32_t)key, k1 = (uint32_t)(key >> 32);
    for (int r = 0; r < 10; r++) {
        __m256i al, ah, bl, bh;
        mul_wide(c0, ma, &al, &ah);
        mul_wide(c2, mb, &bl, &bh);
        c0 = _mm256_xor_si256(_mm256_xor_si256(bh, c1), _mm256_set1_epi32((int)k0));
        c2 = _mm256_xor_si256(_mm256_xor_si256(ah, c3), _mm256_set1_epi32((int)k1));
        c1 = bl, c3 = al;
        k0 += 0x9E3779B9u, k1 += 0xBB67AE85u;
    }
    __m256 g0 = gumbel_of(c0), g1 = gumbel_of(c1), g2 = gumbel_of(c2), g3 = gumbel_of(c3);
    /* lane i of g0..g3 are ids 4 i .. 4 i + 3 */
    __m256 a = _mm256_unpacklo_ps(g0, g1), b = _mm256_unpackhi_ps(g0, g1);
    __m256 c = _mm256_unpacklo_ps(g2, g3), d = _mm256_unpackhi_ps(g2, g3);
    __m256 r0 = _mm256_shuffle_ps(a, c, 0x44), r1 = _mm256_shuffle_ps(a, c, 0xee); /* lanes 0 | 4, 1 | 5 */
    __m256 r2 = _mm256_shuffle_ps(b, d, 0x44), r3 = _mm256_shuffle_ps(b, d, 0xee); /* lanes 2 | 6, 3 | 7 */
    _mm256_storeu_ps(out, _mm256_permute2f128_ps(r0, r1, 0x20));
    _mm256_storeu_ps(out + 8, _mm256_permute2f128_ps(r2, r3, 0x20));
    _mm256_storeu_ps(out + 16, _mm256_permute2f128_ps(r0, r1, 0x31));
    _mm256_storeu_ps(out + 24, _mm256_permute2f128_ps(r2, r3, 0x31));
}

static void gumbel(uint64_t key, const uint32_t counter[3], uint32_t first, uint32_t n, float *out)
{
    uint32_t i = 0;
    for (; i + 32 <= n; i += 32)
        gumbel_32(key, counter, (first + i) / 4, out + i);
    if (i < n) {
        float tail[32];
        gumbel_32(key, counter, (first + i) / 4, tail);
        memcpy(out + i, tail, (n - i) * sizeof *out);
    }
}

/* to_bf16 is integer code that ref already does well */
const struct cpu_kernels cpu_kernels_avx2_rows = {
    .norm = norm,
    .norm_centred = norm_centred,
    .rope = rope,
    .gated_silu = gated_silu,
    .gated_gelu_tanh = gated_gelu_tanh,
    .gated_gelu_erf = gated_gelu_erf,
    .gated_sigmoid = gated_sigmoid,
    .gated_clamped = gated_clamped,
    .gated_relu = gated_relu,
    .xielu = xielu,
    .fused = fused,
    .squares = squares,
    .sparsify = sparsify,
    .add = add,
    .softcap = softcap,
    .to_f16 = to_f16,
    .score_f32 = score_f32,
    .score_f16 = score_f16,
    .score_bf16 = score_bf16,
    .score_q8 = score_q8,
    .score_a8 = score_a8,
    .mix_f32 = mix_f32,
    .mix_f16 = mix_f16,
    .mix_bf16 = mix_bf16,
    .mix_q8 = mix_q8,
    .mix_a8 = mix_a8,
    .unpack4 = unpack4,
    .unpack3 = unpack3,
    .flip8 = flip8,
    .flip16 = flip16,
    .flip32 = flip32,
    .soft = soft,
    .fold = fold,
    .scale = scale,
    .conv = conv,
    .unit = unit,
    .mul = mul,
    .exps = exps,
    .product = product,
    .argmax = argmax,
    .expsum = expsum,
    .mass = mass,
    .pick = pick,
    .gumbel = gumbel,
};
