include(CMakePackageConfigHelpers)

install(TARGETS hisparse hisparse_ops EXPORT hisparse_targets
        LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR} ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR})
if(TARGET hisparse_cuda)
  install(TARGETS hisparse_cuda LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR})
endif()
if(HISPARSE_TOOLS)
  install(TARGETS hisparse_command RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
  if(TARGET hisparse_gpu)
    install(TARGETS hisparse_gpu LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR})
  endif()
  install(FILES man/hisparse.1 DESTINATION ${CMAKE_INSTALL_MANDIR}/man1)
endif()
install(FILES include/hisparse.h include/hisparse_ops.h DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})

file(RELATIVE_PATH PREFIX_FROM_PC /prefix/${CMAKE_INSTALL_LIBDIR}/pkgconfig /prefix)
set(NEEDS_hisparse jansson)
set(NEEDS_hisparse_ops "")
foreach(name hisparse hisparse_ops)
  set(LIBRARY_NAME ${name})
  set(LIBRARY_NEEDS ${NEEDS_${name}})
  configure_file(cmake/library.pc.in ${CMAKE_CURRENT_BINARY_DIR}/${name}.pc @ONLY)
  install(FILES ${CMAKE_CURRENT_BINARY_DIR}/${name}.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
endforeach()

set(package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/hisparse)
install(EXPORT hisparse_targets NAMESPACE hisparse:: FILE hisparse-targets.cmake DESTINATION ${package_dir})
configure_package_config_file(cmake/hisparse-config.cmake.in ${CMAKE_CURRENT_BINARY_DIR}/hisparse-config.cmake
                              INSTALL_DESTINATION ${package_dir})
write_basic_package_version_file(${CMAKE_CURRENT_BINARY_DIR}/hisparse-config-version.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${CMAKE_CURRENT_BINARY_DIR}/hisparse-config.cmake ${CMAKE_CURRENT_BINARY_DIR}/hisparse-config-version.cmake
        DESTINATION ${package_dir})
