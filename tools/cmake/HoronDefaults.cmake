# Language level, warnings, sanitizers, kinds of libraries, and the include folder for <horon/...>.

include(GNUInstallDirs)

set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
if(PROJECT_IS_TOP_LEVEL)
  set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
  if(NOT CMAKE_BUILD_TYPE AND NOT CMAKE_CONFIGURATION_TYPES)
    set(CMAKE_BUILD_TYPE Release CACHE STRING "" FORCE)
  endif()
endif()

# Otherwise a misspelt value would count as ON.
foreach(name HORON_CUDA HORON_TORCH_CUDA HORON_IMAGES HORON_PYTHON_PACKAGE)
  string(TOUPPER "${${name}}" value)
  if(NOT value MATCHES "^(AUTO|ON|OFF|YES|NO|TRUE|FALSE|Y|N|1|0|)$")
    message(FATAL_ERROR "${name}=${${name}}: give ON, OFF or AUTO")
  endif()
  if(value STREQUAL "AUTO")
    set(${name} AUTO)
  elseif(value)
    set(${name} ON)
  else()
    set(${name} OFF)
  endif()
endforeach()
if(NOT HORON_SANITIZE)
  set(HORON_SANITIZE "")
endif()
# The combinations that compilers accept: ThreadSanitizer works with no other sanitizer but
# undefined.
set(checks "(address|leak|undefined)")
if(NOT HORON_SANITIZE MATCHES
   "^(|thread|thread,undefined|undefined,thread|${checks}(,${checks})*)$")
  message(FATAL_ERROR
          "HORON_SANITIZE=${HORON_SANITIZE}: give address,undefined or thread, or nothing")
endif()

# A checkout in any folder finds in the cache what another checkout has compiled.
find_program(HORON_CCACHE ccache)
set(horon_launcher ${CMAKE_COMMAND} -E env CCACHE_BASEDIR=${PROJECT_SOURCE_DIR} CCACHE_NOHASHDIR=1
                   ${HORON_CCACHE})
if(HORON_CCACHE AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
  set(CMAKE_CXX_COMPILER_LAUNCHER ${horon_launcher})
endif()

# <horon/core/...>, <horon/ops/...> and <horon/torch_bindings/...> are the folders of this checkout.
# After installation they are below include/horon.
set(HORON_INCLUDE_DIR ${PROJECT_BINARY_DIR}/include)
file(MAKE_DIRECTORY ${HORON_INCLUDE_DIR}/horon)
foreach(name core ops torch_bindings bench tests torch_bindings/horon.h)
  get_filename_component(link ${name} NAME)
  file(CREATE_LINK ${PROJECT_SOURCE_DIR}/${name} ${HORON_INCLUDE_DIR}/horon/${link} SYMBOLIC)
endforeach()

# The commit, for horon-info; empty if the sources are not a git checkout.
set(HORON_GIT_HASH "")
find_package(Git QUIET)
if(Git_FOUND AND EXISTS ${PROJECT_SOURCE_DIR}/.git)
  execute_process(COMMAND ${GIT_EXECUTABLE} rev-parse --short=10 HEAD
                  WORKING_DIRECTORY ${PROJECT_SOURCE_DIR} OUTPUT_VARIABLE HORON_GIT_HASH
                  OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
endif()
# A build for use follows the commit: CMake runs again, and version.cc is compiled again. With tests
# it stays that of the last run of CMake, since each commit would link all their programs again.
if(HORON_GIT_HASH AND NOT HORON_TESTS)
  execute_process(COMMAND ${GIT_EXECUTABLE} rev-parse --git-path logs/HEAD
                  WORKING_DIRECTORY ${PROJECT_SOURCE_DIR} OUTPUT_VARIABLE horon_git_log
                  OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
  cmake_path(ABSOLUTE_PATH horon_git_log BASE_DIRECTORY ${PROJECT_SOURCE_DIR})
  if(EXISTS ${horon_git_log})  # git can be told to keep no such file
    set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${horon_git_log})
  endif()
endif()

# horon_public_headers(FILES...): the headers that programs may include, relative to this folder of
# the sources. Only these are installed; package_test compares them with what the entry points
# include.
function(horon_public_headers)
  foreach(header ${ARGN})
    set_property(GLOBAL APPEND PROPERTY HORON_PUBLIC_HEADERS ${CMAKE_CURRENT_SOURCE_DIR}/${header})
  endforeach()
endfunction()

# horon_library(NAME EXPORTED_NAME): a library of Horon, shared with BUILD_SHARED_LIBS and static
# otherwise.
configure_file(${CMAKE_CURRENT_LIST_DIR}/exports.map.in ${PROJECT_BINARY_DIR}/exports.map @ONLY)
set(HORON_EXPORTS ${PROJECT_BINARY_DIR}/exports.map)
function(horon_library name exported_name)
  set(rpaths "$ORIGIN" ${CMAKE_INSTALL_RPATH})  # package managers give theirs there
  add_library(${name})
  add_library(horon::${exported_name} ALIAS ${name})
  # Without DEFINE_SYMBOL the objects of both kinds of library are the same.
  set_target_properties(${name} PROPERTIES EXPORT_NAME ${exported_name} DEFINE_SYMBOL ""
    VERSION ${PROJECT_VERSION} SOVERSION ${PROJECT_VERSION_MAJOR}.${PROJECT_VERSION_MINOR}
    LINK_DEPENDS ${HORON_EXPORTS} INSTALL_RPATH "${rpaths}")
  get_target_property(type ${name} TYPE)
  if(type STREQUAL "SHARED_LIBRARY")
    target_link_options(${name} PRIVATE LINKER:--version-script=${HORON_EXPORTS}
                        LINKER:--no-undefined)
  endif()
endfunction()

# horon_system_includes(SOURCE FOLDERS...): headers of others for one source of horon_core. Not a
# folder that the compiler searches anyway: put in front, it would hide from C++'s <cstdlib> the
# <stdlib.h> that comes after it.
function(horon_system_includes source)
  foreach(folder ${ARGN})
    file(REAL_PATH ${folder} real_folder)
    if(NOT real_folder IN_LIST CMAKE_CXX_IMPLICIT_INCLUDE_DIRECTORIES)
      set_property(SOURCE ${source} TARGET_DIRECTORY horon_core APPEND PROPERTY
                   COMPILE_OPTIONS -isystem ${folder})
    endif()
  endforeach()
endfunction()

# horon_target(NAME): floating point, warnings and sanitizers of the project's own code. Warnings
# are errors with CMAKE_COMPILE_WARNING_AS_ERROR, as in continuous integration; a newer compiler
# elsewhere may warn of correct code.
function(horon_target name)
  # A program may be built with -ffast-math. Horon would then take no number for a NaN, and take the
  # steps that it should skip; and sums would have other bits with each instruction set. Clang warns
  # where -fno-fast-math alone takes -ffp-contract back, and is told its default.
  target_compile_options(${name} PRIVATE
                         $<$<COMPILE_LANG_AND_ID:CXX,Clang,AppleClang,IntelLLVM>:-ffp-contract=on>
                         $<$<COMPILE_LANGUAGE:CXX>:-fno-fast-math>)
  target_compile_options(${name} PRIVATE -Wall -Wextra -Wpedantic -Wshadow -Wnon-virtual-dtor)
  if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    # g++ 12 wrongly warns of overlapping copies in std::string's operator+ (GCC bug 105651).
    target_compile_options(${name} PRIVATE -Wno-restrict)
  endif()
  if(HORON_SANITIZE)
    target_compile_options(${name} PRIVATE -fsanitize=${HORON_SANITIZE} -fno-omit-frame-pointer -g1
                           -fno-sanitize-recover=all)
    if(HORON_SANITIZE MATCHES "undefined")
      # AddressSanitizer also stops at accesses to null pointers, and UBSan's check for them makes
      # the compiler a third slower.
      target_compile_options(${name} PRIVATE -fno-sanitize=null)
    endif()
    target_link_options(${name} PUBLIC -fsanitize=${HORON_SANITIZE})
  endif()
endfunction()
