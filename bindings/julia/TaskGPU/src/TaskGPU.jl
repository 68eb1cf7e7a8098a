"""
Task-local devices and streams, arrays and kernels, on AMD GPUs, NVIDIA GPUs and the CPU, over the C library `taskgpu`.

The current device and the current stream are properties of the current Julia task: switching either affects only the
task that switches. The words are those of AMDGPU.jl's manual.
"""
module TaskGPU

using FileWatching: FDWatcher
using Libdl: Libdl

export Device, Stream, HIPStream, Event, DeviceArray, ROCArray, Kernel, CompiledModule, GPUError
export devices, device, device!, stream, stream!, synchronize, device_synchronize
export record, wait_for, elapsed, isdone, compile, launch, unsafe_free!
# Public too, but not exported, since Base has these names: `@sync`, `ones`, `zeros`, `fill`.

include("call.jl")
include("api.jl")
include("errors.jl")
include("tasks.jl")
include("waiting.jl")
include("devices.jl")
include("streams.jl")
include("events.jl")
include("arrays.jl")
include("kernels.jl")
include("broadcast.jl")

__init__() = load_library()

end
