/* One library of a program: it chooses the device and makes a stream. */
#include <taskgpu.h>

tgpu_status left_choose(tgpu_device d, tgpu_stream *out);
tgpu_status left_choose(tgpu_device d, tgpu_stream *out) {
    tgpu_status status = tgpu_device_set(d);
    return status ? status : tgpu_stream_create(NULL, out);
}
