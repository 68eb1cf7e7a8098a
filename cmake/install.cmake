# Installs the library, its headers, its licences, and what CMake and pkg-config need to find them. Nothing that is
# installed has the prefix in it, so that the tree can be moved.

include(CMakePackageConfigHelpers)

install(FILES "${PROJECT_SOURCE_DIR}/include/taskgpu.h" "${PROJECT_SOURCE_DIR}/include/taskgpu.hpp"
    DESTINATION "${CMAKE_INSTALL_INCLUDEDIR}")
install(PROGRAMS "${taskgpu_file}" "${taskgpu_soname}" "${taskgpu_plain}" DESTINATION "${CMAKE_INSTALL_LIBDIR}")
install(FILES "${taskgpu_archive}" DESTINATION "${CMAKE_INSTALL_LIBDIR}")
install(FILES "${PROJECT_SOURCE_DIR}/LICENSE-APACHE" "${PROJECT_SOURCE_DIR}/LICENSE-MIT"
    "${PROJECT_SOURCE_DIR}/LICENSES-THIRD-PARTY"
    DESTINATION "${CMAKE_INSTALL_DOCDIR}")

# The notices of Rust's own library, which is linked in too. They come with each compiler.
cmake_path(GET TASKGPU_CARGO PARENT_PATH taskgpu_rust)
execute_process(COMMAND "${taskgpu_rust}/rustc" --print sysroot WORKING_DIRECTORY "${PROJECT_SOURCE_DIR}"
    OUTPUT_VARIABLE taskgpu_rust OUTPUT_STRIP_TRAILING_WHITESPACE COMMAND_ERROR_IS_FATAL ANY)
install(FILES "${taskgpu_rust}/share/doc/rust/COPYRIGHT-library.html" OPTIONAL
    DESTINATION "${CMAKE_INSTALL_DOCDIR}" RENAME LICENSES-RUST-LIBRARY.html)

set(taskgpu_package "${CMAKE_INSTALL_LIBDIR}/cmake/taskgpu")
configure_package_config_file("${PROJECT_SOURCE_DIR}/cmake/taskgpu-config.cmake.in"
    "${PROJECT_BINARY_DIR}/taskgpu-config.cmake"
    INSTALL_DESTINATION "${taskgpu_package}"
    PATH_VARS CMAKE_INSTALL_INCLUDEDIR CMAKE_INSTALL_LIBDIR)
write_basic_package_version_file("${PROJECT_BINARY_DIR}/taskgpu-config-version.cmake" COMPATIBILITY SameMinorVersion)
install(FILES "${PROJECT_BINARY_DIR}/taskgpu-config.cmake" "${PROJECT_BINARY_DIR}/taskgpu-config-version.cmake"
    "${PROJECT_SOURCE_DIR}/cmake/taskgpu-targets.cmake"
    DESTINATION "${taskgpu_package}")

# From the folder of the .pc files to the prefix, and from there to the others.
set(taskgpu_pc_folder "${CMAKE_INSTALL_FULL_LIBDIR}/pkgconfig")
file(RELATIVE_PATH taskgpu_pc_prefix "${taskgpu_pc_folder}" "${CMAKE_INSTALL_PREFIX}")
file(RELATIVE_PATH taskgpu_pc_includes "${CMAKE_INSTALL_PREFIX}" "${CMAKE_INSTALL_FULL_INCLUDEDIR}")
file(RELATIVE_PATH taskgpu_pc_libraries "${CMAKE_INSTALL_PREFIX}" "${CMAKE_INSTALL_FULL_LIBDIR}")
string(REGEX REPLACE "/$" "" taskgpu_pc_prefix "${taskgpu_pc_prefix}")
foreach(file taskgpu.pc taskgpu-static.pc)
    configure_file("${PROJECT_SOURCE_DIR}/cmake/${file}.in" "${PROJECT_BINARY_DIR}/${file}" @ONLY)
    install(FILES "${PROJECT_BINARY_DIR}/${file}" DESTINATION "${CMAKE_INSTALL_LIBDIR}/pkgconfig")
endforeach()
