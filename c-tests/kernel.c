/* Kernels made of C functions: making them, what is known about them, and their end. */
#include "calls.h"
#include "structs.h"
#include "work.h"

static void check_data(const tgpu_host_block *block, void *const *args, void *data) {
    (void)block, (void)args;
    atomic_fetch_add((atomic_int *)data, 1);
}

static void a_kernel_gets_its_data_pointer(void) {
    tgpu_launch_config config = TGPU_LAUNCH_CONFIG_INIT;
    atomic_int calls = 0;
    tgpu_kernel k = NULL;
    CHECK_OK(tgpu_kernel_from_host_fn(check_data, &calls, 0, NULL, &k));
    config.grid[0] = 100;
    CHECK_OK(tgpu_launch(k, &config, NULL));
    CHECK_OK(tgpu_synchronize());
    CHECK_EQ(calls, 100);
    CHECK_OK(tgpu_kernel_destroy(k));
}

static void a_kernel_runs_on_every_host_device(void) {
    struct notes notes = {0};
    struct note_args_ a = {&notes, 5, 0};
    void *args[1] = {&a};
    tgpu_launch_config config = TGPU_LAUNCH_CONFIG_INIT;
    tgpu_kernel k = kernel_of(note_kernel_, 1, (const size_t[]){sizeof a});
    for (tgpu_device d = 0; d < 4; d++) {
        CHECK_OK(tgpu_device_set(d));
        CHECK_OK(tgpu_launch(k, &config, args));
        CHECK_OK(tgpu_synchronize());
        CHECK_EQ(notes.devices[d], d);
    }
    CHECK_OK(tgpu_device_set(0));
    CHECK_OK(tgpu_kernel_destroy(k));
}

static void launches_already_queued_outlive_the_kernel(void) {
    struct gate gate = GATE;
    struct notes notes = {0};
    hold(NULL, &gate);
    for (int i = 0; i < 3; i++) note(NULL, &notes, i); /* each with a kernel that is destroyed at once */
    open_gate(&gate);
    CHECK_OK(tgpu_synchronize());
    CHECK_NOTES(&notes, 0, 1, 2);
}

static void F15_a_destroyed_kernel_is_answered_and_not_followed(void) {
    tgpu_launch_config config = TGPU_LAUNCH_CONFIG_INIT;
    tgpu_kernel_info info = TGPU_KERNEL_INFO_INIT;
    uint32_t grid = 77, block = 77;
    tgpu_kernel k = kernel_of(never_run, 0, NULL);
    tgpu_kernel const wrong[] = {k, NULL, (tgpu_kernel)0xdead};
    CHECK_OK(tgpu_kernel_destroy(k));
    struct state before = state_now();
    for (int i = 0; i < 3; i++) {
        CHECK_REFUSED(tgpu_launch(wrong[i], &config, NULL), TGPU_ERROR_INVALID_HANDLE, "kernel");
        CHECK_REFUSED(tgpu_kernel_info_get(wrong[i], 0, &info), TGPU_ERROR_INVALID_HANDLE, "kernel");
        CHECK_REFUSED(tgpu_kernel_suggest(wrong[i], 1, &grid, &block), TGPU_ERROR_INVALID_HANDLE, "kernel");
        if (wrong[i]) CHECK_STATUS(tgpu_kernel_destroy(wrong[i]), TGPU_ERROR_INVALID_HANDLE);
    }
    CHECK_OK(tgpu_kernel_destroy(NULL));
    CHECK_EQ(info.max_threads_per_block, 0), CHECK_EQ(grid, 77), CHECK_EQ(block, 77);
    CHECK_STATE(before);
}

static void arguments_that_make_no_kernel_are_refused(void) {
    tgpu_kernel k = (tgpu_kernel)77;
    size_t sizes[300], large[2] = {4096, 1}, wrap[2] = {SIZE_MAX, 2}, fits[2] = {4095, 1};
    struct state before = state_now();
    for (int i = 0; i < 300; i++) sizes[i] = 1;
    CHECK_REFUSED(tgpu_kernel_from_host_fn(NULL, NULL, 0, NULL, &k), TGPU_ERROR_INVALID_ARGUMENT, "NULL");
    CHECK_REFUSED(tgpu_kernel_from_host_fn(never_run, NULL, 0, NULL, NULL), TGPU_ERROR_INVALID_ARGUMENT, "NULL");
    CHECK_REFUSED(tgpu_kernel_from_host_fn(never_run, NULL, 1, NULL, &k), TGPU_ERROR_INVALID_ARGUMENT, "NULL");
    CHECK_REFUSED(tgpu_kernel_from_host_fn(never_run, NULL, 257, sizes, &k), TGPU_ERROR_INVALID_ARGUMENT, "257", "256");
    CHECK_REFUSED(tgpu_kernel_from_host_fn(never_run, NULL, SIZE_MAX, sizes, &k), TGPU_ERROR_INVALID_ARGUMENT, TEXT(SIZE_MAX), "256");
    CHECK_REFUSED(tgpu_kernel_from_host_fn(never_run, NULL, 2, large, &k), TGPU_ERROR_INVALID_ARGUMENT, "4097", "4096");
    CHECK_REFUSED(tgpu_kernel_from_host_fn(never_run, NULL, 2, wrap, &k), TGPU_ERROR_INVALID_ARGUMENT, "4096");
    CHECK_SAME(k, 77);
    CHECK_STATE(before);
    CHECK_OK(tgpu_kernel_from_host_fn(never_run, NULL, 256, sizes, &k));
    CHECK_OK(tgpu_kernel_destroy(k));
    CHECK_OK(tgpu_kernel_from_host_fn(never_run, NULL, 2, fits, &k));
    CHECK_OK(tgpu_kernel_destroy(k));
}

static tgpu_kernel info_subject;

static tgpu_status get_kernel_info(void *out) {
    return tgpu_kernel_info_get(info_subject, 1, out);
}

static void kernel_info_takes_every_struct_size_and_agrees_with_the_device(void) {
    tgpu_kernel_info info = TGPU_KERNEL_INFO_INIT;
    tgpu_device_info device = TGPU_DEVICE_INFO_INIT;
    info_subject = kernel_of(never_run, 0, NULL);
    check_output_struct(get_kernel_info, sizeof info);
    CHECK_OK(tgpu_kernel_info_get(info_subject, 1, &info));
    CHECK_OK(tgpu_device_info_get(1, &device));
    CHECK_EQ(info.max_threads_per_block, device.max_threads_per_block);
    CHECK_EQ(info.warp_size, 1);
    CHECK_EQ(info.registers, 0);
    CHECK_EQ(info.reserved, 0);
    CHECK_OK(tgpu_kernel_destroy(info_subject));
}

static void a_suggested_shape_covers_the_items_and_can_be_launched(void) {
    const uint64_t items[] = {0, 1, 2, 255, 256, 257, 1000, 1000000, UINT64_C(1) << 31};
    tgpu_device_info device = TGPU_DEVICE_INFO_INIT;
    tgpu_kernel k = kernel_of(never_run, 0, NULL);
    uint32_t grid, block;
    CHECK_OK(tgpu_device_info_get(0, &device));
    for (size_t i = 0; i < sizeof items / sizeof *items; i++) {
        CHECK_OK(tgpu_kernel_suggest(k, items[i], &grid, &block));
        CHECK(block >= 1 && block <= device.max_block[0] && block <= device.max_threads_per_block);
        CHECK(grid >= 1 && grid <= device.max_grid[0]);
        CHECK((uint64_t)grid * block >= items[i]);
        CHECK((uint64_t)(grid - 1) * block <= items[i]); /* and no block without an item */
    }
    grid = block = 77;
    struct state before = state_now();
    CHECK_REFUSED(tgpu_kernel_suggest(k, UINT64_MAX, &grid, &block), TGPU_ERROR_INVALID_ARGUMENT, TEXT(UINT64_MAX), TEXT(device.max_grid[0]));
    CHECK_REFUSED(tgpu_kernel_suggest(k, 1, NULL, &block), TGPU_ERROR_INVALID_ARGUMENT, "NULL");
    CHECK_REFUSED(tgpu_kernel_suggest(k, 1, &grid, NULL), TGPU_ERROR_INVALID_ARGUMENT, "NULL");
    CHECK_EQ(grid, 77), CHECK_EQ(block, 77);
    CHECK_STATE(before);
    CHECK_OK(tgpu_kernel_destroy(k));
}

static void kernels_come_and_go_without_cost(void) {
    long warm = 0;
    for (int i = 0; i < 60000; i++) {
        CHECK_OK(tgpu_kernel_destroy(kernel_of(never_run, 0, NULL)));
        if (i == 20000) warm = resident_kib();
    }
    if (resident_kib() > warm + 4096) FAIL("resident memory went from %ld KiB to %ld KiB", warm, resident_kib());
}

int main(int argc, char **argv) {
    begin(argc, argv);
    if (!child_) CHECK_OK(tgpu_device_set(host_device()));
    RUN(a_kernel_gets_its_data_pointer);
    RUN(a_kernel_runs_on_every_host_device);
    RUN(launches_already_queued_outlive_the_kernel);
    RUN(F15_a_destroyed_kernel_is_answered_and_not_followed);
    RUN(arguments_that_make_no_kernel_are_refused);
    RUN(kernel_info_takes_every_struct_size_and_agrees_with_the_device);
    RUN(a_suggested_shape_covers_the_items_and_can_be_launched);
    RUN(kernels_come_and_go_without_cost);
    return end();
}
