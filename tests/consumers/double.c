/* Doubles numbers on a device: a whole program, and that it runs with the library it was compiled for. */
#include "check.h"
#include <stdint.h>
#include <taskgpu.h>

static void twice(const tgpu_host_block *b, void *const *args, void *data) {
    float *x = *(float *const *)args[0] + b->index[0] * b->block[0];
    (void)data;
    for (uint32_t i = 0; i < b->block[0]; i++) x[i] *= 2;
}

int main(void) {
    float host[1024] = {1, 2, 3};
    const size_t arg_sizes[] = {sizeof(float *)};
    void *x = NULL, *args[] = {&x};
    tgpu_kernel kernel = NULL;
    tgpu_launch_config shape = TGPU_LAUNCH_CONFIG_INIT;
    shape.grid[0] = 8, shape.block[0] = 128;

    CHECK(tgpu_version() == TGPU_VERSION && tgpu_abi_version() == TGPU_ABI_VERSION);
    CHECK(tgpu_kernel_from_host_fn(twice, NULL, 1, arg_sizes, &kernel) == TGPU_OK);
    CHECK(tgpu_malloc(sizeof host, &x) == TGPU_OK);
    CHECK(tgpu_memcpy(x, host, sizeof host, NULL) == TGPU_OK);
    CHECK(tgpu_launch(kernel, &shape, args) == TGPU_OK);
    CHECK(tgpu_memcpy(host, x, sizeof host, NULL) == TGPU_OK);
    CHECK(tgpu_synchronize() == TGPU_OK);
    CHECK(host[0] == 2 && host[1] == 4 && host[2] == 6 && host[3] == 0);
    CHECK(tgpu_free(x) == TGPU_OK && tgpu_kernel_destroy(kernel) == TGPU_OK);
    return 0;
}
