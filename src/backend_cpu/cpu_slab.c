/* backend_cpu/cpu_slab.c - memory of weights: large mappings, filled one weight after the other.
 *
 * A weight of a small model is smaller than a huge page; together they fill them, which saves most page faults of loading and most
 * misses of address translation of every step.
 * Invariants: 1. a slab is unmapped when the last weight in it is freed.  2. memory past the last weight is never touched. */
#include "backend_cpu/cpu_device.h"

#include "base/mem.h"

enum { SLAB_FIRST = 1 << 20, SLAB_SECOND = 32 << 20, SLAB_MAX = 512 << 20, SLAB_ALIGN = 64 };

struct cpu_slab {
    unsigned char *p;
    size_t bytes, used;
    uint32_t live; /* weights */
};

static struct cpu_slab *slab_new(struct cpu_slabs *s, size_t least)
{
    size_t bytes = s->next_bytes < SLAB_FIRST ? SLAB_FIRST : s->next_bytes;
    struct cpu_slab *slab = mem_try_zero(1, sizeof *slab);
    if (!slab)
        return NULL;
    slab->bytes = least > bytes ? least : bytes;
    slab->p = mem_map(slab->bytes);
    if (!slab->p) {
        mem_free(slab);
        return NULL;
    }
    s->next_bytes = bytes < SLAB_SECOND ? SLAB_SECOND : bytes < SLAB_MAX ? 2 * bytes : bytes;
    return slab;
}

unsigned char *cpu_slab_take(struct cpu_slabs *s, size_t size_bytes, struct cpu_slab **slab)
{
    if (!s->open || s->open->bytes - s->open->used < size_bytes) {
        struct cpu_slab *fresh = slab_new(s, size_bytes);
        if (!fresh)
            return NULL;
        s->open = fresh;
    }
    unsigned char *p = s->open->p + s->open->used;
    s->open->used += (size_bytes + SLAB_ALIGN - 1) / SLAB_ALIGN * SLAB_ALIGN;
    s->open->used = s->open->used < s->open->bytes ? s->open->used : s->open->bytes;
    s->open->live++;
    *slab = s->open;
    return p;
}

void cpu_slab_give(struct cpu_slabs *s, struct cpu_slab *slab)
{
    if (--slab->live)
        return;
    if (s->open == slab)
        *s = (struct cpu_slabs){0};
    mem_unmap(slab->p, slab->bytes);
    mem_free(slab);
}
