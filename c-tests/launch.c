/* Launches: shapes, arguments, where they run, and what is refused before anything runs. */
#include "calls.h"
#include "structs.h"
#include "work.h"
#include <setjmp.h>

/* ---- what a block sees */

enum { CELLS = 4096 };

struct seen {
    atomic_int cells[CELLS];
    atomic_int wrong;
    uint32_t grid[3], block[3];
    uint64_t shared_bytes;
    int device;
};

static void see(const tgpu_host_block *b, void *const *args, void *data) {
    struct seen *seen = *(struct seen *const *)args[0];
    (void)data;
    for (int i = 0; i < 3; i++)
        if (b->index[i] >= seen->grid[i] || b->grid[i] != seen->grid[i] || b->block[i] != seen->block[i]) seen->wrong++;
    if (b->device != seen->device || b->shared_bytes != seen->shared_bytes) seen->wrong++;
    if ((b->shared != NULL) != (seen->shared_bytes != 0)) seen->wrong++;
    if (b->shared) {
        unsigned char *shared = b->shared, mark = (unsigned char)(b->index[0] + 1);
        if ((uintptr_t)shared % 64 != 0) seen->wrong++;
        memset(shared, mark, b->shared_bytes);
        for (volatile int i = 0; i < 2000; i++) {}
        for (uint64_t i = 0; i < b->shared_bytes; i++) /* nobody else writes here */
            if (shared[i] != mark) seen->wrong++;
    }
    seen->cells[b->index[0] + seen->grid[0] * (b->index[1] + seen->grid[1] * b->index[2])]++;
}

static void F37_every_block_runs_once_on_the_streams_device_and_knows_its_place(void) {
    static const uint32_t shapes[][6] = {
        {1, 1, 1, 1, 1, 1}, {7, 1, 1, 64, 1, 1}, {1, 9, 1, 8, 8, 1}, {1, 1, 11, 4, 4, 4}, {5, 6, 7, 2, 3, 4}, {4096, 1, 1, 1, 1, 1}, {16, 16, 16, 1, 1, 1}};
    static struct seen seen;
    void *pointer = &seen, *args[1] = {&pointer};
    tgpu_kernel k = kernel_of(see, 1, (const size_t[]){sizeof pointer});
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
        for (tgpu_device d = 0; d < 2; d++) {
            tgpu_launch_config config = TGPU_LAUNCH_CONFIG_INIT;
            tgpu_stream s = stream_on(d);
            memset(&seen, 0, sizeof seen);
            memcpy(seen.grid, shapes[i], sizeof seen.grid);
            memcpy(seen.block, shapes[i] + 3, sizeof seen.block);
            memcpy(config.grid, seen.grid, sizeof seen.grid);
            memcpy(config.block, seen.block, sizeof seen.block);
            seen.device = d;
            seen.shared_bytes = config.shared_bytes = d ? 777 : 0;
            config.stream = s;
            CHECK_OK(tgpu_launch(k, &config, args));
            CHECK_OK(tgpu_stream_synchronize(s));
            CHECK_EQ(seen.wrong, 0);
            uint32_t blocks = seen.grid[0] * seen.grid[1] * seen.grid[2];
            for (uint32_t c = 0; c < CELLS; c++) CHECK_EQ(seen.cells[c], c < blocks);
            CHECK_OK(tgpu_stream_destroy(s));
        }
    CHECK_OK(tgpu_kernel_destroy(k));
}

static void a_block_may_have_all_the_shared_memory_there_is(void) {
    static struct seen seen;
    void *pointer = &seen, *args[1] = {&pointer};
    tgpu_device_info device = TGPU_DEVICE_INFO_INIT;
    tgpu_launch_config config = TGPU_LAUNCH_CONFIG_INIT;
    tgpu_kernel k = kernel_of(see, 1, (const size_t[]){sizeof pointer});
    CHECK_OK(tgpu_device_info_get(device_now(), &device));
    memset(&seen, 0, sizeof seen);
    seen.shared_bytes = config.shared_bytes = device.max_shared_per_block;
    for (int i = 0; i < 3; i++) seen.grid[i] = seen.block[i] = 1;
    seen.grid[0] = config.grid[0] = 100;
    CHECK_OK(tgpu_launch(k, &config, args));
    CHECK_OK(tgpu_synchronize());
    CHECK_EQ(seen.wrong, 0);
    CHECK_OK(tgpu_kernel_destroy(k));
}

/* ---- arguments */

struct odd {
    char bytes[3];
};

static struct {
    char a;
    struct odd b;
    double c;
    char d[16];
    int calls;
} got;

static void take_arguments(const tgpu_host_block *b, void *const *args, void *data) {
    (void)b, (void)data;
    memcpy(&got.a, args[0], sizeof got.a);
    memcpy(&got.b, args[1], sizeof got.b);
    got.c = *(const double *)args[2]; /* aligned for what it is */
    memcpy(got.d, args[3], sizeof got.d);
    if ((uintptr_t)args[2] % _Alignof(double) != 0) got.calls += 100;
    got.calls++;
}

static void arguments_are_copied_before_the_launch_returns(void) {
    struct gate gate = GATE;
    size_t sizes[4] = {1, 3, 8, 16};
    tgpu_kernel k = kernel_of(take_arguments, 4, sizes);
    memset(sizes, 0xff, sizeof sizes); /* copied as well */
    hold(NULL, &gate);
    {
        tgpu_launch_config *config = malloc(sizeof *config);
        char *a = malloc(1), *d = malloc(16);
        struct odd *b = malloc(sizeof *b);
        double *c = malloc(sizeof *c);
        void **args = malloc(4 * sizeof *args);
        *config = (tgpu_launch_config)TGPU_LAUNCH_CONFIG_INIT;
        *a = 'a', memcpy(b, "bcd", 3), *c = 2.5, memcpy(d, "0123456789abcdef", 16);
        args[0] = a, args[1] = b, args[2] = c, args[3] = d;
        CHECK_OK(tgpu_launch(k, config, args));
        *a = 0, memset(b, 0, sizeof *b), *c = 0, memset(d, 0, 16), memset(args, 0, 4 * sizeof *args), memset(config, 0xff, sizeof *config);
        free(config), free(a), free(b), free(c), free(d), free(args);
    }
    CHECK_OK(tgpu_kernel_destroy(k));
    open_gate(&gate);
    CHECK_OK(tgpu_synchronize());
    CHECK_EQ(got.calls, 1);
    CHECK_EQ(got.a, 'a');
    CHECK(memcmp(got.b.bytes, "bcd", 3) == 0);
    CHECK(got.c == 2.5);
    CHECK(memcmp(got.d, "0123456789abcdef", 16) == 0);
}

/* A module from source tells what its kernels' arguments need. */
static void arguments_of_kernels_from_source_are_copied_too(void) {
    static const char source[] =
        "struct odd { char bytes[3]; };\n"
        "extern \"C\" __global__ void keep(int *out, char a, odd b, double c, float4 d) {\n"
        "    out[0] = a; out[1] = b.bytes[2]; out[2] = (int)c; out[3] = (int)d.w;\n"
        "}\n";
    struct gate gate = GATE;
    tgpu_launch_config config = TGPU_LAUNCH_CONFIG_INIT;
    tgpu_module m = NULL;
    tgpu_kernel k = NULL;
    int seen[4] = {0}, *memory = NULL;
    CHECK_OK(tgpu_module_compile(source, NULL, &m));
    CHECK_OK(tgpu_kernel_get(m, "keep", &k));
    CHECK_OK(tgpu_malloc(sizeof seen, (void **)&memory));
    hold(NULL, &gate);
    int *out = memory;
    char a = 'a';
    struct odd b = {"bcd"};
    double c = 2.5;
    _Alignas(16) float d[4] = {1, 2, 3, 4};
    CHECK_OK(tgpu_launch(k, &config, TGPU_ARGS(&out, &a, &b, &c, d)));
    out = NULL, a = 0, memset(&b, 0, sizeof b), c = 0, memset(d, 0, sizeof d);
    CHECK_OK(tgpu_kernel_destroy(k));
    CHECK_OK(tgpu_module_destroy(m)); /* what is queued goes on */
    open_gate(&gate);
    CHECK_OK(tgpu_memcpy(seen, memory, sizeof seen, NULL));
    CHECK_OK(tgpu_synchronize());
    CHECK_EQ(seen[0], 'a'), CHECK_EQ(seen[1], 'd'), CHECK_EQ(seen[2], 2), CHECK_EQ(seen[3], 4);
    CHECK_OK(tgpu_free(memory));
}

static int64_t sum_got;

static void sum_arguments(const tgpu_host_block *b, void *const *args, void *data) {
    (void)b, (void)data;
    for (int i = 0; i < 256; i++) sum_got += *(const int64_t *)args[i];
}

static void a_kernel_may_have_256_arguments(void) {
    tgpu_launch_config config = TGPU_LAUNCH_CONFIG_INIT;
    size_t sizes[256];
    int64_t values[256];
    void *args[256];
    for (int i = 0; i < 256; i++) sizes[i] = sizeof values[i], values[i] = i * i, args[i] = &values[i];
    tgpu_kernel k = kernel_of(sum_arguments, 256, sizes);
    CHECK_OK(tgpu_launch(k, &config, args));
    CHECK_OK(tgpu_synchronize());
    CHECK_EQ(sum_got, 255 * 256 * 511 / 6);
    CHECK_OK(tgpu_kernel_destroy(k));
}

/* ---- not inside the call */

static void note_thread(const tgpu_host_block *b, void *const *args, void *data) {
    (void)b, (void)data;
    **(pthread_t *const *)args[0] = pthread_self();
}

static void nothing_runs_on_the_thread_that_launches(void) {
    for (int i = 0; i < 200; i++) {
        pthread_t thread = pthread_self();
        queue(NULL, note_thread, &thread);
        CHECK_OK(tgpu_synchronize());
        CHECK(!pthread_equal(thread, pthread_self()));
    }
}

static void many_launches_may_be_queued_ahead(void) {
    struct gate gate = GATE;
    static struct notes notes;
    hold(NULL, &gate);
    for (int i = 0; i < NOTES; i++) note(NULL, &notes, i); /* the gate is closed: none of them runs, none of them blocks */
    CHECK_EQ(notes.count, 0);
    open_gate(&gate);
    CHECK_OK(tgpu_synchronize());
    for (int i = 0; i < NOTES; i++) CHECK_EQ(notes.values[i], i);
}

/* ---- refused shapes */

static tgpu_device_info limits;

static void check_refused_shape(tgpu_launch_config config, const char *word, uint64_t value, uint64_t limit) {
    tgpu_kernel k = kernel_of(never_run, 0, NULL);
    struct state before = state_now();
    CHECK_REFUSED(tgpu_launch(k, &config, NULL), TGPU_ERROR_INVALID_ARGUMENT, word, TEXT(value), TEXT(limit));
    CHECK_STATE(before);
    CHECK_OK(tgpu_synchronize()); /* and nothing has run: never_run would say so */
    CHECK_OK(tgpu_kernel_destroy(k));
}

static void zero_dimensions_are_refused(void) {
    for (int i = 0; i < 3; i++) {
        tgpu_launch_config grid = TGPU_LAUNCH_CONFIG_INIT, block = TGPU_LAUNCH_CONFIG_INIT;
        grid.grid[i] = 0;
        check_refused_shape(grid, "grid", 0, limits.max_grid[i]);
        block.block[i] = 0;
        check_refused_shape(block, "block", 0, limits.max_block[i]);
    }
}

static void F36_dimensions_above_the_limit_are_refused_each(void) {
    for (int i = 0; i < 3; i++) {
        const uint32_t over_grid[] = {limits.max_grid[i] + 1, UINT32_MAX}, over_block[] = {limits.max_block[i] + 1, UINT32_MAX};
        for (int j = 0; j < 2; j++) {
            tgpu_launch_config grid = TGPU_LAUNCH_CONFIG_INIT, block = TGPU_LAUNCH_CONFIG_INIT;
            grid.grid[i] = over_grid[j];
            check_refused_shape(grid, "grid", over_grid[j], limits.max_grid[i]);
            block.block[i] = over_block[j];
            check_refused_shape(block, "block", over_block[j], limits.max_block[i]);
        }
    }
}

static void F36_the_product_of_the_block_is_checked_too(void) {
    tgpu_launch_config config = TGPU_LAUNCH_CONFIG_INIT;
    uint64_t product = 1;
    for (int i = 0; i < 3; i++) config.block[i] = limits.max_block[i], product *= limits.max_block[i];
    check_refused_shape(config, "threads", product, limits.max_threads_per_block);
    config.block[2] = 1; /* two dimensions, each within its limit */
    check_refused_shape(config, "threads", (uint64_t)config.block[0] * config.block[1], limits.max_threads_per_block);
    config.block[0] = limits.max_threads_per_block / 2 + 1, config.block[1] = 2;
    check_refused_shape(config, "threads", (uint64_t)config.block[0] * 2, limits.max_threads_per_block);
    for (int i = 0; i < 3; i++) config.block[i] = UINT32_MAX; /* whose product overflows 64 bits */
    check_refused_shape(config, "block", UINT32_MAX, limits.max_block[0]);
    for (int i = 0; i < 3; i++) config.block[i] = UINT32_C(1) << 16, config.grid[i] = 1; /* whose product is 0 modulo 2^32 */
    check_refused_shape(config, "block", 1 << 16, limits.max_block[0]);
}

static void shared_memory_above_the_limit_is_refused(void) {
    const uint64_t over[] = {limits.max_shared_per_block + 1, UINT64_C(1) << 40, UINT64_MAX};
    for (int i = 0; i < 3; i++) {
        tgpu_launch_config config = TGPU_LAUNCH_CONFIG_INIT;
        config.shared_bytes = over[i];
        check_refused_shape(config, "shared", over[i], limits.max_shared_per_block);
    }
}

static void the_largest_block_is_fine(void) {
    struct notes notes = {0};
    struct note_args_ a = {&notes, 1, 0};
    void *args[1] = {&a};
    tgpu_launch_config config = TGPU_LAUNCH_CONFIG_INIT;
    tgpu_kernel k = kernel_of(note_kernel_, 1, (const size_t[]){sizeof a});
    config.block[0] = limits.max_threads_per_block;
    config.shared_bytes = limits.max_shared_per_block;
    CHECK_OK(tgpu_launch(k, &config, args));
    CHECK_OK(tgpu_synchronize());
    CHECK_NOTES(&notes, 1);
    CHECK_OK(tgpu_kernel_destroy(k));
}

static void F37_the_limits_are_those_of_the_streams_device(void) {
    tgpu_launch_config config = TGPU_LAUNCH_CONFIG_INIT;
    tgpu_kernel k = kernel_of(never_run, 0, NULL);
    tgpu_error_info info = TGPU_ERROR_INFO_INIT;
    config.stream = stream_on(3);
    config.grid[1] = 0;
    CHECK_STATUS(tgpu_launch(k, &config, NULL), TGPU_ERROR_INVALID_ARGUMENT);
    CHECK_OK(tgpu_error_info_get(&info));
    CHECK_EQ(info.device, 3);
    CHECK_OK(tgpu_stream_destroy(config.stream));
    CHECK_OK(tgpu_kernel_destroy(k));
}

/* ---- other bad input */

static void null_where_something_is_needed_is_refused(void) {
    tgpu_launch_config config = TGPU_LAUNCH_CONFIG_INIT;
    tgpu_kernel with = kernel_of(never_run, 1, (const size_t[]){4}), without = kernel_of(never_run, 0, NULL);
    struct state before = state_now();
    CHECK_REFUSED(tgpu_launch(without, NULL, NULL), TGPU_ERROR_INVALID_ARGUMENT, "NULL");
    CHECK_REFUSED(tgpu_launch(with, &config, NULL), TGPU_ERROR_INVALID_ARGUMENT, "NULL");
    CHECK_REFUSED(tgpu_launch(with, &config, (void *const[]){NULL}), TGPU_ERROR_INVALID_ARGUMENT, "NULL");
    CHECK_REFUSED(tgpu_launch(NULL, &config, NULL), TGPU_ERROR_INVALID_HANDLE, "NULL");
    CHECK_STATE(before);
    CHECK_OK(tgpu_synchronize());
    CHECK_OK(tgpu_kernel_destroy(with));
    CHECK_OK(tgpu_kernel_destroy(without));
}

static void do_nothing(const tgpu_host_block *block, void *const *args, void *data) {
    (void)block, (void)args, (void)data;
}

static tgpu_kernel launched;

static tgpu_status launch_with(void *config) {
    return tgpu_launch(launched, config, NULL);
}

static void launch_config_takes_every_struct_size(void) {
    tgpu_launch_config config = TGPU_LAUNCH_CONFIG_INIT;
    launched = kernel_of(do_nothing, 0, NULL);
    config.shared_bytes = 100;
    check_input_struct(launch_with, &config, sizeof config);
    CHECK_OK(tgpu_synchronize());
    CHECK_OK(tgpu_kernel_destroy(launched));
}

/* ---- inside a kernel */

static struct objects live;
static atomic_int inside;

static void make_every_call(const tgpu_host_block *b, void *const *args, void *data) {
    (void)b, (void)args, (void)data;
    check_every_call_answers(TGPU_ERROR_IN_CALLBACK, "kernel", &live);
    CHECK_STATUS(tgpu_free(live.freed), TGPU_ERROR_IN_CALLBACK);
    check_what_needs_no_runtime();
    check_cleanup_is_ok(&live);
    inside++;
}

static void F29_inside_a_kernel_calls_are_refused_and_cleaning_up_is_fine(void) {
    tgpu_launch_config config = TGPU_LAUNCH_CONFIG_INIT;
    tgpu_kernel k = kernel_of(make_every_call, 0, NULL);
    live = make_objects();
    struct state before = state_now();
    CHECK_OK(tgpu_launch(k, &config, NULL));
    CHECK_OK(tgpu_synchronize());
    CHECK_EQ(inside, 1);
    CHECK_STATE(before);
    CHECK_OK(tgpu_free(live.freed));
    CHECK_OK(tgpu_host_unregister(live.registered));
    free(live.registered);
    CHECK_OK(tgpu_kernel_destroy(k));
}

static sigjmp_buf fault_over;
static volatile sig_atomic_t faults;

static void note_fault(int signal_number) {
    faults += signal_number == SIGSEGV;
    siglongjmp(fault_over, 1); /* back into the kernel, which goes on */
}

static void fault(const tgpu_host_block *block, void *const *args, void *data) {
    (void)block, (void)args;
    if (sigsetjmp(fault_over, 1) == 0) *(volatile int *)data = 1;
}

static void a_handler_of_the_program_sees_a_kernels_fault(void) {
    tgpu_kernel k = NULL;
    tgpu_launch_config config = TGPU_LAUNCH_CONFIG_INIT;
    void *guarded = mmap(NULL, 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(guarded != MAP_FAILED);
    CHECK_OK(tgpu_device_set(host_device()));
    signal(SIGSEGV, note_fault);
    CHECK_OK(tgpu_kernel_from_host_fn(fault, guarded, 0, NULL, &k));
    CHECK_OK(tgpu_launch(k, &config, NULL));
    CHECK_OK(tgpu_synchronize());
    CHECK_EQ(faults, 1);
    CHECK_OK(tgpu_kernel_destroy(k));
}

int main(int argc, char **argv) {
    begin(argc, argv);
    limits = (tgpu_device_info)TGPU_DEVICE_INFO_INIT;
    if (!child_) CHECK_OK(tgpu_device_set(host_device()));
    if (!child_) CHECK_OK(tgpu_device_info_get(host_device(), &limits));
    RUN(F37_every_block_runs_once_on_the_streams_device_and_knows_its_place);
    RUN(a_block_may_have_all_the_shared_memory_there_is);
    RUN(arguments_are_copied_before_the_launch_returns);
    RUN(arguments_of_kernels_from_source_are_copied_too);
    RUN(a_kernel_may_have_256_arguments);
    RUN(nothing_runs_on_the_thread_that_launches);
    RUN(many_launches_may_be_queued_ahead);
    RUN(zero_dimensions_are_refused);
    RUN(F36_dimensions_above_the_limit_are_refused_each);
    RUN(F36_the_product_of_the_block_is_checked_too);
    RUN(shared_memory_above_the_limit_is_refused);
    RUN(the_largest_block_is_fine);
    RUN(F37_the_limits_are_those_of_the_streams_device);
    RUN(null_where_something_is_needed_is_refused);
    RUN(launch_config_takes_every_struct_size);
    RUN_IN_CHILD(a_handler_of_the_program_sees_a_kernels_fault, AS_IT_IS);
    RUN(F29_inside_a_kernel_calls_are_refused_and_cleaning_up_is_fine);
    return end();
}
