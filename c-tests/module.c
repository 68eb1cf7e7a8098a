/* Modules: ready code and source, what is refused, and what a compiler says. */
#include "calls.h"
#include "structs.h"
#include "work.h"

static const char SOURCE[] =
    "extern \"C\" __global__ void scale(float *x, float by, int n) {\n"
    "    int i = blockIdx.x * blockDim.x + threadIdx.x;\n"
    "    if (i < n) x[i] *= by;\n"
    "}\n";

static void a_kernel_from_source_runs(void) {
    enum { N = 1000 };
    float host[N], by = 3;
    int n = N;
    void *x = NULL, *args[3] = {&x, &by, &n};
    tgpu_module m = NULL;
    tgpu_kernel k = NULL;
    tgpu_launch_config config = TGPU_LAUNCH_CONFIG_INIT;
    for (int i = 0; i < N; i++) host[i] = (float)i;
    CHECK_OK(tgpu_module_compile(SOURCE, NULL, &m));
    CHECK_OK(tgpu_kernel_get(m, "scale", &k));
    CHECK_OK(tgpu_module_destroy(m)); /* the kernel goes on */
    CHECK_OK(tgpu_malloc(sizeof host, &x));
    CHECK_OK(tgpu_memcpy(x, host, sizeof host, NULL));
    config.grid[0] = 8, config.block[0] = 128;
    CHECK_OK(tgpu_launch(k, &config, args));
    CHECK_OK(tgpu_memcpy(host, x, sizeof host, NULL));
    CHECK_OK(tgpu_synchronize());
    for (int i = 0; i < N; i++) CHECK(host[i] == 3.0f * (float)i);
    CHECK_OK(tgpu_free(x));
    CHECK_OK(tgpu_kernel_destroy(k));
}

static void garbage_is_no_module(void) {
    struct state before = state_now();
    tgpu_module m = (tgpu_module)77;
    CHECK_REFUSED(tgpu_module_load("\177ELF", 4, &m), TGPU_ERROR_INVALID_IMAGE, "cut short", "4");
    CHECK_REFUSED(tgpu_module_load("<!doctype html><html>", 21, &m), TGPU_ERROR_INVALID_IMAGE, "HTML");
    CHECK_REFUSED(tgpu_module_load(SOURCE, sizeof SOURCE, &m), TGPU_ERROR_INVALID_IMAGE, "source");
    CHECK_SAME(m, 77);
    CHECK_STATE(before);
}

#define REFUSED_IMAGE(bytes, size, ...) CHECK_REFUSED(tgpu_module_load(bytes, size, &m), TGPU_ERROR_INVALID_IMAGE, __VA_ARGS__)
#define REFUSED_TEXT(text, ...) REFUSED_IMAGE(text, sizeof text - 1, __VA_ARGS__)

static void garbage_is_named_for_what_it_looks_like(void) {
    struct state before = state_now();
    tgpu_module m = (tgpu_module)77;
    static const unsigned char zeros[4096];
    unsigned char noise[10000];
    for (size_t i = 0; i < sizeof noise; i++) noise[i] = (unsigned char)((i + 77) * 2654435761u >> 11);
    noise[0] = 0x9c, noise[1] = 0x02, noise[2] = 0xf7;
    REFUSED_IMAGE(noise, sizeof noise, "10000 bytes that begin with 9c 02 f7");
    REFUSED_IMAGE(noise, 1, "1 bytes that begin with 9c");
    REFUSED_IMAGE(zeros, sizeof zeros, "4096 bytes that begin with 00 00");
    REFUSED_TEXT("<!DOCTYPE html>\n<html><title>404 Not Found</title></html>", "HTML", "download");
    REFUSED_TEXT("\r\n <HTML>", "HTML");
    REFUSED_TEXT("version https://git-lfs.github.com/spec/v1\noid sha256:0\n", "Git LFS");
    REFUSED_TEXT("No such object\nin this store\n", "text", "begins with", "No such object");
    REFUSED_TEXT("extern \"C\" __global__ void k() {}\n", "source", "compiled");
    REFUSED_TEXT("PK\3\4\24\0\0\0", "zip");
    REFUSED_TEXT("\37\213\10\0\0\0", "gzip");
    REFUSED_TEXT("\50\265\57\375\4\0", "zstd");
    REFUSED_TEXT("!<arch>\nmodule.o/", "static library");
    REFUSED_TEXT("BC\300\336\65\24\0\0", "LLVM bitcode");
    REFUSED_TEXT("MZ\220\0\3\0", "Windows");
    /* For other devices; each device loads its own: CUDA the PTX, the last three only if they are whole. */
    if (!is_of(0, "cuda")) REFUSED_TEXT("//\n.version 7.0\n.target sm_70\n.address_size 64\n", "PTX", "NVIDIA");
    REFUSED_TEXT("\120\355\125\272\1\0\20\0\144\0\0\0\0\0\0\0", "fatbin");
    REFUSED_TEXT("__CLANG_OFFLOAD_BUNDLE__\1\0\0\0\0\0\0\0", "offload bundle");
    REFUSED_TEXT("CCOB\2\0\1\0\377\0\0\0\0\0\0\0", "offload bundle");
    CHECK_SAME(m, 77);
    CHECK_STATE(before);
}

/* The header of an ELF file: 64 bits, little-endian, of this type and for this machine, with nothing behind it. */
static void elf_header(unsigned char header[64], unsigned char type, unsigned char machine) {
    memset(header, 0, 64);
    memcpy(header, "\177ELF\2\1\1", 7);
    header[16] = type, header[18] = machine, header[20] = 1, header[52] = 64;
}

static void code_for_other_machines_is_named(void) {
    static const struct {
        unsigned char machine;
        const char *what;
    } machines[] = {{3, "32-bit x86"}, {62, "x86-64"}, {183, "Arm"}, {190, "CUDA devices"}, {224, "AMD GPUs"}, {243, "RISC-V"}, {8, "machine 8"}};
    struct state before = state_now();
    tgpu_module m = (tgpu_module)77;
    unsigned char header[64];
    tgpu_device_info device = TGPU_DEVICE_INFO_INIT;
    CHECK_OK(tgpu_device_info_get(device_now(), &device));
    const int own = strcmp(device.backend, "hip") == 0    ? 224
                    : strcmp(device.backend, "cuda") == 0 ? 190
                    : strcmp(device.arch, "aarch64") == 0 ? 183
                    : strcmp(device.arch, "riscv64") == 0 ? 243
                                                          : 62;
    for (size_t i = 0; i < sizeof machines / sizeof *machines; i++) {
        if (machines[i].machine == own) continue;
        elf_header(header, 3, machines[i].machine);
        REFUSED_IMAGE(header, sizeof header, "ELF file for", machines[i].what);
    }
    header[4] = 1;
    REFUSED_IMAGE(header, sizeof header, "64-bit");
    header[4] = 2, header[5] = 2;
    REFUSED_IMAGE(header, sizeof header, "little-endian");
    CHECK_SAME(m, 77);
    CHECK_STATE(before);
}

/* Code for this machine's processor: this program itself, which is whole and no module, and parts of it. */
static void a_program_is_no_module(void) {
    struct state before = state_now();
    tgpu_device_info device = TGPU_DEVICE_INFO_INIT;
    tgpu_module m = (tgpu_module)77;
    int f = open("/proc/self/exe", O_RDONLY);
    off_t end = lseek(f, 0, SEEK_END);
    CHECK(f >= 0 && end > 1000);
    const size_t size = (size_t)end;
    char *file = mmap(NULL, size, PROT_READ, MAP_PRIVATE, f, 0);
    CHECK(file != MAP_FAILED);
    CHECK_OK(tgpu_device_info_get(device_now(), &device));
    int host = strcmp(device.backend, "host") == 0;
    const char *other = strcmp(device.backend, "cuda") == 0 ? "not for CUDA devices" : "not for AMD GPUs";
    REFUSED_IMAGE(file, size, host ? "taskgpu_host_image" : other);
    const size_t cuts[] = {4, 5, 16, 20, 63, 64, 100, size / 2, size - 1};
    for (size_t i = 0; i < sizeof cuts / sizeof *cuts; i++)
        REFUSED_IMAGE(file, cuts[i], host || cuts[i] < 20 ? "cut short" : other);
    munmap(file, size);
    close(f);
    CHECK_SAME(m, 77);
    CHECK_STATE(before);
}

static void a_compiler_speaks_of_the_users_file_and_line(void) {
    struct state before = state_now();
    tgpu_compile_options options = TGPU_COMPILE_OPTIONS_INIT;
    tgpu_module m = (tgpu_module)77;
    options.name = "wrong.hip";
    CHECK_REFUSED(tgpu_module_compile("\n\nint x = nowhere;\n", &options, &m), TGPU_ERROR_COMPILE_FAILED, "wrong.hip", "nowhere", "3");
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
    CHECK_REFUSED(tgpu_module_load("image", (size_t)1 << 60, &m), TGPU_ERROR_OUT_OF_MEMORY, TEXT((size_t)1 << 60));
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
    tgpu_status status = tgpu_module_compile("#error reached the compiler\n", options, &m);
    CHECK_SAME(m, 77);
    return status;
}

static void bad_compile_options_are_refused(void) {
    const char *const fine[] = {"-DM=3", "-DN=4"}, *const hole[] = {"-DM=3", NULL}, *const no_text[] = {"\xff"};
    tgpu_compile_options good = TGPU_COMPILE_OPTIONS_INIT, o;
    struct state before = state_now();
    good.name = "source.hip";
    good.options = good.name_expressions = fine;
    good.option_count = good.name_expression_count = 2;
    CHECK_STATUS(compile_with(&good), TGPU_ERROR_COMPILE_FAILED); /* nothing wrong with these */
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
    return status == TGPU_ERROR_COMPILE_FAILED ? TGPU_OK : status; /* got past the options */
}

static void compile_options_take_every_struct_size(void) {
    tgpu_compile_options options = TGPU_COMPILE_OPTIONS_INIT;
    check_input_struct(compile_with_struct, &options, sizeof options);
}

int main(int argc, char **argv) {
    begin(argc, argv);
    RUN(a_kernel_from_source_runs);
    RUN(garbage_is_no_module);
    RUN(garbage_is_named_for_what_it_looks_like);
    RUN(code_for_other_machines_is_named);
    RUN(a_program_is_no_module);
    RUN(a_compiler_speaks_of_the_users_file_and_line);
    RUN(module_calls_refuse_null);
    RUN(impossible_sizes_and_texts_are_refused);
    RUN(what_is_no_module_is_answered);
    RUN(bad_compile_options_are_refused);
    RUN(compile_options_take_every_struct_size);
    return end();
}
