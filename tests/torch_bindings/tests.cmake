# Tests of the LibTorch bindings. A file costs 10 to 20 s to compile: more cases, not more files.
# One rank alone is tried where it is a case of its own, and by one test of each room.
if(NOT TARGET horon::torch)
  return()
endif()
set(torch_tests ${CMAKE_CURRENT_LIST_DIR})

# A file costs 40 s to compile under sanitizers, so only what reaches most of the bindings is there.
set(horon_sanitized_torch_tests "")
if(HORON_SANITIZE MATCHES "address")
  set(horon_sanitized_torch_tests
      torch_collectives_test torch_objects_test torch_broadcast_state_test torch_reducer_traps_test
      torch_optimizer_situations_test torch_fused_step_test torch_memory_ranges_test
      torch_backward_test torch_idx_dataset_test torch_random_program_test
      torch_reducer_random_test torch_optimizer_traps_test torch_reducer_sparse_test
      torch_session_test)
elseif(HORON_SANITIZE STREQUAL "thread")
  set(horon_sanitized_torch_tests torch_backward_ends_test torch_bucket_countdown_test
      torch_threads_in_backward_test)
endif()
if(HORON_SANITIZE)
  set_target_properties(horon_torch PROPERTIES EXCLUDE_FROM_ALL ON)  # unless one of them is there
  set(fewer_programs ARGS --count=8)  # random ones: a sanitizer needs to see each kind a few times
endif()

# torch_test(FILE N... [ARGS...]): torch_NAME, from the file FOLDER/NAME.cc, on N ranks each.
function(torch_test file)
  get_filename_component(name ${file} NAME)
  horon_test(torch_${name} FILES ${torch_tests}/${file}.cc RANKS ${ARGN} LIBS horon::torch
             TIMEOUT 120)
endfunction()
torch_test(collectives/collectives_test 1 2 3 4)
torch_test(collectives/block_collectives_test 2 3 4)
torch_test(collectives/process_set_test 2 3 4)
torch_test(collectives/autograd_adjoints_test 2 3 4)
torch_test(collectives/autograd_test 2 3 4)
torch_test(collectives/objects_test 2 3 4)
torch_test(collectives/sparse_allreduce_test 2 3 4)
horon_test(torch_repeated_calls_test FILES ${torch_tests}/collectives/repeated_calls_test.cc
           support/allocation_counter.cc support/lock_counter.cc
           RANKS 2 3 LIBS horon::torch TIMEOUT 120)
horon_test(torch_random_program_test FILES ${torch_tests}/collectives/random_program_test.cc
           ${torch_tests}/collectives/random_program/model.cc
           ${torch_tests}/collectives/random_program/program.cc
           ${torch_tests}/collectives/random_program/runner.cc
           ${torch_tests}/collectives/random_program/start.cc
           RANKS 2 3 4 LIBS horon::torch TIMEOUT 120 ${fewer_programs})
if(TARGET torch_random_program_test)
  set_target_properties(torch_random_program_test PROPERTIES UNITY_BUILD ON)  # 9 s a file, else
endif()
torch_test(threads_in_backward_test 1 2 3 4)
# LibTorch's device "cuda" without a GPU. It takes the place of libtorch_cuda.so, which ends a
# program where somebody else has registered that device.
if(NOT HORON_TORCH_WITH_CUDA)
  add_library(horon_torch_device OBJECT EXCLUDE_FROM_ALL ${torch_tests}/host_gpu/torch_device.cc
              ${torch_tests}/host_gpu/torch_kernels.cc)
  horon_target(horon_torch_device)
  target_link_libraries(horon_torch_device PUBLIC horon::torch horon_host_gpu)
  horon_test(torch_gpu_collectives_test FILES ${torch_tests}/collectives/gpu_collectives_test.cc
             RANKS 1 2 3 LIBS horon_torch_device TIMEOUT 120)
  horon_test(torch_gpu_training_test FILES ${torch_tests}/gradients/gpu_training_test.cc
             RANKS 1 2 3 LIBS horon_torch_device TIMEOUT 120)
  foreach(ranks 1 2 3)
    horon_label_tests(cuda torch_gpu_collectives_test.np${ranks} torch_gpu_training_test.np${ranks})
  endforeach()
endif()
torch_test(state/broadcast_state_test 1 2 3 4)
if(HORON_WITH_CUDA AND NOT HORON_SANITIZE)
  horon_test(torch_real_gpu_test FILES ${torch_tests}/real_gpu_test.cc RANKS 1 2 4 LIBS horon::torch
             TIMEOUT 120 LAUNCHER ${CMAKE_CURRENT_SOURCE_DIR}/support/mpirun_one_gpu_test)
  foreach(ranks 1 2 4)
    # Where there is no GPU it still shows something, on the CPU: not skipped.
    set_tests_properties(torch_real_gpu_test.np${ranks} PROPERTIES LABELS "gpu;mpirun")
  endforeach()
endif()
torch_test(api_test 2 3 4)
torch_test(session_test 1 2 3 4)
# These expect the CPU, also on a machine with GPUs, which may be fewer than the ranks.
function(torch_test_without_gpus)
  foreach(test ${ARGN})
    if(TEST ${test})
      set_property(TEST ${test} APPEND PROPERTY ENVIRONMENT CUDA_VISIBLE_DEVICES=)
    endif()
  endforeach()
endfunction()
torch_test_without_gpus(torch_session_test.np1 torch_session_test.np2 torch_session_test.np3
                        torch_session_test.np4)
torch_test(gradients/optimizer_training_test 1 2 3 4)
torch_test(gradients/fused_step_test 1)
torch_test(gradients/fused_training_test 2)
torch_test(gradients/step_scaling_test 2 3)
# LibTorch rounds otherwise without AVX.
horon_mpirun_test(torch_fused_step_test.no_avx torch_fused_step_test 1 TIMEOUT 120
                  ENVIRONMENT ATEN_CPU_CAPABILITY=default)
horon_test(torch_hook_costs_test FILES ${torch_tests}/gradients/hook_costs_test.cc
           support/allocation_counter.cc support/lock_counter.cc
           RANKS 2 LIBS horon::torch TIMEOUT 120)
torch_test(gradients/reducer_traps_test 2 3 4)
torch_test(gradients/optimizer_traps_test 2 3 4)
torch_test(gradients/backward_test 2 3 4)
torch_test(gradients/replica_check_test 2 3 4)
torch_test(gradients/backward_ends_test 2 3 4)
torch_test(gradients/reducer_random_test 2 3 4 ${fewer_programs})
torch_test(gradients/reducer_options_test 2 3 4)
torch_test(gradients/compressed_gradients_test 2 3)
torch_test(gradients/reducer_scopes_test 2 3 4)
torch_test(gradients/plain_rounds_test 1 2 3 4)
torch_test(gradients/round_flags_test 1)
horon_test(torch_bucket_countdown_test FILES ${torch_tests}/gradients/bucket_countdown_test.cc)
torch_test(gradients/reducer_sparse_test 2 3 4)
torch_test(gradients/reducer_join_test 2 3 4)
torch_test(gradients/optimizer_options_test 2 3 4)
torch_test(gradients/optimizer_situations_test 2 3 4)
# Large gradients and steps are shared out to the threads of LibTorch; mpirun_test gives it one.
# Passive: a thread that spins where cores are taken would keep them from those that work.
foreach(name torch_fused_step_test torch_reducer_traps_test)
  horon_mpirun_test(${name}.two_threads ${name} 1 TIMEOUT 120
                    ENVIRONMENT OMP_NUM_THREADS=2 OMP_WAIT_POLICY=passive)
endforeach()
horon_mpirun_test(torch_compressed_gradients_test.two_threads torch_compressed_gradients_test 2
                  TIMEOUT 120 ENVIRONMENT OMP_NUM_THREADS=2 OMP_WAIT_POLICY=passive)
horon_test(torch_samplers_test FILES ${torch_tests}/data/samplers_test.cc LIBS horon::torch)
horon_test(torch_memory_ranges_test FILES ${torch_tests}/tensors/memory_ranges_test.cc
           LIBS horon::torch)
find_package(ZLIB REQUIRED)
horon_test(torch_idx_dataset_test FILES ${torch_tests}/data/idx_dataset_test.cc
           LIBS horon::torch ZLIB::ZLIB)

if(HORON_SANITIZE)
  return()
endif()

# Optimizers and collectives over MPI alone.
# MPI polls, so four ranks on two busy cores take twenty times as long: fewer programs.
horon_mpirun_test(torch_random_program_test.mpi.np4 torch_random_program_test 4 TIMEOUT 120
                  ENVIRONMENT HORON_SHARED_MEMORY=0 ARGS --count=15)
horon_mpirun_test(torch_reducer_random_test.mpi.np4 torch_reducer_random_test 4 TIMEOUT 120
                  ENVIRONMENT HORON_SHARED_MEMORY=0)

# Ways out of a program: mode, expected exit code.
add_executable(torch_exit_program ${torch_tests}/exit_programs/exit_program.cc)
horon_target(torch_exit_program)
target_link_libraries(torch_exit_program PRIVATE horon::torch MPI::MPI_C)
function(torch_exit_test mode code)
  add_test(NAME torch_exit.${mode}
           COMMAND ${torch_tests}/exit_programs/expect_exit ${code}
                   ${PROJECT_SOURCE_DIR}/tests/support/mpirun_test 2
                   $<TARGET_FILE:torch_exit_program> ${mode})
  set_tests_properties(torch_exit.${mode} PROPERTIES TIMEOUT 60 PROCESSORS 2)
endfunction()
foreach(mode never_started return init_twice exit shutdown_twice in_flight lonely one_leaves
        mpi_shutdown_finalize mpi_finalize_atexit mpi_finalize_without_shutdown)
  torch_exit_test(${mode} 0)
endforeach()
torch_exit_test(return_7 7)
torch_exit_test(exit_3 3)
torch_exit_test(caught 4)
torch_exit_test(uncaught 134)

# The same while gradients are being reduced.
add_executable(torch_gradient_exit_program
               ${torch_tests}/exit_programs/gradient_exit_program.cc)
horon_target(torch_gradient_exit_program)
target_link_libraries(torch_gradient_exit_program PRIVATE horon::torch)
function(torch_gradient_exit_test mode code)
  add_test(NAME torch_gradient_exit.${mode}
           COMMAND ${torch_tests}/exit_programs/expect_exit ${code}
                   ${PROJECT_SOURCE_DIR}/tests/support/mpirun_test 2
                   $<TARGET_FILE:torch_gradient_exit_program> ${mode})
  set_tests_properties(torch_gradient_exit.${mode} PROPERTIES TIMEOUT 60 PROCESSORS 2)
endfunction()
foreach(mode return return_static after_shutdown after_shutdown_static alone_after_shutdown
        one_exits_in_hook)
  torch_gradient_exit_test(${mode} 0)
endforeach()
foreach(mode exit_in_hook exit_in_hook_static)
  torch_gradient_exit_test(${mode} 5)
endforeach()
foreach(mode throw_in_hook throw_in_hook_static)
  torch_gradient_exit_test(${mode} 4)
endforeach()

# The fault matrix in backward; tests/ops/faults has what does without LibTorch.
add_executable(torch_training_fault_program
               ${torch_tests}/exit_programs/training_fault_program.cc support/fault_job.cc)
horon_target(torch_training_fault_program)
target_link_libraries(torch_training_fault_program PRIVATE horon::torch)
foreach(link shm mpi hosts)
  horon_fault_test(torch_faults.${link} ${link} torch_training_fault_program backward)
endforeach()

if(TARGET fashion_mnist)
  add_test(NAME torch_example_test
           COMMAND ${torch_tests}/example_test $<TARGET_FILE:fashion_mnist>
                   ${PROJECT_SOURCE_DIR}/tests/support/mpirun_test)
  set_tests_properties(torch_example_test PROPERTIES TIMEOUT 120 PROCESSORS 2)
  torch_test_without_gpus(torch_example_test)
endif()

# Gigabytes for each rank: alone on the machine.
horon_test(torch_large_collectives_test FILES ${torch_tests}/collectives/large_collectives_test.cc
           RANKS 2 LIBS horon::torch TIMEOUT 300)
set_tests_properties(torch_large_collectives_test.np2 PROPERTIES RUN_SERIAL ON)
# Ranks of several hosts, as far as Horon can tell: shared memory among some of them, MPI between.
foreach(run torch_random_program_test:2+2 torch_collectives_test:2+2 torch_reducer_random_test:2+1
        torch_reducer_traps_test:2+1 torch_backward_ends_test:2+1 torch_process_set_test:2+1
        torch_process_set_test:1+1+1 torch_session_test:2+2 torch_optimizer_training_test:2+1
        torch_reducer_options_test:2+1 torch_reducer_scopes_test:2+1 torch_reducer_sparse_test:2+1
        torch_reducer_join_test:2+1 torch_plain_rounds_test:2+1 torch_replica_check_test:2+1
        torch_backward_test:2+1 torch_compressed_gradients_test:2+1)
  string(REGEX MATCH "(.*):(.*)" run ${run})
  set(program ${CMAKE_MATCH_1})
  set(layout ${CMAKE_MATCH_2})
  string(REPLACE "+" "_" hosts ${layout})
  horon_mpirun_test(${program}.hosts_${hosts} ${program} ${layout} LAUNCHER ${horon_mpirun_hosts}
                    TIMEOUT 120)
endforeach()
torch_test_without_gpus(torch_session_test.hosts_2_2)
