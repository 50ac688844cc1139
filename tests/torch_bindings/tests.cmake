# Tests of the LibTorch bindings. To read its headers costs 10 to 20 s, so the files of a room
# are compiled in batches, into one program; ctest still runs each file by itself.
# One rank alone is tried where it is a case of its own, and by one test of each room.
if(NOT TARGET horon::torch)
  return()
endif()
set(torch_tests ${CMAKE_CURRENT_LIST_DIR})
set(torch_rooms collectives gradients modules)  # the other folders' files are one room, "others"
if(HORON_SANITIZE)
  set_target_properties(horon_torch PROPERTIES EXCLUDE_FROM_ALL ON)  # unless one of them is there
  set(fewer_programs ARGS --count=8)  # random ones: a sanitizer needs to see each kind a few times
endif()

# torch_run(NAME SUFFIX RANKS [ARGUMENTS of horon_mpirun_test...]): runs the file's tests, as
# NAME.SUFFIX; with HORON_TESTS_BY_ROOM as part of the room's run of that suffix. A run with ARGS
# and a file that is ALONE stay by themselves.
function(torch_run name suffix ranks)
  cmake_parse_arguments(arg "" "" "ARGS" ${ARGN})
  if(NOT TARGET ${name})
    return()  # left out under this sanitizer
  endif()
  get_target_property(room ${name} HORON_ROOM)
  get_target_property(alone ${name} HORON_ALONE)
  if(alone OR arg_ARGS OR NOT HORON_TESTS_BY_ROOM)
    horon_mpirun_test(${name}.${suffix} ${name} ${ranks} ${ARGN})
    if(room STREQUAL "torch_room_gpu")
      horon_label_tests(cuda ${name}.${suffix})
    endif()
    return()
  endif()
  set(run ${room}.${suffix})
  set(settings ${ranks} ${arg_UNPARSED_ARGUMENTS})
  get_property(others GLOBAL PROPERTY HORON_SETTINGS_OF_${run})
  if(others AND NOT "${others}" STREQUAL "${settings}")
    message(FATAL_ERROR "${name}.${suffix} runs with ${settings}, other files of its room with "
            "${others}: one of them needs another suffix")
  endif()
  set_property(GLOBAL PROPERTY HORON_SETTINGS_OF_${run} ${settings})
  set_property(GLOBAL APPEND PROPERTY HORON_FILES_OF_${run} ${name})
  get_property(runs GLOBAL PROPERTY HORON_ROOM_RUNS)
  if(NOT run IN_LIST runs)
    set_property(GLOBAL APPEND PROPERTY HORON_ROOM_RUNS ${run})
  endif()
endfunction()

# torch_add_room_runs(): the tests that torch_run() has put off.
function(torch_add_room_runs)
  get_property(runs GLOBAL PROPERTY HORON_ROOM_RUNS)
  foreach(run ${runs})
    get_property(files GLOBAL PROPERTY HORON_FILES_OF_${run})
    get_property(settings GLOBAL PROPERTY HORON_SETTINGS_OF_${run})
    list(POP_FRONT settings ranks)
    list(LENGTH files count)
    math(EXPR timeout "${horon_test_limit_s} + 15 * ${count}")
    list(TRANSFORM files REPLACE "^torch_" "")
    list(JOIN files "," files)
    string(REGEX REPLACE "[.].*" "" room ${run})
    horon_mpirun_test(${run} ${room} ${ranks} TIMEOUT ${timeout} ${settings} ARGS --file=${files})
    if(room STREQUAL "torch_room_gpu")
      horon_label_tests(cuda ${run})
    endif()
  endforeach()
endfunction()

# torch_test(FOLDER/NAME [N...] [THREADS] [ALONE] [ROOM ROOM] [FILES...] [LIBS...] [ARGS...]): the
# tests of NAME.cc as torch_NAME.npN, on N ranks each; without N as torch_NAME, without MPI and
# session. They are in the program torch_room_FOLDER or torch_room_ROOM, with the
# FILES that they need; `ninja torch_NAME` makes a program of this file alone, for those who work on
# it. ALONE: they never share a process with those of another file.
# Under AddressSanitizer only the least of several N is run, under ThreadSanitizer only what has
# THREADS.
function(torch_test file)
  cmake_parse_arguments(arg "THREADS;ALONE" "ROOM" "FILES;LIBS;ARGS" ${ARGN})
  if(HORON_SANITIZE STREQUAL "thread" AND NOT arg_THREADS)
    return()
  endif()
  get_filename_component(name ${file} NAME)
  get_filename_component(room ${file} DIRECTORY)
  set(ranks ${arg_UNPARSED_ARGUMENTS})
  if(arg_ROOM)
    set(room ${arg_ROOM})
  elseif(NOT ranks)
    set(room plain)
  elseif(NOT room IN_LIST torch_rooms)
    set(room others)
  endif()

  set(program torch_room_${room})
  if(NOT TARGET ${program})
    add_executable(${program})
    set_target_properties(${program} PROPERTIES UNITY_BUILD ON
                          UNITY_BUILD_BATCH_SIZE ${horon_torch_batch})
  endif()
  add_executable(torch_${name} EXCLUDE_FROM_ALL)
  set_target_properties(torch_${name} PROPERTIES
                        HORON_RUN_AS "$<TARGET_FILE:${program}>;--file=${name}"
                        HORON_ROOM ${program} HORON_ALONE ${arg_ALONE})
  list(TRANSFORM arg_FILES PREPEND ${torch_tests}/)
  foreach(target ${program} torch_${name})
    target_sources(${target} PRIVATE ${torch_tests}/${file}.cc ${arg_FILES})
    horon_test_program(${target} horon::torch ${arg_LIBS})
    target_link_libraries(${target} PRIVATE horon_mpi_main)
    horon_torch_program(${target})
    if(NOT ranks)
      target_sources(${target} PRIVATE support/no_mpi.cc)
    endif()
  endforeach()

  if(NOT ranks)
    if(NOT HORON_TESTS_BY_ROOM)
      add_test(NAME torch_${name} COMMAND ${program} --file=${name})
      horon_limit_test(torch_${name})
    elseif(NOT TEST ${program})
      add_test(NAME ${program} COMMAND ${program})
      horon_limit_test(${program})
    endif()
    return()
  endif()
  if(HORON_SANITIZE)
    torch_least_of_several(ranks ${ranks})
  endif()
  foreach(count ${ranks})
    torch_run(torch_${name} np${count} ${count} ARGS ${arg_ARGS})
  endforeach()
endfunction()

# torch_least_of_several(RESULT N...): the least N but 1, unless there is no other.
function(torch_least_of_several result)
  set(several ${ARGN})
  list(REMOVE_ITEM several 1)
  list(APPEND several 1)
  list(GET several 0 least)
  set(${result} ${least} PARENT_SCOPE)
endfunction()

torch_test(collectives/collectives_test 1 2 3 4)
torch_test(collectives/block_collectives_test 2 3 4)
torch_test(collectives/given_results_test 2 3)
torch_test(collectives/moved_types_test 2 3)
torch_test(collectives/shared_tensor_test 1 2 3)
torch_test(collectives/point_to_point_test 2 3)
torch_test(collectives/recv_from_any_test 2 3 4)
torch_test(collectives/process_set_test 2 3 4)
torch_test(collectives/autograd_adjoints_test 2 3 4)
torch_test(collectives/autograd_test 2 3 4)
torch_test(collectives/objects_test 1 2 3 4)
torch_test(collectives/object_lists_test 1 2 3)
torch_test(collectives/sparse_allreduce_test 2 3 4)
# What counts allocations and locks, and what refuses threads, replaces operator new,
# pthread_mutex_lock() and pthread_create() of its program.
add_library(horon_counters OBJECT EXCLUDE_FROM_ALL support/allocation_counter.cc
            support/lock_counter.cc support/thread_refusal.cc)
set_target_properties(horon_counters PROPERTIES UNITY_BUILD OFF)
horon_target(horon_counters)
target_link_libraries(horon_counters PRIVATE horon::core)
torch_test(collectives/repeated_calls_test 2 3 ROOM costs LIBS horon_counters)
torch_test(gradients/refused_threads_test 2 3 ROOM costs LIBS horon_counters)
if(NOT HORON_SANITIZE)  # it allocates millions of times, which takes minutes there
  torch_test(gradients/hook_costs_test 2 ALONE ROOM costs LIBS horon_counters)
  torch_run(torch_hook_costs_test timeline 2
            ENVIRONMENT HORON_TIMELINE=${CMAKE_CURRENT_BINARY_DIR}/hook_costs.json
            ARGS --gtest_filter=HookCosts.NoLock)
endif()
torch_test(collectives/random_program_test 2 3 4 ALONE ROOM random_program ${fewer_programs}
           FILES collectives/random_program/model.cc collectives/random_program/program.cc
                 collectives/random_program/runner.cc collectives/random_program/start.cc)
torch_test(threads_in_backward_test 1 2 3 4 THREADS)
# LibTorch's device "cuda" without a GPU. It takes the place of libtorch_cuda.so, which ends a
# program where somebody else has registered that device.
if(NOT HORON_TORCH_WITH_CUDA)
  add_library(horon_torch_device OBJECT EXCLUDE_FROM_ALL ${torch_tests}/host_gpu/torch_device.cc
              ${torch_tests}/host_gpu/torch_kernels.cc)
  horon_target(horon_torch_device)
  target_link_libraries(horon_torch_device PUBLIC horon::torch horon_host_gpu)
  torch_test(collectives/gpu_collectives_test 1 2 3 ROOM gpu LIBS horon_torch_device)
  torch_test(collectives/gpu_beside_nccl_test 1 2 3 ROOM gpu LIBS horon_torch_device)
  torch_test(collectives/gpu_rows_test 2 3 ROOM gpu LIBS horon_torch_device)
  torch_test(gradients/gpu_training_test 1 2 3 ROOM gpu LIBS horon_torch_device)
  torch_test(gradients/gpu_bucket_memory_test 2 ROOM gpu LIBS horon_torch_device)
  torch_test(gradients/gpu_capture_test 1 2 3 ROOM gpu LIBS horon_torch_device)
  torch_test(gradients/gpus_of_some_ranks_test 3 ROOM gpu LIBS horon_torch_device)
  foreach(test collectives/gpu_messages_test collectives/mixed_ranks_test
          gradients/gpu_complex_gradients_test gradients/gpu_given_up_backward_test
          gradients/gpu_shard_gradients_test modules/gpu_modules_test state/gpu_local_sgd_test)
    torch_test(${test} 2 3 ROOM gpu LIBS horon_torch_device)
  endforeach()
  torch_test(checkpoint/gpu_checkpoints_test 2 ROOM gpu LIBS horon_torch_device)
  torch_test(state/gpu_state_test 1 2 3 ROOM gpu LIBS horon_torch_device)
  if(TARGET horon_process_group)
    torch_test(python/gpu_process_group_test 1 2 3 ROOM gpu
               LIBS horon_torch_device horon_process_group)
    torch_run(torch_gpu_process_group_test through_the_host 2
              ENVIRONMENT HORON_GPU_COLLECTIVES=host)
  endif()
  torch_run(torch_gpu_collectives_test through_the_host_np3 3
            ENVIRONMENT HORON_GPU_COLLECTIVES=host)
  torch_run(torch_gpu_messages_test through_the_host 2 ENVIRONMENT HORON_GPU_COLLECTIVES=host)
  torch_run(torch_gpu_training_test through_the_host 2 ENVIRONMENT HORON_GPU_COLLECTIVES=host)
  # Without what needs streams, or a GPU on each rank.
  set(mixed ENVIRONMENT HORON_GPU_COLLECTIVES=host GPUS_OF_ODD_RANKS=1)
  torch_run(torch_mixed_ranks_test mixed_hosts 2+1 LAUNCHER ${horon_mpirun_hosts} ARGS)
  torch_run(torch_gpu_beside_nccl_test mixed_np3 3 ${mixed})
  torch_run(torch_gpu_given_up_backward_test mixed_np3 3 ${mixed})
  torch_run(torch_gpu_collectives_test mixed 3 ${mixed}
            ARGS --gtest_filter=-*Stream*:*OfAnotherRank*:*CantUse*:*WithoutAWait*:*MissingOrder*)
  torch_run(torch_gpu_messages_test mixed 3 ${mixed}
            ARGS --gtest_filter=-*Stream*:*IsAMismatch*)
  torch_run(torch_gpu_training_test mixed 3 ${mixed}
            ARGS --gtest_filter=-*Stream*:*OnOneDevice*:*MovesToTheGpu*:*MissingOrder*)
  foreach(program torch_gpu_collectives_test torch_gpu_messages_test torch_gpu_training_test)
    torch_run(${program} hosts_2_1 2+1 LAUNCHER ${horon_mpirun_hosts}
              ENVIRONMENT HORON_GPU_COLLECTIVES=hierarchical)
  endforeach()
endif()
torch_test(state/broadcast_state_test 1 2 3 4)
torch_test(state/uneven_epochs_test 2 3)
torch_test(state/local_sgd_test 1 2 3)
torch_test(state/local_sgd_archive_test 1 2 3)
torch_test(state/sparse_state_test 1 2 3)
torch_test(state/state_without_memory_test 2 3)
torch_test(checkpoint/checkpoint_file_test 2)
torch_test(checkpoint/checkpoints_test 1 2 3)
torch_test(checkpoint/checkpoints_of_sets_test 1 2 3 4)
torch_test(checkpoint/loaded_schedule_test 2)
torch_test(checkpoint/failed_write_test 2)
torch_test(checkpoint/adasum_checkpoint_test 2 3)
torch_test(checkpoint/power_sgd_checkpoint_test 1 2 3)
if(HORON_WITH_CUDA AND NOT HORON_SANITIZE)
  horon_test(torch_real_gpu_test FILES ${torch_tests}/real_gpu_test.cc RANKS 1 2 4 LIBS horon::torch
             LAUNCHER ${CMAKE_CURRENT_SOURCE_DIR}/support/mpirun_one_gpu_test)
  horon_torch_program(torch_real_gpu_test)
  # It names calls of libtorch_cuda.so, but is compiled on every machine.
  if(EXISTS ${HORON_TORCH_ROOT}/include/ATen/cuda/CUDAGraph.h)
    add_library(horon_real_gpu_graph OBJECT ${torch_tests}/real_gpu_graph_test.cc)
    horon_target(horon_real_gpu_graph)
    target_include_directories(horon_real_gpu_graph SYSTEM PRIVATE ${CUDAToolkit_INCLUDE_DIRS})
    target_link_libraries(horon_real_gpu_graph PUBLIC horon::torch GTest::gtest)
    if(HORON_TORCH_WITH_CUDA)
      target_link_libraries(torch_real_gpu_test PRIVATE horon_real_gpu_graph)
    endif()
  endif()
  foreach(ranks 1 2 4)
    # Where there is no GPU it still shows something, on the CPU: not skipped.
    set_tests_properties(torch_real_gpu_test.np${ranks} PROPERTIES LABELS "gpu;mpirun")
  endforeach()
endif()
torch_test(guards/guards_test 1 2 3)
torch_test(guards/rank_zero_of_sets_test 2 3)
torch_test(guards/stop_request_test 1 2 3)
torch_test(guards/guards_join_test 2 3)
torch_test(logging/logging_test 1 2 3)
torch_test(metrics/metrics_test 1 2 3)
torch_test(metrics/own_metric_test 2)
torch_test(api_test 2 3 4)
torch_test(session_test 1 2 3 4 ALONE ROOM session)  # it starts MPI itself
if(HORON_NVTX_INCLUDE_DIR)
  torch_test(gradients/profiler_test 2 ALONE ROOM profiler
             FILES ../support/nvtx_profiler.cc)
endif()
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
foreach(test amp/autocast_test amp/scaled_gradients_test lr/schedule_test lr/layer_step_test
        lr/resumed_schedule_test data/image_folder_test data/other_batches_test data/samplers_test
        data/resumed_samplers_test logging/sinks_test tensors/memory_ranges_test
        tensors/parcels_test)
  torch_test(${test})
endforeach()
foreach(test amp/amp_test amp/scaled_ada_scale_test gradients/compressed_shards_test
        gradients/shard_gradients_test gradients/sharded_state_test lr/ada_scale_test lr/lr_test
        lr/reduce_on_plateau_test modules/activation_checkpoint_test modules/contrastive_loss_test
        modules/convert_sync_batchnorm_test modules/sync_batch_norm_test)
  torch_test(${test} 1 2 3)
endforeach()
torch_test(gradients/optimizer_training_test 1 2 3 4)
torch_test(gradients/adasum_optimizer_test 1 2 3 4)
torch_test(gradients/fused_step_test 1)
torch_test(gradients/fused_training_test 2)
torch_test(gradients/step_scaling_test 2 3)
torch_test(gradients/step_norm_test 2 3)
torch_test(gradients/state_shards_test 1 2 3)
torch_test(gradients/state_shards_faults_test 2 3)
torch_test(gradients/clip_value_test 1 2)
torch_test(gradients/complex_gradients_test 1 2 3)
torch_test(gradients/throwing_closures_test 1 2 3)
torch_test(gradients/bucket_order_test 1 2 3)
torch_test(gradients/power_sgd_test 1 2 3)
horon_test(torch_orthonormal_columns_test
           FILES ${torch_tests}/gradients/orthonormal_columns_test.cc)
# LibTorch rounds otherwise without AVX.
torch_run(torch_fused_step_test no_avx 1 ENVIRONMENT ATEN_CPU_CAPABILITY=default)
torch_test(gradients/given_up_backward_test 2 3)
torch_test(gradients/reducer_traps_test 2 3 4)
torch_test(gradients/optimizer_traps_test 2 3 4)
torch_test(gradients/backward_test 2 3 4)
# Behind the one before, which looks for a warning that a process gives once.
torch_test(gradients/older_gradient_test 1 2 3)
torch_test(gradients/equal_gradients_test 1 2 3)
torch_test(gradients/replica_check_test 2 3 4)
torch_test(gradients/backward_ends_test 2 3 4 THREADS)
torch_test(gradients/reducer_random_test 2 3 4 ${fewer_programs})
torch_test(gradients/reducer_options_test 2 3 4)
torch_test(gradients/compressed_gradients_test 2 3)
torch_test(gradients/narrow_wire_test 2)
torch_test(gradients/int8_gradients_test 2 3)
torch_run(torch_narrow_wire_test one_host 2 ENVIRONMENT HORON_WIRE_DTYPE=bfloat16)
torch_test(gradients/reducer_scopes_test 2 3 4)
torch_test(gradients/unlike_ranks_test 2 3)
torch_test(gradients/plain_rounds_test 1 2 3 4)
torch_test(gradients/round_flags_test 1)
horon_test(torch_bucket_countdown_test FILES ${torch_tests}/gradients/bucket_countdown_test.cc)
torch_test(gradients/reducer_sparse_test 2 3 4)
torch_test(gradients/reducer_join_test 2 3 4)
torch_test(gradients/older_gradient_join_test 2 3)
torch_test(gradients/optimizer_options_test 2 3 4)
torch_test(gradients/autotune_test 1 2 3)
torch_test(gradients/autotune_pieces_test 2 3)
torch_test(gradients/optimizer_situations_test 2 3 4)
# Large gradients and steps are shared out to the threads of LibTorch; mpirun_test gives it one.
# Passive: a thread that spins where cores are taken would keep them from those that work.
foreach(name torch_fused_step_test torch_reducer_traps_test)
  torch_run(${name} two_threads 1 ENVIRONMENT OMP_NUM_THREADS=2 OMP_WAIT_POLICY=passive)
endforeach()
torch_run(torch_compressed_gradients_test np2_two_threads 2
          ENVIRONMENT OMP_NUM_THREADS=2 OMP_WAIT_POLICY=passive)
torch_test(data/samplers_of_sets_test 1 2 3 4)
horon_test(torch_prefetcher_test FILES ${torch_tests}/data/prefetcher_test.cc)
if(HORON_WITH_IMAGES)  # whose writers make the test's images
  find_package(JPEG REQUIRED)
  find_package(PNG REQUIRED)
  torch_test(data/datasets_test LIBS JPEG::JPEG PNG::PNG)
  torch_test(data/image_views_test LIBS PNG::PNG)
endif()
find_package(ZLIB REQUIRED)
torch_test(data/idx_dataset_test LIBS ZLIB::ZLIB)
torch_test(lr/ada_scale_situations_test 1 2 3)
torch_test(logging/progress_bar_test)

include(${torch_tests}/exit_programs/exit_programs.cmake)

if(HORON_SANITIZE)
  torch_add_room_runs()
  return()
endif()

# Optimizers and collectives over MPI alone.
# MPI polls, so four ranks on two busy cores take twenty times as long: fewer programs.
torch_run(torch_random_program_test mpi.np4 4 ENVIRONMENT HORON_SHARED_MEMORY=0
          ARGS --count=15)
torch_run(torch_reducer_random_test mpi.np4 4 ENVIRONMENT HORON_SHARED_MEMORY=0)

# Jobs that go on where others have stopped, and what Python reads of their checkpoints. Each of the
# file's tests is a job of its own, so ctest does not run the file.
target_sources(torch_room_others PRIVATE ${torch_tests}/checkpoint/chain_of_jobs_test.cc)
set(torch_python ${HORON_TORCH_ROOT}/../../../../bin/python3)  # of a wheel in a virtual environment
if(NOT EXISTS ${torch_python})
  set(torch_python ${HORON_PYTHON})
endif()
add_test(NAME torch_checkpoint_chain
         COMMAND ${torch_tests}/checkpoint/chain_of_jobs ${horon_mpirun}
                 $<TARGET_FILE:torch_room_others> ${HORON_TORCH_ROOT} ${torch_python}
                 ${HORON_PYTHON})
set_tests_properties(torch_checkpoint_chain PROPERTIES TIMEOUT ${horon_test_limit_s} PROCESSORS 2)

# The examples, for a few steps.
foreach(example fashion_mnist gan char_gpt contrastive burgers_surrogate)
  if(TARGET ${example})
    add_test(NAME torch_example_test.${example}
             COMMAND ${torch_tests}/example_test ${example} $<TARGET_FILE:${example}>
                     ${PROJECT_SOURCE_DIR}/tests/support/mpirun_test)
    set_tests_properties(torch_example_test.${example} PROPERTIES PROCESSORS 2
                         TIMEOUT ${horon_test_limit_s})
    torch_test_without_gpus(torch_example_test.${example})
  endif()
endforeach()

include(${CMAKE_CURRENT_LIST_DIR}/python/tests.cmake)

# Gigabytes for each rank: alone on the machine.
torch_test(collectives/large_collectives_test 2 ALONE)
set_tests_properties(torch_large_collectives_test.np2 PROPERTIES RUN_SERIAL ON)
include(torch_bindings/hosts.cmake)
torch_add_room_runs()
