/* backend_cpu/vec_operand.h - what attention's product reads, a vector of it at a time, in every plain and 8-bit format; and the two kernels
 * over a page made of that product.  One text for every width.
 *
 * Included behind a level's vec_<level>.h (VEC, MM, VEC_OF_BITS; vec_math.h says what they are), VEC_HALVES(p) and VEC_BYTES(p): as many
 * 16-bit and 8-bit elements as VEC has, VEC_HALF_SET(h): one of 16 bits in all.  Elements are widened exactly, or by one product, or one
 * fused one, each: the level's width changes no bit. */
/* where b comes from: elements of one format, `step` elements between k */
struct operand {
    const void *p;
    const char *next; /* asked for while p is read */
    size_t step;
    const uint16_t *scales, *minima; /* q8, a8: one f16 per k, scale_step apart; minima: a8 */
    size_t scale_step;
};

INLINE VEC f32_load(const struct operand *b, size_t at, VEC scale, VEC base)
{
    (void)scale, (void)base;
    return MM(loadu_ps)((const float *)b->p + at);
}

INLINE VEC f16_load(const struct operand *b, size_t at, VEC scale, VEC base)
{
    (void)scale, (void)base;
    return MM(cvtph_ps)(VEC_HALVES((const uint16_t *)b->p + at));
}

INLINE VEC bf16_load(const struct operand *b, size_t at, VEC scale, VEC base)
{
    (void)scale, (void)base;
    return VEC_OF_BITS(MM(slli_epi32)(MM(cvtepu16_epi32)(VEC_HALVES((const uint16_t *)b->p + at)), 16));
}

INLINE VEC q8_load(const struct operand *b, size_t at, VEC scale, VEC base)
{
    (void)base;
    return MM(mul_ps)(scale, MM(cvtepi32_ps)(MM(cvtepi8_epi32)(VEC_BYTES((const int8_t *)b->p + at))));
}

INLINE VEC a8_load(const struct operand *b, size_t at, VEC scale, VEC base)
{
    return MM(fmadd_ps)(MM(cvtepi32_ps)(MM(cvtepu8_epi32)(VEC_BYTES((const uint8_t *)b->p + at))), scale, base);
}

INLINE VEC no_scale(const struct operand *b, size_t k)
{
    (void)b, (void)k;
    return MM(setzero_ps)();
}

INLINE VEC q8_scale(const struct operand *b, size_t k)
{
    return MM(cvtph_ps)(VEC_HALF_SET((short)b->scales[k * b->scale_step]));
}

INLINE VEC minimum(const struct operand *b, size_t k)
{
    return MM(cvtph_ps)(VEC_HALF_SET((short)b->minima[k * b->scale_step]));
}

enum { f32_bytes = 4, f16_bytes = 2, bf16_bytes = 2, q8_bytes = 1, a8_bytes = 1 }; /* an element */

/* The product: out[q][lane] = fma(a[q][k], b[k][lane], out[q][lane]).  format##_mix_tail: the same on 8 lanes, where d is no multiple of 32. */
#define FLOAT_FORMAT(format, type)                                                                                       \
    static void score_##format(const struct cpu_score *job)                                                              \
    {                                                                                                                    \
        struct operand b = {.p = job->k, .next = job->next, .step = KV_PAGE};                                                               \
        format##_product(&b, job->q, job->d, job->d, job->s, KV_BLOCK, job->m, false);                                   \
    }                                                                                                                    \
    static void mix_##format(const struct cpu_mix *job)                                                                  \
    {                                                                                                                    \
        struct operand b = {.step = job->d};                                                                             \
        const type *v = (const type *)job->v + (size_t)job->from * job->d;                                               \
        const char *next = (const char *)job->next + (size_t)job->from * job->d * sizeof(type);                          \
        uint32_t e = 0;                                                                                                  \
        for (; e + 32 <= job->d; e += 32) {                                                                              \
            b.p = v + e, b.next = next + e * sizeof(type);                                                               \
            format##_product(&b, job->p + job->from, KV_BLOCK, job->to - job->from, job->o + e, job->d, job->m, true);   \
        }                                                                                                                \
        for (; e < job->d; e += 8) {                                                                                     \
            b.p = v + e;                                                                                                 \
            format##_mix_tail(&b, job, e);                                                                               \
        }                                                                                                                \
    }
