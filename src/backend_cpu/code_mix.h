/* backend_cpu/code_mix.h - mixes over planes of codes, from a level's product (PRODUCT in its own file); included by kernel files only. */
#ifndef RH_CODE_MIX_H
#define RH_CODE_MIX_H

/* per = blocks of 32 that share a scale */
#define CODE_MIX(format)                                                                                                 \
    static void mix_##format(const struct cpu_mix *job)                                                                  \
    {                                                                                                                    \
        uint32_t blocks = job->d / 32, groups = blocks / job->per;                                                       \
        for (uint32_t g = 0; g < blocks; g++) {                                                                          \
            size_t at = (size_t)job->from * job->d + g * 32, scale = job->from * groups + g / job->per;                  \
            struct operand b = {.p = (const char *)job->v + at, .next = (const char *)job->next + at, .step = job->d,    \
                                .scales = job->scales + scale, .minima = job->minima + scale, .scale_step = groups};     \
            format##_product(&b, job->p + job->from, KV_BLOCK, job->to - job->from, job->o + g * 32, job->d, job->m,     \
                             true);                                                                                      \
        }                                                                                                                \
    }

#endif
