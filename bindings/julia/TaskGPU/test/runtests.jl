# Run by `cargo xtask test`, which compiles kernels.c and sets the variables. By hand, see docs/languages/julia.md.

using Test
using Libdl: dlopen, dlsym
using TaskGPU
using TaskGPU: API

const PACKAGE = dirname(@__DIR__)
const KERNELS = dlopen(ENV["TASKGPU_TEST_KERNELS"])
const GATE = Kernel(dlsym(KERNELS, :gate), Ptr{Int32})
const ADD = Kernel(dlsym(KERNELS, :add), Ptr{Float32}, Float32, UInt64)

"Holds the current stream, or `stream`, up until it is opened."
struct Gate
    open::Ref{Int32}
end
function Gate(; stream=nothing)
    gate = Gate(Ref{Int32}(0))
    launch(GATE, pointer_to(gate); stream=stream)
    return gate
end
pointer_to(gate::Gate) = Base.unsafe_convert(Ptr{Int32}, gate.open)
open!(gate::Gate) = ccall(:memset, Ptr{Cvoid}, (Ptr{Cvoid}, Cint, Csize_t), gate.open, 1, 4)

add!(x, value) = launch(ADD, x, Float32(value), UInt64(length(x)); grid=cld(length(x), 64), block=64)

"What `f` throws."
function thrown(f)
    try
        f()
    catch error
        return error
    end
    return nothing
end

"Runs a program in a Julia of its own, with these variables, and answers what it prints."
function julia(program; environment...)
    command = `$(Base.julia_cmd()) --startup-file=no --project=$PACKAGE -e $program`
    return withenv(() -> read(command, String), (string(k) => v for (k, v) in environment)...)
end

const DEVICES = devices()
@assert length(DEVICES) == 4 "the tests need TASKGPU_BACKENDS=host and TASKGPU_HOST_DEVICES=4"
println(Threads.nthreads(), " threads, Julia ", VERSION)
Threads.nthreads() == 1 && println("NOT TESTED with one thread: a collection while another thread is in a call")

results = @testset "TaskGPU" begin
    @testset "devices" begin
        @test [d.index for d in DEVICES] == 0:3
        @test all(d -> d.backend == "host" && d.total_memory > 0, DEVICES)
        @test occursin("Device 3 (host: ", string(DEVICES[4]))
        @test device() == DEVICES[1]
        @test device!(DEVICES[3]) == DEVICES[3] == device()
        @test device!(device, DEVICES[2]) == DEVICES[2]
        @test device() == DEVICES[3]
        @test thrown(() -> device!(() -> error("out"), DEVICES[2])) == ErrorException("out")
        @test device() == DEVICES[3]
        @test device!(() -> device!(device, DEVICES[4]), DEVICES[2]) == DEVICES[4]
        device!(DEVICES[1])
    end

    @testset "a task has its own device and stream" begin
        device!(DEVICES[2])
        @test fetch(Threads.@spawn device()) == DEVICES[1]
        started = Threads.Atomic{Int}(0)
        seen = map(1:64) do i
            Threads.@spawn begin
                mine = device!(DEVICES[1 + i % 4])
                before = stream()
                Threads.atomic_add!(started, 1)
                while started[] < 64 # all live at once; yield would starve those that have not begun
                    sleep(0.001)
                end
                for _ in 1:20
                    yield()
                    device() == mine && stream() == before || error("task $i lost its state")
                end
                TaskGPU.id(before)
            end
        end
        @test allunique(fetch.(seen))
        @test device() == DEVICES[2]
        device!(DEVICES[1])
    end

    @testset "streams" begin
        own = stream()
        for name in (:normal, :low, :high)
            @test TaskGPU.priority(HIPStream(; priority=name)) == name
            @test TaskGPU.priority(HIPStream(name)) == name
        end
        @test occursin(":urgent", thrown(() -> Stream(:urgent)).msg)
        other = device!(Stream, DEVICES[2])
        @test stream!(other) === other
        @test stream() === other && device() == DEVICES[2]
        stream!(nothing)
        @test stream() != other && device() == DEVICES[2]
        device!(DEVICES[1])
        @test stream() == own
        mine = Stream()
        @test stream!(() -> stream(), mine) == mine
        @test stream() == own
        @test stream!(mine) do
            stream!(other) do
                stream()
            end == other && stream() == mine
        end
        @test stream() == own && device() == DEVICES[1]
    end

    @testset "work runs on the stream that is current" begin
        s = Stream()
        gate = Gate(; stream=s)
        x = stream!(() -> TaskGPU.ones(Float32, 16), s)
        @test isdone(stream()) && !isdone(s)
        open!(gate)
        synchronize(s)
        @test Array(x) == Base.ones(Float32, 16)
    end

    @testset "a current stream is not collected" begin
        stream!(Stream())
        GC.gc()
        @test synchronize() === nothing
        stream!(Stream()) do
            stream!(() -> nothing, Stream())
            stream!(Stream()) # replaces the one of the scope, for as long as that lasts
            GC.gc()
            synchronize()
        end
        GC.gc()
        @test synchronize() === nothing
        stream!(nothing)
    end

    @testset "order between streams" begin
        a, b = Stream(), Stream()
        x = TaskGPU.zeros(100)
        synchronize()
        gate = Gate(; stream=a)
        stream!(() -> add!(x, 1), a)
        wait_for(b, a)
        stream!(() -> fill!(x, 5), b)
        e = record(Event(), b)
        @test !isdone(e)
        c = Stream()
        wait_for(c, e)
        stream!(() -> add!(x, 2), c)
        open!(gate)
        synchronize(c)
        @test Array(x) == Base.fill(7.0f0, 100)
    end

    @testset "events" begin
        start, stop = record(Event()), Event()
        gate = Gate()
        record(stop)
        @async (sleep(0.02); open!(gate))
        @test elapsed(start, stop) > 0.005
        @test isdone(Event()) # never recorded
        @test thrown(() -> elapsed(Event(; timing=false), stop)).name == "TGPU_ERROR_INVALID_ARGUMENT"
        synchronize(stop)
    end

    @testset "waiting lets other tasks run" begin
        # If a wait held its thread, nobody would open the gate.
        for wait in (synchronize, () -> synchronize(stream()), () -> synchronize(record(Event())),
                     device_synchronize, () -> Array(TaskGPU.ones(4)), () -> TaskGPU.@sync(1))
            for pause in (0.0, 0.01)
                gate = Gate()
                opener = @async (sleep(pause); open!(gate))
                wait()
                @test istaskdone(opener) || gate.open[] != 0
            end
        end
        @test TaskGPU.@sync(42) == 42
        # A device is waited for in the same way, with the work of tasks that have ended.
        s = Stream()
        gate = Ref{Gate}()
        wait(@async stream!(() -> (gate[] = Gate()), s))
        opened = Ref(false)
        @async (sleep(0.01); opened[] = true; open!(gate[]))
        device_synchronize()
        @test opened[]
        waits = map(1:200) do i
            Threads.@spawn begin
                device!(DEVICES[1 + i % 4])
                for _ in 1:10
                    TaskGPU.@sync TaskGPU.ones(16)
                end
                true
            end
        end
        @test all(fetch, waits)
    end

    @testset "an exception thrown into a wait" begin
        gate = Gate()
        s = stream()
        waiting = @async synchronize(s)
        sleep(0.05) # it is in the event loop by now
        schedule(waiting, InterruptException(); error=true)
        @test thrown(() -> wait(waiting)) isa TaskFailedException
        @test !isdone(s)
        open!(gate)
        synchronize()
        # What the library still wrote to the descriptor of that wait ends no other wait early.
        for _ in 1:20
            gate = Gate()
            opened = Ref(false)
            @async (sleep(0.002); opened[] = true; open!(gate))
            synchronize()
            opened[] || error("a wait ended early")
        end
        @test istaskdone(waiting)
        # A copy into an array of the host is over before the exception gets out.
        x = TaskGPU.@sync TaskGPU.ones(1 << 20)
        host = Base.zeros(Float32, 1 << 20)
        copying = @async copyto!(host, x)
        yield()
        istaskdone(copying) || schedule(copying, InterruptException(); error=true)
        thrown(() -> wait(copying))
        @test all(==(host[1]), host)
    end

    @testset "^C ends a wait" begin
        program = """
            using TaskGPU, Libdl
            open = Ref{Int32}(0)
            gate = Kernel(Libdl.dlsym(Libdl.dlopen(ENV["TASKGPU_TEST_KERNELS"]), :gate), Ptr{Int32})
            launch(gate, Base.unsafe_convert(Ptr{Int32}, open))
            Base.exit_on_sigint(false)
            run(`sh -c "sleep 0.5; kill -INT \$(getpid())"`; wait=false)
            try
                synchronize()
            catch error
                print(typeof(error), isdone(stream()))
            end
            ccall(:memset, Ptr{Cvoid}, (Ptr{Cvoid}, Cint, Csize_t), open, 1, 4)
            synchronize()
            """
        @test julia(program) == "InterruptExceptionfalse"
    end

    @testset "arrays" begin
        host = rand(Float64, 3, 5)
        x = DeviceArray(host)
        @test size(x) == (3, 5) && eltype(x) == Float64 && length(x) == 15
        @test Array(x) == host
        @test TaskGPU.device(x) == device()
        y = device!(() -> copyto!(similar(x), x), DEVICES[2]) # between devices
        device!(synchronize, DEVICES[2])
        @test TaskGPU.device(y) == DEVICES[2]
        @test Array(y) == host && Array(copy(y)) == host
        @test Array(ROCArray(1:3)) == [1, 2, 3]
        @test Array(TaskGPU.zeros(Int8, 2, 2)) == [0 0; 0 0]
        @test Array(TaskGPU.fill(1.5 + 2im, 3)) == Base.fill(1.5 + 2im, 3)
        @test Array(TaskGPU.ones(Float32)) == Base.fill(1.0f0) # no dimensions
        @test isempty(Array(TaskGPU.ones(0, 7)))
        @test occursin("3×5", sprint(show, MIME("text/plain"), x))
        @test occursin("Array(x)", thrown(() -> x[1]).msg)
        @test occursin("Array(x)", thrown(() -> x[1, 2] = 0).msg)
        @test thrown(() -> copyto!(x, Base.zeros(4))) isa DimensionMismatch
        @test thrown(() -> DeviceArray{String}(undef, 1)) isa ArgumentError
        @test occursin("3 bytes", thrown(() -> TaskGPU.fill((1 % Int8, 2 % Int8, 3 % Int8), 4)).msg)
        @test thrown(() -> DeviceArray{Int8}(undef, -1)) isa ArgumentError
        @test unsafe_free!(x) === nothing
        synchronize()
    end

    @testset "kernels" begin
        x = TaskGPU.ones(1000)
        add!(x, 2)
        @test Array(x) == Base.fill(3.0f0, 1000)
        shape = TaskGPU.suggest(ADD, 1000)
        @test shape.grid * shape.block >= 1000
        @test thrown(() -> launch(ADD, "text", 1.0f0, UInt64(1))) isa ArgumentError
        @test thrown(() -> launch(ADD, x, 1.0f0, UInt64(1); grid=(1, 1, 1, 1))) isa ArgumentError
        refused = thrown(() -> launch(ADD, x, 1.0f0, UInt64(1); block=1 << 30))
        @test refused.name == "TGPU_ERROR_INVALID_ARGUMENT" && occursin("1073741824", refused.text)
        # An array that nobody refers to lives until its kernel is done.
        gate = Gate()
        for _ in 1:50
            add!(TaskGPU.zeros(1 << 16), 1)
        end
        GC.gc()
        open!(gate)
        @test synchronize() === nothing
    end

    @testset "kernels from source" begin
        source = """
            template<typename T> __global__ void scale(T *x, T factor, int n) {
                int i = blockIdx.x * blockDim.x + threadIdx.x;
                if (i < n) x[i] *= factor;
            }
            extern "C" __global__ void set(double *x, int value) { x[threadIdx.x] = value + OFFSET; }
            """
        m = compile(source; name="scale.hip", options=["-DOFFSET=0.5"], instances=["scale<float>"])
        x = TaskGPU.ones(100)
        launch(Kernel(m, "scale<float>"), x, 3.0f0, Int32(100); grid=4, block=32)
        @test Array(x) == Base.fill(3.0f0, 100)
        y = TaskGPU.zeros(Float64, 8)
        launch(Kernel(m, "set"), y, Int32(7); block=(8,))
        @test Array(y) == Base.fill(7.5, 8)
        @test thrown(() -> Kernel(m, "missing")).name == "TGPU_ERROR_NOT_FOUND"
        wrong = thrown(() -> compile("int f() { return oops; }"; name="wrong.hip"))
        @test wrong.name == "TGPU_ERROR_COMPILE_FAILED"
        @test occursin("wrong.hip", wrong.text) && occursin("oops", wrong.text)
    end

    @testset "broadcast" begin
        a, b = rand(Float32, 50, 3), rand(Float32, 50, 3) .+ 1
        x, y = DeviceArray(a), DeviceArray(b)
        close_to(device_array, host) = eltype(device_array) == eltype(host) && Array(device_array) ≈ host
        @test close_to(x .+ 1, a .+ 1)
        @test close_to(x .+ y .* 2 .- 3.5f0, a .+ b .* 2 .- 3.5f0)
        @test close_to(2.0 .* x, 2.0 .* a) # Float64
        @test close_to(sqrt.(y) ./ exp.(-x), sqrt.(b) ./ exp.(-a))
        @test close_to(muladd.(x, y, 1), muladd.(a, b, 1))
        @test close_to(x .^ 2 .+ y .^ 3, a .^ 2 .+ b .^ 3)
        @test close_to(x .+ y .+ x .+ y, a .+ b .+ a .+ b)
        @test close_to(abs.(tanh.(x .- 0.5f0)), abs.(tanh.(a .- 0.5f0)))
        @test isequal(Array(max.(DeviceArray([1.0, NaN, 3.0]), 2)), [2.0, NaN, 3.0])
        @test isequal(Array(min.(2, DeviceArray([1.0, NaN, 3.0]))), [1.0, NaN, 2.0])
        n = Int32[-7, 0, 7]
        d = DeviceArray(n)
        @test close_to(d ./ 2, n ./ 2)
        @test close_to(abs.(d) .+ Int8(1), abs.(n) .+ Int8(1))
        @test close_to(Float64.(d), Float64.(n))
        @test Array(DeviceArray(UInt8[255, 1]) .+ UInt8(1)) == UInt8[0, 2]
        x .= y .+ 1
        @test Array(x) ≈ b .+ 1
        x .+= 1.0
        @test Array(x) ≈ b .+ 2
        x .= 4
        @test Array(x) == Base.fill(4.0f0, 50, 3)
        @test isempty(Array(TaskGPU.ones(0) .+ 1))
        # One kernel for each expression, whatever the numbers and shapes.
        TaskGPU.ones(3) .+ 1
        kernels = length(TaskGPU.BROADCASTS)
        @test Array(TaskGPU.ones(7) .+ 5) == Base.fill(6.0f0, 7)
        @test length(TaskGPU.BROADCASTS) == kernels
        @test occursin(string(Vector{Int}), thrown(() -> TaskGPU.ones(3) .+ [1, 2, 3]).msg)
        @test occursin("sinpi", thrown(() -> sinpi.(x)).msg)
        @test occursin("power 17", thrown(() -> x .^ 17).msg)
        @test occursin("Complex", thrown(() -> x .+ im).msg)
        @test thrown(() -> x .+ TaskGPU.ones(50)) isa DimensionMismatch
        @test occursin("Float64", thrown(() -> TaskGPU.ones(Int32, 2) .= 1.5).msg)
        other = device!(() -> TaskGPU.ones(50, 3), DEVICES[2])
        @test occursin("Device 1", thrown(() -> x .+ other).msg)
    end

    @testset "the manual's program for several devices" begin
        include("manual.jl")
        sums = Vector{Float32}(undef, 4)
        @sync for (i, dev) in enumerate(DEVICES)
            Threads.@spawn begin
                TaskGPU.device!(dev)
                b = TaskGPU.ones(Float32, 1024) .+ i
                TaskGPU.synchronize()
                TaskGPU.device(b) == dev || error("it ran elsewhere")
                sums[i] = sum(Array(b))
            end
        end
        @test sums == [1024f0 * (1 + i) for i in 1:4]
        @test device() == DEVICES[1]
    end

    @testset "errors" begin
        error = thrown(() -> device!(TaskGPU.Device(99)))
        @test error isa GPUError
        @test error.status == API.TGPU_ERROR_INVALID_DEVICE && error.name == "TGPU_ERROR_INVALID_DEVICE"
        @test occursin("99", error.text) && occursin("0 to 3", error.text)
        @test startswith(sprint(showerror, error), "GPUError: TGPU_ERROR_INVALID_DEVICE: there is no device 99")
        # Each task is told about its own failure, however they alternate.
        told = map(1:100) do i
            Threads.@spawn begin
                mine = thrown(() -> (yield(); device!(TaskGPU.Device(1000 + i))))
                yield()
                occursin("device $(1000 + i);", mine.text) && thrown(device) === nothing
            end
        end
        @test all(fetch, told)
        failing = Threads.@spawn device!(TaskGPU.Device(99))
        failure = thrown(() -> wait(failing))
        @test failure isa TaskFailedException
        @test occursin("there is no device 99", sprint(showerror, failure))
        huge = thrown(() -> DeviceArray{UInt8}(undef, 1 << 50))
        @test huge.name == "TGPU_ERROR_OUT_OF_MEMORY" && huge.device == 0
        @test occursin(string(1 << 50), huge.text)
        # Thousands of exceptions through compiled code.
        @test all(i -> thrown(() -> device!(TaskGPU.Device(99))) isa GPUError, 1:5000)
    end

    @testset "a collection runs while another thread is in a call" begin
        if Threads.nthreads() > 1
            gate = Gate()
            s = stream()
            inside = Threads.Atomic{Bool}(false)
            # The bare call, which nobody should make: it sleeps in the library, on some thread.
            blocked = Threads.@spawn (inside[] = true; API.tgpu_stream_synchronize(s.handle))
            collected = Threads.@spawn begin
                while !inside[]
                    sleep(0.001)
                end
                GC.gc()
                open!(gate)
                true
            end
            @test fetch(collected)
            @test fetch(blocked) == API.TGPU_OK
        end
    end

    @testset "collections under load" begin
        stop = Threads.Atomic{Bool}(false)
        collector = Threads.@spawn while !stop[]
            GC.gc(false)
            sleep(0.001)
        end
        sums = map(1:16) do i
            Threads.@spawn begin
                device!(DEVICES[1 + i % 4])
                total = 0.0
                for round in 1:100
                    x = TaskGPU.fill(Float32(i), 64)
                    add!(x, round)
                    s = Stream()
                    e = record(Event(), s)
                    wait_for(s, e)
                    total += sum(Array(x)) / 64
                end
                total == 100i + sum(1:100)
            end
        end
        @test all(fetch, sums)
        stop[] = true
        wait(collector)
        GC.gc()
    end

    @testset "thousands of tasks leave nothing behind" begin
        most = 0
        for _ in 1:100
            batch = map(1:100) do i
                Threads.@spawn begin
                    device!(DEVICES[1 + i % 4])
                    sum(Array(TaskGPU.fill(i, 10))) == 10i
                end
            end
            all(fetch, batch) || error("a task computed something else")
            most = max(most, length(TaskGPU.OWNERS))
        end
        @test most < 1000 # of 10,000
        @test length(TaskGPU.IDLE_WAITERS) <= TaskGPU.MOST_IDLE_WAITERS
    end

    @testset "memory that is not needed is found when it runs out" begin
        program = """
            using TaskGPU
            for i in 1:100
                x = TaskGPU.ones(UInt8, 10 << 20)
                synchronize()
            end
            kept = []
            try
                while true
                    push!(kept, TaskGPU.ones(UInt8, 10 << 20))
                end
            catch error
                print(error.name, length(kept) >= 5)
            end
            """
        @test julia(program; TASKGPU_HOST_MEMORY=64 << 20) == "TGPU_ERROR_OUT_OF_MEMORYtrue"
    end

    @testset "the library is looked for when the package is loaded" begin
        program = """
            using TaskGPU
            try
                devices()
            catch error
                print(typeof(error), error.text)
            end
            """
        missing = julia(program; TASKGPU_LIBRARY="/nowhere/libtaskgpu.so")
        @test occursin("LibraryNotFound", missing) && occursin("/nowhere/libtaskgpu.so", missing)
        @test occursin("tgpu_version", julia(program; TASKGPU_LIBRARY="libm.so.6"))
        folder = mktempdir()
        moved = joinpath(folder, "moved.so")
        cp(ENV["TASKGPU_LIBRARY"], moved; follow_symlinks=true)
        loaded = """
            using TaskGPU
            devices()
            print(occursin($(repr(moved)), read("/proc/self/maps", String)))
            """
        @test julia(loaded; TASKGPU_LIBRARY=moved) == "true"
        by_loader = replace(loaded, repr(moved) => repr(joinpath(folder, TaskGPU.SONAME)))
        mv(moved, joinpath(folder, TaskGPU.SONAME))
        path = string(folder, ":", get(ENV, "LD_LIBRARY_PATH", ""))
        @test julia(by_loader; TASKGPU_LIBRARY=nothing, LD_LIBRARY_PATH=path) == "true"
        refused = julia(replace(program, "typeof(error)" => "error.name"); TASKGPU_HOST_DEVICES="many")
        @test occursin("TGPU_ERROR_ENVIRONMENT", refused) && occursin("many", refused)
    end
end

# The line that `cargo xtask test` counts by. A test that failed has thrown before.
passed(set) = mapreduce(passed_in, +, set.results; init=set.n_passed)
passed_in(set::Test.DefaultTestSet) = passed(set)
passed_in(_) = 0
println(passed(results), " passed, 0 failed")
