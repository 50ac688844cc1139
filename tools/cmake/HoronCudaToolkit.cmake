# Finds the CUDA toolkit, for Horon's own build and for programs that link an installed Horon: in
# the folder horon_cuda_root, unless that is empty or CUDAToolkit_ROOT names another one.

if(horon_cuda_root)
  # Wheels contain the runtime only under its full name, and CMake does not look for that name.
  file(GLOB horon_cudart ${horon_cuda_root}/lib/libcudart.so.*)
  if(horon_cudart AND NOT EXISTS ${horon_cuda_root}/lib/libcudart.so
     AND NOT EXISTS ${horon_cuda_root}/lib64/libcudart.so)
    list(GET horon_cudart 0 horon_cudart)
    set(CUDA_CUDART ${horon_cudart} CACHE FILEPATH "CUDA's runtime")
  endif()
  if(NOT CUDAToolkit_ROOT)
    set(CUDAToolkit_ROOT ${horon_cuda_root})
  endif()
endif()
# For projects that require CMake 3.25, CMake 3.25.1 (Debian 12) marks a library as deprecated that
# CUDA 13 does not have, which is an error.
set(horon_required_cmake ${CMAKE_MINIMUM_REQUIRED_VERSION})
set(CMAKE_MINIMUM_REQUIRED_VERSION 3.24)
find_package(CUDAToolkit 12.1 QUIET)
set(CMAKE_MINIMUM_REQUIRED_VERSION ${horon_required_cmake})
