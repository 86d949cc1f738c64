# The CUDA backend: nvcc from the usual places, the runtime linked in, the driver found when a device is opened; a compile cache where one is.
# RH_CUDA_ARCHITECTURES: the GPUs there is code for, as nvcc names them: 90a (Hopper), 89 (Ada), 80 (Ampere; its PTX runs on newer ones).
set(RH_CUDA_ARCHITECTURES "90a" CACHE STRING "GPUs the CUDA backend is compiled for: 80, 89, 90a, separated by semicolons")
if(NOT DEFINED CMAKE_CUDA_COMPILER)
  find_program(RH_NVCC nvcc HINTS ENV CUDA_HOME PATHS /usr/local/cuda PATH_SUFFIXES bin REQUIRED)
  set(CMAKE_CUDA_COMPILER ${RH_NVCC})
endif()
find_program(RH_CCACHE ccache)
if(RH_CCACHE AND NOT DEFINED CMAKE_CUDA_COMPILER_LAUNCHER)
  set(CMAKE_CUDA_COMPILER_LAUNCHER ${RH_CCACHE})
endif()
set(CMAKE_CUDA_ARCHITECTURES ${RH_CUDA_ARCHITECTURES})
set(CMAKE_CUDA_STANDARD 17)
set(CMAKE_CUDA_RUNTIME_LIBRARY Static)
enable_language(CUDA)
find_package(CUDAToolkit REQUIRED)
# For measurements alone: K of a linear cut in at most that many parts instead of as docs/arithmetic.md says.  The sums are other ones then, and so is
# the backend's numeric identity: what the program keeps on disk of one is never taken for the other's.
set(RH_CUDA_CUTS 8 CACHE STRING "parts that K of a linear is cut in: 8, or for measurements 1, 2, 4")
# Fused multiply-add only where it is written.
set(CMAKE_CUDA_FLAGS "${CMAKE_CUDA_FLAGS} -fmad=false -Xcompiler=-Wall,-Wextra,-ffp-contract=off")
set(CMAKE_CUDA_FLAGS_RELEASE "-O2 -DNDEBUG")
