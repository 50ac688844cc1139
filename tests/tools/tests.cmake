find_package(Python3 REQUIRED COMPONENTS Interpreter)
set(horon_tools_tests ${CMAKE_CURRENT_LIST_DIR})

# The rules of the sources; the same in every build, so that one is enough.
if(NOT HORON_SANITIZE)
  add_test(NAME house_rules COMMAND Python3::Interpreter ${horon_tools_tests}/house_rules.py)
  add_test(NAME house_rules_test
           COMMAND Python3::Interpreter ${horon_tools_tests}/house_rules_test.py)
  add_test(NAME docs_test COMMAND Python3::Interpreter ${horon_tools_tests}/docs_test.py)

  # Each header of core and ops compiles alone. What fails here fails the build.
  file(GLOB_RECURSE horon_headers CONFIGURE_DEPENDS RELATIVE ${PROJECT_SOURCE_DIR}
       ${PROJECT_SOURCE_DIR}/core/*.h ${PROJECT_SOURCE_DIR}/ops/*.h)
  set(horon_header_sources "")
  foreach(header ${horon_headers})
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

if(HORON_TOOLS AND NOT HORON_SANITIZE)
  add_test(NAME horonrun_test COMMAND Python3::Interpreter ${horon_tools_tests}/horonrun_test.py
           ${PROJECT_SOURCE_DIR}/tools/horonrun)
  add_test(NAME info_test COMMAND Python3::Interpreter ${horon_tools_tests}/info_test.py
           $<TARGET_FILE:horon-info> ${PROJECT_SOURCE_DIR}/tools/horonrun)
  add_test(NAME package_test COMMAND Python3::Interpreter ${horon_tools_tests}/package_test.py
           ${PROJECT_BINARY_DIR} "${HORON_TORCH_ROOT}")
  set_tests_properties(horonrun_test info_test PROPERTIES TIMEOUT 180 PROCESSORS 2 LABELS mpirun)
  set_tests_properties(package_test PROPERTIES TIMEOUT 900 PROCESSORS 2 LABELS mpirun)
endif()
