/* Structs that may grow: every size a caller can claim, with a page behind it that nobody may touch. */
#ifndef STRUCTS_H
#define STRUCTS_H

#include "check.h"

enum { LARGEST_STRUCT = 4096 };

struct guarded {
    unsigned char *page_end;
    size_t mapped;
};

HELPER struct guarded guarded_pages(void) {
    size_t page = (size_t)sysconf(_SC_PAGESIZE), room = (LARGEST_STRUCT / page + 2) * page;
    unsigned char *p = mmap(NULL, room + page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED || mprotect(p + room, page, PROT_NONE) != 0) FAIL("mmap: %s", strerror(errno));
    return (struct guarded){p + room, room + page};
}

HELPER void unmap(struct guarded g) {
    munmap(g.page_end + (size_t)sysconf(_SC_PAGESIZE) - g.mapped, g.mapped);
}

HELPER int32_t recorded_(int records, tgpu_status status) {
    return records ? last_status() : status;
}

/* Calls `call` with an input struct of every size. It must undo what it did when it is answered OK. `full` is a valid
 * struct of `size` bytes. */
HELPER void check_input_struct(tgpu_status (*call)(void *), const void *full, size_t size) {
    struct guarded g = guarded_pages();
    struct state before = state_now();
    char *wrong_sizes[] = {"0", "1", "7", "4097", "18446744073709551615"};

    for (size_t n = sizeof(size_t); n <= size; n++) {
        /* A short struct ends at the guard page: what is behind it must not be read, and counts as zeros. */
        unsigned char whole[LARGEST_STRUCT] = {0}, *cut = g.page_end - n;
        size_t claimed = size;
        memcpy(whole, full, n);
        memcpy(whole, &claimed, sizeof claimed);
        memcpy(cut, full, n);
        memcpy(cut, &n, sizeof n);
        tgpu_status of_whole = call(whole), of_cut = call(cut);
        if (of_cut != of_whole)
            FAIL("struct_size %zu answered %s, with zeros in the rest %s", n, tgpu_status_name(of_cut), tgpu_status_name(of_whole));
    }
    for (size_t i = 0; i < 3; i++) {
        size_t n = (size_t[]){size + 1, size + 9, LARGEST_STRUCT}[i];
        unsigned char *large = g.page_end - n;
        memset(large, 0, n);
        memcpy(large, full, size);
        memcpy(large, &n, sizeof n);
        CHECK_OK(call(large));
        for (size_t j = 0; j < 2; j++) {
            size_t at = j ? n - 1 : size;
            large[at] = 1;
            CHECK_REFUSED(call(large), TGPU_ERROR_INVALID_ARGUMENT, TEXT(at), TEXT(size));
            large[at] = 0;
            CHECK_STATE(before);
        }
    }
    for (size_t i = 0; i < sizeof wrong_sizes / sizeof *wrong_sizes; i++) {
        size_t n = strtoull(wrong_sizes[i], NULL, 10);
        unsigned char *only_the_size = g.page_end - sizeof n;
        memcpy(only_the_size, &n, sizeof n);
        CHECK_REFUSED(call(only_the_size), TGPU_ERROR_INVALID_ARGUMENT, "struct_size", wrong_sizes[i], TEXT(sizeof(size_t)), "4096");
        CHECK_STATE(before);
    }
    unmap(g);
}

/* Calls `call` with an output struct of every size. `records` is 0 for calls that do not record their own failures. */
HELPER void check_output_struct_(tgpu_status (*call)(void *), size_t size, int records) {
    struct guarded g = guarded_pages();
    struct state before = state_now();
    unsigned char whole[LARGEST_STRUCT] = {0};
    size_t word = sizeof(size_t);

    memcpy(whole, &size, word);
    CHECK_OK(call(whole));
    for (size_t n = word; n <= LARGEST_STRUCT; n = n < size + 40 ? n + 1 : n + 999) {
        unsigned char *out = g.page_end - n;
        size_t claimed;
        memset(g.page_end - LARGEST_STRUCT - 64, 0xee, LARGEST_STRUCT + 64);
        memcpy(out, &n, word);
        CHECK_OK(call(out));
        memcpy(&claimed, out, word);
        CHECK_EQ(claimed, n);
        for (size_t i = word; i < n; i++) {
            unsigned char must = i < size ? whole[i] : 0;
            if (out[i] != must) FAIL("struct_size %zu: byte %zu is %#x, must be %#x", n, i, out[i], must);
        }
        CHECK_EQ(out[-1], 0xee);
    }
    for (size_t i = 0; i < 5; i++) {
        size_t n = (size_t[]){0, 1, 7, LARGEST_STRUCT + 1, SIZE_MAX}[i], still;
        unsigned char *out = g.page_end - LARGEST_STRUCT - 8;
        memset(out, 0xee, LARGEST_STRUCT + 8);
        memcpy(out, &n, word);
        CHECK_STATUS(call(out), TGPU_ERROR_INVALID_ARGUMENT);
        if (records) CHECK_EQ(last_status(), TGPU_ERROR_INVALID_ARGUMENT);
        if (records) CHECK(strstr(last_text(), TEXT(n)) && strstr(last_text(), "4096"));
        memcpy(&still, out, word);
        CHECK_EQ(still, n);
        for (size_t b = word; b < LARGEST_STRUCT + 8; b++)
            if (out[b] != 0xee) FAIL("struct_size %zu was refused, but byte %zu was written", n, b);
        CHECK_STATE(before);
    }
    CHECK_STATUS(call(NULL), TGPU_ERROR_INVALID_ARGUMENT);
    CHECK_STATE(before);
    unmap(g);
}

#define check_output_struct(call, size) check_output_struct_(call, size, 1)

#endif
