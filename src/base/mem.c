/* base/mem.c - see mem.h.  Invariant: every heap request of library code passes through request(). */
#include "base/mem.h"

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

static atomic_llong fault_left = -1;
static atomic_llong requests;
static atomic_llong forbidden_requests;
static _Thread_local int forbidden;

#ifdef NDEBUG
enum { FORBIDDEN_ABORTS = 0 };
#else
enum { FORBIDDEN_ABORTS = 1 };
#endif

static void request_forbidden(void)
{
    atomic_fetch_add(&forbidden_requests, 1);
    if (FORBIDDEN_ABORTS) {
        fputs("mem: heap request inside a step\n", stderr);
        abort();
    }
}

static bool request(void)
{
    if (forbidden)
        request_forbidden();
    atomic_fetch_add_explicit(&requests, 1, memory_order_relaxed);
    if (atomic_load_explicit(&fault_left, memory_order_relaxed) < 0)
        return true;
    return atomic_fetch_sub(&fault_left, 1) != 0;
}

void *mem_try(size_t size_bytes)
{
    return request() ? malloc(size_bytes ? size_bytes : 1) : NULL;
}

void *mem_try_zero(size_t count, size_t size_bytes)
{
    size_t total;
    if (!mem_mul_ok(count, size_bytes, &total) || !request())
        return NULL;
    return calloc(1, total ? total : 1);
}

void *mem_try_array(size_t count, size_t size_bytes)
{
    size_t total;
    if (!mem_mul_ok(count, size_bytes, &total))
        return NULL;
    return mem_try(total);
}

void *mem_try_resize(void *old, size_t size_bytes)
{
    return request() ? realloc(old, size_bytes ? size_bytes : 1) : NULL;
}

void *mem_try_aligned(size_t align, size_t size_bytes)
{
    void *p = NULL;
    if (!request() || posix_memalign(&p, align, size_bytes ? size_bytes : align))
        return NULL;
    return p;
}

char *mem_try_strndup(const char *text, size_t len)
{
    char *p = len == SIZE_MAX ? NULL : mem_try(len + 1);
    if (!p)
        return NULL;
    if (len)
        memcpy(p, text, len);
    p[len] = 0;
    return p;
}

void mem_free(void *p)
{
    free(p);
}

/* Huge pages need addresses that are multiples of them, which not every kernel gives: ask for one more and cut both ends off. */
static void *map_huge(size_t size_bytes)
{
    const size_t huge = (size_t)2 << 20;
    if (size_bytes > SIZE_MAX - huge)
        return MAP_FAILED;
    char *p = mmap(NULL, size_bytes + huge, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED)
        return MAP_FAILED;
    size_t page = 4096, before = (huge - (uintptr_t)p % huge) % huge, end = (before + size_bytes + page - 1) / page * page;
    if (before)
        munmap(p, before);
    if (end < size_bytes + huge)
        munmap(p + end, size_bytes + huge - end);
    madvise(p + before, size_bytes, MADV_HUGEPAGE);
    return p + before;
}

void *mem_map(size_t size_bytes)
{
    if (!request())
        return NULL;
    void *p = size_bytes >= 2u << 20 ? map_huge(size_bytes)
                                     : mmap(NULL, size_bytes ? size_bytes : 1, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    return p == MAP_FAILED ? NULL : p;
}

void mem_unmap(void *p, size_t size_bytes)
{
    if (p)
        munmap(p, size_bytes ? size_bytes : 1);
}

static void exhausted_default(size_t size_bytes)
{
    fprintf(stderr, "rhapsode: out of memory (%zu bytes)\n", size_bytes);
    exit(1);
}

void (*mem_exhausted)(size_t size_bytes) = exhausted_default;

void *mem_alloc(size_t size_bytes)
{
    void *p = mem_try(size_bytes);
    if (!p)
        mem_exhausted(size_bytes);
    return p;
}

void mem_fault_set(int64_t after)
{
    atomic_store(&fault_left, after);
    atomic_store(&requests, 0);
}

int64_t mem_request_count(void)
{
    return atomic_load(&requests);
}

void mem_forbid_push(void)
{
    forbidden++;
}

void mem_forbid_pop(void)
{
    forbidden--;
}

int mem_forbid_pause(void)
{
    int held = forbidden;
    forbidden = 0;
    return held;
}

void mem_forbid_resume(int held)
{
    forbidden = held;
}

int64_t mem_forbidden_count(void)
{
    return atomic_load(&forbidden_requests);
}
