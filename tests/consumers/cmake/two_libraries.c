/* Both libraries of this program link taskgpu: there is one state, and a handle of one is good in the other. */
#include "check.h"
#include <stdint.h>

typedef struct tgpu_stream_s stream;
int32_t left_choose(int32_t d, stream **out);
int32_t right_use(stream *s, int32_t *out);

int main(void) {
    stream *s = NULL;
    int32_t d = -1;
    CHECK(left_choose(3, &s) == 0);
    CHECK(right_use(s, &d) == 0);
    CHECK(d == 3);
    return 0;
}
