find_package(Python3 REQUIRED COMPONENTS Interpreter)
set(horon_tools_tests ${CMAKE_CURRENT_LIST_DIR})

# The rules of the sources; the same in every build, so that one is enough.
if(NOT HORON_SANITIZE)
  add_test(NAME house_rules COMMAND Python3::Interpreter ${horon_tools_tests}/house_rules.py)
  add_test(NAME house_rules_test
           COMMAND Python3::Interpreter ${horon_tools_tests}/house_rules_test.py)
  add_test(NAME never_run_test
           COMMAND Python3::Interpreter ${horon_tools_tests}/never_run_test.py)
  add_test(NAME docs_test COMMAND Python3::Interpreter ${horon_tools_tests}/docs_test.py)
  add_test(NAME plot_training_test COMMAND Python3::Interpreter
           ${horon_tools_tests}/plot_training_test.py ${PROJECT_SOURCE_DIR}/tools/plot_training)
  add_test(NAME setup_test COMMAND Python3::Interpreter ${horon_tools_tests}/setup_test.py
           ${PROJECT_SOURCE_DIR}/tools/setup)
  add_test(NAME gpu_check_test COMMAND Python3::Interpreter ${horon_tools_tests}/gpu_check_test.py
           ${PROJECT_SOURCE_DIR})
  add_test(NAME find_test COMMAND Python3::Interpreter ${horon_tools_tests}/find_test.py)

  # Each header of core and ops compiles alone: those that no source of the library includes first,
  # as house_rules demands it of X.h in X.cc, are compiled here. What fails here fails the build.
  file(GLOB_RECURSE horon_headers CONFIGURE_DEPENDS RELATIVE ${PROJECT_SOURCE_DIR}
       ${PROJECT_SOURCE_DIR}/core/*.h ${PROJECT_SOURCE_DIR}/ops/*.h)
  get_target_property(sources horon_core SOURCES)
  set(horon_core_sources "")
  foreach(source ${sources})
    cmake_path(ABSOLUTE_PATH source BASE_DIRECTORY ${PROJECT_SOURCE_DIR}/core)
    list(APPEND horon_core_sources ${source})
  endforeach()
  set(horon_header_sources "")
  foreach(header ${horon_headers})
    string(REGEX REPLACE "h$" "cc" own_source ${PROJECT_SOURCE_DIR}/${header})
    if(own_source IN_LIST horon_core_sources)
      continue()
    endif()
    string(REGEX REPLACE "[/.]" "_" source ${header})
    set(source ${CMAKE_CURRENT_BINARY_DIR}/headers/${source}.cc)
    file(CONFIGURE OUTPUT ${source} CONTENT "#include \"horon/${header}\"\n")
    list(APPEND horon_header_sources ${source})
  endforeach()
  add_library(horon_headers_alone OBJECT ${horon_header_sources})
  horon_target(horon_headers_alone)
  target_compile_options(horon_headers_alone PRIVATE -O0)
  target_link_libraries(horon_headers_alone PRIVATE horon::core MPI::MPI_C)
endif()

# The examples of pages and headers compile too, in one file.
if(TARGET horon::torch AND NOT HORON_SANITIZE)
  add_test(NAME examples_test COMMAND Python3::Interpreter ${horon_tools_tests}/examples.py --test)
  file(GLOB_RECURSE horon_example_places CONFIGURE_DEPENDS
       ${PROJECT_SOURCE_DIR}/core/*.md ${PROJECT_SOURCE_DIR}/ops/*.md
       ${PROJECT_SOURCE_DIR}/ops/session/*.h ${PROJECT_SOURCE_DIR}/torch_bindings/*.md
       ${PROJECT_SOURCE_DIR}/torch_bindings/*.h ${PROJECT_SOURCE_DIR}/bench/*.md
       ${PROJECT_SOURCE_DIR}/tests/*.md)
  set(horon_examples ${CMAKE_CURRENT_BINARY_DIR}/examples_of_pages_and_headers.cc)
  add_custom_command(
    OUTPUT ${horon_examples}
    COMMAND Python3::Interpreter ${horon_tools_tests}/examples.py ${PROJECT_SOURCE_DIR}
            ${horon_examples}
    DEPENDS ${horon_tools_tests}/examples.py ${PROJECT_SOURCE_DIR}/README.md
            ${horon_example_places}
    VERBATIM)
  add_library(horon_examples_compile OBJECT ${horon_examples})
  # Examples may leave a result unused or hide a name; only errors count.
  target_compile_options(horon_examples_compile PRIVATE -O0 -w)
  target_link_libraries(horon_examples_compile PRIVATE horon::torch)
endif()

if(HORON_TOOLS AND NOT HORON_SANITIZE)
  add_test(NAME horonrun_test COMMAND Python3::Interpreter ${horon_tools_tests}/horonrun_test.py
           ${PROJECT_SOURCE_DIR}/tools/horonrun)
  add_test(NAME horonrun_output_test COMMAND Python3::Interpreter
           ${horon_tools_tests}/horonrun_output_test.py ${PROJECT_SOURCE_DIR}/tools/horonrun)
  add_test(NAME horonrun_ends_test COMMAND Python3::Interpreter
           ${horon_tools_tests}/horonrun_ends_test.py ${PROJECT_SOURCE_DIR}/tools/horonrun)
  add_test(NAME horonrun_restarts_test COMMAND Python3::Interpreter
           ${horon_tools_tests}/horonrun_restarts_test.py ${PROJECT_SOURCE_DIR}/tools/horonrun)
  add_test(NAME horonrun_launcher_test COMMAND Python3::Interpreter
           ${horon_tools_tests}/horonrun_launcher_test.py ${PROJECT_SOURCE_DIR}/tools/horonrun)
  add_test(NAME horonrun_slurm_test COMMAND Python3::Interpreter
           ${horon_tools_tests}/horonrun_slurm_test.py ${PROJECT_SOURCE_DIR}/tools/horonrun)
  add_test(NAME info_test COMMAND Python3::Interpreter ${horon_tools_tests}/info_test.py
           $<TARGET_FILE:horon-info> ${PROJECT_SOURCE_DIR}/tools/horonrun)
  add_test(NAME package_test COMMAND Python3::Interpreter ${horon_tools_tests}/package_test.py
           ${PROJECT_BINARY_DIR} "${HORON_TORCH_ROOT}")
  set_tests_properties(horonrun_test horonrun_output_test horonrun_ends_test
                       horonrun_restarts_test horonrun_launcher_test horonrun_slurm_test info_test
                       PROPERTIES TIMEOUT ${horon_test_limit_s} PROCESSORS 2 LABELS mpirun)
  set_tests_properties(package_test PROPERTIES TIMEOUT 1800 PROCESSORS 2 LABELS mpirun)
endif()
