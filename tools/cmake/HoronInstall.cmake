# Rules for `cmake --install`: find_package(horon) then gives horon::core and horon::torch.

include(CMakePackageConfigHelpers)
set(horon_package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/horon)

# The public headers keep their places, so that they find each other.
get_property(horon_headers GLOBAL PROPERTY HORON_PUBLIC_HEADERS)
foreach(header ${horon_headers})
  file(RELATIVE_PATH header ${PROJECT_SOURCE_DIR} ${header})
  cmake_path(GET header PARENT_PATH folder)
  install(FILES ${PROJECT_SOURCE_DIR}/${header}
          DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/horon/${folder})
endforeach()

# CMAKE_INSTALL_DOCDIR may be that of an outer project.
install(FILES ${PROJECT_SOURCE_DIR}/LICENSE DESTINATION ${CMAKE_INSTALL_DATAROOTDIR}/doc/horon)

# The launcher also where HORON_TOOLS, which compiles programs, is off.
set(horon_tools ${PROJECT_SOURCE_DIR}/tools)
install(PROGRAMS ${horon_tools}/horonrun ${horon_tools}/horonrun_rank TYPE BIN)
file(GLOB horonrun_modules CONFIGURE_DEPENDS ${horon_tools}/horonrun_*.py)
install(FILES ${horonrun_modules} TYPE BIN)

if(HORON_WITH_CUDA)
  install(FILES ${CMAKE_CURRENT_LIST_DIR}/HoronCudaToolkit.cmake DESTINATION ${horon_package_dir})
endif()

# Two export sets, because horon::torch exists only in builds with LibTorch.
install(TARGETS horon_core EXPORT horonCoreTargets)
install(EXPORT horonCoreTargets NAMESPACE horon:: DESTINATION ${horon_package_dir})
if(HORON_TORCH)
  install(FILES ${PROJECT_SOURCE_DIR}/torch_bindings/horon.h
          DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/horon)
  install(TARGETS horon_torch EXPORT horonTorchTargets)
  install(EXPORT horonTorchTargets NAMESPACE horon:: DESTINATION ${horon_package_dir})
  install(FILES ${CMAKE_CURRENT_LIST_DIR}/HoronFindTorch.cmake DESTINATION ${horon_package_dir})
endif()

configure_package_config_file(${CMAKE_CURRENT_LIST_DIR}/horonConfig.cmake.in
                              ${PROJECT_BINARY_DIR}/horonConfig.cmake
                              INSTALL_DESTINATION ${horon_package_dir})
write_basic_package_version_file(${PROJECT_BINARY_DIR}/horonConfigVersion.cmake
                                 COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/horonConfig.cmake ${PROJECT_BINARY_DIR}/horonConfigVersion.cmake
        DESTINATION ${horon_package_dir})
