# Finds LibTorch and makes the imported target horon_libtorch (headers, torch_cpu, c10, an rpath).
# Sets HORON_TORCH_ROOT and HORON_TORCH_VERSION. Used by the build and by the installed package, so
# that an outer project links the LibTorch that it already has.
#
# Looks in this order: the LibTorch that an outer project's find_package(Torch) found; Torch_DIR;
# Torch_ROOT; CMAKE_PREFIX_PATH; the torch of the active Python; the LibTorch that an installed
# Horon was built with; .venv of this repository. For a wheel, the torch of the Python that builds
# it is the last one. It does not call find_package(Torch): for a CUDA build of torch that fails on
# a machine without the CUDA toolkit, and adds flags for ten GPU architectures on others.
#
# Programs with CUDA tensors need libtorch_cuda in the process. HORON_TORCH_CUDA=AUTO links it where
# it and all that it needs are found and an NVIDIA driver runs; ON insists, OFF leaves it out. Sets
# HORON_TORCH_WITH_CUDA.
#
# HORON_TORCH_VERSION_OF_HORON: if given, no other version fits.
# HORON_TORCH_REPORT: the mode of message() if no LibTorch fits (default FATAL_ERROR). The text is
# also stored in HORON_TORCH_PROBLEM.

set(HORON_TORCH_PROBLEM "")
if(TARGET horon_libtorch)  # it was found in another folder of the project
  foreach(fact ROOT VERSION WITH_CUDA)
    get_target_property(HORON_TORCH_${fact} horon_libtorch HORON_${fact})
  endforeach()
  return()
endif()
set(horon_torch_header torch/csrc/api/include/torch/torch.h)

# Folders that may hold include/ and lib/ of LibTorch, best first.
set(horon_torch_roots "")
foreach(target torch_cpu torch)
  if(TARGET ${target})
    get_target_property(horon_torch_file ${target} IMPORTED_LOCATION)
    if(NOT horon_torch_file)
      get_target_property(horon_torch_file ${target} IMPORTED_LOCATION_RELEASE)
    endif()
    if(horon_torch_file)
      cmake_path(GET horon_torch_file PARENT_PATH horon_torch_lib)
      cmake_path(GET horon_torch_lib PARENT_PATH horon_torch_root)
      list(APPEND horon_torch_roots ${horon_torch_root})
    endif()
  endif()
endforeach()
if(TORCH_INSTALL_PREFIX)
  list(APPEND horon_torch_roots ${TORCH_INSTALL_PREFIX})
endif()
foreach(folder ${Torch_DIR} $ENV{Torch_DIR})
  list(APPEND horon_torch_roots ${folder}/../../..)
endforeach()
list(APPEND horon_torch_roots ${Torch_ROOT} $ENV{Torch_ROOT} ${CMAKE_PREFIX_PATH})
if(DEFINED ENV{CMAKE_PREFIX_PATH})
  cmake_path(CONVERT "$ENV{CMAKE_PREFIX_PATH}" TO_CMAKE_PATH_LIST horon_env_prefixes)
  list(APPEND horon_torch_roots ${horon_env_prefixes})
endif()
# torch.utils.cmake_prefix_path, which PyTorch's manual gives for CMAKE_PREFIX_PATH, names the
# folder of its CMake files.
list(TRANSFORM horon_torch_roots REPLACE "/share/cmake(/Torch)?/*$" "")
set(horon_chosen_roots ${horon_torch_roots})
find_program(HORON_PYTHON python3)
mark_as_advanced(HORON_PYTHON)
set(horon_asked_python ${HORON_PYTHON})
# Whether this builds the wheel of Horon itself, and not that of a project which uses an installed
# Horon.
set(horon_is_wheel OFF)
if(SKBUILD AND NOT HORON_TORCH_BUILT_WITH)
  set(horon_is_wheel ON)
  set(horon_asked_python ${Python_EXECUTABLE})
endif()
if(horon_asked_python)
  # find_spec does not import torch, which would take seconds.
  execute_process(COMMAND ${horon_asked_python} -c "import importlib.util as u
print(u.find_spec('torch').submodule_search_locations[0])"
                  OUTPUT_VARIABLE horon_python_torch OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
  list(APPEND horon_torch_roots ${horon_python_torch})
endif()
if(horon_is_wheel)  # it is of use beside the torch of its own environment alone
  list(APPEND horon_chosen_roots ${horon_python_torch})
else()
  list(APPEND horon_torch_roots ${HORON_TORCH_BUILT_WITH})
  file(GLOB horon_venv_torch ${CMAKE_CURRENT_LIST_DIR}/../../.venv/lib/python3*/site-packages/torch)
  list(APPEND horon_torch_roots ${horon_venv_torch})
endif()

# Sets HORON_TORCH_VERSION and HORON_TORCH_PROBLEM.
macro(horon_look_at_torch root)
  set(HORON_TORCH_VERSION "")
  set(HORON_TORCH_PROBLEM "")
  # The version numbers moved to headeronly/ in about 2.9.
  foreach(file headeronly csrc/api/include/torch)
    set(file ${root}/include/torch/${file}/version.h)
    if(EXISTS ${file} AND NOT HORON_TORCH_VERSION)
      file(STRINGS ${file} horon_torch_lines REGEX "define TORCH_VERSION_(MAJOR|MINOR|PATCH) ")
      string(REGEX REPLACE "[^0-9;]" "" horon_torch_lines "${horon_torch_lines}")
      string(REPLACE ";" "." HORON_TORCH_VERSION "${horon_torch_lines}")
    endif()
  endforeach()
  # The symbol names show with which C++ ABI the library was built.
  file(STRINGS ${root}/lib/libc10.so horon_torch_new_abi
       REGEX "NSt7__cxx1112basic_string" LIMIT_COUNT 1)
  if(NOT horon_torch_new_abi)
    string(CONCAT HORON_TORCH_PROBLEM "the LibTorch in ${root} was built with the old "
           "C++ ABI (_GLIBCXX_USE_CXX11_ABI=0), which C++20 programs can't be linked with: take "
           "the download called \"cxx11 ABI\", or a wheel of torch 2.7 or later")
  elseif(HORON_TORCH_VERSION AND HORON_TORCH_VERSION VERSION_LESS 2.8)
    string(CONCAT HORON_TORCH_PROBLEM "LibTorch 2.8 or later is needed, "
           "${root} has ${HORON_TORCH_VERSION}")
  elseif(HORON_TORCH_VERSION_OF_HORON AND
         NOT HORON_TORCH_VERSION VERSION_EQUAL HORON_TORCH_VERSION_OF_HORON)
    string(CONCAT HORON_TORCH_PROBLEM "this Horon was built with LibTorch "
           "${HORON_TORCH_VERSION_OF_HORON}, but ${root} has ${HORON_TORCH_VERSION}; LibTorch "
           "keeps no ABI between versions")
  endif()
endmacro()

# Not cached, because Torch_DIR may change between two runs of CMake. If no root fits, the problem
# of the first one is reported. A root that the user has chosen is not passed over.
set(HORON_TORCH_ROOT "")
set(horon_first_problem "")
foreach(root ${horon_torch_roots})
  file(REAL_PATH "${root}" horon_real_root)
  if(NOT EXISTS ${horon_real_root}/include/${horon_torch_header} OR
     NOT EXISTS ${horon_real_root}/lib/libtorch_cpu.so)
    continue()
  endif()
  horon_look_at_torch(${horon_real_root})
  if(NOT HORON_TORCH_PROBLEM)
    set(HORON_TORCH_ROOT ${horon_real_root})
    break()
  elseif(NOT horon_first_problem)
    set(horon_first_problem "${HORON_TORCH_PROBLEM}")
  endif()
  if(root IN_LIST horon_chosen_roots)
    break()
  endif()
endforeach()

if(NOT HORON_TORCH_ROOT)
  set(HORON_TORCH_PROBLEM "${horon_first_problem}")
  if(NOT HORON_TORCH_PROBLEM AND horon_is_wheel)
    string(CONCAT HORON_TORCH_PROBLEM "torch was not found where this wheel is built, by "
           "${Python_EXECUTABLE}. Install torch first. An installer that builds in an environment "
           "of its own, as uv does, must build in yours: uv pip install scikit-build-core cmake "
           "ninja, then uv pip install --no-build-isolation ./torch_bindings/python")
  elseif(NOT HORON_TORCH_PROBLEM)
    string(CONCAT HORON_TORCH_PROBLEM "LibTorch was not found. Give -DCMAKE_PREFIX_PATH=/path/to/"
           "libtorch or -DTorch_DIR=..., run tools/setup of Horon's sources (it installs the torch "
           "wheel in .venv), or configure Horon with -DHORON_TORCH=OFF")
  endif()
endif()

if(HORON_TORCH_PROBLEM)
  if(NOT HORON_TORCH_REPORT)
    set(HORON_TORCH_REPORT FATAL_ERROR)
  endif()
  message(${HORON_TORCH_REPORT} "${HORON_TORCH_PROBLEM}")
  return()
endif()

message(STATUS "LibTorch: ${HORON_TORCH_VERSION} in ${HORON_TORCH_ROOT}")
add_library(horon_libtorch INTERFACE IMPORTED GLOBAL)
# A program finds this LibTorch after it is installed, too. A target with HORON_FINDS_TORCH_ITSELF
# has rpaths of its own.
set(horon_finds_torch_itself $<BOOL:$<TARGET_PROPERTY:HORON_FINDS_TORCH_ITSELF>>)
set(horon_torch_rpath $<$<NOT:${horon_finds_torch_itself}>:-Wl,-rpath,${HORON_TORCH_ROOT}/lib>)
set_target_properties(horon_libtorch PROPERTIES
  INTERFACE_INCLUDE_DIRECTORIES
    "${HORON_TORCH_ROOT}/include;${HORON_TORCH_ROOT}/include/torch/csrc/api/include"
  INTERFACE_LINK_LIBRARIES
    "${HORON_TORCH_ROOT}/lib/libtorch_cpu.so;${HORON_TORCH_ROOT}/lib/libc10.so"
  INTERFACE_LINK_OPTIONS "${horon_torch_rpath}"
  HORON_ROOT "${HORON_TORCH_ROOT}" HORON_VERSION "${HORON_TORCH_VERSION}" HORON_WITH_CUDA OFF)

set(HORON_TORCH_WITH_CUDA OFF)
set(horon_torch_cuda ${HORON_TORCH_ROOT}/lib/libtorch_cuda.so)
set(horon_torch_cuda_missing "")
if(NOT DEFINED HORON_TORCH_CUDA)
  set(HORON_TORCH_CUDA AUTO)
endif()
if(HORON_TORCH_CUDA STREQUAL "AUTO" AND NOT EXISTS /proc/driver/nvidia/version)
  set(horon_torch_cuda_missing "no NVIDIA driver runs here")
elseif(NOT EXISTS ${horon_torch_cuda})
  set(horon_torch_cuda_missing "this LibTorch is built for CPUs only")
elseif(HORON_TORCH_CUDA)
  execute_process(COMMAND ldd ${horon_torch_cuda} OUTPUT_VARIABLE horon_torch_needs ERROR_QUIET)
  string(REGEX MATCHALL "[^ \t\n]+ => not found" horon_torch_cuda_missing "${horon_torch_needs}")
  list(TRANSFORM horon_torch_cuda_missing REPLACE " => not found" "")
  list(JOIN horon_torch_cuda_missing ", " horon_torch_cuda_missing)
  if(horon_torch_cuda_missing)
    string(PREPEND horon_torch_cuda_missing "its libtorch_cuda.so does not find ")
  endif()
endif()
if(NOT HORON_TORCH_CUDA)
  return()
elseif(NOT horon_torch_cuda_missing)
  set(HORON_TORCH_WITH_CUDA ON)
  set_property(TARGET horon_libtorch PROPERTY HORON_WITH_CUDA ON)
  # libtorch_cuda registers itself when it is loaded: programs need it although they use no symbol
  # of it.
  set_property(TARGET horon_libtorch APPEND PROPERTY INTERFACE_LINK_OPTIONS
    "LINKER:--push-state,--no-as-needed,${horon_torch_cuda},--pop-state")
  # For programs that use its streams and graphs.
  set_property(TARGET horon_libtorch APPEND PROPERTY INTERFACE_LINK_LIBRARIES
    "${HORON_TORCH_ROOT}/lib/libc10_cuda.so")
  message(STATUS "LibTorch: with CUDA")
elseif(HORON_TORCH_CUDA STREQUAL "AUTO")
  message(STATUS "LibTorch: without CUDA, since ${horon_torch_cuda_missing}")
else()
  message(FATAL_ERROR "HORON_TORCH_CUDA=ON: ${horon_torch_cuda_missing} "
          "(-DHORON_TORCH_CUDA=OFF is for CPUs alone)")
endif()
