/* backend_cpu/kernels_avx2_product.h - level avx2: the one product under attention's scores and mixes.  Included by
 * kernels_avx2_attention.h only.
 *
 * Both have one shape: out[q][lane] = fma(a[q][k], b[k][lane], out[q][lane]), k ascending.
 *   scores: k = element, lanes = the 32 positions of the page, from +0;   mixes: k = position, lanes = 32 elements, onto o.
 * 3 queries x 4 vectors stay in registers, so a widened b serves three queries. */
#ifndef RH_KERNELS_AVX2_PRODUCT_H
#define RH_KERNELS_AVX2_PRODUCT_H

#include "backend_cpu/kernels.h"
#include "backend_cpu/vec_avx2.h"
#include "tensor/tensor.h"

#define INLINE static inline __attribute__((always_inline))

#define VEC_HALVES(p) _mm_loadu_si128((const __m128i *)(const void *)(p))
#define VEC_BYTES(p) _mm_loadl_epi64((const __m128i *)(const void *)(p))
#define VEC_HALF_SET _mm_set1_epi16
#include "backend_cpu/vec_operand.h"

#define LOAD4(name, p, carry)                                                                              \
    __m256 name##0 = carry ? _mm256_loadu_ps(p) : _mm256_setzero_ps();                                     \
    __m256 name##1 = carry ? _mm256_loadu_ps((p) + 8) : _mm256_setzero_ps();                               \
    __m256 name##2 = carry ? _mm256_loadu_ps((p) + 16) : _mm256_setzero_ps();                              \
    __m256 name##3 = carry ? _mm256_loadu_ps((p) + 24) : _mm256_setzero_ps();
#define STORE4(name, p)                 \
    _mm256_storeu_ps(p, name##0);       \
    _mm256_storeu_ps((p) + 8, name##1); \
    _mm256_storeu_ps((p) + 16, name##2); \
    _mm256_storeu_ps((p) + 24, name##3);
#define STEP4(name, a)                          \
    {                                           \
        __m256 x = _mm256_broadcast_ss(a);      \
        name##0 = _mm256_fmadd_ps(x, b0, name##0); \
        name##1 = _mm256_fmadd_ps(x, b1, name##1); \
        name##2 = _mm256_fmadd_ps(x, b2, name##2); \
        name##3 = _mm256_fmadd_ps(x, b3, name##3); \
    }

/* a[q] = a + q a_step, out[q] = out + q out_step; 32 lanes; the number of queries is in the name */
#define PRODUCT(format, SCALE, BASE)                                                                                    \
    INLINE void format##_product_1(const struct operand *b, const float *a, uint32_t n, float *out, bool carry)         \
    {                                                                                                                   \
        LOAD4(s, out, carry)                                                                                            \
        for (uint32_t k = 0; k < n; k++) {                                                                              \
            size_t at = k * b->step;                                                                                    \
            __builtin_prefetch(b->next + at * format##_bytes, 0, 2);                                                    \
            if (format##_bytes == 4)                                                                                    \
                __builtin_prefetch(b->next + at * format##_bytes + 64, 0, 2);                                           \
            __m256 scale = SCALE(b, k), base = BASE(b, k);                                                              \
            __m256 b0 = format##_load(b, at, scale, base), b1 = format##_load(b, at + 8, scale, base);                  \
            __m256 b2 = format##_load(b, at + 16, scale, base), b3 = format##_load(b, at + 24, scale, base);            \
            STEP4(s, a + k)                                                                                             \
        }                                                                                                               \
        STORE4(s, out)                                                                                                  \
    }                                                                                                                   \
    INLINE void format##_product_2(const struct operand *b, const float *a, size_t a_step, uint32_t n, float *out,      \
                                   size_t out_step, bool carry)                                                         \
    {                                                                                                                   \
        LOAD4(s, out, carry)                                                                                            \
        LOAD4(t, out + out_step, carry)                                                                                 \
        for (uint32_t k = 0; k < n; k++) {                                                                              \
            size_t at = k * b->step;                                                                                    \
            __builtin_prefetch(b->next + at * format##_bytes, 0, 2);                                                    \
            if (format##_bytes == 4)                                                                                    \
                __builtin_prefetch(b->next + at * format##_bytes + 64, 0, 2);                                           \
            __m256 scale = SCALE(b, k), base = BASE(b, k);                                                              \
            __m256 b0 = format##_load(b, at, scale, base), b1 = format##_load(b, at + 8, scale, base);                  \
            __m256 b2 = format##_load(b, at + 16, scale, base), b3 = format##_load(b, at + 24, scale, base);            \
            STEP4(s, a + k)                                                                                             \
            STEP4(t, a + a_step + k)                                                                                    \
        }                                                                                                               \
        STORE4(s, out)                                                                                                  \
        STORE4(t, out + out_step)                                                                                       \
    }                                                                                                                   \
    INLINE void format##_product_3(const struct operand *b, const float *a, size_t a_step, uint32_t n, float *out,      \
                                   size_t out_step, bool carry)                                                         \
    {                                                                                                                   \
        LOAD4(s, out, carry)                                                                                            \
        LOAD4(t, out + out_step, carry)                                                                                 \
        LOAD4(u, out + 2 * out_step, carry)                                                                             \
        for (uint32_t k = 0; k < n; k++) {                                                                              \
            size_t at = k * b->step;                                                                                    \
            __builtin_prefetch(b->next + at * format##_bytes, 0, 2);                                                    \
            if (format##_bytes == 4)                                                                                    \
                __builtin_prefetch(b->next + at * format##_bytes + 64, 0, 2);                                           \
            __m256 scale = SCALE(b, k), base = BASE(b, k);                                                              \
            __m256 x = _mm256_broadcast_ss(a + k), y = _mm256_broadcast_ss(a + a_step + k);                             \
            __m256 z = _mm256_broadcast_ss(a + 2 * a_step + k);                                                         \
            __m256 b0 = format##_load(b, at, scale, base);                                                              \
            s0 = _mm256_fmadd_ps(x, b0, s0), t0 = _mm256_fmadd_ps(y, b0, t0), u0 = _mm256_fmadd_ps(z, b0, u0);          \
            b0 = format##_load(b, at + 8, scale, base);                                                                 \
            s1 = _mm256_fmadd_ps(x, b0, s1), t1 = _mm256_fmadd_ps(y, b0, t1), u1 = _mm256_fmadd_ps(z, b0, u1);          \
            b0 = format##_load(b, at + 16, scale, base);                                                                \
            s2 = _mm256_fmadd_ps(x, b0, s2), t2 = _mm256_fmadd_ps(y, b0, t2), u2 = _mm256_fmadd_ps(z, b0, u2);          \
            b0 = format##_load(b, at + 24, scale, base);                                                                \
            s3 = _mm256_fmadd_ps(x, b0, s3), t3 = _mm256_fmadd_ps(y, b0, t3), u3 = _mm256_fmadd_ps(z, b0, u3);          \
        }                                                                                                               \
        STORE4(s, out)                                                                                                  \
        STORE4(t, out + out_step)                                                                                       \
        STORE4(u, out + 2 * out_step)                                                                                   \
    }                                                                                                                   \
    /* 8 lanes, one query: what is left when d is no multiple of 32 */                                                  \
    INLINE void format##_product_8(const struct operand *b, const float *a, uint32_t n, float *out)                     \
    {                                                                                                                   \
        __m256 s = _mm256_loadu_ps(out);                                                                                \
        for (uint32_t k = 0; k < n; k++)                                                                                \
            s = _mm256_fmadd_ps(_mm256_broadcast_ss(a + k), format##_load(b, k * b->step, SCALE(b, k), BASE(b, k)), s); \
        _mm256_storeu_ps(out, s);                                                                                       \
    }                                                                                                                   \
    INLINE void format##_product(const struct operand *b, const float *a, size_t a_step, uint32_t n, float *out,        \
                                 size_t out_step, uint32_t m, bool carry)                                               \
    {                                                                                                                   \
        uint32_t q = 0;                                                                                                 \
        for (; q + 3 <= m && m - q != 4; q += 3) /* 4 = 2 + 2 */                                                        \
            format##_product_3(b, a + q * a_step, a_step, n, out + q * out_step, out_step, carry);                      \
        for (; q + 2 <= m; q += 2)                                                                                      \
            format##_product_2(b, a + q * a_step, a_step, n, out + q * out_step, out_step, carry);                      \
        if (q < m)                                                                                                      \
            format##_product_1(b, a + q * a_step, n, out + q * out_step, carry);                                        \
    }                                                                                                                   \
    INLINE void format##_mix_tail(const struct operand *b, const struct cpu_mix *job, uint32_t e)                       \
    {                                                                                                                   \
        for (uint32_t q = 0; q < job->m; q++)                                                                           \
            format##_product_8(b, job->p + (size_t)q * KV_BLOCK + job->from, job->to - job->from,                       \
                               job->o + (size_t)q * job->d + e);                                                        \
    }

PRODUCT(f32, no_scale, no_scale)
PRODUCT(f16, no_scale, no_scale)
PRODUCT(bf16, no_scale, no_scale)
PRODUCT(q8, q8_scale, no_scale)
PRODUCT(a8, q8_scale, minimum)

#endif
