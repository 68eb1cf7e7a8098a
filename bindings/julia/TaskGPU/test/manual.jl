devs = TaskGPU.devices()
@sync for (i, dev) in enumerate(devs)
    Threads.@spawn begin
        TaskGPU.device!(dev)
        a = TaskGPU.ones(Float32, 1024)
        b = a .+ i
        TaskGPU.synchronize()
    end
end
