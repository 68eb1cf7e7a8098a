# `a .+ i` and the like: an expression of arrays and numbers becomes one compiled kernel.

using Base.Broadcast: Broadcasted, AbstractArrayStyle, BroadcastStyle, DefaultArrayStyle

struct DeviceStyle{N} <: AbstractArrayStyle{N} end
DeviceStyle{N}(::Val{M}) where {N,M} = DeviceStyle{M}()
Base.BroadcastStyle(::Type{<:DeviceArray{T,N}}) where {T,N} = DeviceStyle{N}()
