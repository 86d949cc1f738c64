/* backend_cpu/cpu_select.c - the only file that knows levels: which bundles of instructions exist, which this machine can run, and the
 * merge of their tables, worst to best.
 *
 * Invariants: 1. The probe of the machine is made once (cpuid, and xgetbv for what the system saves); its result is const afterwards.
 *             2. A level's table is read as data; no code of a level runs that usable() refused.
 *             3. Every field of the merged table is set: ref is complete. */
#include "backend_cpu/cpu_level.h"
#include "backend_cpu/probe_loops.h"

#include <pthread.h>
#include <string.h>

#if defined(__x86_64__)
#include <cpuid.h>

/* what this machine and its system offer */
static struct {
    bool avx2, avx512, vnni;
} machine;

static uint64_t xcr0(void)
{
    uint32_t lo, hi;
    __asm__ volatile("xgetbv" : "=a"(lo), "=d"(hi) : "c"(0));
    return (uint64_t)hi << 32 | lo;
}

static void machine_probe(void)
{
    uint32_t a, b, c, d, b7 = 0, c7 = 0;
    if (!__get_cpuid(1, &a, &b, &c, &d))
        return;
    bool fma = c >> 12 & 1, osxsave = c >> 27 & 1, avx = c >> 28 & 1, f16c = c >> 29 & 1;
    if (!osxsave || !avx)
        return;
    if (__get_cpuid_count(7, 0, &a, &b, &c, &d))
        b7 = b, c7 = c;
    uint64_t saved = xcr0();
    bool bmi2 = b7 >> 8 & 1;
    machine.avx2 = (saved & 6) == 6 && fma && f16c && bmi2 && (b7 >> 5 & 1);
    bool f = b7 >> 16 & 1, dq = b7 >> 17 & 1, bw = b7 >> 30 & 1, vl = b7 >> 31 & 1;
    machine.avx512 = machine.avx2 && (saved & 0xe6) == 0xe6 && f && dq && bw && vl;
    machine.vnni = machine.avx512 && (c7 >> 11 & 1);
}

static bool usable_avx2(void)
{
    return machine.avx2;
}
static bool usable_avx512(void)
{
    return machine.avx512;
}
static bool usable_avx512vnni(void)
{
    return machine.vnni;
}
#else
static void machine_probe(void)
{
}
#endif

static bool usable_ref(void)
{
    return true;
}

/* worst to best; the order is the meaning of "cap".  NULL: the level improves nothing in that family. */
static const struct {
    const char *name;
    bool (*usable)(void);
    const struct cpu_kernels *linear, *rows;
    const struct probe_loops *probe;
} levels[] = {
    {"ref", usable_ref, &cpu_kernels_ref_linear, &cpu_kernels_ref_rows, NULL},
#if defined(__x86_64__)
    {"avx2", usable_avx2, &cpu_kernels_avx2_linear, &cpu_kernels_avx2_rows, &probe_loops_avx2},
    {"avx512", usable_avx512, &cpu_kernels_avx512_linear, &cpu_kernels_avx512_rows, &probe_loops_avx512},
    {"avx512vnni", usable_avx512vnni, &cpu_kernels_avx512vnni_linear, &cpu_kernels_avx512vnni_rows, &probe_loops_avx512vnni},
#endif
};
enum { LEVEL_COUNT = sizeof levels / sizeof levels[0] };

/* A table is nothing but function pointers, so it can be merged as an array of them. */
typedef void (*any_fn)(void);
enum { FIELD_COUNT = sizeof(struct cpu_kernels) / sizeof(any_fn) };
_Static_assert(sizeof(struct cpu_kernels) % sizeof(any_fn) == 0, "only function pointers in struct cpu_kernels");

static void merge(struct cpu_kernels *into, const struct cpu_kernels *better)
{
    any_fn a[FIELD_COUNT], b[FIELD_COUNT];
    memcpy(a, into, sizeof a);
    memcpy(b, better, sizeof b);
    for (int i = 0; i < FIELD_COUNT; i++)
        if (b[i])
            a[i] = b[i];
    memcpy(into, a, sizeof a);
}

int cpu_level_count(void)
{
    return LEVEL_COUNT;
}

const char *cpu_level_name(int i)
{
    return levels[i].name;
}

bool cpu_level_usable(int i)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, machine_probe);
    return levels[i].usable();
}

int cpu_level_select(const char *cap, struct cpu_kernels *out, const char **name, struct err *err)
{
    int last = LEVEL_COUNT - 1;
    if (cap) {
        for (last = 0; last < LEVEL_COUNT && strcmp(levels[last].name, cap) != 0; last++)
            ;
        if (last == LEVEL_COUNT)
            return err_set(err, ERR_ARGUMENT, "cpu: unknown level '%s'; this build has ref to %s", cap, levels[LEVEL_COUNT - 1].name);
        if (!cpu_level_usable(last))
            return err_set(err, ERR_UNSUPPORTED, "cpu: this machine cannot run level '%s'", cap);
    }
    *out = (struct cpu_kernels){0};
    *name = levels[0].name;
    for (int i = 0; i <= last; i++) {
        if (!cpu_level_usable(i))
            continue;
        if (levels[i].linear)
            merge(out, levels[i].linear);
        if (levels[i].rows)
            merge(out, levels[i].rows);
        *name = levels[i].name;
    }
    return 0;
}

const struct probe_loops *probe_loops_of(const char *level)
{
    for (int i = LEVEL_COUNT - 1; i >= 0; i--)
        if (level ? strcmp(levels[i].name, level) == 0 : levels[i].probe != NULL)
            if (cpu_level_usable(i))
                return levels[i].probe;
    return NULL;
}
