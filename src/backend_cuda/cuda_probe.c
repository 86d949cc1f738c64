/* backend_cuda/cuda_probe.c - the limits of the machine, measured with CUDA events, medians beside the best. */
#include "backend_cuda/cuda_probe.h"

#include "backend_cuda/cuda_int.h"

#include <stdlib.h>

enum { REPEATS_MAX = 64, EDGES = 1000, THREADS = 256, MULTIPLY_SMEM = 17 * 1024, WARPS_BLOCKS = 4 };

struct probe {
    struct device *d;
    struct cuda_p_probe p;
    cudaEvent_t from, to;
    uint32_t repeats;
    double ms[REPEATS_MAX];
};

static int run(const struct probe *b, const void *kernel, uint32_t blocks, uint32_t smem, struct err *err)
{
    void *args[1] = {(void *)(uintptr_t)&b->p};
    dim3 grid = {blocks, 1, 1}, block = {THREADS, 1, 1};
    return cuda_check(cudaLaunchKernel(kernel, grid, block, args, smem, b->d->stream), "probe", err);
}

static int by_time(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* amount / time, or for amount 0 the time itself in microseconds over `parts` */
static void judge(struct probe *b, double amount, double parts, struct cuda_limit *out)
{
    qsort(b->ms, b->repeats, sizeof *b->ms, by_time);
    double best = b->ms[0], median = b->ms[b->repeats / 2];
    *out = amount > 0 ? (struct cuda_limit){amount / best / 1e6, amount / median / 1e6} : (struct cuda_limit){best * 1e3 / parts, median * 1e3 / parts};
}

static int timed_end(struct probe *b, uint32_t i, struct err *err)
{
    float ms = 0;
    int rc = cuda_check(cudaEventRecord(b->to, b->d->stream), "probe", err);
    if (rc == 0)
        rc = cuda_check(cudaEventSynchronize(b->to), "probe", err);
    if (rc == 0)
        rc = cuda_check(cudaEventElapsedTime(&ms, b->from, b->to), "probe", err);
    b->ms[i] = (double)ms;
    return rc;
}

static int measure(struct probe *b, const void *kernel, uint32_t blocks, uint32_t smem, struct err *err)
{
    int rc = run(b, kernel, blocks, smem, err); /* warm */
    for (uint32_t i = 0; i < b->repeats && rc == 0; i++) {
        rc = cuda_check(cudaEventRecord(b->from, b->d->stream), "probe", err);
        if (rc == 0)
            rc = run(b, kernel, blocks, smem, err);
        if (rc == 0)
            rc = timed_end(b, i, err);
    }
    return rc;
}

static int measure_copy(struct probe *b, struct err *err)
{
    int rc = 0;
    for (uint32_t i = 0; i < b->repeats && rc == 0; i++) {
        rc = cuda_check(cudaEventRecord(b->from, b->d->stream), "probe", err);
        if (rc == 0)
            rc = cuda_check(cudaMemcpyAsync(b->p.b, b->p.a, b->p.words * 16, cudaMemcpyDeviceToDevice, b->d->stream), "probe", err);
        if (rc == 0)
            rc = timed_end(b, i, err);
    }
    return rc;
}

static int measure_edges(struct probe *b, struct err *err)
{
    cudaGraph_t graph = NULL;
    cudaGraphExec_t exec = NULL;
    int rc = cuda_check(cudaStreamBeginCapture(b->d->stream, cudaStreamCaptureModeThreadLocal), "probe", err);
    for (uint32_t i = 0; i < EDGES && rc == 0; i++)
        rc = run(b, cuda_kernels_probe[CUDA_K_PROBE_NOTHING], b->d->workers, 0, err);
    cudaError_t end = cudaStreamEndCapture(b->d->stream, &graph);
    rc = rc ? rc : cuda_check(end, "probe", err);
    if (rc == 0)
        rc = cuda_check(cudaGraphInstantiate(&exec, graph, 0), "probe", err);
    for (uint32_t i = 0; i < b->repeats + 1 && rc == 0; i++) {
        rc = cuda_check(cudaEventRecord(b->from, b->d->stream), "probe", err);
        if (rc == 0)
            rc = cuda_check(cudaGraphLaunch(exec, b->d->stream), "probe", err);
        if (rc == 0)
            rc = timed_end(b, i ? i - 1 : 0, err);
    }
    if (exec)
        cudaGraphExecDestroy(exec);
    if (graph)
        cudaGraphDestroy(graph);
    return rc;
}

/* What multiplies matrices fastest on this GPU; G operations a second. */
static int measure_f16(struct probe *b, struct cuda_limit *out, struct err *err)
{
    bool wgmma = b->d->wgmma;
    uint32_t blocks = wgmma ? b->d->workers : WARPS_BLOCKS * b->d->workers;
    double flops = wgmma ? 2.0 * blocks * 2 * CUDA_PROBE_STEPS * 4 * 64 * 128 * 16
                         : 2.0 * blocks * (THREADS / 32.0) * CUDA_PROBE_STEPS * CUDA_PROBE_CHAINS * 16 * 8 * 16;
    int rc = measure(b, wgmma ? cuda_kernel_probe_wgmma : cuda_kernels_probe[CUDA_K_PROBE_MULTIPLY], blocks, wgmma ? MULTIPLY_SMEM : 0, err);
    judge(b, flops, 1, out);
    return rc;
}

static int probe_all(struct probe *b, struct cuda_limits *out, struct err *err)
{
    double bytes = (double)b->p.words * 16;
    int rc = run(b, cuda_kernels_probe[CUDA_K_PROBE_FILL], 8 * b->d->workers, 0, err);
    if (rc == 0)
        rc = measure(b, cuda_kernels_probe[CUDA_K_PROBE_READ], 2 * b->d->workers, 0, err);
    judge(b, bytes, 1, &out->read);
    if (rc == 0)
        rc = measure_copy(b, err);
    judge(b, 2 * bytes, 1, &out->copy);
    if (rc == 0)
        rc = measure_f16(b, &out->f16, err);
    if (rc == 0)
        rc = measure_edges(b, err);
    judge(b, 0, EDGES, &out->edge_us);
    return rc;
}

int cuda_probe(struct device *d, size_t bytes, uint32_t repeats, struct cuda_limits *out, struct err *err)
{
    struct probe b = {.d = d, .repeats = repeats < REPEATS_MAX ? repeats : REPEATS_MAX};
    size_t free_bytes = 0, total = 0;
    *out = (struct cuda_limits){0};
    int rc = cuda_finish(d, err);
    if (rc == 0)
        rc = cuda_check(cudaMemGetInfo(&free_bytes, &total), "memory", err);
    bytes = bytes < free_bytes / 3 ? bytes : free_bytes / 3;
    b.p.words = bytes / 16;
    if (rc == 0)
        rc = cuda_check(cudaMalloc(&b.p.a, bytes), "probe", err);
    if (rc == 0)
        rc = cuda_check(cudaMalloc(&b.p.b, bytes), "probe", err);
    if (rc == 0)
        rc = cuda_check(cudaEventCreate(&b.from), "event", err);
    if (rc == 0)
        rc = cuda_check(cudaEventCreate(&b.to), "event", err);
    if (rc == 0)
        rc = probe_all(&b, out, err);
    if (b.from)
        cudaEventDestroy(b.from);
    if (b.to)
        cudaEventDestroy(b.to);
    cudaFree(b.p.a);
    cudaFree(b.p.b);
    return rc;
}
