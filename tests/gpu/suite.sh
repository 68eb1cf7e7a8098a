#!/usr/bin/env bash
# The C tests on a machine with an NVIDIA GPU: device 0 is the GPU, three host devices beside it. Needs cc.
# Usage: suite.sh FOLDER [NAME]..., where FOLDER has libtaskgpu.so and include/.
set -uo pipefail
here=$(cd "$(dirname "$0")" && pwd)
tests=$here/../../c-tests
folder=$(cd "$1" && pwd)
shift
built=$(mktemp -d)
trap 'rm -rf "$built"' EXIT
ln -sf libtaskgpu.so "$folder/libtaskgpu.so.0.1"
export TASKGPU_BACKENDS=cuda,host TASKGPU_HOST_DEVICES=3 TASKGPU_HOST_THREADS=4
names=${*:-$(cd "$tests" && ls ./*.c | sed 's/.*\///; s/\.c$//')}
passed=0 failed=0
for name in $names; do
    cc -std=c11 -O1 -g -I"$folder/include" "$tests/$name.c" -o "$built/$name" -L"$folder" -ltaskgpu "-Wl,-rpath,$folder" -lpthread -ldl || failed=$((failed + 1))
    # Each test in a process of its own, so that one that fails hides no other.
    for test in $(sed -n 's/^ *RUN\(_IN_CHILD\)\?(\([A-Za-z0-9_]*\).*/\2/p' "$tests/$name.c"); do
        said=$(TASKGPU_TEST_ONLY=$test timeout 60 "$built/$name" 2>&1)
        code=$?
        if [ "$code" -eq 0 ]; then
            passed=$((passed + 1))
        else
            failed=$((failed + 1))
            printf 'FAILED %s %s (%s): %s\n' "$name" "$test" "$code" "$(printf %s "$said" | head -c 400)"
        fi
    done
done
echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ]
