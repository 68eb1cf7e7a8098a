# Part of taskgpu's package for CMake: makes the targets taskgpu::taskgpu and taskgpu::taskgpu_static.

# INCLUDES has taskgpu.h, LIBRARIES has libtaskgpu.so.VERSION with its links and libtaskgpu.a.
function(taskgpu_add_targets includes libraries version)
    if(TARGET taskgpu::taskgpu)
        return()
    endif()
    string(REGEX MATCH "^[0-9]+\\.[0-9]+" minor "${version}")

    add_library(taskgpu::taskgpu SHARED IMPORTED)
    set_target_properties(taskgpu::taskgpu PROPERTIES
        IMPORTED_LOCATION "${libraries}/libtaskgpu.so.${version}"
        IMPORTED_SONAME "libtaskgpu.so.${minor}"
        INTERFACE_INCLUDE_DIRECTORIES "${includes}")

    # Whoever links the archive keeps its names to himself: a plugin would otherwise export those of Rust's library
    # and ours, and another copy in the same process could be bound to them.
    add_library(taskgpu::taskgpu_static STATIC IMPORTED)
    set_target_properties(taskgpu::taskgpu_static PROPERTIES
        IMPORTED_LOCATION "${libraries}/libtaskgpu.a"
        INTERFACE_INCLUDE_DIRECTORIES "${includes}"
        INTERFACE_LINK_LIBRARIES "pthread;dl;m"
        INTERFACE_LINK_OPTIONS "LINKER:--exclude-libs,libtaskgpu.a")
endfunction()
