# Tests of the Python package: by pytest on several ranks, and programs by themselves.
if(NOT TARGET horon_python)
  return()
endif()
set(python_tests ${CMAKE_CURRENT_LIST_DIR})
execute_process(COMMAND ${HORON_PYTHON_EXECUTABLE} -c "import pytest" ERROR_QUIET
                RESULT_VARIABLE horon_no_pytest)
if(horon_no_pytest)
  message(STATUS "Python: its tests are left out, since ${HORON_PYTHON_EXECUTABLE} has no pytest "
          "(tools/setup --python)")
  return()
endif()

set(python_environment "PYTHONPATH=${PROJECT_BINARY_DIR}/python" PYTHONDONTWRITEBYTECODE=1)
foreach(ranks 2 3)
  add_test(NAME python_package.np${ranks}
           COMMAND ${horon_mpirun} ${ranks} ${HORON_PYTHON_EXECUTABLE} -m pytest -q -x
                   -p no:cacheprovider ${python_tests})
endforeach()
set(python_group_tests ${HORON_PYTHON_EXECUTABLE} -m pytest -q -x -p no:cacheprovider
    ${python_tests}/process_group_cycle_test.py ${python_tests}/process_group_hooks_test.py
    ${python_tests}/process_group_lists_test.py ${python_tests}/process_group_meeting_test.py
    ${python_tests}/process_group_members_test.py ${python_tests}/process_group_memory_test.py
    ${python_tests}/process_group_messages_test.py ${python_tests}/process_group_outputs_test.py
    ${python_tests}/process_group_sparse_test.py ${python_tests}/process_group_split_test.py)
add_test(NAME python_process_groups.np4 COMMAND ${horon_mpirun} 4 ${python_group_tests})
# The same, where ranks 2 and 3 are those of another host, as far as Horon can tell.
add_test(NAME python_process_groups.hosts_2_2
         COMMAND ${horon_mpirun_hosts} 2+2 ${python_group_tests})
# PyTorch's own tests, which need a package more.
execute_process(COMMAND ${HORON_PYTHON_EXECUTABLE} -c "import expecttest" ERROR_QUIET
                RESULT_VARIABLE horon_no_expecttest)
if(NOT horon_no_expecttest)
  foreach(ranks 3 4)
    add_test(NAME python_torch_suite.np${ranks}
             COMMAND ${horon_mpirun} ${ranks} ${HORON_PYTHON_EXECUTABLE}
                     ${python_tests}/torch_suite.py)
    list(APPEND python_suite_names python_torch_suite.np${ranks})
  endforeach()
endif()
add_test(NAME python_programs
         COMMAND ${HORON_PYTHON_EXECUTABLE} ${python_tests}/programs_test.py ${horon_mpirun})
add_test(NAME python_process_group_programs
         COMMAND ${HORON_PYTHON_EXECUTABLE} ${python_tests}/process_group_programs_test.py
                 ${horon_mpirun})
add_test(NAME python_installed_module
         COMMAND ${HORON_PYTHON_EXECUTABLE} ${python_tests}/installed_module_test.py
                 ${CMAKE_COMMAND} ${PROJECT_BINARY_DIR}
                 ${PROJECT_SOURCE_DIR}/torch_bindings/python/horon)
set_tests_properties(python_installed_module PROPERTIES TIMEOUT ${horon_test_limit_s})
execute_process(COMMAND ${HORON_PYTHON_EXECUTABLE} -c "import scikit_build_core" ERROR_QUIET
                RESULT_VARIABLE horon_no_scikit_build)
if(NOT horon_no_scikit_build)
  add_test(NAME python_wheel
           COMMAND ${HORON_PYTHON_EXECUTABLE} ${python_tests}/wheel_test.py ${CMAKE_COMMAND}
                   ${PROJECT_SOURCE_DIR}/torch_bindings/python ${PROJECT_BINARY_DIR}/python)
  set_tests_properties(python_wheel PROPERTIES TIMEOUT ${horon_test_limit_s})
endif()
set(python_test_names python_package.np2 python_package.np3 python_process_groups.np4
    python_process_groups.hosts_2_2 python_programs python_process_group_programs
    ${python_suite_names})
set_tests_properties(${python_test_names} PROPERTIES
                     TIMEOUT 900 PROCESSORS 2 LABELS mpirun
                     ENVIRONMENT "${python_environment}")
set_tests_properties(python_programs python_process_group_programs PROPERTIES
                     TIMEOUT 1800)  # one program after the other
torch_test_without_gpus(${python_test_names})
