# What a call that fails throws, and the reading of structs that the library fills.

"""
    GPUError

What a call that fails throws: the status with its name, and what the library and the vendor's runtime said about it.

| field | |
|---|---|
| `status`, `name` | the number and the name of the C interface, such as `"TGPU_ERROR_OUT_OF_MEMORY"` |
| `text` | what happened, with the value and the limit; for source that does not compile, the compiler's whole log |
| `device`, `stream_id` | the device concerned (-1: none) and the stream (0: none) |
| `backend`, `operation`, `native_code`, `native_name` | the runtime that was asked, its function and its answer |
"""
struct GPUError <: Exception
    status::Int32
    name::String
    text::String
    device::Int32
    stream_id::UInt64
    backend::String
    operation::String
    native_code::Int64
    native_name::String
end

Base.showerror(io::IO, e::GPUError) = print(io, "GPUError: ", e.name, ": ", e.text)

"A struct of type `T` that the library has filled, read field by field: some are too large to be Julia values."
struct Report{T}
    bytes::Vector{UInt8}
end

"Calls `fill` with the address of a struct of type `T`, and answers what was put there."
function report(fill, ::Type{T}) where {T}
    bytes = Base.zeros(UInt8, sizeof(T))
    GC.@preserve bytes begin
        address = Ptr{T}(pointer(bytes))
        unsafe_store!(Ptr{Csize_t}(address), sizeof(T)) # struct_size is the first field of all of them
        fill(address)
    end
    return Report{T}(bytes)
end

function place(r::Report{T}, field::Symbol) where {T}
    index = Base.fieldindex(T, field)
    return pointer(r.bytes) + fieldoffset(T, index), fieldtype(T, index)
end

function value(r::Report, field::Symbol)
    GC.@preserve r begin
        address, type = place(r, field)
        return unsafe_load(Ptr{type}(address))
    end
end

text(r::Report, field::Symbol) = GC.@preserve r unsafe_string(Ptr{UInt8}(first(place(r, field))))

"The last failure of the task that is current on this thread."
function last_failure(status)
    info = report(API.tgpu_error_info_get, API.tgpu_error_info)
    return GPUError(
        status,
        unsafe_string(API.tgpu_status_name(status)),
        whole_text(),
        value(info, :device),
        value(info, :stream_id),
        text(info, :backend),
        text(info, :function),
        value(info, :native_code),
        text(info, :native_name),
    )
end

function whole_text()
    needed = Ref{Csize_t}(0)
    API.tgpu_error_text(C_NULL, 0, needed)
    buffer = Base.zeros(UInt8, needed[])
    API.tgpu_error_text(pointer(buffer), length(buffer), needed)
    return GC.@preserve buffer unsafe_string(pointer(buffer))
end
