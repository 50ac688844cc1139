find_package(nlohmann_json REQUIRED)
horon_test(base_test
           FILES core/base/config_test.cc core/base/copy_bytes_test.cc
                 core/base/current_error_test.cc core/base/json_test.cc core/base/nap_cost_test.cc
                 core/base/nearest_name_test.cc core/base/parse_number_test.cc
                 core/base/rank_names_test.cc core/base/replace_file_test.cc core/base/text_test.cc
                 core/base/timeline_test.cc core/base/version_test.cc core/base/yield_cost_test.cc
           LIBS nlohmann_json::nlohmann_json)
# On processors for which the test knows how a program changes the mode of floating point.
if(CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64")
  target_sources(base_test PRIVATE core/base/plain_float_mode_test.cc support/float_control_x86.cc)
elseif(CMAKE_SYSTEM_PROCESSOR MATCHES "aarch64|arm64|ARM64")
  target_sources(base_test PRIVATE core/base/plain_float_mode_test.cc
                                   support/float_control_aarch64.cc)
endif()
# As in a program that is built with -ffast-math: its options come before those of horon_target().
horon_test(fast_math_test FILES core/base/fast_math_test.cc)
get_target_property(options fast_math_test COMPILE_OPTIONS)
set_target_properties(fast_math_test PROPERTIES COMPILE_OPTIONS "-ffast-math;${options}")
# The test compares times; sanitizers slow copies down by checking both ranges first.
if(NOT HORON_SANITIZE)
  horon_test(copy_speed_test FILES core/base/copy_speed_test.cc)
  horon_label_tests(performance copy_speed_test)
  set_tests_properties(copy_speed_test PROPERTIES RUN_SERIAL ON)
endif()
# Alone, since it looks at the state before the first set_log().
horon_test(log_test FILES core/base/log_test.cc)
# Measures glibc's own heap, so it is alone in its process.
horon_test(kept_heap_test FILES core/base/kept_heap_test.cc)
horon_test(byte_ring_test FILES core/transport/byte_ring_test.cc)
horon_test(doorbell_test FILES core/host/doorbell_test.cc)
if(NOT HORON_SANITIZE STREQUAL "thread")
  target_sources(doorbell_test PRIVATE core/host/interrupted_ring_test.cc)
endif()
horon_test(in_process_transport_test FILES core/transport/in_process_transport_test.cc)
horon_test(local_group_test
           FILES core/host/local_group_test.cc core/host/process_memory_test.cc
                 core/host/refused_memory_test.cc)
horon_test(local_subgroup_test FILES core/host/local_subgroup_test.cc)
horon_test(shared_heap_test
           FILES core/host/available_memory_test.cc core/host/cpu_share_test.cc
                 core/host/named_file_test.cc core/host/scarce_memory_test.cc
                 core/host/shared_heap_test.cc core/host/shared_segment_test.cc)
horon_test(shared_memory_transport_test FILES core/transport/shared_memory_transport_test.cc)
horon_test(executor_test
           FILES core/execution/block_layout_test.cc core/execution/chunked_batch_test.cc
                 core/execution/chunks_of_blocks_test.cc
                 core/execution/executor_test.cc
                 core/execution/host_copies_test.cc
                 core/execution/neutral_test.cc core/execution/output_blocks_test.cc
                 core/execution/prepared_batches_test.cc
                 core/execution/queued_batches_test.cc core/execution/scratch_pool_test.cc
                 core/execution/shared_scratch_test.cc
                 support/fake_device.cc)
horon_test(op_table_test
           FILES core/execution/op_table_test.cc core/runtime/eager_elements_test.cc
                 core/runtime/live_submissions_test.cc
                 core/runtime/look_round_test.cc core/runtime/pacer_test.cc
                 core/runtime/reaper_test.cc
                 core/runtime/runnable_calls_test.cc core/runtime/submission_check_test.cc
                 support/fake_device.cc)
# Tests whose ranks are threads of one program, run on memory of each kind.
set(fake_world support/fake_device.cc support/memory_of_worlds_immediate.cc)
add_library(horon_runtime_tests OBJECT EXCLUDE_FROM_ALL
            core/runtime/runtime_test.cc core/runtime/runtime_failures_test.cc
            core/runtime/shutdown_failures_test.cc core/runtime/submission_memory_test.cc
            core/runtime/loop_seat_test.cc core/runtime/quiet_submissions_test.cc
            core/runtime/told_causes_test.cc core/runtime/slow_hand_over_test.cc
            core/runtime/long_wait_test.cc support/fake_device.cc)
if(NOT HORON_SANITIZE STREQUAL "thread")
  target_sources(horon_runtime_tests PRIVATE core/runtime/exit_in_line_test.cc)
endif()
horon_test_program(horon_runtime_tests)
horon_test(runtime_test FILES support/memory_of_worlds_immediate.cc LIBS horon_runtime_tests)
horon_test(runtime_host_driven_test
           FILES support/memory_of_worlds_host_driven.cc LIBS horon_runtime_tests)
horon_test(runtime_enqueued_test
           FILES core/runtime/queued_memory_test.cc support/memory_of_worlds_enqueued.cc
           LIBS horon_runtime_tests)
# Alone, since they have an operator new of their own.
horon_test(exhausted_memory_test
           FILES core/host/exhausted_heap_test.cc core/runtime/exhausted_memory_test.cc
                 support/failing_allocation.cc ${fake_world})
set_source_files_properties(support/failing_allocation.cc support/allocation_counter.cc
                            PROPERTIES SKIP_UNITY_BUILD_INCLUSION ON)
# Alone, since it counts what the program allocates.
horon_test(runtime_allocations_test
           FILES core/runtime/allocations_test.cc ${fake_world}
                 support/allocation_counter.cc)
horon_test(process_sets_test
           FILES core/runtime/idle_sets_test.cc core/runtime/open_receives_test.cc
                 core/runtime/open_receives_time_test.cc core/runtime/pair_sets_test.cc
                 core/runtime/process_sets_test.cc ${fake_world})
horon_test(completion_queue_test FILES core/runtime/completion_queue_test.cc ${fake_world})
horon_test(frozen_test FILES core/runtime/frozen_test.cc core/runtime/frozen_hosts_test.cc
                             ${fake_world})
horon_test(mpi_transport_test FILES core/transport/mpi_transport_test.cc RANKS 2 3 4)
horon_test(starved_mpi_transport_test
           FILES core/transport/starved_mpi_transport_test.cc support/failing_allocation.cc
           RANKS 2)
horon_test(bootstrap_test FILES core/bootstrap/bootstrap_test.cc)
horon_test(launch_test FILES core/bootstrap/launch_test.cc)
horon_test(mpi_bootstrap_test FILES core/bootstrap/mpi_bootstrap_test.cc RANKS 1 2 3 4)
horon_test(mpi_look_test FILES core/bootstrap/mpi_look_test.cc RANKS 2)
horon_test(mpi_owner_test FILES core/bootstrap/mpi_owner_test.cc RANKS 1 2)
horon_test(mpi_thread_level_test FILES core/bootstrap/mpi_thread_level_test.cc RANKS 2)
# Jobs of many ranks in one thread, for tests and benchmarks of the control protocol.
add_library(horon_simulation STATIC
  support/simulation/check_outcomes.cc
  support/simulation/expected_outcomes.cc
  support/simulation/exploration.cc
  support/simulation/program.cc
  support/simulation/random_job.cc
  support/simulation/random_spec.cc
  support/simulation/random_world.cc
  support/simulation/rows_of_alltoall.cc
  support/simulation/simulated_batches.cc
  support/simulation/simulated_cluster.cc
  support/simulation/simulated_gate.cc
  support/simulation/timed_run.cc
  support/spec_changes.cc)
set_source_files_properties(support/simulation/program.cc  # two structs are named Step
                            PROPERTIES SKIP_UNITY_BUILD_INCLUSION ON)
horon_target(horon_simulation)
set_target_properties(horon_simulation PROPERTIES UNITY_BUILD ${HORON_BUILT_ONCE})
target_link_libraries(horon_simulation PUBLIC horon::core)
horon_test(simulation_test FILES core/negotiation/simulation_test.cc LIBS horon_simulation)
# The release runs prove the protocol, as do thousands of new seeds in tools/check; a sanitizer
# needs to see each kind of job a few times.
set(simulation_seeds 6000)
if(HORON_SANITIZE)
  set(simulation_seeds 500)
  # EverythingOccurs needs many seeds, and finds the same however the program is compiled.
  set_tests_properties(simulation_test PROPERTIES ENVIRONMENT
                       GTEST_FILTER=-Simulation.EverythingOccurs*)
endif()
target_compile_definitions(simulation_test PRIVATE HORON_SIMULATION_SEEDS=${simulation_seeds})
horon_test(simulation_checks_test FILES core/negotiation/simulation_checks_test.cc
           LIBS horon_simulation)
horon_test(exploration_test
           FILES core/negotiation/eager_votes_test.cc core/negotiation/exploration_test.cc
           LIBS horon_simulation
           TIMEOUT 600)
horon_test(agreement_test FILES core/negotiation/agreement_test.cc LIBS horon_simulation)
horon_test(freeze_planner_test
           FILES core/negotiation/coordinator_freezes_test.cc
                 core/negotiation/freeze_planner_test.cc)
horon_test(ring_gate_test FILES core/negotiation/ring_gate_test.cc)
horon_test(fusion_planner_test FILES core/negotiation/fusion_planner_test.cc LIBS horon_simulation)
target_sources(horon_simulation PRIVATE support/simulation/random_envelope.cc)
horon_test(wire_format_test
           FILES core/negotiation/outbox_test.cc core/negotiation/told_extents_test.cc
                 core/negotiation/wire_format_test.cc
           LIBS horon_simulation)

# With any compiler: tests messages of every kind and random changes of them.
add_executable(wire_format_fuzz core/negotiation/wire_format_fuzz.cc support/fuzz_main.cc)
horon_target(wire_format_fuzz)
target_link_libraries(wire_format_fuzz PRIVATE horon_simulation)
add_test(NAME wire_format_fuzz
         COMMAND wire_format_fuzz --iterations=50000)
set_tests_properties(wire_format_fuzz PROPERTIES TIMEOUT ${horon_test_limit_s})
# With clang: `ninja wire_format_fuzzer`, `wire_format_fuzz --write=CORPUS`, then
# wire_format_fuzzer CORPUS -max_total_time=60.
find_program(HORON_CLANGXX NAMES clang++ clang++-14 clang++-16 clang++-18)
if(HORON_CLANGXX)
  file(GLOB negotiation_sources ${PROJECT_SOURCE_DIR}/core/negotiation/*.cc)
  add_custom_target(wire_format_fuzzer
    COMMAND ${HORON_CLANGXX} -std=c++20 -O1 -g -fsanitize=fuzzer,address,undefined
            -I${HORON_INCLUDE_DIR} ${negotiation_sources}
            ${PROJECT_SOURCE_DIR}/core/base/dtype.cc ${PROJECT_SOURCE_DIR}/core/base/entry_spec.cc
            ${PROJECT_SOURCE_DIR}/core/base/error.cc ${PROJECT_SOURCE_DIR}/core/base/rank_names.cc
            ${PROJECT_SOURCE_DIR}/core/base/text.cc
            ${CMAKE_CURRENT_SOURCE_DIR}/core/negotiation/wire_format_fuzz.cc
            ${CMAKE_CURRENT_SOURCE_DIR}/support/simulation/random_envelope.cc
            ${CMAKE_CURRENT_SOURCE_DIR}/support/simulation/random_spec.cc
            -o ${PROJECT_BINARY_DIR}/wire_format_fuzzer
    VERBATIM)
endif()
horon_test(topology_test FILES core/bootstrap/topology_test.cc)
target_sources(horon_simulation PRIVATE support/simulation/transcript.cc)
horon_test(transcript_test FILES core/negotiation/transcript_test.cc LIBS horon_simulation)
target_compile_definitions(transcript_test PRIVATE
  HORON_TEST_DATA="${CMAKE_CURRENT_SOURCE_DIR}/core/negotiation")
horon_test(tuning_test
           FILES core/tuning/autotuner_test.cc core/tuning/bayesian_search_test.cc
                 core/tuning/gaussian_process_test.cc core/tuning/tuning_files_test.cc)
horon_test(controller_gate_test FILES core/negotiation/controller_gate_test.cc
                                     core/negotiation/frozen_together_test.cc)
horon_test(controller_test FILES core/negotiation/controller_seek_test.cc
                                core/negotiation/controller_test.cc
                                core/negotiation/impossible_messages_test.cc
                                core/negotiation/stall_report_test.cc)
horon_test(entry_ids_test FILES core/negotiation/entry_ids_test.cc)
horon_test(liveness_test FILES core/negotiation/liveness_test.cc)

horon_optimize_tests(simulation_checks_test exploration_test)

# A sanitizer replaces glibc's heap. simulation_test runs the same code as the checks of the
# simulation and the exploration.
set(not_sanitized kept_heap_test simulation_checks_test exploration_test)
horon_label_tests(not_sanitized ${not_sanitized})
horon_without_threads(fast_math_test simulation_test transcript_test wire_format_test
                      wire_format_fuzz freeze_planner_test fusion_planner_test agreement_test
                      controller_test controller_gate_test entry_ids_test liveness_test
                      topology_test tuning_test)
if(HORON_SANITIZE)
  set_target_properties(horon_simulation ${not_sanitized} PROPERTIES EXCLUDE_FROM_ALL ON)
endif()
