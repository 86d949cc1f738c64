/* base/mem.h - heap memory that may fail, and a hook that makes the n-th request fail (fault tests).
 *
 * mem_try*: for all library code; NULL must be checked.  mem_alloc: only for cli/, prints and exits through one hook.
 * mem_map: whole pages, zeroed, huge pages asked for (weights, state); mem_unmap frees them.
 * Threads: all functions are thread-safe. */
#ifndef RH_BASE_MEM_H
#define RH_BASE_MEM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* NULL when out of memory or count * size overflows.  A size of 0 gives a valid pointer. */
void *mem_try(size_t size_bytes);
void *mem_try_zero(size_t count, size_t size_bytes);
void *mem_try_array(size_t count, size_t size_bytes);
void *mem_try_resize(void *old, size_t size_bytes); /* the old block stays valid when NULL comes back */
void *mem_try_aligned(size_t align, size_t size_bytes);
char *mem_try_strndup(const char *text, size_t len); /* adds the terminator */
void mem_free(void *p);

void *mem_map(size_t size_bytes);
void mem_unmap(void *p, size_t size_bytes);

/* cli/ only */
void *mem_alloc(size_t size_bytes);
extern void (*mem_exhausted)(size_t size_bytes); /* must not return; default prints one line and exits with 1 */

/* Fault tests: let `after` requests pass, fail the next one, then pass again.  Negative: never fail. */
void mem_fault_set(int64_t after);
int64_t mem_request_count(void); /* requests since the last mem_fault_set */

/* The guard of steps: while this thread holds it, a request for memory is our mistake.  It is served and counted; a debug build aborts at once,
 * so that the stack says who asked. */
void mem_forbid_push(void);
void mem_forbid_pop(void);
/* For code that stands for another machine (backend_ref's ops) or another owner (a caller's function): lets go of all that is held... */
int mem_forbid_pause(void);
void mem_forbid_resume(int held); /* ...and takes it again */
int64_t mem_forbidden_count(void); /* requests under the guard, of all threads, since the process began */

static inline bool mem_mul_ok(size_t a, size_t b, size_t *out)
{
    return !__builtin_mul_overflow(a, b, out);
}

#endif
