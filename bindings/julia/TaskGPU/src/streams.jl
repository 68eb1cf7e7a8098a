const PRIORITIES = (
    normal = API.TGPU_PRIORITY_NORMAL,
    low = API.TGPU_PRIORITY_LOW,
    high = API.TGPU_PRIORITY_HIGH,
)

"""
    Stream(; priority=:normal)
    HIPStream(; priority=:normal)

A new stream on the current device. `priority` is `:normal`, `:low` or `:high`; it may also be given as the only
argument. The current stream stays what it is: see [`stream!`](@ref).

A stream is destroyed when nobody refers to it any more; work already queued finishes.
"""
mutable struct Stream
    handle::API.tgpu_stream
    device::Device

    # A stream that belongs to somebody else.
    Stream(handle::API.tgpu_stream, device::Device) = new(handle, device)

    function Stream(priority::Symbol)
        haskey(PRIORITIES, priority) ||
            throw(ArgumentError("priority is :$priority; it can be :normal, :low or :high"))
        options = Ref(API.tgpu_stream_options(sizeof(API.tgpu_stream_options), PRIORITIES[priority], 0))
        out = Ref{API.tgpu_stream}()
        API.tgpu_stream_create(options, out)
        facts = stream_facts(out[])
        return finalizer(s -> API.tgpu_stream_destroy(s.handle), new(out[], Device(value(facts, :device))))
    end
end

Stream(; priority::Symbol=:normal) = Stream(priority)

"The name that AMDGPU.jl has for a [`Stream`](@ref)."
const HIPStream = Stream

stream_facts(handle) = report(out -> API.tgpu_stream_info_get(handle, out), API.tgpu_stream_info)

"The stream's number, which no other stream of this process ever has."
id(s::Stream) = value(stream_facts(s.handle), :id)

"The priority that the stream has got: devices have fewer levels than three, or none."
priority(s::Stream) = keys(PRIORITIES)[1 + value(stream_facts(s.handle), :effective_priority)]

Base.:(==)(a::Stream, b::Stream) = a.handle == b.handle
Base.hash(s::Stream, h::UInt) = hash(s.handle, hash(:TaskGPUStream, h))
Base.show(io::IO, s::Stream) = print(io, "Stream ", id(s), " on ", s.device)

"""
    stream()

The calling task's current stream on its current device. Until the task sets another one, it is a stream that no other
task has, lent to the task until it ends.
"""
function stream()
    out = Ref{API.tgpu_stream}()
    API.tgpu_stream_get(out)
    current = device()
    kept = get(task_state().streams, current.index, nothing)
    return kept !== nothing && kept.handle == out[] ? kept::Stream : Stream(out[], current)
end

"""
    stream!(s)

Makes `s` the calling task's current stream, and its device the current one. `stream!(nothing)` goes back to the task's
own stream. No order is made between the old and the new stream: see [`wait_for`](@ref).
"""
function stream!(s::Stream)
    API.tgpu_stream_set(s.handle)
    task_state().streams[s.device.index] = s
    return s
end

function stream!(::Nothing)
    API.tgpu_stream_set(C_NULL)
    delete!(task_state().streams, device().index)
    return
end

"""
    stream!(f, s)

Calls `f()` with `s` as the current stream, and restores the device and stream that were current, also if `f` throws.
"""
stream!(f, s::Stream) = GC.@preserve s within(f, out -> API.tgpu_scope_enter_stream(s.handle, out))

"True if everything queued on the stream so far is done."
isdone(s::Stream) = API.tgpu_stream_query(s.handle) == API.TGPU_OK

"""
    synchronize()
    synchronize(s)
    synchronize(e)

Waits until everything queued so far on the current stream, or on `s`, is done, or until the event `e` is reached. Other
Julia tasks run meanwhile.
"""
synchronize() = await_stream(API.tgpu_stream(C_NULL))
synchronize(s::Stream) = GC.@preserve s await_stream(s.handle)

await_stream(handle) = wait_until(
    () -> API.tgpu_stream_query(handle) == API.TGPU_OK,
    descriptor -> API.tgpu_stream_signal_fd(handle, Base.cconvert(Cint, descriptor)),
)

"""
    TaskGPU.@sync expression

Runs the expression, then waits for the current stream. Answers what the expression gives.
"""
macro sync(ex)
    quote
        local result = $(esc(ex))
        synchronize()
        result
    end
end

"""
    wait_for(s, other)
    wait_for(s, e)

Makes later work of the stream `s` wait for everything queued on the stream `other` so far, or for the event `e`. The
caller does not wait.
"""
function wait_for(s::Stream, other::Stream)
    API.tgpu_stream_wait_stream(s.handle, other.handle)
    return
end
