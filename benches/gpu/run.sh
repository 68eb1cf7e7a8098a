#!/usr/bin/env bash
# Builds and runs the table for NVIDIA GPUs. Needs nvcc, and python3 with torch. Usage: run.sh FOLDER, where FOLDER has
# libtaskgpu.so and include/.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
folder=$(cd "$1" && pwd)
torch=$(python3 -c 'import torch, os; print(os.path.dirname(torch.__file__))')
abi=$(python3 -c 'import torch; print(int(torch.compiled_with_cxx11_abi()))')
ln -sf libtaskgpu.so "$folder/libtaskgpu.so.0.1"
nvidia-smi --query-gpu=name,driver_version --format=csv,noheader
cc -O2 -fPIC -shared -o "$folder/libfloor.so" "$here/../floor.c"
nvcc -O2 -std=c++17 -w "-D_GLIBCXX_USE_CXX11_ABI=$abi" -I"$folder/include" -I"$torch/include" \
    -I"$torch/include/torch/csrc/api/include" -o /tmp/taskgpu-gpu-bench "$here/gpu.cu" -L"$folder" -ltaskgpu -lfloor -L"$torch/lib" \
    -Xlinker --no-as-needed -lc10 -lc10_cuda -ltorch_cpu -ltorch_cuda -ltorch -lcuda \
    -Xlinker "-rpath=$torch/lib" -Xlinker "-rpath=$folder"
export TASKGPU_BACKENDS=cuda
. "$here/../../tests/gpu/wheels.sh"
LD_LIBRARY_PATH="${LD_LIBRARY_PATH:-}:$wheels" /tmp/taskgpu-gpu-bench
