/* backend_cpu/vec512_linear.h - the vector words of linear_tile.h with 16 lanes, what levels avx512 and avx512vnni share.
 *
 * Only for kernels_avx512*_linear.c.  A vector is one column group of one panel; the second vector is the next panel's. */
#include <immintrin.h>
#include <string.h>

#define VEC_BYTES 64
typedef __m512i vi;
typedef __m512 vf;

#define VEC static inline __attribute__((always_inline))

VEC vi vec_load(const void *p)
{
    return _mm512_loadu_si512(p);
}
VEC void vec_store(void *p, vi v)
{
    _mm512_storeu_si512(p, v);
}
VEC vf vec_loadf(const float *p)
{
    return _mm512_loadu_ps(p);
}
VEC void vec_storef(float *p, vf v)
{
    _mm512_storeu_ps(p, v);
}
VEC vi vec_set8(int v)
{
    return _mm512_set1_epi8((char)v);
}
VEC vi vec_set16(int v)
{
    return _mm512_set1_epi16((short)v);
}
VEC vi vec_set32(int v)
{
    return _mm512_set1_epi32(v);
}
VEC vf vec_zerof(void)
{
    return _mm512_setzero_ps();
}
VEC vi vec_repeat32(const void *p)
{
    int word;
    memcpy(&word, p, sizeof word);
    return _mm512_set1_epi32(word);
}
VEC vf vec_repeatf(const float *p)
{
    return _mm512_set1_ps(*p);
}
VEC vi vec_and(vi a, vi b)
{
    return _mm512_and_si512(a, b);
}
VEC vi vec_or(vi a, vi b)
{
    return _mm512_or_si512(a, b);
}
VEC vi vec_srl16(vi a, int n)
{
    return _mm512_srli_epi16(a, n);
}
VEC vi vec_sll16(vi a, int n)
{
    return _mm512_slli_epi16(a, n);
}
VEC vi vec_srl32(vi a, int n)
{
    return _mm512_srli_epi32(a, n);
}
VEC vi vec_sll32(vi a, int n)
{
    return _mm512_slli_epi32(a, n);
}
VEC vi vec_sllv32(vi a, vi n)
{
    return _mm512_sllv_epi32(a, n);
}
VEC vi vec_addd(vi a, vi b)
{
    return _mm512_add_epi32(a, b);
}
VEC vi vec_madd(vi a, vi b)
{
    return _mm512_madd_epi16(a, b);
}
VEC vi vec_select_less(vi a, vi b, vi less, vi otherwise) /* a < b, per 32 bits */
{
    return _mm512_mask_mov_epi32(otherwise, _mm512_cmpgt_epi32_mask(b, a), less);
}
VEC vf vec_as_f(vi a)
{
    return _mm512_castsi512_ps(a);
}
VEC vf vec_tof(vi a)
{
    return _mm512_cvtepi32_ps(a);
}
VEC vf vec_mul(vf a, vf b)
{
    return _mm512_mul_ps(a, b);
}
VEC vf vec_addf(vf a, vf b)
{
    return _mm512_add_ps(a, b);
}
VEC vf vec_fma(vf a, vf b, vf c)
{
    return _mm512_fmadd_ps(a, b, c);
}
VEC vf vec_neg(vf a)
{
    return _mm512_xor_ps(a, _mm512_set1_ps(-0.0f));
}
VEC vf vec_f16(const void *p)
{
    return _mm512_cvtph_ps(_mm256_loadu_si256(p));
}
VEC vf vec_bf16(const void *p)
{
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256(p)), 16));
}
VEC vi vec_u8(const void *p)
{
    return _mm512_cvtepu8_epi32(_mm_loadu_si128(p));
}
VEC vi vec_i8(const void *p)
{
    return _mm512_cvtepi8_epi32(_mm_loadu_si128(p));
}
VEC vi vec_lookup(__m128i table, vi index)
{
    return _mm512_shuffle_epi8(_mm512_broadcast_i32x4(table), index);
}
/* A column of a BF16 panel: dword i = row i | row i + 8 << 16; every word goes into the high half of its row's lane. */
VEC vf vec_bf16_rows(const void *p)
{
    __m512i order = _mm512_set_epi16(15, 0, 13, 0, 11, 0, 9, 0, 7, 0, 5, 0, 3, 0, 1, 0, 14, 0, 12, 0, 10, 0, 8, 0, 6, 0, 4, 0, 2, 0, 0, 0);
    return _mm512_castsi512_ps(_mm512_maskz_permutexvar_epi16(0xAAAAAAAAu, order, _mm512_castsi256_si512(_mm256_loadu_si256(p))));
}
/* Integer sums may be put into any order, and compilers do (see kernels_avx2_linear.c): this keeps a chain a chain. */
VEC vi vec_in_order(vi c)
{
    __asm__("" : "+v"(c));
    return c;
}

VEC void prefetch(const uint8_t *body, int bytes, size_t delta)
{
    for (int i = 0; i < bytes; i += 64) {
        _mm_prefetch((const char *)body + 4096 + i, _MM_HINT_T0);
        _mm_prefetch((const char *)body + delta + 4096 + i, _MM_HINT_T0);
    }
}
