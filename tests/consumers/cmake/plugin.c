/* A plugin with a copy of the library inside. It exports these three functions and nothing else. */
#include "plugin.h"

tgpu_status plugin_choose(tgpu_device d, tgpu_stream *out) {
    tgpu_status status = tgpu_device_set(d);
    return status ? status : tgpu_stream_create(NULL, out);
}

tgpu_status plugin_query(tgpu_stream s) {
    return tgpu_stream_query(s);
}

tgpu_status plugin_device(tgpu_device *out) {
    return tgpu_device_get(out);
}
