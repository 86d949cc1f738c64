/* backend_cuda/k_pack.cu - rows of x as linear reads them: f16, a power of two apart, normed on the way where a norm comes before. */
#include "backend_cuda/kernels.h"
#include "backend_cuda/pack_row.cuh"

static __global__ void __launch_bounds__(PACK_THREADS, 3) pack(const __grid_constant__ cuda_p_pack p)
{
    dev_begin();
    extern __shared__ __align__(16) float row[];
    __shared__ float shared[PACK_SHARED];
    uint32_t r = blockIdx.x, padded = p.units * CUDA_UNIT;
    const float *x = p.x + (size_t)(r / p.heads) * p.stride + (size_t)(r % p.heads) * p.x_step;
    pack_source source = {x, p.w, p.cols, p.eps};
    for (uint32_t c = threadIdx.x; c < p.tail; c += blockDim.x)
        p.y[(size_t)(r / p.heads) * p.y_stride + (size_t)(r % p.heads) * p.y_step + p.y_out + c] = __ldcg(x + p.cols + c);
    __half *to = reinterpret_cast<__half *>(p.packed) + (p.tall ? ((size_t)(r / 128) * p.units * 128 + r % 128) * 64 : (size_t)(r / 8) * p.units * 512 + r % 8 * 64);
    float inverse;
    if (p.tall) /* blocks of 128 rows; of a unit row by row 128 bytes, whose 16-byte pieces are turned by the row */
        inverse = pack_row_eights(source, padded, row, shared, [&](uint32_t c, uint4 v) {
            *reinterpret_cast<uint4 *>(to + (size_t)(c / 64) * 8192 + (c % 64 / 8 ^ r % 8) * 8) = v;
        });
    else
        inverse = pack_row(source, padded, row, shared, [&](uint32_t c, __half2 v) {
            *reinterpret_cast<__half2 *>(to + (size_t)(c / 64) * 512 + pack_place(c)) = v;
        });
    if (threadIdx.x == 0)
        p.row_scale[r] = inverse;
}

extern "C" const void *const cuda_kernel_pack = (const void *)pack;
