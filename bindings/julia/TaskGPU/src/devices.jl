"""
    Device

One of the devices of this process. `d.index` is its index in the C interface, counted from 0; `d.name`, `d.backend`
(`"hip"`, `"cuda"` or `"host"`), `d.arch`, `d.total_memory` and the other fields of the C struct `tgpu_device_info`
describe it.
"""
struct Device
    index::Int32
end

function Base.getproperty(d::Device, field::Symbol)
    index = getfield(d, :index)
    field === :index && return index
    facts = report(out -> API.tgpu_device_info_get(index, out), API.tgpu_device_info)
    return fieldtype(API.tgpu_device_info, field) <: NTuple{N,Cchar} where {N} ? text(facts, field) : value(facts, field)
end

Base.propertynames(::Device) = (:index, filter(!=(:struct_size), fieldnames(API.tgpu_device_info))...)
Base.show(io::IO, d::Device) = print(io, "Device ", d.index, " (", d.backend, ": ", d.name, ")")

"""
    devices()

All devices, of all backends. Opens none of them.
"""
function devices()
    count = Ref{Int32}()
    API.tgpu_device_count(count)
    return [Device(index) for index in Int32(0):(count[] - Int32(1))]
end

"""
    device()

The calling task's current device. A task that has made no call yet is on the first one.
"""
function device()
    out = Ref{Int32}()
    API.tgpu_device_get(out)
    return Device(out[])
end

"""
    device!(d)

Makes `d` the calling task's current device. Other tasks are not affected, and the task's streams on other devices stay
as they are.
"""
function device!(d::Device)
    API.tgpu_device_set(d.index)
    return d
end

"""
    device!(f, d)

Calls `f()` with `d` as the current device, and restores the device and stream that were current, also if `f` throws.
"""
device!(f, d::Device) = within(f, out -> API.tgpu_scope_enter_device(d.index, out))

# Calls `f` in the scope that `enter` enters.
function within(f, enter)
    kept = task_state().streams
    before = copy(kept)
    outside = device().index
    scope = Ref{API.tgpu_scope}()
    enter(scope)
    inside = device().index
    try
        return f()
    finally
        API.tgpu_scope_leave(scope[])
        # The streams that are current again.
        for index in (outside, inside)
            haskey(before, index) ? (kept[index] = before[index]) : delete!(kept, index)
        end
    end
end

"""
    device_synchronize()

Waits until everything on the calling task's current device is done, the streams of other tasks and of other libraries
included. Other Julia tasks run meanwhile, but for what only other libraries have queued: that is waited for inside the
vendor's runtime. To wait for one's own work, [`synchronize`](@ref) is cheaper.
"""
function device_synchronize()
    wait_for_signal(descriptor -> API.tgpu_device_signal_fd(Base.cconvert(Cint, descriptor)))
    API.tgpu_device_synchronize() # for the work of other libraries, and for an error
    return
end
