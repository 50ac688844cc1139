horon_test(mpi_main_test FILES support/mpi_main_test.cc RANKS 1 2)
if(NOT TARGET mpi_main_test)
  return()  # left out under this sanitizer
endif()

# mpi_main_case(NAME TEST TEXT ARG...): a test that is meant to fail, and the text that it then
# prints.
function(mpi_main_case name test text)
  add_test(NAME mpi_main_test.${name}
           COMMAND ${PROJECT_SOURCE_DIR}/tests/support/expect_failure ${text}
                   ${horon_mpirun} 3 $<TARGET_FILE:mpi_main_test>
                   --gtest_also_run_disabled_tests --gtest_filter=MpiMain.DISABLED_${test} ${ARGN})
  set_tests_properties(mpi_main_test.${name} PROPERTIES LABELS mpirun)
  horon_limit_test(mpi_main_test.${name})
endfunction()

# To name a file without a test in the program is an error.
add_test(NAME mpi_main_test.unknown_file
         COMMAND ${PROJECT_SOURCE_DIR}/tests/support/expect_failure
                 "no tests of a file nowhere_test.cc" $<TARGET_FILE:mpi_main_test>
                 --file=mpi_main_test,nowhere_test)
horon_limit_test(mpi_main_test.unknown_file)
# --gtest_filter holds beside --file.
add_test(NAME mpi_main_test.file_and_filter
         COMMAND ${PROJECT_SOURCE_DIR}/tests/support/expect_failure
                 "no tests of a file mpi_main_test.cc that --gtest_filter takes"
                 $<TARGET_FILE:mpi_main_test> --file=mpi_main_test --gtest_filter=-MpiMain.*)
horon_limit_test(mpi_main_test.file_and_filter)
# mpirun takes no rank that ends with 0 for a failure.
horon_mpirun_test(mpi_main_test.unheard_end mpi_main_test 2
                  ARGS --gtest_also_run_disabled_tests --gtest_filter=MpiMain.DISABLED_EndsUnheard)
horon_mpirun_test(mpi_main_test.file mpi_main_test 2 ARGS --file=mpi_main_test)

mpi_main_case(failure_is_named FailsOnTheLastRank "[rank 2] as it should")
mpi_main_case(first_rank_tells FailsOnTheLastRank "[  FAILED  ] on another rank")
mpi_main_case(exit_is_told Exits "exit() was called before the last test was over")
mpi_main_case(hang_is_named HangsOnAllRanks
              "[rank 2] watchdog: not done after 40 s, at: MpiMain.DISABLED_HangsOnAllRanks"
              --watchdog-s=40)
