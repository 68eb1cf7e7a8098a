/* Has the shared library, and loads a plugin that has a copy of its own: two states, and neither takes the other's handles. */
#include "check.h"
#include "plugin.h"
#include <dlfcn.h>

static void *look_up(void *plugin, const char *name) {
    void *symbol = dlsym(plugin, name);
    if (!symbol) fprintf(stderr, "%s\n", dlerror());
    CHECK(symbol);
    return symbol;
}

int main(int argc, char **argv) {
    tgpu_status (*choose)(tgpu_device, tgpu_stream *), (*query)(tgpu_stream), (*device)(tgpu_device *);
    tgpu_stream mine = NULL, theirs = NULL;
    tgpu_device d = -1;
    CHECK(argc == 2);
    /* Global: what the plugin exports could be taken for ours, and ours for what it needs. */
    void *plugin = dlopen(argv[1], RTLD_NOW | RTLD_GLOBAL);
    if (!plugin) fprintf(stderr, "%s\n", dlerror());
    CHECK(plugin);
    *(void **)&choose = look_up(plugin, "plugin_choose");
    *(void **)&query = look_up(plugin, "plugin_query");
    *(void **)&device = look_up(plugin, "plugin_device");

    CHECK(tgpu_device_set(1) == TGPU_OK && tgpu_stream_create(NULL, &mine) == TGPU_OK);
    CHECK(choose(2, &theirs) == TGPU_OK);
    CHECK(tgpu_device_get(&d) == TGPU_OK && d == 1);
    CHECK(device(&d) == TGPU_OK && d == 2);
    CHECK(tgpu_stream_query(theirs) == TGPU_ERROR_INVALID_HANDLE && query(mine) == TGPU_ERROR_INVALID_HANDLE);
    CHECK(tgpu_stream_destroy(theirs) == TGPU_ERROR_INVALID_HANDLE);
    CHECK(tgpu_stream_synchronize(mine) == TGPU_OK && query(theirs) == TGPU_OK);
    return 0;
}
