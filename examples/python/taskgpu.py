"""taskgpu for Python, over ctypes: devices, streams, events, buffers of NumPy's types, kernels, asyncio.

A small layer to copy and to extend, not a complete one. The current device and the current stream belong to the calling
thread or, under `taskgpu.run`, to the asyncio task: a `with` block that awaits does not show in other tasks.
"""
# SPDX-License-Identifier: MIT OR Apache-2.0

import asyncio
import collections.abc
import contextlib
import ctypes
import os
from ctypes import POINTER, byref, c_char, c_char_p, c_double, c_int, c_int32, c_int64, c_size_t, c_uint8, c_uint32
from ctypes import c_uint64, c_void_p

import numpy as np

OK, NOT_READY, TIMEOUT = 0, 1, 10
PRIORITIES = {"normal": 0, "low": 1, "high": 2}


class _Struct(ctypes.Structure):
    """A struct of the header that begins with its own size."""

    def __init__(self, **fields):
        super().__init__(struct_size=ctypes.sizeof(self), **fields)


class ErrorInfo(_Struct):
    _fields_ = [
        ("struct_size", c_size_t), ("status", c_int32), ("device", c_int32), ("stream_id", c_uint64),
        ("native_code", c_int64), ("backend", c_char * 16), ("native_name", c_char * 64), ("function", c_char * 64),
        ("text", c_char * 512),
    ]


class DeviceInfo(_Struct):
    _fields_ = [
        ("struct_size", c_size_t), ("device", c_int32), ("ordinal", c_int32), ("backend", c_char * 16),
        ("name", c_char * 256), ("arch", c_char * 64), ("uuid", c_uint8 * 16), ("pci", c_char * 32),
        ("total_memory", c_uint64), ("max_shared_per_block", c_uint64), ("compute_units", c_uint32),
        ("warp_size", c_uint32), ("max_threads_per_block", c_uint32), ("max_block", c_uint32 * 3),
        ("max_grid", c_uint32 * 3), ("priority_least", c_int32), ("priority_greatest", c_int32),
        ("hardware_queues", c_uint32), ("memory_pools", c_int32),
    ]


class StreamOptions(_Struct):
    _fields_ = [("struct_size", c_size_t), ("priority", c_int32), ("flags", c_uint32)]


class StreamInfo(_Struct):
    _fields_ = [
        ("struct_size", c_size_t), ("device", c_int32), ("priority", c_int32), ("effective_priority", c_int32),
        ("native_priority", c_int32), ("kind", c_int32), ("capturing", c_int32), ("id", c_uint64),
    ]


class CompileOptions(_Struct):
    _fields_ = [
        ("struct_size", c_size_t), ("name", c_char_p), ("options", POINTER(c_char_p)), ("option_count", c_size_t),
        ("name_expressions", POINTER(c_char_p)), ("name_expression_count", c_size_t),
    ]


class LaunchConfig(_Struct):
    _fields_ = [
        ("struct_size", c_size_t), ("grid", c_uint32 * 3), ("block", c_uint32 * 3), ("shared_bytes", c_uint64),
        ("stream", c_void_p),
    ]


class Scope(ctypes.Structure):
    _fields_ = [("opaque", c_uint64 * 2)]


class HostBlock(ctypes.Structure):
    _fields_ = [
        ("index", c_uint32 * 3), ("grid", c_uint32 * 3), ("block", c_uint32 * 3), ("device", c_int32),
        ("shared", c_void_p), ("shared_bytes", c_uint64),
    ]


HostKernel = ctypes.CFUNCTYPE(None, POINTER(HostBlock), POINTER(c_void_p), c_void_p)

# The functions in use, with the types of their arguments. Each answers a status. Handles are pointers to nothing.
_ARGUMENTS = {
    "error_info_get": [POINTER(ErrorInfo)],
    "error_text": [c_char_p, c_size_t, POINTER(c_size_t)],
    "device_count": [POINTER(c_int32)],
    "device_get": [POINTER(c_int32)],
    "device_set": [c_int32],
    "device_info_get": [c_int32, POINTER(DeviceInfo)],
    "stream_create": [POINTER(StreamOptions), POINTER(c_void_p)],
    "stream_destroy": [c_void_p],
    "stream_get": [POINTER(c_void_p)],
    "stream_query": [c_void_p],
    "stream_synchronize": [c_void_p],
    "stream_wait_event": [c_void_p, c_void_p],
    "stream_info_get": [c_void_p, POINTER(StreamInfo)],
    "stream_signal_fd": [c_void_p, c_int],
    "event_create": [c_void_p, POINTER(c_void_p)],
    "event_destroy": [c_void_p],
    "event_record": [c_void_p, c_void_p],
    "event_query": [c_void_p],
    "event_signal_fd": [c_void_p, c_int],
    "event_elapsed": [c_void_p, c_void_p, POINTER(c_double)],
    "scope_enter_device": [c_int32, POINTER(Scope)],
    "scope_enter_stream": [c_void_p, POINTER(Scope)],
    "scope_leave": [Scope],
    "task_create": [c_void_p, POINTER(c_void_p)],
    "task_destroy": [c_void_p],
    "task_swap": [c_void_p, POINTER(c_void_p)],
    "malloc_async": [c_uint64, c_void_p, POINTER(c_void_p)],
    "free_deferred": [c_void_p],
    "memcpy": [c_void_p, c_void_p, c_uint64, c_void_p],
    "module_compile": [c_char_p, POINTER(CompileOptions), POINTER(c_void_p)],
    "module_destroy": [c_void_p],
    "kernel_get": [c_void_p, c_char_p, POINTER(c_void_p)],
    "kernel_from_host_fn": [HostKernel, c_void_p, c_size_t, POINTER(c_size_t), POINTER(c_void_p)],
    "kernel_destroy": [c_void_p],
    "launch": [c_void_p, POINTER(LaunchConfig), POINTER(c_void_p)],
}


def _load():
    # CDLL lets other Python threads run during every call.
    library = ctypes.CDLL(os.environ.get("TASKGPU_LIBRARY") or "libtaskgpu.so.0.1")
    functions = {}
    for name, arguments in _ARGUMENTS.items():
        function = functions[name] = getattr(library, f"tgpu_{name}")
        function.argtypes, function.restype = arguments, c_int32
    library.tgpu_status_name.restype = c_char_p
    return library, functions


_library, _functions = _load()


class Error(Exception):
    """A call that failed: its status, the status's name, and what the library says about it."""

    def __init__(self, status):
        info = ErrorInfo()
        _functions["error_info_get"](byref(info))
        needed = c_size_t()
        _functions["error_text"](None, 0, byref(needed))
        text = ctypes.create_string_buffer(needed.value)
        _functions["error_text"](text, len(text), byref(needed))
        self.status = status
        self.name = _library.tgpu_status_name(status).decode()
        self.text = text.value.decode()
        self.device = info.device
        self.backend = info.backend.decode()
        super().__init__(f"{self.name}: {self.text}")


def call(name, *arguments):
    """Calls `tgpu_name`. Answers the status if it is an answer, raises `Error` if it is a failure."""
    status = _functions[name](*arguments)
    if status not in (OK, NOT_READY, TIMEOUT):
        raise Error(status)
    return status


def _output(name, *arguments, kind=c_void_p):
    """Calls `tgpu_name` with an output behind the other arguments, and answers what was put there."""
    out = kind()
    call(name, *arguments, byref(out))
    return out.value if hasattr(out, "value") else out


class _Owned:
    """An object behind a handle, given back with the last reference to it. The destroy calls are fit for that."""

    _destroy = None
    handle = None

    def __del__(self):
        if self.handle:
            _functions[self._destroy](self.handle)


# Devices


def device_count():
    return _output("device_count", kind=c_int32)


def device_info(index):
    info = DeviceInfo()
    call("device_info_get", index, byref(info))
    return info


def current_device():
    return _output("device_get", kind=c_int32)


def set_device(index):
    call("device_set", index)


@contextlib.contextmanager
def _scope(enter, what):
    scope = _output(enter, what, kind=Scope)
    try:
        yield
    finally:
        call("scope_leave", scope)


def device(index):
    """`with device(1):` makes it current in the block, and restores what was current before."""
    return _scope("scope_enter_device", index)


# Streams and events


class Stream(_Owned):
    """A new stream on the current device. `with stream.current():` makes it current in the block."""

    _destroy = "stream_destroy"

    def __init__(self, priority="normal"):
        self.handle = _output("stream_create", byref(StreamOptions(priority=PRIORITIES[priority])))

    def current(self):
        return _scope("scope_enter_stream", self.handle)

    @property
    def id(self):
        return stream_id(self)

    def wait(self, event):
        """Makes later work of the stream wait for the event. The caller does not wait."""
        call("stream_wait_event", self.handle, event.handle)


def _handle(stream):
    return stream.handle if stream else None  # None is NULL: the current stream


def stream_id(stream=None):
    info = StreamInfo()
    call("stream_info_get", _handle(stream), byref(info))
    return info.id


def synchronize(stream=None):
    """Waits for the current stream, or for `stream`. Holds up the calling thread: in a coroutine, await `done`."""
    call("stream_synchronize", _handle(stream))


class Event(_Owned):
    """A point in a stream, once it is recorded."""

    _destroy = "event_destroy"

    def __init__(self):
        self.handle = _output("event_create", None)

    def record(self, stream=None):
        call("event_record", self.handle, _handle(stream))
        return self

    def seconds_since(self, start):
        out = c_double()
        if call("event_elapsed", start.handle, self.handle, byref(out)) == NOT_READY:
            raise RuntimeError("one of the events has not been reached")
        return out.value


# Memory


class Buffer(_Owned):
    """Memory of the current device for an array of this shape and type. Given back once queued work has passed."""

    _destroy = "free_deferred"

    def __init__(self, shape, dtype):
        self.shape, self.dtype = shape, np.dtype(dtype)
        self.nbytes = int(np.prod(shape, dtype=np.int64)) * self.dtype.itemsize
        self.handle = _output("malloc_async", self.nbytes, None)

    def copy_from(self, array):
        """Queues a copy from an array. It must stay as it is until the current stream has got beyond it."""
        self._check(array)
        call("memcpy", self.handle, array.ctypes.data, self.nbytes, None)
        return self

    def copy_to(self, array):
        """Queues a copy to an array, which has the values once the current stream has got beyond it."""
        self._check(array)
        call("memcpy", array.ctypes.data, self.handle, self.nbytes, None)
        return array

    def _check(self, array):
        if array.shape != self.shape or array.dtype != self.dtype or not array.flags.c_contiguous:
            raise ValueError(f"the array has to be contiguous, {self.dtype} of shape {self.shape}")


def to_device(array):
    """Copies an array to the current device, and waits until that is done."""
    array = np.ascontiguousarray(array)
    buffer = Buffer(array.shape, array.dtype).copy_from(array)
    synchronize()
    return buffer


def to_host(buffer):
    """Copies a buffer to a new array, after what is queued on the current stream, and waits until that is done."""
    array = buffer.copy_to(np.empty(buffer.shape, buffer.dtype))
    synchronize()
    return array


# Kernels


class Module(_Owned):
    """HIP C++ source, compiled for the current device now and for others when it is first used there."""

    _destroy = "module_destroy"

    def __init__(self, source, name="kernel"):
        self.handle = _output("module_compile", source.encode(), byref(CompileOptions(name=name.encode())))

    def kernel(self, name):
        return Kernel(_output("kernel_get", self.handle, name.encode()))


class Kernel(_Owned):
    _destroy = "kernel_destroy"

    def __init__(self, handle, keep=None):
        self.handle, self._keep = handle, keep

    @classmethod
    def from_python(cls, function, *argument_types):
        """A Python function for host devices: `function(block, *arguments)`, called for each block, by other threads.

        Slow, and it must not raise; keep the kernel until its launches are done. For tests and for trying things out.
        """
        kinds = [np.dtype(kind) for kind in argument_types]

        def run(block, arguments, _):
            values = (ctypes.string_at(arguments[i], kind.itemsize) for i, kind in enumerate(kinds))
            function(block.contents, *(np.frombuffer(v, kind)[0] for v, kind in zip(values, kinds)))

        callback = HostKernel(run)
        sizes = (c_size_t * len(kinds))(*(kind.itemsize for kind in kinds))
        return cls(_output("kernel_from_host_fn", callback, None, len(kinds), sizes), keep=callback)

    def launch(self, *arguments, grid=1, block=1, shared_bytes=0, stream=None):
        """Queues the kernel. An argument is a Buffer, or a NumPy scalar such as `np.float32(2)`, whose type counts."""
        values = [_packed(argument) for argument in arguments]
        pointers = (c_void_p * len(values))(*(value.ctypes.data for value in values))
        config = LaunchConfig(
            grid=_three(grid), block=_three(block), shared_bytes=shared_bytes, stream=_handle(stream)
        )
        call("launch", self.handle, byref(config), pointers)


def _packed(argument):
    if isinstance(argument, Buffer):
        return np.array([argument.handle or 0], np.uintp)
    if isinstance(argument, np.generic):
        return np.array([argument])
    raise TypeError(f"a kernel takes a Buffer or a NumPy scalar such as np.float32(2), not a {type(argument).__name__}")


def _three(shape):
    shape = (shape,) if isinstance(shape, int) else tuple(shape)
    return (c_uint32 * 3)(*shape, *(1,) * (3 - len(shape)))


# asyncio


class _InTask(collections.abc.Coroutine):
    """A coroutine that acts for a `tgpu_task` of its own whenever it runs, and for nobody while it waits."""

    def __init__(self, coroutine):
        self._coroutine = coroutine
        self.__name__ = getattr(coroutine, "__name__", type(coroutine).__name__)
        self.__qualname__ = getattr(coroutine, "__qualname__", self.__name__)
        self._task = _output("task_create", None)

    def _step(self, step, *arguments):
        before = _output("task_swap", self._task)
        try:
            return step(*arguments)
        finally:
            call("task_swap", before, None)

    def send(self, value):
        return self._step(self._coroutine.send, value)

    def throw(self, *exception):
        return self._step(self._coroutine.throw, *exception)

    def close(self):
        return self._step(self._coroutine.close)

    def __await__(self):
        return (yield from self._coroutine.__await__())

    def __del__(self):
        _functions["task_destroy"](self._task)


def task_factory(loop, coroutine, **options):
    """For `loop.set_task_factory`: gives every asyncio task a device and streams of its own."""
    return asyncio.Task(_InTask(coroutine), loop=loop, **options)


def run(coroutine):
    """`asyncio.run`, with a device and streams for each task."""

    async def main():
        asyncio.get_running_loop().set_task_factory(task_factory)
        return await asyncio.create_task(coroutine)

    return asyncio.run(main())


async def done(what=None):
    """Waits for the current stream, a Stream or an Event. The event loop runs other tasks meanwhile."""
    query, signal = ("event_query", "event_signal_fd") if isinstance(what, Event) else ("stream_query", "stream_signal_fd")
    handle = _handle(what)
    if call(query, handle) == OK:
        return
    loop = asyncio.get_running_loop()
    written = loop.create_future()
    descriptor = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
    try:
        call(signal, handle, descriptor)
        # The reader stays until it is removed, so it may be called again before this coroutine runs.
        loop.add_reader(descriptor, lambda: written.done() or written.set_result(None))
        await written
    finally:
        loop.remove_reader(descriptor)
        os.close(descriptor)  # the library has a duplicate
    call(query, handle)  # raises if the work has failed
