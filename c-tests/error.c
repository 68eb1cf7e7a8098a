/* The last error: whose it is, what replaces it, and how it is read. */
#include "work.h"
#include "structs.h"

static const struct {
    tgpu_status status;
    const char *name;
} STATUSES[] = {
    {TGPU_OK, "TGPU_OK"},
    {TGPU_NOT_READY, "TGPU_NOT_READY"},
    {TGPU_ERROR_INVALID_ARGUMENT, "TGPU_ERROR_INVALID_ARGUMENT"},
    {TGPU_ERROR_INVALID_HANDLE, "TGPU_ERROR_INVALID_HANDLE"},
    {TGPU_ERROR_INVALID_DEVICE, "TGPU_ERROR_INVALID_DEVICE"},
    {TGPU_ERROR_NO_DEVICE, "TGPU_ERROR_NO_DEVICE"},
    {TGPU_ERROR_OUT_OF_MEMORY, "TGPU_ERROR_OUT_OF_MEMORY"},
    {TGPU_ERROR_NOT_SUPPORTED, "TGPU_ERROR_NOT_SUPPORTED"},
    {TGPU_ERROR_NOT_FOUND, "TGPU_ERROR_NOT_FOUND"},
    {TGPU_ERROR_NOT_PERMITTED, "TGPU_ERROR_NOT_PERMITTED"},
    {TGPU_ERROR_TIMEOUT, "TGPU_ERROR_TIMEOUT"},
    {TGPU_ERROR_COMPILE_FAILED, "TGPU_ERROR_COMPILE_FAILED"},
    {TGPU_ERROR_INVALID_IMAGE, "TGPU_ERROR_INVALID_IMAGE"},
    {TGPU_ERROR_LAUNCH_FAILED, "TGPU_ERROR_LAUNCH_FAILED"},
    {TGPU_ERROR_DEVICE_LOST, "TGPU_ERROR_DEVICE_LOST"},
    {TGPU_ERROR_CAPTURING, "TGPU_ERROR_CAPTURING"},
    {TGPU_ERROR_IN_CALLBACK, "TGPU_ERROR_IN_CALLBACK"},
    {TGPU_ERROR_TASK_BUSY, "TGPU_ERROR_TASK_BUSY"},
    {TGPU_ERROR_SCOPE_MISMATCH, "TGPU_ERROR_SCOPE_MISMATCH"},
    {TGPU_ERROR_FORKED, "TGPU_ERROR_FORKED"},
    {TGPU_ERROR_ENVIRONMENT, "TGPU_ERROR_ENVIRONMENT"},
    {TGPU_ERROR_BACKEND, "TGPU_ERROR_BACKEND"},
    {TGPU_ERROR_INTERNAL, "TGPU_ERROR_INTERNAL"},
};
enum { STATUS_COUNT = sizeof STATUSES / sizeof *STATUSES };

static tgpu_error_info last(void) {
    tgpu_error_info info = TGPU_ERROR_INFO_INIT;
    CHECK_OK(tgpu_error_info_get(&info));
    return info;
}

static void every_status_has_its_number_name_and_sentence(void) {
    for (int i = 0; i < STATUS_COUNT; i++) {
        const char *message = tgpu_status_message(STATUSES[i].status);
        CHECK_EQ(STATUSES[i].status, i); /* never renumbered */
        if (strcmp(tgpu_status_name(i), STATUSES[i].name) != 0) FAIL("%d is named %s", i, tgpu_status_name(i));
        CHECK(strlen(message) > 4 && message[strlen(message) - 1] == '.');
        for (int j = 0; j < i; j++) CHECK(strcmp(message, tgpu_status_message(j)) != 0);
    }
}

static void numbers_without_a_name_have_words_too(void) {
    const tgpu_status unknown[] = {-1, STATUS_COUNT, 1000, INT32_MIN, INT32_MAX};
    for (size_t i = 0; i < sizeof unknown / sizeof *unknown; i++) {
        CHECK(strcmp(tgpu_status_name(unknown[i]), "unknown status") == 0);
        CHECK(strlen(tgpu_status_message(unknown[i])) > 0);
    }
}

static void *a_new_thread_has_no_error(void *data) {
    tgpu_error_info info = last();
    char text[8] = "before";
    size_t needed = 99;
    (void)data;
    CHECK_EQ(info.status, TGPU_OK);
    CHECK_EQ(info.device, -1);
    CHECK_EQ(info.stream_id, 0);
    CHECK_EQ(info.native_code, 0);
    CHECK_EQ(info.text[0] | info.backend[0] | info.native_name[0] | info.function[0], 0);
    CHECK_OK(tgpu_error_text(text, sizeof text, &needed));
    CHECK_EQ(needed, 1);
    CHECK_EQ(text[0], 0);
    return NULL;
}

static void a_task_without_a_failure_has_an_empty_last_error(void) {
    on_a_thread(a_new_thread_has_no_error, NULL);
}

static void a_failure_names_the_value_and_the_limit(void) {
    tgpu_error_info info;
    CHECK_REFUSED(tgpu_device_set(99), TGPU_ERROR_INVALID_DEVICE, "99", "3");
    info = last();
    CHECK_EQ(info.status, TGPU_ERROR_INVALID_DEVICE);
    CHECK(strcmp(info.text, last_text()) == 0);
}

static void a_failure_names_the_device_and_the_stream(void) {
    tgpu_launch_config config = TGPU_LAUNCH_CONFIG_INIT;
    struct notes notes = {0};
    tgpu_stream s = stream_on(2);
    tgpu_kernel k = kernel_of(note_kernel_, 1, (const size_t[]){sizeof(struct note_args_)});
    struct note_args_ a = {&notes, 1, 0};
    void *args[1] = {&a};
    config.stream = s;
    config.block[0] = 0;
    CHECK_REFUSED(tgpu_launch(k, &config, args), TGPU_ERROR_INVALID_ARGUMENT, "block.x", "0");
    CHECK_EQ(last().device, 2);
    CHECK_EQ(last().stream_id, stream_id(s));
    CHECK_OK(tgpu_kernel_destroy(k));
    CHECK_OK(tgpu_stream_destroy(s));
}

static void F27_expected_answers_leave_nothing_behind(void) {
    struct gate gate = GATE;
    tgpu_event e = NULL;
    double seconds;
    CHECK_REFUSED(tgpu_device_set(99), TGPU_ERROR_INVALID_DEVICE, "99");
    hold(NULL, &gate);
    CHECK_OK(tgpu_event_create(NULL, &e));
    CHECK_OK(tgpu_event_record(e, NULL));
    CHECK_STATUS(tgpu_stream_query(NULL), TGPU_NOT_READY);
    CHECK_STATUS(tgpu_event_query(e), TGPU_NOT_READY);
    CHECK_STATUS(tgpu_event_elapsed(e, e, &seconds), TGPU_NOT_READY);
    CHECK_STATUS(tgpu_stream_synchronize_timeout(NULL, 1000), TGPU_ERROR_TIMEOUT);
    CHECK_STATUS(tgpu_event_synchronize_timeout(e, 1000), TGPU_ERROR_TIMEOUT);
    CHECK_EQ(last_status(), TGPU_ERROR_INVALID_DEVICE);
    open_gate(&gate);
    CHECK_OK(tgpu_synchronize());
    CHECK_OK(tgpu_device_enable_peer(0, 1));
    CHECK_OK(tgpu_device_enable_peer(0, 1)); /* enabled already: no failure either */
    CHECK_OK(tgpu_event_destroy(e));
    CHECK_EQ(last_status(), TGPU_ERROR_INVALID_DEVICE);
    CHECK(strstr(last_text(), "99"));
}

static void F17_cleaning_up_does_not_lose_the_failure_before(void) {
    char local;
    void *p = NULL;
    tgpu_event e = NULL;
    CHECK_OK(tgpu_malloc(100, &p));
    CHECK_OK(tgpu_event_create(NULL, &e));
    CHECK_REFUSED(tgpu_device_set(99), TGPU_ERROR_INVALID_DEVICE, "99");
    CHECK_OK(tgpu_free(p));
    CHECK_OK(tgpu_event_destroy(e));
    CHECK_STATUS(tgpu_event_destroy(e), TGPU_ERROR_INVALID_HANDLE);
    CHECK_STATUS(tgpu_stream_destroy((tgpu_stream)0xdead), TGPU_ERROR_INVALID_HANDLE);
    CHECK_STATUS(tgpu_stream_destroy(stream_now()), TGPU_ERROR_NOT_PERMITTED);
    CHECK_STATUS(tgpu_kernel_destroy((tgpu_kernel)0xdead), TGPU_ERROR_INVALID_HANDLE);
    CHECK_STATUS(tgpu_module_destroy((tgpu_module)0xdead), TGPU_ERROR_INVALID_HANDLE);
    CHECK_STATUS(tgpu_task_destroy((tgpu_task)0xdead), TGPU_ERROR_INVALID_HANDLE);
    CHECK_STATUS(tgpu_free(p), TGPU_ERROR_INVALID_ARGUMENT);
    CHECK_STATUS(tgpu_free(&local), TGPU_ERROR_INVALID_ARGUMENT);
    CHECK_STATUS(tgpu_free_async(&local, NULL), TGPU_ERROR_INVALID_ARGUMENT);
    CHECK_STATUS(tgpu_free_deferred(&local), TGPU_ERROR_INVALID_ARGUMENT);
    CHECK_STATUS(tgpu_host_free(&local), TGPU_ERROR_INVALID_ARGUMENT);
    CHECK_EQ(last_status(), TGPU_ERROR_INVALID_DEVICE);
    CHECK(strstr(last_text(), "99"));
}

static void *fail_here(void *data) {
    CHECK_REFUSED(tgpu_device_set(*(int *)data), TGPU_ERROR_INVALID_DEVICE, SIGNED(*(int *)data));
    return NULL;
}

static void F28_a_failure_belongs_to_the_task_that_had_it(void) {
    int other = 77;
    CHECK_REFUSED(tgpu_device_set(55), TGPU_ERROR_INVALID_DEVICE, "55");
    on_a_thread(fail_here, &other);
    CHECK(strstr(last_text(), "55"));
}

static void *see_the_failure_of(void *data) {
    tgpu_task before;
    CHECK_EQ(last_status(), TGPU_OK);
    CHECK_OK(tgpu_task_swap(data, &before));
    CHECK(strstr(last_text(), "66"));
    CHECK_OK(tgpu_task_swap(before, NULL));
    CHECK_EQ(last_status(), TGPU_OK);
    return NULL;
}

static void the_last_error_moves_with_the_task(void) {
    tgpu_task task = NULL;
    CHECK_REFUSED(tgpu_device_set(55), TGPU_ERROR_INVALID_DEVICE, "55");
    CHECK_OK(tgpu_task_create(NULL, &task));
    CHECK_OK(tgpu_task_swap(task, NULL));
    CHECK_EQ(last_status(), TGPU_OK);
    CHECK_REFUSED(tgpu_device_set(66), TGPU_ERROR_INVALID_DEVICE, "66");
    CHECK_OK(tgpu_task_swap(NULL, NULL));
    CHECK(strstr(last_text(), "55"));
    on_a_thread(see_the_failure_of, task);
    CHECK_OK(tgpu_task_destroy(task));
}

static void reading_the_error_does_not_change_it(void) {
    char buf[4] = "abc";
    size_t needed = 12345;
    CHECK_REFUSED(tgpu_device_set(99), TGPU_ERROR_INVALID_DEVICE, "99");
    CHECK_STATUS(tgpu_error_text(buf, sizeof buf, NULL), TGPU_ERROR_INVALID_ARGUMENT);
    CHECK_STATUS(tgpu_error_text(NULL, 4, &needed), TGPU_ERROR_INVALID_ARGUMENT);
    CHECK_STATUS(tgpu_error_info_get(NULL), TGPU_ERROR_INVALID_ARGUMENT);
    CHECK_EQ(needed, 12345);
    CHECK(strcmp(buf, "abc") == 0);
    CHECK_EQ(last_status(), TGPU_ERROR_INVALID_DEVICE);
}

static tgpu_status get_error_info(void *out) {
    return tgpu_error_info_get(out);
}

static void error_info_takes_every_struct_size(void) {
    CHECK_REFUSED(tgpu_device_set(99), TGPU_ERROR_INVALID_DEVICE, "99");
    check_output_struct_(get_error_info, sizeof(tgpu_error_info), 0);
}

/* True if the bytes up to the NUL are whole UTF-8 characters of at most two bytes. */
static int whole_characters(const char *text) {
    for (; *text; text++) {
        unsigned char c = (unsigned char)*text;
        if (c < 0x80) continue;
        if (c < 0xc2 || c > 0xdf || ((unsigned char)*++text & 0xc0) != 0x80) return 0;
    }
    return 1;
}

static void a_long_text_outside_ascii(void) {
    int32_t count;
    size_t needed = 0, again = 0;
    CHECK_STATUS(tgpu_device_count(&count), TGPU_ERROR_ENVIRONMENT);
    CHECK_OK(tgpu_error_text(NULL, 0, &needed));
    CHECK(needed > 2000 && needed < 4000);
    char *whole = malloc(needed), *cut = malloc(needed + 1);
    CHECK_OK(tgpu_error_text(whole, needed, &again));
    CHECK_EQ(again, needed);
    CHECK_EQ(strlen(whole), needed - 1);
    if (!whole_characters(whole)) FAIL("not UTF-8: %s", whole);
    for (size_t capacity = 1; capacity < needed; capacity++) {
        memset(cut, 0x77, needed + 1);
        CHECK_OK(tgpu_error_text(cut, capacity, &again));
        CHECK_EQ(again, needed);
        CHECK(strlen(cut) < capacity && strlen(cut) + 2 >= capacity); /* no more is lost than half a character */
        CHECK(strncmp(cut, whole, strlen(cut)) == 0);
        CHECK(whole_characters(cut));
        CHECK_EQ(cut[capacity], 0x77);
    }
    tgpu_error_info info = last();
    CHECK(strlen(info.text) >= sizeof info.text - 2);
    CHECK(strlen(info.text) < sizeof info.text);
    CHECK(strncmp(info.text, whole, strlen(info.text)) == 0);
    CHECK(whole_characters(info.text));
    free(whole), free(cut);
}

static void check_long_text(const char *start) {
    char variable[2100];
    size_t at = (size_t)snprintf(variable, sizeof variable, "TASKGPU_WAIT=%s", start);
    for (; at + 3 < sizeof variable; at += 2) memcpy(variable + at, "\xc3\xbc", 2);
    variable[at] = 0;
    CHECK_CHILD(a_long_text_outside_ascii, variable);
}

static void a_text_is_cut_between_characters_and_can_be_had_whole(void) {
    check_long_text("");
    check_long_text("x"); /* whatever the sizes are, one of the two is cut inside a character */
}

int main(int argc, char **argv) {
    begin(argc, argv);
    AS_CHILD(a_long_text_outside_ascii);
    RUN(every_status_has_its_number_name_and_sentence);
    RUN(numbers_without_a_name_have_words_too);
    RUN(a_task_without_a_failure_has_an_empty_last_error);
    RUN(a_failure_names_the_value_and_the_limit);
    RUN(a_failure_names_the_device_and_the_stream);
    RUN(F27_expected_answers_leave_nothing_behind);
    RUN(F17_cleaning_up_does_not_lose_the_failure_before);
    RUN(F28_a_failure_belongs_to_the_task_that_had_it);
    RUN(the_last_error_moves_with_the_task);
    RUN(reading_the_error_does_not_change_it);
    RUN(error_info_takes_every_struct_size);
    RUN(a_text_is_cut_between_characters_and_can_be_had_whole);
    return end();
}
