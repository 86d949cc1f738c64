/* tests/cuda/fake_runtime.c - see fake_runtime.h.  The entries that the backend and nvcc's registration code name, and no others. */
#include "fake_runtime.h"

#include <cuda_runtime_api.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

enum { KERNELS_MAX = 1024, BLOCKS_MAX = 4096, PLAIN_SMEM = 48 << 10, AXIS_MAX = 65535, PRINTED_MAX = 40 };

static const struct gpu {
    int capability, multiprocessors, shared_bytes;
} gpus[] = {{80, 108, 163 << 10}, {89, 128, 99 << 10}, {90, 132, 227 << 10}};
static const struct gpu *gpu = &gpus[2];

struct kernel {
    const void *host;
    const char *name;
    int dynamic; /* bytes of shared memory that were asked for */
};
static struct kernel kernels[KERNELS_MAX];
static int kernel_count;

struct block { /* of memory */
    char *at;
    size_t size_bytes, mapped;
};
static struct block blocks[BLOCKS_MAX];

static size_t breaches, launches, graphs;
static bool capturing;

void fake_gpu_set(int capability)
{
    for (size_t i = 0; i < sizeof gpus / sizeof *gpus; i++)
        gpu = gpus[i].capability == capability ? &gpus[i] : gpu;
    for (int i = 0; i < kernel_count; i++)
        kernels[i].dynamic = 0;
}
size_t fake_breaches(void)
{
    return breaches;
}
size_t fake_launches(void)
{
    return launches;
}
size_t fake_graphs(void)
{
    return graphs;
}

static cudaError_t breach(const char *who, const char *what)
{
    if (breaches++ < PRINTED_MAX)
        printf("wrong: sm_%d: %s: %s\n", gpu->capability, who, what);
    return cudaErrorInvalidValue;
}

/* ---- kernels ---- */

static struct kernel *kernel_of(const void *host)
{
    for (int i = 0; i < kernel_count; i++)
        if (kernels[i].host == host)
            return &kernels[i];
    breach("a kernel", "was never registered");
    return NULL;
}

static const char *launch_wrong(const struct kernel *k, const struct fake_launch *l)
{
    if (!l->grid[0] || !l->grid[1] || !l->grid[2] || !l->block)
        return "nothing to do";
    if (l->grid[0] > INT32_MAX || l->grid[1] > AXIS_MAX || l->grid[2] > AXIS_MAX)
        return "more blocks than a grid has";
    if (l->block > 1024 || l->block % 32)
        return "threads of a block";
    if ((int)l->smem > (k->dynamic ? k->dynamic : PLAIN_SMEM))
        return "more shared memory than was asked for";
    if (l->early && gpu->capability < 90)
        return "begins early where that is not known";
    return fake_launch_wrong(l);
}

static cudaError_t launch(const void *host, dim3 grid, dim3 block, size_t smem, bool early)
{
    const struct kernel *k = kernel_of(host);
    if (!k)
        return cudaErrorInvalidDeviceFunction;
    const struct fake_launch l = {host, k->name, {grid.x, grid.y, grid.z}, block.x * block.y * block.z, (uint32_t)smem, early};
    const char *wrong = launch_wrong(k, &l);
    launches++;
    if (!wrong)
        return cudaSuccess;
    char text[200];
    snprintf(text, sizeof text, "%s (%u x %u x %u blocks of %u, %u bytes)", wrong, l.grid[0], l.grid[1], l.grid[2], l.block, l.smem);
    return breach(k->name, text);
}

cudaError_t cudaLaunchKernel(const void *f, dim3 grid, dim3 block, void **args, size_t smem, cudaStream_t stream)
{
    (void)args, (void)stream;
    return launch(f, grid, block, smem, false);
}
cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t *c, const void *f, void **args)
{
    (void)args;
    return launch(f, c->gridDim, c->blockDim, c->dynamicSmemBytes, c->numAttrs > 0);
}
cudaError_t cudaFuncSetAttribute(const void *f, enum cudaFuncAttribute which, int value)
{
    struct kernel *k = kernel_of(f);
    if (!k)
        return cudaErrorInvalidDeviceFunction;
    if (capturing)
        return breach(k->name, "an attribute is set while a graph is made");
    if (which == cudaFuncAttributeMaxDynamicSharedMemorySize && value > gpu->shared_bytes)
        return breach(k->name, "more shared memory than a block has");
    if (which == cudaFuncAttributeMaxDynamicSharedMemorySize)
        k->dynamic = value;
    return cudaSuccess;
}
cudaError_t cudaFuncGetAttributes(struct cudaFuncAttributes *out, const void *f)
{
    memset(out, 0, sizeof *out);
    return kernel_of(f) ? cudaSuccess : cudaErrorInvalidDeviceFunction;
}
cudaError_t cudaFuncGetName(const char **name, const void *f)
{
    const struct kernel *k = kernel_of(f);
    *name = k ? k->name : "";
    return k ? cudaSuccess : cudaErrorInvalidDeviceFunction;
}
/* ---- memory ---- */

static struct block *block_of(const void *p)
{
    const char *at = p;
    for (int i = 0; i < BLOCKS_MAX; i++)
        if (blocks[i].at && at >= blocks[i].at && at < blocks[i].at + blocks[i].mapped)
            return &blocks[i];
    return NULL;
}
static cudaError_t memory_new(void **out, size_t size_bytes)
{
    int i = 0;
    if (capturing)
        return breach("memory", "asked for while a graph is made");
    while (i < BLOCKS_MAX && blocks[i].at)
        i++;
    size_t mapped = size_bytes ? (size_bytes + 4095) / 4096 * 4096 : 4096;
    void *p = i == BLOCKS_MAX ? MAP_FAILED : mmap(NULL, mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (p == MAP_FAILED)
        return cudaErrorMemoryAllocation;
    blocks[i] = (struct block){p, size_bytes, mapped};
    *out = p;
    return cudaSuccess;
}
static cudaError_t memory_free(void *p)
{
    struct block *b = p ? block_of(p) : NULL;
    if (!p)
        return cudaSuccess;
    if (!b || b->at != p)
        return breach("memory", "freed and not there");
    munmap(b->at, b->mapped);
    b->at = NULL;
    return cudaSuccess;
}
static bool inside(const void *p, size_t size_bytes)
{
    const struct block *b = block_of(p);
    return !b || (const char *)p + size_bytes <= b->at + b->size_bytes;
}
cudaError_t cudaMalloc(void **p, size_t n)
{
    return memory_new(p, n);
}
cudaError_t cudaHostAlloc(void **p, size_t n, unsigned flags)
{
    (void)flags;
    return memory_new(p, n);
}
cudaError_t cudaFree(void *p)
{
    return memory_free(p);
}
cudaError_t cudaFreeHost(void *p)
{
    return memory_free(p);
}
cudaError_t cudaMemGetInfo(size_t *free_bytes, size_t *total)
{
    *free_bytes = *total = (size_t)140 << 30;
    return cudaSuccess;
}
cudaError_t cudaMemcpyAsync(void *dst, const void *src, size_t n, enum cudaMemcpyKind kind, cudaStream_t stream)
{
    (void)kind, (void)stream;
    if (!inside(dst, n) || !inside(src, n))
        return breach("a copy", "leaves its memory");
    return capturing && (!block_of(dst) || !block_of(src)) ? breach("a copy", "of memory that can move, in a graph") : cudaSuccess;
}
cudaError_t cudaMemsetAsync(void *p, int value, size_t n, cudaStream_t stream)
{
    (void)value, (void)stream;
    return inside(p, n) ? cudaSuccess : breach("a fill", "leaves its memory");
}

/* ---- devices, streams, events, graphs ---- */

cudaError_t cudaGetDeviceCount(int *n)
{
    *n = 1;
    return cudaSuccess;
}
cudaError_t cudaSetDevice(int i)
{
    return i ? cudaErrorInvalidDevice : cudaSuccess;
}
cudaError_t cudaDriverGetVersion(int *v)
{
    *v = CUDART_VERSION;
    return cudaSuccess;
}
cudaError_t cudaRuntimeGetVersion(int *v)
{
    *v = CUDART_VERSION;
    return cudaSuccess;
}
cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp *p, int i)
{
    memset(p, 0, sizeof *p);
    p->major = gpu->capability / 10, p->minor = gpu->capability % 10;
    p->multiProcessorCount = gpu->multiprocessors;
    p->sharedMemPerBlockOptin = (size_t)gpu->shared_bytes;
    p->totalGlobalMem = (size_t)140 << 30;
    return i ? cudaErrorInvalidDevice : cudaSuccess;
}
const char *cudaGetErrorString(cudaError_t rc)
{
    return rc == cudaSuccess ? "no error" : rc == cudaErrorMemoryAllocation ? "out of memory" : "refused";
}

#define NOTHING(name, ...)       \
    cudaError_t name(__VA_ARGS__) \
    {                            \
        return cudaSuccess;      \
    }
#define MADE(name, type, ...)          \
    cudaError_t name(type *out, ##__VA_ARGS__) \
    {                                  \
        *out = (type)(uintptr_t)1;     \
        return cudaSuccess;            \
    }
#pragma GCC diagnostic ignored "-Wunused-parameter"
MADE(cudaStreamCreateWithFlags, cudaStream_t, unsigned flags)
MADE(cudaEventCreate, cudaEvent_t)
MADE(cudaEventCreateWithFlags, cudaEvent_t, unsigned flags)
NOTHING(cudaStreamDestroy, cudaStream_t s)
NOTHING(cudaEventDestroy, cudaEvent_t e)
NOTHING(cudaEventRecord, cudaEvent_t e, cudaStream_t s)
NOTHING(cudaEventQuery, cudaEvent_t e)
NOTHING(cudaEventElapsedTime, float *ms, cudaEvent_t a, cudaEvent_t b)
NOTHING(cudaGraphDestroy, cudaGraph_t g)
NOTHING(cudaGraphExecDestroy, cudaGraphExec_t g)
NOTHING(cudaGraphLaunch, cudaGraphExec_t g, cudaStream_t s)
cudaError_t cudaEventSynchronize(cudaEvent_t e)
{
    return capturing ? breach("an event", "is waited for while a graph is made") : cudaSuccess;
}
cudaError_t cudaStreamSynchronize(cudaStream_t s)
{
    return capturing ? breach("the stream", "is waited for while a graph is made") : cudaSuccess;
}
cudaError_t cudaStreamBeginCapture(cudaStream_t s, enum cudaStreamCaptureMode mode)
{
    capturing = true;
    return cudaSuccess;
}
cudaError_t cudaStreamEndCapture(cudaStream_t s, cudaGraph_t *graph)
{
    capturing = false;
    *graph = (cudaGraph_t)(uintptr_t)1;
    return cudaSuccess;
}
cudaError_t cudaGraphInstantiate(cudaGraphExec_t *out, cudaGraph_t graph, unsigned long long flags)
{
    graphs++;
    *out = (cudaGraphExec_t)(uintptr_t)1;
    return cudaSuccess;
}

/* ---- what nvcc's code of every .cu file calls before main, or never: kernels are launched by address ---- */

void **__cudaRegisterFatBinary(void *code);
void __cudaRegisterFatBinaryEnd(void **handle);
void __cudaUnregisterFatBinary(void **handle);
void __cudaRegisterFunction(void **handle, const char *host, char *device, const char *name, int threads, uint3 *tid, uint3 *bid, dim3 *block, dim3 *grid,
                            int *warp);
void __cudaRegisterVar(void **handle, char *host, char *device, const char *name, int ext, size_t size, int constant, int global);
cudaError_t __cudaPopCallConfiguration(dim3 *grid, dim3 *block, size_t *smem, void *stream);
cudaError_t __cudaLaunchKernel(cudaKernel_t k, dim3 grid, dim3 block, void **args, size_t smem, cudaStream_t stream);
cudaError_t __cudaGetKernel(cudaKernel_t *k, const void *f);

void **__cudaRegisterFatBinary(void *code)
{
    static void *handle;
    return &handle;
}
void __cudaRegisterFatBinaryEnd(void **handle)
{
}
void __cudaUnregisterFatBinary(void **handle)
{
}
void __cudaRegisterFunction(void **handle, const char *host, char *device, const char *name, int threads, uint3 *tid, uint3 *bid, dim3 *block, dim3 *grid,
                            int *warp)
{
    if (kernel_count == KERNELS_MAX)
        abort();
    kernels[kernel_count++] = (struct kernel){host, name, 0};
}
void __cudaRegisterVar(void **handle, char *host, char *device, const char *name, int ext, size_t size, int constant, int global)
{
}
NOTHING(__cudaPopCallConfiguration, dim3 *grid, dim3 *block, size_t *smem, void *stream)
NOTHING(__cudaLaunchKernel, cudaKernel_t k, dim3 grid, dim3 block, void **args, size_t smem, cudaStream_t stream)
NOTHING(__cudaGetKernel, cudaKernel_t *k, const void *f)
