"""
The C interface, as `include/taskgpu.h` declares it. `cargo xtask julia --check` compares every constant, struct and
function here with the header, so keep the C names and write one declaration after the other.

A function declared with `@call` acts for the calling Julia task and throws a `GPUError` if it fails; one declared with
`@plain` is the bare C call.
"""
module API

using ..TaskGPU: @call, @plain

const TGPU_ABI_VERSION = Int32(1)
const TGPU_OK = Int32(0)
const TGPU_NOT_READY = Int32(1)
const TGPU_ERROR_INVALID_ARGUMENT = Int32(2)
const TGPU_ERROR_INVALID_HANDLE = Int32(3)
const TGPU_ERROR_INVALID_DEVICE = Int32(4)
const TGPU_ERROR_NO_DEVICE = Int32(5)
const TGPU_ERROR_OUT_OF_MEMORY = Int32(6)
const TGPU_ERROR_NOT_SUPPORTED = Int32(7)
const TGPU_ERROR_NOT_FOUND = Int32(8)
const TGPU_ERROR_NOT_PERMITTED = Int32(9)
const TGPU_ERROR_TIMEOUT = Int32(10)
const TGPU_ERROR_COMPILE_FAILED = Int32(11)
const TGPU_ERROR_INVALID_IMAGE = Int32(12)
const TGPU_ERROR_LAUNCH_FAILED = Int32(13)
const TGPU_ERROR_DEVICE_LOST = Int32(14)
const TGPU_ERROR_CAPTURING = Int32(15)
const TGPU_ERROR_IN_CALLBACK = Int32(16)
const TGPU_ERROR_TASK_BUSY = Int32(17)
const TGPU_ERROR_SCOPE_MISMATCH = Int32(18)
const TGPU_ERROR_FORKED = Int32(19)
const TGPU_ERROR_ENVIRONMENT = Int32(20)
const TGPU_ERROR_BACKEND = Int32(21)
const TGPU_ERROR_INTERNAL = Int32(22)
const TGPU_PRIORITY_NORMAL = Int32(0)
const TGPU_PRIORITY_LOW = Int32(1)
const TGPU_PRIORITY_HIGH = Int32(2)
const TGPU_STREAM_LEGACY_ORDER = UInt32(1)
const TGPU_STREAM_LEASED = Int32(0)
const TGPU_STREAM_OWNED = Int32(1)
const TGPU_STREAM_IMPORTED = Int32(2)
const TGPU_WAIT_AUTO = Int32(0)
const TGPU_WAIT_SPIN = Int32(1)
const TGPU_WAIT_BLOCK = Int32(2)
const TGPU_EVENT_DISABLE_TIMING = UInt32(1)
const TGPU_TASK_INHERIT_DEVICE = UInt32(1)
const TGPU_TASK_INHERIT_WAIT_POLICY = UInt32(2)
const TGPU_TASK_INHERIT_ORDER = UInt32(4)
const TGPU_POINTER_UNKNOWN = Int32(0)
const TGPU_POINTER_DEVICE = Int32(1)
const TGPU_POINTER_HOST_PINNED = Int32(2)
const TGPU_POINTER_HOST_REGISTERED = Int32(3)

# Handles are numbers; nothing is ever read through them.
for handle in (:stream, :event, :task, :module, :kernel)
    type = Symbol(:tgpu_, handle, :_s)
    @eval struct $type end
    @eval const $(Symbol(:tgpu_, handle)) = Ptr{$type}
end

const tgpu_status = Int32
const tgpu_device = Int32

# Pointers to C functions. None may be made of a Julia function: they are called by threads that Julia does not know.
const tgpu_callback = Ptr{Cvoid}
const tgpu_reclaim_hook = Ptr{Cvoid}
const tgpu_host_kernel = Ptr{Cvoid}

struct tgpu_error_info
    struct_size::Csize_t
    status::tgpu_status
    device::Int32
    stream_id::UInt64
    native_code::Int64
    backend::NTuple{16,Cchar}
    native_name::NTuple{64,Cchar}
    var"function"::NTuple{64,Cchar}
    text::NTuple{512,Cchar}
end

struct tgpu_backend_info
    struct_size::Csize_t
    available::Int32
    device_count::Int32
    name::NTuple{16,Cchar}
    version::NTuple{64,Cchar}
    path::NTuple{256,Cchar}
    reason::NTuple{512,Cchar}
end

struct tgpu_device_info
    struct_size::Csize_t
    device::tgpu_device
    ordinal::Int32
    backend::NTuple{16,Cchar}
    name::NTuple{256,Cchar}
    arch::NTuple{64,Cchar}
    uuid::NTuple{16,UInt8}
    pci::NTuple{32,Cchar}
    total_memory::UInt64
    max_shared_per_block::UInt64
    compute_units::UInt32
    warp_size::UInt32
    max_threads_per_block::UInt32
    max_block::NTuple{3,UInt32}
    max_grid::NTuple{3,UInt32}
    priority_least::Int32
    priority_greatest::Int32
    hardware_queues::UInt32
    memory_pools::Int32
end

struct tgpu_stream_options
    struct_size::Csize_t
    priority::Int32
    flags::UInt32
end

struct tgpu_stream_info
    struct_size::Csize_t
    device::tgpu_device
    priority::Int32
    effective_priority::Int32
    native_priority::Int32
    kind::Int32
    capturing::Int32
    id::UInt64
end

struct tgpu_event_options
    struct_size::Csize_t
    flags::UInt32
end

struct tgpu_scope
    opaque::NTuple{2,UInt64}
end

struct tgpu_task_options
    struct_size::Csize_t
    flags::UInt32
end

struct tgpu_pointer_info
    struct_size::Csize_t
    kind::Int32
    device::tgpu_device
    base::Ptr{Cvoid}
    size::UInt64
end

struct tgpu_compile_options
    struct_size::Csize_t
    name::Cstring
    options::Ptr{Cstring}
    option_count::Csize_t
    name_expressions::Ptr{Cstring}
    name_expression_count::Csize_t
end

struct tgpu_kernel_info
    struct_size::Csize_t
    max_threads_per_block::UInt32
    registers::UInt32
    warp_size::UInt32
    reserved::UInt32
    static_shared_bytes::UInt64
    local_bytes::UInt64
end

struct tgpu_launch_config
    struct_size::Csize_t
    grid::NTuple{3,UInt32}
    block::NTuple{3,UInt32}
    shared_bytes::UInt64
    stream::tgpu_stream
end

# Version
@plain tgpu_version()::UInt32
@plain tgpu_abi_version()::UInt32
@plain tgpu_version_string()::Cstring

# Errors
@plain tgpu_status_name(status::tgpu_status)::Cstring
@plain tgpu_status_message(status::tgpu_status)::Cstring
@plain tgpu_error_info_get(out::Ptr{tgpu_error_info})::tgpu_status
@plain tgpu_error_text(buf::Ptr{Cchar}, capacity::Csize_t, needed::Ptr{Csize_t})::tgpu_status

# Backends
@call tgpu_backend_info_get(index::Int32, out::Ptr{tgpu_backend_info})::tgpu_status

# Devices
@call tgpu_device_count(out::Ptr{Int32})::tgpu_status
@call tgpu_device_get(out::Ptr{tgpu_device})::tgpu_status
@call tgpu_device_set(d::tgpu_device)::tgpu_status
@call tgpu_device_default_set(d::tgpu_device)::tgpu_status
@call tgpu_device_info_get(d::tgpu_device, out::Ptr{tgpu_device_info})::tgpu_status
@call tgpu_device_memory(d::tgpu_device, free_bytes::Ptr{UInt64}, total_bytes::Ptr{UInt64})::tgpu_status
@call tgpu_device_synchronize()::tgpu_status
@call tgpu_device_signal_fd(fd::Cint)::tgpu_status
@call tgpu_device_can_access_peer(d::tgpu_device, peer::tgpu_device, out::Ptr{Int32})::tgpu_status
@call tgpu_device_enable_peer(d::tgpu_device, peer::tgpu_device)::tgpu_status
@call tgpu_device_native(d::tgpu_device, out::Ptr{UInt64})::tgpu_status

# Streams
@call tgpu_stream_create(options::Ptr{tgpu_stream_options}, out::Ptr{tgpu_stream})::tgpu_status
@plain tgpu_stream_destroy(s::tgpu_stream)::tgpu_status
@call tgpu_stream_get(out::Ptr{tgpu_stream})::tgpu_status
@call tgpu_stream_set(s::tgpu_stream)::tgpu_status
@call tgpu_stream_query(s::tgpu_stream)::tgpu_status
@call tgpu_stream_synchronize(s::tgpu_stream)::tgpu_status
@call tgpu_stream_synchronize_timeout(s::tgpu_stream, ns::UInt64)::tgpu_status
@call tgpu_stream_wait_event(s::tgpu_stream, e::tgpu_event)::tgpu_status
@call tgpu_stream_wait_stream(s::tgpu_stream, other::tgpu_stream)::tgpu_status
@call tgpu_stream_info_get(s::tgpu_stream, out::Ptr{tgpu_stream_info})::tgpu_status
@call tgpu_stream_import(d::tgpu_device, native::Ptr{Cvoid}, out::Ptr{tgpu_stream})::tgpu_status
@call tgpu_stream_native(s::tgpu_stream, out::Ptr{Ptr{Cvoid}})::tgpu_status
@call tgpu_stream_add_callback(s::tgpu_stream, fn::tgpu_callback, data::Ptr{Cvoid})::tgpu_status
@call tgpu_stream_signal_fd(s::tgpu_stream, fd::Cint)::tgpu_status

# Waiting
@call tgpu_synchronize()::tgpu_status
@call tgpu_wait_policy_set(policy::Int32)::tgpu_status
@call tgpu_wait_policy_get(out::Ptr{Int32})::tgpu_status

# Events
@call tgpu_event_create(options::Ptr{tgpu_event_options}, out::Ptr{tgpu_event})::tgpu_status
@plain tgpu_event_destroy(e::tgpu_event)::tgpu_status
@call tgpu_event_record(e::tgpu_event, s::tgpu_stream)::tgpu_status
@call tgpu_event_query(e::tgpu_event)::tgpu_status
@call tgpu_event_synchronize(e::tgpu_event)::tgpu_status
@call tgpu_event_synchronize_timeout(e::tgpu_event, ns::UInt64)::tgpu_status
@call tgpu_event_elapsed(start::tgpu_event, stop::tgpu_event, seconds::Ptr{Cdouble})::tgpu_status
@call tgpu_event_signal_fd(e::tgpu_event, fd::Cint)::tgpu_status
@call tgpu_event_native(e::tgpu_event, out::Ptr{Ptr{Cvoid}})::tgpu_status

# Scopes
@call tgpu_scope_enter_device(d::tgpu_device, out::Ptr{tgpu_scope})::tgpu_status
@call tgpu_scope_enter_stream(s::tgpu_stream, out::Ptr{tgpu_scope})::tgpu_status
@call tgpu_scope_leave(scope::tgpu_scope)::tgpu_status

# Tasks
@plain tgpu_task_create(options::Ptr{tgpu_task_options}, out::Ptr{tgpu_task})::tgpu_status
@plain tgpu_task_destroy(t::tgpu_task)::tgpu_status
@call tgpu_task_current(out::Ptr{tgpu_task})::tgpu_status
@plain tgpu_task_swap(next::tgpu_task, previous::Ptr{tgpu_task})::tgpu_status

# Memory
@call tgpu_malloc(bytes::UInt64, out::Ptr{Ptr{Cvoid}})::tgpu_status
@call tgpu_free(p::Ptr{Cvoid})::tgpu_status
@call tgpu_malloc_async(bytes::UInt64, s::tgpu_stream, out::Ptr{Ptr{Cvoid}})::tgpu_status
@call tgpu_free_async(p::Ptr{Cvoid}, s::tgpu_stream)::tgpu_status
@plain tgpu_free_deferred(p::Ptr{Cvoid})::tgpu_status
@call tgpu_host_malloc(bytes::UInt64, out::Ptr{Ptr{Cvoid}})::tgpu_status
@plain tgpu_host_free(p::Ptr{Cvoid})::tgpu_status
@call tgpu_host_register(p::Ptr{Cvoid}, bytes::UInt64)::tgpu_status
@call tgpu_host_unregister(p::Ptr{Cvoid})::tgpu_status
@call tgpu_memcpy(dst::Ptr{Cvoid}, src::Ptr{Cvoid}, bytes::UInt64, s::tgpu_stream)::tgpu_status
@call tgpu_memset(dst::Ptr{Cvoid}, byte::UInt8, bytes::UInt64, s::tgpu_stream)::tgpu_status
@call tgpu_fill(
    dst::Ptr{Cvoid}, pattern::Ptr{Cvoid}, pattern_size::UInt64, count::UInt64, s::tgpu_stream
)::tgpu_status
@call tgpu_pointer_info_get(p::Ptr{Cvoid}, out::Ptr{tgpu_pointer_info})::tgpu_status
@call tgpu_memory_trim(d::tgpu_device, keep_bytes::UInt64)::tgpu_status
@call tgpu_memory_reclaim_hook_add(fn::tgpu_reclaim_hook, data::Ptr{Cvoid})::tgpu_status

# Modules
@call tgpu_module_load(image::Ptr{Cvoid}, bytes::Csize_t, out::Ptr{tgpu_module})::tgpu_status
@call tgpu_module_compile(
    source::Cstring, options::Ptr{tgpu_compile_options}, out::Ptr{tgpu_module}
)::tgpu_status
@call tgpu_module_prepare(m::tgpu_module, d::tgpu_device)::tgpu_status
@call tgpu_module_global_get(
    m::tgpu_module, d::tgpu_device, name::Cstring, out::Ptr{Ptr{Cvoid}}, bytes::Ptr{UInt64}
)::tgpu_status
@plain tgpu_module_destroy(m::tgpu_module)::tgpu_status

# Kernels
@call tgpu_kernel_get(m::tgpu_module, name::Cstring, out::Ptr{tgpu_kernel})::tgpu_status
@call tgpu_kernel_from_host_fn(
    fn::tgpu_host_kernel, data::Ptr{Cvoid}, n_args::Csize_t, arg_sizes::Ptr{Csize_t}, out::Ptr{tgpu_kernel}
)::tgpu_status
@plain tgpu_kernel_destroy(k::tgpu_kernel)::tgpu_status
@call tgpu_kernel_info_get(k::tgpu_kernel, d::tgpu_device, out::Ptr{tgpu_kernel_info})::tgpu_status
@call tgpu_kernel_suggest(k::tgpu_kernel, items::UInt64, grid::Ptr{UInt32}, block::Ptr{UInt32})::tgpu_status

# Launch
@call tgpu_launch(k::tgpu_kernel, config::Ptr{tgpu_launch_config}, args::Ptr{Ptr{Cvoid}})::tgpu_status

end
