// Host kernels for runtests.jl, which cannot write them itself: the threads that call them do not know Julia.
// SPDX-License-Identifier: MIT OR Apache-2.0
#define _DEFAULT_SOURCE // usleep
#include <taskgpu.h>
#include <unistd.h>

// Holds its stream up until the number at args[0] is not 0, or a minute has passed.
void gate(const tgpu_host_block *block, void *const *args, void *data) {
    const int32_t *open = *(int32_t *const *)args[0];
    for (int i = 0; i < 60 * 5000 && !__atomic_load_n(open, __ATOMIC_ACQUIRE); i++) usleep(200);
    (void)block, (void)data;
}

// Adds the float args[1] to the args[2] numbers at args[0].
void add(const tgpu_host_block *block, void *const *args, void *data) {
    float *x = *(float *const *)args[0];
    const float value = *(const float *)args[1];
    const uint64_t count = *(const uint64_t *)args[2];
    const uint64_t first = (uint64_t)block->index[0] * block->block[0];
    for (uint64_t i = first; i < first + block->block[0] && i < count; i++) x[i] += value;
    (void)data;
}
