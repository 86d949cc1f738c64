/* backend_cpu/kernels_avx512_state.h - level avx512 of the recurrent layers' kernels; the small ones are avx2's.  Included by
 * kernels_avx512_rows.c only. */
#ifndef RH_KERNELS_AVX512_STATE_H
#define RH_KERNELS_AVX512_STATE_H

static void conv(const struct cpu_conv *job)
{
    const __m512 one = v16_set(1.0f), minus = v16_set(-0.0f);
    for (uint32_t c = 0; c < job->n; c += 16) {
        __mmask16 m = v16_first(job->n - c);
        __m512 s = _mm512_setzero_ps();
        for (uint32_t i = 0; i < job->taps; i++) {
            __m512 x = job->in[i] ? _mm512_maskz_loadu_ps(m, job->in[i] + c) : _mm512_setzero_ps();
            s = _mm512_fmadd_ps(_mm512_maskz_loadu_ps(m, job->w + i * job->w_step + c), x, s);
        }
        if (job->bias)
            s = _mm512_add_ps(s, _mm512_maskz_loadu_ps(m, job->bias + c));
        if (job->silu)
            s = _mm512_div_ps(s, _mm512_add_ps(one, v16_exp(_mm512_xor_ps(s, minus))));
        _mm512_mask_storeu_ps(job->out + c, m, s);
    }
}

/* rows of a: 1 or 4; 32 columns, the second 16 masked */
#define PRODUCT_START(name, row)                                                                                   \
    __m512 name##0 = job->carry ? _mm512_maskz_loadu_ps(m0, out + (row) * job->out_step) : _mm512_setzero_ps();   \
    __m512 name##1 = job->carry ? _mm512_maskz_loadu_ps(m1, out + (row) * job->out_step + 16) : _mm512_setzero_ps();
#define PRODUCT_STEP(name, row)                        \
    x = v16_set(a[(row) * job->a_step + k]);           \
    name##0 = _mm512_fmadd_ps(x, b0, name##0);         \
    name##1 = _mm512_fmadd_ps(x, b1, name##1);
#define PRODUCT_END(name, row)                                           \
    _mm512_mask_storeu_ps(out + (row) * job->out_step, m0, name##0);     \
    _mm512_mask_storeu_ps(out + (row) * job->out_step + 16, m1, name##1);

INLINE void product_4(const struct cpu_product *job, const float *a, const float *b, float *out, __mmask16 m0, __mmask16 m1)
{
    PRODUCT_START(s, 0)
    PRODUCT_START(t, 1)
    PRODUCT_START(u, 2)
    PRODUCT_START(v, 3)
    for (uint32_t k = 0; k < job->k; k++, b += job->b_step) {
        __m512 b0 = _mm512_maskz_loadu_ps(m0, b), b1 = _mm512_maskz_loadu_ps(m1, b + 16), x;
        PRODUCT_STEP(s, 0)
        PRODUCT_STEP(t, 1)
        PRODUCT_STEP(u, 2)
        PRODUCT_STEP(v, 3)
    }
    PRODUCT_END(s, 0)
    PRODUCT_END(t, 1)
    PRODUCT_END(u, 2)
    PRODUCT_END(v, 3)
}

INLINE void product_1(const struct cpu_product *job, const float *a, const float *b, float *out, __mmask16 m0, __mmask16 m1)
{
    PRODUCT_START(s, 0)
    for (uint32_t k = 0; k < job->k; k++, b += job->b_step) {
        __m512 b0 = _mm512_maskz_loadu_ps(m0, b), b1 = _mm512_maskz_loadu_ps(m1, b + 16), x;
        PRODUCT_STEP(s, 0)
    }
    PRODUCT_END(s, 0)
}

static void product(const struct cpu_product *job)
{
    for (uint32_t c = 0; c < job->n; c += 32) {
        __mmask16 m0 = v16_first(job->n - c), m1 = job->n - c > 16 ? v16_first(job->n - c - 16) : 0;
        uint32_t i = 0;
        for (; i + 4 <= job->m; i += 4)
            product_4(job, job->a + i * job->a_step, job->b + c, job->out + i * job->out_step + c, m0, m1);
        for (; i < job->m; i++)
            product_1(job, job->a + i * job->a_step, job->b + c, job->out + i * job->out_step + c, m0, m1);
    }
}

#endif
