/* Another library of the same program: it asks what is current, and uses a stream that is not its own. */
#include <taskgpu.h>

tgpu_status right_use(tgpu_stream s, tgpu_device *out);
tgpu_status right_use(tgpu_stream s, tgpu_device *out) {
    tgpu_status status = tgpu_stream_synchronize(s);
    if (status == TGPU_OK) status = tgpu_stream_destroy(s);
    return status ? status : tgpu_device_get(out);
}
