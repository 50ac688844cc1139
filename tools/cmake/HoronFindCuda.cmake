# Decides whether GPUs are built in: HORON_CUDA=AUTO takes CUDA where nvcc and NCCL's header are
# found. Sets HORON_WITH_CUDA, and gives CUDA::cudart_static and HORON_NCCL_INCLUDE_DIR.
#
# Looks for nvcc in CMAKE_CUDA_COMPILER and CUDACXX (the compiler itself), CUDAToolkit_ROOT,
# CUDA_HOME, CUDA_PATH, PATH, /usr/local/cuda and the wheels in .venv of this repository; for nccl.h
# in NCCL_HOME, beside CUDA, in the system and in those wheels.

set_property(CACHE HORON_CUDA PROPERTY STRINGS AUTO ON OFF)
set(HORON_WITH_CUDA OFF)
if(HORON_CUDA)
  if(IS_ABSOLUTE "${CMAKE_CUDA_COMPILER}" AND CMAKE_CUDA_COMPILER MATCHES "/nvcc$")
    # Also where another one is cached: the toolkit is that of the compiler.
    set(HORON_NVCC ${CMAKE_CUDA_COMPILER} CACHE FILEPATH "CUDA's compiler" FORCE)
  elseif(DEFINED ENV{CUDACXX} AND EXISTS $ENV{CUDACXX})
    set(HORON_NVCC $ENV{CUDACXX} CACHE FILEPATH "CUDA's compiler")
  endif()
  file(GLOB horon_cuda_wheels
       ${CMAKE_CURRENT_LIST_DIR}/../../.venv/lib/python3*/site-packages/nvidia/cu*)
  find_program(HORON_NVCC nvcc
               HINTS ${CUDAToolkit_ROOT} ENV CUDAToolkit_ROOT ENV CUDA_HOME ENV CUDA_PATH
               PATHS /usr/local/cuda ${horon_cuda_wheels} PATH_SUFFIXES bin)
  if(HORON_NVCC)
    file(REAL_PATH ${HORON_NVCC} horon_cuda_root)
    cmake_path(GET horon_cuda_root PARENT_PATH horon_cuda_root)
    cmake_path(GET horon_cuda_root PARENT_PATH horon_cuda_root)
    include(${CMAKE_CURRENT_LIST_DIR}/HoronCudaToolkit.cmake)
  endif()
  file(GLOB horon_nccl_wheels
       ${CMAKE_CURRENT_LIST_DIR}/../../.venv/lib/python3*/site-packages/nvidia/nccl)
  find_path(HORON_NCCL_INCLUDE_DIR nccl.h HINTS ENV NCCL_HOME ${CUDAToolkit_INCLUDE_DIRS}
            PATHS ${horon_nccl_wheels} PATH_SUFFIXES include)
  if(HORON_NCCL_INCLUDE_DIR)
    file(STRINGS ${HORON_NCCL_INCLUDE_DIR}/nccl.h horon_nccl_version
         REGEX "define NCCL_(MAJOR|MINOR|PATCH) ")
    string(REGEX REPLACE "[^0-9;]" "" horon_nccl_version "${horon_nccl_version}")
    string(REPLACE ";" "." horon_nccl_version "${horon_nccl_version}")
  endif()
  set(horon_cuda_missing "")
  if(NOT HORON_NVCC)
    set(horon_cuda_missing "no nvcc was found (set CUDACXX to its path)")
  elseif(NOT CUDAToolkit_FOUND)
    set(horon_cuda_missing "the CUDA toolkit of ${HORON_NVCC} is older than 12.1")
  elseif(NOT HORON_NCCL_INCLUDE_DIR)
    set(horon_cuda_missing "nccl.h was not found (set NCCL_HOME to NCCL's folder)")
  elseif(horon_nccl_version VERSION_LESS 2.19)
    string(CONCAT horon_cuda_missing "NCCL 2.19 or later is needed, and the nccl.h in "
           "${HORON_NCCL_INCLUDE_DIR} is of ${horon_nccl_version} (set NCCL_HOME to another)")
  endif()
  if(NOT horon_cuda_missing)
    set(HORON_WITH_CUDA ON)
  elseif(HORON_CUDA STREQUAL "AUTO")
    message(STATUS "Horon is built without GPUs: ${horon_cuda_missing}")
  else()
    message(FATAL_ERROR "HORON_CUDA=ON: ${horon_cuda_missing}")
  endif()
endif()

if(HORON_WITH_CUDA)
  if(NOT CMAKE_CUDA_COMPILER)
    set(CMAKE_CUDA_COMPILER ${HORON_NVCC})
  endif()
  if(NOT CMAKE_CUDA_ARCHITECTURES)
    # Machine code for Ampere and Hopper; newer GPUs compile the latter's PTX when they load it.
    set(CMAKE_CUDA_ARCHITECTURES 80-real 90)
  endif()
  if(HORON_CCACHE AND NOT CMAKE_CUDA_COMPILER_LAUNCHER)
    set(CMAKE_CUDA_COMPILER_LAUNCHER ${horon_launcher})
  endif()
  enable_language(CUDA)
  if(NOT CMAKE_CUDA20_STANDARD_COMPILE_OPTION)  # CMake 3.25 does not know that nvcc 12 has C++20
    set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION -std=c++20)
    set(CMAKE_CUDA20_EXTENSION_COMPILE_OPTION -std=c++20)
    list(APPEND CMAKE_CUDA_COMPILE_FEATURES cuda_std_20)
  endif()
  message(STATUS "Horon is built with CUDA ${CUDAToolkit_VERSION} for ${CMAKE_CUDA_ARCHITECTURES}")
endif()
