/* backend_cpu/kernels_avx2_state.h - level avx2 of the recurrent layers' kernels.  Included by kernels_avx2_rows.c only, behind its
 * load_n and store_n. */
#ifndef RH_KERNELS_AVX2_STATE_H
#define RH_KERNELS_AVX2_STATE_H

static void conv(const struct cpu_conv *job)
{
    const __m256 one = v8_set(1.0f), minus = v8_set(-0.0f);
    for (uint32_t c = 0; c < job->n; c += 8) {
        uint32_t left = job->n - c;
        __m256 s = _mm256_setzero_ps();
        for (uint32_t i = 0; i < job->taps; i++) {
            __m256 x = job->in[i] ? load_n(job->in[i] + c, left) : _mm256_setzero_ps();
            s = _mm256_fmadd_ps(load_n(job->w + i * job->w_step + c, left), x, s);
        }
        if (job->bias)
            s = _mm256_add_ps(s, load_n(job->bias + c, left));
        if (job->silu)
            s = _mm256_div_ps(s, _mm256_add_ps(one, v8_exp(_mm256_xor_ps(s, minus))));
        store_n(job->out + c, left, s);
    }
}

static void unit(float *x, uint32_t n, float eps, float by)
{
    __m256 low = _mm256_setzero_ps(), high = low;
    for (uint32_t i = 0; i < n; i += 16) {
        __m256 a = load_n(x + i, n - i);
        low = _mm256_fmadd_ps(a, a, low); /* +0 onto a sum of squares changes nothing */
        if (n - i > 8) {
            a = load_n(x + i + 8, n - i - 8);
            high = _mm256_fmadd_ps(a, a, high);
        }
    }
    __m256 r = v8_set(1.0f / __builtin_sqrtf(v8_tree16(low, high) + eps)), bb = v8_set(by);
    for (uint32_t i = 0; i < n; i += 8)
        store_n(x + i, n - i, _mm256_mul_ps(_mm256_mul_ps(load_n(x + i, n - i), r), bb));
}

static void mul(const float *x, float *y, uint32_t n)
{
    for (uint32_t i = 0; i < n; i += 8)
        store_n(y + i, n - i, _mm256_mul_ps(load_n(x + i, n - i), load_n(y + i, n - i)));
}

static void exps(float *x, uint32_t n)
{
    for (uint32_t i = 0; i < n; i += 8)
        store_n(x + i, n - i, v8_exp(load_n(x + i, n - i)));
}

static void product(const struct cpu_product *job)
{
    struct operand b = {.step = job->b_step};
    uint32_t c = 0;
    for (; c + 32 <= job->n; c += 32) {
        b.p = job->b + c, b.next = (const char *)b.p; /* the whole of b lies in the nearest caches */
        f32_product(&b, job->a, job->a_step, job->k, job->out + c, job->out_step, job->m, job->carry);
    }
    for (; c < job->n; c += 8) {
        b.p = job->b + c;
        for (uint32_t i = 0; i < job->m; i++) {
            float *out = job->out + i * job->out_step + c;
            if (!job->carry)
                _mm256_storeu_ps(out, _mm256_setzero_ps());
            f32_product_8(&b, job->a + i * job->a_step, job->k, out);
        }
    }
}

#endif
