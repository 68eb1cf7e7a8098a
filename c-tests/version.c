/* What the library says about its version. */
#include "check.h"

static void header_and_library_have_the_same_version(void) {
    char text[64];
    CHECK_EQ(tgpu_version(), TGPU_VERSION);
    CHECK_EQ(tgpu_version(), TGPU_VERSION_MAJOR * 1000000 + TGPU_VERSION_MINOR * 1000 + TGPU_VERSION_PATCH);
    CHECK_EQ(tgpu_abi_version(), TGPU_ABI_VERSION);
    snprintf(text, sizeof text, "%d.%d.%d", TGPU_VERSION_MAJOR, TGPU_VERSION_MINOR, TGPU_VERSION_PATCH);
    if (strcmp(tgpu_version_string(), text) != 0) FAIL("the version is \"%s\", must be \"%s\"", tgpu_version_string(), text);
}

static void the_version_text_stays_where_it_is(void) {
    CHECK_SAME(tgpu_version_string(), tgpu_version_string());
}

static void asking_for_the_version_starts_nothing(void) {
    CHECK_EQ(thread_count(), 1);
}

int main(int argc, char **argv) {
    begin(argc, argv);
    RUN(header_and_library_have_the_same_version);
    RUN(the_version_text_stays_where_it_is);
    RUN(asking_for_the_version_starts_nothing);
    return end();
}
