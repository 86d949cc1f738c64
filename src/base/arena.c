/* base/arena.c - see arena.h. */
#include "base/arena.h"

#include "base/mem.h"

#include <stdint.h>

struct arena_block {
    struct arena_block *next;
    size_t cap, n;
    _Alignas(16) unsigned char data[];
};

void *arena_try(struct arena *a, size_t size_bytes)
{
    if (size_bytes > SIZE_MAX / 2)
        return NULL;
    size_t need = (size_bytes + 15) & ~(size_t)15;
    struct arena_block *b = a->head;
    if (!b || b->cap - b->n < need) {
        size_t cap = b ? b->cap * 2 : 4096;
        if (cap > (size_t)1 << 20)
            cap = (size_t)1 << 20;
        if (cap < need)
            cap = need;
        if (a->max_bytes && (cap > a->max_bytes || a->used_bytes > a->max_bytes - cap)) {
            cap = need;
            if (cap > a->max_bytes || a->used_bytes > a->max_bytes - cap)
                return NULL;
        }
        b = mem_try(sizeof *b + cap);
        if (!b)
            return NULL;
        *b = (struct arena_block){.next = a->head, .cap = cap};
        a->head = b;
        a->used_bytes += cap;
    }
    void *p = b->data + b->n;
    b->n += need;
    memset(p, 0, need);
    return p;
}

void *arena_try_array(struct arena *a, size_t count, size_t size_bytes)
{
    size_t total;
    return mem_mul_ok(count, size_bytes, &total) ? arena_try(a, total) : NULL;
}

char *arena_try_strndup(struct arena *a, struct str s)
{
    char *p = s.n == SIZE_MAX ? NULL : arena_try(a, s.n + 1);
    if (p && s.n)
        memcpy(p, s.p, s.n);
    return p;
}

struct str arena_try_str(struct arena *a, struct str s)
{
    return (struct str){arena_try_strndup(a, s), s.n};
}

void arena_reset(struct arena *a)
{
    struct arena_block *keep = a->head;
    if (!keep)
        return;
    for (struct arena_block *b = keep->next, *next; b; b = next) {
        next = b->next;
        mem_free(b);
    }
    keep->next = NULL;
    keep->n = 0;
    a->used_bytes = keep->cap;
}

void arena_free(struct arena *a)
{
    for (struct arena_block *b = a->head, *next; b; b = next) {
        next = b->next;
        mem_free(b);
    }
    *a = (struct arena){.max_bytes = a->max_bytes};
}
