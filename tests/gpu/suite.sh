#!/usr/bin/env bash
# The C tests on a machine with an NVIDIA GPU: device 0 is the GPU, three host devices beside it. Needs cc.
# Usage: suite.sh FOLDER [NAME]..., where FOLDER is what `cargo xtask gpu` made. With SUITE_BACKEND=hip the library's HIP side
# runs them, on the HIP runtime of the tests, which runs on CUDA.
set -uo pipefail
here=$(cd "$(dirname "$0")" && pwd)
tests=$here/../../c-tests
folder=$(cd "$1" && pwd)
shift
built=$(mktemp -d)
trap 'rm -rf "$built"' EXIT
ln -sf libtaskgpu.so "$folder/libtaskgpu.so.0.1"
backend=${SUITE_BACKEND:-cuda}
[ "$backend" = hip ] && export "ROCM_PATH=$folder/rocm" HIP_SHIM_BACKEND=cuda HIP_SHIM_DEVICES=1
export TASKGPU_BACKENDS=$backend,host TASKGPU_HOST_DEVICES=3 TASKGPU_HOST_THREADS=4 TASKGPU_LIBRARY=$folder/libtaskgpu.so

skip=" "
# About host devices: their number, their list, their settings, and how they describe themselves.
skip+="host_devices_are_available_and_used what_was_not_asked_for_says_so a_device_describes_itself "
skip+="host_devices_reach_each_other_but_are_no_peers_of_themselves an_empty_variable_is_as_good_as_none "
skip+="host_devices_sets_how_many_there_are visible_devices_picks_and_orders host_memory_sets_what_each_device_has "
skip+="F27_expected_answers_leave_nothing_behind what_cannot_be_imported_is_refused "
# C functions as kernels on every device, or C code that looks into device memory.
skip+="a_kernel_runs_on_every_host_device F37_every_block_runs_once_on_the_streams_device_and_knows_its_place "
skip+="a_free_in_stream_order_comes_after_the_work_before_it F15_destroying_what_other_threads_use_is_safe_and_loses_no_work "
skip+="F18_urgent_work_comes_first "
# What host devices answer where no thread can be had; CUDA does without.
skip+="no_thread_to_be_had_is_answered_and_made_up_for_later "
# Freeing on CUDA waits for the device each time: 20,000 frees take minutes.
skip+="many_deferred_frees_beside_many_streams_cost_little "
# CUDA refuses to copy what is registered in part only.
skip+="what_runs_over_the_end_is_refused_with_both_numbers "
# The capacity of host devices, to the byte.
skip+="free_memory_goes_down_and_up memory_freed_in_stream_order_can_be_had_again_at_once "
skip+="F32_a_hook_may_allocate_and_does_not_call_itself memory_on_its_way_back_is_waited_for "
skip+="pieces_that_the_pool_holds_do_not_stand_in_the_way "
# CUDA starts threads and opens descriptors when devices are counted, and a child of fork cannot use it after that.
skip+="counting_devices_starts_no_thread F10_a_process_that_only_counted_may_fork a_process_that_only_asked_may_fork "
skip+="F10_a_grandchild_after_a_count_may_work_too "
# CUDA calls all callbacks on one thread: one that blocks holds up those that would show that nothing else is held up.
skip+="later_work_waits_for_a_callback F29_a_callback_that_waits_for_the_callers_lock_blocks_no_call "
# CUDA knows freed pinned memory until the reaper has given it back.
skip+="a_pointer_tells_what_it_points_into what_is_not_ours_is_not_freed "
export TASKGPU_TEST_SKIP=$skip

# What is named hip_ needs the HIP runtime of the tests on host devices; cache is about the compiler of host devices.
names=${*:-$(cd "$tests" && ls ./*.c | sed 's/.*\///; s/\.c$//' | grep -v '^hip_\|^cache$')}
passed=0 failed=0 skipped=0
for name in $names; do
    if ! cc -std=c11 -O1 -g -I"$folder/include" "$tests/$name.c" -o "$built/$name" -L"$folder" -ltaskgpu "-Wl,-rpath,$folder" -lpthread -ldl -lm; then
        failed=$((failed + 1))
        continue
    fi
    said=$(timeout 120 "$built/$name" 2>&1)
    code=$?
    count=$(printf '%s\n' "$said" | grep -c '^ok ')
    passed=$((passed + count))
    skipped=$((skipped + $(printf '%s\n' "$said" | grep -c '^skipped ')))
    [ "$code" -eq 0 ] && continue
    printf 'FAILED %s (%s): %s\n' "$name" "$code" "$(printf '%s\n' "$said" | grep -v '^ok \|^skipped ' | head -c 600)"
    failed=$((failed + 1))
    # What comes after it, each in a process of its own.
    for test in $(sed -n 's/^ *RUN\(_IN_CHILD\)\?(\([A-Za-z0-9_]*\).*/\2/p' "$tests/$name.c" | tail -n "+$((count + 2))"); do
        said=$(TASKGPU_TEST_ONLY=$test timeout 60 "$built/$name" 2>&1)
        code=$?
        if [ "$code" -eq 0 ]; then
            passed=$((passed + 1))
        else
            failed=$((failed + 1))
            printf 'FAILED %s %s (%s): %s\n' "$name" "$test" "$code" "$(printf '%s\n' "$said" | head -c 600)"
        fi
    done
done
echo "$passed passed, $failed failed, $skipped skipped"
[ "$failed" -eq 0 ]
