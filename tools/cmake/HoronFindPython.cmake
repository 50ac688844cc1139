# Finds a Python whose torch can be imported and has the version of the LibTorch of this build.
# Sets HORON_WITH_PYTHON and, by FindPython, Python_EXECUTABLE and the targets for modules.
#
# HORON_PYTHON_PACKAGE=AUTO builds the package where such a Python is found, and otherwise says in
# one line why not; ON insists, OFF leaves it out. HORON_PYTHON_EXECUTABLE names the Python to take.
# A wheel is built for the Python that pip has chosen, and torch need not be importable there.

set(HORON_WITH_PYTHON OFF)
if(NOT HORON_PYTHON_PACKAGE OR HORON_SANITIZE)  # a sanitizer would have to be in Python itself
  return()
endif()

# horon_python_problem(RESULT PYTHON): why this Python will not do; empty if it will.
function(horon_python_problem result python)
  execute_process(COMMAND ${python} -c "import torch; print(torch.__version__)"
                  OUTPUT_VARIABLE version OUTPUT_STRIP_TRAILING_WHITESPACE
                  ERROR_QUIET RESULT_VARIABLE code)
  string(REGEX REPLACE "\\+.*" "" version "${version}")
  set(problem "")
  if(NOT code EQUAL 0)
    set(problem "${python} can't import torch")
  elseif(NOT version VERSION_EQUAL HORON_TORCH_VERSION)
    set(problem "${python} has torch ${version}, not ${HORON_TORCH_VERSION}")
  endif()
  set(${result} "${problem}" PARENT_SCOPE)
endfunction()

set(horon_python_why "")
if(SKBUILD)
  set(HORON_PYTHON_EXECUTABLE ${Python_EXECUTABLE})
elseif(HORON_PYTHON_EXECUTABLE)
  if(NOT HORON_PYTHON_TRIED STREQUAL "${HORON_PYTHON_EXECUTABLE} ${HORON_TORCH_VERSION}")
    horon_python_problem(horon_python_why ${HORON_PYTHON_EXECUTABLE})
  endif()
else()
  set(horon_venv_python ${CMAKE_CURRENT_LIST_DIR}/../../.venv/bin/python3)
  set(horon_wheel_python ${HORON_TORCH_ROOT}/../../../../bin/python3)
  foreach(python $ENV{HORON_PYTHON_EXECUTABLE} ${HORON_PYTHON} ${horon_wheel_python}
          ${horon_venv_python})
    if(NOT EXISTS "${python}")
      continue()
    endif()
    cmake_path(NORMAL_PATH python)
    horon_python_problem(horon_python_why ${python})
    if(NOT horon_python_why)
      set_property(CACHE HORON_PYTHON_EXECUTABLE PROPERTY VALUE ${python})
      break()
    endif()
  endforeach()
endif()

if(HORON_PYTHON_EXECUTABLE AND NOT horon_python_why)
  # To import torch takes seconds, so this is done once for each Python and LibTorch.
  set(HORON_PYTHON_TRIED "${HORON_PYTHON_EXECUTABLE} ${HORON_TORCH_VERSION}" CACHE INTERNAL
      "A Python that imports torch, and the version of that")
  set(Python_EXECUTABLE ${HORON_PYTHON_EXECUTABLE})
  find_package(Python QUIET COMPONENTS Interpreter Development.Module)
  if(NOT Python_Development.Module_FOUND)
    set(horon_python_why "Python.h of ${HORON_PYTHON_EXECUTABLE} was not found (python3-dev)")
  endif()
elseif(NOT HORON_PYTHON_EXECUTABLE AND NOT horon_python_why)
  set(horon_python_why "no python3 was found")
endif()

if(HORON_PYTHON_EXECUTABLE AND NOT horon_python_why)
  set(HORON_WITH_PYTHON ON)
  message(STATUS "Python: the package horon for ${HORON_PYTHON_EXECUTABLE}")
elseif(HORON_PYTHON_PACKAGE STREQUAL "AUTO")
  message(STATUS "Python: left out, since ${horon_python_why} (tools/setup --python)")
else()
  message(FATAL_ERROR "HORON_PYTHON_PACKAGE=ON: ${horon_python_why}")
endif()
