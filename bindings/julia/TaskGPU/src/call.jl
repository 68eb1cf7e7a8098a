# How a call gets into the library: the addresses of its functions, and whose state a call acts on.

const ADDRESSES = Pair{Symbol,Ref{Ptr{Cvoid}}}[]

"""
Why the library cannot be called, empty if it can. Kept instead of thrown, so that `using TaskGPU` works on a machine
without the library.
"""
const LOAD_FAILURE = Ref("TaskGPU has not been loaded")

"""
    LibraryNotFound(text)

The shared library `libtaskgpu` could not be loaded. Name it with the environment variable `TASKGPU_LIBRARY`, or put it
where the system's loader looks.
"""
struct LibraryNotFound <: Exception
    text::String
end
Base.showerror(io::IO, e::LibraryNotFound) = print(io, "LibraryNotFound: ", e.text)

require_library() = isempty(LOAD_FAILURE[]) || throw(LibraryNotFound(LOAD_FAILURE[]))

# The name of the library's ABI, which changes with the minor version.
const SONAME = "libtaskgpu.so.0.1"

# Called when the module is loaded, so that no path gets into the precompiled code.
function load_library()
    named = get(ENV, "TASKGPU_LIBRARY", "")
    name = isempty(named) ? SONAME : named
    LOAD_FAILURE[] = try
        library = Libdl.dlopen(name)
        for (symbol, address) in ADDRESSES
            address[] = Libdl.dlsym(library, symbol)
        end
        abi = API.tgpu_abi_version()
        abi == API.TGPU_ABI_VERSION ? "" : "$name implements ABI $abi; this package needs $(API.TGPU_ABI_VERSION)"
    catch error
        error isa ErrorException || rethrow()
        isempty(named) ? "$(error.msg); TASKGPU_LIBRARY can name the file" : "TASKGPU_LIBRARY=$named: $(error.msg)"
    end
    return
end

# What a declaration `name(argument::Type, ...)::Result` says.
function declaration(ex)
    Meta.isexpr(ex, :(::)) && Meta.isexpr(ex.args[1], :call) || error("not a declaration: $ex")
    call = ex.args[1].args
    arguments = getfield.(call[2:end], :args)
    return call[1], first.(arguments), last.(arguments), ex.args[2]
end

# The constant that holds the function's address, filled when the module is loaded.
function address_of(name)
    address = Symbol(:address_of_, name)
    return address, quote
        const $address = Ref{Ptr{Cvoid}}(C_NULL)
        push!($ADDRESSES, $(QuoteNode(name)) => $address)
    end
end

"""
    @plain name(argument::Type, ...)::Result

Declares a C function that needs no task: the ones that are fit for finalizers, and those that the others are made of.
"""
macro plain(ex)
    name, arguments, types, result = declaration(ex)
    address, definition = address_of(name)
    return esc(quote
        $definition
        @inline $name($(arguments...)) = ccall($address[], $result, ($(types...),), $(arguments...))
    end)
end

# While one thread is in a call that takes long, the others' garbage collection need not wait for it. The functions exist
# in every version so far, but are not part of Julia's documented interface.
const HAS_GC_SAFE = try
    cglobal(:jl_gc_safe_enter) != C_NULL && cglobal(:jl_gc_safe_leave) != C_NULL
catch
    false
end
@inline gc_safe_enter() = HAS_GC_SAFE ? ccall(:jl_gc_safe_enter, Int8, ()) : Int8(0)
@inline gc_safe_leave(state) = HAS_GC_SAFE ? ccall(:jl_gc_safe_leave, Cvoid, (Int8,), state) : nothing

is_failure(status) = !(status in (API.TGPU_OK, API.TGPU_NOT_READY, API.TGPU_ERROR_TIMEOUT))

"""
    @call name(argument::Type, ...)::tgpu_status

Declares a C function that acts for the calling Julia task. Its `tgpu_task` is swapped in before the call and out again
after it, on whatever thread the task runs: a task that comes back on another thread finds its device and streams.

Between the two swaps nothing may switch tasks or throw. Arguments are converted before; `sigatomic` puts ^C off, which
`try`/`finally` could not; finalizers that run meanwhile leave the state alone. The error belongs to the task, so it is
fetched in there too, and thrown at the end.
"""
macro call(ex)
    name, arguments, types, result = declaration(ex)
    address, definition = address_of(name)
    kept, passed = gensym.(arguments), gensym.(arguments)
    convert_all = [:($k = Base.cconvert($t, $a)) for (k, t, a) in zip(kept, types, arguments)]
    point_to_all = [:($p = Base.unsafe_convert($t, $k)) for (p, t, k) in zip(passed, types, kept)]
    return esc(quote
        $definition
        function $name($(arguments...))
            $(convert_all...)
            own = $TaskGPU.task_handle()
            previous = Ref{tgpu_task}(C_NULL)
            failure = nothing
            GC.@preserve previous $(kept...) begin
                $(point_to_all...)
                before = Base.unsafe_convert(Ptr{tgpu_task}, previous)
                Base.sigatomic_begin()
                status = tgpu_task_swap(own, before)
                if status == TGPU_OK
                    collector = $TaskGPU.gc_safe_enter()
                    status = ccall($address[], $result, ($(types...),), $(passed...))
                    $TaskGPU.gc_safe_leave(collector)
                    $TaskGPU.is_failure(status) && (failure = $TaskGPU.last_failure(status))
                    tgpu_task_swap(unsafe_load(before), C_NULL)
                else
                    failure = $TaskGPU.last_failure(status)
                end
                Base.sigatomic_end()
            end
            failure === nothing || throw(failure)
            return status
        end
    end)
end
