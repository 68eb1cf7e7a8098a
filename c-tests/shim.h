/* The HIP runtime of tests/hip-shim, seen from a test: what it counts, and some functions of the vendor's for what another
 * library in the process would do. Programs whose names begin with hip_ run on it and nowhere else. */
#ifndef SHIM_H
#define SHIM_H

#include "work.h"
#include <dlfcn.h>

/* Codes of the vendor's. */
enum { HIP_INVALID_VALUE = 1, HIP_INVALID_DEVICE = 101, HIP_NOT_READY = 600, HIP_ILLEGAL_ADDRESS = 700, HIP_LAUNCH_FAILURE = 719 };

/* A function of the copy of the runtime that the library under test has loaded. */
HELPER void *shim_function(const char *name) {
    static void *library;
    int32_t count;
    if (!library) {
        CHECK_OK(tgpu_device_count(&count));
        library = dlopen("libamdhip64.so.6", RTLD_NOW | RTLD_NOLOAD);
        if (!library) FAIL("the HIP runtime is not in the process: %s", dlerror());
    }
    void *function = dlsym(library, name);
    if (!function) FAIL("the HIP runtime has no %s", name);
    return function;
}

/* ISO C has no cast from the one kind of pointer to the other. */
#define AS_FUNCTION_(variable, name) \
    do { \
        void *found_ = shim_function(name); \
        memcpy(&(variable), &found_, sizeof(variable)); \
    } while (0)

/* A number that the shim counts: see tests/hip-shim/src/counts.rs. */
HELPER long count_of(const char *what) {
    static long (*count)(const char *);
    if (!count) AS_FUNCTION_(count, "hip_shim_count");
    long number = count(what);
    if (number < 0) FAIL("the HIP runtime does not count \"%s\"", what);
    return number;
}

/* Calls a function of the vendor's that takes a number. */
HELPER int hip_int(const char *name, int argument) {
    int (*function)(int);
    AS_FUNCTION_(function, name);
    return function(argument);
}

HELPER void hip_set_device(int device) {
    CHECK_EQ(hip_int("hipSetDevice", device), 0);
}

HELPER int hip_device(void) {
    int (*get)(int *), device = -1;
    AS_FUNCTION_(get, "hipGetDevice");
    CHECK_EQ(get(&device), 0);
    return device;
}

HELPER int hip_peek(void) {
    int (*peek)(void);
    AS_FUNCTION_(peek, "hipPeekAtLastError");
    return peek();
}

#endif
