# The CUDA backend: nvcc from the usual places, kernels for Hopper (sm_90a), the runtime linked in, the driver found when a device is opened.
if(NOT DEFINED CMAKE_CUDA_COMPILER)
  find_program(RH_NVCC nvcc HINTS ENV CUDA_HOME PATHS /usr/local/cuda PATH_SUFFIXES bin REQUIRED)
  set(CMAKE_CUDA_COMPILER ${RH_NVCC})
endif()
set(CMAKE_CUDA_ARCHITECTURES 90a)
set(CMAKE_CUDA_STANDARD 17)
set(CMAKE_CUDA_RUNTIME_LIBRARY Static)
enable_language(CUDA)
find_package(CUDAToolkit REQUIRED)
# Fused multiply-add only where it is written.
set(CMAKE_CUDA_FLAGS "${CMAKE_CUDA_FLAGS} -fmad=false -Xcompiler=-Wall,-Wextra,-ffp-contract=off")
set(CMAKE_CUDA_FLAGS_RELEASE "-O2 -DNDEBUG")
