# Waiting lets other Julia tasks run: no call sleeps inside the library.

"A descriptor that the library writes to when work is done, and Julia's event loop watches."
struct Waiter
    descriptor::RawFD
    watcher::FDWatcher
end

function Waiter()
    # 0x80800 is EFD_CLOEXEC and EFD_NONBLOCK.
    descriptor = ccall(:eventfd, Cint, (Cuint, Cint), 0, 0x80800)
    systemerror("eventfd", descriptor == -1)
    return Waiter(RawFD(descriptor), FDWatcher(RawFD(descriptor), true, false))
end

function Base.close(w::Waiter)
    close(w.watcher) # first: the event loop must not watch a number that means another file by then
    ccall(:close, Cint, (RawFD,), w.descriptor)
    return
end

"Takes what was written. False if there was nothing: the event loop may report once more what was taken before."
function drain(w::Waiter)
    count = Ref{UInt64}(0)
    return ccall(:read, Cssize_t, (RawFD, Ptr{UInt64}, Csize_t), w.descriptor, count, sizeof(UInt64)) == sizeof(UInt64)
end

# Waiters that nobody waits with: making one costs more than most waits.
const IDLE_WAITERS = Waiter[]
const IDLE_WAITERS_LOCK = Threads.SpinLock()
const MOST_IDLE_WAITERS = 64

function take_waiter()
    lock(IDLE_WAITERS_LOCK)
    waiter = isempty(IDLE_WAITERS) ? nothing : pop!(IDLE_WAITERS)
    unlock(IDLE_WAITERS_LOCK)
    return waiter === nothing ? Waiter() : waiter
end

function give_back(waiter)
    lock(IDLE_WAITERS_LOCK)
    keep = length(IDLE_WAITERS) < MOST_IDLE_WAITERS
    keep && push!(IDLE_WAITERS, waiter)
    unlock(IDLE_WAITERS_LOCK)
    keep || close(waiter)
    return
end

"How long a wait asks again and again, letting other tasks run in between, before it goes to the event loop."
const POLL_NANOSECONDS = 75_000

function poll(done)
    done() && return true
    start = time_ns()
    while time_ns() - start < POLL_NANOSECONDS
        yield()
        done() && return true
    end
    return false
end

"""
Waits until `done()` is true. `signal(descriptor)` asks the library to write to the descriptor when it will be.
"""
function wait_until(done, signal)
    poll(done) && return
    wait_for_signal(signal)
    # What was waited for is over, and asking throws if it failed. The answer may still be no: the stream may have newer
    # work, or not have got beyond the writing itself.
    done()
    return
end

"Waits until the library has written to the descriptor that `signal` gets."
function wait_for_signal(signal)
    waiter = take_waiter()
    unused = false
    try
        signal(waiter.descriptor)
        while true
            wait(waiter.watcher)
            drain(waiter) && break
        end
        unused = true
    finally
        # After an exception the library will still write to it one day.
        unused ? give_back(waiter) : close(waiter)
    end
    return
end
