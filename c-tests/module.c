/* Modules. Host devices take none yet: every call says so, and checks its arguments first. */
#include "calls.h"
#include "structs.h"

static void host_devices_say_that_they_take_no_modules(void) {
    struct state before = state_now();
    tgpu_module m = (tgpu_module)77;
    CHECK_REFUSED(tgpu_module_load("\177ELF", 4, &m), TGPU_ERROR_NOT_SUPPORTED, "host device");
    CHECK_REFUSED(tgpu_module_compile("__global__ void k() {}", NULL, &m), TGPU_ERROR_NOT_SUPPORTED, "host device");
    CHECK_SAME(m, 77);
    CHECK_STATE(before);
}

static void module_calls_refuse_null(void) {
    tgpu_module m = (tgpu_module)77;
    tgpu_kernel k = (tgpu_kernel)77;
    void *p = (void *)77;
    uint64_t bytes = 77;
    struct state before = state_now();
#define REFUSED_NULL(call) CHECK_REFUSED(call, TGPU_ERROR_INVALID_ARGUMENT, "NULL")
    REFUSED_NULL(tgpu_module_load(NULL, 10, &m));
    REFUSED_NULL(tgpu_module_load("image", 5, NULL));
    REFUSED_NULL(tgpu_module_compile(NULL, NULL, &m));
    REFUSED_NULL(tgpu_module_compile("source", NULL, NULL));
    REFUSED_NULL(tgpu_module_global_get((tgpu_module)0xdead, 0, NULL, &p, &bytes));
    REFUSED_NULL(tgpu_module_global_get((tgpu_module)0xdead, 0, "name", NULL, &bytes));
    REFUSED_NULL(tgpu_module_global_get((tgpu_module)0xdead, 0, "name", &p, NULL));
    REFUSED_NULL(tgpu_kernel_get((tgpu_module)0xdead, NULL, &k));
    REFUSED_NULL(tgpu_kernel_get((tgpu_module)0xdead, "name", NULL));
    CHECK_SAME(m, 77), CHECK_SAME(k, 77), CHECK_SAME(p, 77), CHECK_EQ(bytes, 77);
    CHECK_STATE(before);
}

static void impossible_sizes_and_texts_are_refused(void) {
    tgpu_module m = (tgpu_module)77;
    struct state before = state_now();
    CHECK_REFUSED(tgpu_module_load("image", 0, &m), TGPU_ERROR_INVALID_ARGUMENT, "0");
    CHECK_REFUSED(tgpu_module_load("image", SIZE_MAX, &m), TGPU_ERROR_INVALID_ARGUMENT, TEXT(SIZE_MAX));
    CHECK_REFUSED(tgpu_module_compile("\xff\xfe", NULL, &m), TGPU_ERROR_INVALID_ARGUMENT, "UTF-8");
    CHECK_SAME(m, 77);
    CHECK_STATE(before);
}

static void what_is_no_module_is_answered(void) {
    tgpu_module const wrong[] = {NULL, (tgpu_module)0xdead, (tgpu_module)1, (tgpu_module)UINTPTR_MAX};
    struct state before = state_now();
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        tgpu_kernel k = (tgpu_kernel)77;
        void *p = (void *)77;
        uint64_t bytes = 77;
        CHECK_REFUSED(tgpu_module_prepare(wrong[i], 0), TGPU_ERROR_INVALID_HANDLE, "module");
        CHECK_REFUSED(tgpu_module_global_get(wrong[i], 0, "name", &p, &bytes), TGPU_ERROR_INVALID_HANDLE, "module");
        CHECK_REFUSED(tgpu_kernel_get(wrong[i], "name", &k), TGPU_ERROR_INVALID_HANDLE, "module");
        if (wrong[i]) CHECK_STATUS(tgpu_module_destroy(wrong[i]), TGPU_ERROR_INVALID_HANDLE);
        CHECK_SAME(k, 77), CHECK_SAME(p, 77), CHECK_EQ(bytes, 77);
    }
    CHECK_OK(tgpu_module_destroy(NULL));
    CHECK_STATE(before);
}

/* ---- options: refused before the device is asked */

static tgpu_status compile_with(const tgpu_compile_options *options) {
    tgpu_module m = (tgpu_module)77;
    tgpu_status status = tgpu_module_compile("source", options, &m);
    CHECK_SAME(m, 77);
    return status;
}

static void bad_compile_options_are_refused(void) {
    const char *const fine[] = {"-O3", "-DN=4"}, *const hole[] = {"-O3", NULL}, *const no_text[] = {"\xff"};
    tgpu_compile_options good = TGPU_COMPILE_OPTIONS_INIT, o;
    struct state before = state_now();
    good.name = "source.hip";
    good.options = good.name_expressions = fine;
    good.option_count = good.name_expression_count = 2;
    CHECK_STATUS(compile_with(&good), TGPU_ERROR_NOT_SUPPORTED); /* nothing wrong with these */
    o = good, o.options = NULL;
    CHECK_REFUSED(compile_with(&o), TGPU_ERROR_INVALID_ARGUMENT, "NULL");
    o = good, o.name_expressions = NULL;
    CHECK_REFUSED(compile_with(&o), TGPU_ERROR_INVALID_ARGUMENT, "NULL");
    o = good, o.options = hole;
    CHECK_REFUSED(compile_with(&o), TGPU_ERROR_INVALID_ARGUMENT, "NULL", "1");
    o = good, o.name_expressions = hole;
    CHECK_REFUSED(compile_with(&o), TGPU_ERROR_INVALID_ARGUMENT, "NULL", "1");
    o = good, o.option_count = 4097;
    CHECK_REFUSED(compile_with(&o), TGPU_ERROR_INVALID_ARGUMENT, "4097", "4096");
    o = good, o.name_expression_count = SIZE_MAX;
    CHECK_REFUSED(compile_with(&o), TGPU_ERROR_INVALID_ARGUMENT, TEXT(SIZE_MAX), "4096");
    o = good, o.options = no_text, o.option_count = 1;
    CHECK_REFUSED(compile_with(&o), TGPU_ERROR_INVALID_ARGUMENT, "UTF-8");
    o = good, o.name = "\xff";
    CHECK_REFUSED(compile_with(&o), TGPU_ERROR_INVALID_ARGUMENT, "UTF-8");
    CHECK_STATE(before);
}

static tgpu_status compile_with_struct(void *options) {
    tgpu_status status = compile_with(options);
    return status == TGPU_ERROR_NOT_SUPPORTED ? TGPU_OK : status; /* got past the options */
}

static void compile_options_take_every_struct_size(void) {
    tgpu_compile_options options = TGPU_COMPILE_OPTIONS_INIT;
    check_input_struct(compile_with_struct, &options, sizeof options);
}

int main(int argc, char **argv) {
    begin(argc, argv);
    RUN(host_devices_say_that_they_take_no_modules);
    RUN(module_calls_refuse_null);
    RUN(impossible_sizes_and_texts_are_refused);
    RUN(what_is_no_module_is_answered);
    RUN(bad_compile_options_are_refused);
    RUN(compile_options_take_every_struct_size);
    return end();
}
