"""Frameworks in one process: PyTorch, CuPy and taskgpu on one GPU, each on the others' streams.

usage: interop.py FOLDER, where FOLDER has libtaskgpu.so
"""

import ctypes
import sys
import time

import torch

lib = ctypes.CDLL(sys.argv[1] + "/libtaskgpu.so")
passed = 0

SOURCE = rb"""
extern "C" __global__ void twice(float *x, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) x[i] *= 2;
}
extern "C" __global__ void spin(unsigned long long ns) {
    unsigned long long start, t;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(start));
    do asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(t)); while (t - start < ns);
}
"""


class Config(ctypes.Structure):
    _fields_ = [
        ("struct_size", ctypes.c_size_t),
        ("grid", ctypes.c_uint32 * 3),
        ("block", ctypes.c_uint32 * 3),
        ("shared_bytes", ctypes.c_uint64),
        ("stream", ctypes.c_void_p),
    ]


def ok(status):
    if status:
        text, needed = ctypes.create_string_buffer(4096), ctypes.c_size_t()
        lib.tgpu_error_text(text, ctypes.c_size_t(4096), ctypes.byref(needed))
        raise RuntimeError(f"status {status}: {text.value.decode()}")


def handle(function, *args):
    out = ctypes.c_void_p()
    ok(function(*args, ctypes.byref(out)))
    return out


def launch(kernel, stream, grid, block, *args):
    config = Config(ctypes.sizeof(Config), (grid, 1, 1), (block, 1, 1), 0, stream)
    pointers = (ctypes.c_void_p * len(args))(*(ctypes.addressof(a) for a in args))
    ok(lib.tgpu_launch(kernel, ctypes.byref(config), pointers))


def done(what):
    global passed
    passed += 1
    print("ok", what)


# PyTorch is first in the process: its contexts and its current stream are what we find.
torch.ones(1, device="cuda")
module = handle(lib.tgpu_module_compile, SOURCE, None)
twice = handle(lib.tgpu_kernel_get, module, b"twice")
spin = handle(lib.tgpu_kernel_get, module, b"spin")
n = 1 << 20

# Our kernel on PyTorch's current stream, the legacy one (handle 0), and on one of its pool.
for torch_stream in [torch.cuda.current_stream(), torch.cuda.Stream()]:
    imported = handle(lib.tgpu_stream_import, 0, ctypes.c_void_p(torch_stream.cuda_stream))
    with torch.cuda.stream(torch_stream):
        x = torch.full((n,), 3.0, device="cuda")
        launch(spin, imported, 1, 1, ctypes.c_uint64(20_000_000))
        launch(twice, imported, n // 256, 256, ctypes.c_void_p(x.data_ptr()), ctypes.c_int(n))
        y = x + 1
        assert bool((y.cpu() == 7).all())
    ok(lib.tgpu_stream_destroy(imported))
    done(f"our kernel between PyTorch's on its stream {torch_stream.cuda_stream:#x}")

# PyTorch on our stream: ordered with our kernels, and nothing waits on the host meanwhile.
ours = handle(lib.tgpu_stream_create, None)
native = handle(lib.tgpu_stream_native, ours)
x = torch.full((n,), 3.0, device="cuda")
torch.cuda.synchronize()
with torch.cuda.stream(torch.cuda.ExternalStream(native.value)):
    x.add_(0)  # whatever PyTorch loads lazily
    launch(spin, ours, 1, 1, ctypes.c_uint64(1))
    launch(twice, ours, n // 256, 256, ctypes.c_void_p(x.data_ptr()), ctypes.c_int(0))
    torch.cuda.synchronize()
    start = time.perf_counter()
    launch(spin, ours, 1, 1, ctypes.c_uint64(200_000_000))
    x.add_(1)
    launch(twice, ours, n // 256, 256, ctypes.c_void_p(x.data_ptr()), ctypes.c_int(n))
    x.add_(1)
    queued = time.perf_counter() - start
    assert lib.tgpu_stream_query(ours) == 1, "the work is done already: somebody waited"
    ok(lib.tgpu_stream_synchronize(ours))
    took = time.perf_counter() - start
assert bool((x.cpu() == 9).all())
assert took > 0.19, took
done(f"PyTorch between our kernels on our stream, queued in {queued * 1e6:.0f} us of {took * 1e3:.0f} ms")

# Whatever PyTorch makes current, our device stays ours, and the other way round.
ok(lib.tgpu_device_set(0))
assert torch.cuda.current_device() == 0
with torch.cuda.device(0):
    a, b = handle(lib.tgpu_malloc, ctypes.c_uint64(1 << 20)), torch.empty(1 << 20, device="cuda")
    ok(lib.tgpu_memcpy(ctypes.c_void_p(b.data_ptr()), a, ctypes.c_uint64(1 << 20), None))
    ok(lib.tgpu_synchronize())
ok(lib.tgpu_free(a))
done("copies between our memory and PyTorch's")

# A capture of PyTorch's survives our calls from another thread.
import threading

graph, static = torch.cuda.CUDAGraph(), torch.zeros(n, device="cuda")
stop, calls = threading.Event(), [0]


def others():
    while not stop.is_set():
        p = handle(lib.tgpu_malloc_async, ctypes.c_uint64(1 << 16), None)
        ok(lib.tgpu_memset(p, ctypes.c_uint8(1), ctypes.c_uint64(1 << 16), None))
        ok(lib.tgpu_free_async(p, None))
        ok(lib.tgpu_synchronize())
        lib.tgpu_stream_query(None)
        calls[0] += 1


thread = threading.Thread(target=others)
thread.start()
while calls[0] < 10:
    time.sleep(0.001)
with torch.cuda.graph(graph):
    for _ in range(100):
        static += 1
        time.sleep(0.001)
stop.set()
thread.join()
graph.replay()
torch.cuda.synchronize()
assert bool((static.cpu() == 100).all())
done(f"a capture beside {calls[0]} rounds of our calls in another thread")

# CuPy as the third in the process, if it is there.
try:
    import cupy
except ImportError:
    print("skipped CuPy, which is not installed")
else:
    cupy_stream = cupy.cuda.Stream(non_blocking=True)
    imported = handle(lib.tgpu_stream_import, 0, ctypes.c_void_p(cupy_stream.ptr))
    with cupy_stream:
        x = cupy.full(n, 3, dtype=cupy.float32)
        launch(spin, imported, 1, 1, ctypes.c_uint64(20_000_000))
        launch(twice, imported, n // 256, 256, ctypes.c_void_p(x.data.ptr), ctypes.c_int(n))
        y = x + 1
    cupy_stream.synchronize()
    assert bool((y == 7).all())
    ok(lib.tgpu_stream_destroy(imported))
    done("our kernel between CuPy's on its stream")

    with cupy.cuda.ExternalStream(native.value):
        x = cupy.full(n, 3, dtype=cupy.float32)
        launch(spin, ours, 1, 1, ctypes.c_uint64(20_000_000))
        launch(twice, ours, n // 256, 256, ctypes.c_void_p(x.data.ptr), ctypes.c_int(n))
        x += 1
    ok(lib.tgpu_stream_synchronize(ours))
    assert bool((x == 7).all())
    done("CuPy between our kernels on our stream")

    ok(lib.tgpu_device_set(0))
    assert cupy.cuda.runtime.getDevice() == 0
    p = handle(lib.tgpu_malloc, ctypes.c_uint64(4 * n))
    ok(lib.tgpu_memcpy(p, ctypes.c_void_p(x.data.ptr), ctypes.c_uint64(4 * n), None))
    ok(lib.tgpu_synchronize())
    memory = cupy.cuda.UnownedMemory(p.value, 4 * n, None)
    view = cupy.ndarray(n, dtype=cupy.float32, memptr=cupy.cuda.MemoryPointer(memory, 0))
    assert float(view.sum()) == 7 * n
    del view
    ok(lib.tgpu_free(p))
    done("our memory as an array of CuPy's")

print(f"{passed} passed, 0 failed")
