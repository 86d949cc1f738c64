/* base/arena.h - many small allocations freed at once (a request, a template run, a parsed file).  Thread: its owner only. */
#ifndef RH_BASE_ARENA_H
#define RH_BASE_ARENA_H

#include "base/str.h"

#include <stddef.h>

struct arena_block;

/* owns its blocks; zero-initialise, then use */
struct arena {
    struct arena_block *head;
    size_t used_bytes; /* of all blocks */
    size_t max_bytes;  /* ceiling; 0 = none */
};

void *arena_try(struct arena *a, size_t size_bytes);               /* 16-byte aligned, zeroed; NULL: no memory or ceiling */
void *arena_try_array(struct arena *a, size_t count, size_t size_bytes);
char *arena_try_strndup(struct arena *a, struct str s);            /* adds the terminator */
struct str arena_try_str(struct arena *a, struct str s);           /* p == NULL on failure */
void arena_reset(struct arena *a);                                 /* keeps the newest block for reuse */
void arena_free(struct arena *a);

#endif
