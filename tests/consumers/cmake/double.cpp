// Doubles numbers on a device, with the C++ layer.
#include "check.h"
#include <taskgpu.hpp>

static void twice(const taskgpu::HostBlock &b, float *x) {
    for (unsigned i = 0; i < b.block[0]; i++) x[b.index[0] * b.block[0] + i] *= 2;
}

int main() {
    float host[1024] = {1, 2, 3};
    const auto kernel = taskgpu::Kernel::from_host<twice>();
    taskgpu::Buffer<float> x(1024);
    taskgpu::sync([&] {
        x.copy_from(host, 1024);
        kernel.launch({8, 128}, x.data());
        x.copy_to(host, 1024);
    });
    CHECK(host[0] == 2 && host[1] == 4 && host[2] == 6 && host[3] == 0);
}
