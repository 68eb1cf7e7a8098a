// Objects of C++ that outlive main, or a thread: their destructors may call in.
#include <cstdio>
#include <cstdlib>
#include <taskgpu.h>
#include <thread>
#include <unistd.h>

namespace {

#define CHECK(condition) \
    do { \
        if (!(condition)) { \
            std::fprintf(stderr, "%s:%d: does not hold: %s\n", __FILE__, __LINE__, #condition); \
            std::fflush(nullptr); \
            _exit(1); \
        } \
    } while (0)

int destroyed_threads;

// Owns one of each and gives it back when it goes, whenever that is.
struct Owner {
    tgpu_stream stream = nullptr;
    tgpu_event event = nullptr;
    tgpu_task task = nullptr;
    void *memory = nullptr, *pinned = nullptr;
    int *count;

    explicit Owner(int *count) : count(count) {
        CHECK(tgpu_stream_create(nullptr, &stream) == TGPU_OK);
        CHECK(tgpu_event_create(nullptr, &event) == TGPU_OK);
        CHECK(tgpu_event_record(event, stream) == TGPU_OK);
        CHECK(tgpu_task_create(nullptr, &task) == TGPU_OK);
        CHECK(tgpu_malloc(4096, &memory) == TGPU_OK);
        CHECK(tgpu_host_malloc(4096, &pinned) == TGPU_OK);
        CHECK(tgpu_memset(memory, 1, 4096, stream) == TGPU_OK);
    }
    Owner(const Owner &) = delete;
    Owner &operator=(const Owner &) = delete;
    ~Owner() {
        int32_t devices = 0;
        CHECK(tgpu_device_count(&devices) == TGPU_OK && devices >= 1); // still answers
        tgpu_synchronize(); // any answer, but one
        CHECK(tgpu_event_destroy(event) == TGPU_OK);
        CHECK(tgpu_stream_destroy(stream) == TGPU_OK);
        CHECK(tgpu_task_destroy(task) == TGPU_OK);
        CHECK(tgpu_free_deferred(memory) == TGPU_OK);
        CHECK(tgpu_host_free(pinned) == TGPU_OK);
        ++*count;
    }
};

int destroyed_statics;
Owner *on_the_heap;

// Made before main, so destroyed after everything else, the library's own handlers included.
struct Early {
    ~Early() {
        if (destroyed_statics != 2) {
            std::fprintf(stderr, "%d static objects were destroyed, must be 2\n", destroyed_statics);
            std::fflush(nullptr);
            _exit(1);
        }
        delete on_the_heap;
    }
} early;
Owner before_main(&destroyed_statics);

void a_thread() {
    thread_local Owner mine(&destroyed_threads);
    CHECK(tgpu_device_set(0) == TGPU_OK);
    CHECK(tgpu_stream_query(mine.stream) <= TGPU_NOT_READY);
}

} // namespace

int main() {
    alarm(120);
    for (int i = 0; i < 50; ++i) {
        std::thread(a_thread).join();
        CHECK(destroyed_threads == i + 1);
    }
    std::puts("ok F16_thread_local_objects_give_back_what_they_own");
    static Owner in_main(&destroyed_statics);
    static int more;
    on_the_heap = new Owner(&more);
    std::puts("ok F16_static_objects_give_back_what_they_own");
    std::puts("2 passed, 0 failed");
    return 0;
}
