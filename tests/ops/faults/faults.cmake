# Ranks that die, stop, or leave: each of the others gets the error that names the rank, in seconds.
add_executable(fault_program ops/faults/fault_program.cc)
horon_target(fault_program)
target_link_libraries(fault_program PRIVATE horon::core MPI::MPI_C)
foreach(link shm mpi hosts)
  add_test(NAME faults.${link}
           COMMAND ${PROJECT_SOURCE_DIR}/tests/ops/faults/fault_matrix.py ${link} ${horon_mpirun}
                   $<TARGET_FILE:fault_program>)
  # A job that has failed leaves MPI as it is, so its memory is not given back.
  set_tests_properties(faults.${link} PROPERTIES PROCESSORS 2 LABELS mpirun
                       ENVIRONMENT "ASAN_OPTIONS=detect_leaks=0:abort_on_error=1")
  horon_limit_test(faults.${link} 240)
endforeach()
