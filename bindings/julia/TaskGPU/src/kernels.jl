"""
    compile(source; name="kernel", options=String[], instances=String[])

Compiles HIP C++ source for the current device now, and for others when it is first used there. `name` is what the
compiler's messages call the source; `instances` are template instances such as `"scale<float>"` that [`Kernel`](@ref)
shall find by these names. If it does not compile, the `text` of the [`GPUError`](@ref) is the compiler's log.
"""
mutable struct CompiledModule
    handle::API.tgpu_module

    function CompiledModule(source, name, options, instances)
        out = Ref{API.tgpu_module}()
        texts, names = String.(options), String.(instances)
        name = String(name)
        GC.@preserve name texts names begin
            addresses(list) = Cstring[Base.unsafe_convert(Cstring, text) for text in list]
            option_list, name_list = addresses(texts), addresses(names)
            GC.@preserve option_list name_list begin
                how = Ref(API.tgpu_compile_options(
                    sizeof(API.tgpu_compile_options),
                    Base.unsafe_convert(Cstring, name),
                    pointer(option_list),
                    length(option_list),
                    pointer(name_list),
                    length(name_list),
                ))
                API.tgpu_module_compile(String(source), how, out)
            end
        end
        return finalizer(m -> API.tgpu_module_destroy(m.handle), new(out[]))
    end
end

compile(source::AbstractString; name="kernel", options=String[], instances=String[]) =
    CompiledModule(source, name, options, instances)
@doc (@doc CompiledModule) compile

"""
    Kernel(m::CompiledModule, name)
    Kernel(f::Ptr{Cvoid}, argument_types...)

A function that [`launch`](@ref) runs: one of a compiled module, for every device, or a C function for host devices only
(`tgpu_host_kernel` in the C header). That must be a function of a C library: threads that Julia does not know call it,
so a `@cfunction` would crash or hang.
"""
mutable struct Kernel
    handle::API.tgpu_kernel

    function Kernel(m::CompiledModule, name::AbstractString)
        out = Ref{API.tgpu_kernel}()
        API.tgpu_kernel_get(m.handle, String(name), out)
        return owned(new(out[]))
    end

    function Kernel(f::Ptr{Cvoid}, argument_types::Type...)
        out = Ref{API.tgpu_kernel}()
        sizes = Csize_t[sizeof(type) for type in argument_types]
        API.tgpu_kernel_from_host_fn(f, C_NULL, length(sizes), sizes, out)
        return owned(new(out[]))
    end

    owned(k) = finalizer(k -> API.tgpu_kernel_destroy(k.handle), k)
end

# What a kernel is given for an argument.
kernel_value(x::DeviceArray) = x.pointer
kernel_value(x) =
    isbits(x) ? x : throw(ArgumentError("a kernel cannot be given a $(typeof(x)): it can be a DeviceArray or plain bits"))

three(x::Integer) = (UInt32(x), UInt32(1), UInt32(1))
three(x::NTuple{N,Integer}) where {N} = N <= 3 ? ntuple(i -> i <= N ? UInt32(x[i]) : UInt32(1), 3) :
    throw(ArgumentError("a shape has at most 3 dimensions, not $N"))

"""
    launch(kernel, arguments...; grid=1, block=1, shared=0, stream=nothing)

Queues a kernel on `stream`, or on the current one. `grid` is how many blocks, `block` how many threads each has: a number
or a tuple of up to three. `shared` is bytes of dynamic shared memory for each block. An argument is a
[`DeviceArray`](@ref), which the kernel gets as a pointer, or a value of plain bits, whose type must be the kernel's.

An array that nobody refers to after the launch is kept until the kernel is done.
"""
function launch(k::Kernel, arguments...; grid=1, block=1, shared::Integer=0, stream::Union{Stream,Nothing}=nothing)
    values = map(x -> Ref(kernel_value(x)), arguments)
    config = Ref(API.tgpu_launch_config(
        sizeof(API.tgpu_launch_config), three(grid), three(block), shared, handle_of(stream),
    ))
    GC.@preserve arguments values begin
        addresses = Ptr{Cvoid}[Base.unsafe_convert(Ptr{Cvoid}, value) for value in values]
        API.tgpu_launch(k.handle, config, addresses)
    end
    return
end

"A shape for `items` threads on the current device, as `grid` and `block`, from what keeps it busiest."
function suggest(k::Kernel, items::Integer)
    grid, block = Ref{UInt32}(), Ref{UInt32}()
    API.tgpu_kernel_suggest(k.handle, items, grid, block)
    return (grid=grid[], block=block[])
end
