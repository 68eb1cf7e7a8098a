"""
    DeviceArray{T}(undef, dims...)
    DeviceArray(host_array)

An array in the memory of the device that is current when it is made. `Array(x)` copies it back, `copyto!` copies in any
direction, also between devices; nothing moves between devices by itself.

It is made, filled and copied in the order of the current stream, and takes part in what its task queues there. Before
another task or stream uses it, one must [`synchronize`](@ref) or [`wait_for`](@ref). Single elements cannot be read or
written from the host.

Its memory is given back when nobody refers to it any more, once what is queued on its device has passed, or at once with
[`unsafe_free!`](@ref).
"""
mutable struct DeviceArray{T,N} <: AbstractArray{T,N}
    pointer::Ptr{T}
    dims::NTuple{N,Int}
    device::Device

    function DeviceArray{T,N}(::UndefInitializer, dims::NTuple{N,Int}) where {T,N}
        isbitstype(T) || throw(ArgumentError("elements of type $T are not plain bits"))
        all(>=(0), dims) || throw(ArgumentError("a dimension is negative: $dims"))
        bytes = reduce(Base.checked_mul, dims; init=sizeof(T))
        return finalizer(free_finalized, new(allocate(bytes), dims, device()))
    end
end

DeviceArray{T}(::UndefInitializer, dims::NTuple{N,Int}) where {T,N} = DeviceArray{T,N}(undef, dims)
DeviceArray{T}(::UndefInitializer, dims::Integer...) where {T} = DeviceArray{T}(undef, map(Int, dims))
DeviceArray(host::Array{T,N}) where {T,N} = copyto!(DeviceArray{T,N}(undef, size(host)), host)
DeviceArray(host::AbstractArray) = DeviceArray(Array(host))

"The name that AMDGPU.jl has for a [`DeviceArray`](@ref)."
const ROCArray = DeviceArray

# Memory that arrays still hold without need is only found by a collection, which knows nothing of device memory.
const COLLECTIONS_BEFORE_GIVING_UP = 2

function allocate(bytes)
    out = Ref{Ptr{Cvoid}}()
    for collections in 0:COLLECTIONS_BEFORE_GIVING_UP
        try
            API.tgpu_malloc_async(bytes, C_NULL, out)
            break
        catch error
            out_of_memory = error isa GPUError && error.status == API.TGPU_ERROR_OUT_OF_MEMORY
            out_of_memory && collections < COLLECTIONS_BEFORE_GIVING_UP || rethrow()
            GC.gc()
            synchronize() # what is freed late is freed after what is queued now
        end
    end
    return out[]
end

free_finalized(x::DeviceArray) = API.tgpu_free_deferred(x.pointer)

"""
    unsafe_free!(x)

Gives the array's memory back after what is queued on the current stream, without waiting for the garbage collector. The
array must not be used any more.
"""
function unsafe_free!(x::DeviceArray)
    API.tgpu_free_async(x.pointer, C_NULL)
    x.pointer = C_NULL
    return
end

Base.size(x::DeviceArray) = x.dims
Base.pointer(x::DeviceArray) = x.pointer
Base.unsafe_convert(::Type{Ptr{T}}, x::DeviceArray) where {T} = Ptr{T}(x.pointer)
Base.IndexStyle(::Type{<:DeviceArray}) = IndexLinear()
Base.similar(::DeviceArray, ::Type{T}, dims::Dims) where {T} = DeviceArray{T}(undef, dims)

"The device whose memory the array is in."
device(x::DeviceArray) = x.device

no_elements() = error("single elements of a DeviceArray cannot be accessed; copy it to the host with Array(x) first")
Base.getindex(::DeviceArray, ::Integer...) = no_elements()
Base.setindex!(::DeviceArray, value, ::Integer...) = no_elements()

Base.show(io::IO, x::DeviceArray) = show(io, Array(x))
function Base.show(io::IO, kind::MIME"text/plain", x::DeviceArray)
    println(io, summary(x), " on ", x.device, ":")
    Base.print_array(IOContext(io, :compact => true), Array(x))
end

bytes_of(x) = sizeof(eltype(x)) * length(x)

function check_lengths(dst, src)
    length(dst) == length(src) && eltype(dst) == eltype(src) && return
    throw(DimensionMismatch("cannot copy $(summary(src)) to $(summary(dst))"))
end

function Base.copyto!(dst::DeviceArray, src::DeviceArray)
    check_lengths(dst, src)
    API.tgpu_memcpy(dst, src, bytes_of(src), C_NULL)
    return dst
end

# Copies with the host's memory are done when they return. The device may still be reading or writing it if the wait is
# interrupted, so then it is waited for where nothing can interrupt, before the array can be collected.
function copy_with_host!(dst, src, host)
    check_lengths(dst, src)
    synchronize() # or the copy might wait for earlier work inside the library
    GC.@preserve host begin
        API.tgpu_memcpy(dst, src, bytes_of(src), C_NULL)
        try
            synchronize()
        catch
            API.tgpu_synchronize()
            rethrow()
        end
    end
    return dst
end

Base.copyto!(dst::DeviceArray, src::Array) = copy_with_host!(dst, src, src)
Base.copyto!(dst::Array, src::DeviceArray) = copy_with_host!(dst, src, dst)
Base.Array{T,N}(x::DeviceArray{T,N}) where {T,N} = copyto!(Array{T,N}(undef, size(x)), x)
Base.Array(x::DeviceArray{T,N}) where {T,N} = Array{T,N}(x)
Base.copy(x::DeviceArray) = copyto!(similar(x), x)

"The element sizes that the library can fill with."
const FILL_SIZES = (1, 2, 4, 8, 16)

function Base.fill!(x::DeviceArray{T}, value) where {T}
    sizeof(T) in FILL_SIZES || throw(ArgumentError("cannot fill with $T: $(sizeof(T)) bytes; it can be $FILL_SIZES"))
    API.tgpu_fill(x, Ref(convert(T, value)), sizeof(T), length(x), C_NULL)
    return x
end

"""
    TaskGPU.fill(value, dims...)

A new array on the current device, filled with `value`.
"""
fill(value::T, dims::Integer...) where {T} = fill!(DeviceArray{T}(undef, dims...), value)

"""
    TaskGPU.ones(T, dims...)
    TaskGPU.zeros(T, dims...)

A new array of ones or zeros on the current device. `T` may be left out for `Float32`.
"""
ones(T::Type, dims::Integer...) = fill(one(T), dims...)
ones(dims::Integer...) = ones(Float32, dims...)
@doc (@doc ones) zeros(T::Type, dims::Integer...) = fill(zero(T), dims...)
zeros(dims::Integer...) = zeros(Float32, dims...)
