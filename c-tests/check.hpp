// What the C++ tests share: TEST registers one, CHECK and EQUAL look at one thing each and go on.
#ifndef TASKGPU_C_TESTS_CHECK_HPP
#define TASKGPU_C_TESTS_CHECK_HPP

#include <cstdio>
#include <sstream>
#include <string_view>
#include <unistd.h>
#include <vector>

namespace check {

struct Test {
    const char *name;
    void (*run)();
};
inline std::vector<Test> &tests() {
    static std::vector<Test> all;
    return all;
}
inline bool &failed() {
    static bool it = false;
    return it;
}
inline int add(const char *name, void (*run)()) {
    tests().push_back({name, run});
    return 0;
}
inline void that(bool ok, const char *file, int line, const char *what) {
    if (!ok) {
        std::fprintf(stderr, "%s:%d: %s\n", file, line, what);
        failed() = true;
    }
}
template <class A, class B> void equal(const A &a, const B &b, const char *file, int line, const char *what) {
    if (!(a == b)) {
        std::ostringstream text;
        text << what << ": " << a << " and " << b;
        that(false, file, line, text.str().c_str());
    }
}

// Runs the tests whose name contains the argument, or all. A hang ends after two minutes.
inline int run(int argc, char **argv) {
    alarm(120);
    int passed = 0;
    int bad = 0;
    for (const Test &t : tests()) {
        if (argc > 1 && std::string_view(t.name).find(argv[1]) == std::string_view::npos) {
            continue;
        }
        failed() = false;
        t.run();
        if (failed()) {
            std::fprintf(stderr, "FAILED: %s\n", t.name);
        }
        (failed() ? bad : passed) += 1;
    }
    std::printf("%d passed, %d failed\n", passed, bad);
    return bad != 0 || passed == 0;
}

} // namespace check

#define TEST(name) \
    static void test_##name(); \
    [[maybe_unused]] static const int registered_##name = check::add(#name, test_##name); \
    static void test_##name()
#define CHECK(...) check::that(static_cast<bool>(__VA_ARGS__), __FILE__, __LINE__, #__VA_ARGS__)
#define EQUAL(a, b) check::equal((a), (b), __FILE__, __LINE__, #a " == " #b)

#endif
