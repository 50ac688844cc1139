# Tests of the GPU path that run on two kinds of GPU: on one made of threads, on every machine
# (label cuda), and on a real one where the build has CUDA (label gpu; the name gets the suffix
# _gpu). Where there is no device the second kind is skipped, with a line that says why.

add_library(horon_thread_gpu STATIC EXCLUDE_FROM_ALL
            support/gpu/on_device.cc support/gpu/thread_gpu.cc)
horon_target(horon_thread_gpu)
target_link_libraries(horon_thread_gpu PUBLIC horon_host_gpu)
if(HORON_WITH_CUDA)
  add_library(horon_real_gpu STATIC EXCLUDE_FROM_ALL
              support/gpu/on_device.cc support/gpu/real_gpu.cc)
  horon_target(horon_real_gpu)
  target_include_directories(horon_real_gpu SYSTEM PRIVATE ${CUDAToolkit_INCLUDE_DIRS})
  target_link_libraries(horon_real_gpu PUBLIC horon::core PRIVATE CUDA::cudart_static)
endif()

# horon_gpu_test(NAME FILES... [RANKS N...] [GPU_RANKS N...] [LIBS...]): as horon_test. RANKS are
# numbers of ranks on threads, GPU_RANKS on a real GPU; the ranks share it if there is only one.
function(horon_gpu_test name)
  cmake_parse_arguments(arg "" "" "FILES;RANKS;GPU_RANKS;LIBS" ${ARGN})
  horon_test(${name} FILES ${arg_FILES} LIBS ${arg_LIBS} horon_thread_gpu RANKS ${arg_RANKS})
  set(ends "")
  foreach(ranks ${arg_RANKS})
    list(APPEND ends .np${ranks})
  endforeach()
  list(TRANSFORM ends PREPEND ${name} OUTPUT_VARIABLE tests)
  horon_label_tests(cuda ${name} ${tests})
  if(NOT HORON_WITH_CUDA)
    return()
  endif()
  set(skip "SKIP_REGULAR_EXPRESSION;no GPU: ")
  if(NOT arg_GPU_RANKS)
    horon_test(${name}_gpu FILES ${arg_FILES} LIBS ${arg_LIBS} horon_real_gpu)
    set_tests_properties(${name}_gpu PROPERTIES LABELS gpu ${skip})
    return()
  endif()
  horon_test(${name}_gpu FILES ${arg_FILES} LIBS ${arg_LIBS} horon_real_gpu RANKS ${arg_GPU_RANKS}
             LAUNCHER ${CMAKE_CURRENT_SOURCE_DIR}/support/mpirun_one_gpu_test)
  foreach(ranks ${arg_GPU_RANKS})
    if(TEST ${name}_gpu.np${ranks})
      set_tests_properties(${name}_gpu.np${ranks} PROPERTIES LABELS "gpu;mpirun" ${skip}
                           RUN_SERIAL ON)
    endif()
  endforeach()
endfunction()

horon_gpu_test(move_test FILES ops/cuda/move_test.cc)
horon_gpu_test(cuda_memory_test FILES ops/cuda/cuda_memory_test.cc)
if(NOT HORON_SANITIZE STREQUAL "thread")  # processes that fork and then start threads
  horon_gpu_test(nccl_peer_death_test FILES ops/nccl/nccl_peer_death_test.cc)
endif()
if(HORON_SANITIZE)
  set(nccl_device_ranks 3)
else()
  set(nccl_device_ranks 1 2)
endif()
horon_gpu_test(nccl_device_test FILES ops/nccl/nccl_device_test.cc LIBS horon_op_contract
               RANKS ${nccl_device_ranks} GPU_RANKS 1 2 4)
horon_gpu_test(nccl_window_device_test FILES ops/nccl/nccl_window_device_test.cc
               RANKS ${nccl_device_ranks} GPU_RANKS 1 2)

if(HORON_WITH_CUDA AND NOT HORON_SANITIZE)
  find_package(Python3 REQUIRED COMPONENTS Interpreter)
  add_test(NAME kernel_resources_test
           COMMAND Python3::Interpreter ${CMAKE_CURRENT_SOURCE_DIR}/tools/kernel_resources.py
                   ${CMAKE_CUDA_COMPILER} ${PROJECT_SOURCE_DIR}/ops/cuda/move_kernels.cu
                   ${HORON_INCLUDE_DIR})
  set_tests_properties(kernel_resources_test PROPERTIES TIMEOUT ${horon_test_limit_s})
endif()
