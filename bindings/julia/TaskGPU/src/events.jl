"""
    Event(; timing=true)

A point in a stream, once it is recorded with [`record`](@ref). Streams and tasks can wait for it, and two of them measure
the time between. `timing=false` makes it cheaper on GPUs.
"""
mutable struct Event
    handle::API.tgpu_event

    function Event(; timing::Bool=true)
        flags = timing ? UInt32(0) : API.TGPU_EVENT_DISABLE_TIMING
        options = Ref(API.tgpu_event_options(sizeof(API.tgpu_event_options), flags))
        out = Ref{API.tgpu_event}()
        API.tgpu_event_create(options, out)
        return finalizer(e -> API.tgpu_event_destroy(e.handle), new(out[]))
    end
end

"""
    record(e)
    record(e, s)

Marks the point that the current stream, or `s`, has reached now. Answers the event.
"""
function record(e::Event, s::Union{Stream,Nothing}=nothing)
    API.tgpu_event_record(e.handle, handle_of(s))
    return e
end

# NULL is the current stream.
handle_of(s::Stream) = s.handle
handle_of(::Nothing) = API.tgpu_stream(C_NULL)

"True if the event has been reached, or was never recorded."
isdone(e::Event) = API.tgpu_event_query(e.handle) == API.TGPU_OK

synchronize(e::Event) = GC.@preserve e wait_until(
    () -> isdone(e),
    descriptor -> API.tgpu_event_signal_fd(e.handle, Base.cconvert(Cint, descriptor)),
)

function wait_for(s::Stream, e::Event)
    API.tgpu_stream_wait_event(s.handle, e.handle)
    return
end

"""
    elapsed(start, stop)

The seconds between two events of one device. Waits for both.
"""
function elapsed(start::Event, stop::Event)
    synchronize(start)
    synchronize(stop)
    out = Ref{Cdouble}()
    API.tgpu_event_elapsed(start.handle, stop.handle, out)
    return out[]
end
