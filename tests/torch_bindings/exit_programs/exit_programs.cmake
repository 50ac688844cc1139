# Programs that end in one of many ways, also while gradients are being reduced.
if(HORON_SANITIZE STREQUAL "thread")  # it takes MPI's own threads for races
  return()
endif()

# torch_exit_program(NAME FILES...)
function(torch_exit_program name)
  add_executable(${name} ${ARGN})
  horon_target(${name})
  horon_torch_program(${name})
  target_link_libraries(${name} PRIVATE horon::torch MPI::MPI_C)
  horon_find_leaks(${name})
endfunction()

# torch_exit_test(NAME CODE MODE...): runs torch_NAME_program in each mode, for this exit code.
function(torch_exit_test name code)
  foreach(mode ${ARGN})
    set(test torch_${name}.${mode})
    add_test(NAME ${test}
             COMMAND ${torch_tests}/exit_programs/expect_exit ${code} ${horon_mpirun} 2
                     $<TARGET_FILE:torch_${name}_program> ${mode})
    set_tests_properties(${test} PROPERTIES PROCESSORS 2 LABELS mpirun)
    horon_limit_test(${test})
  endforeach()
endfunction()

torch_exit_program(torch_exit_program ${torch_tests}/exit_programs/exit_program.cc)
torch_exit_test(exit 0 never_started return init_twice exit shutdown_twice in_flight sets
                lonely one_leaves mpi_shutdown_finalize mpi_finalize_atexit
                mpi_finalize_without_shutdown finalize_of_own_mpi)
torch_exit_test(exit 7 return_7)
torch_exit_test(exit 3 exit_3)
torch_exit_test(exit 4 caught)
torch_exit_test(exit 134 uncaught)

# The same while gradients are being reduced.
torch_exit_program(torch_gradient_exit_program
                   ${torch_tests}/exit_programs/gradient_exit_program.cc)
torch_exit_test(gradient_exit 0 return return_static after_shutdown after_shutdown_static
                alone_after_shutdown one_exits_in_hook)
torch_exit_test(gradient_exit 5 exit_in_hook exit_in_hook_static)
torch_exit_test(gradient_exit 4 throw_in_hook throw_in_hook_static)

# The fault matrix in backward; tests/ops/faults has what does without LibTorch.
torch_exit_program(torch_training_fault_program
                   ${torch_tests}/exit_programs/training_fault_program.cc support/fault_job.cc)
set(links_of_torch_faults shm mpi hosts)
if(HORON_SANITIZE)  # faults.* take all of them
  set(links_of_torch_faults shm)
endif()
foreach(link ${links_of_torch_faults})
  horon_fault_test(torch_faults.${link} ${link} torch_training_fault_program backward)
endforeach()
