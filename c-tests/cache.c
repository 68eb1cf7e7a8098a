/* What is compiled once: by eight threads at the same time, by processes that share a folder, after an entry in it was damaged.
 * And where compiling cannot work: no compiler, no place for its files. On host devices, whose compiler is a program: a script in
 * its place counts how often it is run. */
#include "check.h"

#include <dirent.h>
#include <sys/resource.h>
#include <sys/stat.h>

static char folder[256]; /* of this process alone, with everything that the tests make */

static const char *in_folder(const char *name) {
    static char paths[8][512];
    static int next;
    char *path = paths[next++ % 8];
    snprintf(path, sizeof paths[0], "%s/%s", folder, name);
    return path;
}

static const char *setting(const char *variable, const char *value) {
    static char settings[8][600];
    static int next;
    char *text = settings[next++ % 8];
    snprintf(text, sizeof settings[0], "%s=%s", variable, value);
    return text;
}

static void write_file(const char *path, const void *bytes, size_t count) {
    FILE *f = fopen(path, "wb");
    if (!f || fwrite(bytes, 1, count, f) != count || fclose(f) != 0) FAIL("%s: %s", path, strerror(errno));
}

static int remove_all(const char *path) {
    DIR *d = opendir(path);
    if (d) {
        for (struct dirent *e; (e = readdir(d)) != NULL;) {
            char below[1024];
            if (strcmp(e->d_name, ".") == 0 || strcmp(e->d_name, "..") == 0) continue;
            snprintf(below, sizeof below, "%s/%s", path, e->d_name);
            remove_all(below);
        }
        closedir(d);
    }
    return remove(path);
}

/* The names in a folder that end like this: how many, and the last of them. */
static int files_in(const char *path, const char *end, char *name) {
    int count = 0;
    DIR *d = opendir(path);
    if (!d) FAIL("%s: %s", path, strerror(errno));
    for (struct dirent *e; (e = readdir(d)) != NULL;) {
        size_t length = strlen(e->d_name);
        if (length < strlen(end) || e->d_name[0] == '.' || strcmp(e->d_name + length - strlen(end), end) != 0) continue;
        if (name) snprintf(name, 512, "%s/%s", path, e->d_name);
        count++;
    }
    closedir(d);
    return count;
}

/* ---- a compiler that counts its runs: those that make a module */

static void make_counting_compiler(const char *name, const char *version) {
    char script[2048];
    const char *real = getenv("CXX");
    if (!real || !*real) real = "c++";
    snprintf(script, sizeof script,
        "#!/bin/sh\ncase \" $* \" in *' -shared '*) echo run >> '%s';; *' --version '*) echo '%s'; exit;; esac\nexec %s \"$@\"\n",
        in_folder("runs"), version, real);
    write_file(in_folder(name), script, strlen(script));
    if (chmod(in_folder(name), 0755) != 0) FAIL("chmod: %s", strerror(errno));
}

static int runs(void) {
    struct stat s;
    return stat(in_folder("runs"), &s) == 0 ? (int)(s.st_size / 4) : 0;
}

/* ---- what children do */

enum { NUMBER = 4711 };
static const char SOURCE[] = "extern \"C\" __global__ void put(int *x) { x[threadIdx.x] = 4711; }\n";

static void check_module(tgpu_module m) {
    int seen[4] = {0};
    tgpu_kernel k = NULL;
    tgpu_launch_config c = TGPU_LAUNCH_CONFIG_INIT;
    void *x = NULL;
    c.block[0] = 4;
    CHECK_OK(tgpu_kernel_get(m, "put", &k));
    CHECK_OK(tgpu_malloc(sizeof seen, &x));
    CHECK_OK(tgpu_launch(k, &c, TGPU_ARGS(&x)));
    CHECK_OK(tgpu_memcpy(seen, x, sizeof seen, NULL));
    CHECK_OK(tgpu_synchronize());
    for (int i = 0; i < 4; i++) CHECK_EQ(seen[i], NUMBER);
    CHECK_OK(tgpu_free(x));
    CHECK_OK(tgpu_kernel_destroy(k));
    CHECK_OK(tgpu_module_destroy(m));
}

static void compile_and_run(void) {
    tgpu_module m = NULL;
    CHECK_OK(tgpu_module_compile(SOURCE, NULL, &m));
    check_module(m);
}

enum { THREADS = 8 };
static pthread_barrier_t together;
static tgpu_module all[THREADS];

static void *compile_together(void *out) {
    pthread_barrier_wait(&together);
    CHECK_OK(tgpu_module_compile(SOURCE, NULL, out));
    return NULL;
}

static void eight_threads_compile(void) {
    pthread_t threads[THREADS];
    if (pthread_barrier_init(&together, NULL, THREADS)) FAIL("pthread_barrier_init");
    for (int i = 0; i < THREADS; i++) threads[i] = start_thread(compile_together, &all[i]);
    for (int i = 0; i < THREADS; i++) join_thread(threads[i]);
    for (int i = 0; i < THREADS; i++) check_module(all[i]);
}

static tgpu_module shared_module;

static void *prepare_together(void *device) {
    pthread_barrier_wait(&together);
    CHECK_OK(tgpu_module_prepare(shared_module, (tgpu_device)(intptr_t)device));
    return NULL;
}

/* One module that four devices need, two threads for each. */
static void eight_threads_prepare(void) {
    pthread_t threads[THREADS];
    CHECK_OK(tgpu_module_compile(SOURCE, NULL, &shared_module));
    if (pthread_barrier_init(&together, NULL, THREADS)) FAIL("pthread_barrier_init");
    for (intptr_t i = 0; i < THREADS; i++) threads[i] = start_thread(prepare_together, (void *)(i % 4));
    for (int i = 0; i < THREADS; i++) join_thread(threads[i]);
    CHECK_OK(tgpu_device_set(3));
    check_module(shared_module);
}

static void compile_what_differs(void) {
    static const char *const option = "-DONE=1";
    tgpu_compile_options options = TGPU_COMPILE_OPTIONS_INIT;
    tgpu_module m = NULL;
    compile_and_run();
    compile_and_run();
    options.name = "other.hip";
    CHECK_OK(tgpu_module_compile(SOURCE, &options, &m));
    check_module(m);
    options.options = &option, options.option_count = 1;
    CHECK_OK(tgpu_module_compile(SOURCE, &options, &m));
    check_module(m);
    CHECK_OK(tgpu_module_compile("\n\nextern \"C\" __global__ void put(int *x) { x[threadIdx.x] = 4711; }\n", &options, &m));
    check_module(m);
}

/* Processes that begin together: each says that it is there, and waits for the folder's "go". */
static void compile_with_others(void) {
    char ready[64];
    snprintf(ready, sizeof ready, "%d.ready", (int)getpid());
    const char *place = getenv("TASKGPU_TEST_PLACE");
    char path[512];
    snprintf(path, sizeof path, "%s/%s", place, ready);
    write_file(path, "", 0);
    snprintf(path, sizeof path, "%s/go", place);
    WAIT_UNTIL(access(path, F_OK) == 0);
    compile_and_run();
}

/* What start_child sets, made before there are several of them. */
static const char *settings_of_all[3];

static void *start_child(void *status) {
    *(int *)status = CHILD_STATUS(compile_with_others, settings_of_all[0], settings_of_all[1], settings_of_all[2]);
    return NULL;
}

/* ---- tests */

#define COUNTED setting("CXX", in_folder("compiler"))
#define CACHED COUNTED, setting("TASKGPU_CACHE_DIR", in_folder("cache"))

static void eight_threads_at_once_compile_once(void) {
    int before = runs();
    CHECK_CHILD(eight_threads_compile, COUNTED);
    CHECK_EQ(runs(), before + 1);
    CHECK_CHILD(eight_threads_prepare, COUNTED);
    CHECK_EQ(runs(), before + 2);
}

static void what_differs_is_compiled_apart(void) {
    int before = runs();
    CHECK_CHILD(compile_what_differs, COUNTED);
    CHECK_EQ(runs(), before + 4);
    CHECK_CHILD(compile_what_differs, CACHED);
    CHECK_EQ(runs(), before + 8);
    CHECK_CHILD(compile_what_differs, CACHED); /* all four are on disk now */
    CHECK_EQ(runs(), before + 8);
    CHECK_EQ(files_in(in_folder("cache"), "", NULL), 4);
    remove_all(in_folder("cache"));
}

static void another_version_of_the_compiler_compiles_again(void) {
    int before = runs();
    for (int i = 0; i < 2; i++) { /* both find theirs the second time */
        CHECK_CHILD(compile_and_run, CACHED);
        CHECK_CHILD(compile_and_run, setting("CXX", in_folder("newer")), setting("TASKGPU_CACHE_DIR", in_folder("cache")));
    }
    CHECK_EQ(runs(), before + 2);
    CHECK_EQ(files_in(in_folder("cache"), "", NULL), 2);
    remove_all(in_folder("cache"));
}

static void processes_share_the_folder(void) {
    enum { PROCESSES = 4 };
    pthread_t threads[PROCESSES];
    int status[PROCESSES], before = runs();
    settings_of_all[0] = COUNTED;
    settings_of_all[1] = setting("TASKGPU_CACHE_DIR", in_folder("shared"));
    settings_of_all[2] = setting("TASKGPU_TEST_PLACE", folder);
    for (int i = 0; i < PROCESSES; i++) threads[i] = start_thread(start_child, &status[i]);
    WAIT_UNTIL(files_in(folder, ".ready", NULL) == PROCESSES);
    write_file(in_folder("go"), "", 0);
    for (int i = 0; i < PROCESSES; i++) join_thread(threads[i]);
    for (int i = 0; i < PROCESSES; i++) CHECK_EQ(status[i], 0);
    CHECK(runs() > before && runs() <= before + PROCESSES);
    CHECK_EQ(files_in(in_folder("shared"), "", NULL), 1); /* one entry, and nothing half written */
    before = runs();
    CHECK_CHILD(compile_and_run, COUNTED, setting("TASKGPU_CACHE_DIR", in_folder("shared")));
    CHECK_EQ(runs(), before);
}

/* Whatever happened to an entry: the module is compiled again, and the entry is right after that. */
static void a_damaged_entry_is_built_again(void) {
    static unsigned char whole[1 << 20], bytes[1 << 20];
    char entry[512];
    size_t size, cuts[] = {0, 1, 15, 16, 23, 24, 31, 100, 0, 0};
    CHECK_CHILD(compile_and_run, CACHED);
    CHECK_EQ(files_in(in_folder("cache"), ".taskgpu", entry), 1);
    FILE *f = fopen(entry, "rb");
    if (!f) FAIL("%s: %s", entry, strerror(errno));
    size = fread(whole, 1, sizeof whole, f);
    fclose(f);
    CHECK(size > 1000 && size < sizeof whole);
    cuts[8] = size / 2, cuts[9] = size - 1;
    enum { CUTS = sizeof cuts / sizeof *cuts, DAMAGES = CUTS + 8 };
    for (int damage = 0; damage < DAMAGES; damage++) {
        int before = runs();
        size_t length = damage < CUTS ? cuts[damage] : size;
        memcpy(bytes, whole, size);
        switch (damage) {
        case CUTS: memset(bytes, 0, size); break;
        case CUTS + 1: /* nothing of it is left */
            for (size_t i = 0; i < size; i++) bytes[i] = (unsigned char)(i * 2654435761u >> 13);
            break;
        case CUTS + 2: bytes[0] ^= 1; break;
        case CUTS + 3: bytes[20] ^= 1; break;        /* the checksum */
        case CUTS + 4: bytes[24] = 0xff; break;      /* a length */
        case CUTS + 5: bytes[size / 2] ^= 0x10; break; /* of the module */
        case CUTS + 6: bytes[size - 1] ^= 0x80; break;
        case CUTS + 7: bytes[size] = 0, length++; break; /* too long */
        }
        write_file(entry, bytes, length);
        CHECK_CHILD(compile_and_run, CACHED);
        if (runs() != before + 1) FAIL("damage %d: %d runs of the compiler, must be 1", damage, runs() - before);
        CHECK_CHILD(compile_and_run, CACHED);
        if (runs() != before + 1) FAIL("damage %d: the entry was not put right", damage);
        CHECK_EQ(files_in(in_folder("cache"), "", NULL), 1);
    }
    /* An entry that cannot be read, and one in whose place something else lies. */
    int before = runs();
    if (geteuid() != 0) { /* whom nothing is closed to */
        if (chmod(entry, 0) != 0) FAIL("chmod: %s", strerror(errno));
        CHECK_CHILD(compile_and_run, CACHED);
        CHECK_CHILD(compile_and_run, CACHED);
        CHECK_EQ(runs(), ++before);
    }
    if (remove(entry) != 0 || mkdir(entry, 0755) != 0) FAIL("%s: %s", entry, strerror(errno));
    CHECK_CHILD(compile_and_run, CACHED);
    CHECK_EQ(runs(), before + 1);
    remove_all(in_folder("cache"));
}

static void the_folder_is_made_and_need_not_be_writable(void) {
    int before = runs();
    CHECK_CHILD(compile_and_run, COUNTED, setting("TASKGPU_CACHE_DIR", in_folder("a/new folder/with 'quotes' $(touch made)")));
    CHECK_CHILD(compile_and_run, COUNTED, setting("TASKGPU_CACHE_DIR", in_folder("a/new folder/with 'quotes' $(touch made)")));
    CHECK_EQ(runs(), before + 1);
    CHECK_CHILD(compile_and_run, COUNTED, "TASKGPU_CACHE_DIR=/proc/self/task"); /* where nobody can make files */
    CHECK_EQ(runs(), before + 2);
}

static void compile_without_a_compiler(void) {
    struct state before = state_now();
    tgpu_module m = (tgpu_module)77;
    CHECK_REFUSED(tgpu_module_compile(SOURCE, NULL, &m), TGPU_ERROR_NOT_SUPPORTED, "C++ compiler", "c++", "g++", "clang++",
        "apt-get install g++", "CXX");
    CHECK_SAME(m, 77);
    CHECK_STATE(before);
}

static void compile_with_what_is_no_compiler(void) {
    tgpu_module m = (tgpu_module)77;
    CHECK_REFUSED(tgpu_module_compile(SOURCE, NULL, &m), TGPU_ERROR_NOT_SUPPORTED, getenv("CXX"), "install");
    CHECK_SAME(m, 77);
}

static void without_a_compiler_it_is_said_what_to_install(void) {
    CHECK_CHILD(compile_without_a_compiler, "CXX", "PATH=");
    CHECK_CHILD(compile_without_a_compiler, "CXX", "PATH=/no/such/folder");
    CHECK_CHILD(compile_without_a_compiler, "CXX=", "PATH=/no/such/folder");
    CHECK_CHILD(compile_with_what_is_no_compiler, "CXX=/no/such/compiler");
    CHECK_CHILD(compile_with_what_is_no_compiler, "CXX=false");
    CHECK_CHILD(compile_with_what_is_no_compiler, "CXX=/etc/passwd");
}

static void compile_where_no_folder_can_be_made(void) {
    struct state before = state_now();
    tgpu_module m = (tgpu_module)77;
    CHECK_REFUSED(tgpu_module_compile(SOURCE, NULL, &m), TGPU_ERROR_BACKEND, getenv("TMPDIR"), "folder");
    CHECK_SAME(m, 77);
    CHECK_STATE(before);
}

/* As on a disk that is full: no file may grow. What was begun is taken away again. */
static void compile_on_a_full_disk(void) {
    struct rlimit full = {1000, RLIM_INFINITY}, before;
    tgpu_module m = (tgpu_module)77;
    signal(SIGXFSZ, SIG_IGN);
    if (getrlimit(RLIMIT_FSIZE, &before) != 0) FAIL("getrlimit: %s", strerror(errno));
    full.rlim_max = before.rlim_max;
    if (setrlimit(RLIMIT_FSIZE, &full) != 0) FAIL("setrlimit: %s", strerror(errno));
    CHECK_REFUSED(tgpu_module_compile(SOURCE, NULL, &m), TGPU_ERROR_BACKEND, "prelude.h", "File too large");
    CHECK_SAME(m, 77);
    full.rlim_cur = 60000; /* enough for our own files, and not for what the compiler makes */
    if (setrlimit(RLIMIT_FSIZE, &full) != 0) FAIL("setrlimit: %s", strerror(errno));
    CHECK_REFUSED(tgpu_module_compile(SOURCE, NULL, &m), TGPU_ERROR_COMPILE_FAILED, "File too large");
    CHECK_SAME(m, 77);
    if (setrlimit(RLIMIT_FSIZE, &before) != 0) FAIL("setrlimit: %s", strerror(errno));
    compile_and_run(); /* a failure is not kept */
}

static void compile_without_descriptors(void) {
    tgpu_module m = (tgpu_module)77;
    int32_t count;
    int last = 0;
    CHECK_OK(tgpu_device_count(&count));
    for (int f; (f = dup(0)) >= 0;) last = f;
    CHECK_EQ(errno, EMFILE);
    CHECK_REFUSED(tgpu_module_compile(SOURCE, NULL, &m), TGPU_ERROR_OUT_OF_MEMORY, "Too many open files");
    CHECK_SAME(m, 77);
    for (int f = last; f > last - 20; f--) close(f);
    compile_and_run();
}

static void a_lack_of_descriptors_is_not_blamed_on_the_compiler(void) {
    struct rlimit before, few;
    if (getrlimit(RLIMIT_NOFILE, &before) != 0) FAIL("getrlimit: %s", strerror(errno));
    few = before;
    few.rlim_cur = 100;
    if (setrlimit(RLIMIT_NOFILE, &few) != 0) FAIL("setrlimit: %s", strerror(errno));
    CHECK_CHILD(compile_without_descriptors, AS_IT_IS);
    if (setrlimit(RLIMIT_NOFILE, &before) != 0) FAIL("setrlimit: %s", strerror(errno));
}

static void any_place_for_temporary_files_will_do_or_is_named(void) {
    const char *odd = in_folder("a 'b' \"c\" $(touch made)");
    if (mkdir(odd, 0755) != 0) FAIL("%s: %s", odd, strerror(errno));
    CHECK_CHILD(compile_and_run, setting("TMPDIR", odd));
    CHECK_CHILD(compile_on_a_full_disk, setting("TMPDIR", odd));
    CHECK_EQ(files_in(odd, "", NULL), 0);
    if (access("made", F_OK) == 0) FAIL("a folder's name was run by a shell");
    CHECK_CHILD(compile_where_no_folder_can_be_made, "TMPDIR=/no/such/folder");
    CHECK_CHILD(compile_where_no_folder_can_be_made, "TMPDIR=/proc/self/task"); /* read-only, even for root */
}

int main(int argc, char **argv) {
    begin(argc, argv);
    AS_CHILD(compile_and_run);
    AS_CHILD(compile_without_descriptors);
    AS_CHILD(eight_threads_compile);
    AS_CHILD(eight_threads_prepare);
    AS_CHILD(compile_what_differs);
    AS_CHILD(compile_with_others);
    AS_CHILD(compile_without_a_compiler);
    AS_CHILD(compile_with_what_is_no_compiler);
    AS_CHILD(compile_where_no_folder_can_be_made);
    AS_CHILD(compile_on_a_full_disk);
    if (child_) return end();
    snprintf(folder, sizeof folder, "/tmp/taskgpu-cache-XXXXXX");
    if (!mkdtemp(folder)) FAIL("mkdtemp: %s", strerror(errno));
    make_counting_compiler("compiler", "compiler 1.0");
    make_counting_compiler("newer", "compiler 1.1");
    RUN(eight_threads_at_once_compile_once);
    RUN(what_differs_is_compiled_apart);
    RUN(another_version_of_the_compiler_compiles_again);
    RUN(processes_share_the_folder);
    RUN(a_damaged_entry_is_built_again);
    RUN(the_folder_is_made_and_need_not_be_writable);
    RUN(without_a_compiler_it_is_said_what_to_install);
    RUN(a_lack_of_descriptors_is_not_blamed_on_the_compiler);
    RUN(any_place_for_temporary_files_will_do_or_is_named);
    if (remove_all(folder) != 0) FAIL("%s: %s", folder, strerror(errno));
    return end();
}
