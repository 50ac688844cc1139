# Ranks that are killed, frozen, or leave: the job ends in seconds and says who it was.
add_executable(fault_program ops/faults/fault_program.cc)
horon_target(fault_program)
target_link_libraries(fault_program PRIVATE horon::core)
foreach(fault kill freeze exit leave throw stall)
  add_test(NAME fault.${fault}
           COMMAND ${PROJECT_SOURCE_DIR}/tests/ops/faults/fault_test $<TARGET_FILE:fault_program>
                   ${fault})
  set_tests_properties(fault.${fault} PROPERTIES TIMEOUT 60 PROCESSORS 2 LABELS mpirun)
endforeach()
