# `a .+ i` and the like: an expression of arrays and numbers becomes one kernel, compiled at its first use. Arrays must
# have the shape of the result and be on the current device; numbers are passed along.

using Base.Broadcast: Broadcasted

struct DeviceStyle{N} <: Base.Broadcast.AbstractArrayStyle{N} end
DeviceStyle{N}(::Val{M}) where {N,M} = DeviceStyle{M}()
Base.BroadcastStyle(::Type{<:DeviceArray{T,N}}) where {T,N} = DeviceStyle{N}()

const C_TYPES = Dict(
    Float32 => "float", Float64 => "double", Bool => "bool",
    Int8 => "signed char", Int16 => "short", Int32 => "int", Int64 => "long long",
    UInt8 => "unsigned char", UInt16 => "unsigned short", UInt32 => "unsigned int", UInt64 => "unsigned long long",
)

# How C computes a function of values that have the type of its result already.
const OPERATIONS = Dict{Any,Function}(
    (+) => (T, xs...) -> join(xs, " + "),
    (*) => (T, xs...) -> join(xs, " * "),
    (-) => (T, xs...) -> length(xs) == 1 ? "-$(xs[1])" : join(xs, " - "),
    (/) => (T, x, y) -> "$x / $y",
    muladd => (T, x, y, z) -> "$x * $y + $z",
    identity => (T, x) -> x,
    # Not a number wins, as in Julia.
    min => (T, x, y) -> "$x != $x || $x < $y ? $x : $y",
    max => (T, x, y) -> "$x != $x || $x > $y ? $x : $y",
    abs => (T, x) -> T <: AbstractFloat ? "$(c_function(:fabs, T))($x)" : "$x < 0 ? -$x : $x",
)
for f in (:sqrt, :exp, :log, :sin, :cos, :tan, :tanh)
    @eval OPERATIONS[$f] = (T, x) -> "$(c_function($(QuoteNode(f)), T))($x)"
end
for T in keys(C_TYPES)
    OPERATIONS[T] = (_, x) -> x
end

c_function(name, T) = T == Float32 ? "$(name)f" : string(name)

"A kernel while it is written: its parameters, the arguments they stand for, and what has been computed so far."
struct Draft
    parameters::Vector{String}
    statements::Vector{String}
end

c_type(T) = get(C_TYPES, T) do
    throw(ArgumentError("a broadcast over a DeviceArray cannot compute with $T"))
end

"Adds what computes `x`, and answers the name that C has for its value, and its type."
function write!(draft::Draft, x::DeviceArray{T}) where {T}
    push!(draft.parameters, "const $(c_type(T)) *p$(length(draft.parameters))")
    return value!(draft, T, "p$(length(draft.parameters) - 1)[i]")
end

function write!(draft::Draft, x::Number)
    push!(draft.parameters, "$(c_type(typeof(x))) p$(length(draft.parameters))")
    return "p$(length(draft.parameters) - 1)", typeof(x)
end

write!(draft::Draft, x) = throw(ArgumentError(
    "a broadcast over a DeviceArray takes DeviceArrays and numbers, not a $(typeof(x)); copy it with DeviceArray(x) first",
))

function write!(draft::Draft, bc::Broadcasted)
    # x .^ 2 is three arguments: ^, x and the exponent as a type.
    bc.f === Base.literal_pow && return write_power!(draft, bc.args[2], bc.args[3][])
    operation = get(OPERATIONS, bc.f) do
        names = sort!(string.(keys(OPERATIONS)))
        throw(ArgumentError("a broadcast over a DeviceArray cannot compute $(bc.f); it can be $(join(names, ", "))"))
    end
    inputs = [write!(draft, x) for x in bc.args]
    T = Base._return_type(bc.f, Tuple{last.(inputs)...})
    return value!(draft, T, operation(T, cast.(T, inputs)...))
end

function write_power!(draft, base, ::Val{exponent}) where {exponent}
    exponent in 1:16 ||
        throw(ArgumentError("a broadcast over a DeviceArray cannot compute the power $exponent; it can be 1 to 16"))
    x, T = write!(draft, base)
    return value!(draft, T, join(Iterators.repeated(x, exponent), " * "))
end

cast(T, (x, type)) = T == type ? x : "($(c_type(T)))$x"

function value!(draft, T, expression)
    name = "v$(length(draft.statements))"
    push!(draft.statements, "const $(c_type(T)) $name = $expression;")
    return name, T
end

"The kernel's source, for a result with elements of type `T`."
function source_of(bc::Broadcasted, ::Type{T}) where {T}
    draft = Draft([], [])
    result = write!(draft, bc)
    # As in Julia, an assignment may round; it may not cut off or wrap around.
    both_float = T <: AbstractFloat && result[2] <: AbstractFloat
    both_float || promote_type(T, result[2]) == T ||
        throw(ArgumentError("a broadcast of elements of type $(result[2]) does not fit into an array of $T"))
    return """
        extern "C" __global__ void broadcast($(c_type(T)) *out, unsigned long long n, $(join(draft.parameters, ", "))) {
            const unsigned long long i = (unsigned long long)blockIdx.x * blockDim.x + threadIdx.x;
            if (i < n) {
                $(join(draft.statements, "\n        "))
                out[i] = $(cast(T, result));
            }
        }
        """
end

# By the types of the expression and of the result, which say all that the source depends on.
const BROADCASTS = Dict{Any,Kernel}()
const BROADCASTS_LOCK = ReentrantLock()

function kernel_of(bc::Broadcasted, ::Type{T}) where {T}
    lock(BROADCASTS_LOCK) do
        get!(BROADCASTS, (typeof(bc), T)) do
            Kernel(compile(source_of(bc, T); name="broadcast"), "broadcast")
        end
    end
end

"The arrays and numbers of an expression, in the order of the kernel's parameters."
leaves(x) = (x,)
leaves(bc::Broadcasted) =
    bc.f === Base.literal_pow ? leaves(bc.args[2]) : reduce((a, b) -> (a..., b...), map(leaves, bc.args); init=())

function Base.copyto!(out::DeviceArray{T}, bc::Broadcasted{<:DeviceStyle}) where {T}
    here = device()
    for x in (out, leaves(bc)...)
        x isa DeviceArray || continue
        x.device == here ||
            throw(ArgumentError("a broadcast on $here was given an array on $(x.device); copy it with copyto! first"))
        axes(x) == axes(bc) || throw(DimensionMismatch(
            "a broadcast over a DeviceArray does not expand dimensions: a $(summary(x)) for a result of $(axes(bc))",
        ))
    end
    kernel = kernel_of(bc, T)
    isempty(out) || launch(kernel, out, UInt64(length(out)), leaves(bc)...; suggest(kernel, length(out))...)
    return out
end

# `x .= 1`
Base.copyto!(out::DeviceArray, bc::Broadcasted{<:Base.Broadcast.AbstractArrayStyle{0}}) =
    copyto!(out, convert(Broadcasted{DeviceStyle{ndims(out)}}, bc))

function Base.copy(bc::Broadcasted{<:DeviceStyle})
    T = Base.Broadcast.combine_eltypes(bc.f, bc.args)
    return copyto!(DeviceArray{T}(undef, map(length, axes(bc))), bc)
end
