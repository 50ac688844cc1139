# Ranks that die, stop, or leave: each other rank gets the error that names the rank, in seconds.
add_executable(fault_program ops/faults/fault_program.cc support/fault_job.cc)
horon_target(fault_program)
target_link_libraries(fault_program PRIVATE horon::core MPI::MPI_C)
horon_find_leaks(fault_program)

# horon_fault_test(TEST LINK PROGRAM [SITUATION...]): see fault_matrix.py.
set(horon_fault_matrix ${CMAKE_CURRENT_LIST_DIR}/fault_matrix.py)
function(horon_fault_test test link program)
  add_test(NAME ${test}
           COMMAND ${horon_fault_matrix} ${link} ${horon_mpirun} $<TARGET_FILE:${program}> ${ARGN})
  set_tests_properties(${test} PROPERTIES PROCESSORS 2 LABELS mpirun)
  horon_limit_test(${test} 900)
endfunction()
# A job on two hosts uses both shared memory and MPI, which is enough for a sanitizer.
set(fault_links shm mpi hosts)
if(HORON_SANITIZE)
  set(fault_links hosts)
endif()
foreach(link ${fault_links})
  horon_fault_test(faults.${link} ${link} fault_program)
endforeach()
horon_fault_test(faults.containers containers fault_program allreduce fresh)
set_tests_properties(faults.containers PROPERTIES SKIP_RETURN_CODE 78)

# The same in collectives on GPUs.
add_executable(gpu_fault_program ops/faults/gpu_fault_program.cc support/fault_job.cc)
horon_target(gpu_fault_program)
target_link_libraries(gpu_fault_program PRIVATE horon_host_gpu MPI::MPI_C)
horon_find_leaks(gpu_fault_program)
horon_fault_test(faults.gpu shm gpu_fault_program allreduce)
horon_label_tests(cuda faults.gpu)
horon_fault_test(faults.gpu_hosts hosts gpu_fault_program allreduce)
set_tests_properties(faults.gpu_hosts PROPERTIES
                     ENVIRONMENT HORON_GPU_COLLECTIVES=hierarchical LABELS "mpirun;cuda")
horon_fault_test(faults.gpu_through_host shm gpu_fault_program allreduce)
set_tests_properties(faults.gpu_through_host PROPERTIES
                     ENVIRONMENT HORON_GPU_COLLECTIVES=host LABELS "mpirun;cuda")
