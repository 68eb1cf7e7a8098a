/* Work for streams: kernels that note that they ran, and gates that hold a stream up until the test opens them. */
#ifndef WORK_H
#define WORK_H

#include "check.h"
#include <elf.h>
#include <stdatomic.h>
#include <stddef.h>

HELPER int is_of(tgpu_device d, const char *backend) {
    tgpu_device_info info = TGPU_DEVICE_INFO_INIT;
    CHECK_OK(tgpu_device_info_get(d, &info));
    return strcmp(info.backend, backend) == 0;
}

HELPER int is_host(tgpu_device d) {
    return is_of(d, "host");
}

/* C functions are kernels on host devices, and on the HIP runtime that the tests bring along. On others the tests queue
 * them as callbacks, which come in the same order. */
HELPER int runs_functions(tgpu_device d) {
    return on_shim() || is_host(d);
}

/* ---- kernels: C functions of the tests */

/* What tests/hip-shim takes as a code object: an ELF file for AMD's machine whose one segment is a table of functions. */
struct image_ {
    Elf64_Ehdr header;
    Elf64_Phdr segment;
    char mark[16];
    uint64_t kernel_count;
    char name[64];
    uint64_t function, data, argument_count, sizes[256];
};

struct function_ {
    tgpu_host_kernel function;
    size_t count, sizes[256];
    tgpu_module module;
    struct function_ *next;
};

/* A module with one function. Kept for good, as a program keeps its modules. */
HELPER tgpu_module module_of_(tgpu_host_kernel function, size_t count, const size_t *sizes) {
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    static struct function_ *all;
    struct function_ *f;
    pthread_mutex_lock(&lock);
    for (f = all; f; f = f->next)
        if (f->function == function && f->count == count && (!count || memcmp(f->sizes, sizes, count * sizeof *sizes) == 0)) break;
    if (!f) {
        struct image_ *image = calloc(1, sizeof *image);
        f = calloc(1, sizeof *f);
        if (!image || !f || count > 256) FAIL("no memory");
        memcpy(image->header.e_ident, ELFMAG "\2\1\1\100", 8);
        image->header.e_type = ET_DYN, image->header.e_machine = 224, image->header.e_version = EV_CURRENT;
        image->header.e_ehsize = sizeof image->header, image->header.e_flags = 0x3f;
        image->header.e_phoff = offsetof(struct image_, segment), image->header.e_phentsize = sizeof image->segment;
        image->header.e_phnum = 1;
        image->segment.p_type = PT_LOAD, image->segment.p_offset = offsetof(struct image_, mark);
        image->segment.p_filesz = image->segment.p_memsz = sizeof *image - offsetof(struct image_, mark);
        memcpy(image->mark, "hip-shim kernels", sizeof image->mark);
        memcpy(image->name, "function", sizeof "function");
        image->kernel_count = 1, image->function = (uint64_t)(uintptr_t)function, image->argument_count = count;
        for (size_t i = 0; i < count; i++) image->sizes[i] = f->sizes[i] = sizes[i];
        f->function = function, f->count = count;
        CHECK_OK(tgpu_module_load(image, sizeof *image, &f->module));
        f->next = all, all = f;
        free(image);
    }
    pthread_mutex_unlock(&lock);
    return f->module;
}

/* Makes a kernel of a function with that many arguments. */
HELPER tgpu_kernel kernel_of(tgpu_host_kernel function, size_t count, const size_t *sizes) {
    tgpu_kernel k = NULL;
    if (on_shim()) CHECK_OK(tgpu_kernel_get(module_of_(function, count, sizes), "function", &k));
    else CHECK_OK(tgpu_kernel_from_host_fn(function, NULL, count, sizes, &k));
    return k;
}

/* The first device that runs C functions; -1 if there is none. */
HELPER tgpu_device host_device(void) {
    int32_t count = 0;
    CHECK_OK(tgpu_device_count(&count));
    for (tgpu_device d = 0; d < count; d++)
        if (runs_functions(d)) return d;
    return -1;
}

/* The device of a stream; NULL: of the task. -1 for what is no stream, which the call under test will say. */
HELPER tgpu_device device_of(tgpu_stream s) {
    tgpu_stream_info info = TGPU_STREAM_INFO_INIT;
    if (!s) return device_now();
    return tgpu_stream_info_get(s, &info) == TGPU_OK ? info.device : -1;
}

struct called_ {
    tgpu_host_kernel function;
    tgpu_device device;
    max_align_t argument[4];
};

HELPER void call_(void *data, tgpu_status status) {
    struct called_ *c = data;
    tgpu_host_block block = {0};
    void *args[1] = {c->argument};
    block.device = c->device;
    if (status == TGPU_OK) c->function(&block, args, NULL);
    free(c);
}

/* Queues one call of a function with one argument. */
HELPER tgpu_status try_queue_(tgpu_stream s, tgpu_host_kernel function, void *argument, size_t size) {
    tgpu_device d = device_of(s);
    tgpu_status status;
    if (d < 0 || runs_functions(d)) {
        tgpu_launch_config config = TGPU_LAUNCH_CONFIG_INIT;
        void *args[1] = {argument};
        /* The kernel goes at once: what is queued runs all the same. */
        tgpu_kernel k = kernel_of(function, 1, (const size_t[]){size});
        config.stream = s;
        status = tgpu_launch(k, &config, args);
        CHECK_OK(tgpu_kernel_destroy(k));
        return status;
    }
    struct called_ *c = calloc(1, sizeof *c);
    if (!c) FAIL("no memory");
    CHECK(size <= sizeof c->argument);
    c->function = function;
    c->device = d;
    memcpy(c->argument, argument, size);
    status = tgpu_stream_add_callback(s, call_, c);
    if (status != TGPU_OK) free(c);
    return status;
}

/* Queues one call of a function with one pointer. */
HELPER void queue(tgpu_stream s, tgpu_host_kernel function, void *pointer) {
    CHECK_OK(try_queue_(s, function, &pointer, sizeof pointer));
}

/* ---- gates */

struct gate {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    int entered, open;
};
#define GATE {PTHREAD_MUTEX_INITIALIZER, PTHREAD_COND_INITIALIZER, 0, 0}

HELPER void gate_pass_(struct gate *g) {
    pthread_mutex_lock(&g->lock);
    g->entered++;
    pthread_cond_broadcast(&g->changed);
    while (!g->open) pthread_cond_wait(&g->changed, &g->lock);
    pthread_mutex_unlock(&g->lock);
}

HELPER void gate_kernel_(const tgpu_host_block *block, void *const *args, void *data) {
    (void)block, (void)data;
    gate_pass_(*(struct gate *const *)args[0]);
}

/* Later work of the stream runs only once the gate is open. Other devices wait for a host device that stands at the
 * gate: a callback that did would hold up all callbacks. */
HELPER void hold(tgpu_stream s, struct gate *g) {
    tgpu_device d = device_of(s), host;
    if (runs_functions(d)) {
        queue(s, gate_kernel_, g);
        return;
    }
    host = host_device();
    if (host < 0) FAIL("a gate needs a host device in the list");
    tgpu_stream h = stream_on(host);
    CHECK_OK(tgpu_stream_wait_stream(h, s));
    queue(h, gate_kernel_, g);
    CHECK_OK(tgpu_stream_wait_stream(s, h));
    CHECK_OK(tgpu_stream_destroy(h));
}

/* Waits until the stream has come to the gate. */
HELPER void wait_for_gate(struct gate *g) {
    pthread_mutex_lock(&g->lock);
    while (!g->entered) pthread_cond_wait(&g->changed, &g->lock);
    pthread_mutex_unlock(&g->lock);
}

/* Opens it for good. Synchronize before the gate goes out of scope. */
HELPER void open_gate(struct gate *g) {
    pthread_mutex_lock(&g->lock);
    g->open = 1;
    pthread_cond_broadcast(&g->changed);
    pthread_mutex_unlock(&g->lock);
}

/* ---- notes: what ran, in which order, on which device */

enum { NOTES = 4096 };
struct notes {
    atomic_int count;
    int values[NOTES], devices[NOTES];
};

struct note_args_ {
    struct notes *notes;
    int value, first; /* the index of the first device of the backend */
};

HELPER void note_kernel_(const tgpu_host_block *block, void *const *args, void *data) {
    const struct note_args_ *a = args[0];
    int i = atomic_fetch_add(&a->notes->count, 1);
    (void)data;
    if (i >= NOTES) FAIL("too many notes");
    a->notes->values[i] = a->value;
    a->notes->devices[i] = a->first + block->device;
}

HELPER tgpu_status try_note(tgpu_stream s, struct notes *notes, int value) {
    tgpu_device d = device_of(s);
    struct note_args_ a = {notes, value, d >= 0 && is_host(d) ? host_device() : 0};
    return try_queue_(s, note_kernel_, &a, sizeof a);
}

/* Queues a note. */
HELPER void note(tgpu_stream s, struct notes *notes, int value) {
    CHECK_OK(try_note(s, notes, value));
}

#define CHECK_NOTES(notes, ...) \
    check_notes_(notes, sizeof((int[]){__VA_ARGS__}) / sizeof(int), (const int[]){__VA_ARGS__}, __FILE__, __LINE__)

#define CHECK_NO_NOTES(notes) check_notes_(notes, 0, NULL, __FILE__, __LINE__)

HELPER void check_notes_(struct notes *notes, size_t count, const int *values, const char *file, int line) {
    int same = (size_t)atomic_load(&notes->count) == count;
    for (size_t i = 0; same && i < count; i++) same = notes->values[i] == values[i];
    if (same) return;
    fprintf(stderr, "%s:%d: in %s: it ran:", file, line, running_);
    for (int i = 0; i < atomic_load(&notes->count); i++) fprintf(stderr, " %d", notes->values[i]);
    fprintf(stderr, "; must be:");
    for (size_t i = 0; i < count; i++) fprintf(stderr, " %d", values[i]);
    fputc('\n', stderr);
    fail_();
}

/* Whatever the device has to do, it has had every chance: used before checks that something has NOT run. Another stream
 * of the device has come and gone, so a thread was there for the work. */
HELPER void give_every_chance(tgpu_device d) {
    struct notes notes = {0};
    tgpu_stream s = stream_on(d);
    for (int i = 0; i < 20; i++) {
        note(s, &notes, i);
        CHECK_OK(tgpu_stream_synchronize(s));
        sleep_ms(1);
    }
    CHECK_OK(tgpu_stream_destroy(s));
}

#endif
