/* Between the plugin and the program that loads it. */
#include <taskgpu.h>

tgpu_status plugin_choose(tgpu_device d, tgpu_stream *out);
tgpu_status plugin_query(tgpu_stream s);
tgpu_status plugin_device(tgpu_device *out);
