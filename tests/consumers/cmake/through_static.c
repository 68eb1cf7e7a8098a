/* Links a static library that is linked with the archive. */
#include "check.h"
#include <stdint.h>

typedef struct tgpu_stream_s stream;
int32_t left_choose(int32_t d, stream **out);

int main(void) {
    stream *s = NULL;
    CHECK(left_choose(3, &s) == 0 && s);
    return 0;
}
