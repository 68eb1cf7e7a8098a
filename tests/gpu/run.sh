#!/usr/bin/env bash
# Tests on a machine with an NVIDIA GPU. Needs cc, and python3 with torch for a part. Usage: run.sh FOLDER, where FOLDER
# is what `cargo xtask gpu` made.
set -uo pipefail
here=$(cd "$(dirname "$0")" && pwd)
folder=$(cd "$1" && pwd)
ln -sf libtaskgpu.so "$folder/libtaskgpu.so.0.1"
. "$here/wheels.sh"
export TASKGPU_BACKENDS=cuda LD_LIBRARY_PATH="${LD_LIBRARY_PATH:-}:$wheels"
failed=0
cc -std=gnu11 -O1 -g -I"$folder/include" "$here/abi.c" -o /tmp/taskgpu-abi -L"$folder" -ltaskgpu "-Wl,-rpath,$folder" -lpthread || failed=1
/tmp/taskgpu-abi || failed=1
"$here/suite.sh" "$folder" || failed=1
# Each in a process of its own: some take the device down.
for test in $("$folder/cuda_backend" --list 2> /dev/null | sed -n 's/: test$//p'); do
    said=$(TASKGPU_TEST_CUDA=required timeout 60 "$folder/cuda_backend" --exact "$test" 2>&1) && echo "ok $test" && continue
    printf 'FAILED %s\n%s\n' "$test" "$said"
    failed=1
done
timeout 120 python3 "$here/interop.py" "$folder" || failed=1
if command -v compute-sanitizer > /dev/null; then
    # Without what provokes a fault, races a kernel or runs in processes of its own. The driver is asked for a kernel's
    # parameters until it answers that there are no more, which the tool takes for an error of the program.
    timeout 120 compute-sanitizer --tool memcheck --report-api-errors no --error-exitcode 9 /tmp/taskgpu-abi --alone 2>&1 | grep -v "^ok" || failed=1
fi
exit $failed
