/* backend_cuda/async.cuh - bulk copies from global to shared memory, and the barriers that say they have come. */
#ifndef RH_CUDA_ASYNC_CUH
#define RH_CUDA_ASYNC_CUH

#include <stdint.h>

static __device__ __forceinline__ uint32_t shared_at(const void *p)
{
    return (uint32_t)__cvta_generic_to_shared(p);
}
static __device__ __forceinline__ uint32_t shared_word(uint32_t at)
{
    uint32_t v;
    asm volatile("ld.shared.u32 %0, [%1];" : "=r"(v) : "r"(at) : "memory");
    return v;
}
static __device__ __forceinline__ uint4 shared_words(uint32_t at)
{
    uint4 v;
    asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "r"(at) : "memory");
    return v;
}
static __device__ __forceinline__ void bar_init(uint32_t bar, uint32_t arrivals)
{
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(bar), "r"(arrivals) : "memory");
}
/* Behind all bar_init of a thread: others and the copy engine see them after the next barrier. */
static __device__ __forceinline__ void bar_init_end(void)
{
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}
/* One arrival, and so many bytes are to come in this phase. */
static __device__ __forceinline__ void bar_expect(uint32_t bar, uint32_t bytes)
{
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(bar), "r"(bytes) : "memory");
}
static __device__ __forceinline__ void bar_wait(uint32_t bar, uint32_t parity)
{
    asm volatile("{\n.reg .pred p;\nAGAIN:\nmbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1;\n@p bra DONE;\nbra AGAIN;\nDONE:\n}" ::"r"(bar),
                 "r"(parity)
                 : "memory");
}
/* The same by a thread that has time: it leaves the others their turns. */
static __device__ __forceinline__ void bar_wait_idle(uint32_t bar, uint32_t parity)
{
    asm volatile("{\n.reg .pred p;\nAGAIN:\nmbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1;\n@p bra DONE;\nnanosleep.u32 32;\nbra AGAIN;\nDONE:\n}" ::"r"(bar),
                 "r"(parity)
                 : "memory");
}
/* An arrival of the lanes that say so; no branch. */
static __device__ __forceinline__ void bar_arrive_if(uint32_t bar, bool mine)
{
    asm volatile("{\n.reg .pred p;\nsetp.ne.u32 p, %1, 0;\n@p mbarrier.arrive.shared::cta.b64 _, [%0];\n}" ::"r"(bar), "r"((uint32_t)mine) : "memory");
}
/* The barrier of the same place in a block of the cluster, and an arrival there.  It orders no data but what bulk copies bring and products read: a release
 * towards the cluster would wait for all stores, each time. */
static __device__ __forceinline__ uint32_t bar_far(uint32_t bar, uint32_t block)
{
    uint32_t there;
    asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(bar), "r"(block));
    return there;
}
static __device__ __forceinline__ void bar_arrive_far(uint32_t there, bool mine)
{
    asm volatile("{\n.reg .pred p;\nsetp.ne.u32 p, %1, 0;\n@p mbarrier.arrive.shared::cluster.b64 _, [%0];\n}" ::"r"(there), "r"((uint32_t)mine) : "memory");
}
static __device__ __forceinline__ void cluster_sync(void)
{
    asm volatile("barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;" ::: "memory");
}
static __device__ __forceinline__ uint32_t cluster_rank(void)
{
    uint32_t r;
    asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(r));
    return r;
}
/* Bytes, both ends and the count multiples of 16, counted at `bar`. */
static __device__ __forceinline__ void bulk_copy(uint32_t to, const void *from, uint32_t bytes, uint32_t bar)
{
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(to), "l"(from), "r"(bytes), "r"(bar)
                 : "memory");
}
/* The same to the same place of every block in `blocks`, counted at each one's barrier. */
static __device__ __forceinline__ void bulk_copy_all(uint32_t to, const void *from, uint32_t bytes, uint32_t bar, uint16_t blocks)
{
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster [%0], [%1], %2, [%3], %4;" ::"r"(to), "l"(from),
                 "r"(bytes), "r"(bar), "h"(blocks)
                 : "memory");
}
/* 16 bytes by a thread, without a register; `there` false: zeros, and nothing is read. */
static __device__ __forceinline__ void copy16(uint32_t to, const void *from, bool there)
{
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(there ? 16 : 0) : "memory");
}
static __device__ __forceinline__ void copies_commit(void)
{
    asm volatile("cp.async.commit_group;" ::: "memory");
}
/* All but the last N groups of the thread's copies are there; all but the last n, which is LEAST to MOST. */
template <int N> static __device__ __forceinline__ void copies_wait(void)
{
    asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory");
}
template <int LEAST, int MOST> static __device__ __forceinline__ void copies_wait(uint32_t n)
{
    if constexpr (LEAST < MOST) {
        if (n == LEAST)
            copies_wait<LEAST>();
        else
            copies_wait<LEAST + 1, MOST>(n);
    } else {
        copies_wait<MOST>();
    }
}
/* An arrival once all copies of this thread so far are there; what wgmma reads of them is read behind product_fence. */
static __device__ __forceinline__ void copies_arrive(uint32_t bar)
{
    asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(bar) : "memory");
}
/* What threads wrote to shared memory before is what wgmma and bulk copies find. */
static __device__ __forceinline__ void product_fence(void)
{
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}
/* The same, by the lanes that say so, of a stream of memory that is read once: a line at a time is brought near, and is the first to go again.  ONCE is what
 * createpolicy.fractional.L2::evict_first makes of 1.0: where the instruction itself stands, it is done anew for each copy. */
#define ASYNC_ONCE 0x12f0000000000000ull
static __device__ __forceinline__ void copy16_stream(uint32_t to, const void *from)
{
    asm volatile("cp.async.cg.shared.global.L2::cache_hint.L2::128B [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "l"(ASYNC_ONCE) : "memory");
}
static __device__ __forceinline__ void copy16_stream_if(uint32_t to, const void *from, bool mine)
{
    asm volatile("{\n.reg .pred p;\nsetp.ne.u32 p, %3, 0;\n@p cp.async.cg.shared.global.L2::cache_hint.L2::128B [%0], [%1], 16, %2;\n}" ::"r"(to), "l"(from),
                 "l"(ASYNC_ONCE), "r"((uint32_t)mine)
                 : "memory");
}
static __device__ __forceinline__ void some_sync(uint32_t id, uint32_t threads)
{
    asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}
static __device__ __forceinline__ void some_arrive(uint32_t id, uint32_t threads)
{
    asm volatile("bar.arrive %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

#endif
