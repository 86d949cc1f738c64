/* kv/slabs.c - one block of device memory in slabs of KV_SLAB bytes; a slab is cut into equal chunks while a pool holds it.
 *
 * Invariants: 1. A slab is free, or belongs to one pool and has at least one live chunk.
 *             2. A pool's open list holds exactly its slabs that have a free chunk.
 *             3. slabs_free + slabs with a pool == slab_count.
 *             4. open_count of a pool == free chunks of its slabs. */
#include "kv/kv_int.h"

#include "base/mem.h"

#include <assert.h>

int kv_slabs_open(struct kv *kv, uint64_t budget_bytes, struct err *err)
{
    uint64_t count = budget_bytes / KV_SLAB;
    if (count == 0 || count >= KV_NONE || count > SIZE_MAX / KV_SLAB) {
        return err_set(err, ERR_ARGUMENT, "state budget of %llu bytes: expected at least %u", (unsigned long long)budget_bytes,
                       (unsigned)KV_SLAB);
    }
    kv->slabs = mem_try_zero((size_t)count, sizeof *kv->slabs);
    if (kv->slabs == NULL) {
        return err_nomem(err, "slab table", (size_t)count * sizeof *kv->slabs);
    }
    void *memory = NULL;
    int rc = kv->backend->buffer_new(kv->device, (size_t)count * KV_SLAB, &memory, err);
    if (rc != 0) {
        return rc;
    }
    kv->memory = memory;
    kv->slab_count = kv->slabs_free = (uint32_t)count;
    for (uint32_t i = 0; i < kv->slab_count; i++) {
        kv->slabs[i].pool = KV_NONE;
        kv->slabs[i].next = i + 1 < kv->slab_count ? i + 1 : KV_NONE;
    }
    kv->free_head = 0;
    return 0;
}

void kv_slabs_close(struct kv *kv)
{
    if (kv->memory != NULL) {
        kv->backend->buffer_free(kv->device, kv->memory, (size_t)kv->slab_count * KV_SLAB);
    }
    mem_free(kv->slabs);
}

static void open_push(struct kv *kv, struct kv_pool *pool, uint32_t i)
{
    kv->slabs[i].prev = KV_NONE;
    kv->slabs[i].next = pool->open_head;
    if (pool->open_head != KV_NONE) {
        kv->slabs[pool->open_head].prev = i;
    }
    pool->open_head = i;
}

static void open_remove(struct kv *kv, struct kv_pool *pool, uint32_t i)
{
    struct kv_slab *s = &kv->slabs[i];
    if (s->prev != KV_NONE) {
        kv->slabs[s->prev].next = s->next;
    } else {
        pool->open_head = s->next;
    }
    if (s->next != KV_NONE) {
        kv->slabs[s->next].prev = s->prev;
    }
}

unsigned char *kv_chunk_take(struct kv *kv, uint32_t pool_index)
{
    struct kv_pool *pool = &kv->layout.pools[pool_index];
    if (pool->open_head == KV_NONE) {
        if (kv->free_head == KV_NONE) {
            return NULL;
        }
        uint32_t fresh = kv->free_head;
        kv->free_head = kv->slabs[fresh].next;
        kv->slabs_free--;
        kv->slabs[fresh].pool = pool_index;
        pool->open_count += pool->per_slab;
        open_push(kv, pool, fresh);
    }
    uint32_t i = pool->open_head, word = 0;
    struct kv_slab *s = &kv->slabs[i];
    while (s->taken[word] == UINT64_MAX) {
        word++;
    }
    uint32_t bit = (uint32_t)__builtin_ctzll(~s->taken[word]);
    s->taken[word] |= 1ull << bit;
    pool->open_count--;
    if (++s->used == pool->per_slab) {
        open_remove(kv, pool, i);
    }
    return kv->memory + (size_t)i * KV_SLAB + (size_t)(word * 64 + bit) * pool->chunk_bytes;
}

void kv_chunk_give(struct kv *kv, unsigned char *chunk)
{
    size_t at = (size_t)(chunk - kv->memory);
    uint32_t i = (uint32_t)(at / KV_SLAB);
    struct kv_slab *s = &kv->slabs[i];
    struct kv_pool *pool = &kv->layout.pools[s->pool];
    uint32_t n = (uint32_t)(at % KV_SLAB / pool->chunk_bytes);
    assert(s->taken[n / 64] >> (n % 64) & 1);
    s->taken[n / 64] &= ~(1ull << (n % 64));
    pool->open_count++;
    if (s->used-- == pool->per_slab) {
        open_push(kv, pool, i);
    }
    if (s->used == 0) {
        open_remove(kv, pool, i);
        s->pool = KV_NONE;
        pool->open_count -= pool->per_slab;
        s->next = kv->free_head;
        kv->free_head = i;
        kv->slabs_free++;
    }
}
