# Builds the library with cargo and gives the files the names that they have when installed, in TASKGPU_BUILT.

set(TASKGPU_BUILT "${PROJECT_BINARY_DIR}/lib")
string(REGEX MATCH "^[0-9]+\\.[0-9]+" taskgpu_minor "${PROJECT_VERSION}")
set(taskgpu_file "${TASKGPU_BUILT}/libtaskgpu.so.${PROJECT_VERSION}")
set(taskgpu_soname "${TASKGPU_BUILT}/libtaskgpu.so.${taskgpu_minor}")
set(taskgpu_plain "${TASKGPU_BUILT}/libtaskgpu.so")
set(taskgpu_archive "${TASKGPU_BUILT}/libtaskgpu.a")
file(MAKE_DIRECTORY "${TASKGPU_BUILT}")

# Always run: cargo knows best what has changed. The crate types are named because with the Rust library among them
# cargo leaves link-time optimization out.
add_custom_target(taskgpu-cargo ALL
    COMMAND "${CMAKE_COMMAND}" -E env "CARGO_TARGET_DIR=${TASKGPU_CARGO_TARGET_DIR}"
        "${TASKGPU_CARGO}" rustc --quiet --release --package taskgpu --lib --crate-type "staticlib,cdylib"
        ${TASKGPU_CARGO_ARGS}
    COMMAND "${CMAKE_COMMAND}" -E copy_if_different "${TASKGPU_CARGO_TARGET_DIR}/release/libtaskgpu.so" "${taskgpu_file}"
    COMMAND "${CMAKE_COMMAND}" -E copy_if_different "${TASKGPU_CARGO_TARGET_DIR}/release/libtaskgpu.a" "${taskgpu_archive}"
    COMMAND "${CMAKE_COMMAND}" -E create_symlink "libtaskgpu.so.${PROJECT_VERSION}" "${taskgpu_soname}"
    COMMAND "${CMAKE_COMMAND}" -E create_symlink "libtaskgpu.so.${taskgpu_minor}" "${taskgpu_plain}"
    WORKING_DIRECTORY "${PROJECT_SOURCE_DIR}"
    BYPRODUCTS "${taskgpu_file}" "${taskgpu_soname}" "${taskgpu_plain}" "${taskgpu_archive}"
    COMMENT "Building taskgpu with cargo"
    USES_TERMINAL VERBATIM)
