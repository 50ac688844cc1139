horon_test(host_memory_test FILES ops/host_memory_test.cc ops/store_choice_test.cc)
horon_test(narrowed_entries_test FILES ops/narrowed_entries_test.cc)
horon_test(stream_copy_test FILES ops/stream_copy_test.cc)

# CUDA and NCCL without a GPU, for tests of everything that is built on them.
add_library(horon_host_gpu STATIC EXCLUDE_FROM_ALL
            support/host_gpu/host_cuda.cc support/host_gpu/host_gpu_libraries.cc
            support/host_gpu/host_graph.cc support/host_gpu/host_nccl.cc
            support/host_gpu/host_window.cc support/host_gpu/move_on_host.cc)
horon_target(horon_host_gpu)
target_link_libraries(horon_host_gpu PUBLIC horon::core)

# The results that tests expect, calculated element by element. Compiled without sanitizers: it has
# no threads that interact, and a sanitizer, which checks each element, would make it take most of
# the time of the tests.
add_library(horon_scalar_reference STATIC EXCLUDE_FROM_ALL ops/scalar_reference.cc)
horon_target(horon_scalar_reference)
if(HORON_SANITIZE)
  target_compile_options(horon_scalar_reference PRIVATE -O2 -fno-sanitize=all)
endif()
target_link_libraries(horon_scalar_reference PUBLIC horon::core)

horon_test(host_kernels_test FILES ops/host_kernels_test.cc LIBS horon_scalar_reference)

# What every op must do, written once.
add_library(horon_op_contract STATIC EXCLUDE_FROM_ALL
            ops/block_contract.cc ops/contract_case.cc ops/data_movement_contract.cc
            ops/op_contract.cc)
horon_target(horon_op_contract)
target_link_libraries(horon_op_contract PUBLIC horon_scalar_reference GTest::gtest)
if(HORON_SANITIZE)
  target_compile_definitions(horon_op_contract PRIVATE HORON_CONTRACT_HAS_ALL_TYPES=0)
else()
  target_compile_definitions(horon_op_contract PRIVATE HORON_CONTRACT_HAS_ALL_TYPES=1)
endif()

horon_test(adasum_allreduce_test FILES ops/adasum/adasum_allreduce_test.cc)
horon_test(shared_memory_threads_test
           FILES ops/kernel_reads_test.cc ops/late_ranks_test.cc
                 ops/shared_memory_threads_test.cc
           LIBS horon_op_contract)
# A sanitizer sees the same code on any number of ranks, so a few numbers are enough for it.
set(shared_memory_ranks 1 2 3 4 5)
set(mpi_ranks 1 2 3 4)
if(HORON_SANITIZE)
  set(shared_memory_ranks 2 5)
  set(mpi_ranks 3)
endif()
horon_test(shared_memory_ops_test FILES ops/shared_memory_ops_test.cc
           LIBS horon_op_contract RANKS ${shared_memory_ranks})
horon_mpirun_test(shared_memory_ops_test.containers_3 shared_memory_ops_test 3
                  LAUNCHER ${horon_mpirun_containers})
horon_test(nccl_threads_test FILES ops/nccl/nccl_line_test.cc ops/nccl/nccl_threads_test.cc
           LIBS horon_op_contract horon_host_gpu)
horon_test(nccl_window_test FILES ops/nccl/nccl_window_test.cc LIBS horon_host_gpu)
horon_test(nccl_runtime_test
           FILES ops/nccl/nccl_runtime_test.cc support/fake_device.cc
                 support/memory_of_worlds_enqueued.cc
           LIBS horon_host_gpu)
if(HORON_SANITIZE STREQUAL "thread")  # a planted data race
  set_tests_properties(nccl_threads_test PROPERTIES ENVIRONMENT
                       GTEST_FILTER=-NcclThreads.AMissingWaitIsSeen)
endif()
horon_test(nccl_ops_test FILES ops/nccl/nccl_ops_test.cc
           LIBS horon_op_contract horon_host_gpu RANKS ${mpi_ranks})
horon_test(gpu_session_test
           FILES ops/session/gpu_session_test.cc ops/session/gpu_capture_test.cc
                 ops/session/gpu_capture_refusals_test.cc ops/session/gpu_block_chunks_test.cc
                 ops/session/gpu_chunks_test.cc
                 ops/session/gpu_hierarchy_test.cc ops/session/gpu_through_host_test.cc
           LIBS horon_host_gpu RANKS ${mpi_ranks})
horon_test(gpu_window_test FILES ops/session/gpu_window_test.cc
           LIBS horon_host_gpu RANKS ${mpi_ranks})
horon_label_tests(cuda gpu_window_test.np1 gpu_window_test.np2 gpu_window_test.np3
                  gpu_window_test.np4)
horon_mpirun_test(gpu_session_test.through_the_host gpu_session_test 3
                  ENVIRONMENT HORON_GPU_COLLECTIVES=host
                  ARGS --gtest_filter=GpuSession.*-*Nccl*:*MayTakeLong)
set(gpu_hosts 2+1 2+2 1+1+1)
if(HORON_SANITIZE)
  set(gpu_hosts 2+1)
endif()
foreach(layout ${gpu_hosts})
  string(REPLACE "+" "_" hosts ${layout})
  horon_mpirun_test(gpu_session_test.hosts_${hosts} gpu_session_test ${layout}
                    LAUNCHER ${horon_mpirun_hosts}
                    ENVIRONMENT HORON_GPU_COLLECTIVES=hierarchical
                    ARGS --gtest_filter=-GpuCapture.*:*MayTakeLong)
  horon_label_tests(cuda gpu_session_test.hosts_${hosts})
endforeach()
horon_test(host_cuda_test
           FILES ops/cuda/background_call_test.cc ops/cuda/host_cuda_test.cc
                 ops/cuda/staged_op_test.cc
           LIBS horon_host_gpu)
horon_test(move_fast_math_test FILES ops/cuda/move_fast_math_test.cc)
set_source_files_properties(ops/cuda/move_fast_math_test.cc PROPERTIES
                            COMPILE_OPTIONS "-ffast-math")
horon_test(launch_order_test FILES ops/nccl/launch_order_test.cc)
horon_test(job_gpu_test FILES ops/nccl/job_gpu_test.cc LIBS horon_host_gpu)
horon_label_tests(cuda gpu_session_test.through_the_host gpu_session_test.np1 gpu_session_test.np2
                  gpu_session_test.np3 gpu_session_test.np4 host_cuda_test job_gpu_test
                  launch_order_test move_fast_math_test nccl_threads_test nccl_runtime_test
                  nccl_window_test
                  nccl_ops_test.np1 nccl_ops_test.np2 nccl_ops_test.np3 nccl_ops_test.np4)
horon_test(mpi_ops_test FILES ops/mpi_ops_test.cc
           LIBS horon_op_contract RANKS ${mpi_ranks})
horon_test(mpi_messages_test FILES ops/mpi/mpi_messages_test.cc RANKS 1)
horon_test(choice_test
           FILES ops/choice/algorithm_test.cc ops/choice/constants_file_test.cc
                 ops/explain_choices_test.cc ops/timing/job_constants_test.cc
                 ops/choice/machine_constants_test.cc ops/timing/timing_test.cc
           LIBS MPI::MPI_C)
if(NOT HORON_SANITIZE)
  target_sources(choice_test PRIVATE ops/timing/late_answer_test.cc)
endif()
include(ops/gpu.cmake)
horon_test(exchange_plan_test
           FILES ops/hierarchical/block_chunks_test.cc ops/hierarchical/exchange_plan_test.cc
                 ops/hierarchical/spread_tree_test.cc)
horon_test(chunk_exchange_test FILES ops/hierarchical/chunk_exchange_test.cc)
horon_without_threads(host_kernels_test narrowed_entries_test move_fast_math_test
                      exchange_plan_test chunk_exchange_test)
horon_test(hierarchical_threads_test
           FILES ops/hierarchical/hierarchical_threads_test.cc
                 ops/hierarchical/hosts_exchange_test.cc ops/hierarchical/narrow_wire_contract.cc
                 ops/hierarchical/narrow_wire_test.cc ops/hierarchical/random_programs_test.cc
                 ops/hierarchical/step_bounds_test.cc
           LIBS horon_op_contract)
horon_test(hierarchical_ops_test
           FILES ops/hierarchical/hierarchical_ops_test.cc
                 ops/hierarchical/narrow_wire_contract.cc
           LIBS horon_op_contract RANKS 1)
horon_test(nccl_hier_allreduce_test
           FILES ops/hierarchical_gpu/nccl_hier_allreduce_test.cc
                 ops/hierarchical/narrow_wire_contract.cc
           LIBS horon_op_contract horon_host_gpu RANKS 1)
set(several_hosts 1+1 2+1 2+2 3+1 1+1+1)
if(HORON_SANITIZE)
  set(several_hosts 2+1)
endif()
foreach(layout ${several_hosts})
  string(REPLACE "+" "_" hosts ${layout})
  horon_mpirun_test(hierarchical_ops_test.hosts_${hosts} hierarchical_ops_test ${layout}
                    LAUNCHER ${horon_mpirun_hosts})
  horon_mpirun_test(nccl_hier_allreduce_test.hosts_${hosts} nccl_hier_allreduce_test ${layout}
                    LAUNCHER ${horon_mpirun_hosts})
  horon_label_tests(cuda nccl_hier_allreduce_test.hosts_${hosts})
endforeach()
horon_optimize_tests(hierarchical_threads_test shared_memory_threads_test)
if(HORON_SANITIZE STREQUAL "thread")  # the longest by far: all others run beside them
  set_tests_properties(hierarchical_threads_test shared_memory_threads_test PROPERTIES COST 1000)
endif()
include(ops/faults/faults.cmake)
horon_test(builtin_test FILES ops/builtin_test.cc LIBS horon_op_contract RANKS 2 3)
horon_test(session_test
           FILES ops/session/session_test.cc ops/session/absent_ranks_test.cc
                 ops/session/barrier_test.cc
           RANKS 1 3)
if(HORON_NVTX_INCLUDE_DIR)
  set_source_files_properties(support/nvtx_profiler.cc PROPERTIES
                              COMPILE_OPTIONS "-isystem;${HORON_NVTX_INCLUDE_DIR}")
  horon_test(nvtx_ranges_test FILES ops/cuda/nvtx_ranges_test.cc support/nvtx_profiler.cc
             RANKS 1 2)
endif()
horon_test(session_owner_test FILES ops/session/session_owner_test.cc RANKS 2)
horon_test(serialized_session_test FILES ops/session/serialized_session_test.cc RANKS 2)
horon_test(unlike_thread_levels_test FILES ops/session/unlike_thread_levels_test.cc RANKS 3)
horon_test(failing_mpi_test FILES ops/session/failing_mpi_test.cc RANKS 3)
horon_test(missing_memory_test FILES ops/session/missing_memory_test.cc RANKS 2)
horon_mpirun_test(missing_memory_test.hosts_1_2 missing_memory_test 1+2
                  LAUNCHER ${horon_mpirun_hosts})
horon_test(communicator_test FILES ops/communicator/communicator_test.cc RANKS 1 2 4)
horon_test(session_sets_test
           FILES ops/session/session_sets_test.cc ops/session/ended_session_test.cc
           RANKS 3 4)
foreach(program communicator_test session_sets_test)
  horon_mpirun_test(${program}.hosts_2_1 ${program} 2+1 LAUNCHER ${horon_mpirun_hosts})
endforeach()
horon_test(members_sets_test FILES ops/session/members_sets_test.cc RANKS 3)
horon_mpirun_test(members_sets_test.hosts_2_1 members_sets_test 2+1 LAUNCHER ${horon_mpirun_hosts})
horon_mpirun_test(members_sets_test.containers_3 members_sets_test 3
                  LAUNCHER ${horon_mpirun_containers})
horon_test(session_hosts_test
           FILES ops/session/eager_test.cc ops/session/session_hosts_test.cc RANKS 2)
foreach(layout 1+1 2+1 2+2 1+1+1)
  string(REPLACE "+" "_" hosts ${layout})
  horon_mpirun_test(session_hosts_test.hosts_${hosts} session_hosts_test ${layout}
                    LAUNCHER ${horon_mpirun_hosts})
endforeach()
# With constants that are measured and not stored; the other tests have the defaults.
foreach(program session_hosts_test session_sets_test)
  horon_mpirun_test(${program}.measured ${program} 2+1 LAUNCHER ${horon_mpirun_hosts}
                    ENVIRONMENT HORON_MEASURE=again HORON_MEASURE_FILE=/dev/null/none)
endforeach()
horon_mpirun_test(session_hosts_test.measured_np2 session_hosts_test 2
                  ENVIRONMENT HORON_MEASURE=again HORON_MEASURE_FILE=/dev/null/none)
horon_test(large_process_set_test FILES ops/session/large_process_set_test.cc RANKS 18
           TIMEOUT 600)
