# Every Julia task that makes a call owns a `tgpu_task`.

mutable struct TaskState
    handle::API.tgpu_task
    "The stream that the task has made current on a device: it must not be collected while it is."
    streams::Dict{Int32,Any}
end

"The calling task's state, made at its first call."
function task_state()
    storage = current_task().storage
    if storage !== nothing
        # The type is the key: nobody else can have it.
        state = get(storage::IdDict{Any,Any}, TaskState, nothing)
        state === nothing || return state::TaskState
    end
    return new_task_state()
end

@inline task_handle() = task_state().handle

@noinline function new_task_state()
    require_library()
    handle = Ref{API.tgpu_task}(C_NULL)
    Base.sigatomic_begin()
    status = API.tgpu_task_create(C_NULL, handle)
    failure = is_failure(status) ? last_failure(status) : nothing
    failure === nothing && remember(current_task(), handle[])
    Base.sigatomic_end()
    failure === nothing || throw(failure)
    state = TaskState(handle[], Dict{Int32,Any}())
    task_local_storage(TaskState, state)
    return state
end

# Who owns which `tgpu_task`. A task that has ended is looked for here: its finalizer would run only once the collector
# has noticed, and a program that starts tasks faster than that would pile up streams.
const OWNERS = Tuple{WeakRef,API.tgpu_task}[]
const OWNERS_LOCK = Threads.SpinLock()
"How many owners there may be before those that have ended are looked for."
const SWEEP_AT = Ref(0)
const FEWEST_TO_SWEEP = 32

function remember(task, handle)
    lock(OWNERS_LOCK)
    push!(OWNERS, (WeakRef(task), handle))
    if length(OWNERS) > SWEEP_AT[]
        filter!(OWNERS) do (owner, handle)
            task = owner.value
            ended = task === nothing || istaskdone(task::Task)
            ended && API.tgpu_task_destroy(handle)
            return !ended
        end
        # Twice what lives, so that a task costs the same however many there are.
        SWEEP_AT[] = max(FEWEST_TO_SWEEP, 2 * length(OWNERS))
    end
    unlock(OWNERS_LOCK)
    return
end
