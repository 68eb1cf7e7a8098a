/* AMD's own runtime: how it is found, and what is said where it sees no device. The library of Debian's package
 * libamdhip64-5 is enough, on a machine without a GPU; where it is not installed, only the first test runs. */
#include "work.h"
#include <dlfcn.h>
#include <sys/stat.h>

/* The library, and a folder of this process's own to put copies into. */
static char runtime[4096];
static char folder[256];

static int find_runtime(void) {
    /* Not in this process: a copy that is mapped would be taken before any other. */
    const char *const places[] = {"/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu", "/usr/lib64", "/usr/lib", "/opt/rocm/lib"};
    for (size_t i = 0; i < sizeof places / sizeof *places; i++) {
        snprintf(runtime, sizeof runtime, "%s/libamdhip64.so", places[i]);
        if (access(runtime, R_OK) == 0) return 1;
    }
    return 0;
}

static int is_mapped(const char *name) {
    char line[4096];
    int found = 0;
    FILE *f = fopen("/proc/self/maps", "r");
    if (!f) FAIL("/proc/self/maps: %s", strerror(errno));
    while (fgets(line, sizeof line, f)) found |= strstr(line, name) != NULL;
    fclose(f);
    return found;
}

static void copy_file(const char *from, const char *to) {
    char buffer[65536];
    ssize_t n;
    int in = open(from, O_RDONLY), out = open(to, O_WRONLY | O_CREAT | O_TRUNC, 0755);
    if (in < 0 || out < 0) FAIL("%s, %s: %s", from, to, strerror(errno));
    while ((n = read(in, buffer, sizeof buffer)) > 0)
        if (write(out, buffer, (size_t)n) != n) FAIL("%s: %s", to, strerror(errno));
    close(in);
    close(out);
}

/* A path below the folder. */
static const char *in_folder(const char *name) {
    static char paths[4][512];
    static int next;
    char *path = paths[next++ % 4];
    snprintf(path, sizeof paths[0], "%s/%s", folder, name);
    return path;
}

static const char *setting(const char *variable, const char *value) {
    static char settings[4][600];
    static int next;
    char *text = settings[next++ % 4];
    snprintf(text, sizeof settings[0], "%s=%s", variable, value);
    return text;
}

static const char *text_of_no_device(void) {
    int32_t count = 77;
    CHECK_STATUS(tgpu_device_count(&count), TGPU_ERROR_NO_DEVICE);
    CHECK_EQ(count, 77);
    return last_text();
}

/* ---- Children, each with an environment of its own. */

static void host_devices_only(void) {
    int32_t count = 0;
    CHECK_OK(tgpu_device_count(&count));
    CHECK(count > 0);
    CHECK(!is_mapped("libamdhip64"));
}

static void only_hip(void) {
    const char *text = text_of_no_device();
    CHECK(strstr(text, "hip: "));
    CHECK(strstr(text, "sees no device"));
    CHECK(strstr(text, "libamdhip64.so"));
    CHECK(strstr(text, "hipGetDeviceCount answered hipErrorNoDevice (100)"));
    CHECK(is_mapped("libamdhip64"));
    /* Looked for once: later calls say the same. */
    CHECK_REFUSED(tgpu_device_set(0), TGPU_ERROR_NO_DEVICE, "sees no device");
    tgpu_backend_info info = TGPU_BACKEND_INFO_INIT;
    CHECK_OK(tgpu_backend_info_get(0, &info));
    CHECK(strcmp(info.name, "hip") == 0);
    CHECK_EQ(info.available, 0);
    CHECK_EQ(info.device_count, 0);
    CHECK(strstr(info.reason, "sees no device"));
}

static void hip_and_host(void) {
    int32_t count = 0;
    tgpu_device_info info = TGPU_DEVICE_INFO_INIT;
    void *p = NULL;
    CHECK_OK(tgpu_device_count(&count));
    CHECK(is_mapped("libamdhip64"));
    CHECK_EQ(count, 2);
    CHECK_OK(tgpu_device_info_get(0, &info));
    CHECK(strcmp(info.backend, "host") == 0);
    CHECK_OK(tgpu_malloc(1000, &p));
    CHECK_OK(tgpu_memset(p, 1, 1000, NULL));
    CHECK_OK(tgpu_synchronize());
    CHECK_OK(tgpu_free(p));
}

/* F10: the count alone has initialised the runtime, and its threads stay with the parent. */
static void forks_after_counting(void) {
    int32_t count = 0;
    int status = 0;
    CHECK_OK(tgpu_device_count(&count));
    fflush(NULL);
    pid_t pid = fork();
    if (pid < 0) FAIL("fork: %s", strerror(errno));
    if (pid == 0) {
        alarm(60);
        CHECK_REFUSED(tgpu_device_count(&count), TGPU_ERROR_FORKED, "fork");
        exit(0);
    }
    while (waitpid(pid, &status, 0) < 0)
        if (errno != EINTR) FAIL("waitpid: %s", strerror(errno));
    CHECK_EQ(status, 0);
}

static void the_copy_is_used(void) {
    if (getenv("LOAD_FIRST")) {
        void *copy = dlopen(getenv("LOAD_FIRST"), RTLD_NOW | RTLD_LOCAL);
        if (!copy) FAIL("dlopen: %s", dlerror());
    }
    if (!strstr(text_of_no_device(), getenv("EXPECT"))) FAIL("%s is not in: %s", getenv("EXPECT"), last_text());
    CHECK(strstr(last_text(), "sees no device"));
}

static void says(void) {
    if (!strstr(text_of_no_device(), getenv("EXPECT"))) FAIL("%s is not in: %s", getenv("EXPECT"), last_text());
}

/* ---- Tests. */

static void a_program_that_asks_for_host_devices_does_not_load_it(void) {
    CHECK_CHILD(host_devices_only, "TASKGPU_BACKENDS=host");
}

static void without_a_device_the_text_says_so(void) {
    CHECK_CHILD(only_hip, "TASKGPU_BACKENDS=hip");
}

static void host_devices_stand_in(void) {
    CHECK_CHILD(hip_and_host, "TASKGPU_BACKENDS=hip,host", "TASKGPU_HOST_DEVICES=2");
}

static void F10_a_forked_child_is_told(void) {
    CHECK_CHILD(forks_after_counting, "TASKGPU_BACKENDS=hip,host");
}

/* A framework may have brought a runtime of its own, under a name of its own. */
static void a_copy_in_the_process_goes_before_any_other(void) {
    const char *own = in_folder("libamdhip64-1a2b3c4d.so");
    copy_file(runtime, own);
    CHECK_CHILD(the_copy_is_used, "TASKGPU_BACKENDS=hip", setting("LOAD_FIRST", own), setting("EXPECT", own),
        setting("ROCM_PATH", in_folder("rocm")));
}

static void the_vendors_variables_go_before_the_loaders_path(void) {
    const char *in_rocm = in_folder("rocm/lib/libamdhip64.so.6"), *in_hip = in_folder("hip/lib/libamdhip64.so");
    copy_file(runtime, in_rocm);
    copy_file(runtime, in_hip);
    CHECK_CHILD(the_copy_is_used, "TASKGPU_BACKENDS=hip", setting("ROCM_PATH", in_folder("rocm")),
        setting("HIP_PATH", in_folder("hip")), setting("EXPECT", in_rocm));
    CHECK_CHILD(the_copy_is_used, "TASKGPU_BACKENDS=hip", "ROCM_PATH", setting("HIP_PATH", in_folder("hip")), setting("EXPECT", in_hip));
    CHECK_CHILD(the_copy_is_used, "TASKGPU_BACKENDS=hip", setting("ROCM_PATH", in_folder("nothing")), "HIP_PATH=", "EXPECT=libamdhip64.so");
}

static void a_library_that_is_none_is_passed_over_or_named(void) {
    FILE *f = fopen(in_folder("broken/lib/libamdhip64.so.7"), "w");
    if (!f || fputs("no library", f) < 0 || fclose(f) != 0) FAIL("cannot write: %s", strerror(errno));
    CHECK_CHILD(the_copy_is_used, "TASKGPU_BACKENDS=hip", setting("ROCM_PATH", in_folder("broken")), "HIP_PATH=", "EXPECT=libamdhip64.so");
    /* One that can be loaded and has not the functions: an older runtime, say. */
    Dl_info info;
    void *other = dlopen("libm.so.6", RTLD_NOW);
    void *symbol = other ? dlsym(other, "cos") : NULL;
    if (!symbol || !dladdr(symbol, &info)) FAIL("no mathematics: %s", dlerror());
    copy_file(info.dli_fname, in_folder("old/lib/libamdhip64.so.7"));
    CHECK_CHILD(says, "TASKGPU_BACKENDS=hip", setting("ROCM_PATH", in_folder("old")), "EXPECT=has no function hip");
    CHECK_CHILD(says, "TASKGPU_BACKENDS=hip", setting("ROCM_PATH", in_folder("old")), "EXPECT=ROCm 5.2 or newer");
}

static void make_folders(void) {
    const char *const names[] = {"rocm", "rocm/lib", "hip", "hip/lib", "broken", "broken/lib", "old", "old/lib"};
    snprintf(folder, sizeof folder, "/tmp/taskgpu-hip-XXXXXX");
    if (!mkdtemp(folder)) FAIL("mkdtemp: %s", strerror(errno));
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (mkdir(in_folder(names[i]), 0755) != 0) FAIL("mkdir: %s", strerror(errno));
}

static void remove_folders(void) {
    const char *const files[] = {"libamdhip64-1a2b3c4d.so", "rocm/lib/libamdhip64.so.6", "hip/lib/libamdhip64.so",
        "broken/lib/libamdhip64.so.7", "old/lib/libamdhip64.so.7"};
    const char *const names[] = {"rocm/lib", "rocm", "hip/lib", "hip", "broken/lib", "broken", "old/lib", "old"};
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) remove(in_folder(files[i]));
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) remove(in_folder(names[i]));
    remove(folder);
}

int main(int argc, char **argv) {
    begin(argc, argv);
    AS_CHILD(host_devices_only);
    AS_CHILD(only_hip);
    AS_CHILD(hip_and_host);
    AS_CHILD(forks_after_counting);
    AS_CHILD(the_copy_is_used);
    AS_CHILD(says);
    RUN(a_program_that_asks_for_host_devices_does_not_load_it);
    if (!find_runtime()) {
        printf("SKIPPED, libamdhip64.so is not installed\n");
        return end();
    }
    if (access("/dev/kfd", F_OK) == 0) {
        printf("SKIPPED, this machine may have a device\n");
        return end();
    }
    make_folders();
    RUN(without_a_device_the_text_says_so);
    RUN(host_devices_stand_in);
    RUN(F10_a_forked_child_is_told);
    RUN(a_copy_in_the_process_goes_before_any_other);
    RUN(the_vendors_variables_go_before_the_loaders_path);
    RUN(a_library_that_is_none_is_passed_over_or_named);
    remove_folders();
    return end();
}
