#!/usr/bin/env bash
# Tests and figures that need two NVIDIA GPUs or more: once on CUDA, once on HIP by way of tests/hip-shim. Needs cc.
# Usage: multi.sh FOLDER, where FOLDER is what `cargo xtask gpu` made.
set -uo pipefail
here=$(cd "$(dirname "$0")" && pwd)
folder=$(cd "$1" && pwd)
gpus=$(nvidia-smi --query-gpu=uuid --format=csv,noheader | wc -l)
if [ "$gpus" -lt 2 ]; then
    echo "this machine has $gpus GPU; two are needed"
    exit 77
fi
ln -sf libtaskgpu.so "$folder/libtaskgpu.so.0.1"
. "$here/wheels.sh"
export LD_LIBRARY_PATH="${LD_LIBRARY_PATH:-}:$wheels"
nvidia-smi --query-gpu=name,driver_version --format=csv,noheader
cc -std=c11 -O1 -g -I"$folder/include" "$here/multi.c" -o /tmp/taskgpu-multi -L"$folder" -ltaskgpu "-Wl,-rpath,$folder" -lpthread -ldl || exit 1
failed=0
echo "== on CUDA"
TASKGPU_BACKENDS=cuda timeout 300 /tmp/taskgpu-multi || failed=1
TASKGPU_BACKENDS=cuda timeout 300 /tmp/taskgpu-multi --measure || failed=1
echo "== on HIP, carried out on CUDA"
hip=(env TASKGPU_BACKENDS=hip "ROCM_PATH=$folder/rocm" HIP_SHIM_BACKEND=cuda "HIP_SHIM_DEVICES=$gpus")
timeout 300 "${hip[@]}" /tmp/taskgpu-multi || failed=1
timeout 300 "${hip[@]}" /tmp/taskgpu-multi --measure || failed=1
exit $failed
