// What local_rank.h makes of the launchers' variables. SPDX-License-Identifier: MIT OR Apache-2.0
#define _DEFAULT_SOURCE // setenv
#include "local_rank.h"
#include <stdio.h>

static int failures;

static void expect(const char *name, const char *value, int expected) {
    if (name) setenv(name, value, 1);
    const int rank = local_rank();
    if (rank != expected) {
        printf("%s=%s: %d instead of %d\n", name ? name : "nothing", value, rank, expected);
        failures++;
    }
    if (name) unsetenv(name);
}

int main(void) {
    static const char *const names[] = {"OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID", "SLURM_LOCALID",
                                        "FLUX_TASK_LOCAL_ID"};
    for (int i = 0; i < 4; i++) unsetenv(names[i]);
    expect(NULL, "", -1);
    for (int i = 0; i < 4; i++) {
        expect(names[i], "0", 0);
        expect(names[i], "12", 12);
        expect(names[i], "", -1);
        expect(names[i], "-1", -1);
        expect(names[i], "3 ", -1);
        expect(names[i], "x", -1);
        expect(names[i], "99999999999999999999", -1);
        expect(names[i], "4294967296", -1);
    }
    setenv(names[1], "nonsense", 1);
    expect(names[3], "2", 2);

    int32_t count = 0;
    tgpu_device device = -1;
    if (tgpu_device_count(&count) || device_set_by_rank(count + 1) || tgpu_device_get(&device)) return 1;
    if (device != 1 % count) printf("rank %d of %d devices: device %d\n", count + 1, count, device), failures++;
    if (device_set_by_rank(-1) || tgpu_device_get(&device) || device != 0) failures++;
    if (failures == 0) puts("2 passed, 0 failed");
    return failures != 0;
}
