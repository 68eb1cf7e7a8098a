/* Loads the library when it runs, and knows only the header. */
#include "check.h"
#include <dlfcn.h>
#include <stdint.h>
#include <taskgpu.h>

int main(int argc, char **argv) {
    uint32_t (*version)(void);
    tgpu_status (*device_count)(int32_t *);
    int32_t count = 0;
    CHECK(argc == 2);
    void *library = dlopen(argv[1], RTLD_NOW | RTLD_LOCAL);
    if (!library) fprintf(stderr, "%s\n", dlerror());
    CHECK(library);
    *(void **)&version = dlsym(library, "tgpu_version");
    *(void **)&device_count = dlsym(library, "tgpu_device_count");
    CHECK(version && version() == TGPU_VERSION);
    CHECK(device_count && device_count(&count) == TGPU_OK && count == 4);
    /* It stays mapped: threads of its own may still run. */
    CHECK(dlclose(library) == 0);
    CHECK(device_count(&count) == TGPU_OK);
    return 0;
}
