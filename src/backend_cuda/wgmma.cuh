/* backend_cuda/wgmma.cuh - wgmma k16 in the shapes that are used: f16 operands, sums in f32, 128-byte swizzle in shared memory. */
#ifndef RH_CUDA_WGMMA_CUH
#define RH_CUDA_WGMMA_CUH

#include <stdint.h>

#define WGMMA_D32 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define WGMMA_D64                                                                                                                                            \
    WGMMA_D32 ", %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, "    \
              "%59, %60, %61, %62, %63"
#define WGMMA_8(d) "+f"((d)[0]), "+f"((d)[1]), "+f"((d)[2]), "+f"((d)[3]), "+f"((d)[4]), "+f"((d)[5]), "+f"((d)[6]), "+f"((d)[7])
#define WGMMA_32(d) WGMMA_8(d), WGMMA_8((d) + 8), WGMMA_8((d) + 16), WGMMA_8((d) + 24)

/* d[64]: 64 by 128 of which a lane has rows g and g + 8 of its warp's 16, columns 8 j + 2 t and the next */
static __device__ __forceinline__ void wgmma(float *d, const uint32_t *a, uint64_t b, uint32_t carry)
{
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %69, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n128k16.f32.f16.f16 {" WGMMA_D64 "}, {%64, %65, %66, %67}, %68, p, 1, 1, 0;\n}"
                 : WGMMA_32(d), WGMMA_32(d + 32)
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(carry));
}
/* The same, 64 by 64: d[32] */
static __device__ __forceinline__ void wgmma_half(float *d, const uint32_t *a, uint64_t b, uint32_t carry)
{
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %37, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n64k16.f32.f16.f16 {" WGMMA_D32 "}, {%32, %33, %34, %35}, %36, p, 1, 1, 0;\n}"
                 : WGMMA_32(d)
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(carry));
}
/* 64 by 128 with both operands in shared memory, the second one with its columns side by side. */
static __device__ __forceinline__ void wgmma_scores(float *d, uint64_t a, uint64_t b, uint32_t carry)
{
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %66, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n128k16.f32.f16.f16 {" WGMMA_D64 "}, %64, %65, p, 1, 1, 0, 1;\n}"
                 : WGMMA_32(d), WGMMA_32(d + 32)
                 : "l"(a), "l"(b), "r"(carry));
}
/* d[32]: 64 by 64; the row operand in registers, the columns of the other one side by side */
static __device__ __forceinline__ void wgmma_values(float *d, const uint32_t *a, uint64_t b, uint32_t carry)
{
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %37, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n64k16.f32.f16.f16 {" WGMMA_D32 "}, {%32, %33, %34, %35}, %36, p, 1, 1, 1;\n}"
                 : WGMMA_32(d)
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(carry));
}
static __device__ __forceinline__ void wgmma_fence(void)
{
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}
static __device__ __forceinline__ void wgmma_commit(void)
{
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
template <int N> static __device__ __forceinline__ void wgmma_wait(void)
{
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(N) : "memory");
}
/* Behind a wait: sums are not read before, whatever the compiler thinks of their order. */
template <int N> static __device__ __forceinline__ void wgmma_sums(float *d)
{
#pragma unroll
    for (int i = 0; i < N; i++)
        asm volatile("" : "+f"(d[i])::"memory");
}
/* Registers of a warpgroup's threads, given up and taken. */
template <int N> static __device__ __forceinline__ void registers_less(void)
{
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(N));
}
template <int N> static __device__ __forceinline__ void registers_more(void)
{
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(N));
}
static __device__ __forceinline__ uint64_t descriptor(uint32_t at) /* K-major, 128-byte swizzle, 8 rows 1,024 bytes apart */
{
    return (uint64_t)((at & 0x3ffff) >> 4) | 1ull << 16 | 64ull << 32 | 1ull << 62;
}

/* Columns side by side: 64 of them in a row of 128 bytes, 8 rows 1,024 bytes apart, the next 64 columns `apart` bytes on. */
static __device__ __forceinline__ uint64_t columns(uint32_t at, uint32_t apart)
{
    return (uint64_t)((at & 0x3ffff) >> 4) | (uint64_t)(apart >> 4) << 16 | 64ull << 32 | 1ull << 62;
}

#endif
