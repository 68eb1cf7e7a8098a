/* The tests of the core that do not run on the HIP runtime of tests/hip-shim, and why. Each says something about host
 * devices alone; what HIP does in its place is in the programs named hip_*.c. */
#ifndef HOST_ONLY_H
#define HOST_ONLY_H

static const struct {
    const char *test, *reason;
} HOST_ONLY[] = {
    {"host_devices_are_available_and_used", "there are none"},
    {"what_was_not_asked_for_says_so", "HIP was asked for"},
    {"an_empty_variable_is_as_good_as_none", "it counts host devices"},
    {"host_devices_sets_how_many_there_are", "it counts host devices"},
    {"F10_a_process_that_only_counted_may_fork", "a count starts the vendor's runtime"},
    {"a_process_that_only_asked_may_fork", "a count starts the vendor's runtime"},
    {"F10_a_grandchild_after_a_count_may_work_too", "a count starts the vendor's runtime"},
    {"a_kernel_gets_its_data_pointer", "only kernels made of host functions have one"},
    {"F29_inside_a_kernel_calls_are_refused_and_cleaning_up_is_fine", "no kernel of a GPU calls the library"},
    {"host_devices_say_that_they_take_no_modules", "HIP devices take them"},
    {"bad_compile_options_are_refused", "good ones need a compiler that the runtime of the tests does not have"},
    {"compile_options_take_every_struct_size", "good ones need a compiler that the runtime of the tests does not have"},
};

#endif
